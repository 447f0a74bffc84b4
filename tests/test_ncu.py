"""perflab.ncu: reading what ncu writes, and running a plan's launches under a fake ncu."""

from __future__ import annotations

import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import fake_tools
import pytest
from saxpy_workspace import ENVIRONMENT, make_study, planned

from perflab.counters import from_record
from perflab.errors import PerflabError
from perflab.launching import Target
from perflab.measuring import Outcome
from perflab.ncu import count_plan, find_ncu, in_words, metrics_of, parse_csv, read_file
from perflab.packing import pack
from perflab.planning import Plan
from perflab.records import Record

DATA = Path(__file__).parent / "data"
RAW = (DATA / "ncu_raw.csv").read_text()  # ncu's wording and units; made-up numbers
LONG = (DATA / "ncu_details.csv").read_text()
LONG_HEAD = LONG.partition("\n")[0] + "\n"
REAL_RAW, REAL_DETAILS, REAL_FAULT = (  # what ncu 2025.3.1 wrote on an H200; of the raw pages not all columns
    (DATA / f"ncu_h200_{page}.csv").read_text() for page in ("raw", "details", "fault"))


# ---------------------------------------------------------------- reading
def test_the_raw_page_units_and_what_is_not_available() -> None:
    first, second = parse_csv(RAW)
    assert first.entry == "saxpy(float *, int)" and first.capability == "9.0"
    assert (first.grid, first.block) == ("(64, 2, 1)", "(256, 1, 1)")
    assert first.metrics["dram__bytes_read.sum"] == (pytest.approx(1_048_580), "byte")
    assert first.metrics["smsp__inst_executed.sum"] == (1_234_567, "inst")
    assert first.metrics["sm__warps_active.avg.pct_of_peak_sustained_active"] == (62.5, "%")
    assert first.metrics["gpu__time_duration.sum"] == (pytest.approx(5.5e-6), "second")
    assert first.metrics["dram__bytes.sum.per_second"] == (pytest.approx(1.25e12), "byte/second")
    assert "lts__t_bytes.sum" not in first.metrics  # n/a is no 0
    assert second.entry == 'mul<(int)4>(float *, "x")' and second.metrics["dram__bytes_read.sum"][0] == 0
    assert not {"dram__bytes.sum.per_second", "sm__warps_active.avg.pct_of_peak_sustained_active"} & set(second.metrics)


def test_the_details_page_gives_the_same_type() -> None:
    first, second = parse_csv(LONG)
    assert first.metrics == {"smsp__inst_executed.sum": (1234, "inst")} and second.metrics["smsp__inst_executed.sum"][0] == 5
    assert first.capability == "12.1"


@pytest.mark.parametrize(("unit", "value", "base"), [
    ("msecond", 2e-3, "second"), ("ms", 2e-3, "second"), ("Mbyte", 2e6, "byte"), ("Ghz", 2e9, "hz"),
    ("byte/block", 2, "byte/block"), ("Kbyte/block", 2e3, "byte/block"), ("cycle/nsecond", 2e9, "cycle/second"),
    ("register/thread", 2, "register/thread"), ("", 2, ""), ("warp", 2, "warp"), ("Kbyte/us", 2e9, "byte/second"),
])
def test_units_are_kept_and_scaled_to_their_base(unit: str, value: float, base: str) -> None:
    text = LONG_HEAD + f'"0","7","p","h","k","1","7","(1, 1, 1)","(1, 1, 1)","0","9.0","s","a__b.sum","{unit}","2"\n'
    assert parse_csv(text)[0].metrics["a__b.sum"] == (pytest.approx(value), base)


@pytest.mark.parametrize(("text", "said"), [
    ("", "no line begins with"),
    ("a,b\n1,2\n", "no line begins with"),
    ("==ERROR== something\n", "no line begins with"),
    ('"ID","Name"\n"0","x"\n', "names no kernels"),
    (RAW.replace(',"1.25"\n', "\n"), "launch 0 .* has 17 cells under 18 columns: it is cut"),
])
def test_what_is_no_csv_of_ncu_is_said(text: str, said: str) -> None:
    with pytest.raises(PerflabError, match=said):
        parse_csv(text)


