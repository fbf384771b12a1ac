"""The viewer's page in a real Chromium: it draws, says nothing on the console, obeys keys, and runs nobody's script."""

import re

import numpy as np
import pytest
from chromium import Chromium, find_chromium
from test_viewer import EVIL, SHARDS, evil_shards
from test_viewer_colours import PAIRS, contrast
from viewer_helpers import (
    PROMPT,
    SOLUTION,
    group_of,
    header,
    response,
    s_trace,
    spo_chain,
    spo_tree,
    tokens_of,
    with_trace,
)

from trl_credit.logs import Shard
from trl_credit.viewer import build_page, palette


pytestmark = pytest.mark.skipif(find_chromium() is None, reason="no Chromium here (Debian: apt-get install chromium)")


@pytest.fixture(scope="module")
def browser():
    with Chromium() as chromium:
        yield chromium


@pytest.fixture
def show(browser, tmp_path):
    """Opens the page of some shards; at the end, it must have said nothing and loaded nothing."""

    def show(shards, *, fragment="", title="runs/s_trace", **said):
        browser.resize(1280, 860)
        browser.prefer("light")
        file = tmp_path / "page.html"
        file.write_text(build_page(shards, title=title, **said), encoding="utf-8")
        browser.open(file, fragment=fragment)
        return browser

    yield show
    assert browser.messages == []
    assert [url.partition("#")[0] for url in browser.requests] == [(tmp_path / "page.html").as_uri()]


def texts(browser: Chromium, selector: str) -> list[str]:
    return browser.evaluate(f"[...document.querySelectorAll({selector!r})].map(e => e.textContent)")


def count(browser: Chromium, selector: str) -> int:
    return browser.evaluate(f"document.querySelectorAll({selector!r}).length")


def panel(browser: Chromium) -> dict[str, str]:
    """The numbers of the token, by their names."""
    rows = "[...document.querySelectorAll('#panel tbody tr')].map(r => [...r.children].map(c => c.textContent))"
    return {name: " ".join(values) for name, *values in browser.evaluate(rows)}


@pytest.mark.parametrize("name", SHARDS)
@pytest.mark.parametrize("width", [1280, 700])
def test_it_draws_all_tokens_and_says_nothing(show, name, width):
    page = show(SHARDS[name])
    page.resize(width, 800)
    page.settle()
    shown = "".join(texts(page, ".column:first-child .token")).replace("↵", "")
    assert shown == "".join(SHARDS[name][0].responses[0]["tokens"])
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing hangs over


def test_columns_come_back_in_the_browser(show):
    shard = s_trace()
    page = show([shard])
    for name in ("credit", "log_weight", "entropy", "selected", "trainer_logprobs", "advantages", "is_clipped"):
        got = page.evaluate(f"ROWS.map(row => [...row.column({name!r})])")
        for values, row in zip(got, shard.responses, strict=True):
            np.testing.assert_allclose(values, row[name], rtol=2e-5, err_msg=name)


