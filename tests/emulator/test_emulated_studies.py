"""The shipped studies, emulated: right to float64, quiet, the same bits in any order of blocks, the stated bytes."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perflab.check import check_outputs
from perflab.emulator.counts import Counts
from perflab.emulator.emulation import Settings, emulate_launches
from perflab.gpus import gpu as find_gpu
from perflab.studies import NotApplicable, Scratch, Study, Version, load_study

KERNELS = Path(__file__).parent.parent.parent / "kernels"
ATTENTION, SAXPY = load_study(KERNELS / "verify_attention"), load_study(KERNELS / "saxpy")
MACHINES = ["numpy", *(["vector"] if importlib.util.find_spec("llvmlite") else [])]
FAST = MACHINES[-1]
GPUS = {"sm_80": "A100", "sm_90": "H200", "sm_100": "B200", "sm_120": "RTX PRO 6000"}  # one of each architecture
LADDER = tuple(version for version in ATTENTION.versions if version.shapes is None)
VARIANTS = tuple(version for version in ATTENTION.versions if version.shapes is not None)  # tuning points of one source

SMALL_FLOPS = 1.4e7  # of a shape that takes a version half a second here
SHAPES = tuple(shape for shape in ATTENTION.checks() if not shape.page and ATTENTION.work(shape).flops <= SMALL_FLOPS)
TWICE = SHAPES[5::7]  # in a second order of blocks, too
SMALL = ATTENTION.make_shape(heads=1, q_len=2, prefix=5)
TWO_REQUESTS = ATTENTION.make_shape(batch=2, heads=3, q_len=5, prefix=17, tree="binary")
_wanted: dict[tuple[str, Any], dict[str, np.ndarray]] = {}


def wanted(study: Study, shape: Any) -> dict[str, np.ndarray]:
    """The float64 reference, made once."""
    if (study.name, shape) not in _wanted:
        _wanted[study.name, shape] = dict(study.reference(shape, study.make_inputs(shape)))
    return _wanted[study.name, shape]


def emulated(study: Study, version: Version, shape: Any, gpu: str = "H200",
             **settings: Any) -> tuple[Counts, dict[str, np.ndarray]]:
    """Counts and outputs of a version at a shape; skips where the version does not do it."""
    found = find_gpu(gpu)
    try:
        launches = version.launches(shape, found)
    except NotApplicable as why:
        pytest.skip(str(why))
    return emulate_launches(version.name, launches, study.make_inputs(shape), study.buffers_of(version, shape, found),
                            Settings(found, **settings), version.outputs)


def assert_right(study: Study, version: Version, shape: Any, counts: Counts, outputs: dict[str, np.ndarray],
                 gpu: str = "H200") -> None:
    """Within the study's tolerances, without a fault, with the bytes that the version states."""
    check = check_outputs(study, version.name, shape, outputs, wanted(study, shape))
    assert check.passed, [output.problem for output in check.outputs]
    assert not [str(fault) for fault in counts.faults]
    if version.asked_bytes is not None:
        assert counts.asked_bytes == version.asked_bytes(shape, find_gpu(gpu))


def assert_same_bits(outputs: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> None:
    assert outputs.keys() == others.keys()
    for name, values in outputs.items():
        assert np.array_equal(values, others[name]), name


def of_shape(shape: Any) -> str:
    return f"B{shape.batch}-H{shape.heads}-q{shape.q_len}-prefix{shape.prefix}-{shape.tree}"


def of_version(version: Version) -> str:
    return version.name


@pytest.mark.parametrize("shape", SHAPES, ids=of_shape)
@pytest.mark.parametrize("version", LADDER, ids=of_version)
def test_attention_equals_float64_and_asks_for_its_bytes(version: Version, shape: Any) -> None:
    counts, outputs = emulated(ATTENTION, version, shape, machine=FAST)
    assert_right(ATTENTION, version, shape, counts, outputs)
    if shape in TWICE:
        again, others = emulated(ATTENTION, version, shape, machine=FAST, schedule="reversed")
        assert not again.faults
        assert_same_bits(outputs, others)


@pytest.mark.parametrize("version", VARIANTS[::3], ids=of_version)
def test_tuning_points_equal_float64(version: Version) -> None:
    counts, outputs = emulated(ATTENTION, version, SMALL, machine="numpy", schedule="random:2")
    assert_right(ATTENTION, version, SMALL, counts, outputs)


def architectures() -> list[Any]:
    """The first and the last version on every architecture, those between on two, in turn."""
    others = [name for name in GPUS.values() if name != "H200"]
    found = []
    for k, version in enumerate(LADDER):
        chosen = others if version in (LADDER[0], LADDER[-1]) else [others[k % len(others)]]
        found += [pytest.param(version, gpu, id=f"{version.name}-{gpu}") for gpu in ("H200", *chosen)]
    return found


@pytest.mark.parametrize(("version", "gpu"), architectures())
def test_attention_on_every_architecture(version: Version, gpu: str) -> None:
    """The PTX differs by architecture, what it does not; on the machine that needs no compiler."""
    counts, outputs = emulated(ATTENTION, version, SMALL, gpu, machine="numpy", schedule="random:3")
    assert_right(ATTENTION, version, SMALL, counts, outputs, gpu)
    for machine in MACHINES[1:] if gpu == "H200" else ():
        counted, others = emulated(ATTENTION, version, SMALL, gpu, machine=machine)
        assert counted == counts
        assert_same_bits(outputs, others)


@pytest.mark.parametrize("version", LADDER, ids=of_version)
def test_unique_bytes_are_the_work_that_the_study_states(version: Version) -> None:
    """q, kv and mask once, out and lse once: every key is seen by some node, itself. Partial results go out and come back."""
    counts, outputs = emulated(ATTENTION, version, TWO_REQUESTS, machine=FAST)
    assert_right(ATTENTION, version, TWO_REQUESTS, counts, outputs)
    buffers = ATTENTION.buffers_of(version, TWO_REQUESTS, find_gpu("H200"))
    scratch = sum(np.dtype(b.dtype).itemsize * math.prod(b.shape) for b in buffers.values() if isinstance(b, Scratch))
    assert counts.unique_bytes == ATTENTION.work(TWO_REQUESTS).bytes + 2 * scratch


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("n", [1, 31, 256, 1001, 4096])
@pytest.mark.parametrize("version", SAXPY.versions, ids=of_version)
def test_saxpy(version: Version, n: int, machine: str) -> None:
    shape = SAXPY.make_shape(n=n)
    counts, outputs = emulated(SAXPY, version, shape, machine=machine)
    assert_right(SAXPY, version, shape, counts, outputs)
    assert counts.unique_bytes == counts.asked_bytes == 12 * n  # each byte is asked for once
    assert counts.flops == SAXPY.work(shape).flops
    assert_same_bits(outputs, emulated(SAXPY, version, shape, machine=machine, schedule="reversed")[1])
