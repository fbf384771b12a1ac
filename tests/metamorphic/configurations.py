"""Random configurations that the configuration classes accept."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import trl_credit
from trl_credit import CreditConfig


CLASSES = {name: config for name, (config, _) in trl_credit.ALGORITHMS.items()} | {"base": CreditConfig}
OF_TRL = ("base", "grpo", "dapo", "dr_grpo")  # as `trl.GRPOTrainer` with the settings of their classes
# rows of a pass, passes of an update, passes of a generation batch
SHAPES = [(8, 1, 1), (8, 1, 2), (8, 2, 2), (4, 2, 4), (4, 4, 4), (8, 2, 1), (16, 1, 1), (4, 2, 6)]

# what a setting of TRL may be, or several that go together
TRL_SETTINGS: list[dict[str, list]] = [
    {"loss_type": ["grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"]},
    {"scale_rewards": ["group", "batch", "none"]},
    {"beta": [0.0, 0.05, 0.3]},
    {"num_iterations": [2]},
    {"num_generations": [2, 4, 8]},
    {"mask_truncated_completions": [True, False]},
    {"top_entropy_quantile": [0.5, 0.8]},
    {"off_policy_mask_threshold": [0.001, 0.1]},
    {"epsilon": [0.01, 0.2], "epsilon_high": [0.02, 0.3]},
    {"delta": [1.05, 2.0]},
    {"use_bias_correction_kl": [True]},
    {"importance_sampling_level": ["sequence"]},
    {"multi_objective_aggregation": ["normalize_then_sum"]},
    {"entropy_coef": [0.01]},
    {"sync_ref_model": [True], "ref_model_sync_steps": [1], "ref_model_mixup_alpha": [0.5]},
    {"max_grad_norm": [0.0, 0.1]},
]
OWN_SETTINGS: list[dict[str, list]] = [
    {"importance": ["sequence", "sequence_token", "turn", "turn_token", "eligible", "lambda_trace"]},
    {"trace_lambda": [0.5, 1.0], "gamma": [0.95, 1.0]},
    {"selector": ["entropy", "entropy_reference", "random"], "selective_rate": [0.3, 0.6]},
    {"leave_own_out": [False]},
    {"trace_style": ["both"]},
    {"trace_unit": ["turn"]},
    {"loss_weight": ["trace_past", "trace_future"], "loss_weight_confidence": ["none", "sigmoid", "tanh_grad"]},
    {"clip_form": ["ratio"]},
    {"token_mask": ["probability"], "probability_threshold": [0.3, 0.7]},
    {"baseline": ["optimal"]},
    {"advantage_floor": [-0.1, 0.05]},
    {"td_upper_bound": [True]},
    {"difficulty": ["history", "hard", "fixed"]},
    {"prompt_average": [True]},
    {"turn_average": [True]},
    {"groups": ["replace", "refill"], "group_signal": ["correct", "reward", "advantage"]},
    {"refill_surplus": ["drop"]},
    {"dull_kl": ["drop"]},
    {"prompt_sampler": ["difficulty"]},
    {"whiten_advantages": ["batch", "microbatch"]},
    {"returns": ["to_go", "difference"], "step_gamma": [1.0, 0.9]},
    {"step_baseline": ["response"]},
    {"rollouts": ["chain"], "segmentation": ["cutpoints", "fixed_count", "fixed_length"], "rollouts_per_state": [2, 3]},
    {"initial_value": ["group"]},
    {"rollouts": ["tree"], "tree_branching": [[3, 2], [2, 2, 2], [3, 3]], "loss_type": ["dapo", "grpo"]},
    {"tree_rows": ["paths", "packed", "nodes"]},
    {"segment_advantage": ["loo", "std"]},
    {"replay_iterations": [1, 2]},
    {"process_reward_weight": [0.5], "process_reward_best_of": [2], "process_reward_form": ["advantage", "value"]},
    {"policy_loss": ["policy_iteration"]},
    {"truncated_value": [0.0]},
    {"rollout_batch_size": [7]},
    {"released_code": [["spo_normalizer"], ["spo_replay"], ["spo_first_cutpoint"], ["spo_last_token"]]},
    {"cov_share": [0.0, 0.1, 0.3], "cov_statistics": ["batch", "microbatch"]},
    {"cov_range": [[-9.0, 9.0]]},
    {"shared_prefix": ["on"]},
]
SMALL = {"cutpoint_interval": 2, "segment_length": 3, "num_segments": 3, "tree_segment_length": 2}
FIXED = {
    "use_cpu": True,
    "bf16": False,
    "report_to": "none",
    "disable_tqdm": True,
    "save_strategy": "no",
    "logging_steps": 1,
    "max_steps": 2,
    # a change of the weights in proportion to the gradient, and large enough that the second update is off-policy
    "optim": "sgd",
    "learning_rate": 0.2,
    "max_completion_length": 9,
}


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
        return CLASSES[self.algo](folder, **FIXED | self.settings)


def updates(config: CreditConfig) -> int:
    """Updates of a generation batch. A checkpoint is written at its end."""
    return max(1, config.steps_per_generation * config.num_iterations // config.gradient_accumulation_steps)


def draw(seed: int, number: int, attempt: int = 0) -> Case:
    """Case `number`: settings are added as long as the configuration accepts them."""
    rng = random.Random(f"{seed} {number} {attempt}")
    algo = rng.choice([*OF_TRL, *OF_TRL, *OF_TRL, *CLASSES])
    rows, window, batch = rng.choice(SHAPES)
    shape = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": window, "steps_per_generation": batch}
    case = Case(algo, shape | {"num_generations": 4}, rng.choice(["one", "two", "none"]), lora=rng.random() < 0.2)
    case = _accepted(case, shape | {"steps_per_generation": 2 * window})
    tables = [*TRL_SETTINGS, *(OWN_SETTINGS if rng.random() < 0.7 else [])]
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
    if config.reads_correct:
        case = _tried(case, {"difficulty_reward": ["first"]})
    if (count := updates(config)) > 1 and rng.random() < 0.4:
        case = case.with_settings(max_steps=count + 1)  # one with the next batch
    return case


def _accepted(case: Case, fallback: Mapping[str, Any]) -> Case:
    """The case, or with other settings where it is refused as it is (statistics over a batch need two updates)."""
    try:
        case.config()
    except ValueError:
        return case.with_settings(**fallback)
    return case


def _tried(case: Case, settings: Mapping[str, Any]) -> Case:
    """The case with these settings, or without where the algorithm lacks or refuses them."""
    changed = case.with_settings(**settings)
    try:
        changed.config()
    except (TypeError, ValueError):
        return case
    return changed
