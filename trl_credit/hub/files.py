"""Which files of a run's folder go to the Hub, and what must not be in them."""

import json
import os
import re
from pathlib import Path

from transformers.dynamic_module_utils import get_relative_import_files

from .secrets import Secrets


# name by name: what else is in a folder was put there by somebody else
WEIGHTS = ("model.safetensors", "adapter_model.safetensors")  # or the shards that an index lists
PUBLISHED = (
    *("config.json", "generation_config.json", "adapter_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "spm.model", "tekken.json"),
    *("sentencepiece.model", "sentencepiece.bpe.model", "qwen.tiktoken", "tiktoken.model"),
    *("chat_template.json", "chat_template.jinja"),
    *("additional_chat_templates/tool_use.jinja", "additional_chat_templates/rag.jinja"),
    *("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"),
    *("README.md", "reward_curve.png", "credit_plot.png", "recipe.yaml"),
    *("evaluation/evaluation.json", "evaluation/evaluation.md", "evaluation/evaluation.png"),
)
VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt", "tekken.json", "qwen.tiktoken")
OF_CHECKPOINTS = ("trainer_state.json", "credit_state.json")


def publishable(folder: str | Path) -> list[str]:
    """The files of `folder` that a push sends, as sorted paths relative to it: exact names, no patterns.

    The weights are `model.safetensors` or the shards that its index lists, or an adapter's. Python files are among them
    where `auto_map` of a configuration names them, with what they import from the folder.

    Raises:
        ValueError: `folder` is not there, holds no model, two of them or a part of one, or a file of it is a link to
            elsewhere.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"there is no folder {str(folder)!r}: give the folder of a trained model")
    names = {name for name in PUBLISHED if (root / name).is_file()}
    names |= _own_code(root, names)
    if any(name in OF_CHECKPOINTS for name in os.listdir(root)):  # PEFT writes a card there, with the base's folder
        names -= {"README.md"}
    weights = {file: shards for file in WEIGHTS if (shards := _weights(root, file))}
    if not weights or not {"config.json", "adapter_config.json"} & names:
        raise ValueError(
            f"{str(folder)!r} holds no model (config.json or adapter_config.json, and safetensors): give the folder "
            "that training ended with, or one of its checkpoints"
        )
    if len(weights) > 1:
        raise ValueError(
            f"{str(folder)!r} holds a model and an adapter ({' and '.join(WEIGHTS)}), of two runs: move the older away"
        )
    names |= set().union(*weights.values())
    _refuse_links(root, sorted(names))
    return sorted(names)


def _weights(root: Path, file: str) -> set[str]:
    """`file`, or where it is not there its index and the shards that it lists; nothing where that is not there."""
    if (root / file).is_file():  # which is what loading takes, whatever an earlier save left beside it
        return {file}
    index = f"{file}.index.json"
    if not (root / index).is_file():
        return set()
    shards = _shards(root / index)
    if missing := sorted(name for name in shards if not (root / name).is_file()):
        raise ValueError(f"{str(root)!r} lacks {missing[0]}, which {index} names: it is not a whole model")
    return {index, *shards}


def _own_code(root: Path, names: set[str]) -> set[str]:
    """The modules that an `auto_map` names ("modeling.Model", or a pair of these), and what they import from beside."""
    named: set[str] = set()
    for file in sorted(names & {"config.json", "tokenizer_config.json", "processor_config.json"}):
        content = _read_json(root / file)
        classes = content.get("auto_map") if isinstance(content, dict) else None
        for entry in classes.values() if isinstance(classes, dict) else ():
            listed = [part for part in (entry if isinstance(entry, list) else [entry]) if isinstance(part, str)]
            named |= {f"{part.partition('.')[0]}.py" for part in listed if "--" not in part}  # of another repository
    modules = {root / name for name in named if re.fullmatch(r"\w+\.py", name) and (root / name).is_file()}
    imported = {Path(path) for module in modules for path in get_relative_import_files(module)}
    return {path.name for path in modules | {path for path in imported if path.parent == root and path.is_file()}}


def _shards(index: Path) -> set[str]:
    content = _read_json(index)
    shards = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(shards, dict):
        raise ValueError(f"{index} has no weight_map: it is not a whole model")
    names = {str(shard) for shard in shards.values()}
    if strange := sorted(name for name in names if not re.fullmatch(r"\w[\w.-]*\.safetensors", name)):
        raise ValueError(
            f"{index} names {strange[0]!r}, which is no file of weights beside it: it is not a whole model"
        )
    return names


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}): it is not a whole model") from error


def _refuse_links(root: Path, names: list[str]) -> None:
    inside = [root.resolve()]
    if inside[0].parent.name == "snapshots":  # the Hub's cache keeps all of a repository's contents beside them
        inside.append(inside[0].parents[1] / "blobs")
    for name in names:
        target = (root / name).resolve()
        if not any(target.is_relative_to(folder) for folder in inside):
            raise ValueError(f"{root / name} is a link to {target}, outside of the folder: put a copy in its place")


def refuse_secrets(root: Path, files: list[str], token: str | None) -> None:
    """Raises a ValueError that names the first of `files` that holds a secret, as it is or escaped, and not what."""
    secrets = Secrets(token or "")
    for name in files:
        if name.endswith(".safetensors"):
            continue
        if secrets.found_in(name):
            raise ValueError("the name of a file to be sent holds a token or a password: rename it")
        text = (root / name).read_bytes().decode("utf-8", errors="replace")
        if secrets.found_in(text, vocabulary=name in VOCABULARIES):
            raise ValueError(
                f"{name} holds your access token, or another token or password: remove it there, and revoke it if "
                "others saw it"
            )
