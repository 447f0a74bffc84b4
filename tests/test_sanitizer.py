"""perflab.sanitizer: what compute-sanitizer's words become, and running a study's versions under a fake one."""

from __future__ import annotations

import json
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import fake_tools
import pytest
from saxpy_workspace import ENVIRONMENT, make_study, planned

from perflab import sanitizer
from perflab.emulator.faults import KINDS, Fault
from perflab.emulator.ptx import Place
from perflab.errors import PerflabError
from perflab.launching import Target
from perflab.packing import pack
from perflab.planning import Plan
from perflab.records import Record
from perflab.sanitizer import (
    _Found,
    fault_from_dict,
    faults_of,
    finders,
    findings,
    from_record,
    merged,
    sanitize_plan,
    smallest,
)

MEMCHECK = """========= COMPUTE-SANITIZER
PERFLAB-ITEM 3 begun
========= Invalid __global__ write of size 4 bytes
=========     at tile_kernel+0xd0 in /home/me/study/tile.cu:9
=========     by thread (1,2,0) in block (3,1,0)
=========     Access at 0x7f241b0001e0 is out of bounds
=========     and is 33 bytes after the nearest allocation at 0x7f241b000000 of size 448 bytes
=========
========= Invalid __shared__ read of size 16 bytes
=========     at load_row(float const *, int)+0x380 in parts.cuh:61
=========     by thread (65,0,0) in block (0,0,0)
=========     Access to 0x3041 is misaligned
=========         Device Frame: tile_kernel+0xb0 in tile.cu:12
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: launch [0x2c8] in libcuda.so.1
=========
PERFLAB-ITEM 3 ended
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on CUDA API call to cudaFree.
=========     Saved host backtrace up to driver entry point at error
=========         Host Frame: main in oob_demo.cu:29 [0x8a03] in oob_demo
=========
========= Target application returned an error
========= ERROR SUMMARY: 1257 errors
========= ERROR SUMMARY: 1157 errors were not printed. Use --print-limit option to adjust the number of printed errors
"""
UNUSUAL = """========= COMPUTE-SANITIZER
========= Warp assert
=========     at __assertfail+0x19a0
=========     by thread (0,6,0) in block (0,1,0)
=========         Device Frame: __assertfail+0x1930
========= Trace/breakpoint trap
=========     at reduce+0xb50 in reduction.cu:157
=========     by thread (5,0,0) in block (0,0,0)
========= Warning: (Warp Level Programming) Potential RAW hazard detected at __shared__ 0x7c0 in block (2,0,0) :
=========     Write Thread (240,0,0) at _Z12warp_largestfPfi+0x2f0 in reduction.cu:32
=========     Read Thread (224,0,0) at _Z12warp_largestfPfi+0x300 in reduction.cu:39
=========     Current Value : 0
========= Potential invalid __shared__ read of size 4 bytes
=========     at _Z12warp_largestfPfi+0x1030 in reduction.cu:39
=========     by thread (248,0,0) in block (2,0,0)
=========     Address 0xc0000790 is located in a block that might not have entered yet
========= Target application returned an error
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at tile_kernel+0x150 in tile.cu:27
=========     and Read access at tile_kernel+0x160 in tile.cu:30 [4194304 hazards]
=========     and Write access at tile_kernel+0x150 in tile.cu:27 [5 hazards]
=========
========= Warning: Race reported between Read access at tile_kernel+0x10 in tile.cu:31
=========     and Write access at tile_kernel+0x20 in tile.cu:33 [1 hazard]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
HAZARDS = """========= COMPUTE-SANITIZER
========= Error: Potential WAR hazard detected at __shared__ 0x410 in block (1,2,0) :
=========     Read Thread (31,0,0) at tile_kernel+0x860 in tile.cu:61
=========     Write Thread (0,1,0) at tile_kernel+0x9d0 in tile.cu:39
=========     Current Value : 0, Incoming Value : 181
=========
========= Info: Potential WAW hazard detected at __shared__ 0x4 in block (0,0,0) :
=========     Write Thread (2,0,0) at tile_kernel+0x100 in tile.cu:70
=========     Write Thread (1,0,0) at tile_kernel+0x100 in tile.cu:70
=========     Current Value : 7, Incoming Value : 7
=========
========= Error: Potential RAW hazard detected at __shared__ 0x8 in block (0,0,0) :
=========     Something new
=========
========= RACECHECK SUMMARY: 3 hazards displayed (2 errors, 0 warnings)
"""
OTHERS = """========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at tile_kernel+0xa0 in tile.cu:61
=========     by thread (19,0,0) in block (0,0,0)
=========
========= Barrier error detected. Invalid arguments.
=========     at __syncwarp(unsigned int)+0xe0 in sm_30_intrinsics.hpp:110
=========     by thread (0,0,0) in block (0,0,0)
=========         Device Frame: tile_kernel+0xb0 in tile.cu:12
=========
========= Uninitialized __global__ memory read of size 4 bytes
=========     at 0x250 in tile.cu:41:tile_kernel
=========     by thread (16,0,0) in block (0,0,0)
=========     Address 0x7f3c7ec000fc
=========
========= Something that nobody has seen yet
=========     at tile_kernel+0xa0
========= ERROR SUMMARY: 4 errors
"""
FROM_H200 = {  # what compute-sanitizer 2025.3.1 printed, cut; MARK stands where the program printed
    "memcheck": """========= COMPUTE-SANITIZER
