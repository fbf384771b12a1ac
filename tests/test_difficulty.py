import json
import logging
import math
import runpy
from pathlib import Path

import pytest
import torch

from trl_credit.credit.difficulty import DifficultyBelief, batch_accuracy, difficulty_weight, group_accuracy
from trl_credit.trainer.metrics import difficulty_statistics


def tensor64(values):
    return torch.tensor(values, dtype=torch.float64)


class TestDifficultyBelief:
    def test_first_batch_is_its_own_prior_and_the_second_sees_only_the_first(self):
        belief = DifficultyBelief()
        assert belief.belief is None
        assert belief.prior(0.3) == 0.3
        belief.update(0.3)
        assert belief.belief == 0.3
        assert belief.prior(0.9) == 0.3

    def test_prior_does_not_move_the_belief(self):
        belief = DifficultyBelief()
        belief.prior(0.9)
        assert belief.belief is None

    def test_history_by_hand(self):
        # window 2: two means, then the moving average
        belief = DifficultyBelief("history", window=2, rate=1.0)
        belief.update(0.2)
        assert belief.belief == 0.2
        belief.update(0.6)
        assert belief.belief == pytest.approx(0.4, abs=1e-15)
        # the last two beliefs are .2 and .4: their population std is .1, so C = .9 × .4 + .1 × 1
        belief.update(1.0)
        assert belief.belief == pytest.approx(0.46, abs=1e-15)
        # beliefs .4 and .46: std .03, C = .97 × .46 + .03 × 0
        belief.update(0.0)
        assert belief.belief == pytest.approx(0.4462, abs=1e-15)

    def test_history_against_the_equations(self):
        generator = torch.Generator().manual_seed(0)
        accuracies = torch.rand(50, generator=generator, dtype=torch.float64).tolist()
        window, rate, rate_min = 10, 3.0, 0.02
        belief = DifficultyBelief("history", window=window, rate=rate, rate_min=rate_min)
        beliefs = []
        for t, y in enumerate(accuracies):
            belief.update(y)
            if t < window:
                beliefs.append(sum(accuracies[: t + 1]) / (t + 1))
            else:
                sigma = tensor64(beliefs[-window:]).std(correction=0).item()
                eta = min(max(rate * sigma, rate_min), 1.0)
                beliefs.append((1 - eta) * beliefs[-1] + eta * y)
            assert belief.belief == pytest.approx(beliefs[-1], abs=1e-14)

    def test_rate_scales_the_step_and_is_clipped_on_both_sides(self):
        def after(**arguments):
            belief = DifficultyBelief("history", window=2, **{"rate": 1.0, **arguments})
            for accuracy in (0.2, 0.6, 1.0):
                belief.update(accuracy)
            return belief.belief

        # C⁻ = .4, σ = .1, y = 1
        assert after(rate=5.0) == pytest.approx(0.4 + 0.5 * 0.6)
        assert after(rate=1000.0) == pytest.approx(1.0)
        assert after(rate_min=0.25) == pytest.approx(0.4 + 0.25 * 0.6)

    def test_agreeing_beliefs_still_move_by_the_smallest_rate(self):
        belief = DifficultyBelief("history", window=3)
        for _ in range(3):
            belief.update(0.5)
        belief.update(1.0)
        assert belief.belief == pytest.approx(0.5 + 0.02 * 0.5, abs=1e-15)

    def test_hard_is_the_mean_of_the_last_window_for_good(self):
        belief = DifficultyBelief("hard", window=3)
        accuracies = [0.1, 0.5, 0.9, 0.3, 1.0, 0.0]
        for t, accuracy in enumerate(accuracies):
            belief.update(accuracy)
            recent = accuracies[max(0, t - 2) : t + 1]
            assert belief.belief == pytest.approx(sum(recent) / len(recent), abs=1e-15)

    def test_history_and_hard_agree_until_the_window_is_full_and_part_there(self):
        history, hard = DifficultyBelief("history", window=3), DifficultyBelief("hard", window=3)
        for accuracy in (0.1, 0.5, 0.9):
            history.update(accuracy)
            hard.update(accuracy)
            assert history.belief == hard.belief
        history.update(1.0)
        hard.update(1.0)
        assert history.belief != hard.belief

    def test_fixed_never_moves(self):
        belief = DifficultyBelief("fixed", threshold=0.4)
        assert belief.belief == 0.4
        for accuracy in (0.0, 1.0, 1.0):
            assert belief.prior(accuracy) == 0.4
            belief.update(accuracy)
        assert belief.belief == 0.4

    @pytest.mark.parametrize("mode", ["history", "hard"])
    @pytest.mark.parametrize("value", [0.0, 0.1, 1.0])
    def test_a_constant_accuracy_is_a_fixed_point(self, mode, value):
        belief = DifficultyBelief(mode, window=4)
        for _ in range(20):
            belief.update(value)
        assert belief.belief == pytest.approx(value, abs=1e-16)
        assert 0.0 <= belief.belief <= 1.0

    @pytest.mark.parametrize("mode", ["history", "hard", "fixed"])
    @pytest.mark.parametrize("stop", [0, 1, 3, 4, 5, 15])
    def test_resumed_equals_uninterrupted(self, mode, stop):
        accuracies = torch.rand(20, generator=torch.Generator().manual_seed(1), dtype=torch.float64).tolist()
        whole = DifficultyBelief(mode, window=4)
        first = DifficultyBelief(mode, window=4)
        for accuracy in accuracies[:stop]:
            whole.update(accuracy)
            first.update(accuracy)
        second = DifficultyBelief(mode, window=4)
        second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
        assert second.belief == whole.belief
        for accuracy in accuracies[stop:]:
            whole.update(accuracy)
            second.update(accuracy)
            assert second.belief == whole.belief

    def test_a_state_is_a_copy(self):
        belief = DifficultyBelief("hard", window=2)
        belief.update(0.2)
        state = belief.state_dict()
        belief.update(0.8)
        other = DifficultyBelief("hard", window=2)
        other.load_state_dict(state)
        other.update(0.4)
        assert (belief.belief, other.belief) == (pytest.approx(0.5), pytest.approx(0.3))
        assert state["accuracies"] == [0.2]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"version": 3}, "version 3"),
            ({"version": True}, "version True"),
            ({"mode": "hard"}, "mode='hard'"),
            ({"window": 4}, "window=4"),
            ({"window": True}, "window=True"),
            ({"beliefs": [math.nan]}, "beliefs must hold numbers"),
            ({"beliefs": [math.inf]}, "beliefs must hold numbers"),
            ({"accuracies": [1.5]}, "accuracies must hold numbers"),
            ({"accuracies": ["0.5"]}, "accuracies must hold numbers"),
            ({"accuracies": [True]}, "accuracies must hold numbers"),
            ({"accuracies": None}, "accuracies must be a list"),
            ({"accuracies": [0.5] * 4}, "at most window=3"),
            ({"accuracies": [0.5, 0.5]}, "equally many"),
            ({"rate": "1"}, "rate must be a number"),
            ({"extra": 1}, "must have the keys"),
        ],
    )
    def test_a_bad_state_is_refused_and_changes_nothing(self, change, message):
        belief = DifficultyBelief("history", window=3)
        belief.update(0.5)
        before = belief.state_dict()
        with pytest.raises(ValueError, match=message):
            belief.load_state_dict({**before, **change})
        assert belief.state_dict() == before

    @pytest.mark.parametrize("key", ["version", "mode", "window", "rate", "accuracies", "beliefs"])
    def test_a_missing_key_is_refused(self, key):
        state = DifficultyBelief().state_dict()
        del state[key]
        with pytest.raises(ValueError, match=r"must have the keys|expected the dict"):
            DifficultyBelief().load_state_dict(state)

    def test_a_state_that_is_no_dict_is_refused(self):
        with pytest.raises(ValueError, match="expected the dict"):
            DifficultyBelief().load_state_dict([1, "history"])

    def test_a_fixed_belief_takes_no_history(self):
        state = {"version": 1, "mode": "fixed", "window": 10, "accuracies": [0.5], "beliefs": [0.5]}
        with pytest.raises(ValueError, match="no history"):
            DifficultyBelief("fixed").load_state_dict(state)

    def test_a_step_says_how_far_it_went_and_by_what(self):
        belief = DifficultyBelief("history", window=2, rate=1.0, rate_min=0.05)
        assert belief.update(0.2) is belief.update(0.6) is None  # means
        assert belief.update(1.0) == (pytest.approx(0.1), False)
        assert belief.update(0.0) == (0.05, True)  # beliefs .4 and .46: σ = .03
        assert DifficultyBelief("hard").update(0.5) is DifficultyBelief("fixed").update(0.5) is None

    def test_the_state_of_0_1_is_read_and_says_its_defaults(self):
        saved = {"version": 1, "mode": "history", "window": 2, "accuracies": [0.2, 0.6], "beliefs": [0.2, 0.4]}
        belief = DifficultyBelief("history", window=2)
        assert belief.load_state_dict(saved) == (1.0, 0.01)
        assert (belief.belief, belief.rate, belief.rate_min) == (0.4, 6.0, 0.02)
        other = DifficultyBelief("history", window=2, rate=3.0)
        assert other.load_state_dict(belief.state_dict()) == (6.0, 0.02)

    @pytest.mark.parametrize("mode", ["history", "hard", "fixed"])
    @pytest.mark.parametrize("accuracy", [-0.01, 1.01, math.nan, math.inf])
    def test_an_accuracy_outside_the_unit_interval_is_refused(self, mode, accuracy):
        belief = DifficultyBelief(mode)
        with pytest.raises(ValueError, match="accuracy"):
            belief.update(accuracy)
        with pytest.raises(ValueError, match="accuracy"):
            belief.prior(accuracy)
        assert belief.state_dict()["beliefs"] == []

    @pytest.mark.parametrize(
        ("arguments", "name"),
        [
            ({"mode": "soft"}, "mode"),
            ({"window": 0}, "window"),
            ({"window": 2.5}, "window"),
            ({"rate": 0.0}, "rate"),
            ({"rate": math.inf}, "rate"),
            ({"rate_min": -0.1}, "rate_min"),
            ({"rate_min": 1.1}, "rate_min"),
            ({"threshold": math.nan}, "threshold"),
        ],
    )
    def test_bad_arguments_are_refused(self, arguments, name):
        with pytest.raises(ValueError, match=f"^{name} must"):
            DifficultyBelief(**arguments)


