"""A plan as one file for a machine that has only Python, numpy, CuPy, nvidia-ml-py and a driver; and the same over ssh.

The file is a zip that Python runs. It unpacks itself into a temporary folder, for a study reads files beside it, and
knows `plan`, `run`, `counters`, `sanitize`, `all` (each with -o records.jsonl) and `worker`. Over ssh it is unpacked
once, and its worker is spoken to from here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from perflab.errors import PerflabError
from perflab.launching import Target, launch_items
from perflab.measuring import Outcome, describe, measure, refuse_other_architecture
from perflab.ncu import CACHE_CONTROLS, count_plan
from perflab.planning import Plan
from perflab.records import Record, RecordFile, RecordStore
from perflab.sanitizer import TOOLS, sanitize_plan, smallest
from perflab.studies import load_study
from perflab.worker import Worker
from perflab.worker import main as serve_worker

SSH = ("ssh", "-o", "BatchMode=yes")  # a worker cannot answer a password prompt
UPLOAD_SECONDS = 120
GRACE_SECONDS = 0.5  # an idle worker ends by itself; a busy one must not hold the GPU beside the next worker
_SKIPPED = {"__pycache__", ".ipynb_checkpoints"}

MAIN = '''"""Measures a perflab plan on this machine: python {file} plan | run, counters, sanitize, all -o records.jsonl"""
import os, runpy, sys, tempfile, zipfile

if sys.version_info < (3, 11):
    sys.exit("this file needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try python3.12, python3.11")
here = os.path.dirname(os.path.abspath(__file__))
if os.path.isdir(here):  # unpacked
    sys.path.insert(0, here)
    from perflab.packing import main
    sys.exit(main(here))
with tempfile.TemporaryDirectory(prefix="perflab-") as folder:
    zipfile.ZipFile(here).extractall(folder)
    runpy.run_path(os.path.join(folder, "__main__.py"), run_name="__main__")
'''
_UNPACK = (
    "import io,sys,tempfile,zipfile; d=tempfile.mkdtemp(prefix='perflab-'); "
    "zipfile.ZipFile(io.BytesIO(sys.stdin.buffer.read())).extractall(d); print('UNPACKED', d)"
)
_REMOVE = "import shutil,sys; shutil.rmtree(sys.argv[1])"


# ---------------------------------------------------------------- making the file
def pack(plan: Plan, study_folder: Path, out: Path | str) -> Path:
    """Write the plan, the study and perflab itself as one runnable file; the same plan gives the same bytes."""
    path = Path(out)
    try:
        path.write_bytes(b"#!/usr/bin/env python3\n" + _zipped(plan, study_folder))
        path.chmod(0o755)
    except OSError as error:
        raise PerflabError(f"{path} cannot be written: {error.strerror}") from error
    return path


def _zipped(plan: Plan, study_folder: Path) -> bytes:
    own = Path(__file__).parent
    sources = sorted([*own.glob("*.py"), *own.glob("emulator/**/*.py"), *own.glob("facts/*.csv")])
    files = {f"perflab/{file.relative_to(own)}": file.read_bytes() for file in sources}
    for folder in (study_folder, *(study_folder.parent / name for name in load_study(study_folder).uses)):
        for file in sorted(folder.rglob("*")):
            if file.is_file() and not _SKIPPED & set(file.parts):
                files[f"kernels/{folder.name}/{file.relative_to(folder)}"] = file.read_bytes()
    files["plan.json"] = json.dumps(plan.to_dict()).encode()
    files["__main__.py"] = MAIN.encode()
    whole = BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)  # ZipInfo: no time of day
    return whole.getvalue()


# ---------------------------------------------------------------- on the GPU machine
def main(folder: str, arguments: Sequence[str] | None = None) -> int:
    """The packed file's own command line, after it unpacked itself into `folder`. Returns the exit status."""
    chosen = _parser().parse_args(arguments)
    if chosen.command == "worker":
        _end_with_input()
        serve_worker()
        return 0
    data = json.loads((Path(folder) / "plan.json").read_text(encoding="utf-8"))
    plan = Plan.from_dict(data, Path(folder) / "kernels" / data["study"])
    if chosen.command == "plan":
        print(plan)
        return 0
    if chosen.command == "launch":
        return _launch(plan, chosen)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a batch system's end of time: as Ctrl-C
    try:
        if chosen.command == "rivals":
            return _rivals(plan, folder, RecordFile(chosen.output), chosen.only, chosen.cells)
        outcomes = _PARTS[chosen.command](plan, folder, RecordFile(chosen.output), chosen)
    except PerflabError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; what was recorded is kept", file=sys.stderr)
        return 1
    return 1 if any(outcome.failed or outcome.left for outcome in outcomes) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python FILE", description="Measures a perflab plan on this machine's GPU.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("plan", help="print what would be measured and how long it takes")
    run = commands.add_parser("run", help="measure; what the output file already holds is not measured again")
    run.add_argument("-o", "--output", required=True, help="file of records; an item's are appended when it ends")
    run.add_argument("--limit-seconds", type=float, help="start nothing that would end later than this")
    run.add_argument("--item-limit-seconds", type=float, help="end an item that takes longer: it hangs")
    for name, words in (("counters", "hardware counters of every version, by ncu"),
                        ("sanitize", "every version at its smallest shape under compute-sanitizer's four tools"),
                        ("all", "checks and times, then counters, then the sanitizer: what matters most within the time")):
        part = commands.add_parser(name, help=f"{words}; what the output file already holds is not taken again")
        part.add_argument("-o", "--output", required=True, help="file of records; appended as they come")
        part.add_argument("--limit-seconds", type=float, help="end within about this time")
        part.add_argument("--item-limit-seconds", type=float, help="end an item (or ncu's run of a shape) that takes longer")
        part.add_argument("--shapes", type=int, help="counters of the first N shapes of the plan, instead of "
                          "those that the study names (Study.counted)")
        part.add_argument("--cache-control", choices=CACHE_CONTROLS, default="all",
                          help="flush caches before each replay, or not")
    launch = commands.add_parser("launch", help="run items once, nothing else; `counters` and `sanitize` start it under a tool")
    launch.add_argument("--items", required=True, help="indices into the plan, with commas")
    launch.add_argument("--notes", required=True, type=Path, help="file to note in what began and ended")
    launch.add_argument("--blank", action="store_true", help="outputs and scratch keep what their memory held")
    launch.add_argument("--no-pool", action="store_true", help="every array is an allocation of its own")
    others = commands.add_parser("rivals", help="what is installed here, checked and timed like the study's own versions")
    others.add_argument("-o", "--output", required=True, help="file of records; each is appended as soon as it is taken")
    others.add_argument("--only", action="append", help="this rival only; may be repeated")
    others.add_argument("--cells", help="the first N cells only, or FROM-TO counted from 1", default="")
    commands.add_parser("worker", help="serve tasks on stdin and stdout; `run` and ssh start it")
    return parser


