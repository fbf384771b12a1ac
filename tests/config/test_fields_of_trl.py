"""What stock TRL accepts runs, and trains the same weights; what it ignores is named once."""

import pytest
from test_inactive_options import learned, sums, warnings_of
from trl import GRPOConfig, GRPOTrainer

from trl_credit import CreditConfig
from trl_credit.config import defaults


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
