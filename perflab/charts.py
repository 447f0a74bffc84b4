"""The two charts of a study: curves over a size, and bars by version; each with its numbers as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perflab import figures, tables

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Curve:
    """A named line: y over x. `dashed` tells a second quantity of the same version; `color` is a palette index."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: int
    dashed: bool = False


@dataclass(frozen=True)
class Level:
    """A horizontal line with its name: a peak, a floor, a number of slots."""

    name: str
    y: float


@dataclass(frozen=True)
class Axis:
    """What an axis shows: its label with the unit, how much one unit on it is, and how a value is written in text."""

    label: str
    unit: float
    write: Callable[[float], str]


TIME = Axis("time [us]", 1e-6, tables.seconds)
BANDWIDTH = Axis("bandwidth [GB/s]", 1e9, tables.bytes_per_second)
BLOCKS = Axis("blocks", 1, tables.cell)


def curves(title: str, device: str, origin: str, x_label: str, axis: Axis, lines: Sequence[Curve],
           levels: Sequence[Level] = ()) -> figures.Picture:
    """Log-log curves over a size, each named at its right end, with levels across."""
    text = "\n".join([
        f"{title} [{device}]",
        *(f"  {line.name}: " + ", ".join(f"{x:,g}: {axis.write(y)}" for x, y in zip(line.x, line.y, strict=True))
          for line in lines),
        *(f"  {level.name}: {axis.write(level.y)}" for level in levels),
        f"  origin: {origin}",
    ])

    def draw() -> Figure:
        figure, axes = figures.frame(title, device, origin)
        for line in lines:
            axes.plot(line.x, [y / axis.unit for y in line.y], color=figures.color(line.color),
                      marker=figures.marker(line.color), linestyle="--" if line.dashed else "-",
                      markerfacecolor="white" if line.dashed else None, label=line.name)
        _levels(axes, levels, axis)
        axes.set(xscale="log", yscale="log", xlabel=x_label, ylabel=axis.label)
        ticks = sorted({x for line in lines for x in line.x})
        axes.set_xticks(ticks, [f"{x:,g}" for x in ticks])
        axes.minorticks_off()
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return figure

    return figures.Picture(text, draw)


def bars(title: str, device: str, origin: str, axis: Axis, names: Sequence[str], values: Sequence[float],
         levels: Sequence[Level] = (), labels: Sequence[str] | None = None) -> figures.Picture:
    """A horizontal bar a name, from 0, with its value written at its end, and levels down the picture."""
    written = list(labels or (axis.write(value) for value in values))
    wide = max(map(len, [*names, *(level.name for level in levels)]))
    text = "\n".join([
        f"{title} [{device}]",
        *(f"  {name:<{wide}}  {label}" for name, label in zip(names, written, strict=True)),
        *(f"  {level.name:<{wide}}  {axis.write(level.y)}" for level in levels),
        f"  origin: {origin}",
    ])

    def draw() -> Figure:
        figure, axes = figures.frame(title, device, origin, height_inches=1.9 + 0.45 * len(names))
        places = range(len(names))
        axes.barh(places, [value / axis.unit for value in values], height=0.6, color=figures.color(0))
        for place, value, label in zip(places, values, written, strict=True):
            axes.annotate(label, (value / axis.unit, place), (5, 0), textcoords="offset points", va="center")
        for k, level in enumerate(levels):
            axes.axvline(level.y / axis.unit, color=figures.color(k + 1), linestyle="--", label=level.name)
        axes.set_yticks(list(places), list(names))
        axes.invert_yaxis()
        axes.margins(x=0.25)
        axes.set(xlabel=axis.label, xlim=(0, None))
        axes.grid(visible=False, axis="y")
        if levels:
            axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.25), ncols=2)
        return figure

    return figures.Picture(text, draw)


def _levels(axes: Axes, levels: Sequence[Level], axis: Axis) -> None:
    for level in levels:
        axes.axhline(level.y / axis.unit, color=figures.GREY, linestyle=":", linewidth=1.4)
        axes.annotate(level.name, (0.01, level.y / axis.unit), (0, 3), xycoords=("axes fraction", "data"),
                      textcoords="offset points", fontsize=8.5, color=figures.GREY)
