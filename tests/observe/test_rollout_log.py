"""The rollout log: credit against closed forms, groups, resumes, equal training; files and token texts."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from byte_tokenizers import byte_tokenizer
from segment_helpers import TREE
from tokenizers import Tokenizer, decoders, models
from trace_helpers import trace_matrix
from transformers import PreTrainedTokenizerFast

import trl_credit
from trl_credit.observe import schema
from trl_credit.observe.log_entries import origin_of
from trl_credit.observe.schema import Shard, gold_answer, read_shard, remove_after, shard_path, steps, write_shard
from trl_credit.observe.token_texts import TokenTexts


def shards(trainer):
    return {step: read_shard(path) for step, path in steps(trainer.args.output_dir)}


def logged(trained, algo, **settings):
    """The responses of all shards of a run of 4 steps, with the trainer."""
    trainer = trained(algo, log_credit=1, **{"max_steps": 4, "learning_rate": 3e-3, **settings})
    entries = [(shard.header, row) for shard in shards(trainer).values() for row in shard.responses]
    assert entries
    return trainer, entries


def jacobian(args, row):
    """∂W_t/∂ℓ_k, (T, T), of what the papers say of W; without tool tokens."""
    own = torch.eye(len(row["tokens"]), dtype=torch.float64)
    trace = trace_matrix(len(own), args.trace_decay, args.trace_style)
    if args.importance == "eligible":
        left = torch.ones(len(own)) if row["selected"] is None else torch.tensor(row["selected"])
        return own + (trace - own) * left
    return trace if args.importance == "lambda_trace" else own


def closed_form(args, row):
    """Σ_t exp(W_t) A_t M_t [not clipped] ∂W_t/∂ℓ_k."""
    names = ("advantages", "log_weight", "policy_mask", "is_clipped")
    a, w, kept, clipped = (torch.tensor(row[name], dtype=torch.float64) for name in names)
    return (w.exp() * a * kept * (1 - clipped)) @ jacobian(args, row)


def check_closed_form(args, entries):
    clipped = 0
    for _, row in entries:
        expected = closed_form(args, row)
        torch.testing.assert_close(torch.tensor(row["credit"], dtype=torch.float64), expected, rtol=2e-4, atol=2e-5)
        clipped += sum(row["is_clipped"])
    assert any(any(row["credit"]) for _, row in entries)
    return clipped


# two micro-batches a step, two steps a pass, two passes a batch: every divisor and weight away from 1
OFF_POLICY = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
OFF_POLICY |= {"steps_per_generation": 4, "num_iterations": 2}


CORRECTED = {"beta": 0.5, "use_bias_correction_kl": True}
MOSTLY = "clip_cov dapo dr_grpo grpo gspo gspo_token opd opo p_trace rlsd vine_ppo".split()  # slow
OF_THE_KNOBS = sorted(trl_credit.ALGORITHMS.keys() - {"kl_cov", "sdpo"})  # whose loss is not their own
HOOKED = {"gradient_checkpointing": True, "max_grad_norm": 1e-3}  # which must not run a hook twice


PRESETS = [
    *(pytest.param(algo, {}, marks=[pytest.mark.slow] * (algo in MOSTLY)) for algo in OF_THE_KNOBS),
    *((algo, CORRECTED) for algo in ("base", "gspo", "gspo_token")),
    ("s_trace", HOOKED),
]


@pytest.mark.parametrize(("algo", "settings"), PRESETS, ids=str)
def test_credit_of_every_preset_is_its_closed_form_apart_from_the_kl_term(trained, algo, settings):
    common = {"beta": 0.05, "epsilon": 0.02, "epsilon_high": 0.02, **OFF_POLICY}
    trainer, entries = logged(trained, algo, **common | settings)
    assert check_closed_form(trainer.args, entries) > 0
    assert max(abs(x) for _, row in entries for x in row["kl_credit"]) > (1e-3 if settings == CORRECTED else 0)
    assert any(w for _, row in entries for w in row["log_weight"])


def test_tokens_that_the_entropy_quantile_leaves_out(trained):
    trainer, entries = logged(trained, "base", top_entropy_quantile=0.5, entropy_coef=0.1, max_steps=1)
    check_closed_form(trainer.args, entries)
    kept = [m for _, row in entries for m in row["policy_mask"]]
    assert 0 < sum(kept) < len(kept)


SAME = [("spo_chain", {"rollouts_per_state": 2, "rollout_batch_size": 6}), ("base", {**TREE, "replay_iterations": 4})]


@pytest.mark.slow
@pytest.mark.parametrize("algo, settings", SAME, ids=str)
def test_training_is_the_same_to_the_last_bit(trained, tmp_path, algo, settings):
    states = []
    for every in (0, 1):
        folder = str(tmp_path / f"run{every}")
        trainer = trained(algo, log_credit=every, max_steps=3, output_dir=folder, **settings)
        states.append([*trainer.model.state_dict().values(), torch.get_rng_state()])
    assert shards(trainer)
    assert all(torch.equal(left, right) for left, right in zip(*states, strict=True))


STEPS = [
    ((1, 4, 1), 2, {2: [1, 4]}),
    ((4, 2, 1), 3, {3: [3, 3], 6: [6, 6]}),  # two batches in every step
    ((2, 3, 1), 1, {1: [1, 2], 2: [2, 3], 4: [4, 5], 5: [5, 6]}),  # a step that two batches take part in
]


@pytest.mark.slow
@pytest.mark.parametrize("sizes, every, expected", STEPS, ids=str)
def test_which_rows_a_step_holds(make_trainer, sizes, every, expected):
    accumulation, generation, iterations = sizes
    shape = {"gradient_accumulation_steps": accumulation, "steps_per_generation": generation}
    shape |= {"num_iterations": iterations, "max_steps": 4 if sizes == (1, 4, 1) else 6}
    logs = {"log_credit": every, "log_credit_groups": 3}
    trainer = make_trainer("base", per_device_train_batch_size=4, **shape, **logs)
    trainer.train()
    by_step = shards(trainer)
    assert {step: shard.header["steps"] for step, shard in by_step.items()} == expected
    for shard in by_step.values():
        groups = min(3, generation)
        assert (shard.header["groups_total"], shard.header["groups_logged"]) == (generation, groups)
        assert [(r["group"], r["index"]) for r in shard.responses] == [(g, i) for g in range(groups) for i in range(4)]
        for g in range(groups):
            rows = shard.responses[4 * g : 4 * g + 4]
            assert len({row["prompt"] for row in rows}) == 1
            rewards = torch.tensor([row["reward"] for row in rows])
            expected_a = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
            assert [row["advantages"][0] for row in rows] == pytest.approx(expected_a.tolist(), abs=1e-5)


def test_a_run_that_ends_inside_a_pass_logs_no_part_of_a_group(trained):
    max_steps = 6
    sizes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "steps_per_generation": 4}
    trainer = trained("base", log_credit=5, max_steps=max_steps, **sizes)
    for shard in shards(trainer).values():
        assert shard.header["steps"] == [5, max_steps] and 0 < shard.header["groups_logged"] < 4
        places = {(row["group"], row["index"]) for row in shard.responses}
        assert places == {(group, i) for group, _ in places for i in range(4)}


def test_a_run_that_is_shorter_than_the_interval_logs_its_last_step(make_trainer, tmp_path):
    settings = {"log_credit": 20, "save_strategy": "steps", "save_steps": 1}
    make_trainer("s_trace", max_steps=3, **settings).train()
    whole = shards(make_trainer("s_trace"))
    assert list(whole) == [3]
    again = make_trainer("s_trace", max_steps=3, **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert shards(again)[3].responses == whole[3].responses


def answer_of(prompt):
    """The answer that `make_trainer`'s data set has for a prompt such as 3+2=, row 23."""
    return str(int(prompt[2] + prompt[0]))


