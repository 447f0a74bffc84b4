"""Faster, slower, or cannot be told apart: two series of samples, and two sets of records, compared so that equal code
is never called different.

The ratio's interval comes from ranks, so that it needs no normal noise and outliers do not move it, at 99.9 %:

- unpaired (other runs, other processes): the two-sample rank test of Mann and Whitney, turned around: two order statistics
  of all n*m values log(this_j / over_i).
- paired (sample k of both was taken in round k): each round gives log(this_k / over_k). Were both the same code, the two could
  be exchanged, so these logs are symmetric about 0. Wilcoxon's signed-rank test, turned around: two order statistics of the
  n(n+1)/2 means of two rounds. Drift cancels, but outliers of either series spoil a round; the unpaired interval bears outliers
  better, and what rounds share makes it only safer. So both, each at half the error, and where they overlap.

The ranks are mean - z sd - 1/2 of the test statistic, whose tails are lighter than the normal's: the true confidence is
higher than said (a test counts it out).

No rank knows of what moves a whole series: where the allocator put the buffers, which SMs got the blocks, the clock of the
day. Such an offset is allowed for up to a floor, at the same confidence; it is independent of the samples' noise, so that half
widths add as squares: half = sqrt(half of ranks^2 + floor^2 + tick^2), where a tick is what the event clock steps by, over the
median. A call is made where this interval, widened to hold the ratio of medians, leaves out 1: never under the floor.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path

from perflab import tables
from perflab.errors import PerflabError
from perflab.origins import Origin
from perflab.records import Record, RecordFile, canonical_gpu
from perflab.tables import Shown, Table
from perflab.timing import Series
from perflab.workspaces import Workspace

FASTER, SLOWER, TIED = "faster", "slower", "cannot be told apart"
CONFIDENCE = 0.999
PAIRED_FLOOR = 0.0075  # in one process each version has buffers of its own: some tenths of a percent
UNPAIRED_FLOOR = 0.01  # processes differ by 0.3 to 0.5 %, and two runs need not see the same part of a drift
UNIT_FLOOR = 0.09  # the same code on two H200s: up to 8.6 %, where a grid leaves SMs idle, as `units_apart` says of our records
TICK_SECONDS = 32e-9  # CUDA events of current GPUs step by this
CLOCK_TOLERANCE = 0.01


# ---------------------------------------------------------------- two series
@dataclass(frozen=True)
class Comparison:
    """How `this` stands to `over`: a verdict, "faster", "slower" or "cannot be told apart", and what it rests on.

    ratio       median of this / median of over, of times: over 1 is slower
    interval    (low, high) of that ratio at `confidence`, offsets allowed for; None where there are too few samples for one
    floor       smallest difference worth calling, as a fraction: what offsets and the clock's tick may make by themselves
    reason      why no call was made; '' where one was
    """

    verdict: str
    ratio: float
    interval: tuple[float, float] | None
    floor: float
    reason: str = ""
    confidence: float = CONFIDENCE

    @property
    def resolution(self) -> float | None:
        """The least difference that samples as noisy as these would have shown: half the interval, as a fraction."""
        return None if self.interval is None else (self.interval[1] - self.interval[0]) / 2

    def __str__(self) -> str:
        within = "" if self.interval is None else f" ({self.interval_text}, {100 * self.confidence:g} %)"
        return f"{self.verdict}: {change(self.ratio)}{within}" + (f"; {self.reason}" if self.reason else "")

    @property
    def interval_text(self) -> str:
        """The interval as differences: '+1.52 to +2.48 %'."""
        if self.interval is None:
            return tables.NOTHING
        return " to ".join(_signed(end) for end in self.interval) + " %"


def _signed(ratio: float) -> str:
    return f"{round(100 * (ratio - 1), 2) + 0.0:+.2f}"


def change(ratio: float) -> str:
    """A ratio of times as a difference: 1.02 -> '+2.00 %'."""
    return f"{_signed(ratio)} %"


def compare(over: Series, this: Series, paired: bool, floor: float | None = None) -> Comparison:
    """Whether `this` is faster or slower than `over`, or cannot be told apart; see the module's text for the rule.

    paired: sample k of both belongs to round k (`Stopwatch.compare`); unequal lengths are then a PerflabError. floor, a
    fraction, replaces the paired or unpaired one.
    """
    a, b = over.samples_seconds, this.samples_seconds
    if paired and len(a) != len(b):
        raise PerflabError(f"{len(a)} and {len(b)} samples are not paired: paired series have a sample each a round. Compare "
                           "series of separate runs with paired=False")
    if not a or not b or min(*a, *b) <= 0:
        raise PerflabError("only times over 0 can be compared: a series is empty or holds a time of 0 s or less")
    medians = over.median_seconds, this.median_seconds
    ratio = medians[1] / medians[0]
    base = floor if floor is not None else PAIRED_FLOOR if paired else UNPAIRED_FLOOR
    tick = TICK_SECONDS / min(over.repeats, this.repeats) / min(medians)
    least = math.hypot(base, tick)
    logs = _paired_logs(a, b) if paired else _unpaired_logs(a, b, 1 - CONFIDENCE)
    if logs is None:
        return Comparison(TIED, ratio, None, least, f"{len(a)} and {len(b)} samples have no {100 * CONFIDENCE:g} % interval: "
                                                    f"at least {fewest(paired)} each are needed")
    middle, half = (logs[0] + logs[1]) / 2, math.hypot((logs[1] - logs[0]) / 2, least)
    low, high = min(math.exp(middle - half), ratio), max(math.exp(middle + half), ratio)
    if low > 1 or high < 1:
        return Comparison(SLOWER if low > 1 else FASTER, ratio, (low, high), least)
    return Comparison(TIED, ratio, (low, high), least, f"such samples tell differences from {50 * (high - low):.1f} % on")


def compare_runs(over: Series, this: Series, one_unit: bool) -> Comparison:
    """As `compare`, of two runs: on one unit of a GPU, or on two, where a call needs UNIT_FLOOR."""
    return compare(over, this, paired=False, floor=None if one_unit else UNIT_FLOOR)


def fewest(paired: bool) -> int:
    """The fewest samples of each series that have an interval."""
    error = 1 - CONFIDENCE
    return next(n for n in range(1, 100) if (signed_rank(n, error / 2) if paired else rank_sum(n, n, error)))


def signed_rank(rounds: int, error: float) -> int:
    """The rank, counted from 1 at either end, of the two among the n(n+1)/2 means of two rounds' logs that hold the median of
    the logs but for probability `error`. The statistic has mean n(n+1)/4 and variance n(n+1)(2n+1)/24. 0: too few."""
    return _rank(rounds * (rounds + 1) / 4, rounds * (rounds + 1) * (2 * rounds + 1) / 24, error)


def rank_sum(over: int, this: int, error: float) -> int:
    """The rank, counted from 1 at either end, of the two among the n*m logs of ratios that hold the shift between two series
    but for probability `error`. The statistic has mean nm/2 and variance nm(n+m+1)/12. 0: too few."""
    return _rank(over * this / 2, over * this * (over + this + 1) / 12, error)


def _rank(mean: float, variance: float, error: float) -> int:
    z = statistics.NormalDist().inv_cdf(1 - error / 2)
    return max(0, math.floor(mean - z * math.sqrt(variance) - 0.5) + 1)


def _paired_logs(over: Sequence[float], this: Sequence[float]) -> tuple[float, float] | None:
    error = (1 - CONFIDENCE) / 2
    rounds = [math.log(b / a) for a, b in zip(over, this, strict=True)]
    by_round = _ends([(x + y) / 2 for x, y in combinations_with_replacement(rounds, 2)], signed_rank(len(rounds), error))
    mixed = _unpaired_logs(over, this, error)
    if by_round is None or mixed is None:
        return None
    ends = max(by_round[0], mixed[0]), min(by_round[1], mixed[1])
    return min(ends), max(ends)  # apart, they leave a gap: then it is what is not known


def _unpaired_logs(over: Sequence[float], this: Sequence[float], error: float) -> tuple[float, float] | None:
    a, b = [math.log(x) for x in over], [math.log(y) for y in this]
    return _ends([y - x for x in a for y in b], rank_sum(len(a), len(b), error))


def _ends(logs: list[float], rank: int) -> tuple[float, float] | None:
    logs.sort()
    return (logs[rank - 1], logs[-rank]) if rank else None


# ---------------------------------------------------------------- two sets of records
Key = tuple[str, str, str | None, str, str, str]


def key_of(record: Record) -> Key:
    """What two records must share to be of the same thing: study, version, rival, dtype, shape, GPU product."""
    shape = json.dumps(dict(record.shape), sort_keys=True)
    return record.study, record.version, record.rival, record.dtype, shape, canonical_gpu(record.gpu["name"])


def newest_timings(records: Iterable[Record]) -> dict[Key, Record]:
    """The newest timing of each key, in order of names and sizes; of two at one instant the later one given."""
    found = {key_of(r): r for r in sorted((r for r in records if r.kind == "timing"), key=lambda r: r.utc)}
    return dict(sorted(found.items(), key=lambda item: (item[0][0], name_of(item[1]), _sizes(item[1]), str(item[0]))))


def _sizes(record: Record) -> list[tuple]:
    """A shape's sizes, to sort by: numbers as numbers, before text."""
    return [(0, size, "") if isinstance(size, (int, float)) else (1, 0, str(size)) for size in record.shape.values()]


