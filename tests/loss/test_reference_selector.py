"""The selector by the entropy of the policy that training began with."""

import pytest
import torch
from passes_helpers import logits_of
from peft import LoraConfig
from transformers import AutoModelForCausalLM

from trl_credit.credit.selection import select_high_entropy


REFERENCE = {"selector": "entropy_reference", "beta": 0.001, "selective_rate": 0.5}
MANY = {"max_completion_length": 24, "temperature": 1.3, "learning_rate": 1e-2, "max_steps": 3}
TWICE = {"num_iterations": 2, "steps_per_generation": 2, "max_steps": 4}  # with a pass for π_old


@pytest.mark.parametrize(
    ("algo", "knobs", "peft"),
    [("s_trace", {}, False), ("s_trace", TWICE, False), ("s_trace", {}, True)],
    ids=["one update", "with a pass for π_old", "adapter"],
)
def test_the_selection_is_by_the_model_that_training_began_with(make_trainer, tiny_model, algo, knobs, peft):
    extra = {"trainer_kwargs": {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"])}} if peft else {}
    trainer = make_trainer(algo, **{**REFERENCE, **MANY, **knobs}, **extra)
    seen, write = [], trainer._write_credit

    def kept(loss_pass, **settings):
        inputs = dict(loss_pass.inputs)
        write(loss_pass, **settings)
        seen.append((inputs, *loss_pass.seen))

    trainer._write_credit = kept
    trainer.train()
    first = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    same = []
    for inputs, tokens, credit in seen:
        inside = tokens.mask_t.bool()
        logits = logits_of(first, inputs, trainer.temperature)
        expected = torch.distributions.Categorical(logits=logits).entropy()
        torch.testing.assert_close(tokens.ref_entropy_t[inside], expected[inside], rtol=1e-4, atol=1e-5)
        settings = {"rate": 0.5, "mask_t": tokens.mask_t}
        assert torch.equal(credit.selected, select_high_entropy(tokens.ref_entropy_t, **settings))
        same.append(torch.equal(credit.selected, select_high_entropy(tokens.entropy_t, **settings)))
    inside = seen[0][1].mask_t.bool()
    torch.testing.assert_close(seen[0][1].ref_entropy_t[inside], seen[0][1].entropy_t[inside], rtol=1e-4, atol=1e-5)
    assert same[0] and not same[-1]
