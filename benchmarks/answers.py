"""False verdicts of accuracy rewards on the same answers, in one run: math-verify's, TRL's, and ours.

    python benchmarks/answers.py            # prints the tables
    python benchmarks/answers.py --write    # and puts them into docs/answers.md

The answers are those of tests/family_cases.jsonl, by family, and those that readers wrote who had not seen the code.
"""

import json
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version

from math_verify import parse, verify
from pages import ROOT, write
from trl.rewards import accuracy_reward as trl_reward

from trl_credit.rewards import accuracy_reward, extract_answer


TESTS = ROOT / "tests"
PAGE = ROOT / "docs" / "answers.md"
Case = dict[str, object]
Judge = Callable[[list[Case]], list[float | None]]


def math_verify(cases: list[Case]) -> list[float | None]:
    return [float(verify(parse(f"${case['gold']}$"), parse(str(case["output"])))) for case in cases]


def trl(cases: list[Case]) -> list[float | None]:
    completions = [[{"role": "assistant", "content": case["output"]}] for case in cases]
    return trl_reward(completions=completions, solution=[f"${case['gold']}$" for case in cases])


def ours(cases: list[Case]) -> list[float | None]:
    outputs, golds, problems = ([case[key] for case in cases] for key in ("output", "gold", "problem"))
    return accuracy_reward(outputs, golds, prompts=problems)


JUDGES: dict[str, Judge] = {
    "`accuracy`": ours,
    f"math-verify {version('math-verify')}": math_verify,
    f"TRL {version('trl')}": trl,
}


def false_verdicts(cases: list[Case]) -> list[str]:
    """For each judge, how often it gave 1 to a wrong answer, and 0 to a right one."""
    cells = []
    for judge in JUDGES.values():
        missed = [
            case for case, verdict in zip(cases, judge(cases), strict=True) if (verdict == 1.0) is not case["expected"]
        ]
        cells.append(
            f"{sum(not case['expected'] for case in missed)} + {sum(bool(case['expected']) for case in missed)}"
        )
    return cells


def table(head: str, rows: Iterable[tuple[str, list[Case]]]) -> str:
    lines = [f"| {head} | {' | '.join(JUDGES)} |", f"|{'---|' * (head.count('|') + 1 + len(JUDGES))}"]
    lines += [f"| {name} | {' | '.join(false_verdicts(cases))} |" for name, cases in rows]
    return "\n".join(lines) + "\n"


def cases_of(name: str) -> list[Case]:
    lines = (TESTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [{"problem": "", **json.loads(line)} for line in lines]


def by_family() -> Iterable[tuple[str, list[Case]]]:
    cases = cases_of("family_cases")
    for family in dict.fromkeys(str(case["family"]) for case in cases):
        own = [case for case in cases if case["family"] == family]
        shown = [next((case for case in own if case["expected"] is verdict), None) for verdict in (True, False)]
        right, wrong = (
            f"`{extract_answer(str(case['output']))}` for `{case['gold']}`" if case else "" for case in shown
        )
        yield f"{family} | {right} | {wrong} | {len(own)}".replace("\n", " "), own


def by_reader() -> Iterable[tuple[str, list[Case]]]:
    unseen = cases_of("unseen_cases")
    for name, cases in (
        ("attempts to be rewarded, and honest answers", cases_of("strict_cases")),
        ("set j", [case for case in unseen if str(case["id"]).startswith("j")]),
        ("set k", [case for case in unseen if str(case["id"]).startswith("k")]),
    ):
        yield (
            f"{name} | {sum(not case['expected'] for case in cases)} + {sum(bool(case['expected']) for case in cases)}",
            cases,
        )


def main() -> None:
    readers = table("answers | wrong + right", by_reader())
    print(table("family | right | wrong | answers", by_family()), readers, sep="\n")
    if "--write" in sys.argv[1:]:
        write(PAGE, {"readers": readers})


if __name__ == "__main__":
    main()
