"""What a forward pass yields besides TRL's results: π(EOS) at each token and hidden states, read by hooks, and
the entropy of the reference model, which TRL can compute in the pass that it makes for the KL term.

No pass is added, and no tensor of the size of the vocabulary is made. Hooks exist only while a pass that is read runs,
so the layers that gradient checkpointing repeats in the backward pass run none.
"""

from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Any

import torch
from peft import PeftModel
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from trl import GRPOTrainer
from trl.trainer import utils as trl_utils
from trl.trainer.utils import maybe_gather_lm_head_ctx

from ..loss.loss_pass import LossPass
from .engine import SamplePass
from .engine_calls import temporarily


_CHUNK = 1024  # tokens whose hidden states are in float32 at the same time
# what a model may do to the product of hidden states and output layer
_SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier", "final_logit_softcapping")


class _Hidden:
    """The last layer's states from which the tokens were sampled, shape (B, T, H), with their graph.

    A reading is of one forward pass over rows of `ids`, whose last `width` tokens are scored.
    """

    def __init__(self, trainer: GRPOTrainer, model: PreTrainedModel, ids: torch.Tensor, width: int) -> None:
        self._trainer, self._model, self._ids, self._width = trainer, model, ids, width
        self._parts: list[torch.Tensor] = []  # TRL may cut a batch into several calls

    def see(self, module: nn.Module, args: tuple, output: Any) -> None:
        """Reads what a call of the transformer returned, as a hook of it."""
        self._parts.append(self._scored(output[0]))

    def _scored(self, x_t: torch.Tensor) -> torch.Tensor:
        return x_t[:, :-1][:, -self._width :]

    def result(self, logp_t: torch.Tensor) -> torch.Tensor:
        """Shape (B, T, …), given the log-probabilities of the pass, shape (B, T)."""
        return torch.cat(self._parts)


class _EosProbs(_Hidden):
    """π(EOS) where each token was sampled, at sampling temperature, shape (B, T).

    log π(EOS) is the token's log-probability, which TRL computes, plus the difference of their two logits. So the rows
    of the output layer for both suffice, and hidden states: no logits of the whole vocabulary. With several end tokens
    it is the sum of their probabilities. With ZeRO-3 the output layer is gathered, and with FSDP2 it may be: a
    collective call of each pass, as TRL makes one itself.
    """

    @torch.no_grad()
    def see(self, module: nn.Module, args: tuple, output: Any) -> None:
        hidden = self._scored(output[0])
        first = sum(map(len, self._parts))
        chosen = self._ids[first : first + len(hidden), -self._width :]
        head = self._model.get_output_embeddings()
        weight, bias = head.weight, head.bias
        if isinstance(weight, DTensor):
            weight, bias = weight.full_tensor(), None if bias is None else bias.full_tensor()
        # before TRL 1.16 only the tokenizer's token ends a response
        ends = getattr(self._trainer, "eos_token_ids", None) or [self._trainer._tokenizer.eos_token_id]

        def logits(states: torch.Tensor, ids: torch.Tensor | int) -> torch.Tensor:
            logit = (states * weight[ids]).sum(-1)
            return (logit if bias is None else logit + bias[ids]) / self._trainer.temperature

        gaps = []  # log π(EOS) − log π(token)
        with maybe_gather_lm_head_ctx(weight, bias):
            for part, ids in zip(hidden.flatten(0, 1).split(_CHUNK), chosen.flatten().split(_CHUNK), strict=True):
                states = part.to(weight.device, torch.promote_types(part.dtype, torch.float32))
                gaps.append(torch.stack([logits(states, end) for end in ends]).logsumexp(0) - logits(states, ids))
        self._parts.append(torch.cat(gaps).view(chosen.shape))

    def result(self, logp_t: torch.Tensor) -> torch.Tensor:
        return (logp_t.detach() + super().result(logp_t).to(logp_t.device)).exp()


# by the attribute of `LossPass` that keeps the result
_READINGS = {"eos_probs": _EosProbs, "hidden_t": _Hidden}


