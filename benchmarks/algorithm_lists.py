"""Everything that lists all algorithms, written from `PRESETS`:  python benchmarks/algorithm_lists.py

These are the stub `trl_credit/__init__.pyi`, the tables in README.md, docs/scaling.md and docs/coming_from_trl.md, and
the classes in docs/api.md. `docs/lint.py` compares them.
"""

import re
from pathlib import Path

import trl
from pages import ROOT, page_of, texts_of

import trl_credit
from trl_credit import STEMS
from trl_credit.config import defaults
from trl_credit.config.from_trl import changed_defaults
from trl_credit.presets import PRESETS, Preset
from trl_credit.support.files import write_atomically


# what `plan` computes for the algorithms with rollouts, relative to GRPO, see docs/scaling.md
OF_ROLLOUTS = {
    "spo_chain": ["186", "1", "1", "0", "2", "2.5"],
    "vine_ppo": ["151", "1", "1", "0", "2", "2.5"],
    "spo_tree": ["26", "20", "0.9", "0", "0.9", "6.3"],
}
# what our runs showed, with the page that says so (on `demo` at one rate for all); the others were not measured
_NONE_SHOWN = "[none shown](docs/results/demos.md#which-preset-is-better-on-demo)"
MEASURED = {
    "grpo": "the baseline of [all comparisons](docs/which.md#what-was-measured)",
    "dapo": _NONE_SHOWN,
    "dr_grpo": _NONE_SHOWN,
    "opo": _NONE_SHOWN,
    "p_trace": "[below](docs/which.md#the-answer-at-the-very-end) if the answer is at the end, else none shown",
    "s_trace": "[above](docs/which.md#loose-filler) at a small rate with loose filler, else below or none shown",
    "grpo_lambda": "[above](docs/results/demos.md#which-part-of-grpo-lambda-does-it) on one task, as GRPO at twice the "
    "learning rate; below on others",
    "gspo": "[below](docs/which.md#several-updates-per-batch) with four updates per batch",
    "ha_dw": "[none shown](docs/which.md#hard-prompts)",
    "spo_chain": "[above](docs/which.md#loose-filler) at equal updates, below at equal tokens",
    "spo_tree": "[behind](docs/results/demos.md#which-preset-is-better-on-demo) at equal tokens, not corrected",
    "vine_ppo": "[above](docs/which.md#loose-filler) at equal updates, below at equal tokens",
    "opd": "[above](docs/which.md#a-teacher) with a better model, above or below if told the answer; ruined by a wrong "
    "teacher",
    "rlsd": "[above](docs/which.md#a-teacher) in one setting of six",
}
OPTIONS = "    options: {members: false, show_signature: false}\n"


def readme_table() -> str:
    """The README's table of algorithms, as Markdown. The name leads to the algorithm's own section."""
    rows = []
    for name, preset in PRESETS.items():
        texts, arxiv, (page, anchor) = texts_of(preset), preset.paper["id"], page_of(name)
        target = page.relative_to(ROOT).as_posix() + (f"#{anchor}" if anchor else "")
        when = re.sub(r"; (not )?measured here.*", "", texts.use_when)
        rows.append(
            f"| [`{name}`]({target}) | `{_stem(preset)}Trainer` | {when} | {texts.cost} | "
            f"{MEASURED.get(name, 'not measured')} | [{arxiv}](https://arxiv.org/abs/{arxiv}) |"
        )
    head = "| `--algo` | class | use it when | costs | measured difference from GRPO | paper |"
    return "\n".join([head, "|---|---|---|---|---|---|", *rows])


