"""Numbers with a unit. `with_unit` writes them in one form, `5\\unit{cm^{2}}`, which `read_quantity` reads."""

import math
import re
from dataclasses import dataclass, field


_TABLE = {  # dimension: spellings, and how many of the first of them each is
    "length": "m meter metre 1; in inch 0.0254; ft foot feet 0.3048; yd yard 0.9144; mi mile 1609.344",
    "mass": "g gram gramme 1; tonne 1e6; lb pound £ 453.59237; oz ounce 28.349523125",
    "time": "s sec second 1; min minute 60; h hr hour 3600; day 86400; week 604800",
    "month": "month 1; yr year 12; decade 120; century centurie 1200",
    "angle": f"rad radian 1; deg degree {math.pi / 180}; revolution {2 * math.pi}",
    "money": "dollar usd buck 1; cent ¢ 0.01",
    "euro": "euro eur € 1",
    "percent": "percent 1",
    "volume": "gal gallon 16; quart 4; pint 2; cup 1",
    "unit": "unit 1",
    **{name: f"{name} {name} 1" for name in "celsius fahrenheit hertz acre".split()},
}
_PHYSICAL = (
    "V volt, A ampere, K kelvin, C coulomb, T tesla, F farad, H henry, Hz hertz, mol mole, Wb weber, Ω ohm, B byte"
)
_MECHANICAL = {  # powers of length, mass and time, and how many of m, g and s: spellings
    (1, 1, -2): "N newton 1e3; dyn dyne 1e-2",
    (2, 1, -2): "J joule 1e3; erg 1e-4; eV electronvolt 1.602176634e-16; cal calorie 4184",
    (2, 1, -3): "W watt 1e3",
    (-1, 1, -2): "Pa pascal 1e3",
}
_PREFIXES = "n nano 1e-9, µ micro 1e-6, m milli 1e-3, c centi 1e-2, d deci 1e-1, k kilo 1e3, M mega 1e6, G giga 1e9"
SPEEDS = {"mph": "mi/h", "kph": "km/h", "kmph": "km/h", "kmh": "km/h", "mps": "m/s", "fps": "ft/s"}
_IRREGULAR = {"people": "person", "children": "child", "men": "man", "women": "woman", "mice": "mouse", "dice": "die"}
# words of a unit that name no unit
_NOISE = set(
    "a an the of each sq total old long wide tall high deep away about approximately only there are is".split()
)
_COUNTS = set("way value arrangement possibilitie possibility outcome choice combination permutation option".split())
FUNCTIONS = set("sin cos tan cot sec csc log exp sqrt max min gcd lcm mod det arcsin arccos arctan and".split())
_MANY = set("hundred thousand million billion trillion dozen".split())
NO_UNITS = (FUNCTIONS - {"min"}) | set(
    "or to by with plus minus times over if for where when is not than more less least most wrong choose divided "
    "multiplied added increased decreased half root squared cubed factorial alpha beta gamma theta phi pi base below "
    "above but unless even odd no none integer integers real".split()
)


def _units() -> dict[str, tuple[dict[str, int], float]]:
    """Spelling → powers of dimensions, and size; symbols as they are, words in lower case."""
    units: dict[str, tuple[dict[str, int], float]] = {"hectare": ({"length": 2}, 1e4)}
    units |= dict.fromkeys(("l", "L", "liter", "litre"), ({"length": 3}, 1e-3))
    groups = [({dimension: 1}, group) for dimension, text in _TABLE.items() for group in text.split(";")]
    groups += [({name.split()[1]: 1}, f"{name} 1") for name in _PHYSICAL.split(", ")]
    for powers, text in _MECHANICAL.items():
        groups += [(dict(zip(("length", "mass", "time"), powers, strict=True)), group) for group in text.split(";")]
    for powers, group in groups:
        *names, size = group.split()
        units |= dict.fromkeys(names, (powers, float(size)))
    scaled = " ".join((_PHYSICAL.replace(",", ""), "J joule N newton W watt Pa pascal eV electronvolt cal calorie"))
    for name in [*scaled.split(), *"m meter metre g gram s second l L liter litre".split()]:
        for short, long, size in map(str.split, _PREFIXES.split(", ")):
            powers, one = units[name]
            units[(short if len(name) < 3 else long) + name] = powers, one * float(size)
    return units


