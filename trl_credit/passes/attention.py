"""Attention over packed rows.

Tree attention: a row holds branches of a tree, each of which sees only itself and its ancestors. Packed sequences: rows
one after the other, for attention whose kernels take sequences of unequal lengths.
"""

import copy
import functools
import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import trl
from packaging.version import Version
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from ..loss import keys
from .branches import Branches, BranchLayout, Piece, branches_of
from .flops import cost_of, cost_of_calls


BRANCHES = "visible_branches"  # keyword argument of each layer's attention
# implementations whose kernels take packed sequences
KERNELS = ("flash_attention_2", "flash_attention_3", "flash_attention_4")
_TAKES_BRANCHES: dict[tuple[type, str], bool] = {}  # by class and configuration


def visible_mask(visible_until: torch.Tensor, *, mask_t: torch.Tensor) -> torch.Tensor:
    """Token j sees token i if i ≤ j < visible_until_i, and itself. Shapes (B, L) → (B, L, L), bool.

    With branches laid out depth first, the tokens that see token i are contiguous: the rest of its segment and all
    segments below it. So one number per token describes a tree.
    """
    position = torch.arange(visible_until.size(1), device=visible_until.device)
    j, i = position.view(1, -1, 1), position.view(1, 1, -1)
    return (i == j) | ((i <= j) & (j < visible_until.unsqueeze(1)) & mask_t.bool().unsqueeze(1))


def takes_branches(model: nn.Module) -> bool:
    """Whether every layer of a model uses transformers' `sdpa` attention, and passes keyword arguments on to it.

    Tested once per class and configuration, with a one-layer model on the `meta` device.
    """
    inner = _transformer(model)
    if inner.config.get_text_config()._attn_implementation != "sdpa" or not inner._supports_attention_backend:
        return False
    kind = type(inner), inner.config.to_json_string()
    if kind not in _TAKES_BRANCHES:
        _TAKES_BRANCHES[kind] = _passes_branches_on(inner)
    return _TAKES_BRANCHES[kind]


def _passes_branches_on(model: PreTrainedModel) -> bool:
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = 1
    for name in ("layer_types", "mlp_layer_types"):
        if getattr(config, name, None):
            setattr(config, name, getattr(config, name)[:1])
    tree = Branches([2, 2, 2], [Piece((), [(0,)]), Piece((0,), [(1,), (2,)])])
    _install()
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"), torch.no_grad():
            # in 16 bits, or kernels of experts have no shapes
            layer = type(model)(config).to(torch.bfloat16).eval()
            ids = torch.ones(1, 6, dtype=torch.long)
            arguments = _arguments(tree, ids)
            layer(input_ids=ids, position_ids=ids, use_cache=False, **arguments)
    except Exception:  # a custom model may raise anything
        return False
    return arguments[BRANCHES].cache_info().currsize > 0  # attention has asked for it


def _arguments(branches: Branches, mask_t: torch.Tensor) -> dict[str, Any]:
    """Arguments of a pass over branches.

    Its layers get the layout by device, which the first layer there makes: places and masks last as long as the pass.
    The mask has an impossible shape, so a model that drops the branches on the way fails loudly.
    """
    never = mask_t.new_zeros((1, 1, 2, mask_t.size(1) + 2), dtype=torch.bool)
    return {"attention_mask": never, BRANCHES: functools.cache(functools.partial(BranchLayout, branches))}


def _transformer(model: nn.Module) -> PreTrainedModel:
    """The transformers model inside a wrapped one."""
    return next(module for module in model.modules() if isinstance(module, PreTrainedModel))


