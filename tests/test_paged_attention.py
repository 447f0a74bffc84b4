"""Cache rows in pages: the pool and its table, the versions that read them on the CPU; offsets past 32 bits."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perflab.check import Check, Comparison, check_outputs
from perflab.comparison import compare
from perflab.emulator.emulation import GRID_LIMITS, Settings, emulate_launches
from perflab.errors import PerflabError
from perflab.gpus import gpu
from perflab.origins import Origin
from perflab.records import Record
from perflab.rivals import load_beside
from perflab.roofline import BYTES, FLOPS, Roof
from perflab.studies import INPUT_SEED, NotApplicable, inputs_hash, load_study
from perflab.tables import Table
from perflab.timing import Series, Timing
from perflab.workbench import Workbench
from perflab.workspaces import Workspace

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
SIZES = {"heads": 8, "q_len": 9, "prefix": 61}  # rows beyond 64 take a second block; 70 keys fill no page, and two parts


@cache
def wanted(batch: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What register_banks makes of the same rows without pages, and float64."""
    shape = Shape(batch=batch, **SIZES)
    return ran(STUDY.version("register_banks"), shape)[1], STUDY.reference(shape, STUDY.make_inputs(shape))


@pytest.mark.parametrize("page, version", [
    *((16, version) for version in PAGED),
    *((page, version) for version in PAGED[2:] for page in REGISTER.PAGES if page != 16),  # the others' pages lie together
], ids=lambda value: getattr(value, "name", value))
def test_right_and_quiet_in_pages_and_no_bit_changes(version, page):
    """Two requests with trees and tables of their own: near float64, no fault, and the very bits of rows without pages."""
    shape = Shape(batch=1 if version.name == "register_banks_in_order" else 2, page=page, **SIZES)
    counts, got = ran(version, shape, machine=FAST if page == 16 else "numpy")  # each page's loop compiles for five seconds
    same, exact = wanted(shape.batch)
    assert not counts.faults and check_outputs(STUDY, version.name, shape, got, exact).passed
    assert all(np.array_equal(got[name], same[name]) for name in ("out", "lse"))


def test_a_page_of_any_size():
    shape = Shape(heads=1, q_len=3, prefix=12, page=7)  # a tile of keys, out of three pages
    inputs = STUDY.make_inputs(shape)
    want = STUDY.reference(shape, inputs)
    for version in PAGED[2:]:
        counts, got = ran(version, shape, inputs, "numpy")
        assert not counts.faults and check_outputs(STUDY, version.name, shape, got, want).passed


@pytest.mark.parametrize("version", PAGED[2:], ids=lambda version: version.name)
def test_offsets_are_64_bits(version):
    """The largest id, whose rows lie past 2^31 and 2^32 bytes, quads and floats: the emulator says which address was asked for.

    Were any step of it 32 bits, signed or not, it would begin elsewhere than for a small id.
    """
    shape = Shape(heads=1, q_len=1, prefix=0, page=1)
    inputs, begins = STUDY.make_inputs(shape), set()
    for page_id in (1000, 2**31 - 1):
        fault, = ran(version, shape, {**inputs, "page_table": np.array([[page_id]], np.int32)}, "numpy")[0].faults
        asked = re.search("load of 16 bytes at address 0x([0-9a-f]+)", str(fault))
        begins.add(int(asked[1], 16) - page_id * 2304)
    assert len(begins) == 1


def test_a_wrong_page_is_seen():
    """What the tests above would say of a table read one entry off: NaN, or another request's row."""
    shape = Shape(batch=2, heads=1, q_len=2, prefix=40, page=16)
    inputs = STUDY.make_inputs(shape)
    shifted = {**inputs, "page_table": np.roll(inputs["page_table"], 1)}
    _, got = ran(STUDY.version("register_banks_paged"), shape, shifted)
    assert not check_outputs(STUDY, "register_banks_paged", shape, got, STUDY.reference(shape, inputs)).passed


def test_rows_together_ask_for_the_stated_bytes():
    version, shape = STUDY.version("register_banks_together"), Shape(batch=2, heads=3, q_len=5, prefix=40, page=16)
    launches, buffers = version.launches(shape, H200), STUDY.buffers_of(version, shape, H200)
    counts, _ = emulate_launches("", launches, STUDY.make_inputs(shape), buffers, Settings(H200, machine=FAST, checking=False))
    assert counts.asked_bytes == version.asked_bytes(shape, H200)


# ---------------------------------------------------------------- grids
def test_a_grid_that_cannot_be_launched_is_refused_with_its_arithmetic():
    split, tile = (STUDY.version(name) for name in ("kv_split", "head_tile"))
    assert split.launches(Shape(batch=2047, prefix=65536), H200)[0].grid[2] == 2047 * 32
    with pytest.raises(NotApplicable, match="2,048 requests x 32 parts take 65,536 blocks along z; a grid has at most 65,535 "
                                            "there: q_len at most 65,535, batch at most 2,047 at as many parts"):
        split.launches(Shape(batch=2048, prefix=65536), H200)
    assert tile.launches(Shape(q_len=65535, prefix=0), H200)[0].grid[1] == 65535
    with pytest.raises(NotApplicable, match="65,536 nodes take 65,536 blocks along y"):
        tile.launches(Shape(q_len=65536, prefix=0), H200)


