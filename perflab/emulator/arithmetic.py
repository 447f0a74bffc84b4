"""Floating-point arithmetic as a GPU does it, on numpy arrays: what numpy lacks or does otherwise.

f32 and f64 are numpy floats; f16 and bf16 are held as their 16 bits (uint16). Rounding is exact everywhere: a narrow result is
made in float64 by rounding to odd, which a second rounding to at most 51 bits cannot spoil, whatever its direction.
Source of the rules: NVIDIA's PTX ISA, floating-point instructions. Where it leaves bits open (NaN payloads of f32, f16 and
bf16) the canonical NaN is given, as the hardware does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from perflab.emulator.exact import repaired

NUMPY: dict[str, Any] = {"pred": np.bool_, "f16": np.uint16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64}
NUMPY |= {f"{kind}{bits}": np.dtype(f"{name}{bits}").type for kind, name in (("u", "uint"), ("s", "int"))
          for bits in (8, 16, 32, 64)}
BITS: dict[str, Any] = {"f16": np.uint16, "bf16": np.uint16, "f32": np.uint32, "f64": np.uint64}
CANONICAL_NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0x7FF8000000000000}
SIGN = {"f16": 0x8000, "bf16": 0x8000, "f32": 1 << 31, "f64": 1 << 63}
SMALLEST_NORMAL = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126, "f64": 2.0**-1022}
ONE = {"f16": 0x3C00, "bf16": 0x3F80, "f32": 0x3F800000, "f64": 0x3FF0000000000000}
INFINITY = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF0000000000000}

Array = Any  # a numpy array, or a numpy scalar that broadcasts
Function = Callable[..., Array]


@dataclass(frozen=True)
class Ending:
    """How a floating-point result is finished: type, rounding ('rn', 'rz', 'rm', 'rp'), and what follows the rounding.

    ftz flushes subnormal inputs and results (see `is_tiny`) to zero of the same sign; saturate clamps to [0, 1], NaN gives 0;
    relu lifts negative results to 0 and keeps NaN; finite clamps to the largest finite number (satfinite).
    """

    type: str
    mode: str = "rn"
    ftz: bool = False
    saturate: bool = False
    relu: bool = False
    finite: bool = False


# ---------------------------------------------------------------- types
def bits_of(x: Array, type: str) -> Array:
    """The raw bits of values of a type."""
    return np.asarray(x).view(BITS[type])


def from_bits(bits: Array, type: str) -> Array:
    """Values of a type from raw bits (f16 and bf16 stay as they are)."""
    return np.asarray(bits, BITS[type]).view(NUMPY[type])


def widen(x: Array, type: str) -> Array:
    """Exact float64 of values of a type."""
    if type == "bf16":
        return (np.asarray(x).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return (np.asarray(x).view(np.float16) if type == "f16" else np.asarray(x)).astype(np.float64)


def flush(x: Array, type: str, tiny: Array = False) -> Array:
    """Subnormals, and what is `tiny` besides, to zero of the same sign, as .ftz reads and writes."""
    bits = bits_of(x, type)
    tiny = ((bits & BITS[type](INFINITY[type])) == 0) | tiny
    return np.where(tiny, bits & BITS[type](SIGN[type]), bits).view(NUMPY[type])


def is_nan(x: Array, type: str) -> Array:
    """True where a value is a NaN."""
    if type in ("f32", "f64"):
        return np.isnan(x)
    return (np.asarray(x) & np.uint16(SIGN[type] - 1)) > np.uint16(INFINITY[type])


def canonical(x: Array, type: str) -> Array:
    """NaN of any payload to the canonical one; f64 keeps its payloads."""
    if type == "f64":
        return x
    nan = is_nan(x, type)
    return np.where(nan, from_bits(CANONICAL_NAN[type], type), x) if np.any(nan) else x


# ---------------------------------------------------------------- rounding
def odd_sum(a: Array, b: Array) -> Array:
    """a + b in float64, rounded to odd: the inexact sum whose last bit is even moves towards what was cut off."""
    total = np.asarray(a + b)
    bigger = np.abs(a) >= np.abs(b)
    rest = np.where(bigger, b, a) - (total - np.where(bigger, a, b))
    bits = total.view(np.int64)
    inexact = (rest != 0) & ((bits & 1) == 0) & np.isfinite(total)
    return (bits + np.where(inexact, np.where((rest > 0) == (total > 0), 1, -1), 0)).view(np.float64)


def _nearest(x: Array, type: str) -> Array:
    """Float64 -> bits of the nearest value of a narrower type, ties to even."""
    if type == "f32":
        return x.astype(np.float32).view(np.uint32)
    if type == "f16":
        return x.astype(np.float16).view(np.uint16)
    single = np.asarray(x.astype(np.float32))  # to odd: 24 bits are enough for a second rounding to 8
    bits, back = single.view(np.int32), single.astype(np.float64)
    inexact = (back != x) & ((bits & 1) == 0) & np.isfinite(x)
    bits = bits + np.where(inexact, np.where(np.abs(x) > np.abs(back), 1, -1), 0).astype(np.int32)
    wide = bits.view(np.uint32).astype(np.uint64)
    rounded = (wide + np.uint64(0x7FFF) + ((wide >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    return np.where(np.isnan(x), np.uint64(0x7FFF), rounded).astype(np.uint16)


def round_to(x: Array, type: str, mode: str = "rn") -> Array:
    """Float64 (exact, or rounded to odd) -> values of f32, f16 or bf16 in a rounding mode.

    Encodings of one sign are in order of magnitude, so that a neighbour is one bit pattern further.
    """
    x = np.asarray(x, np.float64)
    bits = _nearest(x, type)
    if mode != "rn":
        back = widen(bits.view(NUMPY[type]), type)
        too_big, too_small = np.abs(back) > np.abs(x), np.abs(back) < np.abs(x)
        negative = np.signbit(x)
        if mode == "rz":
            too_small = np.zeros_like(too_small)
        else:
            inward = negative if mode == "rp" else ~negative
            too_big, too_small = too_big & inward, too_small & ~inward
        bits = bits + too_small.astype(bits.dtype) - too_big.astype(bits.dtype)
    return np.asarray(bits).view(NUMPY[type])


def is_tiny(exact: Array, ending: Ending) -> Array:
    """Whether .ftz flushes a result, by its float64 before rounding: exact, or rounded to odd.

    Rounded with an unbounded exponent it is below the smallest normal number, to which it may round with a bounded one. So an
    H200 does it (data/experiments/h200_instructions.npz): (1 - 2^-24) 2^-126 is flushed, (1 - 2^-20) 2^-14 of f16 is not.
    """
    if not ending.ftz:
        return False
    rounded = widen(round_to(np.multiply(exact, 4.0), ending.type, ending.mode), ending.type)
    return np.abs(rounded) < 4.0 * SMALLEST_NORMAL[ending.type]


def finish(x: Array, ending: Ending, tiny: Array = False) -> Array:
    """What follows the rounding: saturation, flushing, the canonical NaN. x: values of ending.type; tiny: see `is_tiny`."""
    kind = ending.type
    if ending.saturate or ending.relu or ending.finite:
        bits, nan = bits_of(x, kind), is_nan(x, kind)
        magnitude, negative = bits & BITS[kind](SIGN[kind] - 1), (bits & BITS[kind](SIGN[kind])) != 0
        if ending.finite:
            largest = BITS[kind](INFINITY[kind] - 1)
            bits = np.where(~nan & (magnitude > largest), largest | (bits & BITS[kind](SIGN[kind])), bits)
        if ending.saturate:
            bits = np.where(nan | negative, BITS[kind](0), np.minimum(bits, BITS[kind](ONE[kind])))
        elif ending.relu:
            bits = np.where(~nan & negative, BITS[kind](0), bits)
        x = bits.view(NUMPY[kind])
    if ending.ftz:
        x = flush(x, kind, tiny)
    return canonical(x, kind)


# ---------------------------------------------------------------- fused multiply-add
def _split(a: Array) -> tuple[Array, Array]:
    high = a * 134217729.0
    high = high - (high - a)
    return high, a - high


def fma64(a: Array, b: Array, c: Array, mode: str = "rn") -> Array:
    """a * b + c in float64 with one rounding."""
    product = a * b
    plain = np.where(np.isfinite(a) & np.isfinite(b) & np.isinf(c), c, product + c)  # the product may have overflowed
    regular = np.isfinite(a) & np.isfinite(b) & np.isfinite(c) & (a != 0) & (b != 0)
    middle = (np.abs(product) > 2.0**-900) & (np.abs(product) < 2.0**990) & (np.abs(a) < 2.0**990) & (np.abs(b) < 2.0**990)
    middle &= (np.abs(c) < 2.0**990) & ((np.abs(c) > 2.0**-900) | (c == 0)) & (mode == "rn")
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    low = a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)
    upper, upper_rest = _two_sum(c, low)
    total, total_rest = _two_sum(product, upper)
    fused = total + odd_sum(upper_rest, total_rest)
    result = np.where(regular & middle & (fused != 0), fused, plain)
    doubtful = regular & ~middle
    if mode == "rm":
        result = _down_to_minus_zero(result, product, c)
    return repaired("fma", mode, result, doubtful, a, b, c) if np.any(doubtful) else result


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _down_to_minus_zero(total: Array, a: Array, b: Array) -> Array:
    """Rounding down, a sum that is exactly 0 is -0 unless both addends are +0."""
    return np.where((total == 0) & (np.signbit(a) | np.signbit(b)), -0.0, total)


def fma32(a: Array, b: Array, c: Array) -> Array:
    """a * b + c in float32 with one rounding to nearest.

    Fast: the product is exact in float64, and a second rounding errs only where the sum was itself rounded to something
    whose last 28 bits are 0 (a tie). Only such lanes are looked at again.
    """
    product, c = np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64)
    total = np.asarray(product + c)
    result = total.astype(np.float32)
    hazard = (total.view(np.int64) & 0x0FFFFFFF) == 0
    if np.any(hazard):
        product, c = np.broadcast_arrays(product, c)
        result[hazard] = odd_sum(product[hazard], c[hazard]).astype(np.float32)
    return result


# ---------------------------------------------------------------- a function of an Ending gives the function of arrays
def flushed(ending: Ending, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Operands as an instruction reads them."""
    return tuple(flush(x, ending.type) for x in arrays) if ending.ftz else arrays