def test_what_an_h200_gave_on_both_pages() -> None:
    launches = parse_csv(REAL_RAW)
    assert [(one.entry, one.grid, one.block, one.capability) for one in launches] == [
        ("count", "(256, 1, 1)", "(256, 1, 1)", "9.0"), ("count", "(128, 1, 1)", "(512, 1, 1)", "9.0"),
        ("count", "(1, 1, 1)", "(256, 1, 1)", "9.0")]
    first = launches[0].metrics
    assert first["dram__bytes_read.sum"] == (1_053_184, "byte") and first["smsp__inst_executed.sum"] == (187_648, "inst")
    assert first["gpu__time_duration.sum"] == (pytest.approx(3.264e-6), "second")
    assert first["sm__cycles_elapsed.avg.per_second"] == (pytest.approx(1.953_830_585_26e9), "hz")
    assert first["launch__registers_per_thread"] == (18, "register/thread") and "launch__kernel_name" not in first
    assert [one.values["smsp__inst_executed.sum"] for one in parse_csv(REAL_DETAILS)] == [187_648, 187_008, 733]


def test_a_launch_that_failed_is_no_launch_that_was_counted(tmp_path: Path) -> None:
    (good,) = parse_csv(REAL_FAULT)
    assert good.entry == "good" and good.values["smsp__inst_executed.sum"] == 64
    assert in_words(REAL_FAULT, 9).startswith("the kernel failed under ncu, which then ends its process")
    file = tmp_path / "only_failed.csv"
    file.write_text("".join(line for line in REAL_FAULT.splitlines(True) if not line.startswith('"0"')))
    with pytest.raises(PerflabError, match="only_failed.csv holds no launch that ncu counted"):
        read_file(file)


def test_a_users_file_of_one_kernel(tmp_path: Path) -> None:
    file = tmp_path / "report.csv"
    file.write_text(RAW)
    counts = read_file(file, "saxpy")
    assert counts["warp_instructions"] == 1_234_567 and counts["carveout_bytes"] == pytest.approx(16_380)
    assert read_file(file)["warp_instructions"] == 1_234_568
    with pytest.raises(PerflabError, match='unknown kernel in that file "saxpi"'):
        read_file(file, "saxpi")
    with pytest.raises(PerflabError, match="is not there"):
        read_file(tmp_path / "none.csv")


# ---------------------------------------------------------------- a .ncu-rep
class Metric(SimpleNamespace):
    """As the module's IMetric: methods."""

    def value(self) -> object:
        return self.holds

    def unit(self) -> str:
        return self.named


class Action(dict):
    """As the module's IAction."""

    def metric_names(self) -> list[str]:
        return list(self)

    def name(self) -> str:
        return "saxpy"


def test_a_report_through_the_optional_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.ncu-rep"
    file.write_bytes(b"\0")
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    said = r"pip install ncu-report \(perflab's extra ncu\); or make a CSV of it: ncu --import .*x.ncu-rep --csv"
    with pytest.raises(PerflabError, match=said):
        read_file(file)
    metrics = {"dram__bytes_read.sum": (2048, "byte"), "launch__grid_dim_x": (8, ""), "launch__grid_dim_y": (1, ""),
               "device__attribute_compute_capability_major": (9, ""), "device__attribute_compute_capability_minor": (0, ""),
               "device__attribute_display_name": ("NVIDIA H200", ""), "lts__t_sector_hit_rate.pct": (float("nan"), "%")}
    action = Action({name: Metric(holds=value, named=unit) for name, (value, unit) in metrics.items()})
    module = ModuleType("ncu_report")
    module.load_report = lambda path: [[action, action]]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ncu_report", module)
    counts = read_file(file)
    assert counts["dram_read_bytes"] == 4096 and "l2_hit_rate" not in counts
    assert counts.launches[0].capability == "9.0" and counts.launches[0].grid == "(8, 1, 0)"


# ---------------------------------------------------------------- running
@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return planned(make_study(tmp_path_factory.mktemp("workspace")), "plain", "half", "die", "fault")[1]


