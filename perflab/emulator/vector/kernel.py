"""A whole kernel as one LLVM function that runs a warp until it must wait: control flow, registers, instructions."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from perflab.emulator.operations import Memory, Operation, Typed
from perflab.emulator.paths import Paths
from perflab.emulator.program import Block, Program
from perflab.emulator.ptx import Arguments, Symbol
from perflab.emulator.tallies import LANES, REQUESTS, UNITS
from perflab.emulator.undefined import names
from perflab.emulator.vector.atomics import atomic
from perflab.emulator.vector.barriers import KINDS, BarrierCode
from perflab.emulator.vector.calls import call_event
from perflab.emulator.vector.code import emit, emit_collective
from perflab.emulator.vector.flow import I64, POINTER, function, number
from perflab.emulator.vector.layout import CONTEXT_AT, HALTED, RECORD, RUNNABLE, Layout
from perflab.emulator.vector.memory import Memories, Shape
from perflab.emulator.vector.registers import Registers
from perflab.emulator.vector.schedule import choose, field, move_lanes, set_field
from perflab.emulator.vector.values import I32, broadcast, lanes_of, resize, splat


class KernelCode:
    """Writes the function `warp` of one kernel into a module."""

    def __init__(self, module: ir.Module, program: Program, operations: Sequence[Operation], paths: Paths, layout: Layout,
                 memories: Memories, counting: bool, checking: bool) -> None:
        self.program, self.operations, self.paths, self.layout = program, operations, paths, layout
        self.memories, self.counting, self.checking = memories, counting, checking
        self.called_back: list[int] = []
        self.barriers, self.choose = BarrierCode.of(module, layout, checking), choose(module)
        self.function, self.code = function(module, "warp", I32, [POINTER, POINTER])
        self.context, self.warp = self.function.args
        self.registers = Registers(self.code, self.context, self.warp, program, layout)

    # ---------------------------------------------------------------- frame
    def build(self) -> ir.Function:
        """The function i32 warp(context, warp): the warp's status when it stopped."""
        code = self.code
        self.mask_slot, self.target_slot = code.slot(I32), code.slot(I32)
        self.blocks = [code.append_basic_block(f"block{index}") for index in range(len(self.program.blocks))]
        self.dispatch, self.moved, self.no_fuel = code.new_blocks("dispatch", "moved", "no_fuel")
        self.halted, self.outside, lost = code.new_blocks("halted", "outside", "lost")
        code.branch(self.dispatch)
        self._dispatch(lost)
        for index, block in enumerate(self.program.blocks):
            code.position_at_end(self.blocks[index])
            self._block(index, block)
        return self.function

    def _dispatch(self, lost: ir.Block) -> None:
        code = self.code
        code.position_at_end(self.dispatch)
        chosen = code.call(self.choose, [self.warp])
        known = code.append_basic_block("known")
        code.cbranch(code.icmp_signed("<", chosen, number(0)), lost, known)
        code.position_at_end(lost)
        code.ret(code.trunc(code.sub(number(-1), chosen), I32))
        code.position_at_end(known)
        code.store(code.trunc(chosen, I32), self.mask_slot)
        switch = code.switch(code.trunc(code.lshr(chosen, number(32)), I32), self.outside)
        for index, block in enumerate(self.blocks):
            switch.add_case(number(index, I32), block)
        for block, after in ((self.moved, None), (self.no_fuel, RUNNABLE)):
            code.position_at_end(block)
            move_lanes(code, self.warp, code.load(self.mask_slot, typ=I32), code.load(self.target_slot, typ=I32))
            if after is None:
                code.branch(self.dispatch)
            else:
                code.ret(number(after, I32))
        code.position_at_end(self.halted)
        code.ret(number(HALTED, I32))
        code.position_at_end(self.outside)
        code.unreachable()

    def _block(self, index: int, block: Block) -> None:
        code = self.code
        self.registers.begin()
        self.index = index
        self.mask = code.load(self.mask_slot, typ=I32)
        first = self.operations[block.first] if block.first < block.end else None
        if first is not None and (first.role == "warp_barrier" or (first.role == "collective" and first.members is not None)):
            self._gather(index, first)
        if self.counting:
            for name, by in (("block_warps", number(1)), ("block_lanes", code.lanes(self.mask))):
                base = code.inttoptr(code.get(I64, self.context, CONTEXT_AT[name], 8), POINTER)
                code.bump(base, 8 * index, by)
        self._pass_by(index)
        for site in range(block.first, block.end):
            if code.block.is_terminated:
                break
            self.site, self.registers.operation = site, self.operations[site]
            self._instruction(self.operations[site], block)
        if not code.block.is_terminated:
            self.registers.write_back(block, self.mask)
            self._go(index + 1, self.mask)

    def _pass_by(self, index: int) -> None:
        """Note which barriers these lanes have left behind for good."""
        bits = self.paths.past[index]
        for number_of_barrier in range(bits.bit_length()):
            if bits >> number_of_barrier & 1:
                place = self.layout.past + 4 * number_of_barrier
                self.code.put(self.code.or_(self.code.get(I32, self.warp, place), self.mask), self.warp, place)

    def _gather(self, index: int, operation: Operation) -> None:
        """A collective waits for lanes that its member mask names and that are elsewhere."""
        code = self.code
        elsewhere = code.and_(field(code, self.warp, "alive"), code.not_(self.mask))
        absent, there, ready_slot = code.append_basic_block("absent"), code.append_basic_block("there"), code.slot(I32)
        code.store(self.mask, ready_slot)
        code.cbranch(code.icmp_signed("==", elsewhere, number(0, I32)), there, absent)
        code.position_at_end(absent)
        members = self.registers.read(operation.inputs[operation.members or 0])
        forced = field(code, self.warp, "forced")
        misses = code.icmp_unsigned("!=", code.and_(members, broadcast(code, elsewhere)), splat(32, 0))
        park = code.and_(code.and_(code.bitcast(misses, I32), self.mask), code.not_(forced))
        ready = code.and_(self.mask, code.not_(park))
        set_field(code, self.warp, "forced", code.and_(forced, code.not_(self.mask)))
        set_field(code, self.warp, "parked", code.or_(field(code, self.warp, "parked"), park))
        move_lanes(code, self.warp, park, number(index, I32))
        next_wait, waits = field(code, self.warp, "next_wait"), code.icmp_signed("!=", park, number(0, I32))
        nearer = code.and_(waits, code.icmp_signed(">", next_wait, number(index, I32)))
        set_field(code, self.warp, "next_wait", code.select(nearer, number(index, I32), next_wait))
        code.store(ready, ready_slot)
        code.cbranch(code.icmp_signed("==", ready, number(0, I32)), self.dispatch, there)
        code.position_at_end(there)
        self.registers.begin()
        self.mask = code.load(ready_slot, typ=I32)

    def _go(self, target: int, mask: ir.Value) -> None:
        """On to a block: directly where no other lanes wait at it or before it."""
        code = self.code
        if target >= len(self.blocks):  # the text ends without ret
            code.call(self.barriers.leave, [self.context, self.warp, mask])
            code.branch(self.dispatch)
            return
        code.store(mask, self.mask_slot)
        code.store(number(target, I32), self.target_slot)
        if target <= self.index:
            size = sum(max(1, b.end - b.first) for b in self.program.blocks[target : self.index + 1])
            fuel = code.sub(code.get(I64, self.context, CONTEXT_AT["fuel"], 8), number(size))
            code.put(fuel, self.context, CONTEXT_AT["fuel"], 8)
            more = code.append_basic_block("fuel")
            code.cbranch(code.icmp_signed("<", fuel, number(0)), self.no_fuel, more)
            code.position_at_end(more)
        free = code.icmp_signed(">", field(code, self.warp, "next_wait"), number(target, I32))
        code.cbranch(free, self.blocks[target], self.moved)

    # ---------------------------------------------------------------- instructions
    def record(self, site: int) -> ir.Value:
        """The address of a site's counters."""
        base = self.code.inttoptr(self.code.get(I64, self.context, CONTEXT_AT["records"], 8), POINTER)
        return self.code.at(base, site * RECORD.itemsize)

    def _count_lanes(self, lanes: ir.Value, split: ir.Value | None = None) -> None:
        """REQUESTS and LANES of this site; UNITS where `split`."""
        if not self.counting:
            return
        code, record = self.code, self.record(self.site)
        code.bump(record, 8 * REQUESTS, code.zext(code.icmp_signed("!=", lanes, number(0, I32)), I64))
        code.bump(record, 8 * LANES, code.lanes(lanes))
        if split is not None:
            code.bump(record, 8 * UNITS, code.zext(split, I64))

    def _instruction(self, operation: Operation, block: Block) -> None:
        guard = self.registers.guard(operation.instruction.guard)
        lanes = self.mask if guard is None else self.code.and_(self.mask, self.code.bitcast(guard, I32))
        role = operation.role
        if self.layout.undefined:
            self.registers.follow(operation, self.site, self.mask, lanes)
        if guard is not None and role in ("compute", "barrier"):
            self._count_lanes(lanes)
        if role == "compute":
            self._compute(operation, guard, lanes)
        elif role in ("load", "store", "atomic"):
            self._memory(operation, guard, lanes)
        elif role in ("branch", "exit"):
            self._leave_block(operation, block, guard, lanes)
        elif role == "collective":
            self._collective(operation, guard, lanes)
        elif role == "barrier":
            self._barrier(operation, block, lanes)
        elif role in ("trap", "call") or self.checking and role in ("fence", "warp_barrier"):
            self._event(role, operation, lanes)

    def _compute(self, operation: Operation, guard: ir.Value | None, lanes: ir.Value) -> None:
        results = emit(self.code, operation, [self.registers.read(typed) for typed in operation.inputs])
        if results is None:
            self._in_python(operation, lanes)
            return
        for typed, value in zip(operation.outputs, results, strict=True):
            self.registers.write(typed, value, guard)

    def _collective(self, operation: Operation, guard: ir.Value | None, lanes: ir.Value) -> None:
        self._count_lanes(lanes)
        if self.checking and operation.members is None:
            self._event("active_mask", operation, lanes)
        found = emit_collective(self.code, operation, [self.registers.read(typed) for typed in operation.inputs], lanes)
        if found is None:
            self._in_python(operation, lanes)
            return
        results, absent = found
        with self.code.if_then(self.code.icmp_signed("!=", absent, number(0, I32)), likely=False):
            call_event(self.code, self.context, "collective", number(self.site), self.warp, absent, number(0))
        for typed, value in zip(operation.outputs, results, strict=True):
            self.registers.write(typed, value, guard)

    def _in_python(self, operation: Operation, lanes: ir.Value) -> None:
        """No vector code: Python reads and writes the registers in the warp's memory."""
        self.called_back.append(self.site)
        self.registers.flush(names((*operation.inputs, *operation.outputs)), self.mask)
        with self.code.if_then(self.code.icmp_signed("!=", lanes, number(0, I32))):
            call_event(self.code, self.context, "compute", number(self.site), self.warp, lanes, number(0))
        self.registers.forget(names(operation.outputs))

    def _event(self, event: str, operation: Operation, lanes: ir.Value) -> None:
        """Asks Python, where some lane takes part; it may say stop."""
        code, first = self.code, (*operation.instruction.operands, None)[0]
        results = names(Typed(item, "u32") for item in (first.items if isinstance(first, Arguments) else ()))
        self.registers.flush([*names(operation.inputs), *results], self.mask)
        ask, after = code.new_blocks("ask", "after")
        code.cbranch(code.icmp_signed("!=", lanes, number(0, I32)), ask, after)
        code.position_at_end(ask)
        stop = call_event(code, self.context, event, number(self.site), self.warp, lanes, number(0))
        code.cbranch(code.icmp_signed("==", stop, number(1, I32)), self.halted, after)
        code.position_at_end(after)
        self.registers.forget(results)

    # ---------------------------------------------------------------- memory
    def _memory(self, operation: Operation, guard: ir.Value | None, lanes: ir.Value) -> None:
        memory = operation.memory
        assert memory is not None
        space = self._space(memory)
        if operation.role == "load" and space == "param" and isinstance(memory.address.base, Symbol):
            self._parameter(operation, memory, guard, lanes)
            return
        code, shape = self.code, Shape.of(operation, self.checking)
        values = [resize(code, self.registers.read(typed), shape.bits) for typed in operation.inputs]
        sides = [self.context, self.warp, self.record(self.site), lanes, self._addresses(memory), *values]
        if operation.role == "atomic":
            made = atomic(self.memories, operation)
        else:
            made = getattr(self.memories, operation.role)(space, shape)
        results: list[ir.Value] = []
        if guard is None:
            found = code.call(made, sides)
            if operation.outputs:
                single = operation.role == "atomic"
                results = [found] if single else [code.extract_value(found, i) for i in range(shape.elements)]
        else:
            results = self._guarded_call(made, sides, lanes, [lanes_of(typed.type) for typed in operation.outputs])
        for typed, value in zip(operation.outputs, results, strict=False):
            self.registers.write(typed, value, guard)

    def _guarded_call(self, made: ir.Function, sides: list[ir.Value], lanes: ir.Value, kinds: list[ir.Type]) -> list[ir.Value]:
        """Calls it only where some lane takes part."""
        code = self.code
        before = code.block
        call, after = code.append_basic_block("some"), code.append_basic_block("joined")
        code.cbranch(code.icmp_signed("!=", lanes, number(0, I32)), call, after)
        code.position_at_end(call)
        found = code.call(made, sides)
        single = not isinstance(found.type, ir.LiteralStructType)
        parts = [found if single else code.extract_value(found, i) for i in range(len(kinds))]
        code.branch(after)
        code.position_at_end(after)
        results = []
        for kind, part in zip(kinds, parts, strict=True):
            phi = code.phi(kind)
            phi.add_incoming(ir.Constant(kind, None), before)
            phi.add_incoming(part, call)
            results.append(phi)
        return results

    def _space(self, memory: Memory) -> str:
        """Parameters of calls that were inlined lie in local memory."""
        base = memory.address.base
        if memory.space == "param" and isinstance(base, Symbol) and base.name in self.program.local:
            return "local"
        return memory.space

    def _addresses(self, memory: Memory) -> ir.Value:
        base, code = memory.address.base, self.code
        value = self.registers.read(Typed(base, "u64"))
        return code.add(value, splat(64, memory.address.offset)) if memory.address.offset else value

    def _parameter(self, operation: Operation, memory: Memory, guard: ir.Value | None, lanes: ir.Value) -> None:
        """ld.param of the kernel's own parameters: the same for all lanes."""
        code, base = self.code, memory.address.base
        assert isinstance(base, Symbol)
        offset = {name: at for name, at, _ in self.program.parameters}[base.name] + base.offset + memory.address.offset
        table = code.inttoptr(code.get(I64, self.context, CONTEXT_AT["parameters"], 8), POINTER)
        for element, typed in enumerate(operation.outputs):
            item = code.get(ir.IntType(8 * memory.size_bytes), table, offset + element * memory.size_bytes, 1)
            self.registers.write(typed, broadcast(code, item), guard)

    # ---------------------------------------------------------------- control
    def _leave_block(self, operation: Operation, block: Block, guard: ir.Value | None, lanes: ir.Value) -> None:
        code = self.code
        self.registers.write_back(block, self.mask)
        if operation.role == "exit":
            self._exit(guard, lanes)
            return
        target = self.program.block_of[operation.target]
        if guard is None:
            self._go(target, self.mask)
            return
        others = code.and_(self.mask, code.not_(lanes))
        nobody, everybody = (code.icmp_signed("==", some, number(0, I32)) for some in (lanes, others))
        self._count_lanes(lanes, code.not_(code.or_(nobody, everybody)))
        fall, more, jump, both = (code.append_basic_block(name) for name in ("fall", "more", "jump", "both"))
        code.cbranch(nobody, fall, more)
        code.position_at_end(more)
        code.cbranch(everybody, jump, both)
        code.position_at_end(fall)
        self._go(self.index + 1, self.mask)
        code.position_at_end(jump)
        self._go(target, self.mask)
        code.position_at_end(both)
        move_lanes(code, self.warp, lanes, number(target, I32))
        move_lanes(code, self.warp, others, number(self.index + 1, I32))
        code.branch(self.dispatch)

    def _exit(self, guard: ir.Value | None, lanes: ir.Value) -> None:
        code = self.code
        if guard is None:
            code.call(self.barriers.leave, [self.context, self.warp, lanes])
            code.branch(self.dispatch)
            return
        others = code.and_(self.mask, code.not_(lanes))
        with code.if_then(code.icmp_signed("!=", lanes, number(0, I32))):
            code.call(self.barriers.leave, [self.context, self.warp, lanes])
        left = code.append_basic_block("left")
        code.cbranch(code.icmp_signed("==", others, number(0, I32)), self.dispatch, left)
        code.position_at_end(left)
        self._go(self.index + 1, others)

    def _barrier(self, operation: Operation, block: Block, lanes: ir.Value) -> None:
        code = self.code
        reduces = operation.barrier.startswith("red")
        numbers = [self._uniform(typed, lanes) for typed in (operation.inputs[:-1] if reduces else operation.inputs)]
        predicate: ir.Value = number(0, I32)
        if reduces:
            predicate = code.and_(code.bitcast(self.registers.read(operation.inputs[-1]), I32), lanes)
        for name in names(operation.outputs):  # the release writes it into the warp's memory
            set_field(code, self.warp, "red_slot", self.layout.slots[name])
        self.registers.forget(names(operation.outputs))
        self.registers.write_back(block, self.mask)
        move_lanes(code, self.warp, self.mask, number(self.index + 1, I32))
        count = numbers[1] if len(numbers) > 1 else number(0, I32)
        bit = self.paths.barrier_bits.get(self.index, 0).bit_length() - 1
        with code.if_then(code.icmp_signed("!=", lanes, number(0, I32))):
            code.call(self.barriers.arrive, [
                self.context, self.warp, number(self.site), number(bit, I32), lanes, numbers[0], count,
                number(KINDS[operation.barrier], I32), predicate])
        code.branch(self.dispatch)

    def _uniform(self, typed: Typed, lanes: ir.Value) -> ir.Value:
        """The value of the first lane that takes part (i32)."""
        value = self.registers.read(typed)
        lane = self.code.and_(self.code.first_lane(lanes), number(31, I32))
        return self.code.extract_element(value, lane)


