"""How far a kernel is from the limit of the machine: roofs, points, which roof binds, and the picture of them.

A point takes at least flops / (compute roof) and at least bytes / (memory roof of its level); the longer of the two times
binds. A point above its roof is impossible, so it is answered with likely causes, not with a number alone.
Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from perflab import figures, tables
from perflab.errors import PerflabError, unknown
from perflab.figures import Picture
from perflab.gpus import PEAK_COLUMNS, Gpu
from perflab.gpus import gpu as find_gpu
from perflab.origins import Origin, join
from perflab.tables import Shown, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

FLOPS, BYTES = "FLOP/s", "B/s"
SHARED_BYTES_PER_CLOCK = 128  # an SM serves 32 banks of 4 bytes a clock, CUDA programming guide, shared memory
LETTER_PIXELS = 5  # that a letter of the name of a memory roof takes to the right
NEAR_POINTS = 9  # between a marker and its name, where there is room
# Where a point's name may stand, (across, up) in points: from near to far, the right side first.
_OFFSETS = [
    (radius * math.cos(math.radians(turn)), radius * math.sin(math.radians(turn)))
    for radius in (NEAR_POINTS, 22, 36, 52, 70, 90, 120)
    for turn in (0, 180, 45, -45, 135, -135, 90, -90)
]


@dataclass(frozen=True)
class Roof:
    """A ceiling: `value` in FLOP/s or B/s. A memory roof's name begins with its level: DRAM, L2, L1 or shared."""

    name: str
    value: float
    unit: str
    origin: Origin

    def __post_init__(self) -> None:
        if self.unit not in (FLOPS, BYTES) or not self.value > 0:
            raise PerflabError(f'roof "{self.name}" of {self.value} {self.unit}: above 0, in {FLOPS} or {BYTES}')

    @property
    def is_measured(self) -> bool:
        return self.origin.kind == "measured"

    @property
    def level(self) -> str:
        """Where the bytes of a memory roof come from; "" for a compute roof."""
        return self.name.split()[0] if self.unit == BYTES else ""

    @property
    def written(self) -> str:
        """The value in the unit that a person reads."""
        return (tables.bytes_per_second if self.unit == BYTES else tables.flops_per_second)(self.value)

    def __str__(self) -> str:
        return f"{self.name} {self.written}, {self.origin}"


@dataclass(frozen=True)
class Bound:
    """The roof that binds a point. attainable: FLOP/s at that roof; fraction: of the roof, 1 = at it.

    diagnosis: likely causes where the fraction is above 1, else "".
    """

    roof: Roof
    attainable: float
    fraction: float
    diagnosis: str = ""


@dataclass(frozen=True)
class Point:
    """Work done in a time: FLOP, bytes moved to or from one level of memory, seconds.

    kernel: whose bytes are counted in several ways; such points are joined and stand outside the story's arrows.
    """

    name: str
    flops: float
    bytes: float
    seconds: float
    level: str = "DRAM"
    kernel: str = ""
    origin: Origin = field(kw_only=True)

    def __post_init__(self) -> None:
        if not (self.seconds > 0 and self.flops >= 0 and self.bytes >= 0 and self.flops + self.bytes > 0):
            raise PerflabError(
                f'point "{self.name}": {self.flops} FLOP and {self.bytes} B in {self.seconds} s; '
                "a time above 0 and some work are needed"
            )

    @property
    def intensity(self) -> float:
        """FLOP per byte; infinite where nothing is moved."""
        return self.flops / self.bytes if self.bytes else float("inf")

    @property
    def rate(self) -> float:
        """FLOP per second."""
        return self.flops / self.seconds

    def bound(self, roofs: Sequence[Roof], l2_bytes: int | None = None) -> Bound:
        """Which of `roofs` binds: the compute roof or the memory roof of this level, measured ones before published.

        l2_bytes: size of the L2 cache, for the diagnosis of a point above the DRAM roof. Raises PerflabError when there
        is no roof for this point's work.
        """
        needed = []
        for work, level in ((self.flops, ""), (self.bytes, self.level)):
            of_level = [roof for roof in roofs if roof.level == level]
            if work and not of_level:
                kind = f"memory roof of level {level}" if level else "compute roof"
                raise PerflabError(f'point "{self.name}" has no {kind} among: {", ".join(r.name for r in roofs) or "none"}')
            if work:
                highest = max(of_level, key=lambda roof: (roof.is_measured, roof.value))
                needed.append((work / highest.value, highest))
        least_seconds, roof = max(needed, key=lambda pair: pair[0])
        fraction, diagnosis = least_seconds / self.seconds, ""
        if fraction > 1:
            causes = "; ".join(_causes(self, roof, l2_bytes))
            diagnosis = f"{self.name} is above the roof, at {tables.percent(fraction)} of {roof.name}: {causes}"
        return Bound(roof, self.flops / least_seconds, fraction, diagnosis)


