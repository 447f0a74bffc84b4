"""perflab.timing: statistics that are exact, and a method seen through a fake GPU with a virtual clock."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction

import pytest
from fake_gpu import LAUNCH_GAP_SECONDS, FakeGpu, Kernel
from hypothesis import given
from hypothesis import strategies as st

from perflab.errors import PerflabError
from perflab.timing import (
    CLOCK,
    EMPTY,
    HOLD,
    METHOD,
    READ,
    TOOLS_SOURCE,
    Series,
    Stopwatch,
    Timing,
    TimingSpec,
    Work,
    median_ranks,
)


def outside(count: int, below: int) -> Fraction:
    """P(B < below) of the binomial (count, 1/2), summed over every outcome where that is possible."""
    return Fraction(sum(math.comb(count, k) for k in range(below)), 2**count)


@pytest.mark.parametrize(("count", "ranks"), [(6, (0, 5)), (8, (0, 7)), (9, (1, 7)), (20, (5, 14)), (100, (39, 60))])
def test_the_ranks_of_the_tables_of_order_statistics(count: int, ranks: tuple[int, int]) -> None:
    assert median_ranks(count) == ranks


@given(st.integers(min_value=6, max_value=300))
def test_the_interval_is_the_narrowest_that_covers_95_percent(count: int) -> None:
    low, high = median_ranks(count)
    assert low + high == count - 1
    assert 2 * outside(count, low + 1) <= Fraction(1, 20) < 2 * outside(count, low + 2)


def test_the_coverage_by_trying_every_outcome() -> None:
    """7 samples, each below or above the median: the interval misses it where all or none of them are below."""
    low, high = median_ranks(7)
    missed = [s for s in itertools.product((0, 1), repeat=7) if not (sorted(s)[low] == 0 and sorted(s)[high] == 1)]
    assert len(missed) / 2**7 <= 0.05


def test_statistics_of_a_series() -> None:
    series = Series((5.0, 1.0, 2.0, 4.0, 3.0, 6.0, 100.0), "enough")
    assert series.median_seconds == 4.0
    assert series.interval_seconds == (1.0, 100.0)
    assert Series.from_dict(json.loads(json.dumps(series.to_dict()))) == series
    with pytest.raises(PerflabError, match="5 samples have no 95 % interval of the median: at least 6"):
        _ = Series((1.0,) * 5, "").interval_seconds


def timed(kernel: Kernel, spec: TimingSpec | None = None, **gpu: object) -> tuple[Timing, FakeGpu]:
    device = FakeGpu({"kernel": kernel}, **gpu)
    launch = device.launcher("kernel", (1, 1, 1), (32, 1, 1), (), 0)
    return Stopwatch(device, b"tools", now=lambda: device.now).time(launch, spec or TimingSpec()), device


def test_a_steady_kernel_stops_early_at_its_own_time_and_says_so() -> None:
    """Its own: the fake's launch gap of 5 us is not inside, for a 20 us kernel neither."""
    timing, _ = timed(Kernel(seconds=2e-5, noise=0.002), TimingSpec(min_gpu_seconds=0))
    for series in (timing.cold, timing.hot):
        assert series.median_seconds == pytest.approx(2e-5, rel=0.002)
        assert len(series.samples_seconds) == 20
        assert series.stopped.startswith("steady: interval 0.")
    assert timing.method == METHOD == "hold-1" and timing.held
    assert timing.empty_launch_seconds == timing.empty_hot_seconds == pytest.approx(1e-6)


def test_work_that_waits_for_the_gpu_is_timed_without_the_hold_and_says_so() -> None:
    timing, device = timed(Kernel(seconds=1e-3, does="wait"))
    assert not timing.held
    assert timing.cold.median_seconds == pytest.approx(1e-3 + LAUNCH_GAP_SECONDS)
    assert max(timing.cold.samples_seconds) < 0.1, "the sample in which the hold ran out must not be kept"


