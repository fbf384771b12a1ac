"""The credit of algorithms against the truth, which continuations of sampled responses measure.

May import the subpackages below `lab`, and `lab/explain`.
"""

from .report import Audit
from .run import audit


__all__ = ["Audit", "audit"]
