"""What a user has installed, on the same clock: a rival is declared beside a study, checked first, timed by this engine.

`rivals.py` of a study's folder exports `rivals: tuple[Rival, ...]` and, where it has them, `reference(shape, inputs, mask)` in
float64, `masks` (all that a rival of this study may compute) and `work(shape, dtype)`. Libraries are found where the user has
them, and in the folders that PERFLAB_RIVALS_PATH names.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perflab import tables
from perflab.check import Check, compare
from perflab.compile import Binary
from perflab.device import open_device, packages
from perflab.errors import PerflabError, unknown
from perflab.measuring import DESCRIBE_SECONDS, Outcome
from perflab.planning import Plan, shape_labels
from perflab.records import Record, shape_sizes
from perflab.studies import NotApplicable, Study, Tolerance, Work, digest, inputs_hash, load_study
from perflab.timing import METHOD, Stopwatch, TimingSpec
from perflab.worker import Worker, WorkerError

if TYPE_CHECKING:
    import numpy as np

VARIABLE = "PERFLAB_RIVALS_PATH"
RIVAL_SECONDS = 420  # one rival at one shape: some compile for a minute
LIMIT = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 1e-5}  # ||got - want|| / ||want|| from inputs rounded to that type
NOT_DONE = {"missing": "", "not_applicable": "n/a: ", "failed": "FAILED: "}
EXACT = ("tree", "")


# ---------------------------------------------------------------- what is declared
@dataclass(frozen=True)
class Prepared:
    """A rival ready to run at one shape: all that serving code does once a step has been done.

    call     queues the work on the legacy default stream, and does not wait for it
    outputs  the last call's outputs, float32, in the shapes of the study's; some may be left out
    settings what was chosen for this shape, in words
    unrounded the same outputs before the last rounding to the rival's dtype, to tell the mask by; None: the outputs do.
             A part that comes in bfloat16 and is joined into bfloat16 swallows what the other part adds, at 65,536 keys
    """

    call: Callable[[], None]
    outputs: Callable[[], Mapping[str, np.ndarray]]
    settings: str = ""
    unrounded: Callable[[], Mapping[str, np.ndarray]] | None = None


@dataclass(frozen=True)
class Rival:
    """Another implementation of a study.

    mask     "tree" (exact), "chain" (every node sees those before it), "prefix" (no node sees a node), "" (nothing to mask)
    needs    importable modules; "a|b" is either, and each may also be a library file `*a*.so`
    prepare  (shape, inputs as numpy float32, already rounded to `dtype`) -> Prepared; NotApplicable where it cannot
    note     what is and is not inside the timed call
    files    sources beside rivals.py that are the rival's own code
    """

    name: str
    mask: str
    needs: tuple[str, ...]
    prepare: Callable[[Any, dict[str, np.ndarray]], Prepared]
    note: str
    dtype: str = "bfloat16"
    files: tuple[str, ...] = ()

    @property
    def mask_in_words(self) -> str:
        """For a table: whether it does the study's work or less."""
        return "exact" if self.mask in EXACT else f"{self.mask} only"


@dataclass(frozen=True)
class Rivals:
    """What a study's rivals.py exports; `reference` and `work` fall back to the study's own."""

    rivals: tuple[Rival, ...]
    reference: Callable[[Any, Mapping[str, np.ndarray], str], Mapping[str, np.ndarray]] | None = None
    masks: tuple[str, ...] = ()
    work: Callable[[Any, str], Work] | None = None
    cells: tuple[Mapping[str, Any], ...] = ()

    def shapes(self, study: Study) -> list[Any]:
        """The shapes at which rivals are measured: the cells declared for them, else all the study's."""
        return [study.make_shape(**cell) for cell in self.cells] or list(study.shapes)

    def rival(self, name: str) -> Rival:
        """The rival of that name; an unknown one is an error that lists those there are."""
        by_name = {rival.name: rival for rival in self.rivals}
        if name not in by_name:
            raise unknown("rival", name, by_name)
        return by_name[name]


def load_rivals(folder: Path) -> Rivals:
    """What folder/rivals.py declares; nothing if there is no such file. A broken one is an error that says how."""
    file = Path(folder) / "rivals.py"
    if not file.is_file():
        return Rivals(())
    try:
        module = load_beside(file)
    except PerflabError:
        raise
    except Exception as error:
        raise PerflabError(f"{file.parent.name}/rivals.py cannot be loaded: {type(error).__name__}: {error}") from error
    declared = getattr(module, "rivals", None)
    if not isinstance(declared, tuple) or not all(isinstance(rival, Rival) for rival in declared):
        raise PerflabError(f"{file.parent.name}/rivals.py defines no `rivals = (Rival(…), …)`")
    own = {name: getattr(module, name) for name in ("reference", "masks", "work", "cells") if hasattr(module, name)}
    return Rivals(declared, **own)


