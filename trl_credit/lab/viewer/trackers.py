"""Credit pages in Weights & Biases and Trackio, and a section `credit` for the metrics."""

import logging
from importlib import import_module
from io import StringIO
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback

from ...config import CreditConfig
from ...observe.plots import PREFIX
from ...observe.rollout_log import RolloutLog
from ...observe.schema import Shard, read_shard, shard_path
from ...support.errors import one_line
from ...trainer import CreditTrainer
from .excerpt import excerpt
from .page import build_page
from .runs import run_title


logger = logging.getLogger(__name__)

KEY = f"{PREFIX}page"
MAX_TOKENS, MAX_BYTES = 35_000, 2_000_000  # of a page
TRACKERS = (WandbCallback, TrackioCallback, TensorBoardCallback)


class CreditPageCallback(TrainerCallback):
    """Sends the credit of each logged step to the trackers of `report_to`, and groups the metrics under `credit/`.

    Weights & Biases and Trackio get the page of `trl-credit view` as HTML, as `credit/page`. It has the groups that
    have credit and whose rewards differ most, at most 2 MB. A step is sent when its shard is written, at the end of its
    pass over the generation batch; a pass that the end of training cuts is not sent.

    Trackers show all metrics of training in one section, `train`. Weights & Biases and TensorBoard get those under
    `credit/` as a section of their own; Trackio makes a part of `train` of them by itself. A subclass of a tracker's
    callback is left as it is.

    A step that cannot be read or sent is reported once, and no further one is sent. `trl-credit train` adds this
    callback by itself.

    Example:

    ```python
    trainer = STraceTrainer(..., args=STraceConfig(..., report_to="wandb", log_credit=10))
    trainer.add_callback(CreditPageCallback(trainer))
    ```

    Args:
        trainer ([`~trl_credit.CreditTrainer`]):
            Before its training begins.

    Raises:
        ValueError: it reports to none of these trackers.
    """

    def __init__(self, trainer: CreditTrainer) -> None:
        if not has_tracker(trainer):
            what = f"report_to={trainer.args.report_to!r} names none of wandb, trackio and tensorboard"
            raise ValueError(f"CreditPageCallback has nothing to send to: {what}")
        callbacks = list(trainer.callback_handler.callbacks)
        self._trackers = self.trackers_of(callbacks)
        self._rollout_log = next(callback for callback in callbacks if isinstance(callback, RolloutLog))
        self._title = run_title(trainer.args.output_dir)
        self._sent = 0
        for callback in callbacks:
            if type(callback) in _GROUPED:
                grouped = _GROUPED[type(callback)]()
                vars(grouped).update(vars(callback))  # its state, such as a writer that it was given
                trainer.remove_callback(callback)
                trainer.add_callback(grouped)

    @staticmethod
    def trackers_of(callbacks: list[TrainerCallback]) -> list[Any]:
        """The modules of the trackers that show HTML."""
        html = {"wandb": WandbCallback, "trackio": TrackioCallback}
        kinds = {name: kind for name, kind in html.items() if any(isinstance(x, kind) for x in callbacks)}
        return [import_module(name) for name in kinds]

    def on_train_begin(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        self._sent = 0

    def on_step_end(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        steps = self._rollout_log.written[self._sent :]  # of the main process, empty on the others
        self._sent += len(steps)
        for step in steps if self._trackers else ():
            try:
                page = page_of(read_shard(shard_path(args.output_dir, step)), title=self._title)
                for tracker in self._trackers:
                    # as transformers logs: the tracker counts its own steps, and the charts use this one
                    tracker.log({KEY: tracker.Html(StringIO(page), inject=False), "train/global_step": step})
            except Exception as error:  # of any tracker: what is shown is not needed
                self._trackers = []
                logger.warning("no credit page of step %d, nor of later ones: %s", step, one_line(error))


def has_tracker(trainer: CreditTrainer) -> bool:
    """Whether a trainer reports to a tracker that shows credit."""
    return any(isinstance(callback, TRACKERS) for callback in trainer.callback_handler.callbacks)


def page_of(shard: Shard, *, title: str) -> str:
    """The page of a shard in at most `MAX_BYTES`, or of its most interesting response if that alone takes more. A note
    says what is left out."""
    tokens = MAX_TOKENS
    while True:
        part = excerpt(shard, max_tokens=tokens)
        shown, of = len(part.responses), len(shard.responses)
        note = f"{shown} of {of} logged responses: trl-credit view shows them all." if shown < of else ""
        page = build_page([part], title=title, note=note)
        if shown == 1 or len(page.encode("utf-8")) <= MAX_BYTES:
            return page
        tokens //= 2


class _Grouped(TrainerCallback):
    """A tracker's callback that logs metrics under `credit/` by that name, without the `train/` of the others."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any) -> None:
        credit = {name: value for name, value in logs.items() if name.startswith(PREFIX)}
        if credit and state.is_world_process_zero:
            self.log_credit(credit, state.global_step)
        others = {name: value for name, value in logs.items() if name not in credit}
        super().on_log(args, state, control, logs=others, **kwargs)


class _GroupedWandb(_Grouped, WandbCallback):
    def log_credit(self, credit: dict[str, Any], step: int) -> None:
        import_module("wandb").log(credit, commit=False)  # into the row that `on_log` writes


class _GroupedTensorBoard(_Grouped, TensorBoardCallback):
    def log_credit(self, credit: dict[str, Any], step: int) -> None:
        for name, value in credit.items():
            if value is not None:  # a step without it
                self.tb_writer.add_scalar(name, value, step)


_GROUPED = {WandbCallback: _GroupedWandb, TensorBoardCallback: _GroupedTensorBoard}
