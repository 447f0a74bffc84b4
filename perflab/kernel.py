"""`Kernel`: a source file, a name expression and defines; `load()` makes one, and its verbs ask the compiler."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perflab.compile import Binary, CompileError, Source, compile_source
from perflab.errors import PerflabError
from perflab.gpus import default_gpu
from perflab.gpus import gpu as find_gpu
from perflab.occupancy_model import Occupancy, comparison, occupancy
from perflab.origins import join
from perflab.resources import Resources, resources
from perflab.sources import device_code, read_source
from perflab.tables import Table

if TYPE_CHECKING:
    from perflab.emulator.counts import Counts
    from perflab.register_banks import RegisterBanks

HOST_CODE_LEFT_OUT = "-DPERFLAB_HOST_CODE_LEFT_OUT=1"
"""Stands among the options of a Binary made of a file's device code alone."""

_ONLY_A_VARIANT = re.compile(r"\b(wgmma|tcgen05|setmaxnreg)\.")  # instructions that no plain sm_90 or sm_100 has


@functools.lru_cache(maxsize=256)
def _needs_variant(texts: tuple[str, ...]) -> bool:
    return any(map(_ONLY_A_VARIANT.search, texts))


@dataclass(frozen=True)
class Kernel:
    """One __global__ function of a source. Shapes and tunables only change `name` and `defines`.

    name: a name expression ("saxpy<float>"); None where the source has one kernel. gpu, everywhere: what `pl.gpu` takes,
    or an architecture with its suffix ("sm_90a"). Verbs raise CompileError with the compiler's words.
    """

    source: Source
    name: str | None = None
    defines: tuple[tuple[str, str], ...] = ()
    options: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The file and, where given, the name: 'saxpy.cu saxpy<float>'."""
        return f"{self.source.file} {self.name}" if self.name else self.source.file

    def architecture(self, gpu: Any) -> str:
        """What to compile for: the GPU's architecture, in its "a" variant where the source's instructions need that."""
        if isinstance(gpu, str) and (match := re.fullmatch(r"(?:sm|compute)_(\d+[af])", gpu.strip().lower())):
            return f"sm_{match[1]}"
        plain = find_gpu(gpu).architecture
        return plain + "a" if int(plain.removeprefix("sm_")) >= 90 and _needs_variant(self.source.texts) else plain

    def binary(self, gpu: Any) -> Binary:
        """PTX, cubin and log. What does not compile as it stands is tried once more as `device_code`."""
        names, architecture = (self.name,) if self.name else (), self.architecture(gpu)
        try:
            return compile_source(self.source, architecture, names, self.defines, self.options)
        except CompileError:
            device, left_out = device_code(self.source)
        mark = (HOST_CODE_LEFT_OUT,) if left_out else ()
        return compile_source(device, architecture, names, self.defines, (*self.options, *mark))

    def resources(self, gpu: Any) -> Any:
        """The `Resources` on one GPU; for a list of GPUs a `Table`, one row a GPU."""
        if not isinstance(gpu, (list, tuple)):
            return resources(self.binary(gpu), self.name)
        found = [resources(self.binary(one), self.name) for one in gpu]
        columns = ("GPU", "registers", "static shared, B", "stack, B", "spilled, B", "barriers")
        rows = [
            (find_gpu(one).name, r.registers, r.static_shared_bytes, r.stack_bytes, r.spill_store_bytes, r.barriers)
            for one, r in zip(gpu, found, strict=True)
        ]
        return Table(f"resources of {self.label}", columns, rows, join(*(r.origin for r in found)))

    def register_banks(self, gpu: Any) -> RegisterBanks:
        """What the innermost loops read of the register file on one GPU, and the FFMA rate that leaves (modelled)."""
        from perflab.register_banks import register_banks

        return register_banks(self.binary(gpu), self.entry(gpu), self.name)

    def occupancy(self, gpu: Any, block: Any, dynamic_shared: int = 0, grid: Any = None, **more: Any) -> Any:
        """The `Occupancy` with this kernel's own registers, static shared memory and barriers; a list of GPUs gives a `Table`.

        block, grid: a number or (x, y, z); dynamic_shared in bytes; `more` as `pl.occupancy` takes it. Raises PerflabError
        for a block beyond the kernel's launch bounds.
        """
        if isinstance(gpu, (list, tuple)):
            return comparison([self.occupancy(one, block, dynamic_shared, grid, **more) for one in gpu])
        return occupancy_with(self.resources(gpu), gpu, block, dynamic_shared=dynamic_shared, grid=grid, **more)

    def emulate(self, grid: Any, block: Any, args: Sequence[Any], dynamic_shared: int = 0, gpu: Any = None, *,
                outputs: Sequence[Any] = (), scratch: Sequence[Any] = (), constants: Mapping[str, Any] | None = None,
                **settings: Any) -> Counts:
        """Run the kernel's PTX on the CPU: arrays among `args` are written in place; returns the `Counts`, with the faults.

        args: C-contiguous numpy arrays, numbers, structs as bytes or numpy records, None for a null pointer. outputs and
        scratch name arguments (by name or place) whose content counts as never written; constants: __constant__ and
        __device__ variables by name. settings: machine, schedule, checking, counting, sample, see `emulation.Settings`.
        Raises PerflabError for what a launch would refuse, Unsupported for an instruction that the emulator cannot do.
        """
        from perflab.emulator.emulation import Settings, emulate, parameter_names

        chosen = default_gpu() if gpu is None else gpu
        binary, names = self.binary(chosen), parameter_names(self.source.texts, self.name or self.entry(chosen))
        return emulate(binary, self.entry(chosen), grid, block, args, dynamic_shared, label=self.label, names=names,
                       outputs=outputs, scratch=scratch, constants=constants or {},
                       settings=Settings(find_gpu(chosen), **settings))

    def entry(self, gpu: Any) -> str:
        """The mangled name under which a driver finds the kernel in the cubin."""
        return self.resources(gpu).entry


def load(
    path_or_text: str | Path, name: str | None = None, defines: Mapping[str, Any] | None = None, options: Sequence[str] = ()
) -> Kernel:
    """A kernel out of a .cu file, or out of text (what has a line end or a brace is text).

    name: which kernel, as a name expression ("saxpy<float>"); defines: macro -> value; options: further NVRTC options.
    Raises PerflabError for a file that is not there.
    """
    pairs = tuple((key, str(value)) for key, value in (defines or {}).items())
    return Kernel(read_source(path_or_text), name, pairs, tuple(options))


def occupancy_with(used: Resources, gpu: Any, block: Any, **more: Any) -> Occupancy:
    """The occupancy of compiled resources. Raises PerflabError for a block beyond the launch bounds."""
    threads = math.prod(block) if isinstance(block, Sequence) else block
    if used.max_threads is not None and threads > used.max_threads:
        raise PerflabError(
            f"a block of {threads:,} threads: {used.name} is compiled for at most {used.max_threads:,} (__launch_bounds__), "
            "and such a launch fails. Take a smaller block or raise the bounds."
        )
    asked = {"registers": used.registers, "static_shared": used.static_shared_bytes, "barriers": used.barriers}
    return occupancy(gpu, block, **(asked | more))
