"""The knobs of turns in conversations with tools and environments, and the weights that have traces or turns."""

from dataclasses import dataclass
from functools import partial

from .knobs import Values, knob, one_of, when


TRACES = ("eligible", "lambda_trace")
BY_TURN = ("turn", "turn_token")
# which may read any knob of W; what a preset's own function reads is known
YOURS = Values("a function of yours", lambda x: x is not None and not str(x).startswith("trl_credit."))
CUSTOM_CREDIT = when(credit=YOURS)

_turn = partial(knob, heading="Steps and turns")


@dataclass
class TurnKnobs:
    r"""
    Credit by the turns of a conversation with tools or environments: a part of [`CreditConfig`].

    A turn is what the policy writes between two messages of others. Without tools a response is one turn. With a weight
    per turn, `trace_unit="turn"` or `turn_average`, TRL's correction for vLLM in the modes `"sequence_*"` is made per
    turn as well: by the exponential of the mean difference over the turn, where TRL has the product over the response,
    which collapses over many turns. The range of the correction is the same.

    Parameters:
        trace_unit (`str`, *optional*, defaults to `"token"`):
            What leaves a trace. `"token"`: each token leaves its log-probability, and the trace decays per token.
            `"turn"`: a turn leaves the mean log-probability of its tokens, the trace decays per turn, and the tokens of
            one turn do not reach each other. A `selector` then chooses among the turns of a response, by the mean
            entropy of their tokens. Ours.
        turn_average (`bool`, *optional*, defaults to `False`):
            With `loss_type="grpo"`: the loss of a response is the mean over its turns of the mean over the kept tokens
            of each turn, and the KL term is divided likewise. `False`: the mean over all its tokens, which has been
            seen to make turns short and many. Ours.
    """

    trace_unit: str = _turn("token", one_of("token", "turn"), acts=(when(importance=TRACES), CUSTOM_CREDIT))
    turn_average: bool = _turn(False)

    @property
    def corrects_by_turn(self) -> bool:
        """Whether the correction for the sampling engine is made per turn instead of per response."""
        return self.importance in BY_TURN or self.trace_unit == "turn" or self.turn_average
