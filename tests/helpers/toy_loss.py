"""Toy tensors through the real `_compute_loss` of TRL, by the fixture `toy_loss`."""

import torch
from conftest import toy_inputs


def toy(seed=0, batch=4, length=7, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    logps = (-2 * torch.rand(batch, length, generator=g, dtype=dtype)).requires_grad_()
    old = logps.detach() + 0.3 * torch.randn(batch, length, generator=g, dtype=dtype)
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, 4:], mask[1, 2:4] = 0, 0  # a short completion and tool tokens inside one
    return {
        "logps": logps,
        "old": old,
        "ref": old + 0.1 * torch.randn(batch, length, generator=g, dtype=dtype),
        "entropies": torch.rand(batch, length, generator=g, dtype=dtype),
        "advantages": torch.tensor([1.0, -0.5, 0.7, -1.2], dtype=dtype)[:batch],
        "mask": mask,
    }


def run(trainer, toy_loss, t, *, with_old=True, **tensors):
    """Loss and gradient."""
    inputs = toy_inputs(t["mask"], advantages=t["advantages"], ref_per_token_logps=t["ref"], **tensors)
    if with_old:
        inputs["old_per_token_logps"] = t["old"]
    loss = toy_loss(trainer, inputs, logps=t["logps"], entropies=t["entropies"])
    return loss, torch.autograd.grad(loss, t["logps"], retain_graph=True)[0]


def surrogate(t, advantage_t, *, low=0.8, high=1.2, ratio_t=None):
    """PPO's min(ρ A, clip(ρ) A) of each token."""
    ratio_t = (t["logps"] - t["old"]).exp() if ratio_t is None else ratio_t
    return torch.minimum(ratio_t * advantage_t, ratio_t.clamp(low, high) * advantage_t)


def k3(t):
    difference_t = t["ref"] - t["logps"]
    return difference_t.exp() - difference_t - 1


def check_same(left, right):
    """Two results of [`run`] are equal to the last bit."""
    torch.testing.assert_close(left, right, rtol=0, atol=0)


def check_close(left, right, *, rtol=1e-12, atol=1e-14):
    torch.testing.assert_close(left, right, rtol=rtol, atol=atol)


def check_loss(actual, expected, logps, *, rtol=1e-10, atol=1e-12):
    """A result of [`run`] has the value of `expected` and its gradient."""
    check_close(actual, (expected, torch.autograd.grad(expected, logps)[0]), rtol=rtol, atol=atol)


def at_ratio_1(trainer, toy_loss, *lengths):
    """Rows of so many tokens, and the gradient of their loss. Advantages are above GRPO-λ's floor."""
    g, shape = torch.Generator().manual_seed(3), (len(lengths), max(lengths))
    logps = (-torch.rand(*shape, generator=g, dtype=torch.float64)).requires_grad_()
    entropies = torch.rand(*shape, generator=g, dtype=torch.float64)
    mask = (torch.arange(shape[1]) < torch.tensor(lengths).unsqueeze(1)).long()
    advantages = torch.tensor([0.5, -0.05, 1.0], dtype=torch.float64)[: len(lengths)]
    inputs = toy_inputs(mask, advantages=advantages, old_per_token_logps=logps.detach())
    (gradient,) = torch.autograd.grad(toy_loss(trainer, inputs, logps=logps, entropies=entropies), logps)
    parts = {"mask": mask, "entropies": entropies, "advantages": advantages}
    return parts | {"logps": logps.detach(), "gradient": gradient.abs()}