def _native(ending: Ending) -> bool:
    """numpy's own operation rounds as asked."""
    return ending.mode == "rn" and ending.type in ("f32", "f64")


def _on_the_edge(rounded: Array, ending: Ending) -> bool:
    """Whether some result is the smallest normal number: .ftz flushes it where it was rounded up to that."""
    return ending.ftz and bool(np.any(np.abs(rounded) == SMALLEST_NORMAL[ending.type]))


def add(ending: Ending) -> Function:
    """a + b."""
    kind, mode = ending.type, ending.mode

    def run(a: Array, b: Array) -> Array:
        a, b = flushed(ending, (a, b))
        if _native(ending):
            return finish(a + b, ending)
        if kind == "f64":
            regular = np.isfinite(a) & np.isfinite(b) & (a != 0) & (b != 0)
            return repaired("add", mode, _down_to_minus_zero(a + b, a, b) if mode == "rm" else a + b, regular, a, b)
        a, b = widen(a, kind), widen(b, kind)
        total = odd_sum(a, b)
        return finish(round_to(_down_to_minus_zero(total, a, b) if mode == "rm" else total, kind, mode), ending)

    return run


def subtract(ending: Ending) -> Function:
    """a - b."""
    plus = add(ending)
    return lambda a, b: plus(a, negate(ending.type)(b))


