"""What `pl.study()` returns: a study bound to a workspace and its records, and the verbs of a notebook."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from perflab import charts, hardware, machine, tables
from perflab.bandwidths import BandwidthTable, bandwidth_table, bandwidths_of
from perflab.ceilings import measured_roofs
from perflab.check import Check
from perflab.errors import PerflabError
from perflab.figures import Picture
from perflab.gpus import Gpu
from perflab.gpus import gpu as find_gpu
from perflab.kernel import Kernel
from perflab.limits import limits_table
from perflab.machine import default_gpu, gpus_asked
from perflab.measurement import (
    CALCULATED,
    Measurement,
    describe,
    floor_seconds,
    ratio_interval,
    speed_up,
    stale_notes,
    unit_notes,
)
from perflab.measuring import measure
from perflab.occupancy_model import Occupancy
from perflab.origins import Origin, join
from perflab.planning import make_plan, shape_labels
from perflab.published import published_table
from perflab.records import Record, RecordStore, stale_reasons
from perflab.rivals import load_rivals
from perflab.roofline import Point, Roof, Roofline, datasheet_roofs, level_roofs
from perflab.slots import slots_picture
from perflab.standings import best_exact, rivals_picture, rivals_table
from perflab.studies import Launch, NotApplicable, Study, load_study, triple
from perflab.tables import Table
from perflab.versions import BoundVersion, occupancy_of
from perflab.workspaces import Workspace, workspace


def study(name: str) -> Workbench:
    """The study of that name in the current workspace; an unknown name is an error that lists those there are."""
    here = workspace()
    return Workbench(here, load_study(here.study_folder(name)))


def _occupancy_cells(launch: Launch, found: Occupancy) -> tuple:
    """One launch in a table: its size, what an SM holds of it, what limits that, and its waves."""
    return (math.prod(triple(launch.grid)), f"{launch.dynamic_shared:,} B", found.blocks_per_sm,
            f"{found.warps_per_sm} of {found.gpu.limits.warps_per_sm}", tables.percent(found.fraction),
            "-" if found.waves is None else f"{found.waves:.2f}", found.limited_by)


# ---------------------------------------------------------------- the study
class Workbench:
    """A study with its records in `store`: `bench["version"]`, `bench.shape(…)`, tables and pictures over all versions."""

    def __init__(self, here: Workspace, declared: Study, shown: Sequence[str] | None = None,
                 store: RecordStore | None = None) -> None:
        self.workspace = here
        self.store = store or RecordStore(here.records)
        self.study = declared
        self.name = declared.name
        names = [version.name for version in declared.versions] if shown is None else shown
        self.versions = tuple(BoundVersion(self, declared.version(name)) for name in names)

    def only(self, *names: str) -> Workbench:
        """The same study with only these versions in its tables and pictures, in the order given."""
        return Workbench(self.workspace, self.study, names, self.store)  # which has read them: a second for thousands

    def __getitem__(self, name: str) -> BoundVersion:
        return BoundVersion(self, self.study.version(name))

    def __str__(self) -> str:
        lines = [f"{self.study.title} ({self.name}): {len(self.versions)} versions, {len(self.study.shapes)} shapes"]
        return "\n".join([*lines, *(f"  {bound.name}: {bound.version.change}" for bound in self.versions)])

    __repr__ = __str__

    def shape(self, **sizes: Any) -> Any:
        """A shape from keyword sizes; what is not named keeps its default. Unknown names and wrong types are errors."""
        return self.study.make_shape(**sizes)

    def before(self, name: str) -> BoundVersion | None:
        """The version before that one on the ladder, None for the first. Points of a tunable are no steps of it."""
        place = self.study.versions.index(self.study.version(name))
        return next((self[v.name] for v in reversed(self.study.versions[:place]) if v.shapes is None), None)

    def until(self, name: str) -> Workbench:
        """The same study with only the steps of the ladder up to that version."""
        place = self.study.versions.index(self.study.version(name))
        return self.only(*(v.name for v in self.study.versions[:place] if v.shapes is None), name)

    def record(self, version: str, shape: Any, gpu: Gpu, kind: str) -> Record | None:
        """The newest record of that kind, or None."""
        return self.store.find(self.name, version, asdict(shape), gpu.name, kind, self.study.dtype)

    def measure(self, versions: Sequence[str] | None = None, shapes: Sequence[Any] | None = None) -> Gpu:
        """Check and time versions at shapes on the GPU of this machine, in a process of its own; kept in the records."""
        from perflab.device import this_gpu
        from perflab.worker import Worker

        gpu = machine.gpu_here() or this_gpu()
        plan = make_plan(self.study, self.workspace.study_folder(self.name), gpu, versions, shapes, self.store)
        with Worker() as worker:
            measure(plan, worker, on_record=lambda record: self.store.add([record]), on_note=print)
        return gpu

    def _taken_at(self, *shapes: Any) -> list[BoundVersion]:
        """The versions that a whole measurement takes at one of these shapes: points of a tunable are taken at a few."""
        return [b for b in self.versions if b.version.shapes is None or set(b.version.shapes) & set(shapes)]

    # ------------------------------------------------------------ tables
    def resources(self, gpus: str | Gpu | Sequence[str | Gpu] | None = None) -> Table:
        """A row a kernel and GPU: registers, spills, shared memory, barriers, and the loads that its SASS holds."""
        rows, origins = [], []
        for bound in self.versions:
            for kernel in bound.version.kernels:
                for gpu in gpus_asked(gpus):
                    found = kernel.resources(gpu)
                    rows.append((_label(bound, kernel), found.architecture, found.registers, found.static_shared_bytes,
                                 found.stack_bytes, found.spill_store_bytes + found.spill_load_bytes, found.barriers))
                    origins.append(found.origin)
        columns = ("version", "architecture", "registers", "static shared [B]", "stack [B]", "spills [B]", "barriers")
        return Table(f"{self.study.title}: compiled resources", columns, rows, join(*origins))

    def occupancy(self, shape: Any, gpus: str | Gpu | Sequence[str | Gpu] | None = None) -> Table:
        """A row a launch, GPU and shape (one, or a list): blocks asked and held, warps, what limits them, waves."""
        shapes = list(shape) if isinstance(shape, (list, tuple)) else [shape]
        labels = shape_labels([asdict(s) for s in shapes]) if len(shapes) > 1 else [""]
        rows: list[tuple] = []
        origins: list[Origin] = []
        notes = []
        for bound, gpu in product(self.versions, gpus_asked(gpus)):
            for one, label in zip(shapes, labels, strict=True):
                head = (gpu.name, *([label] if len(shapes) > 1 else []))
                try:
                    launches = bound.launches(one, gpu)
                except NotApplicable as reason:
                    rows.append((bound.name, *head, "n/a", *["-"] * 6))
                    notes.append(f"{bound.name}: {reason}")
                    continue
                for launch in launches:
                    found = occupancy_of(launch, gpu)
                    rows.append((_label(bound, launch.kernel), *head, *_occupancy_cells(launch, found)))
                    origins.append(found.origin)
        columns = ("version", "GPU", *(["at"] if len(shapes) > 1 else []), "blocks", "dynamic shared", "blocks/SM", "warps/SM",
                   "occupancy", "waves", "limited by")
        at = describe(shapes[0]) if len(shapes) == 1 else f"{len(shapes)} shapes"
        return Table(f"{self.study.title}: occupancy at {at}", columns, rows, join(*origins), list(dict.fromkeys(notes)))

    def _timing(self, bound: BoundVersion, shape: Any, gpu: Gpu) -> Measurement | str:
        """The measurement, or the word that stands in its place: 'n/a' (cannot run) or 'not measured'."""
        try:
            bound.launches(shape, gpu)
        except NotApplicable:
            return "n/a"
        if self.record(bound.name, shape, gpu, "timing") is None and not machine.is_live():
            return "not measured"
        return bound.timing(shape, gpu)

    def ceilings(self, gpu: str | Gpu | None = None, dtype: str | None = None) -> tuple[Roof, ...]:
        """The measured roofs for this study's dtype on a GPU, from the workspace's study `ceilings`; () without any."""
        if "ceilings" not in self.workspace.study_names():
            return ()
        folder = self.workspace.study_folder("ceilings")
        return measured_roofs(self.store, gpu or default_gpu(), dtype or self.study.dtype, folder)

    def _divisors(self, gpu: Gpu) -> list[Roof]:
        """The measured roofs that rates are divided by: DRAM read and the arithmetic of the study's dtype."""
        return [roof for roof in self.ceilings(gpu) if roof.name == "DRAM read" or not roof.level]

    def _ceiling_origins(self, gpu: Gpu) -> list[Origin]:
        return [roof.origin for roof in self._divisors(gpu)]

    def _limits(self, gpu: Gpu) -> tuple[tuple[str, float | None], tuple[str, float | None]]:
        """(what it is called, value) of the DRAM and the arithmetic rate to divide by: measured, else the datasheet's."""
        measured = self._divisors(gpu)
        dram = next((roof.value for roof in measured if roof.name == "DRAM read"), None)
        arithmetic = next((roof.value for roof in measured if not roof.level), None)
        return (
            ("of measured DRAM", dram) if dram else ("of DRAM peak", gpu.memory_bytes_per_second),
            ("of measured FMA", arithmetic) if arithmetic else (f"of {self.study.dtype} peak", gpu.peaks.get(self.study.dtype)),
        )

    def table(self, shape: Any, gpu: str | Gpu | None = None) -> Table:
        """A row a version at one shape: cold time, speed-up over the first, bandwidths by name, rate and its peak's share."""
        chosen = find_gpu(gpu or default_gpu())
        rows, seen, first = [], [], None
        (of_dram, peak), (of_rate, roof) = self._limits(chosen)
        for bound in self._taken_at(shape):
            found = self._timing(bound, shape, chosen)
            if isinstance(found, str):
                rows.append((bound.name, found, *["-"] * 6))
                continue
            seen.append(found)
            first = first or found
            rows.append((bound.name, tables.seconds(found.seconds), speed_up(first, found),
                         tables.bytes_per_second(found.useful_bytes_per_second),
                         tables.percent(found.useful_bytes_per_second / peak if peak else None),
                         tables.bytes_per_second(found.asked_bytes_per_second),
                         tables.flops_per_second(found.flops_per_second),
                         tables.percent(found.flops_per_second / roof if roof else None)))
        columns = ("version", "cold median", "speed-up", "useful", of_dram, "asked", "rate", of_rate)
        origin = join(*(m.origin for m in seen), *self._ceiling_origins(chosen), CALCULATED)
        notes = [*unit_notes([[m.unit for m in seen]]), *stale_notes(seen)]
        return Table(f"{self.study.title} on {chosen.name}, {describe(shape)}", columns, rows, origin, notes)

    def times(self, gpu: str | Gpu | None = None, over: str = "prefix", **fixed: Any) -> Table:
        """A row a declared shape, smallest `over` first, a column a version: cold medians and the last's speed-up."""
        chosen = find_gpu(gpu or default_gpu())
        rows, seen, units = [], [], []
        shapes = self._shapes(over, fixed)
        versions = self._taken_at(*shapes)
        for shape in shapes:
            found = [self._timing(bound, shape, chosen) for bound in versions]
            seen += [m for m in found if isinstance(m, Measurement)]
            ends = [m for m in (found[0], found[-1]) if isinstance(m, Measurement)]
            units.append([m.unit for m in ends])
            rows.append((*self.study.facts(shape).values(),
                         *(m if isinstance(m, str) else tables.seconds(m.seconds) for m in found),
                         *([speed_up(*ends) if len(ends) == 2 else "-"] if len(found) > 1 else [])))
        names = tuple(bound.name for bound in versions)
        columns = (*self.study.facts(self.study.shapes[0]), *names, *([f"{names[0]} / {names[-1]}"] if len(names) > 1 else []))
        return Table(f"{self.study.title} on {chosen.name}: cold medians", columns, rows, join(*(m.origin for m in seen)),
                     [*unit_notes(units), *stale_notes(seen)])

    def parity(self, gpu: str | Gpu | None = None) -> Table:
        """A row a version and bundle: PASS or FAIL against float64, sizes, and the errors the write-ups print."""
        chosen = find_gpu(gpu or default_gpu())
        rows, origins = [], []
        bundles = self.study.bundles.items()
        for bound, label, shape in ((b, label, at) for b in self.versions for label, at in bundles if b in self._taken_at(at)):
            record = self.record(bound.name, shape, chosen, "check")
            facts = self.study.facts(shape).values()
            if record is None:
                word = self._timing(bound, shape, chosen)
                rows.append((word if isinstance(word, str) else "not checked", bound.name, label, *facts, *["-"] * 5))
                continue
            check = Check.from_dict(bound.name, record.check)
            first, *rest = check.outputs
            stale = " STALE" if stale_reasons(record, bound.identity(shape, chosen)) else ""
            rows.append((("PASS" if check.passed else "FAIL") + stale, bound.name, label, *facts,
                         *(f"{e:.2e}" for e in (first.max_abs, first.max_rel, first.norm_relative, first.limit)),
                         " ".join(f"{other.max_abs:.2e}" for other in rest)))
            origins.append(Origin("measured", f"{chosen.name}, {record.utc[:10]}"))
        outputs = " ".join(list(self.study.buffers(self.study.shapes[0], chosen))[1:])
        columns = ("", "version", "bundle", *self.study.facts(self.study.shapes[0]), "max abs", "max rel", "norm rel",
                   "allowed", f"max {outputs} error")
        return Table(f"{self.study.title}: parity with float64 on {chosen.name}", columns, rows, join(*origins))

    def predictions(self, gpu: str | Gpu | None = None) -> Table:
        """A row a prediction: what was said before measuring, what was measured, hit, miss or tie."""
        chosen = find_gpu(gpu or default_gpu())
        rows, seen, units, reasons = [], [], [], []
        for bound in self.versions:
            said = bound.version.prediction
            if said is None:
                continue
            pair = [self._timing(b, said.at, chosen) for b in (self[said.over], bound)]
            found, verdict = "-", next((m for m in pair if isinstance(m, str)), "")
            if not verdict:
                over, this = pair
                assert isinstance(over, Measurement) and isinstance(this, Measurement)
                seen += [over, this]
                units.append((over.unit, this.unit))
                found, verdict = tables.ratio(over.seconds / this.seconds), said.verdict(*ratio_interval(over, this))
            rows.append((f"{said.over} / {bound.name}", self._telling(said.at), f"{said.ratio[0]:g} to {said.ratio[1]:g}",
                         found, verdict))
            reasons.append(f"{bound.name} was predicted because: {said.because}")
        columns = ("ratio of times", "at", "predicted", "measured", "verdict")
        return Table(f"{self.study.title}: predictions, scored on {chosen.name}", columns, rows,
                     join(*(m.origin for m in seen)), [*reasons, *unit_notes(units), *stale_notes(seen)])

    def published(self, name: str) -> Table:
        """A table from elsewhere, data/published/<name>.csv, as it was printed, with its source."""
        return published_table(self.workspace, name)

    def rivals(self, shape: Any, gpu: str | Gpu | None = None) -> Table:
        """What a user has installed, measured at a shape on the same clock, fastest first, our best version among them."""
        known = load_rivals(self.workspace.study_folder(self.name))
        return rivals_table(self.store, self.study, known, find_gpu(gpu or default_gpu()), shape)

    def rivals_picture(self, shape: Any, gpu: str | Gpu | None = None) -> Picture:
        """Their cold times as bars, fastest first."""
        known = load_rivals(self.workspace.study_folder(self.name))
        return rivals_picture(self.store, self.study, known, find_gpu(gpu or default_gpu()), shape)

    def ladder(self, shape: Any, gpu: str | Gpu | None = None) -> Picture:
        """Cold time by version, in order, with the fastest exact rival and the floor of the arithmetic."""
        chosen = find_gpu(gpu or default_gpu())
        timed = [m for m in (self._timing(b, shape, chosen) for b in self._taken_at(shape)) if isinstance(m, Measurement)]
        if not timed:
            raise PerflabError(f"nothing of {self.name} is measured on {chosen.name} at {describe(shape)}")
        rival = best_exact(self.store, self.study, load_rivals(self.workspace.study_folder(self.name)), chosen, shape)
        words, rate = self._limits(chosen)[1]
        levels = [charts.Level(f"{rival.name} (rival)", rival.seconds)] if rival else []
        if rate:
            levels.append(charts.Level(f"{self.study.dtype} floor {words}", self.study.work(shape).flops / rate))
        origins = join(*(m.origin for m in timed), *self._ceiling_origins(chosen), CALCULATED)
        return charts.steps(f"{self.study.title}: the ladder", f"{chosen.name}, {self._telling(shape)}", origins, charts.TIME,
                            [m.version for m in timed], [m.seconds for m in timed], levels)

    def rival_shapes(self) -> list[Any]:
        """The shapes at which the rivals are measured."""
        return load_rivals(self.workspace.study_folder(self.name)).shapes(self.study)

    # ------------------------------------------------------------ pictures
    def _shapes(self, over: str, fixed: Mapping[str, Any]) -> list[Any]:
        """The declared shapes that differ in `over` alone, smallest first; other sizes not named keep their defaults."""
        one = asdict(self.study.make_shape(**{over: getattr(self.study.shapes[0], over, None)}, **fixed))
        chosen = [shape for shape in self.study.shapes if {**asdict(shape), over: None} == {**one, over: None}]
        if not chosen:
            raise PerflabError(f"no declared shape of {self.name} has {dict(fixed)}")
        return sorted(chosen, key=lambda shape: getattr(shape, over))

    def _measured_over(self, over: str, fixed: Mapping[str, Any], gpu: Gpu) -> dict[str, list[Measurement]]:
        shapes = self._shapes(over, fixed)
        found = {b.name: [self._timing(b, shape, gpu) for shape in shapes] for b in self.versions}
        measured = {name: [m for m in row if isinstance(m, Measurement)] for name, row in found.items()}
        if not any(measured.values()):
            raise PerflabError(f"nothing of {self.name} is measured on {gpu.name} at {dict(fixed)}")
        return {name: row for name, row in measured.items() if row}

    def _where(self, over: str, fixed: Mapping[str, Any], gpu: Gpu) -> str:
        """The GPU, and the sizes that stay as they are along such a curve."""
        return ", ".join(filter(None, (gpu.name, self._telling(self._shapes(over, fixed)[0], over))))

    def bandwidth(self, gpu: str | Gpu | None = None, over: str = "prefix", **fixed: Any) -> Picture:
        """Bandwidth against the DRAM peak: useful (solid) and asked (dashed) by version, over a size."""
        chosen = find_gpu(gpu or default_gpu())
        lines, seen = [], []
        for k, (name, row) in enumerate(self._measured_over(over, fixed, chosen).items()):
            x = [getattr(m.shape, over) for m in row]
            seen += row
            useful = [m.useful_bytes_per_second for m in row]
            asked = [m.asked_bytes_per_second or 0.0 for m in row]
            same = asked == useful
            lines.append(charts.Curve(f"{name}: useful" + (" = asked" if same else ""), x, useful, k))
            if all(asked) and not same:
                lines.append(charts.Curve(f"{name}: asked", x, asked, k, dashed=True))
        peak = chosen.memory_bytes_per_second
        levels = [charts.Level(f"DRAM peak, {tables.bytes_per_second(peak)} (datasheet)", peak)] if peak else []
        levels += [charts.Level(f"{roof.name}, {tables.bytes_per_second(roof.value)} (measured)", roof.value)
                   for roof in self.ceilings(chosen) if roof.level == "DRAM"][:1]
        title = f"{self.study.title}: bandwidth against peak"
        origin = join(*(m.origin for m in seen), *self._ceiling_origins(chosen), CALCULATED)
        return charts.curves(title, self._where(over, fixed, chosen), origin, over, charts.BANDWIDTH, lines, levels)

    def bandwidths(self, shape: Any, gpu: str | Gpu | None = None) -> BandwidthTable:
        """A row a version: useful and asked bandwidth, and what L1, L2 and DRAM moved by recorded counters."""
        chosen = find_gpu(gpu or default_gpu())
        found = [bandwidths_of(b, self._timing(b, shape, chosen), shape, chosen) for b in self._taken_at(shape)]
        roofs = (*self.ceilings(chosen), *datasheet_roofs(chosen, self.study.dtype))
        return bandwidth_table(self.study.title, found, shape, chosen, roofs)

    def curve(self, gpu: str | Gpu | None = None, over: str = "prefix", **fixed: Any) -> Picture:
        """Cold time by version over a size, with the floor of arithmetic below."""
        chosen = find_gpu(gpu or default_gpu())
        measured = self._measured_over(over, fixed, chosen)
        lines = [charts.Curve(name, [getattr(m.shape, over) for m in row], [m.seconds for m in row], k)
                 for k, (name, row) in enumerate(measured.items())]
        longest = max(measured.values(), key=len)
        floors = [max(floor_seconds(m.work, chosen, self.study.dtype)) for m in longest]
        lines.append(charts.Curve("floor (datasheet)", [getattr(m.shape, over) for m in longest], floors, 6, dashed=True))
        origins = join(*(m.origin for row in measured.values() for m in row), CALCULATED)
        return charts.curves(f"{self.study.title}: cold time", self._where(over, fixed, chosen), origins, over, charts.TIME,
                             lines)

    def slots(self, shape: Any, gpus: str | Gpu | Sequence[str | Gpu] | None = None) -> Picture:
        """Blocks of each version's grid beside the blocks each GPU holds at once: under one wave, SMs stand idle."""
        return slots_picture(self.study.title, self.versions, shape, gpus_asked(gpus))

    def _telling(self, shape: Any, but: str = "") -> str:
        """A shape by the sizes in which the declared ones differ, all but one: short enough for a picture's title."""
        sizes = [{name: size for name, size in asdict(s).items() if name != but} for s in (shape, *self.study.shapes)]
        return shape_labels(sizes)[0].removesuffix(", page 0")

    def counts(self, shape: Any, gpu: str | Gpu | None = None, sample: int | None = None) -> Table:
        """A row a version: what it does at a shape, counted on the CPU; bytes asked, of sectors, and that must move once."""
        from perflab.emulator.operations import Unsupported

        chosen = find_gpu(gpu or default_gpu())
        rows: list[tuple] = []
        origins, notes = list[Origin](), list[str]()
        for bound in self.versions:
            try:
                found = bound.count(shape, chosen, sample)
            except (NotApplicable, Unsupported) as reason:
                rows.append((bound.name, "n/a", *["-"] * 8))
                notes.append(f"{bound.name}: {reason}")
                continue
            rows.append((bound.name, found.warp_instructions, f"{found.average_active_lanes:.3g}", found.flops,
                         *map(tables.bytes_, (found.asked_bytes, found.sector_bytes)),
                         ("" if found.exact else "≥ ") + tables.bytes_(found.unique_bytes),
                         found.shared_wavefronts, found.shared_conflicts, tables.decimal(found.intensities["sectors"])))
            origins.append(found.origin)
            notes += found.warnings
        columns = ("version", "warp instr.", "lanes", "FLOP", "asked", "sectors", "unique", "wavefronts", "conflicts",
                   "FLOP/B")
        notes.append("FLOP/B: of sectors")
        return Table(f"{self.study.title}: counted at {describe(shape)}", columns, rows, join(*origins), notes)

    def agreement(self, shape: Any, gpu: str | Gpu | None = None) -> Table:
        """A row a version and counter: what the emulator counts beside what the hardware counted (as recorded)."""
        return hardware.agreement_table(self.study.title, self.versions, shape, find_gpu(gpu or default_gpu()))

    def achieved(self, shape: Any, gpu: str | Gpu | None = None) -> Table:
        """A row a launch: calculated occupancy and waves beside Nsight Compute's, and the occupancy reached (as recorded)."""
        return hardware.occupancy_table(self.study.title, self.versions, shape, find_gpu(gpu or default_gpu()))

    def limits(self, shape: Any, gpu: str | Gpu | None = None) -> Table:
        """A row a version: the busiest unit, idle SMs and waits, as shares of its cold time; `bench[name].limits` has all."""
        return limits_table(self.study.title, self.versions, shape, find_gpu(gpu or default_gpu()))

    def findings(self, gpu: str | Gpu | None = None) -> Table:
        """A row a version: causes found by the emulator and by each tool of compute-sanitizer (as recorded)."""
        return hardware.findings_table(self.study.title, self.versions, find_gpu(gpu or default_gpu()))

    def roofline(self, shape: Any, gpu: str | Gpu | None = None, counted: bool = False, sample: int | None = None,
                 measured: bool = False) -> Roofline:
        """Every version as a point: its work's FLOPs over the bytes that must move.

        counted: as three joined points instead, of the FLOPs and bytes that were counted on the CPU: those asked for, those
        of the sectors touched, and distinct ones (not of a `sample`, as for `count`: it meets only a part of them).
        measured: as three joined points, of the FLOPs and the bytes that L1, L2 and DRAM moved, by recorded counters; versions
        without them are left out.
        """
        chosen = find_gpu(gpu or default_gpu())
        points: list[Point] = []
        for bound in self.versions:
            found = self._timing(bound, shape, chosen)
            if not isinstance(found, Measurement):
                continue
            if measured:
                if self.record(bound.name, shape, chosen, "counts"):
                    points += hardware.measured_points(bound, shape, chosen, found)
            elif counted:
                points += hardware.emulated_points(bound, found, sample)
            else:
                points.append(Point(bound.name, found.work.flops, found.work.bytes, found.seconds, origin=found.origin))
        if not points:
            how = f", with counters: `perflab measure {self.name} --counters` takes them" if measured else ""
            raise PerflabError(f"nothing of {self.name} is measured on {chosen.name} at {describe(shape)}{how}")
        levels = [roof for roof in self.ceilings(chosen) if roof.name != "DRAM copy"]
        dtype = self.study.dtype
        roofs = level_roofs(chosen, dtype, levels) if measured else (*self._divisors(chosen), *datasheet_roofs(chosen, dtype))
        return Roofline(chosen, dtype, points, roofs, f"{self.study.title}: roofline", self._telling(shape))


def _label(bound: BoundVersion, kernel: Kernel) -> str:
    """The version; of one with several kernels the kernel too, but for the first."""
    return bound.name if kernel == bound.version.kernels[0] else f"{bound.name}: {(kernel.name or '').partition('<')[0]}"


