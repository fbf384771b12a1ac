"""What a configuration says of credit, in words: what has no phrase is shown as it is, so that there is no failing."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import PurePath

from trl import GRPOConfig

from ..algorithms import ALGORITHMS
from ..config import CreditConfig
from ..credit.segments import policy_iteration_loss
from ..dead_knobs import live_part
from ..names import FunctionSource, is_object_name, method_label, source_of, source_of_object
from ..segment_config import best_of
from .built import built


SYMBOLS = (
    "ℓ and ℓ°: log-probability of a token under the policy as it is and under the one that sampled; sg: without "
    "gradient; g = γλ, per token; z: 1 for tokens that leave a trace, 0 for others."
)
TRL_KNOBS = ("loss_type", "scale_rewards", "top_entropy_quantile", "mask_truncated_completions")
# of policy iteration, its function's own default
WEIGHT_CAP = inspect.signature(policy_iteration_loss).parameters["weight_cap"].default
NOT_OF_CREDIT = (
    "reward_timeout",
    "nonfinite_patience",
    "rollout_batch_size",
    "length_sort",
    "shared_prefix",
    "skip_without_credit",
    "log_credit",
    "log_credit_groups",
)


def describe_credit(args: CreditConfig, *, method: Callable | None = None) -> dict[str, str]:
    """The preset's formula and the knobs that differ from it, if it has one; weight, advantage and mask, a phrase each.

    `method` is the trainer's `credit`, where a subclass has one of its own. Text of others (names and docstrings of
    their functions) is in it as it is.
    """
    rows = {"weight W": _weight(args), "advantage A": _advantage(args), "mask M": _mask(args)}
    if method is not None:
        name = method_label(method)
        long, short = (_described(name, source_of_object(method, name), method, doc=doc) for doc in (True, False))
    elif args.credit is not None:
        name = function_name(args.credit)
        long, short = (describe_function(args, "credit", doc=doc) for doc in (True, False))
    else:
        return {**_formula(args), **rows}
    rows["weight W"], rows["advantage A"] = long, f"{short}, from {rows['advantage A']}"
    rows["mask M"] += f"; `{name}` may leave out more"
    return {**_formula(args), **rows}


def describe_function(args: CreditConfig, knob: str, *, doc: bool = True) -> str:
    """A function of one's own: "`name` of file.py (SHA-256 1a2b3c4d5e6f): “first line of its docstring”"."""
    setting = getattr(args, knob)
    name = function_name(setting)
    try:
        source = source_of(setting, what=knob)
    except ValueError:
        return f"`{name}`, whose file is gone"
    return _described(name, source, args.own_function(knob), doc=doc)


def describe_updates(args: CreditConfig) -> list[str]:
    """Sentences on the loss and on how often a row is trained on."""
    kl = f"with a KL term of β = {args.beta:g}" if args.beta else "without a KL term (β = 0)"
    if args.policy_loss != "clip":
        kl = f"of policy iteration, β = {args.beta:g}"
    passes = args.num_iterations
    updates = args.steps_per_generation * passes / args.gradient_accumulation_steps
    form = ", min(ρ, clip ρ)·A in the place of PPO's minimum" * (args.clip_form == "ratio")
    sentences = [
        f"Loss `{args.loss_type}`{', averaged over prompts' * args.prompt_average}{form}, {kl}.",
        f"{passes} {'pass' if passes == 1 else 'passes'} over a generation batch of {args.generation_batch_size:,} "
        f"rows, {updates:g} {'update' if updates == 1 else 'updates'} in all.",
    ]
    if args.rollouts == "tree" and args.replay_iterations > 1:
        cap = "" if args.replay_cap is None else f", at most {args.replay_cap} of a prompt in each"
        legacy = "; the released code's buffer, which loses rows" if args.replay_legacy else ""
        sentences.append(f"Replay: a row may be drawn in {args.replay_iterations} generation batches{cap}{legacy}.")
    return sentences


def _described(name: str, source: FunctionSource, function: Callable, *, doc: bool) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    file = f" of {source.file.name}" if source.file is not None else ""
    first = (inspect.getdoc(function) or "").partition("\n")[0]
    return f"`{name}`{file} (SHA-256 {source.digest[:12]})" + (f": “{first}”" if doc and first else "")


def function_name(setting: str) -> str:
    """ "f" of "folder/file.py:f", "package.module.f" or the name of a function that was given as an object."""
    last = setting.rpartition(":")[2].rpartition(".")[2]
    return last.rpartition("@")[0] if is_object_name(last) else last


def _formula(args: CreditConfig) -> dict[str, str]:
    trainers = dict(ALGORITHMS.values())
    preset = next((base for base in type(args).__mro__ if base in trainers), None)
    if preset is None or not trainers[preset].formula:
        return {}
    default = built(preset, output_dir=args.output_dir, report_to="none")
    differ = [_shown(args, knob) for knob in _credit_knobs(args) if getattr(args, knob) != getattr(default, knob)]
    return {"formula": trainers[preset].formula + (f"; with {', '.join(differ)}" if differ else "")}


