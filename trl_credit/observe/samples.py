"""A prompt and a response of the last generation batch, on two lines of the console."""

import math
import shutil
from typing import Any, NamedTuple, SupportsFloat

from rich.text import Text

from ..support.conversation import asked_in, response_text
from ..support.texts import plain


_LABEL = 14  # columns, as before the paths that a run prints at its end
_LOG_WIDTH = 120  # columns where the output is no terminal


class Sample(NamedTuple):
    """A response that was sampled for training.

    Attributes:
        prompt, completion: As TRL logs them: text, or the messages of a conversation.
        reward: Total reward, NaN if no function scored it. May be a tensor of one element, which is read from its
            device only where it is shown.
    """

    prompt: Any
    completion: Any
    reward: SupportsFloat


def sample_lines(sample: Sample, *, step: int) -> list[str]:
    """Prompt and response, each cut to the width of the terminal, without line breaks and control characters; `step`
    is the optimizer step that ended last."""
    width = shutil.get_terminal_size((_LOG_WIDTH, 24)).columns
    value = float(sample.reward)
    facts = f"  (step {step}, {'no reward' if math.isnan(value) else f'reward {value:.3g}'})"
    return [
        f"{'prompt':<{_LABEL}}{_cut(asked_in(sample.prompt), width - _LABEL)}",
        f"{'response':<{_LABEL}}{_cut(response_text(sample.completion), width - _LABEL - len(facts))}{facts}",
    ]


def _cut(text: str, width: int) -> str:
    # long texts are cut first: the width of every character is looked up
    line = Text(plain(" ".join(text[: 8 * max(width, 1)].split())))
    line.truncate(max(width, 1), overflow="ellipsis")
    return line.plain