@pytest.mark.parametrize("name", ["split_by_device", "warp_per_key", "float4", "head_tiles_8", "register_tile", "naive",
                                  "head_tile", "padded_rows", "kv_split"])
def test_every_version_launches_as_many_requests_as_a_grid_takes(name):
    version = STUDY.version(name)
    assert max(version.launches(Shape(batch=65535, q_len=1, heads=1, prefix=0), H200)[0].grid[1:]) == 65535
    with pytest.raises(NotApplicable, match="65,536 requests.* take 65,536 blocks along z.*batch at most 65,535"):
        version.launches(Shape(batch=65536, q_len=1, heads=1, prefix=0), H200)


def test_parts_by_device_count_towards_the_grid():
    tiling = sys.modules[f"{MODULE.__name__}.parts"].Tiling(REGISTER.REGISTER_TILE.kernel, 8, 16)
    assert tiling.grid(Shape(batch=21845), 3) == (8, 9, 65535)
    with pytest.raises(NotApplicable, match="21,846 requests x 3 parts take 65,538 blocks along z.*batch at most 21,845 at as"):
        tiling.grid(Shape(batch=21846), 3)
    with pytest.raises(NotApplicable, match="70,000 parts take 70,000 blocks along y"):
        REGISTER.REGISTER_TILE.grid(Shape(), 70000)


def test_the_longest_grid_is_the_one_that_the_emulator_allows():
    assert sys.modules[f"{MODULE.__name__}.parts"].MOST_BLOCKS == GRID_LIMITS[1] == GRID_LIMITS[2]


# ---------------------------------------------------------------- what records say
def series(microseconds: float) -> Series:
    """30 samples within a thousandth of their median, in no order."""
    return Series(tuple(1e-6 * microseconds * (1 + 1e-3 * ((k * 37) % 31 - 15) / 15) for k in range(1, 31)), "")


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


Seconds = Callable[[str, Any], float]  # of a version, or a rival, at a shape


class HandMade:
    """A store whose timings are what a function says, of a unit of the GPU each; nothing is on disk."""

    def __init__(self, microseconds: Seconds, unit: Callable[[str, Any], str] = lambda name, shape: "one") -> None:
        self.microseconds, self.unit = microseconds, unit

    def find(self, study: str, version: str, shape: Any, gpu_name: str, kind: str = "timing", dtype: str = "float32",
             rival: str | None = None) -> Record | None:
        """The record that was asked for."""
        at, name = STUDY.make_shape(**(shape if isinstance(shape, dict) else asdict(shape))), rival or version
        if study != STUDY.name or kind != "timing":
            return None
        cold = series(self.microseconds(name, at))
        parts = (("gather_pages", 20e-6), ("register_banks", 600e-6)) if name.endswith("gathered") else ()
        timing = Timing(cold, series(self.microseconds(name, at) / 2), 1e-6, 1e-6, {}, {}, parts)
        return Record(study, version, asdict(at), kind, timing.to_dict(), {"name": gpu_name, "uuid": self.unit(name, at)},
                      {"utc": "2026-11-30T00:00:00"}, dtype, rival)


def bench(*made: Any) -> Workbench:
    """The study over hand-made records and ceilings."""
    found = Workbench(Workspace(ROOT), STUDY, store=HandMade(*made))
    origin = Origin("measured", "by hand")
    found.ceilings = lambda gpu=None, dtype=None: (Roof("FMA", 50e12, FLOPS, origin), Roof("DRAM read", 4e12, BYTES, origin),
                                                   Roof("DRAM copy", 4e12, BYTES, origin))
    return found


def rows(table: Table, *columns: str) -> list[tuple]:
    """Those columns of every row; of columns of one name the first."""
    places = [list(table.columns).index(column) for column in columns]
    return [tuple(row[k] for k in places) for row in table.rows]


WAYS = {"together": 600.0, "in_order": 612.0, "paged": 613.0, "gathered": 622.0}  # a lookup costs 2 %, scatter nothing


def test_scatter_is_told_from_the_lookup_and_a_tie_is_called_one():
    made = bench(lambda name, shape: WAYS[name.removeprefix("register_banks_")])
    for which, seconds in (("cold", "613 us"), ("hot", "307 us")):
        table = PRODUCTION.scatter(made, H200, which)
        assert len(table.rows) == 10
        for row in table.rows:
            assert row[5] == seconds and row[6] == "+2.00 %" and row[8] == "slower"
            assert row[9] == "+0.16 %" and row[11] == "cannot be told apart"


