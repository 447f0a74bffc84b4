"""SAXPY, the smallest study: how inputs, buffers, a reference, work and versions are declared."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perflab.kernel import load
from perflab.studies import Launch, NotApplicable, Output, Prediction, Study, Tolerance, Uniform, Version, Work, f32, i32

HERE = Path(__file__).parent
A = 0.75
THREADS = 256


@dataclass(frozen=True)
class Shape:
    """Elements of each vector."""

    n: int = 1 << 26


SCALAR = load(HERE / "00_scalar.cu", "scalar")
FLOAT4 = load(HERE / "01_float4.cu", "float4_wide")


def asked_bytes(shape: Shape, gpu) -> int:
    """Two float32 loads and one store an element."""
    return 12 * shape.n


def scalar_launches(shape: Shape, gpu) -> list[Launch]:
    """A thread an element."""
    return [Launch(SCALAR, -(-shape.n // THREADS), THREADS, ("x", "y", "z", f32(A), i32(shape.n)))]


def float4_launches(shape: Shape, gpu) -> list[Launch]:
    """A thread four elements."""
    if shape.n % 4:
        raise NotApplicable(f"n = {shape.n:,} is no multiple of 4: the last {shape.n % 4} elements have no float4")
    return [Launch(FLOAT4, -(-shape.n // 4 // THREADS), THREADS, ("x", "y", "z", f32(A), i32(shape.n // 4)))]


study = Study(
    name="saxpy",
    title="SAXPY",
    shape=Shape,
    shapes=tuple(Shape(1 << power) for power in (26, 22, 24, 20, 28)),
    bundles={"odd": Shape(1001), "quads": Shape(4096)},
    inputs=lambda shape: {"x": Uniform((shape.n,)), "y": Uniform((shape.n,))},
    buffers=lambda shape, gpu: {"z": Output((shape.n,))},
    reference=lambda shape, given: {"z": A * given["x"].astype(np.float64) + given["y"]},
    work=lambda shape: Work(flops=2 * shape.n, bytes=12 * shape.n),
    # One multiply and one add: at most two roundings of half a unit in the last place each.
    tolerances=lambda shape, sequence: {"z": Tolerance("max_abs", 1.2e-7, "float32, two roundings of values below 2")},
    facts=lambda shape: {"n": shape.n},
    versions=(
        Version("scalar", (SCALAR,), "a thread an element, 4-byte loads", scalar_launches, asked_bytes=asked_bytes),
        Version(
            "float4",
            (FLOAT4,),
            "a thread four elements, 16-byte loads",
            float4_launches,
            prediction=Prediction("scalar", Shape(), (0.95, 1.15), "the same bytes from DRAM, which both wait for"),
            asked_bytes=asked_bytes,
        ),
    ),
)
