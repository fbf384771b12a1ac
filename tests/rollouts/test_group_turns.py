"""Groups with signal in conversations with tools, and in what a run leaves to look at."""

import pytest
from group_helpers import SMALL, by_prompt, observed
from passes_helpers import tool_rollout

from trl_credit.loss import keys
from trl_credit.loss.assignment import assign_credit
from trl_credit.loss.batch import loss_mask


def rollout(prompts, trainer):
    """Two turns in every other response, a column for the rewards, and texts of one length that differ."""
    found, tokenizer = tool_rollout(prompts, trainer), trainer.processing_class
    found["prompt_ids"] = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    return found | {"said": [f"{prompt}{i}" for i, prompt in enumerate(prompts)]}


def by_column(prompts, completions, said, **kwargs):
    assert all(text.startswith(prompt) for text, prompt in zip(said, prompts, strict=True))  # each with its own
    return by_prompt(prompts, completions)


@pytest.mark.parametrize("groups", ["replace", "refill"])
def test_tokens_of_tools_stay_outside(make_trainer, groups):
    seen = []

    def credit(config, tokens):
        seen.append(tokens)
        return assign_credit(config, tokens)

    settings = {**SMALL, "reward_funcs": by_column, "credit": credit, "shuffle_dataset": False}
    trainer = make_trainer("s_trace", groups=groups, trainer_kwargs={"rollout_func": rollout}, **settings)
    batches = observed(trainer)
    log = trainer.state.log_history
    assert any(row.get("credit/groups/copies", 0) or row.get("credit/groups/calls", 1) > 1 for row in log)
    for made, data, _ in batches:
        assert data[keys.NUM_ITEMS] == 16 * 4 == loss_mask(data).sum()
        assert data[keys.COMPLETION_MASK].sum() == 8 * 6 + 8 * 4
        lengths = data[keys.COMPLETION_MASK].sum(1).tolist()
        turns = [row[:n] for row, n in zip(made.batch.turn_ids.tolist(), lengths, strict=True)]
        assert sorted(turns) == [[0, 0, -1, -1, 1, 1]] * 8 + [[0] * 4] * 8
        assert [x["said"][:4] for x in made.examples] == [x["prompt"] for x in made.examples]
    for tokens in seen:
        assert ((tokens.turn_ids >= 0) == tokens.mask_t.bool()).all()
