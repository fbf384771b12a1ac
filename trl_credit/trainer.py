"""The seam: the one module that names anything private of TRL.

TRL's unmodified `_compute_loss` runs its forward pass through `_get_per_token_logps_and_entropies` and only afterwards
reads π_old and the advantages from its inputs. [`CreditTrainer`] hands it a copy of the inputs that stays alive during
that call, and writes credit into it from inside the forward hook:

    inputs["old_per_token_logps"] = logps − W       so that TRL forms exp(logps − (logps − W)) = exp(W)
    inputs["advantages"]          = A of shape (B, T)

The reference is not detached, so the gradient of W flows and that of logps cancels. Clipping, KL on the plain logps,
loss types, metrics, entropy bonus and every correction are TRL's own.
"""

import json
import math
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import trl
from packaging.version import Version
from trl import GRPOTrainer
from trl.trainer.utils import get_config_model_id

from .assignment import assign_credit
from .config import CreditConfig
from .credit import advantages as adv
from .credit import difficulty as hardness
from .credit.selection import probability_mask
from .diagnostics import group_statistics, loss_statistics, response_hashes
from .guards import guard_rewards, guard_rollout


TESTED_TRL_MINORS = ("1.12", "1.13", "1.14", "1.16")  # of 1.15 there is only 1.15.0, which needs Triton to train
STATE_FILE = "credit_state.json"
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


