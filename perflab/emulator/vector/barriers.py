"""Compiled barriers of a block: who has come, who may go on. What is strange about them is left to Python."""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from perflab.emulator.vector.calls import call_event
from perflab.emulator.vector.flow import I64, POINTER, Flow, function, number
from perflab.emulator.vector.layout import BARRIER, BARRIER_AT, BARRIERS, CONTEXT_AT, RUNNABLE, WARP_AT, Layout
from perflab.emulator.vector.schedule import EMPTY, each_warp, field, set_field, set_word, word
from perflab.emulator.vector.values import I32, INTEGERS, broadcast

SYNC, ARRIVE, RED_POPC, RED_AND, RED_OR = range(5)
KINDS = {"sync": SYNC, "arrive": ARRIVE, "red.popc": RED_POPC, "red.and": RED_AND, "red.or": RED_OR}
DONE_BY_PYTHON = 2


def _of(code: Flow, barrier: ir.Value, name: str) -> ir.Value:
    return code.get(I32, barrier, BARRIER_AT[name])


def _set(code: Flow, barrier: ir.Value, name: str, value: ir.Value) -> None:
    code.put(value, barrier, BARRIER_AT[name])


def _barrier(code: Flow, context: ir.Value, id64: ir.Value) -> ir.Value:
    return code.at(code.at(context, CONTEXT_AT["barriers"]), code.mul(id64, number(BARRIER.itemsize)))


def _zero(code: Flow, value: ir.Value) -> ir.Value:
    return code.icmp_signed("==", value, number(0, value.type))


@dataclass(frozen=True)
class BarrierCode:
    """Functions of one module.

    arrive(context, warp, site, bit, mask, id, count, kind, predicate); leave(context, warp, mask).
    """

    arrive: ir.Function
    leave: ir.Function

    @staticmethod
    def of(module: ir.Module, layout: Layout, checking: bool) -> BarrierCode:
        """Write them."""
        release = _release(module, layout, checking)
        return BarrierCode(_arrive(module, release, checking), _leave(module, release))


def _release(module: ir.Module, layout: Layout, checking: bool) -> ir.Function:
    """void release(context, barrier, id): those who wait there go on (of a barrier with a count: the warps that wait whole)."""
    made, code = function(module, "release", ir.VoidType(), [POINTER, POINTER, I64])
    context, barrier, id_ = made.args
    site = code.sext(_of(code, barrier, "site"), I64)
    counted = code.not_(_zero(code, _of(code, barrier, "expected")))
    with code.if_then(code.and_(code.not_(counted), code.not_(_zero(code, _of(code, barrier, "mixed")))), likely=False):
        done = call_event(code, context, "mixed", site, id_, number(0, I32), barrier)
        with code.if_then(code.icmp_signed("==", done, number(DONE_BY_PYTHON, I32))):
            code.ret_void()
    arrived = code.sext(_of(code, barrier, "arrived"), I64)
    some_left = code.icmp_signed("<", arrived, word(code, context, "threads"))
    watched = code.icmp_signed(">=", _of(code, barrier, "bit"), number(0, I32))
    with code.if_then(code.and_(code.not_(counted), code.and_(some_left, watched)), likely=False):
        _look_for_skippers(code, layout, context, barrier, site, id_)
    if checking:
        call_event(code, context, "released", site, id_, number(0, I32), barrier)
    blocked_at = code.add(number(WARP_AT["blocked"]), code.shl(id_, number(2)))
    left = code.slot(I32, number(0, I32))

    def wake(warp: ir.Value) -> None:
        lanes = code.get(I32, warp, blocked_at)
        whole = code.icmp_signed("==", lanes, field(code, warp, "alive"))
        with code.if_then(code.and_(code.not_(_zero(code, lanes)), code.or_(whole, code.not_(counted)))):
            code.put(number(0, I32), warp, blocked_at)
            everywhere = code.get(ir.VectorType(I32, BARRIERS), warp, WARP_AT["blocked"])
            set_field(code, warp, "waits", code.together("or", everywhere))
            set_field(code, warp, "status", RUNNABLE)
            _give_result(code, barrier, warp)
        code.store(code.add(code.load(left, typ=I32), code.trunc(code.lanes(code.get(I32, warp, blocked_at)), I32)), left)

    each_warp(code, context, layout.warp_bytes, wake)
    still = code.load(left, typ=I32)
    set_word(code, context, "waiting", code.add(code.sub(word(code, context, "waiting"), arrived), code.sext(still, I64)))
    for name in BARRIER_AT:
        _set(code, barrier, name, number(EMPTY.get(name, 0), I32))
    _set(code, barrier, "arrived", still)
    code.ret_void()
    return made