def test_the_sm_clock_is_read_over_the_samples() -> None:
    timing, _ = timed(Kernel(seconds=1e-3))
    assert timing.cold.sm_hz == pytest.approx(1.98e9, rel=1e-3)
    assert timed(Kernel(seconds=1e-6))[0].cold.sm_hz is None  # too short to tell
    slow, _ = timed(Kernel(seconds=1e-3), throttled_hz=0.99e9)
    assert slow.cold.sm_hz == pytest.approx(0.99e9, rel=1e-3)
    assert slow.cold.median_seconds == pytest.approx(2e-3) and slow.clocks_after["throttle"] == ["power"]


def rounds_of(device: FakeGpu, *names: str) -> list[list[str]]:
    """The order in which each round of cold samples launched the kernels."""
    marks = [entry[-1] for entry in device.log if entry[0] == "launch"]
    cold = [b for a, clock, b in zip(marks, marks[1:], marks[2:], strict=False) if (a, clock) == (READ, CLOCK) and b in names]
    return [cold[k : k + len(names)] for k in range(0, len(cold), len(names))]


def test_what_is_compared_is_interleaved_and_the_order_rotates() -> None:
    device = FakeGpu({name: Kernel(seconds=1e-3) for name in "abc"})
    works = {name: device.launcher(name, (1, 1, 1), (32, 1, 1), (), 0) for name in "abc"}
    timings = Stopwatch(device, b"tools", now=lambda: device.now).compare(works, TimingSpec())
    order = rounds_of(device, "a", "b", "c")
    assert order[:4] == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]
    assert {len(t.cold.samples_seconds) for t in timings.values()} == {len(order)}
    assert timings["a"].together == ("b", "c")


def test_drift_falls_on_all_that_is_compared() -> None:
    """Both get 0.05 % slower with every launch; timed one after the other the second would lose by a few percent."""
    device = FakeGpu({name: Kernel(seconds=1e-3, drift=5e-4) for name in "ab"})
    works = {name: device.launcher(name, (1, 1, 1), (32, 1, 1), (), 0) for name in "ab"}
    timings = Stopwatch(device, b"tools", now=lambda: device.now).compare(works, TimingSpec())
    assert timings["b"].cold.median_seconds / timings["a"].cold.median_seconds == pytest.approx(1, abs=1e-3)


def test_samples_alternate_between_allocations() -> None:
    device = FakeGpu({"one": Kernel(seconds=1e-3), "two": Kernel(seconds=1.1e-3)})
    both = [device.launcher(name, (1, 1, 1), (32, 1, 1), (), 0) for name in ("one", "two")]
    timing = Stopwatch(device, b"tools", now=lambda: device.now).time(Work(tuple((a,) for a in both)), TimingSpec())
    assert [round(s * 1e4) for s in timing.cold.samples_seconds[:4]] == [10, 11, 10, 11]


def test_a_version_of_several_launches_is_timed_whole_and_by_part() -> None:
    device = FakeGpu({"split": Kernel(seconds=1e-3), "reduce": Kernel(seconds=1e-4)})
    launches = tuple(device.launcher(name, (1, 1, 1), (32, 1, 1), (), 0) for name in ("split", "reduce"))
    stopwatch = Stopwatch(device, b"tools", now=lambda: device.now)
    timing = stopwatch.time(Work((launches,), ("split", "reduce")), TimingSpec())
    assert timing.cold.median_seconds == pytest.approx(1.1e-3)
    assert [(name, pytest.approx(seconds)) for name, seconds in timing.parts] == [("split", 1e-3), ("reduce", 1e-4)]
    assert Timing.from_dict(json.loads(json.dumps(timing.to_dict()))) == timing


def test_nvbench_s_flush_is_a_named_mode() -> None:
    timing, device = timed(Kernel(seconds=1e-3), TimingSpec(flush="memset"), l2_bytes=1 << 20)
    assert timing.flush == "memset" and ("launch", READ) not in device.log
    assert {entry for entry in device.log if entry[0] == "fill"} == {("fill", 1 << 20)}
    with pytest.raises(PerflabError, match='flush "none": read or memset'):
        TimingSpec(flush="none")


