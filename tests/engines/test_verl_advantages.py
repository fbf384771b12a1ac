"""The plug-in's advantage estimators through the real verl, and HA-DW's belief in its checkpoints.

`.ci/engines.sh verl` installs verl and runs these.
"""

import pytest
import torch

from trl_credit.credit.advantages import group_advantage, optimal_advantage
from trl_credit.credit.difficulty import DifficultyBelief, difficulty_weight
from trl_credit.credit.returns import returns_to_go, to_go_advantages


pytest.importorskip("verl", reason="needs verl: .ci/engines.sh")

import numpy as np
from omegaconf import OmegaConf
from verl.protocol import DataProto
from verl.trainer.ppo.checkpoint_callback import build_checkpoint_callback
from verl.trainer.ppo.ray_trainer import compute_advantage

from trl_credit.engines import verl_advantages as plugin


MASK = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]])
PADDED = torch.cat([MASK[:4], torch.zeros(3, 4, dtype=torch.long)])  # as verl fills a batch up


def of_verl(adv_estimator, rewards, prompts, *, mask_t=MASK, **algorithm):
    """Advantages through verl's `compute_advantage`, from a reward for each token, or one at the end of each row."""
    mask_t, reward_t = mask_t[: len(prompts)], torch.tensor(rewards)
    if reward_t.dim() == 1:
        reward_t = torch.nn.functional.pad(reward_t.unsqueeze(1), (mask_t.size(1) - 1, 0))
    data = DataProto.from_dict(
        tensors={"token_level_rewards": reward_t, "response_mask": mask_t},
        non_tensors={"uid": np.array(prompts, object)},
    )
    config = OmegaConf.create({"adv_estimator": f"trl_credit.{adv_estimator}", **algorithm})
    return compute_advantage(data, config.adv_estimator, config=config).batch["advantages"]


@pytest.mark.parametrize("scale", [True, False])
def test_group_and_optimal_baseline_of_groups_of_any_size(scale):
    rewards, prompts = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.5]), ["b", "a", "b", "a", "b"]
    group, optimal = torch.zeros(5), torch.zeros(5)
    for rows in ([0, 2, 4], [1, 3]):
        groups, lengths = {"num_generations": len(rows)}, MASK.sum(-1)[rows]
        group[rows] = group_advantage(rewards[rows], scale=scale, **groups)
        optimal[rows] = optimal_advantage(rewards[rows], lengths=lengths, **groups)
    of_group = of_verl("grpo", rewards.tolist(), prompts, norm_adv_by_std_in_grpo=scale)
    torch.testing.assert_close(of_group, group.unsqueeze(1) * MASK)
    torch.testing.assert_close(of_verl("opo", rewards.tolist(), prompts), optimal.unsqueeze(1) * MASK)
    alone = of_verl("grpo", [1.0, 0.0, 1.0], ["a", "a", "b"], norm_adv_by_std_in_grpo=scale)
    assert alone[2].eq(0).all() and alone[0, 0] > 0


def test_returns_of_turns():
    """A reward between two turns belongs to the turn before it."""
    mask_t = torch.tensor([[1, 0, 1, 1, 0], [1, 1, 1, 0, 0], [1, 0, 1, 0, 1], [1, 0, 1, 1, 1]])
    reward_t = [[0.0, 0.5, 0.0, 1.0, 0.0], [0.0, 0.0, 0.25, 0.0, 0.0], [0.1, 0.0, 0.0, 0.2, 0.4], [1.0] * 5]
    knobs = {"returns": "to_go", "step_gamma": 0.5}
    advantage_t = of_verl("grpo", reward_t, [*"aaab"], mask_t=mask_t, trl_credit=knobs)
    steps = torch.tensor([2, 1, 3])
    reward_k = torch.tensor([[0.5, 1.0, 0.0], [0.25, 0.0, 0.0], [0.1, 0.2, 0.4]])
    returns = returns_to_go(reward_k, gamma=0.5, steps=steps)
    a = to_go_advantages(returns, num_generations=3, steps=steps).float()
    turns = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, 0], [0, 0, 1, 1, 2]])
    torch.testing.assert_close(advantage_t[:3], a.gather(1, turns) * mask_t[:3])
    assert advantage_t[3].eq(0).all()  # alone in its group


