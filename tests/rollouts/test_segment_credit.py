"""Segments of chains and trees through the real trainer: what is graded, their credit, their rows, π_old and replay."""

import functools

import pytest
import segment_helpers
import torch
from conftest import count_a
from passes_helpers import distinct, model_of, scripted
from segment_helpers import CHAIN, TREE, engine_calls, generation_batch, plans, steps_of, texts_of
from tiny_models import QWEN3
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from weight_helpers import moved, same_weights, weights

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.rollouts import forest
from trl_credit.rollouts.forest import PACKED_MODELS
from trl_credit.rollouts.tree import packed_rows


SHORT = {**CHAIN, "segmentation": "fixed_length", "segment_length": 3}
ONE = {**CHAIN, "segmentation": "fixed_count", "num_segments": 1}


def rewards_of(trainer, output):
    return torch.tensor(count_a([text for _, text in texts_of(trainer, output)]))


def test_rollouts_are_graded_as_whole_responses_with_their_columns(make_trainer):
    seen = []

    def reward(prompts, completions, completion_ids, answer, **kwargs):
        seen.append((prompts, completions, completion_ids, answer))
        return [float(len(set(text))) for text in completions]

    trainer = make_trainer(**SHORT, reward_funcs=reward)
    output = generation_batch(trainer)
    (_, own, own_ids, _), (prompts, texts, ids, answers) = seen
    assert len(prompts) == len(texts) == len(ids) == len(answers)
    right = dict(zip(trainer.train_dataset["prompt"], trainer.train_dataset["answer"], strict=True))
    assert all(right[p] == a for p, a in zip(prompts, answers, strict=True))
    decode = trainer.processing_class.batch_decode
    assert texts == decode(ids, skip_special_tokens=True)
    assert all(len(x) <= 8 for x in ids)  # the prefix counts towards the budget
    # three by three they share a prefix of 0, 3 or 6 tokens with a response of the same prompt
    own_prompts = [prompt for prompt, _ in texts_of(trainer, output)]
    main = {p: [x for q, x in zip(own_prompts, own_ids, strict=True) if q == p] for p in right}
    for i in range(0, len(ids), 3):
        candidates = [x[:b] for x in main[prompts[i]] for b in (0, 3, 6) if b < len(x)]
        assert any(all(y[: len(c)] == c for y in ids[i : i + 3]) for c in candidates)


def test_values_are_means_of_rollouts_and_the_own_reward_ends_the_chain(make_trainer):
    calls = []

    def reward(completions, **kwargs):  # the responses themselves come first
        calls.append(len(completions))
        return [0.75 if len(calls) == 1 else 0.25 * (i % 3) for i in range(len(completions))]

    trainer = make_trainer(**SHORT, reward_funcs=reward)
    output = generation_batch(trainer)
    lengths = output["completion_mask"].sum(1).tolist()
    for row, n in enumerate(lengths):  # each state is worth (0 + 0.25 + 0.5)/3 = 0.25: only the last one gains
        boundaries = [b for b in range(0, n, 3) if b < n - 1 or n == 1]
        expected = [0.5 if t >= boundaries[-1] and t < n else 0.0 for t in range(output["completion_ids"].size(1))]
        assert output["advantages"][row].tolist() == pytest.approx(expected)
        ids = output["segment_ids"][row].tolist()
        assert ids[:n] == [sum(b <= t for b in boundaries) - 1 for t in range(n)] and set(ids[n:]) <= {-1}


