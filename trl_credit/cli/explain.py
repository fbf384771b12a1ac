"""`trl-credit explain ROLLOUTS`: the credit of every algorithm for the same responses, as a table and a page."""

import sys
from argparse import Namespace
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..settings.parser import OneLineParser, typed_fields
from ..support.errors import choose
from ..support.files import write_atomically
from ..support.startup import prepare_process, quiet_start
from .view import check_output


if TYPE_CHECKING:
    from ..config import CreditConfig
    from ..lab.explain.credits import Explained
    from ..observe.schema import Shard


_HELP = """\
Shows the credit that every algorithm would give to the tokens of the same responses.

  trl-credit explain runs/s_trace                                  its log, or responses sampled from its model
  trl-credit explain rollouts.jsonl --model Qwen/Qwen3-1.7B        your own responses, or those of verifiers

Each row of your own JSONL file has prompt, completion and reward. It can have logprobs and entropy too, in nats, one
per token. --model computes them if they are missing. A run without a rollout log (--log_credit) gets a few responses
sampled from its model. `trl-credit example verifiers_rollouts` copies a script that makes such rows of what the library
verifiers saved. The command prints a table and writes an HTML page."""


def main(argv: list[str]) -> int:
    """Runs the command and returns the exit code 0. Raises `ValueError`, `OSError` or `ImportError` for wrong input."""
    quiet_start()
    parser = OneLineParser(prog="trl-credit explain", description=_HELP)
    add = parser.add_argument
    add("rollouts", metavar="ROLLOUTS", help="folder of a run, file of its rollout log, or another file")
    add("--step", type=int, help="logged step of a run (default: the last)")
    add("--algo", nargs="+", metavar="ALGO", help="algorithms to show (default: all)")
    custom = 'credit functions and classes of yours, with the settings of GRPO or of ALGO, or "… --setting value"'
    add("--credit", nargs="+", default=[], metavar="[ALGO+]FILE.py:FUNCTION", help=custom)
    add("--model", help="computes log-probabilities and entropies that are missing")
    add("--tokenizer", metavar="MODEL", help="folder or id of a model, for a file without the texts of its tokens")
    add("--temperature", type=float, help="sampling temperature, for --model (default: that of the rollouts, or 1)")
    scores = "scores responses of a run without a log; with --model, continuations for SPO-chain and VinePPO"
    add("--reward", metavar="FILE.py:FUNCTION", help=scores)
    add("--trust_run", action="store_true", help="run code that the folder of a run names or that comes with a model")
    add("--seed", type=int, default=42, help="seed of random selectors and continuations (default: 42)")
    add("--output", metavar="FILE.html", help="default: explain.html in the run's folder, or ROLLOUTS.explain.html")
    args = parser.parse_args(argv)
    if args.temperature is not None and not args.temperature > 0:
        raise ValueError(f"--temperature must be positive, got {args.temperature}")
    source = Path(args.rollouts)
    if not source.exists():
        raise ValueError(f"{source} does not exist: give the folder of a run, a shard of its log, or a JSONL file")
    output = Path(args.output or (source / "explain.html" if source.is_dir() else source.with_suffix(".explain.html")))
    check_output(output)
    from ..lab.comparison.entries import split_credit
    from ..observe.schema import steps
    from ..presets import PRESETS
    from ..rewards import resolve_reward
    from ..support.functions import resolve_function

    must_sample = args.step is None and source.is_dir() and not steps(source)
    if args.reward is not None and args.model is None and not must_sample:
        raise ValueError("--reward scores the continuations of a model: give --model")
    for name in args.algo or ():
        if name not in PRESETS:
            raise ValueError(f"--algo {name!r} is not known{choose(name, PRESETS)}")
    prepare_process(imports=bool(args.credit or args.reward or args.trust_run))
    for name in args.credit:
        resolve_function(split_credit(name)[1], what="credit", known=())  # what is named by hand is not left out
    if args.reward is not None:
        resolve_reward(args.reward)
    shard, loaded, notes = (_sampled if must_sample else _read)(args, source, output)
    settings = {"output_dir": str(output.parent), "report_to": "none"}
    found, left_out = _explained(args, shard, settings, loaded)
    if not found:
        raise ValueError(next(f"{name}: {reason}" for name, reason in left_out.items()))
    if not any(any(response.get("credit") or ()) for one in found.values() for response in one.shard.responses):
        notes.append("No algorithm gives credit: the responses to each prompt have the same reward.")
    notes += [f"{name} is left out: {reason.rstrip('.')}." for name, reason in left_out.items()]
    _show(output, source, found, notes)
    return 0


