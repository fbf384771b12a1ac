"""Accuracy rewards per second: ours, in worker processes, against TRL's, in this one, on the same responses.

    python benchmarks/rewards.py [JSONL with a column `answer`]

Half of the responses box their own gold, half another row's. Alternates the two in one run and prints the ratio:
absolute times mean nothing on a shared machine. Without a file the golds are fractions and roots.
"""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

from trl.rewards import accuracy_reward as trl_reward

from trl_credit.rewards import accuracy_reward
from trl_credit.rewards.judging import JudgePool


ROWS = 1000
ROUNDS = 3


def golds(path: str | None) -> list[str]:
    if path is None:
        return [f"\\frac{{{n}}}{{{n + 7}}}" if n % 2 else f"{n}\\sqrt{{{n + 1}}}" for n in range(1, ROUNDS * ROWS + 1)]
    rows = [json.loads(line)["answer"] for line in Path(path).open(encoding="utf-8")]
    return [gold for gold in rows if gold.strip()][: ROUNDS * ROWS]


def seconds(reward, column: str, texts: list[str], answers: list[str]) -> float:
    start = time.perf_counter()
    reward(completions=[[{"role": "assistant", "content": text}] for text in texts], **{column: answers})
    return time.perf_counter() - start


def main() -> None:
    right = golds(sys.argv[1] if len(sys.argv) > 1 else None)
    accuracy_reward(["\\boxed{\\frac{1}{2}}"], ["0.5"])  # starts the workers
    ratios = []
    for i in range(0, len(right), ROWS):
        batch = right[i : i + ROWS]
        said = [gold if n % 2 else batch[n - 1] for n, gold in enumerate(batch)]
        texts = [f"so the answer is $\\boxed{{{answer}}}$" for answer in said]
        ours = seconds(accuracy_reward, "answer", texts, batch)
        theirs = seconds(trl_reward, "solution", texts, [f"$\\boxed{{{gold}}}$" for gold in batch])
        ratios.append(ours / theirs)
        print(f"{len(batch)} answers: ours {ours:.2f} s, TRL's {theirs:.2f} s, ratio {ours / theirs:.2f}")
    versions = ", ".join(f"{name} {version(name)}" for name in ("trl", "math-verify", "sympy"))
    print(f"median ratio {sorted(ratios)[len(ratios) // 2]:.2f}; {JudgePool().size} workers; {versions}")


if __name__ == "__main__":
    main()
