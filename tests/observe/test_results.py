"""What `trainer.train()` leaves without a script: lines, plots and a card; and the arguments that it names."""

import inspect
import logging
import re

import pytest
import trl
from transformers import PrinterCallback, ProgressCallback

from trl_credit import CreditTrainer, STraceTrainer
from trl_credit.observe.console import ConsoleCallback


LEFT = {"reward_curve.png", "credit_plot.png", "README.md", "recipe.yaml"}


def left(tmp_path) -> set[str]:
    return {path.name for path in (tmp_path / "run").iterdir()} & LEFT


@pytest.fixture
def alone(make_trainer):
    """A trainer as one makes it in a notebook."""

    def make(*args, **kwargs) -> CreditTrainer:
        trainer = make_trainer(*args, **kwargs)
        trainer.results.writes_at_end = True
        return trainer

    return make


def test_training_leaves_plots_and_card_and_says_so(alone, tmp_path, capsys):
    trainer = alone("grpo_lambda", advantage_floor=None, eval_strategy="no")
    trainer.train()
    assert left(tmp_path) == LEFT
    out = capsys.readouterr().out
    first = r"GRPO-λ on 64 prompts: 4 responses per prompt\nGRPO-λ sets beta 0.0 → 0.04, .*\n  .*\n"
    first += r"prompt .*\nresponse .*\nstep     1  reward "
    assert re.match(first, out)
    assert re.search(r"\nmodel card    .*README.md\nplots +.*curve.png, .*plot.png\nreward +0\.\d+ → 0\.\d+\n$", out)
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert not re.search(r"\bNone\b", card) and "| advantage\\_floor | – | -0.1 |" in card
    assert "* Prompts: 64 rows." in card and "\nalgo: grpo_lambda\n" in card


@pytest.mark.slow
def test_the_last_line_names_what_shows_the_credit(alone, here, capsys):
    for logs in (0, 5):
        trainer = alone("s_trace", max_steps=1, log_credit=logs, output_dir=f"a run {logs}")
        capsys.readouterr()
        trainer.train()
        last = capsys.readouterr().out.splitlines()[-1]
        shown = "credit        show_credit(trainer) in a notebook, or trl-credit view 'a run 5'"
        assert last == shown if logs else last.startswith("reward ")
        trainer.results.show()
        command = "trl-credit view 'a run 5'" if logs else "trl-credit explain 'a run 0'"
        assert capsys.readouterr().out.splitlines()[-1] == f"credit        {command}"


def test_nothing_is_written_where_nothing_was_trained(alone, tmp_path, capsys):
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    alone("s_trace", **settings).train()
    for name in LEFT:
        (tmp_path / "run" / name).unlink()
    capsys.readouterr()
    again = alone("s_trace", **settings)
    again.train(resume_from_checkpoint=True)
    assert again.was_done and left(tmp_path) == set() and "model card" not in capsys.readouterr().out


def test_training_that_breaks_off_leaves_nobody_listening(alone):
    def fails(completions, **kwargs):
        raise KeyError("no")

    before = list(logging.getLogger("trl_credit").handlers)
    with pytest.raises(RuntimeError, match="'fails' .*KeyError"):
        alone("grpo", reward_funcs=fails, max_steps=1).train()
    assert logging.getLogger("trl_credit").handlers == before


def test_a_card_that_fails_costs_no_weights(alone, tmp_path, capsys, caplog):
    trainer = alone("s_trace", max_steps=1)
    trainer.results.card = {"choices": (object(),)}  # of which a recipe cannot be made
    trainer.train()
    assert left(tmp_path) == {"reward_curve.png"} and trainer.state.global_step == 1
    assert "no plots and no card in " in caplog.text


class Mine(ConsoleCallback):
    """The user's own console callback. The trainer then adds none."""


@pytest.mark.parametrize(("quiet", "console"), [(True, ConsoleCallback), (False, Mine)])
def test_one_console_in_the_place_of_transformers(make_trainer, quiet, console):
    own = {"callbacks": [Mine()]} if console is Mine else {}
    trainer = make_trainer("s_trace", disable_tqdm=quiet, trainer_kwargs=own)
    callbacks = trainer.callback_handler.callbacks
    assert not {PrinterCallback, ProgressCallback} & set(map(type, callbacks))
    (shown,) = [callback for callback in callbacks if isinstance(callback, ConsoleCallback)]
    trainer.train()
    assert type(shown) is console and (shown.training_bar is None or not quiet)


@pytest.mark.slow
def test_trls_name_for_a_card_writes_ours(alone, tmp_path):
    trainer = alone("s_trace", max_steps=1)
    trainer.train()
    trainer.create_model_card(model_name="mine", dataset_name="me/sums", tags="sums")
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert "\n# mine\n" in card and "datasets:\n- me/sums" in card
    assert all(f"- {tag}\n" in card for tag in ("sums", "s-trace", "trl-credit"))
    assert "S-trace" in card and "2605.05965" in card and "Selective Eligibility Traces" in card
    assert "[on the Hub](https://huggingface.co/datasets/me/sums)), 64 rows" in card
    assert not re.search(r"\bNone\b", card)


# The signature


def test_every_argument_of_trl_is_named():
    theirs = inspect.signature(trl.GRPOTrainer.__init__).parameters
    for kind in (CreditTrainer, STraceTrainer):
        ours = inspect.signature(kind.__init__).parameters
        shared = [name for name in ours if name in theirs]
        assert shared == [name for name in theirs if name in ours] and set(theirs) <= set(ours)
        for name in shared[2:]:  # `model` and what has a default of its own
            assert ours[name].default == theirs[name].default or name == "args"
