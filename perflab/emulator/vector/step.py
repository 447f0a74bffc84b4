"""`Step`: one instruction on its way to LLVM code, as the rules of this package see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from perflab.emulator.operations import Operation
from perflab.emulator.ptx import Immediate
from perflab.emulator.vector.values import BITS

PACKED = ("f16x2", "bf16x2", "s16x2", "u16x2", "f32x2")
ROUNDINGS = ("rn", "rz", "rm", "rp")
WHOLE = ("rni", "rzi", "rmi", "rpi")


@dataclass(frozen=True)
class Step:
    """build: where code goes; values: one vector for each input of the operation, raw bits in the size of its type."""

    build: ir.IRBuilder
    operation: Operation
    values: Sequence[ir.Value]

    @property
    def modifiers(self) -> tuple[str, ...]:
        """What follows the opcode: ('rn', 'f32')."""
        return self.operation.instruction.modifiers

    def has(self, *names: str) -> bool:
        """True where one of these modifiers stands there."""
        return any(name in self.modifiers for name in names)

    def source(self, index: int = 0) -> str:
        """The type of an input."""
        return self.operation.inputs[index].type

    @property
    def target(self) -> str:
        """The type of the first output."""
        return self.operation.outputs[0].type

    @property
    def bits(self) -> int:
        """The size of the first input's lanes."""
        return BITS[self.source()]

    @property
    def signed(self) -> bool:
        """True where the first input is signed."""
        return self.source().startswith("s")

    @property
    def packed(self) -> str:
        """'f16x2' and the like, '' for ordinary types."""
        return next((name for name in PACKED if name in self.modifiers), "")

    @property
    def rounding(self) -> str:
        """'rn' (also where nothing is said), 'rz', 'rm', 'rp'."""
        return next((m for m in self.modifiers if m in ROUNDINGS), "rn")

    @property
    def whole(self) -> str:
        """'rni' and so on: rounding to an integer; '' without."""
        return next((m for m in self.modifiers if m in WHOLE), "")

    def immediate(self, operand: int) -> int | None:
        """The value of an operand that is an integer constant."""
        found = self.operation.instruction.operands[operand]
        return found.value if isinstance(found, Immediate) and found.kind == "int" else None


Rule = Callable[[Step], "ir.Value | list[ir.Value] | None"]
"""What an opcode becomes: a value, one for each output, or None where the reference must do it."""
