"""The text of each token of a response. Concatenated, they are the response."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase


_BROKEN = "\ufffd"  # decoders return it for bytes that are not a character
_LONGEST = 8  # most tokens that one character may span


class TokenTexts:
    """Texts of tokens by a tokenizer, which decodes each token of the vocabulary only once.

    If the bytes of a character lie in several tokens, the last one has the character and the others have "".
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._known: dict[tuple[int, ...], str] = {}
        # some decoders drop the space before the first token: a token is decoded after one that has a text of its own
        special = set(tokenizer.all_special_ids)
        plain = (i for i in range(min(len(tokenizer), 1000)) if i not in special and self._decode([i]).isalnum())
        self._before = [first] if (first := next(plain, None)) is not None else []
        self._skip = len(self._decode(self._before))

    def of(self, ids: Sequence[int]) -> list[str]:
        """One text for each token id."""
        texts, begin = [], 0  # the first token of a character that may be incomplete
        for end in range(1, len(ids) + 1):
            text = self._text(tuple(ids[begin:end]))
            if text.endswith(_BROKEN) and end - begin < _LONGEST and end < len(ids):
                texts.append("")
            else:
                texts.append(text)
                begin = end
        return texts

    def _text(self, ids: tuple[int, ...]) -> str:
        if ids not in self._known:
            self._known[ids] = self._decode([*self._before, *ids])[self._skip :]
        return self._known[ids]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
