"""The seam between credit and TRL.

TRL's unmodified `_compute_loss` runs its forward pass through `_get_per_token_logps_and_entropies`, and only then reads
π_old and the advantages from its inputs. [`CreditTrainer`] gives it a copy of the inputs, and writes credit into that
copy from inside the forward hook:

    inputs[OLD_LOGPS]  = logps − W       so that TRL forms exp(logps − (logps − W)) = exp(W)
    inputs[ADVANTAGES] = A of shape (B, T)

This π_old is not detached, so the gradient of W flows and that of logps cancels. Clipping, KL on the plain logps, loss
types, metrics, entropy bonus and every correction are TRL's own.
"""

import contextlib
import functools
import inspect
import time
from collections.abc import Callable
from typing import Any, ParamSpec

import torch
import trl
from transformers import TrainerCallback
from trl.trainer.utils import get_config_model_id

from ..config import CreditConfig
from ..hub.results import ResultsCallback
from ..loss import keys
from ..loss.assignment import in_clip_form
from ..loss.belief import belief_of
from ..loss.contract import Contract, algorithm, check_uniform
from ..loss.loss_pass import LossPass
from ..loss.metrics import loss_statistics
from ..loss.nonfinite import NonFinite
from ..loss.normalizer import hides_masked, loss_advantage, missing_kl
from ..observe.meter import Meter, is_logged_step
from ..passes.reduced import ReducedPasses
from ..presets import Preset
from ..rewards.guard import guard_rewards, guard_rollout
from ..rollouts.forest import Trees
from ..rollouts.groups import make_source
from ..rollouts.sources import GenerationBatch, Responses
from ..runs.checkpoints import ObjectState
from ..runs.resumable import ResumableTrainer
from ..support.signals import let_threads_finish
from ..support.startup import quiet_start
from ..support.threads import threads_for
from ..support.vllm_set import vllm_explained
from . import before_run, refusals
from .batch_steps import BatchSteps
from .engine import TrlEngine
from .engine_calls import engine_awake, temporarily
from .environments import Environments
from .observers import add_observers, console_closed, note_sample
from .probes import Probes
from .teacher import Teacher


refusals.check_trl_version(trl.__version__)

P = ParamSpec("P")


def _with_arguments_of(original: Callable[P, Any]) -> Callable[[Callable[..., None]], Callable[P, None]]:
    """Decorator of a method that has the signature of another one for `help` and editors."""
    return functools.wraps(original, assigned=())


class _SkippedUpdate(Exception):
    """Leaves the training step of a micro-batch before its backward pass, so that it adds nothing to the gradient."""


