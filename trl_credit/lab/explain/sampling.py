"""Samples responses from the model of a finished run, for a run without a rollout log."""

import math
import random
from collections.abc import Callable
from pathlib import Path

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...config import CreditConfig
from ...observe.schema import Shard
from ...runs.checkpoints import read_run
from ...runs.data_identity import data_identity
from ...runs.identity import differences, in_words
from ...trainer import CreditTrainer
from ...trainer.named import ALGORITHMS


PROMPTS, RESPONSES = 4, 8
# the fields of a run that its responses depend on
SAMPLING = (
    "temperature top_p top_k min_p repetition_penalty generation_kwargs chat_template_kwargs max_completion_length "
    "reward_weights seed"
).split()


def sampled(
    folder: Path,
    args: CreditConfig,
    *,
    data: Dataset,
    rewards: list[Callable],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    own_rewards: bool = True,
) -> Shard:
    """`RESPONSES` responses to each of `PROMPTS` prompts of a run's data, with its rewards, by a trainer of GRPO.

    Args:
        folder (`Path`):
            The run's folder.
        args ([`CreditConfig`]):
            The run's configuration. Only its fields in `SAMPLING` have an effect.
        data (`Dataset`), rewards (list of `Callable`):
            What the run's recipe names.
        model, tokenizer:
            The policy.
        own_rewards (`bool`, *optional*, defaults to `True`):
            Whether the rewards must be those of the run.

    Raises:
        ValueError: the run was trained with other data or rewards, by its `credit_run.json`, or a prompt is longer than
            the model's context.
    """
    config_class, trainer_class = ALGORITHMS["grpo"]
    settings = {name: getattr(args, name) for name in SAMPLING}
    sizes = {"num_generations": RESPONSES, "per_device_train_batch_size": RESPONSES}
    config = config_class(output_dir=str(folder), report_to="none", save_strategy="no", **sizes, **settings)
    trainer = trainer_class(model, rewards, config, train_dataset=data, processing_class=tokenizer)
    _check_identity(trainer, folder, own_rewards)
    examples = [data[i] for i in random.Random(args.seed).sample(range(len(data)), min(PROMPTS, len(data)))]
    engine, prompts = trainer.engine, [example["prompt"] for example in examples]
    prompt_ids = engine.tokenize(prompts)
    budgets = [engine.remaining_budget(len(ids), 0) for ids in prompt_ids]
    if min(budgets) < 1:
        raise ValueError(f"a prompt of {folder} leaves no room for a response within the model's context")
    torch.manual_seed(args.seed)
    sampled_ids = [response.ids for response in engine.continue_prefixes(prompt_ids, n=RESPONSES, budgets=budgets)]
    rows = [example for example in examples for _ in range(RESPONSES)]
    scores = engine.score_responses(rows, sampled_ids)
    totals, texts = engine.total_reward(scores), engine.decode_responses([row["prompt"] for row in rows], sampled_ids)
    responses = []
    for i, (row, ids, text) in enumerate(zip(rows, sampled_ids, texts, strict=True)):
        group, index = divmod(i, RESPONSES)
        responses.append(
            {
                **row,
                "group": group,
                "index": index,
                "completion": text,
                "reward": _known(totals[i].item()),
                "rewards": dict(zip(trainer.reward_func_names, map(_known, scores[i].tolist()), strict=True)),
                "truncated": not engine.is_finished(ids, budgets[group]),
                "prompt_token_ids": prompt_ids[group],
                "token_ids": ids,
            }
        )
    return Shard({"step": None, "algorithm": "", "run": folder.name, "temperature": args.temperature}, {}, responses)


def _known(reward: float) -> float | None:
    return None if math.isnan(reward) else reward  # no function applies


def _check_identity(trainer: CreditTrainer, folder: Path, own_rewards: bool) -> None:
    """Compares data and rewards with those of the run, where its folder says what they were."""
    if (record := read_run(folder)) is None:
        return
    there, functions = record["identity"], trainer.functions["reward_funcs"]
    here = {"data": data_identity(trainer.train_dataset, first_rows=trainer.first_rows), "rewards": sorted(functions)}
    was = {"data": there.get("data"), "rewards": sorted(there.get("reward_funcs", {}))}
    if changed := differences(was, here if own_rewards else here | {"rewards": was["rewards"]}, defaults={}):
        raise ValueError(
            f"{folder} has no rollout log, and it does not name what it was trained on ({in_words(changed)}): "
            f"train with --log_credit 10, or give a JSONL file of responses, and --model {folder}"
        )
