"""The model card of a run: what was trained, on what, how well, by whose methods, and how to do it again."""

import html
import json
import logging
import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from importlib.metadata import packages_distributions, version
from pathlib import Path, PurePath
from typing import Any

from accelerate.utils import is_peft_model
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from ..algorithms import ALGORITHMS
from ..report.credit_plot import plot_credit
from ..report.sampling import describe_sampling
from ..trainer import CreditTrainer
from .describe import SYMBOLS, describe_credit, describe_updates
from .papers import TRL, papers_of
from .public import Public
from .recipe import command_of, function_comments, public_words, recipe_of, to_yaml
from .secrets import REMOVED, Secrets


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
    """What the prompts were. `name` and `rows` are `None` where nobody knows them. `hub_id` is the set's id on the Hub,
    if it came from there; `revision` its commit, or the fingerprint of a file; `cleaning` a report in plain text of
    what was left out or repaired and why, `None` where that is nothing."""

    name: str | None
    rows: int | None
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
    model_name: str | None = None,
    dataset_name: str | None = None,
    tags: Collection[str] | None = None,
) -> Path:
    """Writes `README.md`, `recipe.yaml` and `credit_plot.png` to the run's folder, on the main process alone.

    The card takes in `evaluation/evaluation.md` and `.json` and `reward_curve.png` where they are there; an evaluation
    that cannot be read is left out with a warning. Settings of this machine and secrets are left out before anything is
    escaped or quoted; a section that holds a secret all the same is left out with a warning. What comes from elsewhere
    is escaped.

    Args:
        trainer ([`CreditTrainer`]):
            After training.
        name (`str`):
            The algorithm's, as people write it: "S-trace".
        data ([`TrainingData`], *optional*):
            The training set. By default what the trainer has, and `dataset_name`.
        choices (`tuple` of dataclasses, *optional*):
            Settings beside the configuration, as the command line has them; what differs from their defaults is shown.
        recipe (`dict`, *optional*):
            Further lines at the top of the recipe, such as `algo`, and `env`. By default algorithm and base model.
        command (`list[str]`, *optional*):
            The command line, or what starts the script: of its flags, those of the recipe are shown.
        model_name, dataset_name, tags (*optional*):
            As in TRL's `create_model_card`: the title, an id on the Hub, and tags beside the trainer's own.

    Returns:
        `Path`: of the card.
    """
    args, folder = trainer.args, Path(trainer.args.output_dir)
    secrets = Secrets(*({f.name: getattr(part, f.name, None) for f in fields(part)} for part in (args, *choices)))
    public = Public(secrets)
    recipe = recipe_of(args, choices, public, more=_start_of(trainer) if recipe is None else recipe)
    comments = "\n".join(map(public.text, _comments(trainer, choices).splitlines()))
    settings = f"{comments}\n{to_yaml(recipe)}".lstrip()
    if secrets.found_in(settings):
        raise ValueError("the recipe would hold a secret: look for a token or a password in the run's flags")
    (folder / "recipe.yaml").write_text(settings, encoding="utf-8")
    plot = folder / "credit_plot.png"
    plot.unlink(missing_ok=True)  # of an earlier run, where this one has nothing to draw
    plot_credit(trainer.state.log_history, plot, title=f"{public.text(name)}: credit")

    repo_name = public.text(trainer.hub_model_id or args.hub_model_id or model_name or folder.resolve().name)
    own = {folder.resolve().name, repo_name.split("/")[-1], f"checkpoint-{trainer.state.global_step}"}
    evaluation, results = _evaluation(folder, own, public)
    data = data or _data_of(trainer, dataset_name)
    if data is not None:
        data = _public_data(data, public)
    base_model = _hub_base(trainer)
    parts = {
        "Opening": _opening(public.text(name), repo_name, base_model, args, trainer.credit_method, public),
        "Training": _training(trainer, data, [public.text(change) for change in trainer.changes_of_run()]),
        "Recipe": f"## Recipe\n\n{_fenced(settings, 'yaml')}",
        "Command": _command(command, recipe, (*map(type, choices), type(args)), public) if command else "",
        "Evaluation": evaluation,
        "Curves": _pictures(folder),
        "Versions": _versions(args),
        "Citations": _citations(args),
    }
    for part, text in parts.items():
        if secrets.found_in(text):
            logger.warning("the card's section %s would hold a secret, and is left out", part)
            parts[part] = ""
    front = ModelCardData(
        base_model=base_model,
        datasets=[data.hub_id] if data is not None and _is_repo_id(data.hub_id) else None,
        library_name="peft" if is_peft_model(trainer.model) else "transformers",
        model_name=repo_name.split("/")[-1],
        pipeline_tag="text-generation",
        tags=sorted({"generated_from_trainer", *trainer._tag_names, *map(public.text, tags or ())}),
        eval_results=results or None,
    )
    path = folder / "README.md"
    text = "\n\n".join(part.strip() for part in parts.values() if part)
    ModelCard(f"---\n{front}\n---\n\n{text}\n").save(path)
    return path


