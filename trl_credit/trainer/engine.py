"""What rollouts ask of TRL: to continue prefixes with whatever engine it generates with, and to score responses.

With `trainer.py` the only module that names anything private of TRL.
"""

import contextlib
import functools
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import trl
from packaging.version import Version
from tqdm.auto import tqdm
from trl import GRPOTrainer
from trl.chat_template_utils import parse_response
from trl.data_utils import is_conversational
from trl.trainer.utils import pad

from ..rollouts.replay import Row
from ..rollouts.tree import Continuation


PROGRESS_DELAY = 4.0  # seconds before a progress bar of rollouts appears
# what TRL's forward pass takes besides tokens, for models with images
_FORWARD_KEYS = (
    "pixel_values",
    "image_grid_thw",
    "num_images",
    "pixel_attention_mask",
    "spatial_shapes",
    "num_tiles",
    "image_sizes",
    "token_type_ids",
    "mm_token_type_ids",
    "image_position_ids",
)


class _PerPrompt:
    """Stands in for TRL's colocated vLLM during one call: `n` samples per request, and a token budget for each."""

    def __init__(self, llm: Any, *, n: int, budgets: Sequence[int], show: Any) -> None:
        self._llm, self._n, self._budgets, self._show = llm, n, budgets, show

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    def generate(self, prompts: list, sampling_params: Any, **kwargs: Any) -> Any:
        own = []
        for budget in self._budgets:
            own.append(sampling_params.clone())
            own[-1].n, own[-1].max_tokens = self._n, budget
        return self._llm.generate(prompts, sampling_params=own, **{**kwargs, "use_tqdm": self._show})


@contextlib.contextmanager
def _temporarily(owner: Any, **attributes: Any) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


