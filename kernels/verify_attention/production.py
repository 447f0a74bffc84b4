"""What a server asks of the best version: cache rows in pages, a rank's heads, several requests, long prefixes. Out of records.

A table a question. The ways to read pages were timed together and are compared round by round; other times come from runs of
their own. Where two cannot be told apart, the tables say so.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from perflab import tables
from perflab.check import Check
from perflab.comparison import CONFIDENCE, SLOWER, TIED, Comparison, change, compare, compare_runs
from perflab.errors import PerflabError
from perflab.gpus import Gpu
from perflab.gpus import gpu as find_gpu
from perflab.measurement import CALCULATED, Measurement, describe, stale_notes, unit_notes
from perflab.origins import Origin, join
from perflab.rivals import load_rivals
from perflab.studies import NotApplicable, triple
from perflab.tables import Table
from perflab.timing import Timing
from perflab.versions import occupancy_of
from perflab.workbench import Workbench

BEST = "register_banks"
WAYS = tuple(f"{BEST}_{way}" for way in ("together", "in_order", "paged", "gathered"))
TOGETHER, IN_ORDER, PAGED, GATHERED = WAYS
WITHIN = f"{100 * CONFIDENCE:g} % interval"
FEWEST_KEYS = 4096  # of a prefix in the tables of pages: with fewer, a launch is much of the time


# ---------------------------------------------------------------- pages
def parity(bench: Workbench, gpu: str | Gpu) -> Table:
    """A row a paged shape: each version's PASS or FAIL against float64, with its norm-relative error, as recorded."""
    chosen = find_gpu(gpu)
    rows, days, notes = [], [], ["the number is the norm-relative error of out"]
    for shape in bench[PAGED].version.shapes or ():
        said = []
        for name in WAYS:
            record = bench.record(name, shape, chosen, "check")
            said.append(_in_words(Check.from_dict(name, record.check)) if record else "not checked")
            days += [record.utc[:10]] if record else []
            try:
                bench[name].launches(shape, chosen)
            except NotApplicable as reason:
                said[-1] = "n/a"
                notes.append(f"{name}: {reason}")
        rows.append((shape.batch, shape.heads, shape.prefix, shape.page, *said))
    origin = Origin("measured", f"{chosen.name}, {max(days, default='never')}")
    return Table(f"{bench.study.title}: rows in pages, parity with float64 on {chosen.name}",
                 ("B", "H", "prefix", "page", *WAYS), rows, str(origin), list(dict.fromkeys(notes)))


def _in_words(check: Check) -> str:
    return f"{'PASS' if check.passed else 'FAIL'} {check.outputs[0].norm_relative:.2e}"


@dataclass(frozen=True)
class Scattered:
    """One paged shape, measured together: rows lying together; the same through a table of ids in order; in scattered pages;
    copied together first."""

    shape: Any
    together: Measurement
    in_order: Measurement
    paged: Measurement
    gathered: Measurement

    @property
    def cost(self) -> Comparison:
        """What pages cost in all: paged over together, cold."""
        return compare(self.together.timing.cold, self.paged.timing.cold, paired=True)

    def costs(self, series: str) -> tuple[Comparison, Comparison]:
        """What finding rows through a table costs, and what their scatter costs on top; series: "cold" or "hot"."""
        together, in_order, paged = (getattr(m.timing, series) for m in (self.together, self.in_order, self.paged))
        return compare(together, in_order, paired=True), compare(in_order, paged, paired=True)

    @property
    def copy_seconds(self) -> float:
        """Cold median of the copy alone, the first launch of the version that copies."""
        return self.gathered.timing.parts[0][1]

    @property
    def copied_bytes(self) -> int:
        """Every cache row read once and written once."""
        problem = _problem(self.shape)
        return 2 * self.shape.batch * self.shape.keys * problem.WIDTH * problem.FLOAT

    @property
    def pays_after(self) -> str:
        """After how many verify steps the copy has paid for itself, in words."""
        return pays_after(self.copy_seconds, self.together.seconds, self.cost)


def steps_to_pay(copy_seconds: float, saved_seconds: float) -> int | None:
    """The fewest steps n with copy + n * together < n * paged; None where a step saves nothing."""
    return math.floor(copy_seconds / saved_seconds) + 1 if saved_seconds > 0 else None


def pays_after(copy_seconds: float, together_seconds: float, cost: Comparison) -> str:
    """The steps after which a copy pays, by the median and by the interval's ends; a bound where no cost can be told."""
    low, high = cost.interval or (math.nan, math.nan)
    soonest = steps_to_pay(copy_seconds, together_seconds * (high - 1))
    if cost.verdict == SLOWER:
        middle, latest = (steps_to_pay(copy_seconds, together_seconds * (ratio - 1)) for ratio in (cost.ratio, low))
        return f"{middle:,} ({soonest:,} to {latest:,})"
    return "never" if soonest is None else f"cannot be told; not before {soonest:,}"


