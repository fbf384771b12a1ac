"""Random configurations that the configuration classes accept."""

import functools
import random
from dataclasses import dataclass, field, replace
from typing import Any

import trl_credit
from trl_credit import CreditConfig
from trl_credit.config.segments import RELEASED_CODE


PAIRS = trl_credit.ALGORITHMS | {"base": (CreditConfig, trl_credit.CreditTrainer)}
OF_TRL = ("base", "grpo", "dapo", "dr_grpo")  # as `trl.GRPOTrainer` with the settings of their classes
SHAPE = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")
SHAPES = [(8, 1, 1), (8, 1, 2), (8, 2, 2), (4, 2, 4), (4, 4, 4), (8, 2, 1), (16, 1, 1), (4, 2, 6)]

# what a setting may be
OF_TRL_ALONE: list[dict[str, list]] = [
    {"loss_type": ["grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"]},
    {"scale_rewards": ["group", "batch", "none"], "beta": [0.0, 0.05, 0.3], "num_iterations": [2]},
    {"num_generations": [2, 4, 8], "mask_truncated_completions": [True, False], "top_entropy_quantile": [0.5, 0.8]},
    {"off_policy_mask_threshold": [0.001, 0.1], "delta": [1.05, 2.0], "use_bias_correction_kl": [True]},
    {"importance_sampling_level": ["sequence"], "multi_objective_aggregation": ["normalize_then_sum"]},
    {"entropy_coef": [0.01], "max_grad_norm": [0.0, 0.1], "gradient_checkpointing": [True]},
]
OWN_ALONE: list[dict[str, list]] = [
    {"importance": ["sequence", "sequence_token", "turn", "turn_token", "eligible", "lambda_trace"]},
    {"leave_own_out": [False], "trace_unit": ["turn"], "clip_form": ["ratio"], "baseline": ["optimal"]},
    {"advantage_floor": [-0.1, 0.05], "td_upper_bound": [True], "difficulty": ["history", "hard", "fixed"]},
    {"prompt_average": [True], "turn_average": [True], "dull_kl": ["drop"]},
    {"prompt_sampler": ["difficulty"], "whiten_advantages": ["batch", "microbatch"], "initial_value": ["group"]},
    {"tree_rows": ["paths", "packed", "nodes"], "segment_advantage": ["loo", "std"], "replay_iterations": [1, 2]},
    {"policy_loss": ["policy_iteration"], "truncated_value": [0.0], "rollout_batch_size": [7]},
    {"released_code": [[name] for name in RELEASED_CODE]},
    {"cov_range": [[-9.0, 9.0]], "shared_prefix": ["on"], "future_drop_clipped": [1], "future_safety_ratio": [1.1]},
]
# settings that go together
OF_TRL_TOGETHER: list[dict[str, list]] = [
    {"epsilon": [0.01, 0.2], "epsilon_high": [0.02, 0.3]},
    {"sync_ref_model": [True], "ref_model_sync_steps": [1], "ref_model_mixup_alpha": [0.5]},
]
OWN_TOGETHER: list[dict[str, list]] = [
    {"trace_lambda": [0.5, 1.0], "gamma": [0.95, 1.0], "trace_style": ["recent", "both"]},
    {"selector": ["entropy", "entropy_reference", "random"], "selective_rate": [0.3, 0.6]},
    {"loss_weight": ["trace_past", "trace_future"], "loss_weight_confidence": ["none", "sigmoid", "tanh_grad"]},
    {"token_mask": ["probability"], "probability_threshold": [0.3, 0.7]},
    {"groups": ["replace", "refill"], "group_signal": ["correct", "reward", "advantage"]},
    {"returns": ["to_go", "difference"], "step_gamma": [1.0, 0.9], "step_baseline": ["step", "response"]},
    {"rollouts": ["chain"], "segmentation": ["cutpoints", "fixed_count", "fixed_length"], "rollouts_per_state": [2, 3]},
    {"rollouts": ["tree"], "tree_branching": [[3, 2], [2, 2, 2], [3, 3]], "loss_type": ["dapo", "grpo"]},
    {"process_reward_weight": [0.5], "process_reward_best_of": [2], "process_reward_form": ["advantage", "value"]},
    {"cov_share": [0.0, 0.1, 0.3], "cov_statistics": ["batch", "microbatch"]},
]
SMALL = {"cutpoint_interval": 2, "segment_length": 3, "num_segments": 3, "tree_segment_length": 2}
FIXED = {"use_cpu": True, "bf16": False, "report_to": "none", "disable_tqdm": True, "save_strategy": "no"}
FIXED |= {"logging_steps": 1, "max_steps": 2, "max_completion_length": 9, "gradient_checkpointing": False}
# a change of the weights in proportion to the gradient, and large enough that the second update is off-policy
FIXED |= {"optim": "sgd", "learning_rate": 0.2}


