"""What a run will do with its data and settings, tried before the model goes to a device and an engine starts."""

import math
from collections.abc import Mapping
from typing import Any

from accelerate.logging import get_logger
from datasets import Dataset, IterableDataset
from peft import PeftModel
from transformers import AutoTokenizer, GenerationConfig
from trl import GRPOTrainer
from trl.trainer.utils import create_model_from_path

from ..config import CreditConfig
from ..data.prompts import are_messages
from ..runs.data_identity import DECODED, FIRST_ROWS, random_numbers, read_first_rows
from ..runs.resumable import ResumableTrainer
from ..support.adapters import adapter_base, tokenizer_source
from ..support.errors import did_you_mean, one_line


logger = get_logger(__name__)

MOST_ROWS = 200_000  # whose prompts are looked at, in about a second
_REMOVE = "write one, or remove the row (.filter)"
_AS_TEXT = "write each content as text, under a role that the template knows"

# a data set of a trainer: its name in messages, itself, and its first rows
FirstRows = tuple[str, Dataset | IterableDataset, list[dict[str, Any]]]


def read_rows(args: CreditConfig, kwargs: dict[str, Any]) -> list[FirstRows]:
    """The first rows of the data sets of a trainer that is being made with the arguments `kwargs`."""
    datasets = {"train_dataset": kwargs.get("train_dataset")}
    evaluated = kwargs.get("eval_dataset")
    is_named = isinstance(evaluated, Mapping)
    datasets |= {f"eval_dataset[{x!r}]": evaluated[x] for x in evaluated} if is_named else {"eval_dataset": evaluated}
    sets: list[FirstRows] = []
    for what, data in datasets.items():
        rows = []
        if isinstance(data, IterableDataset):
            count = min(FIRST_ROWS, args.generation_batch_size // args.num_generations)
            rows = read_first_rows(data, count=count, seed=args.seed)
        elif isinstance(data, Dataset):
            with random_numbers(args.seed):  # a transform may draw some
                rows = [data[i] for i in range(min(FIRST_ROWS, len(data)))]
        if rows:
            sets.append((what, data, rows))
    return sets


def with_adapter(model: Any, args: CreditConfig, kwargs: dict[str, Any]) -> Any:
    """The model for `GRPOTrainer`: the folder of an adapter becomes its base with the adapter, which is trained
    further; others are returned as they are. `kwargs` are those of the trainer, and get the adapter's tokenizer.

    Raises:
        ValueError: the base is missing, or a new adapter is asked for.
    """
    says = "the adapter is trained further (with beta above 0, the reference is the adapter as it is now)"
    if not isinstance(model, str) or (base := adapter_base(model, says=says)) is None:
        return model
    if kwargs.get("peft_config") is not None:
        raise ValueError(f"{model!r} is an adapter, and peft_config starts a new one: leave it out, or merge first")
    loading = {"trust_remote_code": args.trust_remote_code, **(args.model_init_kwargs or {})}
    if args.distributed_state.distributed_type in ("MULTI_GPU", "DEEPSPEED"):
        loading["device_map"] = None
    if kwargs.get("quantization_config") is not None:
        loading["quantization_config"] = kwargs.pop("quantization_config")
    loaded = PeftModel.from_pretrained(create_model_from_path(base, **loading), model, is_trainable=True)
    if kwargs.get("processing_class") is None and (source := tokenizer_source(model)) == model:
        tokenizer = {"truncation_side": "left", "padding_side": "left", "trust_remote_code": args.trust_remote_code}
        kwargs["processing_class"] = AutoTokenizer.from_pretrained(source, **tokenizer)
    return loaded


def context_of(trainer: GRPOTrainer) -> int | None:
    """Tokens that prompt and response may have together; `None` if neither engine nor model says so."""
    own = trainer.args.vllm_max_model_length if trainer.use_vllm else None
    return own or getattr(trainer.model.config.get_text_config(), "max_position_embeddings", None)


def room_after(prompt_length: int, context: float, *, where: str = "") -> float:
    """Tokens that a prompt leaves for a response. Raises a `ValueError` if it leaves none."""
    if prompt_length >= context:
        what = f"{where}the prompt of {prompt_length} tokens leaves no room for a response in the context of {context}"
        raise ValueError(f"{what} tokens: remove the row, or take a model with a longer context.")
    return context - prompt_length


def check(trainer: ResumableTrainer, sets: list[FirstRows]) -> None:
    """Checks settings and rows, once TRL has loaded model and tokenizer and knows the tools. Sets
    `max_completion_length=None` to the model's context.

    Raises:
        ValueError: one line with what is wrong, its data set and row, and the fix.
    """
    args, arguments, context = trainer.args, trainer.arguments, context_of(trainer)
    _check_generation(args)
    # an adapter that TRL keeps as the reference is never active
    if not any(p.requires_grad and ".ref." not in name for name, p in trainer.model.named_parameters()):
        load = "load the adapter with PeftModel.from_pretrained(…, is_trainable=True)"
        fix = load if isinstance(trainer.model, PeftModel) else "call model.requires_grad_(True)"
        raise ValueError(f"no parameter of the model requires a gradient, so the run would change nothing: {fix}.")
    if args.max_completion_length is None:  # the engine ends a response where the context does
        if context is None:
            raise ValueError("max_completion_length=None and a model with no max_position_embeddings: set a number.")
        args.max_completion_length = trainer.max_completion_length = context
    # transformers sets it again; a processor that TRL has loaded is unknown here
    trainer.processing_class = arguments["processing_class"] or (None if trainer._is_vlm else trainer._tokenizer)
    names = ("_generate_and_score_completions", "_generate", "_tokenize_prompts")
    owners = {getattr(type(trainer), name).__module__.partition(".")[0] for name in names}
    is_trl = owners <= {"trl", "trl_credit"} and arguments["rollout_func"] is None
    for what, data, rows in sets:
        if what == "train_dataset" and isinstance(data, IterableDataset):  # need not be read again
            trainer.first_rows = rows
        if not is_trl:  # what becomes of a row is unknown
            continue
        if "prompt" in rows[0]:
            prompts = _prompts(data, rows)
            for i, prompt in enumerate(prompts):
                if (fault := _fault(prompt, prompts[0])) is not None:
                    raise ValueError(f"{what}, row {i}: column 'prompt' {fault}.")
            if trainer.processing_class is not None and not {"image", "images", "environment"} & rows[0].keys():
                _check_tokens(trainer, what, prompts, first=len(rows), context=context or math.inf)
        elif arguments["environment_factory"] is None:
            fix = f"rename the one with the prompts: {what}.rename_column({next(iter(rows[0]))!r}, 'prompt')"
            raise ValueError(f"{what} has no column 'prompt', only {', '.join(map(repr, rows[0]))}: {fix}.")


def _check_generation(args: CreditConfig) -> None:
    # vLLM names unknown settings itself
    settings, known = {} if args.use_vllm else args.generation_kwargs or {}, vars(GenerationConfig())
    for name in settings.keys() - known.keys():
        fix = did_you_mean(name, known) or ": leave it out."
        raise ValueError(f"generation_kwargs: transformers' GenerationConfig has no {name!r}{fix}")
    if settings.get("stop_strings"):
        raise ValueError("generation_kwargs: stop_strings would train padding: set eos_token_id, or use vLLM's `stop`.")


def _prompts(data: Any, rows: list[dict[str, Any]]) -> list[Any]:
    """The prompts of all rows, at most `MOST_ROWS`. Those of the first rows, where a row is made by a transform, is
    decoded, or comes from a stream."""
    if isinstance(data, Dataset) and data.format["type"] != "custom":
        if not any(kind in repr(data.features["prompt"]) for kind in (*DECODED, "Json(")):
            return data.select_columns(["prompt"]).with_format("arrow")[:MOST_ROWS]["prompt"].to_pylist()
    return [row.get("prompt") for row in rows]


def _fault(prompt: Any, first: Any) -> str | None:
    """What is wrong with a prompt, given that of row 0, and the fix."""
    is_text = isinstance(prompt, str)
    if not is_text and not (prompt and are_messages(prompt)):
        return f"holds {prompt!r:.60}, not text or messages with `role` and `content`: {_REMOVE}"
    if is_text is not isinstance(first, str):
        return "is text in some rows and messages in others, as in row 0: make all of one kind"
    if is_text:
        return None
    if any(message["content"] is None and not message.get("tool_calls") for message in prompt):
        return f"has a message without content: {_REMOVE}"
    if prompt[-1]["role"] == "assistant":
        return "ends with a message of the assistant, which TRL cannot continue: split it off, prompt = messages[:-1]"
    return None


def _check_tokens(trainer: GRPOTrainer, what: str, prompts: list[Any], *, first: int, context: float) -> None:
    """Puts the `first` and the longest prompts, and one of each kind, through TRL's tokenization."""
    sizes = [len(p) if isinstance(p, str) else sum(len(str(m["content"])) for m in p) for p in prompts]
    longest = sorted(range(len(prompts)), key=sizes.__getitem__)[-FIRST_ROWS:]
    kinds: dict[Any, int] = {}  # the roles of messages, and text of white space alone
    for i, p in enumerate(prompts):
        kinds.setdefault(not p.strip() if isinstance(p, str) else frozenset(m["role"] for m in p), i)
    read, widest = {"assistant", "tool"}, (0, 0)
    for i in dict.fromkeys([*range(first), *longest, *kinds.values()]):
        prompt, where = prompts[i], f"{what}, row {i}: "
        if not (ids := _ids(trainer, prompt, where)):
            raise ValueError(f"{where}the prompt {prompt!r:.60} has no tokens: {_REMOVE}.")
        widest = max(widest, (len(ids), -i))
        for n, message in enumerate(() if isinstance(prompt, str) else prompt):
            role, content = message["role"], message["content"]
            if role in read or (trainer._is_vlm and not isinstance(content, str)):
                continue
            read.add(role)
            # a template that prints a list of parts as Python does makes the same of its text
            other = {**message, "content": str(content) + " 1" * isinstance(content, str)}
            if _ids(trainer, [*prompt[:n], other, *prompt[n + 1 :]], where) == ids:
                what = f"{where}the chat template does not read the content of message {n} (role {role!r})"
                raise ValueError(f"{what}: {_AS_TEXT}.")
    size, where = widest[0], f"{what}, row {-widest[1]}: "
    room, most = room_after(size, context, where=where), trainer.max_completion_length
    if most <= room or most == context or trainer.args.rollouts != "none":  # segments are cut at the context
        return
    what = f"{where}the prompt of {size} tokens and max_completion_length={most} exceed the context of {context} tokens"
    text = f"{what}: set max_completion_length={room} or None (the rest of the context), or remove the row"
    if not any("rope" in key or "rotary" in key for key in trainer.model.config.get_text_config().to_dict()):
        raise ValueError(f"{text}. The model has no positions beyond.")
    logger.warning("%s. The model was not trained on positions beyond", text)


def _ids(trainer: GRPOTrainer, prompt: Any, where: str) -> list[int]:
    """The tokens of a prompt as TRL makes them."""
    trainer._batch_environments = [None]
    try:
        return list(GRPOTrainer._tokenize_prompts(trainer, [prompt])[0][0])
    except Exception as error:  # a template may raise anything
        what = f"{where}the chat template does not render the prompt ({type(error).__name__}: {one_line(error):.200})"
        raise ValueError(f"{what}: {_AS_TEXT}, or set tokenizer.chat_template.") from error
