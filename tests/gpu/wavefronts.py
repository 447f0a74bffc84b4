"""How many wavefronts does an access to shared memory take? Patterns of addresses, counted by Nsight Compute.

    python tests/gpu/wavefronts.py build FILE     # here, where the compiler is: the cubin
    python tests/gpu/wavefronts.py run FILE OUT   # on the GPU machine: data/experiments/h200_wavefronts.json

`tests/emulator/test_wavefronts.py` holds `perflab.emulator.tallies.wavefronts` to what was measured.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

WIDTHS = (4, 8, 16)  # bytes a lane
RANDOM = 70  # patterns a width
UNITS = 1024  # of shared memory, in lanes' widths: 16 KiB at most
METRICS = {"load": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
           "store": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"}
BY_SASS = {"load": "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",  # patched into the code
           "store": "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_st.sum"}
SOURCE = """
#define BOTH(name, T, read, write) \\
    extern "C" __global__ void load_##name(const int* at, T* out) { \\
        extern __shared__ __align__(16) char memory[]; const int where = at[threadIdx.x]; \\
        const unsigned s = (unsigned)__cvta_generic_to_shared(memory) + where; \\
        if (where >= 0) { T v; read; out[threadIdx.x] = v; } } \\
    extern "C" __global__ void store_##name(const int* at, T* out) { \\
        extern __shared__ __align__(16) char memory[]; const int where = at[threadIdx.x]; \\
        const unsigned s = (unsigned)__cvta_generic_to_shared(memory) + where; \\
        const T v = out[threadIdx.x]; if (where >= 0) { write; } }
BOTH(4, unsigned, asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(s)),
     asm volatile("st.shared.u32 [%0], %1;" :: "r"(s), "r"(v)))
BOTH(8, uint2, asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(s)),
     asm volatile("st.shared.v2.u32 [%0], {%1, %2};" :: "r"(s), "r"(v.x), "r"(v.y)))
BOTH(16, uint4, asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(s)),
     asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" :: "r"(s), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)))
"""


def patterns(width: int) -> list[list[int]]:
    """Byte offsets of 32 lanes, -1 for a lane that takes no part; the same on every machine."""
    lane = np.arange(32)
    made = [lane * 0, *(lane * stride % UNITS for stride in (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 32, 33)),
            *(lane // part for part in (2, 4, 8, 16)), *(lane % part for part in (2, 4, 8, 16)), lane[::-1],
            *(lane // 8 * stride + lane % 8 for stride in (4, 8, 9, 16, 144, 145)),
            *(lane % 8 * stride for stride in (8, 9, 144)),
            *(np.where(lane < count, lane, -1) for count in (1, 2, 7, 8, 9, 16, 17, 24, 31))]
    rng = np.random.default_rng(width)
    for _ in range(RANDOM):
        spread = int(rng.choice([2, 4, 8, 12, 16, 24, 32, 64, 128, 1024]))
        at = rng.integers(0, spread, 32) if rng.random() < 0.7 else rng.permutation(max(32, spread))[:32]
        made.append(np.where(rng.random(32) < rng.choice([0.3, 0.7, 1.0, 1.0, 1.0]), at, -1))
    made += sparse(lane, rng)
    return [[int(unit) * width if unit >= 0 else -1 for unit in units] for units in made]


def sparse(lane: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Few lanes: two at one place or at two, and more."""
    made = [np.where((lane == 0) | (lane == other), place * (lane == other), -1)
            for other in (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 18, 24, 31) for place in (0, 1, 8, 32)]
    for _ in range(RANDOM):
        active = np.isin(lane, rng.choice(32, int(rng.integers(2, 9)), replace=False))
        made.append(np.where(active, rng.integers(0, int(rng.choice([1, 1, 2, 4])), 32), -1))
    return made


def build(file: Path) -> None:
    from perflab.compile import Source, compile_source

    file.write_bytes(compile_source(Source("wavefronts.cu", SOURCE), "sm_90").cubin)


def launches(file: Path) -> None:
    """In a process under ncu: every width, load and store, every pattern, in order."""
    import cupy

    module = cupy.RawModule(path=str(file))
    out = cupy.zeros(32 * 4, cupy.uint32)
    for width in WIDTHS:
        for kind in METRICS:
            kernel = module.get_function(f"{kind}_{width}")
            for pattern in patterns(width):
                kernel((1,), (32,), (cupy.asarray(pattern, cupy.int32), out), shared_mem=UNITS * width)
    cupy.cuda.Device().synchronize()


def run(file: Path, out: Path) -> None:
    import cupy

    ncu = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    metrics = ",".join([*METRICS.values(), *BY_SASS.values()])
    command = [ncu, "--clock-control", "none", "--metrics", metrics, "--csv", "--page", "raw",
               "--kernel-name", "regex:^(load|store)_", sys.executable, "-s", __file__, "launches", str(file)]
    said = subprocess.run(command, capture_output=True, text=True)
    text = said.stdout[said.stdout.find('"ID"') :]
    rows = list(csv.DictReader(io.StringIO(text)))[1:]  # the first row holds units
    if not rows:
        sys.exit(f"ncu gave no rows:\n{said.stdout[-3000:]}\n{said.stderr[-3000:]}")
    names = [(width, kind, pattern) for width in WIDTHS for kind in METRICS for pattern in patterns(width)]
    assert len(rows) == len(names), (len(rows), len(names))
    found = []
    for row, (width, kind, pattern) in zip(rows, names, strict=True):
        assert row["Kernel Name"].startswith(f"{kind}_{width}"), (row["Kernel Name"], kind, width)
        both = [int(float(row[name[kind]].replace(",", ""))) for name in (METRICS, BY_SASS)]
        found.append({"bytes": width, "kind": kind, "at": pattern, "wavefronts": both[0], "by_sass": both[1]})
    about = cupy.cuda.runtime.getDeviceProperties(0)
    version = subprocess.run([ncu, "--version"], capture_output=True, text=True).stdout.strip().splitlines()[-1]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"gpu": about["name"].decode(), "ncu": version, "utc": now, "metrics": METRICS}
    out.write_text(json.dumps({**about, "patterns": found}))
    print(f"{len(found)} patterns written to {out}")


if __name__ == "__main__":
    {"build": build, "launches": launches, "run": run}[sys.argv[1]](*map(Path, sys.argv[2:]))
