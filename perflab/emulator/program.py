"""One kernel, ready to run: calls inlined, basic blocks, addresses of its variables, and what is known of its registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perflab.emulator.ptx import Instruction, Variable


@dataclass(frozen=True)
class Block:
    """Instructions [first, end): entered only at `first`, left only after its last one.

    A block ends after a branch, ret, exit, trap, any bar/barrier, and *before* each warp collective (shfl, vote, match, redux,
    activemask, bar.warp.sync), which begins a block of its own: a warp can be parked there.
    live_out: registers written in the block that some later block (or the block itself, entered again) may read.
    """

    first: int
    end: int
    live_out: frozenset[str]


@dataclass(frozen=True)
class Program:
    """A kernel as both machines run it. An instruction's index in `instructions` is its *site*.

    registers         name -> bits (1, 16, 32, 64, 128)
    blocks            in text order; the lowest-numbered waiting block runs first, so lanes come together at joins
    block_of          label -> index into blocks
    parameters        (name, offset, size) in the parameter block, with C's alignment: offsets as the driver wants them
    shared            name -> offset in a block's shared memory; dynamic shared memory begins at `dynamic_shared_offset`
    local             name -> offset in a thread's local memory of `local_bytes` (params of inlined calls lie there too)
    variables         .global and .const variables that the kernel names, in order
    maybe_undefined   registers that some path reads before it wrote them; all others need no tracking
    communicates      True where blocks can talk: atomics, reductions or volatile/relaxed/acquire/release accesses or fences on
                      global or generic memory. Blocks of the others are independent.
    """

    name: str
    target: str
    instructions: tuple[Instruction, ...]
    registers: Mapping[str, int]
    blocks: tuple[Block, ...]
    block_of: Mapping[str, int]
    parameters: tuple[tuple[str, int, int], ...]
    shared: Mapping[str, int]
    static_shared_bytes: int
    dynamic_shared_offset: int
    local: Mapping[str, int]
    local_bytes: int
    variables: tuple[Variable, ...]
    maybe_undefined: frozenset[str]
    communicates: bool
    max_threads: int | None


def program(ptx: str, entry: str) -> Program:
    """The kernel `entry` (mangled name) of a PTX text. Raises PtxError for what is not understood, PerflabError for an
    unknown entry (naming those there are), recursion or an indirect call."""
    raise NotImplementedError
