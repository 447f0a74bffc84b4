"""Cache rows in pages: the pool and its table, the versions that read them on the CPU; offsets past 32 bits."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perflab.check import check_outputs
from perflab.comparison import compare
from perflab.emulator.emulation import Settings, emulate_launches
from perflab.gpus import gpu
from perflab.rivals import load_beside
from perflab.studies import INPUT_SEED, NotApplicable, inputs_hash, load_study
from perflab.timing import Series

ROOT = Path(__file__).parent.parent
STUDY = load_study(ROOT / "kernels" / "verify_attention")
MODULE = sys.modules[STUDY.shape.__module__.rpartition(".")[0]]
REGISTER = sys.modules[f"{MODULE.__name__}.register_tile"]
PROBLEM = sys.modules[STUDY.shape.__module__]
PRODUCTION = load_beside(ROOT / "kernels" / "verify_attention" / "production.py")
Shape = STUDY.shape
H200 = gpu("H200")
FAST = "vector" if importlib.util.find_spec("llvmlite") else "numpy"
PAGED = [version for version in STUDY.versions if version.shapes == MODULE.IN_PAGES]
OTHERS = [version for version in STUDY.versions if version not in PAGED]


def ran(version: Any, shape: Any, inputs: dict[str, np.ndarray] | None = None, machine: str = FAST) -> tuple[Any, Any]:
    """(counts, outputs) of a version, run on the CPU."""
    launches, buffers = version.launches(shape, H200), STUDY.buffers_of(version, shape, H200)
    inputs = STUDY.make_inputs(shape) if inputs is None else inputs
    return emulate_launches(version.name, launches, inputs, buffers, Settings(H200, machine=machine, counting=False))


def right(version: Any, shape: Any, machine: str = FAST) -> bool:
    """Within the study's tolerances of float64, and without a fault."""
    inputs = STUDY.make_inputs(shape)
    counts, got = ran(version, shape, inputs, machine)
    return check_outputs(STUDY, version.name, shape, got, STUDY.reference(shape, inputs)).passed and not counts.faults


