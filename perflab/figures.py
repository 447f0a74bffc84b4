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
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers and in grey; the order puts unlike ones side by side.
INK, GREY = "#1F2328", "#6E7781"
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

NEAR = 8  # of 255: a tint so near to one of the palette's colours would take its pixels
TINTS = 56  # colours of a PNG beside the palette: greys, and its smooth edges
WIDTH_INCHES, HEIGHT_INCHES, DOTS_PER_INCH = 8.4, 4.6, 110
CHARACTERS_PER_LINE = 151  # of the origin along the bottom edge, DejaVu Sans at 7.5 points

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


def frame(title: str, device: str = "", origin: str = "", height_inches: float = HEIGHT_INCHES) -> tuple[Figure, Axes]:
    """A figure with its axes, and in place: its title, the device below it, and at the bottom the origin of its numbers.

    Call it inside a `Picture`'s draw function, so that the house style applies.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_INCHES, height_inches), dpi=DOTS_PER_INCH, layout="constrained")
    figure.suptitle(title, x=0.012, ha="left", fontsize=12, fontweight="bold")
    axes = figure.subplots()
    axes.set_title(device)
    if origin:
        text = textwrap.fill(f"origin: {origin}", width=CHARACTERS_PER_LINE)
        figure.supxlabel(text, x=0.012, ha="left", fontsize=7.5, color=GREY, multialignment="left")
    return figure, axes


def color(index: int) -> str:
    """The palette's colour of series `index`, from 0; starts over after the last."""
    return PALETTE[index % len(PALETTE)]


def marker(index: int) -> str:
    """The marker of series `index`: a second sign beside the colour, for print in grey.

    Where the colours start over the markers are shifted by one: only after 49 series is a pair of both the same again.
    """
    return MARKERS[(index + index // len(PALETTE)) % len(MARKERS)]


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
        """The picture as a PNG file: the same bytes each time, with no date and no software version in it.

        In few colours, the palette's among them, without dithering: it looks the same, in a quarter of the bytes.
        """
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.colors import to_rgb
        from PIL import Image

        with house_style():
            canvas = FigureCanvasAgg(self.draw())
            canvas.draw()
        pixels = Image.frombytes("RGBA", canvas.get_width_height(), bytes(canvas.buffer_rgba())).convert("RGB")
        own = [tuple(round(255 * part) for part in to_rgb(color)) for color in ("white", *PALETTE)]
        tints = pixels.quantize(TINTS, Image.Quantize.MEDIANCUT).getpalette() or []
        others = [tint for tint in zip(*(tints[part : 3 * TINTS : 3] for part in range(3)), strict=True)
                  if all(max(abs(a - b) for a, b in zip(tint, color, strict=True)) > NEAR for color in own)]
        colors = Image.new("P", (1, 1))
        colors.putpalette([part for color in (*own, *others) for part in color])
        stream = io.BytesIO()
        pixels.quantize(palette=colors, dither=Image.Dither.NONE).save(stream, "PNG", optimize=True)
        return stream.getvalue()

    def markdown(self) -> str:
        """The numbers as a block of text: Markdown cannot carry the pixels."""
        return f"```text\n{self.text}\n```"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return {"text/plain": self.text, "image/png": self.png()}
