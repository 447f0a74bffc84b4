"""Absorbed-form MLA verify attention: draft nodes of a tree attend to a shared prefix and to their ancestors."""

from __future__ import annotations

from pathlib import Path

from perflab.kernel import load
from perflab.studies import Launch, NotApplicable, Prediction, Study, Version, i32

from .parts import (
    JOIN,
    PART_ARGUMENTS,
    THREADS,
    Tiling,
    grid_of_nodes,
    in_parts_asked_bytes,
    join_launch,
    parts_as_written,
    parts_scratch,
    query_outside_asked_bytes,
    tiling_asked_bytes,
)
from .problem import (
    FLOAT,
    LATENT,
    ROPE,
    WIDTH,
    Shape,
    buffers,
    facts,
    inputs,
    masks,
    reference,
    rows_together,
    scalars,
    tolerances,
    work,
)
from .register_tile import IN_PAGES, PAGED_VERSIONS, REGISTER_BANKS, REGISTER_TILE, REGISTER_WARPS
from .sweep import sweep

HERE = Path(__file__).parent


# ---------------------------------------------------------------- versions
ARGUMENTS = ("q", "kv", "visible", "out", "lse")


NAIVE = load(HERE / "00_naive.cu", f"naive<{LATENT}, {ROPE}>")
NAIVE_STATIC = (WIDTH + 32) * FLOAT  # the query row and a value a warp


