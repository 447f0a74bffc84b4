"""How versions cut the keys of a request into parts, and join what comes of them: grids, launches, scratch, bytes asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from perflab.gpus import Gpu
from perflab.kernel import Kernel, load
from perflab.studies import Launch, NotApplicable, Scratch, i32

from .problem import FLOAT, LATENT, WIDTH, Shape, masks, rows_together, scalars

HERE = Path(__file__).parent
THREADS = 256
PART_ARGUMENTS = ("q", "kv", "visible", "part_sum", "part_stats")
JOIN = load(HERE / "03_kv_split.cu", f"join_parts<{LATENT}>")
KEYS_A_PART, MOST_PARTS = 2048, 32  # of the write-ups
MOST_BLOCKS = 65_535  # of a grid along y or z, on every GPU: CUDA programming guide, technical specifications


def in_grid(grid: tuple[int, int, int], along_y: str, along_z: str, fits: str) -> tuple[int, int, int]:
    """The grid itself, where it can be launched. Raises NotApplicable with the arithmetic of the side that is too long.

    along_y, along_z: what the blocks there are, in words and numbers; fits: what would work.
    """
    for side, blocks, said in zip("yz", grid[1:], (along_y, along_z), strict=True):
        if blocks > MOST_BLOCKS:
            raise NotApplicable(f"{said} take {blocks:,} blocks along {side}; a grid has at most {MOST_BLOCKS:,} there: {fits}")
    return grid


def grid_of_nodes(shape: Shape, tiles: int, parts: int = 1) -> tuple[int, int, int]:
    """(tiles of heads, nodes, requests x parts). Raises NotApplicable where a grid cannot be that long."""
    along_z = f"{shape.batch:,} requests" + (f" x {parts:,} parts" if parts > 1 else "")
    fits = f"q_len at most {MOST_BLOCKS:,}, batch at most {MOST_BLOCKS // parts:,}" + (" at as many parts" if parts > 1 else "")
    return in_grid((tiles, shape.q_len, shape.batch * parts), f"{shape.q_len:,} nodes", along_z, fits)


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
        """(head tiles, nodes, requests x parts); of folded rows (row tiles, parts, requests). NotApplicable if too long."""
        if self.rows_a_block:
            grid = (-(-shape.q_len * shape.heads // self.rows_a_block), parts, shape.batch)
            return in_grid(grid, f"{parts:,} parts", f"{shape.batch:,} requests", f"batch at most {MOST_BLOCKS:,}")
        return grid_of_nodes(shape, -(-shape.heads // self.heads_a_block), parts)

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


# ---------------------------------------------------------------- bytes asked for
def in_parts_asked_bytes(shape: Shape, parts: int, tiles: int, mask_bytes: int) -> int:
    """A tile of heads or rows asks for all keys, and for mask_bytes a tree key; the query once a part; then the parts' own.

    tiles: of all requests and nodes. mask_bytes: a byte for each thread that looks whether its row sees the key.
    """
    rows = shape.batch * shape.q_len * shape.heads
    keys = tiles * (shape.keys * WIDTH * FLOAT + shape.q_len * mask_bytes)
    return keys + rows * parts * WIDTH * FLOAT + parts_bytes(shape, parts)


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
