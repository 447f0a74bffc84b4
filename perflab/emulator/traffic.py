"""Instruction families: memory, atomics, barriers and fences, control."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from perflab.emulator.arithmetic import Ending, add
from perflab.emulator.conversions import packed
from perflab.emulator.forms import FLOATS, Form, elementwise, flatten, size_of
from perflab.emulator.operations import Memory, Operation
from perflab.emulator.ptx import Address, Arguments, Label, Symbol

SPACES = {"global": "global", "shared": "shared", "shared::cta": "shared", "local": "local", "const": "const", "param": "param",
          "param::entry": "param", "param::func": "param"}
SCOPES = ("cta", "cluster", "gpu", "sys")
VECTORS = {"v2": 2, "v4": 4, "v8": 8}
HINTS = frozenset((
    "ca", "cg", "cs", "lu", "cv", "wb", "wt", "weak", "unified", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first",
    "L1::evict_last", "L1::no_allocate", "L2::evict_normal", "L2::evict_first", "L2::evict_last", "L2::64B", "L2::128B",
    "L2::256B"))
"""Modifiers of loads and stores that say how to cache, and change no value."""


def _place(form: Form) -> str:
    if "shared::cluster" in form.left:
        raise form.unsupported("clusters are not emulated yet")
    return SPACES.get(form.pick(SPACES, ""), "generic")


def _memory(form: Form, position: int, orders: tuple[str, ...]) -> dict[str, Any]:
    """Address, space, order and scope; the address is the operand at `position`. Cache hints are dropped."""
    if form.has("L2::cache_hint"):
        form.operands = form.operands[:-1]
    address = form.operands[position] if len(form.operands) > position else None
    if not isinstance(address, Address):
        raise form.unsupported("its address is not in brackets")
    order, scope, space = form.pick(orders, ""), form.pick(SCOPES, ""), _place(form)
    form.drop(HINTS)
    return {"space": space, "address": address, "strong": bool(order), "scope": scope or ("sys" if order else ""),
            "acquires": order in ("acquire", "acq_rel"), "releases": order in ("release", "acq_rel")}


def _load(form: Form) -> Operation:
    kind, elements = form.type(), VECTORS.get(form.pick(VECTORS, ""), 1)
    facts = _memory(form, 1, ("volatile", "relaxed", "acquire", "mmio"))
    read_only = form.has("nc") or form.instruction.opcode == "ldu"
    memory = Memory(type=kind, size_bytes=size_of(kind), elements=elements, read_only=read_only, **facts)
    return form.operation("load", "load", outputs=form.typed(form.operands[:1], [kind] * elements), memory=memory)


def _store(form: Form) -> Operation:
    kind, elements = form.type(), VECTORS.get(form.pick(VECTORS, ""), 1)
    if form.left[:1] == ["async"]:
        raise form.unsupported("asynchronous stores are not emulated yet")
    facts = _memory(form, 0, ("volatile", "relaxed", "release", "mmio"))
    memory = Memory(type=kind, size_bytes=size_of(kind), elements=elements, **facts)
    return form.operation("store", "store", inputs=form.typed(form.operands[1:2], [kind] * elements), memory=memory)


# ---------------------------------------------------------------- atomics
def _increment(old: Any, limit: Any) -> Any:
    return np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))


def _decrement(old: Any, limit: Any) -> Any:
    return np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))


ATOMIC: dict[str, Callable[..., Any]] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "exch": lambda old, value: value, "inc": _increment, "dec": _decrement,
    "cas": lambda old, compare, value: np.where(old == compare, value, old),
}
"""(old, *values) -> new, for integers."""


def _atomic(form: Form) -> Operation:
    """atom, with a result, and red, without one."""
    kind, register = form.element()
    returns = form.instruction.opcode == "atom"
    if form.pick(VECTORS, ""):
        raise form.unsupported("vector atomics are not emulated yet")
    what = form.pick(ATOMIC)
    facts = _memory(form, 1 if returns else 0, ("relaxed", "acquire", "release", "acq_rel"))
    facts |= {"strong": True, "scope": facts["scope"] or "gpu"}
    function = _float_update(form, what, kind, facts["space"]) if kind in FLOATS else ATOMIC[what]
    function = packed(function, kind) if kind != register else function
    return form.operation(
        "atomic", "atomic", outputs=form.typed(form.operands[:1], [register]) if returns else (),
        inputs=form.typed(form.operands[2 if returns else 1 :], [register] * (2 if what == "cas" else 1)),
        compute=_alone(function), memory=Memory(type=register, size_bytes=size_of(register), **facts))


def _float_update(form: Form, what: str, kind: str, space: str) -> Callable[..., Any]:
    """Only .add of floats; of f32 in global memory it flushes subnormals, in shared memory it keeps them."""
    if what != "add":
        raise form.unsupported(f".{what} of .{kind} is not known")
    keeps = form.has("noftz") or kind != "f32" or space == "shared"
    return add(Ending(kind, ftz=not keeps))


def _alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """An atomic gives its new value itself, not a tuple."""
    quiet = elementwise(function)
    return lambda *arrays: quiet(*arrays)[0]


# ---------------------------------------------------------------- order
def _barrier(form: Form) -> Operation:
    """bar and barrier: .sync, .arrive, .red; bar.warp.sync."""
    form.drop(("aligned",))
    if form.has("warp"):
        form.has("sync")
        return form.operation("warp_barrier", "barrier", inputs=form.typed(form.operands, ["u32"]))
    if form.has("cluster"):
        raise form.unsupported("clusters are not emulated yet")
    form.has("cta")
    way = form.pick(("sync", "arrive", "red"))
    if way != "red":
        count = form.expect(1, 2)
        return form.operation("barrier", "barrier", inputs=form.typed(form.operands, ["u32"] * count), barrier=way)
    what, result = form.pick(("popc", "and", "or")), form.type("up")
    count = form.expect(3, 4) - 2
    return form.operation("barrier", "barrier", outputs=form.typed(form.operands[:1], [result]),
                          inputs=form.typed(form.operands[1:], ["u32"] * count + ["pred"]), barrier=f"red.{what}")


def _fence(form: Form) -> Operation:
    """membar and fence; `target` is the scope: 'cta', 'cluster', 'gpu' or 'sys'."""
    if form.has("proxy"):
        return _proxy_fence(form)
    if form.instruction.opcode == "membar":
        scope = {"cta": "cta", "gl": "gpu", "sys": "sys"}[form.pick(("cta", "gl", "sys"))]
    else:
        form.pick(("sc", "acq_rel", "acquire", "release"), "")
        scope = form.pick(SCOPES)
    return form.operation("fence", "fence", target=scope)


def _proxy_fence(form: Form) -> Operation:
    if form.has("alias"):
        return form.operation("nothing", "fence")
    raise form.unsupported("proxies other than .alias belong to asynchronous copies, which are not emulated yet")


# ---------------------------------------------------------------- control
def _branch(form: Form) -> Operation:
    form.has("uni")
    form.expect(1)
    target = form.operands[0]
    if not isinstance(target, Label | Symbol):
        raise form.unsupported("its target is not a label")
    return form.operation("branch", "branch", target=target.name)


def _exit(form: Form) -> Operation:
    form.has("uni")
    return form.operation("exit", "branch")


def _trap(form: Form) -> Operation:
    return form.operation("trap", "other")


def _call(form: Form) -> Operation:
    """A system function: inputs are its arguments (.param variables) in order; results stand in the first operand."""
    form.has("uni")
    names = [operand.name for operand in form.operands if isinstance(operand, Symbol | Label)]
    if not names:
        raise form.unsupported("calls through a register are not emulated yet")
    arguments = form.operands[-1]
    passed = flatten([arguments]) if isinstance(arguments, Arguments) else ()
    return form.operation("call", "other", target=names[0], inputs=form.typed(passed, ["u64"] * len(passed)))


def _nothing(form: Form) -> Operation:
    """Hints and waits that change no value, whatever their modifiers."""
    form.left = []
    return form.operation("nothing", "other")


TRAFFIC: dict[str, dict[str, Callable[[Form], Operation]]] = {
    "memory": {"ld": _load, "ldu": _load, "st": _store},
    "atomics": {"atom": _atomic, "red": _atomic},
    "barriers and fences": {"bar": _barrier, "barrier": _barrier, "membar": _fence, "fence": _fence},
    "control": {"bra": _branch, "ret": _exit, "exit": _exit, "trap": _trap, "brkpt": _trap, "call": _call},
    "hints without effect": {name: _nothing for name in (
        "prefetch", "prefetchu", "applypriority", "discard", "createpolicy", "nanosleep", "pmevent", "griddepcontrol")},
}
"""Family -> opcode -> reader of its forms."""
