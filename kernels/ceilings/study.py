"""What the machine can do at most: DRAM, L2, FP32 FMA, mma.sync and launches, each by a kernel that does nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from perflab.kernel import load
from perflab.studies import Launch, NotApplicable, Output, Study, Tolerance, Uniform, Version, Work, f32, i32

HERE = Path(__file__).parent
KIB, MIB = 1 << 10, 1 << 20
FLOAT = 4  # bytes
THREADS, WARPS = 256, 8
READ_CHUNK, QUAD_CHUNK, COPY_CHUNK = 32 * KIB, 16 * KIB, 4 * KIB  # what a block moves: 00_read.cu; 01 and 03; 02_copy.cu
L2_BYTES = 1 << 30  # that a launch reads of a small working set, again and again: over 100 us at 10 TB/s
L2_MIB = (2, 4, 8, 16, 24, 32, 40, 48, 60, 96, 128)
A_TRIAD = 0.75
SLICES = 64  # of distinct operands that blocks or warps take in turn
A_FMA, CHAINS, FMA_STEPS = -(1 - 2.0**-10), 8, 512
MMA_STEPS, MMA_AS, MMA_BS = 256, 2, 4
TYPES = {"mma_bf16": "BFLOAT16", "mma_fp16": "FLOAT16", "mma_tf32": "TF32"}

# Ceiling -> bytes of each array that it moves; of the working set of l2_read; of the results of arithmetic, whose number is
# the work; 0 for launches. All of DRAM's are over four times the L2 of an H200.
SIZES = {"dram_read": 1024 * MIB, "dram_write": 512 * MIB, "dram_copy": 1024 * MIB, "dram_triad": 256 * MIB,
         "l2_read": 24 * MIB, "fp32_fma": 33 * MIB, **dict.fromkeys(TYPES, 33 * MIB), "empty": 0, "empty_pair": 0}
UNITS = {"dram_read": READ_CHUNK, "l2_read": READ_CHUNK, "dram_write": QUAD_CHUNK, "dram_copy": COPY_CHUNK,
         "dram_triad": QUAD_CHUNK, "fp32_fma": THREADS * FLOAT, **dict.fromkeys(TYPES, WARPS * 128 * FLOAT)}
SUSTAINED = tuple(name for name in SIZES if name not in ("l2_read", "empty", "empty_pair"))


@dataclass(frozen=True)
class Shape:
    """What is measured: which ceiling, on how much (0: as SIZES says), in a burst or after seconds of the same work."""

    ceiling: str = "dram_read"
    size_bytes: int = 0
    duty: str = "burst"

    def __post_init__(self) -> None:
        if self.ceiling not in SIZES:
            raise NotApplicable(f'ceiling "{self.ceiling}" is none of {", ".join(SIZES)}')
        if self.duty not in ("burst", *(("sustained",) if self.ceiling in SUSTAINED else ())):
            raise NotApplicable(f'{self.ceiling} has no duty "{self.duty}": burst, or for {", ".join(SUSTAINED)} sustained')
        object.__setattr__(self, "size_bytes", self.size_bytes or SIZES[self.ceiling])
        unit = UNITS.get(self.ceiling)
        if unit is None and self.size_bytes or unit and (self.size_bytes < unit or self.size_bytes % unit):
            allowed = f"a multiple of {unit:,}, which a block does" if unit else "0, for a launch does nothing"
            raise NotApplicable(f"{self.ceiling} of {self.size_bytes:,} bytes: size_bytes is {allowed}")

    @property
    def blocks(self) -> int:
        """Of the grid."""
        return self.passes * self.size_bytes // UNITS[self.ceiling] if self.size_bytes else 1

    @property
    def passes(self) -> int:
        """How often the working set is read."""
        return max(1, L2_BYTES // self.size_bytes) if self.ceiling == "l2_read" else 1

    @property
    def floats(self) -> int:
        """Elements of an array of size_bytes."""
        return self.size_bytes // FLOAT

    @property
    def k(self) -> int:
        """Columns of A and rows of B in one mma."""
        return 8 if self.ceiling == "mma_tf32" else 16


# ---------------------------------------------------------------- what goes in
@dataclass(frozen=True)
class Repeated:
    """`count` random float32 numbers, the same 2^24 over and over: memory does not care, and a GiB is made in a second."""

    count: int
    period: int = 1 << 24

    def describe(self) -> dict[str, Any]:
        """The recipe as JSON, for the hash."""
        return {**Uniform((self.period,)).describe(), "kind": "uniform24 repeated", "count": self.count}

    def make(self, seed: int, name: str) -> np.ndarray:
        """The float32 array."""
        return np.resize(Uniform((min(self.count, self.period),)).make(seed, name), self.count)


def inputs(shape: Shape) -> dict[str, Uniform | Repeated]:
    """x, y: arrays to move, or starts of FMA chains [slices, chains + 1, threads]; a, b: operands of mma, one set a slice."""
    if shape.ceiling in TYPES:
        return {"a": Uniform((SLICES, MMA_AS, 16, shape.k)), "b": Uniform((SLICES, MMA_BS, shape.k, 8))}
    if shape.ceiling == "fp32_fma":
        return {"x": Uniform((SLICES, CHAINS + 1, THREADS))}
    names = {"dram_read": "x", "l2_read": "x", "dram_copy": "x", "dram_triad": "xy"}.get(shape.ceiling, "")
    return {name: Repeated(shape.floats) for name in names}


# ---------------------------------------------------------------- what must come out
def buffers(shape: Shape, gpu: object) -> dict[str, Output]:
    """out: a sum a warp of the reads, else size_bytes of float32."""
    if shape.ceiling in ("dram_read", "l2_read"):
        return {"out": Output((shape.blocks * WARPS,))}
    return {"out": Output((shape.floats,))} if shape.size_bytes else {}


def reference(shape: Shape, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """In float64, from the inputs as they are after the operand type has cut them."""
    if not shape.size_bytes:
        return {}
    if shape.ceiling in ("dram_read", "l2_read"):  # [chunk, load, warp, the 32 lanes' 4 floats]
        sums = given["x"].reshape(-1, READ_CHUNK // (THREADS * 16), WARPS, 128).sum(axis=(1, 3), dtype=np.float64)
        return {"out": np.tile(sums.ravel(), shape.passes)}
    if shape.ceiling == "dram_write":
        return {"out": written(shape.floats)}
    if shape.ceiling == "fp32_fma":
        return {"out": np.resize(fma_ends(given["x"]), shape.floats)}
    if shape.ceiling in TYPES:
        a, b = (operand(given[name], shape.ceiling) for name in "ab")
        return {"out": np.resize(MMA_STEPS * a.sum(axis=1) @ b.sum(axis=1), shape.floats)}
    x = given["x"].astype(np.float64)
    return {"out": x + A_TRIAD * given["y"] if shape.ceiling == "dram_triad" else x}


def written(count: int) -> np.ndarray:
    """What 01_write.cu writes: float32 numbers in [1, 2), exact in float64."""
    mantissa = np.arange(count, dtype=np.uint32) * np.uint32(2654435761) >> np.uint32(9)
    return 1 + mantissa * 2.0**-23


def fma_ends(x: np.ndarray) -> np.ndarray:
    """[slices, threads]: the sum of the chains' ends, in closed form: x_n = f + a^n (x_0 - f), f = b / (1 - a)."""
    starts, b = x[:, :CHAINS].astype(np.float64), x[:, CHAINS:].astype(np.float64)
    fixed = b / (1 - A_FMA)
    return (fixed + A_FMA**FMA_STEPS * (starts - fixed)).sum(axis=1)