UNITS = _units()
_DEGREE = r"\^ ?(?:\{ ?\\circ ?\}|\\circ(?![a-z]))"
_TOKEN = re.compile(
    rf"(?P<word>\x00?[A-Za-zµΩ€£¢]+)|(?P<degree>{_DEGREE})|(?P<power>\^ ?(?:\{{ ?-?\d ?\}}|-?\d))|"
    r"(?P<ratio>\\frac ?\{\s*\x00[^{}\d]*\}\s*\{\s*\x00[^{}\d]*\})|(?P<sign>\\?%|\\\$)|"
    r"(?P<between>[ .()/$·*{}-]|\\cdot(?![a-z]))|(?P<other>\\[A-Za-z]+|.)",
    re.DOTALL,
)
_MONEY = re.compile(r"^(?P<label>[^$€£¢]{0,60}=)? ?(?P<minus>-?) ?\x00?(?P<sign>\\?\$|€|£) ?(?=[\d.\\({-])")
_SIGNS = {"$": "dollar", "%": "percent", "€": "euro", "£": "pound", "¢": "cent"}
_TEMPERATURE = re.compile(r"(?i)\bdegrees? ?(c|f|celsius|fahrenheit|centigrade)\b")
_PERCENT = re.compile(r"(?i)(?:per ?cent|percentage points?|pct)(?: of .*)?")
_AMOUNT = re.compile(
    r"(?:.*(?:=|\\approx|≈|\bis\b))?(?:[-+~\d.,\s\x00^{}()/*!]|\\(?:frac|sqrt|pi|cdot|times|pm|%|approx)(?![a-z])|"
    rf"\b(?:{'|'.join(_MANY)})\b)+",
    re.DOTALL,
)
_QUANTITY = re.compile(r"(?P<number>.*?) ?\\unit\{(?P<unit>[^{}]*)\}", re.DOTALL)
_PART = re.compile(r"(?P<word>[A-Za-zµΩ€£¢]+)(?: ?\^ ?(?P<power>-?\d))?|(?P<over>/)")
_IN_ALL = re.compile(r"\b(?:in|of) (?:total|all)\b")
_TWO = re.compile(
    r"(.*(?:=|\bis))? ?(\d{1,9}) ?\x00?([A-Za-z]+),? (?:\x00?and )?(\d{1,9}(?:\.\d{1,9})?) ?\x00?([A-Za-z]+)", re.DOTALL
)
_POWER_WORD = re.compile(r"(?<=[a-z]) \x00?(squared|cubed)\b")
_MINUTES = re.compile(
    rf"(\d{{1,9}}) ?{_DEGREE} ?(\d{{1,2}}) ?(?:'|\^ ?\{{? ?\\prime(?![a-z]) ?\}}?)(?: ?(\d{{1,2}}) ?'')?"
)
_OHM = re.compile(r"(\d) ?\x00?([kM]?) ?\\Omega$")
_BEFORE_LETTER = re.compile(r"(?:\d|/|\\circ ?\}?|(?<![\\A-Za-z])[A-Za-z]+) ?$")
_LONGEST = 80  # characters of a unit


@dataclass
class Quantity:
    """A number and its unit: a size and powers of dimensions, or nouns that are counted."""

    number: str
    powers: dict[str, int] = field(default_factory=dict)
    size: float = 1.0
    nouns: set[str] = field(default_factory=set)


def with_unit(text: str) -> str:
    """The text with its unit in normal form. NUL stands before what was in `\\text`, where one letter is a unit too."""
    text = _MINUTES.sub(
        lambda f: f"\\frac{{{int(f[1]) * 3600 + int(f[2]) * 60 + int(f[3] or 0)}}}{{3600}}^\\circ", text
    )
    text = _POWER_WORD.sub(lambda found: "^2" if found[1] == "squared" else "^3", _OHM.sub("\\1 \0\\2Ω", text))
    text, names = _without_money(_one_unit(text))
    start = max(0, len(text) - _LONGEST)
    tokens = list(_TOKEN.finditer(text, start))
    first = len(tokens)
    while first and _may_be_unit(tokens[first - 1], text):
        first -= 1
    while first < len(tokens) and tokens[first].lastgroup in ("power", "between"):
        first += 1
    unit = tokens[first:]
    body = text[: unit[0].start()].rstrip() if unit else text
    if unit and _is_unit(unit, body):
        names.append("".join(_name(token) for token in unit))
        text = body
    if not names:
        return text
    name = _IN_ALL.sub("", _TEMPERATURE.sub(r"\1", re.sub(r"[\x00\s]+", " ", " ".join(names)))).strip(" .")
    if not name:
        return text
    name = {"c": "celsius", "f": "fahrenheit"}.get(name.lower(), name) if "degree" in " ".join(names) else name
    return f"{text}\\%" if _PERCENT.fullmatch(name) else f"{text}\\unit{{{name}}}"


def read_quantity(text: str) -> Quantity | None:
    """A number and its unit, or `None`: 45 cm and 45 apples, but neither 45 x nor 45 million."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        return None
    quantity = Quantity(found["number"])
    side, power = 1, 1
    for part in _PART.finditer(found["unit"]):
        word = part["word"] or "/"
        if word in ("/", "per", "an", "a") and (word != "a" or side == 1):
            side = -1 if word in ("/", "per") else side
            continue
        if word.lower() in ("square", "sq", "cubic"):
            power = 3 if word.lower() == "cubic" else 2
            continue
        _multiply(quantity, word, side * power * int(part["power"] or 1))
        power = 1
    quantity.powers = {name: power for name, power in quantity.powers.items() if power}
    return quantity


def without_units(text: str) -> str:
    return re.sub(r"\\unit\{[^{}]*\}", "", text)


def ratio(one: Quantity, other: Quantity) -> float | None:
    """How many of the other's units one unit is; 1 if either is missing; `None` if they contradict each other."""
    powers = one.powers, other.powers
    if not (one.powers or one.nouns) or not (other.powers or other.nouns) or {"unit": 1} in powers:
        lengths = [sum(p.values()) for p in powers if set(p) in ({"unit"}, {"length"})]
        return None if len(lengths) == 2 and lengths[0] != lengths[1] else 1.0
    if not all(powers):
        return 1.0 if not any(powers) and one.nouns & other.nouns else None
    if powers[0] == powers[1]:
        return one.size / other.size
    if any("unit" in p for p in powers):  # square units
        return 1.0 if sum(powers[0].values()) == sum(powers[1].values()) else None
    if all("money" in p for p in powers):  # dollars per hour
        return 1.0
    return 1.0 if {"angle": 1} in powers and ({"celsius": 1} in powers or {"fahrenheit": 1} in powers) else None


