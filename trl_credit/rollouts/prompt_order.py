"""Which rows of the data set are sampled for: in an order of their own, or by their last pass rates."""

import functools
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from accelerate.logging import get_logger

from ..config import CreditConfig
from ..support.digests import sha256
from ..support.files import write_atomically
from .prompt_rates import PROMPT_RATES_FILE, PromptRate, prompt_digest, read_rates


logger = get_logger(__name__)


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
            With `prompt_sampler`, `prompt_floor`, `retire_above`, `prompt_rates`, `seed` and `shuffle_dataset`.
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
        # of the prompt of a row, see `prompt_digest`
        self.digest: Callable[[int], str] = functools.cache(lambda row: prompt_digest(prompt_of(row)))
        self._by_difficulty = config.prompt_sampler == "difficulty"
        self.setting = "prompt_sampler='difficulty'" if self._by_difficulty else f"groups={config.groups!r}"
        self._rates = np.full(rows, np.nan)  # shape (N,); NaN: not known
        self._groups = np.zeros(rows, dtype=np.int64)  # shape (N,); groups sampled in this run
        self._listed = np.zeros(rows, dtype=bool)  # shape (N,); has a line in the file
        self._draws = 0
        self._epoch, self._position = 0, 0  # of the permutations
        self._permutation = self._permuted()
        self._has_warned = False
        if self._by_difficulty and config.prompt_rates is not None:
            self._start_from(config.prompt_rates)

    def draw(self, count: int, *, besides: Collection[int] = ()) -> list[int]:
        """`count` different rows, in the order in which they are drawn.

        Args:
            count (`int`):
                Number of rows.
            besides (collection of `int`, *optional*):
                Rows that are not drawn: those already in the generation batch.

        Raises:
            ValueError: the data set has fewer other rows. Nothing has changed then.
        """
        taken = set(besides)
        if count > self.rows - len(taken):
            what = f"{self.setting} needs {count} more prompts beside {len(taken)} of the same generation batch"
            fix = "give more rows, or lower per_device_train_batch_size, gradient_accumulation_steps or"
            raise ValueError(f"{what}, and the data set has {self.rows} rows: {fix} steps_per_generation.")
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

        Raises:
            ValueError: a rate is outside [0, 1]. Nothing has changed then.
        """
        if wrong := [rate for rate in rates if rate < 0.0 or rate > 1.0]:
            what = f"the pass rate {wrong[0]} is not in [0, 1]"
            raise ValueError(f"{what}: set reward_range to the range of the rewards.")
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
        seen = self._listed & ((self._groups > 0) | np.isnan(self._rates))
        stats = {"prompts_seen": float(seen.mean())}
        if self._by_difficulty:
            stats["prompts_retired"] = float((self._weights() == 0.0).mean())
        return stats | ({"pass_rate": float(known.mean())} if known.size else {})

    def write(self, path: str | Path) -> None:
        """Writes `prompt_rates.jsonl`, whole or not at all: a line for each row that was drawn, or whose rate is known.
        Rows are in the order of the data set. A file with this content is left alone."""
        lines = []
        for row in np.flatnonzero(self._listed).tolist():
            rate = None if np.isnan(self._rates[row]) else float(self._rates[row])
            lines.append(PromptRate(row, self.digest(row), rate, int(self._groups[row])).to_json() + "\n")
        path, content = Path(path), "".join(lines).encode()
        if not path.is_file() or path.read_bytes() != content:
            write_atomically(path, content)

    def state_dict(self, folder: Path) -> dict[str, Any]:
        """Number of draws and position in the permutations. The rates go into `prompt_rates.jsonl` in `folder`."""
        path = Path(folder) / PROMPT_RATES_FILE
        self.write(path)
        position = {"epoch": self._epoch, "position": self._position}
        return {"rows": self.rows, "draws": self._draws, **position, "sha256": sha256(path.read_bytes())}

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
        for line in lines:
            self._rates[line.row] = np.nan if line.rate is None else line.rate
            self._groups[line.row], self._listed[line.row] = line.groups, True
        self._draws, self._epoch, self._position = (int(state[name]) for name in ("draws", "epoch", "position"))
        self._permutation = self._permuted()

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
            if not self._has_warned:
                knobs = f"prompt_floor={self._config.prompt_floor} and retire_above={self._config.retire_above}"
                what = "%s leave too few prompts for a batch: the other %d were drawn from those without weight"
                logger.warning(f"{what}. Raise prompt_floor or retire_above, or give more rows", knobs, missing)
            self._has_warned = True
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
        # ends: a whole permutation has every row that is neither taken nor drawn, and `draw` has counted them
        while len(drawn) < count:
            if self._position == self.rows:
                self._epoch, self._position = self._epoch + 1, 0
                self._permutation = self._permuted()
            row = int(self._permutation[self._position])
            self._position += 1
            if row not in taken:
                taken.add(row)
                drawn.append(row)
        return drawn

    def _permuted(self) -> np.ndarray:
        """The rows in the order of the current epoch."""
        if not self._config.shuffle_dataset:
            return np.arange(self.rows)
        return np.random.default_rng([self._config.seed, self._epoch]).permutation(self.rows)
