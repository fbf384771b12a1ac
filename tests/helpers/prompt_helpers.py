"""Orders of prompts on small data."""

from functools import cache

from custom_functions import args_of

from trl_credit.rollouts.prompts import PromptOrder


make_config = cache(args_of)


def prompt(row):
    return f"prompt {row}"


def by_difficulty(rows=20, prompt_of=prompt, **knobs):
    return PromptOrder(make_config(prompt_sampler="difficulty", **knobs), rows=rows, prompt_of=prompt_of)


def in_turn(rows=20, prompt_of=prompt, **knobs):
    return PromptOrder(make_config(groups="refill", **knobs), rows=rows, prompt_of=prompt_of)
