"""Shows the credit that every algorithm would give to the tokens of the same responses.

  trl-credit explain runs/s_trace                                  the last step of its rollout log
  trl-credit explain rollouts.jsonl --model Qwen/Qwen3-1.7B        your own responses, or those of verifiers

Each row of your own JSONL file has prompt, completion and reward. It can have logprobs and entropy too, in nats, one
per token. --model computes them if they are missing. `trl-credit example verifiers_rollouts` copies a script that makes
such rows of what the library verifiers saved. The command prints a table and writes an HTML page.
"""

from argparse import Namespace
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
    from ..lab.explain.measure import Loaded
    from ..observe.schema import Shard


def main(argv: list[str]) -> None:
    """Runs the command. Raises `ValueError`, `OSError` or `ImportError` for wrong input."""
    quiet_start()
    args = _parse(argv)
    source = args.rollouts
    output = source / "explain.html" if source.is_dir() else source.with_suffix(".explain.html")
    output = check_output(args.output or output)
    from ..presets import PRESETS
    from ..rewards import resolve_reward

    if unknown := [name for name in args.algo or () if name not in PRESETS]:
        raise ValueError(f"--algo {unknown[0]!r} is not known{choose(unknown[0], PRESETS)}")
    prepare_process(imports=bool(args.credit or args.reward or args.trust_run))
    if args.reward is not None:
        resolve_reward(args.reward)
    settings = {"output_dir": str(output.parent), "report_to": "none", "seed": args.seed}
    configs = {PRESETS[key].name: (PRESETS[key].config(**settings), key) for key in args.algo or PRESETS}
    configs |= {name: (config, None) for name, config in (_custom(text, settings) for text in args.credit)}
    shard, loaded = _read(args, source)
    explained, left_out = _explained(args, configs, shard, loaded)
    if not explained:
        raise ValueError(": ".join(next(iter(left_out.items()))))
    notes = [shard.header["note"]] if shard.header.get("note") else []
    notes += [f"{name} is left out: {reason.rstrip('.')}." for name, reason in left_out.items()]
    if not any(any(response.get("credit") or ()) for one in explained for response in one.shard.responses):
        notes.insert(0, "No algorithm gives credit: the responses to each prompt have the same reward.")
    _show(output, f"{source}, by algorithm", explained, notes)


def _parse(argv: list[str]) -> Namespace:
    parser = OneLineParser(prog="trl-credit explain", description=__doc__)
    add = parser.add_argument
    add("rollouts", type=Path, metavar="ROLLOUTS", help="folder of a run, file of its rollout log, or another file")
    add("--step", type=int, help="logged step of a run (default: the last)")
    add("--algo", nargs="+", metavar="ALGO", help="algorithms to show (default: all)")
    custom = 'credit functions and classes of yours, with the settings of GRPO or of ALGO, or "… --setting value"'
    add("--credit", nargs="+", default=[], metavar="[ALGO+]FILE.py:FUNCTION", help=custom)
    add("--model", help="computes log-probabilities and entropies that are missing")
    add("--tokenizer", metavar="MODEL", help="folder or id of a model, for a file without the texts of its tokens")
    add("--temperature", type=float, help="sampling temperature, for --model (default: that of the rollouts, or 1)")
    add("--reward", metavar="FILE.py:FUNCTION", help="with --model: scores continuations (default: those of RUN)")
    add("--trust_run", action="store_true", help="run functions that RUN names, and code that comes with a model")
    add("--seed", type=int, default=42, help="seed of random selectors and continuations (default: 42)")
    add("--output", metavar="FILE.html", help="default: explain.html in the run's folder, or ROLLOUTS.explain.html")
    args = parser.parse_args(argv)
    if args.temperature is not None and not args.temperature > 0:
        raise ValueError(f"--temperature must be positive, got {args.temperature}")
    return args


def _custom(text: str, settings: dict[str, Any]) -> tuple[str, "CreditConfig"]:
    """The name and configuration of custom credit with its settings: `s_trace+mine.py:f --strength 0.7`."""
    from ..config.algorithm import with_settings_of
    from ..lab.comparison.entries import split_credit
    from ..presets import PRESETS
    from ..settings.flags import FlagParser
    from ..support.digests import function_label
    from ..support.functions import resolve_function

    base, function, words = split_credit(text)
    resolve_function(function, what="credit", known=())
    values = vars(FlagParser([with_settings_of(function, PRESETS[base].config)]).parse_args(words))
    typed = {name.removeprefix("no_") for name in typed_fields(words)}
    own = {name: value for name, value in values.items() if name in typed}
    config = PRESETS[base].config(credit=function, **settings, **own)
    shown = ", ".join([PRESETS[base].name, *(f"{name}={value}" for name, value in own.items())])
    return f"{function_label(config.custom_function('credit'))} on {shown}", config


