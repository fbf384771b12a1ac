"""What an audit says: a sentence, tables, a page with ΔV under each token, and files with the numbers behind them."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from ...observe.schema import Shard
from ...support.files import write_atomically
from ..explain.credits import Explained
from ..statistics import holm
from ..tables import listed, markdown_table
from ..viewer import build_page
from ..viewer.excerpt import excerpt
from ..viewer.notebook import CreditView
from ..viewer.runs import MAX_TOKENS
from .scores import Estimate, compare
from .values import FIRST, Measured


CAVEAT = (
    "Measured at one point of training, at no learning rate: no promise of learning later on. Credit of one size has "
    "no bias, except by the division by the standard deviation. A trace has some. Brackets: 95 %, by a jackknife over "
    "batches (progress) or prompts. The columns: trl-credit help audit."
)
# columns of the table with their digits; the first five have an interval
_COLUMNS = {"progress": 3, "progress difference": 3, "aim": 2, "aim difference": 2, "aim of stretches": 2}
_WITH_INTERVAL = tuple(_COLUMNS)
_COLUMNS |= {"focus": 2, "sign": 2, "bias": 2, "signal": 2}
_KINDS = {"line break": r"[^\n]*\n[\s\S]*", "number": r"\s*\d+\s*", "word": r"\s*[^\W\d_]+\s*", "special": r"|<.*>"}


class Audit:
    """The result of [`~trl_credit.lab.audit.audit`]. A notebook shows its page, and `print` its tables.

    Args:
        measured (sequence of [`Measured`]):
            Responses with the rewards of their continuations.
        explained (`dict[str, list[Explained]]`):
            The credit of each batch by algorithm, the baseline first.
        continuations (`int`):
            Continuations of a state on average.
        notes (`list[str]`):
            How it was made, and what is left out.

    Attributes:
        gradients: Products of gradients by algorithm, see [`compare`]; empty without them.
        best: Progress of ΔV itself as credit, with its interval; NaN if it is not known.
    """

    def __init__(
        self,
        measured: Sequence[Measured],
        explained: Mapping[str, Sequence[Explained]],
        *,
        continuations: int,
        notes: list[str],
    ) -> None:
        self.measured, self.continuations, self.notes = measured, continuations, notes
        self.baseline, self.best, self.gradients = next(iter(explained)), Estimate(*4 * [math.nan]), {}
        self.shards: dict[str, Shard] = {}
        for name, of in explained.items():
            credited = [of[m.batch].shard.responses[m.place] for m in measured]
            shown = [r | {"group": measured[k].prompt, "index": k} for k, r in enumerate(credited)]
            self.shards[name] = Shard(of[0].shard.header | {"step": None}, {}, shown)
        self.values = [m.values(min(FIRST / continuations, 1.0)) for m in measured]
        self.is_complete = all((m.chosen[m.written] > 0).all() for m in measured)
        chosen = [(i, t) for i, m in enumerate(measured) if m.has_signal for t in np.flatnonzero(m.chosen)]
        self.tokens = self._spans([(i, t, t + 1) for i, t in chosen])

    def _spans(self, spans: Sequence[tuple[int, int, int]]) -> pd.DataFrame:
        """ΔV and the sums of credit of spans (response, state before, state after), a row each."""
        rows = []
        for i, begin, end in spans:
            m, (before, after) = self.measured[i], self.values[i][[begin, end]]
            row = {"response": i, "t": int(begin), "prompt": m.prompt, "chosen": m.chosen[begin] or 1.0}
            row |= {name: m.response[name][begin] for name in ("tokens", "entropy", "gini", "trainer_logprobs")}
            row |= dict(zip(("gain", "variance", "half_1", "half_2"), after + [-1, 1, -1, -1] * before, strict=True))
            row |= {f"credit: {name}": sum(of.responses[i]["credit"][begin:end]) for name, of in self.shards.items()}
            rows.append(row)
        return pd.DataFrame(rows).dropna(subset="gain").assign(weight=lambda x: x["gini"] / x["chosen"])

    def _compare(self, spans: pd.DataFrame, gradients: Mapping[str, np.ndarray]) -> dict[str, dict[str, Estimate]]:
        rewards = [m.response["reward"] for m in self.measured]
        credit = {name: spans[f"credit: {name}"].to_numpy() for name in self.shards}
        return compare(spans, credit, gradients, floor=(max(rewards) - min(rewards)) / self.continuations)

    @cached_property
    def scores(self) -> dict[str, dict[str, Estimate]]:
        """The measures of each algorithm, see [`compare`]. Where not all tokens are measured, "aim of stretches" is the
        cosine of the sums of credit and of ΔV between neighbouring states."""
        scores = self._compare(self.tokens, self.gradients)
        if not self.is_complete:
            points = [np.flatnonzero(~np.isnan(value[:, 0])) for value in self.values]
            # a state once, though a tool's tokens have its value too
            known = [np.unique(m.next_states[at]).tolist() for m, at in zip(self.measured, points, strict=True)]
            pairs = [(i, *p) for i, m in enumerate(self.measured) if m.has_signal for p in pairwise(known[i])]
            for name, of in self._compare(self._spans(pairs).assign(weight=1.0), {}).items():
                scores[name]["aim of stretches"] = of["aim"]
        return scores

    @property
    def sentence(self) -> str:
        """Which algorithms differ from the baseline, by Holm's correction, and what the best credit would gain."""
        own = self.scores[self.baseline].get("progress")
        has_progress = own is not None and own.value > 0
        measure = "progress difference" if has_progress else "aim difference"
        words = ("worth more", "worth less") if has_progress else ("aimed better", "aimed worse")
        known = {name: of[measure] for name, of in self.scores.items() if not math.isnan(of[measure].p)}
        is_shown = dict(zip(known, np.array(holm([x.p for x in known.values()])) < 0.05, strict=True))
        parts = ["On this model and task:"]
        for word, sign in zip(words, (1, -1), strict=True):
            if names := [name for name in known if is_shown[name] and known[name].value * sign > 0]:
                parts.append(f"Credit is {word} with {listed(names)} than with {self.baseline}.")
        if rest := [name for name in self.scores if name != self.baseline and not is_shown.get(name)]:
            parts.append(f"No difference from {self.baseline} is shown for {listed(rest)}.")
        if has_progress and self.best.low > 0:
            progress = f"{self.best.low:.2f} to {self.best.high:.2f}, where {self.baseline} has {own.value:.2f}"
            parts.append(f"The best credit, ΔV itself, would have a progress of {progress}.")
        return " ".join(parts)

    @property
    def rows(self) -> list[list[str]]:
        """The table of algorithms, its head first."""
        columns = [name for name in _COLUMNS if name in self.scores[self.baseline]]
        head = ["algorithm", *(f"minus {self.baseline}'s" if "difference" in name else name for name in columns)]
        rows = [[name, *(_cell(of[column], column) for column in columns)] for name, of in self.scores.items()]
        best = [["ΔV itself", _cell(self.best, "progress"), *["–"] * (len(head) - 2)]]
        return [head, *rows, *(best if self.best.value > 0 else [])]

    @property
    def quantiles(self) -> list[list[str]]:
        """Where the tokens that decide are, by entropy, by probability and by kind of token; the head first."""
        t, rows = self.tokens, [["tokens", "of all", "of what moves (Σ w)", "of what decides (Σ w ΔV²)"]]
        by = {"entropy, highest first": -t["entropy"], "probability, lowest first": t["trainer_logprobs"]}
        by = {what: (5 * (x.rank(method="first") - 0.5) // len(t) + 1).astype(int) for what, x in by.items()}
        parts = pd.DataFrame({0: 1 / t["chosen"], 1: t["weight"], 2: t["weight"] * (t["gain"] ** 2 - t["variance"])})
        for what, number in (by | {"kind": t["tokens"].map(kind_of)}).items():
            shares = (100 * parts.groupby(number).sum() / parts.sum()).round() + 0.0
            for key, *of in shares.itertuples():
                rows.append([f"{what}: {key}", *(f"{x:.0f}%".replace("-", "−") for x in of)])
        return rows

    def __str__(self) -> str:
        tables = [markdown_table(head, rows, right=True) for head, *rows in (self.rows, self.quantiles)]
        return "\n".join([self.sentence, "", *tables, *self.notes, CAVEAT])

    @property
    def html(self) -> str:
        """The page: the table, and the responses with ΔV and the credit of each algorithm."""
        base, responses = self.shards[self.baseline], []
        for response, m, value in zip(base.responses, self.measured, self.values, strict=True):
            gain = np.where(m.chosen > 0, np.diff(value[:, 0]), 0.0).tolist()
            responses.append(response | {"credit": gain, "advantages": gain, "log_weight": None, "is_clipped": None})
        truth = Shard(base.header | {"algorithm": "ΔV, measured", "settings": {}}, {}, responses)
        shards = [truth, *self.shards.values()]
        kept = {r["index"] for r in excerpt(truth, max_tokens=MAX_TOKENS // len(shards)).responses}
        shards = [Shard(of.header, {}, [r for r in of.responses if r["index"] in kept]) for of in shards]
        text = {"note": self.sentence, "table": self.rows, "notes": [*self.notes, CAVEAT]}
        return build_page(shards, title="Audit of credit", **text)

    def _repr_html_(self) -> str:
        return CreditView(self.html)._repr_html_()

    def save(self, folder: Path) -> "Audit":
        """Writes `audit.html`, `audit.md`, `audit.json`, `tokens.parquet` and `gradients.npz`."""
        scores = {name: {k: dict(x._asdict()) for k, x in of.items()} for name, of in self.scores.items()}
        whole = {"sentence": self.sentence, "notes": self.notes, "best_progress": self.best._asdict(), "scores": scores}
        text = re.sub(r"\bNaN\b", "null", json.dumps(whole, indent=1, ensure_ascii=False))
        write_atomically(folder / "audit.json", text + "\n")
        write_atomically(folder / "audit.md", f"{self}\n")
        write_atomically(folder / "audit.html", self.html)
        self.tokens.to_parquet(folder / "tokens.parquet")
        np.savez(folder / "gradients.npz", **self.gradients)
        return self


def kind_of(token: str) -> str:
    """ "line break", "number", "word", "special" (without a text of its own) or "sign"."""
    return next((kind for kind, pattern in _KINDS.items() if re.fullmatch(pattern, token)), "sign")


def _cell(estimate: Estimate, column: str) -> str:
    if math.isnan(estimate.value):
        return "–"
    value, low, high = (f"{x:.{_COLUMNS[column]}f}" for x in estimate[:3])
    return (f"{value} [{low}, {high}]" if column in _WITH_INTERVAL else value).replace("-", "−")
