"""The page of each algorithm, from its preset and from one run of each on the embedded task.

    python benchmarks/algorithm_pages.py            # writes docs/algorithms/*.md from presets and the results below
    python benchmarks/algorithm_pages.py RUNS       # also reads the runs and draws both pictures of each page

RUNS is a folder of `trl-credit compare --algo … --seeds … --output_dir RUNS` with all algorithms. What is kept of it is
`docs/results/algorithms.json`. The pictures need Chromium, and take a few minutes. The page of an algorithm without a
run has neither measured costs nor pictures.
"""

import argparse
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from pages import ROOT, table, texts_of

from trl_credit.config import CreditConfig
from trl_credit.hub.describe import describe_credit
from trl_credit.hub.recipe import build
from trl_credit.presets import PRESETS, Preset
from trl_credit.support.files import write_atomically


PAGES = ROOT / "docs" / "algorithms"
RESULTS = ROOT / "docs" / "results" / "algorithms.json"
# a pattern of a formula → the sentence that explains it
LEGEND = {
    r"ℓ°|ℓᵀ": "ℓ and ℓ° are the log-probabilities of a token under the current policy and under the one that sampled "
    "it.",
    r"ℓ − sg": "ℓ is the log-probability of a token under the current policy.",
    r"ℓ_k": "t is the token itself. The sum runs over tokens k of the same response.",
    r"Σ_\{k≥t\}": "γ^{k−t} is 0.5 for a token `future_half_life` ahead. clip keeps the factor in `future_clip`.",
    r"sg": "sg stops the gradient: the value counts, its gradient does not.",
    r"ℓᵀ": "ℓᵀ is that of the same token under the [teacher](../teacher.md). Minus that of the policy it is d.",
    r"c ·": "c is `distillation_coef`.",
    r"μ": "μ is `evidence_share`, which falls to 0 over `evidence_steps` steps. The bounds are 1 ± `evidence_clip`.",
    r"min\(ρ, 2\)": "2 is `distillation_ratio_max`. The loss of a token is −A.",
    r"g\^": "g = γλ (`gamma`, `trace_lambda`) is the decay of the trace per token.",
    r"z_k": "z_k is 1 at tokens that the selector chose, else 0.",
    r"W of GSPO": "The W of GSPO is the mean of ℓ − ℓ° over the response.",
    r"ρ": "ρ is the ratio exp(ℓ − ℓ°).",
    r"mean A\)": "The means are over the tokens of the generation batch.",
    r"V\(": "V is the expected reward at a place of the response, estimated by rollouts.",
    r"π_old": "π_old is the probability of the token when it was sampled.",
    r"A = r − mean": "r is the reward of the response, and the mean is that of its group.",
    r"Σ L r": "r and L are reward and length of a response, and the sums run over its group.",
    r"Φ": "Φ is the [difficulty weight](../theory_difficulty.md).",
    r"group advantage": "The group advantage is the reward minus the group's mean, divided by its standard deviation.",
}
# what a knob does; where it depends on the algorithm or the value, by that, and "" for all others
MEANINGS: dict[str, str | dict[str, str]] = {
    "credit": "The object of this algorithm. It cannot be replaced.",
    "baseline": "What is subtracted from the reward: the group's mean (`group`), or OPO's (`optimal`).",
    "behavior_logps": "π_old with vLLM: by a forward pass (`recomputed`), or the engine's own (`sampler`).",
    "certain_tolerance": "No rollouts if the rest of the response has a probability of 1 minus this, or more.",
    "clip_form": "`surrogate`: min(ρA, clip(ρ)A). `ratio`: min(ρ, clip ρ)·A. ρ is the ratio that the loss clips.",
    "cov_range": "Only tokens with a covariance in this range may be chosen.",
    "cov_share": {
        "Clip-Cov": "Share of the tokens that lose their gradient.",
        "KL-Cov": "Share of the tokens that get the penalty.",
    },
    "cov_statistics": "Means and choice are over the generation batch (`batch`), or over each micro-batch.",
    "cutpoint_interval": "Improbable tokens (below `probability_threshold`) in a segment.",
    "difficulty": {"": "HA-DW's factor on advantages: off.", "HA-DW": "The belief moves towards a batch's accuracy."},
    "difficulty_rate": "η. Per batch the belief goes the share η·σ of the way to the accuracy. σ is its recent spread.",
    "difficulty_rate_min": "Smallest share of the way, if η·σ is smaller.",
    "difficulty_scale": "Factor of the weight.",
    "difficulty_window": "Past batches over which σ is computed.",
    "distillation_coef": "c, the factor of d, per nat.",
    "distillation_outcome": "Whether the group advantage is added. If false, A is c · d alone.",
    "distillation_position": "γ of IW-OPD, with which early tokens weigh more. 0: all weigh the same.",
    "distillation_ratio_max": "A larger ratio ρ counts as this one.",
    "distillation_student": "d compares the teacher with the `current` policy, or the one that sampled (`old`).",
    "distillation_weight": "Share of this loss. The rest is the policy loss.",
    "dull_kl": "Groups without [signal](../glossary.md) `keep` or `drop` their KL term.",
    "evidence_clip": "The factor of the teacher is clipped to 1 ± this, before μ.",
    "evidence_negative_only": "If true, responses with a positive advantage keep it.",
    "evidence_share": "μ at the start of the run. With 0 it is GRPO.",
    "evidence_steps": "Optimizer steps over which μ falls to 0.",
    "future_clip": "Smallest and largest factor on the advantage.",
    "future_ratio_max": "The change of a token with a larger ratio does not count.",
    "future_safety_ratio": "Tokens with a negative advantage and a larger ratio get no factor above 1.",
    "future_half_life": "The change of a token this far ahead counts half. In tokens.",
    "gamma": "γ. The trace decays by γλ per token.",
    "groups": "Groups without [signal](../glossary.md) stay in the batch.",
    "importance": {
        "GRPO": "W is the log-ratio of each token.",
        "GSPO": "W is the mean log-ratio of the response.",
        "GSPO-token": "W has GSPO's value, and the gradient of each token's own log-probability.",
        "GRPO-λ": "W is the log-ratio with the decayed log-ratios of earlier tokens.",
        "": "W has a trace in its gradient alone.",
    },
    "initial_value": "The prompt's value: by rollouts, or the mean reward of the other responses (`group`).",
    "leave_own_out": "All tokens keep the gradient of their own log-probability. The selector acts on traces alone.",
    "loss_type": {
        "grpo": "The mean over each response, then over responses.",
        "dapo": "The mean over all tokens of the batch.",
        "dr_grpo": "The sum over tokens, divided by a constant.",
    },
    "loss_weight": "GRPO-λ's factor on the policy term of a token: off.",
    "policy_loss": "TRL's clipped loss.",
    "probability_threshold": "Tokens with this probability or more are masked. The less probable ones are cutpoints.",
    "process_reward_weight": "SPO's bonus for segments that raise the chance of the best of N tries. 0: off.",
    "prompt_average": "If true: a mean over the tokens of each prompt, then over prompts.",
    "prompt_sampler": "Prompts come in the order of the data set, or by pass rate (`difficulty`).",
    "replay_cap": "Largest number of rows of a prompt in a generation batch.",
    "replay_iterations": "Generation batches in which a row may be drawn. 1: no replay.",
    "returns": "`outcome`: one advantage per response, from the sum of its rewards.",
    "reward_range": "Sums of the rewards in `difficulty_reward` that count as 0 % and 100 % correct.",
    "rollouts": {
        "GRPO": "Responses have no valued segments.",
        "SPO-tree": "The responses to a prompt are sampled as a tree.",
        "": "Rollouts from the boundaries along a response estimate values.",
    },
    "rollouts_per_state": "Rollouts from each boundary.",
    "scale_rewards": "Advantages are divided by the group's standard deviation (`group`), or not at all (`none`).",
    "segment_advantage": "Value of a node minus the mean over all children of its parent, itself included.",
    "segmentation": {
        "SPO-chain": "A segment has `cutpoint_interval` improbable tokens.",
        "VinePPO": "A segment is a step of the solution, split by `step_splitter`.",
    },
    "selective_rate": "Share of a response's tokens that leave a trace.",
    "selector": {
        "entropy": "Which tokens leave a trace: those with the highest entropy.",
        "GRPO": "Which tokens leave a trace: all. GRPO has no trace.",
        "": "Which tokens leave a trace.",
    },
    "step_splitter": "A step ends at a line break.",
    "teacher": {
        "policy": "The teacher's weights are those of the policy, here of a copy.",
        "reference": "The teacher's weights are the initial ones. Or name a larger model of the same family.",
    },
    "teacher_prompt": {
        "success": "The teacher sees a right response of the same group, never the row's own.",
        "": "What the teacher sees in place of the prompt. `{answer}` is a column of the data.",
    },
    "teacher_sync_steps": "Optimizer steps after which the copy is renewed.",
    "teacher_update_rate": "Share of the policy in the renewed copy. Below 1 it is a moving average.",
    "td_upper_bound": "Adds GRPO-λ's upper bound of V(s_0) − V(s_t) to the advantage: off.",
    "token_mask": {"GRPO": "M keeps all tokens.", "": "M keeps tokens whose probability was below the threshold."},
    "trace_lambda": "λ. The trace decays by γλ per token.",
    "trace_style": "`recent`: the last tokens count most. `both`: the first ones count too.",
    "trace_unit": "Each token leaves a trace, or each turn (`turn`).",
    "tree_rows": "A training row is a node with its prefix.",
    "whiten_advantages": "Scales advantages to mean 0 and variance 1: off.",
    # TRL's
    "beta": "Coefficient of the KL term. Above 0 a reference model is loaded.",
    "epsilon": "The ratio is clipped below 1 minus this.",
    "epsilon_high": "The ratio is clipped above 1 plus this.",
    "mask_truncated_completions": "Whether responses that reach the length limit stay out of the loss.",
    "num_iterations": "How often a generation batch is used for updates.",
    "top_entropy_quantile": "Share of tokens in the policy term, those of highest entropy. 1: all.",
}
# the settings of the measured runs where a preset's are too long for responses of 36 tokens
SHORT = {
    "spo_chain": "`cutpoint_interval=1`",
    "spo_tree": "`tree_branching=[4, 4, 4]` and `tree_segment_length=6`",
    "vine_ppo": '`step_splitter="trl_credit.demo.split_steps"`',
}


