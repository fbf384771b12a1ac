"""What a run leaves for a person to look at."""

from .console import ConsoleCallback
from .credit_plot import plot_credit
from .curves import plot_rewards
from .results import ResultsCallback
from .sampling import describe_sampling


__all__ = ["ConsoleCallback", "ResultsCallback", "describe_sampling", "plot_credit", "plot_rewards"]
