"""The seam: with `engine.py`, on which it stands, the one module that names anything private of TRL.

TRL's unmodified `_compute_loss` runs its forward pass through `_get_per_token_logps_and_entropies` and only afterwards
reads π_old and the advantages from its inputs. [`CreditTrainer`] hands it a copy of the inputs that stays alive during
that call, and writes credit into it from inside the forward hook:

    inputs["old_per_token_logps"] = logps − W       so that TRL forms exp(logps − (logps − W)) = exp(W)
    inputs["advantages"]          = A of shape (B, T)

The reference is not detached, so the gradient of W flows and that of logps cancels. Clipping, KL on the plain logps,
loss types, metrics, entropy bonus and every correction are TRL's own.
"""

import contextlib
import math
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import trl
from accelerate.logging import get_logger
from packaging.version import Version
from trl.trainer.utils import get_config_model_id

from ..assignment import assign_credit, assign_policy_iteration
from ..config import CreditConfig
from ..credit import advantages as adv
from ..credit import difficulty as hardness
from ..credit.selection import probability_mask
from ..rewards.guard import guard_rewards, guard_rollout
from ..rollouts.attention import check_tree_attention, tree_attention
from ..rollouts.chain import chain_credit
from ..rollouts.forest import Forest
from .batches import known_or, local, loss_mask, replace_last, segment_ratio, trimmed, unpadded
from .checkpoints import REPLAY_FILE, STATE_FILE, last_checkpoint, read_state, write_state
from .engine import RolloutEngine
from .metrics import extra_kl, group_statistics, loss_statistics, response_hashes
from .nonfinite import NonFinite


logger = get_logger(__name__)


TESTED_TRL_MINORS = ("1.12", "1.13", "1.14", "1.16")  # of 1.15 there is only 1.15.0, which needs Triton to train
# the losses that divide by `num_items_in_batch`
_COUNTING_LOSSES = ("dapo", "cispo", "vespo")


def _check_trl_version(version: str) -> None:
    """Warns above the newest TRL whose `_compute_loss` the contract test has seen."""
    release = Version(version)
    newest = max(map(Version, TESTED_TRL_MINORS))
    if (release.major, release.minor) > (newest.major, newest.minor):
        warnings.warn(
            f"trl {version} is newer than {newest}, the newest that trl_credit was tested with. Run "
            "`pytest tests/test_contract.py` before a long run, or install an older trl.",
            stacklevel=3,
        )


_check_trl_version(trl.__version__)


@dataclass
class _LivePass:
    """One call of TRL's `_compute_loss`: the inputs it reads from, and how often it ran the forward hook."""

    inputs: dict[str, Any]
    mask_t: torch.Tensor
    hook_calls: int = field(default=0)
    extra_loss: torch.Tensor | None = None


class _NothingToLearn(Exception):
    """Leaves a training step before forward and backward pass, so that the optimizer finds no gradient."""