def _command(folder: str) -> list[str]:
    return [sys.executable, str(Path(folder) / "__main__.py"), "worker"]


def _run(plan: Plan, folder: str, output: RecordFile, chosen: argparse.Namespace) -> list[Outcome]:
    """Check and time what `output` does not hold yet, in a worker process of this same file."""
    begin = time.monotonic()
    with Worker(_command(folder)) as worker:
        name = worker.call("describe", UPLOAD_SECONDS)["name"]
        rest = plan.without(output.read(), name)
        if len(rest.items) < len(plan.items):
            print(f"{len(plan.items) - len(rest.items)} of {len(plan.items)} items are in {output.path} already")
        print(rest, flush=True)
        return [measure(rest, worker, output.append, _print_now, budget_seconds=_rest(chosen, begin),
                        item_limit_seconds=chosen.item_limit_seconds)]


def _rest(chosen: argparse.Namespace, begin: float) -> float | None:
    """What is left of a part's limit: to find out what GPU is there takes seconds, too."""
    return None if chosen.limit_seconds is None else round(chosen.limit_seconds - (time.monotonic() - begin), 1)


def _device(plan: Plan, folder: str) -> dict[str, Any]:
    """What GPU is here, from a process that ends again: it must not share the GPU with a tool's."""
    with Worker(_command(folder)) as worker:
        device = describe(worker)
    refuse_other_architecture(plan, device)
    return device


def _left(plan: Plan, indices: Sequence[int], output: RecordFile, name: str, kind: str) -> list[int]:
    """Those of the plan's items that `output` holds no such record of, or one without all of the sanitizer's tools."""
    whole = [one for one in output.read() if one.kind != "faults" or set(TOOLS) <= one.payload["tools"].keys()]
    rest = plan.without(whole, name, kind).items
    left = [index for index in indices if plan.items[index] in rest]
    if len(left) < len(indices):
        print(f"{len(indices) - len(left)} of {len(indices)} are in {output.path} already")
    return left


def to_count(plan: Plan, first: int | None) -> list[int]:
    """The items to count: at the first so many shapes, else at those that the study declares for it, else at all."""
    assert plan.folder is not None
    shapes = [json.dumps(item.shape, sort_keys=True) for item in plan.items]
    declared = [json.dumps(asdict(shape), sort_keys=True) for shape in load_study(plan.folder).counted]
    chosen = declared if declared and first is None else list(dict.fromkeys(shapes))[:first]
    return [k for k, shape in enumerate(shapes) if shape in chosen]


