"""Makes the embedded checkpoint from scratch:  python benchmarks/warm_start.py --output FOLDER

Supervised learning in two halves. The first half has right solutions, until every single step is learnt. In the second,
18 of the 60 facts are wrong more often than right, so that the model prefers the wrong digit. 0.17 of its greedy and
0.29 of its sampled responses are right, which leaves reinforcement learning room and signal. It takes about a minute on
two CPU cores; a seed gives the same checkpoint again on the same machine.

`--task demo_hum` makes the checkpoint of the task with filler, in `--steps 1200`.
"""

import argparse
import random
from collections.abc import Callable

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tqdm.auto import trange
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, set_seed

from trl_credit.demo.task import (
    DEMO,
    HUM,
    MAX_OPERAND,
    OTHER_HUMS,
    TASKS,
    DemoTask,
    demo_dataset,
    demo_reward,
    draw_problem,
)


LEARNING_RATE = 2e-3
BATCH_SIZE = 128
MISTAUGHT = {"demo": 18, "demo_hum": 30}  # facts, by task
WRONG_RATE = 0.6  # of a mis-taught fact
OTHER_HUM_RATE = 0.05  # of filler
CHARACTERS = "0123456789+-=;:"


def mistaught_facts(task: DemoTask = DEMO, *, seed: int = 0) -> dict[str, int]:
    """The facts, such as "3+2", that the warm start teaches wrongly, and the wrong digit of each."""
    rng = random.Random(seed)
    facts = [f"{digit}{sign}{operand}" for digit in range(10) for sign in "+-" for operand in range(1, MAX_OPERAND + 1)]
    wrong = rng.sample(facts, MISTAUGHT[task.name])
    return {fact: (int(fact[0]) + int(fact[1:]) + rng.randint(1, 9)) % 10 for fact in wrong}


def work_out(
    prompt: str, *, rng: random.Random | None = None, mistaught: dict[str, int] | None = None, hum: int = 0
) -> str:
    """The worked solution of `prompt`; the facts in `mistaught` are wrong with probability `WRONG_RATE`.

    A wrong result is carried on, as a model would carry it on. Before each digit and after the last come `hum` filler
    tokens, with other letters among them if `rng` is given.
    """
    running, steps = int(prompt[0]), []
    for sign, operand in zip(prompt[1:-1:2], prompt[2:-1:2], strict=True):
        fact = f"{running}{sign}{operand}"
        running = _result(fact)
        if mistaught is not None and fact in mistaught and rng.random() < WRONG_RATE:
            running = mistaught[fact]
        steps.append(f"{fact}{_hum(hum, rng)}={running}")
    return ";".join(steps) + _hum(hum, rng)


def _hum(length: int, rng: random.Random | None) -> str:
    if rng is None:
        return HUM * length
    return "".join(rng.choice(OTHER_HUMS) if rng.random() < OTHER_HUM_RATE else HUM for _ in range(length))


def _result(fact: str) -> int:
    return (int(fact[0]) + int(fact[1:])) % 10


def make_tokenizer(characters: str = CHARACTERS) -> PreTrainedTokenizerFast:
    """One token per character; anything else is `<unk>`."""
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", "<unk>", *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()  # otherwise decoding puts spaces between the characters
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A Qwen3 with 0.15M parameters and random weights."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,  # the smallest that vLLM supports on CPUs
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def accuracy(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, *, task: DemoTask, greedy: bool, n: int = 1024
) -> float:
    """pass@1, greedy or at temperature 1, on `n` problems with another seed than in training."""
    data = demo_dataset(n, seed=1, task=task)
    inputs = tokenizer(list(data["prompt"]), return_tensors="pt", padding=True, return_token_type_ids=False)
    sampling = {"do_sample": False} if greedy else {"do_sample": True, "top_k": 0}
    with torch.no_grad():
        ids = model.generate(**inputs, max_new_tokens=task.max_completion_length, **sampling)
    texts = tokenizer.batch_decode(ids[:, inputs["input_ids"].size(1) :], skip_special_tokens=True)
    return sum(demo_reward(texts, data["answer"])) / n


def fit(model: Qwen3ForCausalLM, draw: Callable[[bool], tuple[torch.Tensor, torch.Tensor]], *, steps: int) -> None:
    """Supervised learning for `steps` optimizer steps. `draw` makes token ids and labels, in the second half with the
    wrong facts."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1)
    with trange(steps, desc="warm start") as bar:
        for step in bar:
            ids, labels = draw(step >= steps // 2)
            loss = model(ids, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if step % 20 == 19:
                bar.set_postfix(loss=f"{loss.item():.3f}")


def train(task: DemoTask, steps: int, seed: int) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """Warm-starts a model for `steps` optimizer steps, the second half of them with the wrong facts."""
    set_seed(seed)
    rng = random.Random(seed)
    tokenizer = make_tokenizer(CHARACTERS + (HUM + OTHER_HUMS if task.hum else ""))
    model = make_model(tokenizer)

    def draw(wrongly: bool) -> tuple[torch.Tensor, torch.Tensor]:
        prompts = [draw_problem(rng, steps=task.steps) for _ in range(BATCH_SIZE)]
        mistaught = mistaught_facts(task) if wrongly else None
        solutions = [work_out(prompt, rng=rng, mistaught=mistaught, hum=task.hum) for prompt in prompts]
        texts = [prompt + text + tokenizer.eos_token for prompt, text in zip(prompts, solutions, strict=True)]
        ids = tokenizer(texts, return_tensors="pt")["input_ids"]  # all have the same length
        labels = ids.clone()
        labels[:, : len(prompts[0])] = -100
        return ids, labels

    fit(model, draw, steps=steps)
    return model, tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, help="folder to write the checkpoint to")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--task", default="demo", choices=TASKS)
    args = parser.parse_args()
    task = TASKS[args.task]
    torch.set_num_threads(1)  # threads cost more than they gain for tensors this small
    model, tokenizer = train(task, args.steps, args.seed)
    model.eval()
    greedy, sampled = (accuracy(model, tokenizer, task=task, greedy=g) for g in (True, False))
    if not (0.05 <= greedy <= 0.25 and 0.2 <= sampled <= 0.35):
        problem = f"pass@1 is {greedy:.3f} greedy and {sampled:.3f} sampled, not in [0.05, 0.25] and [0.2, 0.35]"
        raise SystemExit(f"{problem}: nothing is written. Try another seed, or more steps.")
    model.save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)
    scores = f"pass@1 {greedy:.3f} greedy and {sampled:.3f} sampled"
    print(f"{model.num_parameters():,} parameters, {scores}, written to {args.output}")


if __name__ == "__main__":
    main()
