"""Runs a plan. One item on a device: check against the reference first, then time. The loop over items, in a worker
that may die: an item's results are handed over as soon as it ends, however it ends.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import groupby
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
from perflab.timing import Stopwatch, TimingSpec, Work
from perflab.worker import Worker, WorkerError

if TYPE_CHECKING:
    import numpy as np

DESCRIBE_SECONDS = 120  # the first CUDA call of a machine can take long
LEAST_LIMIT_SECONDS = 120
LEAST_LEFT_SECONDS = 5.0  # what was begun because its estimate fits may take this long at least
ALLOCATIONS = 2  # of all of a version's memory: where it lies can matter by a percent


# ---------------------------------------------------------------- one item on a device
class Bench:
    """A device and what stays with it between items: loaded kernels, and one shape's inputs and float64 reference."""

    def __init__(self, device: Device, study: Study) -> None:
        self.device, self.study = device, study
        self._functions: dict[tuple[str, str], Any] = {}
        self._stopwatch: Stopwatch | None = None
        self._made: tuple[str, Any, dict[str, np.ndarray]] | None = None
        self._want: Mapping[str, np.ndarray] | None = None

    def run_group(self, items: Sequence[PlanItem], binaries: Mapping[str, Binary], tools: Binary) -> Iterator[dict[str, Any]]:
        """The versions of one shape: yield {item, kind, payload, clocks}, every check first; then the timings of those that
        passed, interleaved, on ALLOCATIONS sets of memory each. An item that is only checked takes one set, and lets it go."""
        shape, inputs, want = self._host_data(items[0])
        right: dict[int, Work] = {}
        for place, item in enumerate(items):
            memory = [self._memory(item, inputs) for _ in range(ALLOCATIONS if item.timed else 1)]
            work = self._work(item, binaries, memory)
            work.run(0)
            self.device.synchronize()
            got = {name: self.device.download(memory[0][name]) for name, b in item.buffers.items() if b["role"] == "output"}
            check = check_outputs(self.study, item.version, shape, got, want)
            yield {"item": place, "kind": "check", "payload": check.to_dict(), "clocks": self.device.clocks()}
            if check.passed and item.timed:
                right[place] = work
        if right:
            self._stopwatch = self._stopwatch or Stopwatch(self.device, tools.cubin)
            named = {items[place].version: work for place, work in right.items()}
            timings = self._stopwatch.compare(named, TimingSpec(**items[0].spec))
            for place in right:
                timing = timings[items[place].version]
                yield {"item": place, "kind": "timing", "payload": timing.to_dict(), "clocks": dict(timing.clocks_after)}

    def _memory(self, item: PlanItem, inputs: Mapping[str, np.ndarray], blank: bool = False) -> dict[str, Any]:
        """Inputs, anew since a kernel may spoil them, and poisoned buffers; `blank`: buffers whose values are not set."""
        memory = {name: self.device.upload(array) for name, array in inputs.items()}
        for name, buffer in item.buffers.items():
            if blank:
                memory[name] = self.device.allocate(buffer["shape"], buffer["dtype"])
            elif buffer["role"] == "output":
                memory[name] = self.device.upload(poison(tuple(buffer["shape"]), buffer["dtype"]))
            else:  # scratch can be large, and nobody looks at its values: all bits set, a NaN in every float
                memory[name] = self.device.allocate(buffer["shape"], buffer["dtype"])
                self.device.fill(memory[name], 0xFF)
        return memory

    def run_once(self, item: PlanItem, binaries: Mapping[str, Binary], blank: bool = False) -> None:
        """The item's launches, once, and nothing else on the GPU; `blank`: outputs and scratch as they were allocated."""
        self._work(item, binaries, [self._memory(item, self._inputs(item)[1], blank)]).run(0)
        self.device.synchronize()

    def _inputs(self, item: PlanItem) -> tuple[Any, dict[str, np.ndarray]]:
        """(shape, inputs) of an item; kept until another shape is asked for."""
        key = json.dumps(item.shape, sort_keys=True)
        if self._made is None or self._made[0] != key:
            self._made = self._want = None  # before the next shape's arrays take memory
            shape = self.study.make_shape(**item.shape)
            if inputs_hash(self.study, shape) != item.identity.inputs:
                raise PerflabError(f"the study here makes other inputs for {dict(item.shape)} than the plan was made "
                                   "for: it changed since. Make the plan, or pack it, again")
            self._made = key, shape, self.study.make_inputs(shape)
        return self._made[1:]

    def _host_data(self, item: PlanItem) -> tuple[Any, dict[str, np.ndarray], Mapping[str, np.ndarray]]:
        shape, inputs = self._inputs(item)
        if self._want is None:
            self._want = self.study.reference(shape, inputs)
        return shape, inputs, self._want

    def _work(self, item: PlanItem, binaries: Mapping[str, Binary], memory: Sequence[Mapping[str, Any]]) -> Work:
        """The item's launches on each set of memory."""
        for launch in item.launches:
            key = launch["binary"], launch["entry"]
            if key not in self._functions:
                self._functions[key] = self.device.load(binaries[key[0]].cubin, key[1])

        def launcher(launch: Mapping[str, Any], where: Mapping[str, Any]) -> Callable[[], None]:
            arguments = [where[a] if isinstance(a, str) else _scalar(a) for a in launch["arguments"]]
            function = self._functions[launch["binary"], launch["entry"]]
            return self.device.launcher(function, launch["grid"], launch["block"], arguments, launch["dynamic_shared"])

        allocations = tuple(tuple(launcher(launch, where) for launch in item.launches) for where in memory)
        return Work(allocations, tuple(launch["entry"] for launch in item.launches))


