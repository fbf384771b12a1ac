"""Refuses invalid settings of TRL and transformers before anything is loaded. The errors of these libraries come late,
do not name the field, or are a division by zero."""

import math
import os
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers.integrations import INTEGRATION_TO_CALLBACK

from ..support.errors import choose, one_line
from .knobs import FINITE, NOT_NEGATIVE, POSITIVE, SHARE, Values, number, numbers, one_of


_TABLE: dict[Values, str] = {
    number("at least 1", lambda x: x >= 1): "per_device_train_batch_size per_device_eval_batch_size num_iterations "
    "gradient_accumulation_steps steps_per_generation generation_batch_size num_generations_eval max_completion_length "
    "save_total_limit vllm_tensor_parallel_size ref_model_sync_steps lora_r lora_alpha",
    number("at least 2, for responses to be compared", lambda x: x >= 2): "num_generations",
    NOT_NEGATIVE: "learning_rate weight_decay adam_epsilon warmup_steps epsilon beta",
    number("0 (no clipping) or more", lambda x: x >= 0): "max_grad_norm",
    number("0 or more", lambda x: x >= 0): "epsilon_high dataloader_num_workers",
    number("positive", lambda x: x > 0): "delta",
    POSITIVE: "temperature repetition_penalty num_train_epochs save_steps logging_steps eval_steps "
    "sapo_temperature_neg sapo_temperature_pos",
    number("above 0 and at most 1", lambda x: 0 < x <= 1): "top_p vllm_gpu_memory_utilization",
    SHARE: "min_p top_entropy_quantile",
    number("at least 0 and below 1", lambda x: 0 <= x < 1): "adam_beta1 adam_beta2 lora_dropout",
    number("at least 1, or -1 to use num_train_epochs", lambda x: x == -1 or x >= 1): "max_steps",
    number("at least 0 and below 2**32", lambda x: 0 <= x < 2**32): "seed data_seed",
    number("at least 1, or 0 (all tokens; with vLLM also -1)", lambda x: x >= -1): "top_k",
    FINITE: "entropy_coef entropy_coef_min entropy_coef_max entropy_target",
    Values("finite numbers, one per reward function", numbers): "reward_weights",
    # with some unknown choices TRL silently trains by another formula, or stops in the first step
    one_of("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"): "loss_type",
    one_of("token", "sequence"): "importance_sampling_level",
    one_of("group", "batch", "none", True, False): "scale_rewards",
    one_of("sum_then_normalize", "normalize_then_sum"): "multi_objective_aggregation",
    one_of("colocate", "server"): "vllm_mode",
}
TRL_VALUES: dict[str, Values] = {name: values for values, names in _TABLE.items() for name in names.split()}

# the package that a tracker of transformers needs, if it has another name; `None`: not checked
_PACKAGES = {"flyte": "flytekit", "azure_ml": None, "kubeflow": None, "all": None, "none": None}


def check_groups(args: Any) -> None:
    """Checks that the groups of `num_generations` fill the generation batch.

    Raises:
        ValueError: they do not; the message names numbers that fit.
    """
    group, batch = args.num_generations, args.per_device_train_batch_size
    processes = int(os.environ.get("WORLD_SIZE") or 1)
    name = "steps_per_generation" if args.steps_per_generation else "gradient_accumulation_steps"
    steps = getattr(args, name)
    size = args.generation_batch_size or batch * processes * steps
    if group is None or size % group == 0:
        return
    if args.generation_batch_size:
        field, value, step = "generation_batch_size", size, math.lcm(group, batch * processes)
        made_of = field
    else:
        field, value, step = "per_device_train_batch_size", batch, group // math.gcd(group, processes * steps)
        made_of = f"{field} {batch} × {processes} process{'es' * (processes > 1)} × {name} {steps}"
    divisors = [n for n in range(2, size + 1) if size % n == 0]
    fixes = [f"num_generations={n}" for n in sorted(divisors, key=lambda n: (abs(n - group), -n))[:1]]
    fixes.append(f"{field}={step * max(1, round(value / step))}")
    whole = f"the {size} responses of a generation batch ({made_of})"
    raise ValueError(f"num_generations={group} does not divide {whole}: set {', or '.join(fixes)}.")


def check_trackers(report_to: str | Iterable[str] | None) -> None:
    """Checks that the packages of `report_to` are installed.

    Raises:
        ValueError: a tracker is unknown, or its package is missing.
    """
    known = {*INTEGRATION_TO_CALLBACK, *_PACKAGES}
    for name in [report_to] if isinstance(report_to, str) else report_to or ():
        if name not in known:
            raise ValueError(f"report_to={name!r} is not a known tracker{choose(name, sorted(known))}")
        package = _PACKAGES.get(name, name)
        if package is not None and find_spec(package) is None:
            pip = package.replace("_", "-")
            raise ValueError(f"report_to={name!r} needs a package that is not installed: pip install {pip}")


def check_model(name: str, *, revision: str | None = None) -> None:
    """Checks that a model exists, by its configuration: a folder, or a name on the Hub.

    Raises:
        ValueError: there is no such folder, it holds no model, or the Hub and its cache have none of that name.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    shown, path = f"model_name_or_path={name!r}", Path(name)
    if path.is_dir():
        if not any((path / file).is_file() for file in ("config.json", "adapter_config.json")):
            last = sorted(path.glob("checkpoint-*/config.json"))
            hint = f": is it {str(last[-1].parent)!r}?" if last else ": name the folder that a model was saved to"
            raise ValueError(f"{shown} has no config.json{hint}")
        return
    if path.exists():
        raise ValueError(f"{shown} is a file: name the folder that holds config.json and the weights")
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or "\\" in name:
        raise ValueError(f"{shown}: there is no such folder, and it is no name on the Hub (user/model)")
    try:
        hf_hub_download(name, "config.json", revision=revision)
    except (EntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        offline = ", and HF_HUB_OFFLINE is set" if os.environ.get("HF_HUB_OFFLINE") else ""
        raise ValueError(
            f"{shown} is no folder, and its config.json cannot be loaded from the Hub or its cache{offline}: check the "
            f"name and model_revision, or `hf auth login` if it is private or gated ({one_line(error)})"
        ) from error