def _counters(plan: Plan, folder: str, output: RecordFile, chosen: argparse.Namespace) -> list[Outcome]:
    """Hardware counters of what `output` holds none of yet."""
    begin, device = time.monotonic(), _device(plan, folder)
    items = to_count(plan, chosen.shapes)
    if not items:
        _print_now("nothing to count: no item is at a shape of Study.counted; --shapes N takes the first N instead")
    left = _left(plan, items, output, device["name"], "counts")
    return [count_plan(plan, left, Target(Path(folder) / "__main__.py"), device, output.append, _print_now,
                       chosen.cache_control, _rest(chosen, begin), chosen.item_limit_seconds)]


def _sanitize(plan: Plan, folder: str, output: RecordFile, chosen: argparse.Namespace) -> list[Outcome]:
    """compute-sanitizer's findings on the versions of which `output` does not hold those of every tool yet."""
    begin, device = time.monotonic(), _device(plan, folder)
    left = _left(plan, smallest(plan), output, device["name"], "faults")
    return [sanitize_plan(plan, left, Target(Path(folder) / "__main__.py"), device, output.append, _print_now,
                          budget_seconds=_rest(chosen, begin))]


def _launch(plan: Plan, chosen: argparse.Namespace) -> int:
    """The target of a tool: these items, once each."""
    items = [int(index) for index in chosen.items.split(",")]
    return 1 if launch_items(plan, items, chosen.notes, chosen.blank, not chosen.no_pool) else 0


SHARES = {"run": 0.55, "counters": 0.6, "sanitize": 1.0}
"""Of the time that is left when a part's turn comes, the share that it may take: checks and times are worth most."""
AGAIN_SECONDS = 10.0  # no part does anything in less
HANGS_SECONDS, HANGS_SHARE = 15.0, 0.15  # within `all`: the least time, and share of a part's, that an item is given to end


def _all(plan: Plan, folder: str, output: RecordFile, chosen: argparse.Namespace) -> list[Outcome]:
    """Every part in turn; what a part leaves of its time the next one has; then, in the same order, the parts that had to
    leave something, with all the time that is left.

    A part that cannot be done here (no ncu) is said, and the others are done.
    """
    begin = time.monotonic()

    def part(name: str, share: float) -> list[Outcome]:
        left = _rest(chosen, begin)
        _print_now(f"---- {name}" + ("" if left is None else f", {left * share:.0f} s"))
        limits = {} if left is None else {"limit_seconds": left * share}
        if left is not None and name == "run":
            limits["item_limit_seconds"] = _item_limit(plan, chosen, left * share)
        try:
            return _PARTS[name](plan, folder, output, _with(chosen, **limits))
        except PerflabError as error:
            _print_now(f"{name} cannot be done: {error}")
            return [Outcome(0, 0, (f"{name}: {error}",), 0)]

    outcomes = {name: part(name, share) for name, share in SHARES.items()}
    for name, found in outcomes.items():
        left = _rest(chosen, begin)
        if any(outcome.left for outcome in found) and left is not None and left >= AGAIN_SECONDS:
            outcomes[name] = part(name, 1.0)
    return [outcome for several in outcomes.values() for outcome in several]


def _item_limit(plan: Plan, chosen: argparse.Namespace, part_seconds: float) -> float:
    """When to end an item or a shape: as asked, else so early that one that hangs, first among others and then alone, leaves
    the others most of the part's time, and yet at 20 times the estimate of the longest shape."""
    shapes = defaultdict[str, float](float)
    for item in plan.items:
        shapes[json.dumps(item.shape, sort_keys=True)] += item.estimate_seconds
    least = max(HANGS_SECONDS, HANGS_SHARE * part_seconds, 20 * max(shapes.values(), default=0))
    return min(part_seconds, chosen.item_limit_seconds or least)


def _with(chosen: argparse.Namespace, **changed: Any) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(chosen), **changed})


_PARTS: dict[str, Callable[[Plan, str, RecordFile, argparse.Namespace], list[Outcome]]] = {
    "run": _run, "counters": _counters, "sanitize": _sanitize, "all": _all,
}


