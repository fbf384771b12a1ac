"""The knobs of segment credit: how responses are cut, how states are valued, and what is trained."""

from dataclasses import dataclass
from functools import partial

from ..credit.steps import STEP_SPLITTERS
from .knobs import COUNT, FINITE, Condition, Values, anything_but, knob, list_of, number, one_of, when


ROLLOUTS = when(rollouts=anything_but("none"))
CHAIN = when(rollouts="chain")
TREE = when(rollouts="tree")
PROCESS_REWARD = ROLLOUTS | when(process_reward_weight=anything_but(0.0))
# what only a paper's released code does, and when it has an effect
RELEASED_CODE: dict[str, Condition] = {
    "spo_normalizer": when(token_mask=anything_but("none")),
    "spo_first_cutpoint": CHAIN | when(segmentation="cutpoints"),
    "spo_last_token": CHAIN | when(segmentation="cutpoints"),
    "spo_replay": TREE | when(replay_cap=COUNT),
    "spo_policy_iteration": when(policy_loss="policy_iteration"),
    "ha_dw_anchor": when(difficulty="hard", scale_rewards=("group", "batch")),
}
BRANCHING = list_of(COUNT, "whole numbers of at least 1, one per level", least=1)
POINTS = list_of(one_of(*RELEASED_CODE))
STEPS = one_of(*STEP_SPLITTERS, custom=True)
CUTS = one_of("cutpoints", "fixed_length", "fixed_count", "steps", "turns", custom=True)
TWO_LEVELS = Values("two levels or more", lambda x: len(x) > 1)

_segment = partial(knob, heading="Segments")
_rollout = partial(knob, heading="Rollouts")


