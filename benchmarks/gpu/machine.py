"""The device, trainers on it that are ready to step, fixed rows, and one optimizer step."""

import gc
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from trl_credit.demo import demo_dataset, demo_model_path, demo_reward


QUIET = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "log_level": "error"}


@dataclass(frozen=True)
class Machine:
    """Where things run: the first GPU, or in a dry run the CPU."""

    dry: bool

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.dry else "cuda:0")

    def settings(self, *, bf16: bool = True) -> dict[str, Any]:
        """The settings of a configuration besides those of the algorithm. `bf16` is autocast: weights are float32."""
        return {**QUIET, "use_cpu": self.dry, "bf16": bf16}

    def seconds(self) -> float:
        """A clock that has waited for the device; in a dry run that of this process."""
        if self.dry:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def free(self) -> None:
        """Gives back the memory of what nobody holds any more."""
        gc.collect()
        if not self.dry:
            torch.cuda.empty_cache()

    def begin_peak(self) -> None:
        """The peak of memory is counted from here."""
        if not self.dry:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()

    def peak_bytes(self) -> int:
        """Most bytes of tensors at one time since `begin_peak`; 0 in a dry run, which has no such count."""
        if self.dry:
            return 0
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()


def random_qwen3(sizes: dict[str, int], device: torch.device, *, seed: int = 0) -> Qwen3ForCausalLM:
    """A Qwen3 with random float32 weights, made where it is used."""
    torch.manual_seed(seed)
    config = Qwen3Config(**sizes, tie_word_embeddings=True, eos_token_id=1, pad_token_id=0, bos_token_id=None)
    with device:
        return Qwen3ForCausalLM(config)


def fixed_rows(
    rows: int, length: int, vocabulary: int, device: torch.device, *, segment_length: int | None = None
) -> dict[str, torch.Tensor]:
    """Inputs of the loss in TRL's shape: random tokens, ragged lengths, advantages of both signs. The same on every
    device; with `segment_length` (tokens) there is an advantage for each segment, as chains have."""
    g = torch.Generator().manual_seed(0)
    lengths = torch.randint(length // 2, length + 1, (rows,), generator=g)
    lengths[0] = length
    mask = (torch.arange(length) < lengths[:, None]).long()
    prompt = (rows, 12)
    tensors = {
        "prompt_ids": torch.randint(3, vocabulary, prompt, generator=g),
        "prompt_mask": torch.ones(prompt, dtype=torch.long),
        "completion_ids": torch.randint(3, vocabulary, mask.shape, generator=g) * mask,
        "completion_mask": mask,
        "advantages": torch.randn(rows, generator=g),
        "num_items_in_batch": mask.sum(),
    }
    if segment_length is not None:
        segments = (torch.arange(length) // segment_length).expand(mask.shape)
        tensors["segment_ids"] = segments.masked_fill(mask == 0, -1)
        tensors["advantages"] = torch.randn(rows, int(segments.max()) + 1, generator=g).gather(1, segments)
    return on(device, tensors)


def on(device: torch.device, inputs: dict[str, Any]) -> dict[str, Any]:
    """A copy of a batch on a device."""
    return {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}


@contextmanager
def trainer_for(pair: tuple[type, type], model: Any, *, data: Dataset | None = None, **settings: Any) -> Iterator[Any]:
    """A trainer on the embedded task. `model`: a folder with a tokenizer, or a model, which gets the embedded one's.

    accelerate has one device and one precision per process: use a trainer before the next one is made, or make both
    alike.
    """
    config_class, trainer_class = pair
    with tempfile.TemporaryDirectory() as folder:
        args = config_class(output_dir=folder, **settings)
        tokenizer = {} if isinstance(model, str) else {"processing_class": demo_tokenizer()}
        trainer = trainer_class(model, demo_reward, args, train_dataset=data or demo_dataset(64), **tokenizer)
        if hasattr(trainer, "results"):
            trainer.results.writes_at_end = False
        yield trainer


def make_ready(trainer: Any) -> None:
    """What `train` does before its first step, as far as a step needs it."""
    trainer.model_wrapped = trainer.accelerator.prepare_model(trainer.model)  # forward passes under autocast
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()


def demo_tokenizer() -> PreTrainedTokenizerBase:
    """The tokenizer of the embedded model, for models that have none."""
    return AutoTokenizer.from_pretrained(demo_model_path())


def backward(trainer: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """The loss, after its backward pass."""
    loss = trainer.compute_loss(trainer.model_wrapped, dict(inputs))
    loss.backward()
    return loss.detach()


def step(trainer: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """The loss, after one optimizer step."""
    loss = backward(trainer, inputs)
    torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    return loss
