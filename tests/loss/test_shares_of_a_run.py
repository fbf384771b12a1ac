"""`noise_share` and `last_tokens_share` in TRL's real loss, and the selector by the entropy of the reference."""

import pytest
import torch
from passes_helpers import logits_of
from peft import LoraConfig
from toy_loss import at_ratio_1
from transformers import AutoModelForCausalLM

from trl_credit.credit.selection import select_high_entropy


ON_POLICY = {"beta": 0.0, "loss_type": "dr_grpo"}
SELECTED = {"trace_lambda": 0.7, "selective_rate": 0.3}
WEIGHTED = {"loss_weight": "trace_past", "loss_weight_confidence": "tanh_grad", "trace_lambda": 0.7}
CASES = {
    "s_trace": ("s_trace", SELECTED),
    "grpo_lambda": ("grpo_lambda", {"trace_lambda": 0.7}),
    "a weight with a gradient": ("grpo_lambda", {**WEIGHTED, "importance": "token"}),
    "grpo": ("grpo", {}),
    "mask": ("grpo", {"token_mask": "probability", "probability_threshold": 0.8}),
    "top fifth": ("grpo", {"top_entropy_quantile": 0.2}),
    "a trace from the top fifth": ("s_trace", {**SELECTED, "top_entropy_quantile": 0.2}),
}


@pytest.mark.parametrize("case", CASES)
def test_both_shares_by_hand_and_by_the_gradient_of_the_loss(make_trainer, toy_loss, case):
    """Rows of 45, 13 and no tokens at ratio 1, in float64; the metric itself is summed in float32."""
    algo, knobs = CASES[case]
    trainer = make_trainer(algo, **knobs, **ON_POLICY)
    toys = at_ratio_1(trainer, toy_loss, 45, 13, 0)
    gradient, entropies = toys["gradient"], toys["entropies"]
    metrics = trainer._metrics["eval"]
    above = below = outside = noise = 0.0
    rows = [range(45), range(13)]  # nothing comes of the third, nor a division by 0
    quantile = torch.quantile(entropies[toys["mask"].bool()].float(), 0.8).item()
    for i, row in enumerate(rows):
        m, n = min(20, len(row)), len(row)
        above += gradient[i, n - m : n].sum().item()
        below += m / n * gradient[i].sum().item()
        rate = knobs.get("selective_rate", 0.2)
        top = sorted(row, key=lambda t, i=i: -entropies[i, t])[: -int(-rate * n // 1)]
        if case == "top fifth":
            top = [t for t in row if entropies[i, t] >= quantile]
        values = (1 - toys["logps"].exp())[i]
        outside += sum(values[t].item() for t in row if t not in top)
        noise += sum(values[t].item() for t in row)
    assert metrics["credit/last_tokens_share"] == pytest.approx([above / below], rel=1e-5)
    assert metrics["credit/noise_share"] == pytest.approx([outside / noise], rel=1e-5)


# The selector by the entropy of the policy that training began with

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
