"""One spelling for what LaTeX and Unicode can write in several ways."""

import re
import unicodedata
from collections.abc import Callable

from .units import with_unit


_COMMANDS = "×times ·cdot ⋅cdot πpi ∞infty ≤leq ≥geq ≠neq ±pm ∪cup ∩cap ∈in ≈approx ≡equiv"  # a sign and its command
_SIGNS = {"÷": "/", "−": "-", "–": "-", "°": "^\\circ ", "′": "'", "∅": "\\emptyset ", "µ": "\\mu ", "√": "\\sqrt "}
_SIGNS |= {sign: f"^{{{c}}}" for sign, c in zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True)}
_SIGNS |= {sign: f"_{{{c}}}" for sign, c in zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True)}
_SIGNS |= {sign: f"\\mathbb{{{c}}}" for sign, c in zip("ℝℤℕℚℂ", "RZNQC", strict=True)}
_SIGNS |= dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", "")
_SYMBOLS = str.maketrans(_SIGNS | {word[0]: f"\\{word[1:]} " for word in _COMMANDS.split()})
_SAME = {"\\$": "", "\\varnothing": "\\emptyset", "\\{\\}": "\\emptyset", "&=": "=", "{:}": ":"}
_SAME |= {"{bmatrix}": "{pmatrix}", "{Bmatrix}": "{pmatrix}", "^{\\prime}": "'", "^\\prime": "'"}
_SAME |= {"\\lbrace": "\\{", "\\rbrace": "\\}", "\\langle": "(", "\\rangle": ")"}
_SAME_PATTERN = re.compile("|".join(map(re.escape, _SAME)))
_GROUP = r"\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*+\})*+\})*+)\}"  # with braces in it
_AXIS = r"(\{\s*)?\\?([ijk])(?:math)?(?![A-Za-z])(?(1)\s*\})"  # a unit vector
_TAIL = r"(?:\.\.\.|\\[lc]?dots(?![A-Za-z])|\\dots[bc])"
_ZEROS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_BASES = dict(zip("two three four five six seven eight nine ten eleven twelve".split(), range(2, 13), strict=True))
_BASES |= {"sixteen": 16}
_BASED = re.compile(
    r"(-?) ?\(?([0-9A-Za-z]{1,300}(?:\.[0-9A-Za-z]{1,300})?)\)? ?"
    r"(?:_ ?\{? ?\(? ?(?:base )?|[ (]*(?:in )?base[ -])(\w+) ?\)? ?\}?"
)
_PREFIXES = {"x": 16, "o": 8, "b": 2}  # of programming languages
_NOTHING = re.compile(
    r"(?i)(?:[a-z ]{1,30} (?:is|are|exists?|has) )?no (?:(?:real|integer|valid|possible|positive|rational) ){0,2}"
    r"(?:solution|root|value|number|integer)s?(?: .{1,10})?|no such [a-z](?: exists?)?|none|(?:the )?empty(?: ?set)?|"
    r"\\\{ ?\\\}|[a-z] ?\\in ?\\emptyset"
)
_SPACES = re.compile(r"(?:(?<!\\)\\[ ,;:!]|~|\\q?quad(?![A-Za-z])|\s)+")
_FONT = re.compile(r"\\(text|mbox|mathrm|mathbf|textbf|textit|textrm|operatorname|rm)\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_UNIT_FONTS = ("text", "mbox", "mathrm", "textrm", "rm")
_FILLERS = re.compile(r"(?i)^(?:\\text\{)?(?:only|exactly|just)\}? (?=\S)|,? (?:\\text\{)?only\}?$")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-zµΩ]+")
_THOUSANDS = re.compile(r"(?<![\d,.])([1-9]\d{0,2}(?:,\d{3})+)(?![\d,])")
_COMMA = re.compile(r",")
_MOST_PARTS = 50  # of a list whose parts may have units


def _period(match: re.Match[str]) -> str:
    """A decimal with a period as a fraction of nines."""
    whole, start, period = match.groups()
    nines = int("9" * len(period) + "0" * len(start))
    return f"\\frac{{{int(whole + start + period) - int((whole + start) or '0')}}}{{{nines}}}"


Rewrites = tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]


def compiled(*rewrites: tuple[str, str | Callable[[re.Match[str]], str]]) -> Rewrites:
    """Patterns, in which a dot matches all characters, and what replaces them."""
    return tuple((re.compile(pattern, re.DOTALL), replacement) for pattern, replacement in rewrites)


