"""The viewer's page in a real Chromium: algorithms, groups, segments and trees, addresses and print."""

import math

import numpy as np
import pytest
from viewer_helpers import SHARDS, explained, s_trace, spo_chain


pytest_plugins = ["viewer_browser"]


def test_algorithms_stand_side_by_side_on_the_same_response(show):
    page = show(explained(), fragment="token=45")
    assert [text.split(" ")[0] for text in page.texts(".column h2")] == ["GRPO", "S-trace"]
    assert page.texts("#panel thead th") == ["GRPO", "S-trace"]
    assert len(set(page.texts(".current"))) == 1 and page.count(".current") == 2
    one, other = page.panel()["Effective credit"].split()
    assert float(other) > 5 * float(one)
    page.evaluate("go({ layout: 'group', algorithm: 'S-trace' })")
    assert page.count(".column") == 4 and page.evaluate("texts.every(t => t.row.header.algorithm === 'S-trace')")


def test_segments_have_their_values_above_and_turns_their_names(show):
    page = show([spo_chain()])
    assert page.texts(".boundary") == ["V 0.25", "V 0.375", "V 0.25", "V 0.75", "V 0.875", "V 1"]
    ends = page.evaluate(
        "[...document.querySelectorAll('.boundary')].slice(0, -1)"
        ".map(e => [e.firstChild, e.nextSibling].map(one => one.getClientRects()[0].bottom))"
    )
    assert all(label < text - 8 for label, text in ends)
    page = show(SHARDS["turns"])
    assert page.texts(".turn") == ["turn 1 · r +0.5 · A +1", "not by the policy", "turn 2 · r +1 · A +1"]
    assert page.texts(".step-reward") == ["r +0.5", "r +1"]
    assert page.texts(".tool") == [" 15↵\n"] or "15" in page.texts(".tool")[0]


def test_a_tree_opens_and_leads_to_the_responses(show):
    page = show(SHARDS["tree"], fragment="layout=tree")
    assert page.texts("#tree h2") == ["12 segments, 9 leaves"]
    assert page.count(".node") == 4
    page.evaluate("document.querySelectorAll('.node > summary')[1].focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    page.settle()
    assert page.count(".node") == 7
    lines = page.texts(".node .node .node > summary")
    assert [line.partition("Setting")[0] for line in lines] == ["V 1A +0.333", "V 1A +0.333", "V 0A −0.667"]
    page.evaluate("document.querySelectorAll('.node button')[1].click()")
    assert page.view("layout", "index") == ["one", 1] and page.texts(".boundary")[1] == "V 0.667"


def test_every_colouring_there_is_can_be_chosen(show):
    shard = s_trace()
    for row in shard.responses:
        row["teacher_logprobs"] = [None, *(x / 2 for x in row["old_logprobs"][1:])]
    page = show([shard], fragment="token=3")
    metrics = page.evaluate("METRIC_NAMES")
    assert metrics[:7] == ["credit", "advantages", "log_weight", "trace", "clip", "entropy", "probability"]
    assert metrics[7:] == ["mismatch", "teacher"] and "teacher" not in show([s_trace()]).evaluate("METRIC_NAMES")
    page = show([shard], fragment="token=3")
    old = next(row for row in shard.responses if [row["group"], row["index"]] == page.view("group", "index"))
    assert float(page.panel()["Probability, teacher"]) == pytest.approx(math.exp(old["old_logprobs"][3] / 2), abs=0.005)
    assert page.evaluate("[0, 3].map(i => classOf(ROWS[0], i, 'teacher')[0])") == ["u", "p"]  # unknown, positive
    for metric in metrics:
        page.select("metric", metric)
        assert page.texts("#legend b") == [page.evaluate(f"METRICS.{metric}.label")]
        is_coloured = "[...Array(row.length).keys()].some(i => /^[pns]\\d/.test(classOf(row, i, view.metric)))"
        assert page.evaluate(f"ROWS.some(row => {is_coloured})"), metric
    mass = page.evaluate("[...valuesOf(ROWS[0], 'trace')]")
    expected, m = [], 0.0
    for z in s_trace().responses[0]["selected"]:
        expected.append(m)
        m = 0.9 * (m + z)
    np.testing.assert_allclose(mass, expected, rtol=1e-5, atol=1e-6)


def test_the_address_and_the_start_say_what_is_shown(show):
    page = show([s_trace(10), s_trace(20)], start={"step": 20, "group": 1, "index": 2})
    assert page.view("step", "group", "index") == [20, 1, 2]
    page = show([s_trace(10), s_trace(20)], fragment="step=20&group=1&index=3&token=5&metric=entropy&layout=group")
    shown = page.view("step", "group", "index", "token", "metric", "layout")
    assert shown == [20, 1, 3, 5, "entropy", "group"]
    page.evaluate("go({ index: 1 })")
    assert "index=1" in page.evaluate("location.hash")
    page = show([s_trace(10)], fragment="step=99&group=-1&index=x&token=99999&metric=__proto__&layout=<b>")
    assert page.view("step", "group", "index", "metric", "layout") == [10, 0, 2, "credit", "one"]