def scattered(bench: Workbench, gpu: str | Gpu) -> list[Scattered]:
    """The paged shapes of long prefixes, most heads first."""
    shapes = [s for s in bench[PAGED].version.shapes or () if s.prefix >= FEWEST_KEYS]
    return [Scattered(s, *(bench[name].timing(s, gpu) for name in WAYS)) for s in shapes]


def scatter(bench: Workbench, gpu: str | Gpu, series: str = "cold") -> Table:
    """A row a paged shape: what the page table costs, and what scatter costs on top; series: "cold" or "hot"."""
    found = scattered(bench, gpu)
    rows = []
    for s in found:
        medians = (getattr(m.timing, series).median_seconds for m in (s.together, s.in_order, s.paged))
        said = (word for cost in s.costs(series) for word in (change(cost.ratio), cost.interval_text, cost.verdict))
        rows.append((*_page_of(s), *map(tables.seconds, medians), *said))
    columns = ("H", "prefix", "page", "together", "in order", "scattered", "table costs", WITHIN, "that is", "scatter costs",
               WITHIN, "that is")
    times = _problem(found[0].shape).POOL_TIMES
    notes = ["in order: the same kernel as scattered, with a table of ids in order, on the rows that lie together",
             f"scattered: in a pool of {times} times the request's pages, ids shuffled, NaN wherever none of its rows lies"]
    return _table(bench, gpu, f"cache rows in pages, {series}", columns, rows,
                  [m for s in found for m in (s.together, s.in_order, s.paged)], notes)


def lookups(bench: Workbench, shape: Any, gpu: str | Gpu) -> Table:
    """A row a size of a page: what finding rows through a table adds to the code, to what runs at `shape`, to waits for banks.

    Counted by the numpy machine, which need not compile each kernel first.
    """
    chosen, origins, rows = find_gpu(gpu), [], []
    pages = sorted({s.page for s in bench[PAGED].version.shapes or ()})

    def numbers(name: str, page: int) -> tuple[int, int, int, float]:
        at = replace(shape, page=page)
        kernel, counts = bench[name].launches(at, chosen)[0].kernel, bench[name].count(at, chosen, machine="numpy")
        resources, banks = kernel.resources(chosen), kernel.register_banks(chosen)
        origins.extend((resources.origin, banks.origin, counts.origin))
        _, lost = _register_tile(shape).loop_clocks(banks)
        return resources.registers, resources.sass["total"], counts.warp_instructions, lost

    plain = numbers(TOGETHER, pages[0])
    for page in pages:
        looked = numbers(PAGED, page)
        registers, sass, ran, lost = zip(plain, looked, strict=True)
        rows.append((page, *registers, *sass, *ran, change(ran[1] / ran[0]), *(f"{clocks:,.0f}" for clocks in lost)))
    both = {what: [f"{what}, {way}" for way in ("together", "paged")] for what in ("registers", "SASS", "run", "banks")}
    columns = ("page", *both["registers"], *both["SASS"], *both["run"], "more", *both["banks"])
    return Table(f"{bench.study.title}: what a lookup adds, {chosen.name}", columns, rows, join(*origins),
                 [f"SASS: instructions in the code of the first launch; run: warp instructions of PTX at {describe(shape)}",
                  "banks: clocks that a tile's loops lose to two operands of one bank of registers, modelled"])


def defragmenting(bench: Workbench, gpu: str | Gpu) -> Table:
    """A row a paged shape: what copying the pages together costs, and after how many verify steps it has paid."""
    found = scattered(bench, gpu)
    dram = next((roof.value for roof in bench.ceilings(gpu) if roof.name == "DRAM copy"), None)
    rows = []
    for s in found:
        rate, every = s.copied_bytes / s.copy_seconds, compare(s.paged.timing.cold, s.gathered.timing.cold, paired=True)
        rows.append((*_page_of(s), tables.seconds(s.copy_seconds), tables.bytes_per_second(rate),
                     tables.percent(rate / dram if dram else None), change(s.cost.ratio), s.pays_after, change(every.ratio),
                     every.verdict))
    columns = ("H", "prefix", "page", "copy", "copy rate", "of DRAM copy", "pages cost", "pays after steps", "copy each step",
               "that is")
    return _table(bench, gpu, "copying the pages together first", columns, rows, [s.gathered for s in found],
                  ["copy: its cold median, timed apart; copy each step: copy and step, over the step in pages",
                   f"steps: the fewest that pay, by medians; in brackets by the ends of the {WITHIN} of what pages cost"])


