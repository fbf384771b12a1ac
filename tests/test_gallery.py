"""Every file of examples/algorithms against its formula, written out token by token in float64."""

import math
import re
import statistics
from dataclasses import replace
from functools import partial

import pytest
import torch
from custom_functions import config as config_of
from scripts import ROOT, load_script

from trl_credit import BatchTokens
from trl_credit.loss.assignment import wide
from trl_credit.testing import check_credit, made_up_tokens


FOLDER = ROOT / "examples" / "algorithms"
FILES = sorted(path.stem for path in FOLDER.glob("*.py"))
TRACE = {"importance": "eligible", "trace_lambda": 0.7}
same = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-12)


def gallery(name, **settings):
    members = vars(load_script(FOLDER / f"{name}.py")).items()
    return next(x for n, x in members if n.lower() == name.replace("_", ""))(**settings)


@pytest.fixture
def tokens():
    """Ratios far from 1, hidden states, and a token that the engine does not know."""
    tokens = made_up_tokens(seed=3)
    old = (4 * tokens.old_logp_t - 3 * tokens.logp_t.detach()).clamp(max=-0.01)
    engine = tokens.sampling_logp_t.index_fill(1, torch.tensor([2]), torch.nan)
    states = torch.randn(*old.shape, 5, generator=torch.Generator().manual_seed(0), dtype=old.dtype)
    return replace(tokens, old_logp_t=old, sampling_logp_t=engine, hidden_t=states)


@pytest.fixture
def batch(tokens):
    inside, g = tokens.mask_t.bool().repeat(2, 1), torch.Generator().manual_seed(5)
    rewards = torch.tensor([1, 1, 0, 0.5, 1, 0, 0, 0, 1, 0, torch.nan, 1], dtype=torch.float64)
    groups = torch.arange(12) % 2 * 40 + 7
    means = torch.stack([rewards[groups == group].nanmean() for group in groups])
    known = {"generator": g, "mask_t": inside.double(), "rewards": rewards, "group_ids": groups}
    return BatchTokens(
        logp_t=torch.where(inside, -3 * torch.rand(12, 12, generator=g, dtype=torch.float64), torch.nan),
        advantage_t=torch.where(inside, (rewards - means).nan_to_num().unsqueeze(1), torch.nan),
        token_ids=torch.randint(0, 30, (12, 12), generator=g),
        **known,
    )


def by_token(tokens, value):
    """`value(b, at, i)` of the i-th loss token of row b, whose loss tokens stand at columns `at`; else 0."""
    cells = [[torch.zeros(()).double()] * tokens.mask_t.size(1) for _ in tokens.mask_t]
    for b, t in tokens.mask_t.nonzero().tolist():
        at = tokens.mask_t[b].nonzero().flatten().tolist()
        cells[b][t] = torch.as_tensor(value(b, at, at.index(t))).double()
    return torch.stack([torch.stack(row) for row in cells])


def check(credit, tokens, expected_t):
    found_t, expected_t = (torch.where(tokens.mask_t.bool(), x, 0.0) for x in (wide(credit.advantage), expected_t))
    same(found_t, expected_t)
    if expected_t.requires_grad:
        assert credit.log_weight is None
        same(*(torch.autograd.grad(x.sum(), tokens.logp_t, retain_graph=True)[0] for x in (found_t, expected_t)))


@pytest.mark.parametrize("g", [0.0, 0.7])
def test_a_clipped_or_soft_weight_with_a_trace_that_falls_by_g_at_each_step(g, tokens, tmp_path):
    logp_t, config = tokens.logp_t, config_of(tmp_path, **(TRACE if g else {}))
    ratio = (logp_t - tokens.old_logp_t).detach().exp()

    def moved(b, at, i):  # value 0
        return sum(g ** (at[i] - t) * (logp_t[b, t] - logp_t[b, t].detach()) for t in at[: i + 1])

    def cispo(b, at, i):
        return tokens.advantages[b] * min(ratio[b, at[i]], 1.5) * (logp_t[b, at[i]].detach() + moved(b, at, i))

    def sapo(b, at, i):
        tau, rho = 1.0 if tokens.advantages[b] > 0 else 1.05, ratio[b, at[i]] * moved(b, at, i).exp()
        return tokens.advantages[b] * 4 / tau / (1 + torch.exp(-tau * (rho - 1)))

    check(gallery("cispo_trace", max_ratio=1.5).credit(config, tokens), tokens, by_token(tokens, cispo))
    check(gallery("sapo_trace").credit(config, tokens), tokens, by_token(tokens, sapo))


