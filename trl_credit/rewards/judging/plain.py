"""One normal form for what LaTeX and Unicode can write in several ways."""

import re
import unicodedata

from .forms import (
    split_outside,
    undressed,
    without_base_words,
    without_dots,
    without_overlines,
    without_solutions,
    without_words,
)
from .units import with_unit


_COMMANDS = "×times ·cdot ⋅cdot πpi ∞infty ≤leq ≥geq ≠neq ±pm ∪cup ∩cap ∈in"  # a sign and its command
_SIGNS = {"÷": "/", "−": "-", "–": "-", "°": "^\\circ ", "′": "'", "∅": "\\emptyset "}
SYMBOLS = str.maketrans(_SIGNS | {word[0]: f"\\{word[1:]} " for word in _COMMANDS.split()})
SAME = {"\\$": "", "\\varnothing": "\\emptyset", "\\{\\}": "\\emptyset", "&=": "=", "{:}": ":"}
SAME |= {"{bmatrix}": "{pmatrix}", "{Bmatrix}": "{pmatrix}", "^{\\prime}": "'", "^\\prime": "'"}
SAME |= {"\\lbrace": "\\{", "\\rbrace": "\\}", "\\langle": "(", "\\rangle": ")"}
_SAME = re.compile("|".join(map(re.escape, SAME)))
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|\{([^{}]*)\}|([\d.]+|[A-Za-z]))")
_LATEX_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,\\!|\\,|\\!|\\ )\s*(?=\d{3}(?!\d))")
_SPACED_THOUSANDS = re.compile(r"(?<!\d)(?<!\d )([1-9]\d{0,2})((?: \d{3})+)(?![\d ]*[\d/])")
_SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle)(?![A-Za-z])")
_FRACTIONS = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_COMMAND_OVER = re.compile(r"\\frac\s*(\\[A-Za-z]+)\s*(\d)")  # \frac\pi 2
_PHANTOM = re.compile(r"\\phantom\s*(?:\{[^{}]*\}|.)")
_ROW_SPACE = re.compile(r"(\\\\)\s*\[-?[\d.]+ ?(?:pt|em|ex|mm|cm)\]")  # \\[4pt]
_HALF_BRACED = re.compile(r"(\\frac\{[^{}]*\})(\d)")
_WRAPPER = re.compile(r"\\(text|mbox|mathrm|mathbf|textbf|textit|textrm|operatorname|rm)\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_UNIT_WRAPPERS = ("text", "mbox", "mathrm", "textrm", "rm")
_LETTERS = re.compile(r"(?<![\\A-Za-z])[A-Za-zµΩ]+")
_BARE_FRACTION = re.compile(r"\\frac ?(\d) ?(?:(\d)|(?=\{))")  # \frac12, \frac1{20}
_BARE_ROOT = re.compile(r"\\sqrt ?(\d|\\pi(?![A-Za-z])|(?<= )[A-Za-z](?![A-Za-z]))")
_ROW = re.compile(r"\\\\ ?\[ ?-?[\d.]+ ?(?:pt|mm|cm|em|ex|in) ?\]")  # a row with space after it
_ELEMENTS = re.compile(r"((?:\\?[A-Za-z]+ ?\\in ?)?\\\{)((?:(?!\\[{}]).)*)\\\}", re.DOTALL)
_COMMA = re.compile(r",")
_MOST_PARTS = 50  # of a list whose parts may have units
_PLAIN_ROOT = re.compile(r"\\sqrt\s*\(([^()]*)\)")
_SPACES = re.compile(r"(?:(?<!\\)\\[ ,;:!]|~|\\q?quad(?![A-Za-z])|\s)+")
_INDEX = re.compile(r"_\{\s*\\?(\w+)\s*\}")  # m_{\max }, x_{ max }
_NUMPY = re.compile(r"\b(?:np|math|numpy)\.(a?r?c?(?:sin|cos|tan)|exp|log|sqrt|pi)\b")
_APPROXIMATELY = re.compile(r"^(?:\\(?:approx|simeq)(?![A-Za-z])|≈) ?")
_POINT = re.compile(r"(?<=\d)\.(?![\d.\\])")  # 1./3
_LOST_IN = re.compile(r"^([A-Za-z])(\([^()\[\]]*,[^()\[\]]*\]|\[[^()\[\]]*,[^()\[\]]*\))$")  # t(0,4]
_PI = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])")
_MIXED = re.compile(r"(?<![\d./^_}])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d/])")
_E_NOTATION = re.compile(r"(?<![\w.\\])(-?(?:\d+(?:\.\d*)?|\.\d+))[eE]([+-]?\d+)(?!\w)")
_THOUSANDS = re.compile(r"(?<![\d,.])([1-9]\d{0,2}(?:,\d{3})+)(?![\d,])")
_GEQ = re.compile(r"\\([lgn]e)(?![A-Za-z])")
# a unit in Chinese; not ten thousand, half and the like
_CHINESE_UNIT = re.compile(r"(?<=[\d}])\s?(?!.*[万亿千百十半兆零一二两三四五六七八九分之])[\u4e00-\u9fff]{1,4}$")
_MOST_BRACKETS = 100


