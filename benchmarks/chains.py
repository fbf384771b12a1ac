"""Memory and CPU time of a chain's own code per generation batch, by length of the responses.

    python benchmarks/chains.py [--lengths 2048 4096 8192] [--rows 16] [--new 16] [--rollout_batch_size N]

A segment begins every 100 tokens, and each state there is valued by 9 continuations of `--new` tokens. They are drawn
instead of generated, so what an engine holds is not counted; everything else is the trainer's own: states, decoding,
rewards, advantages. Responses are pieces of the documentation, with a byte-level tokenizer trained on it. The columns:

* bytes per response token, peak MB: the largest number of bytes that Python held at once (`tracemalloc`), beyond what
  it held before, over the tokens of the responses (continuations not counted), and as it is
* CPU ms: CPU time of the credit of a generation batch, the smallest of three
* tokens decoded: what the tokenizer's backend was given to decode
* unwraps: calls of accelerate's `unwrap_model`, which visits every module of the model
* advantages: a digest of all advantages, to compare two versions of the package
"""

import argparse
import hashlib
import logging
import random
import tempfile
import time
import tracemalloc
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from stepping import random_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.rollouts.chain import chain_credit
from trl_credit.rollouts.policy import Continuation


PROMPT, SEGMENT, ROLLOUTS, VOCABULARY = 8, 100, 9, 4000  # tokens, tokens, per state, tokens
PAGES = [page.read_text() for page in sorted(Path(__file__).parents[1].glob("docs/**/*.md"))]


def train_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer, as most models have."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet, special = pre_tokenizers.ByteLevel.alphabet(), ["<pad>", "<end>"]
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet)
    backend.train_from_iterator(PAGES, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<end>")


def reward(completions: list[str], **kwargs: Any) -> list[float]:
    """Depends on every character near the end."""
    return [sum(text[-40:].encode()) % 101 / 101 for text in completions]


def continued(prefixes: Iterable[list[int]], *, n: int, budgets: Sequence[int], new: int, **named: Any) -> list:
    """`n` continuations of `new` tokens per prefix, drawn from its end and its length."""
    found = []
    for prefix, budget in zip(prefixes, budgets, strict=True):
        draw = random.Random(f"{len(prefix)} {prefix[-20:]}")
        found += [Continuation(draw.choices(range(2, VOCABULARY), k=min(new, budget)), None) for _ in range(n)]
    return found


class CountingBackend:
    """A backend of a tokenizer that counts the tokens that it decodes."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend, self.tokens = backend, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def decode(self, ids: list[int], **named: Any) -> str:
        self.tokens += len(ids)
        return self._backend.decode(ids, **named)

    def decode_batch(self, rows: list[list[int]], **named: Any) -> list[str]:
        self.tokens += sum(map(len, rows))
        return self._backend.decode_batch(rows, **named)


class Batch:
    """A generation batch of `rows` responses, each of `length` tokens, ready for its credit."""

    def __init__(self, trainer: CreditTrainer, *, rows: int, length: int, ids: list[int]) -> None:
        self._policy, draw = trainer.engine, random.Random(length)
        starts = [draw.randrange(len(ids) - length) for _ in range(rows)]
        self._completions = [ids[start : start + length] for start in starts]
        self._prompts = [ids[:PROMPT]] * rows
        self._inputs = [{"prompt": "p"}] * rows
        self._rewards = torch.tensor([draw.random() for _ in range(rows)])

    def advantages(self) -> torch.Tensor:
        shape = len(self._completions), len(self._completions[0])
        return chain_credit(
            self._policy,
            self._inputs,
            prompt_ids=self._prompts,
            completion_ids=self._completions,
            old_logp_t=torch.full(shape, -0.5),
            rewards=self._rewards,
            mask_t=torch.ones(shape, dtype=torch.long),
        ).advantages


def measure(
    trainer: CreditTrainer, batch: Batch, tokenizer: PreTrainedTokenizerFast
) -> tuple[int, float, int, int, str]:
    """Peak bytes, CPU ms, tokens decoded, unwraps, and the digest of the advantages."""
    advantages = batch.advantages()  # what a run does only once is done
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    batch.advantages()
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    seconds = []
    for _ in range(3):
        start = time.process_time()
        batch.advantages()
        seconds.append(time.process_time() - start)
    accelerator, backend, calls = trainer.accelerator, tokenizer.backend_tokenizer, []
    unwrap = accelerator.unwrap_model
    accelerator.unwrap_model = lambda *args, **kwargs: calls.append(1) or unwrap(*args, **kwargs)
    tokenizer._tokenizer = CountingBackend(backend)
    batch.advantages()
    tokens = tokenizer._tokenizer.tokens
    del accelerator.unwrap_model
    tokenizer._tokenizer = backend
    digest = hashlib.sha256(advantages.numpy().tobytes()).hexdigest()[:12]
    return peak, 1e3 * min(seconds), tokens, len(calls), digest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 4096, 8192])
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--new", type=int, default=16, help="tokens of a continuation")
    parser.add_argument("--rollout_batch_size", type=int)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    tokenizer = train_tokenizer()
    ids = tokenizer.encode("\n".join(PAGES), add_special_tokens=False)
    print("| length | bytes per response token | peak MB | CPU ms | tokens decoded | unwraps | advantages |")
    print("|---:|---:|---:|---:|---:|---:|---|")
    for length in given.lengths:
        with tempfile.TemporaryDirectory() as folder:
            model = random_model(folder, hidden=32, layers=24, vocabulary=VOCABULARY)
            sizes = {"per_device_train_batch_size": given.rows, "num_generations": 4}
            config = CreditConfig(
                folder,
                report_to="none",
                use_cpu=True,
                bf16=False,
                disable_tqdm=True,
                rollouts="chain",
                rollouts_per_state=ROLLOUTS,
                segmentation="fixed_length",
                segment_length=SEGMENT,
                max_completion_length=length + given.new,
                rollout_batch_size=given.rollout_batch_size,
                **sizes,
            )
            data = Dataset.from_dict({"prompt": ["p"] * given.rows})
            trainer = CreditTrainer(model, reward, config, train_dataset=data, processing_class=tokenizer)
            trainer.engine.continue_prefixes = lambda prefixes, **named: continued(prefixes, new=given.new, **named)
            trainer.model.train()
            batch = Batch(trainer, rows=given.rows, length=length, ids=ids)
            peak, milliseconds, tokens, unwraps, digest = measure(trainer, batch, tokenizer)
        per_token = peak / (given.rows * length)
        print(
            f"| {length:,} | {per_token:,.0f} | {peak / 1e6:,.1f} | {milliseconds:,.0f} | {tokens:,} | {unwraps} "
            f"| {digest} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
