"""Runs a plan. One item on a device: check against the reference first, then time. The loop over items, in a worker
that may die: an item's results are handed over as soon as it ends, however it ends.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perflab import tables
from perflab.check import check_outputs, poison
from perflab.compile import Binary
from perflab.device import Device, open_device
from perflab.errors import PerflabError
from perflab.planning import Plan, PlanItem, shape_labels
from perflab.records import Record, canonical_gpu
from perflab.studies import SCALAR_TYPES, Study, inputs_hash, load_study
from perflab.timing import Stopwatch, TimingSpec
from perflab.worker import Worker, WorkerError

if TYPE_CHECKING:
    import numpy as np

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

    def run_item(self, item: PlanItem, binaries: Mapping[str, Binary], tools: Binary,
                 spec: TimingSpec) -> Iterator[dict[str, Any]]:
        """Yield {kind, payload, clocks}: the check; then, only if it passed, the timing."""
        shape, inputs, want = self._host_data(item)
        memory = {name: self.device.upload(array) for name, array in inputs.items()}  # anew: a kernel may spoil them
        for name, buffer in item.buffers.items():
            memory[name] = self.device.upload(poison(tuple(buffer["shape"]), buffer["dtype"]))
        launch = self._launcher(item, binaries, memory)
        launch()
        self.device.synchronize()
        got = {name: self.device.download(memory[name]) for name, b in item.buffers.items() if b["role"] == "output"}
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
                                   "for: it changed since. Make the plan, or pack it, again")
            inputs = self.study.make_inputs(shape)
            self._host = key, shape, inputs, self.study.reference(shape, inputs)
        return self._host[1:]

    def _launcher(self, item: PlanItem, binaries: Mapping[str, Binary], memory: Mapping[str, Any]) -> Callable[[], None]:
        launchers = []
        for launch in item.launches:
            key = launch["binary"], launch["entry"]
            if key not in self._functions:
                self._functions[key] = self.device.load(binaries[key[0]].cubin, key[1])
            arguments = [memory[a] if isinstance(a, str) else _scalar(a) for a in launch["arguments"]]
            launchers.append(self.device.launcher(self._functions[key], launch["grid"], launch["block"], arguments,
                                                  launch["dynamic_shared"]))

        def launch_all() -> None:
            for one in launchers:
                one()

        return launchers[0] if len(launchers) == 1 else launch_all


def _scalar(argument: Mapping[str, Any]) -> Any:
    """A kernel argument of exactly its parameter's type: a Python int would be passed as 64 bits."""
    import numpy as np

    return np.dtype(SCALAR_TYPES[argument["type"]]).type(argument["value"])


@lru_cache(maxsize=1)  # one study at a time keeps memory
def _bench(folder: str) -> Bench:
    return Bench(open_device(), load_study(Path(folder)))


def measure_task(folder: str, item: Mapping[str, Any], binaries: Mapping[str, Any], tools: Mapping[str, Any],
                 spec: Mapping[str, Any], progress: Callable[[Any], None]) -> dict[str, Any]:
    """The worker's task "measure": one item. Each result goes out as progress as soon as it is there."""
    loaded = {key: Binary.from_dict(binary) for key, binary in binaries.items()}
    given = PlanItem.from_dict(item), loaded, Binary.from_dict(tools), TimingSpec(**spec)
    for found in _bench(folder).run_item(*given):
        progress(found)
    return {}


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
        parts += [f"{self.left} items left ({self.ended_early}): the same command goes on from here"] if self.left else []
        return "; ".join(parts)


def measure(plan: Plan, worker: Worker, on_record: Callable[[Record], object], on_note: Callable[[str], object] = print,
            budget_seconds: float | None = None, item_limit_seconds: float | None = None) -> Outcome:
    """Run a plan in `worker`, which finds the study in plan.folder; each record is handed over when its item ends.

    An item during which the worker dies, hangs or is refused is noted, and the next goes on in a fresh worker. Ctrl-C,
    or the next item not fitting in budget_seconds, ends the run; what was taken stays. Raises PerflabError if the machine
    has no GPU, or one that cannot run the plan's code, or no longer answers.
    """
    begin, early = time.monotonic(), ""
    records, done, failed = 0, 0, []
    device = _describe(worker)
    _refuse_other_architecture(plan, device)
    if canonical_gpu(device["name"]) != canonical_gpu(plan.gpu):
        on_note(f"planned for {plan.gpu}, measured on {device['name']}: launches and estimates are the former's")
    try:
        for item, label in zip(plan.items, shape_labels([item.shape for item in plan.items]), strict=True):
            if budget_seconds is not None and time.monotonic() - begin + item.estimate_seconds > budget_seconds:
                early = f"the next one's {item.estimate_seconds:.0f} s do not fit into the {budget_seconds:g} s allowed"
                break
            name = f"{item.version}, {label}"
            results, problem = _take(plan, item, worker, item_limit_seconds)
            for found in results:
                _hand_over(_record(plan, item, device, found), on_record, on_note)
                on_note(_in_words(name, found))
                records += 1
            if problem:
                failed.append(f"{name}: {problem}")
                on_note(f"FAILED  {failed[-1]}")
                worker.stop()  # a fault takes the process's GPU context with it
                _describe(worker)
            else:
                done += 1
    except KeyboardInterrupt:
        early = "Ctrl-C"
        worker.stop()
    outcome = Outcome(records, done, tuple(failed), len(plan.items) - done - len(failed), early)
    on_note(str(outcome))
    return outcome


