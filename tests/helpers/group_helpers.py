"""Data with groups without signal, and the generation batches of a run."""

import copy

import torch


def by_prompt(prompts, completions, **kwargs) -> list[float]:
    """0 for prompts that begin with an even digit, whose groups have zero variance; else nearly always different."""
    return [0.0 if int(p[0]) % 2 == 0 else sum(map(ord, c)) % 4 / 3 for p, c in zip(prompts, completions, strict=True)]


def length(prompts, completions, **kwargs) -> list[float]:
    """A second reward, which differs in every group."""
    return [sum(map(ord, c)) % 101 / 1000 for c in completions]


# four groups of four in a batch; half of the prompts have zero variance
SMALL = {"reward_funcs": by_prompt, "per_device_train_batch_size": 16, "max_steps": 3, "n_prompts": 64}


def observed(trainer):
    """Trains, and returns each generation batch as it was made, with the weights that sampled it."""
    seen, make = [], trainer.make_batch

    def spy(inputs):
        weights = copy.deepcopy(trainer.model.state_dict())
        sampled = make(inputs)
        data = {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in sampled.batch.data.items()}
        seen.append((sampled, data, weights))
        return sampled

    trainer.make_batch = spy
    trainer.train()
    return seen
