"""Compiled atomics: lane after lane, lowest first, so that float sums have a fixed order."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from perflab.emulator.operations import Operation
from perflab.emulator.vector.calls import call_event
from perflab.emulator.vector.flow import I1, I64, Flow, function, number
from perflab.emulator.vector.memory import SIDE_TYPES, Memories, Shape, Sides, note_change, note_poll
from perflab.emulator.vector.units import mark_lane
from perflab.emulator.vector.values import BITS, I32, INTEGERS

_FLOATS = {"f32": ir.FloatType(), "f64": ir.DoubleType()}
Rule = Callable[[Flow, ir.Value, list[ir.Value]], ir.Value]


def _pick(sign: str, signed: bool) -> Rule:
    def rule(code: Flow, old: ir.Value, values: list[ir.Value]) -> ir.Value:
        compare = code.icmp_signed if signed else code.icmp_unsigned
        return code.select(compare(sign, old, values[0]), old, values[0])

    return rule


def _increment(code: Flow, old: ir.Value, values: list[ir.Value]) -> ir.Value:
    zero, one = number(0, old.type), number(1, old.type)
    return code.select(code.icmp_unsigned(">=", old, values[0]), zero, code.add(old, one))


def _decrement(code: Flow, old: ir.Value, values: list[ir.Value]) -> ir.Value:
    zero, one = number(0, old.type), number(1, old.type)
    wraps = code.or_(code.icmp_unsigned("==", old, zero), code.icmp_unsigned(">", old, values[0]))
    return code.select(wraps, values[0], code.sub(old, one))


def _float_add(kind: str, flushes: bool) -> Rule:
    """Rounded to nearest, canonical NaN; an f32 in global memory loses its subnormals."""
    bits, fraction = BITS[kind], 23 if kind == "f32" else 52
    exponent = ((1 << (bits - 1 - fraction)) - 1) << fraction
    nan = 0x7FFFFFFF if kind == "f32" else 0x7FF8000000000000

    def flushed(code: Flow, value: ir.Value) -> ir.Value:
        if not flushes:
            return value
        zero = code.icmp_unsigned("==", code.and_(value, number(exponent, value.type)), number(0, value.type))
        return code.select(zero, code.and_(value, number(1 << (bits - 1), value.type)), value)

    def rule(code: Flow, old: ir.Value, values: list[ir.Value]) -> ir.Value:
        a, b = (code.bitcast(flushed(code, value), _FLOATS[kind]) for value in (old, values[0]))
        total = code.fadd(a, b)
        raw = code.bitcast(total, old.type)
        return code.select(code.fcmp_unordered("uno", total, total), number(nan, old.type), flushed(code, raw))

    return rule


def _rule(operation: Operation) -> tuple[str, Rule] | None:
    """A name and code for (old, values) -> new; None where Python must compute it."""
    kind, memory = operation.inputs[0].type, operation.memory
    assert memory is not None
    names = ("add", "min", "max", "and", "or", "xor", "exch", "inc", "dec", "cas")
    name = next((m for m in operation.instruction.modifiers if m in names), "")
    if kind in _FLOATS and name == "add":
        keeps = kind == "f64" or "noftz" in operation.instruction.modifiers or memory.space == "shared"
        return (f"{kind}_add{'' if keeps else '_ftz'}", _float_add(kind, not keeps))
    if kind not in ("u32", "s32", "u64", "s64", "u16") or any(m.endswith("x2") for m in operation.instruction.modifiers):
        return None
    signed = kind[0] == "s"
    rules: dict[str, Rule] = {
        "add": lambda code, old, v: code.add(old, v[0]), "and": lambda code, old, v: code.and_(old, v[0]),
        "or": lambda code, old, v: code.or_(old, v[0]), "xor": lambda code, old, v: code.xor(old, v[0]),
        "exch": lambda code, old, v: v[0], "inc": _increment, "dec": _decrement, "min": _pick("<", signed),
        "max": _pick(">", signed), "cas": lambda code, old, v: code.select(code.icmp_unsigned("==", old, v[0]), v[1], old)}
    return (f"{kind}_{name}", rules[name]) if name in rules else None


def atomic(memories: Memories, operation: Operation) -> ir.Function:
    """<32 x iN> atomic(context, warp, record, mask, addresses, values …): what was there before; not (for inactive lanes) 0."""
    assert operation.memory is not None
    shape, space = Shape.of(operation, memories.checks is not None), operation.memory.space
    found = _rule(operation)
    name = f"atomic_{space}_{found[0] if found else 'python'}_{shape}_{len(operation.inputs)}"
    return _make(memories, name, space, shape, found[1] if found else _in_python, len(operation.inputs))


def _make(memories: Memories, name: str, space: str, shape: Shape, rule: Rule, values: int) -> ir.Function:
    module, vector = memories.module, INTEGERS[shape.bits]
    if name in module.globals:
        return module.globals[name]
    made, code = function(module, name, vector, [*SIDE_TYPES, *[vector] * values])
    sides = Sides(*made.args[:5])
    result = code.slot(vector, ir.Constant(vector, None), align=32)
    if space == "generic":
        for part, lanes, addresses, record in memories.spaces(code, sides):
            with code.if_then(code.icmp_signed("!=", lanes, number(0, I32))):
                inner = _make(memories, name.replace("generic", part, 1), part, shape, rule, values)
                old = code.call(inner, [sides.context, sides.warp, record, lanes, addresses, *made.args[5:]])
                code.store(code.select(code.bitcast(lanes, INTEGERS[1]), old, code.load(result, typ=vector)), result)
    else:
        _each_lane(code, memories, space, shape, sides, made.args[5:], rule, result)
    code.ret(code.load(result, typ=vector))
    return made


def _each_lane(code: Flow, memories: Memories, space: str, shape: Shape, sides: Sides, values: list[ir.Value], rule: Rule,
               result: ir.Value) -> None:
    good, filled = memories.general(code, space, shape, sides)
    memories.note(code, space, shape, sides, good, filled, load=False)
    places = code.slot(INTEGERS[64], sides.addresses)
    given = [code.slot(value.type, value) for value in values]
    kind, size = ir.IntType(shape.bits), shape.bits // 8
    # what Python needs, should it be asked: old, values, then room for the new value
    words = code.slot(ir.ArrayType(I64, 4))
    changed = code.slot(I1, number(0, I1))
    with code.each_lane(good) as lane:
        address = code.get(I64, places, code.shl(lane, number(3)), 8)
        host, mine = memories.host(code, space, sides, address, lane), code.mul(lane, number(size))
        old = code.get(kind, host, align=1)
        code.put(old, result, mine, align=1)
        items = [code.get(kind, place, mine, align=1) for place in given]
        if rule is _in_python:
            for index, item in enumerate((old, *items)):
                code.put(code.zext(item, I64) if shape.bits < 64 else item, words, 8 * index, 8)
            call_event(code, sides.context, "atomic", sides.record, sides.warp, code.bit(code.trunc(lane, I32)), words)
            new = code.get(I64, words, 24, 8)
            new = code.trunc(new, kind) if shape.bits < 64 else new
        else:
            new = rule(code, old, items)
        code.put(new, host, align=1)
        code.store(code.or_(code.load(changed, typ=I1), code.icmp_unsigned("!=", old, new)), changed)
        if memories.counting and space == "global" and not memories.checks:
            mark_lane(code, memories.marks(code, sides.context, address), size, True)
    with code.if_else(code.load(changed, typ=I1)) as (moves, polls):
        with moves:
            note_change(code, sides)
        with polls:
            note_poll(code, sides, filled)


def _in_python(code: Flow, old: ir.Value, values: list[ir.Value]) -> ir.Value:
    raise NotImplementedError  # a mark: the event "atomic" computes it
