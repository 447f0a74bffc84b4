"""Every instruction that has vector code gives the bits of the numpy reference, in all 32 lanes and for any input."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import pytest

ir = pytest.importorskip("llvmlite.ir")
import llvmlite.binding as llvm  # noqa: E402

from perflab.emulator import ptx  # noqa: E402
from perflab.emulator.instructions import decode  # noqa: E402
from perflab.emulator.operations import Operation  # noqa: E402
from perflab.emulator.ptx import Immediate  # noqa: E402
from perflab.emulator.vector import code  # noqa: E402
from perflab.emulator.vector import floats as vector_floats  # noqa: E402
from perflab.emulator.vector.values import BITS, INTEGERS, LANES, lanes_of  # noqa: E402

NUMPY = {"pred": np.bool_, "f16": np.uint16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64}
NUMPY |= {f"{s}{b}": np.dtype(f"{n}{b}").type for s, n in (("u", "uint"), ("s", "int")) for b in (8, 16, 32, 64)}
REGISTERS = {"p": 1, "h": 16, "r": 32, "f": 32, "d": 64, "x": 64}
PIECES = 24  # vectors of 32 lanes that each instruction is run on


# ---------------------------------------------------------------- PTX lines -> operations -> machine code
def operations(lines: Sequence[str]) -> list[Operation]:
    """Decoded instructions: %p1 predicate, %h1 16 bits, %r1 and %f1 32, %d1 and %x1 64."""
    declared = "\n".join(f".reg .{'pred' if bits == 1 else f'b{bits}'} %{name}<9>;" for name, bits in REGISTERS.items())
    body = "\n".join(line + ";" for line in lines)
    head = ".version 9.0\n.target sm_100\n.address_size 64\n"
    module = ptx.parse(f"{head}.visible .entry k()\n{{\n{declared}\n{body}\nret;\n}}\n")
    function = module.functions["k"]
    return [decode(i, function.registers) for i in function.body if isinstance(i, ptx.Instruction)][: len(lines)]


def machine_type(kind: str) -> ir.Type:
    """How a value lies in the test's memory: predicates as bytes."""
    return INTEGERS[8] if kind == "pred" else lanes_of(kind)


class Compiled:
    """Operations as functions: each maps 32 lanes of raw bits to 32 lanes of raw bits."""

    def __init__(self, found: Sequence[Operation], collective: bool = False) -> None:
        self.module = ir.Module()
        self.native = [self._function(index, operation, collective) for index, operation in enumerate(found)]
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        target, features = llvm.Target.from_default_triple(), llvm.get_host_cpu_features().flatten()
        machine = target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=1)
        parsed = llvm.parse_assembly(str(self.module))
        parsed.verify()
        self.engine = llvm.create_mcjit_compiler(parsed, machine)
        self.engine.finalize_object()

    def _function(self, index: int, operation: Operation, collective: bool) -> bool:
        place = INTEGERS[8].as_pointer().as_pointer()
        function = ir.Function(self.module, ir.FunctionType(ir.IntType(32), [place, ir.IntType(32)]), f"f{index}")
        build = ir.IRBuilder(function.append_basic_block())
        values = []
        for slot, typed in enumerate(operation.inputs):
            if isinstance(typed.operand, Immediate):
                values.append(code.splat(BITS[typed.type], typed.operand.value))
                continue
            value = build.load(self._slot(build, function, slot, typed.type), align=1)
            values.append(build.trunc(value, INTEGERS[1]) if typed.type == "pred" else value)
        absent = ir.Constant(ir.IntType(32), 0)
        if collective:
            pair = code.emit_collective(build, operation, values, function.args[1])
            results, absent = pair if pair else (None, absent)
        else:
            results = code.emit(build, operation, values)
        for slot, typed in enumerate(operation.outputs if results else ()):
            value = build.zext(results[slot], INTEGERS[8]) if typed.type == "pred" else results[slot]
            build.store(value, self._slot(build, function, len(operation.inputs) + slot, typed.type), align=1)
        build.ret(absent)
        return results is not None

    def _slot(self, build: ir.IRBuilder, function: ir.Function, slot: int, kind: str) -> ir.Value:
        pointer = build.load(build.gep(function.args[0], [ir.Constant(ir.IntType(32), slot)]))
        return build.bitcast(pointer, machine_type(kind).as_pointer())

    def run(self, index: int, operation: Operation, inputs: Sequence[np.ndarray],
            active: int = 0) -> tuple[list[np.ndarray], int]:
        """One call on arrays of 32 lanes."""
        outputs = [np.zeros(LANES, NUMPY[typed.type]) for typed in operation.outputs]
        arrays = [np.ascontiguousarray(array) for array in (*inputs, *outputs)]
        addresses = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        kind = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32)
        call = kind(self.engine.get_function_address(f"f{index}"))
        return arrays[len(inputs):], call(ctypes.addressof(addresses), active)


