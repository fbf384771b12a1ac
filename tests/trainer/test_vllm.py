"""A real vLLM engine in the training process, on a CPU. Runs where vLLM is installed; CI installs it."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from processes import results, run
from safetensors.torch import load_file

from trl_credit.demo import demo_model_path


pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]
ENGINE = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
ENGINE_FLAGS = "--use_vllm --vllm_mode colocate --vllm_gpu_memory_utilization 0.1 --vllm_max_model_length 64"
# S-trace's weight, and a teacher
FLAGS = f"--algo rlsd --importance eligible --selector entropy {ENGINE_FLAGS}"
SIZES = "--max_steps 3 --logging_steps 1 --per_device_train_batch_size 32 --beta 0"


def test_the_script_trains_with_a_colocated_engine(tmp_path):
    # a separate process: the engine takes its settings from the environment and keeps threads and memory
    run("run_vllm.py", *FLAGS.split(), *SIZES.split(), "--output_dir", tmp_path, **ENGINE)
    log = json.loads((tmp_path / "checkpoint-3" / "trainer_state.json").read_text())["log_history"]
    rows = [row for row in log if "reward" in row]
    assert len(rows) == 3 and all("credit/effective_horizon" in row for row in rows)
    assert all(row["credit/teacher/kl"] > 0.0 and row["credit/teacher/no_context"] == 0.0 for row in rows)
    # the packaged model is about as often correct as when transformers samples
    assert 0.1 < sum(row["reward"] for row in rows) / 3 < 0.6
    # the engine's log-probabilities are near the model's and not the same: the correction has something to correct
    assert all(0.0 < row["sampling/sampling_logp_difference/mean"] < 0.1 for row in rows)
    assert all(0.5 < row["sampling/importance_sampling_ratio/mean"] < 1.5 for row in rows)
    before = load_file(Path(demo_model_path()) / "model.safetensors")
    after = load_file(tmp_path / "model.safetensors")
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_a_chain_on_a_real_engine_takes_two_calls_and_one_sync(tmp_path):
    (result,) = results(run("run_vllm.py", "chain", tmp_path, **ENGINE))
    assert result["prefix_caching"] is True
    assert len(result["calls"]) == 2 * 2 and result["syncs"] == 2
    for main, rollouts in (result["calls"][:2], result["calls"][2:]):
        assert {(n, limit) for _, n, limit in main} == {(1, 40)}
        # 14 tokens of prompt, and a longer prefix leaves fewer tokens for its continuations
        assert all(n == 9 and length - 14 + limit == 40 for length, n, limit in rollouts)
        assert len({limit for _, _, limit in rollouts}) > 3
    for row in result["log"]:
        assert row["credit/rollouts"] > 0 and row["credit/segments_per_response"] > 1
        assert 0.0 < row["sampling/sampling_logp_difference/mean"] < 0.1


def test_an_audit_continues_with_a_colocated_engine(tmp_path):
    sizes = "--responses 4 --continuations 8 --batches 4 --per_device_train_batch_size 16".split()
    run("run_vllm.py", "audit", "--algo", "s_trace", *sizes, *ENGINE_FLAGS.split(), "--output_dir", tmp_path, **ENGINE)
    scores = json.loads((tmp_path / "audit.json").read_text())["scores"]
    assert 0.0 < scores["GRPO"]["aim"]["value"] < 1.5 and scores["S-trace"]["aim"]["value"] > -1.0
