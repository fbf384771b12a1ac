"""Whether TRL can call a reward function, checked by its signature before anything is generated."""

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass


# names that TRL gives besides the columns of the data, and columns that it does not give
GIVEN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
_NOT_GIVEN = ("prompt", "completion", "completion_ids")
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Rows:
    """The names that the rows of a data set give to the call.

    Attributes:
        what: The data set in messages, such as "train_dataset".
        columns: Its columns, or `None` if they are not known beforehand.
        others: Names that the call has besides the columns and `GIVEN`.
    """

    what: str
    columns: tuple[str, ...] | None
    others: tuple[str, ...] = ()

    @property
    def given(self) -> tuple[str, ...]:
        """The known names of the call."""
        columns = (column for column in self.columns or () if column not in _NOT_GIVEN)
        return tuple(dict.fromkeys((*GIVEN, *self.others, *columns)))


def check_signature(
    function: Callable, name: str, given: Collection[str], *, source: str, complete: bool = True
) -> None:
    """Checks that a function takes all names that it is given, and requires no others.

    A function without a readable signature passes.

    Args:
        given (collection of `str`):
            Names of the call.
        source (`str`):
            Where the names come from besides TRL, for the message.
        complete (`bool`, *optional*, defaults to `True`):
            Whether these are all names. If not, missing names are not checked.

    Raises:
        ValueError: the call would fail; one line that names the function and the fix.
    """
    parameters = _parameters(function)
    if parameters is None:
        return
    problems = []
    if nameless := [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]:
        problems.append(f"takes {_listed(nameless)} only by position, but is called by name: remove the /")
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
    """Checks that no column has a name that TRL uses for another argument of reward functions.

    Raises:
        ValueError: a column has such a name.
    """
    if clash := [column for column in rows.columns or () if column in GIVEN and column not in _NOT_GIVEN]:
        what = f"{rows.what} has a column {_listed(clash)}, and TRL gives reward functions another argument"
        raise ValueError(f"{what} of that name: rename the column, or remove it.")


def required_parameters(function: Callable) -> tuple[str, ...]:
    """The parameters without a default that can be given by name; empty if the signature cannot be read."""
    return tuple(p.name for p in _parameters(function) or () if p.kind in _BY_NAME and p.default is p.empty)


def _parameters(function: Callable) -> list[inspect.Parameter] | None:
    try:
        # not the wrapped function's, which the wrapper may give further arguments
        return list(inspect.signature(function, follow_wrapped=False).parameters.values())
    except (TypeError, ValueError):  # written in C
        return None


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, names))