def page(name: str, results: dict[str, Any]) -> str:
    """The page of an algorithm, as Markdown."""
    preset = PRESETS[name]
    base = preset.config.__name__.removesuffix("Config")
    paper, texts = preset.paper, texts_of(preset)
    facts = [
        ["Use it when", texts.use_when],
        ["Costs", texts.cost + (" (for responses of 1,024 tokens)" if "times" in texts.cost else "")],
        ["Classes", f"`{base}Trainer`, [`{base}Config`](../api/configurations.md)"],
        ["Paper", f"[{paper['title']}](https://arxiv.org/abs/{paper['id']})"],
    ]
    return "\n".join(
        [
            f"# {preset.name}\n",
            f"{texts.idea}\n",
            table(["In short", ""], facts, texts=2),
            f"```bash\ntrl-credit train --algo {name}\n```\n",
            f"```python\nfrom trl_credit import {base}Config, {base}Trainer\n\nargs = {base}Config("
            f'output_dir="{name}")\n# then: {base}Trainer(model=…, reward_funcs=…, args=args, train_dataset=…)\n```\n',
            f"## Formula\n\n```text\n{_formula(preset)}\n```\n",
            f"{_legend(preset)}\n",
            f"## Knobs that matter\n\n{_knobs(preset)}",
            f"You can change {'these' if preset.config.credit is None else 'the other'} knobs, and combine them with "
            "most knobs of other algorithms.\nSome combinations are [refused](../compose.md#what-is-refused). "
            "[All knobs](../knobs.md).\n",
            *(_measured(name, results) if name in results["runs"] else []),
            f"## Citation\n\n```bibtex\n{paper['citation']}\n```\n",
        ]
    )


