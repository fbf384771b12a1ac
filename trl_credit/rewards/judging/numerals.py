"""Numbers, ordinals, ratios and dates in words as figures."""

import re

from .plain import plain


_UNITS = "zero one two three four five six seven eight nine".split()
_TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_VALUES = {word: i for i, word in enumerate(_UNITS + _TEENS)} | {word: 10 * i for i, word in enumerate(_TENS, 2)}
_FIRST = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth"}
_FIRST |= {"twelve": "twelfth"} | {word: f"{word[:-1]}ieth" for word in _TENS}
_ORDINALS = {_FIRST.get(word, f"{word}th"): value for word, value in _VALUES.items() if value}
_ANY = "|".join([*_VALUES, "hundred", "thousand"])
_SMALL = rf"(?:(?:{'|'.join(_TENS)})(?:[ -](?:{'|'.join(_UNITS[1:])}))?|{'|'.join(_UNITS + _TEENS)})"
_UNDER = rf"(?:(?:{'|'.join(_UNITS[1:])}) hundred(?:(?: and)? {_SMALL})?|{_SMALL})"
_CARDINAL = re.compile(
    rf"(?P<sign>(?:minus|negative) )?(?P<words>{_UNDER} thousand(?:,? (?:and )?{_UNDER})?|{_UNDER})"
    r"(?P<noun>(?: [a-z]{3,20}){0,3})"
)
NO_NOUN = re.compile(rf"\b(?:{_ANY}|{'|'.join(_ORDINALS)}|hal(?:f|ves)|quarters?|point|dozen|score)s?\b")
_TH = r" ?(?:\^ ?\{? ?)?(?:st|nd|rd|th)(?: ?\})?"
_PLACE = r"(?: (?:place|position|day|term|row|floor|grade|person|one))?"
_ORDINAL = re.compile(
    rf"(?:the )?(?:(?P<number>\d{{1,9}}){_TH}|"
    rf"(?:(?P<ten>{'|'.join(_TENS)})[ -])?(?P<word>{'|'.join(_ORDINALS)})){_PLACE}"
)
_TO = re.compile(r" (?:is )?to ")
_MONTHS = "January February March April May June July August September October November December".split()
_MONTH = "|".join(rf"{name[:3]}(?:{name[3:]}|t)?" if len(name) > 3 else name for name in _MONTHS)
_DATE = re.compile(
    rf"(?i)(?:the )?(?:(?P<month>{_MONTH})\.? (?P<day>\d{{1,2}})(?:{_TH})?|(?P<day2>\d{{1,2}})"
    rf"(?:{_TH})?(?: of)? (?P<month2>{_MONTH})\.?)(?P<year>,? \d{{4}})?"
)
_UNIT = re.compile(r" ?\\unit\{([^{}]*)\}")


def in_figures(text: str) -> str:
    """A whole text in figures: twelve edges, 3rd, third place, 3 to 5, Oct 30; any other text unchanged."""
    if text.isdigit():
        return text
    low = text.lower()
    if found := _ORDINAL.fullmatch(low):
        return found["number"] or str(_VALUES.get(found["ten"], 0) + _ORDINALS[found["word"]])
    if len(parts := _TO.split(text)) > 1:
        numbers = list(map(in_figures, parts))
        return ":".join(numbers) if all(map(str.isdigit, numbers)) else text
    if found := _DATE.fullmatch(_UNIT.sub(r" \1", text)):
        month = next(name for name in _MONTHS if name.startswith((found["month"] or found["month2"])[:3].capitalize()))
        year = (found["year"] or "").strip(", ")
        return f"{month} {int(found['day'] or found['day2'])} {year}".strip()
    found = _CARDINAL.fullmatch(low)
    if not found or NO_NOUN.search(found["noun"]):
        return text
    total = value = 0
    for word in re.findall("[a-z]+", found["words"]):
        value = value * 100 if word == "hundred" else value + _VALUES.get(word, 0)
        total, value = (total + value * 1000, 0) if word == "thousand" else (total, value)
    number = f"{'-' if found['sign'] else ''}{total + value}"
    if not found["noun"]:
        return number
    counted = plain(f"{number}\\text{{{found['noun']}}}")
    return counted if counted != f"{number}{found['noun']}" else text
