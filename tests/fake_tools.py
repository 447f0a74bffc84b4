"""An ncu and a compute-sanitizer made of Python, to be put first on PATH: they run their target, then say what the real ones
would about its launches. What goes wrong is chosen by PERFLAB_FAKE_TOOL.

Format and wording are those of Nsight Compute and compute-sanitizer 2025.3; the numbers are made up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = """#!{python}
import sys
sys.path.insert(0, {here!r})
import fake_tools
sys.exit(fake_tools.{name}(sys.argv[1:]))
"""
NO_PERMISSION = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target "
    "device 0. For instructions on enabling permissions and to get more information see "
    "https://developer.nvidia.com/ERR_NVGPUCTRPERM\n"
)
UNLISTED = ("lts__t_requests", "sm__ops_path_tensor_op_hgmma_src_tf32_dst_fp32_sparsity_off")
NOT_AVAILABLE = "dram__bytes_read.sum"
FIXED = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
         "Device", "CC")


def install(folder: Path) -> str:
    """Write both into a folder; returns a PATH that begins with it."""
    for name, function in (("ncu", "ncu"), ("compute-sanitizer", "sanitizer")):
        file = folder / name
        file.write_text(SCRIPT.format(python=sys.executable, here=str(Path(__file__).parent), name=function))
        file.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def _split(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Options with their values, and the target's command; as both tools take them."""
    options: dict[str, str] = {}
    while arguments and arguments[0].startswith("--"):
        flag, *arguments = arguments
        if flag not in ("--csv", "--version", "--query-metrics"):
            options[flag], *arguments = arguments
        else:
            options[flag] = ""
    return options, arguments


def _run(target: list[str], launched: Path) -> int:
    """Run the target; the fake GPU notes there what it launched."""
    return subprocess.run(target, env={**os.environ, "PERFLAB_FAKE_LAUNCHES": str(launched)}).returncode


def _launches(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


# ---------------------------------------------------------------- ncu
def ncu(arguments: list[str]) -> int:
    """Every metric asked for is 1000 times the place of its launch; one is n/a."""
    wrong = os.environ.get("PERFLAB_FAKE_TOOL", "")
    options, target = _split(arguments)
    if "--version" in options:
        year = "2020.1.0.0" if wrong == "old" else "2025.3.1.0"
        print(f"NVIDIA (R) Nsight Compute Command Line Profiler\nCopyright (c) 2018-2025 NVIDIA\nVersion {year} (build 1)")
        return 0
    if "--query-metrics" in options:
        return _query(options)
    log = Path(options["--log-file"])
    if wrong == "permission":
        log.write_text(f"==PROF== Connected to process 1 (/usr/bin/python3)\n{NO_PERMISSION}")
        return 1
    if wrong == "hang":
        time.sleep(1000)
    launched = log.with_name("launched")
    code = _run(target, launched)
    rows = [one for one in _launches(launched) if one["entry"] in options["--kernel-name"]]
    if not rows:
        log.write_text("==PROF== Connected to process 1 (/usr/bin/python3)\n==WARNING== No kernels were profiled.\n")
        return code
    metrics = options["--metrics"].split(",")
    lines = ["==PROF== Connected to process 1 (/usr/bin/python3)", *(f'==PROF== Profiling "{one["entry"]}"' for one in rows)]
    lines += [_csv([*FIXED, *metrics]), _csv(["" for _ in FIXED] + [_unit(name) for name in metrics])]
    for place, one in enumerate(rows):
        fixed = [place, 1, "python3", "127.0.0.1", one["entry"], 1, 7, _size(one["block"]), _size(one["grid"]), 0, "9.0"]
        values = ["n/a" if name == NOT_AVAILABLE else f"{1000 * (place + 1):,}" for name in metrics]
        lines.append(_csv([*fixed, *values]))
    log.write_text("\n".join(lines) + "\n==PROF== Disconnected from process 1\n")
    return code


def _query(options: dict[str, str]) -> int:
    from perflab.counters import base, metrics_for

    launch = options.get("--query-metrics-collection") == "launch"
    print(f"Device NVIDIA H200 (GH100)\n{'-' * 60}\nMetric Name            Metric Type  Metric Unit  Metric Description")
    for name in dict.fromkeys(base(metric) for metric in metrics_for("9.0")):
        if name.startswith("launch__") == launch and name not in UNLISTED and not name.startswith("sm__maximum"):
            print(f"{name:60} Counter  inst  what it is\n{'':60} and more about it")
    return 0


def _unit(metric: str) -> str:
    return "byte" if "bytes" in metric else "%" if "pct" in metric else "sector" if "sectors" in metric else "inst"


def _size(three: list[int]) -> str:
    return f"({', '.join(map(str, three))})"


def _csv(cells: list[object]) -> str:
    return ",".join(f'"{cell}"' for cell in cells)


# ---------------------------------------------------------------- compute-sanitizer
FOUND = {
    ("memcheck", "saxpy_half"): """Invalid __global__ write of size 4 bytes
    at saxpy_half+0xd0 in /tmp/x/saxpy.cu:14
    by thread ({thread},0,0) in block (2,0,0)
    Access at 0x7f241b0001e0 is out of bounds
    and is 33 bytes after the nearest allocation at 0x7f241b000000 of size 448 bytes
""",
    ("racecheck", "saxpy_half"): """Error: Race reported between Write access at saxpy_half+0x150 in saxpy.cu:13
    and Read access at saxpy_half+0x160 in saxpy.cu:14 [31 hazards]
""",
    ("initcheck", "saxpy_plain"): """Uninitialized __global__ memory read of size 4 bytes
    at saxpy_plain+0x70 in saxpy.cu:4
    by thread ({thread},0,0) in block (1,0,0)
    Address 0x7f3c7ec000fc
""",
}
LANES = {"memcheck": 3, "racecheck": 1, "initcheck": 2}


def sanitizer(arguments: list[str]) -> int:
    """Says what FOUND holds about the kernels that were launched; the marks of the target stand between, as they come."""
    wrong = os.environ.get("PERFLAB_FAKE_TOOL", "")
    options, target = _split(arguments)
    if "--version" in options:
        print("NVIDIA (R) Compute Sanitizer\nCopyright (c) 2020-2025 NVIDIA Corporation\nVersion 2025.3.1")
        return 0
    print("========= COMPUTE-SANITIZER")
    if wrong == "device":
        print("========= Error: Device not supported. Please refer to the \"Supported Devices\" section of the documentation\n"
              "=========\n========= Target application returned an error\n========= ERROR SUMMARY: 1 error")
        return 1
    tool = options["--tool"]
    notes = Path(target[target.index("--notes") + 1])
    code = _run(target, notes.with_name("launched"))
    errors = 0
    for one in _launches(notes.with_name("launched")):
        for lane in range(LANES.get(tool, 0)):
            text = FOUND.get((tool, one["entry"]), "").format(thread=lane)
            errors += bool(text)
            print("".join(f"========= {line}\n" for line in text.splitlines()) + ("=========" if text else ""))
    print(f"========= ERROR SUMMARY: {errors} errors" if tool != "racecheck" else
          f"========= RACECHECK SUMMARY: {errors} hazards displayed ({errors} errors, 0 warnings)")
    return code
