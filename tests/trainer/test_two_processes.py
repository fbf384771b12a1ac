"""Two real processes (gloo): both make every collective call, and agree on all shared values. They start once."""

import json

import pytest
import run_agent
import trl
from processes import TORCHRUN, results, run
from warm_start import work_out

from trl_credit.observe.schema import read_shard, steps


pytestmark = pytest.mark.slow
SHARED = ("collectives", "num_items", "rewards", "parameters", "buffer", "belief", "rates")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def parts(folder) -> dict[str, dict[str, list[dict]]]:
    """What both processes hold, by part and case. What they share must be equal."""
    parts: dict = {}
    for result in results(run(*TORCHRUN, "run_two_processes.py", folder)):
        parts.setdefault(result["part"], {}).setdefault(result["case"], []).append(result)
    for cases in parts.values():
        for case, (left, right) in cases.items():
            assert [left.get(name) for name in SHARED] == [right.get(name) for name in SHARED], case
    return parts


def added(left: list[float], right: list[float]) -> list[float]:
    return [a + b for a, b in zip(left, right, strict=True)]


def test_two_processes_agree(parts):
    left, right = parts["responses"]["trace"]
    assert left["belief"]["accuracies"] == pytest.approx([sum(x) / len(x) for x in left["rewards"]])
    kept = [[sum(rows) for rows in result["kept"]] for result in (left, right)]
    assert kept[0] != kept[1]  # so that the next line proves something
    assert added(*kept) == left["num_items"]
    for mine, other, rewards in zip(left["advantages"], right["advantages"], left["rewards"], strict=True):
        signs = [(a > 0) - (a < 0) for a in mine + other]
        assert len(rewards) == 12
        for g in range(0, 12, 4):  # within a group with signal the correct responses are above the wrong ones
            group = rewards[g : g + 4]
            if len(set(group)) > 1:
                assert signs[g : g + 4] == [1 if r else -1 for r in group]


def test_segments_on_two_processes(parts):
    cases = parts["segments"]
    assert set(cases) == {"chain", "prompts", "tree", "paths", "idle", "nothing"}
    for case, (left, right) in cases.items():
        assert left["log"][0]["reward"] == pytest.approx(sum(left["rewards"][0]) / len(left["rewards"][0]))
        if case == "nothing":
            assert left["parameters"] == left["before"] and left["real_rows"] == right["real_rows"] == [0, 0, 0]
            continue
        assert left["parameters"] != left["before"]
        if case in ("paths", "idle"):  # no mask: every credited token counts
            assert added(left["tokens"], right["tokens"]) == left["num_items"]
        if case in ("prompts", "tree"):
            both = (added(left[x], right[x]) for x in ("row_weight", "kept"))
            for weights, kept in zip(*both, strict=True):
                shares = [w * n / sum(kept) for w, n in zip(weights, kept, strict=True)]
                assert sum(shares) == pytest.approx(1.0)
                if case == "prompts":  # groups of 4 among 12 rows, the second on both processes
                    groups = [sum(shares[g : g + 4]) for g in (0, 4, 8) if sum(kept[g : g + 4])]
                    assert groups == pytest.approx([1 / len(groups)] * len(groups))
        if case not in ("chain", "prompts"):  # the rows of all trees are distributed evenly
            assert all(0 <= a - b <= 1 for a, b in zip(left["real_rows"], right["real_rows"], strict=True))
            total = [row["credit/rows"] for row in left["log"]]
            assert added(left["real_rows"], right["real_rows"]) == total
    assert cases["idle"][0]["log"][0]["credit/nodes"] == 3 + 6
    assert cases["tree"][0]["log"][0]["credit/nodes"] == 3 * (3 + 6)


def test_skipped_passes_on_two_processes(parts):
    off, auto = parts["skip"]["off"], parts["skip"]["auto"]
    assert auto[0]["passes"] == auto[1]["passes"] and off[0]["passes"] == [2] * 8
    assert auto[0]["passes"][:4] == [2, 2, 0, 0] and sum(auto[0]["passes"][4:]) < 8
    assert all(passes > 0 for passes in auto[0]["passes"][4:6])  # one process has a signal there
    assert [1 - passes / 2 for passes in auto[0]["passes"]] == auto[0]["shares"]
    assert len({json.dumps(r["parameters"]) for r in off + auto}) == 1  # after every step, to the last bit


