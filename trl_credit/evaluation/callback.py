"""Evaluation in the course of training."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from torch.distributed.fsdp import FullyShardedDataParallel
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl.models import unwrap_model_for_generation

from .loading import package_versions
from .problems import Problem, load_problems, set_label
from .protocols import Protocol
from .runner import judged, make_jobs, publish, sample_header, sample_path
from .samplers import Sample, TransformersSampler, context_of, problem_seed, token_limits
from .scores import score_row
from .stale import forget_after
from .store import write_samples
from .tables import Row


class EvaluationCallback(TrainerCallback):
    """Evaluates the current weights every n steps and at the end of training, on all processes.

    Responses come from `generate` of transformers, also where training samples with vLLM. The random state of training
    is not touched: responses have random numbers of their own, the same on every layout of processes. Scores are logged
    as `eval_<set>/<metric>`, which Weights & Biases and TensorBoard show as `eval/<set>/<metric>`. The main process
    writes table, JSON, figure and samples to `<output_dir>/evaluation/`, with a row `checkpoint-<step>` per evaluation.
    A resumed run keeps the rows up to its step; a new one in the same folder begins anew.

    Example:

    ```python
    trainer.add_callback(EvaluationCallback(trainer, ["math500"], protocol="spo_long_2k", every_n_steps=50))
    ```

    Args:
        trainer (`Trainer`):
            A trainer of trl_credit or TRL.
        sets (`Sequence[str]`, *optional*):
            As for `evaluate`; `None` for all sets of the protocol.
        protocol (`str`):
            A name of `PROTOCOLS`, or "custom".
        every_n_steps (`int`):
            Optimizer steps between evaluations.
        at_start (`bool`, *optional*, defaults to `False`):
            Whether to evaluate before the first step too.
        data_dir, prompt_style, max_problems, seed (*optional*):
            As for `evaluate`.
        batch_size (`int`, *optional*, defaults to 32):
            Responses at a time on each process.
        changes (*optional*):
            Fields of the protocol to change: `samples=4`, `max_new_tokens=512`, …

    Raises:
        ValueError: wrong input; sets are loaded here, before training begins.
    """

    def __init__(
        self,
        trainer: Trainer,
        sets: Sequence[str] | None = None,
        *,
        protocol: str,
        every_n_steps: int,
        at_start: bool = False,
        data_dir: str | None = None,
        prompt_style: str = "boxed",
        max_problems: int | None = None,
        seed: int = 0,
        batch_size: int = 32,
        **changes: Any,
    ) -> None:
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps must be at least 1, got {every_n_steps}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        processor = trainer.processing_class
        self.trainer = trainer
        self.tokenizer = processor if isinstance(processor, PreTrainedTokenizerBase) else processor.tokenizer
        self.every_n_steps, self.at_start, self.batch_size = every_n_steps, at_start, batch_size
        self.folder = Path(trainer.args.output_dir) / "evaluation"
        self.jobs = make_jobs(sets, [protocol], changes)
        self.problems = {
            job.set_name: load_problems(
                job.set_name,
                self.tokenizer,
                data_dir=data_dir,
                style=prompt_style,
                max_problems=max_problems,
                flag="--evaluate_on",
            )
            for job in self.jobs
        }
        for job in self.jobs:
            prompts = [p.prompt_ids for p in self.problems[job.set_name]]
            token_limits(prompts, job.protocol, context_of(trainer.model.config))
        self.settings = {
            "prompt_style": prompt_style,
            "backend": "transformers",
            "seed": seed,
            "versions": package_versions("transformers"),
        }
        self._last: int | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            forget_after(self.folder, state.global_step)
        self._last = None
        if self.at_start and state.global_step == 0:
            self._evaluate(state, control)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step % self.every_n_steps == 0:
            self._evaluate(state, control)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step != self._last:
            self._evaluate(state, control)

    def _evaluate(self, state: TrainerState, control: TrainerControl) -> None:
        self._last = state.global_step
        seed, accelerator = self.settings["seed"], self.trainer.accelerator
        with generating(self.trainer) as model:
            sampler = TransformersSampler(model, self.tokenizer, batch_size=self.batch_size)
            found = [
                sample_on_all(
                    sampler,
                    self.problems[job.set_name],
                    job.protocol,
                    seeds=[problem_seed(seed, set_label(job.set_name), p.id) for p in self.problems[job.set_name]],
                    rank=accelerator.process_index,
                    world=accelerator.num_processes,
                )
                for job in self.jobs
            ]
        rows = self._write(state.global_step, found) if accelerator.is_main_process else None
        (rows,) = broadcast_object_list([rows])
        logs: dict[str, float] = {}
        for row in rows:
            name = f"eval_{row['set']}"
            logs |= {f"{name}/{metric}": score["value"] for metric, score in row["metrics"].items()}
            strict = row.get("metrics_strict", {})
            logs |= {f"{name}/{metric}_strict": score["value"] for metric, score in strict.items()}
            logs |= {f"{name}/mean_length": row["mean_length_tokens"], f"{name}/truncated": row["truncated_share"]}
        should_log = control.should_log
        # not the trainer's own `log`, which would flush the metrics that belong to its next row of training
        Trainer.log(self.trainer, logs)
        control.should_log = should_log  # any row takes back a row of training that is due at this step

    def _write(self, step: int, found: Sequence[Sequence[Sequence[Sample]]]) -> list[Row]:
        rows = []
        who = {"model": f"checkpoint-{step}", "revision": None, "weights": None, **self.settings}
        for job, samples in zip(self.jobs, found, strict=True):
            problems = self.problems[job.set_name]
            header = {"version": 1, **sample_header(who, job, problems)}
            seeds = [problem_seed(header["seed"], header["set"], p.id) for p in problems]
            lines = judged(problems, seeds, samples, header["reward"])
            write_samples(sample_path(self.folder, who["model"], header["set"], job.label), header, lines)
            rows.append(score_row(header, lines))
        publish(self.folder, rows)
        return rows


def sample_on_all(
    sampler: TransformersSampler,
    problems: Sequence[Problem],
    protocol: Protocol,
    *,
    seeds: Sequence[int],
    rank: int,
    world: int,
) -> list[list[Sample]]:
    """Responses to all problems, generated by all processes together; each of them gets all.

    Every process makes as many calls of `generate` as any other, which sharded weights need: where problems do not
    divide evenly, some are done twice.
    """
    share = -(-len(problems) // world)
    mine = [(rank + i * world) % len(problems) for i in range(share)]
    samples = sampler.sample([problems[i].prompt_ids for i in mine], [seeds[i] for i in mine], protocol)
    by_index = dict(gather_object(list(zip(mine, samples, strict=True))))
    return [by_index[i] for i in range(len(problems))]


@contextmanager
def generating(trainer: Trainer) -> Iterator[PreTrainedModel]:
    """The trainer's model, whole and in evaluation mode; every module is back in its mode afterwards."""
    options = {
        "gather_deepspeed3_params": getattr(trainer.args, "ds3_gather_for_generation", True),
        "gradient_checkpointing_kwargs": trainer.args.gradient_checkpointing_kwargs,  # not in older trl
    }
    known = inspect.signature(unwrap_model_for_generation).parameters
    options = {name: value for name, value in options.items() if name in known}
    wrapped = trainer.model_wrapped
    with (
        unwrap_model_for_generation(wrapped, trainer.accelerator, **options) as model,
        full_parameters(wrapped),
    ):
        modes = {module: module.training for module in model.modules()}
        model.eval()
        try:
            yield model
        finally:
            for module, mode in modes.items():
                module.training = mode


def full_parameters(model: torch.nn.Module) -> AbstractContextManager[None]:
    """For FSDP 1, whose root must be gathered to be called from outside; nothing for any other model."""
    if isinstance(model, FullyShardedDataParallel):
        return FullyShardedDataParallel.summon_full_params(model, recurse=False)
    return nullcontext()
