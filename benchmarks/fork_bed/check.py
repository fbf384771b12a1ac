"""One line of the page, made anew."""

from pathlib import Path

import numpy as np

from .algorithms import ALGORITHMS
from .analysis import BASELINE, verdicts
from .store import read, run_unit, units


def check(path: Path, unit: str | None) -> None:
    """Runs an algorithm and its baseline anew, and prints their distance from the file and the differences.

    Raises:
        SystemExit: there is no such unit, or a score differs from the file's by more than rounding.
    """
    known = [name for name in units() if name[0] in "ABCDEF" and name[1] == "/"]
    if unit not in known:
        raise SystemExit(f"error: name what to check: {', '.join(known)}")
    results = read(path)
    setting, _, algorithm = unit.partition("/")
    worst = 0.0
    for name in dict.fromkeys((f"{setting}/{BASELINE[algorithm]}", unit)):
        anew = run_unit(name)
        worst = max(worst, float(np.abs(np.subtract(anew["area"], results["units"][name]["area"])).max()))
        results["units"][name] = anew
    print(f"largest difference of an area from the file: {worst:.5f}")
    family = {"updates": ALGORITHMS[algorithm].updates, "taught": ALGORITHMS[algorithm].teacher is not None}
    for tuned in (True, False):
        verdict = verdicts(results, setting, tuned=tuned, **family).get(algorithm)
        if verdict:
            test = verdict.test
            words = (
                f"area minus GRPO's {test.value:+.3f} [{test.low:+.3f}, {test.high:+.3f}], Holm's p {verdict.holm:.2g}"
            )
            print(f"{'tuned' if tuned else 'small'} rate {verdict.rate}: {words}")
    if worst > 1e-3:  # another machine rounds otherwise, and 120 updates can amplify that
        raise SystemExit("error: the scores are not those of the file")
