"""Runs the parts of `benchmarks/gpu.sh`, each task in a process with a time limit, and writes what they found."""

import contextlib
import datetime
import importlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from options import TASKS, make_parser
from record import Recorder, read
from report import card_name, failed, heading, in_markdown, readme_table, result_line


HERE = Path(__file__).resolve().parent
LOG_LINES = 25  # of a task that failed, shown on stderr


def run_task(args: Namespace, argv: list[str], task: str, *, seconds: float, folder: Path) -> list[dict[str, Any]]:
    """What one task found; that it did not end well is a failed check of its own."""
    results, log = folder / f"{task}.jsonl", folder / f"{task}.log"
    command = [sys.executable, str(HERE), *argv, "--task", task, "--results", str(results)]
    recorder = Recorder(results)
    threads = {"OMP_NUM_THREADS": "1"} if args.dry_run else {}  # tensors this small are faster on one
    with log.open("w") as file:
        # a session of its own, so that whatever an engine has started ends with it
        process = subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | threads, start_new_session=True)
        try:
            code = process.wait(max(seconds, 0.1))
            if code != 0:
                recorder.check(task, f"ended with exit code {code}", wanted="exit code 0", ok=False)
        except subprocess.TimeoutExpired:
            recorder.check(task, f"stopped after {max(seconds, 0.0):.0f} s", wanted="an end before", ok=False)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    entries = read(results)
    if failed(entries):
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
        print(f"the last lines of {task}:", *tail, sep="\n  ", file=sys.stderr)
    return entries


def run_part(args: Namespace, argv: list[str], part: str) -> tuple[list[dict[str, Any]], float]:
    """What the tasks of a part found, and the seconds that they took."""
    start, entries = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        for task in TASKS[part]:
            left = getattr(args, f"{part}_seconds") - (time.perf_counter() - start)
            entries += run_task(args, argv, task, seconds=left, folder=Path(folder))
    return entries, time.perf_counter() - start


def output_path(args: Namespace, card: str) -> Path | None:
    """The file to write; `None` for a dry run without `--output`, whose figures are not kept."""
    if args.output is not None or args.dry_run:
        return args.output
    words = [datetime.date.today().isoformat(), "gpu", re.sub(r"[^a-z0-9]+", "-", card.lower()).strip("-"), *args.parts]
    return HERE.parent / "results" / f"{'-'.join(words)}.md"


def main(argv: list[str]) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.task is not None:
        module = "engine" if args.task in TASKS["vllm"] else args.task
        importlib.import_module(module).main(args, Recorder(args.results))
        return 0
    if unknown := [part for part in args.parts if part not in TASKS]:
        parser.error(f"unknown part {unknown[0]!r}: choose of {', '.join(TASKS)}")
    card = card_name(args)
    if card is None:
        parser.error("torch sees no GPU here: run it where one is, or try the script with --dry_run")
    output = output_path(args, card)
    if output is not None and not output.parent.is_dir():
        parser.error(f"--output {output}: there is no folder {output.parent}")
    lines = [heading(args, card)]
    print(lines[0], flush=True)
    bad, of_part = False, {}
    for part in args.parts or TASKS:
        entries, seconds = run_part(args, argv, part)
        of_part[part] = entries
        lines += [f"## {part}", in_markdown(entries), result_line(part, entries, seconds=seconds)]
        print(*lines[-3:], sep="\n\n", flush=True)
        bad |= failed(entries)
    lines += ["## For README.md", readme_table(args, card, of_part)]
    print(*lines[-2:], sep="\n\n", flush=True)
    if output is not None:
        from trl_credit.support.files import write_atomically

        write_atomically(output, "\n\n".join(lines) + "\n")
        print(f"\nwritten to {output}")
    return int(bad)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
