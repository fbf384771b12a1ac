"""Training and evaluation prompts: sets by name, files, the Hub; cleaned, styled and measured."""

from .files import FILE_FORMATS
from .loading import (
    ANSWER_COLUMNS,
    GYM,
    PROMPT_COLUMNS,
    DataArguments,
    hub_source,
    load_from_arguments,
    load_prompts,
    prompt_tokens,
    warn_of_unknown_tokens,
)
from .sets import PROMPT_STYLES, SETS, DataSet, PromptStyle, resolve_style, to_prompt


__all__ = [
    "ANSWER_COLUMNS",
    "FILE_FORMATS",
    "GYM",
    "PROMPT_COLUMNS",
    "PROMPT_STYLES",
    "SETS",
    "DataArguments",
    "DataSet",
    "PromptStyle",
    "hub_source",
    "load_from_arguments",
    "load_prompts",
    "prompt_tokens",
    "resolve_style",
    "to_prompt",
    "warn_of_unknown_tokens",
]
