"""Credit of tokens in closed form against the gradient of TRL's own loss, and what S-trace and GRPO-λ prove."""

import pytest
import torch
from coefficients import (
    eligibility_traces,
    eligible_coefficient,
    generalized_advantage,
    lambda_trace_coefficient,
    lambda_weight_coefficient,
    sequence_coefficient,
    terminal_log_weight,
)
from conftest import toy_inputs

from trl_credit.credit.clipping import is_clipped
from trl_credit.credit.selection import select_high_entropy
from trl_credit.credit.weights import lambda_trace_log_weight, sequence_log_weight


CLIP = (0.8, 1.25)
DECAY = 0.7


def rows(off_policy: float = 0.4, length: int = 12) -> dict[str, torch.Tensor]:
    """Three rows, the second shorter and the third with a hole, at which nothing may be read."""
    g = torch.Generator().manual_seed(5)
    logp_t = -torch.rand(3, length, generator=g, dtype=torch.float64)
    mask_t = torch.ones(3, length, dtype=torch.long)
    mask_t[1, 9:] = 0
    mask_t[2, 4:6] = 0
    change_t = off_policy * torch.randn(3, length, generator=g, dtype=torch.float64)
    old_logp_t = torch.where(mask_t.bool(), logp_t - change_t, -50.0)
    return {"logp_t": logp_t, "old_logp_t": old_logp_t, "mask_t": mask_t}


ADVANTAGES = torch.tensor([0.5, -0.4, -1.5], dtype=torch.float64)
LAST = torch.arange(3), torch.tensor([11, 8, 11])  # the last loss token of each row


METHODS = {
    "GRPO": ("base", {}, lambda **x: eligible_coefficient(decay=0.0, **x)),
    "P-trace": ("p_trace", {}, lambda **x: eligible_coefficient(decay=DECAY, **x)),
    "S-trace": ("s_trace", {"selective_rate": 0.3}, lambda **x: eligible_coefficient(decay=DECAY, **x)),
    "ε-trace": ("grpo_lambda", {}, lambda **x: lambda_trace_coefficient(decay=DECAY, **x)),
    "ε-weight": ("base", {"loss_weight": "trace_future"}, lambda **x: lambda_weight_coefficient(decay=DECAY, **x)),
    "GSPO": ("gspo", {}, sequence_coefficient),
}


@pytest.mark.parametrize("off_policy", [0.0, 0.4])
@pytest.mark.parametrize("method", METHODS)
def test_coefficients_are_the_gradient_of_the_loss(make_trainer, toy_loss, method, off_policy):
    """Eq. 30a to 30c and GSPO's, times A, for tokens clipped and not, of rows with padding and a hole."""
    algo, knobs, coefficient = METHODS[method]
    traced = {} if method in ("GRPO", "GSPO") else {"trace_lambda": DECAY}
    plain = {"beta": 0.0, "epsilon": 0.2, "epsilon_high": 0.25}
    floor = {"advantage_floor": None} if algo == "grpo_lambda" else {}
    loss_type = {"loss_type": "grpo" if method == "GSPO" else "dr_grpo"}
    trainer = make_trainer(algo, **plain, **loss_type, **knobs, **traced, **floor)
    given = rows(off_policy)
    logps = given["logp_t"].clone().requires_grad_()
    entropies = torch.rand(logps.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mask_t = given["mask_t"]
    inputs = toy_inputs(mask_t, advantages=ADVANTAGES, old_per_token_logps=given["old_logp_t"])
    loss = toy_loss(trainer, inputs, logps=logps, entropies=entropies)
    # Dr.GRPO divides by rows × completion length; the row mean, by rows × loss tokens
    per_row = mask_t.sum(-1, keepdim=True) if method == "GSPO" else trainer.args.max_completion_length
    gradient = -torch.autograd.grad(loss, logps)[0] * 3 * per_row
    selected = {}
    if method == "S-trace":
        selected = {"selected_t": select_high_entropy(entropies, rate=0.3, mask_t=mask_t)}
    found = coefficient(advantages=ADVANTAGES, clip_range=CLIP, **given, **selected)
    torch.testing.assert_close(found * ADVANTAGES.unsqueeze(1), gradient, rtol=1e-12, atol=1e-15)
    assert found[~mask_t.bool()].eq(0).all() and found.gt(0).any()


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("surrogate", [[False, False, False, True], [True, False, False, False], [False] * 4]),
        ("ratio", [[False, False, False, True], [False, False, False, True], [False] * 4]),
    ],
)
def test_is_clipped_by_hand(form, expected):
    log_weight_t = torch.tensor([[0.79, 0.81, 1.24, 1.26]] * 3, dtype=torch.float64).log()
    advantage_t = torch.tensor([[1.0], [-1.0], [0.0]])
    assert is_clipped(log_weight_t, advantage_t=advantage_t, clip_range=CLIP, form=form).tolist() == expected


def test_the_share_that_the_lambda_trace_clips():
    """docs/theory.md: the same noise clips 27 % of tokens in the ε-trace, and one in 15,000 in GRPO and P-trace."""
    noise = 0.05 * torch.randn(200, 1000, generator=torch.Generator().manual_seed(1))
    signs = torch.tensor([1.0, -1.0]).repeat(100).unsqueeze(1)
    given = {"old_logp_t": torch.zeros_like(noise), "mask_t": torch.ones_like(noise)}
    traced = lambda_trace_log_weight(noise, decay=0.99, **given)
    shares = [is_clipped(w, advantage_t=signs, clip_range=(0.8, 1.2)).double().mean() for w in (traced, noise)]
    assert shares[0].item() == pytest.approx(0.27, abs=0.015)
    assert shares[1].item() == pytest.approx(1 / 15_000, abs=1e-4)


