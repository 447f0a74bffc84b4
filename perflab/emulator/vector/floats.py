"""Floats on 32 lanes, bit for bit as PTX has them: canonical NaN, .ftz, .sat, directed rounding, and the 16-bit formats.

Values are FLOAT or DOUBLE vectors unless a name says bits. No fast-math flags: LLVM may not reorder or contract anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from llvmlite import binding, ir

from perflab.emulator.vector.values import (
    DOUBLE,
    FLOAT,
    HALF,
    INTEGERS,
    element_bits,
    intrinsic,
    splat,
    splat_float,
    to_bits,
    to_float,
)

NAN_BITS = {"f32": 0x7FFFFFFF, "f64": 0x7FF8000000000000, "f16": 0x7FFF, "bf16": 0x7FFF}
SIGN = {16: 1 << 15, 32: 1 << 31, 64: 1 << 63}
EXPONENT = {32: 0x7F800000, 64: 0x7FF << 52}


# ---------------------------------------------------------------- NaN, .ftz, .sat
def canonical(build: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """The bits of floats, every NaN replaced by the one that PTX's arithmetic gives."""
    bits = to_bits(build, value)
    nan = splat(32, NAN_BITS["f32"]) if element_bits(bits) == 32 else splat(64, NAN_BITS["f64"])
    return build.select(build.fcmp_unordered("uno", value, value), nan, bits)


def passed_on(build: ir.IRBuilder, nan: ir.Value, target: str) -> ir.Value:
    """The bits of NaNs that cvt narrows from f64 (quiet) or widens from bf16 to f32 (as they are): `conversions._passed_on`."""
    if element_bits(nan) == 16:
        return build.shl(build.zext(nan, INTEGERS[32]), splat(32, 16))
    size, quiet, fraction = {"f32": (32, 0x7FC00000, 23), "f16": (16, 0x7E00, 10), "bf16": (16, 0x7FC0, 7)}[target]
    sign = build.and_(build.lshr(nan, splat(64, 64 - size)), splat(64, SIGN[size]))
    payload = build.and_(build.lshr(nan, splat(64, 52 - fraction)), splat(64, (1 << fraction) - 1))
    return build.trunc(build.or_(build.or_(sign, payload), splat(64, quiet)), INTEGERS[size])


