"""The page of each algorithm, from its preset and from one run of each on the embedded task.

    python benchmarks/algorithm_pages.py            # writes docs/algorithms/*.md from presets and the results below
    python benchmarks/algorithm_pages.py RUNS       # also reads the runs and draws both pictures of each page

RUNS is a folder of `trl-credit compare --algo … --seeds … --output_dir RUNS` with all algorithms. What is kept of it is
`docs/results/algorithms.json`. The pictures need Chromium, and take a few minutes.
"""

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from pages import ROOT, table

from trl_credit.config import CreditConfig
from trl_credit.hub.describe import describe_credit
from trl_credit.hub.recipe import build
from trl_credit.presets import PRESETS, Preset
from trl_credit.support.files import write_atomically


PAGES = ROOT / "docs" / "algorithms"
RESULTS = ROOT / "docs" / "results" / "algorithms.json"
LEGEND = (
    "ℓ and ℓ° are the log-probabilities of a token under the current and the sampling policy. sg stops the gradient. "
    "g = γλ. z is 1 at the tokens that a selector chose. [Glossary](../glossary.md)."
)
TRL_HELP = {
    "beta": "Coefficient of the KL term.",
    "epsilon": "Lower clip range of the ratio.",
    "epsilon_high": "Upper clip range of the ratio.",
    "loss_type": "What the loss is divided by.",
    "mask_truncated_completions": "Truncated responses stay out of the loss.",
    "num_iterations": "Updates per generation batch.",
    "scale_rewards": "What the advantage is divided by.",
    "top_entropy_quantile": "Share of tokens in the policy term, those of highest entropy.",
}


def page(name: str, results: dict[str, Any]) -> str:
    """The page of an algorithm, as Markdown."""
    preset = PRESETS[name]
    base = preset.config.__name__.removesuffix("Config")
    paper = preset.paper
    facts = [
        ["Use it when", preset.use_when],
        ["Costs", preset.cost],
        ["Classes", f"`{base}Trainer`, [`{base}Config`](../api/configurations.md)"],
        ["Paper", f"[{paper['title']}](https://arxiv.org/abs/{paper['id']})"],
    ]
    return "\n".join(
        [
            f"# {preset.name}\n",
            " ".join(preset.idea) + "\n",
            table(["In short", ""], facts, texts=2),
            f"```bash\ntrl-credit train --algo {name}\n```\n",
            f"```python\nfrom trl_credit import {base}Config, {base}Trainer\n\nargs = {base}Config("
            f'output_dir="{name}")  # then {base}Trainer(model=…, reward_funcs=…, args=args, train_dataset=…)\n```\n',
            f"## Formula\n\n```text\n{_formula(preset)}\n```\n",
            f"{LEGEND}\n",
            f"## Knobs that matter\n\n{_knobs(preset)}",
            f"All knobs of {preset.name} can be changed, and combine with those of other algorithms: "
            "[compose](../compose.md), [all knobs](../knobs.md).\n",
            f"## Cost\n\n{_cost(name, results)}",
            f"## Reward on the embedded task\n\n{_curve(name, results)}\n",
            f"## Where the credit goes\n\n{_credit(name, results)}\n",
            f"## Citation\n\n```bibtex\n{paper['citation']}\n```\n",
        ]
    )


def _formula(preset: Preset) -> str:
    """W, A and M, each on a line."""
    return preset.formula.replace(", A = ", "\nA = ").replace(", M = ", "\nM = ")


def _settings(preset: Preset) -> dict[str, str]:
    shown = describe_credit(build(preset.config, output_dir="unused", report_to="none"))
    return {setting.name: setting.value for setting in shown}


def _knobs(preset: Preset) -> str:
    """The settings in which a preset differs from GRPO's, with those that act only beside them."""
    grpo, own = _settings(PRESETS["grpo"]), _settings(preset)
    names = [name for name in own if preset.name == "GRPO" or own[name] != grpo.get(name)]
    helps = dict(TRL_HELP)
    for config in (CreditConfig, preset.config):  # a preset's own value of a knob has no help
        helps |= {field.name: field.metadata["help"] for field in fields(config) if "help" in field.metadata} | TRL_HELP
    rows = [[f"`{name}`", f"`{own[name]}`", helps[name].partition(" Must be ")[0]] for name in names]
    return table(["knob", "here", "meaning"], [[cell.replace("|", "\\|") for cell in row] for row in rows], texts=3)


