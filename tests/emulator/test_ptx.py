"""PTX text -> Module: operands, scopes, source places, variables, directives; what is not PTX is an error with its line."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perflab.compile import Source, compile_source
from perflab.emulator.ptx import (
    Address,
    Arguments,
    Guard,
    Immediate,
    Instruction,
    Label,
    Module,
    Negated,
    Pair,
    Place,
    PtxError,
    Register,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
    parse,
)

HEAD = ".version 9.0\n.target sm_90\n.address_size 64\n"
DECLARED = (".reg .pred %p<4>;\n.reg .b16 %rs<4>;\n.reg .b32 %r<9>;\n.reg .f32 %f<9>;\n.reg .b64 %rd<9>, %SP;\n"
            ".local .align 8 .b8 depot[16];\n")


def module(body: str, before: str = "") -> Module:
    return parse(f"{HEAD}{before}\n.visible .entry k(.param .u64 k_param_0) {{\n{DECLARED}{body}\n}}\n")


def body_of(text: str, before: str = "") -> list[Instruction | Label]:
    return list(module(text, before).functions["k"].body)


def only(text: str) -> Instruction:
    (item,) = body_of(text)
    assert isinstance(item, Instruction)
    return item


R, RD, P, F = (lambda n, stem=stem: Register(f"{stem}{n}") for stem in ("%r", "%rd", "%p", "%f"))


# ---------------------------------------------------------------- instructions
@pytest.mark.parametrize(("text", "name", "operands"), [
    ("ret;", "ret", ()),
    ("add.s32 \t%r1, %r2, -1;", "add.s32", (R(1), R(2), Immediate("int", -1))),
    ("mov.b32 %r1, 0x1FU;", "mov.b32", (R(1), Immediate("int", 31))),
    ("mov.b32 %r1, 0b101;", "mov.b32", (R(1), Immediate("int", 5))),
    ("mov.b32 %r1, 017;", "mov.b32", (R(1), Immediate("int", 15))),
    ("mov.b64 %rd1, 18446744073709551615;", "mov.b64", (RD(1), Immediate("int", 2**64 - 1))),
    ("mov.f32 %f1, 0f3F800000;", "mov.f32", (F(1), Immediate("f32", 0x3F800000))),
    ("mov.f32 %f1, -0f3F800000;", "mov.f32", (F(1), Immediate("f32", 0xBF800000))),
    ("add.f64 %rd1, %rd2, 0dBFF0000000000000;", "add.f64", (RD(1), RD(2), Immediate("f64", 0xBFF0000000000000))),
    ("mov.f32 %f1, 1.5;", "mov.f32", (F(1), Immediate("f64", 0x3FF8000000000000))),
    ("mov.u32 %r1, %tid.x;", "mov.u32", (R(1), Special("tid.x"))),
    ("mov.u64 %rd1, %clock64;", "mov.u64", (RD(1), Special("clock64"))),
    ("mov.b32 %r1, %envreg3;", "mov.b32", (R(1), Special("envreg3"))),
    ("mov.u32 %r1, %lanemask_lt;", "mov.u32", (R(1), Special("lanemask_lt"))),
    ("mov.u32 %r1, %dynamic_smem_size;", "mov.u32", (R(1), Special("dynamic_smem_size"))),
    ("mov.u32 %r1, WARP_SZ;", "mov.u32", (R(1), Immediate("int", 32))),
    ("mov.u64 %rd1, depot;", "mov.u64", (RD(1), Symbol("depot"))),
    ("mov.u64 %rd1, depot+8;", "mov.u64", (RD(1), Symbol("depot", 8))),
    ("ld.global.nc.v2.f32 {%f1, _}, [%rd1+-4];", "ld.global.nc.v2.f32", (Vector((F(1), Sink())), Address(RD(1), -4))),
    ("ld.param.u64 %rd1, [k_param_0];", "ld.param.u64", (RD(1), Address(Symbol("k_param_0")))),
    ("ld.local.u32 %r1, [depot+0x8];", "ld.local.u32", (R(1), Address(Symbol("depot"), 8))),
    ("st.shared.u8 [16], %r1;", "st.shared.u8", (Address(Immediate("int", 16)), R(1))),
    ("st.local.u32 [%rd1-4], %r1;", "st.local.u32", (Address(RD(1), -4), R(1))),
    ("shfl.sync.bfly.b32\t%r1|%p2, %r2, 16, 31, -1;", "shfl.sync.bfly.b32",
     (Pair(R(1), P(2)), R(2), Immediate("int", 16), Immediate("int", 31), Immediate("int", -1))),
    ("setp.lt.and.s32 %p1, %r1, %r2, !%p2;", "setp.lt.and.s32", (P(1), R(1), R(2), Negated(Register("%p2")))),
    ("setp .eq .b32 %p1, %r1, 0;", "setp.eq.b32", (P(1), R(1), Immediate("int", 0))),
    ("atom.global.add.u32 _, [%rd1], 1;", "atom.global.add.u32", (Sink(), Address(RD(1)), Immediate("int", 1))),
    ("cp.async.cg.shared.global.L2::128B [%r1], [%rd1], 16, 16;", "cp.async.cg.shared.global.L2::128B",
     (Address(R(1)), Address(RD(1)), Immediate("int", 16), Immediate("int", 16))),
    ("call.uni (k_param_0), f, (%r1, depot);", "call.uni",
     (Arguments((Symbol("k_param_0"),)), Symbol("f"), Arguments((R(1), Symbol("depot"))))),
    ("call.uni \nf, \n(\ndepot\n);", "call.uni", (Arguments(()), Symbol("f"), Arguments((Symbol("depot"),)))),
    ("call f;", "call", (Arguments(()), Symbol("f"), Arguments(()))),
    ("call (k_param_0), %rd1, (depot), prototype_0;", "call",
     (Arguments((Symbol("k_param_0"),)), RD(1), Arguments((Symbol("depot"),)))),
])
def test_operands_are_what_the_text_says(text: str, name: str, operands: tuple) -> None:
    found = only(text)
    assert (found.name, found.operands, found.guard) == (name, operands, None)
    assert found.text == " ".join(text.split())


def test_guards() -> None:
    kept, inverted = body_of("@%p1 bra L; @!%p2 mov.u32 %r1, 3;\nL:")[:2]
    assert isinstance(kept, Instruction) and isinstance(inverted, Instruction)
    assert kept.guard == Guard("%p1", False) and kept.operands == (Label("L"),)
    assert inverted.guard == Guard("%p2", True) and inverted.text == "@!%p2 mov.u32 %r1, 3;"


def test_inline_assembly_in_braces_and_several_statements_on_a_line() -> None:
    items = body_of("// begin inline asm\n{fma.rn.f16x2 %r1,%r2,%r3,%r4;\n}\n/* a\ncomment; */ bar.sync 1, 64; trap;")
    assert [str(i.text) for i in items if isinstance(i, Instruction)] == [
        "fma.rn.f16x2 %r1,%r2,%r3,%r4;", "bar.sync 1, 64;", "trap;"]


def test_names_of_inner_scopes_do_not_clash_with_those_outside() -> None:
    text = """{ .reg .pred %p1; .reg.b32 t; setp.ne.u32 %p1, %r1, 0; L: mov.b32 t, 1; @%p1 bra L; bra M; }
{ .reg .pred %p1; .reg .b32 t; { .reg .b64 t; mov.b64 t, %rd1; } mov.b32 t, %r1; L: @%p1 bra L; }
@%p1 bra L;
L: M: ret;"""
    found = module(text).functions["k"]
    inner = {name: bits for name, bits in found.registers.items() if "." in name}
    assert inner == {"%p1.1": 1, "t.1": 32, "%p1.2": 1, "t.2": 32, "t.3": 64}
    written = [(i.operands[0], i.guard) for i in found.body if isinstance(i, Instruction) and i.operands]
    assert written == [
        (Register("%p1.1"), None), (Register("t.1"), None), (Label("L.1"), Guard("%p1.1", False)), (Label("M"), None),
        (Register("t.3"), None), (Register("t.2"), None), (Label("L.2"), Guard("%p1.2", False)),
        (Label("L"), Guard("%p1", False)),
    ]
    assert [i.name for i in found.body if isinstance(i, Label)] == ["L.1", "L.2", "L", "M"]


def test_parameters_of_calls_are_variables_of_their_scope() -> None:
    call = "{ // callseq 0, 0\n.param .align 8 .b8 param0[24];\nst.param.v2.f32 [param0+8], {%f1, %f2};\n}\n"
    found = module(call + call).functions["k"]
    assert [v for v in found.variables if v.space == "param"] == [
        Variable("param0.1", "param", 8, 24), Variable("param0.2", "param", 8, 24)]
    assert [i.operands[0] for i in found.body if isinstance(i, Instruction)] == [
        Address(Symbol("param0.1"), 8), Address(Symbol("param0.2"), 8)]


# ---------------------------------------------------------------- source places
FILES = '.file 1 "/k.cu"\n.file\t2 "/cuda//////cuda_fp16.h"\n'


def places(text: str) -> list[Place]:
    return [i.place for i in body_of(text, FILES) if isinstance(i, Instruction)]


def test_a_place_holds_until_the_next_one() -> None:
    assert places(".loc 1 8 0\nret; ret;\n.loc 1 9 3 ret;") == [Place("/k.cu", 8), Place("/k.cu", 8), Place("/k.cu", 9)]


def test_inlined_places_chain_through_the_position_that_they_name() -> None:
    found = places("""
