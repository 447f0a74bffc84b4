"""What was recorded of the hardware, read back: counters and findings, beside the emulator and the occupancy model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perflab import counters, sanitizer, tables
from perflab.check import Check
from perflab.counters import HardwareCounts, difference_words, emulated
from perflab.emulator.operations import Unsupported
from perflab.errors import PerflabError
from perflab.gpus import Gpu
from perflab.measurement import Measurement, describe
from perflab.occupancy_model import Occupancy
from perflab.origins import Origin, join
from perflab.records import Record, stale_reasons
from perflab.roofline import Point, counted_points, level_points
from perflab.sanitizer import TOOLS, Findings
from perflab.studies import Launch, NotApplicable
from perflab.tables import Table

if TYPE_CHECKING:
    from perflab.emulated import EmulatedCheck
    from perflab.versions import BoundVersion

COMPARED = ("global_load_sectors", "global_load_requests", "global_store_sectors", "global_store_requests", "flop_f32",
            "shared_load_wavefronts", "shared_store_wavefronts", "warp_instructions")
"""The counters of the table over versions."""
LEVELS = {"L1": "l1_bytes", "L2": "l2_from_sm_bytes", "DRAM": "dram_bytes"}
"""Level of memory -> the counter of its bytes: of L1 and L2 what the SMs moved, of DRAM all that it moved."""


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


# ---------------------------------------------------------------- where the cycles of a launch go
# Stall reasons in words: Nsight Compute documentation, Profiling Guide, "Warp Stall Reasons".
STALLS = {
    "long_scoreboard": "global or local memory", "short_scoreboard": "shared memory or special functions",
    "barrier": "the block's barrier", "wait": "the fixed latency of an instruction", "not_selected": "another warp's turn",
    "mio_throttle": "the queue of shared memory and special functions", "lg_throttle": "the queue of global memory",
    "math_pipe_throttle": "an arithmetic pipe", "no_instruction": "the next instruction", "imc_miss": "the constant cache",
    "dispatch_stall": "the dispatcher",
}
NO_WAIT = ("selected", "not_selected")


@dataclass(frozen=True)
class Cycles:
    """One launch under ncu, in cycles: it took `elapsed`, an SM had a block in `active` on average, and of these the busiest
    unit worked in `busiest`."""

    elapsed: float
    active: float
    busiest: float

    @property
    def idle(self) -> float:
        return max(0.0, self.elapsed - self.active)

    @property
    def waiting(self) -> float:
        return max(0.0, min(self.active, self.elapsed) - self.busiest)


def cycles_of(found: HardwareCounts) -> Cycles | None:
    """The cycles of one launch; None where a counter is absent."""
    elapsed, active, issued = (found.get(n) for n in ("cycles_elapsed", "sm_cycles_active_avg", "issue_slots_busy"))
    if elapsed is None or active is None or issued is None or not elapsed:
        return None
    of_elapsed = max(found.get(name) or 0.0 for name in ("sm_percent", "l2_percent", "dram_percent"))
    of_active = max(issued, (found.get("l1_percent") or 0.0) / 100)
    return Cycles(elapsed, active, max(active * of_active, elapsed * of_elapsed / 100))


def waited_for(found: HardwareCounts, fit_warps: int) -> tuple[str, str]:
    """(what the warps of a launch waited for most, all of it in words). fit_warps: that an SM can hold by its occupancy."""
    stalls = {field.removeprefix("stall_"): one.value for field, one in found.found.items() if field.startswith("stall_")}
    whole = sum(stalls.values())
    waited = sorted(((value, name) for name, value in stalls.items() if value and name not in NO_WAIT), reverse=True)
    facts = [f"a scheduler issued in {tables.percent(found.get('issue_slots_busy'))} of its cycles"]
    if (warps := found.get("achieved_warps_per_sm")) is not None:
        facts.append(f"{tables.decimal(warps)} warps an SM, {fit_warps} fit")
    told = [f"{tables.percent(value / whole)} {name.replace('_', ' ')}" for value, name in waited[:3]]
    facts += [f"of their time {', '.join(told)}"] if told else []
    return (waited[0][1].replace("_", " ") if waited else ""), "; ".join(facts)


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


def measured_points(bound: BoundVersion, shape: Any, gpu: Gpu, timed: Measurement) -> list[Point]:
    """A point a level of memory, by the recorded counters and the recorded time: what L1, L2 and DRAM moved. L1 without shared
    memory. No record is an error that says how to take one; a counter that was not collected too."""
    found = recorded_counters(bound, shape, gpu)
    moved = {level: found[field] for level, field in LEVELS.items()}
    origin = Origin("measured", f"time: {timed.origin.detail}; bytes and FLOP: {found.origin.detail}")
    return level_points(bound.name, found["flop_f32"], moved, timed.seconds, origin)


def emulated_points(bound: BoundVersion, timed: Measurement, sample: int | None) -> list[Point]:
    """A point a way to count bytes, by the emulator and the recorded time."""
    counts = bound.count(timed.shape, timed.gpu, sample)
    origin = Origin(timed.origin.kind, f"{timed.origin.detail}; bytes and FLOP: {counts.origin}")
    moved = {name: n for name, n in counts.moved.items() if counts.exact or name != "unique"}  # else a lower bound
    return counted_points(bound.name, counts.flops, moved, timed.seconds, origin)


def occupancies(bound: BoundVersion, shape: Any, gpu: Gpu) -> list[tuple[Launch, Occupancy]]:
    """Each launch of a version with its calculated occupancy."""
    from perflab.versions import occupancy_of

    return [(launch, occupancy_of(launch, gpu)) for launch in bound.launches(shape, gpu)]


def occupancy_table(title: str, versions: Sequence[BoundVersion], shape: Any, gpu: Gpu) -> Table:
    """A row a launch: calculated occupancy and waves beside ncu's own, what its grid can fill of that, and what it reached."""
    rows, origins, notes = list[tuple](), list[Origin](), list[str]()
    for bound, measured in _counted(versions, shape, gpu):
        for (launch, ours), theirs in zip(occupancies(bound, shape, gpu), launched(measured), strict=True):
            busy = theirs.get("sm_cycles_active_avg"), theirs.get("sm_cycles_active_max")
            share = busy[0] / busy[1] if busy[0] is not None and busy[1] else None
            rows.append((bound.name, (launch.kernel.name or "").partition("<")[0], tables.percent(ours.fraction),
                         tables.percent(theirs.get("theoretical_occupancy")), tables.percent(of_grid(ours)),
                         tables.percent(theirs.get("achieved_occupancy")),
                         _waves(ours.waves), _waves(theirs.get("waves")),
                         tables.percent(share)))
            origins.append(ours.origin)
        origins.append(measured.origin)
        notes += measured.stale_notes
    columns = ("version", "kernel", "calculated", "ncu's", "of this grid", "achieved", "waves", "ncu's waves",
               "SMs busy, mean of longest")
    return Table(f"{title}: occupancy, calculated and achieved, on {gpu.name} at {describe(shape)}", columns, rows,
                 join(*origins), notes)


def of_grid(found: Occupancy) -> float:
    """The occupancy that a grid can fill: of SMs that have a block, with its blocks spread evenly and all there at once."""
    if found.grid is None or not found.gpu.sm_count:
        return found.fraction
    blocks = min(float(found.blocks_per_sm), max(1.0, found.grid / found.gpu.sm_count))
    return blocks * found.demand.warps / found.gpu.limits.warps_per_sm


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