@dataclass(frozen=True)
class Row:
    """One thing that both sets hold. `unlike` says why a difference between the two need not be the code's."""

    over: Record
    this: Record
    comparison: Comparison
    medians_seconds: tuple[float, float]
    notes: tuple[str, ...] = ()
    unlike: bool = False

    @property
    def name(self) -> str:
        """'saxpy/float4', with its rival's name where it is one's."""
        return name_of(self.this)


def name_of(record: Record) -> str:
    """'saxpy/float4', 'saxpy/cublas (rival)'."""
    return f"{record.study}/{record.rival} (rival)" if record.rival else f"{record.study}/{record.version}"


@dataclass(frozen=True)
class RecordComparison(Shown):
    """Two sets of timings, compared one by one, and what only one of the sets holds."""

    rows: tuple[Row, ...]
    only_over: tuple[Record, ...]
    only_this: tuple[Record, ...]
    series: str = "cold"

    @property
    def regressions(self) -> tuple[Row, ...]:
        """The rows called slower, without those whose two records are of unlike methods or inputs."""
        return tuple(row for row in self.rows if row.comparison.verdict == SLOWER and not row.unlike)

    @property
    def summary(self) -> str:
        """One line: how many are faster, slower and the same."""
        counts = {verdict: sum(row.comparison.verdict == verdict for row in self.rows) for verdict in (FASTER, SLOWER, TIED)}
        alone = len(self.only_over) + len(self.only_this)
        unlike = sum(row.unlike and row.comparison.verdict == SLOWER for row in self.rows)
        return (f"{counts[FASTER]} faster, {counts[SLOWER]} slower, {counts[TIED]} the same (cannot be told apart)"
                + (f"; {unlike} of the slower compare unlike things: see the notes" if unlike else "")
                + (f"; {alone} in one set only, not compared" if alone else ""))

    def table(self) -> Table:
        """A row a version, shape and GPU: both medians, the difference with its interval, the verdict."""
        everything = [*((r.this, r) for r in self.rows), *((r, None) for r in (*self.only_over, *self.only_this))]
        labels = _labels([record for record, _ in everything])
        rows: list[tuple] = []
        for (record, row), label in zip(everything, labels, strict=True):
            head = (name_of(record), record.dtype, label, canonical_gpu(record.gpu["name"]))
            if row is None:
                where = "over" if len(rows) < len(self.rows) + len(self.only_over) else "this"
                rows.append((*head, *[tables.NOTHING] * 5, f"only in {where}"))
                continue
            told = row.comparison
            rows.append((*head, *map(tables.seconds, row.medians_seconds), change(told.ratio), told.interval_text,
                         f"{100 * told.floor:.2g} %", told.verdict + ("*" if row.notes else "")))
        notes = list(dict.fromkeys(note for row in self.rows for note in row.notes))
        notes += [f"{r.name}: {r.comparison.reason}" for r in self.rows if r.comparison.interval is None]
        columns = ("version", "dtype", "at", "GPU", "over", "this", "this / over", f"{100 * CONFIDENCE:g} % interval",
                   "worth calling", "verdict")
        return Table(f"Compared, {self.series}: {self.summary}", columns, rows, "measured; medians, intervals by ranks",
                     [*dict.fromkeys(notes), *self._other_gpus()])

    def _other_gpus(self) -> list[str]:
        over, this = ({canonical_gpu(r.gpu["name"]) for r in (*records, *(getattr(row, side) for row in self.rows))}
                      for records, side in ((self.only_over, "over"), (self.only_this, "this")))
        return [f"different GPUs are not compared: over has {', '.join(sorted(over))}; this has {', '.join(sorted(this))}"
                ] if over and this and over != this else []

    def markdown(self) -> str:
        """For a pull request: the summary, then the table."""
        return f"{self.summary}\n\n{self.table().markdown()}"