def _measured(name: str, results: dict[str, Any]) -> list[str]:
    """The sections of its run."""
    return [
        f"## Cost\n\n{_cost(name, results)}",
        f"## Reward on the embedded task\n\n{_curve(name, results)}\n",
        f"## Where the credit goes\n\n{_credit(name, results)}\n",
    ]


def _formula(preset: Preset) -> str:
    """W, A and M, each on a line."""
    return preset.formula.replace(", A = ", "\nA = ").replace(", M = ", "\nM = ")


def _legend(preset: Preset) -> str:
    """The symbols of its formula."""
    meanings = [text for pattern, text in LEGEND.items() if re.search(pattern, preset.formula)]
    if LEGEND["ℓ°|ℓᵀ"] in meanings and LEGEND["ℓ − sg"] in meanings:
        meanings.remove(LEGEND["ℓ − sg"])
    first = "W is the log importance weight, A the advantage and M the mask ([glossary](../glossary.md))."
    return "\n".join([first, *meanings])


def _meaning(preset: Preset, knob: str, value: str, help_: str) -> str:
    """What a knob does with this value."""
    meaning = MEANINGS.get(knob, help_.partition(". ")[0].rstrip(".") + ".")
    return meaning if isinstance(meaning, str) else meaning.get(preset.name) or meaning.get(value) or meaning[""]


def _settings(preset: Preset) -> dict[str, str]:
    shown = describe_credit(build(preset.config, output_dir="unused", report_to="none"))
    return {setting.name: setting.value for setting in shown}


