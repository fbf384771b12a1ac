"""The knobs of a teacher, which gives each token of a response a log-probability of its own."""

import string
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..support.functions import is_custom_function
from .knobs import COUNT, Values, anything_but, knob, number, when


TEMPLATE_OF_SUCCESS = "{prompt}\n\nA correct solution:\n\n{success}\n\nNow solve the problem in your own words."
PROMPT_WORDS = "'success', a text with {columns} of a row such as {prompt} ({{ for a brace), or the name of a function"


def template_fields(text: str) -> list[str] | None:
    """The names in braces of a template; `None` for a text that is none, or whose braces hold more than a name."""
    try:
        fields = [field for field in string.Formatter().parse(text) if field[1] is not None]
    except ValueError:  # a single brace
        return None
    are_names = all(name.isidentifier() and not spec and not conversion for _, name, spec, conversion in fields)
    return [name for _, name, _, _ in fields] if fields and are_names else None


def _is_prompt(value: Any) -> bool:
    if not isinstance(value, str) or not any(c.isspace() or c == "{" for c in value):
        return value == "success" or is_custom_function(value)
    return template_fields(value) is not None


def _reads_success(value: Any) -> bool:
    is_template = isinstance(value, str) and not is_custom_function(value)
    return is_template and (value == "success" or "success" in (template_fields(value) or ()))


HAS_TEACHER = when(teacher=anything_but(None))
COPIED = when(teacher="policy", teacher_sync_steps=COUNT)
READS_SUCCESS = HAS_TEACHER | when(teacher_prompt=Values("'success', or a text with {success}", _reads_success))

_teacher = partial(knob, heading="Teacher")


@dataclass
class TeacherKnobs:
    r"""
    The teacher of a run: a part of [`CreditConfig`].

    A teacher scores the responses of each generation batch, in one pass without a gradient. An algorithm reads its
    log-probabilities as `Tokens.teacher_logp_t`; `opd`, `rlsd` and `sdpo` do.

    Parameters:
        teacher (`str`, *optional*):
            The teacher's weights: `"policy"` (those that sampled), `"reference"` (TRL's reference model), or a model by
            name or path, with the vocabulary of the policy. A named model is loaded with `model_init_kwargs`, whose
            `dtype` is `"auto"` if left out.
        teacher_prompt (`str` or `Callable`, *optional*):
            What the teacher sees as prompt: a text with columns of the row in braces, such as `"{prompt}\n\nThe answer
            is {answer}."`, or a function `f(row) -> prompt`. In a conversation `{prompt}` is the last user turn, which
            the text replaces. `{success}` is another response of the group with the largest reward of `reward_range`,
            and `"success"` is our text with it. A row that lacks a column, or for which the function returns `None`, is
            not scored (NaN). `None` keeps the row's own prompt.
        teacher_sync_steps (`int`, *optional*):
            Optimizer steps after which a copy of the policy, the teacher, is renewed. `None` takes the policy itself.
        teacher_update_rate (`float`, *optional*, defaults to `1.0`):
            The share of the policy in the renewed copy, above 0 and at most 1. Below 1 it is a moving average.
    """

    teacher: str | None = _teacher(None, Values("text", lambda x: isinstance(x, str) and x != ""))
    teacher_prompt: str | None = _teacher(None, Values(PROMPT_WORDS, _is_prompt, custom=True), acts=HAS_TEACHER)
    teacher_sync_steps: int | None = _teacher(None, COUNT, acts=when(teacher="policy"))
    teacher_update_rate: float = _teacher(1.0, number("above 0 and at most 1", lambda x: 0.0 < x <= 1.0), acts=COPIED)

    @property
    def reads_success(self) -> bool:
        """Whether the teacher sees right responses."""
        return self.teacher is not None and _reads_success(self.teacher_prompt)