# ---------------------------------------------------------------- inputs and comparison
SPECIAL_32 = [0, 1, 2, 0x007FFFFF, 0x00800000, 0x3F800000, 0x3F7FFFFF, 0x3F000000, 0x3EFFFFFF, 0x4B000001, 0x4F000000,
              0x4EFFFFFF, 0x5F000000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x33000001, 0x38800000,
              0x387FFFFF, 0x477FEFFF,
              0x477FF000, 0x40490FDB, 0x42FE0000, 0x42FFFFFF, 0x43000000, 31, 32, 33, 63, 64, 255]
SPECIAL_16 = [0, 1, 0x3FF, 0x400, 0x3C00, 0x3BFF, 0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x7F80, 0x7F7F, 0x7F81, 0x7FFF, 0x80, 0x7F]


def random_bits(kind: str, random: np.random.Generator) -> np.ndarray:
    """[PIECES, 32] values: random bits, special ones, and floats of moderate size, mixed in each vector."""
    bits = BITS[kind]
    if bits == 1:
        return random.integers(0, 2, (PIECES, LANES)).astype(np.bool_)
    whole = random.integers(0, 2**64, (PIECES, LANES), np.uint64)
    specials = np.array(SPECIAL_16 if bits == 16 else SPECIAL_32, np.uint64)
    if bits == 64:
        with np.errstate(invalid="ignore"):
            wide = np.array(SPECIAL_32, np.uint32).view(np.float32).astype(np.float64).view(np.uint64)
        specials = np.concatenate([specials, wide, np.array([1 << 63, (1 << 63) - 1, (1 << 64) - 1, 1 << 52], np.uint64)])
    signs = random.integers(0, 2, whole.shape).astype(np.uint64) << np.uint64(bits - 1)
    picked = random.choice(specials, whole.shape) ^ signs
    moderate = (random.standard_normal(whole.shape) * 2.0 ** random.integers(-30, 30, whole.shape)).astype(np.float32)
    if kind == "f64":
        tame = moderate.astype(np.float64).view(np.uint64)
    elif kind == "f16":
        tame = np.clip(moderate, -60000, 60000).astype(np.float16).view(np.uint16).astype(np.uint64)
    else:
        tame = (moderate.view(np.uint32) >> np.uint32(16 if kind == "bf16" else 0)).astype(np.uint64)
    small = random.integers(-70, 70, whole.shape).astype(np.uint64)
    which = random.integers(0, 4, whole.shape)
    mixed = np.choose(which, [whole, picked, tame, small if kind[0] in "us" else tame]).astype(f"u{bits // 8}")
    return mixed.view(NUMPY[kind])


def same(got: np.ndarray, wanted: np.ndarray, kind: str, ulps: int = 0) -> np.ndarray:
    """Equal bits; f64 NaN may differ in payload; approximations may be `ulps` of f32 or f16 apart."""
    raw = f"u{np.asarray(got).dtype.itemsize}"
    equal = got.view(raw) == np.asarray(wanted).view(raw)
    if kind == "f64":
        equal |= np.isnan(got) & np.isnan(wanted)
    if ulps:
        apart = np.abs(got.view(raw).astype(np.int64) - np.asarray(wanted).view(raw).astype(np.int64))
        equal |= apart <= ulps
    return equal


