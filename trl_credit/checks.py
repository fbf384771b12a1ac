"""Settings of TRL and transformers that cannot be right, refused before anything is loaded. What they would say
themselves comes late, names no field, or is a division by zero."""

import math
import os
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .mistakes import choose


# fields, what they must be in words, and the test of it; a field that another version lacks is passed over
_Rule = tuple[str, str, Callable[[Any], bool]]
_RULES: tuple[_Rule, ...] = (
    (
        "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps steps_per_generation "
        "generation_batch_size num_generations_eval num_iterations max_completion_length",
        "at least 1",
        lambda x: x >= 1,
    ),
    ("num_generations", "at least 2, for responses to be compared", lambda x: x >= 2),
    ("learning_rate weight_decay adam_epsilon warmup_steps", "0 or more", lambda x: 0 <= x < math.inf),
    ("max_grad_norm", "0 (no clipping) or more", lambda x: x >= 0),
    ("temperature repetition_penalty", "above 0 and finite", lambda x: 0 < x < math.inf),
    ("top_p vllm_gpu_memory_utilization", "above 0 and at most 1", lambda x: 0 < x <= 1),
    ("min_p", "from 0 to 1", lambda x: 0 <= x <= 1),
    ("adam_beta1 adam_beta2", "at least 0 and below 1", lambda x: 0 <= x < 1),
    ("max_steps", "at least 1, or -1 for num_train_epochs to count", lambda x: x == -1 or x >= 1),
    ("num_train_epochs", "above 0 and finite", lambda x: 0 < x < math.inf),
    ("save_total_limit vllm_tensor_parallel_size ref_model_sync_steps", "at least 1", lambda x: x >= 1),
    ("save_steps logging_steps eval_steps", "above 0 and finite", lambda x: 0 < x < math.inf),
    ("lora_r lora_alpha", "at least 1", lambda x: x >= 1),
    ("lora_dropout", "at least 0 and below 1", lambda x: 0 <= x < 1),
    ("dataloader_num_workers", "0 or more", lambda x: x >= 0),
    ("seed data_seed", "0 or more, and below 2**32", lambda x: 0 <= x < 2**32),
)
_FIXES = {"learning_rate": "1e-6 is usual for RL of a pretrained model", "temperature": "1.0 samples as the model does"}
# of the trackers that transformers knows, the package that each wants
_TRACKERS = {
    "clearml": "clearml",
    "codecarbon": "codecarbon",
    "comet_ml": "comet_ml",
    "dagshub": "dagshub",
    "dvclive": "dvclive",
    "flyte": "flytekit",
    "mlflow": "mlflow",
    "neptune": "neptune",
    "swanlab": "swanlab",
    "tensorboard": "tensorboard",
    "trackio": "trackio",
    "wandb": "wandb",
}
_OTHER_TRACKERS = ("all", "azure_ml", "kubeflow", "none")


# TRL's choices: of some of them it says nothing, and trains by another formula or stops in the first step
TRL_CHOICES = {
    "loss_type": "grpo dapo dr_grpo bnpo cispo sapo luspo vespo".split(),
    "importance_sampling_level": "token sequence".split(),
    "scale_rewards": "group batch none".split(),
    "multi_objective_aggregation": "sum_then_normalize normalize_then_sum".split(),
    "vllm_mode": "colocate server".split(),
}


def check_settings(args: Any) -> None:
    """Checks what TRL and transformers take of a configuration as it comes.

    Raises:
        ValueError: a number is out of range, a choice is unknown, or the groups do not fill the batch; the message
            names a number that fits.
    """
    check_numbers(args)
    for name, choices in TRL_CHOICES.items():
        value = getattr(args, name, choices[0])
        if value not in choices and not isinstance(value, bool):  # scale_rewards may be one
            raise ValueError(f"{name}={value!r} is unknown{choose(value, choices)}")
    top_k, off = args.top_k, " (all tokens)"
    if isinstance(top_k, int) and top_k < 0 and not (args.use_vllm and top_k == -1):  # vLLM's word for all tokens
        raise ValueError(f"top_k must be at least 1, or 0{off}, got {top_k}.")
    _check_groups(args)


