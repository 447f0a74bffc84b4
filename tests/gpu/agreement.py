"""Do perflab's times agree with cuda-bench's (nvbench) and ncu's? The same cubins, timed by all three on one GPU.

    python tests/gpu/agreement.py build 9.0 FILE      # where there is a compiler
    python tests/gpu/agreement.py run FILE OUT.json   # where there is a GPU

Three lengths of one kernel of arithmetic, whose steps are first chosen so that it takes about 5 us, 100 us and 5 ms, and
one that reads 419 MB. nvbench and ncu run in processes of their own. OUT.json is written after every part, and a part
that fails leaves the text of its error there.
"""

from __future__ import annotations

import array
import csv
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from perflab.compile import Binary, Source, compile_source
from perflab.device import CupyDevice, packages
from perflab.timing import FLUSHES, TOOLS_SOURCE, Stopwatch, TimingSpec

SOURCE = """// What is timed. Both write only what never happens, so that no step can be left out.
extern "C" __global__ void spin(float* y, int steps) {
    float x = threadIdx.x;
    for (int i = 0; i < steps; i++) x = fmaf(x, 0.5f, 1.0f);  // goes to 2 and stays: little power
    if (x == -1.0f) y[0] = x;
}
extern "C" __global__ void stream(const float4* x, long long n, float* y) {
    const long long step = (long long)gridDim.x * blockDim.x;
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    float t = 0;
    for (; i + 3 * step < n; i += 4 * step) {
        const float4 a = x[i], b = x[i + step], c = x[i + 2 * step], d = x[i + 3 * step];
        t += a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w + c.x + c.y + c.z + c.w + d.x + d.y + d.z + d.w;
    }
    for (; i < n; i += step) { const float4 a = x[i]; t += a.x + a.y + a.z + a.w; }
    if (t == -1.0f) y[0] = t;  // a sum of numbers in [0, 1)
}
"""
GRID, BLOCK = (132 * 8, 1, 1), (256, 1, 1)
FLOAT4S = 25 << 20
TARGETS_SECONDS = {"spin 5 us": 5e-6, "spin 100 us": 1e-4, "spin 5 ms": 5e-3}
SAMPLES = 200
NCU_LAUNCHES, NCU_WARM_UP = 10, 60
NCU_METRICS = ("gpu__time_duration.sum", "sm__cycles_elapsed.avg.per_second")
BUDGET_SECONDS, CHILD_SECONDS = 150, 45  # after the first no part begins
UNITS = {
    "ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3, "s": 1.0, "second": 1.0,
    "hz": 1.0, "cycle/s": 1.0, "cycle/second": 1.0, "khz": 1e3, "cycle/msecond": 1e3,
    "mhz": 1e6, "cycle/usecond": 1e6, "ghz": 1e9, "cycle/ns": 1e9, "cycle/nsecond": 1e9,
}


@dataclass(frozen=True)
class Case:
    """One kernel to time: its entry in SOURCE, and for spin how many steps."""

    entry: str
    steps: int = 0

    def launcher(self, device: Any, cubin: bytes) -> Callable[[], None]:
        """A launch on the current stream, its memory filled."""
        y = device.upload(np.zeros(1, np.float32))
        arguments: tuple[Any, ...] = (y, np.int32(self.steps))
        if self.entry == "stream":
            some = np.random.default_rng(0).random(1 << 20, np.float32)
            arguments = (device.upload(np.tile(some, 4 * FLOAT4S >> 20)), np.int64(FLOAT4S), y)
        return device.launcher(device.load(cubin, self.entry), GRID, BLOCK, arguments, 0)


def build(capability: str, file: Path) -> None:
    """Compile what `run` needs into a JSON file."""
    texts = {"kernels": SOURCE, "tools": TOOLS_SOURCE}
    architecture = f"sm_{capability.replace('.', '')}"
    built = {name: compile_source(Source(f"{name}.cu", text), architecture).to_dict() for name, text in texts.items()}
    file.write_text(json.dumps(built))


def cubins(file: Path) -> dict[str, bytes]:
    return {name: Binary.from_dict(plain).cubin for name, plain in json.loads(file.read_text()).items()}


def centre(samples: Sequence[float]) -> dict[str, float]:
    """The two statistics that are compared, seconds."""
    return {"median_seconds": statistics.median(samples), "mean_seconds": statistics.fmean(samples)}


