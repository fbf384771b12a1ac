"""The named trainers: [`CreditTrainer`] with the configuration of one preset."""

from ..config import CreditConfig
from ..presets import PRESETS
from .credit_trainer import CreditTrainer


class GRPOTrainer(CreditTrainer):
    """GRPO: [`CreditTrainer`] with [`GRPOConfig`]."""

    preset = PRESETS["grpo"]


class DAPOTrainer(CreditTrainer):
    """DAPO: [`CreditTrainer`] with [`DAPOConfig`]."""

    preset = PRESETS["dapo"]


class DrGRPOTrainer(CreditTrainer):
    """Dr. GRPO: [`CreditTrainer`] with [`DrGRPOConfig`]."""

    preset = PRESETS["dr_grpo"]


class PTraceTrainer(CreditTrainer):
    """P-trace: [`CreditTrainer`] with [`PTraceConfig`]."""

    preset = PRESETS["p_trace"]


class STraceTrainer(CreditTrainer):
    """S-trace: [`CreditTrainer`] with [`STraceConfig`]."""

    preset = PRESETS["s_trace"]


class GRPOLambdaTrainer(CreditTrainer):
    """GRPO-λ: [`CreditTrainer`] with [`GRPOLambdaConfig`]."""

    preset = PRESETS["grpo_lambda"]


class GSPOTrainer(CreditTrainer):
    """GSPO: [`CreditTrainer`] with [`GSPOConfig`]."""

    preset = PRESETS["gspo"]


class GSPOTokenTrainer(CreditTrainer):
    """GSPO-token: [`CreditTrainer`] with [`GSPOTokenConfig`]."""

    preset = PRESETS["gspo_token"]


class HADWTrainer(CreditTrainer):
    """HA-DW: [`CreditTrainer`] with [`HADWConfig`]."""

    preset = PRESETS["ha_dw"]


class OPOTrainer(CreditTrainer):
    """OPO: [`CreditTrainer`] with [`OPOConfig`]."""

    preset = PRESETS["opo"]


class FIPOTrainer(CreditTrainer):
    """FIPO: [`CreditTrainer`] with [`FIPOConfig`]."""

    preset = PRESETS["fipo"]


class ClipCovTrainer(CreditTrainer):
    """Clip-Cov: [`CreditTrainer`] with [`ClipCovConfig`]."""

    preset = PRESETS["clip_cov"]


class KLCovTrainer(CreditTrainer):
    """KL-Cov: [`CreditTrainer`] with [`KLCovConfig`]."""

    preset = PRESETS["kl_cov"]


class SPOChainTrainer(CreditTrainer):
    """SPO-chain: [`CreditTrainer`] with [`SPOChainConfig`]."""

    preset = PRESETS["spo_chain"]


class SPOTreeTrainer(CreditTrainer):
    """SPO-tree: [`CreditTrainer`] with [`SPOTreeConfig`]."""

    preset = PRESETS["spo_tree"]


class VinePPOTrainer(CreditTrainer):
    """VinePPO: [`CreditTrainer`] with [`VinePPOConfig`]."""

    preset = PRESETS["vine_ppo"]


# the names that `--algo` takes, each with its configuration and the class above that has its preset
ALGORITHMS: dict[str, tuple[type[CreditConfig], type[CreditTrainer]]] = {
    name: (preset.config, next(found for found in globals().values() if getattr(found, "preset", None) is preset))
    for name, preset in PRESETS.items()
}
