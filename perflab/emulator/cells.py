"""Who last used each place of memory: the numpy machine's records for finding races, a whole step's accesses at once.

A record is one int64: clock << 32 | site << 11 | atomic << 10 | thread (of its block); 0 is none. Memory of all blocks keeps
the block of each record beside it. `Detector` decides what is really unordered; here only candidates are found, with numpy.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np

from perflab.emulator.gang import Gang, Run
from perflab.emulator.memory import GLOBAL_BASE
from perflab.emulator.races import Access

THREAD, ATOMIC, SITE_SHIFT, CLOCK_SHIFT = 1023, 1024, 11, 32
_WARP = THREAD & ~31
_LARGEST_BYTES = 32

Array = Any


class Stamps:
    """For each lane of a gang, ready to compare with records: `mine` (clock and thread), `floor` (what the latest barrier of
    the whole block has ordered), `lane_floor` (what the latest barrier of the whole warp has)."""

    def __init__(self, gang: Gang) -> None:
        self.gang = gang
        self.mine = np.zeros(gang.lanes, np.int64)
        self.floor = np.zeros(gang.lanes, np.int64)
        self.lane_floor = np.zeros(gang.lanes, np.int64)
        for slot in range(gang.slots):
            self.begin(slot)

    def begin(self, slot: int) -> None:
        """A block starts in a slot."""
        lanes = self._lanes(slot)
        self.floor[lanes] = self.lane_floor[lanes] = (1 << CLOCK_SHIFT) - 1
        self.tick(slot)

    def tick(self, slot: int) -> int:
        """Something of a block was ordered; the clock that was before it."""
        lanes = self._lanes(slot)
        now = self.gang.run.detector.clock(int(self.gang.block[slot]), 0)
        self.mine[lanes] = self.gang.thread[lanes] + (now << CLOCK_SHIFT)
        return now - 1

    def barrier(self, slot: int) -> None:
        """A barrier of the whole block."""
        lanes = self._lanes(slot)
        self.floor[lanes] = (self.tick(slot) + 1 << CLOCK_SHIFT) - 1

    def barriers(self, slots: Array) -> None:
        """A barrier of the whole block in each of these slots."""
        clock = self.gang.run.detector.clock
        now = np.zeros(self.gang.slots, np.int64)
        now[slots] = [clock(block, 0) for block in self.gang.block[slots].tolist()]
        ticks = now[self.gang.slot] << CLOCK_SHIFT
        met = ticks != 0
        np.copyto(self.mine, self.gang.thread + ticks, where=met)
        np.copyto(self.floor, ticks - 1, where=met)

    def warp_sync(self, row: int, clock: int) -> None:
        """A barrier of a whole warp at a clock of its block."""
        self.lane_floor[32 * row : 32 * row + 32] = (clock + 1 << CLOCK_SHIFT) - 1

    def _lanes(self, slot: int) -> slice:
        each = 32 * self.gang.warps
        return slice(slot * each, (slot + 1) * each)


class Cells:
    """Records of one stretch of memory: the last writer, and the last two readers that are different threads.

    A cell is as large as the smallest access so far, at most 16 bytes: smaller accesses split the cells.
    """

    def __init__(self, size_bytes: int, many_blocks: bool, granule: int = 16) -> None:
        self.granule = granule
        self.size = -(-size_bytes // _LARGEST_BYTES) * _LARGEST_BYTES
        cells = self.size // self.granule
        self.records = [np.zeros(cells, np.int64) for _ in range(3)]  # writer, reader, reader before it
        self.owners = [np.zeros(cells if many_blocks else 0, np.int32) for _ in range(3)]
        self.many_blocks = many_blocks

    def split(self, size_bytes: int) -> int:
        """Make cells no larger than an access; how many cells it covers."""
        if size_bytes < self.granule:
            factor = self.granule // size_bytes
            self.records = [np.repeat(one, factor) for one in self.records]
            self.owners = [np.repeat(one, factor) for one in self.owners]
            self.granule = size_bytes
        return size_bytes // self.granule


class Watch:
    """Looks at every access of a launch to shared and global memory."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.buffers = sorted(run.arena.buffers.values(), key=lambda b: b.offset)
        self.offsets = [buffer.offset for buffer in self.buffers]
        self.cells: dict[int, Cells] = {}
        self.block_scope = any("cta" in instruction.modifiers for instruction in run.program.instructions)

    def shared(self, gang: Gang, lanes: Array | None, index: Array, use: Use) -> None:
        """Accesses to shared memory of lanes (None: all of the gang); index: into `gang.shared`."""
        Look(self, gang, lanes, index, use, Stretch(gang.shared_cells, "shared", 0))

    def everyone(self, gang: Gang, lanes: Array | None, index: Array, use: Use) -> None:
        """Accesses to global memory; index: into the arena."""
        low, high = (bisect_right(self.offsets, int(end)) - 1 for end in (index.min(), index.max()))
        if low == high:
            Look(self, gang, lanes, index, use, self._buffer(low, use))
            return
        number = np.searchsorted(self.offsets, index, "right") - 1
        for each in np.unique(number).tolist():
            some = np.flatnonzero(number == each)
            Look(self, gang, some if lanes is None else lanes[some], index[some], use, self._buffer(each, use))

    def _buffer(self, number: int, use: Use) -> Stretch:
        buffer = self.buffers[number]
        if number not in self.cells:
            self.cells[number] = Cells(buffer.size_bytes, True, min(16, use.size_bytes))
        return Stretch(self.cells[number], "global", buffer.offset)


