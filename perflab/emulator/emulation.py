"""Launches on the CPU: arguments in, a machine's run, arrays and `Counts` out; checked as a driver checks a launch."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from perflab.check import poison
from perflab.compile import Binary
from perflab.emulator.amounts import by_site, total
from perflab.emulator.arguments import Layout, Parameter, Pointer, names_in, parameter_block, parameters_of
from perflab.emulator.counts import Counts, counts_of, outermost, together
from perflab.emulator.faults import Fault, FaultLog
from perflab.emulator.memory import INITIALISED, Arena
from perflab.emulator.operations import Operation
from perflab.emulator.program import Program
from perflab.emulator.ptx import Place
from perflab.emulator.sampling import chosen_blocks, in_groups, standard_errors
from perflab.emulator.tallies import Job, Tally
from perflab.emulator.variables import Variables
from perflab.errors import PerflabError, unknown
from perflab.gpus import Gpu, default_gpu
from perflab.gpus import gpu as find_gpu
from perflab.kernel import occupancy_with
from perflab.resources import Resources, resources
from perflab.studies import SCALAR_TYPES, Launch, Output, Scalar, Scratch, triple

MACHINES = ("auto", "vector", "numpy")
ASSUMED_SMS = 132  # where only an architecture is named
GRID_LIMITS = (2**31 - 1, 65535, 65535)  # CUDA programming guide, technical specifications per compute capability
BLOCK_LIMITS = (1024, 1024, 64)
UNWRITTEN_SHOWN = 5
ENDING = ("trap", "assertion", "deadlock")  # faults after which nothing more runs
Machine = Callable[[Job, Arena, FaultLog], Tally]
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Settings:
    """How to run.

    gpu       whose launch limits and residence of blocks hold (None: the default GPU)
    machine   'vector' (LLVM), 'numpy', or 'auto': what PERFLAB_EMULATOR names, else the first that is installed
    schedule  'forward', 'reversed' or 'random:SEED': in which order blocks and warps get their turn
    checking  look for uninitialised reads, races and unwritten outputs too; bounds and barriers are always checked
    counting  fill the counts
    sample    run this many blocks of a launch, spread over the grid, and scale the counts; None: all. Without `checking`;
              a launch whose blocks talk to each other is run whole
    """

    gpu: str | Gpu | None = None
    machine: str = "auto"
    schedule: str = "forward"
    checking: bool = True
    counting: bool = True
    sample: int | None = None

    def __post_init__(self) -> None:
        if self.machine not in MACHINES:
            raise unknown("machine", self.machine, MACHINES)
        if not re.fullmatch(r"forward|reversed|random:\d+", self.schedule):
            raise PerflabError(f'schedule="{self.schedule}": it is forward, reversed, or random:SEED as in random:7')
        if self.sample is not None and self.sample < 1:
            raise PerflabError(f"sample={self.sample}: at least 1 block is run; leave it out to run all")


@dataclass(frozen=True)
class Call:
    """One launch over named memory: an argument that is text names an array, all others go by value."""

    binary: Binary
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Any, ...]
    dynamic_shared: int = 0
    label: str = ""
    names: tuple[str, ...] = field(default=())


# ---------------------------------------------------------------- the two ways in
def emulate(binary: Binary, entry: str, grid: Any, block: Any, args: Sequence[Any], dynamic_shared: int = 0, *, label: str = "",
            names: Sequence[str] = (), outputs: Collection[str | int] = (), scratch: Collection[str | int] = (),
            constants: Mapping[str, np.ndarray] = _NOTHING, settings: Settings | None = None) -> Counts:
    """Run one launch; arrays among `args` are written in place.

    args: C-contiguous numpy arrays, numbers, structs as bytes or numpy records, None for a null pointer. outputs, scratch:
    arguments by name or place whose content counts as never written; every element of an output must be written.
    constants: __constant__ and __device__ variables by name -> array; those not given keep their initial value, else 0.
    Raises PerflabError for what a launch would refuse, Unsupported for an instruction that the emulator cannot do.
    """
    parameters = parameters_of(binary.ptx, entry, names)
    called = [parameter.name for parameter in parameters]
    memory = {called[k] if k < len(called) else f"argument {k}": a for k, a in enumerate(args) if isinstance(a, np.ndarray)}
    arguments = tuple(called[k] if isinstance(a, np.ndarray) and k < len(called) else _by_value(a) for k, a in enumerate(args))
    call = Call(binary, entry, triple(grid), triple(block), arguments, dynamic_shared, label or entry, tuple(called))
    blank = [_named(which, called, memory) for which in scratch]
    filled = [_named(which, called, memory) for which in outputs]
    counts, layout, arena = run_calls(label or entry, [call], memory, filled, blank, constants, settings or Settings())
    layout.store(arena)
    return counts


def emulate_launches(name: str, launches: Sequence[Launch], inputs: Mapping[str, np.ndarray],
                     buffers: Mapping[str, Output | Scratch], settings: Settings | None = None,
                     outputs: Collection[str] | None = None) -> tuple[Counts, dict[str, np.ndarray]]:
    """Run a version's launches one after the other over the same memory; returns counts and the output arrays.

    buffers begin as never written (outputs poisoned); outputs: those that must be written (None: all).
    """
    chosen = settings or Settings()
    gpu = find_gpu(chosen.gpu or default_gpu())
    memory, asked = dict(inputs), []
    for key, buffer in buffers.items():
        is_output = isinstance(buffer, Output)
        memory[key] = poison(buffer.shape, buffer.dtype) if is_output else _all_ones(buffer)
        asked += [key] if is_output and (outputs is None or key in outputs) else []
    calls = [_call_of(launch, gpu, memory) for launch in launches]
    counts, layout, arena = run_calls(name, calls, memory, asked, [key for key in buffers if key not in asked], _NOTHING,
                                      replace(chosen, gpu=gpu))
    found = {}
    for key, buffer in buffers.items():
        if isinstance(buffer, Output):
            found[key] = layout.view(arena, key).view(buffer.dtype).reshape(buffer.shape).copy()
    return counts, found


def _all_ones(buffer: Output | Scratch) -> np.ndarray:
    """Scratch memory with all bits set, a NaN in every float."""
    dtype = np.dtype(buffer.dtype)
    return np.full(math.prod(buffer.shape) * dtype.itemsize, 0xFF, np.uint8).view(dtype).reshape(buffer.shape)


def _call_of(launch: Launch, gpu: Gpu, memory: Mapping[str, np.ndarray]) -> Call:
    """A declared launch, compiled; scalars of exactly their type."""
    kernel = launch.kernel
    binary, entry = kernel.binary(gpu), kernel.entry(gpu)
    for name in launch.arguments:
        if isinstance(name, str) and name not in memory:
            raise unknown(f"input or buffer in a launch of {kernel.label}", name, sorted(memory))
    arguments = tuple(np.dtype(SCALAR_TYPES[a.type]).type(a.value) if isinstance(a, Scalar) else a for a in launch.arguments)
    return Call(binary, entry, triple(launch.grid), triple(launch.block), arguments, launch.dynamic_shared, kernel.label,
                parameter_names(kernel.source.texts, kernel.name or entry))


def parameter_names(texts: Sequence[str], kernel: str) -> tuple[str, ...]:
    """What the source calls a kernel's parameters; () where that cannot be read."""
    return next((names for text in texts if (names := names_in(text, kernel))), ())


