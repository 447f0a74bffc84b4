"""Five bandwidths of a version by name, over one time: useful, asked, and what L1, L2 and DRAM moved by recorded counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perflab import tables
from perflab.counters import HardwareCounts
from perflab.errors import PerflabError
from perflab.gpus import Gpu
from perflab.hardware import LEVELS
from perflab.measurement import CALCULATED, Measurement, describe, stale_notes
from perflab.origins import join
from perflab.roofline import Roof
from perflab.tables import Shown, Table

if TYPE_CHECKING:
    from perflab.versions import BoundVersion

ONE_PATH = {"shared": "L1"}  # L1 and shared memory are one data path of an SM, so the roof of one is the other's


@dataclass(frozen=True)
class Bandwidths:
    """One version at one shape: its timing, or the word in its place ("n/a", "not measured"); its counters, if recorded."""

    name: str
    timed: Measurement | str
    counted: HardwareCounts | None = None

    def moved(self, level: str) -> float | None:
        """Bytes that a level of memory moved, in all launches together; None where they were not counted."""
        return self.counted.get(LEVELS[level]) if self.counted else None

    def rate(self, level: str) -> float | None:
        """Those bytes over the cold median, in bytes per second; None without both."""
        moved = self.moved(level)
        return moved / self.timed.seconds if isinstance(self.timed, Measurement) and moved is not None else None


@dataclass(frozen=True)
class BandwidthTable(Shown):
    """Versions at one shape, beside the roofs of the levels of memory."""

    title: str
    found: Sequence[Bandwidths]
    roofs: Sequence[Roof]

    def roof(self, level: str) -> Roof | None:
        """The roof of a level: a measured one before another, the first of each kind."""
        fitting = [roof for roof in self.roofs if level in (roof.level, ONE_PATH.get(roof.level))]
        return min(fitting, key=lambda roof: not roof.is_measured, default=None)

    def share(self, one: Bandwidths, level: str) -> float | None:
        """The part of a level's roof that a version reaches; None without a rate or a roof."""
        rate, roof = one.rate(level), self.roof(level)
        return rate / roof.value if roof and rate is not None else None

    def table(self) -> Table:
        """A row a version: the cold median, then bandwidth by name, of a level with its share of the level's roof."""
        timed = [one.timed for one in self.found if isinstance(one.timed, Measurement)]
        counted = [one.counted for one in self.found if one.counted]
        columns = ("version", "cold median", "useful", "asked", *(text for level in LEVELS for text in (level, "of its roof")))
        origin = join(*(m.origin for m in timed), *(c.origin for c in counted), CALCULATED)
        stale = [*stale_notes(timed), *(note for c in counted for note in c.stale_notes)]
        return Table(self.title, columns, list(map(self._row, self.found)), origin, [*self._notes(), *stale])

    def _row(self, one: Bandwidths) -> tuple:
        if isinstance(one.timed, str):
            return (one.name, one.timed, *["-"] * (2 + 2 * len(LEVELS)))
        by_level = ((tables.bytes_per_second(one.rate(level)), tables.percent(self.share(one, level))) for level in LEVELS)
        return (one.name, tables.seconds(one.timed.seconds), tables.bytes_per_second(one.timed.useful_bytes_per_second),
                tables.bytes_per_second(one.timed.asked_bytes_per_second), *(text for pair in by_level for text in pair))

    def _notes(self) -> list[str]:
        roofs = [f"{level}: of {roof}" for level in LEVELS if (roof := self.roof(level))]
        missing = [one.name for one in self.found if isinstance(one.timed, Measurement) and not one.counted]
        return roofs + ([f"no counters are recorded here of {', '.join(missing)}"] if missing else [])


def bandwidths_of(bound: BoundVersion, timed: Measurement | str, shape: Any, gpu: Gpu) -> Bandwidths:
    """A version's timing with its recorded counters, where there are some."""
    recorded = bound.bench.record(bound.name, shape, gpu, "counts")
    return Bandwidths(bound.name, timed, bound.counters(shape, gpu) if recorded else None)


def bandwidth_table(title: str, found: Sequence[Bandwidths], shape: Any, gpu: Gpu, roofs: Sequence[Roof]) -> BandwidthTable:
    """Of versions at a shape. roofs: of L1, L2 and DRAM, in order of preference. PerflabError if nothing is timed."""
    if all(isinstance(one.timed, str) for one in found):
        raise PerflabError(f"{', '.join(one.name for one in found)}: nothing is measured on {gpu.name} at {describe(shape)}")
    return BandwidthTable(f"{title}: bandwidth by name on {gpu.name}, {describe(shape)}", found, roofs)
