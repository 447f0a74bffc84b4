"""The experiment's own facts: every cell differs in what it names and in nothing else, and each is right."""

import sys
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perflab.gpus import gpu
from perflab.studies import NotApplicable, load_study
from perflab.versions import occupancy_of
from perflab.workbench import study
from perflab.workspaces import workspace

ROOT = Path(__file__).parent.parent
STUDY = load_study(ROOT / "kernels" / "what_starved_it")
MODULE = next(module for module in list(sys.modules.values()) if getattr(module, "study", None) is STUDY)
H200, RTX = gpu("H200"), gpu("RTX PRO 6000")
MAIN = STUDY.shapes[0]
FACTORIAL = [f"{rows}_{size}_{parts}" for rows, size, parts in product(("plain", "padded"), ("70k", "ballast"), (1, 4, 16))]
SCORE_LINE = "dot += query"
STEPS = 576 // 4  # 16-byte loads of a row


@pytest.fixture(scope="module")
def bench():
    workspace(ROOT)
    return study("what_starved_it")


def first(name, shape=MAIN, on=H200):
    return STUDY.version(name).launches(shape, on)[0]


# ---------------------------------------------------------------- what a cell changes
def test_the_factorial_is_whole_and_stands_first():
    names = [version.name for version in STUDY.versions]
    assert sorted(names[:12]) == sorted(FACTORIAL) and len(set(names)) == len(names) == 36


def test_cells_without_ballast_take_what_the_ladder_took():
    verify = load_study(ROOT / "kernels" / "verify_attention")
    theirs = [verify.version(name).launches(MODULE.AT_16K, H200)[0] for name in ("head_tile", "kv_split")]
    assert [first(f"{rows}_70k_1").dynamic_shared for rows in ("plain", "padded")] == [t.dynamic_shared for t in theirs]
    assert first("padded_70k_4").arguments[5:9] == theirs[1].arguments[5:9]  # heads, q_len, prefix, scale


@pytest.mark.parametrize("name", FACTORIAL)
def test_ballast_changes_the_blocks_on_an_sm_and_not_the_kernel(name):
    occupancy = occupancy_of(first(name), H200)
    assert occupancy.blocks_per_sm == (1 if "ballast" in name else 3)
    assert first(name).kernel == first(name.replace("ballast", "70k")).kernel
    assert np.prod(first(name).grid) == 72 * int(name.rpartition("_")[2])


def test_ballast_leaves_l1_what_three_blocks_leave_it():
    """Both need the largest carve-out: one block of 227 KiB and its reserved KiB, or three of 70 KB, over the next smaller."""
    largest = H200.limits.shared_per_sm_bytes
    assert first("plain_ballast_1").dynamic_shared + 1024 == largest == 228 * 1024
    assert 196 * 1024 < 3 * (first("plain_70k_1").dynamic_shared + 1024) <= largest


def test_an_sm_120_has_one_block_without_ballast_and_no_room_for_it():
    assert {occupancy_of(first(name, on=RTX), RTX).blocks_per_sm for name in FACTORIAL if "70k" in name} == {1}
    with pytest.raises(NotApplicable, match=r"232,448 B .* allows 101,376 B: without ballast one block"):
        first("plain_ballast_4", on=RTX)


def test_pages_are_refused():
    with pytest.raises(NotApplicable, match="page=0"):
        first("plain_70k_1", STUDY.shape(page=64))


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(0, 3000), st.sampled_from([1, 2, 4, 16]), st.sampled_from([4, 8, 16]))
def test_parts_are_whole_tiles_that_hold_all_keys_and_none_is_empty(q_len, prefix, parts, keys):
    shape = STUDY.shape(q_len=q_len, prefix=prefix)
    got, keys_a_part = MODULE.Cell(0, parts, keys=keys).cut(shape)
    assert keys_a_part % keys == 0 and got <= parts
    assert (got - 1) * keys_a_part < shape.keys <= got * keys_a_part


@pytest.mark.parametrize("shape", STUDY.shapes, ids=str)
def test_every_cell_gets_the_parts_that_it_names(shape):
    for version in STUDY.versions:
        if shape in STUDY.shapes_of(version):
            join = version.launches(shape, H200)[1]
            assert join.arguments[-1].value == int(version.name.rpartition("_")[2])


