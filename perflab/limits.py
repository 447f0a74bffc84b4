"""What holds a version: the least time that each unit of the GPU needs, and the time lost beside them, ranked.

A *unit* (issue slots, FP32 lanes, shared memory, L1, L2, DRAM) needs at least amount / rate. Units work at the same time, so
their shares do not add. A *loss* is time in which the busiest unit did nothing: SMs without a block, warps that all waited, the
launch itself. The busiest unit, idle SMs and waits together are the whole time.

Amounts are hardware counters where they were recorded, else counts of PTX; amounts and rates are in `units`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perflab import tables
from perflab.ceilings import Ceiling, ceilings
from perflab.counters import HardwareCounts
from perflab.emulator.operations import Unsupported
from perflab.errors import PerflabError
from perflab.gpus import Gpu
from perflab.hardware import STALLS, cycles_of, launched, occupancies, recorded_counters, waited_for
from perflab.measurement import Measurement, describe
from perflab.occupancy_model import Occupancy
from perflab.origins import Origin, join
from perflab.studies import NotApplicable
from perflab.tables import Shown, Table
from perflab.units import (
    L1,
    ON_SM,
    SECTORS_A_WAVEFRONT,
    Amount,
    Unit,
    clock_of,
    counted_amounts,
    large,
    measured_amounts,
    total,
    units_of,
)

if TYPE_CHECKING:
    from perflab.studies import Launch
    from perflab.versions import BoundVersion

IDLE, WAITS, LAUNCH = "idle SMs", "waits", "launch overhead"
SAMPLE = 16  # blocks of each launch that are run where nothing was recorded
HELD = 0.6  # of the time: a unit above it is said to hold a version
SMALL = 0.1  # of the time: a launch below it is not named
REMARK = ("units work at the same time, so their shares do not add; waits: SMs that had a block, but whose busiest unit did "
          "nothing; the busiest unit, idle SMs and waits are about the whole time")


# ---------------------------------------------------------------- the result
@dataclass(frozen=True)
class Limit:
    """One thing that takes time: a unit's work, or a loss.

    mostly: what more than half of a unit's work is, or what warps waited for most.
    seconds: the least that the work takes, or what was lost; None where nothing says. most_seconds: where the amount is a
    range, what its upper end takes. is_estimate: the work may be less, too. share: `seconds` of the measured time, None
    without one. origins: of amount and rate.
    """

    what: str
    seconds: float | None
    evidence: str
    origins: tuple[Origin, ...]
    mostly: str = ""
    most_seconds: float | None = None
    share: float | None = None
    is_loss: bool = False
    is_estimate: bool = False

    @property
    def sense(self) -> str:
        """How its seconds are meant."""
        return "lost" if self.is_loss else "about" if self.is_estimate else "at least"

    @property
    def name(self) -> str:
        """What it is, and what most of it is: 'waits, mostly long scoreboard'."""
        return f"{self.what}, mostly {self.mostly}" if self.mostly else self.what

    @property
    def kinds(self) -> str:
        """The kinds of its origins: 'measured + calculated'."""
        return " + ".join(dict.fromkeys(origin.kind for origin in self.origins))


@dataclass(frozen=True, repr=False)
class Limits(Shown):
    """What holds one version at one shape: `rows`, the longest first. seconds: the measured cold time, or None."""

    title: str
    rows: tuple[Limit, ...]
    seconds: float | None
    origins: tuple[Origin, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return str(self)

    @property
    def verdict(self) -> str:
        """One sentence: what the list says, and no more than it says."""
        return _verdict(self)

    def table(self) -> Table:
        """A row a limit under the verdict; what could not be said is below."""
        rows = [(one.name, one.sense, _seconds(one), _share(one, self.seconds), one.evidence, one.kinds) for one in self.rows]
        return Table(f"{self.title}: {self.verdict}", ("what", "", "time", "of the cold time", "evidence", "from"), rows,
                     join(*self.origins), [REMARK, *_legend(self.rows), *self.notes])


def _legend(rows: Iterable[Limit]) -> list[str]:
    """What the stall reasons mean that the rows name: one note, or none."""
    said = [row.evidence for row in rows if row.what == WAITS]
    told = [f"{reason.replace('_', ' ')}: waits for {words}" for reason, words in STALLS.items()
            if any(f"% {reason.replace('_', ' ')}" in evidence for evidence in said)]
    return ["; ".join(told)] if told else []


def _seconds(one: Limit) -> str:
    most = f" to {tables.seconds(one.most_seconds)}" if one.most_seconds else ""
    return tables.seconds(one.seconds) + most


def _share(one: Limit, seconds: float | None) -> str:
    most = f" to {tables.percent(one.most_seconds / seconds)}" if one.most_seconds and seconds else ""
    return tables.percent(one.share) + most


def _verdict(found: Limits) -> str:
    known = [one for one in found.rows if one.seconds is not None]
    units = [one for one in known if not one.is_loss]
    if not units:
        return "what holds it is not known, as nothing was counted"
    if found.seconds is None:
        first, idle = units[0], [one for one in known if one.what == IDLE]
        more = "".join(f"; idle SMs add {tables.seconds(one.seconds)} ({one.origins[0].kind})" for one in idle)
        return (f"not timed; of the units {first.name} needs the longest, {first.sense} {tables.seconds(first.seconds)}{more}; "
                f"how long warps wait is not known{_doubt(units, first)}")
    top, share = known[0], known[0].share or 0.0
    whole = [one for one in known if one is units[0] or one.what in (IDLE, WAITS)
             or one.what == LAUNCH and (one.share or 0) > SMALL]
    if share > 1 and not top.is_loss:
        return (f"{top.name} is above its rate, at {tables.percent(share)}: more was counted than the hardware does, or the "
                "rate or the time is of another case")
    if share >= HELD:
        verb = "of the time is lost so" if top.is_loss else "of the time is the least that this alone takes"
        return f"held by {top.name}: {tables.percent(share)} {verb}{_doubt(units, top)}"
    words = ", ".join(f"{one.name} ({_share(one, found.seconds)})" for one in whole)
    surely = "surely " if any(one.most_seconds for one in whole) else ""
    return f"no unit and no loss {surely}takes {100 * HELD:.0f} % of the time: {words}{_doubt(units, top)}"


def _doubt(units: Sequence[Limit], top: Limit) -> str:
    """The units whose amount is only known as a range that reaches above the top one."""
    above = [one.what for one in units if one is not top and (one.most_seconds or 0) > (top.seconds or 0)]
    return f"; not excluded, as only a range is known of it: {', '.join(above)}" if above else ""


# ---------------------------------------------------------------- the units
def unit_rows(units: Mapping[str, Unit], amounts: Mapping[str, Amount], origin: Origin) -> Iterator[Limit]:
    """A row a unit that has something to do and whose rate is known."""
    for name, amount in amounts.items():
        if name not in units or not (amount.least or amount.most):
            continue
        unit = units[name]
        most = amount.most / unit.per_second if amount.most and amount.most > amount.least else None
        origins = ((amount.origin,) if amount.origin else ()) + (origin, unit.origin)
        yield Limit(name, amount.least / unit.per_second, f"{amount.words}; {unit.words}", origins, amount.mostly, most,
                    is_estimate=amount.is_estimate)


# ---------------------------------------------------------------- losses, as ncu saw them
def measured_losses(found: HardwareCounts, each: Sequence[tuple[Launch, Occupancy]], seconds: float | None,
                    clock_hz: float | None) -> Iterator[Limit]:
    """Idle SMs and waits: shares of ncu's cycles, taken of the measured time; without one, those cycles by the clock."""
    parts = launched(found)
    taken = [cycles_of(part) for part in parts]
    if not all(taken):
        return
    known = [one for one in taken if one]
    elapsed, origin = sum(one.elapsed for one in known), (found.origin,)
    longest = max(range(len(parts)), key=lambda k: known[k].elapsed)

    def seconds_of(cycles: float) -> float | None:
        return cycles / elapsed * seconds if seconds else cycles / clock_hz if clock_hz else None

    idle, waiting = (sum(cycles) for cycles in zip(*((one.idle, one.waiting) for one in known), strict=True))
    ends = [parts[longest].get(f"sm_cycles_active_{end}") for end in ("min", "max")]
    apart = " to ".join(tables.percent(min(1.0, end / known[longest].elapsed)) for end in ends if end is not None)
    words = f"SMs had a block in {tables.percent(1 - idle / elapsed)} of the cycles" + (f" ({apart} by SM)" if apart else "")
    words = "; ".join([words, *(_blocks(one) for _, one in each)])
    yield Limit(IDLE, seconds_of(idle), words, (*origin, each[0][1].origin), is_loss=True)
    its_own = each[min(longest, len(each) - 1)][1]  # a stale record may have other launches than today's version
    mostly, words = waited_for(parts[longest], its_own.warps_per_sm)
    words = f"in the longest launch {words}" if len(parts) > 1 else words
    yield Limit(WAITS, seconds_of(waiting), words, origin, mostly, is_loss=True)


