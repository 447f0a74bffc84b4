"""Bugs planted in three kernels by -DBUG=n: each is found, by kind and line, and nothing else; without one all is quiet.

A line of the source with the comment `bug n` is where bug n must be reported; `bug n other`: the other access of a race;
`bug n too`: a line that may be named instead. Bugs that show under one order of blocks alone are looked for under two.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perflab as pl
from perflab.emulator.counts import Counts
from perflab.emulator.faults import KINDS, Fault
from perflab.planted import planted_table

FOLDER = Path(__file__).parent / "cuda"
MACHINES = ["numpy", *(["vector"] if importlib.util.find_spec("llvmlite") else [])]
SCHEDULES = ("forward", "reversed", "random:1")
N, DATA, KEYS, SPLITS, COLUMNS = 24, 2500, 24, 4, 128
LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched: what a clean launch takes, changed by what a bug says."""

    n: int = 0  # matmul: rows; reduction: numbers; attention: keys
    grid: int | tuple[int, int] = SPLITS
    dynamic_shared: int = 0
    scratch: tuple[str, ...] = ()  # beside the usual ones
    sms: int = 132


@dataclass(frozen=True)
class Bug:
    """Bug `number` of a kernel's source. kind: what must be reported at its lines.

    follows: (kind, marker) of faults that the bug brings about further on, and that may be reported too; marker '' is any line,
    '12 other' a line marked so. launch: how to launch.
    """

    source: str
    number: int
    kind: str
    what: str
    follows: tuple[tuple[str, str], ...] = ()
    launch: Launch | None = None
    style: int = 0

    def __str__(self) -> str:
        return f"{self.source} {self.number}: {self.what}"


BUGS = (
    # ------------------------------------------------------------ matrix product
    Bug("matmul", 1, "out of bounds", "global load past the last row"),
    Bug("matmul", 2, "out of bounds", "global store past the last row"),
    Bug("matmul", 3, "out of bounds", "64 bytes of dynamic shared memory too few",
        launch=Launch(N, (2, 2), dynamic_shared=2048 - 64)),
    Bug("matmul", 4, "uninitialised", "shared memory written under a condition, read without"),
    Bug("matmul", 5, "race", "no barrier between loading a tile and reading it", (("uninitialised", "5"),)),
    Bug("matmul", 6, "race", "no barrier between reading a tile and loading the next"),
    Bug("matmul", 7, "out of bounds", "shared load, one step too many"),
    # what the lanes of one side read before the others came is not defined
    Bug("matmul", 8, "barrier divergence", "__syncthreads on both sides of an if", (("race", "5"), ("uninitialised", "5"))),
    Bug("matmul", 9, "assertion", "a failed device assert"),
    Bug("matmul", 10, "two writers", "the last column of a row written by the next row too"),
    Bug("matmul", 11, "unwritten output", "the last row left out"),
    # ------------------------------------------------------------ reduction
    Bug("reduction", 1, "race", "a shuffle used as a fence"),
    Bug("reduction", 2, "race", "warp-synchronous write and read without __syncwarp"),
    Bug("reduction", 3, "race", "warp-synchronous read and write without __syncwarp"),
    Bug("reduction", 4, "read-only load", "__ldg of what other blocks write in this launch"),
    Bug("reduction", 5, "race", "no __threadfence before the ticket"),
    Bug("reduction", 6, "race", "__threadfence_block before the ticket"),
    Bug("reduction", 7, "race", "no fence after the ticket and plain reads"),
    Bug("reduction", 8, "two writers", "the ticket reset by one block while others draw", (("unwritten output", ""),)),
    Bug("reduction", 9, "active mask", "a shuffle among __activemask()"),
    Bug("reduction", 10, "two writers", "a shared flag set by two warps without a barrier", (("unwritten output", ""),)),
    Bug("reduction", 11, "absent lane", "a full-mask shuffle under if (lane < 24)"),
    Bug("reduction", 12, "absent lane", "shuffles from lanes that have left"),
    Bug("reduction", 13, "barrier divergence", "__syncthreads by one lane of each warp"),
    Bug("reduction", 14, "barrier divergence", "a second __syncthreads by half of the warps"),
    Bug("reduction", 15, "race", "no barrier between writing the warps' sums and reading them", (("uninitialised", "15"),)),
    Bug("reduction", 16, "uninitialised", "shared memory beyond what was written"),
    Bug("reduction", 17, "race", "no barrier between reading the warps' sums and writing their largest"),
    # the second writer is not the one that fences
    Bug("reduction", 18, "two writers", "two threads write the same value", (("race", "18"),)),
    Bug("reduction", 19, "uninitialised", "the ticket is scratch memory that nobody zeroed", (("unwritten output", ""),),
        Launch(DATA, scratch=("ticket",))),
    # the same barrier would order the block's own partial result and the other lanes of its warp 0
    Bug("reduction", 20, "race", "no barrier between drawing the ticket and reading it",
        (("uninitialised", "20"), ("unwritten output", ""), ("race", "7"))),
    Bug("reduction", 21, "deadlock", "a grid barrier with more blocks than fit",
        launch=Launch(DATA, 3, 200_000, sms=2), style=2),
    Bug("reduction", 22, "trap", "__trap under a condition"),
    Bug("reduction", 23, "unwritten output", "one of two results left out"),
    # ------------------------------------------------------------ attention
    Bug("attention", 1, "race", "no __threadfence before the flag"),
    Bug("attention", 2, "race", "__threadfence_block before the flag"),
    Bug("attention", 3, "deadlock", "a flag that nobody raises"),
    Bug("attention", 4, "misaligned", "float4 in a shared row of 129 floats"),
    Bug("attention", 5, "misaligned", "float4 from a pointer one float too far"),
    Bug("attention", 6, "out of bounds", "one key too many"),
    Bug("attention", 7, "absent lane", "a full-mask shuffle under if (lane < 16)"),
    Bug("attention", 8, "uninitialised", "a block without keys leaves its part of the scratch unwritten", launch=Launch(9)),
    Bug("attention", 9, "race", "no barrier between writing the warps' parts and joining them", (("uninitialised", "9"),)),
    Bug("attention", 10, "deadlock", "a named barrier that waits for more threads than come"),
    Bug("attention", 11, "barrier divergence", "half of each warp at another __syncthreads",
        (("race", "9"), ("uninitialised", "9"))),
    Bug("attention", 12, "read-only load", "__ldg of the other blocks' parts"),
    Bug("attention", 13, "two writers", "all blocks write one place", (("uninitialised", "8"),)),
    # what the flags begin as may let block 0 pass too early
    Bug("attention", 14, "uninitialised", "flags are scratch memory that nobody zeroed",
        (("uninitialised", "8"), ("race", "8")), Launch(KEYS, scratch=("flags",))),
    Bug("attention", 15, "uninitialised", "a register that an asm statement does not always write"),
    Bug("attention", 16, "unwritten output", "the last lane's columns left out"),
)
CLEAN = (("matmul", 0), *(("reduction", style) for style in range(4)), *(("attention", style) for style in range(3)))
USUAL = {"matmul": Launch(N, (2, 2), dynamic_shared=1024), "reduction": Launch(DATA), "attention": Launch(KEYS)}


