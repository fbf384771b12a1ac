"""Which rows of the data set a batch is sampled for: the trainer's, rows drawn by pass rate, or further ones.

`prompt_rates.jsonl` holds the last pass rate of each prompt of a run, for resumes, later runs and `eval`.
"""

import functools
import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from accelerate.logging import get_logger
from accelerate.utils import gather_object

from ..config import CreditConfig
from ..credit.difficulty import group_accuracy
from ..support.digests import json_text, sha256
from ..support.files import check_size, write_atomically
from .policy import Policy


logger = get_logger(__name__)

Call = TypeVar("Call")

PROMPT_RATES_FILE = "prompt_rates.jsonl"  # in the folder of a run and in each of its checkpoints


class PromptRate(NamedTuple):
    """One line of the file.

    Attributes:
        row: Number of the row in the data set.
        prompt: Digest of its prompt, see [`prompt_digest`].
        rate: Last pass rate in [0, 1], or `None` if no group of the row was scored.
        groups: Groups that this run sampled for the row. 0 beside a rate: the rate is an earlier run's.
    """

    row: int
    prompt: str
    rate: float | None
    groups: int

    @property
    def sampled(self) -> bool:
        """Whether this run drew the row or sampled for it: the row does more than carry an earlier run's rate."""
        return self.groups > 0 or self.rate is None


def prompt_digest(prompt: Any) -> str:
    """16 hexadecimal digits (BLAKE2b) of a prompt, text, messages or tokens: the same in every process and run."""
    return hashlib.blake2b(json_text(prompt).encode(), digest_size=8).hexdigest()


def read_rates(path: str | Path) -> Iterator[PromptRate]:
    """The lines of a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is too large, or a line is damaged. The message has its number, from 1.
    """
    check_size(path)
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                content = json.loads(line)
                row, prompt, rate, groups = (content[name] for name in PromptRate._fields)
                is_valid = min(row, groups) >= 0 and len(prompt) == 16 and (rate is None or 0.0 <= rate <= 1.0)
            except (ValueError, KeyError, TypeError, RecursionError):
                is_valid = False
            if not is_valid:
                raise ValueError(f"line {number} is damaged")
            yield PromptRate(row, prompt, rate, groups)