.loc 1 15 3
.loc 1 6 34, function_name $L__info_string0, inlined_at 1 15 3
.loc 2 5 18, function_name $L__info_string1+12, inlined_at 1 6 34
ret;
.loc 1 6 34, function_name $L__info_string0, inlined_at 1 15 3
ret;
.loc 1 16 3
.loc 1 6 34, function_name $L__info_string0, inlined_at 1 16 3
.loc 2 5 18, function_name $L__info_string1, inlined_at 1 6 34
ret;""")
    middle = Place("/k.cu", 6, Place("/k.cu", 15))
    assert found == [
        Place("/cuda//////cuda_fp16.h", 5, middle), middle,
        Place("/cuda//////cuda_fp16.h", 5, Place("/k.cu", 6, Place("/k.cu", 16)))]
    assert str(found[0]) == "cuda_fp16.h:5"


def test_line_0_is_the_line_before_it_in_the_same_function() -> None:
    found = places("""
.loc 1 20 5
.loc 2 7 3, function_name $L__info_string0, inlined_at 1 20 5
ret;
.loc 1 0 5
ret;
.loc 2 0 3, function_name $L__info_string0, inlined_at 1 20 5
ret;
.loc 2 0 3, function_name $L__info_string0, inlined_at 1 99 5
ret;""")
    inlined = Place("/cuda//////cuda_fp16.h", 7, Place("/k.cu", 20))
    assert found == [inlined, Place("/k.cu", 20), inlined, Place("/k.cu", 99)]


def test_without_line_numbers_the_place_is_the_line_of_ptx() -> None:
    text = f"{HEAD}.entry k() {{\n  ret;\n\n  ret; }}"
    found = parse(text).functions["k"].body
    assert [i.place for i in found if isinstance(i, Instruction)] == [Place("ptx", 5), Place("ptx", 7)]


def test_the_file_table_may_stand_behind_the_code() -> None:
    text = f"{HEAD}.entry k() {{ .loc 1 3 1 ret; }}\n{FILES}\n.section .debug_str {{\n$L__info_string0:\n.b8 95,0\n{{ }} }}"
    (item,) = parse(text).functions["k"].body
    assert isinstance(item, Instruction) and item.place == Place("/k.cu", 3)


# ---------------------------------------------------------------- variables and functions
@pytest.mark.parametrize(("text", "variable"), [
    (".const .align 4 .b8 t[8] = {0, 0, 128, 63, 255};", Variable("t", "const", 4, 8, bytes([0, 0, 128, 63, 255, 0, 0, 0]))),
    (".global .align 4 .u32 n = 3;", Variable("n", "global", 4, 4, b"\3\0\0\0")),
    (".visible .global .s32 n = -2;", Variable("n", "global", 4, 4, b"\xfe\xff\xff\xff")),
    (".global .align 1 .u8 x;", Variable("x", "global", 1, 1)),
    (".global .f32 f[2] = {0f3F800000, 0fBF800000};", Variable("f", "global", 4, 8, bytes.fromhex("0000803f000080bf"))),
    (".global .f64 f = 0d3FF0000000000000;", Variable("f", "global", 8, 8, bytes.fromhex("000000000000f03f"))),
    (".global .s16 m[2][3] = {{1, 2, 3}, {4, 5, -6}};",
     Variable("m", "global", 2, 12, bytes.fromhex("0100020003000400 0500faff"))),
    (".global .b8 $str[] = {65, 66, 0};", Variable("$str", "global", 1, 3, b"AB\0")),
    (".global .attribute(.managed) .align 4 .u32 n;", Variable("n", "global", 4, 4)),
    (".global .v4 .f32 v;", Variable("v", "global", 16, 16)),
    (".extern .shared .align 16 .b8 smem[];", Variable("smem", "shared", 16, 0)),
    (".shared .align 8 .b64 bar;", Variable("bar", "shared", 8, 8)),
])
def test_variables_of_the_module(text: str, variable: Variable) -> None:
    assert parse(HEAD + text).variables == {variable.name: variable}


def test_a_function_has_parameters_results_registers_and_its_own_variables() -> None:
    text = HEAD + """
