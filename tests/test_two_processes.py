"""Two real processes (gloo): every collective is made by both, and they agree on what belongs to all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_two_processes_agree(tmp_path):
    script = Path(__file__).with_name("run_two_processes.py")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc_per_node=2",
            str(script),
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = [line.partition("RESULT ")[2] for line in done.stdout.splitlines() if "RESULT " in line]
    left, right = sorted(map(json.loads, rows), key=lambda r: r["rank"])
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
