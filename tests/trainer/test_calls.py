"""Collective calls and waits for the device, against TRL's own trainer in the same setting, with upper bounds."""

import sys
from collections import Counter

import accelerate.utils
import pytest
import torch
import trl
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import TrainerCallback
from worker import parity

import trl_credit


COLLECTIVES = ("gather", "gather_object", "reduce", "broadcast", "broadcast_object_list")
WAITS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}  # item, bool, int, float; x[mask]
OF_TRL = ("loss_type", "beta", "scale_rewards", "epsilon", "epsilon_high", "delta", "importance_sampling_level")


class Counts(TorchDispatchMode, TrainerCallback):
    """Counts calls by where they are made: (step, "batch" or "step", kind).

    `tolist`, `cpu` and `numpy` of a tensor that is on the CPU already are not seen by a dispatch mode, nor a collective
    call of a single process by the backend: both are counted where they are called.
    """

    def __init__(self, monkeypatch) -> None:
        super().__init__()
        self.found, self.place, self.step = Counter(), "step", 0
        for name in COLLECTIVES:
            original = getattr(accelerate.utils, name)
            counted = self.counting(original, "objects" if "object" in name else "tensors")
            for module in list(sys.modules.values()):
                if module is not None and vars(module).get(name) is original:
                    monkeypatch.setattr(module, name, counted)
        for name in ("tolist", "cpu", "numpy"):
            monkeypatch.setattr(torch.Tensor, name, self.counting(getattr(torch.Tensor, name), "waits"))
        for name, place in (("_prepare_inputs", "batch"), ("_generate_single_turn", None)):
            monkeypatch.setattr(trl.GRPOTrainer, name, self.placed(getattr(trl.GRPOTrainer, name), place))

    def counting(self, function, kind):
        def counted(*args, **kwargs):
            self.count(kind)
            return function(*args, **kwargs)

        return counted

    def placed(self, function, place):
        def inside(*args, **kwargs):
            before, self.place = self.place, place
            try:
                return function(*args, **kwargs)
            finally:
                self.place = before

        return inside

    def count(self, kind: str) -> None:
        if self.place is not None:
            self.found[self.step, self.place, kind] += 1

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in WAITS:
            self.count("waits")
        return func(*args, **(kwargs or {}))

    def on_step_begin(self, args, state, control, **kwargs):
        self.step = state.global_step + 1


def counts_of(trainer, monkeypatch) -> dict[str, tuple[int, int, int]]:
    """Tensors, objects and waits of the one generation batch, and of the second of its two optimizer steps."""
    with monkeypatch.context() as patch:
        counts = Counts(patch)
        trainer.add_callback(counts)
        prepare = trainer._prepare_inputs
        patch.setattr(trainer, "_prepare_inputs", counts.placed(prepare, "batch"))
        with counts:
            trainer.train()
    kinds = ("tensors", "objects", "waits")
    return {
        "batch": tuple(counts.found[1, "batch", kind] for kind in kinds),
        "step": tuple(counts.found[2, "step", kind] + counts.found[2, "batch", kind] for kind in kinds),
    }


SIZES = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 4, "max_steps": 2}
OFF = {"skip_zero_advantage": "off", "shared_prefix": "off"}
STEP = (1, 0, 1)  # one reduction of everything and one wait for it, whatever the preset
CHAIN = (4, 0, 30)
BATCH = {"opo": (2, 0, 9), "ha_dw": (1, 0, 11), "spo_chain": CHAIN, "vine_ppo": CHAIN, "spo_tree": (6, 1, 50)}
STATISTICS = (3, 0, 11)  # the width of all processes, and a gather of tokens
BATCH |= {"clip_cov": STATISTICS, "kl_cov": STATISTICS}
TEACHER = (1, 0, 22)  # ids of contexts and responses; with "success" a gather of lengths, and of the texts
BATCH |= {"opd": TEACHER, "rlsd": TEACHER, "sdpo": (2, 1, 30)}
THEIRS: dict = {}  # counts of TRL's own trainer, by setting
BATCH_OF_OTHERS = (1, 0, 10)  # a gather of what the loss divides by, of groups, and of advantages for the table


@pytest.mark.slow
@pytest.mark.parametrize("algo", sorted(trl_credit.ALGORITHMS))
def test_calls_of_a_step_and_of_a_batch_beside_those_of_trl(make_trainer, tmp_path, monkeypatch, algo):
    """Tensors, objects, waits. On a device most waits of a batch are none: they are for what is on the CPU anyway."""
    rewards = {"reward_funcs": parity} if algo == "sdpo" else {}  # which needs right responses
    ours = make_trainer(algo, **OFF, **SIZES, **rewards)
    counts = counts_of(ours, monkeypatch)
    same = {name: getattr(ours.args, name) for name in OF_TRL}
    key = tuple(map(str, same.values()))
    if key not in THEIRS:
        theirs = make_trainer((trl.GRPOConfig, trl.GRPOTrainer), output_dir=str(tmp_path / "theirs"), **SIZES, **same)
        THEIRS[key] = counts_of(theirs, monkeypatch)
    more = {place: tuple(a - b for a, b in zip(counts[place], THEIRS[key][place], strict=True)) for place in counts}
    bounds = {"step": STEP, "batch": BATCH.get(algo, BATCH_OF_OTHERS)}
    for place, bound in bounds.items():
        assert all(a <= b for a, b in zip(more[place], bound, strict=True)), (place, more, bound)
