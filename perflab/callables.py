"""`pl.time(fn)`: any callable that queues GPU work, such as a Triton, PyTorch or CuPy function, on the engine that times
kernels. It runs in this process: a kernel that reads out of bounds or hangs takes the notebook's GPU context with it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perflab import tables
from perflab.compile import Binary, Source, compile_source
from perflab.device import Device, open_device
from perflab.errors import PerflabError
from perflab.gpus import from_device
from perflab.origins import Origin
from perflab.records import canonical_gpu
from perflab.tables import Shown, Table
from perflab.timing import TOOLS_SOURCE, Stopwatch, Timed, Timing, TimingSpec

NOT_ISOLATED = "not fault-isolated: it ran in this process, so a kernel that faults or hangs ends this notebook's GPU context"
WAITED = "it waits for the GPU itself, so the launch gap is inside"


@dataclass(frozen=True)
class CallableTiming(Timed, Shown):
    """A callable's cold and hot times on one GPU, the empty kernel beside them; nothing of it was checked or recorded."""

    label: str
    gpu: str
    timing: Timing

    def table(self) -> Table:
        """A row cold, a row hot; the empty kernel, and what one must know, below."""
        rows = []
        for name, series in (("cold L2", self.timing.cold), ("hot L2", self.timing.hot)):
            rows.append((name, tables.seconds(series.median_seconds), series.interval_words(), len(series.samples_seconds),
                         series.stopped))
        timing = self.timing
        empty = (f"an empty kernel measured the same way: {tables.seconds(timing.empty_launch_seconds)} cold, "
                 f"{tables.seconds(timing.empty_hot_seconds)} hot, not subtracted")
        notes = [empty, NOT_ISOLATED, *([] if timing.held else [WAITED])]
        return Table(f"{self.label} on {self.gpu}", ("", "median", "95 % interval", "samples", "stopped"), rows,
                     str(Origin("measured", f"{self.gpu}, {timing.method}, nothing checked")), notes)


def time(fn: Callable[..., object], *, inputs: Sequence[Any] = (), spec: TimingSpec | None = None, label: str = "",
         tools: Binary | None = None) -> CallableTiming:
    """Time fn(*inputs) on the current stream: cold and hot, with the launch gap removed.

    inputs: numpy arrays, which are uploaded, or arrays of any library that speaks DLPack and lie on the GPU; fn gets CuPy
    arrays. tools: the timing kernels, already compiled for this GPU; without them they are compiled here. PerflabError where
    there is no GPU; what fn raises comes through.
    """
    if not callable(fn):
        raise PerflabError(f"pl.time wants a function that queues GPU work, such as lambda: kernel[grid](x, y); got {fn!r}")
    device = open_device()
    gpu = from_device(device.describe()["attributes"])
    if tools is None:
        tools = compile_source(Source("timing_tools.cu", TOOLS_SOURCE), gpu.architecture)
    given = [_adopted(device, array) for array in inputs]
    with _one_stream(device):
        fn(*given)  # compiles, loads and allocates: before any clock starts
        device.synchronize()
        timing = Stopwatch(device, tools.cubin).time(lambda: void(fn(*given)), spec or TimingSpec())
    return CallableTiming(label or getattr(fn, "__name__", type(fn).__name__), canonical_gpu(gpu.name), timing)


def void(_: object) -> None:
    """Drop a result: a launch gives none."""


def _adopted(device: Device, array: Any) -> Any:
    """The array as the device's own kind: numpy uploaded, another library's taken over without a copy."""
    if type(array).__module__.partition(".")[0] == "numpy":
        return device.upload(array)
    if not hasattr(array, "__dlpack__"):
        raise PerflabError(f"inputs are arrays: numpy, or of a library that speaks DLPack; got {type(array).__name__}")
    try:
        return device.adopt(array)
    except Exception as error:
        raise PerflabError(f"an input of type {type(array).__name__} cannot be taken over by DLPack: {error}. It must lie on "
                           "this GPU, be detached from gradients, and have a dtype that CuPy knows") from error


def _one_stream(device: Device) -> contextlib.AbstractContextManager[Any]:
    """The clock's events go where fn's work goes: PyTorch's current stream, where that is not the default one."""
    torch = sys.modules.get("torch")
    address = torch.cuda.current_stream().cuda_stream if torch is not None and torch.cuda.is_available() else 0
    return device.on_stream(address) if address else contextlib.nullcontext()
