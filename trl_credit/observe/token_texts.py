"""The text of each token of a response. Concatenated, they are the response."""

from collections.abc import Iterable, Sequence

from transformers import PreTrainedTokenizerBase


_BROKEN = "\ufffd"  # decoders return it for bytes that are not a character
_LONGEST = 8  # most tokens that one character may span


class TokenTexts:
    """Texts of tokens by a tokenizer, which decodes each token of the vocabulary only once.

    If the bytes of a character lie in several tokens, the last one has the character and the others have "".
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}
        self._incomplete: set[int] = set()  # tokens that are not whole characters
        # some decoders drop the space before the first token: a token is decoded after one that has a text of its own
        special = set(tokenizer.all_special_ids)
        plain = (i for i in range(min(len(tokenizer), 1000)) if i not in special and self._decode([i]).isalnum())
        self._before = [first] if (first := next(plain, None)) is not None else []
        self._skip = len(self._decode(self._before))

    def of(self, ids: Sequence[int]) -> list[str]:
        """One text for each token id."""
        for token in set(ids) - self._known.keys():
            self._known[token] = text = self._text([token])
            if _BROKEN in text:
                self._incomplete.add(token)
        texts = [self._known[token] for token in ids]
        if self._incomplete.isdisjoint(ids):
            return texts
        begin = None  # first token of an incomplete character
        for place, text in enumerate(texts):
            if begin is None and _BROKEN in text:
                begin = place
            if begin is None:
                continue
            whole = self._text(ids[begin : place + 1])
            if not whole.endswith(_BROKEN) or place - begin + 1 == _LONGEST or place + 1 == len(ids):
                texts[begin : place + 1] = [""] * (place - begin) + [whole]
                begin = None
        return texts

    def _text(self, ids: Iterable[int]) -> str:
        return self._decode([*self._before, *ids])[self._skip :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
