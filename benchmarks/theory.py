"""The figures of docs/algorithms/ha_dw.md and docs/theory.md that need no training: HA-DW's bias, 8 against 128
rollouts, its weight, and traces.

    python benchmarks/theory.py [--folder docs]

Prints the numbers that the page quotes. All but the last figure are sums over all groups, not simulations; the last one
uses 200,000 random tokens from a fixed seed. Takes seconds.
"""

import argparse
from pathlib import Path

import torch
from coefficients import (
    eligible_coefficient,
    lambda_trace_coefficient,
    lambda_weight_coefficient,
    sequence_coefficient,
)
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from theorems import (
    corrected_baseline,
    exact_scale,
    expected_advantages,
    gradient_factor,
    group_bias,
    group_mean,
    lemma_1,
    mean_misestimate_probability,
    mixed_group_probability,
    overestimate_probability,
    reducing_scales,
    smallest_misestimate_probability,
)

from trl_credit.credit.clipping import is_clipped
from trl_credit.credit.weights import lambda_trace_log_weight, masked


P = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000  # none of them k/G, where a probability jumps
SOLVE_RATE = "p, the policy's probability to solve the prompt"
G, PRIOR, SCALE = 8, 0.5, 1.3  # of the figure of the weight


def drawn(columns: int) -> tuple[Figure, list[Axes]]:
    """A row of plots."""
    figure = Figure(figsize=(4.5 * columns, 3.4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, columns))


def finish(axes: Axes, *, xlabel: str, ylabel: str, title: str, **legend: object) -> None:
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(xlabel, fontsize=8)
    axes.set_ylabel(ylabel, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=7, frameon=False, **legend)


def bias() -> Figure:
    """Theorem 1 (HA-DW's Fig. 2), Theorem 2 and Corollary 1."""
    figure, (left, right) = drawn(2)
    for n in (2, 4, 8, 16, 32):
        left.plot(P, group_bias(P, num_generations=n), label=f"G = {n}", linewidth=1.4)
    left.axhline(0.0, color="0.6", linewidth=0.8)
    finish(
        left, xlabel=SOLVE_RATE, ylabel="E[p̂ | S] − p = E[r | S] − p", title="How far is a group's mean reward from p?"
    )
    for n in (4, 8):
        probability = overestimate_probability(P, num_generations=n)
        error = torch.where(P < 0.5, probability, overestimate_probability(1 - P, num_generations=n))
        (line,) = right.plot(P, error, label=f"G = {n}", linewidth=1.4)
        mean = mean_misestimate_probability(num_generations=n, given_signal=True)
        label = f"given S, p < ½: {mean:.2f}"
        right.axhline(mean, color=line.get_color(), linewidth=0.9, linestyle="--", label=label)
    right.axhline(0.63, color="0.4", linewidth=0.9, linestyle=":", label="0.63 of Corollary 1")
    right.set_ylim(0, 1.05)
    title = "How often does p̂ err towards ½? (Theorem 2)"
    finish(right, xlabel=SOLVE_RATE, ylabel="probability, given S", title=title, loc="lower center", ncols=2)
    return figure


def rollouts() -> Figure:
    """What 8 and 128 responses say of a prompt."""
    figure, (left, right) = drawn(2)
    for n, color in ((8, "C0"), (128, "C1")):
        mean, std = group_mean(P, num_generations=n)
        left.fill_between(P, mean - std, mean + std, color=color, alpha=0.25, linewidth=0)
        left.plot(P, mean, color=color, label=f"{n} rollouts", linewidth=1.4)
        right.plot(P, mixed_group_probability(P, num_generations=n), color=color, label=f"{n} rollouts", linewidth=1.4)
    left.plot(P, P, color="0.4", linewidth=0.9, linestyle=":", label="p")
    title = "What do 8 and 128 rollouts say of p? (± 1 standard deviation)"
    finish(left, xlabel=SOLVE_RATE, ylabel="p̂ given S", title=title)
    right.set_ylim(0, 1.05)
    finish(right, xlabel=SOLVE_RATE, ylabel="P(S)", title="How often does a group hold both kinds?", loc="lower center")
    return figure


