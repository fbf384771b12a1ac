"""Numbers, fractions, ordinals, ratios and dates in words as figures."""

import re

from .normal import normal


_SMALL = "zero one two three four five six seven eight nine ten eleven twelve".split()
_SMALL += "thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_BELOW_100 = _SMALL + [f"{ten} {one}".removesuffix(" zero") for ten in _TENS for one in _SMALL[:10]]
_BELOW_1000 = _BELOW_100 + [f"{n} hundred {rest}".removesuffix(" zero") for n in _SMALL[1:10] for rest in _BELOW_100]
_FIRST = "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
_FIRST += [f"{word}th" for word in _SMALL[13:]] + [f"{ten[:-1]}ieth" for ten in _TENS]
_CARDINALS = dict(zip(_FIRST, _SMALL + _TENS, strict=True))
_DENOMINATORS = _CARDINALS | {"half": "two", "halve": "two", "quarter": "four"}
_FIGURES = {words: str(number) for number, words in enumerate(_BELOW_1000)}
_WORD = "|".join([*_SMALL, *_TENS, "hundred"])
_ORDINAL = re.compile(rf"\b(?:{'|'.join(_CARDINALS)})\b")
_NUMBER = re.compile(rf"\b(?:{_WORD})(?:(?:(?<=hundred) and |[ -])(?:{_WORD}))*\b")
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_NO_NOUN = re.compile(rf"\b(?:(?:{'|'.join([_WORD, *_SCALES, *_DENOMINATORS])})(?:th)?|point|dozen|score)s?\b")
_SCALED = re.compile(rf"\b(\d{{1,3}}) ({'|'.join(_SCALES)})(?:,? (?:and )?(\d{{1,3}}))?\b(?! (?:{'|'.join(_SCALES)}))")
_TH = re.compile(r"(?<=\d) ?(?:\^ ?\{? ?)?(?:st|nd|rd|th)\b(?: ?\})?")
_PLACE = re.compile(r"(?:the )?(\d{1,9})(?: (?:place|position|day|term|row|floor|grade|person|one))?")
_MONTHS = "January February March April May June July August September October November December".split()
_DATE = re.compile(r"(?:the )?([a-z]{3,9}|\d\d?)(?: of|\.)? (?:the )?([a-z]{3,9}|\d\d?)\.?(?:,? (\d{4}))?")
_COUNT = re.compile(r"(?P<sign>(?:minus|negative) )?(?P<number>\d{1,9})(?P<noun>(?: [a-z]{3,20}){0,3})")
_FRACTION = re.compile(rf"({'|'.join(_SMALL)}|\d{{1,9}})[ -]({'|'.join(_DENOMINATORS.keys() - {'second'})})s?")
_LONGEST = 200  # characters


def in_figures(text: str) -> str:
    """A whole text in figures: twelve edges, 3rd, third place, 3 to 5, Oct 30; any other text unchanged."""
    if text.isdigit() or len(text) > _LONGEST:
        return text
    low = re.sub(r"\ba (?=(?:hundred|thousand|million|half|third|quarter)\b)", "one ", text.lower())
    if part := _FRACTION.fullmatch(low):
        return f"\\frac{{{_FIGURES.get(part[1], part[1])}}}{{{_FIGURES[_DENOMINATORS[part[2]]]}}}"
    low = _ORDINAL.sub(lambda word: f"{_CARDINALS[word[0]]} th", low)
    low = _NUMBER.sub(lambda words: _FIGURES.get(re.sub("-| and ", " ", words[0]), words[0]), low)
    low = _SCALED.sub(lambda match: str(int(match[1]) * _SCALES[match[2]] + int(match[3] or 0)), low)
    bare = _TH.sub("", re.sub(r" ?\\unit\{(\w+)\}", r" \1", low))
    if _TH.search(low) and (place := _PLACE.fullmatch(bare)):
        return place[1]
    if re.fullmatch(r"\d{1,9}(?: (?:is )?to \d{1,9})+", low):
        return ":".join(re.findall(r"\d+", low))
    if date := _DATE.fullmatch(bare):
        day, name = sorted(date.groups()[:2])
        month = next((month for month in _MONTHS if month.lower().startswith(name)), None)
        if month and day.isdigit():
            return f"{month} {int(day)} {date[3] or ''}".strip()
    count = _COUNT.fullmatch(low)
    if not count or _NO_NOUN.search(count["noun"]) or low == text.lower():
        return text
    number, noun = f"{'-' if count['sign'] else ''}{count['number']}", count["noun"]
    counted = normal(f"{number}\\text{{{noun}}}")
    return text if noun and counted == number + noun else counted
