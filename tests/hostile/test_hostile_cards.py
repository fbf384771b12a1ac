"""Tokens, passwords and folders that must not get into a card or a recipe, and recipes that repeat the run."""

import os
from dataclasses import fields

import pytest
from huggingface_hub import ModelCard

from trl_credit import ALGORITHMS
from trl_credit.hub import write_model_card
from trl_credit.hub.public import Public
from trl_credit.hub.recipe import public_fields, recipe_of, to_yaml
from trl_credit.lab.evaluation import PROTOCOLS
from trl_credit.rewards.judging.pool import JudgePool
from trl_credit.settings.arguments import parse_arguments


KIND = "cards and pushes"
TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWxYzAbCdEfGh"


WORDS = (
    "sk-learn hf_transfer risk-aware-0123456789 ghp_short AKIA max_token=512 eos_token:<|im_end|> a/b 1/2 yes/no "
    r"Qwen/Qwen3-1.7B mine.py:f /no_think </think> \frac{1}{2} https://huggingface.co/a/b data/x.jsonl x=~y"
)
PATHS = {
    "/home/alice/f.py:score": "f.py:score",
    "x:/home/alice/f.py": "x:f.py",
    '{"path": "/home/alice/x"}': '{"path": "x"}',
    "from ~/x/y.jsonl": "from y.jsonl",
    r"C:\Users\alice\m": "m",
    "see file:///home/alice/x.jsonl": "see x.jsonl",
    "in /home/alice": "in ~",
    "/srv/alice smith/a/b.txt": "b.txt",
    "in /srv/people/alice b/models/m": "in m",
    "a=../../alice/f": "a=f",
}


@pytest.mark.hostile(KIND, "survived")
def test_only_tokens_and_folders_are_taken_out(record_property, monkeypatch):
    monkeypatch.setenv("HOME", "/srv/people/alice b")
    monkeypatch.setenv("TRACKER_PASSWORD", "correct horse")
    texts = PATHS | {word: word for word in WORDS.split()}
    texts |= {f"a {TOKEN} b": "a (removed) b", "is it correct horse?": "is it (removed)?"}
    for text, shown in texts.items():
        assert Public().text(text) == shown, text
    nested = {"a": {"api_key": "k", "cache_dir": "/home/bob", "b": ["~/bob/x", 1.5, None, True]}, "eos_token": "x"}
    assert Public().value(nested) == {"a": {"b": ["x", 1.5, None, True]}, "eos_token": "x"}
    record_property("tried", len(texts) + 1)


@pytest.fixture
def card(make_trainer, tmp_path):
    """The text of card and recipe of a trainer, with what is given."""

    def make(*, base=None, **settings):
        trainer = make_trainer("s_trace", max_steps=1, **settings)
        trainer.save_model()
        if base is not None:
            trainer.model.config._name_or_path = base
        path = write_model_card(trainer, name="S-trace")
        return path.read_text(), (path.parent / "recipe.yaml").read_text()

    return make


@pytest.mark.hostile(KIND, "survived")
@pytest.mark.parametrize("base", ["gone/model_of_alice", "/home/alice/[x](y)", "a: b\n# c"])
def test_a_base_model_whose_folder_is_gone_is_a_local_model(card, here, base):
    (here / "gone").mkdir()
    text, _ = card(base=base)
    assert "A local model, trained further" in text and "base_model" not in text and "alice" not in text
    assert "base_model" not in ModelCard(text).data.to_dict()


def test_a_base_model_of_the_hub_is_linked(card):
    text, _ = card(base="some-one/model_1.7B")
    assert "[some-one/model\\_1.7B](https://huggingface.co/some-one/model_1.7B), trained" in text
    assert ModelCard(text).data.base_model == "some-one/model_1.7B"


# Environments


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize(
    "name", "PATH PYTHONPATH LD_PRELOAD HF_TOKEN HF_ENDPOINT HTTPS_PROXY HOME NCCL_NET_PLUGIN".split()
)
def test_a_recipe_does_not_set_what_is_executed_or_trusted(tmp_path, name):
    (tmp_path / "a.yaml").write_text(f"env: {{TOKENIZERS_PARALLELISM: no, {name}: elsewhere}}\nalgo: grpo\n")
    before = dict(os.environ)
    with pytest.raises(ValueError, match=rf"`env` in .*a\.yaml .*'{name}'"):
        parse_arguments(["--config", str(tmp_path / "a.yaml")], protocols=PROTOCOLS)
    assert dict(os.environ) == before  # of the others none either


