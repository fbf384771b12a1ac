"""Tokens, passwords and folders that must not get into a card or a recipe, and recipes that repeat the run."""

import html
import json
import os
import re
from dataclasses import fields
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from trl_credit import ALGORITHMS
from trl_credit.hub import TrainingData, write_model_card
from trl_credit.hub.markdown import escape
from trl_credit.hub.public import Public, Secrets
from trl_credit.hub.recipe import public_fields, recipe_of, to_yaml
from trl_credit.lab.evaluation import PROTOCOLS
from trl_credit.rewards.judging.pool import JudgePool
from trl_credit.settings.arguments import parse_arguments
from trl_credit.settings.environment import ALLOWED


KIND = "cards and pushes"
DOCS = Path(__file__).resolve().parents[2] / "docs"
TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWxYzAbCdEfGh"


@pytest.mark.hostile(KIND, "survived")
def test_words_that_begin_like_tokens_are_words(record_property):
    words = (
        "sk-learn hf_transfer disk-0123456789abcdefghijklmn risk-aware-0123456789 sk-learn-contrib ghp_short AKIA eyJ"
    )
    words += " max_token=512 eos_token:<|im_end|> token={problem} a/b 1/2 yes/no Qwen/Qwen3-1.7B mine.py:f /no_think"
    words += (
        r" </think> \frac{1}{2} \boxed{} https://huggingface.co/a/b me@example.com runs/s_trace data/x.jsonl ~ x=~y"
    )
    public = Public()
    for word in words.split():
        assert public.text(word) == word and not Secrets().found_in(word)
    style = "Think, then give the token: 42 of 3/4.\n{problem}\nAnswer /think in \\boxed{}, and/or say why."
    assert public.text(style) == style
    record_property("tried", len(words.split()) + 1)


@pytest.mark.hostile(KIND, "survived")
def test_secrets_within_values_are_taken_out(record_property):
    settings = {
        "dataset_config": "api_key: shortone\nsize: 5\npassword: correct horse\n",
        "chat_template_kwargs": {"enable_thinking": False, "headers": {"Authorization": "Bearer tops3cretvalue"}},
        "model_init_kwargs": '{"proxies": {"https": "http://b:hunter2hunter2@p:80/x"}, "clientSecret": "q1w2e3r4"}',
        "prompt_style": f"{{problem}} token=abc123def&x=1 and {TOKEN} of https://user:p@ss:word@host/path",
        "optim_args": "token=short1,lr=3",
    }
    hidden = (
        "shortone",
        "correct horse",
        "tops3cretvalue",
        "hunter2hunter2",
        "q1w2e3r4",
        "abc123def",
        TOKEN,
        "p@ss",
        "short1",
    )
    shown = Public(settings).value(settings)
    for text in (to_yaml(shown), json.dumps(shown)):
        assert not any(word in text for word in hidden), text
    assert (
        "size: 5" in shown["dataset_config"] and "lr=3" in shown["optim_args"] and "{problem}" in shown["prompt_style"]
    )
    assert shown["chat_template_kwargs"]["enable_thinking"] is False
    record_property("tried", len(hidden))


@pytest.mark.hostile(KIND, "survived")
def test_only_the_last_part_of_a_path_is_shown(record_property, monkeypatch):
    monkeypatch.setenv("HOME", "/srv/people/alice b")
    paths = {
        "/home/alice/f.py:score": "f.py:score",
        "x:/home/alice/f.py": "x:f.py",
        '{"path": "/home/alice/x"}': '{"path": "x"}',
        "path: /home/alice/x\nsize: 3": "path: x\nsize: 3",
        "~alice/x/y.jsonl": "y.jsonl",
        "from ~/x/y.jsonl": "from y.jsonl",
        r"C:\Users\alice\m": "m",
        r"a=C:\Users\Alice Smith\m": "a=m",
        "C:/Users/alice/m": "m",
        r"\\server\share\m": "m",
        r"see \\server\alice\m": r"see m",
        "file:///home/alice/x.jsonl": "x.jsonl",
        "see file:///home/alice/x.jsonl": "see x.jsonl",
        "file://C:/Users/alice/m": "m",
        "/home/alice": "~",
        "/Users/alice smith/a/b.txt": "b.txt",
        "in /home/alice smith/a/b.txt": "in b.txt",
        "in /srv/people/alice b/models/m": "in m",
        "a=../../alice/f": "a=f",
        "data/../../alice/x.jsonl": "x.jsonl",
        "API_KEY=abc123secret": "API_KEY=(removed)",
        "data/x.jsonl": "data/x.jsonl",
        "Qwen/Qwen3-1.7B": "Qwen/Qwen3-1.7B",
    }
    for text, shown in paths.items():
        assert Public().text(text) == shown, text
    nested = {"a": {"api_key": "k", "cache_dir": "/home/bob", "b": ["~/bob/x", "u=/home/bob/y", 1.5, None, True]}}
    assert Public().value(nested) == {"a": {"b": ["x", "u=y", 1.5, None, True]}}
    assert Secrets("short").scrub("a hf_0123456789abcdefgh b") == "a (removed) b"
    record_property("tried", len(paths) + 3)


