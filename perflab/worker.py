"""A process that may die. `Worker(command).call(task, seconds)` runs a task in it; a hang, a crash or a GPU fault ends the
worker, never the caller. The protocol is one JSON object a line, so the same worker runs here, over ssh or out of a zip
file. Standard library only: a bare GPU machine has no more.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Self

from perflab.errors import PerflabError, unknown

TASKS: dict[str, str] = {
    "compile": "perflab.compile:compile_task",
    "describe": "perflab.device:describe_task",
    "measure": "perflab.measuring:measure_task",
    "echo": "perflab.worker:echo_task",
}
"""What a worker can do: 'module:function', imported when first asked for. A task is called with the request's payload as
keyword arguments, and with `progress` (a function that takes one JSON-able object) when it has such a parameter."""

STDERR_TAIL_CHARACTERS = 2000
_DEFAULT_COMMAND = (sys.executable, "-m", "perflab.worker")


class WorkerError(Exception):
    """A task failed in the worker by an exception that is no PerflabError; `remote_traceback` holds where."""

    def __init__(self, message: str, remote_traceback: str = "") -> None:
        super().__init__(message)
        self.remote_traceback = remote_traceback


class WorkerTimeout(WorkerError):
    """The task ran past its limit; the worker was killed."""


class WorkerDied(WorkerError):
    """The worker ended in the middle of a task: a crash, a kill, a lost connection."""


class Worker:
    """One child process that runs tasks, started at the first call and again after a death or a time-out.

    command: what to start; it must speak the protocol of `serve`, as `ssh box python3 -m perflab.worker` does.
    env:     variables added to this process's own.
    """

    def __init__(self, command: Sequence[str] | None = None, env: Mapping[str, str] | None = None) -> None:
        self.command = list(command or _DEFAULT_COMMAND)
        self._env = dict(env or {})
        self._process: subprocess.Popen[str] | None = None
        self._stderr: IO[bytes] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def call(
        self, task: str, limit_seconds: float, on_progress: Callable[[Any], None] | None = None, **payload: Any
    ) -> dict[str, Any]:
        """Run `task` with `payload` (JSON-able) and return its result.

        Raises the worker's own PerflabError; WorkerError for another exception there; WorkerTimeout after
        `limit_seconds`; WorkerDied when the process ends. After the last two the next call starts a fresh process.
        """
        request = json.dumps({"task": task, "payload": payload})
        with self._lock:
            try:
                self._send(request, task)
                return self._receive(task, limit_seconds, on_progress)
            except (PerflabError, WorkerError):
                raise
            except BaseException:  # Ctrl-C, or a broken callback: an answer may still come, and must not meet the next call
                self.stop()
                raise

    def stop(self) -> None:
        """End the process, if there is one. The next call starts another."""
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, self._stderr):
                if stream:
                    with contextlib.suppress(OSError):  # a request that could not be written is still in the buffer
                        stream.close()

    def _start(self) -> subprocess.Popen[str]:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # `stop` closes it; a file, so nobody need drain it
        self._lines = queue.Queue()
        try:
            process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, text=True,
                env={**os.environ, **self._env}, start_new_session=True,  # so that Ctrl-C reaches only the caller
            )  # fmt: skip
        except OSError as error:
            raise PerflabError(f'the worker "{" ".join(self.command)}" cannot be started: {error}') from error
        threading.Thread(target=_pump, args=(process.stdout, self._lines), daemon=True).start()
        return process

    def _send(self, request: str, task: str) -> None:
        if self._process is not None and self._process.poll() is not None:
            self.stop()  # it died between two calls: that is no reason to fail this one
        if self._process is None:
            self._process = self._start()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._died(task) from None

    def _receive(self, task: str, limit_seconds: float, on_progress: Callable[[Any], None] | None) -> dict[str, Any]:
        end = time.monotonic() + limit_seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                self.stop()
                raise WorkerTimeout(f'"{task}" was stopped: it ran past its limit of {limit_seconds:g} s.') from None
            answer = _parsed(line)
            if line is None or answer is None:
                raise self._died(task, line)
            if "progress" in answer:
                if on_progress:
                    on_progress(answer["progress"])
            elif "error" in answer:
                raise _as_exception(answer["error"], task)
            else:
                return answer["result"]

    def _died(self, task: str, line: str | None = None) -> WorkerDied:
        process, stderr = self._process, self._stderr
        assert process is not None and stderr is not None
        if line is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=2)
            how = _exit_in_words(process.poll())
        else:
            how = f"it answered with something else than JSON: {line.strip()[:200]!r}"
        stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - STDERR_TAIL_CHARACTERS))
        said = stderr.read().decode(errors="replace").strip()
        self.stop()
        return WorkerDied(f'the worker died during "{task}": {how}.' + (f" It last said:\n{said}" if said else ""))


def serve(stdin: IO[str], stdout: IO[str]) -> None:
    """Answer requests, one JSON line each, until `stdin` ends: progress lines, then one result or error line."""

    def answer(**message: Any) -> None:
        stdout.write(json.dumps(message) + "\n")
        stdout.flush()

    for line in stdin:
        try:
            request = json.loads(line)
            function = _function(request["task"])
            arguments = dict(request["payload"])
            if "progress" in inspect.signature(function).parameters:
                arguments["progress"] = lambda value: answer(progress=value)
            answer(result=function(**arguments))
        except Exception as error:  # whatever it is, the caller must hear of it; SystemExit and the like end the worker
            kind = f"{type(error).__module__}:{type(error).__qualname__}"
            answer(error={
                "kind": kind, "ours": isinstance(error, PerflabError),
                "message": str(error), "traceback": traceback.format_exc(),
            })  # fmt: skip


def echo_task(**payload: Any) -> dict[str, Any]:
    """Give the payload back: shows that a worker is reached."""
    return payload


def main() -> None:
    """Serve on this process's own stdin and stdout, and keep both for the protocol alone.

    printf in a kernel and chatty libraries write to file descriptor 1, children read descriptor 0: from here on these
    are stderr and nothing.
    """
    stdin, stdout = os.fdopen(os.dup(0), "r", encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout = sys.stderr
    serve(stdin, stdout)


def _function(task: str) -> Callable[..., dict[str, Any]]:
    if task not in TASKS:
        raise unknown("task", task, TASKS)
    module, _, name = TASKS[task].partition(":")
    return getattr(importlib.import_module(module), name)


def _pump(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    """Move lines from the worker to the queue, then None at the end; a blocked read has no time limit of its own."""
    with contextlib.suppress(ValueError, OSError):  # `stop` closes the stream under us
        for line in stream:
            lines.put(line)
    lines.put(None)


def _parsed(line: str | None) -> dict[str, Any] | None:
    try:
        answer = json.loads(line or "")
    except ValueError:
        return None
    is_ours = isinstance(answer, dict) and not {"progress", "error", "result"}.isdisjoint(answer)
    return answer if is_ours else None


def _as_exception(error: Mapping[str, Any], task: str) -> Exception:
    """The exception that a worker described; a subclass of PerflabError comes back as itself where it can be found."""
    if not error["ours"]:
        kind = error["kind"].split(":")[-1]
        return WorkerError(f'"{task}" failed in the worker: {kind}: {error["message"]}', error["traceback"])
    module, _, name = error["kind"].partition(":")
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        found = getattr(importlib.import_module(module), name) if module.startswith("perflab.") else PerflabError
        if issubclass(found, PerflabError):
            return found(error["message"])
    return PerflabError(error["message"])


def _exit_in_words(code: int | None) -> str:
    if code is None:
        return "its output ended while it still ran"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"signal {-code} ({signal.Signals(-code).name}: {signal.strsignal(-code)})"
        return f"signal {-code}"
    return f"exit code {code}"


if __name__ == "__main__":
    main()
