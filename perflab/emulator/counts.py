"""`Counts`: what a kernel did, counted: traffic, FLOPs, instructions and divergence, in all and by source line, and faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any

from perflab import tables
from perflab.emulator import amounts
from perflab.emulator.amounts import SECTOR_BYTES, Amounts, by_site, scaled, total
from perflab.emulator.faults import Fault
from perflab.emulator.memory import READ, WRITTEN, Arena
from perflab.emulator.operations import Operation
from perflab.emulator.program import Program
from perflab.emulator.ptx import Place
from perflab.emulator.tallies import Tally
from perflab.listing import Listing
from perflab.origins import Origin
from perflab.tables import Shown, Table

FAULTS_SHOWN = 20
CLASSES_SHOWN = 4
_NO_ERRORS: Mapping[str, float] = MappingProxyType({})
_LINE_COLUMNS = ("instr.", "lanes", "FLOP", "bytes", "sect/req", "wavefr.", "confl.", "split")  # narrow: beside the source


# ---------------------------------------------------------------- by line
@dataclass(frozen=True, repr=False)
class Lines(Mapping, Shown):
    """(file, line) -> `Amounts`, by file and line. `how`: 'leaf' (where the code stands) or 'outer' (where it was inlined).

    A line number alone is a key too: that line of every file.
    """

    found: Mapping[tuple[str, int], Amounts]
    how: str = "leaf"
    title: str = "counts by line"
    origin: Origin = field(default_factory=lambda: Origin("counted"))

    def __getitem__(self, key: tuple[str, int] | int) -> Amounts:
        if isinstance(key, int) and any(line == key for _, line in self.found):
            return self.at(key)
        return self.found[key]  # type: ignore[index]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def __repr__(self) -> str:
        return str(self)

    def at(self, line: int, file: str | None = None) -> Amounts:
        """What the code of one line did, in the file named or in all; zeros where nothing stands."""
        return total(one for (name, number), one in self.found.items() if number == line and file in (None, name))

    def table(self) -> Table:
        """A row a line."""
        rows = [(f"{file}:{line}", *_line_cells(one)) for (file, line), one in self.found.items()]
        return Table(self.title, ("line", *_LINE_COLUMNS), rows, str(self.origin))


def _line_cells(one: Amounts) -> tuple[object, ...]:
    """A line's counts as a table shows them; '' where it does nothing of the kind."""
    requests = one.global_load_requests + one.global_store_requests + one.global_atomic_requests
    sectors = one.sector_bytes // SECTOR_BYTES
    lanes = f"{one.average_active_lanes:.3g}" if one.warp_instructions else ""
    return (one.warp_instructions or "", lanes, one.flops or "", one.asked_bytes or "",
            f"{sectors / requests:.3g}" if requests else "", one.shared_wavefronts or "", one.shared_conflicts or "",
            f"{100 * one.branches_split / one.branches:.3g} %" if one.branches_split else "")


