"""Every instruction form: it decodes, reads and writes the right types, and computes what PTX's pseudo-code says."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perflab.compile import Source, compile_source
from perflab.emulator import memory, ptx
from perflab.emulator.flow import CARRY
from perflab.emulator.instructions import ABSENT, FAMILIES, coverage, decode
from perflab.emulator.operations import Operation, Typed, Unsupported
from perflab.emulator.program import program
from perflab.emulator.ptx import Immediate, Register
from perflab.studies import load_study

KERNELS = Path(__file__).parent.parent.parent / "kernels"
REGISTERS = {"p": 1, "h": 16, "r": 32, "f": 32, "d": 64, "x": 64}
MASK32, MASK64 = (1 << 32) - 1, (1 << 64) - 1


def operations(*lines: str) -> list[Operation]:
    """Decoded PTX lines: %p predicates, %h 16 bits, %r %f 32, %d %x 64."""
    declared = "\n".join(f".reg .{'pred' if bits == 1 else f'b{bits}'} %{name}<9>;" for name, bits in REGISTERS.items())
    body = "\n".join(line + ";" for line in lines)
    text = (".version 9.0\n.target sm_100\n.address_size 64\n.shared .align 4 .b8 table[64];\n"
            f".visible .entry k()\n{{\n{declared}\n$here:\n{body}\nret;\n}}\n")
    function = ptx.parse(text).functions["k"]
    registers = {**function.registers, CARRY: 1}
    return [decode(item, registers) for item in function.body if isinstance(item, ptx.Instruction)][: len(lines)]


def one(line: str) -> Operation:
    """The operation of one line."""
    return operations(line)[0]


def run(line: str, *inputs: Any) -> list[Any]:
    """The results of a line as Python numbers, for inputs as Python numbers, one lane; no numpy warning may appear."""
    operation = one(line)
    names = {"pred": np.bool_, "f16": np.uint16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64}
    names |= {f"{s}{b}": np.dtype(f"{n}{b}").type for s, n in (("u", "uint"), ("s", "int")) for b in (8, 16, 32, 64)}
    arrays = []
    for value, typed in zip(inputs, operation.inputs, strict=True):
        kind = names[typed.type]
        if np.dtype(kind).kind in "ui":
            bits = 8 * np.dtype(kind).itemsize
            value = np.array(value % (1 << bits), f"u{bits // 8}").view(kind)
        arrays.append(np.full(3, value, kind))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = operation.compute(*arrays)  # type: ignore[misc]
    assert [r.dtype.type for r in results] == [names[t.type] for t in operation.outputs]
    assert all(r.shape == (3,) for r in results)
    return [r[0].item() for r in results]


def types(typed: tuple[Typed, ...]) -> list[str]:
    """Only the types."""
    return [t.type for t in typed]


# ---------------------------------------------------------------- forms
@pytest.mark.parametrize(("line", "category", "outputs", "inputs"), [
    ("add.s32 %r1, %r2, -1", "integer", ["s32"], ["s32", "s32"]),
    ("fma.rn.ftz.f32 %f1, %f2, %f3, 0f3F800000", "float32", ["f32"], ["f32"] * 3),
    ("fma.rn.f16x2 %r1, %r2, %r3, %r4", "half", ["u32"], ["u32"] * 3),
    ("fma.rn.relu.bf16 %h1, %h2, %h3, %h4", "half", ["bf16"], ["bf16"] * 3),
    ("add.rn.f32x2 %x1, %x2, %x3", "float32", ["u64"], ["u64"] * 2),
    ("mul.wide.s16 %r1, %h1, %h2", "integer", ["s32"], ["s16", "s16"]),
    ("mad.wide.u32 %x1, %r1, %r2, %x2", "integer", ["u64"], ["u32", "u32", "u64"]),
    ("ex2.approx.ftz.f32 %f1, %f2", "special", ["f32"], ["f32"]),
    ("div.rn.f64 %d1, %d2, %d3", "special", ["f64"], ["f64", "f64"]),
    ("shl.b64 %x1, %x2, %r1", "logic", ["u64"], ["u64", "u32"]),
    ("setp.lt.and.s32 %p1|%p2, %r1, %r2, !%p3", "compare", ["pred", "pred"], ["s32", "s32", "pred"]),
    ("selp.f32 %f1, %f2, %f3, %p1", "move", ["u32"], ["u32", "u32", "pred"]),
    ("mov.b64 {%r1, %r2}, %x1", "move", ["u32", "u32"], ["u64"]),
    ("mov.b64 %x1, {%h1, %h2, %h3, %h4}", "move", ["u64"], ["u16"] * 4),
    ("mov.u32 %r1, %tid.x", "move", ["u32"], ["u32"]),
    ("mov.u32 %r1, table", "move", ["u32"], ["u32"]),
    ("cvt.rn.f16x2.f32 %r1, %f1, %f2", "convert", ["u32"], ["f32", "f32"]),
    ("cvt.s64.s32 %x1, %r1", "convert", ["s64"], ["s32"]),
    ("cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2", "convert", ["u16"], ["f32", "f32"]),
    ("lop3.b32 %r1, %r2, %r3, %r4, 0xE8", "logic", ["u32"], ["u32"] * 3),
    ("lop3.or.b32 %r1|%p1, %r2, %r3, %r4, 0x80, %p2", "logic", ["u32", "pred"], ["u32"] * 3 + ["pred"]),
    ("dp4a.s32.u32 %r1, %r2, %r3, %r4", "integer", ["s32"], ["u32", "u32", "s32"]),
    ("cvta.to.global.u64 %x1, %x2", "integer", ["u64"], ["u64"]),
    ("add.f32.bf16 %f1, %h1, %f2", "float32", ["f32"], ["bf16", "f32"]),
])
def test_compute_forms(line: str, category: str, outputs: list[str], inputs: list[str]) -> None:
    """Role, category and the type of every operand."""
    operation = one(line)
    assert (operation.role, operation.category) == ("compute", category)
    assert (types(operation.outputs), types(operation.inputs)) == (outputs, inputs)


@pytest.mark.parametrize(("line", "flops", "kind", "type"), [
    ("fma.rn.f32 %f1, %f2, %f3, %f4", 2, "fma", "f32"), ("sub.f64 %d1, %d2, %d3", 1, "add", "f64"),
    ("mul.bf16x2 %r1, %r2, %r3", 2, "mul", "bf16"), ("fma.rn.f16x2 %r1, %r2, %r3, %r4", 4, "fma", "f16"),
    ("fma.rn.f32x2 %x1, %x2, %x3, %x4", 4, "fma", "f32"), ("fma.rn.f32.f16 %f1, %h1, %h2, %f2", 2, "fma", "f32"),
    ("div.rn.f32 %f1, %f2, %f3", 0, "", ""), ("max.f32 %f1, %f2, %f3", 0, "", ""), ("add.u32 %r1, %r2, %r3", 0, "", "")])
def test_flops(line: str, flops: int, kind: str, type: str) -> None:
    """fma 2, add, sub, mul 1, packed ones twice that, all else 0."""
    operation = one(line)
    assert (operation.flops, operation.flop_kind, operation.flop_type) == (flops, kind, type)


@pytest.mark.parametrize(("line", "space", "type", "elements", "more"), [
    ("ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%f1,%f2,%f3,%f4}, [%x1+16]", "global", "f32", 4, {"read_only": True}),
    ("ld.shared.v2.b64 {%x1,%x2}, [%r1]", "shared", "u64", 2, {}),
    ("ld.volatile.global.s16 %r1, [%x1]", "global", "s16", 1, {"strong": True, "scope": "sys"}),
    ("ld.acquire.gpu.global.u32 %r1, [%x1]", "global", "u32", 1, {"strong": True, "scope": "gpu", "acquires": True}),
    ("ld.relaxed.cluster.u64 %x1, [%x1]", "generic", "u64", 1, {"strong": True, "scope": "cluster"}),
    ("ldu.global.u8 %h1, [%x1]", "global", "u8", 1, {"read_only": True}),
    ("ld.const.f32 %f1, [table+4]", "const", "f32", 1, {}),
    ("ld.local.b8 %h1, [%r1]", "local", "u8", 1, {}),
    ("ld.global.v8.b32 {%r1,%r2,%r3,%r4,%r5,%r6,%r7,%r8}, [%x1]", "global", "u32", 8, {}),
    ("ld.global.L2::cache_hint.u32 %r1, [%x1], %x2", "global", "u32", 1, {}),
])
def test_loads(line: str, space: str, type: str, elements: int, more: dict[str, Any]) -> None:
    """Space, element type, vector, order and scope; cache hints change nothing."""
    operation = one(line)
    found = operation.memory
    assert operation.role == "load" and found is not None
    assert (found.space, found.type, found.elements) == (space, type, elements)
    assert found.size_bytes == int(type[1:]) // 8
    assert types(operation.outputs) == [type] * elements
    defaults = {"read_only": False, "strong": False, "acquires": False, "releases": False, "scope": ""}
    assert {name: getattr(found, name) for name in defaults} == defaults | more


def test_stores_and_atomics() -> None:
    """Inputs, addresses, order; atom has a result and red none."""
    store, release, atom, cas, red = operations(
        "st.shared.v2.f32 [table+8], {%f1, %f2}", "st.release.gpu.global.u32 [%x1], 7", "atom.add.f32 %f1, [%x1], %f2",
        "atom.acq_rel.gpu.global.cas.b64 %x1, [%x2], %x3, %x4", "red.global.add.noftz.f16x2 [%x1], %r1")
    assert types(store.inputs) == ["f32", "f32"] and store.memory.elements == 2  # type: ignore[union-attr]
    assert release.memory.releases and release.inputs == (Typed(Immediate("int", 7), "u32"),)  # type: ignore[union-attr]
    assert atom.memory.space == "generic" and atom.memory.scope == "gpu"  # type: ignore[union-attr]
    assert types(atom.outputs) == ["f32"]
    assert cas.memory.acquires and cas.memory.releases and types(cas.inputs) == ["u64", "u64"]  # type: ignore[union-attr]
    assert red.outputs == () and types(red.inputs) == ["u32"]


@pytest.mark.parametrize(("line", "old", "values", "new"), [
    ("red.global.inc.u32 [%x1], %r1", 5, [5], 0), ("red.global.inc.u32 [%x1], %r1", 4, [5], 5),
    ("red.global.dec.u32 [%x1], %r1", 0, [5], 5), ("red.global.dec.u32 [%x1], %r1", 9, [5], 5),
    ("red.global.dec.u32 [%x1], %r1", 3, [5], 2), ("red.global.max.s32 [%x1], %r1", -4, [-9], -4),
    ("red.global.min.u32 [%x1], %r1", 4, [MASK32], 4), ("atom.exch.b32 %r1, [%x1], %r2", 4, [8], 8),
    ("atom.cas.b32 %r1, [%x1], %r2, %r3", 4, [4, 9], 9), ("atom.cas.b32 %r1, [%x1], %r2, %r3", 5, [4, 9], 5),
    ("red.shared.xor.b32 [%r1], %r2", 0b1100, [0b1010], 0b0110), ("red.add.f64 [%x1], %d1", 1.5, [0.25], 1.75)])
def test_atomic_updates(line: str, old: Any, values: list[Any], new: Any) -> None:
    """(old, values) -> new."""
    operation = one(line)
    kind = {"s32": np.int32, "u32": np.uint32, "f64": np.float64}[operation.memory.type]  # type: ignore[union-attr]
    got = operation.compute(np.full(2, old, kind), *(np.full(2, v, kind) for v in values))  # type: ignore[misc]
    assert got.tolist() == [new, new] and got.dtype == kind


def test_global_float_atomics_flush_subnormals_and_shared_ones_do_not() -> None:
    """PTX: atom.add.f32 flushes in global memory."""
    tiny = np.array([1], np.uint32).view(np.float32)
    on_global, on_shared = operations("red.global.add.f32 [%x1], %f1", "red.shared.add.f32 [%r1], %f1")
    assert on_global.compute(tiny, tiny)[0] == 0  # type: ignore[misc]
    assert on_shared.compute(tiny, tiny)[0] == 2 * tiny[0]  # type: ignore[misc]


@pytest.mark.parametrize(("line", "role", "facts"), [
    ("bar.sync 1, 64", "barrier", {"barrier": "sync"}), ("barrier.cta.arrive.aligned 2, 128", "barrier", {"barrier": "arrive"}),
    ("bar.red.popc.u32 %r1, 0, !%p1", "barrier", {"barrier": "red.popc"}),
    ("barrier.red.and.pred %p1, 0, 64, %p2", "barrier", {"barrier": "red.and"}),
    ("bar.warp.sync -1", "warp_barrier", {}), ("membar.gl", "fence", {"target": "gpu"}),
    ("fence.acq_rel.cta", "fence", {"target": "cta"}), ("bra.uni $here", "branch", {"target": "$here"}), ("exit", "exit", {}),
    ("trap", "trap", {}), ("nanosleep.u32 20", "nothing", {}), ("prefetch.global.L2 [%x1]", "nothing", {}),
    ("griddepcontrol.wait", "nothing", {})])
def test_control(line: str, role: str, facts: dict[str, str]) -> None:
    """Barriers, fences, branches, hints."""
    operation = one(line)
    assert operation.role == role
    assert {name: getattr(operation, name) for name in facts} == facts


@pytest.mark.parametrize(("line", "reason"), [
    ("cp.async.ca.shared.global [%r1], [%x1], 4", "asynchronous copies"), ("mbarrier.init.shared.b64 [%r1], 1", "mbarrier"),
    ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r2]", "matrix"), ("mul.cc.u32 %r1, %r2, %r3", "none of"),
    ("setmaxnreg.inc.sync.aligned.u32 240", "warpgroup"),
    ("nonsense.u32 %r1", "not known"),
    ("shfl.bfly.b32 %r1, %r2, 1, 31", "sync"), ("add.rx.f32 %f1, %f2, %f3", ".rx"), ("shl.f32 %f1, %f2, %r1", ".f32"),
    ("fma.rn.f32 %f1, %f2, %f3", "2 values"), ("cvt.rs.f16x2.f32 %r1, %f1, %f2, %r2", "none of"),
    ("atom.global.max.f32 %f1, [%x1], %f2", ".max of .f32"), ("isspacep.const %p1, %x1", "constant"),
    ("mapa.u64 %x1, %x2, %r1", "clusters"), ("ld.shared::cluster.u32 %r1, [%r2]", "clusters"),
    ("tanh.approx.f64 %d1, %d2", "no such")])
def test_unsupported_says_what_where_and_why(line: str, reason: str) -> None:
    """Never a wrong answer: the instruction's text, its place, the reason."""
    with pytest.raises(Unsupported) as raised:
        one(line)
    message = str(raised.value)
    assert line.split(" ")[0] in message and reason in message and ":" in message


