"""The section of each algorithm on its page, from its preset and from one run of each on the embedded task.

    python benchmarks/algorithm_pages.py            # fills the pages from presets and the results below
    python benchmarks/algorithm_pages.py RUNS       # also reads the runs and draws both pictures of each algorithm

A page has the section of algorithm NAME at `<!-- table: NAME -->`. RUNS is a folder of `trl-credit compare --algo …
--seeds … --output_dir RUNS` with all algorithms. What is kept of it is `docs/results/algorithms.json`. The pictures
need Chromium, and take a few minutes. An algorithm without a run has neither measured costs nor pictures.
"""

import argparse
import json
import os
import re
from dataclasses import fields
from pathlib import Path, PurePath
from typing import Any

from pages import ROOT, SHARED_PAGES, page_of, table, texts_of, write

from trl_credit.config import CreditConfig
from trl_credit.hub.describe import describe_credit
from trl_credit.hub.recipe import build
from trl_credit.presets import PRESETS, Preset
from trl_credit.support.files import write_atomically


PICTURES = ROOT / "docs" / "algorithms"
RESULTS = ROOT / "docs" / "results" / "algorithms.json"
WHICH = ROOT / "docs" / "which.md"
# a pattern of a formula → the sentence that explains it
LEGEND = {
    r"ℓ°|ℓᵀ": "$ℓ$ and $ℓ°$ are the log-probabilities of a token under the current policy and under the one that "
    "sampled it.",
    r"ℓ − sg": "$ℓ$ is the log-probability of a token under the current policy.",
    r"ℓ_k": "$t$ is the token itself. The sum runs over tokens $k$ of the same response.",
    r"Σ_\{k≥t\}": r"$γ^{k-t}$ is 0.5 for a token `future_half_life` ahead. $\operatorname{clip}$ keeps the factor in "
    "`future_clip`.",
    r"sg": r"$\operatorname{sg}$ stops the gradient: the value counts, its gradient does not.",
    r"ℓᵀ": "$ℓ^T$ is that of the same token under the [teacher](teacher.md). Minus that of the policy it is $d$.",
    r"c ·": "$c$ is `distillation_coef`.",
    r"μ": "$μ$ is `evidence_share`, which falls to 0 over `evidence_steps` steps. The bounds are 1 ± `evidence_clip`.",
    r"min\(ρ, 2\)": "2 is `distillation_ratio_max`. The loss of a token is $-A$.",
    r"g\^": "$g = γλ$ (`gamma`, `trace_lambda`) is the decay of the trace per token.",
    r"z_k": "$z_k$ is 1 at tokens that the selector chose, else 0.",
    r"W of GSPO": "The $W$ of GSPO is the mean of $ℓ - ℓ°$ over the response.",
    r"ρ": r"$ρ$ is the ratio $\exp(ℓ - ℓ°)$.",
    r"mean A\)": "The means are over the tokens of the generation batch.",
    r"V\(": "$V$ is the expected reward at a place of the response, estimated by rollouts.",
    r"π_old": r"$π_\text{old}$ is the probability of the token when it was sampled.",
    r"A = r − mean": "$r$ is the reward of the response, and the mean is that of its group.",
    r"Σ L r": "$r$ and $L$ are reward and length of a response, and the sums run over its group.",
    r"Φ": "$Φ$ is the difficulty weight.",
    r"group advantage": "The group advantage is the reward minus the group's mean, divided by its standard deviation.",
}
FUNCTIONS = {name: rf"\{name}" for name in ("exp", "log", "min")} | {
    name: rf"\operatorname{{{name}}}" for name in ("clip", "sg", "sgn")
}
SIGNS = {"Σ": r"\sum", "−": "-", "ᵀ": "^T", "≤": r" \le ", "≥": r" \ge ", "·": r"\cdot", "_old": r"_\text{old}"}
# what a knob does; where it depends on the algorithm or the value, by that, and "" for all others
MEANINGS: dict[str, str | dict[str, str]] = {
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
    "dull_kl": "Groups without [signal](glossary.md) `keep` or `drop` their KL term.",
    "evidence_clip": "The factor of the teacher is clipped to 1 ± this, before μ.",
    "evidence_negative_only": "If true, responses with a positive advantage keep it.",
    "evidence_share": "μ at the start of the run. With 0 it is GRPO.",
    "evidence_steps": "Optimizer steps over which μ falls to 0.",
    "future_clip": "Smallest and largest factor on the advantage.",
    "future_ratio_max": "The change of a token with a larger ratio does not count.",
    "future_safety_ratio": "Tokens with a negative advantage and a larger ratio get no factor above 1.",
    "future_half_life": "The change of a token this far ahead counts half. In tokens.",
    "gamma": "γ. The trace decays by γλ per token.",
    "groups": "Groups without [signal](glossary.md) stay in the batch.",
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


def section(name: str, results: dict[str, Any]) -> str:
    """The section of an algorithm, as Markdown. Its headings are below the page's own one for it."""
    preset = PRESETS[name]
    base = preset.config.__name__.removesuffix("Config")
    paper, texts = preset.paper, texts_of(preset)
    facts = [
        ["Use it when", texts.use_when],
        ["Costs", texts.cost + (" (for responses of 1,024 tokens)" if "times" in texts.cost else "")],
        ["Run it", f"`trl-credit train --algo {name}`, or `{base}Trainer` with `{base}Config` in Python"],
        ["Paper", f"[{paper['title']}](https://arxiv.org/abs/{paper['id']})"],
    ]
    page, anchor = page_of(name)
    level = "###" if anchor else "##"
    text = "\n".join(
        [
            f"{texts.idea}\n",
            table(["In short", ""], facts, texts=2),
            f"{level} Formula\n\n{tex(preset.formula)}\n",
            f"{_legend(preset, again=not _is_first(name))}\n",
            f"{level} Knobs\n\n{_knobs(preset)}",
            *([f"{level} On the embedded task\n\n{_measured(name, results)}"] if name in results["runs"] else []),
        ]
    )

    def link(match: re.Match[str]) -> str:
        return f"]({PurePath(os.path.relpath(ROOT / 'docs' / match[1], page.parent)).as_posix()}"

    return re.sub(r"\]\(([\w/]+\.(?:md|png))", link, text)


def _is_first(name: str) -> bool:
    """Whether no section is before its own on the page."""
    return next((other for other in SHARED_PAGES if page_of(other)[0] == page_of(name)[0]), name) == name


def tex(formula: str) -> str:
    """W, A and M, each on a line of a displayed formula."""
    lines = (_tex(line).replace(" = ", " &= ", 1) for line in re.split(r", (?=[AM] = )", formula))
    return "$$\n\\begin{aligned}\n" + " \\\\\n".join(lines) + "\n\\end{aligned}\n$$"


def _tex(line: str) -> str:
    """A line of a formula in TeX, where words of several letters are text."""

    def words(match: re.Match[str]) -> str:
        before, text, after = match.groups()
        if {*text.split()} <= FUNCTIONS.keys():
            return before + " ".join(FUNCTIONS[name] for name in text.split()) + after
        in_front = before and re.search(r"[\w)|]$", line[: match.start()])
        behind = after and re.match(r"[\w(-]", line[match.end() :])
        opened = rf"\text{{{before}" if in_front else rf"{before}\text{{"
        return f"{opened}{text}" + (f"{after}}}" if behind else f"}}{after}")

    line = re.sub("|".join(SIGNS), lambda match: SIGNS[match[0]], line)
    return re.sub(r"( ?)(?<![\\{A-Za-z])\b([A-Za-z']{2,}(?: (?:a|[A-Za-z']{2,}))*)\b( ?)", words, line)


def _measured(name: str, results: dict[str, Any]) -> str:
    """Costs, curve and credit of its run."""
    return f"{_curve(name, results)} {_cost(name, results)}".rstrip() + f"\n\n{_pictures(name, results)}\n"


def _legend(preset: Preset, *, again: bool) -> str:
    """The symbols of its formula; if `again`, those that a section before it on the page does not explain."""
    meanings = [text for pattern, text in LEGEND.items() if re.search(pattern, preset.formula)]
    if LEGEND["ℓ°|ℓᵀ"] in meanings and LEGEND["ℓ − sg"] in meanings:
        meanings.remove(LEGEND["ℓ − sg"])
    first = "$W$ is the log importance weight, $A$ the advantage and $M$ the mask ([glossary](glossary.md))."
    known = {LEGEND["ℓ°|ℓᵀ"], LEGEND["ℓ − sg"], LEGEND["sg"], LEGEND["group advantage"], first} if again else set()
    return "\n".join(text for text in [first, *meanings] if text not in known)


def _meaning(preset: Preset, knob: str, value: str, help_: str) -> str:
    """What a knob does with this value."""
    meaning = MEANINGS.get(knob, help_.partition(". ")[0].rstrip(".") + ".")
    return meaning if isinstance(meaning, str) else meaning.get(preset.name) or meaning.get(value) or meaning[""]


def _settings(preset: Preset) -> dict[str, str]:
    shown = describe_credit(build(preset.config, output_dir="unused", report_to="none"))
    return {setting.name: setting.value for setting in shown}


def _knobs(preset: Preset) -> str:
    """The settings in which a preset differs from GRPO's, with those that act only beside them; what is off is left
    out."""
    grpo, own = _settings(PRESETS["grpo"]), _settings(preset)
    names = [name for name in own if preset.name == "GRPO" or own[name] != grpo.get(name)]
    off = {"none", "false"} if preset.name == "GRPO" else {"0", "keep", "token", "rollout"}
    names = [name for name in names if name != "credit" and own[name] not in off]
    helps = dict.fromkeys(own, "")
    for config in (CreditConfig, preset.config):  # a preset's own value of a knob has no help
        helps |= {field.name: field.metadata["help"] for field in fields(config) if "help" in field.metadata}
    rows = [[f"`{name}`", f"`{own[name]}`", _meaning(preset, name, own[name], helps[name])] for name in names]
    cells = [[cell.replace("|", "\\|").replace("\n", "\\n") for cell in row] for row in rows]
    return table(["knob", "here", "meaning"], cells, texts=3)


def _cost(name: str, results: dict[str, Any]) -> str:
    own, grpo = _mean(results, name), _mean(results, "grpo")
    counts = (
        f"{own[kind]:,.0f} {what}"
        + (f" ({ratio:.2f} × GRPO's)" if abs((ratio := own[kind] / grpo[kind]) - 1) > 0.02 else "")
        for kind, what in (("prompts", "prompts"), ("generated", "generated tokens"), ("trained", "trained tokens"))
    )
    text = "It took {}, {} and {}.".format(*counts)
    if name != "grpo" and "×" not in text:
        return ""
    return text + (f" Segments are short, as are the responses: {SHORT[name]}." if name in SHORT else "")


def _mean(results: dict[str, Any], name: str) -> dict[str, float]:
    runs = results["runs"][name]
    return {kind: sum(run[kind] for run in runs) / len(runs) for kind in ("prompts", "generated", "trained", "end")}


def _curve(name: str, results: dict[str, Any]) -> str:
    own, grpo = _mean(results, name)["end"], _mean(results, "grpo")["end"]
    against = "." if name == "grpo" else f" ({grpo:.2f} with GRPO)."
    run = "In one run of 200 updates of 64 rows, at an untuned rate"
    return f"{run}, the mean reward of the last 20 is {own:.2f}{against}"


def _pictures(name: str, results: dict[str, Any]) -> str:
    shown = (
        f"![Mean reward of {PRESETS[name].name} and of GRPO over 200 updates](algorithms/{name}_reward.png)\n\n"
        f"![The credit of each token of a response under {PRESETS[name].name}](algorithms/{name}_credit.png)\n\n"
    )
    hatched = " Hatched tokens are not in the policy term." if PRESETS[name].config.token_mask != "none" else ""
    colours = ("Blue tokens become more probable, orange ones less." if _is_first(name) else "") + hatched
    if name not in results["credit"]:
        text = f"{colours} V is the estimated value before and after the last part of a response in the tree."
        return shown + text.lstrip()
    share, grpo = results["credit"][name], results["credit"]["grpo"]
    both = f"{share['on_entropy']:.0%} of the credit lies on the fifth of the tokens with the highest entropy"
    both += "" if name == "grpo" else f" (GRPO: {grpo['on_entropy']:.0%})"
    zero = f", and {share['none']:.0%} of the tokens have none" if share["none"] else ""
    if name == "clip_cov" and not share["none"]:
        zero = ", and less than 0.1% of the tokens have none (of 2,300 tokens Clip-Cov takes at most one)"
    return shown + f"{colours} Over {results['responses']} responses {both}{zero}.".lstrip()


def tables() -> dict[Path, dict[str, str]]:
    """The sections of each page, by algorithm, and the overview of all."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    of_page: dict[Path, dict[str, str]] = {WHICH: {"algorithms": overview()}}
    for name in PRESETS:
        of_page.setdefault(page_of(name)[0], {})[name] = section(name, results)
    return of_page


def overview() -> str:
    """What each algorithm does, with a link to its page."""
    rows = []
    for name, preset in PRESETS.items():
        page, anchor = page_of(name)
        target = page.relative_to(ROOT / "docs").as_posix() + (f"#{anchor}" if anchor else "")
        rows.append([f"[{preset.name}]({target})", preset.summary])
    return table(["algorithm", "what it does"], rows, texts=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="?", type=Path, metavar="RUNS")
    runs = parser.parse_args().runs
    if runs is not None:
        from algorithm_pictures import measure

        write_atomically(RESULTS, json.dumps(measure(runs, PICTURES), indent=1, ensure_ascii=False) + "\n")
    for path, of_page in tables().items():
        write(path, of_page)


if __name__ == "__main__":
    main()
