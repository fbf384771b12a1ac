"""`trl-credit view RUN`: a run's credit per token as one HTML file, or a response in the terminal. Needs no torch."""

import os
import webbrowser
from argparse import Namespace
from pathlib import Path

from ..lab.viewer import build_page
from ..lab.viewer.excerpt import opening_response
from ..lab.viewer.runs import read_run, run_folder, run_title
from ..observe.schema import FOLDER, PAGE, Shard
from ..settings.parser import OneLineParser
from ..support.files import inside, write_atomically


_HELP = """\
Shows the credit of each token, as one HTML file that needs neither a server nor a network.

  trl-credit view runs/s_trace                         a run that was trained with --log_credit
  trl-credit view runs/s_trace --terminal              one response in the terminal
  trl-credit view rollouts.jsonl --tokenizer MODEL     JSONL rows with credit, and with tokens or token_ids

`trl-credit example verifiers_rollouts` copies a script that makes such rows of what the library verifiers saved."""


def main(argv: list[str]) -> int:
    """Runs the command and returns the exit code 0. Raises `ValueError` or `OSError` for wrong input."""
    parser = OneLineParser(prog="trl-credit view", description=_HELP)
    add = parser.add_argument
    add("run", metavar="RUN", help="folder of a run, a file of its log (credit_log/step-….jsonl), or another file")
    add("--step", type=int, nargs="+", help="steps to show (default: the last ones, as many as fit)")
    add("--tokenizer", metavar="MODEL", help="folder or id of a model, for a file without the texts of its tokens")
    add("--response", metavar="GROUP/INDEX", help="response to show first, such as 0/3 (default: one with much credit)")
    add("--output", metavar="FILE.html", help=f"page (default: RUN/{FOLDER}/{PAGE})")
    add("--open", action="store_true", help="open the page in a browser")
    add("--terminal", action="store_true", help="print one response in colour and write no file")
    args = parser.parse_args(argv)
    if args.terminal and (args.output is not None or args.open):
        flag = "--open" if args.output is None else "--output"
        raise ValueError(f"--terminal writes no page: leave out {flag}")
    if args.output is not None:
        check_output(Path(args.output))
    shards, note = read_run(args.run, args.step, tokenizer=args.tokenizer)
    shard = next((shard for shard in shards if args.step and shard.header["step"] == args.step[0]), shards[-1])
    start = {"step": shard.header["step"], **_response(shard, args.response)}
    if args.terminal:
        _print(shards, shard, start)
    else:
        _write(args, shards, start, note)
    return 0


def check_output(path: Path) -> None:
    """Checks that a page can be written.

    Raises:
        ValueError: the name does not end in .html, or its folder does not exist or is read-only.
    """
    if path.suffix not in (".html", ".htm"):
        raise ValueError(f"--output {path}: the name of the page must end in .html")
    if not path.parent.is_dir():
        raise ValueError(f"--output {path}: there is no folder {path.parent}: make it first")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"--output {path}: {path.parent} cannot be written to: choose another folder")


def _response(shard: Shard, name: str | None) -> dict[str, int]:
    """The group and index of `GROUP/INDEX`; empty for no name."""
    if name is None:
        return {}
    group, _, index = name.partition("/")
    if not (group.isdecimal() and index.isdecimal()):
        raise ValueError(f"--response {name}: write GROUP/INDEX, such as 0/3")
    found = [(r["group"], r["index"]) for r in shard.responses]
    if (int(group), int(index)) not in found:
        some = ", ".join(f"{g}/{i}" for g, i in found[:4]) + (" …" if len(found) > 4 else "")
        raise ValueError(f"--response {name} is not in step {shard.header['step']}: it has {some or 'none'}")
    return {"group": int(group), "index": int(index)}


def _print(shards: list[Shard], shard: Shard, start: dict[str, int]) -> None:
    from ..lab.viewer.terminal import print_response

    if not shard.responses:
        raise ValueError(f"step {start['step']} holds no responses")
    wanted = start if "group" in start else opening_response([shard]) or {}  # as on the page
    found = (r for r in shard.responses if all(r[name] == wanted.get(name, r[name]) for name in ("group", "index")))
    print_response(shard, next(found), scaled_by=shards)


def _write(args: Namespace, shards: list[Shard], start: dict[str, int], note: str) -> None:
    run = run_folder(args.run)
    default = run.with_suffix(".html") if run.is_file() else inside(run, FOLDER) / PAGE
    output = default if args.output is None else Path(args.output)
    write_atomically(output, build_page(shards, title=run_title(args.run), start=start, note=note))
    steps = ", ".join(str(shard.header["step"]) for shard in shards if shard.header["step"] is not None)
    print(f"{output} ({os.path.getsize(output) / 1e6:.1f} MB){f': step {steps}' if steps else ''}")
    if note:
        print(note)
    if args.open and not webbrowser.open(output.resolve().as_uri()):
        print(f"no browser was found: open {output} in one")
