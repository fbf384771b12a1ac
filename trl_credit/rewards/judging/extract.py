"""Which part of a response is its answer. Linear in any text."""

import re


LONGEST_ANSWER = 20_000  # characters
_MOST_PARTS = 20  # boxes of one answer
_BOX = re.compile(r"\\(?:boxed|fbox)(?:\s{0,3}\{|\s{1,3}(?=[\w\\-])|(?=\d))")
_TOKEN = re.compile(r"-?[\w.]+|\\[A-Za-z]+(?:\{[^{}]*\}){0,2}")
# text between boxes that are one answer; possessive, since many spaces take exponential time otherwise
_BESIDE = re.compile(
    r"(?i)(?:\([a-z]\):?|\b\d[.)](?=\s)|[\s$,;.|&/*()\[\]\\_-]|\b[a-z]\s?="
    r"|\b(?:and|or|maybe|perhaps|possibly|alternatively|also|either|both|q?quad|lor|vee|part(?=\s?\()|option \d)\b:?"
    r"|text\{ ?(?:and|or) ?\})*+"
)
_WIDEST_GAP = 60  # characters between such boxes
_THINKING = re.compile(r"(?i)<think(?:ing)?>")
_THOUGHT = re.compile(r"(?i)</think(?:ing)?>")
# a number after these words is not the answer
_DOUBT = re.compile(
    r"(?i)\b(?:not|or|either|neither|unknown|unlikely|than|twice|half|between|wrong|except|never|cannot|maybe)\b|n't\b"
)
_ANSWER_IS = re.compile(r"(?i)\banswer\b[*_]{0,3}(?:\s{1,3}is\b)?\s{0,3}[:=]?[*_]{0,3}")
_BOLD = re.compile(r"\*\*([^*]{1,200})\*\*")
_MATH = re.compile(r"\$+([^$]{1,1000})\$+|\\\(([^$]{1,1000}?)\\\)|\\\[([^$]{1,1000}?)\\\]")
_MOST_LINES = 200  # at the end of a response
_LONGEST_LINE = 2_000  # characters of a line that may state an answer


def extract_answer(text: str) -> str | None:
    """The answer of a response, or `None` if it states none; never just the last number of the text.

    The answer is the content of the last `\\boxed{…}` or `\\fbox{…}`, else the line after the last `####`, else the
    content of the last `<answer>` tags, else the text after "answer is" or "answer:" in the last line that has it, else
    bold text at the end of the last line.

    Boxes side by side ("\\boxed{5}, \\boxed{7}", or with "and", "or" between them) are one answer with commas, so that
    a list of guesses is not reduced to the last of them. Text in `<think>` does not count; if the thinking does not
    end, there is no answer. A box that does not end does not count either.
    """
    after = after_thinking(text)
    if after is None:
        return None
    boxes = list(_BOX.finditer(after))
    if boxes:
        return _boxed(after, boxes)
    if "####" in after:
        return _first_line(after.rpartition("####")[2])
    tagged = answer_tag(after)
    if tagged is not None:
        return _stated(tagged) or _without_dollars(tagged) or None
    return _stated(after)


def after_thinking(text: str) -> str | None:
    """The text after `</think>`, all of a text without `<think>`, or `None` if the thinking was cut off."""
    ends = [found.end() for found in _THOUGHT.finditer(text)]
    after = text[ends[-1] :] if ends else text
    return None if _THINKING.search(after) else after


def answer_tag(text: str) -> str | None:
    """The content of the last `<answer>…</answer>`, or `None` if none is complete."""
    before, _, rest = text.rpartition("</answer>")
    start = before.rfind("<answer>")
    return before[start + len("<answer>") :].strip() if start >= 0 and "<answer>" not in rest else None


def read_gold(gold: object) -> str:
    """The bare answer of a gold: its boxed content, or the text after `####`, else all of it."""
    text = str(gold).strip()
    boxes = list(_BOX.finditer(text))
    found = _boxed(text, boxes) if boxes else _first_line(text.rpartition("####")[2]) if "####" in text else text
    return _without_dollars(found or text)