def _rivals(plan: Plan, folder: str, output: RecordFile, only: Sequence[str] | None, cells: str) -> int:
    """Check and time what is installed on this machine; 1 if some of it could not be."""
    from perflab.rivals import load_rivals, measure_rivals

    assert plan.folder is not None
    shapes = load_rivals(plan.folder).shapes(load_study(plan.folder))
    first, _, last = cells.rpartition("-")
    chosen = shapes[int(first or 1) - 1 : int(last) if last else None]
    with Worker(_command(folder)) as worker:
        outcome = measure_rivals(plan, chosen, worker, output.append, _print_now, only)
    return 1 if outcome.failed or outcome.left else 0


def _print_now(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, flush=True)


def _end_with_input() -> None:
    """End this process soon after the other end of its input closes, even in the middle of a task.

    When the line to a box breaks, or the other end stops waiting, a kernel that hangs would otherwise hold the GPU and
    spoil the next worker's times.
    """
    hang_up = select.poll()
    hang_up.register(os.dup(0), select.POLLRDHUP)  # POLLHUP, which a pipe gives, is always told; dup: the worker moves 0

    def watch() -> None:
        hang_up.poll()
        time.sleep(GRACE_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


# ---------------------------------------------------------------- under tools, on this machine
def measure_by_tool(plan: Plan, study_folder: Path, part: str, store: RecordStore, *arguments: str) -> int:
    """Run `counters` or `sanitize` of a packed file here and keep its records; returns its exit status (2: it said why)."""
    with tempfile.TemporaryDirectory(prefix="perflab-") as folder:
        file, records = pack(plan, study_folder, Path(folder) / "plan.pyz"), Path(folder) / "records.jsonl"
        try:
            return subprocess.run([sys.executable, str(file), part, "-o", str(records), *arguments]).returncode
        finally:
            if records.exists():
                store.import_file(records)


# ---------------------------------------------------------------- over ssh
def measure_over_ssh(plan: Plan, study_folder: Path, url: str, on_record: Callable[[Record], object],
                     on_note: Callable[[str], object] = print, ssh_command: Sequence[str] = SSH,
                     python: str = "python3", **more: Any) -> Outcome:
    """Measure a plan on the machine behind `ssh://user@box:port`; the records of an item arrive here when it ends.

    The box needs Python 3.11, numpy, CuPy, nvidia-ml-py and a driver, and ssh a key for it. `python` is the command there,
    as a shell reads it; `more`: what `measure` takes besides. Nothing stays there. Raises PerflabError if the box cannot
    be reached.
    """
    if not re.fullmatch("ssh://[^-/][^/]*", url):
        raise PerflabError(f'"{url}" names no machine: write ssh://box, ssh://user@box or ssh://user@box:port')
    reach = [*ssh_command, url]
    with (
        _unpacked_there(reach, python, _zipped(plan, study_folder), on_note) as there,
        Worker([*reach, f"{python} {shlex.quote(there + '/__main__.py')} worker"]) as worker,
    ):
        return measure(replace(plan, folder=Path(there) / "kernels" / plan.study), worker, on_record, on_note, **more)


@contextlib.contextmanager
def _unpacked_there(reach: Sequence[str], python: str, archive: bytes, on_note: Callable[[str], object]) -> Iterator[str]:
    """A temporary folder on the box that holds the archive's files; removed at the end, whatever happened."""
    said = _there(reach, f"{python} -c {shlex.quote(_UNPACK)}", archive)
    _, found, folder = said.rpartition("UNPACKED ")  # a login shell may greet first
    if not found:
        raise PerflabError(f"{reach[-1]} answered, but not as expected: {said.strip()[-500:] or 'nothing'}")
    folder = folder.splitlines()[0]
    try:
        yield folder
    finally:
        try:
            _there(reach, f"{python} -c {shlex.quote(_REMOVE)} {shlex.quote(folder)}")
        except PerflabError as error:
            on_note(f"{folder} on {reach[-1]} could not be removed: {error}")


def _there(reach: Sequence[str], command: str, given: bytes = b"") -> str:
    """Run a command on the box; what it said, or PerflabError with what went wrong."""
    url = reach[-1]
    try:
        ended = subprocess.run([*reach, command], input=given, capture_output=True, timeout=UPLOAD_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise PerflabError(f"{url} did not answer within {UPLOAD_SECONDS} s") from error
    except OSError as error:
        raise PerflabError(f"{reach[0]} cannot be started: {error.strerror}. Without ssh: perflab pack") from error
    if ended.returncode:
        why = ended.stderr.decode(errors="replace").strip().rstrip(".")[-1000:] or f"exit status {ended.returncode}"
        hint = " Set up a key (ssh-copy-id) or an agent." if "Permission denied" in why else ""
        raise PerflabError(f"{url}: {why}.{hint} Without ssh: perflab pack STUDY -o FILE")
    return ended.stdout.decode(errors="replace")
