"""The configuration of a run: the composable knobs of credit assignment on top of TRL's `GRPOConfig`."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any

import torch
from trl import GRPOConfig

from ..support.functions import errors_named, is_custom_function, name_of, resolve_function
from .algorithm import take_settings
from .checks import check_settings
from .construction import Construction
from .groups import BY_DIFFICULTY, CORRECT_READ, GroupKnobs
from .knobs import (
    COUNT,
    FINITE,
    NUMBERS,
    POSITIVE,
    RUN,
    SHARE,
    Knob,
    Values,
    anything_but,
    is_active,
    knob,
    knobs_of,
    list_of,
    number,
    one_of,
    when,
    whole,
)
from .segments import CHAIN, SegmentKnobs
from .teacher import READS_SUCCESS, TeacherKnobs
from .trl_settings import TRL_ACTS
from .turns import BY_TURN, CUSTOM_CREDIT, TRACES, TurnKnobs


SELECTED = when(selector=anything_but("none"))
DIFFICULTY = when(difficulty=anything_but("none"))
WEIGHTED = (when(loss_weight=anything_but("none")), CUSTOM_CREDIT)
TRACED = (when(importance=TRACES), *WEIGHTED)
OLD_LOGPS_READ = (when(token_mask=anything_but("none")), CHAIN | when(segmentation="cutpoints"), CUSTOM_CREDIT)
RANGE_READ = (DIFFICULTY, BY_DIFFICULTY, READS_SUCCESS, when(process_reward_weight=anything_but(0.0)))

CUSTOM_FUNCTION = Values("a function: package.module.function or file.py:function", is_custom_function, custom=True)
LOW_HIGH = Values("two finite numbers, the smaller first", lambda x: NUMBERS.holds(x) and len(x) == 2 and x[0] < x[1])
NAMES = list_of(Values("text", lambda x: isinstance(x, str)), "a list of names of reward functions", least=1)
CONFIDENCES = one_of("none", "sigmoid", "tanh", "sigmoid_grad", "tanh_grad")

_reward = partial(knob, heading="Rewards")
_run = partial(knob, heading=RUN, changes_loss=False)


@dataclass
class CreditConfig(SegmentKnobs, GroupKnobs, TurnKnobs, TeacherKnobs, Construction, GRPOConfig):
    r"""
    Configuration class for [`CreditTrainer`]: `trl.GRPOConfig` plus the knobs that decide which tokens get how much
    credit. With every knob at its default the trainer is TRL's own GRPO, to rounding (see `length_sort` and
    `shared_prefix`). [`SegmentKnobs`], [`GroupKnobs`], [`TurnKnobs`] and [`TeacherKnobs`] document their knobs.

    `credit`, `selector`, `token_mask`, `baseline`, `segmentation`, `step_splitter` and `teacher_prompt` accept custom
    functions: by name (`package.module.function`, `file.py:function`), or in Python as an object, whose name the field
    then holds.

    Parameters:
        credit (`str` or `Callable`, *optional*):
            A custom function `f(config, tokens) -> Credit`, or a dataclass with such a method `credit`, whose fields
            become knobs ([`~trl_credit.config.algorithm.Algorithm`]). Knobs of W and of the loss weight act only if it
            calls [`~trl_credit.loss.assignment.assign_credit`].
        importance (`str`, *optional*, defaults to `"token"`):
            The log importance weight: `"token"` (GRPO), `"sequence"` (GSPO), `"sequence_token"` (GSPO-token), `"turn"`
            and `"turn_token"` (the same per turn; ours), `"eligible"` (P-trace; S-trace with a `selector`) or
            `"lambda_trace"` (GRPO-λ ε-trace). It replaces TRL's `importance_sampling_level`.
        trace_lambda (`float`, *optional*, defaults to `0.9`):
            λ of the traces, in [0, 1]. A trace decays by `gamma*trace_lambda` per token (or turn: `trace_unit`).
        gamma (`float`, *optional*, defaults to `1.0`):
            The discount γ per token, in [0, 1].
        selector (`str`, *optional*, defaults to `"none"`):
            Which tokens leave an eligible trace: all (`"none"`), the share `selective_rate` of each response with the
            highest entropy (`"entropy"`), or a random share (`"random"`, an ablation). `"entropy_reference"` (ours)
            ranks by the entropy of the reference model, needs `beta` above 0, and selects harmless variety too. A
            custom function is called as [`~trl_credit.credit.selection.select_high_entropy`].
        selective_rate (`float`, *optional*, defaults to `0.2`):
            The share ρ of the selector, in [0, 1].
        leave_own_out (`bool`, *optional*, defaults to `True`):
            Whether a token's own gradient is exempt from the selection (S-trace, App. C.1, which reports no run of
            `False`).
        trace_style (`str`, *optional*, defaults to `"recent"`):
            GRPO-λ's trace: `"recent"` is g^(t−k) with g = γλ, and `"both"` is max(g^(t−k), g^k).
        loss_weight (`str`, *optional*, defaults to `"none"`):
            GRPO-λ's ε-weight on the loss of each token. `"trace_past"` is the sum of the trace so far (its Sec. 3.2),
            and `"trace_future"` the coefficient of the ε-trace on-policy (S-trace, App. D.1).
        loss_weight_confidence (`str`, *optional*, defaults to `"none"`):
            The function f(log π) that multiplies the ε-weight (GRPO-λ, App. A.3): `"sigmoid"` is 1+σ(log π−1), and
            `"tanh"` is 1+tanh(log π−1). With `"sigmoid_grad"` and `"tanh_grad"` the gradient flows through f, which the
            paper leaves open.
        clip_form (`str`, *optional*, defaults to `"surrogate"`):
            The clipped loss. `"surrogate"` is PPO's min(ρA, clip(ρ)A) (GRPO-λ, Sec. 3). `"ratio"` is min(ρ, clip ρ)·A
            (its Algorithm 1): for A < 0 it is bounded above 1 + ε_high, ε_low has no effect, and TRL's `clip_ratio/*`
            count no token.
        token_mask (`str`, *optional*, defaults to `"none"`):
            Which tokens the policy term and its normalizer keep; the KL term keeps all. `"probability"` (SPO) keeps
            those whose sampling probability was below `probability_threshold`. A custom function is called as
            [`~trl_credit.credit.selection.probability_mask`].
        probability_threshold (`float`, *optional*, defaults to `0.9`):
            ρ of the probability mask, above 0, at sampling temperature.
        baseline (`str`, *optional*, defaults to `"group"`):
            The baseline of the advantage: TRL's (`"group"`), OPO's mean weighted by loss tokens, without a division by
            std (`"optimal"`), or a custom function, called as [`~trl_credit.credit.advantages.optimal_advantage`].
        advantage_floor (`float`, *optional*):
            Advantages below it are raised to it (GRPO-λ has −0.1).
        td_upper_bound (`bool`, *optional*, defaults to `False`):
            Whether the upper bound 1 − Π_{k<t}(1−π(EOS|s_k)) of V(s_0)−V(s_t) is added to the advantage of token t.
            GRPO-λ (Lemma 1, App. A.2) found it inconclusive. The floor comes after it (ours).
        difficulty (`str`, *optional*, defaults to `"none"`):
            HA-DW's weight on advantages of prompts harder or easier than a belief. The belief is updated from batch to
            batch (`"history"`), the mean of the last `difficulty_window` accuracies (`"hard"`), or
            `difficulty_threshold` (`"fixed"`).
        difficulty_scale (`float`, *optional*, defaults to `1.3`):
            The factor λ_scale of HA-DW's weight λ_scale·exp(…).
        difficulty_window (`int`, *optional*, defaults to `10`):
            m≥1. With `"history"`, σ is over the last m beliefs, and for the first m batches the belief is the mean of
            their accuracies. With `"hard"` it is the mean of the last m accuracies. The paper gives no m, η, smallest
            step and start: ours come from a simulation (`trl-credit help ha_dw`).
        difficulty_rate (`float`, *optional*, defaults to `6.0`):
            η > 0. The belief goes the share η·σ of the way to an accuracy. σ is the standard deviation of the last m
            beliefs.
        difficulty_rate_min (`float`, *optional*, defaults to `0.02`):
            The smallest step, in [0, 1], so that a constant belief can move.
        difficulty_threshold (`float`, *optional*, defaults to `0.5`):
            The fixed belief, in [0, 1].
        difficulty_reward (`list[str]`, *optional*):
            Names of the reward functions whose sum, without `reward_weights`, says what is correct, also for truncated
            responses. `None` takes the only reward function, or the only one called `accuracy`, `accuracy_reward`,
            `knights_and_knaves_reward` or `demo_reward`.
        reward_range (`list[float]`, *optional*, defaults to `[0.0, 1.0]`):
            The smallest and largest sum of the rewards of `difficulty_reward` (with `process_reward_weight`: of
            the total reward), which become 0 and 1.
        prompt_average (`bool`, *optional*, defaults to `False`):
            With `loss_type="dapo"` or `"cispo"`, the loss is the mean over the kept tokens of a prompt's rows in the
            generation batch, then over prompts (SPO-tree, Eq. 4), and the KL term is divided likewise. With `False`
            long prompts weigh more.
        behavior_logps (`str`, *optional*, defaults to `"recomputed"`):
            π_old with vLLM is computed by a forward pass, with TRL's correction for the engine (`"recomputed"`), or
            taken from the engine, which saves that pass (`"sampler"`; GSPO, Sec. 5.4).
        reward_timeout (`float`, *optional*):
            Seconds that a reward function may take for a batch before an error stops the run. If Python cannot raise
            it, the process ends 3 seconds later, except in a notebook. `None` or infinity sets no limit.
        overwrite_output_dir (`bool`, *optional*, defaults to `False`):
            Whether the run starts from scratch in the folder of another run, whose checkpoints are removed.
        allow_changed (`list[str]`, *optional*):
            What may differ from the run that wrote the checkpoint: names of fields, or `"algorithm"`, `"batch_size"`,
            `"reward_funcs"`, `"model"`, `"tokenizer"`, `"data"`.
        nonfinite_patience (`int`, *optional*, defaults to `3`):
            Consecutive updates without finite loss and gradient that may be skipped. The run also stops if more than a
            quarter of the last 100 (and more than this number) were skipped.
        length_sort (`str`, *optional*, defaults to `"auto"`):
            `"auto"` sorts rows by length, where the loss allows it, and drops padding; the gradient of an optimizer
            step stays equal, to rounding. `"off"` does as TRL, except that rows of trees are trimmed (`trl-credit help
            architecture`).
        shared_prefix (`str`, *optional*, defaults to `"auto"`):
            `"auto"` computes once a prompt that rows of a micro-batch share, if that saves an estimated quarter of the
            forward pass and gives equal log-probabilities. With transformers' flash attention it packs rows without
            padding instead. `"on"` always shares, and refuses a model that cannot. `"off"` does as TRL.
        skip_zero_advantage (`str`, *optional*, defaults to `"auto"`):
            `"auto"` skips a micro-batch in which no token of any process has an advantage, if its gradient is exactly
            0, so the update is TRL's. `"off"` makes all passes, and metrics count all of them.
        log_credit (`int`, *optional*, defaults to `0`):
            Optimizer steps between two writes of the rollouts, with each token's effective credit, to `credit_log/` in
            `output_dir` (`trl-credit help rollout_logs`). 0 writes nothing.
        log_credit_groups (`int`, *optional*, defaults to `8`):
            The largest number of groups of a logged step, the first of its batch.

    Raises:
        ValueError: values are out of range, combinations are ill-defined, or knobs have no effect; the message has a
            line for each, with the field and the fix. Fields of TRL without effect are named in one warning.
        TypeError: a keyword is no field; the message names the field that was meant.
    """

    credit: str | None = knob(None, CUSTOM_FUNCTION)
    importance: str = knob("token", one_of("token", "sequence", "sequence_token", *BY_TURN, *TRACES))
    trace_lambda: float = knob(0.9, SHARE, acts=TRACED)
    gamma: float = knob(1.0, SHARE, acts=TRACED)
    selector: str = knob("none", one_of("none", "entropy", "entropy_reference", "random", custom=True))
    selective_rate: float = knob(0.2, SHARE, acts=(SELECTED, CUSTOM_CREDIT))
    leave_own_out: bool = knob(True, acts=(SELECTED, CUSTOM_CREDIT))
    trace_style: str = knob("recent", one_of("recent", "both"), acts=(when(importance="lambda_trace"), *WEIGHTED))
    loss_weight: str = knob("none", one_of("none", "trace_past", "trace_future"))
    loss_weight_confidence: str = knob("none", CONFIDENCES, acts=WEIGHTED)
    clip_form: str = knob("surrogate", one_of("surrogate", "ratio"), acts=when(policy_loss="clip"))
    token_mask: str = knob("none", one_of("none", "probability", custom=True))
    probability_threshold: float = knob(0.9, POSITIVE, acts=OLD_LOGPS_READ)
    baseline: str = knob("group", one_of("group", "optimal", custom=True))
    advantage_floor: float | None = knob(None, FINITE)
    td_upper_bound: bool = knob(False)
    difficulty: str = knob("none", one_of("none", "history", "hard", "fixed"))
    difficulty_scale: float = knob(1.3, POSITIVE, acts=DIFFICULTY)
    difficulty_window: int = knob(10, COUNT, acts=when(difficulty=("history", "hard")))
    difficulty_rate: float = knob(6.0, POSITIVE, acts=when(difficulty="history"))
    difficulty_rate_min: float = knob(0.02, SHARE, acts=when(difficulty="history"))
    difficulty_threshold: float = knob(0.5, SHARE, acts=when(difficulty="fixed"))
    difficulty_reward: list[str] | None = _reward(None, NAMES, acts=(DIFFICULTY, READS_SUCCESS, *CORRECT_READ))
    prompt_average: bool = knob(False)
    behavior_logps: str = knob("recomputed", one_of("recomputed", "sampler"))
    reward_timeout: float | None = _reward(None, number("positive", lambda x: x > 0.0), changes_loss=False)
    length_sort: str = _run("auto", one_of("auto", "off"))
    shared_prefix: str = _run("auto", one_of("auto", "on", "off"))
    skip_zero_advantage: str = _run("auto", one_of("auto", "off"))
    log_credit: int = _run(0, whole(0))
    log_credit_groups: int = _run(8, COUNT, acts=when(log_credit=COUNT))
    overwrite_output_dir: bool = _run(False)
    allow_changed: list[str] | None = _run(None)
    nonfinite_patience: int = _run(3, whole(0))
    reward_range: list[float] = _reward([0.0, 1.0], LOW_HIGH, acts=RANGE_READ)

    def __post_init__(self) -> None:
        # a reward function may change the working folder
        self.output_dir = os.path.abspath(os.path.expanduser(self.output_dir or "trainer_output"))
        take_settings(self)
        for name in FUNCTION_KNOBS:
            # an object in a field would break torch.save(args) and to_json_string at the first checkpoint
            if callable(value := getattr(self, name)):
                setattr(self, name, name_of(value))
        if not torch.accelerator.is_available():
            # transformers must be told to use the CPU, on which bfloat16 autocast saves nothing
            self.use_cpu = True
            self.bf16 = False if self.bf16 is None else self.bf16
        if self.importance_sampling_level == "sequence" and self.importance == "token":
            self.importance = "sequence"
        if self.max_grad_norm is None:
            self.max_grad_norm = 0.0  # no clipping; transformers compares it with 0
        if self.top_k == -1 or (self.top_k is None and self.use_vllm):
            self.top_k = 0  # all tokens; transformers does not know -1, nor vLLM `None`
        check_settings(self, build=super().__post_init__)
        self.sync_ref_model = self.sync_ref_model and self.beta != 0.0  # which TRL refuses when a trainer is built
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
    def clip_range(self) -> tuple[float, float]:
        """1 − ε_low and 1 + ε_high."""
        return 1 - self.epsilon, 1 + (self.epsilon if self.epsilon_high is None else self.epsilon_high)

    @property
    def is_aligned(self) -> bool:
        """Whether a generation batch has one update: π_old is then the policy itself, and TRL makes no pass for it."""
        return self.gradient_accumulation_steps % (self.steps_per_generation * self.num_iterations) == 0

    def uses_released_code(self, name: str) -> bool:
        """Whether `released_code` lists a name."""
        return name in (self.released_code or ())

    def custom_functions(self) -> dict[str, str]:
        """Knob → name of its custom function, for the knobs that have one."""
        knobs = [name for name in FUNCTION_KNOBS if name != "step_splitter" or is_active(self, KNOBS[name].acts)]
        return {name: getattr(self, name) for name in knobs if is_custom_function(getattr(self, name))}

    def custom_function(self, knob: str) -> Callable | None:
        """The custom function that one of the `FUNCTION_KNOBS` names, or `None` for a built-in choice.

        The name is resolved when the configuration is built, and keeps that meaning. What the function raises becomes a
        [`~trl_credit.support.functions.FunctionRaised`].

        Raises:
            ValueError: there is no such function.
        """
        if not is_custom_function(name := getattr(self, knob)):
            return None
        function = resolve_function(name, what=knob, known=(), reload=False)
        kept = (ValueError,) if knob == "step_splitter" else ()  # a response that cannot be divided

        @wraps(function)
        def named(*args: Any, **kwargs: Any) -> Any:
            with errors_named(function, f"{knob} {name!r}", kept=kept):
                return function(*args, **kwargs)

        return named


KNOBS = knobs_of(CreditConfig)
CHOICES = {name: knob.values.names for name, knob in KNOBS.items() if knob.values and knob.values.names}
FUNCTION_KNOBS = {name: knob.values.names for name, knob in KNOBS.items() if knob.values and knob.values.custom}


def active_part(
    settings: Mapping[str, Any], beside: Mapping[str, Any], knobs: Mapping[str, Knob] = KNOBS
) -> dict[str, Any]:
    """The part of `settings` that has an effect in a configuration with these knobs and the values of `beside`."""
    config, acts = SimpleNamespace(**beside), TRL_ACTS | {name: declared.acts for name, declared in knobs.items()}
    return {name: x for name, x in settings.items() if is_active(config, acts.get(name, ()))}
