"""Teachers on the bed: the policy itself, with the logits raised of what it was told and of how it writes."""

from dataclasses import dataclass, replace

import torch

from .batch import Batch, chosen
from .bed import Bed, V


TOLD = 3.0  # on the logit of the action that the teacher was told: a probability of 0.5 becomes 0.95


@dataclass(frozen=True)
class Teacher:
    """A teacher.

    Attributes:
        label: Its name in tables.
        is_wrong: Whether it was told a wrong action at each fork.
        style: On the logit of one unusual action at each filler token.
    """

    label: str
    is_wrong: bool = False
    style: float = 0.0

    def log_probs(self, bed: Bed, log_probs: torch.Tensor) -> torch.Tensor:
        """log πᵀ of all actions for the policy of these log-probabilities, shape (runs, P, T, V)."""
        forks = bed.setting.forks
        raised = self.style * torch.nn.functional.one_hot(bed.other, V).to(log_probs.dtype)
        told = bed.other[:, :, forks] if self.is_wrong else bed.right
        raised[:, :, forks] = TOLD * torch.nn.functional.one_hot(told, V).to(log_probs.dtype)
        return (log_probs + raised).log_softmax(-1)


TEACHERS = {
    "answer": Teacher("told the answer"),
    "style": Teacher("told the answer, with a style", style=1.0),
    "wrong": Teacher("told a wrong answer", is_wrong=True),
}


def with_teacher(teacher: Teacher | None, bed: Bed, log_probs: torch.Tensor, batch: Batch) -> Batch:
    """The batch with the teacher's log-probabilities of its actions; the batch itself without a teacher."""
    if teacher is None:
        return batch
    return replace(batch, teacher_logp_t=chosen(teacher.log_probs(bed, log_probs), batch.actions))


def share_on_forks(teacher: Teacher, bed: Bed, log_probs: torch.Tensor) -> torch.Tensor:
    """The forks' share of Σ_t E|d_t|, d = log πᵀ − log π of the action, shape (runs,)."""
    size = (log_probs.exp() * (teacher.log_probs(bed, log_probs) - log_probs).abs()).sum((1, 3))
    return size[:, bed.setting.forks].sum(-1) / size.sum(-1)


def style_share(bed: Bed, log_probs: torch.Tensor) -> torch.Tensor:
    """Mean probability of the unusual action over the filler, shape (runs,)."""
    is_filler = torch.ones(bed.setting.length, dtype=torch.bool)
    is_filler[bed.setting.forks] = False
    return log_probs.exp().gather(-1, bed.other[..., None])[:, :, is_filler].mean((1, 2, 3))
