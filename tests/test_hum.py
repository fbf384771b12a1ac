"""The runs of the trainer on `demo_hum`: what they differ in, and how docs/results/demos.md scores them."""

import dataclasses

import hum
import numpy as np
import pytest
from hum import ENTRIES, RATES, SHARED, TUNING, UNTUNED, VERDICT, Runs, Unit, best_rate, units

from trl_credit.lab.evaluation.protocols import PROTOCOLS
from trl_credit.settings.arguments import parse_arguments


def settings(entry: str) -> dict[str, object]:
    args = parse_arguments([*ENTRIES[entry].flags.split(), *SHARED, "--output_dir", "unused"], protocols=PROTOCOLS).args
    return {field.name: getattr(args, field.name) for field in dataclasses.fields(args) if field.init}


TRACE = {"importance": "eligible", "trace_lambda": 0.9, "selector": "entropy"}
CHAIN = {"rollouts": "chain", "token_mask": "none"}
CREDIT = {
    "grpo": {},
    "s_trace": TRACE,
    "s_trace_99": TRACE | {"trace_lambda": 0.99},
    "random": TRACE | {"selector": "random"},
    "p_trace": TRACE | {"selector": "none"},
    "top_20": {"top_entropy_quantile": 0.2},
    "grpo_32": {},
    "vine_ppo": CHAIN | {"segmentation": "steps"},
    "spo_chain": CHAIN | {"segmentation": "cutpoints", "cutpoint_interval": 2, "token_mask": "probability"},
}
OF_ROLLOUTS = {"max_steps", "step_splitter", "rollout_batch_size"}


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_differs_from_grpo_in_its_credit_alone(entry):
    own, base = settings(entry), settings(ENTRIES[entry].baseline)
    differing = {name for name in own if own[name] != base.get(name)}
    if entry in CREDIT:
        assert {name: own[name] for name in CREDIT[entry]} == CREDIT[entry]
        assert differing <= set(CREDIT[entry]) | (OF_ROLLOUTS if entry in hum.ROLLOUTS else set())
    else:
        assert differing <= {"importance", "trace_lambda", "advantage_floor", "beta"}
    if entry in hum.FACTORS:
        parts = own["importance"] == "lambda_trace", own["advantage_floor"] == -0.1, own["beta"] == 0.04
        assert parts == hum.FACTORS[entry]
        assert own["trace_lambda"] == (0.99 if parts[0] else 0.9)
    assert own["num_iterations"] == 1 and own["max_completion_length"] == 108
    assert own["lr_scheduler_type"] == "constant"  # so that 30 updates are the first 30 of 150


def runs_of(area_of) -> Runs:
    """Runs of ten updates whose area is `area_of(unit)`, with a token for each response so far."""
    every = {Unit(entry, rate, seed) for entry in ENTRIES for rate in RATES for seed in (*TUNING, *VERDICT)}
    return {unit: {"reward": [area_of(unit)] * 10, "generated": list(range(32, 352, 32))} for unit in every}


def test_the_factorial_is_exact_where_effects_add_up():
    def area_of(unit):
        trace, floor, beta = hum.FACTORS.get(unit.entry, (0, 0, 0))
        noise = np.random.default_rng(unit.seed).normal(0, 0.1)  # of the seed, so that pairing removes it
        own = np.random.default_rng([unit.seed, list(ENTRIES).index(unit.entry)]).normal(0, 1e-9)
        return 0.5 + 0.03 * trace - 0.02 * floor + 0.07 * beta + noise + own

    runs = runs_of(area_of)
    for tuned in (True, False):
        scores_of = {name: hum.scores(runs, name, tuned=tuned) for name in hum.FACTORS}
        effects = [hum.main_effect(scores_of, factor).value for factor in range(3)]
        assert effects == pytest.approx([0.03, -0.02, 0.07], abs=1e-8)
    shown = [line.split("|")[2].strip() for line in hum.hum_factorial(runs).splitlines()[2:]]
    assert shown == ["**+0.030 ± 0.000**", "**−0.020 ± 0.000**", "**+0.070 ± 0.000**"]


def test_each_algorithm_has_its_own_rate_and_the_verdict_no_tuning_seed():
    best = {"grpo": "1e-4", "s_trace": "5e-5"}

    def area_of(unit):
        if unit.seed in TUNING:
            return float(unit.rate == best.get(unit.entry, UNTUNED))
        noise = np.random.default_rng([unit.seed, list(ENTRIES).index(unit.entry)]).normal(0, 0.001)
        return {"2.5e-5": 0.1, "5e-5": 0.2, "1e-4": 0.4}[unit.rate] + noise

    runs = runs_of(area_of)
    assert [best_rate(runs, entry) for entry in ("grpo", "s_trace", "top_20")] == ["1e-4", "5e-5", UNTUNED]
    tuned = hum.verdicts(runs, hum.SINGLE, tuned=True)
    assert tuned["s_trace"].test.value == pytest.approx(0.2 - 0.4, abs=0.005)
    assert (tuned["s_trace"].rate, tuned["s_trace"].test.n) == (5e-5, len(VERDICT))
    assert hum.against_grpo(runs, "s_trace", tuned=False).value == pytest.approx(0.0, abs=0.005)
    todo = [unit for phase in units(runs) for unit in phase]
    assert Unit("s_trace", "5e-5", 0) in todo and Unit("s_trace", "1e-4", 0) not in todo
    shown = [line.split("|")[2:4] for line in hum.hum_factorial(runs).splitlines()[2:]]
    # GRPO has 0.4 tuned, the seven other variants 0.1, so each main effect is −0.075; untuned all have 0.1
    assert all(one.strip().startswith("**−0.07") and "0.00" in other[:8] for one, other in shown)


def test_equal_updates_and_equal_tokens():
    own = {"reward": [0.0, 1.0, 1.0], "generated": [100, 200, 300]}
    base = {"reward": [0.2, 0.4, 0.6, 0.8, 1.0], "generated": [10, 20, 30, 40, 150]}
    runs = {Unit("vine_ppo", UNTUNED, 0): own, Unit("grpo_32", UNTUNED, 0): base}
    by_updates = hum.rollout_score(runs, equal="updates")
    assert (by_updates(own), by_updates(base)) == pytest.approx((2 / 3, 0.4))
    by_tokens = hum.rollout_score(runs, equal="tokens")  # up to 150 tokens
    assert by_tokens(own) == pytest.approx(50 / 150)
    assert by_tokens(base) == pytest.approx((10 * (0.2 + 0.4 + 0.6 + 0.8) + 110 * 1.0) / 150)
