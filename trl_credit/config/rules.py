"""Checks of a configuration: each field by itself, and which settings do not go together."""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from types import NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

from trl import GRPOConfig

from ..support.errors import did_you_mean
from ..support.functions import declared, imports_functions
from .groups import FILTERED, check_prompt_rates
from .knobs import COUNT, Condition, Values, anything_but, in_words, knobs_of, number, unmet, values_of, when
from .returns import ALONG
from .segments import ROLLOUTS, TREE
from .trl_settings import TRL_ACTS, TRL_VALUES
from .turns import TRACES


def check_values(config: Any, values: Mapping[str, Values] = TRL_VALUES) -> None:
    """Checks every field by itself: our own knobs by their declarations, fields of TRL and transformers by a table.

    Raises:
        ValueError: the message names the field and what it may be.
    """
    own = {name: knob.values for name, knob in knobs_of(type(config)).items() if knob.values is not None}
    optional = _optional_fields(type(config))
    for name, allowed in (values | own).items():
        value = getattr(config, name, None)
        if not hasattr(config, name) or (value is None and name in optional) or allowed.holds(value):
            continue  # TRL versions differ in some fields
        wrong = next((x for x in value if x not in allowed.names), "") if isinstance(value, (list, tuple)) else value
        meant = did_you_mean(wrong, allowed.names)
        raise ValueError(f"{name} must be {allowed.words}{' or None' * (name in optional)}, got {value!r}{meant}.")
    for f in fields(config):
        value = getattr(config, f.name)
        if isinstance(value, float) and math.isnan(value):
            raise ValueError(f"{f.name} must be a number, got nan: leave it out for its default.")


@cache
def _optional_fields(config_class: type) -> set[str]:
    return {name for name, hint in get_type_hints(config_class).items() if NoneType in get_args(hint)}


def acts_of(config_class: type) -> dict[str, tuple[Condition, ...]]:
    """Field → the conditions of which one must hold for it to have an effect: our knobs', and those of TRL's fields."""
    return TRL_ACTS | {name: declared.acts for name, declared in knobs_of(config_class).items()}


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
VALUE_BOUND = when(td_upper_bound=True)
RATIO_CLIP = when(clip_form="ratio")
WEIGHTED_KL = when(beta=anything_but(0.0))
SHARED_ROWS = TREE | when(tree_rows=anything_but("nodes"))
POLICY_ITERATION = when(policy_loss=anything_but("clip"))
ONE_REWARD = when(multi_objective_aggregation="sum_then_normalize")
NO_WEIGHTED_KL = when(use_bias_correction_kl=False)
PER_TOKEN = ("sequence_token", "token", "turn_token", *TRACES)  # weights that allow an advantage per token
TOKEN_MEANS = ("grpo", "bnpo", "dr_grpo", "dapo")
UNEQUAL_LEVELS = Values("levels of different sizes", lambda x: len(set(x)) > 1)
# of algorithms whose function of credit returns the W of the knobs
CORRECTED_KL = WEIGHTED_KL | when(importance=anything_but("token"))
WEIGHTED_RULE = Rule(CORRECTED_KL, NO_WEIGHTED_KL, "TRL would multiply the KL term by that weight")
ANY_SIGN = ("dapo", "grpo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo")

