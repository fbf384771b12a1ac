"""Which settings of a configuration do not go together."""

import os
from collections.abc import Collection, Iterator
from typing import NamedTuple

from trl import GRPOConfig

from ..support.functions import FunctionRaised, imports_functions
from .groups import FILTERED
from .knobs import COUNT, Condition, Values, anything_but, in_words, number, unmet, values_of, when
from .segments import CHAIN, PROCESS_REWARD, RELEASED_CODE, ROLLOUTS, TREE
from .teacher import HAS_TEACHER
from .turns import ALONG, TRACES


class Rule(NamedTuple):
    """If the settings of `condition` hold, those of `needed` must hold too.

    `RULES` holds for all configurations. A preset's configuration class may have rules of its own, in the class
    attribute `RULES`.

    Attributes:
        condition: A condition; empty if it always holds.
        needed: A condition.
        why: The reason, for the message.
    """

    condition: Condition
    needed: Condition
    why: str


SEQUENCE = when(importance="sequence")
TURN = when(importance="turn")
TRACE = when(importance=TRACES)
TURN_MEAN = when(turn_average=True)
WEIGHTED_KL = when(beta=anything_but(0.0))
POSITIVE_BETA = when(beta=number("a number above 0", lambda x: x > 0.0))
SHARED_ROWS = TREE | when(tree_rows=anything_but("nodes"))
POLICY_ITERATION = when(policy_loss=anything_but("clip"))
ONE_REWARD = when(multi_objective_aggregation="sum_then_normalize")
NO_WEIGHTED_KL = when(use_bias_correction_kl=False)
NO_TREE = when(rollouts=("none", "chain"))
EQUAL_TOKENS = when(token_mask="none", loss_weight="none", td_upper_bound=False)
ANY_ENTROPY = when(top_entropy_quantile=1.0)
NO_THRESHOLD = when(off_policy_mask_threshold=None)
PER_TOKEN = ("sequence_token", "token", "turn_token", *TRACES)  # weights that allow an advantage per token
TOKEN_MEANS = ("grpo", "bnpo", "dr_grpo", "dapo")
MEANS = when(loss_type=TOKEN_MEANS)
ANY_SIGN = when(loss_type=(*TOKEN_MEANS, "cispo", "sapo", "luspo"))  # VESPO needs one sign of A per response
UNEQUAL_TREE = TREE | PROCESS_REWARD | when(tree_branching=Values("unequal levels", lambda x: len(set(x)) > 1))
TOKEN_BY_TOKEN = "it averages what differs from token to token; importance='{}_token' does not".format
NO_GRADIENT = "the gradient of that loss does not flow through the weight"
KL_WEIGHT = "TRL would multiply the KL term by that weight"
STEP_BASELINE = "each step has a baseline, from the group's others"
SEGMENT_BASELINE = "the baseline of a segment is the value at its start"
SEVERAL_NODES = "a row holds several nodes"
SEGMENT_WEIGHT = "it is a mean over segments, with one weight for each"
BELOW_1 = number("below 1", lambda x: x < 1.0)
SAME_AS_POLICY = "weights and prompt are those of the policy, so both would find every token equally probable"
# of algorithms whose function of credit returns the W of the knobs
WEIGHTED_RULE = Rule(WEIGHTED_KL | when(importance=anything_but("token")), NO_WEIGHTED_KL, KL_WEIGHT)


def _listing(name: str) -> Condition:
    return when(released_code=Values(f"a list with {name!r}", lambda x: name in (x or ())))


