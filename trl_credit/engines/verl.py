"""verl's plug-in: `pip install` registers the algorithms, since `import verl` loads the entry points `verl.plugins`.

It hands verl's own clipped loss the (W, A, M) of an algorithm. Aggregation, dual clip, rollout correction, KL and
entropy terms stay verl's. TRL is imported when a loss or an estimator is first used. See `trl-credit help verl`.
"""

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial, wraps
from importlib.metadata import version
from itertools import count
from typing import Any

import torch
from packaging.version import Version

from .. import STEMS
from ..credit.tokens import turn_numbers
from ..support.digests import seed_from
from . import ESTIMATORS, logger, say


try:
    from verl.trainer.ppo import core_algos
    from verl.utils import import_utils

    # verl's FSDP engine imports a class that TRL removed in 1.13 wherever it finds TRL
    if Version(version("trl")) >= Version("1.13.0.dev0"):
        import_utils.is_trl_available = lambda: False
    from verl.workers.config import PolicyLossConfig
    from verl.workers.utils import losses

    for _function, _names in (
        (losses.ppo_loss, "config model_output data"),
        (core_algos.compute_policy_loss_vanilla, "old_log_prob log_prob advantages response_mask config"),
    ):
        if _lacking := {*_names.split()}.difference(inspect.signature(_function).parameters):
            raise ImportError(f"{_function.__name__} takes no {min(_lacking)}: install verl>=0.9,<0.10")
except Exception as error:  # verl logs it where nobody looks
    logger.warning("verl knows no algorithm of trl_credit: %s", error)
    raise

NAMES = [f"trl_credit.{algo}" for algo in (*STEMS, "custom")]
AGGREGATION = {"grpo": "seq-mean-token-mean", "dapo": "token-mean", "dr_grpo": "seq-mean-token-sum-norm"}
_pass: ContextVar[tuple[Any, Any]] = ContextVar("micro-batch in ppo_loss")
_OF_OTHER_LOSSES = "clip_cov_ratio clip_cov_lb clip_cov_ub kl_cov_ratio ppo_kl_coef dro_beta".split()


class PolicyLoss(PolicyLossConfig):
    """verl's `PolicyLossConfig` with our knobs, whose names, ranges and refusals are those of [`CreditConfig`].

    Args:
        require_entropy (`bool`, *optional*, defaults to `False`):
            Whether to refuse a loss without verl's entropies (`calculate_entropy=True`) where −ℓ° would stand for them.
        **settings:
            Fields of verl's class, and knobs.

    Raises:
        ValueError, TypeError: a knob is wrong, or does not act in a loss.
    """

    def __init__(self, require_entropy: bool = False, **settings: Any) -> None:
        own = {name: settings.pop(name) for name in [*settings] if name in PolicyLossConfig.__dataclass_fields__}
        super().__init__(**own)
        self.require_entropy, self.knobs = require_entropy, settings
        if self.loss_mode not in NAMES:
            raise ValueError(f"loss_mode={self.loss_mode!r}: with our PolicyLoss it is one of {', '.join(NAMES)}.")
        loss_of(self.loss_mode.partition(".")[2], self)


def loss_config(algo: str, knobs: dict[str, Any]) -> Any:
    """The [`CreditConfig`] of a policy loss: covariances are those of micro-batches, as verl has no others."""
    from .clipped_loss import IN_LOSS, engine_config

    by_batch = {"cov_statistics": "microbatch"} if algo in ("clip_cov", "kl_cov") else {}
    return engine_config(algo, by_batch | knobs, acting=IN_LOSS, where="a policy loss of verl")


def settings_of(config: Any) -> dict[str, Any]:
    """What a [`CreditConfig`] sets of verl's actor, by verl's names."""
    high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    clip = {"clip_ratio_low": config.epsilon, "clip_ratio_high": high, "clip_ratio_c": config.delta}
    return clip | {"loss_agg_mode": AGGREGATION[config.loss_type], "kl_loss_coef": config.beta}


def loss_of(algo: str, policy_loss: PolicyLossConfig) -> Any:
    """The [`~trl_credit.engines.clipped_loss.ClippedLoss`] of verl's `policy_loss`."""
    from .clipped_loss import ClippedLoss

    if others := [name for name in _OF_OTHER_LOSSES if policy_loss[name] != getattr(PolicyLossConfig, name)]:
        ours = "ours are cov_share, cov_range and cov_penalty"
        raise ValueError(f"{others[0]} of verl's own losses does nothing in trl_credit.{algo}: leave it out; {ours}.")
    return ClippedLoss(loss_config(algo, policy_loss.get("knobs", {})))


