"""Places rewards along responses on tokens, without tokenising a text again."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, compress
from typing import Any, NamedTuple

import torch
from tokenizers.decoders import ByteLevel, DecodeStream, Fuse
from transformers import PreTrainedTokenizerBase

from ..rewards.guard import RewardError, shown_prompt
from ..rewards.steps import ResponseReward, StepLedger, StepRewards
from ..rollouts.returns import Placed


_NAMES = {"char": "characters", "token": "tokens", "turn": "turns"}


class Rollouts(NamedTuple):
    """Responses of this process, as TRL gives them to reward functions.

    Attributes:
        examples: Rows of the data set.
        prompts: Texts or messages, with what `reset` of an environment added.
        completions: Texts or messages.
        completion_ids: Tokens of the responses, with those of tools.
        written: Which tokens of each response the policy wrote (1) and which a tool (0).
    """

    examples: list[dict[str, Any]]
    prompts: list[Any]
    completions: list[Any]
    completion_ids: list[list[int]]
    written: list[list[int]]


def place_steps(
    rewards: Sequence[ResponseReward],
    ledger: StepLedger,
    batch: Rollouts,
    truncated: Sequence[bool],
    *,
    name: str,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[Placed, int]:
    """Where the rewards of one function lie, and how many steps end after a truncated response.

    A reward lies at the last token of its step that the policy wrote.

    Args:
        rewards (sequence of [`~trl_credit.rewards.steps.ResponseReward`]):
            What function `name` returned for each response.
        ledger ([`StepLedger`]):
            Says which tokens have a value, and whether rewards score states.
        batch ([`Rollouts`]):
            The responses.
        truncated (sequence of `bool`):
            Whether each response was cut off. Its steps may end later than it does; others may not.

    Raises:
        RewardError: an end is not in the response, or characters cannot be counted in a conversation.
    """
    placed, late = Placed([], [], []), 0
    for i, (reward, ids) in enumerate(zip(rewards, batch.completion_ids, strict=True)):
        first = torch.nan
        if isinstance(reward, torch.Tensor):
            positions = ledger.scored(reward, i).nonzero().flatten()
            values = reward[positions]
        else:
            if not isinstance(reward, StepRewards):  # one number, at the end
                reward = StepRewards([len(ids)], [reward] if ids else [None], unit="token")
            own = list(compress(range(len(ids)), batch.written[i]))  # tokens of the policy
            known = [(end, x) for end, x in zip(reward.ends, reward.values, strict=True) if x is not None]
            ends = [end for end, _ in known]
            try:
                if not ledger.of_states and 0 in ends:
                    raise ValueError("a step that ends after 0 tokens (only returns='difference' has one)")
                if reward.unit == "char":
                    counts = _token_counts(ends, batch.completions[i], ids, tokenizer)
                else:  # a turn ends where the token after it is not the policy's
                    places = {t + 1 for t in own} - {*own} if reward.unit == "turn" else range(1, len(ids) + 1)
                    units = [0, *sorted(places)]
                    counts = [units[end] for end in ends if end < len(units)]
                if len(counts) < len(ends) and not truncated[i]:
                    raise ValueError(f"a step that ends after {ends[-1]} {_NAMES[reward.unit]}, behind the end,")
            except ValueError as error:
                where = f"response {i} of the batch, to prompt {shown_prompt(batch.prompts, i)}"
                raise RewardError(f"reward function {name!r} returned {error} for {where}.") from error
            late += len(ends) - len(counts)
            counts += [len(ids)] * (len(ends) - len(counts))
            if counts[:1] == [0]:  # the state after the prompt
                first, counts, known = known[0][1], counts[1:], known[1:]
            # the last one of them among the first `count` of the response
            tokens = [own[max(bisect_left(own, count) - 1, 0)] for count in counts] if own else []
            by_token = merged(tokens, [x for _, x in known[: len(tokens)]], of_states=ledger.of_states)
            positions = torch.tensor([*by_token], dtype=torch.long)
            values = torch.tensor([*by_token.values()], dtype=torch.float64)
        placed.positions.append(positions)
        placed.values.append(values)
        placed.first.append(first)
    return placed, late


def merged(places: Sequence[int], values: Sequence[float | None], *, of_states: bool) -> dict[int, float]:
    """The rewards at each place, ascending, without those not scored: their sum, or of scores of states the last."""
    by_place: dict[int, float] = {}
    for place, value in zip(places, values, strict=True):
        if value is not None:
            by_place[place] = value + (0.0 if of_states else by_place.get(place, 0.0))
    return dict(sorted(by_place.items()))


def _token_counts(
    ends: list[int], completion: str | list[dict], ids: list[int], tokenizer: PreTrainedTokenizerBase
) -> list[int]:
    """How many tokens of a response come before each end in characters; ends behind the response are left out.

    Raises:
        ValueError: characters of this response cannot be counted.
    """
    text = tokenizer.decode(ids, skip_special_tokens=True)
    shown = completion[0].get("content") if len(completion) == 1 and not isinstance(completion, str) else completion
    if not isinstance(shown, str):
        raise ValueError("steps in characters of more than one message of text (set unit='turn' or 'token')")
    if (begin := text.find(shown)) < 0 or (text.find(shown, begin + 1) >= 0 and shown != text):
        raise ValueError("steps in characters of a text that is not once in the decoded response (set unit='token')")
    ends = [end for end in ends if end <= len(shown)]
    counts = _tokens_with([begin + end if end else 0 for end in ends], text, ids, tokenizer)
    if ends and begin + ends[-1] == len(text):  # tokens without text, such as the end of sequence
        counts[-1] = len(ids)
    return counts


def _tokens_with(offsets: list[int], text: str, ids: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """For each offset into the text, the least number of tokens whose text contains all before it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and isinstance(backend.decoder, (ByteLevel, Fuse)):
        stream = DecodeStream(skip_special_tokens=True)
        parts = [stream.step(backend, token) or "" for token in ids]  # a character comes with its last token
        if text.startswith("".join(parts)):  # or the tokenizer changes texts afterwards
            lengths = list(accumulate(map(len, parts), initial=0))
            return [min(bisect_left(lengths, offset), len(ids)) for offset in offsets]

    def has_text(count: int, offset: int) -> bool:  # not by its length: � stands for half a character
        return tokenizer.decode(ids[:count], skip_special_tokens=True).startswith(text[:offset])

    return [bisect_left(range(len(ids)), True, key=lambda n, end=offset: has_text(n, end)) for offset in offsets]
