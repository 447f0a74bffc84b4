"""What to measure, in order, as data: cubins, launches, buffers, identities, and how long it will take.

Made where the compiler is, so that a machine with only CuPy and a driver can run it. `measuring.py` runs it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from perflab import tables
from perflab.compile import Binary, Source, compile_source
from perflab.device import packages
from perflab.errors import PerflabError
from perflab.gpus import Gpu
from perflab.records import Identity, Record, RecordStore, canonical_gpu, shape_sizes, stale_reasons
from perflab.studies import Launch, NotApplicable, Output, Study, Version, digest, inputs_hash, launches_hash
from perflab.timing import METHOD, TOOLS_SOURCE, TimingSpec

EXPECTED_SAMPLES = 3  # times min_samples, in an estimate
ASSUMED_EFFICIENCY = 0.1  # of the peaks, for a version that was never timed
HOST_FLOPS, HOST_BYTES_PER_SECOND = 2e10, 2e8  # a plain CPU: float64 reference, making inputs


# ---------------------------------------------------------------- what a plan holds
@dataclass(frozen=True)
class PlanItem:
    """One version at one shape, as plain JSON values.

    launches: [{binary: key into Plan.binaries, entry, grid, block, dynamic_shared, arguments}]
    buffers:  {name: {role: output or scratch, shape, dtype}}
    why:      why it is in the plan; estimate_from: recorded or modelled
    """

    study: str
    version: str
    shape: Mapping[str, Any]
    dtype: str
    launches: Sequence[Mapping[str, Any]]
    buffers: Mapping[str, Mapping[str, Any]]
    identity: Identity
    why: str
    estimate_seconds: float
    estimate_from: str

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> PlanItem:
        """Back from `dataclasses.asdict` through JSON."""
        return PlanItem(**{**data, "identity": Identity(**data["identity"])})


@dataclass(frozen=True)
class Plan:
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

    def without(self, records: Iterable[Record], gpu_name: str) -> Plan:
        """The plan without what these records already answer: same identity, on a GPU of that name."""
        name = canonical_gpu(gpu_name)
        here = [r for r in records if canonical_gpu(str(r.gpu.get("name"))) == name]
        return replace(self, items=tuple(item for item in self.items if not any(_answers(r, item) for r in here)))

    def to_dict(self) -> dict[str, Any]:
        """As JSON. The folder stays here."""
        return {
            **{name: getattr(self, name) for name in ("study", "gpu", "architecture", "build", "skipped")},
            "binaries": {key: binary.to_dict() for key, binary in self.binaries.items()}, "tools": self.tools.to_dict(),
            "items": [asdict(item) for item in self.items], "spec": asdict(self.spec),
        }  # fmt: skip

    @staticmethod
    def from_dict(data: Mapping[str, Any], folder: Path | None = None) -> Plan:
        """Back from JSON; `folder` is where the study lies on this machine."""
        return Plan(**{
            **data, "folder": folder, "tools": Binary.from_dict(data["tools"]), "spec": TimingSpec(**data["spec"]),
            "binaries": {key: Binary.from_dict(binary) for key, binary in data["binaries"].items()},
            "items": tuple(map(PlanItem.from_dict, data["items"])), "skipped": tuple(map(tuple, data["skipped"])),
        })  # fmt: skip

    def table(self) -> tables.Table:
        """A row a shape: which versions, how long, where the estimate is from; what is skipped and why below."""
        labels = shape_labels([item.shape for item in self.items])
        rows = []
        for label in dict.fromkeys(labels):
            here = [item for item, its in zip(self.items, labels, strict=True) if its == label]
            rows.append((label, ", ".join(item.version for item in here), "; ".join(dict.fromkeys(i.why for i in here)),
                         tables.seconds(sum(item.estimate_seconds for item in here)),
                         ", ".join(dict.fromkeys(item.estimate_from for item in here))))
        skipped_labels = shape_labels([shape for _, shape, _ in self.skipped])
        skipped = [f"skipped {version} at {label}: {reason}" for (version, _, reason), label
                   in zip(self.skipped, skipped_labels, strict=True)]  # fmt: skip
        total = f"{len(self.items)} to measure, about {tables.seconds(self.estimate_seconds)} in all"
        return tables.Table(f"Plan: {self.study} on {self.gpu} ({self.architecture}): {total}",
                            ("shape", "versions", "why", "estimate", "estimate is"), rows, notes=skipped)  # fmt: skip

    def __str__(self) -> str:
        return str(self.table())

    def markdown(self) -> str:
        """The table as Markdown."""
        return self.table().markdown()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self.table()._repr_mimebundle_()


def _answers(record: Record, item: PlanItem) -> bool:
    """Whether a record is what measuring the item would give: a timing, or a failed check, of the same identity."""
    same = (record.study, record.version, dict(record.shape), record.dtype, record.rival) == (
        item.study, item.version, dict(item.shape), item.dtype, None
    )  # fmt: skip
    wanted = record.kind == "timing" or (record.kind == "check" and not record.check.get("passed"))
    return same and wanted and not stale_reasons(record, item.identity)


def shape_labels(shapes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each shape in words, by the sizes in which these shapes differ; all sizes where none does."""
    names = list(dict.fromkeys(name for shape in shapes for name in shape))
    telling = [n for n in names if len({json.dumps(shape.get(n)) for shape in shapes}) > 1] or names
    return [", ".join(f"{name} {tables.cell(shape.get(name))}" for name in telling) for shape in shapes]


# ---------------------------------------------------------------- making one
def identity_of(study: Study, version: Version, shape: Any, gpu: Gpu) -> Identity:
    """What today's sources give: the identity that a fresh record of this version and shape shares."""
    return _identity(study, version.launches(shape, gpu), shape, gpu)


