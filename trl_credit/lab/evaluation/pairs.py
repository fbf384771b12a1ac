"""Two models on the same problems: which of their samples can be compared."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .protocols import split_metric
from .sample_store import StoredSamples
from .scores import problem_score


# header fields that must agree; the number of samples, the seed and the engine may differ
SAME = (
    *("temperature", "max_new_tokens", "max_context", "top_p", "top_k"),
    *("prompt_style", "chat_template_kwargs", "reward", "reward_source"),
)


@dataclass(frozen=True)
class Pair:
    """Samples of two models on the problems that both have, in one order.

    Attributes:
        first, second: The files.
        lines: The lines of both files for each problem.
        left_out: Number of problems that only one of them has.
    """

    first: StoredSamples
    second: StoredSamples
    lines: list[tuple[dict[str, Any], dict[str, Any]]]
    left_out: int

    def scores(self, metric: str) -> tuple[list[float], list[float]]:
        """The score of each problem, for both models."""
        return self._by_model(lambda line: problem_score(metric, line))

    def verdicts(self) -> tuple[list[list[bool]], list[list[bool]]]:
        """Whether each sample of each problem is right, for both models."""
        return self._by_model(lambda line: [sample["correct"] for sample in line["samples"]])

    def _by_model(self, read: Callable[[dict[str, Any]], Any]) -> tuple[list, list]:
        return [read(line) for line, _ in self.lines], [read(line) for _, line in self.lines]


def select(
    stored: Iterable[StoredSamples], sets: Sequence[str] | None, protocols: Sequence[str] | None
) -> list[StoredSamples]:
    """The samples of the given sets and protocols; `None` for all."""
    return [
        one
        for one in stored
        if (sets is None or one.header["set"] in sets) and (protocols is None or one.protocol in protocols)
    ]


def make_pairs(
    first: Sequence[StoredSamples], second: Sequence[StoredSamples], names: tuple[str, str]
) -> tuple[list[Pair], list[str]]:
    """Pairs of equal sets and protocols, and sentences on the samples that only one model has.

    Raises:
        ValueError: nothing is in common, or a setting, a gold or a prompt differs; the message names it.
    """
    matched, ours, theirs = [], list(first), list(second)
    # equal labels first; then a changed protocol, which may differ in nothing but the number of samples
    for key in (lambda one: one.header["protocol"], lambda one: one.protocol):
        for one in list(ours):
            same = [o for o in theirs if o.header["set"] == one.header["set"] and key(o) == key(one)]
            if same:
                matched.append((one, same[0]))
                ours.remove(one)
                theirs.remove(same[0])
    alone = [f"only {name} has {one.label}" for name, left in zip(names, (ours, theirs), strict=True) for one in left]
    if not matched:
        raise ValueError(f"there is nothing to compare: {'; '.join(alone) or 'no samples of these sets and protocols'}")
    return [make_pair(one, partner, names) for one, partner in matched], alone


def make_pair(first: StoredSamples, second: StoredSamples, names: tuple[str, str]) -> Pair:
    """The samples of two models on one set, side by side.

    Raises:
        ValueError: a setting, a gold or a prompt differs, or no problem is in common.
    """
    if first.path.resolve() == second.path.resolve():
        raise ValueError(f"{names[0]!r} and {names[1]!r} have the same samples, {first.path}: name two models")
    where = f"{names[0]!r} and {names[1]!r} on {first.label}"
    for key in SAME:
        values = [one.header.get(key) for one in (first, second)]
        if values[0] != values[1]:
            differ = f"{key} is {values[0]!r} and {values[1]!r}"
            raise ValueError(f"{where} cannot be compared: {differ}. Evaluate one of them again with the other's")
    partners = {line["id"]: line for line in second.lines}
    lines = [(line, partners[line["id"]]) for line in first.lines if line["id"] in partners]
    if not lines:
        raise ValueError(f"{where} have no problem id in common: check that it is one set")
    for what, read in (("answer or column", _gold), ("prompt", lambda line: line["prompt"])):
        different = [a["id"] for a, b in lines if read(a) != read(b)]
        if different:
            which = f"problems of the same id have another {what}, such as {different[0]!r}"
            raise ValueError(
                f"{where} cannot be compared: {len(different)} of {len(lines)} {which}. Use one set for both"
            )
    return Pair(first, second, lines, len(first.lines) + len(second.lines) - 2 * len(lines))


def comparable_metrics(pair: Pair, asked: Sequence[str] | None) -> list[str]:
    """The metrics asked for, or those that both models were evaluated by.

    Raises:
        ValueError: a metric needs more samples than there are or cannot be compared between different numbers of
            samples, or no metric is in common.
    """
    counts, where = (pair.first.samples, pair.second.samples), pair.first.label

    def is_comparable(metric: str) -> bool:  # the bias of best@k depends on the number of samples
        return split_metric(metric)[0] != "best" or counts[0] == counts[1]

    for metric in asked or ():
        if (k := split_metric(metric)[1]) > min(counts):
            raise ValueError(f"--metrics {metric} needs {k} samples per problem, and {where} has {min(counts)}")
        if not is_comparable(metric):
            numbers = f"{counts[0]} and {counts[1]} on {where}"
            raise ValueError(f"--metrics {metric} depends on the number of samples, which is {numbers}: use pass@k")
    both = [metric for metric in pair.first.header["metrics"] if metric in pair.second.header["metrics"]]
    found = list(asked or [metric for metric in both if is_comparable(metric)])
    if not found:
        raise ValueError(f"no metric of {where} can be compared: give --metrics pass@1")
    return found


def _gold(line: dict[str, Any]) -> dict[str, Any]:
    # prompts are messages for one tokenizer and text for another: their digests are compared instead
    return {key: value for key, value in line["reference"].items() if key != "prompt"}