# ---------------------------------------------------------------- perflab
def calibrate(stopwatch: Stopwatch, device: Any, cubin: bytes, target_seconds: float) -> tuple[int, list[Any]]:
    """(steps for which the cold median is near the target, what was tried). Time is a start plus so much a step."""
    tried = []

    def seconds(steps: int) -> float:
        spec = TimingSpec(min_samples=7, max_samples=20, target_relative_interval=0.02, min_gpu_seconds=0, max_seconds=1,
                          min_warmup_seconds=0.05, max_warmup_seconds=0.3, flush="memset", batch_seconds=1e-4)
        taken = stopwatch.time(Case("spin", steps).launcher(device, cubin), spec).cold.median_seconds
        tried.append([steps, taken])
        return taken

    few, many = 10, max(2000, round(target_seconds / 8e-9))  # 16 warps a scheduler: 16 cycles a step, or about 8 ns
    low, high = seconds(few), seconds(many)
    for _ in range(2):
        per_step = max((high - low) / (many - few), 4e-9)  # noise of two near points is no slope
        steps = max(1, round(few + (target_seconds - low) / per_step))
        if steps in (few, many):
            break
        few, low, many, high = *min((few, low), (many, high)), steps, seconds(steps)
    return steps, tried


def time_by_perflab(stopwatch: Stopwatch, launch: Callable[[], None], flush: str) -> dict[str, Any]:
    timing = stopwatch.time(launch, TimingSpec(min_samples=100, max_samples=SAMPLES, flush=flush))
    clocks = (timing.cold.sm_hz, timing.hot.sm_hz, timing.clocks_after.get("sm_hz"))  # a short kernel has the last one only
    return {**centre(timing.cold.samples_seconds), "sm_hz": next((hz for hz in clocks if hz), None), **timing.to_dict()}


# ---------------------------------------------------------------- nvbench
def nvbench_task(file: Path, case: Case, out: str) -> None:
    """In a process of its own, for nvbench runs once: its "cold" measurement, samples into `out` and a folder beside it.

    Its defaults but for: as many samples as perflab takes, clocks that have risen first, no sample thrown away.
    """
    import cuda.bench as bench
    import cupy

    def agreement(state: Any) -> None:
        device = CupyDevice()
        launch = case.launcher(device, cubins(file)["kernels"])
        device.synchronize()

        def queue(given: Any) -> None:
            # not CuPy 14's Stream.from_external: what that makes destroys nvbench's stream when it is collected
            with cupy.cuda.ExternalStream(given.get_stream().addressof()):
                launch()

        state.exec(queue, batched=False)

    made = bench.register(agreement)
    made.set_stopping_criterion("sample-count")
    made.set_criterion_param_int64("target-samples", SAMPLES)
    made.set_min_samples(SAMPLES)
    made.set_throttle_threshold(0.0)
    made.set_cold_warmup_runs(100_000)
    made.set_cold_max_warmup_walltime(0.3)
    made.set_timeout(20)
    bench.run_all_benchmarks(["agreement", "--jsonbin", out])


def floats(file: Path) -> list[float]:
    """The values of nvbench's little-endian float32 files; none where there is no file."""
    values = array.array("f", file.read_bytes() if file.exists() else b"")
    return [float(f"{value:.7g}") for value in values]


def time_by_nvbench(file: Path, case: Case) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "nvbench.json"
        said = child("nvbench", file, case, str(out))
        samples = floats(Path(f"{out}-bin") / "0.bin")
        if not samples:
            raise RuntimeError(f"nvbench stored no samples:\n{said[-3000:]}")
        hertz = [hz for hz in floats(Path(f"{out}-freqs-bin") / "0.bin") if math.isfinite(hz)]  # not so in a short sample
        plain = json.loads(out.read_text())
    summaries = plain["benchmarks"][0]["states"][0]["summaries"]
    own = {s["tag"]: field["value"] for s in summaries for field in s["data"] if field["name"] == "value"}
    return {**centre(samples), "sm_hz": statistics.median(hertz) if hertz else None, "statistics_from": "its samples",
            "its_summaries": own, "samples": samples, "samples_hz": hertz, "devices": plain.get("devices"),
            "said": said[-3000:]}


