"""What was recorded of the hardware, read back: counters and findings, beside the emulator and the occupancy model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from perflab import counters, sanitizer, tables
from perflab.check import Check
from perflab.counters import HardwareCounts, difference_words, emulated
from perflab.emulator.operations import Unsupported
from perflab.errors import PerflabError
from perflab.gpus import Gpu
from perflab.measurement import describe
from perflab.occupancy_model import Occupancy
from perflab.origins import Origin, join
from perflab.records import Record, stale_reasons
from perflab.sanitizer import TOOLS, Findings
from perflab.studies import Launch, NotApplicable
from perflab.tables import Table

if TYPE_CHECKING:
    from perflab.emulated import EmulatedCheck
    from perflab.versions import BoundVersion

COMPARED = ("global_load_sectors", "global_load_requests", "global_store_sectors", "global_store_requests", "flop_f32",
            "shared_load_wavefronts", "shared_store_wavefronts", "warp_instructions")
"""The counters of the table over versions."""


# ---------------------------------------------------------------- of one version
def recorded_counters(bound: BoundVersion, shape: Any, gpu: Gpu) -> HardwareCounts:
    """The newest recorded counters of a version at a shape. No record is an error that says how to take one."""
    record = bound.bench.record(bound.name, shape, gpu, "counts")
    if record is None:
        raise PerflabError(f"no hardware counters of {bound.bench.name}/{bound.name} at {describe(shape)} on {gpu.name}: take "
                           f"them with `perflab measure {bound.bench.name} --counters` on such a GPU, or count on the CPU")
    return counters.from_record(record, stale_reasons(record, bound.identity(shape, gpu)))


def recorded_findings(bound: BoundVersion, gpu: Gpu) -> tuple[Findings, Any]:
    """What compute-sanitizer last found in a version, and at which shape. No record is an error that says how to take one."""
    bench = bound.bench
    mine: list[Record] = [r for r in bench.store.newest(bench.name, gpu.name)
                          if (r.kind, r.version, r.dtype, r.rival) == ("faults", bound.name, bench.study.dtype, None)]
    if not mine:
        raise PerflabError(f"{bench.name}/{bound.name} was not under compute-sanitizer on {gpu.name}: take its findings with "
                           f"`perflab measure {bench.name} --sanitize` on such a GPU, or .check() on the CPU")
    newest = max(mine, key=lambda record: record.utc)
    shape = bench.study.make_shape(**newest.shape)
    return sanitizer.from_record(newest, stale_reasons(newest, bound.identity(shape, gpu))), shape


def finders(bound: BoundVersion, gpu: Gpu) -> Table:
    """Who finds what in a version: the emulator, run now at the shape of the record, and each recorded tool."""
    found, shape = recorded_findings(bound, gpu)
    return sanitizer.finders(found.name, _emulated(bound, shape, gpu).faults, found)


def _emulated(bound: BoundVersion, shape: Any, gpu: Gpu) -> EmulatedCheck:
    found = bound.check(shape, gpu, emulate=True)
    assert not isinstance(found, Check)
    return found


# ---------------------------------------------------------------- over versions
def _counted(versions: Sequence[BoundVersion], shape: Any, gpu: Gpu) -> Iterator[tuple[BoundVersion, HardwareCounts]]:
    """The versions that have recorded counters at a shape. PerflabError if none has."""
    have = [bound for bound in versions if bound.bench.record(bound.name, shape, gpu, "counts")]
    if versions and not have:
        recorded_counters(versions[0], shape, gpu)
    return ((bound, recorded_counters(bound, shape, gpu)) for bound in have)


def agreement_table(title: str, versions: Sequence[BoundVersion], shape: Any, gpu: Gpu) -> Table:
    """A row a version and counter: what the emulator counts now beside what the hardware counted."""
    rows, origins, notes = list[tuple](), list[Origin](), list[str]()
    for bound, measured in _counted(versions, shape, gpu):
        ours = bound.count(shape, gpu)
        for name in COMPARED:
            if one := measured.found.get(name):
                said = emulated(ours, one.counter.emulated)
                rows.append((bound.name, name, round(said), round(one.value), difference_words(said, one.value)))
        origins += [ours.origin, measured.origin]
        notes += measured.stale_notes
    columns = ("version", "counter", "emulated (PTX)", "measured (SASS)", "difference")
    return Table(f"{title}: emulator against {gpu.name} at {describe(shape)}", columns, rows, join(*origins), notes)


def launched(measured: HardwareCounts) -> tuple[HardwareCounts, ...]:
    """The counters of each launch alone."""
    return measured.parts or (measured,)


def occupancies(bound: BoundVersion, shape: Any, gpu: Gpu) -> list[tuple[Launch, Occupancy]]:
    """Each launch of a version with its calculated occupancy."""
    from perflab.versions import occupancy_of

    return [(launch, occupancy_of(launch, gpu)) for launch in bound.launches(shape, gpu)]


def occupancy_table(title: str, versions: Sequence[BoundVersion], shape: Any, gpu: Gpu) -> Table:
    """A row a launch: calculated occupancy and waves beside ncu's own, and the occupancy that the launch reached."""
    rows, origins, notes = list[tuple](), list[Origin](), list[str]()
    for bound, measured in _counted(versions, shape, gpu):
        for (launch, ours), theirs in zip(occupancies(bound, shape, gpu), launched(measured), strict=True):
            busy = theirs.get("sm_cycles_active_avg"), theirs.get("sm_cycles_active_max")
            share = busy[0] / busy[1] if busy[0] is not None and busy[1] else None
            rows.append((bound.name, (launch.kernel.name or "").partition("<")[0], tables.percent(ours.fraction),
                         tables.percent(theirs.get("theoretical_occupancy")), tables.percent(theirs.get("achieved_occupancy")),
                         _waves(ours.waves), _waves(theirs.get("waves")),
                         tables.percent(share)))
            origins.append(ours.origin)
        origins.append(measured.origin)
        notes += measured.stale_notes
    columns = ("version", "kernel", "calculated", "ncu's", "achieved", "waves", "ncu's waves", "SMs busy, mean of longest")
    return Table(f"{title}: occupancy, calculated and achieved, on {gpu.name} at {describe(shape)}", columns, rows,
                 join(*origins), notes)


def _waves(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def findings_table(title: str, versions: Sequence[BoundVersion], gpu: Gpu) -> Table:
    """A row a version under compute-sanitizer: causes found by the emulator (now, at the same shape) and by each tool."""
    rows, origins, notes = list[tuple](), list[Origin](), list[str]()
    for bound in versions:
        try:
            found, shape = recorded_findings(bound, gpu)
            mine = _emulated(bound, shape, gpu)
        except (PerflabError, NotApplicable, Unsupported) as reason:
            notes.append(f"{bound.name}: {reason}")
            continue
        each = (len(found.faults[tool]) if tool in found.faults else "-" for tool in TOOLS)
        rows.append((bound.name, describe(shape), len(mine.faults), *each))
        origins += [found.origin, mine.counts.origin]
        notes += [f"{bound.name}, {tool}: {note}" for tool, several in found.notes.items() for note in several]
        notes += found.stale_notes
    return Table(f"{title}: causes found, on {gpu.name} and on the CPU", ("version", "at", "emulator", *TOOLS), rows,
                 join(*origins), notes)
