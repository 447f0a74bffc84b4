"""Runs a plan. One item on a device: check against the reference first, then time. The loop over items, in a worker
that may die: every result is handed over the moment it is there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perflab import tables
from perflab.check import check_outputs
from perflab.compile import Binary
from perflab.device import Device, open_device, poisoned
from perflab.errors import PerflabError
from perflab.planning import Plan, PlanItem, identity_of, make_plan, shape_labels
from perflab.records import Record, canonical_gpu
from perflab.studies import SCALAR_TYPES, Study, inputs_hash, load_study
from perflab.timing import Stopwatch, TimingSpec
from perflab.worker import Worker, WorkerError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Bench", "Outcome", "Plan", "PlanItem", "identity_of", "make_plan", "measure", "measure_task", "runs_on"]

DESCRIBE_SECONDS = 120  # the first CUDA call of a machine can take long
LEAST_LIMIT_SECONDS = 120


# ---------------------------------------------------------------- one item on a device
class Bench:
    """A device and what stays with it between items: loaded kernels, and one shape's inputs and float64 reference."""

    def __init__(self, device: Device, study: Study) -> None:
        self.device, self.study = device, study
        self._functions: dict[tuple[str, str], Any] = {}
        self._stopwatch: Stopwatch | None = None
        self._host: tuple[str, Any, dict[str, np.ndarray], Mapping[str, np.ndarray]] | None = None

    def run_item(
        self, item: PlanItem, binaries: Mapping[str, Binary], tools: Binary, spec: TimingSpec
    ) -> Iterator[dict[str, Any]]:
        """Yield {kind, payload, clocks}: the check; then, only if it passed, the timing."""
        shape, inputs, want = self._host_data(item)
        memory = {name: self.device.upload(array) for name, array in inputs.items()}  # anew: a kernel may spoil them
        memory |= {name: poisoned(self.device, b["shape"], b["dtype"]) for name, b in item.buffers.items()}
        launch = self._launcher(item, binaries, memory)
        launch()
        self.device.synchronize()
        outputs = [name for name, buffer in item.buffers.items() if buffer["role"] == "output"]
        got = {name: self.device.download(memory[name]) for name in outputs}
        check = check_outputs(self.study, item.version, shape, got, want)
        yield {"kind": "check", "payload": check.to_dict(), "clocks": self.device.clocks()}
        if check.passed:
            self._stopwatch = self._stopwatch or Stopwatch(self.device, tools.cubin)
            timing = self._stopwatch.time(launch, spec)
            yield {"kind": "timing", "payload": timing.to_dict(), "clocks": dict(timing.clocks_after)}

    def _host_data(self, item: PlanItem) -> tuple[Any, dict[str, np.ndarray], Mapping[str, np.ndarray]]:
        key = json.dumps(item.shape, sort_keys=True)
        if self._host is None or self._host[0] != key:
            self._host = None  # before the next shape's arrays take memory
            shape = self.study.make_shape(**item.shape)
            if inputs_hash(self.study, shape) != item.identity.inputs:
                raise PerflabError(f"the study here makes other inputs for {dict(item.shape)} than the plan was made "
                                   "for: it changed since. Make the plan, or pack it, again")  # fmt: skip
            inputs = self.study.make_inputs(shape)
            self._host = key, shape, inputs, self.study.reference(shape, inputs)
        return self._host[1:]

    def _launcher(
        self, item: PlanItem, binaries: Mapping[str, Binary], memory: Mapping[str, Any]
    ) -> Callable[[], None]:
        launchers = []
        for launch in item.launches:
            key = launch["binary"], launch["entry"]
            if key not in self._functions:
                self._functions[key] = self.device.load(binaries[key[0]].cubin, key[1])
            arguments = [memory[a] if isinstance(a, str) else _scalar(a) for a in launch["arguments"]]
            launchers.append(self.device.launcher(self._functions[key], launch["grid"], launch["block"], arguments,
                                                  launch["dynamic_shared"]))  # fmt: skip

        def launch_all() -> None:
            for one in launchers:
                one()

        return launchers[0] if len(launchers) == 1 else launch_all


def _scalar(argument: Mapping[str, Any]) -> Any:
    """A kernel argument of exactly its parameter's type: a Python int would be passed as 64 bits."""
    import numpy as np

    return np.dtype(SCALAR_TYPES[argument["type"]]).type(argument["value"])


