"""The model card of a run: what was trained, on what, how well, by whose methods, and how to do it again."""

import html
import json
import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import packages_distributions, version
from pathlib import Path, PurePath
from typing import Any

from huggingface_hub import EvalResult, ModelCard
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from ..dead_knobs import live_part
from ..demo import DEMO_SEGMENTS, DEMO_SETTINGS
from ..report.credit_plot import plot_credit
from ..trainer import CreditTrainer
from .describe import SYMBOLS, describe_credit
from .papers import TRL, papers_of
from .recipe import changed, function_comments, public_command, scrub, to_yaml, without_folders


logger = logging.getLogger(__name__)

PACKAGES = ("trl-credit", "trl", "transformers", "torch", "accelerate", "datasets", "tokenizers")
IMAGES = {
    "reward_curve.png": "Mean reward by optimizer step",
    "credit_plot.png": "How credit was assigned, by optimizer step",
    "evaluation/evaluation.png": "Evaluation",
}
_MARKDOWN = re.compile(r"([\\`*_\[\]#|~$!])")


@dataclass
class TrainingData:
    """What the prompts were. `hub_id` is the set's id on the Hub, if it came from there; `revision` its commit, or the
    fingerprint of a file; `cleaning` a report in plain text of what was left out and why."""

    name: str
    rows: int
    hub_id: str | None = None
    revision: str | None = None
    cleaning: str | None = None


def write_model_card(
    trainer: CreditTrainer,
    *,
    name: str,
    data: TrainingData | None = None,
    choices: tuple[Any, ...] = (),
    recipe: dict[str, Any] | None = None,
    command: list[str] | None = None,
) -> Path:
    """Writes `README.md`, `recipe.yaml` and `credit_plot.png` to the run's folder, on the main process alone.

    The card takes in `evaluation/evaluation.md` and `.json` and `reward_curve.png` where they are there; an evaluation
    that cannot be read is left out with a warning. Settings of this machine and secrets are left out, and what comes
    from elsewhere is escaped.

    Args:
        trainer ([`CreditTrainer`]):
            After training.
        name (`str`):
            The algorithm's, as people write it: "S-trace".
        data ([`TrainingData`], *optional*):
            The training set.
        choices (`tuple` of dataclasses, *optional*):
            Settings beside the configuration, as the command line has them; what differs from their defaults is shown.
        recipe (`dict`, *optional*):
            Further lines at the top of the recipe, such as `algo`.
        command (`list[str]`, *optional*):
            The command line, from the script on.

    Returns:
        `Path`: of the card.
    """
    args, folder = trainer.args, Path(trainer.args.output_dir)
    recipe = dict(recipe or {})
    for part in choices:
        recipe |= changed(part)
    # the embedded model has defaults of its own
    of_demo = {**DEMO_SETTINGS, **live_part(DEMO_SEGMENTS, vars(args))}
    recipe |= changed(args, always=of_demo if recipe.get("model_name_or_path") == "demo" else ())
    secrets = [args.hub_token]
    settings = scrub(function_comments(args, method=trainer.credit_method) + to_yaml(recipe), secrets=secrets)
    (folder / "recipe.yaml").write_text(settings, encoding="utf-8")
    plot = folder / "credit_plot.png"
    plot.unlink(missing_ok=True)  # of an earlier run, where this one has nothing to draw
    plot_credit(trainer.state.log_history, plot, title=f"{name}: credit")

    # TRL knows the base model, the tags, and the trackers; its text makes room for ours
    repo_name = trainer.hub_model_id or args.hub_model_id or folder.resolve().name
    trainer.create_model_card(model_name=repo_name.split("/")[-1])
    path = folder / "README.md"
    card = ModelCard.load(path)
    card.data.pop("licence", None)
    if (folder / "adapter_config.json").is_file():
        card.data.library_name = "peft"
    card.data.pipeline_tag = "text-generation"
    card.data.tags = sorted(set(card.data.tags or []))
    if data is not None and data.hub_id is not None and _is_repo_id(data.hub_id):
        card.data.datasets = [data.hub_id]
    own = {folder.resolve().name, repo_name.split("/")[-1], f"checkpoint-{trainer.state.global_step}"}
    evaluation, results = _evaluation(folder, own)
    card.data.eval_results = results or None

    sections = [
        _opening(name, repo_name, card.data.get("base_model"), args, trainer.credit_method),
        _training(trainer, data, folder),
        f"## Recipe\n\n{_fenced(settings, 'yaml')}",
        f"## Command\n\n{_fenced(public_command(command), 'bash')}" if command else "",
        evaluation,
        _pictures(folder),
        _versions(args),
        _citations(args),
    ]
    card.text = scrub("\n\n".join(s.strip() for s in sections if s) + "\n", secrets=secrets)
    card.save(path)
    return path


