"""Random models that train on a CPU within seconds; the same seed and settings give the same weights."""

from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM


CHARACTERS = "0123456789+-=;abcdef"  # what the tests' tokenizers know, by `make_tokenizer`
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 2}
QWEN3 = {**LAYERS, "hidden_size": 32, "intermediate_size": 64, "num_key_value_heads": 1, "head_dim": 16}
# a tool in the prompt has some hundreds of characters
QWEN3 |= {"max_position_embeddings": 1024, "eos_token_id": 1, "pad_token_id": 0, "bos_token_id": None}


def tiny_qwen3(tokenizer: PreTrainedTokenizerFast, *, seed: int = 0, **changes: Any) -> Qwen3ForCausalLM:
    # far from uniform, so that log-probabilities and entropies differ from token to token
    spread = {"initializer_range": 0.2}
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), **{**QWEN3, **spread, **changes}))


def tiny_qwen3_moe(tokenizer: PreTrainedTokenizerFast, *, seed: int = 0, **changes: Any) -> Qwen3MoeForCausalLM:
    """Of four experts, two of which see a token."""
    experts = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.5}
    torch.manual_seed(seed)
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=len(tokenizer), **{**QWEN3, **experts, **changes}))


def tiny_llava(
    tokenizer: PreTrainedTokenizerFast, *, image_token: str = "<image>", image_size: int = 16, seed: int = 0
) -> transformers.LlavaForConditionalGeneration:
    """Of patches of 8 by 8; its text model is a Qwen3."""
    vision = {**LAYERS, "hidden_size": 16, "intermediate_size": 32, "image_size": image_size, "patch_size": 8}
    torch.manual_seed(seed)
    return transformers.LlavaForConditionalGeneration(
        transformers.LlavaConfig(
            vision_config=transformers.CLIPVisionConfig(**vision),
            text_config=Qwen3Config(vocab_size=len(tokenizer), **QWEN3),
            image_token_id=tokenizer.convert_tokens_to_ids(image_token),
        )
    )
