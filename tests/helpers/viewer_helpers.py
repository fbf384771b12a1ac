"""Shards as a run logs them, made by hand: S-trace, SPO-chain, SPO-tree and a conversation with a tool."""

import json
import random
import re
import zlib
from html.parser import HTMLParser
from typing import Any

from trl_credit.observe.schema import Shard


SOLUTION = (
    "Let's think step by step.\n\nTrain A covers 3 stops per hour, so in x hours it makes 3x stops. Since train B "
    "starts two hours later, it makes 5(x − 2) stops.\n\nSetting them equal: 3x = 5(x − 2) → 3x = 5x − 10, hence "
    "2x = 10 and x = 5.\n\nWait, the question asks for the stops, not for the hours. After 5 hours train A has made "
    "3 · 5 = 15 stops, and so has train B: 5 · 3 = 15.\n\nTherefore the answer is \\boxed{15}."
)
WRONG = SOLUTION.replace("Wait, the question asks for the stops, not for the hours. After 5", "So after 5").replace(
    "\\boxed{15}", "\\boxed{5}"
)
QUESTION = "Train A makes 3 stops per hour. Train B leaves 2 hours later and makes 5. When are they even?"
PROMPT = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
FORKS = ("Let", "Since", "Setting", "hence", "Wait", "So", "After", "Therefore", "Train", "not", "equal")


def tokens_of(text: str) -> list[str]:
    """A text in pieces that look like a tokenizer's."""
    return re.findall(r"\n+| ?\w+| ?[^\w\s]+|\s", text)


NOT_OF_GRPO = "ref_logprobs selected segment_ids segment_values turn_ids nodes kl_credit".split()


def response(
    text: str,
    *,
    group: int = 0,
    index: int = 0,
    reward: float = 1.0,
    advantage: float = 1.0,
    seed: int = 0,
    **fields: Any,
) -> dict[str, Any]:
    """A response of plain GRPO: every token has the response's advantage, a few are clipped."""
    rng = random.Random(f"{seed} {group} {index}")
    tokens = tokens_of(text)
    fork = [token.strip().startswith(FORKS) for token in tokens]
    entropy = [rng.uniform(1.2, 2.6) if at else rng.expovariate(6) for at in fork]
    now = [-rng.expovariate(1.2 if at else 9) for at in fork]
    old = [min(x + rng.gauss(0, 0.16 if at else 0.03), -1e-4) for x, at in zip(now, fork, strict=True)]
    weight = [a - b for a, b in zip(now, old, strict=True)]
    clipped = [int((w > 0.247 and advantage > 0) or (w < -0.223 and advantage < 0)) for w in weight]
    ones = [1] * len(tokens)
    credit = [advantage * (2.718281828**w) * (1 - c) for w, c in zip(weight, clipped, strict=True)]
    row = {"group": group, "index": index, "prompt": PROMPT, "completion": text, "reward": reward}
    row |= {"rewards": {"accuracy": reward, "format": 1.0}, "truncated": False}
    row |= {"token_ids": [zlib.crc32(token.encode()) % 150_000 for token in tokens], "tokens": tokens}
    row |= {"loss_mask": ones, "policy_mask": ones, "advantages": [advantage] * len(tokens)}
    row |= {"inference_logprobs": [min(x + rng.gauss(0, 0.004), -1e-5) for x in old], "old_logprobs": old}
    row |= {"trainer_logprobs": now, "entropy": entropy, "log_weight": weight, "is_clipped": clipped, "credit": credit}
    return row | dict.fromkeys(NOT_OF_GRPO) | fields


def with_trace(row: dict[str, Any], *, decay: float, rate: float = 0.2) -> dict[str, Any]:
    """The same response under S-trace: the tokens of highest entropy leave a trace, whose credit adds up."""
    length = len(row["tokens"])
    chosen = sorted(range(length), key=lambda t: -row["entropy"][t])[: round(rate * length)]
    selected = [int(t in chosen) for t in range(length)]
    credit, later = [0.0] * length, 0.0
    for t in reversed(range(length)):
        own = row["advantages"][t] * (2.718281828 ** row["log_weight"][t]) * (1 - row["is_clipped"][t])
        credit[t] = own + selected[t] * later
        later = decay * (later + own)
    return {**row, "selected": selected, "credit": credit}


def header(algorithm: str, *, step: int = 10, **fields: Any) -> dict[str, Any]:
    """The first line of a shard."""
    first = {"step": step, "algorithm": algorithm, "trainer": f"{algorithm.replace('-', '')}Trainer"}
    first |= {"model": "Qwen/Qwen3-1.7B", "settings": {}, "trace_decay": None, "clip": [0.2, 0.28], "beta": 0.0}
    return {**first, "temperature": 1.0, **fields}


def group_of(algorithm: str, *, group: int = 0, seed: int = 0) -> list[dict[str, Any]]:
    """Four responses of one prompt under GRPO or S-trace."""
    rows = []
    for index, reward in enumerate((1.0, 0.0, 1.0, 0.0)):
        text = SOLUTION if reward else WRONG
        text = text if index < 3 else text[:220]
        row = response(text, group=group, index=index, reward=reward, advantage=reward * 2 - 1, seed=seed)
        row["truncated"] = index == 3
        rows.append(with_trace(row, decay=0.9) if algorithm == "S-trace" else row)
    return rows


