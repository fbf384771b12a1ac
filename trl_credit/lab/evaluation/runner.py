"""Evaluates models on sets: writes samples, judges them, and adds their scores to the report."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset
from tqdm import tqdm
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ...support.adapters import tokenizer_source
from .judging import judge, reward_header, reward_name
from .problems import Problem, ProblemOptions, fingerprint, load_problems, set_label
from .protocols import PROTOCOLS, Protocol, find_protocol
from .runs import check_trusted
from .sample_store import Line, SampleFile, open_samples, read_samples, sample_files, sample_path
from .samplers import Sample, Sampler, load_sampler, model_identity, model_location, package_versions, token_limits
from .score_report import add_rows
from .scores import Row, score_row


# problems that are generated before they are written; vLLM needs many requests at a time
CHUNK = {"transformers": 16, "vllm": 256}


class Job(NamedTuple):
    """One set under one protocol: its problems, and what their samples depend on besides the model."""

    protocol: Protocol
    problems: list[Problem]
    header: dict[str, Any]


def evaluate(
    models: Sequence[str],
    sets: Sequence[str] | None,
    *,
    protocols: Sequence[str],
    output_dir: str | Path,
    data_dir: str | None = None,
    prompt_style: str = "boxed",
    backend: str = "transformers",
    revision: str | None = None,
    trust_remote_code: bool = False,
    max_problems: int | None = None,
    seed: int = 0,
    batch_size: int = 64,
    overwrite: bool = False,
    changes: dict[str, Any] | None = None,
    reward: str | None = None,
    data: Mapping[str, Callable[[PreTrainedTokenizerBase], Dataset]] | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
    engine_kwargs: dict[str, Any] | None = None,
    progress: bool = True,
) -> list[Row]:
    """Evaluates every model on every set under every protocol that has the set, and writes table, JSON and figure.

    An interrupted evaluation resumes when it is started again, and ends in the same files. Rows of earlier evaluations
    in the same folder stay in the table.

    Args:
        models (`Sequence[str]`):
            Folders or names on the Hub.
        sets (`Sequence[str]`):
            Names that `load_prompts` knows, files, or "demo"; `None` for all sets of the protocols.
        protocols (`Sequence[str]`):
            Names of `PROTOCOLS`, or "custom".
        output_dir (`str` or `Path`):
            Folder for `evaluation.json`, `.md`, `.png` and `samples/`.
        data_dir, prompt_style (*optional*):
            Arguments of `load_prompts`.
        backend (`str`, *optional*, defaults to "transformers"):
            "transformers" or "vllm".
        revision, trust_remote_code (*optional*):
            For models on the Hub, as in `from_pretrained`.
        max_problems (`int`, *optional*):
            Maximum number of problems of each set, from the first on.
        seed (`int`, *optional*, defaults to 0):
            Seed of the sampling. Each response has its own seed, derived from it and the problem's id.
        batch_size (`int`, *optional*, defaults to 64):
            Responses at a time, with transformers.
        overwrite (`bool`, *optional*, defaults to `False`):
            Whether to delete existing samples.
        changes (`dict`, *optional*):
            Fields of the protocol to change: `samples`, `temperature`, …
        reward (`str`, *optional*):
            A custom reward by name, `package.module.function` or `file.py:function`, that returns 1 for a right
            response and 0 for a wrong one. It is called as in training, with all columns of the set. Defaults to the
            set's own.
        data (mapping, *optional*):
            Name of a set in `sets` → its rows, as prompts for a tokenizer, in place of those that the name means.
        chat_template_kwargs (`dict`, *optional*):
            Further arguments of the chat template, as in training.
        engine_kwargs (`dict`, *optional*):
            Arguments of the vLLM engine, such as `tensor_parallel_size`, or of `from_pretrained`.
        progress (`bool`, *optional*, defaults to `True`):
            Whether to show a progress bar with the remaining time.

    Returns:
        `list[dict]`: the rows of this call.

    Raises:
        ValueError: invalid input, or other samples in `output_dir`; the message names the flag.
        OSError: a model that cannot be loaded.
    """
    options = ProblemOptions(prompt_style, seed, data_dir, max_problems, reward, chat_template_kwargs, rows=data)
    folder, rows = Path(output_dir), []
    loading = {"revision": revision, "trust_remote_code": trust_remote_code}
    identities = {model: model_identity(model, revision) for model in models}  # before hours are spent on the first
    for model, identity in identities.items():
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_source(model_location(model)), **loading)
        jobs = load_jobs(sets, protocols, changes or {}, tokenizer, options, backend=backend)
        files = []
        for job in jobs:
            path = job_path(folder, identity["model"], job)
            if overwrite:
                path.unlink(missing_ok=True)
            files.append(open_samples(path, {**identity, **job.header}))
        longest = max(len(p.prompt_ids) + job.protocol.max_new_tokens for job in jobs for p in job.problems)
        sampler, engine = None, {"backend": backend, "batch_size": batch_size, "longest": longest}
        for job, file in zip(jobs, files, strict=True):
            if not file.is_complete:
                sampler = sampler or load_sampler(model, tokenizer, **engine, **loading, **(engine_kwargs or {}))
                fill(file, job, sampler, CHUNK[backend], progress)
            rows.append(score_row(file.header, file.lines))
            add_rows(folder, rows)
        if sampler is not None:
            sampler.close()
    return rows


def load_jobs(
    sets: Sequence[str] | None,
    protocols: Sequence[str],
    changes: dict[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    options: ProblemOptions,
    *,
    backend: str = "transformers",
) -> list[Job]:
    """Every set under every protocol; without `sets`, the sets of each protocol.

    Raises:
        ValueError: an unknown protocol, a set that a protocol does not have, two sets with one label, or a set that
            cannot be loaded.
    """
    if sets is None and "custom" in protocols:
        raise ValueError("--protocol custom needs --sets")
    names: dict[str, str] = {}
    problems: dict[str, list[Problem]] = {}
    jobs, template = [], options.chat_template_kwargs
    for protocol_name in dict.fromkeys(protocols):
        for name in dict.fromkeys(PROTOCOLS.get(protocol_name, [""]) if sets is None else sets):
            label, protocol = find_protocol(protocol_name, name, **changes)
            if (other := names.setdefault(set_label(name), name)) != name:
                raise ValueError(f"--sets {other} and {name} have one name for their samples: rename a file")
            if name not in problems:
                problems[name] = load_problems(name, tokenizer, options)
            of_set = problems[name]
            header = {"prompt_style": options.prompt_style, "backend": backend, "seed": options.seed}
            header |= {"versions": package_versions(backend)} | ({"chat_template_kwargs": template} if template else {})
            header |= {"set": set_label(name), "set_fingerprint": fingerprint(of_set), "problems": len(of_set)}
            header |= {"reward": reward_name(name, of_set[0].reference), "protocol": label, **vars(protocol)}
            header |= {"metrics": list(protocol.metrics), **reward_header(options.reward)}
            jobs.append(Job(protocol, of_set, header))
    return jobs


def job_path(folder: Path, model: str, job: Job) -> Path:
    """The file of a model's samples."""
    return sample_path(folder, model, job.header["set"], job.header["protocol"])


