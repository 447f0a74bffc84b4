"""What compiled code asks Python for: faults, rare instructions, system calls. Nothing may be raised through compiled code."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from perflab.emulator.cells import ATOMIC, CLOCK_SHIFT, SITE_SHIFT, THREAD
from perflab.emulator.faults import Fault, FaultLog, access_words
from perflab.emulator.memory import GLOBAL_BASE, Arena
from perflab.emulator.operands import DTYPES
from perflab.emulator.operations import Operation, Typed
from perflab.emulator.paths import Paths
from perflab.emulator.printing import formatted, text_at
from perflab.emulator.races import Access, Detector
from perflab.emulator.tallies import Job
from perflab.emulator.vector.lanes import WarpLanes, lanes_of_mask
from perflab.emulator.vector.layout import EVENTS
from perflab.emulator.vector.meeting import Meeting
from perflab.emulator.vector.state import State

EVENT_TYPE = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 6)
GO_ON, STOP, DONE = range(3)


class Events:
    """Answers the events of all threads of a launch."""

    def __init__(self, job: Job, arena: Arena, log: FaultLog, operations: Sequence[Operation], indices: np.ndarray) -> None:
        self.job, self.arena, self.log, self.operations, self.indices = job, arena, log, operations, indices
        self.positions: dict[int, int] = {}
        self.lock = threading.Lock()
        warps = -(-(job.block[0] * job.block[1] * job.block[2]) // 32)
        self.detector = Detector(log, job.program, warps) if job.checking else None
        self.meeting = Meeting(tuple(operations), Paths.of(job.program, operations), self.detector, self.report)
        self.states: list[State] = []
        self.printed: list[tuple[int, str]] = []
        self.found: dict[tuple[str, int, int], tuple[int, Fault]] = {}  # (kind, site, other) -> block's place, fault
        self.unwritten: dict[int, list[tuple[Any, ...]]] = {}  # site -> reports that wait
        self.racing: set[int] = set()  # sites with a race in shared memory
        self.ended = False
        self.error: BaseException | None = None

    def handle(self, worker: int, kind: int, site: int, warp: int, mask: int, address: int) -> int:
        """One event. site: an instruction, or the address of its counters; warp: its address, or the number of a barrier."""
        try:
            name, *space = EVENTS[kind].split(".")
            answer = getattr(self, f"_{name}")(self.states[worker], site, warp, mask & 0xFFFFFFFF, address, *space)
            return STOP if self.ended else answer or GO_ON
        except BaseException as error:  # noqa: BLE001 - it must not pass through compiled frames
            self.fail(error)
            return STOP

    def fail(self, error: BaseException) -> None:
        """Remember an exception for the thread that called `run`, and stop."""
        self.error = self.error or error
        self.end()

    def end(self) -> None:
        """Nothing more runs: a trap, a failed assertion, a deadlock, an exception."""
        self.ended = True
        for state in self.states:
            state.context[0]["fuel"], state.context[0]["quantum"] = -1, 0

    # ---------------------------------------------------------------- faults
    def finish(self) -> None:
        """Everything into the log: whichever thread ran a block, each fault tells of the first block in the launch's order."""
        for site, reports in self.unwritten.items():
            for block, *said in reports if site not in self.racing else ():
                self._add(block, *said)
        for _, (_, fault) in sorted(self.found.items(), key=lambda item: (item[1][0], item[0])):
            self.log.add(fault)

    def report(self, state: State, kind: str, site: int, message: str, threads: np.ndarray, other: int = -1) -> None:
        """Into the log; threads: linear indices in the block."""
        self._add(state.block, kind, site, message, threads, other)

    def _add(self, block: int, kind: str, site: int, message: str, threads: np.ndarray, other: int = -1) -> None:
        instructions = self.job.program.instructions
        place = instructions[other].place if other >= 0 else None
        fault = Fault(kind, message, instructions[site].place, block, tuple(int(t) for t in np.sort(threads)[:8]),
                      instructions[site].text, place, max(1, len(threads)))
        with self.lock:
            known = self.found.get((kind, site, other))
            mine = self.position(block)
            if known is not None:
                first = fault if mine < known[0] else known[1]
                mine, fault = min(mine, known[0]), replace(first, times=known[1].times + fault.times)
            self.found[kind, site, other] = mine, fault

    def position(self, block: int) -> int:
        """Where a block comes in the order of the launch."""
        if not self.positions:
            self.positions.update((number, place) for place, number in enumerate(self.indices.tolist()))
        return self.positions[block]

    def _lanes(self, state: State, warp: int, mask: int) -> np.ndarray:
        return self.meeting.threads({state.warp_at(warp): mask})

    def _bounds(self, state: State, record: int, warp: int, mask: int, places: int) -> None:
        self._access("out of bounds", state, record, warp, mask, places)

    def _alignment(self, state: State, record: int, warp: int, mask: int, places: int) -> None:
        self._access("misaligned", state, record, warp, mask, places)

    def _uninitialised(self, state: State, record: int, warp: int, mask: int, places: int, space: str) -> None:
        """Of shared memory it is reported in the end: where the writer came later, the race is the cause."""
        self._access("uninitialised", state, record, warp, mask, places, space)

    def _read_only(self, state: State, record: int, warp: int, mask: int, places: int, space: str) -> None:
        self._access("read-only load", state, record, warp, mask, places, space)

    def _access(self, kind: str, state: State, record: int, warp: int, mask: int, places: int, space: str = "") -> None:
        site = state.site_at(record)
        memory = self.operations[site].memory
        assert memory is not None
        first = (mask & -mask).bit_length() - 1
        address = ctypes.c_int64.from_address(places + 8 * first).value
        if not space and memory.space == "generic":  # those of other spaces are offsets, and small
            space = "global" if address >= GLOBAL_BASE or address < 0 else "shared"
        space = space or memory.space
        if space in ("global", "const"):
            where = self.arena.where(address)
        else:
            whose, limit = ("thread", self.job.program.local_bytes) if space == "local" else ("block", state.shared_bytes)
            where = f"byte {address:,} of the {whose}'s {limit:,} B of {space} memory"
        size, lanes = memory.size_bytes * memory.elements, self._lanes(state, warp, mask)
        said = (kind, site, access_words(kind, self.operations[site].role, size, where, len(lanes)), lanes)
        if kind == "uninitialised" and space == "shared":
            self.unwritten.setdefault(site, []).append((state.block, *said))
        else:
            self.report(state, *said)

    def _collective(self, state: State, site: int, warp: int, mask: int, _: int) -> None:
        lanes = self._lanes(state, warp, mask)
        self.report(state, "absent lane", site, f"{len(lanes)} lane{'s' if len(lanes) > 1 else ''} of a warp "
                    f"read{'s' * (len(lanes) == 1)} from lanes that do not take part", lanes)

    def _active_mask(self, state: State, site: int, warp: int, mask: int, _: int) -> None:
        self.report(state, "active mask", site, "which lanes are here is up to the hardware: name the lanes that must "
                    "take part", self._lanes(state, warp, mask))

    def _undefined(self, state: State, site: int, warp: int, mask: int, place: int) -> None:
        name = next(name for name, at in state.layout.undefined.items() if at == place)
        self.report(state, "uninitialised", site, f"register {name} is used before it was written",
                    self._lanes(state, warp, mask))

    def _trap(self, state: State, site: int, warp: int, mask: int, _: int) -> None:
        self.report(state, "trap", site, "the kernel executed trap", self._lanes(state, warp, mask))
        self.end()

    # ---------------------------------------------------------------- meetings
    def _mixed(self, state: State, site: int, number: int, mask: int, _: int) -> int:
        return DONE if self.meeting.mixed(state, number) else GO_ON

    def _gone(self, state: State, site: int, number: int, mask: int, _: int) -> None:
        self.meeting.gone(state, site, number)

    def _released(self, state: State, site: int, number: int, mask: int, _: int) -> None:
        self.meeting.released(state, number)

    def _arrived(self, state: State, site: int, warp: int, mask: int, number: int) -> None:
        self.meeting.arrived(state, state.warp_at(warp), number)

    def _fence(self, state: State, site: int, warp: int, mask: int, _: int) -> None:
        assert self.detector is not None
        self.detector.fence(state.block, state.warp_at(warp), self.operations[site].target)
        self._tick(state)

    def _warp_barrier(self, state: State, site: int, warp: int, mask: int, _: int) -> None:
        assert self.detector is not None
        number, block = state.warp_at(warp), state.block
        members = WarpLanes(state, number).read(self.operations[site].inputs[0])
        named = int(members[(mask & -mask).bit_length() - 1])
        everyone = int(state.warps["alive"][number]) & 0xFFFFFFFF & ~named == 0
        clock = self.detector.clock(block, number)
        self.detector.warp_sync(block, number, *(() if everyone else (named,)))
        if everyone:
            state.warps["lane_floor"][number] = clock
        self._tick(state)

    def _tick(self, state: State) -> None:
        """Something was ordered: later accesses have a later clock."""
        assert self.detector is not None
        state.context[0]["clock"] = self.detector.clock(state.block, 0)
        if self.detector.releasing:
            for one in self.states:
                one.context[0]["releasing"] = 1

    # ---------------------------------------------------------------- memory that threads share
    def _strong(self, state: State, record: int, warp: int, mask: int, places: int, space: str) -> None:
        """An access that may release or acquire: once for each address."""
        assert self.detector is not None
        operation = self.operations[state.site_at(record)]
        memory = operation.memory
        assert memory is not None
        if not (self.detector.releasing or memory.releases):
            return
        addresses = np.ctypeslib.as_array((ctypes.c_int64 * 32).from_address(places))[lanes_of_mask(mask)]
        for address in np.unique(addresses).tolist():
            self.detector.strong(state.block, state.warp_at(warp), address, operation.role != "store", operation.role != "load",
                                 memory.acquires, memory.releases, memory.scope)
        if memory.releases:
            self._tick(state)

    def _conflict(self, state: State, record: int, warp: int, mask: int, words: int, space: str) -> None:
        """A lane uses a place after somebody whose access may not be ordered before it."""
        assert self.detector is not None
        earlier, owner, wrote, mine, address = (ctypes.c_int64.from_address(words + 8 * index).value for index in range(5))
        where = f"byte {address:,}" if space == "shared" else self.arena.where(address)
        writes = self.operations[state.site_at(record)].role != "load"
        before, after = _access(owner - 1, earlier, bool(wrote)), _access(state.block, mine, writes)
        raced = self.detector.conflict(space, where, before, after)
        if raced and space == "shared" and not wrote:
            self.racing.add(before.site)

    # ---------------------------------------------------------------- instructions without vector code
    def _compute(self, state: State, site: int, warp: int, mask: int, _: int) -> None:
        missing = WarpLanes(state, state.warp_at(warp)).compute(self.operations[site], lanes_of_mask(mask))
        if missing:
            self._collective(state, site, warp, missing, 0)

    def _atomic(self, state: State, record: int, warp: int, mask: int, words: int) -> None:
        operation = self.operations[state.site_at(record)]
        dtype = np.dtype(DTYPES[operation.inputs[0].type])
        cells = np.ctypeslib.as_array((ctypes.c_uint64 * 4).from_address(words))
        given = [cells[i : i + 1].astype(f"u{dtype.itemsize}").view(dtype) for i in range(1 + len(operation.inputs))]
        assert operation.compute is not None
        new = np.ascontiguousarray(operation.compute(*given)).reshape(-1)[:1]
        cells[3] = int(new.view(f"u{dtype.itemsize}")[0])

    def _call(self, state: State, site: int, warp: int, mask: int, _: int) -> None:
        operation, lanes = self.operations[site], WarpLanes(state, state.warp_at(warp))
        active = lanes_of_mask(mask)
        values = [lanes.read(Typed(typed.operand, "u64")) for typed in operation.inputs]
        if operation.target == "__assertfail":
            self._failed(state, site, warp, mask, [int(value[active][0]) for value in values], lanes)
            return
        for lane in np.flatnonzero(active).tolist():
            text = formatted(int(values[0][lane]), int(values[1][lane]), lanes.memory(lane))
            self.printed.append((state.block, text))
        lanes.clear_results(operation, active)

    def _failed(self, state: State, site: int, warp: int, mask: int, values: list[int], lanes: WarpLanes) -> None:
        read: Callable[[int, int], bytes] = lanes.memory((mask & -mask).bit_length() - 1)
        message, file, line, function = text_at(values[0], read), text_at(values[1], read), values[2], text_at(values[3], read)
        self.report(state, "assertion", site, f"{message} ({function} at {file}:{line})", self._lanes(state, warp, mask))
        self.end()


def _access(block: int, record: int, writes: bool) -> Access:
    site = record >> SITE_SHIFT & (1 << CLOCK_SHIFT - SITE_SHIFT) - 1
    return Access(block, record & THREAD, 0, record >> CLOCK_SHIFT, site, writes, bool(record & ATOMIC))