# GSPO as a trace that does not decay


def test_the_weight_of_the_last_token_is_gspos_without_a_decay_and_that_of_the_lambda_trace_with_one():
    given = rows()
    uniform = terminal_log_weight(**given)
    torch.testing.assert_close(uniform, sequence_log_weight(**given)[:, 0], rtol=1e-15, atol=1e-16)
    # an ε-trace with g = 1 at the last token is n times that: GSPO's ratio is its n-th root
    n = given["mask_t"].sum(-1).double()
    last = lambda_trace_log_weight(decay=1.0, **given)[:, -1]
    torch.testing.assert_close((last.exp() ** (1 / n)).log(), uniform, rtol=1e-14, atol=1e-16)
    traced = lambda_trace_log_weight(decay=DECAY, **given)
    torch.testing.assert_close(terminal_log_weight(decay=DECAY, **given), traced[LAST], rtol=1e-14, atol=1e-16)
    given = {name: x[:1] for name, x in given.items()} | {"mask_t": torch.zeros(1, 12, dtype=torch.long)}
    for decay in (None, DECAY):  # a row without loss tokens
        assert terminal_log_weight(decay=decay, **given).tolist() == [0.0]


@pytest.mark.parametrize("decay", [None, DECAY])
def test_the_gradients_of_d2(decay):
    """Eq. 33 and 37: ρ A times g^{T−k}, or 1/n."""
    given = rows()
    logp_t = given.pop("logp_t").requires_grad_()
    weight = terminal_log_weight(logp_t, decay=decay, **given)
    gradient = torch.autograd.grad((weight.exp() * ADVANTAGES).sum(), logp_t)[0]
    expected = torch.zeros_like(gradient)
    for row, (n, last) in enumerate(((12, 11), (9, 8), (10, 11))):
        for k in given["mask_t"][row].nonzero().flatten().tolist():
            size = 1 / n if decay is None else decay ** (last - k)
            expected[row, k] = (weight[row].exp() * ADVANTAGES[row]).item() * size
    torch.testing.assert_close(gradient, expected, rtol=1e-13, atol=1e-16)


# Proposition 4.1 of S-trace, Theorem 1 of GRPO-λ


def a_response(n_tokens: int = 9):
    """A small softmax policy with parameters θ, a response, π_old, and the δ of a critic that knows nothing."""
    g = torch.Generator().manual_seed(7)
    theta = torch.randn(4, 6, generator=g, dtype=torch.float64)  # states' features × tokens
    features = torch.randn(n_tokens, 4, generator=g, dtype=torch.float64)
    written = torch.randint(0, 6, (n_tokens,), generator=g)

    def logps(theta):
        return (features @ theta).log_softmax(-1)[torch.arange(n_tokens), written]

    old_logp_t = logps(theta + 0.2 * torch.randn(4, 6, generator=g, dtype=torch.float64))
    values = torch.cat([torch.randn(n_tokens, generator=g, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)])
    rewards = torch.zeros(n_tokens, dtype=torch.float64)
    rewards[-1] = 1.0
    gamma = 0.95
    return theta, logps, old_logp_t, rewards + gamma * values[1:] - values[:-1], gamma


@pytest.mark.parametrize("on_policy", [True, False])
@pytest.mark.parametrize("trace_lambda", [0.0, 0.9, 1.0])
def test_the_gradient_of_ppo_is_a_sum_of_td_errors_times_traces(on_policy, trace_lambda):
    theta, logps, old_logp_t, td_error_t, gamma = a_response()
    decay = gamma * trace_lambda
    if on_policy:
        old_logp_t = logps(theta)
    advantage_t = generalized_advantage(td_error_t, decay=decay)
    for t in range(9):  # GAE as printed
        by_hand = sum(decay ** (later - t) * td_error_t[later].item() for later in range(t, 9))
        assert advantage_t[t].item() == pytest.approx(by_hand, rel=1e-13)
    gradient = torch.func.grad(lambda x: ((logps(x) - old_logp_t).exp() * advantage_t).sum())(theta)
    score_t = torch.func.jacrev(logps)(theta).flatten(1)
    ratio_t = None if on_policy else (logps(theta) - old_logp_t).exp()
    traces = eligibility_traces(score_t, ratio_t=ratio_t, decay=decay)
    torch.testing.assert_close((td_error_t @ traces).view_as(theta), gradient, rtol=1e-11, atol=1e-13)
    if not on_policy:  # Theorem 1 is the case ρ = 1 alone
        without = td_error_t @ eligibility_traces(score_t, decay=decay)
        assert (without.view_as(theta) - gradient).abs().max() > 0.05 * gradient.abs().max()


def test_p_trace_is_the_proposition_with_a_for_the_td_error_where_all_ratios_are_equal():
    """Eq. 7 and 8: the ratios of the past in e_t give way to ρ_t, which is exact where they do not differ."""
    theta, logps, old_logp_t, _, _ = a_response()
    score_t = torch.func.jacrev(logps)(theta).flatten(1)
    for shift_t, equal in ((torch.full((9,), 0.1, dtype=torch.float64), True), (logps(theta) - old_logp_t, False)):
        traces = eligibility_traces(score_t, ratio_t=shift_t.exp(), decay=DECAY)
        coefficient = eligible_coefficient(
            logps(theta).unsqueeze(0),
            old_logp_t=(logps(theta) - shift_t).unsqueeze(0),
            advantages=torch.tensor([0.5], dtype=torch.float64),
            decay=DECAY,
            clip_range=(0.0, torch.inf),
            mask_t=torch.ones(1, 9),
        )
        assert torch.allclose(coefficient[0] @ score_t, traces.sum(0), rtol=1e-12, atol=1e-13) == equal
