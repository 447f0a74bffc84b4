"""Instruction family: arithmetic on integers and floats, exact and approximate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from perflab.emulator import approximations, arithmetic, integers
from perflab.emulator.arithmetic import Ending
from perflab.emulator.conversions import packed
from perflab.emulator.flow import CARRY
from perflab.emulator.forms import FLOATS, Form
from perflab.emulator.operations import Operation
from perflab.emulator.ptx import Arguments, Register

Function = Callable[..., Any]
ROUNDINGS = ("rn", "rz", "rm", "rp")
CATEGORIES = {"f16": "half", "bf16": "half", "f32": "float32", "f64": "float64"}


def ending(form: Form, kind: str) -> Ending:
    """Rounding and what follows it, out of the modifiers; no rounding means to nearest."""
    return Ending(kind, form.pick(ROUNDINGS, "rn"), form.has("ftz"), form.has("sat"), form.has("relu"))


def on_halves(function: Function, kind: str, register: str) -> Function:
    """The function on both halves where the type is a packed one."""
    return function if kind == register else packed(function, kind)


# ---------------------------------------------------------------- floats
def _float(form: Form, make: Callable[[Ending], Function], inputs: int, flop_kind: str, flops: int = 1) -> Operation:
    kind, register = form.element()
    function = on_halves(make(ending(form, kind)), kind, register)
    return form.compute(CATEGORIES[kind], [register], [register] * inputs, function, flop_kind=flop_kind, flop_type=kind,
                        flops=flops * (1 if kind == register else 2))


def _is_mixed(form: Form) -> bool:
    """add, sub, fma.f32.f16 (or bf16) of sm_100."""
    return form.left[-2:] in (["f32", "f16"], ["f32", "bf16"])


def _mixed(form: Form, make: Callable[[Ending], Function], flop_kind: str) -> Operation:
    """All operands but the last are narrow, and widened exactly."""
    narrow, kind = form.type(), form.type()
    function = make(ending(form, kind))
    count = form.expect(3, 4) - 2

    def run(*arrays: Any) -> Any:
        return function(*(arithmetic.widen(x, narrow).astype(np.float32) for x in arrays[:count]), *arrays[count:])

    return form.compute(CATEGORIES[kind], [kind], [narrow] * count + [kind], run, flops=count, flop_kind=flop_kind,
                        flop_type=kind)


def _fma(form: Form) -> Operation:
    return _mixed(form, arithmetic.fma, "fma") if _is_mixed(form) else _float(form, arithmetic.fma, 3, "fma", 2)


def _approximate(form: Form) -> Operation:
    """rsqrt, ex2, lg2, sin, cos, tanh, and the approximate forms of rcp and sqrt."""
    kind, register = form.element()
    form.pick(("approx",))
    name = form.instruction.opcode
    if kind == "f64":
        if name == "rsqrt" and "ftz" not in form.left:
            return form.compute("special", [kind], [kind], approximations.APPROXIMATIONS[name])
        if name not in ("rcp", "rsqrt") or not form.has("ftz"):
            raise form.unsupported("PTX has no such approximation")
        return form.compute("special", [kind], [kind], approximations.approximate_upper(name))
    if kind not in FLOATS:
        raise form.unsupported(f"type .{kind} is not known here")
    function = approximations.approximate(name, ending(form, kind))
    return form.compute("special", [register], [register], on_halves(function, kind, register))


def _root(form: Form) -> Operation:
    """rcp and sqrt."""
    if "approx" in form.left:
        return _approximate(form)
    kind = form.type("f")
    make = arithmetic.reciprocal if form.instruction.opcode == "rcp" else arithmetic.square_root
    return form.compute("special", [kind], [kind], make(ending(form, kind)))


def _copysign(form: Form) -> Operation:
    kind = form.type("f")
    return form.compute(CATEGORIES[kind], [kind], [kind] * 2, arithmetic.copysign(kind))


# ---------------------------------------------------------------- integers and floats
def _sum(form: Form) -> Operation:
    """add and sub."""
    minus = form.instruction.opcode.startswith("sub")
    if form.is_float():
        make = arithmetic.subtract if minus else arithmetic.add
        return _mixed(form, make, "add") if _is_mixed(form) else _float(form, make, 2, "add")
    if _carries(form):
        return _with_carry(form, lambda kind: lambda a, b: (a, b), 2, minus)
    kind, register = form.element()
    plainly = np.subtract if minus else np.add
    function = integers.saturating(kind, minus) if form.has("sat") else plainly
    return form.compute("integer", [register], [register] * 2, on_halves(function, kind, register))


def _product(kind: str, part: str) -> tuple[str, Function]:
    """Type and function of mul.lo, .hi and .wide."""
    if part == "lo":
        return kind, np.multiply
    return (f"{kind[0]}{2 * integers.width(kind)}", integers.multiply_wide(kind)) if part == "wide" else (
        kind, integers.multiply_high(kind))


def _multiply(form: Form) -> Operation:
    if form.is_float():
        return _float(form, arithmetic.multiply, 2, "mul")
    kind = form.type("us")
    result, function = _product(kind, form.pick(("lo", "hi", "wide")))
    return form.compute("integer", [result], [kind] * 2, function)


def _multiply_add(form: Form) -> Operation:
    if form.is_float():
        return _fma(form)
    if _carries(form):
        part = form.pick(("lo", "hi"))
        return _with_carry(form, lambda kind: lambda a, b, c: (_product(kind, part)[1](a, b), c), 3, False)
    kind = form.type("us")
    result, product = _product(kind, form.pick(("lo", "hi", "wide")))
    return form.compute("integer", [result], [kind, kind, result], _plus(product, kind, form.has("sat")))


def _plus(product: Function, kind: str, saturate: bool) -> Function:
    """product(a, b) + c, with .sat clamped."""
    if saturate:
        return lambda a, b, c: integers.clamp(product(a, b).astype(np.int64) + c, kind)
    return lambda a, b, c: product(a, b) + c


def _multiply24(form: Form) -> Operation:
    """mul24 and mad24."""
    kind = form.type("us")
    product = integers.multiply24(kind, form.pick(("lo", "hi")) == "hi")
    if form.instruction.opcode == "mul24":
        return form.compute("integer", [kind], [kind] * 2, product)
    return form.compute("integer", [kind], [kind] * 3, _plus(product, kind, form.has("sat")))


def _divide(form: Form) -> Operation:
    if not form.is_float():
        kind = form.type("us")
        return form.compute("integer", [kind], [kind] * 2, integers.divide(kind))
    kind = form.type()
    way = form.pick(("approx", "full"), "")
    end = ending(form, kind)
    function = approximations.divide_approximately(end, way == "full") if way else arithmetic.divide(end)
    return form.compute("special", [kind], [kind] * 2, function)


def _remainder(form: Form) -> Operation:
    kind = form.type("us")
    return form.compute("integer", [kind], [kind] * 2, integers.remainder(kind))


def _sign(form: Form) -> Operation:
    """abs and neg."""
    kind, register = form.element()
    absolute = form.instruction.opcode == "abs"
    if kind not in FLOATS:
        return form.compute("integer", [register], [register], np.abs if absolute else np.negative)
    turn, end = arithmetic.magnitude(kind) if absolute else arithmetic.negate(kind), ending(form, kind)

    def function(a: Any) -> Any:
        return arithmetic.finish(turn(a), end)

    return form.compute(CATEGORIES[kind], [register], [register], on_halves(function, kind, register))


def _extreme(form: Form) -> Operation:
    """min and max, of two or three."""
    kind, register = form.element()
    largest, inputs = form.instruction.opcode == "max", form.expect(3, 4) - 1
    if kind in FLOATS:
        nan, xorsign, absolute = form.has("NaN"), form.has("xorsign"), form.has("abs")
        if xorsign and not absolute:
            raise form.unsupported(".xorsign without .abs is not known")
        function = arithmetic.extreme(ending(form, kind), largest, nan, xorsign, absolute)
    else:
        pick: Function = np.maximum if largest else np.minimum
        function = (lambda a, b: np.maximum(pick(a, b), 0)) if form.has("relu") else pick
    return form.compute(CATEGORIES.get(kind, "integer"), [register], [register] * inputs, on_halves(function, kind, register))


def _difference(form: Form) -> Operation:
    """sad: c + |a - b|."""
    kind = form.type("us")
    return form.compute("integer", [kind], [kind] * 3, lambda a, b, c: c + np.where(a < b, b - a, a - b))


def _carries(form: Form) -> bool:
    return "cc" in form.left or form.instruction.opcode in ("addc", "subc", "madc")


def _with_carry(form: Form, make: Callable[[str], Function], inputs: int, minus: bool) -> Operation:
    """add.cc, addc and the like: the carry flag is read by …c and written by .cc."""
    if CARRY not in form.registers:
        raise form.unsupported("its program has no carry flag")
    kind = form.type("us")
    reads, writes = form.instruction.opcode.endswith("c"), form.has("cc")
    function = integers.with_carry(make(kind), kind, minus)

    def run(*arrays: Any) -> tuple[Any, ...]:
        results = function(*arrays, *(() if reads else (np.False_,)))
        return results if writes else results[:1]

    flag = (Register(CARRY),)
    form.operands = (Arguments(form.operands[:1] + flag * writes), *form.operands[1:], *(flag * reads))
    return form.compute("integer", [kind] + ["pred"] * writes, [kind] * inputs + ["pred"] * reads, run)


def _byte_differences(form: Form) -> Operation:
    """vabsdiff4."""
    total = form.has("add")
    kinds = {form.type("us") for _ in range(2)}
    form.type("us")
    if len(kinds) > 1:
        raise form.unsupported("operands of two types are not known")
    return form.compute("integer", ["u32"], ["u32"] * 3, integers.byte_differences(kinds.pop(), total))


def _dot(form: Form) -> Operation:
    """dp4a and dp2a."""
    b_kind, a_kind = form.type("us"), form.type("us")
    halves = form.pick(("lo", "hi")) if form.instruction.opcode == "dp2a" else ""
    result = "s32" if "s" in (a_kind[0], b_kind[0]) else "u32"
    return form.compute("integer", [result], ["u32", "u32", result], integers.dot(a_kind, b_kind, halves))


CALCULATION = {
    "integer and float arithmetic": {
        "add": _sum, "sub": _sum, "mul": _multiply, "mad": _multiply_add, "div": _divide, "rem": _remainder, "abs": _sign,
        "neg": _sign, "min": _extreme, "max": _extreme, "sad": _difference, "mul24": _multiply24, "mad24": _multiply24,
        "dp4a": _dot, "dp2a": _dot, "addc": _sum, "subc": _sum, "madc": _multiply_add, "vabsdiff4": _byte_differences},
    "float arithmetic": {"fma": _fma, "rcp": _root, "sqrt": _root, "copysign": _copysign},
    "approximations": {name: _approximate for name in ("rsqrt", "ex2", "lg2", "sin", "cos", "tanh")},
}
"""Family -> opcode -> reader of its forms."""
