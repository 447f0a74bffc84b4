"""Shapes at which every version must be right: every pair of values of heads, nodes, prefix, requests and tree, few shapes.

A bug that shows at one value, or where two values meet, shows at one of them; all combinations would be seventy times
as many. The values stand where kernels go wrong: one, off powers of two, an element beside a tile of 8 or 16 keys, many. Cache
rows in pages have a sweep of their own, for the versions that read them so: fewer values, and each with every size of a page.
"""

from __future__ import annotations

import heapq
from functools import cache
from itertools import combinations, product

from .problem import Shape, work

HEADS = (1, 3, 8, 16, 63, 64, 128)
NODES = (1, 9, 17, 32, 33, 64, 65)
PREFIXES = (0, 1, 7, 8, 9, 15, 16, 17, 2047, 2048, 2049, 16384, 65536)
REQUESTS = (1, 2, 5)
PAGES, PAGED_HEADS, PAGED_NODES = (1, 16, 64), (1, 8, 63, 64), (1, 9, 33, 65)
PAGED_PREFIXES = (0, 1, 15, 16, 17, 63, 64, 65, 2049)
SHAPED = ("random", "binary", "star", "chain")  # where any tree does it is the first, for a chain hides nothing below it
ONE_NODE = "one node"  # its tree, whatever it is called: it stands for q_len 1, and for nothing else
FLOPS_A_BYTE = 100  # a plain CPU multiplies and adds about as many times while it makes a byte of inputs
MOST_FLOPS = 2e11  # of a shape, bytes included, so that its float64 reference takes seconds


def values(shape: Shape) -> tuple[tuple[str, int | str], ...]:
    """What a shape stands for: its heads, nodes, prefix, requests and tree, and its page where it has one, by name."""
    sizes = [(name, getattr(shape, name)) for name in ("heads", "q_len", "prefix", "batch", *(["page"] if shape.page else []))]
    return (*sizes, ("tree", ONE_NODE if shape.q_len == 1 else shape.tree))


def cost_flops(shape: Shape) -> int:
    """What the float64 reference takes on a CPU, making its inputs included, as FLOPs."""
    whole = work(shape)
    return whole.flops + FLOPS_A_BYTE * whole.bytes


def candidates(paged: bool) -> list[Shape]:
    """Every shape of these values whose reference is affordable; in pages, or not."""
    sizes = (PAGED_HEADS, PAGED_NODES, PAGED_PREFIXES) if paged else (HEADS, NODES, PREFIXES)
    every = (Shape(batch=batch, q_len=nodes, heads=heads, prefix=prefix, tree=tree, page=page)
             for heads, nodes, prefix, batch, page in product(*sizes, REQUESTS, PAGES if paged else (0,))
             for tree in (SHAPED if nodes > 1 else SHAPED[:1]))
    return [shape for shape in every if cost_flops(shape) <= MOST_FLOPS]


def pairwise(shapes: list[Shape]) -> tuple[Shape, ...]:
    """Some of these shapes that hold every pair of values that they all hold; cheapest first.

    Greedy: always a shape with the most pairs that none before it has, the cheapest of such. A shape's gain only shrinks, so
    one that still has its old gain when its turn comes is the best of all, and the others need not be looked at.
    """
    numbers: dict[object, int] = {}  # a bit each pair
    masks = [sum(1 << numbers.setdefault(pair, len(numbers)) for pair in combinations(values(shape), 2)) for shape in shapes]
    costs = [cost_flops(shape) for shape in shapes]
    waiting = [(-mask.bit_count(), cost, place) for place, (mask, cost) in enumerate(zip(masks, costs, strict=True))]
    heapq.heapify(waiting)
    chosen, left = [], (1 << len(numbers)) - 1
    while left:
        gain, cost, place = heapq.heappop(waiting)
        now = (masks[place] & left).bit_count()
        if now == -gain:
            chosen.append(shapes[place])
            left &= ~masks[place]
        elif now:
            heapq.heappush(waiting, (-now, cost, place))
    return tuple(sorted(chosen, key=cost_flops))


@cache
def sweep() -> tuple[Shape, ...]:
    """Every pair of the values above, cheapest shape first; then those in pages."""
    return (*pairwise(candidates(paged=False)), *pairwise(candidates(paged=True)))
