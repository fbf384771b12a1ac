"""The colours of the viewer's CSS, and the contrast of two colours."""

import re

import numpy as np

from trl_credit.lab.viewer import palette
from trl_credit.lab.viewer.page import asset


STYLE = palette.css() + asset("viewer.css")
PAIRS = dict(re.findall(r"--([\w-]+): light-dark\((#\w+, #\w+)\)", STYLE))  # a colour of each scheme, by variable
LEVELS = [f"{letter}{level}" for letter in "pns" for level in range(1, palette.LEVELS + 1)]


def linear(srgb: np.ndarray) -> np.ndarray:
    """Linear RGB."""
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def contrast(one: np.ndarray, other: np.ndarray) -> float:
    """WCAG 2's contrast ratio of two colours in linear RGB."""
    low, high = sorted(float(rgb @ [0.2126, 0.7152, 0.0722]) for rgb in (one, other))
    return (high + 0.05) / (low + 0.05)
