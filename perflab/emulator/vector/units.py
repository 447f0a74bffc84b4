"""Compiled counting: 32-byte sectors of global requests, wavefronts of shared ones, marks of the bytes that were used."""

from __future__ import annotations

from llvmlite import ir

from perflab.emulator.memory import READ, WRITTEN
from perflab.emulator.tallies import IDEAL, LANES, REQUESTS, UNITS
from perflab.emulator.vector.flow import I1, I8, I64, POINTER, Flow, function, number
from perflab.emulator.vector.shuffles import BYTES, filled, lane_kind
from perflab.emulator.vector.values import I32, INTEGERS, broadcast, pick, popcount, splat
from perflab.emulator.vector.values import LANES as WIDTH

_SECTOR = 5  # log2 of its bytes


def count(code: Flow, record: ir.Value, lanes: int | ir.Value, units: int | ir.Value, ideal: int | ir.Value) -> None:
    """One request into the counters of its site."""
    for column, by in ((REQUESTS, 1), (LANES, lanes), (UNITS, units), (IDEAL, ideal)):
        if not isinstance(by, int) or by:
            code.bump(record, 8 * column, by)


def groups_of(lane_bytes: int) -> int:
    """Parts of a warp that shared memory serves one after another."""
    return 1 if lane_bytes <= 4 else 2 if lane_bytes == 8 else 4


