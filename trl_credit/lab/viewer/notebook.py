"""The page in a notebook."""

from html import escape
from pathlib import Path
from typing import Any

from ...observe.schema import Shard
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
        frame = 'title="Credit per token" sandbox="allow-scripts" width="100%" height="760" style="border:0"'
        return f'<iframe {frame} srcdoc="{escape(self.html)}"></iframe>'

    def __repr__(self) -> str:
        return f"CreditView({len(self.html) / 1e6:.1f} MB of HTML: a notebook shows it)"


def show_credit(run_or_trainer: Any, step: int | None = None) -> CreditView:
    """Shows the credit per token of a logged step, as the last expression of a notebook cell.

    Args:
        run_or_trainer (`str`, `Path`, a trainer, or results of [`~trl_credit.lab.explain.explain`]):
            The output folder of a run that was trained with `log_credit`, a shard file, or the trainer itself. Or one
            or several results of `explain` (or shards), which stand side by side.
        step (`int`, *optional*):
            The step of a run. Defaults to the last logged step.

    Raises:
        OSError: the file does not exist.
        ValueError: nothing was logged, the step was not logged, or a shard is damaged.
        TypeError: the argument is none of these.
    """
    sources = run_or_trainer if isinstance(run_or_trainer, (list, tuple)) else [run_or_trainer]
    shards = [getattr(source, "shard", source) for source in sources]
    if shards and all(isinstance(shard, Shard) for shard in shards):
        return CreditView(build_page(shards, title=", ".join(shard.header["algorithm"] for shard in shards)))
    run = getattr(getattr(run_or_trainer, "args", None), "output_dir", run_or_trainer)
    if not isinstance(run, (str, Path)):
        got = type(run_or_trainer).__name__
        raise TypeError(f"show_credit takes the folder of a run, a trainer or results of explain, got {got}")
    shards, _ = read_run(run, None if step is None else [step])
    return CreditView(build_page(shards[-1:], title=run_title(run)))