def check(lines: Sequence[str], ulps: int = 0, seed: int = 1) -> list[str]:
    """Runs each instruction on random vectors; returns those that have no vector code."""
    found = operations(lines)
    compiled, random = Compiled(found), np.random.default_rng(seed)
    wrong: dict[str, str] = {}
    for index, (line, operation) in enumerate(zip(lines, found, strict=True)):
        if not compiled.native[index]:
            continue
        columns = [np.broadcast_to(np.array(t.operand.value & (1 << BITS[t.type]) - 1, f"u{max(1, BITS[t.type] // 8)}")
                                   .view(NUMPY[t.type]), (PIECES, LANES)) if isinstance(t.operand, Immediate)
                   else random_bits(t.type, random) for t in operation.inputs]
        assert operation.compute is not None
        wanted = operation.compute(*columns)
        for piece in range(PIECES):
            got, _ = compiled.run(index, operation, [column[piece] for column in columns])
            for slot, typed in enumerate(operation.outputs):
                good = same(got[slot], wanted[slot][piece], typed.type, ulps)
                if not good.all():
                    lane = int(np.argmin(good))
                    inputs = [hex(int(c[piece][lane].view(f"u{c.dtype.itemsize}"))) for c in columns]
                    raw = f"u{got[slot].dtype.itemsize}"
                    wrong[line] = (f"{line}: output {slot} of {inputs}: got {got[slot].view(raw)[lane]:#x}, "
                                   f"wanted {np.asarray(wanted[slot])[piece].view(raw)[lane]:#x}")
    assert not wrong, "\n".join(wrong.values())
    return [line for line, native in zip(lines, compiled.native, strict=True) if not native]


# ---------------------------------------------------------------- the instructions
INTEGERS_32 = [f"{op}.{t}32 %r1, %r2, %r3"
               for op in ("add", "sub", "min", "max", "mul.lo", "mul.hi", "div", "rem") for t in "us"]
