"""Which basic blocks may run after which, and what it means for barriers: where a thread stands that has gone past one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perflab.emulator.operations import Operation
from perflab.emulator.program import Program

_MOST_BARRIERS = 62  # bits of an int64


@dataclass(frozen=True)
class Paths:
    """after: for each block, those that may run some time after it. barrier_bits: block that ends in a barrier -> its bit.

    past: for each block, the bits of the barriers after which it comes and to which no way leads back; blocks that only exit
    have none: a thread may leave early, but one that works on behind a barrier has skipped it.
    """

    after: tuple[frozenset[int], ...]
    barrier_bits: Mapping[int, int]
    past: tuple[int, ...]

    @staticmethod
    def of(program: Program, operations: Sequence[Operation]) -> Paths:
        """Of a kernel."""
        following = [_following(program, operations, number) for number in range(len(program.blocks))]
        after = tuple(_reachable(following, number) for number in range(len(program.blocks)))
        barriers = [n for n, block in enumerate(program.blocks) if operations[block.end - 1].role == "barrier"]
        bits = {block: 1 << k for k, block in enumerate(barriers[:_MOST_BARRIERS])}
        past = []
        for number, block in enumerate(program.blocks):
            leaves = all(operations[site].role in ("exit", "nothing") for site in range(block.first, block.end))
            past.append(0 if leaves else sum(
                bit for barrier, bit in bits.items() if number in after[barrier] and barrier not in after[number]
                and number != barrier))
        return Paths(after, bits, tuple(past))


def _following(program: Program, operations: Sequence[Operation], number: int) -> tuple[int, ...]:
    last = operations[program.blocks[number].end - 1]
    after = (number + 1,) if number + 1 < len(program.blocks) else ()
    guarded = last.instruction.guard is not None
    if last.role == "branch":
        return (program.block_of[last.target], *(after if guarded else ()))
    return after if guarded or last.role not in ("exit", "trap") else ()


def _reachable(following: Sequence[tuple[int, ...]], start: int) -> frozenset[int]:
    found: set[int] = set()
    waiting = list(following[start])
    while waiting:
        block = waiting.pop()
        if block not in found:
            found.add(block)
            waiting.extend(following[block])
    return frozenset(found)
