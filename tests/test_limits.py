"""What holds a version: the arithmetic of each row, their order, the verdict; and the list on recorded versions."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.counters import HardwareCounts, LaunchMetrics, hardware_counts
from perflab.errors import PerflabError
from perflab.gpus import gpu
from perflab.hardware import Cycles, cycles_of, of_grid
from perflab.limits import (
    IDLE,
    LAUNCH,
    WAITS,
    Limit,
    Limits,
    calculated_losses,
    fill,
    launch_loss,
    limits_table,
    measured_losses,
    ranked,
    unit_rows,
)
from perflab.occupancy_model import Occupancy, occupancy
from perflab.origins import Origin
from perflab.studies import NotApplicable
from perflab.units import DRAM, FP32, ISSUE, L1, SHARED, Amount, Unit
from perflab.workbench import study
from perflab.workspaces import workspace

ROOT = Path(__file__).parent.parent
HERE = Origin("measured", "a test")
CYCLES = {"sm__cycles_elapsed.max": 1000.0, "sm__cycles_active.avg": 500.0, "smsp__issue_active.sum": 20.0,
          "smsp__cycles_active.sum": 100.0}
L1_PERCENT = "l1tex__throughput.avg.pct_of_peak_sustained_active"
DRAM_PERCENT = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"


@pytest.fixture
def attention():
    workspace(ROOT)
    return study("verify_attention")


def hardware(*launches: dict[str, float]) -> HardwareCounts:
    made = [LaunchMetrics("k", {name: (value, "") for name, value in one.items()}, "(72, 1, 1)", "(256, 1, 1)", "9.0")
            for one in launches]
    return hardware_counts("study version", made, HERE)


def held(grid: int, block: int = 256, dynamic_shared: int = 70_000) -> Occupancy:
    found = occupancy("H200", block=block, registers=32, dynamic_shared=dynamic_shared, grid=grid)
    assert isinstance(found, Occupancy)
    return found


def row(what: str, seconds: float | None, **more: object) -> Limit:
    return Limit(what, seconds, "evidence", (HERE,), **more)  # type: ignore[arg-type]


def limits(*rows: Limit, seconds: float | None = 1.0) -> Limits:
    return ranked("v on H200", rows, seconds, [HERE], ["a note"])


# ---------------------------------------------------------------- the units
def test_a_unit_takes_amount_over_rate():
    units = {ISSUE: Unit(ISSUE, 100.0, "100 a second", Origin("calculated")), DRAM: Unit(DRAM, 8.0, "8 B/s", HERE)}
    amounts = {ISSUE: Amount(50, "50 instructions", 200), DRAM: Amount(4, "4 B", origin=Origin("calculated", "a formula")),
               FP32: Amount(1, "one"), SHARED: Amount(0, "none")}
    issue, dram = unit_rows(units, amounts, Origin("counted"))
    assert (issue.seconds, issue.most_seconds, issue.evidence) == (0.5, 2.0, "50 instructions; 100 a second")
    assert (issue.kinds, dram.kinds) == ("counted + calculated", "calculated + counted + measured")
    assert (dram.seconds, dram.most_seconds) == (0.5, None)


# ---------------------------------------------------------------- losses as ncu saw them
def test_losses_are_shares_of_ncus_cycles_taken_of_the_time():
    found = hardware({**CYCLES, L1_PERCENT: 40.0, STALL.format("barrier"): 3.0, STALL.format("selected"): 1.0,
                      STALL.format("wait"): 4.0, "sm__warps_active.sum": 16.0, "sm__cycles_active.sum": 2.0,
                      "sm__cycles_active.min": 0.0, "sm__cycles_active.max": 1000.0})
    idle, waits = measured_losses(found, [(None, held(72))], 2.0, None)  # type: ignore[list-item]
    assert (idle.what, idle.seconds, waits.what, waits.seconds) == (IDLE, 1.0, WAITS, pytest.approx(0.6))
    assert idle.evidence == "SMs had a block in 50.0 % of the cycles (0.0 % to 100.0 % by SM); 72 blocks on 132 SMs, 0.18 waves"
    assert waits.name == "waits, mostly wait" and idle.is_loss and waits.is_loss
    assert waits.evidence == ("a scheduler issued in 20.0 % of its cycles; 8.00 warps an SM, 24 fit; "
                              "of their time 50.0 % wait, 37.5 % barrier")


def test_without_a_timing_losses_are_cycles_by_the_clock():
    idle, waits = measured_losses(hardware(CYCLES), [(None, held(72))], None, 1e6)  # type: ignore[list-item]
    assert (idle.seconds, waits.seconds) == (500e-6, pytest.approx(400e-6))
    assert [one.seconds for one in measured_losses(hardware(CYCLES), [(None, held(72))], None, None)] == [None, None]  # type: ignore[list-item]


def test_each_launch_has_its_own_busiest_unit():
    found = hardware({**CYCLES, L1_PERCENT: 90.0}, {**CYCLES, DRAM_PERCENT: 45.0})
    assert [cycles_of(part) for part in found.parts] == [Cycles(1000, 500, 450), Cycles(1000, 500, 450)]
    each = [(None, held(72))] * 2
    assert [one.seconds for one in measured_losses(found, each, 2.0, None)] == [1.0, 0.1]  # type: ignore[arg-type]


def test_a_missing_counter_is_no_loss():
    without = {name: value for name, value in CYCLES.items() if "elapsed" not in name}
    assert list(measured_losses(hardware(without), [(None, held(72))], 1.0, None)) == []  # type: ignore[list-item]
    assert list(measured_losses(hardware(CYCLES, without), [(None, held(72))] * 2, 1.0, None)) == []  # type: ignore[arg-type]


def test_a_stale_record_may_have_more_launches_than_the_version():
    longer = {**CYCLES, "sm__cycles_elapsed.max": 3000.0}
    assert len(list(measured_losses(hardware(CYCLES, longer), [(None, held(72))], 1.0, None))) == 2  # type: ignore[list-item]


@given(st.floats(1, 1e9), st.floats(0, 1), st.floats(0, 1))
def test_busiest_idle_and_waiting_are_the_whole(elapsed, active, busiest):
    one = Cycles(elapsed, elapsed * active, elapsed * active * busiest)
    assert one.busiest + one.idle + one.waiting == pytest.approx(elapsed)


# ---------------------------------------------------------------- losses as calculated
@given(st.integers(1, 10**6))
def test_a_grid_fills_at_most_all_and_more_waves_more(grid):
    share = fill(held(grid))
    assert share is not None and 0 < share <= 1
    assert share >= 1 - 132 / grid and (share == 1) == (grid % 132 == 0)


def test_idle_by_the_grid_and_what_is_left_of_the_time():
    each, rows = [(None, held(66))], [row(L1, 0.3, most_seconds=0.4), row(LAUNCH, 0.05, is_loss=True)]
    idle, waits = calculated_losses(each, [7.0], rows, 1.0)  # type: ignore[arg-type]
    assert (idle.seconds, waits.seconds, waits.most_seconds) == (0.5, pytest.approx(0.05), pytest.approx(0.15))
    assert {one.origins[0].kind for one in (idle, waits)} == {"modelled"}
    assert "8 warps an SM by occupancy and grid, 64 fit" in waits.evidence
    idle, waits = calculated_losses(each, [0.3], rows, None)  # type: ignore[arg-type]
    assert (idle.seconds, waits.seconds) == (pytest.approx(0.3), None)  # half the SMs: what took 0.3 takes twice that


def test_launches_weigh_by_their_seconds():
    each = [(None, held(66)), (None, held(132))]
    assert [one.seconds for one in calculated_losses(each, [3.0, 1.0], [], 4.0)] == [1.5, 2.5]  # type: ignore[arg-type]


def test_what_a_grid_can_fill_of_the_occupancy():
    assert of_grid(held(72)) == 8 / 64 and of_grid(held(132 * 2)) == 16 / 64
    assert of_grid(held(10_000)) == held(10_000).fraction == 24 / 64


def test_launches_cost_what_empty_ones_do(attention):
    bench_time = attention["naive"].timing(attention.shape(), "H200")
    (one,) = launch_loss(1, (), bench_time)
    assert one.seconds == bench_time.timing.empty_launch_seconds and list(launch_loss(2, (), bench_time)) == []
    assert list(launch_loss(1, (), None)) == []


# ---------------------------------------------------------------- the order and the verdict
def test_the_longest_stands_first_and_what_has_no_seconds_last():
    found = limits(row("spills", None), row(L1, 0.2), row(IDLE, 0.5, is_loss=True), row(ISSUE, 0.25, most_seconds=3.0))
    assert [one.what for one in found.rows] == [IDLE, ISSUE, L1, "spills"]
    assert [one.share for one in found.rows] == [0.5, 0.25, 0.2, None]
    assert found.rows[1].most_seconds == 1.0  # no unit works longer than all of it takes
    assert found.table().rows[1][:4] == (ISSUE, "at least", "250 ms to 1.00 s", "25.0 % to 100.0 %")
    assert "a note" in str(found) and "measured (a test)" in str(found)


@pytest.mark.parametrize(("found", "words"), [
    (limits(row(L1, 0.8, mostly=SHARED), row(IDLE, 0.1)),
     "held by L1 data path, mostly shared memory: 80.0 % of the time is the least"),
    (limits(row(IDLE, 0.7, is_loss=True), row(L1, 0.2)), "held by idle SMs: 70.0 % of the time is lost so"),
    (limits(row(ISSUE, 1.2)), "issue slots is above its rate, at 120.0 %: more was counted"),
    (limits(row(ISSUE, 0.7), row(DRAM, 0.1, most_seconds=0.9)), "not excluded, as only a range is known of it: DRAM"),
    (limits(row(IDLE, 0.4, is_loss=True), row(L1, 0.3), row(FP32, 0.2), row(WAITS, 0.25, mostly="barrier", is_loss=True)),
     "no unit and no loss takes 60 % of the time: idle SMs (40.0 %), L1 data path (30.0 %), waits, mostly barrier (25.0 %)"),
    (limits(row(L1, 0.2), row(LAUNCH, 0.3, is_loss=True)), "launch overhead (30.0 %), L1 data path (20.0 %)"),
    (limits(row(L1, 0.2), row(WAITS, None, is_loss=True), seconds=None),
     "not timed; of the units L1 data path needs the longest, at least 200 ms; how long warps wait is not known"),
    (limits(row("spills", None)), "what holds it is not known, as nothing was counted"),
])
def test_the_verdict_says_what_the_list_says(found, words):
    assert words in found.verdict and found.verdict in str(found)


# ---------------------------------------------------------------- recorded versions
def test_recorded_versions_are_held_by_what_their_counters_say(attention):
    """naive: lanes a key apart, a line each; the head tiles: 72 blocks on 132 SMs, and conflicts until the rows are padded."""
    shape = attention.shape(heads=64, q_len=9, prefix=1024)
    naive, head, padded = (attention[name].limits(shape, "H200") for name in ("naive", "head_tile", "padded_rows"))
    assert naive.verdict.startswith("held by L1 data path, mostly global memory: ")
    assert naive.rows[0].share == pytest.approx(0.77, abs=0.05)
    assert head.rows[0].what == IDLE and head.rows[0].share == pytest.approx(60 / 132, abs=0.01)
    shares = {one.what: one for one in head.rows}
    assert shares[SHARED].mostly == "bank conflicts" and shares[WAITS].mostly == "long scoreboard"
    assert padded.rows[0].what == IDLE and not {one.what: one for one in padded.rows}[SHARED].mostly
    for found in (naive, head, padded):
        unit = next(one for one in found.rows if not one.is_loss)
        parts = [unit, *(one for one in found.rows if one.what in (IDLE, WAITS))]
        assert sum(one.share or 0 for one in parts) == pytest.approx(1, abs=0.05)  # two runs: ncu's cycles, and the time


def test_the_table_over_versions_is_the_same_in_one_row_each(attention):
    shape = attention.shape(heads=64, q_len=9, prefix=1024)
    table = attention.only("naive", "head_tile").limits(shape, "H200")
    assert [row[0] for row in table.rows] == ["naive", "head_tile"]
    head = attention["head_tile"].limits(shape, "H200")
    unit = next(one for one in head.rows if not one.is_loss)
    assert table.rows[1][2] == unit.name == "L1 data path, mostly shared memory" and table.rows[1][3] in str(head)
    gone = limits_table("t", [attention["naive"]], attention.shape(prefix=65536), gpu("H200"))
    assert gone.rows[0][1] == "n/a" and "at most 57,504 keys" in str(gone)


def test_what_cannot_run_and_what_is_no_product_are_errors(attention):
    with pytest.raises(NotApplicable, match="at most 57,504 keys"):
        attention["naive"].limits(attention.shape(prefix=65536), "H200")
    with pytest.raises(PerflabError, match='"sm_90" is an architecture.*H200'):
        attention["naive"].limits(attention.shape(), "sm_90")


def test_without_any_record_it_is_counted_and_calculated(attention):
    found = attention["head_tile"].limits(attention.shape(heads=8, q_len=2, prefix=30), "RTX PRO 6000", sample=1)
    assert found.seconds is None and found.verdict.startswith("not timed; of the units ")
    kinds = {kind for one in found.rows for kind in one.kinds.split(" + ")}
    assert kinds == {"counted", "calculated", "modelled", "published"}
    assert {one.what for one in found.rows} == {IDLE, WAITS, L1, SHARED, ISSUE, FP32, DRAM}
    assert "no rate of L2 is known on RTX PRO 6000" in str(found) and "2 blocks on 188 SMs" in str(found)


def test_a_timing_without_counters_is_held_by_what_must_move():
    workspace(ROOT)
    saxpy = study("saxpy")
    found = saxpy["float4"].limits(saxpy.shape(n=2**24), "H200", sample=4)
    assert found.verdict.startswith("held by DRAM: 9") and found.rows[0].kinds == "calculated + counted + measured"
