"""Compiled checks of memory: bytes that nobody wrote, read-only data, and who used each place last (candidates for races).

What `accesses` and `cells` do for the numpy machine, lane by lane. Only candidates go to Python, where `Detector` decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from llvmlite import ir

from perflab.emulator.cells import ATOMIC, CLOCK_SHIFT, SITE_SHIFT, THREAD
from perflab.emulator.memory import INITIALISED, READ, READ_ONLY, WRITTEN
from perflab.emulator.operations import Operation
from perflab.emulator.vector.calls import call_event
from perflab.emulator.vector.flow import I1, I64, POINTER, Flow, function, number, offsets
from perflab.emulator.vector.layout import CONTEXT_AT, RECORD, WARP_AT
from perflab.emulator.vector.shuffles import filled
from perflab.emulator.vector.values import I32, INTEGERS, broadcast

CELL = np.dtype([("writer", "i8"), ("reader", "i8"), ("before", "i8"), ("writer_block", "i4"), ("reader_block", "i4"),
                 ("before_block", "i4"), ("pad", "i4")])
"""Of one granule of memory: records of its last writer, its last reader, and the last reader that was another thread, as in
`cells`; the blocks they belong to, plus 1. Shared memory keeps those of blocks before: their numbers tell."""
CELL_AT = offsets(CELL)
_WARP = THREAD & ~31
LARGEST_GRANULE = 16


@dataclass(frozen=True)
class Watched:
    """How an instruction uses memory."""

    lane_bytes: int
    reads: bool
    writes: bool
    atomic: bool  # or strong
    read_only: bool
    releases: bool

    @staticmethod
    def of(operation: Operation) -> Watched:
        """Of a load, store or atomic."""
        memory, role = operation.memory, operation.role
        assert memory is not None
        return Watched(memory.size_bytes * memory.elements, role != "store", role != "load",
                       role == "atomic" or memory.strong, memory.read_only, memory.releases)

    def __str__(self) -> str:
        return f"{self.lane_bytes}" + "".join(str(int(flag)) for flag in (
            self.reads, self.writes, self.atomic, self.read_only, self.releases))


def granules(operations: Iterable[Operation]) -> dict[str, int]:
    """Bytes of a cell in shared and global memory: the smallest access there."""
    found = {"shared": LARGEST_GRANULE, "global": LARGEST_GRANULE}
    for operation in operations:
        if operation.memory is not None:
            size = operation.memory.size_bytes * operation.memory.elements
            for space in found:
                if operation.memory.space in (space, "generic"):
                    found[space] = min(found[space], size)
    return found


@dataclass(frozen=True)
class Checks:
    """granule: bytes of a cell by space; block_scope: some atomics are atomic for their block alone."""

    module: ir.Module
    granule: dict[str, int]
    block_scope: bool

    def function(self, space: str, use: Watched) -> ir.Function:
        """void check(context, warp, record, mask, addresses in memory): before the access."""
        name = f"check_{space}_{use}"
        if name in self.module.globals:
            return self.module.globals[name]
        made, code = function(self.module, name, ir.VoidType(), [POINTER, POINTER, POINTER, I32, POINTER])
        context, warp, record, mask, places = made.args
        _Flags(code, space, use, made.args).write()
        if use.atomic:
            wanted = code.icmp_signed("!=", code.get(I64, context, CONTEXT_AT["releasing"], 8), number(0))
            with code.if_then(code.or_(wanted, number(int(use.releases), I1))):
                call_event(code, context, f"strong.{space}", record, warp, mask, places)
        if not use.read_only:  # a write to what is loaded as read-only is a fault of its own
            code.call(self._cells(space, use), made.args)
        code.ret_void()
        return made

    # ---------------------------------------------------------------- who used it last
    def _cells(self, space: str, use: Watched) -> ir.Function:
        """void cells(context, warp, record, mask, places): compare with the records of each lane's place, then record."""
        name = f"cells_{space}_{use}"
        if name in self.module.globals:
            return self.module.globals[name]
        made, code = function(self.module, name, ir.VoidType(), [POINTER, POINTER, POINTER, I32, POINTER])
        context, warp, record, mask, places = made.args
        granule = self.granule[space]
        site = code.udiv(code.sub(code.ptrtoint(record, I64), code.get(I64, context, CONTEXT_AT["records"], 8)),
                         number(RECORD.itemsize))
        thread = code.shl(code.zext(code.get(I32, warp, WARP_AT["index"]), I64), number(5))
        stamp = code.or_(code.shl(code.get(I64, context, CONTEXT_AT["clock"], 8), number(CLOCK_SHIFT)),
                         code.or_(code.shl(site, number(SITE_SHIFT)), thread))
        first_lane = code.or_(stamp, number(ATOMIC)) if use.atomic else stamp
        block = code.add(code.get(I64, context, CONTEXT_AT["index"], 8), number(1))
        cells = code.get(I64, context, CONTEXT_AT["shared_cells" if space == "shared" else "cells"], 8)
        floors = (code.get(I64, context, CONTEXT_AT["floor"], 8), code.zext(code.get(I32, warp, WARP_AT["lane_floor"]), I64))
        with code.each_lane(self._few(code, mask, places) if not use.writes else mask) as lane:
            address, mine = code.get(I64, places, code.shl(lane, number(3)), 8), code.or_(first_lane, lane)
            first = code.lshr(address, number(granule.bit_length() - 1))
            with code.count_to(number(max(1, use.lane_bytes // granule))) as part:
                cell = code.inttoptr(code.add(cells, code.mul(code.add(first, part), number(CELL.itemsize))), POINTER)
                look = _Cell(self, code, space, use, (context, warp, record, address, lane), floors, cell, mine, block)
                for which in ("writer", "reader", "before") if use.writes else ("writer",):
                    look.compare(which)
                look.write() if use.writes else look.read()
        code.ret_void()
        return made

    @staticmethod
    def _few(code: Flow, mask: ir.Value, places: ir.Value) -> ir.Value:
        """Of lanes that read one place, the first and the last stand for all: whatever thread wrote it, one of them is another,
        and they are the two last readers."""
        first, last = code.first_lane(mask), code.last_lane(mask)
        address = code.get(I64, places, code.zext(code.shl(first, number(3, I32)), I64), 8)
        everywhere = code.get(INTEGERS[64], places, align=8)
        same = code.bitcast(code.icmp_signed("==", everywhere, broadcast(code, address)), I32)
        one_place = code.icmp_signed("==", code.and_(mask, code.not_(same)), number(0, I32))
        return code.select(one_place, code.or_(code.bit(first), code.bit(last)), mask)


@dataclass(frozen=True)
class _Cell:
    """One cell and one lane's access to it."""

    checks: Checks
    code: Flow
    space: str
    use: Watched
    arguments: tuple[ir.Value, ...]  # context, warp, record, address, lane
    floors: tuple[ir.Value, ir.Value]
    cell: ir.Value
    mine: ir.Value
    block: ir.Value

    def _get(self, which: str) -> tuple[ir.Value, ir.Value]:
        owner = self.code.get(I32, self.cell, CELL_AT[f"{which}_block"])
        return self.code.get(I64, self.cell, CELL_AT[which], 8), self.code.zext(owner, I64)

    def _put(self, which: str, record: ir.Value, owner: ir.Value) -> None:
        self.code.put(record, self.cell, CELL_AT[which], 8)
        self.code.put(self.code.trunc(owner, I32), self.cell, CELL_AT[f"{which}_block"])

    def compare(self, which: str) -> None:
        """Ask Python where a record may not be ordered before this access."""
        code = self.code
        earlier, owner = self._get(which)
        clock = code.lshr(earlier, number(CLOCK_SHIFT))
        recent = code.icmp_signed(">", clock, self.floors[0])
        differs = code.xor(earlier, self.mine)
        thread, other_warp = (code.icmp_signed("!=", code.and_(differs, number(bits)), number(0)) for bits in (THREAD, _WARP))
        since = code.icmp_signed(">", clock, self.floors[1])
        within = code.and_(code.and_(recent, thread), code.or_(other_warp, since))
        known, here = code.icmp_signed("!=", earlier, number(0)), code.icmp_signed("==", owner, self.block)
        found = code.and_(known, code.and_(here, within) if self.space == "shared" else code.or_(code.not_(here), within))
        if self.use.atomic and not self.checks.block_scope:
            found = code.and_(found, code.icmp_signed("==", code.and_(earlier, number(ATOMIC)), number(0)))
        with code.if_then(found, likely=False):
            self._ask(which, earlier, owner, code.or_(other_warp, code.not_(here)))

    def _ask(self, which: str, earlier: ir.Value, owner: ir.Value, apart: ir.Value) -> None:
        """Once for a pair of warps, clocks and sites; lanes of one warp each."""
        code, (context, warp, record, address, lane) = self.code, self.arguments
        pair = (code.and_(earlier, number(~31)), code.or_(code.shl(owner, number(1)), number(int(which == "writer"))),
                code.and_(self.mine, number(~31)))
        names = ("asked", "asked_of", "asked_by")
        same = apart
        for name, value in zip(names, pair, strict=True):
            same = code.and_(same, code.icmp_signed("==", code.get(I64, context, CONTEXT_AT[name], 8), value))
        with code.if_then(code.not_(same)):
            for name, value in zip(names, pair, strict=True):
                code.put(value, context, CONTEXT_AT[name], 8)
            words = code.slot(ir.ArrayType(I64, 5))
            for index, value in enumerate((earlier, owner, number(int(which == "writer")), self.mine, address)):
                code.put(value, words, 8 * index, 8)
            bit = code.bit(code.trunc(lane, I32))
            call_event(code, context, f"conflict.{self.space}", record, warp, bit, words)

    def write(self) -> None:
        """The last writer; readers before it are ordered before it, or were reported."""
        self._put("writer", self.mine, self.block)
        for which in ("reader", "before"):
            self.code.put(number(0), self.cell, CELL_AT[which], 8)

    def read(self) -> None:
        """The last reader, and the last one of another thread."""
        code = self.code
        last, owner = self._get("reader")
        here = code.icmp_signed("==", owner, self.block)
        again = code.and_(here, code.icmp_signed("==", last, self.mine))
        with code.if_then(code.not_(again)):
            other = code.icmp_signed("!=", code.and_(code.xor(last, self.mine), number(THREAD)), number(0))
            stays = code.and_(code.icmp_signed("!=", last, number(0)), code.or_(code.not_(here), other))
            with code.if_then(stays):
                self._put("before", last, owner)
            self._put("reader", self.mine, self.block)


class _Flags:
    """What is known of the bytes that a warp uses."""

    def __init__(self, code: Flow, space: str, use: Watched, arguments: tuple[ir.Value, ...]) -> None:
        self.code, self.space, self.use, self.arguments = code, space, use, arguments

    def write(self) -> None:
        """Reports and marks, lane by lane."""
        code, use, (context, warp, record, mask, places) = self.code, self.use, self.arguments
        unknown, forbidden = code.slot(I32, number(0, I32)), code.slot(I32, number(0, I32))
        base = code.get(I64, context, CONTEXT_AT["shared_flags" if self.space == "shared" else "flags"], 8)
        with code.each_lane(mask) as lane:
            address, bit = code.get(I64, places, code.shl(lane, number(3)), 8), code.bit(code.trunc(lane, I32))
            step = min(8, use.lane_bytes)
            for offset in range(0, use.lane_bytes, step):
                place = code.inttoptr(code.add(base, code.add(address, number(offset))), POINTER)
                word = code.get(ir.IntType(8 * step), place, align=1)
                if use.reads:
                    self._note(unknown, self._lacks(word, INITIALISED), bit)
                if self.space == "global" and (use.writes or use.read_only):
                    self._note(forbidden, self._has(word, READ_ONLY if use.writes else WRITTEN), bit)
                code.put(self._marked(word), place, align=1)
        for event, slot in (("uninitialised", unknown), ("read_only", forbidden)):
            lanes = code.load(slot, typ=I32)
            with code.if_then(code.icmp_signed("!=", lanes, number(0, I32)), likely=False):
                call_event(code, context, f"{event}.{self.space}", record, warp, lanes, places)

    def _note(self, slot: ir.Value, happens: ir.Value, bit: ir.Value) -> None:
        old = self.code.load(slot, typ=I32)
        self.code.store(self.code.select(happens, self.code.or_(old, bit), old), slot)

    def _lacks(self, word: ir.Value, flag: int) -> ir.Value:
        every = filled(word.type, flag)
        return self.code.icmp_unsigned("!=", self.code.and_(word, every), every)

    def _has(self, word: ir.Value, flag: int) -> ir.Value:
        return self.code.icmp_unsigned("!=", self.code.and_(word, filled(word.type, flag)), number(0, word.type))

    def _marked(self, word: ir.Value) -> ir.Value:
        code, kind = self.code, word.type
        if self.use.writes:
            return code.or_(word, filled(kind, INITIALISED | (WRITTEN if self.space == "global" else 0)))
        if self.space == "shared":
            return word
        unwritten = code.and_(code.not_(code.lshr(word, number(1, kind))), filled(kind, READ))
        return code.or_(code.or_(word, unwritten), filled(kind, READ_ONLY if self.use.read_only else 0))
