"""SmolLM2-135M learns to add two numbers below 50, on two CPU cores.

python sums.py        # writes train.jsonl and test.jsonl
trl-credit train --algo s_trace --config smollm2.yaml --log_credit 25 --output_dir run        # downloads the model
trl-credit view run --open
trl-credit help start        # what came of it, and what to change
"""

import json
import random
import re
import sys
from pathlib import Path


def right(completions: list[str], answer: list[str], **kwargs) -> list[float]:
    """1 where the first number of the completion is the sum, else 0."""
    numbers = [re.match(r"\s*(\d+)", text) for text in completions]
    return [float(number is not None and number[1] == sum_) for number, sum_ in zip(numbers, answer, strict=True)]


def write(folder: Path, *, seed: int = 0) -> None:
    """2,244 sums to train on and 256 others to test."""
    pairs = [(a, b) for a in range(50) for b in range(50)]
    random.Random(seed).shuffle(pairs)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("test", pairs[:256]), ("train", pairs[256:])):
        rows = [{"problem": f"{a} + {b}", "answer": str(a + b)} for a, b in part]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(*sys.argv[1:]))
