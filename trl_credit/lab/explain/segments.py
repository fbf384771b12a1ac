"""Advantages of algorithms with segments, by continuations that a model samples."""

from collections.abc import Callable
from typing import Any

import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...config import CreditConfig
from ...data.prompts import prompt_ids
from ...loss import keys
from ...loss.batch import Batch
from ...observe.schema import MAX_ANSWER, Shard
from ...rewards.signature import GIVEN, required_parameters
from ...rollouts.chain import Chain
from ...rollouts.replay import Row, padded_rows
from ...trainer.named import ALGORITHMS
from .credits import groups_of, rewards_of


# fields of a response that are not columns of its data set
_RESULTS = ("group", "index", "completion", "reward", "rewards", "truncated", "kind", "credit", "kl_credit", "nodes")
_RESULTS += ("prompt_token_ids",)


def rolled_out(
    shard: Shard,
    name: str,
    *,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    reward: Callable,
    settings: dict[str, Any],
) -> tuple[CreditConfig, tuple[torch.Tensor, torch.Tensor]]:
    """The configuration of a chain algorithm, and its advantages and segment numbers, shapes (B, T).

    The algorithm's own trainer samples continuations with the model and scores them with the reward function.

    Raises:
        ValueError: the reward function needs a field that the responses lack.
    """
    groups = groups_of(shard.responses)
    # a log may hold another answer than the reward function got in training: a solution, a number, or a shortened text
    is_whole = all(len(str(response.get("answer"))) < MAX_ANSWER for response in shard.responses)
    is_other = "schema" in shard.header and not (shard.header.get("has_answer_column") and is_whole)
    rows = [_dataset_row(response, without="answer" if is_other else None) for response in shard.responses]
    if missing := [name for name in required_parameters(reward) if name not in GIVEN and name not in rows[0]]:
        raise ValueError(
            f"--reward needs {missing[0]!r}, which these rollouts do not hold: give them as JSONL with that field"
        )
    config_class, trainer_class = ALGORITHMS[name]
    size, length = max(map(len, groups)), max(len(response["tokens"]) for response in shard.responses)
    sizes = {"num_generations": size, "per_device_train_batch_size": size, "max_completion_length": length}
    temperature = shard.header.get("temperature") or 1.0
    config = config_class(**sizes, save_strategy="no", temperature=temperature, **settings)
    trainer = trainer_class(model, reward, config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    torch.manual_seed(config.seed)
    advantages, ids = torch.zeros(len(rows), length, dtype=torch.float64), torch.full((len(rows), length), -1)
    for places in groups:
        responses = [shard.responses[place] for place in places]
        logps = [torch.tensor([x or 0.0 for x in response["old_logprobs"]]) for response in responses]
        old_logp_t = pad_sequence(logps, batch_first=True).to(trainer.processes.device)
        token_ids = [
            (r.get("prompt_token_ids") or prompt_ids(tokenizer, r["prompt"]), r["token_ids"]) for r in responses
        ]
        data = padded_rows(
            [Row("", prompt, response, (), ()) for prompt, response in token_ids], pad_token_id=tokenizer.pad_token_id
        )
        data = {name: x.to(trainer.processes.device) for name, x in data.items()} | {keys.OLD_LOGPS: old_logp_t}
        rewards = rewards_of(responses).to(trainer.processes.device)
        batch = Batch(data, rewards, rewards.unsqueeze(1), rewards, rank=0)
        credit = Chain(trainer.engine).credit(batch, [rows[place] for place in places])
        width = old_logp_t.size(1)
        advantages[places, :width], ids[places, :width] = credit.advantages.double().cpu(), batch.segment_ids.cpu()
    inside = pad_sequence([torch.ones(len(response["tokens"])) for response in shard.responses], batch_first=True)
    return config, (advantages * inside, ids)


def _dataset_row(response: dict[str, Any], *, without: str | None) -> dict[str, Any]:
    """The prompt of a response and the other columns of its data set."""
    n = len(response["tokens"])
    columns = {name: value for name, value in response.items() if name not in (*_RESULTS, without)}
    return {name: value for name, value in columns.items() if not (isinstance(value, list) and len(value) == n)}
