"""A small workspace for tests: kernels/saxpy with versions that a fake GPU lets be right, wrong, fatal or endless."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from perflab.errors import PerflabError
from perflab.gpus import gpu
from perflab.planning import Plan, make_plan
from perflab.studies import Study, load_study

VERSIONS = ("plain", "spoil", "half", "die", "hang", "fault", "tile")
SOURCE = "".join(
    f"""
extern "C" __global__ void saxpy_{name}(const float* x, const float* b, float* y, float a, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + b[i];
}}
"""
    for name in VERSIONS
)
STUDY = '''
from dataclasses import dataclass
from pathlib import Path
from perflab.kernel import load
from perflab.studies import *
from perflab.studies import NotApplicable

HERE = Path(__file__).parent

@dataclass(frozen=True)
class Shape:
    n: int = 1000

def launches_of(name):
    kernel = load(HERE / "saxpy.cu", "saxpy_" + name)
    def launches(shape, gpu):
        if name == "tile" and shape.n > 2000:
            raise NotApplicable(f"{shape.n:,} values are over the 2,000 of a tile")
        return [Launch(kernel, -(-shape.n // 128), 128, ("x", "b", "y", f32(2.5), i32(shape.n)))]
    return Version(name=name, kernels=(kernel,), change="", launches=launches)

study = Study(
    name="saxpy", title="SAXPY", shape=Shape, shapes=(Shape(4000), Shape(1000)),
    inputs=lambda s: {"x": Uniform((s.n,)), "b": Uniform((s.n,))},
    buffers=lambda s, gpu: {"y": Output((s.n,)), "unused": Scratch((7,))},
    reference=lambda s, given: {"y": 2.5 * given["x"].astype("f8") + given["b"]},
    work=lambda s: Work(flops=2 * s.n, bytes=12 * s.n),
    tolerances=lambda s, sequence: {"y": Tolerance("norm_relative", 1e-6, "float32")},
    facts=lambda s: {"n": s.n},
    versions=tuple(map(launches_of, ("plain", "spoil", "half", "die", "hang", "fault", "tile"))),
)
'''
KERNELS = {
    "saxpy_plain": {"compute": "fake_gpu:saxpy", "seconds": 1e-3, "noise": 0.01},
    "saxpy_tile": {"compute": "fake_gpu:saxpy", "seconds": 5e-4},
    "saxpy_spoil": {"compute": "fake_gpu:spoiling_saxpy"},
    "saxpy_half": {"compute": "fake_gpu:half_saxpy"},
    "saxpy_die": {"does": "die"},
    "saxpy_hang": {"does": "hang"},
    "saxpy_fault": {"does": "fault"},
}
ENVIRONMENT = {
    "PERFLAB_DEVICE": "fake_gpu:from_environment",
    "PYTHONPATH": str(Path(__file__).parent),
    "PERFLAB_FAKE_GPU": json.dumps({"kernels": KERNELS}),
}


def make_study(root: Path) -> Path:
    """Write the workspace; returns kernels/saxpy."""
    folder = root / "kernels" / "saxpy"
    folder.mkdir(parents=True)
    (folder / "study.py").write_text(STUDY)
    (folder / "saxpy.cu").write_text(SOURCE)
    return folder


def planned(folder: Path, *versions: str, **more: object) -> tuple[Study, Plan]:
    """The study and a quick plan of these versions for an H200; skips the test where nothing compiles."""
    study = load_study(folder)
    try:
        return study, make_plan(study, folder, gpu("H200"), versions or None, quick=True, **more)
    except PerflabError as error:
        if "there is no compiler" in str(error) or "NVRTC cannot be loaded" in str(error):
            pytest.skip(str(error))
        raise


def fake_ssh(folder: Path) -> list[str]:
    """A command in ssh's place: drops options and host, runs the rest on this machine as sshd would. Counts its calls."""
    script = folder / "ssh.py"
    script.write_text(
        "import os, subprocess, sys\n"
        "from pathlib import Path\n"
        f"with open({str(folder / 'calls')!r}, 'a') as calls: calls.write(repr(sys.argv[1:]) + '\\n')\n"
        "sys.exit(subprocess.call(['sh', '-c', sys.argv[-1]], cwd='/'))\n"
    )
    return [sys.executable, str(script)]


def environment() -> dict[str, str]:
    """This process's variables with the fake GPU's."""
    return {**os.environ, **ENVIRONMENT}