def broadcast_units(space: str, lane_bytes: int) -> int:
    """Units, ideal ones too, of a load of 32 lanes at one place."""
    return max(1, groups_of(lane_bytes) // 2) if space == "shared" else 1


def contiguous_units(code: Flow, space: str, first: ir.Value, lane_bytes: int) -> tuple[int | ir.Value, int]:
    """Units and ideal units of 32 lanes that lie together from `first` on."""
    if space == "shared":
        return groups_of(lane_bytes), groups_of(lane_bytes)
    last = code.add(first, number(WIDTH * lane_bytes - 1))
    sectors = code.sub(code.lshr(last, number(_SECTOR)), code.lshr(first, number(_SECTOR)))
    return code.add(sectors, number(1)), lane_bytes


# ---------------------------------------------------------------- scattered lanes
def distinct(module: ir.Module) -> ir.Function:
    """i32 distinct(mask, <32 x i32> items): how many different items the lanes of a mask have.

    Lanes outside the mask hold what some lane of it holds."""
    name = "distinct"
    if name in module.globals:
        return module.globals[name]
    made, code = function(module, name, I32, [I32, INTEGERS[32]])
    mask, items = made.args
    before = pick(code, items, [0, *range(WIDTH - 1)])
    ordered = code.icmp_signed("==", code.bitcast(code.icmp_unsigned("<=", before, items), I32), number(-1, I32))
    with code.if_then(ordered):
        steps = code.bitcast(code.icmp_unsigned("!=", before, items), I32)
        code.ret(code.add(popcount(code, steps), number(1, I32)))
    place, left, found = code.slot(INTEGERS[32], items), code.slot(I32, mask), code.slot(I32, number(0, I32))
    again = code.slot(I1)
    with code.repeat(again):
        now = code.load(left, typ=I32)
        item = code.get(I32, place, code.zext(code.shl(code.first_lane(now), number(2, I32)), I64))
        same = code.bitcast(code.icmp_unsigned("==", items, broadcast(code, item)), I32)
        rest = code.and_(now, code.not_(same))
        code.store(rest, left)
        code.store(code.add(code.load(found, typ=I32), number(1, I32)), found)
        code.store(code.icmp_unsigned("!=", rest, number(0, I32)), again)
    code.ret(code.load(found, typ=I32))
    return made


def scattered_units(module: ir.Module, space: str, lane_bytes: int, load: bool) -> ir.Function:
    """void(record, mask, addresses <32 x i64>): counts a request of any shape. Lanes outside the mask repeat one inside."""
    name = f"count_{space}_{lane_bytes}{'_load' * (load and space == 'shared')}"
    if name in module.globals:
        return module.globals[name]
    made, code = function(module, name, ir.VoidType(), [POINTER, I32, INTEGERS[64]])
    record, mask, addresses = made.args
    if space == "global":
        shift = lane_bytes.bit_length() - 1
        sectors, places = (code.trunc(code.lshr(addresses, splat(64, by)), INTEGERS[32]) for by in (_SECTOR, shift))
        units = code.call(distinct(module), [mask, sectors])
        different = code.call(distinct(module), [mask, places])
        asked = code.mul(different, number(lane_bytes, I32))
        ideal = code.lshr(code.add(asked, number(31, I32)), number(_SECTOR, I32))
    else:
        units, ideal = _wavefronts(code, mask, code.trunc(addresses, INTEGERS[32]), lane_bytes, load)
    count(code, record, popcount(code, mask), units, ideal)
    code.ret_void()
    return made


def _wavefronts(code: Flow, mask: ir.Value, addresses: ir.Value, lane_bytes: int, load: bool) -> tuple[ir.Value, ir.Value]:
    """Shared wavefronts and the conflict-free number: `tallies.wavefronts`."""
    unit = max(4, lane_bytes)
    words = code.lshr(addresses, splat(32, unit.bit_length() - 1))
    units, ideal = code.slot(I32, number(0, I32)), code.slot(I32, number(0, I32))
    parts = groups_of(lane_bytes)
    if load and parts > 1:
        with code.if_else(_paired(code, mask, words)) as (paired, apart):
            with paired:
                _by_parts(code, mask, words, parts // 2, 128 // unit, units, ideal)
            with apart:
                _by_parts(code, mask, words, parts, 128 // unit, units, ideal)
    else:
        _by_parts(code, mask, words, parts, 128 // unit, units, ideal)
    return code.load(units, typ=I32), code.load(ideal, typ=I32)


def _paired(code: Flow, mask: ir.Value, words: ir.Value) -> ir.Value:
    """i1: have all lane pairs (i, i ^ 1), or all (i, i ^ 2), one place or an idle lane? Then wide loads take half the parts."""
    answer: ir.Value = number(0, I1)
    for distance, low in ((1, 0x55555555), (2, 0x33333333)):
        same = code.bitcast(code.icmp_unsigned("==", words, pick(code, words, [lane ^ distance for lane in range(WIDTH)])), I32)
        step, chosen = number(distance, I32), number(low, I32)
        partner = code.or_(code.and_(code.lshr(mask, step), chosen), code.shl(code.and_(mask, chosen), step))
        alone = code.not_(code.and_(mask, partner))
        answer = code.or_(answer, code.icmp_signed("==", code.or_(same, alone), number(-1, I32)))
    return answer


def _by_parts(code: Flow, mask: ir.Value, words: ir.Value, parts: int, banks: int, units: ir.Value, ideal: ir.Value) -> None:
    """Adds what each of `parts` groups of lanes takes; one without a lane takes nothing."""
    size = WIDTH // parts
    bits = code.shl(splat(32, 1), code.and_(words, splat(32, banks - 1)))
    place, nothing = code.slot(INTEGERS[32], words), ir.Constant(INTEGERS[32], ir.Undefined)
    for part in range(parts):
        here = code.and_(mask, number(((1 << size) - 1) << (part * size), I32))
        with code.if_then(code.icmp_unsigned("!=", here, number(0, I32))):
            # lanes outside the mask may repeat one of another part: their banks are taken out
            chosen = code.select(code.bitcast(here, INTEGERS[1]), bits, splat(32, 0))
            order = ir.Constant(ir.VectorType(I32, size), list(range(part * size, part * size + size)))
            used = code.together("or", code.shuffle_vector(chosen, nothing, order))
            free = code.icmp_unsigned("==", popcount(code, used), popcount(code, here))
            with code.if_else(free) as (apart, crowded):
                with apart:
                    code.store(code.add(code.load(units, typ=I32), number(1, I32)), units)
                with crowded:
                    worst = code.call(_busiest(code.module), [here, place, words, number(banks - 1, I32)])
                    code.store(code.add(code.load(units, typ=I32), worst), units)
            # a group never has more distinct words than there are banks: one wavefront without a conflict
            code.store(code.add(code.load(ideal, typ=I32), number(1, I32)), ideal)


def _busiest(module: ir.Module) -> ir.Function:
    """i32(mask, place of words, words, banks - 1): distinct words of the bank that has most, among the lanes of a mask."""
    name = "busiest"
    if name in module.globals:
        return module.globals[name]
    made, code = function(module, name, I32, [I32, POINTER, INTEGERS[32], I32])
    mask, place, words, bank_mask = made.args
    counts, left = code.slot(BYTES, ir.Constant(BYTES, None)), code.slot(I32, mask)
    worst, again = code.slot(I8, number(0, I8)), code.slot(I1)
    with code.repeat(again):
        now = code.load(left, typ=I32)
        word = code.get(I32, place, code.zext(code.shl(code.first_lane(now), number(2, I32)), I64))
        same = code.bitcast(code.icmp_unsigned("==", words, broadcast(code, word)), I32)
        rest = code.and_(now, code.not_(same))
        code.store(rest, left)
        mine = code.at(counts, code.zext(code.and_(word, bank_mask), I64))
        here = code.add(code.load(mine, typ=I8), number(1, I8))
        code.store(here, mine)
        most = code.load(worst, typ=I8)
        code.store(code.select(code.icmp_unsigned(">", here, most), here, most), worst)
        code.store(code.icmp_unsigned("!=", rest, number(0, I32)), again)
    code.ret(code.zext(code.load(worst, typ=I8), I32))
    return made


# ---------------------------------------------------------------- marks of used bytes
def _marked(code: Flow, old: ir.Value, writes: bool) -> ir.Value:
    """The marks of some bytes after a load (READ where not WRITTEN) or a store."""
    kind = old.type
    if writes:
        return code.or_(old, filled(kind, WRITTEN))
    one = ir.Constant(kind, [1] * kind.count if isinstance(kind, ir.VectorType) else 1)
    if isinstance(kind, ir.VectorType) and kind.element.width == 8:
        fresh = code.icmp_unsigned("==", code.and_(old, filled(kind, WRITTEN)), filled(kind, 0))
        return code.select(fresh, code.or_(old, filled(kind, READ)), old)
    return code.or_(old, code.and_(code.not_(code.lshr(old, one)), filled(kind, READ)))


def mark_lane(code: Flow, marks: ir.Value, lane_bytes: int, writes: bool) -> None:
    """The bytes of one lane; `marks`: host address of their marks."""
    kind = lane_kind(lane_bytes)
    code.put(_marked(code, code.get(kind, marks, align=1), writes), marks, align=1)


def mark_all(code: Flow, marks: ir.Value, lane_bytes: int, writes: bool) -> None:
    """The bytes of 32 lanes that lie together. Mostly they are marked already: looking is cheaper than writing."""
    wanted: ir.Value | None = None
    for chunk in range(lane_bytes):
        here = code.get(BYTES, marks, chunk * 32, align=1)
        wanted = here if wanted is None else _least(code, wanted, here, writes)
    test = code.and_(wanted, filled(BYTES, WRITTEN if writes else READ | WRITTEN))
    missing = code.bitcast(code.icmp_unsigned("==", test, filled(BYTES, 0)), I32)
    with code.if_then(code.icmp_unsigned("!=", missing, number(0, I32)), likely=False), code.count_to(number(lane_bytes)) as i:
        place = code.at(marks, code.shl(i, number(5)))
        code.put(_marked(code, code.get(BYTES, place, align=1), writes), place, align=1)


def _least(code: Flow, a: ir.Value, b: ir.Value, writes: bool) -> ir.Value:
    if writes:
        return code.and_(a, b)
    name = "llvm.umin.v32i8"
    known = code.module.globals.get(name) or ir.Function(code.module, ir.FunctionType(BYTES, [BYTES, BYTES]), name)
    return code.call(known, [a, b])