def test_signs_of_nan() -> None:
    """abs and neg of a NaN give the canonical one, as an H200 does; neg of an infinity is the other one."""
    for line in ("neg.f32 %f1, %f2", "neg.ftz.f32 %f1, %f2", "abs.f32 %f1, %f2"):
        for bits in (0xFF800001, 0x7FC00000):
            (result,) = one(line).compute(np.array([bits], np.uint32).view(np.float32))  # type: ignore[misc]
            assert result.view(np.uint32).tolist() == [0x7FFFFFFF]
    assert run("neg.f32 %f1, %f2", float("inf")) == [float("-inf")]
    assert run("abs.f16 %h1, %h2", 0xFE38) == run("neg.bf16 %h1, %h2", 0x7FFF) == [0x7FFF]
    assert run("neg.bf16x2 %r1, %r2", 0x7F814300) == [0x7FFFC300]


def test_carry_needs_a_register_for_it() -> None:
    """A program that does not list the flag is refused, so that no machine meets a register it does not have."""
    function = ptx.parse(".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k()\n{\n.reg .b32 %r<4>;\n"
                         "add.cc.u32 %r1, %r2, %r3;\nret;\n}\n").functions["k"]
    assert isinstance(function.body[0], ptx.Instruction)
    with pytest.raises(Unsupported, match="carry"):
        decode(function.body[0], function.registers)


