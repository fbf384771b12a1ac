"""Prompts and answers from the Hub or from a file."""

from pathlib import Path

from datasets import Dataset, DatasetDict, load_dataset
from datasets.exceptions import DatasetGenerationError


PROMPT_COLUMNS = ("prompt", "problem", "question")
ANSWER_COLUMNS = ("answer", "solution", "target")
FILE_FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
INSTRUCTION = "Reason step by step, and put your final answer within \\boxed{}."


def load_prompts(
    name: str,
    *,
    config: str | None = None,
    split: str = "train",
    prompt_column: str | None = None,
    answer_column: str | None = None,
    conversational: bool = False,
    instruction: str | None = INSTRUCTION,
) -> Dataset:
    """Loads a set and names its columns `prompt` and `answer`; the other columns stay, for the reward functions.

    Args:
        name (`str`):
            A JSONL, JSON, Parquet or CSV file, or a name on the Hub.
        config, split (`str`, *optional*):
            Configuration and split of a set of the Hub.
        prompt_column, answer_column (`str`, *optional*):
            Which columns they are; by default the first of `prompt`, `problem`, `question` and of `answer`, `solution`,
            `target`.
        conversational (`bool`, *optional*, defaults to `False`):
            Whether string prompts become one user message, for models with a chat template.
        instruction (`str`, *optional*):
            Appended to string prompts.

    Raises:
        ValueError: no such file, a file that cannot be read, no such column, or no rows.
    """
    suffix = Path(name).suffix.lower()
    if suffix in FILE_FORMATS:
        if not Path(name).is_file():
            raise ValueError(f"there is no file {name!r}: check --dataset_name")
        if Path(name).stat().st_size == 0:
            raise ValueError(f"{name!r} has no rows")
        try:
            data = load_dataset(FILE_FORMATS[suffix], data_files=name, split="train")
        except (DatasetGenerationError, ValueError) as error:  # a damaged Parquet file is pyarrow's ValueError
            raise ValueError(
                f"{name!r} cannot be read as {FILE_FORMATS[suffix]}: {error.__cause__ or error}"
            ) from error
    elif Path(name).exists():
        raise ValueError(f"{name!r} is not a {', '.join(FILE_FORMATS)} file: give --dataset_name one, or a Hub name")
    else:
        data = load_dataset(name, config, split=split)
    if isinstance(data, DatasetDict) or len(data) == 0:
        raise ValueError(f"{name!r} has no rows")
    prompt_column = _column(data, prompt_column, PROMPT_COLUMNS, "--prompt_column")
    answer_column = _column(data, answer_column, ANSWER_COLUMNS, "--answer_column")

    def rename(row: dict) -> dict:
        prompt = row[prompt_column]
        if isinstance(prompt, str):
            text = prompt if instruction is None else f"{prompt}\n{instruction}"
            prompt = [{"role": "user", "content": text}] if conversational else text
        answer = row[answer_column]
        return {"prompt": prompt, "answer": None if answer is None else str(answer)}

    taken = list({prompt_column, answer_column} & {"prompt", "answer"})
    return data.map(rename, remove_columns=taken, desc="prompts")


def _column(data: Dataset, wanted: str | None, guesses: tuple[str, ...], flag: str) -> str:
    if wanted is None:
        found = [c for c in guesses if c in data.column_names]
        if found:
            return found[0]
        wanted = guesses[0]
    if wanted not in data.column_names:
        raise ValueError(f"there is no column {wanted!r}: set {flag} to one of {', '.join(data.column_names)}")
    return wanted
