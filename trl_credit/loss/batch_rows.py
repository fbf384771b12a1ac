"""A generation batch as single rows without padding, and back: batches of several engine calls can then be joined."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from . import keys


Row = dict[str, torch.Tensor]  # entry → the row's part, without padding, on the CPU


def split_rows(
    data: Mapping[str, Any], *, rows: Sequence[int], pad_token_id: int, per_row: Sequence[str] = ()
) -> list[Row]:
    """Rows of a batch, each entry cut to the tokens of the row.

    A response ends at the last token that its mask keeps or that is not padding: TRL also masks truncated responses.

    Args:
        data (`Mapping`):
            TRL's dict with our entries, of text alone. Entries without a dimension for rows are left out.
        rows (sequence of `int`):
            Numbers of the wanted rows.
        pad_token_id (`int`):
            The padding token.
        per_row (sequence of `str`, *optional*):
            Entries whose second dimension is not that of tokens.
    """
    ids = data[keys.COMPLETION_IDS]
    used = (ids != pad_token_id) | data[keys.COMPLETION_MASK].bool()
    lengths = (used * torch.arange(1, ids.size(1) + 1, device=ids.device)).amax(-1).clamp(min=1).tolist()
    starts = data[keys.PROMPT_MASK].argmax(-1).tolist()
    entries = {name: x for name, x in data.items() if isinstance(x, torch.Tensor) and x.dim() > 0}
    index = torch.tensor(rows, dtype=torch.long, device=ids.device)
    taken = {name: x.detach().index_select(0, index).cpu() for name, x in entries.items()}

    def of_row(name: str, part: torch.Tensor, row: int) -> torch.Tensor:
        whole = part.dim() == 0 or name in per_row
        own = part if whole else part[starts[row] :] if name in keys.OF_PROMPT else part[: lengths[row]]
        return own.clone()  # not a view that keeps the whole batch

    return [{name: of_row(name, x[place], row) for name, x in taken.items()} for place, row in enumerate(rows)]


def join_rows(
    rows: Sequence[Row],
    *,
    pad_token_id: int,
    multiple: int | None = None,
    per_row: Sequence[str] = (),
    device: torch.device | str = "cpu",
) -> dict[str, torch.Tensor]:
    """The batch of rows of [`split_rows`], padded to the longest row, or up to a `multiple`: prompts on the left,
    responses on the right. An entry that only some rows have is filled in the others."""
    joined = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        known = next(row[name] for row in rows if name in row)
        fill = keys.FILL.get(name, 0)
        fill = pad_token_id if fill == "pad" else fill
        if known.dim() == 0 or name in per_row:
            parts = [row.get(name, torch.full_like(known, fill)) for row in rows]
            joined[name] = torch.stack(parts).to(device)
            continue
        lengths = [len(row[keys.PROMPT_IDS if name in keys.OF_PROMPT else keys.COMPLETION_IDS]) for row in rows]
        empty = [known.new_full((length, *known.shape[1:]), fill) for length in lengths]
        parts = [row.get(name, x) for row, x in zip(rows, empty, strict=True)]
        side = "left" if name in keys.OF_PROMPT else "right"
        table = pad_sequence(parts, batch_first=True, padding_value=fill, padding_side=side)
        missing = -table.size(1) % (multiple or 1)
        around = (missing, 0) if side == "left" else (0, missing)
        joined[name] = pad(table, (*(0, 0) * (table.dim() - 2), *around), value=fill).to(device)
    return joined
