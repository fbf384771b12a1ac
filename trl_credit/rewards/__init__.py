"""Reward functions by name, the guard around them, and the judging of answers. Imports `demo` and below."""

from .functions import REWARDS, accuracy_reward, check_answers, format_reward, resolve_reward, soft_overlong_punishment
from .judging import extract_answer
from .puzzles import knights_and_knaves_reward
from .reasoning_gym import reasoning_gym_reward
from .steps import StepRewards


__all__ = ["REWARDS", "StepRewards", "accuracy_reward", "check_answers", "extract_answer", "format_reward"]
__all__ += ["knights_and_knaves_reward", "reasoning_gym_reward", "resolve_reward", "soft_overlong_punishment"]
