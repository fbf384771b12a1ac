"""The viewer's page as a file, what the terminal and a notebook show, and `trl-credit view`; without a browser."""

import base64
import hashlib
import math
import re
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from viewer_helpers import SHARDS, Page, header, response, s_trace, spo_chain

import trl_credit
from trl_credit.cli import main
from trl_credit.lab.viewer import build_page
from trl_credit.lab.viewer.excerpt import opening_response
from trl_credit.lab.viewer.runs import read_run
from trl_credit.lab.viewer.terminal import print_response, robust_maximum
from trl_credit.observe.schema import Shard, shard_path, write_shard


def decoded(coded, length: int) -> np.ndarray:
    """A column, as assets/data.js decodes it."""
    if isinstance(coded, list):
        return np.repeat(np.array(coded[::2], dtype=float), coded[1::2])
    data = np.frombuffer(base64.b64decode(coded[1:]), dtype=np.uint8)
    if coded[0] == "b":
        return data.astype(float)
    words = np.zeros((length, 4), dtype=np.uint8)
    words[:, slice(0, 3) if coded[0] == "u" else slice(1, 4)] = data.reshape(length, 3)
    return words.view("<u4" if coded[0] == "u" else "<f4")[:, 0].astype(float)


# --- the file ---


@pytest.mark.parametrize("name", SHARDS)
def test_a_page_is_one_file_that_loads_nothing(name):
    html = build_page(SHARDS[name], title="runs/s_trace")
    page = Page(html)
    assert "default-src 'none'" in page.policy and "unsafe" not in page.policy
    before, _, after = html.partition('id="data">')
    assert not re.search(r"https?:|url\(|@import", before + after.partition("</script>")[2])
    assert not {"link", "img", "iframe", "object", "base", "form"} & {tag for tag, _ in page.tags}
    assert not [of for _, of in page.tags if {"src", "href", "style"} & set(of) or any(k.startswith("on") for k in of)]
    style, data, script = (text for _, text in page.raw)
    for text, rule in ((style, "style-src"), (script, "script-src")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}'" in page.policy  # or the browser would refuse our own
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|import|eval|innerHTML|insertAdjacentHTML)\b", script)


# --- columns ---


@pytest.mark.parametrize("name", SHARDS)
def test_every_column_comes_back(name):
    data = Page(build_page(SHARDS[name], title="t")).data
    for shard, coded in zip(SHARDS[name], data["shards"], strict=True):
        for row, there in zip(shard.responses, coded["responses"], strict=True):
            columns, length = there["columns"], there["length"]
            texts = [data["tokens"][int(k)] for k in decoded(columns["tokens"], length)]
            assert texts == row["tokens"] and data["prompts"][there["prompt"]] == row["prompt"]
            ids = [data["token_ids"][int(k)] for k in decoded(columns["tokens"], length)]
            assert ids == row["token_ids"]
            for field, values in row.items():
                if field in columns and field != "tokens":
                    code = columns[field]
                    code = columns[code[1:]] if isinstance(code, str) and code[0] == "=" else code
                    known = [math.nan if x is None else x for x in values]
                    np.testing.assert_allclose(decoded(code, length), known, rtol=2e-5, err_msg=field)
            assert {"credit", "advantages", "entropy", "log_weight", "policy_mask"} <= set(columns)


def encoded(row, of=None) -> dict:
    """A response as the page has it."""
    return Page(build_page([Shard(of or header("GRPO"), {}, [row])], title="t")).data["shards"][0]["responses"][0]


def test_fields_may_be_missing_empty_or_not_finite():
    bare = {"group": 0, "index": 0, "completion": "a b", "tokens": ["a", " b"]}
    assert encoded(bare, {"step": 1, "algorithm": "mine"})["columns"].keys() == {"tokens"}
    nothing = {name: [] if isinstance(value, list) else value for name, value in response("x").items()}
    assert encoded(nothing)["length"] == 0
    row = encoded(response("one", reward=float("nan"), rewards={"a": float("inf")}, entropy=[float("inf")]))
    assert row["reward"] is None and row["rewards"] == {"a": None} and row["columns"]["entropy"] == [None, 1]


def test_a_page_begins_with_the_response_of_largest_credit(tmp_path, capsys):
    credits = ([0.5, 0.0], [0.5, -3.0], [1.0, None])
    rows = [response("a b", index=i, credit=credit) for i, credit in enumerate(credits)]
    none = Shard(header("Zero", step=7), {}, [{**row, "credit": [0.0, 0.0]} for row in rows])
    other = Shard(header("Other", step=7), {}, [{**row, "credit": [float(row["index"] == 2)] * 2} for row in rows])
    shard = Shard(header("GRPO", step=7), {}, rows)
    assert opening_response([shard]) == opening_response([none, shard, other]) == {"group": 0, "index": 1}
    assert opening_response([other, shard])["index"] == 2
    assert opening_response([none]) is opening_response([]) is None
    write_shard(shard_path(tmp_path, 7), shard)
    assert main(["view", str(tmp_path), "--terminal"]) == 0 and "response 0/1" in capsys.readouterr().out
    assert Page(build_page([shard], title="t", start={"group": 0, "index": 0})).data["start"]["index"] == 0


# --- the terminal ---


def printed(shard: Shard, number: int = 0, **settings) -> str:
    settings = {"no_color": False, **settings}  # whatever the environment of the tests says
    console = Console(file=StringIO(), force_terminal=True, width=100, highlight=False, **settings)
    print_response(shard, shard.responses[number], console)
    return console.file.getvalue()


def squeezed(text: str) -> str:
    return re.sub(r"\s", "", text)