def s_trace(step: int = 10) -> Shard:
    """Two groups of S-trace."""
    rows = [row for group in (0, 1) for row in group_of("S-trace", group=group, seed=step)]
    for row in rows[4:]:
        row["prompt"] = PROMPT.replace(QUESTION, "What is the sum of the first 12 odd numbers?")
    return Shard(header("S-trace", step=step, trace_decay=0.9, settings={"importance": "eligible"}), {}, rows)


def spo_chain(step: int = 10) -> Shard:
    """A group of SPO-chain: segments with values, and sure tokens left out of the policy term."""
    rows = []
    for index, ends in enumerate(([0.25, 0.375, 0.25, 0.75, 0.875, 1.0], [0.25, 0.375, 0.125, 0.0, 0.0, 0.0])):
        row = response(SOLUTION if index == 0 else WRONG, index=index, reward=float(index == 0))
        length = len(row["tokens"])
        segments = [min(5 * t // length, 4) for t in range(length)]
        advantages = [ends[s + 1] - ends[s] for s in segments]
        kept = [int(x < -0.05) for x in row["old_logprobs"]]
        credit = [a * m for a, m in zip(advantages, kept, strict=True)]
        row |= {"segment_ids": segments, "segment_values": ends, "advantages": advantages}
        rows.append({**row, "policy_mask": kept, "credit": credit})
    return Shard(header("SPO-chain", step=step), {}, rows)


def spo_tree(step: int = 10) -> Shard:
    """A tree of two levels with three children each, and a row per leaf."""
    parts = SOLUTION.split("\n\n")
    first, second = parts[0] + "\n\n" + parts[1] + "\n\n", "\n\n".join(parts[2:])
    nodes: list[dict[str, Any]] = [node(0, None, "", value=4 / 9, depth=0)]
    rows = []
    for child, rewards in enumerate(((1, 1, 0), (1, 0, 0), (0, 0, 1))):
        value = sum(rewards) / 3
        top = node(len(nodes), 0, first, value=value, advantage=value - 4 / 9, depth=1)
        nodes.append(top)
        for leaf, reward in enumerate(rewards):
            text = second if reward else second.replace("15}", "5}")
            end = node(len(nodes), top["id"], text, value=reward, advantage=reward - value, reward=reward, depth=2)
            nodes.append({**end, "trained": reward != value})
            row = response(first + text, index=3 * child + leaf, reward=float(reward))
            cut = len(tokens_of(first))
            segments = [int(t >= cut) for t in range(len(row["tokens"]))]
            advantages = [(top, end)[s]["advantage"] for s in segments]
            path = [top["id"], end["id"]]
            row |= {"segment_ids": segments, "segment_nodes": path, "nodes": path, "advantages": advantages}
            rows.append({**row, "credit": advantages})
    return Shard(header("SPO-tree", step=step), {0: nodes}, rows)


def node(number: int, parent: int | None, text: str, **fields: Any) -> dict[str, Any]:
    """A node of a tree."""
    empty = {"value": None, "advantage": None, "reward": None, "trained": True, "depth": 0}
    return {"id": number, "parent": parent, "text": text, "tokens": len(tokens_of(text)), **empty, **fields}


def multi_turn(step: int = 10) -> Shard:
    """A conversation: the policy calls a tool, whose answer is not in the loss."""
    written = ("I should compute this.\ncalculator(3 * 5)\n", "→ 15\n", "So the answer is \\boxed{15}.")
    row = response("".join(written))
    turns = [turn for turn, text in zip((0, -1, 1), written, strict=True) for _ in tokens_of(text)]
    mask = [int(turn >= 0) for turn in turns]
    credit = [c * m for c, m in zip(row["credit"], mask, strict=True)]
    rewards = [None] * len(turns)
    rewards[turns.index(-1) - 1], rewards[-1] = 0.5, 1.0  # at the ends of both turns
    lists = {"turn_ids": turns, "loss_mask": mask, "policy_mask": mask, "credit": credit, "step_rewards": rewards}
    return Shard(header("GRPO", step=step), {}, [{**row, **lists}])


def explained(step: int = 10) -> list[Shard]:
    """The same responses as two algorithms credit them."""
    grpo = Shard(header("GRPO", step=step), {}, group_of("GRPO"))
    trace = Shard(header("S-trace", step=step, trace_decay=0.9), {}, group_of("S-trace"))
    return [grpo, trace]


SHARDS = {"trace": [s_trace(10), s_trace(20)], "chain": [spo_chain()], "tree": [spo_tree()], "turns": [multi_turn()]}
SHARDS["explained"] = explained()
EVIL = '</script><!--<script><img src=x onerror="window.hit=1">&lt;\u2028\u202e{{ 7*7 }}\x00'


class Page(HTMLParser):
    """Tags with their attributes, and the text of scripts and styles by their order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[str, str]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] in ("script", "style") and data.strip():
            self.raw.append((self.tags[-1][0], data))

    @property
    def policy(self) -> str:
        (rule,) = [of["content"] for tag, of in self.tags if of.get("http-equiv") == "Content-Security-Policy"]
        return rule

    @property
    def data(self) -> dict:
        return json.loads(next(text for tag, text in self.raw if text.startswith("{")))
