"""One optimizer step of each algorithm against TRL's `GRPOTrainer`, alternating in one run: time, operations, memory.

    python benchmarks/step.py [--algos s_trace ...] [--length 256] [--batch 16] [--repeats 40]
    python benchmarks/step.py --algos grpo s_trace --length 128 --batch 4 --layers 0 [--logged]
    python benchmarks/step.py --teacher

A step is loss, backward pass, gradient clipping and AdamW on one fixed batch of `batch` random completions of `length`
tokens with π_old given, on the embedded model; TRL runs with the same loss type, clip range and β = 0. Generation is
left out: it is TRL's in both. `--layers 0`: on a model of an embedding and an output layer, so that the cost of the
loss is not lost in that of the model. `--logged`: as at a logging step, where we measure more; by default as between
two. `--teacher`: what a teacher's pass adds to GRPO's, with a context of 16 tokens more than the prompt. Its tokens are
those that go forward with `rlsd` and not with `grpo`, padding included; "unique" are each context once and all
responses.

Times are CPU time of this process, which others on the machine hardly change. "own" is the median difference, and the
ratio the median ratio, of pairs of steps that followed each other. Operations are calls of torch that make a tensor, of
the loss with its forward pass, without backward pass and update. Peak memory is what one loss and backward pass
allocates at most, by torch's profiler.
"""

import argparse
import functools
import random
import statistics
import tempfile
import time
from typing import Any

import torch
import trl
from memory import peak_bytes
from stepping import compare, make_case, random_model
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.utils import logging

from trl_credit import ALGORITHMS
from trl_credit.credit.tokens import BatchTokens
from trl_credit.demo import demo_dataset, demo_model_path, demo_reward
from trl_credit.loss import keys
from trl_credit.loss.statistics import over_processes


class Operations(TorchDispatchMode):
    """Counts the calls of torch inside the context that make a tensor: all but views."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        self.count += not function.is_view
        return function(*args, **(kwargs or {}))


def make_trainer(config_class: type, trainer_class: type, folder: str, *, model: str, **settings: Any) -> Any:
    """A trainer on a model, ready to step."""
    args = config_class(
        output_dir=folder, report_to="none", use_cpu=True, bf16=False, disable_tqdm=True, log_level="error", **settings
    )
    trainer = trainer_class(model, demo_reward, args, train_dataset=demo_dataset(64))
    trainer.create_optimizer()
    trainer.state.max_steps = 10**6  # in the middle of a run
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


def teacher_passes(folder: str, *, repeats: int) -> None:
    """Prints what the pass of a teacher costs."""
    model, size, hint = random_model(folder, hidden=128, layers=2, vocabulary=512), 8, " ".join(["7"] * 16)
    head = ["prompt / response", "rows × group", "tokens GRPO", "of the teacher", "unique", "/ unique"]
    head += ["CPU time RLSD / GRPO"]
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    draws = random.Random(0)
    for prompt, response in ((128, 128), (512, 256), (2048, 512)):
        ids = [[draws.randrange(3, 512) for _ in range(prompt)] for _ in range(2)]
        rows = {tuple(p): [[draws.randrange(3, 512) for _ in range(response)] for _ in range(size)] for p in ids}
        sizes = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 2, "num_generations": size}
        sizes |= {"max_completion_length": response, "steps_per_generation": 2, "shared_prefix": "on"}
        knobs = {"teacher_sync_steps": None, "teacher_prompt": f"{{prompt}} {hint}"}
        told, plain = (
            make_case(*ALGORITHMS[algo], model, rows, output_dir=folder, **sizes, **more)
            for algo, more in (("rlsd", knobs), ("grpo", {}))
        )
        measured = compare(plain, told, repeats=repeats)
        before, added = measured.first.tokens, measured.second.tokens - measured.first.tokens
        unique = len(rows) * (prompt + 16 + size * response)
        cells = [f"{prompt} / {response}", f"{len(rows) * size} × {size}", f"{before:,}", f"{added:,}", f"{unique:,}"]
        print(f"| {' | '.join([*cells, f'{added / unique:.3f}', f'{measured.time:.2f}'])} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algos", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--layers", type=int, help="of a small random model; default: the embedded model")
    parser.add_argument("--logged", action="store_true", help="as at a logging step")
    parser.add_argument("--teacher", action="store_true", help="what a teacher's pass costs, and nothing else")
    args = parser.parse_args()
    logging.disable_progress_bar()
    if args.teacher:
        with tempfile.TemporaryDirectory() as folder:
            return teacher_passes(folder, repeats=args.repeats)
    print(f"torch {torch.__version__}, trl {trl.__version__}, {torch.get_num_threads()} threads, ", end="")
    print(f"B = {args.batch}, T = {args.length}, ", end="")
    print("the embedded model" if args.layers is None else f"a random model of {args.layers} layers", end="")
    print(", at a logging step" * args.logged + "\n")
    head = ["algorithm", "ours (ms)", "TRL (ms)", "own (ms)", "ratio", "operations ours", "TRL"]
    head += ["peak ours (MB)", "peak TRL (MB)"]
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    for algo in args.algos:
        with tempfile.TemporaryDirectory() as folder:
            config_class, trainer_class = ALGORITHMS[algo]
            shared = {"per_device_train_batch_size": args.batch, "num_generations": args.batch, "beta": 0.0}
            shared |= {"max_completion_length": args.length, "learning_rate": 1e-6, "model": demo_model_path()}
            if args.layers is not None:
                shared["model"] = random_model(f"{folder}/model", hidden=64, layers=args.layers, vocabulary=32)
            ours = make_trainer(config_class, trainer_class, folder, **shared)
            ours.state.logging_steps = 1 if args.logged else 500
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
            if ours.contract.algorithm.statistics is not None:
                mask_t, whole = inputs["completion_mask"], inputs["completion_mask"] - 1
                own = BatchTokens(
                    logp_t=inputs["old_per_token_logps"],
                    advantage_t=inputs["advantages"],
                    token_ids=inputs["completion_ids"],
                    segment_ids=whole,
                    turn_ids=whole,
                    group_ids=torch.zeros(args.batch, dtype=torch.long),
                    generator=torch.Generator(),
                    mask_t=mask_t,
                )
                inputs[keys.STATISTICS] = over_processes(ours.contract.algorithm, ours.args, ours.processes, own)
            times: dict[Any, list[float]] = {ours: [], theirs: []}
            for repeat in range(args.repeats + 3):
                # who goes first changes, so that neither always finds the caches as the other left them
                for trainer in (ours, theirs) if repeat % 2 else (theirs, ours):
                    seconds = step(trainer, inputs)
                    if repeat >= 3:
                        times[trainer].append(seconds)
            pairs = list(zip(times[ours], times[theirs], strict=True))
            cells = [f"`{algo}`", *(f"{statistics.median(times[t]) * 1e3:.2f}" for t in (ours, theirs))]
            cells.append(f"{statistics.median(x - y for x, y in pairs) * 1e3:+.2f}")
            cells.append(f"{statistics.median(x / y for x, y in pairs):.3f}")
            for trainer in (ours, theirs):
                with Operations() as operations:
                    trainer.compute_loss(trainer.model, inputs)
                cells.append(str(operations.count))
            cells += [f"{peak_bytes(functools.partial(backward, t, inputs)) / 1e6:.1f}" for t in (ours, theirs)]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
