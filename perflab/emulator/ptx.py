"""PTX text as NVRTC writes it -> `Module`: functions, variables, instructions with their source places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perflab.errors import PerflabError


class PtxError(PerflabError):
    """PTX that is not understood: the line of PTX and what was expected there."""


# ---------------------------------------------------------------- operands
@dataclass(frozen=True)
class Register:
    """%r1, %f2, %p3, %rd4, %SP: a register of the function."""

    name: str


@dataclass(frozen=True)
class Special:
    """A read-only special register without its %: 'tid.x', 'laneid', 'clock64', 'lanemask_lt'."""

    name: str


@dataclass(frozen=True)
class Immediate:
    """A constant. kind: 'int' (value is a Python int), 'f32' or 'f64' (value is the bit pattern, as an int)."""

    kind: str
    value: int


@dataclass(frozen=True)
class Symbol:
    """The address of a variable (or the name of a function), plus an offset in bytes."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Address:
    """[base + offset] with base a Register, Symbol or Immediate; offset in bytes."""

    base: Register | Symbol | Immediate
    offset: int = 0


@dataclass(frozen=True)
class Vector:
    """{a, b, c, d}."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """a|p: a result and a second one beside it (shfl.sync, setp, match)."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Negated:
    """!%p1: a predicate read inverted."""

    register: Register


@dataclass(frozen=True)
class Sink:
    """_: a result that nobody wants."""


@dataclass(frozen=True)
class Label:
    """A branch target. In a `Program` its name is resolved by `Program.block_of`."""

    name: str


@dataclass(frozen=True)
class Arguments:
    """(a, b): the results or the arguments of a call."""

    items: tuple[Operand, ...]


Operand = Register | Special | Immediate | Symbol | Address | Vector | Pair | Negated | Sink | Label | Arguments


# ---------------------------------------------------------------- what stands in a module
@dataclass(frozen=True)
class Place:
    """A source position; `inlined_at` is where the function it stands in was inlined, and so on outwards (None: it was not).

    file is as the compiler wrote it; line 0 is code the compiler made up: the parser replaces it by the line before it.
    """

    file: str
    line: int
    inlined_at: Place | None = None


@dataclass(frozen=True)
class Guard:
    """@%p or @!%p."""

    register: str
    negated: bool


@dataclass(frozen=True)
class Instruction:
    """One instruction: 'ld.global.nc.v4.f32 {…}, [%rd1+16];' has opcode 'ld' and modifiers ('global', 'nc', 'v4', 'f32')."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Guard | None
    place: Place
    text: str

    @property
    def name(self) -> str:
        """The opcode with its modifiers, as PTX writes it."""
        return ".".join((self.opcode, *self.modifiers))


@dataclass(frozen=True)
class Variable:
    """A .global, .const, .shared, .local or .param variable; `initial` is its content where it has one (addresses of other
    variables in an initialiser are not supported: PtxError). size_bytes 0: extern dynamic shared memory."""

    name: str
    space: str
    align_bytes: int
    size_bytes: int
    initial: bytes | None = None


@dataclass(frozen=True)
class Function:
    """An .entry or a .func: `parameters` and `results` are .param variables (in order); `body` holds Instruction and Label.

    registers: name with its % -> bits (1 for a predicate, else 8, 16, 32, 64, 128); variables: .shared and .local ones of the
    body. max_threads: of .maxntid or .reqntid as a product, None without. body is empty for an extern declaration.
    """

    name: str
    entry: bool
    parameters: tuple[Variable, ...]
    results: tuple[Variable, ...]
    registers: Mapping[str, int]
    variables: tuple[Variable, ...]
    body: tuple[Instruction | Label, ...]
    max_threads: int | None = None


@dataclass(frozen=True)
class Module:
    """What one PTX text defines. target as 'sm_90'."""

    target: str
    functions: Mapping[str, Function]
    variables: Mapping[str, Variable]