def _start_of(trainer: CreditTrainer) -> dict[str, Any]:
    """The lines of a recipe that no configuration holds, of a trainer that was made in Python."""
    algo = next((name for name, (_, kind) in ALGORITHMS.items() if kind is type(trainer)), None)
    base = _hub_base(trainer)
    return ({} if algo is None else {"algo": algo}) | ({} if base is None else {"model_name_or_path": base})


def _comments(trainer: CreditTrainer, choices: tuple[Any, ...]) -> str:
    named = any(hasattr(part, "reward") for part in choices)
    rewards = [] if named else [reward for reward in trainer.reward_funcs if callable(reward)]
    return function_comments(trainer.args, method=trainer.credit_method, rewards=rewards)


def _data_of(trainer: CreditTrainer, hub_id: str | None) -> TrainingData | None:
    """What a trainer knows of its training set; `None` of a stream, of which it knows nothing."""
    dataset = trainer.train_dataset
    if hub_id is None and not hasattr(dataset, "__len__"):
        return None
    name = hub_id or getattr(getattr(dataset, "info", None), "dataset_name", None)
    return TrainingData(name, len(dataset) if hasattr(dataset, "__len__") else None, hub_id)


def _public_data(data: TrainingData, public: Public) -> TrainingData:
    values = {f.name: getattr(data, f.name) for f in fields(data)}
    shown = {name: public.text(value) if isinstance(value, str) else value for name, value in values.items()}
    return TrainingData(**shown | {"hub_id": data.hub_id if shown["hub_id"] == data.hub_id else None})


def _hub_base(trainer: CreditTrainer) -> str | None:
    """The base model's id on the Hub; `None` for one of a folder, also where that folder is gone by now."""
    config = trainer.model.config
    name = getattr(config, "_name_or_path", None)
    if not _is_repo_id(name) or Path(name).exists():
        return None
    # a folder that is gone looks like an id; what came from the Hub knows its commit
    from_hub = getattr(config, "_commit_hash", None) is not None
    return name if from_hub or ("/" in name and not Path(name).parent.exists()) else None


def _command(words: list[str], recipe: dict[str, Any], kinds: tuple[type, ...], public: Public) -> str:
    ends = [number for number, word in enumerate(words, 1) if word.endswith(".py")]
    script = public_words(words[: ends[0]] if ends else words, public)
    return f"## Command\n\n{_fenced(command_of(recipe, script=script, kinds=kinds), 'bash')}"