def _boxed(text: str, boxes: list[re.Match[str]]) -> str | None:
    parts: list[str] = []
    for box, follows in zip(reversed(boxes[-_MOST_PARTS:]), [None, *reversed(boxes)], strict=False):
        begin = box.end()
        end = _closing(text, begin)
        if end is None and not parts:  # cut off, or far too long
            return None
        if end is None or (parts and not _beside(text, end, follows.start())):
            break
        parts.insert(0, _without_dollars(text[begin : end - (text[begin - 1] == "{")]))
    if not parts[-1]:
        return None
    return ",".join(dict.fromkeys(parts))  # the same box twice is one answer


def _beside(text: str, end: int, start: int) -> bool:
    return start - end <= _WIDEST_GAP and _BESIDE.fullmatch(text, end, start) is not None


def _closing(text: str, begin: int) -> int | None:
    """The end of the box that begins at `begin`, with its brace; without a brace the box is one token."""
    if text[begin - 1] != "{":
        if text[begin].isdigit() and text[begin - 1] in "dx":  # in \boxed42 TeX boxes only the 4, but 42 is meant
            return re.compile(r"[\d.]+").match(text, begin).end()
        token = _TOKEN.match(text, begin)
        return token.end() if token else None
    depth, i, last = 1, begin, min(len(text), begin + LONGEST_ANSWER + 2)
    while i < last:
        if text[i] == "\\":  # \{ and \} do not group
            i += 1
        elif text[i] in "{}":
            depth += 1 if text[i] == "{" else -1
            if depth == 0:
                return i + 1
        i += 1
    return None


def _stated(text: str) -> str | None:
    """The text after "answer is" or "answer:" in a line, else bold text at the end."""
    lines = [line.strip() for line in text.splitlines() if line.strip()][-_MOST_LINES:]
    ends = [line[-_LONGEST_LINE:] for line in lines]
    for i in range(len(lines) - 1, -1, -1):
        stated = list(_ANSWER_IS.finditer(ends[i]))
        if not stated:
            continue
        rest = ends[i][stated[-1].end() :].strip(" *_")
        if not rest and i + 1 < len(lines):  # "**Final answer**", and the answer below
            return _bare(lines[i + 1][:_LONGEST_LINE])
        if stated[-1].group().rstrip(" *_").endswith(("is", ":", "=")):  # not "the answer to this can be found"
            return _bare(rest)
    bold = list(_BOLD.finditer(ends[-1])) if lines else []
    if not bold or ends[-1][bold[-1].end() :].strip(" .") or _DOUBT.search(lines[-1]):
        return None
    return _bare(bold[-1].group(1))


def _bare(line: str) -> str | None:
    """The formula of a statement, if it has exactly one, else the statement up to its full stop."""
    if _DOUBT.search(line):
        return None
    formulas = [next(filter(None, found.groups())) for found in _MATH.finditer(line)]
    if len(formulas) == 1:
        return formulas[0].strip() or None
    line = re.split(r"\.(?:\s|$)", line.strip(" *_"), maxsplit=1)[0].strip(" *_")
    return _without_dollars(line) or None


def _first_line(text: str) -> str | None:
    lines = [line for line in text.strip().splitlines()[:_MOST_LINES] if line.strip()]
    if not lines:
        return None
    if len(lines) > 1 and re.fullmatch(r"(?i)\W*(?:final )?answer\W*", lines[0]):  # a heading
        lines = lines[1:]
    return _without_dollars(re.sub(r"(?i)^\W*(?:final )?answer(?: is|:| =)", "", lines[0])) or None


def _without_dollars(text: str) -> str:
    text = text.strip()
    text = text[:-1].rstrip() if text.startswith("$") and text.endswith("$.") else text
    for left, right in (("**", "**"), ("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        inner = text[len(left) : -len(right)]
        if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right) and left not in inner:
            return inner.strip()
    return text