def multiply(ending: Ending) -> Function:
    """a * b."""
    kind, mode = ending.type, ending.mode

    def run(a: Array, b: Array) -> Array:
        a, b = flushed(ending, (a, b))
        if _native(ending) and not _on_the_edge(plain := a * b, ending):
            return finish(plain, ending)
        if kind == "f64":
            return repaired("mul", mode, a * b, np.isfinite(a) & np.isfinite(b) & (a != 0) & (b != 0), a, b)
        product = widen(a, kind) * widen(b, kind)
        return finish(round_to(product, kind, mode), ending, is_tiny(product, ending))

    return run


def fma(ending: Ending) -> Function:
    """a * b + c with one rounding."""
    kind, mode = ending.type, ending.mode

    def run(a: Array, b: Array, c: Array) -> Array:
        a, b, c = flushed(ending, (a, b, c))
        if kind == "f64":
            return fma64(a, b, c, mode)
        if mode == "rn" and kind == "f32" and not _on_the_edge(plain := fma32(a, b, c), ending):
            return finish(plain, ending)
        product, c = widen(a, kind) * widen(b, kind), widen(c, kind)
        total = odd_sum(product, c)
        rounded = round_to(_down_to_minus_zero(total, product, c) if mode == "rm" else total, kind, mode)
        return finish(rounded, ending, is_tiny(total, ending))

    return run


def divide(ending: Ending) -> Function:
    """a / b (f32, f64)."""

    def run(a: Array, b: Array) -> Array:
        a, b = flushed(ending, (a, b))
        if _native(ending) and not _on_the_edge(plain := a / b, ending):
            return finish(plain, ending)
        regular = np.isfinite(a) & np.isfinite(b) & (a != 0) & (b != 0)
        if ending.type == "f64":
            return repaired("div", ending.mode, a / b, regular, a, b)
        a, b = widen(a, "f32"), widen(b, "f32")
        quotient = a / b
        rest = (a - quotient * b) * np.sign(b)  # exact where the quotient looks like a float32
        return finish(round_to(_nudged(quotient, rest, regular), "f32", ending.mode), ending, is_tiny(quotient, ending))

    return run


