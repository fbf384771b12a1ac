"""`rows_reached` gives the rows that the run sampled for."""

import json

import pytest
from passes_helpers import with_slow
from run_helpers import SAVES

from trl_credit.rollouts.prompts import PROMPT_RATES_FILE
from trl_credit.runs.checkpoints import read_run
from trl_credit.runs.data_order import rows_reached, steps_of_weights


ORDERS = {
    "one batch a step": {},
    "several steps a batch": {"steps_per_generation": 4},
    "several passes": {"num_iterations": 2},
    "accumulation": {"gradient_accumulation_steps": 2},
    "in order": {"shuffle_dataset": False},
}


@pytest.mark.parametrize("order", with_slow(ORDERS, "one batch a step", "several passes", "in order"))
def test_rows_that_a_run_sampled_for(make_trainer, order):
    sampled = set()

    def reward(prompts, completions, **kwargs):
        sampled.update(prompts)
        return [float(len(text)) for text in completions]

    trainer = make_trainer("grpo", reward_funcs=reward, max_steps=4, **SAVES | {"save_steps": 4}, **ORDERS[order])
    trainer.train()
    folder, prompts = trainer.args.output_dir, trainer.train_dataset["prompt"]
    assert steps_of_weights(folder) == steps_of_weights(f"{folder}/checkpoint-4") == 4
    reached = rows_reached(read_run(folder), steps=4)
    assert {prompts[i] for i in reached} == sampled and len(sampled) == len(reached) < len(prompts)


RECORD = {
    "lives": [{"from": 0, "id": "0"}],
    "identity": {
        **{"seed": 1, "shuffle_dataset": True, "num_generations": 4, "generation_batch_size": 16, "batch_size": 8},
        **{"num_iterations": 1, "data": {"rows": 10}},
    },
}


def test_an_epoch_reaches_all_rows_but_those_that_fill_no_batch():
    # a generation batch takes 4 prompts and lasts two steps; 2 of the 10 rows fill no batch of the first epoch
    sizes = [len(rows_reached(RECORD, steps=steps)) for steps in (0, 1, 2, 3, 4, 5)]
    assert sizes == [0, 4, 4, 8, 8, 10]


def test_an_unknown_order_is_refused():
    stream = RECORD["identity"] | {"data": {"first_rows": "x"}}
    with pytest.raises(ValueError, match="stream"):
        rows_reached(RECORD | {"identity": stream}, steps=1)
    lives = [*RECORD["lives"], {"from": 1, "id": "1"}]
    for name in ("seed", "prompt_sampler"):
        lives[1]["changed"] = {name: [1, 2], "learning_rate": [0.1, 0.2]}
        with pytest.raises(ValueError, match=f"a resume changed {name}$"):
            rows_reached(RECORD | {"lives": lives}, steps=1)
    lives[1]["changed"] = {"learning_rate": [0.1, 0.2]}
    assert rows_reached(RECORD | {"lives": lives}, steps=1) == rows_reached(RECORD, steps=1)


def with_settings(**settings):
    return RECORD | {"identity": RECORD["identity"] | settings}


def write_rates(folder, *lines):
    """A file of pass rates: (row, rate, groups) of each line."""
    rows = [{"row": row, "prompt": "0" * 16, "rate": rate, "groups": n} for row, rate, n in lines]
    (folder / PROMPT_RATES_FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_an_order_by_pass_rates_is_read_from_the_file(tmp_path):
    # row 3 has the rate of an earlier run, and this one did not sample for it; row 8 was not scored
    write_rates(tmp_path, (0, 0.5, 2), (3, 0.25, 0), (7, 1.0, 1), (8, None, 1), (9, None, 0))
    by_difficulty = with_settings(prompt_sampler="difficulty", groups="keep")
    assert rows_reached(by_difficulty, steps=1, folder=tmp_path) == {0, 7, 8, 9}
    assert rows_reached(by_difficulty, steps=100, folder=tmp_path) == {0, 7, 8, 9}
    refilled = with_settings(prompt_sampler="data", groups="refill")
    in_order = rows_reached(RECORD, steps=1)
    assert rows_reached(refilled, steps=1, folder=tmp_path) == in_order | {0, 7, 8, 9} != in_order
    both = with_settings(prompt_sampler="difficulty", groups="refill")
    assert rows_reached(both, steps=1, folder=tmp_path) == {0, 7, 8, 9}
    # what does not follow from results needs no file; records of earlier versions lack both settings
    for groups in ("keep", "replace"):
        record = with_settings(prompt_sampler="data", groups=groups)
        assert rows_reached(record, steps=1, folder=tmp_path / "none") == in_order


@pytest.mark.parametrize("settings", [{"prompt_sampler": "difficulty"}, {"groups": "refill"}])
def test_without_the_file_an_order_by_results_is_unknown(tmp_path, settings):
    def refused():
        with pytest.raises(ValueError, match="order of rows is not known.*prompt_rates.jsonl"):
            rows_reached(with_settings(**settings), steps=1, folder=tmp_path)

    refused()
    (tmp_path / PROMPT_RATES_FILE).write_text("{}\n")
    refused()
    write_rates(tmp_path, (10, 0.5, 1))  # of 10 rows
    refused()