def _labels(records: Sequence[Record]) -> list[str]:
    """Each record's shape by the sizes in which its study's differ."""
    from perflab.planning import shape_labels

    studies = {study: [r for r in records if r.study == study] for study in dict.fromkeys(r.study for r in records)}
    named = {id(r): label for some in studies.values()
             for r, label in zip(some, shape_labels([r.shape for r in some]), strict=True)}
    return [named[id(record)] for record in records]


def compare_records(over: Sequence[Record], this: Sequence[Record], hot: bool = False) -> RecordComparison:
    """Compare the newest timings of two sets by study, version or rival, dtype, shape and GPU product; cold, or hot."""
    a, b, series = newest_timings(over), newest_timings(this), "hot" if hot else "cold"
    rows = tuple(_row(a[key], b[key], series) for key in a if key in b)
    return RecordComparison(rows, tuple(r for k, r in a.items() if k not in b), tuple(r for k, r in b.items() if k not in a),
                            series)


def _row(over: Record, this: Record, series: str) -> Row:
    a, b = (Series.from_dict(record.timing[series]) for record in (over, this))
    notes, unlike = [], False
    for what, then, now in (("timing method", over.identity.method, this.identity.method),
                            ("inputs", over.identity.inputs, this.identity.inputs)):
        if then != now:
            unlike = True
            notes.append(f"* other {what} ({then or 'none'}, then {now or 'none'}): the difference need not be the code's")
    one_unit = over.gpu.get("uuid") == this.gpu.get("uuid")
    if not one_unit:
        notes.append(f"* another unit of the same GPU: two H200s ran the same code up to 8.6 % apart, so a call needs "
                     f"{100 * UNIT_FLOOR:g} %")
    if a.sm_hz and b.sm_hz and abs(b.sm_hz / a.sm_hz - 1) > CLOCK_TOLERANCE:
        notes.append(f"* {name_of(this)}: the SM clock was {a.sm_hz / 1e6:,.0f} MHz, then {b.sm_hz / 1e6:,.0f} MHz")
    return Row(over, this, compare_runs(a, b, one_unit), (a.median_seconds, b.median_seconds), tuple(notes), unlike)


