"""What hooks read in forward passes that are made anyway: π(EOS) for `td_upper_bound`, experts for `expert_drift`."""

import copy

import pytest
import torch
from passes_helpers import LORA, Watch, distinct, model_of, scripted, with_tokenizer
from peft import LoraConfig
from tiny_models import tiny_qwen3_moe
from transformers import AutoTokenizer, Gemma2Config, LlamaConfig, PhiConfig

from trl_credit import CreditConfig, CreditTrainer
from trl_credit.loss import keys
from trl_credit.trainer import probes


# two updates per batch of eight rows, whose responses are ragged and share prompts
SIZES = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 4}
SETTINGS = {**SIZES, "max_completion_length": 24, "temperature": 1.3, "reward_funcs": distinct, "beta": 0.0}
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
LLAMA = LlamaConfig(**SMALL, num_key_value_heads=2)


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


def logits_of(model, inputs, temperature, **asked):
    """Logits where each token was sampled, and the model's output, of unpacked rows."""
    ids, mask = (
        torch.cat([inputs[f"{part}_{kind}"] for part in ("prompt", "completion")], 1) for kind in ("ids", "mask")
    )
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    # one row at a time, so that nothing depends on what is beside it
    with torch.no_grad():
        output = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, **asked)
    return output.logits[:, :-1][:, -inputs["completion_ids"].size(1) :] / temperature, output


def bound_of(model, inputs, temperature, ends):
    """1 − Π_{k<t} (1 − π(EOS | s_k)) from probabilities over the whole vocabulary."""
    probs = logits_of(model, inputs, temperature)[0].double().softmax(-1)[..., ends].sum(-1)
    stays = (1 - probs).cumprod(1)
    return 1 - torch.cat([torch.ones_like(stays[:, :1]), stays[:, :-1]], 1)


def check_bound(trainer, *, floor=-float("inf"), ends=(1,), atol=1e-6):
    """Advantages in the loss are those of the batch plus the bound, then the floor."""
    assert trainer.seen
    largest = 0.0
    for inputs, _, tokens, model in trainer.seen:
        bound = bound_of(model, inputs, trainer.temperature, list(ends))
        expected = (inputs["advantages"].unsqueeze(1) + bound).clamp(min=floor)
        inside = tokens.mask_t.bool()
        torch.testing.assert_close(tokens.advantages.double()[inside], expected[inside].double(), rtol=0, atol=atol)
        assert not tokens.advantages.requires_grad
        largest = max(largest, bound[inside].max().item())
    assert largest > 0.1


