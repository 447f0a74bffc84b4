"""perflab.kernel: the verbs of a Kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from perflab.errors import PerflabError
from perflab.kernel import load

KERNELS = Path(__file__).parent / "kernels"


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERFLAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def test_gpus_by_name_architecture_and_suffix() -> None:
    kernel = load(KERNELS / "saxpy.cu", "saxpy<float>")
    assert [kernel.architecture(g) for g in ("H200", "sm_90", "9.0", "sm_90a", "RTX PRO 6000")] == [
        "sm_90", "sm_90", "sm_90", "sm_90a", "sm_120"
    ]
    assert kernel.binary("sm_90a").architecture == "sm_90a"
    assert kernel.binary("H200") == kernel.binary("sm_90")


def test_instructions_that_only_the_a_variant_has_choose_it() -> None:
    text = '\n__global__ void f() { asm volatile("wgmma.fence.sync.aligned;"); }'
    assert load(text).binary("H200").architecture == "sm_90a"


def test_occupancy_uses_the_kernels_own_resources() -> None:
    kernel = load(KERNELS / "reduce.cu", "reduce")
    held = kernel.occupancy("RTX PRO 6000", 256, dynamic_shared=40_000, grid=1000)
    used = kernel.resources("RTX PRO 6000")
    assert (held.demand.registers, held.demand.static_shared, held.demand.barriers) == (used.registers, 32, 4)
    assert held.demand.dynamic_shared == 40_000
    assert held.blocks_per_sm == 2  # of 100 KB, 40,032 + 1,024 B a block
    assert held.grid == 1000
    assert kernel.occupancy("sm_90a", 256).gpu.architecture == "sm_90"


@pytest.mark.parametrize("block", [512, (16, 32), (32, 4, 4)])
def test_a_block_beyond_the_launch_bounds_is_refused(block: object) -> None:
    with pytest.raises(PerflabError, match=r"block of 512 threads: reduce is compiled for at most 256 \(__launch_bounds__\)"):
        load(KERNELS / "reduce.cu", "reduce").occupancy("H200", block)


def test_a_list_of_gpus_gives_one_table() -> None:
    kernel = load(KERNELS / "spill.cu")
    gpus = ["H200", "RTX PRO 6000", "sm_75"]
    table = kernel.resources(gpus)
    assert [row[0] for row in table.rows] == gpus
    assert [row[1] for row in table.rows] == [kernel.resources(g).registers for g in gpus] == [32, 64, 64]
    assert str(table.origin).startswith("compiled (NVRTC 13.0.")


def test_a_kernel_is_a_value() -> None:
    assert load(KERNELS / "saxpy.cu", "saxpy4") == load(KERNELS / "saxpy.cu", "saxpy4")
    assert hash(load(KERNELS / "saxpy.cu", "saxpy4")) != hash(load(KERNELS / "saxpy.cu", "saxpy<int>"))


def test_a_list_of_gpus_gives_one_table_with_each_ones_registers():
    kernel = load('extern "C" __global__ void f(float* x) { x[threadIdx.x] = 1; }', "f")
    table = kernel.occupancy(["H200", "T4"], block=256)
    assert [row[0] for row in table.rows] == ["H200", "T4"]
    assert [row[3] for row in table.rows] == [8, 4]
    assert [row[2] for row in table.rows] == [kernel.resources(gpu).registers for gpu in ("H200", "T4")]


def test_emulate_runs_the_kernel_and_counts() -> None:
    x, y = np.arange(64, dtype=np.float32), np.ones(64, np.float32)
    kernel = load("template <typename T> __global__ void add(const T* x, T* y) { y[threadIdx.x] += x[threadIdx.x]; }\n",
                  "add<float>")
    for gpu in ("H200", "sm_120"):
        y[:] = 1
        counts = kernel.emulate(grid=1, block=64, args=[x, y], gpu=gpu)
        assert y.tolist() == list(range(1, 65)) and counts.flops == 64 and not counts.faults
        assert f"PTX for {kernel.architecture(gpu)}" in str(counts.origin)
