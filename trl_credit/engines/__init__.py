"""The same credit as plug-ins of other trainers: a leaf that nothing imports. Imports `config`, `presets`, `credit` and
`loss`; only the module of an engine imports that engine."""

import logging
from functools import cache


ESTIMATORS = ("trl_credit.grpo", "trl_credit.opo", "trl_credit.ha_dw")
logger = logging.getLogger(__name__)
say = cache(logger.warning)  # once for each message
