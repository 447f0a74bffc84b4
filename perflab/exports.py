"""Recorded timings for other tools: NVIDIA nvbench's JSON, which its compare script reads, and CSV."""

from __future__ import annotations

import csv
import io
import json
import statistics
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perflab.comparison import newest_timings
from perflab.errors import PerflabError, unknown
from perflab.records import Record, canonical_gpu
from perflab.studies import Work
from perflab.timing import Series

NVBENCH_VERSION = (1, 0, 0)  # of its JSON format, as its reader checks it
FORMATS = ("nvbench", "csv")
WorkOf = Callable[[Record], Work | None]


def export_text(records: Sequence[Record], format: str) -> str:
    """The newest timings in one of FORMATS, as text; an unknown format is an error that lists them."""
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    return csv_text(records) if format == "csv" else json.dumps(nvbench_json(records), indent=1) + "\n"


def write_export(records: Sequence[Record], format: str, path: Path) -> None:
    """The same into a file, for nvbench with its raw samples beside it."""
    if format == "nvbench":
        return write_nvbench(records, path)
    text = export_text(records, format)
    try:
        path.write_text(text)
    except OSError as error:
        raise PerflabError(f"{path} cannot be written: {error.strerror or error}") from error


# ---------------------------------------------------------------- nvbench
def nvbench_json(records: Sequence[Record], sidecar: str = "") -> dict[str, Any]:
    """The newest timings in nvbench's JSON format: a benchmark a study, a state a version or rival and shape.

    Cold samples are its `nv/cold` measurement, hot ones its `nv/batch`; times in seconds. nvbench keeps raw samples in
    files beside the JSON: with `sidecar`, the JSON's file name, the states name them; `write_nvbench` writes them.
    """
    newest = _newest(records)
    gpus = list(dict.fromkeys(canonical_gpu(r.gpu["name"]) for r in newest))
    benchmarks = []
    for index, study in enumerate(dict.fromkeys(r.study for r in newest)):
        own = [(number, r) for number, r in enumerate(newest) if r.study == study]
        axes = _axes([r for _, r in own])
        states = [_state(r, gpus.index(canonical_gpu(r.gpu["name"])), axes, number, sidecar) for number, r in own]
        devices = sorted({state["device"] for state in states})
        benchmarks.append({"name": study, "index": index, "devices": devices, "axes": axes, "states": states})
    major, minor, patch = NVBENCH_VERSION
    version = {"major": major, "minor": minor, "patch": patch, "string": f"{major}.{minor}.{patch}"}
    return {"meta": {"version": {"json": version}}, "benchmarks": benchmarks,
            "devices": [{"id": number, "name": _device_name(newest, name)} for number, name in enumerate(gpus)]}


def write_nvbench(records: Sequence[Record], path: Path) -> None:
    """Write the JSON and, in `<name>-bin/` beside it, each state's cold samples as little-endian float32 seconds."""
    data = nvbench_json(records, path.name)
    folder = path.with_name(f"{path.name}-bin")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, record in enumerate(_newest(records)):
            samples = Series.from_dict(record.timing["cold"]).samples_seconds
            (folder / f"{number}.bin").write_bytes(struct.pack(f"<{len(samples)}f", *samples))
        path.write_text(json.dumps(data, indent=1) + "\n")
    except OSError as error:
        raise PerflabError(f"{path} cannot be written: {error.strerror or error}") from error


def _newest(records: Sequence[Record]) -> list[Record]:
    newest = list(newest_timings(records).values())
    if not newest:
        raise PerflabError("there is no timing to export: take some with `perflab measure STUDY`")
    return newest


def _device_name(records: Sequence[Record], gpu: str) -> str:
    return next(str(r.gpu["name"]) for r in records if canonical_gpu(r.gpu["name"]) == gpu)


def _sizes(record: Record) -> dict[str, Any]:
    """A state's axes by name: the version, its rival, the dtype, and each size of the shape."""
    rival = {"rival": record.rival} if record.rival else {}
    return {"version": record.version, **rival, "dtype": record.dtype, **record.shape}


def _axes(records: Sequence[Record]) -> list[dict[str, Any]]:
    """All axes of a study with the values in use; int64 where every value is an integer, else text."""
    axes = []
    for name in dict.fromkeys(name for record in records for name in _sizes(record)):
        values = list(dict.fromkeys(_sizes(r)[name] for r in records if name in _sizes(r)))
        is_int = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
        cells = [{"input_string": str(v), "description": "", "value": v if is_int else str(v)} for v in values]
        axes.append({"name": name, "type": "int64" if is_int else "string", "flags": "", "values": cells})
    return axes


def _state(record: Record, device: int, axes: Sequence[Mapping[str, Any]], number: int, sidecar: str) -> dict[str, Any]:
    sizes, types = _sizes(record), {axis["name"]: axis["type"] for axis in axes}
    values = [{"name": name, "type": types[name], "value": str(value)} for name, value in sizes.items()]
    words = " ".join(f"{name}={value}" for name, value in sizes.items())
    return {"name": f"Device={device} {words}", "device": device, "type_config_index": 0, "axis_values": values,
            "min_samples": 1, "is_skipped": False, "summaries": _summaries(record, number, sidecar)}


