"""Values of segments: estimates against enumeration, the calls of an engine, and what comes back from it."""

import itertools
import math
import random

import pytest
import segment_helpers
import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel
from segment_helpers import CHAIN, TREE, RecordingEngine, counts_on, engine_calls, generation_batch, plans, with_engine
from tiny_models import tiny_qwen3
from transformers import GenerationConfig
from warm_start import make_tokenizer

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.trainer.engine_calls import prefilled_once


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
        values, first, second = {}, 0.0, 0.0
        for token, weight in enumerate(p):
            below = moments([*ids, token])
            values.update(below)
            first += weight * below[(*ids, token)][0]
            second += weight * below[(*ids, token)][1]
        values[tuple(ids)] = (first, second)
        return values

    return {ids: (v, s - v * v) for ids, (v, s) in moments([]).items()}


def test_values_converge_to_enumeration_at_the_monte_carlo_rate(enumerable, tmp_path):
    (folder, model), n = enumerable, 32
    settings = {"rollouts": "chain", "rollouts_per_state": n, "segmentation": "fixed_length", "segment_length": 1}
    settings |= {"max_completion_length": 3, "temperature": 0.8}
    settings |= {"per_device_train_batch_size": 16, "num_generations": 16}
    args = CreditConfig(str(tmp_path), report_to="none", disable_tqdm=True, **settings)
    trainer = CreditTrainer(folder, spelling, args, train_dataset=Dataset.from_dict({"prompt": ["ab", "ca"] * 4}))
    tokenizer = trainer.processing_class
    squares = []
    for inputs in itertools.islice(trainer.get_train_dataloader(), 4):
        trainer.model.train()
        output = trainer._generate_and_score_completions(inputs)
        exact = exact_values(model, tokenizer, tokenizer(inputs[0]["prompt"])["input_ids"], length=3, temperature=0.8)
        states = {}
        rows = (output[name] for name in ("completion_ids", "completion_mask", "advantages"))
        for ids, mask, advantages in zip(*rows, strict=True):
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


# Calls of the engine


