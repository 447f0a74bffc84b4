"""A kernel made ready: calls inlined, blocks, liveness, definite assignment, layouts; on hand-made PTX and on NVRTC's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perflab.compile import Source, compile_source
from perflab.emulator import flow as flows
from perflab.emulator.program import Program, program
from perflab.emulator.ptx import (
    Address,
    Arguments,
    Guard,
    Immediate,
    Instruction,
    Label,
    Place,
    PtxError,
    Register,
    Symbol,
)
from perflab.errors import PerflabError
from perflab.resources import resources
from perflab.studies import load_study

HEAD = ".version 9.0\n.target sm_90\n.address_size 64\n.file 1 \"/k.cu\"\n"
DECLARED = ".reg .pred %p<5>; .reg .b32 %r<9>; .reg .b32 %f<9>; .reg .b64 %rd<9>;\n"
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")


def made(body: str, before: str = "", parameters: str = ".param .u64 k_param_0", after: str = "") -> Program:
    return program(f"{HEAD}{before}\n.visible .entry k({parameters}) {after} {{\n{DECLARED}{body}\n}}\n", "k")


def names(found: Program) -> list[str]:
    return [instruction.name for instruction in found.instructions]


# ---------------------------------------------------------------- blocks
def test_blocks_end_after_branches_and_barriers_and_begin_at_labels_and_collectives() -> None:
    found = made("""
mov.u32 %r1, %tid.x;
setp.lt.s32 %p1, %r1, 3;
@%p1 bra L;
add.s32 %r2, %r1, 1;
shfl.sync.bfly.b32 %r3|%p2, %r2, 16, 31, -1;
bar.sync 0;
bar.sync 1, 64;
add.s32 %r2, %r1, 2;
bar.warp.sync -1;
L:
M:
activemask.b32 %r4;
@%p1 ret;
trap;
exit;""")
    assert [(b.first, b.end) for b in found.blocks] == [
        (0, 3), (3, 4), (4, 6), (6, 7), (7, 8), (8, 9), (9, 11), (11, 12), (12, 13)]
    assert found.block_of == {"L": 6, "M": 6}


def test_a_body_that_ends_in_a_call_or_label_gets_a_ret() -> None:
    found = made("bra.uni L;\nL:")
    assert names(found) == ["bra.uni", "ret"] and found.block_of == {"L": 1}
    assert names(made("")) == ["ret"]


def test_registers_that_outlive_their_block() -> None:
    found = made("""
mov.u32 %r1, %tid.x;
mov.u32 %r2, 7;
setp.lt.s32 %p1, %r1, 3;
L:
add.s32 %r3, %r1, %r2;
mov.u32 %r2, %r3;
@%p1 mov.u32 %r4, %r3;
@%p1 bra L;
st.global.u32 [%rd1], %r4;
ret;""")
    assert [block.live_out for block in found.blocks] == [{"%r1", "%r2", "%p1"}, {"%r2", "%r4"}, set()]
    assert found.maybe_undefined == {"%r4", "%rd1"}  # a guarded write does not define
    assert found.registers == {"%r1": 32, "%r2": 32, "%r3": 32, "%r4": 32, "%p1": 1, "%rd1": 64}  # those in use


def test_a_register_written_on_every_path_is_defined_and_dead_code_reads_nothing() -> None:
    found = made("""