class RolloutEngine(GRPOTrainer):
    """[`~trl.GRPOTrainer`] with the calls that [`chain_credit`] and [`Forest`] make of it. Trains as TRL does."""

    _planned: Any = None  # what a tree puts in the place of TRL's generation
    _phases: dict[str, float]
    _engine_logps: list[list[float]] | None = None  # of the batch that TRL is making

    def continue_prefixes(
        self, prefixes: list[list[int]], *, n: int, budgets: list[int], label: str = "rollouts"
    ) -> list[Continuation]:
        """`n` continuations of every prefix of token ids, those of one prefix together, by the policy as it is.

        One engine call, or as many as `rollout_batch_size` asks for. Every process must call it, with as many prefixes
        as it has (none is allowed).

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
        chunks = range(0, self.largest(-(-len(prefixes) // size)) * size, size)
        found: list[Continuation] = []
        hidden = self.args.disable_tqdm or not self.accelerator.is_main_process
        bar = functools.partial(tqdm, desc=label, leave=False, delay=PROGRESS_DELAY, disable=hidden)
        for i in chunks:
            part = slice(i, i + size)
            found += self._continue_once(prefixes[part], n=n, budgets=budgets[part], bar=bar)
        return found

    def _continue_once(
        self, prefixes: list[list[int]], *, n: int, budgets: list[int], bar: functools.partial
    ) -> list[Continuation]:
        wanted = len(prefixes)
        alone = self.use_vllm and self.vllm_mode == "colocate" and self.args.vllm_tensor_parallel_size == 1
        # a process without work takes part all the same, and a shared engine deals out equal shares
        missing = max(1 - wanted, 0) if alone or not self.use_vllm else self.largest(wanted) - wanted
        filler = prefixes[:1] or [[self._tokenizer.eos_token_id]]
        prefixes = [*prefixes, *filler * missing]
        budgets = [*budgets, *[1] * missing]
        # TRL's call gives all prompts one limit: what a continuation has beyond its own budget is cut off
        limit = self.largest(max(budgets))
        with contextlib.ExitStack() as stack:
            if alone:
                # vLLM divides by the time of the bar, which a hidden one does not keep
                show = False if bar.keywords["disable"] else bar
                llm = _PerPrompt(self.vllm_generation.llm, n=n, budgets=budgets, show=show)
                stack.enter_context(_temporarily(self.vllm_generation, llm=llm))
                repeated = prefixes
            else:
                repeated = [prefix for prefix in prefixes for _ in range(n)]
                stack.enter_context(_temporarily(self, num_generations=n))  # read there before TRL 1.15
                if self.use_vllm:
                    stack.enter_context(_temporarily(self.vllm_generation, max_completion_length=limit))
                else:
                    stack.enter_context(_temporarily(self.generation_config, max_new_tokens=limit))
                    stack.enter_context(self._token_bar(bar, limit))
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

    @contextlib.contextmanager
    def _token_bar(self, bar: functools.partial, limit: int) -> Iterator[None]:
        """A bar that advances with every token position: all that can be seen of one call of `generate`."""
        with bar(total=limit, unit="token") as shown:
            model = self.accelerator.unwrap_model(self.model)

            def advance(*_: Any) -> None:  # whatever a hook returns would take the place of the model's arguments
                shown.update()

            handle = model.register_forward_pre_hook(advance)
            try:
                yield
            finally:
                handle.remove()

    @contextlib.contextmanager
    def _engine_awake(self) -> Iterator[None]:
        """Keeps a colocated vLLM with sleep mode awake for all calls of one generation batch: one weight sync."""
        engine = self.vllm_generation if self.use_vllm and self.vllm_mode == "colocate" else None
        if engine is None or not engine.enable_sleep_mode:
            yield
            return
        engine.sync_weights()  # wakes the weights first
        self._last_loaded_step = self.state.global_step
        engine.llm.wake_up(tags=["kv_cache"])
        engine._llm_weights_sleeping = False
        try:
            with _temporarily(engine, enable_sleep_mode=False):
                yield
        finally:
            engine.llm.sleep(level=2)
            engine._llm_weights_sleeping = True

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
        aligned = self.args.gradient_accumulation_steps % (self.args.steps_per_generation * self.num_iterations) == 0
        makes_one = not aligned or self.vllm_importance_sampling_correction
        if self.args.behavior_logps == "sampler" and makes_one:
            self._engine_logps = logps
        return ids, logps

    def score_responses(self, examples: list[dict[str, Any]], completion_ids: list[list[int]]) -> torch.Tensor:
        """Rewards by function, shape (n, functions), of responses to the prompts of rows of the data set.

        Left out of the metrics of rewards. Every process must call it; the processes with fewer responses score some
        of them again, so that all gather equal shapes.

        Args:
            examples (`list[dict]`):
                Rows of the data set, one per response and at least one.
            completion_ids (`list[list[int]]`):
                Whole responses. May be empty where another process has some.
        """
        own, count = len(completion_ids), self.largest(len(completion_ids))
        if count == 0:
            return torch.zeros(0, len(self.reward_funcs), device=self.accelerator.device)
        ids = [*completion_ids, *(completion_ids[:1] or [[self._tokenizer.eos_token_id]]) * (count - own)]
        examples = [*examples[:own], *examples[:1] * (count - own)]
        prompts = [example["prompt"] for example in examples]
        with self.timed("rewards"):
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

    def row_logps(self, rows: Sequence[Row]) -> list[tuple[float, ...]]:
        """Log-probabilities (nats) of the completions of rows under the policy as it is. Every process must call it."""
        size = self.args.per_device_train_batch_size
        found: list[tuple[float, ...]] = []
        filler = Row("", (self._tokenizer.eos_token_id,), (self._tokenizer.eos_token_id,), (0.0,), (-1,))
        for i in range(0, self.largest(len(rows)), size):
            part = list(rows[i : i + size])
            batch = self._padded(part or [filler])
            if self.args.tree_rows == "packed":
                input_ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
                visible = self._visibility(part or [filler], input_ids, batch["completion_ids"].size(1))
                batch["token_type_ids"] = visible
            logps = self._behavior_logps(batch).tolist()
            found += [tuple(logp[: len(row.completion_ids)]) for row, logp in zip(part, logps)]  # noqa: B905
        return found

    def _padded(self, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
        batch = {}
        for name, side in (("prompt", "left"), ("completion", "right")):
            ids = [torch.tensor(getattr(row, f"{name}_ids")) for row in rows]
            for key, parts, value in (
                ("ids", ids, self._tokenizer.pad_token_id),
                ("mask", [torch.ones_like(x) for x in ids], 0),
            ):
                padded = pad(parts, padding_value=value, padding_side=side)
                batch[f"{name}_{key}"] = padded.to(self.accelerator.device)
        return batch

    def _visibility(self, rows: Sequence[Row], input_ids: torch.Tensor, completion_width: int) -> torch.Tensor:
        """`visible_until` of rows in the columns of a padded batch, shape (B, P + T): what TRL hands to the model as
        `token_type_ids`, and [`tree_attention`] makes a mask of."""
        visible = torch.zeros_like(input_ids)
        begin = input_ids.size(1) - completion_width  # of the completions
        for i, row in enumerate(rows):
            left, width = begin - len(row.prompt_ids), len(row.prompt_ids) + len(row.completion_ids)
            until = row.visible_until or [width] * width
            visible[i, left : left + width] = left + torch.tensor(until, device=visible.device)
        return visible

    def largest(self, n: int) -> int:
        """The largest `n` of all processes; a collective call."""
        return int(self.accelerator.gather(torch.tensor([n], device=self.accelerator.device)).max())

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Adds the seconds inside to those of a phase, less those of phases inside it; logged where rollouts are on."""
        start, before = time.perf_counter(), sum(self._phases.values())
        try:
            yield
        finally:
            inner = sum(self._phases.values()) - before
            self._phases[phase] = self._phases.get(phase, 0.0) + time.perf_counter() - start - inner

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
            **{key: output[key] for key in _FORWARD_KEYS if key in output},
        )[0]

    def total_reward(self, rewards_per_func: torch.Tensor) -> torch.Tensor:
        """Weighted sum of the reward functions, shape (N, functions) → (N,); NaN where none of them applies."""
        weighted = rewards_per_func * self.reward_weights.to(rewards_per_func.device)
        return weighted.nansum(1).masked_fill(rewards_per_func.isnan().all(1), torch.nan)

    def _check_finite(self, rewards_per_func: torch.Tensor) -> None:
        if torch.isinf(rewards_per_func).any():
            column = torch.isinf(rewards_per_func).any(0).nonzero()[0].item()
            raise ValueError(f"reward {self.reward_func_names[column]!r} is infinite: rewards must be finite.")

    def record(self, stats: dict[str, tuple[Any, Any]]) -> None:
        """Logs `credit/<name>` = Σ numerators / Σ denominators over all processes, by one collective call.

        All processes must give the same names in the same order. Where a denominator is 0 nothing is logged.
        """
        device = self.accelerator.device
        parts = [torch.as_tensor(part, device=device).detach().float() for pair in stats.values() for part in pair]
        sums = self.accelerator.reduce(torch.stack(parts), reduction="sum").view(-1, 2)
        metrics = self._metrics["train" if self.model.training else "eval"]
        for name, value in zip(stats, (sums[:, 0] / sums[:, 1]).tolist(), strict=True):
            metrics[f"credit/{name}"].append(value)  # 0/0 is NaN: no such token, left out of the mean by TRL
