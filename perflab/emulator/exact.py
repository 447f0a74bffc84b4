"""Float64 results that are certainly right: lane by lane, in fractions, in every rounding mode. Slow."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt
from typing import Any

import numpy as np

Array = Any


def _round_fraction(x: Fraction, mode: str) -> float:
    """The float64 of an exact value in a rounding mode."""
    if x == 0:
        return 0.0
    magnitude, negative = abs(x), x < 0
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, -1022) - 52)
    whole, rest = divmod(magnitude, step)
    up = {"rn": rest * 2 > step or (rest * 2 == step and whole % 2 == 1), "rz": False,
          "rp": rest > 0 and not negative, "rm": rest > 0 and negative}[mode]
    whole += up
    try:
        value = float(whole * step)  # exact
    except OverflowError:
        value = float("inf")
    if value == float("inf") and (mode == "rz" or mode == ("rm" if not negative else "rp")):
        value = float(np.finfo(np.float64).max)
    return -value if negative else value


def _exactly(operation: str, mode: str, operands: tuple[float, ...]) -> float:
    """One finite, nonzero result of 'fma', 'mul', 'add', 'div' or 'sqrt' in float64."""
    values = [Fraction(v) for v in operands]
    if operation == "sqrt":
        scale = 2 ** max(0, 1200 - values[0].numerator.bit_length() + values[0].denominator.bit_length())
        scale *= scale
        root = isqrt(scaled := values[0].numerator * scale // values[0].denominator)
        exact = root * root == scaled and scaled * values[0].denominator == values[0].numerator * scale
        return _round_fraction(Fraction(2 * root + (not exact), 2 * isqrt(scale)), mode)
    if operation == "div":
        return _round_fraction(values[0] / values[1], mode)
    value = values[0] + values[1] if operation == "add" else values[0] * values[1] + (values[2] if operation == "fma" else 0)
    if value == 0 and operation != "mul":
        return -0.0 if mode == "rm" else 0.0
    return _round_fraction(value, mode)


def repaired(operation: str, mode: str, result: Array, doubtful: Array, *operands: Array) -> Array:
    """`result` with the doubtful lanes replaced by the exact ones; lanes with zeros, infinities and NaN are right already."""
    spread = np.broadcast_arrays(*operands)
    result = np.array(result)
    for lane in zip(*np.nonzero(doubtful), strict=True):
        result[lane] = _exactly(operation, mode, tuple(float(x[lane]) for x in spread))
    return result
