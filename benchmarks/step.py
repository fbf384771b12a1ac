"""One optimizer step of each algorithm against TRL's `GRPOTrainer`, alternating in one run: CPU time, ratio, memory.

    python benchmarks/step.py [--algos s_trace ...] [--length 256] [--batch 16] [--repeats 40]

A step is loss, backward pass, gradient clipping and AdamW on one fixed batch of `batch` random completions of `length`
tokens with π_old given, on the embedded model; TRL runs with the same loss type, clip range and β = 0. Generation is
left out: it is TRL's in both. Times are CPU time of this process, which others on the machine hardly change, and the
ratio is the median over pairs of steps that followed each other. Peak memory is what one loss and backward pass
allocates at most, by torch's profiler.
"""

import argparse
import functools
import statistics
import tempfile
import time
from typing import Any

import torch
import trl
from memory import peak_bytes
from transformers.utils import logging

from trl_credit import ALGORITHMS
from trl_credit.demo import demo_dataset, demo_model_path, demo_reward


def make_trainer(config_class: type, trainer_class: type, folder: str, **settings: Any) -> Any:
    """A trainer on the embedded model, ready to step."""
    args = config_class(
        output_dir=folder, report_to="none", use_cpu=True, bf16=False, disable_tqdm=True, log_level="error", **settings
    )
    trainer = trainer_class(demo_model_path(), demo_reward, args, train_dataset=demo_dataset(64))
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer


def random_batch(batch: int, length: int) -> dict[str, torch.Tensor]:
    """Inputs of the loss in TRL's shape: random tokens, ragged lengths, advantages of both signs."""
    g = torch.Generator().manual_seed(0)
    lengths = torch.randint(length // 2, length + 1, (batch,), generator=g)
    lengths[0] = length
    mask = (torch.arange(length) < lengths[:, None]).long()
    return {
        "prompt_ids": torch.randint(3, 18, (batch, 12), generator=g),
        "prompt_mask": torch.ones(batch, 12, dtype=torch.long),
        "completion_ids": torch.randint(3, 18, (batch, length), generator=g) * mask,
        "completion_mask": mask,
        "advantages": torch.randn(batch, generator=g),
        "num_items_in_batch": mask.sum(),
    }


def backward(trainer: Any, inputs: dict[str, torch.Tensor]) -> None:
    """One loss and its backward pass."""
    trainer.compute_loss(trainer.model, inputs).backward()


def step(trainer: Any, inputs: dict[str, torch.Tensor]) -> float:
    """CPU seconds of one optimizer step."""
    start = time.process_time()
    backward(trainer, inputs)
    torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algos", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=40)
    args = parser.parse_args()
    logging.disable_progress_bar()
    print(f"torch {torch.__version__}, trl {trl.__version__}, {torch.get_num_threads()} threads, ", end="")
    print(f"B = {args.batch}, T = {args.length}\n")
    print("| algorithm | ours (ms) | TRL (ms) | ratio | peak ours (MB) | peak TRL (MB) |\n|---|---|---|---|---|---|")
    for algo in args.algos:
        with tempfile.TemporaryDirectory() as folder:
            config_class, trainer_class = ALGORITHMS[algo]
            shared = {"per_device_train_batch_size": args.batch, "num_generations": args.batch, "beta": 0.0}
            shared |= {"max_completion_length": args.length, "learning_rate": 1e-6}
            ours = make_trainer(config_class, trainer_class, folder, **shared)
            same = ("loss_type", "epsilon", "epsilon_high", "importance_sampling_level")
            theirs = make_trainer(
                trl.GRPOConfig, trl.GRPOTrainer, folder, **shared, **{name: getattr(ours.args, name) for name in same}
            )
            inputs = random_batch(args.batch, args.length)
            with torch.no_grad():
                ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
                attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
                inputs["old_per_token_logps"] = theirs._get_per_token_logps_and_entropies(
                    theirs.model, ids, attention, args.length
                )[0]
            times: dict[Any, list[float]] = {ours: [], theirs: []}
            for repeat in range(args.repeats + 3):
                # who goes first changes, so that neither always finds the caches as the other left them
                for trainer in (ours, theirs) if repeat % 2 else (theirs, ours):
                    seconds = step(trainer, inputs)
                    if repeat >= 3:
                        times[trainer].append(seconds)
            a, b = (statistics.median(times[t]) * 1e3 for t in (ours, theirs))
            ratio = statistics.median(x / y for x, y in zip(times[ours], times[theirs], strict=True))
            memory = [peak_bytes(functools.partial(backward, t, inputs)) / 1e6 for t in (ours, theirs)]
            print(f"| `{algo}` | {a:.1f} | {b:.1f} | {ratio:.3f} | {memory[0]:.1f} | {memory[1]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