MARK begin bug_bounds
MARK end bug_bounds
MARK begin bug_misaligned
========= Invalid __global__ write of size 16 bytes
=========     at bug_misaligned+0xa0 in probe.cu:19
=========     by thread (0,0,0) in block (0,0,0)
=========     Access to 0x7f8e2c800004 is misaligned
=========     and is inside the nearest allocation at 0x7f8e2c800000 of size 4,096 bytes
========= \n\
========= Invalid __global__ write of size 16 bytes
=========     at bug_misaligned+0xa0 in probe.cu:19
=========     by thread (1,0,0) in block (0,0,0)
=========     Access to 0x7f8e2c800014 is misaligned
=========     and is inside the nearest allocation at 0x7f8e2c800000 of size 4,096 bytes
========= \n\
MARK end bug_misaligned
========= ERROR SUMMARY: 768 errors
========= ERROR SUMMARY: 668 errors were not printed. Use --print-limit option to adjust the number of printed errors
""",
    "racecheck": """========= COMPUTE-SANITIZER
MARK begin bug_race
========= Error: Race reported between Write access at bug_race+0xe0 in probe.cu:23
=========     and Read access at bug_race+0xf0 in probe.cu:24 [1024 hazards]
========= \n\
MARK end bug_race
MARK begin bug_misaligned
MARK failed bug_misaligned CUDARuntimeError cudaErrorMisalignedAddress: misaligned address
========= Target application returned an error
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
""",
    "initcheck": """========= COMPUTE-SANITIZER
