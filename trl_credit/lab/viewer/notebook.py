"""The page in a notebook."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from ...observe.schema import Shard
from .page import build_page
from .runs import last_step, named_runs, read_runs, run_title


class CreditView:
    """A page that a notebook shows in a sandboxed frame; `html` is the page.

    Args:
        html (`str`):
            The page.
    """

    def __init__(self, html: str) -> None:
        self.html = html

    def _repr_html_(self) -> str:
        # without allow-same-origin the frame cannot touch the notebook; with allow-downloads it can save CSV and PNG
        frame = 'title="Credit per token" sandbox="allow-scripts allow-downloads" width="100%" height="760"'
        # the text is shown where the frame is removed: in a notebook that is not trusted, and on GitHub
        text = "Credit per token: trust the notebook, or run this cell again, to see the page."
        return f'<iframe {frame} style="border:0" srcdoc="{escape(self.html)}">{text}</iframe>'

    def __repr__(self) -> str:
        return f"CreditView({len(self.html) / 1e6:.1f} MB of HTML: a notebook shows it)"


def show_credit(run_or_trainer: Any, step: int | None = None) -> CreditView:
    """Shows the credit per token of a logged step, as the last expression of a notebook cell.

    Args:
        run_or_trainer (`str`, `Path`, a trainer, or results of [`~trl_credit.lab.explain.explain`]):
            The output folder of a run that was trained with `log_credit`, a shard file, or the trainer itself. Several
            of them stand side by side, in a list or in a `dict` that names them. Or one or several results of
            `explain` (or shards).
        step (`int`, *optional*):
            The step of a run. Defaults to the last logged step.

    Raises:
        OSError: the file does not exist.
        ValueError: nothing was logged, the step was not logged, or a shard is damaged.
        TypeError: the argument is none of these.
    """
    several = run_or_trainer if isinstance(run_or_trainer, (list, tuple, Mapping)) else [run_or_trainer]
    sources = [*several.values()] if isinstance(several, Mapping) else [*several]
    shards = [getattr(source, "shard", source) for source in sources]
    if shards and all(isinstance(shard, Shard) for shard in shards):
        return CreditView(build_page(shards, title=", ".join(shard.header["algorithm"] for shard in shards)))
    folders = [getattr(getattr(source, "args", None), "output_dir", source) for source in sources]
    if wrong := [folder for folder in folders if not isinstance(folder, (str, Path))]:
        got = type(wrong[0]).__name__
        raise TypeError(f"show_credit takes folders of runs, trainers or results of explain, got {got}")
    runs = dict(zip(several, folders, strict=True)) if isinstance(several, Mapping) else named_runs(folders)
    shards, _ = read_runs(runs, None if step is None else [step])
    last = last_step(shards)
    title = ", ".join(runs) if len(runs) > 1 else run_title(*folders)
    return CreditView(build_page([shard for shard in shards if shard.header["step"] == last], title=title))
