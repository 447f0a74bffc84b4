"""The study's own facts: trees, masks, reference, work, launches, inputs to the last bit."""

import hashlib
import importlib
import json
import sys
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest

from perflab.gpus import gpu
from perflab.studies import NotApplicable, load_study

ROOT = Path(__file__).parent.parent
STUDY = load_study(ROOT / "kernels" / "verify_attention")
PROBLEM = sys.modules[STUDY.shape.__module__]
MODULE = sys.modules[STUDY.shape.__module__.rpartition(".")[0]]
SWEEP = importlib.import_module(f"{MODULE.__name__}.sweep")
Shape = STUDY.shape
CHECKSUMS = json.loads((ROOT / "data" / "references" / "verify_attention.json").read_text())


@pytest.mark.parametrize("tree", sorted(PROBLEM.TREES))
@pytest.mark.parametrize("nodes", [1, 2, 9, 33, 65])
def test_masks_are_ancestors_or_self(tree, nodes):
    parents = PROBLEM.TREES[tree](nodes, 1)
    want = np.zeros((nodes, nodes), np.uint8)
    for node in range(nodes):  # walk to the root, the other way round from the study's recurrence
        walker = node
        want[node, walker] = 1
        while walker:
            assert parents[walker] < walker
            walker = parents[walker]
            want[node, walker] = 1
    assert np.array_equal(PROBLEM.visibility(parents), want)


def test_only_a_chain_fills_the_triangle():
    full = np.tril(np.ones((9, 9), np.uint8))
    filled = {tree: np.array_equal(PROBLEM.visibility(make(9, 0)), full) for tree, make in PROBLEM.TREES.items()}
    assert filled == {"chain": True, "star": False, "binary": False, "random": False}


def test_each_request_has_its_own_tree():
    first, second = PROBLEM.masks(Shape(batch=2, q_len=33))
    assert not np.array_equal(first, second)


def test_reference_against_scalar_loops():
    shape = Shape(batch=2, q_len=3, heads=2, prefix=4, tree="star")
    given = STUDY.make_inputs(shape)
    want = STUDY.reference(shape, given)
    for b in range(2):
        for i in range(3):
            for h in range(2):
                seen = [j for j in range(shape.keys) if j < 4 or given["visible"][b, i, j - 4]]
                keys = given["kv"][b, seen].astype(np.float64)
                weight = np.exp(keys @ given["q"][b, i, h].astype(np.float64) * PROBLEM.SCALE)
                assert np.allclose(want["out"][b, i, h], weight @ keys[:, :512] / weight.sum(), rtol=1e-12)
                assert np.isclose(want["lse"][b, i, h], np.log(weight.sum()), rtol=1e-12)


def test_reference_rows_do_not_depend_on_their_chunk():
    shape = Shape(q_len=5, heads=64, prefix=3)  # 320 rows: two chunks
    given = STUDY.make_inputs(shape)
    small = Shape(q_len=5, heads=1, prefix=3)
    one = STUDY.reference(small, {**given, "q": given["q"][:, :, 63:]})
    assert np.allclose(STUDY.reference(shape, given)["out"][:, :, 63:], one["out"], rtol=1e-12)


def test_work_of_the_write_ups_shape():
    """research: 20.55 GFLOP and 40.28 MB at H=64, q_len=9, 16k, float32; there, too, the mask is negligible."""
    work = STUDY.work(Shape())
    assert work.flops == 2 * 576 * 16393 * 1088
    assert work.bytes == pytest.approx(40.28e6, rel=1e-3)


def test_naive_asks_15_times_what_head_tile_asks():
    naive, head_tile = (STUDY.version(name).asked_bytes(Shape(), gpu("H200")) for name in ("naive", "head_tile"))
    assert naive / head_tile == pytest.approx(15.1, abs=0.05)
    assert naive == pytest.approx(41.1e9, rel=0.01)


@pytest.mark.parametrize(("name", "fits"), [("H200 SXM", 57_504), ("RTX PRO 6000", 24_736)])
def test_naive_says_how_many_keys_fit(name, fits):
    version = STUDY.version("naive")
    launch, = version.launches(Shape(prefix=fits - 9), gpu(name))
    assert launch.grid == (64, 9, 1) and launch.dynamic_shared == fits * 4
    with pytest.raises(NotApplicable, match=f"at most {fits:,} keys"):
        version.launches(Shape(prefix=fits - 8), gpu(name))


