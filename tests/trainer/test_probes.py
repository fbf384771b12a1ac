"""What hooks read in forward passes that are made anyway: π(EOS) for `td_upper_bound`."""

import copy

import pytest
import torch
from passes_helpers import LORA, Watch, distinct, logits_of, model_of, scripted
from peft import LoraConfig
from transformers import Gemma2Config, PhiConfig

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.loss import keys
from trl_credit.trainer import probes


# two updates per batch of eight rows, whose responses are ragged and share prompts
SIZES = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 4}
SETTINGS = {**SIZES, "max_completion_length": 24, "temperature": 1.3, "reward_funcs": distinct, "beta": 0.0}
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


def copied(model):
    """A model that no longer changes, with transformers' own forward pass."""
    model = copy.deepcopy(model).eval()
    for module in model.modules():
        vars(module).pop("forward", None)  # TRL's, which would go to the original
    return model


class Seen(CreditTrainer):
    """Keeps a copy of each micro-batch: inputs and pass of the loss, tokens of the credit function, and weights."""

    def _write_credit(self, loss_pass, **kwargs):
        inputs = dict(loss_pass.inputs)
        super()._write_credit(loss_pass, **kwargs)
        model = copied(self.accelerator.unwrap_model(self.model))
        self.seen = [*getattr(self, "seen", []), (inputs, loss_pass, loss_pass.seen[0], model)]


def build(make_trainer, model=None, **settings):
    return make_trainer((CreditConfig, scripted(Seen, model)), **{**SETTINGS, **settings})


def bound_of(model, inputs, temperature):
    """1 − Π_{k<t} (1 − π(EOS | s_k)) from probabilities over the whole vocabulary."""
    probs = logits_of(model, inputs, temperature).double().softmax(-1)[..., 1]
    stays = (1 - probs).cumprod(1)
    return 1 - torch.cat([torch.ones_like(stays[:, :1]), stays[:, :-1]], 1)


def check_bound(trainer, *, floor=-float("inf")):
    """Advantages in the loss are those of the batch plus the bound, then the floor."""
    assert trainer.seen
    largest = 0.0
    for inputs, _, tokens, model in trainer.seen:
        bound = bound_of(model, inputs, trainer.temperature)
        expected = (inputs["advantages"].unsqueeze(1) + bound).clamp(min=floor)
        inside = tokens.mask_t.bool()
        torch.testing.assert_close(tokens.advantages.double()[inside], expected[inside].double(), rtol=0, atol=1e-6)
        assert not tokens.advantages.requires_grad
        largest = max(largest, bound[inside].max().item())
    assert largest > 0.1


FORMS = {
    "plain": {"length_sort": "off", "shared_prefix": "off"},
    "trimmed": {"shared_prefix": "off"},
    "packed": {"shared_prefix": "on"},
    "checkpointing": {"gradient_checkpointing": True},
    "lora": {"trainer_kwargs": LORA, "beta": 0.1},
    "floor after the bound": {"num_iterations": 2, "importance": "lambda_trace", "advantage_floor": -0.1},
}


@pytest.mark.parametrize("form", FORMS)
def test_the_bound_is_that_of_the_whole_distribution(make_trainer, form):
    trainer = build(make_trainer, td_upper_bound=True, **FORMS[form])
    trainer.train()
    packed = [keys.PACKED_LAYOUT in inputs for inputs, *_ in trainer.seen]
    assert any(packed) == (form == "packed")
    check_bound(trainer, floor=FORMS[form].get("advantage_floor", -float("inf")))


def test_in_float64_with_a_bias_and_two_end_tokens(make_trainer, tiny_model):
    """TRL's log-probabilities may be float32, so the pass here is the model's own."""
    model = model_of(PhiConfig(**SMALL, initializer_range=0.3), tiny_model)  # whose output layer has a bias
    torch.nn.init.normal_(model.lm_head.bias)
    trainer = build(make_trainer, model, td_upper_bound=True)
    trainer.eos_token_ids = [1, 7]
    ids = torch.randint(3, 20, (6, 15), generator=torch.Generator().manual_seed(0))

    def forward(model, ids, mask, width):
        """In two calls, as TRL cuts a large batch."""
        logits = torch.cat([model(part).logits for part in ids.split(4)])[:, :-1][:, -width:]
        return (logits / 1.3).log_softmax(-1).gather(-1, ids[:, -width:].unsqueeze(-1)).squeeze(-1), None, logits

    trainer._probes._names = ("eos_probs",)
    _, _, logits, eos_probs = trainer._probes.read(forward, trainer.model, ids, torch.ones_like(ids), 9)
    expected = (logits / 1.3).softmax(-1)[..., [1, 7]].sum(-1)
    torch.testing.assert_close(eos_probs, expected, rtol=1e-12, atol=0)
    assert not eos_probs.requires_grad and eos_probs.dtype == torch.float64


def test_no_pass_is_added_also_in_chunks(make_trainer, monkeypatch):
    shapes, passes = [], []
    for bound in (False, True):
        trainer = build(make_trainer, td_upper_bound=bound, shared_prefix="off")
        watch = Watch(trainer)
        trainer.train()
        shapes.append(watch.shapes)
        passes.append(watch.passes)
        monkeypatch.setattr(probes, "_CHUNK", 8)
    assert shapes[0] == shapes[1] and passes[0] == passes[1] == [2, 2, 0]
    check_bound(trainer)  # in many chunks


def test_an_evaluation_adds_the_bound_too(make_trainer):
    trainer = build(make_trainer, td_upper_bound=True, max_steps=1, per_device_eval_batch_size=4)
    trainer.train()
    trainer.seen = []
    trainer.evaluate(trainer.train_dataset.select(range(4)))
    check_bound(trainer)


def test_models_whose_logits_are_no_products_are_refused(make_trainer, tiny_model):
    config = Gemma2Config(**SMALL, num_key_value_heads=2, head_dim=16, final_logit_softcapping=30.0)
    capped = model_of(config, tiny_model)
    with pytest.raises(ValueError, match="final_logit_softcapping=30"):
        build(make_trainer, capped, td_upper_bound=True)
    lora = LoraConfig(r=2, target_modules=["q_proj", "lm_head"], task_type="CAUSAL_LM")
    with pytest.raises(ValueError, match="adapter"):
        build(make_trainer, td_upper_bound=True, trainer_kwargs={"peft_config": lora})
