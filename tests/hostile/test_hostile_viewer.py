"""Rollout logs that are damaged, or whose texts attack whoever looks at them."""

import json

import pytest
from chromium import Chromium, find_chromium
from rich.console import Console
from viewer_helpers import Page, header, response, s_trace

from trl_credit.cli import main
from trl_credit.lab.viewer import build_page
from trl_credit.lab.viewer.terminal import print_response
from trl_credit.observe.schema import Shard, lines_of, shard_path, write_shard


KIND = "rollout logs"
ATTACKS = [
    "<script>window.hit=1</script>",
    "</script><script>window.hit=1</script>",
    "</SCRIPT\n><script>window.hit=1</script>",
    "<!--<script>",
    "--><img src=x onerror=window.hit=1>",
    "]]><svg onload=window.hit=1>",
    "</title></style><iframe srcdoc='<script>parent.hit=1</script>'>",
    '"><img src=x onerror=window.hit=1>',
    "' autofocus onfocus=window.hit=1 x='",
    "javascript:window.hit=1",
    "<a href=javascript:window.hit=1>x</a>",
    "<base href=https://example.invalid/><link rel=stylesheet href=//example.invalid/x>",
    "<meta http-equiv=refresh content='0;url=https://example.invalid/'>",
    "<form action=https://example.invalid/><button>x",
    "{{ config }}{% for x in (1).__class__.__mro__ %}{{ x }}{% endfor %}",
    "${window.hit=1}`",
    "\u2028window.hit=1//\u2029",
    "&lt;img src=x onerror=window.hit=1&gt;",
    "__proto__",
    "constructor",
    "\x1b]0;x\x07\x1b[2J\x1b[31m",
    "\u202e\u2066 reversed \ud800",
    "\x00\x01\x7f\x9b2J\r\n",
    "[bold red]x[/] [link=https://example.invalid]y[/link]",
]


def attacking(text: str) -> Shard:
    """A shard that says this wherever it says anything."""
    row = response("x", tokens=[text], prompt=text, completion=text, rewards={text: 1.0, "b": 0.0}, nodes=[1])
    nodes = [{"id": 0, "parent": None, "text": text}, {"id": 1, "parent": 0, "text": text, "value": 1.0}]
    return Shard(header(text, model=text, settings={text: text}), {0: nodes}, [row])


@pytest.mark.hostile(KIND, "survived")
def test_texts_that_attack_stay_texts(record_property):
    clean = [tag for tag, _ in Page(build_page([s_trace()], title="t", note="n")).tags]
    for text in ATTACKS:
        html = build_page([attacking(text)], title=text, note=text)
        assert [tag for tag, _ in Page(html).tags] == clean, text
        assert Page(html).data["shards"][0]["header"]["algorithm"] == text.replace("\ud800", "?")
        console = Console(force_terminal=True, color_system=None, width=80, highlight=False)
        with console.capture() as captured:
            print_response(attacking(text), attacking(text).responses[0], console)
        assert not set("\x07\x9b\u202e\r") & set(captured.get()), text
        assert "\x1b]" not in captured.get() and "\x1b[2J" not in captured.get(), text
    record_property("tried", len(ATTACKS))


@pytest.mark.hostile(KIND, "survived")
@pytest.mark.skipif(find_chromium() is None, reason="no Chromium here (Debian: apt-get install chromium)")
def test_texts_that_attack_do_nothing_in_a_browser(record_property, tmp_path):
    shards = [attacking(text) for text in ATTACKS]
    for step, shard in enumerate(shards):
        shard.header["step"] = step
    (tmp_path / "page.html").write_text(build_page(shards, title="attacks"), encoding="utf-8")
    with Chromium() as browser:
        browser.open(tmp_path / "page.html")
        elements = "[...document.querySelectorAll('script, img, svg, iframe, a, base, link, form')].length"
        for step in range(len(shards)):
            for layout in ("one", "group", "tree"):
                browser.evaluate(f"go({{ step: {step}, layout: '{layout}', token: 0 }})")
            browser.evaluate("document.querySelectorAll('.node summary').forEach(e => e.click())")
            assert browser.evaluate("view.step") == step
        browser.settle()
        assert browser.evaluate("typeof window.hit") == "undefined" and browser.evaluate(elements) == 2
        assert browser.messages == [] and len(browser.requests) == 1
    record_property("tried", len(ATTACKS))


LINES = list(lines_of(s_trace()))
HEADER, ROW = LINES[0], LINES[1]
DAMAGED = {
    "empty": "",
    "cut off": "\n".join(LINES)[:-50],
    "not JSON": "hello",
    "another file": '{"a": 1}',
    "no header": ROW,
    "two headers": f"{HEADER}\n{HEADER}",
    "a later version": HEADER.replace('"version": 1', '"version": 2'),
    "another schema": HEADER.replace("trl_credit.rollouts", "other"),
    "a column too short": f"{HEADER}\n" + ROW.replace('"loss_mask": [1, ', '"loss_mask": ['),
    "words for numbers": f"{HEADER}\n" + ROW.replace('"loss_mask": [1, ', '"loss_mask": ["a", '),
    "NaN": f"{HEADER}\n" + ROW.replace('"reward": 1.0', '"reward": NaN'),
    "a reward of text": f"{HEADER}\n" + ROW.replace('"reward": 1.0', '"reward": "<b>"'),
    "deep": f"{HEADER}\n" + "[" * 100_000,
    "a number without end": f"{HEADER}\n" + ROW.replace('"entropy": [', '"entropy": [' + "9" * 400 + ", ", 1),
    "a tree whose parent comes later": f"{HEADER}\n"
    + json.dumps({"kind": "tree", "group": 0, "nodes": [{"id": 0, "parent": None}, {"id": 1, "parent": 5}]}),
}


def refused(capsys, *argv) -> None:
    """`trl-credit view` ends with exit code 2 and one line."""
    with pytest.raises(SystemExit) as end:
        main(["view", *map(str, argv)])
    assert end.value.code == 2, argv
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and len(line) < 500 + max(map(len, map(str, argv)))


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_log_is_refused_in_one_line(case, tmp_path, capsys):
    file = shard_path(tmp_path, 10)
    file.parent.mkdir()
    file.write_text(DAMAGED[case], encoding="utf-8")
    for run in (tmp_path, file):
        refused(capsys, run)
    assert not list(tmp_path.rglob("*.html")) and not list(tmp_path.rglob("*.partial"))


@pytest.mark.hostile(KIND, "refused")
def test_what_is_no_text_or_no_run_is_refused(tmp_path, capsys, record_property):
    binary, fine = tmp_path / "step-00000001.jsonl", tmp_path / "fine"
    binary.write_bytes(bytes(range(256)) * 10)
    (tmp_path / "run" / "credit_log" / "step-00000010.jsonl").mkdir(parents=True)
    write_shard(shard_path(fine, 10), s_trace())
    (fine / "view.html").mkdir()
    flags = (["--output", fine / "view.html"], ["--output", fine / "no" / "view.html"])
    flags += (["--step", "9" * 5000], ["--response", "²/³"])
    tried = [[binary], [tmp_path / "run"], [tmp_path / "nothing"], ["\x00"], *([fine, *more] for more in flags)]
    for argv in tried:
        refused(capsys, *argv)
    record_property("tried", len(tried))