.weak .func (.param .align 16 .b8 func_retval0[16]) f(.param .b32 f_param_0, .param .align 8 .b8 f_param_1[24])
.noreturn
{
  .shared .align 4 .f32 m_s;
  .reg .pred %p<2>; .reg .b64 %SP; .reg .b128 %q;
  ret;
}"""
    found = parse(text).functions["f"]
    assert not found.entry and found.max_threads is None
    assert found.results == (Variable("func_retval0", "param", 16, 16),)
    assert found.parameters == (Variable("f_param_0", "param", 4, 4), Variable("f_param_1", "param", 8, 24))
    assert found.registers == {"%p0": 1, "%p1": 1, "%SP": 64, "%q": 128}
    assert found.variables == (Variable("m_s", "shared", 4, 4),)


@pytest.mark.parametrize(("directives", "threads"), [
    ("", None), (".maxntid 256", 256), (".maxntid 256, 1, 1\n.minnctapersm 2", 256), (".reqntid 8, 8, 2 .maxnreg 32", 128),
    (".maxclusterrank 8 .explicitcluster .reqnctapercluster 2,1,1", None),
])
def test_launch_bounds(directives: str, threads: int | None) -> None:
    parameters = ".param .u64 .ptr .global .align 16 k_param_0, .param .u64 .ptr .align 1 k_param_1"
    found = parse(f"{HEAD}.entry k({parameters})\n{directives}\n{{ ret; }}").functions["k"]
    assert found.entry and found.max_threads == threads
    assert found.parameters == (Variable("k_param_0", "param", 8, 8), Variable("k_param_1", "param", 8, 8))


def test_a_declaration_has_no_body_and_does_not_replace_the_definition() -> None:
    printf = ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b)\n;\n"
    found = parse(f"{HEAD}{printf}.func f();\n.func f() {{ ret; }}\n.func f();")
    assert found.target == "sm_90"
    assert found.functions["vprintf"].body == () and len(found.functions["vprintf"].parameters) == 2
    assert len(found.functions["f"].body) == 1


# ---------------------------------------------------------------- errors
@pytest.mark.parametrize(("body", "words"), [
    ("add.s32 %r1, %r2, %r9;", 'PTX line 12: expected a declared register or a special one, found "%r9"'),
    ("add.s32 %r1 %r2;", 'expected "," or ";", found "%r2"'),
    ("ld.u32 %r1, [%r1;", 'expected "]", found ";"'),
    ("\n@%r1 bra L;", 'PTX line 13: expected a predicate register, found "%r1"'),
    (".reg .q32 %x;", 'expected the type of a register, found ".q32"'),
    (".reg .b32 %x<4000000000>;", 'expected at most 1,000,000 registers of one name, found "4000000000"'),
    (".local .b8;", 'expected ";", found'),
    (".frob 3;", 'expected an instruction or a directive of a function, found ".frob"'),
    ("ret; } }", 'expected a function, a variable or a directive, found "}"'),
    ("{ ret;", "found the end"),
])
def test_what_is_not_ptx_is_an_error_that_names_its_line(body: str, words: str) -> None:
    with pytest.raises(PtxError, match=re.escape(words)):
        module(body)


def test_addresses_in_initialisers_are_refused() -> None:
    with pytest.raises(PtxError, match="addresses in initialisers"):
        parse(HEAD + ".const .align 8 .u64 names[2] = {generic($str), 0};")


SAMPLE = f"""{HEAD}{FILES}.global .align 4 .u32 n = 3;
.extern .shared .align 16 .b8 smem[];
.func (.param .b32 r) f(.param .b32 a) {{ .reg .f32 %f<2>; ld.param.f32 %f1, [a]; st.param.f32 [r+0], %f1; ret; }}
.visible .entry k(.param .u64 .ptr .align 1 k_param_0) .maxntid 256, 1, 1 {{
{DECLARED} .loc 1 8 0
$L__BB0_1: ld.shared.v2.f32 {{%f1, %f2}}, [smem+8]; .pragma "nounroll";
 .loc 1 9 3, function_name $L__info_string0, inlined_at 1 8 0
 {{ .param .b32 param0; st.param.f32 [param0+0], %f1; .param .b32 retval0; call.uni (retval0), f, (param0); }}
 shfl.sync.bfly.b32 %r1|%p1, %r2, 16, 31, -1;
 @!%p1 bra $L__BB0_1; ret; }}"""
WORDS = re.findall(r"\s+|\w+|[^\w\s]", SAMPLE)


INSTEAD = ["", *"{}[]();:,@%|!-", ".reg ", ".loc ", "0x1", "\0"]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(WORDS) - 1), st.integers(0, 3), st.sampled_from(INSTEAD), st.booleans())
def test_damaged_text_is_read_or_refused_but_never_crashes(at: int, gone: int, instead: str, cut: bool) -> None:
    text = "".join([*WORDS[:at], instead, *([] if cut else WORDS[at + gone :])])
    try:
        assert isinstance(parse(text), Module)
    except PtxError as error:
        assert str(error).startswith("PTX line ")


# ---------------------------------------------------------------- what NVRTC writes
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_headers_and_inlined_functions_keep_their_own_names(architecture: str) -> None:
    text = """#include "parts.cuh"
__device__ float twice(float x) { return more(x) * x; }
__global__ void k(float* x) {
  *x = twice(*x);
}
"""
    source = Source("k.cu", text, (("parts.cuh", "__device__ float more(float x) {\n  return __expf(x) + 1.f;\n}\n"),))
    (kernel,) = parse(compile_source(source, architecture).ptx).functions.values()
    found: list[Any] = [(i.opcode, i.place) for i in kernel.body if isinstance(i, Instruction)]
    call = Place("/k.cu", 4)
    assert ("st", call) in found
    assert ("ex2", Place("/parts.cuh", 2, Place("/k.cu", 2, call))) in found