def test_a_noisy_kernel_takes_all_samples_and_says_how_wide_it_stays() -> None:
    timing, _ = timed(Kernel(seconds=2e-3, noise=0.5))
    assert len(timing.cold.samples_seconds) == 200
    assert timing.cold.stopped.startswith("200 samples: interval ")
    low, high = timing.cold.interval_seconds
    assert low < 2e-3 + LAUNCH_GAP_SECONDS < high


def test_a_slow_kernel_ends_by_time_but_never_below_six_samples() -> None:
    timing, _ = timed(Kernel(seconds=3.0))
    assert len(timing.cold.samples_seconds) == 6
    assert timing.cold.stopped.startswith("10 s used up")


def test_samples_are_raw_and_rounded_to_the_nanosecond() -> None:
    timing, _ = timed(Kernel(seconds=1.23456789e-3, noise=0.1))
    assert all(s == round(s, 9) for s in timing.cold.samples_seconds)
    assert len(set(timing.cold.samples_seconds)) > 20


def test_before_every_cold_sample_the_cache_is_written_then_read_and_never_in_hot_ones() -> None:
    timing, device = timed(Kernel(seconds=1e-3), l2_bytes=1 << 20)
    marks = [entry[-1] if entry[0] == "launch" else entry for entry in device.log]
    cold = [HOLD, ("fill", 2 << 20), READ, CLOCK, ("record",), "kernel", ("record",), CLOCK]
    starts = [k for k in range(len(marks)) if marks[k : k + len(cold)] == cold]
    assert len(starts) == len(timing.cold.samples_seconds)
    hot = marks[starts[-1] + len(cold) : marks.index(EMPTY)]
    assert READ not in hot[:-3]
    assert hot[:-3].count("kernel") == (1 + timing.hot.repeats) * len(timing.hot.samples_seconds)


def test_a_short_kernel_is_repeated_within_a_hot_sample() -> None:
    timing, _ = timed(Kernel(seconds=1e-5))
    assert timing.hot.repeats == 67  # 1 ms over 10 us and a launch gap, from the warm-up
    assert timing.hot.median_seconds == pytest.approx(1e-5)
    assert timed(Kernel(seconds=0.1))[0].hot.repeats == 1


def test_warm_up_goes_on_while_the_kernel_gets_faster() -> None:
    timing, device = timed(Kernel(seconds=1e-3, slower_at_first=3.0))
    assert timing.cold.median_seconds == pytest.approx(1e-3, rel=0.03)
    assert max(timing.cold.samples_seconds) < 1.1e-3
    first_fill = device.log.index(("fill", 2 << 16))
    assert sum(entry == ("launch", "kernel") for entry in device.log[:first_fill]) > 40


@pytest.mark.parametrize(("seconds", "launches"), [(1.0, 1), (0.2, 2)])
def test_warm_up_is_bounded(seconds: float, launches: int) -> None:
    """It ends with the launch that passes its limit, in the middle of a window too."""
    timing, device = timed(Kernel(seconds=seconds, slower_at_first=2.0), TimingSpec(max_warmup_seconds=0.5))
    first_fill = device.log.index(("fill", 2 << 16))
    assert sum(entry == ("launch", "kernel") for entry in device.log[:first_fill]) == launches


def test_a_timing_comes_back_from_json() -> None:
    timing, _ = timed(Kernel(seconds=1e-3, noise=0.01))
    plain = json.loads(json.dumps(timing.to_dict()))
    assert plain["cold"]["samples"] and plain["cold"]["median_seconds"] == timing.cold.median_seconds
    assert Timing.from_dict(plain) == timing


def test_the_tools_compile_and_the_read_kernel_keeps_its_loads() -> None:
    compile_ = pytest.importorskip("perflab.compile")
    try:
        binary = compile_.compile_source(compile_.Source("timing_tools.cu", TOOLS_SOURCE), "sm_90")
    except PerflabError as error:
        pytest.skip(f"no compiler: {error}")
    assert {EMPTY, READ, HOLD, CLOCK} == set(binary.entries.values())
    assert "ld.global.v4" in binary.ptx or "ld.global.nc.v4" in binary.ptx
