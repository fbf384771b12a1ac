"""The reward of knights-and-knaves puzzles, which reads who is what from a response."""

import re
from typing import Any

from ..support.conversation import response_text
from .judging import extract_answer
from .judging.extract import after_thinking, answer_tag


IN_TEXT = re.compile(r"\\(?:text|mbox|textbf|mathrm)\{([^{}]*)\}")
# a role with these words before or after it in its sentence is not claimed
_UNSURE = re.compile(
    r"(?i)\b(?:not|or|if|whether|either|neither|nor|false|untrue|unless|maybe|perhaps|possibly|suppos\w+|assum\w+|cannot|"
    r"wrong|would|could|might|impossible|says?|said|claims?|claimed|one of|at least)\b|n't\b"
)
_UNSURE_AFTER = re.compile(r"(?i)^\s*/|\bor\b|\b(?:is|are|would be) (?:not true|false|untrue|wrong|impossible)\b|\?")
_SENTENCE_END = re.compile(r"[.;!]\s|\n")
_LONGEST_STATEMENT = 20_000  # characters of a response that may name knights and knaves


def knights_and_knaves_reward(
    completions: list, names: list[list[str]], truth: list[list[bool]], **kwargs: Any
) -> list[float]:
    """1 if the response says correctly of every inhabitant whether it is a knight or a knave, else 0.

    Only the last `<answer>` is read, or else the last box; every name must stand there with one role. In text without
    either, the last statements must name everybody once. Text in `<think>` does not count, and neither does a statement
    that is not a claim: "is a knight or a knave", "it is not true that Ann is a knight".

    Args:
        names (`list[list[str]]`): inhabitants of each puzzle.
        truth (`list[list[bool]]`): whether they are knights, in the same order.
    """
    rows = zip(map(response_text, completions), names, truth, strict=True)
    return [float(_roles(text, who) == dict(zip(who, map(bool, knights), strict=True))) for text, who, knights in rows]


def _roles(text: str, names: list[str]) -> dict[str, bool] | None:
    """Name → whether the response calls it a knight. `None` unless the response clearly gives everybody one role."""
    if (after := after_thinking(text)) is None:
        return None
    marked = answer_tag(after)
    if marked is None and ("\\boxed" in after or "\\fbox" in after):
        marked = extract_answer(after) or ""
    statements = IN_TEXT.sub(r"\1", (after if marked is None else marked)[-_LONGEST_STATEMENT:]).replace("\\ ", " ")
    name, is_a = f"({'|'.join(map(re.escape, names))})", r"(?:is|are|:|=|-)[*_]{0,3}\s{0,3}(?:an?\s)?[*_]{0,3}"
    # text, name, role, text, name, role, …, text
    parts = re.split(rf"(?i)\b{name}\b[*_]{{0,3}}\s{{0,3}}{is_a}(knight|knave)\b", statements)
    claims = list(zip(parts[::3], parts[1::3], parts[2::3], parts[3::3], strict=False))
    claims = claims if marked is not None else claims[max(0, len(claims) - len(names)) :]
    if any(_is_unsure(before, after) for before, _, _, after in claims):
        return None
    by_name = {name.lower(): name for name in names}
    roles = [(by_name[name.lower()], role.lower() == "knight") for _, name, role, _ in claims]
    is_knight = dict(roles)
    is_repeated = marked is None and len(is_knight) < len(roles)
    return is_knight if len(set(roles)) == len(is_knight) == len(names) and not is_repeated else None


def _is_unsure(before: str, after: str) -> bool:
    """Whether the sentence around a role does not claim it."""
    before, after = _SENTENCE_END.split(before)[-1], _SENTENCE_END.split(after)[0]
    return bool(_UNSURE.search(before) or _UNSURE_AFTER.search(after))