def _tables(alone: list[dict[str, list]], together: list[dict[str, list]]) -> list[dict[str, list]]:
    return [{name: values} for line in alone for name, values in line.items()] + together


@dataclass(frozen=True)
class Case:
    """A configuration, and what a training needs besides.

    Attributes:
        algo: The algorithm.
        settings: Fields of its configuration.
        rewards: `"one"`, `"two"`, `"none"` (the second does not apply to every response) or `"steps"`.
        lora: Whether an adapter is trained.
        talks: Whether responses have tokens in between that the policy did not write.
        shift: Added to the first reward.
        reverses: Whether the responses to a prompt come in the reverse order.
        stock: Whether `trl.GRPOTrainer` trains.
        resumes: Whether another trainer goes on from the checkpoint after the first generation batch.
    """

    algo: str
    settings: dict[str, Any] = field(default_factory=dict)
    rewards: str = "one"
    lora: bool = False
    talks: bool = False
    shift: float = 0.0
    reverses: bool = False
    stock: bool = False
    resumes: bool = False

    def with_settings(self, **settings: Any) -> "Case":
        return replace(self, settings=self.settings | settings)

    def config(self, folder: str = "unused") -> CreditConfig:
        """Raises a `ValueError` if the settings do not go together."""
        return PAIRS[self.algo][0](folder, **FIXED | self.settings)


def updates(config: CreditConfig) -> int:
    """Updates of a generation batch. A checkpoint is written at its end."""
    return max(1, config.steps_per_generation * config.num_iterations // config.gradient_accumulation_steps)


@functools.cache
def draw(seed: int, number: int, attempt: int = 0) -> Case:
    """Case `number`: settings are added as long as the configuration accepts them."""
    rng = random.Random(f"{seed} {number} {attempt}")
    algo = rng.choice([*OF_TRL, *OF_TRL, *OF_TRL, *PAIRS])
    shape = dict(zip(SHAPE, rng.choice(SHAPES), strict=True))
    two = {"steps_per_generation": 2 * shape["gradient_accumulation_steps"]}  # updates, which no algorithm refuses
    case = Case(algo, {"num_generations": 4} | shape | two, rng.choice(["one", "two", "none"]), rng.random() < 0.2)
    case = _tried(case, shape)
    tables = _tables(OF_TRL_ALONE, OF_TRL_TOGETHER)
    if rng.random() < 0.7:
        tables += _tables(OWN_ALONE, OWN_TOGETHER)
    some = rng.sample(tables, rng.randint(2, len(tables) // 2))
    for table in some:
        case = _tried(case, {name: rng.choice(values) for name, values in table.items()})
    for name, value in SMALL.items():
        case = _tried(case, {name: value})
    if case.settings.get("returns", "outcome") != "outcome":
        case = replace(case, rewards="steps")
    if case.rewards in ("two", "none"):
        case = _tried(case, {"reward_weights": rng.choice([[1.0, 0.5], [0.7, 0.3]])})
    config = case.config()
    if config.rollouts == "none" and not config.td_upper_bound and rng.random() < 0.3:
        case = replace(case, talks=True)
    if config.process_reward_weight != 0.0:
        case = case.with_settings(reward_range=[0.0, 5.0])
    if config.reads_correct:
        case = _tried(case, {"difficulty_reward": ["first"]})
    if 1 < (count := updates(config)) < 5 and rng.random() < 0.4:
        case = case.with_settings(max_steps=count + 1)  # one with the next batch
    return case


def _tried(case: Case, settings: dict[str, Any]) -> Case:
    """The case with these settings, or without where the algorithm lacks or refuses them."""
    changed = case.with_settings(**settings)
    try:
        changed.config()
    except (TypeError, ValueError):
        return case
    return changed
