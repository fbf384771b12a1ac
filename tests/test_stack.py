"""The rest of the stack: LoRA, gradient checkpointing, bfloat16, torch.compile and mixtures of experts."""

import math

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from PIL import Image
from test_padding import Watch, check_equal
from tiny_models import CHARACTERS, tiny_llava, tiny_qwen3_moe
from transformers import AutoTokenizer, CLIPImageProcessor, LlavaProcessor

import trl_credit
from trl_credit.demo.warm_start import make_tokenizer


NAMES = sorted(trl_credit.ALGORITHMS)


def history(trainer):
    return [row for row in trainer.state.log_history if "reward" in row or "loss" in row]


def finite(trainer):
    return all(math.isfinite(v) for row in history(trainer) for v in row.values() if isinstance(v, float))


@pytest.mark.parametrize("algo", NAMES)
def test_lora_trains_the_adapter_alone(make_trainer, algo):
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    settings = {"beta": 0.1, "use_bias_correction_kl": False, "max_steps": 2}
    trainer = make_trainer(algo, trainer_kwargs={"peft_config": lora}, temperature=1.3, **settings)
    assert trainer.ref_model is None  # the reference is the model without its adapter
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    moved = {name for name, p in trainer.model.named_parameters() if not torch.equal(before[name], p)}
    assert moved and all("lora" in name for name in moved)
    assert finite(trainer)
    if trainer.args.policy_loss == "clip":  # the adapter does not begin at 0, so it differs from the reference
        assert any(row.get("kl", 0.0) > 0.0 for row in history(trainer))


@pytest.mark.parametrize("algo", NAMES)
def test_gradient_checkpointing_changes_nothing(make_trainer, tmp_path, algo):
    models = []
    for on in (False, True):
        trainer = make_trainer(
            algo, gradient_checkpointing=on, max_steps=1, output_dir=str(tmp_path / str(on)), optim="sgd"
        )
        trainer.train()
        models.append({name: p.detach() for name, p in trainer.model.named_parameters()})
    for name, p in models[0].items():
        torch.testing.assert_close(models[1][name], p, rtol=0, atol=1e-7)


@pytest.mark.parametrize("algo", NAMES)
def test_bfloat16_autocast(make_trainer, algo):
    trainer = make_trainer(algo, bf16=True, max_steps=2, num_iterations=2)
    trainer.train()
    assert finite(trainer)
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in trainer.model.parameters())


@pytest.mark.parametrize("algo", ["s_trace", "spo_tree"])
def test_torch_compile(make_trainer, algo):
    # the eager backend: everything of torch.compile but the code it would generate
    trainer = make_trainer(algo, torch_compile=True, torch_compile_backend="eager", max_steps=2)
    trainer.train()
    assert finite(trainer) and len([row for row in history(trainer) if "reward" in row]) == 2


@pytest.mark.parametrize("algo", ["s_trace", "gspo_token", "spo_chain", "spo_tree"])
def test_a_mixture_of_experts_keeps_its_auxiliary_loss(tiny_model, tmp_path, algo):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    model = tiny_qwen3_moe(tokenizer, router_aux_loss_coef=0.5)
    config_class, trainer_class = trl_credit.ALGORITHMS[algo]
    tree = {"tree_branching": [2, 2], "tree_segment_length": 2} if algo == "spo_tree" else {}
    args = config_class(
        **tree,
        output_dir=str(tmp_path),
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        max_steps=1,
        logging_steps=1,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=8,
        beta=0.0,
    )

    def constant(completions, **kwargs):
        return [1.0] * len(completions)

    def distinct(completions, **kwargs):
        return [sum((i + 1) * ord(c) for i, c in enumerate(text)) % 97 / 97 for text in completions]

    data = Dataset.from_dict({"prompt": [f"{i}+1=" for i in range(8)]})
    reward = constant if algo == "s_trace" else distinct
    trainer = trainer_class(model, reward, args, train_dataset=data, processing_class=tokenizer)
    before = [layer.mlp.gate.weight.detach().clone() for layer in trainer.model.model.layers]
    trainer.train()
    row = next(row for row in history(trainer) if "reward" in row)
    assert math.isfinite(row["aux_loss"]) and row["aux_loss"] > 0
    moved = [
        not torch.equal(a, layer.mlp.gate.weight) for a, layer in zip(before, trainer.model.model.layers, strict=True)
    ]
    assert all(moved)
    if algo == "s_trace":  # no advantage anywhere: the loss is that of the router alone
        assert row["loss"] == pytest.approx(0.5 * row["aux_loss"], rel=1e-4)


