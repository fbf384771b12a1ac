"""Rewards along responses on the way from a reward function to the advantages of a batch."""

import pytest
import torch
from byte_tokenizers import byte_tokenizer
from group_helpers import observed
from passes_helpers import tool_rollout

from trl_credit import StepRewards
from trl_credit.credit.returns import difference_advantages, returns_to_go, to_go_advantages
from trl_credit.loss import keys
from trl_credit.rewards.guard import RewardError
from trl_credit.rewards.steps import StepLedger
from trl_credit.trainer.step_rewards import Rollouts, _token_counts, place_steps


SMALL = {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 8}
WITH_TOOLS = {**SMALL, "trainer_kwargs": {"rollout_func": tool_rollout}, "returns": "to_go", "max_steps": 1}


def texts_of(trainer, rows):
    return trainer.processing_class.batch_decode(rows, skip_special_tokens=True)


def per_character(completions, **kwargs):
    """A step after every second character, and one at the end."""
    ends = [sorted({*range(2, len(text), 2), len(text)} - {0}) for text in completions]
    numbers = [sum(map(ord, text)) for text in completions]  # which differ between most texts
    return [[(end, n * (k + 3) % 17 / 17) for k, end in enumerate(of)] for n, of in zip(numbers, ends, strict=True)]


def placed(trainer, ids, size=4):
    """Per response, by definition: the tokens before the end of each step, and its reward. Also as a table (N, K)."""
    texts = texts_of(trainer, ids)
    by_response = []
    for row, text, steps in zip(ids, texts, per_character(texts), strict=True):
        lengths = [len(texts_of(trainer, [row[:k]])[0]) for k in range(len(row) + 1)]
        counts = [len(row) if end == len(text) else lengths.index(end) for end, _ in steps]
        by_response.append(list(zip(counts, [x for _, x in steps], strict=True)))
        if not steps or counts[-1] < len(row):
            by_response[-1].append((len(row), 0.0))  # the rest of the response
    rewards = torch.zeros(len(ids), max(map(len, by_response)), dtype=torch.float64)
    for i, steps in enumerate(by_response):
        rewards[i, : len(steps)] = torch.tensor([x for _, x in steps], dtype=torch.float64)
    return by_response, rewards, torch.tensor([len(steps) for steps in by_response])


def on_tokens(by_response, wanted_k, width):
    """Advantages (N, T) from those of steps."""
    wanted = torch.zeros(len(by_response), width)
    for i, steps in enumerate(by_response):
        for t in range(steps[-1][0]):
            wanted[i, t] = wanted_k[i, sum(end <= t for end, _ in steps)]
    return wanted


@pytest.mark.parametrize("baseline", ["response", "step"])
@pytest.mark.parametrize("algo", ["base", "ha_dw"])
def test_advantages_are_the_closed_form_at_the_sampled_tokens(make_trainer, algo, baseline):
    """The tokenizer has a token per character, and special tokens without one."""
    more = {} if algo != "ha_dw" else {"difficulty_reward": ["per_character"], "reward_range": [0.0, 4.0]}
    settings = {"returns": "to_go", "step_gamma": 0.5, "step_baseline": baseline, **more}
    trainer = make_trainer(algo, reward_funcs=per_character, **SMALL, **settings)
    for batch, data, _ in observed(trainer):
        places, rewards, steps = placed(trainer, batch.batch.completion_ids)
        own = returns_to_go(rewards, gamma=0.5, steps=steps)
        wanted_k = to_go_advantages(own, baseline=baseline, num_generations=4, steps=steps)
        assert batch.batch.rewards.tolist() == pytest.approx(rewards.sum(-1).tolist(), abs=1e-6)
        wanted = on_tokens(places, wanted_k, data[keys.COMPLETION_IDS].size(1))
        assert torch.allclose(batch.advantages, wanted, atol=1e-5)
        assert (batch.credited == ((wanted != 0) & data[keys.COMPLETION_MASK].bool()).any(-1)).all()
    log = trainer.state.log_history
    assert log[0]["credit/steps/per_response"] > 2


def test_differences_of_scores(make_trainer):
    trainer = make_trainer(reward_funcs=per_character, returns="difference", max_steps=1, **SMALL)
    (batch, data, _), *_ = observed(trainer)
    ids = batch.batch.completion_ids
    scored = per_character(texts_of(trainer, ids))
    places, values, _ = placed(trainer, ids)
    steps = torch.tensor([len(x) for x in scored])
    assert batch.batch.rewards.nan_to_num(nan=-1.0).tolist() == pytest.approx([x[-1][1] if x else -1 for x in scored])
    none = torch.full((8,), torch.nan)
    wanted = difference_advantages(values, first=none, num_generations=4, steps=steps)
    assert torch.allclose(batch.advantages, on_tokens(places, wanted, data[keys.COMPLETION_IDS].size(1)), atol=1e-5)


# Conversations with tools


