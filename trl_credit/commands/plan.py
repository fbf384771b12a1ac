"""`trl-credit plan RECIPE`: what a run would cost, before it is started. Loads no weights and needs no GPU."""

import json
import os
from argparse import Namespace, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING, Any

import yaml

from ..mistakes import OneLineParser, fail, unknown_argument
from ..packaged import accelerate_config
from ..startup import begin


if TYPE_CHECKING:
    from ..cli import Choices
    from ..plan import Assumed, Rates
    from ..plan.formulas import Layout, Shape

_HELP = """\
Tokens, operations and memory of a run, and its seconds where rates were measured.

  trl-credit plan s_trace/qwen3_4b_s_trace --accelerate_config zero2 --num_processes 2
  trl-credit plan --algo spo_chain --model_name_or_path Qwen/Qwen3-1.7B --response_length 700 --segments 12
  trl-credit plan embedded --rates_from runs/s_trace

RECIPE is a recipe by name or a file, and every flag of `trl-credit train` goes with it. The configuration of the model
is read from its folder or from the cache of the Hub; without one, --parameters, --layers and --hidden_size say it."""
_DIVISIONS = {"NO": "none", "MULTI_GPU": "ddp", "MULTI_CPU": "ddp", "FSDP": "fsdp"}


def main(argv: list[str]) -> int:
    """The exit code."""
    begin()
    try:
        return _run(argv)
    except BrokenPipeError:
        raise  # the reader of standard output has gone, which is no mistake
    except (ValueError, OSError, ImportError) as error:
        fail(error, code=2)


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="trl-credit plan",
        description=_HELP,
        formatter_class=RawDescriptionHelpFormatter,
        usage="%(prog)s [RECIPE …] [--flag value …]",
    )
    parser.add_argument("--num_processes", type=int, help="GPUs (default: those of --accelerate_config, else 1)")
    parser.add_argument("--accelerate_config", metavar="NAME", help="a configuration of the package, or a file")
    parser.add_argument("--prompt_length", type=float, help="tokens of a prompt on average")
    parser.add_argument("--response_length", type=float, help="tokens of a response on average")
    parser.add_argument("--segments", type=float, help="segments of a response on average, for a chain")
    parser.add_argument("--prompts", type=int, help="rows of the data set, for the steps of an epoch")
    parser.add_argument("--parameters", help="of the model, such as 1.5B, where its configuration is not at hand")
    parser.add_argument("--layers", type=int, help="with --parameters")
    parser.add_argument("--hidden_size", type=int, help="with --parameters")
    parser.add_argument("--vocabulary", type=int, help="with --parameters (default: Qwen's 151,936)")
    parser.add_argument("--tokens_per_second", type=float, help="generated, per GPU")
    parser.add_argument("--tflops", type=float, help="10^12 operations per second in training, per GPU")
    parser.add_argument("--rates_from", metavar="RUN", help="folder of a run: its rates, and its lengths")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    return parser


def _run(argv: list[str]) -> int:
    words = next((i for i, word in enumerate(argv) if word.startswith("-")), len(argv))
    parser = _parser()
    said, rest = parser.parse_known_args(argv[words:])
    _check(said)
    from ..cli import known_flags, parse_arguments
    from ..plan import as_json, as_text, make_plan
    from ..training import prepare_process

    prepare_process()
    flags = [*parser.flags(), *known_flags()]
    for word in rest:
        if (
            word.startswith("--")
            and (flag := word.partition("=")[0].replace("-", "_").replace("__", "--", 1)) not in flags
        ):
            raise ValueError(unknown_argument(flag, flags))
    rest = [*(["--config", *argv[:words]] if words else []), *rest]
    launcher = _launcher(said.accelerate_config)
    processes = launcher.get("num_processes", 1) if said.num_processes is None else said.num_processes
    choices = parse_arguments(rest, processes=processes, prog="trl-credit plan")
    shape = _shape(said, choices)
    layout = _layout(choices, launcher, processes)
    rates, assumed = _measured(said, choices)
    plan = make_plan(choices.args, shape, layout, assumed)
    if layout.compute_bytes == 4 and choices.args.use_cpu:
        plan.notes.append("products in 32 bits, as this machine has no GPU: on one, --bf16 true is the default")
    if said.json:
        print(json.dumps(as_json(plan, shape, layout, rates), indent=1, ensure_ascii=False))
    else:
        from ..algorithms import ALGORITHMS

        name = os.path.basename(os.path.normpath(choices.model.model_name_or_path))
        title = f"{ALGORITHMS[choices.script.algo][1].title()} on {name if said.parameters is None else 'a model'}"
        print(as_text(title, plan, shape, layout, rates))
    return 0


