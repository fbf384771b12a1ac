"""Names of custom functions: files, objects and closures, in configurations, checkpoints and recipes."""

import json

import pytest
import torch
from custom_functions import FILE, args_of, custom
from weight_helpers import same_weights

from trl_credit import Credit, assign_credit
from trl_credit.support.functions import name_of, source_of


def weighted(k):
    def credit(config, tokens):
        return Credit(None, k * tokens.advantages)

    return credit


def test_objects_have_names():
    assert name_of(assign_credit) == "trl_credit.loss.assignment.assign_credit"
    functions = [weighted(k) for k in (0, 1, 0)]  # one source
    names = [name_of(f) for f in functions]
    assert names[0].startswith("credit@") and names[1].startswith("credit@") and names[2] == f"{names[0]}-2"
    assert len(set(names)) == 3 and name_of(functions[0]) == names[0]
    a, b = (args_of(credit=f) for f in functions[:2])
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
    made = {"lambda": lambda config, tokens: assign_credit(config, tokens), "notebook": notebook_function()}
    function = made.get(kind, custom("later_is_less"))
    settings = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "constant", "credit": function}
    reference = make_trainer(max_steps=4, output_dir=str(tmp_path / "reference"), **settings)
    assert isinstance(reference.args.credit, str)
    reference.train()
    checkpoint = tmp_path / "reference" / "checkpoint-2"
    args = torch.load(checkpoint / "training_args.bin", weights_only=False)
    assert args.credit == reference.args.credit and json.loads(args.to_json_string())["credit"] == args.credit
    resumed = trained(max_steps=4, **settings, resume=str(checkpoint))
    assert same_weights(resumed, reference)


def test_functions_stay_what_they_were_and_so_does_their_digest(tmp_path, monkeypatch):
    path, text = tmp_path / "changing.py", "def f(config, tokens):\n    return 1\n"
    path.write_text(text)
    monkeypatch.chdir(tmp_path)
    args = args_of(credit="changing.py:f")
    digest = source_of(args.credit, what="credit").digest
    monkeypatch.chdir("/")
    path.unlink()
    assert args.custom_function("credit")(None, None) == 1
    assert source_of(args.credit, what="credit").digest == digest
    path.write_text(text.replace("1", "2"))
    monkeypatch.chdir(tmp_path)
    again = args_of(credit="changing.py:f")  # reads the file again
    assert again.custom_function("credit")(None, None) == 2
    assert source_of(again.credit, what="credit").digest != digest
