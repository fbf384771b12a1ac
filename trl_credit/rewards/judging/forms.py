"""Undoes the decoration of an answer: removes colours, sizes and labels, and converts numbers in words."""

import re


# a command whose braces hold the shown text, and one that changes all text after it
_STYLE = re.compile(
    r"\\(?:(?:textcolor|color|colorbox|bbox)\s*(?:\{[^{}]*\}|\[[^\[\]]*\])|underline|boldsymbol|pmb|bm|mathit|mathsf|"
    r"mathtt|textsf|texttt|emph|boxed|fbox)\s*(?=\{)"
)
_SWITCH = re.compile(
    r"\\(?:color\s*\{[^{}]*\}|(?:bf|it|rm|sf|tt)(?:series|shape|family)?(?![A-Za-z])|"
    r"(?:[Ll]arge|LARGE|[Hh]uge|small|tiny|normalsize|footnotesize|scriptsize|textstyle|scriptstyle)(?![A-Za-z]))\s*"
)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_DOTS = re.compile(r"(?<![\d.])(\d{0,20})\.(\d{0,12}?)(\d{1,12}?)\3{1,20}(?:\.\.\.|\\[lc]?dots(?![A-Za-z])|\\dots[bc])")
_OVERLINE = re.compile(r"(\d{0,20})\.(\d{0,20})\\overline\s*\{?\s*(\d{1,20})\s*\}?")
_ZEROS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_MANY = re.compile(rf"(?<![\w.])(\d{{1,20}}(?:\.\d{{1,20}})?)[ -]?({'|'.join(_ZEROS)})(?![A-Za-z])")
_BASES = dict(zip("two three four five six seven eight nine ten eleven twelve".split(), range(2, 13), strict=True))
_BASES |= {"sixteen": 16}
_BASE = rf"(?P<base{{0}}>\d{{{{1,2}}}}|{'|'.join(_BASES)})"
_BASED = re.compile(
    r"(?P<sign>-?) ?\(?(?P<digits>[0-9A-Za-z]{1,300}(?:\.[0-9A-Za-z]{1,300})?)\)? ?"
    rf"(?:_ ?\{{? ?\(? ?(?:base )?{_BASE.format(1)} ?\)? ?\}}?|[ (]*(?:in )?base[ -]{_BASE.format(2)}\)?)"
)
_PREFIXES = {"x": 16, "o": 8, "b": 2}  # of programming languages
_PREFIXED = re.compile(r"(-?)0([xXob])([0-9A-Fa-f]{1,300})$")
BASED = re.compile(r"(-?[0-9A-Za-z]+(?:\.[0-9A-Za-z]+)?)_\{?(\d{1,2})\}?")  # in normal form
_NOUN = r"(?:(?:real|integer|valid|possible|positive|rational|such) ){0,2}(?:solution|root|value|number|integer)s?"
_NOTHING = re.compile(
    rf"(?i)(?:there (?:is|are|exists?) |(?:the |this )?(?:equation|system|inequality) has |it has )?no {_NOUN}"
    r"(?: (?:exists?|of [a-z]|for [a-z]|[a-z]))?|no such [a-z](?: exists?)?|none|(?:the )?empty(?: ?set)?|\\\{ ?\\\}|"
    r"[a-z] ?\\in ?\\emptyset"
)
_CHAIN = re.compile(r" ?(>|\\geq?(?![A-Za-z])|\\gt(?![A-Za-z])) ?")
DOUBT = re.compile(
    r"(?i)\b(?:not|nor?|or|either|neither|unless|wrong|in?correct|false|than|least|most|twice|half|double|between|except|"
    r"about|times|minus|plus|negative|opposite|square|sum)\b"
)
_WORDS = r"(?:[A-Za-z]{2,20}[ -]){0,6}[A-Za-z]{2,20}"
_SAYS = re.compile(rf"(?P<label>{_WORDS}) ?(?:=|:|\bis:?) ?(?P<value>[^ ].*)", re.DOTALL)
_ANSWER = re.compile(
    r"(?i)(?:the |my )?(?:final |correct )?(?:answer|option|choice|letter)(?: is)?:? (?P<value>\(?[A-Za-z]\)?\.?)"
)
_NAME = r"(?:[A-Za-z]|\\[A-Za-z]+)(?:_\w|_\{[^{}]*\})?"
_POINTS = r"(?:[A-Z](?:_\d|')?){1,4}"
_LABEL = re.compile(
    # f(2), P(A \cap B); not x(x + 1)
    rf"(?:[fghFGHPEQVRSTpq]|\\phi|\\sigma|\\varphi|\\tau)(?:_\w|_\{{[^{{}}]*\}}|\^\{{?-1\}}?)?'{{0,3}} ?\([^()=]*\)|"
    # y(t), x_1(t), and the mean of E
    rf"[uvwxyzXYZ](?:_\w)?'{{0,3}} ?\([tnxs]\)|\( ?{_NAME} ?\)|"
    # \sin\theta, \cos \angle A, \sin^2 x, \tan(\alpha + \beta)
    rf"\\(?:sin|cos|tan|cot|sec|csc)(?:\^\{{?\d\}}?)? ?(?:{_NAME}|\\angle ?{_POINTS}|\([^()=]*\)|\{{[^{{}}=]*\}})|"
    # \angle ABC, m\angle ABC, |AB|, \overline{AB}, [ABC], area of a triangle
    rf"m? ?\\angle ?{_POINTS}|\\(?:overline|overrightarrow|vec|widehat|bar|hat)\{{ ?\\?\w+ ?\}}|"
    rf"(?:\||\\lvert ?|\[)(?:{_POINTS}|\\triangle ?{_POINTS})(?:\||\\rvert ?|\])|(?:\\triangle|\\square) ?{_POINTS}|"
    rf"\({_NAME}(?:, ?{_NAME}){{1,5}}\)|{_NAME}"
)
_POINT = re.compile(r"(?:(?:[Tt]he )?[Pp]oint )?(?:[A-Z]'? ?)?(?=\([^()]*,)")
_SO = re.compile(r"(?:\\(?:therefore|implies|Rightarrow|approx)(?![A-Za-z]) ?|: ?)+")
_APPROXIMATELY = re.compile(r"\s*\\(?:approx|simeq|thickapprox)(?![A-Za-z])\s*|\s*≈\s*")


