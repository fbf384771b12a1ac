"""What `trl-credit plan` reads: recipes of strangers."""

from pathlib import Path

import pytest
from passes_helpers import with_slow

from trl_credit.config import FUNCTION_KNOBS
from trl_credit.settings.arguments import parse_arguments


# setting → an algorithm that has it
STRANGER = {**dict.fromkeys(FUNCTION_KNOBS, "grpo"), "reward": "grpo", "module": "grpo"}
STRANGER |= {"selector": "s_trace", "segmentation": "spo_chain", "step_splitter": "vine_ppo"}
COMMANDS = ["plan {}", "plan --config {} --json", "plan {} --help", "train --config {} --help", "recipes"]


@pytest.mark.parametrize("knob", with_slow(STRANGER, "baseline", "selector", "token_mask", "step_splitter"))
@pytest.mark.hostile("recipes of strangers", "survived")
def test_a_recipe_is_read_without_running_its_code(command_said, tmp_path, monkeypatch, knob):
    """Only training runs the functions that a recipe names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("theirs.py").write_text("open('ran', 'w').close()\n\ndef f(*args, **kwargs):\n    raise SystemExit(3)\n")
    setting = {"reward": "reward: ['theirs.py:f']", "module": "credit: theirs.f"}.get(knob, f"{knob}: theirs.py:f")
    Path("theirs.yaml").write_text(f"algo: {STRANGER[knob]}\n{setting}")
    results = [command_said(*words.format("theirs.yaml").split()) for words in COMMANDS]
    assert [code for code, _, _ in results] == [0] * len(COMMANDS), results
    assert "tokens" in results[0][1] and not Path("ran").exists()
    if knob not in ("reward", "module"):  # a configuration in Python looks its functions up
        with pytest.raises(ValueError, match="theirs"):
            parse_arguments(["--config", "theirs.yaml", f"--{knob}", "theirs.py:g"])
        assert Path("ran").exists()
