"""Data, templates, models and settings that a run cannot use: one line before the run, with the row and the fix."""

import datasets
import pytest
import torch
import trl
from agent_helpers import ANSWER, GRPO, Bare, batch_of
from conftest import count_a
from datasets import Dataset, IterableDataset
from peft import LoraConfig, PeftModel, get_peft_model
from script_helpers import error_of
from scripts import load_script
from tiny_models import tiny_qwen3
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

import trl_credit
from trl_credit.support.functions import FunctionRaised


pytest_plugins = ["agent_helpers"]


refused = pytest.mark.hostile("prompts and templates", "refused")
survived = pytest.mark.hostile("prompts and templates", "survived")
USER, SYSTEM, GOLD = ({"role": role, "content": "1+2="} for role in ("user", "system", "assistant"))
PARTS = {"role": "user", "content": [{"type": "text", "text": "1+2="}]}
CHAT = "{% for m in messages %}{{ m['content'] }}{% endfor %}="
STRICT = (
    "{% for m in messages %}{% if m['role'] != 'user' %}{{ raise_exception('no such role') }}{% endif %}{% endfor %}="
)
STRICT_TOO = STRICT.replace("{% endfor", "{{ m['content'] }}{% endfor")
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
        given = {"processing_class": tokenizer, "train_dataset": data, **settings.pop("trainer_kwargs", {})}
        return make_trainer(algo, trainer_kwargs=given, reward_funcs=reward_funcs, **settings)

    return build


def stream(rows):
    return IterableDataset.from_generator(lambda: iter(rows))


def transformed(rows):
    data = Dataset.from_dict({"number": range(len(rows))})
    data.set_transform(lambda batch: {key: [rows[i][key] for i in batch["number"]] for key in rows[0]})
    return data


@refused
@pytest.mark.parametrize(
    ("prompts", "template", "message"),
    [
        (["1="] * 15 + [""], CHAT, "row 15: the prompt '' has no tokens"),
        (["1="] * 40 + [""], CHAT, "row 40: the prompt '' has no tokens"),
        (["1="] * 40 + [None], CHAT, r"row 40: column 'prompt' holds None \(a NoneType\)"),
        ([1, 2] * 8, CHAT, r"row 0: column 'prompt' holds 1 \(a int\), not text or messages"),
        ([["1=", "2="]] * 16, CHAT, "row 0: column 'prompt' holds .*not text or messages with `role` and `content`"),
        ([{"role": "user"}] * 16, CHAT, r"holds .*\(a dict\), not text or messages"),
        ([[USER]] * 20 + [[]], CHAT, r"row 20: column 'prompt' holds \[\]"),
        ([[{"from": "human", "value": "1"}]] * 16, CHAT, "not text or messages with `role` and `content`"),
        ([[USER, {"role": "user", "content": None}]] * 16, CHAT, "has a message without content"),
        (
            [[USER]] * 40 + [[USER, GOLD]],
            CHAT,
            "row 40: .*ends with a message of the assistant.*split it off, prompt =",
        ),
        ([[SYSTEM, USER]] * 16, STRICT, r"row 0: .*the roles system, user \(TemplateError: no such role\): write"),
        (
            [[USER]] * 40 + [[SYSTEM, USER]],
            STRICT_TOO,
            r"row 40: .*the roles system, user \(TemplateError: no such role\)",
        ),
        ([[SYSTEM, USER]] * 16, DEAF, r"row 0: .*does not read the content of message 0 \(role 'system'\)"),
        ([[USER, {"role": "human", "content": "1"}]] * 16, DEAF, r"message 1 \(role 'human'\)"),
        ([[PARTS]] * 16, CHAT, r"row 0: .*does not read the content of message 0 \(role 'user'\): write it as text"),
        ([[PARTS]] * 16, JOINED, "the roles user .*write each content as text"),
        ([[USER]] * 16, None, "there is none: set tokenizer.chat_template"),
    ],
)
def test_prompts_that_no_run_can_use(make, monkeypatch, prompts, template, message):
    monkeypatch.setattr(
        trl.GRPOTrainer, "_move_model_to_device", lambda *args: pytest.fail("the model was moved before")
    )
    with pytest.raises(ValueError, match="train_dataset.*" + message) as error:
        make(prompts, template=template)
    assert "\n" not in str(error.value)


