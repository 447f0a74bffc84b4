"""perflab.packing: the file for a bare GPU machine, resuming, and the same over ssh (a local command in ssh's place)."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import fake_tools
import pytest
from saxpy_workspace import ENVIRONMENT, KERNELS, environment, fake_ssh, make_study, planned

from perflab import packing
from perflab.errors import PerflabError
from perflab.measuring import Outcome
from perflab.packing import measure_by_tool, measure_over_ssh, pack
from perflab.planning import Plan
from perflab.records import Record, RecordFile, RecordStore
from perflab.sanitizer import TOOLS
from perflab.studies import load_study


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_study(tmp_path_factory.mktemp("workspace"))


@pytest.fixture(scope="module")
def plan(folder: Path) -> Plan:
    return planned(folder, "plain", "half")[1]


@pytest.fixture(scope="module")
def packed(plan: Plan, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(plan, folder, tmp_path_factory.mktemp("out") / "saxpy.pyz")


def started(packed: Path, *arguments: str, kernels: dict | None = None, **more: object) -> subprocess.CompletedProcess:
    """The packed file in a Python that cannot see this checkout (-I would drop PYTHONPATH, and the fake with it)."""
    variables = {**environment(), "PERFLAB_FAKE_GPU": json.dumps({"kernels": kernels or KERNELS}), **more}
    return subprocess.run([sys.executable, str(packed), *arguments], env=variables, cwd="/", capture_output=True,
                          text=True, timeout=120)


def test_the_file_holds_no_folder_of_this_machine_and_is_the_same_each_time(
    plan: Plan, folder: Path, packed: Path, tmp_path: Path
) -> None:
    assert pack(plan, folder, tmp_path / "again.pyz").read_bytes() == packed.read_bytes()
    with zipfile.ZipFile(packed) as archive:
        names = archive.namelist()
        written = {name: archive.read(name) for name in names}
    assert {"__main__.py", "plan.json", "kernels/saxpy/study.py", "perflab/facts/gpus.csv"} <= set(names)
    assert not any("__pycache__" in name for name in names)
    assert not any(str(folder).encode() in data for data in written.values())


def test_it_runs_its_own_perflab_with_nothing_but_numpy(packed: Path, tmp_path: Path) -> None:
    """No CuPy, pandas, matplotlib, typer or NVRTC is imported on the way to a record."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('pandas', 'matplotlib', 'typer', 'platformdirs', 'tqdm', 'cuda', 'pygments'):\n"
        "            raise ImportError(name + ' is not on a bare machine')\n"
        "sys.meta_path.insert(0, Refuse())\n"
    )
    path = f"{tmp_path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"
    done = started(packed, "run", "-o", str(tmp_path / "r.jsonl"), PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(RecordFile(tmp_path / "r.jsonl").read()) == 6
    assert "WRONG   half, n 4,000, so not timed: y: 2,000 of 4,000 values were never written" in done.stdout


def test_the_plan_comes_first_with_its_estimate(packed: Path, plan: Plan) -> None:
    done = started(packed, "plan")
    assert done.returncode == 0 and done.stdout.strip() == str(plan)
    assert "4 to measure, about" in done.stdout


def test_a_second_run_measures_nothing_and_a_cut_one_goes_on(packed: Path, tmp_path: Path) -> None:
    output = tmp_path / "r.jsonl"
    assert started(packed, "run", "-o", str(output)).returncode == 0
    whole = output.read_bytes()
    again = started(packed, "run", "-o", str(output))
    assert output.read_bytes() == whole and "4 of 4 items are in" in again.stdout
    lines = whole.splitlines(keepends=True)
    output.write_bytes(b"".join(lines[:3]) + lines[3][:200])  # killed while it wrote its fourth line
    cut = started(packed, "run", "-o", str(output))
    assert cut.returncode == 0 and "the last line is torn and left out; the next append moves it to r.jsonl.torn" in cut.stderr
    assert "2 of 4 items are in" in cut.stdout
    assert output.read_bytes().startswith(b"".join(lines[:3]))
    assert (tmp_path / "r.jsonl.torn").read_bytes() == lines[3][:200] + b"\n"
    assert sorted((r.version, r.shape["n"], r.kind) for r in RecordFile(output).read()) == [
        ("half", 1000, "check"), ("half", 4000, "check"), ("plain", 1000, "check"), ("plain", 1000, "timing"),
        ("plain", 4000, "check"), ("plain", 4000, "timing"),
    ]


def test_a_file_of_checks_times_nothing_and_goes_on(folder: Path, tmp_path: Path) -> None:
    study, plan = planned(folder, "plain", "half", shapes=(load_study(folder).shape(77),), timed=False)
    file, output = pack(plan, folder, tmp_path / "checks.pyz"), tmp_path / "r.jsonl"
    assert "2 to check, about" in started(file, "plan").stdout
    done = started(file, "run", "-o", str(output))
    assert done.returncode == 0, done.stdout + done.stderr
    records = RecordFile(output).read()
    assert [(r.version, r.kind, r.check["passed"]) for r in records] == [("plain", "check", True), ("half", "check", False)]
    again = started(file, "run", "-o", str(output))
    assert "2 of 2 items are in" in again.stdout and len(RecordFile(output).read()) == 2


def test_records_of_other_code_do_not_count_as_done(packed: Path, tmp_path: Path) -> None:
    output = RecordFile(tmp_path / "r.jsonl")
    started(packed, "run", "-o", str(output.path))
    old = [replace(r, provenance={**r.provenance, "code": "older"}) for r in output.read()]
    output.path.unlink()
    for record in old:
        output.append(record)
    assert started(packed, "run", "-o", str(output.path)).returncode == 0
    assert len(output.read()) == 12


def test_a_fault_in_one_version_leaves_the_others_and_the_exit_status_says_so(folder: Path, tmp_path: Path) -> None:
    file = pack(planned(folder, "die", "tile")[1], folder, tmp_path / "f.pyz")
    done = started(file, "run", "-o", str(tmp_path / "r.jsonl"))
    assert done.returncode == 1 and done.stdout.count("FAILED") == 2
    assert [r.version for r in RecordFile(tmp_path / "r.jsonl").read()] == ["tile", "tile"]


def test_errors_are_words_and_2(packed: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "thesis.txt"
    foreign.write_text("not records\n")
    done = started(packed, "run", "-o", str(tmp_path / "r.jsonl"), PERFLAB_DEVICE="")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "CuPy" in done.stderr or "GPU" in done.stderr
    refused = started(packed, "run", "-o", str(foreign))
    assert refused.returncode == 2 and "thesis.txt" in refused.stderr and foreign.read_text() == "not records\n"
    assert started(packed, "plan", "--what").returncode == 2


def test_a_limit_leaves_the_rest_for_later(packed: Path, tmp_path: Path) -> None:
    done = started(packed, "run", "-o", str(tmp_path / "r.jsonl"), "--limit-seconds", "0.01")
    assert done.returncode == 1 and "4 items left" in done.stdout


def test_an_end_from_outside_keeps_what_was_taken_and_no_folder_behind(folder: Path, tmp_path: Path) -> None:
    file = pack(planned(folder, "tile", "hang")[1], folder, tmp_path / "f.pyz")
    output, scratch = tmp_path / "r.jsonl", tmp_path / "tmp"
    scratch.mkdir()
    variables = {**environment(), "TMPDIR": str(scratch)}
    ordered = subprocess.Popen([sys.executable, str(file), "run", "-o", str(output)], env=variables, cwd="/",
                               stdout=subprocess.PIPE, text=True)
    assert ordered.stdout is not None
    time.sleep(6)  # in the first item, which hangs
    ordered.send_signal(signal.SIGTERM)
    said = ordered.communicate(timeout=30)[0]
    assert ordered.returncode == 1 and "Ctrl-C" in said
    assert list(scratch.iterdir()) == []


def test_a_worker_ends_with_its_input_even_while_it_hangs(folder: Path, tmp_path: Path) -> None:
    """What happens on the box when the line breaks: the GPU must not stay taken."""
    plan = planned(folder, "hang")[1]
    file = pack(plan, folder, tmp_path / "f.pyz")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path / "there")
    worker = subprocess.Popen([sys.executable, str(tmp_path / "there" / "__main__.py"), "worker"], env=environment(),
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert worker.stdin is not None
    data = plan.to_dict()
    payload = {"folder": str(folder), "items": data["items"][:1], "tools": data["tools"], "binaries": data["binaries"]}
    worker.stdin.write(json.dumps({"task": "measure", "payload": payload}) + "\n")
    worker.stdin.close()
    assert worker.wait(timeout=60) == 1


# ---------------------------------------------------------------- under tools
@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with a fake ncu and a fake compute-sanitizer."""
    return fake_tools.install(tmp_path_factory.mktemp("bin"))


def test_counters_and_sanitize_go_on_where_they_stopped(packed: Path, tools: str, tmp_path: Path) -> None:
    output = tmp_path / "r.jsonl"
    first = started(packed, "counters", "-o", str(output), "--shapes", "1", PATH=tools)
    assert first.returncode == 0, first.stdout + first.stderr
    assert [(r.kind, r.version, r.shape["n"]) for r in RecordFile(output).read()] == [
        ("counts", "plain", 4000), ("counts", "half", 4000)]
    again = started(packed, "counters", "-o", str(output), "--cache-control", "none", PATH=tools)
    assert "2 of 4 are in" in again.stdout and again.stdout.count("counted") == 2
    assert RecordFile(output).read()[3].payload["cache_control"] == "none"
    assert started(packed, "sanitize", "-o", str(output), PATH=tools).returncode == 0
    kinds = [r.kind for r in RecordFile(output).read()]
    assert kinds == ["counts"] * 4 + ["faults"] * 2
    store = RecordStore(tmp_path / "records")
    assert store.import_file(output) == (6, 0)
    assert store.find("saxpy", "half", {"n": 1000}, "H200", "faults").payload["tools"]["memcheck"]["faults"]  # type: ignore


def test_counters_are_taken_where_the_study_names_shapes_for_them(tmp_path: Path, tools: str) -> None:
    folder = make_study(tmp_path)
    file = folder / "study.py"
    file.write_text(file.read_text().replace("    work=lambda", "    counted=(Shape(1000),),\n    work=lambda", 1))
    plan = planned(folder, "plain", "half")[1]
    assert [plan.items[k].shape["n"] for k in packing.to_count(plan, None)] == [1000, 1000]
    assert [plan.items[k].shape["n"] for k in packing.to_count(plan, 1)] == [4000, 4000]
    output = tmp_path / "r.jsonl"
    done = started(pack(plan, folder, tmp_path / "counted.pyz"), "counters", "-o", str(output), PATH=tools)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(r.kind, r.version, r.shape["n"]) for r in RecordFile(output).read()] == [
        ("counts", "plain", 1000), ("counts", "half", 1000)]
    elsewhere = replace(plan, items=tuple(item for item in plan.items if item.shape["n"] != 1000))
    assert packing.to_count(elsewhere, None) == []  # never others instead: --stale leaves out what is fresh


def test_all_in_one_go_and_without_ncu_the_rest(packed: Path, tools: str, tmp_path: Path) -> None:
    output = tmp_path / "r.jsonl"
    done = started(packed, "all", "-o", str(output), "--limit-seconds", "400", PATH=tools, PERFLAB_FAKE_TOOL="permission")
    assert done.returncode == 1  # a part could not be done
    assert "counters cannot be done: the driver lets only administrators" in done.stdout
    kinds = [r.kind for r in RecordFile(output).read()]
    assert kinds.count("check") == 4 and kinds.count("timing") == 2 and kinds.count("faults") == 2 and "counts" not in kinds
    again = started(packed, "all", "-o", str(output), "--limit-seconds", "400", PATH=tools)
    assert again.returncode == 0, again.stdout + again.stderr
    assert [r.kind for r in RecordFile(output).read()] == [*kinds, *["counts"] * 4]


class Parts:
    """Parts of `all` that take as long as they are told, on a clock of their own, and note what they were given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **work_seconds: float) -> None:
        self.now, self.work, self.calls = 1000.0, dict(work_seconds), list[tuple[str, float | None, float | None]]()
        monkeypatch.setattr(packing, "time", SimpleNamespace(monotonic=lambda: self.now, strftime=time.strftime))
        for name in self.work:
            monkeypatch.setitem(packing._PARTS, name, partial(self.take, name))

    def take(self, name: str, plan: object, folder: object, output: object, chosen: argparse.Namespace) -> list[Outcome]:
        self.calls.append((name, chosen.limit_seconds, chosen.item_limit_seconds))
        wanted = self.work[name]
        if wanted < 0:
            raise PerflabError("it does not work here")
        used = wanted if chosen.limit_seconds is None else max(0.0, min(wanted, chosen.limit_seconds))
        self.now, self.work[name] = self.now + used, wanted - used
        return [Outcome(1, 1, (), 1 if self.work[name] > 0 else 0, "time")]

    def all(self, limit: float | None, item_limit: float | None = None) -> tuple[list[str], float, list[Outcome]]:
        """Which parts ran, in order; how long all took; what came out."""
        chosen = argparse.Namespace(limit_seconds=limit, item_limit_seconds=item_limit)
        items = [SimpleNamespace(shape={"n": n}, estimate_seconds=1.0) for n in (1, 1, 2)]
        outcomes = packing._all(SimpleNamespace(items=items), "", None, chosen)  # type: ignore[arg-type]
        return [name for name, *_ in self.calls], self.now - 1000.0, outcomes


def test_all_reserves_time_for_counters_and_sanitizer(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(monkeypatch, run=2000, counters=2000, sanitize=2000)
    names, seconds, outcomes = parts.all(540)
    assert names == ["run", "counters", "sanitize"] and seconds == pytest.approx(540)
    assert [round(limit) for _, limit, _ in parts.calls if limit] == [297, 146, 97]
    assert all(outcome.left for outcome in outcomes)


def test_time_that_a_part_leaves_goes_to_the_next_and_then_to_those_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(monkeypatch, run=350, counters=200, sanitize=20)
    names, seconds, outcomes = parts.all(600)
    assert names == ["run", "counters", "sanitize", "run", "counters"]  # what matters most comes first again, too
    assert seconds == pytest.approx(570) and not any(outcome.left for outcome in outcomes)
    parts = Parts(monkeypatch, run=10, counters=300, sanitize=100)
    names, seconds, _ = parts.all(400)
    assert names == ["run", "counters", "sanitize", "counters"] and seconds == pytest.approx(400)


def test_all_ends_in_time_and_without_a_limit_does_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (0.5, 15, 60, 540):
        _, seconds, _ = Parts(monkeypatch, run=1e4, counters=1e4, sanitize=1).all(limit)
        assert seconds <= limit + 1e-6
    names, seconds, _ = Parts(monkeypatch, run=700, counters=300, sanitize=100).all(None)
    assert names == ["run", "counters", "sanitize"] and seconds == 1100
    names, _, outcomes = Parts(monkeypatch, run=30, counters=-1, sanitize=10).all(100)
    assert names == ["run", "counters", "sanitize"] and [outcome.failed for outcome in outcomes] == [
        (), ("counters: it does not work here",), ()]


def test_an_item_that_hangs_leaves_time_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def limits(limit: float, **more: float) -> list[float | None]:
        parts = Parts(monkeypatch, run=1e4, counters=1e4, sanitize=1e4)
        parts.all(limit, **more)
        return [item_limit for *_, item_limit in parts.calls]

    assert limits(540) == [pytest.approx(0.15 * 297), None, None]  # ncu ends its own in time
    assert limits(200) == [40, None, None]  # 20 times the estimate of a shape with two versions
    assert limits(30) == [pytest.approx(0.55 * 30), None, None]  # never more than the part has
    assert limits(540, item_limit=30) == [30, 30, 30]


def test_a_hang_does_not_outlive_the_limit_of_a_run(folder: Path, tmp_path: Path) -> None:
    hanging = pack(planned(folder, "hang")[1], folder, tmp_path / "hang.pyz")
    done = started(hanging, "run", "-o", str(tmp_path / "r.jsonl"), "--limit-seconds", "6")
    (seconds,) = re.findall(r"ran past its limit of ([\d.]+) s", done.stdout)
    assert done.returncode == 1 and float(seconds) <= 6 and "1 items left" in done.stdout


def test_a_version_that_not_every_tool_has_seen_is_taken_again(packed: Path, tools: str, tmp_path: Path) -> None:
    output = tmp_path / "r.jsonl"
    assert started(packed, "sanitize", "-o", str(output), PATH=tools).returncode == 0
    first, second = (json.loads(line) for line in output.read_text().splitlines())
    del first["faults"]["tools"]["initcheck"]  # time was up
    output.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    again = started(packed, "sanitize", "-o", str(output), PATH=tools)
    assert "1 of 2 are in" in again.stdout and again.returncode == 0
    assert [set(r.payload["tools"]) == set(TOOLS) for r in RecordFile(output).read()] == [False, True, True]


def test_a_tool_here_keeps_its_records_in_the_store(
    plan: Plan, folder: Path, tools: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**ENVIRONMENT, "PATH": tools}.items():
        monkeypatch.setenv(name, value)
    store = RecordStore(tmp_path)
    assert measure_by_tool(plan, folder, "counters", store, "--shapes", "1") == 0
    assert store.find("saxpy", "plain", {"n": 4000}, "H200", "counts").payload["launches"]  # type: ignore[union-attr]
    monkeypatch.setenv("PERFLAB_FAKE_TOOL", "old")
    assert measure_by_tool(plan, folder, "counters", store) == 2


# ---------------------------------------------------------------- ssh
def test_over_ssh_records_arrive_one_by_one_and_nothing_stays(
    plan: Plan, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**ENVIRONMENT, "TMPDIR": str(tmp_path / "box")}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "box").mkdir()
    store = RecordStore(tmp_path / "records")
    counts: list[int] = []

    def keep(record: Record) -> None:
        store.add([record])
        counts.append(len(store.file("saxpy", "H200").read()))

    notes: list[str] = []
    outcome = measure_over_ssh(plan, folder, "ssh://me@box:2222", keep, notes.append, fake_ssh(tmp_path), sys.executable)
    assert outcome.done == 4 and not outcome.failed and counts == [1, 2, 3, 4, 5, 6]
    assert store.find("saxpy", "plain", {"n": 1000}, "H200").identity == plan.items[2].identity  # type: ignore[union-attr]
    calls = (tmp_path / "calls").read_text().splitlines()
    assert all(call.startswith("['ssh://me@box:2222', ") for call in calls)
    assert len(calls) == 3  # unpack, worker, remove
    assert list((tmp_path / "box").iterdir()) == []


def test_a_broken_connection_costs_its_item_and_is_taken_up_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    plan = planned(folder, "die", "tile")[1]
    records: list[Record] = []
    outcome = measure_over_ssh(plan, folder, "ssh://box", records.append, lambda note: None, fake_ssh(tmp_path),
                               sys.executable)
    assert len(outcome.failed) == 2 and [r.version for r in records] == ["tile", "tile"]


@pytest.mark.parametrize("url", ["box", "http://box", "ssh://", "ssh://box/home", "ssh://-oProxyCommand=x", "-oProxyCommand=x"])
def test_an_address_that_is_none(plan: Plan, folder: Path, url: str) -> None:
    with pytest.raises(PerflabError, match="names no machine: write ssh://box"):
        measure_over_ssh(plan, folder, url, lambda record: None)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'me@box: Permission denied (publickey).' >&2; exit 255", "Permission denied.*Set up a key.*perflab pack"),
        ("echo 'Welcome to the box'; exit 0", "not as expected: Welcome to the box"),
        ("echo 'sh: python3: not found' >&2; exit 127", "python3: not found"),
    ],
)
def test_a_box_that_cannot_be_used(plan: Plan, folder: Path, script: str, said: str) -> None:
    with pytest.raises(PerflabError, match=f"ssh://box.*{said}"):
        measure_over_ssh(plan, folder, "ssh://box", lambda record: None, ssh_command=["sh", "-c", f"cat >/dev/null; {script}"])
    with pytest.raises(PerflabError, match="no-such-ssh cannot be started.*perflab pack"):
        measure_over_ssh(plan, folder, "ssh://box", lambda record: None, ssh_command=["no-such-ssh"])
