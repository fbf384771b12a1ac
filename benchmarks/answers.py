"""False verdicts of accuracy rewards on the same cases: math-verify, TRL's reward, and ours, strict and permissive.

    python benchmarks/answers.py            # prints the table
    python benchmarks/answers.py --write    # and puts it into docs/answers.md

The cases (tests/strict_cases.jsonl) are attempts to be rewarded without an answer, and answers as models write them.
"""

import json
import re
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from math_verify import parse, verify
from trl.rewards import accuracy_reward as trl_reward

from trl_credit.rewards import accuracy_reward


ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / "tests" / "strict_cases.jsonl"
PAGE = ROOT / "docs" / "answers.md"
BETWEEN = re.compile(r"(?<=<!-- answers -->\n).*?(?=<!-- /answers -->)", re.DOTALL)
Case = dict[str, object]
Judge = Callable[[list[Case]], list[float | None]]


def math_verify(cases: list[Case]) -> list[float | None]:
    return [float(verify(parse(f"${case['gold']}$"), parse(str(case["output"])))) for case in cases]


def trl(cases: list[Case]) -> list[float | None]:
    completions = [[{"role": "assistant", "content": case["output"]}] for case in cases]
    return trl_reward(completions=completions, solution=[f"${case['gold']}$" for case in cases])


def ours(*, strict: bool) -> Judge:
    def judge(cases: list[Case]) -> list[float | None]:
        outputs, golds, problems = ([case[key] for case in cases] for key in ("output", "gold", "problem"))
        return accuracy_reward(outputs, golds, prompts=problems, strict=strict)

    return judge


def table(judges: dict[str, Judge], cases: list[Case]) -> str:
    wrong, right = ([case for case in cases if case["expected"] is verdict] for verdict in (False, True))
    head = f"| | 1 for a wrong or unfinished answer (of {len(wrong)}) | 0 for a right one (of {len(right)}) |\n"
    head += "|---|---|---|\n"
    rows = []
    for name, judge in judges.items():
        errors = [
            sum((verdict == 1.0) is not case["expected"] for case, verdict in zip(part, judge(part), strict=True))
            for part in (wrong, right)
        ]
        shares = (f"{n} ({100 * n / len(part):.1f} %)" for n, part in zip(errors, (wrong, right), strict=True))
        rows.append(f"| {name} | {' | '.join(shares)} |\n")
    return head + "".join(rows)


def main() -> None:
    with CASES.open(encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    judges = {
        f"math-verify {version('math-verify')}": math_verify,
        f"TRL {version('trl')}'s `accuracy_reward`": trl,
        "`accuracy`, `strict=False`": ours(strict=False),
        "`accuracy`": ours(strict=True),
    }
    text = table(judges, cases)
    print(text)
    if "--write" in sys.argv[1:]:
        page = PAGE.read_text(encoding="utf-8")
        if not BETWEEN.search(page):
            raise ValueError(f"{PAGE.name} has no place for it: put <!-- answers --> and <!-- /answers --> there")
        PAGE.write_text(BETWEEN.sub(lambda _: text, page), encoding="utf-8")


if __name__ == "__main__":
    main()
