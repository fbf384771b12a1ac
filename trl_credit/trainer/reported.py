"""A trainer that shows what it does: lines on the console, plots and a card, in a notebook as in a script."""

from typing import Any

from transformers import PrinterCallback, TrainerCallback
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK

from ..report import ConsoleCallback, ResultsCallback
from .checkpointed import CheckpointedTrainer


class ReportedTrainer(CheckpointedTrainer):
    """[`CheckpointedTrainer`] with the callbacks of [`~trl_credit.report`]: a [`ConsoleCallback`] in the place of what
    transformers adds, unless one was given, and a [`ResultsCallback`]. Trains as TRL does.

    Attributes:
        results ([`ResultsCallback`]):
            What writes plots and card.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        default = PrinterCallback if self.args.disable_tqdm else DEFAULT_PROGRESS_CALLBACK
        callbacks = self.callback_handler.callbacks
        for added in [callback for callback in callbacks if type(callback) is default][-1:]:
            self.remove_callback(added)  # by transformers, after those that were given
        if not any(isinstance(callback, ConsoleCallback) for callback in callbacks):
            self.add_callback(ConsoleCallback(self))
        self.results = ResultsCallback(self)
        self.add_callback(self.results)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in [`CheckpointedTrainer`]."""
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            for callback in self.callback_handler.callbacks:
                if isinstance(callback, ConsoleCallback):
                    callback.close()

    def add_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> None:
        """As in `Trainer`; what shows the results stays behind what adds to them, such as an evaluation at the end."""
        super().add_callback(callback)
        self.callback_handler.callbacks.sort(key=lambda added: isinstance(added, ResultsCallback))

    def create_model_card(
        self, model_name: str | None = None, dataset_name: str | None = None, tags: str | list[str] | None = None
    ) -> None:
        """TRL's name for writing the card, before a push: ours is written. With a checkpoint, where TRL calls it too,
        none is: that of the run comes at its end.

        Args:
            model_name (`str`, *optional*):
                Of the card's title. Defaults to that of the Hub, else of the folder.
            dataset_name (`str`, *optional*):
                The training set's id on the Hub, where the card is not told otherwise.
            tags (`str` or `list[str]`, *optional*):
                Further ones.
        """
        if self.is_world_process_zero() and not self.is_in_train:
            tags = [tags] if isinstance(tags, str) else tags
            self.results.write_card(model_name=model_name, dataset_name=dataset_name, tags=tags)
