"""verl's plug-in: `pip install` registers the algorithms, since `import verl` loads the entry points `verl.plugins`.

It hands verl's own clipped loss the (W, A, M) of an algorithm. Aggregation, dual clip, rollout correction, KL and
entropy terms stay verl's. TRL is imported when a loss or an estimator is first used. See `trl-credit help verl`.
"""

import inspect
import json
import logging
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache, partial, wraps
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import torch
from omegaconf import ListConfig, OmegaConf

from .. import STEMS
from ..support.digests import seed_from
from ..support.files import write_atomically


logger = logging.getLogger(__name__)
try:
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
    from verl.utils import import_utils

    # verl's FSDP engine imports a class that TRL removed in 1.13 wherever it finds TRL
    if int(version("trl").split(".")[1]) >= 13:
        import_utils.is_trl_available = lambda: False
    from verl.workers.config import PolicyLossConfig
    from verl.workers.utils import losses

    for _function, _names in (
        (losses.ppo_loss, "config model_output data"),
        (core_algos.compute_policy_loss_vanilla, "old_log_prob log_prob advantages response_mask config"),
    ):
        if _lacking := {*_names.split()}.difference(inspect.signature(_function).parameters):
            raise ImportError(f"{_function.__name__} takes no {min(_lacking)}: install verl>=0.9,<0.10")
except ImportError as error:
    logger.warning("no algorithm of trl_credit is registered with verl %s: %s", version("verl"), error)
    raise

ESTIMATORS = ("grpo", "opo", "ha_dw")
AGGREGATION = {"grpo": "seq-mean-token-mean", "dapo": "token-mean", "dr_grpo": "seq-mean-token-sum-norm"}
BELIEF_FILE = "trl_credit_belief.json"
_pass: ContextVar[tuple[Any, Any]] = ContextVar("micro-batch in ppo_loss")
_say = cache(logger.warning)  # once for each message


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
        self.require_entropy = require_entropy
        self.knobs = {name: list(x) if isinstance(x, ListConfig) else x for name, x in settings.items()}
        _, _, algo = self.loss_mode.partition("trl_credit.")
        if not algo:
            raise ValueError(f"loss_mode={self.loss_mode!r}: with our PolicyLoss it is trl_credit.<algorithm>.")
        loss_config(algo, self.knobs)


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


def _made(algo: str, actor: Any) -> tuple[Any, Any]:
    """The algorithm with the clip range of verl's actor, and the numbers of its micro-batches."""
    from .clipped_loss import ClippedLoss

    config = loss_config(algo, getattr(actor.policy_loss, "knobs", {}))
    here, there = {name: actor.get(name) for name in settings_of(config)}, settings_of(config)
    here |= {name: actor.clip_ratio for name in ("clip_ratio_low", "clip_ratio_high") if here[name] is None}
    here |= {} if actor.use_kl_loss else {"kl_loss_coef": 0.0}
    if differs := [f"{name}={x} ({there[name]})" for name, x in here.items() if x != there[name]]:
        _say(f"trl_credit.{algo}: these settings of verl differ from the preset (in brackets): {', '.join(differs)}.")
    low, high, cap, _, beta = here.values()
    config.epsilon, config.epsilon_high, config.delta, config.beta = low, high, cap, beta
    if config.clip_form == "ratio" and cap <= 2 * (1 + high):
        raise ValueError(f"clip_form='ratio' needs clip_ratio_c above {2 * (1 + high)}, got {cap}.")
    loss = ClippedLoss(config)
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
    known = {ours: data.select(x).to_padded_tensor()[x] for ours, x in names.items() if data is not None and x in data}
    if (entropy := output.get("entropy")) is not None:
        known["entropy_t"] = losses.no_padding_2_padding(entropy, data)
    elif loss.reads_entropy:
        what = f"trl_credit.{algo} reads entropies, which verl does not compute: set actor.calculate_entropy=True"
        if getattr(actor.policy_loss, "require_entropy", False):
            raise ValueError(f"{what}.")
        _say(f"{what}. Until then −ℓ°, the surprise, takes their place.")
    if loss.contract.algorithm.replaces_correction and batch.get("rollout_is_weights") is not None:
        raise ValueError(f"trl_credit.{algo} corrects for the engine itself: leave out algorithm.rollout_correction.")
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    known["seed"] = seed_from(actor.data_loader_seed, next(calls), rank)
    weight_t, advantage_t, sums = loss(
        logp_t=logp_t, old_logp_t=old_logp_t, advantages=batch["advantages"], mask_t=mask_t, **known
    )
    used = {"log_prob": weight_t, "old_log_prob": torch.zeros_like(weight_t), "advantages": advantage_t}
    value, metrics = core_algos.compute_policy_loss_vanilla(**batch | used)
    drift_t = torch.where(mask_t.bool(), (old_logp_t - logp_t).detach(), 0.0)
    sums = {"ppo_kl": (drift_t.sum(), mask_t.sum())} | {f"credit/{name}": x for name, x in sums.items()}
    pairs = torch.stack([torch.stack([torch.as_tensor(x).to(drift_t) for x in pair]) for pair in sums.values()])
    means = (pairs[:, 0] / pairs[:, 1].clamp(min=1e-9)).tolist()  # one wait for the device
    return value, metrics | {f"actor/{name}": mean for name, mean in zip(sums, means, strict=True)}


