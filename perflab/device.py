"""A CUDA GPU: buffers, load this very cubin, launch, events, clocks. The only module that calls CuPy and NVML.

`Device` is what the rest of perflab asks of a GPU; it is small, so that tests put a fake in its place. Nothing is
compiled here: a cubin made elsewhere is loaded as it is.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from perflab.errors import PerflabError

if TYPE_CHECKING:
    import numpy as np

    from perflab.gpus import Gpu

VARIABLE = "PERFLAB_DEVICE"
ELSEWHERE = "measure on another machine: perflab measure STUDY --on ssh://user@box, or perflab pack STUDY -o FILE"
DEFAULT_SHARED_BYTES = 48 * 1024  # more of it a block must be asked for, kernel by kernel


class DeviceFault(PerflabError):
    """The GPU stopped a kernel. The process's GPU context is lost with it: go on in a fresh process."""


class Device(Protocol):
    """What perflab asks of a GPU. Buffers, functions and events are opaque; work is queued in order on one stream."""

    def describe(self) -> dict[str, Any]:
        """name, uuid, capability ('9.0'), driver, cuda, power_limit_watts, packages; attributes: for gpus.from_device."""

    def upload(self, array: np.ndarray) -> Any:
        """A new buffer on the GPU with the array's values. PerflabError if the memory does not suffice."""

    def download(self, buffer: Any) -> np.ndarray:
        """The buffer's values; waits for the work queued before."""

    def fill(self, buffer: Any, byte: int) -> None:
        """Queue: set every byte of the buffer."""

    def load(self, cubin: bytes, entry: str) -> Any:
        """The kernel of that mangled name. PerflabError if this GPU cannot run the cubin or the name is not in it."""

    def launcher(
        self, function: Any, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any], dynamic_shared: int
    ) -> Callable[[], None]:
        """A function that queues this launch. arguments: buffers, and numpy scalars of the parameter's exact type."""

    def attributes(self, function: Any) -> dict[str, int]:
        """registers and local_bytes a thread, static_shared_bytes and max_threads_per_block, as the driver says."""

    def blocks_per_sm(self, function: Any, threads: int, dynamic_shared: int) -> int:
        """Blocks of that size that one SM holds at a time, by the driver's own occupancy calculation."""

    def new_event(self) -> Any:
        """An event to record."""

    def record(self, event: Any) -> None:
        """Queue: note the time when the work before is done."""

    def seconds_between(self, start: Any, stop: Any) -> float:
        """GPU time from one recorded event to the other; waits for the second."""

    def synchronize(self) -> None:
        """Wait for all queued work. DeviceFault if a kernel failed."""

    def clocks(self) -> dict[str, Any]:
        """sm_hz, memory_hz, temperature_celsius, power_watts, throttle (reasons) now; None where nothing tells."""


def open_device() -> Device:
    """The GPU of this machine, or what PERFLAB_DEVICE="module:factory" makes. PerflabError says what is missing."""
    named = os.environ.get(VARIABLE, "").strip()
    if not named:
        return CupyDevice()
    module, _, factory = named.partition(":")
    try:
        return getattr(importlib.import_module(module), factory)()
    except (ImportError, AttributeError, ValueError) as error:
        raise PerflabError(f"{VARIABLE}={named} names no device: {error}. It takes module:factory") from error


def describe_task() -> dict[str, Any]:
    """The worker's task "describe": what GPU is here."""
    return open_device().describe()


def local_gpu() -> Gpu | None:
    """The GPU of this machine as `gpus.from_device` sees it; None where there is none that CuPy can use."""
    from perflab.gpus import from_device

    try:
        return from_device(open_device().describe()["attributes"])
    except PerflabError:
        return None


def poisoned(device: Device, shape: Sequence[int], dtype: str) -> Any:
    """A new buffer in which every value still says that nobody wrote it."""
    from perflab.check import poison

    return device.upload(poison(tuple(shape), dtype))