def _look_for_skippers(code: Flow, layout: Layout, context: ir.Value, barrier: ir.Value, site: ir.Value, id_: ir.Value) -> None:
    """Tell Python where a thread went past the barrier for good and ended, while others wait at it."""
    found = code.slot(I32, number(0, I32))
    place = code.add(number(layout.past), code.shl(code.sext(_of(code, barrier, "bit"), I64), number(2)))

    def look(warp: ir.Value) -> None:
        gone = code.and_(code.get(I32, warp, place), code.not_(field(code, warp, "alive")))
        code.store(code.or_(code.load(found, typ=I32), gone), found)

    each_warp(code, context, layout.warp_bytes, look)
    lanes = code.load(found, typ=I32)
    with code.if_then(code.not_(_zero(code, lanes))):
        call_event(code, context, "gone", site, id_, lanes, barrier)


def _give_result(code: Flow, barrier: ir.Value, warp: ir.Value) -> None:
    """bar.red: the result into the register that the warp named when it came; a vector of 32 bits, or a mask."""
    kind, lanes = field(code, warp, "red_kind"), field(code, warp, "red_mask")
    place = code.at(warp, code.zext(field(code, warp, "red_slot"), I64))
    chosen = code.bitcast(lanes, INTEGERS[1])
    with code.if_then(code.icmp_signed("==", kind, number(RED_POPC, I32))):
        value = broadcast(code, _of(code, barrier, "count"))
        code.put(code.select(chosen, value, code.get(INTEGERS[32], place)), place)
    for way, name in ((RED_AND, "all"), (RED_OR, "any")):
        with code.if_then(code.icmp_signed("==", kind, number(way, I32))):
            yes = code.sub(number(0, I32), _of(code, barrier, name))
            code.put(code.or_(code.and_(lanes, yes), code.and_(code.get(I32, place), code.not_(lanes))), place)
    set_field(code, warp, "red_kind", 0)


def _complete(code: Flow, context: ir.Value, barrier: ir.Value) -> ir.Value:
    """i1: has everybody come who is awaited?"""
    arrived, rows, expected = (code.sext(_of(code, barrier, name), I64) for name in ("arrived", "rows", "expected"))
    everybody = code.icmp_signed(">=", arrived, word(code, context, "live_threads"))
    all_of_block = code.and_(code.icmp_signed(">", arrived, number(0)), everybody)
    return code.select(_zero(code, expected), all_of_block, code.icmp_signed(">=", rows, expected))


def _arrive(module: ir.Module, release: ir.Function, checking: bool) -> ir.Function:
    """The function `arrive`: lanes come to a barrier; their pc is past it already."""
    made, code = function(module, "arrive", ir.VoidType(), [POINTER, POINTER, I64, *[I32] * 6])
    context, warp, site, bit, mask, id_, count, kind, predicate = made.args
    id64 = code.zext(code.and_(id_, number(BARRIERS - 1, I32)), I64)
    barrier = _barrier(code, context, id64)
    old = _of(code, barrier, "expected")
    _set(code, barrier, "expected", code.select(code.icmp_signed(">", count, old), count, old))
    with code.if_else(code.icmp_signed("==", kind, number(ARRIVE, I32))) as (passes, waits):
        with passes:
            _set(code, barrier, "rows", code.add(_of(code, barrier, "rows"), number(32, I32)))
            if checking:
                call_event(code, context, "arrived", site, warp, mask, id64)
        with waits:
            known, site32 = _of(code, barrier, "site"), code.trunc(site, I32)
            differs = code.and_(code.icmp_signed("!=", known, site32), code.icmp_signed("!=", known, number(-1, I32)))
            _set(code, barrier, "mixed", code.or_(_of(code, barrier, "mixed"), code.zext(differs, I32)))
            _set(code, barrier, "site", site32)
            _set(code, barrier, "bit", bit)
            _wait(code, context, warp, barrier, id64, mask)
            _vote(code, barrier, warp, mask, kind, predicate)
    with code.if_then(_complete(code, context, barrier)):
        code.call(release, [context, barrier, id64])
    code.ret_void()
    return made


