"""`Gang`: the resident blocks that the numpy machine runs together, and `Frame`: those of its lanes that run one basic block.

A lane's index in the gang is 32 * row + lane of the warp; the warps of a block lie in neighbouring rows, in the order in which
the schedule lets them take effect. So whatever happens "in lane order" happens in the schedule's order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from perflab.emulator.faults import Fault, FaultLog
from perflab.emulator.memory import Arena
from perflab.emulator.operations import Operation
from perflab.emulator.program import Program
from perflab.emulator.races import Detector
from perflab.emulator.tallies import Job, Tally
from perflab.errors import PerflabError

PARKED, AT_BARRIER, EXITED = 1 << 28, 1 << 29, 1 << 30  # values of `Gang.at` above every block number
RAW = {1: np.bool_, 16: np.uint16, 32: np.uint32, 64: np.uint64}
PATIENCE = 64  # polls without a change after which a warp counts as spinning
SHARED_ALIGN_BYTES = 128
LOCAL_ALIGN_BYTES = 32

Array = Any


@dataclass
class Run:
    """What is the same for all gangs of a launch. threads, warps: of a block; shared_bytes: of a block, with the dynamic ones.

    executed: warp instructions so far; events: how often something happened that may let others go on; turned: turns that a
    gang gave up although it could run."""

    job: Job
    arena: Arena
    log: FaultLog
    tally: Tally
    operations: tuple[Operation, ...]
    detector: Detector
    threads: int
    warps: int
    shared_bytes: int
    executed: int = 0
    events: int = 0
    turned: int = 0

    @property
    def program(self) -> Program:
        """The kernel."""
        return self.job.program

    @property
    def checking(self) -> bool:
        """Whether races, uninitialised memory and the like are looked for."""
        return self.job.checking

    def symbol(self, name: str) -> int:
        """The address of a variable in its own space; of a parameter, its offset."""
        program = self.program
        for known in (program.shared, program.local, self.job.addresses):
            if name in known:
                return known[name]
        for parameter, offset, _ in program.parameters:
            if parameter == name:
                return offset
        raise PerflabError(f"{program.name} uses {name}, which has no address in this launch")


class Registers(dict[str, Any]):
    """Name -> raw values of all lanes of a gang; made when first used: registers as zeros, special ones ('%tid.x') computed.

    name + '?': whether the register is undefined. An array in here is never changed in place: other registers may share it.
    """

    def __init__(self, gang: Gang) -> None:
        super().__init__()
        self.gang = gang

    def __missing__(self, name: str) -> Array:
        program, lanes = self.gang.run.program, self.gang.lanes
        if name[-1] == "?":
            value = np.full(lanes, name[:-1] in program.maybe_undefined)
        elif name in program.registers:
            value = np.zeros(lanes, RAW[program.registers[name]])
        else:
            value = self.gang.special(name[1:])
        self[name] = value
        return value


class Gathered(dict[str, Any]):
    """The registers of some lanes only, fetched when first used."""

    def __init__(self, source: Registers, lanes: Array) -> None:
        super().__init__()
        self.source = source
        self.lanes = lanes

    def __missing__(self, name: str) -> Array:
        value = self[name] = self.source[name].take(self.lanes)
        return value


class Gang:
    """slots x warps x 32 lanes. at: block number at which a lane waits to run, or PARKED, AT_BARRIER, EXITED; resume: where a
    parked or waiting lane goes on; live: lanes that have not exited."""

    def __init__(self, run: Run, blocks: list[int], order: Array) -> None:
        self.run = run
        self.slots, self.warps = len(blocks), run.warps
        self.rows = self.slots * run.warps
        self.lanes = 32 * self.rows
        self.block = np.array(blocks, np.int64)
        self.thread = np.tile((np.asarray(order)[:, None] * 32 + np.arange(32)).reshape(-1), self.slots).astype(np.int64)
        self.row = np.arange(self.lanes) >> 5
        self.slot = self.row // run.warps
        self.owner = (self.block[self.slot] + 1).astype(np.int32)  # of each lane: its block, counted from 1
        self.at = np.where(self.thread < run.threads, 0, EXITED).astype(np.int32)
        self.live = int((self.at == 0).sum())
        self.resume = np.zeros(self.lanes, np.int32)
        self.everyone = np.ones((self.rows, 32), bool)
        self.registers = Registers(self)
        self.constants: dict[tuple[int, str], Array] = {}
        self.shared_stride = _aligned(run.shared_bytes, SHARED_ALIGN_BYTES)
        self.shared = np.zeros(self.slots * self.shared_stride, np.uint8)
        self.shared_flags = np.zeros(self.shared.size if run.checking else 0, np.uint8)
        self.shared_base = self.slot * self.shared_stride
        self.local_stride = _aligned(run.program.local_bytes, LOCAL_ALIGN_BYTES)
        self.local = np.zeros(self.lanes * self.local_stride, np.uint8)
        self.parameters = np.frombuffer(run.job.parameters + bytes(64 - len(run.job.parameters) % 32), np.uint8)

    def meet(self, barriers: dict[int, Any], members: dict[int, Any], warp_barriers: frozenset[int], paths: Any, watch: Any,
             eager: bool) -> None:
        """Get what the lanes of this gang share. eager: some instructions may be used to talk to other threads."""
        from perflab.emulator.cells import Cells, Stamps
        from perflab.emulator.meeting import Barriers, Collectives

        self.eager, self.watch = eager, watch
        self.barriers = Barriers(self, barriers, paths)
        self.collectives = Collectives(self, members, warp_barriers)
        if self.run.checking:
            self.stamps = Stamps(self)
            self.shared_cells = Cells(self.shared.size, many_blocks=False)
        self.polls, self.own_polls, self.poll_site = (np.zeros(self.rows, np.int64) for _ in range(3))
        self.polled: dict[int, Array] = {}  # site -> what each warp looked at there last
        self.spinning = False

    def poll(self, lanes: Array, index: Array, site: int) -> None:
        """Warps used memory in a way that may be waiting for others: it is where they look at one place again and again."""
        row = lanes >> 5
        begins = np.flatnonzero(np.concatenate(([True], row[1:] != row[:-1])))
        rows, looked_at = row[begins], np.add.reduceat(index * (2 * lanes + 1), begins)
        last = self.polled.setdefault(site, np.full(self.rows, -1, np.int64))
        again = last[rows] == looked_at
        last[rows] = looked_at
        self.polls[rows] = np.where(again, self.polls[rows] + 1, 0)
        self.own_polls[rows] = np.where(again, self.own_polls[rows] + 1, 0)
        self.poll_site[rows] = site
        self.spinning = self.spinning or bool((self.own_polls[rows] >= PATIENCE).any())

    def changed(self, lanes: Array) -> None:
        """These lanes changed memory."""
        self.own_polls[lanes >> 5] = 0
        self.moved()

    def moved(self) -> None:
        """Something happened that may let others go on."""
        self.run.events += 1
        self.polls[:] = 0

    def constant(self, value: int, kind: str) -> Array:
        """An array [lanes] of one value, given by its bits, of numpy type `kind`."""
        found = self.constants.get((value, kind))
        if found is None:
            dtype = np.dtype(kind)
            bits = np.full(self.lanes, value & (1 << 8 * dtype.itemsize) - 1, f"u{dtype.itemsize}")
            found = self.constants[value, kind] = bits != 0 if dtype.kind == "b" else bits.view(dtype)
        return found

    def special(self, name: str) -> Array:
        """A special register of all lanes, as u32."""
        what, _, axis = name.partition(".")
        dimension = "xyz".find(axis) if axis else 0
        job, lane = self.run.job, (self.thread % 32).astype(np.uint32)
        if what == "tid":
            return _along(self.thread, job.block, dimension)
        if what in ("ctaid", "clusterid"):
            return _along(self.block[self.slot], job.grid, dimension)
        if what == "laneid":
            return lane
        if what == "warpid":
            return (self.thread // 32).astype(np.uint32)
        if what == "smid":
            return (self.block[self.slot] % job.sms).astype(np.uint32)
        return _lane_mask(lane, what.removeprefix("lanemask_"))

    def fault(self, kind: str, site: int, message: str, lanes: Array, other_site: int = -1) -> None:
        """Report something that these lanes did at an instruction."""
        first = self.block[self.slot[lanes[0]]]
        threads = self.thread[lanes[self.block[self.slot[lanes]] == first]]
        instruction, instructions = self.run.program.instructions[site], self.run.program.instructions
        other = instructions[other_site].place if other_site >= 0 else None
        self.run.log.add(Fault(kind, message, instruction.place, int(first), tuple(int(t) for t in np.sort(threads)[:8]),
                               instruction.text, other, len(lanes)))


class Frame:
    """The lanes that run one basic block together.

    whole      registers hold all lanes of the gang (those that do not run are exited: what is computed for them is never seen)
    active     indices of the lanes that run; None: all of the gang
    registers  values [size] of all lanes if whole, else of the active ones
    """

    __slots__ = ("gang", "whole", "active", "registers", "size", "count", "_warps", "_form")

    def __init__(self, gang: Gang, active: Array | None, whole: bool) -> None:
        self.gang, self.active, self.whole = gang, active, whole
        self.registers: Any = gang.registers if whole or active is None else Gathered(gang.registers, active)
        self.count = gang.lanes if active is None else len(active)
        self.size = gang.lanes if whole else self.count
        self._warps = -1
        self._form: Any = None

    @property
    def warps(self) -> int:
        """Warps with a lane that runs."""
        if self._warps < 0:
            self._warps = self.gang.rows if self.active is None else rows_of(self.active)
        return self._warps

    def lanes(self) -> Array:
        """Indices of the lanes that run."""
        return np.arange(self.gang.lanes) if self.active is None else self.active

    def chosen(self, where: Array | None) -> tuple[Array | None, Array | None, int]:
        """(positions in the registers' arrays, lanes of the gang, their number) where `where` holds (None: everywhere)."""
        if where is None:
            return (self.active if self.whole else None), self.active, self.count
        if self.whole:
            positions = np.flatnonzero(where) if self.active is None else self.active[where[self.active]]
            return positions, positions, len(positions)
        positions = np.flatnonzero(where)
        return positions, self.active[positions], len(positions)  # type: ignore[index]

    def write(self, name: str, values: Array, positions: Array | None) -> None:
        """Set a register for the lanes at some positions."""
        if positions is None:
            self.registers[name] = values
        else:
            merged = self.registers[name].copy()
            merged[positions] = values
            self.registers[name] = merged

    def keep(self, names: Any) -> None:
        """Bring what a part of the gang has computed back to all."""
        if self.whole or self.active is None:
            return
        everything = self.gang.registers
        for name in names:
            values = self.registers.get(name)
            if values is not None:
                merged = everything[name].copy()
                merged[self.active] = values
                everything[name] = merged

    def go(self, block: int) -> None:
        """All lanes go on at a block (or are EXITED, PARKED …)."""
        if self.active is None:
            self.gang.at.fill(block)
        else:
            self.gang.at[self.active] = block

    def by_warp(self) -> tuple[Array, Array | None]:
        """(active [n, 32] bool, positions of the registers' values in [n * 32]; None: they are [n * 32] already)."""
        if self._form is None:
            gang = self.gang
            if self.active is None:
                self._form = gang.everyone, None
            elif self.whole:
                active = np.zeros(gang.lanes, bool)
                active[self.active] = True
                self._form = active.reshape(-1, 32), None
            elif self.count == 32 * self.warps:
                self._form = np.ones((self.warps, 32), bool), None
            else:
                row = self.active >> 5
                number = np.concatenate(([0], np.cumsum(row[1:] != row[:-1])))
                positions = number * 32 + (self.active & 31)
                active = np.zeros(32 * self.warps, bool)
                active[positions] = True
                self._form = active.reshape(-1, 32), positions
        return self._form


def rows_of(lanes: Array) -> int:
    """How many warps these (ascending) lanes belong to."""
    if not len(lanes):
        return 0
    row = lanes >> 5
    return 1 + int(np.count_nonzero(row[1:] != row[:-1]))


def _aligned(size: int, align: int) -> int:
    return -(-size // align) * align


def _along(index: Array, shape: tuple[int, int, int], dimension: int) -> Array:
    """One coordinate of a linear index."""
    below = int(np.prod(shape[:dimension], dtype=np.int64)) if dimension else 1
    return (index // below % shape[dimension]).astype(np.uint32)


def _lane_mask(lane: Array, which: str) -> Array:
    bit = (np.uint64(1) << lane.astype(np.uint64)).astype(np.uint64)
    below = bit - np.uint64(1)
    everything = np.uint64(0xFFFFFFFF)
    return {"eq": bit, "lt": below, "le": below | bit, "gt": everything & ~(below | bit),
            "ge": everything & ~below}[which].astype(np.uint32)
