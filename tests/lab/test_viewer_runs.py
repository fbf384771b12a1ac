"""The viewer's page in a real Chromium: several runs, a prompt over steps, totals, search, files, groups, frames."""

import csv
import io
import json
import math

import pytest
from viewer_helpers import SHARDS, Page, header, response, s_trace, spo_tree

import trl_credit
from trl_credit.cli import main
from trl_credit.lab.viewer.runs import named_runs, read_runs
from trl_credit.observe.schema import Shard, shard_path, write_shard


pytest_plugins = ["viewer_browser"]

ASKED, OTHER = "What is 3 * 5?", "What is 2 + 2?"


def shard_of(texts: dict[str, list[str]], *, step: int = 10, credit: float = 1.0) -> Shard:
    """Responses by their prompt, token t with `credit` · (t + 1); the first of a group is right."""
    rows = []
    for group, (prompt, responses) in enumerate(texts.items()):
        for index, text in enumerate(responses):
            row = response(text, group=group, index=index, reward=float(index == 0))
            credits = [credit * (t + 1) for t in range(len(row["tokens"]))]
            rows.append({**row, "prompt": prompt, "credit": credits})
    return Shard(header("GRPO", step=step), {}, rows)


@pytest.fixture
def runs(tmp_path):
    """Two runs with steps 10 and 20, and 10 and 30, whose responses part after some tokens. The second asks in another
    order."""
    one, other = tmp_path / "one" / "seed-0", tmp_path / "other" / "seed-0"
    same = {ASKED: ["It is 15 .", "It is 8 ."], OTHER: ["four", "five six"]}
    apart = {OTHER: ["four", "five"], ASKED: ["It is 15 .", "It is then 8 ."]}
    for folder, step, texts, credit in ((one, 10, same, 1.0), (one, 20, same, 1.0), (other, 10, apart, 3.0)):
        write_shard(shard_path(folder, step), shard_of(texts, step=step, credit=credit))
    write_shard(shard_path(other, 30), shard_of(apart, step=30))
    return one, other


def test_runs_stand_side_by_side_by_their_prompts(runs, tmp_path, monkeypatch, capsys):
    one, other = runs
    shards, note = read_runs(named_runs([f"a={one}", other]))
    names = [(s.header["algorithm"], s.header["step"]) for s in shards]
    assert names == [("a", 10), ("a", 20), ("seed-0", 10), ("seed-0", 30)]
    assert note == "" and shards[0].header["settings"]["algorithm"] == "GRPO"
    numbers = [{r["prompt"]: r["group"] for r in shards[i].responses} for i in (0, 2)]
    assert numbers[0] == numbers[1] == {ASKED: 0, OTHER: 1}
    assert [*named_runs(runs)] == [*map(str, runs)]  # the last parts of their paths are equal
    with pytest.raises(ValueError, match="two runs are named 'a'"):
        named_runs([f"a={one}", f"a={other}"])
    for word in ("=x", "x="):
        with pytest.raises(ValueError, match="lacks a name or a folder"):
            named_runs([word])
    with pytest.raises(ValueError, match="no run was given"):
        trl_credit.show_credit([])
    lone = tmp_path / "lone"
    write_shard(shard_path(lone, 10), shard_of({"Another?": ["yes", "no"]}))
    shards, note = read_runs({"a": one, "b": lone}, [10])
    assert "No step shows the same prompt in two runs" in note and {r["group"] for r in shards[1].responses} == {2}
    tree = spo_tree()
    write_shard(shard_path(tmp_path / "tree", 10), tree)
    moved = read_runs({"a": one, "tree": tmp_path / "tree"}, [10])[0][1]
    assert [node["text"] for node in moved.trees[2]] == [node["text"] for node in tree.trees[0]]
    assert {r["group"] for r in moved.responses} == {2}
    monkeypatch.chdir(tmp_path)
    assert main(["view", f"mine={one}", str(other)]) == 0
    assert "view.html" in capsys.readouterr().out
    data = Page((tmp_path / "view.html").read_text("utf-8")).data
    assert data["start"]["step"] == 10  # the last one that both have
    with pytest.raises(SystemExit):
        main(["view", str(one), str(other), "--terminal"])
    assert "name one" in capsys.readouterr().err
    without_credit = shard_of({ASKED: ["It is 15 ."]}, step=30)
    without_credit.responses[0]["credit"] = [0.0] * len(without_credit.responses[0]["tokens"])
    write_shard(shard_path(one, 30), without_credit)
    assert main(["view", str(one), "--output", "view.html"]) == 0
    assert Page((tmp_path / "view.html").read_text("utf-8")).data["start"]["step"] == 20  # the last one with credit
    html = trl_credit.show_credit({"mine": one, "theirs": other}).html
    assert [s["header"]["algorithm"] for s in Page(html).data["shards"]] == ["mine", "theirs"]


