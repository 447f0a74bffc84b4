"""perflab.counters: the table of counters, what metrics become, what is absent, and the comparison with the emulator."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from perflab.counters import (
    Formula,
    HardwareCounts,
    LaunchMetrics,
    agreement,
    base,
    counters,
    from_record,
    hardware_counts,
    metrics_for,
)
from perflab.emulator.amounts import NUMBERS
from perflab.emulator.counts import Counts
from perflab.errors import PerflabError
from perflab.origins import Origin
from perflab.records import Record

ORIGIN = Origin("measured", "a test")
GLOBAL_LOADS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
HITS = "l1tex__t_sectors_lookup_hit.sum", "l1tex__t_sectors.sum"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
FADD, FMUL, FFMA = (f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in ("fadd", "fmul", "ffma"))


def launch(entry: str = "k", **metrics: float) -> LaunchMetrics:
    return LaunchMetrics(entry, {name: (value, "") for name, value in metrics.items()}, "(4, 2, 1)", "(128, 1, 1)", "9.0")


def counted(*launches: dict[str, float]) -> HardwareCounts:
    return hardware_counts("study version", [launch(**metrics) for metrics in launches], ORIGIN)


CHIPS = {"ga100": "8.0", "gh100": "9.0", "gb100": "10.0", "gb202": "12.0"}
UNLISTED = {"sm__maximum_warps_per_active_cycle_pct"}  # ncu writes it, but no query lists it
UNITS = {"byte": {"bytes"}, "byte/block": {"bytes"}, "sector": {"sectors", "bytes"}, "%": {"percent", "fraction"},
         "cycle": {"cycles"}, "inst": {"instructions", "requests", "FLOP", "warps"}, "branches": {"instructions"},
         "block": {"blocks"}, "warp": {"warps"}, "request": {"requests"},
         "register/thread": {"registers"}, "SM": {"SMs"}}
"""ncu's unit of a metric -> ours of a counter made of it: an instruction is a request, or FLOPs, or a warp that waits."""


def listed() -> dict[str, tuple[str, set[str]]]:
    """metric -> (unit, chips), of what the table names and ncu 2025.3.1 --query-metrics listed; 'launch': its attributes."""
    with (Path(__file__).parent / "data" / "ncu_metrics.csv").open(newline="") as file:
        return {row["metric"]: (row["unit"], set(row["chips"].split())) for row in csv.DictReader(file)}


# ---------------------------------------------------------------- the table
def test_every_metric_is_one_that_ncu_lists_in_a_unit_that_fits() -> None:
    known = listed()
    for counter in counters():
        for formula in counter.formulas:
            for metric in formula.metrics:
                if base(metric) in UNLISTED:
                    continue
                assert base(metric) in known, f"{counter.field}: {metric}"
                unit, chips = known[base(metric)]
                unit = "%" if "pct" in metric else unit
                assert metric.startswith("launch__") == (chips == {"launch"}), metric
                if unit and not formula.below:  # a ratio has no unit of its own
                    assert counter.unit in UNITS[unit], f"{counter.field} in {counter.unit}: {metric} is in {unit}"


@pytest.mark.parametrize("chip", CHIPS)
def test_every_counter_of_a_chip_has_a_candidate_there_and_its_source_says_so(chip: str) -> None:
    here = {name for name, (_, chips) in listed().items() if chips & {chip, "launch"}} | UNLISTED
    for counter in counters():
        whole = [formula for formula in counter.formulas if here.issuperset(map(base, formula.metrics))]
        assert whole or not counter.on(CHIPS[chip]), counter.field
        if "--query-metrics," in counter.source:
            assert (chip in counter.source) == bool(whole), counter.field
    asked = metrics_for(CHIPS[chip], here)
    assert {base(metric) for metric in asked} <= here and len(asked) > 100


def test_every_row_is_whole_and_a_field_has_one_row_a_chip() -> None:
    for capability in ("8.0", "9.0", "10.0", "12.0"):
        names = [counter.field for counter in counters() if counter.on(capability)]
        assert len(names) == len(set(names)) > 100
    for counter in counters():
        assert counter.group and counter.unit and counter.source and counter.formulas, counter.field
        assert counter.tolerance is None or counter.emulated, counter.field
        assert all("__" in name for formula in counter.formulas for name in formula.metrics), counter.field