def _read(args: Namespace, source: Path) -> tuple["Shard", "Loaded | None"]:
    """The responses of a log or a file, with what a model computes of them; the model and its tokenizer if one is
    named."""
    from ..lab.explain import read_rollouts
    from ..lab.explain.measure import load, measured
    from ..lab.rollout_files import with_texts

    shard = read_rollouts(source, step=args.step)
    shard.header["temperature"] = args.temperature or shard.header.get("temperature") or 1.0
    loaded = load(args.model, trust_remote_code=args.trust_run) if args.model else None
    if args.tokenizer is not None:
        shard = with_texts(shard, args.tokenizer)
    if loaded is not None and any(_lacks(shard, x) for x in ("token_ids", "tokens", "trainer_logprobs", "entropy")):
        shard = measured(shard, *loaded)
    if _lacks(shard, "trainer_logprobs", "old_logprobs") or _lacks(shard, "tokens"):
        fix = "give --model, or --tokenizer if it has token_ids"
        raise ValueError(f"{source} lacks log-probabilities, or the texts of its tokens: {fix}")
    return shard, loaded


def _lacks(shard: "Shard", *names: str) -> bool:
    """Whether a response has none of the fields."""
    return any(all(response.get(name) is None for name in names) for response in shard.responses)


def _explained(
    args: Namespace, configs: dict[str, tuple["CreditConfig", str | None]], shard: "Shard", loaded: "Loaded | None"
) -> tuple[list["Explained"], dict[str, str]]:
    """The credit by algorithm or custom function, and by name the reasons why some are left out. `configs` has the
    configuration and the preset of each, `None` for custom credit."""
    import torch

    from ..lab.explain.credits import as_trained, explain
    from ..lab.explain.segments import rolled_out
    from ..support.functions import FunctionRaised

    explained, left_out = list(filter(None, [as_trained(shard)])), {}
    for name, (config, key) in configs.items():
        torch.manual_seed(args.seed)  # of custom functions
        segments = None
        try:
            if key is not None and config.rollouts != "none":
                if config.rollouts == "tree":
                    raise ValueError("it samples trees of its own: train with it and log_credit to look at them")
                config, segments = rolled_out(shard, key, loaded, **_scoring(args, config))
            explained.append(explain(shard, config, name=name, segments=segments))
        except (ValueError, TypeError, FunctionRaised) as error:
            left_out[name] = str(error)
    return explained, left_out


def _scoring(args: Namespace, config: "CreditConfig") -> dict[str, Any]:
    """What scores and samples continuations, as arguments of `rolled_out`: `--reward`, or the rewards of the run with
    their weights, and the run's sampling.

    Raises:
        ValueError: a model or a reward is missing or not trusted, or continuations need the run's tools; the message
            names the flag.
    """
    from ..lab.evaluation.runs import check_trusted
    from ..rewards import resolve_reward
    from ..runs.checkpoints import read_run

    source, what = args.rollouts, "it values states by continuations"
    run = read_run(source) or {"identity": {}}
    identity, names = run["identity"], [args.reward] if args.reward else (run.get("task") or run).get("reward")
    if any(identity.get(name) for name in ("tools", "environment_factory", "rollout_func")):
        raise ValueError(f"{what}, and the run's tools or environments are not known here")
    model = args.model or (str(source) if any(source.glob("*.safetensors")) else "NAME")
    if names and not args.reward:
        check_trusted(source, names, command=["explain", str(source), "--model", model], trust_run=args.trust_run)
    if not (names and args.model):
        had = f" (only the run's script knows {', '.join(identity['reward_funcs'])})" if identity else ""
        raise ValueError(f"{what}: give --model {model}" + ("" if names else f" and --reward FILE.py:FUNCTION{had}"))
    of_run = ("top_p", "top_k", "max_completion_length", "reward_weights")[: 3 if args.reward else 4]
    rewards = [resolve_reward(name, max_completion_length=identity.get("max_completion_length")) for name in names]
    settings = {name: identity[name] for name in of_run if identity.get(name) is not None}
    settings |= {"output_dir": config.output_dir, "report_to": "none", "seed": args.seed}
    return {"rewards": rewards, "settings": settings}


def _show(output: Path, title: str, explained: list["Explained"], notes: list[str]) -> None:
    """Prints the table, and writes it and the page, which has the responses that fit."""
    from ..lab.explain.table import COLUMNS, markdown_table, rows_of, teacher_note
    from ..lab.tables import for_terminal
    from ..lab.viewer import build_page
    from ..lab.viewer.excerpt import excerpt
    from ..lab.viewer.runs import MAX_TOKENS
    from ..observe.schema import Shard

    grpo = next((one for one in explained if one.name == "GRPO"), None)
    text, shards = markdown_table(explained, grpo=grpo), [one.shard for one in explained]
    notes = [*filter(None, [teacher_note(explained[0])]), *notes]
    print(for_terminal("\n".join([text, *([""] if notes else []), *notes])))
    part = excerpt(shards[-1], max_tokens=MAX_TOKENS // len(shards)).responses
    kept, count = {(r["group"], r["index"]) for r in part}, len(shards[0].responses)
    note = "" if len(part) == count else f"the page shows {len(part)} of {count} responses, the table has all"
    shards = [Shard(s.header, {}, [r for r in s.responses if (r["group"], r["index"]) in kept]) for s in shards]
    table = [COLUMNS, *rows_of(explained, grpo=grpo)]
    write_atomically(output, build_page(shards, title=title, note=note, table=table, notes=notes))
    write_atomically(output.with_suffix(".md"), "\n".join([text, "", *notes]) + "\n")
    print(f"\n{output}{f' ({note})' if note else ''}\n{output.with_suffix('.md')}")
