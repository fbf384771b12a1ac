"""Do the estimates of `trl-credit audit` hold the truth? Repeats it on the testbed, where V of every state is exact.

python benchmarks/audit_coverage.py    # docs/results/true_credit/coverage.json

Prompts of a batch are drawn from the testbed's eight, with replacement, so that a prompt is a random unit. The rewards
of continuations are drawn with the exact V. All else is the package's code.
"""

import json
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
from fork_bed.algorithms import ALGORITHMS, Advantages, kept_tokens, token_gradient
from fork_bed.batch import draw, sample
from fork_bed.bed import SETTINGS, G, P, V, make_bed
from fork_bed.training import ROLLOUTS
from pages import RESULTS

from trl_credit.lab.audit.report import Audit
from trl_credit.lab.audit.scores import aim_sums, aims, best_estimate
from trl_credit.lab.audit.values import FIRST, Measured, _second_round, choose_tokens
from trl_credit.support.files import write_atomically


NAMES = ("grpo", "s_trace", "p_trace", "lambda", "top_20", "dr_grpo")
PLAIN = "dr_grpo"
REPETITIONS, BATCHES, RESPONSES, CONTINUATIONS = 200, 20, 36, 32
SETTING = SETTINGS["C"]


class Pool:
    """Groups of the initial policy of a bed: G responses to a prompt, with exact values.

    Attributes:
        rewards: Shape (N, G).
        values: V before each token and at the end, shape (N, G, T + 1).
        entropy, gini, logp: Shape (N, G, T).
        credit: By algorithm, divided as its loss divides it, shape (N, G, T).
        gradient: Sum over the group's responses by algorithm, shape (N, k).
        own: Gradient of each response with ΔV as credit, shape (N, G, k).
    """

    def __init__(self, count: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.bed = bed = make_bed(SETTING, [0])
        self.log_probs = bed.log_probs(torch.zeros(1, bed.features.size(-1), V, dtype=torch.float64))
        generators = [torch.Generator().manual_seed(seed)]
        parts: dict[str, list[torch.Tensor]] = {}
        for _ in range(math.ceil(count / P)):
            batch = sample(bed, self.log_probs, draw(generators, copies=1, length=SETTING.length, rollouts=ROLLOUTS))
            rewards = batch.rewards.view(P, G)
            gini = 1 - self.log_probs.exp().square().sum(-1)[0]
            found = {
                "actions": batch.actions[0],
                "rewards": rewards,
                "values": torch.cat([batch.value_t.view(P, G, -1), rewards[..., None]], -1),
                "entropy": batch.entropy_t.view(P, G, -1),
                "logp": batch.old_logp_t.view(P, G, -1),
                "gini": gini[:, None].expand(P, G, -1),
            }
            for name in NAMES:
                algorithm = ALGORITHMS[name]
                advantages = Advantages(algorithm, SETTING, runs=1)(batch)
                options = {"advantages": advantages, "kept_t": kept_tokens(algorithm, SETTING, batch)}
                credit = token_gradient(algorithm.config, batch, logp_t=batch.old_logp_t, **options).view(P, G, -1)
                found[f"credit {name}"] = credit
                found[f"gradient {name}"] = self.gradients(batch.actions[0], credit).sum(1)
            gain = found["values"].diff(dim=-1)
            found["own"] = self.gradients(batch.actions[0], gain)
            for name, x in found.items():
                parts.setdefault(name, []).append(x)
        self.parts = {name: torch.cat(x).numpy()[:count] for name, x in parts.items()}
        self.prompt = np.tile(np.arange(P), math.ceil(count / P))[:count]

    def gradients(
        self, actions: torch.Tensor, credit: torch.Tensor, prompts: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Σ_t c_t s_t of responses (n, G, T) to the prompts, shape (n, G, k)."""
        prompts = torch.arange(P) if prompts is None else prompts
        probs = self.log_probs[0, prompts].exp()[:, None]
        score = torch.nn.functional.one_hot(actions, V) - probs
        return torch.einsum("ngtv,ntd->ngdv", score * credit[..., None], self.bed.features[0, prompts]).flatten(2)


def truth(pool: Pool) -> dict[str, float]:
    """What the estimates are of, from many groups with exact values."""
    parts, true = pool.parts, {}
    signal = parts["rewards"].std(1) > 0
    gains = np.diff(parts["values"], axis=-1)[signal].reshape(-1)
    columns = {"gain": gains, "half_1": gains, "half_2": gains, "weight": parts["gini"][signal].reshape(-1)}
    tokens = pd.DataFrame(columns | {"variance": 0.0, "prompt": 0})
    credit = np.stack([parts[f"credit {name}"][signal].reshape(-1) for name in NAMES])
    scores = aims(aim_sums(tokens, credit, floor=0.0).sum(0))
    for k, name in enumerate(NAMES):
        true |= {f"{name}: aim": scores[k, 0], f"{name}: focus": scores[k, 1]}
        true[f"{name}: aim difference"] = scores[k, 0] - scores[0, 0]
    # E[g] and E|g|² of a batch of P groups, exactly from those of a group
    star = parts[f"gradient {PLAIN}"].mean(0)
    for name in NAMES:
        g = parts[f"gradient {name}"]
        mean, square = g.mean(0), (g**2).sum(1).mean()
        batch_square = (mean**2).sum() + (square - (mean**2).sum()) / P
        along = mean @ star
        true[f"{name}: bias"] = along / math.sqrt((mean**2).sum() * (star**2).sum())
        true[f"{name}: signal"] = (mean**2).sum() / batch_square
        true[f"{name}: progress"] = along**2 / ((star**2).sum() * batch_square)
        true[f"{name}: progress difference"] = true[f"{name}: progress"] - true["grpo: progress"]
    own = parts["own"].mean(1)  # of a group
    batch_square = (star_of(pool) ** 2).sum() + ((own**2).sum(1).mean() - (own.mean(0) ** 2).sum()) / P
    true["best progress"] = (star_of(pool) ** 2).sum() / batch_square
    return {name: float(x) for name, x in true.items()}


def star_of(pool: Pool) -> np.ndarray:
    """g*, the mean gradient of a response, exactly."""
    return pool.bed.solve_rate_gradient(pool.log_probs)[0].flatten().numpy()


def repetition(pool: Pool, rng: np.random.Generator, *, token_budget: int) -> tuple[Audit, np.ndarray]:
    """An audit, and for each measured response the exact values."""
    parts = pool.parts
    groups = rng.integers(len(pool.prompt), size=(BATCHES, P))
    has_signal = parts["rewards"][groups.flatten()].std(1) > 0
    measured, exact, actions, prompts, credits = [], [], [], [], {name: [] for name in NAMES}
    chosen = [(True, groups.flatten()[k]) for k in np.flatnonzero(has_signal)[: RESPONSES // 2]]
    chosen += [(False, groups.flatten()[k]) for k in np.flatnonzero(~has_signal)[: RESPONSES // 6]]
    for prompt, (signal, group) in enumerate(chosen):
        for i in rng.permutation(G)[:2]:
            length = parts["entropy"].shape[-1]
            columns = {"entropy": parts["entropy"], "gini": parts["gini"], "trainer_logprobs": parts["logp"]}
            response = {name: x[group, i].tolist() for name, x in columns.items()}
            response |= {"token_ids": [0] * length, "tokens": ["x"] * length, "completion": ""}
            response["reward"] = float(parts["rewards"][group, i])
            measured.append(Measured(response, {}, prompt, 0, len(measured), signal))
            exact.append(parts["values"][group, i])
            actions.append(parts["actions"][group, i])
            prompts.append(int(pool.prompt[group]))
            for name in NAMES:
                credits[name].append({"credit": parts[f"credit {name}"][group, i].tolist(), **response})
    choose_tokens(measured, continuations=CONTINUATIONS, token_budget=token_budget, seed=int(rng.integers(2**31)))
    states = [(i, t) for i, m in enumerate(measured) for t in m.states]

    def drawn(counts: dict[tuple[int, int], int]) -> dict[tuple[int, int], np.ndarray]:
        return {(i, t): (rng.random(n) < exact[i][t]).astype(float) for (i, t), n in counts.items()}

    first = drawn(dict.fromkeys(states, FIRST))
    second = drawn(_second_round(first, (CONTINUATIONS - FIRST) * len(states)))
    for i, t in states:
        measured[i].rewards[t] = [first[i, t], second[i, t]]
    explained = {name: [SimpleNamespace(shard=SimpleNamespace(responses=x, header={}))] for name, x in credits.items()}
    audit = Audit(measured, explained, continuations=CONTINUATIONS, notes=[])
    vectors = {name: parts[f"gradient {name}"][groups].mean(1) for name in NAMES}
    p = vectors[PLAIN]
    audit.gradients = {name: np.stack([p @ p.T, p @ g.T, g @ g.T]) for name, g in vectors.items()}
    if audit.is_complete:
        halves = torch.tensor(np.stack([np.diff(value[:, 2:], axis=0).T for value in audit.values]))
        own = torch.tensor(np.stack(actions))[:, None]
        g = [pool.gradients(own, halves[:, k : k + 1], prompts)[:, 0].numpy() for k in (0, 1)]
        # the mean over a response's tokens times its length, over the others' mean
        scale = SETTING.length * G / (G - 1) / G
        sizes = {"share": has_signal.mean(), "prompts": P, "generations": G}
        sizes |= {
            "prompt": np.array([m.prompt for m in measured]),
            "signal": np.array([m.has_signal for m in measured]),
        }
        audit.best = best_estimate((p @ p.T) * scale**2, g[0] @ g[1].T, **sizes)
    return audit, exact


def main() -> None:
    large = Pool(8_000, seed=1)
    true, results = truth(large), {}
    for label, token_budget in (("all tokens", 10**9), ("a fifth of the tokens", 700_000)):
        inside: dict[str, list[bool]] = {}
        values: dict[str, list[float]] = {}
        rng = np.random.default_rng(7)
        for number in range(REPETITIONS):
            audit, exact = repetition(large, rng, token_budget=token_budget)
            for name, of in audit.scores.items():
                for measure, x in of.items():
                    if (key := f"{name}: {measure}") in true and x.low < x.high:
                        inside.setdefault(key, []).append(x.low <= true[key] <= x.high)
                        values.setdefault(key, []).append(x.value)
            if audit.best.low < audit.best.high:
                inside.setdefault("best progress", []).append(
                    audit.best.low <= true["best progress"] <= audit.best.high
                )
                values.setdefault("best progress", []).append(audit.best.value)
            # the mean of V̂ and of ΔV̂ over all states, each with its own variance
            off = np.concatenate([v[:, 0] - e for v, e in zip(audit.values, exact, strict=True)])
            variance = np.concatenate([v[:, 1] for v in audit.values])
            known = ~np.isnan(off)
            inside.setdefault("V", []).append(abs(off[known].sum()) <= 1.96 * math.sqrt(variance[known].sum()))
            t = audit.tokens
            gain = np.array([np.diff(exact[i])[k] for i, k in zip(t["response"], t["t"], strict=True)])
            z = ((t["gain"] ** 2 - t["variance"]) - gain**2).sum()
            values.setdefault("ΔV²", []).append(float(z))
            odd = t["t"] % 2 == 1  # tokens without a state in common
            inside.setdefault("ΔV", []).append(
                abs((t["gain"] - gain)[odd].sum()) <= 1.96 * math.sqrt(t["variance"][odd].sum())
            )
            print(f"{label}: {number + 1}/{REPETITIONS}", end="\r", flush=True)
        mean = {
            key: (true.get(key, 0.0), float(np.nanmean(x)), float(np.nanstd(x, ddof=1))) for key, x in values.items()
        }
        results[label] = {"inside": {key: float(np.mean(x)) for key, x in inside.items()}, "true, mean, sd": mean}
    write_atomically(
        RESULTS / "true_credit" / "coverage.json", json.dumps(results, indent=1, ensure_ascii=False) + "\n"
    )
    for label, of in results.items():
        print(label)
        for key, share in of["inside"].items():
            print(f"  {key:28}{share:.3f}", *(f"{x:.4f}" for x in of["true, mean, sd"].get(key, ())))


if __name__ == "__main__":
    main()
