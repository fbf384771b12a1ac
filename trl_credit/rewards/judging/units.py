"""Numbers with a unit. `with_unit` writes them in one form, `5\\unit{cm ^2}`, which `read_quantity` reads."""

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from fractions import Fraction


# Spellings of a unit, and its value; a unit without a value is a dimension of its own. * takes prefixes.
_DEFINITIONS = """*m meter metre; in inch = 0.0254 m; ft foot feet = 0.3048 m; yd yard = 0.9144 m; mi mile = 1609.344 m
*g gram; tonne = 1e6 g; lb pound £ = 453.59237 g; oz ounce = 28.349523125 g; *L l liter litre = 1e-3 m^3; acre
*s sec second; min minute = 60 s; h hr hour = 3600 s; day = 86400 s; week = 604800 s; hectare = 1e4 m^2; *V volt
month; yr year = 12 month; decade = 120 month; century centurie = 1200 month; celsius degc; fahrenheit degf; *K kelvin
dollar usd buck; cent ¢ = 0.01 dollar; euro eur €; percent; cup; pint = 2 cup; quart = 4 cup; gal gallon = 16 cup
*A ampere; *C coulomb; *T tesla; *F farad; *H henry; *mol mole; *Hz hertz; rad radian; deg degree = 0.01745329251994 rad
*N newton = 1e3 m g/s^2; *Ω ohm; *Pa pascal = 1 N/m^2; *J joule = 1 N m; erg = 1e-7 J; *W watt = 1 J/s
*eV electronvolt = 1.602176634e-19 J; *cal calorie = 4.184 J; mph = 1 mi/h; kph = 1 km/h; arcminute ' = 1/60 degree"""
_PREFIXES = "//1 n/nano/1e-9 µ/micro/1e-6 m/milli/1e-3 c/centi/1e-2 d/deci/1e-1 k/kilo/1e3 M/mega/1e6 G/giga/1e9"
_WAYS = set("valu arrangement possibilit outcom choic combination permutation option".split())  # stems
FUNCTIONS = set("sin cos tan cot sec csc log exp sqrt max min gcd lcm mod det arcsin arccos arctan and".split())
# words behind a number that make it another value, or none
_OTHER_VALUES = """or nor not no to by with plus minus times over if for where than but unless half halves dozen hundred
thousand million billion trillion factorial wrong false maybe perhaps always sometimes equals this""".split()
NO_UNITS = (FUNCTIONS - {"min"}).union(_OTHER_VALUES)
# words that say nothing about a unit
_FILLERS = "an?|the|of|about|are|each|total|all|altogether|only|exactly|together|old|long|wide|tall|high|deep|away|left"
_PLURAL = re.compile(r"(?!.*ths|thirds|quarters|tens|.*illions)\w+[^su]s|people|children|(?:wo)?men|mice|dice")
_LETTERS = "[A-Za-zµΩ€£¢]+"
_DEGREE = r"\^ ?(?:\{ ?\\circ ?\}|\\circ(?![a-z]))"
_MONEY = re.compile(r"(?:^|(?<==)) ?(-?) ?(\\?\$|€|£) ?(?=[\d.\\({-])")
_AMOUNT = re.compile(r"(?:[-+~\d.,\s^{}()/*!%\\]|frac|sqrt|pi|cdot|times|pm|text|hundred|thousand|[mbtr]+illion)+")
UNIT = re.compile(r" ?\\unit\{([^{}]*)\}")
_PART = re.compile(rf"(?P<word>{_LETTERS})(?: ?\^ ?(?P<power>-?\d))?|(?P<over>/)")
_POWER = re.compile(r"\b(?:sq(?:uare)?|(cubic)) (\w+)|(?<=[a-z]) (?:squared|(cubed))\b")
_WORD = rf"((?:\\text\{{)?[A-Za-z]+\}}?|{_DEGREE}|')"
_TWO = re.compile(rf"(.*=)? ?(\d{{1,9}}) ?{_WORD},? ?(?:\S{{0,6}}and\S? )?(\d{{1,9}}(?:\.\d{{1,9}})?) ?{_WORD}")
_RATIO = re.compile(r"\\frac ?\{ *(\\text\{\w+\}[^{}]*)\} *\{ *(\\text\{\w+\}[^{}]*)\}")
_OHM = re.compile(r"(?<=\d) ?(?:\\text\{)?([kM]?)\}? ?\\Omega$")
_OPERAND = r"[^-+*/=<>,;:(\[^_&\\ ]"
_LONGEST = 160  # characters of a unit
UNITS: dict[str, "Quantity"] = {}