def _identity(study: Study, launches: Sequence[Launch], shape: Any, gpu: Gpu) -> Identity:
    code = digest([[launch.kernel.binary(gpu).code, launch.kernel.entry(gpu)] for launch in launches])
    return Identity(code, launches_hash(launches), inputs_hash(study, shape), METHOD)


def make_plan(
    study: Study, folder: Path, gpu: Gpu, versions: Sequence[str] | None = None, shapes: Sequence[Any] | None = None,
    store: RecordStore | None = None, only_stale: bool = False, quick: bool = False,
) -> Plan:  # fmt: skip
    """Compile what is to be measured for `gpu` and list it: bundles, then declared shapes, all versions of one together.

    only_stale keeps what has no record that holds today. A version that cannot do a shape is skipped with its reason.
    """
    spec = TimingSpec.quick() if quick else TimingSpec()
    binaries: dict[str, Binary] = {}
    items: list[PlanItem] = []
    skipped = []
    chosen = [study.version(name) for name in versions] if versions is not None else list(study.versions)
    for shape in study.all_shapes if shapes is None else shapes:
        for version in chosen:
            try:
                launches = version.launches(shape, gpu)
            except NotApplicable as reason:
                skipped.append((version.name, shape_sizes(shape), str(reason)))
                continue
            item = _item(study, version, shape, launches, gpu, binaries)
            why = _why(item, gpu, store) if only_stale else "asked"
            if why:
                is_first = not items or dict(items[-1].shape) != dict(item.shape)
                seconds, source = _estimate(study, item, shape, gpu, spec, store, is_first)
                items.append(replace(item, why=why, estimate_seconds=seconds, estimate_from=source))
    used = {launch["binary"] for item in items for launch in item.launches}
    tools = compile_source(Source("timing_tools.cu", TOOLS_SOURCE), gpu.architecture)
    return Plan(study.name, gpu.name, gpu.architecture, {key: binaries[key] for key in binaries if key in used},
                _bare(tools), tuple(items), tuple(skipped), spec, _build(folder), folder)  # fmt: skip


def _item(study: Study, version: Version, shape: Any, launches: Sequence[Launch], gpu: Gpu,
          binaries: dict[str, Binary]) -> PlanItem:  # fmt: skip
    """One item without its estimate; its cubins are put into `binaries`."""
    buffers = study.buffers(shape, gpu)
    known = {*study.inputs(shape), *buffers}
    described = []
    for launch in launches:
        unknown_names = [a for a in launch.arguments if isinstance(a, str) and a not in known]
        if unknown_names:
            raise PerflabError(f"{study.name}/{version.name} launches with {', '.join(unknown_names)}, no input or "
                               f"buffer of the study. Known: {', '.join(sorted(known))}")  # fmt: skip
        binary = launch.kernel.binary(gpu)
        binaries[binary.code] = _bare(binary)
        described.append({"binary": binary.code, "entry": launch.kernel.entry(gpu), **launch.to_dict()})
    made = {name: {"role": "output" if isinstance(b, Output) else "scratch", "shape": list(b.shape), "dtype": b.dtype}
            for name, b in buffers.items()}  # fmt: skip
    return PlanItem(study.name, version.name, shape_sizes(shape), study.dtype, described, made,
                    _identity(study, launches, shape, gpu), "", 0.0, "")  # fmt: skip


def _bare(binary: Binary) -> Binary:
    """Without PTX and log, which only the machine that compiles reads."""
    return replace(binary, ptx="", log="")


def _why(item: PlanItem, gpu: Gpu, store: RecordStore | None) -> str:
    """Why the item has no record that holds today, in words; '' if it has one."""
    found = []
    for kind in ("timing", "check") if store else ():
        record = store.find(item.study, item.version, item.shape, gpu.name, kind, item.dtype)  # type: ignore[union-attr]
        if record is not None and (kind == "timing" or not record.check.get("passed")):
            found.append(record)
    if any(_answers(record, item) for record in found):
        return ""
    reasons = stale_reasons(max(found, key=lambda r: r.utc), item.identity) if found else ()
    return ", ".join(reasons) or "never measured"


def _estimate(study: Study, item: PlanItem, shape: Any, gpu: Gpu, spec: TimingSpec, store: RecordStore | None,
              is_first: bool) -> tuple[float, str]:  # fmt: skip
    """Seconds that an item takes, and whether its kernel's time is recorded or modelled from the work and the peaks."""
    work = study.work(shape)
    record = store.find(item.study, item.version, item.shape, gpu.name, "timing", item.dtype) if store else None
    if record is not None:
        kernel, source = record.timing["cold"]["median_seconds"], "recorded"
    else:
        flops, rate = gpu.peaks.get(study.dtype) or 1e13, gpu.memory_bytes_per_second or 1e12
        kernel, source = max(work.flops / flops, work.bytes / rate) / ASSUMED_EFFICIENCY, "modelled"
    samples = min(EXPECTED_SAMPLES * spec.min_samples, spec.max_samples)
    cold = min(spec.max_seconds, samples * (kernel + 2e-4))
    hot = min(spec.max_seconds, samples * max(kernel, spec.batch_seconds))
    warm_up = min(spec.max_warmup_seconds, max(2 * spec.min_warmup_seconds, 10 * kernel))
    first = work.flops / HOST_FLOPS + work.bytes / HOST_BYTES_PER_SECOND if is_first else 0.0
    return round(0.2 + warm_up + cold + hot + first, 3), source


def _build(folder: Path) -> dict[str, Any]:
    """Where the plan is from: the commit of the study's repository ("…-dirty" if changed since), and packages."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        said = ""  # no git, or no repository
    return {"commit": said or None, "packages": packages("perflab", "cuda-bindings", "nvidia-cuda-nvrtc")}
