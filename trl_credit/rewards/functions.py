"""Reward functions by name, and the check that their golds can be read.

They take what TRL's trainers pass (completions, and the columns of the data set by name): stock TRL trainers can use
them too.
"""

import functools
import logging
import re
from collections.abc import Callable, Iterable
from typing import Any

from ..demo import demo_reward
from ..names import resolve_function
from .judging import (
    ANSWER_TIMEOUT,
    LONGEST_ANSWER,
    SLOW_ANSWERS,
    Rules,
    asks_order,
    default_pool,
    extract_answer,
    is_product,
    names,
    read_gold,
    restated,
)
from .judging.extract import after_thinking, answer_tag
from .reasoning_gym import reasoning_gym_reward


__all__ = [
    "REWARDS",
    "accuracy_reward",
    "check_answers",
    "default_reward",
    "extract_answer",
    "format_reward",
    "knights_and_knaves_reward",
    "read_gold",
    "reasoning_gym_reward",
    "resolve_reward",
    "soft_overlong_punishment",
]

logger = logging.getLogger(__name__)

_THINKS = re.compile(r"\s*(?:<think>)?(?P<thought>.*?)</think>(?P<rest>.*)", re.DOTALL)
_TEXT = re.compile(r"\\(?:text|mbox|textbf|mathrm)\{([^{}]*)\}")
# a role with these words before or behind it in its sentence is not what the response says
_UNSURE = re.compile(
    r"(?i)\b(?:not|or|if|whether|either|neither|nor|false|untrue|unless|maybe|perhaps|possibly|suppos\w+|assum\w+|cannot|"
    r"wrong|would|could|might|impossible|says?|said|claims?|claimed|one of|at least)\b|n't\b"
)
_UNSURE_AFTER = re.compile(r"(?i)^\s*/|\bor\b|\b(?:is|are|would be) (?:not true|false|untrue|wrong|impossible)\b|\?")
_SENTENCE_END = re.compile(r"[.;!]\s|\n")
_LOAD_TIMEOUT = 30.0  # seconds for a gold: nothing waits for it, and a busy machine must not make it unreadable
_LONGEST_STATEMENT = 20_000  # characters of a response that may name knights and knaves


def accuracy_reward(
    completions: list,
    answer: list[str | None],
    *,
    prompts: list | None = None,
    problem: list[str | None] | None = None,
    strict: bool = True,
    timeout: float = ANSWER_TIMEOUT,
    slow_answers: int | None = SLOW_ANSWERS,
    log_metric: Callable[[str, float], None] | None = None,
    **kwargs: Any,
) -> list[float | None]:
    """1 where the response's answer equals the gold, else 0.

    The answer is the last `\\boxed{…}`, else what follows the last `####`, else an `<answer>`, else a line that says it
    is the answer or is bold; what stands in `<think>` is none. Equality is math-verify's, made stricter (see
    `trl_credit.rewards.judging.equal`). An answer must be a value and no copy of the problem, and words and letters are
    ordered: docs/data.md has the policy. Answers are parsed in worker processes: one that takes longer than `timeout`,
    or more than 2 GiB, is wrong and does no harm; nor do hundreds of them, of which all but `slow_answers` are ended
    after a fifth of it. Counted per batch: `accuracy/timed_out`, of these `accuracy/over_budget`, `accuracy/failed`,
    `accuracy/unevaluated` (answers that leave work to their reader, right or not) and `accuracy/restated` (right ones
    that were copied).

    Args:
        completions (`list[str]` or `list[list[dict]]`):
            Responses, plain or conversational.
        answer (`list[str]`):
            Golds, as in the data set: a bare answer, or a solution with `#### answer` or `\\boxed{answer}`.
            `check_answers` says beforehand whether they can be read.
        prompts, problem (`list`, *optional*):
            What was asked: `problem` is the column of that name, which is taken where it is there. Without either no
            list has an order and nothing is a copy.
        strict (`bool`, *optional*, defaults to `True`):
            `False` asks whether the answer equals the gold, however much of it is left to be worked out.
        timeout (`float`, *optional*, defaults to 1.0):
            Seconds of processor time for one answer; a tenth of them for towers of powers and huge factorials.
        slow_answers (`int`, *optional*, defaults to 16):
            Different answers of a batch that may take more than a fifth of `timeout`; further ones are wrong. `None`:
            all of them may. An answer that takes less is judged alike whatever the others do.
        log_metric (`Callable`, *optional*):
            As TRL passes it.

    Returns:
        `list[float | None]`: one per response; `None` where there is no gold.
    """
    golds = ["" if gold is None else read_gold(gold) for gold in answer]
    problems = _problems(len(golds), prompts, problem)
    found = [extract_answer(_text(completion)) for completion in completions]
    asked = [
        i
        for i, (text, gold) in enumerate(zip(found, golds, strict=True))
        if text and gold and len(text) <= LONGEST_ANSWER
    ]
    rules = [_rules(found[i], golds[i], problems[i]) if strict else Rules() for i in asked]
    verdicts, counts = default_pool().equal(
        [(found[i], golds[i]) for i in asked], rules=rules, timeout=timeout, slow_answers=slow_answers
    )
    right = [i for i, verdict in zip(asked, verdicts, strict=True) if verdict]
    copied = {i for i in right if strict and restated(found[i], golds[i], problems[i])}
    if log_metric is not None:
        log_metric("accuracy/timed_out", float(counts.timed_out))
        log_metric("accuracy/over_budget", float(counts.over_budget))
        log_metric("accuracy/failed", float(counts.failed))
        log_metric("accuracy/unevaluated", float(counts.unevaluated))
        log_metric("accuracy/restated", float(len(copied)))
    rewards: list[float | None] = [0.0 if gold else None for gold in golds]
    for i in right:
        rewards[i] = float(i not in copied)
    return rewards


