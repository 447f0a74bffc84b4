"""Sectors of requests, against sets; wavefronts of whole warps. What the hardware counted: test_wavefronts.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.emulator.tallies import sectors, wavefronts

LANES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 200)), min_size=1, max_size=70)


@given(LANES, st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_sectors_are_distinct_ones_of_each_request(lanes: list[tuple[int, int]], size: int) -> None:
    lanes = sorted(lanes, key=lambda lane: lane[0])
    rows, offsets = np.array([lane[0] for lane in lanes]), np.array([lane[1] for lane in lanes]) * size
    touched = {(row, offset * size // 32) for row, offset in lanes}
    fewest = sum(-(-len({o for r, o in lanes if r == row}) * size // 32) for row in {row for row, _ in lanes})
    assert sectors(rows, offsets, size) == (len(touched), fewest)


@pytest.mark.parametrize(("size", "stride", "expected"), [
    (4, 4, (4, 4)), (4, 8, (8, 4)), (4, 32, (32, 4)), (4, 0, (1, 1)), (16, 16, (16, 16)), (1, 1, (1, 1)), (8, 8, (8, 8))])
def test_sectors_of_a_stride(size: int, stride: int, expected: tuple[int, int]) -> None:
    assert sectors(np.zeros(32, np.int64), np.arange(32) * stride, size) == expected


@given(st.integers(0, 40), st.integers(0, 3000), st.sampled_from([1, 4, 8, 16]), st.booleans())
def test_all_lanes_active_need_no_mask(stride: int, start: int, size: int, load: bool) -> None:
    addresses = (start + np.arange(64).reshape(2, 32) * stride) * size
    for plain, masked in zip(wavefronts(addresses, None, size, load),
                             wavefronts(addresses, np.ones((2, 32), bool), size, load), strict=True):
        assert (plain == masked).all()


def test_idle_warps_cost_nothing() -> None:
    found, ideal = wavefronts(np.arange(64).reshape(2, 32) * 128, np.repeat([[True], [False]], 32, axis=1), 4, True)
    assert found.tolist() == [32, 0]
    assert ideal.tolist() == [1, 0]