def cost_table() -> str:
    """The table of docs/scaling.md: a row for each kind of costs. A pass without a gradient is a quarter of GRPO's."""
    by_cost: dict[tuple[str, ...], list[str]] = {}
    for name, preset in PRESETS.items():
        if preset.config.rollouts == "none":
            several, reference = preset.config.updates_per_batch > 1, preset.config.beta > 0
            # with a right response of 1,024 tokens in the context of 256 tokens
            sees_response = preset.config.teacher_prompt == "success"
            teacher = 0 if preset.config.teacher is None else 1.8 if sees_response else 1
            flops = 1 + 0.25 * (several + reference + teacher)
            passes = (str(int(several)), "1 (β > 0)" if reference else "0", f"{teacher:g}", "1")
            cost = ("1", *passes, f"{flops:g}")
        else:
            cost = tuple(OF_ROLLOUTS[name])
        by_cost.setdefault(cost, []).append(f"`{name}`")
    names = ("`--algo`", "generated tokens", "π_old", "reference", "teacher", "loss", "FLOPs of passes")
    head = f"| {' | '.join(names)} |\n{'|---' * len(names)}|\n"
    return head + "\n".join(f"| {', '.join(names)} | {' | '.join(cost)} |" for cost, names in by_cost.items())


def changed_table() -> str:
    """The table of docs/coming_from_trl.md: what each preset changes of TRL's defaults."""
    columns, plain = ("loss_type", "beta", "use_bias_correction_kl"), defaults(trl.GRPOConfig)
    head = ["configuration", *[f"`{name}`" for name in columns], "others"]
    rows = [head, ["---"] * len(head), ["TRL's `GRPOConfig`", *[_value(plain[name]) for name in columns], ""]]
    for preset in PRESETS.values():
        changed = changed_defaults(preset.config)
        cells = [_value(changed.pop(field)[1]) if field in changed else "" for field in columns]
        others = [f"`{field}` {_value(theirs)} → {_value(ours)}" for field, (theirs, ours) in changed.items()]
        rows.append([f"`{preset.config.__name__}`", *cells, ", ".join(others)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def stub(before: str) -> str:
    """The stub, with the lines of `before` that are not those of an algorithm."""
    lines = [
        line
        for line in before.partition("\n__version__")[0].splitlines()
        if not re.match(r"from \.presets\.\w+ import", line)
    ]
    comments, imports = lines[:1], lines[1:]
    imports += [f"from .presets.{name} import {stem}Config" for name, stem in STEMS.items()]
    imports.sort(key=lambda line: line.split()[1])
    trainers = [f"class {stem}Trainer(CreditTrainer): ..." for stem in sorted(STEMS.values(), key="{}Trainer".format)]
    public = [f'    "{name}",' for name in trl_credit.__all__]
    blocks = [[*comments, *imports], ["__version__: str"], trainers, ["__all__ = [", *public, "]"]]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def written() -> dict[Path, str]:
    """Every file with the text that it must have."""
    docs = ROOT / "docs"
    classes = {
        kind: "\n".join(f"::: trl_credit.{stem}{kind}\n{OPTIONS}" for stem in STEMS.values()) + "\n"
        for kind in ("Config", "Trainer")
    }
    blocks = {kind: rf"(::: trl_credit\.(?!Credit)\w+{kind}\n{re.escape(OPTIONS)}\n?)+" for kind in classes}
    replaced = [
        (ROOT / "README.md", r"\| `--algo` \| class \|(.*\n\|)*.*\|", readme_table()),
        (docs / "scaling.md", r"\| `--algo` \| generated tokens \|(.*\n\|)*.*\|", cost_table()),
        (docs / "coming_from_trl.md", r"\| configuration \| `loss_type` \|(.*\n\|)*.*\|", changed_table()),
        *((docs / "api.md", blocks[kind], classes[kind]) for kind in classes),
    ]
    texts = {path: path.read_text(encoding="utf-8") for path, _, _ in replaced}
    for path, pattern, text in replaced:
        texts[path], places = re.subn(pattern, lambda _, text=text: text, texts[path])
        if places != 1:
            raise ValueError(f"{path.name} has {places} places for its list of algorithms, not 1")
    path = ROOT / "trl_credit" / "__init__.pyi"
    return {**texts, path: stub(path.read_text(encoding="utf-8"))}


def _stem(preset: Preset) -> str:
    return preset.config.__name__.removesuffix("Config")


def _value(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


if __name__ == "__main__":
    for path, text in written().items():
        write_atomically(path, text)
