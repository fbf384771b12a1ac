"""TRL's generation and rewards as a policy: samples batches, continues prefixes, scores responses."""

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.logging import get_logger
from tqdm.auto import tqdm
from trl import GRPOTrainer

from ..loss import keys
from ..loss.assignment import known_or
from ..loss.batch import Batch, segment_ratio
from ..observe.meter import Meter
from ..passes.reduced import arguments_of
from ..rollouts.forest import can_pack
from ..rollouts.policy import Continuation, Plan
from ..rollouts.replay import Row, padded, padded_rows
from ..rollouts.returns import StepScores, return_advantages, shown_rewards
from ..runs.resumable import ResumableTrainer
from .before_run import context_of, room_after
from .engine_calls import GETS_COUNT, per_prompt, prefilled_once, temporarily
from .environments import Environments
from .scoring import TrlScoring
from .step_rewards import Rollouts
from .trl_log import TrlLog
from .turn_rollouts import TurnRollouts


logger = get_logger(__name__)


@dataclass
class SamplePass:
    """One call of TRL's `_generate_and_score_completions`.

    Attributes:
        plan: Rows that replace what TRL would generate, or `None`.
        engine_logps: The engine's log-probabilities of the batch, to replace TRL's pass for π_old, or `None`.
        rewards_per_func: Rewards (N, functions) of the rows of all processes, once they are known.
        entropy_t: Entropies (B, T) of TRL's last pass before the rewards: the reference's, for "entropy_reference".
        written: For each row, which tokens the policy wrote (1) and which a tool (0); `None` without tools.
        scores: Rewards along the rows of this process, once they are known.
    """

    plan: Plan | None = None
    engine_logps: list[list[float | None]] | None = None
    rewards_per_func: torch.Tensor | None = None
    entropy_t: torch.Tensor | None = None
    written: list[list[int]] | None = None
    scores: StepScores | None = None


