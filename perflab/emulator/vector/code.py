"""LLVM code for compute instructions on the 32 lanes of a warp: the bits that `Operation.compute` gives, without numpy.

`emit` and `emit_collective` (collectives) are what a machine calls; None means that there is no vector code and the
reference must be called instead. Modifiers that a rule does not know always give None, never a wrong answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from perflab.emulator.operations import Operation
from perflab.emulator.vector import arithmetic, integers
from perflab.emulator.vector.collectives import emit_collective
from perflab.emulator.vector.floats import flushed
from perflab.emulator.vector.routines import routine
from perflab.emulator.vector.step import PACKED, ROUNDINGS, WHOLE, Rule, Step
from perflab.emulator.vector.values import (
    BITS,
    as_register,
    as_type,
    broadcast,
    constant_of,
    mask_of,
    popcount,
    predicate_of,
    splat,
    to_float,
)

__all__ = ["as_register", "as_type", "broadcast", "constant_of", "emit", "emit_collective", "mask_of", "popcount",
           "predicate_of", "splat"]

FLOAT_TYPES = ("f16", "bf16", "f32", "f64")
RELATIONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu",
                       "num", "nan"))
TYPES = frozenset(BITS) | {"b8", "b16", "b32", "b64", *PACKED}
_ROUNDED = frozenset((*ROUNDINGS, "ftz", "sat"))
_APPROXIMATE = frozenset(("approx", "ftz"))
_PARTS = frozenset(("lo", "hi", "wide"))
_COMPARING = RELATIONS | {"and", "or", "xor", "ftz"}
MODIFIERS: dict[str, frozenset[str]] = {
    "add": _ROUNDED, "sub": _ROUNDED, "mul": _ROUNDED | _PARTS, "mad": _ROUNDED | _PARTS, "fma": _ROUNDED | {"relu"},
    "mul24": _PARTS, "mad24": _PARTS | {"sat"}, "neg": frozenset(("ftz",)), "abs": frozenset(("ftz",)),
    "min": frozenset(("ftz", "NaN", "relu")), "max": frozenset(("ftz", "NaN", "relu")),
    "div": frozenset((*ROUNDINGS, "approx", "full", "ftz")), "rcp": frozenset((*ROUNDINGS, "approx", "ftz")),
    "sqrt": frozenset((*ROUNDINGS, "approx", "ftz")), "ex2": _APPROXIMATE, "lg2": _APPROXIMATE, "rsqrt": _APPROXIMATE,
    "sin": _APPROXIMATE, "cos": _APPROXIMATE, "tanh": _APPROXIMATE,
    "cvta": frozenset(("to", *integers.WINDOWS)), "shf": frozenset(("l", "r", "clamp", "wrap")),
    "bfind": frozenset(("shiftamt",)), "cvt": frozenset((*ROUNDINGS, *WHOLE, "ftz", "sat", "relu")),
    "setp": _COMPARING, "set": _COMPARING, "slct": frozenset(("ftz",)),
}
"""By opcode: the modifiers, beside types, that the rules know."""


def emit(build: ir.IRBuilder, operation: Operation, values: Sequence[ir.Value]) -> list[ir.Value] | None:
    """Vectors for the outputs of a 'compute' operation, or None where there is no vector code.

    values, results: raw bits, one vector of 32 integers (of 1 bit for 'pred') for each input and output, of its type's size.
    """
    opcode = operation.instruction.opcode
    if operation.role != "compute" or not operation.outputs:
        return None
    if not set(operation.instruction.modifiers) <= TYPES | MODIFIERS.get(opcode, frozenset()):
        return None
    step = Step(build, operation, values)
    rule = _rule(step)
    if rule is None:
        return None
    if not _is_long(step):
        return _results(step, rule)
    return routine(build, f"ptx.{operation.instruction.name}", values, lambda b, v: _results(Step(b, operation, v), rule))


def _results(step: Step, rule: Rule) -> list[ir.Value] | None:
    found = rule(step)
    if found is None:
        return None
    results = found if isinstance(found, list) else [found]
    return results if len(results) == len(step.operation.outputs) else None


def _is_long(step: Step) -> bool:
    """Whether the code is so long that a call is cheaper: above all for the compiler."""
    opcode, outputs = step.operation.instruction.opcode, step.operation.outputs
    if opcode in ("div", "rem") and step.source()[0] in "us":
        return constant_of(step.values[1]) is None
    if opcode == "cvt":
        kinds = (step.source(), step.target)
        return len(step.values) == 1 and bool({"u64", "s64"} & set(kinds)) and bool(set(FLOAT_TYPES) & set(kinds))
    directed = step.rounding != "rn" and outputs[0].type == "f32"
    brain = opcode in ("mul", "fma") and step.has("bf16", "bf16x2")
    return directed or brain or opcode in ("ex2", "lg2", "sin", "cos", "tanh")


def _rule(step: Step) -> Rule | None:
    opcode = step.operation.instruction.opcode
    if opcode in GENERAL:
        return GENERAL[opcode]
    kinds = {typed.type for typed in (*step.operation.inputs, *step.operation.outputs)}
    floating = not kinds.isdisjoint(FLOAT_TYPES) or step.packed in ("f16x2", "bf16x2", "f32x2")
    return (arithmetic.RULES if floating else integers.RULES).get(opcode)


def _compared(step: Step) -> tuple[ir.Value, ir.Value] | None:
    """Of setp and set: whether the relation holds, and the predicate to combine with (all ones where there is none)."""
    relation, kind = step.modifiers[0], step.source()
    if step.packed or relation not in RELATIONS:
        return None
    found = (arithmetic if kind in FLOAT_TYPES else integers).compared(step, relation)
    return None if found is None else (found, step.values[2] if len(step.values) > 2 else splat(1, 1))


def _combined(step: Step, found: ir.Value, other: ir.Value) -> ir.Value:
    build = step.build
    if len(step.values) == 2:
        return found
    return {"and": build.and_, "or": build.or_, "xor": build.xor}[step.modifiers[1]](found, other)


def _setp(step: Step) -> list[ir.Value] | None:
    """setp p|q: q is the relation's opposite, combined likewise."""
    pair = _compared(step)
    if pair is None:
        return None
    results = [_combined(step, *pair)]
    if len(step.operation.outputs) == 2:
        results.append(_combined(step, step.build.xor(pair[0], splat(1, 1)), pair[1]))
    return results


def _set(step: Step) -> ir.Value | None:
    """set: all ones, or 1.0 for a float result."""
    pair = _compared(step)
    if pair is None or step.target not in ("u32", "s32", "f32"):
        return None
    truth = splat(32, 0x3F800000 if step.target == "f32" else -1)
    return step.build.select(_combined(step, *pair), truth, splat(32, 0))


def _selp(step: Step) -> ir.Value:
    a, b, choice = step.values
    return step.build.select(choice, a, b)


def _slct(step: Step) -> ir.Value:
    """slct: a where c >= 0, else (also for NaN) b."""
    build, (a, b, c) = step.build, step.values
    if step.source(2) == "f32":
        c = flushed(build, c) if step.has("ftz") else c
        return build.select(build.fcmp_ordered(">=", to_float(build, c), to_float(build, splat(32, 0))), a, b)
    return build.select(build.icmp_signed(">=", c, splat(32, 0)), a, b)


GENERAL: dict[str, Rule] = {
    "setp": _setp, "set": _set, "selp": _selp, "slct": _slct, "mov": integers.move, "and": integers.logic,
    "or": integers.logic, "xor": integers.logic, "not": integers.invert,
}
"""Rules that do not depend on the type."""
