"""Nsight Compute: a plan's launches under ncu, and reading what it wrote (its CSV, or a .ncu-rep through ncu_report).

Clocks are left alone and caches treated as recorded; no time is ever taken from it, for it replays a kernel many times.
"""

from __future__ import annotations

import csv
import importlib
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from perflab import tables
from perflab.counters import HardwareCounts, LaunchMetrics, base, hardware_counts, metrics_for
from perflab.errors import PerflabError, unknown
from perflab.launching import Noted, Target, read_notes, run_tool, tool_path
from perflab.measuring import Outcome, hand_over, record_of
from perflab.origins import Origin
from perflab.planning import Plan, shape_labels
from perflab.records import Record

OLDEST = (2022, 1)  # names kernels by their mangled names and prints base units
CACHE_CONTROLS = ("all", "none")
QUERY_SECONDS, START_SECONDS, ITEM_SECONDS = 60, 8.0, 6.0
LEAST_LIMIT_SECONDS = 120
GROUP = 6  # ncu prints all at its end: what dies with it must not be too much
_PREFIXES = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SCALED = re.compile(r"([numKMGT]?)(byte|second|s|hz|Hz)")
_NO_GRID, _PASSES = "(0, 0, 0)", "profiler__replayer_passes"
_QUERY_LAUNCH = ("--query-metrics-collection", "launch")
_ALWAYS = re.compile(r"launch__|device__|sm__maximum_")  # no counters: the default query does not list them
_WORDS = {
    "ERR_NVGPUCTRPERM": "the driver lets only administrators read the GPU's counters. Run as root; or in a container add "
                        "--cap-add=SYS_ADMIN; or set NVreg_RestrictProfilingToAdminUsers=0 for the nvidia module",
    "LibraryNotLoaded": "ncu cannot load the driver's profiling library: seen under gVisor, which has none. Use a machine that "
                        "gives the GPU to a real kernel",
    "driver resource was unavailable": "another profiler holds the GPU's counters (DCGM, nsys, another ncu): end it",
    "lock file": "another user's ncu left its lock in /tmp: remove nsight-compute-lock, or set TMPDIR",
    "No kernels were profiled": "ncu saw none of the launches",
    "LaunchFailed": "the kernel failed under ncu, which then ends its process: look at it under compute-sanitizer",
    "not supported on this": "this ncu does not know this GPU: take a newer Nsight Compute",
    "Failed to find metric": "this ncu does not know one of the metrics: take a newer Nsight Compute",
}
"""Part of what ncu says -> what it means and what to do."""
_FATAL = ("ERR_NVGPUCTRPERM", "LibraryNotLoaded", "driver resource was unavailable", "lock file", "not supported on this")


# ---------------------------------------------------------------- reading
def parse_csv(text: str) -> tuple[LaunchMetrics, ...]:
    """The launches in what `ncu --csv` printed, in order: its raw page (a column a metric) or its details (a row a metric).

    Lines that are no CSV (ncu's progress, the program's output) are passed over, and launches that failed, which ncu lists
    with a grid of 0. Values come in base units: 'Kbyte' as byte, 'usecond' as second. A metric with n/a is left out.
    PerflabError if there is no header of ncu's.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    begin = next((k for k, line in enumerate(lines) if line.startswith('"ID",')), None)
    if begin is None:
        raise PerflabError('this is no CSV of ncu: no line begins with "ID",. It is written by ncu --csv --page raw')
    rows = list(csv.reader(lines[begin:]))
    header = rows[0]
    if "Kernel Name" not in header:
        raise PerflabError("this CSV of ncu names no kernels: write it with --page raw or --page details")
    read = _long if "Metric Name" in header else _wide
    launches = read(header, [row for row in rows[1:] if row != header])
    return tuple(launch for launch in launches if launch.grid != _NO_GRID)


def _wide(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[LaunchMetrics]:
    """A row a launch, below one of units."""
    units: dict[str, str] = {}
    for row in rows:
        cells = dict(zip(header, row, strict=False))
        if not cells["ID"]:
            units = cells
            continue
        if len(row) != len(header):
            raise PerflabError(f"launch {cells['ID']} of this CSV of ncu has {len(row)} cells under {len(header)} columns: "
                               "it is cut or was changed")
        yield _launch(cells, {name: _quantity(text, units.get(name, "")) for name, text in cells.items() if "__" in name})


def _long(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[LaunchMetrics]:
    """A row a metric; labels as 'Memory Throughput', which are no metric names, are passed over."""
    cells = [dict(zip(header, row, strict=False)) for row in rows if len(row) == len(header)]
    for _, group in groupby(cells, key=lambda one: (one["ID"], one.get("Process ID"))):
        own = list(group)
        yield _launch(own[0], {one["Metric Name"]: _quantity(one["Metric Value"], one["Metric Unit"])
                               for one in own if "__" in one["Metric Name"]})


def _launch(cells: dict[str, str], metrics: dict[str, tuple[float, str] | None]) -> LaunchMetrics:
    known = {name: both for name, both in metrics.items() if both is not None}
    grid, block, capability = (cells.get(name, "") for name in ("Grid Size", "Block Size", "CC"))
    return LaunchMetrics(cells["Kernel Name"], known, grid, block, capability)


def _quantity(text: str, unit: str) -> tuple[float, str] | None:
    """(value in base units, base unit); None for n/a, text and NaN."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    if value != value:
        return None
    above, slash, below = unit.partition("/")
    scale, named = 1.0, []
    for part, power in ((above, 1), (below, -1)):
        match = _SCALED.fullmatch(part)
        scale *= _PREFIXES[match[1]] ** power if match else 1.0
        named.append({"s": "second", "Hz": "hz"}.get(match[2], match[2]) if match else part)
    return value * scale, slash.join(named) if slash else named[0]