_BEFORE_UNITS = compiled(
    (r"(?<=\^\{[\d+-])\}\^\{|(?<=_\{\d)\}_\{", ""),  # ⁻¹
    (r"(\d+)\u2044(\d+)", r"\\frac{\1}{\2}"),
    (r"\\\\ ?\[ ?-?[\d.]+ ?(?:pt|mm|cm|em|ex|in) ?\]", r"\\\\ "),  # a row with space after it
    (rf"\\(?:textcolor|color|colorbox|bbox)\s*(?:\{{[^{{}}]*\}}|\[[^\[\]]*\])\s*{_GROUP}", r" \1 "),
    (rf"\\(?:underline|boldsymbol|pmb|bm|emph|boxed|fbox|(?:math|text)(?:it|sf|tt))\s*{_GROUP}", r" \1 "),
    (r"\\(?:color\s*\{[^{}]*\}|(?:bf|it|rm|sf|tt)(?:series|shape|family)?(?![A-Za-z]))\s*", " "),
    (r"\\(?:[Ll]arge|LARGE|[Hh]uge|small|tiny|[a-z]+(?:size|style)|left|right|[bB]igg?[lr]?)(?![A-Za-z])", " "),
    (r"^\s*\{([^{}]*,[^{}]*)\}\s*$", r"\\{\1\\}"),  # {1, 2}
    (r"\s*\n\s*(?=\(\d\))", ", "),  # numbered lines
    (rf"(?<![\d.])(\d{{0,20}})\.(\d{{0,12}}?)(\d{{1,12}}?)\3{{1,20}}{_TAIL}", _period),  # 0.333...
    (r"(?<=\d)(?:\{,\}|,\\!|\\,|\\!|\\ )\s*(?=\d{3}(?!\d))", ""),  # thousands
    (rf"\\(?:math(?:bf|rm)|bm)\s*{_AXIS}", r" \2 "),
    (rf"\\(?:hat|vec|widehat)\s*{_AXIS}", r" \2 "),
    (r"\\(?:math|text)(?:bf|rm|it) (?=[A-Za-z\d](?![A-Za-z]))", " "),  # \mathrm e
    (r"\.\.\.+|…|\\[cl]?dots(?![A-Za-z])|\\dots[bc]", r"\\ldots "),
    (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
    (r"\\frac ?(\d|\\[A-Za-z]+) ?(\d)", r"\\frac{\1}{\2}"),  # \frac12, \frac\pi 2
    (r"\\frac ?(\d) ?(?=\{)", r"\\frac{\1}"),
    (r"(\\frac\{[^{}]*\})(\d)", r"\1{\2}"),
    (r"\\sqrt ?(\d|\\pi(?![A-Za-z])|(?<= )[A-Za-z](?![A-Za-z]))", r"\\sqrt{\1}"),
)
_AFTER_UNITS = compiled(
    # a unit in Chinese; not ten thousand, half and the like
    (r"(?<=[\d}])\s?(?!.*[万亿千百十半兆零一二两三四五六七八九分之])[\u4e00-\u9fff]{1,4}[ 。]*$", ""),
    (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
    (r"^[ =]*\\(?:approx|simeq)(?![A-Za-z])", ""),
    (r"(?<!\\)\\$", ""),  # of "\ "
    (r"(?<!\d)(?<!\d )([1-9]\d{0,2})((?: \d{3})+)(?![\d ]*[\d/])", lambda match: match.group().replace(" ", "")),
    (r"(\d{0,20})\.(\d{0,20})\\overline\s*\{?\s*(\d{1,20})\s*\}?", _period),
    (
        rf"(?<![\w.])(\d{{1,20}}(?:\.\d{{1,20}})?)[ -]?({'|'.join(_ZEROS)})(?![A-Za-z])",  # 2 million
        lambda match: f"{match[1]}\\times 10^{{{_ZEROS[match[2]]}}}",
    ),
    (r"^([A-Za-z])(\([^()\[\]]*,[^()\[\]]*\]|\[[^()\[\]]*,[^()\[\]]*\))$", r"\1\\in \2"),  # t(0,4] for t∈(0,4]
    (r"\\gt(?![A-Za-z])", ">"),
    (r"\\lt(?![A-Za-z])", "<"),
    (r"^<([^<>=]+,[^<>=]+)>$", r"(\1)"),
    (r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi "),
    (r"(?<=[A-Za-z]\([a-z]\)) ?\\equiv(?![A-Za-z])", "="),
    (r"(?<=\d)\.(?![\d.\\])", ""),  # 1./3
    (r"\b(?:np|math|numpy)\.(?=[a-z])", r"\\"),
    (r"_\{\s*\\?(\w+)\s*\}", lambda match: f"_{match[1]}" if len(match[1]) == 1 else f"_{{{match[1]}}}"),
    (r"(?<![\d./^_}])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d/])", r"\1\\frac{\2}{\3}"),  # 1 1/2
    (r"(?<![\w.\\])(-?(?:\d+(?:\.\d*)?|\.\d+))[eE]([+-]?\d+)(?!\w)", r"\1\\times 10^{\2}"),
)


def normal(text: str) -> str:
    """A bare answer in normal form; spaces are single, and there are none at its ends."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", re.sub(r"(?<=\d)(?=[¼-¾⅐-⅞])", " ", text).translate(_SYMBOLS))
    text = rewritten(text, _BEFORE_UNITS)
    text = _SPACES.sub(" ", _FONT.sub(_unwrapped, text)).strip().rstrip(" .,;")
    text = _with_units(_FILLERS.sub("", text))
    text = _SAME_PATTERN.sub(lambda match: _SAME[match.group()], text)
    text = rewritten(_SPACES.sub(" ", text).strip(" =").rstrip(" .,;"), _AFTER_UNITS)
    text = without_brackets(text.strip(" =").rstrip(" .,;"))
    text = _with_base(text) if re.search("_|base|^-?0[xXbo]", text) else text
    return "\\emptyset" if _NOTHING.fullmatch(text) else text


def rewritten(text: str, rewrites: Rewrites) -> str:
    """The text after all rewrites, one after the other."""
    for pattern, replacement in rewrites:
        text = pattern.sub(replacement, text)
    return text


def _unwrapped(match: re.Match[str]) -> str:
    """The content of a font command; in those that units are written in, each word gets a `\\text` of its own."""
    text = _WORD.sub(r"\\text{\g<0>}", match[2]) if match[1] in _UNIT_FONTS else match[2]
    return f" {text} "


def _with_units(text: str) -> str:
    parts = split_outside(_COMMA, text) if "," in text else [text]
    text = ",".join(map(with_unit, parts)) if len(parts) <= _MOST_PARTS else text
    return re.sub(r"\\text\{([A-Za-zµΩ]+)\}", r"\1", text)


def _with_base(text: str) -> str:
    """101 base two, (101)_{2}, 101_{two} and 0b101 as 101_2."""
    text = re.sub(r"^(-?)0([xXob])([0-9A-Fa-f]{1,300})$", lambda m: f"{m[1]}{m[3]}_{_PREFIXES[m[2].lower()]}", text)
    match = _BASED.fullmatch(text)
    base = str(_BASES.get(match[3], match[3])) if match else ""
    if not re.fullmatch(r"\d{1,2}", base):
        return text
    return f"{match[1]}{match[2]}_{base if len(base) == 1 else f'{{{base}}}'}"


def squeezed(text: str) -> str:
    """The text without spaces, except those between digits."""
    return re.sub(r"(?<!\d) | (?!\d)", "", re.sub(r"\\([lgn]e)(?![A-Za-z])", r"\\\1q", text))


def joined(text: str) -> str:
    """The text without thousands commas. The other commas are separators; math-verify needs a space after them."""
    if not (text.startswith(("(", "[", "\\{")) or re.search(r"\\in(?![a-z])", text)):  # (1,200) is a pair
        text = _THOUSANDS.sub(lambda match: match.group().replace(",", ""), text)
    return re.sub(r",(?=\S)", ", ", text)


def without_brackets(text: str) -> str:
    """The text without parentheses around it, unless they are part of its meaning: a pair, an interval, a choice."""
    for _ in range(100):  # brackets
        inner = text[1:-1].strip()
        if not (text.startswith("(") and text.endswith(")") and len(inner) > 1 and _balanced(inner)):
            break
        text = inner
    return text


def split_outside(separator: re.Pattern[str], text: str) -> list[str]:
    """The parts between separators that are not in brackets."""
    parts, depth, last = [], 0, 0
    for match in re.finditer(rf"(?P<bracket>\\\\[{{}}]|[()\[\]{{}}])|{separator.pattern}", text):
        if match["bracket"]:
            depth += 1 if match["bracket"][-1] in "([{" else -1
        elif depth == 0:
            parts.append(text[last : match.start()])
            last = match.end()
    return [*parts, text[last:]]


def _balanced(text: str) -> bool:
    depth = 0
    for c in text:
        depth += (c in "([") - (c in ")]")
        if depth < 0 or (depth == 0 and c == ","):
            return False
    return depth == 0
