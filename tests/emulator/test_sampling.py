"""Sampled blocks: spread over the grid, never in step with it, with an error that holds."""

from __future__ import annotations

import math

import pytest

from perflab.emulator.amounts import Amounts
from perflab.emulator.sampling import chosen_blocks, in_groups, standard_errors


@pytest.mark.parametrize("blocks, sample", [(9216, 128), (10, 9), (1000, 1), (7, 7)])
def test_one_block_of_each_part_of_the_grid(blocks, sample):
    chosen = chosen_blocks(blocks, sample)
    assert len(set(chosen)) == sample and list(chosen) == sorted(chosen)
    assert all(k * blocks // sample <= b < (k + 1) * blocks // sample for k, b in enumerate(chosen))
    assert chosen == chosen_blocks(blocks, sample)
    assert sorted(b for group in in_groups(chosen) for b in group) == list(chosen)


def test_a_grid_in_step_with_the_sample_is_not_met_in_one_column():
    assert len({block % 64 for block in chosen_blocks(64 * 32, 32)}) > 16


def test_equal_blocks_have_no_error_and_one_group_tells_nothing():
    assert standard_errors([Amounts(barriers=6), Amounts(barriers=3)], [2, 1], 100) == {"barriers": 0.0}
    assert standard_errors([Amounts(barriers=6)], [2], 100) == {}


def test_the_error_of_two_groups_by_hand():
    found = standard_errors([Amounts(barriers=10), Amounts(barriers=30)], [10, 10], 80)
    assert found["barriers"] == pytest.approx(math.sqrt(2 / 2 * (1 - 20 / 80)) / 2)  # means 1 and 3 around 2


@pytest.mark.parametrize("sample", [64, 256])
def test_stated_errors_hold_for_a_triangle_of_work(sample):
    """Blocks whose work grows with their number, as under a causal mask, with noise: within four standard errors."""
    blocks = 4096
    work = [block + (block * 2654435761 % 4096) for block in range(blocks)]
    groups = in_groups(chosen_blocks(blocks, sample))
    sums = [Amounts(warp_instructions=sum(work[b] for b in group)) for group in groups]
    estimate = sum(one.warp_instructions for one in sums) * blocks / sample
    error = standard_errors(sums, [len(group) for group in groups], blocks)["warp_instructions"]
    assert 0 < error < 0.1 and abs(estimate / sum(work) - 1) < 4 * error