def plain(text: str) -> str:
    """A bare answer in normal form; spaces are single, and there are none at its ends."""
    text = text.replace("\0", "\ufffd")  # NUL marks units below
    if not text.isascii():
        text = _ROOT.sub(lambda found: f"\\sqrt{{{next(filter(None, found.groups()), '')}}}", text)
        text = "".join(map(_ascii, text.translate(SYMBOLS)))
    text = _ROW.sub(r"\\\\ ", text) if "pmatrix" in text or "\\\\" in text else text
    text = _LATEX_THOUSANDS.sub("", without_dots(undressed(text)))
    text = _COMMAND_OVER.sub(r"\\frac{\1}{\2}", _PHANTOM.sub("", _ROW_SPACE.sub(r"\1", text)))
    text = _HALF_BRACED.sub(r"\1{\2}", _braced(_FRACTIONS.sub(r"\\frac", _SIZES.sub("", text))))
    text = _with_units(_SPACES.sub(" ", _WRAPPER.sub(_unwrapped, text)).strip().rstrip(" .,;"))
    if not text.isascii():
        text = _CHINESE_UNIT.sub("", text.rstrip(" 。"))
    text = _PLAIN_ROOT.sub(r"\\sqrt{\1}", _SAME.sub(lambda found: SAME[found.group()], text))
    text = _APPROXIMATELY.sub("", _SPACES.sub(" ", text).strip(" =")).rstrip(".,;").rstrip()
    if text.endswith("\\") and not text.endswith("\\\\"):  # of "\ "
        text = text[:-1].rstrip()
    text = _SPACED_THOUSANDS.sub(lambda found: found[1] + found[2].replace(" ", ""), text)
    text = without_words(without_overlines(text))
    text = _LOST_IN.sub(r"\1\\in \2", text)
    text = _PI.sub(r"\\pi ", text)
    text = _POINT.sub("", _NUMPY.sub(r"\\\1", text))
    text = _INDEX.sub(lambda found: f"_{found[1]}" if len(found[1]) == 1 else f"_{{{found[1]}}}", text)
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", text)
    text = without_brackets(_E_NOTATION.sub(r"\1\\times 10^{\2}", text))
    return without_solutions(without_base_words(text) if re.search("_|base|^-?0[xXbo]", text) else text)


def _braced(text: str) -> str:
    text = _BARE_FRACTION.sub(lambda found: f"\\frac{{{found[1]}}}" + (f"{{{found[2]}}}" if found[2] else ""), text)
    return _BARE_ROOT.sub(r"\\sqrt{\1}", text)


def _unwrapped(found: re.Match[str]) -> str:
    """The content of a font command; in those that units are written in, NUL stands before each word."""
    text = _LETTERS.sub("\0\\g<0>", found[2]) if found[1] in _UNIT_WRAPPERS else found[2]
    return f" {text} "


def _with_units(text: str) -> str:
    if found := _ELEMENTS.fullmatch(text):
        return f"{found[1]}{_with_units(found[2])}\\}}"
    parts = split_outside(_COMMA, text) if "," in text else [text]
    text = ",".join(map(with_unit, parts)) if len(parts) <= _MOST_PARTS else text
    return text.replace("\0", "")


def squeezed(text: str) -> str:
    """The text without spaces, except those between digits."""
    return re.sub(r"(?<!\d) | (?!\d)", "", _GEQ.sub(r"\\\1q", text))


def joined(text: str) -> str:
    """The text without thousands commas. The other commas are separators; math-verify needs a space after them."""
    if not (text.startswith(("(", "[", "\\{")) or re.search(r"\\in(?![a-z])", text)):  # (1,200) is a pair
        text = _THOUSANDS.sub(lambda found: found.group().replace(",", ""), text)
    return re.sub(r",(?=\S)", ", ", text)


def without_brackets(text: str) -> str:
    """The text without parentheses around it, unless they are part of its meaning: a pair, an interval, a choice."""
    for _ in range(_MOST_BRACKETS):
        inner = text[1:-1].strip()
        if not (text.startswith("(") and text.endswith(")") and len(inner) > 1 and _balanced(inner)):
            break
        text = inner
    return text


def _balanced(text: str) -> bool:
    depth = 0
    for c in text:
        depth += (c in "([") - (c in ")]")
        if depth < 0 or (depth == 0 and c == ","):
            return False
    return depth == 0


def _ascii(c: str) -> str:
    if c.isascii():
        return c
    kind = unicodedata.decomposition(c).split(" ")[0]
    if kind == "<wide>":
        return unicodedata.normalize("NFKC", c)
    if kind == "<fraction>":
        numerator, _, denominator = unicodedata.normalize("NFKC", c).partition("\u2044")
        return f"\\frac{{{numerator}}}{{{denominator}}}"
    if kind in ("<super>", "<sub>"):
        return ("^" if kind == "<super>" else "_") + f"{{{unicodedata.normalize('NFKC', c)}}}"
    if unicodedata.category(c) == "Cf":  # of zero width
        return ""
    return " " if c.isspace() else c
