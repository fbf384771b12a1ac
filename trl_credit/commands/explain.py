"""`trl-credit explain ROLLOUTS`: the credit of every algorithm on the same responses, as a table and a page."""

import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import write_whole
from ..mistakes import OneLineParser, choose, fail


if TYPE_CHECKING:
    from ..config import CreditConfig
    from ..explain.credits import Explained
    from ..logs import Shard


_HELP = (
    "What would each algorithm do? Shows the credit that every algorithm gives to the tokens of the same responses. "
    "ROLLOUTS is the folder of a run that was trained with --log_credit, a shard of its log, or a JSONL file with "
    "prompt, completion and reward in each row; logprobs and entropy (nats, one per token) where they are known, else "
    "--model computes them."
)


def main(argv: list[str]) -> int:
    """Runs the command; the exit code."""
    try:
        args = _parser().parse_args(argv)
        _run(args)
    except BrokenPipeError:  # whoever reads the table has gone
        raise
    except (ValueError, OSError, ImportError) as error:
        fail(error, code=2)
    return 0


def _parser() -> OneLineParser:
    parser = OneLineParser(prog="trl-credit explain", description=_HELP)
    parser.add_argument("rollouts", metavar="ROLLOUTS", help="folder of a run, or a file")
    parser.add_argument("--step", type=int, help="logged step of a run (default: the last)")
    parser.add_argument("--algo", nargs="+", metavar="ALGO", help="algorithms to show (default: all)")
    own = "credit functions of yours, on the settings of GRPO or of ALGO"
    parser.add_argument("--credit", nargs="+", default=[], metavar="[ALGO+]FILE.py:FUNCTION", help=own)
    parser.add_argument("--model", help="computes log-probabilities and entropies where they are missing")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the sampling, for --model (default: 1)")
    parser.add_argument(
        "--reward", metavar="FILE.py:FUNCTION", help="scores continuations, for algorithms with segments; with --model"
    )
    parser.add_argument("--seed", type=int, default=42, help="of random selectors and continuations")
    parser.add_argument(
        "--output", metavar="FILE.html", help="default: explain.html in the folder, or ROLLOUTS.explain.html"
    )
    return parser


def _run(args: Namespace) -> None:
    _check(args)
    from ..explain import read_rollouts

    shard = read_rollouts(args.rollouts, step=args.step)
    from ..algorithms import ALGORITHMS

    names = args.algo or list(ALGORITHMS)
    for name in names:
        if name not in ALGORITHMS:
            raise ValueError(f"--algo {name!r} is not known{choose(name, ALGORITHMS)}")
    loaded = None
    if args.model is not None:
        from ..explain.measure import load, measured

        loaded = load(args.model)
        if _lacks(shard):  # what is known stays
            shard = measured(shard, *loaded, temperature=args.temperature)
    elif _lacks(shard, "trainer_logprobs", "old_logprobs"):
        raise ValueError(f"{args.rollouts} has no log-probabilities: give --model, and they are computed")
    if _lacks(shard, "tokens"):
        raise ValueError(f"{args.rollouts} has log-probabilities without tokens: add them to its rows, or give --model")
    found, left_out = _explained(args, shard, names, loaded)
    if not found:
        raise ValueError(next(f"{name}: {reason}" for name, reason in left_out.items()))
    _show(args, shard, found, left_out)


def _check(args: Namespace) -> None:
    if args.reward is not None and args.model is None:
        raise ValueError("--reward scores continuations, and nobody makes them: give --model")
    if not args.temperature > 0:
        raise ValueError(f"--temperature must be positive, got {args.temperature}")
    output = _output(args)
    if output.suffix not in (".html", ".htm"):
        raise ValueError(f"--output {output}: the name of the page must end in .html")
    if not output.parent.is_dir():
        raise ValueError(f"--output {output}: there is no folder {output.parent}: make it first")
    if not os.access(output.parent, os.W_OK):
        raise ValueError(f"--output {output}: {output.parent} is not to be written to: choose another folder")


def _output(args: Namespace) -> Path:
    source = Path(args.rollouts)
    return Path(args.output or (source / "explain.html" if source.is_dir() else source.with_suffix(".explain.html")))


def _lacks(shard: "Shard", *names: str) -> bool:
    """Whether a response has none of the fields `names`, or one of those that a model gives."""
    if names:
        return any(all(response.get(name) is None for name in names) for response in shard.responses)
    given = ("tokens", "token_ids", "trainer_logprobs", "entropy")
    return any(response.get(name) is None for response in shard.responses for name in given)