def test_static_shared_memory_is_what_the_compiler_says():
    assert MODULE.NAIVE.resources("sm_90").static_shared_bytes == MODULE.NAIVE_STATIC
    assert MODULE.HEAD_TILE.resources("sm_90").static_shared_bytes == 0


def test_head_tile_launches_72_blocks_of_about_70_kb():
    launch, = STUDY.version("head_tile").launches(Shape(), gpu("H200"))
    assert np.prod(launch.grid) == 72 and launch.dynamic_shared == 72_288
    assert STUDY.version("head_tile").launches(Shape(heads=9), gpu("H200"))[0].grid == (2, 9, 1)


@pytest.mark.parametrize("bad", [{"tree": "oak"}, {"heads": 0}, {"prefix": -1}, {"page": -1}])
def test_impossible_shapes_are_refused(bad):
    with pytest.raises(NotApplicable):
        Shape(**bad)


@pytest.mark.parametrize("label", sorted(CHECKSUMS))
def test_inputs_are_the_recorded_ones_to_the_last_bit(label):
    arrays = STUDY.make_inputs(STUDY.bundles[label])
    assert {name: hashlib.sha256(a.tobytes()).hexdigest() for name, a in arrays.items()} == CHECKSUMS[label]


def test_every_bundle_has_its_checksums():
    assert set(CHECKSUMS) == set(STUDY.bundles)


# ---------------------------------------------------------------- shapes that are checked and not timed
HEADS, NODES, REQUESTS = (1, 3, 8, 16, 63, 64, 128), (1, 9, 17, 32, 33, 64, 65), (1, 2, 5)
PREFIXES = (0, 1, 7, 8, 9, 15, 16, 17, 2047, 2048, 2049, 16384, 65536)
KINDS = ("chain", "star", "binary", "random", "one node")
TOGETHER = (HEADS, NODES, PREFIXES, REQUESTS, KINDS, (0,))
IN_PAGES = ((1, 8, 63, 64), (1, 9, 33, 65), (0, 1, 15, 16, 17, 63, 64, 65, 2049), REQUESTS, KINDS, (1, 16, 64))


def pairs_of(rows):
    return {pair for row in rows for pair in combinations(enumerate(row), 2)}


@pytest.mark.parametrize(("values", "least", "most"), [(TOGETHER, 91, 95), (IN_PAGES, 45, 50)])
def test_the_sweep_holds_every_pair_of_values(values, least, most):
    """least: of the two sizes with the most values, each pair needs a shape of its own."""
    every = [row for row in product(*values) if (row[1] == 1) == (row[4] == "one node")]
    shapes = [shape for shape in STUDY.checks() if shape.page in values[5]]
    stand_for = [(one.heads, one.q_len, one.prefix, one.batch, "one node" if one.q_len == 1 else one.tree, one.page)
                 for one in shapes]
    assert pairs_of(stand_for) == pairs_of(every)
    assert max(len(a) * len(b) for a, b in combinations(values, 2)) == least <= len(shapes) <= most


def test_the_sweep_is_cheap_goes_from_the_cheapest_up_and_is_the_same_each_time():
    shapes = STUDY.checks()
    costs = [SWEEP.cost_flops(shape) for shape in shapes]
    first = sum(shape.page == 0 for shape in shapes)
    assert costs[:first] == sorted(costs[:first]) and costs[first:] == sorted(costs[first:]) and max(costs) <= SWEEP.MOST_FLOPS
    assert sum(STUDY.work(shape).flops for shape in shapes) < 1e12  # all combinations: over 400 times as many
    assert shapes[:first] == SWEEP.pairwise(SWEEP.candidates(paged=False)) and len(set(shapes)) == len(shapes)
    assert not set(shapes) & set(STUDY.all_shapes)


def test_a_cover_of_pairs_by_hand():
    shapes = [Shape(batch=batch, q_len=9, heads=heads, prefix=0) for batch, heads in product((1, 2), (1, 2, 3))]
    assert len(SWEEP.pairwise(shapes)) == 6 and SWEEP.pairwise(shapes[:1]) == tuple(shapes[:1])
    three = [Shape(batch=b, q_len=9, heads=h, prefix=p) for b, h, p in product((1, 2), (1, 2), (0, 1))]
    assert 4 <= len(SWEEP.pairwise(three)) <= 5  # of 8: greedy need not find the least
