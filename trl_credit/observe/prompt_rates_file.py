"""Keeps `prompt_rates.jsonl` in the folder of a run that draws prompts by number."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ..config import CreditConfig
from ..rollouts.prompts import PROMPT_RATES_FILE, PromptOrder


class PromptRatesFile(TrainerCallback):
    """Writes the file when training begins, with every checkpoint, and when training ends.

    Args:
        order ([`~trl_credit.rollouts.prompts.PromptOrder`]):
            Has the pass rates.
    """

    def __init__(self, order: PromptOrder) -> None:
        self._order = order

    def on_train_begin(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._order.write(Path(args.output_dir) / PROMPT_RATES_FILE)

    on_save = on_train_end = on_train_begin
