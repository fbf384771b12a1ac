"""Weights and means per turn through the real trainer: gradients, the rollout log, the correction for the engine."""

import math

import pytest
import torch
from group_helpers import by_prompt, observed
from segment_helpers import TREE, RecordingEngine, counts_on, generation_batch, gradients, in_double, with_engine
from turn_helpers import CONVERSATIONS, TURN_FORMS, conversations, mean_of_turns, turn_jacobian
from weight_helpers import check_finite

from trl_credit.loss import keys
from trl_credit.loss.batch import loss_mask, segment_ratio
from trl_credit.observe.schema import read_shard, steps


def by_ids(prompts, completions, **kwargs):
    """A reward that differs inside of every group."""
    return [i % 5 / 4 for i, _ in enumerate(completions)]


TALK = {"reward_funcs": by_ids, "trainer_kwargs": {"rollout_func": conversations}, "max_completion_length": 16}
SMALL = {"per_device_train_batch_size": 4, "num_generations": 4, "num_iterations": 2, "loss_type": "grpo"}
KL = {"beta": 0.2, "use_bias_correction_kl": False}
AVERAGE = {**TURN_FORMS, "token": {"importance": "token"}}


def off_policy(trainer):
    """A generation batch whose π_old is another policy's."""
    output = generation_batch(trainer)
    noise = torch.randn(output[keys.OLD_LOGPS].shape, generator=torch.Generator().manual_seed(1)).double()
    output[keys.OLD_LOGPS] = output[keys.OLD_LOGPS] + 0.2 * noise
    return output


def known_weight(config, output, difference, z):
    """W and ∂W/∂ℓ of a batch, by the matrices."""
    ids, mask = output[keys.TURN_IDS].tolist(), loss_mask(output).tolist()
    jacobian = torch.stack([turn_jacobian(config, *row) for row in zip(ids, mask, z, strict=True)])
    if config.importance == "eligible" or config.importance == "token":
        return difference, jacobian
    importance, config.importance = config.importance, config.importance.removesuffix("_token")
    value = torch.stack([turn_jacobian(config, *row) for row in zip(ids, mask, z, strict=True)])
    config.importance = importance
    return torch.einsum("btk,bk->bt", value, difference), jacobian


