"""The arena: where buffers lie, what is known of their bytes, and how an address is put into words."""

from __future__ import annotations

import numpy as np
import pytest

from perflab.emulator.memory import (
    ALIGN_BYTES,
    ALLOCATED,
    GAP_BYTES,
    GLOBAL_BASE,
    INITIALISED,
    LOCAL_WINDOW,
    PARAM_WINDOW,
    READ,
    SHARED_WINDOW,
    WINDOW_BYTES,
    WRITTEN,
    Arena,
)


@pytest.fixture
def arena() -> Arena:
    return Arena({"q": 100, "kv": 4096, "empty": 0, "table": 7}, frozenset({"table"}))


def test_buffers_are_aligned_and_far_apart(arena: Arena) -> None:
    buffers = list(arena.buffers.values())
    assert [buffer.size_bytes for buffer in buffers] == [100, 4096, 0, 7]
    assert all(buffer.offset % ALIGN_BYTES == 0 and buffer.address == GLOBAL_BASE + buffer.offset for buffer in buffers)
    ends = [0, *(buffer.offset + buffer.size_bytes for buffer in buffers), arena.bytes.size]
    starts = [*(buffer.offset for buffer in buffers), arena.bytes.size]
    assert all(start - end >= GAP_BYTES for end, start in zip(ends, starts, strict=False))
    assert arena.bytes.size % ALIGN_BYTES == 0
    assert [buffer.constant for buffer in buffers] == [False, False, False, True]


def test_windows_are_apart_from_each_other_and_from_global_memory() -> None:
    starts = sorted((SHARED_WINDOW, LOCAL_WINDOW, PARAM_WINDOW))
    assert all(b - a >= WINDOW_BYTES for a, b in zip(starts, starts[1:], strict=False))
    assert starts[-1] + WINDOW_BYTES <= GLOBAL_BASE


def test_flags_tell_allocated_from_initialised(arena: Arena) -> None:
    assert (arena.flags != 0).sum() == 100 + 4096 + 7
    assert (arena.known("q") == ALLOCATED).all()
    arena.fill("q", np.arange(5, dtype=np.int32))
    assert (arena.known("q")[:20] == ALLOCATED | INITIALISED).all()
    assert (arena.known("q")[20:] == ALLOCATED).all()
    assert arena.content("q")[:20].view(np.int32).tolist() == [0, 1, 2, 3, 4]
    arena.fill("table", b"\x01\x02")
    assert arena.content("table").tolist() == [1, 2, 0, 0, 0, 0, 0]


def test_what_is_filled_may_be_a_view_with_holes(arena: Arena) -> None:
    arena.fill("q", np.arange(20, dtype=np.int16)[::2])
    assert arena.content("q")[:20].view(np.int16).tolist() == list(range(0, 20, 2))


def test_begin_launch_forgets_use_but_not_content(arena: Arena) -> None:
    arena.fill("q", np.ones(100, np.uint8))
    arena.known("q")[:] |= READ | WRITTEN
    arena.begin_launch()
    assert (arena.known("q") == ALLOCATED | INITIALISED).all()
    assert (arena.content("q") == 1).all()


def test_content_is_the_memory_itself(arena: Arena) -> None:
    arena.content("kv")[3] = 9
    assert arena.bytes[arena.buffers["kv"].offset + 3] == 9


def test_where(arena: Arena) -> None:
    kv = arena.buffers["kv"]
    assert arena.where(kv.address + 70) == "byte 70 of kv (4,096 B)"
    assert arena.where(kv.address + 4096) == "0 B after the end of kv (4,096 B)"
    assert arena.where(kv.address + 5000) == "904 B after the end of kv (4,096 B)"
    assert arena.where(kv.address - 16) == "16 B before kv (4,096 B)"
    assert arena.where(0) == "address 0x0, far from every buffer"
    assert "far from every buffer" in arena.where((1 << 64) - 8)
    assert "no buffers" in Arena({}).where(16)