class Probes:
    """Decides which passes are read, by `td_upper_bound`, `selector` and what the algorithm needs.

    Args:
        trainer ([`~trl.GRPOTrainer`]):
            With its model.
        needs (collection of `str`):
            Of the algorithm.

    Raises:
        ValueError: the model does not have what a hook would read.
    """

    def __init__(self, trainer: GRPOTrainer, needs: Collection[str]) -> None:
        self._trainer, self._names, self._adds_entropy = trainer, [], False
        self._reads_hidden = "hidden" in needs
        if self._reads_hidden and trainer.args.torch_compile:
            raise ValueError(f"credit={trainer.args.credit!r} reads hidden states by a hook: set torch_compile=False.")
        model, reference = self._inner(trainer.model), getattr(trainer, "ref_model", None)
        self._reads_reference = trainer.args.selector == "entropy_reference"
        add_head = getattr(trl_utils, "add_fused_lm_head", None)  # before TRL 1.16 any pass can compute entropies
        if self._reads_reference and reference is not None and add_head is not None:
            # an output layer that computes entropies too, in tiles, which TRL's own does not
            cast, outputs = trainer.args.cast_lm_head_to_fp32, ("log_probs", "entropy")
            add_head(self._inner(reference), trainer.temperature, cast_lm_head_to_fp32=cast, outputs=outputs)
        if trainer.args.td_upper_bound and (problem := _head_problem(model)) is not None:
            raise ValueError(f"td_upper_bound=True {problem}: leave td_upper_bound out, or use another model.")

    def run(self, passes: Callable[[], tuple], owner: LossPass | SamplePass | None) -> tuple:
        """The result of `passes`, which calls `read`. What hooks found becomes attributes of `owner`."""
        is_needed = {"eos_probs": self._trainer.args.td_upper_bound, "hidden_t": self._reads_hidden}
        names = [name for name in is_needed if is_needed[name] and isinstance(owner, LossPass)]
        adds_entropy = self._reads_reference and isinstance(owner, SamplePass) and owner.rewards_per_func is None
        with temporarily(self, _names=names, _adds_entropy=adds_entropy):
            output = passes()
        if adds_entropy:  # of TRL's passes before the rewards the last is that of the reference, so it stays
            owner.entropy_t = output[1]
        own = len(output) - len(names)
        for name, reading_t in zip(names, output[own:], strict=True):
            setattr(owner, name, reading_t)
        return output[:own]

    def read(self, forward: Callable[..., tuple], model: nn.Module, *args: Any, **kwargs: Any) -> tuple:
        """TRL's forward pass: its results, and behind them a tensor of shape (B, T, …) for each thing asked for."""
        kwargs |= {"compute_entropy": True} if self._adds_entropy else {}
        if not self._names:
            return forward(model, *args, **kwargs)
        named = dict(zip(("input_ids", "attention_mask", "logits_to_keep"), args, strict=False)) | kwargs
        inner = self._inner(model)
        of_pass = self._trainer, inner, named["input_ids"], named["logits_to_keep"]
        readings = [_READINGS[name](*of_pass) for name in self._names]
        with ExitStack() as hooks:
            for reading in readings:
                hooks.enter_context(inner.base_model.register_forward_hook(reading.see))
            output = forward(model, *args, **kwargs)
        return (*output, *(reading.result(output[0]) for reading in readings))

    def _inner(self, model: nn.Module) -> PreTrainedModel:
        """The transformers model inside of wrappers and adapters."""
        model = self._trainer.accelerator.unwrap_model(model)
        return model.get_base_model() if isinstance(model, PeftModel) else model


def _head_problem(model: PreTrainedModel) -> str | None:
    """Why π(EOS) cannot be computed from hidden states and rows of the output layer; `None` if it can."""
    head, text = model.get_output_embeddings(), model.config.get_text_config()
    if not isinstance(head, nn.Linear) or not head.weight.is_floating_point() or model.base_model is model:
        return f"needs a transformer and an output layer without adapter or quantization, unlike {type(model).__name__}"
    for name in _SCALES:
        if (value := getattr(text, name, None)) not in (None, 1.0):
            return f"needs logits that are products with the output layer, and {text.model_type!r} has {name}={value}"
    return None
