"""Trains a case: the real trainers and a tiny model, whose responses are a function of what they follow."""

import contextlib
import functools
import io
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from tiny_models import CHARACTERS, tiny_qwen3
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer
from warm_start import make_tokenizer

from trl_credit.config import defaults

from .configurations import FIXED, PAIRS, Case, updates


EOS, FIRST, WRITTEN = 1, 3, 8  # ids of the end and of the first character; how many characters are written
PROMPTS = [f"{'1234567'[: 3 * (i % 3) + 1]}{'+-'[i % 2]}{i}=" for i in range(48)]


class Refused(Exception):
    """The trainer does not take a configuration that the configuration class has taken."""


@dataclass(frozen=True)
class Trained:
    """What a training has changed: all weights in a row, and the rewards that it logged by step and name."""

    change: torch.Tensor
    rewards: dict[tuple[int, str], float]


def save_model(folder: str) -> None:
    tokenizer = make_tokenizer(CHARACTERS)
    tokenizer.save_pretrained(folder)
    tiny_qwen3(tokenizer).save_pretrained(folder)


def train(case: Case, model_folder: str) -> Trained:
    """Trains in float64: rounding is then far below what the equalities allow."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        if case.resumes:
            case = case.with_settings(save_strategy="steps", save_steps=1)
            _trainer(case, model_folder, folder).train()
        trainer = _trainer(case, model_folder, folder)
        before = _weights(trainer)
        checkpoint = os.path.join(folder, f"checkpoint-{updates(trainer.args)}")
        trainer.train(resume_from_checkpoint=checkpoint if case.resumes else None)
        if trainer.state.global_step != trainer.args.max_steps:
            raise AssertionError(f"{trainer.state.global_step} updates were made, not {trainer.args.max_steps}")
        rows = [(row["step"], name, x) for row in trainer.state.log_history for name, x in row.items()]
        return Trained(_weights(trainer) - before, {(i, name): x for i, name, x in rows if name.startswith("reward")})


def _weights(trainer: GRPOTrainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters() if p.requires_grad])


def _trainer(case: Case, model_folder: str, folder: str) -> GRPOTrainer:
    args, trainer_class = case.config(folder), PAIRS[case.algo][1]
    if case.stock:
        plain, ours = defaults(GRPOConfig), defaults(PAIRS[case.algo][0])
        preset = {name: x for name, x in ours.items() if name in plain and x != plain[name]}
        settings = preset | FIXED | {name: x for name, x in case.settings.items() if name in plain}
        args, trainer_class = GRPOConfig(folder, **settings), GRPOTrainer
    torch.manual_seed(0)  # of the adapter
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).double()
    model.generate = MethodType(functools.partial(_generate, reverses=case.reverses), model)
    kwargs = {"rollout_func": functools.partial(_talk, reverses=case.reverses)} if case.talks else {}
    if case.lora:
        kwargs["peft_config"] = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj"], init_lora_weights=False)
    data = Dataset.from_dict({"prompt": PROMPTS})
    try:
        trainer = trainer_class(model, rewards_of(case), args, data, **kwargs)
    except (ValueError, NotImplementedError) as error:  # TRL raises either
        raise Refused(str(error)) from error
    for one in filter(None, (trainer.model, trainer.ref_model)):
        one.double()
    if not case.stock:
        trainer.results.writes_at_end = False  # cards and plots
    return trainer


def rewards_of(case: Case) -> list[Callable]:
    """Multiples of 1/8. The first is 0 for a third of the prompts, so that there are groups without signal."""

    def first(prompts: list[str], completions: list[str], **kwargs: Any) -> list[float]:
        pairs = zip(prompts, completions, strict=True)
        return [case.shift + (int(p[1:2].isdigit()) and _sum(text) % 5 / 4) for p, text in pairs]

    def second(completions: list[str], **kwargs: Any) -> list[float | None]:
        leaves_out = case.rewards == "none"
        return [None if leaves_out and len(text) % 3 == 0 else _sum(text) % 8 / 8 for text in completions]

    def steps(completions: list[str], **kwargs: Any) -> list[list[tuple[int, float]]]:
        """One at every second character."""
        return [[(end, _sum(text[:end]) % 5 / 4) for end in range(2, len(text) + 1, 2)] for text in completions]

    return {"one": [first], "steps": [steps]}.get(case.rewards, [first, second])


def _sum(text: str) -> int:
    return sum(map(ord, text))


def _written(prefix: tuple[int, ...], number: int, limit: int) -> list[int]:
    """Response `number` to a prefix; a smaller limit only cuts it."""
    rng, ids = random.Random(f"{prefix} {number}"), []
    while len(ids) < limit and EOS not in ids:
        ids.append(EOS if rng.random() < 0.12 else rng.randrange(FIRST, FIRST + WRITTEN))
    return ids


def _responses(prefixes: list[tuple[int, ...]], limit: int, reverses: bool) -> list[list[int]]:
    """The k-th time that a prefix occurs, it is followed by response k; with `reverses` the last one comes first."""
    counts, seen, rows = Counter(prefixes), Counter(), []
    for prefix in prefixes:
        number = counts[prefix] - 1 - seen[prefix] if reverses else seen[prefix]
        rows.append(_written(prefix, number, limit))
        seen[prefix] += 1
    return rows


def _generate(model: Any, *, input_ids: torch.Tensor, attention_mask: torch.Tensor, reverses: bool, **kwargs: Any):
    """In place of transformers' `generate`."""
    prefixes = [tuple(row[kept].tolist()) for row, kept in zip(input_ids, attention_mask.bool(), strict=True)]
    rows = _responses(prefixes, kwargs["generation_config"].max_new_tokens, reverses)
    width = max(map(len, rows))
    written = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=input_ids.device)
    return torch.cat([input_ids, written], 1)


def _talk(prompts: list[str], trainer: GRPOTrainer, *, reverses: bool) -> dict[str, list]:
    """A `rollout_func`: in every response the policy did not write the tokens 3 and 4, if it has as many."""
    prefixes = [tuple(trainer.processing_class(prompt)["input_ids"]) for prompt in prompts]
    rows = _responses(prefixes, trainer.args.max_completion_length, reverses)
    masks = [[int(k not in (3, 4) or k == len(row) - 1) for k in range(len(row))] for row in rows]
    return {"prompt_ids": list(map(list, prefixes)), "completion_ids": rows, "logprobs": None, "env_mask": masks}
