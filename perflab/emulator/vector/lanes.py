"""A warp that compiled code runs, its registers and memory, as Python sees them: for instructions that have no vector code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from perflab.emulator.memory import GLOBAL_BASE, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES
from perflab.emulator.operands import DTYPES
from perflab.emulator.operations import Operation, Typed
from perflab.emulator.ptx import Arguments, Immediate, Negated, Register, Special, Symbol
from perflab.emulator.vector.registers import number_of
from perflab.emulator.vector.values import LANES

if TYPE_CHECKING:
    from perflab.emulator.vector.state import State

_LANE = np.arange(LANES, dtype=np.uint32)


def lanes_of_mask(mask: int) -> np.ndarray:
    """[32] bool of a mask."""
    return (np.uint32(mask & 0xFFFFFFFF) >> _LANE & np.uint32(1)).astype(bool)


def mask_of_lanes(lanes: np.ndarray) -> int:
    """The mask of [32] bool."""
    return int((lanes.astype(np.uint64) << _LANE.astype(np.uint64)).sum())


class WarpLanes:
    """One warp of a running block."""

    def __init__(self, state: State, warp: int) -> None:
        self.state, self.warp, self.program = state, warp, state.job.program
        self.bytes = state.bytes[warp]

    def raw(self, name: str) -> np.ndarray:
        """A view of a register's lanes; of a predicate its mask [1]."""
        bits, first = self.program.registers[name], self.state.layout.slots[name]
        return self.bytes[first : first + 4].view(np.uint32) if bits == 1 else (
            self.bytes[first : first + LANES * bits // 8].view(f"u{bits // 8}"))

    def read(self, typed: Typed) -> np.ndarray:
        """An operand, [32] of its type's dtype."""
        operand, dtype = typed.operand, np.dtype(DTYPES[typed.type])
        if isinstance(operand, Negated):
            return ~lanes_of_mask(int(self.raw(operand.register.name)[0]))
        if not isinstance(operand, Register):
            return self._constant(operand, typed.type, dtype)
        known = self.state.layout.constants.get(operand.name)
        if known is not None:
            return np.full(LANES, known & (1 << 8 * dtype.itemsize) - 1, f"u{dtype.itemsize}").view(dtype)
        raw = self.raw(operand.name)
        if self.program.registers[operand.name] == 1:
            return lanes_of_mask(int(raw[0]))
        if raw.itemsize >= dtype.itemsize:
            return raw.astype(f"u{dtype.itemsize}").view(dtype)
        return raw.view(f"i{raw.itemsize}").astype(dtype) if dtype.kind == "i" else raw.astype(f"u{dtype.itemsize}").view(dtype)

    def _constant(self, operand: Any, kind: str, dtype: np.dtype) -> np.ndarray:
        if isinstance(operand, Special):  # compiled code keeps those that Python has to read in no register
            return np.broadcast_to(self.state.special(self.warp, operand.name), LANES).astype(dtype)
        value = self.state.symbol(operand) if isinstance(operand, Symbol) else number_of(operand, kind)
        assert isinstance(operand, Symbol | Immediate)
        if dtype.kind == "b":
            return np.full(LANES, bool(value))
        return np.full(LANES, value & (1 << 8 * dtype.itemsize) - 1, f"u{dtype.itemsize}").view(dtype)

    def write(self, typed: Typed, values: np.ndarray, active: np.ndarray) -> None:
        """A result, for the active lanes."""
        if not isinstance(typed.operand, Register):
            return
        raw, values = self.raw(typed.operand.name), np.broadcast_to(values, LANES)
        if self.program.registers[typed.operand.name] == 1:
            raw[0] = mask_of_lanes(np.where(active, values, lanes_of_mask(int(raw[0]))))
        elif values.dtype.kind == "i":
            raw[active] = values.astype(f"i{raw.itemsize}").view(raw.dtype)[active]
        else:
            raw[active] = np.ascontiguousarray(values).view(f"u{values.itemsize}").astype(raw.dtype)[active]

    def compute(self, operation: Operation, active: np.ndarray) -> int:
        """Does a compute instruction or a collective; gives the mask of lanes that read from absent ones."""
        assert operation.compute is not None
        values, missing = [self.read(typed) for typed in operation.inputs], 0
        if operation.role == "collective":
            *found, absent = operation.compute(active[None], *(value[None] for value in values))
            results, missing = [np.asarray(one)[0] for one in found], mask_of_lanes(np.asarray(absent)[0])
        else:
            results = [np.asarray(one) for one in operation.compute(*values)]
        for typed, result in zip(operation.outputs, results, strict=False):
            self.write(typed, result, active)
        return missing

    def clear_results(self, operation: Operation, active: np.ndarray) -> None:
        """The results of a call are zero."""
        first = operation.instruction.operands[0] if operation.instruction.operands else None
        for item in first.items if isinstance(first, Arguments) else ():
            if isinstance(item, Register):
                self.write(Typed(item, f"u{max(8, self.program.registers[item.name])}"), np.zeros(LANES, np.uint64), active)

    def memory(self, lane: int) -> Callable[[int, int], bytes]:
        """read(generic address, size) as one lane sees memory; nothing beyond its end."""
        state, layout = self.state, self.state.layout
        local = layout.local + lane * layout.local_stride

        def read(address: int, size: int) -> bytes:
            if address >= GLOBAL_BASE:
                return bytes(state.arena.bytes[address - GLOBAL_BASE : address - GLOBAL_BASE + size])
            offset, window = address % WINDOW_BYTES, address - address % WINDOW_BYTES
            whole = {SHARED_WINDOW: state.shared, LOCAL_WINDOW: self.bytes[local : local + layout.local_bytes],
                     PARAM_WINDOW: state.parameters}.get(window, self.bytes[:0])
            return bytes(whole[offset : offset + size])

        return read
