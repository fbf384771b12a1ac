"""Tokens, passwords and folders that must not leave the machine; strange files in a run's folder; a Hub that hangs."""

import html
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import fields
from pathlib import Path
from urllib.parse import quote

import hub_server
import pytest
import yaml
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM

from trl_credit import ALGORITHMS
from trl_credit.cli import parse_arguments
from trl_credit.environment import ALLOWED
from trl_credit.hub import PushInterrupted, TrainingData, publishable, push, write_model_card
from trl_credit.hub.card import escape
from trl_credit.hub.public import Public
from trl_credit.hub.recipe import LEFT_OUT, command_of, recipe_of, to_yaml
from trl_credit.hub.secrets import Secrets
from trl_credit.rewards.judging.pool import JudgePool


KIND = "cards and pushes"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWxYzAbCdEfGh"
# put together here, so that no scanner of repositories takes them for real ones
SHAPES = {
    "hf": TOKEN,
    "ghp": "ghp_" + "0aB1cD2eF3" * 3 + "gH4iJ5",
    "gho": "gho_" + "0aB1cD2eF3" * 3 + "gH4iJ5",
    "ghs": "ghs_" + "0aB1cD2eF3" * 3 + "gH4iJ5",
    "github_pat": "github_pat_" + "11ABCDEFG0" + "abcdefGHIJ_KL3mn" * 4,
    "sk": "sk-" + "aB3dE6gH9jK2" * 4,
    "sk-proj": "sk-proj-" + "aB3-dE6_gH9jK2" * 4,
    "sk-ant": "sk-ant-api03-" + "aB3-dE6_gH9jK2" * 6,
    "aws": "AKIA" + "IOSFODNN7EXAMPLE",
    "slack": "xoxb-" + "123456789012-abcdefABCDEF",
    "jwt": "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0In0." + "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
    "key": "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
}
PASSWORDS = [
    r"it's a\new&<pass>word",
    'quo"ted`$ecret',
    "пароль-из-букв",
    "correct horse battery staple",
    "a_b*c[d]#e|f~g!",
]


@pytest.fixture
def folder(tmp_path, tiny_model) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    for path in Path(tiny_model).iterdir():
        (run / path.name).write_bytes(path.read_bytes())
    (run / "README.md").write_text("---\nlibrary_name: transformers\n---\n# x\n")
    return run


def escapes(secret: str) -> dict[str, str]:
    """What a secret looks like in files of all kinds."""
    long = "word " * 18
    return {
        "raw": secret,
        "markdown": escape(secret),
        "html": html.escape(secret),
        "html numbers": "".join(f"&#{ord(c)};" for c in secret),
        "json": json.dumps({"a": secret}),
        "json in json": json.dumps(json.dumps({"a": secret})),
        "json, every letter": "".join(f"\\u{ord(c):04x}" for c in secret),
        "shell": shlex.quote(secret),
        "yaml": yaml.safe_dump({"a": secret}, allow_unicode=True),
        "yaml, ascii": yaml.safe_dump({"a": secret}),
        "yaml, folded": yaml.safe_dump({"a": long + secret + " " + long}, width=40),
        "yaml, quoted and folded": yaml.safe_dump({"a": long + secret + " " + long}, width=40, default_style='"'),
        "repr": repr(secret),
        "address": quote(secret, safe=""),
    }


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize("secret", PASSWORDS)
def test_a_password_of_the_environment_is_found_however_it_is_escaped(folder, monkeypatch, record_property, secret):
    monkeypatch.setenv("TRACKER_PASSWORD", secret)
    assert publishable(folder)
    names = ("README.md", "recipe.yaml", "evaluation/evaluation.md", "generation_config.json", "chat_template.jinja")
    (folder / "evaluation").mkdir()
    for number, text in enumerate(escapes(secret).values()):
        path = folder / names[number % len(names)]
        before = path.read_bytes() if path.exists() else b""
        path.write_text(f"some text {text} more\n", encoding="utf-8")
        with pytest.raises(
            ValueError, match=rf"^{path.name if path.parent == folder else 'evaluation/' + path.name} holds"
        ):
            push(folder, "me/x", token="hf_any")
        path.write_bytes(before)
    record_property("tried", len(escapes(secret)))


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_token_of_somebody_else_is_found_by_its_shape(folder, record_property, shape):
    for text in escapes(SHAPES[shape]).values():
        (folder / "README.md").write_text(f"# x\n\n{text}\n", encoding="utf-8")
        with pytest.raises(ValueError, match=r"^README\.md holds") as failure:
            push(folder, "me/x", token="hf_any")
        assert SHAPES[shape] not in str(failure.value)
    record_property("tried", len(escapes(SHAPES[shape])))


