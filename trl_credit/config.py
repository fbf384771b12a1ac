"""The composable knobs of credit assignment, on top of TRL's `GRPOConfig`."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from trl import GRPOConfig

from .checks import check_settings
from .credit.steps import STEP_SPLITTERS
from .names import is_own_function, name_of, resolve_function
from .segment_config import SEGMENT_CHOICES, SegmentKnobs, check_segment_knobs


TRACES = ("eligible", "lambda_trace")
CHOICES = {
    "importance": ("token", "sequence", "sequence_token", *TRACES),
    "selector": ("none", "entropy", "random"),
    "trace_style": ("recent", "both"),
    "loss_weight": ("none", "trace_past", "trace_future"),
    "token_mask": ("none", "probability"),
    "baseline": ("group", "optimal"),
    "difficulty": ("none", "history", "hard", "fixed"),
    "behavior_logps": ("recomputed", "sampler"),
    **SEGMENT_CHOICES,
}
# the knobs that take a function of one's own, and the built-in ones that they choose among
FUNCTION_KNOBS = {
    "credit": (),
    **{name: CHOICES[name] for name in ("selector", "token_mask", "baseline", "segmentation")},
    "step_splitter": tuple(STEP_SPLITTERS),
}


@dataclass
class CreditConfig(SegmentKnobs, GRPOConfig):
    r"""
    Configuration class for [`CreditTrainer`]: `trl.GRPOConfig` plus the knobs that decide which tokens get how much
    credit. With every knob at its default the trainer is TRL's own GRPO. The knobs of segments are documented in
    [`SegmentKnobs`].

    `credit`, `selector`, `token_mask`, `baseline`, `segmentation` and `step_splitter` take functions of one's own, as
    `package.module.function` or `file.py:function`, and in Python as an object, which is kept for this process while
    the field holds its name (see `docs/your_own_algorithm.md`).

    Parameters:
        credit (`str` or `Callable`, *optional*):
            A function `f(config, tokens) -> Credit` of one's own, in the place of
            [`~trl_credit.assignment.assign_credit`], which it may call. The knobs of W and of the loss weight act
            through that call alone.
        importance (`str`, *optional*, defaults to `"token"`):
            Log importance weight. `"token"` (GRPO), `"sequence"` (GSPO), `"sequence_token"` (GSPO-token), `"eligible"`
            (P-trace; S-trace with a `selector`), `"lambda_trace"` (GRPO-λ ε-trace). Takes the place of
            TRL's `importance_sampling_level`; where that is `"sequence"` and this at its default, this is too.
        trace_lambda (`float`, *optional*, defaults to `0.9`):
            λ of the traces, in [0, 1]. A trace decays by `gamma * trace_lambda` per token.
        gamma (`float`, *optional*, defaults to `1.0`):
            Discount γ per token, in [0, 1].
        selector (`str`, *optional*, defaults to `"none"`):
            Which tokens leave an eligible trace: `"none"` (all), `"entropy"` (the `selective_rate` of highest entropy
            in each response), `"random"` (ablation), or a function with the signature of
            [`~trl_credit.credit.selection.select_high_entropy`].
        selective_rate (`float`, *optional*, defaults to `0.2`):
            ρ of the selector, in [0, 1].
        leave_own_out (`bool`, *optional*, defaults to `True`):
            Whether a token's own gradient is exempt from the selection (S-trace); `False` is the paper's ablation.
        trace_style (`str`, *optional*, defaults to `"recent"`):
            GRPO-λ's trace: `"recent"` g^(t−k), `"both"` max(g^(t−k), g^k).
        loss_weight (`str`, *optional*, defaults to `"none"`):
            GRPO-λ's ε-weight on the loss of each token: `"trace_past"` (the paper's text) or `"trace_future"`.
        token_mask (`str`, *optional*, defaults to `"none"`):
            `"probability"` (SPO) keeps, in the policy term and in its normaliser, the tokens whose probability under
            the sampling policy was below `probability_threshold`. What becomes of the KL term is `mask_normalizer`. The
            80/20 entropy mask is TRL's own `top_entropy_quantile`. Or a function with the signature of
            [`~trl_credit.credit.selection.probability_mask`], of what is known before the loss.
        probability_threshold (`float`, *optional*, defaults to `0.9`):
            ρ of the probability mask, > 0, at sampling temperature.
        baseline (`str`, *optional*, defaults to `"group"`):
            `"group"` (TRL's advantage, with its `scale_rewards`), `"optimal"` (OPO: length-weighted mean, no std), or
            a function with the signature of [`~trl_credit.credit.advantages.optimal_advantage`].
        advantage_floor (`float`, *optional*):
            Advantages below it are raised to it (GRPO-λ: −0.1). `None` leaves them alone.
        difficulty (`str`, *optional*, defaults to `"none"`):
            HA-DW's weight on the advantages of harder and easier prompts: against a belief moved by `"history"`, its
            `"hard"` update (mean of the last `difficulty_window` accuracies) or a `"fixed"` `difficulty_threshold`.
        difficulty_scale (`float`, *optional*, defaults to `1.3`):
            λ_scale > 0.
        difficulty_window (`int`, *optional*, defaults to `10`):
            m ≥ 1: batches that the belief looks back on.
        difficulty_rate (`float`, *optional*, defaults to `1.0`):
            η > 0; the step is η times the standard deviation of the last m beliefs.
        difficulty_rate_min (`float`, *optional*, defaults to `0.01`):
            Smallest step, in [0, 1]: without it a belief that stood still would stay for ever.
        difficulty_threshold (`float`, *optional*, defaults to `0.5`):
            Fixed belief in [0, 1] for `difficulty="fixed"`.
        reward_range (`tuple[float, float]`, *optional*, defaults to `(0.0, 1.0)`):
            Smallest and largest total reward, mapped to 0 and 1 for the difficulty of a prompt.
        behavior_logps (`str`, *optional*, defaults to `"recomputed"`):
            π_old with vLLM: `"recomputed"` by a forward pass of the model, with TRL's correction for the engine on top,
            or the engine's own (`"sampler"`), which saves that pass (GSPO, Sec. 5.4).
        reward_timeout (`float`, *optional*):
            Seconds that a reward function may take for a batch. `None`: any.
        nonfinite_patience (`int`, *optional*, defaults to `3`):
            Updates in a row that are skipped because loss or gradient is not finite, before the run stops.

    Raises:
        ValueError: a value out of range, or two knobs of which the combination is ill-defined; the message names the
            field and the fix.
    """

    credit: str | None = field(
        default=None,
        metadata={"help": "Your own credit function: package.module.function or file.py:function. `None`: the knobs."},
    )
    importance: str = field(
        default="token",
        metadata={"help": "Log importance weight: 'token', 'sequence', 'sequence_token', 'eligible', 'lambda_trace'."},
    )
    trace_lambda: float = field(default=0.9, metadata={"help": "λ of the traces, in [0, 1]."})
    gamma: float = field(default=1.0, metadata={"help": "Discount per token, in [0, 1]."})
    selector: str = field(
        default="none",
        metadata={"help": "Tokens that leave an eligible trace: 'none' (all), 'entropy', 'random', or your own."},
    )
    selective_rate: float = field(default=0.2, metadata={"help": "Share of tokens the selector takes, in [0, 1]."})
    leave_own_out: bool = field(
        default=True, metadata={"help": "Whether a token's own gradient is exempt from the selection."}
    )
    trace_style: str = field(default="recent", metadata={"help": "Trace of GRPO-λ: 'recent' or 'both'."})
    loss_weight: str = field(
        default="none", metadata={"help": "ε-weight of GRPO-λ: 'none', 'trace_past', 'trace_future'."}
    )
    token_mask: str = field(
        default="none", metadata={"help": "Tokens of the policy term: 'none' (all), 'probability' (SPO), or your own."}
    )
    probability_threshold: float = field(
        default=0.9, metadata={"help": "The probability mask keeps tokens less probable than this."}
    )
    baseline: str = field(default="group", metadata={"help": "'group' (GRPO), 'optimal' (OPO), or your own."})
    advantage_floor: float | None = field(
        default=None, metadata={"help": "Advantages below it are raised to it. `None` leaves them alone."}
    )
    difficulty: str = field(
        default="none", metadata={"help": "HA-DW's difficulty weight: 'none', 'history', 'hard', 'fixed'."}
    )
    difficulty_scale: float = field(default=1.3, metadata={"help": "λ_scale of HA-DW, > 0."})
    difficulty_window: int = field(default=10, metadata={"help": "Batches the difficulty belief looks back on."})
    difficulty_rate: float = field(default=1.0, metadata={"help": "η of HA-DW, > 0."})
    difficulty_rate_min: float = field(default=0.01, metadata={"help": "Smallest step of the belief, in [0, 1]."})
    difficulty_threshold: float = field(default=0.5, metadata={"help": "Belief for `difficulty='fixed'`, in [0, 1]."})
    behavior_logps: str = field(
        default="recomputed", metadata={"help": "π_old with vLLM: 'recomputed', or the engine's own ('sampler')."}
    )
    reward_timeout: float | None = field(
        default=None, metadata={"help": "Seconds that a reward function may take for a batch. `None`: any."}
    )
    nonfinite_patience: int = field(
        default=3, metadata={"help": "Updates in a row to skip for a loss or gradient that is not finite."}
    )
    reward_range: list[float] = field(  # a list, since a command line cannot carry a tuple
        default_factory=lambda: [0.0, 1.0], metadata={"help": "Smallest and largest total reward, for `difficulty`."}
    )

    def __post_init__(self) -> None:
        for name in FUNCTION_KNOBS:
            # an object in a field would end torch.save(args) and to_json_string at the first checkpoint
            if callable(value := getattr(self, name)):
                setattr(self, name, name_of(value))
        if not torch.accelerator.is_available():
            # what is left is the CPU, which transformers wants to be told, and on which bfloat16 autocast only costs
            self.use_cpu = True
            self.bf16 = False if self.bf16 is None else self.bf16
        # TRL's own field, as TRL means it
        asked_of_trl = self.importance_sampling_level == "sequence" and self.importance in ("token", "sequence")
        self.importance = "sequence" if asked_of_trl else self.importance
        check_settings(self)
        super().__post_init__()
        self.reward_range = tuple(self.reward_range)
        self._check_ranges()
        self._check_combinations(sequence_of_trl=asked_of_trl)
        check_segment_knobs(self)
        if self.importance == "sequence":
            self.importance_sampling_level = "sequence"  # TRL's own path, with its metrics per sequence

    @property
    def trace_decay(self) -> float:
        """g = γλ, per token."""
        return self.gamma * self.trace_lambda

    @property
    def has_trace(self) -> bool:
        """Whether the gradient of a token reaches earlier tokens through the importance weight."""
        return self.importance in TRACES

    def own_functions(self) -> dict[str, str]:
        """Functions from outside of the package that this run uses: knob → name."""
        steps = self.rollouts == "chain" and self.segmentation == "steps"  # without which there is nothing to split
        knobs = [name for name in FUNCTION_KNOBS if name != "step_splitter" or steps]
        return {name: getattr(self, name) for name in knobs if is_own_function(getattr(self, name))}

    def own_function(self, knob: str) -> Callable | None:
        """The function that one of the `FUNCTION_KNOBS` names, or `None` where it is a built-in choice.

        It is looked up when the configuration is built, and stays what it was then.

        Raises:
            ValueError: there is none of that name.
        """
        name = getattr(self, knob)
        known = FUNCTION_KNOBS[knob]
        return resolve_function(name, what=knob, known=known, anew=False) if is_own_function(name) else None

    def _check_ranges(self) -> None:
        for name, setting in self.own_functions().items():
            resolve_function(setting, what=name, known=FUNCTION_KNOBS[name])
        if self.credit is not None and not is_own_function(self.credit):
            raise ValueError(
                f"credit={self.credit!r} must be package.module.function, file.py:function, or None: built-in "
                "algorithms are chosen by their own configuration classes."
            )
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed and not (name in FUNCTION_KNOBS and is_own_function(value)):
                own = ", package.module.function or file.py:function" * (name in FUNCTION_KNOBS)
                raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}{own}, got {value!r}.")
        for name in (
            "trace_lambda",
            "gamma",
            "selective_rate",
            "difficulty_rate_min",
            "difficulty_threshold",
        ):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}.")
        for name in ("probability_threshold", "difficulty_scale"):
            if not (getattr(self, name) > 0.0 and math.isfinite(getattr(self, name))):
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}.")
        if not (self.difficulty_rate > 0.0 and math.isfinite(self.difficulty_rate)):
            raise ValueError(f"difficulty_rate must be positive and finite, got {self.difficulty_rate}.")
        if self.difficulty_window < 1:
            raise ValueError(f"difficulty_window must be at least 1 batch, got {self.difficulty_window}.")
        if self.reward_timeout is not None and not self.reward_timeout > 0.0:
            raise ValueError(f"reward_timeout must be a positive number of seconds or None, got {self.reward_timeout}.")
        if self.nonfinite_patience < 0:
            raise ValueError(f"nonfinite_patience must be at least 0 updates, got {self.nonfinite_patience}.")
        if self.advantage_floor is not None and not math.isfinite(self.advantage_floor):
            raise ValueError(f"advantage_floor must be finite or None, got {self.advantage_floor}.")
        if not (self.epsilon >= 0.0 and math.isfinite(self.epsilon)):  # from 1 on there is no lower bound, as in TRL
            raise ValueError(f"epsilon must be at least 0 and finite, got {self.epsilon}.")
        if self.epsilon_high is not None and not self.epsilon_high >= 0.0:
            raise ValueError(f"epsilon_high must be >= 0 or None, got {self.epsilon_high}.")
        low_high = self.reward_range
        if len(low_high) != 2 or not all(map(math.isfinite, low_high)) or not low_high[0] < low_high[1]:
            raise ValueError(f"reward_range must be two finite numbers, the smaller first, got {low_high}.")

    def _check_combinations(self, *, sequence_of_trl: bool) -> None:
        if self.importance_sampling_level != "token" and self.importance != "sequence":
            raise ValueError(
                f"importance_sampling_level={self.importance_sampling_level!r} with importance={self.importance!r}: "
                "leave importance_sampling_level alone and choose importance='sequence' (GSPO) or 'sequence_token'."
            )
        if self.credit is not None and self.policy_loss != "clip":
            raise ValueError(
                f"credit={self.credit!r} with policy_loss={self.policy_loss!r}: each of them is the whole credit "
                "function. Leave one out; a function may call trl_credit.assignment.policy_iteration itself."
            )
        if is_own_function(self.segmentation) and self.rollouts != "chain":
            raise ValueError(
                f"segmentation={self.segmentation!r} cuts the responses of a chain, and rollouts={self.rollouts!r} has "
                "none: set rollouts='chain', or leave segmentation out."
            )
        if self.importance == "sequence":
            for name, off in (("token_mask", "none"), ("loss_weight", "none"), ("top_entropy_quantile", 1.0)):
                if name == "top_entropy_quantile" and sequence_of_trl:
                    continue  # TRL's two fields mean together what they mean in TRL
                if getattr(self, name) != off:
                    raise ValueError(
                        f"importance='sequence' averages over the response, so {name}={getattr(self, name)!r}, which "
                        f"differs from token to token, would be averaged away: set importance='sequence_token', or "
                        f"{name}={off!r}."
                    )
        if self.behavior_logps == "sampler" and not self.use_vllm:
            raise ValueError(
                "behavior_logps='sampler' takes log-probabilities from vLLM: set use_vllm=True, or 'recomputed'."
            )
        if self.selector != "none" and self.importance != "eligible":
            raise ValueError(
                f"selector={self.selector!r} selects the tokens that leave an eligible trace, and importance="
                f"{self.importance!r} has none: set importance='eligible' (S-trace), or selector='none'."
            )
        if self.has_trace and self.loss_type in ("cispo", "vespo", "sapo"):
            raise ValueError(
                f"importance={self.importance!r} with loss_type={self.loss_type!r}: that loss does not take its "
                "gradient through the clipped importance weight, so the trace would be lost or bent: set loss_type to "
                "'dapo', 'grpo', 'bnpo' or 'dr_grpo'."
            )
        if self.importance == "sequence_token" and self.loss_type == "vespo":
            raise ValueError(
                "loss_type='vespo' builds its own sequence weight from the per-token ratios: set importance='token'."
            )
        if self.loss_type == "luspo" and self.importance not in ("token", "sequence"):
            raise ValueError(
                f"loss_type='luspo' with importance={self.importance!r}: it is defined for importance='sequence' (and "
                "does with 'token' what TRL does): set one of them, or loss_type."
            )
        if self.has_trace and self.beta != 0.0 and self.use_bias_correction_kl:
            raise ValueError(
                f"use_bias_correction_kl=True multiplies the KL term by the importance weight, and with importance="
                f"{self.importance!r} the trace would flow through the KL: set use_bias_correction_kl=False."
            )
        if self.multi_objective_aggregation != "sum_then_normalize":
            for name, off in (("baseline", "group"), ("difficulty", "none")):
                if getattr(self, name) != off:
                    raise ValueError(
                        f"{name}={getattr(self, name)!r} needs one reward per response, and "
                        f"multi_objective_aggregation={self.multi_objective_aggregation!r} has one per function: set "
                        "multi_objective_aggregation='sum_then_normalize'."
                    )
