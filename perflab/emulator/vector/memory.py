"""Compiled loads and stores of 32 lanes: one function a space and shape, shared by all instructions of that kind.

Fast where the lanes lie together or all at one place; else lane by lane. Every address is checked: a lane that faults loads 0,
its store is dropped, and Python is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from perflab.emulator.memory import GLOBAL_BASE, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES
from perflab.emulator.operations import Operation
from perflab.emulator.vector.calls import call_event
from perflab.emulator.vector.checks import Checks, Watched
from perflab.emulator.vector.flow import I1, I8, I64, POINTER, Flow, function, number, ramp
from perflab.emulator.vector.layout import CONTEXT_AT, RECORD_AT, WARP_AT, Layout
from perflab.emulator.vector.shuffles import apart, lane_kind, together
from perflab.emulator.vector.units import broadcast_units, contiguous_units, count, mark_all, mark_lane, scattered_units
from perflab.emulator.vector.values import I32, INTEGERS, LANES, broadcast, popcount, splat

WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW}


@dataclass(frozen=True)
class Shape:
    """What a lane moves: `elements` items of `bits` each. strong: may be used to wait for others; use: how it is checked."""

    bits: int
    elements: int
    strong: bool = False
    use: Watched | None = None

    @staticmethod
    def of(operation: Operation, checking: bool) -> Shape:
        """Of a load, store or atomic."""
        memory = operation.memory
        assert memory is not None
        return Shape(8 * memory.size_bytes, memory.elements, memory.strong, Watched.of(operation) if checking else None)

    def __str__(self) -> str:
        return f"{self.bits}_{self.elements}{'_strong' * self.strong}{'' if self.use is None else f'_{self.use}'}"

    @property
    def lane_bytes(self) -> int:
        """Bytes of a lane."""
        return self.bits * self.elements // 8

    @property
    def vectors(self) -> list[ir.Type]:
        """The types of its vectors."""
        return [INTEGERS[self.bits]] * self.elements


@dataclass(frozen=True)
class Sides:
    """The arguments every memory function begins with."""

    context: ir.Value
    warp: ir.Value
    record: ir.Value
    mask: ir.Value
    addresses: ir.Value


SIDE_TYPES = [POINTER, POINTER, POINTER, I32, INTEGERS[64]]


class Memories:
    """The memory functions of one module. counting: fill the records and the marks; eager: threads may wait for each other by
    memory, so that stores and polls are noted; checks: look at every access of global and shared memory."""

    def __init__(self, module: ir.Module, layout: Layout, counting: bool, eager: bool, checks: Checks | None) -> None:
        self.module, self.layout = module, layout
        self.counting, self.eager, self.checks = counting, eager, checks

    # ---------------------------------------------------------------- the functions
    def load(self, space: str, shape: Shape) -> ir.Function:
        """{vectors}(context, warp, record, mask, addresses): what the lanes of a mask that is not empty load; others give 0."""
        return self._make("load", space, shape, ir.LiteralStructType(shape.vectors), [])

    def store(self, space: str, shape: Shape) -> ir.Function:
        """void(context, warp, record, mask, addresses, vectors …)."""
        return self._make("store", space, shape, ir.VoidType(), shape.vectors)

    def _make(self, action: str, space: str, shape: Shape, result: ir.Type, more: list[ir.Type]) -> ir.Function:
        name = f"{action}_{space}_{shape}"
        if name in self.module.globals:
            return self.module.globals[name]
        made, code = function(self.module, name, result, [*SIDE_TYPES, *more])
        sides, values = Sides(*made.args[:5]), made.args[5:]
        if space == "generic":
            self._generic(code, action, shape, sides, values)
            return made
        if self.eager and action == "store" and space != "local":
            note_change(code, sides)
        if space != "local" and not (shape.strong or (shape.use and space in ("global", "shared"))):
            self._together(code, space, shape, sides, values)
        good, filled = self.general(code, space, shape, sides)
        if shape.strong and action == "load":
            note_poll(code, sides, filled)
        scratch = code.slot(ir.ArrayType(I8, LANES * shape.lane_bytes), align=32)
        if action == "load":
            code.store(ir.Constant(scratch.allocated_type, None), scratch)
        else:
            together(code, values, scratch)
        self.note(code, space, shape, sides, good, filled, action == "load")
        self._lane_by_lane(code, space, shape, sides, good, scratch, action == "store")
        self._return(code, action, apart(code, scratch, shape.bits, shape.elements) if action == "load" else [])
        return made

    @staticmethod
    def _return(code: Flow, action: str, values: Sequence[ir.Value]) -> None:
        if action == "store":
            code.ret_void()
            return
        whole: ir.Value = ir.Constant(ir.LiteralStructType([v.type for v in values]), ir.Undefined)
        for index, value in enumerate(values):
            whole = code.insert_value(whole, value, index)
        code.ret(whole)

    # ---------------------------------------------------------------- where memory lies
    def window(self, code: Flow, space: str, sides: Sides) -> tuple[ir.Value, ir.Value]:
        """First and last + 1 address that is surely good."""
        if space in ("global", "const"):
            return tuple(code.get(I64, sides.record, RECORD_AT[end], 8) for end in ("first", "last"))
        if space == "local":
            return number(0), number(self.layout.local_bytes)
        name = "shared_bytes" if space == "shared" else "parameter_bytes"
        return number(0), code.get(I64, sides.context, CONTEXT_AT[name], 8)

    def host(self, code: Flow, space: str, sides: Sides, address: ir.Value, lane: ir.Value | None = None) -> ir.Value:
        """Host address of a device address; `lane` matters for local memory."""
        if space == "local":
            place = code.add(address, code.mul(lane, number(self.layout.local_stride)))
            return code.at(sides.warp, code.add(place, number(self.layout.local)))
        base = {"shared": "shared", "param": "parameters"}.get(space, "arena")
        return code.inttoptr(code.add(code.get(I64, sides.context, CONTEXT_AT[base], 8), address), POINTER)

    def marks(self, code: Flow, context: ir.Value, address: ir.Value) -> ir.Value:
        """Host address of what this worker did with a byte of global memory."""
        return code.inttoptr(code.add(code.get(I64, context, CONTEXT_AT["marks"], 8), address), POINTER)

    # ---------------------------------------------------------------- lanes that lie together
    def _together(self, code: Flow, space: str, shape: Shape, sides: Sides, values: Sequence[ir.Value]) -> None:
        """Returns from the function where all 32 lanes lie side by side, or a load has them all at one place."""
        full, rest = code.new_blocks("full", "rest")
        code.cbranch(code.icmp_signed("==", sides.mask, number(-1, I32)), full, rest)
        code.position_at_end(full)
        first = code.extract_element(sides.addresses, number(0, I32))
        away = code.sub(sides.addresses, broadcast(code, first))
        for step in (shape.lane_bytes, 0):
            if step == 0 and values:
                continue
            fits = self._fits(code, space, shape, sides, first, LANES * step or shape.lane_bytes)
            lie = code.all_zero(code.xor(away, ramp(64, step)) if step else away)
            with code.if_then(code.and_(lie, fits)):
                self._at_once(code, space, shape, sides, values, first, step == 0)
        code.branch(rest)
        code.position_at_end(rest)

    def _fits(self, code: Flow, space: str, shape: Shape, sides: Sides, first: ir.Value, size: int) -> ir.Value:
        start, end = self.window(code, space, sides)
        away = code.sub(first, start)
        room = code.sub(code.sub(code.sub(end, start), number(size)), away)
        inside = code.icmp_signed(">=", code.or_(away, room), number(0))
        aligned = code.icmp_signed("==", code.and_(first, number(shape.lane_bytes - 1)), number(0))
        return code.and_(inside, aligned)

    def _at_once(self, code: Flow, space: str, shape: Shape, sides: Sides, values: Sequence[ir.Value], first: ir.Value,
                 same: bool) -> None:
        size, place = shape.lane_bytes, self.host(code, space, sides, first)
        if self.counting and space in ("global", "shared"):
            units, ideal = (broadcast_units(space, size),) * 2 if same else contiguous_units(code, space, first, size)
            count(code, sides.record, LANES, units, ideal)
            if space == "global":
                marks = self.marks(code, sides.context, first)
                if same:
                    mark_lane(code, marks, size, False)
                else:
                    mark_all(code, marks, size, bool(values))
        elif self.counting and space != "param":
            count(code, sides.record, LANES, 0, 0)
        if values:
            together(code, values, place)
            code.ret_void()
        elif same:
            kind = ir.IntType(shape.bits)
            items = [code.get(kind, place, shape.bits // 8 * e, align=1) for e in range(shape.elements)]
            self._return(code, "load", [broadcast(code, item) for item in items])
        else:
            self._return(code, "load", apart(code, place, shape.bits, shape.elements))

    # ---------------------------------------------------------------- any lanes
    def general(self, code: Flow, space: str, shape: Shape, sides: Sides) -> tuple[ir.Value, ir.Value]:
        """The lanes that may go on, and all addresses, those of other lanes made equal to one of them."""
        places = code.slot(INTEGERS[64], align=32)
        good, filled = code.slot(I32, sides.mask), code.slot(INTEGERS[64])
        code.store(code.call(filled_addresses(self.module), [sides.mask, sides.addresses]), filled)
        addresses = code.load(filled, typ=INTEGERS[64])
        start, end = self.window(code, space, sides)
        away = code.sub(addresses, broadcast(code, start))
        room = code.sub(broadcast(code, code.sub(code.sub(end, start), number(shape.lane_bytes))), away)
        wrong = code.lshr(code.together("or", code.or_(away, room)), number(63))
        crooked = code.and_(code.together("or", addresses), number(shape.lane_bytes - 1))
        with code.if_then(code.icmp_signed("!=", code.or_(wrong, crooked), number(0)), likely=False):
            code.store(sides.addresses, places, align=32)
            arguments = [sides.context, sides.warp, sides.record, sides.mask, places, *self.window(code, space, sides)]
            left = code.call(_verify(self.module, space, shape.lane_bytes), arguments)
            code.store(left, good)
            code.store(code.call(filled_addresses(self.module), [left, sides.addresses]), filled)
        return code.load(good, typ=I32), code.load(filled, typ=INTEGERS[64])

    def note(self, code: Flow, space: str, shape: Shape, sides: Sides, good: ir.Value, filled: ir.Value, load: bool) -> None:
        """Count and check the access of the lanes that may go on."""
        with code.if_then(code.icmp_signed("!=", good, number(0, I32))):
            if self.counting and space in ("global", "shared"):
                code.call(scattered_units(self.module, space, shape.lane_bytes, load), [sides.record, good, filled])
            elif self.counting and space != "param":
                count(code, sides.record, popcount(code, good), 0, 0)
            if self.checks and shape.use and space in ("global", "shared"):
                places = code.slot(INTEGERS[64], sides.addresses)
                code.call(self.checks.function(space, shape.use), [sides.context, sides.warp, sides.record, good, places])

    def _lane_by_lane(self, code: Flow, space: str, shape: Shape, sides: Sides, good: ir.Value, scratch: ir.Value,
                      writes: bool) -> None:
        places = code.slot(INTEGERS[64], align=32)
        code.store(sides.addresses, places, align=32)
        kind, size = lane_kind(shape.lane_bytes), shape.lane_bytes
        with code.each_lane(good) as lane:
            address = code.get(I64, places, code.shl(lane, number(3)), 8)
            place, mine = self.host(code, space, sides, address, lane), code.at(scratch, code.mul(lane, number(size)))
            source, target = (mine, place) if writes else (place, mine)
            code.put(code.get(kind, source, align=1), target, align=1)
            if self.counting and space == "global" and not self.checks:
                mark_lane(code, self.marks(code, sides.context, address), size, writes)

    # ---------------------------------------------------------------- generic addresses
    def _generic(self, code: Flow, action: str, shape: Shape, sides: Sides, values: Sequence[ir.Value]) -> None:
        """Each lane by the window its address lies in; mostly all lie in one."""
        kinds = shape.vectors if action == "load" else []
        results = [code.slot(kind, ir.Constant(kind, None)) for kind in kinds]
        for space, lanes, addresses, record in self.spaces(code, sides):
            with code.if_then(code.icmp_signed("!=", lanes, number(0, I32))):
                made = getattr(self, action)(space, shape)
                found = code.call(made, [sides.context, sides.warp, record, lanes, addresses, *values])
                for index, place in enumerate(results):
                    old, new = code.load(place, typ=kinds[index]), code.extract_value(found, index)
                    code.store(code.select(code.bitcast(lanes, INTEGERS[1]), new, old), place)
        self._return(code, action, [code.load(place, typ=kind) for place, kind in zip(results, kinds, strict=True)])

    def spaces(self, code: Flow, sides: Sides) -> list[tuple[str, ir.Value, ir.Value, ir.Value]]:
        """(space, its lanes, addresses in it, record) for each space a generic address can lie in."""
        found, rest = [], sides.mask
        windows = code.lshr(sides.addresses, splat(64, WINDOW_BYTES.bit_length() - 1))
        for space, window in WINDOWS.items():
            there = code.bitcast(code.icmp_signed("==", windows, splat(64, window // WINDOW_BYTES)), I32)
            lanes = code.and_(sides.mask, there)
            rest = code.and_(rest, code.not_(there))
            record = code.at(sides.record, RECORD_AT["shared" if space == "shared" else "other"])
            found.append((space, lanes, code.sub(sides.addresses, splat(64, window)), record))
        return [("global", rest, sides.addresses, sides.record), *found]


def note_change(code: Flow, sides: Sides) -> None:
    """A warp changed memory: what others wait for may have come, and it does not wait itself."""
    code.put(number(0, I32), sides.warp, WARP_AT["polls"])
    code.bump(sides.context, CONTEXT_AT["changes"], 1)


def note_poll(code: Flow, sides: Sides, filled: ir.Value) -> None:
    """A warp looks at memory that others may change: at one of the last two places again, or at a new one."""
    key = code.xor(code.together("add", filled), code.ptrtoint(sides.record, I64))
    first, second = (code.get(I64, sides.warp, WARP_AT["poll_keys"] + 8 * i, 8) for i in range(2))
    same, before = code.icmp_signed("==", key, first), code.icmp_signed("==", key, second)
    polls = code.add(code.get(I32, sides.warp, WARP_AT["polls"]), number(1, I32))
    code.put(code.select(code.or_(same, before), polls, number(0, I32)), sides.warp, WARP_AT["polls"])
    code.put(key, sides.warp, WARP_AT["poll_keys"], 8)
    code.put(code.select(same, second, first), sides.warp, WARP_AT["poll_keys"] + 8, 8)
    code.put(code.ptrtoint(sides.record, I64), sides.warp, WARP_AT["poll_record"], 8)


def filled_addresses(module: ir.Module) -> ir.Function:
    """<32 x i64> fill(mask, addresses): lanes outside the mask get the address of its last lane, or of the first where lane 0
    is outside, so that rising addresses stay rising."""
    if "fill" in module.globals:
        return module.globals["fill"]
    made, code = function(module, "fill", INTEGERS[64], [I32, INTEGERS[64]])
    mask, addresses = made.args
    partial = code.and_(code.icmp_signed("!=", mask, number(-1, I32)), code.icmp_signed("!=", mask, number(0, I32)))
    with code.if_then(code.not_(partial)):
        code.ret(addresses)
    place = code.slot(INTEGERS[64], addresses)
    first = code.icmp_signed("==", code.and_(mask, number(1, I32)), number(0, I32))
    lane = code.select(first, code.first_lane(mask), code.last_lane(mask))
    item = code.get(I64, place, code.zext(code.shl(lane, number(3, I32)), I64), 8)
    code.ret(code.select(code.bitcast(mask, INTEGERS[1]), addresses, broadcast(code, item)))
    return made


def _verify(module: ir.Module, space: str, lane_bytes: int) -> ir.Function:
    """i32 verify(context, warp, record, mask, places, first, last): the lanes that may go on; Python is told of the others."""
    kind = "global" if space in ("global", "const") else "window"
    name = f"verify_{kind}_{lane_bytes}"
    if name in module.globals:
        return module.globals[name]
    made, code = function(module, name, I32, [POINTER] * 3 + [I32, POINTER, I64, I64], cold=True)
    context, warp, record, mask, places, first, last = made.args
    good, crooked, outside = (code.slot(I32, number(0, I32)) for _ in range(3))
    with code.each_lane(mask) as lane:
        address, bit = code.get(I64, places, code.shl(lane, number(3)), 8), code.bit(code.trunc(lane, I32))
        aligned = code.icmp_signed("==", code.and_(address, number(lane_bytes - 1)), number(0))
        if kind == "global":
            inside = code.call(_search(module), [context, record, address, number(lane_bytes)])
        else:
            away = code.sub(address, first)
            room = code.sub(code.sub(code.sub(last, first), number(lane_bytes)), away)
            inside = code.icmp_signed(">=", code.or_(away, room), number(0))
        for place, wanted in ((crooked, code.not_(aligned)), (outside, code.and_(aligned, code.not_(inside))),
                              (good, code.and_(aligned, inside))):
            old = code.load(place, typ=I32)
            code.store(code.select(wanted, code.or_(old, bit), old), place)
    for event, place in (("alignment", crooked), ("bounds", outside)):
        lanes = code.load(place, typ=I32)
        with code.if_then(code.icmp_signed("!=", lanes, number(0, I32))):
            call_event(code, context, event, record, warp, lanes, places)
    code.ret(code.load(good, typ=I32))
    return made


def _search(module: ir.Module) -> ir.Function:
    """i1 search(context, record, address, bytes): is it in a buffer? The record remembers which."""
    if "search" in module.globals:
        return module.globals["search"]
    made, code = function(module, "search", I1, [POINTER, POINTER, I64, I64], cold=True)
    context, record, address, size = made.args
    buffers = code.inttoptr(code.get(I64, context, CONTEXT_AT["buffers"], 8), POINTER)
    end = code.add(address, size)
    with code.count_to(code.get(I64, context, CONTEXT_AT["buffer_count"], 8)) as index:
        here = code.at(buffers, code.shl(index, number(4)))
        first, last = code.get(I64, here, 0, 8), code.get(I64, here, 8, 8)
        after = code.and_(code.icmp_unsigned(">=", address, first), code.icmp_unsigned(">=", address, number(GLOBAL_BASE)))
        with code.if_then(code.and_(after, code.icmp_unsigned("<=", end, last))):
            code.put(first, record, RECORD_AT["first"], 8)
            code.put(last, record, RECORD_AT["last"], 8)
            code.ret(number(1, I1))
    code.ret(number(0, I1))
    return made
