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
    In a text without line numbers file is "ptx" and line that of the text.
    """

    file: str
    line: int
    inlined_at: Place | None = None

    def __str__(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}"


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
    variables in an initialiser are not supported: PtxError). .global and .const ones without it are zeros: NVRTC leaves out
    `= 0`. size_bytes 0: extern dynamic shared memory."""

    name: str
    space: str
    align_bytes: int
    size_bytes: int
    initial: bytes | None = None


@dataclass(frozen=True)
class Function:
    """An .entry or a .func: `parameters` and `results` are .param variables (in order); `body` holds Instruction and Label.

    registers: name with its % -> bits (1 for a predicate, else 8, 16, 32, 64, 128); variables: .shared and .local ones of the
    body, and .param ones that its calls pass. max_threads: of .maxntid or .reqntid as a product, None without. body is empty
    for an extern declaration. What is declared in an inner scope { … } has the scope's number behind its name.
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


def parse(text: str) -> Module:
    """Read one PTX text, as NVRTC (or a person) writes it. Raises PtxError naming the line of PTX."""
    from perflab.emulator.ptx_parser import Parser  # which is written in terms of the classes above

    return Parser(text).module()