def _knobs(preset: Preset) -> str:
    """The settings in which a preset differs from GRPO's, with those that act only beside them."""
    grpo, own = _settings(PRESETS["grpo"]), _settings(preset)
    names = [name for name in own if preset.name == "GRPO" or own[name] != grpo.get(name)]
    helps = dict.fromkeys(own, "")
    for config in (CreditConfig, preset.config):  # a preset's own value of a knob has no help
        helps |= {field.name: field.metadata["help"] for field in fields(config) if "help" in field.metadata}
    shown = own | ({"credit": preset.config.credit} if "credit" in names else {})  # no digest
    rows = [[f"`{name}`", f"`{shown[name]}`", _meaning(preset, name, own[name], helps[name])] for name in names]
    cells = [[cell.replace("|", "\\|").replace("\n", "\\n") for cell in row] for row in rows]
    return table(["knob", "here", "meaning"], cells, texts=3)


def _cost(name: str, results: dict[str, Any]) -> str:
    grpo, at_1024 = _mean(results, "grpo"), texts_of(PRESETS[name]).cost
    rows = []
    for kind, what in (("prompts", "prompts"), ("generated", "generated tokens"), ("trained", "trained tokens")):
        own = _mean(results, name)[kind]
        rows.append([what, f"{own:,.0f}", f"{own / grpo[kind]:.2f}"])
    head = ["200 updates of 64 rows", PRESETS[name].name, "GRPO = 1"]
    text = "Generated tokens are all that the policy wrote. Trained tokens are those in the policy term of the loss.\n"
    if "times" in at_1024:
        text += f"Responses have about 36 tokens here. **At 1,024 tokens it costs {at_1024}.**\n"
        text += f"This run has segments for the short responses: {SHORT[name]}.\n"
    elif name != "grpo":
        text += f"Responses have about 36 tokens here. At 1,024 tokens: {at_1024}.\n"
    if float(rows[0][2]) < 1.0:
        text += "It makes several updates of each batch, so the same number of updates takes fewer prompts.\n"
    return f"{table(head, rows)}\n{text}[Cost and sizes](../scaling.md#what-each-algorithm-costs) has other sizes.\n"


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
    if name == "clip_cov" and not share["none"]:
        zero = "less than 0.1% of the tokens have no credit (of 2,300 tokens Clip-Cov takes at most one)"
    hatched = " Hatched tokens are not in the policy term." if PRESETS[name].config.token_mask != "none" else ""
    return (
        f"{picture}The embedded model was trained by 20 updates of GRPO. The colours are the credit that "
        f"{PRESETS[name].name} gives to one response of that model. Blue tokens become more probable, orange ones less."
        f"{hatched}\nOver {results['responses']} responses {both}, and {zero}.\n"
        "[The viewer](../viewer.md) shows this for your own runs, and [`trl-credit explain`](../explain.md) for any "
        "responses."
    )


def index(results: dict[str, Any]) -> str:
    """The overview of all algorithms."""
    grpo = _mean(results, "grpo")
    rows = []
    for name, preset in PRESETS.items():
        own = _mean(results, name) if name in results["runs"] else None
        ratio = [f"{own[kind] / grpo[kind]:.2f}" if own else "" for kind in ("prompts", "generated", "trained")]
        texts = texts_of(preset)
        long = re.match(r"(\d+) times", texts.cost)
        ratio.append(long[1] if long else "1")
        rows.append([f"[{preset.name}]({name}.md)", f"`{name}`", preset.summary, texts.use_when, *ratio])
    head = ["algorithm", "`--algo`", "what it does", "use it when", "prompts", "generated", "trained"]
    head.append("generated at 1,024")
    return (
        "# Algorithms\n\nEach algorithm is a published setting of the same [knobs](../knobs.md). "
        "[Which algorithm?](../which.md) helps to choose.\n\n"
        "The last four columns are multiples of GRPO's. Three are prompts, generated and trained tokens of 200 "
        "updates on the embedded task ([runs](../results/algorithms.json)). Most of its responses have 36 tokens.\nThe "
        "last one is generated tokens for responses of 1,024 tokens, as `trl-credit plan` computes them "
        "([cost](../scaling.md#what-each-algorithm-costs)).\n\n"
        f"{table(head, rows, texts=4)}"
    )


def pages() -> dict[Path, str]:
    """Every page with its text."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    texts = {PAGES / f"{name}.md": page(name, results) for name in PRESETS}
    return {PAGES / "index.md": index(results), **texts}


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
