"""Cleaning of problem sets: LaTeX eaten by string escapes, duplicates, conflicting golds, overlap with evaluation sets.

Rows are plain dicts with `id`, `problem` and `answer`.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


SHORTEST_OPENING = 40  # normalised characters; shorter problems count as overlap only if they are equal

_CHINESE = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
_END = r"(?![A-Za-z])"
# what is left of a command after an escape; \t + "an" and \n + "u" are not listed, since they may be meant as they are
_EATEN = {
    "\a": ("a", r"(?:lpha|ngle|pprox)"),
    "\b": ("b", r"(?:egin|inom|eta|ar|oldsymbol|mod|ullet)"),
    "\t": ("t", r"(?:imes|ext(?:bf|it|rm)?|heta|riangle|au|frac|herefore|ilde)"),
    "\n": ("n", r"(?:abla|otin|eq(?!\s*=))"),
    "\v": ("v", r"(?:ec|arphi|arepsilon|arnothing|dots)"),
    "\f": ("f", r"(?:rac|orall)"),
    "\r": ("r", r"(?:ight(?:arrow)?|ho|ceil)"),
}
_EATEN_COMMANDS = [(re.compile(f"{re.escape(c)}(?={tail}{_END})"), rf"\\{a}") for c, (a, tail) in _EATEN.items()]
# tails and names that are not words of any language, after the escape or its backslash was lost
_LOST = re.compile(
    rf"(?<![\\A-Za-z])(?:(?P<f>rac)(?=\s?\{{)|(?P<t>imes|heta|riangle){_END}|(?P<b>egin|inom)(?=\{{)|(?P<a>lpha){_END})"
)
_NO_BACKSLASH = re.compile(r"(?:\\ |(?<![\\A-Za-z\"]))((?:[dt]?frac|sqrt) ?\{)")
# TeX's own code has the ligatures ff and fi at 0B and 0C; text from PDFs has them beside their letters, or alone
_LIGATURES = [
    (re.compile(r"(?<=fi)\f(?=[a-z])|\f(?=fi[a-z])|\f(?=\\frac)"), ""),
    (re.compile(r"(?<=ff)\v(?=[a-z])|\v(?=ff[a-z])"), ""),
    (re.compile(rf"\f(?=(?:nd|rst|ne|es|tting){_END})"), "fi"),
]
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")

_NORMAL = [
    (re.compile(r"\\[dt]frac"), r"\\frac"),
    (re.compile(r"\\([lgn]e)q(?![a-z])"), r"\\\1"),
    (re.compile(r"\\(?:left|right|displaystyle|limits|q?quad|text(?:bf|it|rm)?|math(?:rm|bf|it)|mbox)(?![a-z])"), ""),
    (re.compile(r"\\[,;:! ()\[\]]|[$~{}]|\s"), ""),
    (re.compile(r"(?<!\d)[.,]|[.,](?!\d)|[;:!?\"'`]"), ""),
]


@dataclass
class CleaningReport:
    """What was done with the rows of a set; `str()` of it is one line.

    Attributes:
        dropped: The ids of the rows that were dropped, by the reason.
    """

    name: str
    rows: int
    kept: int = 0
    repaired: int = 0
    dropped: dict[str, list[str]] = field(default_factory=dict)

    def drop(self, reason: str, rows: Iterable[dict]) -> None:
        """Counts rows as dropped."""
        if ids := [row["id"] for row in rows]:
            self.dropped.setdefault(reason, []).extend(ids)

    def __str__(self) -> str:
        examples = {reason: f"{', '.join(ids[:5])}{', …' * (len(ids) > 5)}" for reason, ids in self.dropped.items()}
        dropped = ", ".join(f"{len(self.dropped[reason]):,} {reason} ({ids})" for reason, ids in examples.items())
        parts = [f"dropped {dropped}"] if dropped else []
        parts += [f"repaired the LaTeX of {self.repaired:,}"] if self.repaired else []
        return "; ".join([f"{self.name}: {self.kept:,} of {self.rows:,} rows", *parts])


def repair_latex(text: str) -> str:
    """Restores commands that a string escape damaged (`\\f` + "rac" is `\\frac`) if only one command can be meant.

    Also restores ligatures that PDFs leave as control characters. Other text is returned unchanged.
    """
    for pattern, command in _EATEN_COMMANDS:
        text = pattern.sub(command, text)
    text = _LOST.sub(lambda m: f"\\{m.lastgroup}{m.group()}", text)
    text = _NO_BACKSLASH.sub(r"\\\1", text)
    for pattern, letters in _LIGATURES:
        text = pattern.sub(letters, text)
    return text


def is_damaged(text: str) -> bool:
    """Whether LaTeX is damaged: there is a control character other than white space, or something to repair."""
    return bool(_CONTROL.search(text)) or repair_latex(text) != text


def without_spaces(text: str) -> str:
    """The key that copies of a row share. Only white space is removed, since `+` instead of `-` changes the problem."""
    return "".join(text.split())


def normalise(text: str) -> str:
    """The key that a training row shares with an evaluation problem: NFKC and lower case, without spaces, dollars,
    braces, punctuation and spelling variants of LaTeX (`\\dfrac`, `\\left`, `\\,`, `\\leq` for `\\le`)."""
    text = unicodedata.normalize("NFKC", text).lower()
    for pattern, by in _NORMAL:
        text = pattern.sub(by, text)
    return text


def clean(
    rows: list[dict], *, name: str, drop: bool, english: bool = False, distinct: bool = False
) -> tuple[list[dict], CleaningReport]:
    """Repairs LaTeX, and drops rows that cannot be trained on. Other rows are unchanged and keep their order.

    Args:
        rows (`list[dict]`):
            Rows with a unique `id`, `problem` and `answer`.
        name (`str`):
            Name of the set, for the report.
        drop (`bool`):
            Whether rows that stay damaged and rows without a gold are dropped; evaluation sets stay whole.
        english (`bool`, *optional*, defaults to `False`):
            Whether rows with Chinese characters are dropped.
        distinct (`bool`, *optional*, defaults to `False`):
            Whether copies of a problem are dropped; all of them are if their golds differ.

    Returns:
        `tuple[list[dict], CleaningReport]`: the rows and the counts.
    """
    report = CleaningReport(name, rows=len(rows))
    kept, repaired = [], set()
    for row in rows:
        problem = repair_latex(row["problem"])
        if english and _CHINESE.search(row["problem"]):
            report.drop("Chinese", [row])
        elif drop and is_damaged(problem):
            report.drop("with damaged LaTeX", [row])
        elif drop and not (row["answer"] or "").strip():
            report.drop("without a gold", [row])
        else:
            if problem != row["problem"]:
                repaired.add(row["id"])
                row = {**row, "problem": problem}
            kept.append(row)
    if distinct:
        kept = _distinct(kept, report)
    report.repaired = sum(row["id"] in repaired for row in kept)
    report.kept = len(kept)
    return kept, report


def _distinct(rows: list[dict], report: CleaningReport) -> list[dict]:
    copies: dict[str, list[dict]] = {}
    for row in rows:
        copies.setdefault(without_spaces(row["problem"]), []).append(row)
    kept = []
    for group in copies.values():
        if len({row["answer"] for row in group}) > 1:
            report.drop("with conflicting golds", group)
        else:
            kept.append(group[0])
            report.drop("duplicates", group[1:])
    return kept


def find_overlap(problems: Iterable[str], evaluation: Mapping[str, Iterable[str]]) -> dict[str, list[int]]:
    """Row numbers of `problems` that are in an evaluation set, by the name of the first set that contains them.

    A row is in a set if it equals one of its problems under `normalise`, or begins with one: sets such as DAPO append
    the form of the answer to problems from other sets.
    """
    equal: dict[str, str] = {}
    openings: dict[str, list[tuple[str, str]]] = {}
    for name, texts in evaluation.items():
        for key in map(normalise, texts):
            equal.setdefault(key, name)
            if len(key) >= SHORTEST_OPENING:
                openings.setdefault(key[:SHORTEST_OPENING], []).append((key, name))
    rows: dict[str, list[int]] = {}
    for number, key in enumerate(map(normalise, problems)):
        candidates = openings.get(key[:SHORTEST_OPENING], [])
        name = equal.get(key) or next((n for start, n in candidates if key.startswith(start)), None)
        if name is not None:
            rows.setdefault(name, []).append(number)
    return rows
