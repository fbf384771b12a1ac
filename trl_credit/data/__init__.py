"""Training and evaluation prompts: sets by name, files, the Hub; cleaned and styled. Imports `rewards` and below."""

from .prompt_sets import DataArguments, hub_source, load_from_arguments, load_prompts, warn_of_unknown_tokens
from .readers import FILE_FORMATS
from .sets import PROMPT_STYLES, SETS, DataSet, PromptStyle, resolve_style, to_prompt


__all__ = [
    "FILE_FORMATS",
    "PROMPT_STYLES",
    "SETS",
    "DataArguments",
    "DataSet",
    "PromptStyle",
    "hub_source",
    "load_from_arguments",
    "load_prompts",
    "resolve_style",
    "to_prompt",
    "warn_of_unknown_tokens",
]
