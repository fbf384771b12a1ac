"""The problems of a set: the token ids of each prompt, and the columns that the verdicts need."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ...data import load_prompts
from ...data.prompts import prompt_ids
from ...data.sets import SETS, resolve_style
from ...demo import TASKS, demo_dataset
from ...support.conversation import asked_in
from ...support.digests import sha256
from .judging import KEPT, custom_reward
from .scores import level_name


DEMO_PROBLEMS, DEMO_SEED = 64, 1_000_003  # a seed that no training run has


@dataclass(frozen=True)
class Problem:
    """A prompt and what its responses are judged by.

    Attributes:
        id: Unique within the set.
        seed: 48-bit seed of its responses, so that they do not depend on the other problems.
        prompt_ids: Token ids of the prompt.
        reference: Columns of the set that a reward or a table reads.
        digest: Digest of the prompt's text, independent of the tokenizer.
        text: Text of the problem, for strict verdicts.
    """

    id: str
    seed: int
    prompt_ids: list[int]
    reference: dict[str, Any]
    digest: str
    text: str = ""


@dataclass(frozen=True)
class ProblemOptions:
    """How the problems of a set are loaded.

    Attributes:
        prompt_style: Prompt style of `trl_credit.data`.
        seed: Seed of the sampling, from which the seeds of the problems are derived.
        data_dir: Folder with the sets as files.
        max_problems: Maximum number of problems of each set, from the first on.
        reward: A custom reward, which gets the prompt and every column of the set; `None` for the set's own, which
            needs an answer.
        chat_template_kwargs: Further arguments of the chat template.
        rows: Name of a set → its rows, as prompts for a tokenizer, in place of those that the name means.
    """

    prompt_style: str = "boxed"
    seed: int = 0
    data_dir: str | None = None
    max_problems: int | None = None
    reward: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    rows: Mapping[str, Callable[[PreTrainedTokenizerBase], Dataset]] | None = None


def load_problems(name: str, tokenizer: PreTrainedTokenizerBase, options: ProblemOptions) -> list[Problem]:
    """The test problems of a set: an embedded task, a name that `load_prompts` knows, or a file. If the tokenizer has a
    chat template, prompts become conversations.

    Raises:
        ValueError: no such set, a problem without an answer or with an unreadable level, two problems with one id, or a
            reward that cannot be called with the set's columns.
    """
    if options.max_problems is not None and options.max_problems < 1:
        raise ValueError(f"--max_problems must be at least 1, got {options.max_problems}")
    make_rows = (options.rows or {}).get(name)
    rows = _test_rows(name, tokenizer, options) if make_rows is None else make_rows(tokenizer)
    problems: dict[str, Problem] = {}
    label, reward = set_label(name), options.reward
    for i, row in enumerate(rows.select(range(min(len(rows), options.max_problems or len(rows))))):
        where, kept = f"row {i} of {name!r}", KEPT if reward is None else row.keys() - {"id"}
        reference = {key: row[key] for key in row if key in kept and not (reward is None and row[key] is None)}
        if reward is None and str(reference.get("answer", "")).strip() == "" and "truth" not in reference:
            raise ValueError(f"{where} has no answer: responses to it cannot be judged")
        try:
            json.dumps(reference)
            if reference.get("level") is not None:
                level_name(label, reference["level"])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where} has a column that cannot be used: {error}") from error
        problem_id, prompt = str(i if row.get("id") is None else row["id"]), row["prompt"]
        if problem_id in problems:
            raise ValueError(f"two problems of {name!r} have the id {problem_id!r}: ids must differ")
        own_seed = int(sha256(f"{options.seed}/{label}/{problem_id}".encode())[:12], 16)
        ids = prompt_ids(tokenizer, prompt, **(options.chat_template_kwargs or {}))
        text = str(row.get("problem") or asked_in(prompt))
        # messages as the plain text that a model without a chat template gets
        plain = prompt if isinstance(prompt, str) else "\n\n".join(str(message["content"]) for message in prompt)
        digest = sha256(plain.encode("utf-8", "surrogatepass"))[:16]
        problems[problem_id] = Problem(problem_id, own_seed, ids, reference, digest, text)
    if reward is not None:
        custom_reward(reward, next(iter(problems.values())).reference)
    return list(problems.values())


def set_label(name: str) -> str:
    """A set's name in tables. A file is named without its folder and suffix, since tables are published."""
    return Path(name).stem if Path(name).is_file() else name


def fingerprint(problems: Sequence[Problem]) -> str:
    """A digest of the prompts (with their template and tokens), the answers and the order."""
    texts = (json.dumps([x.id, x.prompt_ids, x.reference], sort_keys=True) for x in problems)
    return sha256("".join(texts).encode())[:16]


def _test_rows(name: str, tokenizer: PreTrainedTokenizerBase, options: ProblemOptions) -> Dataset:
    """The test split of a set, with prompts for a tokenizer."""
    if name in TASKS and TASKS[name].environment is not None:
        raise ValueError(f"--sets {name!r} needs tools, and an evaluation samples without them: name another set")
    if name in TASKS:
        return demo_dataset(options.max_problems or DEMO_PROBLEMS, seed=DEMO_SEED, task=TASKS[name])
    if name.startswith("reasoning_gym:"):
        raise ValueError(f"--sets {name!r} gives scores between 0 and 1, but an evaluation needs 0 or 1")
    try:
        style, split = options.prompt_style, "test" if name in SETS and "test" in SETS[name].splits else None
        form = {"style": style, "conversational": resolve_style(style).chat and tokenizer.chat_template is not None}
        return load_prompts(name, data_dir=options.data_dir, split=split, tokenizer=tokenizer, **form)
    except ValueError as error:  # which names a flag of training
        raise ValueError(str(error).replace("--dataset_name", "--sets")) from error
