"""Arguments: what each parameter takes, errors that name it, and arrays that share memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.emulator.arguments import Layout, Pointer, names_in, parameter_block, parameters_of
from perflab.emulator.memory import GLOBAL_BASE, INITIALISED, Arena
from perflab.errors import PerflabError

PTX = """
.visible .entry f(
    .param .u64 .ptr .align 1 f_param_0,
    .param .align 8 .b8 f_param_1[24],
    .param .f64 f_param_2,
    .param .f32 f_param_3,
    .param .u8 f_param_4,
    .param .u32 f_param_5,
    .param .align 2 .b8 f_param_6[2],
    .param .u64 f_param_7
)
"""
NAMES = ("x", "p", "d", "g", "b", "n", "h", "total")
PARAMETERS = parameters_of(PTX, "f", NAMES)
RECORD = np.zeros((), [("p", "u8"), ("n", "i4"), ("_", "i4"), ("d", "f8")])[()]
GOOD = [Pointer(GLOBAL_BASE), RECORD, 1.5, 2, True, -1, np.float16(2), 2**63]


def test_parameters_lie_as_c_lays_them_out():
    assert [(p.name, p.offset_bytes, p.size_bytes, p.kind) for p in PARAMETERS] == [
        ("x", 0, 8, "integer"), ("p", 8, 24, "bytes"), ("d", 32, 8, "float"), ("g", 40, 4, "float"), ("b", 44, 1, "integer"),
        ("n", 48, 4, "integer"), ("h", 52, 2, "bytes"), ("total", 56, 8, "integer"),
    ]
    assert [p.name for p in parameters_of(PTX, "f")][:2] == ["argument 0", "argument 1"]


def test_the_block_holds_what_the_kernel_reads():
    block = parameter_block(PARAMETERS, GOOD, "f")
    assert len(block) == 64 and int.from_bytes(block[:8], "little") == GLOBAL_BASE
    assert np.frombuffer(block, "f8", 1, 32) == 1.5 and np.frombuffer(block, "f4", 1, 40) == 2
    assert block[44] == 1 and np.frombuffer(block, "i4", 1, 48) == -1 and np.frombuffer(block, "f2", 1, 52) == 2
    assert parameter_block(PARAMETERS, [None, *GOOD[1:]], "f")[:8] == bytes(8)


BAD = {
    "too few": (GOOD[:7], ["takes 8 arguments, 7 were given", "n: 4-byte integer", "d: 8-byte float"]),
    "array for a number": ([*GOOD[:5], Pointer(1), *GOOD[6:]], ["n is given an array", "4-byte integer, no pointer"]),
    "fraction for an integer": ([*GOOD[:5], 1.5, *GOOD[6:]], ["n = 1.5", "whole number"]),
    "too large": ([*GOOD[:5], 2**32, *GOOD[6:]], ["n = 4,294,967,296 does not fit", "4-byte integer"]),
    "too small": ([*GOOD[:5], -(2**31) - 1, *GOOD[6:]], ["does not fit"]),
    "list for a pointer": ([[1, 2], *GOOD[1:]], ["x = [1, 2] (list)", "an array, a number or None"]),
    "number for a struct": ([GOOD[0], 3, *GOOD[2:]], ["p = 3 (int)", "24-byte struct", "numpy record"]),
    "struct of another size": ([GOOD[0], b"abc", *GOOD[2:]], ["p has 3 B", "24-byte struct"]),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_name_the_parameter_and_what_it_is(case):
    values, said = BAD[case]
    with pytest.raises(PerflabError) as error:
        parameter_block(PARAMETERS, values, "f")
    assert all(words in str(error.value) for words in said), error.value


@given(st.integers(-(2**31), 2**32 - 1))
def test_every_integer_of_32_bits_fits(value):
    block = parameter_block(PARAMETERS, [*GOOD[:5], value, *GOOD[6:]], "f")
    assert int.from_bytes(block[48:52], "little") == value % 2**32


# ---------------------------------------------------------------- names
@pytest.mark.parametrize("text, kernel, names", [
    ("__global__ void f(const float* __restrict__ x, int n) {}", "f", ("x", "n")),
    ("template <typename T> __global__ void __launch_bounds__(256, 2) saxpy(T *y, S<int, 3> s /* a, b */, T a[4]) {",
     "saxpy<float>", ("y", "s", "a")),
    ('extern "C" __global__ void g() {}', "g", ()),
    ("__global__ void f(float*, int n);", "f", ("float", "n")),  # no name at all: its type stands in
    ("int x;", "f", ()),
])
def test_parameters_are_called_as_in_the_source(text, kernel, names):
    assert names_in(text, kernel) == names


# ---------------------------------------------------------------- arrays
def test_arrays_come_back_as_the_kernel_left_them():
    x, out = np.arange(5, dtype=np.float32), np.zeros((2, 3), np.int16)
    layout = Layout.of({"x": x, "out": out})
    arena = Arena(layout.sizes)
    layout.load(arena, frozenset({"out"}))
    assert layout.view(arena, "x").view(np.float32).tolist() == [0, 1, 2, 3, 4]
    assert (layout.flags(arena, "x") & INITIALISED).all() and not (layout.flags(arena, "out") & INITIALISED).any()
    layout.view(arena, "out").view(np.int16)[:] = range(6)
    layout.store(arena)
    assert out.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_arrays_that_share_memory_share_a_buffer():
    whole = np.zeros(100, np.float32)
    layout = Layout.of({"a": whole[10:60], "b": whole[50:], "c": np.zeros(3), "same": whole[10:60], "none": whole[:0]})
    arena = Arena(layout.sizes)
    assert layout.address(arena, "b") - layout.address(arena, "a") == 160
    assert layout.address(arena, "a") == layout.address(arena, "same")
    assert len(layout.sizes) == 3 and layout.sizes[layout.places["a"][0]] == 360
    layout.load(arena)
    layout.view(arena, "a").view(np.float32)[45] = 7
    layout.store(arena)
    assert whole[55] == 7


def test_what_a_kernel_cannot_take_is_refused():
    with pytest.raises(PerflabError, match=r"x, an array of shape \(3, 4\).*not C-contiguous.*ascontiguousarray\(x\)"):
        Layout.of({"x": np.zeros((4, 3)).T})
    with pytest.raises(PerflabError, match="Python objects"):
        Layout.of({"x": np.array([None])})


def test_a_read_only_array_may_be_read_only():
    x = np.zeros(4, np.float32)
    x.flags.writeable = False
    layout = Layout.of({"x": x})
    arena = Arena(layout.sizes)
    layout.load(arena)
    layout.store(arena)
    layout.view(arena, "x")[0] = 1
    with pytest.raises(PerflabError, match="wrote into x, which is a read-only array"):
        layout.store(arena)
