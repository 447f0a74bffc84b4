"""Floating-point instructions on 32 lanes: f32, f64, f16, bf16 and packed halves, with the bits that `arithmetic` gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from perflab.emulator.vector import floats, special
from perflab.emulator.vector.floats import Exact
from perflab.emulator.vector.step import Rule, Step
from perflab.emulator.vector.values import (
    BITS,
    DOUBLE,
    FLOAT,
    INTEGERS,
    element_bits,
    intrinsic,
    resize,
    splat,
    splat_float,
    to_bits,
    to_float,
)

HALVES = ("f16", "bf16")
One = Callable[[Step, str, Sequence[ir.Value]], "ir.Value | None"]
"""A rule for one float of a register: the type and the raw bits of the inputs -> the raw bits of the result."""


@dataclass(frozen=True)
class Format:
    """A float type and what its instruction does before and after: .ftz, .sat, .relu."""

    build: ir.IRBuilder
    type: str
    ftz: bool = False
    saturate: bool = False
    relu: bool = False

    @property
    def half(self) -> bool:
        """True for f16 and bf16, which are computed in float32 or wider."""
        return self.type in HALVES

    def read(self, bits: ir.Value) -> ir.Value:
        """Raw bits as FLOAT or DOUBLE."""
        if self.half:
            return (floats.from_half if self.type == "f16" else floats.from_brain)(self.build, bits)
        return to_float(self.build, self.flush(bits))

    def flush(self, bits: ir.Value) -> ir.Value:
        """.ftz of an input or a result."""
        return floats.flushed(self.build, bits) if self.ftz and self.type == "f32" else bits

    def write(self, value: ir.Value, tiny: ir.Value | None = None) -> ir.Value:
        """FLOAT (rounded as it must be, or exact enough for 16 bits) or DOUBLE as raw bits of the type.

        tiny: what .ftz flushes, where that is not just the subnormal results.
        """
        build = self.build
        if self.saturate:
            value = floats.saturated(build, value)
        if self.relu:
            positive = build.fcmp_unordered(">", value, splat_float(value.type, 0.0))
            value = build.select(positive, value, splat_float(value.type, 0.0))
        if self.type == "f16":
            return floats.to_half(build, value)
        if self.type == "bf16":
            return floats.to_brain(build, value)
        if self.type == "f64":  # keeps the payload of its NaN
            return to_bits(build, value)
        bits = to_bits(build, value) if self.saturate else floats.canonical(build, value)
        if tiny is None:
            return self.flush(bits)
        return build.select(tiny, build.and_(bits, splat(32, floats.SIGN[32])), bits)


def _format(step: Step, kind: str) -> Format:
    return Format(step.build, kind, step.has("ftz"), step.has("sat"), step.has("relu"))


def _scalar(step: Step, kind: str, values: Sequence[ir.Value]) -> ir.Value | None:
    """One arithmetic instruction on raw bits of `kind`."""
    form, opcode, mode = _format(step, kind), step.operation.instruction.opcode, step.rounding
    if form.half:
        exact_enough = mode == "rn" and not form.ftz
        return form.write(_half(form, opcode, [form.read(v) for v in values])) if exact_enough else None
    a, *rest = (form.read(value) for value in values)
    if opcode == "sub":
        opcode, rest = "add", [step.build.fneg(rest[0])]
    if kind == "f64":
        return None if mode != "rn" else form.write(_double(step.build, opcode, a, *rest))
    tiny = None
    if form.ftz and opcode != "add":  # sums so small are exact
        first = floats.times_four(step.build, a)
        others = [rest[0], *(floats.times_four(step.build, term) for term in rest[1:])]
        tiny = floats.is_tiny(step.build, _single(step.build, opcode, mode, first, *others))
    return form.write(_single(step.build, opcode, mode, a, *rest), tiny)


def _single(build: ir.IRBuilder, opcode: str, mode: str, a: ir.Value, b: ir.Value, *rest: ir.Value) -> ir.Value:
    if rest:
        return floats.fused(build, a, b, rest[0], mode)
    return (floats.added if opcode == "add" else floats.multiplied)(build, a, b, mode)


def _double(build: ir.IRBuilder, opcode: str, *values: ir.Value) -> ir.Value:
    if opcode in ("fma", "mad"):
        return intrinsic(build, "fma", *values)
    return (build.fadd if opcode == "add" else build.fmul)(*values)


def _half(form: Format, opcode: str, values: Sequence[ir.Value]) -> ir.Value:
    """FLOAT that rounds to 16 bits as the real result would: float32 has bits to spare, except where a product underflows."""
    build = form.build
    if opcode == "sub":
        return build.fsub(*values)
    if opcode == "add" or (opcode == "mul" and form.type == "f16"):
        return (build.fadd if opcode == "add" else build.fmul)(*values)
    if form.type == "f16":  # a product of halves is exact in float32
        return floats.odd_sum(build, build.fmul(values[0], values[1]), values[2])
    a, b, *rest = (floats.widened(build, value) for value in values)
    product = build.fmul(a, b)
    return floats.to_odd(build, floats.exact_sum(build, product, rest[0]) if rest else Exact(product))


def _by_halves(step: Step, one: One) -> ir.Value | None:
    """A packed instruction as two: `one` takes the type and the values of a half."""
    build, kind = step.build, step.packed[:-2]
    bits = BITS[kind]
    upper = [build.lshr(value, splat(2 * bits, bits)) for value in step.values]
    low, high = (one(step, kind, [build.trunc(v, INTEGERS[bits]) for v in values]) for values in (step.values, upper))
    return None if low is None or high is None else _joined(build, low, high)


def _joined(build: ir.IRBuilder, low: ir.Value, high: ir.Value) -> ir.Value:
    bits = element_bits(low)
    return build.or_(resize(build, low, 2 * bits), build.shl(resize(build, high, 2 * bits), splat(2 * bits, bits)))


def _elementwise(one: One) -> Rule:
    def rule(step: Step) -> ir.Value | None:
        if step.packed:
            return _by_halves(step, one)
        kinds = {typed.type for typed in (*step.operation.inputs, *step.operation.outputs)}
        return one(step, step.source(), list(step.values)) if len(kinds) == 1 else None  # not add.f32.f16

    return rule


# ---------------------------------------------------------------- signs and extremes
def _negated(step: Step, kind: str, values: Sequence[ir.Value]) -> ir.Value | None:
    if kind in HALVES and step.has("ftz"):
        return None
    bits = _format(step, kind).flush(values[0])
    return _without_payload(step.build, kind, bits, step.build.xor(bits, splat(BITS[kind], floats.SIGN[BITS[kind]])))


def _magnitude(step: Step, kind: str, values: Sequence[ir.Value]) -> ir.Value | None:
    if kind in HALVES and step.has("ftz"):
        return None
    bits = _format(step, kind).flush(values[0])
    return _without_payload(step.build, kind, bits, step.build.and_(bits, splat(BITS[kind], floats.SIGN[BITS[kind]] - 1)))


def _without_payload(build: ir.IRBuilder, kind: str, bits: ir.Value, result: ir.Value) -> ir.Value:
    """The result, but the canonical NaN where `bits` are one; those of f64 keep what they have."""
    if kind == "f64":
        return result
    size = BITS[kind]
    magnitude = build.and_(bits, splat(size, floats.SIGN[size] - 1))
    infinity = {"f16": 0x7C00, "bf16": 0x7F80, "f32": floats.EXPONENT[32]}[kind]
    return build.select(build.icmp_signed(">", magnitude, splat(size, infinity)), splat(size, floats.NAN_BITS[kind]), result)


def _extreme(step: Step, kind: str, values: Sequence[ir.Value]) -> ir.Value | None:
    form = _format(step, kind)
    if form.half and form.ftz:
        return None
    total, *others = (form.flush(value) for value in values)
    for other in others:
        total = _extreme_of_two(step, form, total, other)
    return total


def _extreme_of_two(step: Step, form: Format, a: ir.Value, b: ir.Value) -> ir.Value:
    """On raw bits: -0 < +0 (among equals the signs are combined), a NaN gives way to a number, two make the canonical one."""
    build, largest = step.build, step.operation.instruction.opcode == "max"
    plain = Format(build, form.type)
    x, y = plain.read(a), plain.read(b)
    chosen = build.select(build.fcmp_ordered(">" if largest else "<", x, y), a, b)
    both = (build.and_ if largest else build.or_)(a, b)
    chosen = build.select(build.fcmp_ordered("==", x, y), both, chosen)
    x_nan, y_nan = build.fcmp_unordered("uno", x, x), build.fcmp_unordered("uno", y, y)
    nan = splat(BITS[form.type], floats.NAN_BITS[form.type])
    if step.has("NaN"):
        return build.select(build.or_(x_nan, y_nan), nan, chosen)
    return build.select(y_nan, build.select(x_nan, nan, a), chosen)


# ---------------------------------------------------------------- division, roots, approximations
def _divide(step: Step) -> ir.Value | None:
    form, mode, build = _format(step, step.target), step.rounding, step.build
    a, b = (form.read(value) for value in step.values)
    if form.type == "f64":
        return form.write(build.fdiv(a, b)) if mode == "rn" else None
    quotient = floats.divided(build, a, b, mode)
    if step.has("approx"):
        quotient = _far_divisor(build, a, b, quotient)
    return form.write(quotient, floats.is_tiny_quotient(build, a, b) if form.ftz else None)


def _far_divisor(build: ir.IRBuilder, a: ir.Value, b: ir.Value, quotient: ir.Value) -> ir.Value:
    """div.approx: beyond 2**126 the quotient is a zero of its sign, NaN for an infinite a."""
    size, infinity = intrinsic(build, "fabs", b), splat_float(FLOAT, float("inf"))
    far = build.and_(build.fcmp_ordered(">", size, splat_float(FLOAT, 2.0**126)), build.fcmp_ordered("<", size, infinity))
    zero = to_float(build, build.and_(to_bits(build, quotient), splat(32, floats.SIGN[32])))
    infinite = build.fcmp_ordered("==", intrinsic(build, "fabs", a), infinity)
    value = build.select(infinite, splat_float(FLOAT, float("nan")), zero)
    return build.select(build.and_(far, build.fcmp_ordered("ord", a, a)), value, quotient)


def _reciprocal(step: Step) -> ir.Value | None:
    form, mode = _format(step, step.target), step.rounding
    value = form.read(step.values[0])
    one = splat_float(value.type, 1.0)
    if form.type == "f64":
        return form.write(step.build.fdiv(one, value)) if mode == "rn" and not step.has("approx") else None
    tiny = floats.is_tiny_quotient(step.build, one, value) if form.ftz else None
    return form.write(floats.divided(step.build, one, value, mode), tiny)


def _root(step: Step) -> ir.Value | None:
    form, mode = _format(step, step.target), step.rounding
    value = form.read(step.values[0])
    if form.type == "f64":
        return form.write(intrinsic(step.build, "sqrt", value)) if mode == "rn" and not step.has("approx") else None
    return form.write(floats.square_root(step.build, value, mode))


def _approximated(step: Step, kind: str, values: Sequence[ir.Value]) -> ir.Value | None:
    form, opcode, build = _format(step, kind), step.operation.instruction.opcode, step.build
    if kind == "f64" or (form.half and form.ftz):
        return None
    value = to_float(build, values[0]) if opcode == "ex2" and kind == "f32" else form.read(values[0])  # 2**tiny is 1 anyway
    function = {"ex2": special.exp2, "lg2": special.log2, "rsqrt": special.reciprocal_root}.get(opcode)
    wide = function(build, value) if function else special.by_library(build, opcode, value)
    return form.write(floats.to_odd(build, Exact(wide)) if form.half else special.rounded(build, wide))


# ---------------------------------------------------------------- compare and convert
def compared(step: Step, relation: str) -> ir.Value | None:
    """a relation b of floats: 'ltu' and the like are true where one is NaN."""
    build, form = step.build, _format(step, step.source())
    if form.half and form.ftz:
        return None
    a, b = (form.read(value) for value in step.values[:2])
    if relation in ("num", "nan"):
        return build.fcmp_ordered("ord", a, b) if relation == "num" else build.fcmp_unordered("uno", a, b)
    sign = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}[relation[:2]]
    return (build.fcmp_unordered if relation.endswith("u") else build.fcmp_ordered)(sign, a, b)


def _convert(step: Step) -> ir.Value | None:
    if len(step.values) == 2:
        return _convert_pair(step)
    source, target = step.source(), step.target
    if source[0] in "us":
        return _from_integer(step)
    value = _format(step, source).read(step.values[0])
    if target[0] in "us":
        return None if source in HALVES and step.has("ftz") else _to_integer(step, value)
    result = _to_format(step, _to_whole(step, value) if step.whole else value, target)
    keeps = (source == "f64" and target != "f64") or (source, target) == ("bf16", "f32")
    if result is None or not keeps or step.has("sat"):
        return result
    nan = step.build.fcmp_unordered("uno", value, value)
    return step.build.select(nan, floats.passed_on(step.build, step.values[0], target), result)


def _to_format(step: Step, value: ir.Value, target: str) -> ir.Value | None:
    """FLOAT or DOUBLE -> raw bits of a float type."""
    build, form, mode = step.build, _format(step, target), step.rounding
    wide = value.type.element == ir.DoubleType()
    if form.half:
        if mode == "rz" and form.type == "bf16" and not wide and not (form.relu or form.saturate):
            return floats.to_brain(build, value, "rz")
        return form.write(floats.to_odd(build, Exact(value)) if wide else value) if mode == "rn" else None
    if target == "f64":
        return form.write(value if wide else floats.widened(build, value))
    if not wide:
        return form.write(value)
    fourfold = Exact(build.fmul(value, splat_float(DOUBLE, 4.0)))
    tiny = floats.is_tiny(build, floats.narrowed(build, fourfold, mode)) if form.ftz else None
    return form.write(floats.narrowed(build, Exact(value), mode), tiny)


def _convert_pair(step: Step) -> ir.Value | None:
    """cvt.rn.f16x2.f32 d, a, b: a becomes the upper half."""
    if step.packed not in ("f16x2", "bf16x2") or step.source() != "f32" or step.has("ftz"):
        return None
    high, low = (_to_format(step, to_float(step.build, value), step.packed[:-2]) for value in step.values)
    return None if high is None or low is None else _joined(step.build, low, high)


def _to_whole(step: Step, value: ir.Value) -> ir.Value:
    names = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
    return intrinsic(step.build, names[step.whole or "rni"], value)


def _to_integer(step: Step, value: ir.Value) -> ir.Value:
    """Clamped to what the integer can hold. NaN: 0, but the sign bit alone where f64 or 64 bits are involved."""
    build, bits, signed = step.build, BITS[step.target], step.target.startswith("s")
    if step.source() != "f64" and bits != 64:
        return _within(build, _to_whole(step, value), bits, signed)
    name = "fptosi.sat" if signed else "fptoui.sat"
    result = intrinsic(build, name, _to_whole(step, value), result=INTEGERS[bits])
    return build.select(build.fcmp_unordered("uno", value, value), splat(bits, 1 << (bits - 1)), result)


def _within(build: ir.IRBuilder, value: ir.Value, bits: int, signed: bool) -> ir.Value:
    """A whole FLOAT as an integer of up to 32 bits, clamped, NaN to 0: LLVM's own fptosi.sat goes lane by lane."""
    least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    low, high = splat_float(FLOAT, float(least)), splat_float(FLOAT, float(most + 1))
    above = build.fcmp_ordered(">=", value, high)
    inside = build.and_(build.fcmp_ordered(">", value, low), build.fcmp_ordered("<", value, high))
    safe = build.select(inside, value, splat_float(FLOAT, 0.0))
    wide = build.fptosi(safe, INTEGERS[32]) if signed or bits < 32 else build.fptoui(safe, INTEGERS[32])
    if least:
        wide = build.select(build.fcmp_ordered("<=", value, low), splat(32, least), wide)
    return resize(build, build.select(above, splat(32, most), wide), bits)