def reweighted() -> Figure:
    """What HA-DW's weight does to a group's mean, to a prompt's gradient, and to Theorem 3's inequality."""
    figure, axes = drawn(3)
    mean_a, mean_group, weighted = expected_advantages(P, num_generations=G, prior=PRIOR)
    axes[0].plot(P, mean_group, color="black", label="E[Â | S] of GRPO", linewidth=1.6)
    axes[0].plot(P, SCALE * weighted, color="C1", label=f"E[ÂΦ | S], λ = {SCALE}, belief {PRIOR}", linewidth=1.2)
    axes[0].plot(P, mean_a, color="0.5", label="E[r − p | S]", linewidth=1.2, linestyle=":")
    finish(
        axes[0],
        xlabel=SOLVE_RATE,
        ylabel="mean over a group of S",
        title=f"What does the weight do to mean advantages? (G = {G})",
    )
    grpo = gradient_factor(P, num_generations=G, divides_by_std=True)
    for prior, color in ((0.3, "C0"), (0.5, "C1"), (0.7, "C2")):
        factor = gradient_factor(P, num_generations=G, divides_by_std=True, prior=prior, scale=SCALE)
        axes[1].plot(P, factor / grpo, color=color, label=f"belief {prior}", linewidth=1.2)
    axes[1].axhline(SCALE, color="black", linewidth=0.9, linestyle="--", label=f"λ_scale = {SCALE}")
    title = f"By how much does a prompt's gradient change? (G = {G})"
    finish(axes[1], xlabel=SOLVE_RATE, ylabel="factor", title=title, loc="upper center")
    for response, color in (("right", "C3"), ("wrong", "C0")):
        low, high = reducing_scales(P, num_generations=G, prior=PRIOR, response=response)
        axes[2].fill_between(P, low, high, color=color, alpha=0.35, label=f"{response} answers")
    axes[2].axhline(SCALE, color="black", linewidth=0.9, linestyle="--", label=f"{SCALE}, the default")
    axes[2].set_ylim(0, 3)
    title = f"Which λ_scale bring E[ÂΦ | S] nearer to A? (belief {PRIOR})"
    finish(axes[2], xlabel=SOLVE_RATE, ylabel="λ_scale", title=title, loc="upper center")
    return figure


def traces() -> Figure:
    """S-trace's Eq. 30a to 30c and D.2: credit by position, and what off-policy noise clips."""
    figure, axes = drawn(3)
    length, decay, clip = 100, 0.9, (0.8, 1.2)
    g = torch.Generator().manual_seed(0)
    one = torch.ones(1, length)
    tensors = {"advantages": torch.ones(1), "clip_range": clip, "mask_t": one}
    still = {"logp_t": -one, "old_logp_t": -one, **tensors}
    selected = (torch.rand(1, length, generator=g) < 0.2).float()
    shown = (
        ("P-trace, ε-trace, ε-weight", eligible_coefficient(decay=decay, **still)),
        ("S-trace, share ρ = 0.2 of tokens selected", eligible_coefficient(decay=decay, selected_t=selected, **still)),
        ("GSPO, GRPO", sequence_coefficient(**still)),
    )
    for (label, coefficient), style in zip(shown, ("-", ".", "-"), strict=True):
        axes[0].plot(range(length), coefficient[0], style, label=label, linewidth=1.2, markersize=4)
    axes[0].set_ylim(0, 14)
    title = f"How much credit does a token get? (on-policy, g = {decay})"
    finish(
        axes[0], xlabel="token of a response of 100", ylabel="d loss / d log p, over −A", title=title, loc="upper right"
    )
    spread = torch.logspace(-2.5, -0.5, 21)
    noise = torch.randn(200, 1000, generator=g)
    sign = torch.tensor([1.0, -1.0]).repeat(100)
    tensors = {"advantages": sign, "clip_range": clip, "mask_t": torch.ones_like(noise)}
    methods = (
        ("P-trace", 0.9, eligible_coefficient, "C0"),
        ("P-trace", 0.99, eligible_coefficient, "C0"),
        ("ε-trace", 0.9, lambda_trace_coefficient, "C1"),
        ("ε-trace", 0.99, lambda_trace_coefficient, "C1"),
        ("ε-weight", 0.9, lambda_weight_coefficient, "C2"),
    )
    for label, decay, coefficient, color in methods:
        clipped, halved = [], []
        for s in spread.tolist():
            log_ratio = {"old_logp_t": torch.zeros_like(noise), "mask_t": tensors["mask_t"]}
            if coefficient is lambda_trace_coefficient:
                log_weight = lambda_trace_log_weight(s * noise, decay=decay, **log_ratio)
            else:
                log_weight = masked(s * noise, log_ratio["mask_t"])
            cut = is_clipped(log_weight, advantage_t=sign.unsqueeze(1), clip_range=clip)
            clipped.append(100 * cut.float().mean().item())
            credit = coefficient(s * noise, old_logp_t=log_ratio["old_logp_t"], decay=decay, **tensors)
            on_policy = coefficient(0 * noise, old_logp_t=log_ratio["old_logp_t"], decay=decay, **tensors)
            halved.append(100 * (credit < on_policy / 2).float().mean().item())
        style = {"color": color, "linestyle": "--" if decay == 0.99 else "-", "linewidth": 1.2}
        if label == "ε-trace":
            axes[1].plot(spread, clipped, label=f"{label}, g = {decay}", **style)
        elif label == "P-trace" and decay == 0.9:  # of GRPO's ratio, whatever the trace
            axes[1].plot(spread, clipped, label="P-trace, S-trace, ε-weight, GRPO", **style)
        axes[2].plot(spread, halved, label=f"{label}, g = {decay}", **style)
    for axis in axes[1:]:
        axis.set_xscale("log")
    noise_label = "standard deviation of the log-ratio of a token"
    finish(axes[1], xlabel=noise_label, ylabel="% of tokens", title="How many tokens are clipped at ±0.2?")
    title = "How many keep less than half of their credit?"
    finish(axes[2], xlabel=noise_label, ylabel="% of tokens", title=title)
    return figure


