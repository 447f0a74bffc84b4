"""Compiled scheduling: which lanes of a warp run next, and the warps of a block in turn."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from perflab.emulator.vector.flow import I1, I8, I64, POINTER, Flow, function, number
from perflab.emulator.vector.layout import (
    BARRIER,
    BARRIER_AT,
    BARRIERS,
    BLOCK_DONE,
    CONTEXT_AT,
    DONE,
    HALTED,
    OUT_OF_FUEL,
    PARKED,
    RUNNABLE,
    STOPPED,
    STUCK,
    WAITING,
    WARP_AT,
    Layout,
)
from perflab.emulator.vector.values import I32, INTEGERS, broadcast, splat

PATIENCE = 64  # polls after which a warp counts as waiting for others
SHORT_TURN = 512  # warp instructions of its turns from then on
NOWHERE = 0x7FFFFFFF  # a block number beyond all
EMPTY = {"site": -1, "bit": -1, "all": 1}  # fields of a barrier that nobody waits at, those that are not 0


def field(code: Flow, warp: ir.Value, name: str) -> ir.Value:
    """A 32-bit field of a warp."""
    return code.get(I32, warp, WARP_AT[name])


def set_field(code: Flow, warp: ir.Value, name: str, value: ir.Value | int) -> None:
    """Store one."""
    code.put(number(value, I32) if isinstance(value, int) else value, warp, WARP_AT[name])


def word(code: Flow, context: ir.Value, name: str) -> ir.Value:
    """A 64-bit field of a context."""
    return code.get(I64, context, CONTEXT_AT[name], 8)


def set_word(code: Flow, context: ir.Value, name: str, value: ir.Value | int) -> None:
    """Store one."""
    code.put(number(value) if isinstance(value, int) else value, context, CONTEXT_AT[name], 8)


def move_lanes(code: Flow, warp: ir.Value, mask: ir.Value, block: ir.Value) -> None:
    """The program counter of some lanes."""
    old = code.get(INTEGERS[32], warp, WARP_AT["pc"], 4)
    code.put(code.select(code.bitcast(mask, INTEGERS[1]), broadcast(code, block), old), warp, WARP_AT["pc"], 4)


def choose(module: ir.Module) -> ir.Function:
    """i64 choose(warp): block << 32 | mask of the lanes to run next, or -1 - status where none can."""
    made, code = function(module, "choose", I64, [POINTER])
    (warp,) = made.args
    alive, parked = field(code, warp, "alive"), field(code, warp, "parked")
    here = code.and_(alive, code.not_(field(code, warp, "waits")))
    ready = code.and_(here, code.not_(parked))
    with code.if_then(code.icmp_signed("==", ready, number(0, I32))):
        stuck = code.select(code.icmp_signed("==", here, number(0, I32)), number(-1 - WAITING), number(-1 - PARKED))
        code.ret(code.select(code.icmp_signed("==", alive, number(0, I32)), number(-1 - DONE), stuck))
    places, backwards = code.get(INTEGERS[32], warp, WARP_AT["pc"], 4), field(code, warp, "highest")
    lanes = code.bitcast(ready, INTEGERS[1])
    lowest = code.together("smin", code.select(lanes, places, splat(32, NOWHERE)))
    highest = code.together("smax", code.select(lanes, places, splat(32, -1)))
    turned = code.icmp_signed("!=", backwards, number(0, I32))
    block = code.select(turned, highest, lowest)
    mask = code.and_(here, code.bitcast(code.icmp_signed("==", places, broadcast(code, block)), I32))
    others = code.bitcast(code.and_(here, code.not_(mask)), INTEGERS[1])
    following = code.together("smin", code.select(others, places, splat(32, NOWHERE)))
    set_field(code, warp, "next_wait", code.select(turned, number(0, I32), following))
    set_field(code, warp, "parked", code.and_(parked, code.not_(mask)))
    code.ret(code.or_(code.shl(code.zext(block, I64), number(32)), code.zext(mask, I64)))
    return made


# ---------------------------------------------------------------- a block
def _fill(code: Flow, place: ir.Value, size: ir.Value, value: int = 0) -> None:
    name = "llvm.memset.p0.i64"
    known = code.module.globals.get(name) or ir.Function(
        code.module, ir.FunctionType(ir.VoidType(), [POINTER, I8, I64, I1]), name)
    code.call(known, [place, number(value, I8), size, number(0, I1)])


def each_warp(code: Flow, context: ir.Value, stride: int, body: Callable[[ir.Value], None]) -> None:
    """Code for every warp of the block."""
    warps = code.inttoptr(word(code, context, "warps"), POINTER)
    with code.count_to(word(code, context, "warp_count")) as index:
        body(code.at(warps, code.mul(index, number(stride))))


def start(module: ir.Module, layout: Layout, checking: bool) -> ir.Function:
    """void start(context, index): block `index` of the grid, all its threads at the first instruction."""
    made, code = function(module, "start", ir.VoidType(), [POINTER, I64])
    context, index = made.args
    x, y = word(code, context, "nctaid.x"), word(code, context, "nctaid.y")
    rest = code.udiv(index, x)
    for name, value in (("index", index), ("ctaid.x", code.urem(index, x)), ("ctaid.y", code.urem(rest, y)),
                        ("ctaid.z", code.udiv(rest, y)), ("smid", code.urem(index, word(code, context, "nsmid"))),
                        ("live_warps", word(code, context, "warp_count")), ("waiting", 0), ("turn", 0), ("clock", 1),
                        ("floor", 0)):
        set_word(code, context, name, value)
    threads = code.mul(word(code, context, "ntid.x"), code.mul(word(code, context, "ntid.y"), word(code, context, "ntid.z")))
    for name in ("threads", "live_threads"):
        set_word(code, context, name, threads)
    for name in ("shared", "shared_flags") if checking else ("shared",):
        _fill(code, code.inttoptr(word(code, context, name), POINTER), word(code, context, "shared_bytes"))
    with code.count_to(number(BARRIERS)) as index:
        barrier = code.at(code.at(context, CONTEXT_AT["barriers"]), code.mul(index, number(BARRIER.itemsize)))
        for name, offset in BARRIER_AT.items():
            code.put(number(EMPTY.get(name, 0), I32), barrier, offset)

    def reset(warp: ir.Value) -> None:
        code.put(splat(32, 0), warp, WARP_AT["pc"])
        code.put(ir.Constant(ir.VectorType(I32, BARRIERS), None), warp, WARP_AT["blocked"])
        set_field(code, warp, "alive", field(code, warp, "started"))
        for name in ("waits", "parked", "forced", "highest", "red_kind", "lane_floor", "polls"):
            set_field(code, warp, name, 0)
        set_field(code, warp, "status", RUNNABLE)
        masks, never = layout.past + 4 * layout.barriers, 4 * layout.never_written
        for first, size, value in ((*layout.cleared, 0), (layout.local, 32 * layout.local_stride, 0),
                                   (layout.past, 4 * (layout.barriers + len(layout.undefined)), 0), (masks, never, 255)):
            if size:
                _fill(code, code.at(warp, first), number(size), value)

    each_warp(code, context, layout.warp_bytes, reset)
    code.ret_void()
    return made


def run_block(module: ir.Module, layout: Layout, run_warp: ir.Function) -> ir.Function:
    """i64 run_block(context): its warps in turn, until all ended, none can run, a turn of some was over, or it has to stop."""
    made, code = function(module, "run_block", I64, [POINTER], inner=False)
    (context,) = made.args
    warps, order = (code.inttoptr(word(code, context, name), POINTER) for name in ("warps", "order"))
    again, ran, tired = code.slot(I1), code.slot(I1, number(0, I1)), code.slot(I1, number(0, I1))
    set_word(code, context, "turn", 0)
    with code.repeat(again):
        turn = word(code, context, "turn")
        index = code.get(I64, order, code.shl(turn, number(3)), 8)
        warp = code.at(warps, code.mul(index, number(layout.warp_bytes)))
        following = code.add(turn, number(1))
        round_over = code.icmp_signed("==", following, word(code, context, "warp_count"))
        set_word(code, context, "turn", code.select(round_over, number(0), following))
        with code.if_then(code.icmp_signed("==", field(code, warp, "status"), number(RUNNABLE, I32))):
            _turn(code, context, warp, run_warp, tired)
            code.store(number(1, I1), ran)
        with code.if_then(round_over):
            _end_of_round(code, context, ran, tired)
        code.store(number(1, I1), again)
    code.unreachable()
    return made


def _turn(code: Flow, context: ir.Value, warp: ir.Value, run_warp: ir.Function, tired: ir.Value) -> None:
    """A warp runs until it must wait or its turn is over. One that only polls has short turns, low and high blocks by turns."""
    polls = code.icmp_signed(">=", field(code, warp, "polls"), number(PATIENCE, I32))
    quantum = code.select(polls, number(SHORT_TURN), word(code, context, "quantum"))
    set_word(code, context, "fuel", quantum)
    status = code.call(run_warp, [context, warp])
    set_field(code, warp, "status", status)
    used = code.sub(quantum, word(code, context, "fuel"))
    set_word(code, context, "spent", code.add(word(code, context, "spent"), used))
    with code.if_then(code.icmp_signed("==", status, number(HALTED, I32)), likely=False):
        code.ret(number(STOPPED))
    over = code.icmp_signed("==", status, number(RUNNABLE, I32))
    code.store(code.or_(code.load(tired, typ=I1), over), tired)
    turned = code.sub(number(1, I32), field(code, warp, "highest"))
    polls = code.icmp_signed(">=", field(code, warp, "polls"), number(PATIENCE, I32))
    set_field(code, warp, "highest", code.select(code.and_(over, polls), turned, number(0, I32)))


def _end_of_round(code: Flow, context: ir.Value, ran: ir.Value, tired: ir.Value) -> None:
    with code.if_then(code.icmp_signed("==", word(code, context, "live_warps"), number(0))):
        code.ret(number(BLOCK_DONE))
    with code.if_then(code.not_(code.load(ran, typ=I1))):
        code.ret(number(STUCK))
    with code.if_then(code.load(tired, typ=I1)):
        code.ret(number(OUT_OF_FUEL))
    code.store(number(0, I1), ran)


def run_blocks(module: ir.Module, begin: ir.Function, run_one: ir.Function) -> ir.Function:
    """i64 run_blocks(context, indices, first, end): whole blocks one after another; returns how many ended.

    Fewer than end - first: the next one is begun, and what run_block said is in the context's `stopped`.
    """
    made, code = function(module, "run_blocks", I64, [POINTER, POINTER, I64, I64], inner=False)
    context, indices, first, end = made.args
    with code.count_to(code.sub(end, first)) as done:
        index = code.get(I64, indices, code.shl(code.add(first, done), number(3)), 8)
        code.call(begin, [context, index])
        ended = code.call(run_one, [context])
        with code.if_then(code.icmp_signed("!=", ended, number(BLOCK_DONE)), likely=False):
            set_word(code, context, "stopped", ended)
            code.ret(done)
    code.ret(code.sub(end, first))
    return made
