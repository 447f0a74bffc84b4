"""cvt: between integers and floats of all widths, with PTX's rounding, clamping and NaN rules, on numpy arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from perflab.emulator.arithmetic import (
    BITS,
    INFINITY,
    NUMPY,
    SIGN,
    Ending,
    bits_of,
    canonical,
    finish,
    flush,
    is_nan,
    is_tiny,
    odd_sum,
    round_to,
    widen,
)
from perflab.emulator.forms import FLOATS, TYPES, Form
from perflab.emulator.integers import clamp, unsigned, width
from perflab.emulator.operations import Operation

Array = Any
Function = Callable[..., Array]

INTEGRAL: dict[str, Callable[[Array], Array]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def integer_to_integer(target: str, source: str, saturate: bool) -> Function:
    """Truncates or extends by the source's sign; .sat clamps."""
    if not saturate:
        return lambda a: a.astype(NUMPY[target])
    low, high = np.iinfo(NUMPY[target]).min, np.iinfo(NUMPY[target]).max
    own = np.iinfo(NUMPY[source])
    return lambda a: np.clip(a, max(low, own.min), min(high, own.max)).astype(NUMPY[target])


def float_to_integer(target: str, source: str, rounding: str, ftz: bool) -> Function:
    """Rounds to an integer and clamps. NaN: 0, but the top bit alone where the source is f64 or the target has 64 bits."""
    type, info = NUMPY[target], np.iinfo(NUMPY[target])
    top_bit = info.min if target[0] == "s" else 1 << (width(target) - 1)
    nan = type(top_bit if source == "f64" or width(target) == 64 else 0)

    def run(a: Array) -> Array:
        value = INTEGRAL[rounding](widen(flush(a, source) if ftz else a, source))
        over, under = value >= 2.0 ** (width(target) - (target[0] == "s")), value <= float(info.min)
        inside = np.where(over | under | np.isnan(value), 0.0, value).astype(type)
        result = np.where(over, type(info.max), np.where(under, type(info.min), inside))
        return np.where(np.isnan(value), nan, result)

    return run


def integer_to_float(ending: Ending, source: str) -> Function:
    """Rounds as asked: both 32-bit halves are exact in float64, their sum is rounded to odd."""

    def run(a: Array) -> Array:
        if ending.mode == "rn" and ending.type in ("f32", "f64"):
            return finish(a.astype(NUMPY[ending.type]), ending)
        high = (a >> a.dtype.type(32)).astype(np.float64) * 2.0**32 if width(source) == 64 else np.float64(0)
        low = (a & a.dtype.type(0xFFFFFFFF)).astype(np.float64) if width(source) == 64 else a.astype(np.float64)
        if ending.type == "f64":
            return finish(_directed_sum(high, low, ending.mode), ending)
        return finish(round_to(odd_sum(high, low), ending.type, ending.mode), ending)

    return run


def _directed_sum(high: Array, low: Array, mode: str) -> Array:
    """high + low of one 64-bit integer, |high| >= |low| or 0, in float64 in a directed mode."""
    total = high + low
    rest = low - (total - high)
    down = ((mode == "rm") | ((mode == "rz") & (total > 0))) & (rest < 0)
    up = ((mode == "rp") | ((mode == "rz") & (total < 0))) & (rest > 0)
    return np.where(down, np.nextafter(total, -np.inf), np.where(up, np.nextafter(total, np.inf), total))


def float_to_float(ending: Ending, source: str, integral: str = "") -> Function:
    """Widens exactly, narrows with rounding, or (integral: 'rni' …) rounds to an integral value of the same type.

    .ftz flushes f32 subnormals only, read or written. NaN: canonical, but see `_passed_on`.
    """
    flushes = ending.ftz and source == "f32"
    ending = replace(ending, ftz=ending.ftz and ending.type == "f32")

    def run(a: Array) -> Array:
        a = flush(a, source) if flushes else a
        if ending.type == source and not integral:
            return finish(a, ending)
        value = widen(a, source)
        value = INTEGRAL[integral](value) if integral else value
        if ending.type == "f64":
            return finish(value, ending)
        result = finish(round_to(value, ending.type, ending.mode), ending, is_tiny(value, ending))
        keeps = not ending.saturate and (source == "f64" or (source, ending.type) == ("bf16", "f32"))
        return np.where(is_nan(a, source), _passed_on(a, source, ending.type), result) if keeps else result

    return run