CHAT = (
    "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<image>{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}{% endfor %}="
)


@pytest.fixture(scope="module")
def vision(tmp_path_factory):
    """Folder of a random Llava of two layers each, and its processor."""
    tokenizer = make_tokenizer(CHARACTERS)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    size = {"height": 16, "width": 16}
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessor(size=size, crop_size=size),
        tokenizer=tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
        chat_template=CHAT,
    )
    model = tiny_llava(tokenizer, image_token="<image>", image_size=16)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 1, 0
    folder = str(tmp_path_factory.mktemp("vision"))
    model.save_pretrained(folder)
    return folder, processor


@pytest.mark.parametrize(
    "knobs",
    [
        {"importance": "eligible", "selector": "entropy", "loss_type": "grpo"},
        {"token_mask": "probability", "loss_type": "dapo", "difficulty": "history"},
        {"importance": "sequence_token", "baseline": "optimal", "num_iterations": 2},
    ],
    ids=str,
)
def test_images_reach_the_model(vision, tmp_path, knobs):
    folder, processor = vision
    pixels = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3), dtype=np.uint8)
    data = [{"prompt": [{"role": "user", "content": f"{i}+1"}], "image": Image.fromarray(pixels[i])} for i in range(8)]
    args = trl_credit.CreditConfig(
        output_dir=str(tmp_path),
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        max_steps=2,
        logging_steps=1,
        learning_rate=1e-2,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=6,
        temperature=1.3,
        **knobs,
    )

    def distinct(completions, **kwargs):
        texts = [c[0]["content"] for c in completions]
        return [sum((i + 1) * ord(c) for i, c in enumerate(text)) % 97 / 97 for text in texts]

    trainer = trl_credit.CreditTrainer(
        folder, distinct, args, train_dataset=Dataset.from_list(data), processing_class=processor
    )
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    assert finite(trainer)
    moved = {name for name, p in trainer.model.named_parameters() if not torch.equal(before[name], p)}
    assert any("vision_tower" in name for name in moved) and any("language_model" in name for name in moved)


def test_images_go_with_their_rows(vision, tmp_path):
    folder, processor = vision
    pixels = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3), dtype=np.uint8)
    texts = [f"{i}+1" if i % 2 else f"{i}+1234567" for i in range(8)]
    data = [
        {"prompt": [{"role": "user", "content": text}], "image": Image.fromarray(image)}
        for text, image in zip(texts, pixels, strict=True)
    ]
    seen = []
    for length_sort in ("off", "auto"):
        args = trl_credit.CreditConfig(
            output_dir=str(tmp_path / length_sort),
            length_sort=length_sort,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            max_steps=1,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=8,
            num_generations=2,
            max_completion_length=12,
            temperature=2.0,
            beta=0.1,
        )
        trainer = trl_credit.CreditTrainer(
            folder,
            lambda completions, **kwargs: [len(c[0]["content"]) % 7 / 7 for c in completions],
            args,
            train_dataset=Dataset.from_list(data),
            processing_class=processor,
        )
        seen.append(Watch(trainer))
        trainer.train()
    assert trainer._padding.window == 8
    check_equal(*seen)
    assert seen[1].tokens(trained=True) < seen[0].tokens(trained=True)
