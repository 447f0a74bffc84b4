"""Floating-point arithmetic against exact fractions: every type, operation, rounding, ending; special and random operands."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perflab.emulator import approximations, arithmetic, conversions
from perflab.emulator.arithmetic import BITS, NUMPY, Ending

TYPES = {"f16": (16, 10), "bf16": (16, 7), "f32": (32, 23), "f64": (64, 52)}  # width, fraction bits
MODES = ("rn", "rz", "rm", "rp")


# ---------------------------------------------------------------- the oracle: integers and fractions only
class Format:
    """An IEEE format by hand."""

    def __init__(self, kind: str) -> None:
        self.width, self.fraction = TYPES[kind]
        self.exponent = self.width - 1 - self.fraction
        self.bias = (1 << (self.exponent - 1)) - 1
        self.infinity = ((1 << self.exponent) - 1) << self.fraction
        self.sign = 1 << (self.width - 1)
        self.nan = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF}.get(kind)

    def value(self, bits: int) -> Fraction | float:
        """A Fraction, or ±inf, nan, -0.0 as floats."""
        negative, magnitude = bool(bits & self.sign), bits & (self.sign - 1)
        if magnitude > self.infinity:
            return math.nan
        if magnitude == self.infinity:
            return -math.inf if negative else math.inf
        if magnitude == 0:
            return -0.0 if negative else 0.0
        exponent, fraction = magnitude >> self.fraction, magnitude & ((1 << self.fraction) - 1)
        if exponent:
            fraction |= 1 << self.fraction
        scale = max(exponent, 1) - self.bias - self.fraction
        size = Fraction(fraction) * Fraction(2) ** scale
        return -size if negative else size

    def bits(self, x: Fraction, mode: str, negative_zero: bool = False) -> int:
        """An exact value rounded: the largest encoding not above |x|, or the next one."""
        if x == 0:
            return self.sign if negative_zero else 0
        negative, size = x < 0, abs(x)
        power = size.numerator.bit_length() - size.denominator.bit_length()
        power -= size < Fraction(2) ** power
        biased = max(power + self.bias, 1)
        step = Fraction(2) ** (biased - self.bias - self.fraction)
        whole, rest = divmod(size, step)
        low = ((biased - 1) << self.fraction) + whole  # a normal number's hidden bit raises the exponent by one
        if low >= self.infinity:
            low, rest = self.infinity - 1, step
        up = {"rn": 2 * rest > step or (2 * rest == step and low % 2 == 1), "rz": False, "rp": rest > 0 and not negative,
              "rm": rest > 0 and negative}[mode]
        return (low + up) | (self.sign if negative else 0)


def expected(kind: str, operation: str, mode: str, operands: tuple[int, ...]) -> int | None:
    """The bits of a result; None for any NaN."""
    form = Format(kind)
    values = [form.value(b) for b in operands]
    special = [v for v in values if isinstance(v, float)]
    if operation in ("fma", "add", "mul") and not any(math.isnan(v) or math.isinf(v) for v in special):
        exact = [Fraction(v) for v in values]
        negative = [bool(b & form.sign) for b in operands]
        product_negative = negative[0] != negative[1]
        if operation == "mul":
            return form.bits(exact[0] * exact[1], mode, product_negative)
        first = exact[0] if operation == "add" else exact[0] * exact[1]
        first_negative = negative[0] if operation == "add" else product_negative
        same = first_negative == negative[-1]
        both_zero = first == 0 and exact[-1] == 0
        zero = first_negative if both_zero and same else mode == "rm"
        return form.bits(first + exact[-1], mode, zero)
    if operation == "div" and not special:
        return form.bits(Fraction(values[0]) / Fraction(values[1]), mode)
    if operation == "sqrt" and not special and values[0] > 0:
        scaled = Fraction(values[0]) * 4**1200
        root = math.isqrt(scaled.numerator // scaled.denominator)
        return form.bits(Fraction(2 * root + (Fraction(root * root) != scaled), 2 * 2**1200), mode)
    floats = [np.float64(v) for v in values]
    if operation == "fma" and np.isfinite(floats[:2]).all() and np.isinf(floats[2]):
        return operands[2]
    with np.errstate(all="ignore"):  # zeros, infinities and NaNs: float64 knows the rules
        result = {"add": lambda a, b: a + b, "mul": lambda a, b: a * b, "fma": lambda a, b, c: a * b + c,
                  "div": lambda a, b: a / b, "sqrt": np.sqrt}[operation](*floats)
    if np.isnan(result):
        return None
    return (form.infinity if np.isinf(result) else 0) | (form.sign if np.signbit(result) else 0)


def specials(kind: str) -> list[int]:
    """Zeros, ones, the ends of every range, infinities, NaNs, neighbours of powers of two; both signs."""
    form = Format(kind)
    one = form.bias << form.fraction
    positive = [0, 1, 2, (1 << form.fraction) - 1, 1 << form.fraction, (1 << form.fraction) + 1, one - 1, one, one + 1,
                one + (1 << (form.fraction - 1)), one + (form.fraction + 1 << form.fraction), form.infinity - 1, form.infinity,
                form.infinity + 1, form.sign - 1, one - (form.fraction << form.fraction), (one >> 1) & ~1]
    return positive + [bits | form.sign for bits in positive]


OPERATIONS: dict[str, tuple[int, Callable[[Ending], Callable[..., Any]]]] = {
    "add": (2, arithmetic.add), "mul": (2, arithmetic.multiply), "fma": (3, arithmetic.fma), "div": (2, arithmetic.divide),
    "sqrt": (1, arithmetic.square_root)}


def check(kind: str, operation: str, mode: str, operands: list[tuple[int, ...]]) -> None:
    """The module's bits for all operands at once against the oracle's, one by one."""
    columns = [np.array(column, BITS[kind]).view(NUMPY[kind]) for column in zip(*operands, strict=True)]
    with np.errstate(all="ignore"):
        result = OPERATIONS[operation][1](Ending(kind, mode))(*columns)
    assert result.dtype == NUMPY[kind]
    form = Format(kind)
    for lane, bits in zip(operands, np.asarray(result).view(BITS[kind]).tolist(), strict=True):
        want = expected(kind, operation, mode, lane)
        if want is None:
            assert bits & (form.sign - 1) > form.infinity if form.nan is None else bits == form.nan, [hex(b) for b in lane]
        else:
            assert bits == want, f"{operation}.{mode}.{kind} {[hex(b) for b in lane]}: {bits:#x}, want {want:#x}"


CASES = [(kind, operation, mode) for kind in TYPES for operation in OPERATIONS for mode in MODES
         if not (kind in ("f16", "bf16") and operation in ("div", "sqrt"))]


@pytest.mark.parametrize(("kind", "operation", "mode"), CASES)
def test_special_operands(kind: str, operation: str, mode: str) -> None:
    """All combinations of special operands (for fma: of a third of them)."""
    count = OPERATIONS[operation][0]
    values = specials(kind)[:: 3 if count == 3 else 1]
    check(kind, operation, mode, list(itertools.product(values, repeat=count)))


@pytest.mark.parametrize(("kind", "operation"), sorted({case[:2] for case in CASES}))
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_random_operands(kind: str, operation: str, data: st.DataObject) -> None:
    """Random bits, special values and few-bit numbers, which make ties."""
    width, fraction = TYPES[kind]
    few_bits = st.builds(lambda e, f, s: (e << fraction) | (f << (fraction - 3)) | (s << (width - 1)),
                         st.integers(1, (1 << (width - 1 - fraction)) - 2), st.integers(0, 7), st.integers(0, 1))
    operand = st.one_of(st.integers(0, (1 << width) - 1), st.sampled_from(specials(kind)), few_bits)
    lanes = data.draw(st.lists(st.tuples(*[operand] * OPERATIONS[operation][0]), min_size=1, max_size=40))
    check(kind, operation, data.draw(st.sampled_from(MODES)), lanes)


@pytest.mark.parametrize("kind", TYPES)
def test_fma_rounds_once_where_a_second_rounding_would_err(kind: str) -> None:
    """a * b lies exactly between two values and c, far smaller, decides; for every mode and sign of c."""
    form = Format(kind)
    one, unit = form.bias << form.fraction, 1 << form.fraction
    lanes = []
    for step in range(1, 12):
        a = one + 2 * step + 1  # (1 + odd ulps) * 1.5: a half ulp left over
        for c in (1, one - 30 * unit if form.exponent > 5 else 3, unit):
            lanes += [(a, one + unit // 2, c), (a, one + unit // 2, c | form.sign), (a | form.sign, one + unit // 2, c)]
    for mode in MODES:
        check(kind, "fma", mode, lanes)


@pytest.mark.parametrize("kind", TYPES)
def test_an_infinite_addend_beats_an_overflowing_product(kind: str) -> None:
    """max * max - inf is -inf, not NaN; max * max - max is not."""
    form = Format(kind)
    largest = form.infinity - 1
    for mode in MODES:
        check(kind, "fma", mode, [(largest, largest, c | s) for c in (form.infinity, largest, 0) for s in (0, form.sign)])


def test_fma32_is_not_two_roundings() -> None:
    """The test above can fail: rounding twice gives another answer in these lanes."""
    a, b, c = np.float32(1 + 2.0**-23), np.float32(1.5), np.float32(-(2.0**-80))
    twice = np.float32(np.float64(a) * np.float64(b) + np.float64(c))
    once = arithmetic.fma32(np.array([a]), np.array([b]), np.array([c]))[0]
    assert twice != once
    assert once == np.float32(1.5 + 2.0**-23)


# ---------------------------------------------------------------- endings
def f32(*bits: int) -> np.ndarray:
    """Float32 from bits."""
    return np.array(bits, np.uint32).view(np.float32)


def bits32(x: Any) -> list[str]:
    """Hexadecimal bits of float32."""
    return [f"{b:08x}" for b in np.asarray(x).view(np.uint32)]


def test_flushing_keeps_the_sign_and_touches_inputs_and_results() -> None:
    """.ftz: subnormal in, subnormal out."""
    add = arithmetic.add(Ending("f32", ftz=True))
    assert bits32(add(f32(0x00000001, 0x807FFFFF, 0x00800001, 0x80800001), f32(0, 0x80000000, 0x80800000, 0x00800000))) == [
        "00000000", "80000000", "00000000", "80000000"]
    kept = arithmetic.add(Ending("f32"))
    assert bits32(kept(f32(0x00000001, 0x00800001), f32(0, 0x80800000))) == ["00000001", "00000001"]


def test_flushing_looks_at_the_result_rounded_with_an_unbounded_exponent() -> None:
    """Results that round to the smallest normal number, as an H200 flushed them or not."""
    multiply, fma = arithmetic.multiply(Ending("f32", ftz=True)), arithmetic.fma(Ending("f16", ftz=True))
    assert bits32(multiply(f32(0x80800000, 0x3F000000), f32(0xBF7FFFFF, 0x80FFFFFF))) == ["00000000", "80000000"]
    h = np.array([[0x3C01, 0x07FF, 0x8401], [0x07FF, 0xB800, 0x0200]], np.uint16).T
    assert fma(*h).tolist() == [0x0400, 0x8000]  # (1 - 2^-20) 2^-14 is rounded up to normal, (1 - 2^-11) 2^-14 is not


def edges(kind: str) -> list[tuple[int, int, int]]:
    """Operands whose products and sums lie about the smallest normal number, on both sides of every rounding boundary."""
    form = Format(kind)
    unit, one = 1 << form.fraction, form.bias << form.fraction
    near = (0, 1, 2, -1, -2, 3)
    lanes = [(start + i, other + j, 0) for i in near for j in near
             for start, other in ((unit + 3, one), (2 * unit, one - unit))]
    lanes += [(2 * unit + i, one + unit, 0) for i in near]
    lanes += [(unit + abs(i), one - k * unit, unit) for i in near for k in range(2, form.fraction + 3)]
    signs = itertools.cycle(itertools.product((0, form.sign), repeat=3))
    return [(a | s, b | t, c | u) for a, b, c in lanes for s, t, u in itertools.islice(signs, 8)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kind", "operation"), [
    ("f32", "mul"), ("f32", "fma"), ("f32", "div"), ("f16", "mul"), ("f16", "fma")])
def test_flushing_at_the_smallest_normal_number(kind: str, operation: str, mode: str) -> None:
    """Against fractions: rounded as if 64 times as large, and below 64 times the smallest normal number."""
    form, lanes = Format(kind), [lane[: OPERATIONS[operation][0]] for lane in edges(kind)]
    columns = [np.array(column, BITS[kind]).view(NUMPY[kind]) for column in zip(*lanes, strict=True)]
    with np.errstate(all="ignore"):
        got = OPERATIONS[operation][1](Ending(kind, mode, ftz=True))(*columns)
    flushed = 0
    for lane, bits in zip(lanes, np.asarray(got).view(BITS[kind]).tolist(), strict=True):
        want, (a, b, *c) = expected(kind, operation, mode, lane), [Fraction(form.value(bits)) for bits in lane]
        assert want is not None
        exact = a / b if operation == "div" else a * b + (c[0] if c else 0)
        if form.bits(64 * exact, mode) & (form.sign - 1) < 7 << form.fraction:
            flushed += want & (form.sign - 1) == 1 << form.fraction
            want &= form.sign
        assert bits == want, (operation, mode, [hex(x) for x in lane], hex(bits), hex(want))
    assert flushed or mode == "rz", "no lane in which the rounding comes into it"


def test_saturation_clamps_and_clears_nan() -> None:
    """.sat: [0, 1], NaN and -0 to +0."""
    multiply = arithmetic.multiply(Ending("f32", saturate=True))
    one = f32(*[0x3F800000] * 6)
    assert bits32(multiply(f32(0x40000000, 0xBF800000, 0x7FC00000, 0x80000000, 0x3F000000, 0x7F800000), one)) == [
        "3f800000", "00000000", "00000000", "00000000", "3f000000", "3f800000"]


def test_relu_keeps_nan() -> None:
    """.relu of halves: negative to 0, NaN canonical."""
    fma = arithmetic.fma(Ending("f16", relu=True))
    halves = np.array([0xBC00, 0x3C00, 0xFE01, 0x8000], np.uint16)
    assert fma(halves, np.full(4, 0x3C00, np.uint16), np.full(4, 0x8000, np.uint16)).tolist() == [0, 0x3C00, 0x7FFF, 0]


# ---------------------------------------------------------------- min, max, comparisons
def test_extremes_of_nan_and_zeros() -> None:
    """A number beats NaN, .NaN turns that round, -0 is below +0."""
    nan, minus, plus, two = 0x7FC00001, 0x80000000, 0, 0x40000000
    a, b = f32(nan, two, nan, minus, plus), f32(two, nan, nan, plus, minus)
    smallest = arithmetic.extreme(Ending("f32"), largest=False)
    largest = arithmetic.extreme(Ending("f32"), largest=True)
    assert bits32(smallest(a, b)) == ["40000000", "40000000", "7fffffff", "80000000", "80000000"]
    assert bits32(largest(a, b)) == ["40000000", "40000000", "7fffffff", "00000000", "00000000"]
    strict = arithmetic.extreme(Ending("f32"), largest=True, nan=True)
    assert bits32(strict(a, b))[:3] == ["7fffffff"] * 3


def test_three_operands_and_xorsign() -> None:
    """max of three; .xorsign.abs: the larger magnitude with the product's sign."""
    largest = arithmetic.extreme(Ending("f32"), largest=True)
    assert largest(np.float32([1]), np.float32([3]), np.float32([2])).tolist() == [3]
    signed = arithmetic.extreme(Ending("f32"), largest=True, xorsign=True, absolute=True)
    assert signed(np.float32([-5, 2, -1]), np.float32([1, 3, -4])).tolist() == [-5, 3, 4]