def units_apart(records: Iterable[Record]) -> list[Row]:
    """What several units of a GPU ran alike, code, inputs and timing method: the fastest unit's cold time and the slowest's.

    A row a thing, of each unit's newest timing, furthest apart first. Not of rivals: their code is not known.
    """
    alike: dict[tuple, dict[str, Record]] = {}
    for r in sorted((r for r in records if r.kind == "timing" and not r.rival), key=lambda r: r.utc):
        alike.setdefault((key_of(r), r.identity), {})[r.gpu["uuid"]] = r
    ranked = (sorted(units.values(), key=_cold_seconds) for units in alike.values() if len(units) > 1)
    rows = [_row(units[0], units[-1], "cold") for units in ranked]
    return sorted(rows, key=lambda row: row.comparison.ratio, reverse=True)


def _cold_seconds(record: Record) -> float:
    return Series.from_dict(record.timing["cold"]).median_seconds


def units_table(records: Iterable[Record], most: int = 8) -> Table:
    """The `most` rows of `units_apart` that are furthest apart, and how far the middle one is."""
    rows = units_apart(records)
    if not rows:
        raise PerflabError("nothing was timed on two units of a GPU: import records of another with `perflab import FILE`")
    labels = _labels([row.this for row in rows])
    shown = [(row.name, label, row.over.gpu["uuid"][:8], row.this.gpu["uuid"][:8], *map(tables.seconds, row.medians_seconds),
              change(row.comparison.ratio)) for row, label in zip(rows[:most], labels, strict=False)]
    columns = ("version", "at", "unit", "another", "cold median", "another's", "slower by")
    middle = statistics.median(row.comparison.ratio for row in rows)
    gpus = ", ".join(sorted({canonical_gpu(row.this.gpu["name"]) for row in rows}))
    first, *_, last = sorted(record.utc[:10] for row in rows for record in (row.over, row.this))
    days = first if first == last else f"{first} to {last}"
    return Table(f"The same code on two units of a GPU: {gpus}", columns, shown, str(Origin("measured", f"{gpus}, {days}")),
                 [f"the {len(shown)} furthest apart of {len(rows)}; the middle one: {change(middle)}"])


