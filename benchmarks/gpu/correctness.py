"""One optimizer step on the GPU, in float32 and in bfloat16, against float32 on the CPU; and short runs on the GPU.

The same weights and the same rows: generation batches of the embedded model (responses, a chain, trees as nodes and
packed), sampled on the CPU, and fixed rows of a larger random model with long traces. Compared are the
log-probabilities that credit is computed from, the gradient of the loss, and the log-probabilities after a step of
AdamW.

In a dry run the device is the CPU: float32 is then equal to itself, and the bfloat16 is that of a CPU.
"""

import math
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from machine import Machine, demo_tokenizer, fixed_rows, make_ready, on, random_qwen3, step, trainer_for
from record import Recorder
from transformers.utils import is_flash_attn_2_available

from trl_credit import ALGORITHMS
from trl_credit.demo import demo_dataset, demo_model_path, demo_settings


WIDE = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8}
WIDE |= {"num_key_value_heads": 4, "head_dim": 64, "vocab_size": 4096, "max_position_embeddings": 2048}
TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
TINY |= {"num_key_value_heads": 1, "head_dim": 32, "vocab_size": 64, "max_position_embeddings": 128}
# nats; nats; ‖difference‖ / ‖gradient‖. On a CPU the attention "eager" in the place of "sdpa" is 4e-6, 2e-6, 2e-6 away
# in float32, and bfloat16 .1, .01, .06; 1e-2 leaves room for a token that a selector or the clip range takes otherwise
TOLERANCE = {"float32": (1e-3, 1e-3, 1e-2), "bfloat16": (0.4, 0.05, 0.2)}
LEARNING_RATE = 1e-4


@dataclass(frozen=True)
class Case:
    """An algorithm with knobs; `wide`: on fixed rows of the larger model."""

    name: str
    algo: str
    wide: bool = False
    knobs: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("GRPO", "grpo"),
    Case("S-trace", "s_trace"),
    Case("GSPO-token", "gspo_token"),
    Case("chain", "spo_chain", knobs={"rollouts_per_state": 4}),
    Case("tree, a row per node", "spo_tree", knobs={"num_generations": 16}),
    Case("tree, packed rows", "spo_tree", knobs={"num_generations": 4, "tree_rows": "packed"}),
    Case("GRPO, long rows", "grpo", wide=True),
    Case("S-trace, long rows", "s_trace", wide=True),
    Case("P-trace, long rows", "p_trace", wide=True),
    Case("GRPO-λ, long rows", "grpo_lambda", wide=True),
)
RUNS = CASES[:2] + CASES[3:6]


@dataclass(frozen=True)
class Step:
    """What one optimizer step made of a batch, on the CPU in float32."""

    logps: torch.Tensor
    gradient: dict[str, torch.Tensor]
    logps_after: torch.Tensor


def take_step(trainer: Any, inputs: dict[str, Any]) -> Step:
    """One step on a batch, and the log-probabilities of its loss tokens before and after."""
    make_ready(trainer)
    seen: list[torch.Tensor] = []
    credit = trainer.contract.credit

    def watched(tokens: Any, config: Any) -> Any:
        seen.append(tokens.logp_t.detach()[tokens.mask_t.bool()].float().cpu())
        return credit(tokens, config)

    trainer.contract.credit = watched
    gradient: dict[str, torch.Tensor] = {}
    update = trainer.optimizer.step

    def kept(*args: Any, **kwargs: Any) -> Any:
        gradient.update({n: p.grad.float().cpu() for n, p in trainer.model.named_parameters() if p.grad is not None})
        return update(*args, **kwargs)

    trainer.optimizer.step = kept
    step(trainer, inputs)
    with torch.no_grad():
        trainer.compute_loss(trainer.model_wrapped, dict(inputs))
    return Step(seen[0], gradient, seen[1])


def differences(result: Step, wanted: Step) -> tuple[float, float, float]:
    """Of the log-probabilities the largest before, and the mean after the step (nats), as AdamW moves weights by their
    gradient's sign, which is nobody's where it is near 0; and of the gradient, relative to its norm."""
    before = (result.logps - wanted.logps).abs().max().item()
    after = (result.logps_after - wanted.logps_after).abs().mean().item()
    names = wanted.gradient
    if result.gradient.keys() != names.keys():
        return before, after, math.inf
    square = sum((result.gradient[n] - names[n]).double().square().sum().item() for n in names)
    return before, after, math.sqrt(square / sum(g.double().square().sum().item() for g in names.values()))


def settings_of(case: Case, machine: Machine) -> dict[str, Any]:
    config_class, _ = ALGORITHMS[case.algo]
    rows = 16 if machine.dry else 32
    if case.wide:
        rows = 4 if machine.dry else 8
        own = {"beta": 0.0, "num_generations": rows, "max_completion_length": 32 if machine.dry else 1024}
        return {**own, "per_device_train_batch_size": rows, "learning_rate": LEARNING_RATE, **case.knobs}
    return demo_settings(config_class, per_device_train_batch_size=rows, **case.knobs)


def sampled(trainer: Any) -> dict[str, Any]:
    """A generation batch of the embedded task, made as a training step makes it."""
    trainer.model.train()
    group = trainer.args.num_generations
    prompts = trainer.args.per_device_train_batch_size // group
    examples = [example for example in demo_dataset(prompts) for _ in range(group)]
    return trainer.make_batch(examples).batch.data


