"""perflab.device and perflab.timing on a real GPU. Where the GPU machine has no compiler, make the cubins elsewhere:

    python tests/gpu/test_device.py 9.0 binaries.json       # here
    PERFLAB_GPU_BINARIES=binaries.json pytest tests/gpu     # there
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perflab.check import POISON, poison
from perflab.compile import Binary, Source, compile_source
from perflab.device import CupyDevice, DeviceFault
from perflab.errors import PerflabError
from perflab.gpus import from_device, gpu
from perflab.occupancy_model import occupancy
from perflab.timing import TOOLS_SOURCE, Stopwatch, TimingSpec

SOURCES = {
    "kinds": """extern "C" __global__ void kinds(float* y, float a, int n, long long far, double d) {
        int i = threadIdx.x; if (i < n) y[i] = a * i + (float)(far >> 32) + (float)d; }""",
    "shared": """extern "C" __global__ void shared(float* y, int n) {
        extern __shared__ float s[]; for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = i;
        __syncthreads(); y[threadIdx.x] = s[n - 1 - threadIdx.x]; }""",
    "bounded": """extern "C" __global__ void __launch_bounds__(128) bounded(float* y) { y[threadIdx.x] = 1; }""",
    "wild": """extern "C" __global__ void wild(float* y) { y[1ll << 40] = 1; }""",
    "heavy": """extern "C" __global__ void heavy(float* y, int n) {
        __shared__ float s[2500]; float r[48]; for (int k = 0; k < 48; k++) r[k] = y[k * n + threadIdx.x];
        for (int j = 0; j < n; j++) for (int k = 0; k < 48; k++) r[k] = r[k] * r[(k + 1) % 48] + j;
        float t = 0; for (int k = 0; k < 48; k++) t += r[k]; s[threadIdx.x] = t; __syncthreads();
        y[threadIdx.x] = s[(threadIdx.x + 1) % blockDim.x]; }""",
    "sum": """extern "C" __global__ void sum(const float4* x, long long n, int passes, float* y) {
        float t = 0; for (int p = 0; p < passes; p++)
            for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
                float4 v = __ldcg(x + i); t = t * 0.5f + v.x + v.y + v.z + v.w; } if (t == -1) *y = t; }""",
    "tools": TOOLS_SOURCE,
}


def build(capability: str) -> dict[str, dict[str, Any]]:
    """Every source for one capability, and one for another: a cubin that must be refused."""
    number = capability.replace(".", "")
    built = {name: compile_source(Source(f"{name}.cu", text), f"sm_{number}") for name, text in SOURCES.items()}
    other = "sm_80" if not number.startswith("8") else "sm_90"
    built["foreign"] = compile_source(Source("bounded.cu", SOURCES["bounded"]), other)
    return {name: binary.to_dict() for name, binary in built.items()}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(build(sys.argv[1])))
    sys.exit()

try:
    DEVICE = CupyDevice()
except PerflabError as error:
    pytest.skip(f"no GPU: {error}", allow_module_level=True)


@pytest.fixture(scope="module")
def binaries() -> dict[str, Binary]:
    named = os.environ.get("PERFLAB_GPU_BINARIES")
    try:
        plain = json.loads(Path(named).read_text()) if named else build(DEVICE.describe()["capability"])
    except PerflabError as error:
        pytest.skip(f"no compiler here, and PERFLAB_GPU_BINARIES names no file: {error}")
    return {name: Binary.from_dict(binary) for name, binary in plain.items()}


@pytest.fixture
def launcher(binaries: dict[str, Binary]) -> Callable[..., Callable[[], None]]:
    def made(name: str, block: int, *arguments: Any, dynamic_shared: int = 0, grid: int = 1) -> Callable[[], None]:
        function = DEVICE.load(binaries[name].cubin, name)
        return DEVICE.launcher(function, (grid, 1, 1), (block, 1, 1), arguments, dynamic_shared)

    return made


def test_what_the_device_says_of_itself_agrees_with_the_table() -> None:
    said = DEVICE.describe()
    here, listed = from_device(said["attributes"]), gpu(said["name"])
    assert (here.capability, here.sm_count, here.l2_bytes) == (listed.capability, listed.sm_count, listed.l2_bytes)
    assert here.limits == listed.limits
    assert said["uuid"].startswith("GPU-") and said["driver"] and said["packages"]["numpy"]


def test_poison_goes_up_and_comes_back_to_the_bit() -> None:
    back = DEVICE.download(DEVICE.upload(poison((3, 5), "float32")))
    assert back.shape == (3, 5) and (back.view(np.uint32) == POISON["float32"]).all()
    bytes_ = DEVICE.upload(np.zeros(8, np.uint8))
    DEVICE.fill(bytes_, 0xAB)
    assert (DEVICE.download(bytes_) == 0xAB).all()


def test_every_kind_of_argument_arrives_as_its_own_type(launcher: Callable[..., Callable[[], None]]) -> None:
    y = DEVICE.upload(poison((40,), "float32"))
    launcher("kinds", 64, y, np.float32(2.5), np.int32(33), np.int64(7 << 32), np.float64(0.25))()
    got = DEVICE.download(y)
    assert (got[:33] == 2.5 * np.arange(33) + 7.25).all() and np.isnan(got[33:]).all()


def test_more_than_48_kib_of_shared_memory_and_more_than_there_is(launcher: Callable[..., Callable[[], None]]) -> None:
    y = DEVICE.upload(np.zeros(32, np.float32))
    most = DEVICE.describe()["attributes"]["shared_per_block_optin_bytes"]
    for size in (1024, most):
        launcher("shared", 32, y, np.int32(size // 4), dynamic_shared=size)()
        assert DEVICE.download(y)[0] == size // 4 - 1
    with pytest.raises(PerflabError, match=f"{most + 4:,} B of dynamic .* allows a block {most:,} B"):
        launcher("shared", 32, y, np.int32(1), dynamic_shared=most + 4)


def test_launches_that_cannot_be_are_refused_in_words(
    launcher: Callable[..., Callable[[], None]], binaries: dict[str, Binary]
) -> None:
    with pytest.raises(PerflabError, match="a block of 256 threads.*allow 128"):
        launcher("bounded", 256, DEVICE.upload(np.zeros(256, np.float32)))
    with pytest.raises(PerflabError, match="another architecture"):
        DEVICE.load(binaries["foreign"].cubin, "bounded")
    with pytest.raises(PerflabError, match="no kernel of that name"):
        DEVICE.load(binaries["bounded"].cubin, "unbounded")
    wanted = pytest.raises(PerflabError, match="does not fit: the GPU has .* B free")
    with wanted, DEVICE._in_words("a buffer of 10 TB"):
        DEVICE._cupy.empty(10**13, np.uint8)  # `upload` would need them on the host first


def test_registers_and_blocks_per_sm_are_the_models(binaries: dict[str, Binary]) -> None:
    here = from_device(DEVICE.describe()["attributes"])
    seen = set()
    for name in ("heavy", "bounded", "shared"):
        function = DEVICE.load(binaries[name].cubin, name)
        for threads in (32, 96, 128, 256, 512, 1024):
            if threads > function.max_threads_per_block:
                continue
            for dynamic in (0, 5000, 40_000):
                DEVICE._check_launch(function, (threads, 1, 1), dynamic)  # the leave to use over 48 KiB
                said = DEVICE._cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(function.kernel.ptr, threads, dynamic)
                model = occupancy(here, threads, registers=function.num_regs, static_shared=function.shared_size_bytes,
                                  dynamic_shared=dynamic)
                assert said == model.blocks_per_sm, (name, threads, dynamic)
                seen.add(model.blocks_per_sm)
    assert len(seen) > 5


def test_a_fault_is_told_apart_in_a_process_of_its_own(binaries: dict[str, Binary], tmp_path: Path) -> None:
    (tmp_path / "wild.cubin").write_bytes(binaries["wild"].cubin)
    script = f"""
