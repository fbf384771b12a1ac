"""The folder of a LoRA run as the model of every command."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_credit import GRPOTrainer
from trl_credit.cli import main
from trl_credit.config.trl_settings import check_model
from trl_credit.demo import demo_dataset, demo_model_path, demo_reward
from trl_credit.lab.evaluation import samplers
from trl_credit.lab.plan import read_shape
from trl_credit.presets.grpo import GRPOConfig
from trl_credit.support.adapters import adapter_base, tokenizer_source


RUN = "--algo grpo --max_steps 1 --per_device_train_batch_size 8 --log_credit 1 --disable_tqdm true"
ON = f"{RUN} --model_name_or_path lora --dataset_name demo --output_dir on"
FEW = "--quiet --samples 1 --max_problems 2"
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("adapters") / "lora"
    words = f"train {RUN} --use_peft true --learning_rate 1e-2 --output_dir {folder}"
    assert main(words.split()) == 0
    return folder


@pytest.fixture
def lora(trained, here) -> Path:
    return Path(shutil.copytree(trained, "lora"))


DONE = {
    f"eval lora {FEW}": "loaded on it",
    "explain lora --algo grpo --model lora": "loaded on it",
    "plan --algo grpo --model_name_or_path lora": "is trained further",
    f"train {ON} --beta 0.1": "the reference is the adapter as it is now",
    "push lora --repo_id a/b/c": "it is pushed alone",
}


@pytest.mark.parametrize(("command", "done"), DONE.items(), ids=[command.split()[0] for command in DONE])
def test_every_command_finds_the_base(lora, command_said, caplog, command, done):
    code, out, error = command_said(*command.split())
    (line,) = [x for x in (caplog.text + out).splitlines() if f"lora is an adapter of {demo_model_path()}" in x]
    assert done in line and (code == 0 or (command.startswith("push") and "a/b/c" in error)), error


def test_training_goes_on_with_the_adapter(lora, command_said):
    before = load_file(lora / WEIGHTS)
    assert command_said("train", *ON.split(), "--max_steps", "2", "--save_steps", "1")[0] == 0
    after = load_file(Path("on", WEIGHTS))
    assert before.keys() == after.keys() and any((before[name] != after[name]).any() for name in before)
    # a small step away from the adapter that it began with, not from a new one
    assert all((before[name] - after[name]).abs().max() < 1e-3 for name in before)
    assert adapter_base("on") == demo_model_path() and not Path("on", "config.json").exists()
    shutil.rmtree("on/checkpoint-2")
    assert command_said("train", *ON.split(), "--max_steps", "2", "--resume_from_checkpoint", "on/checkpoint-1")[0] == 0
    assert all(torch.equal(tensor, after[name]) for name, tensor in load_file(Path("on", WEIGHTS)).items())


def test_a_trainer_takes_the_folder(lora, caplog):
    args = GRPOConfig(output_dir="on", max_steps=1, per_device_train_batch_size=8, report_to="none", use_cpu=True)
    parts = {"reward_funcs": demo_reward, "args": args, "train_dataset": demo_dataset()}
    with pytest.raises(ValueError, match=r"is an adapter, .*peft_config.* starts a new one"):
        GRPOTrainer(model="lora", peft_config=LoraConfig(), **parts)
    args.model_init_kwargs = {"dtype": "float32"}
    trainer = GRPOTrainer(model="lora", **parts)
    names = [name for name, weight in trainer.model.named_parameters() if weight.requires_grad]
    assert names and all("lora" in name for name in names)


def test_an_adapter_is_merged_for_vllm(lora, monkeypatch):
    tokenizer = AutoTokenizer.from_pretrained("lora")
    ids = torch.tensor([tokenizer("1+2-3=")["input_ids"]])
    logits = [AutoModelForCausalLM.from_pretrained(name)(ids).logits for name in ("lora", demo_model_path())]

    def engine(name, tokenizer, **kwargs):  # vLLM is not installed
        assert not Path(name, "adapter_config.json").exists() and len(AutoTokenizer.from_pretrained(name)) > 0
        logits.append(AutoModelForCausalLM.from_pretrained(name)(ids).logits)

    monkeypatch.setattr(samplers, "VLLMSampler", engine)
    samplers.load_sampler("lora", tokenizer, backend="vllm", batch_size=1, longest=9, trust_remote_code=False)
    assert torch.allclose(logits[2], logits[0], atol=1e-4) and not torch.allclose(logits[2], logits[1], atol=1e-4)


def test_a_plan_counts_the_adapter(tmp_path):
    config = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
    config.base_model_name_or_path, config.inference_mode = demo_model_path(), True  # as it is saved
    config.save_pretrained(tmp_path)
    config.inference_mode = False
    shape, of_new = read_shape(str(tmp_path)), read_shape(demo_model_path(), adapter=config)
    assert 0 < shape.trained == of_new.trained < shape.parameters == of_new.parameters
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(demo_model_path()), config)
    assert shape.trained == sum(p.numel() for p in adapted.parameters() if p.requires_grad) and shape.is_adapted
    assert shape.parameters == sum(p.numel() for p in adapted.parameters())


BASES = [
    ({"base_model_name_or_path": None}, "names no base model: set base_model_name_or_path"),
    ({"base_model_name_or_path": "/gone/model"}, "names the base model '/gone/model', neither"),
    ({"megatron_config": {"a": 1}, "megatron_core": "lora.own"}, "sets megatron_config, with which PEFT"),
]
COMMANDS = [f"eval lora {FEW}", "explain lora --model lora", "plan --model_name_or_path lora", f"train {ON}"]


TRIED = [*((COMMANDS[0], x) for x in BASES), *((command, BASES[2]) for command in COMMANDS[1:])]


@pytest.mark.hostile("folders of strangers", "refused")
@pytest.mark.parametrize(("command", "change"), TRIED)
def test_a_base_that_is_missing_or_more_than_a_model(lora, command_said, command, change):
    path = lora / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change[0]))
    (lora / "own.py").write_text("open('ran', 'w')")
    code, _, error = command_said(*command.split())
    assert code == 2 and change[1] in error and not Path("ran").exists(), error


def test_an_adapter_that_was_saved_alone_has_the_tokenizer_of_its_base(lora, command_said):
    for path in lora.glob("tokenizer*"):
        path.unlink()
    assert tokenizer_source("lora") == demo_model_path() and tokenizer_source(demo_model_path()) == demo_model_path()
    check_model("lora")
    assert command_said("eval", "lora", *FEW.split())[0] == command_said("train", *ON.split())[0] == 0
