"""Register banks: reads counted by hand on short listings, clocks on short loops, and the limits of what is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.errors import PerflabError
from perflab.kernel import load
from perflab.register_banks import Instruction, bank_reads, clocks_of, innermost_loops

AXPY = "__global__ void axpy(float* y, const float* x, float a) { y[threadIdx.x] = a * x[threadIdx.x] + y[threadIdx.x]; }"


def code(*lines: str) -> list[Instruction]:
    """Instructions out of 'FFMA R1, R2, R3, R4'."""
    pairs = (line.split(" ", 1) for line in lines)
    return [Instruction(opcode, tuple(operands.split(", ")), ("x.cu", 1)) for opcode, operands in pairs]


@pytest.mark.parametrize("lines, reads", [
    (["FFMA R1, R2, R4, R6"], [(3, 0)]),
    (["FFMA R1, R2, R5, R7"], [(1, 2)]),
    (["FFMA R1, R2, R2, R2"], [(1, 0)]),  # one register, read once
    (["FFMA R1, R2.reuse, R4, R6", "FFMA R3, R2, R5, R7"], [(3, 0), (0, 2)]),
    (["FFMA R1, R2.reuse, R4, R6", "FFMA R3, R5, R2, R7"], [(3, 0), (1, 2)]),  # kept for its own place only
    (["FFMA R1, R2, R4, R6", "FFMA R3, R2, R5, R7"], [(3, 0), (1, 2)]),  # not marked, not kept
    (["FFMA R1, R2.reuse, R4, R6", "LDS.128 R8, [R2]", "FFMA R3, R2, R5, R7"], [(3, 0), (0, 0), (1, 2)]),  # for one instruction
    (["FMUL R1, R2, c[0x0][0x210]", "FADD R1, -R3, |R5|", "FADD R1, RZ, R5"], [(1, 0), (0, 2), (0, 1)]),
    (["ISETP P0, PT, R3, R5, PT", "FFMA R1, R2, UR4, R3"], [(0, 2), (1, 1)]),
])
def test_what_is_read(lines: list[str], reads: list[tuple[int, int]]) -> None:
    assert bank_reads(code(*(line.replace(".128", "") for line in lines))) == reads


@pytest.mark.parametrize("reads, slack, clocks", [
    ([(1, 1)] * 4, 0, 4),
    ([(2, 1)] * 4, 0, 8),  # every instruction two of one bank
    ([(2, 0), (0, 2)] * 2, 0, 8),
    ([(2, 0), (0, 2)] * 2, 1, 4),  # each bank has the other's clock to catch up in
    ([(2, 0), (1, 1)] * 2, 1, 6),  # three reads of one bank in two clocks
    ([(0, 0)] * 3, 1, 3),
])
def test_clocks_a_turn(reads: list[tuple[int, int]], slack: int, clocks: int) -> None:
    assert clocks_of(reads, slack) == clocks


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12), st.integers(0, 4))
def test_between_what_must_be_and_no_overlap_at_all(reads: list[tuple[int, int]], slack: int) -> None:
    least = max(len(reads), *(sum(one[bank] for one in reads) for bank in (0, 1)))
    most = sum(max(1, *one) for one in reads)
    assert least <= clocks_of(reads, slack) + slack + 1 and clocks_of(reads, slack) <= clocks_of(reads, 0) <= most


LISTING = """
.text.other:
.L_x_9:
        /*0000*/                   FFMA R1, R2, R3, R4 ;
        /*0010*/               @P0 BRA `(.L_x_9) ;
.text.mine:
\t//## File "/k.cu", line 7
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
\t//## File "/k.cu", line 8
        /*0010*/                   FADD R1, R2, R3 ;
.L_x_0:
\t//## File "/k.cu", line 9
        /*0020*/                   FFMA R1, R2.reuse, R3, R4 ;
        /*0030*/              @!P0 BRA `(.L_x_0) ;
        /*0040*/              @!P1 BRA `(.L_x_1) ;
        /*0050*/                   BRA `(.L_x_2) ;
.L_x_2:
        /*0060*/                   EXIT ;
"""


def test_innermost_loops_of_the_kernel_asked_for() -> None:
    (turn,) = innermost_loops(LISTING, "mine")
    assert turn == [Instruction("FFMA", ("R1", "R2.reuse", "R3", "R4"), ("k.cu", 9)),
                    Instruction("BRA", ("`(.L_x_0)",), ("k.cu", 9))]


def test_a_loop_of_a_real_kernel() -> None:
    chains = load("""__global__ void chains(float* x, float a, float b, int turns) {
        float one = x[threadIdx.x], two = x[threadIdx.x + 32];
        #pragma unroll 1
        for (int t = 0; t < turns; ++t)
            #pragma unroll
            for (int k = 0; k < 32; ++k) { one = fmaf(a, one, b); two = fmaf(a, two, b); }
        x[threadIdx.x] = one + two;
    }""")
    (loop,) = chains.register_banks("H200").loops
    assert loop.ffma == 64 <= loop.instructions <= loop.clocks and loop.place == "inline.cu:4-6"
    assert "FFMA a clock" in str(chains.register_banks("H200").table())
    assert not load(AXPY).register_banks("H200").loops


def test_only_where_it_was_measured() -> None:
    with pytest.raises(PerflabError, match="register file of sm_120 was not measured; known: sm_90"):
        load(AXPY).register_banks("RTX PRO 6000")