def test_an_entry_says_what_was_sampled(trained):
    trainer, entries = logged(trained, "s_trace", max_steps=1, mask_truncated_completions=True)
    tokenizer = trainer.processing_class
    cut_off = [row for _, row in entries if row["truncated"]]
    assert cut_off and len(cut_off) < len(entries)
    for header, row in entries:
        assert header["algorithm"] == "S-trace" and header["settings"]["importance"] == "eligible"
        assert tokenizer.decode(row["token_ids"], skip_special_tokens=True) == row["completion"]
        assert tokenizer.decode(row["token_ids"]) == "".join(row["tokens"])
        assert row["rewards"] == {"count_a": row["reward"]} and row["prompt"].endswith("=")
        assert row["answer"] == answer_of(row["prompt"])
        assert row["reward"] == pytest.approx(sum(c in "abc" for c in row["completion"][:4]) / 4)
        assert row["loss_mask"] == [int(not row["truncated"])] * len(row["tokens"])
        assert len(row["tokens"]) == 8 or row["token_ids"][-1] == tokenizer.eos_token_id


def context_of_odd(row):
    return row["prompt"] + "7" if int(row["answer"]) % 2 else None


def test_what_a_teacher_finds_is_logged_where_it_has_a_context(trained):
    """OPD on-policy: A = group advantage + ℓᵀ − ℓ°."""
    settings = {"teacher": "policy", "teacher_prompt": context_of_odd, "mask_truncated_completions": True}
    _, entries = logged(trained, "opd", **settings)
    kinds = set()
    for _, row in entries:
        is_known = int(row["answer"]) % 2 == 1 and not row["truncated"]
        kinds.add((is_known, row["truncated"]))
        assert len(row["teacher_logprobs"]) == len(row["tokens"])
        assert [x is not None for x in row["teacher_logprobs"]] == [is_known] * len(row["tokens"])
        if is_known:
            gap_t = torch.tensor(row["teacher_logprobs"]) - torch.tensor(row["old_logprobs"])
            rest_t = torch.tensor(row["advantages"]) - gap_t
            assert (rest_t - rest_t[0]).abs().max() < 1e-4 < gap_t.abs().max()
    assert kinds == {(True, False), (False, False), (False, True)}


