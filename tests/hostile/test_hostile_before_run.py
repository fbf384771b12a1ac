"""Data, templates, models and settings that a run cannot use: one line before the run, with the row and the fix."""

import pytest
import torch
import trl
from conftest import count_a
from datasets import Dataset, IterableDataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel


pytestmark = pytest.mark.hostile("prompts and templates", "refused")
USER, SYSTEM, GOLD = ({"role": role, "content": "1+2="} for role in ("user", "system", "assistant"))
PARTS = {"role": "user", "content": [{"type": "text", "text": "1+2="}]}
CHAT = "{% for m in messages %}{{ m['content'] }}{% endfor %}="
STRICT = CHAT.replace("{{", "{% if m['role'] != 'user' %}{{ raise_exception('no such role') }}{% endif %}{{")
DEAF = "{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] }}{% endif %}{% endfor %}="
JOINED = "{% for m in messages %}{{ m['content'] + '' }}{% endfor %}="


@pytest.fixture
def make(make_trainer, tiny_model):
    """A trainer on prompts, with a chat template."""

    def build(prompts, *, template=CHAT, kind=Dataset, algo="grpo", reward_funcs=count_a, **settings):
        tokenizer = AutoTokenizer.from_pretrained(tiny_model)
        tokenizer.chat_template = template
        rows = [{"prompt": prompt, "answer": "3"} for prompt in prompts]
        data = Dataset.from_list(rows) if kind is Dataset else kind(rows)
        arguments = {"processing_class": tokenizer, "train_dataset": data, **settings.pop("trainer_kwargs", {})}
        return make_trainer(algo, trainer_kwargs=arguments, reward_funcs=reward_funcs, **settings)

    return build


def stream(rows):
    return IterableDataset.from_generator(lambda: iter(rows))


def transformed(rows):
    data = Dataset.from_dict({"number": range(len(rows))})
    data.set_transform(lambda batch: {key: [rows[i][key] for i in batch["number"]] for key in rows[0]})
    return data


UNUSABLE = [
    (["1="] * 40 + [""], CHAT, "row 40"),
    ([[USER]] * 20 + [[]], CHAT, "row 20"),
    ([[{"from": "human", "value": "1"}]] * 16, CHAT, "`role` and `content`"),
    ([[USER, {"role": "user", "content": None}]] * 16, CHAT, "without content"),
    ([[USER]] * 40 + [[SYSTEM, USER]], STRICT, "row 40"),
    ([[SYSTEM, USER]] * 16, DEAF, "message 0 .*'system'"),
    ([[PARTS]] * 16, JOINED, "each content as text"),
    ([[USER]] * 16, None, "chat_template"),
]


@pytest.mark.parametrize(("prompts", "template", "message"), UNUSABLE)
def test_prompts_that_no_run_can_use(make, monkeypatch, prompts, template, message):
    monkeypatch.setattr(trl.GRPOTrainer, "_move_model_to_device", lambda *args: pytest.fail("the model was moved"))
    with pytest.raises(ValueError, match="train_dataset.*" + message) as error:
        make(prompts, template=template)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", [stream, transformed])
@pytest.mark.parametrize(("bad", "words"), [(None, ""), ([USER], ": .*text in some rows and messages in others")])
def test_rows_of_streams_and_transforms(make, kind, bad, words):
    with pytest.raises(ValueError, match=f"row 1{words}"):
        make(["1=", bad] * 8, kind=kind)


def test_evaluation_sets(make):
    bad = Dataset.from_dict({"prompt": ["1="] * 7 + [""], "answer": ["1"] * 8})
    with pytest.raises(ValueError, match=r"eval_dataset\['hard'\], row 7"):
        make(["1="] * 16, trainer_kwargs={"eval_dataset": {"hard": bad}})


def test_no_column_of_prompts_and_no_column_for_a_reward(make):
    def reward(completions, answer, **kwargs):
        return [0.0] * len(completions)

    def renamed(rows):
        return Dataset.from_list(rows).rename_column("prompt", "question")

    with pytest.raises(ValueError, match=r"only 'question', 'answer': .*rename_column\('question', 'prompt'\)"):
        make(["1="] * 16, kind=renamed)
    with pytest.raises(ValueError, match="'reward'.*'answer', and train_dataset with remove_unused_columns=True"):
        make(["1="] * 16, reward_funcs=reward, remove_unused_columns=True)
    for kind in (stream, transformed):
        with pytest.raises(ValueError, match="'reward'.*'answer', and train_dataset has"):
            make(["1="], reward_funcs=reward, kind=lambda _, kind=kind: kind([{"prompt": "1=", "other": 1}] * 16))


def test_a_prompt_as_long_as_the_context(make):
    with pytest.raises(ValueError, match="row 16: the prompt of 1100 tokens"):
        make(["1="] * 16 + ["1" * 1100], algo="spo_chain", max_completion_length=8)


def test_a_response_beyond_the_context(make, tiny_model, caplog):
    prompts = ["1="] * 16 + ["1" * 1020]
    make(prompts)  # with rotary embeddings it runs, as in TRL
    assert "row 16: the prompt of 1020 tokens and max_completion_length=8 exceed the context of 1024" in caplog.text
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    learned = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=len(tokenizer), n_positions=32))
    with pytest.raises(ValueError, match="set max_completion_length=2 or None .*The model has no positions beyond"):
        make(["1" * 30] * 16, trainer_kwargs={"model": learned})
    trainer = make(["1="] * 16, algo="spo_chain")
    with pytest.raises(ValueError, match="the prompt of 1024 tokens leaves no room"):  # a row that was not measured
        trainer.engine.remaining_budget(1024, 0)


@pytest.mark.hostile("prompts and templates", "survived")
@pytest.mark.parametrize("kind", [Dataset, stream, transformed])
def test_what_trl_accepts_runs_and_rows_are_neither_lost_nor_changed(make, kind):
    prompts = [[SYSTEM, USER, GOLD, {"role": "user", "content": f"{i}+"}] for i in range(16)]
    seen = []

    def reward(prompts, completions, answer, **kwargs):
        seen.extend(prompt[-1]["content"] for prompt in prompts)
        return count_a([completion[0]["content"] for completion in completions])

    torch.manual_seed(3)
    before = torch.get_rng_state()
    trainer = make(prompts, kind=kind, reward_funcs=reward, max_steps=8, shuffle_dataset=False)
    trainer.train()
    assert seen == [f"{i}+" for i in range(16) for _ in range(4)]
    assert before.equal(torch.manual_seed(3).get_state())


@pytest.mark.hostile("models that train nothing", "refused")
def test_an_adapter_that_is_not_trainable(make_trainer, tiny_model):
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    frozen = get_peft_model(base, LoraConfig(target_modules=["q_proj"], inference_mode=True))
    kwargs = {"model": frozen, "processing_class": AutoTokenizer.from_pretrained(tiny_model)}
    with pytest.raises(ValueError, match="no parameter .* requires a gradient.*is_trainable=True"):
        make_trainer("grpo", trainer_kwargs=kwargs).train()
