"""Which part of a response is its answer. Linear in any text."""

import re


LONGEST_ANSWER = 20_000  # characters
_MOST_PARTS = 20  # boxes of one answer
_BOX = re.compile(r"\\(?:boxed|fbox)(?:\s{0,3}\{|\s{1,3}(?=[\w\\-])|(?=\d))")
_TOKEN = re.compile(r"(?<=[dx])[\d.]+|-?[\w.]+|\\[A-Za-z]+(?:\{[^{}]*\}){0,2}")  # of a box without braces: \boxed42
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # \{ and \} do not group
# text between boxes that are one answer; possessive, since many spaces take exponential time otherwise
_BESIDE = re.compile(
    r"(?i)(?:\([a-z]\):?|\b\d[.)](?=\s)|[\s$,;.|&/*()\[\]\\_-]|\b[a-z]\s?="
    r"|\b(?:and|or|maybe|perhaps|possibly|alternatively|also|either|both|q?quad|lor|vee|part(?=\s?\()|option \d)\b:?"
    r"|text\{ ?(?:and|or) ?\})*+"
)
_WIDEST_GAP = 60  # characters between such boxes
# a number after these words is not the answer
_DOUBT = re.compile(
    r"(?i)\b(?:not|or|either|neither|unknown|unlikely|than|twice|half|between|wrong|except|never|cannot|maybe)\b|n't\b"
)
_REASON = re.compile(r"(?i),? (?:since|because|as)\b|, (?:which|so|not|rather than|instead of)\b")
_FULL_STOP = re.compile(r"\.(?:\s|$)")
_FENCE = re.compile(r"(?m)^ {0,3}```[A-Za-z]{0,20} {0,3}$")
# not "the answer to this can be found"; the answer may stand below
_ANSWER_IS = re.compile(r"(?i)\banswer\b[*_]{0,3}(?:\s{1,3}is\b|\s{0,3}[:=]|[*_ ]{0,3}\n)[\s:=*_]*+")
_HEADING = re.compile(r"(?i)\A\W*(?:final )?answer(?: is|:| =|\W*\n)")
_BOLD = re.compile(r"\*\*([^*]{1,200})\*\*[ .]*\Z")
_MATH = re.compile(r"(?:\$+|\\[(\[])([^$]{1,1000}?)(?:\$+|\\[)\]])")
_WRAPPED = re.compile(r"(?s)(\*\*|`|\$\$?|\\\(|\\\[)(.+?)(?:\1|\\[)\]])\.?")
_LONGEST_LINE = 2_000  # characters of a line that may state an answer


def extract_answer(text: str) -> str | None:
    """The answer of a response, or `None` if it states none; never just the last number of the text.

    The answer is the content of the last `\\boxed{…}` or `\\fbox{…}`, else the line after the last `####`, else the
    content of the last `<answer>` tags, else the text after the last "answer is" or "answer:", else bold text at the
    end of the last line.

    Boxes side by side ("\\boxed{5}, \\boxed{7}", or with "and", "or" between them) are one answer with commas, so that
    a list of guesses is not reduced to the last of them. Text in `<think>` does not count; if the thinking does not
    end, there is no answer. A box that does not end does not count either.
    """
    after = after_thinking(text)
    return None if after is None else _answer(_FENCE.sub("", after))


def read_gold(gold: object) -> str:
    """The bare answer of a gold: what it states as a response does, else all of it."""
    text = str(gold).strip()
    return _unwrapped(_answer(text) or text)


def after_thinking(text: str) -> str | None:
    """The text after `</think>`, all of a text without `<think>`, or `None` if the thinking was cut off."""
    after = re.split("(?i)</think(?:ing)?>", text)[-1]
    return None if re.search("(?i)<think(?:ing)?>", after) else after


def answer_tag(text: str) -> str | None:
    """The content of the last `<answer>…</answer>`, or `None` if none is complete."""
    before, _, rest = text.rpartition("</answer>")
    _, tag, content = before.rpartition("<answer>")
    return content.strip() if tag and "<answer>" not in rest else None


def _answer(text: str) -> str | None:
    if boxes := list(_BOX.finditer(text)):
        return _boxed(text, boxes)
    if "####" in text:
        lines = _HEADING.sub("", text.rpartition("####")[2].strip())
        return _unwrapped(lines.strip().partition("\n")[0]) or None
    tagged = answer_tag(text)
    return _stated(text) if tagged is None else _stated(tagged) or _unwrapped(tagged) or None


def _boxed(text: str, boxes: list[re.Match[str]]) -> str | None:
    """The content of the last box and of those beside it."""
    parts: list[str] = []
    start = 0  # of the box after
    for box in reversed(boxes[-_MOST_PARTS:]):
        begin, end = box.end(), _closing(text, box)
        is_apart = parts and not (start - end <= _WIDEST_GAP and _BESIDE.fullmatch(text, end, start))
        if end == 0 or is_apart:  # cut off, far too long, or of something else
            break
        parts.insert(0, _unwrapped(text[begin : end - (box[0][-1] == "{")]))
        start = box.start()
    return ",".join(dict.fromkeys(parts)) if parts and parts[-1] else None  # the same box twice is one answer


def _closing(text: str, box: re.Match[str]) -> int:
    """The end of a box, with its brace, or 0; without a brace the box is one token."""
    if box[0][-1] != "{":
        token = _TOKEN.match(text, box.end())
        return token.end() if token else 0
    depth = 1
    for brace in _BRACE.finditer(text, box.end(), box.end() + LONGEST_ANSWER + 2):
        depth += (brace[0] == "{") - (brace[0] == "}")
        if depth == 0:
            return brace.end()
    return 0


def _stated(text: str) -> str | None:
    """The text after the last "answer is" or "answer:", else bold text at the end: a formula, if it has exactly one,
    else all up to its reason or full stop."""
    statements = _ANSWER_IS.split(text)[1:]
    line = statements[-1].partition("\n")[0] if statements else text.rstrip().rpartition("\n")[2]
    line, bold = _REASON.split(line[:_LONGEST_LINE], maxsplit=1)[0], _BOLD.search(line)
    if _DOUBT.search(line) or not (statements or bold):
        return None
    line = _FULL_STOP.split(line if statements else bold[1], maxsplit=1)[0]
    formulas = _MATH.findall(line)
    return _unwrapped(formulas[0] if len(formulas) == 1 else line.strip(" *_")) or None


def _unwrapped(text: str) -> str:
    """A text without dollars, brackets, backticks or asterisks around all of it."""
    text = text.strip()
    wrapped = _WRAPPED.fullmatch(text)
    return wrapped[2].strip() if wrapped and wrapped[1] not in wrapped[2] else text
