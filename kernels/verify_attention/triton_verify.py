"""Two Triton kernels of our own: a plain tree verify as production runs it, and the tree part that makes a prefix kernel exact.

Rows are (node, head) pairs, node-major, as q lies in memory. q [q_len, heads, 576] and kv [keys, 576] are contiguous; visible
[q_len, q_len] is int8. bfloat16 (or float16) in and out, float32 inside. torch's current stream; neither waits for the GPU.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl

LATENT, ROPE = 512, 64
LOG2_E = 1.4426950408889634


# ---------------------------------------------------------------- verify: a program a head, no KV split
@triton.jit
def _step(kv, rows, there, seen, q_latent, q_rope, largest, total, mixed, scale_log2, LATENT: tl.constexpr, ROPE: tl.constexpr):
    """One tile of keys: online softmax in the exp2 domain. The latent part of a key is its value too."""
    width: tl.constexpr = LATENT + ROPE
    latent = tl.arange(0, LATENT)
    rope = LATENT + tl.arange(0, ROPE)
    base = kv + rows[:, None] * width
    k_latent = tl.load(base + latent[None, :], mask=there[:, None], other=0.0)
    k_rope = tl.load(base + rope[None, :], mask=there[:, None], other=0.0)
    scores = tl.dot(q_latent, tl.trans(k_latent))
    scores += tl.dot(q_rope, tl.trans(k_rope))
    scores = tl.where(seen, scores * scale_log2, float("-inf"))
    higher = tl.maximum(largest, tl.max(scores, 1))
    shrink = tl.exp2(largest - higher)
    weights = tl.exp2(scores - higher[:, None])
    total = total * shrink + tl.sum(weights, 1)
    mixed = mixed * shrink[:, None] + tl.dot(weights.to(k_latent.dtype), k_latent)
    return higher, total, mixed


@triton.jit
def _verify(q, kv, visible, out, lse, heads, q_len, prefix, scale_log2, NODES: tl.constexpr, KEYS: tl.constexpr,
            LATENT: tl.constexpr, ROPE: tl.constexpr):
    """All nodes of one head against the whole prefix, serially, then against the tree. grid (heads,)."""
    head = tl.program_id(0)
    node = tl.arange(0, NODES)
    latent = tl.arange(0, LATENT)
    rope = LATENT + tl.arange(0, ROPE)
    real = node < q_len
    row = node * heads + head
    q_rows = q + row[:, None] * (LATENT + ROPE)
    q_latent = tl.load(q_rows + latent[None, :], mask=real[:, None], other=0.0)
    q_rope = tl.load(q_rows + rope[None, :], mask=real[:, None], other=0.0)
    largest = tl.full((NODES,), float("-inf"), tl.float32)
    total = tl.zeros((NODES,), tl.float32)
    mixed = tl.zeros((NODES, LATENT), tl.float32)
    for first in range(0, prefix, KEYS):
        key = first + tl.arange(0, KEYS)
        there = key < prefix
        seen = there[None, :] & (node[:, None] >= 0)
        largest, total, mixed = _step(kv, key, there, seen, q_latent, q_rope, largest, total, mixed, scale_log2, LATENT, ROPE)
    for first in range(0, q_len, KEYS):
        other = first + tl.arange(0, KEYS)
        there = other < q_len
        marks = tl.load(visible + node[:, None] * q_len + other[None, :], mask=real[:, None] & there[None, :], other=0)
        seen = (marks != 0) | (there[None, :] & (node[:, None] >= q_len))  # rows of padding see all: no -inf minus -inf
        largest, total, mixed = _step(kv, prefix + other, there, seen, q_latent, q_rope, largest, total, mixed, scale_log2,
                                      LATENT, ROPE)
    mixed = mixed / total[:, None]
    tl.store(out + row[:, None] * LATENT + latent[None, :], mixed.to(out.dtype.element_ty), mask=real[:, None])
    tl.store(lse + row, (largest + tl.log2(total)) * 0.6931471805599453, mask=real)


def verify(q, kv, visible, out, lse, prefix: int, scale: float) -> None:
    """Fill out [q_len, heads, 512] and natural lse [q_len, heads] float32: exact tree attention, one program a head."""
    q_len, heads, _ = q.shape
    nodes = max(16, triton.next_power_of_2(q_len))
    _verify[(heads,)](q, kv, visible, out, lse, heads, q_len, prefix, scale * LOG2_E, NODES=nodes, KEYS=32, LATENT=LATENT,
                      ROPE=ROPE, num_warps=4 if nodes <= 16 else 8, num_stages=2)


# ---------------------------------------------------------------- tree part, merged with a prefix part, in one launch
@triton.jit
def _merge_tree(q, kv, visible, prefix_out, prefix_lse, out, lse, heads, q_len, prefix, scale, lse_unit, out_node, out_head,
                lse_node, lse_head, ROWS: tl.constexpr, NODES: tl.constexpr, COLUMNS: tl.constexpr, LATENT: tl.constexpr,
                ROPE: tl.constexpr):
    """ROWS (node, head) pairs against the nodes they see, then joined with the prefix part by log-sum-exp.
    grid (rows / ROWS, 512 / COLUMNS): a program writes COLUMNS of the output and computes the few scores anew."""
    width: tl.constexpr = LATENT + ROPE
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = row < q_len * heads
    node = row // heads
    head = row % heads
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    # What the prefix kernel wrote, asked for first: it is the longest wait.
    first_lse = tl.load(prefix_lse + node * lse_node + head * lse_head, mask=real, other=0.0).to(tl.float32) * lse_unit
    first = tl.load(prefix_out + (node * out_node + head * out_head)[:, None] + column[None, :], mask=real[:, None], other=0.0)

    other = tl.arange(0, NODES)
    there = other < q_len
    latent = tl.arange(0, LATENT)
    rope = LATENT + tl.arange(0, ROPE)
    keys = kv + (prefix + other)[:, None] * width
    scores = tl.dot(tl.load(q + row[:, None] * width + latent[None, :], mask=real[:, None], other=0.0),
                    tl.trans(tl.load(keys + latent[None, :], mask=there[:, None], other=0.0)))
    scores += tl.dot(tl.load(q + row[:, None] * width + rope[None, :], mask=real[:, None], other=0.0),
                     tl.trans(tl.load(keys + rope[None, :], mask=there[:, None], other=0.0)))
    marks = tl.load(visible + node[:, None] * q_len + other[None, :], mask=real[:, None] & there[None, :], other=0)
    scores = tl.where((marks != 0) | ~real[:, None], scores * scale, float("-inf"))
    largest = tl.max(scores, 1)  # finite: a node sees itself
    weights = tl.exp(scores - largest[:, None])
    total = tl.sum(weights, 1)
    values = tl.load(keys + column[None, :], mask=there[:, None], other=0.0)
    second = tl.dot(weights.to(values.dtype), values) / total[:, None]
    second_lse = largest + tl.log(total)

    # An empty prefix part is -inf from one library, +inf from another: weight 0 either way.
    empty = (first_lse == float("inf")) | (first_lse != first_lse)
    first_lse = tl.where(empty, float("-inf"), first_lse)
    top = tl.maximum(first_lse, second_lse)
    first_weight = tl.exp(first_lse - top)
    both = first_weight + tl.exp(second_lse - top)
    share = first_weight / both
    first = tl.where(share[:, None] > 0, first.to(tl.float32), 0.0)
    joined = second + share[:, None] * (first - second)
    tl.store(out + row[:, None] * LATENT + column[None, :], joined.to(out.dtype.element_ty), mask=real[:, None])
    tl.store(lse + row, top + tl.log(both), mask=real & (tl.program_id(1) == 0))


SETTINGS = ((16, 128, 4), (16, 256, 4), (16, 512, 8), (32, 128, 4), (32, 256, 8), (64, 256, 8))  # rows, columns, warps


def merge_tree(q, kv, visible, prefix_out, prefix_lse, out, lse, prefix: int, scale: float, lse_unit: float = 1.0,
               setting: tuple[int, int, int] = SETTINGS[0]) -> None:
    """Fill out and lse (natural) from the prefix part and the tree part.

    prefix_out [q_len, heads, 512] with any strides and contiguous columns; prefix_lse [q_len, heads]; times lse_unit it is
    natural: ln 2 where the library's is of base 2.
    """
    q_len, heads, _ = q.shape
    rows, columns, warps = setting
    grid = (triton.cdiv(q_len * heads, rows), LATENT // columns)
    _merge_tree[grid](q, kv, visible, prefix_out, prefix_lse, out, lse, heads, q_len, prefix, scale, lse_unit,
                      prefix_out.stride(0), prefix_out.stride(1), prefix_lse.stride(0), prefix_lse.stride(1), ROWS=rows,
                      NODES=max(16, triton.next_power_of_2(q_len)), COLUMNS=columns, LATENT=LATENT, ROPE=ROPE,
                      num_warps=warps, num_stages=1)


@lru_cache(maxsize=64)
def merge_setting(q_len: int, heads: int) -> tuple[int, int, int]:
    """The fastest of SETTINGS on this GPU, each replayed in a graph on data like the real; the first one without a GPU."""
    if not torch.cuda.is_available():
        return SETTINGS[0]
    made = {"device": "cuda", "dtype": torch.bfloat16}
    q = torch.randn(q_len, heads, LATENT + ROPE, **made)
    kv = torch.randn(q_len, LATENT + ROPE, **made)
    visible = torch.ones(q_len, q_len, device="cuda", dtype=torch.int8).tril()
    first, out = (torch.randn(q_len, heads, LATENT, **made) for _ in range(2))
    first_lse, lse = (torch.randn(q_len, heads, device="cuda") for _ in range(2))

    def milliseconds(setting: tuple[int, int, int]) -> float:
        return triton.testing.do_bench_cudagraph(
            lambda: merge_tree(q, kv, visible, first, first_lse, out, lse, 0, 0.07, setting=setting), rep=10)

    return min(SETTINGS, key=milliseconds)