def operand(values: np.ndarray, ceiling: str) -> np.ndarray:
    """float64 of what 05_mma.cu gives the tensor cores: float16 rounded to nearest, bfloat16 and tf32 cut off."""
    if ceiling == "mma_fp16":
        return values.astype(np.float16).astype(np.float64)
    kept = np.uint32(0xFFFF0000 if ceiling == "mma_bf16" else 0xFFFFE000)
    return (values.view(np.uint32) & kept).view(np.float32).astype(np.float64)


def tolerances(shape: Shape, sequence: int) -> dict[str, Tolerance]:
    """Exact where nothing is rounded; else by the number of roundings in a row."""
    rounded = {
        "dram_read": (1e-6, "float32 sums of 1,024 numbers, 37 roundings in a row"),
        "dram_triad": (1.2e-7, "float32, one rounding of values below 2"),
        "fp32_fma": (4e-6, f"{FMA_STEPS} roundings in a row; one step more or less is over 1"),
        # Tensor cores cut sums off instead of rounding them, so errors add up: at most 2^-23 a step. A step is 2^-8.
        **dict.fromkeys(TYPES, (1e-3, f"{MMA_STEPS} sums cut off to float32; one step more or less is 4e-3")),
    }
    limit, because = rounded.get("dram_read" if shape.ceiling == "l2_read" else shape.ceiling, (0.0, "nothing is rounded"))
    return {"out": Tolerance("max_abs" if shape.ceiling == "dram_triad" else "norm_relative", limit, because)}


# ---------------------------------------------------------------- how much is done
def traffic_bytes(shape: Shape) -> int:
    """What the loads and stores ask for: arrays in, arrays or sums out, every pass counted."""
    read, write = {"dram_write": (0, 1), "dram_copy": (1, 1), "dram_triad": (2, 1)}.get(shape.ceiling, (1, 0))
    sums = shape.blocks * WARPS * FLOAT if shape.ceiling in ("dram_read", "l2_read") else 0
    if shape.ceiling in TYPES:  # every warp loads its operands, 16 columns of A and 8 of B a set, then writes a tile
        return shape.blocks * WARPS * shape.k * (16 * MMA_AS + 8 * MMA_BS) * FLOAT + shape.size_bytes
    if shape.ceiling == "fp32_fma":
        return shape.size_bytes * (CHAINS + 2)
    return shape.passes * (read + write) * shape.size_bytes + sums