def counted_points(kernel: str, flops: float, moved: Mapping[str, float], seconds: float, origin: Origin) -> list[Point]:
    """A point of a kernel for each way to count its bytes, most bytes first: "asked", "sectors", "unique".

    What DRAM moved lies between the unique bytes and those of the sectors, as long as nothing is spilled or written back twice.
    """
    ordered = sorted(moved.items(), key=lambda item: -item[1])
    return [Point(f"{kernel}: {name}", flops, count, seconds, kernel=kernel, origin=origin) for name, count in ordered]


def level_points(kernel: str, flops: float, moved: Mapping[str, float], seconds: float, origin: Origin) -> list[Point]:
    """A point of a kernel for each level of memory, in the order given: level -> bytes that moved there. A level that moved
    nothing has none."""
    return [Point(f"{kernel}: {level}", flops, count, seconds, level, kernel, origin=origin)
            for level, count in moved.items() if count]


def _causes(point: Point, roof: Roof, l2_bytes: int | None) -> Iterator[str]:
    """What makes a point lie above a roof, the likeliest first."""
    if roof.unit == BYTES:
        if roof.level == "DRAM" and l2_bytes and point.bytes <= l2_bytes:
            cache = tables.bytes_(l2_bytes)
            yield f"its {tables.bytes_(point.bytes)} fit into the L2 cache of {cache}, so little came from DRAM"
        yield f"more bytes are counted than {roof.level} moved (re-reads that a cache served, writes that stayed in it)"
    else:
        yield "more FLOP are counted than were done (skipped tiles, a mask, a factor of two)"
        yield f"the work was not {roof.name} (tensor cores in another type, or a sparse peak)"
    if not roof.is_measured:
        yield "the clock was above the datasheet's"
    yield "the time is too short (another kernel's, or taken before the end of this one)"


def datasheet_roofs(gpu: str | Gpu, dtype: str) -> tuple[Roof, ...]:
    """The compute roof of `dtype`, and the memory roofs that are known: DRAM (published), shared memory (calculated).

    dtype: float64 and float32 (CUDA cores), tf32, bfloat16, float16 and float8 (dense tensor cores). There is no L2 roof:
    no datasheet gives one. Raises PerflabError for an architecture, and for a dtype whose peak is not known.
    """
    found = find_gpu(gpu)
    if dtype not in PEAK_COLUMNS:
        raise unknown("dtype", dtype, PEAK_COLUMNS)
    if found.sm_count is None:
        raise PerflabError(f'"{found.name}" is an architecture and has no roofs: name a product such as "H200"')
    published = Origin("published", f"datasheet of the {found.name}")
    roofs, clock_hz = [], found.clock_hz
    at_clock = Origin("calculated", f"{found.sm_count} SMs at {(clock_hz or 0) / 1e6:,.0f} MHz")
    if dtype in found.peaks:
        roofs.append(Roof(dtype, found.peaks[dtype], FLOPS, published))
    elif dtype == "float32" and clock_hz:
        flops_per_clock = 2 * found.limits.fp32_lanes_per_sm * found.sm_count
        roofs.append(Roof(dtype, flops_per_clock * clock_hz, FLOPS, at_clock))
    else:
        known = ", ".join(found.peaks) or "none"
        raise PerflabError(f"the {dtype} peak of the {found.name} is not known; known: {known}. Give roofs=[Roof(…)]")
    if found.memory_bytes_per_second:
        roofs.append(Roof("DRAM", found.memory_bytes_per_second, BYTES, published))
    if clock_hz:
        roofs.append(Roof("shared", SHARED_BYTES_PER_CLOCK * found.sm_count * clock_hz, BYTES, at_clock))
    return tuple(roofs)


def level_roofs(gpu: str | Gpu, dtype: str, measured: Sequence[Roof]) -> tuple[Roof, ...]:
    """The roofs of a hierarchical roofline: measured, else of the datasheet; L1's 128 bytes an SM and clock, calculated.

    L1 and shared memory are one memory with one data path: its roof stands once, as L1's.
    """
    known = {roof.level for roof in measured}
    others = [roof for roof in datasheet_roofs(gpu, dtype) if roof.level not in known]
    return (*measured, *(replace(roof, name="L1") if roof.level == "shared" else roof for roof in others))


