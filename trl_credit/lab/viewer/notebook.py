"""The page in a notebook."""

from html import escape
from pathlib import Path
from typing import Any

from .page import build_page
from .runs import read_run, run_title


class CreditView:
    """A page that a notebook shows in a sandboxed frame; `html` is the page.

    Args:
        html (`str`):
            The page.
    """

    def __init__(self, html: str) -> None:
        self.html = html

    def _repr_html_(self) -> str:
        # without allow-same-origin the frame cannot touch the notebook
        return (
            f'<iframe title="Credit per token" sandbox="allow-scripts" width="100%" height="760" '
            f'style="border:0" srcdoc="{escape(self.html)}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"CreditView({len(self.html) / 1e6:.1f} MB of HTML: a notebook shows it)"


def show_credit(run_or_trainer: Any, step: int | None = None) -> CreditView:
    """Shows the credit per token of a logged step, as the last expression of a notebook cell.

    Args:
        run_or_trainer (`str`, `Path` or a trainer):
            The output folder of a run that was trained with `log_credit`, a shard file, or the trainer itself.
        step (`int`, *optional*):
            The step. Defaults to the last logged step.

    Raises:
        OSError: the file does not exist.
        ValueError: nothing was logged, the step was not logged, or a shard is damaged.
        TypeError: the argument is neither a path nor a trainer.
    """
    run = getattr(getattr(run_or_trainer, "args", None), "output_dir", run_or_trainer)
    if not isinstance(run, (str, Path)):
        raise TypeError(f"show_credit takes the folder of a run or a trainer, got {type(run_or_trainer).__name__}")
    shards, _ = read_run(run, None if step is None else [step], in_python=True)
    return CreditView(build_page(shards[-1:], title=run_title(run)))