def format_reward(completions: list, *, tags: bool = True, **kwargs: Any) -> list[float]:
    """1 for `<think>…</think><answer>…</answer>`, each once, none empty, and nothing else; else 0.

    With `tags=False` any text may follow the thinking. The opening `<think>` may be missing, since some chat templates
    write it at the end of the prompt (DeepSeek-R1, arXiv 2501.12948, Table 1).
    """
    return [float(_well_formed(_text(completion), tags)) for completion in completions]


def soft_overlong_punishment(
    completions: list,
    completion_ids: list[list[int]],
    *,
    max_length: int = 20_480,
    cache: int = 4_096,
    **kwargs: Any,
) -> list[float]:
    """0 up to `max_length - cache` tokens, falling to −1 at `max_length`, −1 beyond (DAPO, arXiv 2503.14476, Eq. 13).

    To be added to the reward of correctness. `completion_ids` are passed by TRL. By name (`soft_overlong`) it takes
    `max_completion_length` and, as in the paper, a fifth of it. Lengths are in tokens.

    Raises:
        ValueError: `cache` is not in [1, `max_length`].
    """
    if not 1 <= cache <= max_length:
        raise ValueError(f"cache must be in [1, max_length={max_length}] tokens, got {cache}.")
    return [-min(max(len(ids) - (max_length - cache), 0) / cache, 1.0) for ids in completion_ids]


def knights_and_knaves_reward(
    completions: list, names: list[list[str]], truth: list[list[bool]], **kwargs: Any
) -> list[float]:
    """1 where the response says of every inhabitant, and rightly, whether it is a knight or a knave; else 0.

    It looks into the last `<answer>`, else the last box, where every name must stand with one role only; in text
    without either, the last statements must name everybody once. What stands in `<think>` does not count, and neither
    does a statement that is no claim: "is a knight or a knave", "it is not true that Ann is a knight".

    Args:
        names (`list[list[str]]`): inhabitants of each puzzle.
        truth (`list[list[bool]]`): whether they are knights, in the same order.
    """
    return [
        float(_roles(_text(completion), who) == dict(zip(who, map(bool, knights), strict=True)))
        for completion, who, knights in zip(completions, names, truth, strict=True)
    ]


def check_answers(answers: Iterable[object]) -> None:
    """Raises a `ValueError` that shows the first golds that cannot be read: their reward would be 0 for ever.

    A column of prose counts as unreadable, since it is a solution rather than an answer; one such gold among formulas
    is compared word by word.
    """
    golds = ["" if gold is None else read_gold(gold) for gold in answers]
    is_prose = [len(re.findall(r"(?<![\\A-Za-z])[A-Za-z]{3,}", _TEXT.sub(" ", gold))) >= 3 for gold in golds]
    column_is_prose = 2 * sum(is_prose) > len(golds)
    asked = [
        i
        for i, gold in enumerate(golds)
        if gold and len(gold) <= LONGEST_ANSWER and not (column_is_prose and is_prose[i])
    ]
    # most golds are numbers, which need no parser
    numbers = [bool(re.fullmatch(r"-?\d{1,300}(?:\.\d+)?", golds[i])) for i in asked]
    hard = [i for i, number in zip(asked, numbers, strict=True) if not number]
    verdicts, _ = default_pool().equal([(None, golds[i]) for i in hard], timeout=_LOAD_TIMEOUT)
    readable = {i for i, number in zip(asked, numbers, strict=True) if number}
    readable |= {i for i, verdict in zip(hard, verdicts, strict=True) if verdict}
    bad = [i for i in range(len(golds)) if i not in readable]
    if bad:
        shown = ", ".join(f"row {i}: {golds[i][:80]!r}" for i in bad[:3])
        raise ValueError(
            f"{len(bad)} of {len(golds)} answers cannot be read as mathematics ({shown}). Choose another "
            "--answer_column or a --reward that reads it, or take these rows out."
        )


