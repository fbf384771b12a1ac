"""`prompt_rates.jsonl`: the last pass rate of each prompt of a run, as a file for resumes, later runs and `eval`."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..support.digests import json_text
from ..support.files import check_size


PROMPT_RATES_FILE = "prompt_rates.jsonl"  # in the folder of a run and in each of its checkpoints


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
                content = json.loads(line)
                row, prompt, rate, groups = (content[name] for name in PromptRate._fields)
                is_valid = min(row, groups) >= 0 and len(prompt) == 16 and (rate is None or 0.0 <= rate <= 1.0)
            except (ValueError, KeyError, TypeError, RecursionError):
                is_valid = False
            if not is_valid:
                raise ValueError(f"line {number} is damaged")
            yield PromptRate(row, prompt, rate, groups)