# ---------------------------------------------------------------- where records come from
def record_set(where: str | Path, workspace: Workspace) -> list[Record]:
    """The records of a .jsonl file, of all those in a folder, or of a git commit's data/records. A path that exists wins
    over a commit of that name. Raises PerflabError, that says what is allowed, for anything else, and for an empty set."""
    path = Path(where).expanduser()
    if path.is_dir():
        found = [record for file in sorted(path.rglob("*.jsonl")) for record in RecordFile(file).read()]
    elif path.is_file():
        found = RecordFile(path).read()
    else:
        found = _committed(str(where), workspace.root)
    if not found:
        raise PerflabError(f"{where} holds no records: there is no line in any .jsonl file of it")
    return found


def _committed(revision: str, root: Path) -> list[Record]:
    commit = None if revision.startswith("-") else _git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if not commit:
        raise PerflabError(f'"{revision}" is no file, no folder and no commit of {root}: name a .jsonl file of records, a '
                           "folder that holds some (data/records), or a commit, branch or tag with some in data/records")
    names = _git(root, "ls-tree", "-r", "-z", "--name-only", commit.strip(), "--", "data/records") or ""
    found = []
    for name in (name for name in names.split("\0") if name.endswith(".jsonl")):
        text = _git(root, "show", f"{commit.strip()}:./{name}") or ""
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                try:
                    found.append(Record.from_json(line))
                except PerflabError as error:
                    raise PerflabError(f"{name} of {revision}, line {number}: {error}") from error
    return found


def _git(root: Path, *arguments: str) -> str | None:
    """What git prints; None where it fails."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=False)
    except OSError:
        return None
    return done.stdout.decode() if done.returncode == 0 else None
