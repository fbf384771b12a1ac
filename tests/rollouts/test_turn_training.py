"""Weights and means per turn through the real trainer: gradients, the rollout log, the correction for the engine."""

import pytest
import torch
from group_helpers import by_prompt, observed
from segment_helpers import RecordingEngine, generation_batch, gradients, in_double, with_engine
from turn_helpers import TURN_FORMS, conversations
from weight_helpers import check_finite

from trl_credit.credit.tokens import turn_numbers
from trl_credit.loss import keys
from trl_credit.loss.batch import loss_mask, segment_ratio


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


@pytest.mark.parametrize("form", AVERAGE)
def test_a_cut_into_micro_batches_changes_no_gradient(make_trainer, form):
    knobs = {**AVERAGE[form], **KL, **SMALL, **TALK, "turn_average": True}
    whole = make_trainer("base", **knobs | {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1})
    in_double(whole)
    output = off_policy(whole)
    expected = gradients(whole, output)
    whole.args.per_device_train_batch_size, whole.args.steps_per_generation = 2, 4
    summed = gradients(whole, output)
    assert max(x.abs().max() for x in expected.values()) > 1e-2
    torch.testing.assert_close(summed, expected, rtol=1e-4, atol=2e-6)


# The correction for the engine


def spoken(prompts, trainer):
    """Conversations with made-up log-probabilities of the engine, one of them unknown."""
    responses = conversations(prompts, trainer)
    ids = responses["completion_ids"]
    rows = [[-0.5 - 0.07 * ((3 * i + k) % 5) for k in range(len(row))] for i, row in enumerate(ids)]
    rows[0][1] = None
    return responses | {"logprobs": rows}


def corrected(make_trainer, *, mode, low=0.3, high=0.8, rollout=spoken, **knobs):
    settings = {**TALK, **SMALL, "trainer_kwargs": {"rollout_func": rollout}, **knobs}
    return with_engine(make_trainer("base", **settings), RecordingEngine(), correction=mode, low=low, high=high)


BY_TURN = [
    {"importance": "turn"},
    {"importance": "turn_token"},
    {"importance": "eligible", "trace_unit": "turn"},
    {"turn_average": True},
]


@pytest.mark.parametrize("mode", ["sequence_truncate", "sequence_mask", "token_truncate", "token_mask"])
@pytest.mark.parametrize("knobs", BY_TURN, ids=str)
def test_the_correction_for_the_engine_is_the_mean_over_each_turn(make_trainer, mode, knobs):
    batch = generation_batch(corrected(make_trainer, mode=mode, low=0.15, high=0.3, **knobs))
    plain = generation_batch(corrected(make_trainer, mode=mode, low=0.15, high=0.3))
    ratio, ids = batch[keys.ENGINE_RATIO], batch[keys.TURN_IDS]
    assert ratio.shape == ids.shape
    if mode.startswith("token"):
        assert torch.equal(ratio, plain[keys.ENGINE_RATIO])
        return
    assert plain[keys.ENGINE_RATIO].shape == (4, 1)
    difference = (batch[keys.OLD_LOGPS] - batch[keys.SAMPLING_LOGPS]).nan_to_num()
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
    assert all(x.isfinite().all() for x in gradients(loss, batch).values())


def by_column(prompts, completions, texts, **kwargs):
    assert all(text.startswith(prompt) for text, prompt in zip(texts, prompts, strict=True))  # each with its own
    return by_prompt(prompts, completions)


@pytest.mark.parametrize("groups", ["replace", "refill"])
@pytest.mark.parametrize("knobs", [BY_TURN[0], pytest.param({}, marks=pytest.mark.slow)], ids=str)
def test_groups_that_are_joined_keep_the_correction_of_each_turn(make_trainer, groups, knobs):
    """Each row of a joined batch has the correction that its conversation had when it was sampled."""

    def short(prompts, trainer):  # batches of different widths: the first call has only short conversations
        responses = spoken(prompts, trainer)
        calls.append(len(prompts))
        if len(calls) % 2:
            for name in ("completion_ids", "env_mask", "logprobs"):
                responses[name] = [row[-5:] for row in responses[name]]
        return responses | {"texts": [f"{prompt}{i}" for i, prompt in enumerate(prompts)]}

    calls = []
    settings = {"reward_funcs": by_column, "per_device_train_batch_size": 16, "n_prompts": 64, "max_steps": 3}
    trainer = corrected(
        make_trainer, mode="sequence_truncate", low=1e-3, high=0.9, rollout=short, groups=groups, **settings, **knobs
    )
    batches = observed(trainer)
    check_finite(trainer)
    log = trainer.state.log_history
    assert any(row.get("credit/groups/copies", 0) or row.get("credit/groups/calls", 1) > 1 for row in log)
    for joined, data, _ in batches:
        ratio, mask_t = data[keys.ENGINE_RATIO], loss_mask(data)
        assert data[keys.NUM_ITEMS] == mask_t.sum() < data[keys.COMPLETION_MASK].sum()  # without the tokens of tools
        assert torch.equal(joined.batch.turn_ids, turn_numbers(mask_t))
        assert [x["texts"][:4] for x in joined.examples] == [x["prompt"] for x in joined.examples]
        if not knobs:
            assert ratio.shape == (16, 1)
            continue
        assert ratio.shape == data[keys.COMPLETION_MASK].shape
        form = {"segment_ids": joined.batch.turn_ids, "mode": "sequence_truncate", "low": 1e-3, "high": 0.9}
        again = segment_ratio(joined.batch.old_logp_t, data[keys.SAMPLING_LOGPS], average=True, **form)
        torch.testing.assert_close(ratio, again, rtol=1e-4, atol=1e-5)
        assert len(ratio.unique()) > 4
