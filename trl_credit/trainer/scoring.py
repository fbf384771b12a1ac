"""TRL's reward functions, on the batch that TRL samples and on other responses."""

from collections.abc import Callable, Collection
from typing import Any

import torch
from accelerate.logging import get_logger

from ..loss.belief import correct_columns
from ..observe.meter import Meter
from ..rewards.guard import RewardError, shown_prompt
from ..rewards.isolation import isolated
from ..rewards.limits import forget_calls
from ..rewards.steps import StepLedger
from ..rollouts.returns import StepScores
from ..runs.resumable import ResumableTrainer
from ..support.shown import report
from .step_rewards import place_steps


logger = get_logger(__name__)  # logs on the main process only

LARGEST = 1e18  # of a reward: squares of sums of them must be finite in 32 bits


class TrlScoring:
    """Scores responses with the reward functions of a TRL trainer.

    Args:
        trainer ([`~trl_credit.runs.resumable.ResumableTrainer`]):
            Its reward functions are used.
        meter ([`~trl_credit.observe.meter.Meter`]):
            Logs the range of rewards and the seconds that they take.
        decode_responses (`Callable`):
            `(prompts, completion_ids)` → responses in the form that reward functions get them.
        ledger ([`~trl_credit.rewards.steps.StepLedger`]):
            Has the rewards along responses.
    """

    def __init__(
        self,
        trainer: ResumableTrainer,
        meter: Meter,
        decode_responses: Callable[[list, list], list],
        ledger: StepLedger,
    ) -> None:
        self._trainer, self._meter, self._decode_responses = trainer, meter, decode_responses
        self._ledger = ledger
        self._has_noted = False
        self._weights = trainer.reward_weights.tolist()
        self._correct = correct_columns(trainer.args, trainer.reward_func_names, weights=self._weights)

    def checked(self, rewards_per_func: torch.Tensor, prompts: list) -> torch.Tensor:
        """The rewards themselves, shape (N, functions), of the rows of all processes; `prompts` are this process's.

        Raises:
            RewardError: one is infinite, or larger than `LARGEST` where advantages are made of it. The standard
                deviation could be infinite then, and every advantage 0.
        """
        weighted = rewards_per_func
        if self._trainer.args.multi_objective_aggregation == "sum_then_normalize":
            weighted = rewards_per_func * self._trainer.reward_weights.to(rewards_per_func.device)
        # an infinite reward of weight 0 is NaN, and refused
        is_large = ~(weighted.abs() <= LARGEST) & ~rewards_per_func.isnan()
        if is_large.any():
            row, column = is_large.nonzero()[0].tolist()
            own = row - self._trainer.processes.rank * len(prompts)
            prompt = shown_prompt(prompts, own) if 0 <= own < len(prompts) else "of another process"
            name, value = self._trainer.reward_func_names[column], rewards_per_func[row, column].item()
            what = f"reward {name!r} is {value:.3g} for row {row} of the batch, to prompt {prompt}"
            fix = "Scale the reward, such as to [0, 1], or lower its reward_weights."
            raise RewardError(f"{what}: squares this large overflow 32 bits, so that advantages would be 0. {fix}")
        return rewards_per_func

    def of_batch(
        self, calculate: Callable, inputs: list[dict[str, Any]], prompts: list, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """Rewards (N, functions) of the rows of all processes, as `calculate` returns them: the trainer's
        `_calculate_rewards`, which a subclass may override. Collective."""
        self._ledger.take()  # of a batch that failed
        try:
            with self._meter.timed("rewards"), isolated():  # `async` functions run at the same time
                rewards = calculate(inputs, prompts, *args, **kwargs)
                processes, found = self._trainer.processes, tuple(getattr(rewards, "shape", ()))
                if found != (shape := (len(prompts) * processes.count, len(self._trainer.reward_funcs))):
                    what = f"{type(self._trainer).__name__}._calculate_rewards returned a tensor of shape {found}"
                    raise RewardError(f"{what}, not {shape}: (responses of all processes, reward functions).")
                self._ledger.keep_unchanged(rewards[processes.rank * len(prompts) :][: len(prompts)])
                columns, count = self._trainer._pending_extra_logs, len(prompts)
                for name in [name for name, values in columns.items() if len(values) != count]:  # of unknown rows
                    what = f"{len(columns.pop(name))} values for {count} responses: it is left out"
                    report(f"column {name!r} of log_extra", what)
                return self.checked(rewards, prompts)
        except BaseException:  # also an interrupt: calls left in TRL's event loop must not be timed out later
            forget_calls()
            raise

    def step_scores(
        self,
        inputs: list[dict[str, Any]],
        prompts: list,
        completions: list,
        completion_ids: list[list[int]],
        *,
        ends: Collection[int],
    ) -> StepScores:
        """The rewards along the responses that were scored last; `ends` are the tokens that end one.

        Raises:
            RewardError: a function gave a reward that lies in no response.
        """
        written = self._ledger.written or [[1] * len(ids) for ids in completion_ids]
        scores = StepScores(written, self._weights)
        cut = [not ids or ids[-1] not in ends for ids in completion_ids]
        given = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids, "truncated": cut}
        for column, found in self._ledger.take().items():
            name = self._trainer.reward_func_names[column]
            placed, late = place_steps(
                found, self._ledger, name=name, processor=self._trainer.processing_class, **given
            )
            for i, values in enumerate(placed.values):
                largest = values.abs().max().item() if len(values) else 0.0
                if largest * abs(self._weights[column]) > LARGEST or largest > LARGEST:
                    what = f"reward function {name!r} returned a step of {largest:.3g} for response {i} of the batch"
                    where = f"to prompt {shown_prompt(prompts, i)}"
                    raise RewardError(f"{what}, {where}: squares overflow 32 bits. Scale it, such as to [0, 1].")
            scores.placed[column] = placed
            scores.late += late
        self._note_steps(bool(scores.placed))
        return scores

    def _note_steps(self, has_steps: bool) -> None:
        """Warns if the first batch has one number per response, and `returns` needs steps. Collective."""
        returns = self._trainer.args.returns
        if self._has_noted or returns in ("outcome", "state_groups"):  # states divide a reward at the end
            return
        self._has_noted = True
        if not self._trainer.processes.max(int(has_steps)):
            logger.warning(
                f"returns={returns!r} found no rewards along the responses of the first generation batch, only one per "
                "response: an environment's list must be called `step_rewards` (set in __init__), and a reward "
                "function must return StepRewards or a value per token."
            )

    def of_responses(
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
        count = trainer.processes.max(own) if most is None else most
        if count == 0:
            return torch.zeros(0, len(trainer.reward_funcs), device=trainer.processes.device)
        ids = [*completion_ids, *(completion_ids[:1] or [[trainer._tokenizer.eos_token_id]]) * (count - own)]
        examples = [*examples[:own], *examples[:1] * (count - own)]
        prompts = [example["prompt"] for example in examples]
        rewards = self.only_scores(examples, prompts, self._decode_responses(prompts, ids), ids)
        start = trainer.processes.rank * count
        return rewards[start : start + own]

    def only_scores(self, examples: list, prompts: list, completions: list, completion_ids: list) -> torch.Tensor:
        """Rewards (N, functions) of responses that are not of the batch, left out of the metrics of rewards."""
        calculate = self._trainer._calculate_rewards  # with a subclass's override, as for a batch
        rewards = self.of_batch(calculate, examples, prompts, completions, completion_ids)
        self._ledger.take()
        self._trainer._pending_extra_logs.clear()  # columns of the table of completions, which has other rows
        self._trainer._pending_metrics.clear()
        return rewards

    def total(self, rewards_per_func: torch.Tensor) -> torch.Tensor:
        """Weighted sum of the reward functions, shape (N, functions) → (N,); NaN where none of them applies."""
        weighted = rewards_per_func * self._trainer.reward_weights.to(rewards_per_func.device)
        return weighted.nansum(1).masked_fill(rewards_per_func.isnan().all(1), torch.nan)

    def correct(self, rewards_per_func: torch.Tensor) -> torch.Tensor:
        """Unweighted sum of the functions that say what is correct, shape (N, functions) → (N,); NaN where none of them
        applies, or nothing reads it."""
        chosen = rewards_per_func[:, self._correct]
        return chosen.nansum(1).masked_fill(chosen.isnan().all(1), torch.nan)

    def log_range(self, rewards: torch.Tensor) -> None:
        """Logs the smallest and the largest total reward of a generation batch, shape (N,)."""
        low, high = rewards.nan_to_num(nan=torch.inf).amin(), rewards.nan_to_num(nan=-torch.inf).amax()
        low, high = torch.stack([low, high]).tolist()
        if low <= high:  # or all are NaN
            self._meter.metrics["reward_min"].append(low)
            self._meter.metrics["reward_max"].append(high)