@cache
def _estimator(algo: str, knobs: str) -> Any:
    from .estimator import Estimator

    return Estimator(algo, json.loads(knobs), where="an advantage estimator of verl")


def estimator_of(algorithm: Any) -> Any:
    """The [`~trl_credit.engines.estimator.Estimator`] of verl's `algorithm`, one for each setting in a process."""
    knobs = OmegaConf.to_container(OmegaConf.create(algorithm.get("trl_credit") or {}))
    return _estimator(algorithm.adv_estimator.removeprefix("trl_credit."), json.dumps(knobs, sort_keys=True))


def advantages(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, config: Any, index: Any, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages, and the same as returns, shape (B, T), with the knobs in `algorithm.trl_credit`."""
    estimator = estimator_of(config)
    if estimator.belief is not None and not hasattr(estimator, "in_checkpoints"):
        _say(f"the belief of HA-DW starts anew after a resume: set trainer.checkpoint_callback_class={CALLBACK}.")
    scale = config.get("norm_adv_by_std_in_grpo", True)
    advantage_t = estimator(token_level_rewards, prompts=index, scale=scale, mask_t=response_mask)
    return advantage_t, advantage_t


class BeliefInCheckpoints(CheckpointCallback):
    """Keeps HA-DW's belief in verl's checkpoints (`trainer.checkpoint_callback_class`), and continues from it.

    Raises:
        ValueError: a knob of the estimator is wrong, or the belief was saved with another setting.
    """

    def __init__(self, config: Any = None) -> None:
        from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path  # imports verl's engines

        super().__init__(config)
        _estimator.cache_clear()  # a new run has a new belief
        self.estimator, trainer = estimator_of(config.algorithm), config.trainer
        self.estimator.in_checkpoints = True
        folders = {"auto": find_latest_ckpt_path, "resume_path": lambda _: trainer.resume_from_path}
        folder = folders.get(trainer.resume_mode, lambda _: None)(trainer.default_local_dir)
        if folder is None or self.estimator.belief is None:
            return
        if (file := Path(folder) / BELIEF_FILE).is_file():
            self.estimator.belief.load_state_dict(json.loads(file.read_text(encoding="utf-8")))
        else:
            logger.warning("%s has no %s: the belief of HA-DW starts anew", folder, BELIEF_FILE)

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, **kwargs: Any) -> None:
        if self.estimator.belief is not None:
            write_atomically(Path(checkpoint_dir) / BELIEF_FILE, json.dumps(self.estimator.belief.state_dict()))


CALLBACK = f"{__name__}.{BeliefInCheckpoints.__name__}"


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
for _name in (*STEMS, "custom"):  # those that cannot be a loss say why when they are used
    core_algos.register_policy_loss(f"trl_credit.{_name}")(partial(policy_loss, _name))
for _name in ESTIMATORS:
    core_algos.register_adv_est(f"trl_credit.{_name}")(advantages)
