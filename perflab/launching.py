"""A plan's launches, once each, in a process of their own under a tool: what ncu and compute-sanitizer are given to run.

The target notes in a file, line by line, which item it has begun, ended or failed, so that what a tool says can be told
apart by version, and so that it is known at which version a run that died or hung was.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import IO, Any

from perflab.device import DeviceFault, open_device
from perflab.errors import PerflabError
from perflab.measuring import Bench
from perflab.planning import Plan
from perflab.studies import load_study

MARK = "PERFLAB-ITEM"  # begins the lines on stdout that stand between the findings of one item and those of the next


# ---------------------------------------------------------------- inside the tool
def launch_items(plan: Plan, chosen: Sequence[int], notes: Path, blank: bool, pool: bool) -> int:
    """Run these items of the plan in this process; returns how many failed.

    notes: a line of JSON each: {item, state: begun | ended | failed, clocks or problem}. blank: buffers keep what their
    memory held; without pool every array is an allocation of its own.
    """
    assert plan.folder is not None
    device = open_device()
    if not pool:
        device.one_allocation_each()
    bench, failed = Bench(device, load_study(plan.folder)), 0
    with notes.open("w", encoding="utf-8") as file:

        def note(item: int, state: str, **more: Any) -> None:
            file.write(json.dumps({"item": item, "state": state, **more}) + "\n")
            file.flush()
            print(MARK, item, state, flush=True)

        for index in chosen:
            note(index, "begun")
            try:
                bench.run_once(plan.items[index], plan.binaries, blank)
            except PerflabError as error:
                failed += 1
                note(index, "failed", problem=str(error))
                if isinstance(error, DeviceFault):
                    break  # the process's GPU context is lost with it
            else:
                note(index, "ended", clocks=device.clocks())
    return failed


# ---------------------------------------------------------------- around it
@dataclass(frozen=True)
class Target:
    """How this plan's launches are started in a process of their own: `python FOLDER/__main__.py launch …`."""

    main: Path

    def command(self, items: Sequence[int], notes: Path, *more: str) -> list[str]:
        """For these items of the plan."""
        chosen = ",".join(map(str, items))
        return [sys.executable, str(self.main), "launch", "--items", chosen, "--notes", str(notes), *more]


@dataclass(frozen=True)
class Ended:
    """How a tool's run ended. code None: it ran past its limit and was killed, its target with it."""

    stdout: str
    stderr: str
    code: int | None
    seconds: float

    @property
    def said(self) -> str:
        """All of it, for an error message that quotes its end."""
        return f"{self.stdout}\n{self.stderr}".strip()


def run_tool(command: Sequence[str], limit_seconds: float, env: Mapping[str, str] | None = None) -> Ended:
    """Run a tool and what it starts as one group, which ends with its limit. PerflabError if it cannot be started.

    Text comes in the C locale: numbers with a point, messages in English. Into files, not pipes: who left the group and
    keeps a pipe open would be waited for.
    """
    begin = time.monotonic()
    variables = {**os.environ, "LC_ALL": "C", "PYTHONUNBUFFERED": "1", **(env or {})}
    with _text_file() as out, _text_file() as err:
        try:
            running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=variables,
                                       start_new_session=True)
        except OSError as error:
            raise PerflabError(f"{command[0]} cannot be started: {error.strerror}") from error
        try:
            code: int | None = running.wait(max(0.1, limit_seconds))
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)  # its own child too: that holds the GPU
            running.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise  # Ctrl-C
            code = None
        seconds = time.monotonic() - begin
        out.seek(0)
        err.seek(0)
        return Ended(out.read(), err.read(), code, seconds)


def _text_file() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")


@dataclass(frozen=True)
class Noted:
    """What became of each item, by its index: the clocks after it, or what went wrong; `begun`, in order, all it tried."""

    begun: tuple[int, ...]
    clocks: Mapping[int, Mapping[str, Any]]
    problems: Mapping[int, str]

    @property
    def cut(self) -> int | None:
        """The item in whose middle the process ended; None where it ended between two."""
        last = self.begun[-1] if self.begun else None
        return None if last in self.clocks or last in self.problems else last


def read_notes(file: Path) -> Noted:
    """What the target noted; nothing where it did not come so far. A torn last line counts as not written."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        with contextlib.suppress(ValueError):
            lines.append(json.loads(line))
    return Noted(
        tuple(line["item"] for line in lines if line["state"] == "begun"),
        {line["item"]: line["clocks"] for line in lines if line["state"] == "ended"},
        {line["item"]: line["problem"] for line in lines if line["state"] == "failed"},
    )


def tool_path(name: str) -> str:
    """Where a tool of the CUDA toolkit is. PerflabError says how it comes to be there."""
    folders = [folder for pattern in FOLDERS for folder in sorted(glob(pattern), reverse=True)]
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))
    if not found:
        raise PerflabError(f"{name} is not on this machine: it comes with the CUDA toolkit (Debian: "
                           f"{_PACKAGES.get(name, 'cuda-toolkit')}); put its folder on PATH")
    return found


FOLDERS = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/nvidia/nsight-compute/*")
"""Where the tools lie beside PATH; of several versions the newest first."""
_PACKAGES = {"ncu": "the package cuda-nsight-compute-13-0", "compute-sanitizer": "the package cuda-sanitizer-13-0"}
