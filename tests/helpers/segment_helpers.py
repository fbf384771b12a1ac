"""Shared by the tests of segment credit: settings, views of a batch, and an engine that records its calls."""

import itertools

import torch
from worker import kept
from worker import logged as steps_of  # noqa: F401


CHAIN = {"rollouts": "chain", "rollouts_per_state": 3, "loss_type": "dapo"}
TREE = {"rollouts": "tree", "tree_branching": [3, 2], "tree_segment_length": 3, "loss_type": "dapo"}
TREE |= {"per_device_train_batch_size": 16, "num_generations": 8}


def batches(trainer):
    """Keeps every generation batch that the trainer makes."""
    return kept(trainer, "_generate_and_score_completions")


def plans(trainer):
    """Keeps the plan of every generation batch of trees."""
    return kept(trainer.forest, "plan")


def counts_on(trainer):
    """Rewards that differ from one response to the next."""
    number = itertools.count()
    trainer.reward_funcs = [lambda completions, **kwargs: [next(number) % 7 / 7 for _ in completions]]


def engine_calls(trainer):
    """Counts the calls of the model's `generate`, and how many sequences each was given."""
    calls = []
    model = trainer.accelerator.unwrap_model(trainer.model)
    generate = model.generate

    def counted(*args, **kwargs):
        calls.append((len(kwargs["input_ids"]), kwargs["generation_config"].max_new_tokens))
        return generate(*args, **kwargs)

    model.generate = counted
    return calls


def generation_batch(trainer):
    """One generation batch, made as a training step makes it."""
    trainer.model.train()
    return trainer._generate_and_score_completions(next(iter(trainer.get_train_dataloader())))


def in_double(trainer):
    """Makes weights float64, and the reference another model than the policy."""
    trainer.model.double()
    if trainer.ref_model is not None:
        trainer.ref_model.double()
        with torch.no_grad():
            for p in trainer.ref_model.parameters():
                p.mul_(0.9)


def texts_of(trainer, output):
    prompt, ids, mask = (output[k] for k in ("prompt_ids", "completion_ids", "completion_mask"))
    texts = prompt, [c[m.bool()] for c, m in zip(ids, mask, strict=True)]
    return list(zip(*(trainer.processing_class.batch_decode(x, skip_special_tokens=True) for x in texts), strict=True))


def gradients(trainer, output):
    """Gradients of the loss over a whole generation batch, summed over micro-batches as in a training step."""
    trainer.model.train()
    trainer.model.zero_grad()
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation
    size = trainer.args.per_device_train_batch_size
    for i in range(trainer.args.steps_per_generation):
        own = slice(i * size, (i + 1) * size)
        part = {k: v[own] if isinstance(v, torch.Tensor) and v.dim() else v for k, v in output.items()}
        trainer.compute_loss(trainer.model, part).backward()
    return {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}


def passes(trainer):
    """Counts forward passes of the model."""
    calls = []
    trainer.model.register_forward_pre_hook(lambda *args: calls.append(1))
    return calls


class RecordingEngine:
    """Replaces TRL's vLLM: keeps every call and answers with token ids that end at once."""

    def __init__(self, mode="colocate", sleeping=False, answer=(3, 4, 1), unknown_at=None):
        self.answer, self.unknown_at = list(answer), unknown_at
        self.mode, self.enable_sleep_mode, self._llm_weights_sleeping = mode, sleeping, sleeping
        self.max_completion_length, self.log, self.llm = 8, [], self

    def sync_weights(self):
        self.log.append("sync")
        self._llm_weights_sleeping = False

    def wake_up(self, tags):
        self.log.append(f"wake {tags[0]}")

    def sleep(self, level):
        self.log.append("sleep")

    def generate(self, prompts, *args, images=None, num_generations=None, sampling_params=None, **kwargs):
        if sampling_params is not None:  # the engine itself, called below
            if isinstance(sampling_params, Sampling):  # as TRL calls it: one set of parameters for all prompts
                sampling_params = [sampling_params] * len(prompts)
            return [(prompt, p.n, p.max_tokens) for prompt, p in zip(prompts, sampling_params, strict=True)]
        # TRL's wrapper, which sleeps after every call if it may
        if self.enable_sleep_mode and self._llm_weights_sleeping:
            self.sync_weights()
        if self.mode == "server":
            requests = [(p, num_generations, self.max_completion_length) for p in prompts[::num_generations]]
        else:
            requests = self.llm.generate(prompts, sampling_params=Sampling())
        self.log.append(("generate", [(len(p), n, limit) for p, n, limit in requests]))
        if self.enable_sleep_mode:
            self.sleep(2)
            self._llm_weights_sleeping = True
        ids = [self.answer[:limit] for _, n, limit in requests for _ in range(n)]
        logps = [[[None if i == self.unknown_at else -0.5] for i in range(len(x))] for x in ids]
        return prompts, ids, logps, None


class Sampling:
    n, max_tokens = 1, 8

    def clone(self):
        return Sampling()


def with_engine(trainer, engine, *, correction=None, low=0.0, high=1e9):
    """Gives the trainer an engine as if `use_vllm` was set, and a mode of the correction for it, with its bounds."""
    trainer.use_vllm, trainer.vllm_generation, trainer._last_loaded_step = True, engine, -1
    trainer.vllm_mode = engine.mode
    trainer.vllm_importance_sampling_correction = correction is not None
    trainer.vllm_importance_sampling_mode = trainer.args.vllm_importance_sampling_mode = correction or "token_truncate"
    trainer.vllm_importance_sampling_clip_min, trainer.vllm_importance_sampling_clip_max = low, high
    return trainer
