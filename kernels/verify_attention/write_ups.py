"""The write-ups' kernels and figures in terms of ours: grids, chunks and bytes of theirs, times that they print, their GPU.

Their GPU is an RTX PRO 6000 of an edition that they do not state. What is measured here was measured on an H200, with our
kernels, and answers only for them.
"""

from __future__ import annotations

import math
import sys
from functools import cache
from pathlib import Path
from typing import Any

from perflab.counters import HardwareCounts
from perflab.errors import PerflabError
from perflab.gpus import gpu as find_gpu
from perflab.hardware import launched
from perflab.kernel import load
from perflab.measurement import Measurement
from perflab.occupancy_model import Occupancy
from perflab.origins import Origin
from perflab.published import published_table
from perflab.resources import Resources
from perflab.rivals import load_rivals
from perflab.studies import load_study, triple
from perflab.timing import Timing
from perflab.versions import occupancy_of
from perflab.workbench import Workbench
from perflab.workspaces import Workspace

HERE = Path(__file__).parent
BENCH = Workbench(Workspace(HERE.parents[1]), load_study(HERE))
STARVED = Workbench(BENCH.workspace, load_study(HERE.parent / "what_starved_it"))
PROBLEM = sys.modules[BENCH.study.shape.__module__]
RTX, H200 = "RTX PRO 6000", "H200"
ROW_BYTES = PROBLEM.WIDTH * PROBLEM.FLOAT  # of a key

V5_SECONDS, V6_SECONDS = 11.6e-3, 5.96e-3  # printed in D and B: at 64 heads, 9 nodes, 16,384 keys of prefix
THEIR_FLOPS, THEIR_PEAK = 90e12, 1.8e12  # float32 a second and DRAM bytes a second of their card, as printed in D and B
CAUSE = 2  # times faster without it: what takes half of the time or more is called its cause
THEIR_TRITON = 14e9  # bytes a second that their production's Triton path is said to reach (B, C, D)
L2_BYTES_PER_SECOND = 8.7e12  # of an RTX PRO 6000, measured by others: chipsandcheese.com/p/blackwell-nvidias-massive-gpu
TEXTS = ("in brackets: A The Occupancy Awakening, B The Occupancy Tension, C The Moment of Truth, D When Theory Meets "
         "Silicon, and messages of the session; measured: our kernels on an H200, not theirs on their GPU")


# ---------------------------------------------------------------- what the recomputations ask
def at(**sizes: int) -> Any:
    """The write-ups' shape, 64 heads, 9 nodes, 16,384 keys of prefix, with other sizes where named."""
    return BENCH.shape(**{"heads": 64, "q_len": 9, "prefix": 16384} | sizes)


def blocks(version: str, **sizes: int) -> int:
    """Blocks of a version's first launch on their GPU."""
    return math.prod(triple(BENCH[version].launches(at(**sizes), RTX)[0].grid))


def splits(**sizes: int) -> int:
    """Parts that the write-ups' rule makes of the keys."""
    return blocks("kv_split", **sizes) // blocks("head_tile", **sizes)


def v6_blocks(**sizes: int) -> int:
    """Blocks of their version 6: a head, a node, a part."""
    return at(**sizes).heads * at(**sizes).q_len * splits(**sizes)


def chunk_bytes(**sizes: int) -> float:
    """Bytes of the keys of one part."""
    return at(**sizes).keys / splits(**sizes) * ROW_BYTES


def v6_bytes(**sizes: int) -> float:
    """Bytes of keys that the blocks of their version 6 load: each its own chunk."""
    return v6_blocks(**sizes) * chunk_bytes(**sizes)


def warp_steps() -> float:
    """Multiply-add instructions that one warp of their version 6 issues: 8 warps share the chunk of a block."""
    return chunk_bytes() / ROW_BYTES * (PROBLEM.WIDTH + PROBLEM.LATENT) / (8 * 32)


def held(version: str, gpu: str = "", **sizes: int) -> Occupancy:
    """The occupancy of a version's first launch; on their GPU if none is named."""
    chosen = find_gpu(gpu or RTX)
    return occupancy_of(BENCH[version].launches(at(**sizes), chosen)[0], chosen)


def compiled(version: str) -> Resources:
    """A version's first kernel, compiled for their GPU."""
    return BENCH[version].version.kernels[0].resources(RTX)