# ---------------------------------------------------------------- the real one
class CupyDevice:
    """The current CUDA device of CuPy 13 or later (CUDA_VISIBLE_DEVICES chooses it)."""

    def __init__(self) -> None:
        try:
            import cupy
        except ImportError as error:
            raise PerflabError(
                f"CuPy cannot be imported ({error}), and no GPU is used without it. On the GPU machine: "
                f'pip install "cupy-cuda13x>=14.0" nvidia-ml-py; or {ELSEWHERE}'
            ) from error
        self._cupy = cupy
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except Exception as error:
            raise PerflabError(f"no GPU can be used here: {_without_gpu(str(error))}; or {ELSEWHERE}") from error
        if not count:
            raise PerflabError(f"the driver shows no GPU; look at nvidia-smi and CUDA_VISIBLE_DEVICES, or {ELSEWHERE}")
        self._nvml = _Nvml(cupy.cuda.Device().pci_bus_id)

    def describe(self) -> dict[str, Any]:
        runtime = self._cupy.cuda.runtime
        device = self._cupy.cuda.Device()
        given = runtime.getDeviceProperties(device.id)
        name = given["name"].decode() if isinstance(given["name"], bytes) else given["name"]
        capability = f"{given['major']}.{given['minor']}"
        attributes = {field: given.get(key) for field, key in _PROPERTIES.items()}
        attributes |= {"name": name, "capability": capability}
        attributes["warps_per_sm"] = given["maxThreadsPerMultiProcessor"] // 32
        attributes["clock_hz"] = self._nvml.describe().get("clock_hz") or given.get("clockRate", 0) * 1e3 or None
        driver_api = runtime.driverGetVersion()
        return {
            "name": name,
            "uuid": self._nvml.describe().get("uuid") or _uuid(given.get("uuid")),
            "capability": capability,
            "attributes": attributes,
            "cuda": f"{driver_api // 1000}.{driver_api % 1000 // 10}",
            "driver": self._nvml.describe().get("driver") or _driver_of_proc(),
            "power_limit_watts": self._nvml.describe().get("power_limit_watts"),
            "packages": packages("cupy-cuda13x", "cupy-cuda12x", "cupy", "numpy", "nvidia-ml-py"),
        }

    def upload(self, array: np.ndarray) -> Any:
        with self._in_words(f"a buffer of {array.nbytes:,} B"):
            return self._cupy.array(array, order="C")

    def download(self, buffer: Any) -> np.ndarray:
        with self._in_words("the copy back"):
            return buffer.get()

    def fill(self, buffer: Any, byte: int) -> None:
        buffer.data.memset_async(byte, buffer.nbytes, self._cupy.cuda.get_current_stream())

    def load(self, cubin: bytes, entry: str) -> Any:
        with tempfile.TemporaryDirectory(prefix="perflab-") as folder, self._in_words(f"loading {entry}"):
            file = Path(folder) / "kernel.cubin"
            file.write_bytes(cubin)
            function = self._cupy.RawModule(path=str(file)).get_function(entry)
            assert function.kernel.ptr  # CuPy loads late: before the file goes, and before any clock starts
            return function

    def launcher(
        self, function: Any, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any], dynamic_shared: int
    ) -> Callable[[], None]:
        self._check_launch(function, block, dynamic_shared)
        grid3, block3, given = tuple(grid), tuple(block), tuple(arguments)
        in_words = self._in_words

        def launch() -> None:
            try:
                function(grid3, block3, given, shared_mem=dynamic_shared)
            except Exception:
                with in_words(f"launching {function.name}"):
                    raise

        return launch

    def _check_launch(self, function: Any, block: Sequence[int], dynamic_shared: int) -> None:
        """What the driver would refuse with "invalid value", in words; and the leave to use over 48 KiB."""
        threads, limit = block[0] * block[1] * block[2], function.max_threads_per_block
        if threads > limit:
            raise PerflabError(f"{function.name}: a block of {threads:,} threads; this kernel's registers and "
                               f"__launch_bounds__ allow {limit:,} on this GPU")  # fmt: skip
        given = self._cupy.cuda.runtime.getDeviceProperties(self._cupy.cuda.Device().id)
        static, most = function.shared_size_bytes, given["sharedMemPerBlockOptin"]
        if static + dynamic_shared > most:
            raise PerflabError(f"{function.name}: {dynamic_shared:,} B of dynamic and {static:,} B of static shared "
                               f"memory; this GPU allows a block {most:,} B together")  # fmt: skip
        if static + dynamic_shared > DEFAULT_SHARED_BYTES:
            function.max_dynamic_shared_size_bytes = max(dynamic_shared, function.max_dynamic_shared_size_bytes)

    def attributes(self, function: Any) -> dict[str, int]:
        return {
            "registers": function.num_regs,
            "local_bytes": function.local_size_bytes,
            "static_shared_bytes": function.shared_size_bytes,
            "max_threads_per_block": function.max_threads_per_block,
        }

    def blocks_per_sm(self, function: Any, threads: int, dynamic_shared: int) -> int:
        self._check_launch(function, (threads, 1, 1), dynamic_shared)
        driver = self._cupy.cuda.driver
        return driver.occupancyMaxActiveBlocksPerMultiprocessor(function.kernel.ptr, threads, dynamic_shared)

    def new_event(self) -> Any:
        return self._cupy.cuda.Event()

    def record(self, event: Any) -> None:
        event.record()

    def seconds_between(self, start: Any, stop: Any) -> float:
        with self._in_words("the kernel"):
            stop.synchronize()
            return self._cupy.cuda.get_elapsed_time(start, stop) * 1e-3

    def synchronize(self) -> None:
        with self._in_words("the kernel"):
            self._cupy.cuda.Device().synchronize()

    def clocks(self) -> dict[str, Any]:
        return self._nvml.clocks()

    @contextlib.contextmanager
    def _in_words(self, what: str) -> Iterator[None]:
        """CUDA's errors as PerflabError; one that ends the context as DeviceFault."""
        cuda = self._cupy.cuda
        try:
            yield
        except cuda.memory.OutOfMemoryError as error:
            free, total = cuda.runtime.memGetInfo()
            raise PerflabError(f"{what} does not fit: the GPU has {free:,} of {total:,} B free. Take a smaller shape, "
                               "or end what else uses this GPU") from error  # fmt: skip
        except (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError) as error:
            for code, (fatal, words) in _CUDA_WORDS.items():
                if code in str(error):
                    raise (DeviceFault if fatal else PerflabError)(f"{what}: {words} ({error})") from error
            raise DeviceFault(f"{what}: {error}") from error


