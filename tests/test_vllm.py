"""A real vLLM engine in the training process, on a CPU. Runs where vLLM is installed; CI installs it."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from trl_credit.demo import demo_model_path


pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
FLAGS = "--algo s_trace --use_vllm --vllm_mode colocate --vllm_gpu_memory_utilization 0.1 --vllm_max_model_length 64"
SIZES = "--max_steps 3 --logging_steps 1 --per_device_train_batch_size 32 --beta 0"


def test_the_script_trains_with_a_colocated_engine(tmp_path):
    # a process of its own: the engine takes its settings from the environment and keeps threads and memory
    script = Path(__file__).with_name("run_vllm.py")
    done = subprocess.run(
        [sys.executable, str(script), *FLAGS.split(), *SIZES.split(), "--output_dir", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    log = json.loads((tmp_path / "checkpoint-3" / "trainer_state.json").read_text())["log_history"]
    rows = [row for row in log if "reward" in row]
    assert len(rows) == 3 and all("credit/trace_mass" in row for row in rows)
    # the packaged model through the engine, about as often right as when transformers samples
    assert 0.1 < sum(row["reward"] for row in rows) / 3 < 0.6
    # the engine's log-probabilities are near the model's and not the same: the correction has something to correct
    assert all(0.0 < row["sampling/sampling_logp_difference/mean"] < 0.1 for row in rows)
    assert all(0.5 < row["sampling/importance_sampling_ratio/mean"] < 1.5 for row in rows)
    before = load_file(Path(demo_model_path()) / "model.safetensors")
    after = load_file(tmp_path / "model.safetensors")
    assert any(not torch.equal(before[name], after[name]) for name in before)
