"""Which settings of a configuration do not go together."""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from trl import GRPOConfig

from ..support.functions import FunctionRaised, imports_functions
from .groups import FILTERED
from .knobs import COUNT, Condition, Values, anything_but, in_words, number, unmet, values_of, when
from .returns import ALONG
from .segments import CHAIN, RELEASED_CODE, ROLLOUTS, TREE
from .turns import TRACES


class Rule(NamedTuple):
    """If the settings `given` hold, those of `needed` must hold too.

    `RULES` holds for all configurations. A preset's configuration class may have rules of its own, in the class
    attribute `RULES`.

    Attributes:
        given: A condition; empty if it always holds.
        needed: A condition.
        why: The reason, for the message.
    """

    given: Condition
    needed: Condition
    why: str


SEQUENCE = when(importance="sequence")
TURN = when(importance="turn")
TRACE = when(importance=TRACES)
TURN_MEAN = when(turn_average=True)
RATIO_CLIP = when(clip_form="ratio")
WEIGHTED_KL = when(beta=anything_but(0.0))
SHARED_ROWS = TREE | when(tree_rows=anything_but("nodes"))
POLICY_ITERATION = when(policy_loss=anything_but("clip"))
ONE_REWARD = when(multi_objective_aggregation="sum_then_normalize")
NO_WEIGHTED_KL = when(use_bias_correction_kl=False)
EQUAL_TOKENS = when(token_mask="none", loss_weight="none", td_upper_bound=False)
PER_TOKEN = ("sequence_token", "token", "turn_token", *TRACES)  # weights that allow an advantage per token
TOKEN_MEANS = ("grpo", "bnpo", "dr_grpo", "dapo")
ANY_SIGN = when(loss_type=(*TOKEN_MEANS, "cispo", "sapo", "luspo"))  # not VESPO: one sign of A per response
UNEQUAL_LEVELS = Values("levels of different sizes", lambda x: len(set(x)) > 1)
TOKEN_BY_TOKEN = "it averages what differs from token to token; importance='{}_token' does not".format
NO_GRADIENT = "the gradient of that loss does not flow through the weight"
KL_WEIGHT = "TRL would multiply the KL term by that weight"
# of algorithms whose function of credit returns the W of the knobs
WEIGHTED_RULE = Rule(WEIGHTED_KL | when(importance=anything_but("token")), NO_WEIGHTED_KL, KL_WEIGHT)


def _lists(name: str) -> Values:
    return Values(f"a list with {name!r}", lambda x: name in (x or ()))