def test_values_of_a_chain(trained):
    _, entries = logged(trained, "spo_chain", rollouts_per_state=2, max_steps=2)
    several = 0
    for _, row in entries:
        values, ids = row["segment_values"], row["segment_ids"]
        assert len(values) == max(ids) + 2 and values[-1] == row["reward"]
        several += len(values) > 2
        for a, k in zip(row["advantages"], ids, strict=True):
            assert a == pytest.approx(0.0 if k < 0 else values[k + 1] - values[k], abs=1e-5)
    assert several


@pytest.mark.parametrize("form", ["nodes", "paths", "packed"])
def test_trees_and_their_rows(trained, form):
    mask = {"token_mask": "probability", "probability_threshold": 0.5} if form == "nodes" else {}
    trainer, _ = logged(trained, "base", **{**TREE, "tree_rows": form, **mask}, max_steps=2, log_credit_groups=1)
    for shard in shards(trainer).values():
        nodes = shard.trees[0]
        assert {row["answer"] for row in shard.responses} == {answer_of(shard.responses[0]["prompt"])}
        for node in nodes[1:]:
            children = [n for n in nodes if n["parent"] == node["parent"]]
            parent = nodes[node["parent"]]
            assert parent["value"] == pytest.approx(sum(n["value"] for n in children) / len(children), abs=1e-5)
            assert node["advantage"] == pytest.approx(node["value"] - parent["value"], abs=1e-5)
            assert (node["reward"] is None) == any(n["parent"] == node["id"] for n in nodes)
        trained = set()
        for row in shard.responses:
            for token, k in enumerate(row["segment_ids"]):
                if k >= 0:
                    trained.add(row["segment_nodes"][k])
                    assert row["advantages"][token] == pytest.approx(nodes[row["segment_nodes"][k]]["advantage"])
            if form != "packed":
                last = nodes[row["nodes"][-1]]
                text = "".join(nodes[i]["text"] for i in row["nodes"])
                assert (row["prompt"] + row["completion"]).endswith(text) and row["reward"] == last["reward"]
        assert trained == {n["id"] for n in nodes if n["trained"]} == {n["id"] for n in nodes if n["advantage"]}