class TestRate:
    """The defaults against the simulation that chose them (benchmarks/belief.py)."""

    simulation = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "belief.py"))

    def measured(self, curve, **given):
        return self.simulation["measured"](self.simulation["CURVES"][curve], seeds=10, **given)

    @pytest.mark.parametrize("prompts", [256, 64, 8])
    def test_it_follows_a_rise_and_is_calmer_than_hard_on_a_plateau(self, prompts):
        for curve in ("rising", "saturating"):
            lag, _, floor = self.measured(curve, prompts=prompts)
            old_lag, _, old_floor = self.measured(curve, prompts=prompts, **self.simulation["OLD"])
            assert lag < 0.07 and old_lag > 0.15  # what 0.1 did
            assert floor < 0.6 and old_floor > 0.95
        bias, noise, floor = self.measured("flat", prompts=prompts)
        _, noise_of_hard, _ = self.measured("flat", prompts=prompts, **self.simulation["HARD"])
        assert bias < 0.01 and noise < 0.5 * noise_of_hard
        assert floor > 0.3  # the steps on a plateau are smaller than those on a rise

    @pytest.mark.parametrize("slope", [0.0005, 0.001, 0.002, 0.004])
    @pytest.mark.parametrize("rate", [3.0, 6.0])
    def test_the_lag_does_not_depend_on_the_slope(self, slope, rate):
        belief, lags = DifficultyBelief(rate=rate, rate_min=0.0), []
        for t in range(int(0.9 / slope)):
            accuracy = 0.05 + slope * t
            lags.append(accuracy - belief.prior(accuracy))
            belief.update(accuracy)
        half = lags[len(lags) // 2 :]  # it swings around it
        assert sum(half) / len(half) == pytest.approx(math.sqrt(12 / 99) / rate, rel=0.12)


def test_a_resumed_run_keeps_its_steps_or_is_told(make_trainer, tmp_path, caplog):
    settings = {"save_strategy": "steps", "save_steps": 1}
    old = {"difficulty_rate": 1.0, "difficulty_rate_min": 0.01}
    make_trainer("ha_dw", max_steps=1, **settings, **old).train()
    checkpoint = tmp_path / "run" / "checkpoint-1"
    with pytest.raises(ValueError, match=r"difficulty_rate 1.0 → 6.0, difficulty_rate_min 0.01 → 0.02.*allow_changed"):
        make_trainer("ha_dw", max_steps=2, **settings).train(resume_from_checkpoint=str(checkpoint))
    # 0.1 kept neither who a run is nor how its belief moved
    (checkpoint / "credit_run.json").unlink()
    state = json.loads((checkpoint / "credit_state.json").read_text())
    belief = state["parts"]["difficulty"]
    belief["version"] = 1
    del belief["rate"], belief["rate_min"]
    (checkpoint / "credit_state.json").write_text(json.dumps(state))
    for given, told in (({}, True), (old, False)):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            make_trainer("ha_dw", max_steps=2, **settings, **given).train(resume_from_checkpoint=str(checkpoint))
        assert ("trl_credit 0.1 had otherwise: difficulty_rate 1.0 → 6.0, difficulty_rate_min" in caplog.text) is told


def test_a_run_logs_its_steps(make_trainer):
    trainer = make_trainer("ha_dw", difficulty_window=2, difficulty_rate=1e-6, max_steps=4)
    trainer.train()
    rates = [row.get("credit/difficulty_rate") for row in trainer.state.log_history if "loss" in row]
    assert rates == [None, None, 0.02, 0.02]  # means until the window is full
    assert trainer.state.log_history[2]["credit/difficulty_floor"] == 1.0


class TestGroupAccuracy:
    def test_groups_are_consecutive(self):
        rewards = tensor64([1, 1, 0, 0, 0, 1, 0, 0])
        assert group_accuracy(rewards, num_generations=4, reward_range=(0.0, 1.0)).tolist() == [0.5, 0.25]

    def test_the_range_is_mapped_to_the_unit_interval(self):
        rewards = tensor64([-1, 1, 3, 3])
        assert group_accuracy(rewards, num_generations=2, reward_range=(-1.0, 3.0)).tolist() == [0.25, 1.0]

    def test_nan_is_left_out_and_an_all_nan_group_is_nan(self):
        nan = math.nan
        p_hat = group_accuracy(
            tensor64([1, nan, 0, nan, nan, nan, nan, 1, 1]), num_generations=3, reward_range=(0.0, 1.0)
        )
        assert p_hat[0] == 0.5
        assert p_hat[1].isnan()
        assert p_hat[2] == 1.0

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64])
    def test_half_and_integer_rewards_are_averaged_in_float32(self, dtype):
        # 1/3 in bfloat16 would be off by 1e-3
        p_hat = group_accuracy(torch.tensor([1, 0, 0]).to(dtype), num_generations=3, reward_range=(0.0, 1.0))
        assert p_hat.dtype == torch.float32
        assert p_hat.item() == pytest.approx(1 / 3, abs=1e-7)

    def test_rounding_outside_the_range_is_forgiven_and_clamped(self):
        rewards = tensor64([1 + 5e-7, 1.0, -5e-7, 0.0])
        assert group_accuracy(rewards, num_generations=2, reward_range=(0, 1)).tolist() == [1.0, 0.0]

    @pytest.mark.parametrize("value", [1.00001, -0.00001, 2.0, math.inf, -math.inf])
    def test_a_reward_outside_the_range_is_refused_with_its_value_and_a_fix(self, value):
        rewards = tensor64([0.0, 1.0, value, math.nan])
        fix = "finite" if math.isinf(value) else r"set reward_range=\(lo, hi\)"
        with pytest.raises(ValueError, match=rf"reward {value} is outside reward_range=\(0.0, 1.0\): .*{fix}"):
            group_accuracy(rewards, num_generations=2, reward_range=(0.0, 1.0))
        with pytest.raises(ValueError, match=f"reward {value} .*reward_range"):
            batch_accuracy(rewards, reward_range=(0.0, 1.0))

    @pytest.mark.parametrize("reward_range", [(1.0, 1.0), (1.0, 0.0), (0.0, math.inf), (math.nan, 1.0)])
    def test_a_bad_range_is_refused(self, reward_range):
        with pytest.raises(ValueError, match="reward_range must be"):
            group_accuracy(tensor64([0.0, 1.0]), num_generations=2, reward_range=reward_range)

    @pytest.mark.parametrize(("shape", "num_generations"), [((5,), 2), ((2, 2), 2), ((4,), 0)])
    def test_incomplete_groups_are_refused(self, shape, num_generations):
        with pytest.raises(ValueError, match="whole groups"):
            group_accuracy(torch.zeros(shape), num_generations=num_generations, reward_range=(0.0, 1.0))