def test_what_the_emulator_counts_too_is_named_as_there() -> None:
    """A renamed field of Counts must not silently drop out of the comparison."""
    empty = Counts(name="", origin=ORIGIN)
    for counter in counters():
        if counter.emulated and not counter.emulated.startswith("flops_by."):
            assert hasattr(empty, counter.emulated), counter.field
    filled = {counter.field for counter in counters()} & set(NUMBERS)
    assert {"warp_instructions", "global_load_sectors", "shared_store_wavefronts", "local_load_bytes"} <= filled


def test_no_time_is_ever_asked_for() -> None:
    assert not [name for name in metrics_for("9.0") if "duration" in name or "per_second" in name]


@pytest.mark.parametrize(("capability", "has"), [("8.0", False), ("9.0", True), ("10.0", False), ("12.0", False)])
def test_wgmma_is_asked_for_on_hopper_only(capability: str, has: bool) -> None:
    assert any("hgmma" in name for name in metrics_for(capability)) == has


def test_pairs_of_floats_and_tcgen05_are_asked_for_on_datacenter_blackwell_only() -> None:
    for part in ("ffma2", "utchmma"):
        has = {chip: any(part in name for name in metrics_for(chip)) for chip in ("9.0", "10.0", "10.3", "12.0")}
        assert has == {"9.0": False, "10.0": True, "10.3": True, "12.0": False}, part


def test_of_the_candidates_the_first_that_ncu_knows_is_asked_for() -> None:
    every = {name.partition(".")[0] for name in metrics_for("9.0")}
    chosen = metrics_for("9.0", every)
    assert "dram__bytes.sum" in chosen and "dram__sectors_read.sum" not in chosen
    chosen = metrics_for("9.0", every - {"dram__bytes_read", "dram__bytes_op_read", "lts__t_sectors_lookup_hit"})
    assert "dram__sectors_read.sum" in chosen and "lts__t_sector_hit_rate.pct" in chosen
    assert set(metrics_for("9.0", every, ["DRAM"])) < set(chosen) | {"dram__bytes_read.sum"}
    assert metrics_for("9.0", set()) == ()


# ---------------------------------------------------------------- values
def test_formulas_weigh_add_and_divide() -> None:
    two = Formula(((2.0, "a.sum"), (-1.0, "b.sum")), ((1.0, "c.sum"),))
    assert two.value([{"a.sum": 5, "b.sum": 4, "c.sum": 3}]) == 2
    assert two.value([{"a.sum": 5, "b.sum": 4, "c.sum": 3}, {"a.sum": 1, "b.sum": 2, "c.sum": 1}]) == 6 / 4
    assert two.value([{"a.sum": 5, "b.sum": 4, "c.sum": 0}]) is None
    assert two.value([{"a.sum": 5, "b.sum": 4}]) is None and two.value([]) is None
    assert str(two) == "2*a.sum + -1*b.sum / c.sum"


def test_what_was_not_collected_is_absent_and_never_0() -> None:
    counts = counted({GLOBAL_LOADS: 12.0})
    assert counts["global_load_sectors"] == 12 and "dram_bytes" not in counts and counts.get("dram_bytes") is None
    with pytest.raises(PerflabError, match='study version: no "dram_bytes" was counted: not collected'):
        counts["dram_bytes"]
    with pytest.raises(PerflabError, match='unknown counter "dram_byte"'):
        counts["dram_byte"]
    with pytest.raises(PerflabError, match="compute capability 9.0 has none"):
        counts["flops.fma.f32x2"]


def test_a_zero_that_was_counted_is_a_zero() -> None:
    assert counted({"dram__bytes.sum": 0.0})["dram_bytes"] == 0


def test_a_second_candidate_stands_in_and_the_table_says_which() -> None:
    counts = counted({"dram__bytes_read.sum": 100.0, "dram__bytes_write.sum": 20.0})
    assert counts["dram_bytes"] == 120
    assert "dram__bytes_read.sum + dram__bytes_write.sum" in str(counts)