@dataclass(frozen=True)
class Stretch:
    """Cells, the space they are of, and the index of their first byte."""

    cells: Cells
    space: str
    base: int


class Use:
    """How an instruction uses memory."""

    def __init__(self, site: int, size_bytes: int, writes: bool, atomic: bool) -> None:
        self.site, self.size_bytes, self.writes, self.atomic = site, size_bytes, writes, atomic
        self.bits = site << SITE_SHIFT | (ATOMIC if atomic else 0)


class Look:
    """One step's accesses to one stretch of memory: checked against the records, then recorded.

    lanes: of the gang (None: all of it); index: of the bytes they use. An access of several cells has a row of records.
    """

    def __init__(self, watch: Watch, gang: Gang, lanes: Array | None, index: Array, use: Use, stretch: Stretch) -> None:
        self.watch, self.gang, self.lanes, self.index, self.use, self.stretch = watch, gang, lanes, index, use, stretch
        cells = self.cells = stretch.cells
        self.count = cells.split(use.size_bytes)
        self.cell = (index - stretch.base) >> use.size_bytes.bit_length() - 1
        stamps = gang.stamps
        self.mine = self._wide(self._of(stamps.mine) | use.bits)
        self.floor = self._wide(self._of(stamps.floor))
        self.block: Any = self._wide(self._of(gang.owner)) if cells.many_blocks else None
        self._check(0)
        if use.writes:
            self._check(1)
            self._check(2)
            self._write()
        else:
            self._read()

    # ---------------------------------------------------------------- records
    def _of(self, values: Array) -> Array:
        return values if self.lanes is None else values.take(self.lanes)

    def _wide(self, array: Array) -> Array:
        """[accesses], or [accesses, 1] where an access has a row of records."""
        return array if self.count == 1 else array[:, None]

    def _rows(self, array: Array) -> Array:
        return array if self.count == 1 else array.reshape(-1, self.count)

    def _take(self, which: int) -> Array:
        return self._rows(self.cells.records[which]).take(self.cell, axis=0)

    def _owner(self, which: int) -> Array:
        return self._rows(self.cells.owners[which]).take(self.cell, axis=0)

    def _put(self, which: int) -> None:
        """These accesses are the records now."""
        self._rows(self.cells.records[which])[self.cell] = self.mine
        if self.cells.many_blocks:
            self._rows(self.cells.owners[which])[self.cell] = self.block

    def _put_some(self, which: int, some: Array, records: Array, owners: Any) -> None:
        """Set the records where a mask holds to those of arrays that are broadcast to its shape."""
        numbers = self.cell if self.count == 1 else self.cell[:, None] * self.count + np.arange(self.count)
        cell = numbers[some]
        self.cells.records[which][cell] = np.broadcast_to(records, some.shape)[some]
        if self.cells.many_blocks:
            self.cells.owners[which][cell] = np.broadcast_to(owners, some.shape)[some]

    # ---------------------------------------------------------------- checking
    def _check(self, which: int) -> None:
        """Report what is not ordered after the records of a kind."""
        record = self._take(which)
        found = record > self.floor
        if not self.cells.many_blocks:
            if not found.any():
                return
            owner = None
            found &= self._elsewhere(record)
        else:
            if not record.any():
                return
            owner = self._owner(which)
            other = owner != self.block
            found = (other & (record != 0)) | (found & ~other & self._elsewhere(record))
        if self.use.atomic and not self.watch.block_scope:
            found &= record & ATOMIC == 0
        if found.any():
            self._judge(found, record, owner, which == 0)

    def _elsewhere(self, record: Array) -> Array:
        """Where a record of the same block is of another thread, and of another warp or later than the warp's last barrier."""
        differs = record ^ self.mine
        lane_floor = self._wide(self._of(self.gang.stamps.lane_floor))
        return (differs & THREAD != 0) & ((differs & _WARP != 0) | (record > lane_floor))

    def _judge(self, found: Array, record: Array, owner: Any, earlier_writes: bool) -> None:
        """Ask the detector, once for each pair of warps, clocks and sites."""
        gang, run = self.gang, self.watch.run
        access = np.flatnonzero(found if self.count == 1 else found.any(axis=1))
        cell = access if self.count == 1 else (access, found[access].argmax(axis=1))  # one place is enough to tell of an access
        earlier, mine = record[cell], self.mine.reshape(-1)[access]
        lane = access if self.lanes is None else self.lanes[access]
        block = gang.block[gang.slot[lane]]
        theirs = block if owner is None else owner[cell].astype(np.int64) - 1
        within = (theirs == block) & ((earlier ^ mine) & _WARP == 0)  # one warp: which lanes it is may matter
        keys = np.stack([np.where(within, earlier, earlier & ~31), np.where(within, lane, lane & ~31), theirs])
        _, first, times = np.unique(keys, axis=1, return_index=True, return_counts=True)
        for position, number in sorted(zip(first.tolist(), times.tolist(), strict=True)):
            where = self._where(int(self.index[access[position]]))
            before = _access(int(theirs[position]), int(earlier[position]), earlier_writes)
            after = _access(int(block[position]), int(mine[position]), self.use.writes)
            run.detector.conflict(self.stretch.space, where, before, after, number)

    def _where(self, index: int) -> str:
        if self.stretch.space == "shared":
            return f"byte {index % self.gang.shared_stride:,}"
        return self.watch.run.arena.where(GLOBAL_BASE + index)

    # ---------------------------------------------------------------- recording
    def _write(self) -> None:
        """These are the last writers now; who came before them is ordered before them, or was reported."""
        self._put(0)
        for which in (1, 2):
            if self._take(which).any():
                self._rows(self.cells.records[which])[self.cell] = 0
        if self._alone() or (self.use.atomic and not self.watch.block_scope):
            return
        record = self._take(0)
        lost = record != self.mine
        owner = self._owner(0) if self.cells.many_blocks else None
        if owner is not None:
            lost |= owner != self.block
        if lost.any():
            self._judge(lost, record, owner, True)

    def _read(self) -> None:
        """The last two readers: this one, and the last of another thread."""
        last = self._take(1)
        differs = last ^ self.mine
        if self.cells.many_blocks:
            owner = self._owner(1)
            other = owner != self.block
            if not (differs.any() or other.any()):
                return
            second = (last != 0) & (other | (differs & THREAD != 0))
        else:
            if not differs.any():
                return
            owner = None
            second = (last > self.floor) & (differs & THREAD != 0)
        if second.any():
            self._put_some(2, second, last, owner)
        self._put(1)
        if self._alone():
            return
        beside = self._take(1) != self.mine
        if self.cells.many_blocks:
            beside |= self._owner(1) != self.block
        if beside.any():
            self._put_some(2, beside, self.mine, self.block)

    def _alone(self) -> bool:
        """Surely no two of these accesses are to one place."""
        return bool((self.cell[1:] > self.cell[:-1]).all())


def _access(block: int, record: int, writes: bool) -> Access:
    return Access(block, record & THREAD, 0, record >> CLOCK_SHIFT, record >> SITE_SHIFT & (1 << CLOCK_SHIFT - SITE_SHIFT) - 1,
                  writes, bool(record & ATOMIC))
