"""Loads, stores and atomics of the numpy machine: many lanes at once, checked, counted, and carried out in lane order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from perflab.emulator.cells import Use
from perflab.emulator.faults import access_words
from perflab.emulator.gang import Frame, Gang, Run, rows_of
from perflab.emulator.memory import (
    ALLOCATED,
    GLOBAL_BASE,
    INITIALISED,
    LOCAL_WINDOW,
    PARAM_WINDOW,
    READ,
    READ_ONLY,
    SHARED_WINDOW,
    WINDOW_BYTES,
    WRITTEN,
)
from perflab.emulator.operands import DTYPES, address_reader, guard_reader, reader, writer
from perflab.emulator.operations import Memory, Operation
from perflab.emulator.tallies import IDEAL, LANES, REQUESTS, UNITS, sectors, wavefronts

WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW}
_BYTES = 0x0101010101010101
_MOST_PATTERNS = 100

Array = Any


class Access:
    """One memory instruction, bound to a run: `step(frame)` carries it out."""

    def __init__(self, run: Run, site: int, operation: Operation) -> None:
        memory = operation.memory
        assert memory is not None
        self.run, self.site, self.operation, self.memory = run, site, operation, memory
        self.size = memory.size_bytes * memory.elements
        self.shift = self.size.bit_length() - 1
        self.dtype = np.dtype(DTYPES[memory.type])
        self.raw = np.dtype(f"u{memory.size_bytes}")
        self.word = np.dtype(f"u{min(8, self.size)}")
        self.address = address_reader(memory.address, run)
        self.guard = guard_reader(operation.instruction.guard)
        self.inputs = [reader(typed, run, operation) for typed in operation.inputs]
        self.outputs = [writer(typed, run) for typed in operation.outputs]
        self.writes = operation.role != "load"
        atomic = operation.role == "atomic"
        self.use = Use(site, self.size, self.writes, atomic or memory.strong)
        self.looked_at = run.job.counting or run.checking
        self.arena = _rows(run.arena.bytes.view(self.raw), memory.elements)
        self.flags = _rows(run.arena.flags.view(self.word), self.size // self.word.itemsize)
        self.step: Callable[[Frame], None] = {"load": self._load, "store": self._store, "atomic": self._atomic}[operation.role]
        self.adds = _adds_integers(operation, memory)
        self.patterns: dict[object, tuple[int, int]] = {}  # of a warp's addresses -> sectors or wavefronts, and the fewest

    # ---------------------------------------------------------------- the three roles
    def _load(self, frame: Frame) -> None:
        positions, lanes, count = frame.chosen(self.guard(frame) if self.guard else None)
        if not count:
            return
        address = self.address(frame)
        if positions is not None:
            address = address[positions]
        values = self._in_spaces(frame.gang, lanes, address, None)
        for (name, to_raw), value in zip(self.outputs, values, strict=True):
            if name:
                frame.write(name, to_raw(value.view(self.dtype)), positions)

    def _store(self, frame: Frame) -> None:
        positions, lanes, count = frame.chosen(self.guard(frame) if self.guard else None)
        if not count:
            return
        address, values = self.address(frame), [read(frame) for read in self.inputs]
        if positions is not None:
            address, values = address[positions], [value[positions] for value in values]
        self._in_spaces(frame.gang, lanes, address, values)

    def _atomic(self, frame: Frame) -> None:
        positions, lanes, count = frame.chosen(self.guard(frame) if self.guard else None)
        if not count:
            return
        address, values = self.address(frame), [read(frame) for read in self.inputs]
        if positions is not None:
            address, values = address[positions], [value[positions] for value in values]
        (old,) = self._in_spaces(frame.gang, lanes, address, values)
        for name, to_raw in self.outputs:
            if name:
                frame.write(name, to_raw(old.view(self.dtype)), positions)

    # ---------------------------------------------------------------- spaces
    def _in_spaces(self, gang: Gang, lanes: Array | None, address: Array, values: Sequence[Array] | None) -> list[Array]:
        """The access in the space of the instruction, or for each lane in that of its address. Gives what was loaded."""
        space = self.memory.space
        if space != "generic":
            return self._part(gang, space, lanes, address, values)
        if int(address.min()) >= GLOBAL_BASE:
            return self._part(gang, "global", lanes, address, values)
        window = address // WINDOW_BYTES * WINDOW_BYTES
        everyone = np.arange(gang.lanes) if lanes is None else lanes
        results = self._nothing(len(address))
        elsewhere = ~np.isin(window, list(WINDOWS.values()))
        for space, start in (("global", 0), *WINDOWS.items()):
            some = np.flatnonzero(elsewhere if space == "global" else window == start)
            if len(some):
                part = self._part(gang, space, everyone[some], address[some] - start,
                                  None if values is None else [value[some] for value in values])
                for whole, found in zip(results, part, strict=True):
                    whole[some] = found
        return results

    def _part(self, gang: Gang, space: str, lanes: Array | None, address: Array, values: Sequence[Array] | None) -> list[Array]:
        """The access of some lanes (None: all of the gang) to one space; lanes at fault load 0 and store nothing."""
        index, words, good = self._locate(gang, space, lanes, address)
        if good is None:
            return self._at(gang, space, lanes, index, words, values)
        everyone = np.arange(gang.lanes) if lanes is None else lanes
        found: list[Array] = []
        if good.any():
            chosen = None if values is None else [value[good] for value in values]
            found = self._at(gang, space, everyone[good], index[good], None if words is None else words[good], chosen)
        results = self._nothing(len(address))
        for whole, part in zip(results, found, strict=False):
            whole[good] = part
        return results

    def _nothing(self, count: int) -> list[Array]:
        """What lanes at fault load."""
        return [np.zeros(count, self.raw) for _ in range(0 if self.operation.role == "store" else self.memory.elements)]

    def _locate(self, gang: Gang, space: str, lanes: Array | None, address: Array) -> tuple[Array, Array | None, Array | None]:
        """(index into the space's bytes, flags of the bytes there, lanes without a fault; None: all are)."""
        if space in ("global", "const"):
            index, limit = address - GLOBAL_BASE, self.run.arena.bytes.size
        else:
            index, limit = address, {"shared": self.run.shared_bytes, "local": self.run.program.local_bytes,
                                     "param": len(self.run.job.parameters)}[space]
        fits = int(index.view(np.uint64).max()) <= limit - self.size  # a negative one is huge
        if not fits or (self.size > 1 and int(np.bitwise_or.reduce(index)) & (self.size - 1)):
            return self._faulty(gang, space, lanes, index, limit)
        if space in ("global", "const"):
            words = self.flags.take(index >> self.shift, axis=0)
            allocated = _pattern(ALLOCATED, self.word)
            if not (words & allocated == allocated).all():
                return self._faulty(gang, space, lanes, index, limit)
            return index, words, None
        if space == "shared":
            index = index + (gang.shared_base if lanes is None else gang.shared_base[lanes])
            return index, self._shared_flags(gang).take(index >> self.shift, axis=0) if self.run.checking else None, None
        if space == "local":
            index = index + (np.arange(gang.lanes) if lanes is None else lanes) * gang.local_stride
        return index, None, None

    def _faulty(self, gang: Gang, space: str, lanes: Array | None, index: Array,
                limit: int) -> tuple[Array, Array | None, Array]:
        """Report the lanes whose address is wrong; locate the others."""
        everyone = np.arange(gang.lanes) if lanes is None else lanes
        misaligned = index & (self.size - 1) != 0
        outside = (index < 0) | (index > limit - self.size)
        safe = np.where(misaligned | outside, 0, index)
        words = None
        if space in ("global", "const"):
            words = self.flags[safe >> self.shift]
            allocated = _pattern(ALLOCATED, self.word)
            given = words & allocated == allocated
            outside |= ~(given if given.ndim == 1 else given.all(axis=1)) & ~misaligned
        elif space == "shared":
            safe = safe + gang.shared_base[everyone]
            words = self._shared_flags(gang)[safe >> self.shift] if self.run.checking else None
        elif space == "local":
            safe = safe + everyone * gang.local_stride
        self._report(gang, "misaligned", misaligned, everyone, space, index)
        self._report(gang, "out of bounds", outside & ~misaligned, everyone, space, index)
        return safe, words, ~(misaligned | outside)

    # ---------------------------------------------------------------- at good addresses
    def _at(self, gang: Gang, space: str, lanes: Array | None, index: Array, words: Array | None,
            values: Sequence[Array] | None) -> list[Array]:
        """Count, check and carry out."""
        if self.looked_at:
            self._look(gang, space, lanes, index, words)
        memory = self._memory(gang, space)
        cell = index >> self.shift
        if gang.eager and self.use.atomic:
            gang.poll(np.arange(gang.lanes) if lanes is None else lanes, index, self.site)
        if values is None:
            found = memory.take(cell, axis=0)
            several = self.memory.elements > 1
            return [np.ascontiguousarray(found[:, q]) for q in range(self.memory.elements)] if several else [found]
        raw = [value.view(self.raw) for value in values]
        if self.operation.role == "atomic":
            return [self._in_order(gang, memory, cell, raw, lanes)]
        if gang.eager:
            old = memory[cell]
            new = raw[0] if self.memory.elements == 1 else np.stack(raw, axis=1)
            if (old != new).any():
                gang.changed((np.arange(gang.lanes) if lanes is None else lanes)[
                    (old != new) if old.ndim == 1 else (old != new).any(axis=1)])
        if self.memory.elements == 1:
            memory[cell] = raw[0]
        else:
            for q, value in enumerate(raw):
                memory[cell, q] = value
        return []

    def _memory(self, gang: Gang, space: str) -> Array:
        """The bytes of a space as elements, [accesses, elements] for vectors."""
        if space in ("global", "const"):
            return self.arena
        return _rows({"shared": gang.shared, "local": gang.local, "param": gang.parameters}[space].view(self.raw),
                     self.memory.elements)

    def _shared_flags(self, gang: Gang) -> Array:
        return _rows(gang.shared_flags.view(self.word), self.size // self.word.itemsize)

    # ---------------------------------------------------------------- counting and checking
    def _look(self, gang: Gang, space: str, lanes: Array | None, index: Array, words: Array | None) -> None:
        run = self.run
        if run.job.counting and space != "param":
            self._count(gang, space, lanes, index)
        if words is None or (space == "const"):
            return
        if space == "global":
            self._mark(gang, self.flags, lanes, index, words, "global memory")
        else:
            self._mark(gang, self._shared_flags(gang), lanes, index, words, "shared memory")
        if not run.checking:
            return
        if self.use.atomic:
            self._tell(gang, np.arange(gang.lanes) if lanes is None else lanes, index, space)
        (gang.watch.shared if space == "shared" else gang.watch.everyone)(gang, lanes, index, self.use)

    def _count(self, gang: Gang, space: str, lanes: Array | None, index: Array) -> None:
        generic_shared = space == "shared" and self.memory.space == "generic"
        if self.memory.space == "generic" and space == "local":
            return
        row = (self.run.tally.shared_sites if generic_shared else self.run.tally.sites)[self.site]
        row[REQUESTS] += gang.rows if lanes is None else rows_of(lanes)
        row[LANES] += len(index)
        if space not in ("global", "shared"):
            return
        if lanes is None:
            units, ideal = self._alike(space, index.reshape(-1, 32))
        elif space == "global":
            units, ideal = sectors(lanes >> 5, index, self.size)
        else:
            units, ideal = self._wavefronts(lanes, index)
        row[UNITS] += units
        row[IDEAL] += ideal

    def _alike(self, space: str, index: Array) -> tuple[int, int]:
        """Sectors or wavefronts of whole warps [n, 32]; a pattern met before, or of all warps, is not looked at again."""
        begin = index[:, :1]
        pattern = index - begin
        alike = bool((pattern == pattern[0]).all())
        offset = 0
        if space == "global":
            offset = int(begin[0, 0]) & 31
            if not alike or not (begin & 31 == offset).all():
                return sectors(np.arange(index.size) >> 5, index.reshape(-1), self.size)
        factor, several = (len(index), index[:1]) if alike else (1, index)
        key = (space, offset, len(several), pattern[: len(several)].tobytes())
        found = self.patterns.get(key)
        if found is None:
            if len(self.patterns) > _MOST_PATTERNS:
                self.patterns.clear()
            if space == "global":
                found = sectors(np.zeros(32, np.int64), several[0], self.size)
            else:
                one, best = wavefronts(several, None, self.size, not self.writes)
                found = int(one.sum()), int(best.sum())
            self.patterns[key] = found
        return found[0] * factor, found[1] * factor

    def _wavefronts(self, lanes: Array, index: Array) -> tuple[int, int]:
        """Shared addresses of some lanes by warp; blocks begin at bank 0, so that an index tells the bank as well."""
        row = lanes >> 5
        number = np.concatenate(([0], np.cumsum(row[1:] != row[:-1])))
        if len(lanes) == 32 * int(number[-1] + 1):
            return self._alike("shared", index.reshape(-1, 32))
        where = number * 32 + (lanes & 31)
        active = np.zeros(32 * int(number[-1] + 1), bool)
        active[where] = True
        address = np.zeros(len(active), np.int64)
        address[where] = index
        units, ideal = wavefronts(address.reshape(-1, 32), active.reshape(-1, 32), self.size, not self.writes)
        return int(units.sum()), int(ideal.sum())

    def _mark(self, gang: Gang, flags: Array, lanes: Array | None, index: Array, words: Array, where: str) -> None:
        """Note what is read and written; report bytes that nobody wrote and writes to read-only data."""
        checking, shared = self.run.checking, where == "shared memory"
        if self.writes:
            wanted = ALLOCATED * (not shared) | INITIALISED | WRITTEN * (not shared)
            usual = wanted
        else:
            nc = READ_ONLY if self.memory.read_only and checking else 0
            wanted = INITIALISED if shared else ALLOCATED | INITIALISED | READ | nc
            usual = wanted if shared or nc else ALLOCATED | INITIALISED | WRITTEN
        done = words & _pattern(wanted, self.word) == _pattern(wanted, self.word)
        if done.all():
            return
        if usual != wanted:
            done |= words & _pattern(usual, self.word) == _pattern(usual, self.word)
        some = np.flatnonzero(~(done if done.ndim == 1 else done.all(axis=1)))
        if not len(some):
            return
        words, cell = words[some], index[some] >> self.shift
        if checking:
            self._known(gang, (np.arange(gang.lanes) if lanes is None else lanes)[some], index[some], words, shared)
        if self.writes:
            flags[cell] = words | _pattern(INITIALISED if shared else INITIALISED | WRITTEN, self.word)
        elif not shared:
            read = _pattern(READ, self.word)
            unwritten = read & ~(words >> self.word.type(1))  # the bit of WRITTEN lies next to that of READ
            flags[cell] = words | unwritten | _pattern(nc, self.word)

    def _known(self, gang: Gang, lanes: Array, index: Array, words: Array, shared: bool) -> None:
        """Report what the flags of these bytes forbid."""
        space = "shared" if shared else "global"
        address = index % gang.shared_stride if shared else index
        if self.operation.role != "store":
            initialised = _pattern(INITIALISED, self.word)
            self._report(gang, "uninitialised", _any(words & initialised != initialised), lanes, space, address)
        if not shared and self.writes:
            self._report(gang, "read-only load", _any(words & _pattern(READ_ONLY, self.word) != 0), lanes, space, address)
        elif not shared and self.memory.read_only:
            self._report(gang, "read-only load", _any(words & _pattern(WRITTEN, self.word) != 0), lanes, space, address)

    def _report(self, gang: Gang, kind: str, bad: Array, lanes: Array, space: str, index: Array) -> None:
        """A fault of the lanes for which `bad` holds."""
        if not bad.any():
            return
        chosen, first = lanes[bad], int(index[bad][0])
        if space in ("global", "const"):
            where = self.run.arena.where(GLOBAL_BASE + first)
        else:
            whose, limit = ("thread", self.run.program.local_bytes) if space == "local" else ("block", self.run.shared_bytes)
            where = f"byte {first:,} of the {whose}'s {limit:,} B of {space} memory"
        together = int((chosen >> 5 == chosen[0] >> 5).sum())
        gang.fault(kind, self.site, access_words(kind, self.operation.role, self.size, where, together), chosen)

    def _tell(self, gang: Gang, lanes: Array, index: Array, space: str) -> None:
        """Tell the detector of accesses that may release or acquire."""
        memory, detector = self.memory, self.run.detector
        if not (detector.releasing or memory.releases):
            return
        base = GLOBAL_BASE if space == "global" else 0
        row, place = lanes >> 5, (index % gang.shared_stride if space == "shared" else index)
        _, first = np.unique(np.stack([row, place]), axis=1, return_index=True)
        for position in np.sort(first).tolist():
            slot = int(gang.slot[lanes[position]])
            warp = int(gang.thread[lanes[position]]) >> 5
            reads, at = self.operation.role != "store", base + int(place[position])
            detector.strong(int(gang.block[slot]), warp, at, reads, self.writes, memory.acquires, memory.releases, memory.scope)
            if memory.releases:
                gang.stamps.tick(slot)

    # ---------------------------------------------------------------- atomics
    def _in_order(self, gang: Gang, memory: Array, cell: Array, raw: list[Array], lanes: Array | None) -> Array:
        """One lane after the other where they meet in one place; gives the old values."""
        order = np.argsort(cell, kind="stable")
        place = cell[order]
        begins = np.concatenate(([True], place[1:] != place[:-1]))
        if begins.all():
            return self._apply(gang, memory, cell, raw, lanes)
        start = np.flatnonzero(begins)
        old = np.empty(len(cell), self.raw)
        if self.adds:
            old[order] = self._sums(gang, memory, place, start, raw[0][order], order if lanes is None else lanes[order])
            return old
        turn = np.arange(len(cell)) - np.repeat(start, np.diff(np.append(start, len(cell))))
        by_turn = np.argsort(turn, kind="stable")
        ends = np.cumsum(np.bincount(turn))
        for first, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            some = order[by_turn[first:end]]
            values = [value[some] for value in raw]
            old[some] = self._apply(gang, memory, cell[some], values, some if lanes is None else lanes[some])
        return old

    def _apply(self, gang: Gang, memory: Array, cell: Array, raw: list[Array], lanes: Array | None) -> Array:
        """The atomic of lanes that all have places of their own."""
        old = memory[cell]
        compute: Any = self.operation.compute
        new = np.asarray(compute(old.view(self.dtype), *(value.view(self.dtype) for value in raw))).view(self.raw)
        memory[cell] = new
        if gang.eager and (old != new).any():
            gang.changed((np.arange(gang.lanes) if lanes is None else lanes)[old != new])
        return old

    def _sums(self, gang: Gang, memory: Array, place: Array, start: Array, values: Array, lanes: Array) -> Array:
        """Integer additions, sorted by place: old values by running sums, which wrap as the additions would."""
        running = np.cumsum(values, dtype=self.raw)
        before = (running - values)[start]
        lengths = np.diff(np.append(start, len(place)))
        old = memory[place] + (running - values) - np.repeat(before, lengths)
        last = start + lengths - 1
        memory[place[last]] = old[last] + values[last]
        if gang.eager and values.any():
            gang.changed(lanes[values != 0])
        return old


def _rows(array: Array, width: int) -> Array:
    return array if width == 1 else array.reshape(-1, width)


def _pattern(flags: int, word: np.dtype) -> Any:
    """Flags of one byte, for every byte of a word."""
    return word.type(flags * (_BYTES & (1 << 8 * word.itemsize) - 1))


def _any(bad: Array) -> Array:
    return bad if bad.ndim == 1 else bad.any(axis=1)


def _adds_integers(operation: Operation, memory: Memory) -> bool:
    modifiers = operation.instruction.modifiers
    return operation.role == "atomic" and "add" in modifiers and modifiers[-1] in ("u32", "s32", "u64", "s64")