MARK begin bug_uninit
========= Uninitialized __global__ memory read of size 4 bytes
=========     at bug_uninit+0x60 in probe.cu:20
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7fc3c6801000
========= \n\
MARK end bug_uninit
========= ERROR SUMMARY: 256 errors
""",
}
BLOCKS = {"tile_kernel": ((4, 4, 1), (32, 8, 1))}


def read(text: str) -> tuple[list[Fault], list[str], list[_Found]]:
    found, notes = findings(text)
    each = list(faults_of(found, BLOCKS))
    ours = [one for one in each if isinstance(one, _Found)]
    return [one.fault for one in ours], [*(one for one in each if isinstance(one, str)), *notes], ours


# ---------------------------------------------------------------- reading
def test_memcheck_kind_place_thread_and_block() -> None:
    (bounds, misaligned), notes, found = read(MEMCHECK)
    assert (bounds.kind, bounds.file, bounds.line) == ("out of bounds", "tile.cu", 9)
    assert bounds.block == 3 + 4 * 1 and bounds.threads == (1 + 32 * 2,) and bounds.instruction == "0xd0"
    assert bounds.message == ("Invalid __global__ write of size 4 bytes, Access is out of bounds, "
                              "and is 33 bytes after the nearest allocation of size 448 bytes")
    assert (misaligned.kind, misaligned.file, misaligned.line) == ("misaligned", "parts.cuh", 61)
    assert misaligned.place.inlined_at == Place("tile.cu", 12)
    assert [(one.kernel, one.item) for one in found] == [("tile_kernel", 3), ("tile_kernel", 3)]
    assert notes == ["1,157 errors were not printed"]  # and what the API said after it is no finding of its own


def test_hazards_byte_by_byte_name_the_later_access_and_both_threads() -> None:
    (war, waw), notes, _ = read(HAZARDS)
    assert (war.kind, war.place, war.other) == ("race", Place("tile.cu", 39), Place("tile.cu", 61))
    assert (war.block, war.threads) == (1 + 4 * 2, (31, 32))
    assert war.message == "read and write of shared memory that nothing orders"
    assert (waw.kind, waw.line, waw.threads) == ("two writers", 70, (1, 2))
    assert waw.message.endswith("(racecheck calls it info)")
    assert len(notes) == 1 and "Something new" in notes[0]


def test_racecheck_gives_each_pair_of_accesses() -> None:
    (read_write, two_writers, warned), notes, _ = read(RACECHECK)
    assert (read_write.kind, read_write.line, read_write.other, read_write.times) == ("race", 27, Place("tile.cu", 30), 4194304)
    assert (two_writers.kind, two_writers.other, two_writers.times) == ("two writers", Place("tile.cu", 27), 5)
    assert warned.message.endswith("(racecheck calls it warning)") and warned.times == 1 and notes == []


def test_synccheck_initcheck_and_what_is_not_understood() -> None:
    (divergent, mask, unwritten), notes, _ = read(OTHERS)
    assert (divergent.kind, divergent.line, divergent.threads) == ("barrier divergence", 61, (19,))
    assert mask.kind == "absent lane" and mask.place.inlined_at == Place("tile.cu", 12)
    assert (unwritten.kind, unwritten.line, unwritten.threads) == ("uninitialised", 41, (16,))
    assert notes == ["Something that nobody has seen yet | at tile_kernel+0xa0"]


def test_what_an_h200_printed() -> None:
    faults, notes, found = read(FROM_H200["memcheck"].replace("MARK begin bug_misaligned", "PERFLAB-ITEM 7 begun"))
    (misaligned,) = merged(faults)
    assert (misaligned.kind, misaligned.file, misaligned.line, misaligned.times) == ("misaligned", "probe.cu", 19, 2)
    assert misaligned.threads == (0, 1) and misaligned.message == (
        "Invalid __global__ write of size 16 bytes, Access is misaligned, "
        "and is inside the nearest allocation of size 4,096 bytes")
    assert [one.item for one in found] == [7, 7] and notes == ["668 errors were not printed"]
    (race,), notes, _ = read(FROM_H200["racecheck"])
    assert (race.kind, race.line, race.other, race.times, notes) == ("race", 23, Place("probe.cu", 24), 1024, [])
    (unwritten,), notes, _ = read(FROM_H200["initcheck"])
    assert (unwritten.kind, unwritten.line, unwritten.instruction, notes) == ("uninitialised", 20, "0x60", [])


def test_what_an_h200_printed_of_asserts_traps_and_warnings() -> None:
    """From the record of the planted bugs: an assert, that is in a function without lines, a trap, and racecheck's levels."""
    faults, notes, _ = read(UNUSUAL)
    assert [(fault.kind, fault.file, fault.line) for fault in faults] == [
        ("assertion", "__assertfail", 0), ("trap", "reduction.cu", 157), ("race", "reduction.cu", 39), ("out of bounds",
                                                                                                     "reduction.cu", 39)]
    assert faults[2].other == Place("reduction.cu", 32) and faults[2].message.endswith("(racecheck calls it warning)")
    assert notes == []


def test_every_kind_is_one_of_the_emulators() -> None:
    texts = (MEMCHECK, RACECHECK, OTHERS, UNUSUAL, *FROM_H200.values())
    assert {fault.kind for text in texts for fault in read(text)[0]} <= set(KINDS)


def test_without_line_info_the_kernel_stands_for_the_file() -> None:
    text = OTHERS.replace(" in tile.cu:61", "")
    assert (read(text)[0][0].file, read(text)[0][0].line) == ("tile_kernel", 0)


@pytest.mark.parametrize("text", [
    "", "garbage\n", "=========\n", "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n",
    "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n",
])
def test_nothing_found(text: str) -> None:
    assert read(text)[:2] == ([], [])


@pytest.mark.parametrize("text", [MEMCHECK, RACECHECK, OTHERS])
def test_a_log_that_is_cut_anywhere_is_read_without_an_error(text: str) -> None:
    for end in range(0, len(text), 7):
        read(text[:end])


def test_one_a_cause_with_its_first_threads() -> None:
    bounds = read(MEMCHECK)[0][0]
    other_block = replace(bounds, block=9, threads=(1,))
    lanes = [replace(bounds, threads=(lane,)) for lane in range(12)]
    (one,) = merged([*lanes, other_block])
    assert one.times == 13 and one.threads == tuple(range(8)) and one.block == bounds.block
    assert len(merged([*lanes, replace(bounds, place=Place("tile.cu", 10))])) == 2


def test_a_fault_survives_json() -> None:
    for fault in read(MEMCHECK)[0] + read(RACECHECK)[0]:
        assert fault_from_dict(json.loads(json.dumps(asdict(fault)))) == fault


# ---------------------------------------------------------------- running
@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return planned(make_study(tmp_path_factory.mktemp("workspace")), "plain", "die", "half", "tile")[1]


