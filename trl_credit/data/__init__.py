"""Loads training and evaluation prompts from known sets, files and the Hub. Imports `rewards` and below."""

from .prompt_sets import DataArguments, hub_source, load_from_arguments, load_prompts, warn_of_unknown_tokens
from .sets import PROMPT_STYLES, SETS, PromptStyle, to_prompt


__all__ = [
    "PROMPT_STYLES",
    "SETS",
    "DataArguments",
    "PromptStyle",
    "hub_source",
    "load_from_arguments",
    "load_prompts",
    "to_prompt",
    "warn_of_unknown_tokens",
]