# ---------------------------------------------------------------- all of it
@dataclass(frozen=True, kw_only=True, repr=False)
class Counts(Amounts, Shown):
    """What a launch, or a version's launches together, did; every sum of `Amounts` is a field here.

    name                  kernel, or study and version
    unique_load_bytes     distinct bytes of global memory that were read before they were written, of each launch;
    unique_store_bytes    distinct bytes written. Together: compulsory traffic, what must move once
    by_line, by_outer_line  `Lines`: by the line where the code stands, and by the line at which it was inlined
    blocks, blocks_run    of the grid, and how many were run; fewer: the sums are scaled up, unique bytes are a lower bound
    errors                relative standard error of sums of a sample, by field name
    faults, printed       what went wrong, one entry a cause; what the kernel printed
    warnings              what the counts cannot show, such as the traffic of spills
    parts                 the `Counts` of each launch, where there are several
    """

    name: str
    origin: Origin
    unique_load_bytes: int = 0
    unique_store_bytes: int = 0
    by_line: Lines = field(default_factory=lambda: Lines({}))
    by_outer_line: Lines = field(default_factory=lambda: Lines({}, "outer"))
    blocks: int = 0
    blocks_run: int = 0
    errors: Mapping[str, float] = field(default_factory=lambda: _NO_ERRORS)
    faults: tuple[Fault, ...] = ()
    printed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    parts: tuple[Counts, ...] = ()

    @property
    def unique_bytes(self) -> int:
        """Compulsory traffic: distinct bytes read before written, and distinct bytes written."""
        return self.unique_load_bytes + self.unique_store_bytes

    @property
    def share(self) -> float:
        """The share of the blocks that was run."""
        return self.blocks_run / self.blocks if self.blocks else 1.0

    @property
    def exact(self) -> bool:
        """True when every block was run."""
        return self.blocks_run == self.blocks

    @property
    def passed(self) -> bool:
        """True without a fault; warnings of a fault's kind are let pass."""
        return all(fault.warning for fault in self.faults)

    @property
    def moved(self) -> dict[str, int]:
        """Bytes of global memory by how they are counted: 'asked', of 'sectors', 'unique'."""
        return {"asked": self.asked_bytes, "sectors": self.sector_bytes, "unique": self.unique_bytes}

    @property
    def intensities(self) -> dict[str, float]:
        """FLOPs a byte by how bytes are counted; infinite where nothing moves."""
        return {name: self.flops / n if n else float("inf") for name, n in self.moved.items()}

    def table(self) -> Table:
        """A row a quantity; faults, warnings and what was printed below."""
        columns = ("count", "value", *(() if self.exact else ("standard error",)), "remark")
        rows = [(label, value, *(() if self.exact else (self._error(name),)), remark)
                for label, value, name, remark in _rows(self)]
        return Table(f"{self.name}: counted", columns, rows, str(self.origin), self._notes())

    def __repr__(self) -> str:
        return str(self)

    def _error(self, name: str) -> str:
        return tables.percent(self.errors[name]) if name in self.errors else ""

    def _notes(self) -> list[str]:
        more = len(self.faults) - FAULTS_SHOWN
        notes = [("warning: " if fault.warning else "fault: ") + str(fault) for fault in self.faults[:FAULTS_SHOWN]]
        notes += [f"{more} more faults"] if more > 0 else []
        return notes + list(self.warnings)

    def listing(self, text: str, file: str | None = None, outer: bool = False) -> Listing:
        """A source with the counts beside its lines.

        text: the source; file: its name as the counts know it (None: the only one, else the one with most instructions);
        outer: by the line at which inlined code was inlined.
        """
        lines = self.by_outer_line if outer else self.by_line
        name = file or _busiest(lines)
        cells = {line: _line_cells(one) for (where, line), one in lines.items() if where == name}
        used = [k for k in range(len(_LINE_COLUMNS)) if k < 2 or any(row[k] for row in cells.values())]
        beside = {line: tuple(row[k] for k in used) for line, row in cells.items()}
        marks = {fault.line: fault.kind for fault in self.faults if fault.file == name}
        columns = [_LINE_COLUMNS[k] for k in used]
        return Listing(name, text, beside=beside, columns=columns, marks=marks, origin=str(self.origin))

    # ------------------------------------------------------------ on disk
    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        own = {name: getattr(self, name) for name in _PLAIN}
        return {
            **own, "amounts": amounts.to_dict(self), "origin": asdict(self.origin), "errors": dict(self.errors),
            "by_line": _lines_to_list(self.by_line), "by_outer_line": _lines_to_list(self.by_outer_line),
            "faults": [asdict(fault) for fault in self.faults], "printed": list(self.printed), "warnings": list(self.warnings),
            "parts": [part.to_dict() for part in self.parts],
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Counts:
        """Back from JSON."""
        origin = Origin(**data["origin"])
        sums = amounts.from_dict(data["amounts"])
        return Counts(
            **_fields_of(sums), **{name: data[name] for name in _PLAIN}, origin=origin, errors=MappingProxyType(data["errors"]),
            by_line=_lines(_lines_from_list(data["by_line"]), "leaf", data["name"], origin),
            by_outer_line=_lines(_lines_from_list(data["by_outer_line"]), "outer", data["name"], origin),
            faults=tuple(map(_fault, data["faults"])), printed=tuple(data["printed"]), warnings=tuple(data["warnings"]),
            parts=tuple(map(Counts.from_dict, data["parts"])),
        )


_PLAIN = ("name", "unique_load_bytes", "unique_store_bytes", "blocks", "blocks_run")


def _rows(c: Counts) -> Iterator[tuple[str, object, str, str]]:
    """(label, value, field whose error is stated, remark) of each row."""
    def ideal(units: int, least: int) -> str:
        return f"{units / least:.3g} times the {least:,} of lanes side by side" if least and units != least else ""

    classes = [f"{n:,} {name}" for name, n in c.by_class.items()]
    words = ", ".join(classes[:CLASSES_SHOWN]) + (", …" if len(classes) > CLASSES_SHOWN else "")
    yield "warp instructions", c.warp_instructions, "warp_instructions", words
    lanes = f"{c.average_active_lanes:.3g} active lanes on average" if c.warp_instructions else ""
    yield "thread instructions", c.thread_instructions, "thread_instructions", lanes
    if c.branches:
        yield "branches", c.branches, "branches", f"{c.branches_split:,} split a warp"
    yield "FLOP", c.flops, "flops", ", ".join(f"{n:,} {dtype} {kind}" for (kind, dtype), n in c.flops_by.items())
    for kind, verb in (("load", "loaded"), ("store", "stored"), ("atomic", "by atomics")):
        if requests := getattr(c, f"global_{kind}_requests"):
            sectors = getattr(c, f"global_{kind}_sectors")
            yield f"global, {verb}", tables.bytes_(getattr(c, f"global_{kind}_bytes")), f"global_{kind}_bytes", ""
            words = ideal(sectors, getattr(c, f"global_{kind}_ideal_sectors"))
            yield f"global {kind} sectors", sectors, f"global_{kind}_sectors", words
            yield f"global {kind} requests", requests, f"global_{kind}_requests", f"{sectors / requests:.3g} sectors each"
    bound = "" if c.exact else "at least: of the blocks that were run"
    yield "unique bytes loaded", tables.bytes_(c.unique_load_bytes), "", bound
    yield "unique bytes stored", tables.bytes_(c.unique_store_bytes), "", bound
    yield from _local_rows(c)
    if c.flops:
        words = ", ".join(f"{tables.decimal(n)} by {name}" for name, n in c.intensities.items() if c.exact or name != "unique")
        yield "FLOP a byte of sectors", tables.decimal(c.intensities["sectors"]), "", words


def _local_rows(c: Counts) -> Iterator[tuple[str, object, str, str]]:
    """What stays on the SM: shared and local memory, barriers, atomics."""
    for kind, verb in (("load", "loaded"), ("store", "stored"), ("atomic", "by atomics")):
        if getattr(c, f"shared_{kind}_requests"):
            wavefronts = getattr(c, f"shared_{kind}_wavefronts")
            conflicts = wavefronts - getattr(c, f"shared_{kind}_ideal_wavefronts")
            yield f"shared, {verb}", tables.bytes_(getattr(c, f"shared_{kind}_bytes")), f"shared_{kind}_bytes", ""
            yield (f"shared {kind} wavefronts", wavefronts, f"shared_{kind}_wavefronts",
                   f"{conflicts:,} by bank conflicts" if conflicts else "no bank conflicts")
    if c.local_load_bytes + c.local_store_bytes:
        words = f"{tables.bytes_(c.local_load_bytes)} loaded, {tables.bytes_(c.local_store_bytes)} stored"
        yield "local memory", tables.bytes_(c.local_load_bytes + c.local_store_bytes), "", words
    if c.barriers:
        yield "barriers", c.barriers, "barriers", "executions by a warp"
    if c.atomics:
        yield "atomics", c.atomics, "atomics", "lanes"


# ---------------------------------------------------------------- making them
def counts_of(program: Program, operations: Sequence[Operation], tally: Tally, arena: Arena, *, name: str = "",
              blocks: int = 0, blocks_run: int | None = None, faults: Iterable[Fault] = (),
              errors: Mapping[str, float] = _NO_ERRORS, warnings: Sequence[str] = (), compiler: str = "") -> Counts:
    """The `Counts` of one launch; `arena` as the launch left it.

    operations: one an instruction of the program; blocks_run: fewer than `blocks` for a sample, whose sums are scaled up;
    faults: of this launch; compiler: in words, for the origin.
    """
    run = blocks if blocks_run is None else blocks_run
    factor = blocks / run if run else 1.0
    sites = by_site(program, operations, tally)
    if factor != 1:
        sites = [scaled(one, factor) for one in sites]
    places = [instruction.place for instruction in program.instructions]
    origin = Origin("counted", ", ".join(filter(None, (f"PTX for {program.target}", compiler, run_words(run, blocks)))))
    loaded, stored = unique_bytes(arena)
    return Counts(
        **_fields_of(total(sites)), name=name or program.name, origin=origin, unique_load_bytes=loaded,
        unique_store_bytes=stored, by_line=_lines(_by_place(places, sites, leaf), "leaf", name, origin),
        by_outer_line=_lines(_by_place(places, sites, outermost), "outer", name, origin), blocks=blocks, blocks_run=run,
        errors=errors, faults=tuple(map(readable, faults)), printed=tuple(tally.printed), warnings=tuple(warnings),
    )


def together(name: str, parts: Sequence[Counts]) -> Counts:
    """The counts of several launches as one; unique bytes are each launch's own, added. One launch stays as it is."""
    if len(parts) == 1:
        return replace(parts[0], name=name)
    first, run, blocks = parts[0], sum(part.blocks_run for part in parts), sum(part.blocks for part in parts)
    words = [word for word in first.origin.detail.split(", ") if not word.endswith((" block run", " blocks run"))]
    origin = Origin("counted", ", ".join([*words, run_words(run, blocks), f"{len(parts)} launches"]))
    return Counts(
        **_fields_of(total(parts)), name=name, origin=origin,
        unique_load_bytes=sum(part.unique_load_bytes for part in parts),
        unique_store_bytes=sum(part.unique_store_bytes for part in parts),
        by_line=_lines(_merged([part.by_line for part in parts]), "leaf", name, origin),
        by_outer_line=_lines(_merged([part.by_outer_line for part in parts]), "outer", name, origin),
        blocks=blocks, blocks_run=run, errors=_joint_errors(parts), faults=_distinct(parts),
        printed=tuple(line for part in parts for line in part.printed),
        warnings=tuple(dict.fromkeys(w for part in parts for w in part.warnings)), parts=tuple(parts),
    )


def _joint_errors(parts: Sequence[Counts]) -> dict[str, float]:
    """Of a sum of independent samples: the absolute errors add as squares."""
    names = dict.fromkeys(name for part in parts for name in part.errors)
    found = {}
    for name in names:
        squares = sum((part.errors.get(name, 0.0) * getattr(part, name)) ** 2 for part in parts)
        whole = sum(getattr(part, name) for part in parts)
        found[name] = squares**0.5 / whole if whole else 0.0
    return found


def _distinct(parts: Sequence[Counts]) -> tuple[Fault, ...]:
    """The faults of all launches, those of one cause once."""
    found: dict[Any, Fault] = {}
    for fault in (fault for part in parts for fault in part.faults):
        key = fault.kind, fault.place, fault.other, fault.message
        found[key] = replace(found[key], times=found[key].times + fault.times) if key in found else fault
    return tuple(found.values())


def run_words(run: int, blocks: int) -> str:
    """How much of a grid was run: 'all 576 blocks run', '128 of 9,216 blocks run'."""
    whole = f"all {blocks:,} blocks run" if blocks != 1 else "1 block run"
    return whole if run == blocks else f"{run:,} of {blocks:,} blocks run"


def unique_bytes(arena: Arena) -> tuple[int, int]:
    """(distinct bytes read before written, distinct bytes written) of global memory in the launch that just ended."""
    import numpy as np

    known = [arena.known(name) for name, buffer in arena.buffers.items() if not buffer.constant]
    return (sum(int(np.count_nonzero(flags & READ)) for flags in known),
            sum(int(np.count_nonzero(flags & WRITTEN)) for flags in known))


# ---------------------------------------------------------------- places
def file_name(file: str) -> str:
    """A source file as a person knows it: without the folder under which the compiler was given it."""
    return file.rsplit("/", 1)[-1]


def leaf(place: Place) -> tuple[str, int]:
    """Where the code stands."""
    return file_name(place.file), place.line


def outermost(place: Place) -> tuple[str, int]:
    """The line of the kernel at which the code was inlined, or where it stands."""
    while place.inlined_at is not None:
        place = place.inlined_at
    return leaf(place)


def readable(fault: Fault) -> Fault:
    """A fault whose places name files as a person knows them, of plain numbers."""
    def clean(place: Place) -> Place:
        return Place(file_name(place.file), place.line, place.inlined_at and clean(place.inlined_at))

    return replace(fault, place=clean(fault.place), other=fault.other and clean(fault.other), block=int(fault.block),
                   threads=tuple(map(int, fault.threads)), times=int(fault.times))


def _by_place(places: Sequence[Place], sites: Sequence[Amounts],
              key: Callable[[Place], tuple[str, int]]) -> dict[tuple[str, int], Amounts]:
    grouped: dict[tuple[str, int], list[Amounts]] = {}
    for place, one in zip(places, sites, strict=True):
        if one.warp_instructions:
            grouped.setdefault(key(place), []).append(one)
    return {where: total(several) for where, several in grouped.items()}


def _merged(several: Sequence[Lines]) -> dict[tuple[str, int], Amounts]:
    keys = dict.fromkeys(key for lines in several for key in lines)
    return {key: total(lines[key] for lines in several if key in lines) for key in keys}


def _lines(found: Mapping[tuple[str, int], Amounts], how: str, name: str, origin: Origin) -> Lines:
    title = f"{name}: by line" if how == "leaf" else f"{name}: by line, inlined code where it was inlined"
    return Lines(MappingProxyType(dict(sorted(found.items()))), how, title, origin)


def _busiest(lines: Lines) -> str:
    """The file whose lines executed most."""
    files: dict[str, int] = {}
    for (file, _), one in lines.items():
        files[file] = files.get(file, 0) + one.warp_instructions
    return max(files, key=lambda file: files[file]) if files else ""


def _fields_of(one: Amounts) -> dict[str, Any]:
    return {name: getattr(one, name) for name in (*amounts.NUMBERS, "by_class", "thread_by_class", "flops_by")}


def _lines_to_list(lines: Lines) -> list[list[Any]]:
    return [[file, line, amounts.to_dict(one)] for (file, line), one in lines.items()]


def _lines_from_list(data: Iterable[Sequence[Any]]) -> dict[tuple[str, int], Amounts]:
    return {(file, line): amounts.from_dict(one) for file, line, one in data}


def _fault(data: Mapping[str, Any]) -> Fault:
    def place(one: Mapping[str, Any] | None) -> Place | None:
        return None if one is None else Place(one["file"], one["line"], place(one["inlined_at"]))

    found = place(data["place"])
    assert found is not None
    return Fault(**{**data, "threads": tuple(data["threads"]), "place": found, "other": place(data["other"])})
