"""What a release states agrees: versions, dates, the project's address, tested versions, workflows, built files."""

import io
import re
import subprocess
import tarfile
import tomllib
import zipfile
from datetime import date

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from scripts import ROOT, load_script

import trl_credit
from trl_credit.trainer.refusals import TESTED_TRL_MINORS


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
in_checkout = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a checkout")

versions = load_script("tests/compat/versions.py")
RECORDS = versions.load()


# One version


def test_every_place_states_the_same_version_and_date():
    (first, *_), (second, *_), *_ = releases = re.findall(r"^## \[([^\]]+)\](?: - (.+))?$", CHANGELOG, re.MULTILINE)
    assert first == "Unreleased"
    assert PROJECT["version"] == trl_credit.__version__ == CITATION["version"] == second
    dates = [date.fromisoformat(day) for _, day in releases[1:]]
    assert dates[0] == CITATION["date-released"] and dates == sorted(dates, reverse=True)


def test_the_citation_has_what_its_format_demands():
    assert {"cff-version", "message", "title", "authors"} <= CITATION.keys() and CITATION["cff-version"] == "1.2.0"
    assert CITATION["type"] == "software" and CITATION["license"] == PROJECT["license"]
    assert [author["name"] for author in CITATION["authors"]] == [author["name"] for author in PROJECT["authors"]]


# One address


@in_checkout
def test_the_address_of_the_project_is_in_one_place():
    address = PROJECT["urls"]["Repository"].partition("://")[2]
    for searched in (address, "OWNER" + "/"):
        words = ["git", "grep", "-lF", "--untracked", searched]
        found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.split()
        assert found in (["pyproject.toml"], []), searched


def test_a_placeholder_is_no_address():
    address = PROJECT["urls"]["Repository"]
    assert load_script("setup.py").repository() == (None if "OWNER" in address else address)


@in_checkout
def test_a_tag_is_published_only_with_its_version_and_a_real_address():
    def said(tag: str) -> str:
        done = subprocess.run([ROOT / ".ci" / "check_tag.sh", tag], capture_output=True, text=True)
        return f"{done.returncode} {done.stderr}"

    assert said("v9.9.9") == f"1 error: the tag is v9.9.9, and the version in pyproject.toml is {PROJECT['version']}\n"
    is_placeholder = "OWNER" in PROJECT["urls"]["Repository"]
    assert said(f"v{PROJECT['version']}").startswith("1 error: [project.urls]" if is_placeholder else "0 ")


# Tested versions


def test_the_page_of_versions_shows_the_records():
    page = versions.PAGE.read_text(encoding="utf-8")
    assert RECORDS and versions.rendered(page, RECORDS) == page
    assert RECORDS == versions.ordered(RECORDS), "write them with tests/compat/versions.py"


def test_the_records_cover_what_may_be_installed():
    allowed = {Requirement(text).name: Requirement(text).specifier for text in PROJECT["dependencies"]}
    for record in RECORDS:
        assert record["suite"] in versions.SUITES
        for name in versions.PACKAGES:
            assert allowed[name].contains(record[name]), record
    for name in ("trl", "transformers"):
        (floor,) = [Version(part.version) for part in allowed[name] if part.operator == ">="]
        assert floor in [Version(record[name]) for record in RECORDS], f"the floor of {name} was not tested"
    minors = {f"{release.major}.{release.minor}" for release in (Version(record["trl"]) for record in RECORDS)}
    assert minors == {*TESTED_TRL_MINORS}
    pythons = [Version(record["python"]) for record in RECORDS]
    assert all(SpecifierSet(PROJECT["requires-python"]).contains(release) for release in pythons)
    tested = {f"Programming Language :: Python :: {release.major}.{release.minor}" for release in pythons}
    assert {name for name in PROJECT["classifiers"] if re.search(r":: 3\.\d", name)} == tested