def test_an_entropy_bonus_passes_its_gradient_on(tokens, tmp_path):
    tokens = replace(tokens, entropy_t=(entropy_t := tokens.logp_t**2))
    gain_t = (tokens.logp_t - tokens.old_logp_t).exp() * tokens.advantages.unsqueeze(1) + 0.3 * entropy_t
    check(gallery("entropy_bonus", bonus=0.3).credit(config_of(tmp_path), tokens), tokens, gain_t)


def test_gmpo_clips_before_the_geometric_mean(tokens, tmp_path):
    clipped = []

    def gain(b, at, i):
        choose, bound = (torch.min, 0.4) if tokens.advantages[b] > 0 else (torch.max, -0.4)
        logs = [choose(x, torch.full_like(x, bound)) for x in (tokens.logp_t - tokens.old_logp_t)[b, at]]
        clipped.append(abs(logs[i].item()) == 0.4 and tokens.advantages[b] != 0)
        return tokens.advantages[b] * torch.exp(sum(logs) / len(at))

    credit = (one := gallery("gmpo")).credit(config_of(tmp_path), tokens)
    check(credit, tokens, by_token(tokens, gain))
    logged_t = one.metrics(None, tokens, credit)["gmpo_clipped"] * tokens.mask_t
    assert 3 < sum(clipped) == logged_t.sum() < len(clipped) - 3


@pytest.mark.parametrize(("name", "engine"), [("dppo_tv", True), ("dppo_tv", False), ("position_weights", True)])
def test_a_limit_on_the_probability_of_a_token(name, engine, tokens, tmp_path):
    tokens = tokens if engine else replace(tokens, sampling_logp_t=None)

    def kept(b, at, i):
        known = engine and not tokens.sampling_logp_t[b, at[i]].isnan()
        sampler_t = tokens.sampling_logp_t if known else tokens.old_logp_t
        moved = math.exp(tokens.logp_t[b, at[i]].item()) - math.exp(sampler_t[b, at[i]].item())
        weight = 1 - 0.2 * i / max(len(at) - 1, 1) if name == "position_weights" else 1
        return (moved if tokens.advantages[b] > 0 else -moved) <= 0.03 / weight

    credit = gallery(name, tv_limit=0.03).credit(config_of(tmp_path, **TRACE), tokens)
    expected_t = by_token(tokens, kept)
    assert torch.equal(credit.mask * tokens.mask_t, expected_t) and 3 < expected_t.sum() < tokens.mask_t.sum() - 3
    assert credit.log_weight is credit.traced is not None  # the trace of the knobs
    check(credit, tokens, tokens.advantages.unsqueeze(1))


def test_maxrl_divides_by_the_mean_of_the_scored():
    rewards = torch.tensor([1, 0, 0, 0, 0, 0, 0, 0, 1, torch.nan, 1, 0]).double()
    advantages = load_script(FOLDER / "maxrl.py").maxrl(rewards, lengths=torch.ones(12), num_generations=4)
    assert advantages.tolist() == pytest.approx([3, -1, -1, -1, 0, 0, 0, 0, 0.5, 0, 0.5, -1])