RULES = (
    Rule(when(importance=anything_but("sequence")), when(importance_sampling_level="token"), "that level is GSPO's"),
    Rule(when(credit=anything_but(None)), when(policy_loss="clip"), "both replace the credit function"),
    Rule(SEQUENCE, EQUAL_TOKENS, TOKEN_BY_TOKEN("sequence")),
    # with both of TRL's fields set, TRL's behaviour is kept
    Rule(SEQUENCE | when(importance_sampling_level="token"), ANY_ENTROPY, TOKEN_BY_TOKEN("sequence")),
    Rule(TURN, EQUAL_TOKENS | ANY_ENTROPY, TOKEN_BY_TOKEN("turn")),
    Rule(TURN, when(loss_type=(*TOKEN_MEANS, "sapo")), NO_GRADIENT),
    Rule(TRACE, MEANS, NO_GRADIENT),
    Rule(when(loss_weight_confidence=("sigmoid_grad", "tanh_grad")), MEANS, NO_GRADIENT),
    Rule(when(trace_unit="turn"), when(loss_weight="none"), "the ε-weight is a sum of traces per token"),
    Rule(TURN_MEAN, NO_TREE | when(loss_type="grpo", policy_loss="clip"), "it is a mean over the turns of a response"),
    Rule(TURN_MEAN | SEQUENCE, WEIGHTED_KL, "W and A are equal at all tokens of a response, so nothing would change"),
    Rule(when(prompt_average=True), when(loss_type=("dapo", "cispo")), "it weighs the rows of a mean over all tokens"),
    Rule(when(behavior_logps="sampler"), when(use_vllm=True), "the log-probabilities are vLLM's"),
    Rule(when(selector=anything_but("none")), when(importance="eligible"), "it selects what leaves an eligible trace"),
    Rule(when(selector="entropy_reference"), POSITIVE_BETA, "it reads the pass of the reference for the KL term"),
    Rule(when(selector="entropy_reference"), when(sync_ref_model=False), "it reads the policy before training"),
    Rule(when(loss_type=("luspo", "vespo")), when(importance=("sequence", "token")), "it has one weight per response"),
    Rule(TRACE | WEIGHTED_KL, NO_WEIGHTED_KL, "the trace would flow through the KL term"),
    Rule(when(clip_form="ratio") | WEIGHTED_KL, NO_WEIGHTED_KL, KL_WEIGHT),
    Rule(when(clip_form="ratio"), MEANS | when(importance=PER_TOKEN, delta=None), "it bounds a ratio in PPO's minimum"),
    Rule(when(td_upper_bound=True), ANY_SIGN | when(rollouts="none"), "it corrects a baseline V(s_0) token by token"),
    Rule(when(td_upper_bound=True), when(torch_compile=False), "it is read by a hook, which a compiled model may skip"),
    Rule(when(baseline=anything_but("group")), ONE_REWARD, "it needs one reward per response"),
    Rule(when(difficulty=anything_but("none")), ONE_REWARD, "it needs one reward per response"),
    Rule(FILTERED, ONE_REWARD, "it normalises over a batch whose groups change"),
    Rule(ALONG, ONE_REWARD | ANY_SIGN | NO_TREE | when(policy_loss="clip", baseline="group"), STEP_BASELINE),
    Rule(ALONG, when(importance=("turn", *PER_TOKEN), td_upper_bound=False), STEP_BASELINE),
    Rule(ROLLOUTS, ONE_REWARD | ANY_SIGN | when(importance=PER_TOKEN, baseline="group"), SEGMENT_BASELINE),
    Rule(TREE, when(groups=("keep", "refill")), "the batch has no rows without signal that could be replaced"),
    Rule(TREE, when(mask_truncated_completions=False), "all segments but the last are cut off: see truncated_value"),
    Rule(CHAIN | when(segmentation="fixed_count"), when(num_segments=COUNT), "it is the number of segments"),
    Rule(CHAIN | when(segmentation="turns"), when(groups="keep"), "only the engine's last call can be continued"),
    Rule(SHARED_ROWS, NO_THRESHOLD | when(importance="token", loss_weight="none"), SEVERAL_NODES),
    Rule(SHARED_ROWS, when(loss_type=("dapo", "cispo")), SEVERAL_NODES),
    Rule(TREE | when(tree_rows="packed"), when(shared_prefix=("auto", "off")), "packed rows hold a prompt once"),
    Rule(UNEQUAL_TREE, when(process_reward_best_of=COUNT), "the number of samples of a state differs by level"),
    Rule(POLICY_ITERATION, POSITIVE_BETA, "it regresses beta · log π/π_ref on A (0.1 in SPO's released code)"),
    Rule(POLICY_ITERATION, when(loss_type=("dapo", "grpo", "bnpo"), whiten_advantages="none"), SEGMENT_WEIGHT),
    Rule(POLICY_ITERATION, EQUAL_TOKENS | ANY_ENTROPY | NO_THRESHOLD | when(importance="token"), SEGMENT_WEIGHT),
    Rule(HAS_TEACHER, NO_TREE, "the rows of a tree are segments, which have no context of their own"),
    Rule(when(teacher="policy", teacher_sync_steps=1), when(teacher_update_rate=BELOW_1), "it is the policy itself"),
    Rule(when(teacher="policy", teacher_sync_steps=None), when(teacher_prompt=anything_but(None)), SAME_AS_POLICY),
    Rule(when(use_vllm=True), when(top_p=number("above 0 and at most 1", lambda x: 0 < x <= 1)), "as vLLM needs it"),
    *(Rule(_listing(name), needed, f"{name} does nothing") for name, needed in RELEASED_CODE.items()),
)


