"""The knobs of groups and prompts: what happens to groups without signal, and which prompts are drawn."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..support.functions import imports_functions
from .knobs import COUNT, SHARE, Values, anything_but, knob, number, one_of, when


FILTERED = when(groups=anything_but("keep"))
KL_OF_ROWS = when(beta=anything_but(0.0), rollouts=("none", "chain"), policy_loss="clip")
DROPPED_KL = when(dull_kl="drop")
BY_DIFFICULTY = when(prompt_sampler="difficulty")
SIGNAL_IS_CORRECT = when(group_signal="correct")
# where it matters which of the rewards says what is correct
CORRECT_READ = (FILTERED | SIGNAL_IS_CORRECT, DROPPED_KL | SIGNAL_IS_CORRECT, BY_DIFFICULTY)


def _is_file(path: Any) -> bool:
    """Whether a file exists. What only reads the settings of another run needs none of its files."""
    return isinstance(path, str) and path != "" and (not imports_functions() or Path(path).expanduser().is_file())


RATES_FILE = Values("the prompt_rates.jsonl of an earlier run, a file that exists", _is_file)

_group = partial(knob, heading="Groups and prompts")


@dataclass
class GroupKnobs:
    r"""
    Which groups and prompts a batch is made of: a part of [`CreditConfig`].

    A group has signal if its responses differ, by `group_signal`.

    Parameters:
        groups (`str`, *optional*, defaults to `"keep"`):
            What happens to groups without signal. `"keep"` leaves them in the batch (TRL). `"replace"` makes them
            copies of groups with signal (POLARIS), unless less than a third have it. `"refill"` samples further prompts
            until the batch is full (DAPO).
        group_signal (`str`, *optional*, defaults to `"correct"`):
            What must differ within a group: the sum of the rewards of `difficulty_reward` (`"correct"`, DAPO), or the
            total reward (`"reward"`). `"advantage"` asks for an advantage other than 0. Truncated responses count for
            the first two, even if masked.
        max_copies (`int`, *optional*, defaults to `2`):
            Copies of a group in a batch, besides itself (2 is ours).
        max_refills (`int`, *optional*, defaults to `10`):
            Further engine calls for one batch. After the last one, copies fill it as with `"replace"`.
        dull_kl (`str`, *optional*, defaults to `"keep"`):
            The KL term of groups without signal: TRL's (`"keep"`), or 0 in their rows without an advantage, with the
            same divisor of the loss (`"drop"`).
        prompt_sampler (`str`, *optional*, defaults to `"data"`):
            The order of prompts: that of the data set (`"data"`, TRL), or drawn without replacement within a batch, in
            proportion to p(1−p) (`"difficulty"`, ours). p is the last pass rate of a prompt, or 1/2 if it is unseen.
            `prompt_rates.jsonl` keeps the rates.
        prompt_floor (`float`, *optional*, defaults to `0.05`):
            The smallest p(1−p), in [0, 0.25] (0.05 is ours). With 0, prompts that were always or never solved in their
            last group are not drawn again.
        retire_above (`float`, *optional*):
            Prompts whose last pass rate is above it, in [0, 1], are not drawn again, unless too few are left.
        prompt_rates (`str`, *optional*):
            A `prompt_rates.jsonl` of an earlier run to start from. Prompts are found by their text.
    """

    groups: str = _group("keep", one_of("keep", "replace", "refill"))
    group_signal: str = _group("correct", one_of("correct", "reward", "advantage"), acts=(FILTERED, DROPPED_KL))
    max_copies: int = _group(2, COUNT, acts=FILTERED)
    max_refills: int = _group(10, COUNT, acts=when(groups="refill"))
    dull_kl: str = _group("keep", one_of("keep", "drop"), acts=KL_OF_ROWS)
    prompt_sampler: str = _group("data", one_of("data", "difficulty"))
    prompt_floor: float = _group(0.05, number("in [0, 0.25]", lambda x: 0.0 <= x <= 0.25), acts=BY_DIFFICULTY)
    retire_above: float | None = _group(None, SHARE, acts=BY_DIFFICULTY)
    # a checkpoint has the rates, so a resume may leave it out
    prompt_rates: str | None = _group(None, RATES_FILE, acts=BY_DIFFICULTY, changes_loss=False)

    @property
    def reads_signal(self) -> bool:
        """Whether it matters which groups have signal."""
        return self.groups != "keep" or self.dull_kl == "drop"

    @property
    def draws_prompts(self) -> bool:
        """Whether rows of the data set are drawn by number, besides those of the data loader."""
        return self.groups == "refill" or self.prompt_sampler == "difficulty"

    @property
    def reads_correct(self) -> bool:
        """Whether it matters which responses are correct."""
        by_signal = self.reads_signal and self.group_signal == "correct"
        return by_signal or self.difficulty != "none" or self.prompt_sampler == "difficulty" or self.reads_success