class TrlEngine(TrlScoring):
    """A [`~trl_credit.rollouts.policy.Policy`] that samples with the engine of a TRL trainer.

    Args:
        trainer ([`~trl_credit.runs.resumable.ResumableTrainer`]):
            Its generation, rewards and forward pass are used.
        meter ([`~trl_credit.observe.meter.Meter`]):
            Logs what is measured while sampling.
        environments ([`Environments`]):
            Those of the trainer, with the ledger of its reward functions.

    Attributes:
        meter, processes:
            The meter and the processes of the run.
        pad_token_id (`int`):
            The token that rows are padded with.
        log ([`~trl_credit.trainer.trl_log.TrlLog`]):
            What TRL logs of a batch.
        sampling ([`SamplePass`] or `None`):
            Set while TRL samples a batch.
        conversations ([`~trl_credit.trainer.turn_rollouts.TurnRollouts`]):
            Continues conversations with environments.
    """

    def __init__(self, trainer: ResumableTrainer, meter: Meter, environments: Environments) -> None:
        super().__init__(trainer, meter, environments)
        self.pad_token_id: int = trainer._tokenizer.pad_token_id
        self.sampling: SamplePass | None = None
        self.log = TrlLog(trainer, meter)
        self.record, self.timed = self.log.record, meter.timed
        self.conversations = TurnRollouts(trainer, self)
        self.continue_turns = self.conversations.continue_from
        context = context_of(trainer)
        if self.args.max_completion_length == context and not self.use_vllm:  # vLLM ends responses there itself
            trainer.generation_config.update(max_new_tokens=None, max_length=context)
            trainer.generation_kwargs.update(max_new_tokens=None, max_length=context)

    @property
    def group_size(self) -> int:
        """Rows per prompt in a generation batch."""
        trainer = self._trainer
        return trainer.num_generations if trainer.model.training else trainer.num_generations_eval

    @property
    def use_vllm(self) -> bool:
        """Whether vLLM samples."""
        return self._trainer.use_vllm

    def data_rows(self, numbers: list[int]) -> list[dict[str, Any]]:
        """Rows of the training data by number, as the data loader gives them."""
        return [self._trainer.callback_handler.train_dataloader.dataset[number] for number in numbers]

    @property
    def _model(self) -> torch.nn.Module:
        return self._trainer.accelerator.unwrap_model(self._trainer.model)

    # A batch

    def sample(self, inputs: list[dict[str, Any]], *, planned: Plan | None = None) -> Batch:
        """TRL's batch of rows of the data set, or of `planned` rows instead of what TRL would generate. Collective.

        With `behavior_logps="sampler"` π_old is the engine's own.
        """
        self.log.begin_call(len(inputs) * self.processes.count)
        self._environments.begin_batch()
        sampling = SamplePass(planned)
        with temporarily(self, sampling=sampling):
            with self.timed("generate"), temporarily(self._trainer, **self._hooks(planned)):
                output = GRPOTrainer._generate_and_score_completions(self._trainer, inputs)
            sampling.engine_logps = None  # only for TRL's own pass
            if sampling.entropy_t is not None:
                output[keys.REF_ENTROPIES] = sampling.entropy_t
            rewards, scores = sampling.rewards_per_func, sampling.scores
            totals = self.total_reward(rewards), rewards, self.correct_reward(rewards)
            batch = Batch(output, *totals, self.processes.rank)
            self.log.reward_range(batch.rewards)
            if scores is not None:
                if (step_reward_t := shown_rewards(scores, width=batch.width)) is not None:
                    output[keys.STEP_REWARDS] = step_reward_t.to(self.processes.device)
                if self.args.returns != "outcome":
                    batch.data[keys.RETURNS] = return_advantages(self, batch, scores)
            if self.args.behavior_logps == "sampler":
                self._take_sampled_logps(batch)
            if planned is None:
                self._correct_by_turn(batch)
            return batch

    def _hooks(self, plan: Plan | None) -> dict[str, Callable]:
        """Methods of the trainer while TRL samples a batch: around those that its class has, or a subclass
        overrides."""
        trainer, sampling = self._trainer, self.sampling
        if plan is None:
            hooks = {"_generate": self._generate, "_generate_single_turn": self._generate_turn}
            hooks["_calculate_rewards"] = self._score
            return {name: functools.partial(hook, getattr(trainer, name)) for name, hook in hooks.items()}
        # rows are made already, and rewards are those of the responses that are logged: no override sees segments
        rows, rewards = plan.rows, torch.tensor([response.rewards for response in plan.logged])
        sampling.rewards_per_func = rewards.to(self.processes.device)
        logps = None if rows[0].sampling_logps is None else [list(row.sampling_logps) for row in rows]
        return {
            "_generate": functools.partial(self._generate, functools.partial(GRPOTrainer._generate, trainer)),
            "_tokenize_prompts": lambda *args: ([list(row.prompt_ids) for row in rows], None, {}),
            "_generate_single_turn": lambda *args, **kwargs: ([list(row.completion_ids) for row in rows], logps),
            "_calculate_rewards": lambda *args: sampling.rewards_per_func,
        }

    def _generate_turn(self, generate: Callable, *args: Any, **kwargs: Any) -> Any:
        """Notes the state of the environments before the policy writes a turn."""
        self._environments.begin_turn()
        return generate(*args, **kwargs)

    def _generate(self, generate: Callable, *args: Any, **kwargs: Any) -> Any:
        """Keeps which tokens of a batch the policy wrote, and the engine's log-probabilities where they replace TRL's
        pass for π_old."""
        output = generate(*args, **kwargs)
        self._environments.end_turns()
        self.sampling.written = output[2]
        # TRL's next forward pass is that for π_old, except where it makes none
        makes_one = not self.args.is_aligned or self._trainer.vllm_importance_sampling_correction
        if self.args.behavior_logps == "sampler" and makes_one:
            self.sampling.engine_logps = output[4]
        return output

    def _score(self, calculate: Callable, *args: Any) -> torch.Tensor:
        """Rewards (N, functions) of the batch that TRL samples: what `calculate` returns. Collective."""
        sampling, turns = self.sampling, self.conversations
        batch = Rollouts(*args, sampling.written or [[1] * len(ids) for ids in args[3]])
        sampling.rewards_per_func, sampling.scores = self.score_batch(calculate, batch, end_tokens=self._end_tokens)
        turns.batch, turns.snapshots = batch, self._environments.snapshots
        return sampling.rewards_per_func

    # Log-probabilities under the policy that sampled

    def engine_logps(self, width: int) -> torch.Tensor | None:
        """The engine's log-probabilities, shape (B, `width`), where they replace TRL's pass for π_old; `None` where
        they do not, or a process does not know them all."""
        if self.sampling is None or (logps := self.sampling.engine_logps) is None:
            return None
        self.sampling.engine_logps = None  # TRL's next forward pass is not that for π_old
        rows = [[math.nan if x is None else x for x in values] for values in logps]
        logp_t = padded(rows, value=0.0, width=width).to(self.processes.device)
        if self.processes.max(int(logp_t.isnan().any())):
            logger.warning("the engine did not give all log-probabilities: π_old is computed for this batch")
            return None
        return logp_t

    def _take_sampled_logps(self, batch: Batch) -> None:
        """Uses the engine's log-probabilities as π_old."""
        if batch.sampling_logp_t is not None:
            if self.processes.max(int(batch.sampling_logp_t.isnan().any())):
                self.fill_old_logps(batch)  # for tokens without an engine log-probability; the plan is still set here
            batch.old_logp_t = known_or(batch.sampling_logp_t, batch.old_logp_t)
        if batch.engine_ratio_t is not None:  # π_old is what sampled: nothing to correct
            batch.engine_ratio_t = torch.ones_like(batch.engine_ratio_t)

    def fill_old_logps(self, batch: Batch) -> None:
        """Makes the pass for π_old, which TRL skips when the policy cannot have moved. Collective."""
        if batch.old_logp_t is None:
            batch.old_logp_t = self.behavior_logps(batch.data)

    @torch.no_grad()
    def behavior_logps(self, batch: dict[str, Any]) -> torch.Tensor:
        """Log-probabilities (nats) of TRL's batch under the current policy, shape (B, T). Collective."""
        return self.policy_logps(batch)

    def policy_logps(self, batch: dict[str, Any]) -> torch.Tensor:
        """[`behavior_logps`] with a gradient. Rows of one prompt are packed, as in training."""
        trainer, args = self._trainer, self.args
        size = args.per_device_train_batch_size if trainer.model.training else args.per_device_eval_batch_size
        others = {key: batch[key] for key in keys.FORWARD if key in batch}
        if torch.is_grad_enabled():  # whether packed rows are exact; a run finds it out with its first training batch
            trainer._passes.shared([batch])
        forward = trainer._get_per_token_logps_and_entropies
        return forward(trainer.model, *arguments_of(batch), batch_size=size, **others)[0]

    def row_logps(self, rows: Sequence[Row], *, at_once: int) -> list[list[float]]:
        """See [`~trl_credit.rollouts.policy.Policy`]. Rows of similar length share a pass, with little padding."""
        order = sorted(range(len(rows)), key=lambda i: (len(rows[i].completion_ids), len(rows[i].prompt_ids)))
        logps_of: list[list[float]] = [[]] * len(rows)
        end = (self._trainer._tokenizer.eos_token_id,)
        filler = Row("", end, end, (0.0,), (-1,))
        for i in range(0, self.processes.max(-(-len(rows) // at_once)) * at_once, at_once):
            part = order[i : i + at_once]
            batch = padded_rows([rows[k] for k in part] or [filler], pad_token_id=self.pad_token_id)
            logps = self.behavior_logps({name: x.to(self.processes.device) for name, x in batch.items()}).tolist()
            for k, logp in zip(part, logps, strict=False):
                logps_of[k] = logp[: len(rows[k].completion_ids)]
        return logps_of

    def _correct_by_turn(self, batch: Batch) -> None:
        """Replaces TRL's correction for the engine, per row, by the mean over each turn, where weights are per turn.

        The correction has the shape (B, T) then, also in a batch without turns, where it stays TRL's.
        """
        is_per_row = self._trainer.vllm_importance_sampling_mode.startswith("sequence")
        if batch.engine_ratio_t is None or not is_per_row or not self.args.corrects_by_turn:
            return
        if batch.turn_ids is None or self.args.behavior_logps == "sampler":
            batch.engine_ratio_t = batch.engine_ratio_t.expand_as(batch.written_t).contiguous()
        else:
            self.correct_by_part(batch, batch.turn_ids, average=True)

    def correct_by_part(self, batch: Batch, part_ids: torch.Tensor, *, average: bool = False) -> None:
        """Replaces TRL's correction for the engine, per row, by one per segment or turn, see
        [`~trl_credit.loss.batch.segment_ratio`]. `part_ids`: shape (B, T)."""
        low, high = self._trainer.vllm_importance_sampling_clip_min, self._trainer.vllm_importance_sampling_clip_max
        form = {"mode": self._trainer.vllm_importance_sampling_mode, "low": low, "high": high, "average": average}
        batch.engine_ratio_t = segment_ratio(batch.old_logp_t, batch.sampling_logp_t, segment_ids=part_ids, **form)

    # Continuations

    def continue_prefixes(self, prefixes: Sequence[list[int]], *, n: int, budgets: list[int]) -> list[Continuation]:
        """`n` continuations of each prefix by the current policy, those of one prefix together. Collective.

        One engine call, or as many as `rollout_batch_size` requires. With several calls, the prefixes with the largest
        budgets come first if the engine decodes a call until its last response ends. Results are in the given order.

        Args:
            prefixes (sequence of `list[int]`):
                Token ids, not tokenised again, each asked for once. Processes may have different numbers, also none.
            n (`int`):
                Continuations per prefix.
            budgets (`list[int]`):
                Most tokens of the continuations of each prefix, at least 1.

        Returns:
            `list` of [`Continuation`]: `n · len(prefixes)` of them.
        """
        size = max(1, (self.args.rollout_batch_size or n * max(len(prefixes), 1)) // n)
        max_of_each = self.processes.max_of_each
        count, *most = max_of_each([-(-len(prefixes) // size), min(size, len(prefixes)), max(budgets, default=1)])
        order = list(range(len(prefixes)))
        if count > 1 and not self._limits_each_prefix:
            order.sort(key=lambda i: -budgets[i])
        parts = [order[i : i + size] for i in range(0, count * size, size)]
        if count > 1:
            most = max_of_each([x for p in parts for x in (len(p), max((budgets[k] for k in p), default=1))])
        by_prefix: list[list[Continuation]] = [[]] * len(prefixes)
        is_hidden = count < 2 or self.args.disable_tqdm or not self.processes.is_main
        calls = tqdm(parts, disable=is_hidden, leave=False, delay=4.0)  # in seconds
        for part, width, limit in zip(calls, most[::2], most[1::2], strict=False):
            sizes = {"budgets": [budgets[k] for k in part], "most": width, "limit": limit}
            continuations = self._continue_once([prefixes[k] for k in part], n=n, **sizes)
            for place, k in enumerate(part):
                by_prefix[k] = continuations[place * n : (place + 1) * n]
        return [continuation for of_prefix in by_prefix for continuation in of_prefix]

    @property
    def _limits_each_prefix(self) -> bool:
        """Whether an engine call limits the tokens of each prefix, instead of one limit for all."""
        return self.use_vllm and self._trainer.vllm_mode == "colocate" and self.args.vllm_tensor_parallel_size == 1

    @functools.cached_property
    def prefills_once(self) -> bool:
        """Whether we may make a pass of our own before `generate`. The kind of the model's cache must be known. Weights
        must not be gathered for each pass, since then all processes must make the same number of passes."""
        trainer = self._trainer
        gathers = trainer.is_fsdp_enabled or (trainer.is_deepspeed_enabled and not self.args.ds3_gather_for_generation)
        return not gathers and can_pack(self._model.config)

    def _continue_once(
        self, prefixes: list[list[int]], *, n: int, budgets: list[int], most: int, limit: int
    ) -> list[Continuation]:
        """One engine call. No process has more prefixes than `most`, nor a larger budget than `limit`.

        TRL's call gives all prompts that one limit: a continuation is cut where it exceeds its own budget.
        """
        trainer, count, alone = self._trainer, len(prefixes), self._limits_each_prefix
        # a process without work still takes part, and a shared engine needs equal shares
        missing = max(1 - count, 0) if alone or not self.use_vllm else most - count
        prefixes = [*prefixes, *(prefixes[:1] or [[trainer._tokenizer.eos_token_id]]) * missing]
        with contextlib.ExitStack() as stack:
            if alone:
                llm = per_prompt(trainer.vllm_generation.llm, n=n, budgets=[*budgets, *[1] * missing])
                stack.enter_context(temporarily(trainer.vllm_generation, llm=llm))
            else:
                prefixes = [prefix for prefix in prefixes for _ in range(n)]
                stack.enter_context(temporarily(trainer, num_generations=n))  # read there by older TRL
                if self.use_vllm:
                    stack.enter_context(temporarily(trainer.vllm_generation, max_completion_length=limit))
                else:
                    stack.enter_context(temporarily(trainer.generation_config, max_new_tokens=limit, max_length=None))
                    if n > 1 and self.prefills_once:
                        stack.enter_context(prefilled_once(self._model, n=n))
            ids, logps = trainer._generate_single_turn(prefixes, None, {}, *([n] if GETS_COUNT else []))
        limits = [budget for budget in budgets for _ in range(n)]
        known = [logps and [math.nan if x is None else x for x in logps[i][:k]] for i, k in enumerate(limits)]
        return [Continuation(list(ids[i][:k]), known[i]) for i, k in enumerate(limits)]

    # Tokens

    def tokenize(self, prompts: list) -> list[list[int]]:
        """Token ids of prompts, with the chat template where they are conversations."""
        return [list(ids) for ids in self._trainer._tokenize_prompts(prompts)[0]]

    def decode(self, ids: list[int]) -> str:
        """Text of token ids, without special tokens."""
        return self._trainer._tokenizer.decode(ids, skip_special_tokens=True)

    def is_finished(self, ids: Sequence[int], budget: int) -> bool:
        """Whether a continuation ended by itself: at an end token, or (a stop string) within its budget."""
        return len(ids) < budget or ids[-1] in self._end_tokens

    @functools.cached_property
    def _end_tokens(self) -> frozenset[int]:
        declared = self._model.generation_config.eos_token_id
        declared = declared if isinstance(declared, list) else [declared]
        return frozenset([*declared, self._trainer._tokenizer.eos_token_id])  # a sampled pad token ends nothing

    def remaining_budget(self, prompt_length: int, written: int) -> int:
        """Tokens that a response may have after `written`, by `max_completion_length` and the model's context."""
        left, context = self._trainer.max_completion_length - written, context_of(self._trainer)
        return left if context is None else min(left, room_after(prompt_length, context) - written)
