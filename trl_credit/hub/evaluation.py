"""The evaluation in a card: its table, and the metrics for the Hub's `model-index`."""

import logging
import math
from pathlib import Path, PurePath

from huggingface_hub import EvalResult

from ..support.files import read_json
from .markdown import without_html
from .public import REMOVED, Public


logger = logging.getLogger(__name__)


def read_evaluation(folder: Path, own: set[str], public: Public) -> tuple[str, list[EvalResult]]:
    """The table in `evaluation/` of a run's folder, and the metrics of the models whose names are in `own`.

    Both are empty, with a warning, if one of the files is damaged or the table holds a secret.
    """
    path = folder / "evaluation" / "evaluation.json"
    try:
        results = _eval_results(path, own, public) if path.is_file() else []
        path = path.with_suffix(".md")
        text = public.text(path.read_text(encoding="utf-8")) if path.is_file() else ""
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        cause = f"{type(error).__name__}: {error}"
        logger.warning("%s was not written by trl_credit (%s): the card has no evaluation, evaluate again", path, cause)
        return "", []
    if text == REMOVED:
        logger.warning("%s holds a secret: the card has no evaluation. Evaluate again under other names", path)
        return "", []
    return without_html(text).strip(), results


def _eval_results(path: Path, own: set[str], public: Public) -> list[EvalResult]:
    """The metrics of `evaluation.json` for the models in `own`, which has the last parts of their names.

    Where answers were read permissively and strictly, the metric's name says which reading it is.
    """
    results = {}
    for row in read_json(path)["rows"]:
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