# ---------------------------------------------------------------- losses, as calculated
def fill(found: Occupancy) -> float | None:
    """The share of the SMs' time in which they have a block, if blocks are alike and those of an SM share it: blocks an SM over
    the whole number that the fullest gets. None without a grid or an SM count."""
    if not found.grid or not found.gpu.sm_count:
        return None
    each = found.grid / found.gpu.sm_count
    return each / math.ceil(each)


def _blocks(found: Occupancy) -> str:
    return f"{found.grid or 0:,} blocks on {found.gpu.sm_count} SMs, {found.waves or 0:.2f} waves"


def calculated_losses(each: Sequence[tuple[Launch, Occupancy]], weights: Sequence[float], rows: Sequence[Limit],
                      seconds: float | None) -> Iterator[Limit]:
    """Idle SMs by the grid, and what they, the busiest unit and the launch leave of a measured time.

    rows: of the units, and of the launch. weights: the seconds of each launch, measured, else the least that its busiest unit
    on the SMs takes.
    """
    fills = [fill(found) or 1.0 for _, found in each]
    spread = [weight * (1 - one if seconds else 1 / one - 1) for weight, one in zip(weights, fills, strict=True)]
    idle = sum(spread) * (seconds / sum(weights) if seconds and sum(weights) else 1)
    words = "; ".join(f"{_blocks(found)}: {tables.percent(1 - one)} idle" for (_, found), one in zip(each, fills, strict=True))
    origin = Origin("modelled", "blocks of equal length, those of an SM share it")
    yield Limit(IDLE, idle, words, (origin, each[0][1].origin), is_loss=True)
    held = max((found for _, found in each), key=lambda found: found.grid or 0)
    warps = min(held.blocks_per_sm, math.ceil((held.grid or 0) / (held.gpu.sm_count or 1))) * held.demand.warps
    words = f"{warps} warps an SM by occupancy and grid, {held.gpu.limits.warps_per_sm} fit; no counters say what they wait for"
    if not seconds:
        yield Limit(WAITS, None, words, (origin, each[0][1].origin), is_loss=True)
        return
    least, most = (max((end(row) for row in rows if not row.is_loss), default=0.0)
                   for end in (lambda row: row.seconds or 0.0, lambda row: row.most_seconds or row.seconds or 0.0))
    lost = idle + sum(row.seconds or 0.0 for row in rows if row.is_loss)
    left, at_most = (max(0.0, seconds - lost - busiest) for busiest in (most, least))
    yield Limit(WAITS, left, f"what the busiest unit, idle SMs and the launch leave; {words}", (origin, each[0][1].origin),
                most_seconds=at_most if at_most > left else None, is_loss=True)


