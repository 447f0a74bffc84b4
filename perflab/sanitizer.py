"""compute-sanitizer: all versions of a study under memcheck, racecheck, synccheck and initcheck; what it finds as `Fault`.

One process a tool, every array an allocation of its own, so that an access past its end is not one into its neighbour.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from perflab.emulator.faults import Fault
from perflab.emulator.ptx import Place
from perflab.errors import PerflabError
from perflab.launching import MARK, Target, read_notes, run_tool, tool_path
from perflab.measuring import Outcome, hand_over, record_of
from perflab.origins import Origin
from perflab.planning import Plan, PlanItem, shape_labels
from perflab.records import Record
from perflab.studies import load_study
from perflab.tables import Shown, Table

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
TOOL_LIMIT_SECONDS, LEAST_SECONDS = 300.0, 15.0
PRINT_LIMIT = 100_000  # a cause is found by each of its lanes
THREADS_KEPT = NOTES_KEPT = 8
_FRAME = r"(?P<function>.+?)\+(?P<offset>0x[0-9a-f]+)(?: in (?P<file>.+):(?P<line>\d+))?"
_AT = re.compile(rf"at {_FRAME}")
_OLD_AT = re.compile(r"at (?P<offset>0x[0-9a-f]+) in (?:(?P<file>[^:]+):(?P<line>\d+):)?(?P<function>.+)")  # before 2023
_DEVICE = re.compile(rf"Device Frame: ?{_FRAME}")
_BY = re.compile(r"by thread \((\d+),(\d+),(\d+)\) in block \((\d+),(\d+),(\d+)\)")
_RACE = re.compile(rf"(?:(?P<level>Error|Warning|Info): )?Race reported between (?P<access>\w+) access {_AT.pattern}")
_AND = re.compile(rf"and (?P<access>\w+) access {_AT.pattern}(?: \[(?P<hazards>\d+) hazards?\])?")
_HAZARD = re.compile(r"(?:(?P<level>Error|Warning|Info): )?(?:\([\w ]+\) )?Potential (?:RAW|WAR|WAW) hazard detected "
                     r"at __shared__ 0x[0-9a-f]+ in block \((?P<block>\d+,\d+,\d+)\) :")
_RACER = re.compile(rf"(?P<access>Read|Write) Thread \((?P<thread>\d+,\d+,\d+)\) {_AT.pattern}")
_NOT_PRINTED = re.compile(r"ERROR SUMMARY: (\d+) errors? (?:were|was) not printed")
_NO_FINDING = re.compile(r"COMPUTE-SANITIZER|(ERROR|RACECHECK|LEAK) SUMMARY|Program hit|Target application returned|"
                         r"Error: process didn't terminate|Saved host backtrace")
_KINDS = {
    r"(Invalid|Potential invalid) __\w+__ (read|write|atomic).*": "out of bounds",
    r"Warp assert": "assertion",
    r"Trace/breakpoint trap": "trap",
    r"Uninitialized .*": "uninitialised",
    r"Barrier error detected\. Invalid arguments.*": "absent lane",
    r"Barrier error detected.*": "barrier divergence",
}
"""How a finding begins -> its kind among those of the emulator."""
_WORDS = {
    "Device not supported": "compute-sanitizer does not work on this machine's GPU: seen under gVisor. Use a machine that "
                            "gives the GPU to a real kernel",
    "No attachable process found": "compute-sanitizer could not attach to Python: its own libraries must be beside it",
    "Unable to find injection library": "compute-sanitizer does not find its own libraries: start it from the CUDA toolkit",
}


# ---------------------------------------------------------------- reading
@dataclass(frozen=True)
class Finding:
    """One entry of the log: its first line and those below it; item: the one that ran then, by the marks between entries."""

    heading: str
    details: tuple[str, ...]
    item: int | None = None


def findings(text: str) -> tuple[list[Finding], list[str]]:
    """What compute-sanitizer printed, entry by entry; and notes: what it left out."""
    found: list[Finding] = []
    notes: list[str] = []
    item: int | None = None
    open_entry = False
    for line in text.splitlines():
        mark = re.match(rf"{MARK} (\d+) (\w+)", line)
        if mark:
            item = int(mark[1])
        if not line.startswith("========="):
            continue
        said = line[len("=========") :]
        if left := _NOT_PRINTED.search(said):
            notes.append(f"{int(left[1]):,} errors were not printed")
        if said.strip() and not said.startswith("  "):
            open_entry = not _NO_FINDING.match(said.strip())
            if open_entry:
                found.append(Finding(said.strip(), (), item))
        elif open_entry and said.strip():
            found[-1] = replace(found[-1], details=(*found[-1].details, said.strip()))
    return found, notes


@dataclass(frozen=True)
class _Found:
    """A fault, the kernel it was in, and the item, where a mark told it."""

    fault: Fault
    kernel: str
    item: int | None


def faults_of(found: Iterable[Finding], blocks: Mapping[str, tuple[Sequence[int], Sequence[int]]]) -> Iterator[_Found | str]:
    """The fault, or faults, of each finding; what is not understood as text, word for word.

    blocks: mangled kernel name -> (grid, block), by which threads and blocks are numbered.
    """
    for one in found:
        heading = " ".join(one.heading.split())
        if race := _RACE.fullmatch(heading):
            yield from _races(one, race)
            continue
        if hazard := _HAZARD.fullmatch(heading):
            yield _hazard(one, hazard, blocks)
            continue
        kind = next((kind for pattern, kind in _KINDS.items() if re.fullmatch(pattern, one.heading)), None)
        at = next(filter(None, (pattern.fullmatch(line) for line in one.details for pattern in (_AT, _OLD_AT))), None)
        if kind is None or at is None:
            yield " | ".join((one.heading, *one.details[:3]))
            continue
        frames = [at, *filter(None, map(_DEVICE.fullmatch, one.details))]
        kernel = frames[-1]["function"]
        grid, block = blocks.get(kernel, ((1, 1, 1), (1, 1, 1)))
        by = next(filter(None, map(_BY.search, one.details)), None)
        numbers = [int(n) for n in by.groups()] if by else [0] * 6
        if any("misaligned" in line for line in one.details):
            kind = "misaligned"
        fault = Fault(kind, _message(one), _place(frames), _linear(numbers[3:], grid), (_linear(numbers[:3], block),),
                      at["offset"])
        yield _Found(fault, kernel, one.item)


def _races(one: Finding, first: re.Match[str]) -> Iterator[_Found | str]:
    """Each pair of accesses of a race."""
    pairs = [match for line in one.details if (match := _AND.fullmatch(line))]
    if not pairs:
        yield " | ".join((one.heading, *one.details[:3]))
    for second in pairs:
        fault = Fault(*_race_words(first, second, first["level"]), _place([first]), 0, (), first["offset"],
                      _place([second]), int(second["hazards"] or 1))
        yield _Found(fault, first["function"], one.item)


def _hazard(one: Finding, hazard: re.Match[str], blocks: Mapping[str, tuple[Sequence[int], Sequence[int]]]) -> _Found | str:
    """One byte of shared memory and the two accesses to it, the later one second: `--racecheck-report hazard`."""
    racers = list(filter(None, map(_RACER.fullmatch, one.details)))
    if len(racers) != 2:
        return " | ".join((one.heading, *one.details[:3]))
    earlier, later = racers
    grid, block = blocks.get(later["function"], ((1, 1, 1), (1, 1, 1)))
    where, *threads = ([int(n) for n in at.split(",")] for at in (hazard["block"], earlier["thread"], later["thread"]))
    fault = Fault(*_race_words(earlier, later, hazard["level"]), _place([later]), _linear(where, grid),
                  tuple(sorted({_linear(thread, block) for thread in threads})), later["offset"], _place([earlier]))
    return _Found(fault, later["function"], one.item)


def _race_words(first: re.Match[str], second: re.Match[str], level: str | None) -> tuple[str, str]:
    """Kind and message of a race; racecheck's own level where it is not its highest."""
    writes = (first["access"], second["access"]) == ("Write", "Write")
    called = f" (racecheck calls it {level.lower()})" if level and level != "Error" else ""
    message = f"{first['access'].lower()} and {second['access'].lower()} of shared memory that nothing orders{called}"
    return "two writers" if writes else "race", message


