"""The texts of tokens that a file gives by their ids alone, by a fast tokenizer. Imports no torch."""

from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError
from tokenizers import Tokenizer

from ...observe.schema import Shard
from ...observe.token_texts import TokenTexts


class FastTokenizer:
    """What [`~trl_credit.observe.token_texts.TokenTexts`] needs of a `tokenizer.json`.

    Args:
        name (`str`):
            Folder of a model or tokenizer, or its id on the Hub; "demo": the embedded model.

    Raises:
        ValueError: there is no such tokenizer, or it is damaged.
    """

    def __init__(self, name: str) -> None:
        try:
            folder = _demo_folder() if name == "demo" else Path(name)
            path = folder / "tokenizer.json" if folder.is_dir() else hf_hub_download(name, "tokenizer.json")
            self._tokenizer = Tokenizer.from_buffer(Path(path).read_bytes())
        except (OSError, ValueError, EntryNotFoundError, HfHubHTTPError, HFValidationError) as error:
            raise ValueError(f"--tokenizer {name!r}: no tokenizer.json can be read ({error})") from error

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    @property
    def all_special_ids(self) -> list[int]:
        added = self._tokenizer.get_added_tokens_decoder()
        return [i for i, token in added.items() if token.special]

    def decode(self, ids: list[int], **options: Any) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def _demo_folder() -> Path:
    from ...demo import demo_model_path  # imports torch

    return Path(demo_model_path())


def with_texts(shard: Shard, tokenizer: Any) -> Shard:
    """The shard with `tokens` in the responses that have `token_ids` without them.

    Raises:
        ValueError: a token id is not one of the tokenizer's.
    """
    texts, size, found = TokenTexts(tokenizer), len(tokenizer), []
    for response in shard.responses:
        ids = response.get("token_ids")
        if ids and response.get("tokens") is None:
            if max(ids) >= size:
                where = f"response {response['index']} of prompt {response['group']}"
                raise ValueError(
                    f"{where}: token id {max(ids)} is not one of {size:,}: is it another model's tokenizer?"
                )
            response = {**response, "tokens": texts.of(ids)}
        found.append(response)
    return Shard(shard.header, shard.trees, found)
