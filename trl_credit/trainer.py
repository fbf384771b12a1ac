"""The seam: the one module that names anything private of TRL.

TRL's unmodified `_compute_loss` runs its forward pass through `_get_per_token_logps_and_entropies` and only afterwards
reads π_old and the advantages from its inputs. [`CreditTrainer`] hands it a copy of the inputs that stays alive during
that call, and writes credit into it from inside the forward hook:

    inputs["old_per_token_logps"] = logps − W       so that TRL forms exp(logps − (logps − W)) = exp(W)
    inputs["advantages"]          = A of shape (B, T)

The reference is not detached, so the gradient of W flows and that of logps cancels. Clipping, KL on the plain logps,
loss types, metrics, entropy bonus and every correction are TRL's own.
"""

import contextlib
import functools
import json
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import trl
from accelerate.logging import get_logger
from packaging.version import Version
from tqdm.auto import tqdm
from trl import GRPOTrainer
from trl.chat_template_utils import parse_response
from trl.data_utils import is_conversational
from trl.trainer.utils import get_config_model_id, pad

from .assignment import assign_credit, assign_policy_iteration
from .config import CreditConfig
from .credit import advantages as adv
from .credit import difficulty as hardness
from .credit.selection import probability_mask
from .diagnostics import extra_kl, group_statistics, loss_statistics, response_hashes
from .guards import guard_rewards, guard_rollout
from .rollouts.chain import chain_credit
from .rollouts.forest import Forest
from .rollouts.replay import Row
from .rollouts.tree import Continuation
from .tree_attention import check_tree_attention, tree_attention


logger = get_logger(__name__)


TESTED_TRL_MINORS = ("1.12", "1.13", "1.14", "1.16")  # of 1.15 there is only 1.15.0, which needs Triton to train
STATE_FILE = "credit_state.json"
REPLAY_FILE = "replay.safetensors"
PROGRESS_DELAY = 4.0  # seconds before a progress bar of rollouts appears
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


class _PerPrompt:
    """Stands in for TRL's colocated vLLM during one call: `n` samples per request, and a token budget for each."""

    def __init__(self, llm: Any, *, n: int, budgets: Sequence[int], show: Any) -> None:
        self._llm, self._n, self._budgets, self._show = llm, n, budgets, show

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    def generate(self, prompts: list, sampling_params: Any, **kwargs: Any) -> Any:
        own = []
        for budget in self._budgets:
            own.append(sampling_params.clone())
            own[-1].n, own[-1].max_tokens = self._n, budget
        return self._llm.generate(prompts, sampling_params=own, **{**kwargs, "use_tqdm": self._show})


@contextlib.contextmanager
def _temporarily(owner: Any, **attributes: Any) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def _loss_mask(batch: dict[str, Any]) -> torch.Tensor:
    """Shape (B, T), 1 for the tokens that the loss sees."""
    mask_t = batch["completion_mask"]
    return mask_t * batch["tool_mask"] if batch.get("tool_mask") is not None else mask_t


def _trimmed(batch: dict[str, Any]) -> dict[str, Any]:
    """A copy of a micro-batch without the columns that only other rows of its generation batch need.

    Rows of a tree differ much in length, and TRL pads all of them to the longest.
    """
    drop = batch["prompt_mask"].size(1) - int(batch["prompt_mask"].sum(1).max())
    width, begin = batch["completion_mask"].size(1), batch["prompt_mask"].size(1)
    keep = int(batch["completion_mask"].sum(1).max())
    found = {}
    for name, value in batch.items():
        if name in ("prompt_ids", "prompt_mask"):
            value = value[:, drop:]
        elif name == "token_type_ids":
            value = (value[:, drop : begin + keep] - drop).clamp(min=0)
        elif isinstance(value, torch.Tensor) and value.dim() == 2 and value.size(1) == width > 1:
            value = value[:, :keep]
        found[name] = value
    return found


def _known_or(x: torch.Tensor | None, default: torch.Tensor) -> torch.Tensor:
    return default if x is None else torch.where(x.isnan(), default, x)


