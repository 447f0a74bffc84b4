"""Where lanes wait for each other in ways that compiled code leaves to Python: what `meeting` does for the numpy machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from perflab.emulator.meeting import lanes_words, some_words, waiting_words
from perflab.emulator.operations import Operation
from perflab.emulator.paths import Paths
from perflab.emulator.vector.lanes import WarpLanes, lanes_of_mask, mask_of_lanes
from perflab.emulator.vector.layout import BARRIERS, PARKED, RUNNABLE

if TYPE_CHECKING:
    from perflab.emulator.races import Detector
    from perflab.emulator.vector.state import State

Report = Callable[..., None]
Masks = Mapping[int, int]  # warp -> mask of lanes
COUNTED_ROW = 32  # what a warp counts for a barrier with a count, whatever its lanes


class Meeting:
    """Barriers and collectives of the blocks of a launch, where they are strange, and for the race detector."""

    def __init__(self, operations: tuple[Operation, ...], paths: Paths, detector: Detector | None, report: Report) -> None:
        self.operations, self.paths, self.detector, self.report = operations, paths, detector, report
        self.tokens: dict[tuple[int, int], list[Any]] = {}

    # ---------------------------------------------------------------- who waits where
    def waiting(self, state: State, number: int) -> Masks:
        """The lanes that wait at a barrier."""
        masks = state.warps["blocked"][:, number].view(np.uint32)
        return {warp: int(masks[warp]) for warp in np.flatnonzero(masks).tolist()}

    def by_site(self, state: State, masks: Masks) -> dict[int, Masks]:
        """Lanes by the barrier instruction that they wait at; lowest site first."""
        found: dict[int, dict[int, int]] = {}
        blocks = state.job.program.blocks
        for warp, mask in masks.items():
            for block in np.unique(state.warps["pc"][warp][lanes_of_mask(mask)]).tolist():
                lanes = mask_of_lanes(state.warps["pc"][warp] == block) & mask
                found.setdefault(blocks[block - 1].end - 1, {})[warp] = lanes
        return dict(sorted(found.items()))

    @staticmethod
    def threads(masks: Masks) -> np.ndarray:
        """Their linear thread indices."""
        found = [32 * warp + np.flatnonzero(lanes_of_mask(mask)) for warp, mask in sorted(masks.items())]
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def _block_of(self, state: State, site: int) -> int:
        return next(n for n, block in enumerate(state.job.program.blocks) if block.end - 1 == site)

    # ---------------------------------------------------------------- barriers
    def mixed(self, state: State, number: int) -> bool:
        """All wait, but not at one instruction: report it. True where only some go on, as if others had skipped a barrier."""
        sites = self.by_site(state, self.waiting(state, number))
        (first, here), (second, there) = list(sites.items())[:2]
        lines = [state.job.program.instructions[site].place.line for site in (first, second)]
        whose, others = some_words(self.threads(here)), some_words(self.threads(there))
        message = f"of the block, {whose} at the barrier of line {lines[0]}, {others} at that of line {lines[1]}"
        self.report(state, "barrier divergence", first, message, self.threads(here), second)
        a, b = self._block_of(state, first), self._block_of(state, second)
        if b not in self.paths.after[a] or a in self.paths.after[b]:
            return False
        self._let_go(state, number, here)
        return True

    def gone(self, state: State, site: int, number: int) -> None:
        """Some threads went past a barrier and ended, while others wait at it."""
        bit = self.paths.barrier_bits[self._block_of(state, site)].bit_length() - 1
        first = state.layout.past + 4 * bit
        past = state.bytes[:, first : first + 4].copy().view(np.uint32)[:, 0] & ~state.warps["alive"].view(np.uint32)
        gone = self.threads({warp: int(past[warp]) for warp in np.flatnonzero(past).tolist()})
        here = self.threads(self.waiting(state, number))
        message = f"{some_words(here)} wait here, {some_words(gone)} went past and ended"
        self.report(state, "barrier divergence", site, message, here)

    def released(self, state: State, number: int) -> None:
        """A barrier is about to let its warps go: tell the race detector."""
        counted = int(state.context[0]["barriers"][number]["expected"])
        alive = state.warps["alive"].view(np.uint32)
        masks = self.waiting(state, number)
        self._order(state, number, None if not counted else [warp for warp, mask in masks.items() if mask == int(alive[warp])])

    def _order(self, state: State, number: int, warps: list[int] | None) -> None:
        """The warps (None: all of the block) met at a barrier."""
        if self.detector is None:
            return
        block, context = state.block, state.context[0]
        if warps is None:
            self.detector.barrier(block, range(state.warp_count))
        else:
            self.detector.barrier(block, warps, self.tokens.pop((block, number), []))
        context["clock"] = now = self.detector.clock(block, 0)
        if warps is None:
            context["floor"] = now - 1
        else:
            state.warps["lane_floor"][warps] = now - 1

    def arrived(self, state: State, warp: int, number: int) -> None:
        """A warp came by bar.arrive."""
        if self.detector is not None:
            self.tokens.setdefault((state.block, number), []).append(self.detector.arrive(state.block, warp))
            state.context[0]["clock"] = self.detector.clock(state.block, warp)

    def _let_go(self, state: State, number: int, masks: Masks) -> None:
        """Some lanes go on from a barrier, others stay."""
        warps, barrier = state.warps, state.context[0]["barriers"][number]
        for warp, mask in masks.items():
            warps["blocked"][warp, number] &= ~np.uint32(mask).view(np.int32)
            warps["waits"][warp] = np.bitwise_or.reduce(warps["blocked"][warp])
            warps["status"][warp] = RUNNABLE
        self._order(state, number, sorted(masks))
        left = self.waiting(state, number)
        sites = self.by_site(state, left)
        state.context[0]["waiting"] -= len(self.threads(masks))
        alive = warps["alive"].view(np.uint32)
        whole = sum(mask == int(alive[warp]) for warp, mask in left.items())
        barrier["arrived"], barrier["rows"] = len(self.threads(left)), COUNTED_ROW * whole
        barrier["site"], barrier["mixed"] = next(iter(sites), -1), len(sites) > 1

    # ---------------------------------------------------------------- when nothing in a block can run
    def resolve(self, state: State) -> bool:
        """Let those go on whose partners will not come; False where there are none."""
        parked = np.flatnonzero(state.warps["status"] == PARKED).tolist()
        for warp in parked:
            self._resolve(state, warp)
        return bool(parked)

    def complete(self, state: State) -> bool:
        """Barriers with a count that parts of warps complete, now that nobody else can come; False where there are none."""
        for number in range(BARRIERS):
            barrier, masks = state.context[0]["barriers"][number], self.waiting(state, number)
            alive = state.warps["alive"].view(np.uint32)
            parts = sum(mask != int(alive[warp]) for warp, mask in masks.items())
            if masks and barrier["expected"] and barrier["rows"] + COUNTED_ROW * parts >= barrier["expected"]:
                self._let_go(state, number, masks)
                barrier["expected"] = 0
                return True
        return False

    def _resolve(self, state: State, warp: int) -> None:
        state_of, lanes = state.warps[warp], WarpLanes(state, warp)
        parked, alive = (int(state_of[name]) & 0xFFFFFFFF for name in ("parked", "alive"))
        blocks = state.job.program.blocks
        masks = np.zeros(32, np.uint32)
        barriers = 0
        for block in np.unique(state_of["pc"][lanes_of_mask(parked)]).tolist():
            operation = self.operations[blocks[block].first]
            here = lanes_of_mask(parked) & (state_of["pc"] == block)
            masks[here] = lanes.read(operation.inputs[operation.members or 0])[here].astype(np.uint32)
            barriers |= mask_of_lanes(here) if operation.role == "warp_barrier" else 0
        for mask in np.unique(masks[lanes_of_mask(barriers)]).tolist():
            group = mask_of_lanes(masks == mask) & barriers
            if mask & alive & ~group == 0:
                self._let_through(state, warp, group)
                return
        block = int(state_of["pc"][lanes_of_mask(parked)].min())
        group = mask_of_lanes(state_of["pc"] == block) & parked
        mask = int(masks[lanes_of_mask(group)][0])
        missing = [lane for lane in range(32) if mask & alive & ~group & 0xFFFFFFFF & 1 << lane]
        where = " and ".join(f"line {line}" for line in sorted({self._line(state, warp, lane) for lane in missing}))
        wait = "waits" if len(missing) == 1 else "wait"
        self.report(state, "absent lane", blocks[block].first,
                    f"the mask {mask:#010x} names {lanes_words(missing)}, which {wait} at {where}", self.threads({warp: group}))
        self._let_through(state, warp, group)

    def _let_through(self, state: State, warp: int, group: int) -> None:
        bits = np.uint32(group).view(np.int32)
        state.warps["forced"][warp] |= bits
        state.warps["parked"][warp] &= ~bits
        state.warps["status"][warp] = RUNNABLE

    def _line(self, state: State, warp: int, lane: int) -> int:
        """Where a lane that does not run waits."""
        program, block = state.job.program, int(state.warps["pc"][warp][lane])
        if int(state.warps["waits"][warp]) >> lane & 1:
            return program.instructions[program.blocks[block - 1].end - 1].place.line
        return program.instructions[program.blocks[min(block, len(program.blocks) - 1)].first].place.line

    # ---------------------------------------------------------------- deadlocks
    def deadlock_at_barriers(self, state: State) -> None:
        """No thread of a block can go on."""
        masks = {warp: int(mask) & 0xFFFFFFFF for warp, mask in enumerate(state.warps["waits"].tolist()) if mask}
        sites = self.by_site(state, masks)
        first = next(iter(sites))
        words = waiting_words(state.job, sites)  # type: ignore[arg-type]
        self.report(state, "deadlock", first, f"no thread of the block can go on: they wait at {words}",
                    self.threads(sites[first]))

    def deadlock_of_polls(self, states: list[State]) -> None:
        """All that can run only poll, and nothing has changed for long."""
        polled: dict[int, tuple[State, int]] = {}
        for state in states:
            for warp in np.flatnonzero(state.warps["status"] == RUNNABLE).tolist():
                record = int(state.warps["poll_record"][warp])
                if record:
                    polled.setdefault(state.site_at(record), (state, warp))
        sites = sorted(polled)
        state, warp = polled[sites[0]]
        alive, waits = (int(state.warps[name][warp]) & 0xFFFFFFFF for name in ("alive", "waits"))
        words = waiting_words(state.job, sites)  # type: ignore[arg-type]
        self.report(state, "deadlock", sites[0], f"no thread can go on: all that are left wait at {words}",
                    self.threads({warp: alive & ~waits}))

