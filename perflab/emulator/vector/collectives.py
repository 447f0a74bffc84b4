"""LLVM code for warp collectives: shfl, vote, redux, match, activemask on vectors of 32 lanes."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from perflab.emulator.operations import Operation
from perflab.emulator.vector.routines import routine
from perflab.emulator.vector.step import Step
from perflab.emulator.vector.values import (
    I32,
    INTEGERS,
    LANES,
    broadcast,
    constant_of,
    mask_of,
    pick,
    predicate_of,
    splat,
)

ALL = (1 << LANES) - 1
Found = tuple[list[ir.Value], ir.Value] | None


def emit_collective(build: ir.IRBuilder, operation: Operation, values: Sequence[ir.Value],
                    active: ir.Value) -> Found:
    """(outputs, mask of lanes that read from an absent lane), or None where the reference must do it.

    active: i32, the lanes that take part. What inactive lanes get is of no meaning.
    """
    rule = {"shfl": _shuffle, "vote": _vote, "redux": _reduce, "match": _match, "activemask": _active, "elect": _elect}
    found = rule.get(operation.instruction.opcode)
    if found is None:
        return None
    step = Step(build, operation, values)
    if not _is_long(step):
        return found(step, active)

    def body(build: ir.IRBuilder, values: Sequence[ir.Value]) -> list[ir.Value] | None:
        pair = found(Step(build, operation, values[:-1]), values[-1])
        return [*pair[0], pair[1]] if pair else None

    results = routine(build, f"ptx.{operation.instruction.name}.{len(operation.outputs)}", [*values, active], body)
    return (results[:-1], results[-1]) if results else None


def _is_long(step: Step) -> bool:
    """What becomes a routine: it must not depend on which of its values are constants."""
    if step.operation.instruction.opcode == "shfl":
        return constant_of(step.values[1]) is None or constant_of(step.values[2]) is None
    return step.operation.instruction.opcode == "match"


# ---------------------------------------------------------------- shfl
def _source_lanes(mode: str, by: int, clamp: int) -> list[tuple[int, bool]]:
    """For each lane: where it reads (itself when out of range) and whether that was in range. From the PTX ISA, shfl."""
    segment, limit, by = clamp >> 8 & 31, clamp & 31, by & 31
    found = []
    for lane in range(LANES):
        last, first = (lane & segment) | (limit & ~segment & 31), lane & segment
        source = {"up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": first | (by & ~segment & 31)}[mode]
        inside = source >= last if mode == "up" else source <= last
        found.append((source if inside else lane, inside))
    return found


def _shuffle(step: Step, active: ir.Value) -> Found:
    build, mode = step.build, next((m for m in step.modifiers if m in ("up", "down", "bfly", "idx")), "")
    value, by, clamp = step.values[:3]
    known, limits = constant_of(by), constant_of(clamp)
    if not mode:
        return None
    if known is None or limits is None:
        return _shuffle_through_memory(step, mode, active)
    lanes = _source_lanes(mode, known, limits)
    inside = sum(ok << lane for lane, (_, ok) in enumerate(lanes))
    sources = [source for source, _ in lanes]
    there = _permuted(build, active, sources)
    if not _whole_warp(step):
        source = ir.Constant(INTEGERS[32], sources)
        there = build.and_(there, _named(build, step.values[3], source))
    return _with_absent(step, active, there, pick(build, value, sources), predicate_of(build, ir.Constant(I32, inside)))


def _named(build: ir.IRBuilder, masks: ir.Value, lane: ir.Value) -> ir.Value:
    """i32: for each lane, whether its mask names the lane that stands in `lane`."""
    return mask_of(build, build.trunc(build.lshr(masks, lane), INTEGERS[1]))


def _with_absent(step: Step, active: ir.Value, there: ir.Value, result: ir.Value,
                 inside: ir.Value) -> tuple[list[ir.Value], ir.Value]:
    """A lane whose source is absent keeps its own value."""
    build = step.build
    kept = build.select(predicate_of(build, there), result, step.values[0])
    absent = build.and_(active, build.xor(there, ir.Constant(I32, ALL)))
    return [kept, inside][: len(step.operation.outputs)], absent


def _permuted(build: ir.IRBuilder, mask: ir.Value, sources: Sequence[int]) -> ir.Value:
    """Bit i of the result is bit sources[i] of the mask: one shift for each distance that occurs."""
    by_distance: dict[int, int] = {}
    for lane, source in enumerate(sources):
        by_distance[source - lane] = by_distance.get(source - lane, 0) | 1 << lane
    total = ir.Constant(I32, 0)
    for distance, lanes in by_distance.items():
        moved = mask
        if distance:
            moved = (build.lshr if distance > 0 else build.shl)(mask, ir.Constant(I32, abs(distance)))
        total = build.or_(total, build.and_(moved, ir.Constant(I32, lanes)))
    return total


def _shuffle_through_memory(step: Step, mode: str, active: ir.Value) -> tuple[list[ir.Value], ir.Value]:
    build, (value, by, clamp) = step.build, step.values[:3]
    lane = ir.Constant(INTEGERS[32], list(range(LANES)))
    low, segment = splat(32, 31), build.and_(build.lshr(clamp, splat(32, 8)), splat(32, 31))
    inverse, by = build.xor(segment, low), build.and_(by, low)
    first = build.and_(lane, segment)
    last = build.or_(first, build.and_(clamp, inverse))
    if mode == "idx":
        source = build.or_(first, build.and_(by, inverse))
    else:
        source = {"up": build.sub, "down": build.add, "bfly": build.xor}[mode](lane, by)
    inside = build.icmp_signed(">=" if mode == "up" else "<=", source, last)
    source = build.and_(build.select(inside, source, lane), low)
    there = _named(build, build.and_(broadcast(build, active), step.values[3]), source)
    return _with_absent(step, active, there, _gathered(build, value, source), inside)


def _gathered(build: ir.IRBuilder, value: ir.Value, source: ir.Value) -> ir.Value:
    with build.goto_entry_block():
        place = build.alloca(ir.ArrayType(I32, LANES))
        place.align = 64
    zero, whole = ir.Constant(I32, 0), build.bitcast(place, INTEGERS[32].as_pointer())
    build.store(value, whole, align=64)
    result: ir.Value = ir.Constant(INTEGERS[32], ir.Undefined)
    for lane in range(LANES):
        index = build.extract_element(source, ir.Constant(I32, lane))
        item = build.load(build.gep(place, [zero, index]))
        result = build.insert_element(result, item, ir.Constant(I32, lane))
    return result


# ---------------------------------------------------------------- vote, redux, match
def _whole_warp(step: Step) -> bool:
    """The member mask names all lanes: those that are active are all that count."""
    members = step.operation.members
    return members is not None and constant_of(step.values[members]) == ALL


def _vote(step: Step, active: ir.Value) -> Found:
    build, none = step.build, splat(32, 0)
    among = broadcast(build, active)
    yes = broadcast(build, build.and_(mask_of(build, step.values[0]), active))
    if not _whole_warp(step):
        among, yes = build.and_(among, step.values[1]), build.and_(yes, step.values[1])
    if step.has("ballot"):
        return [yes], ir.Constant(I32, 0)
    if step.has("any"):
        answer = build.icmp_unsigned("!=", yes, none)
    else:
        answer = build.icmp_unsigned("==", yes, among)
        if step.has("uni"):
            answer = build.or_(answer, build.icmp_unsigned("==", yes, none))
    return [answer], ir.Constant(I32, 0)


def _reduce(step: Step, active: ir.Value) -> Found:
    operation = next((m for m in step.modifiers if m in ("add", "min", "max", "and", "or", "xor")), "")
    kind = step.source()
    if not _whole_warp(step) or kind not in ("u32", "s32") or not operation:
        return None
    neutral = {"and": ALL, "min": ALL if kind == "u32" else ALL >> 1, "max": 0 if kind == "u32" else 1 << 31}.get(operation, 0)
    build = step.build
    name = operation if operation not in ("min", "max") else kind[0] + operation
    lanes = build.select(predicate_of(build, active), step.values[0], splat(32, neutral))
    function = f"llvm.vector.reduce.{name}.v{LANES}i32"
    known = build.module.globals.get(function) or ir.Function(build.module, ir.FunctionType(I32, [INTEGERS[32]]), function)
    return [broadcast(build, build.call(known, [lanes]))], ir.Constant(I32, 0)


def _match(step: Step, active: ir.Value) -> Found:
    """match.any: the members with my value; match.all: all members where they agree, else none."""
    build, (value, members), none = step.build, step.values, splat(32, 0)
    masks: ir.Value = ir.Constant(INTEGERS[32], ir.Undefined)
    for lane in range(LANES):
        same = build.icmp_unsigned("==", value, pick(build, value, [lane] * LANES))
        masks = build.insert_element(masks, build.and_(mask_of(build, same), active), ir.Constant(I32, lane))
    masks = build.and_(masks, members)
    if step.has("any"):
        return [masks], ir.Constant(I32, 0)
    agreed = build.icmp_unsigned("==", masks, build.and_(broadcast(build, active), members))
    return [build.select(agreed, masks, none), agreed][: len(step.operation.outputs)], ir.Constant(I32, 0)


def _lowest(build: ir.IRBuilder, mask: ir.Value) -> ir.Value:
    """The lowest active lane; 0 where none is."""
    known = build.module.globals.get("llvm.cttz.i32") or ir.Function(
        build.module, ir.FunctionType(I32, [I32, ir.IntType(1)]), "llvm.cttz.i32")
    return build.and_(build.call(known, [mask, ir.Constant(ir.IntType(1), 0)]), ir.Constant(I32, LANES - 1))


def _active(step: Step, active: ir.Value) -> tuple[list[ir.Value], ir.Value]:
    return [broadcast(step.build, active)], ir.Constant(I32, 0)


def _elect(step: Step, active: ir.Value) -> Found:
    """elect: the lowest active lane, and true for it."""
    if not _whole_warp(step):
        return None
    leader = broadcast(step.build, _lowest(step.build, active))
    lanes = ir.Constant(INTEGERS[32], list(range(LANES)))
    return [leader, step.build.icmp_unsigned("==", leader, lanes)], ir.Constant(I32, 0)