def test_coverage_lists_every_family_and_what_is_missing() -> None:
    """Rows for a table."""
    rows = coverage()
    assert {row[0] for row in rows} == set(FAMILIES) | set(ABSENT)
    assert any("mma" in row[1] and "not emulated yet" in row[2] for row in rows)
    assert all(len(row) == 3 and all(row) for row in rows)
    emulated = {opcode for readers in FAMILIES.values() for opcode in readers}
    assert not emulated & {opcode for _, opcodes in ABSENT.values() for opcode in opcodes}


# ---------------------------------------------------------------- integers: PTX's own words in plain Python
def signed(x: int, bits: int = 32) -> int:
    """Two's complement."""
    x %= 1 << bits
    return x - (1 << bits) if x >> (bits - 1) else x


WORD = st.one_of(st.integers(0, MASK32), st.sampled_from([0, 1, 2, MASK32, 1 << 31, (1 << 31) - 1, 31, 32, 33, 255, 256]))
LONG = st.one_of(st.integers(0, MASK64), st.sampled_from([0, 1, MASK64, 1 << 63, (1 << 63) - 1, MASK32, 1 << 32]))


@given(a=LONG, b=LONG)
@settings(max_examples=60, deadline=None)
def test_64_bit_products_and_quotients(a: int, b: int) -> None:
    """mul.hi, mul.lo, div and rem of 64 bits."""
    assert run("mul.hi.u64 %x1, %x2, %x3", a, b) == [a * b >> 64]
    assert run("mul.hi.s64 %x1, %x2, %x3", a, b) == [signed(a, 64) * signed(b, 64) >> 64]
    assert run("mul.lo.s64 %x1, %x2, %x3", a, b) == [signed(a * b, 64)]
    assert run("div.u64 %x1, %x2, %x3", a, b) == [a // b if b else MASK64]
    assert run("rem.u64 %x1, %x2, %x3", a, b) == [a % b if b else MASK64]


@given(a=WORD, b=WORD, c=WORD)
@settings(max_examples=100, deadline=None)
def test_32_bit_arithmetic(a: int, b: int, c: int) -> None:
    """Wrapping, wide, saturating, division towards 0, by 0, 24-bit products, sums of differences."""
    x, y, z = signed(a), signed(b), signed(c)
    quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) if y else -1
    assert run("div.s32 %r1, %r2, %r3", a, b) == [signed(quotient)]
    assert run("rem.s32 %r1, %r2, %r3", a, b) == [x - quotient * y if y else -1]
    assert run("add.sat.s32 %r1, %r2, %r3", a, b) == [min(max(x + y, -(1 << 31)), (1 << 31) - 1)]
    assert run("sub.sat.s32 %r1, %r2, %r3", a, b) == [min(max(x - y, -(1 << 31)), (1 << 31) - 1)]
    assert run("mul.wide.s32 %x1, %r2, %r3", a, b) == [x * y]
    assert run("mul.hi.s32 %r1, %r2, %r3", a, b) == [x * y >> 32]
    assert run("mad.lo.u32 %r1, %r2, %r3, %r4", a, b, c) == [(a * b + c) & MASK32]
    assert run("mad.hi.u32 %r1, %r2, %r3, %r4", a, b, c) == [((a * b >> 32) + c) & MASK32]
    assert run("mad.wide.s32 %x1, %r2, %r3, %x4", a, b, c) == [signed(x * y + c, 64)]
    assert run("mul24.hi.s32 %r1, %r2, %r3", a, b) == [signed(signed(a, 24) * signed(b, 24) >> 16)]
    assert run("mul24.lo.u32 %r1, %r2, %r3", a, b) == [(a & 0xFFFFFF) * (b & 0xFFFFFF) & MASK32]
    assert run("sad.s32 %r1, %r2, %r3, %r4", a, b, c) == [signed(z + abs(x - y))]
    assert run("abs.s32 %r1, %r2", a) == [signed(abs(x))]
    assert run("neg.s32 %r1, %r2", a) == [signed(-x)]
    assert run("min.s32 %r1, %r2, %r3", a, b) == [min(x, y)]
    assert run("max.u32 %r1, %r2, %r3", a, b) == [max(a, b)]


