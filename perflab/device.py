"""A CUDA GPU: buffers, load this very cubin, launch, events, clocks. The only module that calls CuPy and NVML.

`Device` is what the rest of perflab asks of a GPU; it is small, so that tests put a fake in its place. Nothing is
compiled here: a cubin made elsewhere is loaded as it is.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, eq=False)
class HostArray:
    """Memory of the host that kernels see while they run: as a numpy array here, by address (uint64) there."""

    array: np.ndarray
    address: Any


class Device(Protocol):
    """What perflab asks of a GPU. Buffers, functions and events are opaque; work is queued in order on one stream."""

    def describe(self) -> dict[str, Any]:
        """name, uuid, capability ('9.0'), driver, cuda, power_limit_watts, packages; attributes: for gpus.from_device."""

    def upload(self, array: np.ndarray) -> Any:
        """A new buffer on the GPU with the array's values. PerflabError if the memory does not suffice."""

    def adopt(self, array: Any) -> Any:
        """An array of another library that speaks DLPack and lies on this GPU, as a buffer, without a copy."""

    def on_stream(self, address: int) -> contextlib.AbstractContextManager[Any]:
        """While it lasts, work is queued on another library's stream."""

    def allocate(self, shape: Sequence[int], dtype: str) -> Any:
        """A new buffer whose values are not set. PerflabError if the memory does not suffice."""

    def download(self, buffer: Any) -> np.ndarray:
        """The buffer's values; waits for the work queued before."""

    def fill(self, buffer: Any, byte: int) -> None:
        """Queue: set every byte of the buffer."""

    def one_allocation_each(self) -> None:
        """From here on every buffer is an allocation of its own, so that a tool sees where each ends: no pool."""

    def load(self, cubin: bytes, entry: str) -> Any:
        """The kernel of that mangled name. PerflabError if this GPU cannot run the cubin or the name is not in it."""

    def launcher(self, function: Any, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any],
                 dynamic_shared: int) -> Callable[[], None]:
        """A function that queues this launch. arguments: buffers, and numpy scalars of the parameter's exact type."""

    def host_array(self, dtype: str, count: int) -> HostArray:
        """Zeroed memory that the host and running kernels both see at once."""

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
    """The GPU of this machine, or what PERFLAB_DEVICE="module:factory" makes (tests). PerflabError says what is missing."""
    named = os.environ.get(VARIABLE, "").strip()
    if not named:
        return CupyDevice()
    module, _, factory = named.partition(":")
    return getattr(importlib.import_module(module), factory)()


def describe_task() -> dict[str, Any]:
    """The worker's task "describe": what GPU is here."""
    return open_device().describe()


def this_gpu() -> Gpu:
    """The GPU of this machine as `gpus.from_device` sees it. PerflabError says what is missing and where else to go."""
    from perflab.gpus import from_device

    return from_device(open_device().describe()["attributes"])


def local_gpu() -> Gpu | None:
    """The GPU of this machine; None where there is none that CuPy can use."""
    try:
        return this_gpu()
    except PerflabError:
        return None