def _credit_knobs(args: CreditConfig) -> list[str]:
    """Names of the fields that have a say in W, A or M, beside what the others are."""
    left_out = {*(f.name for f in fields(GRPOConfig)), *NOT_OF_CREDIT} - set(TRL_KNOBS)
    alive = live_part({f.name: getattr(args, f.name) for f in fields(CreditConfig)}, vars(args))
    return [name for name in alive if name not in left_out]


def _shown(args: CreditConfig, knob: str) -> str:
    value = getattr(args, knob)
    if value is None:
        return f"no {knob}"
    if knob in args.own_functions() and ":" in value:
        path, _, name = value.rpartition(":")
        value = f"{PurePath(path).name}:{name}"
    return f"{knob}={value!r}"


def _phrase(args: CreditConfig, knob: str, phrases: dict[str, str]) -> str:
    if knob in args.own_functions():
        return describe_function(args, knob)
    value = getattr(args, knob)
    return phrases.get(value, f"{knob}={value!r}")


def _weight(args: CreditConfig) -> str:
    if args.policy_loss != "clip":
        half = "half " * (args.policy_loss == "policy_iteration_code")
        return (
            f"none: the loss of a segment is {half}the square of β log π/π_ref minus its advantage, times its π/π_old "
            f"(without gradient, at most {WEIGHT_CAP:g})"
        )
    g = f"{args.trace_decay:g}"
    share = f"{args.selective_rate:.0%} of a response's tokens"
    left_by = {
        "none": "every token",
        "entropy": f"the {share} with the highest entropy",
        "random": f"a random {share}",
    }
    phrases = {
        "token": "the probability ratio of each token",
        "sequence": "one probability ratio per response, the geometric mean of its tokens'",
        "sequence_token": "the response's mean ratio, with the gradient of each token's own",
        "eligible": "the probability ratio, with eligibility traces from "
        f"{_phrase(args, 'selector', left_by)} (decay {g} per token)",
        "lambda_trace": f"the probability ratios of all tokens so far, discounted by {g} per token",
    }
    return _phrase(args, "importance", phrases)


def _advantage(args: CreditConfig) -> str:
    by = {
        "group": ", divided by its standard deviation",
        "batch": ", divided by the batch's standard deviation",
        "none": ", not divided by a standard deviation",
    }
    scaled = by.get(str(args.scale_rewards), f", scale_rewards={args.scale_rewards!r}")
    baselines = {
        "group": f"the reward minus the mean of its group{scaled}",
        "optimal": "the reward minus the length-weighted mean of its group",
    }
    tree = "-".join(map(str, args.tree_branching))
    rollouts = {
        "none": _phrase(args, "baseline", baselines),
        "chain": f"per segment, its value at the end minus that at the start, by {args.rollouts_per_state} rollouts "
        "each",
        "tree": f"per segment, its value minus {_siblings(args)} in a tree of {tree} with inner segments of "
        f"{args.tree_segment_length} tokens",
    }
    text = _phrase(args, "rollouts", rollouts)
    if args.rollouts == "chain":
        text += f"; segments {_segments(args)}"
    if args.difficulty != "none":
        text += f"; prompts weighted by difficulty ({args.difficulty})"
    if args.advantage_floor is not None:
        text += f"; at least {args.advantage_floor:g}"
    if args.process_reward_weight:
        if args.process_reward_form == "value":
            text += "; in its place the value at the segment's end"
        text += f"; plus {args.process_reward_weight:g} times a best-of-{best_of(args)} process reward"
    if args.whiten_advantages != "none":
        text += f"; whitened over the {args.whiten_advantages}"
    if args.loss_weight != "none":
        text += f"; the loss weighted by the trace ({args.loss_weight})"
        text += ", times 1 + σ(log π − 1) of the token" * args.loss_weight_confidence
    return text


def _siblings(args: CreditConfig) -> str:
    phrases = {
        "mean": "the mean of its siblings' and its own",
        "loo": "the mean of its siblings'",
        "std": "the mean of its siblings' and its own, divided by their standard deviation,",
    }
    return phrases.get(args.segment_advantage, f"segment_advantage={args.segment_advantage!r}")


def _segments(args: CreditConfig) -> str:
    if (knob := "step_splitter" if args.segmentation == "steps" else "segmentation") in args.own_functions():
        return f"by {describe_function(args, knob)}"
    cuts = f"tokens with a probability below {args.probability_threshold:g}"
    cuts = f"cut at one in {args.cutpoint_interval} of the {cuts}" if args.num_segments is None else f"cut at {cuts}"
    phrases = {
        "cutpoints": cuts if args.num_segments is None else f"{args.num_segments} per response, {cuts}",
        "fixed_length": f"of {args.segment_length} tokens",
        "fixed_count": f"{args.num_segments} per response, of equal length",
        "steps": f"by the step splitter {args.step_splitter!r}",
    }
    return phrases.get(args.segmentation, f"by segmentation={args.segmentation!r}")


def _mask(args: CreditConfig) -> str:
    all_tokens = "all tokens of the response"
    if args.top_entropy_quantile < 1.0:
        all_tokens = f"the {args.top_entropy_quantile:.0%} of tokens with the highest entropy"
    threshold = f"tokens with a probability below {args.probability_threshold:g} when sampled"
    text = _phrase(args, "token_mask", {"none": all_tokens, "probability": threshold})
    return text + ("; none of a response that was cut off" if args.mask_truncated_completions else "")
