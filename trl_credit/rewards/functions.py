"""Reward functions by name, and the check that their golds can be read.

They take the arguments that TRL's trainers pass (completions, and columns of the data set by name), so stock TRL
trainers can use them too.
"""

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..demo import TASKS, agent_reward, demo_reward
from ..support.conversation import asked_in, response_text
from ..support.functions import is_object_name, name_of, resolve_function
from .judging import Outcome, default_pool, extract_answer, read_gold
from .judging.extract import LONGEST_ANSWER
from .judging.pool import ANSWER_TIMEOUT, SLOW_ANSWERS
from .puzzles import IN_TEXT, knights_and_knaves_reward
from .reasoning_gym import reasoning_gym_reward


_TEXT = r"(?!\s*+<{0}>)(?:(?!<{0}>).)++"  # not empty, without any of some tags
_FORMATS = {  # by `tags`. What was matched is not tried again (++): a model may write a million line breaks
    True: rf"\s*+(?:<think>)?{_TEXT}</think>\s*+<answer>{_TEXT}</answer>\s*+".format("/?+(?:think|answer)"),
    False: rf"\s*+(?:<think>)?{_TEXT}</think>(?!\s*+\Z){_TEXT}".format("/?+think"),
}
_LOAD_TIMEOUT = 30.0  # seconds for a gold: long, since nothing waits for it and a busy machine must not matter


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
    """1 if the response's answer equals the gold, else 0.

    The answer is the last `\\boxed{…}`, else what follows the last `####`, else the last `<answer>`, else what follows
    "answer is" or "answer:", else bold text at the end. Text in `<think>` does not count. Equality is that of
    math-verify, made stricter (see `trl_credit.rewards.judging.equal`). An answer must be a value and not a copy of the
    problem. The order of words and letters counts. docs/answers.md has all rules. Answers are parsed in worker
    processes. One that needs more than `timeout`, or more than 2 GiB, counts as wrong and does not stop the run. Each
    answer first has a fifth of `timeout`; the first `slow_answers` that need more then have all of it. Logged per
    batch: `accuracy/timed_out`, of these `accuracy/over_budget`, `accuracy/failed`, `accuracy/unevaluated` (answers
    that still have to be worked out, right or not) and `accuracy/restated` (right answers that were copied).

    Args:
        completions (`list[str]` or `list[list[dict]]`):
            Responses, plain or conversational.
        answer (`list[str]`):
            Golds of the data set: a bare answer, or a solution with `#### answer` or `\\boxed{answer}`.
            `check_answers` says beforehand whether they can be read.
        prompts, problem (`list`, *optional*):
            The problems; the column `problem` is used if it exists. Without a problem the order of a list does not
            count, and copies of the problem are not detected.
        strict (`bool`, *optional*, defaults to `True`):
            `False` accepts every answer that equals the gold, evaluated or not.
        timeout (`float`, *optional*, defaults to 1.0):
            Seconds of processor time for one answer; a tenth of it for towers of powers and huge factorials.
        slow_answers (`int`, *optional*, defaults to 16):
            Number of different answers of a batch that may take more than a fifth of `timeout`; further ones are wrong.
            `None`: no maximum. The verdict of a faster answer does not depend on the others.
        log_metric (`Callable`, *optional*):
            Logger of a metric, passed by TRL.

    Returns:
        `list[float | None]`: one per response; `None` if there is no gold.
    """
    golds = ["" if gold is None else read_gold(gold) for gold in answer]
    problems = list(map(asked_in, prompts)) if prompts is not None else [""] * len(golds)
    if problem is not None:
        problems = [prompt if own is None else str(own) for own, prompt in zip(problem, problems, strict=True)]
    answers = [extract_answer(response_text(completion)) for completion in completions]
    rows = list(zip(answers, golds, problems, strict=True))
    judged = [i for i, (text, gold, _) in enumerate(rows) if text and gold and len(text) <= LONGEST_ANSWER]
    pairs, problems = [rows[i][:2] for i in judged], [rows[i][2] for i in judged]
    outcomes = default_pool().equal(pairs, problems=problems, strict=strict, timeout=timeout, slow_answers=slow_answers)
    right = {i for i, outcome in zip(judged, outcomes, strict=True) if outcome is Outcome.RIGHT}
    if log_metric is not None:
        counts = Counter(outcomes)
        counts[Outcome.TIMED_OUT] += counts[Outcome.OVER_BUDGET]
        for name in ("timed_out", "over_budget", "failed", "unevaluated", "restated"):
            log_metric(f"accuracy/{name}", float(counts[Outcome(name)]))
    return [float(i in right) if gold else None for i, gold in enumerate(golds)]


