"""Hardware counters of a version's launches: what to ask ncu for, and what its metrics say in the words of `Counts`.

Which metric gives which counter stands in `facts/counters.csv`, a row a counter, with candidates by chip: the first whose
metrics were all collected wins. What was not collected is absent, with the reason, and never 0.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from perflab import tables
from perflab.errors import PerflabError, unknown
from perflab.gpus import FACTS
from perflab.origins import Origin
from perflab.tables import Shown, Table

if TYPE_CHECKING:
    from perflab.emulator.counts import Counts
    from perflab.records import Record

_TERM = re.compile(r"(?:(-?[\d.]+)\*)?(\w+(?:\.\w+)*)")
_EACH = re.compile(r"\.(pct|ratio|min|max|avg)\b|\.pct_of_|^launch__|^device__|_pct$")


# ---------------------------------------------------------------- what can be counted
@dataclass(frozen=True)
class Formula:
    """Metrics and what to do with them: a weighted sum, or one weighted sum over another."""

    above: tuple[tuple[float, str], ...]
    below: tuple[tuple[float, str], ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """Every metric that it needs, once."""
        return tuple(dict.fromkeys(name for _, name in (*self.above, *self.below)))

    @property
    def additive(self) -> bool:
        """Whether sums over launches give the value of all launches; else each launch has its own."""
        return not any(_EACH.search(name) for name in self.metrics)

    def value(self, launches: Sequence[Mapping[str, float]]) -> float | None:
        """Of all these launches together; None where one of them lacks a metric, or a ratio has nothing below."""
        if not launches or any(name not in metrics for metrics in launches for name in self.metrics):
            return None
        above, below = (sum(w * m[name] for m in launches for w, name in part) for part in (self.above, self.below))
        return (above / below if below else None) if self.below else above

    def __str__(self) -> str:
        return " / ".join(" + ".join(f"{w:g}*{name}" if w != 1 else name for w, name in part)
                          for part in (self.above, self.below) if part)


@dataclass(frozen=True)
class Counter:
    """One row of counters.csv: a counter of the hardware.

    field     its name; that of a field of `Counts` where the emulator counts the same: `emulated`, with the relative
              tolerance to which both should agree (None: they are reported, not compared)
    formulas  candidates, best first; capabilities: '' for any chip, '9.0 10.0' for these, '10.0+' for that one and later
    """

    field: str
    group: str
    unit: str
    capabilities: str
    formulas: tuple[Formula, ...]
    emulated: str
    tolerance: float | None
    note: str
    source: str

    def on(self, capability: str) -> bool:
        """Whether a chip of this compute capability has such a thing."""
        asked = self.capabilities.split()
        return not asked or capability in asked or any(
            one.endswith("+") and _number(capability) >= _number(one[:-1]) for one in asked)


def _number(capability: str) -> tuple[int, ...]:
    return tuple(map(int, capability.split(".")))


def _formula(text: str) -> Formula:
    parts = [tuple(_term(term, text) for term in part.split(" + ")) for part in text.split(" / ")]
    return Formula(*parts)


def _term(term: str, text: str) -> tuple[float, str]:
    match = _TERM.fullmatch(term.strip())
    if not match:
        raise ValueError(f"counters.csv: {term!r} of {text!r} is no [factor*]metric")
    return float(match[1] or 1), match[2]


@cache
def counters() -> tuple[Counter, ...]:
    """The rows of counters.csv, in its order. A field may have several rows, for different chips."""
    with (FACTS / "counters.csv").open(encoding="utf-8", newline="") as file:
        return tuple(Counter(
            row["field"], row["group"], row["unit"], row["capabilities"],
            tuple(map(_formula, row["metrics"].split(" | "))), row["emulated"],
            float(row["tolerance"]) if row["tolerance"] else None, row["note"], row["source"],
        ) for row in csv.DictReader(file))


def metrics_for(capability: str, known: Collection[str] | None = None,
                groups: Collection[str] | None = None) -> tuple[str, ...]:
    """The metrics to ask for on such a chip: of each counter those of its first candidate that ncu knows there.

    known: the names that ncu lists for the chip, without their endings (`.sum`); None: not asked, so all candidates.
    groups: only these groups of counters.
    """
    chosen: dict[str, None] = {}
    for counter in counters():
        if not counter.on(capability) or (groups is not None and counter.group not in groups):
            continue
        for formula in counter.formulas:
            if known is None:
                chosen.update(dict.fromkeys(formula.metrics))
            elif all(base(name) in known for name in formula.metrics):
                chosen.update(dict.fromkeys(formula.metrics))
                break
    return tuple(chosen)


def base(metric: str) -> str:
    """A metric's name as ncu lists it: without its endings."""
    return metric.partition(".")[0]