def turn_values(prompts, completions, completion_ids, **kwargs):
    """A value per turn: 1 and 10 times a number that differs; responses of one turn have one."""
    values = [[i + 1.0, 10.0 * (i + 1)][: 2 - i % 2] for i in range(len(completions))]
    return [StepRewards(range(1, len(of) + 1), of, unit="turn") for of in values]


def test_turns_and_tools(make_trainer):
    """Rows of the rollout: turns of two tokens around two tokens of a tool, and of four tokens without."""
    ((batch, data, _),) = observed(make_trainer("s_trace", reward_funcs=turn_values, **WITH_TOOLS))
    rewards = torch.tensor([[i + 1.0, 10.0 * (i + 1) if i % 2 == 0 else 0.0] for i in range(8)], dtype=torch.float64)
    steps = torch.tensor([2, 1] * 4)
    wanted = to_go_advantages(returns_to_go(rewards, gamma=1.0, steps=steps), num_generations=4, steps=steps)
    for i in range(8):
        rows = [wanted[i, 0]] * 2 + [0] * 2 + [wanted[i, 1]] * 2 if i % 2 == 0 else [wanted[i, 0]] * 4
        assert batch.advantages[i, : len(rows)].tolist() == pytest.approx([float(x) for x in rows], abs=1e-4)
        assert not batch.advantages[i, len(rows) :].any()
    assert (batch.advantages[data[keys.TURN_IDS] < 0] == 0).all()
    shown = data[keys.STEP_REWARDS]
    assert shown[0, :6].nan_to_num(nan=-1).tolist() == [-1, 1, -1, -1, -1, 10]
    assert shown[1, :6].nan_to_num(nan=-1).tolist() == [-1, -1, -1, 2, -1, -1]


def test_steps_that_end_in_a_tools_result_belong_to_the_turn_before(make_trainer):
    def mine(completions, **kwargs):
        return [StepRewards([3 if i % 2 == 0 else 2], [1.0], unit="token") for i in range(len(completions))]

    ((_, data, _),) = observed(make_trainer(reward_funcs=mine, **WITH_TOOLS))
    shown = data[keys.STEP_REWARDS].nan_to_num(nan=0.0)
    assert shown[0].tolist()[:6] == [0, 1, 0, 0, 0, 0] and shown[1].tolist()[:4] == [0, 1, 0, 0]


def test_a_value_per_token_leaves_tools_out(make_trainer):
    """Log-probabilities of a teacher, say: a step is a token."""

    def mine(completions, completion_ids, **kwargs):
        return [[float(k + i) for k in range(len(ids))] for i, ids in enumerate(completion_ids)]

    ((batch, _, _),) = observed(make_trainer(reward_funcs=mine, step_gamma=0.5, **WITH_TOOLS))
    assert batch.batch.rewards.tolist() == [(0 + 1 + 4 + 5 + 4 * i) if i % 2 == 0 else (6 + 4 * i) for i in range(8)]
    values = [[0, 1, 4, 5] if i % 2 == 0 else [0, 1, 2, 3] for i in range(8)]
    rewards = torch.tensor([[x + i for x in row] for i, row in enumerate(values)], dtype=torch.float64)
    steps = torch.full((8,), 4)
    wanted = to_go_advantages(returns_to_go(rewards, gamma=0.5, steps=steps), num_generations=4, steps=steps)
    first = wanted[0].tolist()
    assert batch.advantages[0, :6].tolist() == pytest.approx([*first[:2], 0, 0, *first[2:]], abs=1e-4)
    assert batch.advantages[1, :4].tolist() == pytest.approx(wanted[1].tolist(), abs=1e-4)


def test_steps_after_a_truncated_response_keep_their_reward(make_trainer):
    """An environment went on after the text was cut: the reward stays, at the last token, and is counted."""

    def cut(prompts, trainer):
        rollout = tool_rollout(prompts, trainer)
        return rollout | {"completion_ids": [[*x[:-1], 7] for x in rollout["completion_ids"]]}  # no end of sequence

    def mine(completions, **kwargs):
        return [StepRewards([1, 4], [float(i), 100.0], unit="turn") for i in range(len(completions))]

    trainer = make_trainer(reward_funcs=mine, **WITH_TOOLS | {"trainer_kwargs": {"rollout_func": cut}})
    ((batch, data, _),) = observed(trainer)
    assert batch.batch.rewards.tolist() == [100.0 + i for i in range(8)]
    shown = data[keys.STEP_REWARDS].nan_to_num(nan=0.0)
    assert shown[2, 1] == 2.0 and shown[2, 5] == 100.0 and shown[1, 3] == 101.0
    assert trainer.state.log_history[0]["credit/steps/truncated"] == pytest.approx(8 / 12)


# Together with other knobs


