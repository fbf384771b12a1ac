"""Functions of a user's own, as a file that settings name: each stands for one kind of plug-in."""

from dataclasses import dataclass, field, replace

import torch

from trl_credit import Credit, assign_credit, knob
from trl_credit.config.knobs import NOT_NEGATIVE
from trl_credit.credit.advantages import optimal_advantage
from trl_credit.credit.scan import discounted_scan
from trl_credit.credit.selection import probability_mask, select_high_entropy


@dataclass
class Times:
    """A new A: a multiple of it."""

    factor: float = 1.0

    def credit(self, config, tokens):
        return Credit(None, self.factor * tokens.advantages)


def half_decay(config, tokens):
    """A new W: an eligibility trace of decay one half, written anew."""
    own = torch.where(tokens.mask_t.bool(), tokens.logp_t - tokens.logp_t.detach(), 0.0)
    value = (tokens.logp_t - tokens.old_logp_t).detach()
    return Credit(log_weight=value + discounted_scan(own, decay=0.5), advantage=tokens.advantages)


def later_is_less(config, tokens):
    """A new A on whatever W the knobs give: half of it at the end of a response."""
    credit = assign_credit(config, tokens)
    rank = tokens.mask_t.cumsum(-1) - 1
    share = rank / tokens.mask_t.sum(-1, keepdim=True).clamp(min=1)
    return replace(credit, advantage=credit.advantage * (1 - 0.5 * share))


def weighted_kl(config, tokens):
    """A loss of its own: the plain ratio, minus a tenth of the squared log-ratio at every token."""
    log_ratio = tokens.logp_t - tokens.old_logp_t
    a_t = tokens.advantages if tokens.advantages.dim() == 2 else tokens.advantages.unsqueeze(1)
    inside = tokens.mask_t.bool()
    gain = torch.where(inside, log_ratio.exp() * a_t - 0.1 * log_ratio.square(), 0.0)
    return Credit(log_weight=None, advantage=gain)


weighted_kl.carries_loss = True


def same_baseline(rewards, *, lengths, num_generations):
    return optimal_advantage(rewards, lengths=lengths, num_generations=num_generations)


def same_selector(entropy_t, *, rate, mask_t):
    return select_high_entropy(entropy_t, rate=rate, mask_t=mask_t)


def same_mask(old_logp_t, *, threshold, mask_t):
    return probability_mask(old_logp_t, threshold=threshold, mask_t=mask_t)


def every_third(old_logp_t, *, completion_ids, decode, mask_t):
    """Cuts segments of three tokens, by the token ids."""
    starts_t = torch.zeros_like(mask_t, dtype=torch.bool)
    for row, ids in enumerate(completion_ids):
        assert len(decode(list(ids))) <= len(ids)
        starts_t[row, range(0, len(ids), 3)] = True
    return starts_t


def one_step(text):
    """The <b>whole</b> text."""
    return [0, len(text)]


@dataclass
class GroupWords:
    """A token counts more in right responses whose group has it in no wrong one."""

    strength: float = knob(0.5, NOT_NEGATIVE)
    cap: float | None = None
    signs: tuple[int, ...] = (1, -1)
    grows: bool = False
    _batches: int = field(default=0, init=False)

    def statistics(self, config, batch):
        self._batches += 1
        words_t = torch.zeros_like(batch.mask_t)
        for group in batch.group_ids.unique():
            own = batch.group_ids == group
            right = own & (batch.rewards > batch.rewards[own].mean())
            known_t = ~torch.isin(batch.token_ids, batch.token_ids[own & ~right])
            words_t += known_t * right.unsqueeze(1) * self.signs[0]
        return words_t * self._batches if self.grows else words_t

    def credit(self, config, tokens):
        credit = assign_credit(config, tokens)
        factor_t = (1 + self.strength * tokens.statistics_t).clamp(max=self.cap or float("inf"))
        return replace(credit, advantage=credit.advantage.view(len(factor_t), -1) * factor_t)

    def state_dict(self):
        return {"batches": self._batches}

    def load_state_dict(self, state):
        self._batches = state["batches"]


# Rewards


def even(completions, answer, **kwargs):
    return [float(len(text) % 2) for text in completions]


def nobody(completions, answer, **kwargs):
    raise OSError("no judge")


def lacking(completions, truth, **kwargs):
    return [1.0] * len(completions)
