"""The colours of the viewer: a diverging scale, blue above 0 and orange below, and a sequential one.

Blue and orange stay apart for the colour-blind, and every level is both lighter (in the dark: darker) than the next and
far enough from the text on it: tests/test_viewer_colours.py measures 4.5:1 and more.
"""

LEVELS = 6  # on each side of 0

LIGHT = {
    "text": "#16181d",
    "page": "#ffffff",
    "positive": ("#d9ecff", "#beddfc", "#a2cdf9", "#87bdf6", "#6badf2", "#4e9cee"),
    "negative": ("#fbe6cd", "#f8d3ad", "#f6be8e", "#f4a96f", "#f19252", "#ee7933"),
    "sequential": ("#f1e9fb", "#e2d4f5", "#d4c0ee", "#c6abe7", "#b997e0", "#ab82d8"),
}
DARK = {
    "text": "#f4f5f7",
    "page": "#14161b",
    "positive": ("#1e3246", "#1f3e5e", "#1e4976", "#1d558f", "#1c61a9", "#1a6dc4"),
    "negative": ("#422c19", "#553419", "#693b18", "#7e4217", "#934916", "#aa5016"),
    "sequential": ("#332840", "#423057", "#52386e", "#634087", "#7448a0", "#864fba"),
}
# the classes of tokens: p1 … p6, n1 … n6, s1 … s6
SCALES = {"p": "positive", "n": "negative", "s": "sequential"}


def css() -> str:
    """The colours as CSS variables that follow the colour scheme, and a class for each level of each scale."""
    lines = [f"--{name}: light-dark({LIGHT[name]}, {DARK[name]});" for name in ("text", "page")]
    classes = []
    for letter, name in SCALES.items():
        for level, (light, dark) in enumerate(zip(LIGHT[name], DARK[name], strict=True), start=1):
            lines.append(f"--{letter}{level}: light-dark({light}, {dark});")
            classes.append(f".{letter}{level} {{ background-color: var(--{letter}{level}); }}")
    return ":root {\n  " + "\n  ".join(lines) + "\n}\n" + "\n".join(classes) + "\n"
