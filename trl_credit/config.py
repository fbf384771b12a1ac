"""The composable knobs of credit assignment, on top of TRL's `GRPOConfig`."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from trl import GRPOConfig

from .checks import check_settings
from .config_checks import CHOICES, FUNCTION_KNOBS, check_combinations, check_ranges
from .dead_knobs import TRACES, check_dead_knobs
from .names import is_own_function, name_of, resolve_function
from .segment_config import SegmentKnobs, check_segment_knobs


__all__ = ["CHOICES", "FUNCTION_KNOBS", "TRACES", "CreditConfig"]


@dataclass
class CreditConfig(SegmentKnobs, GRPOConfig):
    r"""
    Configuration class for [`CreditTrainer`]: `trl.GRPOConfig` plus the knobs that decide which tokens get how much
    credit. With every knob at its default the trainer is TRL's own GRPO, to rounding (see `length_sort` and
    `shared_prefix`). The knobs of segments are documented in [`SegmentKnobs`].

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
            Whether a token's own gradient is exempt from the selection (S-trace); the
            paper discusses `False` (App. C.1) and has no run of it.
        trace_style (`str`, *optional*, defaults to `"recent"`):
            GRPO-λ's trace: `"recent"` g^(t−k), `"both"` max(g^(t−k), g^k).
        loss_weight (`str`, *optional*, defaults to `"none"`):
            GRPO-λ's ε-weight on the loss of each token: `"trace_past"` (the sum of the trace so far, its Sec. 3.2) or
            `"trace_future"` (S-trace's reading, App. D.1: the coefficient that the ε-trace has on-policy).
        loss_weight_confidence (`bool`, *optional*, defaults to `False`):
            Whether the ε-weight is multiplied by f(log π) = 1 + σ(log π − 1) of the policy as it is (GRPO-λ, App. A.3).
            Without gradient, which is ours.
        clip_form (`str`, *optional*, defaults to `"surrogate"`):
            `"surrogate"`: PPO's min(ρA, clip(ρ)A), GRPO-λ's Sec. 3. `"ratio"`: min(ρ, clip ρ)·A, its Algorithm 1 as it
            is written, which differs where A < 0: bounded above 1 + ε_high, and with a gradient below 1 − ε_low:
            ε_low has no effect. TRL's `clip_ratio/*` then count no token with A < 0; `credit/clip_fraction` counts all.
        token_mask (`str`, *optional*, defaults to `"none"`):
            `"probability"` (SPO) keeps, in the policy term and in its normaliser, the tokens whose probability under
            the sampling policy was below `probability_threshold`. What becomes of the KL term is `mask_normalizer`. The
            80/20 entropy mask is TRL's own `top_entropy_quantile`. Or a function with the signature of
            [`~trl_credit.credit.selection.probability_mask`], of what is known before the loss.
        probability_threshold (`float`, *optional*, defaults to `0.9`):
            ρ of the probability mask, > 0, at sampling temperature.
        baseline (`str`, *optional*, defaults to `"group"`):
            `"group"` (TRL's advantage, with its `scale_rewards`), `"optimal"` (OPO: mean weighted by loss tokens, so
            that a response that is masked has no vote; no std), or a function with the signature of
            [`~trl_credit.credit.advantages.optimal_advantage`].
        advantage_floor (`float`, *optional*):
            Advantages below it are raised to it (GRPO-λ: −0.1). `None` leaves them alone.
        difficulty (`str`, *optional*, defaults to `"none"`):
            HA-DW's weight on the advantages of harder and easier prompts: against a belief moved by `"history"`, its
            `"hard"` update (mean of the last `difficulty_window` accuracies) or a `"fixed"` `difficulty_threshold`.
        difficulty_scale (`float`, *optional*, defaults to `1.3`):
            λ_scale > 0.
        difficulty_window (`int`, *optional*, defaults to `10`):
            m ≥ 1: batches that the belief looks back on; before them it is the mean of the accuracies. The paper gives
            none of m, η, a smallest step and a start: ours, by the simulation of `docs/theory.md`.
        difficulty_rate (`float`, *optional*, defaults to `6.0`):
            η > 0; the step is η times the standard deviation of the last m beliefs.
        difficulty_rate_min (`float`, *optional*, defaults to `0.02`):
            Smallest step, in [0, 1]: without it a belief that stood still would stay for ever.
        difficulty_threshold (`float`, *optional*, defaults to `0.5`):
            Fixed belief in [0, 1] for `difficulty="fixed"`.
        difficulty_reward (`list[str]`, *optional*):
            Names of the reward functions that say what is correct. p̂ of a prompt and the accuracy of a batch come from
            their sum alone, without `reward_weights`; a response that is truncated counts as it was scored, masked or
            not. `None`: the only one, else the one called accuracy; where that is not clear the trainer refuses.
        reward_range (`tuple[float, float]`, *optional*, defaults to `(0.0, 1.0)`):
            Smallest and largest sum of the rewards of `difficulty_reward`, mapped to 0 and 1. With
            `process_reward_weight`: of the total reward.
        prompt_average (`bool`, *optional*, defaults to `False`):
            With `loss_type="dapo"` or `"cispo"`: the loss is the mean over the kept tokens of each prompt's rows in the
            generation batch, then the mean over prompts that have any (SPO-tree, Eq. 4), the KL term divided likewise.
            `False`: the mean over all tokens of the batch, in which long prompts weigh more.
        behavior_logps (`str`, *optional*, defaults to `"recomputed"`):
            π_old with vLLM: `"recomputed"` by a forward pass of the model, with TRL's correction for the engine on top,
            or the engine's own (`"sampler"`), which saves that pass (GSPO, Sec. 5.4).
        reward_timeout (`float`, *optional*):
            Seconds that a reward function may take for a batch. What comes later is not accepted: the run stops with
            the function's name and a prompt. Where Python cannot raise that error (C code that keeps its lock, a
            blocking call in an `async def`), a watching process kills this one 3 seconds later, never a notebook.
            `None` or infinity: any time.
        overwrite_output_dir (`bool`, *optional*, defaults to `False`):
            Start anew in a folder that holds the results of another run; its checkpoints are removed.
        allow_changed (`list[str]`, *optional*):
            Names of what may differ from the run that wrote the checkpoint to resume from: fields, or `"algorithm"`,
            `"batch_size"`, `"reward_funcs"`, `"model"`, `"tokenizer"`, `"data"`. The card lists the changes.
        nonfinite_patience (`int`, *optional*, defaults to `3`):
            Updates in a row that are skipped because loss or gradient is not finite, before the run stops. It also
            stops when more than a quarter of the last 100 updates were skipped, or more than this where that is more.
        length_sort (`str`, *optional*, defaults to `"auto"`):
            `"auto"`: the rows of an accumulation window are put in the order of their lengths, on each process, and a
            micro-batch loses the columns that none of its rows needs, in the passes for π_old and the reference too.
            Gradients of an optimizer step are equal, to rounding. Where a loss is not a sum over the rows of a window,
            rows stay where they are and padding goes all the same, which is said once (see `docs/padding.md`).
            `"off"`: rows and padding as in TRL, to the last bit; those of trees are never padded to the longest of all.
        shared_prefix (`str`, *optional*, defaults to `"auto"`):
            Prompts that several rows of a micro-batch have in common, ours: `"auto"`: a forward pass computes each once
            where that is reckoned to save a quarter of it and was seen to leave log-probabilities as they are, in the
            passes for π_old and the reference too (see `docs/padding.md`). `"on"`: wherever two rows share one;
            refused where the model cannot. `"off"`: never, as in TRL.
        skip_without_credit (`str`, *optional*, defaults to `"auto"`):
            `"auto"`: no forward and backward pass for a micro-batch in which no token of any process has an advantage,
            where its gradient is exactly 0: the update is TRL's, to the last bit (see `docs/padding.md`). `"off"`: all
            passes are made, and metrics are means over all of them.
        log_credit (`int`, *optional*, defaults to `0`):
            Every how many optimizer steps the rollouts are written to `credit_log/` in `output_dir`, with the effective
            credit of each token (see `docs/rollout_logs.md`). 0: never.
        log_credit_groups (`int`, *optional*, defaults to `8`):
            Groups of a logged step, at most: the first of its generation batch.

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
    loss_weight_confidence: bool = field(
        default=False, metadata={"help": "Whether the ε-weight is multiplied by 1 + σ(log π − 1)."}
    )
    clip_form: str = field(
        default="surrogate", metadata={"help": "'surrogate': min(ρA, clip(ρ)A). 'ratio': min(ρ, clip ρ)·A."}
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
    difficulty_rate: float = field(default=6.0, metadata={"help": "η of HA-DW, > 0."})
    difficulty_rate_min: float = field(default=0.02, metadata={"help": "Smallest step of the belief, in [0, 1]."})
    difficulty_threshold: float = field(default=0.5, metadata={"help": "Belief for `difficulty='fixed'`, in [0, 1]."})
    difficulty_reward: list[str] | None = field(
        default=None,
        metadata={"help": "Reward functions that say what is correct, for `difficulty`. `None`: the one of accuracy."},
    )
    prompt_average: bool = field(
        default=False, metadata={"help": "Mean over the tokens of each prompt, then over prompts (SPO-tree)."}
    )
    behavior_logps: str = field(
        default="recomputed", metadata={"help": "π_old with vLLM: 'recomputed', or the engine's own ('sampler')."}
    )
    reward_timeout: float | None = field(
        default=None,
        metadata={"help": "Seconds of a reward function for a batch, then the run stops. `None`: any."},
    )
    nonfinite_patience: int = field(
        default=3, metadata={"help": "Updates in a row to skip for a loss or gradient that is not finite."}
    )
    length_sort: str = field(
        default="auto",
        metadata={"help": "'auto': rows of a window by length, without the padding. 'off': as TRL, to the last bit."},
    )
    shared_prefix: str = field(
        default="auto",
        metadata={"help": "'auto': compute a prompt that rows share once, where it pays. 'on': always. 'off': never."},
    )
    skip_without_credit: str = field(
        default="auto",
        metadata={"help": "'auto': no pass for a micro-batch in which no token has an advantage. 'off': all, as TRL."},
    )
    log_credit: int = field(
        default=0,
        metadata={"help": "Write rollouts, with each token's credit, every so many optimizer steps. 0: never."},
    )
    log_credit_groups: int = field(default=8, metadata={"help": "Groups of a step that `log_credit` writes, at most."})
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Start anew in the folder of another run, whose checkpoints are removed."}
    )
    allow_changed: list[str] | None = field(
        default=None, metadata={"help": "Fields that may differ from those of the checkpoint that a run resumes from."}
    )
    reward_range: list[float] = field(  # a list, since a command line cannot carry a tuple
        default_factory=lambda: [0.0, 1.0], metadata={"help": "Smallest and largest sum of `difficulty_reward`."}
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
        check_ranges(self)
        self.reward_range = tuple(self.reward_range)
        check_combinations(self, sequence_of_trl=asked_of_trl)
        check_segment_knobs(self)
        check_dead_knobs(self)
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

    @property
    def is_aligned(self) -> bool:
        """Whether every optimizer step takes whole generation batches, each once, so that what samples is what learns,
        and TRL needs no pass for π_old."""
        return self.gradient_accumulation_steps % (self.steps_per_generation * self.num_iterations) == 0

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
