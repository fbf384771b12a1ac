"""The plots of a card: what of the logs is drawn, and on which axes."""

import re

import pytest
from matplotlib.figure import Figure

from trl_credit.observe.credit_panels import PANELS
from trl_credit.observe.credit_plot import plot_credit
from trl_credit.observe.reward_curve import plot_rewards


@pytest.fixture
def figures(monkeypatch):
    """All figures, once for each time that they are drawn."""
    drawn, draw = [], Figure.draw
    monkeypatch.setattr(Figure, "draw", lambda self, renderer: drawn.append(self) or draw(self, renderer))
    return drawn


def legend(axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_the_axes_of_shares_and_the_legends(tmp_path, figures):
    def drawn(**metrics):
        logs = [{"step": step} | {f"credit/{name}": x for name, x in metrics.items()} for step in (1, 2, 3)]
        names = plot_credit(logs, tmp_path / "c.png", title="t")
        return names, figures[-1].axes[0] if names else None

    assert drawn(groups_without_signal=1.0)[1].get_ylim() == (0, 100)  # not up to 200 %
    assert drawn(clip_fraction=0.0013)[1].get_ylim() == pytest.approx((0, 0.156))  # or nothing would be seen
    assert drawn(clip_fraction=0.0)[1].get_ylim() == (0, 100)
    assert legend(drawn(**{"difficulty_weight/harder_positive": 1.2})[1]) == ["harder, A > 0"]
    assert legend(drawn(**{"segment_value/level_1": 0.5})[1]) == ["level 1"]
    # metrics that have nothing to report
    assert drawn(rollout_token_share=1.0, kept_fraction=1.0, rows_missing=0.0, **{"replay/age": 0.0})[0] == []
    assert drawn(rollout_token_share=0.7)[0] == ["rollout_token_share"]
    tenths = {f"coefficient/entropy_decile_{d}": 1.0 + d for d in range(10)}
    names, axes = drawn(**tenths)
    assert names == list(tenths) and len({tuple(line.get_color()) for line in axes.lines}) == 10
    assert legend(axes)[:10:3] == ["lowest tenth", "4th tenth", "7th tenth", "highest tenth"]


def test_four_panels_that_have_something_to_say(tmp_path, figures):
    steps = range(1, 7)
    noise = {step: 1 + 0.02 * (-1) ** step for step in steps}  # of 4 % of the value
    logs = [
        {"step": step, "credit/trace_mass": noise[step], "credit/clip_fraction": 0.3 * noise[step]}
        | {"credit/groups_without_signal": 0.1 * step, "credit/unique_responses": 4 * noise[step]}
        | {f"credit/coefficient/entropy_decile_{d}": noise[step] * (1 + 6 * (d > 7)) for d in range(10)}
        | {f"credit/coefficient/quarter_{q}": q * noise[step] for q in range(1, 5)}
        | {f"credit/abs_advantage/quarter_{q}": step + 0.01 * q for q in range(1, 5)}
        | {"credit/a_new_one": 10.0 * step, "credit/seconds/train": 1.0 * step}
        for step in steps
    ]
    names = plot_credit(logs, tmp_path / "c.png", title="t")
    assert {name.partition("/")[0] for name in names} == {"coefficient", "groups_without_signal", "abs_advantage"}
    panels = figures[-1].axes
    assert len(panels) == 4 and all(axes.get_ylim()[0] == 0 for axes in panels)
    assert all(re.match(r"optimizer step\n\w.*\.$", axes.get_xlabel(), re.DOTALL) for axes in panels)
    assert legend(panels[0]) == ["lowest tenth to 8th tenth", "9th tenth to highest tenth"]  # lines that coincide
    assert legend(panels[1]) == ["1st quarter", "2nd quarter", "3rd quarter", "4th quarter"]
    assert legend(panels[3]) == ["1st quarter to 4th quarter"]
    # a few panels: one that hardly moves is left out beside one that does, and does not zoom in alone
    few = [{name: row[name] for name in ("step", "credit/unique_responses")} for row in logs]
    assert plot_credit(few, tmp_path / "c.png", title="t") == ["unique_responses"]
    assert figures[-1].axes[0].get_ylim() == pytest.approx((0, 1.1 * 4.08))
    rising = [row | {"credit/groups_without_signal": 0.1 * row["step"]} for row in few]
    assert plot_credit(rising, tmp_path / "c.png", title="t") == ["groups_without_signal"]


def test_a_figure_is_drawn_once_and_its_texts_do_not_meet(tmp_path, figures):
    longest = sorted(PANELS, key=lambda panel: len(panel.sentence) * (not panel.unit.startswith("%")))[-4:]
    names = [next(iter(panel.labels)) for panel in longest]
    names = [f"{name}a" if name.endswith("/") else name for name in names]
    logs = [{"step": step, **{f"credit/{name}": -123456.0 * step for name in names}} for step in (1, 2)]
    assert plot_credit(logs, tmp_path / "c.png", title="t")
    assert plot_rewards([{"step": s, "reward": -12345.0 * s} for s in (1, 2)], tmp_path / "r.png", title="t")
    assert len(figures) == len(set(map(id, figures))) == 2
    for figure in figures:
        texts = [text for axes in figure.axes for text in (axes.xaxis.label, axes.yaxis.label, axes.title)]
        boxes = [text.get_window_extent() for text in [*texts, figure._suptitle] if text is not None]
        boxes += [axes.get_window_extent() for axes in figure.axes]
        for i, box in enumerate(boxes):
            assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
            assert not any(box.overlaps(other) for other in boxes[:i])


def test_an_axis_of_both_signs_has_0_in_its_middle(tmp_path, figures):
    logs = [{"step": step, "credit/segment_advantage/quarter_1": x} for step, x in enumerate((0.1, -0.2, 0.1), 1)]
    plot_credit(logs, tmp_path / "c.png", title="t")
    assert figures[-1].axes[0].get_ylim() == pytest.approx((-0.22, 0.22))


def test_the_band_of_the_reward_stays_in_its_range(make_trainer, tmp_path, figures):
    trainer = make_trainer("grpo", max_steps=3)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "reward" in row]
    assert any(row["reward"] - row["reward_std"] < row["reward_min"] for row in rows)
    assert all(0 <= row["reward_min"] <= row["reward"] <= row["reward_max"] <= 1 for row in rows)
    plot_rewards(trainer.state.log_history, tmp_path / "r.png", title="t")
    heights = figures[-1].axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert min(row["reward_min"] for row in rows) <= heights.min() < heights.max() <= 1
    # logs of an older version lack the smallest and the largest reward
    assert plot_rewards([{"step": 1, "reward": 0.9, "reward_std": 0.3}], tmp_path / "r.png", title="t") == (0.9, 0.9)


def test_what_was_logged_is_drawn(tmp_path, figures):
    logs = [
        {"step": step, "reward": 1.0, "credit/clip_fraction": 0.1 * step, "credit/skipped_updates": 0.0}
        | {f"credit/abs_advantage/quarter_{q}": q / step for q in range(1, 5)}
        | {"credit/new_metric": step, "eval_credit/clip_fraction": 3.0, "credit/trace_mass": float("nan")}
        for step in range(1, 4)
    ]
    drawn = plot_credit(logs, tmp_path / "c.png", title="t")
    assert drawn == ["clip_fraction", *(f"abs_advantage/quarter_{q}" for q in range(1, 5)), "new_metric"]
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    axes, *_, unknown = figures[-1].axes
    assert axes.get_ylim() == (0, 100)  # 10 … 30 % of tokens
    assert legend(axes) == ["of all tokens"]
    assert unknown.get_legend() is None
    logs[0]["credit/skipped_updates"] = 0.5
    assert "skipped_updates" in plot_credit(logs, tmp_path / "c.png", title="t")
    assert plot_credit([{"step": 1, "reward": 1.0}], tmp_path / "none.png", title="t") == []
    assert not (tmp_path / "none.png").exists()