def rows_of(case: Case, trainer: Any, sizes: dict[str, int]) -> dict[str, Any]:
    """The rows of a case, on the CPU."""
    if not case.wide:
        return sampled(trainer)
    count, length = trainer.args.per_device_train_batch_size, trainer.args.max_completion_length
    inputs = fixed_rows(count, length, sizes["vocab_size"], torch.device("cpu"))
    # π_old near the policy, so that some tokens are clipped
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    with torch.no_grad():
        logits = trainer.model(input_ids=ids, attention_mask=mask).logits[:, -length - 1 : -1].log_softmax(-1)
    logps = logits.gather(-1, inputs["completion_ids"].unsqueeze(-1)).squeeze(-1)
    noise = torch.randn(logps.shape, generator=torch.Generator().manual_seed(1))
    return inputs | {"old_per_token_logps": logps + 0.1 * noise}


def variants() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, precision and model arguments of what is compared with float32 on the CPU."""
    yield "float32", "float32", {}
    yield "bfloat16", "bfloat16", {}
    if is_flash_attn_2_available():
        yield "bfloat16, flash attention", "bfloat16", {"attn_implementation": "flash_attention_2"}


def compare(case: Case, machine: Machine, model: str, sizes: dict[str, int], recorder: Recorder) -> None:
    """A check for each variant of a case."""
    settings = settings_of(case, machine)
    # to the end before the next trainer is made: accelerate has one device per process
    with trainer_for(ALGORITHMS[case.algo], model, **Machine(dry=True).settings(bf16=False), **settings) as trainer:
        inputs = rows_of(case, trainer, sizes)
        wanted = take_step(trainer, inputs)
    for name, precision, arguments in variants():
        if arguments and settings.get("tree_rows") == "packed":
            continue  # refused with flash attention, which has no mask of any shape
        with recorder.attempt(f"{case.name}: {name}"):
            device = machine.settings(bf16=precision == "bfloat16") | {"model_init_kwargs": arguments or None}
            with trainer_for(ALGORITHMS[case.algo], model, **device, **settings) as trainer:
                placed = {p.device.type for p in trainer.model.parameters()}
                result = take_step(trainer, on(machine.device, inputs))
            errors, limits = differences(result, wanted), TOLERANCE[precision]
            text = "log π at most {:.1e}, after the step {:.1e}; gradient {:.1e}"
            # a comparison with NaN is false
            ok = placed == {machine.device.type} and all(e <= m for e, m in zip(errors, limits, strict=True))
            recorder.check(f"{case.name}: {name}", text.format(*errors), wanted="≤ " + text.format(*limits), ok=ok)


def run(case: Case, machine: Machine, recorder: Recorder) -> None:
    """A few steps of a whole run on the device in bfloat16, generation by transformers."""
    config_class, _ = ALGORITHMS[case.algo]
    small = {"per_device_train_batch_size": 16 if machine.dry else 64, "max_steps": 2 if machine.dry else 4}
    knobs = demo_settings(config_class, logging_steps=1, **small, **case.knobs)
    with trainer_for(ALGORITHMS[case.algo], demo_model_path(), **machine.settings(), **knobs) as trainer:
        before = [p.detach().clone() for p in trainer.model.parameters()]
        trainer.train()
        after = list(trainer.model.parameters())
        moved = sum(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
        sound = all(p.dtype == torch.float32 and bool(p.isfinite().all()) for p in after)
    log = [row for row in trainer.state.log_history if "reward" in row]
    numbers = [x for row in log for x in row.values() if isinstance(x, float)]
    reward = sum(row["reward"] for row in log) / max(len(log), 1)
    # the embedded model is right on .29 of its sampled responses; a dry run has few of them
    low, high = (0.0, 0.8) if machine.dry else (0.1, 0.5)
    steps = trainer.state.global_step
    ok = steps == small["max_steps"] and all(map(math.isfinite, numbers)) and sound
    summary = f"{steps} steps, reward {reward:.2f}, {moved} of {len(after)} weights moved"
    wanted = f"{small['max_steps']} steps, all numbers finite, reward {low} to {high}, weights moved"
    recorder.check(f"{case.name}: a run", summary, wanted=wanted, ok=ok and moved > 0 and low <= reward <= high)


def main(args: Namespace, recorder: Recorder) -> None:
    machine = Machine(args.dry_run)
    torch.set_float32_matmul_precision("highest")  # no TF32
    sizes, threads = TINY if machine.dry else WIDE, torch.get_num_threads()
    if not is_flash_attn_2_available():
        recorder.not_run("flash attention", "flash_attn is not installed, or not for this device")
    with tempfile.TemporaryDirectory() as folder:
        random_qwen3(sizes, torch.device("cpu")).save_pretrained(folder)
        demo_tokenizer().save_pretrained(folder)
        for case in CASES:
            torch.set_num_threads(threads if case.wide else 1)  # which mostly wait for each other on a tiny model
            with recorder.attempt(case.name):
                compare(case, machine, folder if case.wide else demo_model_path(), sizes, recorder)
            machine.free()
    for case in RUNS:
        with recorder.attempt(f"{case.name}: a run"):
            run(case, machine, recorder)
        machine.free()