def test_a_rollout_log_of_two_processes(parts, folder):
    cases = parts["log"]
    assert len({r["parameters"] for pair in cases.values() for r in pair}) == 1  # to the last bit, whatever breaks
    off = {case: pair[0]["off"] and pair[1]["off"] for case, pair in cases.items()}
    assert off == {"without": True, "whole": False, "broken": True, "full": True}
    shards = {step: read_shard(path) for step, path in steps(folder / "whole")}
    assert {step: shard.header["steps"] for step, shard in shards.items()} == {1: [1, 2], 3: [3, 4]}
    for shard in shards.values():
        places = [(row["group"], row["index"]) for row in shard.responses]
        assert places == [(g, i) for g in range(3) for i in range(4)]
        for g in range(0, 12, 4):
            rows = shard.responses[g : g + 4]
            mean = sum(row["reward"] for row in rows) / 4
            assert len({row["prompt"] for row in rows}) == 1
            for row in rows:
                assert row["answer"] == work_out(row["prompt"])[-1]
                sign = (row["reward"] > mean) - (row["reward"] < mean)
                assert {(a > 0) - (a < 0) for a in row["advantages"]} == {sign}
    assert any(any(row["credit"]) for shard in shards.values() for row in shard.responses)
    assert not steps(folder / "broken") and not steps(folder / "full")


def test_groups_on_two_processes(parts):
    cases = parts["groups"]
    assert len(cases) == 7
    for case, (left, right) in cases.items():
        assert {len(rows) for rows in left["kept"] + right["kept"]} == {6}
        assert added(left["tokens"], right["tokens"]) == left["num_items"], case
        assert any(a != b for a, b in zip(left["tokens"], right["tokens"], strict=True))
        sampled = [row.get("credit/groups/sampled", 0) for row in left["log"]]
        assert max(sampled) > 3 or case == "replace", case
        if case == "tree":  # whose rows are nodes
            continue
        batches = zip(left["rewards"], left["examples"], right["examples"], left["prompts"], right["prompts"],
                      left["own"], right["own"], strict=True)  # fmt: skip
        for rewards, *examples, prompts, others, own, theirs in batches:
            assert [*own, *theirs] == pytest.approx(rewards), case  # each reward is that of its text
            assert examples[0] + examples[1] == prompts + others
            for g in range(0, 12, 4):  # groups are whole and in order, also the one on both processes
                assert len(set((prompts + others)[g : g + 4])) == 1
                if case not in ("replace", "advantage"):
                    assert len(set(rewards[g : g + 4])) > 1


def test_an_agent_on_two_processes_has_the_advantages_of_one(parts, tmp_path, monkeypatch, capsys):
    """A group on both processes has the baselines, equal states and values of one process."""
    monkeypatch.setattr(trl.GRPOTrainer, "_generate_single_turn", None)  # which the script of responses replaces
    run_agent.main("12", tmp_path)
    alone = {result["case"]: result for result in results(capsys.readouterr().out)}
    cases = parts["agent"]
    assert len(alone) == len(cases) == 5
    for case, whole in alone.items():
        left, right = cases[case]
        for step, rewards in enumerate(whole["rewards"]):
            assert left["rewards"][step] == right["rewards"][step] == rewards, case
            both = left["advantages"][step] + right["advantages"][step]
            for ours, wanted in zip(both, whole["advantages"][step], strict=True):
                assert ours == pytest.approx(wanted, abs=1e-6), case
        assert any(any(row) for row in whole["advantages"][0])
        assert left["parameters"] == pytest.approx(whole["parameters"], rel=1e-7), case
        for ours, wanted in zip(left["log"], whole["log"], strict=True):
            for name in ("credit/steps/per_response", "credit/steps/shared_states", "reward"):
                assert ours.get(name) == pytest.approx(wanted.get(name)), (case, name)
