"""Rollout logs that are damaged, or whose texts attack whoever looks at them."""

import json

import pytest
from chromium import Chromium, find_chromium
from rich.console import Console
from script_helpers import error_of
from viewer_helpers import EVIL, Page, header, response, s_trace

from trl_credit.cli import main
from trl_credit.lab.viewer import build_page
from trl_credit.lab.viewer.terminal import print_response
from trl_credit.observe.schema import Shard, read_shard, shard_path, write_shard


pytestmark = pytest.mark.hostile("rollout logs", "survived")
refused = pytest.mark.hostile("rollout logs", "refused")


# Damaged

HEADER = {"kind": "header", "schema": "trl_credit.rollouts", "version": 1, "step": 1, "algorithm": "GRPO"}
RESPONSE = {"kind": "response", "group": 0, "index": 0, "completion": "ab", "tokens": ["a", "b"], "credit": [0.5, 1]}
TREE = {"kind": "tree", "group": 0, "nodes": [{"id": 0, "parent": None}, {"id": 1, "parent": 0}]}


def lines(*entries):
    return "".join(json.dumps(entry) + "\n" for entry in entries).encode()


DAMAGED = {
    "empty": b"",
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "no header": lines(RESPONSE),
    "another schema": lines(HEADER | {"schema": "mine"}),
    "a later version": lines(HEADER | {"version": 2}),
    "no step": lines({k: v for k, v in HEADER.items() if k != "step"}),
    "lists instead of objects": b"[1, 2]\n",
    "NaN": lines(HEADER) + b'{"kind": "response", "group": 0, "index": 0, "completion": "", "tokens": [], "x": NaN}\n',
    "lists of other lengths": lines(HEADER, RESPONSE | {"credit": [1.0]}),
    "text where numbers are": lines(HEADER, RESPONSE | {"credit": ["<script>", 1.0]}),
    "tokens that are no texts": lines(HEADER, RESPONSE | {"tokens": [1, 2]}),
    "a tree with a circle": lines(HEADER, TREE | {"nodes": [{"id": 0, "parent": None}, {"id": 1, "parent": 1}]}),
    "deep nesting": lines(HEADER) + b"[" * 100_000 + b"\n",
    "a huge number": lines(HEADER) + b'{"kind": "response", "group": ' + b"9" * 10_000 + b"}\n",
}


@refused
@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_shard_is_refused_with_its_file_and_line(tmp_path, capsys, record_property, what):
    path = shard_path(tmp_path, 1)
    path.parent.mkdir()
    path.write_bytes(DAMAGED[what])
    with pytest.raises(ValueError, match="step-00000001.jsonl") as refused:
        read_shard(path)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500
    error_of(main, ["view", tmp_path], capsys)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]
    record_property("tried", 2)


TEXTS = ("</script><script>alert(1)</script>", "\u2028\u2029\x00\x1b[31m", "a\ud800b")
TEXTS += ('"}\n{"kind": "header"}',)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_hostile_text_stays_text(tmp_path, text):
    path, row = shard_path(tmp_path, 1), RESPONSE | {"completion": text, "tokens": [text, ""]}
    write_shard(path, Shard({"step": 1, "algorithm": text}, {}, [row]))
    (response,) = read_shard(path).responses
    assert response["completion"] == response["tokens"][0] == text.encode("utf-8", "replace").decode()


# Attacks

ATTACKS = [
    EVIL,
    "</SCRIPT\n><script>window.hit=1</script>",
    "</title></style><iframe srcdoc='<script>parent.hit=1</script>'>",
    '"><img src=x onerror=window.hit=1>',
    "<meta http-equiv=refresh content='0;url=https://example.invalid/'>",
    "{{ config }}${window.hit=1}`",
    "\u2028window.hit=1//\u2029",
    "__proto__",
    "\x1b]0;x\x07\x1b[2J\x1b[31m",
    "\u202e\u2066 reversed \ud800\x00\x9b2J\r\n",
    "[bold red]x[/] [link=https://example.invalid]y[/link]",
]


def attacking(text: str) -> Shard:
    """A shard that says this wherever it says anything."""
    row = response("x", tokens=[text], prompt=text, completion=text, rewards={text: 1.0, "b": 0.0}, nodes=[1])
    nodes = [{"id": 0, "parent": None, "text": text}, {"id": 1, "parent": 0, "text": text, "value": 1.0}]
    return Shard(header(text, model=text, settings={text: text}), {0: nodes}, [row])


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


@pytest.mark.slow
@pytest.mark.skipif(find_chromium() is None, reason="no Chromium here (Debian: apt-get install chromium)")
def test_texts_that_attack_do_nothing_in_a_browser(record_property, tmp_path):
    shards = [attacking(text) for text in ATTACKS]
    for step, shard in enumerate(shards):
        shard.header["step"] = step
    (tmp_path / "page.html").write_text(build_page(shards, title=EVIL, note=EVIL), encoding="utf-8")
    with Chromium() as browser:
        browser.open(tmp_path / "page.html")
        for step in range(len(shards)):
            for layout in ("one", "group", "tree"):
                browser.evaluate(f"go({{ step: {step}, layout: '{layout}', token: 0 }})")
        elements = "[...document.querySelectorAll('script, img, svg, iframe, a, base, link, form')].length"
        browser.settle()
        assert browser.evaluate("typeof window.hit") == "undefined" and browser.evaluate(elements) == 2
        assert browser.messages == [] and len(browser.requests) == 1
    record_property("tried", len(ATTACKS))


@refused
def test_what_is_no_text_or_no_run_is_refused(tmp_path, capsys, record_property):
    binary, fine = tmp_path / "step-00000001.jsonl", tmp_path / "fine"
    binary.write_bytes(bytes(range(256)) * 10)
    write_shard(shard_path(fine, 10), s_trace())
    tried = [[binary], [tmp_path / "nothing"], ["\x00"], [fine, "--output", fine / "no" / "view.html"]]
    tried += [[fine, "--step", "9" * 5000], [fine, "--response", "²/³"]]
    for argv in tried:
        assert len(error_of(main, ["view", *argv], capsys)) < 500 + max(map(len, map(str, argv)))
    record_property("tried", len(tried))