def _one_unit(text: str) -> str:
    """3 hours 30 minutes as 210/60 hours."""
    found = _TWO.fullmatch(text.rstrip(" ."))
    large, small = (known_unit(found[3]), known_unit(found[5])) if found else (None, None)
    if not large or not small or large[0] != small[0] or large[1] <= small[1]:
        return text
    many = round(large[1] / small[1])
    return f"{found[1] or ''} \\frac{{{int(found[2]) * many + float(found[4]):.12g}}}{{{many}}} \0{found[3]}"


def _without_money(text: str) -> tuple[str, list[str]]:
    found = _MONEY.match(text)
    if not found or (found["sign"] == "$" and text.count("$") > 1):
        return text, []
    return (found["label"] or "") + found["minus"] + text[found.end() :], [_SIGNS[found["sign"][-1]] + " "]


def _may_be_unit(token: re.Match[str], text: str) -> bool:
    if token.lastgroup != "word":
        return token.lastgroup != "other"
    word = token.group().lstrip("\x00")
    if text[token.start() - 1 : token.start()] in ("\\", ".") or word.lower() in NO_UNITS | _MANY:
        return False
    before, is_marked = text[max(0, token.start() - 20) : token.start()], token.group() != word
    apart = before[-1:] in (" ", "/") or is_marked or not word.isascii()
    if len(word) == 1 and not is_marked and not _BEFORE_LETTER.search(before):
        return False  # 2\pi m
    known = known_unit(word) is not None
    return (known or len(word) >= 3 or word.lower() in _NOISE) and (apart or (known and len(word) > 1))


def _is_unit(unit: list[re.Match[str]], body: str) -> bool:
    """Whether words after a number are its unit."""
    kinds = {token.lastgroup for token in unit}
    if not body or body[-1] in "+-=<>,;:([\\/*^_&" or (kinds <= {"sign", "between"} and "%" in unit[0].group()):
        return False
    words = [token.group() for token in unit if token.lastgroup == "word"]
    named = [word for word in words if known_unit(word.strip("\x00")) and word.strip("\x00").lower() not in _NOISE]
    if all(word.strip("\x00").lower() in _NOISE for word in words) and not kinds & {"degree", "sign", "ratio"}:
        return False
    if _AMOUNT.fullmatch(body) and re.search(r"\d|\\pi", body):
        return True
    # a formula with letters
    plain_words = re.search(r"(?<![\\A-Za-z])[A-Za-z]{3,}", body.rpartition("=")[2])
    return bool(named) and not plain_words and all(len(word) > 1 for word in named) and "degree" not in kinds


def _name(token: re.Match[str]) -> str:
    text = token.group()
    if token.lastgroup == "degree":
        return " degree "
    if token.lastgroup == "sign":
        return "" if text == "$" else f" {_SIGNS[text[-1]]} "
    if token.lastgroup == "ratio":
        return re.sub(r"\\frac ?\{([^{}]*)\}\s*\{([^{}]*)\}", r"\1/\2", text)
    if token.lastgroup == "between":
        return "/" if text == "/" else " "
    return re.sub(r"[{} ]", "", text)


def known_unit(word: str) -> tuple[dict[str, int], float] | None:
    for name in (word, word.lower(), word.lower().removesuffix("s"), word.lower().removesuffix("es")):
        if name in UNITS:
            return UNITS[name]
    return ({}, 1.0) if word.lower() in SPEEDS else None


def _multiply(quantity: Quantity, word: str, power: int) -> None:
    """Multiplies the unit of a quantity by a power of a word."""
    if word.lower() in SPEEDS:
        above, below = SPEEDS[word.lower()].split("/")
        _multiply(quantity, above, power)
        _multiply(quantity, below, -power)
    elif word.lower() in _NOISE:
        return
    elif known := known_unit(word):
        for name, own in known[0].items():
            quantity.powers[name] = quantity.powers.get(name, 0) + own * power
        quantity.size *= known[1] ** power
    else:
        noun = _IRREGULAR.get(word.lower(), re.sub(r"(?<=x|h)es$|(?<!s)s$", "", word.lower()))
        quantity.nouns.add("way" if noun in _COUNTS else noun)
