"""The knobs of turns in conversations with tools and environments and of rewards along a response, and the weights that
have traces or turns."""

from dataclasses import dataclass
from functools import partial

from .knobs import FINITE, SHARE, Values, anything_but, knob, one_of, when


TRACES = ("eligible", "lambda_trace")
BY_TURN = ("turn", "turn_token")
# which may read any knob of W; what a preset's own function reads is known
YOURS = Values("a function of yours", lambda x: x is not None and not str(x).startswith("trl_credit."))
CUSTOM_CREDIT = when(credit=YOURS)
ALONG = when(returns=anything_but("outcome"))

_turn = partial(knob, heading="Steps and turns")


@dataclass
class TurnKnobs:
    r"""
    Credit by the turns of a conversation with tools or environments, and advantages from rewards along a response: a
    part of [`CreditConfig`].

    A turn is what the policy writes between two messages of others. Without tools a response is one turn. With a weight
    per turn, `trace_unit="turn"` or `turn_average`, TRL's correction for vLLM in the modes `"sequence_*"` is made per
    turn as well: by the exponential of the mean difference over the turn, where TRL has the product over the response,
    which collapses over many turns. The range of the correction is the same.

    A reward function may give rewards at the ends of steps (see [`~trl_credit.rewards.StepRewards`]). A step also ends
    where a turn of a conversation with tools does, and where the response does. A reward that is one number per
    response stands at its end.

    Parameters:
        trace_unit (`str`, *optional*, defaults to `"token"`):
            What leaves a trace. `"token"`: each token leaves its log-probability, and the trace decays per token.
            `"turn"`: a turn leaves the mean log-probability of its tokens, the trace decays per turn, and the tokens of
            one turn do not reach each other. A `selector` then chooses among the turns of a response, by the mean
            entropy of their tokens. No paper of this package has it.
        turn_average (`bool`, *optional*, defaults to `False`):
            With `loss_type="grpo"`: the loss of a response is the mean over its turns of the mean over the kept tokens
            of each turn, and the KL term is divided likewise. `False`: the mean over all its tokens, which has been
            seen to make turns short and many. No paper of this package has the mean over turns.
        returns (`str`, *optional*, defaults to `"outcome"`):
            How rewards along a response become advantages. `"outcome"`: the sum of all rewards, one advantage per
            response (TRL). `"to_go"`: the return from each step on, minus `step_baseline`. `"state_groups"`: GiGPO's
            A_E + ω A_S over turns. A_S compares returns from equal states of the environment (`state_key`) within the
            group. `"difference"`: rewards are scores of states, the last of which is the reward of the response; a
            step's credit is the difference of the scores around it. With all but `"outcome"`, `scale_rewards` has no
            effect: only `state_advantage="std"` divides by a standard deviation. With `rollouts="chain"` the advantages
            of the segments are added.
        step_gamma (`float`, *optional*, defaults to `1.0`):
            Discount per step, in [0, 1]; with `"state_groups"` per turn. All scripts of GiGPO's authors have 0.95.
        step_baseline (`str`, *optional*, defaults to `"step"`):
            Baseline of `"to_go"`, from the other responses of the group: `"step"`, the mean of their returns from the
            same step on, over those that reached it, or `"response"`, the mean of their whole returns. Both are
            unbiased. With `"response"` late steps, before which rewards were earned already, get negative advantages.
        state_weight (`float`, *optional*, defaults to `1.0`):
            ω of `"state_groups"`.
        state_advantage (`str`, *optional*, defaults to `"mean"`):
            Baseline of A_E and A_S: `"mean"`, the mean with the response itself; `"std"`, the same, then divided by the
            standard deviation (both are GiGPO's); or `"loo"` (leave-one-out), which is ours. A mean with the response
            itself is biased in A_S, where the policy decides how many responses reach a state.
    """

    trace_unit: str = _turn("token", one_of("token", "turn"), acts=(when(importance=TRACES), CUSTOM_CREDIT))
    turn_average: bool = _turn(False)
    returns: str = _turn("outcome", one_of("outcome", "to_go", "state_groups", "difference"))
    step_gamma: float = _turn(1.0, SHARE, acts=when(returns=("to_go", "state_groups")))
    step_baseline: str = _turn("step", one_of("step", "response"), acts=when(returns="to_go"))
    state_weight: float = _turn(1.0, FINITE, acts=when(returns="state_groups"))
    state_advantage: str = _turn("mean", one_of("mean", "loo", "std"), acts=when(returns="state_groups"))

    @property
    def corrects_by_turn(self) -> bool:
        """Whether the correction for the sampling engine is made per turn instead of per response."""
        return self.importance in BY_TURN or self.trace_unit == "turn" or self.turn_average