def _page_of(found: Scattered) -> tuple[int, int, int]:
    return found.shape.heads, found.shape.prefix, found.shape.page


# ---------------------------------------------------------------- ranks, requests, long prefixes
def _gain(over: Measurement, this: Measurement, times: int = 1) -> str:
    """How many times the speed of `over`, itself taken `times` times, in words; a tie is called one."""
    cold = over.timing.cold
    many = replace(cold, samples_seconds=tuple(times * s for s in cold.samples_seconds))
    cost = compare_runs(many, this.timing.cold, over.unit == this.unit)
    return _ratio_in_words(1 / cost.ratio, cost)


def _ratio_in_words(ratio: float, cost: Comparison) -> str:
    return tables.ratio(ratio) + (" (tie)" if cost.verdict == TIED else "")


def ranks(bench: Workbench, gpu: str | Gpu) -> Table:
    """A row a prefix: 64 heads on one GPU, and the 8 heads of each of 8 ranks: times, shares of the floor, waves."""
    rows, seen, units = [], [], []
    for whole in _one_request(bench, 64):
        both = [bench[BEST].timing(shape, gpu) for shape in (whole, replace(whole, heads=8))]
        seen += both
        units.append([m.unit for m in both])
        rows.append((whole.prefix, *(tables.seconds(m.seconds) for m in both), _gain(*both),
                     *(tables.percent(floor_seconds(bench, m) / m.seconds) for m in both),
                     *(f"{waves(bench, m.shape, gpu):.2f}" for m in both)))
    launch = bench[BEST].launches(seen[-1].shape, gpu)[0]
    rows_a_block = _register_tile(seen[-1].shape).REGISTER_TILE.rows_a_block
    used, blocks = seen[-1].shape.q_len * 8, triple(launch.grid)[0]
    padding = f"at H=8 {used} rows of nodes and heads lie in {blocks} blocks of {rows_a_block}: the others are padding"
    columns = ("prefix", "H=64", "H=8", "64 over 8", "floor, H=64", "floor, H=8", "waves, H=64", "waves, H=8")
    return _table(bench, gpu, f"{BEST} with all heads, and with a rank's of 8", columns, rows, seen,
                  [FLOOR, padding, *unit_notes(units)])


def streams(bench: Workbench, gpu: str | Gpu) -> Table:
    """A row a number of heads and prefix: 1, 4 and 16 requests at once, and what one of them then takes."""
    many = sorted({s.batch for s in bench.study.shapes if not s.page and s.batch > 2})
    shapes = [s for heads in (64, 8) for s in _one_request(bench, heads)
              if replace(s, batch=many[0]) in bench.study.shapes]
    rows, seen, units, notes = [], [], [], []
    for shape in shapes:
        try:
            found = [bench[BEST].timing(replace(shape, batch=batch), gpu) for batch in (1, *many)]
        except PerflabError as reason:
            notes.append(f"H={shape.heads}, prefix {shape.prefix:,}: {reason}")
            continue
        seen += found
        units.append([m.unit for m in found])
        rows.append((shape.heads, shape.prefix, *(tables.seconds(m.seconds) for m in found),
                     *(_gain(found[0], m, m.shape.batch) for m in found[1:]),
                     *(tables.percent(floor_seconds(bench, m) / m.seconds) for m in found)))
    columns = ("H", "prefix", *(f"{n} at once" for n in (1, *many)), *(f"steps a second, {n}" for n in many),
               *(f"floor, {n}" for n in (1, *many)))
    return _table(bench, gpu, f"{BEST} with several requests", columns, rows, seen,
                  ["steps a second: over one request at a time", FLOOR, *unit_notes(units), *notes])


def keys(bench: Workbench, gpu: str | Gpu, heads: int, versions: Sequence[str]) -> Table:
    """A row a version: microseconds for 1,024 keys at each prefix of 1,024 or more: flat where time grows with keys alone."""
    shapes = [s for s in _one_request(bench, heads) if s.prefix >= 1024]
    rows, seen = [], []
    for name in versions:
        found = [_timing(bench, name, s, gpu) for s in shapes]
        seen += [m for m in found if m]
        rows.append((name, *(f"{1e6 * m.seconds / m.shape.keys * 1024:.2f}" if m else "n/a" for m in found)))
    columns = ("version", *(f"{s.prefix:,}" for s in shapes))
    return _table(bench, gpu, f"microseconds for 1,024 keys, by prefix, H={heads}", columns, rows, seen, [])


