"""What units do in a second, and what is asked of them: hand-made counters and counts, and the L1 rule on recorded ones."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest

from perflab.ceilings import Ceiling
from perflab.counters import HardwareCounts, LaunchMetrics, hardware_counts
from perflab.emulator.counts import Counts
from perflab.gpus import from_device, gpu
from perflab.hardware import launched
from perflab.origins import Origin
from perflab.units import DRAM, FP32, ISSUE, L1, L2, SHARED, clock_of, counted_amounts, measured_amounts, units_of
from perflab.workbench import study
from perflab.workspaces import workspace

ROOT = Path(__file__).parent.parent
H200 = gpu("H200")
CLOCK = (2e9, Origin("measured", "a test"))
FADD, FMUL, FFMA = (f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in ("fadd", "fmul", "ffma"))
SHARED_METRICS = [f"smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum" for op in ("ld", "st", "atom")]
CONFLICTS = [f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum" for op in ("ld", "st")]


def hardware(*launches: dict[str, float]) -> HardwareCounts:
    made = [LaunchMetrics("k", {name: (value, "") for name, value in one.items()}, "(4, 1, 1)", "(64, 1, 1)", "9.0")
            for one in launches]
    return hardware_counts("study version", made, Origin("measured", "a test"))


def ceiling(name: str, value: float, unit: str, size_bytes: int = 2**30) -> Ceiling:
    return Ceiling(name, "burst", size_bytes, value, unit, "hot", 2e9, "H200", "2026-01-01")


# ---------------------------------------------------------------- rates
def test_without_ceilings_rates_are_the_clock_and_the_datasheet():
    units = units_of(H200, CLOCK, ())
    assert {name: unit.per_second for name, unit in units.items()} == {
        ISSUE: 4 * 132 * 2e9, SHARED: 132 * 2e9, L1: 132 * 2e9, FP32: 67e12 / 2, DRAM: 4.8e12}
    assert {name: unit.origin.kind for name, unit in units.items()} == {
        ISSUE: "calculated", SHARED: "calculated", L1: "calculated", FP32: "published", DRAM: "published"}
    assert units[ISSUE].words == "528 a clock at 2,000 MHz"


def test_measured_ceilings_come_first():
    found = [ceiling("float32 FMA", 60e12, "FLOP/s"), ceiling("DRAM read", 4e12, "B/s"), ceiling("L2 read", 9e12, "B/s")]
    units = units_of(H200, CLOCK, found)
    assert [(units[name].per_second, units[name].origin.kind) for name in (FP32, DRAM, L2)] == [
        (30e12, "measured"), (4e12, "measured"), (9e12, "measured")]


def test_what_is_not_known_is_no_unit():
    unlisted = from_device({"name": "NVIDIA Unlisted", "capability": "12.0", "sm_count": 10})
    assert units_of(unlisted, None, ()) == {} and clock_of(unlisted, None) is None
    assert clock_of(H200, None) == (1.98e9, Origin("published", "datasheet of the H200"))


# ---------------------------------------------------------------- amounts of hardware
def test_amounts_of_counters():
    one = {FADD: 32.0, FMUL: 64.0, FFMA: 320.0, "smsp__inst_executed.sum": 20.0, "dram__bytes.sum": 512.0,
           "lts__t_sectors_srcunit_tex.sum": 10.0, **dict(zip(SHARED_METRICS, (30.0, 10.0, 0.0), strict=True)),
           **dict(zip(CONFLICTS, (25.0, 5.0), strict=True))}
    amounts = measured_amounts(hardware(one))
    assert {name: amount.least for name, amount in amounts.items()} == {FP32: 416, ISSUE: 20, SHARED: 40, L2: 320, DRAM: 512}
    assert "at least 65.0 % of them FP32" in amounts[ISSUE].words and amounts[ISSUE].mostly == FP32
    assert "bank conflicts 75.0 % of them" in amounts[SHARED].words and amounts[SHARED].mostly == "bank conflicts"
    assert all(amount.most is None and not amount.is_estimate for amount in amounts.values())


def test_launches_add_and_a_counter_that_one_lacks_is_no_amount():
    percent = "l1tex__throughput.avg.pct_of_peak_sustained_active"
    busy = {percent: 50.0, "sm__cycles_active.avg": 100.0, "launch__sm_count": 10.0}
    both = measured_amounts(hardware({**busy, "dram__bytes.sum": 1.0}, {**busy, "sm__cycles_active.avg": 20.0}))
    assert set(both) == {L1} and both[L1].least == 0.5 * 100 * 10 + 0.5 * 20 * 10
    assert measured_amounts(hardware({FADD: 1.0, FMUL: 1.0})) == {}


def test_l1_is_one_data_path_of_shared_wavefronts_and_sectors():
    """ncu's L1 throughput of recorded versions whose lanes lie side by side is the sum that counts are turned into."""
    workspace(ROOT)
    attention = study("verify_attention")
    for name in ("head_tile", "padded_rows"):
        found = attention[name].counters(attention.shape(heads=64, q_len=9, prefix=1024), "H200")
        (part,) = launched(found)
        busy = part["l1_percent"] / 100 * part["sm_cycles_active_avg"] * part["sm_count"]
        assert part["shared_wavefronts_pipe"] + part["l1_sectors"] / 4 == pytest.approx(busy, rel=0.001)


# ---------------------------------------------------------------- amounts of PTX
def test_amounts_of_counts_are_ranges_where_ptx_does_not_say():
    counts = Counts(name="k", origin=Origin("counted"), warp_instructions=50, global_load_sectors=40, global_load_requests=4,
                    global_store_sectors=8, global_store_requests=2, shared_load_wavefronts=6, shared_load_ideal_wavefronts=2,
                    flops_by=MappingProxyType({("fma", "f32"): 640, ("add", "f32"): 32, ("add", "f16"): 1000}))
    amounts = counted_amounts(counts, 1000)
    assert {name: (amount.least, amount.most) for name, amount in amounts.items()} == {
        ISSUE: (11, 50), FP32: (352, None), SHARED: (6, None), L1: (6 + 12, 6 + 48), L2: (1000, 1536), DRAM: (1000, 1536)}
    assert amounts[SHARED].mostly == "bank conflicts" and amounts[SHARED].is_estimate and amounts[L1].is_estimate
    assert amounts[DRAM].origin.kind == "calculated"


def test_a_request_takes_at_least_one_wavefront():
    counts = Counts(name="k", origin=Origin("counted"), global_load_sectors=10, global_load_requests=10)
    assert counted_amounts(counts)[L1].least == 10 and not counted_amounts(counts)[L1].is_estimate
