"""Configurations to compare with, beside a trainer that goes on."""

from typing import Any, TypeVar

from accelerate.state import AcceleratorState, PartialState


T = TypeVar("T")


def built(kind: type[T], **values: Any) -> T:
    """`kind(**values)`, a dataclass. transformers resets Accelerate's state for each new configuration; here it is put
    back, for the trainer that reads it in its next step."""
    states = [(shared, dict(shared)) for shared in (PartialState._shared_state, AcceleratorState._shared_state)]
    try:
        return kind(**values)
    finally:
        for shared, before in states:
            if before:
                shared.clear()
                shared.update(before)
