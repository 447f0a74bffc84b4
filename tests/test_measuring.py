"""perflab.planning and perflab.measuring: a plan, one item of it on a fake GPU, and the loop in a worker that dies."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from fake_gpu import FakeGpu, Kernel
from saxpy_workspace import ENVIRONMENT, KERNELS, make_study, planned

from perflab.check import Check
from perflab.errors import PerflabError
from perflab.gpus import gpu
from perflab.measuring import Bench, Outcome, _limit_seconds, measure, runs_on
from perflab.planning import Plan, PlanItem, identity_of, make_plan
from perflab.records import Record, RecordStore
from perflab.studies import load_study
from perflab.timing import Timing
from perflab.worker import Worker


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_study(tmp_path_factory.mktemp("workspace"))


# ---------------------------------------------------------------- the plan
def test_a_plan_goes_by_declared_shapes_and_says_what_it_skips(folder: Path) -> None:
    _, plan = planned(folder, "plain", "tile")
    assert [(i.version, i.shape["n"]) for i in plan.items] == [("plain", 4000), ("plain", 1000), ("tile", 1000)]
    assert [(v, s["n"]) for v, s, _ in plan.skipped] == [("tile", 4000)]
    text = str(plan)
    assert "3 to measure, about" in text and "modelled" in text
    assert "skipped tile at n 4,000: 4,000 values are over the 2,000 of a tile" in text
    assert plan.markdown() and set(plan._repr_mimebundle_()) == {"text/plain", "text/html"}


def test_a_plan_survives_json_and_holds_no_folder_of_this_machine(folder: Path) -> None:
    _, plan = planned(folder, "plain")
    text = json.dumps(plan.to_dict())
    assert str(folder.parent.parent) not in text and str(Path(__file__).parent) not in text
    again = Plan.from_dict(json.loads(text), folder)
    assert again.items == plan.items and again.spec == plan.spec and dict(again.binaries) == dict(plan.binaries)
    assert json.dumps(again.to_dict()) == text


def test_cubins_without_ptx_and_the_launch_as_declared(folder: Path) -> None:
    _, plan = planned(folder, "plain")
    (launch,) = plan.items[1].launches
    assert launch["entry"] == "saxpy_plain" and launch["grid"] == [8, 1, 1] and launch["block"] == [128, 1, 1]
    assert launch["arguments"] == ["x", "b", "y", {"type": "f32", "value": 2.5}, {"type": "i32", "value": 1000}]
    binary = plan.binaries[launch["binary"]]
    assert binary.cubin[:4] == b"\x7fELF" and not binary.ptx and not binary.log
    assert plan.items[1].buffers["y"] == {"role": "output", "shape": [1000], "dtype": "float32"}
    assert plan.items[1].buffers["unused"]["role"] == "scratch"


def test_an_argument_that_nobody_declared_is_refused(folder: Path) -> None:
    study, _ = planned(folder, "plain")
    version = study.version("plain")
    bad = replace(version, launches=lambda s, g: [replace(version.launches(s, g)[0], arguments=("x", "weights"))])
    with pytest.raises(PerflabError, match='input or buffer in a launch of saxpy/plain "weights".*Known: b, unused, x, y'):
        make_plan(replace(study, versions=(bad,)), folder, gpu("H200"))


def taken(plan: Plan, device: FakeGpu, folder: Path, index: int = 0) -> list[dict]:
    bench = Bench(device, load_study(folder))
    return list(bench.run_group([plan.items[index]], plan.binaries, plan.tools))


def record_of(item: PlanItem, kind: str = "timing", payload: dict | None = None, **identity: str) -> Record:
    fields = {**item.identity.__dict__, **identity}
    given = {"cold": {"median_seconds": 0.5}} if payload is None else payload
    return Record(item.study, item.version, dict(item.shape), kind, given, {"name": "NVIDIA H200"},
                  {**fields, "utc": "2026-01-01T00:00:00.000Z"})


def test_only_what_is_stale_or_missing_and_why(folder: Path, tmp_path: Path) -> None:
    _, plan = planned(folder, "plain", "half", "tile")
    plain, half = plan.items[0], plan.items[1]
    store = RecordStore(tmp_path)
    store.add([record_of(plain), record_of(half, "check", {"passed": False}), record_of(plan.items[2], code="older")])
    _, rest = planned(folder, "plain", "half", "tile", store=store, only_stale=True)
    assert [(i.version, i.shape["n"], i.why) for i in rest.items] == [
        ("plain", 1000, "the kernel's code changed"), ("half", 1000, "never measured"), ("tile", 1000, "never measured")
    ]
    store.add([record_of(plan.items[k]) for k in (2, 3, 4)])
    assert planned(folder, "plain", "half", "tile", store=store, only_stale=True)[1].items == ()


def test_a_check_that_passed_but_was_never_timed_is_missing(folder: Path, tmp_path: Path) -> None:
    _, plan = planned(folder, "plain")
    store = RecordStore(tmp_path)
    store.add([record_of(plan.items[0], "check", {"passed": True})])
    assert len(planned(folder, "plain", store=store, only_stale=True)[1].items) == 2


def only_checked(folder: Path, *versions: str, **more: object) -> Plan:
    """A plan of a further shape, and of one of the declared ones, at which nothing is timed."""
    shape = load_study(folder).shape
    return planned(folder, *versions, shapes=(shape(1500), shape(1000)), timed=False, **more)[1]


def test_a_plan_of_checks_has_the_asked_shapes_and_costs_little(folder: Path, tmp_path: Path) -> None:
    plan = only_checked(folder, "plain", "tile")
    assert [(i.version, i.shape["n"]) for i in plan.items] == [(v, n) for n in (1500, 1000) for v in ("plain", "tile")]
    assert not any(item.timed for item in plan.items) and "4 to check, about" in str(plan)
    assert plan.estimate_seconds < 0.2 * planned(folder, "plain", "tile")[1].estimate_seconds
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict())), folder).items == plan.items
    store = RecordStore(tmp_path)
    passed = [record_of(plan.items[0], "check", {"passed": True}), record_of(plan.items[1], "check", {"passed": False})]
    store.add([*passed, record_of(plan.items[2], "check", {"passed": True}, code="older")])
    left = only_checked(folder, "plain", "tile", store=store, only_stale=True).items
    assert [(i.version, i.shape["n"], i.why) for i in left] == [
        ("plain", 1000, "the kernel's code changed"), ("tile", 1000, "never measured")]
    assert plan.without(passed, "NVIDIA H200").items == plan.items[2:]


def test_an_estimate_from_a_record_says_so(folder: Path, tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.add([record_of(planned(folder, "plain")[1].items[0])])  # a kernel of 0.5 s
    first, second = planned(folder, "plain", store=store)[1].items
    assert (first.estimate_from, second.estimate_from) == ("recorded", "modelled")
    assert first.estimate_seconds > 4 > second.estimate_seconds


def test_identity_follows_code_and_not_comments(folder: Path, tmp_path: Path) -> None:
    study, plan = planned(folder, "plain")
    today = identity_of(study, study.version("plain"), study.shapes[0], gpu("H200"))
    assert today == plan.items[0].identity
    other = make_study(tmp_path)
    source = (other / "saxpy.cu").read_text()
    for text, same in ((f"// a comment\n{source}", True), (source.replace("a * x[i]", "a * x[i] * 2"), False)):
        (other / "saxpy.cu").write_text(text)
        changed = load_study(other)
        assert (identity_of(changed, changed.version("plain"), changed.shapes[0], gpu("H200")) == today) is same


# ---------------------------------------------------------------- one item
def test_an_item_is_checked_then_timed(folder: Path) -> None:
    _, plan = planned(folder, "plain")
    device = FakeGpu({"saxpy": Kernel("fake_gpu:saxpy", seconds=1e-3)})
    check, timing = taken(plan, device, folder)
    assert check["kind"] == "check" and Check.from_dict("plain", check["payload"]).passed
    assert Timing.from_dict(timing["payload"]).cold.median_seconds == pytest.approx(1e-3, rel=0.02)
    first_launch = next(k for k, entry in enumerate(device.log) if entry[0] == "launch")
    assert ("record",) not in device.log[:first_launch]  # no clock before the check
    assert device.cubins[0] == plan.binaries[plan.items[0].launches[0]["binary"]].cubin


def test_an_item_that_is_only_checked_launches_once_on_one_set_of_memory(folder: Path) -> None:
    plan = only_checked(folder, "plain", "half")
    device = FakeGpu({"saxpy_plain": Kernel("fake_gpu:saxpy"), "saxpy_half": Kernel("fake_gpu:half_saxpy")})
    found = list(Bench(device, load_study(folder)).run_group(plan.items[:2], plan.binaries, plan.tools))
    assert [(one["item"], one["kind"], one["payload"]["passed"]) for one in found] == [(0, "check", True), (1, "check", False)]
    assert [entry for entry in device.log if entry[0] in ("launch", "fill", "record")] == [
        ("fill", 28), ("launch", "saxpy_plain"), ("fill", 28), ("launch", "saxpy_half")]  # fill: scratch, poisoned


def test_a_wrong_kernel_is_never_timed(folder: Path) -> None:
    _, plan = planned(folder, "half")
    device = FakeGpu({"saxpy": Kernel("fake_gpu:half_saxpy")})
    (check,) = taken(plan, device, folder)
    assert check["payload"]["passed"] is False
    assert "2,000 of 4,000 values were never written" in check["payload"]["outputs"][0]["problem"]
    assert ("record",) not in device.log


def test_a_kernel_that_spoils_its_input_does_not_spoil_the_next_one(folder: Path) -> None:
    study, plan = planned(folder, "spoil", "plain")
    device = FakeGpu({"spoil": Kernel("fake_gpu:spoiling_saxpy"), "plain": Kernel("fake_gpu:saxpy")})
    bench = Bench(device, study)
    for item in plan.items:
        results = list(bench.run_group([item], plan.binaries, plan.tools))
        assert [r["kind"] for r in results] == ["check", "timing"], item.version


def test_inputs_and_reference_are_made_once_a_shape(folder: Path) -> None:
    study, plan = planned(folder, "spoil", "plain")
    calls = []
    counting = replace(study, reference=lambda s, given: calls.append(s.n) or study.reference(s, given))
    device = FakeGpu({"spoil": Kernel("fake_gpu:spoiling_saxpy"), "plain": Kernel("fake_gpu:saxpy")})
    bench = Bench(device, counting)
    for item in plan.items:
        list(bench.run_group([item], plan.binaries, plan.tools))
    assert calls == [4000, 1000]


def test_a_study_that_makes_other_inputs_than_the_plan_is_refused(folder: Path) -> None:
    study, plan = planned(folder, "plain")
    bench = Bench(FakeGpu(), replace(study, seed=1))
    with pytest.raises(PerflabError, match="makes other inputs for {'n': 4000}.*pack it, again"):
        list(bench.run_group([plan.items[0]], plan.binaries, plan.tools))


@pytest.mark.parametrize(
    ("architecture", "capability", "runs"),
    [("sm_90", "9.0", True), ("sm_80", "8.6", True), ("sm_86", "8.0", False), ("sm_80", "9.0", False),
     ("sm_90a", "9.0", True), ("sm_100a", "10.3", False), ("sm_100", "10.3", True), ("sm_120", "12.1", True)],
)
def test_which_gpu_runs_which_cubin(architecture: str, capability: str, runs: bool) -> None:
    assert runs_on(architecture, capability) is runs


# ---------------------------------------------------------------- the loop
def run(plan: Plan, kernels: dict | None = None, **more: object) -> tuple[Outcome, list[Record], list[str]]:
    records: list[Record] = []
    notes: list[str] = []
    gpu_json = json.dumps({"kernels": kernels or KERNELS, **more.pop("gpu", {})})
    with Worker(env={**ENVIRONMENT, "PERFLAB_FAKE_GPU": gpu_json}) as worker:
        outcome = measure(plan, worker, more.pop("on_record", records.append), notes.append, **more)
    return outcome, records, notes


def test_a_run_gives_records_with_full_provenance(folder: Path) -> None:
    _, plan = planned(folder, "plain")
    outcome, records, notes = run(plan)
    assert (outcome.records, outcome.done, outcome.failed, outcome.left) == (4, 2, (), 0)
    assert [(r.kind, r.shape["n"]) for r in records] == [
        ("check", 4000), ("timing", 4000), ("check", 1000), ("timing", 1000)
    ]
    last = Record.from_json(records[-1].to_json())
    assert last.identity == plan.items[1].identity
    assert last.gpu == {"name": "NVIDIA H200", "uuid": "GPU-fake", "capability": "9.0"}
    wanted = {"driver": "580.0", "cuda": "13.0", "power_limit_watts": 700.0, "temperature_celsius": 40}
    assert wanted.items() <= last.provenance.items()
    assert last.provenance["nvrtc"].startswith("13.") and last.provenance["clocks"]["sm_hz"] == 1.98e9
    assert last.provenance["utc"].endswith("Z") and "numpy" in last.provenance["packages"]
    assert any("--gpu-architecture=sm_90" in options for options in last.provenance["options"])
    assert any("cold 1." in note and "ms" in note for note in notes)


def test_death_and_fault_cost_their_own_item_only(folder: Path) -> None:
    _, plan = planned(folder, "die", "fault", "plain")
    outcome, records, notes = run(plan)
    assert outcome.done == 2 and len(outcome.failed) == 4 and outcome.left == 0
    assert [(r.version, r.kind) for r in records] == [("plain", "check"), ("plain", "timing")] * 2
    assert any("FAILED  die, n 4,000" in note and "signal 9" in note for note in notes)
    assert any("FAILED  fault, n 1,000" in note and "outside its memory" in note for note in notes)


def test_a_hang_is_ended_by_its_limit(folder: Path) -> None:
    study = load_study(folder)
    _, plan = planned(folder, "hang", "tile", shapes=study.shapes[1:])
    outcome, records, _ = run(plan, item_limit_seconds=6)
    assert len(outcome.failed) == 1 and "ran past its limit of 6 s" in outcome.failed[0]
    assert [r.version for r in records] == ["tile", "tile"]


def test_memory_that_does_not_suffice_is_said(folder: Path) -> None:
    _, plan = planned(folder, "plain")
    small = {"gpu": {"memory_bytes": 10_000}}
    outcome, records, _ = run(plan, **small)
    assert "16,000 B does not fit" in outcome.failed[0]
    assert {r.shape["n"] for r in records} <= {1000}


def test_another_architecture_or_no_gpu_ends_before_the_first_item(folder: Path) -> None:
    _, plan = planned(folder, "plain")
    with pytest.raises(PerflabError, match="for sm_90 .H200.; the GPU there is a NVIDIA B200 of compute capability 10.0"):
        run(plan, gpu={"name": "NVIDIA B200", "capability": "10.0"})
    nowhere = Worker(env={"PERFLAB_DEVICE": "no_such_module:make"})
    with nowhere as worker, pytest.raises(PerflabError, match="does not answer: .*No module named"):
        measure(plan, worker, lambda record: None)


def test_another_gpu_of_the_same_architecture_is_noted(folder: Path) -> None:
    _, plan = planned(folder, "tile")
    _, records, notes = run(plan, gpu={"name": "NVIDIA H100 80GB HBM3"})
    assert "planned for H200, measured on NVIDIA H100" in notes[0]
    assert records[0].gpu["name"] == "NVIDIA H100 80GB HBM3"


def test_ctrl_c_keeps_what_was_taken(folder: Path) -> None:
    _, plan = planned(folder, "plain")
    kept: list[Record] = []

    def interrupt(record: Record) -> None:
        kept.append(record)
        if record.kind == "timing":
            raise KeyboardInterrupt

    outcome, _, notes = run(plan, on_record=interrupt)
    assert len(kept) == 2 and outcome.ended_early == "Ctrl-C" and outcome.left == 2
    assert "goes on from here" in notes[-1]


def test_a_record_that_cannot_be_kept_is_shown_and_ends_the_run(folder: Path) -> None:
    _, plan = planned(folder, "plain")
    notes: list[str] = []

    def full(record: Record) -> None:
        raise PerflabError("no space")

    with Worker(env=ENVIRONMENT) as worker, pytest.raises(PerflabError, match="no space"):
        measure(plan, worker, full, notes.append)
    (lost,) = [note for note in notes if note.startswith("NOT KEPT (no space): ")]
    assert Record.from_json(lost.split(": ", 1)[1]).kind == "check"


def test_a_budget_ends_the_run_before_the_item_that_does_not_fit(folder: Path) -> None:
    _, plan = planned(folder, "tile", "plain")
    slow = replace(plan, items=tuple(replace(item, estimate_seconds=100.0 * k) for k, item in enumerate(plan.items)))
    outcome, records, _ = run(slow, budget_seconds=60)
    assert outcome.done == 1 and outcome.left == 2 and "do not fit into the 60 s" in outcome.ended_early
    rest = slow.without(records, "H200")
    assert len(rest.items) == 2 and rest.without([], "H200") == rest
    assert slow.without(records, "H100") == slow


@pytest.mark.parametrize(("estimate", "asked", "left", "limit"), [
    (1, None, math.inf, 120), (10, None, math.inf, 200), (10, 3, math.inf, 3), (10, None, 50, 50), (10, 3, 50, 3),
    (1, None, 2, 5),
])
def test_a_hang_is_ended_as_asked_or_by_its_estimate_and_within_the_budget(
    estimate: float, asked: float | None, left: float, limit: float
) -> None:
    assert _limit_seconds(estimate, asked, left) == limit


def test_the_tests_leave_the_environment_alone() -> None:
    assert "PERFLAB_DEVICE" not in os.environ


# ---------------------------------------------------------------- groups
def test_the_versions_of_a_shape_are_timed_together_after_all_checks(folder: Path) -> None:
    study, plan = planned(folder, "plain", "half", "tile")
    group = [item for item in plan.items if item.shape["n"] == 1000]
    computes = {name: Kernel(f"fake_gpu:{function}", seconds=1e-3) for name, function in
                (("plain", "saxpy"), ("half", "half_saxpy"), ("tile", "saxpy"))}
    results = list(Bench(FakeGpu(computes), study).run_group(group, plan.binaries, plan.tools))
    assert [(r["item"], r["kind"]) for r in results] == [(0, "check"), (1, "check"), (2, "check"), (0, "timing"), (2, "timing")]
    assert Timing.from_dict(results[3]["payload"]).together == ("tile",)


def test_a_group_with_a_fatal_version_is_taken_apart(folder: Path) -> None:
    """The one at fault is named; the other is measured all the same, once."""
    kept, notes = [], []
    _, plan = planned(folder, "plain", "die")
    with Worker(env={**os.environ, **ENVIRONMENT}) as worker:
        outcome = measure(plan, worker, kept.append, notes.append)
    assert [(r.version, r.kind, r.shape["n"]) for r in kept] == [
        ("plain", kind, n) for n in (4000, 1000) for kind in ("check", "timing")
    ]
    assert len(outcome.failed) == 2 and all(line.startswith("die") for line in outcome.failed) and outcome.left == 0
