"""What a run leaves for a person to look at."""

from .console import ConsoleCallback
from .curves import plot_rewards


__all__ = ["ConsoleCallback", "plot_rewards"]
