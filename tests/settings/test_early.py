"""Wrong names are found before torch and TRL are imported, and no right one is refused."""

import subprocess
import sys
from dataclasses import fields

import pytest
from trl import ModelConfig

from trl_credit import ALGORITHMS
from trl_credit.data import DataArguments
from trl_credit.settings.arguments import ScriptArguments, parse_arguments
from trl_credit.settings.early import check_names, field_names


def test_every_field_is_known():
    classes = [ModelConfig, DataArguments, ScriptArguments, *(config_class for config_class, _ in ALGORITHMS.values())]
    missing = {f.name for of in classes for f in fields(of) if f.init} - field_names()
    assert not missing, f"settings/early.py does not find {missing} in the sources: name their file there"


@pytest.mark.parametrize(("word", "targets"), [("q_proj", ["q_proj"]), ("all-linear", "all-linear"), (".*q", ".*q")])
def test_one_target_of_lora(word, targets, tmp_path):
    (tmp_path / "my.yaml").write_text(f"use_peft: true\nlora_target_modules: {word!r}\n")
    for argv in (["--config", str(tmp_path / "my.yaml")], ["--use_peft", "--lora_target_modules", word]):
        assert parse_arguments(argv).model.lora_target_modules == targets


def test_a_right_name_in_any_spelling_passes():
    flags = "--use-vllm --no_bf16 --no-leave-own-out --learning_rate=-1 --lora_r 3 --dataset_name demo --reward demo -x"
    check_names([*flags.split(), "--algo", "vine_ppo", "--config", "embedded"])


def test_names_beside_a_class_are_left_to_the_file_of_the_class(tmp_path):
    (tmp_path / "my.yaml").write_text("credit: mine.py:GroupWords\nstrength: 1\n")
    for argv in (["--config", str(tmp_path / "my.yaml"), "--power", "1"], ["--credit", "mine.py:G", "--power", "1"]):
        check_names(argv)
    with pytest.raises(ValueError, match="unknown algorithm 'gro'"):
        check_names(["--algo", "gro", "--credit", "mine.py:G", "--power", "1"])


@pytest.mark.parametrize(
    ("words", "errors"),
    [
        (
            ["train", "--config", "s_trace/qwen3_4b_s_trac", "--algo", "strace", "--learnig_rate", "3"],
            "error: 's_trace/qwen3_4b_s_trac' is no file and no recipe: did you mean 's_trace/qwen3_4b_s_trace'?\n"
            "error: unknown algorithm 'strace': did you mean 's_trace'?\n"
            "error: unknown flag '--learnig_rate': did you mean '--learning_rate'?\n",
        ),
        (["plan", "--jsn", "--prompts", "3"], "error: unknown flag '--jsn': did you mean '--json'?\n"),
    ],
)
def test_torch_is_not_imported_for_it(words, errors, tmp_path):
    heavy = "print(*({'torch', 'trl', 'transformers'} & sys.modules.keys()))"
    script = f"import atexit, sys\nfrom trl_credit import cli\natexit.register(lambda: {heavy})\nsys.exit(cli.main())"
    run = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, cwd=tmp_path)
    assert (run.returncode, run.stderr, run.stdout.strip()) == (2, errors, "")
