"""The viewer's page in a real Chromium: it draws, logs nothing, obeys keys, runs no foreign script; its layouts."""

import math
import re

import numpy as np
import pytest
from viewer_helpers import SHARDS, explained, header, response, s_trace, spo_chain

from trl_credit.lab.viewer import palette
from trl_credit.observe.schema import Shard


pytest_plugins = ["viewer_browser"]


@pytest.mark.parametrize("name", SHARDS)
@pytest.mark.parametrize("width", [pytest.param(1280, marks=pytest.mark.slow), 700, 390])
def test_it_draws_all_tokens_and_says_nothing(show, name, width):
    row = SHARDS[name][0].responses[0]
    page = show(SHARDS[name], start={"step": 10, "group": row["group"], "index": row["index"]})
    page.resize(width, 800)
    page.settle()
    shown = "".join(page.texts(".column:first-child .token")).replace("↵", "")
    assert shown == "".join(row["tokens"])
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing hangs over


def test_a_page_opens_with_the_token_of_largest_credit_and_says_where_it_came_from(show):
    shard = s_trace()
    page = show([shard])
    group, index, token = page.view("group", "index", "token")
    row = next(row for row in shard.responses if (row["group"], row["index"]) == (group, index))
    sums = [sum(map(abs, row["credit"])) for row in shard.responses if row["group"] == group]
    assert index == sums.index(max(sums)) != 0
    assert token == max(range(len(row["tokens"])), key=lambda t: abs(row["credit"][t]))
    assert page.texts("#panel h3") == ["Where it came from", "In the group"] and page.count(".origins li") > 0
    assert page.evaluate("[document.activeElement === document.body, scrollY]") == [True, 0]
    page = show([shard], fragment="token=7")
    assert page.view("token") == [7]


def test_the_policy_stops_what_would_get_past_the_escaping(show):
    page = show([s_trace()])
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hit = 1\">')")
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), { text: 'window.hit = 1' }))")
    page.evaluate("fetch('https://example.invalid/').catch(() => null)")
    page.settle()
    assert page.evaluate("typeof window.hit") == "undefined"
    refused = " ".join(page.messages)
    assert refused.count("Content Security Policy") >= 3 and "connect" in refused
    page.messages.clear()
    page.requests[1:] = []  # what was asked for, and refused


def test_arrow_keys_walk_tokens_lines_responses_and_steps(show):
    page = show([s_trace(10), s_trace(20)], start={"step": 10, "group": 0, "index": 0})
    page.evaluate("go({ token: null })")
    page.evaluate("document.querySelector('.text').focus()")
    state = ("step", "index", "token")
    page.press("ArrowRight")
    assert page.view(*state) == [10, 0, 0]
    page.press("ArrowRight", "ArrowRight", "ArrowLeft")
    assert page.view(*state) == [10, 0, 1]
    assert page.texts(".current") == [s_trace().responses[0]["tokens"][1]]
    page.press("ArrowRight", shift=True)
    assert page.view(*state) == [10, 1, None]
    assert page.evaluate("document.activeElement.view.row.index") == 1
    page.press("ArrowDown", shift=True)
    assert page.view(*state) == [20, 1, None]


def test_a_pointer_shows_the_numbers_and_where_the_credit_came_from(show):
    shard = s_trace()
    row = shard.responses[0]
    at = max(range(len(row["tokens"]) - 20), key=lambda t: row["selected"][t])
    page = show([shard], fragment="index=0&token=0")
    page.point(f"texts[0].spans[{at}]")
    page.settle()
    there = page.panel()
    assert there["Leaves a trace"] == "yes" and there["Advantage A"] == "+1" and len(there) >= 12
    assert float(there["Effective credit"]) == pytest.approx(row["credit"][at], rel=0.01)
    parts = page.evaluate(f"contributions(ROWS[0], {at})")
    assert sum(part["value"] for part in parts) == pytest.approx(row["credit"][at], rel=1e-3)
    for part in parts:  # A·ρ of the later token, through the trace
        t = part["t"]
        reach = 1 if t == at else 0.9 ** (t - at)
        assert part["value"] == pytest.approx(row["advantages"][t] * np.exp(row["log_weight"][t]) * reach, rel=1e-3)
    largest = [part["t"] for part in parts if part["t"] != at][:8]
    sizes = [abs(part["value"]) for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert sorted(page.evaluate("[...document.querySelectorAll('.from')].map(e => e.i)")) == sorted(largest)
    assert page.count(".origins li") == 8
    page.evaluate("document.querySelector('.origins button').click()")
    assert page.view("token")[0] == largest[0]


def test_unassigned_is_not_zero_and_neither_is_outside_the_loss(show):
    row = response("one two three four", policy_mask=[1, 0, 1, 1], loss_mask=[1, 1, 0, 1], credit=[0.0, 0.0, 0.0, 2.0])
    page = show([Shard(header("GRPO"), {}, [row])])
    page.evaluate("go({ token: null })")
    looks = page.evaluate(
        "texts[0].spans.map(e => getComputedStyle(e)).map(s => "
        "[s.backgroundImage, s.textDecorationLine, s.fontStyle, s.backgroundColor].join())"
    )
    assert len(set(looks)) == 4
    names = [f"token {name}" for name in ("zero", "unassigned", "outside", "p6")]
    assert page.evaluate("texts[0].spans.map(e => e.className)") == names
    page.evaluate("go({ metric: 'entropy' })")  # which an unassigned token has
    assert page.evaluate("texts[0].spans.map(e => e.classList[1][0])")[:2] == ["s", "s"]
    page.evaluate("go({ token: 1 })")
    assert page.panel()["Effective credit"] == "unassigned"


def test_the_definition_on_a_phone_shows_its_samples(show):
    page = show([Shard(header("GRPO"), {}, [response("one two", policy_mask=[1, 0], credit=[1.0, 0.0])])])
    page.resize(390, 844)
    seen = "getComputedStyle(document.querySelector('#legend .samples')).display"
    assert page.evaluate(seen) == "none"
    page.evaluate("document.getElementById('define').click()")
    assert page.evaluate(seen) == "flex"


LEVELS = [f"{letter}{level}" for letter in "pns" for level in range(1, palette.LEVELS + 1)]


def contrast(*colours: str) -> float:
    """WCAG 2's contrast ratio of two colours of CSS."""
    srgb = np.array([[int(x) / 255 for x in re.findall(r"\d+", colour)[:3]] for colour in colours])
    light = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]
    return (light.max() + 0.05) / (light.min() + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_on_every_colour_is_legible_as_drawn(show, scheme):
    page = show([s_trace()])
    page.prefer(scheme)
    pairs = page.evaluate(
        f"{LEVELS}.map(c => {{ const e = texts[0].spans[0]; e.className = 'token ' + c; const s = getComputedStyle(e);"
        " return [s.color, s.backgroundColor] })"
    )
    assert len({ground for _, ground in pairs}) == len(LEVELS) and all(contrast(*pair) >= 4.5 for pair in pairs)


# Algorithms, segments and trees, addresses


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
