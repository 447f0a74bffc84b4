"""The carry flag: a predicate that no operand names. NVRTC's 128-bit integers and its double sin and pow need it."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from perflab.emulator.flow import CARRY
from perflab.emulator.program import Program, program
from perflab.kernel import load

MACHINES = ["numpy", pytest.param("vector", marks=pytest.mark.skipif(
    importlib.util.find_spec("llvmlite") is None, reason="llvmlite is not installed"))]
N = 96
OPTIONS = ("--device-int128",)
SOURCE = """
typedef unsigned long long u64;

__device__ __noinline__ unsigned __int128 product_and_sum(u64 a, u64 b, u64 c, u64 d) {
    return (unsigned __int128)a * b + (((unsigned __int128)c << 64) | d);
}
extern "C" __global__ void wide(const u64* a, const u64* b, const u64* c, const u64* d, u64* low, u64* high, int n) {
    int i = threadIdx.x;
    if (i >= n) return;
    unsigned __int128 r = product_and_sum(a[i], b[i], c[i], d[i]);
    if (i % 3 == 0) r = product_and_sum((u64)r, d[i], a[i], (u64)(r >> 64)) - (((unsigned __int128)b[i] << 64) | c[i]);
    low[i] = (u64)r;
    high[i] = (u64)(r >> 64);
}
extern "C" __global__ void functions(const double* x, const double* y, double* sines, double* powers) {
    sines[threadIdx.x] = sin(x[threadIdx.x]);
    powers[threadIdx.x] = pow(fabs(x[threadIdx.x]), y[threadIdx.x]);
}
"""
BODY = """
.reg .pred %p<3>; .reg .b32 %r<9>;
add.cc.u32 %r1, %r2, %r3;
@%p1 bra L;
addc.cc.u32 %r4, %r5, %r6;
L:
subc.u32 %r7, %r5, %r6;
madc.lo.u32 %r8, %r1, %r2, %r3;
ret;
"""


def made(body: str) -> Program:
    return program(f".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k() {{{body}}}\n", "k")


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)




# ---------------------------------------------------------------- what a program knows of it
def test_it_lives_from_cc_to_the_instructions_that_read_it() -> None:
    found = made(BODY)
    assert found.registers[CARRY] == 1
    assert [CARRY in block.live_out for block in found.blocks] == [True, True, False]
    assert CARRY not in found.maybe_undefined
    assert CARRY in made(".reg .b32 %r<3>; addc.u32 %r1, %r2, %r2; ret;").maybe_undefined


def test_only_programs_that_use_it_have_it() -> None:
    assert CARRY not in made(".reg .b32 %r<3>; add.u32 %r1, %r2, %r2; ret;").registers


def test_inlining_does_not_rename_it() -> None:
    found = program(load(SOURCE, "wide", options=OPTIONS).binary("sm_90").ptx, "wide")
    assert [name for name in found.registers if "carry" in name] == [CARRY]
    assert CARRY not in found.maybe_undefined


# ---------------------------------------------------------------- results
def test_128_bits(machine: str) -> None:
    """Against Python's integers, through a function that is called twice."""
    random = np.random.default_rng(4)
    numbers = random.integers(0, 2**64, (4, N), np.uint64)
    numbers[:, :8] = random.choice(np.array([0, 1, 2**63, 2**64 - 1], np.uint64), (4, 8))
    a, b, c, d = numbers
    low, high = np.zeros(N, np.uint64), np.zeros(N, np.uint64)
    counts = load(SOURCE, "wide", options=OPTIONS).emulate(1, N, (a, b, c, d, low, high, N), gpu="sm_90", machine=machine)
    assert not counts.faults
    mask = 2**128 - 1
    for i, (p, q, r, s) in enumerate(zip(*numbers.tolist(), strict=True)):
        total = (p * q + (r << 64 | s)) & mask
        if i % 3 == 0:
            total = ((total & (2**64 - 1)) * s + (p << 64 | total >> 64) - (q << 64 | r)) & mask
        assert (int(high[i]) << 64 | int(low[i])) == total, i


def test_double_sin_and_pow(machine: str) -> None:
    """Arguments so large that their reduction multiplies 64-bit words; CUDA allows 2 ulps for each of both functions."""
    random = np.random.default_rng(5)
    x = random.standard_normal(N) * 10.0 ** random.integers(-3, 300, N)
    y = random.uniform(-2, 2, N) / np.maximum(1, np.abs(np.log10(np.abs(x)) / 100))
    sines, powers = np.zeros(N), np.zeros(N)
    counts = load(SOURCE, "functions", options=OPTIONS).emulate(1, N, (x, y, sines, powers), gpu="sm_90", machine=machine)
    assert not counts.faults
    for found, wanted in ((sines, np.sin(x)), (powers, np.abs(x) ** y)):
        assert np.all(np.abs(found - wanted) <= 2.5 * np.spacing(np.abs(wanted)))
