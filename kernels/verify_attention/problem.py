"""The problem that every version solves: absorbed-form MLA verify attention over a draft tree. Shapes, inputs, float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from perflab.studies import INPUT_SEED, Given, NotApplicable, Output, Tolerance, Uniform, Work, f32, i32, philox_words

LATENT, ROPE = 512, 64  # Dl and Dr of the write-ups
WIDTH = LATENT + ROPE
SCALE = 1 / math.sqrt(128 + 64)  # of the model before absorption: 128 non-rotary and 64 rotary columns a head
FLOAT = 4  # bytes
POOL_TIMES = 16  # pages in a pool, over those of the requests looked at: the others belong to requests elsewhere


@dataclass(frozen=True)
class Shape:
    """One verify step: `q_len` = 1 + budget draft nodes; `prefix` keys that every node sees; `tree` links the nodes."""

    batch: int = 1
    q_len: int = 9
    heads: int = 64
    prefix: int = 16384
    tree: str = "random"
    page: int = 0  # cache rows of a page, whose pages lie scattered in a pool; 0: contiguous cache rows

    def __post_init__(self) -> None:
        if self.tree not in TREES:
            raise NotApplicable(f'tree "{self.tree}" is none of {", ".join(TREES)}')
        if min(self.batch, self.q_len, self.heads) < 1 or self.prefix < 0:
            raise NotApplicable(f"{self}: batch, q_len and heads are at least 1, prefix at least 0")
        if self.page < 0:
            raise NotApplicable(f"page={self.page}: a page holds at least 1 row; page=0 is a cache whose rows lie together")

    @property
    def keys(self) -> int:
        """Cache rows of a request: the prefix and the nodes themselves."""
        return self.prefix + self.q_len

    @property
    def pages(self) -> int:
        """Pages of one request, the last of them perhaps not full; 0 for contiguous rows."""
        return -(-self.keys // self.page) if self.page else 0


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


# ---------------------------------------------------------------- pages
@dataclass(frozen=True)
class PageTable:
    """Ids of each request's pages in the order of their keys, [requests, pages] int32: no id twice, out of POOL_TIMES as many.

    The ids of a pool are sorted by raw Philox words, and the first are taken: shuffled, the same on every machine.
    """

    requests: int
    pages: int

    @property
    def pool_pages(self) -> int:
        """Pages of the pool that the ids point into."""
        return POOL_TIMES * self.requests * self.pages

    def describe(self) -> dict[str, Any]:
        """The recipe as JSON, for the hash."""
        return {"kind": "shuffled pages", "shape": [self.requests, self.pages], "pool": self.pool_pages}

    def make(self, seed: int, name: str = "page_table") -> np.ndarray:
        """The table."""
        order = np.argsort(philox_words(seed, "page table", self.pool_pages), kind="stable")
        return order[: self.requests * self.pages].astype(np.int32).reshape(self.requests, self.pages)


@dataclass(frozen=True)
class RowsOf:
    """An input's recipe under another name, with that input's values: cache rows that also lie in a pool."""

    rows: Uniform
    stream: str

    def describe(self) -> dict[str, Any]:
        """The recipe as JSON, for the hash."""
        return {"kind": "rows of", "stream": self.stream, "rows": self.rows.describe()}

    def make(self, seed: int, name: str = "") -> np.ndarray:
        """The values that `rows` gives under the name `stream`."""
        return self.rows.make(seed, self.stream)


@dataclass(frozen=True)
class Pool:
    """Cache rows [requests, keys, width] put into their pages of a pool [pages, page, width]; NaN wherever no row lies."""

    rows: RowsOf
    table: PageTable
    page: int

    def describe(self) -> dict[str, Any]:
        """The recipe as JSON, for the hash."""
        return {"kind": "pool", "rows": self.rows.describe(), "table": self.table.describe(), "page": self.page}

    def make(self, seed: int, name: str = "") -> np.ndarray:
        """The pool, float32."""
        rows, table = self.rows.make(seed), self.table.make(seed)
        pool = np.full((self.table.pool_pages, self.page, rows.shape[-1]), np.nan, np.float32)
        for ids, request in zip(table, rows, strict=True):
            whole = len(request) // self.page
            pool[ids[:whole]] = request[: whole * self.page].reshape(whole, self.page, rows.shape[-1])
            if whole < len(ids):
                pool[ids[whole], : len(request) - whole * self.page] = request[whole * self.page :]
        return pool


def together(shape: Shape, pool: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The rows of each request out of their pages, in the order of their keys: [batch, keys, 576]."""
    return pool[table].reshape(shape.batch, -1, WIDTH)[:, : shape.keys]


