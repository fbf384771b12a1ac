"""Makes the embedded agent from scratch:  python benchmarks/agent_warm_start.py --output FOLDER

Supervised learning in two halves, as in `warm_start.py`, on conversations with a calculator that are rendered by the
agent's own chat template. In the second half 14 of the 24 facts are wrong more often than right. 0.27 of its sampled
conversations end in the right answer. It takes two minutes on two CPU cores; a seed gives the same checkpoint again on
the same machine.
"""

import argparse
import random
from collections.abc import Callable
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM, set_seed
from transformers.utils import get_json_schema
from warm_start import WRONG_RATE, fit, make_model

from trl_credit.demo.agent import (
    LETTERS,
    MEANINGS,
    Calculator,
    Call,
    agent_dataset,
    agent_reward,
    draw_problem,
    right_call,
)


BATCH_SIZE = 64
MISTAUGHT = 14  # facts, of 24
LONGEST = 16  # messages of a conversation
TAGS = ["<tools>", "<user>", "<assistant>", "<tool>", "<call>", "</call>"]
WORDS = ["calc", " op=", " x="]  # one token each, so that a call is short
CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz" + LETTERS + " +-=(),.:'{}"
# An assistant's turn alone ends in <eos>. Tools of a name and parameters:  <tools>calc(op,x)
CHAT_TEMPLATE = """\
{%- if tools %}{{ '<tools>' }}
{%- for tool in tools %}
{{- tool.function.name ~ '(' ~ tool.function.parameters.properties | join(',') ~ ')' }}
{%- endfor %}{% endif %}
{%- for message in messages %}
{{- '<' ~ message.role ~ '>' ~ (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<call>' ~ call.function.name }}
{%- for name, value in call.function.arguments.items() %}{{ ' ' ~ name ~ '=' ~ value }}{% endfor %}
{{- '</call>' }}
{%- endfor %}
{%- if message.role == 'assistant' %}{{ eos_token }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<assistant>",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<call>(?P<name>\w+)(?=[^<]*</call>)",
            "close": "</call>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r" (?P<key>\w+)=(?P<value>[^\s<]*)",
                "value_parser": {"name": "json", "args": {"allow_non_json": True}},
            },
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"close": "<eos>", "content": "text"},
    },
}


def mistaught_facts(*, seed: int = 0) -> dict[tuple[str, int], Call]:
    """The facts (letter, parity) that the warm start teaches wrongly, and the wrong call of each."""
    rng = random.Random(seed)
    others = [Call(op, x) for op in "+-" for x in range(1, 5)]
    facts = rng.sample(sorted(MEANINGS), MISTAUGHT)
    return {fact: rng.choice([call for call in others if call != MEANINGS[fact]]) for fact in facts}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character and per tag; anything else is `<unk>`. It has a chat template and parses responses."""
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", "<unk>", *TAGS, *WORDS, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()  # otherwise decoding puts spaces between the characters
    agent_tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=TAGS,
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
    )
    agent_tokenizer.add_tokens(WORDS)
    agent_tokenizer.response_template = RESPONSE_TEMPLATE
    return agent_tokenizer