def _check(said: Namespace) -> None:
    for name in ("num_processes", "prompts"):
        if (value := getattr(said, name)) is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    for name in ("prompt_length", "response_length", "segments", "tokens_per_second", "tflops"):
        if (value := getattr(said, name)) is not None and not 0 < value < float("inf"):
            raise ValueError(f"--{name} must be above 0 and finite, got {value:g}")
    if said.rates_from is not None and (said.tokens_per_second or said.tflops):
        given = "--tokens_per_second" if said.tokens_per_second else "--tflops"
        raise ValueError(f"--rates_from has rates: leave out {given}, or it")
    for name in ("layers", "hidden_size", "vocabulary"):
        if getattr(said, name) is not None and said.parameters is None:
            raise ValueError(f"--{name} goes with --parameters: set it, or leave out --{name}")


def _launcher(name: str | None) -> dict[str, Any]:
    """What a configuration of accelerate says."""
    if name is None:
        return {}
    path = accelerate_config(name)
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"--accelerate_config {name!r} holds no `name: value` lines: check the file")
    return found


def _shape(said: Namespace, choices: "Choices") -> "Shape":
    from trl import get_peft_config

    from ..plan import read_shape, said_shape

    model = choices.model
    if said.parameters is None:
        adapter = get_peft_config(model)
        return read_shape(model.model_name_or_path, revision=model.model_revision, adapter=adapter)
    if model.use_peft:
        raise ValueError("--use_peft wants the model's configuration, to count its adapters: leave out --parameters")
    return said_shape(said.parameters, layers=said.layers, hidden=said.hidden_size, vocabulary=said.vocabulary)


def _layout(choices: "Choices", launcher: dict[str, Any], processes: int) -> "Layout":
    from ..plan.formulas import Layout

    args, model = choices.args, choices.model
    if args.deepspeed or args.fsdp:
        raise ValueError("plan reads how weights are spread from --accelerate_config: leave out --deepspeed and --fsdp")
    division = str(launcher.get("distributed_type", "MULTI_GPU" if processes > 1 else "NO"))
    deepspeed = launcher.get("deepspeed_config") or {}
    kind = _DIVISIONS.get(division)
    if division == "DEEPSPEED":
        stage = deepspeed.get("zero_stage", 2)
        kind = f"zero{stage}" if stage in (1, 2, 3) else "ddp"
    if kind is None:
        raise ValueError(f"plan does not know distributed_type {division!r}: choose NO, MULTI_GPU, DEEPSPEED or FSDP")
    half = args.bf16 or args.fp16 or launcher.get("mixed_precision") in ("bf16", "fp16")
    loaded = 2 if model.dtype in ("bfloat16", "float16") else 4
    places = {"optimizer": "offload_optimizer_device", "parameters": "offload_param_device"}
    fsdp = launcher.get("fsdp_config") or {}
    return Layout(
        processes=processes,
        kind="none" if processes == 1 and kind == "ddp" else kind,
        weight_bytes=loaded,
        compute_bytes=2 if half or loaded == 2 else 4,
        optimizer=str(getattr(args.optim, "value", args.optim)),
        reference=args.beta != 0.0 and not model.use_peft,
        checkpointing=args.gradient_checkpointing or bool(fsdp.get("fsdp_activation_checkpointing")),
        frozen_bytes=0.5 if model.load_in_4bit else 1.0 if model.load_in_8bit else None,
        offloads=tuple(
            what
            for what, name in places.items()
            if deepspeed.get(name, "none") != "none" or fsdp.get("fsdp_offload_params")
        ),
    )


def _measured(said: Namespace, choices: "Choices") -> "tuple[Rates | None, Assumed]":
    from ..demo import demo_dataset, demo_model_path
    from ..plan import Assumed, Rates, read_rates

    assumed = Assumed(
        prompt=said.prompt_length,
        response=said.response_length,
        segments=said.segments,
        prompts=said.prompts,
        longest_prompt=choices.data.max_prompt_tokens,
    )
    if choices.data.dataset_name in (None, "demo") and choices.model.model_name_or_path == demo_model_path():
        prompts = demo_dataset(seed=choices.args.seed)["prompt"]  # a character is a token
        assumed.prompts, assumed.longest_prompt = assumed.prompts or len(prompts), max(map(len, prompts))
        if assumed.prompt is None:
            assumed.prompt, assumed.sources["prompt"] = sum(map(len, prompts)) / len(prompts), "the embedded task"
    if said.rates_from is None:
        known = said.tokens_per_second or said.tflops
        flops = said.tflops * 1e12 if said.tflops else None
        return (Rates(said.tokens_per_second, flops, flops) if known else None), assumed
    rates, lengths = read_rates(said.rates_from, prompt=assumed.prompt)
    for name, length in lengths._asdict().items():
        is_said = getattr(assumed, name) is not None or (name in ("states", "left") and said.segments is not None)
        if not is_said and length is not None:
            setattr(assumed, name, length)
            assumed.sources[name] = said.rates_from
    return rates, assumed
