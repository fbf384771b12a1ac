"""Unknown keywords of a configuration, and the other ways to make one, which stay as they are."""

import copy
import pickle
from dataclasses import asdict, replace

import pytest
import trl
from custom_functions import args_of

from trl_credit import CreditConfig, STraceConfig


def test_an_unknown_keyword_is_answered_with_the_field_that_was_meant():
    with pytest.raises(TypeError) as raised:
        STraceConfig("unused", trace_lamda=0.5)
    assert str(raised.value) == "STraceConfig has no field 'trace_lamda': did you mean 'trace_lambda'?"
    with pytest.raises(TypeError, match=f"has no field 'xyz', nor has GRPOConfig of trl {trl.__version__}$"):
        CreditConfig("unused", xyz=1)
    with pytest.raises(TypeError, match="has no field '_n_gpu'"):  # a field that the constructor does not take
        CreditConfig("unused", _n_gpu=1)


class Written(STraceConfig):
    """A subclass with a constructor of its own."""

    def __init__(self, folder: str, *, rate: float = 0.1) -> None:
        super().__init__(output_dir=folder, report_to="none", selective_rate=rate)


def test_all_other_ways_to_make_a_configuration_are_as_before():
    assert Written(folder="unused", rate=0.3).selective_rate == 0.3
    with pytest.raises(TypeError, match="Written has no field 'rat'"):
        Written(folder="unused", rat=0.3)
    config = args_of(STraceConfig, trace_lambda=0.5)
    for other in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config), copy.copy(config)):
        assert type(other) is STraceConfig and asdict(other) == asdict(config)
    assert replace(config, generation_batch_size=None, trace_lambda=0.7).trace_lambda == 0.7