def test_attacks_are_text(show):
    page = show(evil_shards(), title=EVIL, note=EVIL)
    assert page.evaluate("typeof window.hit") == "undefined"
    assert count(page, "img") == 0 and count(page, "script") == 2
    seen = EVIL.replace("\u0000", "")
    for selector in ("h1", "#facts", "#prompt div", ".note", ".column .facts", ".column .token"):
        assert any(seen in text.replace("\u0000", "") for text in texts(page, selector)), selector
    page.evaluate("go({ layout: 'tree' }); document.querySelectorAll('.node summary')[1].click()")
    page.settle()
    assert any(seen in text.replace("\u0000", "") for text in texts(page, "#tree .prose"))
    page.evaluate("go({ layout: 'group', token: 0 })")
    assert page.evaluate("typeof window.hit") == "undefined" and count(page, "img") == 0


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
    page = show([s_trace(10), s_trace(20)])
    page.evaluate("document.querySelector('.text').focus()")
    state = "[view.step, view.index, view.token]"
    page.press("ArrowRight")
    assert page.evaluate(state) == [10, 0, 0]
    page.press("ArrowRight")
    page.press("ArrowRight")
    page.press("ArrowLeft")
    assert page.evaluate(state) == [10, 0, 1]
    assert texts(page, ".current") == [s_trace().responses[0]["tokens"][1]]
    page.press("ArrowDown")
    below = page.evaluate("view.token")
    tops = "i => texts[0].spans[i].getClientRects()[0].top"
    assert page.evaluate(f"({tops})({below}) > ({tops})(1)")
    page.press("ArrowUp")
    assert page.evaluate(f"({tops})(view.token) === ({tops})(1)")
    page.press("End")
    assert page.evaluate("view.token") == len(s_trace().responses[0]["tokens"]) - 1
    page.press("Home")
    assert page.evaluate("view.token") == 0
    page.press("ArrowRight", shift=True)
    assert page.evaluate(state) == [10, 1, None]
    assert page.evaluate("document.activeElement.view.row.index") == 1
    page.press("ArrowDown", shift=True)
    assert page.evaluate(state) == [20, 1, None]
    page.press("ArrowUp", shift=True)
    assert page.evaluate("view.step") == 10


def test_everything_is_reached_by_tab_with_a_visible_focus_and_lists_obey_arrows(show):
    page = show([s_trace(10), s_trace(20)])
    seen = []
    for _ in range(11):
        page.press("Tab")
        seen.append(
            page.evaluate(
                "(e => [e.id || e.name || e.className || e.tagName, getComputedStyle(e.closest('.choice') ?? e)"
                ".outlineStyle])(document.activeElement)"
            )
        )
    stops = ["step", "metric", "layout", "theme", "group", "index", "text"]
    assert list(dict.fromkeys(name for name, _ in seen if name in stops)) == stops
    assert all(style != "none" for name, style in seen if name != "BODY"), seen
    page.evaluate("document.querySelector('#responses input:checked').focus()")
    page.press("ArrowDown")
    assert page.evaluate("[view.index, document.activeElement.name]") == [1, "index"]
    page.evaluate("document.querySelector('#groups input:checked').focus()")
    page.press("ArrowDown")
    assert page.evaluate("[view.group, document.activeElement.name]") == [1, "group"]


def test_roles_and_names_are_there(show):
    page = show([s_trace(10)], fragment="token=3")
    roles = page.roles()
    for wanted in (
        ("navigation", "Groups and responses"),
        ("main", ""),
        ("complementary", "Token"),
        ("heading", "runs/s_trace"),
        ("combobox", "Step"),
        ("combobox", "Colour"),
        ("listbox", "Response 0, 124 tokens"),
        ("region", "Legend"),
    ):
        assert wanted in roles, wanted
    assert sum(role == "radio" for role, _ in roles) == 2 + 2 + 4  # layouts, prompts, responses
    assert all(name for role, name in roles if role in ("radio", "button", "combobox", "listbox"))
    assert sum(role == "option" for role, _ in roles) >= 124  # and those of the selects
    current = page.evaluate("document.querySelector('[aria-activedescendant]').getAttribute('aria-activedescendant')")
    assert page.evaluate(f"document.getElementById({current!r}).getAttribute('aria-label')").startswith(
        "␣think: Effective credit +"
    )


def test_a_pointer_shows_the_numbers_and_where_the_credit_came_from(show):
    shard = s_trace()
    row = shard.responses[0]
    at = max(range(len(row["tokens"]) - 20), key=lambda t: row["selected"][t])
    page = show([shard])
    page.point(f"texts[0].spans[{at}]")
    page.settle()
    there = panel(page)
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
    assert count(page, ".origins li") == 8
    page.evaluate("document.querySelector('.origins button').click()")
    assert page.evaluate("view.token") == largest[0]