def numbers() -> None:
    """What the page quotes."""
    print("G: P(p̂ > p) given S for p in (0, 0.5) and (0, 0.25); means of P(p̂ > p | S); the smallest for one p < 0.5")
    for n in range(2, 9):
        options = [{"high": high, "given_signal": given} for given in (True, False) for high in (0.5, 0.25)]
        means = "  ".join(f"{mean_misestimate_probability(num_generations=n, **o):.3f}" for o in options)
        print(f"  {n}: {means}  {smallest_misestimate_probability(num_generations=n):.3f}")
    for n in (8, 128):
        mean, std = group_mean(0.05, num_generations=n)
        share = mixed_group_probability(0.05, num_generations=n)
        print(f"p = .05, {n} rollouts: P(S) = {share:.3f}, p̂ given S = {mean:.3f} ± {std:.3f}")
    for n, p in ((4, 0.25), (8, 0.25), (8, 0.1)):
        print(f"G = {n}, p = {p}: E[p̂ | S] − p = {group_bias(p, num_generations=n):.6f}")
        for response in ("any", "right", "wrong"):
            options = {"num_generations": n, "prior": PRIOR, "response": response}
            mean_a, plain, weighted = expected_advantages(p, **options)
            low, high = reducing_scales(p, **options)
            means = f"E[A | S] = {mean_a:.6f}, E[Â | S] = {plain:.6f}, E[ÂΦ | S] = {SCALE * weighted:.6f}"
            print(f"  {response}: {means}; λ_scale from {low:.3f} to {high:.3f}")
    for p in (0.1, 0.25, 0.5, 0.75, 0.9):
        std = {"num_generations": G, "divides_by_std": True}
        factor = gradient_factor(p, **std, prior=PRIOR, scale=SCALE) / gradient_factor(p, **std)
        plain = gradient_factor(p, num_generations=G)
        print(f"p = {p}: gradient without std {plain:.3f} of the true one; HA-DW / GRPO with std {factor:.3f}")
    for p_hat in (0.125, 0.5):
        radius, epsilon = lemma_1(p_hat=p_hat, num_generations=G)
        print(f"Lemma 1 at p̂ = {p_hat}: ε_δ = {radius:.3f}, and some c only for ε > {epsilon:.3f}")
    c = corrected_baseline(0.1, num_generations=G).item()
    print(f"λ_scale of an exact correction at p = 0.1, p̂ = 1/8: {exact_scale(0.125, c=c):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, help="where to draw bias.png, rollouts.png, reweighted.png and traces.png"
    )
    args = parser.parse_args()
    numbers()
    if args.folder is not None:
        for figure in (bias, rollouts, reweighted, traces):
            figure().savefig(args.folder / f"{figure.__name__}.png")


if __name__ == "__main__":
    main()
