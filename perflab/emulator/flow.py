"""Basic blocks, and what is known of registers across them: liveness, and which may be read before they are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perflab.emulator.ptx import (
    Address,
    Arguments,
    Instruction,
    Label,
    Negated,
    Operand,
    Pair,
    PtxError,
    Register,
    Vector,
)

_ENDS = {"bra", "brx", "ret", "exit", "trap", "bar", "barrier"}
_BEGINS = {"shfl", "vote", "match", "redux", "activemask", "elect", "mma", "wmma", "ldmatrix", "stmatrix", "movmatrix"}
_STOPS = {"ret", "exit", "trap"}  # what goes nowhere, unless guarded
LEAVES = frozenset({*_STOPS, "bra"})  # unguarded, they never go on to the instruction behind them
_WITHOUT_RESULT = _ENDS | {"st", "red", "membar", "fence", "nanosleep", "prefetch", "prefetchu", "discard", "cp", "pmevent"}
_WITHOUT_RESULT |= {"brkpt", "setmaxnreg", "griddepcontrol", "stmatrix", "stackrestore", "applypriority"}
_READS_CARRY = {"addc", "subc", "madc"}

CARRY = "%carry"
"""The carry flag: a predicate that .cc writes and addc and the like read, though no operand names it. One for a thread."""


@dataclass(frozen=True)
class Flow:
    """reads, writes: registers of each instruction; bounds: (first, end) of each block; successors: the blocks that may come
    next; block_of: label -> block."""

    instructions: tuple[Instruction, ...]
    reads: tuple[tuple[str, ...], ...]
    writes: tuple[tuple[str, ...], ...]
    bounds: tuple[tuple[int, int], ...]
    successors: tuple[tuple[int, ...], ...]
    block_of: Mapping[str, int]


def split(body: Sequence[Instruction | Label]) -> Flow:
    """Cut a body into blocks as `program.Block` says. It must end in an instruction that goes nowhere else."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    firsts = {0}
    for item in body:
        at = len(instructions)
        if isinstance(item, Label):
            if item.name in labels:
                raise PtxError(f"the label {item.name} stands twice in one function.")
            labels[item.name] = at
            firsts.add(at)
            continue
        if item.opcode in _BEGINS or (item.opcode == "bar" and "warp" in item.modifiers):
            firsts.add(at)
        if item.opcode in _ENDS:
            firsts.add(at + 1)
        instructions.append(item)
    cuts = sorted(firsts - {len(instructions)})
    bounds = tuple(zip(cuts, [*cuts[1:], len(instructions)], strict=True))
    index = {first: number for number, first in enumerate(cuts)}
    block_of = {name: index[at] for name, at in labels.items()}
    successors = tuple(_successors(instructions[end - 1], number, block_of) for number, (_, end) in enumerate(bounds))
    read, written = tuple(map(reads, instructions)), tuple(map(writes, instructions))
    return Flow(tuple(instructions), read, written, bounds, successors, block_of)


def _successors(last: Instruction, block: int, block_of: Mapping[str, int]) -> tuple[int, ...]:
    after = (block + 1,)
    if last.opcode == "bra":
        (target,) = last.operands
        if not isinstance(target, Label) or target.name not in block_of:
            raise PtxError(f"{last.place}: {last.text} goes to a label that does not exist.")
        return ((block_of[target.name], *after) if last.guard else (block_of[target.name],))
    if last.opcode == "brx":
        raise PtxError(f"{last.place}: {last.text} branches by a table, which cannot be emulated; if and else can.")
    if last.opcode in _STOPS and last.guard is None:
        return ()
    return after


# ---------------------------------------------------------------- registers of one instruction
def writes(instruction: Instruction) -> tuple[str, ...]:
    """The registers that an instruction writes."""
    operands = instruction.operands
    if instruction.opcode == "call":
        return tuple(_registers(operands[0]))
    carry = (CARRY,) if "cc" in instruction.modifiers else ()
    reduces = instruction.opcode in ("bar", "barrier") and "red" in instruction.modifiers
    if not operands or (instruction.opcode in _WITHOUT_RESULT and not reduces) or isinstance(operands[0], Address):
        return ()
    return (*_registers(operands[0]), *carry)


def reads(instruction: Instruction) -> tuple[str, ...]:
    """The registers that an instruction reads, its guard included."""
    operands = instruction.operands
    found = [instruction.guard.register] if instruction.guard else []
    found += [CARRY] if instruction.opcode in _READS_CARRY else []
    for operand in operands[1:] if instruction.opcode == "call" or writes(instruction) else operands:
        found += _registers(operand)
    return tuple(found)


def _registers(operand: Operand) -> Iterator[str]:
    if isinstance(operand, Register):
        yield operand.name
    elif isinstance(operand, Address):
        yield from _registers(operand.base)
    elif isinstance(operand, Vector | Arguments):
        for item in operand.items:
            yield from _registers(item)
    elif isinstance(operand, Pair):
        yield from _registers(operand.first)
        yield from _registers(operand.second)
    elif isinstance(operand, Negated):
        yield operand.register.name


# ---------------------------------------------------------------- registers across blocks
class _Sets:
    """Sets of registers as integers, a bit each."""

    def __init__(self, flow: Flow) -> None:
        self.numbers: dict[str, int] = {}
        self.reads = [self.of(names) for names in flow.reads]
        self.writes = [self.of(names) for names in flow.writes]
        # a guarded write happens or not: it neither ends the life of the old value nor defines the register
        self.surely = [0 if i.guard else written for i, written in zip(flow.instructions, self.writes, strict=True)]
        self.order = list(self.numbers)

    def of(self, names: Sequence[str]) -> int:
        bits = 0
        for name in names:
            bits |= 1 << self.numbers.setdefault(name, len(self.numbers))
        return bits

    def names(self, bits: int) -> frozenset[str]:
        found = []
        while bits:
            lowest = bits & -bits
            found.append(self.order[lowest.bit_length() - 1])
            bits ^= lowest
        return frozenset(found)


def live_out(flow: Flow) -> tuple[frozenset[str], ...]:
    """For each block the registers that it writes and that may be read after it."""
    sets = _Sets(flow)
    needs, ends, written = [], [], []
    for first, end in flow.bounds:
        need = end_of = write = 0
        for site in range(first, end):
            need |= sets.reads[site] & ~end_of
            end_of |= sets.surely[site]
            write |= sets.writes[site]
        needs.append(need)
        ends.append(end_of)
        written.append(write)
    entering, leaving = list(needs), [0] * len(needs)
    changed = True
    while changed:
        changed = False
        for block in reversed(range(len(needs))):
            out = 0
            for successor in flow.successors[block]:
                out |= entering[successor]
            leaving[block] = out
            value = needs[block] | (out & ~ends[block])
            if value != entering[block]:
                entering[block] = value
                changed = True
    return tuple(sets.names(out & write) for out, write in zip(leaving, written, strict=True))


def maybe_undefined(flow: Flow) -> frozenset[str]:
    """The registers that some path from the start reads before it surely wrote them."""
    sets = _Sets(flow)
    everything = -1
    defined = [everything] * len(flow.bounds)  # on every path to the block's start; unreached blocks stay as they are
    defined[0] = 0
    missing, waiting = 0, [0]
    while waiting:
        block = waiting.pop()
        known = defined[block]
        for site in range(*flow.bounds[block]):
            missing |= sets.reads[site] & ~known
            known |= sets.surely[site]
        for successor in flow.successors[block]:
            value = defined[successor] & known
            if value != defined[successor]:
                defined[successor] = value
                waiting.append(successor)
    return sets.names(missing)
