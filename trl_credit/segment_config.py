"""The knobs of segment credit: which segments, valued how, trained how."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .credit.steps import STEP_SPLITTERS
from .credit.trees import SIBLING_ADVANTAGES
from .names import is_own_function


if TYPE_CHECKING:
    from .config import CreditConfig


SEGMENT_CHOICES = {
    "rollouts": ("none", "chain", "tree"),
    "segmentation": ("cutpoints", "fixed_length", "fixed_count", "steps"),
    "initial_value": ("rollout", "group"),
    "segment_advantage": SIBLING_ADVANTAGES,
    "tree_rows": ("nodes", "paths", "packed"),
    "process_reward_form": ("advantage", "value"),
    "policy_loss": ("clip", "policy_iteration", "policy_iteration_code"),
    "mask_normalizer": ("paper", "code"),
    "whiten_advantages": ("none", "batch", "microbatch"),
}


@dataclass
class SegmentKnobs:
    r"""
    Advantages for segments of a response by Monte Carlo rollouts: a part of [`CreditConfig`].

    Parameters:
        rollouts (`str`, *optional*, defaults to `"none"`):
            `"chain"` (SPO-chain, VinePPO): continuations from the boundaries of each response. `"tree"` (SPO-tree): the
            responses themselves form a tree. Advantages are differences of values, and `scale_rewards` is not used.
        segmentation (`str`, *optional*, defaults to `"cutpoints"`):
            Of the chain. `"cutpoints"`: at tokens less probable than `probability_threshold`, every
            `cutpoint_interval`-th of them; `"fixed_length"` (`segment_length` tokens), `"fixed_count"`
            (`num_segments`), `"steps"` (`step_splitter`); or a function of one's own,
            `f(old_logp_t, *, completion_ids, decode, mask_t)`, that returns where segments begin: bool, shape (B, T).
        cutpoint_interval (`int`, *optional*, defaults to `5`):
            n ≥ 1, cutpoints per segment.
        num_segments (`int`, *optional*):
            K ≥ 1. With `"cutpoints"`, takes the place of the interval.
        segment_length (`int`, *optional*, defaults to `100`):
            Tokens per segment of `"fixed_length"`.
        step_splitter (`str`, *optional*, defaults to `"newline"`):
            `"newline"`, `"gsm8k"`, `"math"`, or `package.module.function` or `file.py:function` of a function from a
            text to ascending character offsets. A response for which it raises `ValueError` is left out of the loss.
        include_last (`bool`, *optional*, defaults to `False`):
            Whether a segment may begin with a response's last token (the released code).
        max_valued_steps (`int`, *optional*):
            Boundaries of a response, beyond the first token, that are valued by rollouts; later ones count as worth the
            response's own reward (VinePPO on GSM8K: 25).
        rollouts_per_state (`int`, *optional*, defaults to `9`):
            N ≥ 1, continuations from each boundary.
        initial_value (`str`, *optional*, defaults to `"rollout"`):
            V(s_0), where a segment begins at the first token: by rollouts, or for nothing from the rewards of the
            `"group"`'s other responses.
        certain_tolerance (`float`, *optional*, defaults to `0.0`):
            No rollouts where the policy gave the rest of the response at least probability 1 − this: the value is then
            known to that precision. In [0, 1).
        truncated_value (`float`, *optional*):
            Value of rollouts and leaves that did not end. `None`: what the reward functions give them (SPO, Alg. 1).
        rollout_batch_size (`int`, *optional*):
            Continuations per engine call. `None`: all in one call, which is fastest where memory allows (vLLM queues).
            Without vLLM, or with its server, those that may be longest come first, so that calls end together.
        tree_branching (`list[int]`, *optional*, defaults to `[6, 6, 6]`):
            Children per node, from the root down.
        tree_segment_length (`int`, *optional*, defaults to `30`):
            M, tokens per segment on all levels but the last, which runs to the end of the response.
        segment_advantage (`str`, *optional*, defaults to `"mean"`):
            Of the tree: minus the `"mean"` of the siblings, `"loo"` (leave-one-out), or `"std"` (mean, divided by std).
        tree_rows (`str`, *optional*, defaults to `"nodes"`):
            A training row per node, or the same gradient from fewer tokens: `"paths"`, in which the nodes of a path
            share their prefix, or `"packed"`, in which the branches of a tree lie side by side in at most
            `num_generations` rows, and attention keeps them apart (not with flash attention).
        replay_iterations (`int`, *optional*, defaults to `1`):
            Generation batches in which a row of a tree may be drawn; 1 means no replay. The paper: 8.
        replay_cap (`int`, *optional*):
            Rows of one prompt per generation batch. The paper: 32.
        replay_legacy (`bool`, *optional*, defaults to `False`):
            The released code's buffer, which loses rows and fills batches by repetition.
        process_reward_weight (`float`, *optional*, defaults to `0.0`):
            α: A + α A^μ of the best of `process_reward_best_of` tries (the released code: 5). Total rewards
            in `reward_range`.
        process_reward_best_of (`int`, *optional*):
            K ≥ 1, the exponent of V^μ = 1 − (1 − V)^K. `None`: the number of Monte Carlo samples of a state, as in the
            paper: `rollouts_per_state`, or the number that all levels of `tree_branching` have (the released code: 4).
        process_reward_form (`str`, *optional*, defaults to `"advantage"`):
            `"value"`: V(child) + α A^μ, the paper's form, in which nothing is filtered out. `"advantage"`: A + α A^μ,
            the default and ours: it keeps the baseline V(parent), for less variance.
        policy_loss (`str`, *optional*, defaults to `"clip"`):
            `"policy_iteration"`: w (`beta` log π/π_ref − A)² per segment, in place of clipped ratio and KL term (SPO,
            App. B); w = π/π_old, at most 10, which is ours. `"policy_iteration_code"`: half of it, as in the released
            code. The paper gives no `beta`; the released code's is 0.1.
        mask_normalizer (`str`, *optional*, defaults to `"paper"`):
            With `token_mask="probability"`: KL over all tokens, divided like the policy term by the kept ones, or
            `"code"`: KL summed over the kept tokens of each row, then the mean over rows (the released code, whose
            policy term is the `"bnpo"` mean).
        whiten_advantages (`str`, *optional*, defaults to `"none"`):
            Mean 0 and variance 1 over the kept tokens of the generation `"batch"`, or of each `"microbatch"` (the
            released code; it turns equal advantages into 0).
    """

    rollouts: str = field(default="none", metadata={"help": "Segment credit: 'none', 'chain', 'tree'."})
    segmentation: str = field(
        default="cutpoints", metadata={"help": "'cutpoints', 'fixed_length', 'fixed_count', 'steps', or your own."}
    )
    cutpoint_interval: int = field(default=5, metadata={"help": "Cutpoints per segment."})
    num_segments: int | None = field(default=None, metadata={"help": "Segments per response, in place of a size."})
    segment_length: int = field(default=100, metadata={"help": "Tokens per segment of 'fixed_length'."})
    step_splitter: str = field(
        default="newline", metadata={"help": "'newline', 'gsm8k', 'math', package.module.function or file.py:function."}
    )
    include_last: bool = field(default=False, metadata={"help": "Whether a segment may be the last token alone."})
    max_valued_steps: int | None = field(default=None, metadata={"help": "Boundaries per response that get rollouts."})
    rollouts_per_state: int = field(default=9, metadata={"help": "Continuations from each boundary."})
    initial_value: str = field(
        default="rollout", metadata={"help": "V(s_0) by 'rollout', or leave-one-out from the 'group'."}
    )
    certain_tolerance: float = field(
        default=0.0, metadata={"help": "No rollouts where the rest of the response was at least 1 - this probable."}
    )
    truncated_value: float | None = field(
        default=None, metadata={"help": "Value of what did not end. `None`: as the reward functions say."}
    )
    rollout_batch_size: int | None = field(default=None, metadata={"help": "Continuations per engine call. All."})
    tree_branching: list[int] = field(
        default_factory=lambda: [6, 6, 6], metadata={"help": "Children per node, from the root down."}
    )
    tree_segment_length: int = field(default=30, metadata={"help": "Tokens per segment of a tree's inner levels."})
    segment_advantage: str = field(default="mean", metadata={"help": "Among siblings: 'mean', 'loo', 'std'."})
    tree_rows: str = field(default="nodes", metadata={"help": "Training rows: 'nodes', 'paths' or 'packed'."})
    replay_iterations: int = field(default=1, metadata={"help": "Generation batches in which a row may be drawn."})
    replay_cap: int | None = field(default=None, metadata={"help": "Rows of a prompt per generation batch."})
    replay_legacy: bool = field(default=False, metadata={"help": "The released code's buffer, which loses rows."})
    process_reward_weight: float = field(default=0.0, metadata={"help": "Weight of the best-of-N process reward."})
    process_reward_best_of: int | None = field(
        default=None, metadata={"help": "N of the best-of-N process reward. `None`: samples of a state."}
    )
    process_reward_form: str = field(default="advantage", metadata={"help": "Added to 'advantage' or 'value'."})
    policy_loss: str = field(
        default="clip", metadata={"help": "'clip', 'policy_iteration' or 'policy_iteration_code'."}
    )
    mask_normalizer: str = field(
        default="paper", metadata={"help": "KL of the mask: 'paper' (all tokens) or 'code' (kept ones, row sums)."}
    )
    whiten_advantages: str = field(
        default="none", metadata={"help": "Mean 0, variance 1 over the 'batch' or each 'microbatch'."}
    )


_MAY_BE_NONE = ("num_segments", "max_valued_steps", "rollout_batch_size", "replay_cap", "process_reward_best_of")


def best_of(config: "CreditConfig") -> int:
    """N of the best-of-N process reward, set or the number of Monte Carlo samples of a state (SPO, App. C)."""
    if config.process_reward_best_of is not None:
        return config.process_reward_best_of
    return config.tree_branching[0] if config.rollouts == "tree" else config.rollouts_per_state


def check_segment_knobs(config: "CreditConfig") -> None:
    """Ranges and combinations of [`SegmentKnobs`], on the whole configuration.

    Raises:
        ValueError: the message names the field and the fix.
    """
    _check_ranges(config)
    if config.rollouts != "none":
        _check_rollouts(config)
    if config.rollouts == "chain":
        _check_chain(config)
    elif config.rollouts == "tree":
        _check_tree(config)
    if config.policy_loss != "clip":
        _check_policy_iteration(config)


def _check_ranges(config: "CreditConfig") -> None:
    for name in (
        "cutpoint_interval",
        "num_segments",
        "segment_length",
        "max_valued_steps",
        "rollouts_per_state",
        "rollout_batch_size",
        "tree_segment_length",
        "replay_iterations",
        "replay_cap",
        "process_reward_best_of",
    ):
        value = getattr(config, name)
        optional = name in _MAY_BE_NONE
        if not (value is None and optional) and not _is_count(value):
            raise ValueError(f"{name} must be a whole number of at least 1{' or None' * optional}, got {value!r}.")
    branching = config.tree_branching
    if not isinstance(branching, (list, tuple)) or not branching or not all(map(_is_count, branching)):
        raise ValueError(f"tree_branching must be whole numbers of at least 1, one per level, got {branching!r}.")
    config.tree_branching = list(branching)


def _check_rollouts(config: "CreditConfig") -> None:
    if config.importance == "sequence":
        _refuse(
            config,
            "importance",
            "it averages over the response, and with it the advantages of segments: set importance='sequence_token'",
        )
    if config.baseline != "group":
        _refuse(config, "baseline", "the baseline of a segment is the value at its start: set baseline='group'")
    if config.multi_objective_aggregation != "sum_then_normalize":
        _refuse(
            config,
            "multi_objective_aggregation",
            "a value is the mean of one reward per response: set multi_objective_aggregation='sum_then_normalize'",
        )
    if config.loss_type == "vespo" and config.importance == "token":
        _refuse(config, "loss_type", "it weighs whole responses by the sign of one advantage: set loss_type='dapo'")


def _check_chain(config: "CreditConfig") -> None:
    if config.segmentation == "fixed_count" and config.num_segments is None:
        raise ValueError("segmentation='fixed_count' needs num_segments: set it to the segments per response.")
    if config.segmentation == "fixed_length" and config.segment_length >= config.max_completion_length:
        raise ValueError(
            f"segment_length={config.segment_length} never cuts a response of at most max_completion_length="
            f"{config.max_completion_length} tokens: set it lower."
        )
    if config.segmentation == "steps" and config.step_splitter not in STEP_SPLITTERS:
        if not is_own_function(config.step_splitter):
            raise ValueError(
                f"unknown step_splitter {config.step_splitter!r}: choose one of {', '.join(STEP_SPLITTERS)}, or give "
                "package.module.function or file.py:function."
            )


def _check_tree(config: "CreditConfig") -> None:
    if config.mask_truncated_completions:
        raise ValueError(
            "mask_truncated_completions=True would leave every segment of a tree out that does not end the response: "
            "set it to False, and truncated_value if what did not end should have a fixed value."
        )
    inner = (len(config.tree_branching) - 1) * config.tree_segment_length
    if inner >= config.max_completion_length:
        raise ValueError(
            f"{len(config.tree_branching) - 1} inner levels of tree_segment_length={config.tree_segment_length} tokens "
            f"leave nothing of max_completion_length={config.max_completion_length} for the last: lower "
            "tree_segment_length, use fewer levels in tree_branching, or raise max_completion_length."
        )
    if config.tree_rows != "nodes":
        if config.importance != "token" or config.loss_weight != "none":
            name = "importance" if config.importance != "token" else "loss_weight"
            _refuse(config, name, "it runs across the nodes that share a path: set tree_rows='nodes'")
        if config.loss_type not in ("dapo", "cispo"):
            _refuse(config, "loss_type", "it is a mean over rows, which hold different nodes: set loss_type='dapo'")
        if config.off_policy_mask_threshold is not None:
            _refuse(config, "off_policy_mask_threshold", "it judges rows, which hold several nodes: set it to None")
    if config.tree_rows == "packed" and config.shared_prefix == "on":
        _refuse(config, "shared_prefix", "rows of packed trees hold a prompt once already: set shared_prefix='auto'")
    unequal = len(set(config.tree_branching)) > 1
    if config.process_reward_weight != 0.0 and config.process_reward_best_of is None and unequal:
        raise ValueError(
            f"process_reward_best_of=None is the number of samples of a state, and the levels of tree_branching="
            f"{config.tree_branching} have different ones: set process_reward_best_of (4 in the released code)."
        )
    if config.replay_legacy and config.replay_cap is None:
        raise ValueError("replay_legacy=True needs replay_cap (32 in the released code).")


def _check_policy_iteration(config: "CreditConfig") -> None:
    if not config.beta > 0.0:
        raise ValueError(
            f"policy_loss={config.policy_loss!r} regresses beta · log π/π_ref on the advantage: set beta=0.1 (that of "
            "SPO's released code; the paper gives none)."
        )
    if config.loss_type not in ("dapo", "grpo", "bnpo"):
        _refuse(
            config, "loss_type", f"policy_loss={config.policy_loss!r} is a mean over segments: set loss_type='dapo'"
        )
    for name, off in (
        ("importance", "token"),
        ("token_mask", "none"),
        ("loss_weight", "none"),
        ("top_entropy_quantile", 1.0),
        ("off_policy_mask_threshold", None),
        ("whiten_advantages", "none"),
    ):
        if getattr(config, name) != off:
            _refuse(config, name, f"{config.policy_loss!r} has its own weight per segment: set {name}={off!r}")


def _refuse(config: "CreditConfig", name: str, reason: str) -> None:
    raise ValueError(f"{name}={getattr(config, name)!r} with rollouts={config.rollouts!r}: {reason}.")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