@pytest.fixture
def card(make_trainer, tmp_path):
    """The text of card and recipe of a trainer, with what is given."""

    def make(*, base=None, data=None, choices=(), command=None, table="", **settings):
        trainer = make_trainer("s_trace", max_steps=1, **settings)
        trainer.save_model()
        if base is not None:
            trainer.model.config._name_or_path = base
        if table:
            (tmp_path / "run" / "evaluation").mkdir()
            (tmp_path / "run" / "evaluation" / "evaluation.md").write_text(table)
        path = write_model_card(trainer, name="S-trace", data=data, choices=choices, command=command)
        return path.read_text(), (path.parent / "recipe.yaml").read_text()

    return make


@pytest.mark.hostile(KIND, "survived")
def test_a_token_in_the_name_of_a_file_is_not_published(card, tmp_path, monkeypatch, caplog, record_property):
    password = "it's_a\\new&<pass>"
    monkeypatch.setenv("TRACKER_PASSWORD", password)
    source = tmp_path / f"{TOKEN}.py"
    source.write_text(
        f'def mine(config, tokens):\n    """Of {TOKEN} and {password}."""\n    raise NotImplementedError\n'
    )
    data = TrainingData(f"/home/alice/{TOKEN}.jsonl", 3, revision=TOKEN, cleaning=f"{password} in ~alice/{TOKEN}/a")
    texts = card(
        credit=f"{source}:mine",
        data=data,
        base=f"/home/alice/{TOKEN}",
        hub_model_id=f"me/{TOKEN}",
        chat_template_kwargs={"note": f"a {password} b " * 9, TOKEN: 1},
        command=["python", f"/home/alice/{TOKEN}/train.py"],
        table=f"| {escape(TOKEN)} |\n|---|\n",
    )
    for text in texts:
        plain = html.unescape(text.replace("\\", ""))
        assert TOKEN not in plain and "alice" not in plain and "new&" not in plain
    assert "(removed).jsonl, revision (removed), 3 rows" in texts[0]
    assert "trained further with S-trace and functions of its own (" in texts[0]
    assert "by functions of its own. The table has them under `credit`.\n\nℓ and ℓ°" in texts[0]
    assert "## Credit" in texts[0] and "of (removed).py, SHA-256" in texts[0] and "(removed).py:mine" in texts[1]
    assert "evaluation.md holds a secret" in caplog.text  # escaped by somebody else
    assert "## Evaluation" not in texts[0]
    record_property("tried", 8)


@pytest.mark.hostile(KIND, "survived")
@pytest.mark.parametrize("base", ["gone/model_of_alice", "/home/alice/[x](y)", "a: b\n# c", "C:\\alice\\m", "gone"])
def test_a_base_model_whose_folder_is_gone_is_a_local_model(card, tmp_path, monkeypatch, base):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path)
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
    "name",
    "PATH PYTHONPATH PYTHONSTARTUP LD_PRELOAD LD_LIBRARY_PATH HF_TOKEN HF_ENDPOINT HTTPS_PROXY no_proxy HOME HF_HOME "
    "NCCL_NET_PLUGIN VLLM_PLUGINS TRANSFORMERS_CACHE".split(),
)
def test_a_recipe_does_not_set_what_is_executed_or_trusted(tmp_path, name):
    (tmp_path / "a.yaml").write_text(f"env: {{TOKENIZERS_PARALLELISM: no, {name}: elsewhere}}\nalgo: grpo\n")
    before = dict(os.environ)
    with pytest.raises(ValueError, match=rf"`env` in .*a\.yaml sets '{name}', which a recipe may not: take it out"):
        parse_arguments(["--config", str(tmp_path / "a.yaml")], protocols=PROTOCOLS)
    assert dict(os.environ) == before  # of the others none either


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize(
    "env", ["[1]", "text", "{NCCL_DEBUG: [a]}", "{NCCL_DEBUG: {a: b}}", "{NCCL_DEBUG: null}", '{NCCL_DEBUG: "a\\nb"}']
)
def test_values_of_an_environment_are_single_lines(tmp_path, env):
    (tmp_path / "a.yaml").write_text(f"env: {env}\n")
    with pytest.raises(ValueError, match="`env` in .*a.yaml.* must "):
        parse_arguments(["--config", str(tmp_path / "a.yaml")], protocols=PROTOCOLS)


def test_the_names_that_a_recipe_may_set_are_documented():
    page = (DOCS / "hub.md").read_text(encoding="utf-8")
    listed = page.partition("<!-- env -->")[2].partition("<!-- /env -->")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == ALLOWED
    assert not [name for name in ALLOWED if re.match(r"PATH|PYTHON|LD_|HF_TOKEN|.*PROXY|.*PLUGIN|HF_ENDPOINT", name)]


@pytest.mark.hostile(KIND, "survived")
def test_judges_do_not_import_from_pythonpath(tmp_path, monkeypatch):
    for module in ("sitecustomize", "sympy", "math_verify", "json"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('code of somebody else')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "json.py"))
    pool = JudgePool(1)
    try:
        assert pool.equal([("1/2", "0.5"), ("1/2", "0.6")])[0] == [True, False]
    finally:
        pool.close()


