"""The 32 lanes of a warp as one LLVM vector: splats, masks, register sizes, and intrinsics on them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from llvmlite import ir

LANES = 32
BITS = {"pred": 1, "u8": 8, "s8": 8, "u16": 16, "s16": 16, "f16": 16, "bf16": 16, "u32": 32, "s32": 32, "f32": 32,
        "u64": 64, "s64": 64, "f64": 64}
"""Bits of an operand type: a value of that type is a vector of integers of that size (raw bits for floats)."""

I32 = ir.IntType(32)


class Lanes(ir.VectorType):
    """A vector (of 32 lanes) whose constants are written short where all are the same: LLVM's parser is not free."""

    def __init__(self, element: ir.Type, count: int = LANES) -> None:
        super().__init__(element, count)

    def format_constant(self, value: Sequence[ir.Constant]) -> str:
        """'splat (i32 5)' instead of 32 times 'i32 5'."""
        first = value[0]
        if first.constant is not None and all(item is first or item.constant == first.constant for item in value):
            return f"splat ({first.type} {first.get_reference()})"
        return super().format_constant(value)


def _intrinsic_name(lanes: ir.VectorType) -> str:
    return f"v{lanes.count}{lanes.element.intrinsic_name}"


INTEGERS = {bits: Lanes(ir.IntType(bits)) for bits in (1, 8, 16, 32, 64, 128)}
HALF, FLOAT, DOUBLE = Lanes(ir.HalfType()), Lanes(ir.FloatType()), Lanes(ir.DoubleType())
PACKED_16 = Lanes(ir.IntType(16), 2 * LANES)  # the halves of 32 registers of 32 bits, low ones first
PACKED_8 = Lanes(ir.IntType(8), 4 * LANES)  # their bytes


def lanes_of(type_name: str) -> Lanes:
    """The vector type that holds an operand of that type: <32 x i32> for 'f32'."""
    return INTEGERS[BITS[type_name]]


@cache
def splat(bits: int, number: int) -> ir.Constant:
    """The same integer in every lane; a negative one, or one too large, is taken modulo 2**bits."""
    number &= (1 << bits) - 1
    return ir.Constant(INTEGERS[bits], bool(number) if bits == 1 else number)


@cache
def splat_float(lanes: Lanes, number: float) -> ir.Constant:
    """The same float in every lane of FLOAT or DOUBLE."""
    return ir.Constant(lanes, number)


def constant_of(value: ir.Value) -> int | None:
    """The number that a constant vector of integers holds in every lane; None where lanes differ or it is no constant."""
    if not isinstance(value, ir.Constant):
        return None
    if value.constant is None:  # zeroinitializer
        return 0
    if not isinstance(value.constant, (list, tuple)):
        return None
    numbers = {0 if item.constant is None else item.constant for item in value.constant}
    number = numbers.pop()
    return int(number) & ((1 << value.type.element.width) - 1) if not numbers and isinstance(number, int) else None


def element_bits(value: ir.Value) -> int:
    """Bits of a lane of a vector of integers."""
    return value.type.element.width


def broadcast(build: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    """A run-time integer in every lane."""
    lanes = INTEGERS[scalar.type.width]
    first = build.insert_element(ir.Constant(lanes, ir.Undefined), scalar, ir.Constant(I32, 0))
    return build.shuffle_vector(first, ir.Constant(lanes, ir.Undefined), ir.Constant(INTEGERS[32], None))


def pick(build: ir.IRBuilder, value: ir.Value, lanes: Sequence[int]) -> ir.Value:
    """Lane i of the result is lane `lanes[i]` of value."""
    return build.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), ir.Constant(INTEGERS[32], list(lanes)))


def mask_of(build: ir.IRBuilder, predicate: ir.Value) -> ir.Value:
    """<32 x i1> -> i32, lane 0 in the lowest bit."""
    return build.bitcast(predicate, I32)


def predicate_of(build: ir.IRBuilder, mask: ir.Value) -> ir.Value:
    """i32 -> <32 x i1>, the lowest bit in lane 0."""
    return build.bitcast(mask, INTEGERS[1])


def popcount(build: ir.IRBuilder, mask: ir.Value) -> ir.Value:
    """The number of set bits of a scalar integer, of its own type."""
    return scalar_intrinsic(build, "ctpop", mask)


def scalar_intrinsic(build: ir.IRBuilder, name: str, *arguments: ir.Value, more: Sequence[ir.Type] = ()) -> ir.Value:
    """llvm.<name>.i<n> on scalar integers; the result has the type of the first argument."""
    kind = arguments[0].type
    return _call(build, f"llvm.{name}.i{kind.width}", kind, arguments)


def intrinsic(build: ir.IRBuilder, name: str, *arguments: ir.Value, result: ir.VectorType | None = None) -> ir.Value:
    """llvm.<name> on vectors. Without `result` it has the first argument's type; with it, the name says both types."""
    kind = arguments[0].type
    suffix = _intrinsic_name(kind) if result is None else f"{_intrinsic_name(result)}.{_intrinsic_name(kind)}"
    return _call(build, f"llvm.{name}.{suffix}", result or kind, arguments)


def _call(build: ir.IRBuilder, name: str, result: ir.Type, arguments: Sequence[ir.Value]) -> ir.Value:
    module = build.module
    known = module.globals.get(name)
    if known is None:
        known = ir.Function(module, ir.FunctionType(result, [a.type for a in arguments]), name)
    return build.call(known, arguments)


def resize(build: ir.IRBuilder, value: ir.Value, bits: int, signed: bool = False) -> ir.Value:
    """Low bits of a wider value; a narrower one zero- or sign-extended. Constants stay constants."""
    have = element_bits(value)
    if have == bits:
        return value
    number = constant_of(value)
    if number is not None:
        return splat(bits, number - (1 << have) if signed and number >> (have - 1) else number)
    if have > bits:
        return build.trunc(value, INTEGERS[bits])
    return (build.sext if signed else build.zext)(value, INTEGERS[bits])


def as_type(build: ir.IRBuilder, bits_value: ir.Value, from_bits: int, type_name: str) -> ir.Value:
    """A register of `from_bits` read as an operand of that type: its low bits; a narrower register is extended."""
    del from_bits  # the value says it itself
    return resize(build, bits_value, BITS[type_name], signed=type_name.startswith("s"))


def as_register(build: ir.IRBuilder, value: ir.Value, type_name: str, to_bits: int) -> ir.Value:
    """A result of that type written to a register of `to_bits`: 's…' is sign-extended, all else zero-extended."""
    return resize(build, value, to_bits, signed=type_name.startswith("s"))


def to_float(build: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Raw bits (32 or 64) as floats."""
    return build.bitcast(value, FLOAT if element_bits(value) == 32 else DOUBLE)


def to_bits(build: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Floats as raw bits."""
    return build.bitcast(value, INTEGERS[32 if value.type.element == ir.FloatType() else 64])
