"""Integer and bit operations as a GPU does them, on numpy integers of fixed width: wrap-around, and PTX's corner cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from perflab.emulator.arithmetic import NUMPY

Array = Any
Function = Callable[..., Array]


def width(kind: str) -> int:
    """Bits of 'u32', 's8', …"""
    return int(kind[1:])


def unsigned(x: Array) -> Array:
    """The same bits, unsigned."""
    x = np.asarray(x)
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def clamp(x: Array, kind: str) -> Array:
    """int64 values clamped to the range of a type."""
    info = np.iinfo(NUMPY[kind])
    return np.clip(x, max(info.min, -(1 << 63)), min(info.max, (1 << 63) - 1)).astype(NUMPY[kind])


def saturating(kind: str, minus: bool) -> Function:
    """add.sat, sub.sat of s32."""
    return lambda a, b: clamp(a.astype(np.int64) + (-b.astype(np.int64) if minus else b.astype(np.int64)), kind)


def multiply_wide(kind: str) -> Function:
    """The whole product, of twice the width (16 and 32 bits)."""
    wide = NUMPY[f"{kind[0]}{2 * width(kind)}"]
    return lambda a, b: np.asarray(a).astype(wide) * np.asarray(b).astype(wide)


def multiply_high(kind: str) -> Function:
    """The upper half of the product."""
    if width(kind) < 64:
        wide = multiply_wide(kind)
        shift = width(kind)
        return lambda a, b: _shifted(wide(a, b), shift).astype(NUMPY[kind])
    return _high64 if kind == "u64" else _high64_signed


def _shifted(x: Array, by: int) -> Array:
    return x >> x.dtype.type(by)


def _high64(a: Array, b: Array) -> Array:
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    a_high, a_low, b_high, b_low = a >> half, a & mask, b >> half, b & mask
    middle = a_high * b_low + ((a_low * b_low) >> half)
    other = a_low * b_high + (middle & mask)
    return a_high * b_high + (middle >> half) + (other >> half)


def _high64_signed(a: Array, b: Array) -> Array:
    high = _high64(unsigned(a), unsigned(b))
    zero = np.uint64(0)
    return (high - np.where(a < 0, unsigned(b), zero) - np.where(b < 0, unsigned(a), zero)).view(np.int64)


def multiply24(kind: str, high: bool) -> Function:
    """mul24: the low 24 bits of both; .lo the low 32 bits of the 48-bit product, .hi its upper 32."""

    def run(a: Array, b: Array) -> Array:
        if kind == "s32":
            a, b = ((np.asarray(x).astype(np.int64) << 40) >> 40 for x in (a, b))
        else:
            a, b = (np.asarray(x).astype(np.int64) & 0xFFFFFF for x in (a, b))
        return ((a * b) >> (16 if high else 0)).astype(NUMPY[kind])

    return run


def divide(kind: str) -> Function:
    """a / b towards 0. By 0: all bits set, as the hardware gives; the smallest by -1: wraps."""
    return lambda a, b: _divided(a, b, kind)[0]


def remainder(kind: str) -> Function:
    """a - b * (a / b): the sign of a. By 0: all bits set."""
    return lambda a, b: _divided(a, b, kind)[1]


def _divided(a: Array, b: Array, kind: str) -> tuple[Array, Array]:
    zero = b == 0
    top, bottom = unsigned(np.abs(a)), unsigned(np.abs(np.where(zero, NUMPY[kind](1), b)))
    quotient, rest = top // bottom, top % bottom
    if kind[0] == "s":
        quotient = np.where((a < 0) != (b < 0), 0 - quotient, quotient).astype(quotient.dtype)
        rest = np.where(a < 0, 0 - rest, rest).astype(rest.dtype)
    every = quotient.dtype.type(np.iinfo(quotient.dtype).max)
    return tuple(np.where(zero, every, x).view(NUMPY[kind]) for x in (quotient, rest))  # type: ignore[return-value]


def shift(kind: str, left: bool) -> Function:
    """shl, shr: amounts beyond the width give 0, or the sign for a signed right shift."""
    bits, type = width(kind), NUMPY[kind]

    def run(a: Array, by: Array) -> Array:
        beyond = by >= bits
        amount = np.minimum(by, bits - 1).astype(type)
        if left:
            return np.where(beyond, type(0), a << amount)
        return a >> amount if kind[0] == "s" else np.where(beyond, type(0), a >> amount)

    return run


def funnel(left: bool, wrap: bool) -> Function:
    """shf: 32 bits out of the 64 bits b:a, shifted left or right by c (mod 32 or at most 32)."""

    def run(a: Array, b: Array, c: Array) -> Array:
        amount = (c & np.uint32(31) if wrap else np.minimum(c, 32)).astype(np.uint64)
        both = (b.astype(np.uint64) << np.uint64(32)) | a.astype(np.uint64)
        if left:
            return (((both << amount) >> np.uint64(32)) & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        return ((both >> amount) & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    return run


def popcount(a: Array) -> Array:
    """Number of set bits, u32."""
    return np.bitwise_count(a).astype(np.uint32)


def _spread(a: Array) -> Array:
    """All bits below the highest set bit set too."""
    a = np.array(a)
    for by in (1, 2, 4, 8, 16, 32):
        if by < 8 * a.dtype.itemsize:
            a = a | (a >> a.dtype.type(by))
    return a


def leading_zeros(a: Array) -> Array:
    """clz, u32; the width for 0."""
    bits = 8 * np.asarray(a).dtype.itemsize
    return (bits - popcount(_spread(a)).astype(np.int64)).astype(np.uint32)


def find_highest(kind: str, shift_amount: bool) -> Function:
    """bfind: index of the highest bit that differs from the sign (u: of the highest set bit), 0xffffffff for none."""

    def run(a: Array) -> Array:
        bits = unsigned(np.where(a < 0, ~a, a) if kind[0] == "s" else a)
        found = width(kind) - 1 - leading_zeros(bits).astype(np.int64)
        answer = width(kind) - 1 - found if shift_amount else found
        return np.where(found < 0, 0xFFFFFFFF, answer).astype(np.uint32)

    return run


def reverse(a: Array) -> Array:
    """brev: bits in reverse order."""
    a, bits = np.array(a), 8 * np.asarray(a).dtype.itemsize
    type, every, by = a.dtype.type, (1 << bits) - 1, bits // 2
    mask = every
    while by:
        mask ^= (mask << by) & every
        a = ((a >> type(by)) & type(mask)) | ((a & type(mask)) << type(by))
        by //= 2
    return a


def find_nth(mask: Array, base: Array, offset: Array) -> Array:
    """fns: position of the |offset|-th set bit from base, upwards or downwards; base itself for 0; 0xffffffff for none."""
    mask, base, offset = np.broadcast_arrays(mask, base, offset)
    answer = np.full(mask.shape, 0xFFFFFFFF, np.uint32)
    step = np.where(offset < 0, -1, 1)
    left = np.maximum(np.abs(offset.astype(np.int64)), 1)
    position = base.astype(np.int64)
    for _ in range(32):
        inside = (position >= 0) & (position < 32)
        set_here = inside & (((mask >> (position & 31).astype(np.uint32)) & np.uint32(1)) == 1)
        left = left - set_here
        answer = np.where(set_here & (left == 0), position, answer).astype(np.uint32)
        left = np.where((offset == 0) | (set_here & (left == 0)), -1, left)
        position = position + step
    return answer


def extract(kind: str) -> Function:
    """bfe: `length` bits from `start`, filled up with 0 or with the field's sign."""
    bits = width(kind)

    def run(a: Array, start: Array, length: Array) -> Array:
        start, length = (start & 0xFF).astype(np.int64), (length & 0xFF).astype(np.int64)
        field = shift(f"u{bits}", left=False)(unsigned(a), start)
        below = _low_bits(np.minimum(length, bits), bits)
        value = field & below
        if kind[0] == "s":
            last = np.minimum(start + length - 1, bits - 1)
            sign = (shift(f"u{bits}", left=False)(unsigned(a), np.maximum(last, 0)) & 1).astype(bool) & (length > 0)
            inside = _low_bits(np.clip(np.minimum(length, bits - start), 0, bits), bits)
            value = np.where(sign, (value & inside) | ~inside, value)
        return value.view(NUMPY[kind])

    return run