def _describe(worker: Worker) -> dict[str, Any]:
    """What GPU is there. Raises PerflabError, so that a run ends whose every item would fail the same way."""
    try:
        return worker.call("describe", DESCRIBE_SECONDS)
    except WorkerError as error:
        raise PerflabError(f"the GPU machine does not answer: {error}") from error


def _refuse_other_architecture(plan: Plan, device: Mapping[str, Any]) -> None:
    built_for = dict.fromkeys(binary.architecture for binary in (*plan.binaries.values(), plan.tools))
    wrong = [architecture for architecture in built_for if not runs_on(architecture, device["capability"])]
    if wrong:
        raise PerflabError(f"the plan's code is for {', '.join(wrong)} ({plan.gpu}); the GPU there is a {device['name']} "
                           f"of compute capability {device['capability']}: make the plan for it, with --gpu")


def runs_on(architecture: str, capability: str) -> bool:
    """Whether a cubin of "sm_90" runs on a GPU of "9.0": the same major, no lesser minor; for "sm_90a" the same."""
    number = architecture.removeprefix("sm_").removesuffix("a")
    here = capability.replace(".", "")
    return here == number if architecture.endswith("a") else here[:-1] == number[:-1] and here[-1] >= number[-1]


def _take(plan: Plan, item: PlanItem, worker: Worker, limit_seconds: float | None) -> tuple[list[Any], Exception | None]:
    """Measure one item in the worker: its results, also those from before a failure, and the failure."""
    results: list[Any] = []
    used = {launch["binary"] for launch in item.launches}
    try:
        worker.call("measure", limit_seconds or max(LEAST_LIMIT_SECONDS, 20 * item.estimate_seconds), results.append,
                    folder=str(plan.folder), item=asdict(item), spec=asdict(plan.spec), tools=plan.tools.to_dict(),
                    binaries={key: plan.binaries[key].to_dict() for key in used})
    except (WorkerError, PerflabError) as error:
        return results, error
    return results, None


def _hand_over(record: Record, on_record: Callable[[Record], object], on_note: Callable[[str], object]) -> None:
    try:
        on_record(record)
    except Exception as error:  # a full disk: the run ends, but the result is not lost
        on_note(f"NOT KEPT ({error}): {record.to_json()}")
        raise


def _record(plan: Plan, item: PlanItem, device: Mapping[str, Any], found: Mapping[str, Any]) -> Record:
    """A result with where it is from: build, device, identity, conditions, and now."""
    built = [plan.binaries[launch["binary"]] for launch in item.launches]
    clocks = found["clocks"]
    provenance = {
        **asdict(item.identity),
        "nvrtc": built[0].nvrtc, "options": list(dict.fromkeys(" ".join(binary.options) for binary in built)),
        "architecture": plan.architecture, "commit": plan.build["commit"],
        "packages": {**plan.build["packages"], **device["packages"]},
        **{key: device[key] for key in ("driver", "cuda", "power_limit_watts")},
        "clocks": clocks, "temperature_celsius": clocks["temperature_celsius"],
        "utc": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
    gpu = {key: device[key] for key in ("name", "uuid", "capability")}
    return Record(item.study, item.version, dict(item.shape), found["kind"], found["payload"], gpu, provenance, item.dtype)


def _in_words(name: str, found: Mapping[str, Any]) -> str:
    """A line for who watches."""
    payload = found["payload"]
    if found["kind"] == "timing":
        cold, hot = payload["cold"], payload["hot"]
        medians = f"cold {tables.seconds(cold['median_seconds'])}, hot {tables.seconds(hot['median_seconds'])}"
        return f"timed   {name}: {medians} ({len(cold['samples'])} samples, {cold['stopped']})"
    problems = "; ".join(f"{out['output']}: {out['problem']}" for out in payload["outputs"] if out["problem"])
    return f"right   {name}" if payload["passed"] else f"WRONG   {name}, so not timed: {problems}"