_PROPERTIES = {
    "sm_count": "multiProcessorCount",
    "l2_bytes": "l2CacheSize",
    "memory_bytes": "totalGlobalMem",
    "threads_per_sm": "maxThreadsPerMultiProcessor",
    "blocks_per_sm": "maxBlocksPerMultiProcessor",
    "registers_per_sm": "regsPerMultiprocessor",
    "registers_per_block": "regsPerBlock",
    "threads_per_block": "maxThreadsPerBlock",
    "shared_per_sm_bytes": "sharedMemPerMultiprocessor",
    "shared_per_block_bytes": "sharedMemPerBlock",
    "shared_per_block_optin_bytes": "sharedMemPerBlockOptin",
    "shared_reserved_bytes": "reservedSharedMemPerBlock",
}
"""Field of Gpu or Limits -> CUDA's device property."""

_CUDA_WORDS = {
    "ILLEGAL_ADDRESS": (True, "a thread read or wrote outside its memory"),
    "IllegalAddress": (True, "a thread read or wrote outside its memory"),
    "MISALIGNED_ADDRESS": (True, "a thread read or wrote a vector at an address that is no multiple of its size"),
    "MisalignedAddress": (True, "a thread read or wrote a vector at an address that is no multiple of its size"),
    "LAUNCH_TIMEOUT": (True, "the display's watchdog ended a kernel that ran too long"),
    "ILLEGAL_INSTRUCTION": (True, "an instruction this GPU does not have"),
    "OUT_OF_MEMORY": (False, "the GPU's memory is used up"),
    "NO_BINARY_FOR_GPU": (False, "the cubin is of another architecture than this GPU"),
    "LAUNCH_OUT_OF_RESOURCES": (False, "the block wants more registers or threads than an SM has"),
    "NOT_FOUND": (False, "the cubin holds no kernel of that name"),
    "INVALID_VALUE": (False, "the driver refuses grid, block, shared memory or an argument"),
}
"""Part of CUDA's error name -> (whether the context is lost, what it means)."""


