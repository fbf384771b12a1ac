"""Samples responses from the model of a finished run, for a run without a rollout log."""

import contextlib
import tempfile
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...data import DataArguments, load_from_arguments
from ...demo import TASKS, demo_dataset
from ...observe.schema import Shard, read_shard, shard_path
from ...rewards import default_reward, resolve_reward
from ...runs.checkpoints import read_run
from ...settings.files import read_settings
from ...trainer.named import ALGORITHMS
from ..evaluation.runs import check_trusted


PROMPTS, RESPONSES = 4, 8
# the fields of a run that its responses depend on
_SAMPLING = (
    "temperature top_p top_k min_p repetition_penalty generation_kwargs chat_template_kwargs max_completion_length "
    "reward_weights seed"
).split()
# a step that changes nothing
_ONE_STEP = {
    **{"max_steps": 1, "learning_rate": 0.0, "log_credit": 1, "log_credit_groups": PROMPTS},
    **{"num_generations": RESPONSES, "per_device_train_batch_size": RESPONSES, "gradient_accumulation_steps": PROMPTS},
    **{"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True},
}


def sampled(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    reward: str | None = None,
    temperature: float | None = None,
    trust_run: bool = False,
) -> Shard:
    """`RESPONSES` responses to each of `PROMPTS` prompts of a run's data, as one step of GRPO logs them.

    The learning rate of the step is 0. Only the output layer has a gradient, so that the step takes little memory.

    Args:
        folder (`Path`):
            The run's folder, whose `credit_run.json` or else `recipe.yaml` names data and rewards.
        model, tokenizer:
            The policy.
        reward (`str`, *optional*):
            Replaces the rewards of the run.
        temperature (`float`, *optional*):
            Replaces that of the run.
        trust_run (`bool`, *optional*, defaults to `False`):
            Whether rewards that are not built in may be imported.

    Raises:
        ValueError: neither file names data, they cannot be loaded, or a reward is not built in.
        OSError, ImportError: the data or a reward cannot be read.
    """
    settings = _settings(folder)
    names = reward or settings.get("reward") or default_reward(settings["dataset_name"])
    names = [names] if isinstance(names, str) else names  # YAML may have one name
    if reward is None:
        check_trusted(folder, names, command=["explain", str(folder)], trust_run=trust_run)
    else:
        settings.pop("reward_weights", None)
    config_class, trainer_class = ALGORITHMS["grpo"]
    data = DataArguments(**{f.name: settings[f.name] for f in fields(DataArguments) if f.name in settings})
    sampling = {name: settings[name] for name in _SAMPLING if settings.get(name) is not None}
    sampling |= {} if temperature is None else {"temperature": temperature}
    model.requires_grad_(False).get_output_embeddings().requires_grad_(True)
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(StringIO()):
        config = config_class(output_dir=scratch, **_ONE_STEP, **sampling)
        config._n_gpu = 1  # transformers would split the batch over all GPUs
        rewards = [resolve_reward(name, max_completion_length=config.max_completion_length) for name in names]
        if data.dataset_name in TASKS:
            prompts = demo_dataset(seed=config.seed, task=TASKS[data.dataset_name])
        else:
            prompts = load_from_arguments(data, tokenizer=tokenizer, seed=config.seed, needs_answers=False)
        trainer_class(model, rewards, config, train_dataset=prompts, processing_class=tokenizer).train()
        shard = read_shard(shard_path(scratch, 1))
    model.eval()
    kept = ("schema", "temperature", "has_answer_column")
    header = {"step": 1, "algorithm": "", "run": folder.name} | {name: shard.header[name] for name in kept}
    # the credit of this step is not that of the run
    return Shard(header, {}, [{**response, "credit": None} for response in shard.responses])


def _settings(folder: Path) -> dict[str, Any]:
    """The flags of a run's data, its rewards and its sampling: those of `credit_run.json`, else of `recipe.yaml`."""
    record, recipe = read_run(folder), folder / "recipe.yaml"
    settings: dict[str, Any] = {}
    if record is not None and "task" in record:
        settings = record["identity"] | record["task"]
    elif recipe.is_file():
        settings = read_settings([str(recipe)])[0]
    if "dataset_name" not in settings:
        fix = f"train with --log_credit 10, or give a JSONL file of responses, and --model {folder}"
        raise ValueError(f"{folder} has no rollout log, and does not name its data (a run from Python?): {fix}")
    return settings