INTEGERS_64 = [line.replace("32 ", "64 ").replace("%r", "%x") for line in INTEGERS_32]
INTEGERS_16 = [line.replace("32 ", "16 ").replace("%r", "%h") for line in INTEGERS_32]
MORE_INTEGERS = [
    "add.sat.s32 %r1, %r2, %r3", "sub.sat.s32 %r1, %r2, %r3", "mul.wide.s32 %x1, %r2, %r3", "mul.wide.u32 %x1, %r2, %r3",
    "mul.wide.s16 %r1, %h2, %h3", "mul.wide.u16 %r1, %h2, %h3", "mad.lo.s32 %r1, %r2, %r3, %r4",
    "mad.hi.u32 %r1, %r2, %r3, %r4",
    "mad.hi.sat.s32 %r1, %r2, %r3, %r4", "mad.wide.u32 %x1, %r2, %r3, %x4", "mad.wide.s32 %x1, %r2, %r3, %x4",
    "mad.lo.s64 %x1, %x2, %x3, %x4", "mul24.lo.s32 %r1, %r2, %r3", "mul24.hi.u32 %r1, %r2, %r3",
    "mad24.lo.u32 %r1, %r2, %r3, %r4",
    "mad24.hi.sat.s32 %r1, %r2, %r3, %r4", "sad.s32 %r1, %r2, %r3, %r4", "sad.u32 %r1, %r2, %r3, %r4", "abs.s32 %r1, %r2",
    "abs.s64 %x1, %x2", "neg.s32 %r1, %r2", "neg.s16 %h1, %h2", "popc.b32 %r1, %r2", "popc.b64 %r1, %x2", "clz.b32 %r1, %r2",
    "clz.b64 %r1, %x2", "brev.b32 %r1, %r2", "brev.b64 %x1, %x2", "bfind.u32 %r1, %r2", "bfind.s32 %r1, %r2",
    "bfind.shiftamt.s32 %r1, %r2", "bfind.shiftamt.u64 %r1, %x2", "bfind.s64 %r1, %x2", "bfe.u32 %r1, %r2, %r3, %r4",
    "bfe.s32 %r1, %r2, %r3, %r4", "bfe.u64 %x1, %x2, %r3, %r4", "bfe.s64 %x1, %x2, %r3, %r4", "bfe.s32 %r1, %r2, 8, 8",
    "bfi.b32 %r1, %r2, %r3, %r4, %r5", "bfi.b64 %x1, %x2, %x3, %r4, %r5", "bfi.b64 %x1, %x2, %x3, 32, 32",
    "dp4a.s32.s32 %r1, %r2, %r3, %r4", "dp4a.u32.s32 %r1, %r2, %r3, %r4", "dp4a.u32.u32 %r1, %r2, %r3, %r4",
    "add.s16x2 %r1, %r2, %r3", "add.u16x2 %r1, %r2, %r3", "min.s16x2 %r1, %r2, %r3", "max.u16x2 %r1, %r2, %r3",
    "max.relu.s16x2 %r1, %r2, %r3", "min.relu.s32 %r1, %r2, %r3",
    "div.s32 %r1, %r2, 7", "div.u32 %r1, %r2, 9", "rem.s32 %r1, %r2, -3", "div.s32 %r1, %r2, -1", "rem.s32 %r1, %r2, -1",
    "div.u32 %r1, %r2, 0", "rem.u64 %x1, %x2, 10",
]
LOGIC = [
    *(f"{op}.b{b} %{r}1, %{r}2, %{r}3" for op in ("and", "or", "xor") for b, r in ((16, "h"), (32, "r"), (64, "x"))),
    *(f"{op}.pred %p1, %p2, %p3" for op in ("and", "or", "xor")), "not.pred %p1, %p2", "not.b32 %r1, %r2", "not.b64 %x1, %x2",
    "cnot.b32 %r1, %r2", "lop3.b32 %r1, %r2, %r3, %r4, 0x96", "lop3.b32 %r1, %r2, %r3, %r4, 0xCA",
    *(f"{op} %{r}1, %{r}2, {amount}" for op, r in (("shl.b32", "r"), ("shr.u32", "r"), ("shr.s32", "r"), ("shl.b64", "x"),
                                                 ("shr.u64", "x"), ("shr.s64", "x"), ("shl.b16", "h"), ("shr.s16", "h"))
      for amount in ("%r3", "0", "5", "40", "64")),
    *(f"shf.{side}.{mode}.b32 %r1, %r2, %r3, {amount}"
      for side in "lr" for mode in ("wrap", "clamp") for amount in ("%r4", "32", "7")),
    "prmt.b32 %r1, %r2, %r3, 0x5410", "prmt.b32 %r1, %r2, %r3, 0x7632", "prmt.b32 %r1, %r2, %r3, 0x9C41",
]
INTEGER_TYPES = (("u8", "h"), ("s8", "h"), ("u16", "h"), ("s16", "h"), ("u32", "r"), ("s32", "r"), ("u64", "x"), ("s64", "x"))
RELATIONS = ["eq", "ne", "lt", "le", "gt", "ge"]
COMPARES = [
    *(f"setp.{r}.{t} %p1, %{g}2, %{g}3" for r in RELATIONS
      for t, g in (*INTEGER_TYPES[2:], ("f32", "f"), ("f64", "d"))),
    *(f"setp.{r}.{t} %p1, %{g}2, %{g}3" for r in ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
      for t, g in (("f32", "f"), ("f64", "d"), ("f16", "h"), ("bf16", "h"))),
    *(f"setp.{r}.u32 %p1, %r2, %r3" for r in ("lo", "ls", "hi", "hs")), "setp.eq.b32 %p1, %r2, %r3",
    "setp.lt.ftz.f32 %p1, %f2, %f3",
    "setp.lt.and.s32 %p1, %r2, %r3, %p4", "setp.ge.or.f32 %p1|%p2, %f2, %f3, %p4", "setp.ne.xor.u64 %p1|%p2, %x2, %x3, %p4",
    "setp.gt.s32 %p1|%p2, %r2, %r3", "setp.eq.s32 %p1, %r2, 0", "set.lt.u32.f32 %r1, %f2, %f3", "set.gt.f32.s32 %f1, %r2, %r3",
    "set.ge.and.s32.s32 %r1, %r2, %r3, %p4", "selp.b32 %r1, %r2, %r3, %p4", "selp.f32 %f1, %f2, 0f3F800000, %p4",
    "selp.b64 %x1, %x2, %x3, %p4", "selp.u32 %r1, 1, 0, %p4", "selp.b16 %h1, %h2, %h3, %p4", "slct.s32.s32 %r1, %r2, %r3, %r4",
    "slct.f32.f32 %f1, %f2, %f3, %f4", "slct.ftz.u64.f32 %x1, %x2, %x3, %f4",
]
MOVES = [
    "mov.b32 %r1, %r2", "mov.u64 %x1, %x2", "mov.pred %p1, %p2", "mov.b32 %r1, {%h2, %h3}", "mov.b32 {%h1, %h2}, %r3",
    "mov.b64 %x1, {%r2, %r3}", "mov.b64 {%r1, %r2}, %x3", "mov.b64 %x1, {%h2, %h3, %h4, %h5}",
    "mov.b64 {%h1, %h2, %h3, %h4}, %x5",
    "mov.f32 %f1, 0f3F800000",
    *(f"cvt.{d}.{s} %{dr}1, %{sr}2" for d, dr in INTEGER_TYPES for s, sr in INTEGER_TYPES),
    *(f"cvt.sat.{d}.{s} %{dr}1, %{sr}2" for d, dr in INTEGER_TYPES for s, sr in INTEGER_TYPES if s not in ("u8", "s8")),
    "cvta.to.global.u64 %x1, %x2", "cvta.shared.u64 %x1, %x2", "cvta.to.shared.u64 %x1, %x2", "cvta.local.u64 %x1, %x2",
]
ROUNDINGS = ["rn", "rz", "rm", "rp"]
FLOATS = [
    *(f"{op}.{m}{z}.f32 %f1, %f2, %f3" for op in ("add", "sub", "mul", "div") for m in ROUNDINGS for z in ("", ".ftz")),
    *(f"fma.{m}{z}{s}.f32 %f1, %f2, %f3, %f4" for m in ROUNDINGS for z in ("", ".ftz") for s in ("", ".sat")),
    *(f"{op}.{m}{z}.f32 %f1, %f2" for op in ("rcp", "sqrt") for m in ROUNDINGS for z in ("", ".ftz")),
    "add.f32 %f1, %f2, %f3", "sub.sat.f32 %f1, %f2, %f3", "mul.ftz.sat.f32 %f1, %f2, %f3", "mad.rn.f32 %f1, %f2, %f3, %f4",
    "fma.rm.f32 %f1, %f2, 0f437C0000, 0f4B400001",
    *(f"{op}{m}.{t} %{r}1, %{r}2, %{r}3" for op in ("min", "max") for m in ("", ".NaN")
      for t, r in (("f32", "f"), ("f16", "h"), ("bf16", "h"), ("f16x2", "r"))),
    "min.ftz.f32 %f1, %f2, %f3", "max.f32 %f1, %f2, %f3, %f4", "min.f64 %d1, %d2, %d3", "max.f64 %d1, %d2, %d3",
    *(f"{op}.{t} %{r}1, %{r}2" for op in ("neg", "abs") for t, r in (("f32", "f"), ("ftz.f32", "f"), ("f64", "d"), ("f16", "h"),
                                                                     ("bf16", "h"), ("f16x2", "r"), ("bf16x2", "r"))),
    *(f"{op}.rn.f64 %d1, %d2, %d3" for op in ("add", "sub", "mul", "div")), "fma.rn.f64 %d1, %d2, %d3, %d4",
    "rcp.rn.f64 %d1, %d2",
    "sqrt.rn.f64 %d1, %d2", "copysign.f32 %f1, %f2, %f3", "copysign.f64 %d1, %d2, %d3", "div.approx.f32 %f1, %f2, %f3",
    "div.full.ftz.f32 %f1, %f2, %f3", "add.rn.f32x2 %x1, %x2, %x3", "fma.rn.ftz.f32x2 %x1, %x2, %x3, %x4",
    "rcp.approx.ftz.f32 %f1, %f2", "sqrt.approx.f32 %f1, %f2",
]
HALVES = [
    *(f"{op}{m}.{t} %{r}1, %{r}2, %{r}3" for op in ("add", "sub", "mul") for m in ("", ".rn") for t, r in (
        ("f16", "h"), ("bf16", "h"), ("f16x2", "r"), ("bf16x2", "r"))),
    *(f"fma.rn{m}.{t} %{r}1, %{r}2, %{r}3, %{r}4" for m in ("", ".relu") for t, r in (
        ("f16", "h"), ("bf16", "h"), ("f16x2", "r"), ("bf16x2", "r"))),
    "add.sat.f16 %h1, %h2, %h3", "fma.rn.sat.f16 %h1, %h2, %h3, %h4",
]
CONVERSIONS = [
    *(f"cvt.{m}{z}.{d}.f32 %{r}1, %f2" for m in ("rni", "rzi", "rmi", "rpi") for z in ("", ".ftz") for d, r in (
        ("s32", "r"), ("u32", "r"), ("s64", "x"), ("u64", "x"), ("s16", "h"), ("u8", "h"), ("f32", "f"))),
    *(f"cvt.{m}.{d}.f64 %{r}1, %d2" for m in ("rni", "rzi", "rmi", "rpi") for d, r in (
        ("s32", "r"), ("u32", "r"), ("s64", "x"), ("u64", "x"), ("f64", "d"))),
    *(f"cvt.rzi.{d}.{s} %{r}1, %h2" for d, r in (("s32", "r"), ("u32", "r"), ("s64", "x"), ("s16", "h"))
      for s in ("f16", "bf16")),
    *(f"cvt.{m}.f32.{s} %f1, %{r}2" for m in ROUNDINGS for s, r in (
        ("s32", "r"), ("u32", "r"), ("s64", "x"), ("u64", "x"), ("s16", "h"), ("u8", "h"), ("f64", "d"))),
    *(f"cvt.rn.f64.{s} %d1, %{r}2" for s, r in (("s32", "r"), ("u32", "r"), ("s64", "x"), ("u64", "x"))),
    *(f"cvt.rn.{h}.{s} %h1, %{r}2" for h in ("f16", "bf16") for s, r in (
        ("s32", "r"), ("u32", "r"), ("s64", "x"), ("u64", "x"), ("f32", "f"), ("f64", "d"))),
    "cvt.sat.f32.f32 %f1, %f2", "cvt.ftz.sat.f32.f32 %f1, %f2", "cvt.ftz.f32.f32 %f1, %f2", "cvt.f64.f32 %d1, %f2",
    "cvt.ftz.f64.f32 %d1, %f2", "cvt.rn.ftz.f32.f64 %f1, %d2", "cvt.sat.f64.f64 %d1, %d2", "cvt.rn.sat.f32.s32 %f1, %r2",
    "cvt.f32.f16 %f1, %h2", "cvt.f32.bf16 %f1, %h2", "cvt.ftz.f32.bf16 %f1, %h2", "cvt.f64.f16 %d1, %h2",
    "cvt.rni.f16.f16 %h1, %h2",
    "cvt.rzi.bf16.bf16 %h1, %h2", "cvt.rn.bf16.f16 %h1, %h2", "cvt.rz.bf16.f32 %h1, %f2", "cvt.rn.relu.bf16.f32 %h1, %f2",
    "cvt.rn.bf16x2.f32 %r1, %f2, %f3", "cvt.rn.f16x2.f32 %r1, %f2, %f3", "cvt.rn.relu.f16x2.f32 %r1, %f2, %f3",
]
APPROXIMATIONS = [
    *(f"{op}.approx{z}.f32 %f1, %f2" for op in ("ex2", "lg2", "rsqrt", "sin", "cos") for z in ("", ".ftz")),
    "tanh.approx.f32 %f1, %f2",
    "ex2.approx.f16 %h1, %h2", "ex2.approx.f16x2 %r1, %r2", "tanh.approx.f16 %h1, %h2", "tanh.approx.bf16x2 %r1, %r2",
]


