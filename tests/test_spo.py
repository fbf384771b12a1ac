"""Segment credit through the real trainer: what is generated, graded, credited and trained on."""

import functools
import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from conftest import toy_inputs
from datasets import Dataset
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

import trl_credit
import trl_credit.trainer.engine
from trl_credit.credit.selection import probability_mask
from trl_credit.demo.warm_start import make_tokenizer
from trl_credit.rollouts import forest
from trl_credit.rollouts.tree import packed_rows


def batches(trainer):
    """Keeps every generation batch that the trainer makes."""
    kept = []
    make = trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: kept.append(make(inputs)) or kept[-1]
    return kept


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


def steps_of(trainer):
    return [row for row in trainer.state.log_history if "reward" in row]


def texts_of(trainer, output):
    prompt, ids, mask = (output[k] for k in ("prompt_ids", "completion_ids", "completion_mask"))
    decode = trainer.processing_class.decode
    return [
        (decode(p, skip_special_tokens=True), decode(c[m.bool()], skip_special_tokens=True))
        for p, c, m in zip(prompt, ids, mask, strict=True)
    ]


CHAIN = {"rollouts": "chain", "rollouts_per_state": 3, "loss_type": "dapo"}
TREE = {
    "rollouts": "tree",
    "tree_branching": [3, 2],
    "tree_segment_length": 3,
    "loss_type": "dapo",
    "per_device_train_batch_size": 16,
    "num_generations": 8,
}


# Engine calls


@pytest.mark.parametrize("segmentation", ["cutpoints", "fixed_length", "fixed_count", "steps"])
def test_a_chain_takes_two_engine_calls(make_trainer, segmentation):
    trainer = make_trainer(
        **CHAIN, segmentation=segmentation, segment_length=2, num_segments=3, max_steps=2, step_splitter="newline"
    )
    calls = engine_calls(trainer)
    trainer.train()
    assert len(calls) == 2 * 2
    assert calls[0] == (8, 8) and calls[1][0] % 3 == 0
    row = steps_of(trainer)[0]
    assert row["credit/rollouts"] == calls[1][0]
    assert 0 < row["credit/rollout_token_share"] < 1
    assert {f"credit/seconds/{phase}" for phase in ("generate", "rollouts", "rewards", "train")} <= set(row)


def test_rollout_batches_bound_a_call(make_trainer):
    trainer = make_trainer(**CHAIN, segmentation="fixed_length", segment_length=2, rollout_batch_size=12, max_steps=1)
    calls = engine_calls(trainer)
    trainer.train()
    assert len(calls) > 2 and all(rows <= 12 for rows, _ in calls[1:])
    assert sum(rows for rows, _ in calls[1:]) == steps_of(trainer)[0]["credit/rollouts"]


@pytest.mark.parametrize("settings", [CHAIN, TREE], ids=["chain", "tree"])
def test_a_progress_bar_of_rollouts(make_trainer, monkeypatch, capsys, settings):
    monkeypatch.setattr(trl_credit.trainer.engine, "PROGRESS_DELAY", 0.0)
    trainer = make_trainer(**settings, disable_tqdm=False, max_steps=1)
    trainer.train()
    shown = capsys.readouterr().err
    label = "rollouts" if settings is CHAIN else "tree level 2 of 2"
    assert f"{label}:" in shown and "token/s" in shown
    assert not trainer.model._forward_pre_hooks
    trainer = make_trainer(**settings, disable_tqdm=True, max_steps=1)
    trainer.train()
    assert label not in capsys.readouterr().err


def test_a_tree_takes_one_engine_call_per_level(make_trainer):
    trainer = make_trainer(**{**TREE, "tree_branching": [2, 2, 2], "tree_segment_length": 2}, max_steps=2)
    calls = engine_calls(trainer)
    trainer.train()
    assert len(calls) == 3 * 2
    assert calls[:3] == [(4, 2), (calls[1][0], 2), (calls[2][0], 4)] and calls[1][0] <= 8 and calls[2][0] <= 16
    row = steps_of(trainer)[0]
    assert row["credit/nodes"] == sum(rows for rows, _ in calls[:3])
    # the cost of the specification's formula: M tokens on the inner levels, what is left on the last
    assert row["credit/rollout_tokens"] <= calls[0][0] * 2 + calls[1][0] * 2 + calls[2][0] * 4


# What is graded


