"""Training with segments: other knobs, conversations, passes for π_old, replay, and what is refused."""

import math

import pytest
import torch
from datasets import Dataset
from passes_helpers import model_of, scripted
from segment_helpers import (
    CHAIN,
    TREE,
    RecordingEngine,
    batches,
    counts_on,
    engine_calls,
    generation_batch,
    plans,
    steps_of,
    with_engine,
)
from tiny_models import QWEN3
from transformers import AutoTokenizer, GPT2Config, Qwen3Config
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from weight_helpers import check_finite, moved, weights

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.credit.selection import probability_mask
from trl_credit.loss import keys
from trl_credit.rollouts.forest import PACKED_MODELS, can_pack


KNOBS = [
    {"importance": "eligible", "selector": "entropy"},
    {"importance": "lambda_trace", "trace_style": "both"},
    {"importance": "sequence_token"},
    {"importance": "turn_token"},
    {"difficulty": "history"},
    {"loss_type": "grpo"},
    {"loss_type": "bnpo", "token_mask": "probability", "released_code": ["spo_normalizer"], "beta": 0.1},
    {"loss_type": "dr_grpo"},
    {"loss_type": "cispo"},
    {"loss_type": "sapo"},
    {"token_mask": "probability", "whiten_advantages": "batch"},
    {"token_mask": "probability", "whiten_advantages": "microbatch"},
    {"policy_loss": "policy_iteration", "beta": 0.1},
    {"process_reward_weight": 5.0, "process_reward_best_of": 4},
    {"process_reward_weight": 5.0, "process_reward_best_of": 4, "process_reward_form": "value"},
    {"loss_weight": "trace_past", "loss_weight_confidence": "sigmoid", "advantage_floor": -0.1},
    {"clip_form": "ratio", "num_iterations": 2, "beta": 0.01, "use_bias_correction_kl": False},
    {"num_iterations": 2, "steps_per_generation": 2, "beta": 0.01},
]
OF_TREES = [
    {"tree_rows": "paths", "num_iterations": 2, "beta": 0.01},
    {"tree_rows": "packed", "steps_per_generation": 2, "beta": 0.01, "token_mask": "probability"},
    {"tree_rows": "packed", "clip_form": "ratio", "num_iterations": 2},
    {"tree_rows": "packed", "policy_loss": "policy_iteration", "beta": 0.1},
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "knobs"),
    [*((CHAIN, knobs) for knobs in KNOBS), *((TREE, knobs) for knobs in KNOBS + OF_TREES)],
    ids=lambda value: {id(CHAIN): "chain", id(TREE): "tree"}.get(id(value), str(value)),
)
def test_segments_compose(make_trainer, base, knobs):
    trainer = make_trainer(**{**base, **knobs}, max_steps=3)
    before = weights(trainer)
    trainer.train()
    assert moved(trainer, before)
    check_finite(trainer)


@pytest.mark.parametrize(("form", "rows"), [("value", 16), ("advantage", 0)])
def test_a_value_of_zero_is_a_row_of_the_value_form(trained, form, rows):
    """Its tokens count in the mean over all tokens, where a node without advantage is left out."""
    process = {"process_reward_weight": 1.0, "process_reward_best_of": 4, "process_reward_form": form}
    trainer = trained(**TREE, **process, reward_funcs=lambda completions, **kwargs: [0.0] * len(completions))
    assert [row["credit/rows"] for row in steps_of(trainer)] == [rows, rows]


def test_policy_iteration_without_a_segment(trained):
    settings = {"policy_loss": "policy_iteration", "beta": 0.1, "mask_truncated_completions": True}
    trainer = trained(
        **CHAIN, **settings, max_completion_length=2, generation_kwargs={"suppress_tokens": [0, 1]}, max_steps=1
    )
    assert steps_of(trainer)[0]["loss"] == 0.0


