"""The fast machine: a kernel as machine code that runs 32 lanes at once, blocks over the CPU's cores.

What it means is what `machine` (numpy) means; where anything is strange, compiled code asks Python (`events`).
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Sequence

import numpy as np

from perflab.emulator.calls import KNOWN
from perflab.emulator.faults import FaultLog
from perflab.emulator.instructions import decode
from perflab.emulator.memory import Arena
from perflab.emulator.operands import unsupported
from perflab.emulator.operations import Operation
from perflab.emulator.tallies import Job, Tally
from perflab.emulator.vector.checks import granules
from perflab.emulator.vector.compiled import BEST, compiled, is_eager
from perflab.emulator.vector.events import EVENT_TYPE, Events
from perflab.emulator.vector.layout import BLOCK_DONE, OUT_OF_FUEL, PARKED, STUCK
from perflab.emulator.vector.state import Cells, Counts, State, order_of

PIECES = 8  # of the grid for each thread, at least
PIECE = 32  # blocks, at most, between looks at whether to go on
SAVED = 0.3  # of the time of quick code, by the best
SECONDS_AN_INSTRUCTION = 0.004  # of PTX, that the best code takes to make
DEADLOCK_ROUNDS = 32  # turns of all resident blocks in which nothing changed: nothing ever will


def run(job: Job, arena: Arena, log: FaultLog) -> Tally:
    """Run the blocks of a job. Faults go to `log`; raises Unsupported for an instruction that cannot be done."""
    operations = job.operations or tuple(decode(one, job.program.registers) for one in job.program.instructions)
    for operation in operations:
        if operation.role == "call" and operation.target not in KNOWN:
            raise unsupported(operation, f"the function {operation.target} is not known; there are {' and '.join(KNOWN)}")
    return Launch(job, arena, log, operations).run()


class Launch:
    """One launch on its threads."""

    def __init__(self, job: Job, arena: Arena, log: FaultLog, operations: Sequence[Operation]) -> None:
        self.job, self.arena, self.operations = job, arena, operations
        self.eager = is_eager(operations)
        self.code = compiled(job.program, operations, job.counting, job.checking)
        self.begun, self.improving = time.monotonic(), self.code.level == BEST
        total = job.grid[0] * job.grid[1] * job.grid[2]
        self.indices = order_of(job.schedule, job.blocks if job.blocks is not None else range(total))
        self.events = Events(job, arena, log, operations, self.indices)
        self.callback = EVENT_TYPE(self.events.handle)
        self.cells = Cells(arena, granules(operations)) if job.checking else None
        self.next = 0
        self.lock = threading.Lock()

    def run(self) -> Tally:
        """All blocks, or those up to a fault that ends the run."""
        communicates = self.job.program.communicates
        threads = 1 if self.job.checking or communicates else os.cpu_count() or 1
        counts = [Counts(self.job, self.arena) for _ in range(max(1, min(threads, len(self.indices))))]
        if communicates:
            self._all_resident(counts[0])
        else:
            states = [self._state(one) for one in counts]
            running = [threading.Thread(target=self._work, args=(state,)) for state in states[1:]]
            for thread in running:
                thread.start()
            self._work(states[0])
            for thread in running:
                thread.join()
        if self.events.error is not None:
            raise self.events.error
        self.events.finish()
        tally = Tally.empty(self.job.program)
        for one in counts:
            one.into(tally, self.arena)
        printed = self.events.printed
        if not communicates:
            printed = sorted(printed, key=lambda pair: self.events.position(pair[0]))
        tally.printed = [text for _, text in printed]
        return tally

    def _state(self, counts: Counts) -> State:
        event = ctypes.cast(self.callback, ctypes.c_void_p).value or 0
        state = State(self.job, self.arena, self.code.layout, len(self.events.states), event, counts, self.cells, self.eager)
        self.events.states.append(state)
        return state

    # ---------------------------------------------------------------- blocks that do not talk to each other
    def _work(self, state: State) -> None:
        """One thread: pieces of the grid, until none is left."""
        size = max(1, min(PIECE, len(self.indices) // (PIECES * (os.cpu_count() or 1))))
        try:
            while not self.events.ended:
                with self.lock:
                    first, self.next = self.next, min(len(self.indices), self.next + size)
                if first == self.next:
                    return
                self._piece(state, first, min(len(self.indices), first + size))
                self._improve()
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that called
            self.events.fail(error)

    def _improve(self) -> None:
        """The best code for the blocks that are left, if in two launches like this it saves more time than it takes to make."""
        with self.lock:
            left = (time.monotonic() - self.begun) / self.next * (len(self.indices) - self.next)
            if self.improving or 2 * SAVED * left < SECONDS_AN_INSTRUCTION * len(self.operations):
                return
            self.improving = True
        self.code = compiled(self.job.program, self.operations, self.job.counting, self.job.checking, BEST)

    def _piece(self, state: State, first: int, end: int) -> None:
        while first < end and not self.events.ended:
            first += self.code.run_blocks(state.pointer, self.indices.ctypes.data, first, end)
            if first < end:
                self._to_its_end(state, int(state.context[0]["stopped"]))
                first += 1

    def _to_its_end(self, state: State, code: int) -> None:
        """A block that came back before it had ended."""
        unchanged, before = 0, (-1, -1)
        while code != BLOCK_DONE and not self.events.ended:
            self._look(state, code)
            now = (int(state.context[0]["changes"]), int(state.context[0]["live_threads"]))
            unchanged, before = unchanged + 1 if now == before else 0, now
            if unchanged > DEADLOCK_ROUNDS and self._only_polls([state]):
                self._deadlock([state])
            elif not self.events.ended:
                code = self.code.run_block(state.pointer)

    # ---------------------------------------------------------------- blocks that do
    def _all_resident(self, counts: Counts) -> None:
        """As many blocks as fit, in turns."""
        room = max(1, min(self.job.resident_blocks, len(self.indices)))
        running = [self._state(counts) for _ in range(room)]
        waiting = self.indices.tolist()[::-1]
        for state in running:
            self.code.start(state.pointer, waiting.pop())
        unchanged, before = 0, (-1, -1)
        while running and not self.events.ended:
            for state in list(running):
                code = self.code.run_block(state.pointer)
                if self.events.ended:
                    break
                if code != BLOCK_DONE:
                    self._look(state, code)
                elif waiting:
                    self.code.start(state.pointer, waiting.pop())
                    unchanged = -1
                else:
                    running.remove(state)
            now = (_total("changes", self.events.states), _total("live_threads", running))
            unchanged, before = unchanged + 1 if now == before else 0, now
            if unchanged > DEADLOCK_ROUNDS and running and self._only_polls(running):
                self._deadlock(running)

    # ---------------------------------------------------------------- what cannot go on
    def _look(self, state: State, code: int) -> None:
        """After a turn: lanes whose partners do not come, blocks in which nothing can run, endless loops."""
        if code == STUCK or (state.warps["status"] == PARKED).any():
            meeting = self.events.meeting
            if not (meeting.resolve(state) or code != STUCK or meeting.complete(state)):
                meeting.deadlock_at_barriers(state)
                self.events.end()
        elif code == OUT_OF_FUEL and _total("spent", self.events.states) > self.job.instruction_limit:
            self._limit(state)

    @staticmethod
    def _only_polls(states: Sequence[State]) -> bool:
        """All warps that can run look at memory, again and again."""
        return all(bool((state.warps["polls"][state.warps["status"] == 0] > 0).all()) for state in states)

    def _deadlock(self, states: Sequence[State]) -> None:
        self.events.meeting.deadlock_of_polls(list(states))
        self.events.end()

    def _limit(self, state: State) -> None:
        warp = int(np.flatnonzero(state.warps["status"] == 0)[0])
        block = int(state.warps["pc"][warp].min())
        limit, first = self.job.instruction_limit, self.job.program.blocks[block].first
        alive = int(state.warps["alive"][warp]) & 0xFFFFFFFF
        self.events.report(state, "deadlock", first, f"given up after {limit:,} warp instructions: an endless loop?",
                           self.events.meeting.threads({warp: alive}))
        self.events.end()


def _total(name: str, states: Sequence[State]) -> int:
    return sum(int(state.context[0][name]) for state in states)
