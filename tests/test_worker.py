"""perflab.worker: tasks in another process; every way in which it can end."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import textwrap

import pytest

from perflab import worker
from perflab.errors import PerflabError
from perflab.worker import Worker, WorkerDied, WorkerError, WorkerTimeout

TASKS = '''
import os, sys, time
from perflab.errors import PerflabError
def echo(**payload): return payload
def refuse(what): raise PerflabError(f"no {what}")
def refuse_loudly():
    from perflab.compile import CompileError
    raise CompileError("k.cu:3: no")
def fail(): return 1 / 0
def sleep(seconds): time.sleep(seconds)
def crash():
    sys.stderr.write("about to fall\\n"); sys.stderr.flush()
    os.kill(os.getpid(), 11)
def leave(): os._exit(7)
def shout():
    print("python prints"); os.write(1, b'{"result": "fd 1"}\\n'); os.system("echo child")
    return {"stdin": os.read(0, 9).decode()}
def count(progress, to):
    for k in range(to): progress({"done": k})
    return {"pid": os.getpid()}
'''


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory):
    """A worker with tasks of this test's own."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "planted.py").write_text(TASKS)
    names = [line.split("(")[0][4:] for line in TASKS.splitlines() if line.startswith("def ")]
    start = f"""
        from perflab import worker
        worker.TASKS.update({{name: "planted:" + name for name in {names}}})
        worker.main()"""
    with Worker([sys.executable, "-c", textwrap.dedent(start)], env={"PYTHONPATH": str(folder)}) as it:
        yield it


def test_what_json_can_hold_comes_through(planted: Worker) -> None:
    payload = {"text": "é\n", "number": 1.5, "nested": {"a": [1, None]}}
    assert planted.call("echo", 20, **payload) == payload


def test_an_unknown_task_is_refused_by_name(planted: Worker) -> None:
    with pytest.raises(PerflabError, match='unknown task "ecko".*"echo"'):
        planted.call("ecko", 20)


def test_a_perflab_error_comes_back_as_itself(planted: Worker) -> None:
    with pytest.raises(PerflabError, match="^no bread$") as caught:
        planted.call("refuse", 20, what="bread")
    assert type(caught.value) is PerflabError


def test_a_subclass_of_perflab_error_comes_back_as_that_subclass(planted: Worker) -> None:
    from perflab.compile import CompileError

    with pytest.raises(CompileError, match="k.cu:3: no"):
        planted.call("refuse_loudly", 20)


def test_another_exception_keeps_its_remote_traceback(planted: Worker) -> None:
    with pytest.raises(WorkerError, match="ZeroDivisionError: division by zero") as caught:
        planted.call("fail", 20)
    assert "planted.py" in caught.value.__notes__[0]
    assert not isinstance(caught.value, (WorkerDied, WorkerTimeout))


def test_an_error_does_not_end_the_worker(planted: Worker) -> None:
    first = planted.call("count", 20, to=0)["pid"]
    with pytest.raises(WorkerError):
        planted.call("fail", 20)
    assert planted.call("count", 20, to=0)["pid"] == first


def test_past_its_limit_a_task_is_stopped_and_the_next_call_has_a_fresh_process(planted: Worker) -> None:
    before = planted.call("count", 20, to=0)["pid"]
    with pytest.raises(WorkerTimeout, match='"sleep" was stopped: it ran past its limit of 0.2 s'):
        planted.call("sleep", 0.2, seconds=600)
    assert planted.call("count", 20, to=0)["pid"] != before
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)


def test_a_crash_is_told_by_signal_and_last_words(planted: Worker) -> None:
    with pytest.raises(WorkerDied, match=r'died during "crash": signal 11 \(Segmentation fault\).*\n*about to fall'):
        planted.call("crash", 20)
    assert planted.call("echo", 20, a=1) == {"a": 1}


def test_an_exit_is_told_by_its_code(planted: Worker) -> None:
    with pytest.raises(WorkerDied, match="exit code 7"):
        planted.call("leave", 20)


def test_a_death_between_two_calls_costs_nothing(planted: Worker) -> None:
    pid = planted.call("count", 20, to=0)["pid"]
    os.kill(pid, 9)
    planted._process.wait()  # type: ignore[union-attr]
    assert planted.call("echo", 20, a=2) == {"a": 2}


def test_prints_of_a_task_its_children_and_descriptor_1_do_not_reach_the_protocol(planted: Worker) -> None:
    assert planted.call("shout", 20) == {"stdin": ""}
    assert planted.call("echo", 20, a=3) == {"a": 3}


def test_progress_arrives_in_order(planted: Worker) -> None:
    seen: list[object] = []
    planted.call("count", 20, on_progress=seen.append, to=3)
    assert seen == [{"done": 0}, {"done": 1}, {"done": 2}]


@pytest.mark.parametrize("error", [KeyboardInterrupt, PerflabError, WorkerError])
def test_a_broken_callback_leaves_no_answer_behind_for_the_next_call(planted: Worker, error: type[BaseException]) -> None:
    def broken(_: object) -> None:
        raise error

    with pytest.raises(error):
        planted.call("count", 20, on_progress=broken, to=3)
    assert planted.call("echo", 20, a=4) == {"a": 4}


def test_a_command_that_is_not_there_and_one_that_talks_nonsense() -> None:
    with pytest.raises(PerflabError, match="no-such-program"):
        Worker(["no-such-program"]).call("echo", 5)
    with pytest.raises(WorkerDied, match="something else than JSON: 'Welcome to box!'"):
        Worker(["sh", "-c", "echo Welcome to box!; cat"]).call("echo", 5)


def echo(**payload: object) -> dict[str, object]:
    return payload


def test_serve_speaks_lines_over_any_pair_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(worker.TASKS, "echo", f"{__name__}:echo")
    out = io.StringIO()
    worker.serve(io.StringIO('{"task": "echo", "payload": {"a": 1}}\nnot json\n'), out)
    first, second = map(json.loads, out.getvalue().splitlines())
    assert first == {"result": {"a": 1}}
    assert second["error"]["ours"] is False


def test_the_module_needs_the_standard_library_alone() -> None:
    heavy = ("numpy", "cuda", "cupy", "pandas", "platformdirs", "perflab.compile")
    code = f"import sys, perflab.worker; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
