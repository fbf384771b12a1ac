"""The teacher of a run: its weights, and its pass over each generation batch."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import trl.trainer.utils
from peft import PeftModel
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import AutoTokenizer, TrainerCallback
from trl.models import prepare_deepspeed, prepare_fsdp
from trl.trainer.utils import create_model_from_path, get_config_model_id, use_adapter

from ..config import CreditConfig
from ..loss import keys
from ..loss.batch import Batch
from ..passes.reduced import ReducedPasses, arguments_of
from ..rollouts.replay import padded
from ..rollouts.sources import GenerationBatch
from ..support.errors import one_line
from ..support.tensor_files import load_tensors, save_tensors
from .before_run import FirstRows
from .engine import TrlEngine
from .engine_calls import Replaced
from .teacher_contexts import Contexts


_SHARED = "teacher.safetensors"  # of all processes


class Teacher(TrainerCallback):
    """Scores the rows of a generation batch, by the knobs of [`~trl_credit.config.teacher.TeacherKnobs`].

    A copy of the policy is kept as the trainable weights alone, as this process holds them (with ZeRO-3 and FSDP its
    shard, with an adapter those of the adapter). They take the place of the policy's during the pass.

    Args:
        trainer ([`~trl_credit.CreditTrainer`]):
            It has its model. With a copy of the policy it needs this callback, and its checkpoints this state.
        engine ([`TrlEngine`]):
            Tokenizes and decodes.
        forward (`Callable`):
            TRL's forward pass, bound to the trainer.
        sets (list of `FirstRows`):
            The first rows of its data sets, whose contexts are made to see whether they can be.

    Raises:
        ValueError: a context cannot be made, is that of the policy, or is too long; the vocabulary differs; or rows
            have images.

    Attributes:
        is_loaded: Whether it is a model of its own.
    """

    name = "teacher"

    def __init__(self, trainer: Any, engine: TrlEngine, forward: Callable[..., tuple], sets: list[FirstRows]) -> None:
        self._trainer, self._engine, self._args = trainer, engine, trainer.args
        self.setting = f"teacher={self._args.teacher!r}"
        self._copy: list[torch.Tensor] | None = None
        self._other, self._passes, path = None, trainer._passes, self._path()
        self.is_loaded = path is not None
        if path is not None:
            self._other = self._loaded(path)
            # with findings of their own, such as whether packed rows are exact
            self._passes = ReducedPasses(Replaced(trainer, model=self._other, findings={}), forward)
        elif self._args.teacher == "reference":
            self._other = trainer.ref_model
        config = trainer.accelerator.unwrap_model(self._model).config.get_text_config()
        self._limit = getattr(config, "max_position_embeddings", None) or math.inf
        self._contexts = Contexts(trainer, engine)
        for first in sets:
            self._contexts.check(first, limit=self._limit)

    # Weights

    @property
    def _model(self) -> torch.nn.Module:
        """The second model, or that of the trainer, which is wrapped when training begins."""
        return self._trainer.model if self._other is None else self._other

    def _path(self) -> str | None:
        """The model that a teacher of its own is loaded from; `None` if there is none."""
        trainer, teacher = self._trainer, self._args.teacher
        if teacher not in ("policy", "reference"):
            return teacher
        model = trainer.accelerator.unwrap_model(trainer.model)
        is_missing = trainer.ref_model is None and not isinstance(model, PeftModel)  # TRL loads none if beta is 0
        return get_config_model_id(model.config) if teacher == "reference" and is_missing else None

    def _loaded(self, path: str) -> torch.nn.Module:
        trainer, args = self._trainer, self._args
        loading = {"trust_remote_code": args.trust_remote_code, "dtype": "auto", **(args.model_init_kwargs or {})}
        if args.teacher == "reference":  # as the policy, which may have been given as an instance
            model = trainer.accelerator.unwrap_model(trainer.model)
            loading["dtype"], loading["attn_implementation"] = model.dtype, model.config._attn_implementation
        else:
            loading.pop("revision", None)  # the policy's
        if args.distributed_state.distributed_type in ("MULTI_GPU", "DEEPSPEED"):
            loading["device_map"] = None
        try:
            model = create_model_from_path(path, **loading).requires_grad_(False)
        except (OSError, ValueError) as error:
            fix = "name a folder with a config.json or a model of the Hub, and merge an adapter first"
            raise ValueError(f"teacher={args.teacher!r} cannot be loaded ({one_line(error):.150}): {fix}.") from error
        if args.teacher != "reference":
            tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=args.trust_remote_code)
            own, other = trainer.tokenizer.get_vocab(), tokenizer.get_vocab()
            if own != other:
                sizes = f"{len(other)} tokens, and the policy another one of {len(own)}"
                fix = "take one of the policy's family, or save the policy's tokenizer to a folder that has none"
                raise ValueError(f"teacher={path!r} has a vocabulary of {sizes}: {fix}.")
        if (add_head := getattr(trl.trainer.utils, "add_fused_lm_head", None)) is not None:  # since TRL 1.16
            add_head(model, temperature=trainer.temperature, cast_lm_head_to_fp32=args.cast_lm_head_to_fp32)
        if trainer.is_deepspeed_enabled:
            return prepare_deepspeed(model, trainer.accelerator)
        if trainer.is_fsdp_enabled:
            return prepare_fsdp(model, trainer.accelerator)
        return trainer.accelerator.prepare_model(model.eval(), evaluation_mode=True)

    def _active(self) -> AbstractContextManager[Any]:
        """A context in which the model has the weights of the teacher."""
        model = self._trainer.accelerator.unwrap_model(self._model)
        if self._args.teacher == "reference" and isinstance(model, PeftModel):
            return use_adapter(model, "ref" if "ref" in model.peft_config else None)
        return nullcontext() if self._args.teacher_sync_steps is None else self._with_copy()

    @contextmanager
    def _with_copy(self) -> Iterator[None]:
        copied, own = self._copied(), [part.clone() for part in self._parts()]
        try:
            self._write(copied)
            yield
        finally:
            self._write(own)

    def _copied(self) -> list[torch.Tensor]:
        """The copy, taken of the policy as it is now if there is none. A moving average is kept in float32."""
        if self._copy is None:
            is_mean = self._args.teacher_update_rate < 1.0
            least = [torch.promote_types(x.dtype, torch.float32) if is_mean else x.dtype for x in self._parts()]
            self._copy = [x.to(dtype, copy=True) for x, dtype in zip(self._parts(), least, strict=True)]
        return self._copy

    def _parts(self) -> list[torch.Tensor]:
        """What this process holds of the trained parameters, with ZeRO-3 and FSDP2 its shards. Those that a pass left
        gathered are sharded again, so that the next pass gathers what is written."""
        for module in self._trainer.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        parts = []
        for p in (p for p in self._trainer.model.parameters() if p.requires_grad):
            if (shard := getattr(p, "ds_tensor", None)) is not None:
                p.partition()
            held = p.data if shard is None else shard.data
            parts.append(held.to_local() if isinstance(held, DTensor) else held)
        return parts

    def _write(self, values: list[torch.Tensor]) -> None:
        for part, value in zip(self._parts(), values, strict=True):
            part.copy_(value)

    @torch.no_grad()
    def on_step_end(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % args.teacher_sync_steps == 0:
            for kept, part in zip(self._copied(), self._parts(), strict=True):
                kept.lerp_(part.to(kept.dtype), args.teacher_update_rate)

    # Checkpoints

    def _file(self) -> str:
        """The file of this process. Without shards all processes hold the same, and the main process writes it."""
        is_shared = self._trainer.layout in ("plain", "ZeRO-1 or ZeRO-2")
        return _SHARED if is_shared else f"teacher_{self._trainer.processes.rank}.safetensors"

    def write_shard(self, folder: Path) -> None:
        """Writes what this process holds of the copy."""
        if self._trainer.processes.is_main or self._file() != _SHARED:
            parts = {str(i): part.cpu().contiguous() for i, part in enumerate(self._copied())}
            save_tensors(folder / self._file(), parts, state={"processes": self._trainer.processes.count})

    def state_dict(self, folder: Path) -> dict[str, Any]:
        """Nothing: each process has written its part."""
        return {}

    def load_state_dict(self, state: dict[str, Any], folder: Path) -> None:
        """Restores the copy. Raises `ValueError` if it has other shapes."""
        loaded, written = load_tensors(folder / self._file())
        parts, count = [loaded[str(i)] for i in range(len(loaded))], self._trainer.processes.count
        if self._file() != _SHARED and written["processes"] != count:
            raise ValueError(f"{self._file()} was written by {written['processes']} processes, and these are {count}")
        if [x.shape for x in parts] != [x.shape for x in self._parts()]:
            raise ValueError(f"{self._file()} holds other parameters than are trained now")
        self._copy = [x.to(part.device) for x, part in zip(parts, self._parts(), strict=True)]

    # The pass

    @torch.no_grad()
    def score(self, generation: GenerationBatch) -> None:
        """Adds the log-probabilities of the rows under the teacher, shape (B, T), to a batch. Collective."""
        batch, trainer, args = generation.batch, self._trainer, self._args
        model, contexts = self._model, self._contexts(generation)
        own, lengths = batch.prompt_ids, map(len, batch.completion_ids)
        is_known = [c is not None and len(c) + n <= self._limit for c, n in zip(contexts, lengths, strict=True)]
        # a row without a context takes part with a token of its prompt and no response, which cost next to nothing
        prompts = [context if known else ids[-1:] for context, ids, known in zip(contexts, own, is_known, strict=True)]
        data = self._with_prompts(batch, prompts, is_known)
        size = args.per_device_train_batch_size if trainer.model.training else args.per_device_eval_batch_size
        is_training, prefix = model.training, self._passes.prefix
        with self._engine.timed("teacher"), self._active():
            model.eval()  # without dropout, as a second model
            try:
                if prefix.may_pack and prefix.is_exact is None:  # whether packed rows are exact is found out once
                    parts = [{name: x[i : i + size] for name, x in data.items()} for i in range(0, len(own), size)]
                    self._passes.shared(parts)
                logp_t = self._passes.run(model, arguments_of(data), {"batch_size": size}, None)[0]
            finally:
                model.train(is_training)
        unknown = torch.tensor([not known for known in is_known], device=logp_t.device)
        batch.data[keys.TEACHER_LOGPS] = logp_t.masked_fill(unknown.unsqueeze(1), torch.nan)

    def _with_prompts(self, batch: Batch, prompts: list[list[int]], is_known: list[bool]) -> dict[str, torch.Tensor]:
        """The rows with other prompts, and without the response where `is_known` is false."""
        device, known = batch.written_t.device, batch.written_t.new_tensor(is_known).unsqueeze(1)
        return {
            keys.PROMPT_IDS: padded(prompts, value=self._engine.pad_token_id, side="left").to(device),
            keys.PROMPT_MASK: padded([[1] * len(ids) for ids in prompts], value=0, side="left").to(device),
            keys.COMPLETION_IDS: batch.data[keys.COMPLETION_IDS],
            keys.COMPLETION_MASK: batch.written_t * known,
        }
