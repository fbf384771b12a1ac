"""Teachers of the embedded tasks, for docs/results/demos.md.

    python benchmarks/teacher.py make FOLDER     # the teachers, ten minutes on one core
    python benchmarks/teacher.py share FOLDER    # where they differ from the policy, a minute: shares.json

`told` has learned, from the warm start's own solutions, what they look like when their last digit is known: it reads
"8;3+2-1-3:" and expects a solution that ends in 8. `better` is a model of the same family that was taught no wrong
fact.
"""

import argparse
import json
import random
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from pages import RESULTS
from told import told, told_wrong
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from warm_start import BATCH_SIZE, accuracy, fit, mistaught_facts, work_out

from trl_credit import OPDConfig, OPDTrainer
from trl_credit.credit.teacher import teacher_gap
from trl_credit.demo import demo_reward, demo_settings
from trl_credit.demo.task import TASKS, DemoTask, demo_dataset, draw_problem, without_filler
from trl_credit.loss import keys
from trl_credit.support.files import write_atomically


STEPS = {"told": 1000, "better": 300}


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
        if kind == "told":
            # three quarters of the rows learn results alone, the only tokens that an answer says much of
            results = ids["input_ids"].roll(1, -1) == tokenizer.convert_tokens_to_ids("=")
            results[: BATCH_SIZE // 4] = True
            labels = labels.masked_fill(~results, -100)
        return ids["input_ids"], labels

    fit(model, draw, steps=STEPS[kind])
    model.eval()
    if kind == "better":
        print(f"{task.name}: pass@1 {accuracy(model, tokenizer, task=task, greedy=False):.3f} at temperature 1")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def digits_of(text: str) -> list[tuple[int, bool]]:
    """The places of the results in a worked solution, and whether each is right given its own step."""
    steps = re.finditer(r"(\d)([+-])(\d)[a-z]*=(\d)", text)
    return [(m.start(4), (int(m[1]) + int(m[2] + m[3])) % 10 == int(m[4])) for m in steps]


def share(task: DemoTask, folder: Path) -> dict[str, dict[str, float]]:
    """Where teachers find tokens more or less probable than the policy at the start, over 512 responses: shares of
    |d|, and means of d in nats."""
    shares = {}
    for kind, context in (("told", told), ("told", told_wrong), ("better", None)):
        settings = demo_settings(OPDConfig, task=task, teacher=str(folder / task.name / kind), teacher_prompt=context)
        settings |= {"output_dir": str(folder / "unused"), "report_to": "none", "per_device_train_batch_size": 512}
        data = demo_dataset(64, seed=5, task=task)
        trainer = OPDTrainer(task.model_path, demo_reward, OPDConfig(**settings), train_dataset=data)
        torch.manual_seed(0)
        trainer.model.train()
        batch = trainer.make_batch([data[i // 8] for i in range(512)]).batch
        trainer.engine.fill_old_logps(batch)
        gap_t = teacher_gap(batch.data[keys.TEACHER_LOGPS], logp_t=batch.old_logp_t, mask_t=batch.mask_t)
        rows: dict[str, list[float]] = defaultdict(list)
        for gap, ids, reward in zip(gap_t, batch.completion_ids, batch.rewards.tolist(), strict=True):
            if places := digits_of(trainer.engine.decode(ids)):
                size, last = gap.abs(), places[-1][0]
                rows["tokens"].append(len(places) / len(ids))
                rows["results"].append((size[[k for k, _ in places]].sum() / size.sum()).item())
                rows["last"].append((size[last] / size.sum()).item())
                rows["end right" if reward else "end wrong"].append(gap[last].item())
                for k, is_right in places[:-1]:
                    rows["step right" if is_right else "step wrong"].append(gap[k].item())
        name = f"{task.name}/{'better' if context is None else context.__name__}"
        shares[name] = {key: round(float(np.mean(values)), 3) for key, values in sorted(rows.items())}
        print(name, shares[name], flush=True)
    return shares


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "share"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tasks", nargs="+", default=["demo", "demo_hum"])
    parser.add_argument("--kinds", nargs="+", default=[*STEPS])
    args = parser.parse_args()
    torch.set_num_threads(1)
    for task in args.tasks if args.what == "make" else ():
        for kind in args.kinds:
            make(kind, TASKS[task], args.folder / task / kind)
    if args.what == "share":
        shares = {name: row for task in args.tasks for name, row in share(TASKS[task], args.folder).items()}
        write_atomically(RESULTS / "teacher" / "shares.json", json.dumps(shares, indent=1) + "\n")


if __name__ == "__main__":
    main()