class CreditTrainer(ResumableTrainer):
    """
    [`~trl.GRPOTrainer`] that decides which tokens get how much credit, by the knobs of [`CreditConfig`].

    Takes the arguments of `GRPOTrainer`; generation, rewards, distribution, logging, checkpoints and the Hub are TRL's.
    Training prints a line per logging step, and leaves plots and a model card in `output_dir`.

    Example:

    ```python
    from trl_credit import STraceConfig, STraceTrainer
    from trl_credit.demo import demo_dataset, demo_model_path, demo_reward

    trainer = STraceTrainer(
        model=demo_model_path(),
        reward_funcs=demo_reward,
        args=STraceConfig(output_dir="s-trace", max_completion_length=40, max_steps=20),
        train_dataset=demo_dataset(),
    )
    trainer.train()
    ```

    Args:
        model (`str` or `PreTrainedModel` or `PeftModel`):
            As in `GRPOTrainer`, or the folder of an adapter, which is trained further.
        reward_funcs (`RewardFunc` or `list[RewardFunc]`, *optional*):
            As in `GRPOTrainer`, or with rewards along the response ([`~trl_credit.rewards.StepRewards`]). `None` means
            "does not apply". A reward of NaN or infinity is an error.
        args ([`CreditConfig`], *optional*):
            Defaults to the trainer's own configuration class.

    All other arguments are those of `GRPOTrainer`, also of a newer TRL.

    Raises:
        TypeError: `args` is a plain `GRPOConfig`, or the installed TRL lacks a given argument.
        ValueError: `use_liger_kernel=True` on a TRL before 1.14, which bypasses the loss.

    Attributes:
        preset ([`Preset`] or `None`): Set by named trainers: their name, paper, tag and configuration class.
        contract ([`Contract`]): The algorithm, with its state.
        difficulty ([`DifficultyBelief`] or `None`): HA-DW's belief.
        forest ([`~trl_credit.rollouts.forest.Trees`] or `None`): Where batches of trees come from.
        engine ([`TrlEngine`]): Samples and scores.
        teacher ([`~trl_credit.trainer.teacher.Teacher`] or `None`): Scores the rows of each generation batch.
        results ([`ResultsCallback`]): Writes plots and the model card.
    """

    _tag_names = ["trl", "grpo", "trl-credit"]
    preset: Preset | None = None
    config_class: type[CreditConfig] = CreditConfig

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if (preset := vars(cls).get("preset")) is not None:
            cls._name, cls._paper, cls.config_class = preset.name, preset.paper, preset.config
            cls._tag_names = [*CreditTrainer._tag_names, preset.tag]

    @_with_arguments_of(trl.GRPOTrainer.__init__)
    def __init__(self, *values: Any, **kwargs: Any) -> None:
        arguments = inspect.signature(trl.GRPOTrainer.__init__).bind(self, *values, **kwargs).arguments
        kwargs = {name: x for name, x in arguments.items() if name != "self" and x is not None}
        model, reward_funcs, args = (kwargs.pop(name, None) for name in ("model", "reward_funcs", "args"))
        if "rollout_func" in kwargs:
            kwargs["rollout_func"] = guard_rollout(kwargs["rollout_func"])
        if args is None:
            model_name = model if isinstance(model, str) else get_config_model_id(model.config)
            args = self.config_class(f"{model_name.split('/')[-1]}-{self._name}")
        quiet_start()
        refusals.check_arguments(args, kwargs, expected=self.config_class)
        refusals.check_overrides(type(self), CreditTrainer)
        self._first_rows = before_run.read_rows(args, kwargs)
        environments = Environments(self, args)
        rows = refusals.reward_rows(args, kwargs, self._first_rows)
        guarded = guard_rewards(reward_funcs, timeout=args.reward_timeout, data=rows, ledger=environments.ledger)
        if not reward_funcs and kwargs.get("environment_factory") is not None:
            guarded = [environments.step_rewards]  # until it is known whether the environments have any
        with vllm_explained(used=args.use_vllm):
            super().__init__(before_run.with_adapter(model, args, kwargs), guarded, args, **kwargs)
        environments.settle()
        self._meter = Meter(self._metrics, self.processes, lambda: self.model.training)
        self.engine = TrlEngine(self, self._meter, environments)
        self._loss_pass: LossPass | None = None  # set while TRL computes a loss
        self._eval_source = Responses(self.engine)
        self._train_source = make_source(self.engine, model_config=self.model.config, data=self.train_dataset)
        self.forest = self._train_source if isinstance(self._train_source, Trees) else None
        self.overrides = refusals.Overrides(self)
        self.contract = Contract(algorithm(args), max=self.processes.max)
        self._probes = Probes(self, self.contract.algorithm.needs)
        self._passes = ReducedPasses(self, self._trl_forward)
        self._nonfinite = NonFinite(self)
        self.difficulty = belief_of(args)
        if self.difficulty is not None:
            self.stateful.append(ObjectState("difficulty", f"difficulty={args.difficulty!r}", self.difficulty))
        if self.contract.algorithm.state_dict is not None:
            self.stateful.append(ObjectState("credit", f"credit={args.credit!r}", self.contract.algorithm))
        self.stateful += self._train_source.stateful
        self._batch_steps = BatchSteps(self.engine, self.difficulty, self.contract.algorithm)
        self.teacher: Teacher | None = None
        if args.teacher is not None:
            self.teacher = Teacher(self, self.engine, self._trl_forward, self._first_rows)
            self._batch_steps.teacher = self.teacher
            if args.teacher_sync_steps is not None:
                self.add_callback(self.teacher)
                self.stateful.append(self.teacher)
                self.shard_writers.append(self.teacher.write_shard)
        self._rollout_log, self.results = add_observers(self)
        refusals.check_made(self, needs_drift=self.contract.algorithm.needs_drift)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            let_threads_finish()

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        before_run.check(self, self._first_rows)  # TRL has a tokenizer and tools now

    def add_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> None:
        """As in `Trainer`. The callback `results` stays last, after those that add to it."""
        super().add_callback(callback)
        self.callback_handler.callbacks.sort(key=lambda added: isinstance(added, ResultsCallback))

    # A run

    @property
    def _place(self) -> tuple[int, int]:  # optimizer steps so far, and micro-batches since
        return self.state.global_step, self._step % self.args.gradient_accumulation_steps

    @property
    def source(self) -> Responses:
        """Where batches come from in the current mode. Evaluations are always of single responses."""
        return self._train_source if self.model.training else self._eval_source

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in [`ResumableTrainer`]; on the CPU, a small model trains on one thread."""
        self._meter.clear()  # an interrupted train() may have left sums
        with vllm_explained(used=self.args.use_vllm), console_closed(self), threads_for(self.model):
            return super().train(resume_from_checkpoint, *args, **kwargs)

    # whether a subclass, a mixin or the instance overrides the loss
    has_custom_loss = property(lambda self: any(refusals.override_of(self, name) for name in refusals.OF_LOSS))

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        meter, start = self._meter, time.perf_counter()
        self.overrides.ran.add("training_step")
        with meter.timed("train", always=True):
            self._rollout_log.before()
            try:
                with meter.step():
                    loss = super().training_step(*args, **kwargs)
            except _SkippedUpdate:
                loss = torch.zeros((), device=self.processes.device)
                self._count_micro_batch(time.perf_counter() - start)
            loss = torch.where(loss.isfinite(), loss, 0.0)  # a skipped loss is not logged either
            self._rollout_log.after()
            if self.accelerator.sync_gradients:  # before the update, which all processes may skip: one collective call
                if (share := self._passes.close_step()) is not None:
                    meter.append([("skipped_micro_batches", share)])
                bad_loss, flags = meter.close_step(self._nonfinite.gradient_flags())
                skipped = self._nonfinite.close_update(loss=bad_loss, gradient=bool(flags) and flags[0])
                zero = [("zero_gradients", float(not some)) for some in flags[1:]]
                meter.append([("skipped_updates", float(skipped)), *zero])
        if self.accelerator.sync_gradients:
            meter.log_seconds()
        return loss

    def _count_micro_batch(self, seconds: float) -> None:  # a skipped one, as TRL does at the end of a training step
        self._step += 1
        self._current_train_step_time += seconds
        if self._step % self.current_gradient_accumulation_steps == 0:
            self._metrics["train"]["step_time"].append(self._current_train_step_time)
            self._current_train_step_time = 0.0

    # A generation batch is made

    def _prepare_inputs(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        before = self._buffered_inputs
        self.overrides.ran.discard("_generate_and_score_completions")
        inputs = super()._prepare_inputs(*args, **kwargs)
        self.overrides.ran.add("_prepare_inputs")
        if not self.model.training or self._buffered_inputs is before:
            return inputs
        self.overrides.require("_generate_and_score_completions")
        self._buffered_inputs = self._passes.arrange(self._buffered_inputs)
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self.overrides.ran.add("_generate_and_score_completions")
        generation = self.make_batch(inputs)
        if self.model.training:  # an evaluation between two updates must not change the training batch
            self._rollout_log.sampled(generation, generation.examples)
            note_sample(self, generation.batch.rewards)
            if generation.plan is not None and not generation.plan.drawn and self._nonfinite.skips_batches:
                generation.batch.data[keys.NO_UPDATE] = [True] * len(inputs)
        return generation.batch.data

    def make_batch(self, inputs: list[dict[str, Any]]) -> GenerationBatch:
        """The batch of responses to rows of the data set, every prompt repeated, which TRL then cuts. Collective."""
        source = self.source
        source.check(inputs)
        with engine_awake(self) if source.calls_engine_again else contextlib.nullcontext():
            generation = source.make(inputs)
        generation.batch.advantages = generation.advantages
        # not in evaluation, nor for a batch generated again after a resume, which was counted before
        generation.moves_belief = self.model.training and not self.resumes_inside_batch()
        generation.place = self._place
        self._batch_steps(generation)
        return generation

    # A micro-batch goes through TRL's loss

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        training = self.model.training
        self.overrides.ran.add("_compute_loss")
        if training and inputs.get(keys.NO_UPDATE):
            raise _SkippedUpdate
        if training and self._passes.skips(inputs, is_logged=self._rollout_log.is_due):
            self._meter.record({"trained_tokens_per_row": (0, len(inputs[keys.PROMPT_IDS]))})
            raise _SkippedUpdate
        parts = self.processes.count * (self.args.steps_per_generation if training else 1)
        place = *self._place, self.processes.rank
        # of a copy, since TRL uses its own inputs again in every one of num_iterations
        loss_pass = LossPass(self.args, self.contract, dict(inputs), self.processes.sum, parts, place)
        if hides_masked(self.args):
            loss_pass.hide_masked()
        with temporarily(self, _loss_pass=loss_pass):
            loss = super()._compute_loss(model, loss_pass.inputs)
        self.overrides.check_forward(loss_pass.hook_calls)
        # not in the hook: TRL's `top_entropy_quantile` acts after it
        self._meter.record(loss_statistics(loss_pass, in_detail=not training or is_logged_step(self.args, self.state)))
        if loss_pass.extra_loss is not None:
            loss = loss + loss_pass.extra_loss / (self.current_gradient_accumulation_steps if training else 1)
        if training:
            self._rollout_log.lost(loss_pass, loss)
            self._meter.flag(~torch.isfinite(loss.detach()))
            if self._nonfinite.looks_before_backward and self._meter.take_flag():
                self._nonfinite.record_bad_loss()
                raise _SkippedUpdate  # on every process, before any gradient
        return loss

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        sampling, loss_pass = self.engine.sampling, self._loss_pass
        if sampling is not None and (known := self.engine.engine_logps(args[2])) is not None:
            return known, None, None
        with self.source.around_forward(model, args, kwargs, planned=sampling and sampling.plan):
            passes = functools.partial(self._passes.run, model, args, kwargs, loss_pass)
            output = self._probes.run(passes, sampling if loss_pass is None else loss_pass)
        if loss_pass is not None:
            loss_pass.hook_calls += 1
            if loss_pass.hook_calls == 1:
                output = (*loss_pass.finite_outside(*output[:2]), *output[2:])
                self._write_credit(loss_pass, logp_t=output[0], entropy_t=output[1])
        return output

    def _trl_forward(self, *args: Any, **kwargs: Any) -> tuple:
        with contextlib.nullcontext() if torch.is_grad_enabled() else self._meter.timed("passes"):
            return self._probes.read(super()._get_per_token_logps_and_entropies, *args, **kwargs)

    def _write_credit(self, loss_pass: LossPass, *, logp_t: torch.Tensor, entropy_t: torch.Tensor) -> None:
        """The seam: writes W, A and M into the inputs that TRL's loss goes on to read."""
        inputs, declared = loss_pass.inputs, self.contract.algorithm
        tokens = loss_pass.tokens(logp_t=logp_t, entropy_t=entropy_t, is_training=self.model.training)
        with torch.enable_grad():  # also in evaluation, where ℓ is a leaf
            credit = self.contract.credit(tokens, self.args)
        loss_pass.seen = tokens, credit
        check_uniform(credit, tokens, importance=self.args.importance)
        if declared.replaces_kl:
            inputs[keys.REF_LOGPS] = logp_t  # makes TRL's KL term, and its gradient, exactly 0
        else:
            weights = {"mean_tokens": loss_pass.mean_tokens, "row_weight": loss_pass.row_weight}
            weights["zero_variance"] = inputs.get(keys.ZERO_VARIANCE_ROW)
            loss_pass.extra_loss = missing_kl(self.args, credit, tokens, beta=self.beta, **weights)
        if declared.replaces_correction and inputs.get(keys.ENGINE_RATIO) is not None:
            inputs[keys.ENGINE_RATIO] = torch.ones_like(inputs[keys.ENGINE_RATIO])
        credit = in_clip_form(self.args, credit, tokens)
        if credit.log_weight is not None:
            if self.off_policy_mask_threshold is not None and inputs.get(keys.SAMPLING_LOGPS) is None:
                inputs[keys.SAMPLING_LOGPS] = tokens.old_logp_t  # TRL would fall back on what is rewritten below
            log_weight = credit.log_weight.masked_fill(tokens.mask_t == 0, 0.0)
            # logps − W, grouped so that a W equal to the plain log-ratio leaves π_old unchanged, to the bit
            inputs[keys.OLD_LOGPS] = tokens.old_logp_t + ((logp_t - tokens.old_logp_t) - log_weight)
        inputs[keys.ADVANTAGES] = loss_advantage(self.args, credit, tokens, row_weight=loss_pass.row_weight)

    def get_high_entropy_mask(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self._keep_in_loss("entropy_mask_t", super().get_high_entropy_mask(*args, **kwargs))

    def get_off_policy_mask(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self._keep_in_loss("off_policy_mask_t", super().get_off_policy_mask(*args, **kwargs))

    def _keep_in_loss(self, name: str, mask_t: torch.Tensor) -> torch.Tensor:
        if self._loss_pass is not None:
            setattr(self._loss_pass, name, mask_t)
        return mask_t

    def create_model_card(
        self, model_name: str | None = None, dataset_name: str | None = None, tags: str | list[str] | None = None
    ) -> None:
        """As in `GRPOTrainer`, but the card is ours. No card is written with a checkpoint, where TRL calls this too."""
        if self.is_world_process_zero() and not self.is_in_train:
            tags = [tags] if isinstance(tags, str) else tags
            self.results.write_card(model_name=model_name, dataset_name=dataset_name, tags=tags)
