"""An LLVM builder with loops, fields and byte addresses: what the vector machine's own code is written with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from llvmlite import ir

from perflab.emulator.vector.values import I32, INTEGERS, LANES, scalar_intrinsic

I1, I8, I16, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 64))
POINTER = ir.PointerType()
FULL = -1  # a mask of all 32 lanes


def number(value: int, kind: ir.IntType = I64) -> ir.Constant:
    """An integer constant, 64 bits unless said otherwise."""
    return ir.Constant(kind, value)


def ramp(bits: int, step: int = 1) -> ir.Constant:
    """Lane i holds i * step."""
    return ir.Constant(INTEGERS[bits], [lane * step for lane in range(LANES)])


class Flow(ir.IRBuilder):
    """An IRBuilder for one function whose entry block holds all stack slots."""

    # ---------------------------------------------------------------- memory
    def at(self, base: ir.Value, offset: int | ir.Value) -> ir.Value:
        """base + offset bytes."""
        if isinstance(offset, int):
            if not offset:
                return base
            offset = number(offset)
        return self.gep(base, [offset], source_etype=I8)

    def get(self, kind: ir.Type, base: ir.Value, offset: int | ir.Value = 0, align: int = 4) -> ir.Value:
        """A value of that type at base + offset."""
        return self.load(self.at(base, offset), align=align, typ=kind)

    def put(self, value: ir.Value, base: ir.Value, offset: int | ir.Value = 0, align: int = 4) -> None:
        """Store it at base + offset."""
        self.store(value, self.at(base, offset), align=align)

    def bump(self, base: ir.Value, offset: int, by: int | ir.Value) -> None:
        """A 64-bit counter at base + offset grows."""
        if isinstance(by, int):
            by = number(by)
        elif by.type.width < 64:
            by = self.zext(by, I64)
        self.put(self.add(self.get(I64, base, offset, 8), by), base, offset, 8)

    def slot(self, kind: ir.Type, start: ir.Value | None = None, align: int = 0) -> ir.Value:
        """A place on the stack, made once for the function; `start` is stored here and now."""
        with self.goto_entry_block():
            place = self.alloca(kind)
        place.type = POINTER
        if align:
            place.align = align
        if start is not None:
            self.store(start, place, align=align or None)
        return place

    # ---------------------------------------------------------------- lanes
    def first_lane(self, mask: ir.Value) -> ir.Value:
        """The lowest lane of an i32 mask, i32; 32 for none."""
        return self.call_intrinsic("cttz", mask)

    def last_lane(self, mask: ir.Value) -> ir.Value:
        """The highest lane of a mask that is not empty."""
        return self.sub(number(31, I32), self.call_intrinsic("ctlz", mask))

    def call_intrinsic(self, name: str, mask: ir.Value) -> ir.Value:
        """llvm.cttz, ctlz of a scalar."""
        full = f"llvm.{name}.i{mask.type.width}"
        known = self.module.globals.get(full) or ir.Function(self.module, ir.FunctionType(mask.type, [mask.type, I1]), full)
        return self.call(known, [mask, number(0, I1)])

    def bit(self, lane: ir.Value) -> ir.Value:
        """The mask of one lane (i32)."""
        return self.shl(number(1, I32), lane)

    def lanes(self, mask: ir.Value) -> ir.Value:
        """How many lanes a mask has, i64."""
        return self.zext(scalar_intrinsic(self, "ctpop", mask), I64)

    def all_zero(self, vector: ir.Value) -> ir.Value:
        """i1: is every lane zero?"""
        return self.icmp_signed("==", self.together("or", vector), number(0, vector.type.element))

    def together(self, name: str, vector: ir.Value) -> ir.Value:
        """llvm.vector.reduce.<name> of integer lanes."""
        element = vector.type.element
        full = f"llvm.vector.reduce.{name}.v{vector.type.count}i{element.width}"
        known = self.module.globals.get(full) or ir.Function(self.module, ir.FunctionType(element, [vector.type]), full)
        return self.call(known, [vector])

    # ---------------------------------------------------------------- control
    def new_blocks(self, *names: str) -> list[ir.Block]:
        """Blocks, appended to the function."""
        return [self.append_basic_block(name) for name in names]

    @contextmanager
    def each_lane(self, mask: ir.Value) -> Iterator[ir.Value]:
        """The lanes of a mask, lowest first; gives the lane as i64."""
        left = self.slot(I32, mask)
        head, body, done = self.new_blocks("lanes", "lane", "lanes_end")
        self.branch(head)
        self.position_at_end(head)
        now = self.load(left, typ=I32)
        self.cbranch(self.icmp_signed("==", now, number(0, I32)), done, body)
        self.position_at_end(body)
        self.store(self.and_(now, self.sub(now, number(1, I32))), left)
        yield self.zext(self.first_lane(now), I64)
        self.branch(head)
        self.position_at_end(done)

    @contextmanager
    def count_to(self, end: ir.Value) -> Iterator[ir.Value]:
        """0, 1, … end - 1, as i64. `self.leave` inside is not possible: put a condition in."""
        index = self.slot(I64, number(0))
        head, body, done = self.new_blocks("times", "time", "times_end")
        self.branch(head)
        self.position_at_end(head)
        now = self.load(index, typ=I64)
        self.cbranch(self.icmp_signed("<", now, end), body, done)
        self.position_at_end(body)
        yield now
        self.store(self.add(now, number(1)), index)
        self.branch(head)
        self.position_at_end(done)

    @contextmanager
    def repeat(self, again: ir.Value) -> Iterator[None]:
        """Runs the body while the i1 in the slot `again` is true; at least once."""
        body, done = self.new_blocks("again", "again_end")
        self.branch(body)
        self.position_at_end(body)
        yield
        self.cbranch(self.load(again, typ=I1), body, done)
        self.position_at_end(done)


def function(module: ir.Module, name: str, result: ir.Type, arguments: Sequence[ir.Type], *, inner: bool = True,
             cold: bool = False) -> tuple[ir.Function, Flow]:
    """A new function and a builder in it. inner: only seen in the module, never inlined; cold: rarely run."""
    made = ir.Function(module, ir.FunctionType(result, arguments), name)
    if inner:
        made.linkage = "internal"
        made.attributes.add("noinline")
    if cold:
        made.attributes.add("cold")
    made.attributes.add("nounwind")
    slots, start = made.append_basic_block("slots"), made.append_basic_block("start")
    code = Flow(slots)
    code.branch(start)
    code.position_at_end(start)
    return made, code


def offsets(kind: np.dtype) -> dict[str, int]:
    """Byte offsets of a structure's fields."""
    return {name: kind.fields[name][1] for name in kind.names or ()} if kind.fields else {}
