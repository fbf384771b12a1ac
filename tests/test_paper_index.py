"""docs/paper_index.md: every snippet builds a configuration, and every paper of a preset is there."""

import dataclasses
import re

import pytest
from scripts import ROOT

from trl_credit import CreditConfig
from trl_credit.config import defaults
from trl_credit.hub.papers import EIGHTY_TWENTY, papers_of
from trl_credit.presets import PRESETS


PAGE = (ROOT / "docs" / "paper_index.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
LINE = re.compile(r"    (\w+)=.*,  # (default\b)?.*")


def built(snippet: str) -> CreditConfig:
    scope: dict = {}
    exec(snippet, scope)
    return scope["training_args"]


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda text: re.search(r"(\w+)Config\(", text)[1])
def test_a_snippet_builds_its_configuration(snippet, tmp_path, monkeypatch):
    """Every setting has a comment, which says that it is the default exactly where it is."""
    monkeypatch.chdir(tmp_path)
    args = built(snippet)
    names = {f.name for f in dataclasses.fields(args)}
    plain = defaults(type(args)) | {"steps_per_generation": type(args).updates_per_batch}
    inside = snippet.partition("(\n")[2].splitlines()
    assert inside.pop() == ")"
    for line in inside:
        name, says_default = LINE.fullmatch(line).groups()
        assert name in names
        assert (getattr(args, name) == plain[name]) == (says_default is not None) or "# a choice" in line, line


def test_every_paper_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    papers = {preset.paper["id"]: preset.paper for preset in PRESETS.values()} | {EIGHTY_TWENTY["id"]: EIGHTY_TWENTY}
    for number, paper in papers.items():
        assert f"📜 Paper: https://arxiv.org/abs/{number}\n" in PAGE
        assert f"**{paper['title']}**" in PAGE
    configs = [built(snippet) for snippet in SNIPPETS]
    assert {preset.config for preset in PRESETS.values()} == {type(args) for args in configs}
    assert {paper["id"] for args in configs for paper in papers_of(args)} == papers.keys()