def _scalar(argument: Mapping[str, Any]) -> Any:
    """A kernel argument of exactly its parameter's type: a Python int would be passed as 64 bits."""
    import numpy as np

    return np.dtype(SCALAR_TYPES[argument["type"]]).type(argument["value"])


@lru_cache(maxsize=1)  # one study at a time keeps memory
def _bench(folder: str) -> Bench:
    return Bench(open_device(), load_study(Path(folder)))


def measure_task(folder: str, items: Sequence[Mapping[str, Any]], binaries: Mapping[str, Any], tools: Mapping[str, Any],
                 progress: Callable[[Any], None]) -> dict[str, Any]:
    """The worker's task "measure": the items of one shape. Each result goes out as progress as soon as it is there."""
    loaded = {key: Binary.from_dict(binary) for key, binary in binaries.items()}
    for found in _bench(folder).run_group(list(map(PlanItem.from_dict, items)), loaded, Binary.from_dict(tools)):
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
            budget_seconds: float | None = None, item_limit_seconds: float | None = None,
            on_progress: Callable[[float], object] = lambda seconds: None) -> Outcome:
    """Run a plan in `worker`, which finds the study in plan.folder; the versions of a shape are timed together.

    Each record is handed over as soon as its group ends. A group during which the worker dies, hangs or is refused is taken
    apart, so that the item at fault is noted and the others are measured. Ctrl-C, or the next group not fitting in
    budget_seconds, ends the run; what was taken stays. on_progress gets the estimate of what is done, in seconds. Raises
    PerflabError if the machine has no GPU, or one that cannot run the plan's code, or no longer answers.
    """
    begin = time.monotonic()
    device = _device_for(plan, worker, on_note)
    labels = shape_labels([item.shape for item in plan.items])
    names = {_key(item): f"{item.version}, {label}" for item, label in zip(plan.items, labels, strict=True)}
    waiting = [list(group) for _, group in groupby(plan.items, key=lambda item: json.dumps(item.shape, sort_keys=True))]
    records, done, failed, early = 0, 0, list[str](), ""
    try:
        while waiting:
            group = waiting.pop(0)
            seconds = sum(item.estimate_seconds for item in group)
            left = math.inf if budget_seconds is None else budget_seconds - (time.monotonic() - begin)
            if seconds > left:
                early = f"the next {seconds:.0f} s do not fit into the {budget_seconds:g} s allowed"
                break
            results, problem = _take(plan, group, worker, _limit_seconds(seconds, item_limit_seconds, left))
            if problem and len(group) > 1:  # nothing is handed over twice: the group is measured again, one by one
                waiting[:0] = [[item] for item in group]
            else:
                for found in results:
                    item = group[found["item"]]
                    hand_over(record_of(plan, item, device, found), on_record, on_note)
                    on_note(_in_words(names[_key(item)], found))
                records, done = records + len(results), done + (0 if problem else len(group))
                on_progress(seconds)
                if problem:
                    failed.append(f"{names[_key(group[0])]}: {problem}")
                    on_note(f"FAILED  {failed[-1]}")
            if problem:
                worker.stop()  # a fault takes the process's GPU context with it
                describe(worker)
    except KeyboardInterrupt:
        early = "Ctrl-C"
        worker.stop()
    outcome = Outcome(records, done, tuple(failed), len(plan.items) - done - len(failed), early)
    on_note(str(outcome))
    return outcome


