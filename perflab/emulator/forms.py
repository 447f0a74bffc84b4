"""`Form`: an instruction's modifiers being used up, so that one nobody knows stops the run instead of being ignored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from perflab.emulator.operations import Operation, Typed, Unsupported
from perflab.emulator.ptx import Arguments, Instruction, Operand, Pair, Vector

FLOATS = ("f16", "bf16", "f32", "f64")
TYPES = {f"b{bits}": f"u{bits}" for bits in (8, 16, 32, 64)}
TYPES |= {f"{kind}{bits}": f"{kind}{bits}" for kind in "us" for bits in (8, 16, 32, 64)}
TYPES |= {name: name for name in (*FLOATS, "pred")}
PACKED = {"f16x2": ("f16", "u32"), "bf16x2": ("bf16", "u32"), "f32x2": ("f32", "u64"), "s16x2": ("s16", "u32"),
          "u16x2": ("u16", "u32")}
"""Two values in one register: their type, and the register's."""


def size_of(kind: str) -> int:
    """Bytes of a type of `TYPES`."""
    return int(kind.lstrip("busf")) // 8


def plain(kind: str) -> str:
    """The unsigned type of the same size, for bits that only move."""
    return kind if kind == "pred" else f"u{8 * size_of(kind)}"


def flatten(operands: Iterable[Operand]) -> tuple[Operand, ...]:
    """Vectors, pairs and argument lists taken apart, in order."""
    flat: list[Operand] = []
    for operand in operands:
        if isinstance(operand, Vector | Arguments):
            flat.extend(flatten(operand.items))
        elif isinstance(operand, Pair):
            flat.extend(flatten((operand.first, operand.second)))
        else:
            flat.append(operand)
    return tuple(flat)


def quietly(function: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """The function without numpy's warnings, its result always a tuple."""

    def run(*arrays: Any) -> tuple[Any, ...]:
        with np.errstate(all="ignore"):
            result = function(*arrays)
        return result if isinstance(result, tuple) else (result,)

    return run


PIECE = 1 << 13  # elements whose temporary arrays still lie in a core's caches


def elementwise(function: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """An elementwise function as an Operation computes: quiet, for arrays of any one shape and scalars beside them.

    Large arrays go through in pieces, which is several times faster.
    """
    quiet = quietly(function)

    def run(*arrays: Any) -> tuple[Any, ...]:
        size = max(np.size(x) for x in arrays)
        if 1 < size <= PIECE:
            return quiet(*arrays)
        shape = np.broadcast_shapes(*(np.shape(x) for x in arrays))
        flat = [np.broadcast_to(x, shape).reshape(-1) for x in arrays]
        if size == 1:
            return tuple(np.reshape(x, shape) for x in quiet(*flat))
        parts = [quiet(*(x[start : start + PIECE] for x in flat)) for start in range(0, flat[0].size, PIECE)]
        return tuple(np.concatenate(outputs).reshape(shape) for outputs in zip(*parts, strict=True))

    return run


class Form:
    """What is still to be understood of one instruction."""

    def __init__(self, instruction: Instruction, registers: Mapping[str, int]) -> None:
        self.instruction = instruction
        self.registers = registers
        self.operands = instruction.operands
        self.left = list(instruction.modifiers)

    def unsupported(self, reason: str) -> Unsupported:
        """The error that names the instruction, its place and the reason."""
        place = self.instruction.place
        return Unsupported(f"{place.file}:{place.line}: the emulator cannot run '{self.instruction.text.strip()}': {reason}")

    def has(self, name: str) -> bool:
        """True where the modifier stands; it is used up."""
        if name in self.left:
            self.left.remove(name)
            return True
        return False

    def pick(self, names: Iterable[str], default: str | None = None) -> str:
        """The first modifier that is one of `names`, used up; without one `default`, or Unsupported."""
        known = set(names)
        for modifier in self.left:
            if modifier in known:
                self.left.remove(modifier)
                return modifier
        if default is None:
            raise self.unsupported(f"it has none of .{', .'.join(sorted(known))}")
        return default

    def drop(self, names: Iterable[str]) -> None:
        """Use up modifiers that mean nothing here (hints)."""
        known = set(names)
        self.left = [modifier for modifier in self.left if modifier not in known]

    def raw_type(self) -> str:
        """The last modifier, used up, as it stands."""
        if not self.left:
            raise self.unsupported("it has no type")
        return self.left.pop()

    def type(self, kinds: str = "usf") -> str:
        """The type that ends the name, 'b32' as 'u32'. kinds: of u(nsigned, also b…), s(igned), f(loat, also bf16), p(red)."""
        name = self.raw_type()
        known = TYPES.get(name, "")
        if not known or known.replace("b", "")[0] not in kinds:
            raise self.unsupported(f"type .{name} is not known here")
        return known

    def element(self) -> tuple[str, str]:
        """(type of the values, type of the register): equal for plain types, ('f16', 'u32') for f16x2."""
        if self.left and self.left[-1] in PACKED:
            return PACKED[self.raw_type()]
        kind = self.type()
        return kind, kind

    def is_float(self) -> bool:
        """True where the type that ends the name is one of floats, alone or packed."""
        last = self.left[-1] if self.left else ""
        return PACKED.get(last, (last, ""))[0] in FLOATS

    def expect(self, *counts: int) -> int:
        """The number of operands, if it is one of `counts`."""
        if len(self.operands) not in counts:
            raise self.unsupported(f"it has {len(self.operands)} operands where {' or '.join(map(str, counts))} are known")
        return len(self.operands)

    def typed(self, operands: Sequence[Operand], types: Sequence[str]) -> tuple[Typed, ...]:
        """Operands taken apart, each with its type."""
        flat = flatten(operands)
        if len(flat) != len(types):
            raise self.unsupported(f"it has {len(flat)} values where {len(types)} are known")
        return tuple(Typed(operand, kind) for operand, kind in zip(flat, types, strict=True))

    def operation(self, role: str, category: str, **more: Any) -> Operation:
        """The operation, if every modifier has been used up."""
        if self.left:
            raise self.unsupported(f"modifier .{self.left[0]} is not known here")
        return Operation(self.instruction, role, category, **more)

    def compute(self, category: str, outputs: Sequence[str], inputs: Sequence[str], function: Callable[..., Any],
                **more: Any) -> Operation:
        """outputs = function(*inputs): the first operand is the result, all others are read."""
        self.expect(*range(1, 10))
        return self.operation("compute", category, outputs=self.typed(self.operands[:1], outputs),
                              inputs=self.typed(self.operands[1:], inputs), compute=elementwise(function), **more)
