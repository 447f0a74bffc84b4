"""Rivals: declared, missing, checked against their own mask, timed by the one engine, recorded and read back."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from fake_gpu import FakeGpu, Kernel

from perflab import rivals
from perflab.compile import Binary
from perflab.errors import PerflabError
from perflab.gpus import gpu
from perflab.planning import Plan
from perflab.records import RecordStore
from perflab.rivals import Prepared, Rival, check_rival, lean, load_rivals, measure_rivals, missing, rounded
from perflab.standings import rivals_table
from perflab.studies import load_study
from perflab.timing import TimingSpec
from perflab.worker import Worker, WorkerError

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "kernels" / "verify_attention"
TOOLS = Binary(**{**dict.fromkeys(Binary.__dataclass_fields__, ""), "cubin": b"tools"})
STUDY = '''
from dataclasses import dataclass
from perflab.studies import Output, Study, Tolerance, Uniform, Work

@dataclass(frozen=True)
class Shape:
    n: int = 8
    keys: int = 64

study = Study(
    name="sums", title="Sums", shape=Shape, shapes=(Shape(),),
    inputs=lambda s: {"x": Uniform((s.n, s.keys)), "w": Uniform((s.keys, 16))},
    buffers=lambda s, gpu: {"out": Output((s.n, 16))},
    reference=lambda s, given: {"out": given["x"].astype("f8") @ given["w"].astype("f8")},
    work=lambda s: Work(flops=2 * s.n * s.keys * 16, bytes=4 * s.n * (s.keys + 16)),
    tolerances=lambda s, sequence: {"out": Tolerance("norm_relative", 1e-6, "float32")},
    facts=lambda s: {"n": s.n}, versions=(),
)
'''
RIVALS = '''
import os, signal, time
from perflab.rivals import Prepared, Rival, rounded
from perflab.studies import NotApplicable
from test_rivals import shared_gpu

def product(keys, spoil=0.0):
    def prepare(shape, given):
        gpu, kept = shared_gpu(), {}
        launch = gpu.launcher(gpu.load(b"", "product"), (1,), (32,), (), 0)
        def call():
            launch()
            kept["out"] = rounded((given["x"][:, keys] @ given["w"][keys] + spoil).astype("f4"), "bfloat16")
        return Prepared(call, lambda: kept, settings="a setting")
    return prepare

def broken(shape, given):
    raise RuntimeError("CUDA error: an illegal memory access was encountered")

def dies(shape, given):
    os.kill(os.getpid(), signal.SIGKILL)

def hangs(shape, given):
    time.sleep(1000)

def cannot(shape, given):
    raise NotApplicable("only 1,024 keys")

def reference(shape, given, mask):
    keys = {"tree": slice(None), "prefix": slice(32)}[mask]
    return {"out": given["x"][:, keys].astype("f8") @ given["w"][keys].astype("f8")}

masks = ("tree", "prefix")
ALL, HALF = slice(None), slice(32)
rivals = (
    Rival("absent", "tree", ("no_such_library|_no_such_file",), product(ALL), ""),
    Rival("right", "tree", ("numpy",), product(ALL), "a note"),
    Rival("half", "prefix", ("numpy",), product(HALF), ""),
    Rival("liar", "tree", ("numpy",), product(HALF), ""),
    Rival("spoiled", "tree", ("numpy",), product(ALL, float("nan")), ""),
    Rival("broken", "tree", ("numpy",), broken, ""),
    Rival("dies", "tree", ("numpy",), dies, ""),
    Rival("hangs", "tree", ("numpy",), hangs, ""),
    Rival("cannot", "tree", ("numpy",), cannot, ""),
)
'''


@functools.lru_cache(maxsize=1)
def shared_gpu() -> FakeGpu:
    """One fake GPU a process, so that rivals and the stopwatch share its clock (PERFLAB_DEVICE names this function)."""
    return FakeGpu(kernels={"product": Kernel(seconds=4e-5, noise=0.01)})


@dataclass
class InProcess:
    """A worker that runs its tasks here."""

    starts: int = 0

    def call(self, task, limit_seconds, on_progress=None, **payload):
        if task == "describe":
            return shared_gpu().describe()
        try:
            return rivals.rival_task(**payload, progress=on_progress)
        except PerflabError:
            raise
        except Exception as error:
            raise WorkerError(f'"rival" failed in the worker: {type(error).__name__}: {error}') from error

    def stop(self):
        self.starts += 1


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A study with nine rivals, and the fake GPU in the real one's place."""
    monkeypatch.setenv("PERFLAB_DEVICE", "test_rivals:shared_gpu")
    monkeypatch.setattr(rivals, "open_device", lambda: sys.modules["test_rivals"].shared_gpu())
    monkeypatch.setitem(sys.modules, "test_rivals", sys.modules[__name__])
    place = tmp_path / "kernels" / "sums"
    place.mkdir(parents=True)
    (place / "study.py").write_text(STUDY)
    (place / "rivals.py").write_text(RIVALS)
    return place


