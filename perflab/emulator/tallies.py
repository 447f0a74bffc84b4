"""What a machine counts while it runs: plain integer arrays by basic block and by site. `counts.py` makes sense of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from perflab.emulator.faults import FaultLog
from perflab.emulator.memory import Arena
from perflab.emulator.operations import Operation
from perflab.emulator.program import Program

REQUESTS, LANES, UNITS, IDEAL = range(4)
"""Columns of `Tally.sites`:

guarded computing, branches and barriers; every memory access and collective:
  REQUESTS  warp executions with at least one lane that takes part (guard true)
  LANES     lanes that took part, summed
global load, store, atomic (also generic ones, for the lanes that lie in global memory):
  UNITS     32-byte sectors: distinct ones among the lanes of a request; IDEAL: ceil(bytes asked by distinct lanes' bytes / 32)
shared load, store, atomic (also generic ones, for the lanes in shared memory; such a site's two spaces share the columns
  of `sites` for global and of `shared_sites` for shared):
  UNITS     wavefronts (see `wavefronts`); IDEAL: what the same distinct bytes would take without a conflict
branch: UNITS = executions in which the active lanes went two ways
"""


@dataclass
class Tally:
    """Counts of one launch. block_*: [blocks] int64; sites, shared_sites: [instructions, 4] int64 (columns above)."""

    block_warps: np.ndarray
    block_lanes: np.ndarray
    sites: np.ndarray
    shared_sites: np.ndarray
    printed: list[str] = field(default_factory=list)

    @staticmethod
    def empty(program: Program) -> Tally:
        """All zero."""
        blocks, sites = len(program.blocks), len(program.instructions)
        return Tally(np.zeros(blocks, np.int64), np.zeros(blocks, np.int64), np.zeros((sites, 4), np.int64),
                     np.zeros((sites, 4), np.int64))

    def add(self, other: Tally) -> None:
        """Add the counts of other blocks of the same launch."""
        for name in ("block_warps", "block_lanes", "sites", "shared_sites"):
            getattr(self, name)[...] += getattr(other, name)
        self.printed += other.printed


@dataclass(frozen=True)
class Job:
    """One launch for a machine.

    parameters        the parameter block, as the program's offsets say
    resident_blocks   how many blocks live at once (what the GPU's occupancy gives, for kernels whose blocks communicate)
    blocks            linear indices of the blocks to run; None: all
    counting          fill the tally; checking: initialisation, races, read-only loads, undefined registers (bounds, alignment,
                      barriers, absent lanes are always checked)
    schedule          'forward', 'reversed' or 'random:SEED': the order in which blocks and warps get their turn
    instruction_limit warp instructions after which the run is given up as an endless loop (kind 'deadlock')
    sms               number of SMs: block b sees %smid b % sms
    operations        what each instruction of the program does, where somebody has decoded them; (): the machine does
    """

    program: Program
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    parameters: bytes
    dynamic_shared_bytes: int = 0
    resident_blocks: int = 132
    blocks: tuple[int, ...] | None = None
    counting: bool = True
    checking: bool = True
    schedule: str = "forward"
    instruction_limit: int = 20_000_000_000
    sms: int = 132
    addresses: dict[str, int] = field(default_factory=dict)  # of .global and .const variables
    operations: tuple[Operation, ...] = ()


# A machine is a function run(job: Job, arena: Arena, log: FaultLog) -> Tally.
__all__ = ["IDEAL", "LANES", "REQUESTS", "UNITS", "Arena", "FaultLog", "Job", "Tally", "sectors", "wavefronts"]


def sectors(rows: np.ndarray, offsets: np.ndarray, lane_bytes: int) -> tuple[int, int]:
    """32-byte sectors of requests, and the fewest that the same bytes could need. rows: which request each lane belongs to,
    ascending; offsets: byte offsets from a base that is a multiple of 32, themselves multiples of lane_bytes (at most 32)."""
    shift = lane_bytes.bit_length() - 1
    keys = (rows << 42) | (offsets >> shift)  # 2 ** 42 units of any size: more than an arena has
    step = np.diff(keys)
    if len(step) and int(step.min()) < 0:
        keys = np.sort(keys)
        step = np.diff(keys)
    found = 1 + int(np.count_nonzero(np.diff(keys >> (5 - shift))))
    begins = np.flatnonzero(np.diff(keys >> 42)) + 1
    fresh = step != 0
    distinct = np.diff(np.concatenate(([0], np.cumsum(fresh)[begins - 1], [int(fresh.sum()) + 1])))
    return found, int((-(-distinct * lane_bytes // 32)).sum())


def wavefronts(addresses: np.ndarray, active: np.ndarray | None, lane_bytes: int, load: bool) -> tuple[np.ndarray, np.ndarray]:
    """Shared-memory wavefronts, and how few they would be without a conflict; addresses [n, 32] int64, active [n, 32] bool
    (None: all lanes) -> [n], [n].

    32 banks of 4 bytes; a wavefront serves any lanes, one word a bank. Lanes of up to 4 bytes go at once, of 8 bytes in two
    halves, of 16 bytes in four quarters (one without an active lane costs nothing). A *load* goes in half as many groups where
    all pairs of lanes (i, i ^ 1), or all pairs (i, i ^ 2), ask for one place or have an idle lane; a store never does.
    Source: measured, 1,398 patterns on an H200, all equal to what Nsight Compute's l1tex counter says
    (data/experiments/h200_wavefronts.json); its other one, patched into SASS, says otherwise for 48 loads of 16 bytes.
    """
    group, unit = {8: (16, 8), 16: (8, 16)}.get(lane_bytes, (32, max(4, lane_bytes)))
    units = addresses >> (unit.bit_length() - 1)
    if active is not None:
        units = np.where(active, units, -1)
    apart = _in_groups(units, group, 128 // unit)
    if not load or group == 32:
        return apart
    merging = np.flatnonzero(_paired(units[:, :4], 1) | _paired(units[:, :4], 2))  # few get past their first lanes
    merging = merging[_paired(units[merging], 1) | _paired(units[merging], 2)]
    if len(merging):
        for found, together in zip(apart, _in_groups(units[merging], 2 * group, 128 // unit), strict=True):
            found[merging] = together
    return apart


def _paired(units: np.ndarray, step: int) -> np.ndarray:
    """[n] bool: lanes i and i ^ step ask for one place, or one of them is idle."""
    pairs = units.reshape(len(units), units.shape[1] // (2 * step), 2, step)
    one, other = pairs[:, :, 0], pairs[:, :, 1]
    return ((one == other) | (one < 0) | (other < 0)).all(axis=(1, 2))


def _in_groups(units: np.ndarray, group: int, banks: int) -> tuple[np.ndarray, np.ndarray]:
    """Wavefronts where groups of lanes go one after the other, and the number without a conflict; units [n, 32], -1 is idle."""
    groups = units.reshape(-1, group)
    high = groups.max(axis=1)
    low = groups.min(axis=1)
    if len(low) and low.min() < 0:
        low = np.where(groups < 0, np.iinfo(units.dtype).max, groups).min(axis=1)
    worst = (high >= 0).astype(np.int64)
    ideal = worst.copy()
    far = np.flatnonzero(high - low >= banks)  # where it is less, no two of the words share a bank
    if len(far):
        worst[far], ideal[far] = _conflicts(groups[far], banks)
    each = 32 // group
    return worst.reshape(-1, each).sum(axis=1), ideal.reshape(-1, each).sum(axis=1)


def _conflicts(units: np.ndarray, banks: int) -> tuple[np.ndarray, np.ndarray]:
    """Distinct units in the busiest bank of each group [n, lanes] (-1: idle), and their number divided by the banks."""
    ordered = np.sort(units, axis=1)
    fresh = ordered >= 0
    fresh[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    key = np.arange(len(units))[:, None] * banks + ordered % banks
    in_bank = np.bincount(key[fresh], minlength=len(units) * banks).reshape(-1, banks)
    return in_bank.max(axis=1), -(-fresh.sum(axis=1) // banks)
