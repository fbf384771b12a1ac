"""The plots of a card: what of the logs is drawn, and on which axes."""

import pytest
from matplotlib.figure import Figure

from trl_credit.observe.plots import PANELS, plot_credit, plot_rewards


@pytest.fixture
def figures(monkeypatch):
    """All figures that are drawn."""
    drawn, draw = [], Figure.draw
    monkeypatch.setattr(Figure, "draw", lambda self, renderer: drawn.append(self) or draw(self, renderer))
    return drawn


def legend(axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def drawn(figures, path, **metrics):
    logs = [{"step": step} | {f"credit/{name}": x for name, x in metrics.items()} for step in (1, 2, 3)]
    names = plot_credit(logs, path / "c.png", title="t")
    return names, figures[-1].axes if names else []


def test_the_axes_and_the_legends(tmp_path, figures):
    for value, end in ((1.0, 1.1), (0.0013, 0.00143), (0.0, 1.0)):
        names, (axes,) = drawn(figures, tmp_path, clip_fraction=value)
        assert axes.get_ylim() == pytest.approx((0, end)) and axes.get_legend() is None
    names, (axes,) = drawn(figures, tmp_path, **{"difficulty_weight/harder_positive": 1.2})
    assert legend(axes) == ["harder positive"] and axes.get_title() == "difficulty weight"
    names, (axes,) = drawn(figures, tmp_path, **{"clip_fraction": 0.1, "clip_fraction/response_mean": 0.2})
    assert legend(axes) == ["all", "response mean"]
    # metrics that have nothing to report
    idle = {"rollout_token_share": 1.0, "kept_fraction": 1.0, "rows_missing": 0.0, "replay/age": 0.0}
    assert drawn(figures, tmp_path, **idle)[0] == []
    assert drawn(figures, tmp_path, rollout_token_share=0.7)[0] == ["rollout_token_share"]
    tenths = {f"coefficient/entropy_decile_{d}": 1.0 + d for d in range(10)}
    names, (axes,) = drawn(figures, tmp_path, **tenths)
    assert names == list(tenths) and len({tuple(line.get_color()) for line in axes.lines}) == 10
    assert legend(axes)[:10:3] == [f"entropy decile {d}" for d in (0, 3, 6, 9)]


def test_every_panel_in_its_order_and_what_no_panel_names_after_them(tmp_path, figures):
    metrics = {"a_new_one": 10.0, "seconds/train": 1.0, "effective_horizon": 3.0, "abs_advantage": 0.5, "mine/x": 2.0}
    metrics |= dict.fromkeys(reversed(PANELS), 0.5)
    names, panels = drawn(figures, tmp_path, **metrics)
    assert names == [*PANELS, "a_new_one", "mine/x"] and len(panels) == len(names)
    for begin, axes in zip(names, panels, strict=True):
        assert axes.get_xlabel().replace("\n", " ") == f"optimizer step {PANELS.get(begin, '')}".strip()


def test_the_band_of_the_reward_stays_in_its_range(finished_run, tmp_path, figures):
    log = finished_run("s_trace").trainer.state.log_history
    rows = [row for row in log if "reward" in row]
    assert all(0 <= row["reward_min"] <= row["reward"] <= row["reward_max"] <= 1 for row in rows)
    row = {"step": 1, "reward": 0.9, "reward_std": 0.3}
    plot_rewards([row | {"reward_min": 0.0, "reward_max": 1.0}], tmp_path / "r.png", title="t")
    heights = figures[-1].axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx(0.6) and heights.max() == 1.0
    assert plot_rewards([row], tmp_path / "r.png", title="t") == (0.9, 0.9)
