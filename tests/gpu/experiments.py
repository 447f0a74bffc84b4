"""Experiments on the timing method, on a GPU machine that compiles nothing; notebook 03 reads what they wrote.

    python tests/gpu/experiments.py build 9.0 binaries.json            # where NVRTC is
    python tests/gpu/experiments.py run binaries.json experiments.json # where the GPU is

pairs      A/A in one process, on allocations of their own, interleaved; then B with 2 % more work beside A
processes  the same kernel in fresh processes, A and B
cold       a 32 MB read after the flush, and without it
clock      the SM clock from idle on, launch by launch
gap        an empty kernel and a 5 us kernel between two events, with and without the hold
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from perflab.compile import Binary, Source, compile_source
from perflab.device import CupyDevice
from perflab.timing import EMPTY, TOOLS_SOURCE, Stopwatch, TimingSpec, Work, _Lane

STREAM = """extern "C" __global__ void stream(const float4* x, long long n, float* y) {
    float t = 0;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x) {
        float4 v = __ldcg(x + i);
        t += v.x + v.y + v.z + v.w;
    }
    if (t == -1.0f) *y = t;
}"""
COUNT = 25_000_000  # float4: 400 MB, about 100 us
PLANTED = 1.02
SAMPLES = TimingSpec(min_samples=30, max_samples=30, min_gpu_seconds=0, min_warmup_seconds=0.02, max_warmup_seconds=0.3)


def build(capability: str) -> dict[str, Any]:
    """The timing tools and the kernel for one capability."""
    architecture = "sm_" + capability.replace(".", "")
    sources = {"tools": TOOLS_SOURCE, "stream": STREAM}
    return {name: compile_source(Source(f"{name}.cu", text), architecture).to_dict() for name, text in sources.items()}


class Lab:
    """The device, its stopwatch, and the streaming kernel on memory of its own for each launch."""

    def __init__(self, file: str) -> None:
        given = {name: Binary.from_dict(data) for name, data in json.loads(Path(file).read_text()).items()}
        self.device = CupyDevice()
        self.stopwatch = Stopwatch(self.device, given["tools"].cubin)
        self._stream = self.device.load(given["stream"].cubin, "stream")
        self._empty = self.device.load(given["tools"].cubin, EMPTY)
        self.sms = self.device.describe()["attributes"]["sm_count"]

    def stream(self, count: int) -> Any:
        """A launch that reads `count` float4 of a fresh allocation."""
        memory = self.device.allocate((4 * int(COUNT * PLANTED) + 4,), "float32")
        self.device.fill(memory, 0x3F)
        out = self.device.allocate((1,), "float32")
        return self.device.launcher(self._stream, (8 * self.sms, 1, 1), (256, 1, 1), (memory, np.int64(count), out), 0)

    def empty(self) -> Any:
        """An empty launch."""
        return self.device.launcher(self._empty, (1, 1, 1), (32, 1, 1), (), 0)

    def cold(self, works: dict[str, Any], spec: TimingSpec = SAMPLES) -> dict[str, list[float]]:
        """Interleaved cold samples of each, seconds."""
        lanes = {name: _Lane(Work.of(launch)) for name, launch in works.items()}
        for lane in lanes.values():
            self.stopwatch._warm_up(lane.work, spec)
        rounds = self.stopwatch._rounds(lanes, dict.fromkeys(lanes, 1), spec, "read")
        return {name: list(series.samples_seconds) for name, series in rounds.items()}


def pairs(lab: Lab) -> dict[str, Any]:
    """150 A/A pairs and 50 pairs with planted work, each on fresh allocations."""
    more = int(COUNT * PLANTED)
    return {
        "same": [lab.cold({"a": lab.stream(COUNT), "b": lab.stream(COUNT)}) for _ in range(150)],
        "planted": [lab.cold({"a": lab.stream(COUNT), "b": lab.stream(more)}) for _ in range(50)],
    }


def processes(file: str) -> dict[str, Any]:
    """30 samples from each of 20 fresh processes with the same work, and of 8 with planted work."""
    def one(count: int) -> list[float]:
        done = subprocess.run([sys.executable, __file__, "one", file, str(count)], capture_output=True, text=True, timeout=120)
        return json.loads(done.stdout.splitlines()[-1])

    return {"same": [one(COUNT) for _ in range(20)], "planted": [one(int(COUNT * PLANTED)) for _ in range(8)]}


def cold(lab: Lab) -> dict[str, Any]:
    """A read of 32 MB, which fits the L2: after the flush, and right after another such read."""
    launch, count = lab.stream(2_000_000), 2_000_000
    timing = lab.stopwatch.time(launch, TimingSpec(min_samples=50, max_samples=50))
    return {"bytes": 16 * count, "cold": timing.cold.to_dict(), "hot": timing.hot.to_dict()}


def clock(lab: Lab) -> dict[str, Any]:
    """From idle: the SM clock and the time of each of 400 launches that follow one another."""
    time.sleep(4)
    before, launch, samples = lab.device.clocks(), lab.stream(COUNT), []
    begin = time.monotonic()
    for _ in range(400):
        taken, hertz = lab.stopwatch._sample(_Lane(Work.of(launch)), 0, 1, "")
        samples.append([round(time.monotonic() - begin, 6), round(taken, 9), hertz])
    return {"before": before, "after": lab.device.clocks(), "samples": samples}


def gap(lab: Lab) -> dict[str, Any]:
    """Between two events, one launch at a time: with the hold, and without it as most tools do it."""
    works = {"empty": lab.empty(), "short": lab.stream(600_000)}
    return {
        name: {kind: [round(lab.stopwatch._sample(_Lane(Work.of(launch), held), 0, 1, "")[0], 9) for _ in range(200)]
               for kind, held in (("held", True), ("not_held", False))}
        for name, launch in works.items()
    }


def run(file: str, out: str) -> None:
    """Every experiment that works, written as soon as it is there; one that fails leaves its error."""
    lab = Lab(file)
    device = lab.device.describe()
    found: dict[str, Any] = {
        "gpu": {key: device[key] for key in ("name", "uuid", "capability", "driver")}, "packages": device["packages"],
        "utc": datetime.now(UTC).isoformat(timespec="seconds"), "count": COUNT, "planted": PLANTED,
    }
    steps = {"gap": lambda: gap(lab), "cold": lambda: cold(lab), "clock": lambda: clock(lab), "pairs": lambda: pairs(lab),
             "processes": lambda: processes(file)}
    for name, step in steps.items():
        begin = time.monotonic()
        try:
            found[name] = step()
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"}
        print(f"{name}: {time.monotonic() - begin:.1f} s", found[name].get("error", ""), flush=True)
        Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    if command == "build":
        Path(rest[1]).write_text(json.dumps(build(rest[0])))
    elif command == "one":
        lab = Lab(rest[0])
        print(json.dumps(lab.cold({"a": lab.stream(int(rest[1]))})["a"]))
    else:
        run(*rest)