def test_a_resume_removes_what_came_after_the_checkpoint(trained, tmp_path):
    settings = {"log_credit": 1, "save_strategy": "steps", "save_steps": 2}
    first = trained("s_trace", max_steps=4, **settings)
    before = shards(first)
    (tmp_path / "run" / "credit_log" / "step-00000009.jsonl").write_text("of an abandoned resume\n")
    again = trained("s_trace", max_steps=4, **settings, resume=str(tmp_path / "run" / "checkpoint-2"))
    after = shards(again)
    assert list(before) == list(after) == [1, 2, 3, 4]
    for step in before:
        assert before[step].responses == after[step].responses
        assert (before[step].header["run"] == after[step].header["run"]) == (step <= 2)


def test_a_log_that_fails_stops_and_not_the_run(make_trainer, caplog):
    def fail(ids):
        raise RuntimeError("no\ntext")

    trainer = make_trainer("base", log_credit=1, max_steps=3)
    trainer.engine.decode = fail
    trainer.train()
    assert trainer.state.global_step == 3 and not shards(trainer)
    (line,) = (record.getMessage() for record in caplog.records if "log_credit" in record.getMessage())
    assert "no text" in line and "\n" not in line


class Infinite:
    """Has a loss that is not finite in its second step."""

    steps, by_row = 0, True

    def credit(self, config, tokens):
        self.steps += tokens.is_training
        shift = 1e4 if self.steps == 2 else 0.0
        return trl_credit.Credit(tokens.logp_t - tokens.old_logp_t + shift, tokens.advantages)


def test_a_loss_that_is_not_finite_is_logged_without_credit(trained):
    trainer, _ = logged(trained, "base", credit=Infinite(), max_steps=3, epsilon_high=1e30)
    for step, shard in shards(trainer).items():
        assert all((row["credit"] is None) == (step == 2) for row in shard.responses)


def test_groups_with_fresh_trees_are_logged_before_replayed_ones():
    rows = (("a", 1), ("b", 3), ("c", 2), ("b", 3), ("d", 3))
    drawn = [SimpleNamespace(question=question, birth=birth) for question, birth in rows]
    plan = SimpleNamespace(drawn=drawn, iteration=3, n_real=2)
    batch = SimpleNamespace(plan=plan, batch=SimpleNamespace(written_t=torch.zeros(3, 4)))
    origin = origin_of(SimpleNamespace(processes=SimpleNamespace(rank=1, count=2)), batch)
    assert origin.places == {0: (2, 0), 1: (0, 0), 2: (3, 0), 3: (0, 1), 4: (1, 0)} and origin.sizes == [2, 1, 1, 1]


# Shards as files, and the texts of tokens, without torch


HEADER = {"step": 3, "algorithm": "S-trace"}
RESPONSE = {
    **{"group": 0, "index": 1, "prompt": "1+1=", "completion": "2 </script>\u2028é", "truncated": False},
    "rewards": {"a": 1.0, "b": math.nan},
    **{"tokens": ["2", " ", "</script>"], "token_ids": [5, 6, 7], "loss_mask": [1, 1, 0], "selected": None},
    "credit": [1 / 3, -2e-9, math.inf],
    "entropy": [0.0, None, 1e6],
}
NODES = [{"id": 0, "parent": None, "text": ""}, {"id": 1, "parent": 0, "text": "2", "value": 2 / 3, "advantage": 0.5}]