class PromptOrder:
    r"""
    Draws rows of a data set by number, and keeps the last pass rate of each.

    With `prompt_sampler="difficulty"` a row has the weight w = max(p(1 − p), `prompt_floor`), p being its last pass
    rate, or 1/2 before the first one. A rate above `retire_above` gives w = 0. Rows are drawn one after the other
    without replacement, with probabilities in proportion to w among those that are left: the largest log(u)/w, u
    uniform in (0, 1] (Efraimidis and Spirakis, 2006). Draw k is a function of the seed, k and the rates.

    With `prompt_sampler="data"` the rows come in permutations of the whole data set, one after the other, from `seed`
    and the number of the permutation; in the order of the data with `shuffle_dataset=False`. A row that is already in
    the batch is passed over, and comes again in the next permutation.

    All processes make the same calls and get the same rows. No global random generator is read.

    Args:
        config ([`CreditConfig`]):
            It has `prompt_sampler`, `prompt_floor`, `retire_above`, `prompt_rates`, `seed` and `shuffle_dataset`.
        rows (`int`):
            Number of rows N of the data set.
        prompt_of (`Callable[[int], Any]`):
            The prompt of a row, text or messages. Called for rows of the file alone, and for all rows if `prompt_rates`
            is set.

    Raises:
        ValueError: the file `prompt_rates` is missing, damaged, or has no rate of any row.
    """

    name = "prompts"

    def __init__(self, config: CreditConfig, *, rows: int, prompt_of: Callable[[int], Any]) -> None:
        self._config, self.rows = config, rows
        self.digest = functools.cache(lambda row: prompt_digest(prompt_of(row)))
        self._by_difficulty = config.prompt_sampler == "difficulty"
        self.setting = "prompt_sampler='difficulty'" if self._by_difficulty else f"groups={config.groups!r}"
        self._rates = np.full(rows, np.nan)  # shape (N,); NaN: not known
        self._groups = np.zeros(rows, dtype=np.int64)  # shape (N,); groups sampled in this run
        self._listed = np.zeros(rows, dtype=bool)  # shape (N,); has a line in the file
        self._draws = 0
        self._turn = 0  # place in the sequence of permutations
        self._permutation = functools.lru_cache(maxsize=1)(self._permuted)
        self._warn_once = functools.cache(logger.warning)
        if self._by_difficulty and config.prompt_rates is not None:
            self._start_from(config.prompt_rates)

    def draw(self, count: int, *, besides: Collection[int] = ()) -> list[int]:
        """`count` different rows, in the order in which they are drawn.

        Args:
            count (`int`):
                Number of rows. The data set must have as many others.
            besides (collection of `int`, *optional*):
                Rows that are not drawn: those already in the generation batch.
        """
        taken = set(besides)
        drawn = self._by_weight(count, taken) if self._by_difficulty else self._in_turn(count, taken)
        self._draws += 1
        self._listed[drawn] = True
        return drawn

    def note(self, rows: Sequence[int], rates: Sequence[float]) -> None:
        """Keeps the last pass rates of rows for which a group has just been sampled.

        Args:
            rows (sequence of `int`):
                Numbers of the rows, one per group.
            rates (sequence of `float`):
                Their pass rates in [0, 1]. NaN, a group without a score, leaves the row's earlier rate.
        """
        for row, rate in zip(rows, rates, strict=True):
            self._groups[row] += 1
            self._listed[row] = True
            if not np.isnan(rate):
                self._rates[row] = rate

    def stats(self) -> dict[str, float]:
        """For metrics: the share of rows that this run has sampled for (`prompts_seen`), the share of weight 0,
        which are not drawn again (`prompts_retired`, only with `prompt_sampler="difficulty"`), and the mean of the last
        pass rates (`pass_rate`, absent before the first)."""
        known = self._rates[~np.isnan(self._rates)]
        stats = {"prompts_seen": float((self._listed & ((self._groups > 0) | np.isnan(self._rates))).mean())}
        if self._by_difficulty:
            stats["prompts_retired"] = float((self._weights() == 0.0).mean())
        return stats | ({"pass_rate": float(known.mean())} if known.size else {})

    def write(self, path: str | Path) -> None:
        """Writes `prompt_rates.jsonl`, whole or not at all: a line for each row that was drawn, or whose rate is known.
        Rows are in the order of the data set. A file with this content is left alone."""
        lines = []
        for row in np.flatnonzero(self._listed).tolist():
            rate = None if np.isnan(self._rates[row]) else float(self._rates[row])
            line = PromptRate(row, self.digest(row), rate, int(self._groups[row]))
            lines.append(json.dumps(line._asdict(), allow_nan=False) + "\n")
        path, content = Path(path), "".join(lines).encode()
        if not path.is_file() or path.read_bytes() != content:
            write_atomically(path, content)

    def state_dict(self, folder: Path) -> dict[str, Any]:
        """Number of draws and position in the permutations. The rates go into `prompt_rates.jsonl` in `folder`."""
        path = Path(folder) / PROMPT_RATES_FILE
        self.write(path)
        epoch, position = divmod(self._turn, self.rows)
        state = {"rows": self.rows, "draws": self._draws, "epoch": epoch, "position": position}
        return state | {"sha256": sha256(path.read_bytes())}

    def load_state_dict(self, state: dict[str, Any], folder: Path) -> None:
        """Restores what `state_dict` returned and wrote, in place of what `prompt_rates` gave.

        Raises:
            ValueError: the data set has another number of rows, or the file is missing or was changed. Nothing has
                changed then.
        """
        path = Path(folder) / PROMPT_RATES_FILE
        if state["rows"] != self.rows:
            raise ValueError(f"it is of {state['rows']} rows, and the data set has {self.rows}")
        try:
            if sha256(path.read_bytes()) != state["sha256"]:
                raise ValueError(f"the content of {path.name} is not what the checkpoint was written with")
            lines = list(read_rates(path))
        except OSError as error:
            raise ValueError(f"{path.name} cannot be read: {error}") from error
        self._rates[:], self._groups[:], self._listed[:] = np.nan, 0, False
        for row, _, rate, groups in lines:
            self._rates[row], self._groups[row], self._listed[row] = np.nan if rate is None else rate, groups, True
        self._draws, self._turn = int(state["draws"]), int(state["epoch"]) * self.rows + int(state["position"])

    def _start_from(self, path: str) -> None:
        setting, fix = f"prompt_rates={path!r}", "name the prompt_rates.jsonl of a run on this data, or leave it out"
        try:
            rate_of = {line.prompt: line.rate for line in read_rates(Path(path).expanduser()) if line.rate is not None}
        except (OSError, ValueError) as error:
            raise ValueError(f"{setting} cannot be read ({error}): {fix}.") from error
        for row in range(self.rows):
            if (rate := rate_of.get(self.digest(row))) is not None:
                self._rates[row], self._listed[row] = rate, True
        if not (matches := int(self._listed.sum())):
            raise ValueError(f"{setting}: none of its pass rates belongs to a prompt of the data: {fix}.")
        logger.info("%s: %d of %d rows of the data start with a pass rate", setting, matches, self.rows)

    def _by_weight(self, count: int, taken: set[int]) -> list[int]:
        # random() is in [0, 1)
        log_u = np.log1p(-np.random.default_rng([self._config.seed, self._draws]).random(self.rows))
        weights = self._weights()
        is_free = np.ones(self.rows, dtype=bool)
        is_free[list(taken)] = False
        weighted = np.flatnonzero(is_free & (weights > 0.0))
        with np.errstate(over="ignore"):  # w may be so small that the key is −∞, the last of all
            keys = log_u[weighted] / weights[weighted]
        drawn = weighted[np.argsort(-keys, kind="stable")][:count].tolist()
        if missing := count - len(drawn):
            knobs = f"prompt_floor={self._config.prompt_floor} and retire_above={self._config.retire_above}"
            what = f"{knobs} leave too few prompts for a batch: the others are drawn from those without weight"
            self._warn_once(f"{what}. Raise prompt_floor or retire_above, or give more rows")
            others = np.flatnonzero(is_free & (weights == 0.0))
            drawn += others[np.argsort(-log_u[others], kind="stable")][:missing].tolist()
        return drawn

    def _weights(self) -> np.ndarray:
        """w of each row, shape (N,)."""
        p = np.where(np.isnan(self._rates), 0.5, self._rates)
        weights = np.maximum(p * (1.0 - p), self._config.prompt_floor)
        if self._config.retire_above is not None:
            weights[self._rates > self._config.retire_above] = 0.0  # NaN is above nothing
        return weights

    def _in_turn(self, count: int, taken: set[int]) -> list[int]:
        drawn: list[int] = []
        # ends: a whole permutation has every row that is neither taken nor drawn, and there are enough of them
        while len(drawn) < count:
            epoch, position = divmod(self._turn, self.rows)
            row = int(self._permutation(epoch)[position])
            self._turn += 1
            if row not in taken:
                taken.add(row)
                drawn.append(row)
        return drawn

    def _permuted(self, epoch: int) -> np.ndarray:
        """The rows in the order of an epoch."""
        if not self._config.shuffle_dataset:
            return np.arange(self.rows)
        return np.random.default_rng([self._config.seed, epoch]).permutation(self.rows)


