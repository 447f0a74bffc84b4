"""Where lanes of the numpy machine wait for each other: barriers of a block, and warp collectives not all come to at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from perflab.emulator.gang import AT_BARRIER, EXITED, PARKED, Frame, Gang, Run
from perflab.emulator.operations import Operation
from perflab.emulator.paths import Paths
from perflab.emulator.ptx import Immediate

Array = Any
Read = Callable[[Frame], Array]


@dataclass(frozen=True)
class Barrier:
    """A bar/barrier instruction, bound: how its operands are read; count, vote: None where it has none."""

    site: int
    block: int
    operation: Operation
    guard: Read | None
    number: Read
    count: Read | None
    vote: Read | None
    write: Callable[[Gang, Array, Array], None] | None  # the result of bar.red: lanes, values

    @property
    def way(self) -> str:
        """'sync', 'arrive', 'red.popc' …"""
        return self.operation.barrier


class Barriers:
    """The barriers of the blocks of a gang. number, site, count, vote: of lanes that wait; past: bit k where a lane has come to
    a place after barrier k from which no way leads back (see `Paths`)."""

    def __init__(self, gang: Gang, known: dict[int, Barrier], paths: Paths) -> None:
        self.gang, self.run, self.known, self.paths = gang, gang.run, known, paths
        self.number, self.site, self.count = (np.zeros(gang.lanes, np.int32) for _ in range(3))
        self.vote = np.zeros(gang.lanes, bool)
        self.past = np.zeros(gang.lanes, np.int64)
        self.everybody = 0  # bits that all lanes have which have not exited
        self.arrivals: dict[tuple[int, int], list[tuple[int, Any]]] = {}
        numbers = {_number(one) for one in known.values()}
        self.named = len(numbers) > 1 or any(not isinstance(one, Immediate) for one in numbers) or any(
            one.count is not None for one in known.values())

    # ---------------------------------------------------------------- coming
    def come(self, barrier: Barrier, frame: Frame) -> None:
        """The lanes of a frame come to a barrier; those whose guard is false go on."""
        gang = self.gang
        positions, lanes, count = frame.chosen(barrier.guard(frame) if barrier.guard else None)
        frame.go(barrier.block + 1)
        if not count:
            return
        lanes = np.arange(gang.lanes) if lanes is None else lanes
        number, expected, vote = (None if read is None else read(frame) if positions is None else read(frame)[positions]
                                  for read in (barrier.number, barrier.count, barrier.vote))
        assert number is not None
        if barrier.way == "arrive":
            self._arrive(lanes, number)
            return
        self.number[lanes], self.site[lanes] = number, barrier.site
        self.count[lanes] = 0 if expected is None else expected
        if vote is not None:
            self.vote[lanes] = vote
        gang.resume[lanes] = barrier.block + 1
        gang.at[lanes] = AT_BARRIER

    def _arrive(self, lanes: Array, number: Array) -> None:
        """bar.arrive: counted, but nobody waits."""
        gang = self.gang
        rows, first = np.unique(lanes >> 5, return_index=True)
        for row, position in zip(rows.tolist(), first.tolist(), strict=True):
            slot = row // gang.warps
            token = self.run.detector.arrive(int(gang.block[slot]), int(gang.thread[32 * row]) >> 5)
            self.arrivals.setdefault((slot, int(number[position])), []).append((row, token))
            if self.run.checking:
                gang.stamps.tick(slot)

    # ---------------------------------------------------------------- going on
    def release(self) -> bool:
        """Let those go on for whom all have come; True where some did."""
        gang = self.gang
        each = 32 * gang.warps
        at = gang.at.reshape(gang.slots, each)
        waiting = at == AT_BARRIER
        some = waiting.any(axis=1)
        if not some.any():
            return False
        complete = some & (waiting | (at == EXITED)).all(axis=1)
        if self.named:
            return any([self._named(slot, bool(complete[slot])) for slot in np.flatnonzero(some).tolist()])
        slots = np.flatnonzero(complete)
        if not len(slots):
            return False
        if self._all_at_one(waiting, slots):
            return True
        site = self.site.reshape(gang.slots, each)
        for slot in slots.tolist():
            lanes = slot * each + np.flatnonzero(waiting[slot])
            sites = site[slot][waiting[slot]]
            if int(sites.min()) == int(sites.max()):
                self._whole(slot, lanes)
            else:
                self._mixed(slot, lanes)
        return True

    def _all_at_one(self, waiting: Array, slots: Array) -> bool:
        """The usual case, done at once: all lanes that have not exited wait at one and the same barrier, without a result."""
        gang = self.gang
        count = int(np.count_nonzero(waiting))
        if count != gang.live or len(slots) * self.run.threads != count:
            return False
        first = int(waiting.reshape(-1).argmax())
        site = int(self.site[first])
        if self.known[site].write is not None or not ((self.site == site) | ~waiting.reshape(-1)).all():
            return False
        if count == gang.lanes:
            gang.at.fill(gang.resume[first])
        else:
            gang.at[waiting.reshape(-1)] = gang.resume[first]
        if self.run.checking:
            for slot in slots.tolist():
                self.run.detector.barrier(int(gang.block[slot]), range(gang.warps))
            gang.stamps.barriers(slots)
        return True

    def _named(self, slot: int, complete: bool) -> bool:
        """The barriers of one block where they have numbers of their own, or counts."""
        gang = self.gang
        each = 32 * gang.warps
        at = gang.at[slot * each : (slot + 1) * each]
        lanes = slot * each + np.flatnonzero(at == AT_BARRIER)
        done = False
        for number in np.unique(self.number[lanes]).tolist():
            here = lanes[self.number[lanes] == number]
            count = int(self.count[here].max())
            if not count:
                if complete and len(here) == len(lanes):
                    together = int(self.site[here].min()) == int(self.site[here].max())
                    (self._whole if together else self._mixed)(slot, here)
                    done = True
                continue
            arrived = self.arrivals.get((slot, number), [])
            rows = np.unique(here >> 5)
            whole = rows if complete else np.array([r for r in rows.tolist() if self._all_here(r, number)], np.int64)
            if 32 * (len(whole) + len(arrived)) >= count:
                self.arrivals.pop((slot, number), None)
                self._part(slot, here[np.isin(here >> 5, whole)], [token for _, token in arrived])
                done = True
        return done

    def _all_here(self, row: int, number: int) -> bool:
        lanes = slice(32 * row, 32 * row + 32)
        at = self.gang.at[lanes]
        return bool(((at == EXITED) | ((at == AT_BARRIER) & (self.number[lanes] == number))).all())

    def _whole(self, slot: int, lanes: Array) -> None:
        """All of a block that has not exited is here."""
        gang = self.gang
        site = int(self.site[lanes[0]])
        bit = self.paths.barrier_bits.get(self.known[site].block, 0)
        each = 32 * gang.warps
        if bit and len(lanes) < self.run.threads:
            block = slice(slot * each, (slot + 1) * each)
            gone = np.flatnonzero((gang.at[block] == EXITED) & (self.past[block] & bit != 0))
            if len(gone):
                those, others = some_words(gang.thread[lanes]), some_words(gang.thread[block][gone])
                gang.fault("barrier divergence", site, f"{those} wait here, {others} went past and ended", lanes)
        self._go_on(slot, lanes)
        self.run.detector.barrier(int(gang.block[slot]), range(gang.warps))
        if self.run.checking:
            gang.stamps.barrier(slot)

    def _mixed(self, slot: int, lanes: Array) -> None:
        """All wait, but not at one instruction: report it; go on as if a barrier had been skipped, or as the hardware does."""
        gang = self.gang
        sites = np.unique(self.site[lanes]).tolist()
        first, second = sites[:2]
        here, there = lanes[self.site[lanes] == first], lanes[self.site[lanes] == second]
        lines = [self.run.program.instructions[site].place.line for site in (first, second)]
        whose, others = some_words(gang.thread[here]), some_words(gang.thread[there])
        message = f"of the block, {whose} at the barrier of line {lines[0]}, {others} at that of line {lines[1]}"
        gang.fault("barrier divergence", first, message, here, second)
        a, b = self.known[first].block, self.known[second].block
        if b in self.paths.after[a] and a not in self.paths.after[b]:
            self._part(slot, here, ())
        else:
            self._whole(slot, lanes)

    def _part(self, slot: int, lanes: Array, arrived: Iterable[Any]) -> None:
        """Some warps of a block go on."""
        gang = self.gang
        warps = np.unique(gang.thread[lanes] >> 5).tolist()
        self._go_on(slot, lanes)
        self.run.detector.barrier(int(gang.block[slot]), warps, arrived)
        if self.run.checking:
            clock = gang.stamps.tick(slot)
            for row in np.unique(lanes >> 5).tolist():
                gang.stamps.warp_sync(row, clock)

    def _go_on(self, slot: int, lanes: Array) -> None:
        gang = self.gang
        for site in np.unique(self.site[lanes]).tolist():
            barrier = self.known[site]
            if barrier.write is not None:
                votes = self.vote[lanes]
                value = {"red.popc": votes.sum(), "red.and": votes.all(), "red.or": votes.any()}[barrier.way]
                here = lanes[self.site[lanes] == site]
                barrier.write(gang, here, np.full(len(here), value))
        gang.at[lanes] = gang.resume[lanes]

    # ---------------------------------------------------------------- where lanes have been
    def pass_by(self, block: int, frame: Frame) -> None:
        """Lanes run a block: note the barriers that it lies behind."""
        bits = self.paths.past[block]
        if bits & ~self.everybody:
            if frame.count == self.gang.live:
                self.everybody |= bits
            if frame.active is None:
                self.past |= bits
            else:
                self.past[frame.active] |= bits


class Collectives:
    """Warp collectives that wait for their members. At blocks that begin with one: `members(frame)`, the mask of each lane."""

    def __init__(self, gang: Gang, members: dict[int, Read], warp_barriers: frozenset[int]) -> None:
        self.gang, self.members, self.warp_barriers = gang, members, warp_barriers
        self.mask = np.zeros(gang.lanes, np.uint32)  # of parked lanes
        self.through = np.zeros(gang.lanes, bool)  # lanes that need not wait any longer
        self.parked = False

    def unpark(self, block: int, frame: Frame) -> Frame:
        """The lanes of a frame, and those of their warps that wait at this block already."""
        gang = self.gang
        here: Any = np.zeros(gang.lanes, bool)
        here[frame.lanes()] = True
        joined: Any = (gang.at == PARKED) & (gang.resume == block) & here.reshape(-1, 32).any(axis=1)[gang.row]
        if not joined.any():
            return frame
        gang.at[joined] = block
        return Frame(gang, np.flatnonzero(here | joined), False)

    def gather(self, block: int, frame: Frame) -> Frame | None:
        """The lanes of a frame whose partners are all here; the others are parked."""
        gang = self.gang
        if frame.count == gang.live:
            self.through.fill(False)
            return frame
        members = self.members[block](frame)
        lanes = frame.lanes()
        if frame.whole:
            members = members[lanes]
        here = np.zeros(gang.lanes, bool)
        here[lanes] = True
        row = lanes >> 5
        missing = members & _bits(gang.at != EXITED)[row] & ~_bits(here)[row]
        wait = (missing != 0) & ~self.through[lanes]
        self.through[lanes] = False
        if not wait.any():
            return frame
        parked = lanes[wait]
        self.parked = True
        gang.at[parked], gang.resume[parked], self.mask[parked] = PARKED, block, members[wait]
        return None if wait.all() else Frame(gang, lanes[~wait], False)

    def resolve(self) -> bool:
        """Let parked lanes go on whose partners will not come, and say so; True where there were any."""
        if not self.parked:
            return False
        gang = self.gang
        at = gang.at.reshape(-1, 32)
        parked = (at == PARKED).any(axis=1)
        stuck = np.flatnonzero(parked & ~(at < PARKED).any(axis=1)).tolist()
        self.parked = bool(parked.any())
        for row in stuck:
            self._resolve(row)
        return bool(stuck)

    def _resolve(self, row: int) -> None:
        gang = self.gang
        lanes = 32 * row + np.flatnonzero(gang.at[32 * row : 32 * row + 32] == PARKED)
        live = int(_bits(gang.at[32 * row : 32 * row + 32] != EXITED)[0])
        barriers = np.isin(gang.resume[lanes], list(self.warp_barriers))
        for mask in np.unique(self.mask[lanes[barriers]]).tolist():
            group = lanes[barriers & (self.mask[lanes] == mask)]
            if mask & live & ~_mask_of(group) == 0:
                self._let_through(group)
                return
        block = int(gang.resume[lanes].min())
        group = lanes[gang.resume[lanes] == block]
        mask = int(self.mask[group[0]])
        missing = [lane for lane in range(32) if mask & live & ~_mask_of(group) & 0xFFFFFFFF & 1 << lane]
        site = gang.run.program.blocks[block].first
        where = " and ".join(f"line {line}" for line in sorted({self._line(32 * row + lane) for lane in missing}))
        wait = "waits" if len(missing) == 1 else "wait"
        gang.fault("absent lane", site, f"the mask {mask:#010x} names {lanes_words(missing)}, which {wait} at {where}", group)
        self._let_through(group)

    def _let_through(self, lanes: Array) -> None:
        self.through[lanes] = True
        self.gang.at[lanes] = self.gang.resume[lanes]

    def _line(self, lane: int) -> int:
        """Where a lane that does not run waits."""
        gang = self.gang
        program = gang.run.program
        if gang.at[lane] == AT_BARRIER:
            return program.instructions[gang.barriers.site[lane]].place.line
        return program.instructions[program.blocks[min(int(gang.resume[lane]), len(program.blocks) - 1)].first].place.line


def waiting_words(run: Run, sites: Iterable[int]) -> str:
    """'line 12: bar.sync 0; line 40: …' for where threads wait."""
    found = [run.program.instructions[site] for site in sites]
    return "; ".join(dict.fromkeys(f"line {one.place.line}: {one.text.strip().rstrip(';')}" for one in found))


def _number(barrier: Barrier) -> object:
    return barrier.operation.inputs[0].operand if barrier.operation.inputs else Immediate("int", 0)


def _bits(lanes: Array) -> Array:
    """[32 n] bool -> [n] u32."""
    return np.packbits(lanes.reshape(-1, 32), axis=1, bitorder="little").view(np.uint32).reshape(-1)


def _mask_of(lanes: Array) -> int:
    return sum(1 << (int(lane) & 31) for lane in lanes)


def some_words(threads: Array) -> str:
    """'thread 3', '16 threads'."""
    return f"thread {int(threads[0])}" if len(threads) == 1 else f"{len(threads)} threads"


def lanes_words(lanes: list[int]) -> str:
    """'lane 5', 'lanes 16-31', 'lanes 1, 3, 5'."""
    ranges: list[list[int]] = []
    for lane in lanes:
        if ranges and lane == ranges[-1][1] + 1:
            ranges[-1][1] = lane
        else:
            ranges.append([lane, lane])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
    return f"lane{'s' if len(lanes) > 1 else ''} {text}"
