"""System functions that a kernel may call, on the numpy machine: printf and assert."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from perflab.emulator.gang import Frame, Gang, Run
from perflab.emulator.memory import GLOBAL_BASE, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES
from perflab.emulator.operands import guard_reader, reader, unsupported
from perflab.emulator.operations import Operation, Typed
from perflab.emulator.printing import formatted, text_at
from perflab.emulator.ptx import Arguments, Register

Step = Callable[[Frame], None]
KNOWN = ("vprintf", "__assertfail")


def call_step(run: Run, site: int, operation: Operation, ended: type[Exception]) -> Step:
    """The step of a call. Raises Unsupported for functions that are not known."""
    if operation.target not in KNOWN:
        raise unsupported(operation, f"the function {operation.target} is not known; there are {' and '.join(KNOWN)}")
    guard = guard_reader(operation.instruction.guard)
    reads = [reader(Typed(typed.operand, "u64"), run, operation) for typed in operation.inputs]
    results = _results(operation)

    def step(frame: Frame) -> None:
        positions, lanes, count = frame.chosen(guard(frame) if guard else None)
        if not count:
            return
        lanes = frame.lanes() if lanes is None else lanes
        values = [read(frame) for read in reads]
        values = values if positions is None else [value[positions] for value in values]
        if operation.target == "__assertfail":
            _failed(frame.gang, site, lanes, [int(value[0]) for value in values])
            raise ended
        for lane, template, arguments in zip(lanes.tolist(), values[0].tolist(), values[1].tolist(), strict=True):
            run.tally.printed.append(formatted(template, arguments, _memory(frame.gang, lane)))
        for name in results:
            frame.write(name, np.zeros(len(lanes), frame.registers[name].dtype), positions)

    return step


def _failed(gang: Gang, site: int, lanes: Any, values: list[int]) -> None:
    read = _memory(gang, int(lanes[0]))
    message, file, line, function = text_at(values[0], read), text_at(values[1], read), values[2], text_at(values[3], read)
    gang.fault("assertion", site, f"{message} ({function} at {file}:{line})", lanes)


def _results(operation: Operation) -> list[str]:
    first = operation.instruction.operands[0] if operation.instruction.operands else None
    items = first.items if isinstance(first, Arguments) else ()
    return [item.name for item in items if isinstance(item, Register)]


def _memory(gang: Gang, lane: int) -> Callable[[int, int], bytes]:
    """read(generic address, size) as one lane sees memory; nothing beyond its end."""

    def read(address: int, size: int) -> bytes:
        if address >= GLOBAL_BASE:
            return bytes(gang.run.arena.bytes[address - GLOBAL_BASE : address - GLOBAL_BASE + size])
        offset, window = address % WINDOW_BYTES, address - address % WINDOW_BYTES
        spaces = {SHARED_WINDOW: (gang.shared, int(gang.shared_base[lane])), PARAM_WINDOW: (gang.parameters, 0),
                  LOCAL_WINDOW: (gang.local, lane * gang.local_stride)}
        whole, base = spaces.get(window, (gang.local[:0], 0))
        return bytes(whole[base + offset : base + offset + size])

    return read