@given(a=WORD, b=WORD, c=WORD, carry=st.booleans(), wide=LONG, other=LONG)
@settings(max_examples=60, deadline=None)
def test_carry(a: int, b: int, c: int, carry: bool, wide: int, other: int) -> None:
    """The flag out of sums, differences (a borrow) and products, and into them."""
    assert run("add.cc.u32 %r1, %r2, %r3", a, b) == [(a + b) & MASK32, a + b > MASK32]
    assert run("addc.cc.u32 %r1, %r2, %r3", a, b, carry) == [(a + b + carry) & MASK32, a + b + carry > MASK32]
    assert run("addc.s32 %r1, %r2, %r3", a, b, carry) == [signed(a + b + carry)]
    assert run("sub.cc.u64 %x1, %x2, %x3", wide, other) == [(wide - other) & MASK64, wide < other]
    assert run("subc.cc.u64 %x1, %x2, %x3", wide, other, carry) == [(wide - other - carry) & MASK64, wide < other + carry]
    total = (a * b >> 32) + c + carry
    assert run("madc.hi.cc.u32 %r1, %r2, %r3, %r4", a, b, c, carry) == [total & MASK32, total > MASK32]
    low = (a * b & MASK32) + c
    assert run("mad.lo.cc.u32 %r1, %r2, %r3, %r4", a, b, c) == [low & MASK32, low > MASK32]


