"""The ceilings of a GPU as the study `ceilings` measured them: roofs, what to divide by, a table, the L2 curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perflab import charts, tables
from perflab.errors import PerflabError
from perflab.figures import Picture
from perflab.gpus import MIB, Gpu
from perflab.gpus import gpu as find_gpu
from perflab.origins import Origin, join
from perflab.planning import identity_of
from perflab.records import RecordStore, stale_reasons
from perflab.roofline import BYTES, FLOPS, Roof
from perflab.studies import Study, load_study
from perflab.tables import Shown, Table
from perflab.timing import Timing

# Version -> (its name, the times that hold). A read is read off cold samples: all of it comes from DRAM. After a cold write
# an L2 full of dirty lines is still to be written back; in hot batches each launch pays for the one before.
NAMES = {
    "dram_read": ("DRAM read", "cold"), "dram_write": ("DRAM write", "hot"), "dram_copy": ("DRAM copy", "hot"),
    "dram_triad": ("DRAM triad", "hot"), "l2_read": ("L2 read", "hot"), "fp32_fma": ("float32 FMA", "hot"),
    "mma_bf16": ("bfloat16 mma.sync", "hot"), "mma_fp16": ("float16 mma.sync", "hot"), "mma_tf32": ("tf32 mma.sync", "hot"),
    "empty": ("empty launch", "cold"), "empty_pair": ("two empty launches", "cold"),
}
SECONDS = "s"
LEAST_L2_BYTES = 8 * MIB  # of less, several SMs ask for one line at once and are served together: above what L2 can give
WRITE = {BYTES: tables.bytes_per_second, FLOPS: tables.flops_per_second, SECONDS: tables.seconds}


@dataclass(frozen=True)
class Ceiling:
    """One measured ceiling: `value` in `unit` (B/s, FLOP/s or s), median of the cold or hot samples, at the SM clock over them.

    duty: burst or sustained; size_bytes: the working set of an L2 ceiling; sm_hz is None where a sample is too short to tell.
    """

    name: str
    duty: str
    size_bytes: int
    value: float
    unit: str
    times: str
    sm_hz: float | None
    gpu: str
    measured_on: str

    @property
    def clock(self) -> str:
        """The SM clock in words."""
        return f"{self.sm_hz / 1e6:,.0f} MHz" if self.sm_hz else tables.NOTHING

    @property
    def roof(self) -> Roof:
        """As a roof, with the working set in an L2's name. Raises PerflabError for a launch, which is none."""
        set_ = f" of {self.size_bytes // MIB} MiB" if self.name.startswith("L2") else ""
        origin = Origin("measured", f"{self.gpu}, {self.measured_on}, {self.duty}, SM clock {self.clock}")
        return Roof(self.name + set_, self.value, self.unit, origin)


def ceilings(store: RecordStore, gpu: str | Gpu, study: Study | Path) -> tuple[Ceiling, ...]:
    """Every declared ceiling whose newest record on that GPU still holds; a stale or missing one is left out."""
    declared, chosen = load_study(study) if isinstance(study, Path) else study, find_gpu(gpu)
    found = []
    for shape in declared.shapes:
        version = declared.version(shape.ceiling)
        record = store.find(declared.name, version.name, shape, chosen.name, "timing", declared.dtype)
        if record is None or stale_reasons(record, identity_of(declared, version, shape, chosen)):
            continue
        name, times = NAMES[version.name]
        timing = Timing.from_dict(record.timing)
        series = timing.cold if times == "cold" else timing.hot
        assert version.asked_bytes is not None
        unit = SECONDS if not shape.size_bytes else BYTES if name.startswith(("DRAM", "L2")) else FLOPS
        amount = {BYTES: version.asked_bytes(shape, chosen), FLOPS: declared.work(shape).flops}.get(unit)
        value = series.median_seconds if amount is None else amount / series.median_seconds
        found.append(Ceiling(name, shape.duty, shape.size_bytes, value, unit, times, series.sm_hz, chosen.name,
                             record.utc[:10]))
    return tuple(found)