def test_a_trace_that_does_not_explain_the_credit_is_not_claimed(show):
    shard = s_trace()
    shard.responses[0]["credit"] = [2 * x for x in shard.responses[0]["credit"]]
    page = show([shard], fragment="token=0")
    assert "does not add up" in " ".join(texts(page, "#panel .note"))
    assert count(page, ".from") == 0


def test_unassigned_is_not_zero_and_neither_is_outside_the_loss(show):
    row = response("one two three four", policy_mask=[1, 0, 1, 1], loss_mask=[1, 1, 0, 1], credit=[0.0, 0.0, 0.0, 2.0])
    page = show([Shard(header("GRPO"), {}, [row])])
    looks = page.evaluate(
        "texts[0].spans.map(e => getComputedStyle(e)).map(s => "
        "[s.backgroundImage, s.textDecorationLine, s.fontStyle, s.backgroundColor].join())"
    )
    assert len(set(looks)) == 4
    assert page.evaluate("texts[0].spans.map(e => e.className)") == [
        "token zero", "token unassigned", "token outside", "token p6",
    ]  # fmt: skip
    page.evaluate("go({ metric: 'entropy' })")  # which an unassigned token has
    assert page.evaluate("texts[0].spans.map(e => e.classList[1][0])")[:2] == ["s", "s"]
    page.evaluate("go({ token: 1 })")
    assert panel(page)["Effective credit"] == "unassigned"


def test_credit_that_a_trace_sends_to_a_token_outside_the_policy_term_is_shown(show):
    row = with_trace(response("one two three", selected=[1, 0, 0]), decay=0.9, rate=1 / 3)
    row |= {"policy_mask": [0, 1, 1], "log_weight": [0.0] * 3, "is_clipped": [0] * 3, "selected": [1, 0, 0]}
    row["credit"] = [0.9 + 0.81, 1.0, 1.0]
    page = show([Shard(header("S-trace", trace_decay=0.9), {}, [row])], fragment="token=0")
    assert page.evaluate("texts[0].spans[0].className") == "token p6 masked current"
    there = panel(page)
    assert there["In the policy term"] == "no" and there["Effective credit"] == "+1.71"
    assert "0 of its own, +1.71 through its trace from 2 later tokens" in " ".join(texts(page, "#panel p"))


def test_values_beyond_the_scale_are_marked(show):
    rows = [response("word " * 400, credit=[1.0] * 399 + [50.0], tokens=["w"] * 400)]
    rows[0] |= {
        name: values[:1] * 400
        for name, values in rows[0].items()
        if isinstance(values, list) and name not in ("credit", "tokens")
    }
    page = show([Shard(header("GRPO"), {}, rows)])
    assert page.evaluate("[texts[0].spans[0].className, texts[0].spans[399].className]") == [
        "token p6",
        "token p6 over",
    ]
    assert page.evaluate("maximum('credit')") == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_on_every_colour_is_legible_as_drawn(show, scheme):
    page = show([s_trace()])
    page.prefer(scheme)
    classes = [f"{letter}{level}" for letter in "pns" for level in range(1, palette.LEVELS + 1)]
    pairs = page.evaluate(
        f"{classes}.map(c => {{ const e = texts[0].spans[0]; e.className = 'token ' + c; const s = getComputedStyle(e);"
        " return [s.color, s.backgroundColor] })"
    )
    for name, (ink, ground) in zip(classes, pairs, strict=True):
        rgb = [np.array([int(x) / 255 for x in re.findall(r"\d+", text)[:3]]) for text in (ink, ground)]
        linear = [np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4) for x in rgb]
        assert contrast(*linear) >= 4.5, name
        hexes = PAIRS[name].split(", ")[scheme == "dark"]
        assert "#" + "".join(f"{round(255 * x):02x}" for x in rgb[1]) == hexes


