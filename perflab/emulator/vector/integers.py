"""Integer, logic and bit instructions on 32 lanes. Nothing traps or is undefined, whatever an inactive lane holds."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from perflab.emulator.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from perflab.emulator.vector.step import Rule, Step
from perflab.emulator.vector.values import (
    BITS,
    DOUBLE,
    INTEGERS,
    PACKED_8,
    PACKED_16,
    constant_of,
    element_bits,
    intrinsic,
    resize,
    splat,
    splat_float,
    to_bits,
)

WINDOWS = {"global": 0, "const": 0, "shared": SHARED_WINDOW, "shared::cta": SHARED_WINDOW, "local": LOCAL_WINDOW,
           "param": PARAM_WINDOW, "param::entry": PARAM_WINDOW}


# ---------------------------------------------------------------- arithmetic
def add(step: Step) -> ir.Value | None:
    """add, sub with .sat and packed 16-bit halves; those with a carry are left to the reference."""
    opcode = step.operation.instruction.opcode
    if step.has("cc") or len(step.values) != 2:
        return None
    a, b = step.values
    if step.packed:
        return _packed(step, lambda x, y: getattr(step.build, opcode)(x, y))
    if step.has("sat"):
        return intrinsic(step.build, "sadd.sat" if opcode == "add" else "ssub.sat", a, b)
    return getattr(step.build, opcode)(a, b)


def _packed(step: Step, combine: Callable[..., ir.Value]) -> ir.Value:
    halves = [step.build.bitcast(value, PACKED_16) for value in step.values]
    return step.build.bitcast(combine(*halves), INTEGERS[32])


def _wide_product(step: Step, bits: int) -> ir.Value:
    a, b = (resize(step.build, value, bits, step.signed) for value in step.values[:2])
    return step.build.mul(a, b)


def _product(step: Step) -> ir.Value:
    if step.has("wide"):
        return _wide_product(step, 2 * step.bits)
    if step.has("hi"):
        both = step.build.lshr(_wide_product(step, 2 * step.bits), splat(2 * step.bits, step.bits))
        return step.build.trunc(both, INTEGERS[step.bits])
    return step.build.mul(step.values[0], step.values[1])


def mul(step: Step) -> ir.Value:
    """mul.lo, .hi, .wide."""
    return _product(step)


def mad(step: Step) -> ir.Value | None:
    """mad.lo, .hi, .wide, and .hi.sat."""
    if step.has("cc") or len(step.values) != 3:
        return None
    if step.has("sat"):
        return intrinsic(step.build, "sadd.sat", _product(step), step.values[2])
    return step.build.add(_product(step), step.values[2])


def mul24(step: Step) -> ir.Value:
    """mul24 and mad24: 24 bits each; .lo gives bits 0..31 of the product, .hi bits 16..47."""
    build = step.build
    low = [build.shl(value, splat(32, 8)) for value in step.values[:2]]
    a, b = (resize(build, (build.ashr if step.signed else build.lshr)(v, splat(32, 8)), 64, step.signed) for v in low)
    product = build.mul(a, b)
    product = build.trunc(build.lshr(product, splat(64, 16)) if step.has("hi") else product, INTEGERS[32])
    if len(step.values) < 3:
        return product
    return intrinsic(build, "sadd.sat", product, step.values[2]) if step.has("sat") else build.add(product, step.values[2])


def _quotient(step: Step) -> ir.Value:
    """a / b; all ones where b is 0 (what the arithmetic of the reference gives), wrapped for the least number by -1."""
    build, (a, b) = step.build, step.values
    divide = build.sdiv if step.signed else build.udiv
    known = constant_of(b)
    if known is not None and known not in (0, (1 << step.bits) - 1):
        return divide(a, b)  # LLVM turns it into a multiplication
    none = build.icmp_unsigned("==", b, splat(step.bits, 0))
    if step.bits < 64:
        return build.select(none, splat(step.bits, -1), _quotient_in_double(step))
    unsafe = none
    if step.signed:
        minus = build.icmp_unsigned("==", b, splat(64, -1))
        unsafe = build.or_(none, minus)
    plain = divide(a, build.select(unsafe, splat(64, 1), b))
    if step.signed:
        plain = build.select(minus, build.sub(splat(64, 0), a), plain)
    return build.select(none, splat(64, -1), plain)


def _quotient_in_double(step: Step) -> ir.Value:
    """Of up to 32 bits: exact in float64, since a quotient lies 1/b away from the next integer and a is below 2**53."""
    build = step.build
    convert = build.sitofp if step.signed else build.uitofp
    a, b = (convert(value, DOUBLE) for value in step.values)
    cut = intrinsic(build, "trunc", build.fdiv(a, b))
    shifted = build.fadd(cut, splat_float(DOUBLE, 1.5 * 2.0**52))  # the integer now stands in the low bits
    return build.trunc(to_bits(build, shifted), INTEGERS[step.bits])


def div(step: Step) -> ir.Value:
    """div of integers."""
    return _quotient(step)


def rem(step: Step) -> ir.Value:
    """rem of integers: a - quotient * b; all ones where b is 0."""
    build, (a, b) = step.build, step.values
    rest = build.sub(a, build.mul(_quotient(step), b))
    if constant_of(b):
        return rest
    return build.select(build.icmp_unsigned("==", b, splat(step.bits, 0)), splat(step.bits, -1), rest)


def minmax(step: Step) -> ir.Value:
    """min, max with .relu and packed halves."""
    build, opcode = step.build, step.operation.instruction.opcode
    signed = step.has("s16x2") if step.packed else step.signed
    name = ("s" if signed else "u") + opcode

    def combine(*values: ir.Value) -> ir.Value:
        total = values[0]
        for value in values[1:]:
            total = intrinsic(build, name, total, value)
        return intrinsic(build, "smax", total, ir.Constant(total.type, None)) if step.has("relu") else total

    return _packed(step, combine) if step.packed else combine(*step.values)


def neg(step: Step) -> ir.Value:
    """neg of integers."""
    return step.build.sub(splat(step.bits, 0), step.values[0])


def absolute(step: Step) -> ir.Value:
    """abs of integers; the least number stays."""
    return intrinsic_with_flag(step.build, "abs", step.values[0])


def intrinsic_with_flag(build: ir.IRBuilder, name: str, value: ir.Value) -> ir.Value:
    """llvm.abs, llvm.ctlz: their second argument says that no input is undefined."""
    return intrinsic(build, name, value, ir.Constant(ir.IntType(1), 0))


def sad(step: Step) -> ir.Value:
    """sad: |a - b| + c."""
    build, (a, b, c) = step.build, step.values
    sign = "s" if step.signed else "u"
    return build.add(build.sub(intrinsic(build, sign + "max", a, b), intrinsic(build, sign + "min", a, b)), c)


def dp4a(step: Step) -> ir.Value:
    """dp4a.atype.btype: the sum of four byte products and c."""
    build, (a, b, total) = step.build, step.values
    for byte in range(4):
        parts = []
        for index, value in enumerate((a, b)):
            left = build.shl(value, splat(32, 24 - 8 * byte))
            parts.append((build.ashr if step.modifiers[index] == "s32" else build.lshr)(left, splat(32, 24)))
        total = build.add(total, build.mul(*parts))
    return total


# ---------------------------------------------------------------- logic and bits
def logic(step: Step) -> ir.Value:
    """and, or, xor on integers and predicates."""
    a, b = step.values
    return {"and": step.build.and_, "or": step.build.or_, "xor": step.build.xor}[step.operation.instruction.opcode](a, b)


def invert(step: Step) -> ir.Value:
    """not."""
    return step.build.xor(step.values[0], splat(step.bits, -1))


def cnot(step: Step) -> ir.Value:
    """cnot: 1 for zero, else 0."""
    zero = step.build.icmp_unsigned("==", step.values[0], splat(step.bits, 0))
    return step.build.zext(zero, INTEGERS[step.bits])


def lop3(step: Step) -> ir.Value | None:
    """lop3: any function of three bits, from its truth table."""
    build, table = step.build, step.immediate(4) if len(step.operation.instruction.operands) == 5 else None
    if table is None or len(step.operation.outputs) != 1:
        return None
    a, b, c = step.values[:3]
    total: ir.Value = splat(32, 0)
    for row in range(8):
        if table >> row & 1:
            terms = [v if row >> (2 - i) & 1 else build.xor(v, splat(32, -1)) for i, v in enumerate((a, b, c))]
            total = build.or_(total, build.and_(build.and_(terms[0], terms[1]), terms[2]))
    return total


def shifted(build: ir.IRBuilder, opcode: str, value: ir.Value, amount: ir.Value) -> ir.Value:
    """'shl', 'lshr' or 'ashr' by a u32 amount of any size: beyond the width nothing, or the sign, is left."""
    bits, known = element_bits(value), constant_of(amount)
    if known is not None:
        if known >= bits and opcode != "ashr":
            return splat(bits, 0)
        return getattr(build, opcode)(value, splat(bits, min(known, bits - 1)))
    if opcode == "ashr":
        return build.ashr(value, resize(build, intrinsic(build, "umin", amount, splat(32, bits - 1)), bits))
    inside = build.icmp_unsigned("<", amount, splat(32, bits))
    return build.select(inside, getattr(build, opcode)(value, resize(build, amount, bits)), splat(bits, 0))


def shl(step: Step) -> ir.Value:
    """shl."""
    return shifted(step.build, "shl", *step.values)


def shr(step: Step) -> ir.Value:
    """shr: arithmetic for signed types."""
    return shifted(step.build, "ashr" if step.signed else "lshr", *step.values)


def funnel(step: Step) -> ir.Value:
    """shf.l, shf.r: 64 bits {b, a} shifted, the upper or the lower half of them."""
    build, (low, high, amount) = step.build, step.values
    left = step.has("l")
    moved = intrinsic(build, "fshl" if left else "fshr", high, low, amount)
    if step.has("wrap"):
        return moved
    return build.select(build.icmp_unsigned("<", amount, splat(32, 32)), moved, low if left else high)


def bits32(build: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """A count or a position, which PTX gives as u32."""
    return resize(build, value, 32)


def popc(step: Step) -> ir.Value:
    """popc."""
    return bits32(step.build, intrinsic(step.build, "ctpop", step.values[0]))


def to_generic(step: Step) -> ir.Value | None:
    """cvta and cvta.to: the window of a memory space added or taken off."""
    window = next((WINDOWS[m] for m in step.modifiers if m in WINDOWS), None)
    if window is None:
        return None
    return (step.build.sub if step.has("to") else step.build.add)(step.values[0], splat(step.bits, window))


def clz(step: Step) -> ir.Value:
    """clz."""
    return bits32(step.build, intrinsic_with_flag(step.build, "ctlz", step.values[0]))


def brev(step: Step) -> ir.Value:
    """brev."""
    return intrinsic(step.build, "bitreverse", step.values[0])


def bfind(step: Step) -> ir.Value:
    """bfind: the highest bit that differs from the sign, all ones where there is none; .shiftamt: the way to the top."""
    build, value = step.build, step.values[0]
    if step.signed:
        value = build.xor(value, build.ashr(value, splat(step.bits, step.bits - 1)))
    leading = bits32(build, intrinsic_with_flag(build, "ctlz", value))
    found = leading if step.has("shiftamt") else build.sub(splat(32, step.bits - 1), leading)
    return build.select(build.icmp_unsigned("==", value, splat(step.bits, 0)), splat(32, -1), found)


def bfe(step: Step) -> ir.Value:
    """bfe: a field of `length` bits from `start`, taken modulo 256; the sign is that of its top bit, or of the register's."""
    build, bits = step.build, step.bits
    start, length = (build.and_(value, splat(32, 255)) for value in step.values[1:])
    end = intrinsic(build, "umin", build.add(start, length), splat(32, bits))
    left = build.sub(splat(32, bits), end)
    right = build.add(left, start)
    moved = shifted(build, "shl", step.values[0], left)
    field = shifted(build, "ashr" if step.signed else "lshr", moved, right)
    return build.select(build.icmp_unsigned("==", length, splat(32, 0)), splat(bits, 0), field)


