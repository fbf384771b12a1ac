"""Evaluation during training."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from accelerate.utils import broadcast_object_list, gather_object
from torch.distributed.fsdp import FullyShardedDataParallel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainerCallback, TrainerState
from trl.models import unwrap_model_for_generation

from ...support.files import inside
from .problems import ProblemOptions
from .runner import Job, job_path, load_jobs, sample_lines
from .sample_store import VERSION, SampleFile
from .samplers import Sample, TransformersSampler, context_length, token_limits
from .score_report import add_rows, forget_after
from .scores import Row, score_row


class EvaluationCallback(TrainerCallback):
    """Evaluates the current weights every n steps and at the end of training, on all processes.

    Responses come from `generate` of transformers, even if training samples with vLLM. The random state of training
    does not change: responses have their own random numbers, which are the same on every layout of processes. Scores
    are logged as `eval_<set>/<metric>`, which Weights & Biases and TensorBoard show as `eval/<set>/<metric>`. The main
    process writes table, JSON, figure and samples to `<output_dir>/evaluation/`, with a row `checkpoint-<step>` per
    evaluation. A resumed run keeps the rows up to its step; a new run in the same folder starts from scratch.

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
        ValueError: invalid input. Sets are loaded here, before training begins.
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
        if every_n_steps < 1 or batch_size < 1:
            raise ValueError(f"{every_n_steps=} and {batch_size=} must be at least 1")
        processor = trainer.processing_class
        self.trainer = trainer
        self.tokenizer = processor if isinstance(processor, PreTrainedTokenizerBase) else processor.tokenizer
        self.every_n_steps, self.at_start, self.batch_size = every_n_steps, at_start, batch_size
        self.folder = inside(trainer.args.output_dir, "evaluation")
        options = ProblemOptions(prompt_style, seed, data_dir, max_problems)
        self.jobs = load_jobs(sets, [protocol], changes, self.tokenizer, options)
        for job in self.jobs:
            token_limits(job.problems, job.protocol, context_length(trainer.model.config))
        self._last_step: int | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            forget_after(self.folder, state.global_step)
        self._last_step = None
        if self.at_start and state.global_step == 0:
            self._evaluate(state, control)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.every_n_steps == 0:
            self._evaluate(state, control)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.global_step != self._last_step:
            self._evaluate(state, control)

    def _evaluate(self, state: TrainerState, control: Any) -> None:
        self._last_step = state.global_step
        name = f"checkpoint-{state.global_step}"
        with generating(self.trainer) as model:
            sampler = TransformersSampler(model, self.tokenizer, batch_size=self.batch_size)
            samples = [self._sample(sampler, job) for job in self.jobs]
        is_main = self.trainer.accelerator.is_main_process
        (rows,) = broadcast_object_list([self._write(name, samples) if is_main else None])
        logs: dict[str, float] = {}
        for row in rows:
            values = {metric: score["value"] for metric, score in row["metrics"].items()}
            values |= {f"{metric}_strict": score["value"] for metric, score in row.get("metrics_strict", {}).items()}
            values |= {"mean_length": row["mean_length_tokens"], "truncated": row["truncated_share"]}
            logs |= {f"eval_{row['set']}/{name}": value for name, value in values.items()}
        should_log = control.should_log
        # not the trainer's own `log`, which would flush the metrics of its next training row
        Trainer.log(self.trainer, logs)
        control.should_log = should_log  # `log` resets it, but this step's training row may still be due

    def _sample(self, sampler: TransformersSampler, job: Job) -> list[list[Sample]]:
        """Responses to all problems of a job on each process, generated by all processes together.

        Sharded weights need the same number of `generate` calls on each process. If the problems do not divide evenly,
        some are sampled twice.
        """
        rank, world = self.trainer.accelerator.process_index, self.trainer.accelerator.num_processes
        count = len(job.problems)
        mine = [(rank + i * world) % count for i in range(-(-count // world))]
        samples = sampler.sample([job.problems[i] for i in mine], job.protocol)
        by_index = dict(gather_object(list(zip(mine, samples, strict=True))))
        return [by_index[i] for i in range(count)]

    def _write(self, name: str, samples: Sequence[Sequence[Sequence[Sample]]]) -> list[Row]:
        rows = []
        for job, of_job in zip(self.jobs, samples, strict=True):
            header = {"version": VERSION, "model": name, "revision": None, "weights": None, **job.header}
            file = SampleFile(job_path(self.folder, name, job), header, sample_lines(header, job.problems, of_job))
            file.write()
            rows.append(score_row(file.header, file.lines))
        add_rows(self.folder, rows)
        return rows


@contextmanager
def generating(trainer: Trainer) -> Iterator[PreTrainedModel]:
    """The trainer's model, unsharded and in evaluation mode. Every module returns to its own mode afterwards."""
    options = {"gather_deepspeed3_params": getattr(trainer.args, "ds3_gather_for_generation", True)}
    if "gradient_checkpointing_kwargs" in inspect.signature(unwrap_model_for_generation).parameters:  # not in older TRL
        options["gradient_checkpointing_kwargs"] = trainer.args.gradient_checkpointing_kwargs
    wrapped = trainer.model_wrapped
    gathered = nullcontext()
    if isinstance(wrapped, FullyShardedDataParallel):  # FSDP 1 needs its root gathered for calls from outside
        gathered = FullyShardedDataParallel.summon_full_params(wrapped, recurse=False)
    with unwrap_model_for_generation(wrapped, trainer.accelerator, **options) as model, gathered:
        modes = {module: module.training for module in model.modules()}
        model.eval()
        try:
            yield model
        finally:
            for module, mode in modes.items():
                module.training = mode
