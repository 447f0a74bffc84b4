"""Counts against paper: each row's comment derives its sectors (32 B), requests and wavefronts. Buffers begin at a sector."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perflab as pl
from perflab.emulator.counts import Counts

FILE = Path(__file__).parent / "cuda" / "access_patterns.cu"
MACHINES = ["numpy", *(["vector"] if importlib.util.find_spec("llvmlite") else [])]


@dataclass(frozen=True)
class Case:
    """A launch and what it must count. load, store, atomic: (bytes, sectors, requests) of global memory; shared_load,
    shared_store: (bytes, wavefronts); exactly: any other field of the counts by name."""

    label: str
    kernel: str
    args: tuple[Any, ...]
    block: int | tuple[int, ...] = 32
    grid: int | tuple[int, ...] = 1
    dynamic_shared: int = 0
    load: tuple[int, int, int] | None = None
    store: tuple[int, int, int] | None = None
    atomic: tuple[int, int, int] = (0, 0, 0)
    shared_load: tuple[int, int] | None = None
    shared_store: tuple[int, int] | None = None
    exactly: dict[str, int] = field(default_factory=dict)

    def expected(self) -> dict[str, int]:
        """Field of the counts -> number."""
        found = dict(self.exactly)
        for kind in ("load", "store", "atomic"):
            if (three := getattr(self, kind)) is not None:
                found |= {f"global_{kind}_{what}": n for what, n in zip(("bytes", "sectors", "requests"), three, strict=True)}
        for kind in ("shared_load", "shared_store"):
            if (two := getattr(self, kind)) is not None:
                found |= {f"{kind}_{what}": n for what, n in zip(("bytes", "wavefronts"), two, strict=True)}
        return found


def floats(count: int, width: int = 1) -> np.ndarray:
    """`count` elements of `width` float32."""
    return np.zeros(count * width, np.float32)


def load(label: str, stride: int, offset: int, expected: tuple[int, int, int], *, lanes: int = 1 << 20, type: str = "float",
         store: tuple[int, int, int] | None = None, block: int = 32, grid: int = 1, **more: int) -> Case:
    """out[i] = in[i * stride + offset] by threads i below `lanes`."""
    size = {"unsigned char": 1, "__half": 2, "float": 4, "float2": 8, "double": 8, "float4": 16}[type]
    args = (np.zeros(4096 * size, np.uint8), np.zeros(1024 * size, np.uint8), stride, offset, lanes)
    return Case(label, f"load_stride<{type}>", args, block, grid, load=expected, store=store, exactly=more)


def store(label: str, stride: int, offset: int, expected: tuple[int, int, int], *, lanes: int = 1 << 20, type: str = "float",
          block: int = 32) -> Case:
    """out[i * stride + offset] = 0 by threads i below `lanes`."""
    args = (np.zeros(1 << 16, np.uint8), stride, offset, lanes)
    return Case(label, f"store_stride<{type}>", args, block, store=expected, load=(0, 0, 0))


def shared(label: str, stride: int, expected: tuple[int, int], *, offset: int = 0, type: str = "float",
           lanes: int = 32) -> Case:
    """out[i] = data[i * stride + offset], data in shared memory, by lanes i below `lanes`."""
    return Case(label, f"shared_load<{type}>", (np.zeros(512, np.uint8), stride, offset, lanes), dynamic_shared=32_768,
                shared_load=expected, load=(0, 0, 0))


def shared_store(label: str, stride: int, expected: tuple[int, int], *, type: str = "float", lanes: int = 32) -> Case:
    """data[i * stride] = 0, data in shared memory; then all lanes read byte 0: 32 B, 1 wavefront."""
    return Case(label, f"shared_store<{type}>", (stride, lanes), dynamic_shared=32_768, shared_store=expected,
                shared_load=(32, 1))


LANE = np.arange(32, dtype=np.int32)
CASES = (
    # ------------------------------------------------------------ global loads: stride and offset in elements
    load("stride 1", 1, 0, (128, 4, 1), store=(128, 4, 1), unique_bytes=256),  # bytes 0..127: 128 / 32
    load("stride 2", 2, 0, (128, 8, 1), unique_bytes=256),  # 8 B apart over 256 B: 8 sectors, of which half is asked for
    load("stride 3", 3, 0, (128, 12, 1)),  # 12 B apart, the last at 372: sectors 0..11, none skipped
    load("stride 8", 8, 0, (128, 32, 1)),  # 32 B apart: a sector each
    load("stride 32", 32, 0, (128, 32, 1)),  # 128 B apart: a sector each
    load("offset 4 B", 1, 1, (128, 5, 1)),  # bytes 4..131: sectors 0..4
    load("offset 16 B", 1, 4, (128, 5, 1)),  # bytes 16..143: sectors 0..4
    load("offset 32 B", 1, 8, (128, 4, 1)),  # bytes 32..159: sectors 1..4
    load("stride 2, offset 4 B", 2, 1, (128, 8, 1)),  # bytes 4..255: sectors 0..7
    load("broadcast", 0, 5, (128, 1, 1), unique_load_bytes=4),  # 32 lanes ask for the same 4 B
    load("reversed lanes", -1, 31, (128, 4, 1)),  # the same bytes as stride 1
    load("20 lanes", 1, 0, (80, 3, 1), block=20, store=(80, 3, 1)),  # bytes 0..79
    load("40 threads", 1, 0, (160, 5, 2), block=40),  # 4 sectors of the first warp, bytes 128..159 of the second
    # blocks begin at bytes 0, 400 and 800: 4 + 4 + 4 + 1 sectors, 5 + 5 + 5 + 1 (half a sector off), 4 + 4 + 4 + 1
    load("100 threads in 3 blocks", 1, 0, (1200, 42, 12), block=100, grid=3),
    load("half a warp", 1, 0, (64, 2, 1), lanes=16, store=(64, 2, 1)),  # bytes 0..63
    load("one lane", 1, 0, (4, 1, 1), lanes=1),
    load("no lane", 1, 0, (0, 0, 0), lanes=0, store=(0, 0, 0), unique_bytes=0),
    load("a warp and a half", 1, 0, (192, 6, 2), lanes=48, block=64),  # 4 + 2 sectors
    load("bytes", 1, 0, (32, 1, 1), type="unsigned char", store=(32, 1, 1)),
    load("bytes, stride 32", 32, 0, (32, 32, 1), type="unsigned char"),  # a sector a byte
    load("halves", 1, 0, (64, 2, 1), type="__half", store=(64, 2, 1)),
    load("float2", 1, 0, (256, 8, 1), type="float2", store=(256, 8, 1)),
    load("float4", 1, 0, (512, 16, 1), type="float4", store=(512, 16, 1)),
    load("float4, stride 2", 2, 0, (512, 32, 1), type="float4"),  # 32 B apart: half of each sector
    load("float4, offset 16 B", 1, 1, (512, 17, 1), type="float4"),  # bytes 16..527: sectors 0..16
    load("double", 1, 0, (256, 8, 1), type="double", store=(256, 8, 1)),
    load("double, offset 8 B", 1, 1, (256, 9, 1), type="double"),  # bytes 8..263: sectors 0..8
    Case("every second lane", "load_every", (floats(32), floats(32), 2), load=(64, 4, 1), store=(64, 4, 1)),  # all 4 sectors
    Case("every 8th lane", "load_every", (floats(32), floats(32), 8), load=(16, 4, 1), store=(16, 4, 1)),  # one a sector
    # x of a float4: 16 B apart over 512 B, 4 B of each: 16 sectors
    Case("first field", "first_field", (floats(32, 4), floats(32)), load=(128, 16, 1), exactly={"unique_load_bytes": 128}),
    # three loads, each 12 B apart from 0, 4 and 8 to 372, 376 and 380: 12 sectors each; the bytes are unique all the same
    Case("struct of 12 B", "structs", (floats(32, 3), floats(32)), load=(384, 36, 3), exactly={"unique_load_bytes": 384}),
    # index: 128 B, 4 sectors; then 8 distinct floats in 32 B: 1 sector
    Case("gather, 4 lanes a place", "gather", (LANE // 4, floats(8), floats(32)), load=(256, 5, 2),
         exactly={"unique_bytes": 128 + 32 + 128}),
    Case("gather, shuffled", "gather", (LANE * 7 % 32, floats(32), floats(32)), load=(256, 8, 2)),  # 4 + 4: all of 128 B
    Case("gather, 1 KB apart", "gather", (LANE * 256, floats(8192), floats(32)), load=(256, 36, 2)),  # 4 + a sector each
    # 4 blocks of 2 warps ask for the same 256 B: 8 requests of 4 sectors; out is 1,024 B, all its own
    Case("blocks share", "same_for_all_blocks", (floats(64), floats(256)), 64, 4, load=(1024, 32, 8), store=(1024, 32, 8),
         exactly={"unique_load_bytes": 256, "unique_store_bytes": 1024}),
    # read-modify-write: each byte moves in once and out once
    Case("increment", "increment", (floats(128),), 64, 2, load=(512, 16, 4), store=(512, 16, 4),
         exactly={"unique_bytes": 1024}),
    # the load finds what this launch wrote: it asks for 128 B, but they need not come from memory
    Case("write, then read", "write_then_read", (floats(32),), load=(128, 4, 1), store=(128, 4, 1),
         exactly={"unique_load_bytes": 0, "unique_store_bytes": 128}),
    # lanes 8g..8g+7 make g + 1 trips: 8 (1 + 2 + 3 + 4) loads; in trip k lanes 8k..31 load bytes 160k..128k+127: 4 - k sectors
    Case("divergent trips", "divergent_trips", (floats(128), floats(32)), load=(320, 10, 4), store=(128, 4, 1)),
    # odd lanes load twice (64 B over 4 sectors, twice) and store, even lanes load once and store: 3 + 2 requests of 4 sectors
    Case("two ways", "two_ways", (floats(96), floats(32)), load=(192, 12, 3), store=(128, 8, 2), exactly={"branches_split": 1}),
    # 8 x 4 x 3 threads: lanes run along x, then y, then z: 3 warps of 128 B
    Case("block of 8 x 4 x 3", "block_3d", (floats(96), floats(96)), (8, 4, 3), load=(384, 12, 3), store=(384, 12, 3)),
    # 5 x 3 x 3 = 45 threads: 128 B, then bytes 128..179
    Case("block of 5 x 3 x 3", "block_3d", (floats(45), floats(45)), (5, 3, 3), load=(180, 6, 2), store=(180, 6, 2)),
    # rows of 8 floats are a sector: each warp loads a float of 32 of them; unique: everything once
    Case("column of a matrix", "transposed", (floats(256), floats(256)), (32, 8), load=(1024, 256, 8), store=(1024, 32, 8),
         exactly={"unique_bytes": 2048}),
    # 64 lanes in 2 warps, bins 0..7: 4 sectors + 4 of indices, 1 sector of bins a warp
    Case("atomics on 8 bins", "histogram", (np.arange(64, dtype=np.int32) % 8, np.zeros(8, np.uint32)), 64,
         load=(256, 8, 2), store=(0, 0, 0), atomic=(256, 2, 2), exactly={"atomics": 64}),
    Case("atomics with results", "counter", (np.zeros(32, np.uint32), np.zeros(32, np.uint32)), load=(0, 0, 0),
         store=(128, 4, 1), atomic=(128, 4, 1), exactly={"atomics": 32}),
    Case("FLOPs", "fused", (floats(32), floats(32)), exactly={"flops": 32 * (2 + 1 + 1)}),
    Case("FLOPs of 20 lanes", "fused", (floats(20), floats(20)), 20, exactly={"flops": 20 * (2 + 1 + 1)}),
    # lanes 0..15 read 64 B of shared memory, 16..31 bytes 64..127 of global memory, by one generic load
    Case("two memories", "half_of_each", (floats(32), floats(32)), load=(64, 2, 1), shared_load=(64, 1), store=(128, 4, 1),
         exactly={"unique_load_bytes": 64}),
    # ------------------------------------------------------------ global stores
    store("store, stride 1", 1, 0, (128, 4, 1)),
    store("store, stride 2", 2, 0, (128, 8, 1)),  # over 256 B
    store("store, stride 32", 32, 0, (128, 32, 1)),
    store("store, offset 4 B", 1, 1, (128, 5, 1)),  # bytes 4..131
    store("store, 20 of 40 threads", 1, 0, (80, 3, 1), lanes=20, block=40),  # the second warp asks for nothing: no request
    store("store of float4, stride 2", 2, 0, (512, 32, 1), type="float4"),
    store("store of bytes", 1, 0, (32, 1, 1), type="unsigned char"),
    # ------------------------------------------------------------ shared loads: word w lies in bank w % 32
    shared("shared, stride 1", 1, (128, 1)),
    shared("shared, 2 ways", 2, (128, 2)),  # 16 banks hold 2 words each
    shared("shared, stride 3", 3, (128, 1)),  # 3 and 32 have no common factor: 32 banks
    shared("shared, 4 ways", 4, (128, 4)),
    shared("shared, 8 ways", 8, (128, 8)),
    shared("shared, 16 ways", 16, (128, 16)),
    shared("shared, 32 ways", 32, (128, 32)),  # all in bank 0
    shared("shared, padded", 33, (128, 1)),  # lane i in bank i
    shared("shared, broadcast", 0, (128, 1)),  # one word for all
    shared("shared, offset 4 B", 1, (128, 1), offset=1),  # banks know no rows
    shared("shared, 16 lanes with stride 2", 2, (64, 1), lanes=16),  # 16 words in 16 banks
    shared("shared, 9 lanes with stride 4", 4, (36, 2), lanes=9),  # banks 0, 4, … 28, and bank 0 again
    shared("shared bytes", 1, (32, 1), type="unsigned char"),  # 4 lanes a word
    shared("shared bytes, stride 8", 8, (32, 2), type="unsigned char"),  # words 0, 2, … 62
    shared("shared halves", 1, (64, 1), type="__half"),  # 2 lanes a word
    shared("LDS.64", 1, (256, 2), type="float2"),  # two halves of 16 lanes, 128 B each
    shared("LDS.64, stride 2", 2, (256, 4), type="float2"),  # a half covers 256 B: 2 ways, twice
    shared("LDS.64 of 8 lanes", 1, (64, 1), type="float2", lanes=8),  # the second half has nobody
    shared("LDS.64, broadcast", 0, (256, 1), type="float2"),  # lanes of equal addresses: both halves at once
    shared("LDS.128, broadcast", 0, (512, 2), type="float4"),  # likewise, two quarters at a time
    shared("LDS.128", 1, (512, 4), type="float4"),  # four quarters of 8 lanes, 128 B each
    shared("LDS.128, stride 2", 2, (512, 8), type="float4"),  # a quarter covers 256 B: 2 ways, four times
    shared("LDS.128, stride 8", 8, (512, 32), type="float4"),  # 128 B apart: 8 ways, four times
    # ------------------------------------------------------------ shared stores
    shared_store("shared store", 1, (128, 1)),
    shared_store("shared store, 2 ways", 2, (128, 2)),
    shared_store("shared store, 32 ways", 32, (128, 32)),
    shared_store("shared store, 4 of 32 lanes, 4 ways", 32, (16, 4), lanes=4),  # all in bank 0
    shared_store("STS.128", 1, (512, 4), type="float4"),
    shared_store("STS.128, stride 2", 2, (512, 8), type="float4"),
    # 32 warps store rows (1 wavefront each) and load columns: 32 words of one bank; with a row of 33: lane i in bank i + y
    Case("transpose", "transpose<32>", (floats(1024), floats(1024)), (32, 32), load=(4096, 128, 32), store=(4096, 128, 32),
         shared_store=(4096, 32), shared_load=(4096, 1024), exactly={"barriers": 32}),
    Case("transpose, padded", "transpose<33>", (floats(1024), floats(1024)), (32, 32), load=(4096, 128, 32),
         shared_store=(4096, 32), shared_load=(4096, 32)),
)


def run(case: Case, machine: str, schedule: str = "forward") -> Counts:
    """The case's launch on fresh copies of its arrays."""
    args = [a.copy() if isinstance(a, np.ndarray) else a for a in case.args]
    return pl.load(FILE, case.kernel).emulate(case.grid, case.block, args, case.dynamic_shared, "H200", machine=machine,
                                              schedule=schedule)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_counts_are_those_on_paper(case: Case, machine: str) -> None:
    expected = case.expected()
    alone = case.grid == 1 and np.prod(case.block) <= 32  # one warp: no order to change
    for schedule in ("forward",) if alone else ("forward", "reversed"):
        counts = run(case, machine, schedule)
        assert {name: getattr(counts, name) for name in expected} == expected, schedule
        assert not counts.faults


