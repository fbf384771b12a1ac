"""docs/walkthrough.md: its data, its reward, and its settings on the embedded model."""

import json
import runpy

import pytest
import yaml
from scripts import ROOT

from trl_credit.data.sets import resolve_style
from trl_credit.settings.arguments import parse_arguments


SUMS = runpy.run_path(str(ROOT / "examples" / "sums" / "sums.py"))


@pytest.mark.parametrize(
    ("text", "reward"),
    [(" 64", 1.0), (" 64, which is", 1.0), ("\n64.", 1.0), (" 640", 0.0), (" 54", 0.0), (" about 64", 0.0), ("", 0.0)],
)
def test_the_reward_reads_the_first_number(text, reward):
    assert SUMS["right"]([text], ["64"], problem=["35 + 29"]) == [reward]


def test_the_sets_hold_every_sum_once(tmp_path):
    SUMS["write"](tmp_path / "sums")
    files = [tmp_path / "sums" / f"{name}.jsonl" for name in ("train", "test")]
    parts = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    assert [len(part) for part in parts] == [2244, 256]
    rows = [row for part in parts for row in part]
    assert len({row["problem"] for row in rows}) == 2500
    assert all(eval(row["problem"]) == int(row["answer"]) for row in rows)


def test_the_settings_are_those_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT / "examples" / "sums")
    settings = yaml.safe_load((ROOT / "examples" / "sums" / "smollm2.yaml").read_text())
    flags = ["--config", "smollm2.yaml", "--output_dir", str(tmp_path)]
    choices = parse_arguments(["--algo", "s_trace", *flags])
    assert choices.args.per_device_train_batch_size == 32 and choices.args.beta == 0.0
    assert resolve_style(settings["prompt_style"]) is not None
    said = (ROOT / "docs" / "walkthrough.md").read_text()
    assert f"{settings['learning_rate']:.0e}".replace("e-0", "e-") in said
