"""Equal code is never called different; 2 % of planted work is; what cannot be compared is said, not dropped."""

import math
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perflab.comparison import (
    CONFIDENCE,
    FASTER,
    PAIRED_FLOOR,
    SLOWER,
    TIED,
    UNPAIRED_FLOOR,
    compare,
    compare_records,
    fewest,
    rank_sum,
    record_set,
    signed_rank,
    units_apart,
    units_table,
)
from perflab.errors import PerflabError
from perflab.records import Record, RecordFile
from perflab.timing import METHOD, Series
from perflab.workspaces import Workspace

ROOT = Path(__file__).parent.parent
TICK = 32e-9


# ---------------------------------------------------------------- noise as a GPU makes it
def process(rng: random.Random, bases: list[float], jitter: float, samples: int = 30) -> list[Series]:
    """One process: its own offset (two differ by up to 0.5 %) and a drift of 0.5 to 1 %, which all its series share; each
    sample with log-normal jitter, now and then 5 to 30 % too long, in ticks of 32 ns. The series are interleaved."""
    offset, drift = rng.uniform(-0.0025, 0.0025), rng.uniform(0.005, 0.01)
    taken: list[list[float]] = [[] for _ in bases]
    for k in range(samples):
        for i in rng.sample(range(len(bases)), len(bases)):
            seconds = bases[i] * math.exp(offset + drift * k / (samples - 1) + rng.gauss(0, jitter))
            seconds *= 1 + (rng.uniform(0.05, 0.3) if rng.random() < 0.03 else 0)
            taken[i].append(round(seconds / TICK) * TICK)
    return [Series(tuple(series), "enough") for series in taken]


def pair(rng: random.Random, paired: bool, planted: float = 0.0) -> tuple[Series, Series]:
    """Two series of a kernel of 20 us to 5 ms, jitter 0.2 to 1 %; the second with that much more work. In one process the two
    have other buffers: 0.15 % either way."""
    jitter = math.exp(rng.uniform(math.log(0.002), math.log(0.01)))
    base = math.exp(rng.uniform(math.log(2e-5), math.log(5e-3)))
    if paired:
        over, this = process(rng, [base, base * (1 + planted) * (1 + rng.uniform(-0.0015, 0.0015))], jitter)
        return over, this
    return process(rng, [base], jitter)[0], process(rng, [base * (1 + planted)], jitter)[0]


@pytest.mark.parametrize("paired", [True, False], ids=["paired", "unpaired"])
def test_equal_code_is_never_called(paired):
    rng = random.Random(1)
    verdicts = [compare(*pair(rng, paired), paired=paired).verdict for _ in range(1500)]
    assert [verdict for verdict in verdicts if verdict != TIED] == []


@pytest.mark.parametrize("planted, verdict", [(0.02, SLOWER), (-0.02, FASTER)])
@pytest.mark.parametrize("paired", [True, False], ids=["paired", "unpaired"])
def test_two_percent_is_called_45_times_of_50_in_each_of_ten_repetitions(paired, planted, verdict):
    rng = random.Random(2)
    counts = [sum(compare(*pair(rng, paired, planted), paired=paired).verdict == verdict for _ in range(50)) for _ in range(10)]
    assert min(counts) >= 45, counts


# ---------------------------------------------------------------- the ranks
def ways(largest: list[int], total: int) -> list[int]:
    """In how many ways a sum of some of `largest`, each taken or not, is 0, 1, …, total."""
    counts = [1] + [0] * total
    for step in largest:
        for place in range(total, step - 1, -1):
            counts[place] += counts[place - step]
    return counts


def sums_of_ranks(n: int, m: int) -> list[int]:
    """In how many orders of n + m values the Mann-Whitney statistic is 0, 1, …, nm: a Gaussian binomial coefficient."""
    counts = [1] + [0] * (n * m)
    for i in range(1, n + 1):
        for place in range(n * m, m + i - 1, -1):  # times 1 - q^(m+i)
            counts[place] -= counts[place - m - i]
        for place in range(i, n * m + 1):  # over 1 - q^i
            counts[place] += counts[place - i]
    return counts


