"""A vLLM engine in the training process with sleep mode: one algorithm on the embedded task, in a process of its own.

Sleep level 2 discards the engine's weights, so that its log-probabilities are near the model's after an update only if
the new weights were sent.
"""

import importlib.util
import math
from argparse import Namespace
from typing import Any

from record import Recorder


STEPS = 4
MOST = 0.2  # nats, mean difference between the engine's log-probabilities and the model's, both in bfloat16
KNOBS: dict[str, dict[str, Any]] = {
    "s_trace": {},
    "spo_chain": {"rollouts_per_state": 4},
    "spo_tree": {"num_generations": 4, "tree_rows": "packed", "replay_iterations": 2},
}
ENGINE = {"use_vllm": True, "vllm_mode": "colocate", "vllm_enable_sleep_mode": True}
ENGINE |= {"vllm_gpu_memory_utilization": 0.15, "vllm_max_model_length": 64}
GIB = 1024**3


def watch_sleep(llm: Any) -> list[int]:
    """Bytes of the device that each call of `sleep` frees from now on."""
    import torch

    freed: list[int] = []
    sleep = llm.sleep

    def watched(*args: Any, **kwargs: Any) -> Any:
        before = torch.cuda.mem_get_info()[0]
        result = sleep(*args, **kwargs)
        freed.append(torch.cuda.mem_get_info()[0] - before)
        return result

    llm.sleep = watched
    return freed


def run(algo: str, recorder: Recorder) -> None:
    """A few steps; what the engine was asked and how far it is from the model."""
    from machine import Machine, trainer_for

    from trl_credit import ALGORITHMS
    from trl_credit.demo import demo_model_path, demo_settings

    knobs = demo_settings(ALGORITHMS[algo][0], logging_steps=1, max_steps=STEPS, num_iterations=1, **KNOBS[algo])
    machine = Machine(dry=False)
    with trainer_for(ALGORITHMS[algo], demo_model_path(), **machine.settings(), **ENGINE, **knobs) as trainer:
        freed = watch_sleep(trainer.vllm_generation.llm)
        trainer.train()
    log = [row for row in trainer.state.log_history if "reward" in row]
    numbers = [x for row in log for x in row.values() if isinstance(x, float)]
    reward = sum(row["reward"] for row in log) / max(len(log), 1)
    recorder.check(
        f"{algo}: a run",
        f"{len(log)} steps, reward {reward:.2f}",
        wanted=f"{STEPS} steps, all numbers finite, reward .1 to .6",
        ok=len(log) == STEPS and all(map(math.isfinite, numbers)) and 0.1 <= reward <= 0.6,
    )
    apart = [row.get("sampling/sampling_logp_difference/mean", math.nan) for row in log]
    recorder.check(
        f"{algo}: engine against model, by step",
        ", ".join(f"{x:.1e}" for x in apart),
        wanted=f"above 0, at most {MOST}",
        ok=bool(apart) and all(0.0 < x <= MOST for x in apart),
    )
    recorder.check(
        f"{algo}: memory that sleep gives back (GiB)",
        ", ".join(f"{x / GIB:.1f}" for x in freed),
        wanted=f"{STEPS} times more than 1, one per generation batch",
        ok=len(freed) == STEPS and min(freed) > GIB,
    )


def main(args: Namespace, recorder: Recorder) -> None:
    what = f"{args.task}: vLLM, colocated, with sleep mode"
    if importlib.util.find_spec("vllm") is None:
        recorder.not_run(what, "vllm is not installed")
    elif args.dry_run:
        recorder.not_run(what, "sleep mode needs a GPU; tests/trainer/test_vllm.py has an engine on a CPU")
    else:
        with recorder.attempt(what):
            run(args.task, recorder)
