"""What console and card say of a configuration: how it samples, cuts, values and updates."""

import pytest
from segment_helpers import TREE, steps_of

from trl_credit import ALGORITHMS
from trl_credit.data import load_prompts
from trl_credit.hub.card import TrainingData, write_model_card
from trl_credit.hub.describe import describe_credit, describe_updates
from trl_credit.report import describe_sampling


@pytest.fixture
def args_of(tmp_path):
    def make(algo, **settings):
        common = {"output_dir": str(tmp_path / "run"), "report_to": "none", "use_cpu": True, "bf16": False}
        batch = {"per_device_train_batch_size": 8, "num_generations": 8}
        return ALGORITHMS[algo][0](**{**common, **batch, **settings})

    return make


def test_what_is_sampled(args_of):
    assert describe_sampling(args_of("grpo")) == "8 responses per prompt"
    chain = args_of("spo_chain", rollouts_per_state=5)
    assert describe_sampling(chain) == "8 responses per prompt, with 5 rollouts from where a segment begins"
    tree = args_of("spo_tree", tree_branching=[4, 4, 4], tree_rows="nodes", gradient_accumulation_steps=2)
    assert describe_sampling(tree) == (
        "a tree of 4-4-4 per prompt (at most 64 leaves and 84 nodes); of 2 prompts in a generation batch at most 16 "
        "rows of a node each are trained on"
    )
    logs = [{"credit/nodes": 168.0, "credit/nodes_trained": 16.0}, {"loss": 0.1}, {"credit/nodes": 160.0}]
    assert describe_sampling(tree, logs).endswith("(on average 164.0 nodes were sampled and 16.0 trained on)")


@pytest.mark.parametrize("form", ["nodes", "paths"])
def test_the_nodes_that_were_trained_on(make_trainer, form):
    trainer = make_trainer(**{**TREE, "max_steps": 1}, tree_rows=form)
    trees, grow = [], trainer.forest._new_rows
    trainer.forest._new_rows = lambda found: trees.extend(found) or grow(found)
    trainer.train()
    (row,) = steps_of(trainer)
    credited = [node for tree in trees for node in tree.root.walk()[1:] if node.advantage]
    assert len(credited) <= 16 and row["credit/nodes_trained"] == len(credited) < row["credit/nodes"]
    assert (row["credit/rows"] < len(credited)) == (form == "paths")


def test_the_words_of_segments(args_of):
    def words(algo, **settings):
        return describe_credit(args_of(algo, **settings))["advantage A"]

    assert "; segments cut at one in 7 of the tokens with a probability below 0.8" in words(
        "spo_chain", segmentation="cutpoints", cutpoint_interval=7, probability_threshold=0.8
    )
    assert "; segments 3 per response, cut at tokens with" in words(
        "spo_chain", segmentation="cutpoints", cutpoint_interval=5, num_segments=3
    )
    assert "; segments of 40 tokens" in words(
        "spo_chain", segmentation="fixed_length", segment_length=40, cutpoint_interval=5
    )
    assert "; segments by the step splitter 'newline'" in words("vine_ppo", segmentation="steps")
    tree = {"tree_branching": [4, 2], "tree_segment_length": 9}
    assert "minus the mean of its siblings' in a tree of 4-2 with inner segments of 9 tokens" in words(
        "spo_tree", segment_advantage="loo", **tree
    )
    assert "divided by their standard deviation, in a tree" in words("spo_tree", segment_advantage="std", **tree)
    by_value = {"process_reward_weight": 0.5, "process_reward_form": "value"}
    assert "; in its place the value at the segment's end; plus 0.5 times a best-of-6" in words("spo_tree", **by_value)
    assert "times a best-of-9" in words("spo_chain", **by_value)
    assert "times a best-of-4" in words("spo_chain", process_reward_best_of=4, **by_value)
    assert "its place" not in words("spo_tree", process_reward_weight=0.5)


