"""The files of a run's folder that go to the Hub, and the search for tokens in them."""

import json
import re
from pathlib import Path

from transformers.dynamic_module_utils import get_relative_import_files

from ..support.files import read_json
from .public import Public


# exact names: anything else in the folder may be the user's
WEIGHTS = ("model.safetensors", "adapter_model.safetensors")  # or the shards that an index lists
VOCABULARIES = frozenset(
    """
    tokenizer.json vocab.json vocab.txt merges.txt tokenizer.model spiece.model spm.model sentencepiece.model
    sentencepiece.bpe.model tekken.json qwen.tiktoken tiktoken.model
    """.split()
)
PUBLISHED = VOCABULARIES.union(
    """
    config.json generation_config.json adapter_config.json tokenizer_config.json special_tokens_map.json
    added_tokens.json chat_template.json chat_template.jinja additional_chat_templates/tool_use.jinja
    additional_chat_templates/rag.jinja processor_config.json preprocessor_config.json video_preprocessor_config.json
    README.md reward_curve.png credit_plot.png recipe.yaml evaluation/evaluation.json evaluation/evaluation.md
    evaluation/evaluation.png
    """.split()
)
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
    if any((root / name).exists() for name in OF_CHECKPOINTS):  # PEFT's card there names the base model's folder
        names -= {"README.md"}
    weights = [shards for file in WEIGHTS if (shards := _weights(root, file))]
    if len(weights) != 1 or not {"config.json", "adapter_config.json"} & names:
        raise ValueError(
            f"{str(folder)!r} must hold one model (config.json or adapter_config.json, and safetensors), or one "
            "adapter: give the folder that training ended with, or one of its checkpoints"
        )
    names |= weights[0]
    # the Hub's cache links its files to a folder beside the snapshots
    real = root.resolve()
    inside = [real, real.parents[1] / "blobs"] if real.parent.name == "snapshots" else [real]
    for name in sorted(names):
        target = (root / name).resolve()
        if not any(target.is_relative_to(folder) for folder in inside):
            raise ValueError(f"{root / name} is a link to {target}, outside of the folder: replace it by a copy")
    return sorted(names)


def _weights(root: Path, file: str) -> set[str]:
    """`file`, else its index and the shards that it lists; empty if neither exists."""
    if (root / file).is_file():  # transformers loads it even if an earlier save left an index beside it
        return {file}
    index = root / f"{file}.index.json"
    if not index.is_file():
        return set()
    shards = _read_json(index).get("weight_map")
    names = sorted(map(str, shards.values())) if isinstance(shards, dict) else []
    for name in names or ["its weight_map"]:
        if not re.fullmatch(r"\w[\w.-]*\.safetensors", name) or not (root / name).is_file():
            raise ValueError(f"{index} is not of a complete model: {name!r} is not a weights file beside it")
    return {index.name, *names}


def _model_code(root: Path, names: set[str]) -> set[str]:
    """The modules that an `auto_map` names ("modeling.Model", or a pair of these), and the files that they import."""
    modules: set[Path] = set()
    for file in sorted(names & {"config.json", "tokenizer_config.json", "processor_config.json"}):
        auto_map = json.dumps(_read_json(root / file).get("auto_map"))
        # without "repository--module.Class"
        modules |= {root / f"{name}.py" for name in re.findall(r'"(\w+)\.\w+"', auto_map)}
    modules = {module for module in modules if module.is_file()}
    imported = {Path(path) for module in modules for path in get_relative_import_files(module)}
    return {path.name for path in modules | imported if path.parent == root and path.is_file()}


def _read_json(path: Path) -> dict:
    content = read_json(path)
    return content if isinstance(content, dict) else {}


def refuse_tokens(root: Path, files: list[str], token: str | None) -> None:
    """Raises a ValueError for the first of `files` that holds a token. It does not show it."""
    public = Public(token)
    for name in files:
        if name in VOCABULARIES or name.endswith((".safetensors", ".png")):
            continue
        if public.holds_token((root / name).read_text(encoding="utf-8", errors="replace")):
            fix = "remove it, and revoke it if it was seen"
            raise ValueError(f"{name} holds your access token, or another secret: {fix}")
