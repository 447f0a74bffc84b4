"""Bandwidths by name: hand-made timings and counters, roofs by level, and what is missing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from perflab.bandwidths import LEVELS, Bandwidths, BandwidthTable, bandwidth_table
from perflab.counters import Counted, Formula, HardwareCounts, counters
from perflab.errors import PerflabError
from perflab.gpus import gpu
from perflab.measurement import Measurement
from perflab.origins import Origin
from perflab.roofline import BYTES, FLOPS, Roof
from perflab.studies import Work
from perflab.timing import Series, Timing
from perflab.workbench import study
from perflab.workspaces import workspace

MEASURED, PUBLISHED, CALCULATED = Origin("measured", "here"), Origin("published", "there"), Origin("calculated", "so")
ROOFS = (
    Roof("DRAM", 5e12, BYTES, PUBLISHED),
    Roof("DRAM read", 4e12, BYTES, MEASURED),
    Roof("DRAM copy", 3e12, BYTES, MEASURED),
    Roof("L2 read of 8 MiB", 8e12, BYTES, MEASURED),
    Roof("float32", 60e12, FLOPS, PUBLISHED),
    Roof("shared", 32e12, BYTES, CALCULATED),
)
ROWS = {counter.field: counter for counter in counters()}


@dataclass(frozen=True)
class Shape:
    n: int = 3


def timed(seconds: float, stale: tuple[str, ...] = ()) -> Measurement:
    series = Series((seconds,) * 20, "test")
    timing = Timing.from_dict({"cold": series.to_dict(), "hot": series.to_dict(), "empty_launch_seconds": 2e-6,
                               "empty_hot_seconds": 2e-6, "clocks_before": {}, "clocks_after": {}, "method": "m"})
    return Measurement("v", Shape(), gpu("H200"), timing, Work(1000, 2_000_000), 8_000_000, "2026-01-01", stale)


def counted(stale: tuple[str, ...] = (), **values: float) -> HardwareCounts:
    found = {name: Counted(value, ROWS[name], Formula(())) for name, value in values.items()}
    return HardwareCounts("v", MEASURED, found, {}, stale=stale)


def test_each_rate_is_its_bytes_over_the_cold_median_and_its_share_that_of_its_own_roof():
    one = Bandwidths("v", timed(1e-6), counted(l1_bytes=16e6, l2_from_sm_bytes=4e6, dram_bytes=1e6))
    assert [one.rate(level) for level in LEVELS] == pytest.approx([16e12, 4e12, 1e12])
    table = BandwidthTable("t", [one], ROOFS)
    assert [table.share(one, level) for level in LEVELS] == pytest.approx([16 / 32, 4 / 8, 1 / 4])
    row, = table.table().rows
    assert row == ("v", "1.00 us", "2,000 GB/s", "8,000 GB/s", "16,000 GB/s", "50.0 %", "4,000 GB/s", "50.0 %",
                   "1,000 GB/s", "25.0 %")
    assert "DRAM: of DRAM read 4,000 GB/s, measured (here)" in str(table)
    assert "L1: of shared 32,000 GB/s, calculated (so)" in str(table)


def test_a_published_roof_stands_in_for_a_measured_one_and_none_for_none():
    one = Bandwidths("v", timed(1e-6), counted(l2_from_sm_bytes=4e6, dram_bytes=1e6))
    table = BandwidthTable("t", [one], ROOFS[:1])
    assert table.share(one, "DRAM") == pytest.approx(1 / 5)
    assert table.roof("L2") is None and table.share(one, "L2") is None and table.share(one, "L1") is None
    assert table.table().rows[0][4:8] == ("-", "-", "4,000 GB/s", "-")


def test_without_counters_or_timing_nothing_is_invented():
    found = [Bandwidths("timed", timed(1e-6)), Bandwidths("not", "n/a", counted(dram_bytes=1e6))]
    table = bandwidth_table("t", found, Shape(), gpu("H200"), ROOFS)
    assert table.table().rows[0][4:] == ("-",) * 6 and table.table().rows[1] == ("not", "n/a", *["-"] * 8)
    assert "no counters are recorded here of timed" in str(table)
    with pytest.raises(PerflabError, match="not: nothing is measured on H200 at n 3"):
        bandwidth_table("t", found[1:], Shape(), gpu("H200"), ROOFS)


def test_stale_records_say_so():
    one = Bandwidths("v", timed(1e-6, ("the code changed",)), counted(("other launches",), dram_bytes=1.0))
    text = str(BandwidthTable("t", [replace(one)], ROOFS))
    assert "STALE: v at n 3: the code changed" in text and "STALE: v: other launches" in text


def test_shipped_records_give_every_level_of_every_version_that_was_counted():
    workspace(Path(__file__).parent.parent)
    bench = study("verify_attention")
    shape = bench.shape(prefix=1024)
    table = bench.only("naive", "head_tile").bandwidths(shape, "H200")
    naive, tiled = table.found
    assert all(0 < (table.share(one, level) or 0) < 1 for one in (naive, tiled) for level in LEVELS)
    assert naive.rate("L1") > naive.timed.asked_bytes_per_second > tiled.rate("L1")  # it touches 32 sectors for 32 floats
