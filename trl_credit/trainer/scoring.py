"""TRL's reward functions, on the batch that TRL samples and on other responses."""

from collections.abc import Callable, Collection
from typing import Any

import torch
from accelerate.logging import get_logger
from trl.chat_template_utils import parse_response
from trl.data_utils import is_conversational

from ..config import CreditConfig
from ..loss.belief import correct_columns
from ..observe.meter import Meter
from ..rewards.guard import RewardError, isolated
from ..rewards.limits import forget_calls
from ..rollouts.returns import StepScores
from ..runs.resumable import ResumableTrainer
from ..support.shown import report
from .environments import Environments
from .step_rewards import Rollouts, place_steps


logger = get_logger(__name__)  # logs on the main process only

LARGEST = 1e18  # reward: squares of sums of rewards must be finite in 32 bits


class TrlScoring:
    """Scores responses with the reward functions of a TRL trainer. The base class of its engine.

    Args:
        trainer ([`~trl_credit.runs.resumable.ResumableTrainer`]):
            Its reward functions are used.
        meter ([`~trl_credit.observe.meter.Meter`]):
            Logs the seconds that rewards take.
        environments ([`Environments`]):
            Those of the trainer, with the ledger of rewards along responses.
    """

    def __init__(self, trainer: ResumableTrainer, meter: Meter, environments: Environments) -> None:
        self._trainer, self.meter, self.processes = trainer, meter, trainer.processes
        self.args: CreditConfig = trainer.args
        self._environments, self._ledger = environments, environments.ledger
        self._weights = trainer.reward_weights.tolist()
        self._correct = correct_columns(trainer.args, trainer.reward_func_names, weights=self._weights)
        self._expects_steps = self.args.returns not in ("outcome", "state_groups")  # states divide a reward at the end

    def score_batch(
        self, calculate: Callable, batch: Rollouts, *, end_tokens: Collection[int]
    ) -> tuple[torch.Tensor, StepScores]:
        """Rewards (N, functions) of the rows of all processes, and the rewards along the rows of this one. Collective.

        Args:
            calculate (`Callable`):
                The trainer's `_calculate_rewards`, which a subclass may override.
            end_tokens (collection of `int`):
                Tokens that end a response.

        Raises:
            RewardError: a reward is too large, or one along a response lies in no response.
        """
        self._environments.totals_alone = False
        rewards = self._rewards(calculate, batch)
        self._environments.check_read()
        scores = StepScores(batch.written, self._weights, states=self._environments.states(batch.written))
        truncated = [not ids or ids[-1] not in end_tokens for ids in batch.completion_ids]
        for column, steps in self._ledger.take().items():
            labels = {"name": self._trainer.reward_func_names[column], "tokenizer": self._trainer.processing_class}
            scores.placed[column], late = place_steps(steps, self._ledger, batch, truncated, **labels)
            scores.late += late
        if self._expects_steps and not self.processes.max(int(bool(scores.placed))):
            what = f"returns={self.args.returns!r} found no rewards along the responses of the first generation batch"
            logger.warning(f"{what}: return StepRewards or a value per token, or set an environment's `step_rewards`")
        self._expects_steps = False
        return rewards, scores

    def _rewards(self, calculate: Callable, batch: Rollouts) -> torch.Tensor:
        self._ledger.take()  # of a batch that failed
        self._ledger.written = batch.written
        trainer, count = self._trainer, len(batch.prompts)
        try:
            with self.meter.timed("rewards"), isolated():  # `async` functions run at the same time
                rewards = calculate(batch.examples, batch.prompts, batch.completions, batch.completion_ids)
        except BaseException:  # also an interrupt: calls left in TRL's event loop must not be timed out later
            forget_calls()
            raise
        shape = (count * self.processes.count, len(trainer.reward_funcs))
        if tuple(rewards.shape) != shape:
            what = f"{type(trainer).__name__}._calculate_rewards returned a tensor of shape {tuple(rewards.shape)}"
            raise RewardError(f"{what}, not {shape}: (responses of all processes, reward functions).")
        self._ledger.keep_unchanged(rewards[self.processes.rank * count :][:count])
        columns = trainer._pending_extra_logs
        for name in [name for name, values in columns.items() if len(values) != count]:  # of unknown rows
            report(f"column {name!r} of log_extra", f"{len(columns.pop(name))} values for {count} responses")
        sums_first = self.args.multi_objective_aggregation == "sum_then_normalize"
        weighted = rewards * trainer.reward_weights.to(rewards.device) if sums_first else rewards
        # their standard deviation could be infinite, and A then 0; an infinite reward of weight 0 is NaN
        if (is_large := ~(weighted.abs() <= LARGEST) & ~rewards.isnan()).any():
            row, column = is_large.nonzero()[0].tolist()
            what = f"reward {trainer.reward_func_names[column]!r} is {rewards[row, column]:.3g} in row {row}"
            raise RewardError(f"{what}: its square overflows 32 bits. Scale the reward, or lower its reward_weights.")
        return rewards

    def score_responses(
        self, examples: list[dict[str, Any]], completion_ids: list[list[int]], *, most: int | None = None
    ) -> torch.Tensor:
        """Rewards by function, shape (n, functions), of responses to the prompts of rows of the data set. Collective.

        They are left out of the metrics of rewards. Processes with fewer responses score some again, so that all
        gather equal shapes.

        Args:
            examples (`list[dict]`):
                Rows of the data set, one per response and at least one.
            completion_ids (`list[list[int]]`):
                Whole responses. May be empty where another process has some.
            most (`int`, *optional*):
                The largest number of responses of a process, if known: saves a collective call.
        """
        trainer, own = self._trainer, len(completion_ids)
        count = self.processes.max(own) if most is None else most
        if count == 0:
            return torch.zeros(0, len(trainer.reward_funcs), device=self.processes.device)
        ids = [*completion_ids, *(completion_ids[:1] or [[trainer._tokenizer.eos_token_id]]) * (count - own)]
        examples = [*examples[:own], *examples[:1] * (count - own)]
        prompts = [example["prompt"] for example in examples]
        others = Rollouts(examples, prompts, self.decode_responses(prompts, ids), ids, [[1] * len(x) for x in ids])
        return self.score_others(others, own=own)

    def score_others(self, others: Rollouts, *, own: int) -> torch.Tensor:
        """Rewards (`own`, functions) of the first responses that are not of the batch, left out of the metrics of
        rewards. All processes give as many. Collective."""
        trainer, self._environments.totals_alone = self._trainer, True
        rewards = self._rewards(trainer._calculate_rewards, others)  # with a subclass's override, as for a batch
        self._ledger.take()
        trainer._pending_extra_logs.clear()  # columns of the table of completions, which has other rows
        trainer._pending_metrics.clear()
        return rewards[self.processes.rank * len(others.prompts) :][:own]

    def decode_responses(self, prompts: list, completion_ids: list[list[int]]) -> list:
        """Responses in the form that reward functions get them: texts, or messages where prompts are conversations."""
        trainer, tokenizer = self._trainer, self._trainer._tokenizer
        is_chat = bool(prompts) and is_conversational({"prompt": prompts[0]})
        if is_chat and any(getattr(tokenizer, name, None) for name in ("response_template", "response_schema")):
            pairs = zip(completion_ids, trainer._tokenize_prompts(prompts)[0], strict=True)
            return [[parse_response(tokenizer, ids, prefix=prefix)] for ids, prefix in pairs]
        if not completion_ids:  # of which batch_decode makes one empty text
            return []
        texts = trainer.processing_class.batch_decode(completion_ids, skip_special_tokens=True)
        return [[{"role": "assistant", "content": text}] for text in texts] if is_chat else texts

    def total_reward(self, rewards_per_func: torch.Tensor) -> torch.Tensor:
        """Weighted sum of the reward functions, shape (N, functions) → (N,); NaN where none of them applies."""
        return _sum(rewards_per_func * self._trainer.reward_weights.to(rewards_per_func.device))

    def correct_reward(self, rewards_per_func: torch.Tensor) -> torch.Tensor:
        """Unweighted sum of the functions that say what is correct, shape (N, functions) → (N,); NaN where none of them
        applies, or nothing reads it."""
        return _sum(rewards_per_func[:, self._correct])


def _sum(rewards: torch.Tensor) -> torch.Tensor:
    return rewards.nansum(1).masked_fill(rewards.isnan().all(1), torch.nan)
