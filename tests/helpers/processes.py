"""Starts the scripts of tests/distributed/workers as processes, under a launcher or alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml


WORKERS = Path(__file__).parents[1] / "distributed" / "workers"
CONFIGS = Path(__file__).parents[2] / "accelerate_configs"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]


def on_cpus(name: str, folder: Path) -> Path:
    """A configuration of `accelerate_configs/`, changed to two processes on CPUs instead of a node of GPUs."""
    config = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    config |= {"use_cpu": True, "mixed_precision": "no", "num_machines": 1, "machine_rank": 0}
    config["num_processes"] = min(config["num_processes"], 2)
    config["main_process_port"] = int(os.environ["MASTER_PORT"])
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def accelerate(name: str, folder: Path) -> list[str]:
    """A launcher of two processes on CPUs by a configuration of `accelerate_configs/`."""
    return [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(on_cpus(name, folder))]


def start(*command: object, timeout: float = 900, **environment: str) -> subprocess.CompletedProcess:
    """Runs a script, after a launcher if the command begins with one, to its end. Workers go by their names."""
    words = [str(word) for word in command]
    if worker := next((word for word in words if word.startswith("run_")), None):
        words.insert(words.index(worker), str(WORKERS / "worker.py"))
    words = words if words[0] == sys.executable else [sys.executable, *words]
    return subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT | environment, timeout=timeout)


def run(*command: object, **environment: str) -> str:
    """Standard output of [`start`], which must succeed."""
    done = start(*command, **environment)
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


def results(output: str) -> list[dict]:
    """What the processes of a worker printed, by rank."""
    rows = [json.loads(line.partition("RESULT ")[2]) for line in output.splitlines() if "RESULT " in line]
    return sorted(rows, key=lambda result: result["rank"])
