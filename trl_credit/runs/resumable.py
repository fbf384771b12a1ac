"""A trainer that can stop and resume: run identity, checkpoint boundaries, and the state in checkpoints."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate.logging import get_logger
from accelerate.utils import broadcast_object_list
from transformers import PreTrainedTokenizerBase, SchedulerType
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalLoopOutput, TrainOutput
from trl import GRPOTrainer

from ..config import CreditConfig
from ..presets import Preset
from ..rewards.functions import reward_names
from ..rollouts.policy import Policy
from ..support.files import short_path
from ..support.processes import Processes
from . import checkpoints
from .boundaries import CheckpointBoundaries
from .checkpoints import Stateful, find_last
from .folder import RunFolder
from .identity import codes_of, functions_of, identity, in_words, modules_of
from .model_identity import is_folder, weights_digest
from .showing import shows_safely


logger = get_logger(__name__)


class _AlreadyDone(Exception):
    """Leaves the training loop of a run that had already reached its end, after everything is loaded."""


@shows_safely
class ResumableTrainer(GRPOTrainer):
    """[`~trl.GRPOTrainer`] that keeps more state in its checkpoints, and knows which run they belong to.

    Trains as TRL does. Checkpoints are taken between generation batches, see [`CheckpointBoundaries`].

    Attributes:
        preset ([`~trl_credit.presets.Preset`] or `None`), engine ([`~trl_credit.rollouts.policy.Policy`]):
            The preset of a named trainer, and what samples and scores. [`CreditTrainer`] sets them.
        stateful (list of [`~trl_credit.runs.checkpoints.Stateful`]):
            Parts whose state is kept in checkpoints.
        shard_writers (list of `Callable`):
            Called on every process with the folder of a checkpoint, before the main process asks `stateful`.
        findings (`dict`):
            What the run has found out about its model, as JSON types, the same on all processes. Kept in checkpoints.
        processes ([`~trl_credit.support.processes.Processes`]):
            Processes of the run.
        task (`dict`, *optional*):
            What the run trains on, in JSON types: the flags of the data, and `reward`. `trl-credit train` sets it;
            `credit_run.json` keeps it for `trl-credit eval`.
        was_done (`bool`):
            Whether the run that was resumed last had already reached its end.
    """

    preset: Preset | None
    engine: Policy

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.stateful: list[Stateful] = []
        self.shard_writers: list[Callable[[Path], None]] = []
        self.findings: dict[str, Any] = {}
        self.task: dict[str, Any] | None = None
        self.was_done = False
        self._sampler: Any = None
        self._resumed_inside = False  # whether it resumed inside a generation batch, whose rest is generated again
        self._claimed: tuple[str | None] | None = None  # the checkpoint that `output_dir` was claimed for
        names = ("rollout_func", "environment_factory", "tools", "processing_class")
        self.arguments = {name: kwargs.get(name) for name in names}
        self.first_rows: list[Any] = []  # of a stream
        super().__init__(*args, **kwargs)
        self.processes = Processes(self.accelerator)
        self._boundaries = CheckpointBoundaries(self.args)
        self._folder = RunFolder(self.args)
        # before training: functions may change their attributes when called, and DeepSpeed casts weights
        self.functions = functions_of(self)
        self.dtype_of_weights = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        self.weights: str | None = None  # a digest, on the main process
        if self.accelerator.is_main_process:
            config, loaded = self.accelerator.unwrap_model(self.model).config, self.args.model_init_kwargs or {}
            self.weights = weights_digest(config, self.args, subfolder=loaded.get("subfolder", ""))

    @property
    def algorithm_name(self) -> str:
        """Display name of the algorithm."""
        return self._name

    @property
    def run_id(self) -> str | None:
        """Id of this run since its last start or resume, on the main process; `None` elsewhere and before training."""
        return None if self._folder.record is None else self._folder.record["lives"][-1]["id"]

    @property
    def micro_batches_done(self) -> int:
        """Micro-batches of training so far, by TRL's own count."""
        return self._step

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, also where the model comes with a processor."""
        return self._tokenizer

    def resumes_inside_batch(self) -> bool:
        """Whether the next generation batch replaces the rest of the one in which the run resumed. `True` only once."""
        resumed, self._resumed_inside = self._resumed_inside, False
        return resumed

    # The output folder

    def claim_output_dir(self, resume_from_checkpoint: str | Path | None = None) -> None:
        """Reserves `output_dir` for this run. `train` calls it. Call it yourself if you write to `output_dir` before
        training. Collective.

        Raises:
            ValueError: another run trains in it or has left its results there, or the checkpoint belongs to another
                run or cannot be read by this one.
        """
        claim = (str(resume_from_checkpoint) if resume_from_checkpoint else None,)
        if self._claimed != claim:
            self._claimed = None
            self._on_main(lambda: self._claim(claim[0]))
            self._claimed = claim

    def _claim(self, resume: str | None) -> None:
        has_reference = getattr(self, "ref_model", None) is not None or self.args.teacher == "reference"
        if has_reference and is_folder(self.accelerator.unwrap_model(self.model).config, self.args.output_dir):
            what = f"output_dir={str(short_path(self.args.output_dir))!r} is the folder of the model"
            raise ValueError(f"{what}, which a resumed run would take as its reference: choose another.")
        if resume is not None:  # before anything is written or loaded
            if not checkpoints.is_complete(resume):
                raise ValueError(f"there is no complete checkpoint in resume_from_checkpoint={resume!r}.")
            checkpoints.check_layout(resume, here=self.layout)
            self._read_state(resume)
        name = None if type(self).__module__.startswith("trl_credit.") else type(self).__name__
        # a task names its rewards
        more = {"reward": reward_names(self.reward_funcs)} if self.task is None else {"code": codes_of(self)}
        self._folder.claim(identity(self), resume, task=self.task, trainer=name, **more)

    def release_output_dir(self) -> None:
        """Makes `output_dir` free for other runs."""
        self._claimed = None
        self._folder.release()

    def changes_of_run(self) -> list[str]:
        """What changed at each resume of this run, one sentence each (main process)."""
        starts = [] if self._folder.record is None else self._folder.record["lives"]
        return [f"From step {x['from']}: {in_words(x['changed'])}." for x in starts if x.get("changed")]

    def _on_main(self, call: Callable[[], Any]) -> Any:
        """Calls a function on the main process, and returns or raises its outcome on all processes. Collective."""
        outcome: list[Any] = [None, None]
        failed: Exception | None = None
        if self.accelerator.is_main_process:
            try:
                outcome[0] = call()
            except Exception as error:  # any error: the other processes must not wait forever
                failed = error
                outcome[1] = error if type(error) in (ValueError, OSError) else RuntimeError(f"on process 0: {error}")
        broadcast_object_list(outcome)
        if outcome[1] is not None:
            raise failed or outcome[1]
        return outcome[0]

    # Training

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in `Trainer`, with two differences. `resume_from_checkpoint=True` means the last checkpoint of the run
        that was started last in `output_dir`. A run that has reached its end is loaded and left unchanged.

        Raises:
            ValueError: too little data for a single step; the folder or checkpoint of another run (the message names
                what differs); no checkpoint to resume from, or one that this run cannot read.
        """
        check_amount(self.args, self.train_dataset)
        if resume_from_checkpoint is True:
            resume_from_checkpoint = self._on_main(lambda: find_last(self.args.output_dir))
        resume = str(resume_from_checkpoint) if resume_from_checkpoint else None
        was_claimed = self._claimed is not None
        self.claim_output_dir(resume)
        # an earlier train() may have ended inside a batch
        self._step, self._buffered_inputs, self._resumed_inside = 0, None, False
        self._boundaries.begin()
        try:
            with checkpoints.file_errors(self.args.output_dir):
                output = super().train(resume, *args, **kwargs)
        except _AlreadyDone:
            output = self._finish_unchanged()
        finally:
            if not was_claimed:
                self.release_output_dir()
        self.was_done = resume is not None and self._initial_global_step >= self.state.max_steps
        if self.was_done:
            message = "already at step %d of %d: nothing was trained. To train on, raise max_steps (num_train_epochs)"
            logger.warning(message, self.state.global_step, self.state.max_steps)
        if self.state.global_step == self._step == 0:  # a run that was stopped inside its first step has a micro-batch
            raise _too_short(self.args, "the data ended too soon")
        return output

    @property
    def layout(self) -> str:
        """How this run stores its optimizer: a key of [`~trl_credit.runs.checkpoints.LAYOUTS`]."""
        if self.is_deepspeed_enabled:
            return "ZeRO-3" if self.accelerator.state.deepspeed_plugin.zero_stage == 3 else "ZeRO-1 or ZeRO-2"
        return "FSDP" if self.is_fsdp_enabled else "plain"

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step >= self.state.max_steps > 0:
            raise _AlreadyDone
        return super().get_batch_samples(*args, **kwargs)

    def _finish_unchanged(self) -> TrainOutput:
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._load_best_model()
        self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
        self.is_in_train = False
        return TrainOutput(self.state.global_step, 0.0, {})

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        """As in `Trainer`. Each of several evaluation sets has metrics of its own, which TRL would log as `eval_…`."""
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        if metric_key_prefix != "eval":
            for name, values in self._metrics["eval"].items():
                known = [x for x in values if not math.isnan(x)]
                output.metrics[f"{metric_key_prefix}_{name}"] = sum(known) / len(known) if known else None
            self._metrics["eval"].clear()
        return output

    # Saving

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        self._boundaries.after_update(self._step, control=self.control)
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.args.should_save:  # an abandoned resume may have left a complete checkpoint here
            folder = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            checkpoints.mark_incomplete(Path(self._get_output_dir(trial)) / folder)
        super()._save_checkpoint(model, trial)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        with checkpoints.file_errors(self.args.output_dir):
            super().save_model(output_dir, _internal_call)
        if _internal_call and self.args.should_save:
            self._folder.add_modules(modules_of(self))  # also those that functions imported when they were called
            self._folder.write_record(output_dir or self.args.output_dir)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        # here, since transformers deletes older checkpoints as soon as the new one is complete
        super()._save_optimizer_and_scheduler(output_dir)
        for write_shard in self.shard_writers:
            write_shard(Path(output_dir))
        if self.args.should_save:
            position = self._boundaries.done, self._boundaries.every
            parts = {part.name: part.state_dict(Path(output_dir)) for part in self.stateful}
            checkpoints.write_state(output_dir, {"parts": parts, "position": position, "found": self.findings})

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        # rank 0 writes next the file that makes the checkpoint complete
        self.accelerator.wait_for_everyone()

    # Loading

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        self._sampler = super()._get_train_sampler(*args, **kwargs)
        return self._sampler

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        saved = self._read_state(checkpoint)
        for part in self.stateful:
            try:
                part.load_state_dict(saved["parts"][part.name], Path(checkpoint))
            except (ValueError, KeyError, TypeError) as error:
                what = f"{Path(checkpoint) / checkpoints.STATE_FILE} does not fit {part.setting} ({error})"
                raise ValueError(f"{what}: resume from a checkpoint with the same settings.") from error
        self.findings |= dict.fromkeys(self.findings) | saved["found"]
        self._warn_of_missing_files(checkpoint)
        self._load_schedule(checkpoint)
        generator = getattr(self._sampler, "generator", None)
        if generator is not None and not hasattr(self._sampler, "set_epoch"):  # transformers calls set_epoch itself
            # the orders of finished epochs: TRL's sampler would start with that of the first epoch again
            for _ in range(int(self.state.epoch or 0)):
                torch.randperm(self._sampler.num_samples, generator=generator)
        # the position of an uninterrupted run in its generation batch
        self._step = self._boundaries.position(self.state, self.args.gradient_accumulation_steps, saved["position"])
        self._boundaries.done, self._buffered_inputs = self._step, None
        self._resumed_inside = self._step > 0
        if self._resumed_inside:
            logger.warning("%s was taken inside a generation batch: its rest is generated again", checkpoint)

    def _load_schedule(self, checkpoint: str) -> None:
        """Says that the learning rate jumps if the run has another length now, and sets a peak that was allowed to
        change: the states of optimizer and scheduler hold the old one."""
        before, now = checkpoints.planned_steps(checkpoint), self.state.max_steps
        if before != now and not SchedulerType(self.args.lr_scheduler_type).value.startswith("constant"):
            message = "%s: max_steps was %d and is %d, so the learning rate jumps: set it back, unless you intend this"
            logger.warning(message, checkpoint, before, now)
            self._folder.add_change("max_steps", before, now)
        if "learning_rate" not in (self.args.allow_changed or []):
            return
        peak, scheduler = self.args.learning_rate, getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)
        if not hasattr(scheduler, "lr_lambdas"):
            what = f"allow_changed learning_rate: the state of {type(scheduler).__name__} brings the old one back"
            raise ValueError(f"{what}: use its settings, or start a new run with the checkpoint as the model.")
        scheduler.base_lrs = [peak for _ in scheduler.base_lrs]
        scheduler._last_lr = [peak * share(scheduler.last_epoch) for share in scheduler.lr_lambdas]
        for group, rate in zip(self.optimizer.param_groups, scheduler.get_last_lr(), strict=True):
            group["initial_lr"], group["lr"] = peak, rate

    def _read_state(self, checkpoint: str) -> dict[str, Any]:
        return checkpoints.read_state(checkpoint, needed={part.name: part.setting for part in self.stateful})

    def _warn_of_missing_files(self, checkpoint: str) -> None:
        # on every process: each has its own random numbers, and may have its own folder
        names = [f"rng_state_{self.processes.rank}.pth" if self.processes.count > 1 else "rng_state.pth"]
        names += {"plain": ["optimizer.pt", "scheduler.pt"], "FSDP": ["scheduler.pt"]}.get(self.layout, [])
        missing = [name for name in names if not (Path(checkpoint) / name).is_file()]
        if self.args.sync_ref_model and self.state.global_step >= self.args.ref_model_sync_steps:
            missing.append("reference model")  # TRL does not save the synchronised one
        if missing:
            effect = "what it held starts anew, and the result is not bit for bit that of an uninterrupted run"
            logger.warning("%s has no %s: %s", checkpoint, ", ".join(missing), effect, main_process_only=False)


def check_amount(args: CreditConfig, dataset: Any) -> None:
    """Checks that there is at least one generation batch. Streams have no length to check.

    Raises:
        ValueError: fewer prompts than one generation batch needs.
    """
    if hasattr(dataset, "__len__") and len(dataset) < args.generation_batch_size // args.num_generations:
        raise _too_short(args, f"the data set has {len(dataset)} rows")


def _too_short(args: CreditConfig, what: str) -> ValueError:
    takes = f"one generation batch takes {args.generation_batch_size // args.num_generations} prompts"
    fix = "give more rows, or lower per_device_train_batch_size, gradient_accumulation_steps or steps_per_generation"
    return ValueError(f"{what}, and {takes} (generation_batch_size / num_generations): {fix}.")
