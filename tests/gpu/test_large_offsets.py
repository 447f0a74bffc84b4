"""Offsets over 2^31 on a real GPU: every version of the ladder reads and writes the far end of buffers of 9 GB and more.

Where the GPU machine has no compiler, make the plans elsewhere:

    python tests/gpu/test_large_offsets.py H200 large.json                    # here
    PERFLAB_GPU_LARGE=large.json python -m pytest tests/gpu/test_large_offsets.py     # there; or, without pytest:
    PERFLAB_GPU_LARGE=large.json python tests/gpu/test_large_offsets.py
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from perflab.check import check_outputs
from perflab.device import CupyDevice
from perflab.errors import PerflabError
from perflab.gpus import gpu
from perflab.measuring import Bench
from perflab.planning import Plan, PlanItem, make_plan
from perflab.studies import Study, Uniform, load_study

FOLDER = Path(__file__).parent.parent.parent / "kernels" / "verify_attention"
# The cache of many requests; the queries, outputs and partial sums of many rows. Prefix 57,000: what the naive version reaches.
SIZES = ({"batch": 68, "heads": 1, "q_len": 1, "prefix": 57_000}, {"batch": 510, "heads": 128, "q_len": 65, "prefix": 0})
NEEDED_BYTES = 60 * 10**9


def large_plan(study: Study, gpu_name: str) -> Plan:
    """Cubins and launches of the ladder at these shapes."""
    ladder = [version.name for version in study.versions if version.shapes is None]
    return make_plan(study, FOLDER, gpu(gpu_name), ladder, [study.make_shape(**sizes) for sizes in SIZES], timed=False)


# ---------------------------------------------------------------- inputs without a kernel: a block, each request a row further
def block_of(study: Study, shape: Any, name: str) -> np.ndarray:
    """Rows [rows of a request + requests - 1, 576]: request b has those from row b on, so that no two are alike."""
    recipe = study.inputs(shape)[name]
    assert isinstance(recipe, Uniform)
    rows = math.prod(recipe.shape[1:-1])
    return Uniform((rows + shape.batch - 1, recipe.shape[-1])).make(study.seed, name)


def spread(device: CupyDevice, block: np.ndarray, shape: tuple[int, ...]) -> Any:
    """The block on the GPU as [batch, …, 576], by copies from memory to memory."""
    made, given = device.allocate(shape, "float32"), device.upload(block)
    size, row = 4 * math.prod(shape[1:]), 4 * shape[-1]
    for request in range(shape[0]):
        (made.data + request * size).copy_from_device(given.data + request * row, size)
    return made


def far_end(shape: Any) -> list[int]:
    """Requests looked at: the first, those around the 2^31st element of the largest input, and the last."""
    elements = max(shape.keys, shape.q_len * shape.heads) * 576
    crossing = 2**31 // elements
    assert 0 < crossing < shape.batch - 1, f"{shape}: no offset passes 2^31"
    return sorted({0, crossing, crossing + 1, shape.batch - 1})


def checked(device: CupyDevice, study: Study, plan: Plan) -> Iterator[tuple[str, bool]]:
    """A line for each version and shape, and whether the outputs of the far requests are float64's."""
    for sizes in SIZES:
        shape = study.make_shape(**sizes)
        small = study.make_shape(**{**sizes, "batch": 1})
        blocks = {name: block_of(study, shape, name) for name in ("q", "kv")}
        inputs = {name: spread(device, block, study.inputs(shape)[name].shape) for name, block in blocks.items()}
        visible = study.inputs(shape)["visible"].make(study.seed, "visible")
        inputs["visible"] = device.upload(visible)
        wanted = {}
        for request in far_end(shape):
            own = {name: block[request : request + len(block) - shape.batch + 1].reshape(1, *inputs[name].shape[1:])
                   for name, block in blocks.items()}
            wanted[request] = study.reference(small, {**own, "visible": visible[request : request + 1]})
        for item in (item for item in plan.items if study.make_shape(**item.shape) == shape):
            yield from of_item(device, study, plan, item, inputs, small, wanted)


def of_item(device: CupyDevice, study: Study, plan: Plan, item: PlanItem, inputs: dict[str, Any], small: Any,
            wanted: dict[int, Any]) -> Iterator[tuple[str, bool]]:
    """Run one version on these inputs and compare the requests in `wanted`, each as a shape of one request."""
    memory = dict(inputs)
    for name, buffer in item.buffers.items():
        memory[name] = device.allocate(buffer["shape"], buffer["dtype"])
        device.fill(memory[name], 0xFF)  # a NaN in every float
    Bench(device, study)._work(item, plan.binaries, [memory]).run(0)
    device.synchronize()
    elements = max(math.prod(array.shape) for array in memory.values())
    for request, want in wanted.items():
        got = {name: device.download(memory[name][request : request + 1]) for name in want}
        check = check_outputs(study, item.version, small, got, want)
        said = "; ".join(f"{one.output} {one.measure} {getattr(one, one.measure):.1e} {one.problem}".strip()
                         for one in check.outputs)
        name = f"{item.version}, request {request} of {item.shape['batch']}, largest buffer {elements / 2**31:.2f} x 2^31"
        yield f"{'right' if check.passed else 'WRONG'}  {name}: {said}", check.passed


def plan_and_study() -> tuple[Study, Plan]:
    """The plan that PERFLAB_GPU_LARGE names, else one made here."""
    study, named = load_study(FOLDER), os.environ.get("PERFLAB_GPU_LARGE")
    if named:
        return study, Plan.from_dict(json.loads(Path(named).read_text()), FOLDER)
    return study, large_plan(study, CupyDevice().describe()["name"])


def test_far_requests_are_right() -> None:
    import pytest

    try:
        device = CupyDevice()
    except PerflabError as error:
        pytest.skip(f"no GPU: {error}")
    free, _ = device._cupy.cuda.runtime.memGetInfo()
    if free < NEEDED_BYTES:
        pytest.skip(f"{free:,} B of GPU memory are free; {NEEDED_BYTES:,} B are needed")
    lines = list(checked(device, *plan_and_study()))
    assert lines and all(passed for _, passed in lines), [line for line, passed in lines if not passed]


if __name__ == "__main__":
    if sys.argv[1:]:
        Path(sys.argv[2]).write_text(json.dumps(large_plan(load_study(FOLDER), sys.argv[1]).to_dict()))
        sys.exit()
    results = []
    for words, passed_here in checked(CupyDevice(), *plan_and_study()):
        print(words, flush=True)
        results.append(passed_here)
    sys.exit(0 if results and all(results) else 1)
