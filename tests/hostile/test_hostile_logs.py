"""Damaged and hostile rollout logs, and settings of them that are mistakes."""

import json

import pytest
from script_helpers import error_of

from trl_credit.cli import main
from trl_credit.observe.schema import Shard, read_shard, shard_path, write_shard


HEADER = {"kind": "header", "schema": "trl_credit.rollouts", "version": 1, "step": 1, "algorithm": "GRPO"}
RESPONSE = {"kind": "response", "group": 0, "index": 0, "completion": "ab", "tokens": ["a", "b"], "credit": [0.5, 1]}
TREE = {"kind": "tree", "group": 0, "nodes": [{"id": 0, "parent": None}, {"id": 1, "parent": 0}]}


def lines(*entries):
    return "".join(json.dumps(entry) + "\n" for entry in entries).encode()


DAMAGED = {
    "empty": b"",
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "no header": lines(RESPONSE),
    "another schema": lines(HEADER | {"schema": "mine"}),
    "a later version": lines(HEADER | {"version": 2}),
    "no step": lines({k: v for k, v in HEADER.items() if k != "step"}),
    "lists instead of objects": b"[1, 2]\n",
    "NaN": lines(HEADER) + b'{"kind": "response", "group": 0, "index": 0, "completion": "", "tokens": [], "x": NaN}\n',
    "lists of other lengths": lines(HEADER, RESPONSE | {"credit": [1.0]}),
    "text where numbers are": lines(HEADER, RESPONSE | {"credit": ["<script>", 1.0]}),
    "tokens that are no texts": lines(HEADER, RESPONSE | {"tokens": [1, 2]}),
    "a tree with a circle": lines(HEADER, TREE | {"nodes": [{"id": 0, "parent": None}, {"id": 1, "parent": 1}]}),
    "deep nesting": lines(HEADER) + b"[" * 100_000 + b"\n",
    "a huge number": lines(HEADER) + b'{"kind": "response", "group": ' + b"9" * 10_000 + b"}\n",
}


@pytest.mark.hostile("rollout logs", "refused")
@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_shard_is_refused_with_its_file_and_line(tmp_path, capsys, record_property, what):
    path = shard_path(tmp_path, 1)
    path.parent.mkdir()
    path.write_bytes(DAMAGED[what])
    with pytest.raises(ValueError, match="step-00000001.jsonl") as refused:
        read_shard(path)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500
    error_of(main, ["view", tmp_path], capsys)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]
    record_property("tried", 2)


TEXTS = ("</script><script>alert(1)</script>", "\u2028\u2029\x00\x1b[31m", "a\ud800b")
TEXTS += ('"}\n{"kind": "header"}',)


@pytest.mark.hostile("rollout logs", "survived")
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_hostile_text_stays_text(tmp_path, text):
    path, row = shard_path(tmp_path, 1), RESPONSE | {"completion": text, "tokens": [text, ""]}
    write_shard(path, Shard({"step": 1, "algorithm": text}, {}, [row]))
    (response,) = read_shard(path).responses
    assert response["completion"] == response["tokens"][0] == text.encode("utf-8", "replace").decode()
