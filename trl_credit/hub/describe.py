"""What a configuration says of credit, in words: what has no phrase is shown as it is, so that there is no failing."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import PurePath

from trl import GRPOConfig

from ..algorithms import ALGORITHMS
from ..config import CreditConfig
from ..names import FunctionSource, is_object_name, method_label, source_of, source_of_object
from ..segment_config import SegmentKnobs


SYMBOLS = (
    "ℓ and ℓ°: log-probability of a token under the policy as it is and under the one that sampled; sg: without "
    "gradient; g = γλ, per token; z: 1 for tokens that leave a trace, 0 for others."
)
TRL_KNOBS = ("loss_type", "scale_rewards", "top_entropy_quantile", "mask_truncated_completions")
NOT_OF_CREDIT = ("reward_timeout", "nonfinite_patience", "rollout_batch_size")
WITHOUT_SEGMENTS = ("rollouts", "policy_loss", "mask_normalizer", "whiten_advantages")  # knobs that act without any


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
    default = preset(output_dir=args.output_dir, report_to="none")
    differ = [
        f"{knob}={_shown(args, knob)}" for knob in _credit_knobs(args) if getattr(args, knob) != getattr(default, knob)
    ]
    return {"formula": trainers[preset].formula + (f"; with {', '.join(differ)}" if differ else "")}


def _credit_knobs(args: CreditConfig) -> list[str]:
    """Names of the fields that have a say in W, A or M."""
    left_out = {*(f.name for f in fields(GRPOConfig)), *NOT_OF_CREDIT} - set(TRL_KNOBS)
    if args.rollouts == "none":
        left_out |= {f.name for f in fields(SegmentKnobs)} - set(WITHOUT_SEGMENTS)
    return [f.name for f in fields(CreditConfig) if f.name not in left_out]


def _shown(args: CreditConfig, knob: str) -> str:
    value = getattr(args, knob)
    if knob in args.own_functions() and ":" in value:
        path, _, name = value.rpartition(":")
        value = f"{PurePath(path).name}:{name}"
    return repr(value)


def _phrase(args: CreditConfig, knob: str, phrases: dict[str, str]) -> str:
    if knob in args.own_functions():
        return describe_function(args, knob)
    value = getattr(args, knob)
    return phrases.get(value, f"{knob}={value!r}")


def _weight(args: CreditConfig) -> str:
    if args.policy_loss == "policy_iteration":
        return "none: the loss of a segment is half the square of β log π/π_ref minus its advantage"
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
    by = {"group": ", divided by its standard deviation", "batch": ", divided by the batch's standard deviation"}
    baselines = {
        "group": f"the reward minus the mean of its group{by.get(str(args.scale_rewards), '')}",
        "optimal": "the reward minus the length-weighted mean of its group",
    }
    tree = "-".join(map(str, args.tree_branching))
    rollouts = {
        "none": _phrase(args, "baseline", baselines),
        "chain": f"per segment, its value at the end minus that at the start, by {args.rollouts_per_state} rollouts "
        "each",
        "tree": f"per segment, its value against its siblings' in a tree of {tree}",
    }
    text = _phrase(args, "rollouts", rollouts)
    if args.rollouts == "chain":
        knob = "step_splitter" if args.segmentation == "steps" else "segmentation"
        if knob in args.own_functions():
            text += f"; segments by {describe_function(args, knob)}"
    if args.difficulty != "none":
        text += f"; prompts weighted by difficulty ({args.difficulty})"
    if args.advantage_floor is not None:
        text += f"; at least {args.advantage_floor:g}"
    if args.process_reward_weight:
        text += f"; plus {args.process_reward_weight:g} times a best-of-{args.process_reward_best_of} process reward"
    if args.whiten_advantages != "none":
        text += f"; whitened over the {args.whiten_advantages}"
    if args.loss_weight != "none":
        text += f"; the loss weighted by the trace ({args.loss_weight})"
    return text


def _mask(args: CreditConfig) -> str:
    all_tokens = "all tokens of the response"
    if args.top_entropy_quantile < 1.0:
        all_tokens = f"the {args.top_entropy_quantile:.0%} of tokens with the highest entropy"
    threshold = f"tokens with a probability below {args.probability_threshold:g} when sampled"
    text = _phrase(args, "token_mask", {"none": all_tokens, "probability": threshold})
    return text + ("; none of a response that was cut off" if args.mask_truncated_completions else "")
