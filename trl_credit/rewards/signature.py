"""Whether TRL can call a reward function, checked by its signature before anything is generated."""

import inspect
from collections.abc import Callable
from typing import NamedTuple


# names that TRL gives besides the columns of the data, and columns that it does not give
GIVEN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
_NOT_GIVEN = ("prompt", "completion", "completion_ids")
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Rows(NamedTuple):
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
    def names(self) -> tuple[str, ...]:
        """The known names of the call."""
        columns = (column for column in self.columns or () if column not in _NOT_GIVEN)
        return tuple(dict.fromkeys((*GIVEN, *self.others, *columns)))


def check_signature(function: Callable, name: str, rows: Rows) -> None:
    """Checks that a function takes all names that it is given, and requires no others.

    A function without a readable signature passes. Where columns are not known, missing ones are not checked.

    Raises:
        ValueError: the call would fail; one line that names the function and the fix.
    """
    try:
        # not the wrapped function's, which the wrapper may give further arguments
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # written in C
        return
    bind = signature.bind_partial if rows.columns is None else signature.bind
    try:
        bind(**dict.fromkeys(rows.names))
    except TypeError as error:
        columns = [name for name in rows.names if name not in GIVEN]
        fix = "rename the parameter or the column, give the parameter a default, or add **kwargs to its parameters"
        what = f"reward function {name!r} cannot be called: {error}, and {rows.what} has {columns or 'prompts alone'}"
        raise ValueError(f"{what}. TRL also gives {', '.join(GIVEN)}: {fix}.") from error


def required_parameters(function: Callable) -> tuple[str, ...]:
    """The parameters without a default that can be given by name; empty if the signature cannot be read."""
    try:
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind in _BY_NAME and p.default is p.empty)