def _read(args: Namespace, source: Path, output: Path) -> tuple["Shard", tuple[Any, Any] | None, list[str]]:
    """The responses with what is needed of them, the model and its tokenizer if one was loaded, and notes. Fills in the
    temperature."""
    from ..lab.explain import read_rollouts
    from ..lab.explain.measure import load, measured
    from ..lab.rollout_files.texts import FastTokenizer, with_texts

    shard = read_rollouts(source, step=args.step)
    args.temperature = args.temperature or shard.header.get("temperature") or 1.0
    notes = [note] if (note := shard.header.get("note")) else []
    loaded = None if args.model is None else load(args.model, trust_remote_code=args.trust_run)
    if args.tokenizer is not None:
        shard = with_texts(shard, FastTokenizer(args.tokenizer))
    if loaded is not None:
        if any(_lacks(shard, name) for name in ("token_ids", "trainer_logprobs", "entropy")):
            shard = measured(shard, *loaded, temperature=args.temperature)
        shard = with_texts(shard, loaded[1])
    elif _lacks(shard, "trainer_logprobs", "old_logprobs"):
        raise ValueError(f"{source} has no log-probabilities: give --model to compute them")
    if _lacks(shard, "tokens"):
        fix = "add tokens to its rows, or give --model, or --tokenizer if it has token_ids"
        raise ValueError(f"{source} has log-probabilities without tokens: {fix}")
    return shard, loaded, notes


def _sampled(args: Namespace, folder: Path, output: Path) -> tuple["Shard", tuple[Any, Any], list[str]]:
    """As `_read`, of a run without a log: responses that its model samples now. They are kept beside the page."""
    from ..lab.explain.measure import load, measured
    from ..lab.explain.rollouts import check_rollouts
    from ..lab.explain.sampling import PROMPTS, RESPONSES, sampled
    from ..lab.rollout_files.jsonl import write_jsonl
    from .finished_run import finished_run

    if args.model is None and not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
        fix = "train with log_credit, or give --model, which may be a checkpoint of it"
        raise ValueError(f"{folder} has neither a rollout log nor a model: {fix}")
    run = finished_run(folder, reward=args.reward, trust_run=args.trust_run)
    what = f"{PROMPTS} prompts × {RESPONSES} responses from {args.model or 'its model'}"
    print(f"{folder} has no rollout log: samples {what}", file=sys.stderr)
    loaded = load(args.model or str(folder), trust_remote_code=args.trust_run)
    args.temperature = args.temperature or run.args.temperature
    run.args.temperature = args.temperature
    parts = {"data": run.data, "rewards": run.rewards, "model": loaded[0], "tokenizer": loaded[1]}
    shard = sampled(folder, run.args, **parts, own_rewards=args.reward is None)
    check_rollouts(shard, folder)
    shard = measured(shard, *loaded, temperature=args.temperature)
    kept = output.with_suffix(".jsonl")
    write_jsonl(kept, shard.responses)
    return shard, loaded, [f"{folder} has no rollout log: sampled {what}, kept in {kept.name}."]


def _lacks(shard: "Shard", *names: str) -> bool:
    """Whether a response has none of the fields."""
    return any(all(response.get(name) is None for name in names) for response in shard.responses)


def _explained(
    args: Namespace, shard: "Shard", settings: dict[str, Any], loaded: tuple[Any, Any] | None
) -> tuple[dict[str, "Explained"], dict[str, str]]:
    """The credit by algorithm or custom function, and by name the reasons why some are left out."""
    import torch

    from ..lab.explain.credits import as_trained, explain
    from ..presets import PRESETS
    from ..support.functions import FunctionRaised

    found: dict[str, Explained] = {}
    if (trained := as_trained(shard)) is not None:
        found[""] = trained
    left_out: dict[str, str] = {}
    settings = {**settings, "seed": args.seed}
    entries = {key: _entry(key) for key in args.credit}
    for key in [*(args.algo or PRESETS), *dict.fromkeys(args.credit)]:
        torch.manual_seed(args.seed)  # of custom functions
        name, segments = key, None
        try:
            if key in PRESETS:
                name = PRESETS[key].name
                config, segments = _with_segments(args, shard, key, settings, loaded)
            else:
                taken = [explained.name for explained in found.values()]
                config, name = _custom(*entries[key], settings, taken=taken)
            found[key] = explain(shard, config, name=name, segments=segments)
        except (ValueError, TypeError, FunctionRaised) as error:
            left_out[name] = str(error)
    return found, left_out


