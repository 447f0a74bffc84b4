"""Registers that may be read before they are written, followed through moves to where their value matters (numpy machine)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from perflab.emulator.gang import Frame, Run
from perflab.emulator.operands import DTYPES, guard_reader
from perflab.emulator.operations import Operation, Typed
from perflab.emulator.program import Block
from perflab.emulator.ptx import Negated, Operand, Register

Step = Callable[[Frame], None]
_MOVES = ("mov", "selp", "cvta")


class Tracking:
    """For each tracked register r of a frame, `r?` says of each lane whether it holds nothing defined."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.tracked = set(run.program.maybe_undefined)
        grown = True
        while grown:
            before = len(self.tracked)
            for operation in run.operations:
                if moves(operation) and self.tracked & set(names(operation.inputs)):
                    self.tracked |= set(names(operation.outputs))
            grown = len(self.tracked) > before

    def names(self, block: Block) -> tuple[str, ...]:
        """What has to be kept after a block."""
        found: set[str] = set()
        for operation in self.run.operations[block.first : block.end]:
            found |= self.tracked & {*names(operation.inputs), *names(operation.outputs), *others(operation)}
        return tuple(f"{name}?" for name in sorted(found))

    def wrap(self, step: Step, site: int, operation: Operation) -> Step:
        """The step with its uses of undefined registers reported, and its results followed."""
        sources = [name for name in dict.fromkeys(names(operation.inputs)) if name in self.tracked]
        results = [name for name in dict.fromkeys(names(operation.outputs)) if name in self.tracked]
        uses = [name for name in dict.fromkeys(others(operation)) if name in self.tracked]
        passes_on = moves(operation)
        memory = operation.memory
        kept = operation.role == "store" and memory is not None and memory.space not in ("global", "generic")
        if not (passes_on or kept):
            uses += [name for name in sources if name not in uses]
        if not (uses or results):
            return step
        guard = guard_reader(operation.instruction.guard)

        def followed(frame: Frame) -> None:
            where = guard(frame) if guard else None
            for name in uses:
                self._used(frame, site, name, where)
            spread = np.zeros(frame.size, bool)
            for name in sources if passes_on else ():
                spread |= frame.registers[f"{name}?"]
            before = [frame.registers[f"{name}?"] for name in results]
            step(frame)
            for name, old in zip(results, before, strict=True):
                frame.registers[f"{name}?"] = spread if where is None else np.where(where, spread, old)

        return followed

    def _used(self, frame: Frame, site: int, name: str, where: Any) -> None:
        """Report the lanes that use an undefined register; each once."""
        undefined = frame.registers[f"{name}?"]
        if not undefined.any():
            return
        own_guard = self.run.program.instructions[site].guard
        asked = undefined if where is None or (own_guard and own_guard.register == name) else undefined & where
        _, lanes, count = frame.chosen(asked)
        if count:
            frame.gang.fault("uninitialised", site, f"register {name} is used before it was written", lanes)
            frame.registers[f"{name}?"] = undefined & ~asked


def moves(operation: Operation) -> bool:
    """Whether an operation only passes bits on: an undefined register makes its results undefined, no more."""
    opcode = operation.instruction.opcode
    if operation.role != "compute" or opcode in _MOVES or opcode != "cvt":
        return operation.role == "compute" and opcode in _MOVES
    sizes = {np.dtype(DTYPES[typed.type]) for typed in (*operation.inputs, *operation.outputs)}
    return len({size.itemsize for size in sizes}) == 1 and all(size.kind in "iu" for size in sizes)


def names(several: Iterable[Typed]) -> list[str]:
    """The registers among operands."""
    return [name for typed in several for name in _register(typed.operand)]


def others(operation: Operation) -> list[str]:
    """Registers that are read besides the inputs: guard and address."""
    guard = operation.instruction.guard
    found = [guard.register] if guard else []
    if operation.memory is not None:
        found += _register(operation.memory.address.base)
    return found


def _register(operand: Operand) -> list[str]:
    if isinstance(operand, Register):
        return [operand.name]
    return [operand.register.name] if isinstance(operand, Negated) else []
