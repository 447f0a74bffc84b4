"""Right kernels, each with another way of making threads meet: right results and not one report, in any order of blocks."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perflab as pl

FILE = Path(__file__).parent / "cuda" / "quiet.cu"
MACHINES = ["numpy", *(["vector"] if importlib.util.find_spec("llvmlite") else [])]
SCHEDULES = ("forward", "random:1")
RANDOM = np.random.default_rng(11)
INTS = RANDOM.integers(-50, 50, 1024).astype(np.int32)
BYTES = RANDOM.integers(0, 256, 5000).astype(np.uint8)
Arrays = list[Any]


@dataclass(frozen=True)
class Quiet:
    """A launch, and what its arguments must hold afterwards, by place."""

    kernel: str
    args: Arrays
    expected: dict[int, np.ndarray]
    block: int
    grid: int = 1
    dynamic_shared: int = 0


def half_warps(values: np.ndarray) -> np.ndarray:
    """What half_warps makes of 32 values."""
    lane = np.arange(32)
    total = values[16:].sum()
    box = np.where(lane < 16, values, total)
    low = values[lane[:16] ^ 15] + values[lane[:16] ^ 3]
    return (np.concatenate([low, np.full(16, 2 * total)]) + box[::-1]).astype(np.int32)


def zeros(count: int, dtype: Any = np.int32) -> np.ndarray:
    return np.zeros(count, dtype)


def grid_values() -> np.ndarray:
    """Round k leaves k in every place; row 0 is not written."""
    return np.repeat(np.arange(5, dtype=np.int32), 4 * 64)


CASES = (
    Quiet("named_barriers", [INTS[:160], zeros(160), 5], {1: INTS[:160].reshape(5, 32)[:, ::-1].reshape(-1)}, 64),
    Quiet("lock", [zeros(1), zeros(1)], {0: zeros(1), 1: zeros(1) + 2 * 64}, 64, 2),
    Quiet("grid_barrier", [zeros(5 * 4 * 64), zeros(1, np.uint32), 4], {0: grid_values()}, 64, 4),
    Quiet("histogram", [BYTES, zeros(256, np.uint32), BYTES.size],
          {1: np.bincount(BYTES, minlength=256).astype(np.uint32)}, 96, 3),
    Quiet("scan", [INTS[:256], zeros(256)], {1: np.cumsum(INTS[:256]).astype(np.int32)}, 256),
    Quiet("half_warps", [INTS[:32], zeros(32)], {1: half_warps(INTS[:32])}, 32),
    Quiet("counting_barriers", [np.append(INTS[:99], np.int32(7)), zeros(128), 100],
          {1: np.where(np.arange(128) < 100, 4 * ((INTS[:99] > 0).sum() + 1) + 2 + 1, 0).astype(np.int32)}, 128),
    Quiet("flag_in_block", [INTS[:32], zeros(32)], {1: INTS[31::-1]}, 64),
    Quiet("bytes", [BYTES[:128], zeros(128, np.uint8), zeros(32, np.uint32)],
          {1: BYTES[:128] + np.uint8(1), 2: BYTES[:128].view(np.uint32)}, 128),
    Quiet("tree", [INTS, zeros(1)], {0: zeros(1024) - 1, 1: INTS.sum(keepdims=True).astype(np.int32)}, 128, 8, 512),
)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)
def test_right_kernels_are_quiet(case: Quiet, machine: str) -> None:
    for schedule in SCHEDULES:
        args = [a.copy() if isinstance(a, np.ndarray) else a for a in case.args]
        counts = pl.load(FILE, case.kernel).emulate(case.grid, case.block, args, case.dynamic_shared, "H200", machine=machine,
                                                    schedule=schedule)
        assert not [str(fault) for fault in counts.faults], schedule
        for place, want in case.expected.items():
            assert np.array_equal(args[place], want), (schedule, place)