def test_what_is_written_is_read(tmp_path):
    path = shard_path(tmp_path, 3)
    write_shard(path, Shard(HEADER, {2: NODES}, [RESPONSE]))
    assert path.name == "step-00000003.jsonl" and [p.name for p in path.parent.iterdir()] == [path.name]
    kinds = [next(iter(json.loads(line).items())) for line in open(path, encoding="utf-8")]  # one line for each
    assert kinds == [("kind", "header"), ("kind", "tree"), ("kind", "response")]
    shard = read_shard(path)
    assert shard.header == HEADER | {"schema": "trl_credit.rollouts", "version": 1}
    assert shard.trees[2][1]["value"] == 0.666667 and shard.trees[2][0] == NODES[0]
    (response,) = shard.responses
    assert response["credit"] == [0.333333, -2e-9, None] and response["entropy"] == [0, None, 1e6]
    assert response["rewards"] == {"a": 1.0, "b": None} and response["completion"] == RESPONSE["completion"]
    assert set(response) == set(RESPONSE)


def test_the_gold_answer_of_a_row_is_its_text():
    rows = [{"answer": " 15\n"}, {"answer": "", "solution": "so 15"}, {"answer": 0}, {"answer": ["1", 2]}, {"a": 1}]
    assert [gold_answer(row) for row in rows] == ["15", "so 15", "0", "1, 2", None]
    assert gold_answer({"answer": "x" * 9999}) == "x" * (schema.MAX_ANSWER - 2) + " …"


def test_steps_and_what_comes_after_one(tmp_path):
    assert steps(tmp_path) == []
    for step in (2, 10, 9):
        write_shard(shard_path(tmp_path, step), Shard(HEADER))
    folder = tmp_path / "credit_log"
    (folder / "step-00000011.partial").write_text("{")
    (folder / "step-one.jsonl").write_text("mine")
    assert [step for step, _ in steps(tmp_path)] == [2, 9, 10]
    remove_after(tmp_path, 9)
    assert sorted(p.name for p in folder.iterdir()) == ["step-00000002.jsonl", "step-00000009.jsonl", "step-one.jsonl"]


@pytest.mark.parametrize("text", ["né 🙂 日本", "  two  spaces\n", "\ufffd is a character too", "👨‍👩‍👧", ""])
def test_texts_of_tokens_are_the_text(text):
    tokenizer = byte_tokenizer([("h", "i"), ("Ġ", "Ġ")])
    ids = tokenizer.encode(text) + [tokenizer.eos_token_id]
    texts = TokenTexts(tokenizer).of(ids)
    assert "".join(texts) == text + "<|im_end|>" and len(texts) == len(ids)
    if text.startswith("né"):  # the whole character stands at the last of its bytes
        assert texts[:4] == ["n", "", "é", " "] and texts[4:8] == ["", "", "", "🙂"]


def test_a_response_that_is_cut_off_inside_of_a_character():
    tokenizer = byte_tokenizer([])
    texts = TokenTexts(tokenizer).of(tokenizer.encode("a🙂")[:-1])
    assert texts[0] == "a" and "".join(texts) == tokenizer.decode(tokenizer.encode("a🙂")[:-1])


def test_a_space_before_the_first_token_is_kept():
    """Also by a decoder that leaves it out, as those of SentencePiece do, with bytes as fallback."""
    words = ["▁the", "▁cat", "s", "é", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "</s>"]
    model = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="s"))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    model.decoder = decoders.Sequence(steps)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, eos_token="</s>")
    assert tokenizer.decode([0]) == "the"
    texts = TokenTexts(tokenizer).of([0, 1, 2, 3, 4, 5, 6, 7, 1, 8])
    assert texts == [" the", " cat", "s", "é", "", "", "", "🙂", " cat", "</s>"]