def test_the_words_of_a_standard_deviation_and_of_policy_iteration(args_of):
    rows = describe_credit(args_of("grpo", scale_rewards="none"))
    assert rows["advantage A"] == "the reward minus the mean of its group, not divided by a standard deviation"
    settings = {"policy_loss": "policy_iteration", "beta": 0.1, "token_mask": "none"}
    weight = describe_credit(args_of("spo_chain", **settings))["weight W"]
    assert "the loss of a segment is the square of" in weight
    assert "times its π/π_old (without gradient, at most 10)" in weight
    weight = describe_credit(args_of("spo_chain", **{**settings, "policy_loss": "policy_iteration_code"}))["weight W"]
    assert "the loss of a segment is half the square of" in weight
    chain = args_of("spo_chain")
    chain.tree_branching = [2, 2]  # as a run of before it was refused has it
    assert "tree_branching" not in describe_credit(chain)["formula"]


def test_the_words_of_grpo_lambda(args_of):
    weight = {"importance": "token", "loss_weight": "trace_past"}
    plain, confident = (
        describe_credit(args_of("grpo_lambda", **weight, loss_weight_confidence=flag)) for flag in (False, True)
    )
    assert plain["advantage A"].endswith("; at least -0.1; the loss weighted by the trace (trace_past)")
    assert confident["advantage A"] == plain["advantage A"] + ", times 1 + σ(log π − 1) of the token"
    assert "loss_weight_confidence=True" in confident["formula"]
    form = args_of("grpo_lambda", clip_form="ratio")
    assert describe_updates(form)[0].startswith(
        "Loss `grpo`, min(ρ, clip ρ)·A in the place of PPO's minimum, with a KL"
    )
    assert "clip_form='ratio'" in describe_credit(form)["formula"]


def test_the_words_of_updates(args_of):
    assert describe_updates(args_of("grpo", beta=0.0, num_iterations=1, loss_type="grpo")) == [
        "Loss `grpo`, without a KL term (β = 0).",
        "1 pass over a generation batch of 8 rows, 1 update in all.",
    ]
    several = {"num_iterations": 3, "gradient_accumulation_steps": 2, "steps_per_generation": 4, "beta": 0.04}
    assert describe_updates(args_of("grpo", loss_type="dapo", **several)) == [
        "Loss `dapo`, with a KL term of β = 0.04.",
        "3 passes over a generation batch of 32 rows, 6 updates in all.",
    ]
    tree = args_of("spo_tree", replay_iterations=8, replay_cap=32)
    assert describe_updates(tree)[0].startswith("Loss `dapo`, averaged over prompts, with")
    assert (
        describe_updates(tree)[-1]
        == "Replay: a row may be drawn in 8 generation batches, at most 32 of a prompt in each."
    )
    settings = {"policy_loss": "policy_iteration", "beta": 0.1, "token_mask": "none"}
    assert describe_updates(args_of("spo_chain", **settings))[0].endswith(", of policy iteration, β = 0.1.")


def test_the_card_of_a_tree(make_trainer):
    trainer = make_trainer(**{**TREE, "max_steps": 1}, replay_iterations=2)
    trainer.train()
    trainer.save_model()
    data = TrainingData("mine", 64)
    text = write_model_card(trainer, name="SPO-tree", data=data).read_text(encoding="utf-8")
    assert "* 1 optimizer steps, a tree of 3-2 per prompt (at most 6 leaves and 9 nodes); of 2 prompts in" in text
    assert "nodes were sampled and" in text and "responses per prompt" not in text
    assert "* 1 pass over a generation batch of 16 rows, 1 update in all." in text
    assert "* Replay: a row may be drawn in 2 generation batches." in text


def test_nothing_that_was_left_out_is_not_reported(tmp_path):
    (tmp_path / "mine.jsonl").write_text('{"problem": "1+1=", "answer": "2"}\n{"problem": "2+2=", "answer": "4"}\n')
    assert load_prompts(str(tmp_path / "mine.jsonl")).info.description == ""
