"""One kernel, ready to run: calls inlined, basic blocks, addresses of its variables, and what is known of its registers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from perflab.emulator import flow as flows
from perflab.emulator.inlining import flatten, symbols
from perflab.emulator.ptx import Instruction, Label, Module, Place, PtxError, Variable, parse
from perflab.errors import unknown

_DYNAMIC_ALIGN_BYTES = 16
_ELSEWHERE = {"shared", "shared::cta", "local", "param", "const"}  # spaces that no other block sees
_STRONG = {"volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"}
_OF_THE_BLOCK = {"cta", "level::cta"}


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

    registers         name -> bits (1, 16, 32, 64, 128); the carry flag, where used, is the predicate `flow.CARRY`
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
    module = parse(ptx)
    kernel = module.functions.get(entry)
    if kernel is None or not kernel.entry:
        raise unknown("kernel", entry, (name for name, function in module.functions.items() if function.entry))
    flat = flatten(module, kernel)
    flow = flows.split(_ended(flat.body))
    live = flows.live_out(flow)
    blocks = tuple(Block(first, end, out) for (first, end), out in zip(flow.bounds, live, strict=True))
    named = _named(flow.instructions, module, flat.variables, {v.name for v in kernel.parameters})
    shared, static_bytes, dynamic_offset = _shared(v for v in named if v.space == "shared")
    local, local_bytes = _laid_out(v for v in named if v.space == "local")
    used = {name for names in (*flow.reads, *flow.writes) for name in names}
    return Program(
        name=entry,
        target=module.target,
        instructions=flow.instructions,
        registers={name: bits for name, bits in (flat.registers | {flows.CARRY: 1}).items() if name in used},
        blocks=blocks,
        block_of=flow.block_of,
        parameters=_parameters(kernel.parameters),
        shared=shared,
        static_shared_bytes=static_bytes,
        dynamic_shared_offset=dynamic_offset,
        local=local,
        local_bytes=local_bytes,
        variables=tuple(v for v in named if v.space in ("global", "const")),
        maybe_undefined=flows.maybe_undefined(flow),
        communicates=any(_communicates(instruction) for instruction in flow.instructions),
        max_threads=kernel.max_threads,
    )


def _ended(body: Sequence[Instruction | Label]) -> Sequence[Instruction | Label]:
    """The body with a ret behind it where it does not say where to go on: after a last call that never returns."""
    last = body[-1] if body else None
    if isinstance(last, Instruction) and last.opcode in flows.LEAVES and last.guard is None:
        return body
    places = [item.place for item in body if isinstance(item, Instruction)]
    return (*body, Instruction("ret", (), (), None, places[-1] if places else Place("ptx", 0), "ret;"))


def _named(
    instructions: Sequence[Instruction], module: Module, own: Mapping[str, Variable], parameters: set[str]
) -> list[Variable]:
    """The variables that the instructions name, in the order of the text: those of the module, then the kernel's own."""
    found = dict[str, Instruction]()
    for instruction in instructions:
        operands = instruction.operands[2:] if instruction.opcode == "call" else instruction.operands
        for operand in operands:
            for name in symbols(operand):
                found.setdefault(name, instruction)
    variables = {**module.variables, **own}
    for name, instruction in found.items():
        if name not in variables and name not in parameters:
            what = "the address of a function" if name in module.functions else "a name that the PTX does not define"
            raise PtxError(f"{instruction.place}: {instruction.text} uses {name}, {what}.")
    return [variable for name, variable in variables.items() if name in found]


def _laid_out(variables: Iterable[Variable]) -> tuple[dict[str, int], int]:
    """Offsets of variables one behind the other, each at its alignment, and the end of the last."""
    offsets, end = {}, 0
    for variable in variables:
        offsets[variable.name] = _aligned(end, variable.align_bytes)
        end = offsets[variable.name] + variable.size_bytes
    return offsets, end


def _shared(variables: Iterable[Variable]) -> tuple[dict[str, int], int, int]:
    """Offsets, bytes of the static ones, and where dynamic shared memory begins (all extern ones are that)."""
    every = list(variables)
    offsets, static_bytes = _laid_out(v for v in every if v.size_bytes)
    dynamic = [v for v in every if not v.size_bytes]
    begin = _aligned(static_bytes, max([_DYNAMIC_ALIGN_BYTES, *(v.align_bytes for v in dynamic)]))
    return offsets | {v.name: begin for v in dynamic}, static_bytes, begin


def _parameters(parameters: Sequence[Variable]) -> tuple[tuple[str, int, int], ...]:
    offsets, _ = _laid_out(parameters)
    return tuple((v.name, offsets[v.name], v.size_bytes) for v in parameters)


def _aligned(offset: int, align_bytes: int) -> int:
    return -(-offset // align_bytes) * align_bytes


def _communicates(instruction: Instruction) -> bool:
    """Whether other blocks can see what this does, or this what they did, while both run."""
    modifiers = set(instruction.modifiers)
    if instruction.opcode in ("membar", "fence"):
        return not modifiers & _OF_THE_BLOCK and "proxy" not in modifiers
    if instruction.opcode == "barrier" and "cluster" in modifiers:
        return True
    if instruction.opcode in ("atom", "red") or (instruction.opcode in ("ld", "st") and modifiers & _STRONG):
        return not modifiers & _ELSEWHERE
    return False