def _entry(key: str) -> tuple[str, str, dict[str, Any]]:
    """The algorithm, the custom credit on it, and its settings: `s_trace+mine.py:f --strength 0.7`.

    Raises:
        ValueError: a setting is unknown or has a wrong value.
    """
    from ..config.algorithm import with_settings_of
    from ..lab.comparison.entries import split_credit
    from ..presets import PRESETS
    from ..settings.flags import FlagParser

    base, function, words = split_credit(key)
    values = vars(FlagParser([with_settings_of(function, PRESETS[base].config)]).parse_args(words))
    typed = typed_fields(words)
    return base, function, {name: x for name, x in values.items() if name in typed or f"no_{name}" in typed}


def _custom(
    base: str, function: str, own: dict[str, Any], settings: dict[str, Any], *, taken: list[str]
) -> tuple["CreditConfig", str]:
    """The configuration and name of custom credit, on the settings of GRPO or of another algorithm."""
    from ..presets import PRESETS
    from ..support.digests import function_label

    config = PRESETS[base].config(credit=function, **settings, **own)
    shown = ", ".join([PRESETS[base].name, *(f"{name}={value}" for name, value in own.items())])
    name = f"{function_label(config.custom_function('credit'))} on {shown}"
    return config, f"{name} ({function})" if name in taken else name


def _with_segments(
    args: Namespace, shard: "Shard", key: str, settings: dict[str, Any], loaded: tuple[Any, Any] | None
) -> tuple["CreditConfig", Any]:
    """The configuration of an algorithm and, if it has segments, their advantages and numbers by continuations."""
    from ..lab.explain.segments import cost, rolled_out
    from ..presets import PRESETS
    from ..rewards import resolve_reward

    config = PRESETS[key].config(**settings)
    if config.rollouts == "none":
        return config, None
    price = cost(shard, config)
    if config.rollouts == "tree" or loaded is None or args.reward is None:
        raise ValueError(price)
    reward = resolve_reward(args.reward, max_completion_length=config.max_completion_length)
    print(f"{PRESETS[key].name}: {price.partition(': give')[0]}", file=sys.stderr)
    settings = {**settings, "temperature": args.temperature}
    return rolled_out(shard, key, model=loaded[0], tokenizer=loaded[1], reward=reward, settings=settings)


def _show(output: Path, source: Path, found: dict[str, "Explained"], notes: list[str]) -> None:
    from ..lab.explain.table import COLUMNS, markdown_table, rows_of
    from ..lab.viewer import build_page

    explained, grpo = list(found.values()), found.get("grpo")
    text = markdown_table(explained, grpo=grpo)
    print("\n".join([text, *([""] if notes else []), *notes]))
    shards, note = _fitting([one.shard for one in explained])
    title, table = f"{source}, by algorithm", [COLUMNS, *rows_of(explained, grpo=grpo)]
    write_atomically(output, build_page(shards, title=title, note=note, table=table, notes=notes))
    write_atomically(output.with_suffix(".md"), "\n".join([text, "", *notes]) + "\n")
    print(f"\n{output}{f' ({note})' if note else ''}\n{output.with_suffix('.md')}")


def _fitting(shards: list["Shard"]) -> tuple[list["Shard"], str]:
    """The shards with the first groups only, as many as fit on a page but at least one, and a note on the rest."""
    from ..lab.viewer.runs import MAX_TOKENS
    from ..observe.schema import Shard

    sizes: Counter[int] = Counter()
    for response in shards[0].responses:
        sizes[response["group"]] += len(response["tokens"]) * len(shards)
    totals = zip(sizes, accumulate(sizes.values()), strict=True)
    kept = {group for group, total in totals if total <= MAX_TOKENS} or {next(iter(sizes))}
    if len(kept) == len(sizes):
        return shards, ""
    parts = [Shard(s.header, {}, [r for r in s.responses if r["group"] in kept]) for s in shards]
    return parts, f"the page shows {len(kept)} of {len(sizes)} prompts, the table has all"
