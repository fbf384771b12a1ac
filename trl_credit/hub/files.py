"""The files of a run's folder that go to the Hub, and the search for secrets in them."""

import os
import re
from pathlib import Path

from transformers.dynamic_module_utils import get_relative_import_files

from ..support.files import read_json
from .public import Secrets


# exact names: anything else in the folder may be the user's
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
    """The files of `folder` that a push sends, as sorted paths relative to it.

    The weights are `model.safetensors`, or the shards that its index lists, or those of an adapter. Python files are
    included if the `auto_map` of a configuration names them, with the files of the folder that they import.

    Raises:
        ValueError: `folder` does not exist, holds no model, a part of one or a model and an adapter, or a file is a
            link to outside of the folder.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"there is no folder {str(folder)!r}: give the folder of a trained model")
    names = {name for name in PUBLISHED if (root / name).is_file()}
    names |= _model_code(root, names)
    if any(name in OF_CHECKPOINTS for name in os.listdir(root)):  # PEFT's card there names the base model's folder
        names -= {"README.md"}
    weights = {file: shards for file in WEIGHTS if (shards := _weights(root, file))}
    if not weights or not {"config.json", "adapter_config.json"} & names:
        fix = "give the folder that training ended with, or one of its checkpoints"
        raise ValueError(f"{str(folder)!r} holds no model (config.json or adapter_config.json, and safetensors): {fix}")
    if len(weights) > 1:
        raise ValueError(f"{str(folder)!r} holds a model and an adapter ({', '.join(WEIGHTS)}): move the older away")
    names |= set().union(*weights.values())
    _refuse_links(root, sorted(names))
    return sorted(names)


def _weights(root: Path, file: str) -> set[str]:
    """`file`, else its index and the shards that it lists; empty if neither exists."""
    if (root / file).is_file():  # transformers loads it even if an earlier save left an index beside it
        return {file}
    index = root / f"{file}.index.json"
    if not index.is_file():
        return set()
    shards = _read_json(index).get("weight_map")
    if not isinstance(shards, dict):
        raise ValueError(f"{index} has no weight_map: it is not a complete model")
    for name in sorted(map(str, shards.values())):
        if not re.fullmatch(r"\w[\w.-]*\.safetensors", name):
            raise ValueError(f"{index} names {name!r}, not a weights file beside it: it is not a complete model")
        if not (root / name).is_file():
            raise ValueError(f"{str(root)!r} lacks {name}, which {index.name} names: it is not a complete model")
    return {index.name, *shards.values()}


def _model_code(root: Path, names: set[str]) -> set[str]:
    """The modules that an `auto_map` names ("modeling.Model", or a pair of these), and the files that they import."""
    named: set[str] = set()
    for file in sorted(names & {"config.json", "tokenizer_config.json", "processor_config.json"}):
        classes = _read_json(root / file).get("auto_map")
        for entry in classes.values() if isinstance(classes, dict) else ():
            listed = [part for part in (entry if isinstance(entry, list) else [entry]) if isinstance(part, str)]
            named |= {f"{part.partition('.')[0]}.py" for part in listed if "--" not in part}  # of another repository
    modules = {root / name for name in named if re.fullmatch(r"\w+\.py", name) and (root / name).is_file()}
    imported = {Path(path) for module in modules for path in get_relative_import_files(module)}
    return {path.name for path in modules | {path for path in imported if path.parent == root and path.is_file()}}


def _read_json(path: Path) -> dict:
    content = read_json(path)
    return content if isinstance(content, dict) else {}


def _refuse_links(root: Path, names: list[str]) -> None:
    inside = [root.resolve()]
    if inside[0].parent.name == "snapshots":  # the Hub's cache links its files to a folder beside the snapshots
        inside.append(inside[0].parents[1] / "blobs")
    for name in names:
        target = (root / name).resolve()
        if not any(target.is_relative_to(folder) for folder in inside):
            raise ValueError(f"{root / name} is a link to {target}, outside of the folder: replace it by a copy")


def refuse_secrets(root: Path, files: list[str], token: str | None) -> None:
    """Raises a ValueError for the first of `files` that holds a secret, plain or escaped. It does not show it."""
    secrets = Secrets(token or "")
    for name in files:
        if name.endswith(".safetensors"):
            continue
        if secrets.found_in(name):
            raise ValueError("the name of a file to be sent holds a token or a password: rename it")
        text = (root / name).read_bytes().decode("utf-8", errors="replace")
        if secrets.found_in(text, vocabulary=name in VOCABULARIES):
            raise ValueError(
                f"{name} holds your access token, or another secret: remove it, and revoke it if it was seen"
            )
