"""The registers of a warp while a basic block is compiled: values by name, loaded when first used, stored at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from types import SimpleNamespace

import numpy as np
from llvmlite import ir

from perflab.emulator.operands import COUNTERS
from perflab.emulator.operations import Operation, Typed, Unsupported
from perflab.emulator.program import Block, Program
from perflab.emulator.ptx import Guard, Immediate, Negated, Operand, Register, Sink, Special, Symbol
from perflab.emulator.undefined import Tracking, moves, names, others
from perflab.emulator.vector.calls import call_event
from perflab.emulator.vector.flow import I64, POINTER, Flow, number, ramp
from perflab.emulator.vector.layout import CONTEXT_AT, WARP_AT, Layout
from perflab.emulator.vector.values import BITS, I32, INTEGERS, as_register, as_type, broadcast, resize, splat

_FROM_CONTEXT = {name: name for name in ("ctaid", "ntid", "nctaid", "smid", "nsmid")} | {
    "clusterid": "ctaid", "nclusterid": "nctaid", "dynamic_smem_size": "dynamic_shared", "total_smem_size": "shared_bytes",
    "aggr_smem_size": "shared_bytes"}
_CONSTANT = {"nwarpid": 64, "gridid": 1, "is_explicit_cluster": 0, "cluster_ctarank": 0, "cluster_nctarank": 1,
             "cluster_ctaid": 0, "cluster_nctaid": 1, "reserved_smem_offset_begin": 0, "current_graph_exec": 0}
_LANE_MASKS = {"lanemask_eq": lambda i: 1 << i, "lanemask_lt": lambda i: (1 << i) - 1, "lanemask_le": lambda i: (2 << i) - 1,
               "lanemask_gt": lambda i: ~((2 << i) - 1) & 0xFFFFFFFF, "lanemask_ge": lambda i: ~((1 << i) - 1) & 0xFFFFFFFF}


def constants(program: Program, operations: Sequence[Operation]) -> dict[str, int]:
    """Registers that hold one number wherever they are read: written once, without a guard, by a mov of a constant."""
    writes = Counter(t.operand.name for op in operations for t in op.outputs if isinstance(t.operand, Register))
    found = {}
    for op in operations:
        if op.instruction.opcode != "mov" or op.instruction.guard or len(op.outputs) != 1 or len(op.inputs) != 1:
            continue
        target, source = op.outputs[0].operand, op.inputs[0].operand
        if not isinstance(target, Register) or not isinstance(source, Immediate) or writes[target.name] > 1:
            continue
        if target.name not in program.maybe_undefined and program.registers[target.name] > 1:
            found[target.name] = number_of(source, op.inputs[0].type) & ((1 << program.registers[target.name]) - 1)
    return found


def followed(program: Program, operations: Sequence[Operation]) -> frozenset[str]:
    """Registers that may be undefined, and those that such ones are moved to."""
    return frozenset(Tracking(SimpleNamespace(program=program, operations=operations)).tracked)  # type: ignore[arg-type]


def number_of(constant: Immediate, kind: str) -> int:
    """The bits of a constant read as a type: a float of the other size is converted."""
    if constant.kind == "f64" and kind == "f32":
        return int(np.array(constant.value, np.uint64).view(np.float64).astype(np.float32).view(np.uint32))
    if constant.kind == "f32" and kind == "f64":
        return int(np.array(constant.value, np.uint32).view(np.float32).astype(np.float64).view(np.uint64))
    return constant.value


class Registers:
    """values: of registers that the block has read or written; dirty: written; unwritten: masks of lanes in which a register is
    undefined (when checking). `operation`: the one that is being compiled, for messages."""

    def __init__(self, code: Flow, context: ir.Value, warp: ir.Value, program: Program, layout: Layout) -> None:
        self.code, self.context, self.warp = code, context, warp
        self.program, self.layout = program, layout
        self.symbols = {variable.name: index for index, variable in enumerate(program.variables)}
        self.operation: Operation | None = None
        self.begin()

    def begin(self) -> None:
        """A block begins: nothing is known."""
        self.values: dict[str, ir.Value] = {}
        self.dirty: dict[str, None] = {}
        self.unwritten: dict[str, ir.Value] = {}

    def guard(self, guard: Guard | None) -> ir.Value | None:
        """Where a guard holds, <32 x i1>; None without one."""
        if guard is None:
            return None
        value = self.register(guard.register)
        return self.code.not_(value) if guard.negated else value

    def forget(self, names: Iterable[str]) -> None:
        """Python has changed these."""
        for name in names:
            self.values.pop(name, None)
            self.dirty.pop(name, None)

    def register(self, name: str) -> ir.Value:
        """The lanes of a register: raw bits of its size, a predicate as <32 x i1>."""
        bits = self.program.registers[name]
        if name not in self.values:
            if name in self.layout.constants:
                return splat(bits, self.layout.constants[name])
            if bits == 1:
                self.values[name] = self.code.bitcast(self.code.get(I32, self.warp, self.layout.slots[name]), INTEGERS[1])
            else:
                self.values[name] = self.code.get(INTEGERS[bits], self.warp, self.layout.slots[name], 32)
        return self.values[name]

    def read(self, typed: Typed) -> ir.Value:
        """An operand as its type wants it."""
        operand, kind = typed.operand, typed.type
        if isinstance(operand, Register):
            return as_type(self.code, self.register(operand.name), self.program.registers[operand.name], kind)
        if isinstance(operand, Negated):
            return self.code.not_(self.register(operand.register.name))
        return resize(self.code, self._other(operand, kind), BITS[kind])

    def _other(self, operand: Operand, kind: str) -> ir.Value:
        if isinstance(operand, Immediate):
            return splat(BITS[kind], number_of(operand, kind))
        if isinstance(operand, Symbol):
            return self._symbol(operand)
        if isinstance(operand, Special):
            return self._special(operand.name)
        raise self._unsupported(f"operand {operand} is not understood here")

    def _symbol(self, symbol: Symbol) -> ir.Value:
        """The address of a variable, as 64 bits."""
        name, program = symbol.name, self.program
        for known in (program.shared, program.local, {name: offset for name, offset, _ in program.parameters}):
            if name in known:
                return splat(64, known[name] + symbol.offset)
        table = self.code.inttoptr(self.code.get(I64, self.context, CONTEXT_AT["symbols"], 8), POINTER)
        address = self.code.get(I64, table, 8 * self.symbols[name], 8)
        return broadcast(self.code, self.code.add(address, number(symbol.offset)))

    def _special(self, name: str) -> ir.Value:
        code, what = self.code, name.partition(".")[0]
        if what == "tid":
            return code.get(INTEGERS[32], self.warp, WARP_AT[name], 4)
        if what in _FROM_CONTEXT:
            return broadcast(code, code.get(I32, self.context, CONTEXT_AT[_FROM_CONTEXT[what] + name.removeprefix(what)], 8))
        if name == "laneid":
            return ramp(32)
        if name == "warpid":
            return broadcast(code, code.get(I32, self.warp, WARP_AT["index"]))
        if name in _LANE_MASKS:
            return ir.Constant(INTEGERS[32], [_LANE_MASKS[name](lane) for lane in range(32)])
        if what in _CONSTANT or what.startswith("envreg"):
            return splat(32, _CONSTANT.get(what, 0))
        if what in COUNTERS:
            spent = code.sub(*(code.get(I64, self.context, CONTEXT_AT[word], 8) for word in ("spent", "fuel")))
            now = code.add(spent, number(1 << 40))  # more than any turn's fuel
            return broadcast(code, code.lshr(now, number(32)) if name.endswith("hi") else now)
        raise self._unsupported(f"special register %{name} is not known")

    def _unsupported(self, reason: str) -> Unsupported:
        assert self.operation is not None
        instruction = self.operation.instruction
        return Unsupported(f"{instruction.place}: the emulator cannot run '{instruction.text.strip()}': {reason}")

    def write(self, typed: Typed, value: ir.Value, guard: ir.Value | None) -> None:
        """A result into its register; `guard`: only for those lanes."""
        if isinstance(typed.operand, Sink):
            return
        assert isinstance(typed.operand, Register)
        name = typed.operand.name
        new = as_register(self.code, value, typed.type, self.program.registers[name])
        if guard is not None:
            new = self.code.select(guard, new, self.register(name))
        self.values[name] = new
        self.dirty[name] = None

    def store(self, name: str, mask: ir.Value) -> None:
        """A register into the warp's memory, for the lanes that run."""
        code, bits, place = self.code, self.program.registers[name], self.layout.slots[name]
        value = self.register(name)
        if bits == 1:
            old = code.get(I32, self.warp, place)
            new = code.or_(code.and_(code.bitcast(value, I32), mask), code.and_(old, code.not_(mask)))
            code.put(new, self.warp, place)
        else:
            old = code.get(INTEGERS[bits], self.warp, place, 32)
            code.put(code.select(code.bitcast(mask, INTEGERS[1]), value, old), self.warp, place, 32)

    def write_back(self, block: Block, mask: ir.Value) -> None:
        """Into memory what later blocks may read, for the lanes that run."""
        for name in self.dirty:
            if name in block.live_out and name not in self.layout.constants:
                self.store(name, mask)
        for name, lanes in self.unwritten.items():
            self.code.put(lanes, self.warp, self.layout.undefined[name])
        self.dirty, self.unwritten = {}, {}

    def flush(self, names: Sequence[str], mask: ir.Value) -> None:
        """Into memory what Python is going to read or to change."""
        for name in dict.fromkeys(names):
            if name in self.dirty or name in self.layout.constants:
                self.store(name, mask)

    # ---------------------------------------------------------------- registers that nobody wrote
    def follow(self, operation: Operation, site: int, mask: ir.Value, lanes: ir.Value) -> None:
        """Uses of registers that nobody wrote are reported; moves hand on that they are undefined (see `undefined`)."""
        code, groups = self.code, (names(operation.inputs), names(operation.outputs))
        sources, results = ([name for name in dict.fromkeys(group) if name in self.layout.undefined] for group in groups)
        uses = [name for name in dict.fromkeys(others(operation)) if name in self.layout.undefined]
        hands_on, memory, guard = moves(operation), operation.memory, operation.instruction.guard
        if not hands_on and not (operation.role == "store" and memory and memory.space not in ("global", "generic")):
            uses += [name for name in sources if name not in uses]
        for name in uses:
            asked = mask if guard and guard.register == name else lanes
            found = code.and_(self._unwritten(name), asked)
            with code.if_then(code.icmp_signed("!=", found, number(0, I32)), likely=False):
                place = self.layout.undefined[name]
                call_event(code, self.context, "undefined", number(site), self.warp, found, number(place))
            self.unwritten[name] = code.and_(self._unwritten(name), code.not_(found))
        spread: ir.Value = number(0, I32)
        for name in sources if hands_on else ():
            spread = code.or_(spread, self._unwritten(name))
        for name in results:
            old = code.and_(self._unwritten(name), code.not_(lanes))
            self.unwritten[name] = code.or_(old, code.and_(spread, lanes))

    def _unwritten(self, name: str) -> ir.Value:
        if name not in self.unwritten:
            self.unwritten[name] = self.code.get(I32, self.warp, self.layout.undefined[name])
        return self.unwritten[name]