def flushed(build: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """.ftz: the bits of f32 with subnormals replaced by a zero of their sign."""
    tiny = build.icmp_unsigned("==", build.and_(bits, splat(32, EXPONENT[32])), splat(32, 0))
    return build.select(tiny, build.and_(bits, splat(32, SIGN[32])), bits)


def saturated(build: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """.sat: clamped to [0, 1], NaN and -0 to +0."""
    zero, one = splat_float(value.type, 0.0), splat_float(value.type, 1.0)
    low = build.select(build.fcmp_ordered(">", value, zero), value, zero)
    return build.select(build.fcmp_ordered("<", low, one), low, one)


# ---------------------------------------------------------------- what .ftz flushes: see `arithmetic.is_tiny`
def times_four(build: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Of FLOAT: an operand of which a result comes out four times as large, so that a small one is rounded as a normal one."""
    return build.fmul(value, splat_float(FLOAT, 4.0))


def is_tiny(build: ir.IRBuilder, fourfold: ir.Value) -> ir.Value:
    """Whether .ftz flushes a result, by four times that. Overflown operands are no matter: they do not give small results."""
    return build.fcmp_ordered("<", intrinsic(build, "fabs", fourfold), splat_float(FLOAT, 2.0**-124))


def is_tiny_quotient(build: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Whether .ftz flushes a / b of FLOAT without subnormals: none lies so near below 2**-126 that it is rounded up to that."""
    limit = build.fmul(intrinsic(build, "fabs", b), splat_float(FLOAT, 2.0**-126))
    return build.fcmp_ordered("<", intrinsic(build, "fabs", a), limit)


# ---------------------------------------------------------------- exact results and their rounding
@dataclass(frozen=True)
class Exact:
    """A real number as high + low, high being their sum rounded to nearest; low None: high is exact. DOUBLE if not said."""

    high: ir.Value
    low: ir.Value | None = None


def widened(build: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """FLOAT -> DOUBLE, exact."""
    return build.fpext(value, DOUBLE)


def exact_sum(build: ir.IRBuilder, a: ir.Value, b: ir.Value) -> Exact:
    """a + b without an error (Knuth's TwoSum); with infinities or NaN `low` is NaN. Of FLOAT, if the terms are."""
    total = build.fadd(a, b)
    part = build.fsub(total, a)
    return Exact(total, build.fadd(build.fsub(a, build.fsub(total, part)), build.fsub(b, part)))


def _with_sign_of_zero(build: ir.IRBuilder, exact: Exact, a: ir.Value, b: ir.Value) -> Exact:
    """Rounding down, a sum that is zero is -0 unless both its terms are +0."""
    signs = build.and_(build.or_(to_bits(build, a), to_bits(build, b)), splat(64, SIGN[64]))
    zero = build.fcmp_ordered("==", exact.high, splat_float(DOUBLE, 0.0))
    bits = build.or_(to_bits(build, exact.high), build.select(zero, signs, splat(64, 0)))
    return Exact(to_float(build, bits), exact.low)


def _distance(build: ir.IRBuilder, exact: Exact, rounded: ir.Value) -> ir.Value:
    """Exact minus rounded, as DOUBLE: its sign is right, NaN where both are infinite."""
    distance = build.fsub(exact.high, widened(build, rounded))
    return distance if exact.low is None else build.fadd(distance, exact.low)


def _stepped(build: ir.IRBuilder, rounded: ir.Value, distance: ir.Value, mode: str) -> ir.Value:
    """The nearest FLOAT, moved by one where it lies on the wrong side of the real number."""
    zero = splat_float(distance.type, 0.0)
    bits = to_bits(build, rounded)
    outwards = build.or_(build.ashr(bits, splat(32, 31)), splat(32, 1))  # +1 where positive: towards +infinity
    if mode == "rm":
        moved, wrong = build.sub(bits, outwards), build.fcmp_ordered("<", distance, zero)
    elif mode == "rp":
        moved, wrong = build.add(bits, outwards), build.fcmp_ordered(">", distance, zero)
    else:
        moved = build.sub(bits, splat(32, 1))
        negative = build.icmp_signed("<", bits, splat(32, 0))
        wrong = build.select(negative, build.fcmp_ordered(">", distance, zero), build.fcmp_ordered("<", distance, zero))
    return to_float(build, build.select(wrong, moved, bits))


def narrowed(build: ir.IRBuilder, exact: Exact, mode: str) -> ir.Value:
    """An exact number rounded to FLOAT as 'rn' (only where low is None), 'rz', 'rm' or 'rp' say."""
    rounded = build.fptrunc(exact.high, FLOAT)
    return rounded if mode == "rn" else _stepped(build, rounded, _distance(build, exact, rounded), mode)


def to_odd(build: ir.IRBuilder, exact: Exact) -> ir.Value:
    """An exact number cut to FLOAT, its last bit set where something was cut: rounding that again to 16 bits is right."""
    rounded = build.fptrunc(exact.high, FLOAT)
    distance = _distance(build, exact, rounded)
    cut = to_bits(build, _stepped(build, rounded, distance, "rz"))
    inexact = build.fcmp_ordered("!=", distance, splat_float(DOUBLE, 0.0))
    return to_float(build, build.or_(cut, build.zext(inexact, INTEGERS[32])))


def odd_sum(build: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """a + b in the terms' type, rounded to odd: a second rounding to at least two bits less is then as good as a single one."""
    exact = exact_sum(build, a, b)
    assert exact.low is not None
    bits, low = to_bits(build, exact.high), to_bits(build, exact.low)
    size = element_bits(bits)
    towards = build.or_(build.ashr(build.xor(bits, low), splat(size, size - 1)), splat(size, 1))  # 1 away from zero, -1 to it
    inexact = build.fcmp_ordered("!=", exact.low, splat_float(exact.low.type, 0.0))
    even = build.icmp_unsigned("==", build.and_(bits, splat(size, 1)), splat(size, 0))
    step = build.select(build.and_(inexact, even), towards, splat(size, 0))
    return to_float(build, build.add(bits, step))


def fused(build: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value, mode: str) -> ir.Value:
    """a * b + c of FLOAT, rounded once."""
    if mode == "rn":
        return intrinsic(build, "fma", a, b, c)
    product, term = build.fmul(widened(build, a), widened(build, b)), widened(build, c)
    return _directed_sum(build, product, term, mode)


def _directed_sum(build: ir.IRBuilder, a: ir.Value, b: ir.Value, mode: str) -> ir.Value:
    exact = exact_sum(build, a, b)
    return narrowed(build, _with_sign_of_zero(build, exact, a, b) if mode == "rm" else exact, mode)


def added(build: ir.IRBuilder, a: ir.Value, b: ir.Value, mode: str) -> ir.Value:
    """a + b of FLOAT."""
    return build.fadd(a, b) if mode == "rn" else _directed_sum(build, widened(build, a), widened(build, b), mode)


def multiplied(build: ir.IRBuilder, a: ir.Value, b: ir.Value, mode: str) -> ir.Value:
    """a * b of FLOAT."""
    if mode == "rn":
        return build.fmul(a, b)
    return narrowed(build, Exact(build.fmul(widened(build, a), widened(build, b))), mode)


def divided(build: ir.IRBuilder, a: ir.Value, b: ir.Value, mode: str) -> ir.Value:
    """a / b of FLOAT; directed rounding compares quotient * b, exact in DOUBLE, with a."""
    quotient = build.fdiv(a, b)
    if mode == "rn":
        return quotient
    wide = widened(build, b)
    distance = build.fsub(widened(build, a), build.fmul(widened(build, quotient), wide))
    sign = build.and_(to_bits(build, wide), splat(64, SIGN[64]))
    return _stepped(build, quotient, to_float(build, build.xor(to_bits(build, distance), sign)), mode)


def square_root(build: ir.IRBuilder, a: ir.Value, mode: str) -> ir.Value:
    """The root of FLOAT; directed rounding compares its square, exact in DOUBLE, with a."""
    root = intrinsic(build, "sqrt", a)
    if mode == "rn":
        return root
    wide = widened(build, root)
    return _stepped(build, root, build.fsub(widened(build, a), build.fmul(wide, wide)), mode)


# ---------------------------------------------------------------- 16-bit formats
@cache
def processor_converts_halves() -> bool:
    """True where LLVM has instructions for f16 here; elsewhere it would call functions that may be missing."""
    return bool(binding.get_host_cpu_features().get("f16c", False))


def from_half(build: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """The 16 bits of f16 -> FLOAT, exact: the exponent is rebased by a multiplication, which subnormals survive."""
    if processor_converts_halves():
        return build.fpext(build.bitcast(bits, HALF), FLOAT)
    wide = build.zext(bits, INTEGERS[32])
    magnitude = build.and_(wide, splat(32, 0x7FFF))
    scaled = build.fmul(to_float(build, build.shl(magnitude, splat(32, 13))), splat_float(FLOAT, 2.0**112))
    special = build.icmp_unsigned(">=", magnitude, splat(32, 0x7C00))
    rebased = build.or_(to_bits(build, scaled), build.select(special, splat(32, EXPONENT[32]), splat(32, 0)))
    sign = build.shl(build.and_(wide, splat(32, 0x8000)), splat(32, 16))
    return to_float(build, build.or_(rebased, sign))


def to_half(build: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """FLOAT -> the 16 bits of f16, to nearest even. Subnormals are rounded by adding 0.5, whose last bit is 2**-24."""
    if processor_converts_halves():
        narrow = build.bitcast(build.fptrunc(value, HALF), INTEGERS[16])
        return build.select(build.fcmp_unordered("uno", value, value), splat(16, NAN_BITS["f16"]), narrow)
    bits = to_bits(build, value)
    magnitude = build.and_(bits, splat(32, 0x7FFFFFFF))
    odd = build.and_(build.lshr(magnitude, splat(32, 13)), splat(32, 1))
    shifted = build.lshr(build.add(build.add(magnitude, odd), splat(32, 0xFFF - (112 << 23))), splat(32, 13))
    half = splat_float(FLOAT, 0.5)
    small = build.sub(to_bits(build, build.fadd(to_float(build, magnitude), half)), splat(32, 0x3F000000))
    result = build.select(build.icmp_unsigned("<", magnitude, splat(32, 0x38800000)), small, shifted)
    result = build.select(build.icmp_unsigned(">=", magnitude, splat(32, 0x47800000)), splat(32, 0x7C00), result)
    sign = build.and_(build.lshr(bits, splat(32, 16)), splat(32, 0x8000))
    nan = build.icmp_unsigned(">", magnitude, splat(32, EXPONENT[32]))
    result = build.select(nan, splat(32, NAN_BITS["f16"]), build.or_(result, sign))
    return build.trunc(result, INTEGERS[16])


def from_brain(build: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """The 16 bits of bf16 -> FLOAT, exact."""
    return to_float(build, build.shl(build.zext(bits, INTEGERS[32]), splat(32, 16)))


def to_brain(build: ir.IRBuilder, value: ir.Value, mode: str = "rn") -> ir.Value:
    """FLOAT -> the 16 bits of bf16, to nearest even or ('rz') towards zero."""
    bits = to_bits(build, value)
    top = build.lshr(bits, splat(32, 16))
    if mode == "rn":
        odd = build.and_(top, splat(32, 1))
        top = build.lshr(build.add(build.add(bits, odd), splat(32, 0x7FFF)), splat(32, 16))
    nan = build.fcmp_unordered("uno", value, value)
    return build.trunc(build.select(nan, splat(32, NAN_BITS["bf16"]), top), INTEGERS[16])
