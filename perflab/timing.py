"""How to time a kernel: method "hold-1". Pure logic over the `Device` protocol.

Two named numbers, never mixed. *Cold*: before every sample a buffer of twice the L2 cache is written, then read, so that the
cache holds its lines and they are clean: nothing is written back inside the sample. *Hot*: one launch that is not timed, then a
batch of launches between two events. The empty kernel, timed the same two ways, stands beside; it is never subtracted.

No launch gap: a *hold* kernel keeps the stream busy until flush, events and launches of a sample are all queued; then the host
lets go. It ends by itself after HOLD_SECONDS, so that work which waits for the GPU cannot deadlock; then the sample is dropped,
the series goes on without holding, and says so (`held`).

What is compared is interleaved: a round takes one sample of each, in an order that rotates, on memory that alternates between
several allocations. The SM clock over each sample is read off SM 0 (clock64 over globaltimer).
Write-up of the ideas and what they cure: NVIDIA/nvbench (hold kernel, flush), pytorch/helion (interleaving).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from perflab.device import Device
from perflab.errors import PerflabError

METHOD = "hold-1"
FEWEST_SAMPLES = 6  # fewer have no 95 % interval of the median: 2 / 2^5 is over 5 %
WINDOW = 5  # samples that warm-up compares
HOLD_SECONDS = 0.5
LONG_ENOUGH_SECONDS = 2e-5  # for the SM clock: globaltimer ticks in microseconds
FLUSHES = ("read", "memset")

TOOLS_SOURCE = """// Kernels that timing itself launches.
__device__ long long now_ns() { long long t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }

// An empty one: what a launch costs.
extern "C" __global__ void perflab_empty() {}

// Keeps the stream busy until the host writes *flag, at most limit_ns; *flag is then -1.
extern "C" __global__ void perflab_hold(volatile int* flag, long long limit_ns) {
    const long long begin = now_ns();
    while (*flag == 0) {
        if (now_ns() - begin > limit_ns) { *flag = -1; __threadfence_system(); return; }
        __nanosleep(200);
    }
}

// The clock of SM 0 and the time, for the clock rate between two such readings.
extern "C" __global__ void perflab_clock(volatile long long* reading) {
    unsigned sm; asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
    if (sm == 0) { reading[0] = clock64(); reading[1] = now_ns(); }
}

