"""The steps of an audit: sample batches, explain their credit, continue some responses, compare."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from tqdm.auto import tqdm
from transformers import set_seed

from ...config import CreditConfig
from ...loss import keys
from ...observe.log_entries import settings_of
from ...observe.schema import Shard, read_shard, write_shard
from ...presets import PRESETS
from ...rollouts.sources import GenerationBatch
from ...runs.identity import identity
from ...support.digests import seed_from, short_digest
from ...support.functions import FunctionRaised
from ...trainer import CreditTrainer
from ...trainer.engine_calls import Replaced, temporarily
from ...trainer.teacher import Teacher
from ..explain.credits import Explained, explain, groups_of, rewards_of
from ..explain.measure import measured as with_measures
from ..explain.segments import batch_of, segment_credit
from .gradients import Projection, gradient_of
from .report import Audit
from .scores import best_estimate
from .values import Measured, choose_tokens, kept, sample_values


DEFAULTS = ("grpo", "s_trace", "p_trace", "grpo_lambda")
# (r − mean) / N at every token, up to a factor the plain estimator of the gradient
PLAIN = "dr_grpo"
Part = tuple[Shard, list[dict[str, Any]]]  # a generation batch, and the rows of the data set


def audit(
    trainer: Any,
    reward: Callable | Sequence[Callable] | None = None,
    dataset: Any = None,
    *,
    algorithms: Sequence[str] | Mapping[str, CreditConfig] = DEFAULTS,
    folder: str | Path | None = None,
    responses: int = 36,
    continuations: int = 32,
    batches: int = 20,
    token_budget: int = 4_000_000,
    gradient: bool = True,
    logged: Part | None = None,
) -> Audit:
    """Compares the credit of algorithms with the true advantage of tokens, which continuations measure.

    Generation batches are sampled with the trainer's engine and scored with its rewards. In some responses to prompts
    whose rewards differ, V is measured at the tokens, and credit is compared with ΔV. The gradients of the batches are
    compared with that of the plain estimator. Nothing is trained. The same call with the same folder resumes.

    Args:
        trainer ([`CreditTrainer`], or a model as `GRPOTrainer` takes it):
            A trainer has a model, rewards, data and the settings of sampling. A model needs `reward` and `dataset`.
        reward, dataset (*optional*):
            Reward functions and prompts as for `GRPOTrainer`, with a model.
        algorithms (sequence of `str`, or `dict[str, CreditConfig]`, *optional*):
            Presets by name, or configurations by their names in tables. The first one is the baseline. Dr. GRPO is
            added, since its credit is that of the plain estimator.
        folder (`str` or `Path`, *optional*):
            Where everything is kept. Defaults to `audit` in the trainer's output folder.
        responses (`int`, *optional*, defaults to 36):
            Responses whose tokens are measured, two to a prompt if there are enough prompts with signal.
        continuations (`int`, *optional*, defaults to 32):
            Continuations of a state on average, at least 4: 8 of each, then more where V is uncertain.
        batches (`int`, *optional*, defaults to 20):
            Generation batches, at least 4.
        token_budget (`int`, *optional*, defaults to 4,000,000):
            Tokens of continuations. If all states cost more, the tokens of highest entropy and a random part of the
            others are measured.
        gradient (`bool`, *optional*, defaults to `True`):
            Whether to compute progress, which takes a backward pass for each batch and algorithm.
        logged (`tuple`, *optional*):
            Responses to audit instead of sampled ones, and their rows of the data set. Each prompt is a batch.

    Returns:
        [`Audit`]: tables, a page, and the numbers behind them, which are in the folder too.

    Raises:
        ValueError: an argument is out of range, or no prompt has signal.
    """
    least = {"responses": (responses, 2), "continuations": (continuations, 4), "batches": (batches, 4)}
    if wrong := [name for name, (value, smallest) in least.items() if value < smallest]:
        raise ValueError(f"{wrong[0]} must be at least {least[wrong[0]][1]}, got {least[wrong[0]][0]}")
    if not isinstance(trainer, CreditTrainer):
        if reward is None or dataset is None:
            raise ValueError("audit takes a trainer of trl_credit, or a model with reward= and dataset=")
        args = PRESETS["grpo"].config(output_dir=str(folder or "audit"), report_to="none", save_strategy="no")
        trainer = CreditTrainer(trainer, reward, args, train_dataset=dataset)
    if trainer.processes.count > 1:
        raise ValueError("an audit runs in one process")
    ways = ("tools", "rollout_func", "environment_factory")
    if any(trainer.arguments[name] for name in ways) and trainer.args.segmentation != "turns":
        fix = "environments with snapshot() and restore(state), and a trainer with segmentation='turns'"
        raise ValueError(f"an audit continues conversations from their tokens: it needs {fix}")
    if _plays(trainer) and logged is not None:
        raise ValueError("a run logs no states of environments: audit its model, with the flags of its data")
    configs, args, engine = _configs(algorithms, trainer.args), trainer.args, trainer.engine
    folder = Path(folder or Path(args.output_dir) / "audit")
    sizes = [responses, continuations, batches, token_budget, logged and logged[0].responses]
    weights = [x.detach().sum(dtype=torch.float64).item() for x in trainer.model.parameters()]
    work = folder / f"work-{short_digest([identity(trainer), weights, sizes])}"  # what a resume needs
    if not AcceleratorState._shared_state:  # every new configuration empties it
        precision = "bf16" if args.bf16 else "fp16" if args.fp16 else "no"
        Accelerator(mixed_precision=precision, cpu=args.use_cpu)
    trainer.model.eval()

    parts = _sampled(trainer, work, batches) if logged is None else _by_prompt(*logged)
    parts = [(with_measures(shard, trainer.model, trainer.tokenizer), examples) for shard, examples in parts]
    measured = _choose(parts, responses, args.seed)
    choose_tokens(measured, continuations=continuations, token_budget=token_budget, seed=args.seed)
    tokens = continuations * sum(m.length - t for m in measured for t in m.states)
    count, gradient = sum(len(m.states) for m in measured), gradient and len(parts) >= 4
    size = f"{len(measured)} responses with {count:,} states, {continuations} continuations each"
    passes = f", and {len(parts)} batches × {len(configs)} gradients" if gradient else ""
    print(f"{size}: about {tokens:,} tokens{passes}", flush=True)
    explained, notes = _explained(trainer, configs, parts, work)
    if not {next(iter(configs)), PRESETS[PLAIN].name} <= explained.keys():
        raise ValueError(f"there is nothing to compare with: {notes[0]}")
    spent = sample_values(measured, engine, continuations=continuations, seed=args.seed, folder=work)
    groups = [len(groups_of(shard.responses)) for shard, _ in parts]
    share = np.mean([_has_signal(shard, places) for shard, _ in parts for places in groups_of(shard.responses)])
    prompts, generations = np.mean(groups), sum(len(examples) for _, examples in parts) / sum(groups)
    sampled = f"{len(parts)} batches of {prompts:g} × {generations:g} responses"
    notes.insert(0, f"{sampled}; {share:.0%} of the prompts have signal. {size}: {spent:,} tokens.")
    result = Audit(measured, explained, continuations=continuations, notes=notes)
    if gradient:
        projection = Projection(trainer.model, seed=args.seed)
        result.gradients = _products(trainer, work, parts, explained, projection)
        if result.is_complete:
            pairs = zip(measured, result.values, strict=True)
            of_halves = [
                [gradient_of(engine, [m.response], [np.diff(v[:, k])], projection) for k in (2, 3)] for m, v in pairs
            ]
            first, second = np.stack(of_halves, 1)
            prompt, signal = np.array([(m.prompt, m.has_signal) for m in measured]).T
            scale = generations / (generations - 1) / (prompts * generations)  # Dr. GRPO's sum is p without it
            pp = result.gradients[PRESETS[PLAIN].name][0] * scale**2
            sizes = {"share": share, "prompts": prompts, "generations": generations}
            result.best = best_estimate(pp, first @ second.T, prompt=prompt, signal=signal, **sizes)
    return result.save(folder)


def _plays(trainer: CreditTrainer) -> bool:
    """Whether responses are conversations with environments."""
    return trainer.arguments["environment_factory"] is not None


def _configs(algorithms: Sequence[str] | Mapping[str, CreditConfig], args: CreditConfig) -> dict[str, CreditConfig]:
    """The configurations by name, with the plain estimator's. Presets get the sizes of the trainer's batches."""
    names = ("seed", "num_generations", "per_device_train_batch_size", "gradient_accumulation_steps", "output_dir")
    same = {name: getattr(args, name) for name in (*names, "max_completion_length")} | {"report_to": "none"}
    is_named = not isinstance(algorithms, Mapping)
    if is_named and (unknown := [name for name in algorithms if name not in PRESETS]):
        raise ValueError(f"algorithms: {unknown[0]!r} is none of {', '.join(PRESETS)}")
    named = {PRESETS[x].name: PRESETS[x].config(**same) for x in algorithms} if is_named else dict(algorithms)
    return named | {PRESETS[PLAIN].name: PRESETS[PLAIN].config(**same)}


def _sampled(trainer: CreditTrainer, folder: Path, count: int) -> list[Part]:
    """Generation batches as in training. The folder keeps them."""
    data, size, seed = trainer.train_dataset, trainer.engine.group_size, trainer.args.seed
    each, parts = trainer.args.generation_batch_size // size, []
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed)).tolist()
    for number in tqdm(range(count), desc="batches", disable=trainer.args.disable_tqdm):
        rows = [order[(number * each + k) % len(order)] for k in range(each)]
        examples = [data[row] for row in rows for _ in range(size)]
        path = folder / "batches" / f"{number:04d}.jsonl"
        is_new = not path.exists()
        if is_new or _plays(trainer):  # no file keeps the states of environments
            set_seed(seed_from(seed, number) % 2**32)  # also of environments
            torch.manual_seed(seed_from(seed, number))
            shard = _shard(trainer, examples, number)
            if is_new:
                write_shard(path, shard)
            elif _ids(shard) != _ids(read_shard(path)):
                raise ValueError(f"{folder} holds other conversations than are sampled now: delete it")
        parts.append((read_shard(path), examples))
    return parts


def _shard(trainer: CreditTrainer, examples: list[dict[str, Any]], number: int) -> Shard:
    """A sampled batch with rewards."""
    engine, responses = trainer.engine, []
    with temporarily(trainer, mask_truncated_completions=False):  # which would remove them: `explain` masks their loss
        batch = engine.sample([dict(example) for example in examples])
    names = engine.conversations.keep(str(number)) if _plays(trainer) else []
    for i, (example, prompt, ids) in enumerate(zip(examples, batch.prompt_ids, batch.completion_ids, strict=True)):
        group, index = divmod(i, engine.group_size)
        by_function = dict(zip(trainer.reward_func_names, batch.rewards_per_func[i].tolist(), strict=True))
        texts = {"prompt": example["prompt"], "completion": engine.decode(ids), "tokens": [""] * len(ids)}
        token_ids = {"prompt_token_ids": prompt, "token_ids": ids}
        results = {"group": group, "index": index, "reward": batch.rewards[i].item(), "rewards": by_function}
        results["truncated"] = not engine.is_finished(ids, engine.remaining_budget(len(prompt), 0))
        columns = {name: x for name, x in example.items() if isinstance(x, (str, int, float, bool))}
        if names:
            results |= {"_conversation": names[i], "loss_mask": batch.mask_t[i, : len(ids)].int().tolist()}
        responses.append({**columns, **texts, **token_ids, **results})
    return Shard({"step": 0, "algorithm": "", "temperature": trainer.args.temperature}, {}, responses)


def _ids(shard: Shard) -> list[list[int]]:
    return [response["token_ids"] for response in shard.responses]


def _by_prompt(shard: Shard, examples: list[dict[str, Any]]) -> list[Part]:
    """Logged responses, each prompt as a batch. They count as sampled from the model."""
    fresh = [{**response, "old_logprobs": None, "inference_logprobs": None} for response in shard.responses]
    return [(Shard(shard.header, {}, [fresh[i] for i in g]), [examples[i] for i in g]) for g in groups_of(fresh)]


def _explained(
    trainer: CreditTrainer, configs: Mapping[str, CreditConfig], parts: list[Part], folder: Path
) -> tuple[dict[str, list[Explained]], list[str]]:
    """The credit of each batch by algorithm, and why some are left out. The folder keeps what continuations gave."""
    explained: dict[str, list[Explained]] = {}
    notes = []
    for name, config in configs.items():
        try:
            if config.rollouts == "tree":
                raise ValueError("it samples trees of its own, and gives no credit to these responses")
            teacher = None
            if config.teacher is not None:
                rows = [("the data", trainer.train_dataset, parts[0][1][:1])]
                teacher = Teacher(Replaced(trainer, args=config), trainer.engine, trainer._trl_forward, rows)
            explanations, bar = [], tqdm(parts, name, disable=trainer.args.disable_tqdm, delay=2.0)
            for number, (shard, examples) in enumerate(bar):
                if teacher is not None:
                    key = short_digest([name, settings_of(config), config.teacher, config.teacher_prompt])
                    path = folder / "teachers" / f"{number:04d}-{key}.npy"
                    logps = kept(path, partial(_teacher_logps, teacher, trainer, shard, examples)).tolist()
                    rows = zip(shard.responses, logps, strict=True)
                    scored = [{**r, "teacher_logprobs": row[: len(r["tokens"])]} for r, row in rows]
                    shard = replace(shard, responses=scored)
                torch.manual_seed(seed_from(config.seed, name, number))  # of random selectors and custom functions
                segments = None
                if config.rollouts == "chain":  # continuations of its own, so that their noise is not that of ΔV̂
                    path = folder / "segments" / f"{number:04d}-{short_digest(settings_of(config))}.npy"
                    make = partial(_segments, trainer, config, shard, examples)
                    advantages, ids = torch.from_numpy(kept(path, make))
                    segments = advantages, ids.long()
                explanations.append(explain(shard, config, name=name, segments=segments))
            explained[name] = explanations
        except (ValueError, TypeError, FunctionRaised) as error:
            notes.append(f"{name} is left out: {str(error).rstrip('.')}.")
    return explained, notes


def _teacher_logps(teacher: Teacher, trainer: CreditTrainer, shard: Shard, rows: list[dict[str, Any]]) -> np.ndarray:
    """Log-probabilities of the responses under a teacher, shape (B, T)."""
    batch = batch_of(shard.responses, trainer.engine)
    prompts = torch.tensor([response["group"] for response in shard.responses])
    teacher.score(GenerationBatch(batch, batch.rewards, rows, prompts=prompts))
    return batch.data[keys.TEACHER_LOGPS].double().cpu().numpy()


def _segments(trainer: CreditTrainer, config: CreditConfig, shard: Shard, examples: list[dict[str, Any]]) -> np.ndarray:
    """Advantages and segment numbers of a chain, shape (2, B, T)."""
    if _plays(trainer) and config.segmentation != "turns":
        raise ValueError("conversations have segments by segmentation='turns' alone")
    return torch.stack(segment_credit(trainer.engine, config, shard, examples)).numpy()


def _has_signal(shard: Shard, places: list[int]) -> bool:
    """Whether the rewards of a prompt's responses differ."""
    rewards = rewards_of(shard.responses)[places]
    return rewards[~rewards.isnan()].unique().numel() > 1