_benches: dict[str, Bench] = {}


def measure_task(
    folder: str, item: Mapping[str, Any], binaries: Mapping[str, Any], tools: Mapping[str, Any],
    spec: Mapping[str, Any], progress: Callable[[Any], None],
) -> dict[str, Any]:  # fmt: skip
    """The worker's task "measure": one item. Each result goes out as progress as soon as it is there."""
    if folder not in _benches:
        _benches.clear()  # one study at a time keeps memory
        _benches[folder] = Bench(open_device(), load_study(Path(folder)))
    loaded = {key: Binary.from_dict(binary) for key, binary in binaries.items()}
    count = 0
    for found in _benches[folder].run_item(
        PlanItem.from_dict(item), loaded, Binary.from_dict(tools), TimingSpec(**spec)
    ):
        progress(found)
        count += 1
    return {"results": count}


# ---------------------------------------------------------------- the loop
@dataclass(frozen=True)
class Outcome:
    """How a run ended: records taken, items done, what failed and why, items not tried, and what ended it early."""

    records: int
    done: int
    failed: tuple[str, ...]
    left: int
    ended_early: str = ""

    def __str__(self) -> str:
        parts = [f"{self.records} records of {self.done} items"]
        parts += [f"{len(self.failed)} items failed"] if self.failed else []
        if self.left:
            parts.append(f"{self.left} items left ({self.ended_early}): the same command goes on from here")
        return "; ".join(parts)


def measure(
    plan: Plan, worker: Worker, on_record: Callable[[Record], object], on_note: Callable[[str], object] = print,
    folder: str | None = None, budget_seconds: float | None = None, item_limit_seconds: float | None = None,
) -> Outcome:  # fmt: skip
    """Run a plan in `worker`; each record is handed over the moment it is there.

    An item during which the worker dies, hangs or is refused is noted, and the next goes on in a fresh worker. Ctrl-C,
    or the next item not fitting in budget_seconds, ends the run; what was taken stays. `folder` is the study's as the
    worker sees it. Raises PerflabError if the machine has no GPU, or one that cannot run the plan's code.
    """
    begin, early = time.monotonic(), ""
    run = _Run(plan, worker, on_record, on_note, folder or str(plan.folder))
    try:
        run.look_at_device()
        for item, label in zip(plan.items, shape_labels([item.shape for item in plan.items]), strict=True):
            if budget_seconds is not None and time.monotonic() - begin + item.estimate_seconds > budget_seconds:
                early = f"the next one's {item.estimate_seconds:.0f} s do not fit into the {budget_seconds:g} s allowed"
                break
            run.take(item, f"{item.version}, {label}", item_limit_seconds)
    except _Unreachable as error:
        early = str(error)
    except _NotKept as error:
        raise error.__cause__ or error from None
    except KeyboardInterrupt:
        early = "Ctrl-C"
        worker.stop()
    outcome = Outcome(run.records, run.done, tuple(run.failed), len(plan.items) - run.done - len(run.failed), early)
    on_note(str(outcome))
    return outcome


class _NotKept(Exception):
    """The record was taken, but `on_record` could not keep it (a full disk): the run must not go on."""


class _Unreachable(Exception):
    """After a failed item the machine no longer answers: the next items would fail the same way."""


