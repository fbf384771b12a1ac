"""Names of custom functions: files, objects and closures, in configurations, checkpoints and recipes."""

import json

import pytest
import torch
from custom_functions import FILE, config, custom
from processes import start
from weight_helpers import same_weights

from trl_credit import Credit, assign_credit
from trl_credit.hub.recipe import changed
from trl_credit.support.functions import name_of, source_of


def weighted(k):
    def credit(config, tokens):
        return Credit(None, k * tokens.advantages)

    return credit


def test_objects_have_names(tmp_path):
    assert name_of(assign_credit) == "trl_credit.loss.assignment.assign_credit"
    functions = [weighted(k) for k in (0, 1, 0)]  # one source
    names = [name_of(f) for f in functions]
    assert names[0].startswith("credit@") and names[1].startswith("credit@") and names[2] == f"{names[0]}-2"
    assert len(set(names)) == 3 and name_of(functions[0]) == names[0]
    a, b = (config(tmp_path, credit=f) for f in functions[:2])
    assert [x.custom_function("credit").__wrapped__ for x in (a, b)] == functions[:2]
    assert len(source_of(a.credit, what="credit").digest) == 64
    by_file = source_of(custom("half_decay"), what="credit")
    assert by_file.file == FILE and by_file.digest != source_of(a.credit, what="credit").digest


def notebook_function():
    """A function as a cell defines it: in `__main__`, from a source that is no file."""
    scope = {"__name__": "__main__"}
    cell = "def my_credit(config, tokens):\n    return assign_credit(config, tokens)\n"
    exec(cell, {"assign_credit": assign_credit}, scope)
    return scope["my_credit"]


@pytest.mark.parametrize("kind", ["lambda", "notebook", "file"])
def test_saving_and_resuming_with_a_function(make_trainer, trained, tmp_path, kind):
    function = {
        "lambda": lambda config, tokens: assign_credit(config, tokens),
        "notebook": notebook_function(),
        "file": custom("later_is_less"),
    }[kind]
    settings = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "constant", "credit": function}
    reference = make_trainer(max_steps=4, output_dir=str(tmp_path / "reference"), **settings)
    assert isinstance(reference.args.credit, str)
    reference.train()
    checkpoint = tmp_path / "reference" / "checkpoint-2"
    args = torch.load(checkpoint / "training_args.bin", weights_only=False)
    assert args.credit == reference.args.credit and json.loads(args.to_json_string())["credit"] == args.credit
    resumed = trained(max_steps=4, **settings, resume=str(checkpoint))
    assert same_weights(resumed, reference)


def test_tensorboard_takes_the_configuration(make_trainer, tmp_path):
    pytest.importorskip("tensorboard")
    make_trainer(credit=lambda config, tokens: assign_credit(config, tokens), report_to="tensorboard").train()


@pytest.mark.slow
def test_a_function_of_another_process_is_refused(tmp_path, tiny_model):
    args = config(tmp_path, credit=lambda config, tokens: assign_credit(config, tokens))
    torch.save(args, tmp_path / "args.bin")
    code = (
        "import sys, torch; from trl_credit import CreditTrainer; "
        "args = torch.load(sys.argv[1], weights_only=False); CreditTrainer(sys.argv[2], lambda **k: [], args)"
    )
    done = start("-c", code, tmp_path / "args.bin", tiny_model)
    assert done.returncode != 0
    assert f"credit {args.credit!r} was given as an object" in done.stderr and "file.py:function" in done.stderr


def test_a_folder_may_have_an_at_sign(tmp_path):
    folder = tmp_path / "me@corp.com"
    folder.mkdir()
    (folder / "mine.py").write_text(FILE.read_text())
    args = config(tmp_path, credit=f"{folder}/mine.py:half_decay")
    assert args.custom_function("credit").__name__ == "half_decay"


def test_functions_stay_what_they_were_and_so_does_their_digest(tmp_path, monkeypatch):
    path, text = tmp_path / "changing.py", "def f(config, tokens):\n    return 1\n"
    path.write_text(text)
    monkeypatch.chdir(tmp_path)
    args = config(tmp_path, credit="changing.py:f")
    digest = source_of(args.credit, what="credit").digest
    monkeypatch.chdir("/")
    path.unlink()
    assert args.custom_function("credit")(None, None) == 1
    assert source_of(args.credit, what="credit").digest == digest
    path.write_text(text.replace("1", "2"))
    monkeypatch.chdir(tmp_path)
    again = config(tmp_path, credit="changing.py:f")  # reads the file again
    assert again.custom_function("credit")(None, None) == 2
    assert source_of(again.credit, what="credit").digest != digest


def test_names_of_methods_and_of_functions_in_files(tmp_path):
    class Own:
        def credit(self, config, tokens):
            return assign_credit(config, tokens)

    one = Own()
    assert name_of(one.credit) == name_of(one.credit)
    args = config(tmp_path, credit=custom("half_decay"))
    assert name_of(args.custom_function("credit").__wrapped__) == custom("half_decay")
    args.credit = one.credit
    with pytest.raises(ValueError, match="when the configuration is built"):
        args.custom_function("credit")


def test_a_recipe_with_trls_sequence_level_gives_the_same_configuration(tmp_path):
    settings = {"importance_sampling_level": "sequence", "top_entropy_quantile": 0.5, "loss_type": "grpo"}
    args = config(tmp_path, **settings)
    assert config(tmp_path, **changed(args)).to_dict() == args.to_dict()
    assert "importance_sampling_level" not in changed(config(tmp_path, importance="sequence"))