def _wait(code: Flow, context: ir.Value, warp: ir.Value, barrier: ir.Value, id64: ir.Value, mask: ir.Value) -> None:
    """The lanes stop here."""
    lanes = code.trunc(code.lanes(mask), I32)
    _set(code, barrier, "arrived", code.add(_of(code, barrier, "arrived"), lanes))
    set_word(code, context, "waiting", code.add(word(code, context, "waiting"), code.sext(lanes, I64)))
    place = code.add(number(WARP_AT["blocked"]), code.shl(id64, number(2)))
    blocked = code.or_(code.get(I32, warp, place), mask)
    code.put(blocked, warp, place)
    set_field(code, warp, "waits", code.or_(field(code, warp, "waits"), mask))
    whole = code.icmp_signed("==", blocked, field(code, warp, "alive"))
    rows = _of(code, barrier, "rows")
    _set(code, barrier, "rows", code.select(whole, code.add(rows, number(32, I32)), rows))


def _vote(code: Flow, barrier: ir.Value, warp: ir.Value, mask: ir.Value, kind: ir.Value, predicate: ir.Value) -> None:
    """bar.red: predicates into the barrier's sums, and what the warp wants to know."""
    _set(code, barrier, "count", code.add(_of(code, barrier, "count"), code.trunc(code.lanes(predicate), I32)))
    every, some = code.icmp_signed("==", predicate, mask), code.not_(_zero(code, predicate))
    _set(code, barrier, "all", code.and_(_of(code, barrier, "all"), code.zext(every, I32)))
    _set(code, barrier, "any", code.or_(_of(code, barrier, "any"), code.zext(some, I32)))
    set_field(code, warp, "red_kind", kind)
    set_field(code, warp, "red_mask", mask)


def _leave(module: ir.Module, release: ir.Function) -> ir.Function:
    """void leave(context, warp, mask): lanes end; nobody awaits them any more."""
    made, code = function(module, "leave", ir.VoidType(), [POINTER, POINTER, I32])
    context, warp, mask = made.args
    alive = code.and_(field(code, warp, "alive"), code.not_(mask))
    set_field(code, warp, "alive", alive)
    set_word(code, context, "live_threads", code.sub(word(code, context, "live_threads"), code.lanes(mask)))
    with code.if_then(_zero(code, alive)):
        set_word(code, context, "live_warps", code.sub(word(code, context, "live_warps"), number(1)))
    with code.if_then(code.not_(_zero(code, word(code, context, "waiting"))), likely=False), \
            code.count_to(number(BARRIERS)) as index:
        barrier = _barrier(code, context, index)
        lanes = code.get(I32, warp, code.add(number(WARP_AT["blocked"]), code.shl(index, number(2))))
        whole = code.and_(code.icmp_signed("==", lanes, alive), code.not_(_zero(code, lanes)))
        rows = _of(code, barrier, "rows")  # the rest of the warp waits whole now
        _set(code, barrier, "rows", code.select(whole, code.add(rows, number(32, I32)), rows))
        came = code.not_(_zero(code, _of(code, barrier, "arrived")))
        with code.if_then(code.and_(came, _complete(code, context, barrier))):
            code.call(release, [context, barrier, index])
    code.ret_void()
    return made