def work(shape: Shape) -> Work:
    """FLOPs (the sums of the reads are a means, so not counted), and bytes that must move between DRAM and the chip once."""
    once = sum(recipe.count if isinstance(recipe, Repeated) else math.prod(recipe.shape) for recipe in inputs(shape).values())
    out = sum(math.prod(buffer.shape) for buffer in buffers(shape, None).values())
    if shape.ceiling in TYPES:
        flops = shape.blocks * WARPS * MMA_STEPS * MMA_AS * MMA_BS * 2 * 16 * 8 * shape.k
    elif shape.ceiling == "fp32_fma":
        flops = 2 * FMA_STEPS * CHAINS * shape.floats
    else:
        flops = 2 * shape.floats if shape.ceiling == "dram_triad" else 0
    return Work(flops=flops, bytes=(once + out) * FLOAT)


def spec(shape: Shape) -> dict[str, float]:
    """Sustained: seconds of the same work first, and long batches, so that power and clocks are those of a long run. A burst of
    arithmetic: the first milliseconds, before power pulls the clock down."""
    if shape.duty == "burst":
        short = {"min_warmup_seconds": 0.002, "max_warmup_seconds": 0.01, "max_samples": 20}
        return short if shape.ceiling in TYPES or shape.ceiling == "fp32_fma" else {}
    return {"min_warmup_seconds": 2.0, "max_warmup_seconds": 3.0, "batch_seconds": 0.04, "max_repeats": 400, "max_seconds": 4.0}


# ---------------------------------------------------------------- versions
READ = load(HERE / "00_read.cu", "read_chunks")
WRITE = load(HERE / "01_write.cu", "write_all")
COPY = load(HERE / "02_copy.cu", "copy_all")
TRIAD = load(HERE / "03_triad.cu", "triad")
FMA = load(HERE / "04_fma.cu", f"fma_chains<{FMA_STEPS}>")
MMA = {name: load(HERE / "05_mma.cu", f"mma_loop<{kind}, {MMA_STEPS}>") for name, kind in TYPES.items()}
EMPTY = load(HERE / "06_empty.cu", "empty")


def version(name: str, kernel: Any, change: str, *arguments: Any, launches: int = 1) -> Version:
    """The one version that measures a ceiling; `arguments` of its kernel, a function of the shape among them."""

    def launch(shape: Shape, gpu: object) -> list[Launch]:
        if shape.ceiling != name:
            raise NotApplicable(f'{name} is measured at shapes with ceiling="{name}"')
        given = tuple(a(shape) if callable(a) else a for a in arguments)
        return [Launch(kernel, shape.blocks, THREADS if shape.size_bytes else 32, given)] * launches

    return Version(name, (kernel,), change, launch, asked_bytes=lambda shape, gpu: traffic_bytes(shape))


def chunks(shape: Shape) -> Any:
    """How many chunks the working set has."""
    return i32(shape.size_bytes // READ_CHUNK)


study = Study(
    name="ceilings",
    title="Ceilings",
    shape=Shape,
    shapes=(
        *(Shape(name) for name in SIZES if name != "l2_read"),
        *(Shape("l2_read", mib * MIB) for mib in L2_MIB),
        *(Shape(name, duty="sustained") for name in SUSTAINED),
    ),
    inputs=inputs,
    buffers=buffers,
    reference=reference,
    work=work,
    tolerances=tolerances,
    facts=lambda shape: {"ceiling": shape.ceiling, "MiB": f"{shape.size_bytes / MIB:g}", "duty": shape.duty},
    spec=spec,
    versions=(
        version("dram_read", READ, "one pass over 1 GiB, 16-byte loads, eight a thread", "x", "out", chunks),
        version("dram_write", WRITE, "16-byte stores of 512 MiB", "out"),
        version("dram_copy", COPY, "1 GiB in, 1 GiB out, 16 bytes at a time", "x", "out"),
        version("dram_triad", TRIAD, "two arrays of 256 MiB in, one out", "x", "y", "out", f32(A_TRIAD)),
        version("l2_read", READ, "a small working set again and again, by all SMs, past L1", "x", "out", chunks),
        version("fp32_fma", FMA, "eight independent FMA chains a thread", "x", "out", f32(A_FMA), i32(SLICES)),
        *(version(name, kernel, f"mma.sync m16n8k{Shape(name).k} on registers, eight accumulators a warp",
                  "a", "b", "out", i32(SLICES)) for name, kernel in MMA.items()),
        version("empty", EMPTY, "a kernel that does nothing"),
        version("empty_pair", EMPTY, "two of them, one after the other", launches=2),
    ),
)
