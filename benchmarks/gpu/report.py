"""What was found as Markdown, with the hardware and the versions that it was found on."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
from argparse import Namespace
from pathlib import Path
from typing import Any


MODULES = ("torch", "trl", "transformers", "accelerate", "triton", "vllm", "flash_attn", "flashinfer")
GIB = 1024**3


def card_name(args: Namespace) -> str | None:
    """The GPU's name, "CPU" for a dry run, `None` where torch sees no GPU."""
    import torch

    if args.dry_run:
        return "CPU"
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def heading(args: Namespace, card: str) -> str:
    """Title, hardware, versions and the command."""
    import torch

    title = f"# benchmarks/gpu.sh on {card}"
    if args.dry_run:
        title = "# Dry run of benchmarks/gpu.sh\n\n**Tiny sizes on a CPU: no figure here says anything of a GPU.**"
        memory = ""
    else:
        memory = f", {torch.cuda.get_device_properties(0).total_memory / GIB:.0f} GiB, CUDA {torch.version.cuda}"
        query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0")
        memory += _output(*query, say=", driver ")
    commit = _output("git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD", say=", commit ")
    hardware = f"{card}{memory}; {os.cpu_count()} CPU cores ({platform.machine()}); Python {platform.python_version()}"
    versions = ", ".join(_versions())
    return f"{title}\n\n{hardware}{commit}. {versions}."


def failed(entries: list[dict[str, Any]]) -> bool:
    """Whether a check failed, or nothing at all was found."""
    return not entries or any(entry.get("outcome") == "FAILED" for entry in entries)


def result_line(part: str, entries: list[dict[str, Any]], *, seconds: float) -> str:
    """A part in one line: `**speed: ok** (10 measured, 10 of 10 checks, 61 s)`."""
    outcomes = [entry["outcome"] for entry in entries if entry["kind"] == "check"]
    ran = len(outcomes) - outcomes.count("not run")
    counts = [f"{outcomes.count('ok')} of {ran} checks"] if ran else []
    if rows := sum(entry["kind"] == "row" for entry in entries):
        counts.append(f"{rows} measured")
    if outcomes.count("not run"):
        counts.append(f"{outcomes.count('not run')} not run")
    outcome = "FAILED" if failed(entries) else "ok" if ran or rows else "not run"
    return f"**{part}: {outcome}** ({', '.join([*counts, f'{seconds:.0f} s'])})"


def readme_table(args: Namespace, card: str, of_part: dict[str, list[dict[str, Any]]]) -> str:
    """What README.md shows of a run: the checks of each part, and time and memory of a step with TRL's as 1."""
    checks = []
    for part, entries in of_part.items():
        outcomes = [entry["outcome"] for entry in entries if entry["kind"] == "check" and entry["outcome"] != "not run"]
        if outcomes:
            checks.append(f"{part} {outcomes.count('ok')} of {len(outcomes)}")
    steps = [entry["columns"] for entry in of_part.get("speed", []) if entry["kind"] == "row"]
    rows = [{"": "checks that passed", card: ", ".join(checks) or "none"}]
    for step in steps:
        ours, theirs = (step[f"peak {whose} (GiB)"] for whose in ("ours", "TRL"))
        memory = "" if args.dry_run else f", memory {float(ours) / float(theirs):.2f}"
        what = f"{step['algorithm']}, {step['completions']} tokens: a step, TRL's = 1"
        rows.append({"": what, card: f"time {step['ratio']}{memory}"})
    return _table(rows)


def in_markdown(entries: list[dict[str, Any]]) -> str:
    """The tables of measurements, and that of the checks."""
    tables: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for entry in entries:
        columns = entry["columns"] if entry["kind"] == "row" else _columns(entry)
        tables.setdefault(tuple(columns), []).append(columns)
    return "\n\n".join(_table(rows) for rows in tables.values())


def _columns(entry: dict[str, str]) -> dict[str, str]:
    return {"check": entry["what"], "found": entry["found"], "wanted": entry["wanted"], "": entry["outcome"]}


def _table(rows: list[dict[str, str]]) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row.values()] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [list(rows[0]), ["---"] * len(rows[0]), *cells])


def _versions() -> list[str]:
    """The versions of `MODULES`, found by module: builds for other devices have other names."""
    packages = importlib.metadata.packages_distributions()
    version = importlib.metadata.version
    return [f"{name} {version(packages[name][0])}" if name in packages else f"no {name}" for name in MODULES]


def _output(*command: str, say: str) -> str:
    """What a program prints, behind `say`; nothing where it is not there or fails."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True)
    return f"{say}{done.stdout.strip()}" if done.returncode == 0 else ""
