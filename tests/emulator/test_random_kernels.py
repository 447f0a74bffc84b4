"""Random small kernels against the same program in numpy, to the last bit: expressions, branches, loops, shuffles, shared.

Each example is one kernel of many statements over a few variables of each type. Its C++ text goes through NVRTC (without fused
multiply-adds where none is written) and the emulator; numpy runs the statements for all threads at once, under masks.
NaNs are equal to each other, whatever their bits.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import perflab as pl

MACHINES = ["numpy", *(["vector"] if importlib.util.find_spec("llvmlite") else [])]
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")
EXAMPLES = {"numpy": 14, "vector": 7}  # kernels; LLVM takes a second for each
GRID, DEPTH = 2, 3
NUMPY: dict[str, Any] = {"int": np.int32, "unsigned": np.uint32, "long long": np.int64, "float": np.float32,
                         "double": np.float64}
VARIABLES = {"int": ("i0", "i1", "i2"), "unsigned": ("u0", "u1"), "float": ("f0", "f1", "f2"), "double": ("d0",),
             "long long": ("l0",)}
TYPE_OF = {name: type for type, names in VARIABLES.items() for name in names}
Values = dict[str, Any]  # arrays of all threads by variable; 't', 'base' (of the block), 'T'


# ---------------------------------------------------------------- what an operation means
def wrapped(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Signed arithmetic that wraps: done on the unsigned bits."""
    def run(*values: np.ndarray) -> np.ndarray:
        unsigned = np.uint64 if values[0].itemsize == 8 else np.uint32
        return function(*(v.view(unsigned) for v in values)).view(values[0].dtype)
    return run


def truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """C's integer division; b is positive."""
    wide = a.astype(np.int64)
    return (np.sign(wide) * (np.abs(wide) // b)).astype(a.dtype)


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a b + c of float32, rounded once: the sum in float64 is rounded to odd, so that the second rounding cannot err."""
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    inexact = (error != 0) & np.isfinite(total) & (total.view(np.uint64) % 2 == 0)
    return np.where(inexact, np.nextafter(total, np.copysign(np.inf, error)), total).astype(np.float32)


def smaller(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """min of floats: the number where one is NaN, and -0 is less than 0."""
    both_zero = (a == 0) & (b == 0)
    return np.where(both_zero, np.where(np.signbit(a), a, b), np.fmin(a, b))


def larger(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """max of floats, likewise."""
    return -smaller(-a, -b)


def saturated(type: str, rounded: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """A float as an integer: the nearest one there is; NaN is 0."""
    limits = np.iinfo(NUMPY[type])
    return lambda a: np.nan_to_num(np.clip(rounded(a.astype(np.float64)), limits.min, limits.max)).astype(NUMPY[type])


def shifted(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """A shift by less than the width."""
    return lambda a, b: function(a, (b & 31).astype(a.dtype))


def chosen(compare: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """a ? b : c, by a comparison."""
    def run(a: np.ndarray, b: np.ndarray, yes: np.ndarray, no: np.ndarray) -> Any:
        return np.where(compare(a, b), yes, no)
    return run


def bits_set(a: np.ndarray) -> np.ndarray:
    return np.bitwise_count(a).astype(np.int32)


def leading_zeros(a: np.ndarray) -> np.ndarray:
    return 32 - np.frexp(a.view(np.uint32).astype(np.float64))[1].astype(np.int32)


def bits_reversed(a: np.ndarray) -> np.ndarray:
    return np.packbits(np.unpackbits(np.ascontiguousarray(a).view(np.uint8), bitorder="little").reshape(-1, 32)[:, ::-1],
                       axis=1, bitorder="little").view(np.uint32).reshape(-1)


def cast(type: str, through: Any = None) -> Callable[..., np.ndarray]:
    """A conversion between numbers, by way of a narrower type where given."""
    return lambda a: (a if through is None else a.astype(through)).astype(NUMPY[type])


@dataclass(frozen=True)
class Operator:
    """An operation: C++ with {0}, {1} … for its operands, their types, and what numpy does."""

    text: str
    operands: tuple[str, ...]
    run: Callable[..., np.ndarray]


def integers(t: str) -> list[Operator]:
    """What both 32-bit integer types have."""
    two, count = (t, t), f"({{1}} & {'31' if t == 'int' else '31u'})"
    sign = "" if t == "int" else "u"
    as_t = (lambda text: f"(int)({text})") if t == "int" else (lambda text: f"({text})")
    return [
        Operator(as_t("(unsigned){0} + (unsigned){1}"), two, wrapped(np.add)),
        Operator(as_t("(unsigned){0} - (unsigned){1}"), two, wrapped(np.subtract)),
        Operator(as_t("(unsigned){0} * (unsigned){1}"), two, wrapped(np.multiply)),
        Operator(f"({{0}} / (({{1}} & 1023{sign}) + 1{sign}))", two,
                 lambda a, b: truncated(a, (b & 1023).astype(np.int64) + 1)),
        Operator(f"({{0}} % (({{1}} & 1023{sign}) + 1{sign}))", two,
                 lambda a, b: np.fmod(a.astype(np.int64), (b & 1023).astype(np.int64) + 1).astype(a.dtype)),
        Operator(as_t(f"(unsigned){{0}} << {count}"), two, wrapped(shifted(np.left_shift))),
        Operator(f"({{0}} >> {count})", two, shifted(np.right_shift)),
        Operator("({0} & {1})", two, np.bitwise_and),
        Operator("({0} | {1})", two, np.bitwise_or),
        Operator("({0} ^ {1})", two, np.bitwise_xor),
        Operator("(~{0})", (t,), np.invert),
        Operator("min({0}, {1})", two, np.minimum),
        Operator("max({0}, {1})", two, np.maximum),
        Operator("({0} < {1} ? {2} : {3})", (t, t, t, t), chosen(np.less)),
        Operator("({0} >= {1} ? {2} : {3})", ("float", "float", t, t), chosen(np.greater_equal)),
    ]


def floats(t: str) -> list[Operator]:
    """What both floating-point types have."""
    two, suffix = (t, t), "f" if t == "float" else ""
    return [
        Operator("({0} + {1})", two, np.add),
        Operator("({0} - {1})", two, np.subtract),
        Operator("({0} * {1})", two, np.multiply),
        Operator("({0} / {1})", two, np.divide),
        Operator("(-{0})", (t,), np.negative),
        Operator(f"fabs{suffix}({{0}})", (t,), np.abs),
        Operator(f"fmin{suffix}({{0}}, {{1}})", two, smaller),
        Operator(f"fmax{suffix}({{0}}, {{1}})", two, larger),
        Operator(f"sqrt{suffix}({{0}})", (t,), np.sqrt),
        Operator(f"floor{suffix}({{0}})", (t,), np.floor),
        Operator(f"rint{suffix}({{0}})", (t,), np.rint),
        Operator("({0} < {1} ? {2} : {3})", (t, t, t, t), chosen(np.less)),
        Operator("({0} != {1} ? {2} : {3})", ("int", "int", t, t), chosen(np.not_equal)),
        Operator(f"({t}){{0}}", ("int",), cast(t)),
        Operator(f"({t}){{0}}", ("unsigned",), cast(t)),
    ]


OPERATORS: dict[str, list[Operator]] = {
    "int": [
        *integers("int"),
        Operator("((int){0})", ("unsigned",), lambda a: a.view(np.int32)),
        Operator("((int)(signed char){0})", ("int",), cast("int", np.int8)),
        Operator("((int)(short){0})", ("int",), cast("int", np.int16)),
        Operator("((int)({0} >> 20))", ("long long",), lambda a: (a >> 20).astype(np.int32)),
        Operator("__float2int_rz({0})", ("float",), saturated("int", np.trunc)),
        Operator("__float2int_rn({0})", ("float",), saturated("int", np.rint)),
        # A NaN never comes to it: the compiler folds that to 0, the machine gives the smallest integer.
        Operator("__double2int_rz(fmin({0}, 1.0e12))", ("double",), lambda a: saturated("int", np.trunc)(np.fmin(a, 1e12))),
        Operator("__mulhi({0}, {1})", ("int", "int"), lambda a, b: (a.astype(np.int64) * b >> 32).astype(np.int32)),
        Operator("__popc({0})", ("unsigned",), bits_set),
        Operator("__clz({0})", ("int",), leading_zeros),
        Operator("(int)({0} == {1})", ("unsigned", "unsigned"), lambda a, b: (a == b).astype(np.int32)),
        Operator("(int)({0} < {1})", ("double", "double"), lambda a, b: (a < b).astype(np.int32)),
    ],
    "unsigned": [
        *integers("unsigned"),
        Operator("((unsigned){0})", ("int",), lambda a: a.view(np.uint32)),
        Operator("((unsigned)(unsigned char){0})", ("unsigned",), cast("unsigned", np.uint8)),
        Operator("((unsigned)(unsigned short){0})", ("unsigned",), cast("unsigned", np.uint16)),
        Operator("__float2uint_rz({0})", ("float",), saturated("unsigned", np.trunc)),
        Operator("__umulhi({0}, {1})", ("unsigned", "unsigned"),
                 lambda a, b: (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32)),
        Operator("__brev({0})", ("unsigned",), bits_reversed),
        Operator("__float_as_uint(fabsf((float){0}))", ("int",), lambda a: np.abs(a.astype(np.float32)).view(np.uint32)),
    ],
    "float": [
        *floats("float"),
        Operator("fmaf({0}, {1}, {2})", ("float", "float", "float"), fused),
        Operator("((float){0})", ("double",), cast("float")),
        Operator("((float){0})", ("long long",), cast("float")),
        Operator("__uint_as_float(({0} & 0x807fffffu) | 0x3f000000u)", ("unsigned",),
                 lambda a: ((a & np.uint32(0x807FFFFF)) | np.uint32(0x3F000000)).view(np.float32)),
    ],
    "double": [*floats("double"), Operator("((double){0})", ("float",), cast("double"))],
    "long long": [
        Operator("((long long){0} * (long long){1})", ("int", "int"), lambda a, b: a.astype(np.int64) * b),
        Operator("(long long)((unsigned long long){0} + (unsigned long long){1})", ("long long", "long long"), wrapped(np.add)),
        Operator("({0} ^ {1})", ("long long", "long long"), np.bitwise_xor),
        Operator("({0} >> ({1} & 63))", ("long long", "int"), lambda a, b: a >> (b & 63).astype(np.int64)),
        Operator("((long long){0})", ("int",), cast("long long")),
        Operator("((long long){0})", ("unsigned",), cast("long long")),
    ],
}
CONSTANTS: dict[str, dict[str, Any]] = {
    "int": {"0": 0, "1": 1, "(-7)": -7, "1000003": 1000003, "0x7fffffff": 2**31 - 1},
    "unsigned": {"0u": 0, "5u": 5, "0x80000001u": 0x80000001},
    "float": {"0.0f": 0.0, "-0.0f": -0.0, "1.5f": 1.5, "3.0e38f": 3.0e38, "1.0e-40f": 1.0e-40},
    "double": {"0.1": 0.1, "-3.0": -3.0},
    "long long": {"3ll": 3, "-100000000007ll": -100000000007},
}


# ---------------------------------------------------------------- expressions and statements
@dataclass(frozen=True)
class Expression:
    """C++ text, and its value for every thread."""

    text: str
    value: Callable[[Values], np.ndarray]

    def __repr__(self) -> str:
        return self.text


@cache
@st.composite
def expressions(draw: st.DrawFn, type: str, depth: int = DEPTH) -> Expression:
    """An expression of a type. (Strategies are kept: making and validating them would cost more than the draws.)"""
    kind = draw(st.integers(0, 9))
    if depth == 0 or kind < 2:
        name = draw(st.sampled_from(VARIABLES[type]))
        return Expression(name, lambda values: values[name])
    if kind == 2:
        text, number = draw(st.sampled_from(sorted(CONSTANTS[type].items())))
        return Expression(text, lambda values: np.full(values["i0"].shape, number, NUMPY[type]))
    operator = draw(st.sampled_from(OPERATORS[type]))
    parts = [draw(expressions(t, depth - 1)) for t in operator.operands]
    return Expression(operator.text.format(*parts), lambda values: operator.run(*(part.value(values) for part in parts)))


@dataclass(frozen=True)
class Statement:
    """C++ text, and what it does to the variables of the threads in a mask."""

    text: str
    run: Callable[[Values, np.ndarray], None]

    def __repr__(self) -> str:
        return self.text


def assigned(name: str, value: np.ndarray, values: Values, mask: np.ndarray) -> None:
    """name = value for the threads in the mask."""
    assert value.dtype == values[name].dtype, (name, value.dtype)
    values[name] = np.where(mask, value, values[name])


@cache
@st.composite
def assignments(draw: st.DrawFn) -> Statement:
    """variable = expression;"""
    name = draw(st.sampled_from(sorted(TYPE_OF)))
    right = draw(expressions(TYPE_OF[name]))
    return Statement(f"{name} = {right};", lambda values, mask: assigned(name, right.value(values), values, mask))


@cache
@st.composite
def branches(draw: st.DrawFn, depth: int) -> Statement:
    """if … else …, by a condition that differs between lanes."""
    condition = draw(expressions("int", 1))
    bit = draw(st.integers(0, 4))
    yes, no = (draw(sequences(depth - 1)) for _ in range(2))

    def run(values: Values, mask: np.ndarray) -> None:
        taken = ((condition.value(values) ^ values["t"]) >> bit) & 1 == 1
        for side, here in ((yes, mask & taken), (no, mask & ~taken)):
            for statement in side:
                statement.run(values, here)

    return Statement(f"if ((({condition} ^ t) >> {bit}) & 1) {{ {joined(yes)} }} else {{ {joined(no)} }}", run)


@cache
@st.composite
def loops(draw: st.DrawFn, depth: int) -> Statement:
    """A loop of 0 to 3 trips, a number that differs between lanes."""
    trips, body = draw(expressions("int", 1)), draw(sequences(depth - 1))
    unrolled = draw(st.booleans())

    def run(values: Values, mask: np.ndarray) -> None:
        count = (trips.value(values) ^ values["t"]) & 3
        for k in range(3):
            for statement in body:
                statement.run(values, mask & (k < count))

    pragma = "" if unrolled else "\n#pragma unroll 1\n"
    head = f"const int trips = ({trips} ^ t) & 3; {pragma}for (int k = 0; k < trips; ++k)"
    return Statement(f"{{ {head} {{ {joined(body)} }} }}", run)


@cache
def sequences(depth: int) -> st.SearchStrategy[tuple[Statement, ...]]:
    """1 to 3 statements that any part of a warp may run."""
    one = assignments()
    return st.lists(st.one_of(one, one, branches(depth), loops(depth)) if depth else one, min_size=1, max_size=3).map(tuple)


def joined(statements: tuple[Statement, ...]) -> str:
    return "\n".join(statement.text for statement in statements)


SHUFFLES = {  # text after the value, and the lane each lane reads from
    "__shfl_xor_sync(ALL, {}, 7)": lambda lane: lane ^ 7,
    "__shfl_xor_sync(ALL, {}, 16)": lambda lane: lane ^ 16,
    "__shfl_up_sync(ALL, {}, 3)": lambda lane: np.where(lane >= 3, lane - 3, lane),
    "__shfl_down_sync(ALL, {}, 5)": lambda lane: np.where(lane < 27, lane + 5, lane),
    "__shfl_down_sync(ALL, {}, 2, 8)": lambda lane: np.where(lane % 8 < 6, lane + 2, lane),
    "__shfl_sync(ALL, {}, (t * 5 + 3) & 31)": lambda lane: (lane * 5 + 3) & 31,
    "__shfl_sync(ALL, {}, 9, 16)": lambda lane: (lane & 16) | 9,
}


@cache
@st.composite
def collectives(draw: st.DrawFn) -> Statement:
    """A shuffle, a vote, a sum over the warp, or an exchange through shared memory; all threads take part."""
    kind = draw(st.sampled_from(("shuffle", "shuffle", "exchange", "exchange", "ballot", "sum", "match", "bins")))
    if kind == "shuffle":
        name, text = draw(st.sampled_from(sorted(TYPE_OF))), draw(st.sampled_from(sorted(SHUFFLES)))
        return Statement(f"{name} = {text.format(name)};", lambda values, mask: assigned(
            name, values[name][values["t"] // 32 * 32 + SHUFFLES[text](values["t"] % 32) + values["base"]], values, mask))
    if kind == "exchange":
        name, step = draw(st.sampled_from(sorted(TYPE_OF))), draw(st.sampled_from((1, 5, 31)))
        box = f"reinterpret_cast<{TYPE_OF[name]}*>(box)"
        text = f"__syncthreads(); {box}[t] = {name}; __syncthreads(); {name} = {box}[(t * {step} + 1) % T];"
        return Statement(text, lambda values, mask: assigned(
            name, values[name][(values["t"] * step + 1) % values["T"] + values["base"]], values, mask))
    source = draw(expressions("unsigned", 1))
    text, run = WARP_WIDE[kind]
    return Statement(text.format(source), lambda values, mask: assigned("u1", run(source.value(values), values), values, mask))


def by_warp(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray, Values], np.ndarray]:
    """A function of [warps, 32]."""
    return lambda a, values: np.broadcast_to(function(a.reshape(-1, 32)), (a.size // 32, 32)).reshape(-1).astype(np.uint32)


def in_bins(a: np.ndarray, values: Values) -> np.ndarray:
    """How many threads of the block have the same value of 8."""
    whole = (a & np.uint32(7)).reshape(GRID, -1)
    return (whole[:, :, None] == whole[:, None, :]).sum(axis=2).reshape(-1).astype(np.uint32)


PLACES = np.uint64(1) << np.arange(32, dtype=np.uint64)
WARP_WIDE: dict[str, tuple[str, Callable[[np.ndarray, Values], np.ndarray]]] = {
    "ballot": ("u1 = __ballot_sync(ALL, ({} & 4u) != 0u);",
               by_warp(lambda a: (((a & 4) != 0) * PLACES).sum(axis=1, keepdims=True))),
    "sum": ("u1 = __reduce_add_sync(ALL, {});", by_warp(lambda a: a.sum(axis=1, keepdims=True, dtype=np.uint32))),
    "match": ("u1 = __match_any_sync(ALL, {} & 3u);",
              by_warp(lambda a: (((a & 3)[:, :, None] == (a & 3)[:, None, :]) * PLACES).sum(axis=2))),
    "bins": ("if (t < 8) bins[t] = 0; __syncthreads(); {{ const unsigned bin = {} & 7u; atomicAdd(&bins[bin], 1u); "
             "__syncthreads(); u1 = bins[bin]; }} __syncthreads();", in_bins),
}


# ---------------------------------------------------------------- a whole kernel
def source_of(statements: tuple[Statement, ...], threads: int) -> str:
    """The kernel: every variable comes from an array and goes back to it."""
    parameters = ", ".join(f"{type}* {type.replace(' ', '_')}s" for type in VARIABLES)
    places = [(type, name, f"{type.replace(' ', '_')}s[{k} * N + thread]")
              for type, names in VARIABLES.items() for k, name in enumerate(names)]
    return "\n".join((
        f"constexpr unsigned ALL = 0xffffffffu; constexpr int T = {threads}, N = {GRID} * T;",
        f'extern "C" __global__ void random_kernel({parameters}) {{',
        "__shared__ long long box[T]; __shared__ unsigned bins[8];",
        "const int t = threadIdx.x, thread = blockIdx.x * T + t;",
        *(f"{type} {name} = {place};" for type, name, place in places),
        joined(statements),
        *(f"{place} = {name};" for _, name, place in places), "}"))


def inputs(threads: int) -> Values:
    """Random values of every variable, with special ones among them."""
    random, count = np.random.default_rng(threads), GRID * threads
    values: Values = {}
    for type, names in VARIABLES.items():
        for name in names:
            if type in ("float", "double"):
                drawn = random.standard_normal(count) * 10.0 ** random.integers(-6, 7, count)
                drawn[:12] = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -1e-39, 3e38, 2.0**31, -(2.0**31)]
            else:
                limits = np.iinfo(NUMPY[type])
                drawn = random.integers(limits.min, limits.max, count, NUMPY[type], endpoint=True) >> random.integers(
                    0, 31, count).astype(NUMPY[type])
                drawn[:3] = [limits.min, limits.max, 0]
            values[name] = random.permutation(drawn.astype(NUMPY[type]))
    values["t"] = np.tile(np.arange(threads, dtype=np.int32), GRID)
    return values | {"base": np.repeat(np.arange(GRID, dtype=np.int32) * threads, threads), "T": np.int32(threads)}


def modelled(statements: tuple[Statement, ...], threads: int) -> Values:
    """What numpy makes of the program."""
    values = inputs(threads)
    with np.errstate(all="ignore"):
        for statement in statements:
            statement.run(values, np.ones(GRID * threads, bool))
    return values


def emulated(statements: tuple[Statement, ...], threads: int, gpu: str, machine: str) -> Values:
    """What the emulator makes of it."""
    given = inputs(threads)
    args = [np.concatenate([given[name] for name in names]) for names in VARIABLES.values()]
    kernel = pl.load(source_of(statements, threads), "random_kernel", options=("--fmad=false",))
    counts = kernel.emulate(GRID, threads, args, gpu=gpu, machine=machine)
    assert not [str(fault) for fault in counts.faults]
    return {name: part for array, names in zip(args, VARIABLES.values(), strict=True)
            for name, part in zip(names, np.split(array, len(names)), strict=True)}


def equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where the bits are equal, or both are NaN."""
    same = a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")
    return same | (np.isnan(a) & np.isnan(b)) if a.dtype.kind == "f" else same


def assert_same(got: Values, want: Values) -> None:
    """Every variable of every thread."""
    for name in TYPE_OF:
        a, b = got[name], want[name]
        same = equal(a, b)
        assert same.all(), f"{name}: thread {(~same).argmax()} has {a[~same][0]!r}, numpy {b[~same][0]!r}"


STATEMENTS = st.one_of(assignments(), branches(2), loops(2), collectives())
PROGRAMS = st.tuples(st.lists(STATEMENTS, min_size=6, max_size=14).map(tuple), st.sampled_from((32, 96)),
                     st.sampled_from(ARCHITECTURES))


@pytest.mark.parametrize("machine", MACHINES)
def test_random_kernels_equal_numpy_to_the_last_bit(machine: str) -> None:
    @settings(max_examples=EXAMPLES[machine], deadline=None, derandomize=True, database=None,
              suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example])
    @given(PROGRAMS)
    def run(program: tuple[tuple[Statement, ...], int, str]) -> None:
        statements, threads, gpu = program
        assert_same(emulated(statements, threads, gpu, machine), modelled(statements, threads))

    run()


# ---------------------------------------------------------------- every operator by itself
def operand_names(operator: Operator, k: int) -> list[str]:
    """Variables for the operands of the k-th operator of a type."""
    return [VARIABLES[t][(k + place) % len(VARIABLES[t])] for place, t in enumerate(operator.operands)]


def every_operator(threads: int) -> str:
    """A kernel that stores each operator's result, the k-th of a type into the k-th part of that type's results."""
    plain = {type: type.replace(" ", "_") for type in VARIABLES}
    parameters = ", ".join(f"const {type}* {plain[type]}s, {type}* {plain[type]}_results" for type in VARIABLES)
    reads = [f"const {type} {name} = {plain[type]}s[{k} * N + thread];"
             for type, names in VARIABLES.items() for k, name in enumerate(names)]
    stores = [f"{plain[type]}_results[{k} * N + thread] = {operator.text.format(*operand_names(operator, k))};"
              for type in VARIABLES for k, operator in enumerate(OPERATORS[type])]
    return "\n".join((f"constexpr int T = {threads}, N = {GRID} * T;",
                      f'extern "C" __global__ void every_operator({parameters}) {{',
                      "const int t = threadIdx.x, thread = blockIdx.x * T + t;", *reads, *stores, "}"))


@pytest.mark.parametrize(("gpu", "machine"), [*((gpu, "numpy") for gpu in ARCHITECTURES),
                                              *((ARCHITECTURES[2], machine) for machine in MACHINES[1:])])
def test_every_operator_equals_numpy_to_the_last_bit(gpu: str, machine: str) -> None:
    threads, given_ = 96, inputs(96)
    args = []
    for type, names in VARIABLES.items():
        args += [np.concatenate([given_[name] for name in names]),
                 np.zeros((len(OPERATORS[type]), GRID * threads), NUMPY[type])]
    kernel = pl.load(every_operator(threads), "every_operator", options=("--fmad=false",))
    assert not kernel.emulate(GRID, threads, args, gpu=gpu, machine=machine).faults
    wrong = []
    for type, results in zip(VARIABLES, args[1::2], strict=True):
        for k, (operator, got) in enumerate(zip(OPERATORS[type], results, strict=True)):
            with np.errstate(all="ignore"):
                want = operator.run(*(given_[name] for name in operand_names(operator, k)))
            if not (same := equal(got, want)).all():
                at = int((~same).argmax())
                operands = [given_[name][at] for name in operand_names(operator, k)]
                wrong.append(f"{operator.text} of {operands}: {got[at]!r}, numpy {want[at]!r} ({(~same).sum()} differ)")
    assert not wrong, "\n".join(wrong)
