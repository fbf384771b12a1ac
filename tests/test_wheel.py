"""The wheel in a folder of its own, no checkout near, does what the README shows."""

import email
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow
BUILT = ("trl_credit", "examples", "accelerate_configs", "docs")
CONVERTER = "verifiers_rollouts/verifiers_rollouts.py"
QUICK = ["--max_steps", "2", "--logging_steps", "1"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, since a build writes into its source."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in BUILT:
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    words = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", str(folder / "out"), "./source"]
    done = subprocess.run([sys.executable, "-m", "pip", *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next((folder / "out").glob("*.whl"))


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


@pytest.fixture
def run(site, tmp_path):
    def call(*words: str, code: int = 0) -> str:
        env = {**os.environ, "PYTHONPATH": str(site)}
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        assert str(ROOT) not in done.stdout + done.stderr
        return done.stdout + done.stderr

    return call


def test_a_wheel_in_a_fresh_folder(run, site, tmp_path):
    where = run("-c", "import trl_credit; print(trl_credit.__file__)").strip()
    assert where == str(site / "trl_credit" / "__init__.py")
    command = ("-m", "trl_credit")
    assert "s_trace/qwen3_4b_gspo" in run(*command, "recipes", "gspo", "4b")
    path = Path(run(*command, "recipes", "path", "sft/grpo_lambda_7b").strip())
    assert path.is_file() and path.is_relative_to(site)
    # the pages that messages name, and the files of the example
    assert run(*command, "help", "segments").startswith("# Segment credit")
    assert "  cd sums\n" in run(*command, "example", "sums") and (tmp_path / "sums" / "sums.py").is_file()
    run("sums/sums.py", "sums")
    assert (tmp_path / "sums" / "train.jsonl").is_file()
    # any recipe on the embedded model, on two processes by a packaged configuration
    recipe = ("--config", "s_trace/qwen3_4b_random_mask", "embedded", "--output_dir", "two")
    out = run(*command, "train", "--accelerate_config", "cpu_2proc", *recipe, *QUICK)
    assert "S-trace on 1,024 prompts" in out and "model card    two/README.md" in out
    assert "selector: random" in (tmp_path / "two" / "recipe.yaml").read_text()
    card = (tmp_path / "two" / "README.md").read_text(encoding="utf-8")
    assert "trl-credit train --accelerate_config cpu_2proc --config recipe.yaml" in card
    # the trained model, evaluated with a custom reward
    (tmp_path / "mine.jsonl").write_text('{"prompt": "1+2=", "answer": "3"}\n{"prompt": "2+2=", "answer": "4"}\n')
    (tmp_path / "mine.py").write_text("def f(completions, answer, **kw):\n    return [1.0] * len(completions)\n")
    custom = "--protocol custom --samples 2 --temperature 1 --max_new_tokens 8 --sets mine.jsonl --quiet".split()
    out = run(*command, "eval", "--models", "two", "--reward", "mine.py:f", *custom)
    assert "mine pass@2" in out and (tmp_path / "two" / "evaluation" / "evaluation.md").is_file()
    assert run(*command, "push", "no_such", "--repo_id", "me/x", code=2).startswith("error: there is no folder")


def test_what_a_package_index_is_told(wheel, site):
    names = zipfile.ZipFile(wheel).namelist()
    recipes = {p.relative_to(ROOT / "examples" / "recipes") for p in (ROOT / "examples" / "recipes").rglob("*.yaml")}
    assert {f"trl_credit/share/recipes/{path.as_posix()}" for path in recipes} <= set(names)
    assert "trl_credit/share/accelerate_configs/zero3.yaml" in names
    docs = ROOT / "docs"
    files = [*docs.glob("*.md"), *docs.glob("algorithms/*.md")]
    pages = {f"trl_credit/share/docs/{path.relative_to(docs).as_posix()}" for path in files}
    examples = {f"trl_credit/share/examples/{name}" for name in ("sums/sums.py", "sums/smollm2.yaml", CONVERTER)}
    assert pages | examples <= {*names}
    assert not [name for name in names if name.endswith((".png", ".pyc")) and "/share/" in name]
    assert all(name.startswith(("trl_credit/", "trl_credit-")) for name in names)
    (info,) = site.glob("*.dist-info")
    assert "trl-credit = trl_credit.cli:main" in (info / "entry_points.txt").read_text()
    told = email.message_from_bytes((info / "METADATA").read_bytes())
    assert told["Description-Content-Type"] == "text/markdown"
    text = told.get_payload(decode=True).decode()
    assert text.startswith("# trl_credit") and all(
        re.match("https://|#", link) for link in re.findall(r"\]\(([^)\s]+)\)", text)
    )
