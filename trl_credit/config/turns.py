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
            What leaves a trace: each token its log-probability (`"token"`), or each turn the mean over its tokens
            (`"turn"`, in no paper here). With `"turn"` the trace decays per turn, tokens of one turn do not reach each
            other, and a `selector` chooses turns by mean entropy.
        turn_average (`bool`, *optional*, defaults to `False`):
            With `loss_type="grpo"`, the loss of a response is the mean over its turns of the mean over each turn's kept
            tokens, and the KL term is divided likewise. No paper here has it. With `False` turns may become short and
            many.
        returns (`str`, *optional*, defaults to `"outcome"`):
            How rewards along a response become advantages. `"outcome"` sums them (TRL). `"to_go"` takes the return from
            each step on, minus `step_baseline`. `"state_groups"` is GiGPO's A_E + ω A_S over turns; A_S compares
            returns from equal states (`state_key`) within the group. `"difference"` takes rewards as scores of states,
            the last of which is the response's reward, and credits a step with the difference around it. All but
            `"outcome"` ignore `scale_rewards`.
        step_gamma (`float`, *optional*, defaults to `1.0`):
            The discount per step, in [0, 1], or per turn with `"state_groups"` (0.95 in GiGPO's scripts).
        step_baseline (`str`, *optional*, defaults to `"step"`):
            The baseline of `"to_go"`, from the other responses of the group: the mean of their returns from the same
            step on, if they reached it (`"step"`), or of their whole returns (`"response"`). Both are unbiased;
            `"response"` gives late steps negative advantages if rewards came before.
        state_weight (`float`, *optional*, defaults to `1.0`):
            ω of `"state_groups"`.
        state_advantage (`str`, *optional*, defaults to `"mean"`):
            The baseline of A_E and A_S: GiGPO's `"mean"` with the response itself, its `"std"`, which also divides by
            the standard deviation, or `"loo"` (leave-one-out; ours). GiGPO's are biased in A_S.
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