def test_chains_add_the_advantages_of_their_segments(make_trainer):
    """At γ = 1 and equal seeds the same responses are sampled, so the two parts can be subtracted."""
    chain = {"rollouts_per_state": 2, "segmentation": "fixed_length", "segment_length": 3}
    batches = []
    for algo, returns, more in (("spo_chain", "outcome", chain), ("spo_chain", "to_go", chain), ("base", "to_go", {})):
        settings = {"returns": returns, "seed": 3, "max_steps": 1, **SMALL, **more}
        batches += observed(make_trainer(algo, reward_funcs=per_character, **settings))
    segments, both, plain = (batch.advantages for batch, *_ in batches)
    assert torch.allclose(both, segments + plain, atol=1e-5)
    first, *others = (data[keys.COMPLETION_IDS] for _, data, _ in batches)
    assert all(torch.equal(ids, first) for ids in others)


def at_different_places(prompts, completions, **kwargs):
    """Responses with equal sums, at different steps: no signal in the totals."""
    return [StepRewards([1, 2], [1.0, 0.0] if i % 2 else [0.0, 1.0], unit="token") for i in range(len(completions))]


def long_enough(prompts, trainer):
    ids = [[5 + i % 7, 6, 7, 1] for i in range(len(prompts))]
    return {"prompt_ids": [[3, 4]] * len(prompts), "completion_ids": ids, "logprobs": None}


@pytest.mark.parametrize("groups", ["keep", "replace", "refill"])
def test_groups_with_equal_sums_have_signal_by_their_advantages(make_trainer, groups):
    settings = WITH_TOOLS | {"trainer_kwargs": {"rollout_func": long_enough}, "max_steps": 2}
    settings |= {"group_signal": "advantage"} if groups != "keep" else {}
    trainer = make_trainer(reward_funcs=at_different_places, groups=groups, step_baseline="response", **settings)
    for batch, data, _ in observed(trainer):
        assert batch.credited.all() and keys.RETURNS not in data
        # R = 1 before the reward, 0 after it; leave-one-out of whole returns is 1
        first, second = batch.advantages[0].tolist(), batch.advantages[1].tolist()
        assert first[:4] == pytest.approx([0, 0, -1, -1]) and second[:4] == pytest.approx([0, -1, -1, -1])
    log = trainer.state.log_history[0]
    assert log.get("credit/groups/signal", 1.0) == 1.0 and log["credit/groups_without_signal"] == 0


# Characters and tokens


@pytest.fixture(scope="module")
def byte_level():
    return byte_tokenizer([("t", "h"), ("th", "e"), ("a", "n"), ("an", "s"), ("Ġ", "s"), ("1", "2"), ("e", "p")])


@pytest.mark.parametrize("text", ["the answer is 12", "é→ü 🙂 step 🙂🙂 adds → one", "每一步 " * 40, "x" * 300 + "→é"])
def test_ends_in_characters_are_the_tokens_that_complete_them(byte_level, text):
    ids = [*byte_level(text)["input_ids"], byte_level.eos_token_id]
    ends = [*range(1, len(text) + 1)]
    counts = _token_counts(ends, text, ids, byte_level)
    assert counts == sorted(counts) and len(counts) == len(ends)
    assert counts[-1] == len(ids)  # with the end of sequence, which has no text
    for end, count in zip(ends[:-1], counts[:-1], strict=True):
        whole = byte_level.decode(ids[:count], skip_special_tokens=True)
        before = byte_level.decode(ids[: count - 1], skip_special_tokens=True)
        assert whole.startswith(text[:end]) and not before.startswith(text[:end])


def test_the_content_of_one_message_is_found_in_the_decoded_text(byte_level):
    ids = byte_level("<think> the answer is 12")["input_ids"]
    message = [{"role": "assistant", "content": "the answer is 12"}]
    counts = _token_counts([3, 16], message, ids, byte_level)
    assert byte_level.decode(ids[: counts[0]]).startswith("<think> the") and counts[1] == len(ids)


@pytest.mark.parametrize(
    ("steps", "completion"),
    [
        (StepRewards([19], [1.0], unit="token"), "11 answer"),
        (StepRewards([3], [1.0], unit="turn"), "11 answer"),
        (StepRewards([0], [1.0], unit="turn"), "11 answer"),
        (StepRewards([99], [1.0]), "11 answer"),
        (StepRewards([1], [1.0]), [{"role": "assistant", "content": "a"}, {"role": "tool", "content": "b"}]),
        (StepRewards([1], [1.0]), [{"role": "assistant", "content": "other"}]),
        (StepRewards([1], [1.0]), [{"role": "assistant", "content": "1"}]),  # twice in the response
    ],
)
def test_steps_that_have_no_place_in_a_response_name_the_function(byte_level, steps, completion):
    ids = byte_level("11 answer")["input_ids"]
    batch = Rollouts([{}], ["?"], [completion], [ids], [[1] * len(ids)])
    with pytest.raises(RewardError, match="^reward function 'mine' returned .*step"):
        place_steps([steps], StepLedger(), batch, [False], name="mine", tokenizer=byte_level)