@cache
def measured(version: str, **sizes: int) -> Measurement:
    """The recorded times of one of our versions on the H200."""
    return BENCH[version].timing(at(**sizes), H200)


def ladder() -> list[Measurement]:
    """Our versions that are taken at every shape, as measured at the write-ups' shape."""
    names = (bound.name for bound in BENCH.versions if bound.version.shapes is None)
    return [measured(name) for name in names if BENCH.record(name, at(), find_gpu(H200), "timing")]


@cache
def starved(cell: str) -> Measurement:
    """The recorded times of a cell of the study what_starved_it: the head tile's loop with its suspects switched."""
    return STARVED[cell].timing(at(), H200)


@cache
def counters(version: str) -> HardwareCounts:
    """What Nsight Compute counted of one of our versions on the H200 at the write-ups' shape."""
    return BENCH[version].counters(at(), H200)


def shares(version: str) -> dict[str, float]:
    """What each unit of the H200 needs at least of the time of one of our versions, in percent, by unit."""
    return {one.what: 100 * (one.share or math.nan) for one in BENCH[version].limits(at(), H200).rows if not one.is_loss}


def warps(version: str) -> float:
    """Warps an SM that the main launch of one of our versions reached on the H200."""
    return launched(counters(version))[0]["achieved_warps_per_sm"]


def triton_bytes_per_second(**sizes: int) -> float:
    """Bytes that must move over recorded cold time, of a plain Triton verify on the H200: a program a head, rows together."""
    known = load_rivals(HERE)
    rival = known.rival("Triton verify")
    record = BENCH.store.find(BENCH.name, "", at(**sizes), H200, "timing", rival.dtype, rival=rival.name)
    if record is None or known.work is None:
        raise PerflabError(f"{rival.name} is not measured on {H200}: perflab measure {BENCH.name} --rivals")
    return known.work(at(**sizes), rival.dtype).bytes / Timing.from_dict(record.timing).cold.median_seconds


def of(*found: Measurement | HardwareCounts) -> tuple[Origin, ...]:
    """Their origins; what no longer describes today's code says so."""
    return tuple(Origin(m.origin.kind, m.origin.detail + (", STALE" if m.stale else "")) for m in found)


def counted(version: str) -> Any:
    """What the first launch of a version does at a small shape, 2 heads of 3 nodes, compiled for their GPU."""
    found = BENCH[version].count(at(heads=2, q_len=3, prefix=61), RTX, machine="numpy")  # too little for compiling to pay
    return found.parts[0] if found.parts else found


def printed() -> list[tuple[float, ...]]:
    """(q_len, prefix, naive, flash) of the rows of the write-ups' table that both kernels could do; times in us."""
    rows = published_table(BENCH.workspace, "verify_attention_rtx_pro_6000").rows
    return [tuple(float(str(cell)) for cell in row[1:5]) for row in rows if "n/a" not in row]


def tile_kb(heads: int, keys: int) -> float:
    """kB of a tile of keys, the queries and the sums of some heads, as the head tile keeps them."""
    return ((heads + keys) * PROBLEM.WIDTH + heads * PROBLEM.LATENT) * PROBLEM.FLOAT / 1e3


MMA = ('"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, {%0,%1,%2,%3};"'
       ' : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a)')
TMA = ('"cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %2}], [%3];"'
       ' :: "r"(a), "l"(map), "r"(0), "r"(m)')
WGMMA, TCGEN05 = '"wgmma.fence.sync.aligned;" : :', '"tcgen05.wait::ld.sync.aligned;" : :'


def compiles(statement: str, gpu: str = "", kind: str = "total") -> int:
    """Machine instructions of a kind in a kernel that holds one PTX instruction; 0 where ptxas refuses it for that GPU."""
    text = f"""extern "C" __global__ void probe(const void* map, float* out) {{
    __shared__ alignas(128) float tile[1024]; __shared__ alignas(8) unsigned long long arrived; float c[4] = {{}};
    unsigned a = (unsigned)__cvta_generic_to_shared(tile), m = (unsigned)__cvta_generic_to_shared(&arrived);
    asm volatile({statement} : "memory"); out[threadIdx.x] = c[0] + tile[threadIdx.x] + m;
}}"""
    try:
        return load(text, "probe").resources(gpu or RTX).sass.get(kind, 0)
    except PerflabError as refusal:
        if "not supported on .target" not in str(refusal):
            raise
        return 0
