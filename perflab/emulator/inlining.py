"""Puts the functions that a kernel calls in place of the calls: one body without calls, but for those of the system."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from perflab.emulator.ptx import (
    Address,
    Arguments,
    Function,
    Guard,
    Immediate,
    Instruction,
    Label,
    Module,
    Negated,
    Operand,
    Pair,
    Place,
    PtxError,
    Register,
    Symbol,
    Variable,
    Vector,
)
from perflab.errors import PerflabError

_REGISTER_BYTES = (2, 4, 8, 16)


@dataclass
class Flat:
    """A kernel after inlining. variables: its .shared and .local ones, with those of the functions inlined."""

    body: list[Instruction | Label] = field(default_factory=list)
    registers: dict[str, int] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)


def flatten(module: Module, entry: Function) -> Flat:
    """Inline every call of `entry`, at every depth. Raises PerflabError for recursion and for calls through a pointer."""
    flat = _Inliner(module).run(entry)
    passed = {name: v for name, v in flat.variables.items() if v.space == "param"}
    if passed:
        _place_parameters(flat, passed)
    return flat


def symbols(operand: Operand) -> Iterator[str]:
    """The names of variables in an operand."""
    if isinstance(operand, Symbol):
        yield operand.name
    elif isinstance(operand, Address):
        if isinstance(operand.base, Symbol):
            yield operand.base.name
    elif isinstance(operand, Vector | Arguments):
        for item in operand.items:
            yield from symbols(item)


# ---------------------------------------------------------------- calls
@dataclass(frozen=True)
class _Site:
    """One inlining: what is put behind its registers and labels, its variables' names, and where it was called."""

    suffix: str
    names: Mapping[str, str]
    place: Place | None
    callers: tuple[str, ...]


class _Inliner:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.flat = Flat()
        self.owners = {name: "" for name in module.variables}
        self.sites = 0

    def run(self, entry: Function) -> Flat:
        self.insert(entry, _Site("", self.names_of(entry, ""), None, (entry.name,)))
        return self.flat

    def names_of(self, function: Function, suffix: str) -> dict[str, str]:
        """Where the variables of a body lie. Its .local and .shared ones are the same at every site (nothing recurses), the
        parameters of its calls belong to the site."""
        names = {}
        for variable in function.variables:
            if variable.space == "param":
                name = variable.name + suffix
            else:
                taken = self.owners.setdefault(variable.name, function.name) != function.name
                name = f"{function.name}.{variable.name}" if taken else variable.name
            names[variable.name] = name
            self.flat.variables[name] = replace(variable, name=name)
        return names

    def insert(self, function: Function, site: _Site) -> None:
        """The body of a function, as it stands at a call site or, outermost, in the kernel."""
        rename = _Renaming(site.suffix, {old: new for old, new in site.names.items() if old != new})
        self.flat.registers.update((name + site.suffix, bits) for name, bits in function.registers.items())
        places: dict[Place, Place] = {}
        for item in function.body:
            if isinstance(item, Label):
                self.flat.body.append(Label(item.name + site.suffix))
                continue
            if site.place is not None:
                if item.place not in places:
                    places[item.place] = _within(item.place, site.place)
                item = _moved(item, rename, places[item.place], site.suffix)
            elif rename.names:
                item = rename.instruction(item)
            if item.opcode == "call":
                self.call(item, site)
            else:
                self.flat.body.append(item)

    def call(self, call: Instruction, site: _Site) -> None:
        """Inline the function called; one of the system stays a call."""
        results, target, arguments = call.operands
        assert isinstance(results, Arguments) and isinstance(arguments, Arguments)
        if not isinstance(target, Symbol):
            raise PerflabError(f"{call.place}: a call through a pointer ({call.text}) cannot be emulated: call by name.")
        callee = self.module.functions.get(target.name)
        if callee is None:
            raise PtxError(f"{call.place}: {target.name} is called, but the PTX does not declare it.")
        if not callee.body:
            self.flat.body.append(call)
            return
        if callee.name in site.callers:
            chain = " -> ".join((*site.callers[site.callers.index(callee.name) :], callee.name))
            raise PerflabError(f"{call.place}: recursion ({chain}) cannot be emulated; write it as a loop.")
        if len(results.items) != len(callee.results) or len(arguments.items) != len(callee.parameters):
            raise PtxError(f"{call.place}: {callee.name} is called with another number of arguments or results than it has.")
        self.inline(call, callee, results.items, arguments.items, site.callers)

    def inline(self, call: Instruction, callee: Function, results: Sequence[Operand], arguments: Sequence[Operand],
               callers: tuple[str, ...]) -> None:
        self.sites += 1
        suffix = f".c{self.sites}"
        names = self.names_of(callee, suffix)
        for formal, actual in zip((*callee.results, *callee.parameters), (*results, *arguments), strict=True):
            names[formal.name] = self.storage(formal, actual, suffix)
        body = self.flat.body
        body += [_jump(call, suffix), Label(suffix + ".begin")]
        for formal, actual in zip(callee.parameters, arguments, strict=True):
            if not isinstance(actual, Symbol):
                body.append(_transfer(call, "st", formal, (Address(Symbol(names[formal.name])), actual)))
        self.insert(callee, _Site(suffix, names, call.place, (*callers, callee.name)))
        body.append(Label(suffix + ".end"))
        for formal, actual in zip(callee.results, results, strict=True):
            if not isinstance(actual, Symbol):
                body.append(_transfer(call, "ld", formal, (actual, Address(Symbol(names[formal.name])))))
        body.append(Label(suffix + ".over"))

    def storage(self, formal: Variable, actual: Operand, suffix: str) -> str:
        """One variable for the caller's argument and the function's parameter: neither reads it once the other writes."""
        name = actual.name if isinstance(actual, Symbol) else formal.name + suffix
        known = self.flat.variables.get(name, formal)
        size, align = max(known.size_bytes, formal.size_bytes), max(known.align_bytes, formal.align_bytes)
        self.flat.variables[name] = Variable(name, "param", align, size)
        return name


