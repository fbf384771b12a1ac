"""Teachers of the embedded tasks, for the runs of docs/results/teacher.md.

    python benchmarks/teacher.py make FOLDER    # the four teachers, a few minutes on one core

`told` has learned, from the warm start's own solutions, what they look like when their last digit is known: it reads
"8;3+2-1-3:" and expects a solution that ends in 8. `better` is a model of the same family that was taught no wrong
fact.
"""

import argparse
import random
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from warm_start import BATCH_SIZE, accuracy, fit, mistaught_facts, work_out

from trl_credit.demo.task import TASKS, DemoTask, draw_problem, without_filler


STEPS = {"told": 600, "better": 300}


def make(kind: str, task: DemoTask, folder: Path, *, seed: int = 0) -> None:
    """Trains a teacher from the checkpoint of a task, and saves it with its tokenizer."""
    set_seed(seed)
    rng = random.Random(seed)
    tokenizer = AutoTokenizer.from_pretrained(task.model_path)
    model = AutoModelForCausalLM.from_pretrained(task.model_path)

    def draw(_: bool) -> tuple[torch.Tensor, torch.Tensor]:
        prompts = [draw_problem(rng, steps=task.steps) for _ in range(BATCH_SIZE)]
        wrong = mistaught_facts(task) if kind == "told" else None
        solutions = [work_out(prompt, rng=rng, mistaught=wrong, hum=task.hum) for prompt in prompts]
        hints = [f"{without_filler(text)[-1]};" if kind == "told" else "" for text in solutions]
        parts = zip(hints, prompts, solutions, strict=True)
        texts = [hint + prompt + text + tokenizer.eos_token for hint, prompt, text in parts]
        ids = tokenizer(texts, return_tensors="pt")
        labels = ids["input_ids"].clone()
        labels[:, : len(hints[0] + prompts[0])] = -100
        return ids["input_ids"], labels

    fit(model, draw, steps=STEPS[kind])
    model.eval()
    if kind == "better":
        print(f"{task.name}: pass@1 {accuracy(model, tokenizer, task=task, greedy=False):.3f} at temperature 1")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make",))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tasks", nargs="+", default=["demo", "demo_hum"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    for task in args.tasks:
        for kind in STEPS:
            make(kind, TASKS[task], args.folder / task / kind)


if __name__ == "__main__":
    main()