def trainer_config(folder, mode="auto", estimator="trl_credit.ha_dw", **knobs):
    config = {"adv_estimator": estimator, "trl_credit": knobs, "lam": -2.0}
    trainer = {"checkpoint_callback_class": plugin.CALLBACK, "resume_mode": mode, "default_local_dir": str(folder)}
    return OmegaConf.create({"algorithm": config, "trainer": trainer | {"resume_from_path": f"{folder}/global_step_2"}})


@pytest.mark.parametrize("mode", ["auto", "resume_path", "disable"])
def test_the_belief_of_ha_dw_is_kept_in_checkpoints(tmp_path, mode, caplog):
    batches = [[1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]]
    prompts, belief, config = ["a", "a", "b", "b"], DifficultyBelief(), trainer_config(tmp_path)
    callback = build_checkpoint_callback(config)
    for step, rewards in enumerate(batches, 1):
        of_verl("ha_dw", rewards, prompts, mask_t=torch.zeros_like(MASK))  # verl rejected all rows
        advantage_t = of_verl("ha_dw", [*rewards, 0.0, 0.0, 0.0], [*prompts, *["pad"] * 3], mask_t=PADDED)
        plain, y = group_advantage(torch.tensor(rewards), num_generations=2), sum(rewards) / 4
        p_hat = torch.tensor(rewards).view(2, 2).mean(-1).repeat_interleave(2)
        expected = plain * difficulty_weight(plain, p_hat=p_hat, prior=belief.prior(y), scale=1.3)
        torch.testing.assert_close(advantage_t, expected[[0, 1, 2, 3, 0, 0, 0]].unsqueeze(1) * PADDED)
        belief.update(y)
        if step == 2:
            (folder := tmp_path / "global_step_2").mkdir()
            callback.on_save(trainer=None, global_step=2, checkpoint_dir=str(folder), async_save=False)
            (tmp_path / "latest_checkpointed_iteration.txt").write_text("2")
            saved = belief.state_dict()
            resumed = build_checkpoint_callback(trainer_config(tmp_path, mode))
            state = resumed.estimator.belief.state_dict()
            assert state == (DifficultyBelief().state_dict() if mode == "disable" else saved)
            resumed.estimator.belief.load_state_dict(saved)
    assert not caplog.records
    for damaged in ("{", "{}", '{"version": 2, "mode": "hard", "window": 10}'):
        (folder / plugin.BELIEF_FILE).write_text(damaged)
        with pytest.raises(ValueError, match=f"{plugin.BELIEF_FILE}.*as in that run, or delete the file"):
            build_checkpoint_callback(trainer_config(tmp_path, "resume_path"))
    (folder / plugin.BELIEF_FILE).unlink()
    build_checkpoint_callback(trainer_config(tmp_path, "resume_path"))
    assert "starts anew" in caplog.text


def test_a_run_without_the_callback_says_that_its_belief_is_not_kept(caplog):
    plugin._estimator.cache_clear()
    plugin.say.cache_clear()
    for _ in range(2):
        of_verl("ha_dw", [1.0, 0.0], ["a", "a"])
    assert [plugin.CALLBACK in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize(
    "knobs, said",
    [
        ({"returns": "difference"}, "returns='to_go'"),
        ({"difficulty_scale": "${algorithm.lam}"}, "difficulty_scale must be positive and finite, got -2.0"),
        ({"estimator": "grpo"}, "adv_estimator='grpo' is not one of trl_credit"),
        ({"estimator": "trl_credit.s_trace"}, "trl_credit.grpo, trl_credit.opo, trl_credit.ha_dw"),
        ({"trace_lambda": 0.5, "importance": "eligible"}, "it acts in the policy loss"),
        ({"difficulty_reward": ["accuracy"]}, "difficulty_reward"),
    ],
)
def test_knobs_of_advantages_are_refused_when_the_run_starts(tmp_path, knobs, said):
    with pytest.raises(ValueError, match=said):
        build_checkpoint_callback(trainer_config(tmp_path, **knobs))


def test_rejected_tokens_would_cut_turns():
    rejection = {"rollout_correction": {"rollout_rs": "token_k1"}}
    of_verl("grpo", [1.0, 0.0], ["a", "a"], **rejection)
    with pytest.raises(ValueError, match="rollout_rs='token_k1' would cut turns in two"):
        of_verl("grpo", [1.0, 0.0], ["a", "a"], trl_credit={"returns": "to_go"}, **rejection)
