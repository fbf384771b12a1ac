"""What a preset changes of TRL's defaults: in the configuration, in a run's first lines, and on the page."""

import re

import pytest
import trl
from custom_functions import args_of
from scripts import ROOT

from trl_credit import ALGORITHMS, CreditConfig, DAPOConfig, GSPOConfig, STraceConfig
from trl_credit.config import defaults, settings_of_preset
from trl_credit.config.from_trl import changed_defaults


CLASSES = {"base": CreditConfig, **{name: pair[0] for name, pair in ALGORITHMS.items()}}
PAGE = (ROOT / "docs" / "coming_from_trl.md").read_text(encoding="utf-8")


def test_the_settings_of_a_preset_are_those_that_act_and_were_left_alone():
    assert settings_of_preset(args_of()) == {}
    changed = {"beta": (0.0, 0.001), "loss_type": ("dapo", "grpo"), "use_bias_correction_kl": (True, False)}
    assert settings_of_preset(args_of(STraceConfig)) == changed
    assert settings_of_preset(args_of(STraceConfig, beta=0.0)) == {"loss_type": ("dapo", "grpo")}
    assert settings_of_preset(args_of(STraceConfig, beta=0.04, loss_type="dapo")).keys() == {"use_bias_correction_kl"}
    assert settings_of_preset(args_of(GSPOConfig))["importance_sampling_level"] == ("token", "sequence")
    assert settings_of_preset(args_of(DAPOConfig, mask_truncated_completions=False)) == {"epsilon_high": (None, 0.28)}


@pytest.mark.parametrize("name", CLASSES)
def test_the_changed_defaults_are_the_fields_in_which_the_two_configurations_differ(name):
    plain, preset = trl.GRPOConfig("unused", use_cpu=True, bf16=False), args_of(CLASSES[name])
    names = defaults(trl.GRPOConfig).keys() - {"output_dir", "generation_batch_size"}  # that of `steps_per_generation`
    differ = {field: (getattr(plain, field), getattr(preset, field)) for field in names}
    assert changed_defaults(CLASSES[name]) == {field: pair for field, pair in differ.items() if pair[0] != pair[1]}


def test_the_pages_code_runs(here):
    by_hand, taken = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    scope: dict = {"args": trl.GRPOConfig("run", use_cpu=True, learning_rate=3e-6)}
    exec(taken, scope)
    assert (scope["args"].learning_rate, scope["args"].trace_lambda) == (3e-6, 0.95)
    exec(by_hand, scope)
    set_by_hand = changed_defaults(STraceConfig).keys() - settings_of_preset(scope["args"]).keys()
    assert set_by_hand == {"loss_type", "beta", "use_bias_correction_kl"}
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    after = "\n".join(line[1:] for line in diff.splitlines() if not line.startswith("-"))
    before = "\n".join(line[1:] for line in diff.splitlines() if not line.startswith("+"))
    assert after == before.replace("GRPO", "STrace").replace("from trl ", "from trl_credit ")
    compile(after, "after", "exec")