@pytest.mark.parametrize("kind", TYPES)
def test_comparisons_with_nan(kind: str) -> None:
    """Ordered ones are false with NaN, those ending in u true; all agree with fractions on numbers."""
    values = [b for b in specials(kind)]
    pairs = list(itertools.product(values, repeat=2))
    a, b = (np.array(column, BITS[kind]).view(NUMPY[kind]) for column in zip(*pairs, strict=True))
    form = Format(kind)
    ordered = {"eq": lambda x, y: x == y, "ne": lambda x, y: x != y, "lt": lambda x, y: x < y, "le": lambda x, y: x <= y,
               "gt": lambda x, y: x > y, "ge": lambda x, y: x >= y}
    for name, test in ordered.items():
        with np.errstate(all="ignore"):
            strict, loose = (arithmetic.compare(kind, n)(a, b).tolist() for n in (name, name + "u"))
        for (x, y), s, u in zip(pairs, strict, loose, strict=True):
            left, right = form.value(x), form.value(y)
            nan = any(isinstance(v, float) and math.isnan(v) for v in (left, right))
            assert (s, u) == ((False, True) if nan else (test(left, right),) * 2), (name, hex(x), hex(y))


def test_properties_and_copysign() -> None:
    """testp and copysign (the sign of the first operand)."""
    x = f32(0, 1, 0x00800000, 0x7F800000, 0x7FC00000, 0xBF800000)
    answers = {"finite": "111001", "infinite": "000100", "number": "111101", "notanumber": "000010", "normal": "101001",
               "subnormal": "010000"}
    for name, want in answers.items():
        assert "".join(str(int(y)) for y in arithmetic.has_property("f32", name)(x)) == want, name
    assert bits32(arithmetic.copysign("f32")(f32(0x80000000), f32(0x3F800000))) == ["bf800000"]