def launch_loss(launches: int, found: Sequence[Ceiling], measurement: Measurement | None) -> Iterator[Limit]:
    """What as many empty launches take, measured as a ceiling, else beside the timing (one launch)."""
    one, two = (next((c for c in found if c.name == name), None) for name in ("empty launch", "two empty launches"))
    if one and two:
        taken = one.value + (launches - 1) * (two.value - one.value)
        origin = Origin("measured", f"{one.gpu}, {one.measured_on}")
        words = "an empty kernel" if launches == 1 else f"{launches} empty kernels, one after the other"
        yield Limit(LAUNCH, taken, words, (origin,), is_loss=True)
    elif measurement and launches == 1:
        taken = measurement.timing.empty_launch_seconds
        yield Limit(LAUNCH, taken, "an empty kernel, timed beside it", (measurement.origin,), is_loss=True)


# ---------------------------------------------------------------- all of it
def limits_of(bound: BoundVersion, shape: Any, gpu: Gpu, sample: int | None = SAMPLE) -> Limits:
    """The limits of a version at a shape: recorded counters and timings where there are any, else counted on the CPU.

    sample: blocks of each launch to run on the CPU, None: all. NotApplicable where the version cannot do the shape;
    PerflabError for an architecture without a product's sizes.
    """
    if gpu.sm_count is None:
        raise PerflabError(f'"{gpu.name}" is an architecture: what holds a kernel needs a product such as "H200"')
    each, bench = occupancies(bound, shape, gpu), bound.bench
    known = "ceilings" in bench.workspace.study_names()
    found = ceilings(bench.store, gpu, bench.workspace.study_folder("ceilings")) if known else ()
    timed = bound.timing(shape, gpu) if bench.record(bound.name, shape, gpu, "timing") else None
    clock = clock_of(gpu, timed)
    units, seconds = units_of(gpu, clock, found), timed.seconds if timed else None
    launch = list(launch_loss(len(each), found, timed))
    if bench.record(bound.name, shape, gpu, "counts"):
        measured = recorded_counters(bound, shape, gpu)
        amounts = measured_amounts(measured)
        notes = measured.stale_notes + _rates_unknown(units, amounts, gpu)
        rows = [*unit_rows(units, amounts, measured.origin),
                *measured_losses(measured, each, seconds, clock[0] if clock else None)]
    else:
        measured = None
        rows, notes, weights = _from_counts(bound, shape, gpu, sample, len(each), units, timed)
        rows += [*calculated_losses(each, weights, [*rows, *launch], seconds)]
    rows += [*_spills(bound, gpu, units, measured), *launch]
    notes = [*notes, *(f"STALE: the timing: {reason}" for reason in (timed.stale if timed else ()))]
    time = f", {tables.seconds(seconds)} cold" if seconds else ""
    title = f"{bench.name}/{bound.name} on {gpu.name} at {describe(shape)}{time}"
    return ranked(title, rows, seconds, [timed.origin] if timed else [], notes)


