"""The hardware's approximations, computed in float64 and rounded, and how far PTX lets the hardware be from the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from perflab.emulator.arithmetic import Ending, finish, flush, flushed, is_tiny, round_to, widen

Array = Any
Function = Callable[..., Array]


@dataclass(frozen=True)
class Bound:
    """How far the hardware's approximation may lie from the true value; where two are given, either suffices.

    ulps: of the result's type; relative and absolute errors; smallest and largest: |x| (|b| of a division) that it holds for.
    """

    ulps: float = 0.0
    relative: float = 0.0
    absolute: float = 0.0
    smallest: float = 0.0
    largest: float = float("inf")


_CIRCLE = 2 * 3.141592653589793
ULP_BOUNDS = {
    "ex2.approx.f32": Bound(ulps=2),
    "lg2.approx.f32": Bound(relative=2.0**-22, absolute=2.0**-22),  # absolute between 0.5 and 2, relative elsewhere
    "rcp.approx.f32": Bound(ulps=1),
    "rsqrt.approx.f32": Bound(relative=2.0**-22.9),
    "sqrt.approx.f32": Bound(relative=2.0**-23),
    "sin.approx.f32": Bound(absolute=2.0**-20.5, largest=_CIRCLE),
    "cos.approx.f32": Bound(absolute=2.0**-20.5, largest=_CIRCLE),
    "tanh.approx.f32": Bound(relative=2.0**-11),
    "div.approx.f32": Bound(ulps=2, smallest=2.0**-126, largest=2.0**126),
    "div.full.f32": Bound(ulps=2),
    "rsqrt.approx.f64": Bound(ulps=2),  # PTX gives none; CUDA's rsqrt(double), which is this, has 1
    "rcp.approx.ftz.f64": Bound(relative=2.0**-20),  # PTX gives none; an H200 errs by 2^-20.1: 0.96 units of the upper half
    "rsqrt.approx.ftz.f64": Bound(relative=2.0**-20),  # likewise: 2^-20.07, 1.00 units
    "ex2.approx.f16": Bound(relative=2.0**-9.9, absolute=2.0**-24),  # absolute: subnormal results of an H200, PTX gives none
    "ex2.approx.bf16": Bound(relative=2.0**-7),
    "tanh.approx.f16": Bound(absolute=2.0**-10.987),
    "tanh.approx.bf16": Bound(absolute=2.0**-7.999),  # 2^-8 in PTX, but an H200 gives 0x3f21 for 0x3f3f: 1.00007 times that
}
"""By instruction name; those that are not here, without .ftz; packed ones as their halves. Source: NVIDIA's PTX ISA 9.0, notes
of each instruction, and where it says so the results of an H200 in data/experiments/h200_instructions.npz."""

APPROXIMATIONS: dict[str, Callable[[Array], Array]] = {
    "ex2": np.exp2, "lg2": np.log2, "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "sqrt": np.sqrt,
    "rcp": lambda x: 1.0 / x, "rsqrt": lambda x: 1.0 / np.sqrt(x),
}


def approximate(name: str, ending: Ending) -> Function:
    """ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh: float64, then rounded to the type."""
    function = APPROXIMATIONS[name]

    def run(a: Array) -> Array:
        (a,) = flushed(ending, (a,))
        return finish(round_to(function(widen(a, ending.type)), ending.type), ending)

    return run


def approximate_upper(name: str) -> Function:
    """rcp and rsqrt.approx.ftz.f64: the upper 32 bits of a float64 result, read and written; the lower ones 0."""
    function, upper = APPROXIMATIONS[name], np.uint64(0xFFFFFFFF00000000)

    def run(a: Array) -> Array:
        a = flush((np.asarray(a).view(np.uint64) & upper).view(np.float64), "f64")
        return flush((np.asarray(function(a)).view(np.uint64) & upper).view(np.float64), "f64")

    return run


def divide_approximately(ending: Ending, full: bool) -> Function:
    """div.full, and div.approx: 0 for |b| beyond 2^126, and then NaN for an infinite a."""

    def run(a: Array, b: Array) -> Array:
        a, b = flushed(ending, (a, b))
        quotient = np.asarray(a / b)
        if not full:
            huge = (np.abs(b) > 2.0**126) & np.isfinite(b)
            nothing = np.where(np.isfinite(a), np.copysign(np.float32(0), quotient), np.float32(np.nan))
            quotient = np.where(huge, nothing, quotient)
        return finish(quotient, ending, is_tiny(widen(a, "f32") / widen(b, "f32"), ending))

    return run
