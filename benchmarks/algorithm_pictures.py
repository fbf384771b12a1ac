"""The pictures of each algorithm's page, and what `docs/results/algorithms.json` keeps. See `algorithm_pages.py`."""

import base64
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch


sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

from chromium import Chromium

from trl_credit.demo import DEMO_SEGMENTS, demo_reward, demo_settings
from trl_credit.hub.recipe import build
from trl_credit.lab.comparison.histories import History, read_history
from trl_credit.lab.explain import explain, read_rollouts
from trl_credit.lab.explain.measure import load
from trl_credit.lab.explain.segments import rolled_out
from trl_credit.lab.viewer import build_page
from trl_credit.lab.viewer.runs import read_run
from trl_credit.observe.schema import Shard
from trl_credit.presets import PRESETS


STEP = 20  # the logged update whose responses are shown
WINDOW = 10  # updates in a point of a curve
GREY, BLUE = "#9aa0a6", "#1a73b8"


def measure(runs: Path, pages: Path) -> dict[str, Any]:
    """Reads all runs, draws the pictures into `pages`, and returns what is kept."""
    histories = {
        name: [read_history(folder) for folder in sorted((runs / "runs" / name).glob("seed-*"))] for name in PRESETS
    }
    kept = {name: [_kept(run) for run in of_algorithm] for name, of_algorithm in histories.items()}
    draw_curves(kept, pages)
    return {
        "command": f"trl-credit compare --algo {' '.join(PRESETS)} --seeds {_seeds(histories)} --output_dir RUNS",
        "versions": {package: version(package) for package in ("torch", "trl", "transformers")},
        "window": WINDOW,
        "runs": kept,
        **_credits(runs / "runs", pages),
    }


def _seeds(histories: dict[str, list[History]]) -> str:
    return " ".join(str(run.seed) for run in histories["grpo"])


def _curve_of(run: History) -> dict[str, list[float]]:
    """The mean reward of each `WINDOW` updates, at their middle. Where a batch feeds many updates, some have none."""
    window = np.ceil(run.axes["steps"] / WINDOW)
    windows = np.unique(window)
    means = [float(run.values[window == k].mean()) for k in windows]
    return {"step": (WINDOW * (windows - 0.5)).tolist(), "reward": [round(x, 4) for x in means]}


def _kept(run: History) -> dict[str, Any]:
    return {
        "seed": run.seed,
        **{kind: run.totals[kind] for kind in ("prompts", "generated", "trained")},
        "end": round(run.at("steps", run.totals["steps"]), 4),
        **_curve_of(run),
    }


def draw_curves(runs: dict[str, list[dict[str, Any]]], pages: Path) -> None:
    """The picture of each algorithm's reward beside that of GRPO, from the runs that are kept."""
    for name in runs:
        figure, axis = plt.subplots(figsize=(6.4, 2.8), layout="constrained")
        for algorithm, colour in [("grpo", GREY), (name, BLUE)][name == "grpo" :]:
            for k, run in enumerate(runs[algorithm]):
                label = PRESETS[algorithm].name if k == 0 else None
                axis.plot(run["step"], run["reward"], color=colour, label=label, linewidth=1.6)
        axis.set_title(f"Does {PRESETS[name].name} learn the embedded task?", fontsize=10)
        axis.set(xlabel="update", ylabel="mean reward", ylim=(0, 1), xlim=(0, None))
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, loc="lower right")
        figure.savefig(pages / f"{name}_reward.png", dpi=110)
        plt.close(figure)


def _credits(runs: Path, pages: Path) -> dict[str, Any]:
    """Pictures of the credit, and shares of it, on the responses of GRPO's first run."""
    shard = read_rollouts(runs / "grpo" / "seed-0", step=STEP)
    model, tokenizer = load(str(runs / "grpo" / "seed-0"))
    explained = {name: _explained(name, shard, model, tokenizer) for name in PRESETS if name != "spo_tree"}
    rows = range(len(shard.responses))
    shown = max(rows, key=lambda i: (shard.responses[i]["reward"] == 0, -shard.responses[i]["group"]))
    with Chromium(1000, 700) as browser:
        browser.prefer("light")
        for name in PRESETS:
            if name == "spo_tree":
                shards, fragment = read_run(runs / name / "seed-0", [STEP])[0], ""
            else:
                shards = [explained["grpo"]] + ([explained[name]] if name != "grpo" else [])
                response = shard.responses[shown]
                fragment = f"group={response['group']}&index={response['index']}"
            _take(browser, build_page(shards, title=PRESETS[name].name), fragment, pages / f"{name}_credit.png")
    return {"responses": len(shard.responses), "credit": {name: _share(one) for name, one in explained.items()}}


def _explained(name: str, shard: Shard, model: Any, tokenizer: Any) -> Shard:
    settings = {"output_dir": "unused", "report_to": "none"}
    torch.manual_seed(0)
    config, segments = build(PRESETS[name].config, **settings), None
    if config.rollouts == "chain":
        own = {knob: value for knob, value in demo_settings(PRESETS[name].config).items() if knob in DEMO_SEGMENTS}
        config, segments = rolled_out(shard, name, (model, tokenizer), rewards=[demo_reward], settings=settings | own)
    return explain(shard, config, name=PRESETS[name].name, segments=segments).shard


def _share(shard: Shard) -> dict[str, float]:
    """Share of the credit on the ⌈0.2 n⌉ tokens of highest entropy of each response, and of tokens without any."""
    high = every = 0.0
    tokens = without = 0
    for response in shard.responses:
        credit = np.abs(np.array([0.0 if c is None else c for c in response["credit"]]))
        first = np.argsort(-np.array(response["entropy"]), kind="stable")[: -(-len(credit) // 5)]
        high, every = high + credit[first].sum(), every + credit.sum()
        tokens, without = tokens + len(credit), without + int((credit == 0).sum())
    return {"on_entropy": round(float(high / every), 3), "none": round(without / tokens, 3)}


def _take(browser: Chromium, html: str, fragment: str, picture: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(html, encoding="utf-8")
        browser.open(file, fragment=fragment)
        box = browser.evaluate(
            "(r => [r.x, r.y, r.width, r.height])(document.querySelector('#columns').getBoundingClientRect())"
        )
        clip = {"x": box[0] - 12, "y": box[1] - 8, "width": box[2] + 24, "height": box[3] + 16, "scale": 1.5}
        shot = browser.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        picture.write_bytes(base64.b64decode(shot["data"]))
