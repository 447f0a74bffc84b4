"""ex2, lg2 and the like on 32 lanes: computed in DOUBLE, to be rounded to FLOAT, as the numpy reference does.

The polynomials are exact to about 2e-16, so that a result differs from the reference's (another float64 library) only where
the real number lies that near to a rounding boundary of float32: then by one last bit.
"""

from __future__ import annotations

import math

from llvmlite import ir

from perflab.emulator.vector.floats import widened
from perflab.emulator.vector.values import DOUBLE, FLOAT, intrinsic, splat, splat_float, to_bits, to_float

EXP2 = tuple(math.log(2) ** k / math.factorial(k) for k in range(13))  # Taylor; the next term is below 2e-16 for |x| <= 1/2
LOG2 = tuple(2 / math.log(2) / (2 * k + 1) for k in range(10))  # log2(m) = t * sum LOG2[k] t**2k with t = (m - 1) / (m + 1)
SHIFTER = 1.5 * 2.0**52  # added to a small float64 it leaves the nearest integer in the low bits
FAR = 300.0  # 2**±300 is beyond float32 whatever comes after


def _polynomial(build: ir.IRBuilder, x: ir.Value, coefficients: tuple[float, ...]) -> ir.Value:
    total: ir.Value = splat_float(DOUBLE, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = intrinsic(build, "fmuladd", total, x, splat_float(DOUBLE, coefficient))
    return total


def exp2(build: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """2**value of FLOAT, as DOUBLE; below 2**-300 and above 2**300 it stays there."""
    for relation, bound in (("<", -FAR), (">", FAR)):
        limit = splat_float(FLOAT, bound)
        value = build.select(build.fcmp_ordered(relation, value, limit), limit, value)
    x = widened(build, value)
    shifted = build.fadd(x, splat_float(DOUBLE, SHIFTER))
    rest = build.fsub(x, build.fsub(shifted, splat_float(DOUBLE, SHIFTER)))
    power = build.shl(to_bits(build, shifted), splat(64, 52))  # the integer part, moved to the exponent
    return to_float(build, build.add(to_bits(build, _polynomial(build, rest, EXP2)), power))


def log2(build: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """log2(value) of FLOAT, as DOUBLE: -infinity for zero, NaN below."""
    x = widened(build, value)
    bits = build.add(to_bits(build, x), splat(64, 2048 << 52))  # so that the exponent below is positive: biased by 2048
    half_root = splat(64, 0x3FE6A09E667F3BCD)  # sqrt(1/2): the mantissa is taken from [sqrt(1/2), sqrt(2))
    exponent = build.lshr(build.sub(bits, half_root), splat(64, 52))
    mantissa = to_float(build, build.sub(bits, build.shl(exponent, splat(64, 52))))
    biased = to_float(build, build.or_(exponent, splat(64, 0x4330000000000000)))
    whole = build.fsub(biased, splat_float(DOUBLE, 2.0**52 + 2048))
    one = splat_float(DOUBLE, 1.0)
    ratio = build.fdiv(build.fsub(mantissa, one), build.fadd(mantissa, one))
    series = _polynomial(build, build.fmul(ratio, ratio), LOG2)
    result = build.fadd(whole, build.fmul(ratio, series))
    zero, infinity = splat_float(DOUBLE, 0.0), splat_float(DOUBLE, math.inf)
    result = build.select(build.fcmp_ordered("<", x, infinity), result, x)  # also passes NaN on
    result = build.select(build.fcmp_ordered("==", x, zero), splat_float(DOUBLE, -math.inf), result)
    return build.select(build.fcmp_ordered("<", x, zero), splat_float(DOUBLE, math.nan), result)


def reciprocal_root(build: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """1 / sqrt(value) of FLOAT, as DOUBLE."""
    return build.fdiv(splat_float(DOUBLE, 1.0), intrinsic(build, "sqrt", widened(build, value)))


def by_library(build: ir.IRBuilder, name: str, value: ir.Value) -> ir.Value:
    """sin, cos, tanh of FLOAT, as DOUBLE: a call into the C library for each lane."""
    return intrinsic(build, name, widened(build, value))


def rounded(build: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """DOUBLE -> FLOAT, to nearest."""
    return build.fptrunc(value, FLOAT)
