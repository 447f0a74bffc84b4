"""What to measure, in order, as data: cubins, launches, buffers, identities, and how long it will take.

Made where the compiler is, so that a machine with only CuPy and a driver can run it. `measuring.py` runs it.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from perflab import tables
from perflab.compile import Binary, Source, compile_source
from perflab.device import packages
from perflab.errors import unknown
from perflab.gpus import Gpu
from perflab.records import Identity, Record, RecordStore, canonical_gpu, shape_sizes, stale_reasons
from perflab.studies import NotApplicable, Output, Study, Version, Work, digest, inputs_hash, launches_hash
from perflab.timing import METHOD, TOOLS_SOURCE, TimingSpec

EXPECTED_SAMPLES = 3  # times min_samples, in an estimate
ASSUMED_EFFICIENCY = 0.1  # of the peaks, for a version that was never timed
HOST_FLOPS, HOST_BYTES_PER_SECOND = 2e10, 2e8  # a plain CPU: float64 reference, making inputs
CHECK_SECONDS, COPY_BYTES_PER_SECOND, COMPARED_PER_SECOND = 0.02, 3e9, 3e7  # of a check: the least; copies; values with float64


# ---------------------------------------------------------------- what a plan holds
@dataclass(frozen=True)
class PlanItem:
    """One version at one shape, as plain JSON values.

    launches: [{binary: key into Plan.binaries, entry, grid, block, dynamic_shared, arguments}]
    buffers:  {name: {role: output or scratch, shape, dtype}}
    spec:     the fields of TimingSpec for this shape
    why:      why it is in the plan; estimate_from: recorded or modelled
    timed:    whether it is timed once its check has passed
    """

    study: str
    version: str
    shape: Mapping[str, Any]
    dtype: str
    launches: Sequence[Mapping[str, Any]]
    buffers: Mapping[str, Mapping[str, Any]]
    identity: Identity
    spec: Mapping[str, Any]
    why: str
    estimate_seconds: float
    estimate_from: str
    timed: bool = True

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> PlanItem:
        """Back from `dataclasses.asdict` through JSON."""
        return PlanItem(**{**data, "identity": Identity(**data["identity"])})


@dataclass(frozen=True)
class Plan(tables.Shown):
    """What to measure, in order, for one GPU. `folder` is the study's on this machine and never travels."""

    study: str
    gpu: str
    architecture: str
    binaries: Mapping[str, Binary]
    tools: Binary
    items: tuple[PlanItem, ...]
    skipped: tuple[tuple[str, Mapping[str, Any], str], ...]
    spec: TimingSpec
    build: Mapping[str, Any]
    folder: Path | None = None

    @property
    def estimate_seconds(self) -> float:
        """Of all items together."""
        return sum(item.estimate_seconds for item in self.items)

    def without(self, records: Iterable[Record], gpu_name: str, kind: str = "timing") -> Plan:
        """The plan without what these records of a kind already answer: same identity, on a GPU of that name."""
        name = canonical_gpu(gpu_name)
        here = [r for r in records if canonical_gpu(r.gpu["name"]) == name]
        return replace(self, items=tuple(item for item in self.items if not any(_answers(r, item, kind) for r in here)))

    def to_dict(self) -> dict[str, Any]:
        """As JSON. The folder stays here."""
        return {
            **{name: getattr(self, name) for name in ("study", "gpu", "architecture", "build", "skipped")},
            "binaries": {key: binary.to_dict() for key, binary in self.binaries.items()}, "tools": self.tools.to_dict(),
            "items": [asdict(item) for item in self.items], "spec": asdict(self.spec),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any], folder: Path | None = None) -> Plan:
        """Back from JSON; `folder` is where the study lies on this machine."""
        return Plan(**{
            **data, "folder": folder, "tools": Binary.from_dict(data["tools"]), "spec": TimingSpec(**data["spec"]),
            "binaries": {key: Binary.from_dict(binary) for key, binary in data["binaries"].items()},
            "items": tuple(map(PlanItem.from_dict, data["items"])), "skipped": tuple(map(tuple, data["skipped"])),
        })

    def table(self) -> tables.Table:
        """A row a shape: which versions, how long, where the estimate is from; what is skipped and why below."""
        labels = shape_labels([*(item.shape for item in self.items), *(shape for _, shape, _ in self.skipped)])
        by_label: dict[str, list[PlanItem]] = {}
        for item, label in zip(self.items, labels, strict=False):
            by_label.setdefault(label, []).append(item)
        rows = [(label, ", ".join(item.version for item in here), "; ".join(dict.fromkeys(item.why for item in here)),
                 tables.seconds(sum(item.estimate_seconds for item in here)),
                 ", ".join(dict.fromkeys(item.estimate_from for item in here))) for label, here in by_label.items()]
        why: dict[tuple[str, str], list[str]] = {}  # one note for all versions and shapes alike
        for (version, _, reason), label in zip(self.skipped, labels[len(self.items) :], strict=True):
            why.setdefault((version, reason), []).append(label)
        alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for (version, reason), where in why.items():
            alike.setdefault((reason, tuple(where)), []).append(version)
        skipped = [f"skipped {', '.join(them)} at {where[0]}{f' and {len(where) - 1} more' if where[1:] else ''}: {reason}"
                   for (reason, where), them in alike.items()]
        timed = any(item.timed for item in self.items) or not self.items
        total = f"{len(self.items)} to {'measure' if timed else 'check'}, about {tables.seconds(self.estimate_seconds)} in all"
        return tables.Table(f"Plan: {self.study} on {self.gpu} ({self.architecture}): {total}",
                            ("shape", "versions", "why", "estimate", "estimate is"), rows, notes=skipped)