RULES = (
    Rule(
        when(importance=anything_but("sequence")),
        when(importance_sampling_level="token"),
        "TRL's field goes only with importance='sequence' (GSPO); 'sequence_token' is GSPO-token",
    ),
    Rule(
        when(credit=anything_but(None)),
        when(policy_loss="clip"),
        "both replace the credit function; yours may call trl_credit.loss.assignment.policy_iteration itself",
    ),
    Rule(
        SEQUENCE,
        when(token_mask="none", loss_weight="none", td_upper_bound=False),
        "it averages over the response what differs from token to token; importance='sequence_token' does not",
    ),
    Rule(
        SEQUENCE | when(importance_sampling_level="token"),  # with both of TRL's fields set, TRL's behaviour is kept
        when(top_entropy_quantile=1.0),
        "it averages over the response what differs from token to token; importance='sequence_token' does not",
    ),
    Rule(
        TURN,
        when(token_mask="none", loss_weight="none", td_upper_bound=False, top_entropy_quantile=1.0),
        "it averages over the turn what differs from token to token; importance='turn_token' does not",
    ),
    Rule(
        TURN,
        when(loss_type=(*TOKEN_MEANS, "sapo")),
        "the gradient of that loss does not flow through the weight; importance='turn_token' does not need that",
    ),
    Rule(
        when(trace_unit="turn"),
        when(loss_weight="none"),
        "the ε-weight is a sum of traces per token",
    ),
    Rule(
        when(turn_average=True),
        when(loss_type="grpo", policy_loss="clip"),
        "it is a mean over the tokens of each response",
    ),
    Rule(when(prompt_average=True), when(loss_type=("dapo", "cispo")), "it weighs the rows of a mean over all tokens"),
    Rule(when(behavior_logps="sampler"), when(use_vllm=True), "the log-probabilities are vLLM's"),
    Rule(
        when(selector=anything_but("none")),
        when(importance="eligible"),
        "it selects the tokens that leave an eligible trace (S-trace)",
    ),
    Rule(
        when(selector="entropy_reference"),
        when(beta=number("a number above 0, such as 0.001", lambda x: x > 0.0), sync_ref_model=False),
        "it reads the reference model's pass, which only the KL term makes, of the policy that training began with",
    ),
    Rule(when(loss_type="luspo"), when(importance=("sequence", "token")), "it is defined for one weight per response"),
    Rule(
        TRACE,
        when(loss_type=("dapo", "grpo", "bnpo", "dr_grpo")),
        "the gradient of that loss does not flow through the clipped importance weight, so the trace would be lost",
    ),
    Rule(when(loss_type="vespo"), when(importance=("token", "sequence")), "it builds its own weight per response"),
    Rule(
        when(loss_weight_confidence=("sigmoid_grad", "tanh_grad")),
        when(loss_type=TOKEN_MEANS),
        "its gradient is that of a factor on PPO's clipped loss",
    ),
    Rule(VALUE_BOUND, when(rollouts="none"), "it corrects a baseline V(s_0), and that of a segment is the value there"),
    Rule(VALUE_BOUND, when(loss_type=ANY_SIGN), "'vespo' weighs whole responses by the sign of one advantage"),
    Rule(VALUE_BOUND, when(torch_compile=False), "it is read by a hook, which a compiled model may skip"),
    Rule(
        when(expert_drift=True),
        when(behavior_logps="recomputed", rollouts="none"),
        "it compares with the pass for π_old over the same rows",
    ),
    Rule(when(expert_drift=True), when(torch_compile=False), "it is read by a hook, which a compiled model may skip"),
    Rule(TRACE | WEIGHTED_KL, NO_WEIGHTED_KL, "the trace would flow through the KL term"),
    Rule(
        RATIO_CLIP,
        when(importance=PER_TOKEN, loss_type=TOKEN_MEANS, delta=None),
        "it bounds the ratio of each token by 1 + ε_high, for either sign of A, in a loss with PPO's minimum",
    ),
    Rule(RATIO_CLIP | WEIGHTED_KL, NO_WEIGHTED_KL, "it multiplies the KL term by a ratio that is replaced"),
    Rule(when(baseline=anything_but("group")), ONE_REWARD, "it needs one reward per response"),
    Rule(when(difficulty=anything_but("none")), ONE_REWARD, "it needs one reward per response"),
    Rule(
        when(turn_average=True, importance="sequence"),
        when(beta=anything_but(0.0)),
        "W and A are equal at all tokens of a response, so only a KL term would be averaged otherwise",
    ),
    Rule(when(turn_average=True), when(rollouts=("none", "chain")), "rows of a tree have no turns"),
    Rule(ALONG, ONE_REWARD, "it needs rewards that add up"),
    Rule(ALONG, when(baseline="group"), "it has a baseline of its own, from the other responses of the group"),
    Rule(ALONG, when(rollouts=("none", "chain")), "a node of a tree is in several responses"),
    Rule(ALONG, when(policy_loss="clip"), "the other loss regresses one advantage per segment"),
    Rule(
        ALONG,
        when(importance=("turn", *PER_TOKEN)),
        "'sequence' averages over the response, which mixes the advantages of its steps",
    ),
    Rule(ALONG, when(loss_type=ANY_SIGN), "'vespo' weighs whole responses by the sign of one advantage"),
    Rule(ALONG, when(td_upper_bound=False), "it corrects a baseline V(s_0), and a step has its own"),
    Rule(FILTERED, ONE_REWARD, "it normalises over a batch whose groups change"),
    Rule(
        TREE,
        when(groups=("keep", "refill")),
        "rows of a tree without signal are not in the batch already, so nothing is there to replace",
    ),
    Rule(ROLLOUTS, ONE_REWARD, "a value is the mean of one reward per response"),
    Rule(
        ROLLOUTS,
        when(importance=PER_TOKEN),
        "'sequence' and 'turn' average over the response or its turns, which mixes the advantages of segments",
    ),
    Rule(ROLLOUTS, when(baseline="group"), "the baseline of a segment is the value at its start"),
    Rule(ROLLOUTS, when(loss_type=ANY_SIGN), "'vespo' weighs whole responses by the sign of one advantage"),
    Rule(
        when(rollouts="chain", segmentation="fixed_count"),
        when(num_segments=COUNT),
        "it is the number of segments per response",
    ),
    Rule(
        when(rollouts="chain", segmentation="turns"),
        when(groups="keep"),
        "conversations are continued from the last call of the engine, and such a batch has several calls",
    ),
    Rule(
        TREE,
        when(mask_truncated_completions=False),
        "it would mask every segment that does not end the response; truncated_value gives truncated leaves a value",
    ),
    Rule(
        SHARED_ROWS, when(importance="token", loss_weight="none"), "it mixes nodes that share a path; 'nodes' does not"
    ),
    Rule(SHARED_ROWS, when(loss_type=("dapo", "cispo")), "it is a mean over rows, which hold several nodes"),
    Rule(SHARED_ROWS, when(off_policy_mask_threshold=None), "it masks rows, which hold several nodes"),
    Rule(
        TREE | when(tree_rows="packed"),
        when(shared_prefix=("auto", "off")),
        "rows of packed trees hold a prompt once already",
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
    Rule(POLICY_ITERATION, when(loss_type=("dapo", "grpo", "bnpo")), "it is a mean over segments"),
    Rule(
        POLICY_ITERATION,
        when(importance="token", token_mask="none", loss_weight="none", top_entropy_quantile=1.0)
        | when(off_policy_mask_threshold=None, whiten_advantages="none", td_upper_bound=False),
        "it has its own weight per segment",
    ),
    Rule(when(use_vllm=False), when(top_k=number("0 (all tokens) or more", lambda x: x >= 0)), "only vLLM takes -1"),
)


def check_combinations(config: GRPOConfig) -> None:
    """Refuses settings that do not go together, by `RULES` and those of the class, segments that are longer than a
    response, and a file of pass rates that cannot be read.

    Raises:
        ValueError: the message names the fields and the fix.
    """
    check_prompt_rates(config)
    of_class = [rule for base in type(config).__mro__ for rule in vars(base).get("RULES", ())]
    for rule in (*RULES, *of_class):
        if (wrong := unmet(config, rule.needed)) and not unmet(config, rule.given):
            name, of = next(iter(wrong)), type(config).__name__
            pair = f"{values_of(config, [name])} with {values_of(config, rule.given) or of}"
            fix = f"Set {in_words({name: wrong[name]})}, or change {' or '.join(rule.given) or 'the algorithm'}."
            raise ValueError(f"{pair}: {rule.why}. {fix}")
    _check_batch_statistics(config)
    if config.expert_drift and config.is_aligned:
        what = "expert_drift=True compares π with π_old, which are equal, since there is one update per batch"
        raise ValueError(f"{what}: raise steps_per_generation or num_iterations, or leave expert_drift out.")
    most = config.max_completion_length
    if config.rollouts == "chain" and config.segmentation == "fixed_length" and config.segment_length >= most:
        length = f"segment_length={config.segment_length}"
        raise ValueError(f"{length} never cuts a response, since max_completion_length={most}: lower segment_length.")
    inner = len(config.tree_branching) - 1
    if config.rollouts == "tree" and inner * config.tree_segment_length >= most:
        levels = f"{inner} inner levels of tree_segment_length={config.tree_segment_length} tokens"
        raise ValueError(f"{levels} leave nothing of max_completion_length={most}: use fewer or shorter levels.")


def batch_statistics_of(function: Callable | None, config: GRPOConfig) -> Callable | None:
    """The function that a credit function declares as `batch_statistics`, or `None` if it has none, or if its attribute
    `acts`, a condition on a configuration, does not hold."""
    found = None if function is None else declared(function, "batch_statistics")
    return None if found is None or unmet(config, declared(found, "acts") or {}) else found


def no_batch_logps(config: GRPOConfig) -> str:
    """Why there are no log-probabilities of a generation batch before its first update, and the fix."""
    window, names = config.gradient_accumulation_steps, ("gradient_accumulation_steps", "num_iterations")
    why = f"steps_per_generation={config.steps_per_generation} with {values_of(config, names)} is one update per batch"
    return f"{why}, for which no π_old is computed. Set steps_per_generation={2 * window} or num_iterations=2"


_BATCH_STATISTICS = (
    (when(rollouts=anything_but("tree")), "a node of a tree is in as many rows as lead through it"),
    (when(td_upper_bound=False), "it changes the advantages after the statistics"),
    (when(whiten_advantages=("none", "batch")), "it changes the advantages after the statistics"),
)


def _check_batch_statistics(config: GRPOConfig) -> None:
    function = config.custom_function("credit") if imports_functions() else None
    if (found := batch_statistics_of(function, config)) is None:
        return
    others = "".join(f", or change {name}" for name in declared(found, "acts") or ())
    for needed, why in _BATCH_STATISTICS:
        if wrong := unmet(config, needed):
            what = f"{values_of(config, wrong)} with credit={config.credit!r}, which takes statistics over the batch"
            raise ValueError(f"{what}: {why}. Set {in_words(wrong)}{others}.")
    if config.is_aligned and not config.use_vllm:
        what = f"credit={config.credit!r} takes statistics over the generation batch from π_old"
        raise ValueError(f"{what}, and {no_batch_logps(config)}{others}.")