RULES = (
    Rule(
        when(importance=anything_but("sequence")),
        when(importance_sampling_level="token"),
        "TRL's field goes only with importance='sequence' (GSPO); 'sequence_token' is GSPO-token",
    ),
    Rule(when(credit=anything_but(None)), when(policy_loss="clip"), "both replace the credit function"),
    Rule(SEQUENCE, EQUAL_TOKENS, TOKEN_BY_TOKEN("sequence")),
    # with both of TRL's fields set, TRL's behaviour is kept
    Rule(
        SEQUENCE | when(importance_sampling_level="token"), when(top_entropy_quantile=1.0), TOKEN_BY_TOKEN("sequence")
    ),
    Rule(TURN, EQUAL_TOKENS | when(top_entropy_quantile=1.0), TOKEN_BY_TOKEN("turn")),
    Rule(TURN, when(loss_type=(*TOKEN_MEANS, "sapo")), NO_GRADIENT),
    Rule(TRACE, when(loss_type=TOKEN_MEANS), NO_GRADIENT),
    Rule(when(loss_weight_confidence=("sigmoid_grad", "tanh_grad")), when(loss_type=TOKEN_MEANS), NO_GRADIENT),
    Rule(when(trace_unit="turn"), when(loss_weight="none"), "the ε-weight is a sum of traces per token"),
    Rule(
        TURN_MEAN,
        when(loss_type="grpo", policy_loss="clip", rollouts=("none", "chain")),
        "it is a mean over the turns of each response",
    ),
    Rule(TURN_MEAN | SEQUENCE, WEIGHTED_KL, "W and A are equal at all tokens of a response, so nothing would change"),
    Rule(when(prompt_average=True), when(loss_type=("dapo", "cispo")), "it weighs the rows of a mean over all tokens"),
    Rule(when(behavior_logps="sampler"), when(use_vllm=True), "the log-probabilities are vLLM's"),
    Rule(when(selector=anything_but("none")), when(importance="eligible"), "it selects what leaves an eligible trace"),
    Rule(
        when(selector="entropy_reference"),
        when(beta=number("a number above 0, such as 0.001", lambda x: x > 0.0), sync_ref_model=False),
        "it reads the reference model's pass, which only the KL term makes, of the policy that training began with",
    ),
    Rule(when(loss_type=("luspo", "vespo")), when(importance=("sequence", "token")), "it has one weight per response"),
    Rule(TRACE | WEIGHTED_KL, NO_WEIGHTED_KL, KL_WEIGHT),
    Rule(RATIO_CLIP | WEIGHTED_KL, NO_WEIGHTED_KL, KL_WEIGHT),
    Rule(
        RATIO_CLIP,
        when(importance=PER_TOKEN, loss_type=TOKEN_MEANS, delta=None),
        "it bounds the ratio of each token by 1 + ε_high, for either sign of A, in a loss with PPO's minimum",
    ),
    Rule(
        when(td_upper_bound=True),
        ANY_SIGN | when(rollouts="none", torch_compile=False),
        "it corrects V(s_0) at each token, by a hook that a compiled model may skip",
    ),
    Rule(
        when(expert_drift=True),
        when(behavior_logps="recomputed", rollouts="none", torch_compile=False),
        "it compares with the pass for π_old, by a hook that a compiled model may skip",
    ),
    Rule(when(baseline=anything_but("group")), ONE_REWARD, "it needs one reward per response"),
    Rule(when(difficulty=anything_but("none")), ONE_REWARD, "it needs one reward per response"),
    Rule(FILTERED, ONE_REWARD, "it normalises over a batch whose groups change"),
    Rule(
        ALONG,
        ONE_REWARD
        | ANY_SIGN
        | when(baseline="group", td_upper_bound=False, rollouts=("none", "chain"))
        | when(policy_loss="clip", importance=("turn", *PER_TOKEN)),
        "each step of a response has a reward, and an advantage with a baseline from the group's other responses",
    ),
    Rule(
        ROLLOUTS,
        ONE_REWARD | ANY_SIGN | when(importance=PER_TOKEN, baseline="group"),
        "each segment has an advantage, whose baseline is the value at its start",
    ),
    Rule(TREE, when(groups=("keep", "refill")), "the batch has no rows without signal that could be replaced"),
    Rule(CHAIN | when(segmentation="fixed_count"), when(num_segments=COUNT), "it is the number of segments"),
    Rule(
        CHAIN | when(segmentation="turns"),
        when(groups="keep"),
        "conversations are continued from the last call of the engine, and such a batch has several calls",
    ),
    Rule(
        TREE,
        when(mask_truncated_completions=False),
        "it would mask every segment that does not end the response; truncated_value gives truncated leaves a value",
    ),
    Rule(
        SHARED_ROWS,
        when(importance="token", loss_weight="none", loss_type=("dapo", "cispo"), off_policy_mask_threshold=None),
        "a row holds several nodes",
    ),
    Rule(
        TREE | when(tree_rows="packed"), when(shared_prefix=("auto", "off")), "packed rows hold a prompt once already"
    ),
    Rule(
        TREE | when(process_reward_weight=anything_but(0.0), tree_branching=UNEQUAL_LEVELS),
        when(process_reward_best_of=COUNT),
        "by default it is the number of samples of a state, which differs by level (4 in the released code)",
    ),
    Rule(
        POLICY_ITERATION,
        when(beta=number("a number above 0, such as 0.1", lambda x: x > 0.0)),
        "it regresses beta · log π/π_ref on the advantage (0.1 in SPO's released code; the paper gives none)",
    ),
    Rule(
        POLICY_ITERATION,
        EQUAL_TOKENS
        | when(loss_type=("dapo", "grpo", "bnpo"), importance="token", top_entropy_quantile=1.0)
        | when(off_policy_mask_threshold=None, whiten_advantages="none"),
        "it is a mean over segments, with its own weight for each",
    ),
    Rule(when(use_vllm=True), when(top_p=number("above 0 and at most 1", lambda x: 0 < x <= 1)), "as vLLM needs it"),
    *(Rule(when(released_code=_lists(name)), acts, f"{name} does nothing") for name, acts in RELEASED_CODE.items()),
)


