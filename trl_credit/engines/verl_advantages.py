"""Advantage estimators of verl, and the belief of HA-DW in its checkpoints."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback

from ..support.files import read_json, write_atomically
from . import ESTIMATORS, logger, say
from .estimator import Estimator


BELIEF_FILE, CALLBACK = "trl_credit_belief.json", f"{__name__}.BeliefInCheckpoints"


@cache
def _estimator(algo: str, knobs: str) -> Estimator:
    return Estimator(algo, json.loads(knobs), where="an advantage estimator of verl")


def estimator_of(algorithm: Any) -> Estimator:
    """That of verl's `algorithm`, one for each setting in a process.

    Raises:
        ValueError: it is none of ours, a knob is wrong, or verl's rejection of tokens would make turns.
    """
    if (name := algorithm.adv_estimator) not in ESTIMATORS:
        raise ValueError(f"adv_estimator={name!r} is not one of trl_credit: {', '.join(ESTIMATORS)}.")
    knobs = algorithm.get("trl_credit") or {}
    knobs = OmegaConf.to_container(knobs, resolve=True) if isinstance(knobs, DictConfig) else knobs
    estimator = _estimator(name.partition(".")[2], json.dumps(knobs, sort_keys=True))
    rejected = (algorithm.get("rollout_correction") or {}).get("rollout_rs") or ""
    if estimator.config.returns != "outcome" and "token" in rejected:
        raise ValueError(f"rollout_rs={rejected!r} would cut turns in two, which returns='to_go' credits: drop one.")
    return estimator


def advantages(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, config: Any, index: Any, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages, and the same as returns, shape (B, T), with the knobs in `algorithm.trl_credit`."""
    estimator = estimator_of(config)
    if estimator.belief is not None and not estimator.in_checkpoints:
        say(f"the belief of HA-DW starts anew after a resume: set trainer.checkpoint_callback_class={CALLBACK}.")
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
            try:
                self.estimator.belief.load_state_dict(read_json(file))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{file}: {error}. Set difficulty as in that run, or delete the file.") from error
        else:
            logger.warning("%s has no %s: the belief of HA-DW starts anew", folder, BELIEF_FILE)

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, **kwargs: Any) -> None:
        if self.estimator.belief is not None:
            write_atomically(Path(checkpoint_dir) / BELIEF_FILE, json.dumps(self.estimator.belief.state_dict()))