def _low_bits(count: Array, bits: int) -> Array:
    """A mask of the lowest `count` (0 … bits) bits."""
    type = NUMPY[f"u{bits}"]
    one = np.ones(np.shape(count), type)
    return np.where(count >= bits, type((1 << bits) - 1), (one << np.minimum(count, bits - 1).astype(type)) - type(1))


def insert(kind: str) -> Function:
    """bfi: the low `length` bits of a put into b at `start`."""
    bits = width(kind)

    def run(a: Array, b: Array, start: Array, length: Array) -> Array:
        start, length = (start & 0xFF).astype(np.int64), (length & 0xFF).astype(np.int64)
        put = shift(kind, left=True)
        mask = put(_low_bits(np.minimum(length, bits), bits), start)
        return (b & ~mask) | (put(a, start) & mask)

    return run


def with_carry(combine: Function, kind: str, minus: bool) -> Function:
    """add, sub or mad with carry: (*operands, carry in) -> (result, carry out). combine gives the two addends."""
    type = NUMPY[f"u{width(kind)}"]

    def run(*arrays: Array) -> tuple[Array, Array]:
        a, b = (unsigned(x) for x in combine(*arrays[:-1]))
        carry = np.asarray(arrays[-1]).astype(type)
        total = a - b - carry if minus else a + b + carry
        out = (a < b) | ((a == b) & (carry != 0)) if minus else (total < a) | ((total == a) & (carry != 0))
        return total.view(NUMPY[kind]), out

    return run