def test_a_copy_each_step_and_steps_to_pay_in_the_table():
    table = PRODUCTION.defragmenting(bench(lambda name, shape: WAYS[name.removeprefix("register_banks_")]), H200)
    columns = ("H", "prefix", "page", "copy", "copy rate", "of DRAM copy", "pages cost", "copy each step", "that is")
    rate = f"{2 * 16393 * 2304 / 20e-6 / 1e9:,.0f} GB/s"
    assert rows(table, *columns)[0] == (64, 16384, 1, "20.0 us", rate, "94.4 %", "+2.17 %", "+1.47 %", "slower")
    assert {row[0] for row in rows(table, "pays after steps")} == {"2 (2 to 3)"}
    cheap = bench(lambda name, shape: 600.0)
    assert {row[0] for row in rows(PRODUCTION.defragmenting(cheap, H200), "pays after steps")} == {
        "cannot be told; not before 5"}  # 20 us over 0.75 % of 600 us, and a tick


def test_a_rank_beside_all_heads_and_the_share_of_the_floor():
    made = bench(lambda name, shape: 600.0 if shape.heads == 64 else 596.0 if shape.prefix == 256 else 150.0)
    table = PRODUCTION.ranks(made, H200)
    assert rows(table, "64 over 8") == [("1.01x (tie)",), *[("4.00x",)] * 6]
    flops = 2 * 9 * 64 * (16384 + 9) * 1088
    assert rows(table, "prefix", "floor, H=64")[3] == (16384, f"{100 * flops / 50e12 / 600e-6:.1f} %")
    assert "at H=8 72 rows of nodes and heads lie in 2 blocks of 64: the others are padding" in table.notes
    assert not any("two units" in note for note in table.notes)


def test_requests_at_once_are_divided_by_their_number():
    made = bench(lambda name, shape: {1: 100.0, 4: 200.0, 16: 1595.0}[shape.batch])
    for row in rows(PRODUCTION.streams(made, H200), "steps a second, 4", "steps a second, 16"):
        assert row == ("2.00x", "1.00x (tie)")


def test_two_units_of_a_gpu_need_a_larger_difference():
    def tables(apart: float) -> list[Table]:
        made = (lambda name, shape: apart * 100.0 if name == "Triton verify" else 100.0,
                lambda name, shape: "another" if name == "Triton verify" else "one")
        return [PRODUCTION.triton(bench(*(made if units == 2 else made[:1])), H200) for units in (1, 2)]

    one, two = tables(1.04)
    assert {row[0] for row in rows(one, "Triton over ours")} == {"1.04x"} and "two units" not in str(one)
    assert {row[0] for row in rows(two, "Triton over ours")} == {"1.04x (tie)"} and "difference under 9 % is a tie" in str(two)
    assert {row[0] for row in rows(tables(1.2)[1], "Triton over ours")} == {"1.20x"}


def test_keys_are_flat_where_time_grows_with_them_alone():
    made = bench(lambda name, shape: shape.keys / 1024 * 35)
    table = PRODUCTION.keys(made, H200, 64, ["naive", "register_tile"])
    assert [tuple(row[1:]) for row in table.rows] == [("35.00",) * 3 + ("n/a",) * 3, ("35.00",) * 6]


def test_what_is_not_measured_is_an_error_and_what_does_not_apply_is_no_gap():
    nothing = bench(lambda name, shape: 1.0)
    nothing.store.find = lambda *a, **k: None
    with pytest.raises(PerflabError, match="no measurement of verify_attention/register_banks_together"):
        PRODUCTION.scatter(nothing, H200)
    with pytest.raises(PerflabError, match="perflab measure verify_attention --rivals"):
        PRODUCTION.triton(nothing, H200)
    assert {tuple(row[4:]) for row in PRODUCTION.parity(nothing, H200).rows} == {
        ("not checked",) * 4, ("not checked", "n/a", "not checked", "not checked")}


def test_parity_says_pass_and_fail():
    made = bench(lambda name, shape: 1.0)
    errors = (Comparison("out", 1e-7, 1e-5, 2e-7, "norm_relative", 1e-6, True),)
    made.store.find = lambda study, version, shape, *rest: Record(
        study, version, shape, "check", Check(version, errors).to_dict(), {"name": "H200"}, {"utc": "2026-11-30T00"})
    assert PRODUCTION.parity(made, H200).rows[0][4:] == ("PASS 2.00e-07",) * 4


def test_what_a_lookup_adds_is_counted():
    table = PRODUCTION.lookups(bench(lambda name, shape: 1.0), Shape(heads=1, q_len=2, prefix=20), H200)
    assert [row[0] for row in table.rows] == [1, 16, 64]
    for _, before, after, sass, more_sass, run, more_run, more, lost, more_lost in table.rows:
        assert before <= after <= 255 and sass < more_sass and run < more_run and int(lost) < int(more_lost)
        assert int(lost) == 9 * (374 - 308) + 16 * (154 - 141)  # see test_what_held_it
        assert more == f"{100 * (more_run / run - 1):+.2f} %"