def plan_of(folder: Path) -> Plan:
    return Plan("sums", "H200", "sm_90", {}, TOOLS, (), (), TimingSpec.quick(), {"commit": "abc", "packages": {}}, folder)


IN_PROCESS = ("absent", "right", "half", "liar", "spoiled", "broken", "cannot")


def run(folder, names=IN_PROCESS, worker=None, **more):
    store, notes = RecordStore(folder.parent.parent / "records"), []
    study = load_study(folder)
    outcome = measure_rivals(plan_of(folder), study.shapes, worker or InProcess(), lambda record: store.add([record]),
                             notes.append, names, **more)
    return store, study, outcome, notes


def test_each_rival_is_checked_first_then_timed_or_says_why_not(folder):
    steps = []
    store, study, outcome, notes = run(folder, on_progress=steps.append)
    assert sum(steps) == len(IN_PROCESS) * len(study.shapes)
    found = {(r.rival, r.kind): r for r in store.newest("sums", "H200")}
    assert {name for name, kind in found if kind == "timing"} == {"right", "half"}
    assert {name for name, kind in found if kind == "check"} == set(IN_PROCESS)
    assert "no_such_library or _no_such_file not installed" in found["absent", "check"].check["missing"]
    assert found["cannot", "check"].check["not_applicable"] == "only 1,024 keys"
    assert "illegal memory access" in found["broken", "check"].check["failed"]
    assert "norm_relative" in str(found["liar", "check"].check["outputs"][0]["problem"])
    assert "NaN" in str(found["spoiled", "check"].check)
    timing = found["right", "timing"]
    assert timing.timing["cold"]["median_seconds"] == pytest.approx(4e-5, rel=0.02)
    assert (timing.version, timing.dtype) == ("", "bfloat16")
    assert timing.provenance["packages"]["numpy"] == np.__version__ and timing.provenance["code"]
    assert timing.provenance["commit"] == "abc" and timing.provenance["method"] == timing.timing["method"]
    assert len(outcome.failed) == 1 and outcome.done == 6 and "broken" in outcome.failed[0]
    assert any(note.startswith("right   right") and "a setting" in note for note in notes)


def test_the_table_has_a_row_a_rival_the_fastest_first(folder):
    store, study, _, _ = run(folder)
    table = rivals_table(store, study, load_rivals(folder), gpu("H200"), study.shapes[0])
    rows = {row[0]: row for row in table.rows}
    assert set(rows) == {"absent", "right", "half", "liar", "spoiled", "broken", "cannot", "dies", "hangs"}
    assert {table.rows[0][0], table.rows[1][0]} == {"right", "half"}
    assert rows["half"][1] == "prefix only" and rows["right"][1] == "exact"
    assert rows["right"][2].endswith("us") and rows["right"][4].endswith("TFLOP/s")
    assert rows["broken"][2].startswith("FAILED") and "_no_such_file not installed" in str(table)
    assert rows["cannot"][2] == "n/a" and "cannot: n/a: only 1,024 keys" in str(table) and rows["dies"][2] == "not measured"
    assert rows["liar"][2].startswith("WRONG")
    assert "right: a note" in str(table)