def field(a: int, start: int, length: int, bits: int, sign: bool) -> int:
    """bfe, bit by bit, as PTX's pseudo-code has it."""
    start, length, top = start & 255, length & 255, bits - 1
    fill = a >> min(start + length - 1, top) & 1 if sign and length else 0
    return sum((a >> (start + i) & 1 if i < length and start + i <= top else fill) << i for i in range(bits))


@given(a=WORD, b=WORD, c=WORD, d=WORD, wide=LONG)
@settings(max_examples=100, deadline=None)
def test_bit_instructions(a: int, b: int, c: int, d: int, wide: int) -> None:
    """Shifts past the width, fields, permutations, counts, searches."""
    by = b if b < 64 else b & 0xFF
    assert run("shl.b32 %r1, %r2, %r3", a, b) == [a << b & MASK32 if b < 32 else 0]
    assert run("shr.u32 %r1, %r2, %r3", a, b) == [a >> b if b < 32 else 0]
    assert run("shr.s32 %r1, %r2, %r3", a, b) == [signed(a) >> min(b, 31)]
    assert run("shl.b64 %x1, %x2, %r3", wide, by) == [wide << by & MASK64 if by < 64 else 0]
    assert run("shr.s64 %x1, %x2, %r3", wide, by) == [signed(wide, 64) >> min(by, 63)]
    assert run("shr.s16 %h1, %h2, %r3", a, b) == [signed(a, 16) >> min(b, 15)]
    both = b << 32 | a
    for mode, n in (("wrap", c & 31), ("clamp", min(c, 32))):
        assert run(f"shf.l.{mode}.b32 %r1, %r2, %r3, %r4", a, b, c) == [both << n >> 32 & MASK32]
        assert run(f"shf.r.{mode}.b32 %r1, %r2, %r3, %r4", a, b, c) == [both >> n & MASK32]
    assert run("bfe.u32 %r1, %r2, %r3, %r4", a, c, d) == [field(a, c, d, 32, False)]
    assert run("bfe.s32 %r1, %r2, %r3, %r4", a, c, d) == [signed(field(a, c, d, 32, True))]
    assert run("bfe.s64 %x1, %x2, %r3, %r4", wide, c, d) == [signed(field(wide, c, d, 64, True), 64)]
    start, length = c & 255, d & 255
    put = sum((a >> i - start & 1 if start <= i < start + length else b >> i & 1) << i for i in range(32))
    assert run("bfi.b32 %r1, %r2, %r3, %r4, %r5", a, b, c, d) == [put]
    assert run("popc.b64 %r1, %x1", wide) == [wide.bit_count()]
    assert run("clz.b64 %r1, %x1", wide) == [64 - wide.bit_length()]
    assert run("clz.b32 %r1, %r2", a) == [32 - a.bit_length()]
    assert run("brev.b32 %r1, %r2", a) == [int(f"{a:032b}"[::-1], 2)]
    assert run("brev.b64 %x1, %x2", wide) == [int(f"{wide:064b}"[::-1], 2)]
    highest = (a if signed(a) >= 0 else a ^ MASK32).bit_length() - 1
    assert run("bfind.s32 %r1, %r2", a) == [highest & MASK32]
    assert run("bfind.shiftamt.u32 %r1, %r2", a) == [32 - a.bit_length() if a else MASK32]
    assert run("cnot.b32 %r1, %r2", a) == [int(a == 0)]


@given(a=WORD, b=WORD, c=WORD, q=st.booleans(), table=st.integers(0, 255))
@settings(max_examples=60, deadline=None)
def test_lop3_and_prmt(a: int, b: int, c: int, q: bool, table: int) -> None:
    """Truth tables and byte selections."""
    d = sum((table >> (4 * (a >> i & 1) + 2 * (b >> i & 1) + (c >> i & 1)) & 1) << i for i in range(32))
    assert run(f"lop3.b32 %r1, %r2, %r3, %r4, {table}", a, b, c) == [d]
    assert run(f"lop3.and.b32 %r1|%p1, %r2, %r3, %r4, {table}, %p2", a, b, c, q) == [d, d != 0 and q]
    data = (b << 32 | a).to_bytes(8, "little")
    picked = [data[c >> 4 * i & 7] if not c >> 4 * i & 8 else 0xFF * (data[c >> 4 * i & 7] >> 7) for i in range(4)]
    assert run("prmt.b32 %r1, %r2, %r3, %r4", a, b, c) == [int.from_bytes(bytes(picked), "little")]
    k = c & 3
    pair = 2 * (k & 1)
    modes = {"f4e": [k, k + 1, k + 2, k + 3], "b4e": [k, k - 1 & 7, k - 2 & 7, k - 3 & 7], "rc8": [k] * 4,
             "ecl": [max(i, k) for i in range(4)], "ecr": [min(i, k) for i in range(4)], "rc16": [pair, pair + 1] * 2}
    for mode, order in modes.items():
        want = int.from_bytes(bytes(data[i] for i in order), "little")
        assert run(f"prmt.b32.{mode} %r1, %r2, %r3, %r4", a, b, c) == [want], mode


