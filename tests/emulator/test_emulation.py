"""Launches on the CPU: arguments, memory over launches, unwritten outputs, limits, variables, samples; on both machines."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import perflab as pl
from perflab.emulator import emulation
from perflab.emulator.emulation import Settings, emulate_launches
from perflab.errors import PerflabError
from perflab.kernel import load
from perflab.studies import Launch, Output, Scratch, f32, i32

MACHINES = ["numpy", pytest.param("vector", marks=pytest.mark.skipif(
    importlib.util.find_spec("llvmlite") is None, reason="llvmlite is not installed"))]
SOURCE = """
__constant__ float factors[4];
__device__ int calls;
struct Line { float a; int n; double b; };

template <typename T>
__global__ void saxpy(const T* __restrict__ x, T* __restrict__ y, T a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
extern "C" __global__ void fill(float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = i;
}
extern "C" __global__ void line(const float* x, float* out, Line p) {
    int i = threadIdx.x;
    if (i < p.n) out[i] = p.a * x[i] + (float)p.b;
}
extern "C" __global__ void scale(float* x) {
    x[threadIdx.x] *= factors[threadIdx.x % 4];
    if (threadIdx.x == 0) atomicAdd(&calls, 1);
}
extern "C" __global__ void reverse(float* x, int n) {
    extern __shared__ float tile[];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = tile[n - 1 - threadIdx.x];
}
extern "C" __global__ void uneven(const float* x, float* y, int n) {
    float sum = 0;
    for (int k = 0; k <= blockIdx.x; ++k) sum += x[k * blockDim.x + threadIdx.x];
    y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
"""


def kernel(name: str):
    return load(SOURCE, name)


@pytest.fixture(params=MACHINES)
def machine(request):
    return request.param


def test_saxpy_writes_in_place_and_counts(machine):
    x, y = np.arange(1000, dtype=np.float32), np.ones(1000, np.float32)
    counts = kernel("saxpy<float>").emulate(grid=4, block=256, args=[x, y, 2.0, 1000], machine=machine)
    np.testing.assert_array_equal(y, 2 * np.arange(1000) + 1)
    assert (counts.global_load_bytes, counts.global_load_sectors, counts.global_load_requests) == (8000, 250, 64)
    assert (counts.global_store_bytes, counts.global_store_sectors, counts.global_store_requests) == (4000, 125, 32)
    assert (counts.unique_load_bytes, counts.unique_store_bytes, counts.unique_bytes) == (8000, 4000, 12000)
    assert counts.flops == 2000 and counts.flops_by == {("fma", "f32"): 2000}
    assert counts.branches_split == 1 and not counts.faults and counts.exact
    assert any(one.flops == 2000 for one in counts.by_line.values())


def test_numbers_become_the_parameters_type(machine):
    x, y = np.ones(4), np.zeros(4)
    kernel("saxpy<double>").emulate(1, 32, [x, y, np.float32(0.5), np.int64(4)], machine=machine)
    assert y.tolist() == [0.5] * 4


def test_a_struct_by_value(machine):
    record = np.zeros(1, np.dtype([("a", "f4"), ("n", "i4"), ("b", "f8")]))
    record["a"], record["n"], record["b"] = 3, 5, 0.25
    for value in (record[0], record[0].tobytes()):
        x, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
        kernel("line").emulate(1, 32, [x, out, value], machine=machine)
        assert out.tolist() == [0.25, 3.25, 6.25, 9.25, 12.25, 0, 0, 0]


def test_variables_by_name_are_read_and_written(machine):
    x, calls = np.ones(8, np.float32), np.array([5], np.int32)
    kernel("scale").emulate(1, 8, [x], constants={"factors": np.arange(4, dtype=np.float32), "calls": calls}, machine=machine)
    assert x.tolist() == [0, 1, 2, 3] * 2 and calls[0] == 6
    zeros = np.ones(8, np.float32)
    kernel("scale").emulate(1, 8, [zeros], machine=machine)
    assert not zeros.any()  # a __constant__ that nobody sets holds zeros
    with pytest.raises(PerflabError, match='Did you mean "factors"'):
        kernel("scale").emulate(1, 8, [x], constants={"factor": np.zeros(4, np.float32)})
    with pytest.raises(PerflabError, match="factors takes 16 B; the array given has 12 B"):
        kernel("scale").emulate(1, 8, [x], constants={"factors": np.zeros(3, np.float32)})


def test_dynamic_shared_memory(machine):
    x = np.arange(64, dtype=np.float32)
    counts = kernel("reverse").emulate(1, 64, [x, 64], dynamic_shared=256, machine=machine)
    assert x.tolist() == list(range(63, -1, -1)) and not counts.faults
    assert (counts.shared_store_bytes, counts.shared_load_bytes, counts.shared_load_wavefronts) == (256, 256, 2)
    assert counts.barriers == 2
    short = kernel("reverse").emulate(1, 64, [x, 64], dynamic_shared=252, machine=machine)
    assert {fault.kind for fault in short.faults} == {"out of bounds"}


def test_an_output_that_nobody_wrote_is_a_fault(machine):
    out = np.full((3, 7), -1, np.float32)
    counts = kernel("fill").emulate(1, 32, [out, 15], outputs=["out"], machine=machine)
    (fault,) = counts.faults
    assert fault.kind == "unwritten output" and fault.times == 6 and not counts.passed
    assert "6 of 21 elements of out were never written: [2, 1], [2, 2]" in fault.message
    assert SOURCE.splitlines()[fault.line - 1].startswith(('extern "C" __global__ void fill', "    int i = blockIdx"))
    assert out[2, 1] == -1  # what the host had there
    assert not kernel("fill").emulate(1, 32, [out, 21], outputs=[0], machine=machine).faults


def test_scratch_begins_as_never_written(machine):
    x, y = np.zeros(32, np.float32), np.zeros(32, np.float32)
    counts = kernel("saxpy<float>").emulate(1, 32, [x, y, 1.0, 32], scratch=["x"], machine=machine)
    assert [fault.kind for fault in counts.faults] == ["uninitialised"]
    assert not kernel("saxpy<float>").emulate(1, 32, [x, y, 1.0, 32], scratch=["x"], machine=machine, checking=False).faults


# ---------------------------------------------------------------- several launches
def launches(n: int = 100) -> list[Launch]:
    grid = -(-n // 32)
    return [Launch(kernel("fill"), grid, 32, ("part", i32(n))),
            Launch(kernel("fill"), grid, 32, ("out", i32(n))),
            Launch(kernel("saxpy<float>"), grid, 32, ("part", "out", f32(2.0), i32(n)))]


def test_memory_persists_over_the_launches_of_a_version(machine):
    buffers = {"out": Output((100,)), "part": Scratch((100,))}
    counts, got = emulate_launches("study/version", launches(), {}, buffers, Settings("H200", machine))
    np.testing.assert_array_equal(got["out"], 3 * np.arange(100))
    assert not counts.faults and len(counts.parts) == 3
    assert counts.flops == counts.parts[2].flops == 200
    assert counts.unique_bytes == 400 + 400 + 1200
    assert counts.global_store_bytes == sum(part.global_store_bytes for part in counts.parts) == 1200
    assert "3 launches" in str(counts.origin) and counts.blocks == 12


def test_a_launch_that_is_missing_shows(machine):
    buffers = {"out": Output((100,)), "part": Scratch((100,))}
    counts, got = emulate_launches("v", launches()[1:], {}, buffers, Settings("H200", machine))
    assert [fault.kind for fault in counts.faults] == ["uninitialised"]
    counts, got = emulate_launches("v", launches()[:1], {}, buffers, Settings("H200", machine))
    assert [fault.kind for fault in counts.faults] == ["unwritten output"]
    assert (got["out"].view(np.uint32) == 0x7FC0BEEF).all()


def test_inputs_are_left_alone(machine):
    x = np.ones(32, np.float32)
    given = {"x": x}
    emulate_launches("v", [Launch(kernel("reverse"), 1, 32, ("x", i32(32)), 128)], given, {}, Settings("H200", machine))
    emulate_launches("v", [Launch(kernel("saxpy<float>"), 1, 32, ("x", "x", f32(1), i32(32)))], given, {},
                     Settings("H200", machine))
    assert (x == 1).all()


def test_an_unknown_buffer_is_named():
    with pytest.raises(PerflabError, match='unknown input or buffer .* "prat".*Did you mean "part"'):
        emulate_launches("v", [Launch(kernel("fill"), 1, 32, ("prat", i32(3)))], {}, {"part": Scratch((3,))}, Settings("H200"))


# ---------------------------------------------------------------- samples
def test_a_sample_is_near_the_whole_and_states_its_error(machine):
    blocks = 512
    x, y = np.zeros(blocks * 32, np.float32), np.zeros(blocks * 32, np.float32)
    whole = kernel("uneven").emulate(blocks, 32, [x, y, 0], machine=machine, checking=False)
    assert whole.global_load_bytes == 128 * blocks * (blocks + 1) // 2 and whole.errors == {}
    part = kernel("uneven").emulate(blocks, 32, [x, y, 0], machine=machine, sample=64)
    assert part.blocks_run == 64 and part.share == 0.125 and "64 of 512 blocks run" in str(part.origin)
    for name in ("global_load_bytes", "warp_instructions", "flops"):
        off = getattr(part, name) / getattr(whole, name) - 1
        assert abs(off) < 4 * part.errors[name] < 0.2, (name, off, part.errors[name])
    assert part.global_store_bytes == whole.global_store_bytes and part.errors["global_store_bytes"] == 0
    assert part.unique_load_bytes <= whole.unique_load_bytes


def test_a_sample_as_large_as_the_grid_is_exact(machine):
    x, y = np.zeros(256, np.float32), np.zeros(256, np.float32)
    counts = kernel("uneven").emulate(8, 32, [x, y, 0], machine=machine, sample=8)
    assert counts.exact and counts.errors == {}


def test_blocks_that_talk_are_all_run(machine):
    x = np.ones(8, np.float32)
    counts = kernel("scale").emulate(3, 8, [x], machine=machine, sample=1)
    assert counts.exact and any("talk to each other" in words for words in counts.warnings)


# ---------------------------------------------------------------- what a launch refuses
REFUSED = {
    "threads": (dict(grid=1, block=2048), "a block of 2,048 threads along x; at most 1,024"),
    "product": (dict(grid=1, block=(64, 32)), "a block of 2,048 threads; H200 allows 1,024"),
    "depth": (dict(grid=1, block=(1, 1, 65)), "65 threads along z; at most 64"),
    "grid": (dict(grid=(1, 65536), block=32), "65,536 blocks along y; at most 65,535"),
    "nothing": (dict(grid=0, block=32), "at least 1"),
    "shared": (dict(grid=1, block=32, dynamic_shared=232449), "232,449 B of dynamic shared memory.*232,448 B"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_driver_refuses(case):
    asked, said = REFUSED[case]
    with pytest.raises(PerflabError, match=said):
        kernel("fill").emulate(args=[np.zeros(1, np.float32), 1], gpu="H200", **asked)


def test_launch_bounds_are_kept():
    bounded = load('extern "C" __global__ void __launch_bounds__(64) f(float* x) { x[0] = 1; }', "f")
    with pytest.raises(PerflabError, match="compiled for at most 64"):
        bounded.emulate(1, 128, [np.zeros(1, np.float32)])


def test_arguments_are_named_as_in_the_source():
    x = np.zeros(4, np.float32)
    with pytest.raises(PerflabError, match=r"takes 4 arguments, 2 were given.*x: 8-byte.*a: 4-byte float; n: 4-byte integer"):
        kernel("saxpy<float>").emulate(1, 32, [x, x])
    with pytest.raises(PerflabError, match="n = 2.5: .*whole number"):
        kernel("saxpy<float>").emulate(1, 32, [x, x.copy(), 1.0, 2.5])
    with pytest.raises(PerflabError, match="'x' is text"):
        kernel("saxpy<float>").emulate(1, 32, ["x", x, 1.0, 4])
    with pytest.raises(PerflabError, match='Did you mean "out"'):
        kernel("fill").emulate(1, 32, [x, 4], outputs=["outs"])
    with pytest.raises(PerflabError, match='unknown machine "fast"'):
        kernel("fill").emulate(1, 32, [x, 4], machine="fast")
    with pytest.raises(PerflabError, match='schedule="backward": it is forward, reversed, or random:SEED'):
        kernel("fill").emulate(1, 32, [x, 4], schedule="backward")
    with pytest.raises(PerflabError, match="at least 1 block"):
        kernel("fill").emulate(1, 32, [x, 4], sample=0)


def test_vector_without_llvmlite_says_what_to_install(monkeypatch):
    monkeypatch.setattr(emulation.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PerflabError, match=r"perflab\[fast\]"):
        emulation.machine("vector")
    from perflab.emulator.machine import run

    assert emulation.machine("auto") is run


# ---------------------------------------------------------------- words
def test_spills_are_warned_of(machine):
    spilling = load(Path(__file__).parent.parent / "kernels" / "spill.cu")
    x, out = np.ones(64 * 32, np.float32), np.zeros(64 * 32, np.float32)
    counts = spilling.emulate(1, 32, [x, out, 32], gpu="H200", machine=machine)
    stored = spilling.resources("H200").spill_store_bytes
    assert stored and any(f"spills ({stored:,} B of stores" in words for words in counts.warnings)
    assert "spills" in str(counts)


def test_the_top_level_way_in(machine):
    out = np.zeros(32, np.float32)
    counts = pl.load(SOURCE, "fill").emulate(grid=(1,), block=(32,), args=[out, 32], dynamic_shared=0, machine=machine)
    assert out[31] == 31 and counts.unique_bytes == 128 and "fill: counted" in str(counts)
    fault = pl.load(SOURCE, "fill").emulate(grid=(2,), block=(32,), args=[out, 64], machine=machine).faults[0]
    assert (fault.kind, fault.block, fault.threads[0]) == ("out of bounds", 1, 0)
    assert SOURCE.splitlines()[fault.line - 1].strip() == "if (i < n) out[i] = i;"
    assert "out" in fault.message