def byte_differences(kind: str, total: bool) -> Function:
    """vabsdiff4: |a - b| of four bytes each, added to c or as four bytes."""

    def run(a: Array, b: Array, c: Array) -> Array:
        result = c if total else np.zeros_like(c)
        for i in range(4):
            left, right = ((unsigned(x) >> np.uint32(8 * i)).astype(NUMPY[f"{kind[0]}8"]).astype(np.int32) for x in (a, b))
            difference = np.abs(left - right).astype(np.uint32)
            result = result + difference if total else result | (difference & np.uint32(0xFF)) << np.uint32(8 * i)
        return result

    return run


def field_mask(wrap: bool) -> Function:
    """bmsk: a mask of b bits from position a, both clamped to 32 or taken modulo 32."""

    def run(a: Array, b: Array) -> Array:
        start, length = ((x & 31) if wrap else np.minimum(x, 32) for x in (a.astype(np.int64), b.astype(np.int64)))
        return shift("u32", left=True)(_low_bits(length, 32), start)

    return run


def extend(kind: str, wrap: bool) -> Function:
    """szext: the low b bits of a, extended with 0 or with their sign; b clamped to 32 or taken modulo 32."""

    def run(a: Array, b: Array) -> Array:
        length = (b & np.uint32(31)).astype(np.int64) if wrap else np.minimum(b, 32).astype(np.int64)
        mask, low = _low_bits(length, 32), unsigned(a)
        value = low & mask
        if kind[0] == "s":
            negative = (length > 0) & (((low >> np.maximum(length - 1, 0).astype(np.uint32)) & np.uint32(1)) == 1)
            value = np.where(negative, low | ~mask, value)
        return value.view(NUMPY[kind])

    return run


PERMUTE_MODES: dict[str, Callable[[int, int], int]] = {  # (control, result byte) -> which of the 8 bytes
    "f4e": lambda c, i: c + i, "b4e": lambda c, i: (c - i) & 7, "rc8": lambda c, i: c, "ecl": lambda c, i: max(i, c),
    "ecr": lambda c, i: min(i, c), "rc16": lambda c, i: 2 * (c & 1) + (i & 1),
}


def permute(mode: str) -> Function:
    """prmt: four bytes chosen of the eight of b:a; by default each by a selector whose top bit replicates the sign."""

    def chosen(both: Array, index: Array) -> Array:
        return (both >> (index * 8).astype(np.uint64)) & np.uint64(0xFF)

    def run(a: Array, b: Array, c: Array) -> Array:
        both = (b.astype(np.uint64) << np.uint64(32)) | a.astype(np.uint64)
        result = np.uint64(0)
        for i in range(4):
            if mode:
                table = np.array([PERMUTE_MODES[mode](k, i) for k in range(4)], np.uint64)
                byte = chosen(both, table[(c & np.uint32(3)).astype(np.int64)])
            else:
                selector = (c >> np.uint32(4 * i)) & np.uint32(15)
                byte = chosen(both, (selector & np.uint32(7)).astype(np.uint64))
                byte = np.where(selector >= 8, np.where(byte >= 128, np.uint64(255), np.uint64(0)), byte)
            result = result | (byte << np.uint64(8 * i))
        return result.astype(np.uint32)

    return run


def logic3(table: int) -> Function:
    """lop3: any function of three bits, by its truth table."""

    def run(a: Array, b: Array, c: Array) -> Array:
        result = np.zeros_like(a & b & c)
        for entry in range(8):
            if table >> entry & 1:
                result = result | ((a if entry & 4 else ~a) & (b if entry & 2 else ~b) & (c if entry & 1 else ~c))
        return result

    return run


def dot(a_kind: str, b_kind: str, halves: str = "") -> Function:
    """dp4a (halves ''), dp2a ('lo', 'hi'): products of bytes, or of 16-bit halves with bytes, summed onto c (modulo 2^32)."""
    result = np.int32 if "s" in (a_kind[0], b_kind[0]) else np.uint32

    def part(x: Array, kind: str, bits: int, index: int) -> Array:
        return (unsigned(x) >> np.uint32(bits * index)).astype(NUMPY[f"{kind[0]}{bits}"]).astype(np.int64)

    def run(a: Array, b: Array, c: Array) -> Array:
        total = np.asarray(c).astype(np.int64)
        for i in range(2 if halves else 4):
            other = i + (2 if halves == "hi" else 0)
            total = total + part(a, a_kind, 16 if halves else 8, i) * part(b, b_kind, 8, other)
        return total.astype(result)

    return run