def read_report(path: Path) -> tuple[LaunchMetrics, ...]:
    """The launches of a .ncu-rep file, by NVIDIA's module ncu_report. PerflabError says how to do without it."""
    try:
        module = importlib.import_module("ncu_report")
    except ImportError as error:
        raise PerflabError("a .ncu-rep is read by NVIDIA's module ncu_report, which is not installed: pip install ncu-report "
                           f"(perflab's extra ncu); or make a CSV of it: ncu --import {path} --csv --page raw") from error
    try:
        report = module.load_report(str(path))
    except Exception as error:  # the module's own; a newer file than it knows is one of them
        raise PerflabError(f"{path} cannot be read by ncu_report: {error}") from error
    return tuple(_action(action) for part in report for action in part)


def _action(action: Any) -> LaunchMetrics:
    """One launch of a report; its metrics that are numbers."""
    metrics = {}
    for name in action.metric_names():
        value = action[name].value()
        if isinstance(value, (int, float)) and (both := _quantity(repr(value), action[name].unit() or "")):
            metrics[name] = both

    def number(name: str) -> int:
        return int(metrics[name][0]) if name in metrics else 0

    grid, block = (str(tuple(number(f"launch__{what}_dim_{axis}") for axis in "xyz")) for what in ("grid", "block"))
    major, minor = (number(f"device__attribute_compute_capability_{part}") for part in ("major", "minor"))
    return LaunchMetrics(action.name(), metrics, grid, block, f"{major}.{minor}" if major else "")


def read_file(path: Path | str, kernel: str | None = None) -> HardwareCounts:
    """The counters of a CSV or .ncu-rep that ncu wrote: of all its launches, or of the kernels whose name holds `kernel`."""
    file = Path(path)
    if not file.is_file():
        raise PerflabError(f"{file} is not there: name a .ncu-rep, or the CSV of ncu --csv --page raw")
    launches = read_report(file) if file.suffix == ".ncu-rep" else parse_csv(file.read_text(encoding="utf-8", errors="replace"))
    if not launches:
        raise PerflabError(f"{file} holds no launch that ncu counted: those that failed have no counters")
    chosen = [launch for launch in launches if kernel is None or kernel in launch.entry]
    if not chosen:
        raise unknown("kernel in that file", kernel, sorted({launch.entry for launch in launches}))
    return hardware_counts(kernel or file.name, chosen, Origin("measured", f"{file.name}, by ncu"))


# ---------------------------------------------------------------- running it
@dataclass(frozen=True)
class Ncu:
    """An ncu that can be started: where, its version in words, and the metrics it knows for the GPU here."""

    path: str
    version: str
    known: frozenset[str] | None

    def command(self, metrics: Sequence[str], entries: Sequence[str], cache_control: str) -> list[str]:
        """What stands before the target's own command."""
        names = "|".join(sorted({re.escape(entry) for entry in entries}))
        return [self.path, "--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "mangled",
                "--kernel-name-base", "mangled", "--kernel-name", f"regex:^({names})$", "--target-processes", "all",
                "--replay-mode", "kernel", "--clock-control", "none", "--cache-control", cache_control,
                "--metrics", ",".join(metrics)]


