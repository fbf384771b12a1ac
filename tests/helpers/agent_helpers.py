"""Trainers of the embedded agent whose engine follows a script, and what they sample."""

import pytest
import trl

from trl_credit import CreditConfig, CreditTrainer, STraceConfig, STraceTrainer
from trl_credit.demo import TASKS, Calculator, StepCalculator, agent_dataset, agent_reward, demo_settings
from trl_credit.loss import keys


TASK = TASKS["demo_agent"]
PROMPT = [{"role": "user", "content": "KBE3"}]
GRPO = (CreditConfig, CreditTrainer)
CALL = "K<call>calc op=- x=2</call><eos>"
WRONG = "K<call>calc op=+ x=4</call><eos>"
TWO = "<call>calc op=- x=2</call><call>calc op=+ x=1</call><eos>"
ANSWER = "9<eos>"


@pytest.fixture
def make_agent(tmp_path, monkeypatch):
    """A trainer of the embedded agent, and a script of what its engine says in turn: text for each row."""

    def make(
        *turns: list[str],
        environment=StepCalculator,
        rewards=agent_reward,
        algo=(STraceConfig, STraceTrainer),
        data=None,
        trainer_kwargs=None,
        **settings,
    ):
        config_class, trainer_class = algo
        small = {"per_device_train_batch_size": 2, "num_generations": 2, "max_steps": 1}
        chosen = small | settings
        if issubclass(config_class, CreditConfig):  # or TRL's own
            chosen = demo_settings(config_class, task=TASK, **{"log_credit": 0, **chosen})
        folder = chosen.pop("output_dir", str(tmp_path / "run"))
        shared = {"report_to": "none", "save_strategy": "no", "bf16": False, "disable_tqdm": True}
        args = config_class(folder, **{**shared, **chosen})
        more = {"train_dataset": agent_dataset(8) if data is None else data, **(trainer_kwargs or {})}
        trainer = trainer_class(TASK.model_path, rewards, args, environment_factory=environment, **more)
        texts_of_turns = iter(turns)
        trainer.asked = []  # the ids that the engine was to go on from

        def engine(self, prompt_ids, *args, **kwargs):
            trainer.asked.append([list(ids) for ids in prompt_ids])
            texts = next(texts_of_turns)
            assert len(texts) == len(prompt_ids)
            return [trainer.processing_class(text)["input_ids"] for text in texts], None

        if turns:
            monkeypatch.setattr(trl.GRPOTrainer, "_generate_single_turn", engine)
        if hasattr(trainer, "results"):
            trainer.results.writes_at_end = False
        trainer.model.train()
        trainer.rows = [{"prompt": PROMPT, "answer": "9"}] * 2
        return trainer

    return make


def sampled(trainer) -> list[tuple[str, str]]:
    """Of each row: all text after the prompt, and the text that has gradient."""
    batch = trainer._generate_and_score_completions(trainer.rows)
    tokenizer, texts = trainer.processing_class, []
    tool = batch.get("tool_mask", batch["completion_mask"])
    for ids, real, own in zip(batch["completion_ids"], batch["completion_mask"].bool(), tool.bool(), strict=True):
        texts.append((tokenizer.decode(ids[real]), tokenizer.decode(ids[real & own])))
    return texts


class Bare:
    """An environment of one tool, without rewards, states or a way back."""

    def reset(self, **row):
        return None

    def calc(self, op: str, x: int) -> str:
        """Shows its argument.

        Args:
            op: The operation.
            x: The operand.

        Returns:
            The operand.
        """
        return str(x)


class Counting(StepCalculator):
    """Scores the n-th call that it gets with n, also one that raises."""

    def calc(self, op: str, x: int) -> str:
        """Counts.

        Args:
            op: The operation.
            x: The operand.

        Returns:
            The value.
        """
        try:
            return Calculator.calc(self, op, x)
        finally:
            self.step_rewards.append(len(self.step_rewards) + 1.0)
            self.after()

    def after(self) -> None:
        """What a subclass does after a call."""


def batch_of(trainer):
    """The generation batch of the scripted rows."""
    return trainer.make_batch(trainer.rows)


def by_turn(sampled) -> list[list[float]]:
    """Of each row, the step rewards as (turn, reward)."""
    shown, turns = sampled.batch.data[keys.STEP_REWARDS], sampled.batch.turn_ids
    pairs = []
    for row, turn in zip(shown, turns, strict=True):
        places = (~row.isnan()).nonzero().flatten().tolist()
        assert all(t + 1 == len(turn) or turn[t + 1] != turn[t] for t in places)  # at the end of its turn
        pairs.append([(turn[t].item(), row[t].item()) for t in places])
    return pairs
