"""Kernels as machine code: LLVM text made, compiled for this CPU, and kept on disk."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir

from perflab.caches import cache_folder, keep, read_kept
from perflab.emulator.operations import Operation
from perflab.emulator.paths import Paths
from perflab.emulator.program import Program
from perflab.emulator.vector.checks import Checks, granules
from perflab.emulator.vector.kernel import KernelCode
from perflab.emulator.vector.layout import Layout, layout
from perflab.emulator.vector.memory import Memories
from perflab.emulator.vector.registers import constants, followed
from perflab.emulator.vector.schedule import run_block, run_blocks, start

QUICK, BEST = 0, 2  # levels of LLVM's code generator: made in a third of the time, or about 1.4 times as fast
_loaded: dict[str, Compiled] = {}


@dataclass(frozen=True)
class Compiled:
    """Entry points: start(context, index), run_block(context) -> code, run_blocks(context, indices, first, end) -> ended."""

    layout: Layout
    start: Any
    run_block: Any
    run_blocks: Any
    engine: Any
    level: int
    cached: bool


def compiled(program: Program, operations: Sequence[Operation], counting: bool, checking: bool, level: int = QUICK) -> Compiled:
    """The kernel as machine code of this level or of a better one: from memory, from disk, or made now.

    All levels keep a block's state in the same places, so that one may go on where another stopped.
    """
    digest = _key(program, counting, checking)
    for better in (BEST, level):
        key = f"{digest}-{better}"
        if key not in _loaded and (kept := read_kept(_path(key))) is not None:
            _loaded[key] = _load(kept, plan_of(program, operations, checking), better, True)
        if key in _loaded:
            return _loaded[key]
    code = machine_code(str(module_of(program, operations, counting, checking)), level)
    with contextlib.suppress(OSError):  # a cache that cannot be written is no reason to stop
        keep(_path(key), code)
    _loaded[key] = _load(code, plan_of(program, operations, checking), level, False)
    return _loaded[key]


def _path(key: str) -> Path:
    return cache_folder() / "emulated" / f"{key}.o"


def module_of(program: Program, operations: Sequence[Operation], counting: bool, checking: bool) -> ir.Module:
    """The whole LLVM module of a kernel."""
    module = ir.Module(program.name)
    module.triple = llvm.get_default_triple()
    paths, plan = Paths.of(program, operations), plan_of(program, operations, checking)
    block_scope = any("cta" in one.modifiers for one in program.instructions)
    checks = Checks(module, granules(operations), block_scope) if checking else None
    memories = Memories(module, plan, counting, is_eager(operations), checks)
    run_warp = KernelCode(module, program, operations, paths, plan, memories, counting, checking).build()
    begin = start(module, plan, checking)
    begin.linkage = "external"
    run_blocks(module, begin, run_block(module, plan, run_warp))
    return module


def plan_of(program: Program, operations: Sequence[Operation], checking: bool) -> Layout:
    """Where registers and the like lie."""
    tracked = followed(program, operations) if checking else ()
    return layout(program, len(Paths.of(program, operations).barrier_bits), tracked, constants(program, operations))


def is_eager(operations: Sequence[Operation]) -> bool:
    """Threads may wait for each other by memory."""
    return any(one.memory is not None and (one.memory.strong or one.role == "atomic") for one in operations)


# ---------------------------------------------------------------- LLVM
def _new_target(level: int) -> Any:
    """A target machine for this CPU; an engine takes its own along when it goes."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=level, reloc="pic", codemodel="default")


@functools.cache
def _target(level: int) -> Any:
    return _new_target(level)


def machine_code(text: str, level: int = QUICK) -> bytes:
    """Object code of an LLVM module's text."""
    target = _target(level)
    module = llvm.parse_assembly(text)
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=1))
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, builder)
    return target.emit_object(module)


def engine_of(code: bytes) -> Any:
    """Object code, ready to be called; it lives as long as the engine."""
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _new_target(QUICK))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


def _load(code: bytes, plan: Layout, level: int, cached: bool) -> Compiled:
    engine = engine_of(code)
    pointer, word = ctypes.c_void_p, ctypes.c_int64
    types: dict[str, tuple[Any, ...]] = {
        "start": (None, pointer, word), "run_block": (word, pointer), "run_blocks": (word, pointer, pointer, word, word)}
    found = {name: ctypes.CFUNCTYPE(*kinds)(engine.get_function_address(name)) for name, kinds in types.items()}
    return Compiled(plan, **found, engine=engine, level=level, cached=cached)


# ---------------------------------------------------------------- the cache
@functools.cache
def _generator() -> str:
    """A digest of the emulator's own source and of what compiles it."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    _target(QUICK)
    machine = [llvmlite.__version__, *map(str, llvm.llvm_version_info), llvm.get_host_cpu_name(), llvm.get_default_triple()]
    digest.update("|".join([*machine, llvm.get_host_cpu_features().flatten()]).encode())
    return digest.hexdigest()


def _key(program: Program, *options: object) -> str:
    """The digest of everything that decides the code."""
    facts = [
        _generator(), program.name, [i.text for i in program.instructions], sorted(program.registers.items()),
        [(b.first, b.end, sorted(b.live_out)) for b in program.blocks], sorted(program.block_of.items()), program.parameters,
        sorted(program.shared.items()), program.dynamic_shared_offset, sorted(program.local.items()), program.local_bytes,
        [v.name for v in program.variables], sorted(program.maybe_undefined), program.communicates, options]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
