"""Evaluates models on sets: samples to JSONL, scores to a table, a JSON file and a figure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm
from transformers import AutoTokenizer

from .loading import identity, load_sampler, model_location, package_versions
from .plots import plot_rows
from .problems import (
    Problem,
    fingerprint,
    judge,
    judge_strictly,
    load_problems,
    reward_name,
    reward_source,
    set_label,
)
from .protocols import PROTOCOLS, Protocol, find_protocol, split_metric
from .samplers import Sample, Sampler, problem_seed, token_limits
from .scores import score_row
from .store import SampleFile, file_name, holds_all, read_samples, write_atomically, write_samples
from .tables import Row, merge_rows, read_rows, write_rows


# problems that are generated before they are written; vLLM wants many requests at a time
CHUNK = {"transformers": 16, "vllm": 256}


@dataclass(frozen=True)
class Job:
    """One set under one protocol."""

    set_name: str
    label: str
    protocol: Protocol


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
    engine_kwargs: dict[str, Any] | None = None,
    progress: bool = True,
) -> list[Row]:
    """Evaluates every model on every set under every protocol that has the set, and writes table, JSON and figure.

    A run that was interrupted goes on where it stopped when it is started again, and ends in the same files. Rows of
    earlier runs in the same folder stay in the table. Samples that an evaluation of a model alone left in
    `<model>/evaluation` are taken from there, if they are just those that would be made.

    Args:
        models (`Sequence[str]`):
            Folders or names on the Hub.
        sets (`Sequence[str]`):
            Names that `load_prompts` knows, files, or "demo"; `None` for all sets of the protocols.
        protocols (`Sequence[str]`):
            Names of `PROTOCOLS`, or "custom".
        output_dir (`str` or `Path`):
            For `evaluation.json`, `.md`, `.png` and `samples/`.
        data_dir, prompt_style (*optional*):
            For `load_prompts`.
        backend (`str`, *optional*, defaults to "transformers"):
            Or "vllm".
        revision, trust_remote_code (*optional*):
            For models on the Hub, as in `from_pretrained`.
        max_problems (`int`, *optional*):
            The first so many of each set.
        seed (`int`, *optional*, defaults to 0):
            Of the sampling; every response has a seed of its own, derived from it and the problem's id.
        batch_size (`int`, *optional*, defaults to 64):
            Responses at a time, with transformers.
        overwrite (`bool`, *optional*, defaults to `False`):
            Deletes samples that are there.
        changes (`dict`, *optional*):
            Fields of the protocol to change: `samples`, `temperature`, …
        reward (`str`, *optional*):
            For a task of one's own: a reward by name, `package.module.function` or `file.py:function`, that gives 1 for
            a right response and 0 for a wrong one. It is called as in training, with all columns of the set. By
            default the set's own.
        engine_kwargs (`dict`, *optional*):
            For the vLLM engine, `tensor_parallel_size` for example, or for `from_pretrained`.
        progress (`bool`, *optional*, defaults to `True`):
            Whether to show a progress bar with the time that is left.

    Returns:
        `list[dict]`: the rows of the table that belong to this call.

    Raises:
        ValueError: wrong input, or samples of something else in `output_dir`; the message names the flag.
        OSError: a model that cannot be loaded.
    """
    if backend not in CHUNK:
        raise ValueError(f"unknown --backend {backend!r}: choose one of {', '.join(CHUNK)}")
    jobs = make_jobs(sets, protocols, changes or {})
    folder, rows = Path(output_dir), []
    loading = {"revision": revision, "trust_remote_code": trust_remote_code}
    identities = {model: identity(model, revision) for model in models}  # all, before hours go into the first
    for model in identities:
        who = {
            **identities[model],
            "prompt_style": prompt_style,
            "backend": backend,
            "seed": seed,
            "versions": package_versions(backend),
        }
        tokenizer = AutoTokenizer.from_pretrained(model_location(model), **loading)
        problems = {
            name: load_problems(
                name, tokenizer, data_dir=data_dir, style=prompt_style, max_problems=max_problems, reward=reward
            )
            for name in dict.fromkeys(job.set_name for job in jobs)
        }
        files = [
            _open(folder, model, who, job, problems[job.set_name], CHUNK[backend], overwrite, reward) for job in jobs
        ]
        longest = max(len(p.prompt_ids) + j.protocol.max_new_tokens for j in jobs for p in problems[j.set_name])
        sampler: Sampler | None = None
        for job, file in zip(jobs, files, strict=True):
            if len(file.lines) < len(problems[job.set_name]):
                sampler = sampler or load_sampler(
                    model,
                    tokenizer,
                    backend=backend,
                    batch_size=batch_size,
                    longest=longest,
                    **loading,
                    **(engine_kwargs or {}),
                )
                fill(file, problems[job.set_name], sampler, job.protocol, CHUNK[backend], progress=progress)
            rows.append(score_row(file.header, file.lines))
            publish(folder, rows)
        if sampler is not None:
            sampler.close()
    return rows


def fill(
    file: SampleFile,
    problems: Sequence[Problem],
    sampler: Sampler,
    protocol: Protocol,
    chunk_size: int,
    *,
    progress: bool = False,
) -> None:
    """Generates, judges and writes what the file lacks, chunk by chunk."""
    header = file.header
    token_limits([p.prompt_ids for p in problems], protocol, sampler.context)  # before an hour was spent
    label = f"{Path(header['model']).name}: {header['set']} ({header['protocol']})"
    with tqdm(total=len(problems), initial=len(file.lines), desc=label, unit="problem", disable=not progress) as bar:
        for begin in range(len(file.lines), len(problems), chunk_size):
            chunk = problems[begin : begin + chunk_size]
            seeds = [problem_seed(header["seed"], header["set"], p.id) for p in chunk]
            found = sampler.sample([p.prompt_ids for p in chunk], seeds, protocol)
            file.append(judged(chunk, seeds, found, header["reward"]))
            bar.update(len(chunk))


def judged(
    problems: Sequence[Problem], seeds: Sequence[int], found: Sequence[Sequence[Sample]], reward: str
) -> list[dict[str, Any]]:
    """The lines of a sample file for some problems."""
    texts = [sample.text for samples in found for sample in samples]
    references = [p.reference for p, samples in zip(problems, found, strict=True) for _ in samples]
    asked = [p.text for p, samples in zip(problems, found, strict=True) for _ in samples]
    verdicts = iter(_verdicts(reward, texts, references, asked))
    return [
        {
            "id": problem.id,
            "prompt": problem.digest,
            "seed": seed,
            "reference": problem.reference,
            **({"problem": problem.text} if reward == "accuracy" else {}),
            "samples": [
                {"text": s.text, **verdict, "length": s.length, "truncated": s.truncated}
                for s, verdict in zip(samples, verdicts, strict=False)
            ],
        }
        for problem, seed, samples in zip(problems, seeds, found, strict=True)
    ]


def _verdicts(
    reward: str, texts: Sequence[str], references: Sequence[dict[str, Any]], problems: Sequence[str]
) -> list[dict[str, Any]]:
    """`answer` and `correct` of each response, and `correct_strict` where the reward has two readings."""
    found = [{"answer": answer, "correct": correct} for answer, correct in judge(reward, texts, references)]
    strict = judge_strictly(reward, texts, references, problems)
    if strict is None:
        return found
    return [{**verdict, "correct_strict": right} for verdict, right in zip(found, strict, strict=True)]


def rescore(output_dir: str | Path, *, metrics: Sequence[str] | None = None, reward: str | None = None) -> list[Row]:
    """Judges all samples in a folder anew and writes table, JSON and figure; needs neither models nor data sets.

    Sample files that an interruption left unfinished are passed over. `metrics` take the place of the protocol's, and
    `reward` that of the one that judged them.

    Raises:
        ValueError: there are no samples, or they are damaged, or too few for a metric.
    """
    folder, rows, done = Path(output_dir), [], []
    for path in sorted((folder / "samples").glob("*/*.jsonl")):
        header, lines = read_samples(path)
        if header is None or len(lines) < header["problems"]:
            continue
        header |= _reward_of(reward or ("reward_source" in header and header["reward"]) or None)
        samples = [sample for line in lines for sample in line["samples"]]
        references = [line["reference"] for line in lines for _ in line["samples"]]
        asked = [line.get("problem", "") for line in lines for _ in line["samples"]]  # 0.1 did not keep it
        texts = [sample["text"] for sample in samples]
        for sample, verdict in zip(samples, _verdicts(header["reward"], texts, references, asked), strict=True):
            sample.update(verdict)
        done.append((path, header, lines))
    for path, header, lines in done:  # all scores before the first change
        most = max((split_metric(metric)[1] for metric in metrics or ()), default=1)
        if most > header["samples"]:
            raise ValueError(f"--metrics want {most} samples per problem, and {path} has {header['samples']}")
        rows.append(score_row({**header, **({"metrics": list(metrics)} if metrics else {})}, lines))
    for path, header, lines in done:
        write_samples(path, header, lines)
    if not rows:
        raise ValueError(f"there are no finished samples in {str(folder / 'samples')!r}: check --output_dir")
    publish(folder, rows)
    return rows


def publish(folder: Path, rows: Sequence[Row]) -> None:
    """Puts rows into the table, the JSON file and the figure of a folder, beside those that are there."""
    merged = merge_rows(read_rows(folder), rows)
    write_rows(folder, merged)
    partial = folder / "evaluation.partial.png"
    plot_rows(merged, partial)
    partial.replace(folder / "evaluation.png")


def sample_header(
    who: dict[str, Any], job: Job, problems: Sequence[Problem], reward: str | None = None
) -> dict[str, Any]:
    """What the samples of a job depend on, and how they are scored."""
    return {
        **who,
        "set": set_label(job.set_name),
        "set_fingerprint": fingerprint(problems),
        "problems": len(problems),
        "reward": reward_name(job.set_name, problems),
        "protocol": job.label,
        **job.protocol.as_dict(),
        **_reward_of(reward),
    }


def _reward_of(name: str | None) -> dict[str, str]:
    """What a header has on a reward of one's own; nothing where the set's is taken."""
    return {} if name is None else {"reward": name, "reward_source": reward_source(name)}


def sample_path(folder: Path, model: str, set_name: str, label: str) -> Path:
    """`samples/<model>/<set>-<protocol>.jsonl`."""
    return folder / "samples" / file_name(model) / f"{file_name(set_name, label)}.jsonl"


def make_jobs(sets: Sequence[str] | None, protocols: Sequence[str], changes: dict[str, Any]) -> list[Job]:
    """Every set under every protocol; without `sets`, those that each protocol has.

    Raises:
        ValueError: an unknown protocol, or a set that one does not have.
    """
    jobs = []
    for protocol in dict.fromkeys(protocols):
        if sets is None and protocol not in PROTOCOLS:
            find_protocol(protocol, "", **changes)  # unknown, or "custom", which has no sets of its own
            raise ValueError("--protocol custom wants --sets")
        for name in dict.fromkeys(PROTOCOLS[protocol] if sets is None else sets):
            label, settings = find_protocol(protocol, name, **changes)
            jobs.append(Job(name, label, settings))
    files: dict[tuple[str, str], str] = {}
    for job in jobs:
        other = files.setdefault((set_label(job.set_name), job.label), job.set_name)
        if other != job.set_name:
            raise ValueError(f"--sets {other} and {job.set_name} have one name for their samples: rename a file")
    return jobs


def _open(
    folder: Path,
    model: str,
    who: dict[str, Any],
    job: Job,
    problems: Sequence[Problem],
    chunk: int,
    overwrite: bool,
    reward: str | None,
) -> SampleFile:
    header = sample_header(who, job, problems, reward)
    path, own = (
        sample_path(place, who["model"], set_label(job.set_name), job.label)
        for place in (folder, Path(model) / "evaluation")  # where an evaluation of this model alone puts them
    )
    if overwrite:
        path.unlink(missing_ok=True)
    elif not path.exists() and own.is_file() and holds_all(own, header):
        write_atomically(path, own.read_text(encoding="ascii"))
    return SampleFile(path, header, chunk_size=chunk)