class Prompts:
    """Rows of the data set for a policy, every prompt repeated `group_size` times, in equal shares for all processes.

    Args:
        policy ([`Policy`]):
            Reads the rows.
        order ([`PromptOrder`] or `None`):
            Draws their numbers; `None` if all rows come from the trainer.
    """

    def __init__(self, policy: Policy, order: PromptOrder | None) -> None:
        self._policy, self._order = policy, order
        self.stateful: tuple[Any, ...] = () if order is None else (order,)
        self._in_batch: list[int] = []  # rows drawn for the current batch, and rows with a prompt that it has
        self._prompts: set[str] = set()  # digests of prompts of the batch that were not drawn here
        self._last: list[int] = []  # rows drawn for the last call of the engine
        self._stats: dict[str, tuple[int, int]] = {}  # what is logged of the groups of the current batch
        self.warn_once = functools.cache(functools.partial(logger.warning, f"groups={policy.args.groups!r}: %s"))

    def begin(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """This process's rows of a new batch: `inputs`, those of the trainer, or as many drawn by difficulty.
        Collective."""
        self._in_batch, self._prompts, self._last, self._stats = [], set(), [], {}
        if self._order is None:
            return inputs
        if self._policy.args.prompt_sampler == "difficulty":
            return self._further(len(inputs) * self._policy.processes.count // self._policy.group_size)
        own = [prompt_digest(row.get("prompt")) for row in inputs]
        self._prompts = {digest for part in gather_object([own]) for digest in part}
        return inputs

    def fill(
        self, inputs: list[dict[str, Any]], sample: Callable[[list[dict[str, Any]]], tuple[Call, list[bool]]]
    ) -> tuple[list[Call], list[bool]]:
        """Samples a batch and, with `groups="refill"`, further prompts until as many groups have signal as `inputs` has
        prompts. Collective.

        It ends earlier after `max_refills` further calls, or where the data has no other prompts.

        Args:
            inputs (`list[dict]`):
                This process's rows of the batch.
            sample (`Callable`):
                Returns what it sampled for rows, and whether each group of all processes has signal.

        Returns:
            `tuple[list, list[bool]]`: what each call sampled; whether each group of all calls has signal.
        """
        config = self._policy.args
        call, has_signal = sample(inputs)
        calls, wanted = [call], len(has_signal)
        if config.groups == "refill":
            while rows := self._refill(has_signal, wanted=wanted, refills=len(calls) - 1):
                call, flags = sample(rows)
                calls, has_signal = [*calls, call], has_signal + flags
        if config.groups != "keep":
            signal, sampled = sum(has_signal), len(has_signal)
            self._stats = {"signal": (signal, sampled), "sampled": (sampled, 1), "calls": (len(calls), 1)}
        return calls, has_signal

    def _refill(self, has_signal: list[bool], *, wanted: int, refills: int) -> list[dict[str, Any]]:
        """This process's rows of at most `wanted` further prompts, for a batch of `wanted` groups with signal; none if
        the batch stays as it is. They are enough if signal stays as frequent as in `has_signal`."""
        most, useful, processes = self._policy.args.max_refills, sum(has_signal), self._policy.processes
        if useful >= wanted:
            return []
        if refills == most:
            self.warn_once(f"max_refills={most} further calls did not fill a batch of {wanted} groups")
            return []
        needed = min(wanted, math.ceil((wanted - useful) * len(has_signal) / max(useful, 1)))
        unit = processes.count // math.gcd(processes.count, self._policy.group_size)
        left = self._order.rows - len(self._in_batch)
        if (count := min(math.ceil(needed / unit) * unit, left // unit * unit, wanted)) == 0:
            self.warn_once("the data set has no further prompts for a batch: give more rows, or lower the batch size")
            return []
        return self._further(count)

    def _further(self, groups: int) -> list[dict[str, Any]]:
        """This process's rows of so many further prompts, which the batch does not have while the data has others."""
        processes, size, known = self._policy.processes, self._policy.group_size, []
        self._last = []
        while missing := groups - len(self._last):
            if (left := self._order.rows - len(self._in_batch)) == 0:
                self._last += known[:missing]
                break
            for row in self._order.draw(min(missing, left), besides=self._in_batch):
                (known if self._order.digest(row) in self._prompts else self._last).append(row)
                self._in_batch.append(row)
        share = groups * size // processes.count
        repeated = [row for row in self._last for _ in range(size)]
        return self._policy.data_rows(repeated[processes.rank * share : (processes.rank + 1) * share])

    def note(self, correct: torch.Tensor) -> None:
        """Takes the pass rates of the prompts drawn last from the correctness (N,) of their responses, NaN if unknown.

        A refill without the sampler notes no rates, only that the rows were sampled: `reward_range` does not act there.
        """
        if self._last:
            config = self._policy.args
            correct = correct if config.prompt_sampler == "difficulty" else torch.full_like(correct, math.nan)
            size = len(correct) // len(self._last)
            rates = group_accuracy(correct, num_generations=size, reward_range=config.reward_range)
            self._order.note(self._last, rates.tolist())

    def record(self, **counts: int) -> None:
        """Logs what is known of the groups of the batch, with further `counts`, and of the data set. Collective outside
        of a training step."""
        stats = self._stats | {name: (count, 1) for name, count in counts.items()} if self._stats else {}
        stats = {f"groups/{name}": parts for name, parts in stats.items()}
        if self._policy.args.prompt_sampler == "difficulty":
            stats |= {name: (value, 1) for name, value in self._order.stats().items()}
        if stats:
            self._policy.record(stats)
