"""The seam between credit and TRL. This folder is the only place that names anything private of TRL.

TRL's unmodified `_compute_loss` runs its forward pass through `_get_per_token_logps_and_entropies` and only afterwards
reads π_old and the advantages from its inputs. [`CreditTrainer`] hands it a copy of the inputs that stays alive during
that call, and writes credit into it from inside the forward hook:

    inputs["old_per_token_logps"] = logps − W       so that TRL forms exp(logps − (logps − W)) = exp(W)
    inputs["advantages"]          = A of shape (B, T)

The reference is not detached, so the gradient of W flows and that of logps cancels. Clipping, KL on the plain logps,
loss types, metrics, entropy bonus and every correction are TRL's own.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset, IterableDataset
from peft import PeftConfig, PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin, TrainerCallback
from trl.trainer.utils import get_config_model_id

from ..assignment import credit_function, with_ratio_clipped
from ..config import CreditConfig
from ..credit.tokens import Credit, Tokens
from ..names import method_label
from ..rewards.guard import guard_rewards, guard_rollout
from . import refusals
from .batch_trainer import BatchTrainer
from .belief import belief_setting, belief_state, load_belief
from .last_moment import let_threads_finish
from .live import LivePass
from .metrics import loss_statistics
from .nonfinite import (
    NonFinite,
    accumulates_in_deepspeed,
    can_be_left_out,
    can_drop_gradients,
    gradient_flags,
    leave_out_nonfinite,
)
from .own_credit import OwnCredit, check_uniform
from .rollout_log import RolloutLog


refusals.check_trl_version(trl.__version__)


class _NothingToLearn(Exception):
    """Leaves a training step before forward and backward pass, so that the optimizer finds no gradient."""


class CreditTrainer(BatchTrainer):
    """
    [`~trl.GRPOTrainer`] that decides which tokens get how much credit, by the knobs of [`CreditConfig`].

    Takes the arguments of `GRPOTrainer`; generation, rewards, distribution, logging, checkpoints and the Hub are TRL's.
    Training shows a line per logging step, and leaves plots and a model card in `output_dir` (see
    [`~trl_credit.trainer.reported.ReportedTrainer`]).

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
            As in `GRPOTrainer`.
        reward_funcs (`RewardFunc` or `list[RewardFunc]`, *optional*):
            As in `GRPOTrainer`. A function that returns NaN or infinity raises; `None` means "does not apply".
        args ([`CreditConfig`], *optional*):
            Defaults to the trainer's own configuration class.
        train_dataset, eval_dataset, processing_class, reward_processing_classes, callbacks, optimizers,
        quantization_config, peft_config, tools, rollout_func, environment_factory (*optional*):
            As in `GRPOTrainer`.
        **newer:
            Arguments of a newer TRL, passed on unchanged.

    Raises:
        TypeError: `args` is a plain `GRPOConfig`, whose credit knobs do not exist; or the installed TRL lacks an
            argument that is given.
        ValueError: `use_liger_kernel=True` on a TRL before 1.14, which bypasses the loss.
    """

    _tag_names = ["trl", "grpo", "trl-credit"]
    summary: str = ""
    formula: str = ""
    config_class = CreditConfig

    @classmethod
    def uses(cls, args: CreditConfig) -> bool:
        """Whether a configuration, of any preset, uses this algorithm's method: for citations."""
        return isinstance(args, cls.config_class)

    @classmethod
    def title(cls) -> str:
        """The algorithm's name as people write it: "S-trace"."""
        return cls._name

    @property
    def algorithm_name(self) -> str:
        """As [`title`]."""
        return self._name

    def __init__(
        self,
        model: str | PreTrainedModel | PeftModel,
        reward_funcs: Any = None,
        args: CreditConfig | None = None,
        train_dataset: Dataset | IterableDataset | None = None,
        eval_dataset: Dataset | IterableDataset | dict[str, Dataset | IterableDataset] | None = None,
        processing_class: PreTrainedTokenizerBase | ProcessorMixin | None = None,
        reward_processing_classes: PreTrainedTokenizerBase | list[PreTrainedTokenizerBase] | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None] = (None, None),
        quantization_config: Any = None,
        peft_config: PeftConfig | None = None,
        tools: list[Callable] | None = None,
        rollout_func: Callable | None = None,
        environment_factory: Any = None,
        **newer: Any,
    ) -> None:
        rollout_func = rollout_func and guard_rollout(rollout_func)
        kwargs = refusals.known_to_trl(locals()) | newer
        if args is None:
            model_name = model if isinstance(model, str) else get_config_model_id(model.config)
            args = self.config_class(f"{model_name.split('/')[-1]}-{self._name}")
        refusals.check_arguments(args, kwargs, reward_funcs, wanted=self.config_class)
        self._live: LivePass | None = None
        self._skip_update = False
        self._nonfinite = NonFinite(args.nonfinite_patience)
        self._credit_function = credit_function(args)
        method = self.credit_method
        self._own_credit = OwnCredit(
            (self._credit_function,) if method is None else (method, self._credit_function),
            name=args.credit if method is None else method_label(method),
            largest=self.largest,
        )
        guarded = guard_rewards(reward_funcs, timeout=args.reward_timeout, data=refusals.reward_rows(args, kwargs))
        super().__init__(model, guarded, args, **kwargs)
        self._rollout_log = RolloutLog(self)
        self.add_callback(self._rollout_log)
        has_reference = getattr(self, "ref_model", None) is not None
        refusals.check_sharding(self.accelerator.state, args, has_reference=has_reference)
        refusals.say_off_policy(args)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            let_threads_finish()

    # Loss

    def credit(self, tokens: Tokens) -> Credit:
        """W, A and M of a micro-batch: the method to override for a credit function with a state of its own.

        As that of a function, its result is checked. What it declares (see
        [`~trl_credit.assignment.CreditFunction`]) is read from attributes of the method, else of the function that the
        configuration chooses.
        """
        return self._credit_function(self.args, tokens)

    def credit_state(self) -> dict[str, Any]:
        """What a `credit` of one's own keeps in a checkpoint: JSON types, of the main process, loaded by all."""
        return {}

    def load_credit_state(self, state: dict[str, Any]) -> None:
        """Restores what `credit_state` returned when the checkpoint was written."""

    @property
    def credit_method(self) -> Callable | None:
        """A subclass's own `credit`, or `None`."""
        return None if type(self).credit is CreditTrainer.credit else type(self).credit

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        if inputs["completion_ids"].size(1) == 0:
            raise ValueError(
                "every completion of this micro-batch is empty (completion_ids of shape (B, 0)): have the generation "
                "backend or rollout_func return at least the end-of-sequence token."
            )
        if self._skip_update and self.model.training:
            raise _NothingToLearn
        if self.model.training and self._without_credit.leaves_out(inputs, is_logged=self._rollout_log.is_due):
            self.record({"trained_tokens_per_row": (0, len(inputs["prompt_ids"]))})
            raise _NothingToLearn
        inputs = dict(inputs)  # TRL uses its own again in every one of num_iterations
        parts = self.num_processes * (self.args.steps_per_generation if self.model.training else 1)
        live = self._live = LivePass(self.args, inputs, reduce=self.sum_over_processes, micro_batches=parts)
        if self._normalizer.hides_masked:
            live.hide_masked()
        try:
            loss = super()._compute_loss(model, inputs)
        finally:
            self._live = None
        if live.hook_calls != 1:
            raise RuntimeError(
                f"TRL {trl.__version__} computed log-probabilities {live.hook_calls} times in one loss, not once, so "
                f"credit was not assigned as intended. Install one of trl {', '.join(refusals.TESTED_TRL_MINORS)}."
            )
        if live.extra_loss is not None:
            loss = loss + live.extra_loss / (self.current_gradient_accumulation_steps if self.model.training else 1)
        if self.model.training:
            self._rollout_log.saw(live, loss)
            self._check_loss(loss)
        return loss

    def _check_loss(self, loss: torch.Tensor) -> None:
        if can_drop_gradients(self):
            if self._step_sums.is_open:  # whose end it is soon enough for
                self._step_sums.flag(~torch.isfinite(loss.detach()))
        elif self.largest(int(not torch.isfinite(loss))):
            self._nonfinite.found("loss", at_once=accumulates_in_deepspeed(self))
            raise _NothingToLearn  # on every process, before any gradient

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        if (known := self._take_engine_logps(args)) is not None:
            return known, None, None
        with self.source.forward(model, args, kwargs):
            output = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        if self._live is not None:
            self._live.hook_calls += 1
            if self._live.hook_calls == 1:
                self._write_credit(self._live, logp_t=output[0], entropy_t=output[1])
        return output

    def _write_credit(self, live: LivePass, *, logp_t: torch.Tensor, entropy_t: torch.Tensor) -> None:
        inputs, own = live.inputs, self._own_credit
        tokens = live.tokens(logp_t=logp_t, entropy_t=entropy_t)
        credit = own.checked(self.credit(tokens), tokens, self.args)
        live.seen = tokens, credit
        check_uniform(credit, tokens, level=self.importance_sampling_level)
        clip_range = (1 - self.epsilon_low, 1 + self.epsilon_high)
        shown = {"carries_loss": own.carries_loss, "clip_range": clip_range, "quarter_t": live.quarter_t}
        self.record(loss_statistics(self.args, credit, tokens, **shown))
        if own.replaces_kl:
            inputs["ref_per_token_logps"] = logp_t  # whose KL term, with its gradient, is exactly 0
        else:
            divided = {"mean_tokens": live.mean_tokens, "row_weight": live.row_weight}
            live.extra_loss = self._normalizer.missing_kl(credit, tokens, beta=self.beta, **divided)
        if own.replaces_correction and inputs.get("importance_sampling_ratio") is not None:
            inputs["importance_sampling_ratio"] = torch.ones_like(inputs["importance_sampling_ratio"])
        if self.args.clip_form == "ratio":
            credit = with_ratio_clipped(credit, tokens, clip_range=clip_range)
        if credit.log_weight is not None:
            if self.off_policy_mask_threshold is not None and inputs.get("sampling_per_token_logps") is None:
                inputs["sampling_per_token_logps"] = tokens.old_logp_t  # TRL would fall back on what is rewritten below
            log_weight = torch.where(tokens.mask_t.bool(), credit.log_weight, 0.0)
            # logps − W, grouped so that a W with the value of the plain log-ratio leaves π_old as it is, to the bit
            inputs["old_per_token_logps"] = tokens.old_logp_t + ((logp_t - tokens.old_logp_t) - log_weight)
        inputs["advantages"] = self._normalizer.advantage(credit, tokens, row_weight=live.row_weight)

    def get_high_entropy_mask(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        found = super().get_high_entropy_mask(*args, **kwargs)
        if self._live is not None:
            self._live.entropy_mask_t = found
        return found

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        start, before = time.perf_counter(), sum(self._phases.seconds.values())
        self._rollout_log.before()
        self._step_sums.is_open = True
        try:
            loss = super().training_step(*args, **kwargs)
        except _NothingToLearn:
            loss = torch.zeros((), device=self.device)
            self._count_micro_batch(time.perf_counter() - start)
        finally:
            self._step_sums.is_open = False
        loss = torch.where(loss.isfinite(), loss, 0.0)  # what is left out is not logged either
        self._rollout_log.after()
        metrics = self._metrics["train"]
        if self.accelerator.sync_gradients:
            if (share := self._without_credit.close()) is not None:
                metrics["credit/skipped_micro_batches"].append(share)
            self._close_step()
            metrics["credit/skipped_updates"].append(float(self._nonfinite.close_update()))
        self._phases.add("train", time.perf_counter() - start, since=before)
        if self.accelerator.sync_gradients:
            for name, seconds in self._phases.take().items():
                metrics[f"credit/seconds/{name}"].append(seconds)
        return loss

    def _count_micro_batch(self, seconds: float) -> None:
        """As TRL does at the end of a training step."""
        self._step += 1
        self._current_train_step_time += seconds
        if self._step % self.current_gradient_accumulation_steps == 0:
            self._metrics["train"]["step_time"].append(self._current_train_step_time)
            self._current_train_step_time = 0.0

    def _close_step(self) -> None:
        """What all processes must know of an optimizer step, before its update. One collective call."""
        flags = gradient_flags(self)
        values, bad = self._step_sums.close(flags, reduce=self.sum_over_processes, device=self.device)
        self._append(values)
        leave_out_nonfinite(self, self._nonfinite, of_loss=bad[0], of_gradient=any(bad[1:]))

    # Generation batches

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        made = self.make_batch(inputs)
        if self.model.training:  # an evaluation between two updates of a batch says nothing of it
            self._rollout_log.made(made)
            self._skip_update = made.is_empty and can_be_left_out(self)
            self._resumes_inside = False
        return made.batch.data

    # Checkpoints

    def state_parts(self) -> dict[str, str]:
        """Parts of the state that this run keeps → the setting that has each of them kept."""
        keeps = type(self).credit_state is not CreditTrainer.credit_state
        own = {"credit": f"{type(self).__name__}.credit_state"} if keeps else {}
        return belief_setting(self.args) | own | self._trained_source.state

    def save_parts(self, folder: Path) -> dict[str, dict[str, Any]]:
        parts = belief_state(self.difficulty) | self._trained_source.save(folder)
        return parts | ({"credit": self.credit_state()} if "credit" in self.state_parts() else {})

    def load_parts(self, folder: Path, parts: dict[str, dict[str, Any]]) -> None:
        self._trained_source.load(folder)
        if "credit" in parts:
            self.load_credit_state(parts["credit"])
        load_belief(self.difficulty, parts, folder, correct=self.correct_names)