@given(a=WORD, b=WORD, c=WORD)
@settings(max_examples=40, deadline=None)
def test_dot_products_and_masks(a: int, b: int, c: int) -> None:
    """dp4a, dp2a, bmsk, szext."""
    unsigned, signeds = a.to_bytes(4, "little"), [signed(x, 8) for x in b.to_bytes(4, "little")]
    assert run("dp4a.u32.s32 %r1, %r2, %r3, %r4", a, b, c) == [
        signed(c + sum(x * y for x, y in zip(unsigned, signeds, strict=True)))]
    difference = sum(abs(x - y) for x, y in zip(unsigned, b.to_bytes(4, "little"), strict=True))
    assert run("vabsdiff4.u32.u32.u32.add %r1, %r2, %r3, %r4", a, b, c) == [c + difference & MASK32]
    halves = [signed(a, 16), signed(a >> 16, 16)]
    for mode, part in (("lo", signeds[:2]), ("hi", signeds[2:])):
        total = c + sum(x * y for x, y in zip(halves, part, strict=True))
        assert run(f"dp2a.{mode}.s32.s32 %r1, %r2, %r3, %r4", a, b, c) == [signed(total)]
    for mode in ("clamp", "wrap"):
        start, length = (a & 31, b & 31) if mode == "wrap" else (min(a, 32), min(b, 32))
        assert run(f"bmsk.{mode}.b32 %r1, %r2, %r3", a, b) == [((1 << length) - 1) << start & MASK32]
        want = signed(a & ((1 << length) - 1), length) if length else 0
        assert run(f"szext.{mode}.s32 %r1, %r2, %r3", a, b) == [signed(want)]
        assert run(f"szext.{mode}.u32 %r1, %r2, %r3", a, b) == [a & ((1 << length) - 1)]


def nth(mask: int, base: int, offset: int) -> int:
    """fns as PTX's pseudo-code has it."""
    if offset == 0:
        return base if mask >> base & 1 else MASK32
    position, count, step = base, abs(offset) - 1, 1 if offset > 0 else -1
    while 0 <= position < 32:
        if mask >> position & 1:
            if count == 0:
                return position
            count -= 1
        position += step
    return MASK32


@given(mask=WORD, base=st.integers(0, 31), offset=st.integers(-33, 33))
@settings(max_examples=60, deadline=None)
def test_nth_set_bit(mask: int, base: int, offset: int) -> None:
    """fns, upwards and downwards."""
    assert run("fns.b32 %r1, %r2, %r3, %r4", mask, base, offset) == [nth(mask, base, offset)]


# ---------------------------------------------------------------- comparisons, moves, conversions
def test_setp_forms() -> None:
    """Second result, boolean operations, unsigned names, packed halves."""
    assert run("setp.lt.s32 %p1|%p2, %r1, %r2", -1, 0) == [True, False]
    assert run("setp.lo.u32 %p1, %r1, %r2", -1, 0) == [False]
    assert run("setp.lt.and.s32 %p1|%p2, %r1, %r2, %p3", 1, 0, True) == [False, True]
    assert run("setp.eq.xor.s32 %p1|%p2, %r1, %r2, %p3", 1, 1, True) == [False, True]
    assert run("setp.ne.f32 %p1, %f1, %f2", float("nan"), 1.0) == [False]
    assert run("setp.neu.f32 %p1, %f1, %f2", float("nan"), 1.0) == [True]
    assert run("setp.num.f64 %p1|%p2, %d1, %d2", 1.0, float("nan")) == [False, True]
    assert run("setp.gt.f16x2 %p1|%p2, %r1, %r2", 0x3C00_0000, 0x0000_3C00) == [False, True]
    assert run("setp.eq.ftz.f32 %p1, %f1, %f2", 1e-40, 0.0) == [True]


def test_set_selp_slct() -> None:
    """Masks and 1.0, selection by predicate and by sign."""
    assert run("set.gt.u32.s32 %r1, %r2, %r3", 2, 1) == [MASK32]
    assert run("set.gt.f32.s32 %f1, %r2, %r3", 2, 1) == [1.0]
    assert run("set.eq.u32.f16x2 %r1, %r2, %r3", 0x3C00_4000, 0x3C00_3C00) == [0xFFFF_0000]
    assert run("set.le.and.f16x2.f16x2 %r1, %r2, %r3, %p1", 0x3C00_4000, 0x3C00_4000, True) == [0x3C00_3C00]
    assert run("selp.b32 %r1, %r2, %r3, %p1", 5, 6, False) == [6]
    assert run("slct.u32.s32 %r1, %r2, %r3, %r4", 5, 6, -1) == [6]
    assert run("slct.f32.f32 %f1, %f2, %f3, %f4", 5, 6, -0.0) == [5]
    assert run("slct.f32.f32 %f1, %f2, %f3, %f4", 5, 6, float("nan")) == [6]


def test_moves_and_windows() -> None:
    """Parts of a register, generic windows."""
    assert run("mov.b64 {%r1, %r2}, %x1", 0x1122334455667788) == [0x55667788, 0x11223344]
    assert run("mov.b32 %r1, {%h1, %h2}", 0x1122, 0x3344) == [0x33441122]
    assert run("mov.pred %p1, %p2", True) == [True]
    assert run("cvta.shared.u64 %x1, %x2", 24) == [memory.SHARED_WINDOW + 24]
    assert run("cvta.to.local.u64 %x1, %x2", memory.LOCAL_WINDOW + 8) == [8]
    assert run("cvta.to.global.u64 %x1, %x2", memory.GLOBAL_BASE + 8) == [memory.GLOBAL_BASE + 8]
    assert run("isspacep.shared %p1, %x1", memory.SHARED_WINDOW + 1) == [True]
    assert run("isspacep.shared %p1, %x1", memory.LOCAL_WINDOW) == [False]
    assert run("isspacep.global %p1, %x1", memory.GLOBAL_BASE) == [True]
    assert run("isspacep.global %p1, %x1", memory.SHARED_WINDOW) == [False]


