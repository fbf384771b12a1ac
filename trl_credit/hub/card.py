"""The model card of a run: what was trained, on what, how well, by whose methods, and how to repeat it.

`card.md.jinja` is the text. Only named fields get into it: those of [`~trl_credit.hub.describe`] and of
[`~trl_credit.hub.recipe`].
"""

import logging
import math
import shlex
from collections.abc import Collection
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path, PurePath
from typing import Any

from accelerate.utils import is_peft_model
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from ..demo import DEMO
from ..observe.banner import describe_sampling, describe_teacher
from ..observe.plots import plot_credit
from ..presets import PRESETS
from ..runs.model_identity import embedded_task
from ..runs.resumable import ResumableTrainer
from ..support.files import read_json, write_atomically
from .describe import describe_credit, function_comments, papers_of, preset_of
from .public import Public, escape, fenced, without_html
from .recipe import recipe_of, to_yaml


logger = logging.getLogger(__name__)

TEMPLATE = Path(__file__).with_name("card.md.jinja")
LOCAL_MODEL = "a local folder"  # in the recipe of a run from Python: the path itself is private
PACKAGES = ("trl-credit", "trl", "transformers", "torch", "accelerate", "datasets", "tokenizers")
IMAGES = {
    "reward_curve.png": "Mean reward by optimizer step",
    "credit_plot.png": "How credit was assigned, by optimizer step",
    "evaluation/evaluation.png": "Evaluation",
}


@dataclass
class TrainingData:
    """The training set.

    Attributes:
        name, rows: `None` if unknown.
        hub_id: Its id on the Hub, if it came from there.
        revision: Its commit on the Hub, or the fingerprint of a file.
        cleaning: A report in plain text of the rows that were left out or repaired, `None` if there are none.
    """

    name: str | None
    rows: int | None
    hub_id: str | None = None
    revision: str | None = None
    cleaning: str | None = None


