"""The metrics of a custom algorithm: how they are averaged, and what is refused."""

import pytest
import torch
from processes import TORCHRUN, results, run
from weight_helpers import same_weights

from trl_credit import assign_credit
from trl_credit.demo import demo_dataset, demo_model_path


def check_means(processes, *, micro_batches):
    """Each micro-batch has Σ numerators / Σ denominators over processes; a step logs their mean."""
    sums = torch.tensor([result["sums"] for result in processes], dtype=torch.float64)
    total = sums.sum(0).view(3, micro_batches, 4)
    expected = (total[..., ::2] / total[..., 1::2]).mean(1)
    assert sums[..., 1].unique().numel() > 1  # or a mean over rows would be one over tokens
    for result in processes:
        torch.testing.assert_close(torch.tensor(result["logged"], dtype=torch.float64), expected, rtol=1e-5, atol=0)


def test_they_are_means_over_tokens_and_over_rows(make_trainer):
    from run_custom_metrics import Watched

    Watched.sums = []
    demo = {"model": demo_model_path(), "train_dataset": demo_dataset(64)}
    sizes = {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 4, "max_steps": 3}
    trainer = make_trainer(credit=Watched, **sizes, max_completion_length=48, trainer_kwargs=demo)
    trainer.train()
    logged = [row for row in trainer.state.log_history if "reward" in row]
    rows = [[row["credit/surprise"], row["credit/length"]] for row in logged]
    check_means([{"sums": Watched.sums, "logged": rows}], micro_batches=3)


@pytest.mark.slow
def test_they_are_means_over_processes(tmp_path):
    processes = results(run(*TORCHRUN, "run_custom_metrics.py", tmp_path))
    assert len(processes) == 2 and processes[0]["sums"] != processes[1]["sums"]
    check_means(processes, micro_batches=2)


def watched(metrics):
    """An algorithm with the credit of the knobs; `metrics(tokens, call)` for the calls 0, 1, …"""

    class Watched:
        calls: list = []

        def credit(self, config, tokens):
            return assign_credit(config, tokens)

        def metrics(self, config, tokens, credit):
            self.calls.append(1)
            return metrics(tokens, len(self.calls) - 1)

    return Watched


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (lambda tokens, call: {"x": tokens.logp_t[:, :2]}, r"'x' as .*\(8, 2\): .*\(8, 8\) by token, or \(8,\)"),
        (lambda tokens, call: {"x": 0.5}, "'x' as float"),
        (lambda tokens, call: tokens.logp_t, "returned Tensor: return a dict of tensors"),
        (lambda tokens, call: {f"x_{call}": tokens.logp_t}, "returned .*x_1.*: .*the same names in every call"),
        # also where this run does not log it: GRPO has no trace, and the step is no logged one
        (lambda tokens, call: {"effective_horizon": tokens.logp_t}, "a metric 'effective_horizon', as we have: rename"),
    ],
    ids=["shape", "number", "no dict", "other names", "ours"],
)
def test_what_is_refused(make_trainer, metrics, message):
    trainer = make_trainer(credit=watched(metrics), logging_steps=10)
    with pytest.raises(ValueError, match=message):
        trainer.train()


def test_they_change_nothing_and_are_logged_in_evaluation(trained, tmp_path):
    """They do not where the function writes into what it receives and the batch has a second iteration."""

    def blot(tokens, call):
        for x in (tokens.logp_t, tokens.old_logp_t, tokens.mask_t, tokens.advantages):
            x.zero_()
        return {"x": tokens.logp_t}

    settings = {"num_iterations": 2, "max_steps": 4}
    left = trained(credit=watched(blot), output_dir=str(tmp_path / "blot"), **settings)
    assert left.evaluate(left.train_dataset.select(range(2)))["eval_credit/x"] == 0.0
    assert same_weights(left, trained(**settings))