def test_a_rival_that_dies_or_hangs_ends_its_worker_not_the_run(folder):
    env = {"PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), str(ROOT)))}
    start = "from perflab import worker; worker.TASKS['rival'] = 'perflab.rivals:rival_task'; worker.main()"
    with Worker([sys.executable, "-c", start], env=env) as process:
        store, _, outcome, _ = run(folder, ("dies", "right", "hangs", "half"), process, limit_seconds=10)
    found = {(r.rival, r.kind): r for r in store.newest("sums", "H200")}
    assert {name for name, kind in found if kind == "timing"} == {"right", "half"}
    assert "died" in found["dies", "check"].check["failed"] and "limit of 10 s" in found["hangs", "check"].check["failed"]
    assert len(outcome.failed) == 2 and outcome.left == 0


def test_ctrl_c_keeps_what_was_taken(folder):
    class Interrupted(InProcess):
        def call(self, task, *given, **payload):
            if payload.get("name") == "half":
                raise KeyboardInterrupt
            return super().call(task, *given, **payload)

    store, _, outcome, _ = run(folder, ("right", "half"), Interrupted())
    assert outcome.ended_early == "Ctrl-C" and outcome.left == 1
    assert {r.rival for r in store.newest("sums", "H200")} == {"right"}


def test_unknown_names_and_broken_declarations_are_told(folder):
    with pytest.raises(PerflabError, match='"rihgt"'):
        run(folder, ("rihgt",))
    other = folder.parent / "other"
    other.mkdir()
    assert load_rivals(other).rivals == ()
    (other / "rivals.py").write_text("rivals = [1]")
    with pytest.raises(PerflabError, match="defines no `rivals"):
        load_rivals(other)


def test_a_library_file_in_the_named_folders_counts_as_installed(tmp_path, monkeypatch):
    rival = Rival("x", "tree", ("some_module_nobody_has|_some_C",), lambda shape, given: Prepared(print, dict), "")
    assert "PERFLAB_RIVALS_PATH" in missing(rival)
    (tmp_path / "wheel__some_C.abi3.so").write_bytes(b"")
    monkeypatch.setenv("PERFLAB_RIVALS_PATH", f"{tmp_path}{os.pathsep}/nowhere")
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert missing(rival) == ""
    (tmp_path / "a_rival_module.py").write_text("")
    assert missing(Rival("y", "", ("a_rival_module",), rival.prepare, "")) == ""


# ---------------------------------------------------------------- what a check sees
def test_rounding_is_to_nearest_even_and_touches_float32_only():
    given = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -3.14159, 0.0], np.float32)
    assert rounded(given, "bfloat16").tolist() == [1.0, 1.0, 1 + 2**-6, 1 + 2**-7, -3.140625, 0.0]
    assert rounded(given, "float32") is given
    marks = np.ones(3, np.uint8)
    assert rounded(marks, "bfloat16") is marks


@pytest.fixture(scope="module")
def attention():
    """A shape with so many keys that a wrong tree hides below bfloat16's own error, its inputs and the three references."""
    study, known = load_study(FOLDER), load_rivals(FOLDER)
    shape = study.make_shape(q_len=5, heads=2, prefix=16384)
    inputs = {name: rounded(array, "bfloat16") for name, array in study.make_inputs(shape).items()}
    return known, shape, inputs, {mask: known.reference(shape, inputs, mask) for mask in known.masks}


@pytest.mark.parametrize("computed", ["tree", "chain", "prefix"])
@pytest.mark.parametrize("said", ["tree", "chain", "prefix"])
def test_the_mask_that_a_rival_computes_is_seen_among_many_keys(attention, said, computed):
    known, _, _, wanted = attention
    noise = np.random.default_rng(3).normal(0, 2e-3, wanted["tree"]["out"].shape)
    got = {"out": rounded((wanted[computed]["out"] * (1 + noise)).astype(np.float32), "bfloat16")}
    check = check_rival(Rival("r", said, (), lambda shape, given: Prepared(print, dict), ""), got, wanted)
    assert check.passed == (said == computed), check


def test_a_tree_that_the_last_rounding_swallows_is_told_before_it(attention):
    """A prefix part in bfloat16, joined into bfloat16, comes out as it went in; the join itself was right, or was not."""
    known, _, _, wanted = attention
    rival = Rival("r", "tree", (), lambda shape, given: Prepared(print, dict), "")
    swallowed = {"out": rounded(wanted["prefix"]["out"].astype(np.float32), "bfloat16")}
    joined = {mask: {"out": wanted[mask]["out"].astype(np.float32)} for mask in ("tree", "prefix")}
    assert not check_rival(rival, swallowed, wanted).passed
    assert check_rival(rival, swallowed, wanted, joined["tree"]).passed
    assert not check_rival(rival, swallowed, wanted, joined["prefix"]).passed


def test_one_wrong_row_and_one_nan_do_not_pass(attention):
    known, _, _, wanted = attention
    rival = Rival("r", "tree", (), lambda shape, given: Prepared(print, dict), "")
    good = wanted["tree"]["out"].astype(np.float32)
    row, value = good.copy(), good.copy()
    row[0, 3, 1] *= 1.05
    value[0, 0, 0, 0] = np.nan
    assert check_rival(rival, {"out": good}, wanted).passed
    assert not check_rival(rival, {"out": row}, wanted).passed
    assert not check_rival(rival, {"out": value}, wanted).passed
    with pytest.raises(PerflabError, match="no output"):
        check_rival(rival, {}, wanted)


def test_lean_is_the_farthest_row():
    own, other = np.zeros((3, 2)) + 1, np.array([[1.0, 1.0], [2.0, 1.0], [1.0, 3.0]])
    assert lean(own, own, other) == 0
    assert lean(np.array([[9.0, 9.0], [1.2, 5.0], [1.0, 1.5]]), own, other) == pytest.approx(0.25)