def _made(algo: str, actor: Any) -> tuple[Any, Any]:
    """The algorithm with the clip range of verl's actor, and the numbers of its micro-batches."""
    config = (loss := loss_of(algo, actor.policy_loss)).config
    here, there = {name: actor.get(name) for name in settings_of(config)}, settings_of(config)
    here |= {name: actor.clip_ratio for name in ("clip_ratio_low", "clip_ratio_high") if here[name] is None}
    here |= {} if actor.use_kl_loss else {"kl_loss_coef": 0.0}
    if differs := [f"{name}={x} ({there[name]})" for name, x in here.items() if x != there[name]]:
        say(f"trl_credit.{algo}: these settings of verl differ from the preset (in brackets): {', '.join(differs)}.")
    low, high, cap, _, beta = here.values()
    config.epsilon, config.epsilon_high, config.delta, config.beta = low, high, cap, beta
    if config.clip_form == "ratio" and cap <= 2 * (1 + high):
        raise ValueError(f"clip_form='ratio' needs clip_ratio_c above {2 * (1 + high)}, got {cap}.")
    if loss.contract.algorithm.replaces_kl and actor.use_kl_loss:
        raise ValueError(f"trl_credit.{algo} has a KL term of its own: set actor.use_kl_loss=False.")
    return loss, count()


def policy_loss(algo: str, **batch: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """verl's clipped loss with the credit of an algorithm, and metrics. `batch` has verl's arguments of a policy loss.

    Raises:
        ValueError: as [`PolicyLoss`], and where a setting of verl and the algorithm would change each other's meaning.
    """
    actor, mask_t, logp_t, old_logp_t = (batch[x] for x in "config response_mask log_prob old_log_prob".split())
    if "trl_credit_loss" not in vars(actor):  # that of a worker
        actor.trl_credit_loss = _made(algo, actor)
    (loss, calls), (output, data) = actor.trl_credit_loss, _pass.get(({}, None))
    names = {"ref_logp_t": "ref_log_prob", "sampling_logp_t": "rollout_log_probs", "token_ids": "responses"}
    names |= {"turn_ids": "loss_mask"}  # as it was before verl's rejection of tokens, which makes no turns
    known = {ours: data.select(x).to_padded_tensor()[x] for ours, x in names.items() if data is not None and x in data}
    if (entropy := output.get("entropy")) is not None:
        known["entropy_t"] = losses.no_padding_2_padding(entropy, data)
    elif loss.reads_entropy:
        what = f"trl_credit.{algo} reads entropies, which verl does not compute: set actor.calculate_entropy=True"
        if getattr(actor.policy_loss, "require_entropy", False):
            raise ValueError(f"{what}.")
        say(f"{what}. Until then −ℓ°, the surprise, takes their place.")
    if loss.contract.algorithm.replaces_correction and batch.get("rollout_is_weights") is not None:
        raise ValueError(f"trl_credit.{algo} corrects for the engine itself: leave out algorithm.rollout_correction.")
    # ranks that share a batch draw the same numbers
    known["seed"] = seed_from(actor.data_loader_seed, next(calls), int(known.get("token_ids", mask_t).sum()))
    written_t = known.get("turn_ids", mask_t)
    known["turn_ids"] = turn_numbers(written_t if written_t.shape == mask_t.shape else mask_t)
    known |= {"logp_t": logp_t, "advantages": batch["advantages"]}
    weight_t, advantage_t, sums = loss(old_logp_t=old_logp_t, mask_t=mask_t, **known)
    used = {"log_prob": weight_t, "old_log_prob": torch.zeros_like(weight_t), "advantages": advantage_t}
    value, metrics = core_algos.compute_policy_loss_vanilla(**batch | used)
    drift_t = torch.where(mask_t.bool(), (old_logp_t - logp_t).detach().float(), 0.0)
    sums = {"ppo_kl": (drift_t.sum(), mask_t.sum())} | {f"credit/{name}": x for name, x in sums.items()}
    pairs = torch.stack([torch.stack([torch.as_tensor(x).to(drift_t) for x in pair]) for pair in sums.values()])
    means = (pairs[:, 0] / pairs[:, 1].clamp(min=1e-9)).tolist()  # one wait for the device
    return value, metrics | {f"actor/{name}": mean for name, mean in zip(sums, means, strict=True)}


def advantages(**batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """See [`~trl_credit.engines.verl_advantages.advantages`]."""
    from .verl_advantages import advantages

    return advantages(**batch)


def _handed_on(ppo_loss: Callable[..., Any]) -> Callable[..., Any]:
    """`ppo_loss`, in which a policy loss sees what the forward pass returned, entropies too, and the whole batch."""

    @wraps(ppo_loss)
    def with_pass(config: Any, model_output: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        token = _pass.set((model_output, data))
        try:
            return ppo_loss(config, model_output, data, *args, **kwargs)
        finally:
            _pass.reset(token)

    return with_pass


losses.ppo_loss = _handed_on(losses.ppo_loss)
for _name in NAMES:  # those that cannot be a loss say why when they are used
    core_algos.register_policy_loss(_name)(partial(policy_loss, _name.partition(".")[2]))
for _name in ESTIMATORS:
    core_algos.register_adv_est(_name)(advantages)