@pytest.mark.parametrize("n", [8, 12, 16, 20, 30, 50])
@pytest.mark.parametrize("error", [1e-3, 5e-4])
def test_intervals_hold_at_least_at_the_confidence_they_state(n, error):
    """Counted exactly: each end is missed with no more than half the error, and with more where the rank is well higher."""
    signed = ways(list(range(1, n + 1)), n * (n + 1) // 2)
    mixed = sums_of_ranks(n, n)
    assert sum(mixed) == math.comb(2 * n, n)
    for counts, rank in ((signed, signed_rank(n, error)), (mixed, rank_sum(n, n, error))):
        everything = sum(counts)
        assert sum(counts[:rank]) / everything <= error / 2  # the statistic is below the rank
        slack = 4 + rank // 12
        assert n < 30 or sum(counts[: rank + slack]) / everything > error / 2


def test_unequal_numbers_of_samples():
    counts = sums_of_ranks(10, 40)
    assert sum(counts[: rank_sum(10, 40, 1e-3)]) / math.comb(50, 10) <= 5e-4


# ---------------------------------------------------------------- two series
def series(*microseconds: float, repeats: int = 1, sm_hz: float | None = None) -> Series:
    return Series(tuple(t * 1e-6 for t in microseconds), "enough", repeats, sm_hz)


def steady(microseconds: float, samples: int = 30, **more) -> Series:
    """Samples a per mille around a value."""
    return series(*(microseconds * (1 + 0.001 * math.sin(7 * k)) for k in range(samples)), **more)


@pytest.mark.parametrize("paired", [True, False])
def test_a_verdict_says_how_much(paired):
    told = compare(steady(1000), steady(1030), paired)
    assert told.verdict == SLOWER and told.reason == "" and told.confidence == CONFIDENCE
    assert told.ratio == pytest.approx(1.03) and told.interval[0] > 1 and told.interval[0] < 1.03 < told.interval[1]
    assert str(told).startswith("slower: +3.00 % (+") and "99.9 %" in str(told)
    back = compare(steady(1030), steady(1000), paired)
    assert back.verdict == FASTER and back.interval[1] < 1


def test_no_call_under_the_floor_however_still_the_samples():
    for paired, floor in ((True, PAIRED_FLOOR), (False, UNPAIRED_FLOOR)):
        under, beyond = (compare(steady(1000), steady(1000 * (1 + factor * floor)), paired) for factor in (0.9, 1.5))
        assert (under.verdict, beyond.verdict) == (TIED, SLOWER)
        assert under.floor == pytest.approx(floor, rel=0.01) and floor < under.resolution < 1.2 * floor
        assert "tell differences from" in str(under)


def test_one_tick_of_the_clock_is_no_difference():
    """A kernel of 3 us: a tick is 1.07 % of it, and an offset of nothing can flip it. A batch of 100 divides it."""
    over, this = series(*[3.008] * 30), series(*[3.040] * 30)
    assert compare(over, this, paired=False).verdict == TIED
    once, batch = (compare(series(*[1.0] * 30, repeats=n), series(*[1.02] * 30, repeats=n), False) for n in (1, 100))
    assert (once.verdict, batch.verdict) == (TIED, SLOWER) and once.floor > 0.032


def test_pairing_takes_drift_out():
    drift = [1 + 0.1 * k / 29 for k in range(30)]
    over, this = series(*(1000 * d for d in drift)), series(*(1020 * d for d in drift))
    assert compare(over, this, paired=True).verdict == SLOWER
    assert compare(over, this, paired=False).verdict == TIED


def test_too_few_samples_are_a_reason_not_a_guess():
    for paired in (True, False):
        least = fewest(paired)
        few, enough = (compare(steady(100, n), steady(200, n), paired) for n in (least - 1, least))
        assert few.verdict == TIED and few.interval is None and f"at least {least} each" in few.reason
        assert enough.verdict == SLOWER


def test_series_that_cannot_be_compared():
    with pytest.raises(PerflabError, match="30 and 29 samples are not paired"):
        compare(steady(100, 30), steady(100, 29), paired=True)
    for bad in (series(), series(*[0.0] * 30)):
        with pytest.raises(PerflabError, match="times over 0"):
            compare(bad, steady(100), paired=False)


TIMES = st.lists(st.floats(1e-5, 1e-2), min_size=16, max_size=24)


@settings(max_examples=60, deadline=None)
@given(TIMES, TIMES, st.booleans())
def test_swapping_the_two_swaps_the_verdict(first, second, paired):
    if paired:
        n = min(len(first), len(second))
        first, second = first[:n], second[:n]
    a, b = Series(tuple(first), ""), Series(tuple(second), "")
    there, back = compare(a, b, paired), compare(b, a, paired)
    assert back.verdict == {FASTER: SLOWER, SLOWER: FASTER, TIED: TIED}[there.verdict]
    assert back.interval[0] == pytest.approx(1 / there.interval[1]) and back.ratio == pytest.approx(1 / there.ratio)
    assert there.interval[0] <= there.ratio <= there.interval[1]
    assert compare(a, a, paired).verdict == TIED


# ---------------------------------------------------------------- two sets of records
def record(version: str = "scalar", microseconds: float = 100.0, n: int = 1000, *, uuid: str = "GPU-1",
           gpu: str = "NVIDIA H200", method: str = METHOD, utc: str = "2026-01-01T00:00:00Z", hot: float | None = None,
           kind: str = "timing", sm_hz: float | None = None, **more) -> Record:
    """A record of saxpy."""
    cold, warm = steady(microseconds, sm_hz=sm_hz), steady(hot or microseconds / 2, repeats=20)
    clocks = {"sm_hz": 1.98e9}
    payload = {"cold": cold.to_dict(), "hot": warm.to_dict(), "empty_launch_seconds": 2e-6, "empty_hot_seconds": 1e-6,
               "clocks_before": clocks, "clocks_after": clocks, "method": method}
    provenance = {"code": "c", "launches": "l", "inputs": "i", "method": method, "utc": utc, "driver": "580.1", "commit": "abc"}
    return Record("saxpy", version, {"n": n}, kind, payload if kind == "timing" else {"passed": True},
                  {"name": gpu, "uuid": uuid, "capability": "9.0"}, provenance, **more)


def test_each_thing_with_its_like_the_newest_of_each():
    over = [record(n=1000), record(n=2000), record("float4"), record("float4", 300, utc="2025-01-01T00:00:00Z"),
            record(kind="check")]
    this = [record("float4", 99.2), record(n=2000, microseconds=105), record(n=1000, microseconds=96)]
    found = compare_records(over, this)
    assert [(row.name, row.this.shape["n"], row.comparison.verdict) for row in found.rows] == [
        ("saxpy/float4", 1000, TIED), ("saxpy/scalar", 1000, FASTER), ("saxpy/scalar", 2000, SLOWER)]
    assert [row.this.shape["n"] for row in found.regressions] == [2000]
    assert found.summary == "1 faster, 1 slower, 1 the same (cannot be told apart)"
    assert "+5.00 %" in str(found) and "-4.00 %" in str(found)


def test_cold_and_hot_apart():
    over, this = [record(hot=50)], [record(hot=60)]
    assert not compare_records(over, this).regressions
    assert len(compare_records(over, this, hot=True).regressions) == 1


def test_rivals_dtypes_and_shapes_are_not_mixed_up():
    over = [record(), record(rival="cublas"), record(dtype="float16"), record(n=7)]
    assert len(compare_records(over, over).rows) == 4
    assert len(compare_records(over[:1], over[1:]).rows) == 0
    assert "saxpy/cublas (rival)" in str(compare_records(over, over))


def test_what_one_set_lacks_is_listed():
    found = compare_records([record(), record("old")], [record(), record("new")])
    assert [r.version for r in (*found.only_over, *found.only_this)] == ["old", "new"]
    lines = str(found).splitlines()
    assert any("saxpy/old" in line and line.endswith("only in over") for line in lines)
    assert any("saxpy/new" in line and line.endswith("only in this") for line in lines)
    assert "2 in one set only, not compared" in found.summary


def test_other_gpus_are_not_compared_and_it_is_said():
    found = compare_records([record()], [record(gpu="NVIDIA B200", microseconds=200)])
    assert not found.rows and not found.regressions
    assert "different GPUs are not compared: over has H200; this has B200" in str(found)


def test_another_unit_of_the_same_gpu_needs_more():
    found = compare_records([record()], [record(uuid="GPU-2", microseconds=108.6)])
    assert found.rows[0].comparison.verdict == TIED and "another unit" in str(found)
    assert compare_records([record()], [record(uuid="GPU-2", microseconds=111)]).regressions


def test_units_apart_are_of_the_same_code_alone():
    """Of each unit the newest; the fastest against the slowest; other code, a rival and a lone unit are no pair."""
    other = replace(record(uuid="GPU-4", microseconds=300), provenance={**record().provenance, "code": "d"})
    given = [record(), record(uuid="GPU-2", microseconds=103), record(uuid="GPU-3", microseconds=101), other,
             record(uuid="GPU-2", microseconds=150, utc="2025-01-01T00:00:00Z"), record("float4"), record(n=7),
             record(n=7, uuid="GPU-2", microseconds=104, utc="2025-12-31T00:00:00Z"), record(rival="cublas"),
             record(rival="cublas", uuid="GPU-2")]
    found = [(r.over.gpu["uuid"], r.this.gpu["uuid"], r.this.shape["n"], r.comparison.ratio) for r in units_apart(given)]
    assert found == [("GPU-1", "GPU-2", 7, pytest.approx(1.04)), ("GPU-1", "GPU-2", 1000, pytest.approx(1.03))]
    table = units_table(given, most=1)
    assert len(table.rows) == 1 and table.notes == ["the 1 furthest apart of 2; the middle one: +3.50 %"]
    assert table.origin == "measured (H200, 2025-12-31 to 2026-01-01)"
    with pytest.raises(PerflabError, match="perflab import"):
        units_table([record()])


def test_another_method_or_other_inputs_are_compared_but_no_regression():
    found = compare_records([record(method="events-1")], [record(microseconds=110)])
    assert found.rows[0].comparison.verdict == SLOWER and found.regressions == ()
    assert f"other timing method (events-1, then {METHOD})" in str(found) and "slower*" in str(found)
    assert "1 of the slower compare unlike things" in found.summary


def test_another_clock_is_noted():
    found = compare_records([record(sm_hz=1.98e9)], [record(sm_hz=1.5e9, microseconds=130)])
    assert "the SM clock was 1,980 MHz, then 1,500 MHz" in str(found) and len(found.regressions) == 1


def test_markdown_begins_with_the_summary():
    text = compare_records([record()], [record(microseconds=103)]).markdown()
    assert text.splitlines()[0] == "0 faster, 1 slower, 0 the same (cannot be told apart)"
    assert "| saxpy/scalar | float32 | n 1,000 | H200 | 100 us | 103 us | +3.00 % |" in text


# ---------------------------------------------------------------- where records come from
def git(folder: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "core.hooksPath=/dev/null", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *settings, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def committed(tmp_path):
    """A workspace, one folder down in a repository, with 100 us committed and tagged, and 104 us after it."""
    root = tmp_path / "lab"
    (root / "kernels" / "saxpy").mkdir(parents=True)
    (root / "kernels" / "saxpy" / "study.py").write_text("study = None\n")
    git(tmp_path, "init", "-q")
    file = root / "data" / "records" / "h200" / "saxpy.jsonl"
    for tag, microseconds in (("before", 100), ("after", 104)):
        RecordFile(file).append(record(microseconds=microseconds, utc=f"2026-01-0{1 + (tag == 'after')}T00:00:00Z"))
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-q", "-m", tag)
        git(tmp_path, "tag", tag)
    return Workspace(root)


def test_records_of_a_file_a_folder_and_a_commit(committed):
    file = committed.records / "h200" / "saxpy.jsonl"
    assert len(record_set(str(file), committed)) == len(record_set(str(committed.records), committed)) == 2
    assert len(record_set("before", committed)) == 1 and record_set("after", committed) == record_set(file, committed)
    head = git(committed.root, "rev-parse", "HEAD").strip()
    assert record_set(head[:10], committed) == record_set("HEAD", committed)
    assert len(compare_records(record_set("before", committed), record_set("HEAD", committed)).regressions) == 1


@pytest.mark.parametrize("where", ["nothing_like_it", "--help", "before:lab", ""])
def test_anything_else_says_what_is_allowed(committed, where, monkeypatch, tmp_path):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(PerflabError, match="holds no records" if where == "" else "no file, no folder and no commit"):
        record_set(where, committed)


def test_a_damaged_line_of_a_commit_is_named(committed):
    with (committed.records / "h200" / "saxpy.jsonl").open("a") as file:
        file.write("{broken\n")
    git(committed.root, "commit", "-q", "-a", "-m", "damage")
    with pytest.raises(PerflabError, match="data/records/h200/saxpy.jsonl of HEAD, line 3"):
        record_set("HEAD", committed)


def perflab(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-m", "perflab.cli", *arguments], cwd=cwd, env=environment, capture_output=True,
                          text=True)


def test_command_line(committed):
    slower = perflab("compare", "before", "after", "--markdown", cwd=committed.root)
    assert slower.returncode == 1 and slower.stdout.startswith("0 faster, 1 slower"), slower.stderr
    assert perflab("compare", "after", "before", cwd=committed.root).returncode == 0
    unknown = perflab("compare", "before", "afterwards", cwd=committed.root)
    assert unknown.returncode == 2 and "no commit" in unknown.stderr and "Traceback" not in unknown.stderr
    RecordFile(committed.root / "other.jsonl").append(record("other"))
    nothing = perflab("compare", "before", "other.jsonl", cwd=committed.root)
    assert nothing.returncode == 2 and "nothing was compared" in nothing.stderr and "only in this" in nothing.stdout