def _passed_on(nan: Array, source: str, target: str) -> Array:
    """NaNs as the hardware converts them from f64, quiet, and from bf16 to f32, as they are: sign and upper payload stay."""
    bits, type = bits_of(nan, source), BITS[target]
    if source == "bf16":
        return (bits.astype(type) << type(16)).view(NUMPY[target])
    size, fraction = {"f32": (32, 23), "f16": (16, 10), "bf16": (16, 7)}[target]
    sign = (bits >> np.uint64(64 - size)).astype(type) & type(SIGN[target])
    payload = (bits >> np.uint64(52 - fraction)).astype(type) & type((1 << fraction) - 1)
    return (sign | type(INFINITY[target] | 1 << (fraction - 1)) | payload).view(NUMPY[target])


# ---------------------------------------------------------------- tf32, fp8
def to_tf32(mode: str, relu: bool, finite: bool) -> Function:
    """f32 -> f32 with 10 fraction bits, the other 13 zero: 'rna' (ties away; cuts NaNs too), 'rn' or 'rz'."""

    def run(a: Array) -> Array:
        a = a if mode == "rna" else finish(a, Ending("f32", relu=relu))
        bits: Array = np.asarray(a).view(np.uint32)
        odd = (bits >> np.uint32(13)) & np.uint32(1)
        added = {"rna": np.uint32(0x1000), "rn": np.uint32(0xFFF) + odd, "rz": np.uint32(0)}[mode]
        kept = np.where(np.isfinite(a), bits + added, bits) & np.uint32(0xFFFFE000)  # a carry into the exponent is right
        result = kept.view(np.float32)
        over = np.isinf(result) & ~np.isnan(a) & finite
        return np.where(over, np.copysign(np.uint32(0x7F7FE000).view(np.float32), a), result)

    return run


SMALL_FORMATS = {"e4m3": (4, 3), "e5m2": (5, 2)}


def _small_values(name: str) -> np.ndarray:
    """The finite values of a byte format from 0 upwards, one per encoding."""
    exponent_bits, fraction_bits = SMALL_FORMATS[name]
    bias, codes = (1 << (exponent_bits - 1)) - 1, np.arange(127 if name == "e4m3" else 124)
    exponent, fraction = codes >> fraction_bits, (codes & ((1 << fraction_bits) - 1)) / (1 << fraction_bits)
    return np.where(exponent == 0, np.ldexp(fraction, 1 - bias), np.ldexp(1 + fraction, exponent - bias))


def to_small(name: str, source: str, relu: bool) -> Function:
    """A float -> its byte, nearest even, clamped to the largest finite (.satfinite); NaN gives 0x7f."""
    values = _small_values(name)
    middles = (values[1:] + values[:-1]) / 2

    def run(a: Array) -> Array:
        value = widen(a, source)
        size = np.abs(value)
        low, high = np.searchsorted(middles, size, "left"), np.searchsorted(middles, size, "right")
        code = np.where(low % 2 == 0, low, high)  # at a middle the two differ by one: the even one
        code = code | np.where(np.signbit(value), 0x80, 0)
        if relu:
            code = np.where(np.signbit(value), 0, code)
        return np.where(np.isnan(value), 0x7F, code).astype(np.uint8)

    return run


def from_small(name: str, relu: bool) -> Function:
    """A byte -> f16."""
    finite = _small_values(name)
    table = np.full(128, np.nan)
    table[: finite.size] = finite
    if name == "e5m2":
        table[0x7C] = np.inf
    halves = np.concatenate([table, -table]).astype(np.float16).view(np.uint16)
    halves = canonical(halves, "f16")
    return lambda byte: finish(halves[byte], Ending("f16", relu=relu))


# ---------------------------------------------------------------- pairs in one register
def split(word: Array, kind: str) -> tuple[Array, Array]:
    """The low and the high half of a register as values of `kind` ('f16', 'bf16', 's16', 'u16', 'f32')."""
    bits = {"f32": 32}.get(kind, 16)
    half = np.uint32 if bits == 32 else np.uint16
    low, high = word.astype(half), (word >> word.dtype.type(bits)).astype(half)
    return low.view(NUMPY[kind]), high.view(NUMPY[kind])


