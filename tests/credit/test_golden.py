"""The golden weights of the specification, through `CreditTrainer.compute_loss`: loss and gradient."""

import pytest
import torch
from conftest import toy_inputs
from golden import CASES, KNOBS, differs_inside_a_row, tensors


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("name", KNOBS)
def test_loss_and_gradient(make_trainer, toy_loss, name, dtype, tolerance):
    trainer = make_trainer(loss_type="grpo", num_generations=2, beta=0.1, use_bias_correction_kl=False, **KNOBS[name])
    for case in CASES:
        values = tensors(case, dtype)
        # one trainer for all cases: these are read at every loss
        trainer.args.trace_lambda, trainer.args.selective_rate = case["gamma_lambda"], case["selective_rate"]
        trainer.epsilon_low, trainer.epsilon_high = case["epsilon_low"], case["epsilon_high"]
        trainer.beta = case["beta"]
        logps = values["logps"].requires_grad_()
        inputs = toy_inputs(
            values["mask"],
            old_per_token_logps=values["old_logps"],
            ref_per_token_logps=values["ref_logps"],
            advantages=values["advantages"],
        )
        if name == "sequence" and differs_inside_a_row(values):
            with pytest.raises(ValueError, match="sequence_token"):
                toy_loss(trainer, inputs, logps=logps, entropies=values["entropies"])
            continue
        loss = toy_loss(trainer, inputs, logps=logps, entropies=values["entropies"])
        loss.backward()
        expected = case["results"][name]
        # float32 cannot decide on which side of a clip bound a ratio lies that float64 puts 1e-7 from it
        scale = max(1.0, abs(expected["loss"]))
        assert abs(loss.item() - expected["loss"]) < tolerance * scale
        torch.testing.assert_close(
            logps.grad, torch.tensor(expected["grad"], dtype=dtype), rtol=tolerance, atol=tolerance
        )
