"""`prompt_rates.jsonl`: the last pass rate of each prompt of a run, as a file for resumes, later runs and `eval`."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..support.digests import json_text
from ..support.files import check_size


PROMPT_RATES_FILE = "prompt_rates.jsonl"  # in the folder of a run and in each of its checkpoints
_MOST = 10**12  # rows or groups; what is larger does not fit the arrays, and no data set has it
_DIGEST = re.compile(r"[0-9a-f]{16}")


class PromptRate(NamedTuple):
    """One line of the file.

    Attributes:
        row: Number of the row in the data set.
        prompt: Digest of its prompt, see [`prompt_digest`].
        rate: Last pass rate in [0, 1], or `None` if no group of the row was scored.
        groups: Groups that this run sampled for the row. 0 beside a rate: the rate is an earlier run's.
    """

    row: int
    prompt: str
    rate: float | None
    groups: int

    @property
    def sampled(self) -> bool:
        """Whether this run drew the row or sampled for it: the row does more than carry an earlier run's rate."""
        return self.groups > 0 or self.rate is None

    def to_json(self) -> str:
        """The line, without its end. A float is written with all its digits."""
        return json.dumps(self._asdict(), allow_nan=False)


def prompt_digest(prompt: Any) -> str:
    """16 hexadecimal digits (BLAKE2b) of a prompt, text or messages: the same in every process and run."""
    return hashlib.blake2b(json_text(prompt).encode(), digest_size=8).hexdigest()


def read_rates(path: str | Path) -> Iterator[PromptRate]:
    """The lines of a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is too large, or a line is damaged. The message has its number, from 1.
    """
    check_size(path)
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield _checked(json.loads(line))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                what = f"it has no {error}" if isinstance(error, KeyError) else error
                raise ValueError(f"line {number} is damaged ({what})") from error


def _checked(line: dict[str, Any]) -> PromptRate:
    row, prompt, rate, groups = (line[name] for name in PromptRate._fields)
    if any(type(number) is not int or not 0 <= number < _MOST for number in (row, groups)):
        raise ValueError(f"row or groups is no whole number from 0 to {_MOST:,}")
    if type(prompt) is not str or _DIGEST.fullmatch(prompt) is None:
        raise ValueError("prompt is no digest of 16 hexadecimal digits")
    if rate is not None and (type(rate) not in (int, float) or not 0.0 <= rate <= 1.0):
        raise ValueError("rate is neither in [0, 1] nor null")
    return PromptRate(row, prompt, None if rate is None else float(rate), groups)