@pytest.mark.parametrize("settings", [CHAIN, TREE], ids=["chain", "tree"])
def test_rewards_of_any_size(make_trainer, trained, settings):
    def signs(completions, **kwargs):
        return [3.0 if "a" in text else -1.0 for text in completions]

    trainer = trained(**settings, reward_funcs=signs, truncated_value=-2.0, temperature=1.5)
    assert any(row["grad_norm"] > 0 for row in steps_of(trainer))
    with pytest.raises(ValueError, match="reward_range"):
        make_trainer(**settings, reward_funcs=signs, process_reward_weight=1.0, process_reward_best_of=2).train()


def test_conversations_are_continued_and_graded_as_messages(make_trainer, tiny_model):
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


def test_an_evaluation_between_two_updates_does_not_undo_an_empty_batch(make_trainer):
    trainer = make_trainer(**TREE, reward_funcs=lambda completions, **kwargs: [0.5] * len(completions))
    batch = generation_batch(trainer)
    assert all(batch[keys.NO_UPDATE])
    trainer.model.eval()
    rows = [trainer.train_dataset[0]] * trainer.num_generations_eval
    assert keys.NO_UPDATE not in trainer._generate_and_score_completions(rows)
    assert all(batch[keys.NO_UPDATE])


# Passes for π_old


REPLAY = {**TREE, "tree_branching": [4, 3, 3], "tree_segment_length": 2, "replay_iterations": 3, "replay_cap": 8}


def length(completions, **kwargs):
    return [len(text) / 7 for text in completions]


def tokens_without_gradient(trainer):
    """Rows of each pass for π_old, and their tokens, padding included."""
    found = []
    measure = trainer.engine.behavior_logps

    def counted(output):
        rows, tokens = output["prompt_ids"].size(0), output["prompt_ids"].numel() + output["completion_ids"].numel()
        found.append((rows, tokens))
        return measure(output)

    trainer.engine.behavior_logps = counted
    return found


def unique_tokens(trees):
    needed = [{id(n): n for node in tree.root.walk() if node.advantage for n in node.path()} for tree in trees]
    return sum(
        len(tree.prompt_ids) + sum(len(n.segment.ids) for n in nodes.values())
        for tree, nodes in zip(trees, needed, strict=True)
    )


@pytest.mark.parametrize("form", ["nodes", "paths"])
@pytest.mark.parametrize("kind", PACKED_MODELS)
def test_packed_passes_give_what_plain_rows_have(make_trainer, tiny_model, form, kind):
    model = model_of(CONFIG_MAPPING[kind](**{**QWEN3, "initializer_range": 0.2}), tiny_model)
    pair = CreditConfig, scripted(CreditTrainer, model)
    trainer = make_trainer(pair, reward_funcs=length, tree_rows=form, **REPLAY)
    assert trainer.forest.can_pack
    trees = trainer.forest.plan([{"prompt": prompt} for prompt in ("1+1=", "23+45=6-") for _ in range(8)]).trees
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
    measure = trainer.engine.behavior_logps
    counted, kept, planned = tokens_without_gradient(trainer), batches(trainer), plans(trainer)
    for _ in range(3):
        counted.clear()
        generation_batch(trainer)
        # rows that are drawn at once and those of earlier batches cost nothing
        assert 0 < sum(tokens for _, tokens in counted) <= most * unique_tokens(planned[-1].trees)
    assert planned[-1].has_replayed
    for output, made in zip(kept[1:], planned[1:], strict=True):
        for row, old in zip(made.rows[: made.n_real], output["old_per_token_logps"], strict=False):
            n = len(row.completion_ids)
            torch.testing.assert_close(old[:n], torch.tensor(row.behavior_logps))
    # no step was taken: π_old is that of the policy at hand for all rows of the batch
    now = measure(kept[-1])
    mask = (kept[-1]["completion_mask"] * kept[-1]["tool_mask"]).bool()
    torch.testing.assert_close(kept[-1]["old_per_token_logps"][mask], now[mask], rtol=1e-4, atol=1e-4)


def test_an_engine_leaves_the_new_rows_of_a_mixed_batch_to_compute(make_trainer):
    trainer = with_engine(make_trainer(**{**REPLAY, "tree_segment_length": 1, "replay_cap": 2}), RecordingEngine())
    counts_on(trainer)
    counted, planned = tokens_without_gradient(trainer), plans(trainer)
    generation_batch(trainer)
    assert counted == []
    for _ in range(3):
        counted.clear()
        generation_batch(trainer)
        new = sum(row.birth == planned[-1].iteration for row in planned[-1].drawn)
        assert planned[-1].has_replayed and sum(rows for rows, _ in counted) == new


