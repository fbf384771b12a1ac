"""The evaluation in a card: its table, and the metrics for the Hub's `model-index`."""

import logging
import math
from pathlib import Path, PurePath

from huggingface_hub import EvalResult

from ..support.files import read_json
from .markdown import without_html
from .public import Public


logger = logging.getLogger(__name__)


def read_evaluation(folder: Path, own: set[str], public: Public) -> tuple[str, list[EvalResult]]:
    """The table in `evaluation/` of a run's folder, and the metrics of the models whose names are in `own`.

    Both are empty, with a warning, if one of the files is damaged.
    """
    path = folder / "evaluation" / "evaluation.json"
    try:
        results = _eval_results(path, own, public) if path.is_file() else []
        path = path.with_suffix(".md")
        text = public.text(path.read_text(encoding="utf-8")) if path.is_file() else ""
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        cause = f"{type(error).__name__}: {error}"
        logger.warning("%s was not written by trl_credit (%s): the card has no evaluation, evaluate again", path, cause)
        return "", []
    return without_html(text).strip(), results


def _eval_results(path: Path, own: set[str], public: Public) -> list[EvalResult]:
    """The metrics of `evaluation.json` for the models in `own`, which has the last parts of their names.

    Where answers were read permissively and strictly, the metric's name says which reading it is.
    """
    results = {}
    for row in read_json(path)["rows"]:
        strict = row.get("metrics_strict") or {}
        readings = {name + " (permissive)" * bool(strict): numbers for name, numbers in row["metrics"].items()}
        for name, numbers in {**readings, **{f"{name} (strict)": x for name, x in strict.items()}}.items():
            value, (dataset, protocol) = numbers["value"], (public.text(row[key]) for key in ("set", "protocol"))
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