def ranked(title: str, rows: Sequence[Limit], seconds: float | None, origins: Sequence[Origin], notes: Sequence[str]) -> Limits:
    """The rows as `Limits`: each with its share of the time, the longest first, those without seconds last."""
    def of_time(one: Limit) -> Limit:
        if not seconds or one.seconds is None:
            return one
        most = min(one.most_seconds, seconds) if one.most_seconds else None  # no unit works longer than all takes
        return replace(one, share=one.seconds / seconds, most_seconds=most if most and most > one.seconds else None)

    order = sorted(map(of_time, rows), key=lambda one: -math.inf if one.seconds is None else one.seconds, reverse=True)
    return Limits(title, tuple(order), seconds, (*origins, *(one for row in order for one in row.origins)), tuple(notes))


def _from_counts(bound: BoundVersion, shape: Any, gpu: Gpu, sample: int | None, launches: int, units: Mapping[str, Unit],
                 timed: Measurement | None) -> tuple[list[Limit], list[str], Sequence[float]]:
    """The units' rows of a version without recorded counters, notes, and a weight of each launch: its seconds."""
    notes = [f"no hardware counters are recorded at this shape on {gpu.name}: amounts are of PTX, counted on the CPU"]
    try:
        counts = bound.count(shape, gpu, sample)
    except Unsupported as reason:
        rows, parts = list[Limit](), []
        notes.append(f"nor could the CPU run it: {reason}")
    else:
        amounts = counted_amounts(counts, bound.bench.study.work_of(bound.name, shape).bytes)
        rows = list(unit_rows(units, amounts, counts.origin))
        notes += _rates_unknown(units, amounts, gpu)
        if worst := max(counts.errors.values(), default=0.0):
            notes.append(f"a sample of the blocks: relative standard errors up to {tables.percent(worst)}")
        parts = [unit_rows(units, counted_amounts(part), part.origin) for part in counts.parts or (counts,)]
    alone = [max((row.seconds or 0.0 for row in part if row.what in ON_SM), default=0.0) for part in parts]
    times = [part for _, part in timed.timing.parts] if timed else []
    return rows, notes, times if len(times) == launches else alone if alone else [1.0] * launches


