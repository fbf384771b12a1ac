"""Advantages of algorithms with segments, by continuations that a model samples."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence

from ...config import CreditConfig
from ...loss import keys
from ...loss.batch import Batch
from ...observe.schema import MAX_ANSWER, Shard
from ...rewards.signature import GIVEN, required_parameters
from ...rollouts.chain import Chain
from ...rollouts.replay import Row, padded_rows
from ...trainer.engine import TrlEngine
from ...trainer.engine_calls import temporarily
from ...trainer.named import ALGORITHMS
from .credits import Segments, groups_of, rewards_of
from .measure import Loaded


# fields of a JSONL row that are not columns of its data set
_RESULTS = ("group", "index", "completion", "reward", "rewards", "truncated", "prompt_token_ids")


def rolled_out(
    shard: Shard, name: str, loaded: Loaded, *, rewards: list[Callable], settings: dict[str, Any]
) -> tuple[CreditConfig, Segments]:
    """The configuration of a chain algorithm, and its advantages and segment numbers, shapes (B, T).

    The algorithm's own trainer samples continuations with the model and scores them with the reward functions.

    Raises:
        ValueError: a reward function needs a field that the responses lack, or they are of another model.
    """
    rows = dataset_rows(shard, rewards)
    (model, tokenizer), (config_class, trainer_class) = loaded, ALGORITHMS[name]
    if max(max(r["token_ids"], default=0) for r in shard.responses) >= model.get_input_embeddings().num_embeddings:
        raise ValueError("the responses have token ids that the model lacks: give --model the one that sampled them")
    size, length = max(map(len, groups_of(shard.responses))), max(len(r["tokens"]) for r in shard.responses)
    sizes = {"num_generations": size, "per_device_train_batch_size": size, "max_completion_length": length}
    config = config_class(**{**sizes, "save_strategy": "no", "temperature": shard.header["temperature"], **settings})
    trainer = trainer_class(model, rewards, config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    torch.manual_seed(config.seed)
    return config, segment_credit(trainer.engine, config, shard, rows)


def dataset_rows(shard: Shard, rewards: Sequence[Callable]) -> list[dict[str, Any]]:
    """For each response the row of its data set, as far as the responses hold it.

    Raises:
        ValueError: a reward function needs a field that the responses lack.
    """
    rows = [_dataset_row(response, shard.header) for response in shard.responses]
    known = [name for name in rows[0] if all(name in row for row in rows)]
    if missing := [x for reward in rewards for x in required_parameters(reward) if x not in (*GIVEN, *known)]:
        what = f"the reward needs {missing[0]!r}, which these rollouts do not hold"
        raise ValueError(f"{what}: give them as JSONL with that field")
    return [{name: row[name] for name in known} for row in rows]


def segment_credit(engine: TrlEngine, config: CreditConfig, shard: Shard, rows: Sequence[dict[str, Any]]) -> Segments:
    """Advantages and segment numbers of a chain algorithm, shapes (B, T), from continuations by an engine.

    `config` is the algorithm's. Sampling, length and rewards are those of the engine's trainer.
    """
    length = max(len(response["tokens"]) for response in shard.responses)
    advantages = torch.zeros(len(rows), length, dtype=torch.float64)
    ids = torch.full((len(rows), length), -1)
    with temporarily(engine, args=config):
        for places in groups_of(shard.responses):
            batch = batch_of([shard.responses[place] for place in places], engine)
            credit = Chain(engine).credit(batch, [rows[place] for place in places])
            advantages[places, : batch.width] = credit.advantages.double().cpu()
            ids[places, : batch.width] = batch.segment_ids.cpu()
    inside = pad_sequence([torch.ones(len(response["tokens"])) for response in shard.responses], batch_first=True)
    return advantages * inside, ids


def batch_of(responses: Sequence[dict[str, Any]], engine: TrlEngine) -> Batch:
    """Measured responses as a batch of a trainer. Conversations that the engine keeps are its last batch then."""
    if names := [r["_conversation"] for r in responses if "_conversation" in r]:
        engine.conversations.recall(names)
    device = engine.processes.device
    prompts = [r.get("prompt_token_ids") or engine.tokenize([r["prompt"]])[0] for r in responses]
    rows = [Row("", prompt, r["token_ids"], (), ()) for prompt, r in zip(prompts, responses, strict=True)]
    data = {name: x.to(device) for name, x in padded_rows(rows, pad_token_id=engine.pad_token_id).items()}
    logps = [torch.tensor([x or 0.0 for x in response["old_logprobs"]]) for response in responses]
    data[keys.OLD_LOGPS] = pad_sequence(logps, batch_first=True).to(device)
    if names:
        masks = [torch.tensor(response["loss_mask"]) for response in responses]
        data[keys.TOOL_MASK] = pad_sequence(masks, batch_first=True, padding_value=1).to(device)
    rewards = rewards_of(responses).to(device)
    return Batch(data, rewards, rewards.unsqueeze(1), rewards, rank=0)


def _dataset_row(response: dict[str, Any], header: dict[str, Any]) -> dict[str, Any]:
    """The prompt of a response and the other columns of its data set."""
    if "schema" in header:
        # a log of 0.2.0 holds the answer alone, perhaps another one than the reward function got, or a shortened one
        is_same = header.get("has_answer_column") and len(str(response.get("answer"))) < MAX_ANSWER
        old = {"answer": response["answer"]} if is_same else {}
        return {"prompt": response["prompt"], **(response.get("columns") or old)}
    n = len(response["tokens"])
    columns = {name: value for name, value in response.items() if name not in _RESULTS}
    return {name: value for name, value in columns.items() if not (isinstance(value, list) and len(value) == n)}