def test_the_button_changes_the_colours(show):
    page = show([s_trace()])
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.evaluate("document.getElementById('theme').click()")
    dark = page.evaluate(ground)
    assert light != dark and texts(page, "#theme") == ["Light"]
    page.prefer("dark")
    page.settle()
    assert page.evaluate(ground) == dark  # now as the system says
    page.evaluate("document.getElementById('theme').click()")
    assert page.evaluate(ground) == light


def test_algorithms_stand_side_by_side_on_the_same_response(show):
    page = show(SHARDS["explained"], fragment="token=45")
    assert [text.split(" ")[0] for text in texts(page, ".column h2")] == ["GRPO", "S-trace"]
    assert texts(page, "#panel thead th") == ["GRPO", "S-trace"]
    assert len(set(texts(page, ".current"))) == 1 and count(page, ".current") == 2
    one, other = panel(page)["Effective credit"].split()
    assert float(other) > 5 * float(one)
    page.evaluate("go({ layout: 'group', algorithm: 'S-trace' })")
    assert count(page, ".column") == 4 and page.evaluate("texts.every(t => t.row.header.algorithm === 'S-trace')")


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
    assert texts(page, "#panel thead th") == ["Credit", "A", "W"]
    assert texts(page, "#panel .many tbody th") == [f"Algorithm {k}" for k in range(6)]
    assert texts(page, "#panel .many td:nth-child(3)") == ["0", "+1", "+2", "+3", "+4", "+5"]
    assert "Entropy, nats" in texts(page, "#panel .shared th") and "Advantage A" not in texts(page, "#panel .shared th")
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
    assert texts(page, "#scale option:checked") == ["one for all"]
    strips = "[0, 5].map(k => document.querySelectorAll('.column .strip')[k].innerHTML)"
    one, small = page.evaluate(strips)
    assert one != small and "p1" in small
    page.evaluate("(s => { s.value = 'own'; s.dispatchEvent(new Event('change', { bubbles: true })) })(BOX.scale)")
    first, last = page.evaluate(strips)
    assert first.replace(" over", "") == last.replace(" over", "") and "p1" not in last
    looks = page.evaluate("[0, 5].map(k => (texts[k].fill(), texts[k].spans[45].className))")
    assert looks[0] == looks[1]
    ends = [float(text.removeprefix(" scale ends at ")) for text in texts(page, ".column .end")]
    assert ends[0] == pytest.approx(100 * ends[5], rel=0.01)
    assert "scale=own" in page.evaluate("location.hash")
    page = show([s_trace()])
    assert page.evaluate("BOX['scale-choice'].hidden")


def test_a_group_stands_side_by_side_and_is_filled_when_it_comes_into_sight(show):
    rows = [{**group_of("GRPO")[0], "index": i, "reward": i / 15} for i in range(16)]
    page = show([Shard(header("GRPO"), {}, rows)], fragment="layout=group")
    filled = "texts.map(t => t.spans !== null)"
    before = page.evaluate(filled)
    assert before[0] and not before[15]
    assert [text.split("reward ")[1] for text in texts(page, ".column h2")][:3] == ["0", "0.0667", "0.133"]
    page.evaluate("go({ index: 15 })")
    page.settle()
    page.settle()
    assert page.evaluate(filled)[15] and count(page, ".column.chosen") == 1
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert all(page.evaluate(filled))


def test_segments_have_their_values_above_and_turns_their_names(show):
    page = show([spo_chain()])
    assert texts(page, ".boundary") == ["V 0.25", "V 0.375", "V 0.25", "V 0.75", "V 0.875", "V 1"]
    ends = page.evaluate(
        "[...document.querySelectorAll('.boundary')].slice(0, -1)"
        ".map(e => [e.firstChild, e.nextSibling].map(one => one.getClientRects()[0].bottom))"
    )
    assert all(label < text - 8 for label, text in ends)
    page = show(SHARDS["turns"])
    assert texts(page, ".turn") == ["turn 1", "not by the policy", "turn 2"]
    assert texts(page, ".tool") == [" 15↵\n"] or "15" in texts(page, ".tool")[0]