def _rates_unknown(units: Mapping[str, Unit], amounts: Mapping[str, Amount], gpu: Gpu) -> list[str]:
    return [f"no rate of {name} is known on {gpu.name}: {one.words}" for name, one in amounts.items() if name not in units]


def _spills(bound: BoundVersion, gpu: Gpu, units: Mapping[str, Unit], measured: HardwareCounts | None) -> Iterator[Limit]:
    """What registers that did not fit cost L1: by counted sectors; without counters only how many bytes the code holds."""
    sectors = total(measured, "local_load_sectors", "local_store_sectors") if measured else None
    if measured and sectors is not None:
        if sectors and L1 in units:
            words = f"{large(sectors)} sectors of local memory, four a wavefront, at L1's rate; part of the L1 data path's"
            taken = sectors / SECTORS_A_WAVEFRONT / units[L1].per_second
            yield Limit("spills", taken, words, (measured.origin, units[L1].origin))
        return
    found = [kernel.resources(gpu) for kernel in bound.version.kernels]
    if spilled := sum(one.spill_store_bytes + one.spill_load_bytes for one in found):
        yield Limit("spills", None, f"{spilled:,} bytes a thread in the code; how often it runs them was not counted",
                    (found[0].origin,))


def limits_table(title: str, versions: Sequence[BoundVersion], shape: Any, gpu: Gpu) -> Table:
    """A row a version: its busiest unit, idle SMs and waits as shares of its cold time, and what warps wait for most."""
    rows, origins, limits, notes = list[tuple](), list[Origin](), list[Limit](), list[str]()
    for bound in versions:
        try:
            found = limits_of(bound, shape, gpu)
        except NotApplicable as reason:
            rows.append((bound.name, "n/a", *["-"] * 5))
            notes.append(f"{bound.name}: {reason}")
            continue
        busiest = next((one for one in found.rows if not one.is_loss), None)
        idle, waiting = (next((one for one in found.rows if one.what == what), None) for what in (IDLE, WAITS))
        cells = [_share(one, found.seconds) if one else tables.NOTHING for one in (busiest, idle, waiting)]
        rows.append((bound.name, tables.seconds(found.seconds), busiest.name if busiest else tables.NOTHING, *cells,
                     waiting.mostly if waiting and waiting.mostly else tables.NOTHING))
        origins += found.origins
        limits += found.rows
        notes += [note if bound.name in note else f"{bound.name}: {note}" for note in found.notes]
    columns = ("version", "cold median", "busiest unit", "of the time", "idle SMs", "waits", "mostly for")
    return Table(f"{title}: what holds each version on {gpu.name} at {describe(shape)}", columns, rows, join(*origins),
                 list(dict.fromkeys([REMARK, *_legend(limits), *notes])))
