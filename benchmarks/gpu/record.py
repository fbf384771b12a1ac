"""What the process of a part found, a JSON line each, so that what was found before a part was stopped is kept."""

import contextlib
import json
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Recorder:
    """Appends to a file; each line is whole when the call returns."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self, what: str, value: str, *, wanted: str, ok: bool) -> None:
        """Something that is right or wrong."""
        self._write(kind="check", what=what, found=value, wanted=wanted, outcome="ok" if ok else "FAILED")

    def not_run(self, what: str, why: str) -> None:
        """Something that cannot be checked here, which is no failure."""
        self._write(kind="check", what=what, found=why, wanted="", outcome="not run")

    def row(self, **columns: str) -> None:
        """A row of a table of measurements. Rows with the same columns are one table."""
        self._write(kind="row", columns=columns)

    @contextlib.contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """An error inside is a failed check, with its traceback on stderr. The run goes on after it."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            line = f"{type(error).__name__}: {str(error).strip() or 'without a message'}".splitlines()[0]
            self.check(what, line[:200], wanted="no error", ok=False)

    def _write(self, **entry: Any) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """All lines; of a process that was killed while it wrote, all but the last."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]