def _opening(name: str, repo_name: str, base_model: str | None, args: Any, method: Callable | None) -> str:
    base = f"[{escape(base_model)}](https://huggingface.co/{base_model})" if base_model else "A local model"
    first = papers_of(args)[0]
    loading = (
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f"tokenizer = AutoTokenizer.from_pretrained({repo_name!r})\n"
        f"model = AutoModelForCausalLM.from_pretrained({repo_name!r})"
    )
    rows = describe_credit(args, method=method)
    credit = "\n".join(f"| {what} | {escape(words)} |" for what, words in rows.items())
    if "formula" in rows:
        credit += f"\n\n{SYMBOLS}"
    return (
        f"# {escape(repo_name.split('/')[-1])}\n\n"
        f"{base}, trained further with {escape(name)} ([{first['title']}](https://arxiv.org/abs/{first['id']})) by "
        "trl_credit and [TRL](https://github.com/huggingface/trl).\n\n"
        f"{_fenced(loading, 'python')}\n\n## Credit\n\n| of a token | is |\n|---|---|\n{credit}"
    )


def _training(trainer: CreditTrainer, data: TrainingData | None, folder: Path) -> str:
    args, state = trainer.args, trainer.state
    rewards = [row["reward"] for row in state.log_history if row.get("reward") is not None]
    lines = [
        f"* {state.global_step:,} optimizer steps, {args.num_generations} responses per prompt, at most "
        f"{args.max_completion_length:,} tokens each."
    ]
    if rewards:
        lines.append(
            f"* Mean training reward: {rewards[0]:.3f} at the first logged step, {rewards[-1]:.3f} at the last."
        )
    if data is not None:
        where = f" ([on the Hub](https://huggingface.co/datasets/{data.hub_id}))" if _is_repo_id(data.hub_id) else ""
        revision = f", revision {escape(data.revision)}" if data.revision else ""
        lines.append(f"* Prompts: {escape(without_folders(data.name))}{where}{revision}, {data.rows:,} rows.")
    text = "## Training\n\n" + "\n".join(lines)
    if data is not None and data.cleaning:
        text += f"\n\nWhat was left out of the prompts:\n\n{_fenced(data.cleaning, 'text')}"
    return text


def _evaluation(folder: Path, own: set[str]) -> tuple[str, list[EvalResult]]:
    """The section, and the metrics of the models named in `own`; neither where one of the files is damaged."""
    path = folder / "evaluation" / "evaluation.json"
    try:
        results = _eval_results(path, own) if path.is_file() else []
        path = path.with_suffix(".md")
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        logger.warning(
            "%s was not written by trl_credit (%s: %s): the card has no evaluation. Evaluate again for one",
            *(path, type(error).__name__, error),
        )
        return "", []
    return f"## Evaluation\n\n{_tamed(text)}" if text else "", results


def _tamed(text: str) -> str:
    """Markdown with its headings below ours, and neither HTML nor pictures from anywhere."""
    text = re.sub(r"^#+", "###", text, flags=re.MULTILINE)
    tamed = {"<": "&lt;", r"\<": "&lt;", "![": r"\!["}
    # pairs of a backslash and what it escapes stay together: a second backslash would undo the first
    return re.sub(r"\\.|<|!\[", lambda found: tamed.get(found[0], found[0]), text)


def _pictures(folder: Path) -> str:
    there = [f"![{title}]({name})" for name, title in IMAGES.items() if (folder / name).is_file()]
    return "## Curves\n\n" + "\n\n".join(there) if there else ""


def _versions(args: Any) -> str:
    packages = list(PACKAGES)
    if args.use_vllm and args.vllm_mode == "colocate":
        packages += packages_distributions().get("vllm", [])[:1]  # builds for other hardware have other names
    return "## Versions\n\n" + "\n".join(f"* {package} {version(package)}" for package in packages)


def _citations(args: Any) -> str:
    entries = [paper["citation"] for paper in papers_of(args)] + [TRL]
    return "## Citations\n\n" + _fenced("\n\n".join(entries), "bibtex")


def _eval_results(path: Path, own: set[str]) -> list[EvalResult]:
    """The metrics of `evaluation.json` for the models named in `own`, by the last part of their names."""
    results = {}
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        for metric, numbers in row["metrics"].items():
            value = numbers["value"]
            if PurePath(row["model"]).name in own and value is not None and math.isfinite(value):
                results[row["set"], row["protocol"], metric] = EvalResult(
                    task_type="text-generation",
                    dataset_type=str(row["set"]),
                    dataset_name=str(row["set"]),
                    dataset_config=str(row["protocol"]),
                    metric_type=metric,
                    metric_name=metric,
                    metric_value=value,
                )
    return list(results.values())


def escape(text: str) -> str:
    """Text of others as text: neither HTML nor Markdown, on one line."""
    return _MARKDOWN.sub(r"\\\1", html.escape(" ".join(str(text).split()), quote=False))


def _fenced(text: str, language: str) -> str:
    """A code block that `text` cannot leave."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.strip()}\n{fence}"


def _is_repo_id(name: str | None) -> bool:
    try:
        validate_repo_id(name or "")
    except HFValidationError:
        return False
    return bool(name)
