"""Single PTX instructions on a GPU: what the emulator's table is checked against, bit for bit.

    python tests/gpu/instructions.py build FILE       # where the compiler is: a kernel for each form, for sm_90
    python tests/gpu/instructions.py run FILE OUT.npz # where the GPU is: needs CuPy and numpy alone

A form (instruction_forms.txt) is an instruction with typed operands: 'fma.rn.f32 =f32, f32, f32, f32'; '=' marks results,
'u32<40' an operand below 40, 'f32@-126' one within three units in the last place of 2^-126 or -2^-126. Operands come from
`operands`, which makes the same bits everywhere: special values in all combinations, then random ones.
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

PATTERNS = Path(__file__).with_name("instruction_forms.txt")  # one a line; {a,b} stands for each of them
_TOKEN = re.compile(r"(?<=[ |])(=?)(" + "|".join(sorted(BITS, key=len, reverse=True)) + r")(?:<(\d+)|@(-?\d+))?(?=[,|]|$)")
_SPECIAL_OPERANDS = {1: 64, 2: 27, 3: 9, 4: 5}  # special values of each operand, by the number of operands read


# ---------------------------------------------------------------- forms
@dataclass(frozen=True)
class Operand:
    """One typed operand; `below`: 0, or what it is smaller than; `near`: '', or the exponent of the power of two it is near."""

    kind: str
    result: bool
    below: int = 0
    near: str = ""

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
        found = _TOKEN.findall(self.text)
        return tuple(Operand(kind, result == "=", int(below or 0), near) for result, kind, below, near in found)

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


FORMS = tuple(Form(text) for pattern in PATTERNS.read_text().splitlines() for text in _expanded(pattern))


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


def _near(kind: str, exponent: int, words: np.ndarray) -> np.ndarray:
    """A power of two of either sign, up to three bit patterns further or less far."""
    bits, fraction = BITS[kind], FRACTION_BITS[kind]
    start = ((1 << (bits - 2 - fraction)) - 1 + exponent << fraction) - 3
    return (np.uint64(start) + words % np.uint64(7)) | (words >> np.uint64(60) & np.uint64(1)) << np.uint64(bits - 1)


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
        if operand.near:
            values = _near(operand.kind, int(operand.near), random)
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
