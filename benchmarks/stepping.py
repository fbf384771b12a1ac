"""Two trainers through the same optimizer steps, alternating: what goes forward, operations, CPU time, memory.

Everything but generation is run: padding, the passes for π_old and the reference, rewards, losses, backward passes,
clipping and AdamW (of learning rate 0, so that both keep the same weights).
"""

import contextlib
import dataclasses
import functools
import random
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import accelerate.utils
import torch
from datasets import Dataset
from memory import peak_bytes
from torch.utils.flop_counter import FlopCounterMode, mm_flop, sdpa_backward_flop_count, sdpa_flop_count
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM, TrainerCallback

from trl_credit import CreditConfig
from trl_credit.demo import demo_model_path
from trl_credit.rollouts.policy import Continuation


# what torch's counter does not know: attention on CPUs, and products added in place (the fused head's backward pass)
MORE_OPERATIONS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda g, q, k, v, *_, **__: sdpa_backward_flop_count(g, q, k, v)
    ),
    torch.ops.aten.addmm_: lambda x, a, b, *_, **__: mm_flop(a, b),
}
Rows = dict[tuple[int, ...], list[list[int]]]  # responses by the ids of their prompt


def reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    return [sum(ids) % 11 / 11 for ids in completion_ids]


def random_model(folder: str, *, hidden: int, layers: int, vocabulary: int) -> str:
    """Saves a random Qwen2 with heads of 32, and a tokenizer that nobody needs but to decode; its folder."""
    torch.manual_seed(0)
    heads = hidden // 32
    config = Qwen2Config(
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        vocab_size=vocabulary,
        max_position_embeddings=16384,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(demo_model_path()).save_pretrained(folder)
    return folder


def tokenize(prompts: list) -> list[list[int]]:
    return [[int(x) for x in prompt.split()] for prompt in prompts]


def continued(trainer: Any, prefixes: list[list[int]], *, n: int, budgets: list[int], **named: Any) -> list:
    vocabulary = trainer.model.config.vocab_size
    continuations = []
    for prefix, budget in zip(prefixes, budgets, strict=True):
        draw = random.Random(repr(prefix))
        continuations += [Continuation([draw.randrange(3, vocabulary) for _ in range(budget)], None) for _ in range(n)]
    return continuations


def planned(trainer_class: type, rows: Rows) -> type:
    """A subclass of the trainer that generates nothing. Responses are `rows`, in their order. Continuations are random
    tokens that depend only on the prefix, as many as its budget allows."""

    class Planned(trainer_class):
        def _tokenize_prompts(self, prompts: list) -> Any:
            return tokenize(prompts), None, {}

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if hasattr(self, "engine"):
                self.engine.tokenize, self.engine.continue_prefixes = tokenize, functools.partial(continued, self)

        def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
            counts: dict[tuple[int, ...], int] = {}
            completions = []
            for ids in map(tuple, prompt_ids):
                counts[ids] = counts.get(ids, -1) + 1
                completions.append(rows[ids][counts[ids]])
            return completions, None

    return Planned


class Measured(NamedTuple):
    """What one trainer needs for a generation batch.

    Attributes:
        tokens: Tokens that go forward in all passes, padding included.
        flops: FLOPs of products and attention.
        peak: Bytes that torch's tensors take at most in the first window, beyond those that were there.
        collectives: Calls of accelerate's `gather`, `reduce` and `gather_object`, which do nothing in one process.
    """

    tokens: int
    flops: int
    peak: int
    collectives: int


class Case:
    """One trainer, ready to step through the same generation batch again and again."""

    def __init__(self, trainer: Any, prompts: list[str]) -> None:
        self.trainer, self.tokens, self.calls = trainer, 0, 0
        self.gradients: list[list[torch.Tensor]] = []
        trainer.create_optimizer()
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
        self._rows = [{"prompt": prompt} for prompt in prompts for _ in range(trainer.args.num_generations)]
        for model in filter(None, (trainer.model, trainer.ref_model)):
            model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        self.tokens += kwargs["input_ids"].numel()

    def batch(self, seed: int, *, windows: int | None = None) -> float:
        """CPU seconds of all optimizer steps of the generation batch, or of the first `windows`."""
        trainer = self.trainer
        window, sync = trainer.args.gradient_accumulation_steps, trainer.accelerator.gradient_state._set_sync_gradients
        count = trainer.args.steps_per_generation if windows is None else windows * window
        torch.manual_seed(seed)
        trainer._step, trainer._buffered_inputs, self.tokens, self.gradients = 0, None, 0, []
        trainer.model.train()
        start = time.process_time()
        for i in range(1, count + 1):
            sync(i % window == 0)
            trainer.training_step(trainer.model, self._rows, None)
            if i % window == 0:
                self.gradients.append([p.grad.clone() for p in trainer.model.parameters()])
                torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
                trainer.optimizer.step()
                trainer.optimizer.zero_grad()
        return time.process_time() - start

    def measure(self, seed: int) -> Measured:
        """Counts that do not depend on time, from two batches, after a step for what a run does only once."""
        self.batch(seed, windows=1)
        with FlopCounterMode(display=False, custom_mapping=MORE_OPERATIONS) as counter, self._counted_collectives():
            self.batch(seed)
        tokens, calls, gradients = self.tokens, self.calls, self.gradients
        peak = peak_bytes(lambda: self.batch(seed, windows=1))
        self.gradients = gradients
        return Measured(tokens, counter.get_total_flops(), peak, calls)

    @contextlib.contextmanager
    def _counted_collectives(self) -> Iterator[None]:
        """Counts the calls that would be collective in several processes."""
        self.calls, original, accelerator = 0, accelerate.utils.gather_object, self.trainer.accelerator

        def counted(call: Any) -> Any:
            def one_more(*args: Any, **kwargs: Any) -> Any:
                self.calls += 1
                return call(*args, **kwargs)

            return one_more

        holders = [m for m in list(sys.modules.values()) if getattr(m, "__dict__", {}).get("gather_object") is original]
        for module in holders:
            module.gather_object = counted(original)
        for name in ("gather", "reduce"):
            setattr(accelerator, name, counted(getattr(accelerator, name)))
        try:
            yield
        finally:
            for module in holders:
                module.gather_object = original
            for name in ("gather", "reduce"):
                delattr(accelerator, name)


class Compared(NamedTuple):
    """Two trainers: what each needs, CPU time of the second over that of the first (the median over pairs that followed
    each other), and the largest difference of their gradients, with the largest of the second's."""

    first: Measured
    second: Measured
    time: float
    difference: float
    size: float


def compare(first: Case, second: Case, *, repeats: int) -> Compared:
    """Steps both, in turns."""
    cases = [first, second]
    measured = [case.measure(seed=0) for case in cases]
    difference = size = 0.0
    seconds: dict[Case, list[float]] = {first: [], second: []}
    for repeat in range(repeats + 1):
        for left, right in zip(first.gradients, second.gradients, strict=True):
            difference = max(difference, *((x - y).abs().max().item() for x, y in zip(left, right, strict=True)))
            size = max(size, *(y.abs().max().item() for y in right))
        if repeat < repeats:
            # the order alternates, so that neither case always runs on the caches that the other left
            for case in cases if repeat % 2 else cases[::-1]:
                seconds[case].append(case.batch(seed=repeat + 1))
    ratios = [y / x for x, y in zip(seconds[first], seconds[second], strict=True)]
    return Compared(*measured, statistics.median(ratios), difference, size)


def ours(**settings: Any) -> dict[str, Any]:
    """Those of the settings that this version of `CreditConfig` has."""
    names = {f.name for f in dataclasses.fields(CreditConfig)}
    return {name: value for name, value in settings.items() if name in names}


def make_case(config_class: type, trainer_class: type, model: str, rows: Rows, **settings: Any) -> Case:
    """A trainer on `rows` with these settings."""
    prompts = [" ".join(map(str, ids)) for ids in rows]
    quiet = {"report_to": "none", "use_cpu": True, "bf16": False, "disable_tqdm": True, "log_level": "error"}
    config = config_class(learning_rate=0.0, **quiet, **settings)
    data = Dataset.from_dict({"prompt": prompts})
    trainer = planned(trainer_class, rows)(model, reward, config, train_dataset=data)
    for callback in list(trainer.callback_handler.callbacks):
        if isinstance(callback, TrainerCallback) and "Printer" in type(callback).__name__:
            trainer.remove_callback(callback)
    return Case(trainer, prompts)
