"""The named trainers: [`CreditTrainer`] with the configuration of one preset each."""

from ..config import CreditConfig
from ..presets import PRESETS, Preset
from .credit_trainer import CreditTrainer


def _named_trainer(preset: Preset) -> type[CreditTrainer]:
    """The trainer of a preset: `STraceTrainer` beside `STraceConfig`."""
    config = preset.config.__name__
    text = f"{preset.name}: [`CreditTrainer`] with [`{config}`]."
    members = {"preset": preset, "__doc__": text, "__module__": __name__}
    return type(f"{config.removesuffix('Config')}Trainer", (CreditTrainer,), members)


# the names that `--algo` takes, each with its configuration and its trainer
ALGORITHMS: dict[str, tuple[type[CreditConfig], type[CreditTrainer]]] = {
    name: (preset.config, _named_trainer(preset)) for name, preset in PRESETS.items()
}
# each trainer is imported by its name; the stub __init__.pyi tells editors of them
globals().update({trainer.__name__: trainer for _, trainer in ALGORITHMS.values()})
