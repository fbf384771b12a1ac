"""The verdict on an answer, by strict rules or not. Runs in a worker, as `equal.py` does."""

import re

from sympy import Float

from . import equal as equality
from .chains import chain_end
from .forms import is_label, split_outside, without_label
from .intervals import as_intervals
from .plain import joined, plain, squeezed
from .rules import Rules
from .strict import has_operator, sides_of, unevaluated
from .wording import reworded


_LETTER = re.compile("[A-Za-z]")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_IN_SET = re.compile(r"\\?[A-Za-z]+ ?\\in ?[(\[][^()\[\]]*,[^()\[\]]*[)\]]")  # x in an interval
_SET = re.compile(
    r"(?:(?:\\?[A-Za-z]+|\([a-z](?:, ?[a-z])+\)) ?\\in ?)?\\\{(?P<elements>(?:(?!\\[{}]|\\mid|[:|]).)*)\\\}", re.DOTALL
)
_INTEGERS = re.compile(
    r"^(?:for )?(?:all |any |every )?(?:the )?(?:positive |non-?negative |natural )?(?:integers?|numbers) "
    r"(?:(?:with|such that) )?(?=[a-zA-Z] ?(?:[<>]|\\[lgn]))|"
    r",? ?(?:where |with )?[a-zA-Z] ?\\in ?\\mathbb ?\{? ?[ZN] ?\}?(?:_\{?[^{}]*\}?)?$|"
    r",? (?:where )?[a-zA-Z] (?:is )?an integer$"
)
_CONSTANTS = re.compile(r"(?<![A-Za-z\\])C(?!m\b)"), re.compile(r"(?<![A-Za-z\\])c(?!os|ot|sc|m\b)")
_COMMA = re.compile(r"[,;]")
_APPROXIMATELY = re.compile(r"\\(?:approx|simeq)(?![A-Za-z])")


def judged(answer: str, gold: str, rules: Rules) -> str:
    """`1` if `answer` is right, `unevaluated` if it contains unfinished work, right or not, else `0`."""
    answer, gold, rules = reworded(plain(answer), plain(gold), rules)
    if "=" not in gold and ("=" in answer or "\\approx" in answer) and (end := chain_end(answer)) != answer:
        last = judged(end, gold, rules)
        if last != "0":
            return last
    golds = [f"{gold}\\unit{{{unit}}}" for unit in rules.units] or [gold, *_equal_golds(answer, gold)]
    verdicts = {_judged(_as_asked(answer, gold, rules), gold, rules) for gold in golds}
    return next(verdict for verdict in ("1", "unevaluated", "0") if verdict in verdicts)


def _judged(answer: str, gold: str, rules: Rules) -> str:
    in_set = _IN_SET.fullmatch(answer)
    if in_set and equality.kind(gold.replace("=", "")) == "list" and not equality.INEQUALITY.search(gold):
        return "0"
    if not rules.strict:
        return str(int(equality.equal(answer, gold)))
    answer, gold, size = equality.measured(answer, gold)
    if not answer or not gold or size is None:
        return "0"
    if squeezed(answer) == squeezed(gold):
        return str(int(size == 1))
    if families := equality.both_families(without_label(answer), gold):
        found, right = families
        parts = [", ".join(family.parts).replace(found.letter, right.letter) for family in families]
        return "unevaluated" if unevaluated(*parts) else str(int(size == 1 and equality.same_family(*families)))
    if rules.untupled and equality.kind(answer) == "pair" and equality.kind(gold) == "list":
        return "0"
    if sets := equality.both_sets(without_label(answer), gold):
        found, right = sets
        is_open = (right.done and not found.done) or unevaluated(", ".join(found.ends), ", ".join(right.ends))
        return "unevaluated" if is_open else str(int(size == 1 and found.equals(right)))
    value = _claimed(answer, gold, rules)
    if value is None:
        return "0"
    if unevaluated(value, gold):
        return "unevaluated"
    if size != 1:
        return str(int(equality.converted(value, gold, size)))
    in_order = _in_order(value, gold, rules)
    return str(int(equality.equal_plain(value, gold) if in_order is None else in_order))


def _equal_golds(answer: str, gold: str) -> list[str]:
    """The sides of a gold that gives a value in several ways: 0.56 = 56%. Percents are compared with percents."""
    sides = sides_of(gold)
    values = sides[1:] if is_label(sides[0]) else sides
    if len(values) < 2 or any(_LETTER.search(_COMMAND.sub("", side)) for side in values):
        return []
    percents = [side for side in values if equality.PERCENT.search(side)]
    fitting = percents if percents and equality.PERCENT.search(answer) else values
    return [side for side in fitting if not unevaluated(side, values[-1])]


