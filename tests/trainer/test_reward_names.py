"""Names of rewards: those of TRL, and equal ones stay apart wherever rewards are shown."""

import functools

import pyarrow.parquet as pq
import pytest
import trl

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.hub import write_model_card
from trl_credit.support.functions import unique_names


def share(completions, scale=1.0, **columns):
    return [scale * sum(c in "abc" for c in text[:4]) / 4 for text in completions]


async def waits(completions, **columns):
    return share(completions)


class Pattern:
    def __init__(self, name=None, scale=1.0):
        self.scale = scale
        if name is not None:
            self.__name__ = name

    def __call__(self, completions, **columns):
        return share(completions, self.scale)

    def method(self, completions, **columns):
        return share(completions)


@functools.wraps(share)
def wrapped(*args, **kwargs):
    return share(*args, **kwargs)


def renamed(completions, **columns):
    return share(completions)


renamed.__wrapped__ = share
KINDS = [share, wrapped, renamed, waits, Pattern(), Pattern("vowels"), Pattern().method, functools.partial(share)]


def test_rewards_have_the_names_that_trl_gives_them(make_trainer):
    pairs = (trl.GRPOConfig, trl.GRPOTrainer), (CreditConfig, CreditTrainer)
    kinds = [*KINDS, lambda completions, **columns: share(completions)]
    stock, ours = (make_trainer(pair, reward_funcs=kinds) for pair in pairs)
    assert ours.reward_func_names == unique_names(stock.reward_func_names)


def test_rewards_of_one_name_stay_apart_wherever_they_are_shown(make_trainer, tmp_path):
    def share_2(completions, **columns):
        return [10.0] * len(completions)

    functions = [share, functools.partial(share, scale=3.0), share_2, Pattern("share", 5.0)]
    names = ["share", "share_3", "share_2", "share_4"]
    settings = {"log_completions": True, "log_credit": 1, "difficulty": "hard", "difficulty_reward": ["share_3"]}
    trainer = make_trainer("base", reward_funcs=functions, reward_range=[0.0, 3.0], max_steps=1, **settings)
    trainer.train()
    row = trainer.state.log_history[0]
    means = [row[f"rewards/{name}/mean"] for name in names]
    assert means == pytest.approx([means[0], 3 * means[0], 10.0, 5 * means[0]]) and means[0] > 0
    assert list(trainer.functions["reward_funcs"]) == names
    table = pq.read_table(tmp_path / "run" / "completions" / "completions_00001.parquet").to_pydict()
    assert all(b == pytest.approx(3 * a) for a, b in zip(table["share"], table["share_3"], strict=True))
    logged = "".join(path.read_text() for path in (tmp_path / "run" / "credit_log").glob("*.jsonl"))
    assert all(f'"{name}"' in logged for name in names)
    card = write_model_card(trainer, name="mine").with_name("recipe.yaml").read_text()
    assert all(f"# reward: {name}\n" in card for name in names)
