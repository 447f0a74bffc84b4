"""The command line: bad input is a short message and exit code 2, never a traceback."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SAXPY = str(ROOT / "kernels" / "saxpy" / "00_scalar.cu")


def perflab(*arguments: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", **variables}
    return subprocess.run([sys.executable, "-m", "perflab.cli", *arguments], cwd=cwd, env=environment, capture_output=True,
                          text=True)


@pytest.fixture
def broken(tmp_path):
    (tmp_path / "broken.cu").write_text('extern "C" __global__ void f(float* x) {\n    x[0] = nonsense;\n}\n')
    (tmp_path / "hungry.cu").write_text('extern "C" __global__ void f(float* x) {\n    __shared__ float all[1 << 20];\n'
                                        "    all[threadIdx.x] = x[0]; x[1] = all[0];\n}\n")
    (tmp_path / "template.cu").write_text("template <int N> __global__ void g(float* x) { x[0] = N; }\n")
    return tmp_path


BAD = {
    "unknown study": (["check", "verify_atention"], ['unknown study "verify_atention"', 'Did you mean "verify_attention"']),
    "unknown version": (["pack", "saxpy", "-o", "x.pyz", "--version", "floot4"], ['Did you mean "float4"', "scalar"]),
    "unknown gpu": (["explain", SAXPY, "--gpu", "H20"], ['unknown GPU "H20"', "Did you mean"]),
    "unknown architecture": (["explain", SAXPY, "--gpu", "sm_99"], ['unknown GPU "sm_99"', "Known"]),
    "too old for the compiler": (["explain", SAXPY, "--gpu", "sm_70"], ["occupancy only", "sm_75"]),
    "missing file": (["explain", str(ROOT / "kernels" / "saxpy" / "00_skalar.cu")], ['Did you mean "00_scalar.cu"']),
    "block over the limit": (["occupancy", "--gpu", "sm_90", "--block", "0"], ["block"]),
    "no gpu here": (["measure", "saxpy"], ["CuPy cannot be imported", "pip install", "--on ssh://", "perflab pack"]),
    "unknown shape": (["check", "saxpy", "--emulate", "--shape", "qads"], ['"qads"', 'Did you mean "quads"']),
    "unknown size": (["count", "saxpy", "--shape", "m=4"], ['unknown size of saxpy "m"']),
    "shape without emulate": (["check", "saxpy", "--shape", "quads"], ["--shape goes with --emulate"]),
    "no version can": (["check", "saxpy", "--emulate", "--version", "float4", "--shape", "n=5"], ["nothing was checked"]),
    "no further shapes": (["pack", "saxpy", "-o", "x.pyz", "--checks"], ["saxpy declares no further shapes", "checks="]),
    "not an ssh address": (["measure", "saxpy", "--on", "box"], ["ssh://"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_explained(case):
    arguments, said = BAD[case]
    found = perflab(*arguments)
    assert found.returncode == 2, found.stdout + found.stderr
    assert "Traceback" not in found.stderr and found.stderr.startswith("perflab: ")
    assert all(words in found.stderr for words in said), found.stderr


def test_a_kernel_that_does_not_compile_shows_the_line_and_a_caret(broken):
    found = perflab("explain", str(broken / "broken.cu"), "--gpu", "sm_90")
    assert found.returncode == 2 and "broken.cu:2" in found.stderr
    assert "x[0] = nonsense;" in found.stderr and "^" in found.stderr


def test_too_much_static_shared_memory_is_said_with_numbers(broken):
    found = perflab("explain", str(broken / "hungry.cu"), "--gpu", "sm_90")
    assert found.returncode == 2 and "shared" in found.stderr and "4194304" in found.stderr.replace(",", "")


def test_a_template_needs_a_name(broken):
    found = perflab("explain", str(broken / "template.cu"), "--gpu", "sm_90")
    assert found.returncode == 2 and "g<" in found.stderr
    assert perflab("explain", str(broken / "template.cu"), "--gpu", "sm_90", "--name", "g<3>").returncode == 0


def test_no_workspace(tmp_path):
    found = perflab("studies", cwd=tmp_path)
    assert found.returncode == 2 and "no workspace here" in found.stderr and "PERFLAB_WORKSPACE" in found.stderr


def test_workspace_by_variable(tmp_path):
    found = perflab("studies", cwd=tmp_path, PERFLAB_WORKSPACE=str(ROOT))
    assert found.returncode == 0 and "head_tile" in found.stdout


def test_damaged_and_foreign_records(tmp_path):
    (tmp_path / "foreign.jsonl").write_text("a,b\n1,2\n")
    found = perflab("import", str(tmp_path / "foreign.jsonl"))
    assert found.returncode == 2 and "foreign.jsonl" in found.stderr and "Traceback" not in found.stderr
    assert (tmp_path / "foreign.jsonl").read_text() == "a,b\n1,2\n"


def test_missing_compiler_is_named(tmp_path):
    """A cuda package without bindings stands in the way of the real one."""
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "__init__.py").write_text("")
    environment = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "PERFLAB_CACHE": str(tmp_path / "cache")}
    found = perflab("explain", SAXPY, "--gpu", "sm_90", **environment)
    assert found.returncode == 2 and "pip install" in found.stderr and "Traceback" not in found.stderr


def test_occupancy_from_numbers():
    found = perflab("occupancy", "--gpu", "sm_120", "--block", "256", "--registers", "40", "--dynamic-shared", "71680")
    assert found.returncode == 0 and "1 block per SM" in found.stdout and "shared memory" in found.stdout


def test_pack_and_plan(tmp_path):
    file = tmp_path / "saxpy.pyz"
    packed = perflab("pack", "saxpy", "-o", str(file), "--quick")
    assert packed.returncode == 0 and "estimate" in packed.stdout
    plan = subprocess.run([sys.executable, str(file), "plan"], capture_output=True, text=True, cwd=tmp_path)
    assert plan.returncode == 0 and "Plan: saxpy on H200" in plan.stdout


# ---------------------------------------------------------------- on the CPU
def test_check_emulated_passes_and_fails(tmp_path):
    found = perflab("check", "saxpy", "--emulate", "--shape", "quads", "--shape", "n=1001", "--gpu", "sm_120")
    assert found.returncode == 0, found.stderr
    words = [line.split()[:2] for line in found.stdout.splitlines()]
    assert words == [["PASS", "[scalar]"], ["PASS", "[float4]"], ["PASS", "[scalar]"], ["n/a", "[float4]"]], found.stdout
    shutil.copytree(ROOT / "kernels" / "saxpy", tmp_path / "kernels" / "saxpy")
    kernel = tmp_path / "kernels" / "saxpy" / "00_scalar.cu"
    kernel.write_text(kernel.read_text().replace("if (i < n)", "if (i <= n)"))
    found = perflab("check", "saxpy", "--emulate", "--version", "scalar", "--shape", "n=1001", cwd=tmp_path)
    assert found.returncode == 1 and "FAIL  [scalar]" in found.stdout and "00_scalar.cu:8: out of bounds" in found.stdout


def test_count_says_what_was_counted_and_by_line():
    found = perflab("count", "saxpy", "--shape", "n=1024", "--version", "scalar", "--lines")
    assert found.returncode == 0, found.stderr
    assert "saxpy/scalar: counted" in found.stdout and "8,192 B" in found.stdout
    assert any("z[i] = a * x[i]" in line and "2,048" in line for line in found.stdout.splitlines())


def test_lint_exits_with_1_on_errors(tmp_path, broken):
    good = tmp_path / "good.cu"
    good.write_text("// perflab: f grid=1 block=32 args=(out int[32])\n"
                    'extern "C" __global__ void f(int* x) { x[threadIdx.x] = 1; }\n')
    found = perflab("lint", str(good), "--gpu", "H200")
    assert found.returncode == 0 and "PASS  good.cu" in found.stdout
    good.write_text(good.read_text().replace("block=32", "block=64"))
    found = perflab("lint", str(good), "--gpu", "H200")
    assert found.returncode == 1 and "out of bounds" in found.stdout
    assert perflab("lint", str(broken / "broken.cu"), "--gpu", "H200").returncode == 1
