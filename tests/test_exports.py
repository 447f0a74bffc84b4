"""Timings for other tools: nvbench's JSON, as its own script reads it where it is installed, and CSV."""

import csv
import json
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from test_comparison import perflab, record

from perflab.errors import PerflabError
from perflab.exports import csv_text, export_text, nvbench_json, write_export, write_nvbench
from perflab.records import RecordFile
from perflab.studies import Work

ROOT = Path(__file__).parent.parent
SET = [record(n=1000), record(n=2000, microseconds=200), record("float4", rival="cublas"), record(kind="check"),
       record(n=1000, microseconds=700, utc="2025-01-01T00:00:00Z")]


def value(state: dict, tag: str) -> str:
    return next(s for s in state["summaries"] if s["tag"] == tag)["data"][0]["value"]


def test_nvbench_json_has_a_state_a_version_and_shape():
    data = json.loads(json.dumps(nvbench_json(SET)))
    assert data["meta"]["version"]["json"]["string"] == "1.0.0"
    assert data["devices"] == [{"id": 0, "name": "NVIDIA H200"}]
    (bench,) = data["benchmarks"]
    assert bench["name"] == "saxpy" and bench["devices"] == [0]
    assert {axis["name"]: axis["type"] for axis in bench["axes"]} == {
        "version": "string", "rival": "string", "dtype": "string", "n": "int64"}
    assert [state["name"] for state in bench["states"]] == [
        "Device=0 version=float4 rival=cublas dtype=float32 n=1000", "Device=0 version=scalar dtype=float32 n=1000",
        "Device=0 version=scalar dtype=float32 n=2000"]
    state = bench["states"][1]
    assert not state["is_skipped"] and {v["name"]: v["value"] for v in state["axis_values"]}["n"] == "1000"
    assert float(value(state, "nv/cold/time/gpu/median")) == pytest.approx(100e-6, rel=1e-3)  # the newest
    assert value(state, "nv/cold/sample_size") == "30" and value(state, "nv/batch/sample_size") == "600"
    assert float(value(state, "nv/batch/time/gpu/mean")) == pytest.approx(50e-6, rel=1e-3)
    assert float(value(state, "nv/cold/sm_clock_rate/mean")) == 1.98e9
    assert not any(s["tag"].startswith("nv/json/bin") for s in state["summaries"])


def test_the_clock_over_the_samples_goes_before_the_one_after_them():
    (bench,) = nvbench_json([record(sm_hz=1.7e9)])["benchmarks"]
    assert float(value(bench["states"][0], "nv/cold/sm_clock_rate/mean")) == 1.7e9


def test_raw_samples_lie_beside_the_file(tmp_path):
    write_nvbench(SET, tmp_path / "x.json")
    states = json.loads((tmp_path / "x.json").read_text())["benchmarks"][0]["states"]
    for state in states:
        files = next(s for s in state["summaries"] if s["tag"] == "nv/json/bin:nv/cold/sample_times")["data"]
        samples = struct.unpack("<30f", (tmp_path / files[0]["value"]).read_bytes())
        assert files[1]["value"] == "30"
        assert min(samples) == pytest.approx(float(value(state, "nv/cold/time/gpu/min")), rel=1e-6)


def test_one_benchmark_a_study_and_one_device_a_gpu():
    data = nvbench_json([record(), record(gpu="NVIDIA B200")])
    assert [device["name"] for device in data["devices"]] == ["NVIDIA B200", "NVIDIA H200"]
    assert data["benchmarks"][0]["devices"] == [0, 1]


@pytest.mark.skipif(not shutil.which("nvbench-compare-robust"), reason="nvbench's compare script is not installed")
def test_nvbench_reads_it_and_sees_planted_work(tmp_path):
    write_nvbench([record(n=n) for n in (1, 2)], tmp_path / "over.json")
    write_nvbench([record(n=1), record(n=2, microseconds=104)], tmp_path / "this.json")
    command = ["nvbench-compare-robust", "--no-color", tmp_path / "over.json", tmp_path / "this.json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "Total Matches: 2" in done.stdout, done.stdout + done.stderr
    assert "Unchanged   (classified as SAME): 1" in done.stdout and "%Diff > 0): 1" in done.stdout, done.stdout


def test_csv_has_a_row_a_series():
    rows = list(csv.DictReader(csv_text(SET, lambda r: Work(flops=1, bytes=10**6)).splitlines()))
    assert [(r["version"], r["rival"], r["n"], r["series"]) for r in rows] == [
        ("float4", "cublas", "1000", "cold"), ("float4", "cublas", "1000", "hot"), ("scalar", "", "1000", "cold"),
        ("scalar", "", "1000", "hot"), ("scalar", "", "2000", "cold"), ("scalar", "", "2000", "hot")]
    cold = rows[2]
    low, median, high = (float(cold[name]) for name in ("low_seconds", "median_seconds", "high_seconds"))
    assert float(cold["minimum_seconds"]) < low < median < high and float(cold["iqr_seconds"]) > 0
    assert float(cold["useful_gb_per_second"]) == pytest.approx(10, rel=1e-2)  # 1 MB in 100 us
    assert (cold["samples"], cold["stopped"], cold["gpu"], cold["driver"]) == ("30", "enough", "NVIDIA H200", "580.1")
    assert cold["utc"] == "2026-01-01T00:00:00Z" and cold["uuid"] == "GPU-1" and rows[3]["repeats"] == "20"


def test_work_comes_from_the_study_where_there_is_one(tmp_path, monkeypatch):
    monkeypatch.setattr("perflab.workspaces._chosen", [ROOT])
    known = next(csv.DictReader(csv_text([record(n=1000)]).splitlines()))
    assert float(known["useful_gb_per_second"]) > 0
    monkeypatch.setattr("perflab.workspaces._chosen", [tmp_path])
    assert next(csv.DictReader(csv_text([record()]).splitlines()))["useful_gb_per_second"] == ""


def test_bad_input_is_explained(tmp_path):
    with pytest.raises(PerflabError, match='unknown format "cvs".*Did you mean "csv"'):
        export_text(SET, "cvs")
    for format in ("nvbench", "csv"):
        with pytest.raises(PerflabError, match="no timing to export"):
            export_text([record(kind="check")], format)
        with pytest.raises(PerflabError, match="cannot be written"):
            (tmp_path / "file").touch()
            write_export(SET, format, tmp_path / "file" / "x")


def test_command_line(tmp_path):
    (tmp_path / "kernels" / "saxpy").mkdir(parents=True)
    (tmp_path / "kernels" / "saxpy" / "study.py").write_text("study = None\n")
    RecordFile(tmp_path / "data" / "records" / "h200" / "saxpy.jsonl").append(record())
    shown = perflab("export", "saxpy", "--format", "nvbench", cwd=tmp_path)
    assert shown.returncode == 0 and json.loads(shown.stdout)["benchmarks"][0]["name"] == "saxpy", shown.stderr
    assert perflab("export", "saxpy", "-o", "x.csv", cwd=tmp_path).returncode == 0
    assert (tmp_path / "x.csv").read_text().startswith("study,version,")
    assert perflab("export", "saxpy", "--format", "xml", cwd=tmp_path).returncode == 2
    assert perflab("export", "saxpi", cwd=tmp_path).returncode == 2