def combination_errors(config: GRPOConfig, wrong: Collection[str]) -> Iterator[Exception]:
    """Settings that do not go together, by `RULES` and those of the class, and segments longer than a response.

    Args:
        config ([`CreditConfig`]):
            It may be half built, if fields have wrong values.
        wrong (collection of `str`):
            Fields with wrong values. Errors that may follow from these are left out.

    Yields:
        `ValueError`: the message names the fields and the fix.
    """
    of_class = [rule for base in type(config).__mro__ for rule in vars(base).get("RULES", ())]
    refused = {*wrong}
    for rule in (*RULES, *of_class):
        if refused.intersection(rule.given) or unmet(config, rule.given):
            continue
        for name, values in unmet(config, rule.needed).items():
            if name not in refused:
                pair = f"{values_of(config, [name])} with {values_of(config, rule.given) or type(config).__name__}"
                fix = f"Set {in_words({name: values})}, or change {' or '.join(rule.given) or 'the algorithm'}."
                yield ValueError(f"{pair}: {rule.why}. {fix}")
                refused.add(name)
    if wrong:
        return
    yield from _batch_errors(config)
    name, tokens, most = "segment_length", 0, config.max_completion_length
    if config.rollouts == "chain" and config.segmentation == "fixed_length":
        tokens = config.segment_length
    elif config.rollouts == "tree":
        name, tokens = "tree_segment_length", (len(config.tree_branching) - 1) * config.tree_segment_length
    if most is not None and tokens >= most:
        what = f"{name} leaves nothing of max_completion_length={most} for the last segment, which begins at {tokens}"
        yield ValueError(f"{what}: lower {name}.")


def no_batch_logps(config: GRPOConfig) -> str:
    """Why there are no log-probabilities of a generation batch before its first update, and the fix."""
    window, names = config.gradient_accumulation_steps, ("gradient_accumulation_steps", "num_iterations")
    why = f"steps_per_generation={config.steps_per_generation} with {values_of(config, names)} is one update per batch"
    return f"{why}, for which no π_old is computed. Set steps_per_generation={2 * window} or num_iterations=2"


def _batch_errors(config: GRPOConfig) -> Iterator[Exception]:
    """What does not go with the updates per batch, or with an algorithm that takes statistics over it."""
    if config.expert_drift and config.is_aligned:
        what = "expert_drift=True compares π with π_old, which are equal, since there is one update per batch"
        yield ValueError(f"{what}: raise steps_per_generation or num_iterations, or leave expert_drift out.")
    try:
        algorithm = config.algorithm() if imports_functions() else None
    except (ValueError, FunctionRaised) as error:
        yield error
        return
    if algorithm is None or algorithm.statistics is None:
        return
    if later := unmet(config, when(td_upper_bound=False, whiten_advantages=("none", "batch"))):
        what = f"{values_of(config, later)} with credit={config.credit!r}, which takes statistics over the batch"
        yield ValueError(f"{what}: that changes the advantages after the statistics. Set {in_words(later)}.")
    if config.is_aligned and not config.use_vllm and "logps" in algorithm.needs:
        what = f"credit={config.credit!r} takes statistics over the generation batch from π_old"
        yield ValueError(f"{what}, and {no_batch_logps(config)}.")