def write_model_card(
    trainer: ResumableTrainer,
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
    """Writes `README.md`, `recipe.yaml` and `credit_plot.png` to the run's folder. Call it on the main process alone.

    The card includes `evaluation/evaluation.md` and `.json` and `reward_curve.png` if they exist; an evaluation that
    cannot be read is left out with a warning. Values lose secrets and folders before they are escaped or quoted.

    Args:
        trainer ([`CreditTrainer`]):
            The trainer after training.
        name (`str`):
            The algorithm's name as people write it: "S-trace".
        data ([`TrainingData`], *optional*):
            The training set. Defaults to what the trainer knows, and `dataset_name`.
        choices (`tuple` of dataclasses, *optional*):
            Settings beside the configuration, as the command line has them. The recipe holds the fields that differ
            from their defaults, if they are in `PUBLIC` of [`~trl_credit.hub.recipe`] or declare
            `metadata={"public": True}`.
        recipe (`dict`, *optional*):
            Further lines at the top of the recipe, such as `algo` and `env`. Defaults to algorithm and base model.
        command (`list[str]`, *optional*):
            The words of the command line before its flags. The card shows them with `--config recipe.yaml`.
        model_name, dataset_name, tags (*optional*):
            As in TRL's `create_model_card`: the title, an id on the Hub, and tags beside the trainer's own.

    Returns:
        `Path`: path of the card.
    """
    args, folder = trainer.args, Path(trainer.args.output_dir)
    credit = describe_credit(args)
    public = Public(args.hub_token)
    base_model = _hub_base(trainer)
    rewards = [] if any(hasattr(part, "reward") for part in choices) else trainer.reward_func_names
    comments = public.text(function_comments(args, rewards=rewards))
    first_lines = _first_lines(trainer, base_model) if recipe is None else recipe
    settings = f"{comments}{to_yaml(recipe_of(args, choices, public, more=first_lines))}"
    write_atomically(folder / "recipe.yaml", settings)
    plot_credit(trainer.state.log_history, folder / "credit_plot.png", title=f"{public.text(name)}: credit")

    repo_name = public.text(trainer.hub_model_id or args.hub_model_id or model_name or folder.resolve().name)
    own = {folder.resolve().name, repo_name.split("/")[-1], f"checkpoint-{trainer.state.global_step}"}
    evaluation, results = read_evaluation(folder, own, public)
    data = _public_data(trainer, data, dataset_name, public)
    card = ModelCard.from_template(
        ModelCardData(
            base_model=base_model,
            datasets=[data.hub_id] if data.hub_id else None,
            library_name="peft" if is_peft_model(trainer.model) else "transformers",
            model_name=repo_name.split("/")[-1],
            pipeline_tag="text-generation",
            tags=sorted({"generated_from_trainer", *trainer._tag_names, *map(public.text, tags or ())}),
            eval_results=results or None,
        ),
        template_path=str(TEMPLATE),
        escape=escape,
        fenced=fenced,
        version=version,
        args=args,
        state=trainer.state,
        repo_name=repo_name,
        algorithm=public.text(name),
        preset=preset_of(args),
        credit=[row._replace(value=public.text(row.value)) for row in credit],
        own=[row.name for row in credit if row.name in args.custom_functions() and row.published],  # not the preset's
        sampling=describe_sampling(args),
        teacher=None if args.teacher is None else public.text(describe_teacher(args)),
        updates=args.steps_per_generation * args.num_iterations / args.gradient_accumulation_steps,
        rewards=[row["reward"] for row in trainer.state.log_history if row.get("reward") is not None],
        data=data,
        changes=map(public.text, trainer.changes_of_run()),
        settings=settings,
        command=command and shlex.join([*map(public.text, command), "--config", "recipe.yaml"]),
        evaluation=evaluation,
        images={name: title for name, title in IMAGES.items() if (folder / name).is_file()},
        packages=PACKAGES,
        papers=papers_of(args),
    )
    path = folder / "README.md"
    write_atomically(path, str(card))
    return path


def _first_lines(trainer: ResumableTrainer, base_model: str | None) -> dict[str, Any]:
    """Algorithm and base model, as a recipe of a run from Python begins."""
    algo = next((name for name, preset in PRESETS.items() if preset is trainer.preset), None)
    task = embedded_task(trainer.model.config)
    # without a model the command would train the embedded one
    model = base_model or (LOCAL_MODEL if task is None else None if task is DEMO else task.name)
    return {key: x for key, x in (("algo", algo), ("model_name_or_path", model)) if x is not None}


def _public_data(
    trainer: ResumableTrainer, data: TrainingData | None, hub_id: str | None, public: Public
) -> TrainingData:
    """What may be shown of the training set; by default what the trainer knows of it."""
    if data is None:
        dataset = trainer.train_dataset
        name = hub_id or getattr(getattr(dataset, "info", None), "dataset_name", None)
        data = TrainingData(name, len(dataset) if hasattr(dataset, "__len__") else None, hub_id)
    texts = {name: public.text(x) for name, x in vars(data).items() if isinstance(x, str)}
    is_on_hub = texts.get("hub_id") == data.hub_id and _is_repo_id(data.hub_id)
    return replace(data, **texts | {"hub_id": data.hub_id if is_on_hub else None})


def _hub_base(trainer: ResumableTrainer) -> str | None:
    """The base model's id on the Hub, `None` for a model from a folder, even if that folder no longer exists."""
    config = trainer.model.config
    name = getattr(config, "_name_or_path", None)
    if not _is_repo_id(name) or Path(name).exists():
        return None
    # the name of a removed folder looks like an id, but only a model from the Hub knows its commit
    from_hub = getattr(config, "_commit_hash", None) is not None
    return name if from_hub or ("/" in name and not Path(name).parent.exists()) else None


def _is_repo_id(name: str | None) -> bool:
    try:
        validate_repo_id(name or "")
    except HFValidationError:
        return False
    return bool(name)


# The evaluation


def read_evaluation(folder: Path, own: set[str], public: Public) -> tuple[str, list[EvalResult]]:
    """The table in `evaluation/` of a run's folder, and the metrics of the models whose names are in `own`.

    Both are empty, with a warning, if one of the files is damaged.
    """
    path = folder / "evaluation" / "evaluation.json"
    try:
        results = _eval_results(path, own, public) if path.is_file() else []
        path = path.with_suffix(".md")
        text = public.text(path.read_text(encoding="utf-8")) if path.is_file() else ""
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        logger.warning("%s was not written by trl_credit (%r): the card has no evaluation, evaluate again", path, error)
        return "", []
    return without_html(text).strip(), results


def _eval_results(path: Path, own: set[str], public: Public) -> list[EvalResult]:
    """The metrics of `evaluation.json` for the models in `own`, which has the last parts of their names.

    Where answers were read permissively and strictly, the metric's name says which reading it is.
    """
    results = {}
    for row in read_json(path)["rows"]:
        strict = row.get("metrics_strict") or {}
        values = {name + " (permissive)" * bool(strict): x["value"] for name, x in row["metrics"].items()}
        values |= {f"{name} (strict)": x["value"] for name, x in strict.items()}
        dataset, protocol = public.text(row["set"]), public.text(row["protocol"])
        for name, value in values.items():
            if PurePath(row["model"]).name in own and value is not None and math.isfinite(value):
                results[dataset, protocol, name] = EvalResult(
                    task_type="text-generation",
                    dataset_type=dataset,
                    dataset_name=dataset,
                    dataset_config=protocol,
                    metric_type=name.partition(" ")[0],
                    metric_name=name,
                    metric_value=value,
                )
    return list(results.values())