def test_rollouts_are_graded_as_whole_responses_with_their_columns(make_trainer):
    seen = []

    def reward(prompts, completions, completion_ids, answer, **kwargs):
        seen.append((prompts, completions, completion_ids, answer))
        return [float(len(set(text))) for text in completions]

    trainer = make_trainer(**CHAIN, reward_funcs=reward, segmentation="fixed_length", segment_length=3)
    output = generation_batch(trainer)
    (_, own, own_ids, _), (prompts, texts, ids, answers) = seen
    assert len(prompts) == len(texts) == len(ids) == len(answers)
    right = dict(zip(trainer.train_dataset["prompt"], trainer.train_dataset["answer"], strict=True))
    assert all(right[p] == a for p, a in zip(prompts, answers, strict=True))
    decode = trainer.processing_class.batch_decode
    assert texts == decode(ids, skip_special_tokens=True)
    assert all(len(x) <= 8 for x in ids)  # the prefix counts towards the budget
    # three by three they share a prefix of 0, 3 or 6 tokens with a response of the same prompt
    asked = [prompt for prompt, _ in texts_of(trainer, output)]
    main = {p: [x for q, x in zip(asked, own_ids, strict=True) if q == p] for p in right}
    for i in range(0, len(ids), 3):
        candidates = [x[:b] for x in main[prompts[i]] for b in (0, 3, 6) if b < len(x)]
        assert any(all(y[: len(c)] == c for y in ids[i : i + 3]) for c in candidates)


def test_values_are_means_of_rollouts_and_the_own_reward_ends_the_chain(make_trainer):
    calls = []

    def reward(completions, **kwargs):  # the responses themselves come first
        calls.append(len(completions))
        return [0.75 if len(calls) == 1 else 0.25 * (i % 3) for i in range(len(completions))]

    trainer = make_trainer(**CHAIN, reward_funcs=reward, segmentation="fixed_length", segment_length=3)
    output = generation_batch(trainer)
    lengths = output["completion_mask"].sum(1).tolist()
    for row, n in enumerate(lengths):  # every state is worth (0 + .25 + .5)/3 = .25, so only the last segment gains
        boundaries = [b for b in range(0, n, 3) if b < n - 1 or n == 1]
        expected = [0.5 if t >= boundaries[-1] and t < n else 0.0 for t in range(output["completion_ids"].size(1))]
        assert output["advantages"][row].tolist() == pytest.approx(expected)
        ids = output["segment_ids"][row].tolist()
        assert ids[:n] == [sum(b <= t for b in boundaries) - 1 for t in range(n)] and set(ids[n:]) <= {-1}


def test_equal_prefixes_share_their_rollouts(make_trainer):
    trainer = make_trainer(**CHAIN, segmentation="fixed_length", segment_length=100, max_completion_length=101)
    trainer.args.max_completion_length = trainer.max_completion_length = 8
    calls = engine_calls(trainer)
    trainer.train()
    assert calls[1] == (2 * 3, 8)  # two prompts with four responses each: one state per prompt
    assert steps_of(trainer)[0]["credit/rollouts_saved"] == (8 - 2) * 3


def test_the_initial_value_is_free_from_the_group(make_trainer):
    trainer = make_trainer(**CHAIN, segmentation="fixed_count", num_segments=1, initial_value="group")
    calls = engine_calls(trainer)
    output = generation_batch(trainer)
    assert len(calls) == 1
    texts = [text for _, text in texts_of(trainer, output)]
    rewards = torch.tensor([sum(c in "abc" for c in text[:4]) / 4 for text in texts]).view(-1, 4)
    others = (rewards.sum(1, keepdim=True) - rewards) / 3
    torch.testing.assert_close(output["advantages"][:, 0], (rewards - others).flatten())


def test_certain_states_get_no_rollouts(make_trainer):
    settings = {**CHAIN, "segmentation": "fixed_length", "segment_length": 1}
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
        first_known = known[row].nonzero().flatten().tolist()
        first_known = first_known[0] if first_known else last[row]
        assert not output["advantages"][row, first_known : last[row]].any()


def test_states_beyond_the_cap_are_worth_the_own_reward(make_trainer):
    trainer = make_trainer(**CHAIN, segmentation="fixed_length", segment_length=1, max_valued_steps=2)
    output = generation_batch(trainer)
    lengths = output["completion_mask"].sum(1).tolist()
    assert max(lengths) > 5
    for row, n in enumerate(lengths):
        assert not output["advantages"][row, 3:n].any()


def test_what_did_not_end_can_have_a_fixed_value(make_trainer):
    trainer = make_trainer(**CHAIN, segmentation="fixed_count", num_segments=1, truncated_value=-7.0)
    output = generation_batch(trainer)
    ended = (output["completion_ids"] == 1).any(1)
    own = output["advantages"].sum(1) / output["completion_mask"].sum(1)
    assert ended.any() or (~ended).any()
    # A = R − V with R = −7 where the response did not end, and V a mean of −7s and of rewards between 0 and 1
    assert (own[~ended] <= 1e-6).all() and (own[ended] >= 0).any() == ended.any()


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


