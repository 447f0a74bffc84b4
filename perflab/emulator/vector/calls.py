"""How compiled code calls Python."""

from __future__ import annotations

from llvmlite import ir

from perflab.emulator.vector.flow import I64, POINTER, Flow, number
from perflab.emulator.vector.layout import CONTEXT_AT, EVENT
from perflab.emulator.vector.values import I32

_TYPE = ir.FunctionType(I32, [I64] * 6)


def call_event(code: Flow, context: ir.Value, kind: str, site: ir.Value, warp: ir.Value, mask: ir.Value,
               more: ir.Value) -> ir.Value:
    """Calls Python, see `EVENTS`: i32. Arguments are numbers or pointers."""
    words = [code.ptrtoint(v, I64) if v.type == POINTER else code.zext(v, I64) if v.type == I32 else v
             for v in (site, warp, mask, more)]
    target = code.inttoptr(code.get(I64, context, CONTEXT_AT["event"], 8), _TYPE.as_pointer())
    return code.call(target, [code.get(I64, context, CONTEXT_AT["worker"], 8), number(EVENT[kind]), *words])
