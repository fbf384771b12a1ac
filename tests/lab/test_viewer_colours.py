"""The viewer's colours, as its CSS has them: legible, ordered, and apart for the colour-blind."""

import itertools

import numpy as np
import pytest
from viewer_colours import LEVELS, PAIRS, STYLE, contrast, linear

from trl_credit.lab.viewer import palette


# how the colour-blind see linear RGB (Machado, Oliveira and Fernandes 2009, severity 1)
BLIND = {
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def colour(name: str, scheme: str) -> np.ndarray:
    """Linear RGB of a CSS variable."""
    text = PAIRS[name].split(", ")[scheme == "dark"]
    return linear(np.array([int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]))


def lab(rgb: np.ndarray) -> np.ndarray:
    """OKLab, in which distances are about what one sees."""
    rgb = rgb.clip(0)
    lms = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]) @ rgb
    return np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]) @ np.cbrt(lms)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible_on_every_colour(scheme):
    for level in (*LEVELS, "page", "soft"):
        assert contrast(colour("text", scheme), colour(level, scheme)) >= 4.5, level
    for ground in ("page", "soft"):
        assert contrast(colour("muted", scheme), colour(ground, scheme)) >= 4.5, ground
    assert contrast(colour("accent", scheme), colour("page", scheme)) >= 3  # of the focus ring


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_more_is_further_from_the_page(scheme):
    for letter in "pns":
        steps = [contrast(colour(f"{letter}{k}", scheme), colour("page", scheme)) for k in range(1, palette.LEVELS + 1)]
        assert all(a < b for a, b in itertools.pairwise([1.0, *steps]))


@pytest.mark.parametrize("blindness", BLIND)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_colour_blind_tell_gain_from_loss(blindness, scheme):
    seen = {name: lab(np.array(BLIND[blindness]) @ colour(name, scheme)) for name in LEVELS}
    for level in range(3, palette.LEVELS + 1):  # paler than that, nobody can be sure
        assert np.linalg.norm(seen[f"p{level}"] - seen[f"n{level}"]) > 0.05, level


def test_every_level_has_a_class():
    for level in LEVELS:
        assert f".{level} {{ background-color: var(--{level}); }}" in STYLE
