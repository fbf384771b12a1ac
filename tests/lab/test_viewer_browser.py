"""The viewer's page in a real Chromium: it draws, logs nothing, obeys keys, and runs no foreign script."""

import re

import numpy as np
import pytest
from viewer_helpers import SHARDS, header, response, s_trace

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
