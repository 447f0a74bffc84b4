"""A study's versions on the CPU: counts by hand, checks that fail for what values do not show, results kept and made anew."""

import shutil
from pathlib import Path

import pytest

from perflab import emulated
from perflab.studies import NotApplicable
from perflab.workbench import study
from perflab.workspaces import workspace

ROOT = Path(__file__).parent.parent


@pytest.fixture
def attention():
    workspace(ROOT)
    return study("verify_attention")


@pytest.fixture
def saxpy(tmp_path, monkeypatch):
    """The folder of the study saxpy, in a workspace and with a cache of its own."""
    shutil.copytree(ROOT / "kernels" / "saxpy", tmp_path / "kernels" / "saxpy")
    monkeypatch.setenv("PERFLAB_CACHE", str(tmp_path / "cache"))
    workspace(tmp_path)
    yield tmp_path / "kernels" / "saxpy"
    workspace(ROOT)


def test_counts_of_both_versions_by_hand(saxpy):
    shape = study("saxpy").shape(n=4096)
    scalar, float4 = (study("saxpy")[name].count(shape, "H200") for name in ("scalar", "float4"))
    for counts in (scalar, float4):
        assert (counts.asked_bytes, counts.sector_bytes, counts.unique_bytes) == (12 * 4096,) * 3
        assert counts.flops == 2 * 4096 and counts.intensities == dict.fromkeys(("asked", "sectors", "unique"), 1 / 6)
    assert (scalar.global_load_requests, float4.global_load_requests) == (256, 64)
    assert scalar.asked_bytes == study("saxpy")["scalar"].version.asked_bytes(shape, "H200")


def test_counts_are_kept_until_something_changes(saxpy, monkeypatch):
    shape, first = study("saxpy").shape(n=1001), study("saxpy")["scalar"].count(study("saxpy").shape(n=1001))
    with monkeypatch.context() as patch:
        patch.setattr(emulated, "emulate_launches", lambda *a: pytest.fail("it was kept"))
        assert study("saxpy")["scalar"].count(shape) == first and str(study("saxpy")["scalar"].count(shape)) == str(first)
        with pytest.raises(pytest.fail.Exception):
            study("saxpy")["scalar"].count(study("saxpy").shape(n=1002))
    (saxpy / "00_scalar.cu").write_text((saxpy / "00_scalar.cu").read_text().replace("a * x[i]", "a * x[i] * x[i]"))
    assert study("saxpy")["scalar"].count(shape).flops == 3 * 1001
    for file in (saxpy.parent.parent / "cache" / "emulated").glob("*.json"):
        file.write_text("{")
    assert study("saxpy")["scalar"].count(shape).flops == 3 * 1001


def test_check_runs_on_the_cpu_and_passes(saxpy):
    bench = study("saxpy")
    found = bench["float4"].check(bench.study.bundles["quads"])
    assert found.passed and not found.faults and found.line.startswith("PASS  [float4] quads  n=4096  max_abs=")
    assert "origin: counted (emulated: PTX for sm_90" in str(found) and "no fault" in str(found)
    assert bench["float4"].check(bench.study.bundles["quads"], schedule="reversed").passed
    with pytest.raises(NotApplicable, match="no multiple of 4"):
        bench["float4"].check(bench.shape(n=1001))


def test_check_fails_for_wrong_values_and_for_faults_that_values_do_not_show(saxpy):
    kernel = saxpy / "00_scalar.cu"
    right = kernel.read_text()
    kernel.write_text(right.replace("a * x[i]", "a * y[i]"))
    wrong = study("saxpy")["scalar"].check(study("saxpy").shape(n=1001))
    assert not wrong.passed and not wrong.faults and "FAIL" in str(wrong) and "max_abs" in str(wrong)
    kernel.write_text(right.replace("if (i < n)", "if (i < n + 3)"))
    beyond = study("saxpy")["scalar"].check(study("saxpy").shape(n=1001))
    assert beyond.check.passed and not beyond.passed and beyond.line.startswith("FAIL  [scalar] n 1,001")
    assert {fault.kind for fault in beyond.faults} == {"out of bounds"} and "fault: 00_scalar.cu:8" in str(beyond)
    kernel.write_text(right.replace("if (i < n)", "if (i < n - 3)"))
    short = study("saxpy")["scalar"].check(study("saxpy").shape(n=1001))
    assert [fault.kind for fault in short.faults] == ["unwritten output"] and "never written" in str(short)


def test_a_new_reference_makes_a_new_check(saxpy):
    assert study("saxpy")["scalar"].check(study("saxpy").shape(n=5)).passed
    declared = saxpy / "study.py"
    declared.write_text(declared.read_text().replace('{"z": A * given', '{"z": 2 * A * given'))
    assert not study("saxpy")["scalar"].check(study("saxpy").shape(n=5)).passed


def test_a_named_gpu_reads_the_record_unless_told_to_emulate(attention):
    shape = attention.study.bundles["h8_p0_b8"]
    recorded = attention["naive"].check(shape, "H200")
    assert recorded.passed and not hasattr(recorded, "faults")
    assert attention["naive"].check(shape, "RTX PRO 6000", emulate=True).passed


def test_the_source_with_counts_beside_it(saxpy):
    bench = study("saxpy")
    counts = bench["scalar"].count(bench.shape(n=1024))
    text = str(bench["scalar"].source(counts=counts))
    row = next(line for line in text.splitlines() if "z[i] = a * x[i]" in line)
    assert row.split()[2:4] == ["2,048", "12,288"] and "origin: counted" in text
    assert "lines new since scalar" in str(bench["float4"].source(diff=True, counts=bench["float4"].count(bench.shape(n=1024))))


def test_a_table_of_counts_and_a_roofline_of_counted_bytes(attention):
    bench = study("saxpy")
    table = bench.counts(bench.shape(n=1001))
    assert [row[0:1] + row[3:4] for row in table.rows] == [("scalar", 2002), ("float4", "-")]
    assert "no multiple of 4" in str(table)
    shape, naive = attention.shape(heads=8, prefix=256), attention.only("naive")
    points = naive.roofline(shape, "H200", counted=True).points
    assert [point.name for point in points] == ["naive: sectors", "naive: asked", "naive: unique"]
    assert points[1].bytes == naive["naive"].version.asked_bytes(shape, "H200")
    assert points[2].bytes == attention.study.work(shape).bytes
    part = naive.roofline(shape, "H200", counted=True, sample=8).points
    assert [point.name for point in part] == ["naive: sectors", "naive: asked"]
    assert "8 of 72 blocks run" in str(part[0].origin) and part[0].origin.kind == "measured"


def test_a_sample_states_its_share(attention):
    counts = attention["naive"].count(attention.shape(prefix=256), "H200", sample=16)
    asked = attention["naive"].version.asked_bytes(attention.shape(prefix=256), "H200")
    assert counts.blocks_run == 16 and counts.asked_bytes == pytest.approx(asked, rel=0.01)
    assert "16 of 576 blocks run" in str(counts) and "standard error" in str(counts)
