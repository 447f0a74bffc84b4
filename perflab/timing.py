"""How to time a kernel: the first, plain method, with CUDA events. Pure logic over the `Device` protocol.

Two named numbers, never mixed. Cold: before every sample the L2 cache is filled with clean lines of another buffer,
twice its size. Hot: the launches are repeated back to back and a sample is the mean of one batch.

Limits of this method, "events-1": the launch gap is inside. From Python an empty launch between two events costs about
12 us where the GPU waits for the host, so a hot kernel shorter than a launch shows the launch, not itself; before a
cold sample the flush keeps the GPU busy while the launch is queued, which hides most of the gap. The empty kernel,
timed the same two ways, stands beside every timing; it is never subtracted. Clocks are read before and after, not held.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from perflab.device import Device
from perflab.errors import PerflabError

METHOD = "events-1"
FEWEST_SAMPLES = 6  # fewer have no 95 % interval of the median: 2 / 2^5 is over 5 %
WINDOW = 5  # samples that warm-up compares

TOOLS_SOURCE = """// Kernels that timing itself launches.
// An empty one: what a launch costs.
extern "C" __global__ void perflab_empty() {}

// Reads 16 bytes a step from all of `data`, so that the L2 cache holds these clean lines and no others. `sink` is
// written only if all words are ones, which they never are: the compiler must keep the loads.
extern "C" __global__ void perflab_read(const uint4* data, long long count, unsigned* sink) {
    unsigned all = ~0u;
    const long long threads = (long long)gridDim.x * blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += threads) {
        uint4 v = data[i];
        all &= v.x & v.y & v.z & v.w;
    }
    if (all == ~0u) *sink = all;
}
"""
EMPTY, READ = "perflab_empty", "perflab_read"


# ---------------------------------------------------------------- what is asked
@dataclass(frozen=True)
class TimingSpec:
    """When a series of samples may stop, and how long to warm up. The limits hold for each of cold and hot.

    It stops once it has min_samples, min_gpu_seconds of GPU time, and a 95 % interval of the median no wider than
    target_relative_interval of it; or at max_samples; or after max_seconds, but never with fewer than 6 samples.
    A hot sample repeats the launches until a batch takes about batch_seconds, at most max_repeats times.
    """

    min_samples: int = 15
    max_samples: int = 200
    target_relative_interval: float = 0.01
    min_gpu_seconds: float = 0.02
    max_seconds: float = 10.0
    min_warmup_seconds: float = 0.1
    max_warmup_seconds: float = 1.0
    batch_seconds: float = 2e-3
    max_repeats: int = 500

    @staticmethod
    def quick() -> TimingSpec:
        """A look, not a result: few samples, a wide interval, short warm-up."""
        return TimingSpec(min_samples=7, max_samples=30, target_relative_interval=0.05, min_gpu_seconds=2e-3,
                          max_seconds=2.0, min_warmup_seconds=0.02, max_warmup_seconds=0.2)


# ---------------------------------------------------------------- what comes out
def median_ranks(count: int) -> tuple[int, int]:
    """The 0-based ranks of the order statistics that hold the median with at least 95 % probability.

    Exact, whatever the distribution: the number of samples below the median is binomial (n, 1/2); the k-th smallest
    lies above it with probability P(B < k) = sum_{i<k} C(n, i) / 2^n, which both ends keep to 2.5 % or less.
    """
    if count < FEWEST_SAMPLES:
        raise PerflabError(f"{count} samples have no 95 % interval of the median: at least {FEWEST_SAMPLES} are needed")
    k, below = 0, 1
    while 40 * below <= 2**count:  # below / 2^n <= 0.025, in integers
        k += 1
        below += math.comb(count, k)
    return k - 1, count - k


@dataclass(frozen=True)
class Series:
    """Samples in seconds, in the order taken and rounded to ns, and why there are no more. Statistics when asked."""

    samples_seconds: tuple[float, ...]
    stopped: str
    repeats: int = 1

    @property
    def median_seconds(self) -> float:
        """The middle sample, seconds."""
        return statistics.median(self.samples_seconds)

    @property
    def interval_seconds(self) -> tuple[float, float]:
        """The exact 95 % interval of the median, seconds: two of the samples."""
        ordered, (low, high) = sorted(self.samples_seconds), median_ranks(len(self.samples_seconds))
        return ordered[low], ordered[high]

    def to_dict(self) -> dict[str, Any]:
        """As JSON: the samples, and the median and its interval for who reads the line."""
        return {"median_seconds": self.median_seconds, "interval": list(self.interval_seconds),
                "samples": list(self.samples_seconds), "stopped": self.stopped, "repeats": self.repeats}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Series:
        """Back from a record; the statistics are computed anew from the samples."""
        return Series(tuple(data["samples"]), data["stopped"], data["repeats"])


@dataclass(frozen=True)
class Timing:
    """One version at one shape: cold and hot, the empty kernel timed the same two ways, and the clocks around it."""

    cold: Series
    hot: Series
    empty_launch_seconds: float
    empty_hot_seconds: float
    clocks_before: Mapping[str, Any]
    clocks_after: Mapping[str, Any]
    method: str = METHOD

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for a record."""
        return {**asdict(self), "cold": self.cold.to_dict(), "hot": self.hot.to_dict()}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Timing:
        """Back from a record."""
        return Timing(**{**data, "cold": Series.from_dict(data["cold"]), "hot": Series.from_dict(data["hot"])})


