"""PNG figures with margins in inches, so that matplotlib searches for no layout and draws each of them once."""

from pathlib import Path

from matplotlib.axes import Axes

# not pyplot, whose state is global and may need a display
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..support.files import atomic_file


def add_axes(figure: Figure, *, left: float, bottom: float, right: float, top: float) -> Axes:
    """Axes between two corners, in inches from the lower left corner of the figure. The axis of steps has integers."""
    width, height = figure.get_size_inches()
    axes = figure.add_axes((left / width, bottom / height, (right - left) / width, (top - bottom) / height))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.ticklabel_format(axis="y", scilimits=(-3, 4))  # labels that fit into the margin
    axes.grid(alpha=0.3)
    return axes


def save_png(figure: Figure, path: str | Path) -> None:
    """Draws a figure and writes it. `Figure.savefig` draws it twice."""
    with atomic_file(path) as partial:
        FigureCanvasAgg(figure).print_png(partial)
