"""`rows_reached` gives the rows that the run sampled for."""

import pytest
from passes_helpers import with_slow
from run_helpers import SAVES

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
    lives = [*RECORD["lives"], {"from": 1, "id": "1", "changed": {"seed": [1, 2], "learning_rate": [0.1, 0.2]}}]
    with pytest.raises(ValueError, match="a resume changed seed$"):
        rows_reached(RECORD | {"lives": lives}, steps=1)
    lives[1]["changed"] = {"learning_rate": [0.1, 0.2]}
    assert rows_reached(RECORD | {"lives": lives}, steps=1) == rows_reached(RECORD, steps=1)
