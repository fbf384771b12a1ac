"""Two models on the same problems: which of their samples can be compared, and what would make that wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .protocols import split_metric
from .scores import problem_score
from .stored import Stored


# what has to be the same of both; the number of samples may differ, and so may the engine
SAME = ("temperature", "max_new_tokens", "max_context", "top_p", "top_k", "prompt_style", "reward", "reward_source")


@dataclass(frozen=True)
class Pair:
    """Two models' samples of the problems that both have, in one order; and how many problems only one has."""

    first: Stored
    second: Stored
    lines: list[tuple[dict[str, Any], dict[str, Any]]]
    left_out: int

    def scores(self, metric: str) -> tuple[list[float], list[float]]:
        """The score of each problem, of both."""
        return tuple([problem_score(metric, line) for line in lines] for lines in zip(*self.lines, strict=True))

    def verdicts(self) -> tuple[list[list[bool]], list[list[bool]]]:
        """Whether each sample of each problem is right, of both."""
        return tuple(
            [[s["correct"] for s in line["samples"]] for line in lines] for lines in zip(*self.lines, strict=True)
        )


def make_pairs(
    first: Sequence[Stored], second: Sequence[Stored], names: tuple[str, str]
) -> tuple[list[Pair], list[str]]:
    """Pairs of equal sets and protocols, and in words what only one has.

    Raises:
        ValueError: nothing is in common; or a protocol, a gold or a prompt differs, which is named.
    """
    matched, ours, theirs = [], list(first), list(second)
    # equal names first; then a protocol that was changed, which may be no more than the number of samples
    for key in (lambda one: one.header["protocol"], lambda one: one.protocol):
        for one in list(ours):
            same = [o for o in theirs if o.header["set"] == one.header["set"] and key(o) == key(one)]
            if same:
                matched.append((one, same[0]))
                ours.remove(one)
                theirs.remove(same[0])
    alone = [f"{name} alone has {_what(one)}" for name, left in zip(names, (ours, theirs), strict=True) for one in left]
    if not matched:
        raise ValueError(f"there is nothing to compare: {'; '.join(alone) or 'no samples of these sets and protocols'}")
    return [make_pair(one, partner, names) for one, partner in matched], alone


def make_pair(first: Stored, second: Stored, names: tuple[str, str]) -> Pair:
    """The samples of two models on one set, side by side.

    Raises:
        ValueError: a setting, a gold or a prompt differs, or no problem is in common.
    """
    if first.path.resolve() == second.path.resolve():
        raise ValueError(f"{names[0]!r} and {names[1]!r} have the same samples, {first.path}: name two models")
    where = f"{names[0]!r} and {names[1]!r} on {_what(first)}"
    for key in SAME:
        values = [one.header.get(key) for one in (first, second)]
        if values[0] != values[1]:
            raise ValueError(
                f"{where} cannot be compared: {key} is {values[0]!r} and {values[1]!r}. Evaluate one of them again "
                "with the other's"
            )
    theirs = {line["id"]: line for line in second.lines}
    lines = [(line, theirs[line["id"]]) for line in first.lines if line["id"] in theirs]
    if not lines:
        raise ValueError(f"{where} have no problem in common, by the ids: check that it is one set")
    for what, content in (("answer or column", _gold), ("prompt", _prompt)):
        different = [a["id"] for a, b in lines if None not in (content(a), content(b)) and content(a) != content(b)]
        if different:
            raise ValueError(
                f"{where} cannot be compared: {len(different)} of {len(lines)} problems of the same id have another "
                f"{what}, {different[0]!r} for one. Evaluate both on one version of the set"
            )
    return Pair(first, second, lines, len(first.lines) + len(second.lines) - 2 * len(lines))


def metrics_of(pair: Pair, wanted: Sequence[str] | None) -> list[str]:
    """The metrics asked for, or those that both were evaluated by.

    Raises:
        ValueError: a metric wants more samples than there are, cannot be compared between different numbers of
            samples, or none is in common.
    """
    fewest, where = min(pair.first.samples, pair.second.samples), _what(pair.first)
    both = [m for m in pair.first.header["metrics"] if m in pair.second.header["metrics"]]
    for metric in wanted or ():
        if (most := split_metric(metric)[1]) > fewest:
            raise ValueError(f"--metrics {metric} wants {most} samples per problem, and of {where} there are {fewest}")
        if not _comparable(metric, pair):
            raise ValueError(
                f"--metrics {metric} depends on the number of samples, which is {pair.first.samples} and "
                f"{pair.second.samples} on {where}: take pass@k"
            )
    found = list(wanted) if wanted else [m for m in both if _comparable(m, pair)]
    if not found:
        raise ValueError(f"no metric of {where} can be compared: give --metrics pass@1")
    return found


def _comparable(metric: str, pair: Pair) -> bool:
    # best@k of n samples is biased by n
    return split_metric(metric)[0] != "best" or pair.first.samples == pair.second.samples


def _what(one: Stored) -> str:
    return f"{one.header['set']} ({one.header['protocol']})"


def _gold(line: dict[str, Any]) -> dict[str, Any]:
    # messages for one tokenizer are text for another: prompts are compared by their digests
    return {key: value for key, value in line["reference"].items() if key != "prompt"}


def _prompt(line: dict[str, Any]) -> str | None:
    return line.get("prompt")  # not in samples of 0.1
