"""Warp collectives on numpy arrays [n, 32]: (active, *inputs) -> (*outputs, absent).

active: lanes that execute the instruction together; absent: active lanes that read from a lane which does not. A lane's
partners are the active lanes that its own member mask names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from perflab.emulator.arithmetic import NUMPY, Ending, extreme
from perflab.emulator.forms import Form, quietly
from perflab.emulator.operations import Operation
from perflab.emulator.ptx import Pair

Array = Any
LANES = np.arange(32, dtype=np.int64)
_WEIGHTS = np.uint64(1) << LANES.astype(np.uint64)


def mask_of(lanes: Array) -> Array:
    """[…, 32] bool -> […] u32, lane 0 in bit 0."""
    return (lanes * _WEIGHTS).sum(axis=-1).astype(np.uint32)


def _each(value: Array) -> Array:
    """[n] -> [n, 32]: the same for all lanes of a warp."""
    return np.repeat(np.asarray(value)[:, None], 32, axis=1)


def _partners(active: Array, members: Array) -> Array:
    """[n, 32, 32] bool: for each lane, the active lanes that its member mask names."""
    named = (members.astype(np.uint32)[:, :, None] >> LANES.astype(np.uint32)) & np.uint32(1)
    return (named != 0) & active[:, None, :]


def shuffle(mode: str) -> Callable[..., tuple[Array, ...]]:
    """shfl.sync.up|down|bfly|idx: value, lane or distance, clamp and segment mask, members -> value, in range."""

    def run(active: Array, value: Array, by: Array, control: Array, members: Array) -> tuple[Array, ...]:
        by, control = by.astype(np.int64) & 31, control.astype(np.int64)
        segment, limit = (control >> 8) & 31, control & 31
        lowest, last = LANES & segment, (LANES & segment) | (limit & ~segment & 31)
        source = {"up": LANES - by, "down": LANES + by, "bfly": LANES ^ by, "idx": lowest | (by & ~segment & 31)}[mode]
        valid = source >= last if mode == "up" else source <= last
        source = np.where(valid, source, LANES) & 31
        there = np.take_along_axis(active, source, 1) & (((members.astype(np.int64) >> source) & 1) == 1)
        return np.where(there, np.take_along_axis(value, source, 1), value), valid, active & ~there

    return run


def vote(mode: str) -> Callable[..., tuple[Array, ...]]:
    """vote.sync.all|any|uni (pred) and ballot (u32) of a predicate over the members."""

    def run(active: Array, predicate: Array, members: Array) -> tuple[Array, ...]:
        yes, everyone = mask_of(predicate & active), mask_of(active)
        among = members.astype(np.uint32) & everyone[:, None]
        count = yes[:, None] & among
        result = {"all": count == among, "any": count != 0, "uni": (count == among) | (count == 0), "ballot": count}[mode]
        return result, np.zeros_like(active)

    return run


def match(mode: str) -> Callable[..., tuple[Array, ...]]:
    """match.any (members with my value) and match.all (all members and true, or 0 and false)."""

    def run(active: Array, value: Array, members: Array) -> tuple[Array, ...]:
        same = (value[:, :, None] == value[:, None, :]) & _partners(active, members)
        mask = mask_of(same)
        if mode == "any":
            return mask, np.zeros_like(active)
        everyone = mask == (members.astype(np.uint32) & mask_of(active)[:, None])
        return np.where(everyone, mask, np.uint32(0)), everyone, np.zeros_like(active)

    return run


def reduce(combine: Callable[[Array, Array], Array], neutral: Any) -> Callable[..., tuple[Array, ...]]:
    """redux.sync: the members' values combined, lane 0 first; `neutral` stands for lanes that take no part."""

    def run(active: Array, value: Array, members: Array) -> tuple[Array, ...]:
        partners = _partners(active, members)
        filled = np.where(partners, value[:, None, :], value.dtype.type(neutral))
        result = filled[:, :, 0]
        for lane in range(1, 32):
            result = combine(result, filled[:, :, lane])
        return result.astype(value.dtype), np.zeros_like(active)

    return run