class CreditTrainer(RolloutEngine):
    """
    [`~trl.GRPOTrainer`] that decides which tokens get how much credit, by the knobs of [`CreditConfig`].

    Takes the arguments of `GRPOTrainer`; generation, rewards, distribution, logging, checkpoints and the Hub are TRL's.

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
        *others, **kwargs:
            Passed to `GRPOTrainer` unchanged.

    Raises:
        TypeError: `args` is a plain `GRPOConfig`, whose credit knobs do not exist.
        ValueError: `use_liger_kernel=True` on a TRL before 1.14, which bypasses the loss.
    """

    _tag_names = ["trl", "grpo", "trl-credit"]
    _paper: dict[str, str]
    summary: str = ""
    formula: str = ""
    config_class = CreditConfig

    @classmethod
    def uses(cls, args: CreditConfig) -> bool:
        """Whether a configuration, of any preset, uses this algorithm's method: for citations."""
        return isinstance(args, cls.config_class)

    @property
    def algorithm_name(self) -> str:
        """As people write it: "S-trace"."""
        return self._name

    def __init__(self, model: Any, reward_funcs: Any = None, args: CreditConfig | None = None, *others, **kwargs):
        if args is None:
            model_name = model if isinstance(model, str) else get_config_model_id(model.config)
            args = self.config_class(f"{model_name.split('/')[-1]}-{self._name}")
        if not isinstance(args, CreditConfig):
            raise TypeError(
                f"args is a {type(args).__name__}, which has no credit knobs: build a {self.config_class.__name__} "
                "from trl_credit with the same fields."
            )
        if args.use_liger_kernel and Version(trl.__version__) < Version("1.14"):
            raise ValueError(
                f"use_liger_kernel=True bypasses the loss in trl {trl.__version__}, and all credit with it: set "
                "use_liger_kernel=False, or install trl>=1.14."
            )
        self._live: _LivePass | None = None
        self._gathered_rewards: torch.Tensor | None = None
        self.difficulty: hardness.DifficultyBelief | None = None
        if args.difficulty != "none":
            self.difficulty = hardness.DifficultyBelief(
                mode=args.difficulty,
                window=args.difficulty_window,
                rate=args.difficulty_rate,
                rate_min=args.difficulty_rate_min,
                threshold=args.difficulty_threshold,
            )
        if args.rollouts != "none":
            for name in ("rollout_func", "tools", "environment_factory"):
                if kwargs.get(name) is not None:
                    raise ValueError(
                        f"{name} with rollouts={args.rollouts!r}: a response cannot be continued from its middle "
                        f"there. Leave {name} out, or set rollouts='none'."
                    )
        if kwargs.get("rollout_func") is not None:
            kwargs["rollout_func"] = guard_rollout(kwargs["rollout_func"])
        self._skip_update = False
        self._nonfinite = NonFinite(args.nonfinite_patience)
        self._phases: dict[str, float] = {}
        super().__init__(model, guard_rewards(reward_funcs, timeout=args.reward_timeout), args, *others, **kwargs)
        self.forest = Forest(self) if args.rollouts == "tree" else None
        fsdp = getattr(self.accelerator.state, "fsdp_plugin", None)
        if fsdp is not None and fsdp.cpu_ram_efficient_loading and getattr(self, "ref_model", None) is not None:
            raise ValueError(
                f"fsdp_cpu_ram_efficient_loading: true with beta={args.beta}: TRL would leave the reference model "
                "random on all processes but the first. Set it to false in the accelerate configuration (as "
                "accelerate_configs/fsdp2.yaml has it), or beta=0."
            )
        if args.rollouts == "tree" and args.tree_rows == "packed":
            self._attention = check_tree_attention(self.model.config)

    # Loss

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        if inputs["completion_ids"].size(1) == 0:
            raise ValueError(
                "every completion of this micro-batch is empty (completion_ids of shape (B, 0)): have the generation "
                "backend or rollout_func return at least the end-of-sequence token."
            )
        if self._skip_update and self.model.training:
            raise _NothingToLearn
        # a copy, because TRL uses this dict again in every one of num_iterations
        inputs = trimmed(inputs) if self.args.rollouts == "tree" and self.model.training else dict(inputs)
        live = self._live = _LivePass(inputs, loss_mask(inputs))
        if self.args.token_mask == "probability" and self.args.mask_normalizer == "code":
            live.mask_t = live.inputs["tool_mask"] = probability_mask(
                inputs["old_per_token_logps"], threshold=self.args.probability_threshold, mask_t=live.mask_t
            )
        try:
            loss = super()._compute_loss(model, live.inputs)
        finally:
            self._live = None
        if live.hook_calls != 1:
            raise RuntimeError(
                f"TRL {trl.__version__} computed log-probabilities {live.hook_calls} times in one loss, not once, so "
                f"credit was not assigned as intended. Tested with trl {', '.join(TESTED_TRL_MINORS)}: install one."
            )
        if live.extra_loss is not None:
            loss = loss + live.extra_loss / (self.current_gradient_accumulation_steps if self.model.training else 1)
        if self.model.training and self.largest(int(not torch.isfinite(loss))):
            self._nonfinite.found("loss", at_once=self._accumulates_in_deepspeed())
            raise _NothingToLearn  # on every process, before any gradient
        return loss

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        if (known := self._take_engine_logps(args)) is not None:
            return known, None, None
        with contextlib.ExitStack() as stack:
            if self.args.rollouts == "tree" and self.args.tree_rows == "packed" and self.model.training:
                if self._planned is not None:  # TRL's own passes over the rows before they are in a batch
                    kwargs["token_type_ids"] = self._visibility(self._planned.rows, *args[:1], args[2])
                stack.enter_context(tree_attention(model, implementation=self._attention))
            output = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        if self._live is not None:
            self._live.hook_calls += 1
            if self._live.hook_calls == 1:
                self._write_credit(self._live, logp_t=output[0], entropy_t=output[1])
        return output

    def _take_engine_logps(self, args: tuple) -> torch.Tensor | None:
        """The engine's log-probabilities in the place of TRL's pass for π_old, shape (B, T), if they are to be taken
        and all of them are known on all processes."""
        logps, self._engine_logps = self._engine_logps, None
        if logps is None:
            return None
        width = args[2]
        padded = torch.zeros(len(logps), width, device=self.accelerator.device)
        for row, values in zip(padded, logps, strict=True):
            row[: len(values)] = torch.tensor([math.nan if x is None else x for x in values])
        if self.largest(int(padded.isnan().any())):
            logger.warning("the engine did not give all log-probabilities: π_old is computed for this batch")
            return None
        return padded

    def _write_credit(self, live: _LivePass, *, logp_t: torch.Tensor, entropy_t: torch.Tensor) -> None:
        inputs, mask_t = live.inputs, live.mask_t
        old_logp_t = inputs.get("old_per_token_logps")
        old_logp_t = logp_t.detach() if old_logp_t is None else old_logp_t
        advantages = inputs["advantages"]
        if self.args.whiten_advantages == "microbatch":
            advantages = self._whitened(advantages, old_logp_t, mask_t)
        if self.args.policy_loss == "policy_iteration":
            # its weight is π over what sampled, so TRL's correction for the engine must not come on top
            credit = assign_policy_iteration(
                self.args,
                logp_t=logp_t,
                old_logp_t=known_or(inputs.get("sampling_per_token_logps"), old_logp_t),
                ref_logp_t=inputs["ref_per_token_logps"],
                advantages=advantages,
                segment_ids=inputs.get("segment_ids", torch.zeros_like(mask_t)),
                mask_t=mask_t,
            )
            inputs["ref_per_token_logps"] = logp_t  # whose KL term, with its gradient, is exactly 0
            if "importance_sampling_ratio" in inputs:
                inputs["importance_sampling_ratio"] = torch.ones_like(inputs["importance_sampling_ratio"])
        else:
            credit = assign_credit(
                self.args,
                logp_t=logp_t,
                old_logp_t=old_logp_t,
                entropy_t=entropy_t.detach(),
                advantages=advantages,
                mask_t=mask_t,
            )
            if self.beta != 0.0 and self.args.token_mask == "probability":
                live.extra_loss = extra_kl(
                    self.args, credit, logp_t=logp_t, old_logp_t=old_logp_t, inputs=inputs, mask_t=mask_t
                )
        if credit.log_weight is not None:
            if self.off_policy_mask_threshold is not None and inputs.get("sampling_per_token_logps") is None:
                inputs["sampling_per_token_logps"] = old_logp_t  # TRL would fall back on what is rewritten below
            # logps − W, grouped so that a W with the value of the plain log-ratio leaves π_old as it is, to the bit
            inputs["old_per_token_logps"] = old_logp_t + ((logp_t - old_logp_t) - credit.log_weight)
        inputs["advantages"] = credit.advantage
        self.record(
            loss_statistics(
                self.args,
                credit,
                logp_t=logp_t,
                old_logp_t=old_logp_t,
                mask_t=mask_t,
                clip_range=(1 - self.epsilon_low, 1 + self.epsilon_high),
            )
        )

    def _whitened(self, advantages: torch.Tensor, old_logp_t: torch.Tensor, mask_t: torch.Tensor) -> torch.Tensor:
        kept = mask_t
        if self.args.token_mask == "probability":
            kept = probability_mask(old_logp_t, threshold=self.args.probability_threshold, mask_t=mask_t)
            kept = kept if kept.any() else mask_t
        advantages = advantages if advantages.dim() == 2 else advantages.unsqueeze(1).expand(mask_t.shape)
        return adv.whiten(advantages, mask_t=kept, reduce=lambda sums: self.accelerator.reduce(sums, reduction="sum"))

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        start, before = time.perf_counter(), sum(self._phases.values())
        try:
            loss = super().training_step(*args, **kwargs)
        except _NothingToLearn:
            self._step += 1
            loss = torch.zeros((), device=self.accelerator.device)
        if self.accelerator.sync_gradients:
            self._check_gradients()
            self._metrics["train"]["credit/skipped_updates"].append(float(self._nonfinite.close_update()))
        if self.args.rollouts != "none":
            spent = time.perf_counter() - start - (sum(self._phases.values()) - before)
            self._phases["train"] = self._phases.get("train", 0.0) + spent
            if self.accelerator.sync_gradients:
                for name, seconds in self._phases.items():
                    self._metrics["train"][f"credit/seconds/{name}"].append(seconds)
                self._phases = {}
        return loss

    def _check_gradients(self) -> None:
        """Leaves an update out, on every process, whose gradient is not finite."""
        if self.accelerator.scaler is not None:
            return  # which does that itself
        if self.is_deepspeed_enabled:  # has updated already
            norm = self.model_wrapped.get_global_grad_norm()
            if norm is not None and self.largest(int(not math.isfinite(norm))):
                self._nonfinite.found("gradient", at_once=True)
            return
        gradients = [local(p.grad) for p in self.model.parameters() if p.grad is not None]
        finite = math.isfinite(torch.nn.utils.get_total_norm(gradients)) if gradients else True
        if self.largest(int(not finite)):
            self._nonfinite.found("gradient")
            for p in self.model.parameters():
                p.grad = None  # which optimizers pass over, with momentum and weight decay

    def _accumulates_in_deepspeed(self) -> bool:
        # a micro-batch left out there would move the border between two updates
        return self.is_deepspeed_enabled and self.args.gradient_accumulation_steps > 1

    # Advantages of a generation batch

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self._planned is not None:  # the rows are segments; what is logged are the responses they come from
            rewards_per_func = self._planned.rewards.to(self.accelerator.device)
        else:
            rewards_per_func = super()._calculate_rewards(*args, **kwargs)
        self._check_finite(rewards_per_func)
        self._gathered_rewards = rewards_per_func
        return rewards_per_func

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        rollouts = self.args.rollouts if self.model.training else "none"
        if rollouts == "none":
            output, rewards = self._timed_generation(inputs)
            advantages = self._row_advantages(output, rewards)
            self._replace_logged_advantages(advantages)
            output["advantages"] = self._own_rows(advantages, output)
        else:
            self._refuse_images(inputs)
            with self._engine_awake():
                output = self._chain_batch(inputs) if rollouts == "chain" else self._tree_batch(inputs)
        needs_mask = self.args.token_mask == "probability"
        code_mask = needs_mask and self.args.mask_normalizer == "code"
        if code_mask or (needs_mask and self.loss_type in _COUNTING_LOSSES):
            self._fill_old_logps(output)
        if self.args.whiten_advantages == "batch":
            if needs_mask:
                self._fill_old_logps(output)
            old_logp_t = output.get("old_per_token_logps")
            output["advantages"] = self._whitened(output["advantages"], old_logp_t, loss_mask(output))
        self._recount_loss_tokens(output)
        return output

    def _timed_generation(self, inputs: list[dict[str, Any]]) -> tuple[dict[str, Any], torch.Tensor]:
        """TRL's batch, and the total rewards (N,) of all processes' rows."""
        self._gathered_rewards = None
        with self.timed("generate"):
            output = super()._generate_and_score_completions(inputs)
        self._engine_logps = None
        if self.args.behavior_logps == "sampler":
            sampled = output.get("sampling_per_token_logps")
            if sampled is not None:
                if self.largest(int(sampled.isnan().any())):
                    self._fill_old_logps(output)  # for what the engine did not know
                output["old_per_token_logps"] = known_or(sampled, output.get("old_per_token_logps"))
            if "importance_sampling_ratio" in output:  # π_old is what sampled: nothing to correct
                output["importance_sampling_ratio"] = torch.ones_like(output["importance_sampling_ratio"])
        if self._gathered_rewards is None:
            raise RuntimeError(f"trl {trl.__version__} scored completions without _calculate_rewards: not supported.")
        rewards_per_func, self._gathered_rewards = self._gathered_rewards, None
        return output, self.total_reward(rewards_per_func)

    def _own_rows(self, x: torch.Tensor, output: dict[str, Any]) -> torch.Tensor:
        rows = output["completion_ids"].size(0)
        start = self.accelerator.process_index * rows
        return x[start : start + rows]

    def _row_advantages(self, output: dict[str, Any], rewards: torch.Tensor) -> torch.Tensor:
        """Advantages (N,) of all processes' rows: baseline, scale, difficulty weight, floor, in that order."""
        num_generations = self.num_generations if self.model.training else self.num_generations_eval
        lengths = self._log_groups(output, rewards, num_generations)
        advantages = self.accelerator.gather(output["advantages"])
        if self.args.baseline == "optimal":
            advantages = adv.optimal_advantage(rewards, lengths=lengths, num_generations=num_generations)
        if self.difficulty is not None:
            advantages = self._weight_by_difficulty(advantages, *self._accuracies(rewards, num_generations))
        if self.args.advantage_floor is not None:
            advantages = advantages.clamp(min=self.args.advantage_floor)
        return advantages

    def _log_groups(self, output: dict[str, Any], rewards: torch.Tensor, num_generations: int) -> torch.Tensor:
        # every process makes these two calls, whatever the knobs: equal shapes on all of them
        lengths = self.accelerator.gather(loss_mask(output).sum(-1))
        hashes = self.accelerator.gather(
            response_hashes(output["completion_ids"], pad_token_id=self._tokenizer.pad_token_id)
        )
        metrics = self._metrics["train" if self.model.training else "eval"]
        for name, value in group_statistics(rewards, hashes, num_generations=num_generations).items():
            metrics[f"credit/{name}"].append(value)
        return lengths

    def _accuracies(self, rewards: torch.Tensor, num_generations: int) -> tuple[torch.Tensor, float]:
        """p̂ of every row's prompt (N,), and that of the batch."""
        p_hat = hardness.group_accuracy(
            rewards, num_generations=num_generations, reward_range=self.args.reward_range
        ).repeat_interleave(num_generations)
        return p_hat, hardness.batch_accuracy(rewards, reward_range=self.args.reward_range)

    def _weight_by_difficulty(self, advantages: torch.Tensor, p_hat: torch.Tensor, accuracy: float) -> torch.Tensor:
        """`advantages` of shape (N,) or (N, T), `p_hat` (N,). A NaN `accuracy` (nothing scored) changes nothing."""
        if math.isnan(accuracy):
            return advantages
        p_hat = p_hat if advantages.dim() == 1 else p_hat.unsqueeze(1).expand_as(advantages)
        prior = self.difficulty.prior(accuracy)
        phi = hardness.difficulty_weight(advantages, p_hat=p_hat, prior=prior, scale=self.args.difficulty_scale)
        self._metrics["train" if self.model.training else "eval"]["credit/difficulty_belief"].append(prior)
        credited = advantages != 0 if advantages.dim() == 2 else torch.ones_like(advantages, dtype=torch.bool)
        self.record(
            {
                f"difficulty_weight/{name}": ((phi * (rows & credited)).sum(), (rows & credited).sum())
                for name, rows in (("harder", p_hat < prior), ("easier", p_hat > prior))
            }
        )
        if self.model.training:  # an evaluation sees other prompts and must not move the belief
            self.difficulty.update(accuracy)
        return advantages * phi

    def _replace_logged_advantages(self, advantages: torch.Tensor) -> None:
        replace_last(self._logs["advantages"], advantages.tolist())

    def _recount_loss_tokens(self, output: dict[str, Any]) -> None:
        """Makes `num_items_in_batch`, which DAPO divides by, the number of tokens (or segments) of the policy term."""
        if self.loss_type not in _COUNTING_LOSSES:
            return  # these normalise inside the micro-batch
        mask_t = loss_mask(output)
        if self.args.policy_loss == "policy_iteration":
            ids = output.get("segment_ids", torch.zeros_like(mask_t))
            counted = torch.where(mask_t.bool(), ids, -1) + 1  # 0 for what lies in no segment
            present = torch.zeros(len(ids), int(ids.max().clamp(min=0)) + 2, device=ids.device)
            kept = present.scatter(1, counted, 1.0)[:, 1:].sum().long()
        elif self.args.token_mask == "probability":
            kept = probability_mask(
                output["old_per_token_logps"], threshold=self.args.probability_threshold, mask_t=mask_t
            ).sum()
        elif "segment_ids" in output:
            kept = mask_t.sum()
        else:
            return
        output["num_items_in_batch"] = self.accelerator.gather(kept).sum()

    def _fill_old_logps(self, output: dict[str, Any]) -> None:
        # TRL skips this pass when the policy cannot have moved, but masks and segments must be known before the loss
        if output.get("old_per_token_logps") is None:
            output["old_per_token_logps"] = self._behavior_logps(output)

    # Segments

    def _chain_batch(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output, rewards = self._timed_generation(inputs)
        self._log_groups(output, rewards, self.num_generations)
        self._fill_old_logps(output)
        credit = chain_credit(
            self,
            inputs,
            prompt_ids=unpadded(output["prompt_ids"], output["prompt_mask"]),
            completion_ids=unpadded(output["completion_ids"], output["completion_mask"]),
            old_logp_t=output["old_per_token_logps"],
            rewards=rewards,
            mask_t=output["completion_mask"],
        )
        advantages = credit.advantages
        if self.difficulty is not None:
            p_hat, accuracy = self._accuracies(rewards, self.num_generations)
            advantages = self._weight_by_difficulty(advantages, self._own_rows(p_hat, output), accuracy)
        output["advantages"], output["segment_ids"] = advantages, credit.segment_ids
        if credit.unsplit.any():  # no steps, no credit, and no part in the normaliser
            has_steps = (~credit.unsplit).unsqueeze(1).to(output["completion_mask"].dtype)
            output["tool_mask"] = loss_mask(output) * has_steps
        self._replace_logged_advantages(self.accelerator.gather(credit.per_response))
        return output

    def _tree_batch(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        plan = self._planned = self.forest.plan(inputs)
        try:
            output, _ = self._timed_generation(inputs)
        finally:
            self._planned = None
        width = output["completion_ids"].size(1)
        output.update(self.forest.credit_tensors(plan, width=width))
        if self.args.tree_rows == "packed":
            input_ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
            output["token_type_ids"] = self._visibility(plan.rows, input_ids, width)
        if self.difficulty is not None:
            output["advantages"] = self._weight_by_difficulty(output["advantages"], output["p_hat"], plan.accuracy)
        del output["p_hat"]
        replayed, known = output.pop("replayed").unsqueeze(1), output.pop("behavior_logps")
        if "importance_sampling_ratio" in output:
            ratio = segment_ratio(
                output["old_per_token_logps"],
                output["sampling_per_token_logps"],
                segment_ids=output["segment_ids"],
                mode=self.vllm_importance_sampling_mode,
                low=self.vllm_importance_sampling_clip_min,
                high=self.vllm_importance_sampling_clip_max,
            )
            # the π_old of replayed rows is already that of what sampled them
            output["importance_sampling_ratio"] = ratio.masked_fill(replayed, 1.0)
        if plan.has_replayed:  # the same on all processes
            self._fill_old_logps(output)
            old_logp_t = output["old_per_token_logps"]
            output["old_per_token_logps"] = torch.where(replayed & ~known.isnan(), known, old_logp_t)
        self._log_responses(plan)
        if plan.is_empty:
            logger.warning("no segment of this generation batch has an advantage: there is no update on any process")
        # half an accumulation window cannot be left out, nor can a gradient scaler do without gradients
        whole = self.args.steps_per_generation % self.args.gradient_accumulation_steps == 0
        self._skip_update = plan.is_empty and whole and self.accelerator.scaler is None
        return output

    def _log_responses(self, plan: Any) -> None:
        """Puts whole responses, sampled from the trees, in the place of the segments that TRL logged."""
        count = len(plan.logged_texts)
        for name, values in (("completion", plan.logged_texts), ("advantages", plan.logged_advantages)):
            replace_last(self._logs[name], values)
        lengths = torch.tensor(plan.logged_lengths, dtype=torch.float)
        ended = lengths[~torch.tensor(plan.logged_truncated)]
        ended = ended if len(ended) else torch.zeros(1)
        values = {
            "mean_length": lengths.mean(),
            "min_length": lengths.min(),
            "max_length": lengths.max(),
            "clipped_ratio": 1 - torch.tensor(float((~torch.tensor(plan.logged_truncated)).sum())) / count,
            "mean_terminated_length": ended.mean(),
            "min_terminated_length": ended.min(),
            "max_terminated_length": ended.max(),
        }
        for name, value in values.items():
            self._metrics["train"][f"completions/{name}"][-1] = value.item()

    def _refuse_images(self, inputs: list[dict[str, Any]]) -> None:
        if any(example.get(name) is not None for example in inputs for name in ("image", "images")):
            raise ValueError(
                f"rollouts={self.args.rollouts!r} continues responses from token ids, without their images: use a data "
                "set without image columns, or set rollouts='none'."
            )

    # Checkpoints

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in `Trainer`, but that `resume_from_checkpoint=True` is the last checkpoint that was written to its end.

        Raises:
            ValueError: there is no checkpoint to resume from, or its algorithm's state is not this run's.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_checkpoint(self.args.output_dir)
            if resume_from_checkpoint is None:
                raise ValueError(f"there is no complete checkpoint in {self.args.output_dir!r} to resume from.")
        if resume_from_checkpoint:
            resume_from_checkpoint = str(resume_from_checkpoint)
            if Path(resume_from_checkpoint).is_dir():
                read_state(resume_from_checkpoint, wanted=self._stateful_settings())  # before anything is loaded
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _stateful_settings(self) -> dict[str, str]:
        wanted = {}
        if self.difficulty is not None:
            wanted["difficulty"] = f"difficulty={self.args.difficulty!r}"
        if self.forest is not None:
            wanted["replay"] = "rollouts='tree'"
        return wanted

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        # with the optimizer rather than after the checkpoint: older checkpoints are deleted only once this is written
        super()._save_optimizer_and_scheduler(output_dir)
        if not self.args.should_save:
            return
        parts: dict[str, dict[str, Any]] = {}
        if self.difficulty is not None:
            parts["difficulty"] = self.difficulty.state_dict()
        if self.forest is not None:
            self.forest.buffer.save(Path(output_dir) / REPLAY_FILE)
            parts["replay"] = {"file": REPLAY_FILE, "rows": len(self.forest.buffer)}
        write_state(output_dir, parts)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        # what rank 0 writes next says that the checkpoint is complete
        self.accelerator.wait_for_everyone()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        parts = read_state(checkpoint, wanted=self._stateful_settings())
        if self.forest is not None:
            self.forest.buffer.load(Path(checkpoint) / REPLAY_FILE)
        if self.difficulty is None:
            return
        try:
            self.difficulty.load_state_dict(parts["difficulty"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"cannot resume the difficulty belief from {Path(checkpoint) / STATE_FILE} ({error}): resume from a "
                "checkpoint that was written with the same difficulty_* settings."
            ) from error
