"""What a run leaves in its folder for a person to look at, and says of itself: plots, a card, and a few lines."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..mistakes import one_line
from .curves import plot_rewards


if TYPE_CHECKING:
    from ..trainer import CreditTrainer

logger = logging.getLogger(__name__)

RESULTS = ("reward_curve.png", "credit_plot.png", "README.md", "recipe.yaml")


class Results(NamedTuple):
    """The card, and the first and the last logged reward (`None` where none was logged)."""

    card: Path
    ends: tuple[float, float] | None


class ResultsCallback(TrainerCallback):
    """Writes `reward_curve.png`, `credit_plot.png`, `recipe.yaml` and the card `README.md` to `output_dir` when
    training ends, on the main process, and says where they are. Every [`CreditTrainer`] has one, as
    `trainer.results`; `trainer.remove_callback(ResultsCallback)` takes it away.

    Where nothing was trained, nothing is written. A plot that fails is a warning: it must not cost the weights that
    training ended with. As results of a run they keep another run out of its folder (`overwrite_output_dir`).

    Attributes:
        card (`dict`):
            Further arguments of [`~trl_credit.hub.write_model_card`], such as `data`.
        writes_at_end (`bool`):
            `False` where somebody else calls `write`, after the model is saved.
    """

    def __init__(self, trainer: "CreditTrainer") -> None:
        self.trainer = trainer
        self.card: dict[str, Any] = {}
        self.writes_at_end = True
        self._begun_at = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._begun_at = state.global_step

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not self.writes_at_end or not state.is_world_process_zero or state.global_step == self._begun_at:
            return
        try:
            results = self.write()
        except Exception as error:
            logger.warning("no plots and no card in %s: %s", args.output_dir, one_line(error))
        else:
            print()
            self.say(results)

    def write(self) -> Results:
        """Writes plots and card of the steps so far. What cannot be written whole is taken away.

        Raises:
            OSError: a full disk, or a folder that cannot be written to.
            ValueError: the recipe would hold a secret.
        """
        folder = Path(self.trainer.args.output_dir)
        curve = folder / "reward_curve.png"
        try:
            curve.unlink(missing_ok=True)  # of an earlier run, should there be nothing to draw
            title = f"{self.trainer.algorithm_name}: reward"
            ends = plot_rewards(self.trainer.state.log_history, curve, title=title)
            return Results(self.write_card(), ends)  # the card after what it shows
        except BaseException:
            for result in RESULTS:
                (folder / result).unlink(missing_ok=True)
            raise

    def write_card(self, **more: Any) -> Path:
        """Writes the card alone, with the plot of credit; `more` goes over what `card` says. Raises as `write` does."""
        from ..hub.card import write_model_card  # which imports the algorithms, and they this

        return write_model_card(self.trainer, name=self.trainer.algorithm_name, **self.card | more)

    def say(self, results: Results) -> None:
        """Where everything is, and what the reward did."""
        folder = results.card.parent
        lines = {"model card": [results.card]}
        lines["plots"] = [path for name in RESULTS[:2] if (path := folder / name).is_file()]
        lines["evaluation"] = [path for path in [folder / "evaluation" / "evaluation.md"] if path.is_file()]
        for what, paths in lines.items():
            if paths:
                print(f"{what:<14}{', '.join(map(str, paths))}")
        if results.ends is not None:
            print(f"{'reward':<14}{results.ends[0]:.3f} → {results.ends[1]:.3f}", flush=True)