def load_beside(file: Path) -> Any:
    """The module in `file`, loaded once, under a name of its own: study folders are no packages."""
    name = f"perflab_{file.stem}_{digest(str(file.resolve()))}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


# ---------------------------------------------------------------- what is installed
def extra_folders() -> list[Path]:
    """The folders of PERFLAB_RIVALS_PATH, which are put on Python's path too."""
    folders = [Path(part) for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]
    sys.path[:0] = [str(folder) for folder in folders if str(folder) not in sys.path]
    return folders


def find_library(stem: str) -> Path | None:
    """A library file `*stem*.so` in those folders, or one that vLLM's wheel brings; None if there is none."""
    folders = extra_folders()
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("vllm")  # finds, does not import
        folders += [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    found = (file for folder in folders for pattern in ("*.so", "*/*.so") for file in sorted(folder.glob(pattern)))
    return next((file for file in found if stem in file.name), None)


def _is_there(need: str) -> bool:
    with contextlib.suppress(ImportError, ValueError):
        if importlib.util.find_spec(need):
            return True
    return find_library(need) is not None


def missing(rival: Rival) -> str:
    """Which of its needs this Python does not have, in words; '' if all are there."""
    extra_folders()
    lacking = [need.replace("|", " or ") for need in rival.needs if not any(map(_is_there, need.split("|")))]
    return f"{', '.join(lacking)} not installed: no such module here, nor a library file in {VARIABLE}" if lacking else ""


def _about(rival: Rival, folder: Path) -> dict[str, Any]:
    """Versions of what the rival is made of, and a hash of those, of its library files and of its own sources."""
    needs = [need for either in rival.needs for need in either.split("|")]
    names = metadata.packages_distributions()
    found = packages(*dict.fromkeys(("torch", "triton", *(name for need in needs for name in names.get(need, [need])))))
    parts: dict[str, Any] = {"packages": found, "name": rival.name}
    for need in needs:
        library = None if names.get(need) else find_library(need)
        if library:
            found[library.name] = parts[library.name] = _sha256(library)
    for name in rival.files:
        parts[name] = _sha256(folder / name)
    return {"packages": found, "code": digest(parts)}


@functools.lru_cache(maxsize=16)
def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


# ---------------------------------------------------------------- checked
def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """float32 values rounded to what `dtype` holds, to nearest, ties to even; other arrays as they are."""
    import numpy as np

    if array.dtype != np.float32 or dtype == "float32":
        return array
    if dtype != "bfloat16":
        return array.astype(dtype).astype(np.float32)
    bits = array.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)).view(np.float32)


def check_rival(rival: Rival, got: Mapping[str, np.ndarray], wanted: Mapping[str, Mapping[str, np.ndarray]],
                unrounded: Mapping[str, np.ndarray] | None = None) -> Check:
    """Compare with the reference of the rival's own mask. wanted: mask -> output -> float64 array; unrounded: see Prepared.

    An output whose last axis holds a row passes if the whole, and its worst row, are within LIMIT in norm; other outputs by
    their largest error. And every node must lie nearer to its own mask's reference than to another's: among 65,536 keys a
    wrong tree changes a row by less than bfloat16 does, but in a direction of its own. A node's heads, which share its mask,
    are taken together: one row whose weight of the key in question is small is lost in the rounding (seen on an H200).
    """
    import numpy as np

    own, limit = wanted[rival.mask], LIMIT[rival.dtype]
    if not got:
        raise PerflabError(f"{rival.name} gave no output to check")
    compared, telling = [], {**got, **(unrounded or {})}
    for name, values in got.items():
        want = own[name]
        measure = "norm_relative" if want.ndim > 1 and name != "lse" else "max_abs"
        found = compare(name, values, want, Tolerance(measure, limit, rival.dtype))
        if found.passed and measure == "norm_relative":
            rows, want_rows = values.reshape(-1, want.shape[-1]).astype(np.float64), want.reshape(-1, want.shape[-1])
            worst = float((np.linalg.norm(rows - want_rows, axis=1) / np.linalg.norm(want_rows, axis=1)).max())
            problem = "" if worst <= 2 * limit else f"the worst row's norm_relative {worst:.2e} is over {2 * limit:.2e}"
            for mask, other in wanted.items():
                leaning = lean(*(by_node(a) for a in (telling[name], want, other[name]))) if mask != rival.mask else 0.0
                problem = problem or ("" if leaning < 0.5 else f'it computes the mask "{mask}", not "{rival.mask}"')
            found = replace(found, passed=not problem, problem=problem)
        compared.append(found)
    return Check(rival.name, tuple(compared))


