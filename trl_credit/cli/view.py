"""Shows the credit of each token, as one HTML file that needs neither a server nor a network.

  trl-credit view runs/s_trace                         a run that was trained with --log_credit
  trl-credit view runs/s_trace --terminal              one response in the terminal
  trl-credit view new=runs/b runs/a                    several runs side by side, with the difference of their credit
  trl-credit view rollouts.jsonl --tokenizer MODEL     JSONL rows with credit, and with tokens or token_ids

`trl-credit example verifiers_rollouts` copies a script that makes such rows of what the library verifiers saved.
"""

import os
import webbrowser
from pathlib import Path

from ..lab.viewer import build_page
from ..lab.viewer.excerpt import opening_response
from ..lab.viewer.runs import last_step, named_runs, read_runs, run_title
from ..observe.schema import FOLDER, PAGE
from ..settings.parser import OneLineParser
from ..support.errors import choose
from ..support.files import inside, write_atomically


def main(argv: list[str]) -> None:
    """Runs the command. Raises `ValueError` or `OSError` for wrong input."""
    parser = OneLineParser(prog="trl-credit view", description=__doc__)
    add = parser.add_argument
    what = "folder of a run, a file of its log (credit_log/step-….jsonl), or another file; several, or NAME=RUN"
    add("runs", nargs="+", metavar="RUN", help=what)
    add("--step", type=int, nargs="+", help="steps to show (default: the last ones, as many as fit)")
    add("--tokenizer", metavar="MODEL", help="folder or id of a model, for a file without the texts of its tokens")
    add("--response", metavar="GROUP/INDEX", help="response to show first, such as 0/3 (default: one with much credit)")
    add("--output", metavar="FILE.html", help=f"page (default: RUN/{FOLDER}/{PAGE}, of several runs {PAGE})")
    add("--open", action="store_true", help="open the page in a browser")
    add("--terminal", action="store_true", help="print one response in colour and write no file")
    args = parser.parse_args(argv)
    if args.terminal and (args.output or args.open):
        raise ValueError(f"--terminal writes no page: leave out {'--open' if args.open else '--output'}")
    runs = named_runs(args.runs)
    if args.terminal and len(runs) > 1:
        raise ValueError("--terminal prints a response of one run: name one")
    run = next(iter(runs.values()))
    default = Path(PAGE) if len(runs) > 1 else run.with_suffix(".html") if run.is_file() else inside(run, FOLDER) / PAGE
    output = check_output(args.output) if args.output else default
    shards, note = read_runs(runs, args.step, tokenizer=args.tokenizer)
    with_credit = [shard for shard in shards if opening_response([shard])]
    first = args.step[0] if args.step else last_step(with_credit or shards)
    there = [shard for shard in shards if shard.header["step"] == first] or shards[-1:]
    by_name = {f"{r['group']}/{r['index']}": r for shard in there[::-1] for r in shard.responses}
    if not by_name:
        raise ValueError(f"step {first} holds no responses")
    opening = opening_response(there) or there[0].responses[0]
    name = args.response or f"{opening['group']}/{opening['index']}"
    if name not in by_name:
        raise ValueError(f"--response {name} is not in step {first}{choose(name, by_name)}")
    if args.terminal:
        from ..lab.viewer.terminal import print_response

        print_response(there[0], by_name[name], scaled_by=shards)
        return
    start = {"step": first} | {key: by_name[name][key] for key in ("group", "index")}
    title = run_title(run) if len(runs) == 1 else ", ".join(runs)
    write_atomically(output, build_page(shards, title=title, start=start, note=note))
    known = dict.fromkeys(shard.header["step"] for shard in shards if shard.header["step"] is not None)
    steps = f": step {', '.join(map(str, known))}" if known else ""
    print(f"{output} ({os.path.getsize(output) / 1e6:.1f} MB){steps}")
    if note:
        print(note)
    if args.open and not webbrowser.open(output.resolve().as_uri()):
        print(f"no browser was found: open {output} in one")


def check_output(path: str | Path) -> Path:
    """The path of a page.

    Raises:
        ValueError: the name does not end in .html, or its folder does not exist.
    """
    path = Path(path)
    if path.suffix not in (".html", ".htm"):
        raise ValueError(f"--output {path}: the name of the page must end in .html")
    if not path.parent.is_dir():
        raise ValueError(f"--output {path}: there is no folder {path.parent}: make it first")
    return path