def fill(file: SampleFile, job: Job, sampler: Sampler, chunk_size: int, progress: bool) -> None:
    """Generates, judges and writes the samples that the file lacks, chunk by chunk."""
    problems = job.problems
    token_limits(problems, job.protocol, sampler.context)  # refuses a long prompt at once
    label = f"{Path(file.header['model']).name}: {file.label}"
    with tqdm(total=len(problems), initial=len(file.lines), desc=label, unit="problem", disable=not progress) as bar:
        while not file.is_complete:
            # the chunks of an uninterrupted evaluation
            chunk = problems[len(file.lines) :][: chunk_size - len(file.lines) % chunk_size]
            file.lines += sample_lines(file.header, chunk, sampler.sample(chunk, job.protocol))
            file.write()
            bar.update(len(chunk))


def sample_lines(header: Line, problems: Sequence[Problem], samples: Sequence[list[Sample]]) -> list[Line]:
    """The lines of a sample file for some problems, judged."""
    lines = []
    for problem, responses in zip(problems, samples, strict=True):
        line = {"id": problem.id, "prompt": problem.digest, "seed": problem.seed, "reference": problem.reference}
        line |= {"problem": problem.text} if header["reward"] == "accuracy" else {}
        lines.append(line | {"samples": responses})
    judge(header["reward"], lines)
    return lines


def rescore(
    output_dir: str | Path, *, metrics: Sequence[str] | None = None, reward: str | None = None, trust_run: bool = False
) -> list[Row]:
    """Judges all samples in a folder again and writes table, JSON and figure. Needs neither models nor data sets.

    Unfinished sample files are skipped. `metrics` replace those of the protocol, and `reward` the reward that judged
    the samples, which is imported only with `trust_run` if it is not built in.

    Raises:
        ValueError: there are no samples, they are damaged, there are too few for a metric, or their reward is not
            built in.
    """
    folder, rows = Path(output_dir), []
    files = [file for file in map(read_samples, sample_files(folder)) if file.is_complete]
    if not files:
        raise ValueError(f"there are no finished samples in {str(folder / 'samples')!r}: check --output_dir")
    for file in files:
        header, command = file.header, ["eval", "--rescore", "--output_dir", str(output_dir)]
        check_trusted(file.path, [header.get("reward")], command=command, trust_run=trust_run or reward is not None)
        header |= reward_header(reward or (header["reward"] if "reward_source" in header else None))
        judge(header["reward"], file.lines)
        rows.append(score_row({**header, "metrics": list(metrics or header["metrics"])}, file.lines))
    for file in files:  # after all scores
        file.write()
    add_rows(folder, rows)
    return rows