def _opening(
    name: str, repo_name: str, base_model: str | None, args: Any, method: Callable | None, public: Public
) -> str:
    base = f"[{escape(base_model)}](https://huggingface.co/{base_model})" if base_model else "A local model"
    first = papers_of(args)[0]
    loading = (
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f"tokenizer = AutoTokenizer.from_pretrained({repo_name!r})\n"
        f"model = AutoModelForCausalLM.from_pretrained({repo_name!r})"
    )
    rows = describe_credit(args, method=method)
    credit = "\n".join(f"| {what} | {escape(public.text(words))} |" for what, words in rows.items())
    if "formula" in rows:
        credit += f"\n\n{SYMBOLS}"
    return (
        f"# {escape(repo_name.split('/')[-1])}\n\n"
        f"{base}, trained further with {escape(name)} ([{first['title']}](https://arxiv.org/abs/{first['id']})) by "
        "trl_credit and [TRL](https://github.com/huggingface/trl).\n\n"
        f"{_fenced(loading, 'python')}\n\n## Credit\n\n| of a token | is |\n|---|---|\n{credit}"
    )


def _training(trainer: CreditTrainer, data: TrainingData | None, changes: list[str]) -> str:
    args, state = trainer.args, trainer.state
    rewards = [row["reward"] for row in state.log_history if row.get("reward") is not None]
    lines = [
        f"* {state.global_step:,} optimizer steps, {describe_sampling(args, state.log_history)}; a response has at "
        f"most {args.max_completion_length:,} tokens.",
        *(f"* {sentence}" for sentence in describe_updates(args)),
    ]
    if rewards:
        lines.append(
            f"* Mean training reward: {rewards[0]:.3f} at the first logged step, {rewards[-1]:.3f} at the last."
        )
    if data is not None:
        where = f" ([on the Hub](https://huggingface.co/datasets/{data.hub_id}))" if _is_repo_id(data.hub_id) else ""
        revision = f", revision {escape(data.revision)}" if data.revision else ""
        rows = f"{data.rows:,} rows" if data.rows is not None else "a stream"
        named = f"{escape(data.name)}{where}{revision}, {rows}" if data.name else rows
        lines.append(f"* Prompts: {named}.")
    lines += [f"* {escape(change)}" for change in changes]
    text = "## Training\n\n" + "\n".join(lines)
    if data is not None and data.cleaning:
        text += f"\n\nWhat was done to the prompts:\n\n{_fenced(data.cleaning, 'text')}"
    return text


def _evaluation(folder: Path, own: set[str], public: Public) -> tuple[str, list[EvalResult]]:
    """The section, and the metrics of the models named in `own`; neither where one of the files is damaged."""
    path = folder / "evaluation" / "evaluation.json"
    try:
        results = _eval_results(path, own, public) if path.is_file() else []
        path = path.with_suffix(".md")
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        logger.warning(
            "%s was not written by trl_credit (%s: %s): the card has no evaluation. Evaluate again for one",
            *(path, type(error).__name__, error),
        )
        return "", []
    if public.text(text) == REMOVED:
        logger.warning("%s holds a secret: the card has no evaluation. Evaluate again under other names", path)
        return "", []
    return f"## Evaluation\n\n{_tamed(public.text(text))}" if text else "", results


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


def _eval_results(path: Path, own: set[str], public: Public) -> list[EvalResult]:
    """The metrics of `evaluation.json` for the models named in `own`, by the last part of their names.

    Where answers were read in two ways both are there, and each says which it is.
    """
    results = {}
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        strict = row.get("metrics_strict") or {}
        readings = [(metric, " (permissive)" if strict else "", numbers) for metric, numbers in row["metrics"].items()]
        readings += [(metric, " (strict)", numbers) for metric, numbers in strict.items()]
        for metric, reading, numbers in readings:
            value = numbers["value"]
            if PurePath(row["model"]).name in own and value is not None and math.isfinite(value):
                name, protocol, measure = (public.text(str(text)) for text in (row["set"], row["protocol"], metric))
                results[name, protocol, measure + reading] = EvalResult(
                    task_type="text-generation",
                    dataset_type=name,
                    dataset_name=name,
                    dataset_config=protocol,
                    metric_type=measure,
                    metric_name=measure + reading,
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