def join(low: Array, high: Array) -> Array:
    """Two equally wide values as one register of twice the width."""
    bits = 8 * np.asarray(low).dtype.itemsize
    word = NUMPY[f"u{2 * bits}"]
    return unsigned(low).astype(word) | (unsigned(high).astype(word) << word(bits))


def packed(function: Function, kind: str) -> Function:
    """A function of values of `kind` -> the same on both halves of registers."""

    def run(*words: Array) -> Array:
        halves = [split(word, kind) for word in words]
        return join(function(*(low for low, _ in halves)), function(*(high for _, high in halves)))

    return run


def pack_saturated(target: str, source: str) -> Function:
    """cvt.pack.sat.target.source: a in the upper, b in the lower half, clamped ('s16', 'u16'; with bytes c follows above)."""
    bits = width(target)

    def run(a: Array, b: Array, *above: Array) -> Array:
        high, low = (clamp(x.astype(np.int64), target).view(NUMPY[f"u{bits}"]).astype(np.uint32) for x in (a, b))
        both = (high << np.uint32(bits)) | low
        return both | (above[0].astype(np.uint32) << np.uint32(2 * bits)) if above else both

    return run


# ---------------------------------------------------------------- the forms of cvt
def _convert(form: Form) -> Operation:
    if form.has("pack"):
        return _convert_pack(form)
    source, target = form.raw_type(), form.raw_type()
    if target in _SPECIAL or source in _SPECIAL:
        return _convert_special(form, target, source)
    if source not in TYPES or target not in TYPES:
        raise form.unsupported(f"a conversion from .{source} to .{target} is not known")
    source, target = TYPES[source], TYPES[target]
    integral, mode = form.pick(INTEGRAL, ""), form.pick(("rn", "rz", "rm", "rp"), "")
    ending = Ending(target, mode or "rn", form.has("ftz"), form.has("sat"), form.has("relu"), form.has("satfinite"))
    if source in FLOATS and target in FLOATS:
        function = float_to_float(ending, source, integral)
    elif source in FLOATS:
        if not integral:
            raise form.unsupported("its rounding to an integer is missing")
        function = float_to_integer(target, source, integral, ending.ftz)
    elif target in FLOATS:
        function = integer_to_float(ending, source)
    else:
        function = integer_to_integer(target, source, ending.saturate)
    return form.compute("convert", [target], [source], function)


def _convert_pack(form: Form) -> Operation:
    form.pick(("sat",))
    third = [form.type("u")] if form.expect(3, 4) == 4 else []
    source, target = form.type("s"), form.type("us")
    return form.compute("convert", ["u32"], [source, source, *third], pack_saturated(target, source))


_SPECIAL = ("tf32", "f16x2", "bf16x2", "e4m3x2", "e5m2x2")


def _convert_special(form: Form, target: str, source: str) -> Operation:
    """Conversions of two floats into one register, of pairs of bytes, and to tf32."""
    relu, finite = form.has("relu"), form.has("satfinite")
    mode, small, halves = form.pick(("rn", "rz", "rna")), target[:-2], source[:-2]
    if target == "tf32" and source == "f32" and not (mode == "rna" and relu):
        return form.compute("convert", ["f32"], ["f32"], to_tf32(mode, relu, finite))
    if mode == "rna":
        raise form.unsupported(".rna is for tf32")
    if target in ("f16x2", "bf16x2") and source == "f32":
        narrow = float_to_float(Ending(small, mode, relu=relu, finite=finite), "f32")
        return form.compute("convert", ["u32"], ["f32", "f32"], lambda a, b: join(narrow(b), narrow(a)))
    if small in SMALL_FORMATS and source in ("f32", "f16x2") and finite and mode == "rn":
        narrow = to_small(small, "f32" if source == "f32" else "f16", relu)
        if source == "f32":
            return form.compute("convert", ["u16"], ["f32", "f32"], lambda a, b: join(narrow(b), narrow(a)))
        return form.compute("convert", ["u16"], ["u32"], lambda a: join(*(narrow(x) for x in split(a, "f16"))))
    if halves in SMALL_FORMATS and target == "f16x2" and mode == "rn":
        wide = from_small(halves, relu)
        return form.compute("convert", ["u32"], ["u16"], lambda a: join(wide(a & np.uint16(0xFF)), wide(a >> np.uint16(8))))
    raise form.unsupported(f"a conversion from .{source} to .{target} is not known")


CONVERSION = {"conversion": {"cvt": _convert}}
