"""The fast machine against the numpy machine, instruction by instruction and byte by byte, on vector_kernels.cu."""

from __future__ import annotations

import ctypes
import json
import math
import struct
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perflab as pl
from perflab.emulator import machine
from perflab.emulator.faults import FaultLog
from perflab.emulator.memory import Arena
from perflab.emulator.program import Program, program
from perflab.emulator.tallies import Job, Tally, wavefronts

pytest.importorskip("llvmlite")

from perflab.emulator.vector import compiled as vector_compiled  # noqa: E402
from perflab.emulator.vector import machine as vector_machine  # noqa: E402

SOURCE = Path(__file__).parent / "vector_kernels.cu"
WAVEFRONTS = Path(__file__).parents[2] / "data/experiments/h200_wavefronts.json"
RANDOM = np.random.default_rng(5)
INTS = RANDOM.integers(0, 100, 400).astype(np.int32)
FLOATS = (RANDOM.standard_normal(200) * 5).astype(np.float32)
SCHEDULES = ("forward", "reversed", "random:3")


@dataclass(frozen=True)
class Case:
    """A kernel's launch. args: arrays, or ints for `int` parameters; steps: what waits for others counts as it comes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[Any, ...]
    same_counts: bool = True


def line(blocks: int, threads: int, *args: Any, same_counts: bool = True) -> Case:
    """A launch in one dimension."""
    return Case((blocks, 1, 1), (threads, 1, 1), args, same_counts)


def zeros(size: int, dtype: Any = np.int32) -> np.ndarray:
    return np.zeros(size, dtype)


CLEAN = {
    "diverge": line(7, 64, INTS, zeros(400), 390),
    "shapes": Case((2, 3, 2), (5, 3, 4), (zeros(720, np.float32),)),
    "tile": Case((2, 2, 1), (32, 8, 1), (RANDOM.standard_normal(4096).astype(np.float32), zeros(4096, np.float32), 64)),
    "named": line(3, 128, zeros(384)),
    "hand_over": line(3, 64, zeros(96)),
    "votes": line(3, 96, INTS, zeros(288)),
    "counted": line(3, 40, INTS, zeros(120)),
    "atomics": line(3, 40, INTS, zeros(16), zeros(1, np.float32), zeros(3, np.uint64), 110),
    "widths": line(3, 64, RANDOM.integers(0, 255, 2880).astype(np.uint8), zeros(52 * 176, np.uint8), 176),
    "local": line(3, 64, INTS, zeros(400), 180),
    "spin": line(6, 64, zeros(6), zeros(12), same_counts=False),
    "lock": line(1, 32, zeros(1), zeros(1), same_counts=False),
    "arithmetic": line(4, 64, FLOATS, RANDOM.integers(-(2**31), 2**31, 200).astype(np.int32), zeros(200, np.float32), 200),
    "halves": line(2, 64, RANDOM.standard_normal(100).astype(np.float16), zeros(100, np.float16), 100),
    "speak": line(2, 40, 3),
}
SAID = {"votes": {"active mask"}, "lock": {"race", "two writers"}}  # a lock orders warps, not the lanes of one
FAULTY = {
    "outside": line(4, 48, INTS[:190], zeros(190), 1),
    "apart": line(1, 32, zeros(64)),
    "skipped": line(1, 64, zeros(64)),
    "racy": line(1, 96, zeros(288)),
    "unknown": line(2, 64, INTS, zeros(64), 5),
    "missing": line(1, 32, zeros(32)),
    "stuck": line(1, 64, zeros(64)),
    "endless": line(2, 64, zeros(1), zeros(64), same_counts=False),
    "stops": line(1, 32, zeros(64)),
}
KINDS = {  # what must be found, when checking
    "outside": {"out of bounds", "misaligned"}, "apart": {"barrier divergence"},
    "skipped": {"barrier divergence"}, "racy": {"race"}, "unknown": {"uninitialised", "two writers", "read-only load"},
    "missing": {"absent lane", "barrier divergence"}, "stuck": {"deadlock"}, "endless": {"deadlock"}, "stops": {"trap"},
}


@dataclass
class Ran:
    """What a machine left behind."""

    arena: Arena
    tally: Tally
    log: FaultLog
    arrays: list[np.ndarray] = field(default_factory=list)

    @property
    def causes(self) -> set[tuple[str, int, int]]:
        return set(self.log._found)


@cache
def built(name: str, architecture: str = "sm_90") -> Program:
    return program(pl.load(SOURCE, name).binary(architecture).ptx, name)


def job_of(name: str, case: Case, architecture: str = "sm_90", **more: Any) -> tuple[Job, Arena]:
    """A launch of a kernel with its arguments in fresh buffers."""
    kernel = built(name, architecture)
    arrays = {f"argument {i}": value for i, value in enumerate(case.args) if isinstance(value, np.ndarray)}
    arena = Arena({key: array.nbytes for key, array in arrays.items()} | {v.name: v.size_bytes for v in kernel.variables})
    parameters = b""
    for i, value in enumerate(case.args):
        if isinstance(value, np.ndarray):
            arena.fill(f"argument {i}", value)
            parameters += b"\0" * (-len(parameters) % 8) + struct.pack("<Q", arena.buffers[f"argument {i}"].address)
        else:
            parameters += struct.pack("<i", value)
    for v in kernel.variables:
        arena.fill(v.name, (v.initial or b"").ljust(v.size_bytes, b"\0"))
    addresses = {v.name: arena.buffers[v.name].address for v in kernel.variables}
    return Job(kernel, case.grid, case.block, parameters, addresses=addresses, instruction_limit=50_000_000, **more), arena


def ran(run: Any, name: str, case: Case, **more: Any) -> Ran:
    job, arena = job_of(name, case, **more)
    log = FaultLog()
    tally = run(job, arena, log)
    arrays = [arena.content(f"argument {i}").view(value.dtype) for i, value in enumerate(case.args)
              if isinstance(value, np.ndarray)]
    return Ran(arena, tally, log, arrays)


def assert_same(one: Ran, other: Ran, case: Case) -> None:
    """Bytes, what is known of them, prints, causes of faults and, where nobody waits for others, all counts."""
    assert one.causes == other.causes
    assert np.array_equal(one.arena.bytes, other.arena.bytes)
    assert np.array_equal(one.arena.flags, other.arena.flags)
    assert one.tally.printed == other.tally.printed
    if case.same_counts:
        for part in ("block_warps", "block_lanes", "sites", "shared_sites"):
            assert np.array_equal(getattr(one.tally, part), getattr(other.tally, part)), part


# ---------------------------------------------------------------- the two machines
@pytest.mark.parametrize("checking", [False, True], ids=["counted", "checked"])
@pytest.mark.parametrize("name", CLEAN)
def test_clean_kernels_are_the_same_on_both_machines(name: str, checking: bool) -> None:
    for schedule in SCHEDULES:
        reference = ran(machine.run, name, CLEAN[name], checking=checking, schedule=schedule)
        fast = ran(vector_machine.run, name, CLEAN[name], checking=checking, schedule=schedule)
        assert_same(reference, fast, CLEAN[name])
        assert {kind for kind, *_ in fast.causes} <= (SAID.get(name, set()) if checking else set())


@pytest.mark.parametrize("architecture", ["sm_80", "sm_120"])
@pytest.mark.parametrize("name", ["votes", "widths", "local"])
def test_other_architectures(name: str, architecture: str) -> None:
    runs = [ran(run, name, CLEAN[name], architecture=architecture, checking=False) for run in (machine.run, vector_machine.run)]
    assert_same(*runs, CLEAN[name])


@pytest.mark.parametrize("name", ["diverge", "tile", "votes", "atomics", "widths"])
def test_uncounted_runs_have_the_same_outputs(name: str) -> None:
    counted, uncounted = (ran(vector_machine.run, name, CLEAN[name], checking=False, counting=c) for c in (True, False))
    assert np.array_equal(counted.arena.bytes, uncounted.arena.bytes)
    assert not uncounted.tally.block_warps.any() and not uncounted.tally.sites.any()


@pytest.mark.parametrize("name", FAULTY)
def test_faults_are_found_with_kind_and_site(name: str) -> None:
    case = FAULTY[name]
    reference, fast = (ran(run, name, case, checking=True) for run in (machine.run, vector_machine.run))
    assert {kind for kind, *_ in fast.causes} == KINDS[name]
    if name == "unknown":  # the order of blocks says which of load and store of read-only data is named
        assert {kind for kind, *_ in reference.causes} - {"race"} == KINDS[name]
    else:
        assert fast.causes == reference.causes
    for fault in fast.log.faults:
        assert fault.file.endswith("vector_kernels.cu") and fault.threads and fault.times >= 1
    assert [f.message for f in fast.log.faults if f.kind == "barrier divergence"] == [
        f.message for f in reference.log.faults if f.kind == "barrier divergence"]


@pytest.mark.parametrize("name", ["outside", "skipped", "missing", "stuck", "endless", "stops"])
def test_faults_that_need_no_checking(name: str) -> None:
    fast = ran(vector_machine.run, name, FAULTY[name], checking=False)
    assert {kind for kind, *_ in fast.causes} == KINDS[name]


# ---------------------------------------------------------------- against float64 and Python
def test_outputs_against_plain_python() -> None:
    arrays = ran(vector_machine.run, "tile", CLEAN["tile"]).arrays
    assert np.array_equal(arrays[1].reshape(64, 64), arrays[0].reshape(64, 64).T)
    assert ran(vector_machine.run, "lock", CLEAN["lock"]).arrays[1][0] == _chain(range(32))
    printed = ran(vector_machine.run, "speak", CLEAN["speak"]).tally.printed
    assert printed[4] == "block 1 thread 1:  0.50 yes\n" and len(printed) == 6
    assert ran(vector_machine.run, "spin", CLEAN["spin"]).arrays[1].tolist() == [10 + b for b in range(6)] + [5] * 6


def _chain(order: Any) -> int:
    value = 0
    for thread in order:
        value = (value * 3 + thread) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def test_arithmetic_against_float64() -> None:
    case = CLEAN["arithmetic"]
    got = ran(vector_machine.run, "arithmetic", case).arrays[2]
    x, u = case.args[0].astype(np.float64), case.args[1].astype(object)
    y, v = np.roll(x, -1), np.roll(u, -3)
    for i in range(200):
        a, b = int(u[i]), int(v[i])
        d = b | 1
        quotient = abs(a) // abs(d) * (1 if (a < 0) == (d < 0) else -1)
        brev = int(f"{a & 0xFFFFFFFF:032b}"[::-1], 2)
        wanted = (x[i] / y[i] + math.sqrt(abs(x[i])) + math.exp(y[i] * 0.1) + 1 / math.sqrt(abs(y[i]) + 1) + x[i] * y[i] + 2
                  + quotient + (a - quotient * d) + (a & 0xFFFFFFFF).bit_count() + (32 - (b & 0xFFFFFFFF).bit_length())
                  + (a >> (b & 31)) + x[i] * y[i] + float(a * b >> 7) + (brev - (brev >> 31 << 32) * 0) * 1e-9
                  + min(x[i], y[i]) + math.floor(x[i]) + round(y[i]))
        size = abs(quotient) + abs(a) + abs(a * b) / 128 + 10
        assert abs(float(got[i]) - wanted) < 1e-6 * size + 1e-3 * abs(x[i] / y[i])


# ---------------------------------------------------------------- threads, blocks, cache
def test_many_blocks_over_threads_count_what_one_thread_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    case = line(150, 64, RANDOM.integers(0, 100, 9600).astype(np.int32), zeros(9600), 9500)
    many = ran(vector_machine.run, "diverge", case, checking=False)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    one = ran(vector_machine.run, "diverge", case, checking=False)
    assert_same(many, one, case)


def test_only_the_blocks_asked_for_run() -> None:
    some = ran(vector_machine.run, "named", CLEAN["named"], blocks=(2, 0))
    whole = ran(vector_machine.run, "named", CLEAN["named"])
    assert not some.arrays[0][128:256].any() and np.array_equal(some.arrays[0][256:], whole.arrays[0][256:])
    assert some.tally.block_warps[0] * 3 == whole.tally.block_warps[0] * 2


def test_blocks_that_wait_for_each_other_need_to_be_resident() -> None:
    job, arena = job_of("spin", CLEAN["spin"])
    log = FaultLog()
    vector_machine.run(replace(job, resident_blocks=2), arena, log)
    assert {fault.kind for fault in log.faults} == {"deadlock"}


def test_an_endless_loop_is_given_up() -> None:
    job, arena = job_of("runs_on", line(1, 32, zeros(32, np.uint32), 5), checking=False)
    log = FaultLog()
    vector_machine.run(replace(job, instruction_limit=1000), arena, log)
    (fault,) = log.faults
    assert fault.kind == "deadlock" and "1,000 warp instructions" in fault.message and "runs_on" not in fault.file


def test_compiled_code_is_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, arena = job_of("named", CLEAN["named"], checking=False)
    monkeypatch.setenv("PERFLAB_CACHE", str(tmp_path))
    monkeypatch.setattr(vector_compiled, "_loaded", {})
    first = vector_machine.run(job, arena, FaultLog())
    (kept,) = (tmp_path / "emulated").glob("*.o")
    monkeypatch.setattr(vector_compiled, "_loaded", {})
    monkeypatch.setattr(vector_compiled, "machine_code", None)  # would be called, were the file not found
    again = vector_machine.run(job, arena, FaultLog())
    assert np.array_equal(first.sites, again.sites) and kept.stat().st_size > 1000
    monkeypatch.undo()


@pytest.mark.parametrize("name", list(CLEAN)[::3])
def test_the_best_code_does_what_the_quick_code_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = ran(vector_machine.run, name, CLEAN[name], checking=False)
    best = partial(vector_compiled.compiled, level=vector_compiled.BEST)
    monkeypatch.setattr(vector_machine, "compiled", best)
    assert_same(ran(vector_machine.run, name, CLEAN[name], checking=False), quick, CLEAN[name])


def test_blocks_that_are_left_run_the_best_code_where_it_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = line(150, 64, RANDOM.integers(0, 100, 9600).astype(np.int32), zeros(9600), 9500)
    monkeypatch.setenv("PERFLAB_CACHE", str(tmp_path))
    monkeypatch.setattr(vector_compiled, "_loaded", {})
    quick = ran(vector_machine.run, "diverge", case, checking=False)
    assert {one.level for one in vector_compiled._loaded.values()} == {vector_compiled.QUICK}
    monkeypatch.setattr(vector_machine, "SECONDS_AN_INSTRUCTION", 0.0)
    both = ran(vector_machine.run, "diverge", case, checking=False)
    assert {one.level for one in vector_compiled._loaded.values()} == {vector_compiled.QUICK, vector_compiled.BEST}
    assert_same(both, quick, case)
    monkeypatch.setattr(vector_machine, "SECONDS_AN_INSTRUCTION", 1000.0)
    monkeypatch.setattr(vector_compiled, "_loaded", {})
    assert_same(ran(vector_machine.run, "diverge", case, checking=False), quick, case)
    assert {one.level for one in vector_compiled._loaded.values()} == {vector_compiled.BEST}  # off the disk, at once


def test_an_exception_in_python_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("perflab.emulator.vector.events.formatted", broken)
    with pytest.raises(RuntimeError, match="broken"):
        ran(vector_machine.run, "speak", CLEAN["speak"])


# ---------------------------------------------------------------- counting
@cache
def shared_counter(kind: str, lane_bytes: int) -> Any:
    """A function (record, mask, addresses) that counts a shared request, out of the compiled counting code."""
    import llvmlite.binding as llvm
    from llvmlite import ir

    from perflab.emulator.vector.flow import POINTER, function
    from perflab.emulator.vector.memory import filled_addresses
    from perflab.emulator.vector.units import scattered_units
    from perflab.emulator.vector.values import I32, INTEGERS

    module = ir.Module("counter")
    module.triple = llvm.get_default_triple()
    made, code = function(module, "counter", ir.VoidType(), [POINTER, I32, POINTER], inner=False)
    record, mask, places = made.args
    addresses = code.call(filled_addresses(module), [mask, code.get(INTEGERS[64], places, 0, 8)])
    code.call(scattered_units(module, "shared", lane_bytes, kind == "load"), [record, mask, addresses])
    code.ret_void()
    engine = vector_compiled.engine_of(vector_compiled.machine_code(str(module)))
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p)(engine.get_function_address("counter"))
    return engine, call


@pytest.mark.parametrize("lane_bytes", [4, 8, 16])
@pytest.mark.parametrize("kind", ["load", "store"])
def test_wavefronts_are_what_the_h200_counted(kind: str, lane_bytes: int) -> None:
    _, call = shared_counter(kind, lane_bytes)
    rows = [row for row in json.loads(WAVEFRONTS.read_text())["patterns"] if (row["kind"], row["bytes"]) == (kind, lane_bytes)]
    for row in rows:
        at = np.array(row["at"], np.int64)
        mask = int(((at >= 0).astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum())
        counts = np.zeros(4, np.int64)
        call(counts.ctypes.data, mask, at.ctypes.data)
        assert counts[2] == row["wavefronts"], row
        _, ideal = wavefronts(np.maximum(at, 0)[None], (at >= 0)[None], lane_bytes, load=kind == "load")
        assert counts[3] == ideal[0]
    assert len(rows) > 100
