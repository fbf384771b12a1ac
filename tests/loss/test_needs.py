"""What an algorithm asks for: hidden states and entropies with a gradient; and VESPO's ratio to the engine."""

import pytest
import torch
from conftest import toy_inputs
from passes_helpers import logits_of
from peft import LoraConfig
from toy_loss import toy
from transformers import AutoModelForCausalLM
from weight_helpers import weights

from trl_credit import Credit
from trl_credit.credit.selection import select_high_entropy
from trl_credit.credit.tokens import wide
from trl_credit.loss import keys


class Hidden:
    """Credit from hidden states, with a gradient through them."""

    needs, by_row, seen = "hidden", True, []

    def credit(self, config, tokens):
        self.seen.append(tokens)
        size_t = tokens.hidden_t.square().mean(-1)
        own_t = 0.5 * (size_t - size_t.detach())
        return Credit(tokens.logp_t - tokens.old_logp_t + own_t, tokens.advantages)


def test_hidden_states_are_those_of_the_tokens_however_rows_are_packed(make_trainer, trained):
    learned, sgd = [], {"optim": "sgd", "learning_rate": 0.5, "temperature": 1.3}
    for packed in ("on", "off"):
        trainer = make_trainer(credit=Hidden, shared_prefix=packed, **sgd)
        head = trainer.model.get_output_embeddings().weight.detach().clone()
        Hidden.seen.clear()
        trainer.train()
        tokens, inside = Hidden.seen[0], Hidden.seen[0].mask_t.bool()
        logp_t = (tokens.hidden_t @ head.T / 1.3).log_softmax(-1).gather(-1, tokens.token_ids.unsqueeze(-1))[..., 0]
        torch.testing.assert_close(logp_t[inside], tokens.logp_t[inside], rtol=1e-5, atol=1e-5)
        learned.append(weights(trainer))
    torch.testing.assert_close(*learned, rtol=1e-5, atol=1e-5)
    without = weights(trained(shared_prefix="off", **sgd))  # else the gradient did not flow through the states
    assert any((x - learned[1][name]).abs().max() > 1e-3 for name, x in without.items())


def bonus(config, tokens):
    ratio_t = (tokens.logp_t - tokens.old_logp_t).exp()
    return Credit(None, ratio_t * wide(tokens.advantages) + 0.2 * tokens.entropy_t)


bonus.carries_loss = True


@pytest.mark.parametrize("needs", [(), ("entropy_gradient",)])
def test_an_entropy_bonus_has_a_gradient_where_it_is_asked_for(make_trainer, toy_loss, monkeypatch, needs):
    monkeypatch.setattr(bonus, "needs", needs, raising=False)
    t = toy()
    t["entropies"].requires_grad_()
    inputs = toy_inputs(t["mask"], advantages=t["advantages"], old_per_token_logps=t["old"])
    trainer = make_trainer(credit=bonus, loss_type="bnpo")
    loss = toy_loss(trainer, inputs, logps=t["logps"], entropies=t["entropies"])
    (gradient,) = torch.autograd.grad(loss, t["entropies"], allow_unused=True)
    if not needs:
        assert gradient is None or not gradient.any()
        return
    torch.testing.assert_close(gradient, -0.2 * t["mask"].double() / t["mask"].sum())
    with pytest.raises(ValueError, match="needs entropies with a gradient"):
        toy_loss(trainer, inputs, logps=t["logps"], entropies=t["entropies"].detach())


def test_padding_does_not_change_vespo_with_a_ratio_to_the_engine(make_trainer, toy_loss):
    trainer = make_trainer(loss_type="vespo")
    trainer.use_vllm, gradients = True, []
    for padding, fill in ((0, 1.0), (0, 0.0), (3, torch.nan)):
        t = toy()
        ratio = (0.2 * t["entropies"] - 0.1).exp().masked_fill(t["mask"] == 0, fill)
        logps = t["logps"].detach()
        parts = {"mask": t["mask"], "logps": logps, "old": t["old"], "entropies": t["entropies"], "ratio": ratio}
        parts = {name: torch.nn.functional.pad(x, (0, padding), value=0) for name, x in parts.items()}
        logps = parts["logps"].requires_grad_()
        more = {"advantages": t["advantages"], "old_per_token_logps": parts["old"], keys.ENGINE_RATIO: parts["ratio"]}
        loss = toy_loss(trainer, toy_inputs(parts["mask"], **more), logps=logps, entropies=parts["entropies"])
        gradients.append(torch.autograd.grad(loss, logps)[0][:, :7])
    assert (gradients[0].abs() > 1e-3).any(-1).all()
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-12, atol=0)


# The selector by the entropy of the policy that training began with


REFERENCE = {"selector": "entropy_reference", "beta": 0.001, "selective_rate": 0.5}
MANY = {"max_completion_length": 24, "temperature": 1.3, "learning_rate": 1e-2, "max_steps": 3}
TWICE = {"num_iterations": 2, "steps_per_generation": 2, "max_steps": 4}  # with a pass for π_old


@pytest.mark.parametrize(("knobs", "peft"), [({}, False), (TWICE, False), ({}, True)], ids=str)
def test_the_selection_is_by_the_model_that_training_began_with(make_trainer, tiny_model, knobs, peft):
    extra = {"trainer_kwargs": {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"])}} if peft else {}
    trainer = make_trainer("s_trace", **{**REFERENCE, **MANY, **knobs}, **extra)
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