def test_group_words_count_in_right_and_not_in_wrong_responses(tokens, batch, tmp_path):
    def only_right(b, at, i):
        others = (batch.token_ids == batch.token_ids[b, at[i]]) & (batch.group_ids == batch.group_ids[b]).unsqueeze(1)
        return (batch.advantage_t[others] > 0).any() and not (batch.advantage_t[others] < 0).any()

    expected_t, one = by_token(batch, only_right), gallery("group_words", strength=0.7)
    same(one.statistics(config_of(tmp_path), batch), expected_t)
    assert 3 < expected_t.sum() < batch.mask_t.sum() / 2
    credit = one.credit(config_of(tmp_path), replace(tokens, statistics_t=expected_t[:6]))
    check(credit, tokens, tokens.advantages.unsqueeze(1) * (1 + 0.7 * expected_t[:6]))


def test_gtpo_shares_a_bonus_by_entropy_and_normalises_each_side(tokens, batch, tmp_path):
    sign_t, shaped = batch.advantage_t.sign().nan_to_num(), {}
    for b, t in sign_t.nonzero().tolist():
        sign, group, x = sign_t[b, t].item(), batch.group_ids[b].item(), (-batch.logp_t[:, t]) ** sign_t[b, t]
        peers = [j for j in range(12) if batch.group_ids[j] == group and sign_t[j, t] == sign]
        bonus = len(peers) * x[b].item() / sum(x[j].item() for j in peers)
        shaped.setdefault((group, sign), {})[b, t] = sign * (1 + 0.3 * bonus)
    expected_t = torch.zeros_like(sign_t)
    for values in shaped.values():
        for place, value in values.items():
            mean, std = statistics.fmean(values.values()), statistics.pstdev(values.values())
            expected_t[place] = (value - mean) / (std + 1e-4)
    one = gallery("gtpo", entropy_share=0.3)
    same(one.statistics(config_of(tmp_path), batch), expected_t)
    check(one.credit(config_of(tmp_path), replace(tokens, statistics_t=expected_t[:6])), tokens, expected_t[:6])


def test_end_decay_and_hidden_surprise(tokens, tmp_path):
    def turn(b, at, i):
        new, old = tokens.hidden_t[b, at[i]], tokens.hidden_t[b, at[i] - 1]
        return 1 - (new @ old) / math.sqrt(new @ new) / math.sqrt(old @ old) if at[i] - 1 in at else 0.0

    turn_t = by_token(tokens, turn)
    faded_t = by_token(tokens, lambda b, at, i: tokens.advantages[b] * 0.25 ** (i / max(len(at) - 1, 1)))
    turned_t = tokens.advantages.unsqueeze(1) * (1 + 0.8 * turn_t / turn_t.amax(-1, keepdim=True).clamp(min=1e-6))
    check(gallery("end_decay", last_factor=0.25).credit(config_of(tmp_path), tokens), tokens, faded_t)
    check(gallery("hidden_surprise", strength=0.8).credit(config_of(tmp_path), tokens), tokens, turned_t)


@pytest.mark.parametrize("name", sorted({*FILES} - {"maxrl"}))
def test_they_keep_the_contract(name, tmp_path):
    assert len(check_credit(gallery(name), config=config_of(tmp_path, **TRACE))) == 10


def test_each_is_short_and_its_formula_comes_first_and_the_page_lists_it():
    row = r"^\| \[(\w+)\.py\]\(\.\./examples/algorithms/\1\.py\) \| .+ \| .+ \| (\d+) \|$"
    page = (ROOT / "docs" / "your_own_algorithm.md").read_text(encoding="utf-8")
    lines = {name: (FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines() for name in FILES}
    assert dict(re.findall(row, page, re.MULTILINE)) == {name: str(len(text)) for name, text in lines.items()}
    assert len(FILES) == 11 and all(10 <= len(text) <= 40 and "=" in text[0] for text in lines.values())


@pytest.mark.parametrize("name", FILES)
@pytest.mark.slow
def test_each_trains_by_the_command_in_it(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    _, command = load_script(FOLDER / f"{name}.py").__doc__.split("trl-credit train ")
    command += f" --per_device_train_batch_size 16 --max_steps 2 --output_dir {tmp_path}"
    load_script("examples/train.py").main(command.split())
    assert f"{name}.py" in (tmp_path / "README.md").read_text(encoding="utf-8").replace("\\_", "_")