# ---------------------------------------------------------------- ncu
def ncu_task(file: Path, case: Case, warm_steps: int) -> None:
    """In a process under ncu: launches that raise the clock, then those that are profiled."""
    device, cubin = CupyDevice(), cubins(file)["kernels"]
    warm, launch = Case("spin", warm_steps).launcher(device, cubin), case.launcher(device, cubin)
    for _ in range(NCU_WARM_UP):
        warm()
    device.synchronize()
    for _ in range(NCU_LAUNCHES):
        launch()
    device.synchronize()


def read_ncu(text: str) -> dict[str, list[float]]:
    """Metric -> its value for each launch, in seconds or hertz, of what ncu --csv printed."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    found: dict[str, list[float]] = {name: [] for name in NCU_METRICS}
    for row in csv.DictReader(lines):
        scale = UNITS[row["Metric Unit"].lower()]
        found[row["Metric Name"]].append(scale * float(row["Metric Value"].replace(",", "")))
    if not all(found.values()):
        raise ValueError(f"no metrics in what ncu said:\n{text[-3000:]}")
    return found


def time_by_ncu(file: Path, case: Case, warm_steps: int) -> dict[str, Any]:
    skip = NCU_WARM_UP if case.entry == "spin" else 0
    said = child("ncu-target", file, case, str(warm_steps), before=[
        ncu_path(), "--clock-control", "none", "--cache-control", "all", "--metrics", ",".join(NCU_METRICS), "--csv",
        "--print-units", "base", "--kernel-name", f"regex:^{case.entry}$", "--launch-skip", str(skip),
        "--launch-count", str(NCU_LAUNCHES)])
    try:
        seconds, hertz = (read_ncu(said)[name] for name in NCU_METRICS)
    except (KeyError, TypeError, ValueError) as error:
        raise RuntimeError(f"ncu's answer was not understood ({error!r}):\n{said[-3000:]}") from error
    return {**centre(seconds), "sm_hz": statistics.median(hertz), "samples": seconds, "samples_hz": hertz}


def ncu_path() -> str:
    return shutil.which("ncu") or "/usr/local/cuda/bin/ncu"


def child(task: str, file: Path, case: Case, *more: str, before: Sequence[str] = ()) -> str:
    """Run this script's `task` in another process; what it said. RuntimeError if it failed."""
    command = [*before, sys.executable, __file__, task, str(file), case.entry, str(case.steps), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                          start_new_session=True) as running:
        try:
            said, erred = running.communicate(timeout=CHILD_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)  # ncu's own child too: it holds the GPU
            said, erred = running.communicate()
            raise RuntimeError(f"{task} took over {CHILD_SECONDS} s:\n{said[-3000:]}\n{erred[-3000:]}") from None
    if running.returncode:
        raise RuntimeError(f"{task} ended with {running.returncode}:\n{said[-3000:]}\n{erred[-3000:]}")
    return f"{said}\n{erred}"


# ---------------------------------------------------------------- all of it
def agreement_of(measured: Mapping[str, Any]) -> dict[str, Any]:
    """perflab over the other tool, the same statistic on both sides; for ncu also at perflab's clock: its cycles count."""
    answer: dict[str, Any] = {}
    memset, nvbench, ncu = (measured.get(name, {}) for name in ("perflab memset", "nvbench", "ncu"))
    for name in ("median", "mean"):
        key = f"{name}_seconds"
        if key in memset and key in nvbench:
            answer[f"perflab_over_nvbench_{name}"] = memset[key] / nvbench[key]
            answer[f"perflab_minus_nvbench_{name}_seconds"] = memset[key] - nvbench[key]
    for flush in FLUSHES:
        ours = measured.get(f"perflab {flush}", {})
        if "median_seconds" in ours and "median_seconds" in ncu:
            answer[f"perflab_{flush}_over_ncu_median"] = ours["median_seconds"] / ncu["median_seconds"]
            answer[f"perflab_{flush}_minus_ncu_median_seconds"] = ours["median_seconds"] - ncu["median_seconds"]
            if ours["sm_hz"]:
                at_our_clock = ncu["median_seconds"] * ncu["sm_hz"] / ours["sm_hz"]
                answer[f"perflab_{flush}_over_ncu_median_at_perflabs_clock"] = ours["median_seconds"] / at_our_clock
    return answer


