"""What the sources of a batch ask of TRL: to sample a batch, to continue prefixes, to score responses."""

import contextlib
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
import trl
from accelerate.logging import get_logger
from packaging.version import Version
from tqdm.auto import tqdm
from trl.chat_template_utils import parse_response
from trl.data_utils import is_conversational

from ..config import CreditConfig
from ..rollouts.behavior import can_pack
from ..rollouts.policy import Continuation, Planned
from ..rollouts.replay import Row
from ..rollouts.rows import padded_columns, visible_columns
from .batches import FORWARD_KEYS, Batch, known_or, segment_ratio
from .engine_calls import PerPrompt, prefilled_once, temporarily, token_bar
from .measured import MeasuredTrainer


logger = get_logger(__name__)

PROGRESS_DELAY = 4.0  # seconds before a progress bar of rollouts appears


class RolloutEngine(MeasuredTrainer):
    """[`~trl.GRPOTrainer`] that is a [`~trl_credit.rollouts.policy.Policy`] as well. Trains as TRL does.

    Args:
        args ([`CreditConfig`]):
            Its knobs of rollouts are read, and `behavior_logps`.
        *others, **kwargs:
            Passed to `GRPOTrainer` unchanged.
    """

    def __init__(self, model: Any, reward_funcs: Any, args: CreditConfig, *others: Any, **kwargs: Any) -> None:
        self._planned: Planned | None = None  # what takes the place of TRL's generation
        self._engine_logps: list[list[float | None]] | None = None  # of the batch that TRL is making
        self._gathered_rewards: torch.Tensor | None = None
        super().__init__(model, reward_funcs, args, *others, **kwargs)

    # Batches

    def sample(self, inputs: list[dict[str, Any]], *, planned: Planned | None = None) -> Batch:
        """TRL's batch of rows of the data set, or of `planned` rows in the place of what it would generate.

        With `behavior_logps="sampler"` π_old is the engine's own.
        """
        self._gathered_rewards, self._planned = None, planned
        try:
            with self.timed("generate"):
                output = super()._generate_and_score_completions(inputs)
        finally:
            self._engine_logps = self._planned = None
        if self._gathered_rewards is None:
            raise RuntimeError(f"trl {trl.__version__} scored completions without _calculate_rewards: not supported.")
        rewards = self._gathered_rewards
        batch = Batch(output, self.total_reward(rewards), self.correct_reward(rewards), self.rank)
        self.log_reward_range(batch.rewards)
        if self.args.behavior_logps == "sampler":
            if batch.sampling_logp_t is not None:
                if self.largest(int(batch.sampling_logp_t.isnan().any())):
                    self.fill_old_logps(batch)  # for what the engine did not know
                batch.old_logp_t = known_or(batch.sampling_logp_t, batch.old_logp_t)
            if batch.engine_ratio_t is not None:  # π_old is what sampled: nothing to correct
                batch.engine_ratio_t = torch.ones_like(batch.engine_ratio_t)
        return batch

    def fill_old_logps(self, batch: Batch) -> None:
        """Makes the pass for π_old, which TRL skips when the policy cannot have moved. Collective."""
        if batch.old_logp_t is None:
            batch.old_logp_t = self._behavior_logps(batch.data)

    def correct_by_segment(self, batch: Batch) -> None:
        """TRL's correction for the engine, over each segment in the place of each row."""
        batch.engine_ratio_t = segment_ratio(
            batch.old_logp_t,
            batch.sampling_logp_t,
            segment_ids=batch.segment_ids,
            mode=self.vllm_importance_sampling_mode,
            low=self.vllm_importance_sampling_clip_min,
            high=self.vllm_importance_sampling_clip_max,
        )

    def _take_engine_logps(self, args: tuple) -> torch.Tensor | None:
        """The engine's log-probabilities in the place of TRL's pass for π_old, shape (B, T), if they are to be taken
        and all of them are known on all processes. `args` are those of that pass."""
        logps, self._engine_logps = self._engine_logps, None
        if logps is None:
            return None
        width = args[2]
        padded = torch.zeros(len(logps), width, device=self.device)
        for row, values in zip(padded, logps, strict=True):
            row[: len(values)] = torch.tensor([math.nan if x is None else x for x in values])
        if self.largest(int(padded.isnan().any())):
            logger.warning("the engine did not give all log-probabilities: π_old is computed for this batch")
            return None
        return padded

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self._planned is not None:  # the rows are segments; what is logged are the responses they come from
            rewards_per_func = self._planned.rewards.to(self.device)
        else:
            rewards_per_func = super()._calculate_rewards(*args, **kwargs)
        self._check_finite(rewards_per_func)
        self._gathered_rewards = rewards_per_func
        return rewards_per_func

    # Continuations

    def continue_prefixes(
        self, prefixes: list[list[int]], *, n: int, budgets: list[int], label: str = "rollouts"
    ) -> list[Continuation]:
        """`n` continuations of every prefix of token ids, those of one prefix together, by the policy as it is.

        One engine call, or as many as `rollout_batch_size` asks for: then the prefixes that may be continued longest
        come first where an engine decodes all of a call until the last one ends, and the results are put back in order.
        Every process must call it, with as many prefixes as it has (none is allowed).

        Args:
            prefixes (`list[list[int]]`):
                Token ids, as they are: nothing is tokenised again.
            n (`int`):
                Continuations per prefix.
            budgets (`list[int]`):
                Tokens that the continuations of each prefix may have, at least 1.

        Returns:
            `list` of [`Continuation`], `n · len(prefixes)` of them.
        """
        size = max(1, (self.args.rollout_batch_size or n * max(len(prefixes), 1)) // n)
        own = [-(-len(prefixes) // size), min(size, len(prefixes)), max(budgets, default=1)]
        count, *most = self.all_largest(own)
        order = list(range(len(prefixes)))
        if count > 1 and not self._has_own_limits:
            order.sort(key=lambda i: -budgets[i])
        parts = [order[i : i + size] for i in range(0, count * size, size)]
        if count > 1:
            most = self.all_largest([x for p in parts for x in (len(p), max((budgets[k] for k in p), default=1))])
        found: list[list[Continuation]] = [[]] * len(prefixes)
        hidden = self.args.disable_tqdm or not self.accelerator.is_main_process
        bar = functools.partial(tqdm, desc=label, leave=False, delay=PROGRESS_DELAY, disable=hidden)
        for part, wanted, limit in zip(parts, most[::2], most[1::2], strict=False):
            given = {"n": n, "budgets": [budgets[k] for k in part], "most": wanted, "limit": limit}
            written = self._continue_once([prefixes[k] for k in part], **given, bar=bar)
            for place, k in enumerate(part):
                found[k] = written[place * n : (place + 1) * n]
        return [continuation for of_prefix in found for continuation in of_prefix]

    @property
    def _has_own_limits(self) -> bool:
        """Whether every prefix of an engine call has its own limit of tokens, in the place of one for all."""
        return self.use_vllm and self.vllm_mode == "colocate" and self.args.vllm_tensor_parallel_size == 1

    @functools.cached_property
    def _prefills_once(self) -> bool:
        """Whether passes of our own may come before those of `generate`: the model is one whose cache is known to us,
        and no weights are gathered for each pass, of which all processes would have to make as many."""
        gathers = self.is_fsdp_enabled or (self.is_deepspeed_enabled and not self.args.ds3_gather_for_generation)
        return not gathers and can_pack(self.accelerator.unwrap_model(self.model).config)

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
        """By one engine call. No process has more prefixes than `most`, nor a larger budget than `limit`.

        TRL's call gives all prompts that one limit: what a continuation has beyond its own budget is cut off.
        """
        wanted = len(prefixes)
        alone = self._has_own_limits
        # a process without work takes part all the same, and a shared engine deals out equal shares
        missing = max(1 - wanted, 0) if alone or not self.use_vllm else most - wanted
        filler = prefixes[:1] or [[self._tokenizer.eos_token_id]]
        prefixes = [*prefixes, *filler * missing]
        budgets = [*budgets, *[1] * missing]
        with contextlib.ExitStack() as stack:
            if alone:
                # vLLM divides by the time of the bar, which a hidden one does not keep
                show = False if bar.keywords["disable"] else bar
                llm = PerPrompt(self.vllm_generation.llm, n=n, budgets=budgets, show=show)
                stack.enter_context(temporarily(self.vllm_generation, llm=llm))
                repeated = prefixes
            else:
                repeated = [prefix for prefix in prefixes for _ in range(n)]
                stack.enter_context(temporarily(self, num_generations=n))  # read there before TRL 1.15
                if self.use_vllm:
                    stack.enter_context(temporarily(self.vllm_generation, max_completion_length=limit))
                else:
                    stack.enter_context(temporarily(self.generation_config, max_new_tokens=limit))
                    model = self.accelerator.unwrap_model(self.model)
                    stack.enter_context(token_bar(model, bar, limit))
                    if n > 1 and self._prefills_once:
                        stack.enter_context(prefilled_once(model, n=n))
            count = [n] if Version(trl.__version__) >= Version("1.15") else []
            ids, logps = super()._generate_single_turn(repeated, None, {}, *count)
        if len(ids) != len(prefixes) * n:
            raise RuntimeError(
                f"the generation engine returned {len(ids)} continuations, not {len(prefixes) * n}: see its messages "
                "above, and lower rollout_batch_size if it ran out of memory."
            )
        found = []
        for i in range(wanted * n):
            budget = budgets[i // n]
            known = None if logps is None else [math.nan if x is None else x for x in logps[i][:budget]]
            found.append(Continuation(list(ids[i][:budget]), known))
        return found

    def _tokenize_prompts(self, prompts: list) -> Any:
        if self._planned is not None:
            return [list(row.prompt_ids) for row in self._planned.rows], None, {}
        return super()._tokenize_prompts(prompts)

    def tokenize(self, prompts: list) -> list[list[int]]:
        """Token ids of prompts, with the chat template where they are conversations."""
        return [list(ids) for ids in super()._tokenize_prompts(prompts)[0]]

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        if self._planned is not None:
            rows = self._planned.rows
            logps = None if rows[0].sampling_logps is None else [list(row.sampling_logps) for row in rows]
            ids = [list(row.completion_ids) for row in rows]
        else:
            ids, logps = super()._generate_single_turn(*args, **kwargs)
        # TRL's next forward pass is that for π_old, but where it makes none
        makes_one = not self.args.is_aligned or self.vllm_importance_sampling_correction
        if self.args.behavior_logps == "sampler" and makes_one:
            self._engine_logps = logps
        return ids, logps

    def score_responses(
        self, examples: list[dict[str, Any]], completion_ids: list[list[int]], *, most: int | None = None
    ) -> torch.Tensor:
        """Rewards by function, shape (n, functions), of responses to the prompts of rows of the data set.

        Left out of the metrics of rewards. Every process must call it; the processes with fewer responses score some
        of them again, so that all gather equal shapes.

        Args:
            examples (`list[dict]`):
                Rows of the data set, one per response and at least one.
            completion_ids (`list[list[int]]`):
                Whole responses. May be empty where another process has some.
            most (`int`, *optional*):
                The largest number of responses of a process, where that is known: saves a collective call.
        """
        own = len(completion_ids)
        count = self.largest(own) if most is None else most
        if count == 0:
            return torch.zeros(0, len(self.reward_funcs), device=self.accelerator.device)
        ids = [*completion_ids, *(completion_ids[:1] or [[self._tokenizer.eos_token_id]]) * (count - own)]
        examples = [*examples[:own], *examples[:1] * (count - own)]
        prompts = [example["prompt"] for example in examples]
        rewards = super()._calculate_rewards(examples, prompts, self.decode_responses(prompts, ids), ids)
        self._check_finite(rewards)
        self._pending_extra_logs.clear()  # columns of the table of completions, which has other rows
        self._pending_metrics.clear()
        start = self.accelerator.process_index * count
        return rewards[start : start + own]

    def decode_responses(self, prompts: list, completion_ids: list[list[int]]) -> list:
        """Responses in the form that reward functions get them: texts, or messages where prompts are conversations."""
        if not prompts:
            return []
        if not is_conversational({"prompt": prompts[0]}):
            return self.processing_class.batch_decode(completion_ids, skip_special_tokens=True)
        schemas = ("response_template", "response_schema")
        if any(getattr(self._tokenizer, name, None) is not None for name in schemas):
            prompt_ids = self.tokenize(prompts)
            return [
                [parse_response(self._tokenizer, ids, prefix=prefix)]
                for ids, prefix in zip(completion_ids, prompt_ids, strict=True)
            ]
        texts = self.processing_class.batch_decode(completion_ids, skip_special_tokens=True)
        return [[{"role": "assistant", "content": text}] for text in texts]

    def decode(self, ids: list[int]) -> str:
        """Text of token ids, without special tokens."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def is_finished(self, ids: list[int], budget: int) -> bool:
        """Whether a continuation ended by itself: at an end token, or (a stop string) before its budget did."""
        return len(ids) < budget or ids[-1] in self._end_tokens

    @functools.cached_property
    def _end_tokens(self) -> frozenset[int]:
        declared = self.accelerator.unwrap_model(self.model).generation_config.eos_token_id
        declared = declared if isinstance(declared, list) else [declared]
        return frozenset([*declared, self._tokenizer.eos_token_id])  # a sampled pad token ends nothing

    def remaining_budget(self, prompt_length: int, written: int) -> int:
        """Tokens that may be written after `written` of a response: `max_completion_length` and the context allow."""
        left = self.max_completion_length - written
        context = self.args.vllm_max_model_length if self.use_vllm else None
        if context is None:
            config = self.accelerator.unwrap_model(self.model).config.get_text_config()
            context = getattr(config, "max_position_embeddings", None)
        return left if context is None else min(left, context - prompt_length - written)

    def row_logps(self, rows: Sequence[Row], *, at_once: int) -> list[list[float]]:
        """See [`~trl_credit.rollouts.policy.Policy`]. Rows of about one length go together, and no pass is padded for
        those of another."""
        order = sorted(range(len(rows)), key=lambda i: (len(rows[i].completion_ids), len(rows[i].prompt_ids)))
        found: list[list[float]] = [[]] * len(rows)
        filler = Row("", (self._tokenizer.eos_token_id,), (self._tokenizer.eos_token_id,), (0.0,), (-1,))
        for i in range(0, self.largest(-(-len(rows) // at_once)) * at_once, at_once):
            part = order[i : i + at_once]
            logps = self._behavior_logps(self._padded([rows[k] for k in part] or [filler])).tolist()
            for k, logp in zip(part, logps):  # noqa: B905
                found[k] = logp[: len(rows[k].completion_ids)]
        return found

    def _padded(self, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
        """Rows as TRL pads them, with what their branches see where they have any."""
        batch = {}
        for name, side in (("prompt", "left"), ("completion", "right")):
            columns = [getattr(row, f"{name}_ids") for row in rows]
            ids, mask = padded_columns(columns, value=self._tokenizer.pad_token_id, side=side)
            batch[f"{name}_ids"], batch[f"{name}_mask"] = ids, mask
        if any(row.visible_until is not None for row in rows):
            widths = batch["prompt_ids"].size(1), batch["completion_ids"].size(1)
            batch["token_type_ids"] = visible_columns(rows, prompt_width=widths[0], width=widths[1])
        return {name: tensor.to(self.accelerator.device) for name, tensor in batch.items()}

    @torch.no_grad()
    def _behavior_logps(self, output: dict[str, Any]) -> torch.Tensor:
        training = self.model.training
        batch_size = self.args.per_device_train_batch_size if training else self.args.per_device_eval_batch_size
        return self._get_per_token_logps_and_entropies(
            self.model,
            torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1),
            torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1),
            output["completion_ids"].size(1),
            batch_size=batch_size,
            **{key: output[key] for key in FORWARD_KEYS if key in output},
        )[0]
