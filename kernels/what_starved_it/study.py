"""What starved the head tile, occupancy or bank conflicts? Its loop, with each suspect switched alone and together."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perflab.gpus import Gpu
from perflab.kernel import Kernel, load
from perflab.studies import Launch, NotApplicable, Prediction, Scratch, Study, Version, f32, i32, load_study

HERE = Path(__file__).parent
VERIFY = load_study(HERE.parent / "verify_attention")  # the problem: shapes, inputs, reference, work, tolerances
LATENT, ROPE = 512, 64
FLOAT, THREADS = 4, 256
SCALE = 1 / math.sqrt(128 + 64)  # as verify_attention/problem.py has it
PAD = 4  # floats after a row, as in verify_attention's 02_padded_rows.cu
HEADS, KEYS = 8, 16  # of the head tile: its block of 72,288 B, or 72,672 B padded
PARTS = (1, 4, 16)

# One block an SM, as the head tile has on an sm_120. Over 115,712 B would do on an sm_90; all that a block may have (227 KiB)
# also leaves L1 what three blocks of 70 KB leave it, so that nothing but the number of blocks changes.
BALLAST_BYTES = 232_448

JOIN = load(HERE / "00_tile.cu", f"join_parts<{LATENT}>")
TILES = ((4, 16), (2, 16), (8, 8), (8, 4), (4, 8), (2, 4))  # (heads a block, keys a tile): the reduced ones


# ---------------------------------------------------------------- a cell of the experiment
@dataclass(frozen=True)
class Cell:
    """One setting: rows padded or not, parts of the keys, heads a block, keys a tile, one block an SM by ballast or not."""

    pad: int
    parts: int
    heads: int = HEADS
    keys: int = KEYS
    ballast: bool = False

    @property
    def name(self) -> str:
        """plain_70k_4, padded_ballast_16; of a smaller tile its heads and keys: padded_4x16_1."""
        tile = "ballast" if self.ballast else "70k" if (self.heads, self.keys) == (HEADS, KEYS) else f"{self.heads}x{self.keys}"
        return f"{'padded' if self.pad else 'plain'}_{tile}_{self.parts}"

    @property
    def kernel(self) -> Kernel:
        """The loop for this tile and padding."""
        return load(HERE / "00_tile.cu", f"tiled<{LATENT}, {ROPE}, {self.heads}, {self.keys}, {self.pad}>")

    @property
    def used_shared(self) -> int:
        """Bytes of shared memory that the kernel reads and writes: query, keys, sums, weights, three statistics a head."""
        rows, width = self.heads + self.keys, LATENT + ROPE + self.pad
        return FLOAT * (rows * width + self.heads * LATENT + self.heads * (self.keys + 3))

    @property
    def dynamic_shared(self) -> int:
        """Bytes that it is launched with."""
        return BALLAST_BYTES if self.ballast else self.used_shared

    def cut(self, shape: Any) -> tuple[int, int]:
        """(parts, keys a part): whole tiles, no part empty; as many parts as asked where there are as many tiles."""
        tiles = -(-shape.keys // self.keys)
        tiles_a_part = -(-tiles // self.parts)
        return -(-tiles // tiles_a_part), tiles_a_part * self.keys

    def launches(self, shape: Any, gpu: Gpu) -> list[Launch]:
        """The parts, then their join, of one part too: nothing but the cell differs. NotApplicable where it does not fit."""
        if shape.page:
            raise NotApplicable(f"cache rows must lie together; page={shape.page} scatters them: page=0")
        limit = gpu.limits.shared_per_block_optin_bytes
        if self.dynamic_shared > limit:
            raise NotApplicable(f"{self.name} takes {self.dynamic_shared:,} B of shared memory a block, {gpu.name} allows "
                                f"{limit:,} B" + (": without ballast one block an SM is all it holds" if self.ballast else ""))
        parts, keys_a_part = self.cut(shape)
        sizes = (i32(shape.heads), i32(shape.q_len), i32(shape.prefix), f32(SCALE), i32(parts), i32(keys_a_part))
        grid = (-(-shape.heads // self.heads), shape.q_len, shape.batch * parts)
        rows = shape.batch * shape.q_len * shape.heads
        arguments = ("q", "kv", "visible", "part_sum", "part_stats", *sizes)
        return [Launch(self.kernel, grid, THREADS, arguments, self.dynamic_shared),
                Launch(JOIN, rows, LATENT // 4, ("part_sum", "part_stats", "out", "lse", i32(parts)))]

    def scratch(self, shape: Any, gpu: Gpu) -> dict[str, Scratch]:
        """part_sum [batch, q_len, heads, parts, 512]; part_stats [batch, q_len, heads, parts, 2]: largest score and total."""
        rows = (shape.batch, shape.q_len, shape.heads, self.cut(shape)[0])
        return {"part_sum": Scratch((*rows, LATENT)), "part_stats": Scratch((*rows, 2))}


# ---------------------------------------------------------------- predictions, written before the first run of this study
AT_16K = VERIFY.shape(q_len=9, heads=64, prefix=16384)
AT_4K = replace(AT_16K, prefix=4096)
Q33_AT_4K = replace(AT_4K, q_len=33)
# Known by then, of verify_attention on an H200: the times of 01 to 04 at 16k (head_tile 26.2 ms, padded_rows 18.0 ms) and the
# counters of 01 and 02 at 1k: 51,400 clocks and 23,115 wavefronts a tile, 34,700 and 7,206 padded. The model: in a round each
# block of an SM does a tile; it takes the longer of one block's own time and of the wavefronts of all at one a clock.
SAID: dict[str, tuple[str, tuple[float, float], str]] = {
    "padded_70k_1": ("plain_70k_1", (1.4, 1.52), "02 against 01 gave 1.46, and this is their loop"),
    "plain_ballast_1": ("plain_70k_1", (0.97, 1.03), "72 blocks on 132 SMs: an SM has one block at most, ballast or not"),
    "padded_ballast_1": ("padded_70k_1", (0.97, 1.03), "72 blocks on 132 SMs: an SM has one block at most, ballast or not"),
    "plain_70k_4": ("plain_70k_1", (2.3, 3.0), "24 SMs get three blocks of a quarter of the tiles; three blocks' wavefronts, "
                    "69,300 clocks a round, are over one block's own 51,400"),
    "plain_ballast_4": ("plain_ballast_1", (1.25, 1.42), "288 blocks on 132 SMs are three waves of a quarter of the tiles"),
    "padded_70k_4": ("plain_70k_4", (1.7, 2.1), "three blocks' wavefronts, 21,600 a round, are under one block's own 34,700, "
                     "so that a round takes that instead of 69,300"),
    "padded_ballast_4": ("plain_ballast_4", (1.4, 1.55), "one block at a time: as with one part"),
    "plain_70k_16": ("plain_70k_4", (1.2, 1.45), "three full waves of 65 tiles instead of 257 tiles: the same round"),
    "plain_ballast_16": ("plain_70k_16", (0.42, 0.56), "nine waves of 51,400 a tile instead of three of 69,300 a round"),
    "padded_70k_16": ("plain_70k_16", (1.7, 2.1), "34,700 clocks a round, a bit more where turns collide, instead of 69,300"),
    "padded_ballast_16": ("padded_70k_16", (0.31, 0.4), "nine waves instead of three of nearly the same round"),
    "plain_4x16_1": ("plain_70k_1", (1.1, 1.7), "half the wavefronts a tile, the same loads and the same chain of 576 FMAs a "
                     "score; 12 of 132 SMs get two of its 144 blocks"),
    "padded_4x16_1": ("padded_70k_1", (0.9, 1.3), "only the value step gets shorter"),
    "padded_8x8_1": ("padded_70k_1", (0.55, 0.85), "twice the tiles, each with the same chain of 576 FMAs a score"),
    "padded_8x4_1": ("padded_70k_1", (0.3, 0.6), "four times the tiles, each with the same chain of 576 FMAs a score"),
    "padded_2x4_16": ("padded_70k_16", (0.2, 0.6), "48 warps an SM instead of 24, but every key is loaded four times as often, "
                      "and four times the tiles pass their barriers with 8 threads busy in the score step"),
}


def version(cell: Cell) -> Version:
    """A cell as a version: the head tile's own cells at all shapes, the reduced tiles at the main one."""
    reduced = (cell.heads, cell.keys) != (HEADS, KEYS)
    over, ratio, because = SAID.get(cell.name, ("", (0.0, 0.0), ""))
    return Version(
        name=cell.name,
        kernels=(cell.kernel, JOIN),
        change=", ".join([f"rows {LATENT + ROPE + cell.pad} floats apart", f"parts: {cell.parts}",
                          f"{cell.heads} heads x {cell.keys} keys", *(["ballast: one block an SM"] if cell.ballast else [])]),
        launches=cell.launches,
        scratch=cell.scratch,
        prediction=Prediction(over, AT_16K, ratio, because) if over else None,
        sequence=lambda shape: shape.keys,
        shapes=(AT_16K,) if reduced else None,
    )


FACTORIAL = tuple(Cell(pad, parts, ballast=ballast) for parts in PARTS for ballast in (False, True) for pad in (0, PAD))
REDUCED = tuple(Cell(pad, parts, heads, keys) for heads, keys in TILES for parts in (1, 16) for pad in (0, PAD))

study = Study(
    name="what_starved_it",
    title="What starved the head tile?",
    shape=VERIFY.shape,
    shapes=(AT_16K, AT_4K, Q33_AT_4K),
    inputs=VERIFY.inputs,
    buffers=VERIFY.buffers,
    reference=VERIFY.reference,
    work=VERIFY.work,
    tolerances=VERIFY.tolerances,
    facts=VERIFY.facts,
    versions=tuple(map(version, FACTORIAL + REDUCED)),
    uses=("verify_attention",),
)
