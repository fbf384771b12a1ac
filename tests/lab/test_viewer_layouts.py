"""The viewer's page in a real Chromium: algorithms, groups, segments and trees, addresses and print."""

import numpy as np
import pytest
from viewer_helpers import (
    EVIL,
    PROMPT,
    SHARDS,
    SOLUTION,
    explained,
    group_of,
    header,
    response,
    s_trace,
    spo_chain,
    spo_tree,
    tokens_of,
)

from trl_credit.observe.schema import Shard


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


def many() -> list[Shard]:
    """The same responses under six algorithms, the last of which credits a hundredth."""
    shards = []
    for k in range(6):
        rows = [{**row, "completion": "", "advantages": [k] * len(row["tokens"])} for row in group_of("GRPO")]
        for row in rows:
            row["credit"] = [x / (100 if k == 5 else 1) for x in row["credit"]]
        shards.append(Shard(header(f"Algorithm {k}"), {}, rows))
    return shards


def test_many_algorithms_are_stacked_and_are_the_lines_of_the_panel(show):
    page = show(many(), fragment="token=45")
    boxes = page.evaluate(
        "[...document.querySelectorAll('.column')].map(e => e.getBoundingClientRect()).map(r => [r.left, r.top])"
    )
    assert len(boxes) == 6 and len({left for left, _ in boxes}) == 1 and boxes == sorted(boxes, key=lambda box: box[1])
    assert page.texts("#panel thead th") == ["Credit", "A", "W"]
    assert page.texts("#panel .many tbody th") == [f"Algorithm {k}" for k in range(6)]
    assert page.texts("#panel .many td:nth-child(3)") == ["0", "+1", "+2", "+3", "+4", "+5"]
    assert "Entropy, nats" in page.texts("#panel .shared th") and "Advantage A" not in page.texts("#panel .shared th")
    assert page.evaluate("BOX.panel.scrollWidth <= BOX.panel.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    page.evaluate("texts[4].box.focus()")
    page.press("ArrowRight")
    assert page.evaluate("[view.token, activeText() === texts[4], scrollY < 1200]") == [46, True, True]
    page.evaluate(
        "document.querySelectorAll('.text').forEach(e => { e.style.maxHeight = '4em' }), texts[0].box.scrollTop = 30"
    )
    page.settle()
    page.settle()
    assert page.evaluate("texts.map(t => t.box.scrollTop)") == [30] * 6


def test_algorithms_have_one_scale_or_each_its_own(show):
    page = show(many())
    assert page.texts("#scale option:checked") == ["each its own"]
    strips = "[0, 5].map(k => document.querySelectorAll('.column .strip')[k].innerHTML)"
    first, last = page.evaluate(strips)
    assert first.replace(" over", "") == last.replace(" over", "") and "p1" not in last
    looks = page.evaluate("[0, 5].map(k => (texts[k].fill(), texts[k].spans[45].className))")
    assert looks[0] == looks[1]
    ends = [float(text.removeprefix(" colours end at ±")) for text in page.texts(".column .end")]
    assert ends[0] == pytest.approx(100 * ends[5], rel=0.01)
    assert page.texts(".scalebox") == ["−end+end"]
    page.select("metric", "entropy")  # which is the same under all: no column has an end of its own
    assert set(page.texts(".column .end")) == {""} and "end" not in page.texts(".scalebox")[0]
    page.select("metric", "credit")
    page.evaluate("go({ layout: 'group', algorithm: 'Algorithm 5' })")
    assert float(page.texts(".scalebox")[0].partition("+")[2]) == pytest.approx(ends[5])
    page.evaluate("go({ layout: 'one' })")
    page.select("scale", "one")
    one, small = page.evaluate(strips)
    assert one != small and "p1" in small and set(page.texts(".column .end")) == {""}
    assert "scale=one" in page.evaluate("location.hash")
    page = show([s_trace()])
    assert page.evaluate("BOX['scale-choice'].hidden")


def test_an_own_scale_is_of_the_group_that_is_shown(show):
    shards = explained()
    for shard in shards:
        shard.responses += [
            {**row, "group": 1, "credit": [10 * x for x in row["credit"]]} for row in shard.responses[:4]
        ]
    page = show(shards, fragment="group=0")
    page.evaluate("go({ token: null })")
    small = [float(text.partition("±")[2]) for text in page.texts(".column .end")]
    looks = "texts.map(text => text.spans.map(span => span.className))"
    before = page.evaluate(looks)
    page.evaluate("go({ group: 1 })")
    large = [float(text.partition("±")[2]) for text in page.texts(".column .end")]
    assert large == pytest.approx([10 * end for end in small], rel=0.01) and page.evaluate(looks) == before


def test_equal_lists_of_contributions_are_shown_once(show):
    grpo, trace = explained()
    again = Shard({**trace.header, "algorithm": "S-trace, as trained"}, {}, trace.responses)
    half = [{**row, "credit": [x / 2 for x in row["credit"]]} for row in trace.responses]
    page = show([grpo, again, trace], fragment="token=26")
    assert page.texts("#panel h3") == ["Where it came from: S-trace, as trained and S-trace"]
    assert page.count(".origins") == 1 and page.count(".origins li") == 8
    page = show([grpo, trace, Shard({**trace.header, "algorithm": "half"}, {}, half)], fragment="token=26")
    assert page.texts("#panel h3") == ["Where it came from: S-trace", "Where it came from: half"]


@pytest.mark.parametrize("name", SHARDS)
def test_on_a_phone_nothing_is_cut_off_and_the_panel_leaves_room(show, name, tmp_path):
    page = show(SHARDS[name])
    for fragment in ("layout=one&token=3", "layout=group&token=3", "layout=tree"):
        page.open(tmp_path / "page.html", fragment=fragment)
        page.resize(390, 844)
        page.settle()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        cut = "[...document.querySelectorAll('main *, nav *, #panel *')].filter(e => e.scrollWidth > e.clientWidth + 1"
        cut += " && /auto|scroll/.test(getComputedStyle(e).overflowX)).map(e => e.id || e.className)"
        assert page.evaluate(cut) == []
        assert page.evaluate("document.querySelector('aside').getBoundingClientRect().height") <= 0.4 * 844


def test_a_group_is_a_grid_as_wide_as_the_page(show):
    page = show([Shard(header("GRPO"), {}, [{**group_of("GRPO")[0], "index": i} for i in range(5)])])
    page.evaluate("go({ layout: 'group' })")
    boxes = "[...document.querySelectorAll('.column')].map(e => e.getBoundingClientRect()).map(r => [r.left, r.right])"
    for width, columns in ((1280, 2), (2200, 5), (390, 1)):
        page.resize(width, 860)
        page.settle()
        left, right = page.evaluate("(r => [r.left, r.right])(BOX.columns.getBoundingClientRect())")
        found = page.evaluate(boxes)
        assert len({round(start) for start, _ in found}) == columns
        assert min(start for start, _ in found) == pytest.approx(left, abs=1)
        assert max(end for _, end in found) == pytest.approx(right, abs=1)


def test_a_group_stands_side_by_side_and_is_filled_when_it_comes_into_sight(show):
    rows = [{**group_of("GRPO")[0], "index": i, "reward": i / 15} for i in range(16)]
    page = show([Shard(header("GRPO"), {}, rows)], fragment="layout=group")
    filled = "texts.map(t => t.spans !== null)"
    before = page.evaluate(filled)
    assert before[0] and not before[15]
    assert [text.split("reward ")[1] for text in page.texts(".column h2")][:3] == ["0", "0.0667", "0.133"]
    page.evaluate("go({ index: 15 })")
    page.settle()
    page.settle()
    assert page.evaluate(filled)[15] and page.count(".column.chosen") == 1
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert all(page.evaluate(filled))


def test_segments_have_their_values_above_and_turns_their_names(show):
    page = show([spo_chain()])
    assert page.texts(".boundary") == ["V 0.25", "V 0.375", "V 0.25", "V 0.75", "V 0.875", "V 1"]
    ends = page.evaluate(
        "[...document.querySelectorAll('.boundary')].slice(0, -1)"
        ".map(e => [e.firstChild, e.nextSibling].map(one => one.getClientRects()[0].bottom))"
    )
    assert all(label < text - 8 for label, text in ends)
    page = show(SHARDS["turns"])
    assert page.texts(".turn") == ["turn 1", "not by the policy", "turn 2"]
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


def replayed_and_fresh() -> Shard:
    """A group whose tree is of an earlier batch, and one with its tree, of which few leaves are rows."""
    shard = spo_tree()
    nodes = shard.trees[0]
    leaf = shard.responses[3]
    first = nodes[leaf["nodes"][0]]["text"]
    cut = len(tokens_of(first))
    late = {name: x[cut:] if isinstance(x, list) and len(x) == len(leaf["tokens"]) else x for name, x in leaf.items()}
    late |= {"prompt": PROMPT + first, "segment_nodes": leaf["nodes"][1:], "segment_ids": [0] * len(late["tokens"])}
    inner = {**leaf, "reward": None, "rewards": {}, "index": 1, "prompt": PROMPT + first}
    zero = {**leaf, "reward": 0.0, "index": 2, "prompt": PROMPT + first}
    fresh = [{**row, "group": 1} for row in ({**late, "index": 0}, inner, zero)]
    old = [{**response(SOLUTION, index=i), "reward": None, "rewards": {}} for i in (0, 1)]
    said = header("SPO-tree", settings={"rollouts": "tree"})
    return Shard(said, {1: nodes}, [*old, *fresh])


def test_a_group_with_a_tree_shows_the_value_of_its_root_and_comes_first(show):
    page = show([replayed_and_fresh()])
    assert page.texts("#groups .facts") == ["replayed from an earlier batch", "V 0.444 · tree"]
    assert page.view("group", "index") == [1, 1]
    page.evaluate("go({ index: 0 })")
    assert "Let's think" in page.texts("#prompt div")[0]  # this response's prompt, with what it goes on from
    assert (
        page.texts("#groups .start")[1].startswith("Train A makes") and "Let's" not in page.texts("#groups .start")[1]
    )
    missing = "[...document.querySelectorAll('#responses .bar')].map(e => e.classList.contains('missing'))"
    assert page.evaluate(missing) == [False, True, False]
    grounds = "[...document.querySelectorAll('#responses .bar')].map(e => getComputedStyle(e).backgroundImage)"
    first, second, third = page.evaluate(grounds)
    assert first == third != second
    page.evaluate("go({ group: 0 })")
    assert all(text.startswith("replayed from an earlier batch · ") for text in page.texts("#responses .facts"))
    assert page.texts(".column h2")[0] == "Response 0 replayed from an earlier batch"


@pytest.mark.parametrize(("shards", "width"), [(many, 1280), (explained, 1280), (lambda: [spo_chain()], 390)])
def test_the_legend_is_one_line_and_its_definition_opens(show, shards, width):
    page = show(shards())
    page.resize(width, 860)
    page.settle()
    middles = "[...BOX.legend.children].filter(e => e.getClientRects().length).map(e => e.getBoundingClientRect())"
    middles = page.evaluate(f"{middles}.map(r => r.y + r.height / 2)")
    assert len(middles) >= 3 and max(middles) - min(middles) < 8
    assert page.evaluate("document.getElementById('about').hidden")
    page.evaluate("document.getElementById('define').focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    there = "[BOX.legend.querySelector('[aria-expanded]').ariaExpanded, document.getElementById('about').hidden]"
    assert page.evaluate(there) == ["true", False]
    assert "−∂L/∂ℓ" in page.texts("#about")[0]
    page.select("metric", "entropy")
    assert page.evaluate(there) == ["true", False] and "next-token distribution" in page.texts("#about")[0]


def test_the_prompt_is_open_and_the_gold_answer_below_it(show):
    shard = s_trace()
    for row in shard.responses[:4]:
        row |= {"answer": EVIL, "prompt": PROMPT + "word " * 4000}
    page = show([shard])
    assert page.evaluate("BOX.prompt.open")
    assert 50 < page.evaluate("document.querySelector('#prompt .prose').clientHeight") < 250
    assert page.texts("#answer code") == [EVIL] and not page.evaluate("BOX.answer.hidden")
    page.evaluate("go({ group: 1 })")
    assert page.evaluate("BOX.answer.hidden")


def test_the_line_below_the_title_says_in_words_what_is_shown(show):
    page = show([s_trace()])
    pushed = "how much each token's log-probability {} pushed up (blue) or down (orange)"
    assert page.texts("#facts") == [f"S-trace on Qwen3-1.7B, step 10: {pushed.format('was')}"]
    assert page.texts("#settings dt") == ["S-trace"] and "importance eligible" in page.texts("#settings dd")[0]
    page.select("metric", "entropy")
    assert page.texts("#facts")[0].endswith("how unsure the policy was at each token (strong purple: unsure)")
    page = show(explained())
    said = f"GRPO and S-trace on the same responses of Qwen3-1.7B, step 10: {pushed.format('would be')}"
    assert page.texts("#facts") == [said] and page.texts("#settings dt") == ["GRPO", "S-trace"]
    page = show(many())
    assert page.texts("#facts")[0].startswith("6 algorithms on the same responses of Qwen3-1.7B, step 10: ")


def test_a_page_without_steps_has_none(show):
    page = show(explained(step=None), fragment="index=0&token=3")
    assert page.evaluate("BOX['step-choice'].hidden") and "step" not in page.texts("#facts")[0]
    assert page.count(".column") == 2 and "step" not in page.evaluate("location.hash")
    page.evaluate("document.querySelector('.text').focus()")
    page.press("ArrowDown", shift=True)
    assert page.view("step", "index") == [None, 0]


def test_every_colouring_there_is_can_be_chosen(show):
    page = show([s_trace()])
    metrics = page.evaluate("METRIC_NAMES")
    assert metrics == ["credit", "advantages", "log_weight", "trace", "clip", "entropy", "probability", "mismatch"]
    for metric in metrics:
        page.select("metric", metric)
        assert page.texts("#legend b") == [page.evaluate(f"METRICS.{metric}.label")]
        assert page.evaluate(
            "ROWS.some(row => [...Array(row.length).keys()].some(i => /^[pns]\\d/.test(classOf(row, i, view.metric))))"
        ), metric
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
    assert page.view("step", "group", "index", "token", "metric", "layout") == [
        20, 1, 3, 5, "entropy", "group",
    ]  # fmt: skip
    page.evaluate("go({ index: 1 })")
    assert "index=1" in page.evaluate("location.hash")
    page = show([s_trace(10)], fragment="step=99&group=-1&index=x&token=99999&metric=__proto__&layout=<b>")
    assert page.view("step", "group", "index", "metric", "layout") == [10, 0, 2, "credit", "one"]


@pytest.mark.parametrize("width", [1280, 700])
def test_the_cursor_stays_in_sight_beside_or_above_the_panel(show, width, tmp_path):
    page = show([s_trace()])
    page.resize(width, 1000)
    page.open(tmp_path / "page.html", fragment="token=45")
    page.evaluate("activeText().box.focus({ preventScroll: true })")
    for key in ["", *["ArrowDown"] * 9, "Home", "End", "ArrowUp"]:
        if key:
            page.press(key)
        page.settle()
        where = "(r => document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2)?.closest('.token')?.i)"
        assert page.evaluate(f"{where}(texts[0].spans[view.token].getClientRects()[0]) === view.token"), key


def test_print_has_the_text_in_light_colours_without_the_tools(show):
    page = show([s_trace()])
    page.prefer("dark", media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    hidden = "['nav', '.tools'].map(s => getComputedStyle(document.querySelector(s)).display)"
    assert page.evaluate(hidden) == ["none", "none"]
    assert page.evaluate("getComputedStyle(document.querySelector('.token')).printColorAdjust") == "exact"
    page.prefer("light")


def test_logs_with_next_to_nothing_are_shown(show):
    bare = {"group": 0, "index": 0, "completion": "a b", "tokens": ["a", " b", "", "\n"]}
    page = show([Shard({"step": 1, "algorithm": "mine"}, {}, [bare])], fragment="token=0")
    assert page.count(".token.unknown") + page.count(".samples .token") > 0 and "mine" in page.texts("#facts")[0]
    page = show([Shard(header("GRPO"), {}, [])])
    assert "no responses" in page.texts("#columns")[0]
    nothing = {name: [] if isinstance(value, list) else value for name, value in response("x").items()}
    page = show([Shard(header("GRPO"), {}, [nothing])])
    assert "No tokens" in page.texts(".text")[0]