# ---------------------------------------------------------------- launching
def arrays(source: str, launch: Launch) -> dict[str, Any]:
    """The arguments of a kernel, by name. Whole numbers where sums must be exact."""
    random = np.random.default_rng(4)
    if source == "matmul":
        a, b = (random.integers(-8, 9, (launch.n, launch.n)).astype(np.float32) for _ in range(2))
        return {"a": a, "b": b, "c": np.full_like(a, np.nan), "n": launch.n}
    if source == "reduction":
        blocks = int(np.prod(launch.grid))
        return {"data": random.integers(-8, 9, launch.n).astype(np.float32), "sums": np.zeros(blocks, np.float32),
                "tops": np.zeros(blocks, np.float32), "ticket": np.zeros(1, np.uint32), "out": np.zeros(2, np.float32),
                "n": launch.n}
    q, k, v = (random.standard_normal((rows, COLUMNS)).astype(np.float32) for rows in (2, launch.n, launch.n))
    return {"q": q, "k": k, "v": v, "part_sum": np.zeros((SPLITS, COLUMNS), np.float32),
            "part_top": np.zeros((SPLITS, 2), np.float32), "flags": np.zeros(SPLITS, np.int32),
            "out": np.zeros(COLUMNS, np.float32), "lse": np.zeros(1, np.float32), "keys": launch.n, "scale": LOG2_E / 8}


OUTPUTS = {"matmul": ("c",), "reduction": ("out",), "attention": ("out", "lse")}
SCRATCH = {"matmul": (), "reduction": ("sums", "tops"), "attention": ("part_sum", "part_top")}
ENTRY = {"matmul": ("matmul", (16, 16)), "reduction": ("reduce", 256), "attention": ("attention", 64)}