def test_a_difference_ends_where_the_texts_part(runs, show):
    shards, _ = read_runs({"a": runs[0], "b": runs[1]})
    page = show(shards, fragment="step=10&group=0&index=1&metric=difference&token=1")
    assert page.evaluate("[...valuesOf(texts[0].row, 'difference')].map(x => isNaN(x) ? null : x)")[:2] == [-2, -4]
    looks = page.evaluate("texts[0].spans.map(e => e.classList[1])")
    assert [look[0] for look in looks[:2]] == ["n", "n"] and set(looks[2:]) == {"apart"} and page.view("base") == ["b"]
    assert page.panel()["Effective credit"].split() == ["+2", "+6"]
    assert [text.split(" ")[0] for text in page.texts(".column h2")] == ["a", "b"]
    assert "on the same" not in page.texts("#facts")[0]
    page.evaluate("go({ token: 3 })")  # another token in each run
    assert page.panel()["Effective credit"] == "+4" and page.count(".current") == 1
    page.select("base", "a")
    assert page.evaluate("[...valuesOf(texts[1].row, 'difference')].slice(0, 2)") == [2, 4]
    page.evaluate("go({ index: 0 })")
    assert page.evaluate("[...valuesOf(texts[1].row, 'difference')]")[:2] == [2, 4]
    page.evaluate("go({ step: 20 })")
    assert page.evaluate("texts.length") == 1  # one run logged it, so there is no difference
    assert page.view("metric") == ["credit"] and "Difference in credit" not in page.texts("#metric option")
    assert "difference" not in show([s_trace()]).evaluate("METRIC_NAMES")


def test_one_prompt_is_shown_over_all_steps(show):
    shards = [s_trace(step) for step in (10, 20, 30)]
    for row in shards[1].responses:  # in another order
        row["group"] = 1 - row["group"]
    page = show(shards, fragment="step=10&group=0&index=1&layout=steps")
    heads = page.texts(".column h2")
    assert [text.partition(" reward")[0] for text in heads] == ["Step 10", "Step 20", "Step 30"]
    rows = page.evaluate("texts.map(t => [t.row.header.step, t.row.group, t.row.index])")
    assert rows == [[10, 0, 1], [20, 1, 1], [30, 0, 1]]
    page.evaluate("texts[1].spans[4].click()")
    assert page.view("step", "group", "index", "token") == [20, 1, 1, 4] and page.count(".chosen") == 1
    page.evaluate("texts[1].box.focus()")
    page.press("ArrowDown", shift=True)
    assert page.view("step", "group", "layout") == [30, 0, "steps"]
    assert "in 3 steps" in page.texts("#groups .facts")[0]
    page = show([s_trace()], fragment="layout=steps")
    assert page.view("layout") == ["one"] and "Over steps" not in page.texts("#layouts span")


