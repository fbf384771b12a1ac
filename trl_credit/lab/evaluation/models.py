"""Which model is evaluated, and how it is loaded."""

from importlib.metadata import packages_distributions, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from ...demo import TASKS
from ...support.adapters import adapter_base, save_merged
from ...support.digests import sampled_digest
from .samplers import TransformersSampler, VLLMSampler


PACKAGES = {"transformers": ("torch", "transformers"), "vllm": ("torch", "transformers", "vllm")}
_WEIGHT_FILES = (".safetensors", ".bin", ".pt")


def model_location(name: str) -> str:
    """What `from_pretrained` takes: the folder of the embedded model for "demo" or "demo_hum", else the name itself."""
    return TASKS[name].model_path if name in TASKS else name


def model_identity(name: str, revision: str | None) -> dict[str, Any]:
    """`model`, `revision` and `weights`: the commit of a model on the Hub, the weights' fingerprint of a folder.

    Folders are named by [`relative_name`].

    Raises:
        ValueError: `revision` for a folder.
        OSError: there is no such model; the message names it.
    """
    path = Path(model_location(name))
    if not path.is_dir():
        return {"model": name, "revision": _commit(name, revision), "weights": None}
    if not is_model(path):
        raise OSError(f"--models {name!r} is a folder without a model: it has no config.json or adapter_config.json")
    if revision is not None:
        raise ValueError(f"--revision is for models on the Hub, and {name!r} is a folder")
    adapter_base(path)  # whose base must be there
    label = "embedded model" if name == "demo" else name if name in TASKS else relative_name(path)
    return {"model": label, "revision": None, "weights": weights_fingerprint(path)}


def is_model(folder: Path) -> bool:
    """Whether a folder holds a model or an adapter."""
    return any((folder / file).is_file() for file in ("config.json", "adapter_config.json"))


def relative_name(folder: Path) -> str:
    """A folder relative to the working directory, or its last two parts. Tables are published, so no more is shown."""
    full = folder.resolve()
    return full.relative_to(Path.cwd()).as_posix() if full.is_relative_to(Path.cwd()) else "/".join(full.parts[-2:])


def weights_fingerprint(folder: str | Path) -> str:
    """A digest of a folder's weight files and `config.json`, which shows that a checkpoint was overwritten.

    See [`~trl_credit.support.digests.sampled_digest`].
    """
    return sampled_digest(f for f in Path(folder).iterdir() if f.suffix in _WEIGHT_FILES or f.name == "config.json")


def package_versions(backend: str) -> dict[str, str]:
    """Versions of the packages that generate.

    Raises:
        ValueError: there is no such backend, or a package is not installed.
    """
    if backend not in PACKAGES:
        raise ValueError(f"unknown --backend {backend!r}: choose one of {', '.join(PACKAGES)}")
    # by module: builds of vLLM for other devices have other distribution names
    installed = packages_distributions()
    for module in PACKAGES[backend]:
        if module not in installed:
            raise ValueError(f"--backend {backend} needs {module}: pip install 'trl-credit[vllm]'")
    return {module: version(installed[module][0]) for module in PACKAGES[backend]}


def load_sampler(
    name: str, tokenizer: PreTrainedTokenizerBase, *, backend: str, batch_size: int, longest: int, **kwargs: Any
) -> TransformersSampler | VLLMSampler:
    """Loads a model for evaluation. With transformers it is spread over all GPUs of the machine, and an adapter is
    loaded on its base. With vLLM an adapter is merged into its base.

    `longest` is the maximum number of tokens of a prompt and its response. `kwargs` go to `from_pretrained` or to the
    vLLM engine.
    """
    folder = model_location(name)
    base = adapter_base(folder, says="merged into it for vLLM" if backend == "vllm" else "loaded on it")
    if backend == "transformers":
        placement = {"device_map": "auto"} if torch.cuda.is_available() else {}
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", **placement, **kwargs)
        return TransformersSampler(model.eval(), tokenizer, batch_size=batch_size)
    if base is None:
        return VLLMSampler(folder, tokenizer, longest=longest, **kwargs)
    with TemporaryDirectory(prefix="trl_credit_merged_") as merged:
        save_merged(folder, base, merged, trust_remote_code=kwargs.get("trust_remote_code", False))
        tokenizer.save_pretrained(merged)
        return VLLMSampler(merged, tokenizer, longest=longest, **kwargs)


def _commit(name: str, revision: str | None) -> str:
    try:
        try:
            file = hf_hub_download(name, "config.json", revision=revision)
        except EntryNotFoundError:
            file = hf_hub_download(name, "adapter_config.json", revision=revision)
    except (OSError, ValueError) as error:  # a name that the Hub cannot have is a ValueError
        raise OSError(f"--models {name!r} is neither a folder nor found on the Hub: {error}") from error
    return Path(file).parent.name