def check_numbers(args: Any) -> None:
    """Checks the numbers of a configuration, as far as `_RULES` knows them.

    Raises:
        ValueError: one is out of range.
    """
    for names, wanted, is_right in _RULES:
        for name in names.split():
            value = getattr(args, name, None)
            if not isinstance(value, (int, float)):
                continue  # None, or what its own check will refuse
            if math.isnan(value) or not is_right(value):
                fix = f": {_FIXES[name]}" if name in _FIXES else ""
                raise ValueError(f"{name} must be {wanted}, got {value}{fix}.")


def _check_groups(args: Any) -> None:
    group, batch = args.num_generations, args.per_device_train_batch_size
    if group is None:
        return
    processes = int(os.environ.get("WORLD_SIZE") or 1)
    name = "steps_per_generation" if args.steps_per_generation else "gradient_accumulation_steps"
    steps = getattr(args, name)
    size = args.generation_batch_size or batch * processes * steps
    if size % group == 0:
        return
    fits = [n for n in range(2, size + 1) if size % n == 0]
    nearest = min(fits, key=lambda n: (abs(n - group), -n), default=None)
    other = f"set num_generations={nearest}" if nearest is not None else ""
    if args.generation_batch_size:
        step = math.lcm(group, batch * processes)
        fix = f"generation_batch_size={step * max(1, round(size / step))}"
        made_of = "generation_batch_size"
    else:
        step = group // math.gcd(group, processes * steps)
        fix = f"per_device_train_batch_size={step * max(1, round(batch / step))}"
        made_of = f"per_device_train_batch_size {batch} × {processes} process{'es' * (processes > 1)} × {name} {steps}"
    raise ValueError(
        f"num_generations={group} does not divide the {size} responses of a generation batch ({made_of}): "
        f"{other}{', or ' if other else 'set '}{fix}."
    )


def check_trackers(report_to: str | Iterable[str] | None) -> None:
    """Checks that the packages of `report_to` are installed.

    Raises:
        ValueError: a tracker is unknown, or its package is not here.
    """
    for name in [report_to] if isinstance(report_to, str) else report_to or ():
        if name not in _TRACKERS and name not in _OTHER_TRACKERS:
            known = (*_TRACKERS, *_OTHER_TRACKERS)
            raise ValueError(f"report_to={name!r} is no tracker{choose(name, known)}")
        package = _TRACKERS.get(name)
        if package is not None and find_spec(package) is None:
            pip = package.replace("_", "-")
            raise ValueError(f"report_to={name!r} wants a package that is not installed: pip install {pip}")


def check_model(name: str, *, revision: str | None = None) -> None:
    """Checks that a model is there, by its configuration: a folder, or a name on the Hub.

    Raises:
        ValueError: there is none of that name, it is a file or a folder without a model, its name cannot be one, or it
            is neither in the cache nor within reach.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

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
        raise ValueError(f"{shown}: there is no such folder here, and it is no name on the Hub (user/model)")
    try:
        hf_hub_download(name, "config.json", revision=revision)
    except HFValidationError as error:
        raise ValueError(f"{shown} is neither a folder here nor a name on the Hub (user/model)") from error
    except GatedRepoError as error:
        raise ValueError(
            f"{shown} is gated: accept its terms on https://huggingface.co/{name}, and log in by `hf auth login`"
        ) from error
    except RevisionNotFoundError as error:
        raise ValueError(f"{shown} has no model_revision={revision!r}: check it on the Hub") from error
    except RepositoryNotFoundError as error:
        raise ValueError(f"{shown} is not on the Hub, or is private: check the name, or `hf auth login`") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        why = "HF_HUB_OFFLINE is set" if os.environ.get("HF_HUB_OFFLINE") else "the Hub cannot be reached"
        raise ValueError(
            f"{shown} is no folder here and not in the Hub's cache, and {why}: name a folder, or download it "
            f"where there is a network (`hf download {name}`)"
        ) from error
    except EntryNotFoundError as error:
        raise ValueError(f"{shown} has no config.json on the Hub: name a model that transformers can load") from error
    except (HfHubHTTPError, OSError) as error:
        raise ValueError(f"{shown} cannot be looked up on the Hub: {error}") from error
