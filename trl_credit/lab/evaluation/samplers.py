"""The evaluated models: which they are, and how they are sampled from with transformers or vLLM."""

import gc
from collections.abc import Sequence
from importlib.metadata import packages_distributions, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypedDict

import torch
from huggingface_hub import hf_hub_download
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from ...demo import TASKS
from ...support.adapters import adapter_base, save_merged
from ...support.digests import sampled_digest
from ...support.vllm_set import vllm_explained
from .problems import Problem
from .protocols import Protocol


BACKENDS = ("transformers", "vllm")
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
    if backend not in BACKENDS:
        raise ValueError(f"unknown --backend {backend!r}: choose one of {', '.join(BACKENDS)}")
    # by module: builds of vLLM for other devices have other distribution names
    installed = packages_distributions()
    if backend not in installed:
        raise ValueError(f"--backend {backend} needs {backend}: pip install 'trl-credit[{backend}]'")
    return {module: version(installed[module][0]) for module in dict.fromkeys(("torch", "transformers", backend))}


def _commit(name: str, revision: str | None) -> str:
    for file in ("config.json", "adapter_config.json"):
        try:
            return Path(hf_hub_download(name, file, revision=revision)).parent.name
        except (OSError, ValueError) as error:  # a name that the Hub cannot have is a ValueError
            reason = error
    raise OSError(f"--models {name!r} is neither a folder nor found on the Hub: {reason}") from reason


class Sample(TypedDict):
    """A response: its text without special tokens, its length in tokens (including the end), and whether it was cut."""

    text: str
    length: int
    truncated: bool


def token_limits(problems: Sequence[Problem], protocol: Protocol, context: int | None) -> list[int]:
    """Maximum tokens of a response to each problem: `max_new_tokens`, or what prompt and `max_context` or the model
    leave.

    Raises:
        ValueError: a prompt leaves no room for a response.
    """
    room = min(c for c in (protocol.max_context, context, 1 << 62) if c is not None)
    lengths = [len(problem.prompt_ids) for problem in problems]
    if (longest := max(lengths)) >= room:
        what = f"a prompt of {longest} tokens leaves no room for a response within {room}"
        raise ValueError(f"{what}: raise --max_context, use a model with a longer context, or drop the prompt")
    return [min(protocol.max_new_tokens, room - length) for length in lengths]


def context_length(config: PreTrainedConfig) -> int | None:
    """The model's maximum number of tokens, `None` if its configuration does not say."""
    return config.get_text_config().to_dict().get("max_position_embeddings")


