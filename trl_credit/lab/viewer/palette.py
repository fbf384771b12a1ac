"""The colours of the viewer: a diverging scale, blue above 0 and orange below, and a sequential one.

Colour-blind readers can distinguish blue from orange. Each level is lighter (on a dark page: darker) than the next, and
its contrast with the text on it is at least 4.5:1 (tests/lab/test_viewer_browser.py).
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


def css() -> str:
    """The colours as CSS variables that follow the colour scheme, and a class for each level: p1 … p6, n1 …, s1 …."""
    lines = [f"--{name}: light-dark({LIGHT[name]}, {DARK[name]});" for name in ("text", "page")]
    classes = []
    for name in ("positive", "negative", "sequential"):
        for level, (light, dark) in enumerate(zip(LIGHT[name], DARK[name], strict=True), start=1):
            lines.append(f"--{name[0]}{level}: light-dark({light}, {dark});")
            classes.append(f".{name[0]}{level} {{ background-color: var(--{name[0]}{level}); }}")
    return ":root {\n  " + "\n  ".join(lines) + "\n}\n" + "\n".join(classes) + "\n"