@dataclass
class SegmentKnobs:
    r"""
    Advantages for segments of a response by Monte Carlo rollouts: a part of [`CreditConfig`].

    Parameters:
        rollouts (`str`, *optional*, defaults to `"none"`):
            How segments are valued, if at all. `"chain"` (SPO-chain, VinePPO): continuations start from the boundaries
            of each response. `"tree"` (SPO-tree): the responses form a tree. With either, advantages are differences of
            values, and `scale_rewards` has no effect. `"none"`: no segments.
        segmentation (`str`, *optional*, defaults to `"cutpoints"`):
            How a chain is cut into segments, the first of which begins with the response. `"cutpoints"`: each has
            `cutpoint_interval` tokens that are less probable than `probability_threshold`, and ends before the next
            one. `"fixed_length"`: `segment_length` tokens. `"fixed_count"`: `num_segments` per response. `"steps"`: by
            `step_splitter`. `"turns"`: each turn of a conversation in an environment that has `snapshot()` and
            `restore(state)`, from which conversations are continued (ours). Or a custom function `f(old_logp_t, *,
            completion_ids, decode, mask_t)` that returns where segments begin: bool, shape (B, T).
        cutpoint_interval (`int`, *optional*, defaults to `5`):
            n ≥ 1, cutpoints per segment.
        num_segments (`int`, *optional*):
            K ≥ 1. With `"cutpoints"` it replaces the interval.
        segment_length (`int`, *optional*, defaults to `100`):
            Tokens per segment of `"fixed_length"`.
        step_splitter (`str`, *optional*, defaults to `"newline"`):
            How a response is split into steps: `"newline"`, `"gsm8k"`, `"math"`, or a custom function from a text to
            ascending character offsets. A response for which it raises `ValueError` is left out of the loss.
        max_valued_steps (`int`, *optional*):
            Boundaries per response that are valued by rollouts, not counting one at the first token. Later ones get the
            response's own reward (VinePPO on GSM8K: 25). `None`: all.
        rollouts_per_state (`int`, *optional*, defaults to `9`):
            N ≥ 1, continuations from each boundary.
        initial_value (`str`, *optional*, defaults to `"rollout"`):
            V(s_0), if a segment begins at the first token: `"rollout"`, or `"group"`, the mean reward of the group's
            other responses, which needs no rollouts.
        certain_tolerance (`float`, *optional*, defaults to `0.0`):
            No rollouts if the policy gave the rest of the response at least probability 1 − this, since the value is
            then known to that precision. In [0, 1).
        truncated_value (`float`, *optional*):
            Value of truncated rollouts and leaves. `None`: what the reward functions give them (SPO, Alg. 1).
        rollout_batch_size (`int`, *optional*):
            Continuations per engine call. `None`: all in one call, which is fastest if memory allows (vLLM queues).
            A chain's continuations also go to the reward functions in parts of this size; `None`: in parts of four per
            response of the process, or more if responses are short.
            Where all prefixes of a call share one token limit (without vLLM, with its server or tensor parallelism),
            those with the largest token budgets come first, so that the continuations of a call have similar lengths.
        tree_branching (`list[int]`, *optional*, defaults to `[6, 6, 6]`):
            Children per node, from the root down.
        tree_segment_length (`int`, *optional*, defaults to `30`):
            M, tokens per segment on all levels except the last, which runs to the end of the response.
        segment_advantage (`str`, *optional*, defaults to `"mean"`):
            Baseline of a tree's segment: `"mean"` of the siblings, `"loo"` (leave-one-out), or `"std"` (mean, then
            divided by the standard deviation).
        tree_rows (`str`, *optional*, defaults to `"nodes"`):
            The training rows of a tree. `"nodes"`: one training row per node. The others give the same gradient from
            fewer tokens: `"paths"`, in which the nodes of a path share their prefix, or `"packed"` (tree attention):
            the branches of a tree are packed into at most `num_generations` rows, and the attention mask separates them
            (not with flash attention).
        replay_iterations (`int`, *optional*, defaults to `1`):
            Generation batches in which a row of a tree may be drawn. 1 means no replay. SPO, App. D: 8.
        replay_cap (`int`, *optional*):
            Rows of one prompt per generation batch. `None`: no limit. SPO, App. D: 32 trajectories, which are rows with
            `tree_rows="paths"`; the released code has 32 segments.
        process_reward_weight (`float`, *optional*, defaults to `0.0`):
            α in A + α A^μ (the released code: 5), with A^μ from the best of `process_reward_best_of` tries. Total
            rewards must lie in `reward_range`.
        process_reward_best_of (`int`, *optional*):
            K ≥ 1, the exponent of V^μ = 1 − (1 − V)^K. `None`: the number of Monte Carlo samples of a state, as in the
            paper: `rollouts_per_state`, or the branching of a tree, if equal on all levels (the released code: 4).
        process_reward_form (`str`, *optional*, defaults to `"advantage"`):
            What the process reward is added to. `"value"`: V(child) + α A^μ, the paper's form, which also trains nodes
            of advantage 0. `"advantage"`: A + α A^μ, which is ours: it keeps the baseline V(parent), for less variance.
        policy_loss (`str`, *optional*, defaults to `"clip"`):
            The policy term of the loss. `"clip"`: TRL's loss. `"policy_iteration"`: w (`beta` log π/π_ref − A)² per
            segment, which replaces clipped ratio and KL term (SPO, App. B); w is π/π_old, at most 10. Only the released
            code has this limit. The paper gives no `beta`; the released code uses 0.1.
        whiten_advantages (`str`, *optional*, defaults to `"none"`):
            Over which kept tokens advantages get mean 0 and variance 1. `"none"`, the generation `"batch"`, or each
            `"microbatch"` (the released code; it turns equal advantages into 0).
        released_code (`list[str]`, *optional*):
            Points in which the released code of a paper is followed where it differs from the text.
            `"spo_normalizer"`: with a `token_mask`, KL is summed over the kept tokens of each row, then averaged over
            rows; the text has KL over all tokens, divided like the policy term. `"spo_first_cutpoint"`: the first
            segment begins at the first cutpoint, not at the first token, so that A_1 starts from V there and not from
            V(x) (Eq. 2). `"spo_last_token"`: a cutpoint may be a response's last token. `"spo_replay"`: the replay
            buffer loses rows and fills batches by repetition. `"spo_policy_iteration"`: half of the loss of
            `"policy_iteration"`. `"ha_dw_anchor"`: the belief of `difficulty="hard"` includes the batch that it weighs.
            That code has `difficulty_scale=1.5`, and no weight without `scale_rewards`.
    """

    rollouts: str = _rollout("none", one_of("none", "chain", "tree"))
    segmentation: str = _segment("cutpoints", CUTS, acts=CHAIN)
    cutpoint_interval: int = _segment(5, COUNT, acts=CHAIN | when(segmentation="cutpoints", num_segments=None))
    num_segments: int | None = _segment(None, COUNT, acts=CHAIN | when(segmentation=("cutpoints", "fixed_count")))
    segment_length: int = _segment(100, COUNT, acts=CHAIN | when(segmentation="fixed_length"))
    step_splitter: str = _segment("newline", STEPS, acts=CHAIN | when(segmentation="steps"))
    max_valued_steps: int | None = _segment(None, COUNT, acts=CHAIN)
    rollouts_per_state: int = _rollout(9, COUNT, acts=CHAIN)
    initial_value: str = _rollout("rollout", one_of("rollout", "group"), acts=CHAIN)
    certain_tolerance: float = _rollout(0.0, number("in [0, 1)", lambda x: 0.0 <= x < 1.0), acts=CHAIN)
    truncated_value: float | None = _rollout(None, FINITE, acts=ROLLOUTS)
    rollout_batch_size: int | None = _rollout(None, COUNT, acts=ROLLOUTS, changes_loss=False)
    tree_branching: list[int] = _rollout([6, 6, 6], BRANCHING, acts=TREE)
    tree_segment_length: int = _rollout(30, COUNT, acts=TREE | when(tree_branching=TWO_LEVELS))
    segment_advantage: str = _segment("mean", one_of("mean", "loo", "std"), acts=TREE)
    tree_rows: str = _rollout("nodes", one_of("nodes", "paths", "packed"), acts=TREE)
    replay_iterations: int = _rollout(1, COUNT, acts=TREE)
    replay_cap: int | None = _rollout(None, COUNT, acts=TREE)
    process_reward_weight: float = _segment(0.0, FINITE, acts=ROLLOUTS)
    process_reward_best_of: int | None = _segment(None, COUNT, acts=PROCESS_REWARD)
    process_reward_form: str = _segment("advantage", one_of("advantage", "value"), acts=PROCESS_REWARD)
    policy_loss: str = _segment("clip", one_of("clip", "policy_iteration"))
    whiten_advantages: str = _segment("none", one_of("none", "batch", "microbatch"))
    released_code: list[str] | None = _segment(None, POINTS, acts=tuple(RELEASED_CODE.values()))


def best_of(config: "SegmentKnobs") -> int:
    """N of the best-of-N process reward: the knob, or the number of Monte Carlo samples of a state (SPO, App. C)."""
    if config.process_reward_best_of is not None:
        return config.process_reward_best_of
    return config.tree_branching[0] if config.rollouts == "tree" else config.rollouts_per_state
