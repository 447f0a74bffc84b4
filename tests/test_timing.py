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
from perflab.timing import EMPTY, METHOD, READ, TOOLS_SOURCE, Series, Stopwatch, Timing, TimingSpec, median_ranks


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


def test_a_steady_kernel_stops_early_at_its_time_and_says_so() -> None:
    timing, _ = timed(Kernel(seconds=2e-3, noise=0.002))
    for series in (timing.cold, timing.hot):
        assert series.median_seconds == pytest.approx(2e-3 + LAUNCH_GAP_SECONDS, rel=0.01)
        assert len(series.samples_seconds) == 15
        assert series.stopped.startswith("steady: interval 0.")
    assert timing.method == METHOD == "events-1"
    assert timing.empty_launch_seconds == pytest.approx(1e-6 + LAUNCH_GAP_SECONDS)
    assert timing.empty_hot_seconds == pytest.approx(1e-6 + LAUNCH_GAP_SECONDS)


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
    cold = [("fill", 2 << 20), READ, ("record",), "kernel", ("record",)]
    starts = [k for k in range(len(marks)) if marks[k : k + len(cold)] == cold]
    assert len(starts) == len(timing.cold.samples_seconds)
    hot = marks[starts[-1] + len(cold) : marks.index(EMPTY)]
    assert READ not in hot[:-2]
    assert hot[:-2].count("kernel") == 1 + timing.hot.repeats * len(timing.hot.samples_seconds)


def test_a_short_kernel_is_repeated_within_a_hot_sample() -> None:
    timing, _ = timed(Kernel(seconds=5e-6))
    assert timing.hot.repeats == 200  # 2 ms over 10 us
    assert timing.hot.median_seconds == pytest.approx(5e-6 + LAUNCH_GAP_SECONDS)
    assert timed(Kernel(seconds=0.1))[0].hot.repeats == 1


def test_warm_up_goes_on_while_the_kernel_gets_faster() -> None:
    timing, device = timed(Kernel(seconds=1e-3, slower_at_first=3.0))
    assert timing.cold.median_seconds == pytest.approx(1e-3, rel=0.03)
    assert max(timing.cold.samples_seconds) < 1.1e-3
    first_fill = device.log.index(("fill", 2 << 16))
    assert sum(entry == ("launch", "kernel") for entry in device.log[:first_fill]) > 40


def test_warm_up_is_bounded() -> None:
    timing, device = timed(Kernel(seconds=1.0, slower_at_first=2.0), TimingSpec(max_warmup_seconds=0.5))
    first_fill = device.log.index(("fill", 2 << 16))
    assert sum(entry == ("launch", "kernel") for entry in device.log[:first_fill]) == 5


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
    assert {EMPTY, READ} == set(binary.entries.values())
    assert "ld.global.v4" in binary.ptx or "ld.global.nc.v4" in binary.ptx