def test_the_first_advantage_starts_from_the_prompt_under_the_mask(make_trainer):
    """Σ A_k = R − V(x), also where the first tokens are probable (Eq. 2). V(x) is one number for all of a prompt."""
    masked = {**CHAIN, "token_mask": "probability", "cutpoint_interval": 2, "probability_threshold": 0.05}
    differ = {}
    for released in (None, ["spo_first_cutpoint"]):
        trainer = make_trainer(**masked, released_code=released)
        output = generation_batch(trainer)
        ids = output["segment_ids"]
        kept = (output["old_per_token_logps"].exp() < 0.05) & output["completion_mask"].bool()
        later = kept.any(1) & ~kept[:, 0]
        assert later.any() and kept[:, 0].any() and kept.any(1).all() and output["advantages"].any()
        if released is None:
            assert (ids[:, 0] == 0).all()
        else:
            assert (ids[later, 0] == -1).all()
        before = torch.cat([torch.full_like(ids[:, :1], -1), ids[:, :-1]], 1)
        gained = (output["advantages"] * (ids > before)).sum(1)
        start = (rewards_of(trainer, output) - gained).split(4)
        differ[released is None] = [(x.max() - x.min()).item() > 1e-5 for x in start]
    assert not any(differ[True]) and any(differ[False])


@pytest.mark.parametrize("truncated", [None, -3.0])
def test_the_initial_value_is_free_from_the_group(make_trainer, truncated):
    trainer = make_trainer(**ONE, initial_value="group", truncated_value=truncated)
    calls = engine_calls(trainer)
    output = generation_batch(trainer)
    assert len(calls) == 1
    ended = (output["completion_ids"] == 1).any(1)
    assert ended.any() and not ended.all()
    own = rewards_of(trainer, output)
    own = own if truncated is None else own.where(ended, truncated)
    others = (own.view(-1, 4).sum(1, keepdim=True) - own.view(-1, 4)) / 3
    torch.testing.assert_close(output["advantages"][:, 0], own - others.flatten())


def test_certain_states_get_no_rollouts(make_trainer):
    settings = {**SHORT, "segment_length": 1}
    trainer = make_trainer(**settings, certain_tolerance=1 - 1e-15)
    calls = engine_calls(trainer)
    output = generation_batch(trainer)
    assert len(calls) == 1 and not output["advantages"].any()  # all states worth the own reward
    trainer = make_trainer(**settings, certain_tolerance=0.95)
    output = generation_batch(trainer)
    mask = output["completion_mask"]
    tail = (output["old_per_token_logps"] * mask).flip(1).cumsum(1).flip(1).exp()
    known = (tail >= 0.05) & mask.bool()
    assert known.any() and not (known & (tail < 1)).all()
    last = mask.sum(1) - 1
    for row in range(len(mask)):  # between two states that are worth the own reward lies no advantage
        first_known = (known[row].nonzero().flatten().tolist() or [last[row]])[0]
        assert not output["advantages"][row, first_known : last[row]].any()


def test_states_beyond_the_cap_are_worth_the_own_reward(make_trainer):
    trainer = make_trainer(**{**SHORT, "segment_length": 1}, max_valued_steps=2)
    output = generation_batch(trainer)
    lengths = output["completion_mask"].sum(1).tolist()
    assert max(lengths) > 5
    for row, n in enumerate(lengths):
        assert not output["advantages"][row, 3:n].any()


def test_responses_that_cannot_be_split_are_left_out(make_trainer, tmp_path):
    (tmp_path / "own.py").write_text(
        "def split(text):\n"
        "    if text.startswith(tuple('0123456789')):\n"
        "        raise ValueError('no steps')\n"
        "    return [0, len(text)] if text else [0]\n"
    )
    trainer = make_trainer(**CHAIN, segmentation="steps", step_splitter=f"{tmp_path}/own.py:split", beta=0.1)
    output = generation_batch(trainer)
    unsplit = torch.tensor([text[:1].isdigit() for _, text in texts_of(trainer, output)])
    assert unsplit.any() and not unsplit.all()
    assert not output["advantages"][unsplit].any()
    assert (output["tool_mask"].sum(1) == 0).tolist() == unsplit.tolist()
    assert output["num_items_in_batch"] == (output["completion_mask"] * output["tool_mask"]).sum()


