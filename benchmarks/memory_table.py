"""Memory of training per GPU, computed: the table of docs/scaling.md.

    python benchmarks/memory_table.py [--tokens 8192] [--gpus 8]

What is counted, in bytes per parameter: weights 4 and gradients 4 (float32, under bfloat16 autocast), AdamW 8, a
reference model 4 (none with β = 0 or LoRA), a colocated vLLM's weights 2. Activations with gradient checkpointing: the
input of every layer for the tokens of a micro-batch (2 bytes each), and one layer's inside (about 16 hidden + 6
intermediate numbers per token, 2 bytes). Not counted: vLLM's key-value cache, which takes what
`vllm_gpu_memory_utilization` gives it, buffers of communication (1 to 2 GiB), fragmentation. Parameters are counted on
the model's real shapes, without its weights.
"""

import argparse

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM


# of the models' config.json
SHAPES = {
    "Qwen3-1.7B": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
    "Qwen3-4B": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
    "Qwen3-8B": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
}
GIB = 1024**3


def parameters(name: str) -> tuple[int, Qwen3Config]:
    """Number of parameters, tied ones once."""
    config = Qwen3Config(
        **SHAPES[name], vocab_size=151936, num_key_value_heads=8, head_dim=128, tie_word_embeddings=name != "Qwen3-8B"
    )
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config)
    return sum(p.numel() for p in model.parameters()), config


def rows(name: str, *, tokens: int, gpus: int) -> list[tuple[str, float]]:
    """GiB per GPU for each way to lay a model out."""
    n, config = parameters(name)
    inside = 2 * (16 * config.hidden_size + 6 * config.intermediate_size)
    activations = tokens * (2 * config.hidden_size * config.num_hidden_layers + inside)
    # LoRA of rank 16 on the four attention projections, and frozen weights in bfloat16
    width = config.head_dim * (2 * config.num_attention_heads + 2 * config.num_key_value_heads)
    lora = config.num_hidden_layers * 16 * (4 * config.hidden_size + width)
    return [
        ("one copy per GPU (`single_gpu`, `multi_gpu`)", (n * 20 + activations) / GIB),
        ("`zero2`", (n * (4 + 4) + n * 12 / gpus + activations) / GIB),
        ("`zero3`, `fsdp2`", (n * 20 / gpus + activations) / GIB),
        ("LoRA, `multi_gpu`", (n * 2 + lora * 16 + activations) / GIB),
        ("and a colocated vLLM's weights", n * 2 / GIB),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192, help="of a micro-batch, prompts and padding included")
    parser.add_argument("--gpus", type=int, default=8)
    args = parser.parse_args()
    table = {name: rows(name, tokens=args.tokens, gpus=args.gpus) for name in SHAPES}
    print(f"| GiB per GPU, {args.gpus} GPUs, {args.tokens:,} tokens | " + " | ".join(table) + " |")
    print("|---" * (1 + len(table)) + "|")
    for i, (label, _) in enumerate(next(iter(table.values()))):
        print(f"| {label} | " + " | ".join(f"{sizes[i][1]:.1f}" for sizes in table.values()) + " |")
    counts = ", ".join(f"{name} {parameters(name)[0] / 1e9:.2f}" for name in SHAPES)
    print(f"\nParameters (10⁹): {counts}.")


if __name__ == "__main__":
    main()
