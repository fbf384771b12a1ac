"""Statistics of a generation batch whose rows lie on several processes; `test_batch_statistics.py` compares them."""

import torch
from accelerate import Accelerator
from worker import print_result, run_main

from trl_credit import ClipCovConfig, KLCovConfig
from trl_credit.config.rules import batch_statistics_of
from trl_credit.loss.statistics import over_processes
from trl_credit.support.processes import Processes


def main(folder: str) -> None:
    accelerator = Accelerator(cpu=True)
    processes = Processes(accelerator)
    g = torch.Generator().manual_seed(0)
    logp, lengths = -3.0 * torch.rand(8, 24, generator=g), torch.tensor([3, 9, 0, 11, 24, 20, 1, 17])
    advantages = torch.randn(8, generator=g)
    mask = (torch.arange(24) < lengths.unsqueeze(1)).float()
    rows = 8 // processes.count
    own = slice(processes.rank * rows, (processes.rank + 1) * rows)
    width = int(lengths[own].max())  # a process pads its rows to its own longest one
    found = {}
    for config_class in (ClipCovConfig, KLCovConfig):
        more = {"cov_range": [0.2, 3.0]} if config_class is ClipCovConfig else {}
        config = config_class(folder, report_to="none", use_cpu=True, bf16=False, cov_share=0.2, **more)
        function = batch_statistics_of(config.custom_function("credit"), config)
        tensors = {"logp_t": logp[own, :width], "advantages": advantages[own], "mask_t": mask[own, :width]}
        taken = over_processes(function, config, processes, **tensors, seed=5)
        assert taken.shape == (rows, width)
        found[config_class.__name__] = [[row + own.start, place] for row, place in taken.nonzero().tolist()]
    print_result(chosen=found)


if __name__ == "__main__":
    run_main(main)
