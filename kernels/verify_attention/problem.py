"""The problem that every version solves: absorbed-form MLA verify attention over a draft tree. Shapes, inputs, float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perflab.studies import INPUT_SEED, Given, NotApplicable, Output, Tolerance, Uniform, Work, philox_words

LATENT, ROPE = 512, 64  # Dl and Dr of the write-ups
WIDTH = LATENT + ROPE
SCALE = 1 / math.sqrt(128 + 64)  # of the model before absorption: 128 non-rotary and 64 rotary columns a head
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