def _from_integer(step: Step) -> ir.Value | None:
    build, value, target, mode = step.build, step.values[0], step.target, step.rounding
    convert = build.sitofp if step.signed else build.uitofp
    if mode == "rn" and (target == "f64" or (target == "f32" and element_bits(value) < 64)):
        return Format(build, target, saturate=step.has("sat")).write(convert(value, FLOAT if target == "f32" else DOUBLE))
    if target == "f64":
        return None if element_bits(value) == 64 else _to_format(step, convert(value, DOUBLE), target)
    high, low = _halves_of_integer(build, value, step.signed)
    if low is None:
        return _from_exact(step, Exact(high), target)
    if mode == "rn":
        return _from_exact(step, Exact(floats.odd_sum(build, high, low)), target)
    return _from_exact(step, floats.exact_sum(build, high, low), target)


def _halves_of_integer(build: ir.IRBuilder, value: ir.Value, signed: bool) -> tuple[ir.Value, ir.Value | None]:
    """An integer of up to 64 bits as the sum of two DOUBLE, of one where that is enough."""
    convert = build.sitofp if signed else build.uitofp
    if element_bits(value) < 64:
        return convert(value, DOUBLE), None
    upper = convert(build.trunc(build.lshr(value, splat(64, 32)), INTEGERS[32]), DOUBLE)
    lower = build.uitofp(build.trunc(value, INTEGERS[32]), DOUBLE)
    return build.fmul(upper, splat_float(DOUBLE, 2.0**32)), lower


