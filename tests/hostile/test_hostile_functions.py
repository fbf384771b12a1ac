"""Functions of another run: which changes of code and values a resumed run notices, and which it allows."""

import functools

import pytest
from run_helpers import SAVES, length_reward, refused, survived


@survived
def test_closures_over_other_values(make_trainer, tmp_path):
    def reward(weight):
        def share(completions, **kwargs):
            return [weight * sum(c in "abc" for c in text) for text in completions]

        return share

    make_trainer("grpo", max_steps=1, reward_funcs=reward(1.0), **SAVES).train()
    make_trainer("grpo", max_steps=2, reward_funcs=reward(1.0), **SAVES).train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="the code of `share` changed"):
        make_trainer("grpo", max_steps=3, reward_funcs=reward(2.0), **SAVES).train(resume_from_checkpoint=True)


OWN = """
from trl_credit.loss.assignment import assign_credit

def one(config, tokens):
    return assign_credit(config, tokens)

def two(config, tokens):
    return assign_credit(config, tokens)
"""


@refused
def test_another_function_of_the_same_file(make_trainer, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    make_trainer("base", max_steps=1, credit=f"{tmp_path}/own.py:one", **SAVES).train()
    make_trainer("base", max_steps=2, credit=f"{tmp_path}/../{tmp_path.name}/own.py:one", **SAVES).train(True)
    with pytest.raises(ValueError, match=r"\(the code of `credit` changed\).*allow_changed=\[\"credit\"\]"):
        make_trainer("base", max_steps=3, credit=f"{tmp_path}/own.py:two", **SAVES).train(True)


@refused
def test_rewards_with_the_weights_of_others(make_trainer):
    same = [functools.partial(length_reward, scale=scale) for scale in (1, 2)]
    settings = {**SAVES, "reward_weights": [1.0, 0.1]}
    make_trainer("grpo", max_steps=1, reward_funcs=same, **settings).train()
    with pytest.raises(ValueError, match="code of `length_reward` changed, the code of `length_reward_2` changed"):
        make_trainer("grpo", max_steps=2, reward_funcs=same[::-1], **settings).train(True)
    with pytest.raises(ValueError, match="the code of `length_reward` changed"):  # two functions of one name
        other = [functools.partial(length_reward, scale=3), same[1]]
        make_trainer("grpo", max_steps=2, reward_funcs=other, **settings).train(True)


@survived
def test_a_function_may_change_what_it_captured(make_trainer):
    seen: list[str] = []
    calls = 0

    def reward(completions, **kwargs):
        nonlocal calls
        calls += 1
        seen.extend(completions)
        return [len(text) / 8 for text in completions]

    trainer = make_trainer("grpo", max_steps=1, reward_funcs=reward, **SAVES)
    trainer.train()
    trainer.train()
    make_trainer("grpo", max_steps=2, reward_funcs=reward, **SAVES).train(True)
    assert calls > 2 and seen
