"""The estimators of chains and trees, against the exact values of a model that can be enumerated."""

import itertools
import math

import pytest
import torch
from datasets import Dataset
from segment_helpers import generation_batch
from tiny_models import tiny_qwen3

import trl_credit
from trl_credit.demo.warm_start import make_tokenizer


@pytest.fixture(scope="module")
def enumerable(tmp_path_factory):
    """A model of six tokens, and the exact value of every prefix of at most three, by enumeration."""
    folder = str(tmp_path_factory.mktemp("enumerable"))
    tokenizer = make_tokenizer("abc")
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "head_dim": 8, "max_position_embeddings": 32}
    model = tiny_qwen3(tokenizer, seed=3, initializer_range=0.6, **sizes).eval()
    model.save_pretrained(folder)
    return folder, model


def spelling(completions, **kwargs):
    """Between 0 and 1, and different for most strings."""
    return [sum(("abc".index(c) + 1) * 0.3 ** (i + 1) for i, c in enumerate(t) if c in "abc") for t in completions]


def exact_values(model, tokenizer, prompt, *, length, temperature):
    """V and the variance of a single rollout's reward, for every prefix of a response: all strings, weighed."""

    @torch.no_grad()
    def next_probabilities(ids):
        return (model(torch.tensor([prompt + list(ids)])).logits[0, -1].double() / temperature).softmax(-1)

    def moments(ids):
        if len(ids) == length or (ids and ids[-1] == 1):
            reward = spelling([tokenizer.decode(ids, skip_special_tokens=True)])[0]
            return {tuple(ids): (reward, reward**2)}
        p = next_probabilities(ids).tolist()
        found, first, second = {}, 0.0, 0.0
        for token, weight in enumerate(p):
            below = moments([*ids, token])
            found.update(below)
            first += weight * below[(*ids, token)][0]
            second += weight * below[(*ids, token)][1]
        found[tuple(ids)] = (first, second)
        return found

    return {ids: (v, s - v * v) for ids, (v, s) in moments([]).items()}


@pytest.mark.parametrize("n", [32, 2048])
def test_values_converge_to_enumeration_at_the_monte_carlo_rate(enumerable, tmp_path, n):
    folder, model = enumerable
    args = trl_credit.CreditConfig(
        output_dir=str(tmp_path),
        report_to="none",
        rollouts="chain",
        segmentation="fixed_length",
        segment_length=1,
        include_last=True,
        rollouts_per_state=n,
        per_device_train_batch_size=16,
        num_generations=16,
        max_completion_length=3,
        temperature=0.8,
        disable_tqdm=True,
    )
    data = Dataset.from_dict({"prompt": ["ab", "ca"] * 4})
    trainer = trl_credit.CreditTrainer(folder, spelling, args, train_dataset=data)
    tokenizer = trainer.processing_class
    squares = []
    for inputs in itertools.islice(trainer.get_train_dataloader(), 4):
        trainer.model.train()
        output = trainer._generate_and_score_completions(inputs)
        exact = exact_values(model, tokenizer, tokenizer(inputs[0]["prompt"])["input_ids"], length=3, temperature=0.8)
        states = {}
        for ids, mask, advantages in zip(
            output["completion_ids"], output["completion_mask"], output["advantages"], strict=True
        ):
            ids = ids[mask.bool()].tolist()
            final = spelling([tokenizer.decode(ids, skip_special_tokens=True)])[0]
            for b in range(len(ids)):  # from the end: V(s_b) = R − Σ_{k ≥ b} A_k
                states[tuple(ids[:b])] = final - advantages[b : len(ids)].sum().item()
        for ids, value in states.items():
            mean, variance = exact[ids]
            assert variance > 0
            squares.append((value - mean) ** 2 / (variance / n))
    # squared errors in units of the variance that N rollouts have: 1 on average, whatever N
    mean, count = sum(squares) / len(squares), len(squares)
    assert count > 20
    assert abs(mean - 1) < 5 * math.sqrt(2 / count), (mean, count)


def test_tree_values_converge_to_enumeration(enumerable, tmp_path):
    folder, model = enumerable
    args = trl_credit.CreditConfig(
        output_dir=str(tmp_path),
        report_to="none",
        rollouts="tree",
        tree_branching=[400, 20],
        tree_segment_length=1,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=3,
        temperature=0.8,
        disable_tqdm=True,
    )
    trainer = trl_credit.CreditTrainer(folder, spelling, args, train_dataset=Dataset.from_dict({"prompt": ["ab"] * 4}))
    tokenizer = trainer.processing_class
    grown = []
    new_rows = trainer.forest._new_rows
    trainer.forest._new_rows = lambda trees: grown.extend(trees) or new_rows(trees)
    generation_batch(trainer)
    (tree,) = grown
    exact = exact_values(model, tokenizer, tree.prompt_ids, length=3, temperature=0.8)
    # Var V̂(root) = Var of a child's mean / 400, at most the variance of a single rollout / 400
    assert abs(tree.root.value - exact[()][0]) < 4.5 * math.sqrt(exact[()][1] / 400)
    squares = [
        (node.value - exact[tuple(node.written())][0]) ** 2 / (exact[tuple(node.written())][1] / 20)
        for node in tree.root.children
        if node.children
    ]
    assert len(squares) > 100
    assert abs(sum(squares) / len(squares) - 1) < 5 * math.sqrt(3 / len(squares))
