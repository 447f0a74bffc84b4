"""Instruction family: bits, comparisons, selection, moves and address arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from perflab.emulator import arithmetic, integers
from perflab.emulator.arithmetic import NUMPY
from perflab.emulator.conversions import join, split
from perflab.emulator.forms import FLOATS, Form, plain
from perflab.emulator.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES
from perflab.emulator.operations import Operation
from perflab.emulator.ptx import Immediate, Pair, Vector

Function = Callable[..., Any]
Maker = Callable[[Form], Operation]


# ---------------------------------------------------------------- bits
def _of_one_type(inputs: int, function: Function, result: str = "", of_predicates: Function | None = None) -> Maker:
    """d = f(a, …) with one type for all (result: another one for d)."""

    def maker(form: Form) -> Operation:
        kind = form.type("up" if of_predicates else "u")
        chosen = of_predicates if kind == "pred" and of_predicates else function
        return form.compute("logic", [result or kind], [kind] * inputs, chosen)

    return maker


def _count_zeros(a: Any) -> Any:
    return (a == 0).astype(a.dtype)


def _shift(form: Form) -> Operation:
    kind = form.type("us")
    return form.compute("logic", [kind], [kind, "u32"], integers.shift(kind, left=form.instruction.opcode == "shl"))


def _funnel(form: Form) -> Operation:
    kind = form.type("u")
    left, wrap = form.pick(("l", "r")) == "l", form.pick(("wrap", "clamp")) == "wrap"
    return form.compute("logic", [kind], [kind] * 3, integers.funnel(left, wrap))


def _find_highest(form: Form) -> Operation:
    kind = form.type("us")
    return form.compute("logic", ["u32"], [kind], integers.find_highest(kind, form.has("shiftamt")))


def _find_nth(form: Form) -> Operation:
    form.type("u")
    return form.compute("logic", ["u32"], ["u32", "u32", "s32"], integers.find_nth)


def _extract(form: Form) -> Operation:
    kind = form.type("us")
    return form.compute("logic", [kind], [kind, "u32", "u32"], integers.extract(kind))


def _insert(form: Form) -> Operation:
    kind = form.type("u")
    return form.compute("logic", [kind], [kind, kind, "u32", "u32"], integers.insert(kind))


def _field_mask(form: Form) -> Operation:
    kind = form.type("u")
    return form.compute("logic", [kind], [kind] * 2, integers.field_mask(form.pick(("wrap", "clamp")) == "wrap"))


def _extend(form: Form) -> Operation:
    kind = form.type("us")
    return form.compute("logic", [kind], [kind, "u32"], integers.extend(kind, form.pick(("wrap", "clamp")) == "wrap"))


def _permute(form: Form) -> Operation:
    mode, kind = form.pick(integers.PERMUTE_MODES, ""), form.type("u")
    return form.compute("logic", [kind], [kind] * 3, integers.permute(mode))


def _logic3(form: Form) -> Operation:
    """lop3, also with a predicate beside it: (d != 0) or/and q."""
    kind, combine = form.type("u"), form.pick(("or", "and"), "")
    form.expect(6 if combine else 5)
    table = form.operands[4]
    if not isinstance(table, Immediate):
        raise form.unsupported("its table is not a constant")
    form.operands = (*form.operands[:4], *form.operands[5:])
    function = integers.logic3(table.value & 0xFF)
    if not combine:
        return form.compute("logic", [kind], [kind] * 3, function)

    def both(a: Any, b: Any, c: Any, q: Any) -> tuple[Any, Any]:
        d = function(a, b, c)
        return d, ((d != 0) | q) if combine == "or" else ((d != 0) & q)

    return form.compute("logic", [kind, "pred"], [kind] * 3 + ["pred"], both)


# ---------------------------------------------------------------- comparisons, selection
INTEGER_COMPARISONS: dict[str, Function] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal}
COMBINE: dict[str, Function] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _comparison(form: Form, kind: str) -> Function:
    if kind in FLOATS:
        return arithmetic.compare(kind, form.pick(arithmetic.COMPARISONS), form.has("ftz"))
    return INTEGER_COMPARISONS[form.pick(INTEGER_COMPARISONS)]


def _set_predicate(form: Form) -> Operation:
    """setp: p = test, q = not test (packed: the test of the upper halves), each combined with a third operand where given."""
    kind, register = form.element()
    test, combine = _comparison(form, kind), COMBINE.get(form.pick(COMBINE, ""))
    two = isinstance(form.operands[0], Pair)
    if kind != register and not two:
        raise form.unsupported("it compares two halves and has one result")

    def run(a: Any, b: Any, *other: Any) -> tuple[Any, ...]:
        if kind == register:
            yes = test(a, b)
            answers = (yes, np.logical_not(yes)) if two else (yes,)
        else:
            answers = tuple(test(x, y) for x, y in zip(split(a, kind), split(b, kind), strict=True))
        return tuple(combine(answer, *other) for answer in answers) if combine else answers

    return form.compute("compare", ["pred"] * (2 if two else 1), [register, register] + ["pred"] * bool(combine), run)


def _set(form: Form) -> Operation:
    """set: all bits (integers) or 1.0 (floats) where the test holds, else 0; packed sources by halves."""
    kind, register = form.element()
    result, result_register = form.element()
    test, combine = _comparison(form, kind), COMBINE.get(form.pick(COMBINE, ""))
    both = kind != register
    each = f"u{integers.width(result) // 2}" if both and result == result_register else result
    true = arithmetic.from_bits(arithmetic.ONE[each], each) if each in FLOATS else ~NUMPY[each](0)

    def half(a: Any, b: Any, *other: Any) -> Any:
        yes = test(a, b)
        return np.where(combine(yes, *other) if combine else yes, true, NUMPY[each](0))

    def run(a: Any, b: Any, *other: Any) -> Any:
        if not both:
            return half(a, b, *other)
        return join(*(half(x, y, *other) for x, y in zip(split(a, kind), split(b, kind), strict=True)))

    return form.compute("compare", [result_register], [register, register] + ["pred"] * bool(combine), run)


def _has_property(form: Form) -> Operation:
    kind = form.type("f")
    name = form.pick(("finite", "infinite", "number", "notanumber", "normal", "subnormal"))
    return form.compute("compare", ["pred"], [kind], arithmetic.has_property(kind, name))


def _select(form: Form) -> Operation:
    kind = plain(form.type("usfp"))
    return form.compute("move", [kind], [kind, kind, "pred"], lambda a, b, p: np.where(p, a, b))


def _select_by_sign(form: Form) -> Operation:
    control, kind = form.type("sf"), plain(form.type())
    ftz = form.has("ftz")

    def run(a: Any, b: Any, c: Any) -> Any:
        return np.where((arithmetic.flush(c, control) if ftz else c) >= 0, a, b)

    return form.compute("move", [kind], [kind, kind, control], run)


# ---------------------------------------------------------------- moves and addresses
def _move(form: Form) -> Operation:
    """mov, also of parts into a register and out of it."""
    kind = plain(form.type("usfp"))
    form.expect(2)
    target, source = form.operands
    if not isinstance(target, Vector) and not isinstance(source, Vector):
        return form.compute("move", [kind], [kind], lambda a: a)
    count = len(source.items) if isinstance(source, Vector) else len(target.items)  # type: ignore[union-attr]
    part = f"u{integers.width(kind) // count}"
    if part not in NUMPY:
        raise form.unsupported(f"{count} parts of .{kind} are not known")
    if isinstance(source, Vector):
        return form.compute("move", [kind], [part] * count, _joined(kind, part))
    return form.compute("move", [part] * count, [kind], _parted(part, count))


def _joined(kind: str, part: str) -> Function:
    type, bits = NUMPY[kind], integers.width(part)

    def run(*items: Any) -> Any:
        word = items[0].astype(type)
        for i, item in enumerate(items[1:], 1):
            word = word | (item.astype(type) << type(i * bits))
        return word

    return run


def _parted(part: str, count: int) -> Function:
    bits = integers.width(part)
    return lambda a: tuple((a >> a.dtype.type(i * bits)).astype(NUMPY[part]) for i in range(count))


WINDOWS = {"shared": SHARED_WINDOW, "shared::cta": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW,
           "param::entry": PARAM_WINDOW, "global": 0, "const": 0}
"""Where a space begins among generic addresses; constant and global memory are one."""


def _to_generic(form: Form) -> Operation:
    """cvta, and back with .to."""
    kind, back = form.type("u"), form.has("to")
    start = NUMPY[kind](WINDOWS[form.pick(WINDOWS)])
    return form.compute("integer", [kind], [kind], (lambda a: a - start) if back else (lambda a: a + start))


def _is_in_space(form: Form) -> Operation:
    """isspacep: by the window an address lies in; global is what lies in no other."""
    space = form.pick(WINDOWS)
    if space == "const":
        raise form.unsupported("constant and global memory share one address window here")

    def inside(address: Any, start: int) -> Any:
        return (address - np.uint64(start)) < np.uint64(WINDOW_BYTES)

    def run(address: Any) -> Any:
        if space != "global":
            return inside(address, WINDOWS[space])
        return ~(inside(address, SHARED_WINDOW) | inside(address, LOCAL_WINDOW) | inside(address, PARAM_WINDOW))

    return form.compute("compare", ["pred"], ["u64"], run)


SELECTION: dict[str, dict[str, Maker]] = {
    "logic and bits": {
        "and": _of_one_type(2, np.bitwise_and, of_predicates=np.logical_and),
        "or": _of_one_type(2, np.bitwise_or, of_predicates=np.logical_or),
        "xor": _of_one_type(2, np.bitwise_xor, of_predicates=np.logical_xor),
        "not": _of_one_type(1, np.invert, of_predicates=np.logical_not), "cnot": _of_one_type(1, _count_zeros), "lop3": _logic3,
        "shl": _shift, "shr": _shift, "shf": _funnel, "prmt": _permute, "bfe": _extract, "bfi": _insert, "bmsk": _field_mask,
        "szext": _extend, "brev": _of_one_type(1, integers.reverse), "popc": _of_one_type(1, integers.popcount, "u32"),
        "clz": _of_one_type(1, integers.leading_zeros, "u32"), "bfind": _find_highest, "fns": _find_nth},
    "comparison and selection": {"setp": _set_predicate, "set": _set, "selp": _select, "slct": _select_by_sign,
                                 "testp": _has_property},
    "moves and addresses": {"mov": _move, "cvta": _to_generic, "isspacep": _is_in_space},
}
"""Family -> opcode -> reader of its forms."""
