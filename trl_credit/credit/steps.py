"""Where the steps of a worked solution begin, in characters: the partitions of VinePPO (arXiv 2410.01679).

A splitter takes the text of a response and returns offsets [0, …, len(text)], between each two of which lies a step.
They only use patterns that take time linear in the text, or close to it: model output is untrusted.
"""

import re
from bisect import bisect_left
from collections.abc import Callable
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
_HIDDEN = "\ue000"  # private use: stands for a character of a formula
# a full stop (not that of an abbreviation of one or two letters), white space, a capital letter
_SENTENCE = re.compile(r"(?<!\b\w\.)(?<!\b\w\w\.)(?<=\.)[ \t]+(?=[A-Z\ue000])")
_BREAKS = (", ", " and ", ": ", " to ")


def split_newlines(text: str) -> list[int]:
    """A step per line, whose newline stands before it. Blank lines at the start and at the end join a neighbour."""
    starts = [m.start() for m in re.finditer("\n", text)]
    return _merge_blank(text, [0, *starts, len(text)])


def split_gsm8k(text: str) -> list[int]:
    """Lines of a GSM8K solution; the answer after `#### ` belongs to the last step.

    Raises:
        ValueError: the answer marker occurs more than once.
    """
    if text.count(ANSWER_MARKER) > 1:
        raise ValueError(f"the answer marker {ANSWER_MARKER.strip()!r} occurs more than once")
    end = text.find(ANSWER_MARKER)
    body = text if end < 0 else text[:end]
    offsets = split_newlines(body)
    return [*offsets[:-1], len(text)] if len(offsets) > 1 else [0, len(text)]


def split_math(text: str) -> list[int]:
    """Sentences and lines of a solution in LaTeX, never inside a formula.

    A step ends at a full stop before a capital letter, or at a newline. Steps below 20 characters that do not end in a
    full stop are joined to the next one; text above 100 characters is halved at the comma, `and`, colon or `to`
    nearest to its middle. VinePPO's splitter also cuts inside long formulas; this one does not.
    """
    hidden = _MATH.sub(lambda m: _HIDDEN * len(m.group()), text)
    cuts = {m.end() for m in _SENTENCE.finditer(hidden)} | {m.start() for m in re.finditer("\n", hidden)}
    offsets = sorted({0, *cuts, len(text)})
    joined = [0]
    for end in offsets[1:]:
        piece = text[joined[-1] : end]
        too_short = len(piece.strip()) < SHORT_STEP and not piece.rstrip().endswith(".")
        if end == len(text) and too_short and len(joined) > 1:
            joined[-1] = end  # what is left over belongs to the step before
        elif not too_short or end == len(text):
            joined.append(end)
    halved = [0]
    for begin, end in zip(joined[:-1], joined[1:], strict=True):
        halved += _halve(hidden, begin, end)
    return halved if len(halved) > 1 else [0, len(text)]


STEP_SPLITTERS: dict[str, StepSplitter] = {"newline": split_newlines, "gsm8k": split_gsm8k, "math": split_math}


def step_positions(ids: list[int], *, decode: Callable[[list[int]], str], splitter: StepSplitter) -> list[int]:
    """Positions of the tokens with which the steps of a response begin; 0 is always one of them.

    A token belongs to the step in which its first character lies, which is found by decoding prefixes of the very ids
    that were generated: nothing is tokenised again. O(steps · log T) calls of `decode`.

    Raises:
        ValueError: the splitter raised it.
        TypeError: the splitter returned something else than ascending offsets within the text.
    """
    text = decode(ids)
    if not text:
        return [0]
    offsets = list(splitter(text))
    inside = all(isinstance(o, Integral) and 0 <= o <= len(text) for o in offsets)
    if not inside or sorted(set(offsets)) != offsets:
        raise TypeError(f"a step splitter must return ascending offsets within the text, got {offsets[:20]}")
    positions = {0}
    for offset in offsets:
        if 0 < offset < len(text):
            positions.add(bisect_left(range(len(ids)), offset, key=lambda k: len(decode(ids[:k]))))
    return sorted(p for p in positions if p < len(ids))


def _merge_blank(text: str, offsets: list[int]) -> list[int]:
    """Leading blank pieces join the first that is not blank, trailing ones the last; blank ones between stay."""
    pieces = list(zip(offsets[:-1], offsets[1:], strict=True))
    filled = [i for i, (begin, end) in enumerate(pieces) if text[begin:end].strip()]
    if not filled:
        return [0, len(text)] if text else [0]
    kept = [begin for i, (begin, _) in enumerate(pieces) if filled[0] < i <= filled[-1]]
    return [0, *kept, len(text)]


def _halve(hidden: str, begin: int, end: int) -> list[int]:
    """Ends of the parts of hidden[begin:end], none above `LONG_STEP` characters if there is a place to cut."""
    stack, ends = [(begin, end)], []
    while stack:
        begin, end = stack.pop()
        middle = (begin + end) / 2
        places: list[int] = []
        if end - begin > LONG_STEP:
            for pattern in _BREAKS:
                found = [m.end() for m in re.finditer(re.escape(pattern), hidden[begin:end])]
                places = [begin + p for p in found if p >= LEAST_HALF and end - begin - p >= LEAST_HALF]
                if places:
                    break
        if places:
            cut = min(places, key=lambda p: abs(p - middle))
            stack += [(cut, end), (begin, cut)]
        else:
            ends.append(end)
    return ends
