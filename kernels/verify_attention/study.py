"""Absorbed-form MLA verify attention: draft nodes of a tree attend to a shared prefix and to their ancestors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perflab.kernel import load
from perflab.studies import (
    INPUT_SEED,
    Given,
    Launch,
    NotApplicable,
    Output,
    Prediction,
    Study,
    Tolerance,
    Uniform,
    Version,
    Work,
    f32,
    i32,
    philox_words,
)

HERE = Path(__file__).parent
LATENT, ROPE = 512, 64  # Dl and Dr of the write-ups
WIDTH = LATENT + ROPE
SCALE = 1 / math.sqrt(128 + 64)  # of the model before absorption: 128 non-rotary and 64 rotary columns a head
THREADS = 256
FLOAT = 4  # bytes


@dataclass(frozen=True)
class Shape:
    """One verify step: `q_len` = 1 + budget draft nodes; `prefix` keys that every node sees; `tree` links the nodes."""

    batch: int = 1
    q_len: int = 9
    heads: int = 64
    prefix: int = 16384
    tree: str = "random"
    page: int = 0  # 0: contiguous cache rows

    def __post_init__(self) -> None:
        if self.tree not in TREES:
            raise NotApplicable(f'tree "{self.tree}" is none of {", ".join(TREES)}')
        if min(self.batch, self.q_len, self.heads) < 1 or self.prefix < 0:
            raise NotApplicable(f"{self}: batch, q_len and heads are at least 1, prefix at least 0")
        if self.page:
            raise NotApplicable("paged cache rows are not declared yet: page=0")

    @property
    def keys(self) -> int:
        """Cache rows of a request: the prefix and the nodes themselves."""
        return self.prefix + self.q_len


# ---------------------------------------------------------------- trees and their mask
def random_parents(nodes: int, request: int) -> list[int]:
    """A parent below each node, drawn from Philox words; node 0 is the root (its own parent)."""
    words = philox_words(INPUT_SEED, f"tree of request {request}", nodes)
    return [int(words[i] % np.uint64(i)) if i else 0 for i in range(nodes)]


TREES = {
    "chain": lambda nodes, request: [max(i - 1, 0) for i in range(nodes)],
    "star": lambda nodes, request: [0] * nodes,
    "binary": lambda nodes, request: [max(i - 1, 0) // 2 for i in range(nodes)],
    "random": random_parents,
}


def visibility(parents: list[int]) -> np.ndarray:
    """[nodes, nodes] uint8: 1 where the column is the row's ancestor or itself. Lower-triangular, in general not full."""
    nodes = len(parents)
    visible = np.zeros((nodes, nodes), np.uint8)
    for i, parent in enumerate(parents):
        visible[i, :i] = visible[parent, :i] if i else 0
        visible[i, i] = 1
    return visible


def masks(shape: Shape) -> list[np.ndarray]:
    """The visibility of each request's own tree."""
    return [visibility(TREES[shape.tree](shape.q_len, request)) for request in range(shape.batch)]


# ---------------------------------------------------------------- what goes in, what must come out
def inputs(shape: Shape) -> dict[str, Uniform | Given]:
    """q [batch, q_len, heads, 576], kv [batch, keys, 576], visible [batch, q_len, q_len]."""
    return {
        "q": Uniform((shape.batch, shape.q_len, shape.heads, WIDTH), scale=1.0),  # scores of standard deviation 0.58
        "kv": Uniform((shape.batch, shape.keys, WIDTH)),
        "visible": Given(np.stack(masks(shape))),
    }


def buffers(shape: Shape, gpu: object) -> dict[str, Output]:
    """out [batch, q_len, heads, 512] and natural log-sum-exp lse [batch, q_len, heads], both float32."""
    rows = (shape.batch, shape.q_len, shape.heads)
    return {"out": Output((*rows, LATENT)), "lse": Output(rows)}


def reference(shape: Shape, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Direct softmax in float64, 256 rows at a time so that the scores stay small."""
    out = np.empty((shape.batch, shape.q_len * shape.heads, LATENT))
    lse = np.empty((shape.batch, shape.q_len * shape.heads))
    for b in range(shape.batch):
        kv = given["kv"][b].astype(np.float64)
        q = given["q"][b].reshape(-1, WIDTH)
        seen = np.ones((shape.q_len, shape.keys), bool)
        seen[:, shape.prefix :] = given["visible"][b]
        for first in range(0, len(q), 256):
            rows = slice(first, min(first + 256, len(q)))
            node = np.arange(rows.start, rows.stop) // shape.heads
            scores = np.where(seen[node], q[rows].astype(np.float64) @ kv.T * SCALE, -np.inf)
            largest = scores.max(axis=1, keepdims=True)
            np.exp(scores - largest, out=scores)
            total = scores.sum(axis=1, keepdims=True)
            out[b, rows] = scores @ kv[:, :LATENT] / total
            lse[b, rows] = (largest + np.log(total))[:, 0]
    rows_shape = (shape.batch, shape.q_len, shape.heads)
    return {"out": out.reshape(*rows_shape, LATENT), "lse": lse.reshape(rows_shape)}


def work(shape: Shape) -> Work:
    """FLOPs: a multiply and an add for each of 576 + 512 columns of every (node, head, key), hidden tree keys included
    (they are under q_len of all keys). Bytes: q, kv and mask read once, out and lse written once."""
    rows = shape.batch * shape.q_len * shape.heads
    once = rows * (WIDTH + LATENT + 1) * FLOAT + shape.batch * shape.keys * WIDTH * FLOAT + shape.batch * shape.q_len**2
    return Work(flops=2 * rows * shape.keys * (WIDTH + LATENT), bytes=once)


def tolerances(shape: Shape, sequence: int) -> dict[str, Tolerance]:
    """float32: max(1e-6, 4e-8 sqrt(n)) for n terms that one accumulator adds in sequence; log-sum-exp within 1e-5."""
    return {
        "out": Tolerance("norm_relative", max(1e-6, 4e-8 * math.sqrt(sequence)), f"float32, {sequence:,} terms in sequence"),
        "lse": Tolerance("max_abs", 1e-5, "float32 log-sum-exp"),
    }


def facts(shape: Shape) -> dict[str, int]:
    """The write-ups' names for the sizes."""
    return {"B": shape.batch, "H": shape.heads, "q_len": shape.q_len, "kv_len": shape.keys}


# ---------------------------------------------------------------- versions
ARGUMENTS = ("q", "kv", "visible", "out", "lse")


def scalars(shape: Shape) -> tuple:
    """heads, q_len, prefix and scale, as every version takes them."""
    return i32(shape.heads), i32(shape.q_len), i32(shape.prefix), f32(SCALE)


NAIVE = load(HERE / "00_naive.cu", f"naive<{LATENT}, {ROPE}>")
NAIVE_STATIC = (WIDTH + 32) * FLOAT  # the query row and a value a warp


def naive_launches(shape: Shape, gpu) -> list[Launch]:
    """A block a (head, node, request); the score row of all keys as dynamic shared memory."""
    row, limit = shape.keys * FLOAT, gpu.limits.shared_per_block_optin_bytes
    if row + NAIVE_STATIC > limit:
        raise NotApplicable(
            f"a score row of {shape.keys:,} keys takes {row:,} B of shared memory, and {NAIVE_STATIC:,} B hold the query; "
            f"{gpu.name} allows a block {limit:,} B: at most {(limit - NAIVE_STATIC) // FLOAT:,} keys"
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
    ),
)
