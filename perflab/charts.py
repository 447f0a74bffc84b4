"""The charts of a study: curves over a size, bars by version, steps of a ladder; each with its numbers as text."""

from __future__ import annotations

import math
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
class Mark:
    """A stroke on every bar, at a value of its own, with the name of what it is."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True)
class Axis:
    """What an axis shows: its label with the unit, how much one unit on it is, and how a value is written in text."""

    label: str
    unit: float
    write: Callable[[float], str]


TIME = Axis("time [us]", 1e-6, tables.seconds)
BANDWIDTH = Axis("bandwidth [GB/s]", 1e9, tables.bytes_per_second)
BLOCKS = Axis("blocks", 1, tables.cell)
CLOSE = 0.85  # of the level above: less apart, two names do not fit
LETTER_INCHES = 0.085  # a digit of a tick; letters of a name are narrower on average
AXES_INCHES = 7.0  # what the value axis and a legend's sample leave of a picture's width to the axes and the names
NAME_INCHES = 0.194  # of a legend's height: one name with the space to the next
AROUND_INCHES = 1.3  # of a picture's height: what stands above and below the axes


def curves(title: str, device: str, origin: str, x_label: str, axis: Axis, lines: Sequence[Curve],
           levels: Sequence[Level] = ()) -> figures.Picture:
    """Log-log curves over a size, with levels across. Names stand in a legend beside the axes; many make the picture higher."""
    text = "\n".join([
        f"{title} [{device}]",
        *(f"  {line.name}: " + ", ".join(f"{_plain(x)}: {axis.write(y)}" for x, y in zip(line.x, line.y, strict=True))
          for line in lines),
        *(f"  {level.name}: {axis.write(level.y)}" for level in levels),
        f"  origin: {origin}",
    ])

    def draw() -> Figure:
        height = max(figures.HEIGHT_INCHES, AROUND_INCHES + NAME_INCHES * len(lines))
        figure, axes = figures.frame(title, device, origin, height_inches=height)
        for line in lines:
            axes.plot(line.x, [y / axis.unit for y in line.y], color=figures.color(line.color),
                      marker=figures.marker(line.color), linestyle="--" if line.dashed else "-",
                      markerfacecolor="white" if line.dashed else None, label=line.name)
        _levels(axes, levels, axis)
        axes.set(xscale="log", yscale="log", xlabel=x_label, ylabel=axis.label)
        names = max((len(line.name) for line in lines), default=0)
        ticks = with_room([x for line in lines for x in line.x], AXES_INCHES - LETTER_INCHES * names)
        axes.minorticks_off()
        axes.set_xticks(ticks, [_plain(x) for x in ticks])
        low, high = axes.get_ylim()
        if high / low < 30:  # a decade or so has too few powers of ten to read a value by
            steps = [step * 10.0**power for power in range(-3, 9) for step in (1, 2, 5)]
            axes.set_yticks([y for y in steps if low <= y <= high], [_plain(y) for y in steps if low <= y <= high])
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return figure

    return figures.Picture(text, draw)


def with_room(values: Sequence[float], width_inches: float) -> list[float]:
    """The values, ascending, whose labels fit side by side on a logarithmic axis that long: both ends, and what fits between.

    From the right, where labels are widest. Widths are estimates, on the safe side.
    """
    ordered = sorted({value for value in values if value > 0})  # such an axis has no place for 0
    if len(ordered) < 3:
        return ordered
    inches = width_inches / 1.1 / math.log(ordered[-1] / ordered[0])  # of one e-fold: the axis goes on 5 % at either end

    def apart(low: float, high: float) -> bool:
        letters = (len(_plain(low)) + len(_plain(high))) / 2 + 1  # half of each, and a space
        return math.log(high / low) * inches >= letters * LETTER_INCHES

    kept = [ordered[-1]]
    for value in ordered[-2:0:-1]:
        if apart(value, kept[-1]) and apart(ordered[0], value):
            kept.append(value)
    return [ordered[0], *reversed(kept)]


def bars(title: str, device: str, origin: str, axis: Axis, names: Sequence[str], values: Sequence[float],
         labels: Sequence[str] | None = None, marks: Sequence[Mark] = ()) -> figures.Picture:
    """A horizontal bar a name, from 0, with its value or label written at its end, and marks across it."""
    written = list(labels or (axis.write(value) for value in values))
    wide = max(map(len, names))
    text = "\n".join([
        f"{title} [{device}]",
        *(f"  {name:<{wide}}  {label}" for name, label in zip(names, written, strict=True)),
        f"  origin: {origin}",
    ])

    def draw() -> Figure:
        figure, axes = figures.frame(title, device, origin, height_inches=1.9 + 0.45 * len(names))
        places = list(range(len(names)))
        axes.barh(places, [value / axis.unit for value in values], height=0.55, color=figures.color(0))
        for k, mark in enumerate(marks, 1):
            axes.plot([value / axis.unit for value in mark.values], places, linestyle="none", marker="|", markersize=24,
                      markeredgewidth=3, color=figures.color(k), label=mark.name)
        ends = [max(all_of) / axis.unit for all_of in zip(values, *(mark.values for mark in marks), strict=True)]
        for place, end, label in zip(places, ends, written, strict=True):
            axes.annotate(label, (end, place), (8, 0), textcoords="offset points", va="center")
        axes.set_yticks(places, list(names))
        axes.invert_yaxis()
        axes.set(xlabel=axis.label, xlim=(0, 1.9 * max(ends) or 1))
        axes.grid(visible=False, axis="y")
        if marks:
            axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=len(marks))
            axes.set_title(device, pad=28)
        return figure

    return figures.Picture(text, draw)


def steps(title: str, device: str, origin: str, axis: Axis, names: Sequence[str], values: Sequence[float],
          levels: Sequence[Level]) -> figures.Picture:
    """A point a version on a logarithmic axis, first on top, joined in order; levels as vertical lines with their names."""
    wide = max(map(len, [*names, *(level.name for level in levels)]))
    rows = [*zip(names, values, strict=True), *((level.name, level.y) for level in levels)]
    text = "\n".join([f"{title} [{device}]", *(f"  {name:<{wide}}  {axis.write(value)}" for name, value in rows),
                      f"  origin: {origin}"])

    def draw() -> Figure:
        figure, axes = figures.frame(title, device, origin, height_inches=2.4 + 0.42 * len(names))
        places = range(len(names))
        axes.plot([value / axis.unit for value in values], places, color=figures.color(0), marker=figures.marker(0))
        for place, value in zip(places, values, strict=True):
            axes.annotate(axis.write(value), (value / axis.unit, place), (9, 0), textcoords="offset points", va="center")
        for k, level in enumerate(levels):
            axes.axvline(level.y / axis.unit, color=figures.GREY, linestyle=":", linewidth=1.4)
            axes.annotate(f"{level.name}, {axis.write(level.y)}", (level.y / axis.unit, 0.97 - 0.07 * k), (4, 0), fontsize=8.5,
                          xycoords=("data", "axes fraction"), textcoords="offset points", color=figures.GREY, va="top",
                          bbox={"fc": "white", "ec": "none", "pad": 0.5})
        axes.set(xscale="log", xlabel=axis.label, yticks=list(places), yticklabels=list(names))
        low, high = (end / axis.unit for end in (min(*values, *(level.y for level in levels)), max(values)))
        axes.set_xlim(low / 1.6, high * 3)
        axes.invert_yaxis()
        return figure

    return figures.Picture(text, draw)


def _levels(axes: Axes, levels: Sequence[Level], axis: Axis) -> None:
    """A dotted line each. The highest is named above its line, others below; those close under another share its name's place,
    for there they would stand on the curves; where a curve comes that near all the same, it runs over the name."""
    close: list[list[Level]] = []
    for level in sorted(levels, key=lambda level: -level.y):
        axes.axhline(level.y / axis.unit, color=figures.GREY, linestyle=":", linewidth=1.4)
        if close and level.y > CLOSE * close[-1][0].y:
            close[-1].append(level)
        else:
            close.append([level])
    for k, group in enumerate(close):
        name = "; ".join(level.name for level in group)
        axes.annotate(name, (0.01, group[0].y / axis.unit), (0, -3 if k else 3), xycoords=("axes fraction", "data"),
                      textcoords="offset points", fontsize=8.5, color=figures.GREY, va="top" if k else "bottom", zorder=1.9,
                      bbox={"fc": "white", "ec": "none", "pad": 0.5})


def _plain(value: float) -> str:
    """A tick as a person writes it: 67,108,864, not 6.71e+07."""
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"