def _as_asked(answer: str, gold: str, rules: Rules) -> str:
    """The answer without a base, a name or a domain, or with brackets, where the problem allows it."""
    found = equality.BASED.fullmatch(answer)
    if found and rules.base == int(found[2]) and gold == found[1]:
        return found[1]
    if rules.integers and not _INTEGERS.search(gold):
        answer = _INTEGERS.sub("", answer)
    if rules.constant:
        upper, lower = ([bool(pattern.search(text)) for text in (answer, gold)] for pattern in _CONSTANTS)
        if (upper, lower) == ([True, False], [False, True]):
            answer = _CONSTANTS[0].sub("c", answer)
        elif (upper, lower) == ([False, True], [True, False]):
            answer = _CONSTANTS[1].sub("C", answer)
    elements = _SET.fullmatch(answer)
    if elements and equality.kind(gold) in (("list",) if "," in answer else ("list", "")):
        return elements["elements"].strip()
    if rules.named and not rules.strict and answer.count("=") == 1:
        answer = answer.partition("=")[2].strip()
    is_list = rules.listed and equality.kind(gold) == "pair" and equality.kind(answer) == "list"
    return f"({answer})" if is_list and gold[0] == "(" and gold[-1] == ")" else answer


def _claimed(answer: str, gold: str, rules: Rules) -> str | None:
    """The value that an answer gives, without a label: the last side of a chain of equal sides, the exact side of an
    approximation. `None` if the sides are not equal."""
    if "=" in gold or " is " in gold:
        return answer
    if equality.INEQUALITY.search(answer) and not equality.INEQUALITY.search(gold):
        return as_intervals(answer)
    answer = without_label(answer)
    if "\\approx" in answer or "\\simeq" in answer:
        exact, *rounded = (side.strip() for side in _APPROXIMATELY.split(answer))
        if len(rounded) != 1 or not _rounds_to(exact, rounded[0]):
            return None
        return rounded[0] if equality.same(joined(rounded[0]), joined(gold)) else exact
    if "=" not in answer or equality.INEQUALITY.search(answer) or len(split_outside(_COMMA, answer)) > 1:
        return answer
    first, *sides = sides_of(answer)
    if not sides or is_label(sides[-1]):
        return answer
    # letters before equal numbers are a label too
    numbers = (
        len(sides) > 1
        and not first[:1].isdigit()
        and not any(re.search(r"[A-Za-z]", _COMMAND.sub("", side)) for side in sides)
    )
    if not (is_label(first) or rules.named or numbers):
        sides = [first, *sides]
    last = sides.pop()
    if sides and re.search(r"[A-Za-z]", _COMMAND.sub("", sides[0])) and not has_operator(sides[0]):
        return answer  # an equation of letters
    done = [side for side in sides if not has_operator(side)]
    return last if all(equality.same_number(side, last) for side in done) else None


def _rounds_to(exact: str, rounded: str) -> bool:
    """Whether a decimal is the other number, rounded to the places that it has."""
    value, decimal = equality.value_of(equality.parsed_as(joined(exact))), equality.decimal_of(joined(rounded))
    if value is None or decimal is None:
        return False
    places = len(rounded.partition(".")[2])
    return abs(value - Float(str(float(decimal)), 20)) <= Float(f"0.6e-{places}")


def _in_order(answer: str, gold: str, rules: Rules) -> bool | None:
    """Compares words and letters, and lists if the problem asks for an order. `None`: neither."""
    claims = equality.same_claims(answer, gold)
    if claims is not None:
        return claims
    words, right = _letter_words(answer), _letter_words(gold)
    if words and right and any(len(word) > 1 for word in (*words, *right)):
        if len(words) == len(right) == 1 and rules.products:
            return sorted(words[0]) == sorted(right[0])
        words, right = list(map(equality.caseless, words)), list(map(equality.caseless, right))
        is_list = "," in gold and gold[0] not in "(["
        return sorted(words) == sorted(right) if is_list and not rules.ordered else words == right
    if not rules.ordered:
        return None
    parts, right = split_outside(_COMMA, answer.strip("()")), split_outside(_COMMA, gold)
    if len(right) < 2 or gold.startswith("\\{"):
        return None
    if len(parts) != len(right):
        return False
    return all(equality.equal_plain(without_label(a.strip()), b.strip()) for a, b in zip(parts, right, strict=True))


def _letter_words(text: str) -> list[str]:
    """The words of a text that has only letters, brackets and commas; none if there is anything else."""
    text = re.sub(r"\\(?=[{}])|(?<=[ )])and(?=[ (])", "", text)
    return re.findall(r"[A-Za-z]+", text) if re.fullmatch(r"[A-Za-z,;(){}\[\] -]+", text) else []
