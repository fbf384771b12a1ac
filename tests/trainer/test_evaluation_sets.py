"""A dictionary of evaluation sets: each has metrics of its own, and the best checkpoint is chosen by one of them."""

from conftest import sums


def half(prompts, completions, **columns):
    pairs = zip(prompts, completions, strict=True)
    return [float(prompt.startswith("1")) + 0.25 * ("a" in text) for prompt, text in pairs]


SETTINGS = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "max_steps": 2}


SETS = {"ones": sums(64).select([1, 11]), "the_others/x": sums(64).select([2, 3])}


def test_each_set_has_metrics_of_its_own_and_chooses_the_best_checkpoint(make_trainer, capsys):
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_ones_reward"}
    trainer = make_trainer(reward_funcs=half, trainer_kwargs={"eval_dataset": SETS}, **SETTINGS, **best)
    trainer.train()
    rows = [row for row in trainer.state.log_history if any(name.startswith("eval") for name in row)]
    names = [{name.split("_reward")[0] for name in row if name.endswith("_reward")} for row in rows]
    assert names == [{"eval_ones"}, {"eval_the_others/x"}] * 2
    assert all(row["eval_ones_reward"] >= 1 for row in rows[::2])
    assert all(row["eval_the_others/x_reward"] <= 0.25 for row in rows[1::2])
    for row, name in zip(rows, ["ones", "the_others/x"] * 2, strict=True):
        ours = {key for key in row if key not in ("step", "epoch")}
        assert all(key.startswith(f"eval_{name}_") for key in ours)
        assert {f"eval_{name}_rewards/half/mean", f"eval_{name}_entropy", f"eval_{name}_credit/abs_advantage"} <= ours
    assert trainer.state.best_metric == max(row["eval_ones_reward"] for row in rows[::2])
    shown = [line.split() for line in capsys.readouterr().out.splitlines() if " evaluation " in line]
    assert [line[3:5] for line in shown] == [["ones", "reward"], ["the_others/x", "reward"]] * 2
    alone = trainer.evaluate(SETS["ones"], metric_key_prefix="test")
    assert {"test_reward", "test_loss"} <= alone.keys() and "eval_reward" not in alone
    assert not trainer._metrics["eval"]