def test_the_terminal_shows_the_group_and_the_credit_in_colour():
    shard = spo_chain()
    colour = printed(shard, color_system="truecolor", legacy_windows=False)
    assert "38;2;22;24;29;48;2;" in colour  # ink on a tint
    text = re.sub(r"\x1b\[[\d;]*m", "", colour)
    assert "SPO-chain, step 10, response 0/0" in text and "accuracy" in text and "unassigned" in text
    assert squeezed("".join(shard.responses[0]["tokens"])) in squeezed(text)
    turns = SHARDS["turns"][0]
    text = re.sub(r"\x1b\[[\d;]*m", "", printed(turns, color_system="truecolor", legacy_windows=False))
    assert squeezed(text).count("[r+0.5]") == squeezed(text).count("[r+1]") == 1
    lines = printed(turns, color_system=None).splitlines()
    assert [line.split("(step reward ")[1] for line in lines if "step reward" in line] == ["+0.5)", "+1)"]


def test_without_colour_each_token_has_its_credit_as_a_number():
    masks = {"loss_mask": [1, 1, 1, 0, 1], "policy_mask": [1, 0, 0, 0, 1]}
    tokens = ["one", "\n", " three", "four", "x" * 200]
    row = response("x", tokens=tokens, credit=[1.2345, 0.0, -0.5, 0.0, None], **masks)
    out = printed(Shard(header("GRPO"), {}, [row]), color_system=None, legacy_windows=False)
    lines = out.partition("units of the advantage:\n")[2].splitlines()
    assert [line.split() for line in lines] == [
        ["+1.23", "one"], ["–", "↵", "(unassigned)"], ["-0.5", "three", "(unassigned)"],
        ["–", "four", "(not", "in", "the", "loss)"], ["–", "x" * 200],
    ]  # fmt: skip


def test_the_scale_ends_at_the_99th_percentile_of_what_is_not_zero():
    masks = dict.fromkeys(("loss_mask", "policy_mask"), [1] * 1000)
    rows = [response("a", tokens=["a"] * 1000, **masks, credit=[0.0] * 800 + [0.5] * 199 + [80.0])]
    one = Shard(header("GRPO"), {}, rows)
    assert robust_maximum(one) == 0.5
    outside = {"loss_mask": [0] * 800 + [1] * 200, "credit": [9.0] * 800 + rows[0]["credit"][800:]}
    assert robust_maximum(Shard(header("GRPO"), {}, [rows[0] | outside])) == 0.5
    other = Shard(header("GRPO"), {}, [{**rows[0], "credit": [7.0] * 1000}])
    console = Console(file=StringIO(), force_terminal=True, no_color=False, color_system="truecolor", width=200)
    print_response(one, rows[0], console, scaled_by=[one, other])  # the steps of the page
    assert "up to the 99th percentile: −7 " in console.file.getvalue()
    assert robust_maximum(Shard(header("GRPO"), {}, [response("a", credit=[0.0])])) == 1.0


# --- a notebook, and the command ---


@pytest.fixture
def run(tmp_path):
    """A run with two logged steps."""
    for step in (10, 20):
        write_shard(shard_path(tmp_path / "run", step), s_trace(step))
    return tmp_path / "run"


def test_a_notebook_shows_the_last_step_in_a_frame_of_its_own(run):
    view = trl_credit.show_credit(SimpleNamespace(args=SimpleNamespace(output_dir=str(run))))
    assert view.html == trl_credit.show_credit(run, step=20).html != trl_credit.show_credit(run, step=10).html
    ((tag, of),) = Page(view._repr_html_()).tags
    assert tag == "iframe" and of["sandbox"] == "allow-scripts allow-downloads" and of["srcdoc"] == view.html
    with pytest.raises(TypeError, match="got int"):
        trl_credit.show_credit(3)
    with pytest.raises(ValueError, match="step 15 was not logged"):
        trl_credit.show_credit(run, step=15)

    explained = SimpleNamespace(shard=Shard(header("GRPO"), {}, [response("a", credit=[1.0])]))
    other = Shard(header("S-trace"), {}, [response("a", credit=[0.5])])
    page = Page(trl_credit.show_credit([explained, other]).html)
    assert [shard["header"]["algorithm"] for shard in page.data["shards"]] == ["GRPO", "S-trace"]


def test_the_command_writes_a_page_of_all_steps_or_of_one(run, capsys):
    assert main(["view", str(run)]) == 0
    page = run / "credit_log" / "view.html"
    assert "step 10, 20" in capsys.readouterr().out
    assert [shard["header"]["step"] for shard in Page(page.read_text("utf-8")).data["shards"]] == [10, 20]
    content = page.read_text("utf-8")
    page.unlink()
    # the folder of the shards will do
    assert main(["view", str(page.parent)]) == 0 and page.read_text("utf-8") == content
    out = run / "one.html"
    assert main(["view", str(run), "--step", "10", "--response", "1/2", "--output", str(out)]) == 0
    data = Page(out.read_text("utf-8")).data
    assert data["start"] == {"step": 10, "group": 1, "index": 2} and len(data["shards"]) == 1
    shard = shard_path(run, 20)
    assert main(["view", str(shard)]) == 0 and shard.with_suffix(".html").exists()
    assert main(["view", str(run), "--terminal", "--response", "0/1"]) == 0
    assert "step 20, response 0/1" in capsys.readouterr().out


def test_steps_that_do_not_fit_are_left_out_and_named(run, monkeypatch, capsys):
    monkeypatch.setattr("trl_credit.lab.viewer.runs.MAX_TOKENS", 10)
    shards, note = read_run(run)
    assert [shard.header["step"] for shard in shards] == [20] and "these steps are left out: 10" in note
    assert main(["view", str(run)]) == 0
    assert note in capsys.readouterr().out and note in (run / "credit_log" / "view.html").read_text("utf-8")
    assert len(read_run(run, [10, 20])[0]) == 2
