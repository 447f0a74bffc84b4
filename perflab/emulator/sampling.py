"""Which blocks of a big grid to run when not all are, and how far their sums may be from the whole grid's."""

from __future__ import annotations

from collections.abc import Sequence

from perflab.emulator.amounts import NUMBERS, Amounts
from perflab.studies import philox_words

GROUPS = 8
_SEED = 20260102


def chosen_blocks(blocks: int, sample: int) -> tuple[int, ...]:
    """`sample` of `blocks`: the grid is cut into that many runs of blocks, and one is drawn in each.

    Drawn, not taken at a fixed step: a step that divides a grid dimension would meet the same column again and again.
    The same on every machine.
    """
    edges = [k * blocks // sample for k in range(sample + 1)]
    words = philox_words(_SEED, f"{sample} of {blocks}", sample)
    return tuple(low + int(word) % (high - low) for low, high, word in zip(edges, edges[1:], words, strict=False))


def in_groups(blocks: Sequence[int]) -> list[tuple[int, ...]]:
    """The chosen blocks as up to GROUPS groups, each spread over the grid."""
    return [tuple(blocks[k::GROUPS]) for k in range(min(GROUPS, len(blocks)))]


def standard_errors(sums: Sequence[Amounts], sizes: Sequence[int], blocks: int) -> dict[str, float]:
    """Relative standard error of each sum that is not zero, from the spread of the groups' means.

    With means m_g of G groups and their mean m: sqrt(sum (m_g - m)^2 / (G (G - 1))) / m, times sqrt(1 - n/N) since the n
    blocks of N are drawn without putting them back (Cochran, Sampling Techniques, 1977). One group tells nothing: {}.
    """
    count = len(sums)
    if count < 2:
        return {}
    unseen = 1 - sum(sizes) / blocks
    found = {}
    for name in (*NUMBERS, "flops"):
        means = [getattr(one, name) / size for one, size in zip(sums, sizes, strict=True)]
        mean = sum(means) / count
        if mean:
            spread = sum((value - mean) ** 2 for value in means) / (count * (count - 1))
            found[name] = (spread * unseen) ** 0.5 / mean
    return found
