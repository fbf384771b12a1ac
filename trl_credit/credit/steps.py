"""Where the steps of a worked solution begin, in characters: the partitions of VinePPO (arXiv 2410.01679).

A splitter takes the text of a response and returns offsets [0, …, len(text)]; a step lies between consecutive ones. The
patterns take (almost) linear time, because model output is untrusted.
"""

import re
from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise
from numbers import Integral


StepSplitter = Callable[[str], list[int]]
ANSWER_MARKER = "\n####"
SHORT_STEP = 20  # characters
LONG_STEP = 100
LEAST_HALF = 40
_MATH = re.compile(
    r"\[asy\][^\[]*\[/asy\]|\\begin\{(\w{1,20}\*?)\}(?:(?!\\begin\{).)*?\\end\{\1\}|\\\((?:(?!\\\().)*?\\\)"
    r"|\\\[(?:(?!\\\[).)*?\\\]|\$\$[^$]+\$\$|\$[^$]+\$",
    re.DOTALL,
)
_HIDDEN = "\ue000"  # private use: replaces each character of a formula
# a full stop that does not follow a word of one or two letters (an abbreviation), white space, a capital letter
_SENTENCE = re.compile(r"(?<!\b\w\.)(?<!\b\w\w\.)(?<=\.)[ \t]+(?=[A-Z\ue000])")
_BREAKS = (", ", " and ", ": ", " to ")


def split_newlines(text: str) -> list[int]:
    """A step per line, which begins with the newline before it. Blank lines at both ends join their neighbour."""
    if not text.strip():
        return [0, len(text)] if text else [0]
    offsets = [0, *(m.start() for m in re.finditer("\n", text)), len(text)]
    filled = [i for i, (begin, end) in enumerate(pairwise(offsets)) if text[begin:end].strip()]
    return [0, *offsets[filled[0] + 1 : filled[-1] + 1], len(text)]


def split_gsm8k(text: str) -> list[int]:
    """A step per line of a GSM8K solution; the answer after `#### ` belongs to the last step.

    Raises:
        ValueError: the answer marker occurs more than once.
    """
    body, *answers = text.split(ANSWER_MARKER)
    if len(answers) > 1:
        raise ValueError(f"the answer marker {ANSWER_MARKER.strip()!r} occurs more than once")
    offsets = split_newlines(body)
    return [*offsets[:-1], len(text)] if len(offsets) > 1 else [0, len(text)]


def split_math(text: str) -> list[int]:
    """A step per sentence or line of a solution in LaTeX; formulas are never cut.

    A step ends at a full stop before a capital letter, or at a newline. A step below 20 characters that does not end in
    a full stop joins the next one. A step above 100 characters is halved at the comma nearest to its middle, else at
    `and`, a colon or `to`, in this order; a half has at least 40 characters. VinePPO's splitter also cuts inside long
    formulas; this one does not.
    """
    hidden = _MATH.sub(lambda m: _HIDDEN * len(m.group()), text)
    cuts = {m.end() for m in _SENTENCE.finditer(hidden)} | {m.start() for m in re.finditer("\n", hidden)}
    offsets = sorted({0, *cuts, len(text)})
    joined = [0]
    for end in offsets[1:]:
        piece = text[joined[-1] : end].strip()
        too_short = len(piece) < SHORT_STEP and not piece.endswith(".")
        if end == len(text) and too_short and len(joined) > 1:
            joined[-1] = end  # a short rest belongs to the step before it
        elif not too_short or end == len(text):
            joined.append(end)
    ends = [end for begin, end in pairwise(joined) for end in _halve(hidden, begin, end)]
    return [0, *(ends or [len(text)])]


STEP_SPLITTERS: dict[str, StepSplitter] = {"newline": split_newlines, "gsm8k": split_gsm8k, "math": split_math}


def step_positions(ids: list[int], *, decode: Callable[[list[int]], str], splitter: StepSplitter) -> list[int]:
    """Positions of the tokens at which the steps of a response begin; 0 is always one of them.

    A token belongs to the step that contains its first character. Prefixes of the generated ids are decoded, so nothing
    is tokenised again: O(steps · log T) calls of `decode`.

    Raises:
        ValueError: the splitter raised it.
        TypeError: the splitter did not return ascending offsets within the text.
    """
    text = decode(ids)
    if not text:
        return [0]
    offsets = list(splitter(text))
    inside = all(isinstance(o, Integral) and 0 <= o <= len(text) for o in offsets)
    if not inside or sorted(set(offsets)) != offsets:
        raise TypeError(f"a step splitter must return ascending offsets within the text, got {offsets[:20]}")
    starts = [offset for offset in offsets if 0 < offset < len(text)]
    positions = {bisect_left(range(len(ids)), start, key=lambda k: len(decode(ids[:k]))) for start in starts}
    return sorted(p for p in {0, *positions} if p < len(ids))


def _halve(hidden: str, begin: int, end: int) -> list[int]:
    """Ends of the parts of hidden[begin:end], none above `LONG_STEP` characters if there is a place to cut."""
    for pattern in _BREAKS if end - begin > LONG_STEP else ():
        ends = [begin + m.end() for m in re.finditer(re.escape(pattern), hidden[begin:end])]
        places = [p for p in ends if p - begin >= LEAST_HALF and end - p >= LEAST_HALF]
        if places:
            cut = min(places, key=lambda p: abs(p - (begin + end) / 2))
            return [*_halve(hidden, begin, cut), *_halve(hidden, cut, end)]
    return [end]