# ---------------------------------------------------------------- the pool
@pytest.mark.parametrize("page", [1, 3, 16, 64])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_pool_holds_the_rows_of_page_0_and_nan_elsewhere(page, batch):
    shape = Shape(batch=batch, heads=1, q_len=3, prefix=29, page=page)
    found, plain = STUDY.make_inputs(shape), STUDY.make_inputs(Shape(batch=batch, heads=1, q_len=3, prefix=29))
    pool, table = found["kv"], found["page_table"]
    pages = -(-32 // page)
    assert table.shape == (batch, pages) and table.dtype == np.int32 and pool.shape == (16 * batch * pages, page, 576)
    assert len(set(table.ravel())) == table.size and 0 <= table.min() <= table.max() < len(pool)
    for b in range(batch):
        for key in range(32):  # row by row, the other way round from how the pool is filled
            assert np.array_equal(pool[table[b, key // page], key % page], plain["kv"][b, key])
    assert np.isfinite(pool[..., 0]).sum() == batch * 32 and np.isnan(pool).sum() == pool.size - batch * 32 * 576
    assert np.array_equal(found["page_order"], [range(pages)])
    assert np.array_equal(found["rows"], plain["kv"]) and np.array_equal(found["q"], plain["q"])


def test_pages_are_shuffled_and_the_same_everywhere():
    table = PROBLEM.PageTable(1, 6).make(INPUT_SEED)
    assert table.tolist() == [[65, 85, 3, 89, 91, 40]]
    assert not np.array_equal(np.diff(table[0]), np.ones(5))


def test_the_reference_does_not_care_where_rows_lie():
    sizes = {"batch": 2, "heads": 2, "q_len": 5, "prefix": 21}
    plain, paged = Shape(**sizes), Shape(**sizes, page=16)
    want, got = (STUDY.reference(shape, STUDY.make_inputs(shape)) for shape in (plain, paged))
    assert np.array_equal(want["out"], got["out"]) and np.array_equal(want["lse"], got["lse"])


def test_identity_tells_pages_apart_without_making_gigabytes():
    shapes = [Shape(), *(Shape(page=page) for page in REGISTER.PAGES), Shape(prefix=65536, page=1), Shape(heads=8, page=1)]
    assert len({inputs_hash(STUDY, shape) for shape in shapes}) == len(shapes)


def test_work_counts_the_table():
    assert STUDY.work(Shape(page=16)).bytes - STUDY.work(Shape()).bytes == 4 * -(-16393 // 16)
    assert STUDY.work(Shape(page=16)).flops == STUDY.work(Shape()).flops


def test_who_reads_what():
    for version in OTHERS:
        with pytest.raises(NotApplicable, match="page=0, or a paged version"):
            version.launches(Shape(page=16), H200)
    for version in PAGED:
        with pytest.raises(NotApplicable, match="page=1, or a version without pages"):
            version.launches(Shape(), H200)
    with pytest.raises(NotApplicable, match="at least 1 row"):
        Shape(page=-1)


# ---------------------------------------------------------------- the versions
@pytest.mark.parametrize("page", REGISTER.PAGES)
@pytest.mark.parametrize("version", PAGED, ids=lambda version: version.name)
def test_right_and_quiet_in_pages(version, page):
    """Two requests with trees of their own, a prefix that fills no page; rows beyond 64 take a second block."""
    batch = 1 if version.name == "register_tile_in_order" else 2
    assert right(version, Shape(batch=batch, heads=8, q_len=9, prefix=101, page=page))


def test_a_page_of_any_size():
    for version in PAGED[2:]:
        assert right(version, Shape(heads=3, q_len=5, prefix=30, page=7), "numpy")


@pytest.mark.parametrize("page", [1, 16])
def test_pages_change_no_bit(page):
    sizes = {"heads": 8, "q_len": 9, "prefix": 101}
    _, want = ran(STUDY.version("register_tile"), Shape(**sizes))
    for version in PAGED:
        _, got = ran(version, Shape(**sizes, page=page))
        assert all(np.array_equal(got[name], want[name]) for name in ("out", "lse"))


@pytest.mark.parametrize("version", PAGED[2:], ids=lambda version: version.name)
def test_offsets_are_64_bits(version):
    """Rows 2^31 bytes and 2^31 floats into a pool, and the largest id: the emulator says which address was asked for."""
    shape = Shape(heads=1, q_len=1, prefix=0, page=1)
    begins = set()
    for page_id in (1000, 2**31 // 2304 + 1, 2**31 // 576 + 1, 2**31 - 1):
        fault, = ran(version, shape, {**STUDY.make_inputs(shape), "page_table": np.array([[page_id]], np.int32)})[0].faults
        asked = re.search("load of 16 bytes at address 0x([0-9a-f]+)", str(fault))
        begins.add(int(asked[1], 16) - page_id * 2304)
    assert len(begins) == 1


def test_a_wrong_page_is_seen():
    """What the tests above would say of a table read one entry off: NaN, or another request's row."""
    shape = Shape(batch=2, heads=1, q_len=2, prefix=40, page=16)
    inputs = STUDY.make_inputs(shape)
    shifted = {**inputs, "page_table": np.roll(inputs["page_table"], 1)}
    _, got = ran(STUDY.version("register_tile_paged"), shape, shifted)
    assert not check_outputs(STUDY, "register_tile_paged", shape, got, STUDY.reference(shape, inputs)).passed


def test_rows_together_ask_for_the_stated_bytes():
    version, shape = STUDY.version("register_tile_together"), Shape(batch=2, heads=3, q_len=5, prefix=40, page=16)
    launches, buffers = version.launches(shape, H200), STUDY.buffers_of(version, shape, H200)
    counts, _ = emulate_launches("", launches, STUDY.make_inputs(shape), buffers, Settings(H200, machine=FAST, checking=False))
    assert counts.asked_bytes == version.asked_bytes(shape, H200)


# ---------------------------------------------------------------- what records say
def series(microseconds: float, spread: float = 1e-3) -> Series:
    """60 samples around a median, in no order."""
    return Series(tuple(1e-6 * microseconds * (1 + spread * ((k * 37) % 61 - 30) / 30) for k in range(60)), "")


def test_a_copy_pays_once_it_has_saved_its_time():
    steps = PRODUCTION.steps_to_pay
    assert (steps(20e-6, 6e-6), steps(20e-6, 30e-6), steps(20e-6, 0.0), steps(20e-6, -1e-6)) == (4, 1, None, None)
    for copy, saved in ((20e-6, 6e-6), (7e-6, 3.1e-6)):
        n = steps(copy, saved)
        assert copy < n * saved and copy >= (n - 1) * saved


SAID = {630: "1 (1 to 1)", 612: "2 (2 to 3)", 603: "cannot be told; not before 3", 570: "never"}


@pytest.mark.parametrize("paged", SAID)
def test_pays_after_in_words(paged):
    cost = compare(series(600), series(paged), paired=True)
    assert PRODUCTION.pays_after(20e-6, 600e-6, cost) == SAID[paged]
