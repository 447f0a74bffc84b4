"""Which accesses are ordered: vector clocks over barriers, warp barriers, fences and flags; what is not ordered is a race.

The rules are those of the PTX memory model, as far as a run can show them: a barrier orders the warps that take part,
bar.warp.sync the lanes of its mask (a shuffle orders nothing), and between warps a release (fence, then a strong write to some
place) that an acquire (strong read of that place, then fence) has seen. A fence of scope cta orders nothing between blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from perflab.emulator.faults import Fault, FaultLog
from perflab.emulator.memory import GLOBAL_BASE
from perflab.emulator.program import Program

ALL_WARPS = -1
ALL_LANES = 0xFFFFFFFF

Known = dict[tuple[int, int], int]
"""(block, warp) -> the clock of that block up to which the warp's accesses are known to have happened; warp ALL_WARPS: of all
its warps. Such a dict is never changed once another one may hold it: joins make new ones."""


@dataclass(frozen=True)
class Access:
    """One access to a memory cell. block and thread: linear indices; epoch: barriers of the whole block before it.

    clock: `Detector.clock` of its warp, as it was after the warp's latest barrier, warp barrier, fence or release.
    site: instruction index. atomic: atomics and strong accesses (volatile, relaxed, acquire, release).
    """

    block: int
    thread: int
    epoch: int
    clock: int
    site: int
    writes: bool
    atomic: bool


@dataclass
class _State:
    """What one warp knows. fenced: what its next strong write tells others of any block, fenced_block: of its own block;
    pending and pending_block: what its strong reads have seen and its next fence will make known to it."""

    known: Known = field(default_factory=dict)
    fenced: Known = field(default_factory=dict)
    fenced_block: Known = field(default_factory=dict)
    pending: Known = field(default_factory=dict)
    pending_block: Known = field(default_factory=dict)
    seen: dict[object, int] = field(default_factory=dict)  # place -> its version when last read: spinning costs nothing
    gave: dict[object, tuple[int, Known, Known]] = field(default_factory=dict)  # the same for what was released there


@dataclass
class _Place:
    """What was released to one address: to everybody, and to a block's own warps."""

    told: Known = field(default_factory=dict)
    told_block: dict[int, Known] = field(default_factory=dict)
    version: int = 0


