"""Rivals beside our best version, read back from records: who is how fast, with which mask, and who could not be timed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perflab import charts, tables
from perflab.errors import PerflabError
from perflab.figures import Picture
from perflab.gpus import Gpu
from perflab.records import Record, RecordStore, shape_sizes
from perflab.rivals import Rivals, not_done
from perflab.studies import Study, Work
from perflab.timing import Timed, Timing

COLUMNS = ("", "mask", "cold median", "95 % interval", "rate", "error", "ours over it")


@dataclass(frozen=True)
class Standing(Timed):
    """One that was timed: a rival, or our best version. error: norm-relative, None where nothing was compared."""

    name: str
    mask: str
    timing: Timing
    work: Work
    error: float | None

    def row(self, over: Standing | None) -> tuple:
        """Its row of the table; `over` is our best version."""
        return (self.name, self.mask, tables.seconds(self.seconds), self.timing.cold.interval_words(1),
                tables.flops_per_second(self.work.flops / self.seconds), "-" if self.error is None else f"{self.error:.1e}",
                tables.ratio(over.seconds / self.seconds) if over else "-")


def rivals_table(store: RecordStore, study: Study, known: Rivals, gpu: Gpu, shape: Any) -> tables.Table:
    """A row a rival, fastest first, and our best version among them; those not done stand below with the reason."""
    ours = _our_best(store, study, gpu, shape)
    timed = _timed(store, study, known, gpu, shape)
    others, reasons = [], []
    for rival in known.rivals:
        if rival.name not in {standing.name for standing in timed}:
            check = store.find(study.name, "", shape, gpu.name, "check", rival.dtype, rival=rival.name)
            why = not_done(check.check) if check and not check.check["passed"] else "not measured"
            others.append((rival.name, rival.mask_in_words, why.partition(":")[0], *["-"] * (len(COLUMNS) - 3)))
            reasons += [f"{rival.name}: {why}"] if check else []
    rows = [s.row(ours) for s in sorted([*timed, *([ours] if ours else [])], key=lambda standing: standing.seconds)]
    said = {note: ", ".join(r.name for r in known.rivals if r.note == note) for note in (r.note for r in known.rivals) if note}
    notes = ["each checked first against float64 of its own rounded inputs and its own mask; planning is outside the call",
             *reasons, *(f"{names}: {note}" for note, names in said.items())]
    return tables.Table(f"Rivals of {study.title} on {gpu.name}, {_sizes(shape)}", COLUMNS, [*rows, *others],
                        _origin(gpu), notes)


def rivals_picture(store: RecordStore, study: Study, known: Rivals, gpu: Gpu, shape: Any) -> Picture:
    """A bar a rival that was timed, fastest first; ours, where it is many times slower, would leave nothing to see of them."""
    timed = sorted(_timed(store, study, known, gpu, shape), key=lambda standing: standing.seconds)
    if not timed:
        raise PerflabError(f"no rival of {study.name} is measured on {gpu.name} at {_sizes(shape)}")
    names = [f"{standing.name} ({standing.mask})" for standing in timed]
    return charts.bars(f"Rivals of {study.title}", f"{gpu.name}, {_sizes(shape)}", _origin(gpu), charts.TIME, names,
                       [standing.seconds for standing in timed])


def best_exact(store: RecordStore, study: Study, known: Rivals, gpu: Gpu, shape: Any) -> Standing | None:
    """The fastest rival that computes the study's own mask; None where none is measured."""
    exact = (standing for standing in _timed(store, study, known, gpu, shape) if standing.mask == "exact")
    return min(exact, key=lambda standing: standing.seconds, default=None)


def _timed(store: RecordStore, study: Study, known: Rivals, gpu: Gpu, shape: Any) -> list[Standing]:
    found = []
    for rival in known.rivals:
        check, timing = (store.find(study.name, "", shape, gpu.name, kind, rival.dtype, rival=rival.name)
                         for kind in ("check", "timing"))
        if check is None or timing is None or not check.check["passed"]:
            continue
        error = max((out["norm_relative"] for out in check.check["outputs"] if out["output"] != "lse"), default=None)
        work = known.work(shape, rival.dtype) if known.work else study.work(shape)
        found.append(Standing(rival.name, rival.mask_in_words, Timing.from_dict(timing.timing), work, error))
    return found


def _our_best(store: RecordStore, study: Study, gpu: Gpu, shape: Any) -> Standing | None:
    def newest(version: str, kind: str) -> Record | None:
        return store.find(study.name, version, shape, gpu.name, kind, study.dtype)

    timed = {version.name: Timing.from_dict(r.timing) for version in study.versions if (r := newest(version.name, "timing"))}
    if not timed:
        return None
    best = min(timed, key=lambda name: timed[name].cold.median_seconds)
    check = newest(best, "check")
    error = check.check["outputs"][0]["norm_relative"] if check and check.check["outputs"] else None
    return Standing(f"{best} (ours, {study.dtype})", "exact", timed[best], study.work_of(best, shape), error)


def _sizes(shape: Any) -> str:
    return ", ".join(f"{name} {tables.cell(value)}" for name, value in shape_sizes(shape).items() if value != 0)


def _origin(gpu: Gpu) -> str:
    return f"measured ({gpu.name}, single cold calls)"
