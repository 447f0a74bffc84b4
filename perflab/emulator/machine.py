"""The numpy machine: runs a launch block by block of code, for all lanes of a gang of thread blocks that wait there.

Of a warp the lowest-numbered waiting basic block runs first, so that lanes come together at joins. Thread blocks that do not
talk to each other run in gangs of a size that fits the caches, one gang after the other; those that do are all resident, in
gangs that take turns, and warps that only poll memory give way to others.
"""

from __future__ import annotations

import contextlib
import math

import numpy as np

from perflab.emulator.cells import Watch
from perflab.emulator.faults import FaultLog
from perflab.emulator.gang import AT_BARRIER, EXITED, PARKED, PATIENCE, Array, Frame, Gang, Run
from perflab.emulator.instructions import decode
from perflab.emulator.meeting import waiting_words
from perflab.emulator.memory import Arena
from perflab.emulator.paths import Paths
from perflab.emulator.races import Detector
from perflab.emulator.steps import Ended, Kernel
from perflab.emulator.tallies import Job, Tally

GANG_LANES = 8192  # registers of so many lanes stay in the level-2 cache, and below the size from which malloc maps pages anew
QUANTUM = 512  # warp instructions after which a warp gives up its turn to others, where some only poll
TURN = 4_000_000  # warp instructions after which a gang gives up its turn, if its blocks talk to others
DEADLOCK_ROUNDS = 16  # turns of all gangs in which nothing changed: nothing ever will