def of_ceiling(found: Sequence[Ceiling], name: str, duty: str = "burst") -> Ceiling | None:
    """The ceiling that a rate taken at that duty is divided by, None where it was not measured; of the L2's, the highest.

    name: "DRAM read", …, "float32 FMA", as NAMES has them. Single calls with pauses are "burst"; a kernel that ran for
    seconds is "sustained": power may have pulled the clock down, and what was measured at the higher one is not its limit.
    """
    fitting = [c for c in found if (c.name, c.duty) == (name, duty) and (name != "L2 read" or c.size_bytes >= LEAST_L2_BYTES)]
    return max(fitting, key=lambda ceiling: ceiling.value, default=None)


def measured_roofs(store: RecordStore, gpu: str | Gpu, dtype: str, study: Study | Path,
                   duty: str = "burst") -> tuple[Roof, ...]:
    """The measured roofs for kernels in `dtype`, those there are: DRAM read and copy, the best L2 read (bursts only), and
    float32's FMA or the mma.sync of the type. On sm_90 and sm_100 the last is no limit of wgmma or tcgen05 kernels."""
    found = ceilings(store, gpu, study)
    arithmetic = [name for name, _ in NAMES.values() if name.split()[0] == dtype]
    chosen = (of_ceiling(found, name, duty) for name in ("DRAM read", "DRAM copy", "L2 read", *arithmetic))
    return tuple(ceiling.roof for ceiling in chosen if ceiling)


@dataclass(frozen=True)
class CeilingsTable(Shown):
    """The ceilings of one GPU beside its datasheet."""

    gpu: Gpu
    found: tuple[Ceiling, ...]

    def table(self) -> Table:
        """A row a ceiling and duty; of the L2's the best, the others are in `l2_curve`."""
        best = of_ceiling(self.found, "L2 read")
        rows = []
        for ceiling in self.found:
            if ceiling.name.startswith("L2") and ceiling is not best:
                continue
            published = self._datasheet(ceiling)
            name = ceiling.name if ceiling.unit == SECONDS else ceiling.roof.name
            rows.append((name, ceiling.duty, WRITE[ceiling.unit](ceiling.value), ceiling.times, ceiling.clock,
                         WRITE[ceiling.unit](published), tables.percent(ceiling.value / published if published else None)))
        notes = ["cold: single launches after a flush; hot: launches back to back, where written lines are paid for",
                 "datasheet: dense tensor cores for mma.sync, at the datasheet's clock"]
        return Table(f"Ceilings of the {self.gpu.name}",
                     ("ceiling", "duty", "reached", "samples", "SM clock", "datasheet", "of it"), rows,
                     _origin(self.found), notes)

    def _datasheet(self, ceiling: Ceiling) -> float | None:
        if ceiling.name.startswith("DRAM"):
            return self.gpu.memory_bytes_per_second
        return self.gpu.peaks.get(ceiling.name.split()[0])


def ceilings_table(store: RecordStore, gpu: str | Gpu, study: Study | Path) -> CeilingsTable:
    """Every ceiling, burst and sustained: value, clock, the datasheet's value and the share of it. No records is an error."""
    return CeilingsTable(find_gpu(gpu), _some("ceiling", ceilings(store, gpu, study), gpu))


def l2_curve(store: RecordStore, gpu: str | Gpu, study: Study | Path) -> Picture:
    """Read bandwidth against the working set, with the DRAM read ceiling across. No records is an error."""
    chosen, found = find_gpu(gpu), ceilings(store, gpu, study)
    points = sorted(_some("L2 ceiling", [c for c in found if c.name == "L2 read"], gpu), key=lambda c: c.size_bytes)
    dram = of_ceiling(found, "DRAM read")
    line = charts.Curve("read past L1", [c.size_bytes / MIB for c in points], [c.value for c in points], 0)
    size = f", L2 of {chosen.l2_bytes / MIB:.0f} MiB" if chosen.l2_bytes else ""
    return charts.curves("Read bandwidth against working set", chosen.name + size, _origin(points), "working set [MiB]",
                         charts.BANDWIDTH, [line], [charts.Level("DRAM read", dram.value)] if dram else [])


def _origin(found: Sequence[Ceiling]) -> str:
    return join(*(Origin("measured", f"{ceiling.gpu}, {ceiling.measured_on}") for ceiling in found))


def _some(what: str, found: Sequence[Ceiling], gpu: str | Gpu) -> tuple[Ceiling, ...]:
    if not found:
        raise PerflabError(f"no {what} of the {find_gpu(gpu).name} is recorded that holds today: take them with "
                           "`perflab measure ceilings` on such a GPU")
    return tuple(found)
