"""What the write-ups of this kernel claim, recomputed: by occupancy model, compiled kernels, launches, counts, H200 records.

The claims are in our words. A statement is compared as True; what can only be judged says so, with its reason and evidence.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from perflab.claims import Claims, Listed, Recomputed
from perflab.comparison import FASTER, change, compare
from perflab.gpus import gpu as find_gpu
from perflab.measurement import ratio_interval
from perflab.occupancy_model import largest_dynamic_shared, occupancy
from perflab.origins import Origin
from perflab.rivals import load_beside
from perflab.studies import NotApplicable, triple

# w: the write-ups' kernels and figures, and ours beside them
w = load_beside(Path(__file__).parent / "write_ups.py")
SHAPE = Origin("calculated", "the shape's exact formula")
THEIRS = Origin("published", "the write-ups' own figures")
FACTS = Origin("published", "GPU facts")
ISSUES = Origin("published", "GitHub issues as named")

LISTED = Listed()
claim = LISTED.claim


# ---------------------------------------------------------------- grids
@claim("the head tile's grid: 72 blocks", "A, C 12239", 72, within=0)
def head_tile_blocks() -> Recomputed:
    return Recomputed("8 heads a block, 9 nodes: {:,} blocks", [w.blocks("head_tile")])


@claim("on 188 SMs that is 0.38 waves: 38 % of the GPU", "A, C 12239", 0.38)
def head_tile_waves() -> Recomputed:
    found = w.held("head_tile")
    return Recomputed("{:.3f} waves at 1 block an SM", [found.waves or 0], origins=[found.origin])


@claim("the naive grid: 576 blocks", "A, C 12239", 576, within=0)
def naive_blocks() -> Recomputed:
    return Recomputed("{:,} blocks", [w.blocks("naive")])


@claim("these are 8 heads times 72 query positions", "A 12239", 8, 72, within=0)
def naive_factors() -> Recomputed:
    heads, nodes, _ = triple(w.BENCH["naive"].launches(w.at(), w.RTX)[0].grid)
    return Recomputed("{} heads times {} nodes; the product is right, its factors are not", [heads, nodes])


@claim("a prefix of 65,536 is cut into 32 parts: 2,304 blocks", "A 12239", 32, 2304, within=0)
def parts_at_64k() -> Recomputed:
    return Recomputed("{} parts, {:,} blocks", [w.splits(prefix=65536), w.blocks("kv_split", prefix=65536)])


@claim("16,384 is cut into 9 parts: 5,184 blocks of one head", "B 12244", 9, 5184, within=0)
def parts_at_16k() -> Recomputed:
    return Recomputed("{} parts, since {:,} keys are more than 8 times 2,048; {:,} blocks", [w.splits(), w.v6_blocks()],
                      shown=[w.splits(), w.at().keys, w.v6_blocks()])


@claim("the split gives blocks enough for all 188 SMs", "A 12239", True)
def split_fills() -> Recomputed:
    long, short, sms = (*(w.blocks("kv_split", prefix=prefix) for prefix in (65536, 1024)), find_gpu(w.RTX).sm_count or 0)
    return Recomputed("{:,} blocks at 65,536, but still {:,} at 1,024, for {} SMs: the rule knows keys, and no GPU",
                      [long >= sms], [short >= sms], [long, short, sms])


# ---------------------------------------------------------------- shared memory and occupancy
@claim("the head tile takes 72 KB (12227), or 70 KB (12239)", "C", 72, 70, within=0.02)
def head_tile_shared() -> Recomputed:
    taken = w.BENCH["head_tile"].launches(w.at(), w.RTX)[0].dynamic_shared
    return Recomputed("{:,} B: {:.1f} kB or {:.1f} KiB, one size in two units", [taken / 1e3, taken / 1024],
                      shown=[taken, taken / 1e3, taken / 1024])


@claim("a tile of 16 heads takes 107 KB, over the limit", "C 12227", 107, True, within=0.02)
def sixteen_heads() -> Recomputed:
    taken, limit = w.tile_kb(16, 16), find_gpu(w.RTX).limits.shared_per_block_optin_bytes / 1e3
    return Recomputed("{:.1f} kB of at most {:.1f}", [taken, taken > limit], shown=[taken, limit], origins=[SHAPE, FACTS])


@claim("70 KB: one block an SM", "B, C, D 12239", 1, within=0)
def one_block() -> Recomputed:
    here, there = w.held("head_tile"), w.held("head_tile", w.H200)
    return Recomputed("{} block an SM on sm_120, {} on an H200", [here.blocks_per_sm],
                      shown=[here.blocks_per_sm, there.blocks_per_sm], origins=[here.origin])


@claim("49 KB: two blocks an SM", "D 12242", 2, within=0)
def two_blocks() -> Recomputed:
    found, most = occupancy(w.RTX, 256, 40, dynamic_shared=49 * 1024), largest_dynamic_shared(w.RTX, 256, 40, 2)
    return Recomputed("{} blocks; {:,} B is the most with which two fit", [found.blocks_per_sm],
                      shown=[found.blocks_per_sm, most], origins=[found.origin])


@claim("one block of 128 threads an SM: 6 % occupancy", "B, C, D 12242", 6)
def starved() -> Recomputed:
    found = w.held("head_tile")
    most, threads = found.gpu.limits.threads_per_sm, found.demand.threads
    half, whole = 100 * 128 / most, 100 * found.fraction
    return Recomputed("{:.1f} % of {:,} threads; the block of message 12227 has {}, which are {:.1f} %. 6 % is of an SM of "
                      "2,048", [half], [whole], [half, most, threads, whole], [found.origin])


@claim("an SM of sm_120 holds 2,048 threads in 64 warps", "B, C, D", 2048, 64, within=0)
def threads_an_sm() -> Recomputed:
    limits = find_gpu(w.RTX).limits
    return Recomputed("{:,} threads in {} warps", [limits.threads_per_sm, limits.warps_per_sm], origins=[FACTS])


@claim("188 SMs of 48 warps and 100 KB", "D 12242", 188, 48, 100, within=0)
def sm_120() -> Recomputed:
    gpu = find_gpu(w.RTX)
    return Recomputed("{} SMs, {} warps, {:.0f} KiB; of the same GPU another text says 64 warps",
                      [gpu.sm_count or 0, gpu.limits.warps_per_sm, gpu.limits.shared_per_sm_bytes / 1024], origins=[FACTS])


@claim("version 6 takes 23 KB", "B, C, D 12242", 23)
def v6_shared() -> Recomputed:
    found = w.compiled("warp_per_key")
    return Recomputed("our kernel of that design: {:.1f} kB", [found.static_shared_bytes / 1e3], origins=[found.origin])


@claim("so 4 blocks an SM: 32 warps, 67 %", "B, D 12242", 4, 32, 67, within=0.01)
def v6_occupancy() -> Recomputed:
    found, registers = w.held("warp_per_key"), w.compiled("warp_per_key").registers
    values = [found.blocks_per_sm, found.warps_per_sm, 100 * found.fraction]
    return Recomputed("{} blocks, {} warps, {:.1f} % of 48; it needs 64 registers or fewer, and takes {}", values,
                      shown=[*values, registers], origins=[found.origin])


@claim("from 6 % to 67 %: ten times the occupancy", "D", 10)
def ten_times() -> Recomputed:
    after, before = w.held("warp_per_key").warps_per_sm, w.held("head_tile").warps_per_sm
    return Recomputed("on one base {:.0f} times the busy warps, {:.0f} times the resident ones", [after / 4], [after / before],
                      origins=[w.held("head_tile").origin])


@claim("half of the head tile's threads, 128 of 256, work in the score step", "A, C 12239", 128, 256, within=0)
def half_busy() -> Recomputed:
    launch = w.BENCH["head_tile"].launches(w.at(), w.RTX)[0]
    heads, keys = map(int, re.findall(r"\d+", launch.kernel.name or "")[-2:])
    return Recomputed("{} of {}: a thread a head and key of the tile", [heads * keys, math.prod(triple(launch.block))])


@claim("at 65,536 naive needs a score row of 262 KB, and cannot run", "C 12234", 262, True, within=0.01)
def score_row() -> Recomputed:
    def refused() -> bool:
        try:
            return not w.BENCH["naive"].launches(w.at(prefix=65536), w.RTX)
        except NotApplicable:
            return True

    static = w.compiled("naive").static_shared_bytes
    most = [largest_dynamic_shared(gpu, 256, 40, 1, static) // 16 * 4 for gpu in (w.RTX, w.H200)]
    row = w.at(prefix=65536).prefix * w.PROBLEM.FLOAT / 1e3
    return Recomputed("{:.0f} kB; at most {:,} keys on their GPU, {:,} on an H200, so it cannot there either",
                      [row, refused()], shown=[row, *most], origins=[w.held("naive").origin])


# ---------------------------------------------------------------- bytes
@claim("8 heads a block and one pass: 16 times fewer reads", "A, C 12227", 16, within=0.1)
def fewer_reads() -> Recomputed:
    naive, tile = (w.measured(name).asked_bytes for name in ("naive", "head_tile"))
    return Recomputed("{:.1f} times: the second pass reads 512 of 576 columns", [naive / tile], origins=[SHAPE])


@claim("each naive block reads the cache twice", "C 12239", 2, within=0.1)
def twice() -> Recomputed:
    each = w.measured("naive").asked_bytes / w.blocks("naive")
    return Recomputed("{:.2f} times", [each / (w.at().keys * w.ROW_BYTES)], origins=[SHAPE])


@claim("the chunk of keys of a block of version 6: 4.2 MB", "B 12244", 4.2, within=0.02)
def chunk() -> Recomputed:
    return Recomputed("{:.2f} MB of float32", [w.chunk_bytes() / 1e6], origins=[SHAPE])


@claim("version 6 reads the cache 64 times: 2.4 GB", "B, D 12244", 2.4)
def all_reads() -> Recomputed:
    found = w.counters("warp_per_key")
    moved = [found[field] / 1e9 for field in ("global_load_bytes", "l2_from_sm_bytes", "dram_bytes")]
    return Recomputed("{:.1f} GB, {:,} blocks of {:.2f} MB: a head reads it for each of 9 nodes. Our kernel of that design, on "
                      "an H200, loads {:.1f} GB, {:.1f} of them from L2; DRAM moves {:.2f}", [w.v6_bytes() / 1e9],
                      shown=[w.v6_bytes() / 1e9, w.v6_blocks(), w.chunk_bytes() / 1e6, *moved], origins=[SHAPE, *w.of(found)])


@claim("2.4 GB in 5.96 ms: 403 GB/s", "B 12244", 403, within=0.02)
def division() -> Recomputed:
    return Recomputed("the division gives {:.0f} GB/s", [w.at().heads * w.at().prefix * w.ROW_BYTES / w.V6_SECONDS / 1e9],
                      origins=[SHAPE, THEIRS])


@claim("which is 22 % of what the memory can do", "B, D 12244", 22)
def of_the_peak() -> Recomputed:
    rate, once = w.v6_bytes() / w.V6_SECONDS, w.BENCH.study.work(w.at()).bytes
    of_dram, of_l2 = (100 * rate / most for most in (w.THEIR_PEAK, w.L2_BYTES_PER_SECOND))
    must = 100 * once / w.V6_SECONDS / w.THEIR_PEAK
    return Recomputed("the blocks ask L1 and L2 for {:.2f} TB/s: {:.0f} % of the DRAM peak, {:.0f} % of {:.1f} TB/s out of L2. "
                      "The cache's {:.1f} MB fit L2, so DRAM must give {:.1f} GB/s, {:.2f} % of its peak", [of_dram], [must],
                      [rate / 1e12, of_dram, of_l2, w.L2_BYTES_PER_SECOND / 1e12, w.at().keys * w.ROW_BYTES / 1e6,
                       once / w.V6_SECONDS / 1e9, must], [SHAPE, THEIRS, Origin("published", "L2: chipsandcheese.com")])


@claim("float4 makes fewer, wider memory transactions", "B", True)
def transactions() -> Recomputed:
    scalar, wide = w.counters("warp_per_key"), w.counters("float4")
    requests, sectors = (scalar[field] / wide[field] for field in ("global_load_requests", "global_load_sectors"))
    first, second = (w.counted(name).global_load_requests for name in ("warp_per_key", "float4"))
    return Recomputed("on an H200 {:.1f} times fewer requests ({:.1f} as counted for their GPU), but {:.2f} times the sectors: "
                      "the bytes stay", [requests > 1.5], [sectors > 1.5], [requests, first / second, 1 / sectors],
                      [*w.of(scalar, wide), w.counted("float4").origin])


@claim("float4 is a win", "B 12244", True)
def float4_wins() -> Recomputed:
    scalar, wide = w.measured("warp_per_key"), w.measured("float4")
    return Recomputed("{:.2f} times as fast", [ratio_interval(scalar, wide)[0] > 1], shown=[scalar.seconds / wide.seconds],
                      origins=w.of(scalar, wide))


@claim("the parts need 138 MB of scratch", "A 12239", 138)
def scratch() -> Recomputed:
    def megabytes(q_len: int) -> float:
        made = w.BENCH["kv_split"].version.scratch
        assert made
        found = made(w.at(q_len=q_len, prefix=65536), find_gpu(w.RTX)).values()
        return sum(math.prod(buffer.shape) for buffer in found) * w.PROBLEM.FLOAT / 1e6

    return Recomputed("{:.0f} MB at 33 nodes and 65,536 keys, {:.1f} MB at the 9 nodes of the text", [megabytes(33)],
                      [megabytes(9)], origins=[SHAPE])


@claim("one rank of eight, 8 heads, reads 8 times less", "B 12244", 8, within=0.01)
def a_rank() -> Recomputed:
    return Recomputed("{:.1f} times; so does naive", [w.v6_bytes() / w.v6_bytes(heads=8)], origins=[SHAPE])


# ---------------------------------------------------------------- arithmetic
@claim("1e10 multiply-adds: 0.22 ms at 90 TFLOP/s", "D 12242", 1e10, 0.22)
def least_time() -> Recomputed:
    flops = w.BENCH.study.work(w.at()).flops
    return Recomputed("{:.3g} multiply-adds, {:.3f} ms", [flops / 2, flops / w.THEIR_FLOPS * 1e3], origins=[SHAPE, THEIRS])


@claim("the card does 90 TFLOP/s in float32", "D", 90)
def their_flops() -> Recomputed:
    desk, server = (find_gpu(name).peaks["float32"] / 1e12 for name in (w.RTX, f"{w.RTX} Server"))
    return Recomputed("{:.0f} by the datasheet of the Workstation edition, {:.0f} of the Server edition", [desk], [server],
                      origins=[FACTS])


@claim("the card's memory does 1.8 TB/s", "B, D", 1.8)
def their_peak() -> Recomputed:
    desk, server = ((find_gpu(name).memory_bytes_per_second or 0) / 1e12 for name in (w.RTX, f"{w.RTX} Server"))
    return Recomputed("{:.2f} TB/s in the Workstation edition, {:.2f} in the Server edition; which one is not said", [desk],
                      [server], origins=[FACTS])


@claim("11.6 ms is 2 % of the peak, 50 times off", "D 12242", 2, 50)
def far_off() -> Recomputed:
    rate = w.BENCH.study.work(w.at()).flops / w.V5_SECONDS
    peak = find_gpu(w.RTX).peaks["float32"]
    return Recomputed("{:.2f} % of their 90 TFLOP/s, {:.0f} times off; {:.2f} % of the datasheet's {:.0f}",
                      [100 * rate / w.THEIR_FLOPS, w.THEIR_FLOPS / rate],
                      shown=[100 * rate / w.THEIR_FLOPS, w.THEIR_FLOPS / rate, 100 * rate / peak, peak / 1e12],
                      origins=[SHAPE, THEIRS, FACTS])


@claim("about 8,000 multiply-adds a warp", "B 12244", 8000)
def a_warp() -> Recomputed:
    steps = w.warp_steps()
    return Recomputed("{:,.0f} instructions a warp, of 32 lanes: {:,.0f} multiply-adds", [steps], [32 * steps], origins=[SHAPE])


@claim("which take 3.4 us", "B 12244", 3.4, within=0.2)
def a_warp_seconds() -> Recomputed:
    found, clock = w.held("warp_per_key"), find_gpu(w.RTX).clock_hz or math.nan
    alone, wave = (1e6 * w.warp_steps() / clock * warps for warps in (1, found.warps_per_sm / 4))
    return Recomputed("{:.1f} us for a warp alone on its scheduler; {:.1f} us for the {} warps of an SM on its 4 schedulers",
                      [alone], [wave], [alone, wave, found.warps_per_sm], [SHAPE, FACTS, found.origin])


@claim("memory is the limit of this work, not arithmetic", "B 12244", True)
def bound_by() -> Recomputed:
    many, few = ((work := w.BENCH.study.work(w.at(heads=heads))).flops / work.bytes for heads in (64, 8))
    ridge = find_gpu(w.RTX).peaks["float32"] / (find_gpu(w.RTX).memory_bytes_per_second or math.nan)
    needed = [w.shares("warp_per_key")[unit] for unit in ("issue slots", "L2", "DRAM")]
    return Recomputed("{:.0f} FLOP a byte at 64 heads, where it was measured, and {:.0f} at the 8 of a rank; from {:.0f} on "
                      "float32 is the limit. Our kernel of that design, on an H200, needs issue slots for {:.0f} % of its "
                      "time, L2 for {:.0f} %, DRAM for {:.1f} %", [many < ridge], [few < ridge], [many, few, ridge, *needed],
                      [SHAPE, FACTS, *w.of(w.counters("warp_per_key"))])


# ---------------------------------------------------------------- the table, and speed
@claim("flash against naive: 0.6, 0.6, 0.6, 0.9; 0.9, 0.8 at 33 nodes", "A, C 12238", 0.6, 0.6, 0.6, 0.9, 0.9, 0.8, within=0)
def speedups() -> Recomputed:
    ratios = [naive / flash for *_, naive, flash in w.printed()]
    return Recomputed("{:.2f}, {:.2f}, {:.2f}, {:.2f}; {:.2f}, {:.2f}, rounded to one decimal", [round(r, 1) for r in ratios],
                      shown=ratios, origins=[THEIRS])


@claim("at 16,384 flash pulls slightly ahead", "C", True)
def ahead() -> Recomputed:
    naive, flash = next(row[2:] for row in w.printed() if row[:2] == (9, 16384))
    return Recomputed("{:.1f} % more time than naive", [naive > flash], shown=[100 * (flash / naive - 1)], origins=[THEIRS])


@claim("at 16,384 version 6 is 3.3 times as fast as naive, 4 and 5 1.7 times", "B, D 12244", 3.3, 1.7, within=0.02)
def v6_speedup() -> Recomputed:
    naive = next(row[2] for row in w.printed() if row[:2] == (9, 16384)) / 1e6
    return Recomputed("{:.2f} and {:.2f}", [naive / w.V6_SECONDS, naive / w.V5_SECONDS], origins=[THEIRS])


@claim("naive is a valid baseline at every prefix", "B, C", True)
def baseline() -> Recomputed:
    rows = [(int(prefix), naive / w.at(prefix=int(prefix)).keys) for q_len, prefix, naive, _ in w.printed() if q_len == 9]
    resident = [w.held("naive", prefix=prefix).blocks_per_sm for prefix, _ in rows]
    cost = [each for _, each in rows]
    return Recomputed("its score row grows: {} blocks an SM at {} keys, {} us a key. Had 16,384 its best cost a key, version 6 "
                      "would be {:.1f} times as fast", [max(cost) < 1.2 * min(cost)],
                      shown=[", ".join(map(str, resident)), ", ".join(f"{prefix:,}" for prefix, _ in rows),
                             ", ".join(f"{each:.2f}" for each in cost), min(cost) * w.at().keys / 1e6 / w.V6_SECONDS],
                      origins=[THEIRS, w.held("naive").origin])


@claim("3.3 times is a lower bound: a rank with 8 heads gains more", "B", True)
def lower_bound() -> Recomputed:
    naive, ours = ({heads: w.measured(name, heads=heads) for heads in (64, 8)} for name in ("naive", "warp_per_key"))
    gain = {heads: naive[heads].seconds / ours[heads].seconds for heads in (64, 8)}
    grid, slots = w.v6_blocks(heads=8), w.held("warp_per_key").blocks_per_sm * (find_gpu(w.RTX).sm_count or 0)
    return Recomputed("on an H200 ours, in parts by the device, gains {:.1f} at 64 heads and {:.1f} at 8; theirs, in parts of "
                      "2,048 keys, has {:,} blocks for the {:,} slots of their GPU, less than a wave", [gain[8] > gain[64]],
                      [grid >= slots], [gain[64], gain[8], grid, slots],
                      [*w.of(*naive.values(), *ours.values()), w.held("warp_per_key").origin])


@claim("occupancy is what made the head tile slow", "A, B, C, D 12239", True)
def root_cause() -> Recomputed:
    alone, *cells = [w.starved(cell) for cell in ("plain_ballast_1", "plain_70k_1", "padded_ballast_1", "plain_ballast_16",
                                                  "plain_70k_16", "padded_70k_16")]
    room, padded, parts = (compare(alone.timing.cold, m.timing.cold, paired=True) for m in cells[:3])
    found, faster = w.counters("head_tile"), [alone.seconds / m.seconds for m in cells]
    conflicts = 100 * found["shared_load_conflicts"] / found["shared_load_wavefronts"]
    return Recomputed("on an H200, with one block an SM as on theirs: room for 3 makes it {:.2f} times as fast ({}), padded "
                      "rows {:.2f}, 16 parts of the keys {:.2f}, parts and room {:.2f}, all three {:.2f}. {:.0f} % of the "
                      "wavefronts of its shared loads are conflicts", [room.verdict == FASTER], [parts.ratio < padded.ratio],
                      [faster[0], room.verdict, *faster[1:], conflicts], w.of(alone, *cells, found))


@claim("in decoding, occupancy matters more than traffic", "B, C, D 12242", True)
def occupancy_wins() -> Recomputed:
    steps = w.ladder()
    fit = {m.version: w.held(m.version, w.H200).warps_per_sm for m in steps}
    fastest, fullest = min(steps, key=lambda m: m.seconds), max(steps, key=lambda m: (fit[m.version], -m.seconds))
    shown = [(m.version, w.warps(m.version), fit[m.version], 1e3 * m.seconds) for m in (fullest, fastest)]
    return Recomputed("on an H200 {} with {:.1f} warps an SM, {} fit, takes {:.2f} ms, {} with {:.1f}, {} fit, {:.2f} ms",
                      [fullest is fastest], shown=[*shown[0], *shown[1]],
                      origins=[*w.of(fastest, w.counters(fastest.version)), w.held("naive", w.H200).origin])


@claim("a head a block was the right choice", "B", True)
def heads_a_block() -> Recomputed:
    times = {heads: w.measured(f"head_tiles_{heads}") for heads in (1, 2, 4, 8, 16)}
    best = min(times, key=lambda heads: times[heads].seconds)
    shown = ", ".join(f"{1e3 * m.seconds:.2f} ms with {heads}" for heads, m in times.items())
    return Recomputed("on an H200, one loop with other heads a block: {}", [best == 1], shown=[shown],
                      origins=w.of(*times.values()))


# ---------------------------------------------------------------- errors
@claim("the bundles: 2,065, 161, 521, 9 keys, 17, 33, 9, 9 nodes", "A, D 12243", 2065, 161, 521, 9, 17, 33, 9, 9, within=0)
def bundles() -> Recomputed:
    shapes = w.BENCH.study.bundles.values()
    return Recomputed("prefix + nodes: {}, {}, {}, {}; budgets of 16, 32, 8, 8 and the root: {}, {}, {}, {}",
                      [*(s.keys for s in shapes), *(s.q_len for s in shapes)], origins=[SHAPE])


@claim("errors of 3e-8 are at the limits of bf16", "D 12243", 3e-8)
def bf16() -> Recomputed:
    return Recomputed("half a step at 1 is {:.1e} in bfloat16, {:.1e} in float32: such errors are float32's", [2.0**-8],
                      shown=[2.0**-8, 2.0**-24], origins=[Origin("calculated", "8 and 24 bits of significand")])


@claim("equal to 3e-8 and 4e-3: exact to the token", "A, C, D 12240", True)
def token_exact() -> Recomputed:
    record = w.BENCH.record("naive", w.BENCH.study.bundles["h64_p128_b32"], find_gpu(w.H200), "check")
    assert record is not None
    out = record.check["outputs"][0]
    return Recomputed("attention alone decides no token. A largest relative error tells of outputs near 0: ours reaches {:.2g} "
                      "where the error of the whole is {:.1e}", shown=[out["max_rel"], out["norm_relative"]],
                      origins=[Origin("measured", f"{w.H200}, {record.utc[:10]}")], judged="wrong")


# ---------------------------------------------------------------- the GPU and the libraries
@claim("sm_120 has no tensor cores for this: multiply-adds run on CUDA cores", "C", True)
def tensor_cores() -> Recomputed:
    found = w.compiles(w.MMA, kind="HMMA")
    return Recomputed("mma.sync of bfloat16 becomes {} tensor-core instruction", [not found], shown=[found],
                      origins=[Origin("compiled", "one PTX instruction for sm_120")])


@claim("sm_120 has no TMA", "A, B, C, D", True)
def tma() -> Recomputed:
    found = w.compiles(w.TMA, kind="TMA")
    return Recomputed("cp.async.bulk.tensor becomes {} TMA instruction", [not found], shown=[found],
                      origins=[Origin("compiled", "one PTX instruction for sm_120")])


@claim("sm_120 has neither wgmma nor tcgen05", "A, B, C, D", True, True)
def wgmma() -> Recomputed:
    refused = [not w.compiles(statement) and bool(w.compiles(statement, other)) for statement, other in
               ((w.WGMMA, "sm_90"), (w.TCGEN05, "sm_100"))]
    return Recomputed("ptxas takes them for sm_90 and sm_100 and refuses both for sm_120", refused, shown=[None],
                      origins=[Origin("compiled", "one PTX instruction each")])


@claim("no MLA library supports sm_120", "B, C, D", True)
def libraries() -> Recomputed:
    return Recomputed("SGLang runs FlashInfer's fa2 MLA there (sglang #12325, merged with accuracy results; flashinfer #1147), "
                      "vLLM its TRITON_MLA (vllm #40608); neither knows trees", origins=[ISSUES], judged="wrong")


@claim("FlashMLA and CUTLASS's MLA are for sm_90a and sm_100 only", "B, C, D", True)
def not_there() -> Recomputed:
    return Recomputed("sm_120 flags for FlashMLA were closed unvalidated (FlashMLA #146); CUTLASS's example 77 is for sm_100",
                      origins=[ISSUES], judged="right")


@claim("pages of one token cause the 14 GB/s of the Triton path", "B, C, D", True)
def page_size() -> Recomputed:
    ways = [w.measured(f"register_banks_{way}", heads=8, page=1) for way in ("together", "in_order", "paged")]
    together, in_order, paged = ways
    every, scatter = (compare(over.timing.cold, paged.timing.cold, paired=True) for over in (together, in_order))
    rate, row = w.triton_bytes_per_second(heads=8), w.PROBLEM.WIDTH * 2
    return Recomputed("in bfloat16 a token is {:,} B in one piece. Pages of one token cost our kernel {} on an H200, their "
                      "scatter alone {} ({}). A plain Triton kernel, 8 programs for 8 heads, moves {:.1f} GB/s there with all "
                      "rows together. Theirs was not measured so", [(every.interval or (0, 0))[0] > w.CAUSE],
                      [rate > w.CAUSE * w.THEIR_TRITON],
                      [row, change(every.ratio), change(scatter.ratio), scatter.verdict, rate / 1e9],
                      [SHAPE, *w.of(*ways), Origin("measured", f"{w.H200}, Triton verify")])


claims = Claims("The write-ups' claims, recomputed", tuple(LISTED), w.TEXTS)
