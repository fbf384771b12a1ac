"""Segment credit together with the other knobs, with conversations and with rewards of any size."""

import json
import math
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from segment_helpers import CHAIN, TREE, generation_batch, steps_of


KNOBS = [
    {"importance": "eligible", "selector": "entropy"},
    {"importance": "lambda_trace", "trace_style": "both"},
    {"importance": "sequence_token"},
    {"difficulty": "history"},
    {"loss_type": "grpo"},
    {"loss_type": "bnpo", "token_mask": "probability", "mask_normalizer": "code", "beta": 0.1},
    {"loss_type": "dr_grpo"},
    {"loss_type": "cispo"},
    {"loss_type": "sapo"},
    {"token_mask": "probability", "whiten_advantages": "batch"},
    {"token_mask": "probability", "whiten_advantages": "microbatch"},
    {"policy_loss": "policy_iteration", "beta": 0.1},
    {"process_reward_weight": 5.0, "process_reward_best_of": 4},
    {"process_reward_weight": 5.0, "process_reward_best_of": 4, "process_reward_form": "value"},
    {"loss_weight": "trace_past", "loss_weight_confidence": True, "advantage_floor": -0.1},
    {"clip_form": "ratio", "num_iterations": 2, "beta": 0.01, "use_bias_correction_kl": False},
    {"num_iterations": 2, "steps_per_generation": 2, "beta": 0.01},
]
OF_TREES = [
    {"tree_rows": "paths", "num_iterations": 2, "beta": 0.01},
    {"tree_rows": "packed", "steps_per_generation": 2, "beta": 0.01, "token_mask": "probability"},
    {"tree_rows": "packed", "clip_form": "ratio", "num_iterations": 2},
    {"tree_rows": "packed", "policy_loss": "policy_iteration", "beta": 0.1},
]


@pytest.mark.parametrize(
    ("base", "knobs"),
    [*((CHAIN, knobs) for knobs in KNOBS), *((TREE, knobs) for knobs in KNOBS + OF_TREES)],
    ids=lambda value: {id(CHAIN): "chain", id(TREE): "tree"}.get(id(value), str(value)),
)
def test_segments_compose(make_trainer, base, knobs):
    trainer = make_trainer(**{**base, **knobs}, max_steps=3)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    assert any(not torch.equal(before[name], p) for name, p in trainer.model.named_parameters())
    values = [v for row in steps_of(trainer) for v in row.values() if isinstance(v, float)]
    assert values and all(map(math.isfinite, values))


def test_policy_iteration_without_a_segment(make_trainer):
    settings = {"policy_loss": "policy_iteration", "beta": 0.1, "mask_truncated_completions": True}
    trainer = make_trainer(
        **CHAIN, **settings, max_completion_length=2, generation_kwargs={"suppress_tokens": [0, 1]}, max_steps=1
    )
    trainer.train()
    assert steps_of(trainer)[0]["loss"] == 0.0


@pytest.mark.parametrize("settings", [CHAIN, TREE], ids=["chain", "tree"])
def test_rewards_of_any_size(make_trainer, settings):
    def signs(completions, **kwargs):
        return [3.0 if "a" in text else -1.0 for text in completions]

    trainer = make_trainer(**settings, reward_funcs=signs, truncated_value=-2.0, temperature=1.5)
    trainer.train()
    assert any(row["grad_norm"] > 0 for row in steps_of(trainer))
    with pytest.raises(ValueError, match="reward_range"):
        make_trainer(**settings, reward_funcs=signs, process_reward_weight=1.0, process_reward_best_of=2).train()


def test_conversations_are_continued_and_graded_as_messages(make_trainer, tiny_model):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}={% endif %}"
    )
    seen = []

    def reward(prompts, completions, **kwargs):
        seen.extend(zip(prompts, completions, strict=True))
        return [float("a" in c[0]["content"]) for c in completions]

    for settings in (CHAIN, TREE):
        trainer = make_trainer(
            **settings, reward_funcs=reward, max_steps=1, trainer_kwargs={"processing_class": tokenizer}
        )
        chat = [{"prompt": [{"role": "user", "content": f"{i}+1"}], "answer": "x"} for i in range(8)]
        trainer.train_dataset = Dataset.from_list(chat)
        trainer.train()
    assert len(seen) > 16 + 8
    assert all(p[0]["role"] == "user" and c[0]["role"] == "assistant" for p, c in seen)


def test_the_model_card_names_the_paper(make_trainer, tmp_path):
    trainer = make_trainer("spo_tree", max_steps=1, tree_segment_length=2, output_dir=str(tmp_path / "card"))
    trainer.create_model_card(model_name="card")
    card = (Path(tmp_path) / "card" / "README.md").read_text()
    assert "2505.23564" in card and "Segment Policy Optimization" in card
    assert json.loads(json.dumps(trainer.args.to_dict()))["tree_branching"] == [2, 2, 2]


def test_an_evaluation_between_two_updates_does_not_undo_an_empty_batch(make_trainer):
    trainer = make_trainer(**TREE, reward_funcs=lambda completions, **kwargs: [0.5] * len(completions))
    generation_batch(trainer)
    assert trainer._skip_update
    trainer.model.eval()
    rows = [trainer.train_dataset[0]] * trainer.num_generations_eval
    trainer._generate_and_score_completions(rows)
    assert trainer._skip_update
