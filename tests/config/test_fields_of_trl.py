"""What stock TRL accepts runs, and trains the same weights; what it ignores is named once."""

import pytest
from test_inactive_options import learned, sums, warnings_of
from trl import GRPOConfig, GRPOTrainer, TrlParser

from trl_credit import ALGORITHMS, CreditConfig
from trl_credit.config import defaults
from trl_credit.hub.recipe import changed
from trl_credit.runs import identity


def test_a_value_that_trl_does_not_read_is_not_checked(tmp_path, caplog):
    ignored = {"sapo_temperature_neg": 0.0, "vllm_mode": "none", "ref_model_sync_steps": 0, "num_train_epochs": 0}
    CreditConfig(str(tmp_path), report_to="none", max_steps=1, **ignored)
    assert [line.partition("=")[0] for line in warnings_of(caplog)[0].splitlines()[1:]] == [
        *("num_train_epochs", "vllm_mode", "ref_model_sync_steps", "sapo_temperature_neg")
    ]
    with pytest.raises(ValueError, match="^num_train_epochs must be positive.*\nsapo_temperature_neg must be"):
        CreditConfig(str(tmp_path), report_to="none", loss_type="sapo", **ignored)


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": None, "top_p": None, "repetition_penalty": None, "max_grad_norm": -1.0}, {"max_grad_norm": 0.0}),
        ({"beta": 0.0, "sync_ref_model": True, "vllm_mode": "server", "save_total_limit": 0}, {}),
    ],
    ids=str,
)
def test_values_that_trl_takes_train_as_in_trl(make_trainer, tmp_path, settings, same):
    as_trl = {"beta": 0.0, "length_sort": "off", "shared_prefix": "off", "learning_rate": 1e-2}
    ours = learned(make_trainer("base", reward_funcs=sums, **as_trl | settings))
    with_trl = {name: value for name, value in (as_trl | same).items() if name in defaults(GRPOConfig)}
    assert ours == learned(make_trainer((GRPOConfig, GRPOTrainer), reward_funcs=sums, **with_trl))


def test_a_yaml_file_of_trl_with_eight_fields_without_effect(tmp_path, caplog):
    idle = "vllm_mode: server\nvllm_gpu_memory_utilization: 0.5\nlr_scheduler_type: constant\nwarmup_steps: 10\n"
    idle += "num_completions_to_print: 5\nlog_unique_prompts: true\nsync_ref_model: true\nref_model_sync_steps: 64\n"
    idle += "sapo_temperature_neg: 2.0\ntop_k: null\nmax_grad_norm: null\n"
    (tmp_path / "trl.yaml").write_text(f"output_dir: {tmp_path}\nreport_to: none\nbeta: 0.0\nuse_vllm: false\n{idle}")
    config_class = ALGORITHMS["s_trace"][0]
    (args,) = TrlParser((config_class,)).parse_args_and_config(["--config", str(tmp_path / "trl.yaml")])
    (warned,) = warnings_of(caplog)
    assert len(warned.splitlines()) == 9
    assert changed(args).keys() == {"beta", "lr_scheduler_type", "top_k", "max_grad_norm"}
    again = config_class(str(tmp_path), report_to="none", **changed(args))
    assert not warnings_of(caplog) and identity._settings(args) == identity._settings(again)
