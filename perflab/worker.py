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
    "rival": "perflab.rivals:rival_task",
}
"""What a worker can do: 'module:function', imported when first asked for. A task is called with the request's payload as
keyword arguments, and with `progress` (a function that takes one JSON-able object) when it has such a parameter."""

STDERR_TAIL_BYTES = 2000
_DEFAULT_COMMAND = (sys.executable, "-m", "perflab.worker")


class WorkerError(Exception):
    """A task failed in the worker by an exception that is no PerflabError; a note on it holds the traceback there."""


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
        self._lock = threading.RLock()  # all threads share the compiler's worker

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def call(
        self, task: str, limit_seconds: float, on_progress: Callable[[Any], object] | None = None, **payload: Any
    ) -> dict[str, Any]:
        """Run `task` with `payload` (JSON-able) and return its result.

        Raises the worker's own PerflabError; WorkerError for another exception there; WorkerTimeout after
        `limit_seconds`; WorkerDied when the process ends; what `on_progress` raises. After the last three, the next call
        starts a fresh process.
        """
        request = json.dumps({"task": task, "payload": payload})
        with self._lock:
            try:
                self._send(request)
                answer = self._receive(task, limit_seconds, on_progress)
            except BaseException:  # an answer may still come, and must not meet the next call
                self.stop()
                raise
        if "error" in answer:
            raise _as_exception(answer["error"], task)
        return answer["result"]

    def stop(self) -> None:
        """End the process, if there is one. The next call starts another."""
        with self._lock:
            process, self._process = self._process, None
            if process:
                process.kill()
                process.wait()
                self._stderr.close()
                with contextlib.suppress(OSError):  # a request that could not be written is still in the buffer
                    process.stdin.close()  # type: ignore[union-attr]

    def _start(self) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # `stop` closes it; a file, so nobody need drain it
        self._lines: queue.Queue[str | None] = queue.Queue()
        try:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, encoding="utf-8",
                errors="replace", env={**os.environ, **self._env}, start_new_session=True,  # Ctrl-C reaches only the caller
            )
        except OSError as error:
            raise PerflabError(f'the worker "{" ".join(self.command)}" cannot be started: {error}') from error
        threading.Thread(target=_pump, args=(self._process.stdout, self._lines), daemon=True).start()

    def _send(self, request: str) -> None:
        if self._process and self._process.poll() is not None:
            self.stop()  # it died between two calls: that is no reason to fail this one
        if not self._process:
            self._start()
        with contextlib.suppress(OSError):  # it died just now: `_receive` says how
            self._process.stdin.write(request + "\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]

    def _receive(self, task: str, limit_seconds: float, on_progress: Callable[[Any], object] | None) -> dict[str, Any]:
        end = time.monotonic() + limit_seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise WorkerTimeout(f'"{task}" was stopped: it ran past its limit of {limit_seconds:g} s.') from None
            answer = _parsed(line)
            if answer is None:
                raise WorkerDied(f'the worker died during "{task}": {self._last_words(line)}')
            if "progress" not in answer:
                return answer
            if on_progress:
                on_progress(answer["progress"])

    def _last_words(self, line: str | None) -> str:
        assert self._process is not None
        if line is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=2)
            how = _exit_in_words(self._process.poll())
        else:
            how = f"it answered with something else than JSON: {line.strip()[:200]!r}"
        self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - STDERR_TAIL_BYTES))
        said = self._stderr.read().decode(errors="replace").strip()
        return f"{how}." + (f" It last said:\n{said}" if said else "")


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
            answer(error={"type": type(error).__qualname__, "ours": isinstance(error, PerflabError), "message": str(error),
                          "traceback": traceback.format_exc()})


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
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(None)


def _parsed(line: str | None) -> dict[str, Any] | None:
    try:
        answer = json.loads(line or "")
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and answer.keys() & {"progress", "error", "result"} else None


def _as_exception(error: Mapping[str, Any], task: str) -> Exception:
    """The exception that a worker described; a subclass of PerflabError comes back as itself where the caller knows it."""
    if error["ours"]:
        known = {kind.__name__: kind for kind in PerflabError.__subclasses__()}
        return known.get(error["type"], PerflabError)(error["message"])
    failure = WorkerError(f'"{task}" failed in the worker: {error["type"]}: {error["message"]}')
    failure.add_note(error["traceback"])
    return failure


def _exit_in_words(code: int | None) -> str:
    if code is None:
        return "its output ended while it still ran"
    return f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exit code {code}"


if __name__ == "__main__":
    main()
