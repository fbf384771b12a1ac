"""Whether TRL's call of a reward function can reach it: from its signature, before anything is generated."""

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass


# what TRL gives by name besides the columns of the data, and the columns that it keeps to itself
GIVEN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
_NOT_GIVEN = ("prompt", "completion", "completion_ids")
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Rows:
    """What the rows of a data set bring into the call.

    Attributes:
        what: The data set, as the messages call it: "train_dataset".
        columns: Its columns, or `None` where they are not known beforehand.
        others: Names that the call has besides columns and `GIVEN`.
    """

    what: str
    columns: tuple[str, ...] | None
    others: tuple[str, ...] = ()

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the call, as far as they are known."""
        columns = (column for column in self.columns or () if column not in _NOT_GIVEN)
        return tuple(dict.fromkeys((*GIVEN, *self.others, *columns)))


def check_signature(
    function: Callable, name: str, given: Collection[str], *, source: str, complete: bool = True
) -> None:
    """Checks that a function takes what it is given by name, and asks for nothing else.

    A function that hides its signature passes.

    Args:
        given (collection of `str`):
            The names of the call.
        source (`str`):
            Where they come from besides TRL, for the message.
        complete (`bool`, *optional*, defaults to `True`):
            Whether these are all names. If not, what is missing is not checked.

    Raises:
        ValueError: it cannot be called so; one line that names the function and the fix.
    """
    parameters = _parameters(function)
    if parameters is None:
        return
    problems = []
    if nameless := [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]:
        problems.append(f"takes {_listed(nameless)} by position alone, and is called by name: take out the /")
    missing = [parameter for parameter in required_parameters(function) if parameter not in given]
    if missing and complete:
        columns = [column for column in given if column not in GIVEN]
        problems.append(
            f"asks for {_listed(missing)}, and {source} has only {_listed(columns) or 'prompts'}: rename the "
            "parameter or the column, or give the parameter a default"
        )
    taken = {p.name for p in parameters if p.kind in _BY_NAME}
    unexpected = [key for key in given if key not in taken]
    if unexpected and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        problems.append(f"does not take {_listed(unexpected)}, which it is given: add **kwargs to its parameters")
    if problems:
        raise ValueError(f"reward function {name!r} {'; it '.join(problems)}.")


def check_columns(rows: Rows) -> None:
    """Checks that no column has a name under which TRL gives reward functions something else.

    Raises:
        ValueError: one has.
    """
    if clash := [column for column in rows.columns or () if column in GIVEN and column not in _NOT_GIVEN]:
        raise ValueError(
            f"{rows.what} has a column {_listed(clash)}, and reward functions are given something else by that name: "
            "rename the column, or take it out."
        )


def required_parameters(function: Callable) -> tuple[str, ...]:
    """The parameters without a default that can be given by name; none of a function that hides its signature."""
    return tuple(p.name for p in _parameters(function) or () if p.kind in _BY_NAME and p.default is p.empty)


def _parameters(function: Callable) -> list[inspect.Parameter] | None:
    try:
        # of what is called itself: a wrapper may give the function that it wraps more than it is given
        return list(inspect.signature(function, follow_wrapped=False).parameters.values())
    except (TypeError, ValueError):  # written in C
        return None


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, names))