def _install() -> None:
    """Replaces transformers' `sdpa` by a function that also handles branches. Calls without branches are unchanged.

    The replacement is permanent, because gradient checkpointing repeats passes later.
    """
    plain = AttentionInterface()["sdpa"]
    if hasattr(plain, "takes_branches"):
        return

    @functools.wraps(plain)
    def sdpa(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        if (layout := kwargs.pop(BRANCHES, None)) is None:
            return plain(module, query, key, value, attention_mask, **kwargs)
        if attention_mask is None or attention_mask.shape[-2:] != (2, query.size(2) + 2):
            raise RuntimeError("a layer has made its own attention mask, which would be lost")
        return layout(query.device).attention(functools.partial(plain, module), query, key, value, **kwargs), None

    sdpa.takes_branches = True
    AttentionInterface.register("sdpa", sdpa)


def tree_attention(
    model: nn.Module,
    *,
    branches: Branches | None = None,
    position_ids: torch.Tensor | None = None,
    is_compiled: bool = False,
) -> AbstractContextManager:
    """A context in which forward passes treat rows as branches of trees.

    Args:
        model (`nn.Module`):
            The model, which may be wrapped.
        branches ([`Branches`], *optional*):
            Defaults to those that the `token_type_ids` of each pass describe. A model that does not take branches, or
            for which a dense mask costs less, then gets a dense mask.
        position_ids (`torch.Tensor`, *optional*):
            With `branches`, shape (B, L). Else it is the number of tokens that each token sees before itself, which is
            its position in its own unpadded row: prompt and response.
        is_compiled (`bool`, *optional*, defaults to `False`):
            Whether the model is compiled. It would be compiled again for other branches.
    """
    may_go_in_pieces = branches is not None or (not is_compiled and takes_branches(model))

    def replace(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        mask_t = kwargs["attention_mask"]
        if branches is not None:
            return args, kwargs | {"position_ids": position_ids} | _arguments(branches, mask_t)
        until = kwargs.pop(keys.VISIBLE_UNTIL)
        own = branches_of(until, mask_t=mask_t) if may_go_in_pieces else None
        if own is None or not _is_worth_it(module, own, mask_t):
            return args, kwargs | _with_mask(module, until, mask_t)
        return args, kwargs | {"position_ids": own.positions(mask_t.shape).to(mask_t.device)} | _arguments(own, mask_t)

    if may_go_in_pieces:
        _install()
    return model.register_forward_pre_hook(replace, with_kwargs=True)


def _is_worth_it(model: nn.Module, branches: Branches, mask_t: torch.Tensor) -> bool:
    """Whether pieces cost less than attention over whole rows."""
    config = _transformer(model).config
    rows, length = mask_t.shape
    cost, saved = cost_of(config), rows * length**2 - branches.squares()
    return cost is None or cost.attention * saved >= cost_of_calls(config, mask_t.device.type, len(branches.calls) - 1)


def _with_mask(module: nn.Module, visible_until: torch.Tensor, mask_t: torch.Tensor) -> dict[str, Any]:
    """Arguments for a pass with a dense mask."""
    seen = visible_mask(visible_until, mask_t=mask_t)
    mask = seen.unsqueeze(1)
    # eager attention adds its mask to the scores
    if _transformer(module).config.get_text_config()._attn_implementation != "sdpa":
        dtype = next(module.parameters()).dtype
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
    return {"position_ids": seen.sum(-1) - 1, "attention_mask": mask}


def branch_problem(config: Any, *, known: tuple[str, ...] = ("sdpa", "eager")) -> str | None:
    """Why a model cannot have tree attention with one of the `known` implementations; `None` if it can."""
    text = config.get_text_config()
    if text._attn_implementation not in known:
        what = f"needs attn_implementation={' or '.join(map(repr, known))}, and has {text._attn_implementation!r}"
        return f"{what}: set model_init_kwargs={{'attn_implementation': 'sdpa'}}"
    slides = getattr(text, "sliding_window", None) is not None and getattr(text, "use_sliding_window", True)
    kinds = set(getattr(text, "layer_types", None) or ["sliding_attention" if slides else "full_attention"])
    if kinds != {"full_attention"}:
        return f"needs full attention in every layer, and {text.model_type!r} has {', '.join(sorted(kinds))}"
    return None


def takes_packed_sequences(model: nn.Module) -> bool:
    """Whether a model passes the lengths of sequences on, and TRL computes no logits of the prompts between them."""
    parameters = inspect.signature(type(model).forward).parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    return takes_all and Version(trl.__version__) >= Version("1.14")


def sequence_attention(model: nn.Module, lengths: Sequence[int], device: torch.device) -> AbstractContextManager:
    """A context in which forward passes over one row treat it as sequences of these lengths (tokens).

    Kernels get the lengths. Other attention of transformers finds the sequences by their positions, which start at 0.
    """
    bounds = torch.tensor([0, *lengths], device=device).cumsum(0).int()
    positions = torch.cat([torch.arange(n) for n in lengths]).to(device)
    arguments = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
    arguments |= {"max_length_q": max(lengths), "max_length_k": max(lengths)}
    arguments |= {"position_ids": positions.unsqueeze(0), "attention_mask": None}
    return model.register_forward_pre_hook(lambda module, args, kwargs: (args, kwargs | arguments), with_kwargs=True)
