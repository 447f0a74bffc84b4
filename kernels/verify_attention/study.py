"""Absorbed-form MLA verify attention: draft nodes of a tree attend to a shared prefix and to their ancestors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from perflab.gpus import Gpu
from perflab.kernel import Kernel, load
from perflab.studies import Launch, NotApplicable, Prediction, Scratch, Study, Version, f32, i32

from .problem import (
    FLOAT,
    LATENT,
    ROPE,
    SCALE,
    WIDTH,
    Shape,
    buffers,
    facts,
    inputs,
    masks,
    reference,
    tolerances,
    work,
)

HERE = Path(__file__).parent
THREADS = 256


# ---------------------------------------------------------------- versions
ARGUMENTS = ("q", "kv", "visible", "out", "lse")


def scalars(shape: Shape) -> tuple:
    """heads, q_len, prefix and scale, as every version takes them."""
    return i32(shape.heads), i32(shape.q_len), i32(shape.prefix), f32(SCALE)


NAIVE = load(HERE / "00_naive.cu", f"naive<{LATENT}, {ROPE}>")
NAIVE_STATIC = (WIDTH + 32) * FLOAT  # the query row and a value a warp


def naive_launches(shape: Shape, gpu) -> list[Launch]:
    """A block a (head, node, request); the score row of all keys as dynamic shared memory."""
    # Whole 16 bytes: ptxas reads the last scores four at a time, and compute-sanitizer would call what it skips out of bounds.
    row, limit = -(-shape.keys // 4) * 4 * FLOAT, gpu.limits.shared_per_block_optin_bytes
    if row + NAIVE_STATIC > limit:
        raise NotApplicable(
            f"a score row of {shape.keys:,} keys takes {row:,} B of shared memory, and {NAIVE_STATIC:,} B hold the query; "
            f"{gpu.name} allows a block {limit:,} B: at most {(limit - NAIVE_STATIC) // 16 * 4:,} keys"
        )
    grid = (shape.heads, shape.q_len, shape.batch)
    return [Launch(NAIVE, grid, THREADS, (*ARGUMENTS, *scalars(shape)), dynamic_shared=row)]


def naive_asked_bytes(shape: Shape) -> int:
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
    grid = (-(-shape.heads // HEADS_PER_BLOCK), shape.q_len, shape.batch)
    return [Launch(HEAD_TILE, grid, THREADS, (*ARGUMENTS, *scalars(shape)), dynamic_shared=HEAD_TILE_SHARED)]


def head_tile_asked_bytes(shape: Shape) -> int:
    """Every block asks for 576 columns of every key, hidden ones too, and a mask row a head slot; q, out and lse once."""
    blocks = -(-shape.heads // HEADS_PER_BLOCK) * shape.q_len * shape.batch
    rows = shape.heads * shape.q_len * shape.batch
    return blocks * (shape.keys * WIDTH * FLOAT + HEADS_PER_BLOCK * shape.q_len) + rows * (WIDTH + LATENT + 1) * FLOAT


PADDED_ROWS = load(HERE / "02_padded_rows.cu", f"padded_rows<{LATENT}, {ROPE}, {HEADS_PER_BLOCK}, {KEYS_PER_TILE}>")
PADDED_SHARED = HEAD_TILE_SHARED + FLOAT * 4 * (HEADS_PER_BLOCK + KEYS_PER_TILE)


def padded_rows_launches(shape: Shape, gpu) -> list[Launch]:
    """As the head tile's."""
    grid = (-(-shape.heads // HEADS_PER_BLOCK), shape.q_len, shape.batch)
    return [Launch(PADDED_ROWS, grid, THREADS, (*ARGUMENTS, *scalars(shape)), dynamic_shared=PADDED_SHARED)]


# ---------------------------------------------------------------- versions that cut the keys into parts
PART_ARGUMENTS = ("q", "kv", "visible", "part_sum", "part_stats")
JOIN = load(HERE / "03_kv_split.cu", f"join_parts<{LATENT}>")
KEYS_A_PART, MOST_PARTS = 2048, 32  # of the write-ups


def join_launch(shape: Shape, parts: int) -> Launch:
    """A block a row joins its parts."""
    rows = shape.batch * shape.q_len * shape.heads
    return Launch(JOIN, rows, LATENT // 4, ("part_sum", "part_stats", "out", "lse", i32(parts)))


def parts_scratch(shape: Shape, parts: int) -> dict[str, Scratch]:
    """part_sum [batch, q_len, heads, parts, 512]; part_stats [batch, q_len, heads, parts, 2]: largest score and total."""
    rows = (shape.batch, shape.q_len, shape.heads, parts)
    return {"part_sum": Scratch((*rows, LATENT)), "part_stats": Scratch((*rows, 2))}


def parts_bytes(shape: Shape, parts: int) -> int:
    """Partial results written once, and read by the join: the sums once, the statistics by each of its 128 threads, twice."""
    rows = shape.batch * shape.q_len * shape.heads
    joined = parts * (LATENT + LATENT // 4 * 3) * FLOAT + (LATENT + 1) * FLOAT
    return rows * (parts * (LATENT + 2) * FLOAT + joined)


def parts_as_written(shape: Shape) -> int:
    """The write-ups' clamp(ceil(keys / 2048), 1, 32): whatever the device."""
    return min(max(-(-shape.keys // KEYS_A_PART), 1), MOST_PARTS)


@dataclass(frozen=True)
class Tiling:
    """How a version cuts its work: blocks of one part, keys of a tile, and what a block takes of an SM."""

    kernel: Kernel
    heads_a_block: int
    keys_a_tile: int
    dynamic_shared: int = 0
    rows_a_block: int = 0  # of folded nodes and heads, instead of heads_a_block

    def grid(self, shape: Shape, parts: int) -> tuple[int, int, int]:
        """(head tiles, nodes, requests x parts); of folded rows (row tiles, parts, requests)."""
        if self.rows_a_block:
            return (-(-shape.q_len * shape.heads // self.rows_a_block), parts, shape.batch)
        return (-(-shape.heads // self.heads_a_block), shape.q_len, shape.batch * parts)

    def parts(self, shape: Shape, gpu: Gpu) -> tuple[int, int]:
        """(parts, tiles a part) that end soonest on the GPU's SMs: the fewest waves times tiles a part, a tile lost a wave.

        At least two tiles a part where there are two, none empty. Raises NotApplicable where not even one block fits an SM.
        """
        occupancy = self.kernel.occupancy(gpu, THREADS, self.dynamic_shared)
        if not occupancy.blocks_per_sm:
            limit = gpu.limits.shared_per_block_optin_bytes
            raise NotApplicable(f"a block takes {self.dynamic_shared:,} B of dynamic shared memory; {gpu.name} has {limit:,} B")
        if gpu.sm_count is None:
            raise NotApplicable(f"{gpu.name} is an architecture: the number of parts needs a product's number of SMs")
        slots, tiles = gpu.sm_count * occupancy.blocks_per_sm, -(-shape.keys // self.keys_a_tile)
        blocks = math.prod(self.grid(shape, 1))

        def tiles_in_turn(parts: int) -> int:
            return -(-blocks * parts // slots) * (-(-tiles // parts) + 1)

        wanted = min(range(1, min(max(1, tiles // 2), slots) + 1), key=tiles_in_turn)
        tiles_a_part = -(-tiles // wanted)
        return -(-tiles // tiles_a_part), tiles_a_part

    def launches(self, shape: Shape, gpu: Gpu) -> list[Launch]:
        """The partial results of all parts, then their join."""
        parts, tiles_a_part = self.parts(shape, gpu)
        arguments = (*PART_ARGUMENTS, *scalars(shape), i32(parts), i32(tiles_a_part))
        launch = Launch(self.kernel, self.grid(shape, parts), THREADS, arguments, dynamic_shared=self.dynamic_shared)
        return [launch, join_launch(shape, parts)]

    def scratch(self, shape: Shape, gpu: Gpu) -> dict[str, Scratch]:
        """Of as many parts as the GPU gets."""
        return parts_scratch(shape, self.parts(shape, gpu)[0])


def kv_split_launches(shape: Shape, gpu) -> list[Launch]:
    """As many parts as the write-ups take."""
    parts = parts_as_written(shape)
    arguments = (*PART_ARGUMENTS, *scalars(shape), i32(parts), i32(-(-shape.keys // parts)))
    grid = (-(-shape.heads // HEADS_PER_BLOCK), shape.q_len, shape.batch * parts)
    return [Launch(KV_SPLIT, grid, THREADS, arguments, dynamic_shared=PADDED_SHARED), join_launch(shape, parts)]


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
REGISTER_WARPS = 8
REGISTER_TILE = Tiling(
    load(HERE / "08_register_tile.cu", f"register_tile<{LATENT}, {ROPE}, {REGISTER_WARPS}>"), 0, 16,
    REGISTER_WARPS * 8 * WIDTH * FLOAT + 16 * (WIDTH + 8) * FLOAT + REGISTER_WARPS * 16 * 8 * FLOAT, REGISTER_WARPS * 8,
)
TUNED_AT = tuple(Shape(q_len=9, heads=heads, prefix=prefix) for heads in (64, 8) for prefix in (16384, 1024))
AT_16K = Shape(q_len=9, heads=64, prefix=16384)
HEAD_TILES_8 = Prediction(
    over="float4", at=AT_16K, ratio=(1.5, 4.0),
    because="8 times fewer bytes out of L2; a multiply of the scores now takes half a load from shared memory",
)

PREFIXES = (256, 1024, 4096, 16384, 65536)

study = Study(
    name="verify_attention",
    title="MLA verify attention",
    shape=Shape,
    shapes=tuple(
        Shape(q_len=q_len, heads=heads, prefix=prefix)
        for heads, q_len in ((64, 9), (8, 9), (64, 33), (8, 33))
        for prefix in (16384, 4096, 1024, 256, 65536)
    ),
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
            sequence=lambda shape: shape.keys,
        ),
    ),
)
