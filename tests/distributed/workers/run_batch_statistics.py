"""Statistics of a generation batch whose rows lie on several processes; `test_batch_statistics.py` compares them."""

import torch
from accelerate import Accelerator
from worker import print_result

from trl_credit import ClipCovConfig, CreditConfig, KLCovConfig
from trl_credit.config.algorithm import Algorithm
from trl_credit.credit.tokens import BatchTokens
from trl_credit.loss.statistics import over_processes
from trl_credit.support.processes import Processes


def main(folder: str) -> None:
    processes = Processes(Accelerator(cpu=True))
    g = torch.Generator().manual_seed(0)
    logp, lengths = -3.0 * torch.rand(8, 24, generator=g), torch.tensor([3, 9, 0, 11, 24, 20, 1, 17])
    advantages = torch.randn(8, generator=g)
    mask = (torch.arange(24) < lengths.unsqueeze(1)).float()
    rows = 8 // processes.count
    own = slice(processes.rank * rows, (processes.rank + 1) * rows)
    width = int(lengths[own].max())  # a process pads its rows to its own longest one
    ids = (torch.arange(8 * 24).view(8, 24) % 5).masked_fill(mask == 0, -1)
    parts = {"logp_t": logp, "mask_t": mask, "token_ids": ids + 3, "segment_ids": ids, "turn_ids": ids // 2}
    parts = {name: x[own, :width] for name, x in parts.items()} | {"advantage_t": advantages[own]}
    parts |= {"group_ids": torch.tensor([7, 7, 7, 4, 4, 4, 4, 0])[own], "rewards": advantages.relu()}
    parts |= {"reward_columns": advantages.view(8, 1), "columns": [{"n": n} for n in range(8)[own]]}
    places = {}
    for config_class in (ClipCovConfig, KLCovConfig):
        more = {"cov_range": [0.2, 3.0]} if config_class is ClipCovConfig else {}
        config = config_class(folder, report_to="none", use_cpu=True, bf16=False, cov_share=0.2, **more)
        batch = BatchTokens(**parts, generator=torch.Generator().manual_seed(5))
        taken = over_processes(config.algorithm(), config, processes, batch)
        assert taken.shape == (rows, width)
        places[config_class.__name__] = [[row + own.start, place] for row, place in taken.nonzero().tolist()]
    every = Algorithm(credit=print, name="every", statistics=all_fields, needs=frozenset({"logps", "columns"}))
    batch = BatchTokens(**parts, generator=torch.Generator().manual_seed(5))
    taken = over_processes(every, config, processes, batch)
    places["fields"] = [row[:n] for row, n in zip(taken.tolist(), lengths[own].tolist(), strict=True)]
    print_result(chosen=places)


def all_fields(config: CreditConfig, batch: BatchTokens) -> torch.Tensor:
    """A sum in which every attribute of the batch counts, at all rows at once."""
    by_row = batch.rewards + 3 * batch.reward_columns.sum(1) + 10 * batch.group_ids
    by_row = by_row + torch.tensor([row["n"] for row in batch.columns]) + torch.rand(1, generator=batch.generator)
    ids = batch.token_ids + 7 * batch.segment_ids + 50 * batch.turn_ids
    by_token = (batch.logp_t + batch.advantage_t + ids) * batch.mask_t + by_row.unsqueeze(1)
    return by_token + batch.mask_t.sum()