def _message(one: Finding) -> str:
    """The heading and what is said about the address, without the address itself, which differs from run to run."""
    about = [line for line in one.details if line.startswith(("Access ", "and is ", "Address ", "Barrier is"))]
    return re.sub(r"( at| to)? 0x[0-9a-f]+", "", ", ".join((one.heading.rstrip("."), *about)))


def _place(frames: Sequence[re.Match[str]]) -> Place:
    """Where it happened: the leaf, with the frames that called or inlined it; the kernel's name where no line is known."""
    place: Place | None = None
    for frame in reversed(frames):
        file = frame["file"].rsplit("/", 1)[-1] if frame["file"] else frame["function"]
        if place is None or (place.file, place.line) != (file, int(frame["line"] or 0)):
            place = Place(file, int(frame["line"] or 0), place)
    assert place is not None
    return place


def _linear(at: Sequence[int], size: Sequence[int]) -> int:
    return at[0] + size[0] * (at[1] + size[1] * at[2])


def merged(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """One a cause (kind, place, other place), with its occurrences and first threads, by file and line."""
    known: dict[Any, Fault] = {}
    for fault in faults:
        key = fault.kind, fault.place, fault.other
        if before := known.get(key):
            more = fault.threads if fault.block == before.block and fault.threads != before.threads[-1:] else ()
            fault = replace(before, times=before.times + fault.times, threads=(*before.threads, *more)[:THREADS_KEPT])
        known[key] = fault
    return tuple(sorted(known.values(), key=lambda f: (f.file, f.line, f.kind, f.message)))


# ---------------------------------------------------------------- what was found
@dataclass(frozen=True, repr=False)
class Findings(Shown):
    """What each tool found in one version, one fault a cause; notes: what a tool said besides, or that it could not end.

    stale: why a record no longer describes today's code; empty while it does.
    """

    name: str
    origin: Origin
    faults: Mapping[str, tuple[Fault, ...]]
    notes: Mapping[str, tuple[str, ...]]
    stale: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """True when every tool ran to its end and found nothing."""
        return not any(self.faults.values()) and not any(self.notes.values())

    def __repr__(self) -> str:
        return str(self)

    @property
    def stale_notes(self) -> list[str]:
        """A line a reason why the record no longer holds."""
        return [f"STALE: {self.name}: {reason}" for reason in self.stale]

    def table(self) -> Table:
        """A row a fault and tool."""
        rows = [(tool, fault.kind, f"{fault.file}:{fault.line}", fault.message, fault.times)
                for tool, several in self.faults.items() for fault in several]
        clean = [tool for tool in self.faults if not self.faults[tool] and not self.notes.get(tool)]
        notes = [f"nothing found: {', '.join(clean)}"] if clean else []
        notes += [f"{tool}: {note}" for tool, several in self.notes.items() for note in several] + self.stale_notes
        columns = ("tool", "kind", "where", "what", "times")
        return Table(f"{self.name}: compute-sanitizer", columns, rows, str(self.origin), notes)


def from_record(record: Record, stale: Sequence[str] = ()) -> Findings:
    """The findings of a record of kind "faults"; stale: why it no longer holds."""
    payload = record.payload_of("faults")
    tools = payload["tools"]
    origin = Origin("measured", f"{record.gpu['name']}, {record.utc[:10]}, {payload['sanitizer']}")
    return Findings(f"{record.study} {record.version}", origin,
                    {tool: tuple(map(fault_from_dict, one["faults"])) for tool, one in tools.items()},
                    {tool: tuple(one["notes"]) for tool, one in tools.items()}, tuple(stale))


def fault_from_dict(data: Mapping[str, Any]) -> Fault:
    """Back from `dataclasses.asdict` through JSON."""
    def place(one: Mapping[str, Any] | None) -> Place | None:
        return Place(one["file"], one["line"], place(one["inlined_at"])) if one else None

    return Fault(**{**data, "threads": tuple(data["threads"]), "place": place(data["place"]), "other": place(data["other"])})


def finders(name: str, emulated: Iterable[Fault], sanitized: Findings) -> Table:
    """Who finds what: a row a bug, by kind and line, with a mark for the emulator and for each tool."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for finder, several in {"emulator": tuple(emulated), **sanitized.faults}.items():
        for fault in several:
            kind = "race" if fault.kind == "two writers" else fault.kind  # which of both depends on who comes first
            lines = sorted({fault.line, fault.other.line} if fault.other else {fault.line})
            where = f"{fault.file}:{' and '.join(map(str, lines))}"
            mine = found.setdefault((where, kind), {})
            mine[finder] = mine.get(finder, 0) + fault.times
    columns = ("emulator", *sanitized.faults)
    rows = [(where, kind, *(f"{mine[finder]:,}" if finder in mine else "" for finder in columns))
            for (where, kind), mine in sorted(found.items())]
    return Table(f"{name}: who finds what, with occurrences", ("where", "kind", *columns), rows, str(sanitized.origin),
                 sanitized.stale_notes)


# ---------------------------------------------------------------- running it
def smallest(plan: Plan) -> list[int]:
    """The items to look at: of each version that at the shape with the least work, for the tools are slow."""
    assert plan.folder is not None
    study = load_study(plan.folder)
    flops = [study.work(study.make_shape(**item.shape)).flops for item in plan.items]
    best: dict[str, int] = {}
    for index, item in enumerate(plan.items):
        if item.version not in best or flops[index] < flops[best[item.version]]:
            best[item.version] = index
    return sorted(best.values(), key=lambda index: flops[index])


@dataclass
class _Sanitizer:
    """One run over a plan: what every tool found in every item, so far."""

    plan: Plan
    target: Target
    path: str
    version: str
    chosen: list[int]
    end: float | None

    def __post_init__(self) -> None:
        self.faults: dict[tuple[int, str], list[Fault]] = {}
        self.notes: dict[tuple[int, str], list[str]] = {}
        self.clocks: dict[int, Mapping[str, Any]] = {}

    def run(self, tool: str) -> bool:
        """Run a tool over all items, anew behind one that died or hung; False when time is up."""
        waiting = list(self.chosen)
        while waiting:
            left = TOOL_LIMIT_SECONDS if self.end is None else min(TOOL_LIMIT_SECONDS, self.end - time.monotonic())
            if left < LEAST_SECONDS:
                return False
            waiting = self._once(tool, waiting, left)
        return True

    def _once(self, tool: str, items: Sequence[int], limit_seconds: float) -> list[int]:
        """One process; the items that it did not come to."""
        options = ["--tool", tool, "--print-limit", str(PRINT_LIMIT), "--show-backtrace", "device", "--demangle", "no"]
        options += ["--destroy-on-device-error", "kernel"] if tool == "memcheck" else []
        more = ["--no-pool", *(["--blank"] if tool == "initcheck" else [])]
        with tempfile.TemporaryDirectory(prefix="perflab-") as folder:
            notes = Path(folder) / "notes.jsonl"
            ended = run_tool([self.path, *options, *self.target.command(items, notes, *more)], limit_seconds)
            noted = read_notes(notes)
        if not noted.begun:
            raise PerflabError(_in_words(tool, ended.said, ended.code))
        for index in noted.begun:
            self.faults.setdefault((index, tool), [])
            self.notes.setdefault((index, tool), [])
        self.clocks |= noted.clocks
        self._keep(tool, noted.begun, ended.said)
        for index, problem in noted.problems.items():
            if not self.faults[index, tool]:
                self.notes[index, tool].append(problem)
        if noted.cut is not None:
            last = next((line.strip() for line in reversed(ended.stderr.splitlines()) if line.strip()), "")
            how = f"its process ended with {ended.code}{': ' if last else ''}{last}"
            how = f"it ran past {limit_seconds:.0f} s" if ended.code is None else how
            self.notes[noted.cut, tool].append(f"not finished: {how}")
        return [index for index in items if index not in noted.begun]

    def _keep(self, tool: str, items: Sequence[int], text: str) -> None:
        """Give each finding to its item: by the mark before it, if it ran such a kernel, else by the kernel's name."""
        launches = [(index, launch) for index in items for launch in self.plan.items[index].launches]
        blocks = {launch["entry"]: (launch["grid"], launch["block"]) for _, launch in launches}
        owners: dict[str, list[int]] = {}
        for index, launch in launches:
            owners.setdefault(launch["entry"], []).append(index)
        found, left_out = findings(text)
        for one in faults_of(found, blocks):
            if isinstance(one, str):
                left_out.append(one)
                continue
            known = owners.get(one.kernel, [])
            marked = one.item if one.item in items and (not known or one.item in known) else None
            self.faults[(known or items)[-1] if marked is None else marked, tool].append(one.fault)
        self.notes[items[-1], tool] += left_out[:NOTES_KEPT]
        if len(left_out) > NOTES_KEPT:
            self.notes[items[-1], tool].append(f"{len(left_out) - NOTES_KEPT:,} more that were not understood")

    def payload(self, index: int) -> dict[str, Any]:
        """All tools on one item, as JSON."""
        tools = {tool: {"faults": [asdict(fault) for fault in merged(self.faults[index, tool])],
                        "notes": self.notes[index, tool]} for tool in TOOLS if (index, tool) in self.faults}
        return {"sanitizer": self.version, "tools": tools}


def _in_words(tool: str, said: str, code: int | None) -> str:
    """Why nothing ran, and what to do."""
    for part, words in _WORDS.items():
        if part in said:
            return f"{words} ({part})"
    how = "ran past its limit" if code is None else f"ended with {code}"
    return f"compute-sanitizer --tool {tool} {how} before anything was launched: {said[-1500:] or 'it said nothing'}"


def sanitize_plan(plan: Plan, chosen: Sequence[int], target: Target, device: Mapping[str, Any],
                  on_record: Callable[[Record], object], on_note: Callable[[str], object] = print,
                  tools: Sequence[str] = TOOLS, budget_seconds: float | None = None) -> Outcome:
    """These items (`smallest` of each version) under each tool; a record an item when the last tool is through.

    device: as `describe` tells it. When time is up, records hold the tools that ran. Raises PerflabError if there is no
    compute-sanitizer or it does not work here.
    """
    path = tool_path("compute-sanitizer")
    end = None if budget_seconds is None else time.monotonic() + budget_seconds
    match = re.search(r"\d{4}\.\d+[.\d]*", run_tool([path, "--version"], 60).said)
    run = _Sanitizer(plan, target, path, f"compute-sanitizer {match[0]}" if match else "compute-sanitizer", list(chosen), end)
    labels = shape_labels([item.shape for item in plan.items])
    early = ""
    for tool in tools:
        started = time.monotonic()
        if not run.run(tool):
            early = f"the {budget_seconds:g} s allowed are over, {tool} is not through"
            break
        on_note(f"{tool}: {len(chosen)} versions, {time.monotonic() - started:.0f} s")
    done = [index for index in chosen if index in run.clocks or any((index, tool) in run.faults for tool in TOOLS)]
    for index in done:
        item, payload = plan.items[index], run.payload(index)
        found = {"kind": "faults", "payload": payload, "clocks": run.clocks.get(index, {"temperature_celsius": None})}
        hand_over(record_of(plan, item, device, found), on_record, on_note)
        on_note(_line(item, labels[index], payload))
    through = sum(all((index, tool) in run.faults for tool in tools) for index in chosen)
    outcome = Outcome(len(done), through, (), len(chosen) - through, early)
    on_note(str(outcome))
    return outcome


def _line(item: PlanItem, label: str, payload: Mapping[str, Any]) -> str:
    """A line for who watches."""
    kinds = [f"{tool}: {', '.join(dict.fromkeys(fault['kind'] for fault in one['faults']))}"
             for tool, one in payload["tools"].items() if one["faults"]]
    notes = [f"{tool}: {one['notes'][0][:200]}" for tool, one in payload["tools"].items() if one["notes"]]
    return f"{'FAULTS ' if kinds else 'clean  '} {item.version}, {label}: {'; '.join([*kinds, *notes]) or 'nothing found'}"
