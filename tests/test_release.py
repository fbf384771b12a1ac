"""What publishes a release: its tag and the workflows. `docs/lint.py` compares versions and dates."""

import re
import subprocess
import tomllib

import pytest
import yaml
from scripts import ROOT


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
in_checkout = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a checkout")


@in_checkout
def test_a_tag_is_published_only_with_its_version_and_an_address():
    def out(tag: str) -> str:
        done = subprocess.run([ROOT / ".ci" / "check_tag.sh", tag], capture_output=True, text=True)
        return f"{done.returncode} {done.stderr}"

    assert out("v9.9.9") == f"1 error: the tag is v9.9.9, and the version in pyproject.toml is {PROJECT['version']}\n"
    assert out(f"v{PROJECT['version']}").startswith(
        "0 " if "urls" in PROJECT else "1 error: pyproject.toml has no [proj"
    )


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