@pytest.mark.hostile(KIND, "survived")
def test_words_that_begin_like_tokens_are_words(record_property):
    words = (
        "sk-learn hf_transfer disk-0123456789abcdefghijklmn risk-aware-0123456789 sk-learn-contrib ghp_short AKIA eyJ"
    )
    words += " max_token=512 eos_token:<|im_end|> token={problem} a/b 1/2 yes/no Qwen/Qwen3-1.7B mine.py:f /no_think"
    words += (
        r" </think> \frac{1}{2} \boxed{} https://huggingface.co/a/b me@example.com runs/s_trace data/x.jsonl ~ x=~y"
    )
    public = Public(Secrets())
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
    shown = Public(Secrets(settings)).value(settings)
    for text in (to_yaml(shown), json.dumps(shown), command_of(shown, script=["t.py"], kinds=())):
        assert not any(word in text for word in hidden), text
    assert (
        "size: 5" in shown["dataset_config"] and "lr=3" in shown["optim_args"] and "{problem}" in shown["prompt_style"]
    )
    assert shown["chat_template_kwargs"]["enable_thinking"] is False
    record_property("tried", len(hidden))


@pytest.mark.hostile(KIND, "survived")
def test_of_a_path_the_last_part_is_shown(record_property, monkeypatch):
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
    }
    for text, shown in paths.items():
        assert Public(Secrets()).text(text) == shown, text
    record_property("tried", len(paths))


@pytest.fixture
def card(make_trainer, tmp_path, monkeypatch):
    """The text of card and recipe of a run of one step, with what is given."""

    def make(*, base=None, data=None, choices=(), command=None, table="", **settings):
        trainer = make_trainer("s_trace", max_steps=1, **settings)
        trainer.train()
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
    monkeypatch.setattr(ALGORITHMS["s_trace"][1], "train", lambda self: None)  # what is trained is nothing to a card
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
    assert "## Credit" in texts[0] and "of (removed).py (SHA-256" in texts[0] and "(removed).py:mine" in texts[1]
    assert "evaluation.md holds a secret" in caplog.text  # escaped by somebody else
    assert "## Evaluation" not in texts[0]
    record_property("tried", 8)


@pytest.mark.hostile(KIND, "survived")
@pytest.mark.parametrize("base", ["gone/model_of_alice", "/home/alice/[x](y)", "a: b\n# c", "C:\\alice\\m", "gone"])
def test_a_base_model_whose_folder_is_gone_is_a_local_model(card, tmp_path, monkeypatch, base):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ALGORITHMS["s_trace"][1], "train", lambda self: None)
    text, _ = card(base=base)
    assert "A local model, trained further" in text and "base_model" not in text and "alice" not in text
    assert "base_model" not in ModelCard(text).data.to_dict()


def test_a_base_model_of_the_hub_is_linked(card, monkeypatch):
    monkeypatch.setattr(ALGORITHMS["s_trace"][1], "train", lambda self: None)
    text, _ = card(base="some-one/model_1.7B")
    assert "[some-one/model\\_1.7B](https://huggingface.co/some-one/model_1.7B), trained" in text
    assert ModelCard(text).data.base_model == "some-one/model_1.7B"


# What goes


@pytest.mark.hostile(KIND, "survived")
def test_files_of_others_stay(folder, tmp_path, record_property):
    before = publishable(folder)
    foreign = [".env", "model-00001-of-00002.safetensors", "old.safetensors", "model.safetensors.index.json"]
    foreign += [
        "tokenizer_private.json",
        "notes.jinja",
        "secret.model",
        "my_processor_config.json",
        "adapter.safetensors",
    ]
    foreign += ["additional_chat_templates/mine.jinja", "training_args.bin", "id_rsa", "evaluation/notes.md", "x.py"]
    for name in foreign:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    assert publishable(folder) == before  # the whole file of weights is what loading takes, not the index
    sharded = tmp_path / "sharded"
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(sharded, max_shard_size="20KB")
    listed = set(json.loads((sharded / "model.safetensors.index.json").read_text())["weight_map"].values())
    (sharded / "model-00001-of-00009.safetensors").write_bytes(b"of an earlier save")
    assert {name for name in publishable(sharded) if name.endswith(".safetensors")} == listed
    record_property("tried", len(foreign) + 1)


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize(
    "shard", ["../outside.safetensors", "/etc/passwd", ".hidden.safetensors", "a/b.safetensors", ".env"]
)
def test_an_index_that_names_other_files_is_refused(folder, shard):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(ValueError, match="which is no file of weights beside it: it is not a whole model"):
        publishable(folder)


