"""What compiled code and Python share: a block's context, a warp's state, a site's counters, as numpy structures."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from perflab.emulator.program import Program
from perflab.emulator.vector.flow import offsets
from perflab.emulator.vector.values import LANES

BARRIERS = 16

BARRIER = np.dtype([("arrived", "i4"), ("rows", "i4"), ("expected", "i4"), ("site", "i4"), ("mixed", "i4"), ("bit", "i4"),
                    ("count", "i4"), ("all", "i4"), ("any", "i4")])
"""One of a block's 16. arrived: threads that wait; rows: 32 for each warp that waits whole or came by `arrive`; expected:
threads, 0 for all of the block; site: of the last arrival, -1: nobody waits; mixed: some wait at another site; bit: which of
`Paths`' barriers it is, -1: none; count, all, any: predicates of bar.red."""

CONTEXT = np.dtype([(name, "i8") for name in (
    "arena", "marks", "flags", "buffers", "buffer_count", "shared", "shared_bytes", "shared_flags", "parameters",
    "parameter_bytes", "symbols", "block_warps", "block_lanes", "records", "warps", "warp_count", "order", "event", "worker",
    "fuel", "quantum", "spent", "stopped", "changes", "index", "turn", "ctaid.x", "ctaid.y", "ctaid.z", "ntid.x", "ntid.y",
    "ntid.z", "nctaid.x", "nctaid.y", "nctaid.z", "smid", "nsmid", "dynamic_shared", "threads", "live_threads", "live_warps",
    "waiting", "cells", "shared_cells", "clock", "floor", "releasing", "asked", "asked_of", "asked_by")]
    + [("barriers", BARRIER, BARRIERS)])
"""A block that runs. arena, marks, flags: host address of the byte of device address 0; a pointer else. buffers: pairs of
device addresses [first, end). quantum: warp instructions, about, of a warp's turn; fuel: what is left of it; spent: by all
turns so far. changes: what may let others go on, stores above all. waiting: threads at barriers. marks: READ and WRITTEN of
this worker's blocks; flags: the arena's, when checking; clock, floor: of the race detector; asked*: the pair that it was
asked about last."""

WARP = np.dtype([
    ("pc", "i4", LANES), ("tid.x", "i4", LANES), ("tid.y", "i4", LANES), ("tid.z", "i4", LANES), ("blocked", "i4", BARRIERS),
    ("poll_record", "i8"), ("poll_keys", "i8", 2), *((name, "i4") for name in (
        "polls", "started", "alive", "waits", "parked", "forced", "next_wait", "status", "index", "highest", "red_slot",
        "red_kind", "red_mask", "lane_floor"))])
"""A warp. Masks: started (threads that exist), alive (not exited), waits (at a barrier: the or of blocked[id]), parked (at a
collective whose other lanes are elsewhere), forced (may pass a collective all the same). next_wait: lowest block where lanes
wait that are not running. polls: uses of memory in a row that look like waiting, at one of the places poll_keys; highest: run
the highest block first, for a turn. red_*: where a bar.red's result goes. lane_floor: clock of the latest barrier of the whole
warp."""

RECORD = np.dtype([("site", "i8", 4), ("shared", "i8", 4), ("other", "i8", 4), ("first", "i8"), ("last", "i8")])
"""Counters of one site (other: of generic addresses that lie nowhere else), and the buffer [first, last) it hit last."""

CONTEXT_AT, WARP_AT, RECORD_AT, BARRIER_AT = (offsets(kind) for kind in (CONTEXT, WARP, RECORD, BARRIER))

RUNNABLE, WAITING, PARKED, DONE, HALTED = range(5)
"""`status` of a warp, and what running it returns: it can run (and fuel is out), waits at a barrier, has lanes parked at a
collective and none that can run, has ended; an event said stop."""

BLOCK_DONE, OUT_OF_FUEL, STUCK, STOPPED = range(4)
"""What running a block returns: all its threads ended; a look is due; no warp can run; an event said stop."""

EVENTS = ("compute", "bounds", "alignment", "call", "mixed", "gone", "trap", "collective", "released", "arrived", "fence",
          "warp_barrier", "undefined", "atomic", "active_mask",
          *(f"{what}.{space}" for what in ("conflict", "uninitialised", "read_only", "strong")
            for space in ("shared", "global")))
"""What compiled code calls Python for: event(worker, kind, site, warp, mask, address) -> 0 to go on, 1 to stop, or 2: done."""
EVENT = {name: index for index, name in enumerate(EVENTS)}


@dataclass(frozen=True)
class Layout:
    """Where things lie in a warp's bytes. slots: register -> offset; cleared: bytes that must start as 0; local: memory of
    lane 0, that of the others `local_stride` apart; past: masks of lanes that have come past a barrier for good; undefined:
    register -> mask of lanes in which it holds nothing defined, at first all of the first `never_written` registers;
    constants: registers that hold one number wherever they are read, and are in no memory."""

    slots: dict[str, int]
    cleared: tuple[int, int]
    local: int
    local_bytes: int
    local_stride: int
    past: int
    barriers: int
    undefined: dict[str, int]
    never_written: int
    warp_bytes: int
    constants: Mapping[str, int]


def slot_bytes(bits: int) -> int:
    """A predicate is a mask of 32 bits; all else has its raw bits, lane after lane."""
    return 4 if bits == 1 else LANES * bits // 8


def layout(program: Program, barriers: int, tracked: Collection[str], constants: Mapping[str, int]) -> Layout:
    """Header, registers that may be read before they are written, other registers, local memory [lane][byte], masks."""
    slots: dict[str, int] = {}
    end = first = -(-WARP.itemsize // 64) * 64
    cleared = 0
    for name in sorted(program.registers, key=lambda name: name not in program.maybe_undefined):
        size = slot_bytes(program.registers[name])
        end = slots[name] = -(-end // min(size, 32)) * min(size, 32)
        end += size
        cleared = end - first if name in program.maybe_undefined else cleared
    local = -(-end // 64) * 64
    stride = -(-program.local_bytes // 16) * 16
    past = local + LANES * stride
    follows = sorted(tracked, key=lambda name: (name not in program.maybe_undefined, name))
    undefined = {name: past + 4 * (barriers + index) for index, name in enumerate(follows)}
    never = sum(name in program.maybe_undefined for name in tracked)
    total = -(-(past + 4 * (barriers + len(undefined))) // 64) * 64
    return Layout(slots, (first, cleared), local, program.local_bytes, stride, past, barriers, undefined, never,
                  total + 64, constants)  # + 64: warps do not lie a power of two apart
