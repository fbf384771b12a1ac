"""V of the states of measured responses, by continuations in two rounds. Files keep them for a resume."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from ...rollouts.chain import rollout_rewards
from ...support.digests import seed_from
from ...support.files import write_atomically
from ...trainer.engine import TrlEngine
from ..explain.segments import batch_of


FIRST = 8  # continuations of a state in the first round; the second one has multiples of it, so that states share calls


@dataclass
class Measured:
    """A response whose tokens are measured.

    Attributes:
        response: As in a rollout log, with `token_ids`, `tokens`, `entropy` and `gini`.
        example: Its row of the data set.
        prompt: Number of its prompt among the measured ones.
        batch, place: Its batch, and its place there.
        has_signal: Whether the rewards of its prompt differ.
        chosen: Probability with which each token was chosen to be measured, 0 for the others, shape (T,).
        rewards: Rewards of the continuations of a state by t, of each round.
    """

    response: dict[str, Any]
    example: dict[str, Any]
    prompt: int
    batch: int
    place: int
    has_signal: bool = True
    chosen: np.ndarray = field(default_factory=lambda: np.zeros(0))
    rewards: dict[int, list[np.ndarray]] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """T, tokens of the response."""
        return len(self.response["token_ids"])

    @property
    def written(self) -> np.ndarray:
        """Which tokens the policy wrote, and no tool, bool, shape (T,)."""
        is_kept = "_conversation" in self.response  # else a logged mask may leave out tokens of the policy
        return np.array(self.response["loss_mask"] if is_kept else [1] * self.length, dtype=bool)

    @property
    def next_states(self) -> np.ndarray:
        """The state t at each of 0 … T: before the next token that the policy writes."""
        own = np.append(np.where(self.written, np.arange(self.length), self.length), self.length)
        return np.minimum.accumulate(own[::-1])[::-1]

    @property
    def states(self) -> list[int]:
        """t of the states to measure: before and after chosen tokens, and where lines begin."""
        before, lines = np.flatnonzero(self.chosen), [t + 1 for t, x in enumerate(self.response["tokens"]) if "\n" in x]
        return sorted({*self.next_states[[0, *before, *(before + 1), *lines]].tolist()} - {self.length})

    def values(self, first_share: float) -> np.ndarray:
        """V̂ before each token and at the end, its variance, and V̂ of each half of the continuations, shape (T + 1, 4),
        NaN where it is not known. A tool's tokens have no ΔV: what they bring is that of the token before them.
        `first_share` is the weight of the first round. It is fixed, as the number of continuations in the second round
        depends on the first."""
        known = np.full((self.length + 1, 4), math.nan)
        known[-1] = np.array([1, 0, 1, 1]) * self.response["reward"]
        for t, rounds in self.rewards.items():
            parts = [x[~np.isnan(x)] for x in rounds]
            if min(map(len, parts)) > 1:
                means = [[x.mean(), x.var(ddof=1) / len(x), x[::2].mean(), x[1::2].mean()] for x in parts]
                w = np.array([first_share, 1 - first_share] if len(parts) > 1 else [1.0])
                known[t] = (np.array([w, w**2, w, w]).T * means).sum(0)
        return known[self.next_states]


def choose_tokens(measured: Sequence[Measured], *, continuations: int, token_budget: int, seed: int) -> None:
    """Chooses the tokens to measure: all, or those of highest entropy and as many of the others at random, so that
    continuations as long as the rest of the response have about `token_budget` tokens."""
    cost = continuations * sum((m.length - np.flatnonzero(m.written)).sum() for m in measured)
    share = min(token_budget / cost / 2, 1.0)  # a token needs two states, if its neighbours are not measured
    entropy = [np.array(m.response["entropy"]) for m in measured]
    bound = np.quantile(np.concatenate([x[m.written] for x, m in zip(entropy, measured, strict=True)]), 1 - share / 2)
    rate, rng = 1.0 if share >= 0.5 else share / (2 - share), np.random.default_rng(seed)
    for m, of in zip(measured, entropy, strict=True):
        drawn = rate * (rng.random(m.length) < rate)
        m.chosen = np.where(of >= bound, 1.0, drawn) * m.written


def sample_values(
    measured: Sequence[Measured], engine: TrlEngine, *, continuations: int, seed: int, folder: Path
) -> int:
    """Fills `rewards` of all responses, and returns the number of generated tokens. The folder keeps every call."""
    size, tokens = engine.args.rollout_batch_size or (8192 if engine.use_vllm else 512), 0.0  # rows of a call
    states = [(i, t) for i, m in enumerate(measured) for t in m.states]
    states.sort(key=lambda state: measured[state[0]].length - state[1])  # those of a call end at about the same time
    counts = dict.fromkeys(states, min(FIRST, continuations))
    bar = tqdm(total=continuations * len(states), unit=" continuations", desc="V", disable=engine.args.disable_tqdm)
    for number in (1, 2):
        for n in sorted({*counts.values()} - {0}):
            own = [state for state in states if counts[state] == n]
            for begin in range(0, len(own), max(1, size // n)):
                call = own[begin : begin + max(1, size // n)]
                torch.manual_seed(seed_from(seed, number, n, begin))
                make = partial(_rewards, engine, measured, call, n=n)
                sampled = kept(folder / f"{number}-{n}-{begin}.npy", make)
                for (i, t), (cost, *rewards) in zip(call, sampled, strict=True):
                    measured[i].rewards.setdefault(t, []).append(np.array(rewards))
                    tokens += cost
                bar.update(n * len(call))
                bar.set_postfix(tokens=f"{tokens:,.0f}")
        if number == 1:
            first = {(i, t): measured[i].rewards[t][0] for i, t in states}
            counts = _second_round(first, continuations * len(states) - sum(counts.values()))
    bar.close()
    return round(tokens)


def kept(path: Path, make: Callable[[], np.ndarray]) -> np.ndarray:
    """The array in a file; without the file what `make` returns, which the file then has."""
    if not path.exists():
        np.save(buffer := BytesIO(), make())
        write_atomically(path, buffer.getvalue())
    return np.load(path)


def _rewards(engine: TrlEngine, measured: Sequence[Measured], states: list[tuple[int, int]], *, n: int) -> np.ndarray:
    """For each state (response, t) the tokens of its continuations on average, and `n` rewards, shape (S, 1 + n)."""
    rows = sorted({i for i, _ in states})
    batch, examples = batch_of([measured[i].response for i in rows], engine), [measured[i].example for i in rows]
    places = [(rows.index(i), t) for i, t in states]
    rewards, tokens = rollout_rewards(engine, examples, places, n=n, batch=batch, most=len(places))
    return np.insert(rewards.double().cpu().numpy(), 0, tokens / len(states), axis=1)


def _second_round(first: dict[tuple[int, int], np.ndarray], total: int) -> dict[tuple[int, int], int]:
    """Continuations of each state, in proportion to the standard deviation of its rewards. The lowest and the highest
    reward of all are added to them, so that no state is taken as certain."""
    everything = np.concatenate(list(first.values()))
    ends = np.nanmin(everything), np.nanmax(everything)
    spread = np.array([np.nanstd([*rewards, *ends]) for rewards in first.values()])
    shares = spread / spread.sum() if spread.sum() > 0 else np.full(len(spread), 1 / len(spread))
    return {state: FIRST * max(total > 0, round(total * x / FIRST)) for state, x in zip(first, shares, strict=True)}