@pytest.mark.parametrize("average", [False, True], ids=["", "turn_average"])
@pytest.mark.parametrize("form", AVERAGE)
def test_the_gradient_is_the_closed_form(make_trainer, form, average):
    """Σ_t c_t ∂W_t/∂ℓ_k and β(1 − π_ref/π), over the mean that the loss takes, through the model in float64."""
    trainer = make_trainer("base", turn_average=average, **AVERAGE[form], **KL, **SMALL, **TALK)
    in_double(trainer)
    output = off_policy(trainer)
    ids, mask = output[keys.TURN_IDS], loss_mask(output)
    assert ids.max() == 2 and sorted(mask.sum(1).tolist()) == sorted(sum(x) for x in CONVERSATIONS)
    found = gradients(trainer, output)

    logp_t = trainer._trl_forward(
        trainer.model,
        torch.cat([output[keys.PROMPT_IDS], output[keys.COMPLETION_IDS]], 1),
        torch.cat([output[keys.PROMPT_MASK], output[keys.COMPLETION_MASK]], 1),
        mask.size(1),
        compute_entropy=True,
    )
    logp_t, entropy_t = logp_t[0], logp_t[1].detach()
    z = [None] * 4
    if "selector" in AVERAGE[form]:
        z = torch.zeros(mask.shape)
        for row in range(4):
            means = {t: entropy_t[row][ids[row] == t].mean().item() for t in range(int(ids[row].max()) + 1)}
            for turn in sorted(means, key=means.get, reverse=True)[: (len(means) + 1) // 2]:
                z[row][ids[row] == turn] = 1
        z = z.tolist()
    difference = torch.where(mask.bool(), (logp_t - output[keys.OLD_LOGPS]).detach(), 0.0)
    w, jacobian = known_weight(trainer.args, output, difference, z)
    w = w.clone().requires_grad_()
    a_t = output[keys.ADVANTAGES].double().unsqueeze(1)
    surrogate_t = torch.minimum(w.exp() * a_t, w.exp().clamp(0.8, 1.2) * a_t)
    k = torch.where(mask.bool(), output[keys.REF_LOGPS] - logp_t, 0.0)
    kl_t = k.exp() - k - 1
    places = ids if average else ids.clamp(max=0)
    (c_t,) = torch.autograd.grad(mean_of_turns(surrogate_t, places, kept_t=mask.long()), w)
    kl = mean_of_turns(kl_t, places, kept_t=mask.long())
    loss = 0.2 * kl - (torch.einsum("bt,btk->bk", c_t, jacobian) * logp_t.masked_fill(mask == 0, 0.0)).sum()
    expected = dict(zip(found, torch.autograd.grad(loss, list(trainer.model.parameters())), strict=True))
    assert max(x.abs().max() for x in expected.values()) > 1e-2
    for name, gradient in found.items():
        # the model's norms are float32
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("form", AVERAGE)
def test_a_cut_into_micro_batches_changes_no_gradient(make_trainer, form):
    knobs = {**AVERAGE[form], **KL, **SMALL, **TALK, "turn_average": True}
    whole = make_trainer("base", **knobs | {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1})
    in_double(whole)
    output = off_policy(whole)
    expected = gradients(whole, output)
    whole.args.per_device_train_batch_size, whole.args.steps_per_generation = 2, 4
    found = gradients(whole, output)
    assert max(x.abs().max() for x in expected.values()) > 1e-2
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("form", AVERAGE)
def test_runs_are_finite_and_the_log_shows_the_closed_form(trained, form):
    knobs = {**AVERAGE[form], **KL, **SMALL, **TALK, "turn_average": True, "epsilon": 0.02, "epsilon_high": 0.02}
    settings = {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "learning_rate": 3e-3}
    trainer = trained("base", log_credit=1, max_steps=4, **knobs | settings)
    check_finite(trainer)
    rows = [r for _, path in steps(trainer.args.output_dir) for r in read_shard(path).responses]
    assert len({tuple(row["turn_ids"]) for row in rows}) == 4
    assert any(w for row in rows for w in row["log_weight"])
    for row in rows:
        ids, mask = row["turn_ids"], row["loss_mask"]
        n, counts = sum(mask), {t: sum(m for m, x in zip(mask, ids, strict=True) if x == t) for t in set(ids) - {-1}}
        factor = torch.tensor([n / len(counts) / counts[t] if m else 0.0 for t, m in zip(ids, mask, strict=True)])
        a, w, clipped, logp, ref = (
            torch.tensor(row[name], dtype=torch.float64).nan_to_num()
            for name in ("advantages", "log_weight", "is_clipped", "trainer_logprobs", "ref_logprobs")
        )
        jacobian = turn_jacobian(trainer.args, ids, mask, row["selected"])
        expected = (w.exp() * a * factor * (1 - clipped)) @ jacobian
        found = torch.tensor(row["credit"], dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=2e-4, atol=5e-5)
        assert not any(c for c, m in zip(row["credit"], mask, strict=True) if not m)
        slope = torch.tensor(row["kl_credit"], dtype=torch.float64)
        torch.testing.assert_close(slope, 0.2 * factor * ((ref - logp).exp() - 1), rtol=1e-4, atol=1e-5)
    assert any(any(row["credit"]) for row in rows)
    row = trainer.state.log_history[0]
    assert ("credit/trace_mass" in row) == ("trace_unit" in AVERAGE[form])
    if "trace_unit" in AVERAGE[form]:
        assert row["credit/effective_horizon"] > 0.1


@pytest.mark.parametrize("importance", ["turn", "sequence"])
def test_the_credit_of_a_corrected_kl_term_is_shared_by_its_turn(trained, importance):
    """β k3 exp(W): every token of the turn, or of the response, moves its weight."""
    knobs = {**KL, **SMALL, **TALK, "importance": importance, "turn_average": True, "use_bias_correction_kl": True}
    trainer = trained("base", log_credit=1, learning_rate=3e-3, max_steps=4, **knobs)
    rows = [r for _, path in steps(trainer.args.output_dir) for r in read_shard(path).responses]
    for row in rows:
        ids, mask = row["turn_ids"], row["loss_mask"]
        counts = {t: sum(m for m, x in zip(mask, ids, strict=True) if x == t) for t in set(ids) - {-1}}
        n = sum(mask)
        factor = [n / len(counts) / counts[t] if m else 0.0 for t, m in zip(ids, mask, strict=True)]
        k = [r - p for r, p in zip(row["ref_logprobs"], row["trainer_logprobs"], strict=True)]
        for place, m in enumerate(mask):
            together = [t for t, x in enumerate(ids) if mask[t] and (x == ids[place] or importance == "sequence")]
            shared = sum(factor[t] * (math.exp(k[t]) - k[t] - 1) for t in together) / max(len(together), 1)
            ratio = math.exp(row["log_weight"][place])
            expected = -0.2 * ratio * (factor[place] * (1 - math.exp(k[place])) + shared) if m else 0.0
            assert row["kl_credit"][place] == pytest.approx(expected, rel=1e-3, abs=1e-5)
        inside = [c for c, m in zip(row["credit"], mask, strict=True) if m]
        assert max(inside) - min(inside) < 10 * n  # and what is left is the policy term
    assert max(abs(x) for row in rows for x in row["kl_credit"]) > 1e-3


# The correction for the engine


def spoken(prompts, trainer):
    """Conversations with made-up log-probabilities of the engine, one of them unknown."""
    found = conversations(prompts, trainer)
    rows = [[-0.5 - 0.07 * ((3 * i + k) % 5) for k in range(len(ids))] for i, ids in enumerate(found["completion_ids"])]
    rows[0][1] = None
    return found | {"logprobs": rows}


def corrected(make_trainer, *, mode, low=0.3, high=0.8, rollout=spoken, **knobs):
    settings = {**TALK, **SMALL, "trainer_kwargs": {"rollout_func": rollout}, **knobs}
    if "rollouts" in knobs:
        settings = {**knobs, "max_completion_length": 8}
    trainer = with_engine(make_trainer("base", **settings), RecordingEngine())
    trainer.vllm_importance_sampling_correction = True
    trainer.vllm_importance_sampling_mode = trainer.args.vllm_importance_sampling_mode = mode
    trainer.vllm_importance_sampling_clip_min, trainer.vllm_importance_sampling_clip_max = low, high
    return trainer


BY_TURN = [
    {"importance": "turn"},
    {"importance": "turn_token"},
    {"importance": "eligible", "trace_unit": "turn"},
    {"turn_average": True},
]


@pytest.mark.parametrize("mode", ["sequence_truncate", "sequence_mask", "token_truncate", "token_mask"])
@pytest.mark.parametrize("knobs", BY_TURN, ids=str)
def test_the_correction_for_the_engine_is_the_mean_over_each_turn(make_trainer, mode, knobs):
    made = generation_batch(corrected(make_trainer, mode=mode, low=0.15, high=0.3, **knobs))
    plain = generation_batch(corrected(make_trainer, mode=mode, low=0.15, high=0.3))
    ratio, ids = made[keys.ENGINE_RATIO], made[keys.TURN_IDS]
    assert ratio.shape == ids.shape
    if mode.startswith("token"):
        assert torch.equal(ratio, plain[keys.ENGINE_RATIO])
        return
    assert plain[keys.ENGINE_RATIO].shape == (4, 1)
    difference = (made[keys.OLD_LOGPS] - made[keys.SAMPLING_LOGPS]).nan_to_num()
    seen = set()
    for row, own, x in zip(ratio, ids, difference, strict=True):
        assert (row[own < 0] == 1).all()
        for turn in range(int(own.max()) + 1):
            mean = x[own == turn].mean().exp().item()
            is_outside = not 0.15 <= mean <= 0.3
            seen.add(is_outside)
            right = min(max(mean, 0.15), 0.3) if mode == "sequence_truncate" else mean * (not is_outside)
            assert row[own == turn].tolist() == pytest.approx([right] * int((own == turn).sum()), rel=1e-5)
    assert seen == {True, False}
    loss = corrected(make_trainer, mode=mode, **knobs)
    assert all(x.isfinite().all() for x in gradients(loss, made).values())


def test_a_mean_over_a_segment_by_hand():
    old = torch.tensor([[-1.0, -2.0, -3.0, -4.0, -9.0]])
    sampling = torch.tensor([[-1.5, -2.0, math.nan, -3.0, 0.0]])
    ids = torch.tensor([[0, 0, 1, 1, -1]])

    def ratio(mode, low=None, high=None):
        given = {"segment_ids": ids, "mode": mode, "low": low, "high": high, "average": True}
        return segment_ratio(old, sampling, **given)[0].log().tolist()

    assert ratio("token_truncate") == pytest.approx([0.5, 0.0, 0.0, -1.0, 0.0])
    assert ratio("sequence_truncate") == pytest.approx([0.25, 0.25, -0.5, -0.5, 0.0])
    assert ratio("sequence_mask", 0.7, 2.0) == pytest.approx([0.25, 0.25, -math.inf, -math.inf, 0.0])


@pytest.mark.parametrize("behavior", ["recomputed", "sampler"])
def test_where_there_is_nothing_to_average_the_correction_is_trls(make_trainer, behavior):
    """Without turns, and with the engine's own log-probabilities as π_old."""

    def without(prompts, trainer):
        found = spoken(prompts, trainer)
        return {name: x for name, x in found.items() if name != "env_mask"}

    batches = []
    for knobs in ({"importance": "turn"}, {"importance": "sequence"}):
        rollout = spoken if behavior == "sampler" else without
        trainer = corrected(make_trainer, mode="sequence_truncate", low=1e-6, high=0.5, rollout=rollout, **knobs)
        trainer.args.behavior_logps = behavior
        batches.append(generation_batch(trainer))
    ours, theirs = (batch[keys.ENGINE_RATIO] for batch in batches)
    assert theirs.shape == (4, 1) and ours.shape == batches[0][keys.COMPLETION_MASK].shape
    assert torch.equal(ours, theirs.expand_as(ours)) and (behavior == "recomputed") == bool((theirs < 1).all())


@pytest.mark.slow
@pytest.mark.parametrize("groups", ["replace", "refill"])
@pytest.mark.parametrize("knobs", [*BY_TURN, {}], ids=str)
def test_groups_that_are_joined_keep_the_correction_of_each_turn(make_trainer, groups, knobs):
    """Each row of a joined batch has the correction that its conversation had when it was sampled."""

    def said(prompts, trainer):  # batches of different widths: the first call has only short conversations
        found = spoken(prompts, trainer)
        calls.append(len(prompts))
        if len(calls) % 2:
            for name in ("completion_ids", "env_mask", "logprobs"):
                found[name] = [row[-5:] for row in found[name]]
        return found

    calls = []
    settings = {"reward_funcs": by_prompt, "per_device_train_batch_size": 16, "n_prompts": 64, "max_steps": 3}
    trainer = corrected(
        make_trainer, mode="sequence_truncate", low=1e-3, high=0.9, rollout=said, groups=groups, **settings, **knobs
    )
    batches = observed(trainer)
    check_finite(trainer)
    log = trainer.state.log_history
    assert any(row.get("credit/groups/copies", 0) or row.get("credit/groups/calls", 1) > 1 for row in log)
    for made, data, _ in batches:
        ratio = data[keys.ENGINE_RATIO]
        if not knobs:
            assert ratio.shape == (16, 1)
            continue
        assert ratio.shape == data[keys.COMPLETION_MASK].shape
        given = {"segment_ids": made.batch.turn_ids, "mode": "sequence_truncate", "low": 1e-3, "high": 0.9}
        again = segment_ratio(made.batch.old_logp_t, data[keys.SAMPLING_LOGPS], average=True, **given)
        torch.testing.assert_close(ratio, again, rtol=1e-4, atol=1e-5)
        assert len(ratio.unique()) > 4


def test_trees_keep_the_product_over_a_segment(make_trainer):
    knobs = {**TREE, "tree_segment_length": 2, "num_generations": 2, "per_device_train_batch_size": 4}
    trainer = corrected(make_trainer, mode="sequence_truncate", low=0.01, high=1e9, importance="turn_token", **knobs)
    counts_on(trainer)
    output = generation_batch(trainer)
    ids = output[keys.SEGMENT_IDS]
    given = {"segment_ids": ids, "mode": "sequence_truncate", "low": 0.01, "high": 1e9}
    sampled = output[keys.SAMPLING_LOGPS]
    torch.testing.assert_close(output[keys.ENGINE_RATIO], segment_ratio(output[keys.OLD_LOGPS], sampled, **given))
    assert (ids >= 0).sum(1).max() > 1
