"""Loads training and evaluation prompts from known sets, files and the Hub. Imports `rewards` and below."""

from .prompt_sets import DataArguments, load_from_arguments, load_prompts
from .sets import PROMPT_STYLES, SETS, PromptStyle, to_prompt


__all__ = ["PROMPT_STYLES", "SETS", "DataArguments", "PromptStyle", "load_from_arguments", "load_prompts", "to_prompt"]
