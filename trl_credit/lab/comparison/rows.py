"""Whether runs are runs of one algorithm, so that a row of the comparison may pool them."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from ...data.prompt_sets import depends_on_seed
from ...runs.checkpoints import read_run
from ...runs.identity import differences, edited, in_words, row_identity
from .grid import Run


Record = dict[str, Any]
_FIX = "undo the edit, or start a new row under another name, NAME=…, or another --output_dir"


class Rows:
    """What the runs of each row are: the record of the first one that has begun.

    Attributes:
        remarks: A sentence on each row whose runs are all finished, and used a function that has been edited since.

    Args:
        runs (list of [`Run`]):
            Those that have a checkpoint are compared with the code of today, and with the others of their algorithm.
        swept (`str`, *optional*):
            The setting that is tuned, which may differ.

    Raises:
        ValueError: a function has been edited since a run of an unfinished row used it, or two runs of a row differ.
            The message names both, and the fix.
    """

    def __init__(self, runs: Sequence[Run], *, swept: str | None) -> None:
        self._swept = swept
        self._first: dict[str, tuple[str, Record]] = {}
        open_rows = {run.entry.name for run in runs if not run.is_finished}
        remarks = []
        for run in runs:
            if run.checkpoint is None or (record := read_run(run.output_dir)) is None:
                continue
            if changed := edited(record):
                what = f"was trained before an edit of {', '.join(changed)}"
                if run.entry.name in open_rows:
                    raise ValueError(f"{run.name} {what}: {_FIX}")
                remarks.append(f"{run.entry.label} {what}: this is the old row.")
            if problem := self.problem(run, record):
                raise ValueError(problem)
        self.remarks = [*dict.fromkeys(remarks)]

    def problem(self, run: Run, record: Record) -> str:
        """Why a run that has begun, with this record, is none of its row; "" if it is one."""
        name, first = self._first.setdefault(run.entry.name, (run.name, record))
        differ = in_words(unlike(first, record, beside=self._swept))
        return f"{name} and {run.name} would be one row, and differ ({differ}): {_FIX}" if differ else ""


def unlike(one: Record, other: Record, *, beside: str | None) -> dict[str, list[Any]]:
    """The fields in which two runs are not runs of one algorithm, from their records, `beside` one. What follows from
    the seed does not count, nor do modules that only one of them has loaded."""
    # records of 0.2.0 tell whole files alone
    of = row_identity if "code" in one and "code" in other else itemgetter("identity")
    changed = differences(of(one), of(other), defaults={})
    for name in ("seed", "data_seed", beside):
        changed.pop(name, None)
    for name, (before, after) in list(changed.items()):
        if name == "modules" and before and after:
            changed[name] = [{key: modules[key] for key in before.keys() & after.keys()} for modules in (before, after)]
        elif name == "data" and depends_on_seed((one.get("task") or {}).get("dataset_name")):
            changed[name] = [{**data, "content": None} for data in (before, after)]
    return {name: pair for name, pair in changed.items() if pair[0] != pair[1]}