def _by_value(argument: Any) -> Any:
    """An argument as it is; text is refused, for it would name an array."""
    if isinstance(argument, str):
        raise PerflabError(f"{argument!r} is text: a kernel takes arrays, numbers and structs")
    return argument


def _named(which: str | int, called: Sequence[str], memory: Mapping[str, np.ndarray]) -> str:
    """The array argument that `outputs` or `scratch` mean, by name or place."""
    name = called[which] if isinstance(which, int) and which < len(called) else which
    if name not in memory:
        raise unknown("array among the arguments", name, memory)
    return str(name)


# ---------------------------------------------------------------- running
def run_calls(name: str, calls: Sequence[Call], memory: Mapping[str, np.ndarray], outputs: Collection[str],
              scratch: Collection[str], constants: Mapping[str, np.ndarray],
              settings: Settings) -> tuple[Counts, Layout, Arena]:
    """Run launches over one memory: their counts together, and the memory they leave."""
    gpu = find_gpu(settings.gpu or default_gpu())
    prepared = [_Prepared.of(call, gpu) for call in calls]
    layout = Layout.of(memory)
    variables = Variables.of([(one.call.binary.code, v) for one in prepared for v in one.program.variables], constants)
    arena = Arena({**layout.sizes, **variables.sizes}, variables.constant)
    layout.load(arena, frozenset((*outputs, *scratch)))
    variables.load(arena)
    run = machine(settings.machine)
    parts: list[Counts] = []
    for one in prepared:
        parts.append(one.run(run, arena, layout, variables, settings, gpu))
        if any(fault.kind in ENDING for fault in parts[-1].faults):
            break
    whole = settings.sample is None and settings.checking and len(parts) == len(prepared)
    if whole and not any(fault.kind in ENDING for fault in parts[-1].faults):
        missing = [fault for key in outputs if (fault := _unwritten(key, layout, arena, prepared))]
        parts[-1] = replace(parts[-1], faults=(*parts[-1].faults, *missing))
    variables.store(arena)
    return together(name, parts), layout, arena


