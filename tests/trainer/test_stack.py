"""The rest of the stack: LoRA, gradient checkpointing, bfloat16, torch.compile and mixtures of experts."""

import math

import numpy as np
import pytest
import torch
from datasets import Dataset
from passes_helpers import Watch, check_equal, distinct, scripted, with_tokenizer
from peft import LoraConfig
from PIL import Image
from segment_helpers import steps_of
from tiny_models import CHARACTERS, tiny_llava, tiny_qwen3_moe
from transformers import AutoTokenizer, CLIPImageProcessor, LlavaProcessor
from warm_start import make_tokenizer
from weight_helpers import check_finite, moved, weights

import trl_credit


NAMES = ["gspo_token", "kl_cov", "s_trace", "spo_chain", "spo_tree"]


@pytest.mark.slow
@pytest.mark.parametrize("algo", NAMES)
def test_lora_trains_the_adapter_alone(make_trainer, algo):
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    settings = {"beta": 0.1, "use_bias_correction_kl": False, "max_steps": 2}
    trainer = make_trainer(algo, trainer_kwargs={"peft_config": lora}, temperature=1.3, **settings)
    assert trainer.ref_model is None  # the reference is the model without its adapter
    before = weights(trainer)
    trainer.train()
    names = moved(trainer, before)
    assert names and all("lora" in name for name in names)
    check_finite(trainer)
    if trainer.args.policy_loss == "clip":  # the adapter does not begin at 0, so it differs from the reference
        assert any(row.get("kl", 0.0) > 0.0 for row in steps_of(trainer))


@pytest.mark.slow
@pytest.mark.parametrize("algo", NAMES)
def test_gradient_checkpointing_changes_nothing(trained, tmp_path, algo):
    settings = {"max_steps": 1, "optim": "sgd"}
    runs = [trained(algo, gradient_checkpointing=on, output_dir=str(tmp_path / f"{on}"), **settings) for on in (0, 1)]
    torch.testing.assert_close(*map(weights, runs), rtol=0, atol=1e-7)


# the eager backend: everything of torch.compile but the code it would generate
COMPILED = {"torch_compile": True, "torch_compile_backend": "eager"}
FASTER = [(algo, {"bf16": True, "num_iterations": 2}) for algo in NAMES]
FASTER += [(algo, COMPILED) for algo in ("s_trace", "spo_tree")]


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "settings"), FASTER)
def test_bfloat16_autocast_and_compiled_models(trained, algo, settings):
    trainer = trained(algo, **settings)
    check_finite(trainer)
    assert len(steps_of(trainer)) == 2 // trainer.args.num_iterations
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in trainer.model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["s_trace", "gspo_token", "spo_chain", "spo_tree"])
def test_a_mixture_of_experts_keeps_its_auxiliary_loss(make_trainer, tiny_model, algo):
    model = with_tokenizer(tiny_qwen3_moe(AutoTokenizer.from_pretrained(tiny_model)), tiny_model)
    config_class, trainer_class = trl_credit.ALGORITHMS[algo]
    reward = (lambda completions, **kwargs: [1.0] * len(completions)) if algo == "s_trace" else distinct
    pair = config_class, scripted(trainer_class, model)
    trainer = make_trainer(pair, reward_funcs=reward, max_steps=1, beta=0.0)
    before = weights(trainer)
    trainer.train()
    (row,) = steps_of(trainer)
    assert math.isfinite(row["aux_loss"]) and row["aux_loss"] > 0
    gates = {name for name in before if "mlp.gate.weight" in name}
    assert len(gates) == 2 and gates <= moved(trainer, before)
    if algo == "s_trace":  # no advantage anywhere: the loss is that of the router alone
        assert row["loss"] == pytest.approx(0.5 * row["aux_loss"], rel=1e-4)


CHAT = (
    "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<image>{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}{% endfor %}="
)


@pytest.mark.slow
def test_images_go_with_their_rows(tmp_path):
    """A random Llava of two layers each, eight prompts with images."""
    tokenizer = make_tokenizer(CHARACTERS)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    size = {"height": 16, "width": 16}
    parts = {"image_processor": CLIPImageProcessor(size=size, crop_size=size), "tokenizer": tokenizer, "patch_size": 8}
    images = {"vision_feature_select_strategy": "default", "num_additional_image_tokens": 1, "image_token": "<image>"}
    processor = LlavaProcessor(**parts, **images, chat_template=CHAT)
    model = tiny_llava(tokenizer, image_token="<image>", image_size=16)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 1, 0
    model.save_pretrained(tmp_path / "model")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3), dtype=np.uint8)
    texts = [f"{i}+1" if i % 2 else f"{i}+1234567" for i in range(8)]
    prompts = [[{"role": "user", "content": text}] for text in texts]
    data = Dataset.from_dict({"prompt": prompts, "image": [Image.fromarray(image) for image in pixels]})

    def lengths(completions, **kwargs):
        return [len(c[0]["content"]) % 7 / 7 for c in completions]

    settings = {"max_steps": 1, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 8, "beta": 0.1}
    settings |= {"num_generations": 2, "max_completion_length": 12, "temperature": 2.0}
    settings |= {"report_to": "none", "save_strategy": "no", "disable_tqdm": True}
    seen = []
    for length_sort in ("off", "auto"):
        args = trl_credit.CreditConfig(str(tmp_path / length_sort), length_sort=length_sort, **settings)
        own = {"train_dataset": data, "processing_class": processor}
        trainer = trl_credit.CreditTrainer(str(tmp_path / "model"), lengths, args, **own)
        seen.append(Watch(trainer))
        before = weights(trainer)
        trainer.train()
    assert trainer._passes.padding.window == 8
    names = moved(trainer, before)
    assert any("vision_tower" in name for name in names) and any("language_model" in name for name in names)
    check_equal(*seen)
    assert seen[1].tokens(trained=True) < seen[0].tokens(trained=True)
