"""`trl-credit help` and `trl-credit example`: pages and files of the package, and every message that names them."""

import re

import pytest
from scripts import ROOT

from trl_credit import ALGORITHMS
from trl_credit.cli.help import pages


PACKAGE = ROOT / "trl_credit"


def test_the_pages_are_listed_and_printed(command_said):
    code, listed, _ = command_said("help")
    files = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "algorithms").glob("*.md")]
    assert code == 0 and {path.stem for path in files} - {"index"} | {*ALGORITHMS} == {*pages()}
    for topic in pages():
        assert re.search(rf"^  {topic} +\S", listed, re.MULTILINE)
        code, page, _ = command_said("help", topic)
        assert code == 0 and page.startswith("# ")
        assert not re.search(r"\]\((?!https://)", page), "a link that leads nowhere outside of a checkout"
        assert not re.search("^<!--", page, re.MULTILINE) and (topic not in ALGORITHMS or f"--algo {topic}`" in page)


@pytest.mark.parametrize(
    ("topic", "message"),
    [("recipe", "there is no page 'recipe': did you mean 'recipes'?"), ("../README", "there is no page '../README'")],
)
def test_a_wrong_topic_is_one_line(command_said, topic, message):
    code, out, error = command_said("help", topic)
    assert code == 2 and out == "" and error.startswith(f"error: {message}") and error.count("\n") == 1


def test_messages_name_pages_that_are_there():
    named = {}
    for file in [*PACKAGE.rglob("*.py"), *(ROOT / "examples").rglob("*.*"), *(ROOT / "docs").glob("*.md")]:
        if file.suffix not in (".py", ".yaml", ".md"):
            continue
        text = file.read_text(encoding="utf-8")
        named |= dict.fromkeys(re.findall(r"trl-credit help ([a-z_]+)", text), file)
    assert {"hub", "your_own_algorithm", "architecture", "start"} <= named.keys()
    assert named.keys() <= {*pages()}, named


def test_an_example_is_copied_once_and_says_what_to_run(command_said, here):
    assert re.search(r"^  sums +SmolLM2-135M learns", command_said("example")[1], re.MULTILINE)
    code, out, _ = command_said("example", "sums")
    assert code == 0 and "  cd sums\n  python sums.py " in out and "  trl-credit help start " in out
    files = [path for path in (ROOT / "examples" / "sums").iterdir() if path.is_file()]
    assert {path.name: path.read_bytes() for path in files} == {
        path.name: path.read_bytes() for path in (here / "sums").iterdir()
    }
    (here / "sums" / "smollm2.yaml").write_text("mine")
    code, _, error = command_said("example", "sums")
    assert code == 2 and error == "error: 'sums/smollm2.yaml' is there already: name another folder\n"
    assert (here / "sums" / "smollm2.yaml").read_text() == "mine"
    assert "  cd 'a b/c'\n" in command_said("example", "sums", "a b/c")[1]
    assert command_said("example", "sum")[2] == "error: there is no example 'sum': did you mean 'sums'?\n"
