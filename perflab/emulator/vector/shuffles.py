"""Lanes that hold several elements side by side in memory: to one vector an element, and back."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from perflab.emulator.vector.flow import I8, Flow
from perflab.emulator.vector.values import INTEGERS, LANES

_WAY = 8  # lanes that are transposed at once
_I32 = ir.IntType(32)


def _shuffle(code: Flow, a: ir.Value, b: ir.Value, order: Sequence[int]) -> ir.Value:
    kind = ir.VectorType(_I32, len(order))
    return code.shuffle_vector(a, b, ir.Constant(kind, list(order)))


def _halves(order: Sequence[int]) -> list[int]:
    """An order of four out of two 128-bit vectors, done in both halves of 256-bit ones."""
    return [item + 4 * (item >= 4) for item in order] + [item + 4 + 4 * (item >= 4) for item in order]


_LOW, _HIGH = _halves([0, 4, 1, 5]), _halves([2, 6, 3, 7])
_LOW_PAIRS, _HIGH_PAIRS = _halves([0, 1, 4, 5]), _halves([2, 3, 6, 7])


def _joined(code: Flow, parts: Sequence[ir.Value]) -> ir.Value:
    """Vectors one after another."""
    while len(parts) > 1:
        size = parts[0].type.count
        parts = [_shuffle(code, parts[i], parts[i + 1], range(2 * size)) for i in range(0, len(parts), 2)]
    return parts[0]


def _part(code: Flow, vector: ir.Value, first: int, count: int) -> ir.Value:
    return _shuffle(code, vector, ir.Constant(vector.type, ir.Undefined), range(first, first + count))


def apart(code: Flow, place: ir.Value, bits: int, elements: int) -> list[ir.Value]:
    """Loads 32 lanes of `elements` items of `bits` each, lane after lane: a vector for each element."""
    if elements == 1:
        return [code.get(INTEGERS[bits], place, align=1)]
    if (bits, elements) == (32, 4):
        return _four_apart(code, place)
    kind = ir.VectorType(ir.IntType(bits), _WAY * elements)
    lane_bytes = bits * elements // 8
    chunks = [code.get(kind, place, _WAY * lane_bytes * w, align=1) for w in range(LANES // _WAY)]
    nothing = ir.Constant(kind, ir.Undefined)
    return [_joined(code, [_shuffle(code, chunk, nothing, range(e, _WAY * elements, elements)) for chunk in chunks])
            for e in range(elements)]


def _four_apart(code: Flow, place: ir.Value) -> list[ir.Value]:
    """4 x 32 bits a lane: 4x4 transposes in both halves of 256-bit vectors."""
    quad, columns = ir.VectorType(_I32, 4), []
    for first in range(0, LANES, _WAY):
        lanes = [code.get(quad, place, 16 * (first + lane), align=1) for lane in range(_WAY)]
        pairs = [_shuffle(code, lanes[i], lanes[i + 4], range(8)) for i in range(4)]
        low, high = ([_shuffle(code, pairs[i], pairs[i + 1], order) for i in (0, 2)] for order in (_LOW, _HIGH))
        columns.append([_shuffle(code, pair[0], pair[1], order) for pair in (low, high) for order in (_LOW_PAIRS, _HIGH_PAIRS)])
    return [_joined(code, [column[e] for column in columns]) for e in range(4)]


def together(code: Flow, values: Sequence[ir.Value], place: ir.Value) -> None:
    """Stores 32 lanes of several elements, lane after lane; the inverse of `apart`."""
    if len(values) == 1:
        code.put(values[0], place, align=1)
        return
    bits, elements = values[0].type.element.width, len(values)
    if (bits, elements) == (32, 4):
        _four_together(code, values, place)
        return
    for first in range(0, LANES, _WAY):
        parts = [_part(code, value, first, _WAY) for value in values]
        while len(parts) > 1:  # pair element e with e + n/2, so that the last step puts them into order
            half = len(parts) // 2
            size = parts[0].type.count
            order = [item for i in range(size) for item in (i, size + i)]
            parts = [_shuffle(code, parts[i], parts[i + half], order) for i in range(half)]
        code.put(parts[0], place, first * bits * elements // 8, align=1)


def _four_together(code: Flow, values: Sequence[ir.Value], place: ir.Value) -> None:
    for first in range(0, LANES, _WAY):
        x, y, z, w = (_part(code, value, first, _WAY) for value in values)
        rows = []
        for order in (_LOW, _HIGH):
            a, b = _shuffle(code, x, y, order), _shuffle(code, z, w, order)
            rows += [_shuffle(code, a, b, pairs) for pairs in (_LOW_PAIRS, _HIGH_PAIRS)]
        for lane, row in enumerate(rows):
            code.put(_part(code, row, 0, 4), place, 16 * (first + lane), align=1)
            code.put(_part(code, row, 4, 4), place, 16 * (first + lane + 4), align=1)


def lane_kind(lane_bytes: int) -> ir.Type:
    """A type that moves the bytes of one lane at once."""
    return ir.IntType(8 * lane_bytes) if lane_bytes <= 8 else ir.VectorType(_I32, lane_bytes // 4)


def filled(kind: ir.Type, byte: int) -> ir.Constant:
    """A constant of `kind` (integer or vector of integers) with that value in every byte."""
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [filled(kind.element, byte)] * kind.count)
    return ir.Constant(kind, int.from_bytes(bytes([byte]) * (kind.width // 8), "little"))


BYTES = ir.VectorType(I8, 32)
