"""Is the calculated occupancy the driver's? Real kernels, random block sizes, dynamic shared memory and carve-outs.

    python tests/gpu/occupancy.py build FILE     # here, where the compiler is: cubins, what we say of them, the cases
    python tests/gpu/occupancy.py run FILE OUT   # on the GPU machine: data/experiments/h200_occupancy.json

`tests/test_occupancy_driver.py` holds `perflab.occupancy` and `Resources` to what the driver said.
"""

from __future__ import annotations

import base64
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

CASES = 2000
OPTIN_BYTES, RESERVED_BYTES = 232_448, 1024  # of sm_90
DEFAULT_CARVEOUT = -1  # the driver's own choice
HEAVY = """extern "C" __global__ void heavy(float* y, int n) {
    __shared__ float s[SHARED]; float r[48]; for (int k = 0; k < 48; k++) r[k] = y[k * n + threadIdx.x];
    for (int j = 0; j < n; j++) for (int k = 0; k < 48; k++) r[k] = r[k] * r[(k + 1) % 48] + j;
    float t = 0; for (int k = 0; k < 48; k++) t += r[k]; s[threadIdx.x % SHARED] = t; __syncthreads();
    y[threadIdx.x] = s[(threadIdx.x + 1) % SHARED]; }"""


def kernels() -> dict[str, Any]:
    """The study's kernels, and one with many registers, held to fewer of them, with more and less shared memory."""
    from perflab.kernel import load
    from perflab.studies import load_study

    study = load_study(Path(__file__).parents[2] / "kernels" / "verify_attention")
    found = {kernel.label: kernel for version in study.versions for kernel in version.kernels}
    for registers, shared in ((24, 8), (32, 256), (40, 1000), (64, 5000), (96, 12_000), (255, 300)):
        options = (f"--maxrregcount={registers}",)
        found[f"heavy, {registers} registers"] = load(HEAVY, "heavy", {"SHARED": shared}, options)
    return found


def build(file: Path) -> None:
    made, rng = [], np.random.default_rng(2026)
    for label, kernel in kernels().items():
        used = kernel.resources("sm_90")
        ours = {"registers": used.registers, "static_shared_bytes": used.static_shared_bytes, "stack_bytes": used.stack_bytes,
                "max_threads": used.max_threads or 1024, "barriers": used.barriers}
        cubin = base64.b64encode(kernel.binary("sm_90").cubin).decode()
        made.append({"kernel": label, "entry": used.entry, "cubin": cubin, "ours": ours})
    cases = []
    for _ in range(CASES):
        which = int(rng.integers(len(made)))
        ours = made[which]["ours"]
        whole_warps = 32 * rng.integers(1, ours["max_threads"] // 32 + 1)
        threads = int(rng.choice([rng.integers(1, ours["max_threads"] + 1), whole_warps]))
        most = OPTIN_BYTES - ours["static_shared_bytes"]
        dynamic = int(rng.choice([0, rng.integers(0, 16_384), rng.integers(0, most + 1)]))
        carveout = int(rng.choice([DEFAULT_CARVEOUT, rng.integers(0, 101)]))
        cases.append([which, threads, dynamic, carveout])
    file.write_text(json.dumps({"kernels": made, "cases": cases}))


def run(file: Path, out: Path) -> None:
    import cupy

    given = json.loads(file.read_text())
    functions = []
    for one in given["kernels"]:
        path = out.with_name(f"kernel{len(functions)}.cubin")  # CuPy keeps a module by its path
        path.write_bytes(base64.b64decode(one.pop("cubin")))
        functions.append(function := cupy.RawModule(path=str(path)).get_function(one["entry"]))
        function.max_dynamic_shared_size_bytes = OPTIN_BYTES - function.shared_size_bytes
        one["driver"] = {"registers": function.num_regs, "static_shared_bytes": function.shared_size_bytes,
                         "local_bytes": function.local_size_bytes, "max_threads": function.max_threads_per_block}
        path.unlink()
    for case in given["cases"]:
        which, threads, dynamic, carveout = case
        functions[which].preferred_shared_memory_carveout = carveout
        ask = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
        case.append(ask(functions[which].kernel.ptr, threads, dynamic))
    about = cupy.cuda.runtime.getDeviceProperties(0)
    head = {"gpu": about["name"].decode(), "driver": cupy.cuda.runtime.driverGetVersion(),
            "utc": datetime.now(UTC).isoformat(timespec="seconds"),
            "columns": ["kernel", "threads", "dynamic", "carveout", "blocks"]}
    out.write_text(json.dumps({**head, **given}))
    most = max(case[-1] for case in given["cases"])
    print(f"{len(given['cases'])} cases of {len(functions)} kernels: 0 to {most} blocks per SM")


if __name__ == "__main__":
    {"build": build, "run": run}[sys.argv[1]](*map(Path, sys.argv[2:]))
