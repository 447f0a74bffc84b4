"""Absorbed-form MLA verify attention: draft nodes of a tree attend to a shared prefix and to their ancestors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from .sweep import sweep

HERE = Path(__file__).parent
THREADS = 256


# ---------------------------------------------------------------- versions
ARGUMENTS = ("q", "kv", "visible", "out", "lse")


def scalars(shape: Shape) -> tuple:
    """heads, q_len, prefix and scale, as every version takes them."""
    return i32(shape.heads), i32(shape.q_len), i32(shape.prefix), f32(SCALE)


def rows_together(shape: Shape) -> None:
    """Raises NotApplicable at a shape whose cache rows lie in pages."""
    if shape.page:
        raise NotApplicable(f"cache rows must lie together; page={shape.page} scatters them: page=0, or a paged version")


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
    grid = (shape.heads, shape.q_len, shape.batch)
    return [Launch(NAIVE, grid, THREADS, (*ARGUMENTS, *scalars(shape)), dynamic_shared=row)]


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
    grid = (-(-shape.heads // HEADS_PER_BLOCK), shape.q_len, shape.batch)
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
    """Partial results written once, and read by the join: the sums once, the statistics by each of 4 warps, once and a half."""
    rows = shape.batch * shape.q_len * shape.heads
    joined = parts * (LATENT + LATENT // 128 * 3) * FLOAT + (LATENT + 1) * FLOAT
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
    buffers: tuple[str, ...] = PART_ARGUMENTS

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
        rows_together(shape)
        return self.cut(shape, gpu)

    def cut(self, shape: Shape, gpu: Gpu) -> list[Launch]:
        """The launches, wherever the cache rows lie."""
        parts, tiles_a_part = self.parts(shape, gpu)
        arguments = (*self.buffers, *scalars(shape), i32(parts), i32(tiles_a_part))
        launch = Launch(self.kernel, self.grid(shape, parts), THREADS, arguments, dynamic_shared=self.dynamic_shared)
        return [launch, join_launch(shape, parts)]

    def scratch(self, shape: Shape, gpu: Gpu) -> dict[str, Scratch]:
        """Of as many parts as the GPU gets."""
        return parts_scratch(shape, self.parts(shape, gpu)[0])


def kv_split_launches(shape: Shape, gpu) -> list[Launch]:
    """As many parts as the write-ups take."""
    rows_together(shape)
    parts = parts_as_written(shape)
    arguments = (*PART_ARGUMENTS, *scalars(shape), i32(parts), i32(-(-shape.keys // parts)))
    grid = (-(-shape.heads // HEADS_PER_BLOCK), shape.q_len, shape.batch * parts)
    return [Launch(KV_SPLIT, grid, THREADS, arguments, dynamic_shared=PADDED_SHARED), join_launch(shape, parts)]


def in_parts_asked_bytes(shape: Shape, parts: int, tiles: int, mask_bytes: int) -> int:
    """A tile of heads or rows asks for all keys, and for mask_bytes a tree key; the query once a part; then the parts' own.

    tiles: of all requests and nodes. mask_bytes: a byte for each thread that looks whether its row sees the key.
    """
    rows = shape.batch * shape.q_len * shape.heads
    keys = tiles * (shape.keys * WIDTH * FLOAT + shape.q_len * mask_bytes)
    return keys + rows * parts * WIDTH * FLOAT + parts_bytes(shape, parts)


def kv_split_asked_bytes(shape: Shape, gpu) -> int:
    """A thread a (head slot, key) reads the mask."""
    tiles = -(-shape.heads // HEADS_PER_BLOCK) * shape.q_len * shape.batch
    return in_parts_asked_bytes(shape, parts_as_written(shape), tiles, HEADS_PER_BLOCK)


def tiling_asked_bytes(tiling: Tiling, mask_bytes: int) -> Callable[[Shape, Gpu], int]:
    """asked_bytes of a version that is cut by `tiling`; mask_bytes as above."""
    return lambda shape, gpu: in_parts_asked_bytes(
        shape, tiling.parts(shape, gpu)[0], math.prod(tiling.grid(shape, 1)), mask_bytes)


def query_outside_asked_bytes(tiling: Tiling, mask_bytes: int) -> Callable[[Shape, Gpu], int]:
    """As above, but every head's query is asked for with every key that the node sees, instead of once a part."""

    def asked(shape: Shape, gpu: Gpu) -> int:
        rows = shape.batch * shape.q_len
        seen = rows * shape.prefix + sum(int(mask.sum()) for mask in masks(shape))
        parts = tiling.parts(shape, gpu)[0]
        return tiling_asked_bytes(tiling, mask_bytes)(shape, gpu) + shape.heads * (seen - rows * parts) * WIDTH * FLOAT

    return asked


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
REGISTER_WARPS = 8
REGISTER_TILE = Tiling(
    load(HERE / "08_register_tile.cu", f"register_tile<{LATENT}, {ROPE}, {REGISTER_WARPS}>"), 0, 16,
    REGISTER_WARPS * 8 * WIDTH * FLOAT + 16 * (WIDTH + 8) * FLOAT + REGISTER_WARPS * 16 * 8 * FLOAT, REGISTER_WARPS * 8,
)
TUNED_AT = tuple(Shape(q_len=9, heads=heads, prefix=prefix) for heads in (64, 8) for prefix in (16384, 1024))
AT_16K = Shape(q_len=9, heads=64, prefix=16384)


