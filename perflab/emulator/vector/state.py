"""`State`: the memory in which compiled code runs one block after another, and what it counts there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from perflab.emulator.memory import GLOBAL_BASE, INITIALISED, WRITTEN, Arena
from perflab.emulator.ptx import Symbol
from perflab.emulator.tallies import Job, Tally
from perflab.emulator.vector.checks import CELL
from perflab.emulator.vector.layout import CONTEXT, CONTEXT_AT, RECORD, WARP, Layout

_TURN = 1 << 24  # warp instructions, about, after which Python has a look at a warp that runs on and on
_SHORT_TURN = 1 << 14  # the same where threads may wait for each other by memory


def order_of(schedule: str, items: Sequence[int]) -> np.ndarray:
    """The items in the order of a schedule: 'forward', 'reversed' or 'random:SEED'."""
    found = np.array(items, np.int64)
    if schedule == "reversed":
        return found[::-1].copy()
    if schedule.startswith("random:"):
        np.random.default_rng(int(schedule.partition(":")[2])).shuffle(found)
    return found


def shared_bytes(job: Job) -> int:
    """Shared memory of a block: static, and dynamic behind it."""
    if job.dynamic_shared_bytes:
        return job.program.dynamic_shared_offset + job.dynamic_shared_bytes
    return job.program.static_shared_bytes


class Counts:
    """What the blocks of one thread count, and which bytes they read and wrote."""

    def __init__(self, job: Job, arena: Arena) -> None:
        self.block_warps = np.zeros(len(job.program.blocks), np.int64)
        self.block_lanes = np.zeros(len(job.program.blocks), np.int64)
        self.records = np.zeros(len(job.program.instructions), RECORD)
        self.marks = np.zeros(arena.bytes.size if job.counting and not job.checking else 0, np.uint8)

    def into(self, tally: Tally, arena: Arena) -> None:
        """Add to a tally, and to what is known of the arena's bytes."""
        tally.block_warps += self.block_warps
        tally.block_lanes += self.block_lanes
        tally.sites += self.records["site"]
        tally.shared_sites += self.records["shared"]
        for buffer in arena.buffers.values() if self.marks.size else ():
            part = slice(buffer.offset, buffer.offset + buffer.size_bytes)
            mine = self.marks[part]
            arena.flags[part] |= mine | (mine & WRITTEN) // WRITTEN * INITIALISED


