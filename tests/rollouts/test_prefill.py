"""A prefix that is continued several times is read once by transformers, and continued as before."""

import pytest
import torch
from peft import LoraConfig, PeftModel
from segment_helpers import CHAIN
from transformers import GenerationConfig

from trl_credit.trainer.engine_calls import prefilled_once


PREFIXES = [[3, 4, 5, 6, 7, 8], [5], [9, 8, 7, 6, 5, 4, 3, 3, 4], [4, 4, 4]]


def continued(trainer, *, n=3, prefixes=PREFIXES, **settings) -> tuple[list[list[int]], list[tuple[int, ...]]]:
    """Token ids of continuations, and the shapes of the passes that they took."""
    shapes = []
    inner = trainer.model.get_base_model() if isinstance(trainer.model, PeftModel) else trainer.model
    handle = inner.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    for name, value in settings.items():
        setattr(trainer.generation_config, name, value)
    torch.manual_seed(0)
    with torch.no_grad():
        continuations = trainer.engine.continue_prefixes(prefixes, n=n, budgets=[6, 2, 6, 5][: len(prefixes)])
    handle.remove()
    assert "generate" not in vars(trainer.model)
    return [continuation.ids for continuation in continuations], shapes


@pytest.mark.parametrize("adapter", [False, True])
def test_a_prefix_is_read_once_and_continued_as_before(make_trainer, adapter):
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    trainer = make_trainer(**CHAIN, trainer_kwargs={"peft_config": lora} if adapter else {})
    once, shapes = continued(trainer)
    assert shapes[:3] == [(4, 8), (12, 1), (12, 1)]
    trainer.engine.prefills_once = False
    each, plain = continued(trainer)
    assert plain[:2] == [(12, 9), (12, 1)]
    assert once == each and len({tuple(ids) for ids in once}) > 6
    assert len(shapes) == len(plain) + 1


def test_what_cannot_be_read_once_is_read_as_before(make_trainer):
    trainer = make_trainer(**CHAIN)
    assert continued(trainer, n=1)[1][0] == (4, 9)
    assert continued(trainer, prefixes=[[5], [6]])[1][0] == (6, 1)  # nothing before the last token
    assert continued(trainer, cache_implementation="static")[1][0] == (12, 9)
    widths, ids = [], torch.tensor([[3, 4], [5, 6]])  # two prompts, not one twice
    trainer.model.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"].size(1)), with_kwargs=True
    )
    with prefilled_once(trainer.model, n=2):
        trainer.model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=GenerationConfig())
    assert widths[:2] == [2, 1]