def find_ncu() -> Ncu:
    """The ncu of this machine. PerflabError if there is none, or it is too old."""
    path = tool_path("ncu")
    said = run_tool([path, "--version"], QUERY_SECONDS).said
    match = re.search(r"(\d{4})\.(\d+)(?:\.\d+)*", said)
    if not match:
        raise PerflabError(f"{path} --version was not understood: {said[-300:] or 'it said nothing'}")
    if (int(match[1]), int(match[2])) < OLDEST:
        raise PerflabError(f"ncu {match[0]} is too old: {'.'.join(map(str, OLDEST))} or newer is needed; CUDA 11.6 brings it")
    listed = (run_tool([path, "--query-metrics", *more], QUERY_SECONDS).stdout for more in ([], [*_QUERY_LAUNCH]))
    known = frozenset(name for text in listed for name in re.findall(r"^(\w+__\w+)", text, re.M))
    return Ncu(path, f"ncu {match[0]}", known or None)


def metrics_of(ncu: Ncu, capability: str) -> tuple[str, ...]:
    """What to ask this ncu for on such a chip."""
    if ncu.known is None:
        return metrics_for(capability)
    listed = any(name.startswith("launch__") for name in ncu.known)
    every = {base(name) for name in metrics_for(capability)}
    always = {name for name in every if _ALWAYS.match(name) and not (listed and name.startswith("launch__"))}
    return metrics_for(capability, ncu.known | always)


def in_words(said: str, code: int) -> str:
    """Why ncu gave nothing, and what to do."""
    tail = "\n".join(line for line in said.splitlines() if line.strip() and not line.startswith('"'))[-1500:]
    for part, words in _WORDS.items():
        if part in said:
            return f"{words} ({part})" if part in _FATAL else f"{words}. It said:\n{tail}"
    return f"ncu ended with {code}: {tail or 'it said nothing'}"


@dataclass(frozen=True)
class Taken:
    """What one ncu process gave: launches by item, items' notes, and what went wrong."""

    launches: dict[int, tuple[LaunchMetrics, ...]]
    notes: Noted
    problem: str = ""
    fatal: bool = False


def take(plan: Plan, chosen: Sequence[int], target: Target, ncu: Ncu, metrics: Sequence[str], cache_control: str,
         limit_seconds: float) -> Taken:
    """Run these items under one ncu. `fatal`: no other item would do better."""
    entries = [launch["entry"] for index in chosen for launch in plan.items[index].launches]
    with tempfile.TemporaryDirectory(prefix="perflab-") as folder:
        notes, log = Path(folder) / "notes.jsonl", Path(folder) / "ncu.csv"
        command = [*ncu.command(metrics, entries, cache_control), "--log-file", str(log), *target.command(chosen, notes)]
        ended = run_tool(command, limit_seconds)
        noted = read_notes(notes)
        written = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if ended.code is None:
        return Taken({}, noted, f"ncu was stopped after {limit_seconds:.0f} s: fewer or smaller shapes, or a higher limit")
    said = f"{ended.said}\n{written}"
    try:
        launches = parse_csv(written)
    except PerflabError:
        problem = next(iter(noted.problems.values()), "") or in_words(said, ended.code)
        return Taken({}, noted, problem, fatal=any(word in said for word in _FATAL))
    found, problem = _by_item(plan, noted, launches)
    problem = problem or "; ".join(noted.problems.values())
    return Taken(found, noted, problem or (in_words(said, ended.code) if ended.code else ""))


def _by_item(plan: Plan, noted: Noted, launches: Sequence[LaunchMetrics]) -> tuple[dict[int, tuple[LaunchMetrics, ...]], str]:
    """The launches of each item that ended, by order; and why not, where names and order do not agree."""
    found, rest = dict[int, tuple[LaunchMetrics, ...]](), list(launches)
    for index in noted.begun:
        if index not in noted.clocks:
            break  # how many of its launches came so far is not known
        wanted = [launch["entry"] for launch in plan.items[index].launches]
        own, rest = rest[: len(wanted)], rest[len(wanted) :]
        if [one.entry for one in own] != wanted:
            return found, f"ncu saw {[one.entry for one in own]} where {wanted} were launched"
        found[index] = tuple(own)
    return found, ""