def run(job: Job, arena: Arena, log: FaultLog) -> Tally:
    """Run the blocks of a job. Faults go to `log`; raises Unsupported for an instruction that cannot be done."""
    program = job.program
    threads = math.prod(job.block)
    warps = -(-threads // 32)
    dynamic = job.dynamic_shared_bytes
    shared = program.dynamic_shared_offset + dynamic if dynamic else program.static_shared_bytes
    with np.errstate(all="ignore"):
        operations = job.operations or tuple(decode(one, program.registers) for one in program.instructions)
        one = Run(job, arena, log, Tally.empty(program), operations, Detector(log, program, warps), threads, warps, shared)
        machine = Machine(one)
        with contextlib.suppress(Ended):
            machine.run()
    return one.tally


class Machine:
    """A launch that is being run."""

    def __init__(self, one: Run) -> None:
        self.one = one
        self.kernel = Kernel.of(one)
        self.paths = Paths.of(one.program, one.operations)
        self.watch = Watch(one) if one.checking else None
        way, _, seed = one.job.schedule.partition(":")
        self.random = np.random.default_rng(int(seed)) if way == "random" else None
        self.backwards = way == "reversed"
        self.eager = any(o.memory is not None and (o.memory.strong or o.role == "atomic") for o in one.operations)
        self.size = max(1, GANG_LANES // (32 * one.warps))

    def run(self) -> None:
        """All blocks."""
        job = self.one.job
        blocks = list(range(math.prod(job.grid))) if job.blocks is None else list(job.blocks)
        if self.backwards:
            blocks.reverse()
        elif self.random is not None:
            self.random.shuffle(blocks)
        if self.one.program.communicates:
            self._together(blocks, max(1, job.resident_blocks))
            return
        for first in range(0, len(blocks), self.size):
            self._together(blocks[first : first + self.size], self.size)

    def _together(self, blocks: list[int], resident: int) -> None:
        """Blocks that may talk to each other: as many as fit live at once, more begin as others end."""
        gangs, unchanged = list[Turns](), 0
        while gangs or blocks:
            before, turned = self.one.events, self.one.turned
            gangs = [turns for turns in gangs if turns.take()]
            room = resident - sum(turns.alive() for turns in gangs)
            if blocks and room > 0:
                count = min(room, self.size)
                gangs.append(Turns(self, self._gang(blocks[:count])))
                del blocks[:count]
                continue
            unchanged = unchanged + 1 if (before, turned) == (self.one.events, self.one.turned) else 0
            if gangs and unchanged > DEADLOCK_ROUNDS:
                self._deadlock(gangs)

    def _deadlock(self, gangs: list[Turns]) -> None:
        """All that can run only poll, and nothing has changed for long."""
        sites = sorted({site for turns in gangs for site in turns.polled()})
        gang = next(turns.gang for turns in gangs if sites[0] in turns.polled())
        ready = (gang.at < PARKED).reshape(-1, 32) & (gang.poll_site == sites[0])[:, None]
        gang.fault("deadlock", sites[0], f"no thread can go on: all that are left wait at {waiting_words(self.one, sites)}",
                   np.flatnonzero(ready))
        raise Ended

    def _gang(self, blocks: list[int]) -> Gang:
        order = np.arange(self.one.warps)
        if self.backwards:
            order = order[::-1]
        elif self.random is not None:
            order = self.random.permutation(order)
        gang = Gang(self.one, blocks, order)
        gang.meet(self.kernel.barriers, self.kernel.members, self.kernel.warp_barriers, self.paths, self.watch, self.eager)
        return gang


class Turns:
    """Decides which basic block of a gang runs next."""

    def __init__(self, machine: Machine, gang: Gang) -> None:
        self.machine, self.one, self.gang, self.kernel = machine, machine.one, gang, machine.kernel
        self.simple = not machine.backwards and machine.random is None
        self.spent = np.zeros(gang.rows, np.int64)
        self.round = 0

    def alive(self) -> int:
        """Blocks that have not ended."""
        gang = self.gang
        return int((gang.at.reshape(gang.slots, -1) < EXITED).any(axis=1).sum())

    def take(self) -> bool:
        """Run until all have ended (False), or until those that can run only poll (True)."""
        gang, one = self.gang, self.one
        gang.polls[:] = 0
        end = one.executed + TURN
        while True:
            if one.executed > end and one.program.communicates:
                gang.spinning = True  # it may be waiting in a way that does not show
                one.turned += 1
                return True
            block, frame = self._next()
            if frame is None:
                if gang.live == 0:
                    return False
                if block == PARKED:
                    return True
                if gang.barriers.release() or gang.collectives.resolve():
                    gang.moved()
                    continue
                self._deadlock_at_barriers()
            else:
                self._run(block, frame)

    # ---------------------------------------------------------------- which lanes
    def _next(self) -> tuple[int, Frame | None]:
        """The block to run and its lanes; None where none can run, (PARKED, None) where all that can only poll."""
        gang = self.gang
        if gang.spinning:
            return self._fair()
        if self.simple:
            block = int(gang.at.min())
            if block >= PARKED:
                return block + 1, None
            return block, self._frame(block, gang.at == block)
        low = gang.at.reshape(-1, 32).min(axis=1)
        ready = np.flatnonzero(low < PARKED)
        if not len(ready):
            return PARKED + 1, None
        block = self._chosen(low[ready])
        return block, self._frame(block, (gang.at.reshape(-1, 32) == block) & (low == block)[:, None])

    def _chosen(self, blocks: Array) -> int:
        """Which of the blocks where warps wait comes first."""
        if self.machine.random is not None:
            return int(self.machine.random.choice(np.unique(blocks)))
        return int(blocks.max() if self.machine.backwards else blocks.min())

    def _fair(self) -> tuple[int, Frame | None]:
        """Some warps only poll: all take turns, and in every other round such warps run their highest block."""
        gang = self.gang
        at = gang.at.reshape(-1, 32)
        low = at.min(axis=1)
        ready = low < PARKED
        if not ready.any():
            return PARKED + 1, None
        if (gang.polls[ready] >= PATIENCE).all():
            return PARKED, None
        turn = ready & (self.spent < QUANTUM)
        if not turn.any():
            self.spent[:] = 0
            self.round += 1
            gang.spinning = bool((gang.own_polls >= PATIENCE).any())
            if gang.barriers.release() | gang.collectives.resolve():
                gang.moved()
            return self._fair()
        chosen = low
        if self.round % 2:
            high = np.where(at < PARKED, at, -1).max(axis=1)
            chosen = np.where(gang.own_polls >= PATIENCE, high, low)
        block = self._chosen(chosen[turn])
        rows = turn & (chosen == block)
        self.spent[rows] += self.kernel.sizes[block]
        return block, self._frame(block, (at == block) & rows[:, None])

    def _frame(self, block: int, mask: Array) -> Frame:
        gang = self.gang
        count = int(np.count_nonzero(mask))
        if count == gang.lanes:
            return Frame(gang, None, True)
        return Frame(gang, np.flatnonzero(mask), count == gang.live and 2 * count >= gang.lanes)

    # ---------------------------------------------------------------- running
    def _run(self, block: int, frame: Frame) -> None:
        """One basic block for the lanes of a frame."""
        gang, kernel, one = self.gang, self.kernel, self.one
        if block in kernel.members:
            if gang.collectives.parked:
                frame = gang.collectives.unpark(block, frame)
            gathered = gang.collectives.gather(block, frame)
            if gathered is None:
                return
            frame = gathered
        warps = frame.warps
        one.tally.block_warps[block] += warps
        one.tally.block_lanes[block] += frame.count
        one.executed += warps * kernel.sizes[block]
        if one.executed > one.job.instruction_limit:
            self._limit(block, frame)
        if gang.barriers.known:
            gang.barriers.pass_by(block, frame)
        for step in kernel.steps[block]:
            step(frame)
        frame.keep(kernel.keeps[block])
        if not kernel.steers[block]:
            frame.go(block + 1)

    # ---------------------------------------------------------------- the end
    def polled(self) -> list[int]:
        """Sites at which warps that can run have polled."""
        ready = (self.gang.at < PARKED).reshape(-1, 32).any(axis=1)
        return np.unique(self.gang.poll_site[ready]).tolist()

    def _deadlock_at_barriers(self) -> None:
        gang = self.gang
        lanes = np.flatnonzero(gang.at == AT_BARRIER)
        first = gang.slot[lanes] == gang.slot[lanes[0]]
        lanes = lanes[first]
        sites = np.unique(gang.barriers.site[lanes]).tolist()
        gang.fault("deadlock", sites[0], f"no thread of the block can go on: they wait at {waiting_words(self.one, sites)}",
                   lanes[gang.barriers.site[lanes] == sites[0]])
        raise Ended

    def _limit(self, block: int, frame: Frame) -> None:
        limit = self.one.job.instruction_limit
        site = self.one.program.blocks[block].first
        self.gang.fault("deadlock", site, f"given up after {limit:,} warp instructions: an endless loop?", frame.lanes())
        raise Ended