setp.eq.s32 %p1, 1, 1;
@%p1 bra L;
mov.u32 %r1, 1;
bra.uni M;
add.s32 %r5, %r6, 1;
L: mov.u32 %r1, 2;
M: add.s32 %r2, %r1, %r3;
ret;""")
    assert found.maybe_undefined == {"%r3"}


@pytest.mark.parametrize(("text", "writes", "reads"), [
    ("ld.global.v2.f32 {%f1, _}, [%rd1+4];", ["%f1"], ["%rd1"]),
    ("@!%p1 st.global.v2.f32 [%rd1], {%f1, %f2};", [], ["%p1", "%rd1", "%f1", "%f2"]),
    ("shfl.sync.idx.b32 %r1|%p1, %r2, %r3, 31, -1;", ["%r1", "%p1"], ["%r2", "%r3"]),
    ("setp.lt.and.s32 %p1, %r1, 3, !%p2;", ["%p1"], ["%r1", "%p2"]),
    ("atom.global.add.u32 %r1, [%rd1], %r2;", ["%r1"], ["%rd1", "%r2"]),
    ("atom.global.add.u32 _, [%rd1], %r2;", [], ["%rd1", "%r2"]),
    ("red.global.add.u32 [%rd1], %r2;", [], ["%rd1", "%r2"]),
    ("bar.red.popc.u32 %r1, 0, %p1;", ["%r1"], ["%p1"]),
    ("bar.sync %r1, %r2;", [], ["%r1", "%r2"]),
    ("bar.warp.sync %r1;", [], ["%r1"]),
    ("mov.b64 {%r1, %r2}, %rd1;", ["%r1", "%r2"], ["%rd1"]),
    ("nanosleep.u32 %r1;", [], ["%r1"]),
])
def test_what_an_instruction_reads_and_writes(text: str, writes: list[str], reads: list[str]) -> None:
    (first, *_) = made(text + " ret;").instructions
    assert list(flows.writes(first)) == writes
    assert list(flows.reads(first)) == reads


# Small random programs: moves (some guarded) between three registers, branches to labels, and a ret.
NAMES = ["%r0", "%r1", "%r2"]
move = st.tuples(st.just("mov"), st.sampled_from(NAMES), st.sampled_from([*NAMES, None]), st.booleans())
branch = st.tuples(st.just("bra"), st.integers(0, 3), st.booleans())
other = st.sampled_from([("ret", False), ("ret", True), ("bar",), ("shfl", "%r0", "%r1")])


def body_from(parts: list[list[tuple]]) -> list[Instruction | Label]:
    body: list[Instruction | Label] = []
    guard, place = Guard("%p", False), Place("ptx", 1)
    for number, part in enumerate(parts):
        body.append(Label(f"L{number}"))
        for kind, *rest in part:
            operands: tuple[Any, ...] = ()
            guarded = bool(rest and rest[-1] is True)
            if kind in ("mov", "shfl"):
                operands = (Register(rest[0]), Register(rest[1]) if rest[1] else Immediate("int", 0))
            elif kind == "bra":
                operands = (Label(f"L{rest[0] % len(parts)}"),)
            body.append(Instruction(kind, (), operands, guard if guarded else None, place, kind))
    return [*body, Instruction("ret", (), (), None, place, "ret;")]


def next_sites(flow: flows.Flow, site: int) -> Iterator[int]:
    """One instruction at a time, without blocks."""
    instruction = flow.instructions[site]
    if instruction.opcode == "bra":
        (label,) = instruction.operands
        assert isinstance(label, Label)
        yield flow.bounds[flow.block_of[label.name]][0]
    if instruction.guard or instruction.opcode not in ("bra", "ret"):
        yield site + 1


def undefined_by_walking(flow: flows.Flow) -> set[str]:
    """Every state (site, registers written for sure) that a path can reach."""
    start = (0, frozenset[str]())
    seen, waiting, found = {start}, [start], set()
    while waiting:
        site, known = waiting.pop()
        instruction = flow.instructions[site]
        found |= set(flows.reads(instruction)) - known
        after = known if instruction.guard else known | set(flows.writes(instruction))
        for state in ((following, after) for following in next_sites(flow, site)):
            if state not in seen:
                seen.add(state)
                waiting.append(state)
    return found


def read_later(flow: flows.Flow, site: int, name: str) -> bool:
    """Whether a path from behind `site` reads the register before it is surely overwritten."""
    waiting, seen = list(next_sites(flow, site)), set[int]()
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        instruction = flow.instructions[at]
        if name in flows.reads(instruction):
            return True
        if instruction.guard or name not in flows.writes(instruction):
            waiting.extend(next_sites(flow, at))
    return False


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.one_of(move, move, branch, other), max_size=5), min_size=1, max_size=4))
def test_dataflow_agrees_with_walking_every_path(parts: list[list[tuple]]) -> None:
    flow = flows.split(body_from(parts))
    assert [first for first, _ in flow.bounds[1:]] == [end for _, end in flow.bounds[:-1]]
    for number, (first, end) in enumerate(flow.bounds):
        assert all(i.opcode not in ("bra", "ret", "bar") for i in flow.instructions[first : end - 1])
        assert all(i.opcode != "shfl" for i in flow.instructions[first + 1 : end])
        assert {flow.bounds[b][0] for b in flow.successors[number]} == set(next_sites(flow, end - 1))
    assert flows.maybe_undefined(flow) == undefined_by_walking(flow)
    for (first, end), live in zip(flow.bounds, flows.live_out(flow), strict=True):
        written = {name for i in flow.instructions[first:end] for name in flows.writes(i)}
        assert live == {name for name in written if read_later(flow, end - 1, name)}


# ---------------------------------------------------------------- layouts
def test_parameters_lie_as_in_c() -> None:
    declared = ".param .u32 a, .param .u64 .ptr .align 1 b, .param .align 1 .b8 c[3], .param .f32 d, .param .align 16 .b8 e[24]"
    assert made("ret;", parameters=declared).parameters == (("a", 0, 4), ("b", 8, 8), ("c", 16, 3), ("d", 20, 4), ("e", 32, 24))


def test_shared_variables_that_the_kernel_names_lie_in_order_and_dynamic_ones_behind_them() -> None:
    before = """.shared .align 2 .b8 early[10];
