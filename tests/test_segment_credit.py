"""Segment credit through the real trainer: what is graded, and what a segment of a chain is worth."""

import pytest
import torch
from segment_helpers import CHAIN, TREE, engine_calls, generation_batch, texts_of


def test_rollouts_are_graded_as_whole_responses_with_their_columns(make_trainer):
    seen = []

    def reward(prompts, completions, completion_ids, answer, **kwargs):
        seen.append((prompts, completions, completion_ids, answer))
        return [float(len(set(text))) for text in completions]

    trainer = make_trainer(**CHAIN, reward_funcs=reward, segmentation="fixed_length", segment_length=3)
    output = generation_batch(trainer)
    (_, own, own_ids, _), (prompts, texts, ids, answers) = seen
    assert len(prompts) == len(texts) == len(ids) == len(answers)
    right = dict(zip(trainer.train_dataset["prompt"], trainer.train_dataset["answer"], strict=True))
    assert all(right[p] == a for p, a in zip(prompts, answers, strict=True))
    decode = trainer.processing_class.batch_decode
    assert texts == decode(ids, skip_special_tokens=True)
    assert all(len(x) <= 8 for x in ids)  # the prefix counts towards the budget
    # three by three they share a prefix of 0, 3 or 6 tokens with a response of the same prompt
    asked = [prompt for prompt, _ in texts_of(trainer, output)]
    main = {p: [x for q, x in zip(asked, own_ids, strict=True) if q == p] for p in right}
    for i in range(0, len(ids), 3):
        candidates = [x[:b] for x in main[prompts[i]] for b in (0, 3, 6) if b < len(x)]
        assert any(all(y[: len(c)] == c for y in ids[i : i + 3]) for c in candidates)


def test_values_are_means_of_rollouts_and_the_own_reward_ends_the_chain(make_trainer):
    calls = []

    def reward(completions, **kwargs):  # the responses themselves come first
        calls.append(len(completions))
        return [0.75 if len(calls) == 1 else 0.25 * (i % 3) for i in range(len(completions))]

    trainer = make_trainer(**CHAIN, reward_funcs=reward, segmentation="fixed_length", segment_length=3)
    output = generation_batch(trainer)
    lengths = output["completion_mask"].sum(1).tolist()
    for row, n in enumerate(lengths):  # every state is worth (0 + .25 + .5)/3 = .25, so only the last segment gains
        boundaries = [b for b in range(0, n, 3) if b < n - 1 or n == 1]
        expected = [0.5 if t >= boundaries[-1] and t < n else 0.0 for t in range(output["completion_ids"].size(1))]
        assert output["advantages"][row].tolist() == pytest.approx(expected)
        ids = output["segment_ids"][row].tolist()
        assert ids[:n] == [sum(b <= t for b in boundaries) - 1 for t in range(n)] and set(ids[n:]) <= {-1}


def test_the_initial_value_is_free_from_the_group(make_trainer):
    trainer = make_trainer(**CHAIN, segmentation="fixed_count", num_segments=1, initial_value="group")
    calls = engine_calls(trainer)
    output = generation_batch(trainer)
    assert len(calls) == 1
    texts = [text for _, text in texts_of(trainer, output)]
    rewards = torch.tensor([sum(c in "abc" for c in text[:4]) / 4 for text in texts]).view(-1, 4)
    others = (rewards.sum(1, keepdim=True) - rewards) / 3
    torch.testing.assert_close(output["advantages"][:, 0], (rewards - others).flatten())


def test_the_free_initial_value_counts_what_did_not_end_alike(make_trainer):
    trainer = make_trainer(
        **CHAIN, segmentation="fixed_count", num_segments=1, initial_value="group", truncated_value=-3.0
    )
    output = generation_batch(trainer)
    ended = (output["completion_ids"] == 1).any(1)
    assert ended.any() and not ended.all()
    texts = [text for _, text in texts_of(trainer, output)]
    own = torch.tensor([sum(c in "abc" for c in text[:4]) / 4 for text in texts]).where(ended, -3.0)
    grouped = own.view(-1, 4)
    others = ((grouped.sum(1, keepdim=True) - grouped) / 3).flatten()
    torch.testing.assert_close(output["advantages"][:, 0], own - others)