def test_difficulty_weighs_segments(make_trainer):
    batches = []
    for knobs in ({}, {"difficulty": "fixed", "difficulty_threshold": 0.3}):
        trainer = make_trainer(**SHORT, temperature=1.3, **knobs)
        torch.manual_seed(5)
        batches.append((trainer, generation_batch(trainer)))
    (trainer, plain), (_, weighted) = batches
    assert torch.equal(plain["completion_ids"], weighted["completion_ids"])
    p_hat = rewards_of(trainer, plain).view(-1, 4).mean(1).repeat_interleave(4).unsqueeze(1)
    phi = 1.3 * torch.exp(-plain["advantages"].sign() * (p_hat - 0.3))
    torch.testing.assert_close(weighted["advantages"], plain["advantages"] * phi)


def test_a_tree_of_one_level_is_grpo_to_the_last_bit(trained, tmp_path):
    common = {"reward_funcs": distinct, "loss_type": "dapo", "beta": 0.04, "max_steps": 3}
    common |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "temperature": 1.3}
    plain = trained(**common, scale_rewards="none", output_dir=str(tmp_path / "plain"))
    tree = trained(**common, rollouts="tree", tree_branching=[4], output_dir=str(tmp_path / "tree"))
    left, right = steps_of(plain), steps_of(tree)
    assert all(row["credit/rows_missing"] == 0 for row in right)
    for a, b in zip(left, right, strict=True):
        for name in ("loss", "grad_norm", "reward", "reward_std", "completions/mean_length", "kl"):
            assert a[name] == b[name], name
        assert b["credit/rows"] == 8
    assert same_weights(plain, tree)


@pytest.mark.parametrize("knobs", [{}, {"token_mask": "probability", "beta": 0.05}], ids=str)
def test_all_forms_of_rows_have_one_gradient(make_trainer, knobs, monkeypatch):
    results = {}
    one_row = functools.partial(packed_rows, max_rows=1)
    monkeypatch.setattr(forest, "packed_rows", lambda tree, max_rows, **kwargs: one_row(tree, **kwargs))
    for form in ("nodes", "paths", "packed"):
        settings = {**TREE, "tree_branching": [3, 2, 2], "tree_segment_length": 2, "per_device_train_batch_size": 64}
        trainer = make_trainer(**{**settings, "num_generations": 32}, tree_rows=form, **knobs)
        segment_helpers.in_double(trainer)
        torch.manual_seed(11)
        output = generation_batch(trainer)
        rows = (output["tool_mask"].sum(1) > 0).sum().item()
        results[form] = rows, output["num_items_in_batch"].item(), segment_helpers.gradients(trainer, output)
    (n_rows, n_items, nodes), (p_rows, p_items, paths), (k_rows, k_items, packed) = results.values()
    assert 1 <= k_rows <= 2 < p_rows < n_rows < 64 and n_items == p_items == k_items
    scale = max(g.abs().max().item() for g in nodes.values())
    assert scale > 1e-6
    for other in (paths, packed):
        torch.testing.assert_close(other, nodes, rtol=1e-6, atol=1e-6 * scale)


def test_an_empty_buffer_skips_the_update_and_says_so(make_trainer, caplog):
    trainer = make_trainer(
        **{**TREE, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 8},
        reward_funcs=lambda completions, **kwargs: [1.0] * len(completions),
        weight_decay=0.5,
        max_steps=3,
    )
    before = weights(trainer)  # which weight decay would change, with gradients of 0
    with caplog.at_level("WARNING"):
        trainer.train()
    assert trainer.state.global_step == 3
    assert not moved(trainer, before)
    assert "no segment of this generation batch has an advantage" in caplog.text
    for row in steps_of(trainer):
        assert row["credit/rows"] == 0 and row["credit/rows_missing"] == 1
        assert row["credit/groups_without_signal"] == row["credit/nodes_zero_advantage"] == 1.0


# Training with segments