class TestBatchAccuracy:
    def test_every_scored_response_counts_once(self):
        nan = math.nan
        # one response of the first group, three of the second: the mean of the group means would be 2/3
        rewards = tensor64([1, nan, nan, 1, 0, 0])
        assert batch_accuracy(rewards, reward_range=(0.0, 1.0)) == 0.5

    def test_range(self):
        assert batch_accuracy(tensor64([-1, 1, 1, 1]), reward_range=(-1.0, 1.0)) == 0.75

    def test_nan_without_a_scored_response(self):
        assert math.isnan(batch_accuracy(tensor64([math.nan, math.nan]), reward_range=(0.0, 1.0)))
        assert math.isnan(batch_accuracy(tensor64([]), reward_range=(0.0, 1.0)))

    def test_the_order_does_not_change_the_last_bit(self):
        generator = torch.Generator().manual_seed(2)
        rewards = torch.rand(1000, generator=generator)
        shuffled = rewards[torch.randperm(1000, generator=generator)]
        assert batch_accuracy(rewards, reward_range=(0.0, 1.0)) == batch_accuracy(shuffled, reward_range=(0.0, 1.0))


class TestDifficultyWeight:
    def test_by_hand(self):
        # easy prompt, p̂ − C⁻ = .3: a right response is damped, a wrong one amplified; hard prompt: the reverse
        advantages = tensor64([1.0, -1.0, 2.0, -0.5, 0.0, 3.0])
        p_hat = tensor64([0.8, 0.8, 0.25, 0.25, 0.8, 0.5])
        phi = difficulty_weight(advantages, p_hat=p_hat, prior=0.5, scale=1.3)
        expected = [
            1.3 * math.exp(-0.3),
            1.3 * math.exp(0.3),
            1.3 * math.exp(0.25),
            1.3 * math.exp(-0.25),
            1.3,
            1.3,
        ]
        torch.testing.assert_close(phi, tensor64(expected), rtol=1e-15, atol=0)

    def test_the_form_with_two_signs(self):
        generator = torch.Generator().manual_seed(3)
        advantages = torch.randn(1000, generator=generator, dtype=torch.float64)
        p_hat = torch.rand(1000, generator=generator, dtype=torch.float64)
        diff = p_hat - 0.37
        direction = -torch.sign(advantages) * torch.sign(diff)
        phi = difficulty_weight(advantages, p_hat=p_hat, prior=0.37, scale=1.5)
        torch.testing.assert_close(phi, 1.5 * torch.exp(direction * diff.abs()), rtol=1e-15, atol=0)

    def test_a_group_without_score_is_left_alone(self):
        phi = difficulty_weight(tensor64([0.0, 1.0]), p_hat=tensor64([math.nan, math.nan]), prior=0.5, scale=1.3)
        assert phi.tolist() == [1.0, 1.0]

    def test_keeps_the_type_of_the_advantages(self):
        phi = difficulty_weight(torch.ones(2), p_hat=tensor64([0.1, 0.2]), prior=0.5)
        assert phi.dtype == torch.float32

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"p_hat": torch.zeros(2)}, "repeat_interleave"),
            ({"prior": 1.2}, "prior must"),
            ({"prior": math.nan}, "prior must"),
            ({"scale": 0.0}, "scale must"),
            ({"scale": math.inf}, "scale must"),
        ],
    )
    def test_errors(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            difficulty_weight(torch.ones(4), **{"p_hat": torch.zeros(4), "prior": 0.5, "scale": 1.3, **arguments})

    def test_undoes_the_bias_of_theorem_1_in_direction(self):
        # on hard prompts the advantage of a right response is too small (Thm 1): Φ/λ must be above 1 there
        p_hat = tensor64([0.125, 0.875])
        relative = difficulty_weight(torch.ones(2, dtype=torch.float64), p_hat=p_hat, prior=0.5, scale=1.0)
        assert relative[0] > 1 > relative[1]


class TestStatistics:
    @pytest.mark.parametrize("tokens", [1, 3])
    def test_the_weight_is_shown_by_the_sign_of_the_advantage(self, tokens):
        advantages = tensor64([2.0, -1.0, 0.0, 1.0, -3.0, -3.0, 1.0])
        p_hat = tensor64([0.2, 0.2, 0.2, 0.9, 0.9, 0.7, 0.5])
        if tokens > 1:  # padding has no advantage
            advantages = torch.stack([advantages, advantages, torch.zeros(7)], 1)
            p_hat = p_hat.unsqueeze(1).expand(7, 3)
        phi = difficulty_weight(advantages, p_hat=p_hat, prior=0.5, scale=1.0)
        sums = difficulty_statistics(phi, advantages, p_hat=p_hat, prior=0.5)
        assert {name: (total / count).item() for name, (total, count) in sums.items()} == pytest.approx(
            {
                "difficulty_weight/harder_positive": math.exp(0.3),
                "difficulty_weight/harder_negative": math.exp(-0.3),
                "difficulty_weight/easier_positive": math.exp(-0.4),
                "difficulty_weight/easier_negative": (math.exp(0.4) + math.exp(0.2)) / 2,
            }
        )

    def test_every_process_records_the_same_names(self):
        nothing = torch.zeros(2)
        sums = difficulty_statistics(nothing, nothing, p_hat=nothing, prior=0.5)
        assert len(sums) == 4 and not any(count for _, count in sums.values())
