"""Shows the credit of each token, as one HTML file that needs neither a server nor a network.

  trl-credit view runs/s_trace                         a run that was trained with --log_credit
  trl-credit view runs/s_trace --terminal              one response in the terminal
  trl-credit view rollouts.jsonl --tokenizer MODEL     JSONL rows with credit, and with tokens or token_ids

`trl-credit example verifiers_rollouts` copies a script that makes such rows of what the library verifiers saved.
"""

import os
import webbrowser
from pathlib import Path

from ..lab.viewer import build_page
from ..lab.viewer.excerpt import opening_response
from ..lab.viewer.runs import read_run, run_folder, run_title
from ..observe.schema import FOLDER, PAGE
from ..settings.parser import OneLineParser
from ..support.errors import choose
from ..support.files import inside, write_atomically


def main(argv: list[str]) -> int:
    """Runs the command and returns the exit code 0. Raises `ValueError` or `OSError` for wrong input."""
    parser = OneLineParser(prog="trl-credit view", description=__doc__)
    add = parser.add_argument
    add("run", metavar="RUN", help="folder of a run, a file of its log (credit_log/step-….jsonl), or another file")
    add("--step", type=int, nargs="+", help="steps to show (default: the last ones, as many as fit)")
    add("--tokenizer", metavar="MODEL", help="folder or id of a model, for a file without the texts of its tokens")
    add("--response", metavar="GROUP/INDEX", help="response to show first, such as 0/3 (default: one with much credit)")
    add("--output", metavar="FILE.html", help=f"page (default: RUN/{FOLDER}/{PAGE})")
    add("--open", action="store_true", help="open the page in a browser")
    add("--terminal", action="store_true", help="print one response in colour and write no file")
    args = parser.parse_args(argv)
    if args.terminal and (args.output or args.open):
        raise ValueError(f"--terminal writes no page: leave out {'--open' if args.open else '--output'}")
    run = run_folder(args.run)
    default = run.with_suffix(".html") if run.is_file() else inside(run, FOLDER) / PAGE
    output = check_output(args.output) if args.output else default
    shards, note = read_run(run, args.step, tokenizer=args.tokenizer)
    shard = next((shard for shard in shards if args.step and shard.header["step"] == args.step[0]), shards[-1])
    by_name = {f"{r['group']}/{r['index']}": r for r in shard.responses}
    if not by_name:
        raise ValueError(f"step {shard.header['step']} holds no responses")
    opening = opening_response([shard]) or shard.responses[0]
    name = args.response or f"{opening['group']}/{opening['index']}"
    if name not in by_name:
        raise ValueError(f"--response {name} is not in step {shard.header['step']}{choose(name, by_name)}")
    if args.terminal:
        from ..lab.viewer.terminal import print_response

        print_response(shard, by_name[name], scaled_by=shards)
        return 0
    start = {"step": shard.header["step"]} | {key: by_name[name][key] for key in ("group", "index")}
    write_atomically(output, build_page(shards, title=run_title(run), start=start, note=note))
    steps = ", ".join(str(shard.header["step"]) for shard in shards if shard.header["step"] is not None)
    print(f"{output} ({os.path.getsize(output) / 1e6:.1f} MB){f': step {steps}' if steps else ''}")
    if note:
        print(note)
    if args.open and not webbrowser.open(output.resolve().as_uri()):
        print(f"no browser was found: open {output} in one")
    return 0


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