def _from_exact(step: Step, exact: Exact, target: str) -> ir.Value | None:
    """An exact number -> raw bits of f32, f16 or bf16."""
    form, build = _format(step, target), step.build
    if form.half:
        return form.write(floats.to_odd(build, exact)) if step.rounding == "rn" else None
    return form.write(floats.narrowed(build, exact, step.rounding))


def _copysign(step: Step) -> ir.Value:
    a, b = step.values
    sign = floats.SIGN[step.bits]
    return step.build.or_(step.build.and_(a, splat(step.bits, sign)), step.build.and_(b, splat(step.bits, sign - 1)))


RULES: dict[str, Rule] = {
    "add": _elementwise(_scalar), "sub": _elementwise(_scalar), "mul": _elementwise(_scalar), "fma": _elementwise(_scalar),
    "mad": _elementwise(_scalar), "neg": _elementwise(_negated), "abs": _elementwise(_magnitude), "min": _elementwise(_extreme),
    "max": _elementwise(_extreme), "div": _divide, "rcp": _reciprocal, "sqrt": _root, "ex2": _elementwise(_approximated),
    "lg2": _elementwise(_approximated), "rsqrt": _elementwise(_approximated), "sin": _elementwise(_approximated),
    "cos": _elementwise(_approximated), "tanh": _elementwise(_approximated), "cvt": _convert, "copysign": _copysign,
}
