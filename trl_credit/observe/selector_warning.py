"""Says once that a selector can hardly help, because nearly all gradient noise lies inside of its selection."""

import math
from statistics import fmean
from typing import Any

from accelerate.logging import get_logger

from ..config import CreditConfig
from .no_signal import MetricsWatch


logger = get_logger(__name__)  # logs on the main process only; the metric is that of all processes

UPDATES = 10  # whose mean decides: the share of a single update may be chance
LEAST = 0.2


def has_selector(config: CreditConfig) -> bool:
    """Whether some tokens get less credit because of a selection that `credit/noise_share` describes."""
    return config.selector != "none" or config.top_entropy_quantile < 1.0


class SelectorWarning(MetricsWatch):
    """Warns if the mean of `credit/noise_share` over the first 10 updates of a training that log it is below 0.2.

    A selector shows its worth by what it leaves out. On the two embedded tasks the share is 0.16 and 0.68.
    """

    def on_train_begin(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        self._shares: list[float] = []

    def on_step_end(self, args: CreditConfig, state: Any, control: Any, **kwargs: Any) -> None:
        # an update whose passes were all skipped has no share, and one without noise NaN
        new = [share for share in self.of_step().get("credit/noise_share", ()) if not math.isnan(share)]
        if not new or len(self._shares) == UPDATES:
            return
        self._shares.append(new[-1])
        if len(self._shares) == UPDATES and (mean := fmean(self._shares)) < LEAST:
            logger.warning(_message(mean, args))


def _message(share: float, args: CreditConfig) -> str:
    name = "selector" if args.selector != "none" else "top_entropy_quantile"
    return (
        f"the selector can hardly help here: {share:.2f} of the gradient noise lies outside of its selection (mean of "
        f"{UPDATES} updates, {name}={getattr(args, name)!r}). Tune learning_rate={args.learning_rate:g} first, and "
        "compare with algo grpo over several seeds (see trl-credit help which)."
    )
