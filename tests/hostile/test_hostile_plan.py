"""What `trl-credit plan` reads: recipes of strangers."""

from pathlib import Path

import pytest
from passes_helpers import with_slow

from trl_credit.config import FUNCTION_KNOBS
from trl_credit.settings.arguments import parse_arguments


STRANGER = {
    "credit": "algo: grpo\ncredit: {f}",
    "selector": "algo: s_trace\nselector: {f}",
    "token_mask": "algo: grpo\ntoken_mask: {f}",
    "baseline": "algo: grpo\nbaseline: {f}",
    "segmentation": "algo: spo_chain\nsegmentation: {f}",
    "step_splitter": "algo: vine_ppo\nstep_splitter: {f}",
    "reward": "algo: grpo\nreward: ['{f}']",
    "module": "algo: grpo\ncredit: theirs.f",
}
COMMANDS = ["plan {}", "plan --config {} --json", "plan {} --help", "train --config {} --help", "recipes"]


@pytest.mark.parametrize("knob", with_slow(STRANGER, "baseline", "selector", "token_mask", "step_splitter"))
@pytest.mark.hostile("recipes of strangers", "survived")
def test_a_recipe_is_read_without_running_its_code(command_said, tmp_path, monkeypatch, knob):
    """Only training runs the functions that a recipe names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert {"reward", "module", *FUNCTION_KNOBS} == set(STRANGER)
    Path("theirs.py").write_text("open('ran', 'w').close()\n\ndef f(*args, **kwargs):\n    raise SystemExit(3)\n")
    Path("theirs.yaml").write_text(STRANGER[knob].format(f="theirs.py:f"))
    results = [command_said(*words.format("theirs.yaml").split()) for words in COMMANDS]
    assert [code for code, _, _ in results] == [0] * len(COMMANDS), results
    assert "tokens" in results[0][1] and not Path("ran").exists()
    if knob not in ("reward", "module"):  # a configuration in Python looks its functions up
        with pytest.raises(ValueError, match="theirs"):
            parse_arguments(["--config", "theirs.yaml", f"--{knob}", "theirs.py:g"])
        assert Path("ran").exists()
