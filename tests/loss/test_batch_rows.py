"""Batches as single rows without padding, and rows of several batches joined to one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trl_credit.loss import keys
from trl_credit.loss.batch_rows import join_rows, split_rows


PAD = 0


def batch_of(shapes, *, prompt_width, width, masked=(), seed=0):
    """A batch of TRL's form: `shapes` are the lengths of prompt and response of each row."""
    draw = torch.Generator().manual_seed(seed)
    prompt = {keys.PROMPT_IDS: (1, 9), keys.PROMPT_MASK: (1, 2)}
    response = {
        keys.COMPLETION_IDS: (1, 9),
        keys.COMPLETION_MASK: (1, 2),
        keys.TOOL_MASK: (0, 2),
        keys.TURN_IDS: (0, 3),
    }
    fill = {keys.PROMPT_IDS: PAD, keys.COMPLETION_IDS: PAD, keys.TOOL_MASK: 1, keys.TURN_IDS: -1}
    sizes = dict.fromkeys(prompt, prompt_width) | dict.fromkeys(response, width)
    data = {name: torch.full((len(shapes), size), fill.get(name, 0)) for name, size in sizes.items()}
    data |= {keys.OLD_LOGPS: torch.zeros(len(shapes), width), keys.NUM_ITEMS: torch.tensor(7)}
    data |= {keys.ENGINE_RATIO: torch.rand(len(shapes), 1, generator=draw)}
    data |= {keys.ADVANTAGES: torch.randn(len(shapes), generator=draw)}
    for i, (p, t) in enumerate(shapes):
        for name, between in (prompt | response).items():
            place = slice(prompt_width - p, None) if name in prompt else slice(t)
            data[name][i, place] = torch.randint(*between, (p if name in prompt else t,), generator=draw)
        data[keys.OLD_LOGPS][i, :t] = torch.randn(t, generator=draw)
    data[keys.COMPLETION_MASK][list(masked)] = 0
    return data


LENGTHS = st.tuples(st.integers(1, 5), st.integers(1, 6))
PADDING = {"pad_token_id": PAD, "per_row": (keys.ENGINE_RATIO,)}


@given(st.lists(LENGTHS, min_size=1, max_size=5), st.integers(0, 3), st.integers(0, 3), st.data())
def test_rows_that_are_joined_are_the_batch_without_idle_columns(shapes, more_prompt, more, data):
    masked = data.draw(st.sets(st.integers(0, len(shapes) - 1)))
    widths = {"prompt_width": max(p for p, _ in shapes), "width": max(t for _, t in shapes)}
    wide = {"prompt_width": widths["prompt_width"] + more_prompt, "width": widths["width"] + more}
    padded, tight = (batch_of(shapes, **w, masked=masked) for w in (wide, widths))
    order = data.draw(st.permutations(range(len(shapes))))
    joined = join_rows(split_rows(padded, rows=order, **PADDING), **PADDING)
    expected = {
        name: x[torch.tensor(order)] for name, x in tight.items() if name != keys.NUM_ITEMS
    }  # no entry of a row
    torch.testing.assert_close(joined, expected, rtol=0, atol=0)


def test_rows_of_two_batches():
    first = batch_of([(2, 3), (1, 1)], prompt_width=2, width=3)
    second = batch_of([(4, 6)], prompt_width=4, width=6, seed=1)
    rows = [*split_rows(first, rows=[1], **PADDING), *split_rows(second, rows=[0], **PADDING)]
    del rows[0][keys.OLD_LOGPS]  # an entry that only some rows have
    joined = join_rows(rows, **PADDING, multiple=4)
    assert joined[keys.PROMPT_IDS].shape == (2, 4) and joined[keys.COMPLETION_IDS].shape == (2, 8)
    assert joined[keys.PROMPT_IDS][0].tolist() == [0, 0, 0, int(first[keys.PROMPT_IDS][1, 1])]
    assert joined[keys.TURN_IDS][0].tolist()[1:] == [-1] * 7 and joined[keys.TOOL_MASK][0].tolist()[1:] == [1] * 7
    assert joined[keys.OLD_LOGPS][0].tolist() == [0.0] * 8
    assert torch.equal(joined[keys.OLD_LOGPS][1, :6], second[keys.OLD_LOGPS][0])
    assert joined[keys.ENGINE_RATIO].shape == (2, 1)


def test_a_correction_per_token_is_1_where_a_row_has_no_token():
    """TRL has it so, since VESPO sums the logarithms of whole rows."""
    rows = []
    for i, width in enumerate((2, 5)):
        data = batch_of([(1, width)], prompt_width=1, width=width, seed=i)
        data[keys.ENGINE_RATIO] = torch.full((1, width), 0.5)
        rows += split_rows(data, rows=[0], pad_token_id=PAD)
    assert join_rows(rows, pad_token_id=PAD)[keys.ENGINE_RATIO].tolist() == [[0.5] * 2 + [1.0] * 3, [0.5] * 5]


@pytest.mark.parametrize("width", [1, 3])
def test_a_response_that_ends_with_the_padding_token(width):
    """End and padding may be one token: the mask says that the last one was written."""
    data = batch_of([(1, width)], prompt_width=1, width=width)
    data[keys.COMPLETION_IDS][0, -1] = PAD
    assert len(split_rows(data, rows=[0], **PADDING)[0][keys.COMPLETION_IDS]) == width