def run(source: str, bug: int, style: int, launch: Launch, machine: str, schedule: str) -> tuple[Counts, dict[str, Any]]:
    """Run a kernel with a bug; the counts, and its arguments as it left them."""
    name, block = ENTRY[source]
    arguments = arrays(source, launch)
    places = list(arguments)
    kernel = pl.load(FOLDER / f"{source}.cu", name, {"BUG": bug, "STYLE": style})
    counts = kernel.emulate(
        launch.grid, block, list(arguments.values()), launch.dynamic_shared, replace(pl.gpu("H200"), sm_count=launch.sms),
        machine=machine, schedule=schedule,
        outputs=tuple(places.index(one) for one in OUTPUTS[source]),
        scratch=tuple(places.index(one) for one in (*SCRATCH[source], *launch.scratch)))
    return counts, arguments


def is_right(source: str, given: dict[str, Any]) -> bool:
    """Whether the outputs are those of float64; sums of whole numbers to the last bit."""
    if source == "matmul":
        return np.array_equal(given["c"], given["a"].astype(np.float64) @ given["b"])
    if source == "reduction":
        return np.array_equal(given["out"], [given["data"].sum(dtype=np.float64), given["data"].max()])
    scores = given["k"].astype(np.float64) @ given["q"][0] / 8
    weight = np.exp(scores - scores.max())
    return (np.allclose(given["out"], weight @ given["v"] / weight.sum(), rtol=1e-5, atol=1e-6)
            and np.allclose(given["lse"], np.log(weight.sum()) + scores.max(), rtol=1e-6))


# ---------------------------------------------------------------- what must be found
@cache
def marked(source: str) -> dict[str, list[int]]:
    """Marker ('7', '7 other', '7 too') -> the lines that carry it."""
    found: dict[str, list[int]] = {}
    for number, line in enumerate((FOLDER / f"{source}.cu").read_text().splitlines(), 1):
        for bug, role in re.findall(r"bug (\d+)( other| too)?", line.partition("//")[2]):
            found.setdefault(bug + role, []).append(number)
    return found


def lines_of(fault: Fault) -> frozenset[int]:
    """The lines that a fault names, in no order: which of two accesses came first depends on the schedule."""
    return frozenset({fault.line} | ({fault.other.line} if fault.other else set()))


def wanted(bug: Bug) -> list[frozenset[int]]:
    """What must be reported: one set of lines a report, each pair of `bug n` and `bug n other` for a race."""
    at, other = (marked(bug.source).get(f"{bug.number}{role}", []) for role in ("", " other"))
    if bug.kind in ("race", "two writers"):
        return [frozenset({a, b}) for a in at for b in other if related(bug, a, b)]
    return [frozenset({a}) for a in at]


def related(bug: Bug, a: int, b: int) -> bool:
    """Whether two marked lines are about one array: where several are on either side, they stand in the same order."""
    at, other = (marked(bug.source)[f"{bug.number}{role}"] for role in ("", " other"))
    return len(at) == 1 or len(other) == 1 or at.index(a) == other.index(b)


def explained(bug: Bug, fault: Fault) -> bool:
    """Whether a fault is the bug itself or follows from it."""
    marks = marked(bug.source)
    own = {line for role in ("", " other", " too") for line in marks.get(f"{bug.number}{role}", [])}
    if fault.kind == bug.kind and (lines_of(fault) <= own or bug.kind == "unwritten output"):
        return True
    return any(fault.kind == kind and (not marker or lines_of(fault) & set(marks[marker])) for kind, marker in bug.follows)


def missing(bug: Bug, faults: list[Fault]) -> list[frozenset[int]]:
    """The reports that must be there and are not."""
    found = [lines_of(fault) for fault in faults if fault.kind == bug.kind]
    if bug.kind == "unwritten output":
        return [] if found else [frozenset()]
    if bug.kind in ("race", "two writers"):
        return [lines for lines in wanted(bug) if lines not in found]
    too = frozenset(marked(bug.source).get(f"{bug.number} too", ()))
    return [lines for lines in wanted(bug) if not any(lines & one or too & one for one in found)]


@cache
def reported(bug: Bug, machine: str) -> dict[str, tuple[Fault, ...]]:
    """Schedule -> what was reported, under two of them."""
    launch = bug.launch or USUAL[bug.source]
    usual = USUAL[bug.source]
    launch = replace(launch, n=launch.n or usual.n, dynamic_shared=launch.dynamic_shared or usual.dynamic_shared)
    return {s: run(bug.source, bug.number, bug.style, launch, machine, s)[0].faults for s in SCHEDULES[:2]}


