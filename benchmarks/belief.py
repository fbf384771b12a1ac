"""How HA-DW's belief follows an accuracy, by η, smallest step and batch size: the choice of our defaults.

    python benchmarks/belief.py [--figure docs/belief.png]

A batch is some prompts of which the solve rates are drawn around a curve, most of them near 0 or 1, and 8 responses
each. Lag is |mean belief − curve| while the accuracy rises, noise the standard deviation of the belief over seeds while
it stands still. Takes a minute; the same numbers on every machine.
"""

import argparse

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from trl_credit.credit.difficulty import DifficultyBelief


GENERATIONS = 8
BATCHES = 200
SEEN = 20  # batches before anything is measured
CURVES = {
    "flat": np.full(BATCHES, 0.5),
    "rising": np.linspace(0.2, 0.8, BATCHES),
    "saturating": 0.2 + 0.5 * (1 - np.exp(-np.arange(BATCHES) / 40)),
}
OLD = {"rate": 1.0, "rate_min": 0.01}  # the defaults of 0.1
HARD = {"mode": "hard"}


def accuracies(curve: np.ndarray, *, prompts: int, seed: int) -> np.ndarray:
    """Accuracy of one batch for each point of the curve."""
    rng = np.random.default_rng(seed)
    rates = rng.beta(curve[:, None], 1 - curve[:, None], size=(len(curve), prompts))
    return rng.binomial(GENERATIONS, rates).sum(1) / (GENERATIONS * prompts)


def followed(observed: np.ndarray, **settings: object) -> tuple[np.ndarray, float]:
    """C⁻ of every batch, and the share of steps that the floor made."""
    belief = DifficultyBelief(**settings)
    priors, steps = [], []
    for accuracy in observed:
        priors.append(belief.prior(accuracy))
        steps.append(belief.update(accuracy))
    floors = [is_floor for _, is_floor in filter(None, steps[SEEN:])]
    return np.array(priors), float(np.mean(floors)) if floors else 0.0


def measured(curve: np.ndarray, *, prompts: int, seeds: int = 20, **settings: object) -> tuple[float, float, float]:
    """Lag, noise, and share of steps that the floor made, after the first batches."""
    runs = [followed(accuracies(curve, prompts=prompts, seed=seed), **settings) for seed in range(seeds)]
    beliefs = np.stack([priors for priors, _ in runs])[:, SEEN:]
    lag = np.abs(beliefs.mean(0) - curve[SEEN:]).mean()
    return float(lag), float(beliefs.std(0).mean()), float(np.mean([floor for _, floor in runs]))


def figure(path: str) -> None:
    """Draws one run with the paper's batch size, and noise against lag for several η."""
    drawn = Figure(figsize=(9, 3.4), dpi=110, layout="constrained")
    FigureCanvasAgg(drawn)
    left, right = drawn.subplots(1, 2)
    curve = np.concatenate([np.full(40, 0.3), np.linspace(0.3, 0.7, 110), np.full(50, 0.7)])
    observed = accuracies(curve, prompts=256, seed=0)
    left.plot(observed, ".", color="0.75", markersize=4, label="accuracy of a batch (2,048 responses)")
    for settings, label in ((OLD, "η = 1, floor 0.01 (0.1)"), ({}, "η = 6, floor 0.02"), (HARD, "hard")):
        left.plot(followed(observed, **settings)[0], label=label, linewidth=1.4)
    left.set(xlabel="batch", ylabel="belief C⁻")
    left.set_title("How closely does the belief follow the accuracy?", fontsize=9)
    left.legend(fontsize=7, frameon=False)
    for prompts, color in ((256, "C0"), (64, "C1"), (8, "C2")):
        hard = measured(CURVES["flat"], prompts=prompts, **HARD)[1]
        for rate in (1, 2, 3, 4, 5, 6, 7, 8):
            settings = {"rate": float(rate), "rate_min": 0.02}
            lag = measured(CURVES["rising"], prompts=prompts, **settings)[0]
            noise = measured(CURVES["flat"], prompts=prompts, **settings)[1] / hard
            label = f"{GENERATIONS * prompts:,} responses" if rate == 1 else None
            right.plot(
                lag, noise, "*" if rate == 6 else "o", color=color, label=label, markersize=9 if rate == 6 else 4
            )
    right.axhline(1.0, color="0.6", linewidth=0.8, linestyle=":")
    right.set(xlabel="lag on a rise", ylabel="noise on a plateau / that of hard", ylim=(0, None))
    right.set_title("What does a smaller lag cost in noise?", fontsize=9)
    right.legend(fontsize=7, frameon=False, title="η = 1 … 8 from right to left, ★ 6", title_fontsize=7)
    drawn.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", help="a PNG to draw")
    args = parser.parse_args()
    grid = [
        HARD,
        OLD,
        *({"rate": float(r), "rate_min": f} for r in (3, 5, 6, 7, 8, 10, 15) for f in (0.01, 0.02, 0.05)),
    ]
    for prompts in (256, 64, 16, 8):
        print(f"\n{GENERATIONS * prompts} responses per batch: lag / noise / share of steps by the floor")
        for settings in grid:
            cells = [
                f"{name} {'{:.3f} / {:.4f} / {:3.0%}'.format(*measured(curve, prompts=prompts, **settings))}"
                for name, curve in CURVES.items()
            ]
            print(f"  {settings}: {'   '.join(cells)}")
    if args.figure:
        figure(args.figure)


if __name__ == "__main__":
    main()