def _within(place: Place, outer: Place) -> Place:
    inner = outer if place.inlined_at is None else _within(place.inlined_at, outer)
    return replace(place, inlined_at=inner)


def _jump(call: Instruction, suffix: str) -> Instruction:
    """The call as a branch: to what follows it, which is the function's body; a guarded one skips that, its guard inverted."""
    if call.guard is None:
        return replace(call, opcode="bra", modifiers=("uni",), operands=(Label(suffix + ".begin"),))
    guard = Guard(call.guard.register, not call.guard.negated)
    return replace(call, opcode="bra", modifiers=(), operands=(Label(suffix + ".over"),), guard=guard)


def _transfer(call: Instruction, opcode: str, formal: Variable, operands: tuple[Operand, ...]) -> Instruction:
    modifiers = ("param", f"b{8 * formal.size_bytes}")
    return replace(call, opcode=opcode, modifiers=modifiers, operands=operands, guard=None)


def _moved(item: Instruction, rename: _Renaming, place: Place, suffix: str) -> Instruction:
    """An instruction of a function as it stands at one call site; its ret goes on behind the call."""
    item = replace(rename.instruction(item), place=place)
    if item.opcode == "ret":
        return replace(item, opcode="bra", modifiers=() if item.guard else ("uni",), operands=(Label(suffix + ".end"),))
    register_based = any(isinstance(o, Address) and isinstance(o.base, Register) for o in item.operands)
    if "param" in item.modifiers and (item.opcode == "cvta" or register_based):
        return _in_local(item)  # the address of a parameter of a function is one in local memory
    return item


@dataclass(frozen=True)
class _Renaming:
    suffix: str
    names: Mapping[str, str]

    def instruction(self, item: Instruction) -> Instruction:
        guard = Guard(item.guard.register + self.suffix, item.guard.negated) if item.guard else None
        return replace(item, operands=tuple(self.operand(operand) for operand in item.operands), guard=guard)

    def operand(self, operand: Operand) -> Operand:
        match operand:
            case Register(name):
                return Register(name + self.suffix)
            case Symbol(name, offset):
                return Symbol(self.names.get(name, name), offset)
            case Address(base, offset):
                moved = self.operand(base)
                assert isinstance(moved, Register | Symbol | Immediate)
                return Address(moved, offset)
            case Vector(items):
                return Vector(tuple(self.operand(item) for item in items))
            case Arguments(items):
                return Arguments(tuple(self.operand(item) for item in items))
            case Pair(first, second):
                return Pair(self.operand(first), self.operand(second))
            case Negated(register):
                return Negated(Register(register.name + self.suffix))
            case Label(name):
                return Label(name + self.suffix)
            case _:
                return operand


# ---------------------------------------------------------------- parameters of calls
def _place_parameters(flat: Flat, passed: Mapping[str, Variable]) -> None:
    """Parameters and results of calls become registers where they are only moved as a whole, else .local variables."""
    in_memory = set()
    for item in flat.body:
        if isinstance(item, Instruction):
            for operand in item.operands:
                in_memory |= {n for n in symbols(operand) if n in passed and not _whole(item, operand, passed[n])}
    for name, variable in passed.items():
        if name in in_memory:
            flat.variables[name] = replace(variable, space="local")
        else:
            del flat.variables[name]
            flat.registers[name] = 8 * variable.size_bytes
    scalars = passed.keys() - in_memory
    flat.body = [
        item if isinstance(item, Label) or not any(n in passed for o in item.operands for n in symbols(o)) else
        _as_move(item, scalars)
        for item in flat.body
    ]


def _whole(item: Instruction, operand: Operand, variable: Variable) -> bool:
    """Whether an operand is a parameter taken whole: in a plain st.param or ld.param, or in a call of the system."""
    if variable.size_bytes not in _REGISTER_BYTES:
        return False
    if item.opcode == "call":
        return True
    plain = item.opcode in ("ld", "st") and len(item.modifiers) == 2 and item.modifiers[0] == "param"
    bits = item.modifiers[-1].lstrip("busf") if plain else ""
    return bits == str(8 * variable.size_bytes) and isinstance(operand, Address) and operand.offset == 0


def _as_move(item: Instruction, scalars: set[str]) -> Instruction:
    def moved(operand: Operand) -> Operand:
        match operand:
            case Address(Symbol(name)) | Symbol(name) if name in scalars:
                return Register(name)
            case Arguments(items):
                return Arguments(tuple(moved(each) for each in items))
            case _:
                return operand

    operands = tuple(moved(operand) for operand in item.operands)
    if item.opcode == "call":
        if any(isinstance(o, Arguments) and any(isinstance(i, Symbol) for i in o.items) for o in operands):
            raise PtxError(f"{item.place}: {item.text} passes a structure to a function that the PTX does not define.")
        return replace(item, operands=operands)
    if operands != item.operands:
        return replace(item, opcode="mov", modifiers=item.modifiers[1:], operands=operands)
    return _in_local(item) if "param" in item.modifiers else item


def _in_local(item: Instruction) -> Instruction:
    return replace(item, modifiers=tuple("local" if m == "param" else m for m in item.modifiers))
