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
            How segments are valued: by continuations from the boundaries of each response (`"chain"`; SPO-chain,
            VinePPO), or by a tree of responses (`"tree"`; SPO-tree). Advantages are then differences of values, and
            `scale_rewards` has no effect.
        segmentation (`str`, *optional*, defaults to `"cutpoints"`):
            How a chain is cut, from the first token on. `"cutpoints"` gives each segment `cutpoint_interval` tokens
            less probable than `probability_threshold`, and ends it before the next one. `"fixed_length"` takes
            `segment_length` tokens, `"fixed_count"` makes `num_segments`, and `"steps"` cuts by `step_splitter`.
            `"turns"` (ours) takes the turns of an environment with `snapshot()` and `restore(state)`. A custom function
            `f(old_logp_t, *, completion_ids, decode, mask_t)` returns where segments begin: bool, shape (B, T).
        cutpoint_interval (`int`, *optional*, defaults to `5`):
            The number n≥1 of cutpoints per segment.
        num_segments (`int`, *optional*):
            The number K≥1 of segments. With `"cutpoints"` it replaces the interval.
        segment_length (`int`, *optional*, defaults to `100`):
            Tokens per segment of `"fixed_length"`.
        step_splitter (`str`, *optional*, defaults to `"newline"`):
            How a response is split into steps: `"newline"`, `"gsm8k"`, `"math"`, or a custom function from a text to
            ascending character offsets, whose `ValueError` leaves the response out of the loss.
        max_valued_steps (`int`, *optional*):
            Boundaries per response that rollouts value, besides the first token. Later ones get the response's own
            reward (VinePPO on GSM8K: 25). `None` values all.
        rollouts_per_state (`int`, *optional*, defaults to `9`):
            The number N≥1 of continuations from each boundary.
        initial_value (`str`, *optional*, defaults to `"rollout"`):
            V(s_0), if a segment begins at the first token: `"rollout"` estimates it, and `"group"` takes the mean
            reward of the group's other responses.
        certain_tolerance (`float`, *optional*, defaults to `0.0`):
            No rollouts are made if the rest of the response had at least probability 1 − this, in [0, 1).
        truncated_value (`float`, *optional*):
            The value of truncated rollouts and leaves. `None` takes what the reward functions give (SPO, Alg. 1).
        rollout_batch_size (`int`, *optional*):
            Continuations per engine call, and for a chain also per call of the reward functions. `None` makes one
            engine call, which needs most memory, and gives the reward functions at least four per response.
        tree_branching (`list[int]`, *optional*, defaults to `[6, 6, 6]`):
            Children per node, from the root down.
        tree_segment_length (`int`, *optional*, defaults to `30`):
            The tokens M per segment; the last level runs to the end of the response.
        segment_advantage (`str`, *optional*, defaults to `"mean"`):
            The baseline of a tree's segment: `"mean"` of the siblings, `"loo"` (leave-one-out), or `"std"` (mean,
            divided by the standard deviation).
        tree_rows (`str`, *optional*, defaults to `"nodes"`):
            The training rows of a tree. `"nodes"` makes one per node. The others give the same gradient from fewer
            tokens: nodes of a path share their prefix (`"paths"`), or branches share at most `num_generations` rows
            (`"packed"`, tree attention without flash attention).
        replay_iterations (`int`, *optional*, defaults to `1`):
            Generation batches in which a row of a tree may be drawn. 1 means no replay. SPO has 8 (App. D).
        replay_cap (`int`, *optional*):
            Rows of one prompt per generation batch. `None` sets no limit. SPO has 32 trajectories (App. D), which are
            rows with `tree_rows="paths"`, and its released code 32 segments.
        process_reward_weight (`float`, *optional*, defaults to `0.0`):
            α in A + αA^μ (5 in the released code), with A^μ from the best of `process_reward_best_of` tries.
        process_reward_best_of (`int`, *optional*):
            K≥1 in V^μ = 1−(1−V)^K. `None` takes the number of samples of a state, as in the paper:
            `rollouts_per_state`, or the branching of a tree, if equal on all levels (the released code has 4).
        process_reward_form (`str`, *optional*, defaults to `"advantage"`):
            `"value"` has V(child) + αA^μ, the paper's form, which also trains nodes of advantage 0. `"advantage"` has A
            + αA^μ (ours), which keeps the baseline V(parent), for less variance.
        policy_loss (`str`, *optional*, defaults to `"clip"`):
            The policy term: TRL's (`"clip"`), or w (`beta` log π/π_ref − A)² per segment, without clipping and KL term
            (`"policy_iteration"`; SPO, App. B). w is π/π_old, at most 10 as in the released code, which uses
            `beta=0.1`; the paper gives neither.
        whiten_advantages (`str`, *optional*, defaults to `"none"`):
            Over which kept tokens advantages get mean 0 and variance 1: the generation `"batch"`, or each
            `"microbatch"` (the released code; it turns equal advantages into 0).
        released_code (`list[str]`, *optional*):
            Points in which a paper's released code is followed instead of the text. `"spo_normalizer"` sums KL over the
            kept tokens of each row and averages over rows; the text takes all tokens. `"spo_first_cutpoint"` begins the
            first segment at the first cutpoint, not at the first token (Eq. 2). `"spo_last_token"` lets a cutpoint be a
            response's last token. `"spo_replay"` loses rows of the replay buffer and fills batches by repetition.
            `"spo_policy_iteration"` halves the loss of `"policy_iteration"`. `"ha_dw_anchor"` includes the weighed
            batch in the belief of `difficulty="hard"`; that code has `difficulty_scale=1.5`.
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
