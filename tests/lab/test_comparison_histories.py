"""What a comparison reads from a run's log, against what real tiny runs generated and trained on."""

import json
import time

import numpy as np
import pytest
from comparison_helpers import IDENTITY, history, log_state

from trl_credit import ALGORITHMS
from trl_credit.lab.comparison.groups import curve, group_runs, make_group, smoothed
from trl_credit.lab.comparison.histories import AXES, make_history, read_history
from trl_credit.lab.comparison.scoring import scored_runs
from trl_credit.runs.identity import functions_of, identity


SEGMENTS = {"spo_chain": {"rollouts_per_state": 2}, "vine_ppo": {"rollouts_per_state": 2}}
UNALIGNED = {
    "logging_steps": 3,
    "num_iterations": 2,
    "gradient_accumulation_steps": 2,
    "per_device_train_batch_size": 4,
}


class Counted:
    """Counts the tokens that a trainer's engine generates and that its loss trains on."""

    def __init__(self, trainer):
        self.generated = self.batches = self.trained = 0
        single, continued, loss = trainer._generate_single_turn, trainer.engine.continue_prefixes, trainer._compute_loss

        make = trainer.make_batch

        def make_batch(inputs):
            self.batches += 1
            return make(inputs)

        def generate(*args, **kwargs):
            found = single(*args, **kwargs)
            self.generated += sum(map(len, found[0]))
            return found

        def continue_prefixes(*args, **kwargs):
            before, found = self.generated, continued(*args, **kwargs)  # whose calls of the engine may write more
            self.generated = before + sum(len(one.ids) for one in found)
            return found

        def compute_loss(model, inputs):
            mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
            value = loss(model, inputs)
            self.trained += int((inputs.get("policy_mask", mask) * mask).sum())
            return value

        trainer._generate_single_turn, trainer.engine.continue_prefixes = generate, continue_prefixes
        trainer._compute_loss, trainer.make_batch = compute_loss, make_batch


OFTEN = ("spo_chain", "spo_tree")  # the others generate as GRPO does


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        *(pytest.param(algo, {"max_steps": 4}, marks=() if algo in OFTEN else pytest.mark.slow) for algo in ALGORITHMS),
        *((algo, {"max_steps": 6, **UNALIGNED}) for algo in ("grpo", "spo_chain", "spo_tree")),
    ],
)
def test_tokens_are_those_of_the_engine_and_of_the_loss(algo, settings, make_trainer):
    trainer = make_trainer(algo, **settings, **SEGMENTS.get(algo, {}))
    counted = Counted(trainer)
    begun = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - begun
    trainer.functions = getattr(trainer, "functions", None) or functions_of(trainer)
    found = make_history(vars(trainer.state), identity(trainer))
    assert set(found.totals) == set(AXES) and not found.unknown
    assert found.totals["steps"] == settings["max_steps"] and found.is_finished
    assert found.totals["generated"] == pytest.approx(counted.generated) and counted.generated > 0
    assert found.totals["prompts"] == counted.batches * trainer.args.generation_batch_size // 4  # 4 rows per prompt
    assert found.totals["trained"] == pytest.approx(counted.trained, abs=0.01)
    assert 0 < found.totals["seconds"] < seconds
    rows = [row for row in trainer.state.log_history if "reward" in row]
    if "logging_steps" in settings:  # log rows and batches are not aligned
        assert [row["step"] for row in rows] == [3, 6]
        return
    assert len(found.values) == counted.batches
    if algo in ("spo_chain", "vine_ppo", "spo_tree"):
        responses = sum(8 * row["completions/mean_length"] for row in rows)
        assert counted.generated != pytest.approx(responses)  # it includes rollouts


def test_an_evaluation_is_placed_where_training_was():
    log = log_state([0.1, 0.2, 0.3])
    log["log_history"].insert(2, {"step": 2, "eval_demo/avg@4": 0.7, "eval_runtime": 3.0})
    found = make_history(log, IDENTITY, metric="eval_demo/avg@4")
    assert found.values.tolist() == [0.7] and found.axes["generated"].tolist() == [160]
    assert found.totals["steps"] == 3 and found.at("steps", 3) == 0.7
    with pytest.raises(ValueError, match=r"logged no 'eval_demo/avg': did you mean 'eval_demo/avg@4'\?"):
        make_history(log, IDENTITY, metric="eval_demo/avg")


