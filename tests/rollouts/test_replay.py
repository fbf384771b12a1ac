"""The replay buffer: who is drawn, when, how often; and that a checkpoint holds all of it."""

import collections

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from trl_credit.rollouts.replay import ReplayBuffer, Row


def rows(question, n, start=0):
    return [Row(question, (1, 2), (start + i,), (0.5 * i,), (0,), 0.25, behavior_logps=(-0.5 * i,)) for i in range(n)]


def ident(row):
    return row.question, tuple(row.completion_ids)


@pytest.mark.parametrize(
    ("life", "cap", "n", "wanted", "drawn"),
    [(8, 32, 258, 512, [32] * 8 + [0, 0]), (8, 32, 216, 512, [32] * 6 + [24, 0]), (1, None, 10, 4, [4, 0])],
)
def test_the_rows_of_a_tree_last_as_long_as_they_live(life, cap, n, wanted, drawn):
    buffer = ReplayBuffer(life=life, cap=cap)
    buffer.add(rows("q", n))
    assert [len(buffer.draw(wanted)) for _ in drawn] == drawn
    assert buffer.expired == n - sum(drawn) and len(buffer) == 0


def test_draws_are_spread_over_questions():
    buffer = ReplayBuffer(life=8, cap=32)
    for k in range(16):
        buffer.add(rows(f"q{k}", 3 if k == 0 else 100))
    counts = collections.Counter(row.question for row in buffer.draw(128))
    assert counts["q0"] == 3 and {counts[f"q{k}"] for k in range(1, 16)} <= {8, 9}
    assert sum(counts.values()) == 128


def test_legacy_loses_what_exceeds_the_batch_and_fills_by_repetition():
    buffer = ReplayBuffer(life=8, cap=32, legacy=True)
    for k in range(4):
        buffer.add(rows(f"q{k}", 100))
    assert len(buffer.draw(64)) == 64
    assert len(buffer) == 4 * 68  # 32 of each were taken out, though only 64 rows were used
    buffer = ReplayBuffer(life=8, cap=32, legacy=True)
    buffer.add(rows("q", 10))
    counts = collections.Counter(map(ident, buffer.draw(25)))
    assert sum(counts.values()) == 25 and set(counts.values()) == {2, 3}
    assert ReplayBuffer(life=8, cap=32, legacy=True).draw(5) == []


@given(
    st.integers(1, 5),
    st.one_of(st.none(), st.integers(1, 6)),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12), st.integers(0, 20)), min_size=1, max_size=12),
)
@settings(max_examples=60)
def test_nothing_is_lost_or_drawn_twice(life, cap, steps):
    buffer = ReplayBuffer(life=life, cap=cap, seed=3)
    born, added, used = {}, 0, set()
    for iteration, (question, n, wanted) in enumerate(steps):
        new = rows(str(question), n, start=1000 * iteration)
        buffer.add(new)
        added += n
        born.update({ident(row): iteration for row in new})
        drawn = buffer.draw(wanted)
        per_question = collections.Counter(row.question for row in drawn)
        assert len(drawn) <= wanted and (cap is None or max(per_question.values(), default=0) <= cap)
        for row in drawn:
            assert ident(row) not in used and 0 <= iteration - born[ident(row)] < life
            assert row.birth == born[ident(row)]
            used.add(ident(row))
        assert len(used) + buffer.expired + len(buffer) == added


def test_state_is_restored_to_the_last_draw(tmp_path):
    more = {"accuracy": 0.5, "sampling_logps": (-1.0, -2.0), "quarters": (1, 3)}
    first, second = (ReplayBuffer(life=4, cap=3, seed=seed) for seed in (7, 0))
    first.save(tmp_path / "replay.safetensors")  # without a row
    second.load(tmp_path / "replay.safetensors")
    assert len(second) == 0
    first.add(rows("a", 9) + [Row("b", (4,), (5, 2**31 - 1), (0.1, -0.2), (0, -1), **more)] * 4)
    first.add([Row("b", (4, 5), (6,), (-0.25,), (0,), 0.5, quarters=(), visible_until=(3, 3, 3))])
    first.draw(5)
    first.save(tmp_path / "replay.safetensors")
    second.load(tmp_path / "replay.safetensors")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["replay.safetensors"]
    for _ in range(4):
        left, right = first.draw(2), second.draw(2)
        assert list(map(vars, left)) == list(map(vars, right))
    assert first.expired == second.expired and first.iteration == second.iteration


def test_a_file_that_is_none_is_refused(tmp_path):
    buffer = ReplayBuffer(life=4, cap=3)
    buffer.add(rows("a", 3))
    (tmp_path / "junk").write_bytes(b"not safetensors at all")
    save_file({"x": torch.zeros(2)}, tmp_path / "other", metadata={})  # no state
    for name in ("missing", "junk", "other"):
        with pytest.raises(ValueError, match="."):
            buffer.load(tmp_path / name)
    assert len(buffer) == 3  # and nothing was lost in trying
