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
from trl.chat_template_utils import parse_response
from trl.data_utils import is_conversational

from ..config import CreditConfig
from ..loss import keys
from ..loss.assignment import known_or
from ..loss.batch import Batch
from ..observe.meter import Meter
from ..rewards.steps import StepLedger
from ..rollouts.forest import can_pack
from ..rollouts.policy import Continuation, Plan
from ..rollouts.returns import StepScores, return_advantages, shown_rewards
from ..runs.resumable import ResumableTrainer
from .before_run import limit_to_context, room_after
from .decoding import decode_rows
from .engine_calls import GETS_COUNT, PerPrompt, prefilled_once, temporarily, token_bar
from .environments import Environments
from .logps import TrlLogps
from .scoring import TrlScoring
from .trl_log import TrlLog
from .turn_rollouts import Conversations, TurnRollouts


logger = get_logger(__name__)

PROGRESS_DELAY = 4.0  # seconds before a progress bar of rollouts appears


@dataclass
class SamplePass:
    """One call of TRL's `_generate_and_score_completions`.

    Attributes:
        plan: Rows that replace what TRL would generate, or `None`.
        engine_logps: The engine's log-probabilities of the batch, to replace TRL's pass for π_old, or `None`.
        rewards_per_func: Rewards (N, functions) of the rows of all processes, once they are known.
        experts_t: The experts of each token and layer under π_old, shape (B, T, layers, k), for `expert_drift`.
        entropy_t: Entropies (B, T) of TRL's last pass before the rewards: the reference's, for "entropy_reference".
        written: For each row, which tokens the policy wrote (1) and which a tool (0); `None` without tools.
        scores: Rewards along the rows of this process, once they are known.
    """

    plan: Plan | None = None
    engine_logps: list[list[float | None]] | None = None
    rewards_per_func: torch.Tensor | None = None
    experts_t: torch.Tensor | None = None
    entropy_t: torch.Tensor | None = None
    written: list[list[int]] | None = None
    scores: StepScores | None = None


