"""The plots and the card that a run leaves in its folder."""

import shlex
import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerState, TrainingArguments

from ..observe.plots import plot_rewards
from ..observe.schema import steps
from ..runs.resumable import ResumableTrainer
from ..support.files import short_path
from ..support.shown import shown
from .card import write_model_card


PLOTS = ("reward_curve.png", "credit_plot.png")


class ResultsCallback(TrainerCallback):
    """Writes `reward_curve.png`, `credit_plot.png`, `recipe.yaml` and the card `README.md` to `output_dir` when
    training ends, on the main process, and prints their paths. Every [`CreditTrainer`] has one as `trainer.results`;
    `trainer.remove_callback(ResultsCallback)` removes it.

    A run that trained no step writes nothing. A plot that fails is a warning, so that the weights are still saved. The
    files are results of the run: another run in the same folder needs `overwrite_output_dir`.

    Attributes:
        card (`dict`):
            Further arguments of [`~trl_credit.hub.write_model_card`], such as `data`.
        writes_at_end (`bool`):
            `False` if a script calls `write` itself, after the model is saved.
        begun_at (`int`, *optional*):
            The step that training began with, `None` before.
    """

    def __init__(self, trainer: ResumableTrainer) -> None:
        self.trainer = trainer
        self.card: dict[str, Any] = {}
        self.writes_at_end = True
        self.begun_at: int | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: object, **kwargs: Any) -> None:
        self.begun_at = state.global_step

    @property
    def steps_done(self) -> int:
        """Optimizer steps of this process, without those before a resume."""
        return 0 if self.begun_at is None else self.trainer.state.global_step - self.begun_at

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: object, **kwargs: Any) -> None:
        if self.writes_at_end and state.is_world_process_zero and self.steps_done:
            print()
            self.show(in_python=True)

    def show(self, *, in_python: bool = False) -> None:
        """Writes plots and card, and prints their paths, the first and the last reward, and what shows the credit of
        tokens: `trl-credit view` if some was logged, else `trl-credit explain`, which says how to log some. An error
        is a warning.

        Args:
            in_python (`bool`, *optional*, defaults to `False`):
                Whether no command runs: then `show_credit` is named too, and nothing without a log, since no model is
                saved.
        """
        folder = short_path(self.trainer.args.output_dir)
        lines = {"model card": ["README.md"], "plots": PLOTS, "evaluation": ["evaluation/evaluation.md"]}
        with shown(f"no plots and no card in {folder}"):
            rewards = self.write()
            for what, names in lines.items():
                if paths := [str(folder / name) for name in names if (folder / name).is_file()]:
                    print(f"{what:<14}{', '.join(paths)}")
            if rewards is not None:
                print(f"{'reward':<14}{rewards[0]:.3f} → {rewards[1]:.3f}")
            is_logged = bool(steps(folder))
            if is_logged or not in_python:
                first = "show_credit(trainer) in a notebook, or " if in_python else ""
                command = shlex.join(["trl-credit", "view" if is_logged else "explain", str(folder)])
                print(f"{'credit':<14}{first}{command}")
            sys.stdout.flush()

    def write(self) -> tuple[float, float] | None:
        """Writes plots and card of the steps so far.

        Returns:
            `tuple[float, float]` or `None`: the first and the last logged reward, if one was logged.

        Raises:
            OSError: a full disk, or a folder that cannot be written to.
        """
        curve, title = Path(self.trainer.args.output_dir) / "reward_curve.png", f"{self.trainer.algorithm_name}: reward"
        rewards = plot_rewards(self.trainer.state.log_history, curve, title=title)
        self.write_card()  # after the plots, which the card shows
        return rewards

    def write_card(self, **more: Any) -> Path:
        """Writes the card and the plot of credit; `more` takes precedence over `card`. Raises what `write` does."""
        return write_model_card(self.trainer, name=self.trainer.algorithm_name, **self.card | more)
