"""One house style for every picture: `Picture`, the style, and PNG bytes that do not change from run to run.

A picture says by itself what it shows: title, units on the axes, the device, and at the bottom the origin of its
numbers. Figures are `matplotlib.figure.Figure`, never pyplot: no global state, no window, no leak.
"""

from __future__ import annotations

import contextlib
import io
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers and in grey; the order puts unlike ones side by side.
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, INK, GREY = "#E69F00", "#56B4E9", "#1F2328", "#6E7781"
PALETTE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, INK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

WIDTH_INCHES, HEIGHT_INCHES, DOTS_PER_INCH = 8.4, 4.6, 110
CHARACTERS_PER_INCH = 18.0  # of the small print, DejaVu Sans at 7.5 points

_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so the same pixels everywhere
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titlecolor": GREY,
    "grid.color": "#D8DEE4",
    "grid.linewidth": 0.7,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 6.5,
    "figure.facecolor": "white",
    "figure.dpi": DOTS_PER_INCH,
    "figure.constrained_layout.w_pad": 0.1,
}


@contextlib.contextmanager
def house_style() -> Iterator[None]:
    """matplotlib's own defaults plus the house style while the block runs, whatever the reader's matplotlibrc says."""
    import matplotlib
    from cycler import cycler

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**_STYLE, "axes.prop_cycle": cycler(color=PALETTE)})
        yield


def frame(
    title: str,
    device: str = "",
    origin: str = "",
    rows: int = 1,
    columns: int = 1,
    height_inches: float = HEIGHT_INCHES,
    **subplots: Any,
) -> tuple[Figure, Any]:
    """A figure with its title, device and origin in place, and its axes (one, or an array as from `subplots`).

    title:  what is shown, a claim where there is one; device: the GPU, below the title; origin: `str(Origin)`.
    Call it inside a `Picture`'s draw function, so that the house style applies.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_INCHES, height_inches), dpi=DOTS_PER_INCH, layout="constrained")
    figure.suptitle(title, x=0.012, ha="left", fontsize=12, fontweight="bold")
    axes = figure.subplots(rows, columns, **subplots)
    if device:
        first = axes if rows * columns == 1 else axes.flat[0]
        first.set_title(device)
    if origin:
        add_origin(figure, origin)
    return figure, axes


def add_origin(figure: Figure, origin: str) -> None:
    """Write where the numbers come from along the bottom edge; the layout makes room for it, long lines wrap."""
    wide = int(figure.get_figwidth() * CHARACTERS_PER_INCH)
    text = textwrap.fill(f"origin: {origin}", width=wide)
    figure.supxlabel(text, x=0.012, ha="left", fontsize=7.5, color=GREY, multialignment="left")


def color(index: int) -> str:
    """The palette's colour of series `index`, from 0; starts over after the last."""
    return PALETTE[index % len(PALETTE)]


def marker(index: int) -> str:
    """The marker of series `index`: a second sign beside the colour, for print in grey."""
    return MARKERS[index % len(MARKERS)]


def png_bytes(figure: Figure) -> bytes:
    """`figure` as a PNG file: the same bytes for the same figure, with no date and no software version in it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    stream = io.BytesIO()
    FigureCanvasAgg(figure).print_png(stream, metadata={"Software": None})
    return stream.getvalue()


@dataclass(frozen=True)
class Picture:
    """A picture and the numbers in it as text: readers see the PNG, nbval and the terminal the text.

    text: rounded and deterministic, first line = what is shown; draw: makes the figure, called in the house style.
    """

    text: str
    draw: Callable[[], Figure] = field(repr=False)

    def __str__(self) -> str:
        return self.text

    def figure(self) -> Figure:
        """The figure, drawn anew; change it or save it at will."""
        with house_style():
            return self.draw()

    def png(self) -> bytes:
        """The picture as a PNG file."""
        with house_style():
            return png_bytes(self.draw())

    def markdown(self) -> str:
        """The numbers as a block of text: Markdown cannot carry the pixels."""
        return f"```text\n{self.text}\n```"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return {"text/plain": self.text, "image/png": self.png()}