.shared .align 4 .b8 unused[400];
.extern .shared .align 128 .b8 dynamic[];
.extern .shared .align 4 .f32 also[];"""
    body = """.shared .align 16 .b8 own[48]; .shared .align 4 .f32 m_s; .local .align 8 .b8 depot[20]; .local .u64 more;
st.shared.u8 [early+1], %r1; st.shared.f32 [m_s], %f1; mov.u64 %rd1, own; mov.u64 %rd2, depot; mov.u64 %rd3, more;"""
    static = made(body + "ret;", before)
    assert static.shared == {"early": 0, "own": 16, "m_s": 64}
    assert (static.static_shared_bytes, static.dynamic_shared_offset) == (68, 80)
    assert static.local == {"depot": 0, "more": 24} and static.local_bytes == 32
    both = made(body + "mov.u64 %rd4, dynamic; ld.shared.f32 %f1, [also+4]; ret;", before)
    assert both.shared == {"early": 0, "own": 16, "m_s": 64, "dynamic": 128, "also": 128}
    assert (both.static_shared_bytes, both.dynamic_shared_offset) == (68, 128)


def test_variables_of_the_module_are_those_that_the_kernel_names() -> None:
    before = ".const .b32 table[2] = {1, 2};\n.global .b32 counter;\n.global .b32 unused;\n"
    found = made("ld.const.b32 %r1, [table+4]; mov.u64 %rd1, counter; ret;", before, after=".maxntid 64, 2, 1")
    assert [(v.name, v.space, v.initial) for v in found.variables] == [
        ("table", "const", bytes([1, 0, 0, 0, 2, 0, 0, 0])), ("counter", "global", None)]
    assert (found.name, found.target, found.max_threads) == ("k", "sm_90", 128)


@pytest.mark.parametrize(("instruction", "talks"), [
    ("ld.global.f32 %f1, [%rd1];", False), ("st.global.f32 [%rd1], %f1;", False), ("bar.sync 0;", False),
    ("membar.gl;", True), ("membar.sys;", True), ("membar.cta;", False),
    ("fence.acq_rel.gpu;", True), ("fence.sc.cta;", False), ("fence.proxy.async;", False),
    ("atom.global.add.u32 %r1, [%rd1], 1;", True), ("atom.shared.add.u32 %r1, [%rd1], 1;", False),
    ("atom.add.u32 %r1, [%rd1], 1;", True), ("red.global.add.f32 [%rd1], %f1;", True),
    ("red.shared.add.f32 [%rd1], %f1;", False),
    ("ld.volatile.global.f32 %f1, [%rd1];", True), ("ld.volatile.shared.f32 %f1, [%rd1];", False),
    ("ld.acquire.gpu.global.u32 %r1, [%rd1];", True), ("st.release.gpu.u32 [%rd1], %r1;", True),
    ("st.relaxed.sys.global.u32 [%rd1], %r1;", True), ("barrier.cluster.arrive;", True),
])
def test_what_lets_blocks_talk(instruction: str, talks: bool) -> None:
    assert made(instruction + " ret;").communicates is talks


# ---------------------------------------------------------------- calls, by hand
TWICE = """.func (.param .b32 func_retval0) twice(.param .b32 twice_param_0) {
.reg .b32 %f<3>; .reg .pred %p<2>;
.loc 1 3 0
ld.param.f32 %f1, [twice_param_0];
setp.lt.f32 %p1, %f1, 0f00000000;
@%p1 ret;
L: add.f32 %f2, %f1, %f1;
st.param.f32 [func_retval0+0], %f2;
ret;
}
"""
CALL = "{ .param .b32 param0; st.param.f32 [param0+0], %f1; .param .b32 retval0; call.uni (retval0), twice, (param0);\n" \
    "ld.param.f32 %f2, [retval0+0]; }"


def test_a_call_becomes_the_function_s_body_with_its_own_registers_and_labels() -> None:
    found = made(f".loc 1 8 3\nmov.f32 %f1, 0f3F800000;\n{CALL}\n.loc 1 9 3\n{CALL}\nret;", TWICE)
    once = ["mov.f32", "bra.uni", "mov.f32", "setp.lt.f32", "bra", "add.f32", "mov.f32", "bra.uni", "mov.f32"]
    assert names(found) == ["mov.f32", *once, *once, "ret"]
    passed, _, taken, _, left, _, result, gone, back = found.instructions[1:10]
    assert passed.operands == (Register("param0.1"), Register("%f1")) and passed.text == "st.param.f32 [param0+0], %f1;"
    assert taken.operands == (Register("%f1.c1"), Register("param0.1")) and taken.text == "ld.param.f32 %f1, [twice_param_0];"
    assert result.operands == (Register("retval0.1"), Register("%f2.c1"))
    assert back.operands == (Register("%f2"), Register("retval0.1"))
    assert left.guard == Guard("%p1.c1", False) and left.operands == gone.operands
    assert isinstance(gone.operands[0], Label) and found.block_of[gone.operands[0].name] == found.block_of["L.c1"] + 1
    assert [i.place for i in (passed, taken, gone, back)] == [
        Place("/k.cu", 8), Place("/k.cu", 3, Place("/k.cu", 8)), Place("/k.cu", 3, Place("/k.cu", 8)), Place("/k.cu", 8)]
    assert found.instructions[12].place == Place("/k.cu", 3, Place("/k.cu", 9))
    assert found.registers["%p1.c2"] == 1 and found.registers["retval0.2"] == 32
    assert found.local_bytes == 0 and found.maybe_undefined == {"retval0.1", "retval0.2"}  # the early return gives no result


def test_a_guarded_call_skips_the_body() -> None:
    found = made(CALL.replace("call.uni", "@%p1 call") + " ret;", TWICE)
    skip = found.instructions[1]
    assert skip.name == "bra" and skip.guard == Guard("%p1", True)
    assert isinstance(skip.operands[0], Label) and found.blocks[found.block_of[skip.operands[0].name]].first == 8
    direct = made("@!%p1 call (%f2), twice, (%f1); ret;", TWICE)
    skip, *_, result, last = direct.instructions
    assert skip.guard == Guard("%p1", False) and result.operands[0] == Register("%f2") and last.opcode == "ret"
    assert isinstance(skip.operands[0], Label) and direct.block_of[skip.operands[0].name] == len(direct.blocks) - 1


def test_registers_and_constants_may_be_passed_directly() -> None:
    found = made("call.uni (%f2), twice, (0f3F800000); ret;", TWICE)
    assert found.instructions[1].operands == (Register("twice_param_0.c1"), Immediate("f32", 0x3F800000))
    assert found.instructions[-2].operands == (Register("%f2"), Register("func_retval0.c1"))


def test_structures_and_parameters_whose_address_is_taken_are_local_variables() -> None:
    function = """.func f(.param .align 8 .b8 f_param_0[12], .param .b32 f_param_1, .param .b32 f_param_2) {
.reg .b32 %r<4>; .reg .b64 %rd<3>; .local .align 4 .b8 depot[8];
ld.param.v2.u32 {%r1, %r2}, [f_param_0];
mov.u64 %rd1, f_param_1; ld.param.u32 %r3, [%rd1]; cvta.param.u64 %rd2, %rd1;
ld.param.u8 %r3, [f_param_2];
mov.u64 %rd1, depot;
ret;
}
"""
    call = """{ .param .align 16 .b8 param0[12]; st.param.u32 [param0+8], %r1; .param .b32 param1; st.param.u32 [param1], %r1;
.param .b32 param2; st.param.u32 [param2], %r1; call.uni f, (param0, param1, param2); }"""
    found = made(f"{call}\n{call}\nret;", function)
    assert names(found)[:11] == ["st.local.u32", "st.local.u32", "st.local.u32", "bra.uni", "ld.local.v2.u32", "mov.u64",
                                 "ld.local.u32", "cvta.local.u64", "ld.local.u8", "mov.u64", "bra.uni"]
    assert found.instructions[0].operands == (Address(Symbol("param0.1"), 8), Register("%r1"))
    assert found.instructions[4].operands[1] == Address(Symbol("param0.1"))
    assert found.local == {
        "param0.1": 0, "param1.1": 12, "param2.1": 16, "param0.2": 32, "param1.2": 44, "param2.2": 48, "depot": 52}
    assert found.local_bytes == 60


def test_calls_in_calls_and_variables_of_one_name() -> None:
    outer = """.func outer(.param .b32 outer_param_0) {
.reg .b32 %r<3>; .local .align 4 .b8 depot[4]; .shared .b32 seen;
.loc 1 5 0
mov.u32 %r1, depot; st.shared.b32 [seen], %r1;
call.uni inner, (); ret;
}
"""
    inner = """.func inner() { .reg .b32 %r<3>; .local .align 4 .b8 depot[8]; .loc 1 2 0
mov.u32 %r1, depot; ret; }
"""
    body = ".local .align 4 .b8 depot[12]; .loc 1 8 0\nmov.u32 %r1, depot; call.uni outer, (%r1); call.uni outer, (%r1); ret;"
    found = made(body, inner + outer)
    assert found.local == {"depot": 0, "outer.depot": 12, "inner.depot": 16} and found.shared == {"seen": 0}
    deep = [i for i in found.instructions if i.operands[1:] == (Symbol("inner.depot"),)]
    assert [i.operands[0] for i in deep] == [Register("%r1.c2"), Register("%r1.c4")]
    assert {i.place for i in deep} == {Place("/k.cu", 2, Place("/k.cu", 5, Place("/k.cu", 8)))}


VPRINTF = ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n"


def test_functions_of_the_system_stay_calls_with_registers() -> None:
    found = made("""{ .param .b64 param0; st.param.b64 [param0+0], %rd1; .param .b64 param1; st.param.b64 [param1+0], %rd2;
.param .b32 retval0; call.uni (retval0), vprintf, (param0, param1); ld.param.b32 %r1, [retval0+0]; } ret;""", VPRINTF)
    assert names(found) == ["mov.b64", "mov.b64", "call.uni", "mov.b32", "ret"]
    assert found.instructions[2].operands == (
        Arguments((Register("retval0.1"),)), Symbol("vprintf"), Arguments((Register("param0.1"), Register("param1.1"))))
    assert flows.writes(found.instructions[2]) == ("retval0.1",)
    assert found.instructions[3].operands == (Register("%r1"), Register("retval0.1"))


# ---------------------------------------------------------------- errors
@pytest.mark.parametrize(("body", "before", "error", "words"), [
    ("call f, ();", ".func f() { .loc 1 7 1 call g, (); ret; }\n.func g() { .loc 1 9 1 call f, (); ret; }\n", PerflabError,
     "k.cu:9: recursion (f -> g -> f)"),
    ("call (%r1), %rd1, (%r2), proto;", "", PerflabError, "a call through a pointer (call (%r1), %rd1, (%r2), proto;)"),
    ("call f, ();", "", PtxError, "f is called, but the PTX does not declare it"),
    ("call f, (%r1);", ".func f() { ret; }\n", PtxError, "another number of arguments"),
    ("bra nowhere;", "", PtxError, "bra nowhere; goes to a label that does not exist"),
    ("L: L: ret;", "", PtxError, "the label L stands twice"),
    ("brx.idx %r1, table;", "", PtxError, "branches by a table"),
    ("mov.u64 %rd1, f;", ".func f() { ret; }\n", PtxError, "uses f, the address of a function"),
    ("mov.u64 %rd1, nothing;", "", PtxError, "uses nothing, a name that the PTX does not define"),
    ("{ .param .b8 param0[24]; st.param.b32 [param0+4], %r1; call (%r1), vprintf, (param0, %rd1); }", VPRINTF, PtxError,
     "passes a structure"),
])
def test_what_cannot_be_run_is_an_error_in_words(body: str, before: str, error: type, words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        made(body + "\nret;", before)


def test_an_unknown_kernel_names_those_there_are() -> None:
    text = HEAD + ".entry first() { ret; }\n.entry second() { ret; }\n.func third() { ret; }\n"
    with pytest.raises(PerflabError, match=re.escape('unknown kernel "secnd". Did you mean "second"? Known: first, second.')):
        program(text, "secnd")


# ---------------------------------------------------------------- what NVRTC writes
CALLS = """struct S { int k; float a, b; double d; };
__noinline__ __device__ float far(float x, S s) {
  return x * 2 + s.b + s.k;
}
__device__ float near(float x, S s) {
  return far(x, s) + __expf(x);
}
__noinline__ __device__ bool odd(unsigned char x) { return x & 1; }
extern "C" __global__ void k(float* out, S s, int n) {
  __shared__ char c[3]; __shared__ double d[5]; __shared__ short h[7]; __shared__ float4 v[2];
  c[n % 3] = n; d[n % 5] = n; h[n % 7] = n; v[n % 2].x = n;
  __syncthreads();
  if (odd(n)) out[2] = c[1] + d[2] + h[3] + v[1].y;
  out[0] = near(out[1], s);
  out[3] = near(out[4], s);
  printf("%d", n);
}
"""


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_calls_as_nvrtc_writes_them(architecture: str) -> None:
    binary = compile_source(Source("k.cu", CALLS), architecture)
    found = program(binary.ptx, "k")
    assert [i.operands[1] for i in found.instructions if i.opcode == "call"] == [Symbol("vprintf")]
    assert not any("param" in i.modifiers and i.opcode == "st" for i in found.instructions)
    near = [Place("/k.cu", 6, Place("/k.cu", line)) for line in (14, 15)]
    assert {i.place for i in found.instructions if i.opcode == "ex2"} == set(near)
    assert {i.place for i in found.instructions if i.opcode == "fma" and i.place.line == 3} == {
        Place("/k.cu", 3, place) for place in near}
    assert found.maybe_undefined == frozenset()
    assert found.static_shared_bytes == resources(binary, "k").static_shared_bytes
    assert not found.communicates


# Blocks of 189 KB of shared memory, which no SM of these has: what is never launched there takes long to compile.
TOO_LARGE = {(name, architecture) for name in ("register_tile", "register_banks", "register_banks_paged")
             for architecture in ("sm_80", "sm_120")}
SAME_CONDITION = {"gather_pages"}  # loads into registers and stores them in two loops, under one condition that no path shows


def shipped() -> list[tuple[Any, str]]:
    """The kernels of every study, for each architecture; of the instances of a template the first and the last.

    Nothing is compiled to list them: both workers would do it, at the same time, before the first test.
    """
    instances: dict[str, list[Any]] = {}
    for folder in sorted(path.parent for path in (Path(__file__).parents[2] / "kernels").glob("*/study.py")):
        for version in load_study(folder).versions:
            for kernel in version.kernels:
                instances.setdefault(kernel.label.partition("<")[0], []).append(kernel)
    return [(kernel, architecture) for several in instances.values() for kernel in dict.fromkeys((several[0], several[-1]))
            for architecture in ARCHITECTURES if (kernel.name.partition("<")[0], architecture) not in TOO_LARGE]


def outermost(place: Place) -> Place:
    return place if place.inlined_at is None else outermost(place.inlined_at)


@pytest.mark.parametrize(("kernel", "architecture"), shipped(), ids=lambda value: getattr(value, "label", value))
def test_shipped_kernels(kernel: Any, architecture: str) -> None:
    binary = kernel.binary(architecture)
    entry = kernel.entry(architecture)
    found = program(binary.ptx, entry)
    lines = {f"/{name}": text.count("\n") + 1 for name, text in
             ((kernel.source.file, kernel.source.text), *kernel.source.headers)}
    for instruction in found.instructions:
        place = instruction.place
        assert place.file.startswith("/cuda/") or 1 <= place.line <= lines[place.file]
        assert outermost(place).file in lines
    used = resources(binary, entry)
    dynamic = any(offset == found.dynamic_shared_offset for offset in found.shared.values())
    assert (found.dynamic_shared_offset if dynamic and found.static_shared_bytes else found.static_shared_bytes) == (
        used.static_shared_bytes)
    assert [(offset, size) for _, offset, size in found.parameters] == [(p.offset_bytes, p.size_bytes) for p in used.parameters]
    assert not found.maybe_undefined or kernel.name.partition("<")[0] in SAME_CONDITION