def _choose(parts: list[Part], count: int, seed: int) -> list[Measured]:
    """Responses to prompts with signal, drawn at random, and a third as many to others, for the size of ΔV there."""
    groups = [(number, places) for number, (shard, _) in enumerate(parts) for places in groups_of(shard.responses)]
    order, measured = np.random.default_rng(seed).permutation(len(groups)), []
    signal = [_has_signal(parts[number][0], places) for number, places in groups]
    if not any(signal):
        raise ValueError("no prompt has responses with different rewards: no algorithm gives any credit here")
    for has_signal, most in ((True, count), (False, math.ceil(count / 3))):
        own = [groups[k] for k in order if signal[k] == has_signal]
        each = max(2, math.ceil(most / max(len(own), 1)))
        for number, places in own[: math.ceil(most / each)]:
            prompt, (shard, examples) = len({m.prompt for m in measured}), parts[number]
            for place in places[:each]:  # responses come in no order
                measured.append(Measured(shard.responses[place], examples[place], prompt, number, place, has_signal))
    return measured


def _products(
    trainer: CreditTrainer,
    folder: Path,
    parts: list[Part],
    explained: Mapping[str, list[Explained]],
    projection: Projection,
) -> dict[str, np.ndarray]:
    """Products of the batches' gradients by algorithm: p · p of the plain estimator, p · g and g · g, (3, B, B)."""
    vectors: dict[str, list[np.ndarray]] = {name: [] for name in explained}
    for number, (shard, _) in enumerate(tqdm(parts, desc="gradients", disable=trainer.args.disable_tqdm)):
        for name, of in explained.items():
            rows = zip(of[number].shard.responses, of[number].divisors, strict=True)
            credit = [np.array(response["credit"], dtype=float) / divisor for response, divisor in rows]
            digest = short_digest([x.tolist() for x in credit])  # algorithms may give the same credit
            make = partial(gradient_of, trainer.engine, shard.responses, credit, projection)
            vectors[name].append(kept(folder / "gradients" / f"{number:04d}-{digest}.npy", make))
    of_name = {name: np.stack(rows).astype(float) for name, rows in vectors.items()}
    p = of_name[PRESETS[PLAIN].name]
    return {name: np.stack([p @ p.T, p @ g.T, g @ g.T]) for name, g in of_name.items()}
