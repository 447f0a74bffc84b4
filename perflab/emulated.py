"""A study's versions on the CPU: their counts, and whether they are right and free of faults; kept in the cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from perflab import tables
from perflab.caches import cache_folder, keep, read_kept
from perflab.check import Check, check_outputs, parity_line
from perflab.emulator.counts import Counts
from perflab.emulator.emulation import Settings, emulate_launches
from perflab.emulator.faults import Fault
from perflab.gpus import Gpu
from perflab.origins import Origin
from perflab.studies import Launch, Study, Version, digest, inputs_hash, launches_hash

PACKAGE = Path(__file__).parent


@dataclass(frozen=True)
class EmulatedCheck(tables.Shown):
    """One version at one shape, run on the CPU: outputs against float64, and what went wrong on the way.

    label: the bundle or the shape in words; facts: its sizes; counts: of the run, without sums where it did not count.
    """

    check: Check
    label: str
    facts: Mapping[str, Any]
    counts: Counts

    @property
    def passed(self) -> bool:
        """True when every output is within its tolerance and nothing went wrong; warnings are let pass."""
        return self.check.passed and self.counts.passed

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What went wrong, one entry a cause."""
        return self.counts.faults

    @property
    def line(self) -> str:
        """The parity line: PASS or FAIL, version, label, sizes, errors; FAIL also for right outputs with a fault."""
        line = parity_line(self.check, self.label, self.facts)
        return line if self.passed else f"FAIL{line[4:]}"

    def table(self) -> tables.Table:
        """A row an output; the faults below."""
        rows = [("PASS" if one.passed else "FAIL", one.output, f"{one.max_abs:.2e}", f"{one.max_rel:.2e}",
                 f"{one.norm_relative:.2e}", f"{one.limit:.2e} ({one.measure})", one.problem) for one in self.check.outputs]
        columns = ("", "output", "max abs", "max rel", "norm rel", "allowed", "problem")
        title = self.line.splitlines()[0]
        return tables.Table(title, columns, rows, str(self.counts.origin), self._notes())

    def _notes(self) -> list[str]:
        notes = [("warning: " if fault.warning else "fault: ") + str(fault) for fault in self.faults]
        return notes or ["no fault: bounds, alignment, initialisation, races, barriers and warp collectives were checked"]


# ---------------------------------------------------------------- the two verbs
def count(study: Study, version: Version, shape: Any, gpu: Gpu, **settings: Any) -> Counts:
    """The counts of a version's launches at a shape; settings as `Settings`. Without `sample` every block is run."""
    chosen = Settings(gpu, **{"checking": False, **settings})
    name = f"{study.name}/{version.name}"
    launches = version.launches(shape, gpu)

    def made() -> dict[str, Any]:
        inputs, buffers = study.make_inputs(shape), study.buffers_of(version, shape, gpu)
        return emulate_launches(name, launches, inputs, buffers, chosen, version.outputs)[0].to_dict()

    return Counts.from_dict(_kept(["count", name, _identity(study, version, shape, launches, chosen)], made))


def check(study: Study, version: Version, shape: Any, gpu: Gpu, label: str, folder: Path, **settings: Any) -> EmulatedCheck:
    """Run a version at a shape and compare its outputs with float64; `folder` is the study's, whose code is the reference."""
    chosen = Settings(gpu, **{"counting": False, **settings})
    name = f"{study.name}/{version.name}"
    launches = version.launches(shape, gpu)

    def made() -> dict[str, Any]:
        inputs, buffers = study.make_inputs(shape), study.buffers_of(version, shape, gpu)
        counts, got = emulate_launches(name, launches, inputs, buffers, chosen, version.outputs)
        checked = check_outputs(study, version.name, shape, got, study.reference(shape, inputs))
        return {"check": checked.to_dict(), "counts": counts.to_dict()}

    references = [_code_of(one) for one in (folder, *(folder.parent / used for used in study.uses))]
    key = ["check", name, _identity(study, version, shape, launches, chosen), references]
    found = _kept(key, made)
    counts = replace(Counts.from_dict(found["counts"]), origin=_origin(found["counts"]["origin"]["detail"]))
    return EmulatedCheck(Check.from_dict(version.name, found["check"]), label, study.facts(shape), counts)


def _origin(detail: str) -> Origin:
    return Origin("counted", f"emulated: {detail}")


# ---------------------------------------------------------------- kept results
def _identity(study: Study, version: Version, shape: Any, launches: Sequence[Launch], settings: Settings) -> str:
    """What a result depends on: PTX, launches, inputs, buffers, the GPU's limits, how it was run, and the emulator's code."""
    assert isinstance(settings.gpu, Gpu)
    code = [hashlib.sha256(launch.kernel.binary(settings.gpu).ptx.encode()).hexdigest() for launch in launches]
    entries = [launch.kernel.entry(settings.gpu) for launch in launches]
    asked = study.buffers_of(version, shape, settings.gpu)
    buffers = {name: [type(buffer).__name__, list(buffer.shape), buffer.dtype] for name, buffer in asked.items()}
    how = {**asdict(replace(settings, gpu=None)), "gpu": settings.gpu.name}
    return digest([code, entries, launches_hash(launches), inputs_hash(study, shape), asdict(shape), buffers, how,
                   _emulator_code()])


@cache
def _emulator_code() -> str:
    return _code_of(PACKAGE / "emulator")


def _code_of(folder: Path) -> str:
    """A hash of the Python files of a folder."""
    found = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        found.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()


def _kept(key: Sequence[Any], made: Callable[[], dict[str, Any]]) -> Any:
    """The kept result of that key; made and kept where there is none, or a damaged one."""
    path = cache_folder() / "emulated" / f"{digest(list(key))}.json"
    with contextlib.suppress(ValueError):
        return json.loads(read_kept(path) or b"")
    text = json.dumps(made())
    keep(path, text)
    return json.loads(text)  # as from the disk: the first answer is the same as every later one
