"""The card's table: which settings are shown, and what the console says of sampling."""

import pytest
from segment_helpers import TREE, steps_of

from trl_credit import ALGORITHMS, CreditConfig
from trl_credit.hub.describe import PARTS, Setting, describe_credit


@pytest.fixture
def args_of(tmp_path):
    def make(algo, **settings):
        common = {"output_dir": str(tmp_path / "run"), "report_to": "none", "use_cpu": True, "bf16": False}
        config = ALGORITHMS[algo][0] if algo in ALGORITHMS else CreditConfig
        return config(**{**common, "per_device_train_batch_size": 8, "num_generations": 8, **settings})

    return make


@pytest.fixture
def shown(args_of):
    """Name → value of the rows of a configuration, and name → the preset's value where it is another one."""

    def make(algo, **settings):
        rows = describe_credit(args_of(algo, **settings))
        return {row.name: row.value for row in rows}, {row.name: row.published for row in rows if row.published}

    return make


@pytest.mark.parametrize("form", ["nodes", "paths"])
def test_the_nodes_that_were_trained_on(make_trainer, form):
    trainer = make_trainer(**{**TREE, "max_steps": 1}, tree_rows=form)
    trees, grow = [], trainer.forest._new_rows
    trainer.forest._new_rows = lambda grown: trees.extend(grown) or grow(grown)
    trainer.train()
    (row,) = steps_of(trainer)
    credited = [node for tree in trees for node in tree.root.walk()[1:] if node.advantage]
    assert len(credited) <= 16 and row["credit/nodes_trained"] == len(credited) < row["credit/nodes"]
    assert (row["credit/rows"] < len(credited)) == (form == "paths")


def test_every_part_of_credit_has_its_settings(args_of):
    rows = describe_credit(args_of("s_trace", selective_rate=0.1, beta=0.2, top_entropy_quantile=0.5))
    parts = [row.part for row in rows]
    assert list(dict.fromkeys(parts)) == list(PARTS) and parts == sorted(parts, key=list(PARTS).index)
    assert Setting("weight W", "selective_rate", "0.1", "0.2") in rows
    assert Setting("loss", "beta", "0.2", "0.001") in rows and Setting("mask M", "token_mask", "none") in rows
    assert Setting("mask M", "top_entropy_quantile", "0.5", "1") in rows


@pytest.mark.parametrize(
    ("algo", "settings", "absent"),
    [
        ("spo_chain", {"cutpoint_interval": 7, "probability_threshold": 0.8}, {"num_segments", "segment_length"}),
        ("vine_ppo", {"step_splitter": "gsm8k"}, {"cutpoint_interval", "num_segments", "segment_length"}),
        ("spo_tree", {"tree_branching": [4, 2], "replay_cap": None}, {"scale_rewards", "segmentation"}),
        ("spo_tree", {"process_reward_weight": 0.5, "process_reward_best_of": 4}, {"segmentation"}),
        ("grpo", {"baseline": "optimal"}, {"scale_rewards", "segmentation"}),
        ("spo_chain", {"policy_loss": "policy_iteration", "beta": 0.1, "token_mask": "none"}, {"clip_form"}),
        ("grpo_lambda", {"importance": "token", "loss_weight": "trace_past"}, {"selective_rate"}),
    ],
)
def test_settings_that_act_are_shown_with_the_presets_value(shown, algo, settings, absent):
    values, published = shown(algo, **settings)
    texts = {"None": "–", "[4, 2]": "4, 2"}
    for name, value in settings.items():
        assert values[name] == texts.get(str(value), str(value)), name
    assert not absent & set(values)
    default, nothing = shown(algo)
    assert set(published) == set(settings) and nothing == {}
    assert all(published[name] == default[name] for name in set(settings) & set(default))