# ---------------------------------------------------------------- what goes in, what must come out
def inputs(shape: Shape) -> dict[str, Uniform | Given | PageTable | RowsOf | Pool]:
    """q [batch, q_len, heads, 576], kv [batch, keys, 576], visible [batch, q_len, q_len].

    In pages: kv is a pool [pages, page, 576] with page_table [batch, pages of a request] int32 beside it. To tell what costs
    what: rows, the same cache rows [batch, keys, 576] as page 0 has them, and page_order, the ids of one request's pages there.
    """
    q = Uniform((shape.batch, shape.q_len, shape.heads, WIDTH), scale=1.0)  # scores of standard deviation 0.58
    kv, visible = Uniform((shape.batch, shape.keys, WIDTH)), Given(np.stack(masks(shape)))
    if not shape.page:
        return {"q": q, "kv": kv, "visible": visible}
    rows, table = RowsOf(kv, "kv"), PageTable(shape.batch, shape.pages)
    order = Given(np.arange(shape.pages, dtype=np.int32)[None])
    return {"q": q, "kv": Pool(rows, table, shape.page), "page_table": table, "visible": visible, "rows": rows,
            "page_order": order}


def buffers(shape: Shape, gpu: object) -> dict[str, Output]:
    """out [batch, q_len, heads, 512] and natural log-sum-exp lse [batch, q_len, heads], both float32."""
    rows = (shape.batch, shape.q_len, shape.heads)
    return {"out": Output((*rows, LATENT)), "lse": Output(rows)}


def reference(shape: Shape, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Direct softmax in float64, 256 rows at a time so that the scores stay small; rows in pages are put together first."""
    cache = together(shape, given["kv"], given["page_table"]) if shape.page else given["kv"]
    out = np.empty((shape.batch, shape.q_len * shape.heads, LATENT))
    lse = np.empty((shape.batch, shape.q_len * shape.heads))
    for b in range(shape.batch):
        kv = cache[b].astype(np.float64)
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
    (they are under q_len of all keys). Bytes: q, kv, mask and page table read once, out and lse written once."""
    rows = shape.batch * shape.q_len * shape.heads
    once = rows * (WIDTH + LATENT + 1) * FLOAT + shape.batch * shape.keys * WIDTH * FLOAT + shape.batch * shape.q_len**2
    table = shape.batch * shape.pages * 4  # int32
    return Work(flops=2 * rows * shape.keys * (WIDTH + LATENT), bytes=once + table)


def tolerances(shape: Shape, sequence: int) -> dict[str, Tolerance]:
    """float32: max(1e-6, 4e-8 sqrt(n)) for n terms that one accumulator adds in sequence; log-sum-exp within 1e-5."""
    return {
        "out": Tolerance("norm_relative", max(1e-6, 4e-8 * math.sqrt(sequence)), f"float32, {sequence:,} terms in sequence"),
        "lse": Tolerance("max_abs", 1e-5, "float32 log-sum-exp"),
    }


def facts(shape: Shape) -> dict[str, int]:
    """The write-ups' names for the sizes."""
    return {"B": shape.batch, "H": shape.heads, "q_len": shape.q_len, "kv_len": shape.keys}


# ---------------------------------------------------------------- what every version says of a shape
def scalars(shape: Shape) -> tuple:
    """heads, q_len, prefix and scale, as every version takes them."""
    return i32(shape.heads), i32(shape.q_len), i32(shape.prefix), f32(SCALE)


def rows_together(shape: Shape) -> None:
    """Raises NotApplicable at a shape whose cache rows lie in pages."""
    if shape.page:
        raise NotApplicable(f"cache rows must lie together; page={shape.page} scatters them: page=0, or a paged version")
