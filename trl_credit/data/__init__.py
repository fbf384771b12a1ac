"""Training and evaluation prompts: sets by name, files, the Hub; cleaned, styled and measured."""

from .loading import DataArguments, hub_source, load_from_arguments, load_prompts, prompt_tokens, warn_of_unknown_tokens
from .sets import PROMPT_STYLES, SETS, DataSet, PromptStyle, resolve_style, to_prompt


__all__ = [
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
