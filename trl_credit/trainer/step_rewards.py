"""Places rewards along responses on tokens, without tokenising a text again."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import torch

from ..rewards.guard import RewardError, shown_prompt
from ..rewards.steps import Given, StepLedger, StepRewards
from ..rollouts.returns import Placed
from .decoding import decode_prefix, text_pieces


def place_steps(
    given: Sequence[Given],
    ledger: StepLedger,
    *,
    name: str,
    prompts: Sequence[Any],
    completions: Sequence[Any],
    completion_ids: Sequence[list[int]],
    truncated: Sequence[bool],
    processor: Any,
) -> tuple[Placed, int]:
    """Where the rewards of one function lie, and how many steps end after a truncated response.

    A reward lies at the last token of its step that the policy wrote. Rewards at one token add up; of scores of states
    the later one counts.

    Args:
        given (sequence of [`~trl_credit.rewards.steps.Given`]):
            What function `name` returned for each response.
        ledger ([`StepLedger`]):
            Says which tokens the policy wrote, and whether rewards score states.
        truncated (sequence of `bool`):
            Whether each response was cut off. Its steps may end later than it does; others may not.

    Raises:
        RewardError: an end is not in the response, or characters cannot be counted in a conversation.
    """
    placed, late = Placed([], [], []), 0
    for i, reward in enumerate(given):
        if isinstance(reward, torch.Tensor):
            where = ledger.scored(reward, i).nonzero().flatten()
            placed.positions.append(where)
            placed.values.append(reward[where])
            placed.first.append(torch.nan)
            continue
        written = torch.ones(len(completion_ids[i])) if ledger.written is None else torch.tensor(ledger.written[i])
        own = written.nonzero().flatten()
        try:
            if not isinstance(reward, StepRewards):
                counts, values, beyond = ([len(written)], [reward], 0) if reward is not None else ([], [], 0)
            else:
                known = [(end, x) for end, x in zip(reward.ends, reward.values, strict=True) if x is not None]
                values = [x for _, x in known]
                ends = [end for end, _ in known]
                units = Units(completions[i], completion_ids[i], written, processor)
                counts, beyond = units.tokens(ends, reward.unit, truncated=truncated[i], from_start=ledger.of_states)
        except ValueError as error:
            where = f"response {i} of the batch, to prompt {shown_prompt(prompts, i)}"
            raise RewardError(f"reward function {name!r} returned {error} for {where}.") from error
        late += beyond
        first, found = torch.nan, {}
        # the last token of the policy among the first `count`
        before = torch.searchsorted(own, torch.tensor(counts, dtype=torch.long)) - 1
        tokens = own[before.clamp(min=0)].tolist() if len(own) else []
        for count, token, value in zip(counts, tokens, values, strict=False):
            if count == 0:
                first = value
            else:
                found[token] = value + (0.0 if ledger.of_states else found.get(token, 0.0))
        placed.positions.append(torch.tensor(sorted(found), dtype=torch.long))
        placed.values.append(torch.tensor([found[token] for token in sorted(found)], dtype=torch.float64))
        placed.first.append(first)
    return placed, late


class Units:
    """Counts the characters, tokens and turns of one response.

    Args:
        completion (`str` or `list[dict]`):
            The response as reward functions get it.
        ids (`list[int]`):
            Its token ids.
        written (`torch.Tensor`):
            Which of them the policy wrote, shape (T,).
        processor:
            The tokenizer or processor that decodes it.
    """

    def __init__(self, completion: str | list[dict], ids: list[int], written: torch.Tensor, processor: Any) -> None:
        self._completion, self._ids, self._written, self._processor = completion, ids, written.bool(), processor

    def tokens(self, ends: list[int], unit: str, *, truncated: bool, from_start: bool) -> tuple[list[int], int]:
        """How many tokens come before each end, and how many ends lie after a truncated response.

        Raises:
            ValueError: an end is 0 and not `from_start`, or lies after a response that was not truncated.
        """
        if not from_start and ends and ends[0] == 0:
            raise ValueError("a step that ends after 0 characters, tokens or turns (only returns='difference' has one)")
        pieces = text_pieces(self._processor, self._ids) if unit == "char" else []
        text = "".join(piece for _, piece in pieces)
        shown, begin = self._shown(text) if unit == "char" and ends else ("", 0)
        turn_ends = self._turn_ends() if unit == "turn" else []
        length = {"char": len(shown), "token": len(self._ids), "turn": len(turn_ends)}[unit]
        inside = [end for end in ends if end <= length]
        if len(inside) < len(ends) and not truncated:
            raise ValueError(f"a step that ends after {ends[-1]} {_NAMES[unit]}, of which there are {length},")
        if unit == "char":
            found = _tokens_before(pieces, [begin + end if end else 0 for end in inside], text, self._processor)
            if inside and begin + inside[-1] == len(text):  # tokens without text, such as the end of sequence
                found[-1] = len(self._ids)
        else:
            found = inside if unit == "token" else [turn_ends[end - 1] if end else 0 for end in inside]
        return found + [len(self._ids)] * (len(ends) - len(inside)), len(ends) - len(inside)

    def _turn_ends(self) -> list[int]:
        after = torch.nn.functional.pad(self._written[1:], (0, 1))
        return ((self._written & ~after).nonzero().flatten() + 1).tolist()

    def _shown(self, text: str) -> tuple[str, int]:
        """The text that reward functions see, and where it begins in `text`."""
        shown = self._completion
        if not isinstance(shown, str):
            contents = [message.get("content") for message in shown]
            if len(contents) != 1 or not isinstance(contents[0], str):
                of = f"of {len(contents)} messages" if len(contents) != 1 else "whose content is no text"
                raise ValueError(f"steps in characters of a conversation {of} (set unit='turn' or 'token')")
            shown = contents[0]
        begin = text.find(shown)
        if begin < 0 or text.find(shown, begin + 1) >= 0 and shown != text:
            raise ValueError(
                "steps in characters of a text that is not once in the decoded response (set unit='token')"
            )
        return shown, begin


_NAMES = {"char": "characters", "token": "tokens", "turn": "turns"}


def _tokens_before(pieces: list[tuple[list[int], str]], offsets: list[int], text: str, processor: Any) -> list[int]:
    """For each offset into the text, ascending, the least number of tokens whose text contains all before it."""
    found, place, tokens, characters = [], 0, 0, 0
    for offset in offsets:
        while place < len(pieces) and characters + len(pieces[place][1]) < offset:
            tokens, characters = tokens + len(pieces[place][0]), characters + len(pieces[place][1])
            place += 1
        wanted = text[characters:offset]
        if not wanted or place == len(pieces):
            found.append(tokens)
            continue
        ids = pieces[place][0]

        def is_enough(n: int, ids: list[int] = ids, wanted: str = wanted) -> bool:
            return decode_prefix(processor, ids[:n]).startswith(wanted)  # not its length: � stands for half a character

        found.append(tokens + bisect_left(range(len(ids)), True, key=is_enough))
    return found