def _answers(record: Record, item: PlanItem, kind: str = "timing") -> bool:
    """Whether a record is what measuring the item would give: of that kind, same identity.

    A check stands for the timing that does not follow: where it failed, or where the item is only checked.
    """
    same = (record.study, record.version, dict(record.shape), record.dtype, record.rival) == (
        item.study, item.version, dict(item.shape), item.dtype, None
    )
    last = record.kind == "check" and not (item.timed and record.check["passed"])
    wanted = record.kind == kind or (kind == "timing" and last)
    return same and wanted and not stale_reasons(record, item.identity)


def shape_labels(shapes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each shape in words, by the sizes in which these shapes differ; all sizes where none does."""
    names = list(dict.fromkeys(name for shape in shapes for name in shape))
    telling = [n for n in names if len({json.dumps(shape.get(n)) for shape in shapes}) > 1] or names
    return [", ".join(f"{name} {tables.cell(shape.get(name))}" for name in telling) for shape in shapes]


# ---------------------------------------------------------------- making one
def identity_of(study: Study, version: Version, shape: Any, gpu: Gpu) -> Identity:
    """What today's sources give: the identity that a fresh record of this version and shape shares."""
    launches = version.launches(shape, gpu)
    code = digest([[launch.kernel.binary(gpu).code, launch.kernel.entry(gpu)] for launch in launches])
    return Identity(code, launches_hash(launches), inputs_hash(study, shape), METHOD)


def make_plan(study: Study, folder: Path, gpu: Gpu, versions: Sequence[str] | None = None, shapes: Sequence[Any] | None = None,
              store: RecordStore | None = None, only_stale: bool = False, quick: bool = False,
              timed: bool = True) -> Plan:
    """Compile what is to be measured for `gpu` and list it: bundles, then declared shapes, all versions of one together.

    only_stale keeps what has no record in `store` that holds today. Not timed: the items are checked and that is all. A
    version that cannot do a shape is skipped with its reason.
    """
    spec = TimingSpec.quick() if quick else TimingSpec()
    binaries: dict[str, Binary] = {}
    items: list[PlanItem] = []
    skipped = []
    chosen = [study.version(name) for name in versions] if versions is not None else study.versions
    for shape in study.all_shapes if shapes is None else shapes:
        own_spec = replace(spec, **(study.spec(shape) if study.spec else {}))
        whole = study.work(shape)
        host_seconds = whole.flops / HOST_FLOPS + whole.bytes / HOST_BYTES_PER_SECOND  # once a shape
        for version in chosen:
            if shapes is None and shape not in study.shapes_of(version):
                continue
            try:
                item, its_binaries = _item(study, version, shape, gpu, own_spec, timed)
            except NotApplicable as reason:
                skipped.append((version.name, shape_sizes(shape), str(reason)))
                continue
            why = _why(item, gpu, store) if only_stale and store else "asked"
            if why:
                seconds, source = _estimate(item, study.work_of(version.name, shape), gpu, own_spec, store)
                total = round(seconds + host_seconds, 3)
                items.append(replace(item, why=why, estimate_seconds=total, estimate_from=source))
                binaries |= its_binaries
                host_seconds = 0.0
    tools = _bare(compile_source(Source("timing_tools.cu", TOOLS_SOURCE), gpu.architecture))
    return Plan(study.name, gpu.name, gpu.architecture, binaries, tools, tuple(items), tuple(skipped), spec, _build(folder),
                folder)


def _item(study: Study, version: Version, shape: Any, gpu: Gpu, spec: TimingSpec,
          timed: bool) -> tuple[PlanItem, dict[str, Binary]]:
    """One item, without why and how long, and its cubins."""
    buffers = study.buffers_of(version, shape, gpu)
    known = {*study.inputs(shape), *buffers}
    launches, binaries = [], {}
    for launch in version.launches(shape, gpu):
        for name in launch.arguments:
            if isinstance(name, str) and name not in known:
                raise unknown(f"input or buffer in a launch of {study.name}/{version.name}", name, sorted(known))
        binary = launch.kernel.binary(gpu)
        binaries[binary.code] = _bare(binary)
        launches.append({"binary": binary.code, "entry": launch.kernel.entry(gpu), **launch.to_dict()})
    made = {name: {"role": "output" if isinstance(b, Output) else "scratch", "shape": list(b.shape), "dtype": b.dtype}
            for name, b in buffers.items()}
    identity = identity_of(study, version, shape, gpu)
    item = PlanItem(study.name, version.name, shape_sizes(shape), study.dtype, launches, made, identity, asdict(spec), "", 0.0,
                    "", timed)
    return item, binaries


def _bare(binary: Binary) -> Binary:
    """Without PTX and log, which only the machine that compiles reads."""
    return replace(binary, ptx="", log="")


def _why(item: PlanItem, gpu: Gpu, store: RecordStore) -> str:
    """Why the item has no record that holds today, in words; '' if it has one."""
    asked = [store.find(item.study, item.version, item.shape, gpu.name, kind, item.dtype) for kind in ("timing", "check")]
    found = [record for record in asked if record]
    if any(_answers(record, item) for record in found):
        return ""
    reasons = stale_reasons(max(found, key=lambda record: record.utc), item.identity) if found else ()
    return ", ".join(reasons) or "never measured"


def _estimate(item: PlanItem, work: Work, gpu: Gpu, spec: TimingSpec, store: RecordStore | None) -> tuple[float, str]:
    """Seconds that an item takes, and whether its kernel's time is recorded or modelled from the work and the peaks."""
    record = store.find(item.study, item.version, item.shape, gpu.name, "timing", item.dtype) if store else None
    if record:
        kernel, source = record.timing["cold"]["median_seconds"], "recorded"
    else:
        flops, rate = gpu.peaks.get(item.dtype) or 1e13, gpu.memory_bytes_per_second or 1e12
        kernel, source = max(work.flops / flops, work.bytes / rate) / ASSUMED_EFFICIENCY, "modelled"
    if not item.timed:
        values = sum(math.prod(buffer["shape"]) for buffer in item.buffers.values() if buffer["role"] == "output")
        return CHECK_SECONDS + kernel + work.bytes / COPY_BYTES_PER_SECOND + values / COMPARED_PER_SECOND, source
    samples = min(EXPECTED_SAMPLES * spec.min_samples, spec.max_samples)
    cold = min(spec.max_seconds, samples * (kernel + 2e-4))
    hot = min(spec.max_seconds, samples * max(kernel, spec.batch_seconds))
    warm_up = min(spec.max_warmup_seconds, max(2 * spec.min_warmup_seconds, 10 * kernel))
    return 0.2 + warm_up + cold + hot, source


def _build(folder: Path) -> dict[str, Any]:
    """Where the plan is from: the commit of the study's repository ("…-dirty" if changed since), and packages."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        said = subprocess.run(command, capture_output=True, text=True).stdout.strip()  # nothing outside a repository
    except OSError:  # no git
        said = ""
    return {"commit": said or None, "packages": packages("perflab", "cuda-bindings", "nvidia-cuda-nvrtc")}
