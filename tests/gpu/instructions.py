"""Single PTX instructions on a GPU: what the emulator's table is checked against, bit for bit.

    python tests/gpu/instructions.py build FILE       # where the compiler is: a kernel for each form, for sm_90
    python tests/gpu/instructions.py run FILE OUT.npz # where the GPU is: needs CuPy and numpy alone

A form is an instruction with typed operands: 'fma.rn.f32 =f32, f32, f32, f32'; '=' marks results, 'u32<40' an operand below
40. Operands come from `operands`, which makes the same bits everywhere: special values in all combinations, then random ones.
OUT.npz: `results`, the raw bits of all results one after another (little-endian, predicates one byte), and `about`, JSON
with the forms in order, the lanes, the GPU, its driver, the compiler and the date.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

LANES = 1280  # of every form: 40 warps
BLOCK = 128
BITS = {"pred": 1, "f16": 16, "bf16": 16, "u16": 16, "s16": 16, "u32": 32, "s32": 32, "f32": 32, "f16x2": 32, "bf16x2": 32,
        "s16x2": 32, "u16x2": 32, "u64": 64, "s64": 64, "f64": 64}
FRACTION_BITS = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}

# One pattern a line; {a,b} stands for each of them.
PATTERNS = """
{add,sub,mul}.{rn,rz,rm,rp}{,.ftz}.f32 =f32, f32, f32
{add,mul}.rn{,.ftz}.sat.f32 =f32, f32, f32
fma.{rn,rz,rm,rp}{,.ftz}.f32 =f32, f32, f32, f32
fma.rn{,.ftz}.sat.f32 =f32, f32, f32, f32
{add,mul}.{rn,rz,rm,rp}.f64 =f64, f64, f64
sub.rn.f64 =f64, f64, f64
fma.{rn,rz,rm,rp}.f64 =f64, f64, f64, f64
div.{rn,rz,rm,rp,rn.ftz}.f32 =f32, f32, f32
{rcp,sqrt}.{rn,rz,rm,rp,rn.ftz}.f32 =f32, f32
div.{rn,rz}.f64 =f64, f64, f64
{rcp,sqrt}.{rn,rp}.f64 =f64, f64
{add,sub,mul}{,.ftz}{,.sat}.f16 =f16, f16, f16
{add,sub,mul}.f16x2 =f16x2, f16x2, f16x2
fma.rn{,.ftz,.sat,.relu}.f16 =f16, f16, f16, f16
fma.rn{,.ftz,.relu}.f16x2 =f16x2, f16x2, f16x2, f16x2
{add,sub,mul}.bf16 =bf16, bf16, bf16
{add,sub,mul}.bf16x2 =bf16x2, bf16x2, bf16x2
fma.rn{,.relu}.bf16 =bf16, bf16, bf16, bf16
fma.rn{,.relu}.bf16x2 =bf16x2, bf16x2, bf16x2, bf16x2
{abs,neg}{,.ftz}.f32 =f32, f32
{abs,neg}.f64 =f64, f64
{abs,neg}.f16 =f16, f16
{abs,neg}.bf16x2 =bf16x2, bf16x2
{min,max}{,.ftz}{,.NaN}{,.xorsign.abs}.f32 =f32, f32, f32
{min,max}.f64 =f64, f64, f64
{min,max}{,.NaN}{,.xorsign.abs}.f16 =f16, f16, f16
{min,max}.ftz.f16x2 =f16x2, f16x2, f16x2
{min,max}{,.NaN}.bf16 =bf16, bf16, bf16
{min,max}.xorsign.abs.bf16x2 =bf16x2, bf16x2, bf16x2
copysign.f32 =f32, f32, f32
copysign.f64 =f64, f64, f64
testp.{finite,infinite,number,notanumber,normal,subnormal}.f32 =pred, f32
testp.{normal,subnormal}.f64 =pred, f64
{ex2,lg2,sin,cos,rcp,rsqrt,sqrt}.approx{,.ftz}.f32 =f32, f32
tanh.approx.f32 =f32, f32
div.{approx,full}{,.ftz}.f32 =f32, f32, f32
{ex2,tanh}.approx.f16 =f16, f16
{ex2,tanh}.approx.f16x2 =f16x2, f16x2
{ex2.approx.ftz,tanh.approx}.bf16 =bf16, bf16
{ex2.approx.ftz,tanh.approx}.bf16x2 =bf16x2, bf16x2
{rcp,rsqrt}.approx.ftz.f64 =f64, f64
setp.{eq,ne,lt,le,gt,ge,equ,neu,ltu,leu,gtu,geu,num,nan,eq.ftz,gtu.ftz}.f32 =pred, f32, f32
setp.{lt,neu}.f64 =pred, f64, f64
setp.{eq,ltu}.f16 =pred, f16, f16
setp.{ge,nan}.bf16 =pred, bf16, bf16
setp.{lt,geu}.f16x2 =pred|=pred, f16x2, f16x2
setp.gt.and.bf16x2 =pred|=pred, bf16x2, bf16x2, pred
setp.lt.{and,or,xor}.s32 =pred|=pred, s32, s32, pred
setp.{lo,ls,hi,hs}.u32 =pred, u32, u32
setp.{lt,ge}.s16 =pred, s16, s16
setp.{gt,le}.s64 =pred, s64, s64
set.lt.{u32,s32}.f32 =u32, f32, f32
set.geu.f32.f32 =f32, f32, f32
set.ne.f32.s32 =f32, s32, s32
set.lt.f16x2.f16x2 =f16x2, f16x2, f16x2
set.ltu.u32.f16x2 =u32, f16x2, f16x2
set.gt.f16.f16 =f16, f16, f16
slct.f32.s32 =f32, f32, f32, s32
slct{,.ftz}.u64.f32 =u64, u64, u64, f32
selp.b32 =u32, u32, u32, pred
cvt.{rni,rzi,rmi,rpi}{,.ftz}.{s32,u32}.f32 =u32, f32
cvt.{rni,rzi,rmi,rpi}.{s64,u64}.f32 =u64, f32
cvt.{rni,rzi}.{s16,u16}.f32 =u16, f32
cvt.rzi.{s8,u8}.f32 =u32, f32
cvt.{rni,rzi,rmi,rpi}.{s32,u32}.f64 =u32, f64
cvt.{rni,rzi,rmi,rpi}.{s64,u64}.f64 =u64, f64
cvt.{rni,rzi}.{s32,u32}.f16 =u32, f16
cvt.{rmi,rpi}.{s64,u64}.f16 =u64, f16
cvt.rzi.{s16,u16}.f16 =u16, f16
cvt.{rni,rzi}.{s32,u32}.bf16 =u32, bf16
cvt.{rn,rz,rm,rp}.f32.s32 =f32, s32
cvt.{rn,rz,rm,rp}.f32.u32 =f32, u32
cvt.{rn,rz,rm,rp}.f32.s64 =f32, s64
cvt.{rn,rz,rm,rp}.f32.u64 =f32, u64
cvt.{rn,rz,rm,rp}.f64.s64 =f64, s64
cvt.{rn,rz,rm,rp}.f64.u64 =f64, u64
cvt.rn.f64.s32 =f64, s32
cvt.rn.f16.s32 =f16, s32
cvt.{rn,rz}.f16.u64 =f16, u64
cvt.{rn,rm}.f16.s16 =f16, s16
cvt.rn.bf16.s32 =bf16, s32
cvt.rn.bf16.u64 =bf16, u64
cvt.rn.f32.u8 =f32, u16
cvt.{rn,rz,rm,rp}{,.ftz}.f32.f64 =f32, f64
cvt.rn.sat.f32.f64 =f32, f64
cvt{,.ftz}.f64.f32 =f64, f32
cvt.{rn,rz,rm,rp}.f16.f32 =f16, f32
cvt.rn.{ftz,sat,relu}.f16.f32 =f16, f32
cvt{,.ftz}.f32.f16 =f32, f16
cvt.{rn,rz,rm,rp}.f16.f64 =f16, f64
cvt.f64.f16 =f64, f16
cvt.{rn,rz,rn.relu}.bf16.f32 =bf16, f32
cvt.f32.bf16 =f32, bf16
cvt.rn.bf16.f16 =bf16, f16
cvt.rn.f16.bf16 =f16, bf16
cvt.f64.bf16 =f64, bf16
cvt.rn.bf16.f64 =bf16, f64
cvt.{rni,rzi,rmi,rpi}{,.ftz}{,.sat}.f32.f32 =f32, f32
cvt.{rni,rzi,rmi,rpi}.f64.f64 =f64, f64
cvt.{rni,rzi,rmi,rpi}.f16.f16 =f16, f16
cvt{,.ftz}.sat.f32.f32 =f32, f32
cvt.sat.f64.f64 =f64, f64
cvt.sat.f16.f16 =f16, f16
cvt.{rna,rn,rz,rn.relu}.tf32.f32 =u32, f32
cvt.{rn,rz}{,.relu}.{f16x2,bf16x2}.f32 =u32, f32, f32
cvt.rn.satfinite{,.relu}.{e4m3x2,e5m2x2}.f32 =u16, f32, f32
cvt.rn.satfinite{,.relu}.{e4m3x2,e5m2x2}.f16x2 =u16, f16x2
cvt.rn{,.relu}.f16x2.{e4m3x2,e5m2x2} =u32, u16
cvt.{s8,u8,s16,u16}.s32 =u32, s32
cvt.{s32,u32}.s8 =u32, u16
cvt.s64.s32 =s64, s32
cvt.sat.{s8,u8,s16,u16}.s32 =u32, s32
cvt.sat.{s32,s16,u8}.u32 =u32, u32
cvt.sat.u32.s32 =u32, s32
cvt.sat.{s32,u32}.s64 =u32, s64
cvt.sat.{s32,u32}.u64 =u32, u64
cvt.sat.u64.s32 =u64, s32
cvt.pack.sat.{s16,u16}.s32 =u32, s32, s32
cvt.pack.sat.{s8,u8}.s32.b32 =u32, s32, s32, u32
{add,sub}.sat.s32 =s32, s32, s32
mul.{lo,hi}.s16 =s16, s16, s16
mul.{lo,hi}.u16 =u16, u16, u16
mul.wide.s16 =s32, s16, s16
mul.{lo,hi}.s32 =s32, s32, s32
mul.hi.u32 =u32, u32, u32
mul.wide.s32 =s64, s32, s32
mul.wide.u32 =u64, u32, u32
mul.{lo,hi}.s64 =s64, s64, s64
mul.hi.u64 =u64, u64, u64
mad.{lo,hi,hi.sat}.s32 =s32, s32, s32, s32
mad.wide.s32 =s64, s32, s32, s64
mad.wide.u16 =u32, u16, u16, u32
mad.{lo,hi}.u64 =u64, u64, u64, u64
mul24.{lo,hi}.s32 =s32, s32, s32
mul24.{lo,hi}.u32 =u32, u32, u32
mad24.{lo,hi,hi.sat}.s32 =s32, s32, s32, s32
sad.s32 =s32, s32, s32, s32
sad.u32 =u32, u32, u32, u32
{div,rem}.u16 =u16, u16, u16
{div,rem}.s16 =s16, s16, s16
{div,rem}.u32 =u32, u32, u32
{div,rem}.s32 =s32, s32, s32
{div,rem}.u64 =u64, u64, u64
{div,rem}.s64 =s64, s64, s64
{div,rem}.u32 =u32, u32, u32<9
{div,rem}.s64 =s64, s64, s64<9
{abs,neg}.s16 =s16, s16
{abs,neg}.s32 =s32, s32
{abs,neg}.s64 =s64, s64
{min,max}.u16 =u16, u16, u16
{min,max}.s32 =s32, s32, s32
{min,max}.u64 =u64, u64, u64
{min,max}{,.relu}.s16x2 =s16x2, s16x2, s16x2
{min,max}.relu.s32 =s32, s32, s32
add.{s16x2,u16x2} =u16x2, u16x2, u16x2
{popc,clz}.b32 =u32, u32
{popc,clz}.b64 =u32, u64
bfind{,.shiftamt}.{u32,s32} =u32, u32
bfind{,.shiftamt}.{u64,s64} =u32, u64
brev.b32 =u32, u32
brev.b64 =u64, u64
cnot.b32 =u32, u32<3
bfe.{u32,s32} =u32, u32, u32<300, u32<300
bfe.{u32,s32} =u32, u32, u32<40, u32<40
bfe.{u64,s64} =u64, u64, u32<80, u32<80
bfi.b32 =u32, u32, u32, u32<300, u32<300
bfi.b32 =u32, u32, u32, u32<40, u32<40
bfi.b64 =u64, u64, u64, u32<80, u32<80
shl.b32 =u32, u32, u32<40
shr.{u32,s32} =u32, u32, u32<40
shl.b64 =u64, u64, u32<70
shr.{u64,s64} =u64, u64, u32<70
shl.b16 =u16, u16, u32<40
shr.s16 =s16, s16, u32<40
shl.b32 =u32, u32, u32
shr.s32 =s32, s32, u32
shf.{l,r}.{wrap,clamp}.b32 =u32, u32, u32, u32<70
prmt.b32{,.f4e,.b4e,.rc8,.ecl,.ecr,.rc16} =u32, u32, u32, u32
lop3.b32 =u32, u32, u32, u32, {0x96,0xE8,0x1D}
lop3.{or,and}.b32 =u32|=pred, u32, u32, u32, 0x80, pred
dp4a.{s32,u32}.{s32,u32} =u32, u32, u32, u32
dp2a.{lo,hi}.{s32,u32}.s32 =u32, u32, u32, u32
fns.b32 =u32, u32, u32<32, u32<34
bmsk.{clamp,wrap}.b32 =u32, u32<70, u32<70
szext.{clamp,wrap}.{s32,u32} =u32, u32, u32<70
shfl.sync.{up,down,bfly,idx}.b32 =u32|=pred, u32, u32<40, u32<8192, -1
vote.sync.{all,any,uni}.pred =pred, pred, -1
vote.sync.ballot.b32 =u32, pred, -1
match.any.sync.b32 =u32, u32<7, -1
match.any.sync.b64 =u32, u64<40, -1
match.all.sync.b32 =u32|=pred, u32<2, -1
redux.sync.{add,min,max}.u32 =u32, u32, -1
redux.sync.{add,min,max}.s32 =s32, s32, -1
redux.sync.{and,or,xor}.b32 =u32, u32, -1
"""
_TOKEN = re.compile(r"(?<=[ |])(=?)(" + "|".join(sorted(BITS, key=len, reverse=True)) + r")(?:<(\d+))?(?=[,|]|$)")
_SPECIAL_OPERANDS = {1: 64, 2: 27, 3: 9, 4: 5}  # special values of each operand, by the number of operands read


# ---------------------------------------------------------------- forms
@dataclass(frozen=True)
class Operand:
    """One typed operand; `below`: 0, or what it is smaller than."""

    kind: str
    result: bool
    below: int = 0

    @property
    def bits(self) -> int:
        """Of a lane in memory and of the C++ variable: predicates are words there."""
        return max(BITS[self.kind], 32 if self.kind == "pred" else 16)


@dataclass(frozen=True)
class Form:
    """One instruction form."""

    text: str

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """In the order of the text: results come first."""
        return tuple(Operand(kind, result == "=", int(below or 0)) for result, kind, below in _TOKEN.findall(self.text))

    @property
    def results(self) -> tuple[Operand, ...]:
        """What it writes."""
        return tuple(operand for operand in self.operands if operand.result)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """What it reads."""
        return tuple(operand for operand in self.operands if not operand.result)

    @property
    def name(self) -> str:
        """The instruction without operands."""
        return self.text.split(" ")[0]

    def line(self, names: list[str]) -> str:
        """PTX with these operand names."""
        order = iter(names)
        return _TOKEN.sub(lambda _: next(order), self.text)


def _expanded(pattern: str) -> Iterator[str]:
    """'{a,b}c{,d}' -> ac, acd, bc, bcd."""
    parts = re.split(r"[{}]", pattern)
    for choice in itertools.product(*(part.split(",") if i % 2 else [part] for i, part in enumerate(parts))):
        yield "".join(choice)


FORMS = tuple(Form(text) for pattern in PATTERNS.strip().splitlines() for text in _expanded(pattern))


# ---------------------------------------------------------------- operands, the same on every machine
def specials(kind: str) -> list[int]:
    """Bit patterns worth trying: zeros, ends of ranges, ties, infinities, NaNs, both signs."""
    if kind.endswith("x2"):
        halves = specials(kind[:-2])
        return [low | (halves[(7 * i + 3) % len(halves)] << 16) for i, low in enumerate(halves)]
    if kind == "pred":
        return [0, 1]
    bits = BITS[kind]
    if kind not in FRACTION_BITS:
        top, every = 1 << (bits - 1), (1 << bits) - 1
        return [0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 100, 127, 128, 255, 256, top - 1, top, top + 1, every, every - 1,
                every // 3, 2 * (every // 3), every - 127, every - 128]
    fraction = FRACTION_BITS[kind]
    unit = 1 << fraction
    top, infinity = 1 << (bits - 1), ((1 << (bits - 1)) - 1) // unit * unit
    one = infinity // 2 // unit * unit
    positive = [0, 1, unit // 2, unit - 1, unit, unit + 1, 2 * unit - 1, one - 1, one, one + 1, one - unit, one + unit // 2,
                one + unit, one + unit + unit // 2, one + unit + unit // 4, one + fraction * unit, one + fraction * unit + 1,
                one + (fraction + 1) * unit, infinity - 1, infinity, infinity + 1, top - 1]
    return positive + [value | top for value in positive]


def _random(kind: str, words: np.ndarray) -> np.ndarray:
    """Random bits; floats half the time of magnitudes near 1, half of those with few bits, which make ties."""
    if kind.endswith("x2"):
        low, high = (_random(kind[:-2], words >> np.uint64(32 * part)) for part in range(2))
        return low | (high << np.uint64(16))
    bits = BITS[kind]
    mask = np.uint64((1 << bits) - 1)
    if kind not in FRACTION_BITS:
        return words & mask
    fraction = FRACTION_BITS[kind]
    mixed = words ^ (words >> np.uint64(29))
    bias = (1 << (bits - 2 - fraction)) - 1
    near = (np.uint64(bias - 4) + (mixed & np.uint64(7))) << np.uint64(fraction) | (words & np.uint64((1 << fraction) - 1))
    near = np.where(mixed & np.uint64(8), near & ~np.uint64((1 << (fraction // 2 + 1)) - 1), near)
    near |= (mixed >> np.uint64(5) & np.uint64(1)) << np.uint64(bits - 1)
    return np.where(mixed & np.uint64(16), near, words & mask)


def operands(form: Form) -> list[np.ndarray]:
    """The raw bits that a form reads, [LANES] of uint16, uint32 or uint64 each (a predicate: 0 or 1 in uint32)."""
    inputs = form.inputs
    key = zlib.crc32(form.text.encode())
    words = np.random.Philox(key=key).random_raw(len(inputs) * LANES + 256 * len(inputs)).reshape(len(inputs), -1)
    lanes, count = np.arange(LANES), _SPECIAL_OPERANDS[len(inputs)]
    arrays, divisor = [], 1
    for operand, random in zip(inputs, words, strict=True):
        known = np.array(specials(operand.kind), np.uint64)
        chosen = known[np.argsort(random[: known.size])][:count]
        combined, random = chosen[lanes // divisor % chosen.size], random[256:]
        values = np.where(lanes < count ** len(inputs), combined, _random(operand.kind, random))
        divisor *= chosen.size
        if operand.below:
            values = np.where(lanes < 32, np.uint64(0), random % np.uint64(operand.below))
        if operand.kind == "pred":
            values = np.where(lanes < 32, np.uint64(1), np.where(lanes < 64, np.uint64(0), random & np.uint64(1)))
        arrays.append(values.astype(f"u{operand.bits // 8}"))
    return arrays


# ---------------------------------------------------------------- kernels
_C = {16: ("unsigned short", "h"), 32: ("unsigned int", "r"), 64: ("unsigned long long", "l")}


def kernel_text(form: Form, name: str) -> str:
    """CUDA C++ of one form: operands out of arrays, the instruction by inline assembly, results into arrays."""
    numbered = list(enumerate(form.operands))
    before = [f"setp.ne.u32 q{i}, %{i}, 0;" for i, x in numbered if x.kind == "pred" and not x.result]
    after = [f"selp.u32 %{i}, 1, 0, q{i};" for i, x in numbered if x.kind == "pred" and x.result]
    line = form.line([f"q{i}" if x.kind == "pred" else f"%{i}" for i, x in numbered])
    code = " ".join(["{ .reg .pred q<9>;", *before, line + ";", *after, "}"])
    outs = ", ".join(f'"={_C[x.bits][1]}"(x{i})' for i, x in numbered if x.result)
    ins = ", ".join(f'"{_C[x.bits][1]}"(a{i}[i])' for i, x in numbered if not x.result)
    parameters = ", ".join(f"{'' if x.result else 'const '}{_C[x.bits][0]}* a{i}" for i, x in numbered)
    declared = " ".join(f"{_C[x.bits][0]} x{i};" for i, x in numbered if x.result)
    stores = " ".join(f"a{i}[i] = x{i};" for i, x in numbered if x.result)
    return (f'extern "C" __global__ void {name}({parameters}) {{\n  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n'
            f'  {declared}\n  asm volatile("{code}" : {outs} : {ins});\n  {stores}\n}}\n')


def build(file: Path) -> None:
    """Compile all forms for sm_90 into one cubin; FILE is JSON."""
    from perflab.compile import Source, compile_source

    text = "".join(kernel_text(form, f"form{i}") for i, form in enumerate(FORMS))
    binary = compile_source(Source("instructions.cu", text), "sm_90", time_limit_seconds=600)
    cubin = base64.b64encode(zlib.compress(binary.cubin)).decode()
    file.write_text(json.dumps({"forms": [form.text for form in FORMS], "nvrtc": binary.nvrtc, "cubin": cubin}))
    print(f"{len(FORMS)} forms, cubin {len(binary.cubin):,} B")


# ---------------------------------------------------------------- the GPU
def _driver() -> str:
    """The driver's version, as nvidia-smi says it."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, timeout=30).stdout.strip().splitlines()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return ""