@pytest.fixture
def target(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """The packed file, unpacked, on a machine with a fake GPU and fake tools."""
    assert plan.folder is not None
    (tmp_path / "bin").mkdir()
    for name, value in {**ENVIRONMENT, "PATH": fake_tools.install(tmp_path / "bin")}.items():
        monkeypatch.setenv(name, value)
    zipfile.ZipFile(pack(plan, plan.folder, tmp_path / "p.pyz")).extractall(tmp_path / "there")
    return Target(tmp_path / "there" / "__main__.py")


DEVICE = {"name": "NVIDIA H200", "uuid": "GPU-fake", "capability": "9.0", "driver": "580.0", "cuda": "13.0",
          "power_limit_watts": 700.0, "packages": {}}


def test_each_version_is_looked_at_where_it_is_smallest(plan: Plan) -> None:
    assert [(plan.items[k].version, plan.items[k].shape["n"]) for k in smallest(plan)] == [
        ("plain", 1000), ("die", 1000), ("half", 1000), ("tile", 1000)]


def test_all_tools_over_all_versions(plan: Plan, target: Target) -> None:
    records: list[Record] = []
    notes: list[str] = []
    chosen = [k for k in smallest(plan) if plan.items[k].version != "die"]
    outcome = sanitize_plan(plan, chosen, target, DEVICE, records.append, notes.append)
    assert outcome.done == 3 and [r.version for r in records] == ["plain", "half", "tile"]
    plain, half, tile = map(from_record, records)
    assert [(f.kind, f.line, f.times) for f in plain.faults["initcheck"]] == [("uninitialised", 4, 2)]
    assert [(f.kind, f.line, f.times, f.threads) for f in half.faults["memcheck"]] == [("out of bounds", 14, 3, (0, 1, 2))]
    assert [(f.kind, f.times) for f in half.faults["racecheck"]] == [("race", 31)] and not half.passed
    assert tile.passed and set(tile.faults) == {"memcheck", "racecheck", "synccheck", "initcheck"}
    assert "nothing found: memcheck, racecheck, synccheck, initcheck" in str(tile)
    assert records[0].identity == plan.items[chosen[0]].identity and records[0].provenance["clocks"]
    emulated = [Fault("two writers", "", Place("saxpy.cu", 14), 0, (0,), "", Place("saxpy.cu", 13)),
                Fault("active mask", "", Place("saxpy.cu", 2), 0, (0,), "")]
    rows = {row[:2]: row[2:5] for row in finders("half", emulated, half).rows}
    assert rows["saxpy.cu:13 and 14", "race"] == ("1", "", "31")  # emulator, memcheck, racecheck
    assert rows["saxpy.cu:14", "out of bounds"] == ("", "3", "") and rows["saxpy.cu:2", "active mask"] == ("1", "", "")


def test_a_version_that_kills_its_process_is_noted_and_those_behind_it_are_run(plan: Plan, target: Target) -> None:
    records: list[Record] = []
    sanitize_plan(plan, smallest(plan), target, DEVICE, records.append, lambda note: None, tools=("memcheck",))
    by_version = {record.version: from_record(record) for record in records}
    (note,) = by_version["die"].notes["memcheck"]
    assert note.startswith("not finished: its process ended with ")
    assert [f.kind for f in by_version["half"].faults["memcheck"]] == ["out of bounds"]
    assert by_version["tile"].passed and not by_version["die"].passed


def test_when_time_is_up_records_hold_what_was_done(plan: Plan, target: Target) -> None:
    records: list[Record] = []
    outcome = sanitize_plan(plan, smallest(plan), target, DEVICE, records.append, lambda note: None, budget_seconds=1.0)
    assert not records and outcome.left == 4 and "memcheck is not through" in str(outcome)


def test_a_version_that_one_tool_has_not_seen_is_left(plan: Plan, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sanitizer._Sanitizer.run
    monkeypatch.setattr(sanitizer._Sanitizer, "run", lambda self, tool: tool == "memcheck" and whole(self, tool))
    records: list[Record] = []
    chosen = [k for k in smallest(plan) if plan.items[k].version != "die"]
    outcome = sanitize_plan(plan, chosen, target, DEVICE, records.append, lambda note: None, budget_seconds=100.0)
    assert (outcome.records, outcome.done, outcome.left) == (3, 0, 3) and "racecheck is not through" in str(outcome)
    assert [set(record.payload["tools"]) for record in records] == [{"memcheck"}] * 3


def test_a_machine_where_it_does_not_work(plan: Plan, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFLAB_FAKE_TOOL", "device")
    with pytest.raises(PerflabError, match="does not work on this machine's GPU.*Device not supported"):
        sanitize_plan(plan, smallest(plan), target, DEVICE, lambda record: None)