@refused
@pytest.mark.parametrize("kind", [stream, transformed])
@pytest.mark.parametrize(
    ("prompts", "message"),
    [(["1=", None], "row 1: .*holds None"), (["1=", [USER]], "row 1: .*text in some rows and messages in others")],
)
def test_rows_of_streams_and_transforms(make, kind, prompts, message):
    with pytest.raises(ValueError, match=message):
        make(prompts * 8, kind=kind)


@refused
@pytest.mark.parametrize(
    "sets", [lambda bad: bad, lambda bad: {"hard": bad}, lambda bad: datasets.DatasetDict(hard=bad)]
)
def test_evaluation_sets(make, sets):
    bad = sets(Dataset.from_dict({"prompt": ["1="] * 7 + [""], "answer": ["1"] * 8}))
    with pytest.raises(ValueError, match=r"eval_dataset(\['hard'\])?, row 7: the prompt '' has no tokens"):
        make(["1="] * 16, trainer_kwargs={"eval_dataset": bad})


@refused
def test_no_column_of_prompts_and_no_column_for_a_reward(make):
    def reward(completions, answer, **kwargs):
        return [0.0] * len(completions)

    def renamed(rows):
        return Dataset.from_list(rows).rename_column("prompt", "question")

    with pytest.raises(ValueError, match=r"only 'question', 'answer': .*rename_column\('question', 'prompt'\)"):
        make(["1="] * 16, kind=renamed)
    with pytest.raises(ValueError, match="'reward' .*'answer', and train_dataset with remove_unused_columns=True"):
        make(["1="] * 16, reward_funcs=reward, remove_unused_columns=True)
    for kind in (stream, transformed):
        with pytest.raises(ValueError, match=r"'reward' .*'answer', and train_dataset has \['other'\]"):
            make(
                ["1="] * 16, reward_funcs=reward, kind=lambda rows, kind=kind: kind([{"prompt": "1=", "other": 1}] * 16)
            )


@refused
@pytest.mark.parametrize(
    ("algo", "size", "most", "message"),
    [
        ("grpo", 1024, 8, "row 16: the prompt of 1024 tokens leaves no room for a response in the context of 1024"),
        ("spo_chain", 1100, 8, "row 16: the prompt of 1100 tokens leaves no room"),
        ("spo_tree", 1024, 8, "row 16: the prompt of 1024 tokens leaves no room"),
    ],
)
def test_a_prompt_as_long_as_the_context(make, algo, size, most, message):
    with pytest.raises(ValueError, match=message):
        make(["1="] * 16 + ["1" * size], algo=algo, max_completion_length=most)


@refused
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


@survived
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


@survived
def test_who_generates_by_other_means_is_not_checked(make):
    def rollout(prompts, trainer):
        rows = [[3, 4, 5]] * (len(prompts) * trainer.num_generations)
        return {"prompt_ids": rows, "completion_ids": rows, "logprobs": [[0.0] * 3] * len(rows)}

    class Own(trl_credit.CreditTrainer):
        def _tokenize_prompts(self, prompts):
            return super()._tokenize_prompts(["1="] * len(prompts))

    make([[USER, GOLD]] * 16, template=None, trainer_kwargs={"rollout_func": rollout})
    algo = (trl_credit.CreditConfig, Own)
    make([[USER, GOLD]] * 16, template=None, algo=algo, reward_funcs=lambda completions, **row: [0.0, 1.0] * 4).train()


trains_nothing = pytest.mark.hostile("models that train nothing", "refused")