# ---------------------------------------------------------------- conversions
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("source", "target"), [
    ("f64", "f32"), ("f64", "f16"), ("f64", "bf16"), ("f32", "f16"), ("f32", "bf16"), ("f16", "bf16"), ("bf16", "f16")])
def test_narrowing(source: str, target: str, mode: str) -> None:
    """Every special value, its neighbours, and the ties of the target, rounded as fractions say."""
    wide, narrow = Format(source), Format(target)
    codes = [b for s in specials(source) for b in (s, s ^ 1)]
    step = max(0, wide.fraction - narrow.fraction)
    codes += [(wide.bias << wide.fraction) + (k << step) + extra for k in (1, 2, 3) for extra in
              ((1 << step) // 2 - 1, (1 << step) // 2, (1 << step) // 2 + 1) if extra >= 0]
    x = np.array(codes, BITS[source]).view(NUMPY[source])
    with np.errstate(all="ignore"):
        got = conversions.float_to_float(Ending(target, mode), source)(x)
    for code, bits in zip(codes, np.asarray(got).view(BITS[target]).tolist(), strict=True):
        value: Fraction | float = wide.value(code)
        want: int | None
        if isinstance(value, float) and math.isnan(value) and source == "f64":  # quiet, with its sign and upper payload
            quiet = narrow.infinity | 1 << (narrow.fraction - 1)
            want = code >> 63 << (narrow.width - 1) | quiet | code >> step & (1 << narrow.fraction) - 1
        elif isinstance(value, float):
            want = narrow.nan if math.isnan(value) else (narrow.infinity if math.isinf(value) else 0) | (
                narrow.sign if math.copysign(1, value) < 0 else 0)
        else:
            want = narrow.bits(value, mode)
        assert bits == want, (hex(code), hex(bits), hex(want or 0))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("target", TYPES)
@pytest.mark.parametrize("source", ["s32", "u32", "s64", "u64", "s8", "u16"])
def test_integers_to_floats(source: str, target: str, mode: str) -> None:
    """Ends of the range and numbers that lie between floats."""
    info = np.iinfo(NUMPY[source])
    numbers = {info.min, info.min + 1, -1, 0, 1, 7, info.max - 1, info.max}
    numbers |= {sign * ((1 << k) + extra) for k in range(8, 64) for extra in (-1, 0, 1, 3) for sign in (1, -1)}
    lanes = sorted(n for n in numbers if info.min <= n <= info.max)
    with np.errstate(all="ignore"):
        got = conversions.integer_to_float(Ending(target, mode), source)(np.array(lanes, NUMPY[source]))
    want = [Format(target).bits(Fraction(n), mode) for n in lanes]
    assert np.asarray(got).view(BITS[target]).tolist() == want


@pytest.mark.parametrize("source", ["f16", "f32", "f64"])
@pytest.mark.parametrize("target", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
def test_floats_to_integers_clamp(source: str, target: str) -> None:
    """All four roundings; beyond the range the nearest end; NaN as PTX says."""
    form, info = Format(source), np.iinfo(NUMPY[target])
    codes = [int(np.asarray(v, NUMPY[source] if source != "f16" else np.float16).view(BITS[source])) for v in
             (0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 254.5, 255.5, 1e4, -1e4)] + specials(source)
    rounds = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}
    x = np.array(codes, BITS[source]).view(NUMPY[source])
    for name, rounding in rounds.items():
        with np.errstate(all="ignore"):
            got = conversions.float_to_integer(target, source, name, ftz=False)(x).tolist()
        for code, number in zip(codes, got, strict=True):
            value = form.value(code)
            if isinstance(value, float) and math.isnan(value):
                top = info.min if info.min else 1 << (info.bits - 1)
                assert number == (top if source == "f64" or info.bits == 64 else 0)
            elif isinstance(value, float) and math.isinf(value):
                assert number == (info.max if value > 0 else info.min)
            else:
                assert number == min(max(rounding(Fraction(value)), info.min), info.max), (name, hex(code))


def test_nan_through_conversions() -> None:
    """As an H200 has them: from f64 quiet with sign and upper payload, from bf16 to f32 as they are, else canonical."""
    def bits(target: str, source: str, *codes: int, saturate: bool = False) -> list[int]:
        convert = conversions.float_to_float(Ending(target, saturate=saturate), source)
        with np.errstate(all="ignore"):
            result = convert(np.array(codes, BITS[source]).view(NUMPY[source]))
        return [int(x) for x in np.asarray(result).view(BITS[target])]

    wide = (0xFFFFFFFFFFFFFFFF, 0x7FF0000000000001, 0xFFF0000000000001, 0x7FF4567800000000)
    assert bits("f32", "f64", *wide) == [0xFFFFFFFF, 0x7FC00000, 0xFFC00000, 0x7FE2B3C0]
    assert bits("f32", "f64", *wide, saturate=True) == [0, 0, 0, 0]
    assert bits("f16", "f64", *wide[:3]) == [0xFFFF, 0x7E00, 0xFE00]
    assert bits("bf16", "f64", *wide[:3]) == [0xFFFF, 0x7FC0, 0xFFC0]
    assert bits("f32", "bf16", 0xFF81, 0x7F81, 0x7FFF) == [0xFF810000, 0x7F810000, 0x7FFF0000]
    assert bits("f32", "f16", 0xFC01) == [0x7FFFFFFF]
    assert bits("f16", "bf16", 0xFF81) == bits("bf16", "f32", 0xFFFFFFFF) == [0x7FFF]


def test_small_floats_round_to_even_and_saturate() -> None:
    """e4m3 and e5m2: every byte comes back, ties go to even, too large ones to the largest."""
    for name, largest in (("e4m3", 448.0), ("e5m2", 57344.0)):
        halves = conversions.from_small(name, relu=False)(np.arange(256, dtype=np.uint16))
        numbers = halves.view(np.float16).astype(np.float32)
        back = conversions.to_small(name, "f32", relu=False)(numbers)
        finite = np.isfinite(numbers)
        assert np.array_equal(back[finite], np.arange(256, dtype=np.uint8)[finite])
        assert set(back[np.isnan(numbers)].tolist()) == {0x7F}
        to = conversions.to_small(name, "f32", relu=False)
        code = int(to(np.float32([1e9]))[0])
        assert numbers[code] == largest
        low, high = numbers[0x30], numbers[0x31]
        assert to(np.array([(low + high) / 2, (high + numbers[0x32]) / 2], np.float32)).tolist() == [0x30, 0x32]


def test_tf32() -> None:
    """10 fraction bits: rna sends ties away, rn to even, rz cuts; a carry goes into the exponent."""
    x = f32(0x3F801000, 0x3F803000, 0xBF801000, 0x3FFFFFFF, 0x7F800000, 0x7F800001, 0x3F800FFF)
    assert bits32(conversions.to_tf32("rna", False, False)(x)) == [
        "3f802000", "3f804000", "bf802000", "40000000", "7f800000", "7f800000", "3f800000"]  # NaNs are cut too
    rn, rz = (bits32(conversions.to_tf32(mode, False, False)(x)) for mode in ("rn", "rz"))
    assert rn[:3] + rn[5:6] == ["3f800000", "3f804000", "bf800000", "7fffe000"]
    assert rz[:3] + rz[5:6] == ["3f800000", "3f802000", "bf800000", "7fffe000"]
    assert bits32(conversions.to_tf32("rna", False, True)(f32(0x7F800000, 0xFF800001))) == ["7f7fe000", "ff800000"]


# ---------------------------------------------------------------- approximations
@pytest.mark.parametrize(("name", "function", "low", "high"), [
    ("ex2", lambda x: 2.0**x, -125, 127), ("lg2", math.log2, 1e-30, 1e30), ("rcp", lambda x: 1 / x, 1e-30, 1e30),
    ("rsqrt", lambda x: 1 / math.sqrt(x), 1e-30, 1e30), ("sqrt", math.sqrt, 1e-30, 1e30), ("sin", math.sin, -6, 6),
    ("cos", math.cos, -6, 6), ("tanh", math.tanh, -5, 5)])
def test_approximations_are_the_nearest_float(name: str, function: Callable[[float], float], low: float, high: float) -> None:
    """Within half an ulp (and a little) of Python's own float64."""
    random = np.random.default_rng(1)
    wide = random.uniform(low, high, 500) if low < 0 else np.exp(random.uniform(math.log(low), math.log(high), 500))
    x = wide.astype(np.float32)
    with np.errstate(all="ignore"):
        got = approximations.approximate(name, Ending("f32"))(x)
    want = np.array([function(float(v)) for v in x])
    assert np.all(np.abs(got.astype(np.float64) - want) <= 0.5001 * np.spacing(np.abs(want).astype(np.float32)))


def test_special_values_of_approximations() -> None:
    """Poles, infinities, domains."""
    def run(name: str, *bits: int) -> list[str]:
        with np.errstate(all="ignore"):
            return bits32(approximations.approximate(name, Ending("f32", ftz=True))(f32(*bits)))

    minus, infinity = 0x80000000, 0x7F800000
    assert run("rcp", 0, minus, infinity, 1) == ["7f800000", "ff800000", "00000000", "7f800000"]
    assert run("rsqrt", 0, minus, 0xBF800000) == ["7f800000", "ff800000", "7fffffff"]
    assert run("lg2", 0, minus, 0xBF800000, infinity) == ["ff800000", "ff800000", "7fffffff", "7f800000"]
    assert run("ex2", 0xFF800000, infinity, minus, 0xC3000000) == ["00000000", "7f800000", "3f800000", "00000000"]
    assert run("sin", infinity, minus) == ["7fffffff", "80000000"]


def test_divisions_beyond_the_range() -> None:
    """div.approx gives 0 for a huge divisor, div.full and div.rn the quotient."""
    a, b = f32(0x7F000000, 0x7F800000), f32(0x7F400000, 0x7F400000)
    with np.errstate(all="ignore"):
        approximate = approximations.divide_approximately(Ending("f32"), full=False)(a, b)
        full = approximations.divide_approximately(Ending("f32"), full=True)(a, b)
    assert bits32(approximate) == ["00000000", "7fffffff"]
    assert full[0] == np.float32(2 / 3) and np.isinf(full[1])