def test_totals_are_the_sums_over_tokens_and_positions(show):
    shard = s_trace()
    shard.responses[0]["loss_mask"][:5] = [0] * 5
    page = show([shard], fragment="layout=totals")
    sums, places = {}, {}
    width = math.ceil(max(len(row["tokens"]) for row in shard.responses) / 20)
    for row in shard.responses:
        for t, (token, credit, mask) in enumerate(zip(row["tokens"], row["credit"], row["loss_mask"], strict=True)):
            if mask:
                sums[token] = sums.get(token, 0.0) + credit
                places[t // width * width] = places.get(t // width * width, 0.0) + credit
    there = page.evaluate(
        "(s => [s.byToken, s.byPlace].map(all => all.map(([key, own]) => [key, own.get('S-trace').sum])))"
        "(sums(['S-trace']))"
    )
    for rows, expected in zip(there, (sums, places), strict=True):
        assert dict(rows) == pytest.approx(expected, rel=1e-3, abs=1e-2)
    assert page.texts("#totals h2") == ["By token", "By position"] and page.count("#totals table") == 2
    count = page.evaluate("sums(['S-trace']).byPlace[0][1].get('S-trace').count")
    page.select("scope", "group")
    assert page.evaluate("sums(['S-trace']).byPlace[0][1].get('S-trace').count") < count


def test_search_goes_through_all_responses(show):
    page = show([s_trace(10), s_trace(20)], start={"step": 10, "group": 0, "index": 0})
    rows = [row for step in (10, 20) for row in s_trace(step).responses]
    expected = sum("".join(row["tokens"]).count("B starts") for row in rows)
    page.evaluate("document.getElementById('search').focus()")
    page.call("Input.insertText", text="b STARTS")
    assert page.texts("#hits") == [f"{expected} hits"] and page.count(".hit") >= 2
    assert "B starts" in "".join(page.texts(".hit"))
    places = []
    for _ in range(expected + 1):
        page.press("Enter")
        places.append(page.view("step", "group", "index", "token"))
    assert places[0][:3] == [10, 0, 0] and places[0] == places[-1]
    assert len({tuple(place) for place in places}) == expected
    page.press("Enter", shift=True)
    assert page.view("step", "group", "index", "token") == places[-2]
    page.evaluate("search('odd numbers')")  # in a prompt
    assert page.texts("#hits") == ["2 hits"]
    page.evaluate("search('')")
    assert page.count(".hit") == 0 and page.texts("#hits") == [""]


def saved(page, tmp_path, button: str) -> bytes:
    """What a button saves."""
    page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.evaluate(f"document.getElementById({button!r}).click()")
    for _ in range(200):
        page.settle()
        if files := list(tmp_path.glob(f"*.{button}")):
            break
    page.requests[1:] = []  # the file itself
    return files[0].read_bytes()


def test_what_is_shown_is_saved_as_numbers_and_as_a_picture(show, tmp_path):
    shard = s_trace()
    shard.responses[0]["tokens"][0] = '=1+"2",\n'
    page = show([shard], fragment="step=10&group=0&layout=group")
    text = saved(page, tmp_path, "csv").decode("utf-8-sig")
    lines = list(csv.DictReader(io.StringIO(text, newline="")))
    rows = [row for row in shard.responses if row["group"] == 0]
    assert [json.loads(line["token"]) for line in lines] == [token for row in rows for token in row["tokens"]]
    assert not any(cell[:1] in "=+@" and cell for line in lines for cell in line.values())  # a spreadsheet's formulas
    credits = [credit for row in rows for credit in row["credit"]]
    assert [float(line["credit"]) for line in lines] == pytest.approx(credits, rel=1e-4)
    assert {line["step"] for line in lines} == {"10"} and [line["position"] for line in lines][:2] == ["1", "2"]
    picture = saved(page, tmp_path, "png")
    assert picture[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(picture[16:20], "big") == 2000
    pixels = "c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer"
    colours = page.evaluate(f"(c => new Set(new Uint32Array({pixels})).size)(picture(paragraphs()))")
    assert colours > 20
    page = show([spo_tree()], fragment="layout=tree")
    lines = list(csv.DictReader(io.StringIO(page.evaluate("csv(table())"), newline="")))
    assert [json.loads(line["text"]) for line in lines] == [node["text"] for node in spo_tree().trees[0]]


@pytest.mark.parametrize("width", [900, 700])
def test_the_panel_of_a_token_covers_no_token(show, width):
    page = show([s_trace()])
    page.resize(width, 760)  # the frame of a notebook
    for token in (0, 60, 110):
        page.evaluate(f"go({{ token: {token} }}, {{ scroll: true }})")
        page.settle()
        panel, low, high = page.evaluate(
            "(r => [document.querySelector('aside').getBoundingClientRect().top, r.top, r.bottom])"
            "(document.querySelector('.current').getBoundingClientRect())"
        )
        assert 0 <= low < high <= panel + 1 and page.count("#panel table") == 1
        there = "document.querySelector('.current').getBoundingClientRect()"
        assert page.evaluate(f"document.elementFromPoint({there}.x + 2, {there}.y + 2).matches('.current')")


def test_groups_teachers_and_turns_say_what_their_pages_explain(show):
    shard = shard_of({ASKED: ["It is 15 .", "It is 8 ."], OTHER: ["four", "four"], OTHER + " ": ["yes", "no"]})
    twin = [{**row, "group": 3} for row in shard.responses if row["group"] == 0]
    for row in (row for row in shard.responses if row["group"] == 1):
        row["reward"] = 1.0
    for row in shard.responses:
        row["teacher_logprobs"] = [x / 2 for x in row["old_logprobs"]]
    shard.responses += twin
    page = show([shard], fragment="step=10&group=0&index=0&token=1")
    facts = ("0.5", "1 · no signal", "0.5", "0.5 · same texts as prompt 1")
    assert page.texts("#groups .facts") == [f"mean reward {fact}" for fact in facts]
    old = shard.responses[0]["old_logprobs"][1]
    assert float(page.panel()["d, teacher − policy"].replace("+", "")) == pytest.approx(-old / 2, rel=0.01)
    assert "2 of 2 responses have the same text up to this token, mean reward 0.5" in page.texts("#panel p")
    page.evaluate("document.querySelector('.members button').click()")
    assert page.view("index", "token") == [1, 1]
    page.evaluate("go({ token: 3 })")
    assert "1 of 2 responses have the same text up to this token, mean reward 0" in page.texts("#panel p")
    assert "In the group" not in show(SHARDS["tree"], fragment="token=1").texts("#panel h3")