@pytest.mark.hostile(KIND, "refused")
def test_a_model_and_an_adapter_in_one_folder_are_refused(folder):
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="holds a model and an adapter .*: move the older away"):
        publishable(folder)


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
        parse_arguments(["--config", str(tmp_path / "a.yaml")])
    assert dict(os.environ) == before  # of the others none either


@pytest.mark.hostile(KIND, "refused")
@pytest.mark.parametrize(
    "env", ["[1]", "text", "{NCCL_DEBUG: [a]}", "{NCCL_DEBUG: {a: b}}", "{NCCL_DEBUG: null}", '{NCCL_DEBUG: "a\\nb"}']
)
def test_values_of_an_environment_are_single_lines(tmp_path, env):
    (tmp_path / "a.yaml").write_text(f"env: {env}\n")
    with pytest.raises(ValueError, match="`env` in .*a.yaml.* must "):
        parse_arguments(["--config", str(tmp_path / "a.yaml")])


def test_the_names_that_a_recipe_may_set_are_documented():
    page = (EXAMPLES.parent / "docs" / "hub.md").read_text(encoding="utf-8")
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
    "ha_dw": "--difficulty hard --reward_range -0.00001 2 --difficulty_window 3 --optim_args a=1,b=2".split(),
    "vine_ppo": ["--rollouts_per_state", "5", "--temperature", "0.7", "--gradient_checkpointing", "false"],
    "spo_chain": ["--cutpoint_interval", "3", "--model_init_kwargs", '{"trust_remote_code": true, "x": {"y": [1]}}'],
    "spo_tree": ["--tree_branching", "2", "3", "--replay_cap", "None", "--max_grad_norm", "0.5"],
}


def test_each_algorithm_has_a_line():
    assert set(LINES) == set(ALGORITHMS)


def parsed(argv: list[str]) -> dict:
    script, data, args, model, _ = parse_arguments(argv)
    parts = {"": (script, data, model), "args": (args,)}
    return {f.name: getattr(part, f.name) for group in parts.values() for part in group for f in fields(part)}