# ---------------------------------------------------------------- this study's rivals
def test_verify_attention_declares_its_rivals_and_the_same_sizes():
    known, study = load_rivals(FOLDER), load_study(FOLDER)
    names = [rival.name for rival in known.rivals]
    assert len(set(names)) == len(names) == 20
    assert {rival.mask for rival in known.rivals} == set(known.masks)
    ours, theirs = sys.modules[study.shape.__module__], sys.modules[known.rivals[0].prepare.__module__]
    for constant in ("LATENT", "ROPE", "WIDTH", "SCALE"):
        assert getattr(ours, constant) == getattr(theirs, constant)
    shape = study.shapes[0]
    assert known.work(shape, "float32").flops == study.work(shape).flops
    assert known.work(shape, "float32").bytes == study.work(shape).bytes
    code = f"import sys; from pathlib import Path; from perflab.rivals import load_rivals; load_rivals(Path({str(FOLDER)!r})); "
    said = subprocess.run([sys.executable, "-c", code + "print({'torch', 'triton', 'cupy'} & set(sys.modules))"],
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True).stdout
    assert said.strip() == "set()", "declaring must load no library"


def test_the_tree_reference_is_the_study_s(attention):
    known, shape, inputs, wanted = attention
    want = load_study(FOLDER).reference(shape, inputs)
    assert np.array_equal(want["out"], wanted["tree"]["out"]) and np.array_equal(want["lse"], wanted["tree"]["lse"])
    assert (wanted["prefix"]["lse"] < wanted["tree"]["lse"]).all() and (wanted["tree"]["lse"] <= wanted["chain"]["lse"]).all()


def test_ceilings_declares_cublas():
    known, study = load_rivals(ROOT / "kernels" / "ceilings"), load_study(ROOT / "kernels" / "ceilings")
    assert [rival.name for rival in known.rivals] == ["cublas_8192"]
    assert known.work(study.shapes[0], "bfloat16").flops == 2 * 8192**3


# ---------------------------------------------------------------- Triton's interpreter and torch, where they are installed
WITHOUT_A_GPU = '''
import dataclasses, sys
from pathlib import Path
from perflab.rivals import check_rival, load_rivals, rounded
from perflab.studies import load_study

folder = Path(sys.argv[1])
study, known = load_study(folder), load_rivals(folder)
module = sys.modules[known.rivals[0].prepare.__module__]
module.DEVICE, module.DTYPE = "cpu", "float16"  # the interpreter multiplies no bfloat16

def prefix_kernel(mask, shape, given):
    """A stand-in for a library: its lse is of base 2 and lies head by head."""
    import torch
    case = module.Case(shape, given)
    if shape.prefix:
        want = known.reference(shape, given, "prefix")
        out = torch.as_tensor(want["out"][0]).half()
        lse = (torch.as_tensor(want["lse"][0]).float() / module.LN_2).T.contiguous().T
    else:
        out, lse = case.empty()[0], torch.full((case.q_len, case.heads), float("inf"))
    return module.finished(case, lambda: (out, lse), mask, module.LN_2)

stand_in = dataclasses.replace(known.rival("Triton verify"), name="merge", prepare=lambda s, g: prefix_kernel("tree", s, g))
rivals = [known.rival(name) for name in ("torch eager", "SDPA math", "Triton verify")] + [stand_in]
for sizes in ((9, 8, 40), (33, 3, 70), (1, 2, 33), (4, 8, 0)):
    shape = study.make_shape(**dict(zip(("q_len", "heads", "prefix"), sizes)))
    given = {name: rounded(array, "float16") for name, array in study.make_inputs(shape).items()}
    wanted = {mask: known.reference(shape, given, mask) for mask in (known.masks if shape.prefix else ("tree", "chain"))}
    for rival in rivals:
        prepared = rival.prepare(shape, given)
        prepared.call()
        check = check_rival(dataclasses.replace(rival, dtype="float16"), prepared.outputs(), wanted)
        assert check.passed, (rival.name, shape, check)
        print("right", rival.name)
    if shape.prefix:
        own, setting = module.own(), module.own().SETTINGS
        for one in setting:
            own.merge_setting.cache_clear(); own.SETTINGS = (one,)
            prepared = stand_in.prepare(shape, given)
            prepared.call()
            whole = prepared.unrounded()
            assert check_rival(dataclasses.replace(stand_in, dtype="float16"), prepared.outputs(), wanted, whole).passed, one
        own.SETTINGS = setting
'''


def test_torch_and_our_triton_kernels_are_right_without_a_gpu():
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", WITHOUT_A_GPU, str(FOLDER)], env=env, capture_output=True, text=True)
    if "only 0-dimensional arrays" in done.stderr:
        pytest.skip("this Triton's interpreter wants numpy older than 2.3")
    assert not done.returncode, done.stderr[-2000:]
    assert done.stdout.count("right") == 16
