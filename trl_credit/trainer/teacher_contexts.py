"""What the teacher of a run sees in place of the prompts."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from typing import Any

from accelerate.utils import gather_object
from datasets import Dataset, IterableDataset

from ..config.teacher import TEMPLATE_OF_SUCCESS, template_fields
from ..credit.difficulty import to_unit_interval
from ..rollouts.sources import GenerationBatch
from ..runs.resumable import ResumableTrainer
from ..support.conversation import asked_in
from .before_run import MOST_ROWS, FirstRows
from .engine import TrlEngine


Context = str | list[dict[str, Any]]  # a prompt, as the data set has it


class Contexts:
    """Makes the contexts of a teacher, by `teacher_prompt`.

    Args:
        trainer ([`~trl_credit.runs.resumable.ResumableTrainer`]):
            With its configuration.
        engine ([`TrlEngine`]):
            Tokenizes and decodes.
    """

    def __init__(self, trainer: ResumableTrainer, engine: TrlEngine) -> None:
        self._args, self._engine, self._arguments = trainer.args, engine, trainer.arguments
        prompt = self._args.teacher_prompt
        self._function = self._args.custom_function("teacher_prompt")
        self._template = TEMPLATE_OF_SUCCESS if prompt == "success" else None if self._function else prompt
        self._names = template_fields(self._template) if self._template else []

    def check(self, first: FirstRows, *, limit: float) -> None:
        """Makes the contexts of the first rows of a data set, and of its longest one where a text makes them. `limit`:
        tokens of the teacher's context.

        Raises:
            ValueError: a context cannot be made, is too long, or is the policy's own; or rows have images.
        """
        what, data, rows = first
        teacher, prompt = self._args.teacher, self._args.teacher_prompt
        if any(row.get(name) is not None for row in rows for name in ("image", "images")):
            raise ValueError(f"{what}: teacher={teacher!r} scores text, without the images of rows: set it to None.")
        if prompt is None:
            return
        if self._arguments["environment_factory"] is not None:
            fix = "set teacher_prompt=None, and teacher to other weights"
            raise ValueError(f"teacher_prompt={prompt!r} would lack what the environment adds to the prompt: {fix}.")
        for i, row in chain(enumerate(rows), self._longest(data)):
            where = f"{what}, row {i}: teacher_prompt={prompt!r}"
            if unknown := [name for name in self._names if name not in {"success", *row}]:
                other = "give a function that returns None for such rows"
                fix = f"name one of {', '.join(row)}, add the column, or {other}"
                raise ValueError(f"{where} reads a column {unknown[0]!r} that is missing: {fix}.")
            if self._template and not isinstance(row["prompt"], str) and _last_user_turn(row["prompt"]) is None:
                raise ValueError(f"{where} replaces the last user turn, and the prompt has none: give a function.")
            if (context := self._of_row(row, "")) is None:
                continue
            (ids,), (own,) = map(self._engine.tokenize, ([context], [row["prompt"]]))
            if ids == own and teacher == "policy" and self._args.teacher_sync_steps is None:
                fix = "add what the policy does not see"
                raise ValueError(f"{where} gives the tokens of the prompt itself, with the policy's weights: {fix}.")
            if len(ids) >= limit:
                what = f"{where} gives {len(ids)} tokens, and the teacher has a context of {limit}"
                raise ValueError(f"{what}: shorten it, or remove the row.")

    def _longest(self, data: Dataset | IterableDataset) -> Iterator[tuple[int, dict[str, Any]]]:
        """The number and the row with the longest context, in characters."""
        columns = [name for name in self._names if name != "success"]
        if columns and isinstance(data, Dataset) and data.format["type"] != "custom":
            rows = zip(*data.select_columns(columns)[:MOST_ROWS].values(), strict=True)
            sizes = [sum(len(str(value)) for value in row) for row in rows]
            longest = max(range(len(sizes)), key=sizes.__getitem__)
            yield longest, data[longest]

    def __call__(self, generation: GenerationBatch) -> list[list[int] | None]:
        """Token ids of the context of each row of this process; `None` without one. Collective if a template reads
        `{success}`."""
        rows = generation.examples
        if self._args.teacher_prompt is None:
            return generation.batch.prompt_ids
        right = self._successes(generation) if self._args.reads_success else [None] * len(rows)
        contexts = [self._of_row(row, success) for row, success in zip(rows, right, strict=True)]
        distinct = {repr(context): context for context in contexts if context is not None}
        ids = dict(zip(distinct, self._engine.tokenize([*distinct.values()]) if distinct else [], strict=True))
        return [None if context is None else ids[repr(context)] for context in contexts]

    def _of_row(self, row: dict[str, Any], success: str | None) -> Context | None:
        """The context of a row of the data set; `None` if a part of it is missing."""
        prompt = row["prompt"]
        if self._function is not None:
            context = self._function(dict(row))
            if context is not None and type(context) is not type(prompt):
                kinds = f"{type(context).__name__}, and the prompt is {type(prompt).__name__}"
                name = f"teacher_prompt={self._args.teacher_prompt!r}"
                raise ValueError(f"{name} returned {kinds}: return the same kind.")
            return context
        values = {**row, "prompt": asked_in(prompt), "success": success}
        if any(values.get(name) is None for name in self._names):
            return None
        text = self._template.format(**{name: values[name] for name in self._names})
        if isinstance(prompt, str):
            return text
        turn = _last_user_turn(prompt)
        return [*prompt[:turn], {**prompt[turn], "content": text}, *prompt[turn + 1 :]]

    def _successes(self, generation: GenerationBatch) -> list[str | None]:
        """For each row of this process the text of the first right response of its group that is another row's."""
        batch, size, processes = generation.batch, self._engine.group_size, self._engine.processes
        ids, lengths = batch.completion_ids, processes.gather(batch.written_t.sum(-1)).tolist()
        first, unit = batch.rank * len(ids), to_unit_interval(batch.correct, self._args.reward_range)
        # a truncated response may be left out of the batch
        is_right = [x >= 1 - 1e-6 and n > 0 for x, n in zip(unit.tolist(), lengths, strict=True)]
        prompts = generation.prompts
        groups = [k // size for k in range(len(is_right))] if prompts is None else prompts.tolist()
        right: dict[int, list[int]] = defaultdict(list)
        for k in (k for k, flag in enumerate(is_right) if flag):
            right[groups[k]] = [*right[groups[k]], k][:2]  # the second is for the first
        own = range(first, first + len(ids))
        shown = {k: self._engine.decode(ids[k - first]) for pair in right.values() for k in pair if k in own}
        texts = {k: text for part in gather_object([shown]) for k, text in part.items()}
        return [next((texts[k] for k in right[groups[i]] if k != i), None) for i in own]


def _last_user_turn(messages: list[dict[str, Any]]) -> int | None:
    return next((i for i in reversed(range(len(messages))) if messages[i]["role"] == "user"), None)