def _timing(bench: Workbench, name: str, shape: Any, gpu: str | Gpu) -> Measurement | None:
    """None where the version does not apply."""
    try:
        return bench[name].timing(shape, gpu)
    except NotApplicable:
        return None


def waves(bench: Workbench, shape: Any, gpu: str | Gpu) -> float:
    """Waves of the best version's first launch."""
    return occupancy_of(bench[BEST].launches(shape, gpu)[0], find_gpu(gpu)).waves or math.nan


FLOOR = "floor: the least time of the work's FLOP and bytes at the measured FMA and DRAM read rates, over the time"


def floor_seconds(bench: Workbench, found: Measurement) -> float:
    """The least time that the measured ceilings leave: of arithmetic, or of the bytes that must move. NaN without ceilings."""
    roofs = {roof.name if roof.level else "": roof.value for roof in bench.ceilings(found.gpu)}
    if "" not in roofs or "DRAM read" not in roofs:
        return math.nan
    return max(found.work.flops / roofs[""], found.work.bytes / roofs["DRAM read"])


# ---------------------------------------------------------------- the production-style Triton verify
def triton(bench: Workbench, gpu: str | Gpu) -> Table:
    """A row a cell: a Triton verify as production runs it, its programs and the bytes that must move over time; and ours."""
    chosen, known = find_gpu(gpu), load_rivals(bench.workspace.study_folder(bench.name))
    rival = next(r for r in known.rivals if r.name == "Triton verify")
    rows, seen, units, days = [], [], [], []
    for shape in sorted((s for s in known.shapes(bench.study) if s.q_len == 9), key=lambda s: (-s.heads, s.prefix)):
        record = bench.store.find(bench.name, "", asdict(shape), chosen.name, "timing", rival.dtype, rival=rival.name)
        if record is None:
            continue
        ours, series = bench[BEST].timing(shape, gpu), Timing.from_dict(record.timing).cold
        theirs = series.median_seconds
        cost = compare_runs(ours.timing.cold, series, ours.unit == record.gpu["uuid"])
        units.append((ours.unit, record.gpu["uuid"]))
        moved = known.work(shape, rival.dtype).bytes / theirs if known.work else None
        sms = chosen.sm_count
        seen.append(ours)
        days.append(record.utc[:10])
        rows.append((shape.heads, shape.prefix, tables.seconds(theirs), shape.heads,
                     tables.percent(min(1.0, shape.heads / sms) if sms else None), tables.bytes_per_second(moved),
                     tables.seconds(ours.seconds), _ratio_in_words(cost.ratio, cost)))
    if not rows:
        raise PerflabError(f"{rival.name} is not measured on {chosen.name}: perflab measure {bench.name} --rivals")
    columns = ("H", "prefix", "Triton", "programs", "of the SMs", "useful", "ours", "Triton over ours")
    origin = Origin("measured", f"{chosen.name}, {max(days)}, {rival.name} in {rival.dtype}")
    notes = [f"{rival.name} computes in {rival.dtype} on tensor cores, ours in float32 without", *unit_notes(units)]
    return _table(bench, gpu, "a program a head, no split of the keys, beside ours", columns, rows, seen, notes, origin)


# ---------------------------------------------------------------- tables
def _one_request(bench: Workbench, heads: int) -> list[Any]:
    """Declared shapes of one request, 9 nodes and no pages, shortest prefix first."""
    found = [s for s in bench.study.shapes if (s.batch, s.q_len, s.heads, s.page) == (1, 9, heads, 0)]
    return sorted(found, key=lambda s: s.prefix)


def _problem(shape: Any) -> Any:
    """The module that declares the shape: sizes of a row and of a pool."""
    return sys.modules[type(shape).__module__]


def _register_tile(shape: Any) -> Any:
    """The module beside it with the loop of the best version: rows of a block, clocks of a tile."""
    return sys.modules[f"{type(shape).__module__.rpartition('.')[0]}.register_tile"]


def _table(bench: Workbench, gpu: str | Gpu, words: str, columns: Sequence[str], rows: Sequence[tuple],
           seen: Sequence[Measurement], notes: Sequence[str], *more: Origin) -> Table:
    ceilings = [roof.origin for roof in bench.ceilings(gpu)] if FLOOR in notes else []
    origin = join(*(m.origin for m in seen), *more, *ceilings, CALCULATED)
    return Table(f"{bench.study.title} on {find_gpu(gpu).name}: {words}", columns, rows, origin,
                 list(dict.fromkeys([*notes, *stale_notes(seen)])))