def test_predictions_name_cells_that_differ_in_one_thing():
    for version in STUDY.versions:
        if version.prediction:
            ours, theirs = version.name.split("_"), STUDY.version(version.prediction.over).name.split("_")
            assert sum(a != b for a, b in zip(ours, theirs, strict=True)) == 1
    assert set(MODULE.SAID) <= {version.name for version in STUDY.versions}


# ---------------------------------------------------------------- run on the CPU
# The head tile's own cells, and each smaller tile padded or plain in turn: a kernel takes seconds to compile for the CPU, and
# the distance of rows is one constant of one source. The GPU checks all before it times them.
RUN = [f"{rows}_70k_{parts}" for rows in ("plain", "padded") for parts in (1, 4, 16)]
RUN += [f"{('padded', 'plain')[k % 2]}_{heads}x{keys}_16" for k, (heads, keys) in enumerate(MODULE.TILES)]


def test_what_is_run_has_every_tile_both_paddings_and_every_number_of_parts():
    cells = MODULE.FACTORIAL + MODULE.REDUCED
    run = [cell for cell in cells if cell.name in RUN]
    assert len(run) == len(RUN)
    for kept in (lambda cell: (cell.heads, cell.keys), lambda cell: cell.pad, lambda cell: cell.parts):
        assert set(map(kept, cells)) == set(map(kept, run))


@pytest.mark.parametrize("name", [*RUN, "padded_ballast_4", "plain_8x4_1"])
def test_cells_are_right_and_clean(bench, name):
    """Two tiles and a part of one, a block that lacks heads, hidden keys, two requests: against float64, with every check."""
    found = bench[name].check(bench.shape(batch=2, heads=9, q_len=2, prefix=33), H200, emulate=True, counting=True)
    assert found.passed, found


@cache
def counted(name):
    """A block of 8 heads and 64 keys, which every tile divides; (counts, those of the score's line). Checked and counted, as
    above, so that a kernel is compiled once."""
    workspace(ROOT)
    bench = study("what_starved_it")
    found = bench[name].check(bench.shape(heads=8, q_len=1, prefix=63), H200, emulate=True, counting=True).counts
    (line,) = (k for k, text in enumerate((ROOT / "kernels/what_starved_it/00_tile.cu").read_text().splitlines(), 1)
               if SCORE_LINE in text)
    return found, found.by_line[line]


@pytest.mark.parametrize(("name", "wavefronts"), [
    # A 16-byte load of 8 lanes is one wavefront at best. Unpadded, 8 lanes with 8 keys read 8 rows in the same banks: 8 a
    # quarter of the warp, 32. The query's: 2 rows, each for a half of the warp. Padded: 8 rows, 4 banks apart: 4 and 2.
    ("plain_70k_1", 32 + 2), ("padded_70k_1", 4 + 2),
    # 8 lanes of 4 keys and 2 heads: 4 rows of keys for each quarter, 2 rows of the query.
    ("plain_8x4_1", 4 * 4 + 4 * 2),
])
def test_wavefronts_of_the_score(name, wavefronts):
    _, score = counted(name)
    warp_steps = 8 * 64 // 32 * STEPS  # a thread a (head, key), four columns a step
    assert score.shared_load_requests == 2 * warp_steps
    assert score.shared_load_wavefronts == wavefronts * warp_steps


def test_padding_removes_what_the_score_loses_and_nothing_else():
    (plain, score), (padded, padded_score) = counted("plain_70k_1"), counted("padded_70k_1")
    lost = plain.shared_wavefronts - padded.shared_wavefronts
    assert lost == score.shared_load_wavefronts - padded_score.shared_load_wavefronts == 28 * 8 * 64 // 32 * STEPS
    assert plain.flops == padded.flops and plain.global_load_bytes == padded.global_load_bytes


@pytest.mark.parametrize("rows", ["plain", "padded"])
def test_ballast_changes_no_count_and_parts_no_conflict(rows):
    base, ballast, parts = (counted(f"{rows}_{cell}")[0] for cell in ("70k_1", "ballast_1", "70k_4"))
    assert ballast.shared_load_wavefronts == base.shared_load_wavefronts
    assert ballast.warp_instructions == base.warp_instructions and ballast.global_load_sectors == base.global_load_sectors
    assert parts.shared_conflicts == base.shared_conflicts
