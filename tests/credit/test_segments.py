"""Partitions and the advantages of segments: the worked examples of the specification, and what holds for any row."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trl_credit import CreditConfig
from trl_credit.credit import segments
from trl_credit.credit.steps import split_gsm8k, split_math, split_newlines, step_positions
from trl_credit.loss.batch import segment_ratio
from trl_credit.rollouts.chain import find_boundaries


P = [0.99, 0.50, 0.95, 0.80, 0.97, 0.30, 0.99, 0.60, 0.98, 0.85, 0.99, 0.70]


def cut(p=P, **settings):
    logp_t = torch.tensor([p], dtype=torch.float64).log()
    mask_t = torch.ones_like(logp_t, dtype=torch.long)
    starts = segments.cutpoint_boundaries(logp_t, threshold=0.9, mask_t=mask_t, **settings)
    return starts[0].nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("settings", "code", "paper"),
    [
        ({"interval": 2}, [1, 5, 9], [0, 5, 9]),
        ({"interval": 5}, [1, 11], [0]),
        ({"interval": 100}, [1], [0]),
        ({"interval": 1}, [1, 3, 5, 7, 9, 11], [0, 3, 5, 7, 9]),
        ({"num_segments": 1}, [1], [0]),
        ({"num_segments": 4}, [1, 5, 9, 11], [0, 5, 7, 9]),
        ({"num_segments": 50}, [1, 3, 5, 7, 9, 11], [0, 3, 5, 7, 9]),
    ],
)
def test_cutpoints_of_the_worked_example(settings, code, paper):
    assert cut(include_last=True, from_first_cutpoint=True, **settings) == code
    assert cut(**settings) == paper


def test_cutpoint_at_the_first_token_and_at_the_threshold():
    p = [0.40, *P[1:]]
    assert cut(p, interval=5, include_last=True) == [0, 9]
    assert cut(p, interval=2) == [0, 3, 7]
    assert cut([0.5, 0.9, 0.5, 0.9], interval=1) == [0, 2]
    assert cut([0.9, 0.9, 0.5, 0.9], interval=1) == [0]  # 0.9 itself is no cutpoint
    assert cut([0.9, 0.9, 0.5, 0.9], interval=1, from_first_cutpoint=True) == [2]
    assert cut([0.99] * 4, interval=1) == [0]
    assert cut([0.99] * 4, interval=1, from_first_cutpoint=True) == []
    assert cut([0.5], interval=1) == [0]  # the only token of a response


@given(st.integers(1, 40), st.integers(1, 12))
def test_parts_differ_by_one_the_larger_first(n, parts):
    mask_t = torch.ones(1, n, dtype=torch.long)
    starts = segments.fixed_count_boundaries(parts, mask_t=mask_t)[0].nonzero().flatten().tolist()
    sizes = [b - a for a, b in zip(starts, [*starts[1:], n], strict=True)]
    assert starts[0] == 0 and len(sizes) == min(n, parts)
    assert sizes == sorted(sizes, reverse=True) and max(sizes) - min(sizes) <= 1
    p = [0.5] * n
    if n > 1:  # the same over cutpoints, of which the last token is none
        starts = segments.fixed_count_boundaries(parts, mask_t=mask_t[:, 1:])[0].nonzero().flatten().tolist()
        assert cut(p, num_segments=parts) == starts


def every_seventh(old_logp_t, *, mask_t, **kwargs):
    return mask_t.bool() & (torch.arange(mask_t.size(1)) % 7 == 0)


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({"segmentation": "fixed_length", "segment_length": 7}, [7, 7, 1]),
        ({"segmentation": "fixed_count", "num_segments": 15}, [1] * 15),
        ({"segmentation": "fixed_count", "num_segments": 4}, [4, 4, 4, 3]),
        ({"segmentation": f"{__name__}.every_seventh"}, [7, 7, 1]),
        ({"segmentation": "steps"}, [14, 1]),
        ({"segmentation": "cutpoints", "cutpoint_interval": 7}, [7, 8]),  # SPO excludes the last token as a cutpoint
    ],
    ids=str,
)
def test_a_segment_may_be_the_last_token_alone_unless_it_would_be_a_cutpoint(settings, sizes):
    logp_t, mask_t = torch.full((1, 17), -1.0), torch.tensor([[1] * 15 + [0] * 2])
    config = CreditConfig(report_to="none", rollouts="chain", loss_type="dapo", max_completion_length=20, **settings)
    text = {"completion_ids": [[0] * 14 + [1]], "decode": lambda ids: "".join(("a", "\nb")[i] for i in ids)}
    starts = find_boundaries(config, old_logp_t=logp_t, **text, mask_t=mask_t)[0][0].nonzero().flatten().tolist()
    assert [end - begin for begin, end in pairwise([*starts, 15])] == sizes


@given(st.data())
def test_segments_add_up_to_what_the_response_gained(data):
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=5))
    width = max([*lengths, 1]) + data.draw(st.integers(0, 3))
    mask_t = (torch.arange(width) < torch.tensor(lengths).unsqueeze(1)).long()
    g = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    boundaries = (torch.rand(len(lengths), width, generator=g) < 0.4) & mask_t.bool()
    positions = [row.nonzero().flatten().tolist() for row in boundaries]
    assert torch.equal(segments.position_boundaries(positions, mask_t=mask_t), boundaries)
    value_t = torch.rand(len(lengths), width, generator=g, dtype=torch.float64)
    final = torch.rand(len(lengths), generator=g, dtype=torch.float64)
    a_t = segments.segment_advantages(value_t, boundaries=boundaries, final_value=final, mask_t=mask_t)
    ids = segments.segment_ids(boundaries)
    starts = segments.value_at_segment_start(value_t, boundaries=boundaries)
    for row, length in enumerate(lengths):
        places = positions[row]
        values = [value_t[row, b].item() for b in places] + [final[row].item()]
        for t in range(width):
            k = sum(b <= t for b in places) - 1
            assert ids[row, t] == k
            inside = t < length and k >= 0
            assert a_t[row, t] == (values[k + 1] - values[k] if inside else 0.0)
            assert starts[row, t] == (values[k] if k >= 0 else 0.0)
        total = sum(a_t[row, b].item() for b in places)
        assert total == pytest.approx(final[row].item() - values[0] if places else 0.0)


def test_tail_probability_bounds_the_value():
    logp_t = torch.tensor([[0.5, 0.99, 1.0, 1.0, 0.3]]).log()
    mask_t = torch.tensor([[1, 1, 1, 1, 0]])
    tail = segments.tail_log_probability(logp_t, mask_t=mask_t).exp()
    torch.testing.assert_close(tail, torch.tensor([[0.495, 0.99, 1.0, 1.0, 1.0]]))


def test_engine_correction_by_segment():
    old = torch.tensor([[-1.0, -2.0, -3.0, -4.0, -9.0]])
    sampling = torch.tensor([[-1.5, -2.0, math.nan, -3.0, 0.0]])
    ids = torch.tensor([[0, 0, 1, 1, -1]])

    def ratio(mode, low=None, high=None):
        settings = {"segment_ids": ids, "mode": mode, "low": low, "high": high}
        return segment_ratio(old, sampling, **settings)[0].log().tolist()

    assert ratio("token_truncate") == pytest.approx([0.5, 0.0, 0.0, -1.0, 0.0])
    assert ratio("sequence_truncate") == pytest.approx([0.5, 0.5, -1.0, -1.0, 0.0])
    assert ratio("sequence_truncate", 0.5, 1.2) == pytest.approx([math.log(1.2)] * 2 + [math.log(0.5)] * 2 + [0.0])
    assert ratio("sequence_mask", 0.5, 2.0) == pytest.approx([0.5, 0.5, -math.inf, -math.inf, 0.0])
    assert ratio("token_mask", None, 1.2) == pytest.approx([-math.inf, 0.0, 0.0, -1.0, 0.0])


# steps


def test_gsm8k_of_the_worked_example():
    assert split_gsm8k("a=1+1=2\nb=2*3=6\n#### 6") == [0, 7, 22]
    assert split_gsm8k("\n\na\nb\n\n") == [0, 3, 7]
    assert split_gsm8k("a\n\nb") == [0, 1, 2, 4]  # an empty line between two steps is one
    assert split_gsm8k("") == [0, 0] or split_gsm8k("") == [0]
    assert split_gsm8k("\n#### 6") == [0, 7]
    with pytest.raises(ValueError, match="more than once"):
        split_gsm8k("a\n#### 6\nb\n#### 7")
    assert split_newlines("x") == [0, 1]


def test_math_steps_keep_formulas_whole():
    text = (
        "We have $x = 2. Y$ and hence, by Dr. Lagrange, the claim. Therefore the answer is found.\nIt is $4$.\n"
        "\\[ a = b. \\] And so on it goes for a while, with a comma, and another one, until a hundred characters "
        "have been used up at last."
    )
    offsets = split_math(text)
    pieces = [text[a:b] for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
    assert "".join(pieces) == text
    assert any(p.endswith("the claim. ") for p in pieces)
    assert not any(p.count("$") % 2 or p.count("\\[") != p.count("\\]") for p in pieces)
    assert max(map(len, pieces)) <= 140
    assert split_math("") == [0, 0] or split_math("") == [0]


def test_hostile_text_does_not_hang_the_splitter():
    for text in ("$" * 20_001, "\\(" * 10_000, "\\begin{a}" * 3_000, "a. " * 10_000, "\n" * 20_000, "[asy]" * 5_000):
        split_math(text)


LONG = "A" + "a" * 44 + ", " + "b" * 50 + ", " + "c" * 45 + "."  # 145 characters, which may be cut at 47 and 99
FIRST = "This is where it all begins. "


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        (LONG, [0, 47, 145]),  # nearest to the middle
        ("a" * 43 + ", " + "b" * 25 + ", " + "c" * 60 + ".", [0, 72, 133]),
        (FIRST + "Yes", [0, 32]),  # a short rest belongs to the step before it
        (FIRST + LONG, [0, 29, 76, 174]),
        ("a" * 38 + ", " + "b" * 70 + ".", [0, 40, 111]),  # 40 characters are enough for a half
        ("a" * 37 + ", " + "b" * 71 + ".", [0, 111]),
        ("a" * 71 + ", " + "b" * 36 + ".", [0, 110]),
        ("a" * 50 + " to " + "b" * 10 + ", " + "c" * 50 + ".", [0, 66, 117]),  # a comma comes before other places
    ],
)
def test_a_long_step_is_halved_near_its_middle(text, offsets):
    assert split_math(text) == offsets


def test_steps_fall_on_the_tokens_in_which_they_begin():
    pieces = ["ab", "\nc", "d", "\n", "e", ""]  # the last is an end token, which has no text

    def decode(ids):
        return "".join(pieces[i] for i in ids)

    assert step_positions(list(range(6)), decode=decode, splitter=split_newlines) == [0, 1, 3]
    # a step that begins inside a token begins with the next one
    assert step_positions(list(range(6)), decode=decode, splitter=lambda text: [0, 1, 4, len(text)]) == [0, 1, 2]
    assert step_positions([5], decode=decode, splitter=lambda text: [0, 0]) == [0]  # an end token alone
    numbers = [torch.tensor(x).numpy()[()] for x in (0, 2, 6)]  # as a splitter that works with arrays returns them
    assert step_positions(list(range(6)), decode=decode, splitter=lambda text: numbers) == [0, 1, 4]
    for bad in ([0, 99], [3, 1], [0, 0, 2], [0.5]):
        with pytest.raises(TypeError, match="ascending"):
            step_positions(list(range(6)), decode=decode, splitter=lambda text, bad=bad: bad)


def test_best_of_value():
    v = torch.tensor([0.5, 0.75, 0.0, 0.25], dtype=torch.float64)
    assert segments.best_of_value(v, best_of=4).tolist() == [0.9375, 0.99609375, 0.0, 0.68359375]
    rounded = torch.tensor([1.1] * 10).mean() / 1.1  # above 1 by a rounding
    assert segments.best_of_value(rounded, best_of=4) <= 1.0
    assert segments.best_of_value(torch.tensor([torch.nan]), best_of=4).isnan()
    torch.testing.assert_close(segments.best_of_value(v, best_of=1), v)