# Replay


@pytest.mark.parametrize("form", ["nodes", "paths", "packed"])
def test_replayed_rows_keep_the_policy_that_sampled_them(make_trainer, form):
    sizes = {**TREE, "num_generations": 4, "per_device_train_batch_size": 8, "max_steps": 4, "learning_rate": 3e-2}
    trainer = make_trainer(**sizes, tree_rows=form, replay_iterations=4, replay_cap=2, token_mask="probability")
    planned, kept = plans(trainer), batches(trainer)
    trainer.train()
    for row, logp in zip(planned[0].rows[: planned[0].n_real], kept[0]["old_per_token_logps"], strict=False):
        # what is stored with a new row is what TRL computes for it
        assert row.behavior_logps == pytest.approx(logp[: len(row.completion_ids)].tolist(), abs=1e-5)
    rows = steps_of(trainer)
    assert rows[0]["credit/replay/age"] == 0 and max(row["credit/replay/age"] for row in rows) > 0
    # under the final weights, log-probabilities differ from the stored π_old, since the weights have moved
    last = kept[-1]
    with torch.no_grad():
        now = trainer.engine.behavior_logps(last)
    mask = last["completion_mask"] * last["tool_mask"]
    gaps = ((now - last["old_per_token_logps"]).abs() * mask).amax(1)[mask.sum(1) > 0]
    assert gaps.max() > 0.05
    first = kept[0]
    kept_tokens = probability_mask(
        first["old_per_token_logps"], threshold=0.9, mask_t=first["completion_mask"] * first["tool_mask"]
    )
    assert first["num_items_in_batch"] == kept_tokens.sum()


# Refusals


def test_a_reward_that_is_no_number_stops_before_any_update(make_trainer):
    calls = []

    def picky(prompts, completions, **kwargs):
        calls.append(len(completions))
        # the responses come first, and then their rollouts
        return [1.0] * (len(completions) - 1) + [1.0 if len(calls) == 1 else math.nan]

    trainer = make_trainer(**CHAIN, reward_funcs=picky)
    before = weights(trainer)
    with pytest.raises(ValueError, match=r"'picky' .*'\d\+"):
        trainer.train()
    assert len(calls) == 2 and not moved(trainer, before)


@pytest.mark.parametrize("name", ["tools", "rollout_func"])
def test_what_cannot_be_continued_is_refused(make_trainer, name):
    def anything(x: str) -> str:
        """A tool.

        Args:
            x: A string.
        """
        return x

    value = [anything] if name == "tools" else anything
    with pytest.raises(ValueError, match=f"{name}.*rollouts='none'"):
        make_trainer(**CHAIN, trainer_kwargs={name: value})


def test_images_are_refused(make_trainer):
    trainer = make_trainer(**CHAIN)
    trainer.model.train()
    with pytest.raises(ValueError, match="images"):
        trainer._generate_and_score_completions([{"prompt": "1", "image": object()}] * 8)


def test_a_splitter_that_returns_anything_else_stops_the_run(make_trainer, tmp_path):
    (tmp_path / "bad.py").write_text("def split(text):\n    return [len(text), 0]\n")
    trainer = make_trainer(**CHAIN, segmentation="steps", step_splitter=f"{tmp_path}/bad.py:split")
    with pytest.raises(TypeError, match="ascending offsets"):
        trainer.train()


def test_a_batch_without_a_boundary_says_so(make_trainer, caplog):
    trainer = make_trainer(**CHAIN, token_mask="probability", probability_threshold=1e-9)
    calls = engine_calls(trainer)
    with caplog.at_level("WARNING"):
        output = generation_batch(trainer)
    assert "no boundary" in caplog.text and "probability_threshold" in caplog.text
    assert len(calls) == 1 and not output["advantages"].any()
    trainer.current_gradient_accumulation_steps = 1
    assert trainer.compute_loss(trainer.model, output).item() == 0.0  # its normaliser would be 0