def count_plan(plan: Plan, chosen: Sequence[int], target: Target, device: Mapping[str, Any],
               on_record: Callable[[Record], object], on_note: Callable[[str], object] = print, cache_control: str = "all",
               budget_seconds: float | None = None, item_limit_seconds: float | None = None) -> Outcome:
    """Hardware counters of these items, GROUP of a shape in one ncu; of a group that fails, the rest one by one.

    device: as `describe` tells it. cache_control: 'all' flushes L1 and L2 before each replay, 'none' leaves them as the
    replay before did. Raises PerflabError if ncu is missing, too old, or may not read the counters.
    """
    if cache_control not in CACHE_CONTROLS:
        raise unknown("cache control", cache_control, CACHE_CONTROLS)
    begin, ncu = time.monotonic(), find_ncu()
    metrics = metrics_of(ncu, device["capability"])
    on_note(f"{ncu.version}, {len(metrics)} metrics, cache control {cache_control}")
    labels = shape_labels([item.shape for item in plan.items])
    waiting = list(_groups(plan, chosen))
    each, done, failed, early = ITEM_SECONDS, 0, list[str](), ""
    while waiting:
        expected, gone = START_SECONDS + each * len(waiting[0]), time.monotonic() - begin
        if budget_seconds is not None and gone + expected > budget_seconds:
            early = f"the next {expected:.0f} s do not fit into the {budget_seconds:g} s allowed"
            break
        limit = item_limit_seconds or max(LEAST_LIMIT_SECONDS, 10 * expected)
        group, started = waiting.pop(0), time.monotonic()
        taken = take(plan, group, target, ncu, metrics, cache_control,
                     limit if budget_seconds is None else min(limit, budget_seconds - gone))
        if taken.fatal:
            raise PerflabError(taken.problem)
        for index, launches in taken.launches.items():
            found = {"kind": "counts", "payload": _payload(ncu, cache_control, launches, metrics),
                     "clocks": taken.notes.clocks[index]}
            hand_over(record_of(plan, plan.items[index], device, found), on_record, on_note)
            on_note(f"counted {plan.items[index].version}, {labels[index]}: {_summary(launches)}")
        done += len(taken.launches)
        missing = [index for index in group if index not in taken.launches]
        if missing and len(group) > 1:
            waiting[:0] = [[index] for index in missing]
        elif missing:
            failed.append(f"{plan.items[missing[0]].version}, {labels[missing[0]]}: {taken.problem or 'not launched'}")
            on_note(f"FAILED  {failed[-1]}")
        else:
            each = max(each, (time.monotonic() - started - START_SECONDS) / len(group))
    outcome = Outcome(done, done, tuple(failed), len(chosen) - done - len(failed), early)
    on_note(str(outcome))
    return outcome


def _groups(plan: Plan, chosen: Sequence[int]) -> Iterator[list[int]]:
    """Items of one shape, in their order, at most GROUP together."""
    for _, alike in groupby(chosen, key=lambda k: json.dumps(plan.items[k].shape, sort_keys=True)):
        several = list(alike)
        yield from (several[k : k + GROUP] for k in range(0, len(several), GROUP))


def _payload(ncu: Ncu, cache_control: str, launches: Sequence[LaunchMetrics], metrics: Sequence[str]) -> dict[str, Any]:
    """What was asked for, and in how many passes: ncu writes four times as much, attributes of the device and all roll-ups."""
    absent = [name for name in metrics if any(name not in launch.metrics for launch in launches)]
    kept = [{**launch.to_dict(), "metrics": {name: list(launch.metrics[name]) for name in (*metrics, _PASSES)
                                             if name in launch.metrics}} for launch in launches]
    return {"tool": ncu.version, "cache_control": cache_control, "clock_control": "none", "replay_mode": "kernel",
            "launches": kept, "absent": absent}


def _summary(launches: Sequence[LaunchMetrics]) -> str:
    """A line for who watches."""
    counts = hardware_counts("", launches, Origin("measured"))
    dram, occupancy = counts.get("dram_bytes"), counts.get("achieved_occupancy")
    parts = [f"{len(launches)} launches" if len(launches) > 1 else "1 launch"]
    parts += [f"DRAM {tables.bytes_(dram)}"] if dram is not None else []
    parts += [f"occupancy {tables.percent(occupancy)}"] if occupancy is not None else []
    return ", ".join(parts)