class Run:
    """Everything measured so far, and the file that holds it."""

    def __init__(self, out: Path) -> None:
        self._out, self._begin = out, time.monotonic()
        self.found: dict[str, Any] = {"utc": datetime.now(UTC).isoformat(timespec="seconds"), "kernels": {}}

    def part(self, where: dict[str, Any], name: str, work: Callable[[], Any]) -> None:
        """where[name] = work(), or the error; then write the file."""
        begin = time.monotonic()
        try:
            if begin - self._begin > BUDGET_SECONDS:
                raise TimeoutError(f"not begun: {BUDGET_SECONDS} s are used up")
            where[name] = work()
        except Exception as error:
            where[name] = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()[-3000:]}
        for measured in self.found["kernels"].values():
            measured["agreement"] = agreement_of(measured)
        self.found["wall_seconds"] = round(time.monotonic() - self._begin, 1)
        self._out.write_text(json.dumps(self.found, indent=1))
        failed = where[name].get("error", "") if isinstance(where[name], dict) else ""
        print(f"{time.monotonic() - begin:5.1f} s  {name}{': ' + failed[:2000] if failed else ''}", flush=True)


def run(file: Path, out: Path, device: Any = None, now: Callable[[], float] = time.monotonic) -> dict[str, Any]:
    """All parts on one device: perflab and nvbench right after each other, ncu at the end. What `out` holds."""
    job, binaries = Run(out), cubins(file)
    device = device or CupyDevice()
    stopwatch, kernels = Stopwatch(device, binaries["tools"], now), job.found["kernels"]
    job.part(job.found, "device", device.describe)
    job.found["versions"] = {"python": sys.version.split()[0], **packages("cuda-bench", "cuda-bindings", "perflab", "torch")}
    job.part(job.found, "ncu version", lambda: subprocess.run([ncu_path(), "--version"], capture_output=True, text=True,
                                                             timeout=20).stdout.strip().splitlines()[-1])
    cases = {}
    for name, target in TARGETS_SECONDS.items():
        job.part(job.found, f"calibration {name}",
                 lambda target=target: calibrate(stopwatch, device, binaries["kernels"], target))
        chosen = job.found[f"calibration {name}"]
        cases[name] = Case("spin", round(target / 8e-9) if isinstance(chosen, dict) else chosen[0])
    cases["stream 419 MB"] = Case("stream")
    for name, case in cases.items():
        measured = kernels[name] = {"entry": case.entry, "steps": case.steps,
                                    "bytes": 16 * FLOAT4S if case.entry == "stream" else 0}
        launch = case.launcher(device, binaries["kernels"])
        for flush in ("memset", "read"):
            job.part(measured, f"perflab {flush}", lambda launch=launch, flush=flush: time_by_perflab(stopwatch, launch, flush))
        job.part(measured, "nvbench", lambda case=case: time_by_nvbench(file, case))
    for name, case in cases.items():
        job.part(kernels[name], "ncu", lambda case=case: time_by_ncu(file, case, cases["spin 5 ms"].steps))
    return job.found


def show(found: Mapping[str, Any]) -> None:
    """The medians in microseconds, and what they are to each other."""
    for name, measured in found["kernels"].items():
        print(name, f"({measured['steps']} steps)")
        for tool in ("perflab memset", "perflab read", "nvbench", "ncu"):
            if "median_seconds" in (of := measured.get(tool, {})):
                clock = f"{of['sm_hz'] / 1e6:.0f} MHz" if of["sm_hz"] else "clock not known"
                times = ", ".join(f"{word} {1e6 * of[f'{word}_seconds']:.3f} us" for word in ("median", "mean"))
                print(f"  {tool:15} {times}, {clock}")
        for what, value in measured["agreement"].items():
            print(f"  {what} {f'{1e6 * value:+.3f} us' if what.endswith('_seconds') else f'{value:.4f}'}")
    print(f"{found['wall_seconds']} s in all")


def main(arguments: Sequence[str]) -> None:
    task, *rest = arguments
    if task == "build":
        build(rest[0], Path(rest[1]))
    elif task == "run":
        show(run(Path(rest[0]), Path(rest[1])))
    elif task in ("nvbench", "ncu-target"):
        file, case = Path(rest[0]), Case(rest[1], int(rest[2]))
        if task == "nvbench":
            nvbench_task(file, case, rest[3])
        else:
            ncu_task(file, case, int(rest[3]))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main(sys.argv[1:])