def _summaries(record: Record, number: int, sidecar: str) -> list[dict[str, Any]]:
    cold, hot = (Series.from_dict(record.timing[name]) for name in ("cold", "hot"))
    times = cold.samples_seconds
    mean, spread, (first, median, third) = statistics.fmean(times), statistics.stdev(times), _quartiles(times)
    found = [
        _count("nv/cold/sample_size", "Samples", len(times)),
        _number("nv/cold/time/gpu/min", "Min GPU Time", "duration", min(times)),
        _number("nv/cold/time/gpu/max", "Max GPU Time", "duration", max(times)),
        _number("nv/cold/time/gpu/mean", "GPU Time", "duration", mean),
        _number("nv/cold/time/gpu/stdev/absolute", "Std. deviation", "duration", spread),
        _number("nv/cold/time/gpu/stdev/relative", "Noise", "percentage", spread / mean),
        _number("nv/cold/time/gpu/q1", "Q1 GPU Time", "duration", first),
        _number("nv/cold/time/gpu/median", "Median GPU Time", "duration", median),
        _number("nv/cold/time/gpu/q3", "Q3 GPU Time", "duration", third),
        _number("nv/cold/time/gpu/iqr/absolute", "IQR", "duration", third - first),
        _number("nv/cold/time/gpu/iqr/relative", "Relative IQR", "percentage", (third - first) / median),
        _count("nv/batch/sample_size", "Samples", len(hot.samples_seconds) * hot.repeats),
        _number("nv/batch/time/gpu/mean", "Batch GPU", "duration", statistics.fmean(hot.samples_seconds)),
    ]
    clock = cold.sm_hz or record.timing["clocks_after"].get("sm_hz")  # short samples have only NVML's reading after them
    if clock:  # without one nvbench calls no difference clear
        found.append(_number("nv/cold/sm_clock_rate/mean", "Clock Rate", "frequency", float(clock)))
    if sidecar:
        file = {"name": "filename", "type": "string", "value": f"{sidecar}-bin/{number}.bin"}
        size = {"name": "size", "type": "int64", "value": str(len(times))}
        found.append({"tag": "nv/json/bin:nv/cold/sample_times", "name": "Samples Times File", "hint": "file/sample_times",
                      "hide": "Not needed in table.", "data": [file, size]})
    return found


def _number(tag: str, name: str, hint: str, value: float) -> dict[str, Any]:
    return {"tag": tag, "name": name, "hint": hint, "data": [{"name": "value", "type": "float64", "value": repr(value)}]}


def _count(tag: str, name: str, value: int) -> dict[str, Any]:
    return {"tag": tag, "name": name, "hint": "sample_size", "data": [{"name": "value", "type": "int64", "value": str(value)}]}


def _quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    first, median, third = statistics.quantiles(samples, n=4, method="inclusive")
    return first, median, third


# ---------------------------------------------------------------- CSV
HEAD = ("study", "version", "rival", "dtype")
TAIL = ("series", "median_seconds", "low_seconds", "high_seconds", "samples", "minimum_seconds", "iqr_seconds",
        "useful_gb_per_second", "stopped", "repeats", "sm_hz", "gpu", "uuid", "driver", "method", "commit", "utc")


def study_work(record: Record) -> Work | None:
    """The work of a record's shape by its study in this workspace; None where that study or shape is not there."""
    from perflab.studies import load_study
    from perflab.workspaces import workspace

    try:
        study = load_study(workspace().study_folder(record.study))
        return study.work(study.make_shape(**record.shape))
    except PerflabError:
        return None


def csv_text(records: Sequence[Record], work_of: WorkOf = study_work) -> str:
    """The newest timings as CSV, a row a series (cold, then hot), a column a size; what a record does not hold is empty.

    low and high are the exact 95 % interval of the median. Useful GB/s is 1e9 bytes that must move once, over the median.
    """
    newest = _newest(records)
    sizes = list(dict.fromkeys(name for r in newest for name in r.shape))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*HEAD, *sizes, *TAIL])
    for record in newest:
        work = work_of(record)
        for name in ("cold", "hot"):
            ids = (record.study, record.version, record.rival, record.dtype, *(record.shape.get(size) for size in sizes))
            writer.writerow([*ids, name, *_series_cells(Series.from_dict(record.timing[name]), work), *_origin_cells(record)])
    return text.getvalue()


def _series_cells(series: Series, work: Work | None) -> tuple:
    (low, high), (first, _, third) = series.interval_seconds, _quartiles(series.samples_seconds)
    useful = work.bytes / series.median_seconds / 1e9 if work else None
    return (series.median_seconds, low, high, len(series.samples_seconds), min(series.samples_seconds), third - first,
            useful, series.stopped, series.repeats, series.sm_hz)


def _origin_cells(record: Record) -> tuple:
    said = record.provenance
    return (record.gpu["name"], record.gpu.get("uuid"), *(said.get(name) for name in ("driver", "method", "commit", "utc")))
