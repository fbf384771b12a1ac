"""Time and memory of one optimizer step against TRL's `GRPOTrainer`, alternating in one process, on fixed rows.

A step is loss, backward pass under gradient checkpointing (TRL's default), gradient clipping and AdamW, with float32
weights under bfloat16 autocast (a dry run: without) and π_old given. Generation is left out: it is TRL's in both. TRL
has the same loss type, clip range and advantages, and β = 0. The ratio is the median over pairs of steps that followed
each other. Peak memory is that of one trainer alone: without what the other keeps between its steps.
"""

import contextlib
import statistics
from argparse import Namespace
from typing import Any

import torch
import trl
from machine import Machine, fixed_rows, make_ready, random_qwen3, step, trainer_for
from record import Recorder

from trl_credit import ALGORITHMS


# of Qwen3-0.6B: .60 · 10⁹ parameters
MODEL = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16}
MODEL |= {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 16384}
TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
TINY |= {"num_key_value_heads": 1, "head_dim": 16, "vocab_size": 64, "max_position_embeddings": 512}
SEGMENT = 100  # tokens of a segment of a chain, about one in 2k of SPO's
WARM_UP = 1  # pairs of steps: kernels are compiled in the first
DRIFT = 0.05  # nats, the standard deviation of log π − log π_old: some tokens are clipped
SAME = ("loss_type", "epsilon", "epsilon_high", "importance_sampling_level")
GIB = 1024**3


def held_bytes(trainer: Any) -> int:
    """Bytes of weights and optimizer state, which stay between steps."""
    tensors = list(trainer.model.parameters())
    tensors += [x for state in trainer.optimizer.state.values() for x in state.values() if isinstance(x, torch.Tensor)]
    return sum(x.numel() * x.element_size() for x in tensors if x.device.type == "cuda")


def make_pair(stack: contextlib.ExitStack, machine: Machine, algo: str, length: int, rows: int) -> tuple[Any, Any]:
    """Our trainer and TRL's, each with a model of its own."""
    shared = machine.settings(bf16=not machine.dry) | {"beta": 0.0, "learning_rate": 1e-6}
    shared |= {"max_completion_length": length, "per_device_train_batch_size": rows, "num_generations": rows}
    trainers: list[Any] = []
    for pair in (ALGORITHMS[algo], (trl.GRPOConfig, trl.GRPOTrainer)):
        same = {name: getattr(trainers[0].args, name) for name in SAME} if trainers else {}
        model = random_qwen3(TINY if machine.dry else MODEL, machine.device)
        trainer = stack.enter_context(trainer_for(pair, model, **shared, **same))
        model.gradient_checkpointing_enable({"use_reentrant": False})
        make_ready(trainer)
        trainers.append(trainer)
    return trainers[0], trainers[1]


def measure(machine: Machine, algo: str, *, length: int, tokens: int, repeats: int, recorder: Recorder) -> None:
    """A row of the table for `tokens` tokens in completions of `length`.

    Raises:
        FloatingPointError: a loss that is not finite.
    """
    rows = max(tokens // length, 2)  # a group has two responses at least
    vocabulary = (TINY if machine.dry else MODEL)["vocab_size"]
    with contextlib.ExitStack() as stack:
        ours, theirs = make_pair(stack, machine, algo, length, rows)
        segments = {"segment_length": SEGMENT} if ours.args.rollouts == "chain" else {}
        inputs = fixed_rows(rows, length, vocabulary, machine.device, **segments)
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        with torch.no_grad():
            passed = (theirs.model_wrapped, ids, attention, length)
            logps = theirs._get_per_token_logps_and_entropies(*passed)[0]
        noise = torch.randn(logps.shape, generator=torch.Generator().manual_seed(1)).to(machine.device)
        inputs["old_per_token_logps"] = logps + DRIFT * noise
        times: dict[Any, list[float]] = {ours: [], theirs: []}
        peaks, losses = {ours: 0, theirs: 0}, []
        for repeat in range(WARM_UP + repeats):
            # who goes first changes, so that neither always finds the caches as the other left them
            for trainer in (ours, theirs) if repeat % 2 else (theirs, ours):
                machine.begin_peak()
                start = machine.seconds()
                losses.append(step(trainer, inputs))
                seconds = machine.seconds() - start
                if repeat >= WARM_UP:
                    times[trainer].append(seconds)
                    peaks[trainer] = max(peaks[trainer], machine.peak_bytes())
        held = {ours: held_bytes(ours), theirs: held_bytes(theirs)}
        alone = {ours: peaks[ours] - held[theirs], theirs: peaks[theirs] - held[ours]}
        medians = [statistics.median(times[t]) for t in (ours, theirs)]
        ratio = statistics.median(a / b for a, b in zip(times[ours], times[theirs], strict=True))
        memory = ["–" if machine.dry else f"{alone[t] / GIB:.2f}" for t in (ours, theirs)]
        recorder.row(
            **{
                "algorithm": f"`{algo}`",
                "completions": f"{rows} × {length:,}",
                "ours (ms)": f"{medians[0] * 1e3:.1f}",
                "TRL (ms)": f"{medians[1] * 1e3:.1f}",
                "ratio": f"{ratio:.3f}",
                "tokens/s": f"{int(inputs['completion_mask'].sum()) / medians[0]:,.0f}",
                "peak ours (GiB)": memory[0],
                "peak TRL (GiB)": memory[1],
            }
        )
        if not torch.stack(losses).isfinite().all():
            raise FloatingPointError("a loss is not finite")


def main(args: Namespace, recorder: Recorder) -> None:
    machine = Machine(args.dry_run)
    tokens = args.tokens or (256 if machine.dry else 16384)
    repeats = args.repeats or (3 if machine.dry else 5)
    for length in args.lengths or ([32, 64] if machine.dry else [2048, 8192]):
        for algo in args.algos:
            with recorder.attempt(f"{algo}, {length:,}"):
                measure(machine, algo, length=length, tokens=tokens, repeats=repeats, recorder=recorder)
            machine.free()
