"""One recorded timing of one version, read back: the rates that follow from it, by name, and whether it still holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from perflab import tables
from perflab.comparison import UNIT_FLOOR
from perflab.gpus import Gpu
from perflab.origins import Origin, join
from perflab.roofline import Point, datasheet_roofs
from perflab.studies import Work
from perflab.tables import Shown, Table
from perflab.timing import Series, Timed, Timing

CALCULATED = Origin("calculated", "the shape's exact formula")


@dataclass(frozen=True)
class Measurement(Timed, Shown):
    """The recorded times of one version at one shape on one GPU, and what follows from them.

    Rates divide by the cold median. useful: bytes that must move once, over time; asked: bytes the kernel's loads and
    stores ask for, over time (L1, L2 and DRAM serve them: it may pass the DRAM peak). stale: why the record no longer
    describes today's code; empty when it does. unit: the uuid of the very GPU.
    """

    version: str
    shape: Any
    gpu: Gpu
    timing: Timing
    work: Work
    asked_bytes: int | None
    measured_on: str
    stale: tuple[str, ...]
    dtype: str = "float32"
    unit: str = ""

    @property
    def useful_bytes_per_second(self) -> float:
        """Bytes that must move once, over time."""
        return self.work.bytes / self.seconds

    @property
    def asked_bytes_per_second(self) -> float | None:
        """Bytes the kernel asks for, over time; None where the version does not state them."""
        return None if self.asked_bytes is None else self.asked_bytes / self.seconds

    @property
    def flops_per_second(self) -> float:
        """The shape's FLOPs over time."""
        return self.work.flops / self.seconds

    @property
    def origin(self) -> Origin:
        """Measured, where and when."""
        return Origin("measured", f"{self.gpu.name}, {self.measured_on}, {self.timing.method}")

    def table(self) -> Table:
        """Cold, hot and empty-launch times, and the rates that follow from each median."""
        peak = self.gpu.memory_bytes_per_second
        rows = []
        for label, series in self._series():
            middle = series.median_seconds
            useful = self.work.bytes / middle
            rows.append((label, tables.seconds(middle), series.interval_words(), tables.seconds(min(series.samples_seconds)),
                         tables.seconds(series.iqr_seconds), len(series.samples_seconds), tables.bytes_per_second(useful),
                         tables.percent(useful / peak if peak else None), tables.flops_per_second(self.work.flops / middle)))
        return Table(f"{self.version} on {self.gpu.name}, {describe(self.shape)}",
                     ("", "median", "95 % interval", "minimum", "IQR", "samples", "useful", "of DRAM peak", "rate"), rows,
                     join(self.origin, CALCULATED), list(self._notes()))

    def _series(self) -> tuple[tuple[str, Series], tuple[str, Series]]:
        return ("cold L2", self.timing.cold), ("hot L2", self.timing.hot)

    def _notes(self) -> Iterator[str]:
        """What a reader must know of how the numbers came to be, and what is wrong with them."""
        timing = self.timing
        yield (f"an empty kernel timed the same ways: {tables.seconds(timing.empty_launch_seconds)} cold, "
               f"{tables.seconds(timing.empty_hot_seconds)} hot; not subtracted")
        clocks = [f"{label} {series.sm_hz / 1e6:,.0f} MHz" for label, series in self._series() if series.sm_hz]
        yield "; ".join([f"{label} ended: {series.stopped}" for label, series in self._series()] +
                        (["SM clock " + ", ".join(clocks)] if clocks else []))
        if timing.together:
            yield f"interleaved with {', '.join(timing.together)}"
        yield from (f"part {name}: {tables.seconds(seconds)} cold" for name, seconds in timing.parts)
        if not timing.held:
            yield "the launch gap is inside: the work waits for the GPU itself"
        if throttle := timing.clocks_after.get("throttle"):
            yield f"the clock was held down after the samples: {', '.join(throttle)}"
        roofs = datasheet_roofs(self.gpu, self.dtype)
        for label, series in self._series() if {"", "DRAM"} <= {roof.level for roof in roofs} else ():
            name, work = f"{self.version}, {label}", self.work
            point = Point(name, work.flops, work.bytes, series.median_seconds, origin=self.origin)
            if diagnosis := point.bound(roofs, self.gpu.l2_bytes).diagnosis:
                yield diagnosis
        yield from (f"STALE: {reason}" for reason in self.stale)


def describe(shape: Any) -> str:
    """A shape in words: 'batch 1, q_len 9, heads 64, prefix 16,384, tree random'; sizes of 0 that mean "none" are left out."""
    parts = ((name, value) for name, value in asdict(shape).items() if not (name == "page" and value == 0))
    return ", ".join(f"{name} {tables.cell(value)}" for name, value in parts)


def ratio_interval(over: Measurement, this: Measurement) -> tuple[float, float]:
    """Where the ratio of the two cold medians lies if each lies in its own 95 % interval: over / this, (low, high).

    Wider by UNIT_FLOOR where they were taken on two units of a GPU, which run the same code that far apart.
    """
    low, high = over.interval[0] / this.interval[1], over.interval[1] / this.interval[0]
    if over.unit == this.unit:
        return low, high
    middle, half = math.sqrt(low * high), math.exp(math.hypot(math.log(high / low) / 2, UNIT_FLOOR))
    return middle / half, middle * half


def speed_up(over: Measurement, this: Measurement) -> str:
    """The ratio of cold medians in words, '1.21x'; a tie where `ratio_interval` leaves it open which is faster."""
    low, high = ratio_interval(over, this)
    tie = over is not this and low <= 1 <= high
    return tables.ratio(over.seconds / this.seconds) + (" (tie)" if tie else "")


def unit_notes(compared: Iterable[Sequence[str]]) -> list[str]:
    """A line where some that are compared with each other, each by the uuid of its GPU, were not all measured on one."""
    return [f"some pairs were measured on two units of this GPU: there a difference under {100 * UNIT_FLOOR:g} % is a tie"
            ] if any(len(set(units)) > 1 for units in compared) else []


def stale_notes(seen: Sequence[Measurement]) -> list[str]:
    """A line a stale measurement: which, and why."""
    return [f"STALE: {m.version} at {describe(m.shape)}: {reason}" for m in seen for reason in m.stale]


def floor_seconds(work: Work, gpu: Gpu, dtype: str) -> tuple[float, float]:
    """The least time by datasheet: (arithmetic, DRAM). Calculated; 0 where the GPU's peak is unknown."""
    flops, rate = gpu.peaks.get(dtype), gpu.memory_bytes_per_second
    return (work.flops / flops if flops else 0.0), (work.bytes / rate if rate else 0.0)
