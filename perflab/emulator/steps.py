"""The instructions of a kernel bound to a run of the numpy machine: each becomes a function of a `Frame`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from perflab.emulator.accesses import Access
from perflab.emulator.calls import call_step
from perflab.emulator.gang import EXITED, Frame, Gang, Run, rows_of
from perflab.emulator.meeting import Barrier
from perflab.emulator.operands import DTYPES, guard_reader, reader, writer
from perflab.emulator.operations import Operation
from perflab.emulator.ptx import Sink
from perflab.emulator.tallies import LANES, REQUESTS, UNITS
from perflab.emulator.undefined import Tracking

Array = Any
Step = Callable[[Frame], None]
STEERING = ("branch", "exit", "trap", "barrier")  # they say themselves where their lanes go on


class Ended(Exception):  # noqa: N818 - not an error: the run is over
    """A trap, a failed assertion or a deadlock: nothing more runs."""


@dataclass(frozen=True)
class Kernel:
    """A program, bound. For each block: its steps, the names to keep after it, whether its last step steers, its size.

    members: block that begins with a collective -> reader of its member mask; barriers: by site."""

    steps: tuple[tuple[Step, ...], ...]
    keeps: tuple[tuple[str, ...], ...]
    steers: tuple[bool, ...]
    sizes: tuple[int, ...]
    members: dict[int, Callable[[Frame], Array]]
    warp_barriers: frozenset[int]
    barriers: dict[int, Barrier]

    @staticmethod
    def of(run: Run) -> Kernel:
        """Bind all instructions. Raises Unsupported for what the machine cannot do."""
        program, operations = run.program, run.operations
        tracking = Tracking(run) if run.checking and program.maybe_undefined else None
        steps, keeps, steers = [], [], []
        members: dict[int, Callable[[Frame], Array]] = {}
        barriers: dict[int, Barrier] = {}
        for number, block in enumerate(program.blocks):
            bound = []
            for site in range(block.first, block.end):
                operation = operations[site]
                if operation.role == "barrier":
                    barriers[site] = _barrier(run, site, number, operation)
                step = _step(run, site, number, operation, barriers)
                if tracking:
                    step = tracking.wrap(step, site, operation)
                if operation.role != "nothing":
                    bound.append(step)
            first = operations[block.first]
            if first.role == "warp_barrier" or (first.role == "collective" and first.members is not None):
                members[number] = reader(first.inputs[first.members or 0], run, first)
            steps.append(tuple(bound))
            extra = tracking.names(block) if tracking else ()
            keeps.append((*sorted(block.live_out), *extra))
            steers.append(operations[block.end - 1].role in STEERING)
        warp_barriers = frozenset(n for n in members if operations[program.blocks[n].first].role == "warp_barrier")
        return Kernel(tuple(steps), tuple(keeps), tuple(steers), tuple(b.end - b.first for b in program.blocks), members,
                      warp_barriers, barriers)


def _step(run: Run, site: int, block: int, operation: Operation, barriers: dict[int, Barrier]) -> Step:
    role = operation.role
    if role == "compute":
        return _compute(run, site, operation)
    if role in ("load", "store", "atomic"):
        return Access(run, site, operation).step
    if role == "branch":
        return _branch(run, site, block, operation)
    if role == "exit":
        return _exit(block, operation)
    if role == "collective":
        return _collective(run, site, operation)
    if role == "warp_barrier":
        return _warp_barrier(run, operation)
    if role == "barrier":
        return _come(run, site, barriers[site])
    if role == "fence":
        return _fence(run, operation)
    if role == "trap":
        return _trap(site, operation, block)
    if role == "call":
        return call_step(run, site, operation, Ended)
    return lambda frame: None


# ---------------------------------------------------------------- computing
def _compute(run: Run, site: int, operation: Operation) -> Step:
    reads = [reader(typed, run, operation) for typed in operation.inputs]
    writes = [writer(typed, run) for typed in operation.outputs]
    compute: Any = operation.compute
    if operation.instruction.guard is not None:
        return _guarded(run, site, operation, reads, writes)
    if len(writes) == 1 and writes[0][0]:
        name, to_raw = writes[0]
        if len(reads) == 1:
            (one,) = reads

            def step_one(frame: Frame) -> None:
                frame.registers[name] = to_raw(compute(one(frame))[0])

            return step_one
        if len(reads) == 2:
            first, second = reads

            def step_two(frame: Frame) -> None:
                frame.registers[name] = to_raw(compute(first(frame), second(frame))[0])

            return step_two

    def step(frame: Frame) -> None:
        results = compute(*[read(frame) for read in reads])
        for (target, to_raw), result in zip(writes, results, strict=True):
            if target:
                frame.registers[target] = to_raw(result)

    return step


def _guarded(run: Run, site: int, operation: Operation, reads: list[Any], writes: list[Any]) -> Step:
    guard, compute, counting = guard_reader(operation.instruction.guard), operation.compute, run.job.counting
    assert guard is not None and compute is not None

    def step(frame: Frame) -> None:
        where = guard(frame)
        _, lanes, count = frame.chosen(where)
        if counting:
            _count(run, site, frame, lanes, count)
        if not count:
            return
        results = compute(*[read(frame) for read in reads])
        for (name, to_raw), result in zip(writes, results, strict=True):
            if name:
                value = to_raw(result)
                frame.registers[name] = value if count == frame.size else np.where(where, value, frame.registers[name])

    return step


def _count(run: Run, site: int, frame: Frame, lanes: Array | None, count: int) -> None:
    """Note that these lanes took part in an instruction."""
    row = run.tally.sites[site]
    row[REQUESTS] += frame.warps if lanes is None or count == frame.count else rows_of(lanes)
    row[LANES] += count


# ---------------------------------------------------------------- warps
def _collective(run: Run, site: int, operation: Operation) -> Step:
    reads = [reader(typed, run, operation) for typed in operation.inputs]
    writes = [writer(typed, run) for typed in operation.outputs]
    guard, compute, counting = guard_reader(operation.instruction.guard), operation.compute, run.job.counting
    assert compute is not None

    def step(frame: Frame) -> None:
        active, places = frame.by_warp()
        where = guard(frame) if guard else None
        positions, lanes, count = frame.chosen(where)
        if counting:
            _count(run, site, frame, lanes, count)
        if not count:
            return
        if where is not None:
            active = active & _by_warp(where, places, frame)
        *results, absent = compute(active, *[_by_warp(read(frame), places, frame) for read in reads])
        for (name, to_raw), result in zip(writes, results, strict=True):
            if name:
                flat = np.ascontiguousarray(result).reshape(-1)
                value = to_raw(flat if places is None else flat[places])
                if where is None or positions is None:
                    frame.registers[name] = value
                else:
                    frame.write(name, value[positions], positions)
        if operation.members is None and run.checking:
            message = "which lanes are here is up to the hardware: name the lanes that must take part"
            frame.gang.fault("active mask", site, message, frame.lanes())
        if absent.any():
            here = absent.reshape(-1) if places is None else absent.reshape(-1)[places]
            _absent(frame, site, here)

    return step


def _absent(frame: Frame, site: int, here: Array) -> None:
    positions = np.flatnonzero(here)
    lanes = positions if frame.whole or frame.active is None else frame.active[positions]
    together = int((lanes >> 5 == lanes[0] >> 5).sum())
    who = "1 lane of a warp reads" if together == 1 else f"{together} lanes of a warp read"
    frame.gang.fault("absent lane", site, f"{who} from lanes that do not take part", lanes)


def _by_warp(values: Array, places: Array | None, frame: Frame) -> Array:
    """Values of a frame as [warps, 32]."""
    if places is None:
        return values.reshape(-1, 32)
    spread = np.zeros(32 * frame.warps, values.dtype)
    spread[places] = values
    return spread.reshape(-1, 32)


def _warp_barrier(run: Run, operation: Operation) -> Step:
    members = reader(operation.inputs[0], run, operation)

    def step(frame: Frame) -> None:
        if not run.checking:
            return
        gang, lanes, masks = frame.gang, frame.lanes(), members(frame)
        masks = masks[lanes] if frame.whole else masks
        alive = np.packbits(gang.at.reshape(-1, 32) != EXITED, axis=1, bitorder="little").view(np.uint32).reshape(-1)
        rows, first = np.unique(lanes >> 5, return_index=True)
        for row, mask in zip(rows.tolist(), masks[first].tolist(), strict=True):
            slot, warp = row // gang.warps, int(gang.thread[32 * row]) >> 5
            everyone = int(alive[row]) & ~mask == 0
            block = int(gang.block[slot])
            clock = run.detector.clock(block, warp)
            run.detector.warp_sync(block, warp, *(() if everyone else (mask,)))
            if everyone:
                gang.stamps.warp_sync(row, clock)
        for slot in np.unique(rows // gang.warps).tolist():
            gang.stamps.tick(slot)

    return step


def _fence(run: Run, operation: Operation) -> Step:
    guard = guard_reader(operation.instruction.guard)

    def step(frame: Frame) -> None:
        _, lanes, count = frame.chosen(guard(frame) if guard else None)
        if not (run.checking and count):
            return
        gang = frame.gang
        for row in np.unique((frame.lanes() if lanes is None else lanes) >> 5).tolist():
            slot = row // gang.warps
            run.detector.fence(int(gang.block[slot]), int(gang.thread[32 * row]) >> 5, operation.target)
            gang.stamps.tick(slot)

    return step


# ---------------------------------------------------------------- steering
def _branch(run: Run, site: int, block: int, operation: Operation) -> Step:
    target, guard = run.program.block_of[operation.target], guard_reader(operation.instruction.guard)
    if guard is None:
        return lambda frame: frame.go(target)

    def step(frame: Frame) -> None:
        where = guard(frame)
        _, lanes, count = frame.chosen(where)
        if run.job.counting:
            _count(run, site, frame, lanes, count)
            if 0 < count < frame.count:
                others = frame.chosen(~where)[1]
                run.tally.sites[site, UNITS] += rows_of(lanes) + rows_of(others) - frame.warps
        if count == frame.count:
            frame.go(target)
            return
        frame.go(block + 1)
        if count:
            frame.gang.at[lanes] = target

    return step


def _exit(block: int, operation: Operation) -> Step:
    guard = guard_reader(operation.instruction.guard)

    def step(frame: Frame) -> None:
        _, lanes, count = frame.chosen(guard(frame) if guard else None)
        if lanes is None:
            frame.go(EXITED)
        else:
            frame.go(block + 1)
            frame.gang.at[lanes] = EXITED
        frame.gang.live -= count
        if count:
            frame.gang.moved()

    return step


def _trap(site: int, operation: Operation, block: int) -> Step:
    guard = guard_reader(operation.instruction.guard)

    def step(frame: Frame) -> None:
        _, lanes, count = frame.chosen(guard(frame) if guard else None)
        if count:
            frame.gang.fault("trap", site, "the kernel executed trap", frame.lanes() if lanes is None else lanes)
            raise Ended
        frame.go(block + 1)

    return step


# ---------------------------------------------------------------- barriers
def _barrier(run: Run, site: int, block: int, operation: Operation) -> Barrier:
    inputs = [reader(typed, run, operation) for typed in operation.inputs]
    red = operation.barrier.startswith("red")
    vote = inputs.pop() if red else None
    number = inputs[0] if inputs else lambda frame: frame.gang.constant(0, "uint32")[: frame.size]
    write = None
    if operation.outputs and not isinstance(operation.outputs[0].operand, Sink):
        name, to_raw = writer(operation.outputs[0], run)
        dtype = DTYPES[operation.outputs[0].type]

        def write(gang: Gang, lanes: Array, values: Array) -> None:
            merged = gang.registers[name].copy()
            merged[lanes] = to_raw(values.astype(dtype))
            gang.registers[name] = merged

    return Barrier(site, block, operation, guard_reader(operation.instruction.guard), number,
                   inputs[1] if len(inputs) > 1 else None, vote, write)


def _come(run: Run, site: int, barrier: Barrier) -> Step:
    def step(frame: Frame) -> None:
        if run.job.counting and barrier.guard:
            _, lanes, count = frame.chosen(barrier.guard(frame))
            _count(run, site, frame, lanes, count)
        frame.gang.barriers.come(barrier, frame)

    return step
