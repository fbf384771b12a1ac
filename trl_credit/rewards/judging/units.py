"""Numbers followed by a unit."""

import re
from dataclasses import dataclass


_QUANTITY = re.compile(
    # one character or one command at a time: otherwise a long list takes exponential time
    r"(?P<number>(?=[-+]?[\d.\\(])"
    r"(?:[\d.,\s^{}()/*+-]|\\frac\{[^{}]*\}\{[^{}]*\}|\\sqrt\{[^{}]*\}|\\(?:pi|cdot|times))+?)"
    r"(?P<unit>[A-Za-zµμΩ](?:[A-Za-zµμΩ. /-]|\^\s?-?\d|\^\s?\{-?\d\})*)"
)
_POWER = re.compile(r"\^\W*(-?\d)|\b(square|cubic|sq)\b")
FUNCTIONS = set("sin cos tan cot sec csc log exp sqrt max min gcd lcm mod det arcsin arccos arctan and".split())
_NO_UNITS = FUNCTIONS | set(
    "or to by with plus minus times over if for where when is not than more less least most wrong choose divided "
    "multiplied added increased decreased hundred thousand million billion trillion dozen half root squared cubed "
    "factorial alpha beta gamma theta phi pi".split()
)
_UNITS = {  # spelling -> the first of its group
    name: group.split()[0]
    for group in (
        "cm centimeter centimeters centimetre centimetres; m meter meters metre metres; km kilometer kilometers "
        "kilometre kilometres; mm millimeter millimeters millimetre millimetres; in inch inches; ft foot feet; yd yard "
        "yards; mi mile miles; g gram grams; kg kilogram kilograms; mg milligram milligrams; lb lbs pound pounds; oz "
        "ounce ounces; s sec second seconds; min minute minutes; h hr hrs hour hours; day days; week weeks; month "
        "months; yr year years; sq square; cent cents; dollar dollars; degree degrees; radian radians; l liter liters "
        "litre litres; ml milliliter milliliters millilitre millilitres"
    ).split(";")
    for name in group.split()
}


@dataclass
class Quantity:
    """What stands before and after the space: `45` and `square cm`."""

    number: str
    unit: str

    @property
    def words(self) -> list[str]:
        return [_UNITS.get(word, word) for word in re.findall(r"[a-zµμω]+", self.unit.lower())]

    @property
    def powers(self) -> list[str]:
        return [{"square": "2", "sq": "2", "cubic": "3"}.get(a or b, a or b) for a, b in _POWER.findall(self.unit)]


def read_quantity(text: str) -> Quantity | None:
    """A number and its unit, or `None`: 45 cm and 45 apples, but neither 45 x nor 45 million."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        return None
    quantity = Quantity(found["number"], found["unit"].strip(" ."))
    first = quantity.words[0]
    is_unit = first in _UNITS or (found["number"].endswith((" ", "}")) and len(first) >= 3)
    return quantity if is_unit and not set(re.findall(r"[a-z]+", quantity.unit.lower())) & _NO_UNITS else None


def clash(one: Quantity, other: Quantity) -> bool:
    """Whether both units are named and differ: cents and dollars, cm² and cm³, boys and girls."""
    if one.powers != other.powers:
        return True
    a, b = ([word for word in q.words if word not in ("sq", "cubic", "unit", "units", "per")] for q in (one, other))
    if not a or not b or a == b:
        return False
    return bool(a[0] in _UNITS and b[0] in _UNITS) or not set(a) & set(b)
