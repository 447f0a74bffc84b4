"""One version of a study, with the verbs of a notebook."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perflab import hardware, machine
from perflab.check import Check
from perflab.counters import HardwareCounts, agreement
from perflab.errors import PerflabError, unknown
from perflab.gpus import Gpu
from perflab.gpus import gpu as find_gpu
from perflab.limits import SAMPLE, Limits, limits_of
from perflab.listing import Listing
from perflab.machine import default_gpu
from perflab.measurement import Measurement, describe
from perflab.occupancy_model import Occupancy
from perflab.planning import identity_of
from perflab.records import Identity, Record, stale_reasons
from perflab.resources import Resources
from perflab.sanitizer import Findings
from perflab.studies import Launch, Version
from perflab.tables import Table
from perflab.timing import Timing

if TYPE_CHECKING:
    from perflab.emulated import EmulatedCheck
    from perflab.emulator.counts import Counts
    from perflab.workbench import Workbench


class BoundVersion:
    """One version of a study, with its verbs. A method that takes `gpu` takes a name or a `Gpu`."""

    def __init__(self, bench: Workbench, version: Version) -> None:
        self.bench = bench
        self.version = version
        self.name = version.name

    def launches(self, shape: Any, gpu: str | Gpu) -> list[Launch]:
        """The launches at a shape; NotApplicable, with the arithmetic, where the version cannot do it."""
        return self.version.launches(shape, find_gpu(gpu))

    def resources(self, gpu: Any = None) -> Resources | Table:
        """Registers, shared memory, spills and SASS mix of the version's kernel; a list of GPUs gives one table."""
        several = isinstance(gpu, (list, tuple))
        if several or len(self.version.kernels) > 1:
            return self.bench.only(self.name).resources(gpu if several else [gpu or default_gpu()])
        return self.version.kernels[0].resources(gpu or default_gpu())

    def occupancy(self, shape: Any, gpu: Any = None) -> Occupancy | Table:
        """How the version fills the GPU at a shape: blocks and warps per SM, limiters, waves; lists give one table."""
        gpus = gpu if isinstance(gpu, (list, tuple)) else [gpu or default_gpu()]
        if gpus is not gpu and not isinstance(shape, (list, tuple)):
            launches = self.launches(shape, gpus[0])
            if len(launches) == 1:
                return occupancy_of(launches[0], find_gpu(gpus[0]))
        return self.bench.only(self.name).occupancy(shape, gpus)

    def source(self, diff: bool = False, counts: Counts | None = None, outer: bool = False, header: str = "") -> Listing:
        """The version's source, highlighted; diff=True marks the lines that the version before does not have.

        counts: of `count()`, shown beside the lines; outer: by the line at which inlined code was inlined. header: instead of
        the file, one that it includes, beside the same one of the version before or, if that has none, its file; an unknown
        name is an error that lists those there are.
        """
        before = self.bench.before(self.name) if diff else None
        own = self.version.kernels[0].source
        file, texts = header or own.file, {**dict(own.headers), own.file: own.text}
        if file not in texts:
            raise unknown(f"header of {own.file}", header, (name for name, _ in own.headers))
        theirs = before.version.kernels[0].source if before else None
        older = dict(theirs.headers).get(header, theirs.text) if theirs else None
        listing = Listing(file, texts[file]) if counts is None else counts.listing(texts[file], file, outer)
        return replace(listing, before=older, before_name=before.name if before else "")

    def identity(self, shape: Any, gpu: str | Gpu) -> Identity:
        """Today's fingerprint of code, launches, inputs and method, which a fresh record shares."""
        return identity_of(self.bench.study, self.version, shape, find_gpu(gpu))

    def timing(self, shape: Any, gpu: str | Gpu | None = None) -> Measurement:
        """The recorded times at a shape (live: measured now, where the GPU is in this machine). No record is an error."""
        chosen = find_gpu(gpu or default_gpu())
        self.launches(shape, chosen)
        here = machine.gpu_here() if machine.is_live() else None
        if here is not None and here.name == chosen.name:
            return self.measure(shape)
        record = self.bench.record(self.name, shape, chosen, "timing")
        if record is None:
            raise PerflabError(
                f"no measurement of {self.bench.name}/{self.name} at {describe(shape)} on {chosen.name}: take one with "
                f"`perflab measure {self.bench.name}` on such a GPU, or --on ssh://its-host"
            )
        return self._measurement(shape, chosen, record)

    def _measurement(self, shape: Any, gpu: Gpu, record: Record) -> Measurement:
        asked = self.version.asked_bytes(shape, gpu) if self.version.asked_bytes else None
        work = self.bench.study.work_of(self.name, shape)
        return Measurement(self.name, shape, gpu, Timing.from_dict(record.timing), work, asked, record.utc[:10],
                           stale_reasons(record, self.identity(shape, gpu)), self.bench.study.dtype, record.gpu.get("uuid", ""))

    def count(self, shape: Any, gpu: str | Gpu | None = None, sample: int | None = None, **settings: Any) -> Counts:
        """What the version's launches do at a shape, counted on the CPU: traffic, FLOPs, instructions, by source line.

        gpu: whose code and launches (None: the default GPU); sample: run this many blocks of each launch and scale, with the
        error stated; settings as `emulation.Settings`. Kept, so that the next call only reads.
        """
        from perflab.emulated import count

        return count(self.bench.study, self.version, shape, find_gpu(gpu or default_gpu()), sample=sample, **settings)

    def counters(self, shape: Any, gpu: str | Gpu | None = None) -> HardwareCounts:
        """The recorded hardware counters of the version's launches, by Nsight Compute. No record is an error."""
        return hardware.recorded_counters(self, shape, find_gpu(gpu or default_gpu()))

    def agreement(self, shape: Any, gpu: str | Gpu | None = None) -> Table:
        """A row a counter: what the emulator counts beside what the hardware counted, and by how much they may differ."""
        return agreement(self.count(shape, gpu), self.counters(shape, gpu))

    def limits(self, shape: Any, gpu: str | Gpu | None = None, sample: int | None = SAMPLE) -> Limits:
        """What holds the version at a shape: units by the least time they need, and losses, ranked, each with its evidence.

        From recorded counters and times where there are any, else counted on the CPU: `sample` blocks of each launch, None all.
        """
        return limits_of(self, shape, find_gpu(gpu or default_gpu()), sample)

    def findings(self, gpu: str | Gpu | None = None) -> Findings:
        """What compute-sanitizer found, as recorded at the shape it ran at. No record is an error."""
        return hardware.recorded_findings(self, find_gpu(gpu or default_gpu()))[0]

    def finders(self, gpu: str | Gpu | None = None) -> Table:
        """Who finds what: a row a bug, with a mark for the emulator (run at the record's shape) and for each tool."""
        return hardware.finders(self, find_gpu(gpu or default_gpu()))

    def check(self, shape: Any, gpu: str | Gpu | None = None, emulate: bool | None = None,
              **settings: Any) -> Check | EmulatedCheck:
        """Is it right at a shape: run on the CPU, outputs against float64, and every fault on the way.

        With a GPU named, the comparison that was recorded there instead (no record is an error); emulate=True runs on the
        CPU what that GPU would run. settings as `emulation.Settings`, such as schedule="reversed".
        """
        if emulate if emulate is not None else gpu is None:
            from perflab.emulated import check

            folder = self.bench.workspace.study_folder(self.bench.name)
            label = next((name for name, one in self.bench.study.bundles.items() if one == shape), describe(shape))
            return check(self.bench.study, self.version, shape, find_gpu(gpu or default_gpu()), label, folder, **settings)
        chosen = find_gpu(gpu or default_gpu())
        record = self.bench.record(self.name, shape, chosen, "check")
        if record is None:
            raise PerflabError(f"no check of {self.bench.name}/{self.name} at {describe(shape)} on {chosen.name}: "
                               f"take one with `perflab measure {self.bench.name}`")
        return Check.from_dict(self.name, record.check)

    def measure(self, shape: Any) -> Measurement:
        """Check and time this version at a shape on the GPU of this machine, now; kept in the workspace's records."""
        gpu = self.bench.measure(versions=[self.name], shapes=[shape])
        record = self.bench.record(self.name, shape, gpu, "timing")
        if record is None:
            raise PerflabError(f"{self.name} was not timed at {describe(shape)}: {self.check(shape, gpu)}")
        return self._measurement(shape, gpu, record)

    def __str__(self) -> str:
        return f"{self.bench.name}/{self.name}: {self.version.change}"

    __repr__ = __str__


def occupancy_of(launch: Launch, gpu: Gpu) -> Occupancy:
    """The occupancy of one launch, from the kernel's compiled resources."""
    grid = launch.grid if gpu.sm_count else None
    found = launch.kernel.occupancy(gpu, block=launch.block, dynamic_shared=launch.dynamic_shared, grid=grid)
    assert isinstance(found, Occupancy)
    return found
