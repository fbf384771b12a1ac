"""Undoes what wording and notation add to an answer, where the gold shows what is meant: articles, reasons, domains,
the text of a choice, numbers in words, vectors, matrices and derivatives in another notation."""

import re

from .asked import in_order
from .numerals import in_figures
from .read import DOUBT, Kind, read, without_label
from .rules import Rules


_YES = re.compile(r"(?i)(?P<word>yes|no|true|false)(?P<rest>(?: ?[^\w ]| (?:because|since|as)\b).*)?", re.DOTALL)
_WAVERS = re.compile(
    r"(?i)\b(?:yes|no(?! (?!wait)[a-z])|true|false|or|but|maybe|however|unless|depends|if|wait|actually|both|"
    r"sometimes)\b"
)
_LETTER = re.compile(r"\(?([A-Z])[).]?")
_CHOICE = re.compile(r"\(?([A-Z])[).:] *(?!or\b|and\b|[,/&|])(?P<text>\S.*)", re.DOTALL)
_MORE = re.compile(r"\([A-Za-z]\)(?!\^)|(?<![A-Za-z])(?!A [a-z]{3})[A-Z](?![A-Za-z])")
_PROSE = re.compile(r"[A-Za-z][A-Za-z -]*")
_ARTICLE = re.compile(r"(?i)^(?:an?|the) (?=[a-z]{3})")
_NAMES = re.compile(r"[A-Z][a-z]+(?: [A-Z][a-z]+)*")
_FALLING = re.compile(r" ?[<>] ?")
_DOMAIN = re.compile(
    r"[ ,;(]*(?:\b(?:for|where|with) |(?<=\()(?=[i-n] ?(?:\\g|\\in|>)))(?:all |any |every |each )?"
    r"(?:(?:positive |natural )?(?:integers?|numbers?) )?(?P<what>(?:(?:real|rational)s?(?: numbers?)? )?"
    r"\(?[a-z](?:, ?[a-z])*\)?)(?: ?(?:\\in ?\\mathbb ?\{? ?[A-Z] ?\}?(?:[\^_]\{?[^{}]*\}?)?|"
    r"(?:(?<=[i-n])|(?<=[i-n] ))(?:\\geq?|>) ?[01](?!\d)))?\)?(?= ?(?:,|;|and\b|or\b|$))"
)
_ZERO_TERM = re.compile(r" ?[+-] ?0 ?(?:\\cdot ?)?[A-Za-z](?![\w^(])|(?<![^=])0 ?[A-Za-z] ?\+ ?")
_VARIABLE = "(?P<name>[A-Za-z](?![A-Za-z]))"
_ORDER = r"(?P<order>[23]) ?\}?"
_DERIVATIVES = [
    re.compile(
        rf"\\frac ?\{{ ?d(?: ?\^ ?\{{? ?{_ORDER})? ?{_VARIABLE} ?\}} ?\{{ ?d ?[A-Za-z](?: ?\^ ?\{{? ?[23] ?\}}?)? ?\}}"
    ),
    re.compile(rf"(?<![A-Za-z\\])d{_VARIABLE} ?/ ?d[A-Za-z](?![A-Za-z])"),
    re.compile(rf"\\(?P<marks>d{{1,2}})ot(?![A-Za-z]) ?\{{? ?{_VARIABLE} ?\}}?"),
    re.compile(rf"(?<![A-Za-z\\]){_VARIABLE}(?P<marks>'{{1,3}}|\^ ?\{{ ?(?:\\prime ?){{2,3}}\}})(?: ?\([a-z]\))?"),
]


def reworded(answer: str, gold: str, rules: Rules) -> tuple[str, str, Rules]:
    """Answer and gold, both in normal form, in one wording and notation, and the rules by which they are judged."""
    choice = _CHOICE.fullmatch(answer) if _LETTER.fullmatch(gold) else None
    if choice and not _MORE.search(choice["text"]):
        return choice[1], gold, rules
    values = in_order(answer, gold, rules.problem)
    if values is not None:
        return *values, rules._replace(untupled=False)
    if rules.falls and read(gold).kind is Kind.LIST and not _FALLING.search(gold):
        answer = _as_list(answer, rules.falls)
    if len({match["what"] for match in _DOMAIN.finditer(answer)}) == 1 and not _DOMAIN.search(gold):
        answer = _DOMAIN.sub("", answer).strip()
    if "=" in gold and "=" in answer:
        answer = answer if _ZERO_TERM.search(gold) else _ZERO_TERM.sub("", answer)
        return _derivatives(answer), _derivatives(gold), rules
    unlabelled, gold = without_label(answer), in_figures(_bare(gold, gold))
    figures = in_figures(unlabelled)
    if figures == unlabelled or (":" in figures and ":" not in gold):  # 3 to 8 is no fraction
        figures = _bare(answer, gold)
    return figures, gold, rules


def _bare(text: str, gold: str) -> str:
    """A word without its article, a name without its sentence, and yes or no without its reasons."""
    yes = _YES.fullmatch(text) if _YES.fullmatch(gold) else None
    if yes:
        same = yes["word"].lower() == gold.lower()
        return text if _WAVERS.search(yes["rest"] or "") else gold if same else yes["word"]
    if _NAMES.fullmatch(gold) and text.startswith(f"{gold} ") and _NAMES.findall(text) == [gold]:
        return text if DOUBT.search(text.replace("least", "")) else gold
    if not _PROSE.fullmatch(text) or not _PROSE.fullmatch(gold):
        return text
    return _ARTICLE.sub("", without_label(text))


def _as_list(text: str, falls: str) -> str:
    """Cara > Ann > Bea as a list, turned round if the problem asks for the other order."""
    parts, signs = _FALLING.split(text), {sign.strip() for sign in _FALLING.findall(text)}
    if len(signs) != 1:
        return text
    return ", ".join(parts if signs == {falls} else reversed(parts))


def _derivatives(text: str) -> str:
    """Derivatives as symbols with an index, since math-verify reads them as 0: dx/dt, x' and \\dot x are one symbol."""

    def symbol(match: re.Match[str]) -> str:
        parts = {"order": None, "marks": "'", **match.groupdict()}
        order = parts["order"] or len(re.findall("'|d|prime", parts["marks"]))
        return f" {parts['name']}_{{{90 + int(order)}}} "

    for pattern in _DERIVATIVES:
        text = pattern.sub(symbol, text)
    return text