import numpy as np
from perflab.device import *
device = CupyDevice()
y = device.upload(np.zeros(1, np.float32))
device.launcher(device.load(open({str(tmp_path / "wild.cubin")!r}, "rb").read(), "wild"), (1,1,1), (1,1,1), (y,), 0)()
try:
    device.synchronize()
except DeviceFault as fault:
    print("FAULT", fault)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert "FAULT the kernel: a thread read or wrote outside its memory" in done.stdout, done.stdout + done.stderr
    assert issubclass(DeviceFault, PerflabError)


def test_cold_reads_dram_and_hot_the_cache(
    binaries: dict[str, Binary], launcher: Callable[..., Callable[[], None]]
) -> None:
    """A quarter of the L2: after the flush at the rate of DRAM, else of the cache; the launch gap is in neither."""
    size = DEVICE.describe()["attributes"]["l2_bytes"] // 4
    x, y = DEVICE.upload(np.ones(size // 4, np.float32)), DEVICE.upload(np.zeros(1, np.float32))
    launch = launcher("sum", 256, x, np.int64(size // 16), np.int32(1), y, grid=1024)
    timing = Stopwatch(DEVICE, binaries["tools"].cubin).time(launch, TimingSpec.quick())
    print(f"\n{size:,} B: cold {timing.cold.median_seconds * 1e6:.1f} us, hot {timing.hot.median_seconds * 1e6:.1f} us; "
          f"empty {timing.empty_launch_seconds * 1e6:.1f} us, hot {timing.empty_hot_seconds * 1e6:.1f} us")
    assert timing.held and timing.cold.median_seconds > 1.3 * timing.hot.median_seconds
    assert 0 < timing.empty_hot_seconds < timing.empty_launch_seconds < 8e-6


def test_work_that_waits_for_the_gpu_does_not_deadlock(
    binaries: dict[str, Binary], launcher: Callable[..., Callable[[], None]]
) -> None:
    y = DEVICE.upload(np.zeros(32, np.float32))
    launch = launcher("kinds", 32, y, np.float32(1), np.int32(32), np.int64(0), np.float64(0))

    def waits() -> None:
        launch()
        DEVICE.synchronize()

    timing = Stopwatch(DEVICE, binaries["tools"].cubin).time(waits, TimingSpec.quick())
    assert not timing.held and max(timing.cold.samples_seconds) < 0.1


def test_clocks_are_numbers_or_say_why_not() -> None:
    clocks = DEVICE.clocks()
    assert {"sm_hz", "memory_hz", "temperature_celsius", "power_watts", "throttle"} <= set(clocks)
    assert clocks["sm_hz"] or clocks.get("missing")
