"""What the settings of a run say about its plan: how its weights are divided, and what is known of its rows."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...demo import DEMO, demo_dataset, task_of_model
from ...settings.arguments import Choices
from ...support.adapters import adapter_base
from .estimate import OF_POLICY, Assumed
from .formulas import Layout
from .shapes import read_shape


_KINDS = {"NO": "none", "MULTI_GPU": "ddp", "MULTI_CPU": "ddp", "FSDP": "fsdp"}


def layout_of(choices: Choices, launcher: Mapping[str, Any], processes: int) -> Layout:
    """How a run's weights are stored and divided.

    Args:
        launcher (mapping):
            The settings of a configuration of accelerate; empty without one.

    Raises:
        ValueError: the division is one that no plan can be made for.
    """
    args, model = choices.args, choices.model
    if args.deepspeed or args.fsdp:
        raise ValueError("plan reads how weights are split from --accelerate_config: leave out --deepspeed and --fsdp")
    division = str(launcher.get("distributed_type", "MULTI_GPU" if processes > 1 else "NO"))
    deepspeed, fsdp = launcher.get("deepspeed_config") or {}, launcher.get("fsdp_config") or {}
    stage = deepspeed.get("zero_stage", 2)
    kinds = {**_KINDS, "DEEPSPEED": f"zero{stage}" if stage in (1, 2, 3) else "ddp"}
    if division not in kinds:
        raise ValueError(f"plan does not know distributed_type {division!r}: choose NO, MULTI_GPU, DEEPSPEED or FSDP")
    kind = kinds[division]
    half = args.bf16 or args.fp16 or launcher.get("mixed_precision") in ("bf16", "fp16")
    loaded = 2 if model.dtype in ("bfloat16", "float16") else 4
    devices = {"optimizer": "offload_optimizer_device", "parameters": "offload_param_device"}
    offloads = {name: deepspeed.get(key, "none") for name, key in devices.items()}
    has_reference = args.beta != 0.0 or args.teacher == "reference"
    layout = Layout(
        processes=processes,
        kind="none" if processes == 1 and kind == "ddp" else kind,
        weight_bytes=loaded,
        compute_bytes=2 if half or loaded == 2 else 4,
        optimizer=str(getattr(args.optim, "value", args.optim)),
        reference=has_reference and not model.use_peft and adapter_base(model.model_name_or_path) is None,
        checkpointing=args.gradient_checkpointing or bool(fsdp.get("fsdp_activation_checkpointing")),
        frozen_bytes=0.5 if model.load_in_4bit else 1.0 if model.load_in_8bit else None,
        offloads=tuple(name for name, value in offloads.items() if value != "none" or fsdp.get("fsdp_offload_params")),
        teacher=_parameters_of(args.teacher),
    )
    if args.teacher_sync_steps is None:
        return layout
    return replace(layout, copy_bytes=4 if args.teacher_update_rate < 1.0 else layout.held_bytes)


def _parameters_of(teacher: str | None) -> int:
    """Parameters of a teacher that is another model; 0 without one, or if its configuration is not here."""
    if teacher in (None, *OF_POLICY):
        return 0
    try:
        return read_shape(teacher).parameters
    except ValueError:
        return 0


def fill_assumed(assumed: Assumed, choices: Choices) -> Assumed:
    """Adds what the settings say about the prompts: the limit of their length, or those of the embedded task."""
    assumed.longest_prompt = choices.data.max_prompt_tokens
    task = task_of_model(choices.model.model_name_or_path)
    if task is not None and (choices.data.dataset_name or DEMO.name) == task.name:
        lengths = [len(prompt) for prompt in demo_dataset(seed=choices.args.seed, task=task)["prompt"]]
        assumed.longest_prompt = max(lengths)  # a character is a token
        assumed.prompts = assumed.prompts or len(lengths)
        assumed.prompt = assumed.prompt or sum(lengths) / len(lengths)
    return assumed