# The estimator, against enumeration


@pytest.fixture(scope="module")
def enumerable(tmp_path_factory):
    """A model of six tokens, and the exact value of every prefix of at most three, by enumeration."""
    folder = str(tmp_path_factory.mktemp("enumerable"))
    tokenizer = make_tokenizer("abc")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(3)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=32,
            eos_token_id=1,
            pad_token_id=0,
            bos_token_id=None,
            initializer_range=0.6,
        )
    ).eval()
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


# Trees through the trainer


def test_a_tree_of_one_level_is_grpo_to_the_last_bit(make_trainer, tmp_path):
    def distinct(completions, **kwargs):  # no advantage of 0, which would be a row less
        return [sum((i + 1) * ord(c) for i, c in enumerate(text)) % 97 / 97 for text in completions]

    common = {
        "reward_funcs": distinct,
        "loss_type": "dapo",
        "beta": 0.04,
        "scale_rewards": "none",
        "max_steps": 3,
        "num_generations": 4,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "temperature": 1.3,
    }
    plain = make_trainer(**common, output_dir=str(tmp_path / "plain"))
    plain.train()
    tree = make_trainer(**common, rollouts="tree", tree_branching=[4], output_dir=str(tmp_path / "tree"))
    tree.train()
    left, right = steps_of(plain), steps_of(tree)
    assert all(row["credit/rows_missing"] == 0 for row in right)
    for a, b in zip(left, right, strict=True):
        for name in ("loss", "grad_norm", "reward", "reward_std", "completions/mean_length", "kl"):
            assert a[name] == b[name], name
        assert b["credit/rows"] == 8
    for name, p in plain.model.named_parameters():
        assert torch.equal(p, tree.model.get_parameter(name)), name