def end_tokens(model_end: int | list[int] | None, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens that end a response: those of the model's generation configuration and of the tokenizer."""
    ends = {model_end} if isinstance(model_end, int) else {*(model_end or [])}
    ends |= {tokenizer.eos_token_id} - {None}
    if not ends:
        raise ValueError("neither model nor tokenizer names an end-of-sequence token: set eos_token in the tokenizer")
    return sorted(ends)


class SeededNoise(LogitsProcessor):
    """Adds Gumbel noise to the scores, with one generator per row; the largest sum is then a sample.

    argmax(log p + g) with g = −log(Exponential(1)) is distributed as p, so greedy decoding of the noisy scores samples.
    A response depends neither on its batch nor on the global random state, which does not change.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.generators = [torch.Generator(device=device).manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        noise = torch.empty(scores.shape, dtype=torch.float32, device=scores.device)
        for row, generator in zip(noise, self.generators, strict=True):
            row.exponential_(generator=generator)
        return scores.float() - noise.clamp_min(torch.finfo(torch.float32).tiny).log()


class TransformersSampler:
    """Batches of `generate`, padded on the left.

    Args:
        model (`PreTrainedModel`):
            Model in evaluation mode, on its device.
        tokenizer (`PreTrainedTokenizerBase`):
            Its tokenizer.
        batch_size (`int`, *optional*, defaults to 64):
            Responses at a time. It changes a response only if two tokens are almost equally likely, because rounding
            depends on the shape of the batch.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, batch_size: int = 64) -> None:
        if batch_size < 1:
            raise ValueError(f"--batch_size must be at least 1, got {batch_size}")
        self.model, self.tokenizer, self.batch_size = model, tokenizer, batch_size
        self.ends = end_tokens(model.generation_config.eos_token_id, tokenizer)
        self.context = context_length(model.config)

    def sample(self, problems: Sequence[Problem], protocol: Protocol) -> list[list[Sample]]:
        limits = token_limits(problems, protocol, self.context)
        rows = [(i, j) for i in range(len(problems)) for j in range(protocol.samples)]
        samples: list[list[Sample]] = [[] for _ in problems]
        for begin in range(0, len(rows), self.batch_size):
            batch = rows[begin : begin + self.batch_size]
            prompts, seeds = zip(*((problems[i].prompt_ids, problems[i].seed + j) for i, j in batch), strict=True)
            responses = self._generate(prompts, seeds, max(limits[i] for i, _ in batch), protocol)
            for (i, _), tokens in zip(batch, responses, strict=True):
                samples[i].append(cut(tokens[: limits[i]], self.ends, self.tokenizer))
        return samples

    def close(self) -> None:
        del self.model
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _generate(
        self, prompts: Sequence[list[int]], seeds: Sequence[int], limit: int, protocol: Protocol
    ) -> list[list[int]]:
        device, longest = self.model.device, max(map(len, prompts))
        pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.ends[0]
        ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts], device=device)
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
        config = GenerationConfig(max_new_tokens=limit, do_sample=False, eos_token_id=self.ends, pad_token_id=pad)
        # transformers takes values that are None here from the model's own configuration
        owner = self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model
        own, owner.generation_config = owner.generation_config, GenerationConfig()
        options = {"generation_config": config, "logits_processor": self._processors(seeds, protocol)}
        try:
            with torch.no_grad():
                output = self.model.generate(input_ids=ids, attention_mask=mask, **options)
        finally:
            owner.generation_config = own
        return output[:, longest:].tolist()

    def _processors(self, seeds: Sequence[int], protocol: Protocol) -> LogitsProcessorList:
        if protocol.temperature == 0:
            return LogitsProcessorList()
        warpers = [TemperatureLogitsWarper(float(protocol.temperature))]
        warpers += [TopKLogitsWarper(protocol.top_k)] if protocol.top_k > 0 else []
        warpers += [TopPLogitsWarper(protocol.top_p)] if protocol.top_p < 1 else []
        return LogitsProcessorList([*warpers, SeededNoise(seeds, self.model.device)])


def cut(tokens: list[int], ends: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> Sample:
    """The response up to its first end token. Without one it is truncated."""
    end = next((i for i, token in enumerate(tokens) if token in ends), None)
    kept = tokens if end is None else tokens[: end + 1]
    text = tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return Sample(text=text, length=len(kept), truncated=end is None)


class VLLMSampler:
    """A vLLM engine. Seeds are per problem; vLLM does not guarantee equal responses in another batch.

    `longest` is the maximum number of tokens of a prompt and its response. Memory is reserved for it, not for the
    model's whole context.
    """

    def __init__(self, name: str, tokenizer: PreTrainedTokenizerBase, *, longest: int, **engine_kwargs: Any) -> None:
        self.tokenizer = tokenizer
        of_hub = {key: engine_kwargs[key] for key in ("revision", "trust_remote_code") if key in engine_kwargs}
        self.context = min(longest, context_length(AutoConfig.from_pretrained(name, **of_hub)) or longest)
        with vllm_explained():
            from vllm import LLM

            self.engine = LLM(model=name, max_model_len=self.context, **engine_kwargs)
        model_ends = self.engine.llm_engine.model_config.try_get_generation_config().get("eos_token_id")
        self.ends = end_tokens(model_ends, tokenizer)

    def sample(self, problems: Sequence[Problem], protocol: Protocol) -> list[list[Sample]]:
        from vllm import SamplingParams

        common = {name: getattr(protocol, name) for name in ("temperature", "top_p", "top_k")}
        common |= {"n": protocol.samples, "stop_token_ids": self.ends, "detokenize": False}
        limits = zip(problems, token_limits(problems, protocol, self.context), strict=True)
        parameters = [SamplingParams(seed=problem.seed, max_tokens=limit, **common) for problem, limit in limits]
        requests = [{"prompt_token_ids": problem.prompt_ids} for problem in problems]
        outputs = self.engine.generate(requests, sampling_params=parameters, use_tqdm=False)
        return [[cut(list(o.token_ids), self.ends, self.tokenizer) for o in request.outputs] for request in outputs]

    def close(self) -> None:
        from vllm.distributed import cleanup_dist_env_and_memory

        del self.engine
        gc.collect()
        cleanup_dist_env_and_memory()


Sampler = TransformersSampler | VLLMSampler


def load_sampler(
    name: str, tokenizer: PreTrainedTokenizerBase, *, backend: str, batch_size: int, longest: int, **kwargs: Any
) -> Sampler:
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