def _replace_last(logged: Any, values: list) -> None:
    """Replaces the last entries of one of TRL's logs, a deque that may hold fewer of them than there are."""
    for _ in range(min(len(logged), len(values))):
        logged.pop()
    logged.extend(values)


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
        if args.rollouts != "none":
            for name in ("rollout_func", "tools", "environment_factory"):
                if kwargs.get(name) is not None:
                    raise ValueError(
                        f"{name} with rollouts={args.rollouts!r}: a response cannot be continued from its middle "
                        f"there. Leave {name} out, or set rollouts='none'."
                    )
        if kwargs.get("rollout_func") is not None:
            kwargs["rollout_func"] = guard_rollout(kwargs["rollout_func"])
        self._planned: Any = None
        self._skip_update = False
        self._phases: dict[str, float] = {}
        super().__init__(model, guard_rewards(reward_funcs), args, *others, **kwargs)
        self.forest = Forest(self) if args.rollouts == "tree" else None
        if args.rollouts == "tree" and args.tree_rows == "packed":
            check_tree_attention(self.model.config)

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
        inputs = _trimmed(inputs) if self.args.rollouts == "tree" and self.model.training else dict(inputs)
        live = self._live = _LivePass(inputs, _loss_mask(inputs))
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
        return loss

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as stack:
            if self.args.rollouts == "tree" and self.args.tree_rows == "packed" and self.model.training:
                if self._planned is not None:  # TRL's own passes over the rows before they are in a batch
                    kwargs["token_type_ids"] = self._visibility(self._planned.rows, *args[:1], args[2])
                stack.enter_context(tree_attention(model))
            output = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        if self._live is not None:
            self._live.hook_calls += 1
            if self._live.hook_calls == 1:
                self._write_credit(self._live, logp_t=output[0], entropy_t=output[1])
        return output

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
                old_logp_t=_known_or(inputs.get("sampling_per_token_logps"), old_logp_t),
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

    def record(self, stats: dict[str, tuple[Any, Any]]) -> None:
        """Logs `credit/<name>` = Σ numerators / Σ denominators over all processes, by one collective call.

        All processes must give the same names in the same order. Where a denominator is 0 nothing is logged.
        """
        device = self.accelerator.device
        parts = [torch.as_tensor(part, device=device).detach().float() for pair in stats.values() for part in pair]
        sums = self.accelerator.reduce(torch.stack(parts), reduction="sum").view(-1, 2)
        metrics = self._metrics["train" if self.model.training else "eval"]
        for name, value in zip(stats, (sums[:, 0] / sums[:, 1]).tolist(), strict=True):
            metrics[f"credit/{name}"].append(value)  # 0/0 is NaN: no such token, left out of the mean by TRL

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
        if self.args.rollouts != "none":
            spent = time.perf_counter() - start - (sum(self._phases.values()) - before)
            self._phases["train"] = self._phases.get("train", 0.0) + spent
            if self.accelerator.sync_gradients:
                for name, seconds in self._phases.items():
                    self._metrics["train"][f"credit/seconds/{name}"].append(seconds)
                self._phases = {}
        return loss

    # Advantages of a generation batch

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self._planned is not None:  # the rows are segments; what is logged are the responses they come from
            rewards_per_func = self._planned.rewards.to(self.accelerator.device)
        else:
            rewards_per_func = super()._calculate_rewards(*args, **kwargs)
        self._check_finite(rewards_per_func)
        self._gathered_rewards = rewards_per_func
        return rewards_per_func

    def _check_finite(self, rewards_per_func: torch.Tensor) -> None:
        if torch.isinf(rewards_per_func).any():
            column = torch.isinf(rewards_per_func).any(0).nonzero()[0].item()
            raise ValueError(f"reward {self.reward_func_names[column]!r} is infinite: rewards must be finite.")

    def total_reward(self, rewards_per_func: torch.Tensor) -> torch.Tensor:
        """Weighted sum of the reward functions, shape (N, functions) → (N,); NaN where none of them applies."""
        weighted = rewards_per_func * self.reward_weights.to(rewards_per_func.device)
        return weighted.nansum(1).masked_fill(rewards_per_func.isnan().all(1), torch.nan)

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
            output["advantages"] = self._whitened(output["advantages"], old_logp_t, _loss_mask(output))
        self._recount_loss_tokens(output)
        return output

    def _timed_generation(self, inputs: list[dict[str, Any]]) -> tuple[dict[str, Any], torch.Tensor]:
        """TRL's batch, and the total rewards (N,) of all processes' rows."""
        self._gathered_rewards = None
        with self.timed("generate"):
            output = super()._generate_and_score_completions(inputs)
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
        lengths = self.accelerator.gather(_loss_mask(output).sum(-1))
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
        _replace_last(self._logs["advantages"], advantages.tolist())

    def _recount_loss_tokens(self, output: dict[str, Any]) -> None:
        """Makes `num_items_in_batch`, which DAPO divides by, the number of tokens (or segments) of the policy term."""
        if self.loss_type not in _COUNTING_LOSSES:
            return  # these normalise inside the micro-batch
        mask_t = _loss_mask(output)
        if self.args.policy_loss == "policy_iteration":
            ids = output.get("segment_ids", torch.zeros_like(mask_t))
            kept = torch.stack([((ids == k) & mask_t.bool()).any(1).sum() for k in range(int(ids.max()) + 1)]).sum()
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

    @torch.no_grad()
    def _behavior_logps(self, output: dict[str, Any]) -> torch.Tensor:
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

    # Segments

    def _chain_batch(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output, rewards = self._timed_generation(inputs)
        self._log_groups(output, rewards, self.num_generations)
        self._fill_old_logps(output)
        credit = chain_credit(self, inputs, output, rewards)
        advantages = credit.advantages
        if self.difficulty is not None:
            p_hat, accuracy = self._accuracies(rewards, self.num_generations)
            advantages = self._weight_by_difficulty(advantages, self._own_rows(p_hat, output), accuracy)
        output["advantages"], output["segment_ids"] = advantages, credit.segment_ids
        if credit.unsplit.any():  # no steps, no credit, and no part in the normaliser
            has_steps = (~credit.unsplit).unsqueeze(1).to(output["completion_mask"].dtype)
            output["tool_mask"] = _loss_mask(output) * has_steps
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
        replayed = output.pop("replayed")
        if plan.has_replayed:  # the same on all processes
            self._fill_old_logps(output)
            known = output.pop("behavior_logps")
            output["old_per_token_logps"] = torch.where(replayed.unsqueeze(1), known, output["old_per_token_logps"])
            if "importance_sampling_ratio" in output:  # their π_old is already that of what sampled
                ratio = output["importance_sampling_ratio"]
                output["importance_sampling_ratio"] = torch.where(replayed.unsqueeze(1), 1.0, ratio)
        output.pop("behavior_logps", None)
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
            _replace_last(self._logs[name], values)
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

    # What rollouts ask of TRL's engines

    def continue_prefixes(
        self, prefixes: list[list[int]], *, n: int, budgets: list[int], label: str = "rollouts"
    ) -> list[Continuation]:
        """`n` continuations of every prefix of token ids, those of one prefix together, by the policy as it is.

        One engine call, or as many as `rollout_batch_size` asks for. Every process must call it, with as many prefixes
        as it has (none is allowed).

        Args:
            prefixes (`list[list[int]]`):
                Token ids, as they are: nothing is tokenised again.
            n (`int`):
                Continuations per prefix.
            budgets (`list[int]`):
                Tokens that the continuations of each prefix may have, at least 1.

        Returns:
            `list` of [`Continuation`], `n · len(prefixes)` of them.
        """
        size = max(1, (self.args.rollout_batch_size or n * max(len(prefixes), 1)) // n)
        chunks = range(0, self.largest(-(-len(prefixes) // size)) * size, size)
        found: list[Continuation] = []
        hidden = self.args.disable_tqdm or not self.accelerator.is_main_process
        bar = functools.partial(tqdm, desc=label, leave=False, delay=PROGRESS_DELAY, disable=hidden)
        for i in chunks:
            part = slice(i, i + size)
            found += self._continue_once(prefixes[part], n=n, budgets=budgets[part], bar=bar)
        return found

    def _continue_once(
        self, prefixes: list[list[int]], *, n: int, budgets: list[int], bar: functools.partial
    ) -> list[Continuation]:
        wanted = len(prefixes)
        alone = self.use_vllm and self.vllm_mode == "colocate" and self.args.vllm_tensor_parallel_size == 1
        # a process without work takes part all the same, and a shared engine deals out equal shares
        missing = max(1 - wanted, 0) if alone or not self.use_vllm else self.largest(wanted) - wanted
        filler = prefixes[:1] or [[self._tokenizer.eos_token_id]]
        prefixes = [*prefixes, *filler * missing]
        budgets = [*budgets, *[1] * missing]
        # TRL's call gives all prompts one limit: what a continuation has beyond its own budget is cut off
        limit = self.largest(max(budgets))
        with contextlib.ExitStack() as stack:
            if alone:
                # vLLM divides by the time of the bar, which a hidden one does not keep
                show = False if bar.keywords["disable"] else bar
                llm = _PerPrompt(self.vllm_generation.llm, n=n, budgets=budgets, show=show)
                stack.enter_context(_temporarily(self.vllm_generation, llm=llm))
                repeated = prefixes
            else:
                repeated = [prefix for prefix in prefixes for _ in range(n)]
                stack.enter_context(_temporarily(self, num_generations=n))  # read there before TRL 1.15
                if self.use_vllm:
                    stack.enter_context(_temporarily(self.vllm_generation, max_completion_length=limit))
                else:
                    stack.enter_context(_temporarily(self.generation_config, max_new_tokens=limit))
                    stack.enter_context(self._token_bar(bar, limit))
            count = [n] if Version(trl.__version__) >= Version("1.15") else []
            ids, logps = super()._generate_single_turn(repeated, None, {}, *count)
        found = []
        for i in range(wanted * n):
            budget = budgets[i // n]
            found.append(Continuation(list(ids[i][:budget]), None if logps is None else list(logps[i][:budget])))
        return found

    @contextlib.contextmanager
    def _token_bar(self, bar: functools.partial, limit: int) -> Iterator[None]:
        """A bar that advances with every token position: all that can be seen of one call of `generate`."""
        with bar(total=limit, unit="token") as shown:
            model = self.accelerator.unwrap_model(self.model)
            handle = model.register_forward_pre_hook(lambda *_: shown.update())
            try:
                yield
            finally:
                handle.remove()

    @contextlib.contextmanager
    def _engine_awake(self) -> Iterator[None]:
        """Keeps a colocated vLLM with sleep mode awake for all calls of one generation batch: one weight sync."""
        engine = self.vllm_generation if self.use_vllm and self.vllm_mode == "colocate" else None
        if engine is None or not engine.enable_sleep_mode:
            yield
            return
        engine.sync_weights()  # wakes the weights first
        self._last_loaded_step = self.state.global_step
        engine.llm.wake_up(tags=["kv_cache"])
        engine._llm_weights_sleeping = False
        try:
            with _temporarily(engine, enable_sleep_mode=False):
                yield
        finally:
            engine.llm.sleep(level=2)
            engine._llm_weights_sleeping = True

    def _tokenize_prompts(self, prompts: list) -> Any:
        if self._planned is not None:
            return [list(row.prompt_ids) for row in self._planned.rows], None, {}
        return super()._tokenize_prompts(prompts)

    def tokenize(self, prompts: list) -> list[list[int]]:
        """Token ids of prompts, with the chat template where they are conversations."""
        return [list(ids) for ids in super()._tokenize_prompts(prompts)[0]]

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        if self._planned is not None:
            rows = self._planned.rows
            logps = None if rows[0].sampling_logps is None else [list(row.sampling_logps) for row in rows]
            return [list(row.completion_ids) for row in rows], logps
        return super()._generate_single_turn(*args, **kwargs)

    def score_responses(self, examples: list[dict[str, Any]], completion_ids: list[list[int]]) -> torch.Tensor:
        """Rewards by function, shape (n, functions), of responses to the prompts of rows of the data set.

        Left out of the metrics of rewards. Every process must call it; the processes with fewer responses score some
        of them again, so that all gather equal shapes.

        Args:
            examples (`list[dict]`):
                Rows of the data set, one per response and at least one.
            completion_ids (`list[list[int]]`):
                Whole responses. May be empty where another process has some.
        """
        own, count = len(completion_ids), self.largest(len(completion_ids))
        if count == 0:
            return torch.zeros(0, len(self.reward_funcs), device=self.accelerator.device)
        ids = [*completion_ids, *(completion_ids[:1] or [[self._tokenizer.eos_token_id]]) * (count - own)]
        examples = [*examples[:own], *examples[:1] * (count - own)]
        prompts = [example["prompt"] for example in examples]
        with self.timed("rewards"):
            rewards = super()._calculate_rewards(examples, prompts, self.decode_responses(prompts, ids), ids)
        self._check_finite(rewards)
        self._pending_extra_logs.clear()  # columns of the table of completions, which has other rows
        self._pending_metrics.clear()
        start = self.accelerator.process_index * count
        return rewards[start : start + own]

    def decode_responses(self, prompts: list, completion_ids: list[list[int]]) -> list:
        """Responses in the form that reward functions get them: texts, or messages where prompts are conversations."""
        if not prompts:
            return []
        if not is_conversational({"prompt": prompts[0]}):
            return self.processing_class.batch_decode(completion_ids, skip_special_tokens=True)
        schemas = ("response_template", "response_schema")
        if any(getattr(self._tokenizer, name, None) is not None for name in schemas):
            prompt_ids = self.tokenize(prompts)
            return [
                [parse_response(self._tokenizer, ids, prefix=prefix)]
                for ids, prefix in zip(completion_ids, prompt_ids, strict=True)
            ]
        texts = self.processing_class.batch_decode(completion_ids, skip_special_tokens=True)
        return [[{"role": "assistant", "content": text}] for text in texts]

    def decode(self, ids: list[int]) -> str:
        """Text of token ids, without special tokens."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def is_finished(self, ids: list[int], budget: int) -> bool:
        """Whether a continuation ended by itself: at an end token, or (a stop string) before its budget did."""
        return len(ids) < budget or ids[-1] in self._end_tokens

    @functools.cached_property
    def _end_tokens(self) -> frozenset[int]:
        declared = self.accelerator.unwrap_model(self.model).generation_config.eos_token_id
        declared = declared if isinstance(declared, list) else [declared]
        return frozenset([*declared, self._tokenizer.eos_token_id])  # a sampled pad token ends nothing

    def remaining_budget(self, prompt_length: int, written: int) -> int:
        """Tokens that may be written after `written` of a response: `max_completion_length` and the context allow."""
        left = self.max_completion_length - written
        context = self.args.vllm_max_model_length if self.use_vllm else None
        if context is None:
            config = self.accelerator.unwrap_model(self.model).config.get_text_config()
            context = getattr(config, "max_position_embeddings", None)
        return left if context is None else min(left, context - prompt_length - written)

    def row_logps(self, rows: Sequence[Row]) -> list[tuple[float, ...]]:
        """Log-probabilities (nats) of the completions of rows under the policy as it is. Every process must call it."""
        size = self.args.per_device_train_batch_size
        found: list[tuple[float, ...]] = []
        filler = Row("", (self._tokenizer.eos_token_id,), (self._tokenizer.eos_token_id,), (0.0,), (-1,))
        for i in range(0, self.largest(len(rows)), size):
            part = list(rows[i : i + size])
            batch = self._padded(part or [filler])
            if self.args.tree_rows == "packed":
                input_ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
                visible = self._visibility(part or [filler], input_ids, batch["completion_ids"].size(1))
                batch["token_type_ids"] = visible
            logps = self._behavior_logps(batch).tolist()
            found += [tuple(logp[: len(row.completion_ids)]) for row, logp in zip(part, logps)]  # noqa: B905
        return found

    def _padded(self, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
        batch = {}
        for name, side in (("prompt", "left"), ("completion", "right")):
            ids = [torch.tensor(getattr(row, f"{name}_ids")) for row in rows]
            for key, parts, value in (
                ("ids", ids, self._tokenizer.pad_token_id),
                ("mask", [torch.ones_like(x) for x in ids], 0),
            ):
                padded = pad(parts, padding_value=value, padding_side=side)
                batch[f"{name}_{key}"] = padded.to(self.accelerator.device)
        return batch

    def _visibility(self, rows: Sequence[Row], input_ids: torch.Tensor, completion_width: int) -> torch.Tensor:
        """`visible_until` of rows in the columns of a padded batch, shape (B, P + T): what TRL hands to the model as
        `token_type_ids`, and [`tree_attention`] makes a mask of."""
        visible = torch.zeros_like(input_ids)
        begin = input_ids.size(1) - completion_width  # of the completions
        for i, row in enumerate(rows):
            left, width = begin - len(row.prompt_ids), len(row.prompt_ids) + len(row.completion_ids)
            until = row.visible_until or [width] * width
            visible[i, left : left + width] = left + torch.tensor(until, device=visible.device)
        return visible

    def largest(self, n: int) -> int:
        """The largest `n` of all processes; a collective call."""
        return int(self.accelerator.gather(torch.tensor([n], device=self.accelerator.device)).max())

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Adds the seconds inside to those of a phase, less those of phases inside it; logged where rollouts are on."""
        start, before = time.perf_counter(), sum(self._phases.values())
        try:
            yield
        finally:
            inner = sum(self._phases.values()) - before
            self._phases[phase] = self._phases.get(phase, 0.0) + time.perf_counter() - start - inner

    # Checkpoints

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        # with the optimizer rather than after the checkpoint: older checkpoints are deleted only once this is written
        super()._save_optimizer_and_scheduler(output_dir)
        if not self.args.should_save:
            return
        if self.forest is not None:
            self.forest.buffer.save(Path(output_dir) / REPLAY_FILE)
        if self.difficulty is not None:
            path = Path(output_dir) / STATE_FILE
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps({"difficulty": self.difficulty.state_dict()}))
            partial.replace(path)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        if self.forest is not None:
            self.forest.buffer.load(Path(checkpoint) / REPLAY_FILE)
        if self.difficulty is None:
            return
        path = Path(checkpoint) / STATE_FILE
        try:
            self.difficulty.load_state_dict(json.loads(path.read_text())["difficulty"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"cannot resume the difficulty belief from {path} ({error}): resume from a checkpoint that was written "
                f"with difficulty={self.args.difficulty!r}, or set difficulty='none'."
            ) from error