# ---------------------------------------------------------------- cache rows in pages
PAGES = (1, 16, 64)
PAGED_ARGUMENTS = ("q", "kv", "page_table", "visible", "part_sum", "part_stats")
TOGETHER = replace(REGISTER_TILE, buffers=("q", "rows", "visible", "part_sum", "part_stats"))
IN_PAGES = tuple(
    Shape(q_len=9, heads=heads, prefix=prefix, page=page)
    for prefix, pages in ((16384, PAGES), (65536, (1, 64)))
    for heads in (64, 8)
    for page in pages
)


def rows_in_pages(shape: Shape) -> None:
    """Raises NotApplicable at a shape whose cache rows lie together."""
    if not shape.page:
        raise NotApplicable(f"cache rows must lie in pages; page=0 has none: page={PAGES[0]}, or a version without pages")


def paged(page: int) -> Tiling:
    """The register tile that finds rows through the table, compiled for one size of a page."""
    kernel = load(HERE / "08_register_tile.cu", f"register_tile_paged<{LATENT}, {ROPE}, {REGISTER_WARPS}, {page}>")
    return replace(REGISTER_TILE, kernel=kernel, buffers=PAGED_ARGUMENTS)


def gather(page: int) -> Kernel:
    """The kernel that puts rows together, compiled for one size of a page."""
    return load(HERE / "09_gather_pages.cu", f"gather_pages<{WIDTH}, {page}>")


def paged_launches(shape: Shape, gpu: Gpu) -> list[Launch]:
    """As the register tile's, with the page table."""
    rows_in_pages(shape)
    return paged(shape.page).cut(shape, gpu)


def gathered_launches(shape: Shape, gpu: Gpu) -> list[Launch]:
    """The copy, 16 rows a block; then the register tile on it."""
    rows_in_pages(shape)
    copy = Launch(gather(shape.page), (-(-shape.keys // 16), shape.batch), WIDTH // 2,
                  ("kv", "page_table", "gathered", i32(shape.keys)))
    return [copy, *replace(TOGETHER, buffers=("q", "gathered", *TOGETHER.buffers[2:])).cut(shape, gpu)]


def gathered_scratch(shape: Shape, gpu: Gpu) -> dict[str, Scratch]:
    """gathered [batch, keys, 576], and the parts."""
    return {"gathered": Scratch((shape.batch, shape.keys, WIDTH)), **TOGETHER.scratch(shape, gpu)}


def together_launches(shape: Shape, gpu: Gpu) -> list[Launch]:
    """The register tile's own, on the same cache rows lying together."""
    rows_in_pages(shape)
    return TOGETHER.cut(shape, gpu)


def paged_version(name: str, change: str, kernels: tuple[Kernel, ...], launches: Callable, scratch: Callable,
                  prediction: Prediction | None = None) -> Version:
    """One way to read cache rows that lie in pages; its kernels are shown as compiled for the largest page."""
    return Version(name=name, kernels=(*kernels, JOIN), change=change, launches=launches, scratch=scratch,
                   prediction=prediction, sequence=lambda shape: shape.keys, shapes=IN_PAGES)


PAGED_VERSIONS = (
    paged_version(
        "register_tile_together", "what pages are compared with: the same cache rows, lying together",
        (REGISTER_TILE.kernel,), together_launches, TOGETHER.scratch,
    ),
    paged_version(
        "register_tile_paged", "each row found through the page table", (paged(PAGES[-1]).kernel,), paged_launches,
        lambda shape, gpu: paged(shape.page or PAGES[-1]).scratch(shape, gpu),
        Prediction(
            over="register_tile_together", at=IN_PAGES[0], ratio=(0.93, 1.0),
            because="a row is 2,304 contiguous bytes even on a page of its own, and is asked for half a tile ahead",
        ),
    ),
    paged_version(
        "register_tile_gathered", "the pages copied together first, then the register tile",
        (gather(PAGES[-1]), REGISTER_TILE.kernel), gathered_launches, gathered_scratch,
        Prediction(
            over="register_tile_paged", at=IN_PAGES[0], ratio=(0.9, 0.99),
            because="the copy moves 76 MB, some 20 us, and takes more than it saves in one step",
        ),
    ),
)

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
    Shape(batch=batch, q_len=9, heads=heads, prefix=prefix)
    for batch in (4, 16) for heads in (64, 8) for prefix in (16384, 4096, 1024)
)
LONG = tuple(Shape(q_len=9, heads=heads, prefix=prefix) for prefix in (185344, 131072) for heads in (64, 8))


def spec(shape: Shape) -> dict[str, int]:
    """Fewer samples where the slow versions take up to a third of a second: those are steady after few."""
    pairs = shape.batch * shape.q_len * shape.prefix
    if shape.page or pairs < 500_000:
        return {}
    return {"max_samples": 24} if pairs < 1_000_000 else {"min_samples": 10, "max_samples": 12}



study = Study(
    name="verify_attention",
    title="MLA verify attention",
    shape=Shape,
    shapes=(*ONE_STREAM, *STREAMS, *LONG, *IN_PAGES),
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
        *PAGED_VERSIONS,
    ),
)
