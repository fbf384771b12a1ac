"""Subclasses that override TRL's methods, and names of rewards: what they return counts as in TRL."""

import functools

import pyarrow.parquet as pq
import pytest
import torch
import trl
from conftest import count_a, sums
from weight_helpers import same_weights, weights

from trl_credit import ALGORITHMS, CreditConfig, CreditTrainer, STraceConfig, STraceTrainer
from trl_credit.hub import write_model_card
from trl_credit.loss import keys
from trl_credit.rewards.steps import StepRewards
from trl_credit.support.functions import unique_names


def own_loss(self, model, inputs, **kwargs):
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    return model(ids).logits.logsumexp(-1).mean()


def with_penalty(loss):
    """Adds a term with a gradient to a trainer's loss, in training. An evaluation has a loss without super()."""

    def added(self, model, inputs):
        if not model.training:
            return own_loss(self, model, inputs)
        return loss(self, model, inputs) + 1e-3 * model.get_input_embeddings().weight.square().sum()

    return added


class Penalised(CreditTrainer):
    _compute_loss = with_penalty(CreditTrainer._compute_loss)


class Stock(trl.GRPOTrainer):
    _compute_loss = with_penalty(trl.GRPOTrainer._compute_loss)


def test_a_loss_that_adds_to_super_trains_as_in_trl(make_trainer):
    # a reward without signal: every micro-batch would be skipped but for the penalty
    settings = {"reward_funcs": lambda completions, **columns: [1.0] * len(completions), "eval_strategy": "steps"}
    settings |= {"trainer_kwargs": {"eval_dataset": sums(64).select(range(2))}, "eval_steps": 1}
    trained = [make_trainer(pair, **settings) for pair in ((trl.GRPOConfig, Stock), (CreditConfig, Penalised))]
    late = make_trainer("base", **settings)  # set on the instance, after the trainer was made
    late._compute_loss = functools.partial(with_penalty(CreditTrainer._compute_loss), late)
    for trainer in (*trained, late):
        trainer.train()
    assert not same_weights(late, make_trainer("base", **settings))
    for ours in (trained[1], late):
        torch.testing.assert_close(weights(trained[0]), weights(ours), rtol=1e-5, atol=1e-6)
        assert sum("eval_loss" in row for row in ours.state.log_history) == 2


def by_length(self, inputs, prompts, completions, completion_ids):
    """Rewards without a reward function: the share of short responses, `None` for a few."""
    values = [torch.nan if len(ids) == 7 else float(sum(ids) % 2) for ids in completion_ids]
    return torch.tensor(values).unsqueeze(1)


def never(completions, **columns):
    raise AssertionError("not asked")


@pytest.mark.parametrize("kind", ["class", "instance", "super"])
def test_rewards_of_an_override_train_as_in_trl(kind, make_trainer):
    """Without super() no function is asked; with it the rewards are changed."""
    runs = []
    for config_class, base in ((trl.GRPOConfig, trl.GRPOTrainer), (CreditConfig, CreditTrainer)):

        def scaled(self, *args, base=base):
            return 3.0 * base._calculate_rewards(self, *args) + 1.0

        own = {"class": by_length, "super": scaled}
        rewarded = type("Rewarded", (base,), {"_calculate_rewards": own[kind]} if kind in own else {})
        sgd = {"optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 1e6}  # a step shows the size of the gradient
        reward = {"reward_funcs": count_a if kind == "super" else never, "scale_rewards": "none"}
        trainer = make_trainer((config_class, rewarded), **reward, **sgd)
        if kind == "instance":
            trainer._calculate_rewards = functools.partial(by_length, trainer)
        trainer.train()
        name = f"rewards/{reward['reward_funcs'].__name__}/mean"
        runs.append((weights(trainer), [(row["reward"], row[name]) for row in trainer.state.log_history[:-1]]))
    assert runs[0][1] == runs[1][1]
    torch.testing.assert_close(runs[0][0], runs[1][0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("algo", ["ha_dw", "vine_ppo", "spo_chain", "spo_tree"])
def test_rewards_without_super_count_wherever_responses_are_scored(algo, make_trainer):
    (config_class, base), seen = ALGORITHMS[algo], []

    class Rewarded(base):
        def _calculate_rewards(self, inputs, prompts, completions, completion_ids):
            seen.append((len(inputs), len(completions)))
            return by_length(self, inputs, prompts, completions, completion_ids)

    trainer = make_trainer((config_class, Rewarded), reward_funcs=never, max_steps=1)
    trainer.train()
    assert len(seen) >= 1 + (algo in ("vine_ppo", "spo_chain")) and all(a == b for a, b in seen)
    assert 0.0 < trainer.state.log_history[0]["reward"] < 1.0


def halves(completions, **columns):
    return [StepRewards([1, 2], [0.5, 0.25], unit="token") for _ in completions]


@pytest.mark.parametrize("changes", [False, True])
def test_a_changed_reward_takes_the_place_of_its_steps(changes, make_trainer):
    class Changed(CreditTrainer):
        def _calculate_rewards(self, *args):
            rewards = super()._calculate_rewards(*args)
            rewards[0] += 1.0 if changes else 0.0
            return rewards

    trainer = make_trainer((CreditConfig, Changed), reward_funcs=halves, returns="to_go")
    rows = [{"prompt": "1+1=", "answer": "2"}] * 4
    generation = trainer.make_batch(rows)
    shown = generation.batch.data[keys.STEP_REWARDS]
    assert generation.batch.rewards.tolist() == [1.75 if changes else 0.75, 0.75, 0.75, 0.75]
    known = shown[0].nan_to_num().nonzero().flatten().tolist()
    assert known == ([int(generation.batch.data["completion_mask"][0].sum()) - 1] if changes else [0, 1])
    assert shown[1, :2].tolist() == [0.5, 0.25]


class Free(STraceTrainer):
    """Overrides that may do without super()."""

    def _generate(self, prompts):
        return trl.GRPOTrainer._generate(self, prompts)

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        return [[3 + i % 3, 4, self.processing_class.eos_token_id] for i, _ in enumerate(prompt_ids)], None

    def _tokenize_prompts(self, prompts):
        return [[3, 4] for _ in prompts], None, {}

    def log(self, logs, start_time=None):
        self.state.log_history.append(dict(logs))

    def get_train_dataloader(self):
        return trl.GRPOTrainer.get_train_dataloader(self)

    def get_eval_dataloader(self, eval_dataset=None):
        return trl.GRPOTrainer.get_eval_dataloader(self, eval_dataset)

    def create_optimizer(self, *args):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        return self.optimizer

    def prediction_step(self, model, inputs, *args, **kwargs):
        return torch.zeros(()), None, None


@pytest.mark.parametrize("settings", [{}, {"groups": "refill", "per_device_train_batch_size": 8}])
def test_these_overrides_may_do_without_super(settings, make_trainer):
    data = {"eval_dataset": sums(64).select(range(2))}
    trainer = make_trainer((STraceConfig, Free), eval_strategy="steps", eval_steps=1, trainer_kwargs=data, **settings)
    trainer.train()
    assert trainer.state.global_step == 2
    assert any("eval_loss" in row for row in trainer.state.log_history)


# Names of rewards: those of TRL, and equal ones stay apart wherever rewards are shown


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