def test_conversions() -> None:
    """Integer truncation, extension, saturation; integral floats; packing order; fp8; cvt.pack."""
    assert run("cvt.s8.s32 %r1, %r2", 0x1FF) == [-1]
    assert run("cvt.s64.s32 %x1, %r2", -5) == [-5]
    assert run("cvt.u64.u32 %x1, %r2", -5) == [MASK32 - 4]
    assert run("cvt.sat.u8.s32 %h1, %r2", -5) == [0]
    assert run("cvt.sat.s8.u32 %h1, %r2", MASK32) == [127]
    assert run("cvt.rzi.s32.f32 %r1, %f1", -2.9) == [-2]
    assert run("cvt.rmi.f32.f32 %f1, %f2", -0.5) == [-1.0]
    assert run("cvt.rni.f32.f32 %f1, %f2", 2.5) == [2.0]
    assert run("cvt.sat.f32.f32 %f1, %f2", float("nan")) == [0.0]
    assert run("cvt.rn.f16x2.f32 %r1, %f1, %f2", 1.0, 2.0) == [0x3C00_4000]
    assert run("cvt.rn.relu.bf16x2.f32 %r1, %f1, %f2", -1.0, 2.0) == [0x0000_4000]
    assert run("cvt.rn.bf16.f32 %h1, %f1", 1.00390625) == [0x3F80]
    assert run("cvt.f32.bf16 %f1, %h1", 0x4049) == [3.140625]
    assert run("cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2", 1.0, 1e9) == [0x387E]
    assert run("cvt.rn.f16x2.e5m2x2 %r1, %h1", 0x3C40) == [0x3C00_4000]
    assert run("cvt.rna.tf32.f32 %r1, %f1", 1.0) == [1.0]
    assert run("cvt.pack.sat.s16.s32 %r1, %r2, %r3", 70000, -3) == [0x7FFF_FFFD]
    assert run("cvt.pack.sat.u8.s32.b32 %r1, %r2, %r3, %r4", 300, -3, 0x1234) == [0x1234_FF00]
    assert run("cvt.ftz.f64.f32 %d1, %f1", 1e-40) == [0.0]
    assert run("cvt.f64.f32 %d1, %f1", np.float32(1e-40)) == [float(np.float32(1e-40))]


def test_mixed_precision_and_packed_floats() -> None:
    """f32 with half operands; f32x2; s16x2."""
    assert run("fma.rn.f32.f16 %f1, %h1, %h2, %f2", 0x3C00, 0x4000, 0.25) == [2.25]
    assert run("sub.f32.bf16 %f1, %h1, %f2", 0x3F80, 0.5) == [0.5]
    two = 0x40000000
    assert run("mul.rn.f32x2 %x1, %x2, %x3", two << 32 | two, 0x3F800000 << 32 | two) == [two << 32 | 0x40800000]
    assert run("max.s16x2 %r1, %r2, %r3", 0x0001_FFFF, 0xFFFF_0002) == [0x0001_0002]
    assert run("add.u16x2 %r1, %r2, %r3", 0xFFFF_FFFF, 0x0001_0002) == [0x0000_0001]


def test_arrays_of_any_shape_and_scalars_that_broadcast() -> None:
    """[n, 32], no axes, and an immediate beside an array."""
    fma = one("fma.rn.f32 %f1, %f2, %f3, %f4").compute
    a = np.ones((4, 32), np.float32)
    assert fma(a, a, a)[0].shape == (4, 32)  # type: ignore[misc]
    assert fma(np.float32(2), np.float32(3), np.float32(4))[0] == 10  # type: ignore[misc]
    assert np.all(fma(a, np.float32(3), np.float32(4))[0] == 7)  # type: ignore[misc]
    many = np.arange(40_000, dtype=np.float32).reshape(200, 200)  # goes through in pieces
    assert np.array_equal(fma(many, np.float32(3), many)[0], many * 4)  # type: ignore[misc]
    low, high = one("mov.b64 {%r1, %r2}, %x1").compute(np.arange(40_000, dtype=np.uint64) << np.uint64(30))  # type: ignore[misc]
    assert high[-1] == 39_999 >> 2 and low[-1] == 0xC0000000


# ---------------------------------------------------------------- the warp at once
def warp(line: str, *inputs: Any, active: int = MASK32) -> list[Any]:
    """Results of one warp, [32] each; the last one is which lanes read from an absent one."""
    operation = one(line)
    assert operation.role == "collective"
    lanes = (active >> np.arange(32) & 1).astype(bool)[None]
    kinds = {"u32": np.uint32, "s32": np.int32, "pred": np.bool_, "f32": np.float32, "u64": np.uint64}
    arrays = [np.broadcast_to(np.asarray(x, kinds[t.type]), (1, 32)) for x, t in zip(inputs, operation.inputs, strict=True)]
    results = operation.compute(lanes, *arrays)  # type: ignore[misc]
    assert all(r.shape == (1, 32) for r in results)
    assert [r.dtype.type for r in results] == [kinds[t.type] for t in operation.outputs] + [np.bool_]
    return [r[0].tolist() for r in results]


LANES = list(range(32))