def default_reward(dataset_name: str) -> str:
    """The name of the reward that reads the answers of a data set."""
    task = dataset_name.partition(":")[0]
    return {"demo": "demo", "knights_and_knaves_3ppl": "knights_and_knaves", "reasoning_gym": task}.get(
        task, "accuracy"
    )


def resolve_reward(name: str, *, max_completion_length: int | None = None) -> Callable:
    """A reward function by name (a key of `REWARDS`), dotted path (`package.module.function`) or `file.py:function`.

    `soft_overlong` takes its limit from `max_completion_length` (tokens).

    Raises:
        ValueError: there is no such function.
    """
    if name == "soft_overlong" and max_completion_length is not None:
        limits = {"max_length": max_completion_length, "cache": max(1, max_completion_length // 5)}
        return functools.wraps(soft_overlong_punishment)(functools.partial(soft_overlong_punishment, **limits))
    if name in REWARDS:
        return REWARDS[name]
    return resolve_function(name, what="reward", known=REWARDS)


def _problems(size: int, prompts: list | None, problem: list[str | None] | None) -> list[str]:
    """What was asked: the column `problem`, else what the user said last in each prompt."""
    bare = problem if problem is not None else [None] * size
    asked = prompts if prompts is not None else [""] * size
    return [str(one) if one is not None else asked_in(prompt) for one, prompt in zip(bare, asked, strict=True)]


def asked_in(prompt: str | list[dict]) -> str:
    """The text of a prompt; of a conversation what the user said last."""
    if isinstance(prompt, str):
        return prompt
    said = [turn.get("content") for turn in prompt if turn.get("role") == "user"]
    content = said[-1] if said else ""
    if isinstance(content, list):  # blocks of text and images
        content = " ".join(str(block.get("text", "")) for block in content if isinstance(block, dict))
    return content if isinstance(content, str) else ""


def _rules(answer: str, gold: str, problem: str) -> Rules:
    """Strict ones; only lists have an order, and only letters are products."""
    letters = gold.strip()
    return Rules(
        strict=True,
        ordered="," in gold and asks_order(problem),
        products=letters.isalpha() and len(letters) > 1 and is_product(letters, problem),
        named="=" in answer and "=" not in gold and names(answer, problem),
    )


def _text(completion: str | list[dict]) -> str:
    """The text of a response; empty where a conversation ends without one, as in a call of a tool."""
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else None
    return content if isinstance(content, str) else ""


def _well_formed(text: str, tags: bool) -> bool:
    once = ("</think>", "<answer>", "</answer>") if tags else ("</think>",)
    if any(text.count(tag) != 1 for tag in once) or text.count("<think>") > 1:
        return False
    found = _THINKS.fullmatch(text)
    if found is None or "<think>" in found["thought"] + found["rest"] or not found["thought"].strip():
        return False
    rest = found["rest"].strip()
    if not tags:
        return bool(rest)
    inside = answer_tag(rest)
    return bool(inside) and rest.startswith("<answer>") and rest.endswith("</answer>")


def _roles(text: str, names: list[str]) -> dict[str, bool] | None:
    """Who is a knight by a response, or `None` if it does not say so of everybody, or not clearly."""
    after = after_thinking(text)
    if after is None:
        return None
    marked = answer_tag(after)
    if marked is None and ("\\boxed" in after or "\\fbox" in after):
        marked = extract_answer(after) or ""
    said = _TEXT.sub(r"\1", (after if marked is None else marked)[-_LONGEST_STATEMENT:]).replace("\\ ", " ")
    one_of = "|".join(map(re.escape, names))
    claims = list(
        re.finditer(
            rf"(?i)\b({one_of})\b[*_]{{0,3}}\s{{0,3}}(?:is|are|:|=|-)[*_]{{0,3}}\s{{0,3}}(?:an?\s)?[*_]{{0,3}}(knight|knave)\b",
            said,
        )
    )
    by_name = {name.lower(): name for name in names}
    first = 0 if marked is not None else max(0, len(claims) - len(names))
    ends = [0, *(claim.end() for claim in claims)]
    starts = [*(claim.start() for claim in claims[1:]), len(said)]
    for i in range(first, len(claims)):
        before = _SENTENCE_END.split(said[ends[i] : claims[i].start()])[-1]
        after = _SENTENCE_END.split(said[claims[i].end() : starts[i]])[0]
        if _UNSURE.search(before) or _UNSURE_AFTER.search(after):
            return None
    roles = [(by_name[claim[1].lower()], claim[2].lower() == "knight") for claim in claims[first:]]
    if marked is None and len({name for name, _ in roles}) < len(roles):
        return None
    found = dict(roles)
    return found if len(set(roles)) == len(found) == len(names) else None


REWARDS: dict[str, Callable] = {
    "accuracy": accuracy_reward,
    "format": format_reward,
    "soft_overlong": soft_overlong_punishment,
    "knights_and_knaves": knights_and_knaves_reward,
    "reasoning_gym": reasoning_gym_reward,
    "demo": demo_reward,
}