class Detector:
    """Decides for one launch whether two accesses are ordered, and reports those that are not."""

    def __init__(self, log: FaultLog, program: Program, warps_per_block: int) -> None:
        self._log = log
        self._program = program
        self._warps_per_block = warps_per_block
        self._time: dict[int, int] = {}  # block -> its clock: counts what orders something
        self._floor: dict[int, int] = {}  # block -> clock of its latest barrier of all warps
        self._lanes: dict[tuple[int, int], dict[int, int]] = {}  # warp -> member mask -> clock of its latest warp barrier
        self._states: dict[int, dict[int, _State]] = {}
        self._places: dict[object, _Place] = {}
        self.releasing = False
        """False until the first fence or release: until then `strong` does nothing for accesses that do not release."""

    # ---------------------------------------------------------------- what happens
    def clock(self, block: int, warp: int) -> int:
        """The clock to stamp accesses of a warp with; good until the warp's next barrier, warp barrier, fence or release."""
        return self._time.get(block, 1)

    def barrier(self, block: int, warps: Iterable[int], arrived: Iterable[_State] = ()) -> None:
        """These warps met at a barrier (exited ones count as taking part where the whole block was awaited); `arrived`: what
        `arrive` gave for those that came by bar.arrive and did not wait."""
        now = self._tick(block)
        members = set(warps)
        everyone = len(members) >= self._warps_per_block
        states = self._states.get(block, {})
        met = [*(states[w] for w in sorted(members) if w in states), *arrived]
        if everyone:
            self._floor[block] = now
        else:
            met += [_State(known={(block, warp): now for warp in members})]
            for warp in members:
                self._lanes[block, warp] = {ALL_LANES: now}
        if met:
            joined = _State(
                _join(*(s.known for s in met)), _join(*(s.fenced for s in met)), _join(*(s.fenced_block for s in met)),
                _join(*(s.pending for s in met)), _join(*(s.pending_block for s in met)))
            self._states.setdefault(block, {}).update({warp: replace(joined, seen={}, gave={}) for warp in members})

    def arrive(self, block: int, warp: int) -> _State:
        """A warp came by bar.arrive: what it tells those that will wait there."""
        now = self._tick(block)
        state = self._state(block, warp)
        return replace(state, known=self._snapshot(state, block, warp, now), seen={}, gave={})

    def warp_sync(self, block: int, warp: int, members: int = ALL_LANES) -> None:
        """bar.warp.sync of the lanes in the mask `members`."""
        now = self._tick(block)
        masks = self._lanes.setdefault((block, warp), {})
        if members == ALL_LANES:
            masks.clear()
        masks[members] = now

    def fence(self, block: int, warp: int, scope: str) -> None:
        """membar or fence; scope 'cta', 'cluster', 'gpu' (membar.gl) or 'sys'. Before it: known; after it: may be told."""
        now = self._tick(block)
        state = self._state(block, warp)
        state.known = _join(state.known, state.pending_block)
        state.pending_block = {}
        if _wide(scope):
            state.known = _join(state.known, state.pending)
            state.pending = {}
        state.fenced_block = self._snapshot(state, block, warp, now)
        if _wide(scope):
            state.fenced = state.fenced_block
        self.releasing = True

    def strong(self, block: int, warp: int, address: int, reads: bool, writes: bool, acquires: bool = False,
               releases: bool = False, scope: str = "gpu") -> None:
        """An atomic or strong access of a warp to a (generic) address; once for each distinct address of an instruction."""
        if not (self.releasing or releases):
            return
        key: object = address if address >= GLOBAL_BASE else (block, address)
        state = self._state(block, warp)
        place = self._places.get(key)
        if reads and place is not None:
            _read(state, place, key, block, acquires, _wide(scope))
        if not writes:
            return
        place = self._places.setdefault(key, _Place())
        told, told_block = state.fenced, state.fenced_block
        if releases:
            self.releasing = True
            told = told_block = self._snapshot(state, block, warp, self._tick(block))
        if not _wide(scope):
            told = {}
        if not reads:
            place.told, place.told_block = told, {block: told_block}
            place.version += 1
            return
        # A read-modify-write continues what was released here before; a plain store replaces it.
        gave = state.gave.get(key)
        if gave is not None and gave[0] == place.version and gave[1] is told and gave[2] is told_block:
            return
        before, before_block = place.told, place.told_block.get(block, {})
        place.told, place.told_block[block] = _join(before, told), _join(before_block, told_block)
        if place.told is not before or place.told_block[block] is not before_block:
            place.version += 1
        state.gave[key] = place.version, told, told_block

    # ---------------------------------------------------------------- what it means
    def ordered(self, earlier: Access, later: Access) -> bool:
        """True where nothing is wrong with the pair: one thread, both atomic, or the first ordered before the other."""
        if not (earlier.writes or later.writes) or self._both_atomic(earlier, later):
            return True
        warp, home = earlier.thread // 32, earlier.block
        if home == later.block:
            if earlier.thread == later.thread or earlier.epoch < later.epoch or earlier.clock <= self._floor.get(home, 0):
                return True
            if warp == later.thread // 32:
                pair = 1 << (earlier.thread % 32) | 1 << (later.thread % 32)
                masks = self._lanes.get((home, warp), {})
                if any(earlier.clock <= at and members & pair == pair for members, at in masks.items()):
                    return True
        state = self._states.get(later.block, {}).get(later.thread // 32)
        if state is None:
            return False
        known = [state.known]
        if later.atomic:  # a strong read needs no fence to come after the one that saw the release
            known += [state.pending, state.pending_block]
        return any(earlier.clock <= one.get(key, 0) for one in known for key in ((home, warp), (home, ALL_WARPS)))

    def conflict(self, space: str, address_words: str, earlier: Access, later: Access, times: int = 1) -> bool:
        """Report the pair unless it is ordered; True where reported. space: 'shared' or 'global'; address_words: the place;
        times: how many lanes did the same."""
        if self.ordered(earlier, later):
            return False
        kind = "two writers" if earlier.writes and later.writes else "race"
        first, second = (self._program.instructions[access.site] for access in (earlier, later))
        apart = earlier.block != later.block
        threads = (later.thread,) if apart else tuple(sorted({earlier.thread, later.thread}))
        message = (f"{_who(later, apart)} {'writes' if later.writes else 'reads'} what {_who(earlier, apart)} "
                   f"{'wrote' if earlier.writes else 'read'} {'between blocks' if apart else f'in {space} memory'} "
                   f"({address_words}); {_missing(earlier, later)}")
        fault = Fault(kind, message, second.place, later.block, threads, second.text, first.place, times)
        self._log.add(fault)
        return True

    # ---------------------------------------------------------------- parts
    def _both_atomic(self, earlier: Access, later: Access) -> bool:
        """Atomics of scope cta are atomic for their own block alone."""
        if not (earlier.atomic and later.atomic):
            return False
        return earlier.block == later.block or not any(
            "cta" in self._program.instructions[access.site].modifiers for access in (earlier, later))

    def _tick(self, block: int) -> int:
        """The clock of a block now; what happens from here on has a later one."""
        now = self._time.get(block, 1)
        self._time[block] = now + 1
        return now

    def _state(self, block: int, warp: int) -> _State:
        return self._states.setdefault(block, {}).setdefault(warp, _State())

    def _snapshot(self, state: _State, block: int, warp: int, now: int) -> Known:
        """All that happened before this point of a warp, its own accesses and those it knows of."""
        return _join(state.known, {(block, ALL_WARPS): self._floor.get(block, 0), (block, warp): now})


def _read(state: _State, place: _Place, key: object, block: int, acquires: bool, wide: bool) -> None:
    """Take in what was released to a place: at once where the read acquires, else at the next fence."""
    mark = (key, acquires)
    if state.seen.get(mark) == place.version:
        return
    state.seen[mark] = place.version
    mine = place.told_block.get(block, {})
    if acquires:
        state.known = _join(state.known, mine, place.told if wide else {})
    else:
        state.pending_block = _join(state.pending_block, mine)
        state.pending = _join(state.pending, place.told)


def _join(*parts: Known) -> Known:
    """The later clock of each warp; one of the parts itself where the others add nothing to it."""
    result: Known = {}
    for part in parts:
        if not result:
            result = part
        elif part is not result:
            later = {warp: clock for warp, clock in part.items() if clock > result.get(warp, 0)}
            if later:
                result = {**result, **later}
    return result


def _wide(scope: str) -> bool:
    """True for fences that order between blocks."""
    return scope not in ("cta", "cluster")


def _who(access: Access, apart: bool) -> str:
    return f"thread {access.thread} of block {access.block}" if apart else f"thread {access.thread}"


def _missing(earlier: Access, later: Access) -> str:
    """What would have ordered the two."""
    if earlier.block != later.block:
        return "nothing orders the two (a fence, then an atomic; at the other end an atomic, then a fence)"
    if earlier.site == later.site and earlier.thread // 32 == later.thread // 32 and earlier.clock == later.clock:
        return "both by one instruction"
    if earlier.thread // 32 == later.thread // 32:
        return "no __syncwarp between them"
    return "no barrier between them"
