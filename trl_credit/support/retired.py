"""Names that TRL and transformers had and removed, and what to write instead. Imports no torch."""

from collections.abc import Iterable
from pathlib import Path

import yaml

from .errors import did_you_mean


def meant_by(name: str, known: Iterable[str]) -> str:
    """What to write for an unknown name of a field, a flag or an argument, for the end of a message: the line of
    `retired.yaml`, or a known name if this one is a misspelling of it. "" if neither is so."""
    for who, fixes in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")).items():
        for names, fix in fixes.items():
            if name.lstrip("-").replace("-", "_") in names.split():
                return f": {who}; {fix}"
    return did_you_mean(name, known, cutoff=0.75)
