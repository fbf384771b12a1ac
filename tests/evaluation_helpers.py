"""What the tests of evaluation share: runs of the embedded model that take a moment."""

from pathlib import Path

from trl_credit.evaluation import evaluate


SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "evaluate.py"
SMALL = {"samples": 4, "metrics": ["pass@1", "pass@2", "maj@4", "avg@4"]}


def run(folder, models=("demo",), sets=("demo",), **options):
    options = {"protocols": ["demo"], "max_problems": 24, "changes": SMALL, "progress": False, **options}
    return evaluate(list(models), None if sets is None else list(sets), output_dir=folder, **options)


def sample_file(folder):
    (path,) = Path(folder).glob("samples/*/*.jsonl")
    return path
