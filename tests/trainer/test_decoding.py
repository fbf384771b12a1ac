"""Texts of responses that begin alike: those of decoding each whole, from less work."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from trl_credit.demo import demo_model_path
from trl_credit.trainer import decoding
from trl_credit.trainer.decoding import decode_rows


TEXTS = [
    "Let x = 3. Then 2x + 1 = 7, so the answer is \\boxed{7}.",
    "Η λύση είναι 42 · Ответ: 17 – 答案是十二。 ¿Qué? naïve café",
    "👩‍🔬🏳️‍🌈 😀 ½ ≤ √2 \t\n\n  spaces , and . punctuation ' s",
]


def byte_level() -> PreTrainedTokenizerFast:
    """As most models have: a character may be several tokens. No decoder cleans up."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet, special = pre_tokenizers.ByteLevel.alphabet(), ["<pad>", "<end>"]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    backend.train_from_iterator(TEXTS[:1], trainer)
    backend.add_tokens([AddedToken("<think> é", normalized=False)])  # no special token, and not of bytes
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<end>")


def sentence_pieces() -> PreTrainedTokenizerFast:
    """As Llama 2 has: a space in front of words, unknown characters by bytes, the first space is cut off."""
    vocabulary = [("<unk>", 0.0), ("<end>", 0.0), *((f"<0x{b:02X}>", -9.0) for b in range(256))]
    vocabulary += [(piece, -3.0) for piece in ("▁", "▁the", "▁answer", "is", "▁x", "a", "b", "7", "é", ",", "▁.")]
    backend = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="<end>")


def word_pieces(**settings) -> PreTrainedTokenizerFast:
    words = ["[UNK]", "[PAD]", "the", "answer", "##s", "is", "7", ".", ",", "'", "s", "do", "n", "t", "not", "?"]
    backend = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]", **settings)


def without_decoder() -> PreTrainedTokenizerFast:
    """Tokens are joined by spaces."""
    words = {word: i for i, word in enumerate(["[UNK]", "one", "two", "three", "four"])}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="[UNK]")))


class Shouting(PreTrainedTokenizerFast):
    """Has a method of its own."""

    def _decode(self, *args, **kwargs) -> str:
        return super()._decode(*args, **kwargs).upper()


TOKENIZERS = {
    "byte level": byte_level(),
    "embedded": AutoTokenizer.from_pretrained(demo_model_path()),
    "sentence pieces": sentence_pieces(),
    "word pieces": word_pieces(),
    "word pieces, cleaned up": word_pieces(clean_up_tokenization_spaces=True),
    "no decoder": without_decoder(),
    "a method of its own": Shouting(tokenizer_object=byte_level().backend_tokenizer),
}


@st.composite
def rows_of(draw, size: int) -> list[list[int]]:
    """Rows that share beginnings with the rows before them, of random tokens: also bytes that are no character."""
    token = st.integers(0, size - 1)
    rows = [draw(st.lists(token, max_size=40))]
    for _ in range(draw(st.integers(0, 6))):
        kept = draw(st.integers(0, len(rows[-1])))
        rows.append(rows[-1][:kept] + draw(st.lists(token, max_size=12)))
    return rows


@pytest.mark.parametrize("piece", [1, 2, 5, 64])
@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=25)  # of each of 28 pairs
@given(data=st.data())
def test_texts_are_those_of_whole_rows(kind, piece, data):
    tokenizer, before = TOKENIZERS[kind], decoding.PIECE
    rows = data.draw(rows_of(len(tokenizer)))
    decoding.PIECE = piece
    try:
        assert decode_rows(tokenizer, rows) == tokenizer.batch_decode(rows, skip_special_tokens=True)
    finally:
        decoding.PIECE = before


@pytest.mark.parametrize("text", [*TEXTS, "\ufffd" * 90, "é" * 200])
def test_texts_of_several_bytes_per_character_are_cut_anywhere(text):
    tokenizer = TOKENIZERS["byte level"]
    ids = tokenizer(text)["input_ids"]
    rows = [ids[:k] for k in range(len(ids) + 1)] + [ids[:k] + ids for k in range(0, len(ids), 3)]
    assert decode_rows(tokenizer, rows) == tokenizer.batch_decode(rows, skip_special_tokens=True)
    assert decode_rows(tokenizer, [ids]) == [text]


def test_what_rows_share_is_decoded_once(monkeypatch):
    tokenizer, draw = TOKENIZERS["byte level"], random.Random(0)
    letters = tokenizer(TEXTS[0])["input_ids"]
    response = draw.choices(letters, k=4000)
    rows = [response[:b] + draw.choices(letters, k=10) for b in range(100, 4000, 100) for _ in range(9)]
    seen = []

    class Counting:
        decoder = tokenizer.backend_tokenizer.decoder

        def decode(self, ids, **given):
            seen.append(len(ids))
            return tokenizer.backend_tokenizer.decode(ids, **given)

    texts = ["".join(text for _, text in pieces) for pieces in decoding._joined(Counting(), rows)]
    assert texts == tokenizer.batch_decode(rows, skip_special_tokens=True)
    # the response once, and for each row less than a piece more than its own tokens
    assert sum(seen) < len(response) + len(rows) * (decoding.PIECE + 10) < 0.05 * sum(map(len, rows))


def test_bytes_that_are_no_character_take_a_small_multiple():
    tokenizer, seen = TOKENIZERS["byte level"], []
    broken = tokenizer.convert_tokens_to_ids("ð")  # the first byte of four

    class Counting:
        def decode(self, ids, **given):
            seen.append(len(ids))
            return tokenizer.backend_tokenizer.decode(ids, **given)

    (pieces,) = decoding._joined(Counting(), [[broken] * 10_000])
    assert "".join(text for _, text in pieces) == "\ufffd" * 10_000
    assert sum(seen) <= 30_000


def test_a_replaced_method_is_asked():
    tokenizer = byte_level()
    tokenizer.batch_decode = lambda rows, skip_special_tokens: ["mine"] * len(rows)
    assert decode_rows(tokenizer, [[3, 4]]) == ["mine"]
