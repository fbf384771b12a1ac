"""The knobs of rewards along a response: how they become advantages."""

from dataclasses import dataclass
from functools import partial

from .knobs import FINITE, SHARE, anything_but, knob, one_of, when


ALONG = when(returns=anything_but("outcome"))

_return = partial(knob, heading="Steps and turns")


@dataclass
class ReturnKnobs:
    r"""
    How rewards along a response become advantages: a part of [`CreditConfig`].

    A reward function may give rewards at the ends of steps (see [`~trl_credit.rewards.StepRewards`]). A step also ends
    where a turn of a conversation with tools does, and where the response does. A reward that is one number per
    response stands at its end.

    Parameters:
        returns (`str`, *optional*, defaults to `"outcome"`):
            How rewards along a response become advantages. `"outcome"`: the sum of all rewards, one advantage per
            response (TRL). `"to_go"`: the return from each step on, minus `step_baseline`. `"state_groups"`: GiGPO's
            A_E + ω A_S over turns. A_S compares returns from equal states of the environment (`state_key`) within the
            group; its baseline leaves the response itself out, which is ours (the paper's mean is biased).
            `"difference"`: rewards are scores of states, the last of which is the reward of the response; a step's
            credit is the difference of the scores around it. With all but `"outcome"`, advantages are not divided by a
            standard deviation, so `scale_rewards` has no effect. With `rollouts="chain"` the advantages of the segments
            are added.
        step_gamma (`float`, *optional*, defaults to `1.0`):
            Discount per step, in [0, 1]; with `"state_groups"` per turn (0.95 in ROLL).
        step_baseline (`str`, *optional*, defaults to `"step"`):
            Baseline of `"to_go"`, from the other responses of the group: `"step"`, the mean of their returns from the
            same step on, over those that reached it, or `"response"`, the mean of their whole returns. Both are
            unbiased. With `"response"` late steps, before which rewards were earned already, get negative advantages.
        state_weight (`float`, *optional*, defaults to `1.0`):
            ω of `"state_groups"`.
    """

    returns: str = _return("outcome", one_of("outcome", "to_go", "state_groups", "difference"))
    step_gamma: float = _return(1.0, SHARE, acts=when(returns=("to_go", "state_groups")))
    step_baseline: str = _return("step", one_of("step", "response"), acts=when(returns="to_go"))
    state_weight: float = _return(1.0, FINITE, acts=when(returns="state_groups"))
