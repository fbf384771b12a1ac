"""`trl-credit audit`: its estimates against their definitions, and the command on the embedded model."""

import json
from argparse import Namespace
from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from custom_functions import custom
from script_helpers import error_of

from trl_credit import ALGORITHMS, GRPOConfig, GRPOTrainer, STraceConfig
from trl_credit.cli import main
from trl_credit.cli.audit import _settings
from trl_credit.demo import DEMO_SETTINGS, demo_dataset, demo_model_path, demo_reward
from trl_credit.lab.audit import audit
from trl_credit.lab.audit.gradients import Projection, gradient_of
from trl_credit.lab.audit.report import kind_of
from trl_credit.lab.audit.scores import aim_sums, aims, best_estimate, best_progress, jackknife, progress_terms
from trl_credit.lab.audit.values import FIRST, Measured, _second_round, choose_tokens
from trl_credit.lab.explain import explain
from trl_credit.lab.explain.measure import load, measured
from trl_credit.observe.schema import Shard, read_shard, steps


SMALL = "--responses 4 --continuations 12 --batches 4 --per_device_train_batch_size 16 --disable_tqdm true".split()


@pytest.fixture(scope="module")
def first_try():
    """36 responses of the embedded model with V at every token, by 64 continuations: measured by another program."""
    rows = json.loads((Path(__file__).parents[1] / "data" / "audit_embedded.json").read_text())
    for i, row in enumerate(rows):
        row |= {"group": i // 3, "index": i % 3, "completion": "", "token_ids": row["ids"]}
    shard = measured(Shard({"step": 0, "algorithm": "", "temperature": 1.0}, {}, rows), *load(demo_model_path()))
    advantages = torch.tensor([(r["reward"] - r["mean"]) / (r["std"] + 1e-4) for r in rows], dtype=torch.float64)
    return shard, advantages[:, None].expand(-1, max(len(r["ids"]) for r in rows))


# its means of cosines per response, weighed by w, whose standard errors are 0.05 to 0.07
FIRST_TRY = {"grpo": 0.543, "s_trace": 0.594, "p_trace": 0.533, "grpo_lambda": 0.488, "random": 0.337}


@pytest.mark.parametrize("name", FIRST_TRY)
def test_aim_is_that_of_the_first_try(first_try, tmp_path, name):
    shard, advantages = first_try
    settings = {"output_dir": str(tmp_path), "report_to": "none"} | ({"selector": "random"} if name == "random" else {})
    config = ALGORITHMS["s_trace" if name == "random" else name][0](**settings)
    torch.manual_seed(0)
    explained = explain(shard, config, name=name, segments=(advantages, torch.zeros_like(advantages).long()))
    credit = np.concatenate([response["credit"] for response in explained.shard.responses])
    parts = [(np.diff(r["V"]), r["gini"], [i] * len(r["gini"])) for i, r in enumerate(shard.responses)]
    gain, gini, response = (np.concatenate(part) for part in zip(*parts, strict=True))
    columns = {"weight": gini, "gain": gain, "variance": 0 * gain, "half_1": gain, "half_2": gain, "prompt": response}
    by_response = aims(aim_sums(pd.DataFrame(columns), credit[None], floor=0.0))[:, 0, 0]
    assert np.nanmean(by_response) == pytest.approx(FIRST_TRY[name], abs=0.05 if name == "random" else 0.015)


def test_sums_are_those_of_the_definitions():
    rng = np.random.default_rng(0)
    t = pd.DataFrame(rng.random((40, 5)), columns=["weight", "gain", "variance", "half_1", "half_2"])
    t = t.assign(prompt=rng.permutation(40) % 4, half_1=t["half_1"] - 0.5, variance=t["variance"] / 99)
    credit = rng.normal(size=(2, 40))
    scores = aims(aim_sums(t, credit, floor=0.1).sum(0))
    for c, (aim, focus, sign) in zip(credit, scores, strict=True):
        rows = list(zip(t.itertuples(), c, strict=True))
        square = sum(r.weight * (r.gain**2 - r.variance) for r, _ in rows)
        along = sum(r.weight * x * r.gain for r, x in rows)
        assert aim == pytest.approx(along / (square * sum(r.weight * x * x for r, x in rows)) ** 0.5)
        size = sum(r.weight * abs(x) for r, x in rows)
        decides = sum(r.weight * abs(x) * (r.gain**2 - r.variance) for r, x in rows)
        assert focus == pytest.approx(decides / size / (square / t["weight"].sum()))
        deciding = [(r, x) for r, x in rows if abs(r.half_1) > 2 * (2 * r.variance + 0.01) ** 0.5]
        agree = [r.weight * r.half_2 * np.sign([x, r.half_1]) for r, x in deciding]
        assert sign == pytest.approx((1 + sum(a for a, _ in agree) / sum(b for _, b in agree)) / 2)
        assert 5 < len(deciding) < 35


def test_progress_pairs_different_batches_and_leaves_out_one():
    rng = np.random.default_rng(1)
    p, g = rng.normal(size=(2, 6, 50)) + np.arange(50) / 25
    value, without = progress_terms(p @ p.T, p @ g.T, g @ g.T)

    def definition(batches):
        pairs = list(permutations(batches, 2))
        pp, pg, gg = (np.mean([u[a] @ v[b] for a, b in pairs]) for u, v in ((p, p), (p, g), (g, g)))
        size = np.mean([g[b] @ g[b] for b in batches])
        return pg / (pp * gg) ** 0.5, gg / size, pg**2 / pp / size

    assert value == pytest.approx(definition(range(6)))
    for left_out in range(6):
        assert without[left_out] == pytest.approx(definition([b for b in range(6) if b != left_out]))
    estimate = jackknife(value, without)[2]
    pseudo = 6 * value[2] - 5 * without[:, 2]  # whose mean and standard error are the jackknife's
    half = 2.5706 * pseudo.std(ddof=1) / 6**0.5  # t with 5 degrees of freedom
    assert estimate[:3] == pytest.approx((pseudo.mean(), pseudo.mean() - half, pseudo.mean() + half), rel=1e-4)


def test_best_progress_is_that_of_a_batch_of_true_credit():
    """E|g|² of a batch of two of four prompts (one without signal), each with two of two responses, by enumeration."""
    g = np.random.default_rng(2).normal(size=(4, 2, 30)) + 1
    star, prompt = g.mean((0, 1)), np.repeat(np.arange(4), 2)
    # a prompt with two draws of its responses
    pairs = [(x, i, j) for x in range(4) for i in range(2) for j in range(2)]
    of_prompt = [g[x, i] + g[x, j] for x, i, j in pairs]
    size = np.mean([np.sum(((one + other) / 4) ** 2) for one in of_prompt for other in of_prompt])
    flat = g.reshape(8, -1)
    products = flat @ flat.T
    # two draws of a prompt's responses may be the same one: E|∇V(x)|² has both kinds of pairs
    both = (products[np.eye(8, dtype=bool)].reshape(4, 2).mean(1) + np.array([g[x, 0] @ g[x, 1] for x in range(4)])) / 2
    products[(prompt[:, None] == prompt) & ~np.eye(8, dtype=bool)] = np.repeat(both, 2)
    rows = {"prompt": prompt, "signal": prompt != 3, "share": 0.75, "prompts": 2, "generations": 2}
    pp = np.full((5, 5), star @ star)
    assert best_progress(pp, products, **rows) == pytest.approx(star @ star / size)
    assert np.isnan(best_estimate(-pp, products, **rows).value)
    with_interval = best_estimate(pp, products, **rows)
    left = [[k for k in range(8) if prompt[k] != x] for x in range(4)]
    parts = [(products[np.ix_(k, k)], {"prompt": prompt[k], "signal": rows["signal"][k]}) for k in left]
    each = [best_progress(pp, part, **rows | own) for part, own in parts]
    value, error = star @ star / size, 3.1824 * np.std(each, ddof=1) * 3 / 4**0.5  # t with 3 degrees of freedom
    assert with_interval[:2] == pytest.approx([x := value + 3 * (value - np.mean(each)), x - error], rel=1e-4)
    noisy = best_estimate(pp + np.diag(range(5)) + np.outer(range(5), range(5)), products, **rows)
    assert noisy.high - noisy.low > 2 * error  # the batches that make g* have an error too


def response_of(length, *, prompt=0, seed=0):
    entropy = np.random.default_rng(seed).random(length).tolist()
    row = {"token_ids": [0] * length, "tokens": ["x", "\n"] * (length // 2), "entropy": entropy, "reward": 1.0}
    return Measured(row, {}, prompt, 0, 0)


def test_values_of_two_rounds():
    m, rng = response_of(4), np.random.default_rng(0)
    first, second, lost = rng.random(8), rng.random(16), np.array([1.0, np.nan, np.nan])
    m.rewards = {0: [first, second], 1: [first], 2: [lost]}
    values = m.values(0.25)
    mean = 0.25 * first.mean() + 0.75 * second.mean()
    variance = first.var(ddof=1) / 8 / 16 + second.var(ddof=1) / 16 * 9 / 16
    halves = [0.25 * first[k::2].mean() + 0.75 * second[k::2].mean() for k in (0, 1)]
    assert values[0] == pytest.approx([mean, variance, *halves])
    assert values[1] == pytest.approx([first.mean(), first.var(ddof=1) / 8, first[::2].mean(), first[1::2].mean()])
    assert np.isnan(values[2:4]).all() and values[4].tolist() == [1.0, 0.0, 1.0, 1.0]
    counts = _second_round({(0, 0): np.array([0, 1] * 4), (0, 1): np.zeros(8), (0, 2): np.ones(8)}, 96)
    assert counts[0, 0] > counts[0, 1] == counts[0, 2] >= FIRST and abs(sum(counts.values()) - 96) <= 3 * FIRST / 2


def test_what_a_tool_says_counts_to_the_call():
    m = response_of(6)
    m.response |= {"_conversation": "0-0", "loss_mask": [1, 1, 0, 0, 1, 0], "entropy": [0.1, 0.2, 9.0, 9.0, 0.3, 9.0]}
    choose_tokens([m], continuations=8, token_budget=10**9, seed=0)
    assert m.chosen.tolist() == m.written.tolist() == [1, 1, 0, 0, 1, 0] and m.states == [0, 1, 4]
    m.rewards = {t: [np.full(8, value)] for t, value in zip(m.states, (0.25, 0.5, 0.75), strict=True)}
    assert m.values(1.0)[:, 0].tolist() == [0.25, 0.5, 0.75, 0.75, 0.75, 1.0, 1.0]


def test_a_budget_measures_the_tokens_of_highest_entropy_and_some_of_the_others():
    rows = [response_of(200, prompt=k, seed=k) for k in range(30)]
    choose_tokens(rows, continuations=8, token_budget=10**9, seed=0)
    assert all((m.chosen == 1).all() and m.states == list(range(200)) for m in rows)
    choose_tokens(rows, continuations=8, token_budget=1_000_000, seed=0)
    chosen, entropy = np.concatenate([m.chosen for m in rows]), np.concatenate([m.response["entropy"] for m in rows])
    rate = chosen[chosen < 1].max()
    assert set(chosen.tolist()) == {0.0, rate, 1.0} and entropy[chosen == 1].min() > entropy[chosen < 1].max()
    others = np.sum(chosen < 1)  # a binomial: within four standard deviations
    assert abs(np.sum(chosen == rate) - rate * others) < 4 * (rate * others) ** 0.5
    assert np.sum(chosen == 1) == pytest.approx(rate * others, rel=0.01)
    places = [(m.length, set(np.flatnonzero(m.chosen)) | set(np.flatnonzero(m.chosen) + 1)) for m in rows]
    cost = 8 * sum(length - t for length, of in places for t in of)
    assert 0.7e6 < cost < 1.05e6
    assert all(set(range(2, 200, 2)) < set(m.states) for m in rows)  # where lines begin


def test_projections_keep_inner_products():
    model, size = torch.nn.Sequential(torch.nn.Linear(300, 50), torch.nn.Linear(50, 7)), 2**11
    to, true, projected = Projection(model, size=size, seed=3), [], []
    for seed in range(40):
        torch.manual_seed(seed)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter) + 0.5
        true.append(torch.cat([x.grad.flatten() for x in model.parameters()]).double().numpy())
        projected.append(to.take())
        assert all(x.grad is None for x in model.parameters())
    true, projected = np.stack(true), np.stack(projected)
    length = np.linalg.norm(true, axis=1)
    error = (projected @ projected.T - true @ true.T) / np.outer(length, length)
    assert projected.shape == (40, size) and np.abs(error).max() < 5 * (2 / size) ** 0.5
    assert np.abs(error).max() > 0.1 * (2 / size) ** 0.5


@pytest.mark.parametrize(("algo", "shares"), [("s_trace", "off"), ("dapo", "off"), ("dr_grpo", "on")])
def test_the_gradient_of_a_batch_is_that_of_training(make_trainer, algo, shares):
    """A step of SGD moves the weights along the gradient that an audit takes from the logged credit, also in passes
    that compute prompts once."""
    settings = {"optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 1e9, "beta": 0.0, "max_steps": 1}
    settings["shared_prefix"] = shares
    trainer = make_trainer(algo, log_credit=1, log_credit_groups=8, mask_truncated_completions=False, **settings)
    before = torch.cat([x.detach().flatten() for x in trainer.model.parameters()])
    trainer.train()
    moved = torch.cat([x.detach().flatten() for x in trainer.model.parameters()]) - before
    shard = read_shard(steps(trainer.args.output_dir)[-1][1])
    torch.nn.utils.vector_to_parameters(before, trainer.model.parameters())
    explained = explain(shard, trainer.args, name=algo)
    rows = zip(explained.shard.responses, explained.divisors, strict=True)
    credit = [np.array(response["credit"]) / divisor for response, divisor in rows]
    taken, shapes = [], []
    whole = Namespace(take=lambda: taken.append(torch.cat([x.grad.flatten() for x in trainer.model.parameters()])))
    trainer.model.zero_grad()
    trainer.findings |= dict.fromkeys(trainer.findings)  # packed rows are not compared yet
    trainer.model.register_forward_pre_hook(lambda _, a, k: shapes.append(len(k["input_ids"])), with_kwargs=True)
    gradient_of(trainer.engine, explained.shard.responses, credit, whole)
    assert (shapes[-1] == 1) == (shares == "on")
    assert torch.cosine_similarity(taken[0], moved, dim=0) > 1 - 1e-4 and moved.norm() > 0


def test_kinds_of_tokens():
    kinds = {"12": "number", " the": "word", ".\n": "line break", "": "special", "<|end|>": "special", "+": "sign"}
    assert {token: kind_of(token) for token in kinds} == kinds


def numbers(folder):
    return json.loads((folder / "audit.json").read_text())


def test_the_command_and_its_resume(tmp_path, capsys):
    argv = ["audit", "--algo", "s_trace", "vine_ppo", "spo_tree", *SMALL, "--output_dir", str(tmp_path / "out")]
    argv += ["--credit", f"nothing={custom('Times')} --factor 0"]
    assert main(argv) == 0
    printed, found = capsys.readouterr().out, numbers(tmp_path / "out")
    assert "On this model and task:" in printed and "SPO-tree is left out: it samples trees" in printed
    assert list(found["scores"]) == ["GRPO", "S-trace", "VinePPO", "nothing", "Dr. GRPO"]
    grpo, plain, nothing = (found["scores"][name] for name in ("GRPO", "Dr. GRPO", "nothing"))
    assert grpo["aim difference"]["value"] == 0.0 and nothing["aim"]["value"] is nothing["progress"]["value"] is None
    assert plain["bias"]["value"] in (None, pytest.approx(1.0)) and grpo["focus"]["value"] > 0
    tokens = pd.read_parquet(tmp_path / "out" / "tokens.parquet")
    assert set(tokens["response"]) == {0, 1, 2, 3} and len(tokens) > 100 and (tokens["chosen"] == 1).all()
    assert ((tokens["gain"] - tokens[["half_1", "half_2"]].mean(axis=1)).abs() < 1e-9).all()
    page = (tmp_path / "out" / "audit.html").read_text()
    assert "ΔV, measured" in page and "minus GRPO" in page
    (work,) = (tmp_path / "out").glob("work-*")
    kept = {path: path.stat().st_mtime_ns for path in work.rglob("*.*")}
    lost = [sorted(work.glob("*.npy"))[0], sorted(work.rglob("gradients/*.npy"))[-1], sorted(work.rglob("*.jsonl"))[-1]]
    for path in lost:
        path.unlink()
    assert main(argv) == 0
    assert numbers(tmp_path / "out") == found  # to the last bit
    assert all(path.stat().st_mtime_ns == kept[path] for path in kept.keys() - set(lost))
    assert all(path.exists() for path in lost)


def test_a_run_is_audited_with_its_responses(tmp_path, capsys):
    run = str(tmp_path / "run")
    words = "--algo s_trace --max_steps 1 --log_credit 1 --log_credit_groups 6 --report_to none".split()
    assert main(["train", *words, "--per_device_train_batch_size", "48", "--output_dir", run]) == 0
    assert main(["audit", run, "--responses", "4", "--continuations", "4", "--no_gradient", "--algo", "p_trace"]) == 0
    printed, logged = capsys.readouterr().out, read_shard(steps(run)[-1][1])
    assert "6 batches of 1 × 8 responses" in printed and "P-trace" in printed.split("|")[0]
    assert "progress" not in numbers(tmp_path / "run" / "audit")["scores"]["GRPO"]
    tokens = pd.read_parquet(tmp_path / "run" / "audit" / "tokens.parquet")
    texts = {"".join(response["tokens"]) for response in logged.responses}
    assert {"".join(own) for _, own in tokens.groupby("response")["tokens"]} <= texts
    file = tmp_path / "run" / "credit_run.json"
    record = json.loads(file.read_text())
    task = record["task"] | {"credit": "evil.py:f", "trust_remote_code": True}  # no flag of the data
    file.write_text(json.dumps(record | {"task": task}))
    assert not {"--credit", "--trust_remote_code"} & set(_settings(Namespace(run=run, trust_run=False)))
    for damage, message in (
        ({"decontaminate": ["all", "--credit", "evil.py:f"]}, "a value of it is a flag"),
        ({"reward": ["evil.py:reward"]}, "functions that a folder names are not run"),
    ):
        file.write_text(json.dumps(record | {"task": record["task"] | damage}))
        assert message in error_of(main, ["audit", run], capsys)


def test_a_model_is_audited_in_python_with_a_budget(tmp_path):
    settings = {"output_dir": str(tmp_path), "report_to": "none", **DEMO_SETTINGS, "per_device_train_batch_size": 16}
    args, config = (kind(**settings, disable_tqdm=True) for kind in (GRPOConfig, STraceConfig))
    trainer = GRPOTrainer(demo_model_path(), demo_reward, args, train_dataset=demo_dataset())
    sizes = {"responses": 6, "continuations": 8, "batches": 4, "token_budget": 20_000}
    result = audit(trainer, algorithms={"GRPO": args, "mine": config}, gradient=False, **sizes)
    assert 10 < len(result.tokens) < 150 and (result.tokens["chosen"] < 1).any()
    assert set(result.scores["mine"]) == {"aim", "aim difference", "aim of stretches", "focus", "sign"}
    assert "aim of stretches" in str(result) and "srcdoc" in result._repr_html_()
    with pytest.raises(ValueError, match="reward= and dataset="):
        audit(demo_model_path())
    with pytest.raises(ValueError, match="continuations must be at least 4, got 2"):
        audit(trainer, continuations=2)
    with pytest.raises(ValueError, match="'grppo' is none of grpo"):
        audit(trainer, algorithms=["grppo"])


def test_conversations_are_audited_from_all_tokens_that_the_policy_wrote(tmp_path, capsys):
    turns = "turns=spo_chain --segmentation turns"
    argv = ["audit", "--dataset_name", "demo_agent", *SMALL, "--algo", turns, "spo_chain", "x=grpo --returns to_go"]
    argv += ["--output_dir", str(tmp_path)]
    assert main(argv) == 0
    before = numbers(tmp_path)
    assert list(before["scores"]) == ["GRPO", "turns", "Dr. GRPO"]
    assert "SPO-chain is left out: conversations" in capsys.readouterr().out and "x is left" in before["notes"][2]
    (work,) = tmp_path.glob("work-*")
    tokens = pd.read_parquet(tmp_path / "tokens.parquet")
    responses = [r for path in sorted(work.glob("batches/*")) for r in read_shard(path).responses]
    assert any(0 in r["loss_mask"] for r in responses) and not tokens["tokens"].isin(["<tool>", "<assistant>"]).any()
    next(work.glob("*.npy")).unlink()
    assert main(argv) == 0 and numbers(tmp_path) == before
    few = ["--token_budget", "15000", "--no_gradient", "--mask_truncated_completions", "true"]
    assert main([*argv, *few]) == 0  # a tool's tokens are no stretches of their own
    assert -1.5 < numbers(tmp_path)["scores"]["GRPO"]["aim of stretches"]["value"] < 1.5
    (work / "batches" / "0001.jsonl").write_bytes((work / "batches" / "0000.jsonl").read_bytes())
    assert "holds other conversations than are sampled now" in error_of(main, argv, capsys)


def test_what_an_audit_refuses(tmp_path, capsys):
    out = ["--output_dir", tmp_path / "out", *SMALL]
    assert "no folder of a run" in error_of(main, ["audit", tmp_path, *out], capsys)
    (tmp_path / "same.py").write_text("def same(completions, **kwargs):\n    return [1.0] * len(completions)\n")
    same = ["audit", "--reward", f"{tmp_path}/same.py:same", *out]
    assert "no algorithm gives any credit here" in error_of(main, same, capsys)