def results_of(function: Any, form: Form) -> list[np.ndarray]:
    """Run one form on the GPU; predicates come back as bytes."""
    import cupy

    made = [cupy.zeros(LANES, f"u{x.bits // 8}") for x in form.results]
    function((LANES // BLOCK,), (BLOCK,), (*made, *(cupy.asarray(x) for x in operands(form))))
    host = [cupy.asnumpy(x) for x in made]
    return [x.astype(np.uint8) if operand.kind == "pred" else x for operand, x in zip(form.results, host, strict=True)]


def save(out: Path, about: dict[str, Any], blobs: list[bytes]) -> None:
    """OUT.npz, as the module's text says."""
    np.savez_compressed(out, results=np.frombuffer(b"".join(blobs), np.uint8), about=np.array(json.dumps(about)))


def run(file: Path, out: Path) -> None:
    """Run every form that FILE holds, in its order."""
    import cupy

    given = json.loads(file.read_text())
    forms = [Form(text) for text in given["forms"]]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(zlib.decompress(base64.b64decode(given["cubin"])))
        cubin.flush()
        module = cupy.RawModule(path=cubin.name)
        functions = [module.get_function(f"form{i}") for i in range(len(forms))]
        blobs = [x.tobytes() for function, form in zip(functions, forms, strict=True) for x in results_of(function, form)]
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    about = {"forms": given["forms"], "lanes": LANES, "gpu": properties["name"].decode(), "driver": _driver(),
             "capability": f"{properties['major']}.{properties['minor']}", "nvrtc": given["nvrtc"], "cupy": cupy.__version__,
             "utc": datetime.now(UTC).isoformat(timespec="seconds")}
    save(out, about, blobs)
    print(f"{about['gpu']}, driver {about['driver']}: {len(forms)} forms, {out.stat().st_size:,} B")


def main(arguments: list[str]) -> None:
    """See the module's text."""
    match arguments:
        case ["build", file]:
            build(Path(file))
        case ["run", file, out]:
            run(Path(file), Path(out))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
