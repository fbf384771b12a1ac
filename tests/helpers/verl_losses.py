"""Toy tensors through verl's `ppo_loss`. For tests that have found verl."""

import torch
from hydra.utils import instantiate
from tensordict import TensorDict
from verl.workers.config import FSDPActorConfig
from verl.workers.utils import losses

from trl_credit.engines import verl as plugin


AGGREGATIONS = {
    "token-mean": lambda x, m: (x * m).sum() / m.sum(),
    "token-sum": lambda x, m: (x * m).sum(),
    "seq-mean-token-sum": lambda x, m: (x * m).sum() / len(m),
    "seq-mean-token-mean": lambda x, m: ((x * m).sum(-1) / m.sum(-1)).mean(),
    "seq-mean-token-sum-norm": lambda x, m: (x * m).sum() / len(m) / 16,
}
LOSS = {"_target_": "trl_credit.engines.verl.PolicyLoss"}


def actor_of(algo, *, like=None, knobs=None, **settings):
    """The actor's configuration, with the loss of a configuration of TRL, and no dual clip."""
    ours = {} if like is None else plugin.settings_of(like)
    ours |= {} if like is None else {"use_kl_loss": like.beta != 0.0}
    settings = {"strategy": "fsdp2", "rollout_n": 4, "ppo_micro_batch_size_per_gpu": 2, **ours, **settings}
    settings["clip_ratio_c"] = 1e9 if settings.get("clip_ratio_c") is None else settings["clip_ratio_c"]
    policy_loss = instantiate(LOSS | {"loss_mode": f"trl_credit.{algo}"} | (knobs or {}), _convert_="partial")
    return FSDPActorConfig(**settings, loss_scale_factor=16, policy_loss=policy_loss)


def verl_loss(actor, t, *, is_packed=True, with_entropies=True):
    """Loss, gradient and metrics of `ppo_loss` for toy tensors; prompts have 1, 2, … tokens.

    `t["written"]` is the mask before verl's rejection of tokens.
    """
    rows, mask = len(t["mask"]), t["mask"].bool()
    ends = [int(row.nonzero().max()) + 1 for row in t.get("written", mask)]
    longest, firsts = max(ends), range(1, rows + 1)
    numbers = torch.arange(longest)

    def per_token(x):
        x = x.expand(rows, mask.size(1))
        if is_packed:
            return torch.nested.as_nested_tensor([row[:n] for row, n in zip(x, ends, strict=True)], layout=torch.jagged)
        return torch.stack([torch.where(numbers < n, row[:longest], 0) for row, n in zip(x, ends, strict=True)])

    def from_model(x):  # at the token before the one it is for
        parts = [
            torch.cat([x.new_zeros(p - 1), row[:n], x.new_zeros(1)]) for p, row, n in zip(firsts, x, ends, strict=True)
        ]
        return torch.cat(parts)

    advantages = t["advantages"] if t["advantages"].dim() == 2 else t["advantages"].unsqueeze(1)
    data = {"response_mask": mask, "old_log_probs": t["old"], "advantages": advantages * mask, "ref_log_prob": t["ref"]}
    data |= {"responses": torch.arange(mask.numel()).view_as(mask), "loss_mask": t.get("written", mask)}
    data |= {"rollout_log_probs": t["old"] + 0.25}
    data = {name: per_token(x) for name, x in data.items()}
    if is_packed:
        data["prompts"] = torch.nested.as_nested_tensor([torch.ones(p) for p in firsts], layout=torch.jagged)
    else:
        data["prompts"] = torch.ones(rows, rows)
        before = [torch.arange(rows) >= rows - p for p in firsts]
        after = [numbers < n for n in ends]
        data["attention_mask"] = torch.stack([torch.cat(x) for x in zip(before, after, strict=True)]).long()
    sizes = {"dp_size": 1, "batch_num_tokens": mask.sum().item(), "global_batch_size": rows}
    data = TensorDict(data, batch_size=rows)
    for name, x in sizes.items():
        data.set_non_tensor(name, x)
    output = {"log_probs": from_model(t["logps"])} | ({"entropy": from_model(t["entropies"])} if with_entropies else {})
    value, metrics = losses.ppo_loss(actor, output, data)
    return value, torch.autograd.grad(value, t["logps"], retain_graph=True)[0], metrics
