"""Training whose responses follow from their prompts, and what its forward passes and updates were."""

from collections.abc import Callable, Iterable

import pytest
import torch
from conftest import PAIRS
from datasets import Dataset
from peft import LoraConfig
from run_layouts import scripted
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, PreTrainedModel
from worker import Watch

from trl_credit import assign_credit
from trl_credit.passes.branches import Branches


# windows of four micro-batches of two rows, two of which share a generation batch
SIZES = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "steps_per_generation": 8}
SIZES |= {"num_generations": 4, "max_completion_length": 24, "max_steps": 4}
# whose steps are proportional to gradients; Adam would amplify rounding
SIZES |= {"optim": "sgd", "learning_rate": 0.05}
LORA = {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)}
TREE = {"tree_branching": [3, 2], "tree_segment_length": 4, "num_generations": 8}
MASKED = {"token_mask": "probability", "probability_threshold": 0.5, "beta": 0.1}
# cases in which passes over fewer tokens are compared with TRL's: algorithm and settings
CASES = {
    "reference": ("grpo", {"beta": 0.1}),
    "lora": ("s_trace", {"beta": 0.1, "trainer_kwargs": LORA}),
    "s_trace": ("s_trace", {"beta": 0.05}),
    "gspo": ("gspo", {}),
    "mask": ("base", {**MASKED, "loss_type": "dapo"}),
    "chain": ("spo_chain", {"rollouts_per_state": 2, "cutpoint_interval": 2}),
    "tree": ("spo_tree", TREE),
    "truncated": ("base", {"mask_truncated_completions": True, "loss_type": "dr_grpo"}),
}


def with_slow(names: Iterable[str], *slow: str) -> list:
    """Parameters of a test, of which those named in `slow` are left to `pytest -m slow`."""
    names = list(names)
    assert not set(slow) - set(names), f"no such parameters: {sorted(set(slow) - set(names))}"
    return [pytest.param(name, marks=pytest.mark.slow) if name in slow else name for name in names]


def distinct(completions, **kwargs):
    """A reward that differs between most completions."""
    texts = [x if isinstance(x, str) else x[0]["content"] for x in completions]
    return [sum((i + 1) * ord(c) for i, c in enumerate(text)) % 97 / 97 for text in texts]


def tool_rollout(prompts, trainer):
    """A `rollout_func` of conversations in two turns: one response goes on after a tool's answer, the next does not."""
    n = len(prompts)
    masks = [[1, 1, 0, 0, 1, 1], [1, 1, 1, 1]] * (n // 2)
    return {
        "prompt_ids": [[3, 4, 5, 6, 7, 8, 9, 10]] * n,
        "completion_ids": [[5 + (i + k) % 7 for k in range(len(mask) - 1)] + [1] for i, mask in enumerate(masks)],
        "logprobs": None,
        "env_mask": masks,
    }


class Plain:
    """The knobs' own credit, as a custom object."""

    def credit(self, config, tokens):
        return assign_credit(config, tokens)


def check_equal(off: Watch, other: Watch) -> None:
    """Checks that all gradients agree, up to the rounding of the largest."""
    largest = max(x.abs().max().item() for step in off.gradients for x in step.values())
    assert largest > 1e-3
    torch.testing.assert_close(other.gradients, off.gradients, rtol=0, atol=1e-6 * max(1.0, largest))


def trained(make_trainer, algo="base", *, model=None, prompts, reward=distinct, resume=None, **settings):
    """A finished training with scripted responses, and its [`Watch`]. `model` makes one, on which it trains."""
    config_class, trainer_class = PAIRS[algo] if isinstance(algo, str) else algo
    torch.manual_seed(0)  # for the weights of adapters
    pair = config_class, scripted(trainer_class, None if model is None else model())
    trainer = make_trainer(pair, reward_funcs=reward, **{**SIZES, **settings})
    trainer.train_dataset = Dataset.from_dict({"prompt": prompts * 8, "answer": [""] * len(prompts) * 8})
    watch = Watch(trainer)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, watch


def compared(run: Callable, *args, mode: str, **settings):
    """Runs with "off" and with another mode, whose gradients must agree: the first's watch, the second's trainer and
    watch."""
    (_, off), (trainer, other) = (run(x, *args, **settings) for x in ("off", mode))
    check_equal(off, other)
    return off, trainer, other


def model_of(config: PretrainedConfig, folder: str, dtype=torch.float64) -> PreTrainedModel:
    """A random model of a configuration, with the tokenizer in `folder`."""
    config.vocab_size, config.pad_token_id, config.eos_token_id = len(AutoTokenizer.from_pretrained(folder)), 0, 1
    torch.manual_seed(0)
    return with_tokenizer(AutoModelForCausalLM.from_config(config).to(dtype), folder)


def with_tokenizer(model: PreTrainedModel, folder: str) -> PreTrainedModel:
    """The model, for which TRL loads the tokenizer in `folder`."""
    model.config._name_or_path = str(folder)
    return model


def logits_of(model, inputs, temperature):
    """Logits where each token was sampled, of unpacked rows."""
    ids, mask = (torch.cat([inputs[f"{x}_{kind}"] for x in ("prompt", "completion")], 1) for kind in ("ids", "mask"))
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    # one row at a time, so that nothing depends on what is beside it
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    return logits[:, :-1][:, -inputs["completion_ids"].size(1) :] / temperature


def dense(branches: Branches, rows: int, length: int) -> torch.Tensor:
    """Which token sees which, shape (rows, length, length), by [`Branches`]."""
    ends = torch.tensor(branches.sizes).cumsum(0).tolist()
    parts = [torch.arange(end - n, end) for end, n in zip(ends, branches.sizes, strict=True)]
    seen = torch.zeros(rows * length, rows * length, dtype=torch.bool)
    for piece in branches.pieces:
        before = [parts[part] for part in piece.before]
        for run in piece.runs:
            own = torch.cat([parts[part] for part in run])
            for n, j in enumerate(own):
                seen[j, torch.cat([*before, own[: n + 1]])] = True
    blocks = seen.view(rows, length, rows, length)
    assert not any(blocks[i, :, k].any() for i in range(rows) for k in range(rows) if i != k)
    return torch.stack([blocks[i, :, i] for i in range(rows)])


def exact_softmax(monkeypatch):
    """transformers rounds the softmax of eager attention to float32."""
    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim, dtype: softmax(x, dim=dim))
