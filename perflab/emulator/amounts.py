"""`Amounts`: what some instructions did, as plain sums that add; the rules from a machine's tally to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import numpy as np

from perflab.emulator.operations import Memory, Operation
from perflab.emulator.program import Program
from perflab.emulator.tallies import IDEAL, LANES, REQUESTS, UNITS, Tally

SECTOR_BYTES = 32
_NOTHING: Mapping[Any, int] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """Counts that add: of a site, a source line, a launch.

    warp_instructions    executions by a warp, whatever the guard; thread_instructions: their active lanes, summed
    by_class             class -> warp instructions; thread_by_class: the same in lanes
    flops_by             (kind, dtype) -> FLOPs: fma 2 a lane, add and mul 1, packed ones twice that
    global_*_bytes       what lanes asked for; _sectors: distinct 32-byte sectors a request, summed; _ideal_sectors: what the
                         distinct bytes would need if they lay together; _requests: warp executions with at least one lane
    shared_*_wavefronts  by the rule of `tallies.wavefronts`; _ideal_wavefronts: without a conflict
    branches             warp executions of conditional branches; branches_split: those whose lanes went two ways
    barriers             warp executions of barriers; atomics: lanes that did one, in any memory
    """

    warp_instructions: int = 0
    thread_instructions: int = 0
    global_load_bytes: int = 0
    global_load_sectors: int = 0
    global_load_ideal_sectors: int = 0
    global_load_requests: int = 0
    global_store_bytes: int = 0
    global_store_sectors: int = 0
    global_store_ideal_sectors: int = 0
    global_store_requests: int = 0
    global_atomic_bytes: int = 0
    global_atomic_sectors: int = 0
    global_atomic_ideal_sectors: int = 0
    global_atomic_requests: int = 0
    shared_load_bytes: int = 0
    shared_load_wavefronts: int = 0
    shared_load_ideal_wavefronts: int = 0
    shared_load_requests: int = 0
    shared_store_bytes: int = 0
    shared_store_wavefronts: int = 0
    shared_store_ideal_wavefronts: int = 0
    shared_store_requests: int = 0
    shared_atomic_bytes: int = 0
    shared_atomic_wavefronts: int = 0
    shared_atomic_ideal_wavefronts: int = 0
    shared_atomic_requests: int = 0
    local_load_bytes: int = 0
    local_store_bytes: int = 0
    branches: int = 0
    branches_split: int = 0
    barriers: int = 0
    atomics: int = 0
    by_class: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    thread_by_class: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    flops_by: Mapping[tuple[str, str], int] = field(default_factory=lambda: _NOTHING)

    @property
    def flops(self) -> int:
        """FLOPs of every kind and dtype."""
        return sum(self.flops_by.values())

    @property
    def asked_bytes(self) -> int:
        """Bytes that the lanes' global loads, stores and atomics asked for."""
        return self.global_load_bytes + self.global_store_bytes + self.global_atomic_bytes

    @property
    def sector_bytes(self) -> int:
        """Bytes of the 32-byte sectors that global loads, stores and atomics touched, request by request."""
        return SECTOR_BYTES * (self.global_load_sectors + self.global_store_sectors + self.global_atomic_sectors)

    @property
    def excess_sectors(self) -> int:
        """Sectors beyond what the same bytes would need if the lanes of a request lay together."""
        return sum(getattr(self, f"global_{kind}_sectors") - getattr(self, f"global_{kind}_ideal_sectors") for kind in _KINDS)

    @property
    def shared_load_conflicts(self) -> int:
        """Wavefronts of shared loads beyond the conflict-free number."""
        return self.shared_load_wavefronts - self.shared_load_ideal_wavefronts

    @property
    def shared_store_conflicts(self) -> int:
        """Wavefronts of shared stores beyond the conflict-free number."""
        return self.shared_store_wavefronts - self.shared_store_ideal_wavefronts

    @property
    def shared_wavefronts(self) -> int:
        """Wavefronts of shared loads, stores and atomics."""
        return sum(getattr(self, f"shared_{kind}_wavefronts") for kind in _KINDS)

    @property
    def shared_conflicts(self) -> int:
        """Wavefronts of shared memory beyond the conflict-free number."""
        return self.shared_wavefronts - sum(getattr(self, f"shared_{kind}_ideal_wavefronts") for kind in _KINDS)

    @property
    def average_active_lanes(self) -> float:
        """Active lanes of an executed warp instruction, of 32; NaN where nothing was executed."""
        return self.thread_instructions / self.warp_instructions if self.warp_instructions else float("nan")

    @property
    def amounts(self) -> Amounts:
        """These sums alone."""
        return self if type(self) is Amounts else Amounts(**{f.name: getattr(self, f.name) for f in fields(Amounts)})


_KINDS = ("load", "store", "atomic")
_MAPPINGS = ("by_class", "thread_by_class", "flops_by")
NUMBERS = tuple(f.name for f in fields(Amounts) if f.name not in _MAPPINGS)
"""The fields of `Amounts` that are one number."""
_NUMBERS_OF = attrgetter(*NUMBERS)