def format_reward(completions: list, *, tags: bool = True, **kwargs: Any) -> list[float]:
    """1 for `<think>…</think><answer>…</answer>`, each once, not empty, and nothing else; else 0.

    With `tags=False` any text may follow the thinking. The opening `<think>` may be missing, since some chat templates
    write it at the end of the prompt (DeepSeek-R1, arXiv 2501.12948, Table 1).
    """
    texts = map(response_text, completions)
    return [float(re.fullmatch(_FORMATS[tags], text, re.DOTALL) is not None) for text in texts]


def soft_overlong_punishment(
    completions: list, completion_ids: list[list[int]], *, max_length: int = 20_480, cache: int = 4_096, **kwargs: Any
) -> list[float]:
    """0 up to `max_length - cache` tokens, falling to −1 at `max_length`, −1 beyond (DAPO, arXiv 2503.14476, Eq. 13).

    It is added to the reward of correctness. TRL passes `completion_ids`. By name (`soft_overlong`), `max_length` is
    `max_completion_length`, and `cache` is a fifth of it, as in the paper. Lengths are in tokens.

    Raises:
        ValueError: `cache` is not in [1, `max_length`].
    """
    if not 1 <= cache <= max_length:
        raise ValueError(f"cache must be in [1, max_length={max_length}] tokens, got {cache}.")
    return [-min(max(len(ids) - (max_length - cache), 0) / cache, 1.0) for ids in completion_ids]


def check_answers(answers: Iterable[object]) -> None:
    """Checks that golds can be read, since the reward of an unreadable gold is always 0.

    A column of prose is unreadable, since it has solutions instead of answers; a single such gold among formulas is
    compared word by word.

    Raises:
        ValueError: golds cannot be read; the message shows the first of them.
    """
    golds = ["" if gold is None else read_gold(gold) for gold in answers]
    is_prose = [len(re.findall(r"(?<![\\A-Za-z])[A-Za-z]{3,}", IN_TEXT.sub(" ", gold))) >= 3 for gold in golds]
    of_prose = 2 * sum(is_prose) > len(golds)
    unread = {i for i, x in enumerate(golds) if not 0 < len(x) <= LONGEST_ANSWER or (of_prose and is_prose[i])}
    # most golds are numbers, which need no parser
    hard = [i for i, x in enumerate(golds) if i not in unread and not re.fullmatch(r"-?\d{1,300}(?:\.\d+)?", x)]
    outcomes = default_pool().equal([(None, golds[i]) for i in hard], timeout=_LOAD_TIMEOUT)
    unread.update(i for i, outcome in zip(hard, outcomes, strict=True) if outcome is not Outcome.RIGHT)
    if bad := sorted(unread):
        shown = ", ".join(f"row {i}: {golds[i][:80]!r}" for i in bad[:3])
        fix = "Choose another --answer_column or a --reward that reads it, or remove these rows."
        raise ValueError(f"{len(bad)} of {len(golds)} answers cannot be read as mathematics ({shown}). {fix}")


def default_reward(dataset_name: str) -> str:
    """The name of the reward that reads the answers of a data set."""
    if (task := dataset_name.partition(":")[0]) in TASKS:
        return TASKS[task].reward
    return {"knights_and_knaves_3ppl": "knights_and_knaves", "reasoning_gym": "reasoning_gym"}.get(task, "accuracy")


def resolve_reward(name: str, *, max_completion_length: int | None = None) -> Callable:
    """A reward function by name (a key of `REWARDS`), dotted path (`package.module.function`) or `file.py:function`.

    `soft_overlong` takes its limit from `max_completion_length` (tokens).

    Raises:
        ValueError: there is no such function.
    """
    if name == "soft_overlong" and max_completion_length is not None:
        limits = {"max_length": max_completion_length, "cache": max(1, max_completion_length // 5)}
        return functools.wraps(soft_overlong_punishment)(functools.partial(soft_overlong_punishment, **limits))
    return REWARDS[name] if name in REWARDS else resolve_function(name, what="reward", known=REWARDS)


def reward_names(functions: Sequence[Callable]) -> list[str] | None:
    """The names by which [`resolve_reward`] finds the functions of a trainer in another process; `None` if it does not
    find one of them, such as a reward model or a function of a notebook."""
    plain = [getattr(function, "__wrapped__", function) for function in functions]  # not the guard around it
    names = [next((name for name, known in REWARDS.items() if known is f), None) or name_of(f) for f in plain]
    return None if any(map(is_object_name, names)) else names


REWARDS: dict[str, Callable] = {
    "accuracy": accuracy_reward,
    "format": format_reward,
    "soft_overlong": soft_overlong_punishment,
    "knights_and_knaves": knights_and_knaves_reward,
    "reasoning_gym": reasoning_gym_reward,
    "demo": demo_reward,
    "demo_agent": agent_reward,
}