def undressed(text: str) -> str:
    """The text without colours, sizes, fonts and underlines."""
    if "\\" not in text:
        return text
    styles = [*_STYLE.finditer(text), *_SWITCH.finditer(text)]
    if not styles and not text.startswith("{"):
        return text
    ends, opened = {}, []
    for brace in _BRACE.finditer(text):
        if brace.group() == "{":
            opened.append(brace.start())
        elif brace.group() == "}" and opened:
            ends[opened.pop()] = brace.start()
    gone: list[tuple[int, int]] = []
    for style in styles:
        gone.append(style.span())
        begin = style.end() if text[style.end() : style.end() + 1] == "{" else style.start() - 1
        if begin >= 0 and text[begin] == "{" and begin in ends:  # {\bf 42}
            gone += [(begin, begin + 1), (ends[begin], ends[begin] + 1)]
    parts, last = [], 0
    for begin, end in sorted(set(gone)):
        parts += [text[last:begin], " "] if begin >= last else []
        last = max(last, end)
    return "".join([*parts, text[last:]]).strip()


def without_dots(text: str) -> str:
    """0.333... as 3/9."""
    return _DOTS.sub(_fraction, text) if "." in text else text


def without_overlines(text: str) -> str:
    """0.\\overline{3} as 3/9."""
    return _OVERLINE.sub(_fraction, text)


def without_words(text: str) -> str:
    """2 million as 2 × 10⁶."""
    return _MANY.sub(lambda found: f"{found[1]}\\times 10^{{{_ZEROS[found[2]]}}}", text)


def without_base_words(text: str) -> str:
    """101 base two, (101)_{2}, 101_{two} and 0b101 as 101_2."""
    text = _PREFIXED.sub(lambda found: f"{found[1]}{found[3]}_{_PREFIXES[found[2].lower()]}", text)
    found = _BASED.fullmatch(text)
    if not found:
        return text
    base = found["base1"] or found["base2"]
    base = str(_BASES.get(base, base))
    return f"{found['sign']}{found['digits']}_{base if len(base) == 1 else f'{{{base}}}'}"


def without_solutions(text: str) -> str:
    """ "no real solutions", "none" and the like as the empty set."""
    return "\\emptyset" if _NOTHING.fullmatch(text) else text


def upwards(text: str) -> str:
    """3 > x > 1 as 1 < x < 3."""
    parts = _CHAIN.split(text)
    if len(parts) != 5 or "<" in text or "\\l" in text or "," in text:
        return text
    signs = ["<" if sign in (">", "\\gt") else "\\leq" for sign in parts[1::2]]
    return f"{parts[4]}{signs[1]} {parts[2]}{signs[0]} {parts[0]}"


def without_label(text: str) -> str:
    """The value alone if a label stands before it: f(2) = 42, Total cost = 42, Option B, Answer: 42."""
    if found := _SO.match(text):
        text = text[found.end() :]
    if text.endswith(")") and (found := _POINT.match(text)):  # P(3,4)
        return text[found.end() :]
    if found := _ANSWER.fullmatch(text):
        return found["value"]
    found = _SAYS.fullmatch(text)
    if found and not DOUBT.search(found["label"]) and not re.search(r"[=<>]|\\approx|\\[lg]eq?", found["value"]):
        return found["value"].strip()
    if "=" in text or "\\approx" in text:
        sides = re.split(r" ?:?= ?", _APPROXIMATELY.sub("=", text))
        if len(sides) == 2 and sides[1] and is_label(sides[0]):
            return sides[1]
    return text


def split_outside(separator: re.Pattern[str], text: str) -> list[str]:
    """The parts between separators that are not in brackets."""
    parts, depth, last = [], 0, 0
    for found in re.finditer(rf"(?P<bracket>\\\\[{{}}]|[()\[\]{{}}])|{separator.pattern}", text):
        if found["bracket"]:
            depth += 1 if found["bracket"][-1] in "([{" else -1
        elif depth == 0:
            parts.append(text[last : found.start()])
            last = found.end()
    return [*parts, text[last:]]


def is_label(text: str) -> bool:
    """Whether a text names a quantity: x, f(2), |AB|, the angle ABC, the sine of an angle."""
    return _LABEL.fullmatch(text) is not None


def _fraction(found: re.Match[str]) -> str:
    whole, start, period = found.groups()
    nines = int("9" * len(period) + "0" * len(start))
    return f"\\frac{{{int(whole + start + period) - int((whole + start) or '0')}}}{{{nines}}}"