def test_certain_states_get_no_rollouts(make_trainer):
    settings = {**CHAIN, "segmentation": "fixed_length", "segment_length": 1}
    trainer = make_trainer(**settings, certain_tolerance=1 - 1e-15)
    calls = engine_calls(trainer)
    output = generation_batch(trainer)
    assert len(calls) == 1 and not output["advantages"].any()  # all states worth the own reward
    trainer = make_trainer(**settings, certain_tolerance=0.95)
    output = generation_batch(trainer)
    mask = output["completion_mask"]
    tail = (output["old_per_token_logps"] * mask).flip(1).cumsum(1).flip(1).exp()
    known = (tail >= 0.05) & mask.bool()
    assert known.any() and not (known & (tail < 1)).all()
    last = mask.sum(1) - 1
    for row in range(len(mask)):  # between two states that are worth the own reward lies no advantage
        first_known = known[row].nonzero().flatten().tolist()
        first_known = first_known[0] if first_known else last[row]
        assert not output["advantages"][row, first_known : last[row]].any()


def test_states_beyond_the_cap_are_worth_the_own_reward(make_trainer):
    trainer = make_trainer(**CHAIN, segmentation="fixed_length", segment_length=1, max_valued_steps=2)
    output = generation_batch(trainer)
    lengths = output["completion_mask"].sum(1).tolist()
    assert max(lengths) > 5
    for row, n in enumerate(lengths):
        assert not output["advantages"][row, 3:n].any()


def test_what_did_not_end_can_have_a_fixed_value(make_trainer):
    trainer = make_trainer(**CHAIN, segmentation="fixed_count", num_segments=1, truncated_value=-7.0)
    output = generation_batch(trainer)
    ended = (output["completion_ids"] == 1).any(1)
    own = output["advantages"].sum(1) / output["completion_mask"].sum(1)
    assert ended.any() or (~ended).any()
    # A = R − V with R = −7 where the response did not end, and V a mean of −7s and of rewards between 0 and 1
    assert (own[~ended] <= 1e-6).all() and (own[ended] >= 0).any() == ended.any()


def test_responses_that_cannot_be_split_are_left_out(make_trainer, tmp_path):
    (tmp_path / "own.py").write_text(
        "def split(text):\n"
        "    if text.startswith(tuple('0123456789')):\n"
        "        raise ValueError('no steps')\n"
        "    return [0, len(text)] if text else [0]\n"
    )
    trainer = make_trainer(**CHAIN, segmentation="steps", step_splitter=f"{tmp_path}/own.py:split", beta=0.1)
    output = generation_batch(trainer)
    unsplit = torch.tensor([text[:1].isdigit() for _, text in texts_of(trainer, output)])
    assert unsplit.any() and not unsplit.all()
    assert not output["advantages"][unsplit].any()
    assert (output["tool_mask"].sum(1) == 0).tolist() == unsplit.tolist()
    assert output["num_items_in_batch"] == (output["completion_mask"] * output["tool_mask"]).sum()


def test_unscored_rollouts_are_left_out(make_trainer):
    def sometimes(completions, **kwargs):
        return [None if i % 3 == 2 else float(i % 3) for i in range(len(completions))]

    for settings in ({**CHAIN, "segmentation": "fixed_length", "segment_length": 3}, TREE):
        output = generation_batch(make_trainer(**settings, reward_funcs=sometimes))
        assert output["advantages"].isfinite().all() and output["advantages"].any()
    nothing = make_trainer(**CHAIN, reward_funcs=lambda completions, **kwargs: [None] * len(completions))
    assert not generation_batch(nothing)["advantages"].any()


def test_difficulty_weighs_segments(make_trainer):
    settings = {**CHAIN, "segmentation": "fixed_length", "segment_length": 3, "temperature": 1.3}
    found = []
    for knobs in ({}, {"difficulty": "fixed", "difficulty_threshold": 0.3}):
        trainer = make_trainer(**settings, **knobs)
        torch.manual_seed(5)
        found.append((trainer, generation_batch(trainer)))
    (trainer, plain), (_, weighted) = found
    assert torch.equal(plain["completion_ids"], weighted["completion_ids"])
    rewards = torch.tensor([sum(c in "abc" for c in text[:4]) / 4 for _, text in texts_of(trainer, plain)])
    p_hat = rewards.view(-1, 4).mean(1).repeat_interleave(4).unsqueeze(1)
    phi = 1.3 * torch.exp(-plain["advantages"].sign() * (p_hat - 0.3))
    torch.testing.assert_close(weighted["advantages"], plain["advantages"] * phi)