@trains_nothing
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_an_adapter_that_is_not_trainable(make_trainer, tiny_model, tmp_path, beta):
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    get_peft_model(base, LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    given = {"processing_class": AutoTokenizer.from_pretrained(tiny_model)}
    frozen, trainable = (
        PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(tiny_model), tmp_path / "adapter", is_trainable=x
        )
        for x in (False, True)
    )
    with pytest.raises(ValueError, match="no parameter .* requires a gradient.*is_trainable=True"):
        make_trainer("grpo", beta=beta, trainer_kwargs={"model": frozen, **given}).train()
    make_trainer("grpo", beta=beta, trainer_kwargs={"model": trainable, **given}).train()


@trains_nothing
def test_frozen_parameters_and_optimizers_of_other_parameters(make_trainer, tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    given = {"model": model, "processing_class": AutoTokenizer.from_pretrained(tiny_model)}
    trainer = make_trainer("grpo", trainer_kwargs=given)
    model.requires_grad_(False)
    with pytest.raises(ValueError, match=r"no parameter .*model.requires_grad_\(True\)"):
        trainer.train()
    before = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.lm_head.requires_grad_(True)
    other = torch.optim.AdamW(tiny_qwen3(given["processing_class"]).parameters(), lr=1e-3)
    with pytest.raises(ValueError, match="the optimizer has no parameter of the model that requires a gradient"):
        make_trainer("grpo", trainer_kwargs={**given, "optimizers": (other, None)}).train()
    make_trainer("grpo", trainer_kwargs={**given, "optimizers": (before, None)}).train()


@pytest.mark.hostile("generation settings", "refused")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperatur": 0.5}, "GenerationConfig has no 'temperatur': did you mean 'temperature'"),
        ({"no_such_setting": 1}, "GenerationConfig has no 'no_such_setting': leave it out"),
        ({"stop_strings": ["3"]}, "after one of stop_strings transformers writes padding.*eos_token_id"),
    ],
)
@pytest.mark.parametrize("algo", ["grpo", "spo_chain"])
def test_generation_settings(make_trainer, algo, settings, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(algo, generation_kwargs=settings)


class Refuses(Bare):
    def reset(self, answer, **row):
        assert vars(self) == {}  # a guard has left nothing
        if answer == "9":
            raise KeyError("no such level")


class Takes(Bare):
    def reset(self, level):
        return None


@pytest.mark.hostile("environments", "refused")
@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (Refuses, r"Refuses.reset, for the row {.*'answer': '9'.*}, raised KeyError: 'no such level', in line \d+ of"),
        (Takes, "Takes.reset, for the row {.*}, raised TypeError: .*unexpected keyword argument"),
    ],
)
@pytest.mark.parametrize("at", [0, 1])
def test_a_reset_that_raises_names_environment_and_row(make_agent, environment, message, at):
    """In an environment that was made with the trainer, and in one that was made for the batch."""
    trainer = make_agent([ANSWER, ANSWER], environment=environment, algo=GRPO)
    if environment is Refuses:
        trainer.rows[1 - at] = {**trainer.rows[0], "answer": "1"}
    with pytest.raises(FunctionRaised, match=message):
        batch_of(trainer)


@pytest.mark.parametrize(("optim", "flags"), [("adamw_torch", [False, False]), ("lomo", [])])
def test_a_norm_of_no_gradient_is_0_and_an_unknown_one_is_not_counted(make_trainer, optim, flags, monkeypatch):
    trainer = make_trainer("grpo")
    monkeypatch.setattr(trainer.args, "optim", optim)
    assert [x.item() for x in trainer._nonfinite.gradient_flags()] == flags
    engine = type("Engine", (), {"get_global_grad_norm": lambda self: None})()
    monkeypatch.setattr(trainer, "model_wrapped", engine)
    monkeypatch.setattr(trainer, "is_deepspeed_enabled", True)
    assert trainer._nonfinite.gradient_flags() == []


@pytest.mark.hostile("generation settings", "refused")
def test_a_penalty_of_long_responses_without_a_limit(tmp_path, capsys):
    (tmp_path / "run.yaml").write_text("max_completion_length: null\nreward: [soft_overlong]\n")
    error = error_of(load_script("examples/train.py").main, ["--config", str(tmp_path / "run.yaml")], capsys)
    assert "--reward soft_overlong has --max_completion_length as its limit: set a number of tokens" in error