@dataclass(frozen=True)
class _ForeignStream:
    """A stream by its address, in the protocol by which libraries hand theirs on."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


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
            self._nvml = _Nvml(cupy.cuda.Device().pci_bus_id)
        except Exception as error:  # CUDA's own, or what loading its libraries raises
            raise PerflabError(
                f"no GPU can be used here: {error}. CUDA 13 wants an NVIDIA driver 580 or newer; look at nvidia-smi and "
                f"CUDA_VISIBLE_DEVICES, or {ELSEWHERE}"
            ) from error

    def describe(self) -> dict[str, Any]:
        runtime, nvml = self._cupy.cuda.runtime, self._nvml.describe()
        given = runtime.getDeviceProperties(self._cupy.cuda.Device().id)
        named = {"name": given["name"].decode(), "capability": f"{given['major']}.{given['minor']}"}
        properties = {field: given.get(key) for field, key in _PROPERTIES.items()}
        version = runtime.driverGetVersion()
        return {
            **named,
            **{key: nvml[key] for key in ("uuid", "driver", "power_limit_watts")},
            "cuda": f"{version // 1000}.{version % 1000 // 10}",
            "attributes": {**named, **properties, "clock_hz": nvml["clock_hz"]},
            "packages": packages("cupy-cuda13x", "cupy-cuda12x", "cupy", "numpy", "nvidia-ml-py"),
        }

    def upload(self, array: np.ndarray) -> Any:
        with self._in_words(f"a buffer of {array.nbytes:,} B"):
            return self._cupy.array(array, order="C")

    def adopt(self, array: Any) -> Any:
        return self._cupy.from_dlpack(array)

    def on_stream(self, address: int) -> contextlib.AbstractContextManager[Any]:
        return self._cupy.cuda.Stream.from_external(_ForeignStream(address))

    def allocate(self, shape: Sequence[int], dtype: str) -> Any:
        import numpy as np

        with self._in_words(f"a buffer of {np.prod(shape, dtype=object) * np.dtype(dtype).itemsize:,} B"):
            return self._cupy.empty(tuple(shape), dtype)

    def download(self, buffer: Any) -> np.ndarray:
        with self._in_words("the copy back"):
            return buffer.get()

    def fill(self, buffer: Any, byte: int) -> None:
        buffer.data.memset_async(byte, buffer.nbytes, self._cupy.cuda.get_current_stream())

    def one_allocation_each(self) -> None:
        self._cupy.cuda.set_allocator(None)

    def load(self, cubin: bytes, entry: str) -> Any:
        with tempfile.TemporaryDirectory(prefix="perflab-") as folder, self._in_words(f"loading {entry}"):
            file = Path(folder) / "kernel.cubin"
            file.write_bytes(cubin)
            function = self._cupy.RawModule(path=str(file)).get_function(entry)
            assert function.kernel.ptr  # CuPy loads late: before the file goes, and before any clock starts
            return function

    def launcher(self, function: Any, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any],
                 dynamic_shared: int) -> Callable[[], None]:
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
                               f"__launch_bounds__ allow {limit:,} on this GPU")
        given = self._cupy.cuda.runtime.getDeviceProperties(self._cupy.cuda.Device().id)
        static, most = function.shared_size_bytes, given["sharedMemPerBlockOptin"]
        if static + dynamic_shared > most:
            raise PerflabError(f"{function.name}: {dynamic_shared:,} B of dynamic and {static:,} B of static shared "
                               f"memory; this GPU allows a block {most:,} B together")
        if static + dynamic_shared > DEFAULT_SHARED_BYTES:
            function.max_dynamic_shared_size_bytes = max(dynamic_shared, function.max_dynamic_shared_size_bytes)

    def host_array(self, dtype: str, count: int) -> HostArray:
        import numpy as np

        size = count * np.dtype(dtype).itemsize
        memory = self._cupy.cuda.alloc_pinned_memory(size)  # with unified addressing the GPU sees it at the same address
        array = np.frombuffer(memory, dtype, count)
        array[:] = 0
        return HostArray(array, np.uint64(memory.ptr))

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
                               "or end what else uses this GPU") from error
        except (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError) as error:
            name = str(error).partition(":")[0].replace("_", "").upper()
            for part, (fatal, words) in _CUDA_WORDS.items():
                if part in name:
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
    "ILLEGALADDRESS": (True, "a thread read or wrote outside its memory"),
    "MISALIGNEDADDRESS": (True, "a thread read or wrote a vector at an address that is no multiple of its size"),
    "LAUNCHFAILURE": (True, "the kernel ended itself (a trap, a failed assert) or did what the hardware forbids"),
    "LAUNCHFAILED": (True, "the kernel ended itself (a trap, a failed assert) or did what the hardware forbids"),
    "OUTOFMEMORY": (False, "the GPU's memory is used up"),
    "NOBINARYFORGPU": (False, "the cubin is of another architecture than this GPU"),
    "LAUNCHOUTOFRESOURCES": (False, "the block wants more registers or threads than an SM has"),
    "NOTFOUND": (False, "the cubin holds no kernel of that name"),
    "INVALIDVALUE": (False, "the driver refuses grid, block, shared memory or an argument"),
}
"""Part of the error's name, CUDA_ERROR_NOT_FOUND or cudaErrorNotFound -> (whether the context is lost, what it means)."""


def packages(*names: str) -> dict[str, str]:
    """The versions of those of the named packages that are installed."""
    found = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


# ---------------------------------------------------------------- clocks
_THROTTLE = {
    0x1: "idle", 0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "thermal (software)", 0x40: "thermal (hardware)", 0x80: "power brake", 0x100: "display clocks",
}
"""NVML's bits of why a clock is not higher."""


class _Nvml:
    """The management library's view of one GPU. Without it, or where it refuses a question, the answer is None."""

    def __init__(self, pci_bus_id: str) -> None:
        self._library: Any = None
        try:
            import pynvml
        except ImportError:
            self.missing = "nvidia-ml-py is not installed: no clocks, UUID, driver version"
            return
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id.encode())
            self._library = pynvml
        except pynvml.NVMLError as error:
            self.missing = f"NVML: {error}"

    def _ask(self, question: str, *arguments: int, scale: float = 1) -> Any:
        if self._library is None:
            return None
        try:
            answer = getattr(self._library, f"nvmlDeviceGet{question}")(self._handle, *arguments)
        except self._library.NVMLError:  # many a virtual or consumer GPU answers only some questions
            return None
        return answer if isinstance(answer, str) else answer * scale

    def describe(self) -> dict[str, Any]:
        return {
            "driver": self._library and self._library.nvmlSystemGetDriverVersion(),
            "uuid": self._ask("UUID"),
            "clock_hz": self._ask("MaxClockInfo", 1, scale=1e6),
            "power_limit_watts": self._ask("EnforcedPowerLimit", scale=1e-3),
        }

    def clocks(self) -> dict[str, Any]:
        bits = self._ask("CurrentClocksEventReasons")
        return {
            "sm_hz": self._ask("ClockInfo", 1, scale=1e6),
            "memory_hz": self._ask("ClockInfo", 2, scale=1e6),
            "temperature_celsius": self._ask("Temperature", 0),
            "power_watts": self._ask("PowerUsage", scale=1e-3),
            "throttle": None if bits is None else [words for bit, words in _THROTTLE.items() if bits & bit],
            **({} if self._library else {"missing": self.missing}),
        }