def _without_gpu(error: str) -> str:
    if "InsufficientDriver" in error or "insufficient" in error:
        return "there is no NVIDIA driver, or one too old for this CuPy (CUDA 13 wants driver 580 or newer)"
    return f"CUDA says {error}; look at nvidia-smi and CUDA_VISIBLE_DEVICES"


def packages(*names: str) -> dict[str, str]:
    """The versions of those of the named packages that are installed."""
    found = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _uuid(raw: Any) -> str | None:
    """CUDA's 16 bytes as nvidia-smi writes them; None where CuPy's copy ends early, at a zero byte."""
    if not isinstance(raw, bytes) or len(raw) < 16:
        return None
    text = raw[:16].hex()
    return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _driver_of_proc() -> str | None:
    with contextlib.suppress(OSError):
        words = Path("/proc/driver/nvidia/version").read_text().split()
        return next((word for word in words if word.count(".") >= 1 and word[0].isdigit()), None)
    return None


# ---------------------------------------------------------------- clocks
_THROTTLE = {
    0x1: "idle", 0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "thermal (software)", 0x40: "thermal (hardware)", 0x80: "power brake", 0x100: "display clocks",
}  # fmt: skip
"""NVML's bits of why a clock is not higher."""


class _Nvml:
    """The management library's view of one GPU. Without it, or where it refuses a question, the answer is None."""

    def __init__(self, pci_bus_id: str) -> None:
        self._library: Any = None
        try:
            import pynvml
        except ImportError:
            self.missing: str | None = "nvidia-ml-py is not installed: no clocks"
            return
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id.encode())
        except pynvml.NVMLError as error:
            self.missing = f"NVML: {error}"
            return
        self._library, self.missing = pynvml, None

    def _ask(self, function: str, *arguments: Any, scale: float = 1) -> Any:
        if self._library is None or not hasattr(self._library, function):
            return None
        try:
            answer = getattr(self._library, function)(*arguments)
        except self._library.NVMLError:  # many a virtual or consumer GPU answers only some questions
            return None
        if isinstance(answer, bytes):  # pynvml before 11.5
            return answer.decode()
        return answer * scale if isinstance(answer, (int, float)) else answer

    def describe(self) -> Mapping[str, Any]:
        if self._library is None:
            return {}
        return {
            "driver": self._ask("nvmlSystemGetDriverVersion"),
            "uuid": self._ask("nvmlDeviceGetUUID", self._handle),
            "clock_hz": self._ask("nvmlDeviceGetMaxClockInfo", self._handle, 1, scale=1e6),
            "power_limit_watts": self._ask("nvmlDeviceGetEnforcedPowerLimit", self._handle, scale=1e-3),
        }

    def clocks(self) -> dict[str, Any]:
        names = ("sm_hz", "memory_hz", "temperature_celsius", "power_watts", "throttle")
        if self._library is None:
            return dict.fromkeys(names) | {"missing": self.missing}
        handle = self._handle
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:  # the name before driver 535
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return {
            "sm_hz": self._ask("nvmlDeviceGetClockInfo", handle, 1, scale=1e6),
            "memory_hz": self._ask("nvmlDeviceGetClockInfo", handle, 2, scale=1e6),
            "temperature_celsius": self._ask("nvmlDeviceGetTemperature", handle, 0),
            "power_watts": self._ask("nvmlDeviceGetPowerUsage", handle, scale=1e-3),
            "throttle": None if bits is None else [words for bit, words in _THROTTLE.items() if bits & bit],
        }
