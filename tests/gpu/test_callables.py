"""`pl.time` on a real GPU: CuPy, PyTorch and Triton functions, each where it is installed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perflab.callables import NOT_ISOLATED, WAITED, time
from perflab.compile import Binary
from perflab.device import CupyDevice
from perflab.errors import PerflabError
from perflab.gpus import gpu

try:
    import triton
    import triton.language as tl  # Triton looks its names up in the module of the kernel
except ImportError:
    triton = None
try:
    DEVICE = CupyDevice()
except PerflabError as error:
    pytest.skip(f"no GPU: {error}", allow_module_level=True)

FLOATS = 1 << 28  # 1 GiB, twenty times the L2: a launch's ramp is under a hundredth


@pytest.fixture(scope="module")
def tools() -> Binary | None:
    named = os.environ.get("PERFLAB_GPU_BINARIES")  # written by test_device.py
    return Binary.from_dict(json.loads(Path(named).read_text())["tools"]) if named else None


def copied_bytes_per_second(timed: Any) -> float:
    return 2 * 4 * FLOATS / timed.timing.cold.median_seconds


def share_of_peak(timed: Any) -> float:
    return copied_bytes_per_second(timed) / gpu(DEVICE.describe()["name"]).memory_bytes_per_second


def test_a_cupy_function_with_its_arrays_handed_over(tools: Binary | None) -> None:
    cupy = pytest.importorskip("cupy")
    x, y = cupy.zeros(FLOATS, cupy.float32), cupy.empty(FLOATS, cupy.float32)
    timed = time(lambda x, y: cupy.copyto(y, x), inputs=(x, y), label="copyto", tools=tools)
    assert 0.5 < share_of_peak(timed) < 1
    assert NOT_ISOLATED in str(timed) and "copyto" in str(timed)


def test_a_torch_function_on_torchs_own_stream(tools: Binary | None) -> None:
    torch = pytest.importorskip("torch")
    with torch.cuda.stream(torch.cuda.Stream()):
        x = torch.rand(FLOATS, device="cuda")
        y = torch.empty_like(x)
        timed = time(lambda: y.copy_(x), tools=tools)
    assert torch.equal(x, y) and 0.5 < share_of_peak(timed) < 1


def test_a_torch_function_that_waits_for_the_gpu_says_so(tools: Binary | None) -> None:
    torch = pytest.importorskip("torch")
    x = torch.rand(1 << 20, device="cuda")
    assert WAITED in str(time(lambda: x.sum().item(), tools=tools))


def test_a_triton_kernel(tools: Binary | None) -> None:
    torch, launch = pytest.importorskip("torch"), triton_copy()
    x, y = torch.rand(FLOATS, device="cuda"), torch.empty(FLOATS, device="cuda")
    timed = time(lambda: launch(x, y), tools=tools)
    assert torch.equal(x, y) and 0.5 < share_of_peak(timed) < 1


def triton_copy() -> Callable[[Any, Any], None]:
    if triton is None:
        pytest.skip("no Triton")

    @triton.jit
    def copy(x, y, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at))

    return lambda x, y: copy[(FLOATS // 4096,)](x, y, BLOCK=4096)


def test_the_same_work_in_three_libraries_takes_the_same_time(tools: Binary | None) -> None:
    cupy, torch, launch = pytest.importorskip("cupy"), pytest.importorskip("torch"), triton_copy()
    x, y = torch.rand(FLOATS, device="cuda"), torch.empty(FLOATS, device="cuda")
    shares = [share_of_peak(time(fn, tools=tools)) for fn in (
        lambda: cupy.copyto(cupy.from_dlpack(y), cupy.from_dlpack(x)), lambda: y.copy_(x), lambda: launch(x, y))]
    assert max(shares) < 1.3 * min(shares), shares