def _cost(name: str, results: dict[str, Any]) -> str:
    grpo = _mean(results, "grpo")
    rows = []
    for kind, what in (("prompts", "prompts"), ("generated", "generated tokens"), ("trained", "trained tokens")):
        own = _mean(results, name)[kind]
        rows.append([what, f"{own:,.0f}", f"{own / grpo[kind]:.2f}"])
    head = ["200 updates of 64 rows", PRESETS[name].name, "GRPO = 1"]
    text = "Generated tokens are all that the policy wrote. Trained tokens are those in the policy term of the loss.\n"
    if PRESETS[name].config.rollouts != "none":
        text += "The responses have about 36 tokens, and the run has the short segments of `DEMO_SEGMENTS`.\n"
    if rows[0][2] != "1.00":
        text += "It makes several updates of each batch, so the same number of updates takes fewer prompts.\n"
    return f"{table(head, rows)}\n{text}[Cost and sizes](../scaling.md) has the rules for other sizes.\n"


def _mean(results: dict[str, Any], name: str) -> dict[str, float]:
    runs = results["runs"][name]
    return {kind: sum(run[kind] for run in runs) / len(runs) for kind in ("prompts", "generated", "trained", "end")}


def _curve(name: str, results: dict[str, Any]) -> str:
    own, grpo = _mean(results, name)["end"], _mean(results, "grpo")["end"]
    reached = f"The mean reward of the last 20 updates is {own:.2f}"
    against = "." if name == "grpo" else f", and {grpo:.2f} with GRPO."
    return (
        f"![Reward of {PRESETS[name].name} over 200 updates]({name}_reward.png)\n\n"
        f"{reached}{against} This is one run of each, with seed {results['runs'][name][0]['seed']} and a learning "
        "rate of 1e-4 that was not tuned.\nOne run shows that it learns, not that it is better or worse: "
        "[Which algorithm?](../which.md) has the comparisons."
    )


def _credit(name: str, results: dict[str, Any]) -> str:
    picture = f"![The credit of each token under {PRESETS[name].name}]({name}_credit.png)\n\n"
    if name not in results["credit"]:
        return (
            f"{picture}A training row of update 20: the last part of a response in the tree. V is the estimated value "
            "before and after it.\nBlue tokens become more probable, orange ones less. Hatched tokens are not in the "
            "policy term.\n"
            "[The viewer](../viewer.md) shows this for your own runs."
        )
    share, grpo = results["credit"][name], results["credit"]["grpo"]
    both = f"{share['on_entropy']:.0%} of the credit lies on the fifth of the tokens with the highest entropy"
    both += "" if name == "grpo" else f" (GRPO: {grpo['on_entropy']:.0%})"
    zero = f"{share['none']:.0%} of the tokens have no credit" if share["none"] else "every token has credit"
    hatched = " Hatched tokens are not in the policy term." if PRESETS[name].config.token_mask != "none" else ""
    return (
        f"{picture}One response of the embedded model, after 20 updates of GRPO. Blue tokens become more probable, "
        f"orange ones less.{hatched}\nOver the {results['responses']} responses of that update {both}, and {zero}.\n"
        "[The viewer](../viewer.md) shows this for your own runs, and [`trl-credit explain`](../explain.md) for any "
        "responses."
    )


def index(results: dict[str, Any]) -> str:
    """The overview of all algorithms."""
    grpo = _mean(results, "grpo")
    rows = []
    for name, preset in PRESETS.items():
        own = _mean(results, name)
        ratio = [f"{own[kind] / grpo[kind]:.2f}" for kind in ("prompts", "generated", "trained")]
        rows.append([f"[{preset.name}]({name}.md)", f"`{name}`", preset.summary, preset.use_when, *ratio])
    head = ["algorithm", "`--algo`", "what it does", "use it when", "prompts", "generated", "trained"]
    return (
        "# Algorithms\n\nEach algorithm is a published setting of the same [knobs](../knobs.md). "
        "[Which algorithm?](../which.md) helps to choose.\n\n"
        f"{table(head, rows, texts=4)}\n"
        "The last three columns are prompts, generated and trained tokens of 200 updates on the embedded task, as "
        "multiples of GRPO's.\nMost of its responses have 36 tokens. Long responses have other multiples: "
        "[cost and sizes](../scaling.md). "
        "[results/algorithms.json](../results/algorithms.json) has the runs.\n"
    )


def pages() -> dict[Path, str]:
    """Every page with its text."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    made = {PAGES / f"{name}.md": page(name, results) for name in PRESETS}
    return {PAGES / "index.md": index(results), **made}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="?", type=Path, metavar="RUNS")
    runs = parser.parse_args().runs
    if runs is not None:
        from algorithm_pictures import measure

        write_atomically(RESULTS, json.dumps(measure(runs, PAGES), indent=1, ensure_ascii=False) + "\n")
    for path, text in pages().items():
        write_atomically(path, text)


if __name__ == "__main__":
    main()
