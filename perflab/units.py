"""What the units of a GPU do in a second, and how much a version asks of each.

Rates are measured ceilings where they hold, else units a clock times the clock, else the datasheet's. Amounts are hardware
counters, or counts of PTX; of what PTX does not say exactly there is a range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perflab import tables
from perflab.ceilings import Ceiling, of_ceiling
from perflab.counters import HardwareCounts
from perflab.gpus import Gpu
from perflab.hardware import launched
from perflab.measurement import CALCULATED, Measurement
from perflab.origins import Origin

if TYPE_CHECKING:
    from perflab.emulator.counts import Counts

ISSUE, FP32, SHARED, L1, L2, DRAM = "issue slots", "FP32 arithmetic", "shared memory", "L1 data path", "L2", "DRAM"
ON_SM = (ISSUE, FP32, SHARED, L1)
WARP, SECTOR_BYTES, SECTORS_A_WAVEFRONT = 32, 32, 4


# ---------------------------------------------------------------- rates
@dataclass(frozen=True)
class Unit:
    """What a unit does in a second, in words too, and how that is known."""

    name: str
    per_second: float
    words: str
    origin: Origin


def units_of(gpu: Gpu, clock: tuple[float, Origin] | None, found: Sequence[Ceiling]) -> dict[str, Unit]:
    """The units whose rate is known.

    clock: SM clock in Hz, and its origin. A scheduler issues one warp instruction a clock, four schedulers an SM; shared memory
    moves 32 banks of 4 bytes a clock (CUDA programming guide). L1 and shared memory are one data path: a wavefront an SM and
    clock, of shared memory or of up to four sectors of one line (this rule gives ncu's L1 throughput on an H200).
    """
    units: list[Unit] = []
    if clock and gpu.sm_count:
        hz, origin = clock
        slots = gpu.limits.sub_partitions * gpu.sm_count
        for name, a_clock in ((ISSUE, slots), (SHARED, gpu.sm_count), (L1, gpu.sm_count)):
            words = f"{a_clock:,} a clock at {hz / 1e6:,.0f} MHz"
            units.append(Unit(name, a_clock * hz, words, Origin("calculated", f"units a clock, SM clock {origin}")))
    peak, memory = gpu.peaks.get("float32"), gpu.memory_bytes_per_second
    sheet = Origin("published", f"datasheet of the {gpu.name}")
    for name, ceiling, a_unit, published in ((FP32, "float32 FMA", 2, peak), (L2, "L2 read", 1, None),
                                             (DRAM, "DRAM read", 1, memory)):
        measured = of_ceiling(found, ceiling)
        if measured or published:
            value, origin = (measured.value, measured.roof.origin) if measured else (published or 0.0, sheet)
            rate = tables.flops_per_second(value) if name == FP32 else tables.bytes_per_second(value)
            words = f"{ceiling if measured else 'datasheet'} {rate}"
            units.append(Unit(name, value / a_unit, words, origin))
    return {unit.name: unit for unit in units}


def clock_of(gpu: Gpu, timed: Measurement | None) -> tuple[float, Origin] | None:
    """The SM clock: as it was over the cold samples, else the datasheet's; None where neither is known."""
    hz = timed.timing.cold.sm_hz if timed else None
    if timed and hz:
        return hz, timed.origin
    return (gpu.clock_hz, Origin("published", f"datasheet of the {gpu.name}")) if gpu.clock_hz else None


# ---------------------------------------------------------------- amounts
@dataclass(frozen=True)
class Amount:
    """How much a unit has to do: `least`, and `most` where only a range is known; in words, and what most of it is.

    is_estimate: it may be less than `least`, too. origin: where `least` is not from what was counted.
    """

    least: float
    words: str
    most: float | None = None
    mostly: str = ""
    is_estimate: bool = False
    origin: Origin | None = None


def measured_amounts(found: HardwareCounts) -> dict[str, Amount]:
    """What the hardware counted, by unit; a unit whose counters were not collected is left out."""
    amounts: dict[str, Amount] = {}
    lanes, fma = total(found, "flops.add.f32", "flops.mul.f32"), found.get("flops.fma.f32")
    if lanes is not None and fma is not None:
        lanes += fma / 2
        amounts[FP32] = Amount(lanes, f"{large(lanes)} adds, multiplies and FMAs of one lane")
    if (issued := found.get("warp_instructions")) is not None:
        of_it = lanes / WARP / issued if lanes and issued else 0.0
        words = f"{large(issued)} warp instructions" + (f", at least {tables.percent(of_it)} of them FP32" if of_it else "")
        amounts[ISSUE] = Amount(issued, words, mostly=FP32 if of_it > 0.5 else "")
    waves = total(found, *(f"shared_{kind}_wavefronts" for kind in ("load", "store", "atomic")))
    if waves is not None:
        conflicts = total(found, "shared_load_conflicts", "shared_store_conflicts")
        by = tables.percent(conflicts / waves) if conflicts is not None and waves else tables.NOTHING
        amounts[SHARED] = Amount(waves, f"{large(waves)} wavefronts, bank conflicts {by} of them",
                                 mostly="bank conflicts" if conflicts and conflicts > waves / 2 else "")
    parts = [[p.get(name) for name in ("l1_percent", "sm_cycles_active_avg", "sm_count")] for p in launched(found)]
    if not any(None in part for part in parts):
        busy = sum(math.prod(value for value in part if value is not None) / 100 for part in parts)
        of_it = (waves or 0.0) / busy if busy else 0.0
        words = f"busy in {large(busy)} cycles of an SM (ncu), {tables.percent(of_it)} of them shared memory's wavefronts"
        others = "global and local memory" if found.get("local_load_sectors") else "global memory"
        amounts[L1] = Amount(busy, words, mostly=SHARED if of_it > 0.5 else others)
    for name, field, words in ((L2, "l2_from_sm_bytes", "asked by the SMs"), (DRAM, "dram_bytes", "moved")):
        if (moved := found.get(field)) is not None:
            amounts[name] = Amount(moved, f"{tables.bytes_(moved)} {words}")
    return amounts


def counted_amounts(found: Counts, once_bytes: int = 0) -> dict[str, Amount]:
    """What the emulator counted of PTX, by unit. once_bytes: that must move between DRAM and the chip, by the study's formula.

    Issue slots: at least the FP32 instructions, up to PTX's (ptxas mostly makes fewer). L1: a wavefront holds one to four
    sectors of one request. L2 and DRAM: at least `once_bytes`, up to every sector (no cache serves anything).
    """
    lanes = sum(n / 2 if kind == "fma" else n for (kind, dtype), n in found.flops_by.items() if dtype == "f32")
    sectors, waves = found.sector_bytes / SECTOR_BYTES, found.shared_wavefronts
    requests = found.global_load_requests + found.global_store_requests + found.global_atomic_requests
    between = f"{tables.bytes_(once_bytes)} that must move once, {tables.bytes_(found.sector_bytes)} in all sectors"
    by = f", bank conflicts {tables.percent(found.shared_conflicts / waves)} of them" if waves else ""
    return {
        ISSUE: Amount(lanes / WARP, f"of FP32, to all {large(found.warp_instructions)} warp instructions of PTX: ptxas mostly "
                      "makes fewer", found.warp_instructions),
        FP32: Amount(lanes, f"{large(lanes)} adds, multiplies and FMAs of one lane"),
        SHARED: Amount(waves, f"{large(waves)} wavefronts of PTX{by}; fewer where ptxas joins neighbouring accesses",
                       mostly="bank conflicts" if found.shared_conflicts > waves / 2 else "", is_estimate=True),
        L1: Amount(waves + max(sectors / SECTORS_A_WAVEFRONT, requests), f"{large(waves)} wavefronts of shared memory, "
                   f"{large(sectors)} sectors of global in {large(requests)} requests", waves + sectors, is_estimate=waves > 0),
        L2: Amount(once_bytes, between, found.sector_bytes, origin=CALCULATED),
        DRAM: Amount(once_bytes, between, found.sector_bytes, origin=CALCULATED),
    }


def total(found: HardwareCounts, *names: str) -> float | None:
    """The sum of counters; None where one of them is absent."""
    values = [found.get(name) for name in names]
    return None if None in values else sum(value for value in values if value is not None)


def large(number: float) -> str:
    """A number of events in words: '77.7 M'."""
    return f"{tables.decimal(number / 1e6)} M" if number >= 1e6 else f"{number:,.0f}"
