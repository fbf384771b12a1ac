"""π_old of replayed rows: what is computed for it, how often, and that it is what plain rows have."""

import itertools

import pytest
import torch
from datasets import Dataset
from segment_helpers import TREE, RecordingEngine, batches, generation_batch, with_engine
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, Qwen3Config
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.rollouts.behavior import PACKED_MODELS, can_pack


REPLAY = {**TREE, "tree_branching": [4, 3, 3], "tree_segment_length": 2, "replay_iterations": 3, "replay_cap": 8}


def length(completions, **kwargs):
    return [len(text) / 7 for text in completions]


def tokens_without_gradient(trainer):
    """Rows of each pass for π_old, and their tokens, padding included."""
    found = []
    measure = trainer._behavior_logps

    def counted(output):
        rows, tokens = output["prompt_ids"].size(0), output["prompt_ids"].numel() + output["completion_ids"].numel()
        found.append((rows, tokens))
        return measure(output)

    trainer._behavior_logps = counted
    return found


def unique_tokens(trees):
    needed = [{id(n): n for node in tree.root.walk() if node.advantage for n in node.path()} for tree in trees]
    return sum(
        len(tree.prompt_ids) + sum(len(n.segment.ids) for n in nodes.values())
        for tree, nodes in zip(trees, needed, strict=True)
    )


@pytest.mark.parametrize("form", ["nodes", "paths"])
@pytest.mark.parametrize("kind", PACKED_MODELS)
def test_packed_passes_give_what_plain_rows_have(tiny_model, tmp_path, form, kind):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 1, "head_dim": 16, "initializer_range": 0.2, "max_position_embeddings": 128}
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](vocab_size=len(tokenizer), eos_token_id=1, pad_token_id=0, **sizes)
    model = AutoModelForCausalLM.from_config(config).double()
    args = CreditConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", disable_tqdm=True, tree_rows=form,
        max_completion_length=8, gradient_accumulation_steps=1, **REPLAY,
    )  # fmt: skip
    prompts = Dataset.from_dict({"prompt": ["1+1=", "23+45=6-", "7="] * 4})
    trainer = CreditTrainer(model, length, args, train_dataset=prompts, processing_class=tokenizer)
    assert trainer.forest.can_pack
    trees = trainer.forest.plan([dict(prompts[i // 8]) for i in range(16)]).trees
    found = {}
    for trainer.forest.can_pack in (False, True):
        found[trainer.forest.can_pack] = [row.behavior_logps for row in trainer.forest._new_rows(trees)]
    assert len(found[True]) == len(found[False]) > 10
    for packed, plain in zip(found[True], found[False], strict=True):
        assert packed == pytest.approx(plain, rel=1e-6, abs=2e-6) and max(plain) < 0


def test_models_whose_tokens_know_their_column_have_plain_rows():
    config = GPT2Config(n_layer=1)
    config._attn_implementation = "sdpa"
    assert not can_pack(config)
    config = Qwen3Config(num_hidden_layers=2)
    config._attn_implementation = "flash_attention_2"
    assert not can_pack(config)
    config._attn_implementation = "sdpa"
    assert can_pack(config)


@pytest.mark.parametrize(("form", "most"), [("nodes", 1.5), ("paths", 1.5), ("packed", 3.5)])
def test_no_token_has_its_log_probability_computed_twice(make_trainer, form, most):
    trainer = make_trainer(
        **{**REPLAY, "num_generations": 4 if form == "packed" else 8, "replay_cap": 2}, tree_rows=form
    )
    torch.manual_seed(5)
    counted, kept, plans = tokens_without_gradient(trainer), batches(trainer), []
    plan = trainer.forest.plan
    trainer.forest.plan = lambda inputs: plans.append(plan(inputs)) or plans[-1]
    for _ in range(3):
        counted.clear()
        generation_batch(trainer)
        # rows that are drawn at once and those of earlier batches cost nothing
        assert 0 < sum(tokens for _, tokens in counted) <= most * unique_tokens(plans[-1].trees)
    assert plans[-1].has_replayed
    for output, made in zip(kept[1:], plans[1:], strict=True):
        for row, old in zip(made.rows[: made.n_real], output["old_per_token_logps"], strict=False):
            n = len(row.completion_ids)
            torch.testing.assert_close(old[:n], torch.tensor(row.behavior_logps))
    # no step was taken: π_old is that of the policy at hand for all rows of the batch
    del trainer._behavior_logps
    now = trainer._behavior_logps(kept[-1])
    mask = (kept[-1]["completion_mask"] * kept[-1]["tool_mask"]).bool()
    torch.testing.assert_close(kept[-1]["old_per_token_logps"][mask], now[mask], rtol=1e-4, atol=1e-4)


def test_an_engine_leaves_the_new_rows_of_a_mixed_batch_to_compute(make_trainer):
    trainer = with_engine(make_trainer(**{**REPLAY, "tree_segment_length": 1, "replay_cap": 2}), RecordingEngine())
    rewards = itertools.count()
    trainer.reward_funcs = [lambda completions, **kwargs: [next(rewards) % 7 / 7 for _ in completions]]
    counted, plans = tokens_without_gradient(trainer), []
    plan = trainer.forest.plan
    trainer.forest.plan = lambda inputs: plans.append(plan(inputs)) or plans[-1]
    generation_batch(trainer)
    assert counted == []
    for _ in range(3):
        counted.clear()
        generation_batch(trainer)
        new = sum(row.birth == plans[-1].iteration for row in plans[-1].drawn)
        assert plans[-1].has_replayed and sum(rows for rows, _ in counted) == new