@dataclass
class Quantity:
    """A number and its unit: a size and powers of dimensions, and the stems of nouns that are counted."""

    number: str
    powers: Counter[str] = field(default_factory=Counter)
    size: Fraction = Fraction(1)
    nouns: set[str] = field(default_factory=set)
    plural: bool = field(default=False, compare=False)


def with_unit(text: str) -> str:
    """The text with its unit in normal form. In the text, each word of a font command has a `\\text` of its own."""
    text = _OHM.sub(r" \\text{\1Ω}", _RATIO.sub(r"\1/\2", _one_unit(text)))
    money = _MONEY.search(text) if text.count("$") < 2 else None
    text, unit = (_MONEY.sub(r"\1", text, count=1), f"\\{money[2][-1]}") if money else (text, "")
    match = _UNIT.search(text, max(0, len(text) - _LONGEST))
    if match and _is_unit(match.group(), text[: match.start()].rstrip()):
        text, unit = text[: match.start()].rstrip(), f"{unit} {match.group()}"
    name = unit_name(unit)
    is_percent = re.fullmatch(r"(?i)(?:per ?cent|percentage points?|pct)(?: .*)?", name)
    return f"{text}\\%" if is_percent else f"{text}\\unit{{{name}}}" if name else text


def unit_name(unit: str) -> str:
    """The words, powers and slashes of a unit."""
    name = re.sub(_DEGREE, " degree ", unit.replace("\\text", "").replace("\\$", " dollar "))
    name = re.sub(rf"\\cdot|[ .()$·*{{}}\\]|-(?!\d)|\b(?:{_FILLERS}|in(?=[ {{}}]+(?!per)[A-Za-z]))\b", " ", name)
    return re.sub(r"(?i)\bdegrees? ([cf])(?:elsius|ahrenheit)?\b", r"deg\1", " ".join(name.split()))


def read_quantity(text: str) -> Quantity | None:
    """A number and its unit, or `None`: 45 cm and 45 apples, but neither 45 x nor 45 million."""
    return _quantity(text) if re.search(rf"{UNIT.pattern}\Z", text) else None


def quantities(answer: str, gold: str) -> tuple[Quantity, Quantity]:
    """Both as quantities, with a unit or without. A multiple of π next to an angle is an angle, in radians."""
    one, two = _quantity(answer), _quantity(gold)
    for quantity, other in ((one, two), (two, one)):
        if "\\pi" in quantity.number and other.powers == {"rad": 1} and not (quantity.powers or quantity.nouns):
            quantity.powers = Counter({"rad": 1})
    return one, two


def agree(answer: Quantity, gold: Quantity) -> bool:
    """Whether the units do not contradict each other. A number without a unit has any, and nouns count it."""
    one, two = answer.powers, gold.powers
    if not (two or gold.nouns):
        return bool(one) or answer.plural or not answer.nouns or answer.number == "1"
    if not (one or answer.nouns):
        return True
    is_temperature = {"rad": 1} in (one, two) and not {"celsius", "fahrenheit"}.isdisjoint({*one, *two})
    return is_temperature or (one == two and bool(one or answer.nouns & gold.nouns))


def ratio(one: Quantity, two: Quantity) -> float:
    """How many of the second's units the first's is; 1 if they do not measure the same."""
    return float(one.size / two.size) if one.powers == two.powers else 1.0


def without_units(text: str) -> str:
    return UNIT.sub("", text)


def known_unit(word: str) -> Quantity | None:
    low = word.lower()
    return next((UNITS[w] for w in (word, low, low.removesuffix("s"), low.removesuffix("es")) if w in UNITS), None)


def stem(word: str) -> str:
    """What a noun in lower case has in common with its plural, and the word "way" for all that counts ways."""
    root = re.sub(r"(?:ies|y|es|e|(?<![su])s)$", "", word)
    return "way" if root in _WAYS else root