def cases() -> list[Any]:
    """All bugs on the first machine; on the others, which compile each for seconds, one of each kind a source."""
    first: dict[tuple[str, str], Bug] = {}
    for bug in BUGS:
        first.setdefault((bug.kind, bug.source if bug.kind in ("race", "uninitialised") else ""), bug)
    return [pytest.param(bug, machine, id=f"{machine}-{bug}") for machine in MACHINES
            for bug in (BUGS if machine == MACHINES[0] else first.values())]


@pytest.mark.parametrize(("bug", "machine"), cases())
def test_bug_is_found_and_nothing_else(bug: Bug, machine: str) -> None:
    faults = [fault for found in reported(bug, machine).values() for fault in found]
    assert not missing(bug, faults), "\n".join(map(str, faults)) or "nothing reported"
    assert not [str(fault) for fault in faults if not explained(bug, fault)]
    assert {fault.file for fault in faults} == {f"{bug.source}.cu"}
    assert all(fault.message and (fault.threads or fault.kind == "unwritten output") for fault in faults)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("source", "style"), CLEAN)
def test_without_a_bug_all_is_quiet_and_right(source: str, style: int, machine: str) -> None:
    usual = USUAL[source]
    launch = Launch(960, usual.grid) if (source, style) == ("reduction", 3) else usual  # 2 warps of 32 leave early
    for schedule in SCHEDULES:
        counts, arguments = run(source, 0, style, launch, machine, schedule)
        assert not [str(fault) for fault in counts.faults], schedule
        assert is_right(source, arguments), schedule


def test_every_kind_is_planted() -> None:
    assert {bug.kind for bug in BUGS} == set(KINDS)


def test_how_many_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    """The line that the documentation quotes; this file run as a program says it of every machine."""
    with capsys.disabled():
        print("\n" + summary(MACHINES[0]))


def summary(machine: str) -> str:
    """Found and planted, by both schedules and by the first alone, and reports that nothing explains."""
    both = first = false = 0
    for bug in BUGS:
        by_schedule = reported(bug, machine)
        everything = [fault for found in by_schedule.values() for fault in found]
        both += not missing(bug, everything)
        first += not missing(bug, list(by_schedule["forward"]))
        false += sum(not explained(bug, fault) for fault in everything)
    return (f"{machine}: {both} of {len(BUGS)} planted bugs found, {first} of them in the first order of blocks; "
            f"{false} false reports")


# ---------------------------------------------------------------- beside compute-sanitizer, as recorded
RECORDED = Path(__file__).parents[2] / "data" / "experiments" / "h200_planted.json"
taken = pytest.mark.skipif(not RECORDED.exists(), reason="no run of tests/gpu/planted.py is recorded yet")


@taken
def test_the_record_is_of_these_kernels() -> None:
    recorded = json.loads(RECORDED.read_text())
    now = {source: hashlib.sha256((FOLDER / f"{source}.cu").read_bytes()).hexdigest() for source in ENTRY}
    assert recorded["sources"] == now, "a kernel changed: run tests/gpu/planted.py again"
    planted = [(bug.source, bug.number, bug.style, bug.kind, bug.what) for bug in BUGS]
    clean = [(source, 0, style, "", "without a bug") for source, style in CLEAN]
    keys = ("source", "number", "style", "kind", "what")
    assert [tuple(case[key] for key in keys) for case in recorded["cases"]] == planted + clean


@taken
def test_the_emulator_finds_every_bug_where_the_record_says() -> None:
    cases = json.loads(RECORDED.read_text())["cases"]
    for bug, case in zip(BUGS, cases, strict=False):
        faults = [fault for found in reported(bug, MACHINES[0]).values() for fault in found]
        now = {(fault.kind, *sorted(lines_of(fault))) for fault in faults}
        assert now == {(one["kind"], *one["lines"]) for one in case["emulator"]}, bug
        assert set(case["lines"]) >= {line for lines in wanted(bug) for line in lines}, bug
        assert any(kind == bug.kind and set(lines) & set(case["lines"]) for kind, *lines in now), bug


@taken
def test_the_sums_of_the_table_are_those_of_its_rows() -> None:
    recorded = json.loads(RECORDED.read_text())
    table = planted_table(recorded)
    *rows, (_, of, *sums) = table.rows
    assert of == f"of {len(BUGS)}" and len(rows) == len(BUGS)
    assert not [row for row in rows if "not run" in row or "died" in row]
    for column, (finder, said) in enumerate(zip(table.columns[3:], sums[1:], strict=True), 3):
        assert int(said) == sum(row[column] == "found" for row in rows), finder
        assert int(said) <= int(sums[1]) == len(BUGS), finder
    assert int(sums[0]) == sum(row[2] != "right" for row in rows)


if __name__ == "__main__":
    for name in MACHINES:
        print(summary(name))
