"""Counts from hand-made tallies: what each column means, by line and inlined, launches together, and what a person reads."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from perflab.emulator.amounts import Amounts, scaled, total
from perflab.emulator.counts import Counts, counts_of, together
from perflab.emulator.faults import Fault
from perflab.emulator.memory import READ, WRITTEN, Arena
from perflab.emulator.operations import Memory, Operation
from perflab.emulator.program import Block, Program
from perflab.emulator.ptx import Address, Guard, Instruction, Place, Register
from perflab.emulator.tallies import IDEAL, LANES, REQUESTS, UNITS, Tally

GUARD = Guard("%p1", False)
HELPER = Place("/helper.cuh", 3, Place("/k.cu", 7))  # a function of a header, inlined at line 7


def instruction(text: str, place: Place, guard: Guard | None = None) -> Instruction:
    opcode, *modifiers = text.split(".")
    return Instruction(opcode, tuple(modifiers), (), guard, place, text)


def memory(space: str, elements: int = 1) -> Memory:
    return Memory(space, Address(Register("%rd1")), "f32", 4, elements)


LINE = {n: Place("/k.cu", n) for n in range(1, 9)}
OPERATIONS = (
    Operation(instruction("ld.global.v4.f32", LINE[5]), "load", "load", memory=memory("global", 4)),
    Operation(instruction("fma.rn.f32", HELPER), "compute", "float32", flops=2, flop_kind="fma", flop_type="f32"),
    Operation(instruction("fma.rn.f32", HELPER, GUARD), "compute", "float32", flops=2, flop_kind="fma", flop_type="f32"),
    Operation(instruction("bra", LINE[8], GUARD), "branch", "branch"),
    Operation(instruction("st.shared.f32", LINE[8], GUARD), "store", "store", memory=memory("shared")),
    Operation(instruction("ld.f32", LINE[8]), "load", "load", memory=memory("generic")),
    Operation(instruction("atom.global.add.f32", LINE[8]), "atomic", "atomic", memory=memory("global")),
    Operation(instruction("bar.sync", LINE[8]), "barrier", "barrier"),
)
PROGRAM = Program(
    "k", "sm_90", tuple(o.instruction for o in OPERATIONS), {}, (Block(0, 4, frozenset()), Block(4, 8, frozenset())), {}, (),
    {}, 0, 0, {}, 0, (), frozenset(), False, None,
)


def tally() -> Tally:
    """Block 0: 10 warps, all lanes. Block 1: 4 warps of 20 lanes."""
    found = Tally.empty(PROGRAM)
    found.block_warps[:] = 10, 4
    found.block_lanes[:] = 320, 80
    columns = [REQUESTS, LANES, UNITS, IDEAL]
    found.sites[0, columns] = 10, 320, 200, 160  # 5,120 B
    found.sites[2, columns] = 9, 100, 0, 0  # the guard was true for 100 lanes
    found.sites[3, columns] = 10, 160, 3, 0  # 3 of 10 went two ways
    found.sites[4, columns] = 4, 60, 12, 4
    found.sites[5, columns] = 4, 30, 8, 4  # generic: 30 lanes global, 40 shared, 10 local
    found.shared_sites[5, columns] = 2, 40, 5, 2
    found.sites[6, columns] = 4, 80, 16, 12
    found.printed.append("hello\n")
    return found


def counted(**more) -> Counts:
    arena = Arena({"x": 1000, "table": 64}, frozenset({"table"}))
    arena.known("x")[:600] |= READ
    arena.known("x")[400:700] |= WRITTEN
    arena.known("table")[:] |= READ  # constant memory is not global traffic
    return counts_of(PROGRAM, OPERATIONS, tally(), arena, name="k.cu k", **({"blocks": 8} | more))


def test_instructions_count_once_whatever_their_guard():
    c = counted()
    assert (c.warp_instructions, c.thread_instructions) == (4 * 10 + 4 * 4, 4 * 320 + 4 * 80)
    assert c.by_class == {"float32": 20, "load": 14, "branch": 10, "store": 4, "atomic": 4, "barrier": 4}
    assert c.thread_by_class["load"] == 320 + 80
    assert c.average_active_lanes == pytest.approx(1600 / 56)


def test_flops_count_the_lanes_whose_guard_was_true():
    assert counted().flops == 2 * 320 + 2 * 100
    assert counted().flops_by == {("fma", "f32"): 840}


def test_global_memory():
    c = counted()
    assert (c.global_load_bytes, c.global_load_requests, c.global_load_sectors) == (320 * 16 + 30 * 4, 14, 208)
    assert c.global_load_ideal_sectors == 164
    assert (c.global_store_bytes, c.global_store_requests, c.global_store_sectors) == (0, 0, 0)
    assert (c.global_atomic_bytes, c.global_atomic_requests, c.global_atomic_sectors, c.atomics) == (320, 4, 16, 80)
    assert (c.asked_bytes, c.sector_bytes, c.excess_sectors) == (5240 + 320, 32 * 224, 44 + 4)


def test_shared_and_local_memory():
    c = counted()
    assert (c.shared_store_bytes, c.shared_store_wavefronts, c.shared_store_conflicts) == (240, 12, 8)
    assert (c.shared_load_bytes, c.shared_load_wavefronts, c.shared_load_conflicts) == (160, 5, 3)
    assert (c.shared_wavefronts, c.shared_conflicts) == (17, 11)
    assert (c.local_load_bytes, c.local_store_bytes) == (40, 0)


def test_unique_bytes_leave_constants_out():
    c = counted()
    assert (c.unique_load_bytes, c.unique_store_bytes, c.unique_bytes) == (600, 300, 900)


def test_divergence_and_barriers():
    c = counted()
    assert (c.branches, c.branches_split, c.barriers) == (10, 3, 4)


def test_by_line_leaf_and_outer():
    c = counted()
    assert list(c.by_line) == [("helper.cuh", 3), ("k.cu", 5), ("k.cu", 8)]
    assert list(c.by_outer_line) == [("k.cu", 5), ("k.cu", 7), ("k.cu", 8)]
    assert c.by_line[5] == c.by_line["k.cu", 5] and c.by_line.get(6) is None
    assert c.by_line["helper.cuh", 3].flops == c.by_outer_line["k.cu", 7].flops == 840
    assert c.by_line.at(5).global_load_bytes == 5120 and c.by_line.at(6) == Amounts()
    for lines in (c.by_line, c.by_outer_line):
        assert total(lines.values()) == c.amounts


def test_a_sample_is_scaled_and_says_so():
    c = counted(blocks=80, blocks_run=8, errors={"flops": 0.031})
    assert c.flops == 8400 and c.by_line["helper.cuh", 3].flops == 8400 and c.share == 0.1 and not c.exact
    assert c.unique_bytes == 900  # a lower bound
    assert "8 of 80 blocks run" in str(c) and "3.1 %" in str(c) and "at least" in str(c)


def test_launches_together_are_sums_with_parts():
    one, other = counted(), counted(blocks=80, blocks_run=8, errors={"flops": 0.1})
    both = together("study/version", [one, other])
    assert both.flops == 840 + 8400 and both.unique_bytes == 1800 and both.parts == (one, other)
    assert both.errors["flops"] == pytest.approx(840 / 9240)
    assert both.by_line["k.cu", 5].global_load_bytes == 11 * 5120
    assert (both.blocks, both.blocks_run) == (88, 16) and "16 of 88 blocks run, 2 launches" in str(both.origin)
    assert together("x", [one]).parts == () and together("x", [one]).name == "x"


def test_faults_stand_below_with_plain_file_names():
    fault = Fault("race", "two threads", HELPER, 3, (1, 2), "st.shared", other=LINE[8], times=5)
    c = counted(faults=[fault])
    assert not c.passed and (c.faults[0].file, c.faults[0].line, c.faults[0].other.file) == ("helper.cuh", 3, "k.cu")
    assert "fault: helper.cuh:3: race: two threads; the other access: k.cu:8 (5 times)" in str(c)
    assert counted(faults=[Fault("active mask", "", HELPER, 0, (), "")]).passed


def test_json_keeps_everything():
    fault = Fault("race", "two threads", HELPER, 3, (1, 2), "st.shared", other=LINE[8], times=5)
    c = together("v", [counted(faults=[fault], warnings=["spills"]), counted()])
    assert Counts.from_dict(json.loads(json.dumps(c.to_dict()))) == c


def test_the_table_says_what_was_counted_and_how():
    text = str(counted())
    for words in ("counted (PTX for sm_90, all 8 blocks run)", "1.27 times the 164", "8 by bank conflicts", "3 split a warp",
                  "28.6 active lanes"):
        assert words in text, text
    assert "<table" in counted()._repr_mimebundle_()["text/html"]


def test_intensity_by_how_bytes_are_counted():
    assert counted().intensities == {"asked": 840 / 5560, "sectors": 840 / 7168, "unique": 840 / 900}


def test_the_listing_has_counts_beside_lines():
    text = "\n".join(f"line {n};" for n in range(1, 9))
    c = counted(faults=[Fault("race", "two threads", LINE[8], 0, (0,), "")])
    listing = c.listing(text, "k.cu", outer=True)
    rows = str(listing).splitlines()
    head = ["instr.", "lanes", "FLOP", "bytes", "sect/req", "wavefr.", "confl.", "split", "line"]
    assert rows[1].split() == head
    first = min([*listing.beside, 8]) - 2  # what stands above has no counts
    assert rows[2].endswith(f"line {first};") and len(rows) == 2 + 9 - first + 2
    assert rows[7 - first].split() == ["10", "32", "5,120", "20", "5", "line", "5;"]
    assert rows[9 - first].split() == ["20", "32", "840", "7", "line", "7;"]
    assert "8 ! line 8;" in rows[10 - first] and rows[11 - first] == "! line 8: race" and rows[-1].startswith("origin: counted")
    leaf = c.listing(text, "k.cu")
    assert 7 not in leaf.beside and "FLOP" not in leaf.columns  # all of it stands in the header
    assert "background" in listing.html() and listing.markdown().startswith("**k.cu**\n\n```text")


def test_nothing_executed_is_no_division_by_zero():
    c = counts_of(PROGRAM, OPERATIONS, Tally.empty(PROGRAM), Arena({}), blocks=1)
    assert c.flops == 0 and math.isnan(c.average_active_lanes) and not c.by_line and "warp instructions" in str(c)


def test_amounts_add_and_scale():
    one = Amounts(warp_instructions=3, by_class={"move": 3}, flops_by={("fma", "f32"): 10})
    two = total([one, one])
    assert two == scaled(one, 2) and two.flops == 20 and two.by_class == {"move": 6}
    assert total([]) == Amounts()
    assert scaled(Amounts(barriers=3), 0.5).barriers == 2  # to even


def test_counts_are_numbers_not_numpy():
    assert not isinstance(counted().flops, np.generic) and json.dumps(counted().to_dict())
