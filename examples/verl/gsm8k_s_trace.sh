#!/usr/bin/env bash
# S-trace on GSM8K with verl, on one node. verl's examples/data_preprocess/gsm8k.py writes the two files of data.
#
#     bash examples/verl/gsm8k_s_trace.sh                 # its last lines are those of trl_credit
#     bash examples/verl/gsm8k_s_trace.sh trainer.nnodes=2 trainer.n_gpus_per_node=4
#
# docs/verl.md has the setting of each algorithm. It was composed and checked on a CPU, and never run on a GPU.
set -euo pipefail
data="${DATA:-$HOME/data/gsm8k}"
actor=actor_rollout_ref.actor

python3 -m verl.trainer.main_ppo \
    data.train_files="$data/train.parquet" \
    data.val_files="$data/test.parquet" \
    data.train_batch_size=256 \
    data.max_prompt_length=512 \
    data.max_response_length=1024 \
    actor_rollout_ref.model.path="${MODEL:-Qwen/Qwen3-1.7B}" \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16 \
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=16 \
    $actor.optim.lr=1e-6 \
    $actor.ppo_mini_batch_size=64 \
    $actor.ppo_micro_batch_size_per_gpu=8 \
    algorithm.adv_estimator=grpo \
    trainer.nnodes=1 \
    trainer.n_gpus_per_node=8 \
    trainer.project_name=trl_credit \
    trainer.experiment_name=gsm8k_s_trace \
    trainer.total_epochs=3 \
    trainer.save_freq=50 \
    $actor.loss_agg_mode=seq-mean-token-mean \
    $actor.use_kl_loss=True \
    $actor.kl_loss_coef=0.001 \
    $actor.calculate_entropy=True \
    $actor.policy_loss.loss_mode=trl_credit.s_trace \
    $actor.policy_loss._target_=trl_credit.engines.verl.PolicyLoss \
    +$actor.policy_loss.trace_lambda=0.9 \
    "$@"
