"""Texts of many responses, of which what begins alike is decoded once."""

from collections.abc import Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer, decoders
from transformers import PreTrainedTokenizerFast


PIECE = 64  # tokens
REPLACEMENT = "\ufffd"  # stands for bytes that are no character, such as the first bytes of one


def decode_rows(processor: Any, rows: Sequence[list[int]]) -> list[str]:
    """What `processor.batch_decode(rows, skip_special_tokens=True)` returns, from less work if possible.

    * A fast tokenizer whose text is that of its tokens, one after the other (byte-level BPE, or a decoder that only
      joins them): a row is decoded from where it differs from the row before.
    * Another fast tokenizer: rows are decoded whole, without transformers' look at every token.
    * All else, such as a processor, and a tokenizer that changes texts afterwards (`clean_up_tokenization_spaces`,
      or methods of its own): as transformers does it.
    """
    if not _adds_nothing(processor):
        return processor.batch_decode(rows, skip_special_tokens=True)
    backend = processor.backend_tokenizer
    if _joins(backend):
        return ["".join(text for _, text in pieces) for pieces in _joined(backend, rows)]
    return backend.decode_batch(list(rows), skip_special_tokens=True)


def text_pieces(processor: Any, ids: list[int]) -> list[tuple[list[int], str]]:
    """A response as pieces of token ids, each with its text; a single piece where texts of pieces cannot be joined."""
    if _adds_nothing(processor) and _joins(processor.backend_tokenizer):
        return next(_joined(processor.backend_tokenizer, [ids]))
    return [(ids, decode_prefix(processor, ids))]


def decode_prefix(processor: Any, ids: list[int]) -> str:
    """The text of token ids, as [`decode_rows`] has it."""
    return decode_rows(processor, [ids])[0]


def _joins(backend: Tokenizer) -> bool:
    return isinstance(backend.decoder, (decoders.ByteLevel, decoders.Fuse))


def _adds_nothing(processor: Any) -> bool:
    """Whether it is a fast tokenizer whose texts are those of its backend."""
    if not isinstance(processor, PreTrainedTokenizerFast) or processor.clean_up_tokenization_spaces:
        return False
    names = ("batch_decode", "decode", "_decode")
    return all(
        name not in vars(processor) and getattr(type(processor), name) is getattr(PreTrainedTokenizerFast, name)
        for name in names
    )


def _joined(backend: Tokenizer, rows: Sequence[list[int]]) -> Iterator[list[tuple[list[int], str]]]:
    """The pieces of each row and their texts. Those at the start of the row before are taken from there.

    A piece must end where a character does. One that ends in `REPLACEMENT` may not, and is made twice as long until it
    does or the row ends; so the tokens that are decoded stay below about twice those of the row.
    """
    before: list[tuple[list[int], str]] = []
    for ids in rows:
        begin, pieces = 0, []
        for piece, text in before:
            if text.endswith(REPLACEMENT) or ids[begin : begin + len(piece)] != piece:
                break
            pieces.append((piece, text))
            begin += len(piece)
        size = PIECE
        while begin < len(ids):
            piece = ids[begin : begin + size]
            text = backend.decode(piece, skip_special_tokens=True)
            if text.endswith(REPLACEMENT) and begin + size < len(ids):
                size *= 2
                continue
            pieces.append((piece, text))
            begin, size = begin + len(piece), PIECE
        before = pieces
        yield pieces