def check_groups(args: GRPOConfig) -> None:
    """Checks that the groups of `num_generations` fill the generation batch. Raises `ValueError`."""
    group, processes = args.num_generations, int(os.environ.get("WORLD_SIZE") or 1)
    steps = "steps_per_generation" if args.steps_per_generation else "gradient_accumulation_steps"
    size = args.generation_batch_size or args.per_device_train_batch_size * processes * getattr(args, steps)
    if group is None or size % group == 0:
        return
    sizes = ["generation_batch_size"] if args.generation_batch_size else ["per_device_train_batch_size", steps]
    whole = f"the {size} responses of a generation batch ({values_of(args, sizes)}, {processes} × the process)"
    nearest = min((n for n in range(2, size + 1) if size % n == 0), key=lambda n: abs(n - group), default=2)
    raise ValueError(f"num_generations={group} does not divide {whole}: set num_generations={nearest}, or change them.")


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
        if refused.intersection(rule.condition) or unmet(config, rule.condition):
            continue
        for name, values in unmet(config, rule.needed).items():
            if name not in refused:
                pair = f"{values_of(config, [name])} with {values_of(config, rule.condition) or type(config).__name__}"
                fix = f"Set {in_words({name: values})}, or change {' or '.join(rule.condition) or 'the algorithm'}."
                yield ValueError(f"{pair}: {rule.why}. {fix}")
                refused.add(name)
    if wrong:
        return
    yield from _batch_errors(config)
    first_levels = (len(config.tree_branching) - 1) * config.tree_segment_length
    cuts = {"chain": ("segment_length", config.segment_length), "tree": ("tree_segment_length", first_levels)}
    name, tokens = cuts.get(config.rollouts, ("", 0))
    is_cut = config.rollouts == "tree" or config.segmentation == "fixed_length"
    most = config.max_completion_length
    if name and is_cut and most is not None and tokens >= most:
        yield ValueError(f"{name} leaves nothing of max_completion_length={most} after {tokens} tokens: lower {name}.")


def no_batch_logps(config: GRPOConfig) -> str:
    """Why there are no log-probabilities of a generation batch before its first update, and the fix."""
    window, names = config.gradient_accumulation_steps, ("gradient_accumulation_steps", "num_iterations")
    why = f"steps_per_generation={config.steps_per_generation} with {values_of(config, names)} is one update per batch"
    return f"{why}, for which no π_old is computed. Set steps_per_generation={2 * window} or num_iterations=2"


def _batch_errors(config: GRPOConfig) -> Iterator[Exception]:
    """What does not go with what the algorithm needs, with the updates per batch, or with statistics over it."""
    try:
        algorithm = config.algorithm() if imports_functions() else None
    except (ValueError, FunctionRaised) as error:
        yield error
        return
    reads_teacher = algorithm is not None and "teacher" in algorithm.needs
    if reads_teacher and config.teacher is None:
        fix = "set teacher to 'reference' or a model's name or path"
        yield ValueError(f"credit={config.credit!r} needs a teacher: {fix}.")
    if config.teacher is not None and not reads_teacher and imports_functions():
        what = f"teacher={config.teacher!r} does nothing, since credit={config.credit!r} does not read it"
        yield ValueError(f"{what}: leave it out, take opd, rlsd or sdpo, or declare needs = ('teacher',) in `credit`.")
    if algorithm is None or algorithm.statistics is None:
        return
    if later := unmet(config, when(td_upper_bound=False, whiten_advantages=("none", "batch"))):
        why = f"with credit={config.credit!r}, which takes statistics over the batch before advantages change"
        yield ValueError(f"{values_of(config, later)} {why}. Set {in_words(later)}.")
    if config.is_aligned and not config.use_vllm and "logps" in algorithm.needs:
        yield ValueError(f"credit={config.credit!r} takes statistics of a batch from π_old. {no_batch_logps(config)}.")
