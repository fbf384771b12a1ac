"""A loss that is averaged over prompts, through the real trainer: single responses, chains and trees with replay."""

import pytest
import torch
from segment_helpers import CHAIN, TREE, batches, generation_batch, gradients, in_double, plans, steps_of


MASK = {"token_mask": "probability", "probability_threshold": 0.06}
SMALL = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "num_generations": 4, "temperature": 1.3}
CASES = {
    "responses": {"loss_type": "dapo", **SMALL},
    "chain": {**CHAIN, **SMALL, **MASK},
    "tree": {**TREE, "num_generations": 4, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, **MASK},
    "packed": {**TREE, "tree_rows": "packed", "num_generations": 4, "per_device_train_batch_size": 16},
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_mean_of_the_means_of_prompts(make_trainer, case):
    """Against the means of all tokens of one prompt after the other, TRL's own, with the others out of the loss."""
    trainer = make_trainer(**CASES[case], prompt_average=True, beta=0.1, use_bias_correction_kl=False)
    in_double(trainer)
    torch.manual_seed(5)
    output = generation_batch(trainer)
    averaged = gradients(trainer, output)

    plain = {name: value for name, value in output.items() if name != "row_weight"}
    seen = plain["completion_mask"] * plain.get("tool_mask", 1)
    kept = plain.get("policy_mask", seen)
    if "responses" in case or case == "chain":
        prompts = torch.arange(len(seen)) // 4
    else:  # by the first tokens of prompt and prefix
        rows = zip(plain["prompt_ids"], plain["prompt_mask"], strict=True)
        heads = [tuple(ids[mask.bool()][:3].tolist()) for ids, mask in rows]
        prompts = torch.tensor([sorted(set(heads)).index(head) for head in heads])
    counts = torch.stack([kept[prompts == q].sum() for q in prompts.unique()])
    assert (counts > 0).sum() > 1 and len(counts[counts > 0].unique()) > 1  # or every mean would do
    sums = {}
    for q in prompts.unique()[counts > 0]:
        inside = (prompts == q).long().unsqueeze(1)
        part = {**plain, "tool_mask": plain.get("tool_mask", 1) * inside * torch.ones_like(seen)}
        part["policy_mask"] = kept * inside
        part["num_items_in_batch"] = (kept * inside).sum()
        for name, gradient in gradients(trainer, part).items():
            sums[name] = sums.get(name, 0) + gradient / (counts > 0).sum()
    for name, gradient in averaged.items():
        torch.testing.assert_close(gradient, sums[name], rtol=1e-4, atol=1e-7)  # advantages are float32


def test_rows_of_a_replayed_prompt_weigh_alike(make_trainer):
    trainer = make_trainer("spo_tree", **{**TREE, "tree_rows": "nodes"}, replay_cap=4, max_steps=4)
    planned, kept = plans(trainer), batches(trainer)
    trainer.train()
    assert any(row.birth < plan.iteration for plan in planned for row in plan.drawn)
    for plan, output in zip(planned, kept, strict=True):
        n = output["policy_mask"].sum(1).float()
        share = output["row_weight"] * n / n.sum()
        of = {}
        for row, x in zip(plan.rows[: plan.n_real], share, strict=False):
            of[row.question] = of.get(row.question, 0.0) + x.item()
        shares = [x for x in of.values() if x]
        assert shares == pytest.approx([1 / len(shares)] * len(shares))
    assert all(row["credit/rows"] for row in steps_of(trainer))