def by_node(array: np.ndarray) -> np.ndarray:
    """[nodes, heads x columns] in float64 of an output [..., heads, columns]; a matrix is its rows."""
    import numpy as np

    width = array.shape[-1] * (array.shape[-2] if array.ndim > 2 else 1)
    return array.reshape(-1, width).astype(np.float64)


def lean(rows: np.ndarray, own: np.ndarray, other: np.ndarray) -> float:
    """How far the rows lie on the way from `own` (0) to `other` (1), the farthest row; rows that do not differ are left out."""
    import numpy as np

    way = other - own
    length = (way * way).sum(axis=1)
    told = length > 1e-12 * (own * own).sum(axis=1)
    along = ((rows - own) * way).sum(axis=1)[told] / length[told]
    return float(np.max(along, initial=0.0))


# ---------------------------------------------------------------- in the worker
class _Ring:
    """A device and one study with its rivals; one shape's inputs and references stay between rivals."""

    def __init__(self, folder: str) -> None:
        self.folder, self.device = Path(folder), open_device()
        self.study, self.rivals = load_study(self.folder), load_rivals(self.folder)
        self.stopwatch: Stopwatch | None = None
        self._kept: tuple[str, dict[str, np.ndarray], dict[str, Any]] | None = None

    def run(self, rival: Rival, shape: Any, tools: Binary, spec: TimingSpec) -> Iterator[dict[str, Any]]:
        """Yield {kind, payload, clocks}: the check; then, only if it passed, the timing."""
        inputs, wanted = self._data(rival, shape)
        prepared = rival.prepare(shape, dict(inputs))
        prepared.call()
        self.device.synchronize()
        check = check_rival(rival, prepared.outputs(), wanted, prepared.unrounded and prepared.unrounded())
        told = {"settings": prepared.settings, "mask": rival.mask, "note": rival.note}
        yield {"kind": "check", "payload": {**check.to_dict(), **told}, "clocks": self.device.clocks()}
        if check.passed:
            self.stopwatch = self.stopwatch or Stopwatch(self.device, tools.cubin)
            timing = self.stopwatch.time(prepared.call, spec)
            yield {"kind": "timing", "payload": timing.to_dict(), "clocks": dict(timing.clocks_after)}

    def _data(self, rival: Rival, shape: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        key = json.dumps([shape_sizes(shape), rival.dtype], sort_keys=True)
        if self._kept is None or self._kept[0] != key:
            self._kept = None  # before the next shape's arrays take memory
            inputs = {name: rounded(array, rival.dtype) for name, array in self.study.make_inputs(shape).items()}
            self._kept = key, inputs, {}
        _, inputs, references = self._kept
        for mask in dict.fromkeys((rival.mask, *self.rivals.masks)):
            if mask not in references:
                references[mask] = self._reference(shape, inputs, mask, needed=mask == rival.mask)
        return inputs, {mask: found for mask, found in references.items() if found is not None}

    def _reference(self, shape: Any, inputs: Mapping[str, np.ndarray], mask: str, needed: bool) -> Any:
        with contextlib.nullcontext() if needed else contextlib.suppress(NotApplicable):
            if self.rivals.reference:
                return self.rivals.reference(shape, inputs, mask)
            if mask in EXACT:
                return self.study.reference(shape, inputs)
        if not needed:
            return None
        raise PerflabError(f'{self.folder.name}/rivals.py exports no reference(shape, inputs, mask) for the mask "{mask}"')


@functools.lru_cache(maxsize=1)
def _ring(folder: str) -> _Ring:
    return _Ring(folder)


def rival_task(folder: str, name: str, shape: Mapping[str, Any], tools: Mapping[str, Any], spec: Mapping[str, Any],
               progress: Callable[[Any], None]) -> dict[str, Any]:
    """The worker's task "rival": one rival at one shape. What it is made of, its check and its timing go out as progress;
    the result is {}, or {missing: what} or {not_applicable: why}."""
    ring = _ring(folder)
    rival = ring.rivals.rival(name)
    lacking = missing(rival)
    if lacking:
        return {"missing": lacking}
    progress({"kind": "about", **_about(rival, ring.folder)})
    try:
        for found in ring.run(rival, ring.study.make_shape(**shape), Binary.from_dict(dict(tools)), TimingSpec(**spec)):
            progress(found)
    except NotApplicable as reason:
        return {"not_applicable": str(reason)}
    finally:
        gc.collect()
        if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
            sys.modules["torch"].cuda.empty_cache()  # the next rival, and CuPy, want the memory
    return {}


# ---------------------------------------------------------------- the loop
def measure_rivals(plan: Plan, shapes: Sequence[Any], worker: Worker, on_record: Callable[[Record], object],
                   on_note: Callable[[str], object] = print, names: Sequence[str] | None = None,
                   limit_seconds: float = RIVAL_SECONDS, on_progress: Callable[[int], object] = lambda taken: None) -> Outcome:
    """Check and time rivals of plan's study at `shapes`, all rivals of a shape together, in `worker`.

    plan: for tools, spec, build and folder; one without items does (`make_plan(study, folder, gpu, versions=())`). A rival
    that is missing, cannot do a shape, fails, dies or takes too long is a record that says so, and the next goes on. Ctrl-C
    keeps what was taken. on_progress: told 1 after each rival at each shape.
    """
    assert plan.folder is not None
    study, known = load_study(plan.folder), load_rivals(plan.folder)
    chosen = [known.rival(name) for name in names] if names is not None else list(known.rivals)
    device = worker.call("describe", DESCRIBE_SECONDS)
    pairs = [(rival, shape) for shape in shapes for rival in chosen]
    labels = shape_labels([shape_sizes(shape) for _, shape in pairs])
    records, done, failed, early = 0, 0, [], ""
    for (rival, shape), label in zip(pairs, labels, strict=True):
        try:
            spec = replace(plan.spec, **(study.spec(shape) if study.spec else {}))
            about, found, problem = _take(plan, spec, rival, shape, worker, limit_seconds)
        except KeyboardInterrupt:
            early = "Ctrl-C"
            worker.stop()
            break
        for one in found:
            on_record(_record(plan, study, rival, shape, device, about, one))
            on_note(_in_words(f"{rival.name}, {label}", one))
            records += 1
        if problem:
            failed.append(f"{rival.name}, {label}: {problem}")
            worker.stop()  # its context may be lost
        else:
            done += 1
        on_progress(1)
    on_note(str(outcome := Outcome(records, done, tuple(failed), len(pairs) - done - len(failed), early)))
    return outcome


def _take(plan: Plan, spec: TimingSpec, rival: Rival, shape: Any, worker: Worker,
          limit_seconds: float) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    """What the rival is made of, its results, and what went wrong; that and what is missing as a last, failed check."""
    results: list[dict[str, Any]] = []
    problem = ""
    try:
        ended = worker.call("rival", limit_seconds, results.append, folder=str(plan.folder), name=rival.name,
                            shape=shape_sizes(shape), tools=plan.tools.to_dict(), spec=asdict(spec))
    except (WorkerError, PerflabError) as error:
        ended = {"failed": (problem := " ".join(str(error).split())[:600])}
    about = results.pop(0) if results and results[0]["kind"] == "about" else {"packages": {}, "code": ""}
    if ended:
        payload = {"passed": False, "outputs": [], **ended, "mask": rival.mask, "note": rival.note}
        results.append({"kind": "check", "payload": payload, "clocks": {}})
    return about, results, problem


def _record(plan: Plan, study: Study, rival: Rival, shape: Any, device: Mapping[str, Any], about: Mapping[str, Any],
            found: Mapping[str, Any]) -> Record:
    """A result with where it is from. A rival has no launches of ours: its code is the versions that it is made of."""
    clocks = found["clocks"]
    provenance = {
        "code": about["code"], "launches": "", "inputs": inputs_hash(study, shape), "method": METHOD,
        "packages": {**device["packages"], **about["packages"]}, "nvrtc": plan.tools.nvrtc, "options": [],
        "architecture": plan.architecture, "commit": plan.build["commit"],
        **{key: device[key] for key in ("driver", "cuda", "power_limit_watts")},
        "clocks": clocks, "temperature_celsius": clocks.get("temperature_celsius"),
        "utc": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
    gpu = {key: device[key] for key in ("name", "uuid", "capability")}
    return Record(study.name, "", shape_sizes(shape), found["kind"], found["payload"], gpu, provenance, rival.dtype, rival.name)


def _in_words(name: str, found: Mapping[str, Any]) -> str:
    """A line for who watches."""
    payload = found["payload"]
    if found["kind"] == "timing":
        cold, hot = (tables.seconds(payload[kind]["median_seconds"]) for kind in ("cold", "hot"))
        return f"timed   {name}: cold {cold}, hot {hot}"
    if payload["passed"]:
        return f"right   {name}" + (f" ({payload['settings']})" if payload["settings"] else "")
    return f"NOT     {name}: {not_done(payload)}"


def not_done(payload: Mapping[str, Any]) -> str:
    """Why a check that did not pass did not, in words."""
    told = [f"{words}{payload[key]}" for key, words in NOT_DONE.items() if key in payload]
    wrong = "; ".join(f"{out['output']}: {out['problem']}" for out in payload["outputs"] if out["problem"])
    return told[0] if told else f"WRONG, so not timed: {wrong}"