# ---------------------------------------------------------------- what was counted
@dataclass(frozen=True)
class LaunchMetrics:
    """What ncu said about one launch: metric -> (value in base units, unit). entry: the kernel's name as ncu wrote it."""

    entry: str
    metrics: Mapping[str, tuple[float, str]]
    grid: str = ""
    block: str = ""
    capability: str = ""

    @property
    def values(self) -> dict[str, float]:
        """Metric -> value."""
        return {name: value for name, (value, _) in self.metrics.items()}

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"entry": self.entry, "grid": self.grid, "block": self.block, "capability": self.capability,
                "metrics": {name: list(both) for name, both in self.metrics.items()}}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> LaunchMetrics:
        """Back from JSON."""
        return LaunchMetrics(**{**data, "metrics": {name: tuple(both) for name, both in data["metrics"].items()}})


@dataclass(frozen=True)
class Counted:
    """One counter's value, in its unit, and the formula that gave it."""

    value: float
    counter: Counter
    formula: Formula


@dataclass(frozen=True, repr=False)
class HardwareCounts(Shown):
    """The hardware counters of a version's launches together. `counts["dram_read_bytes"]` is a number or says why not.

    found   field -> `Counted`; absent: field -> why there is no such number
    parts   the counters of each launch, where there are several: what does not add (occupancy, limits) is there only
    stale   why a record no longer describes today's code; empty while it does
    """

    name: str
    origin: Origin
    found: Mapping[str, Counted]
    absent: Mapping[str, str]
    launches: tuple[LaunchMetrics, ...] = ()
    parts: tuple[HardwareCounts, ...] = field(default=())
    stale: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> float:
        if name in self.found:
            return self.found[name].value
        if name in self.absent:
            raise PerflabError(f'{self.name}: no "{name}" was counted: {self.absent[name]}')
        raise unknown("counter", name, self.found)

    def __contains__(self, name: object) -> bool:
        return name in self.found

    def get(self, name: str) -> float | None:
        """The number; None where it is absent."""
        return self.found[name].value if name in self.found else None

    def __repr__(self) -> str:
        return str(self)

    @property
    def stale_notes(self) -> list[str]:
        """A line a reason why the record no longer holds."""
        return [f"STALE: {self.name}: {reason}" for reason in self.stale]

    def table(self) -> Table:
        """A row a counter, with the metrics it is from; what is absent below."""
        rows = [(one.counter.group, name, _written(one), str(one.formula), one.counter.note)
                for name, one in self.found.items()]
        why: dict[str, list[str]] = {}
        for name, reason in self.absent.items():
            why.setdefault(reason, []).append(name)
        notes = [f"absent, {reason}: {', '.join(names)}" for reason, names in why.items()] + self.stale_notes
        return Table(f"{self.name}: hardware counters", ("group", "counter", "value", "ncu metrics", "remark"), rows,
                     str(self.origin), notes)

    def counts(self) -> Counts:
        """The same as a `Counts` of hardware: fields that were not counted are 0 there, so ask `in` of this object first."""
        from perflab.emulator.amounts import NUMBERS
        from perflab.emulator.counts import Counts

        numbers: dict[str, Any] = {name: round(self.found[name].value) for name in NUMBERS if name in self.found}
        flops = {(name.split(".")[1], name.split(".")[2]): round(one.value)
                 for name, one in self.found.items() if name.startswith("flops.")}
        blocks = sum(map(_blocks, self.launches))
        return Counts(name=self.name, origin=self.origin, flops_by=MappingProxyType({k: n for k, n in flops.items() if n}),
                      blocks=blocks, blocks_run=blocks, parts=tuple(part.counts() for part in self.parts), **numbers)


def _blocks(launch: LaunchMetrics) -> int:
    size = 1
    for number in re.findall(r"\d+", launch.grid):
        size *= int(number)
    return size


def _written(one: Counted) -> str:
    value, unit = one.value, one.counter.unit
    if unit == "fraction":
        return tables.percent(value)
    if unit == "percent":
        return tables.percent(value / 100)
    if unit == "bytes":
        return tables.bytes_(value)
    return f"{round(value):,} {unit}" if float(value).is_integer() else f"{tables.decimal(value)} {unit}"