// Reads 16 bytes a step from all of `data`, so that the L2 cache holds these clean lines and no others. `sink` is written
// only if all words are ones, which they never are: the compiler must keep the loads.
extern "C" __global__ void perflab_read(const uint4* data, long long count, unsigned* sink) {
    unsigned all = ~0u;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x) {
        uint4 v = data[i];
        all &= v.x & v.y & v.z & v.w;
    }
    if (all == ~0u) *sink = all;
}
"""
EMPTY, HOLD, CLOCK, READ = "perflab_empty", "perflab_hold", "perflab_clock", "perflab_read"

Launch = Callable[[], None]


# ---------------------------------------------------------------- what is asked
@dataclass(frozen=True)
class TimingSpec:
    """When a series of samples may stop, and how long to warm up. The limits hold for each of cold and hot.

    It stops once it has min_samples, min_gpu_seconds of GPU time, and a 95 % interval of the median no wider than
    target_relative_interval of it; or at max_samples; or after max_seconds, but never with fewer than 6 samples.
    A hot sample repeats the launches until a batch takes about batch_seconds, at most max_repeats times.
    flush: "read" (write, then read: clean lines), or "memset" (a memset of the L2's size, as nvbench does; for agreement only).
    """

    min_samples: int = 20
    max_samples: int = 200
    target_relative_interval: float = 0.005
    min_gpu_seconds: float = 0.02
    max_seconds: float = 10.0
    min_warmup_seconds: float = 0.1
    max_warmup_seconds: float = 1.0
    batch_seconds: float = 1e-3
    max_repeats: int = 100
    flush: str = "read"

    def __post_init__(self) -> None:
        if self.flush not in FLUSHES:
            raise PerflabError(f'flush "{self.flush}": {" or ".join(FLUSHES)}')

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
    """Samples in seconds, in the order taken and rounded to ns, and why there are no more. Statistics when asked.

    repeats: launches in a sample; sm_hz: median SM clock over the samples, None where they are too short to tell.
    """

    samples_seconds: tuple[float, ...]
    stopped: str
    repeats: int = 1
    sm_hz: float | None = None

    @property
    def median_seconds(self) -> float:
        """The middle sample, seconds."""
        return statistics.median(self.samples_seconds)

    @property
    def interval_seconds(self) -> tuple[float, float]:
        """The exact 95 % interval of the median, seconds: two of the samples."""
        ordered, (low, high) = sorted(self.samples_seconds), median_ranks(len(self.samples_seconds))
        return ordered[low], ordered[high]

    def interval_words(self, digits: int = 2) -> str:
        """The interval's ends as differences from the median: '-0.09 to +0.12 %'."""
        return " to ".join(f"{100 * (end / self.median_seconds - 1):+.{digits}f}" for end in self.interval_seconds) + " %"

    @property
    def iqr_seconds(self) -> float:
        """Interquartile range, seconds."""
        first, _, third = statistics.quantiles(self.samples_seconds, n=4, method="inclusive")
        return third - first

    def to_dict(self) -> dict[str, Any]:
        """As JSON: the samples, and the median and its interval for who reads the line."""
        return {"median_seconds": self.median_seconds, "interval": list(self.interval_seconds),
                "samples": list(self.samples_seconds), "stopped": self.stopped, "repeats": self.repeats, "sm_hz": self.sm_hz}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Series:
        """Back from a record; the statistics are computed anew from the samples."""
        return Series(tuple(data["samples"]), data["stopped"], data["repeats"], data.get("sm_hz"))


@dataclass(frozen=True)
class Timing:
    """One version at one shape: cold and hot, the empty kernel timed the same two ways, and the clocks around it.

    parts: (kernel, its cold median) of a version of several launches, timed apart from the whole; held: False where the
    work waits for the GPU itself, so that the launch gap is inside; together: what it was interleaved with.
    """

    cold: Series
    hot: Series
    empty_launch_seconds: float
    empty_hot_seconds: float
    clocks_before: Mapping[str, Any]
    clocks_after: Mapping[str, Any]
    parts: tuple[tuple[str, float], ...] = ()
    held: bool = True
    together: tuple[str, ...] = ()
    flush: str = "read"
    method: str = METHOD

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for a record."""
        return {**asdict(self), "cold": self.cold.to_dict(), "hot": self.hot.to_dict()}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Timing:
        """Back from a record."""
        tuples = {"parts": tuple((name, seconds) for name, seconds in data.get("parts", ())),
                  "together": tuple(data.get("together", ()))}
        return Timing(**{**data, **tuples, "cold": Series.from_dict(data["cold"]), "hot": Series.from_dict(data["hot"])})


class Timed:
    """Anything that holds a `Timing`: one of its times stands for it, the cold median."""

    timing: Timing

    @property
    def seconds(self) -> float:
        """The cold median."""
        return self.timing.cold.median_seconds

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the cold median, in seconds."""
        return self.timing.cold.interval_seconds


@dataclass(frozen=True)
class Work:
    """What is timed under one name: its launches in order, on each of several allocations: allocations[a][launch]."""

    allocations: tuple[tuple[Launch, ...], ...]
    parts: tuple[str, ...] = ()

    @staticmethod
    def of(launch: Launch) -> Work:
        """One callable on the memory it has."""
        return Work(((launch,),))

    def run(self, turn: int) -> None:
        """Queue all launches, on allocation `turn` modulo how many there are."""
        for launch in self.allocations[turn % len(self.allocations)]:
            launch()


@dataclass
class _Lane:
    """Work while it is timed: whether it can be queued under the hold is found out on the way."""

    work: Work
    held: bool = True


# ---------------------------------------------------------------- how
class Stopwatch:
    """Times launches on one device. `tools` is the cubin of TOOLS_SOURCE; `now` is the wall clock, in seconds."""

    def __init__(self, device: Device, tools: bytes, now: Callable[[], float] = time.monotonic) -> None:
        import numpy as np

        self._device, self._now = device, now
        attributes = device.describe()["attributes"]
        sms, self._l2_bytes = attributes["sm_count"], attributes["l2_bytes"]

        def tool(entry: str, blocks: int, threads: int, *arguments: Any) -> Launch:
            return device.launcher(device.load(tools, entry), (blocks, 1, 1), (threads, 1, 1), arguments, 0)

        count = 2 * self._l2_bytes // 16
        self._other = device.upload(np.zeros(16 * count, np.uint8))
        self._half = device.upload(np.zeros(self._l2_bytes, np.uint8))
        self._read = tool(READ, 8 * sms, 256, self._other, np.int64(count), device.upload(np.zeros(1, np.uint32)))
        self._empty = tool(EMPTY, 1, 32)
        self._flag, self._readings = device.host_array("int32", 1), device.host_array("int64", 4)
        self._hold = tool(HOLD, 1, 1, self._flag.address, np.int64(HOLD_SECONDS * 1e9))
        self._clocks = [tool(CLOCK, 2 * sms, 1, np.uint64(self._readings.address + 16 * k)) for k in range(2)]
        self._events = [device.new_event() for _ in range(2)]

    def time(self, launch: Launch | Work, spec: TimingSpec) -> Timing:
        """Time one callable, or work on several allocations: cold and hot, the empty kernel beside it."""
        return self.compare({"": launch}, spec)[""]

    def compare(self, works: Mapping[str, Launch | Work], spec: TimingSpec) -> dict[str, Timing]:
        """Time several, interleaved: round k takes a sample of each, beginning with the k-th. {name: Timing}."""
        lanes = {name: _Lane(work if isinstance(work, Work) else Work.of(work)) for name, work in works.items()}
        once = {name: self._warm_up(lane.work, spec) for name, lane in lanes.items()}
        before = self._device.clocks()
        cold = self._rounds(lanes, dict.fromkeys(lanes, 1), spec, spec.flush)
        repeats = {name: max(1, min(spec.max_repeats, round(spec.batch_seconds / once[name]))) for name in lanes}
        hot = self._rounds(lanes, repeats, spec, "")
        after = self._device.clocks()
        few = replace(spec, max_samples=spec.min_samples)
        empty = {"": _Lane(Work.of(self._empty))}
        empty_cold = self._rounds(empty, {"": 1}, few, spec.flush)[""].median_seconds
        empty_hot = self._rounds(empty, {"": 100}, few, "")[""].median_seconds
        return {
            name: Timing(cold[name], hot[name], empty_cold, empty_hot, before, after, self._parts(lane, few), lane.held,
                         tuple(other for other in lanes if other != name), spec.flush)
            for name, lane in lanes.items()
        }

    def _rounds(self, lanes: Mapping[str, _Lane], repeats: Mapping[str, int], spec: TimingSpec,
                flush: str) -> dict[str, Series]:
        """Interleaved samples until every series meets the spec or a limit; all end with the same number of samples."""
        samples: dict[str, list[float]] = {name: [] for name in lanes}
        clocks: dict[str, list[float]] = {name: [] for name in lanes}
        begin, names, turn = self._now(), list(lanes), 0
        why: dict[str, str] = {}
        while len(why) < len(names):
            for name in names[turn % len(names):] + names[: turn % len(names)]:
                taken, hertz = self._sample(lanes[name], turn, repeats[name], flush)
                samples[name].append(round(taken, 9))
                clocks[name] += [hertz] if hertz else []
            turn += 1
            if turn >= FEWEST_SAMPLES:
                spent = (self._now() - begin) / len(names)
                said = {name: _why_stop(samples[name], sum(samples[name]) * repeats[name], spent, spec) for name in names}
                why = {name: words for name, words in said.items() if words}
        return {name: Series(tuple(samples[name]), why[name], repeats[name],
                             statistics.median(clocks[name]) if clocks[name] else None) for name in names}

    def _sample(self, lane: _Lane, turn: int, repeats: int, flush: str) -> tuple[float, float | None]:
        """(seconds a launch, SM clock or None). Queued under the hold; again, and from then on, without it if it ran out."""
        device, (start, stop) = self._device, self._events
        self._begin_hold(lane)
        if flush:
            self._flush(flush)
        else:
            lane.work.run(turn)
        self._clocks[0]()
        device.record(start)
        for _ in range(repeats):
            lane.work.run(turn)
        device.record(stop)
        self._clocks[1]()
        ran_out = self._end_hold()
        taken = device.seconds_between(start, stop) / repeats
        device.synchronize()
        if ran_out:
            lane.held = False
            return self._sample(lane, turn, repeats, flush)
        ticks, nanoseconds = (int(self._readings.array[2 + k] - self._readings.array[k]) for k in range(2))
        tells = nanoseconds >= 1e9 * LONG_ENOUGH_SECONDS and ticks > 0
        return taken, 1e9 * ticks / nanoseconds if tells else None

    def _begin_hold(self, lane: _Lane) -> None:
        self._flag.array[0] = 0 if lane.held else 1
        self._hold()

    def _end_hold(self) -> bool:
        """Let the stream go on; True if the hold had ended by itself, so that the launch gap is inside."""
        ran_out = int(self._flag.array[0]) < 0
        self._flag.array[0] = 1
        return ran_out

    def _flush(self, kind: str) -> None:
        """Fill the L2 with other lines. "read": written, so that the buffer owns the cache; read, so that they are clean."""
        if kind == "memset":
            self._device.fill(self._half, 0)
            return
        self._device.fill(self._other, 0)
        self._read()

    def _parts(self, lane: _Lane, spec: TimingSpec) -> tuple[tuple[str, float], ...]:
        """Cold median of each launch of a version of several; the launches before it run first, outside its time."""
        parts = lane.work.parts if len(lane.work.parts) > 1 else ()
        return tuple(
            (part, statistics.median(self._part(lane, turn, place, spec.flush) for turn in range(spec.min_samples)))
            for place, part in enumerate(parts)
        )

    def _part(self, lane: _Lane, turn: int, place: int, flush: str) -> float:
        launches = lane.work.allocations[turn % len(lane.work.allocations)]
        self._begin_hold(lane)
        self._flush(flush)
        for launch in launches[:place]:
            launch()
        self._device.record(self._events[0])
        launches[place]()
        self._device.record(self._events[1])
        self._end_hold()
        return self._device.seconds_between(*self._events)

    def _warm_up(self, work: Work, spec: TimingSpec) -> float:
        """Launch until it gets no faster: clocks rise under load only. Returns the seconds of the last launches."""
        end, spent, before = self._now() + spec.max_warmup_seconds, 0.0, math.inf
        while True:
            taken = [self._unheld(work, 0)]
            while len(taken) < WINDOW and self._now() < end:
                taken.append(self._unheld(work, len(taken)))
            spent, latest = spent + sum(taken), statistics.median(taken)
            settled = spent >= spec.min_warmup_seconds and latest >= 0.98 * before
            if settled or self._now() >= end:
                return latest
            before = latest

    def _unheld(self, work: Work, turn: int) -> float:
        """Seconds between two events around one run, launch gap included: nothing was loaded or compiled yet."""
        self._device.record(self._events[0])
        work.run(turn)
        self._device.record(self._events[1])
        return self._device.seconds_between(*self._events)


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
