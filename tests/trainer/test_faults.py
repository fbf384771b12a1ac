"""Faults during training: rewards, processes, disks and numbers. No bad update is made, and no checkpoint is lost."""

import math
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from passes_helpers import Watch
from processes import ENVIRONMENT, WORKERS

from trl_credit.loss.nonfinite import NonFinite


def poison(trainer, *, steps, where):
    """Makes the loss, or the gradient of a finite loss, NaN in the first micro-batch of the given optimizer steps."""
    inner = trainer._get_per_token_logps_and_entropies

    def hook(model, *args, **kwargs):
        output = inner(model, *args, **kwargs)
        is_first = trainer._step % trainer.args.gradient_accumulation_steps == 0
        if trainer.state.global_step in steps and is_first and torch.is_grad_enabled():
            logps = output[0]
            if where == "loss":
                logps.data.fill_(math.nan)
            else:
                logps.register_hook(lambda grad: torch.full_like(grad, math.inf))
        return output

    trainer._get_per_token_logps_and_entropies = hook


def same(left, right):
    return all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("where", ["loss", "gradient"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_an_update_that_is_not_finite_is_skipped_and_counted(make_trainer, where, accumulation):
    settings = {"weight_decay": 0.1, "gradient_accumulation_steps": accumulation, "lr_scheduler_type": "constant"}
    trainer = make_trainer(max_steps=4, **settings)
    poison(trainer, steps={1, 2}, where=where)
    watch = Watch(trainer)
    trainer.train()
    seen = watch.parameters  # after every step
    assert len(seen) == 4 and same(seen[0], seen[1]) and same(seen[1], seen[2]) and not same(seen[2], seen[3])
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    rows = [row for row in trainer.state.log_history if "reward" in row]
    assert [row["credit/skipped_updates"] for row in rows] == [0.0, 1.0, 1.0, 0.0]
    assert all(math.isfinite(row["loss"]) for row in rows)


def test_a_broken_step_adds_nothing_to_the_metrics_of_the_next_run(make_trainer):
    trainer = make_trainer(gradient_accumulation_steps=2)
    inner, counted = trainer.compute_loss, []

    def fails(*args, **kwargs):
        if trainer._step == 1:
            raise RuntimeError("out of memory")
        return inner(*args, **kwargs)

    def logged(*args):
        counted.append(len(trainer._metrics["train"]["credit/trained_tokens_per_row"]))
        log(*args)

    log, trainer.log = trainer.log, logged
    trainer.compute_loss = fails
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train()
    trainer.compute_loss = inner
    trainer.train()
    assert counted[:2] == [2, 2]  # of two steps, and at the end


def counter(patience: int, *, is_deepspeed_enabled: bool = False) -> NonFinite:
    args = SimpleNamespace(nonfinite_patience=patience, optim="adamw_torch", gradient_accumulation_steps=1)
    more = {"accelerator": SimpleNamespace(scaler=None), "model": torch.nn.Linear(1, 1)}
    return NonFinite(SimpleNamespace(args=args, is_deepspeed_enabled=is_deepspeed_enabled, **more))


def close(count: NonFinite, *, bad: bool) -> bool:
    return count.close_update(loss=bad, gradient=False)


def test_too_many_skipped_updates_stop_the_run(make_trainer):
    trainer = make_trainer(max_steps=9, nonfinite_patience=2)
    poison(trainer, steps=set(range(1, 9)), where="loss")
    with pytest.raises(FloatingPointError, match="2 of the 3 updates before this one .*resume"):
        trainer.train()
    assert trainer.state.global_step == 3 and all(p.isfinite().all() for p in trainer.model.parameters())
    assert close(count := counter(1), bad=True) is True and close(count, bad=False) is False
    assert close(count, bad=True) is True  # not two in a row
    with pytest.raises(FloatingPointError):
        close(counter(1, is_deepspeed_enabled=True), bad=True)  # DeepSpeed has made the update already


def test_too_large_a_share_of_skipped_updates_stops_the_run():
    def stopped(patience: int, pattern: list[bool]) -> str | None:
        count = counter(patience)
        for i, bad in enumerate(pattern):
            try:
                close(count, bad=bad)
            except FloatingPointError as error:
                return f"{i}: {error}"

    every_second = [i % 2 == 1 for i in range(1000)]
    assert stopped(3, every_second).startswith("51: the loss is not finite, and 25 of the 51 updates before this one")
    assert "were skipped. The last checkpoint is intact: resume" in stopped(3, every_second)
    # a quarter of the window at most does not stop the run, spread or in one block
    assert stopped(3, [i % 4 == 0 for i in range(1000)]) is None
    assert stopped(30, ([True] * 25 + [False] * 75) * 10) is None
    # the patience holds for the share too
    assert stopped(40, every_second).startswith("81: the loss is not finite, and 40 of the 81 updates")
    assert stopped(100, every_second) is None


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["dies", "hangs"])
def test_when_a_process_dies_or_hangs_the_others_stop(tmp_path, fault):
    """Without a launcher, which would end the others. A process that hangs ends by its `reward_timeout`."""
    port = str(int(os.environ["MASTER_PORT"]) + 1)  # no other test worker uses it, and the system does not hand it out
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKERS / "worker.py"), "run_faults", fault, str(tmp_path)],
            env=ENVIRONMENT | group | {"RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    try:
        _, errors = processes[0].communicate(timeout=180)
        _, of_fault = processes[1].communicate(timeout=180)
    finally:
        for process in processes:
            process.kill()
    assert processes[0].returncode not in (0, None)
    assert processes[1].returncode == {"dies": 7, "hangs": 1}[fault]
    assert fault != "hangs" or "reward function 'reward' took longer than reward_timeout=5.0 seconds" in of_fault
    assert "STEP 2" not in errors and any(w in errors for w in ("onnection", "imed out", "imeout")), errors[-3000:]