def active_mask(active: Array) -> tuple[Array, ...]:
    """activemask: the lanes that happen to be here."""
    return _each(mask_of(active)), np.zeros_like(active)


def elect(active: Array, members: Array) -> tuple[Array, ...]:
    """elect.sync: the lowest member's lane number for all, and true for that lane."""
    partners = _partners(active, members)
    leader = partners.argmax(axis=2)
    return leader.astype(np.uint32), leader == LANES, np.zeros_like(active)


# ---------------------------------------------------------------- the forms of the instructions
Compute = Callable[..., tuple[Array, ...]]


def _collective(form: Form, outputs: list[str], inputs: list[str], compute: Compute, members: int | None) -> Operation:
    return form.operation("collective", "collective", outputs=form.typed(form.operands[:1], outputs),
                          inputs=form.typed(form.operands[1:], inputs), compute=quietly(compute), members=members)


def _synchronised(form: Form) -> None:
    if not form.has("sync"):
        raise form.unsupported("without .sync it does not exist from sm_70 on")


def _without_second(compute: Compute) -> Compute:
    """The same where the instruction has no second result."""
    return lambda *arrays: compute(*arrays)[::2]


def _shuffle(form: Form) -> Operation:
    kind, compute = form.type("u"), shuffle(form.pick(("up", "down", "bfly", "idx")))
    _synchronised(form)
    two = isinstance(form.operands[0], Pair)
    return _collective(form, [kind, "pred"] if two else [kind], [kind, "u32", "u32", "u32"],
                       compute if two else _without_second(compute), 3)


def _vote(form: Form) -> Operation:
    kind, mode = form.type("up"), form.pick(("all", "any", "uni", "ballot"))
    _synchronised(form)
    return _collective(form, [kind], ["pred", "u32"], vote(mode), 1)


def _match(form: Form) -> Operation:
    kind, mode = form.type("u"), form.pick(("any", "all"))
    _synchronised(form)
    two = isinstance(form.operands[0], Pair)
    compute = match(mode) if mode == "any" or two else _without_second(match(mode))
    return _collective(form, ["u32", "pred"] if two else ["u32"], [kind, "u32"], compute, 1)


def _reduce(form: Form) -> Operation:
    kind, name = form.type(), form.pick(("add", "min", "max", "and", "or", "xor"))
    _synchronised(form)
    if kind == "f32":
        compute = _reduce_floats(form, name)
    else:
        limits = np.iinfo(NUMPY[kind])
        combine, neutral = {"add": (np.add, 0), "min": (np.minimum, limits.max), "max": (np.maximum, limits.min),
                            "and": (np.bitwise_and, limits.max), "or": (np.bitwise_or, 0), "xor": (np.bitwise_xor, 0)}[name]
        compute = reduce(combine, neutral)
    return _collective(form, [kind], [kind, "u32"], compute, 1)


def _reduce_floats(form: Form, name: str) -> Compute:
    """redux.sync.min|max.f32 of sm_100a. Lanes that take no part are NaN, which loses, or with .NaN the worst value."""
    if name not in ("min", "max"):
        raise form.unsupported(f".{name} of .f32 is not known")
    absolute, nan = form.has("abs"), form.has("NaN")
    worst = np.inf if name == "min" else 0.0 if absolute else -np.inf
    compute = reduce(extreme(Ending("f32"), name == "max", nan), worst if nan else np.nan)
    return (lambda active, value, members: compute(active, np.abs(value), members)) if absolute else compute


def _active_mask(form: Form) -> Operation:
    form.type("u")
    form.expect(1)
    return _collective(form, ["u32"], [], active_mask, None)


def _elect(form: Form) -> Operation:
    _synchronised(form)
    return _collective(form, ["u32", "pred"], ["u32"], elect, 0)


COLLECTIVES = {"warp collectives": {"shfl": _shuffle, "vote": _vote, "match": _match, "redux": _reduce,
                                    "activemask": _active_mask, "elect": _elect}}
"""Family -> opcode -> reader of its forms."""