def test_prefixes_of_like_budgets_are_continued_together(make_trainer):
    rng = random.Random(0)
    prefixes = [[rng.randrange(3, 20) for _ in range(rng.randint(1, 9))] for _ in range(9)]
    budgets = [1, 8, 2, 7, 1, 8, 2, 7, 1]
    continuations, calls = {}, {}
    for size in (None, 4):
        trainer = make_trainer(**CHAIN, rollout_batch_size=size, top_k=1)  # the most probable token: nothing is drawn
        calls[size] = engine_calls(trainer)
        continuations[size] = trainer.engine.continue_prefixes(prefixes, n=2, budgets=budgets)
    assert calls == {None: [(18, 8)], 4: [(4, 8), (4, 7), (4, 2), (4, 1), (2, 1)]}  # 74 slots; as they come, 122
    assert [c.ids for c in continuations[4]] == [c.ids for c in continuations[None]]
    assert all(1 <= len(c.ids) <= budgets[i // 2] for i, c in enumerate(continuations[4]))
    assert max(len(c.ids) for c in continuations[4]) == 8


def test_equal_prefixes_share_their_rollouts(make_trainer):
    trainer = make_trainer(**CHAIN, segmentation="fixed_count", num_segments=1)
    calls = engine_calls(trainer)
    trainer.train()
    assert len(calls) == 2 * 2  # in each of two steps the responses, then all continuations
    assert calls[0][0] == 8 and calls[1] == (2 * 3, 8)  # two prompts with four responses each: one state per prompt
    row = segment_helpers.steps_of(trainer)[0]
    assert row["credit/rollouts_saved"] == (8 - 2) * 3 and row["credit/rollouts"] == 2 * 3
    assert 0 < row["credit/rollout_token_share"] < 1


# Recorded engines


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


@pytest.mark.parametrize(
    ("mode", "rows", "budgets"), [("colocate", [(4, 1, 8)] * 8, (8, 7, 6)), ("server", [(4, 4, 8)] * 2, (8, 8, 8))]
)
def test_a_prefix_is_one_request_with_its_own_budget(make_trainer, mode, rows, budgets):
    """A server gets equal blocks of repeated prompts, and one limit for all prefixes: the rest is cut off."""
    engine = RecordingEngine(mode=mode)
    trainer = with_engine(make_trainer(**CHAIN, segmentation="fixed_length", segment_length=1), engine)
    output = generation_batch(trainer)
    (_, first), (_, second) = [entry for entry in engine.log if entry != "sync"]
    assert first == rows
    # [3, 4, 1] from every prompt: s_0, s_1 and s_2 of each of two prompts
    assert sorted(second) == [(4 + written, 3, budgets[written]) for written in (0, 0, 1, 1, 2, 2)]
    assert output["advantages"].shape == (8, 3)
    assert engine.max_completion_length == 8 and trainer.num_generations == 4  # as they were


@pytest.mark.parametrize("form", ["nodes", "packed", "paths"])
def test_engine_log_probabilities_travel_with_the_rows(make_trainer, tmp_path, form):
    engine, mode = RecordingEngine(unknown_at=1), "token_truncate" if form == "paths" else "sequence_mask"
    settings = {**TREE, "tree_branching": [2, 2, 2], "tree_segment_length": 1, "replay_iterations": 3, "replay_cap": 1}
    # trees keep the product over a segment, also where weights are per turn
    settings |= {"importance": "turn_token" if form == "nodes" else "token", "tree_rows": form}
    trainer = with_engine(make_trainer(**settings), engine, correction=mode)
    counts_on(trainer)
    kept = plans(trainer)
    outputs = [generation_batch(trainer) for _ in range(2)]
    trainer.forest.buffer.save(tmp_path / "replay.safetensors")  # with what the engine did not know
    assert any(row.birth < kept[1].iteration for row in kept[1].drawn)
    for output, planned in zip(outputs, kept, strict=True):
        ids, sampling = output["segment_ids"], output["sampling_per_token_logps"]
        old, ratio = output["old_per_token_logps"], output["importance_sampling_ratio"]
        assert (ids >= 0).any() and set(sampling[ids >= 0].nan_to_num(7.0).tolist()) == {-0.5, 7.0}
        assert (old[ids >= 0] < 0).all()  # no 0 in the place of what is not known
        for row, planned_row in enumerate(planned.rows):
            for k in range(int(ids[row].max()) + 1):
                inside = ids[row] == k
                difference = (old[row] - sampling[row])[inside].nan_to_num()
                if planned_row.birth < planned.iteration:
                    assert (ratio[row][inside] == 1).all()
                    known = ~sampling[row][inside].isnan()
                    assert (old[row][inside][known] == -0.5).all()
                elif mode == "sequence_mask":
                    torch.testing.assert_close(ratio[row][inside], difference.sum().exp().expand(inside.sum()))
                else:
                    torch.testing.assert_close(ratio[row][inside], difference.exp())


def test_a_response_cut_by_the_context_did_not_end(make_trainer):
    engine = RecordingEngine(answer=[3, 4, 5])
    one = {**CHAIN, "segmentation": "fixed_count", "num_segments": 1}
    trainer = with_engine(make_trainer(**one, truncated_value=-7.0), engine)
    trainer.args.vllm_max_model_length = 4 + 3  # a prompt has four tokens
    assert [trainer.engine.remaining_budget(4, written) for written in (0, 2)] == [3, 1]
    output = generation_batch(trainer)
    assert not output["advantages"].any()  # −7 − (−7), and no reward of the response's own


# π_old from the engine, and TRL's correction for the engine with every weight


@pytest.mark.parametrize("correction", [None, "sequence_mask"])
@pytest.mark.parametrize("aligned", [False, True])
def test_the_engines_log_probabilities_as_behavior_policy(make_trainer, correction, aligned):
    batches = {}
    for kind in ("recomputed", "sampler"):
        trainer = make_trainer("s_trace", beta=0.1, num_iterations=1 if aligned else 2)
        with_engine(trainer, RecordingEngine(), correction=correction).args.behavior_logps = kind
        calls = segment_helpers.passes(trainer)
        batches[kind] = generation_batch(trainer), len(calls)
    recomputed, sampler = batches["recomputed"], batches["sampler"]
    mask = sampler[0]["completion_mask"].bool()
    assert (sampler[0]["old_per_token_logps"][mask] == -0.5).all()
    assert sampler[1] == 0  # the reference is another model
    assert recomputed[1] == (0 if aligned and not correction else 1)
    torch.testing.assert_close(sampler[0]["ref_per_token_logps"], recomputed[0]["ref_per_token_logps"])
    if correction:
        assert (sampler[0]["importance_sampling_ratio"] == 1).all()
        assert (recomputed[0]["importance_sampling_ratio"] != 1).any()


@pytest.mark.parametrize("correction", [None, "sequence_mask"])
def test_what_the_engine_does_not_know_is_computed(make_trainer, correction):
    trainer = make_trainer("s_trace", beta=0.0)
    with_engine(trainer, RecordingEngine(unknown_at=1), correction=correction).args.behavior_logps = "sampler"
    calls = segment_helpers.passes(trainer)
    old = generation_batch(trainer)["old_per_token_logps"]
    assert len(calls) == 1
    assert (old[:, 0] == -0.5).all() and (old[:, 1] < -0.5).any() and old.isfinite().all()


def test_what_the_engine_does_not_know_of_packed_rows_is_computed_with_their_branches(make_trainer):
    """This pass comes before the batch has the columns that its branches see."""
    rows = {"tree_segment_length": 1, "num_generations": 2, "per_device_train_batch_size": 4}
    trainer = with_engine(make_trainer(**{**TREE, **rows}, tree_rows="packed"), RecordingEngine(unknown_at=1))
    trainer.args.behavior_logps = "sampler"
    counts_on(trainer)
    output = generation_batch(trainer)
    unknown = output["sampling_per_token_logps"].isnan() & (output["segment_ids"] >= 0)
    assert unknown.any()
    computed = trainer.engine.behavior_logps(output)
    torch.testing.assert_close(output["old_per_token_logps"][unknown], computed[unknown])


# A prefix that is continued several times is read once by transformers, and continued as before


PREFIXES = [[3, 4, 5, 6, 7, 8], [5], [9, 8, 7, 6, 5, 4, 3, 3, 4], [4, 4, 4]]


def continued(trainer, *, n=3, prefixes=PREFIXES, **settings) -> tuple[list[list[int]], list[tuple[int, ...]]]:
    """Token ids of continuations, and the shapes of the passes that they took."""
    shapes = []
    inner = trainer.model.get_base_model() if isinstance(trainer.model, PeftModel) else trainer.model
    handle = inner.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    for name, value in settings.items():
        setattr(trainer.generation_config, name, value)
    torch.manual_seed(0)
    with torch.no_grad():
        continuations = trainer.engine.continue_prefixes(prefixes, n=n, budgets=[6, 2, 6, 5][: len(prefixes)])
    handle.remove()
    assert "generate" not in vars(trainer.model)
    return [continuation.ids for continuation in continuations], shapes


@pytest.mark.parametrize("adapter", [False, True])
def test_a_prefix_is_read_once_and_continued_as_before(make_trainer, adapter):
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    trainer = make_trainer(**CHAIN, trainer_kwargs={"peft_config": lora} if adapter else {})
    once, shapes = continued(trainer)
    assert shapes[:3] == [(4, 8), (12, 1), (12, 1)]
    trainer.engine.prefills_once = False
    each, plain = continued(trainer)
    assert plain[:2] == [(12, 9), (12, 1)]
    assert once == each and len({tuple(ids) for ids in once}) > 6
    assert len(shapes) == len(plain) + 1


def test_what_cannot_be_read_once_is_read_as_before(make_trainer):
    trainer = make_trainer(**CHAIN)
    assert continued(trainer, n=1)[1][0] == (4, 9)
    assert continued(trainer, prefixes=[[5], [6]])[1][0] == (6, 1)  # nothing before the last token
    assert continued(trainer, cache_implementation="static")[1][0] == (12, 9)
    widths, ids = [], torch.tensor([[3, 4], [5, 6]])  # two prompts, not one twice
    trainer.model.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"].size(1)), with_kwargs=True
    )
    with prefilled_once(trainer.model, n=2):
        trainer.model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=GenerationConfig())
    assert widths[:2] == [2, 1]