class CreditTrainer(GRPOTrainer):
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
    config_class = CreditConfig

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
        if kwargs.get("rollout_func") is not None:
            kwargs["rollout_func"] = guard_rollout(kwargs["rollout_func"])
        super().__init__(model, guard_rewards(reward_funcs), args, *others, **kwargs)

    # Loss

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        if inputs["completion_ids"].size(1) == 0:
            raise ValueError(
                "every completion of this micro-batch is empty (completion_ids of shape (B, 0)): have the generation "
                "backend or rollout_func return at least the end-of-sequence token."
            )
        mask_t = inputs["completion_mask"]
        if inputs.get("tool_mask") is not None:
            mask_t = mask_t * inputs["tool_mask"]
        # a copy, because TRL uses this dict again in every one of num_iterations
        live = self._live = _LivePass(dict(inputs), mask_t)
        try:
            loss = super()._compute_loss(model, live.inputs)
        finally:
            self._live = None
        if live.hook_calls != 1:
            raise RuntimeError(
                f"TRL {trl.__version__} computed log-probabilities {live.hook_calls} times in one loss, not once, so "
                f"credit was not assigned as intended. Tested with trl {', '.join(TESTED_TRL_MINORS)}: install one."
            )
        return loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        output = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._live is not None:
            self._live.hook_calls += 1
            if self._live.hook_calls == 1:
                self._write_credit(self._live, logp_t=output[0], entropy_t=output[1])
        return output

    def _write_credit(self, live: _LivePass, *, logp_t: torch.Tensor, entropy_t: torch.Tensor) -> None:
        inputs, mask_t = live.inputs, live.mask_t
        old_logp_t = inputs.get("old_per_token_logps")
        old_logp_t = logp_t.detach() if old_logp_t is None else old_logp_t
        credit = assign_credit(
            self.args,
            logp_t=logp_t,
            old_logp_t=old_logp_t,
            entropy_t=entropy_t.detach(),
            advantages=inputs["advantages"],
            mask_t=mask_t,
        )
        if credit.log_weight is not None:
            if self.off_policy_mask_threshold is not None and inputs.get("sampling_per_token_logps") is None:
                inputs["sampling_per_token_logps"] = old_logp_t  # TRL would fall back on what is rewritten below
            # logps − W, grouped so that a W with the value of the plain log-ratio leaves π_old as it is, to the bit
            inputs["old_per_token_logps"] = old_logp_t + ((logp_t - old_logp_t) - credit.log_weight)
        inputs["advantages"] = credit.advantage
        self._log_loss_statistics(
            loss_statistics(
                self.args,
                credit,
                logp_t=logp_t,
                old_logp_t=old_logp_t,
                mask_t=mask_t,
                clip_range=(1 - self.epsilon_low, 1 + self.epsilon_high),
            )
        )

    def _log_loss_statistics(self, stats: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        # one collective of one shape, whatever a process has to train on
        sums = torch.stack([part.detach().float() for pair in stats.values() for part in pair])
        sums = self.accelerator.reduce(sums, reduction="sum").view(-1, 2)
        metrics = self._metrics["train" if self.model.training else "eval"]
        for name, value in zip(stats, (sums[:, 0] / sums[:, 1]).tolist(), strict=True):
            metrics[f"credit/{name}"].append(value)  # 0/0 is NaN: no such token, left out of the mean by TRL

    # Advantages of a generation batch

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        rewards_per_func = super()._calculate_rewards(*args, **kwargs)
        if torch.isinf(rewards_per_func).any():
            column = torch.isinf(rewards_per_func).any(0).nonzero()[0].item()
            raise ValueError(f"reward {self.reward_func_names[column]!r} is infinite: rewards must be finite.")
        self._gathered_rewards = rewards_per_func
        return rewards_per_func

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._gathered_rewards = None
        output = super()._generate_and_score_completions(inputs)
        if self._gathered_rewards is None:
            raise RuntimeError(f"trl {trl.__version__} scored completions without _calculate_rewards: not supported.")
        rewards_per_func, self._gathered_rewards = self._gathered_rewards, None
        weighted = rewards_per_func * self.reward_weights.to(rewards_per_func.device)
        rewards = weighted.nansum(1).masked_fill(rewards_per_func.isnan().all(1), torch.nan)

        advantages = self._row_advantages(output, rewards)
        rows = output["advantages"].size(0)
        start = self.accelerator.process_index * rows
        output["advantages"] = advantages[start : start + rows]
        self._replace_logged_advantages(advantages)
        if self.args.token_mask == "probability":
            self._recount_loss_tokens(output)
        return output

    def _row_advantages(self, output: dict[str, Any], rewards: torch.Tensor) -> torch.Tensor:
        """Advantages (N,) of all processes' rows: baseline, scale, difficulty weight, floor, in that order."""
        training = self.model.training
        num_generations = self.num_generations if training else self.num_generations_eval
        metrics = self._metrics["train" if training else "eval"]

        # every process makes these three calls, whatever the knobs: equal shapes on all of them
        mask_t = output["completion_mask"]
        mask_t = mask_t * output["tool_mask"] if output.get("tool_mask") is not None else mask_t
        lengths = self.accelerator.gather(mask_t.sum(-1))
        hashes = self.accelerator.gather(
            response_hashes(output["completion_ids"], pad_token_id=self._tokenizer.pad_token_id)
        )
        advantages = self.accelerator.gather(output["advantages"])

        for name, value in group_statistics(rewards, hashes, num_generations=num_generations).items():
            metrics[f"credit/{name}"].append(value)
        if self.args.baseline == "optimal":
            advantages = adv.optimal_advantage(rewards, lengths=lengths, num_generations=num_generations)
        if self.difficulty is not None:
            advantages = self._weight_by_difficulty(advantages, rewards, num_generations)
        if self.args.advantage_floor is not None:
            advantages = advantages.clamp(min=self.args.advantage_floor)
        return advantages

    def _weight_by_difficulty(
        self, advantages: torch.Tensor, rewards: torch.Tensor, num_generations: int
    ) -> torch.Tensor:
        training = self.model.training
        p_hat = hardness.group_accuracy(
            rewards, num_generations=num_generations, reward_range=self.args.reward_range
        ).repeat_interleave(num_generations)
        accuracy = hardness.batch_accuracy(rewards, reward_range=self.args.reward_range)
        if math.isnan(accuracy):
            return advantages  # no response was scored: nothing to weight, nothing to learn of the difficulty
        prior = self.difficulty.prior(accuracy)
        phi = hardness.difficulty_weight(advantages, p_hat=p_hat, prior=prior, scale=self.args.difficulty_scale)
        metrics = self._metrics["train" if training else "eval"]
        metrics["credit/difficulty_belief"].append(prior)
        for name, rows in (("harder", p_hat < prior), ("easier", p_hat > prior)):
            metrics[f"credit/difficulty_weight/{name}"].append(phi[rows].mean().item())
        if training:  # an evaluation sees other prompts and must not move the belief
            self.difficulty.update(accuracy)
        return advantages * phi

    def _replace_logged_advantages(self, advantages: torch.Tensor) -> None:
        logged = self._logs["advantages"]
        for _ in range(min(len(logged), advantages.numel())):
            logged.pop()
        logged.extend(advantages.tolist())

    def _recount_loss_tokens(self, output: dict[str, Any]) -> None:
        """Makes `num_items_in_batch`, which DAPO divides by, the number of tokens that the probability mask keeps."""
        if self.loss_type not in ("dapo", "cispo", "vespo"):
            return  # these normalise inside the micro-batch
        if output.get("old_per_token_logps") is None:
            output["old_per_token_logps"] = self._behavior_logps(output)
        mask_t = output["completion_mask"]
        mask_t = mask_t * output["tool_mask"] if output.get("tool_mask") is not None else mask_t
        kept = probability_mask(
            output["old_per_token_logps"], threshold=self.args.probability_threshold, mask_t=mask_t
        ).sum()
        output["num_items_in_batch"] = self.accelerator.gather(kept).sum()

    @torch.no_grad()
    def _behavior_logps(self, output: dict[str, Any]) -> torch.Tensor:
        # TRL skips this pass when the policy cannot have moved, but the mask must be known before the first loss
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

    # Checkpoints

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        # with the optimizer rather than after the checkpoint: older checkpoints are deleted only once this is written
        super()._save_optimizer_and_scheduler(output_dir)
        if self.difficulty is not None and self.args.should_save:
            path = Path(output_dir) / STATE_FILE
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps({"difficulty": self.difficulty.state_dict()}))
            partial.replace(path)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if self.difficulty is None or checkpoint is None:
            return
        path = Path(checkpoint) / STATE_FILE
        try:
            self.difficulty.load_state_dict(json.loads(path.read_text())["difficulty"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"cannot resume the difficulty belief from {path} ({error}): resume from a checkpoint that was written "
                f"with difficulty={self.args.difficulty!r}, or set difficulty='none'."
            ) from error