class Cells:
    """Records of who used each place of global memory last, for all blocks of a launch."""

    def __init__(self, arena: Arena, granule: dict[str, int]) -> None:
        self.granule = granule
        self.cells = np.zeros(arena.bytes.size // granule["global"] + 1, CELL)


class State:
    """Context and warps of a running block. number: which of a launch's states it is."""

    def __init__(self, job: Job, arena: Arena, layout: Layout, number: int, event: int, counts: Counts, cells: Cells | None,
                 eager: bool) -> None:
        self.job, self.arena, self.layout, self.number, self.counts = job, arena, layout, number, counts
        self.threads = job.block[0] * job.block[1] * job.block[2]
        self.warp_count = -(-self.threads // 32)
        self.room = np.zeros(self.warp_count * layout.warp_bytes + 64, np.uint8)
        begin = -self.room.ctypes.data % 64
        self.bytes = self.room[begin : begin + self.warp_count * layout.warp_bytes].reshape(self.warp_count, -1)
        self.warps = self.bytes[:, : WARP.itemsize].view(WARP)[:, 0]
        self.shared_bytes = shared_bytes(job)
        self.shared, self.shared_flags = (np.zeros(self.shared_bytes + 64, np.uint8) for _ in range(2))
        self.context = np.zeros(1, CONTEXT)
        self._lay_out_threads()
        self._point(event, cells)
        self._size(eager)

    @property
    def pointer(self) -> int:
        """Address of the context."""
        return self.context.ctypes.data

    @property
    def block(self) -> int:
        """Linear index of the block that runs."""
        return int(self.context[0]["index"])

    def warp_at(self, address: int) -> int:
        """Which warp lies there."""
        return (address - self.bytes.ctypes.data) // self.layout.warp_bytes

    def site_at(self, record: int) -> int:
        """Which instruction's counters lie there."""
        return (record - self.counts.records.ctypes.data) // RECORD.itemsize

    def symbol(self, symbol: Symbol) -> int:
        """The address of a variable in its own space; of a parameter, its offset."""
        program = self.job.program
        for known in (program.shared, program.local, self.job.addresses, {name: at for name, at, _ in program.parameters}):
            if symbol.name in known:
                return known[symbol.name] + symbol.offset
        return 0

    def special(self, warp: int, name: str) -> np.ndarray:
        """A special register that depends on the thread or block, [32] or [1]."""
        if name.startswith("tid."):
            return self.warps[name][warp]
        if name == "laneid":
            return np.arange(32)
        return np.array([self.context[0][name]]) if name in CONTEXT_AT else np.array([warp])

    def _lay_out_threads(self) -> None:
        linear = np.arange(self.warp_count * 32).reshape(-1, 32)
        x, y, _ = self.job.block
        for name, value in (("tid.x", linear % x), ("tid.y", linear // x % y), ("tid.z", linear // (x * y))):
            self.warps[name] = value
        started = (linear < self.threads).astype(np.uint64) << np.arange(32, dtype=np.uint64)
        self.warps["started"] = started.sum(axis=1).astype(np.uint32).view(np.int32)
        self.warps["index"] = np.arange(self.warp_count)

    def _point(self, event: int, cells: Cells | None) -> None:
        job, context, counts = self.job, self.context[0], self.counts
        self.order = order_of(job.schedule, range(self.warp_count))
        self.parameters = np.frombuffer(job.parameters + bytes(64), np.uint8).copy()
        self.symbols = np.array([job.addresses.get(v.name, 0) for v in job.program.variables] + [0], np.int64)
        buffers = [(buffer.address, buffer.address + buffer.size_bytes) for buffer in self.arena.buffers.values()]
        self.buffers = np.array([*buffers, (0, 0)], np.int64)
        arrays: dict[str, Any] = {"shared": self.shared, "shared_flags": self.shared_flags, "parameters": self.parameters,
                  "symbols": self.symbols, "buffers": self.buffers, "order": self.order, "block_warps": counts.block_warps,
                  "block_lanes": counts.block_lanes, "records": counts.records, "warps": self.bytes}
        for name, array in arrays.items():
            context[name] = array.ctypes.data
        for name, array in (("arena", self.arena.bytes), ("marks", counts.marks), ("flags", self.arena.flags)):
            context[name] = array.ctypes.data - GLOBAL_BASE
        context["event"], context["buffer_count"] = event, len(buffers)
        if cells is not None:
            self.shared_cells = np.zeros(self.shared_bytes // cells.granule["shared"] + 1, CELL)
            context["shared_cells"] = self.shared_cells.ctypes.data
            context["cells"] = cells.cells.ctypes.data - GLOBAL_BASE // cells.granule["global"] * CELL.itemsize

    def _size(self, eager: bool) -> None:
        job, context = self.job, self.context[0]
        numbers = {"shared_bytes": self.shared_bytes, "parameter_bytes": len(job.parameters), "warp_count": self.warp_count,
                   "worker": self.number, "nsmid": job.sms, "dynamic_shared": job.dynamic_shared_bytes,
                   "quantum": _SHORT_TURN if eager else _TURN}
        numbers |= {f"ntid.{axis}": size for axis, size in zip("xyz", job.block, strict=True)}
        numbers |= {f"nctaid.{axis}": size for axis, size in zip("xyz", job.grid, strict=True)}
        for name, value in numbers.items():
            context[name] = value