# ---------------------------------------------------------------- how
class Stopwatch:
    """Times launches on one device. `tools` is the cubin of TOOLS_SOURCE; `now` is the wall clock, in seconds."""

    def __init__(self, device: Device, tools: bytes, now: Callable[[], float] = time.monotonic) -> None:
        import numpy as np

        self._device, self._now = device, now
        attributes = device.describe()["attributes"]
        count = 2 * attributes["l2_bytes"] // 16
        self._other = device.upload(np.zeros(16 * count, np.uint8))
        arguments = (self._other, np.int64(count), device.upload(np.zeros(1, np.uint32)))
        grid = (8 * attributes["sm_count"], 1, 1)
        self._read = device.launcher(device.load(tools, READ), grid, (256, 1, 1), arguments, 0)
        self._empty = device.launcher(device.load(tools, EMPTY), (1, 1, 1), (32, 1, 1), (), 0)
        self._start, self._stop = device.new_event(), device.new_event()

    def time(self, launch: Callable[[], None], spec: TimingSpec) -> Timing:
        """Warm up, then time `launch` cold and hot, and the empty kernel beside it."""
        once = self._warm_up(launch, spec)
        before = self._device.clocks()
        cold = self._series(lambda: self._cold(launch), 1, spec)
        repeats = max(1, min(spec.max_repeats, round(spec.batch_seconds / once)))
        launch()  # the last flush still fills the cache
        hot = self._series(lambda: self._batch(launch, repeats), repeats, spec)
        after = self._device.clocks()
        empty = TimingSpec(min_samples=spec.min_samples, max_samples=spec.min_samples)
        empty_cold = self._series(lambda: self._cold(self._empty), 1, empty)
        empty_hot = self._series(lambda: self._batch(self._empty, 100), 100, empty)
        return Timing(cold, hot, empty_cold.median_seconds, empty_hot.median_seconds, before, after)

    def _cold(self, launch: Callable[[], None]) -> float:
        """One launch after a flush: written, so that the buffer owns the cache; read, so that its lines are clean."""
        self._device.fill(self._other, 0)
        self._read()
        return self._batch(launch, 1)

    def _batch(self, launch: Callable[[], None], repeats: int) -> float:
        """Seconds a launch, between two events around `repeats` of them."""
        device = self._device
        device.record(self._start)
        for _ in range(repeats):
            launch()
        device.record(self._stop)
        return device.seconds_between(self._start, self._stop) / repeats

    def _warm_up(self, launch: Callable[[], None], spec: TimingSpec) -> float:
        """Launch until it gets no faster: clocks rise under load only. Returns the seconds of the last launches."""
        end, spent, before = self._now() + spec.max_warmup_seconds, 0.0, math.inf
        while True:
            taken = [self._batch(launch, 1) for _ in range(WINDOW)]
            spent, latest = spent + sum(taken), statistics.median(taken)
            settled = spent >= spec.min_warmup_seconds and latest >= 0.98 * before
            if settled or self._now() >= end:
                return latest
            before = latest

    def _series(self, sample: Callable[[], float], repeats: int, spec: TimingSpec) -> Series:
        """Samples until the spec is met, a limit reached or the time used up; says which."""
        samples: list[float] = []
        begin, gpu_seconds, stopped = self._now(), 0.0, ""
        while not stopped:
            taken = sample()
            gpu_seconds += taken * repeats
            samples.append(round(taken, 9))
            if len(samples) >= FEWEST_SAMPLES:
                stopped = _why_stop(samples, gpu_seconds, self._now() - begin, spec)
        return Series(tuple(samples), stopped, repeats)


def _why_stop(samples: Sequence[float], gpu_seconds: float, seconds: float, spec: TimingSpec) -> str:
    """Why a series ends here, in words; '' if it goes on."""
    so_far = Series(tuple(samples), "")
    low, high = so_far.interval_seconds
    width = (high - low) / so_far.median_seconds
    wide = f"interval {100 * width:.1f} % of the median"
    if len(samples) >= spec.min_samples and gpu_seconds >= spec.min_gpu_seconds and width <= spec.target_relative_interval:
        return f"steady: {wide}"
    if len(samples) >= spec.max_samples:
        return f"{spec.max_samples} samples: {wide}"
    if seconds >= spec.max_seconds:
        return f"{spec.max_seconds:g} s used up: {wide}"
    return ""
