"""Context managers around single calls of TRL's generation engine."""

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn
from transformers import DynamicCache
from trl import GRPOTrainer


# whether TRL passes the number of samples to its engine call: since 1.15, and in some releases of 1.14
GETS_COUNT = "num_generations" in inspect.signature(GRPOTrainer._generate_single_turn).parameters


class Replaced:
    """An object with some attributes replaced: a trainer for passes over another model, or an engine for one call."""

    def __init__(self, owner: Any, **attributes: Any) -> None:
        self._owner = owner
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._owner, name)


def per_prompt(llm: Any, *, n: int, budgets: Sequence[int]) -> Replaced:
    """TRL's colocated vLLM for one call: `n` samples per request, and a token budget for each."""

    def generate(prompts: list, sampling_params: Any, **kwargs: Any) -> Any:
        sampling = [sampling_params.clone() for _ in budgets]
        for params, budget in zip(sampling, budgets, strict=True):
            params.n, params.max_tokens = n, budget
        return llm.generate(prompts, sampling_params=sampling, **kwargs)

    return Replaced(llm, generate=generate)


@contextlib.contextmanager
def temporarily(owner: Any, **attributes: Any) -> Iterator[None]:
    """Sets attributes of an object, and restores them."""
    before = {name: vars(owner)[name] for name in attributes if name in vars(owner)}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in attributes:
            setattr(owner, name, before[name]) if name in before else delattr(owner, name)


@contextlib.contextmanager
def prefilled_once(model: nn.Module, *, n: int) -> Iterator[None]:
    """A context in which `generate` of a decoder reads a prompt once if it is given `n` times in a row.

    All but the last token of a prompt goes forward once, and its cache is repeated. Other calls are unchanged: prompts
    of a single token, caches that do not grow, inputs besides tokens.
    """
    original = model.generate

    def generate(*args: Any, **kwargs: Any) -> Any:
        ids, mask = kwargs.get("input_ids"), kwargs.get("attention_mask")
        config = kwargs.get("generation_config")
        grows = config is not None and config.use_cache is not False and config.cache_implementation is None
        known = {"input_ids", "attention_mask", "generation_config", "disable_compile"}
        if args or set(kwargs) - known or ids is None or mask is None or not grows or ids.size(1) == 1:
            return original(*args, **kwargs)
        if len(ids) % n or any((x != x[::n].repeat_interleave(n, 0)).any() for x in (ids, mask)):
            return original(**kwargs)
        cache, columns, once = DynamicCache(config=model.config), slice(ids.size(1) - 1), mask[::n]
        positions = (once.cumsum(-1) - 1).clamp(min=0)  # as `generate` counts: without padding
        inputs = {"input_ids": ids[::n], "attention_mask": once, "position_ids": positions}
        inputs = {name: x[:, columns] for name, x in inputs.items()}
        model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache.batch_repeat_interleave(n)
        return original(**kwargs, past_key_values=cache)

    with temporarily(model, generate=generate):
        yield


@contextlib.contextmanager
def engine_awake(trainer: GRPOTrainer) -> Iterator[None]:
    """Keeps a colocated vLLM with sleep mode awake for all calls of one generation batch: one weight sync."""
    engine = trainer.vllm_generation if trainer.use_vllm and trainer.vllm_mode == "colocate" else None
    if engine is None or not engine.enable_sleep_mode:
        yield
        return
    engine.sync_weights()  # wakes the weights first
    trainer._last_loaded_step = trainer.state.global_step
    engine.llm.wake_up(tags=["kv_cache"])
    engine._llm_weights_sleeping = False
    try:
        with temporarily(engine, enable_sleep_mode=False):
            yield
    finally:
        engine.llm.sleep(level=2)
        engine._llm_weights_sleeping = True
