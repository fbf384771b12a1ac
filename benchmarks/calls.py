"""What a call of attention costs beyond its computation: `OF_A_CALL` of `passes/flops.py`, on this machine's CPU.

    python benchmarks/calls.py [--repeats 20]

Rows that share prompts go forward and backward as plain rows and packed, in turns, through random models. What packed
passes take more than their share of the FLOPs is divided by the calls of attention in all layers. CPU time, one thread,
the median of each.
"""

import argparse
import statistics
import tempfile
import time

import torch
from stepping import random_model
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from trl_credit.passes.attention import tree_attention
from trl_credit.passes.flops import cost_of, rows_pass
from trl_credit.passes.prefix_layout import PromptRow, layout_of, packing_of


VOCABULARY = 512
# width and layers; prompt, response, responses to a prompt, prompts
SIZES = (
    (32, 2, 12, 20, 4, 4),
    (64, 2, 12, 20, 4, 4),
    (64, 2, 12, 20, 8, 1),
    (128, 2, 32, 64, 8, 1),
    (128, 2, 64, 64, 4, 2),
)


def measure(hidden: int, layers: int, prompt: int, response: int, group: int, prompts: int, *, repeats: int) -> str:
    """A row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        path = random_model(folder, hidden=hidden, layers=layers, vocabulary=VOCABULARY)
        model = AutoModelForCausalLM.from_pretrained(path)
    rows = [PromptRow(number, prompt, response) for number in range(prompts) for _ in range(group)]
    packing = packing_of(rows)
    layout = layout_of(packing, rows, widths=(prompt, response))
    ids = torch.randint(3, VOCABULARY, (len(rows), prompt + response))

    def plain() -> None:
        model(input_ids=ids, attention_mask=torch.ones_like(ids), logits_to_keep=response + 1).logits.sum().backward()

    def packed() -> None:
        positions = layout.source % (prompt + response)
        with tree_attention(model, branches=layout.packing.branches, position_ids=positions):
            given = {"input_ids": ids.flatten()[layout.source], "attention_mask": layout.mask}
            model(**given, logits_to_keep=layout.packing.kept + 1).logits.sum().backward()

    seconds: dict[str, list[float]] = {"plain": [], "packed": []}
    for repeat in range(repeats + 1):
        for call in (plain, packed):
            start = time.process_time()
            call()
            if repeat > 0:
                seconds[call.__name__].append(time.process_time() - start)
    cost, calls = cost_of(model.config), len(packing.branches.calls) * layers
    flops = cost.forward(rows_pass(len(rows), length=prompt + response, scored=response)), cost.forward(packing.cost)
    of_plain, of_packed = map(statistics.median, seconds.values())
    of_a_call = (of_packed - of_plain * flops[1] / flops[0]) / calls
    cells = [f"{hidden} × {layers}", f"{prompts} × {group}", f"{prompt}/{response}", f"{of_plain / of_packed:.2f}"]
    cells += [f"{flops[0] / flops[1]:.2f}", f"{(flops[0] - flops[1]) / calls:.1e}", f"{of_a_call * 1e6:.0f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    print("| width × layers | groups | prompt/response | time plain / packed | FLOPs | saved per call | µs per call |")
    print("|---" * 7 + "|")
    for sizes in SIZES:
        print(measure(*sizes, repeats=args.repeats), flush=True)


if __name__ == "__main__":
    main()