def test_launches_add_ratios_are_made_anew_and_what_does_not_add_is_in_the_parts() -> None:
    first = {GLOBAL_LOADS: 10.0, HITS[0]: 1.0, HITS[1]: 10.0, OCCUPANCY: 50.0, "launch__registers_per_thread": 32.0}
    second = {GLOBAL_LOADS: 5.0, HITS[0]: 9.0, HITS[1]: 10.0, OCCUPANCY: 25.0, "launch__registers_per_thread": 32.0}
    counts = counted(first, second)
    assert counts["global_load_sectors"] == 15 and counts["l1_hit_rate"] == 0.5 and counts["registers_per_thread"] == 32
    with pytest.raises(PerflabError, match="it differs by launch: look at parts"):
        counts["achieved_occupancy"]
    assert [part["achieved_occupancy"] for part in counts.parts] == [0.5, 0.25]
    assert counted(first).parts == ()


def test_a_metric_that_one_launch_lacks_is_absent_of_all() -> None:
    assert "global_load_sectors" not in counted({GLOBAL_LOADS: 10.0}, {HITS[0]: 1.0})


def test_a_share_of_nothing_is_no_number() -> None:
    with pytest.raises(PerflabError, match="nothing happened that it could be a share of"):
        counted({HITS[0]: 0.0, HITS[1]: 0.0})["l1_hit_rate"]


def test_no_launches_is_an_error() -> None:
    with pytest.raises(PerflabError, match="no launch was counted"):
        hardware_counts("x", [], ORIGIN)


def test_as_counts_of_the_emulators_type() -> None:
    both = {FMUL: 0.0, FFMA: 5.0}
    counts = counted({GLOBAL_LOADS: 10.0, FADD: 3.0, **both}, {GLOBAL_LOADS: 1.0, FADD: 1.0, **both})
    made = counts.counts()
    assert made.global_load_sectors == 11 and made.flops_by == {("fma", "f32"): 20, ("add", "f32"): 4} and made.flops == 24
    assert made.blocks == made.blocks_run == 16 and made.origin.kind == "measured" and len(made.parts) == 2


def test_the_table_groups_and_names_what_is_absent() -> None:
    text = str(counted({GLOBAL_LOADS: 1234.0, OCCUPANCY: 62.5, "dram__bytes.sum": 2.5e9}))
    for part in ("1,234 sectors", "62.5 %", "2.50 GB", "absent, not collected:", "measured (a test)"):
        assert part in text, part


def test_from_a_record() -> None:
    metrics = launch(**{"dram__bytes.sum": 64.0}).to_dict()
    payload = {"tool": "ncu 2025.3.1.0", "cache_control": "all", "launches": [metrics]}
    record = Record("s", "v", {"n": 1}, "counts", payload, {"name": "NVIDIA H200", "uuid": "u", "capability": "9.0"},
                    {"utc": "2026-11-30T10:00:00Z"})
    counts = from_record(Record.from_json(record.to_json()))
    assert counts["dram_bytes"] == 64
    assert str(counts.origin) == "measured (NVIDIA H200, 2026-11-30, ncu 2025.3.1.0, cache control all)"
    with pytest.raises(PerflabError, match="holds counts, not timing"):
        _ = record.timing
    json.dumps(metrics)


# ---------------------------------------------------------------- beside the emulator
def test_agreement_says_what_differs() -> None:
    measured = counted({GLOBAL_LOADS: 1000.0, "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 250.0, FADD: 100.0, FMUL: 0.0,
                        FFMA: 450.0, "smsp__inst_executed.sum": 90.0, "dram__bytes.sum": 1.0})
    emulated = Counts(name="study version", origin=Origin("counted", "PTX"), global_load_sectors=1000, global_load_requests=240,
                      warp_instructions=80, flops_by={("fma", "f32"): 900, ("add", "f32"): 99})
    table = agreement(emulated, measured)
    verdicts = {row[0]: (row[3], row[5]) for row in table.rows}
    assert verdicts["global_load_sectors"] == ("exact", "agrees")
    assert verdicts["global_load_requests"] == ("-4 %", "DIFFERS")
    assert verdicts["flop_f32"] == ("-0.1 %", "agrees")
    assert verdicts["warp_instructions"] == ("-11.1 %", "reported")
    assert "dram_bytes" not in verdicts and "flop_f64" not in verdicts
    assert table.title == f"study version: counted and measured, 1 of {len(table.rows)} differ by more than allowed"


def test_the_facts_are_read_from_the_package() -> None:
    text = (Path(__file__).parent.parent / "perflab" / "facts" / "counters.csv").read_text()
    assert "/work" not in text and "http" not in text