# The run again

LORA = (
    "--use_peft --lora_r 8 --lora_alpha 12 --lora_target_modules q_proj v_proj --lora_dropout 0 --use_dora true".split()
)
DATA = "--dataset_name gsm8k --dataset_split train --max_prompt_tokens 300 --decontaminate math500 aime24".split()
LINES = {
    "grpo": ["--gradient_accumulation_steps", "4", "--steps_per_generation", "1", *DATA],
    "dapo": ["--num_generations", "4", "--epsilon_high", "None", "--learning_rate", "3e-7", *LORA],
    "dr_grpo": ["--scale_rewards", "group", "--dtype", "None", "--model_name_or_path", "Qwen/Qwen3-1.7B", *DATA],
    "gspo": ["--importance_sampling_level", "sequence", "--logging_steps", "500", "--reward", "accuracy", "format"],
    "gspo_token": ["--prompt_style", 'Solve it.\n{problem}\n"It\'s" \\boxed{{}} & <b> `$x`', "--dataset_name", "gsm8k"],
    "opo": ["--lr_scheduler_type", "cosine", "--lr_scheduler_kwargs", '{"num_cycles": 0.5}', "--shuffle_dataset=None"],
    "p_trace": ["--chat_template_kwargs", '{"enable_thinking": false}', "--trace_lambda", "0.95"],
    "s_trace": ["--selective_rate", "0.1", "--leave_own_out", "false", "--seed", "7"],
    "grpo_lambda": ["--advantage_floor", "None", "--trace_style", "both", "--evaluation_protocol", "demo"],
    "fipo": ["--future_clip", "0.8", "1.2", "--future_half_life", "16", "--steps_per_generation", "8"],
    "clip_cov": ["--cov_range", "0.5", "4", "--cov_statistics", "microbatch", "--reward", "accuracy"],
    "kl_cov": ["--cov_penalty", "0.1", "--cov_share", "0.0002", "--steps_per_generation", "4"],
    "ha_dw": "--difficulty hard --reward_range -0.00001 2 --difficulty_window 3 --optim_args a=1,b=2".split(),
    "vine_ppo": ["--rollouts_per_state", "5", "--temperature", "0.7", "--gradient_checkpointing", "false"],
    "spo_chain": ["--cutpoint_interval", "3", "--model_init_kwargs", '{"trust_remote_code": true, "x": {"y": [1]}}'],
    "spo_tree": ["--tree_branching", "2", "3", "--replay_cap", "None", "--max_grad_norm", "0.5"],
}


def parsed(argv: list[str]) -> dict:
    script, data, args, model, _ = parse_arguments(argv, protocols=PROTOCOLS)
    parts = {"": (script, data, model), "args": (args,)}
    return {f.name: getattr(part, f.name) for group in parts.values() for part in group for f in fields(part)}


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_recipe_gives_the_run_again(algo, tmp_path, monkeypatch):
    assert algo in LINES, f"LINES lacks {algo}: give there flags with which it is trained"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text(
        "max_completion_length: 40\nbeta: 0.04\nadam_beta1: 0.8\nenv: {NCCL_DEBUG: WARN}\n"
    )
    (tmp_path / "later.yaml").write_text("base: base.yaml\nbeta: 0.02\n")
    lora = "lora_modules_to_save: [lm_head]\n" if "--use_peft" in LINES[algo] else ""
    (tmp_path / "last.yaml").write_text(f"adam_beta1: 0.7\n{lora}")
    # in a flag of JSON, transformers would take "1" for a number
    (tmp_path / "more.yaml").write_text("generation_kwargs: {note: '1'}\n" if algo == "p_trace" else "")
    argv = ["--config", "later.yaml", "last.yaml", "more.yaml", "--algo", algo, *LINES[algo]]
    script, data, args, model, config = parse_arguments(argv, protocols=PROTOCOLS)
    choices = (script, data, model)
    wanted = parsed(argv)
    assert wanted["beta"] == 0.02 and wanted["adam_beta1"] == 0.7 and wanted["max_completion_length"] == 40
    recipe = recipe_of(args, choices, Public(), more={"algo": algo, "env": config["env"]})
    given = {word.partition("=")[0].removeprefix("--") for word in argv} | config.keys()
    assert set(recipe) <= given | {"model_name_or_path"}  # what nobody chose is not there
    (tmp_path / "recipe.yaml").write_text(to_yaml(recipe))
    again = parsed(["--config", "recipe.yaml"])
    assert os.environ["NCCL_DEBUG"] == "WARN"
    for name in [name for part in (*choices, args) for name in public_fields(part)]:
        assert again[name] == wanted[name], name


def test_a_recipe_names_functions_that_it_cannot_hold(card):
    _, recipe = card(selector=lambda *args, **kwargs: None)
    assert "# selector was given as an object, which no recipe can hold: put it into a file" in recipe
    assert "# reward: count_a\n# reward was given as an object" in recipe