@pytest.mark.parametrize(("mode", "by", "control", "source"), [
    ("bfly", 5, 31, [i ^ 5 for i in LANES]), ("up", 3, 0, [i - 3 if i >= 3 else i for i in LANES]),
    ("down", 3, 31, [i + 3 if i < 29 else i for i in LANES]), ("idx", 7, 31, [7] * 32),
    ("down", 2, 0x1807, [i + 2 if i % 8 < 6 else i for i in LANES]), ("up", 1, 0x1800, [i - 1 if i % 8 else i for i in LANES]),
    ("idx", 1, 0x1807, [i // 8 * 8 + 1 for i in LANES]), ("idx", 40, 31, [8] * 32)])
def test_shuffles(mode: str, by: int, control: int, source: list[int]) -> None:
    """All modes, whole warps and segments of 8; out of the segment a lane keeps its own."""
    value, valid, absent = warp(f"shfl.sync.{mode}.b32 %r1|%p1, %r2, %r3, %r4, %r5", LANES, by, control, MASK32)
    assert value == source and not any(absent)
    if mode in ("up", "down"):
        assert valid == [s != i for i, s in enumerate(source)]


def test_shuffles_from_absent_lanes_are_told() -> None:
    """Lane 3 reads lane 4, which is elsewhere."""
    value, absent = warp("shfl.sync.down.b32 %r1, %r2, 1, 31, %r5", LANES, 1, 31, MASK32, active=0b1111)
    assert absent[:4] == [False, False, False, True] and value[:3] == [1, 2, 3]


def test_votes_matches_reductions() -> None:
    """Over the active members only."""
    even = [i % 2 == 0 for i in LANES]
    assert warp("vote.sync.ballot.b32 %r1, %p1, %r2", even, MASK32)[0] == [0x55555555] * 32
    assert warp("vote.sync.ballot.b32 %r1, %p1, %r2", even, 0xFF, active=0xFF)[0][0] == 0x55
    assert warp("vote.sync.all.pred %p1, %p2, %r2", even, 0x55555555, active=0x55555555)[0][0] is True
    assert warp("vote.sync.any.pred %p1, %p2, %r2", even, 0xAAAAAAAA, active=0xAAAAAAAA)[0][1] is False
    assert warp("vote.sync.uni.pred %p1, %p2, %r2", even, MASK32)[0][0] is False
    assert warp("match.any.sync.b32 %r1, %r2, %r3", [i % 3 for i in LANES], MASK32)[0][1] == 0x92492492
    assert warp("match.all.sync.b32 %r1|%p1, %r2, %r3", 7, 0xFF, active=0xFF)[:2][0][0] == 0xFF
    assert warp("match.all.sync.b64 %r1|%p1, %x2, %r3", LANES, 0xFF, active=0xFF)[1][0] is False
    assert warp("redux.sync.add.s32 %r1, %r2, %r3", [-i for i in LANES], MASK32)[0][5] == -496
    assert warp("redux.sync.min.u32 %r1, %r2, %r3", LANES, 0xF0, active=0xF0)[0][4] == 4
    assert warp("redux.sync.and.b32 %r1, %r2, %r3", [0xF0 | i for i in LANES], MASK32)[0][0] == 0xF0 & 0xFF
    assert warp("redux.sync.max.f32 %f1, %f2, %r3", [float("nan")] + [float(-i) for i in LANES[1:]], MASK32)[0][0] == -1.0
    assert warp("activemask.b32 %r1", active=0x0F)[0][0] == 0x0F
    leader, elected, _ = warp("elect.sync %r1|%p1, %r2", 0xF0, active=0xF0)
    assert leader[5] == 4 and [i for i, yes in enumerate(elected) if yes and 4 <= i < 8] == [4]


def test_sources_of_moves_are_left_to_the_machines() -> None:
    """Specials and symbols stay operands."""
    special, symbol = operations("mov.u32 %r1, %tid.x", "mov.u64 %x1, table")
    assert special.inputs == (Typed(ptx.Special("tid.x"), "u32"),)
    assert symbol.inputs == (Typed(ptx.Symbol("table"), "u64"),)
    assert special.outputs == (Typed(Register("%r1"), "u32"),)


# ---------------------------------------------------------------- whole programs
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_ordinary_cuda_decodes(architecture: str) -> None:
    """Mathematics of all types, atomics, warp functions, halves, fp8, memory of every kind: nothing is refused."""
    source = Path(__file__).parent / "ordinary.cu"
    binary = compile_source(Source(source.name, source.read_text()), architecture)
    names = set()
    for entry in binary.entries.values():
        made = program(binary.ptx, entry)
        for instruction in made.instructions:
            names.add(decode(instruction, {**made.registers, CARRY: 1}).instruction.name)
    assert len(names) > 300


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("study", ["saxpy", "ceilings", "verify_attention"])
def test_every_kernel_of_the_project_decodes(study: str, architecture: str) -> None:
    """All but the tensor-core ceilings, which are refused by name."""
    versions = load_study(KERNELS / study).versions
    kernels = {kernel.source.file: kernel for version in versions for kernel in version.kernels}
    for file, kernel in kernels.items():
        binary = kernel.binary(architecture)
        for entry in binary.entries.values():
            made = program(binary.ptx, entry)
            refused = set()
            for instruction in made.instructions:
                try:
                    decode(instruction, made.registers)
                except Unsupported:
                    refused.add(instruction.opcode)
            assert refused == ({"mma"} if "mma" in file else set()), (file, entry)
