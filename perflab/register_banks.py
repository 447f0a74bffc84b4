"""What a loop's machine code reads of the register file: the operands that fall on one bank, and the clocks they take.

A scheduler of an SM issues an instruction of a warp a clock; an FFMA has three operands. The registers lie in two banks, even
and odd numbers, and a bank gives one operand of a warp a clock. An operand marked .reuse is kept for the same place of the
warp's next instruction and is not read again. NVIDIA documents none of this; what is known comes of measurements (Jia et al.,
"Dissecting the NVIDIA Volta GPU architecture via microbenchmarking", 2018; Huerta et al., "Analyzing Modern NVIDIA GPU cores",
2025), and SLACK_CLOCKS of one kernel of ours. Twelve ways to write its loop were then measured (kernels/what_held_it): what the
rule says is lost goes with their dispatch stalls, and with waits for shared memory explains their times to 1.3 %. A slack of 2
clocks does as well as 1; of 0, or of 4, worse.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from perflab.compile import Binary
from perflab.errors import PerflabError
from perflab.origins import Origin
from perflab.resources import disassembly, source_place
from perflab.tables import Shown, Table, decimal

ARCHITECTURES = ("sm_90",)  # where the rule was held against measured times
SLACK_CLOCKS = 1  # operands may come that much after the clock in which their instruction issues
LEAST = 32  # instructions of a loop that is worth a row
_TURNS = 8  # enough for what one turn leaves to the next to settle

# Opcodes that read their operands through the banks at issue. Memory instructions and others of variable latency read later.
_AT_ISSUE = frozenset((
    "FFMA", "FMUL", "FADD", "FMNMX", "FSEL", "FSETP", "IMAD", "IADD3", "LOP3", "ISETP", "SEL", "LEA", "SHF", "MOV", "PRMT",
    "IMNMX", "VIMNMX", "HFMA2", "HADD2", "HMUL2",
))
_WITHOUT_RESULT = {"FSETP": 2, "ISETP": 2}  # these write two predicates, all others one register
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)([\w.]*)\s*(.*?)\s*;")
_LABEL = re.compile(r"^(\.L\w*):")
_TARGET = re.compile(r"\(?`?\(?(\.L\w+)\)")
_REGISTER = re.compile(r"[-|~!]*R(\d+)(?:\.\w+)*?(\.reuse)?(?:\.\w+)*\|?$")


@dataclass(frozen=True)
class Instruction:
    """One line of machine code: its opcode without modifiers, operands as text, and the source line that it came of."""

    opcode: str
    operands: tuple[str, ...]
    place: tuple[str, int]


@dataclass(frozen=True)
class Loop:
    """An innermost loop of a kernel, one turn of it.

    place:       file and first and last line of the instructions, 'register_tile.cuh:121-132'
    ffma:        FFMA instructions among `instructions`
    reads:       operands read of the even and of the odd bank
    clocks:      of a scheduler that runs turn after turn of it, by the rule above: at least one an instruction
    """

    place: str
    instructions: int
    ffma: int
    reads: tuple[int, int]
    clocks: float

    @property
    def ffma_a_clock(self) -> float:
        """The most FFMA instructions that a scheduler issues a clock in this loop; 1 is the FP32 peak."""
        return self.ffma / self.clocks


@dataclass(frozen=True)
class RegisterBanks(Shown):
    """The innermost loops of one kernel, in the order of the code, and what they read of the register file."""

    name: str
    architecture: str
    loops: tuple[Loop, ...]
    origin: Origin = field(repr=False)

    def table(self) -> Table:
        """One row a loop."""
        rows = [(one.place, one.instructions, one.ffma, *one.reads, decimal(one.clocks), decimal(one.ffma_a_clock))
                for one in self.loops]
        columns = ("loop", "instructions", "FFMA", "reads, even", "reads, odd", "clocks a turn", "FFMA a clock")
        note = "modelled: two banks, one operand a clock each, at most " + f"{SLACK_CLOCKS} clock late"
        return Table(f"register reads of {self.name} on {self.architecture}", columns, rows, str(self.origin), [note])


def register_banks(binary: Binary, entry: str, name: str | None = None) -> RegisterBanks:
    """Of the kernel with that mangled name. Raises PerflabError for an architecture whose register file was not measured."""
    if binary.architecture.rstrip("af") not in ARCHITECTURES:
        raise PerflabError(f"the register file of {binary.architecture} was not measured; known: {', '.join(ARCHITECTURES)}")
    loops = tuple(_loop(turn) for turn in innermost_loops(disassembly(binary.cubin), entry) if len(turn) >= LEAST)
    return RegisterBanks(name or entry, binary.architecture, loops, binary.origin)


def innermost_loops(text: str, entry: str) -> Iterator[list[Instruction]]:
    """The bodies of the innermost loops of one kernel, out of what nvdisasm -g -c printed: label to backward branch."""
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    ends: dict[int, int] = {}  # of a loop's last instruction -> its first
    place, here = ("", 0), False
    for line in text.splitlines():
        if line.startswith(".text."):
            here = line == f".text.{entry}:"
        elif not here:
            continue
        elif found := _LABEL.match(line):
            labels[found[1]] = len(code)
        elif named := source_place(line):
            place = named
        elif found := _INSTRUCTION.search(line):
            opcode, operands = found[2], found[4]
            target = _TARGET.search(operands) if opcode == "BRA" else None
            if target and target[1] in labels:
                ends[len(code)] = labels[target[1]]
            code.append(Instruction(opcode, tuple(part.strip() for part in operands.split(",")), place))
    for last, first in sorted(ends.items()):
        if not any(first <= other_first and other < last for other, other_first in ends.items()):
            yield code[first : last + 1]


def _loop(turn: Sequence[Instruction]) -> Loop:
    reads = bank_reads(turn)
    file, _ = max(((one.place[0], 1) for one in turn), key=lambda pair: sum(one.place[0] == pair[0] for one in turn))
    lines = [one.place[1] for one in turn if one.place[0] == file]
    return Loop(f"{file}:{min(lines)}-{max(lines)}", len(turn), sum(one.opcode == "FFMA" for one in turn),
                (sum(even for even, _ in reads), sum(odd for _, odd in reads)), clocks_of(reads))


def bank_reads(code: Sequence[Instruction]) -> list[tuple[int, int]]:
    """(operands of the even bank, of the odd bank) that each instruction reads, one after the other in one warp."""
    kept: Mapping[int, int] = {}
    found = []
    for one in code:
        registers, marked = set(), {}
        if one.opcode in _AT_ISSUE:
            for slot, operand in enumerate(one.operands[_WITHOUT_RESULT.get(one.opcode, 1) :]):
                match = _REGISTER.match(operand)
                if match is None:
                    continue
                number = int(match[1])
                if kept.get(slot) != number:
                    registers.add(number)
                if match[2]:
                    marked[slot] = number
        kept = marked
        odd = sum(number % 2 for number in registers)
        found.append((len(registers) - odd, odd))
    return found


def clocks_of(reads: Sequence[tuple[int, int]], slack_clocks: int = SLACK_CLOCKS) -> float:
    """Clocks a turn of a loop of these reads: one an instruction; the next waits while a bank is behind by over the slack."""
    read_until, now, settled = [0, 0], 0, 0
    for turn in range(_TURNS):
        if turn == _TURNS // 2:
            settled = now
        for wanted in reads:
            read_until = [max(until, now) + more if more else until for until, more in zip(read_until, wanted, strict=True)]
            now = max(now + 1, max(read_until) - slack_clocks)
    return (now - settled) / (_TURNS - _TURNS // 2)