def hardware_counts(name: str, launches: Iterable[LaunchMetrics], origin: Origin, capability: str = "") -> HardwareCounts:
    """The counters of launches by their metrics, by the rows of counters.csv for their chip."""
    launches = tuple(launches)
    if not launches:
        raise PerflabError(f"{name}: no launch was counted")
    chip = capability or launches[0].capability
    found: dict[str, Counted] = {}
    absent: dict[str, str] = {}
    for counter in counters():
        if chip and not counter.on(chip):
            absent.setdefault(counter.field, f"compute capability {chip} has none")
            continue
        chosen, reason = _first(counter, launches)
        if chosen is None:
            absent[counter.field] = reason
        else:
            found[counter.field] = chosen
    parts = tuple(hardware_counts(f"{name}, launch {k} ({one.entry})", [one], origin, chip)
                  for k, one in enumerate(launches if len(launches) > 1 else (), 1))
    left = {name: why for name, why in absent.items() if name not in found}
    return HardwareCounts(name, origin, found, left, launches, parts)


def _first(counter: Counter, launches: Sequence[LaunchMetrics]) -> tuple[Counted | None, str]:
    """The counter by its first candidate that these launches have, or why there is none."""
    values, reason = [launch.values for launch in launches], "not collected"
    for formula in counter.formulas:
        if any(name not in metrics for metrics in values for name in formula.metrics):
            continue
        each = {formula.value([metrics]) for metrics in values}
        value = formula.value(values) if formula.additive or len(launches) == 1 else each.pop() if len(each) == 1 else None
        if value is not None:
            return Counted(value, counter, formula), ""
        reason = "nothing happened that it could be a share of" if formula.below else "it differs by launch: look at parts"
    return None, reason


def from_record(record: Record, stale: Sequence[str] = ()) -> HardwareCounts:
    """The counters of a record of kind "counts"; stale: why it no longer holds."""
    payload = record.payload_of("counts")
    launches = map(LaunchMetrics.from_dict, payload["launches"])
    how = f"{payload['tool']}, cache control {payload['cache_control']}"
    origin = Origin("measured", f"{record.gpu['name']}, {record.utc[:10]}, {how}")
    found = hardware_counts(f"{record.study} {record.version}", launches, origin, str(record.gpu["capability"]))
    return replace(found, stale=tuple(stale))


# ---------------------------------------------------------------- beside the emulator's
def agreement(counted: Counts, measured: HardwareCounts) -> Table:
    """What the emulator counted beside what the hardware did: a row a counter that both have, with the tolerance."""
    rows, beyond = [], 0
    for name, one in measured.found.items():
        if not one.counter.emulated:
            continue
        ours = emulated(counted, one.counter.emulated)
        if not ours and not one.value:
            continue
        difference = (ours - one.value) / one.value if one.value else float("inf")
        tolerance = one.counter.tolerance
        verdict = "reported" if tolerance is None else "agrees" if abs(difference) <= tolerance else "DIFFERS"
        beyond += verdict == "DIFFERS"
        allowed = {None: "", 0.0: "exact"}.get(tolerance) if tolerance in (None, 0.0) else tables.percent(tolerance)
        said = difference_words(ours, one.value)
        rows.append((name, round(ours), round(one.value), said, allowed, verdict, one.counter.note))
    title = f"{counted.name}: counted and measured, {beyond} of {len(rows)} differ by more than allowed"
    return Table(title, ("counter", "counted", "measured", "difference", "allowed", "verdict", "remark"), rows,
                 f"{counted.origin}; {measured.origin}", measured.stale_notes)


def difference_words(ours: float, theirs: float) -> str:
    """How far ours is from theirs, as a share of theirs: 'exact' where it is not, '-' where theirs is 0 and ours is not."""
    if ours == theirs:
        return "exact"
    return f"{100 * (ours - theirs) / theirs:+.3g} %" if theirs else "-"


def emulated(counts: Counts, path: str) -> float:
    """The emulator's number: a field of `Counts`, or flops_by.KIND.DTYPE, of every kind with `*`."""
    name, *key = path.split(".")
    if not key:
        return float(getattr(counts, name))
    return sum(n for (kind, dtype), n in counts.flops_by.items() if dtype == key[1] and key[0] in ("*", kind))
