"""Versions that go wrong, each in its own way, between versions that do not."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perflab.kernel import load
from perflab.studies import Launch, NotApplicable, Output, Scratch, Study, Tolerance, Version, Work, i32

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Shape:
    """`huge` is the size of a buffer that no GPU has."""

    n: int = 4096
    huge: int = 0


def version(name: str) -> Version:
    """`hungry` does the shape with the huge buffer, all others the first, and `good` one more after all of them."""
    kernel = load(HERE / "faults.cu", name)

    def launches(shape: Shape, gpu) -> list[Launch]:
        if (name == "hungry") != bool(shape.huge) or (name != "good" and shape.n != 4096):
            raise NotApplicable("this fault is shown at another shape")
        arguments = ("y", i32(shape.n), *(["scratch"] if name == "hungry" else []))
        return [Launch(kernel, -(-shape.n // 256), 256, arguments)]

    return Version(name, (kernel,), "", launches)


study = Study(
    name="faults",
    title="Faults",
    shape=Shape,
    shapes=(Shape(), Shape(huge=1 << 37), Shape(n=8192)),
    inputs=lambda shape: {},
    buffers=lambda shape, gpu: {"y": Output((shape.n,))} | ({"scratch": Scratch((shape.huge,))} if shape.huge else {}),
    reference=lambda shape, given: {"y": np.ones(shape.n)},
    work=lambda shape: Work(flops=shape.n, bytes=4 * shape.n),
    tolerances=lambda shape, sequence: {"y": Tolerance("max_abs", 0.0, "exact")},
    facts=lambda shape: {"n": shape.n},
    versions=tuple(map(version, ("good", "out_of_bounds", "trap", "hang", "hungry"))),
)