def machine(name: str) -> Machine:
    """The machine of that name; 'auto' takes what PERFLAB_EMULATOR names, else LLVM where llvmlite is installed."""
    if name == "auto":
        name = os.environ.get("PERFLAB_EMULATOR", "auto")
    if name not in MACHINES:
        raise unknown("machine", name, MACHINES)
    has_llvm = importlib.util.find_spec("llvmlite") is not None
    if name == "vector" and not has_llvm:
        raise PerflabError('machine="vector" needs llvmlite: pip install "perflab[fast]", or take machine="numpy"')
    if name == "numpy" or not has_llvm:
        from perflab.emulator.machine import run

        return run
    from perflab.emulator.vector.machine import run as run_vectors

    return run_vectors


@functools.lru_cache(maxsize=32)
def _decoded(ptx: str, entry: str) -> tuple[Program, tuple[Operation, ...]]:
    """The program of a kernel, and what each of its instructions does."""
    from perflab.emulator.instructions import decode
    from perflab.emulator.program import program

    found = program(ptx, entry)
    return found, tuple(decode(instruction, found.registers) for instruction in found.instructions)


@dataclass(frozen=True)
class _Prepared:
    """A call whose kernel is decoded and whose launch was found to be possible."""

    call: Call
    program: Program
    operations: tuple[Operation, ...]
    parameters: tuple[Parameter, ...]
    used: Resources
    resident_blocks: int

    @staticmethod
    def of(call: Call, gpu: Gpu) -> _Prepared:
        used = resources(call.binary, call.entry)
        _refuse_launch(call, used, gpu)
        held = occupancy_with(used, gpu, call.block, dynamic_shared=call.dynamic_shared)
        if not held.blocks_per_sm:
            raise PerflabError(f"{call.label} cannot be launched on {gpu.name}: {held.reason}")
        program, operations = _decoded(call.binary.ptx, call.entry)
        resident = held.blocks_per_sm * (gpu.sm_count or ASSUMED_SMS)
        return _Prepared(call, program, operations, parameters_of(call.binary.ptx, call.entry, call.names), used, resident)

    def run(self, machine: Machine, arena: Arena, layout: Layout, variables: Variables, settings: Settings,
            gpu: Gpu) -> Counts:
        """The launch: all of its blocks, or a sample of them."""
        call, blocks = self.call, math.prod(self.call.grid)
        values = [Pointer(layout.address(arena, a)) if isinstance(a, str) else a for a in call.arguments]
        sampled = settings.sample is not None and settings.sample < blocks and not self.program.communicates
        job = Job(
            self.program, call.grid, call.block, parameter_block(self.parameters, values, call.label), call.dynamic_shared,
            min(self.resident_blocks, blocks), None, settings.counting, settings.checking and settings.sample is None,
            settings.schedule, sms=gpu.sm_count or ASSUMED_SMS, addresses=variables.addresses(arena, call.binary.code),
            operations=self.operations,
        )
        groups: list[tuple[int, ...] | None] = [None]
        if sampled and settings.sample is not None:
            groups = list(in_groups(chosen_blocks(blocks, settings.sample)))
        log = FaultLog()
        arena.begin_launch()
        tallies = [machine(replace(job, blocks=group), arena, log) for group in groups]
        sizes = [len(group) for group in groups if group is not None]
        errors = standard_errors([total(by_site(self.program, self.operations, tally)) for tally in tallies], sizes,
                                 blocks) if sampled else {}
        for more in tallies[1:]:
            tallies[0].add(more)
        return counts_of(self.program, self.operations, tallies[0], arena, name=call.label, blocks=blocks,
                         blocks_run=sum(sizes) if sampled else blocks, faults=log.faults, errors=errors,
                         warnings=self._warnings(settings, sampled), compiler=f"NVRTC {call.binary.nvrtc}")

    def _warnings(self, settings: Settings, sampled: bool) -> list[str]:
        """What these counts lack."""
        used, found = self.used, []
        if used.spill_store_bytes + used.spill_load_bytes:
            found.append(f"{self.call.label}: the cubin spills ({used.spill_store_bytes:,} B of stores and "
                         f"{used.spill_load_bytes:,} B of loads in its code): their traffic is not in these counts of PTX")
        if settings.sample is not None and not sampled and self.program.communicates:
            found.append(f"{self.call.label}: its blocks talk to each other, so all of them were run")
        if sampled:
            found.append(f"{self.call.label}: a sample of the blocks; nothing but bounds and barriers was checked")
        return found


