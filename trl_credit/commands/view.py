"""`trl-credit view RUN`: a run's credit per token as one HTML file, or a response in the terminal. Needs no torch."""

import os
import sys
import webbrowser
from argparse import Namespace
from pathlib import Path
from typing import Any

from ..files import write_whole
from ..logs import FOLDER, Shard
from ..mistakes import OneLineParser, fail
from ..viewer import build_page
from ..viewer.runs import folder_of, name_of, read_run


_HELP = (
    "Writes one HTML file that shows which token got how much credit, and needs neither a server nor a network. "
    "The run must have been trained with --log_credit."
)


def main(argv: list[str]) -> int:
    """Runs the command; the exit code."""
    parser = OneLineParser(prog="trl-credit view", description=_HELP)
    parser.add_argument("run", metavar="RUN", help="output folder of a run, or one shard (credit_log/step-….jsonl)")
    parser.add_argument("--step", type=int, nargs="+", help="steps to show (default: the last ones, as many as fit)")
    parser.add_argument(
        "--response", metavar="GROUP/INDEX", help="response to begin with, such as 0/3 (default: the first)"
    )
    parser.add_argument("--output", metavar="FILE.html", help=f"default: RUN/{FOLDER}/view.html")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument("--terminal", action="store_true", help="print one response in colour, and write no file")
    try:
        args = parser.parse_args(argv)
        _check(args)
        shards, note = read_run(args.run, args.step)
        start = _start(shards, args)
        if args.terminal:
            _print(shards, start)
        else:
            _write(args, shards, start=start, note=note)
    except BrokenPipeError:
        raise  # the reader of standard output has gone, which is no mistake
    except (ValueError, OSError) as error:
        fail(error, code=2)
    return 0


def _check(args: Namespace) -> None:
    if args.terminal and (args.output is not None or args.open):
        raise ValueError(f"--terminal writes no page: leave out {'--output' if args.output is not None else '--open'}")
    if args.output is not None and Path(args.output).suffix not in (".html", ".htm"):
        raise ValueError(f"--output {args.output}: the name of the page must end in .html")
    if args.output is not None and not Path(args.output).parent.is_dir():
        raise ValueError(f"--output {args.output}: there is no folder {Path(args.output).parent}: make it first")


def _start(shards: list[Shard], args: Namespace) -> dict[str, int]:
    """The response to begin with: of the first step that was asked for, or of the last one that there is."""
    shard = shards[-1]
    if args.step:
        shard = next(one for one in shards if one.header["step"] == args.step[0])
    start = {"step": shard.header["step"]}
    if args.response is None:
        return start
    group, _, index = args.response.partition("/")
    if not (group.isdecimal() and index.isdecimal()):
        raise ValueError(f"--response {args.response}: write GROUP/INDEX, such as 0/3")
    there = [(r["group"], r["index"]) for r in shard.responses]
    if (int(group), int(index)) not in there:
        some = ", ".join(f"{g}/{i}" for g, i in there[:4]) + (" …" if len(there) > 4 else "")
        raise ValueError(f"--response {args.response} is not in step {start['step']}: it has {some or 'none'}")
    return start | {"group": int(group), "index": int(index)}


def _print(shards: list[Shard], start: dict[str, int]) -> None:
    from ..viewer.terminal import print_response

    shard = next(one for one in shards if one.header["step"] == start["step"])
    wanted = [r for r in shard.responses if all(r[name] == start[name] for name in ("group", "index") if name in start)]
    if not wanted:
        raise ValueError(f"step {start['step']} holds no responses")
    coloured = [r for r in wanted if any(r.get("credit") or ())] or wanted
    print_response(shard, next((r for r in coloured if r["group"] in shard.trees), coloured[0]))


def _write(args: Namespace, shards: list[Shard], **said: Any) -> None:
    run = folder_of(args.run)
    beside = run.with_suffix(".html") if run.is_file() else run / FOLDER / "view.html"
    output = Path(args.output) if args.output is not None else beside
    page = build_page(shards, title=name_of(args.run), **said)
    write_whole(output, page)
    steps = ", ".join(str(shard.header["step"]) for shard in shards)
    print(f"{output} ({os.path.getsize(output) / 1e6:.1f} MB): step {steps}")
    if said["note"]:
        print(said["note"])
    if args.open and not webbrowser.open(output.resolve().as_uri()):
        print(f"no browser was found: open {output} in one")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