def square_root(ending: Ending) -> Function:
    """sqrt(a) (f32, f64)."""

    def run(a: Array) -> Array:
        (a,) = flushed(ending, (a,))
        if _native(ending):
            return finish(np.sqrt(a), ending)
        regular = np.isfinite(a) & (a > 0)
        if ending.type == "f64":
            return repaired("sqrt", ending.mode, np.sqrt(a), regular, a)
        a = widen(a, "f32")
        root = np.sqrt(a)
        return finish(round_to(_nudged(root, a - root * root, regular), "f32", ending.mode), ending)

    return run


def _nudged(x: Array, rest: Array, regular: Array) -> Array:
    """Float64 results that look like a float32 but are not exact, moved by one bit towards the truth (`rest` has its sign)."""
    hidden = regular & (x.astype(np.float32) == x) & (rest != 0)
    return np.where(hidden, np.nextafter(x, np.where(rest > 0, np.inf, -np.inf)), x)


def reciprocal(ending: Ending) -> Function:
    """1 / a (f32, f64)."""
    over = divide(ending)
    return lambda a: over(NUMPY[ending.type](1), a)


# ---------------------------------------------------------------- signs, extremes, tests; NaN payloads are kept
def negate(kind: str) -> Function:
    """-a: the sign bit turned over."""
    return lambda a: (bits_of(a, kind) ^ BITS[kind](SIGN[kind])).view(NUMPY[kind])


def magnitude(kind: str) -> Function:
    """|a|: the sign bit cleared."""
    return lambda a: (bits_of(a, kind) & BITS[kind](SIGN[kind] - 1)).view(NUMPY[kind])


def copysign(kind: str) -> Function:
    """The magnitude of b with the sign of a."""
    sign = BITS[kind](SIGN[kind])
    return lambda a, b: ((bits_of(a, kind) & sign) | (bits_of(b, kind) & ~sign)).view(NUMPY[kind])


def extreme(ending: Ending, largest: bool, nan: bool = False, xorsign: bool = False, absolute: bool = False) -> Function:
    """min or max of two or three: a NaN gives the other operand (nan: NaN), -0 < +0.

    absolute compares magnitudes; xorsign then gives the result the product's sign.
    """
    kind = ending.type

    def pair(a: Array, b: Array) -> Array:
        sign: Array = (bits_of(a, kind) ^ bits_of(b, kind)) & BITS[kind](SIGN[kind])
        if absolute:
            a, b = magnitude(kind)(a), magnitude(kind)(b)
        x, y = (a, b) if kind in ("f32", "f64") else (widen(a, kind), widen(b, kind))
        less = (x < y) | ((x == y) & np.signbit(x))
        result: Array = np.where(less, b, a) if largest else np.where(less, a, b)
        left, right = np.isnan(x), np.isnan(y)
        result = np.where(left, b, np.where(right, a, result))
        if xorsign:
            result = (bits_of(result, kind) | sign).view(NUMPY[kind])
        wrong = (left | right) if nan else (left & right)
        return np.where(wrong, from_bits(CANONICAL_NAN[kind], kind), result)

    def run(*arrays: Array) -> Array:
        read = flushed(ending, arrays)
        result = read[0]
        for other in read[1:]:
            result = pair(result, other)
        return finish(result, ending) if ending.relu else result

    return run


COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: (a < b) | (a > b), "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b, "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": lambda a, b: a != b, "ltu": lambda a, b: ~(a >= b), "leu": lambda a, b: ~(a > b), "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b), "num": lambda a, b: (a == a) & (b == b), "nan": lambda a, b: (a != a) | (b != b),
}
"""Of floats: those that end in u are true where an operand is NaN."""


def compare(kind: str, comparison: str, ftz: bool = False) -> Function:
    """a, b of a float type -> bool."""
    test = COMPARISONS[comparison]

    def run(a: Array, b: Array) -> Array:
        if ftz:
            a, b = flush(a, kind), flush(b, kind)
        return test(a, b) if kind in ("f32", "f64") else test(widen(a, kind), widen(b, kind))

    return run


def has_property(kind: str, name: str) -> Function:
    """testp: 'finite', 'infinite', 'number', 'notanumber', 'normal' (zero too, PTX says), 'subnormal'."""

    def run(a: Array) -> Array:
        size = np.abs(a)
        answers = {"finite": np.isfinite(a), "infinite": np.isinf(a), "number": ~np.isnan(a), "notanumber": np.isnan(a),
                   "normal": np.isfinite(a) & ((size >= SMALLEST_NORMAL[kind]) | (size == 0)),
                   "subnormal": (size > 0) & (size < SMALLEST_NORMAL[kind])}
        return answers[name]

    return run