FORMS = {
    "plain": {"length_sort": "off", "shared_prefix": "off"},
    "trimmed": {"shared_prefix": "off"},
    "packed": {"shared_prefix": "on"},
    "checkpointing": {"gradient_checkpointing": True},
    "lora": {"trainer_kwargs": LORA, "beta": 0.1},
    "whole response, floor after the bound": {
        "num_iterations": 2,
        "importance": "lambda_trace",
        "advantage_floor": -0.1,
    },
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


def test_groups_without_signal_still_train(make_trainer):
    """Their advantage is the bound, so their micro-batches are not skipped."""

    def constant(completions, **kwargs):
        return [1.0] * len(completions)

    counts = []
    for bound in (False, True):
        trainer = build(make_trainer, td_upper_bound=bound, reward_funcs=constant)
        before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
        trainer.train()
        counts.append(sum(not torch.equal(p, before[name]) for name, p in trainer.model.named_parameters()))
    assert counts[0] == 0 < counts[1] and len(trainer.seen) == 4


def test_an_evaluation_adds_the_bound_too(make_trainer):
    trainer = build(make_trainer, td_upper_bound=True, max_steps=1, per_device_eval_batch_size=4)
    trainer.train()
    trainer.seen = []
    trainer.evaluate(trainer.train_dataset.select(range(4)))
    check_bound(trainer)


def test_models_whose_logits_are_no_products_are_refused(make_trainer, tiny_model):
    capped = model_of(
        Gemma2Config(**SMALL, num_key_value_heads=2, head_dim=16, final_logit_softcapping=30.0), tiny_model
    )
    with pytest.raises(ValueError, match="final_logit_softcapping=30"):
        build(make_trainer, capped, td_upper_bound=True)
    lora = LoraConfig(r=2, target_modules=["q_proj", "lm_head"], task_type="CAUSAL_LM")
    with pytest.raises(ValueError, match="adapter"):
        build(make_trainer, td_upper_bound=True, trainer_kwargs={"peft_config": lora})


# Experts


@pytest.fixture
def moe(tiny_model):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    spread = {"initializer_range": 0.3, "router_aux_loss_coef": 0.0}
    return lambda **changes: with_tokenizer(tiny_qwen3_moe(tokenizer, **{**spread, **changes}), tiny_model)


def chosen(model, inputs):
    """The experts where each token was sampled, as sets: rows of tokens of layers."""
    routers = logits_of(model, inputs, 1.0, output_router_logits=True)[1].router_logits
    rows, width = inputs["completion_ids"].shape
    layers = [x.view(rows, -1, 4)[:, :-1][:, -width:].topk(2).indices.tolist() for x in routers]
    return [[[set(layer[i][t]) for layer in layers] for t in range(width)] for i in range(rows)]


OF_EXPERTS = {
    "plain": {"length_sort": "off", "router_aux_loss_coef": 0.3},  # a pass with a third result
    "packed": {"shared_prefix": "on", "router_aux_loss_coef": 0.0},
    "checkpointing": {"gradient_checkpointing": True, "beta": 0.1, "router_aux_loss_coef": 0.0},
}


@pytest.mark.parametrize("form", OF_EXPERTS)
def test_the_drift_is_the_share_of_experts_that_differ(make_trainer, moe, form):
    settings = {"optim": "sgd", "learning_rate": 3.0, "max_steps": 4, "expert_drift": True, "loss_type": "dapo"}
    trainer = build(make_trainer, moe(), **settings, **OF_EXPERTS[form])
    first, parts = copied(trainer.model), []
    trainer.train()
    assert any(keys.PACKED_LAYOUT in inputs for inputs, *_ in trainer.seen) == (form == "packed")
    # every second step begins a batch, whose π_old is the policy before it
    for i, (inputs, loss_pass, tokens, model) in enumerate(trainer.seen):
        old = first if i < 4 else trainer.seen[4][3]
        then, now = chosen(old, inputs), chosen(model, inputs)
        for kept, name in ((now, "experts_t"), (then, keys.OLD_EXPERTS)):
            experts = loss_pass.experts_t if name == "experts_t" else inputs[name]
            for r, t in tokens.mask_t.nonzero().tolist():
                assert [set(layer) for layer in experts[r, t].tolist()] == kept[r][t], (i, name, r, t)
        places = tokens.mask_t.nonzero().tolist()
        pairs = [pair for r, t in places for pair in zip(then[r][t], now[r][t], strict=True)]
        parts.append(sum(len(a - b) for a, b in pairs) / (2 * len(pairs)))
    drifts = [(a + b) / 2 for a, b in zip(parts[::2], parts[1::2], strict=True)]  # of the micro-batches of a step
    shown = [row["credit/expert_drift"] for row in trainer.state.log_history if "loss" in row]
    assert shown == pytest.approx(drifts, abs=1e-6)
    assert shown[0] == shown[2] == 0.0 and 0.05 < shown[1] < 1.0


def test_where_there_is_no_drift_to_see_it_is_refused(make_trainer):
    with pytest.raises(ValueError, match="unlike Qwen3ForCausalLM: leave expert_drift out"):
        build(make_trainer, expert_drift=True)
    with pytest.raises(ValueError, match="raise steps_per_generation"):
        build(make_trainer, expert_drift=True, steps_per_generation=2)
