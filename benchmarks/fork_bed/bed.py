"""Forks in filler: a policy over responses of fixed layout, whose expected reward and prefix values are exact.

A response has K = 4 forks, each after m filler tokens, and a tail. Every token is one of V = 4 actions with the logits
b + W·φ: W is trained and shared by all tokens, the unit features φ are random and fixed. The reward is 1 if all forks
are right. Actions do not depend on earlier ones, so J and every prefix's value are products of probabilities.
"""

from dataclasses import dataclass

import torch


K, V, P, G, D = 4, 4, 8, 8, 64  # forks, actions, prompts, responses of a prompt, features


@dataclass(frozen=True)
class Setting:
    """A layout.

    Attributes:
        filler: m, filler tokens before each fork.
        sure: q, probability of a filler token's usual action at the start, before its logit gets 0.5 times a normal.
        tail: Filler tokens after the last fork.
        uniform: Share of filler whose four actions are equally likely (synonyms).
        right: Probability of the right action at the forks of each prompt, P values.
        about: A few words for tables.
    """

    filler: int
    sure: float
    tail: int
    about: str
    uniform: float = 0.0
    right: tuple[float, ...] = (0.5,) * P

    @property
    def length(self) -> int:
        """T, tokens of a response."""
        return K * (self.filler + 1) + self.tail

    @property
    def forks(self) -> torch.Tensor:
        """Positions of the forks, shape (K,)."""
        return torch.arange(1, K + 1) * (self.filler + 1) - 1

    @property
    def step_starts(self) -> torch.Tensor:
        """Where a step begins: each fork's filler, and the tail."""
        starts = torch.arange(K + 1) * (self.filler + 1)
        return starts[starts < self.length]


SETTINGS = {
    "A": Setting(16, 0.999, 0, "sure filler, ends on a decision"),
    "B": Setting(16, 0.999, 16, "sure filler, a tail"),
    "C": Setting(16, 0.95, 16, "loose filler"),
    "D": Setting(32, 0.99, 16, "long responses"),
    "E": Setting(16, 0.999, 16, "harmless variety", uniform=0.3),
    "F": Setting(16, 0.999, 16, "half of the prompts hard", right=(0.2,) * (P // 2) + (0.8,) * (P // 2)),
}


@dataclass(frozen=True)
class Bed:
    """Policies of one setting, a run each. All tensors are float64.

    Attributes:
        setting: The layout.
        features: φ, shape (runs, P, T, D).
        bias: b, shape (runs, P, T, V).
        right: The right action at each fork, int64, shape (runs, P, K).
        other: An action that is neither the usual nor the right one, int64, shape (runs, P, T); only teachers know it.
    """

    setting: Setting
    features: torch.Tensor
    bias: torch.Tensor
    right: torch.Tensor
    other: torch.Tensor

    @property
    def runs(self) -> int:
        """Number of runs."""
        return len(self.bias)

    def log_probs(self, weights: torch.Tensor) -> torch.Tensor:
        """log π of all actions at all positions, shape (runs, P, T, V), for W of the shape (runs, D, V)."""
        logits = torch.bmm(self.features.flatten(1, 2), weights).view_as(self.bias) + self.bias
        return logits.log_softmax(-1)

    def weight_gradient(self, logit_gradient: torch.Tensor) -> torch.Tensor:
        """Gradient with respect to W, shape (runs, D, V), of what has this gradient with respect to the logits."""
        return torch.bmm(self.features.flatten(1, 2).transpose(1, 2), logit_gradient.flatten(1, 2))

    def right_probs(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Probability of the right action at each fork, shape (runs, P, K)."""
        return log_probs[:, :, self.setting.forks].gather(-1, self.right[..., None])[..., 0].exp()

    def solve_rates(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Expected reward of each prompt, shape (runs, P); its mean over prompts is J."""
        return self.right_probs(log_probs).prod(-1)

    def solve_rate_gradient(self, log_probs: torch.Tensor) -> torch.Tensor:
        """∇J with respect to W, shape (runs, D, V): at a fork ∂J/∂logit = J_p (1[right] − π), divided by P."""
        gradient = torch.zeros_like(log_probs)
        at = torch.nn.functional.one_hot(self.right, V) - log_probs[:, :, self.setting.forks].exp()
        gradient[:, :, self.setting.forks] = self.solve_rates(log_probs)[..., None, None] * at / P
        return self.weight_gradient(gradient)


def make_bed(setting: Setting, seeds: list[int]) -> Bed:
    """A run for each seed; the seed decides features, biases and right actions."""
    beds = [_draw(setting, torch.Generator().manual_seed(seed)) for seed in seeds]
    return Bed(setting, *(torch.stack(parts) for parts in zip(*beds, strict=True)))


def _draw(setting: Setting, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    length, double = setting.length, torch.float64
    features = torch.randn(P, length, D, generator=generator, dtype=double)
    features /= features.norm(dim=-1, keepdim=True)
    favoured = torch.randint(V, (P, length), generator=generator)  # the usual action, or the right one
    noise = 0.5 * torch.randn(P, length, generator=generator, dtype=double)
    loose = torch.rand(P, length, generator=generator, dtype=double) < setting.uniform
    # a lead of x over three equal actions has the probability e^x / (e^x + 3)
    lead = torch.where(loose, 0.0, _lead(torch.tensor(setting.sure, dtype=double)) + noise)
    lead[:, setting.forks] = _lead(torch.tensor(setting.right, dtype=double))[:, None].expand(-1, K)
    bias = torch.nn.functional.one_hot(favoured, V) * lead[..., None]
    other = (favoured + torch.randint(1, V, (P, length), generator=generator)) % V
    return features, bias, favoured[:, setting.forks], other


def _lead(probability: torch.Tensor) -> torch.Tensor:
    return (3 * probability / (1 - probability)).log()
