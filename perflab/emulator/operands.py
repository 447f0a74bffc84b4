"""Operands of the numpy machine: how a `Typed` operand is read from a frame and written to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from perflab.emulator.gang import RAW, Frame, Run
from perflab.emulator.operations import Operation, Typed, Unsupported
from perflab.emulator.ptx import Address, Guard, Immediate, Negated, Operand, Register, Sink, Special, Symbol

DTYPES = {f"{kind}{bits}": f"{'int' if kind == 's' else 'uint'}{bits}" for kind in "us" for bits in (8, 16, 32, 64)}
DTYPES |= {"pred": "bool", "f16": "uint16", "bf16": "uint16", "f32": "float32", "f64": "float64"}
COUNTERS = ("clock", "clock_hi", "clock64", "globaltimer", "globaltimer_lo", "globaltimer_hi")

Array = Any
Read = Callable[[Frame], Array]
ToRaw = Callable[[Array], Array]


def reader(typed: Typed, run: Run, operation: Operation) -> Read:
    """How to read an operand: frame -> array [frame.size] of the type's numpy dtype."""
    operand, dtype = typed.operand, np.dtype(DTYPES[typed.type])
    if isinstance(operand, Register):
        return _register(operand.name, run.program.registers[operand.name], dtype)
    if isinstance(operand, Negated):
        name = operand.register.name
        return lambda frame: ~frame.registers[name]
    if isinstance(operand, Special):
        return _special(operand.name, dtype, run, operation)
    return _constant(bits_of(operand, typed.type, run, operation), dtype.name)


def bits_of(operand: Operand, kind: str, run: Run, operation: Operation) -> int:
    """The bits of an operand that is the same for all lanes."""
    if isinstance(operand, Symbol):
        return run.symbol(operand.name) + operand.offset
    if isinstance(operand, Immediate):
        if operand.kind == "f64" and kind == "f32":
            return int(np.array(operand.value, np.uint64).view(np.float64).astype(np.float32).view(np.uint32))
        if operand.kind == "f32" and kind == "f64":
            return int(np.array(operand.value, np.uint32).view(np.float32).astype(np.float64).view(np.uint64))
        return operand.value
    raise unsupported(operation, f"operand {operand} is not understood here")


def unsupported(operation: Operation, reason: str) -> Unsupported:
    """The error that names the instruction and its place."""
    place, text = operation.instruction.place, operation.instruction.text.strip()
    return Unsupported(f"{place.file}:{place.line}: the numpy machine cannot run '{text}': {reason}")


def address_reader(address: Address, run: Run) -> Read:
    """Frame -> the address of each lane, int64 [frame.size]."""
    base, offset = address.base, address.offset
    if isinstance(base, Register):
        name = base.name
        wide = run.program.registers[name] == 64
        if wide:
            return (lambda frame: frame.registers[name].view(np.int64) + offset) if offset else (
                lambda frame: frame.registers[name].view(np.int64))
        return lambda frame: frame.registers[name].astype(np.int64) + offset
    value = (run.symbol(base.name) + base.offset if isinstance(base, Symbol) else base.value) + offset
    return _constant(value, "int64")


def guard_reader(guard: Guard | None) -> Callable[[Frame], Array] | None:
    """Frame -> where the guard holds; None without one."""
    if guard is None:
        return None
    name = guard.register
    return (lambda frame: ~frame.registers[name]) if guard.negated else (lambda frame: frame.registers[name])


def writer(typed: Typed, run: Run) -> tuple[str, ToRaw]:
    """(register, how an array of the type becomes its raw bits); the register is '' for a result that nobody wants."""
    if isinstance(typed.operand, Sink):
        return "", lambda values: values
    assert isinstance(typed.operand, Register)
    name = typed.operand.name
    raw, dtype = np.dtype(RAW[run.program.registers[name]]), np.dtype(DTYPES[typed.type])
    if raw == dtype:
        return name, lambda values: values
    if raw.itemsize == dtype.itemsize and raw.kind != "b":
        return name, lambda values: values.view(raw)
    signed = np.dtype(f"int{8 * raw.itemsize}")
    if dtype.kind == "i":
        return name, lambda values: values.astype(signed).view(raw)
    if dtype.kind == "f":
        plain = np.dtype(f"uint{8 * dtype.itemsize}")
        return name, lambda values: values.view(plain).astype(raw)
    return name, lambda values: values.astype(raw)


# ---------------------------------------------------------------- parts
def _constant(value: int, dtype: str) -> Read:
    return lambda frame: frame.gang.constant(value, dtype)[: frame.size]


def _register(name: str, bits: int, dtype: np.dtype) -> Read:
    """The low bits of a register as a type; a narrower register is extended."""
    raw = np.dtype(RAW[bits])
    if raw == dtype:
        return lambda frame: frame.registers[name]
    if raw.kind == "b" or dtype.kind == "b":
        return lambda frame: frame.registers[name].astype(dtype)
    if raw.itemsize == dtype.itemsize:
        return lambda frame: frame.registers[name].view(dtype)
    if raw.itemsize > dtype.itemsize:
        part = np.dtype(f"uint{8 * dtype.itemsize}")
        return lambda frame: frame.registers[name].astype(part).view(dtype)
    same = np.dtype(f"int{bits}") if dtype.kind == "i" else raw
    return lambda frame: frame.registers[name].view(same).astype(dtype)


def _special(name: str, dtype: np.dtype, run: Run, operation: Operation) -> Read:
    fixed = _fixed(name, run)
    if fixed is not None:
        return _constant(fixed, dtype.name)
    if name in COUNTERS:
        shift = 32 if name.endswith("_hi") else 0
        return lambda frame: np.full(frame.size, run.executed >> shift & (1 << 8 * dtype.itemsize) - 1, dtype)
    what = name.partition(".")[0]
    if what not in ("tid", "ctaid", "clusterid", "laneid", "warpid", "smid") and not what.startswith("lanemask_"):
        raise unsupported(operation, f"special register %{name} is not known")
    key = f"%{name}"
    if dtype == np.uint32:
        return lambda frame: frame.registers[key]
    return lambda frame: frame.registers[key].astype(dtype)


def _fixed(name: str, run: Run) -> int | None:
    """A special register that is the same for every thread."""
    what, _, axis = name.partition(".")
    dimension = "xyz".find(axis) if axis else 0
    job = run.job
    if what in ("ntid", "nctaid", "nclusterid"):
        return (job.block if what == "ntid" else job.grid)[dimension]
    known = {"nwarpid": 64, "nsmid": job.sms, "gridid": 1, "total_smem_size": run.shared_bytes,
             "aggr_smem_size": run.shared_bytes, "dynamic_smem_size": job.dynamic_shared_bytes, "reserved_smem_offset_begin": 0,
             "cluster_ctaid": 0, "cluster_nctaid": 1, "cluster_ctarank": 0, "cluster_nctarank": 1, "is_explicit_cluster": 0,
             "current_graph_exec": 0}
    return 0 if what.startswith("envreg") else known.get(what)