def total(several: Iterable[Amounts]) -> Amounts:
    """The sum."""
    several = tuple(several)
    if len(several) == 1:
        return several[0].amounts
    numbers: dict[str, Any] = dict(zip(NUMBERS, map(sum, zip(*map(_NUMBERS_OF, several), strict=True)), strict=False))
    for name in _MAPPINGS:
        added: dict[Any, int] = {}
        for one in several:
            for key, n in getattr(one, name).items():
                added[key] = added.get(key, 0) + n
        numbers[name] = _frozen(added)
    return Amounts(**numbers)


def scaled(one: Amounts, factor: float) -> Amounts:
    """Every sum times `factor`, rounded to whole numbers: a sample of the blocks made the whole grid."""
    numbers: dict[str, Any] = {name: round(getattr(one, name) * factor) for name in NUMBERS}
    for name in _MAPPINGS:
        numbers[name] = _frozen({key: round(n * factor) for key, n in getattr(one, name).items()})
    return Amounts(**numbers)


def to_dict(one: Amounts) -> dict[str, Any]:
    """As JSON, zeros left out."""
    numbers = {name: getattr(one, name) for name in NUMBERS if getattr(one, name)}
    flops = [[*key, n] for key, n in one.flops_by.items()]
    return {**numbers, "by_class": dict(one.by_class), "thread_by_class": dict(one.thread_by_class), "flops_by": flops}


def from_dict(data: Mapping[str, Any]) -> Amounts:
    """Back from `to_dict`."""
    flops = {(kind, dtype): n for kind, dtype, n in data["flops_by"]}
    maps = {name: _frozen(data[name]) for name in ("by_class", "thread_by_class")}
    return Amounts(**{**data, **maps, "flops_by": _frozen(flops)})


def _frozen(mapping: Mapping[Any, int]) -> Mapping[Any, int]:
    """A mapping that nobody changes, largest number first."""
    return MappingProxyType(dict(sorted(mapping.items(), key=lambda item: (-item[1], item[0]))))


# ---------------------------------------------------------------- from a tally
def by_site(program: Program, operations: Sequence[Operation], tally: Tally) -> list[Amounts]:
    """What each instruction did, in the order of the program. `operations`: one an instruction."""
    found = []
    for number, block in enumerate(program.blocks):
        warps, lanes = int(tally.block_warps[number]), int(tally.block_lanes[number])
        for site in range(block.first, block.end):
            found.append(_of_site(operations[site], warps, lanes, tally.sites[site], tally.shared_sites[site]))
    return found


def _of_site(operation: Operation, warps: int, lanes: int, site: np.ndarray, shared: np.ndarray) -> Amounts:
    """One instruction that warps executed `warps` times with `lanes` active lanes in all."""
    if not warps:
        return Amounts()
    guarded = operation.instruction.guard is not None
    part = int(site[LANES]) if guarded else lanes  # those whose guard was true
    numbers: dict[str, Any] = {"warp_instructions": warps, "thread_instructions": lanes}
    if operation.role == "branch" and guarded:
        numbers |= {"branches": warps, "branches_split": int(site[UNITS])}
    elif operation.role in ("barrier", "warp_barrier"):
        numbers["barriers"] = warps
    if operation.memory is not None:
        numbers |= _of_memory(operation.role, operation.memory, site, shared, None if guarded else lanes)
    flops = {(operation.flop_kind, operation.flop_type): operation.flops * part} if operation.flops else {}
    return Amounts(**numbers, by_class={operation.category: warps}, thread_by_class={operation.category: lanes}, flops_by=flops)


def _of_memory(role: str, memory: Memory, site: np.ndarray, shared: np.ndarray, lanes: int | None) -> dict[str, int]:
    """The memory side; `lanes`: all that executed it, None where the guard chose some."""
    lane_bytes, found = memory.size_bytes * memory.elements, dict[str, int]()
    if memory.space in ("global", "generic"):
        found |= _of_space(f"global_{role}", "sectors", lane_bytes, site)
    if memory.space in ("shared", "generic"):
        # A generic access keeps its shared lanes apart in `shared`; a plain one has all it did in `site`.
        found |= _of_space(f"shared_{role}", "wavefronts", lane_bytes, shared if memory.space == "generic" else site)
    if role == "atomic":
        found["atomics"] = int(site[LANES]) + (int(shared[LANES]) if memory.space == "generic" else 0)
    elif memory.space == "local":
        found[f"local_{role}_bytes"] = lane_bytes * int(site[LANES])
    elif memory.space == "generic" and lanes is not None:  # what is neither global nor shared
        found[f"local_{role}_bytes"] = lane_bytes * max(0, lanes - int(site[LANES]) - int(shared[LANES]))
    return found


def _of_space(prefix: str, units: str, lane_bytes: int, row: np.ndarray) -> dict[str, int]:
    return {f"{prefix}_bytes": lane_bytes * int(row[LANES]), f"{prefix}_requests": int(row[REQUESTS]),
            f"{prefix}_{units}": int(row[UNITS]), f"{prefix}_ideal_{units}": int(row[IDEAL])}
