"""Rivals beside our best version, read back from records: who is how fast, with which mask, and who could not be timed."""

from __future__ import annotations

from typing import Any

from perflab import tables
from perflab.gpus import Gpu
from perflab.records import Record, RecordStore, shape_sizes
from perflab.rivals import Rivals, not_done
from perflab.studies import Study, Work
from perflab.timing import Timing

COLUMNS = ("", "mask", "cold median", "95 % interval", "rate", "useful", "error", "ours over it")


def rivals_table(store: RecordStore, study: Study, known: Rivals, gpu: Gpu, shape: Any) -> tables.Table:
    """A row a rival, fastest first, and our best version among them; those not done stand below with the reason."""
    ours = _our_best(store, study, gpu, shape)
    timed, others, reasons = [], [], list[str]()
    for rival in known.rivals:
        check, timing = (store.find(study.name, "", shape, gpu.name, kind, rival.dtype, rival=rival.name)
                         for kind in ("check", "timing"))
        if check is None or timing is None or not check.check["passed"]:
            why = not_done(check.check) if check and not check.check["passed"] else "not measured"
            others.append((rival.name, rival.mask_in_words, why.partition(":")[0], *["-"] * 5))
            reasons += [f"{rival.name}: {why}"] if check else []
        else:
            error = max((out["norm_relative"] for out in check.check["outputs"] if out["output"] != "lse"), default=None)
            work = known.work(shape, rival.dtype) if known.work else study.work(shape)
            timed.append((Timing.from_dict(timing.timing), rival.name, rival.mask_in_words, work, error))
    if ours:
        timed.append((ours[1], f"{ours[0]} (ours, {study.dtype})", "exact", study.work_of(ours[0], shape), ours[2]))
    rows = [_row(*one, over=ours[1] if ours else None) for one in sorted(timed, key=lambda one: one[0].cold.median_seconds)]
    sizes = ", ".join(f"{name} {tables.cell(value)}" for name, value in shape_sizes(shape).items() if value != 0)
    said = {note: ", ".join(r.name for r in known.rivals if r.note == note) for note in (r.note for r in known.rivals) if note}
    notes = ["each checked first against float64 of its own rounded inputs and its own mask; planning is outside the call",
             *reasons, *(f"{names}: {note}" for note, names in said.items())]
    return tables.Table(f"Rivals of {study.title} on {gpu.name}, {sizes}", COLUMNS, [*rows, *others],
                        f"measured ({gpu.name}, single cold calls)", notes)


def _our_best(store: RecordStore, study: Study, gpu: Gpu, shape: Any) -> tuple[str, Timing, float | None] | None:
    def newest(version: str, kind: str) -> Record | None:
        return store.find(study.name, version, shape, gpu.name, kind, study.dtype)

    timed = {version.name: Timing.from_dict(r.timing) for version in study.versions if (r := newest(version.name, "timing"))}
    if not timed:
        return None
    best = min(timed, key=lambda name: timed[name].cold.median_seconds)
    check = newest(best, "check")
    return best, timed[best], check.check["outputs"][0]["norm_relative"] if check and check.check["outputs"] else None


def _row(timing: Timing, name: str, mask: str, work: Work, error: float | None, over: Timing | None) -> tuple:
    median = timing.cold.median_seconds
    ends = " to ".join(f"{100 * (end / median - 1):+.1f}" for end in timing.cold.interval_seconds)
    return (name, mask, tables.seconds(median), f"{ends} %", tables.flops_per_second(work.flops / median),
            tables.bytes_per_second(work.bytes / median), "-" if error is None else f"{error:.1e}",
            tables.ratio(over.cold.median_seconds / median) if over else "-")