def _key(item: PlanItem) -> tuple[str, str]:
    return item.version, json.dumps(item.shape, sort_keys=True)


def _limit_seconds(estimate_seconds: float, item_limit_seconds: float | None, left_seconds: float) -> float:
    """When a group is taken to hang: by the limit asked for, else by its estimate; what hangs must not outlive what is left."""
    limit = item_limit_seconds or max(LEAST_LIMIT_SECONDS, 20 * estimate_seconds)
    return min(limit, max(LEAST_LEFT_SECONDS, left_seconds))


def _device_for(plan: Plan, worker: Worker, on_note: Callable[[str], object]) -> dict[str, Any]:
    """What GPU is there, with a note if it is not the plan's. Raises PerflabError if it cannot run the plan's code."""
    device = describe(worker)
    refuse_other_architecture(plan, device)
    if canonical_gpu(device["name"]) != canonical_gpu(plan.gpu):
        on_note(f"planned for {plan.gpu}, measured on {device['name']}: launches and estimates are the former's")
    return device


def describe(worker: Worker) -> dict[str, Any]:
    """What GPU is there. Raises PerflabError, so that a run ends whose every item would fail the same way."""
    try:
        return worker.call("describe", DESCRIBE_SECONDS)
    except WorkerError as error:
        raise PerflabError(f"the GPU machine does not answer: {error}") from error


def refuse_other_architecture(plan: Plan, device: Mapping[str, Any]) -> None:
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


def _take(plan: Plan, group: Sequence[PlanItem], worker: Worker,
          limit_seconds: float) -> tuple[list[Any], Exception | None]:
    """Measure the items of one shape in the worker: their results, also those from before a failure, and the failure."""
    results: list[Any] = []
    used = {launch["binary"] for item in group for launch in item.launches}
    try:
        worker.call("measure", limit_seconds, results.append, folder=str(plan.folder), items=[asdict(item) for item in group],
                    tools=plan.tools.to_dict(), binaries={key: plan.binaries[key].to_dict() for key in used})
    except (WorkerError, PerflabError) as error:
        return results, error
    return results, None


def hand_over(record: Record, on_record: Callable[[Record], object], on_note: Callable[[str], object]) -> None:
    try:
        on_record(record)
    except Exception as error:  # a full disk: the run ends, but the result is not lost
        on_note(f"NOT KEPT ({error}): {record.to_json()}")
        raise


def record_of(plan: Plan, item: PlanItem, device: Mapping[str, Any], found: Mapping[str, Any]) -> Record:
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
