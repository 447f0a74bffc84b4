"""tests/gpu/planted.py, as far as it goes without a GPU: a CuPy and a compute-sanitizer made of a few lines take its cases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "gpu"))
import planted  # noqa: E402

from perflab.planted import planted_table  # noqa: E402

CUPY = '''
import numpy as np

class Error(Exception):
    pass

class Array(np.ndarray):
    def get(self):
        return np.asarray(self)

class RawModule:
    def __init__(self, path):
        self.cubin = open(path, "rb").read()
    def get_function(self, name):
        def launch(grid, block, arguments, shared_mem):
            if self.cubin == b"fails":
                raise Error("cudaErrorAssert: device-side assert triggered")
            if self.cubin == b"right":
                arguments[2][...] = np.asarray(arguments[0]).astype(float) @ np.asarray(arguments[1])
        return launch

class cuda:
    set_allocator = print
    class Device:
        synchronize = lambda self: None
    class runtime:
        CUDARuntimeError = Error
    class driver:
        CUDADriverError = KeyError

asarray = lambda array: np.array(array).view(Array)
empty = lambda shape, dtype: np.empty(shape, dtype).view(Array)
'''
SANITIZER = '''#!{python}
import subprocess, sys
rest = sys.argv[1:]
if rest == ["--version"]:
    sys.exit(print("NVIDIA (R) Compute Sanitizer\\nVersion 2025.3.1"))
if rest == ["--help"]:
    sys.exit(print("  --print-limit arg\\n  --racecheck-report arg\\n  --port arg"))
options = dict()
while rest[0].startswith("--"):
    options[rest[0]], rest = rest[1], rest[2:]
code = subprocess.run(rest).returncode
print("========= COMPUTE-SANITIZER")
if options["--tool"] == "racecheck" and options["--racecheck-report"] == "all":
    print("========= Error: Race reported between Write access at matmul+0xe0 in matmul.cu:34\\n"
          "=========     and Read access at matmul+0xf0 in matmul.cu:57 [1024 hazards]")
sys.exit(code)
'''


def cases() -> list[dict]:
    """Three of the real ones, with a word in place of the cubin."""
    bugs, made = planted._bugs(), []
    for number, cubin in ((11, b"wrong"), (9, b"fails"), (0, b"right")):
        launch = bugs.USUAL["matmul"]
        made.append({"source": "matmul", "number": number, "style": 0, "kind": "", "what": "", "lines": [57], "emulator": [],
                     "entry": "matmul", "grid": [2, 2, 1], "block": [16, 16, 1], "dynamic_shared": 0,
                     "arguments": planted.memory_of("matmul", launch), "launch": vars(launch), "cubin": planted._packed(cubin)})
    return made


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What build, run and read make together."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "cupy.py").write_text(CUPY)
    for name, text in (("compute-sanitizer", SANITIZER.format(python=sys.executable)),
                       ("nvidia-smi", "#!/bin/sh\necho 'NVIDIA H200, 580.95.05'\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    file, out, recorded = (folder / name for name in ("given.json", "out.json", "result.json"))
    file.write_text(json.dumps({"nvrtc": "13.0", "sources": planted.source_hashes(), "cases": cases()}))
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    subprocess.run([sys.executable, planted.__file__, "run", str(file), str(out)], env=env, check=True, timeout=120)
    assert len(out.with_suffix(".jsonl").read_text().splitlines()) == 3 * 5
    planted.read(file, out, recorded)
    return json.loads(recorded.read_text())


def test_outputs_and_errors_without_a_tool(result: dict) -> None:
    wrong, fails, right = (case["outputs"] for case in result["cases"])
    assert (wrong["state"], wrong["runs"], wrong["right"]) == ("ended", planted.REPEATS, 0)
    assert (fails["state"], fails["problem"]) == ("failed", "cudaErrorAssert: device-side assert triggered")
    assert right["right"] == right["runs"] == planted.REPEATS


def test_what_each_tool_found_and_what_it_was_asked(result: dict) -> None:
    (race,) = result["cases"][0]["tools"]["racecheck"]["findings"]
    assert (race["kind"], race["lines"], race["times"]) == ("race", [34, 57], 1024)
    assert not any(case["tools"]["memcheck"]["findings"] for case in result["cases"])
    assert (result["gpu"], result["driver"], result["sanitizer"]) == ("NVIDIA H200", "580.95.05", "compute-sanitizer 2025.3.1")
    assert result["options"]["racecheck"] == ["--tool", "racecheck", "--print-limit", "100000", "--racecheck-report", "all"]


def test_what_hangs_comes_last() -> None:
    assert planted.in_order(["a", "b", "c"], {1}, ("x", "y")) == [
        (0, "x"), (2, "x"), (0, "y"), (2, "y"), (1, "x"), (1, "y")]


def test_the_grid_barrier_has_a_block_more_than_the_gpu_holds() -> None:
    (case,) = [case for case in planted.all_cases() if (case["source"], case["number"]) == ("reduction", 21)]
    assert case["launch"].grid == planted.DEVICE_SMS + 1 and case["launch"].dynamic_shared > 232_448 // 2


# ---------------------------------------------------------------- the table
def test_who_finds_planted_bugs_row_by_row_and_in_all() -> None:
    def case(number: int, outputs: tuple[str, int] | None, emulated: list[int], **tools: tuple[str, list[int]]) -> dict:
        said = {tool: {"state": state, "findings": [{"kind": "race", "lines": [line] if line else []} for line in lines]}
                for tool, (state, lines) in tools.items()}
        return {"source": "tile", "number": number, "lines": [9, 12], "what": f"bug {number}",
                "emulator": [{"kind": "race", "lines": emulated}] if emulated else [], "tools": said,
                "outputs": outputs and {"state": outputs[0], "runs": 20, "right": outputs[1]}}

    table = planted_table({
        "gpu": "H200", "utc": "2026-11-30T01:02:03", "sanitizer": "compute-sanitizer 2025.3.1",
        "options": {"memcheck": ["--tool", "memcheck"], "racecheck": ["--tool", "racecheck", "--racecheck-report", "all"]},
        "given_up_seconds": {"plain": 8.0, "tool": 15.0},
        "cases": [
            case(1, ("ended", 20), [9, 12], memcheck=("ended", []), racecheck=("ended", [12, 99])),
            case(2, ("ended", 17), [9], memcheck=("failed", []), racecheck=("hangs", [])),
            case(3, ("hangs", 0), [40], memcheck=("ended", [40]), racecheck=("timed out", [])),
            case(4, ("failed", 0), [], memcheck=("died", [])),
            case(5, None, [9], memcheck=("ended", [9]), racecheck=("ended", [9])),
            case(6, ("ended", 0), [9], memcheck=("ended", [9]), racecheck=("ended", [])),
            case(7, ("failed", 0), [9], memcheck=("failed", [0]), racecheck=("failed", [])),
            case(0, ("ended", 20), [], memcheck=("ended", [9]), racecheck=("ended", [])),
        ]})
    assert [row[2:] for row in table.rows] == [
        ("right", "found", "", "found"),
        ("wrong 3 of 20", "found", "error", "hangs"),
        ("hangs", "elsewhere", "elsewhere", "hangs"),
        ("error", "", "died", "not run"),
        ("not run", "found", "found", "found"),
        ("wrong", "found", "found", ""),
        ("error", "found", "no line", "error"),
        ("5", "5", "2", "2"),
    ]
    assert table.rows[0][:2] == ("tile.cu:9, 12", "bug 1") and table.rows[-1][1] == "of 7"
    assert table.notes == ["reports on the 1 kernels without a bug: emulator 0, memcheck 1, racecheck 0",
                           "asked: memcheck, racecheck --racecheck-report all",
                           "hangs: not ended 8 s after the launch, under a tool 15 s"]


def test_what_the_runs_reader_did_not_understand_is_read_again() -> None:
    case = {"source": "reduction", "entry": "reduce", "grid": [4, 1, 1], "block": [256, 1, 1]}
    trap = "Trace/breakpoint trap | at reduce+0xb50 in reduction.cu:157 | by thread (5,0,0) in block (0,0,0)"
    race = {"kind": "race", "lines": [32, 39], "message": "", "times": 7}
    known = ("Potential RAW hazard detected at __shared__ 0x7c0 in block (2,0,0) : | Write Thread (240,0,0) at reduce+0x2f0 in "
             "reduction.cu:32 | Read Thread (224,0,0) at reduce+0x300 in reduction.cu:39")
    again = planted.read_again({"findings": [race], "notes": [trap, "what nobody knows | at reduce+0x1", known]}, case)
    assert again["findings"][0] == race and [(one["kind"], one["lines"]) for one in again["findings"][1:]] == [("trap", [157])]
    assert again["notes"] == ["what nobody knows | at reduce+0x1"]
