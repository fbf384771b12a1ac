"""`dull_kl="drop"`: groups without signal lose their KL term, and nothing else changes."""

import pytest
import torch
from group_helpers import SMALL, observed
from transformers import AutoModelForCausalLM

from trl_credit.loss import keys


def gradients(make_trainer, **settings):
    """The gradient of the first update, and its batch."""
    trainer = make_trainer(max_grad_norm=0.0, overwrite_output_dir=True, **{**SMALL, "max_steps": 1, **settings})
    by_name, close = {}, trainer._nonfinite.close_update

    def spy(**flags):
        by_name.update({name: p.grad.clone() for name, p in trainer.model.named_parameters()})
        return close(**flags)

    trainer._nonfinite.close_update = spy
    (batch,) = observed(trainer)
    return by_name, batch


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo", "cispo"])
def test_dull_kl(make_trainer, tmp_path, tiny_model, loss_type):
    """If it is dropped, the gradient that only the rows with zero variance had is gone, and nothing else changed. TRL's
    default multiplies the KL term by the ratio."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    settings = {"beta": 0.5, "loss_type": loss_type, "shared_prefix": "off"}

    def moved(trainer):  # a reference that differs, or all KL terms are 0
        draw = torch.Generator().manual_seed(0)
        for p in trainer.ref_model.parameters():
            p.data += 0.1 * torch.randn(p.shape, generator=draw)
        return trainer

    by_kl = {}
    for kl in ("keep", "drop"):
        by_kl[kl], (batch, data, _) = gradients(lambda **x: moved(make_trainer(**x)), dull_kl=kl, **settings)
    zero_variance = batch.batch.data[keys.ZERO_VARIANCE_ROW]
    assert zero_variance.tolist() == [int(x["prompt"][0]) % 2 == 0 or len(set(r)) == 1 for x, r in zip(
        batch.examples, batch.batch.rewards.view(-1, 4).repeat_interleave(4, 0).tolist(), strict=True)]  # fmt: skip
    assert 0 < zero_variance.sum() < 16
    # β k3 of the rows with zero variance, divided as the loss divides
    model.train()
    ids = torch.cat([data[keys.PROMPT_IDS], data[keys.COMPLETION_IDS]], 1)
    attention = torch.cat([data[keys.PROMPT_MASK], data[keys.COMPLETION_MASK]], 1)
    width, mask_t = data[keys.COMPLETION_IDS].size(1), data[keys.COMPLETION_MASK]
    logits = model(input_ids=ids, attention_mask=attention).logits[:, -width - 1 : -1]
    logp_t = logits.log_softmax(-1).gather(2, data[keys.COMPLETION_IDS].unsqueeze(2)).squeeze(2)
    difference = data[keys.REF_LOGPS] - logp_t
    kl_t = (difference.exp() - difference - 1) * (logp_t - logp_t.detach()).exp() * mask_t * zero_variance.unsqueeze(1)
    by = {"dapo": mask_t.sum(), "cispo": mask_t.sum(), "grpo": 16 * mask_t.sum(1, keepdim=True), "dr_grpo": 16 * 8}
    (0.5 * (kl_t / by[loss_type]).sum()).backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(by_kl["keep"][name] - by_kl["drop"][name], p.grad, atol=2e-6, rtol=1e-3)