@dataclass(frozen=True)
class Roofline(Shown):
    """Points under the roofs of a GPU, in the order of the story: `str()` is a table, a notebook shows the picture.

    roofs: None = the datasheet's; measured roofs of the same level are what a point is compared with first. at: the shape in
    words.
    """

    gpu: str | Gpu
    dtype: str
    points: Sequence[Point]
    roofs: Sequence[Roof] | None = None
    title: str = "Roofline"
    at: str = ""

    @property
    def device(self) -> Gpu:
        return find_gpu(self.gpu)

    @property
    def all_roofs(self) -> tuple[Roof, ...]:
        """The roofs given, else the datasheet's."""
        return datasheet_roofs(self.device, self.dtype) if self.roofs is None else tuple(self.roofs)

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """What binds each point, in the order of the points."""
        return tuple(point.bound(self.all_roofs, self.device.l2_bytes) for point in self.points)

    def table(self) -> Table:
        """One row a point; the roofs and what lies above them below."""
        columns = ("point", "time", "FLOP/B", "TFLOP/s", "GB/s", "level", "of the roof", "bound by")
        rows = []
        for point, bound in zip(self.points, self.bounds, strict=True):
            rates = (tables.decimal(point.rate / 1e12), tables.decimal(point.bytes / point.seconds / 1e9))
            row = (point.name, tables.seconds(point.seconds), tables.decimal(point.intensity), *rates, point.level)
            rows.append((*row, tables.percent(bound.fraction), f"{bound.roof.name} ({bound.roof.origin.kind})"))
        notes = [f"roof {roof}" for roof in self.all_roofs] + [b.diagnosis for b in self.bounds if b.diagnosis]
        origin = join(*(point.origin for point in self.points))
        at = f" at {self.at}" if self.at else ""
        return Table(f"{self.title}{at} ({self.dtype}) on {self.device.name}", columns, rows, origin, notes)

    def figure(self) -> Figure:
        """The picture, to change or to save."""
        return self._picture().figure()

    def _picture(self) -> Picture:
        return Picture(str(self), lambda: _draw(self))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return self._picture()._repr_mimebundle_()


def _draw(roofline: Roofline) -> Figure:
    """The log-log picture. Points without FLOP have no place on it; the table has them."""
    points = [point for point in roofline.points if point.flops and point.bytes]
    compute = [roof for roof in roofline.all_roofs if roof.unit == FLOPS]
    memory = [roof for roof in roofline.all_roofs if roof.unit == BYTES]
    origin = join(*(point.origin for point in points), *(roof.origin for roof in roofline.all_roofs))
    title = f"{roofline.title} ({roofline.dtype})"
    figure, axes = figures.frame(title, ", ".join(filter(None, (roofline.device.name, roofline.at))), origin, height_inches=5.2)
    axes.set(xscale="log", yscale="log", xlabel="intensity, FLOP per byte", ylabel="rate, TFLOP/s")
    top = max(roof.value for roof in compute)
    x = [point.intensity for point in points] + [top / roof.value for roof in memory] or [1.0]
    y = [point.rate for point in points] + [top]
    axes.set(xlim=(min(x) / 4, max(x) * 5), ylim=(min(min(y) / 3, top / 30) / 1e12, max(y) * 2.5 / 1e12))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,g}")
    figure.draw_without_rendering()  # fixes the layout, so that texts can be placed and turned in pixels
    for roof in compute:
        _draw_compute_roof(axes, roof)
    for k, roof in enumerate(memory):
        near = [_roof_style(other)[2] for other in memory[:k] if 0.4 < other.value / roof.value < 2.5]
        _draw_memory_roof(axes, roof, top, LETTER_PIXELS * sum(map(len, near)))
    _draw_points(axes, points)
    return figure


def _roof_style(roof: Roof) -> tuple[dict[str, Any], dict[str, Any], str]:
    """How to draw a roof and its name, and the name: dashed from a datasheet, solid when measured."""
    line = {"color": figures.INK, "lw": 1.4, "ls": "-" if roof.is_measured else (0, (5, 3)), "zorder": 2}
    text = {"fontsize": 8, "color": figures.INK, "bbox": {"fc": "white", "ec": "none", "alpha": 0.85, "pad": 0.4}}
    text["va"] = "top" if roof.is_measured else "bottom"  # roofs lie close together: names on either side
    return line, text | {"textcoords": "offset points"}, f"{roof.name} {roof.written} ({roof.origin.kind})"