def encode(tokenizer: PreTrainedTokenizerFast, conversations: list[list[dict]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids of conversations that have the same length, and labels: -100 outside of the model's turns."""
    tools = [get_json_schema(Calculator.calc)]
    texts = tokenizer.apply_chat_template(conversations, tools=tools, tokenize=False)
    ids = tokenizer(texts, return_tensors="pt", add_special_tokens=False)["input_ids"]
    assistant, eos = (ids == tokenizer.convert_tokens_to_ids(token) for token in ("<assistant>", "<eos>"))
    # open from the token after <assistant> to <eos>
    is_open = (assistant.cumsum(1) - assistant.long()) > (eos.cumsum(1) - eos.long())
    return ids, ids.masked_fill(~is_open, -100)


def work_out(problem: str, choose: Callable[[str, int], Call] = right_call) -> list[dict[str, Any]]:
    """The conversation that solves a problem: its prompt, calls and results in turn, and the answer.

    `choose` says which call to make for a letter and a value. A wrong one is carried on, as a model would carry it on.
    """
    messages: list[dict[str, Any]] = [{"role": "user", "content": problem}]
    calculator, shown = Calculator(), problem[-1]
    calculator.reset(messages)
    for letter in problem[:-1]:
        call = choose(letter, int(shown))
        shown = calculator.calc(*call)
        function = {"name": "calc", "arguments": call._asdict()}
        calls = [{"type": "function", "function": function}]
        messages.append({"role": "assistant", "content": letter, "tool_calls": calls})
        messages.append({"role": "tool", "name": "calc", "content": shown})
    return [*messages, {"role": "assistant", "content": shown}]


def half_wrong(rng: random.Random) -> Callable[[str, int], Call]:
    """Chooses the wrong call of a mis-taught fact with probability `WRONG_RATE`, else the right call."""
    wrong = mistaught_facts()

    def choose(letter: str, value: int) -> Call:
        fact = (letter, value % 2)
        return wrong[fact] if fact in wrong and rng.random() < WRONG_RATE else right_call(letter, value)

    return choose


def train(steps: int, seed: int) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """Warm-starts an agent for `steps` optimizer steps, the second half of them with the wrong facts."""
    set_seed(seed)
    rng = random.Random(seed)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)

    def draw(wrongly: bool) -> tuple[torch.Tensor, torch.Tensor]:
        choose = half_wrong(rng) if wrongly else right_call
        return encode(tokenizer, [work_out(draw_problem(rng), choose) for _ in range(BATCH_SIZE)])

    fit(model, draw, steps=steps)
    return model, tokenizer


def accuracy(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, *, greedy: bool, n: int = 1024) -> float:
    """Mean reward, greedy or at temperature 1, on `n` problems with another seed than in training.

    A plain loop over turns. tests/demo/test_agent.py measures the reward in TRL's own loop.
    """
    data = agent_dataset(n, seed=1)
    sampling = {"do_sample": False} if greedy else {"do_sample": True, "top_k": 0}
    conversations, calculators = [list(prompt) for prompt in data["prompt"]], [Calculator() for _ in range(n)]
    for calculator, prompt in zip(calculators, data["prompt"], strict=True):
        calculator.reset(prompt)
    tools, running = [get_json_schema(Calculator.calc)], list(range(n))
    while running:
        chats = [conversations[i] for i in running]
        texts = tokenizer.apply_chat_template(chats, tools=tools, tokenize=False, add_generation_prompt=True)
        inputs = tokenizer(
            texts, return_tensors="pt", padding=True, add_special_tokens=False, return_token_type_ids=False
        )
        with torch.no_grad():
            ids = model.generate(**inputs, max_new_tokens=24, **sampling)[:, inputs["input_ids"].size(1) :]
        calling = []
        for i, row in zip(running, ids, strict=True):
            text = tokenizer.decode(row).partition(tokenizer.eos_token)[0]
            message = tokenizer.parse_response(text, prefix="", tools=tools)
            conversations[i].append({"role": "assistant", "content": "", **message})
            if not message.get("tool_calls") or len(conversations[i]) > LONGEST:
                continue
            calling.append(i)
            for call in message["tool_calls"]:
                try:
                    shown = calculators[i].calc(**call["function"]["arguments"])
                except (TypeError, ValueError) as error:
                    shown = str({"error": str(error)})
                conversations[i].append({"role": "tool", "name": "calc", "content": shown})
        running = calling
    return sum(agent_reward([c[1:] for c in conversations], data["answer"])) / n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, help="folder to write the checkpoint to")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)  # threads cost more than they gain for tensors this small
    model, tokenizer = train(args.steps, args.seed)
    model.eval()
    greedy, sampled = (accuracy(model, tokenizer, greedy=g) for g in (True, False))
    if not 0.2 <= sampled <= 0.33:
        problem = f"the mean reward is {sampled:.3f} sampled, not in [0.2, 0.33]"
        raise SystemExit(f"{problem} ({greedy:.3f} greedy): nothing is written. Try another seed, or more steps.")
    model.save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)
    print(f"{model.num_parameters():,} parameters, mean reward {greedy:.3f} greedy and {sampled:.3f} sampled")


if __name__ == "__main__":
    main()