class TrlEngine:
    """A [`~trl_credit.rollouts.policy.Policy`] that samples with the engine of a TRL trainer.

    Args:
        trainer ([`~trl_credit.runs.resumable.ResumableTrainer`]):
            Its generation, rewards and forward pass are used.
        meter ([`~trl_credit.observe.meter.Meter`]):
            Logs what is measured while sampling.
        environments ([`Environments`], *optional*):
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
    """

    def __init__(self, trainer: ResumableTrainer, meter: Meter, environments: Environments | None = None) -> None:
        self._trainer, self.meter, self.processes = trainer, meter, trainer.processes
        self.args: CreditConfig = trainer.args
        self.pad_token_id: int = trainer._tokenizer.pad_token_id
        self.sampling: SamplePass | None = None
        self.log = TrlLog(trainer, meter)
        self.record, self.timed = self.log.record, meter.timed
        self._environments = Environments(trainer, StepLedger()) if environments is None else environments
        self._scoring = TrlScoring(trainer, meter, self.decode_responses, self._environments.ledger)
        self.score_responses = self._scoring.of_responses
        self._turn_rollouts = TurnRollouts(trainer, self._environments, self._scoring, self.continue_prefixes)
        self._conversations: Conversations | None = None  # the last batch
        self._logps = TrlLogps(trainer)
        self.behavior_logps, self.row_logps = self._logps.of_batch, self._logps.of_rows
        self.correct_by_segment = self._logps.correct_by_segment
        self.total_reward, self.correct_reward = self._scoring.total, self._scoring.correct
        limit_to_context(trainer)

    @property
    def use_vllm(self) -> bool:
        """Whether TRL generates with vLLM."""
        return self._trainer.use_vllm

    @property
    def group_size(self) -> int:
        """Rows per prompt in a generation batch."""
        trainer = self._trainer
        return trainer.num_generations if trainer.model.training else trainer.num_generations_eval

    @property
    def updates_done(self) -> int:
        """Optimizer steps so far."""
        return self._trainer.state.global_step

    def data_rows(self, numbers: list[int]) -> list[dict[str, Any]]:
        """Rows of the training data by number, as the data loader gives them."""
        return [self._trainer.train_rows[number] for number in numbers]

    @property
    def _model(self) -> torch.nn.Module:
        return self._trainer.accelerator.unwrap_model(self._trainer.model)

    def sample(self, inputs: list[dict[str, Any]], *, planned: Plan | None = None) -> Batch:
        """TRL's batch of rows of the data set, or of `planned` rows instead of what TRL would generate. Collective.

        With `behavior_logps="sampler"` π_old is the engine's own.
        """
        self.log.begin_call(len(inputs) * self.processes.count)
        self._environments.begin_batch()
        with temporarily(self, sampling=SamplePass(planned)):
            with self.timed("generate"), temporarily(self._trainer, **self._around_hooks()):
                output = GRPOTrainer._generate_and_score_completions(self._trainer, inputs)
            self.sampling.engine_logps = None  # only for TRL's own pass
            read = {keys.OLD_EXPERTS: self.sampling.experts_t, keys.REF_ENTROPIES: self.sampling.entropy_t}
            output |= {key: x_t for key, x_t in read.items() if x_t is not None}
            rewards = self.sampling.rewards_per_func
            batch = Batch(
                output, self.total_reward(rewards), rewards, self.correct_reward(rewards), self.processes.rank
            )
            self._scoring.log_range(batch.rewards)
            if (scores := self.sampling.scores) is not None:
                if (step_reward_t := shown_rewards(scores, width=batch.width)) is not None:
                    output[keys.STEP_REWARDS] = step_reward_t.to(self.processes.device)
                if self.args.returns != "outcome":
                    batch.return_t = return_advantages(self, batch, scores)
            if self.args.behavior_logps == "sampler":
                self._take_sampled_logps(batch)
            if planned is None:
                self._logps.correct_by_turn(batch)
            return batch

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

    # TRL's hooks while a batch is sampled: around the methods that the trainer's class has, or a subclass overrides

    def _around_hooks(self) -> dict[str, Callable]:
        hooks = {"_generate": self._generate, "_generate_single_turn": self._generate_turn}
        hooks["_calculate_rewards"] = self._score
        around = {name: functools.partial(hook, getattr(self._trainer, name)) for name, hook in hooks.items()}
        if (plan := self.sampling.plan) is None:
            return around
        # rows are made already, and rewards are those of the responses that are logged: no override sees segments
        rows, self.sampling.rewards_per_func = plan.rows, plan.rewards.to(self.processes.device)
        logps = None if rows[0].sampling_logps is None else [list(row.sampling_logps) for row in rows]
        return {
            "_generate": functools.partial(self._generate, functools.partial(GRPOTrainer._generate, self._trainer)),
            "_tokenize_prompts": lambda *args: ([list(row.prompt_ids) for row in rows], None, {}),
            "_generate_single_turn": lambda *args, **kwargs: ([list(row.completion_ids) for row in rows], logps),
            "_calculate_rewards": lambda *args: self.sampling.rewards_per_func,
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

    def engine_logps(self, width: int) -> torch.Tensor | None:
        """The engine's log-probabilities, shape (B, `width`), where they replace TRL's pass for π_old; `None` where
        they do not, or a process does not know them all."""
        if self.sampling is None or (logps := self.sampling.engine_logps) is None:
            return None
        self.sampling.engine_logps = None  # TRL's next forward pass is not that for π_old
        padded = torch.zeros(len(logps), width, device=self.processes.device)
        for row, values in zip(padded, logps, strict=True):
            row[: len(values)] = torch.tensor([math.nan if x is None else x for x in values])
        if self.processes.max(int(padded.isnan().any())):
            logger.warning("the engine did not give all log-probabilities: π_old is computed for this batch")
            return None
        return padded

    def _score(self, calculate: Callable, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Rewards (N, functions) of the batch that TRL samples: what `calculate` returns. Collective."""
        with temporarily(self._environments.ledger, written=self.sampling.written):
            rewards = self._scoring.of_batch(calculate, *args, **kwargs)
            self._environments.check_read()
            scores = self._scoring.step_scores(*args, ends=self._end_tokens, **kwargs)
        scores.states = self._environments.states(scores.written)
        if snapshots := self._environments.snapshots:
            self._conversations = Conversations(*args[:3], written=scores.written, snapshots=snapshots)
        self.sampling.scores, self.sampling.rewards_per_func = scores, rewards
        return rewards

    # Continuations

    def continue_prefixes(
        self, prefixes: Sequence[list[int]], *, n: int, budgets: list[int], label: str = "rollouts"
    ) -> list[Continuation]:
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
        found: list[list[Continuation]] = [[]] * len(prefixes)
        hidden = self.args.disable_tqdm or not self.processes.is_main
        bar = functools.partial(tqdm, desc=label, leave=False, delay=PROGRESS_DELAY, disable=hidden)
        for part, wanted, limit in zip(parts, most[::2], most[1::2], strict=False):
            given = {"n": n, "budgets": [budgets[k] for k in part], "most": wanted, "limit": limit}
            written = self._continue_once([prefixes[k] for k in part], **given, bar=bar)
            if len(written) != n * len(part):
                what = f"the generation engine returned {len(written)} continuations, not {n * len(part)}"
                raise RuntimeError(f"{what}: see its messages, and lower rollout_batch_size if it ran out of memory.")
            for place, k in enumerate(part):
                found[k] = written[place * n : (place + 1) * n]
        return [continuation for of_prefix in found for continuation in of_prefix]

    @property
    def _limits_each_prefix(self) -> bool:
        """Whether an engine call limits the tokens of each prefix, instead of one limit for all."""
        colocated = self.use_vllm and self._trainer.vllm_mode == "colocate"
        return colocated and self.args.vllm_tensor_parallel_size == 1

    @functools.cached_property
    def prefills_once(self) -> bool:
        """Whether we may make a pass of our own before `generate`. The kind of the model's cache must be known. Weights
        must not be gathered for each pass, since then all processes must make the same number of passes."""
        trainer = self._trainer
        gathers = trainer.is_fsdp_enabled or (trainer.is_deepspeed_enabled and not self.args.ds3_gather_for_generation)
        return not gathers and can_pack(self._model.config)

    def _continue_once(
        self,
        prefixes: list[list[int]],
        *,
        n: int,
        budgets: list[int],
        most: int,
        limit: int,
        bar: functools.partial,
    ) -> list[Continuation]:
        """One engine call. No process has more prefixes than `most`, nor a larger budget than `limit`.

        TRL's call gives all prompts that one limit: a continuation is cut where it exceeds its own budget.
        """
        trainer, wanted, alone = self._trainer, len(prefixes), self._limits_each_prefix
        # a process without work still takes part, and a shared engine needs equal shares
        missing = max(1 - wanted, 0) if alone or not self.use_vllm else most - wanted
        filler = prefixes[:1] or [[trainer._tokenizer.eos_token_id]]
        prefixes = [*prefixes, *filler * missing]
        budgets = [*budgets, *[1] * missing]
        with contextlib.ExitStack() as stack:
            if alone:
                # vLLM divides by the elapsed time of the bar, which a hidden bar does not measure
                show = False if bar.keywords["disable"] else bar
                llm = PerPrompt(trainer.vllm_generation.llm, n=n, budgets=budgets, show=show)
                stack.enter_context(temporarily(trainer.vllm_generation, llm=llm))
                repeated = prefixes
            else:
                repeated = [prefix for prefix in prefixes for _ in range(n)]
                stack.enter_context(temporarily(trainer, num_generations=n))  # read there by older TRL
                if self.use_vllm:
                    stack.enter_context(temporarily(trainer.vllm_generation, max_completion_length=limit))
                else:
                    stack.enter_context(temporarily(trainer.generation_config, max_new_tokens=limit, max_length=None))
                    stack.enter_context(token_bar(self._model, bar, limit))
                    if n > 1 and self.prefills_once:
                        stack.enter_context(prefilled_once(self._model, n=n))
            count = [n] if GETS_COUNT else []
            ids, logps = trainer._generate_single_turn(repeated, None, {}, *count)
        found = []
        for i in range(wanted * n):
            budget = budgets[i // n]
            known = logps and [math.nan if x is None else x for x in logps[i][:budget]]
            found.append(Continuation(list(ids[i][:budget]), known))
        return found

    # Tokens

    def tokenize(self, prompts: list) -> list[list[int]]:
        """Token ids of prompts, with the chat template where they are conversations."""
        return [list(ids) for ids in self._trainer._tokenize_prompts(prompts)[0]]

    def decode(self, ids: list[int]) -> str:
        """Text of token ids, without special tokens."""
        return self._trainer._tokenizer.decode(ids, skip_special_tokens=True)

    def decode_responses(self, prompts: list, completion_ids: list[list[int]]) -> list:
        """Responses in the form that reward functions get them: texts, or messages where prompts are conversations."""
        if not prompts:
            return []
        tokenizer, is_chat = self._trainer._tokenizer, is_conversational({"prompt": prompts[0]})
        schemas = ("response_template", "response_schema")
        if is_chat and any(getattr(tokenizer, name, None) is not None for name in schemas):
            pairs = zip(completion_ids, self.tokenize(prompts), strict=True)
            return [[parse_response(tokenizer, ids, prefix=prefix)] for ids, prefix in pairs]
        texts = decode_rows(self._trainer.processing_class, completion_ids)
        return [[{"role": "assistant", "content": text}] for text in texts] if is_chat else texts

    def continue_turns(self, places: Sequence[tuple[int, int]], **given: Any) -> tuple[torch.Tensor, list[list[int]]]:
        """Continues conversations of the last batch, see
        [`~trl_credit.trainer.turn_rollouts.TurnRollouts.continue_from`]."""
        return self._turn_rollouts.continue_from(self._conversations, places, **given)

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
        left = self._trainer.max_completion_length - written
        context = (self.use_vllm and self.args.vllm_max_model_length) or self._context
        return left if context is None else min(left, room_after(prompt_length, context) - written)

    @functools.cached_property
    def _context(self) -> int | None:
        return getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