@pytest.mark.hostile(KIND, "survived")
def test_judges_do_not_import_from_pythonpath(tmp_path, monkeypatch):
    for module in ("sitecustomize", "sympy", "math_verify", "json"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('code of somebody else')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "json.py"))
    pool = JudgePool(1)
    try:
        assert pool.equal([("1/2", "0.5"), ("1/2", "0.6")]) == ["right", "wrong"]
    finally:
        pool.close()


# The run again

DATA = "--dataset_name gsm8k --dataset_split train --max_prompt_tokens 300 --decontaminate math500 aime24".split()
LORA = "--use_peft --lora_r 8 --lora_alpha 12 --lora_target_modules q_proj v_proj --lora_dropout 0".split()
LINES = {  # for algorithms that are not here, no flag
    "grpo": ["--gradient_accumulation_steps", "4", "--steps_per_generation", "1", *DATA],
    "dapo": ["--num_generations", "4", "--epsilon_high", "None", "--learning_rate", "3e-7", *LORA],
    "dr_grpo": ["--scale_rewards", "group", "--dtype", "None", "--model_name_or_path", "Qwen/Qwen3-1.7B", *DATA],
    "gspo": ["--importance_sampling_level", "sequence", "--logging_steps", "500", "--reward", "accuracy", "format"],
    "gspo_token": ["--prompt_style", 'Solve it.\n{problem}\n"It\'s" \\boxed{{}} & <b> `$x`', "--dataset_name", "gsm8k"],
    "opo": ["--lr_scheduler_type", "cosine", "--lr_scheduler_kwargs", '{"num_cycles": 0.5}', "--shuffle_dataset=None"],
    "p_trace": ["--chat_template_kwargs", '{"enable_thinking": false}', "--trace_lambda", "0.95"],
    "grpo_lambda": ["--advantage_floor", "None", "--trace_style", "both", "--evaluation_protocol", "demo"],
    "ha_dw": "--difficulty hard --reward_range -0.00001 2 --difficulty_window 3 --optim_args a=1,b=2".split(),
    "spo_chain": ["--cutpoint_interval", "3", "--model_init_kwargs", '{"trust_remote_code": true, "x": {"y": [1]}}'],
    "spo_tree": ["--tree_branching", "2", "3", "--replay_cap", "None", "--max_grad_norm", "0.5"],
}


def parsed(argv: list[str]) -> dict:
    parts = parse_arguments(argv, protocols=PROTOCOLS)[:4]
    return {f.name: getattr(part, f.name) for part in parts for f in fields(part)}


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_recipe_gives_the_run_again(algo, here):
    (here / "base.yaml").write_text("max_completion_length: 40\nbeta: 0.04\nadam_beta1: 0.8\nenv: {NCCL_DEBUG: WARN}\n")
    (here / "later.yaml").write_text("base: base.yaml\nbeta: 0.02\n")
    lora = "lora_modules_to_save: [lm_head]\n" if "--use_peft" in LINES.get(algo, []) else ""
    (here / "last.yaml").write_text(f"adam_beta1: 0.7\n{lora}")
    # in a flag of JSON, transformers would take "1" for a number
    (here / "more.yaml").write_text("generation_kwargs: {note: '1'}\n" if algo == "p_trace" else "")
    argv = ["--config", "later.yaml", "last.yaml", "more.yaml", "--algo", algo, *LINES.get(algo, [])]
    script, data, args, model, config = parse_arguments(argv, protocols=PROTOCOLS)
    choices = (script, data, model)
    wanted = parsed(argv)
    assert wanted["beta"] == 0.02 and wanted["adam_beta1"] == 0.7 and wanted["max_completion_length"] == 40
    recipe = recipe_of(args, choices, Public(), more={"algo": algo, "env": config["env"]})
    chosen = {word.partition("=")[0].removeprefix("--") for word in argv} | config.keys()
    assert set(recipe) <= chosen | {"model_name_or_path"}  # what nobody chose is not there
    (here / "recipe.yaml").write_text(to_yaml(recipe))
    again = parsed(["--config", "recipe.yaml"])
    assert os.environ["NCCL_DEBUG"] == "WARN"
    for name in [name for part in (*choices, args) for name in public_fields(part)]:
        assert again[name] == wanted[name], name


def test_a_recipe_names_functions_that_it_cannot_hold(card):
    _, recipe = card(selector=lambda *args, **kwargs: None)
    assert "# selector was given as an object, which no recipe can hold: put it into a file" in recipe
    assert "# reward: count_a\n# reward was given as an object" in recipe
