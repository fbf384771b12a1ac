"""Two real processes (gloo): every collective is made by both, and they agree on what belongs to all."""

import json
import os
import subprocess
import sys

import pytest
from conftest import WORKERS


def launch(script: str, folder) -> list[str]:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc_per_node=2",
            str(WORKERS / script),
            str(folder),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(x.partition("RESULT ")[2]) for x in done.stdout.splitlines() if "RESULT " in x]


def test_two_processes_agree(tmp_path):
    left, right = sorted(launch("run_two_processes.py", tmp_path), key=lambda r: r["rank"])
    for name in ("belief", "accuracies", "num_items", "rewards", "parameters"):
        assert left[name] == right[name], name
    assert left["belief"]["accuracies"] == pytest.approx(left["accuracies"])
    assert left["kept"] != right["kept"]  # or the next line would prove nothing
    assert [a + b for a, b in zip(left["kept"], right["kept"], strict=True)] == left["num_items"]
    for mine, other, rewards in zip(left["advantages"], right["advantages"], left["rewards"], strict=True):
        signs = [(a > 0) - (a < 0) for a in mine + other]
        assert len(rewards) == 12
        for g in range(0, 12, 4):  # within a group with signal the right responses are above the wrong ones
            group = rewards[g : g + 4]
            if len(set(group)) > 1:
                assert signs[g : g + 4] == [1 if r else -1 for r in group]


def test_segments_on_two_processes(tmp_path):
    results = launch("run_two_processes_segments.py", tmp_path)
    cases = {case: sorted((r for r in results if r["case"] == case), key=lambda r: r["rank"]) for case in
             ("chain", "prompts", "tree", "paths", "idle", "nothing")}  # fmt: skip
    for case, (left, right) in cases.items():
        for name in ("collectives", "rewards", "num_items", "parameters", "buffer", "belief"):
            assert left[name] == right[name], (case, name)
        assert left["log"][0]["reward"] == pytest.approx(sum(left["rewards"][0]) / len(left["rewards"][0]))
        if case == "nothing":
            assert left["parameters"] == left["before"] and left["real_rows"] == right["real_rows"] == [0, 0, 0]
            continue
        assert left["parameters"] != left["before"]
        if case in ("paths", "idle"):  # no mask: every credited token counts
            assert [a + b for a, b in zip(left["tokens"], right["tokens"], strict=True)] == left["num_items"]
        if case in ("prompts", "tree"):
            for weights, kept in zip(*[[a + b for a, b in zip(left[x], right[x], strict=True)] for x in
                                       ("row_weight", "kept")], strict=True):  # fmt: skip
                shares = [w * n / sum(kept) for w, n in zip(weights, kept, strict=True)]
                assert sum(shares) == pytest.approx(1.0)
                if case == "prompts":  # groups of 4 among 12 rows, the second on both processes
                    groups = [sum(shares[g : g + 4]) for g in (0, 4, 8) if sum(kept[g : g + 4])]
                    assert groups == pytest.approx([1 / len(groups)] * len(groups))
        if case not in ("chain", "prompts"):  # what all trees gave is dealt out evenly
            assert all(0 <= a - b <= 1 for a, b in zip(left["real_rows"], right["real_rows"], strict=True))
            total = [row["credit/rows"] for row in left["log"]]
            assert [a + b for a, b in zip(left["real_rows"], right["real_rows"], strict=True)] == total
    assert cases["idle"][0]["log"][0]["credit/nodes"] == 3 + 6
    assert cases["tree"][0]["log"][0]["credit/nodes"] == 3 * (3 + 6)