@pytest.mark.parametrize("lines", [INTEGERS_32, INTEGERS_64, INTEGERS_16, MORE_INTEGERS, LOGIC, COMPARES, MOVES, FLOATS, HALVES,
                                   CONVERSIONS],
                         ids=("32 bits", "64 bits", "16 bits", "more", "logic", "compare", "move", "float", "half", "convert"))
def test_bits_of_the_reference(lines: list[str]) -> None:
    assert check(lines) == [], "no vector code for these"


def test_halves_without_the_processors_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_floats, "processor_converts_halves", lambda: False)
    assert check([line for line in HALVES + CONVERSIONS if "f16" in line]) == []


def test_flushing_at_the_smallest_normal_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands whose products, quotients and sums lie about 2**-126: which of them .ftz flushes depends on the rounding."""
    def near(kind: str, random: np.random.Generator) -> np.ndarray:
        steps = random.integers(-3, 4, (PIECES, LANES))
        if kind == "f64":
            edge = 1.0 - steps * 2.0 ** random.integers(-30, -22, steps.shape)
            return edge * 2.0**-126 * random.choice([-1.0, 1.0], steps.shape)
        starts = np.array([0x00800003, 0x00800003, 0x3F800000, 0x01000000, 0x3F000000, 0x40000000, 0x3A000000, 0x33800000])
        signs = random.integers(0, 2, steps.shape) << 31
        return ((random.choice(starts, steps.shape) + steps) | signs).astype(np.uint32).view(np.float32)

    monkeypatch.setitem(globals(), "random_bits", near)
    lines = [line for line in FLOATS if ".ftz" in line and ".f32 " in line and not line.startswith(("min", "neg", "abs"))]
    lines += [f"cvt.{mode}.ftz.f32.f64 %f1, %d2" for mode in ROUNDINGS] + ["div.approx.ftz.f32 %f1, %f2, %f3"]
    assert check(lines) == []


def test_approximations_within_one_bit() -> None:
    assert check(APPROXIMATIONS, ulps=1) == []


# ---------------------------------------------------------------- collectives
SHUFFLES = [f"shfl.sync.{mode}.b32 %r1|%p1, %r2, {by}, {clamp}, {members}"
            for mode, clamp in (("bfly", 31), ("down", 31), ("up", 0), ("idx", 31), ("bfly", 0x1C1F), ("down", 0x181F),
                               ("idx", 0x1803))
            for by in (0, 1, 5, 16, 31, "%r3") for members in (-1, "%r5")] + [
    "shfl.sync.bfly.b32 %f1, %f2, 8, 31, -1", "shfl.sync.idx.b32 %r1, %r2, %r3, %r4, -1",
    "shfl.sync.up.b32 %r1|%p1, %r2, 3, %r4, -1"]
OTHERS = [
    *(f"vote.sync.{mode}.pred %p1, %p2, {members}" for mode in ("all", "any", "uni") for members in (-1, "%r3")),
    "vote.sync.ballot.b32 %r1, %p2, -1", "vote.sync.ballot.b32 %r1, %p2, %r3", "activemask.b32 %r1",
    *(f"redux.sync.{op}.{t} %r1, %r2, -1" for op in ("add", "min", "max") for t in ("s32", "u32")),
    *(f"redux.sync.{op}.b32 %r1, %r2, -1" for op in ("and", "or", "xor")),
    "match.any.sync.b32 %r1, %r2, -1", "match.any.sync.b64 %r1, %x2, -1", "match.all.sync.b32 %r1|%p1, %r2, -1",
    "match.any.sync.b32 %r1, %r2, %r3", "match.all.sync.b32 %r1|%p1, %r2, %r3", "elect.sync %r1|%p1, -1",
]
MASKS = [0xFFFFFFFF, 0, 1, 0x80000000, 0x0000FFFF, 0xFFFF0000, 0x55555555, 0x12345678]


@pytest.mark.parametrize("lines", [SHUFFLES, OTHERS])
def test_collectives(lines: list[str]) -> None:
    found, random = operations(lines), np.random.default_rng(3)
    compiled = Compiled(found, collective=True)
    assert [line for line, native in zip(lines, compiled.native, strict=True) if not native] == []
    for index, (line, operation) in enumerate(zip(lines, found, strict=True)):
        for trial, mask in enumerate(MASKS):
            active = (mask >> np.arange(LANES) & 1).astype(bool)
            columns = [collective_input(operation, slot, trial, random) for slot in range(len(operation.inputs))]
            assert operation.compute is not None
            *wanted, absent = operation.compute(active[None], *(column[None] for column in columns))
            got, bad = compiled.run(index, operation, columns, mask)
            assert bad == int((absent[0] * (1 << np.arange(LANES))).sum()), (line, hex(mask))
            for value, reference, typed in zip(got, wanted, operation.outputs, strict=True):
                assert same(value, reference[0], typed.type)[active].all(), (line, hex(mask), value, reference[0])


def collective_input(operation: Operation, slot: int, trial: int, random: np.random.Generator) -> np.ndarray:
    """Random lanes; few different values for match, all the same in some trials."""
    typed = operation.inputs[slot]
    kind = NUMPY[typed.type]
    if isinstance(typed.operand, Immediate):
        return np.full(LANES, typed.operand.value & (1 << BITS[typed.type]) - 1, f"u{BITS[typed.type] // 8}").view(kind)
    if typed.type == "pred":
        return random.integers(0, 2, LANES).astype(bool) | (trial % 2 == 0)
    if operation.instruction.opcode == "match":
        return random.integers(0, 3, LANES).astype(kind) * kind(trial % 2)
    return random.integers(0, 2**32, LANES, np.uint64).astype(f"u{BITS[typed.type] // 8}").view(kind)


# ---------------------------------------------------------------- what the reference must do, and small parts
def test_unknown_modifiers_are_left_to_the_reference() -> None:
    lines = ["min.xorsign.abs.f32 %f1, %f2, %f3", "add.rz.f64 %d1, %d2, %d3", "add.f32.f16 %f1, %h2, %f3",
             "prmt.b32 %r1, %r2, %r3, %r4"]
    assert check(lines) == lines


def test_constants_are_written_short_and_read_back() -> None:
    assert str(code.splat(32, -1)) == "<32 x i32> splat (i32 4294967295)"
    assert code.constant_of(code.splat(32, -1)) == 0xFFFFFFFF
    assert code.constant_of(ir.Constant(INTEGERS[32], None)) == 0
    assert code.constant_of(ir.Constant(INTEGERS[32], [1] * 31 + [2])) is None
    assert code.constant_of(ir.Constant(INTEGERS[16], [7] * 32)) == 7


@pytest.mark.parametrize(("kind", "wide", "value", "register"), [("s16", 32, 0xFFFE, 0xFFFFFFFE), ("u16", 32, 0xFFFE, 0xFFFE),
                                                               ("s8", 64, 0x80, (1 << 64) - 128), ("u64", 32, 1 << 33 | 5, 5)])
def test_registers_of_another_size(kind: str, wide: int, value: int, register: int) -> None:
    build = ir.IRBuilder(ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), []), "f").append_basic_block())
    written = code.as_register(build, code.splat(BITS[kind], value), kind, wide)
    assert code.constant_of(written) == register
    assert code.constant_of(code.as_type(build, written, wide, kind)) == value & (1 << min(wide, BITS[kind])) - 1