def _explained(
    args: Namespace, shard: "Shard", names: list[str], loaded: Any
) -> tuple[dict[str, "Explained"], dict[str, str]]:
    """What each algorithm makes of the responses, by its key or function, and why some make nothing of them."""
    import torch

    from ..algorithms import ALGORITHMS
    from ..explain.credits import as_trained, explain, said_by
    from ..rewards.guard import RewardRaised

    settings = {"output_dir": str(_output(args).parent), "report_to": "none"}
    found: dict[str, Explained] = {}
    if (trained := as_trained(shard)) is not None:
        found[""] = trained
    left_out: dict[str, str] = {}
    for key in [*names, *dict.fromkeys(args.credit)]:
        torch.manual_seed(args.seed)  # of a selector that draws
        label, segments = key, None
        try:
            if key in ALGORITHMS:
                label = ALGORITHMS[key][1].title()
                config, segments = _with_segments(args, shard, key, settings, loaded)
            else:
                config, label = _own(key, settings, taken=[one.name for one in found.values()])
            found[key] = explain(shard, config, name=label, segments=segments)
        except (ValueError, TypeError) as error:
            left_out[label] = str(error)
        except RewardRaised as error:
            left_out[label] = said_by(error)
    return found, left_out


def _own(name: str, settings: dict[str, Any], *, taken: list[str]) -> tuple["CreditConfig", str]:
    """A credit function of one's own on the settings of GRPO, or of another algorithm: `s_trace+mine.py:f`."""
    from ..algorithms import ALGORITHMS
    from ..names import function_label

    base, plus, function = name.partition("+")
    if base not in ALGORITHMS or not plus:
        base, function = "grpo", name
    config_class, trainer_class = ALGORITHMS[base]
    config = config_class(credit=function, **settings)
    label = f"{function_label(config.own_function('credit'))} on {trainer_class.title()}"
    return config, label if label not in taken else f"{label} ({function})"


def _with_segments(
    args: Namespace, shard: "Shard", name: str, settings: dict[str, Any], loaded: Any
) -> tuple["CreditConfig", Any]:
    from ..algorithms import ALGORITHMS
    from ..explain.segments import cost, rolled_out
    from ..rewards import resolve_reward

    config_class, trainer_class = ALGORITHMS[name]
    config = config_class(**settings)
    if config.rollouts == "none":
        return config, None
    if shard.trees or config.rollouts == "tree" or loaded is None or args.reward is None:
        raise ValueError(cost(shard, config))
    reward = resolve_reward(args.reward, max_completion_length=config.max_completion_length)
    print(f"{trainer_class.title()}: {cost(shard, config).partition(': give')[0]}", file=sys.stderr)
    given = {"seed": args.seed, "temperature": args.temperature, **settings}
    seed = given.pop("seed")
    return rolled_out(shard, name, model=loaded[0], tokenizer=loaded[1], reward=reward, seed=seed, settings=given)


def _show(args: Namespace, shard: "Shard", found: dict[str, "Explained"], left_out: dict[str, str]) -> None:
    from ..explain import markdown_table
    from ..explain.table import COLUMNS, rows_of
    from ..viewer import build_page

    explained, grpo = list(found.values()), found.get("grpo")
    text = markdown_table(explained, grpo=grpo)
    notes = [f"{name} is left out: {reason.rstrip('.')}." for name, reason in left_out.items()]
    print("\n".join([text, *([""] if notes else []), *notes]))
    shards, cut = _fitting([one.shard for one in explained])
    output = _output(args)
    said = {"note": cut, "table": [COLUMNS, *rows_of(explained, grpo=grpo)], "notes": notes}
    write_whole(output, build_page(shards, title=f"{args.rollouts}, by algorithm", **said))
    write_whole(output.with_suffix(".md"), "\n".join([text, "", *notes]) + "\n")
    print(f"\n{output}{f' ({cut})' if cut else ''}\n{output.with_suffix('.md')}")


def _fitting(shards: list["Shard"]) -> tuple[list["Shard"], str]:
    """The first groups, as many as a page holds, at least one; and a line on what is left out of it."""
    from ..logs import Shard
    from ..viewer.runs import TOKENS

    sizes: dict[int, int] = {}
    for response in shards[0].responses:
        sizes[response["group"]] = sizes.get(response["group"], 0) + len(response["tokens"]) * len(shards)
    kept, used = set(), 0
    for group, size in sizes.items():
        if kept and used + size > TOKENS:
            break
        kept.add(group)
        used += size
    if len(kept) == len(sizes):
        return shards, ""
    part = [Shard(s.header, {}, [r for r in s.responses if r["group"] in kept]) for s in shards]
    return part, f"the page shows {len(kept)} of {len(sizes)} prompts, the table has all"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