def gradients(trainer, output):
    """Of the loss over a whole generation batch in micro-batches, as a training step adds them up."""
    trainer.model.train()
    trainer.model.zero_grad()
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation
    size = trainer.args.per_device_train_batch_size
    for i in range(trainer.args.steps_per_generation):
        part = {
            k: v[i * size : (i + 1) * size] if isinstance(v, torch.Tensor) and v.dim() else v for k, v in output.items()
        }
        trainer.compute_loss(trainer.model, part).backward()
    return {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("knobs", [{}, {"token_mask": "probability"}, {"beta": 0.05}], ids=str)
def test_all_forms_of_rows_have_one_gradient(make_trainer, knobs, monkeypatch):
    found = {}
    one_row = functools.partial(packed_rows, max_rows=1)
    monkeypatch.setattr(forest, "packed_rows", lambda tree, max_rows, **given: one_row(tree, **given))
    for form in ("nodes", "paths", "packed"):
        settings = {**TREE, "tree_branching": [3, 2, 2], "tree_segment_length": 2, "per_device_train_batch_size": 64}
        trainer = make_trainer(**{**settings, "num_generations": 32}, tree_rows=form, **knobs)
        trainer.model.double()
        if trainer.ref_model is not None:
            trainer.ref_model.double()
            with torch.no_grad():
                for p in trainer.ref_model.parameters():
                    p.mul_(0.9)
        torch.manual_seed(11)
        output = generation_batch(trainer)
        rows = (output["tool_mask"].sum(1) > 0).sum().item()
        found[form] = rows, output["num_items_in_batch"].item(), gradients(trainer, output)
    (n_rows, n_items, nodes), (p_rows, p_items, paths) = found["nodes"], found["paths"]
    (k_rows, k_items, packed) = found["packed"]
    assert 1 <= k_rows <= 2 < p_rows < n_rows < 64 and n_items == p_items == k_items
    scale = max(g.abs().max().item() for g in nodes.values())
    assert scale > 1e-6
    for name, g in nodes.items():
        torch.testing.assert_close(paths[name], g, rtol=1e-6, atol=1e-6 * scale)
        torch.testing.assert_close(packed[name], g, rtol=1e-6, atol=1e-6 * scale)


def test_rows_hold_the_nodes_that_were_grown(make_trainer):
    trainer = make_trainer(**{**TREE, "per_device_train_batch_size": 32, "num_generations": 16})
    grown = []
    new_rows = trainer.forest._new_rows
    trainer.forest._new_rows = lambda trees: grown.extend(trees) or new_rows(trees)
    output = generation_batch(trainer)
    nodes = {}
    for tree in grown:
        for node in tree.root.walk()[1:]:
            prefix = tuple(tree.prompt_ids + node.parent.written())
            nodes.setdefault((prefix, tuple(node.segment.ids)), []).append(node.advantage)
    credited = [k for k, a in nodes.items() if any(a)]
    masks = output["tool_mask"].sum(1)
    assert (masks > 0).sum() == sum(sum(x != 0 for x in a) for a in nodes.values()) and credited
    for row in range(32):
        prompt = tuple(output["prompt_ids"][row][output["prompt_mask"][row].bool()].tolist())
        segment = tuple(output["completion_ids"][row][output["completion_mask"][row].bool()].tolist())
        advantage = output["advantages"][row][: len(segment)].tolist()
        if masks[row] > 0:
            assert len(set(advantage)) == 1 and any(a == pytest.approx(advantage[0]) for a in nodes[prompt, segment])
        else:
            assert not any(advantage)


def test_logged_responses_of_a_tree_are_whole(make_trainer):
    trainer = make_trainer(**TREE, log_completions=True, num_completions_to_print=0, max_steps=1)
    trainer.train()
    row = steps_of(trainer)[0]
    texts, rewards = list(trainer._logs["completion"]), list(trainer._logs["rewards"]["count_a"])
    assert len(texts) == len(rewards) == len(trainer._logs["advantages"]) == len(trainer._logs["prompt"]) == 16
    assert rewards == [pytest.approx(sum(c in "abc" for c in text[:4]) / 4) for text in texts]
    assert row["reward"] == pytest.approx(sum(rewards) / 16)
    assert row["completions/max_length"] > 3  # longer than a segment of an inner level


def test_an_empty_buffer_skips_the_update_and_says_so(make_trainer, caplog):
    trainer = make_trainer(
        **{**TREE, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 8},
        reward_funcs=lambda completions, **kwargs: [1.0] * len(completions),
        weight_decay=0.5,
        max_steps=3,
    )
    # momentum from an earlier step, which a gradient of zeros would act on
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.create_optimizer()
    for p in trainer.model.parameters():
        p.grad = torch.ones_like(p) * 1e-3
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    moved = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    assert any(not torch.equal(moved[name], before[name]) for name in moved)
    with caplog.at_level("WARNING"):
        trainer.train()
    assert trainer.state.global_step == 3
    assert all(torch.equal(p, moved[name]) for name, p in trainer.model.named_parameters())
    assert "no segment of this generation batch has an advantage" in caplog.text
    assert all(row["credit/rows"] == 0 and row["credit/rows_missing"] == 1 for row in steps_of(trainer))


@pytest.mark.parametrize("form", ["nodes", "paths", "packed"])
def test_replayed_rows_keep_the_policy_that_sampled_them(make_trainer, form):
    trainer = make_trainer(
        tree_rows=form,
        **{**TREE, "num_generations": 4, "per_device_train_batch_size": 8},
        replay_iterations=4,
        replay_cap=2,
        learning_rate=3e-2,
        max_steps=4,
        token_mask="probability",
    )
    plans = []
    plan = trainer.forest.plan
    trainer.forest.plan = lambda inputs: plans.append(plan(inputs)) or plans[-1]
    kept = batches(trainer)
    trainer.train()
    for row, logp in zip(plans[0].rows[: plans[0].n_real], kept[0]["old_per_token_logps"], strict=False):
        # what is stored with a new row is what TRL computes for it
        assert row.behavior_logps == pytest.approx(logp[: len(row.completion_ids)].tolist(), abs=1e-5)
    rows = steps_of(trainer)
    assert rows[0]["credit/replay/age"] == 0 and max(row["credit/replay/age"] for row in rows) > 0
    # under the weights of the end, rows of the last batch that are new fit π_old less the further the weights moved
    last = kept[-1]
    with torch.no_grad():
        now = trainer._behavior_logps(last)
    mask = last["completion_mask"] * last["tool_mask"]
    gaps = ((now - last["old_per_token_logps"]).abs() * mask).amax(1)[mask.sum(1) > 0]
    assert gaps.max() > 0.05
    first = kept[0]
    kept_tokens = probability_mask(
        first["old_per_token_logps"], threshold=0.9, mask_t=first["completion_mask"] * first["tool_mask"]
    )
    assert first["num_items_in_batch"] == kept_tokens.sum()


def test_resuming_with_replay_is_going_on(make_trainer, tmp_path):
    settings = {
        **TREE,
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "replay_iterations": 4,
        "replay_cap": 3,
        "difficulty": "history",
        "save_strategy": "steps",
        "save_steps": 2,
        "max_steps": 5,
    }
    whole = make_trainer(**settings, output_dir=str(tmp_path / "whole"))
    whole.train()
    checkpoint = tmp_path / "whole" / "checkpoint-2"
    assert {"replay.safetensors", "credit_state.json"} <= {p.name for p in checkpoint.iterdir()}
    resumed = make_trainer(**settings, output_dir=str(tmp_path / "resumed"))
    resumed.train(resume_from_checkpoint=str(checkpoint))
    for name, p in whole.model.named_parameters():
        assert torch.equal(p, resumed.model.get_parameter(name)), name
    (checkpoint / "replay.safetensors").unlink()
    with pytest.raises(ValueError, match="replay buffer"):
        make_trainer(**settings).train(resume_from_checkpoint=str(checkpoint))
    save_file({"x": torch.zeros(1)}, checkpoint / "replay.safetensors")
    with pytest.raises(ValueError, match="replay buffer"):
        make_trainer(**settings).train(resume_from_checkpoint=str(checkpoint))


def test_one_seed_one_run(make_trainer):
    for settings in (CHAIN, {**TREE, "replay_iterations": 3, "replay_cap": 2}):
        histories = []
        for _ in range(2):
            trainer = make_trainer(**settings, max_steps=3)
            trainer.train()
            histories.append([(row["loss"], row["grad_norm"], row["reward"]) for row in steps_of(trainer)])
        assert histories[0] == histories[1]


# Composition


@pytest.mark.parametrize("base", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize(
    "knobs",
    [
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
        {"process_reward_weight": 5.0},
        {"process_reward_weight": 5.0, "process_reward_form": "value"},
        {"loss_weight": "trace_past", "advantage_floor": -0.1},
        {"num_iterations": 2, "steps_per_generation": 2, "beta": 0.01},
        {"tree_rows": "paths", "num_iterations": 2, "beta": 0.01},
        {"tree_rows": "packed", "steps_per_generation": 2, "beta": 0.01, "token_mask": "probability"},
        {"tree_rows": "packed", "policy_loss": "policy_iteration", "beta": 0.1},
    ],
    ids=str,
)
def test_segments_compose(make_trainer, base, knobs):
    trainer = make_trainer(**{**base, **knobs}, max_steps=3)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    assert any(not torch.equal(before[name], p) for name, p in trainer.model.named_parameters())
    values = [v for row in steps_of(trainer) for v in row.values() if isinstance(v, float)]
    assert values and all(map(math.isfinite, values))


def test_difficulty_weighs_segments(make_trainer):
    settings = {**CHAIN, "segmentation": "fixed_length", "segment_length": 3, "temperature": 1.3}
    found = []
    for knobs in ({}, {"difficulty": "fixed", "difficulty_threshold": 0.3}):
        trainer = make_trainer(**settings, **knobs)
        torch.manual_seed(5)
        found.append((trainer, generation_batch(trainer)))
    (trainer, plain), (_, weighted) = found
    assert torch.equal(plain["completion_ids"], weighted["completion_ids"])
    rewards = torch.tensor([sum(c in "abc" for c in text[:4]) / 4 for _, text in texts_of(trainer, plain)])
    p_hat = rewards.view(-1, 4).mean(1).repeat_interleave(4).unsqueeze(1)
    phi = 1.3 * torch.exp(-plain["advantages"].sign() * (p_hat - 0.3))
    torch.testing.assert_close(weighted["advantages"], plain["advantages"] * phi)


def test_evaluation_is_of_plain_responses(make_trainer):
    for settings in (CHAIN, TREE):
        trainer = make_trainer(
            **settings,
            per_device_eval_batch_size=8,
            num_generations_eval=4,
            trainer_kwargs={"eval_dataset": Dataset.from_dict({"prompt": ["1+1="] * 2, "answer": ["2"] * 2})},
        )
        calls = engine_calls(trainer)
        metrics = trainer.evaluate()
        assert len(calls) == 1 and "eval_reward" in metrics and math.isfinite(metrics["eval_loss"])


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


# Bad input


def test_a_reward_that_is_no_number_stops_before_any_update(make_trainer):
    def fails_on_rollouts(kind):
        calls = []

        def picky(prompts, completions, **kwargs):
            calls.append(len(completions))
            if len(calls) == 1:
                return [1.0] * len(completions)
            if kind == "raise":
                raise KeyError("no such column")
            return [1.0] * (len(completions) - 1) + [kind]

        return picky

    for kind in (math.nan, math.inf, "raise"):
        trainer = make_trainer(**CHAIN, reward_funcs=fails_on_rollouts(kind))
        before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
        with pytest.raises((ValueError, RuntimeError)) as caught:
            trainer.train()
        assert "picky" in str(caught.value) and any(f"{i}+" in str(caught.value) for i in range(10))
        assert all(torch.equal(p, before[name]) for name, p in trainer.model.named_parameters())


def test_unscored_rollouts_are_left_out(make_trainer):
    def sometimes(completions, **kwargs):
        return [None if i % 3 == 2 else float(i % 3) for i in range(len(completions))]

    for settings in ({**CHAIN, "segmentation": "fixed_length", "segment_length": 3}, TREE):
        output = generation_batch(make_trainer(**settings, reward_funcs=sometimes))
        assert output["advantages"].isfinite().all() and output["advantages"].any()
    nothing = make_trainer(**CHAIN, reward_funcs=lambda completions, **kwargs: [None] * len(completions))
    assert not generation_batch(nothing)["advantages"].any()


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


def test_the_model_card_names_the_paper(make_trainer, tmp_path):
    trainer = make_trainer("spo_tree", max_steps=1, tree_segment_length=2, output_dir=str(tmp_path / "card"))
    trainer.create_model_card(model_name="card")
    card = (Path(tmp_path) / "card" / "README.md").read_text()
    assert "2505.23564" in card and "Segment Policy Optimization" in card
    assert json.loads(json.dumps(trainer.args.to_dict()))["tree_branching"] == [2, 2, 2]


def test_a_batch_without_a_boundary_says_so(make_trainer, caplog):
    trainer = make_trainer(**CHAIN, token_mask="probability", probability_threshold=1e-9)
    calls = engine_calls(trainer)
    with caplog.at_level("WARNING"):
        output = generation_batch(trainer)
    assert "no boundary" in caplog.text and "probability_threshold" in caplog.text
    assert len(calls) == 1 and not output["advantages"].any()
    trainer.current_gradient_accumulation_steps = 1
    assert trainer.compute_loss(trainer.model, output).item() == 0.0  # its normaliser would be 0


# Engines that are not here: what they are asked for


class RecordingEngine:
    """Stands where TRL has its vLLM, keeps every call, and answers with token ids that end at once."""

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
            return [(prompt, p.n, p.max_tokens) for prompt, p in zip(prompts, sampling_params, strict=True)]
        # TRL's wrapper, which sleeps after every call if it may
        if self.enable_sleep_mode and self._llm_weights_sleeping:
            self.sync_weights()
        if self.mode == "server":
            asked = [(p, num_generations, self.max_completion_length) for p in prompts[::num_generations]]
        else:
            asked = self.llm.generate(prompts, sampling_params=Sampling())
        self.log.append(("generate", [(len(p), n, limit) for p, n, limit in asked]))
        if self.enable_sleep_mode:
            self.sleep(2)
            self._llm_weights_sleeping = True
        ids = [self.answer[:limit] for _, n, limit in asked for _ in range(n)]
        logps = [[[None if i == self.unknown_at else -0.5] for i in range(len(x))] for x in ids]
        return prompts, ids, logps, None


class Sampling:
    n, max_tokens = 1, 8

    def clone(self):
        return Sampling()


def with_engine(trainer, engine):
    engine_class_methods = engine.generate
    if engine.mode == "colocate":  # as TRL calls it: one request per prompt, all with one set of parameters

        def generate(prompts, *args, sampling_params=None, **kwargs):
            if isinstance(sampling_params, Sampling):
                sampling_params = [sampling_params] * len(prompts)
            return engine_class_methods(prompts, *args, sampling_params=sampling_params, **kwargs)

        engine.generate = generate
    trainer.use_vllm, trainer.vllm_generation, trainer._last_loaded_step = True, engine, -1
    trainer.vllm_mode = engine.mode
    trainer.vllm_importance_sampling_correction = False
    return trainer


@pytest.mark.parametrize("sleeping", [False, True])
def test_the_engine_is_synced_once_and_awake_for_all_calls_of_a_batch(make_trainer, sleeping):
    for settings, calls in ((CHAIN, 2), ({**TREE, "tree_branching": [2, 2], "tree_segment_length": 1}, 2)):
        engine = RecordingEngine(sleeping=sleeping)
        trainer = with_engine(make_trainer(**settings), engine)
        generation_batch(trainer)
        names = [entry if isinstance(entry, str) else entry[0] for entry in engine.log]
        inner = ["generate"] * calls
        assert names == (["sync", "wake kv_cache", *inner, "sleep"] if sleeping else ["sync", *inner])
        assert engine._llm_weights_sleeping == sleeping and engine.enable_sleep_mode == sleeping


def test_a_prefix_is_one_request_with_its_own_budget(make_trainer):
    engine = RecordingEngine()
    trainer = with_engine(make_trainer(**CHAIN, segmentation="fixed_length", segment_length=1), engine)
    output = generation_batch(trainer)
    (_, first), (_, second) = [entry for entry in engine.log if entry != "sync"]
    assert first == [(4, 1, 8)] * 8
    # [3, 4, 1] from every prompt: s_0 and s_1 of each of two prompts, the end token beginning no segment
    assert sorted(second) == [(4, 3, 8), (4, 3, 8), (5, 3, 7), (5, 3, 7)]
    assert output["advantages"].shape == (8, 3)


def test_a_server_gets_equal_blocks_of_repeated_prefixes(make_trainer):
    engine = RecordingEngine(mode="server")
    trainer = with_engine(make_trainer(**CHAIN, segmentation="fixed_length", segment_length=1), engine)
    generation_batch(trainer)
    (_, first), (_, second) = [entry for entry in engine.log if entry != "sync"]
    assert first == [(4, 4, 8)] * 2
    assert sorted(second) == [(4, 3, 8), (4, 3, 8), (5, 3, 8), (5, 3, 8)]  # one limit for all: the rest is cut off
    assert engine.max_completion_length == 8 and trainer.num_generations == 4  # as they were


@pytest.mark.parametrize("form", ["nodes", "paths", "packed"])
@pytest.mark.parametrize("mode", ["sequence_mask", "token_truncate"])
def test_engine_log_probabilities_travel_with_the_rows(make_trainer, tmp_path, form, mode):
    engine = RecordingEngine(unknown_at=1)
    settings = {
        **TREE,
        "tree_branching": [2, 2, 2],
        "tree_segment_length": 1,
        "replay_iterations": 3,
        "tree_rows": form,
    }
    trainer = with_engine(make_trainer(**settings, replay_cap=1), engine)
    trainer.vllm_importance_sampling_correction, trainer.vllm_importance_sampling_mode = True, mode
    trainer.vllm_importance_sampling_clip_min, trainer.vllm_importance_sampling_clip_max = 0.0, 1e9
    rng = iter(range(10**6))
    trainer.reward_funcs = [lambda completions, **kwargs: [next(rng) % 7 / 7 for _ in completions]]
    plans = []
    plan = trainer.forest.plan
    trainer.forest.plan = lambda inputs: plans.append(plan(inputs)) or plans[-1]
    outputs = [generation_batch(trainer) for _ in range(2)]
    trainer.forest.buffer.save(tmp_path / "replay.safetensors")  # with what the engine did not know
    assert plans[1].has_replayed
    for output, planned in zip(outputs, plans, strict=True):
        ids, sampling = output["segment_ids"], output["sampling_per_token_logps"]
        old, ratio = output["old_per_token_logps"], output["importance_sampling_ratio"]
        assert (ids >= 0).any() and set(sampling[ids >= 0].nan_to_num(7.0).tolist()) == {-0.5, 7.0}
        assert (old[ids >= 0] < 0).all()  # no 0 in the place of what is not known
        for row, made in enumerate(planned.rows):
            for k in range(int(ids[row].max()) + 1):
                inside = ids[row] == k
                difference = (old[row] - sampling[row])[inside].nan_to_num()
                if made.birth < planned.iteration:
                    assert (ratio[row][inside] == 1).all()
                    known = ~sampling[row][inside].isnan()
                    assert (old[row][inside][known] == -0.5).all()
                elif mode == "sequence_mask":
                    torch.testing.assert_close(ratio[row][inside], difference.sum().exp().expand(inside.sum()))
                else:
                    torch.testing.assert_close(ratio[row][inside], difference.exp())


def test_a_response_cut_by_the_context_did_not_end(make_trainer):
    engine = RecordingEngine(answer=[3, 4, 5])
    trainer = with_engine(
        make_trainer(**CHAIN, segmentation="fixed_count", num_segments=1, truncated_value=-7.0), engine
    )
    trainer.args.vllm_max_model_length = 4 + 3  # a prompt has four tokens
    output = generation_batch(trainer)
    assert not output["advantages"].any()  # −7 − (−7), and no reward of the response's own


@pytest.mark.parametrize("settings", [CHAIN, TREE], ids=["chain", "tree"])
def test_rewards_of_any_size(make_trainer, settings):
    def signs(completions, **kwargs):
        return [3.0 if "a" in text else -1.0 for text in completions]

    trainer = make_trainer(**settings, reward_funcs=signs, truncated_value=-2.0, temperature=1.5)
    trainer.train()
    assert any(row["grad_norm"] > 0 for row in steps_of(trainer))
    with pytest.raises(ValueError, match="reward_range"):
        make_trainer(**settings, reward_funcs=signs, process_reward_weight=1.0).train()


def test_the_free_initial_value_counts_what_did_not_end_alike(make_trainer):
    trainer = make_trainer(
        **CHAIN, segmentation="fixed_count", num_segments=1, initial_value="group", truncated_value=-3.0
    )
    output = generation_batch(trainer)
    ended = (output["completion_ids"] == 1).any(1)
    assert ended.any() and not ended.all()
    texts = [text for _, text in texts_of(trainer, output)]
    own = torch.tensor([sum(c in "abc" for c in text[:4]) / 4 for text in texts]).where(ended, -3.0)
    grouped = own.view(-1, 4)
    others = ((grouped.sum(1, keepdim=True) - grouped) / 3).flatten()
    torch.testing.assert_close(output["advantages"][:, 0], own - others)


def test_policy_iteration_without_a_segment(make_trainer):
    settings = {"policy_loss": "policy_iteration", "beta": 0.1, "mask_truncated_completions": True}
    trainer = make_trainer(
        **CHAIN, **settings, max_completion_length=2, generation_kwargs={"suppress_tokens": [0, 1]}, max_steps=1
    )
    trainer.train()
    assert steps_of(trainer)[0]["loss"] == 0.0


def test_a_splitter_that_returns_anything_else_stops_the_run(make_trainer, tmp_path):
    (tmp_path / "bad.py").write_text("def split(text):\n    return [len(text), 0]\n")
    trainer = make_trainer(**CHAIN, segmentation="steps", step_splitter=f"{tmp_path}/bad.py:split")
    with pytest.raises(TypeError, match="ascending offsets"):
        trainer.train()


# π_old from the engine


def passes(trainer):
    """Counts forward passes of the model."""
    calls = []
    trainer.model.register_forward_pre_hook(lambda *args: calls.append(1))
    return calls


@pytest.mark.parametrize("correction", [False, True])
@pytest.mark.parametrize("aligned", [False, True])
def test_the_engines_log_probabilities_as_behavior_policy(make_trainer, correction, aligned):
    found = {}
    for kind in ("recomputed", "sampler"):
        trainer = make_trainer("s_trace", beta=0.1, num_iterations=1 if aligned else 2)
        trainer.args.behavior_logps = kind
        trainer = with_engine(trainer, RecordingEngine())
        trainer.vllm_importance_sampling_correction = correction
        calls = passes(trainer)
        found[kind] = generation_batch(trainer), len(calls)
    recomputed, sampler = found["recomputed"], found["sampler"]
    mask = sampler[0]["completion_mask"].bool()
    assert (sampler[0]["old_per_token_logps"][mask] == -0.5).all()
    assert sampler[1] == 0  # the reference is another model
    assert recomputed[1] == (0 if aligned and not correction else 1)
    torch.testing.assert_close(sampler[0]["ref_per_token_logps"], recomputed[0]["ref_per_token_logps"])
    if correction:
        assert (sampler[0]["importance_sampling_ratio"] == 1).all()
        assert (recomputed[0]["importance_sampling_ratio"] != 1).any()


@pytest.mark.parametrize("correction", [False, True])
def test_what_the_engine_does_not_know_is_computed(make_trainer, correction):
    trainer = make_trainer("s_trace", beta=0.0)
    trainer.args.behavior_logps = "sampler"
    trainer = with_engine(trainer, RecordingEngine(unknown_at=1))
    trainer.vllm_importance_sampling_correction = correction
    calls = passes(trainer)
    output = generation_batch(trainer)
    assert len(calls) == 1
    old = output["old_per_token_logps"]
    assert (old[:, 0] == -0.5).all() and (old[:, 1] < -0.5).any() and old.isfinite().all()


def test_the_engines_log_probabilities_need_an_engine(make_trainer):
    with pytest.raises(ValueError, match="use_vllm=True"):
        make_trainer(behavior_logps="sampler")


@pytest.mark.parametrize("importance", ["token", "sequence", "sequence_token", "eligible", "lambda_trace"])
def test_the_correction_for_the_engine_composes_with_every_weight(make_trainer, toy_loss, importance):
    """A ratio that is the same for all tokens of a row scales that row's loss and gradient, whatever the weight."""
    t = {
        "logps": (-2 * torch.rand(2, 5, dtype=torch.float64)).requires_grad_(),
        "advantages": torch.tensor([1.0, -0.5], dtype=torch.float64),
    }
    t["old"] = t["logps"].detach() + 0.1
    trainer = make_trainer("base", importance=importance, loss_type="grpo")
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = True

    def run(ratio):
        inputs = toy_inputs(
            torch.ones(2, 5, dtype=torch.long),
            advantages=t["advantages"],
            old_per_token_logps=t["old"],
            importance_sampling_ratio=torch.tensor(ratio, dtype=torch.float64).unsqueeze(1),
        )
        loss = toy_loss(trainer, inputs, logps=t["logps"], entropies=torch.ones(2, 5, dtype=torch.float64))
        return torch.autograd.grad(loss, t["logps"])[0]

    torch.testing.assert_close(run([0.5, 3.0]), run([1.0, 1.0]) * torch.tensor([[0.5], [3.0]]), rtol=1e-12, atol=0)