@pytest.mark.parametrize(("form", "rows"), [("value", 16), ("advantage", 0)])
def test_a_value_of_zero_is_a_row_of_the_value_form(trained, form, rows):
    """Its tokens count in the mean over all tokens, where a node without advantage is left out."""
    process = {"process_reward_weight": 1.0, "process_reward_best_of": 4, "process_reward_form": form}
    trainer = trained(**TREE, **process, reward_funcs=lambda completions, **kwargs: [0.0] * len(completions))
    assert [row["credit/rows"] for row in steps_of(trainer)] == [rows, rows]


# Passes for π_old


REPLAY = {**TREE, "tree_branching": [4, 3, 3], "tree_segment_length": 2, "replay_iterations": 3, "replay_cap": 8}


@pytest.mark.parametrize(("kind", "form"), [*((kind, "nodes") for kind in PACKED_MODELS), ("qwen3", "paths")])
def test_packed_passes_give_what_plain_rows_have(make_trainer, tiny_model, kind, form):
    model = model_of(CONFIG_MAPPING[kind](**{**QWEN3, "initializer_range": 0.2}), tiny_model)
    pair = CreditConfig, scripted(CreditTrainer, model)
    trainer = make_trainer(
        pair,
        reward_funcs=lambda completions, **kwargs: [len(text) / 7 for text in completions],
        tree_rows=form,
        **REPLAY,
    )
    assert trainer.forest.can_pack
    trees = trainer.forest.plan([{"prompt": prompt} for prompt in ("1+1=", "23+45=6-") for _ in range(8)]).trees
    logps = {}
    for trainer.forest.can_pack in (False, True):
        logps[trainer.forest.can_pack] = [row.behavior_logps for row in trainer.forest._new_rows(trees)]
    assert len(logps[True]) == len(logps[False]) > 10
    for packed, plain in zip(logps[True], logps[False], strict=True):
        assert packed == pytest.approx(plain, rel=1e-6, abs=2e-6) and max(plain) < 0


# Replay


def test_new_rows_of_a_mixed_batch_are_computed_where_the_engines_are_not_kept(make_trainer):
    trainer = segment_helpers.with_engine(
        make_trainer(**{**REPLAY, "tree_segment_length": 1, "replay_cap": 2}), segment_helpers.RecordingEngine()
    )
    segment_helpers.counts_on(trainer)
    planned = plans(trainer)
    first, mixed = generation_batch(trainer), generation_batch(trainer)
    assert "old_per_token_logps" not in first
    is_old = torch.tensor([[row.birth < planned[1].iteration] for row in planned[1].rows])
    inside = mixed["segment_ids"] >= 0
    expected = trainer.engine.behavior_logps(mixed).masked_fill(is_old, -0.5)  # the engine's, of whatever token
    torch.testing.assert_close(mixed["old_per_token_logps"][inside], expected[inside])
    assert (is_old & inside).any() and (~is_old & inside).any()


@pytest.mark.parametrize("form", ["nodes", "packed"])
def test_replayed_rows_keep_the_policy_that_sampled_them(make_trainer, form):
    sizes = {**TREE, "num_generations": 4, "per_device_train_batch_size": 8, "max_steps": 4, "learning_rate": 3e-2}
    trainer = make_trainer(**sizes, tree_rows=form, replay_iterations=4, replay_cap=2, token_mask="probability")
    planned, kept = plans(trainer), segment_helpers.batches(trainer)
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


def test_a_batch_without_a_boundary_says_so(make_trainer, caplog):
    trainer = make_trainer(**CHAIN, token_mask="probability", probability_threshold=1e-9)
    calls = engine_calls(trainer)
    with caplog.at_level("WARNING"):
        output = generation_batch(trainer)
    assert "no boundary" in caplog.text and "probability_threshold" in caplog.text
    assert len(calls) == 1 and not output["advantages"].any()
    trainer.current_gradient_accumulation_steps = 1
    assert trainer.compute_loss(trainer.model, output).item() == 0.0  # its normaliser would be 0