def bfi(step: Step) -> ir.Value:
    """bfi: the low `length` bits of a put into b at `start`, both modulo 256."""
    build, bits = step.build, step.bits
    a, b = step.values[:2]
    start, length = (_low_byte(build, value) for value in step.values[2:])
    ones = build.xor(shifted(build, "shl", splat(bits, -1), length), splat(bits, -1))
    mask = shifted(build, "shl", ones, start)
    kept = build.and_(b, build.xor(mask, splat(bits, -1)))
    return build.or_(kept, build.and_(shifted(build, "shl", a, start), mask))


def _low_byte(build: ir.IRBuilder, value: ir.Value) -> ir.Value:
    known = constant_of(value)
    return splat(32, known & 255) if known is not None else build.and_(value, splat(32, 255))


def prmt(step: Step) -> ir.Value | None:
    """prmt without a mode: four bytes picked from eight, by a selector that is constant here (else the reference does it)."""
    selector = constant_of(step.values[2])
    if selector is None or len(step.modifiers) > 1:
        return None
    build = step.build
    a, b = (build.bitcast(value, PACKED_8) for value in step.values[:2])
    order = [4 * lane + (s & 3) + (128 if s & 4 else 0) for lane in range(32) for s in _selectors(selector)]
    picked = build.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), 128), order))
    if selector & 0x8888:
        signs = build.ashr(picked, ir.Constant(PACKED_8, [7] * 128))
        whole = [i + (128 if s & 8 else 0) for i, s in enumerate(_selectors(selector) * 32)]
        picked = build.shuffle_vector(picked, signs, ir.Constant(ir.VectorType(ir.IntType(32), 128), whole))
    return build.bitcast(picked, INTEGERS[32])