def _draw_compute_roof(axes: Any, roof: Roof) -> None:
    line, text, name = _roof_style(roof)
    level = roof.value / 1e12
    axes.plot(axes.get_xlim(), (level, level), **line)
    axes.annotate(name, (axes.get_xlim()[1], level), (-4, -4 if roof.is_measured else 4), ha="right", **text)


def _draw_memory_roof(axes: Any, roof: Roof, top: float, away_pixels: float) -> None:
    """A memory roof up to `top` FLOP/s, its name along the line, so far away from the line's beginning."""
    line, text, name = _roof_style(roof)
    low = max(axes.get_xlim()[0], axes.get_ylim()[0] * 1e12 / roof.value)
    axes.plot((low, top / roof.value), (low * roof.value / 1e12, top / 1e12), **line)
    # Both axes are logarithmic: every memory roof has the same slope on the page.
    (left, below), (right, above) = axes.transData.transform(axes.lines[-1].get_xydata())
    angle = math.degrees(math.atan2(above - below, right - left))
    start = axes.transData.inverted().transform((left + 16 + away_pixels, below))[0]
    shift = (3, -3) if roof.is_measured else (-3, 3)
    turned = {"rotation": angle, "rotation_mode": "anchor", "ha": "left"}
    axes.annotate(name, (start, start * roof.value / 1e12), shift, **turned, **text)


def _draw_points(axes: Any, points: Sequence[Point]) -> None:
    """The points, arrows from each to the next, and each name at the nearest place that is free of all else."""
    import numpy as np

    at = [(point.intensity, point.rate / 1e12) for point in points]
    _join(axes, points, at)
    boxes = [text.get_window_extent() for text in axes.texts if text.get_text()]
    taken = [box for box in boxes if box.height < 20]
    lines = [line.get_xydata() for line in axes.lines] + list(pairwise(at))
    ways = [*map(axes.transData.transform, lines), *((box.min, box.max) for box in boxes if box.height >= 20)]  # turned names
    spots = np.array([*map(axes.transData.transform, at), *(a + (b - a) * k / 100 for a, b in ways for k in range(101))])
    kernels = list(dict.fromkeys(point.kernel or point.name for point in points))
    for point, xy in zip(points, at, strict=True):
        k = kernels.index(point.kernel or point.name)
        color = figures.color(k)
        axes.plot(*xy, figures.marker(k), color=color, zorder=5)
        name = axes.annotate(point.name, xy, (0, 0), textcoords="offset points", va="center", fontsize=8.5, color=color)

        def place(across: float, up: float, name: Annotation = name) -> Bbox:
            name.set(position=(across, up), ha="left" if across > 1 else "right" if across < -1 else "center", zorder=6)
            return name.get_window_extent()

        def crowding(offset: tuple[float, float]) -> float:
            box = place(*offset)
            outside = not (axes.bbox.containsx(box.x0) and axes.bbox.containsx(box.x1) and axes.bbox.containsy(box.y0))
            return 1000 * (outside + box.count_overlaps(taken)) + box.count_contains(spots)

        best = min(_OFFSETS, key=crowding)
        taken.append(place(*best))
        if math.hypot(*best) > NEAR_POINTS + 1:
            leader = {"arrowstyle": "-", "color": color, "lw": 0.7, "shrinkA": 1, "shrinkB": 4}
            axes.annotate("", xy, best, textcoords="offset points", arrowprops=leader)


def _join(axes: Any, points: Sequence[Point], at: Sequence[tuple[float, float]]) -> None:
    """Arrows from each point of the story to the next; a line through the points of one kernel."""
    arrow = {"arrowstyle": "-|>", "color": figures.GREY, "shrinkA": 6, "shrinkB": 6, "lw": 1.1}
    story = [xy for point, xy in zip(points, at, strict=True) if not point.kernel]
    for start, end in pairwise(story):
        axes.annotate("", end, start, arrowprops=arrow)
    for (one, start), (other, end) in pairwise(zip(points, at, strict=True)):
        if one.kernel and one.kernel == other.kernel:
            axes.annotate("", end, start, arrowprops={**arrow, "arrowstyle": "-", "ls": (0, (1, 2))})