@pytest.fixture
def target(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """The packed file, unpacked, on a machine with a fake GPU and fake tools."""
    assert plan.folder is not None
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, value in {**ENVIRONMENT, "PATH": fake_tools.install(folder)}.items():
        monkeypatch.setenv(name, value)
    zipfile.ZipFile(pack(plan, plan.folder, tmp_path / "p.pyz")).extractall(tmp_path / "there")
    return Target(tmp_path / "there" / "__main__.py")


DEVICE = {"name": "NVIDIA H200", "uuid": "GPU-fake", "capability": "9.0", "driver": "580.0", "cuda": "13.0",
          "power_limit_watts": 700.0, "packages": {}}


def counted(plan: Plan, target: Target, *versions: str, **more: object) -> tuple[Outcome, list[Record], list[str]]:
    records: list[Record] = []
    notes: list[str] = []
    chosen = [k for k, item in enumerate(plan.items) if item.version in versions]
    return count_plan(plan, chosen, target, DEVICE, records.append, notes.append, **more), records, notes  # type: ignore[arg-type]


def test_every_version_and_shape_becomes_a_record_with_provenance(plan: Plan, target: Target) -> None:
    outcome, records, notes = counted(plan, target, "plain", "half")
    assert (outcome.done, outcome.failed, outcome.left) == (4, (), 0)
    assert [(r.version, r.shape["n"]) for r in records] == [("plain", 4000), ("half", 4000), ("plain", 1000), ("half", 1000)]
    for record in records:
        assert record.kind == "counts" and record.identity in {item.identity for item in plan.items}
        assert record.provenance["clocks"]["sm_hz"] and record.provenance["nvrtc"] and record.utc
        assert record.payload["cache_control"] == "all" and record.payload["tool"] == "ncu 2025.3.1.0"
        assert record.payload["absent"] == ["dram__bytes_read.sum"]
    counts = from_record(records[1])
    assert counts["warp_instructions"] == 2000 and "dram_read_bytes" not in counts  # the second launch of its ncu; n/a
    assert counts["l2_bytes"] == 2000 and "l2_requests" not in counts and counts.launches[0].entry == "saxpy_half"
    assert any(note.startswith("counted half, n 4,000: 1 launch, DRAM 2,000 B") for note in notes)


def test_one_that_dies_costs_only_itself(plan: Plan, target: Target) -> None:
    outcome, records, _ = counted(plan, target, "plain", "die", "fault")
    assert [(r.version, r.shape["n"]) for r in records] == [("plain", 4000), ("plain", 1000)]
    assert len(outcome.failed) == 4
    assert any("fault, n 4,000: the kernel: a thread read or wrote outside its memory" in line for line in outcome.failed)
    assert any(line.startswith("die, n 1,000: ncu ") for line in outcome.failed)


def test_a_limit_leaves_the_rest(plan: Plan, target: Target) -> None:
    outcome, records, _ = counted(plan, target, "plain", budget_seconds=1.0)
    assert not records and outcome.left == 2 and "do not fit into the 1 s allowed" in str(outcome)


@pytest.mark.parametrize(("wrong", "said"), [
    ("permission", "only administrators.*Run as root.*SYS_ADMIN.*ERR_NVGPUCTRPERM"),
    ("old", "ncu 2020.1.0.0 is too old: 2022.1 or newer"),
])
def test_what_stops_every_item_is_an_error_in_words(
    plan: Plan, target: Target, monkeypatch: pytest.MonkeyPatch, wrong: str, said: str
) -> None:
    monkeypatch.setenv("PERFLAB_FAKE_TOOL", wrong)
    with pytest.raises(PerflabError, match=said):
        counted(plan, target, "plain")


def test_an_ncu_that_hangs_is_killed_with_its_target(plan: Plan, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFLAB_FAKE_TOOL", "hang")
    outcome, _, _ = counted(replace(plan, items=plan.items[:1]), target, "plain", item_limit_seconds=1.0)
    assert outcome.failed == ("plain, n 4,000: ncu was stopped after 1 s: fewer or smaller shapes, or a higher limit",)


def test_no_ncu_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("perflab.launching.FOLDERS", ())
    with pytest.raises(PerflabError, match="ncu is not on this machine: it comes with the CUDA toolkit"):
        find_ncu()


def test_only_metrics_that_this_ncu_knows_are_asked_for(target: Target) -> None:
    ncu = find_ncu()
    asked = metrics_of(ncu, "9.0")
    assert "smsp__inst_executed.sum" in asked and "launch__registers_per_thread" in asked
    assert "sm__maximum_warps_per_active_cycle_pct" in asked  # no query lists it
    assert "lts__t_requests.sum" not in asked
    assert len(metrics_of(replace(ncu, known=None), "9.0")) > len(asked)


def test_an_unknown_cache_control_is_refused(plan: Plan, target: Target) -> None:
    with pytest.raises(PerflabError, match='unknown cache control "some"'):
        counted(plan, target, "plain", cache_control="some")
