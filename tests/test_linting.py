"""perflab.linting: trials as a file declares them, what compiles where, spills, and faults on small shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perflab.errors import PerflabError
from perflab.linting import RUN_LINE, lint, trials

KERNELS = Path(__file__).parent / "kernels"
GOOD = """
// perflab: saxpy grid=4 block=256 args=(float[1000], out float[1000], 2.5, 1000)
extern "C" __global__ void saxpy(const float* x, float* y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}
"""
RACE = """
// perflab: shift grid=1 block=64 shared=256 args=(float[64])
extern "C" __global__ void shift(float* x) {
    extern __shared__ float tile[];
    tile[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = tile[63 - threadIdx.x];
}
"""


@pytest.fixture
def write(tmp_path):
    def written(text: str, name: str = "k.cu") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return written


# ---------------------------------------------------------------- trials
def test_a_trial_is_read_and_made():
    (trial,) = trials("int a;\n  //perflab: ns::f<float, 3> grid=(4,2) block=64 shared=128 "
                      "args=(float[2,3], out int[4], scratch double[5]=1.5, unsigned char[3], -7, 2.5f, null, true, "
                      "half[2]=0)\n")
    assert (trial.name, trial.line, trial.grid, trial.block, trial.shared) == ("ns::f<float, 3>", 2, (4, 2), (64,), 128)
    values, outputs, scratch = trial.make()
    assert outputs == [1] and scratch == [2] and values[4:8] == [-7, 2.5, None, True]
    assert [v.dtype.name for v in values[:4]] == ["float32", "int32", "float64", "uint8"]
    assert values[0].shape == (2, 3) and (np.abs(values[0]) < 1).all() and len(set(values[0].flat)) == 6
    assert values[1].tolist() == [0, 1, 2, 3] and values[2].tolist() == [1.5] * 5 and values[8].dtype == np.float16
    assert (trial.make()[0][0] == values[0]).all()


def test_the_example_in_the_documentation_is_one():
    (trial,) = trials(RUN_LINE)
    assert trial.name == "saxpy<float>" and trial.make()[1] == [1]


@pytest.mark.parametrize("line, said", [
    ("// perflab: f args=()", "line 1: this is no trial"),
    ("// perflab: f grid=1 block=x args=()", "whole numbers"),
    ("// perflab: f grid=1 block=1 args=(flaot[3])", 'unknown type in line 1 "flaot".*Did you mean "float"'),
    ("// perflab: f grid=1 block=1 args=(three)", "'three' is neither a number nor an array"),
])
def test_what_is_no_trial_is_said_with_its_line(line, said):
    with pytest.raises(PerflabError, match=said):
        for trial in trials(line):
            trial.make()


# ---------------------------------------------------------------- files
def test_a_clean_file_passes_on_every_architecture(write):
    found = lint(write(GOOD))
    assert found.passed and found.errors == () == found.notes
    assert len(found.compiled.rows) == 12 and {row[2] for row in found.compiled.rows} == {"good"}
    assert [row[3:] for row in found.tried.rows] == [("clean", 0)]
    assert str(found).endswith("PASS  k.cu: 0 errors, 0 notes")


@pytest.mark.parametrize("change, said", [
    (("if (i < n) ", ""), "out of bounds"),
    (("y[i] = a * x[i]", "y[i] += a * x[i]"), "uninitialised"),
    (("i < n)", "i < n - 1)"), "unwritten output"),
])
def test_faults_of_a_trial_are_errors(write, change, said):
    found = lint(write(GOOD.replace(*change)), ["H200"])
    assert not found.passed and any(said in words and "k.cu:" in words for words in found.errors), found.errors
    assert "FAIL  k.cu" in found.markdown()


def test_a_race_is_found_whatever_the_schedule(write):
    found = lint(write(RACE), ["H200"])
    assert [words for words in found.errors if "race" in words] and found.tried.rows[0][3] == "faults"


def test_spills_are_notes():
    found = lint(KERNELS / "spill.cu", ["H200", "sm_80"])
    assert found.passed and any("spills on H200" in words for words in found.notes)
    assert any("not run" in words and "spill (line 2)" in words for words in found.notes)


def test_what_needs_a_newer_architecture_is_a_note_and_an_error_where_asked_for(write):
    text = 'extern "C" __global__ void f() { asm volatile("cp.async.wait_all;"); }\n'
    found = lint(write(text))
    assert found.passed and any("f needs sm_80 or newer" in words for words in found.notes)
    found = lint(write(text), ["sm_75", "sm_80"])
    assert found.errors and "f does not compile for sm_75" in found.errors[0]


def test_one_architecture_may_be_a_bare_name(write):
    path = write(GOOD)
    assert str(lint(path, "sm_90")) == str(lint(path, ["sm_90"]))


def test_a_file_that_does_not_compile_is_an_error(write):
    found = lint(write('extern "C" __global__ void f(float* x) { x[0] = nonsense; }\n'), ["sm_90"])
    assert not found.passed and "nonsense" in found.errors[0]


def test_templates_need_an_instance(write):
    template = "template <int N> __global__ void g(float* x) { x[0] = N; }\n"
    with pytest.raises(PerflabError, match="kernel templates only"):
        lint(write(template))
    found = lint(write(f"// perflab: g<3> grid=1 block=1 args=(out float[1])\n{template}"), ["H200"])
    assert found.passed and found.compiled.rows[0][0] == "g<3>"


def test_what_the_emulator_cannot_do_is_an_error_with_its_reason(write):
    text = ('// perflab: f grid=1 block=32 args=(out float[1])\n'
            'extern "C" __global__ void f(float* x) { asm volatile("cp.async.wait_all;"); x[0] = 1; }\n')
    found = lint(write(text), ["H200"])
    assert not found.passed and "was not run" in found.errors[0] and "cp.async" in found.errors[0]
