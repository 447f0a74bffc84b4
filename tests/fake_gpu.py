"""A GPU made of Python, behind the `Device` protocol. Time is virtual: a launch moves the clock by what the kernel is
said to take. In another process it is chosen by PERFLAB_DEVICE=fake_gpu:from_environment, with what it is in
PERFLAB_FAKE_GPU, as JSON: the keyword arguments of FakeGpu, kernels as {part of the entry's name: {Kernel's fields}}.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perflab.device import DeviceFault, HostArray
from perflab.errors import PerflabError
from perflab.timing import HOLD_SECONDS

LAUNCH_GAP_SECONDS = 5e-6
SM_HZ = 1.98e9


@dataclass
class Kernel:
    """How a fake kernel behaves.

    compute: "module:function" of (grid, block, arguments, dynamic_shared), writes into arrays; None writes nothing
    does:    "" or what goes wrong when it runs: "fault", "die" (the process is killed), "hang", "wait" (for the GPU)
    drift:   how much longer each launch takes than the one before, as a fraction of the first
    slower_at_first: the first launch takes so many times longer, the next ones ever less: clocks that rise
    """

    compute: str | None = None
    seconds: float = 1e-4
    noise: float = 0.0
    does: str = ""
    slower_at_first: float = 1.0
    drift: float = 0.0
    launches: int = 0

    def run(self, *arguments: Any) -> None:
        if self.compute:
            module, _, name = self.compute.partition(":")
            getattr(importlib.import_module(module), name)(*arguments)

    def next_seconds(self, chance: random.Random) -> float:
        extra = (self.slower_at_first - 1) * math.exp(-self.launches / 20)
        self.launches += 1
        return self.seconds * (1 + extra + self.drift * self.launches) * (1 + self.noise * chance.uniform(-1, 1))


class FakeGpu:
    """See the module. `log` lists what was asked for, in order: ("fill",), ("launch", entry), ("record",) …"""

    def __init__(
        self, kernels: dict[str, Any] | None = None, name: str = "NVIDIA H200", capability: str = "9.0",
        memory_bytes: int = 10**9, l2_bytes: int = 1 << 16, throttled_hz: float = 0.0,
    ) -> None:
        tools = {"perflab_empty": Kernel(seconds=1e-6), "perflab_read": Kernel(seconds=3e-5)}
        given = {part: k if isinstance(k, Kernel) else Kernel(**k) for part, k in (kernels or {}).items()}
        self.kernels = {**tools, **given}
        self.name, self.capability, self.l2_bytes = name, capability, l2_bytes
        self.memory_bytes, self.used_bytes = memory_bytes, 0
        self.now, self.chance = 0.0, random.Random(7)
        self.log: list[tuple[Any, ...]] = []
        self.hz = throttled_hz or SM_HZ
        self.host: dict[int, HostArray] = {}
        self.flag: np.ndarray | None = None  # of the hold that keeps the stream busy
        self.broken = ""
        self.cubins: list[bytes] = []

    def describe(self) -> dict[str, Any]:
        attributes = {"name": self.name, "capability": self.capability, "sm_count": 132, "l2_bytes": self.l2_bytes}
        return {"name": self.name, "uuid": "GPU-fake", "capability": self.capability, "driver": "580.0", "cuda": "13.0",
                "power_limit_watts": 700.0, "packages": {"numpy": np.__version__}, "attributes": attributes}

    def upload(self, array: np.ndarray) -> np.ndarray:
        if array.nbytes > self.memory_bytes:
            raise PerflabError(f"a buffer of {array.nbytes:,} B does not fit: the GPU has {self.memory_bytes:,} B free")
        return np.array(array)

    def adopt(self, array: Any) -> np.ndarray:
        return np.from_dlpack(array)

    def on_stream(self, address: int) -> contextlib.AbstractContextManager[None]:
        self.log.append(("stream", address))
        return contextlib.nullcontext()

    def allocate(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        return self.upload(np.empty(tuple(shape), dtype))

    def download(self, buffer: np.ndarray) -> np.ndarray:
        self.synchronize()
        return buffer.copy()

    def fill(self, buffer: np.ndarray, byte: int) -> None:
        self.log.append(("fill", buffer.nbytes))
        self.now += 2e-5

    def one_allocation_each(self) -> None:
        self.log.append(("no pool",))

    def load(self, cubin: bytes, entry: str) -> str:
        self.cubins.append(cubin)
        return entry

    def launcher(
        self, function: str, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any], dynamic_shared: int
    ) -> Callable[[], None]:
        kernel = next((k for part, k in self.kernels.items() if part in function), Kernel())

        def launch() -> None:
            self.log.append(("launch", function))
            if function in ("perflab_hold", "perflab_clock"):
                self._tool(function, int(arguments[0]))
                return
            self._act(kernel)
            if told := os.environ.get("PERFLAB_FAKE_LAUNCHES"):  # what a profiler sees
                with open(told, "a") as file:
                    file.write(json.dumps({"entry": function, "grid": list(grid), "block": list(block)}) + "\n")
            kernel.run(grid, block, arguments, dynamic_shared)
            gap = 0.0 if self.is_held() else LAUNCH_GAP_SECONDS  # queued work starts without the host
            self.now += gap + kernel.next_seconds(self.chance) * SM_HZ / self.hz

        return launch

    def host_array(self, dtype: str, count: int) -> HostArray:
        made = HostArray(np.zeros(count, dtype), np.uint64(4096 * (1 + len(self.host))))
        self.host[int(made.address)] = made
        return made

    def is_held(self) -> bool:
        return self.flag is not None and self.flag[0] == 0

    def _tool(self, function: str, address: int) -> None:
        array = self.host[address // 4096 * 4096].array
        if function == "perflab_hold":
            self.flag = array
        else:
            array[address % 4096 // 8 :][:2] = int(self.now * self.hz), int(self.now * 1e9)

    def _act(self, kernel: Kernel) -> None:
        if kernel.does == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if kernel.does == "wait" and self.is_held():
            assert self.flag is not None
            self.flag[0] = -1  # the hold ends by itself
            self.now += HOLD_SECONDS
        if kernel.does == "hang":
            time.sleep(10_000)
        if kernel.does == "fault":
            self.broken = "the kernel: a thread read or wrote outside its memory (fake)"

    def new_event(self) -> dict[str, float]:
        return {}

    def record(self, event: dict[str, float]) -> None:
        self.log.append(("record",))
        event["at"] = self.now

    def seconds_between(self, start: dict[str, float], stop: dict[str, float]) -> float:
        self.synchronize()
        return stop["at"] - start["at"]

    def synchronize(self) -> None:
        if self.broken:
            raise DeviceFault(self.broken)

    def clocks(self) -> dict[str, Any]:
        throttle = [] if self.hz == SM_HZ else ["power"]
        return {"sm_hz": self.hz, "memory_hz": 3.2e9, "temperature_celsius": 40, "power_watts": 300.0, "throttle": throttle}


def from_environment() -> FakeGpu:
    """The fake that PERFLAB_FAKE_GPU describes."""
    return FakeGpu(**json.loads(os.environ.get("PERFLAB_FAKE_GPU", "{}")))


# ---------------------------------------------------------------- what fake kernels compute
def saxpy(grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any], dynamic_shared: int) -> None:
    """y[i] = a x[i] + b[i], for the n of its arguments; so types and order of all arguments are seen."""
    x, b, y, a, n = arguments
    assert (type(a), type(n)) == (np.float32, np.int32), "a scalar of another type than the kernel's parameter"
    assert grid[0] * block[0] >= n
    y[:n] = a * x[:n] + b[:n]


def half_saxpy(grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any], dynamic_shared: int) -> None:
    """Leaves the second half of y unwritten."""
    x, b, y, a, n = arguments
    y[: n // 2] = a * x[: n // 2] + b[: n // 2]


def spoiling_saxpy(grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any], dynamic_shared: int) -> None:
    """Right, but then overwrites its input: the next version must not see that."""
    saxpy(grid, block, arguments, dynamic_shared)
    arguments[0][:] = 0