@pytest.mark.parametrize("case", CASES[::7], ids=lambda case: case.label)
def test_lines_add_up_and_machines_agree(case: Case) -> None:
    first, *others = [run(case, machine) for machine in MACHINES]
    for name in ("warp_instructions", "thread_instructions", *case.expected()):
        if not name.startswith("unique"):
            assert sum(getattr(line, name) for line in first.by_line.values()) == getattr(first, name)
    for other in others:
        assert other == first


@pytest.mark.parametrize("machine", MACHINES)
def test_threads_and_warps_of_straight_code(machine: str) -> None:
    """20 lanes of one warp: 20 thread instructions a warp instruction, each executed once."""
    counts = run(Case("", "fused", (floats(20), floats(20)), 20), machine)
    assert counts.thread_instructions == 20 * counts.warp_instructions
    assert counts.branches == counts.branches_split == counts.barriers == 0


@pytest.mark.parametrize("machine", MACHINES)
def test_a_line_has_its_own_counts(machine: str) -> None:
    """transpose<32>: the store of rows and the load of columns stand on lines of their own."""
    text = FILE.read_text().splitlines()
    counts = run(next(case for case in CASES if case.label == "transpose"), machine)
    row, column = (next(k for k, line in enumerate(text, 1) if part in line)
                   for part in ("tile[threadIdx.y][threadIdx.x] = in", "= tile[threadIdx.x][threadIdx.y]"))
    at_row, at_column = counts.by_line.at(row), counts.by_line.at(column)
    assert (at_row.global_load_sectors, at_row.shared_store_wavefronts, at_row.shared_load_wavefronts) == (128, 32, 0)
    assert (at_column.global_store_sectors, at_column.shared_load_wavefronts) == (128, 1024)
    assert at_column.shared_load_conflicts == 1024 - 32