class _Run:
    """The state of one `measure`."""

    def __init__(self, plan: Plan, worker: Worker, on_record: Callable[[Record], object],
                 on_note: Callable[[str], object], folder: str) -> None:  # fmt: skip
        self.plan, self.worker, self.on_record, self.on_note, self.folder = plan, worker, on_record, on_note, folder
        self.records = self.done = 0
        self.failed: list[str] = []
        self.device: Mapping[str, Any] = {}

    def look_at_device(self) -> None:
        """Ask what GPU is there, and refuse one that cannot run the plan's code."""
        try:
            self.device = self.worker.call("describe", DESCRIBE_SECONDS)
        except WorkerError as error:
            raise PerflabError(f"the GPU machine does not answer: {error}") from error
        name, capability = self.device["name"], self.device["capability"]
        built_for = dict.fromkeys(binary.architecture for binary in (*self.plan.binaries.values(), self.plan.tools))
        wrong = [architecture for architecture in built_for if not runs_on(architecture, capability)]
        if wrong:
            raise PerflabError(f"the plan's code is for {', '.join(wrong)} ({self.plan.gpu}); the GPU there is a {name} "
                               f"of compute capability {capability}: make the plan for it, with --gpu")  # fmt: skip
        if canonical_gpu(name) != canonical_gpu(self.plan.gpu):
            self.on_note(f"planned for {self.plan.gpu}, measured on {name}: launches and estimates are the former's")

    def take(self, item: PlanItem, name: str, limit_seconds: float | None) -> None:
        """Measure one item; a failure of it is noted and the machine looked at again."""

        def keep(found: Mapping[str, Any]) -> None:
            record = _record(self.plan, item, self.device, found)
            try:
                self.on_record(record)
            except Exception as error:
                self.on_note(f"NOT KEPT ({error}): {record.to_json()}")
                raise _NotKept from error
            self.records += 1
            self.on_note(_in_words(name, found))

        used = {launch["binary"] for launch in item.launches}
        limit = limit_seconds or max(LEAST_LIMIT_SECONDS, 20 * item.estimate_seconds)
        try:
            self.worker.call(
                "measure", limit, keep, folder=self.folder, item=asdict(item), spec=asdict(self.plan.spec),
                tools=self.plan.tools.to_dict(), binaries={key: self.plan.binaries[key].to_dict() for key in used},
            )  # fmt: skip
            self.done += 1
        except (WorkerError, PerflabError) as error:
            self.failed.append(f"{name}: {error}")
            self.on_note(f"FAILED  {self.failed[-1]}")
            self.worker.stop()  # a fault takes the process's GPU context with it
            try:
                self.worker.call("describe", DESCRIBE_SECONDS)
            except (WorkerError, PerflabError) as silence:
                raise _Unreachable(f"the machine no longer answers: {silence}") from silence


def runs_on(architecture: str, capability: str) -> bool:
    """Whether a cubin of "sm_90" runs on a GPU of "9.0": the same major, no lesser minor; for "sm_90a" the same."""
    digits = architecture.removeprefix("sm_")
    number = digits.rstrip("af")
    major, minor = int(number[:-1]), int(number[-1])
    here_major, here_minor = (int(part) for part in capability.split("."))
    exact = digits.endswith("a")
    return here_major == major and (here_minor == minor if exact else here_minor >= minor)


def _record(plan: Plan, item: PlanItem, device: Mapping[str, Any], found: Mapping[str, Any]) -> Record:
    """A result with where it is from: build, device, identity, conditions, and now."""
    built = [plan.binaries[launch["binary"]] for launch in item.launches]
    clocks = found["clocks"]
    provenance = {
        **asdict(item.identity),
        "nvrtc": built[0].nvrtc, "options": list(dict.fromkeys(" ".join(binary.options) for binary in built)),
        "architecture": plan.architecture, "commit": plan.build.get("commit"),
        "packages": {**plan.build.get("packages", {}), **device.get("packages", {})},
        "driver": device.get("driver"), "cuda": device.get("cuda"),
        "power_limit_watts": device.get("power_limit_watts"),
        "clocks": clocks, "temperature_celsius": clocks.get("temperature_celsius"),
        "utc": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }  # fmt: skip
    gpu = {key: device.get(key) for key in ("name", "uuid", "capability")}
    kind, payload = found["kind"], found["payload"]
    return Record(item.study, item.version, dict(item.shape), kind, payload, gpu, provenance, item.dtype)


def _in_words(name: str, found: Mapping[str, Any]) -> str:
    """A line for who watches."""
    payload = found["payload"]
    if found["kind"] == "timing":
        cold, hot = payload["cold"], payload["hot"]
        medians = f"cold {tables.seconds(cold['median_seconds'])}, hot {tables.seconds(hot['median_seconds'])}"
        return f"timed   {name}: {medians} ({len(cold['samples'])} samples, {cold['stopped']})"
    problems = "; ".join(f"{out['output']}: {out['problem']}" for out in payload["outputs"] if out["problem"])
    return f"right   {name}" if payload["passed"] else f"WRONG   {name}, so not timed: {problems}"