def test_a_record_replaces_the_same_one_of_an_earlier_day(tmp_path, monkeypatch):
    old = {"date": "2020-01-01"} | versions.without_date(versions.current("compat", "2026-01-02"))
    other = old | {"trl": "1.12.0", "transformers": "5.9.0"}
    monkeypatch.setattr(versions, "DATA", tmp_path / "versions.json")
    monkeypatch.setattr(versions, "PAGE", tmp_path / "page.md")
    versions.save([other, old])
    versions.PAGE.write_text(f"# T\n\n{versions.BEGIN}\n{versions.END}\n\nend\n", encoding="utf-8")
    versions.main(["record", "compat"])
    first, second = versions.load()
    assert second == other and first == old | {"date": date.today().isoformat()}
    page = versions.PAGE.read_text(encoding="utf-8")
    assert page.startswith("# T\n") and page.endswith("\n\nend\n") and page.count("| tests that touch TRL |") == 2
    with pytest.raises(ValueError, match="lacks"):
        versions.rendered("# T\n", [old])


# Workflows


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_the_least_rights_fixed_actions_and_a_limit_of_time(path):
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"} and "concurrency" in workflow
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 120
        assert {right for right, kind in job.get("permissions", {}).items() if kind == "write"} <= {"pages", "id-token"}
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"])
                assert "checkout" not in step["uses"] or step["with"]["persist-credentials"] is False
            assert "${{" not in step.get("run", ""), "give it to the shell as a variable"


@in_checkout
def test_workflows_name_files_that_are_there():
    for path in WORKFLOWS:
        for name in re.findall(r"\s((?:\.ci|tests|docs)/[\w./-]+\.(?:sh|py|txt))", path.read_text(encoding="utf-8")):
            assert (ROOT / name).is_file(), f"{path.name} names {name}"


# What is built


@in_checkout
def test_a_difference_between_builds_is_found(tmp_path):
    compare = load_script(".ci/compare_builds.py")
    (tmp_path / "tree" / "docs").mkdir(parents=True)
    (tmp_path / "tree" / "LICENSE").touch()
    (tmp_path / "tree" / "docs" / "page.md").touch()

    def sdist(*names: str):
        with tarfile.open(tmp_path / "s.tar.gz", "w:gz") as archive:
            for name in names:
                archive.addfile(tarfile.TarInfo(f"p-1/{name}"), io.BytesIO())
        return tmp_path / "s.tar.gz"

    def wheel(file: str, **contents: str):
        with zipfile.ZipFile(tmp_path / file, "w") as archive:
            for name, text in contents.items():
                archive.writestr(name, text)
        return tmp_path / file

    tree, one = tmp_path / "tree", wheel("one.whl", a="1", b="2")
    assert compare.problems(tree, sdist("LICENSE", "docs/page.md", "PKG-INFO"), one, one) == []
    other = wheel("other.whl", a="0", c="3")
    assert compare.problems(tree, sdist("LICENSE", "x"), one, other) == [
        "the sdist lacks docs/page.md",
        "the sdist has x",
        "one wheel alone has b",
        "one wheel alone has c",
        "the wheels differ in a",
    ]


# Pages


def test_contributing_leads_to_headings_that_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    for link in re.findall(r"\]\(([^)\s:]+)\)", text + CHANGELOG):
        name, _, anchor = link.partition("#")
        page = (ROOT / name).read_text(encoding="utf-8")
        headings = [heading.lower().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", page, re.MULTILINE)]
        assert not anchor or anchor in headings, link


def test_every_claim_about_another_library_has_its_evidence():
    page = (ROOT / "docs" / "other_libraries.md").read_text(encoding="utf-8")
    tables, _, evidence = page.partition("## Evidence")
    listed = [int(number) for number in re.findall(r"^(\d+)\. ", evidence, re.MULTILINE)]
    assert {*map(int, re.findall(r"\[(\d+)\]", tables))} == {*listed} and listed == [*range(1, len(listed) + 1)]
    assert f"| trl_credit | {trl_credit.__version__} |" in tables