def read_unit(unit: str) -> Quantity:
    """A unit without its number."""
    powers, size, words, side = Counter(), Fraction(1), [], 1
    for part in _PART.finditer(_POWER.sub(lambda f: f"{f[2] or ''}^{3 if f[1] or f[3] else 2}", unit)):
        if part["over"] or part["word"] == "per":
            side = -1
        elif known := known_unit(part["word"]):
            power = side * int(part["power"] or 1)
            powers.update({name: own * power for name, own in known.powers.items()})
            size *= known.size**power
        else:
            words.append(part["word"].lower())
    return Quantity("", powers, size, set(map(stem, words)), any(map(_PLURAL.fullmatch, words)))


def _quantity(text: str) -> Quantity:
    """A number or a list of numbers, with one unit or without."""
    units = [read_unit(name) for name in UNIT.findall(text)]
    unit, number = units[0] if units else Quantity(""), without_units(text)
    if any(other != unit for other in units):
        return Quantity(text)
    return replace(unit, number=number, powers=Counter({"percent": 1}) if number.endswith("%") else unit.powers)


def _one_unit(text: str) -> str:
    """3 hours 30 minutes as 7/2 hours, and 30°15' as 121/4°."""
    match = _TWO.fullmatch(text.rstrip(" ."))
    large, small = [known_unit(unit_name(match[i])) for i in (3, 5)] if match else (None, None)
    if not large or not small or large.powers != small.powers:
        return text
    number = int(match[2]) + Fraction(match[4]) * small.size / large.size
    return f"{match[1] or ''} {number} {match[3]}"


def _is_unit(unit: str, body: str) -> bool:
    """Whether words after a number are its unit."""
    value = re.split(r"=|\\approx|≈|\bis\b", body)[-1]
    if _AMOUNT.fullmatch(value) and re.search(r"\d|\\pi", value):
        return True
    # a formula with letters
    is_formula = unit.startswith("\\text") and not re.search(r":|\\text|(?<![\\A-Za-z])[A-Za-z]{3}", value)
    return is_formula and any(known_unit(word) or _PLURAL.fullmatch(word) for word in unit_name(unit).split())


def _define() -> None:
    """Fills `UNITS`: spelling → unit; symbols as they are, words in lower case."""
    for definition in re.split("; |\n", _DEFINITIONS):
        names, _, value = definition.strip("*").partition(" = ")
        size, _, parts = value.partition(" ")
        unit = read_unit(parts) if parts else Quantity("", Counter({names.split()[0]: 1}))
        for prefix in _PREFIXES.split() if definition[0] == "*" else ["//1"]:
            short, long, factor = prefix.split("/")
            scaled = replace(unit, size=unit.size * Fraction(size or 1) * Fraction(factor))
            UNITS.update({(short if len(name) < 4 else long) + name: scaled for name in names.split()})


_define()
_SYMBOL, _LONG = ("|".join(n for n in UNITS if n.isalpha() and (len(n) < 4) == short) for short in (True, False))
NAME = rf"(?:(?:{_SYMBOL})s?|(?i:(?:{_LONG})(?:e?s)?))(?![A-Za-z])"  # of a unit
_NOUN = rf"(?!(?i:{'|'.join(NO_UNITS)})s?(?![A-Za-z]))"
_EITHER = (
    rf"\\text\{{{_NOUN}(?i:[a-z]{{3,}}|{_SYMBOL}|an?|of|sq)\}}|"
    rf"(?<=[ /]){_NOUN}(?:{NAME}|(?i:(?=[a-z]*[eiou]|[a-z]{{4}})[a-z]{{3,}}|an?|of|sq)(?![A-Za-z]))"
)
_UNIT = re.compile(
    rf"(?:(?<={_OPERAND})|(?<={_OPERAND} ))"
    rf"(?:(?=\\|[A-Za-z]{{2}})(?:{_EITHER}|(?<=[\d}}]){NAME})|(?<=\d ){NAME}|[€£¢]|\\\$|{_DEGREE})"
    rf"(?:{_EITHER}|\^ ?(?:\{{ ?-?\d ?\}}|-?\d)|\\cdot(?![a-z])|[ .()/$·*{{}}-])*\Z"
)