def test_a_tree_opens_and_leads_to_the_responses(show):
    page = show(SHARDS["tree"], fragment="layout=tree")
    assert texts(page, "#tree h2") == ["12 segments, 9 leaves"]
    assert count(page, ".node") == 4
    page.evaluate("document.querySelectorAll('.node > summary')[1].focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    page.settle()
    assert count(page, ".node") == 7
    lines = texts(page, ".node .node .node > summary")
    assert [line.partition("Setting")[0] for line in lines] == ["V 1A +0.333", "V 1A +0.333", "V 0A −0.667"]
    page.evaluate("document.querySelectorAll('.node button')[1].click()")
    assert page.evaluate("[view.layout, view.index]") == ["one", 1] and texts(page, ".boundary")[1] == "V 0.667"


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
    assert texts(page, "#groups .facts") == ["replayed from an earlier batch", "V 0.444 · tree"]
    assert page.evaluate("[view.group, view.index]") == [1, 0]
    assert "Let's think" in texts(page, "#prompt div")[0]  # this response's prompt, with what it goes on from
    assert (
        texts(page, "#groups .start")[1].startswith("Train A makes") and "Let's" not in texts(page, "#groups .start")[1]
    )
    missing = "[...document.querySelectorAll('#responses .bar')].map(e => e.classList.contains('missing'))"
    assert page.evaluate(missing) == [False, True, False]
    grounds = "[...document.querySelectorAll('#responses .bar')].map(e => getComputedStyle(e).backgroundImage)"
    first, second, third = page.evaluate(grounds)
    assert first == third != second
    page.evaluate("go({ group: 0 })")
    assert all(text.startswith("replayed from an earlier batch · ") for text in texts(page, "#responses .facts"))
    assert texts(page, ".column h2")[0] == "Response 0 replayed from an earlier batch"


def test_every_colouring_there_is_can_be_chosen(show):
    page = show([s_trace()])
    metrics = page.evaluate("METRIC_NAMES")
    assert metrics == ["credit", "advantages", "log_weight", "trace", "clip", "entropy", "probability", "mismatch"]
    for metric in metrics:
        page.evaluate(
            f"(s => {{ s.value = {metric!r}; s.dispatchEvent(new Event('change', {{ bubbles: true }})) }})"
            "(document.getElementById('metric'))"
        )
        assert texts(page, "#legend b") == [page.evaluate(f"METRICS.{metric}.label")]
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
    assert page.evaluate("[view.step, view.group, view.index]") == [20, 1, 2]
    page = show([s_trace(10), s_trace(20)], fragment="step=20&group=1&index=3&token=5&metric=entropy&layout=group")
    assert page.evaluate("[view.step, view.group, view.index, view.token, view.metric, view.layout]") == [
        20, 1, 3, 5, "entropy", "group",
    ]  # fmt: skip
    page.evaluate("go({ index: 1 })")
    assert "index=1" in page.evaluate("location.hash")
    page = show([s_trace(10)], fragment="step=99&group=-1&index=x&token=99999&metric=__proto__&layout=<b>")
    assert page.evaluate("[view.step, view.group, view.index, view.metric, view.layout]") == [10, 0, 0, "credit", "one"]


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
    assert count(page, ".token.unknown") + count(page, ".samples .token") > 0 and "mine" in texts(page, "#facts")[0]
    page = show([Shard(header("GRPO"), {}, [])])
    assert "no responses" in texts(page, "#columns")[0]
    nothing = {name: [] if isinstance(value, list) else value for name, value in response("x").items()}
    page = show([Shard(header("GRPO"), {}, [nothing])])
    assert "No tokens" in texts(page, ".text")[0]