@pytest.mark.parametrize("algo", LINES)
def test_recipe_and_command_each_give_the_run_again(algo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text(
        "max_completion_length: 40\nbeta: 0.04\nadam_beta1: 0.8\nenv: {NCCL_DEBUG: WARN}\n"
    )
    (tmp_path / "later.yaml").write_text("base: base.yaml\nbeta: 0.02\n")
    (tmp_path / "last.yaml").write_text("adam_beta1: 0.7\nlora_modules_to_save: [lm_head]\n")
    cannot = algo == "p_trace"  # in a flag of JSON, transformers takes "1" for a number
    (tmp_path / "more.yaml").write_text("generation_kwargs: {note: '1'}\n" if cannot else "")
    argv = ["--config", "later.yaml", "last.yaml", "more.yaml", "--algo", algo, *LINES[algo]]
    script, data, args, model, config = parse_arguments(argv)
    choices = (script, data, model)
    wanted = parsed(argv)
    assert wanted["beta"] == 0.02 and wanted["adam_beta1"] == 0.7 and wanted["max_completion_length"] == 40
    recipe = recipe_of(args, choices, Public(Secrets()), more={"algo": algo, "env": config["env"]})
    (tmp_path / "recipe.yaml").write_text(to_yaml(recipe))
    command = command_of(recipe, script=["train.py"], kinds=[type(part) for part in (*choices, args)])
    words = shlex.split(command)
    assert words == ["train.py", "--config", "recipe.yaml"] if cannot else words[:2] == ["NCCL_DEBUG=WARN", "train.py"]
    for again in (parsed(["--config", "recipe.yaml"]), parsed(words[words.index("train.py") + 1 :])):
        for name, value in wanted.items():
            if not LEFT_OUT.fullmatch(name):
                assert again[name] == value, name


def test_what_a_function_given_as_an_object_means_is_said(card, monkeypatch):
    monkeypatch.setattr(ALGORITHMS["s_trace"][1], "train", lambda self: None)
    _, recipe = card(selector=lambda *args, **kwargs: None)
    assert "# selector was given as an object, which no recipe can hold: put it into a file" in recipe
    assert "# reward: count_a\n# reward was given as an object" in recipe


# A Hub that hangs


def interrupt_elsewhere():
    """Ctrl-C as the kernel may hand it out: to a thread that is not the main one, whose wait it does not end."""
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


@pytest.mark.hostile(KIND, "survived")
@pytest.mark.parametrize("at", ["create", "preupload", "batch", "large/", "commit"])
def test_an_interrupt_ends_a_hanging_push_at_once(hub, folder, monkeypatch, at):
    for name in ("reward_curve.png", "credit_plot.png"):  # of several large files, each has a thread of the client
        (folder / name).write_bytes(name.encode())
    count, hung, let_go = hub.count, [], threading.Event()

    def hang(request: str):
        count(request)
        if at not in request or hung:
            return None
        hung.append(request)
        threading.Timer(0.2, interrupt_elsewhere).start()
        return "hang"

    monkeypatch.setattr(hub, "count", hang)
    monkeypatch.setattr(hub, "wait_for_end", let_go.wait)
    start = time.monotonic()
    with pytest.raises(
        PushInterrupted, match=r"^interrupted: .*run is complete. To push it later: .*trl-credit push .* me/x"
    ):
        push(folder, "me/x", token=hub.token, endpoint=hub.url)
    assert time.monotonic() - start < 20
    let_go.set()  # the connection ends, and the client tries again
    for thread in [thread for thread in threading.enumerate() if thread.name == "push"]:
        thread.join(60)
        assert not thread.is_alive()
    assert hung and not any(repo.commits for repo in hub.repos.values())  # what nobody waits for does not arrive


@pytest.mark.hostile(KIND, "survived")
def test_an_interrupted_script_does_not_wait_for_the_threads_of_its_client(hub, folder, tmp_path):
    for name in ("reward_curve.png", "credit_plot.png"):  # of several files each has a thread, which Python waits for
        (folder / name).write_bytes(name.encode())
    hanging = threading.Event()
    count = hub.count
    hub.count = lambda request: count(request) or ("/large/" in request and (hanging.set() or "hang")) or None
    clean = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
    clean |= {"HF_ENDPOINT": hub.url, "HF_TOKEN": hub.token, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "hf")}
    words = [sys.executable, str(EXAMPLES / "push.py"), str(folder), "--repo_id", "me/x"]
    process = subprocess.Popen(words, env=clean | {"NO_PROXY": "127.0.0.1"}, stderr=subprocess.PIPE, text=True)
    try:
        assert hanging.wait(120)
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=20)[1]
    finally:
        process.kill()
    last = error.strip().splitlines()[-1]
    assert process.returncode == 130 and "Traceback" not in error
    assert last == f"interrupted: {folder} is complete. To push it later: python {words[1]} {folder} --repo_id me/x"


@pytest.mark.hostile(KIND, "survived")
def test_an_interrupted_run_does_not_wait_for_the_push_of_a_checkpoint(hub, tmp_path, monkeypatch):
    # of several large files each has a thread, which Python waits for
    monkeypatch.setattr(hub_server, "LARGE_FILES", (".safetensors", ".json"))
    hanging = threading.Event()
    count = hub.count
    hub.count = lambda request: count(request) or ("/large/" in request and (hanging.set() or "hang")) or None
    clean = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
    clean |= {"HF_ENDPOINT": hub.url, "HF_TOKEN": hub.token, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "hf")}
    words = [sys.executable, str(EXAMPLES / "train.py"), "--output_dir", "out", "--push_to_hub", "--hub_model_id", "x"]
    words += "--max_steps 100000 --per_device_train_batch_size 8 --num_generations 4 --save_steps 1".split()
    process = subprocess.Popen(
        words, cwd=tmp_path, env=clean | {"NO_PROXY": "127.0.0.1"}, stderr=subprocess.PIPE, text=True
    )
    try:
        assert hanging.wait(120)
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=20)[1]
    finally:
        process.kill()
    assert process.returncode == 130 and "Traceback" not in error and "interrupted at step" in error
