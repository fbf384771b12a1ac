"""A real vLLM engine in the training process, on a CPU. Runs where vLLM is installed; CI installs it."""

import importlib.util
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest


pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")

# a process of its own: the engine takes its settings from the environment and keeps threads and memory
SCRIPT = Path(__file__).with_name("run_vllm.py")


def test_s_trace_trains_with_a_colocated_engine(tmp_path):
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True, env=environment, timeout=900
    )
    assert done.returncode == 0, done.stderr[-4000:]
    line = next(row for row in done.stdout.splitlines() if row.startswith("RESULT "))
    reward, difference, kl_ratio, moved = map(float, line.split()[1:])
    assert 0.1 < reward < 0.6  # the packaged model through the engine, at the rate it samples with transformers
    assert 0.0 < difference < 0.1  # the engine's log-probabilities are near the model's, and not the same
    assert math.isfinite(kl_ratio) and kl_ratio > 0.9
    assert moved > 0
