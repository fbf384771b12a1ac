"""The shards of a rollout log as files, and the texts of tokens, without torch."""

import json
import math

import pytest
from byte_tokenizers import byte_tokenizer
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from trl_credit.observe import schema
from trl_credit.observe.schema import Shard, gold_answer, read_shard, remove_after, shard_path, steps, write_shard
from trl_credit.observe.token_texts import TokenTexts


HEADER = {"step": 3, "algorithm": "S-trace"}
RESPONSE = {
    **{"group": 0, "index": 1, "prompt": "1+1=", "completion": "2 </script>\u2028é", "truncated": False},
    "rewards": {"a": 1.0, "b": math.nan},
    **{"tokens": ["2", " ", "</script>"], "token_ids": [5, 6, 7], "loss_mask": [1, 1, 0], "selected": None},
    "credit": [1 / 3, -2e-9, math.inf],
    "entropy": [0.0, None, 1e6],
}
NODES = [{"id": 0, "parent": None, "text": ""}, {"id": 1, "parent": 0, "text": "2", "value": 2 / 3, "advantage": 0.5}]


def test_what_is_written_is_read(tmp_path):
    path = shard_path(tmp_path, 3)
    write_shard(path, Shard(HEADER, {2: NODES}, [RESPONSE]))
    assert path.name == "step-00000003.jsonl" and [p.name for p in path.parent.iterdir()] == [path.name]
    kinds = [next(iter(json.loads(line).items())) for line in open(path, encoding="utf-8")]  # one line for each
    assert kinds == [("kind", "header"), ("kind", "tree"), ("kind", "response")]
    shard = read_shard(path)
    assert shard.header == HEADER | {"schema": "trl_credit.rollouts", "version": 1}
    assert shard.trees[2][1]["value"] == 0.666667 and shard.trees[2][0] == NODES[0]
    (response,) = shard.responses
    assert response["credit"] == [0.333333, -2e-9, None] and response["entropy"] == [0, None, 1e6]
    assert response["rewards"] == {"a": 1.0, "b": None} and response["completion"] == RESPONSE["completion"]
    assert set(response) == set(RESPONSE)


def test_the_gold_answer_of_a_row_is_its_text():
    rows = [{"answer": " 15\n"}, {"answer": "", "solution": "so 15"}, {"answer": 0}, {"answer": ["1", 2]}, {"a": 1}]
    assert [gold_answer(row) for row in rows] == ["15", "so 15", "0", "1, 2", None]
    assert gold_answer({"answer": "x" * 9999}) == "x" * (schema.MAX_ANSWER - 2) + " …"


def test_steps_and_what_comes_after_one(tmp_path):
    assert steps(tmp_path) == []
    for step in (2, 10, 9):
        write_shard(shard_path(tmp_path, step), Shard(HEADER))
    folder = tmp_path / "credit_log"
    (folder / "step-00000011.partial").write_text("{")
    (folder / "step-one.jsonl").write_text("mine")
    assert [step for step, _ in steps(tmp_path)] == [2, 9, 10]
    remove_after(tmp_path, 9)
    assert sorted(p.name for p in folder.iterdir()) == ["step-00000002.jsonl", "step-00000009.jsonl", "step-one.jsonl"]


@pytest.mark.parametrize("text", ["né 🙂 日本", "  two  spaces\n", "\ufffd is a character too", "👨‍👩‍👧", ""])
def test_texts_of_tokens_are_the_text(text):
    tokenizer = byte_tokenizer([("h", "i"), ("Ġ", "Ġ")])
    ids = tokenizer.encode(text) + [tokenizer.eos_token_id]
    texts = TokenTexts(tokenizer).of(ids)
    assert "".join(texts) == text + "<|im_end|>" and len(texts) == len(ids)
    if text.startswith("né"):  # the whole character stands at the last of its bytes
        assert texts[:4] == ["n", "", "é", " "] and texts[4:8] == ["", "", "", "🙂"]


def test_a_response_that_is_cut_off_inside_of_a_character():
    tokenizer = byte_tokenizer([])
    texts = TokenTexts(tokenizer).of(tokenizer.encode("a🙂")[:-1])
    assert texts[0] == "a" and "".join(texts) == tokenizer.decode(tokenizer.encode("a🙂")[:-1])


def test_a_space_before_the_first_token_is_kept():
    """Also by a decoder that leaves it out, as those of SentencePiece do, with bytes as fallback."""
    words = ["▁the", "▁cat", "s", "é", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "</s>"]
    model = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="s"))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    model.decoder = decoders.Sequence(steps)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, eos_token="</s>")
    assert tokenizer.decode([0]) == "the"
    texts = TokenTexts(tokenizer).of([0, 1, 2, 3, 4, 5, 6, 7, 1, 8])
    assert texts == [" the", " cat", "s", "é", "", "", "", "🙂", " cat", "</s>"]