def test_axes_that_an_older_log_lacks_are_unknown():
    found = history([0.1, 0.2], log={"credit/trained_tokens_per_row": None})
    assert "trained" not in found.axes and "older trl_credit" in found.unknown["trained"]
    assert "generated" not in history([0.1], rollouts="chain").axes
    chain = history([0.1], rollouts="chain", log={"credit/rollout_tokens": 50.0})
    assert chain.totals["generated"] == 130


def test_a_folder_without_a_log_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no folder"):
        read_history(tmp_path / "none")
    with pytest.raises(ValueError, match=r"holds no credit_run\.json"):
        read_history(tmp_path)
    run = {"version": 1, "identity": IDENTITY, "lives": [{"from": 0, "id": "a"}]}
    (tmp_path / "credit_run.json").write_text(json.dumps(run))
    with pytest.raises(ValueError, match="holds no (whole|complete) checkpoint"):
        read_history(tmp_path)


def test_scores_are_taken_at_the_point_that_all_runs_have_reached():
    a = make_group("a", [history(np.arange(20.0)), history(np.arange(20.0) + 1, seed=1)])
    b = make_group("b", [history(np.arange(10.0), log={"tokens": 40.0})])
    runs = scored_runs([a, b])
    assert [(run["label"], run["seed"], run["phase"], run["value"]) for run in runs] == [
        *(("a", seed, "verdict", None) for seed in (0, 1)),
        ("b", 0, "verdict", None),
    ]
    assert [run["end"] for run in runs] == [9, 10, 9]  # to step 10: the last tenth is step 10
    assert [run["area"] for run in runs] == [4.5, 5.5, 4.5]
    assert [run["generated"] for run in runs] == [18.5, 19.5, 4]  # 1600 tokens: twenty steps of a, five of b
    assert [run["prompts"] for run in runs] == [9, 10, 9]
    assert runs[2]["totals"] == {"steps": 10, "prompts": 20, "generated": 3200, "trained": 560}
    unknown = make_group("c", [history([1.0], log={"credit/trained_tokens_per_row": None, "tokens": None})])
    (run,) = scored_runs([unknown])
    assert run["generated"] is run["totals"]["generated"] is run["totals"]["trained"] is None


def test_curves_have_the_span_of_all_seeds():
    group = make_group(
        "a", [history([0.0, 1.0, 2.0]), history([2.0, 1.0, 0.0], seed=1), history([1.0, 1.0, 1.0], seed=2)]
    )
    found = curve(group, "steps")
    assert found.x.tolist() == [1, 2, 3] and found.middle.tolist() == [1, 1, 1]
    assert found.low.tolist() == [0, 1, 0] and found.high.tolist() == [2, 1, 2]
    longer = history([0.0, 1.0, 2.0], log={"tokens": 20.0}, seed=1)
    uneven = curve(make_group("a", [history([0.0, 1.0, 2.0]), longer]), "generated", points=3)
    assert uneven.x.tolist() == [160, 200, 240]  # from the later first point to the earlier last one
    assert uneven.low.tolist() == [0, 0.25, 0.5] and uneven.high.tolist() == [1, 1.5, 2]


def test_smoothing_looks_back_only():
    values = np.random.default_rng(0).normal(size=60)
    expected = [values[max(0, i - 2) : i + 1].mean() for i in range(60)]  # a twentieth of 60 points
    np.testing.assert_allclose(smoothed(values), expected)
    assert smoothed(values[:9]).tolist() == pytest.approx(values[:9].tolist())


def test_runs_are_grouped_by_algorithm_and_settings():
    data = {"rows": 4, "content": "x"}
    runs = [history([0.1], data=data), history([0.1], seed=1, data=data | {"content": "y"})]
    runs += [history([0.1], seed=s, algorithm="S-trace", trace_lambda=x) for x in (0.9, 0.5) for s in (0, 1)]
    groups = group_runs(runs)
    assert [(g.label, g.seeds) for g in groups] == [
        ("GRPO", [0, 1]),
        ("S-trace (trace_lambda 0.9)", [0, 1]),
        ("S-trace (trace_lambda 0.5)", [0, 1]),
    ]
    with pytest.raises(ValueError, match="are runs of GRPO with seed 0: leave out one"):
        group_runs([runs[0], history([0.3], data=data)])