def naive_launches(shape: Shape, gpu) -> list[Launch]:
    """A block a (head, node, request); the score row of all keys as dynamic shared memory."""
    rows_together(shape)
    # Whole 16 bytes: ptxas reads the last scores four at a time, and compute-sanitizer would call what it skips out of bounds.
    row, limit = -(-shape.keys // 4) * 4 * FLOAT, gpu.limits.shared_per_block_optin_bytes
    if row + NAIVE_STATIC > limit:
        raise NotApplicable(
            f"a score row of {shape.keys:,} keys takes {row:,} B of shared memory, and {NAIVE_STATIC:,} B hold the query; "
            f"{gpu.name} allows a block {limit:,} B: at most {(limit - NAIVE_STATIC) // 16 * 4:,} keys"
        )
    return [Launch(NAIVE, grid_of_nodes(shape, shape.heads), THREADS, (*ARGUMENTS, *scalars(shape)), dynamic_shared=row)]


def naive_asked_bytes(shape: Shape, gpu) -> int:
    """Each block asks for its query, its mask row, 576 columns of every key it sees in pass 1, 512 in pass 2; then out, lse."""
    rows = shape.batch * shape.q_len
    seen = rows * shape.prefix + sum(int(mask.sum()) for mask in masks(shape))
    return shape.heads * (seen * (WIDTH + LATENT) * FLOAT + rows * ((WIDTH + LATENT + 1) * FLOAT + shape.q_len))


HEADS_PER_BLOCK, KEYS_PER_TILE = 8, 16
HEAD_TILE = load(HERE / "01_head_tile.cu", f"head_tile<{LATENT}, {ROPE}, {HEADS_PER_BLOCK}, {KEYS_PER_TILE}>")
HEAD_TILE_SHARED = FLOAT * (
    (HEADS_PER_BLOCK + KEYS_PER_TILE) * WIDTH + HEADS_PER_BLOCK * LATENT + HEADS_PER_BLOCK * (KEYS_PER_TILE + 3)
)


def head_tile_launches(shape: Shape, gpu) -> list[Launch]:
    """A block a (tile of 8 heads, node, request); any prefix."""
    rows_together(shape)
    grid = grid_of_nodes(shape, -(-shape.heads // HEADS_PER_BLOCK))
    return [Launch(HEAD_TILE, grid, THREADS, (*ARGUMENTS, *scalars(shape)), dynamic_shared=HEAD_TILE_SHARED)]


def head_tile_asked_bytes(shape: Shape, gpu) -> int:
    """Every block asks for 576 columns of every key, hidden ones too, and a mask row a head slot; q, out and lse once."""
    blocks = -(-shape.heads // HEADS_PER_BLOCK) * shape.q_len * shape.batch
    rows = shape.heads * shape.q_len * shape.batch
    return blocks * (shape.keys * WIDTH * FLOAT + HEADS_PER_BLOCK * shape.q_len) + rows * (WIDTH + LATENT + 1) * FLOAT


PADDED_ROWS = load(HERE / "02_padded_rows.cu", f"padded_rows<{LATENT}, {ROPE}, {HEADS_PER_BLOCK}, {KEYS_PER_TILE}>")
PADDED_SHARED = HEAD_TILE_SHARED + FLOAT * 4 * (HEADS_PER_BLOCK + KEYS_PER_TILE)


def padded_rows_launches(shape: Shape, gpu) -> list[Launch]:
    """As the head tile's."""
    rows_together(shape)
    grid = grid_of_nodes(shape, -(-shape.heads // HEADS_PER_BLOCK))
    return [Launch(PADDED_ROWS, grid, THREADS, (*ARGUMENTS, *scalars(shape)), dynamic_shared=PADDED_SHARED)]


def kv_split_launches(shape: Shape, gpu) -> list[Launch]:
    """As many parts as the write-ups take."""
    rows_together(shape)
    parts = parts_as_written(shape)
    arguments = (*PART_ARGUMENTS, *scalars(shape), i32(parts), i32(-(-shape.keys // parts)))
    grid = grid_of_nodes(shape, -(-shape.heads // HEADS_PER_BLOCK), parts)
    return [Launch(KV_SPLIT, grid, THREADS, arguments, dynamic_shared=PADDED_SHARED), join_launch(shape, parts)]


def kv_split_asked_bytes(shape: Shape, gpu) -> int:
    """A thread a (head slot, key) reads the mask."""
    tiles = -(-shape.heads // HEADS_PER_BLOCK) * shape.q_len * shape.batch
    return in_parts_asked_bytes(shape, parts_as_written(shape), tiles, HEADS_PER_BLOCK)


def head_tiles_version(heads: int, query_shared: bool) -> Version:
    """One point of 07_head_tiles.cu: heads a block, query in shared memory or not."""
    where = "in" if query_shared else "outside"
    kernel = load(HERE / "07_head_tiles.cu", f"head_tiles<{LATENT}, {ROPE}, {heads}, {int(query_shared)}>")
    tiling = Tiling(kernel, heads, 8, heads * WIDTH * FLOAT if query_shared else 0)
    return Version(
        name=f"head_tiles_{heads}" + ("" if query_shared else "_q_outside"),
        kernels=(kernel, JOIN),
        change=f"{heads} heads a block, a key in a warp's registers for all of them; query {where} shared memory",
        launches=tiling.launches,
        scratch=tiling.scratch,
        prediction=HEAD_TILES_8 if (heads, query_shared) == (8, True) else None,
        asked_bytes=(tiling_asked_bytes if query_shared else query_outside_asked_bytes)(tiling, 32 + THREADS),
        sequence=lambda shape: shape.keys,
        shapes=None if (heads, query_shared) == (8, True) else TUNED_AT,
    )


KV_SPLIT = load(HERE / "03_kv_split.cu", f"kv_split<{LATENT}, {ROPE}, {HEADS_PER_BLOCK}, {KEYS_PER_TILE}>")
SPLIT_BY_DEVICE = Tiling(
    load(HERE / "04_split_by_device.cu", f"split_by_device<{LATENT}, {ROPE}, {HEADS_PER_BLOCK}, {KEYS_PER_TILE}>"),
    HEADS_PER_BLOCK, KEYS_PER_TILE, PADDED_SHARED,
)
WARP_PER_KEY = Tiling(load(HERE / "05_warp_per_key.cu", f"warp_per_key<{LATENT}, {ROPE}>"), 1, 8)
BY_FLOAT4 = Tiling(load(HERE / "06_float4.cu", f"by_float4<{LATENT}, {ROPE}>"), 1, 8)
TUNED_AT = tuple(Shape(q_len=9, heads=heads, prefix=prefix) for heads in (64, 8) for prefix in (16384, 1024))
AT_16K = Shape(q_len=9, heads=64, prefix=16384)


HEAD_TILES_8 = Prediction(
    over="float4", at=AT_16K, ratio=(1.5, 4.0),
    because="8 times fewer bytes out of L2; a multiply of the scores now takes half a load from shared memory",
)

# Most important first. The production point of the write-ups is a prefix of 185k: LONG has it as 181 x 1024.
ONE_STREAM = tuple(
    Shape(q_len=q_len, heads=heads, prefix=prefix)
    for heads, q_len in ((64, 9), (8, 9), (64, 33), (8, 33))
    for prefix in (16384, 4096, 1024, 256, 65536)
)
STREAMS = tuple(
    Shape(batch=batch, q_len=q_len, heads=heads, prefix=prefix)
    for batch in (4, 16) for heads, q_len in ((64, 9), (8, 9), (64, 33), (8, 33))
    for prefix in (16384, 4096, 1024, 256, 65536)
)
# Where counters explain most: the shape of the predictions, shorter prefixes, fewer heads, more nodes.
COUNTED_AT = tuple(
    Shape(batch=batch, q_len=q_len, heads=heads, prefix=prefix)
    for batch, heads, q_len, prefix in (
        (1, 64, 9, 16384), (1, 64, 9, 4096), (1, 64, 9, 1024), (1, 8, 9, 16384), (1, 64, 33, 1024),
        (1, 64, 33, 16384), (4, 64, 9, 4096), (16, 8, 9, 4096),
    )
)
LONG = tuple(
    Shape(q_len=q_len, heads=heads, prefix=prefix)
    for prefix in (185344, 131072) for heads, q_len in ((64, 9), (8, 9), (64, 33), (8, 33))
)


def spec(shape: Shape) -> dict[str, float]:
    """Less time where the slow versions take a tenth of a second to two: those are steady after few samples."""
    if shape.page or (shape.batch == 1 and shape.prefix <= 16384):
        return {}
    shorter = {"min_samples": 10, "max_seconds": 0.5, "max_warmup_seconds": 0.5}
    times = shape.batch * shape.q_len * shape.heads * shape.prefix / (9 * 64 * 16384)  # the work of AT_16K
    return shorter if times < 14 else {**shorter, "min_samples": 6, "max_samples": 6}


study = Study(
    name="verify_attention",
    title="MLA verify attention",
    shape=Shape,
    shapes=(*ONE_STREAM, *LONG, *IN_PAGES, *sorted(STREAMS, key=lambda shape: shape.batch * shape.q_len * shape.prefix)),
    bundles={
        "h16_p2048_b16": Shape(batch=2, heads=16, prefix=2048, q_len=17),
        "h64_p128_b32": Shape(batch=1, heads=64, prefix=128, q_len=33),
        "h64_p512_b8": Shape(batch=2, heads=64, prefix=512, q_len=9),
        "h8_p0_b8": Shape(batch=2, heads=8, prefix=0, q_len=9),
    },
    inputs=inputs,
    buffers=buffers,
    reference=reference,
    work=work,
    tolerances=tolerances,
    facts=facts,
    spec=spec,
    checks=sweep,
    counted=COUNTED_AT,
    versions=(
        Version(
            name="naive",
            kernels=(NAIVE,),
            change="a block a head and node, the whole score row in shared memory, two passes",
            launches=naive_launches,
            asked_bytes=naive_asked_bytes,
            sequence=lambda shape: shape.keys,
        ),
        Version(
            name="head_tile",
            kernels=(HEAD_TILE,),
            change="8 heads share each tile of 16 keys in shared memory; online softmax, one pass",
            launches=head_tile_launches,
            prediction=Prediction(
                over="naive",
                at=Shape(q_len=9, heads=64, prefix=16384),
                ratio=(0.4, 1.0),
                because="15 times fewer bytes asked, but 72 blocks leave 60 of 132 SMs idle, and half the threads idle in "
                "the score step: slower in spite of the bytes",
            ),
            asked_bytes=head_tile_asked_bytes,
            sequence=lambda shape: shape.keys,
        ),
        Version(
            name="padded_rows",
            kernels=(PADDED_ROWS,),
            change="rows of query and keys 580 floats apart in shared memory, against bank conflicts",
            launches=padded_rows_launches,
            prediction=Prediction(
                over="head_tile",
                at=AT_16K,
                ratio=(2.0, 4.0),
                because="of 26 us a tile of 16 keys, a model of the bank conflicts explains 21 us",
            ),
            asked_bytes=head_tile_asked_bytes,
            sequence=lambda shape: shape.keys,
        ),
        Version(
            name="kv_split",
            kernels=(KV_SPLIT, JOIN),
            change="keys cut into parts of about 2,048, at most 32; a second kernel joins them",
            launches=kv_split_launches,
            scratch=lambda shape, gpu: parts_scratch(shape, parts_as_written(shape)),
            prediction=Prediction(
                over="padded_rows",
                at=AT_16K,
                ratio=(2.5, 5.0),
                because="72 blocks become 648: all 132 SMs instead of 72, each with three blocks to hide each other's waits",
            ),
            asked_bytes=kv_split_asked_bytes,
            sequence=lambda shape: shape.keys,
        ),
        Version(
            name="split_by_device",
            kernels=(SPLIT_BY_DEVICE.kernel, JOIN),
            change="as many parts as fill the device: SMs times blocks per SM, whole tiles, at least two a part",
            launches=SPLIT_BY_DEVICE.launches,
            scratch=SPLIT_BY_DEVICE.scratch,
            prediction=Prediction(
                over="kv_split",
                at=Shape(q_len=9, heads=64, prefix=1024),
                ratio=(2.0, 5.0),
                because="one part of 1,033 keys leaves 60 SMs idle and the others with one block",
            ),
            asked_bytes=tiling_asked_bytes(SPLIT_BY_DEVICE, HEADS_PER_BLOCK),
            sequence=lambda shape: shape.keys,
        ),
        Version(
            name="warp_per_key",
            kernels=(WARP_PER_KEY.kernel, JOIN),
            change="a head a block, a warp a key, 18 elements a lane, 23 KB of shared memory",
            launches=WARP_PER_KEY.launches,
            scratch=WARP_PER_KEY.scratch,
            prediction=Prediction(
                over="split_by_device",
                at=AT_16K,
                ratio=(0.5, 1.2),
                because="21.8 GB out of L2 instead of 2.7 GB take over 4 ms; busy threads and 64 warps an SM barely make up",
            ),
            asked_bytes=tiling_asked_bytes(WARP_PER_KEY, 32),
            sequence=lambda shape: shape.keys,
        ),
        Version(
            name="float4",
            kernels=(BY_FLOAT4.kernel, JOIN),
            change="16-byte loads of keys and query; the sum in registers",
            launches=BY_FLOAT4.launches,
            scratch=BY_FLOAT4.scratch,
            prediction=Prediction(
                over="warp_per_key",
                at=AT_16K,
                ratio=(1.1, 1.8),
                because="a quarter of the load instructions, the same bytes",
            ),
            asked_bytes=tiling_asked_bytes(BY_FLOAT4, 32),
            sequence=lambda shape: shape.keys,
        ),
        *(head_tiles_version(heads, where) for where in (True, False) for heads in (1, 2, 4, 8, 16)),
        Version(
            name="register_tile",
            kernels=(REGISTER_TILE.kernel, JOIN),
            change="64 rows of nodes and heads a block, 8 rows a warp in registers: 32 multiplies for 12 floats loaded",
            launches=REGISTER_TILE.launches,
            scratch=REGISTER_TILE.scratch,
            prediction=Prediction(
                over="head_tiles_8",
                at=AT_16K,
                ratio=(3.0, 8.0),
                because="the FP32 units limit it at last: 336 us at their measured rate, 420 to 560 us expected",
            ),
            asked_bytes=tiling_asked_bytes(REGISTER_TILE, REGISTER_WARPS * 8),
            sequence=lambda shape: shape.keys,
        ),
        Version(
            name="register_banks",
            kernels=(REGISTER_BANKS.kernel, JOIN),
            change="the same loop, with fewer FFMA that read two operands of one bank of registers",
            launches=REGISTER_BANKS.launches,
            scratch=REGISTER_BANKS.scratch,
            prediction=Prediction(
                over="register_tile",
                at=AT_16K,
                ratio=(1.048, 1.108),
                because="what_held_it foretold it of this way: a tile's loops take 5,830 clocks of a scheduler, not 6,374, by "
                "a model of the banks; some 1,100 more are spent outside them",
            ),
            asked_bytes=tiling_asked_bytes(REGISTER_BANKS, REGISTER_WARPS * 8),
            sequence=lambda shape: shape.keys,
        ),
        *PAGED_VERSIONS,
    ),
)