# ---------------------------------------------------------------- what a driver refuses
def _refuse_launch(call: Call, used: Resources, gpu: Gpu) -> None:
    """Raise PerflabError for a grid, a block or shared memory that no launch on this GPU may have."""
    limits = gpu.limits
    for axis, n, most in zip("xyz", call.grid, GRID_LIMITS, strict=True):
        if n > most:
            raise PerflabError(f"{call.label}: a grid of {n:,} blocks along {axis}; at most {most:,} are allowed")
    for axis, n, most in zip("xyz", call.block, BLOCK_LIMITS, strict=True):
        if n > most:
            raise PerflabError(f"{call.label}: a block of {n:,} threads along {axis}; at most {most:,} are allowed")
    threads = math.prod(call.block)
    if threads > limits.threads_per_block:
        raise PerflabError(f"{call.label}: a block of {threads:,} threads; {gpu.name} allows {limits.threads_per_block:,}")
    shared, most = used.static_shared_bytes + call.dynamic_shared, limits.shared_per_block_optin_bytes
    if call.dynamic_shared < 0 or shared > most:
        raise PerflabError(
            f"{call.label}: {call.dynamic_shared:,} B of dynamic shared memory and {used.static_shared_bytes:,} B of static; "
            f"{gpu.name} allows a block {most:,} B: at most {most - used.static_shared_bytes:,} B of dynamic"
        )


# ---------------------------------------------------------------- outputs that nobody wrote
def _unwritten(name: str, layout: Layout, arena: Arena, prepared: Sequence[_Prepared]) -> Fault | None:
    """The fault of an output with elements of which a byte was never written; None if there is none."""
    array = layout.arrays[name]
    written = (layout.flags(arena, name) & INITIALISED).reshape(array.size, -1).astype(bool).all(axis=1)
    if written.all():
        return None
    missing = np.flatnonzero(~written)
    where = [tuple(int(i) for i in np.unravel_index(k, array.shape)) for k in missing[:UNWRITTEN_SHOWN]]
    listed = ", ".join(str(list(at)) for at in where) + (", …" if missing.size > UNWRITTEN_SHOWN else "")
    users = [one for one in prepared if name in one.call.arguments]
    program = (users or prepared)[-1].program
    file, line = outermost(program.instructions[0].place)
    return Fault("unwritten output", f"{missing.size:,} of {array.size:,} elements of {name} were never written: {listed}",
                 Place(file, line), 0, (), "", times=int(missing.size))