def _selectors(selector: int) -> list[int]:
    return [selector >> 4 * byte & 15 for byte in range(4)]


# ---------------------------------------------------------------- moves and conversions
def move(step: Step) -> ir.Value | list[ir.Value]:
    """mov, also of {a, b} into one register and back: the first part is the lowest."""
    build = step.build
    if len(step.values) == 1 and len(step.operation.outputs) == 1:
        return resize(build, step.values[0], BITS[step.target])
    if len(step.operation.outputs) == 1:
        total, at, bits = resize(build, step.values[0], BITS[step.target]), step.bits, BITS[step.target]
        for index, value in enumerate(step.values[1:], 1):
            total = build.or_(total, build.shl(resize(build, value, bits), splat(bits, at)))
            at += BITS[step.source(index)]
        return total
    parts, at = [], 0
    for output in step.operation.outputs:
        part = build.lshr(step.values[0], splat(step.bits, at)) if at else step.values[0]
        parts.append(resize(build, part, BITS[output.type]))
        at += BITS[output.type]
    return parts


def convert(step: Step) -> ir.Value:
    """cvt between integers; .sat clamps to what the result can hold."""
    build, value, target = step.build, step.values[0], step.target
    bits, to_signed = BITS[target], target.startswith("s")
    if step.has("sat"):
        least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if to_signed else (0, (1 << bits) - 1)
        own = (1 << (step.bits - 1)) - 1 if step.signed else (1 << step.bits) - 1
        if step.signed and least > -own - 1:
            value = intrinsic(build, "smax", value, splat(step.bits, least))
        if most < own:
            value = intrinsic(build, "smin" if step.signed else "umin", value, splat(step.bits, most))
    return resize(build, value, bits, step.signed)


def compared(step: Step, relation: str) -> ir.Value:
    """a relation b of integers, or of plain bits, as setp names relations."""
    signed = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
    unsigned = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
    a, b = step.values[:2]
    if relation in unsigned or not step.signed:
        return step.build.icmp_unsigned(unsigned.get(relation) or signed[relation], a, b)
    return step.build.icmp_signed(signed[relation], a, b)


RULES: dict[str, Rule] = {
    "add": add, "sub": add, "mul": mul, "mad": mad, "mul24": mul24, "mad24": mul24, "div": div, "rem": rem, "min": minmax,
    "max": minmax, "neg": neg, "abs": absolute, "sad": sad, "dp4a": dp4a, "and": logic, "or": logic, "xor": logic,
    "not": invert, "cnot": cnot, "lop3": lop3, "shl": shl, "shr": shr, "shf": funnel, "popc": popc, "clz": clz, "brev": brev,
    "bfind": bfind, "bfe": bfe, "bfi": bfi, "prmt": prmt, "mov": move, "cvt": convert, "cvta": to_generic,
}
