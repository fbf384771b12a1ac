"""Problems of runs' own data that none of them trained on."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from datasets import Dataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ...data import SETS, DataArguments, load_from_arguments
from ...data.sets import resolve_style
from ...runs.data_identity import data_identity
from ...runs.data_order import rows_reached, steps_of_weights
from ...support.adapters import tokenizer_source
from .problems import set_label
from .runs import Run


class Rows:
    """Rows of a set as prompts for a tokenizer: those with `ids`, in their order.

    Args:
        arguments (`DataArguments`):
            The set. Its filters do not act: ids are those of the whole set.
        seed (`int`):
            Seed of procedural tasks.
    """

    def __init__(self, arguments: DataArguments, seed: int) -> None:
        self._arguments, self._seed = replace(arguments, max_prompt_tokens=None, decontaminate=None), seed
        self._loaded: dict[bool, Dataset] = {}  # by whether prompts are messages
        self.ids: list[str] = []

    def all(self, tokenizer: PreTrainedTokenizerBase) -> Dataset:
        """Every row."""
        is_chat = resolve_style(self._arguments.prompt_style).chat and tokenizer.chat_template is not None
        if is_chat not in self._loaded:
            self._loaded[is_chat] = _load(self._arguments, tokenizer, self._seed)
        return self._loaded[is_chat]

    def __call__(self, tokenizer: PreTrainedTokenizerBase) -> Dataset:
        data = self.all(tokenizer)
        place = {row_id: i for i, row_id in enumerate(data["id"])}
        return data.select([place[row_id] for row_id in self.ids])


class Unseen(NamedTuple):
    """Problems that no run trained on: the label of their set, their rows, the first of them, and what they are in
    words."""

    label: str
    rows: Rows
    first: dict[str, Any]
    words: str


def unseen_problems(
    runs: Sequence[Run], arguments: DataArguments, *, count: int, trust_remote_code: bool = False
) -> Unseen:
    """The test split of a set, or rows of it that none of the runs had reached by its last step; at most `count` of
    them, drawn at random but the same in every call.

    Args:
        runs (sequence of [`Run`]):
            Runs on one set.
        arguments (`DataArguments`):
            The set.
        count (`int`):
            Maximum number of problems.
        trust_remote_code (`bool`, *optional*):
            As in `from_pretrained`.

    Raises:
        ValueError: every row was trained on, the order of a run's rows is not known, or the set is not the one that a
            run was trained on.
    """
    name, seed = arguments.dataset_name, runs[0].record["identity"]["seed"]
    splits = SETS[name].splits if name in SETS else {}
    tokenizer = _tokenizer(runs[0], trust_remote_code)
    if "test" in splits and (arguments.dataset_split or next(iter(splits))) != "test":
        rows = Rows(replace(arguments, dataset_split="test"), seed)
        label, ids, what = name, rows.all(tokenizer)["id"], f"problems of {name}'s test split"
    else:
        rows, found = Rows(arguments, seed), [_unseen_by(run, arguments, trust_remote_code) for run in runs]
        common = set.intersection(*map(set, found))
        label, ids = f"{set_label(name)} unseen", [row_id for row_id in found[0] if row_id in common]
        who = f"{runs[0].name} did not train on" if len(runs) == 1 else "no run trained on"
        what = f"rows of {name} that {who}"
        if not ids:
            trained = f"{runs[0].name!r} trained" if len(runs) == 1 else f"the {len(runs)} runs together trained"
            raise ValueError(f"{trained} on every row of {name!r}: give --sets with problems that they did not see")
    if len(ids) > count:
        rows.ids, amount = (
            [ids[i] for i in sorted(random.Random(0).sample(range(len(ids)), count))],
            f"{count:,} of the",
        )
    else:
        rows.ids, amount = ids, "all"
    return Unseen(label, rows, rows(tokenizer)[0], f"{amount} {len(ids):,} {what}")


def _unseen_by(run: Run, arguments: DataArguments, trust_remote_code: bool) -> list[str]:
    """Ids of the rows that a run had not reached by its last step, in order. Copies of a row that it had reached are
    left out."""
    own = replace(run.data, data_dir=arguments.data_dir)
    data = _load(own, _tokenizer(run, trust_remote_code), run.record["identity"]["seed"])
    trained_on, here = run.record["identity"]["data"], data_identity(data, first_rows=[])
    if any(here[key] != trained_on.get(key) for key in ("rows", "content")):
        raise ValueError(
            f"{own.dataset_name!r} is not the data that {run.name!r} was trained on: restore it, or give --sets"
        )
    steps = steps_of_weights(run.name)
    if steps is None:
        raise ValueError(f"{run.name!r} has no checkpoint that says how far it trained: give --sets")
    try:
        reached = rows_reached(run.record, steps=steps, folder=run.name)
    except ValueError as error:
        raise ValueError(f"{run.name!r}: {error}: give --sets") from error
    texts = [json.dumps(prompt) for prompt in data["prompt"]]
    seen = {texts[i] for i in reached}
    return [row_id for i, row_id in enumerate(data["id"]) if i not in reached and texts[i] not in seen]


def _tokenizer(run: Run, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(tokenizer_source(run.name), trust_remote_code=trust_remote_code)


def _load(arguments: DataArguments, tokenizer: PreTrainedTokenizerBase, seed: int) -> Dataset:
    return load_from_arguments(arguments, tokenizer=tokenizer, seed=seed, needs_answers=False)
