"""The numpy machine, feature by feature, on small PTX kernels whose outputs, counts and faults are known beforehand."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import perflab as pl
from perflab.emulator.faults import Fault, FaultLog
from perflab.emulator.machine import run
from perflab.emulator.memory import READ, WRITTEN, Arena
from perflab.emulator.operations import Unsupported
from perflab.emulator.program import program
from perflab.emulator.tallies import IDEAL, LANES, REQUESTS, UNITS, Job, Tally

KERNELS = Path(__file__).parents[2] / "kernels"
REGISTERS = """.reg .pred %p<10>; .reg .b16 %h<10>; .reg .b32 %r<40>; .reg .f32 %f<20>; .reg .b64 %d<40>; .reg .f64 %g<10>;
"""


@dataclass
class Ran:
    """What a launch left: arrays by name, counts, faults."""

    arrays: dict[str, np.ndarray]
    tally: Tally
    faults: tuple[Fault, ...]
    arena: Arena
    sites: dict[str, int]  # text of an instruction -> its site

    @property
    def kinds(self) -> list[str]:
        return [fault.kind for fault in self.faults]

    def row(self, text: str) -> list[int]:
        """Counts of the first instruction whose text begins so."""
        site = next(site for key, site in self.sites.items() if key.startswith(text))
        return self.tally.sites[site].tolist()

    @property
    def warp_instructions(self) -> int:
        return int(self.tally.block_warps.sum())


def launch(body: str, *, grid: int | tuple[int, int, int] = 1, block: int | tuple[int, int, int] = 32, module: str = "",
           variables: dict[str, bytes] | None = None, blank: tuple[str, ...] = (), **more: object) -> Ran:
    """Run `body` as a kernel with pointer parameters p0, p1 … for the arrays given by name, in %d30, %d31 … already.

    Integers among `more` named v0, v1 … become 32-bit parameters in %r30 …; the rest goes to the Job.
    """
    arrays = {name: value for name, value in more.items() if isinstance(value, np.ndarray)}
    scalars = {name: value for name, value in more.items() if name[0] == "v" and isinstance(value, int)}
    options = {name: value for name, value in more.items() if name not in arrays and name not in scalars}
    parameters = [f".param .u64 p{k}" for k in range(len(arrays))] + [f".param .u32 q{k}" for k in range(len(scalars))]
    loads = [f"ld.param.u64 %d{30 + k}, [p{k}];" for k in range(len(arrays))]
    loads += [f"ld.param.u32 %r{30 + k}, [q{k}];" for k in range(len(scalars))]
    head = f".version 8.0\n.target sm_90\n.address_size 64\n{module}\n.visible .entry k({', '.join(parameters)})\n"
    text = "\n".join([f"{head}{{\n{REGISTERS}", *loads, body, "}", ""])
    kernel = program(text, "k")
    inits = variables or {}
    memory = Arena({**{name: value.nbytes for name, value in arrays.items()}, **{name: len(v) for name, v in inits.items()}})
    for name, value in arrays.items():
        if name not in blank:
            memory.fill(name, value)
    for name, content in inits.items():
        memory.fill(name, content)
    packed = b"".join(struct.pack("<Q", memory.buffers[name].address) for name in arrays)
    packed += b"".join(struct.pack("<I", value & 0xFFFFFFFF) for value in scalars.values())
    shape = [(one, 1, 1) if isinstance(one, int) else one for one in (grid, block)]
    job = Job(kernel, shape[0], shape[1], packed, addresses={n: memory.buffers[n].address for n in inits}, **options)
    log = FaultLog()
    tally = run(job, memory, log)
    out = {name: memory.content(name).view(value.dtype).reshape(value.shape) for name, value in arrays.items()}
    sites = {one.text.strip(): site for site, one in reversed(list(enumerate(kernel.instructions)))}
    return Ran(out, tally, log.faults, memory, sites)


def zeros(count: int, dtype: type = np.uint32) -> np.ndarray:
    return np.zeros(count, dtype)


TID = "mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4; add.s64 %d2, %d30, %d1;"
"""%r1 = thread, %d2 = address of its element of the first array."""
GLOBAL = """mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.s32 %r1, %r2, %r3, %r1;
mul.wide.u32 %d1, %r1, 4; add.s64 %d2, %d30, %d1;"""
"""The same with the thread's index in the grid."""


# ---------------------------------------------------------------- values
def test_special_registers() -> None:
    names = ("tid.x", "tid.y", "tid.z", "ntid.y", "ctaid.x", "ctaid.z", "nctaid.z", "laneid", "warpid", "smid", "nsmid",
             "lanemask_eq", "lanemask_lt", "lanemask_le", "lanemask_gt", "lanemask_ge", "total_smem_size", "dynamic_smem_size")
    stores = "\n".join(f"mov.u32 %r9, %{name}; st.global.u32 [%d2+{4 * k}], %r9;" for k, name in enumerate(names))
    body = f"""mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; mad.lo.u32 %r4, %r3, 5, %r2;
    mad.lo.u32 %r4, %r4, 4, %r1;
    mov.u32 %r5, %ctaid.x; mov.u32 %r6, %ctaid.z; mad.lo.u32 %r5, %r6, 2, %r5; mad.lo.u32 %r4, %r5, 60, %r4;
    mul.wide.u32 %d1, %r4, {4 * len(names)}; add.s64 %d2, %d30, %d1; {stores} ret;"""
    out = launch(body, grid=(2, 1, 3), block=(4, 5, 3), x=zeros(360 * len(names)), dynamic_shared_bytes=96, sms=4).arrays["x"]
    got = dict(zip(names, out.reshape(6, 60, len(names)).transpose(2, 0, 1), strict=True))
    thread, block = np.arange(60), np.arange(6)
    lane = (thread % 32).astype(np.uint32)
    bit = np.uint32(1) << lane
    expected = {"tid.x": thread % 4, "tid.y": thread // 4 % 5, "tid.z": thread // 20, "ntid.y": 5,
                "ctaid.x": (block % 2)[:, None], "ctaid.z": (block // 2)[:, None], "nctaid.z": 3, "laneid": lane,
                "warpid": thread // 32, "smid": (block % 4)[:, None], "nsmid": 4,
                "lanemask_eq": bit, "lanemask_lt": bit - 1, "lanemask_le": bit | (bit - 1),
                "lanemask_gt": ~(bit | (bit - 1)), "lanemask_ge": ~(bit - 1), "total_smem_size": 96, "dynamic_smem_size": 96}
    for name, value in expected.items():
        assert (got[name] == value).all(), name


def test_clock_counts_instructions() -> None:
    ran = launch(f"mov.u32 %r5, %clock; add.u32 %r6, %r5, 1; bra $n;\n$n: mov.u32 %r7, %clock; sub.u32 %r8, %r7, %r5; {TID}"
                 "st.global.u32 [%d2], %r8; ret;", x=zeros(32))
    assert (ran.arrays["x"] > 0).all()


def test_registers_are_read_by_their_low_bits_and_extended() -> None:
    body = f"""{TID} mov.b32 %r5, 0xfedc8081; cvt.s32.s8 %r6, %r5; cvt.u32.u8 %r7, %r5; cvt.u16.u32 %h1, %r5;
    cvt.s32.s16 %r8, %h1;
    ld.global.s8 %r9, [%d31+1]; ld.global.u8 %h2, [%d31+1]; cvt.u32.u16 %r10, %h2; ld.global.s16 %d5, [%d31];
    cvt.u32.u64 %r11, %d5;
    shr.u64 %d6, %d5, 32; cvt.u32.u64 %r12, %d6;
    st.global.v4.u32 [%d30], {{%r6, %r7, %r8, %r9}}; st.global.v2.u32 [%d30+16], {{%r10, %r11}};
    st.global.u32 [%d30+24], %r12; ret;"""
    out = launch(body, block=1, x=zeros(8), y=np.array([0x80, 0xFF], np.uint8)).arrays["x"]
    assert out[:7].tolist() == [0xFFFFFF81, 0x81, 0xFFFF8081, 0xFFFFFFFF, 0xFF, 0xFFFFFF80, 0xFFFFFFFF]


def test_vector_loads_and_stores_and_local_memory() -> None:
    body = """.local .align 16 .b8 depot[64]; mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 16; add.s64 %d2, %d30, %d1;
    add.s64 %d3, %d31, %d1; mov.u64 %d4, depot; cvta.local.u64 %d5, %d4; ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%d2];
    st.local.v4.f32 [%d4+16], {%f4, %f3, %f2, %f1}; ld.local.f32 %f5, [%d4+20]; ld.f32 %f6, [%d5+28];
    ld.v2.f32 {%f7, %f8}, [%d5+16]; st.v4.f32 [%d3], {%f5, %f6, %f7, %f8}; ret;"""
    data = np.arange(256, dtype=np.float32)
    ran = launch(body, block=64, x=data, y=np.zeros(256, np.float32))
    rows = data.reshape(64, 4)
    assert (ran.arrays["y"].reshape(64, 4) == rows[:, [2, 0, 3, 2]]).all()
    assert not ran.faults
    assert ran.row("ld.global.v4.f32") == [2, 64, 32, 32]
    assert ran.row("st.v4.f32") == [2, 64, 32, 32]


def test_generic_addresses_may_lie_in_several_spaces_at_once() -> None:
    body = f""".shared .align 4 .b8 s[128]; {TID} mov.u32 %r2, s; shl.b32 %r3, %r1, 2; add.u32 %r2, %r2, %r3;
    add.u32 %r4, %r1, 100;
    st.shared.u32 [%r2], %r4; cvt.u64.u32 %d5, %r2; cvta.shared.u64 %d6, %d5; setp.lt.u32 %p1, %r1, 8;
    selp.b64 %d7, %d2, %d6, %p1;
    ld.u32 %r5, [%d7]; st.u32 [%d7], %r1; ld.shared.u32 %r6, [%r2]; mad.lo.u32 %r7, %r5, 1000, %r6; add.s64 %d8, %d31, %d1;
    st.global.u32 [%d8], %r7; ret;"""
    ran = launch(body, x=np.arange(32, dtype=np.uint32) + 500, y=zeros(32))
    lane = np.arange(32)
    assert (ran.arrays["y"] == np.where(lane < 8, (lane + 500) * 1000 + lane + 100, (lane + 100) * 1000 + lane)).all()
    assert (ran.arrays["x"] == np.where(lane < 8, lane, lane + 500)).all()
    site = ran.sites["ld.u32 %r5, [%d7];"]
    assert ran.tally.sites[site].tolist() == [1, 8, 1, 1]
    assert ran.tally.shared_sites[site].tolist() == [1, 24, 1, 1]


def test_variables_constants_and_structs_in_parameters() -> None:
    body = f"""{TID} mov.u64 %d4, table; mul.wide.u32 %d5, %r1, 4; add.s64 %d6, %d4, %d5; ld.const.u32 %r5, [%d6];
    ld.const.u32 %r6, [table+4]; mov.u64 %d7, total; atom.global.add.u32 %r7, [%d7], %r5; add.u32 %r8, %r5, %r6;
    st.global.u32 [%d2], %r8; ret;"""
    table = np.array([5, 6, 7, 8], np.uint32).tobytes()
    ran = launch(body, block=4, x=zeros(4), variables={"table": table, "total": np.uint32(100).tobytes()},
                 module=".const .align 4 .b8 table[16]; .global .align 4 .u32 total;")
    assert ran.arrays["x"].tolist() == [11, 12, 13, 14]
    assert not ran.faults


# ---------------------------------------------------------------- control
def test_divergence_comes_together_and_is_counted() -> None:
    """Lanes below 8 take a way of 2 instructions more; the branch parts one of the two warps, the second never takes it."""
    body = f"""{TID} mov.u32 %r5, 1; setp.ge.u32 %p1, %r1, 8; @%p1 bra $join;
    mul.lo.u32 %r5, %r1, 7; add.u32 %r5, %r5, 3;
    $join: st.global.u32 [%d2], %r5; ret;"""
    ran = launch(body, block=64, x=zeros(64))
    thread = np.arange(64)
    assert (ran.arrays["x"] == np.where(thread < 8, thread * 7 + 3, 1)).all()
    assert ran.row("@%p1 bra") == [2, 56, 1, 0]
    assert ran.tally.block_warps.tolist() == [2, 1, 2]
    assert ran.tally.block_lanes.tolist() == [64, 8, 64]
    assert ran.row("st.global.u32") == [2, 64, 8, 8]


def test_loops_of_different_length() -> None:
    """Lane i runs i % 4 + 1 rounds: the warp runs 4, with 32, 24, 16, 8 lanes."""
    body = f"""{TID} and.b32 %r5, %r1, 3; mov.u32 %r6, 0;
    $loop: add.u32 %r6, %r6, 10; setp.ne.u32 %p1, %r5, 0; add.u32 %r5, %r5, -1; @%p1 bra $loop;
    st.global.u32 [%d2], %r6; ret;"""
    ran = launch(body, x=zeros(32))
    assert (ran.arrays["x"] == (np.arange(32) % 4 + 1) * 10).all()
    assert ran.tally.block_warps.tolist() == [1, 4, 1]
    assert ran.tally.block_lanes.tolist() == [32, 80, 32]
    assert ran.row("@%p1 bra") == [3, 48, 3, 0]


def test_guards_count_the_lanes_that_take_part() -> None:
    body = f"""{TID} mov.u32 %r5, 9; setp.lt.u32 %p1, %r1, 40; @%p1 add.u32 %r5, %r5, %r1; @!%p1 st.global.u32 [%d2], %r5;
    @%p1 st.global.u32 [%d2], %r5; @%p1 exit; st.global.u32 [%d2+512], %r5; ret;"""
    ran = launch(body, block=96, x=zeros(256))
    thread = np.arange(96)
    assert (ran.arrays["x"][:96] == np.where(thread < 40, 9 + thread, 9)).all()
    assert (ran.arrays["x"][128:224] == np.where(thread < 40, 0, 9)).all()
    assert ran.row("@%p1 add") == [2, 40, 0, 0]
    assert ran.row("@!%p1 st") == [2, 56, 7, 7]
    assert ran.row("@%p1 st") == [2, 40, 5, 5]
    assert ran.row("st.global.u32 [%d2+512]") == [2, 56, 7, 7]


def test_blocks_that_are_no_whole_number_of_warps() -> None:
    ran = launch(f"{GLOBAL} st.global.u32 [%d2], %r1; ret;", grid=5, block=40, x=zeros(200))
    assert (ran.arrays["x"] == np.arange(200)).all()
    assert ran.row("st.global") == [10, 200, 25, 25]


def test_only_the_blocks_asked_for_run() -> None:
    ran = launch(f"{GLOBAL} add.u32 %r1, %r1, 1; st.global.u32 [%d2], %r1; ret;", grid=8, x=zeros(256), blocks=(1, 6))
    written = ran.arrays["x"].reshape(8, 32)
    assert (written != 0).any(axis=1).tolist() == [False, True, False, False, False, False, True, False]


def test_many_blocks_run_in_several_gangs() -> None:
    ran = launch(f"{GLOBAL} add.u32 %r1, %r1, 1; st.global.u32 [%d2], %r1; ret;", grid=700, block=64, x=zeros(700 * 64))
    assert (ran.arrays["x"] == np.arange(700 * 64) + 1).all()
    assert ran.row("st.global") == [1400, 44800, 5600, 5600]


def test_without_counting_nothing_is_counted_but_all_is_right() -> None:
    ran = launch(f"{TID} st.global.u32 [%d2], %r1; ret;", x=zeros(32), counting=False, checking=False)
    assert (ran.arrays["x"] == np.arange(32)).all()
    assert not ran.tally.sites.any()


# ---------------------------------------------------------------- atomics
@pytest.mark.parametrize("schedule", ["forward", "reversed", "random:3"])
def test_atomics_on_one_place_give_every_old_value_once(schedule: str) -> None:
    body = f"{GLOBAL} atom.global.add.u32 %r5, [%d31], 3; st.global.u32 [%d2], %r5; ret;"
    ran = launch(body, grid=3, block=96, x=zeros(288), y=np.array([10], np.uint32), schedule=schedule)
    assert sorted(ran.arrays["x"].tolist()) == list(range(10, 10 + 3 * 288, 3))
    assert ran.arrays["y"].tolist() == [10 + 3 * 288]
    if schedule == "forward":
        assert (np.diff(ran.arrays["x"].astype(np.int64)) == 3).all()
    if schedule == "reversed":
        assert ran.arrays["x"].reshape(9, 32)[::-1].reshape(-1).tolist() == list(range(10, 10 + 3 * 288, 3))
    assert not ran.faults


def test_atomics_in_lane_order_of_every_kind() -> None:
    ops = {"exch.b32": lambda old, v: v, "min.s32": min, "max.s32": max, "xor.b32": lambda old, v: old ^ v,
           "inc.u32": lambda old, v: 0 if old >= v else old + 1}
    for name, step in ops.items():
        body = (f"{TID} mul.lo.u32 %r4, %r1, 13; and.b32 %r4, %r4, 31; and.b32 %r6, %r1, 3; mul.wide.u32 %d5, %r6, 4; "
                f"add.s64 %d6, %d31, %d5; atom.global.{name} %r5, [%d6], %r4; st.global.u32 [%d2], %r5; ret;")
        ran = launch(body, x=zeros(32), y=np.full(4, 7, np.uint32))
        memory, olds = [7] * 4, []
        for lane in range(32):
            olds.append(memory[lane & 3])
            memory[lane & 3] = step(memory[lane & 3], lane * 13 & 31)
        assert ran.arrays["x"].tolist() == olds, name
        assert ran.arrays["y"].tolist() == memory, name


def test_float_atomics_add_in_order() -> None:
    values = np.random.default_rng(5).standard_normal(64).astype(np.float32)
    body = f"{TID} ld.global.f32 %f1, [%d2]; atom.global.add.f32 %f2, [%d31], %f1; ret;"
    ran = launch(body, block=64, x=values, y=np.zeros(1, np.float32))
    total = np.float32(0)
    for value in values:
        total = np.float32(total + value)
    assert ran.arrays["y"][0] == total


def test_compare_and_swap_and_reductions_in_shared_memory() -> None:
    body = f""".shared .align 4 .b8 s[8]; {TID} setp.eq.u32 %p1, %r1, 0; mov.u32 %r9, 0;
    @%p1 st.shared.v2.u32 [s], {{%r9, %r9}};
    bar.sync 0; red.shared.add.u32 [s], %r1; atom.shared.cas.b32 %r5, [s+4], %r1, 77; bar.sync 0; ld.shared.u32 %r6, [s];
    ld.shared.u32 %r7, [s+4]; add.u32 %r6, %r6, %r7; mad.lo.u32 %r6, %r5, 10000, %r6; st.global.u32 [%d2], %r6; ret;""".replace(
        "st.shared.v2.u32 [s], {%r9, %r9}", "st.shared.u32 [s], %r9; @%p1 st.shared.u32 [s+4], %r9")
    ran = launch(body, block=64, x=zeros(64))
    assert ran.arrays["x"].tolist() == [2016 + 77] + [770000 + 2016 + 77] * 63
    assert not ran.faults


# ---------------------------------------------------------------- warps
def test_shuffles_votes_and_reductions() -> None:
    body = f"""{TID} shfl.sync.bfly.b32 %r5|%p1, %r1, 16, 31, -1; vote.sync.ballot.b32 %r6, %p1, -1; setp.gt.u32 %p2, %r1, 40;
    vote.sync.ballot.b32 %r7, %p2, -1; redux.sync.add.s32 %r8, %r1, -1; match.any.sync.b32 %r9, 5, -1;
    mul.lo.u32 %r10, %r1, 20; cvt.u64.u32 %d5, %r10; add.s64 %d6, %d30, %d5; st.global.u32 [%d6], %r5;
    st.global.u32 [%d6+4], %r6;
    st.global.u32 [%d6+8], %r7; st.global.u32 [%d6+12], %r8; st.global.u32 [%d6+16], %r9; ret;"""
    ran = launch(body, block=64, x=zeros(320))
    thread = np.arange(64)
    out = ran.arrays["x"].reshape(64, 5).T
    assert (out[0] == (thread ^ 16)).all()
    assert (out[1] == 0xFFFFFFFF).all()
    assert (out[2] == np.where(thread < 32, 0, 0xFFFFFE00)).all()
    assert (out[3] == np.where(thread < 32, 496, 496 + 1024)).all()
    assert (out[4] == 0xFFFFFFFF).all()
    assert not ran.faults
    assert ran.row("shfl.sync") == [2, 64, 0, 0]


def test_collective_waits_for_lanes_that_come_another_way() -> None:
    """Lanes below 16 come to the shuffle from a later place of the text: the first to come are parked for them."""
    body = f"""{TID} mov.u32 %r5, 1; setp.lt.u32 %p1, %r1, 16; @%p1 bra $late;
    $meet: shfl.sync.idx.b32 %r6, %r5, 3, 31, -1; st.global.u32 [%d2], %r6; ret;
    $late: mov.u32 %r5, 40; add.u32 %r5, %r5, 2; bra $meet;"""
    ran = launch(body, x=zeros(32))
    assert (ran.arrays["x"] == 42).all()
    assert not ran.faults
    assert ran.row("shfl.sync") == [1, 32, 0, 0]


def test_parts_of_a_warp_shuffle_by_themselves() -> None:
    body = f"""{TID} and.b32 %r4, %r1, 16; mov.u32 %r5, 0xffff; shl.b32 %r6, %r5, %r4; setp.ne.u32 %p1, %r4, 0; @%p1 bra $other;
    shfl.sync.down.b32 %r7, %r1, 1, 31, %r6; bra $end;
    $other: shfl.sync.up.b32 %r7, %r1, 1, 0, %r6;
    $end: st.global.u32 [%d2], %r7; ret;"""
    ran = launch(body, x=zeros(32))
    assert ran.kinds == ["absent lane"] * 2  # lane 15 reads lane 16, and lane 16 reads lane 15
    assert ran.arrays["x"].tolist() == [*range(1, 16), 15, 16, *range(16, 31)]


def test_full_mask_shuffle_under_a_condition_names_who_is_missing() -> None:
    body = f"""{TID} mov.u32 %r5, %r1; setp.ge.u32 %p1, %r1, 24; @%p1 bra $join; shfl.sync.bfly.b32 %r5, %r1, 1, 31, -1;
    $join: st.global.u32 [%d2], %r5; shfl.sync.bfly.b32 %r6, %r5, 1, 31, -1; ret;"""
    ran = launch(body, block=64, x=zeros(64))
    (fault,) = ran.faults
    assert fault.kind == "absent lane" and "lanes 24-31" in fault.message and fault.threads == tuple(range(8))
    thread = np.arange(64)
    assert (ran.arrays["x"] == np.where(thread < 24, thread ^ 1, thread)).all()


def test_lanes_that_left_are_not_waited_for_but_not_read_either() -> None:
    body = f"""{TID} setp.ge.u32 %p1, %r1, 30; @%p1 exit; shfl.sync.bfly.b32 %r5, %r1, 2, 31, -1;
    st.global.u32 [%d2], %r5; ret;"""
    ran = launch(body, x=zeros(32))
    (fault,) = ran.faults
    assert fault.kind == "absent lane" and fault.threads == (28, 29) and fault.times == 2


def test_warp_barriers_of_one_mask_may_stand_in_two_places() -> None:
    body = f"""{TID} setp.lt.u32 %p1, %r1, 16; @%p1 bra $a; bar.warp.sync -1; bra $end;
    $a: bar.warp.sync -1;
    $end: st.global.u32 [%d2], %r1; ret;"""
    ran = launch(body, x=zeros(32))
    assert not ran.faults and (ran.arrays["x"] == np.arange(32)).all()


def test_activemask_is_a_warning() -> None:
    ran = launch(f"{TID} setp.ge.u32 %p1, %r1, 5; @%p1 exit; activemask.b32 %r5; st.global.u32 [%d2], %r5; ret;", x=zeros(32))
    assert ran.kinds == ["active mask"] and ran.faults[0].warning
    assert ran.arrays["x"][:5].tolist() == [31] * 5


# ---------------------------------------------------------------- barriers
REVERSE = f""".shared .align 4 .b8 s[1024]; {TID} mov.u32 %r2, s; shl.b32 %r3, %r1, 2; add.u32 %r4, %r2, %r3;
    st.shared.u32 [%r4], %r1;
BARRIER mov.u32 %r5, 1020; sub.u32 %r5, %r5, %r3; add.u32 %r5, %r2, %r5; ld.shared.u32 %r6, [%r5]; st.global.u32 [%d2], %r6;
    ret;"""


@pytest.mark.parametrize("schedule", ["forward", "reversed", "random:7"])
def test_barrier_publishes_shared_memory(schedule: str) -> None:
    ran = launch(REVERSE.replace("BARRIER", "bar.sync 0;"), block=256, x=zeros(256), schedule=schedule)
    assert not ran.faults and (ran.arrays["x"] == np.arange(256)[::-1]).all()


@pytest.mark.parametrize("schedule", ["forward", "reversed"])
def test_without_the_barrier_there_is_a_race(schedule: str) -> None:
    ran = launch(REVERSE.replace("BARRIER", "mov.u32 %r9, 0; bra $go;\n$go:"), block=256, x=zeros(256), schedule=schedule)
    assert "race" in ran.kinds and set(ran.kinds) <= {"race", "uninitialised"}
    race = next(fault for fault in ran.faults if fault.kind == "race")
    assert race.other is not None and "in shared memory" in race.message


def test_early_return_before_a_barrier_is_quiet() -> None:
    body = f"""{TID} setp.ge.u32 %p1, %r1, 70; @%p1 bra $out; bar.sync 0; st.global.u32 [%d2], %r1;
    $out: ret;"""
    ran = launch(body, block=128, x=zeros(128))
    assert not ran.faults
    assert ran.row("st.global") == [3, 70, 9, 9]


def test_threads_that_go_past_a_barrier_and_end() -> None:
    body = f"""{TID} setp.ge.u32 %p1, %r1, 64; @%p1 bra $past; bar.sync 0;
    $past: st.global.u32 [%d2], %r1; ret;"""
    ran = launch(body, block=128, x=zeros(128))
    (fault,) = ran.faults
    assert fault.kind == "barrier divergence" and "64 threads wait" in fault.message and "64 threads went past" in fault.message


def test_two_barriers_for_two_halves_of_a_warp() -> None:
    body = f"""{TID} and.b32 %r5, %r1, 1; setp.ne.u32 %p1, %r5, 0; @%p1 bra $odd; bar.sync 0; bra $end;
    $odd: bar.sync 0;
    $end: st.global.u32 [%d2], %r1; ret;"""
    ran = launch(body, block=64, x=zeros(64))
    (fault,) = ran.faults
    assert fault.kind == "barrier divergence" and fault.other is not None
    assert (ran.arrays["x"] == np.arange(64)).all()


def test_named_barriers_let_a_producer_run_ahead() -> None:
    """Warp 0 writes and arrives at barrier 1; warp 1 waits there and reads; warps 2 and 3 meet at barrier 2 alone."""
    body = f""".shared .align 4 .b8 s[128]; {TID} mov.u32 %r2, s; and.b32 %r3, %r1, 31; shl.b32 %r3, %r3, 2;
    add.u32 %r4, %r2, %r3;
    shr.u32 %r5, %r1, 5; setp.eq.u32 %p1, %r5, 0; @%p1 bra $produce; setp.eq.u32 %p2, %r5, 1; @%p2 bra $consume;
    bar.sync 2, 64; st.global.u32 [%d2], %r5; ret;
    $consume: bar.sync 1, 64; ld.shared.u32 %r6, [%r4]; st.global.u32 [%d2], %r6; ret;
    $produce: add.u32 %r7, %r1, 100; st.shared.u32 [%r4], %r7; bar.arrive 1, 64; st.global.u32 [%d2], %r1; ret;"""
    ran = launch(body, block=128, x=zeros(128))
    assert not ran.faults
    assert ran.arrays["x"].tolist() == [*range(32), *range(100, 132), *[2] * 32, *[3] * 32]


def test_barrier_reductions() -> None:
    body = f"""{TID} setp.lt.u32 %p1, %r1, 41; bar.red.popc.u32 %r5, 0, %p1; setp.ge.u32 %p2, %r1, 0;
    bar.red.and.pred %p3, 0, %p2;
    setp.gt.u32 %p2, %r1, 94; bar.red.or.pred %p4, 0, %p2; bar.red.and.pred %p5, 0, %p2; selp.u32 %r6, 100, 0, %p3;
    selp.u32 %r7, 1000, 0, %p4; selp.u32 %r8, 10000, 0, %p5; add.u32 %r5, %r5, %r6; add.u32 %r5, %r5, %r7;
    add.u32 %r5, %r5, %r8;
    st.global.u32 [%d2], %r5; ret;"""
    ran = launch(body, block=96, x=zeros(96))
    assert not ran.faults and (ran.arrays["x"] == 1141).all()


def test_a_barrier_that_waits_for_more_than_come_is_a_deadlock() -> None:
    ran = launch(f"{TID} bar.sync 1, 96; st.global.u32 [%d2], %r1; ret;", block=64, x=zeros(64))
    (fault,) = ran.faults
    assert fault.kind == "deadlock" and "bar.sync 1, 96" in fault.message
    assert not ran.arrays["x"].any()


# ---------------------------------------------------------------- blocks that talk
FLAG = """mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; setp.ne.u32 %p1, %r2, 0; @%p1 bra $out; setp.ne.u32 %p2, %r1, ROLE;
    @%p2 bra $wait;
mov.u32 %r3, 42; st.global.u32 [%d30], %r3; FENCE atom.global.exch.b32 %r4, [%d31], 1; bra $out;
$wait: ld.volatile.global.u32 %r5, [%d31]; setp.eq.u32 %p3, %r5, 0; @%p3 bra $wait; AFTER ld.global.u32 %r6, [%d30];
mul.wide.u32 %d5, %r1, 4; add.s64 %d6, %d32, %d5; st.global.u32 [%d6], %r6;
$out: ret;"""


@pytest.mark.parametrize("schedule", ["forward", "reversed", "random:2"])
@pytest.mark.parametrize("role", [0, 3])
def test_flag_between_blocks(schedule: str, role: int) -> None:
    body = FLAG.replace("ROLE", str(role)).replace("FENCE", "membar.gl;").replace("AFTER", "fence.acq_rel.gpu;")
    ran = launch(body, grid=4, block=64, x=zeros(1), y=zeros(1), z=zeros(4), schedule=schedule, resident_blocks=4)
    assert not ran.faults
    assert ran.arrays["z"].tolist() == [0 if block == role else 42 for block in range(4)]


@pytest.mark.parametrize("missing", ["FENCE", "AFTER"])
def test_flag_without_a_fence_is_a_race_between_blocks(missing: str) -> None:
    body = FLAG.replace("ROLE", "0").replace(missing, "").replace("FENCE", "membar.gl;").replace("AFTER", "membar.gl;")
    ran = launch(body, grid=2, block=64, x=zeros(1), y=zeros(1), z=zeros(2))
    (fault,) = ran.faults
    assert fault.kind == "race" and "between blocks" in fault.message and fault.other is not None


def test_more_blocks_than_fit_cannot_wait_for_the_last() -> None:
    body = FLAG.replace("ROLE", "5").replace("FENCE", "membar.gl;").replace("AFTER", "membar.gl;")
    ran = launch(body, grid=6, x=zeros(1), y=zeros(1), z=zeros(6), resident_blocks=5)
    (fault,) = ran.faults
    assert fault.kind == "deadlock" and "ld.volatile" in fault.message


def test_blocks_start_as_others_end() -> None:
    """A chain: block b waits for block b - 1, two blocks live at once."""
    body = """mov.u32 %r1, %ctaid.x;
    $wait: ld.acquire.gpu.global.u32 %r5, [%d30]; setp.ne.u32 %p1, %r5, %r1; @%p1 bra $wait; ld.global.u32 %r6, [%d31];
    mad.lo.u32 %r6, %r6, 3, %r1; st.global.u32 [%d31], %r6; add.u32 %r7, %r1, 1; st.release.gpu.global.u32 [%d30], %r7; ret;"""
    ran = launch(body, grid=9, block=1, x=zeros(1), y=zeros(1), resident_blocks=2)
    expected = 0
    for block in range(9):
        expected = expected * 3 + block
    assert not ran.faults and ran.arrays["y"].tolist() == [expected]


def test_a_lock_taken_by_every_lane_of_a_warp() -> None:
    """The classic deadlock of machines without independent thread scheduling: lanes spin while one of theirs holds the lock."""
    body = f"""{TID}
    $try: atom.global.cas.b32 %r5, [%d31], 0, 1; setp.ne.u32 %p1, %r5, 0; @%p1 bra $try;
    membar.gl; ld.global.u32 %r6, [%d32]; add.u32 %r6, %r6, %r1; st.global.u32 [%d32], %r6; membar.gl;
    atom.global.exch.b32 %r7, [%d31], 0; ret;"""
    ran = launch(body, x=zeros(32), y=zeros(1), z=zeros(1))
    assert ran.arrays["z"].tolist() == [496]
    assert not ran.faults


def test_an_endless_loop_is_given_up() -> None:
    ran = launch("mov.u32 %r1, 0;\n$l: add.u32 %r1, %r1, 1; bra $l;", instruction_limit=10_000, x=zeros(1))
    assert ran.kinds == ["deadlock"] and "10,000" in ran.faults[0].message


# ---------------------------------------------------------------- faults
def test_out_of_bounds_is_reported_dropped_and_the_run_goes_on() -> None:
    body = f"""{TID} add.s64 %d3, %d31, %d1; ld.global.u32 %r5, [%d2]; add.u32 %r5, %r5, 1;
    st.global.u32 [%d3], %r5; ret;"""
    ran = launch(body, x=zeros(28) + 5, y=zeros(30))
    load, store = sorted(ran.faults, key=lambda fault: fault.instruction)
    assert load.kind == store.kind == "out of bounds"
    assert (load.threads, load.times) == ((28, 29, 30, 31), 4) and (store.threads, store.times) == ((30, 31), 2)
    assert "load of 4 bytes" in load.message and "x (112 B)" in load.message and "4 lanes" in load.message
    assert "store of 4 bytes" in store.message and "after the end of y (120 B)" in store.message
    assert ran.arrays["y"].tolist() == [6] * 28 + [1] * 2


def test_null_and_wild_pointers() -> None:
    body = """mov.u64 %d1, 0; ld.global.u32 %r1, [%d1];
    ld.u32 %r2, [%d1+16]; mov.u64 %d2, -8;
    st.global.u32 [%d2], %r1; ret;"""
    ran = launch(body, block=1, x=zeros(1))
    assert ran.kinds == ["out of bounds"] * 3


def test_one_line_is_one_cause() -> None:
    body = f"{TID} ld.global.u32 %r5, [%d2+128]; ld.global.u32 %r6, [%d2+256]; ret;"
    (fault,) = launch(body, x=zeros(32)).faults
    assert fault.kind == "out of bounds" and fault.times == 64 and fault.instruction.startswith("ld.global.u32 %r5")


def test_misaligned() -> None:
    body = f"{TID} ld.global.v2.u32 {{%r5, %r6}}, [%d2]; ret;"
    (fault,) = launch(body, x=zeros(64)).faults
    assert fault.kind == "misaligned" and fault.times == 16 and fault.threads[:2] == (1, 3)


def test_beyond_shared_memory() -> None:
    body = f""".shared .align 4 .b8 s[100]; {TID} mov.u32 %r2, s; cvt.u32.u64 %r3, %d1; add.u32 %r4, %r2, %r3;
    st.shared.u32 [%r4], %r1; ret;"""
    (fault,) = launch(body, x=zeros(1)).faults
    assert fault.kind == "out of bounds" and "byte 100 of the block's 100 B of shared memory" in fault.message
    assert fault.threads == tuple(range(25, 32)) and fault.times == 7


def test_beyond_local_memory() -> None:
    body = f".local .align 4 .b8 d[16]; {TID} mov.u64 %d4, d; add.s64 %d5, %d4, %d1; st.local.u32 [%d5], %r1; ret;"
    (fault,) = launch(body, x=zeros(1)).faults
    assert fault.kind == "out of bounds" and "thread's 16 B of local memory" in fault.message and fault.times == 28


def test_uninitialised_global_and_shared() -> None:
    body = f""".shared .align 4 .b8 s[128]; {TID} ld.global.u32 %r5, [%d2]; mov.u32 %r2, s; cvt.u32.u64 %r3, %d1;
    add.u32 %r4, %r2, %r3;
    setp.lt.u32 %p1, %r1, 10; @%p1 st.shared.u32 [%r4], %r5; ld.shared.u32 %r6, [%r4]; ret;"""
    ran = launch(body, x=zeros(32), blank=("x",))
    assert ran.kinds == ["uninitialised"] * 2
    assert sorted(fault.times for fault in ran.faults) == [22, 32]
    assert not launch(body, x=zeros(32), blank=("x",), checking=False).faults


def test_shared_memory_of_the_next_block_is_new() -> None:
    body = f""".shared .align 4 .b8 s[128]; {TID} mov.u32 %r2, s; cvt.u32.u64 %r3, %d1; add.u32 %r4, %r2, %r3;
    mov.u32 %r7, %ctaid.x;
    setp.ne.u32 %p1, %r7, 0; @%p1 bra $read; st.shared.u32 [%r4], %r1;
    $read: ld.shared.u32 %r6, [%r4]; ret;"""
    ran = launch(body, x=zeros(1), grid=600)
    assert ran.kinds == ["uninitialised"] and ran.faults[0].block == 1 and ran.faults[0].times == 599 * 32


def test_undefined_registers_are_followed_through_moves() -> None:
    body = f"""{TID} setp.lt.u32 %p1, %r1, 4; @%p1 mov.u32 %r5, 7; mov.b32 %r6, %r5; selp.b32 %r7, %r6, %r1, %p1;
    mov.b32 %r8, %r6; st.global.u32 [%d2], %r7;
    add.u32 %r9, %r8, 1; ret;"""
    ran = launch(body, x=zeros(32))
    assert ran.kinds == ["uninitialised"] * 2
    assert sorted(fault.instruction.split()[0] for fault in ran.faults) == ["add.u32", "st.global.u32"]


def test_undefined_registers_written_on_every_used_path_are_quiet() -> None:
    body = f"""{TID} setp.lt.u32 %p1, %r1, 4; @%p1 mov.u32 %r5, 7; @!%p1 mov.u32 %r5, 8; st.global.u32 [%d2], %r5; ret;"""
    ran = launch(body, x=zeros(32))
    assert not ran.faults and ran.arrays["x"].tolist() == [7] * 4 + [8] * 28


def test_read_only_loads_of_what_is_written_in_either_order() -> None:
    body = f"""{TID} setp.lt.u32 %p1, %r1, 8; @%p1 ld.global.nc.u32 %r5, [%d2]; st.global.u32 [%d2], %r1;
    setp.ge.u32 %p1, %r1, 30;
    @%p1 ld.global.nc.u32 %r5, [%d2]; ret;"""
    ran = launch(body, x=zeros(32))
    assert ran.kinds == ["read-only load"] * 2 and sorted(fault.times for fault in ran.faults) == [2, 8]


def test_two_lanes_write_one_place() -> None:
    body = f"{TID} shr.u32 %r5, %r1, 1; mul.wide.u32 %d5, %r5, 4; add.s64 %d6, %d30, %d5; st.global.u32 [%d6], 3; ret;".replace(
        "[%d6], 3", "[%d6], %r5")
    (fault,) = launch(body, x=zeros(16)).faults
    assert fault.kind == "two writers" and fault.times == 16 and "one instruction" in fault.message


def test_two_blocks_write_one_place_and_read_what_others_write() -> None:
    (fault,) = launch(f"{TID} st.global.u32 [%d2], %r1; ret;", grid=3, x=zeros(32)).faults
    assert fault.kind == "two writers" and "between blocks" in fault.message
    body = f"{GLOBAL} st.global.u32 [%d2], %r1; ld.global.u32 %r6, [%d30]; ret;"
    ran = launch(body, grid=2, x=zeros(64))
    assert ran.kinds == ["race"] and ran.faults[0].times == 63  # all but thread 0 itself


def test_warp_synchronous_code_needs_a_warp_barrier() -> None:
    body = f""".shared .align 4 .b8 s[128]; {TID} mov.u32 %r2, s; cvt.u32.u64 %r3, %d1; add.u32 %r4, %r2, %r3;
    xor.b32 %r5, %r3, 4;
    add.u32 %r5, %r2, %r5; st.shared.u32 [%r4], %r1; SYNC ld.shared.u32 %r6, [%r5]; st.global.u32 [%d2], %r6; ret;"""
    ran = launch(body.replace("SYNC", "bar.warp.sync -1;"), x=zeros(32))
    assert not ran.faults and (ran.arrays["x"] == np.arange(32) ^ 1).all()
    ran = launch(body.replace("SYNC", "shfl.sync.bfly.b32 %r7, %r1, 1, 31, -1;"), x=zeros(32))
    assert ran.kinds == ["race"] and "__syncwarp" in ran.faults[0].message


def test_small_accesses_beside_each_other_are_no_race() -> None:
    body = """mov.u32 %r1, %tid.x; cvt.u64.u32 %d1, %r1; add.s64 %d2, %d30, %d1; ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%d31];
    st.global.u8 [%d2], %r1; ld.global.u8 %r4, [%d2]; ret;"""
    ran = launch(body, block=64, x=zeros(64, np.uint8), y=zeros(4))
    assert not ran.faults
    body = body.replace("ld.global.u8 %r4, [%d2]", "ld.global.u32 %r4, [%d30]")
    assert "race" in launch(body, block=64, x=zeros(64, np.uint8), y=zeros(4)).kinds


def test_trap_and_assert_end_the_run() -> None:
    ran = launch(f"{TID} st.global.u32 [%d2], 1; setp.eq.u32 %p1, %r1, 9; @%p1 trap; st.global.u32 [%d2], 2; ret;".replace(
        "[%d2], 1", "[%d2], %r1").replace("[%d2], 2", "[%d2], %r2"), x=zeros(32))
    assert ran.kinds == ["trap"] and ran.faults[0].threads == (9,)
    assert (ran.arrays["x"] == np.arange(32)).all()


# ---------------------------------------------------------------- calls
PRINT = """.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.global .align 1 .b8 text[24] = {116, 32, 37, 100, 32, 37, 46, 50, 102, 32, 37, 115, 32, 37, 120, 37, 37, 10, 0, 0, 0, 0, 0, 0};
.global .align 1 .b8 word[4] = {97, 98, 99, 0};"""


def test_printf() -> None:
    body = f"""{TID} .local .align 8 .b8 depot[32]; mov.u64 %d4, depot; cvta.local.u64 %d5, %d4; setp.gt.u32 %p1, %r1, 1;
    @%p1 bra $out;
    st.local.u32 [%d4], %r1; cvt.rn.f64.u32 %g1, %r1; st.local.f64 [%d4+8], %g1; mov.u64 %d6, word; cvta.global.u64 %d7, %d6;
    st.local.u64 [%d4+16], %d7; st.local.u32 [%d4+24], 255; mov.u64 %d8, text; cvta.global.u64 %d9, %d8;
    {{ .param .b64 p0; st.param.b64 [p0+0], %d9; .param .b64 p1; st.param.b64 [p1+0], %d5; .param .b32 back;
    call.uni (back), vprintf, (p0, p1); ld.param.b32 %r9, [back+0]; }}
    $out: ret;""".replace("[%d4+24], 255", "[%d4+24], %r30")
    text = b"t %d %.2f %s %x%%\n".ljust(24, b"\0")
    ran = launch(body, x=zeros(1), v0=255, module=PRINT, variables={"text": text, "word": b"abc\0"})
    assert ran.tally.printed == ["t 0 0.00 abc ff%\n", "t 1 1.00 abc ff%\n"]


def test_unknown_functions_are_unsupported() -> None:
    module = ".extern .func (.param .b64 r) malloc (.param .b64 n);"
    body = "{ .param .b64 n; mov.u64 %d1, 8; st.param.b64 [n+0], %d1; .param .b64 r; call.uni (r), malloc, (n); } ret;"
    with pytest.raises(Unsupported, match="malloc"):
        launch(body, x=zeros(1), module=module)


# ---------------------------------------------------------------- counts
def test_sectors_requests_and_ideal() -> None:
    """Stride 3 floats: 12 sectors a warp; the 128 B of one warp and the 124 B of the other's 31 lanes would fit into 4 each."""
    body = """mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 12; add.s64 %d2, %d30, %d1; ld.global.f32 %f1, [%d2]; ret;"""
    assert launch(body, block=63, x=zeros(64 * 3)).row("ld.global") == [2, 63, 24, 8]
    unordered = """mov.u32 %r1, %tid.x; xor.b32 %r1, %r1, 21; mul.wide.u32 %d1, %r1, 4; add.s64 %d2, %d30, %d1;
    ld.global.f32 %f1, [%d2+16]; ret;"""
    assert launch(unordered, x=zeros(64)).row("ld.global") == [1, 32, 5, 4]


def test_unique_bytes_are_in_the_flags() -> None:
    """x is only read; y is written, and read after that: that is no traffic that must come from outside."""
    body = f"{TID} ld.global.u32 %r5, [%d2]; st.global.u32 [%d31], %r5; ld.global.u32 %r6, [%d31]; ret;"
    ran = launch(body, block=1, checking=False, x=zeros(64), y=zeros(4))
    bits = {name: [int((ran.arena.known(name) & bit > 0).sum()) for bit in (READ, WRITTEN)] for name in ("x", "y")}
    assert bits == {"x": [4, 0], "y": [0, 4]}


def test_shared_wavefronts_of_a_stride() -> None:
    for stride, ways in ((4, 1), (8, 2), (64, 16), (128, 32), (132, 1), (0, 1)):
        body = f""".shared .align 4 .b8 s[16384]; mov.u32 %r1, %tid.x; mul.lo.u32 %r2, %r1, {stride}; mov.u32 %r3, s;
        add.u32 %r3, %r3, %r2; st.shared.u32 [%r3], %r1; ld.shared.u32 %r4, [%r3]; ret;"""
        ran = launch(body, block=64, x=zeros(1), checking=False)
        assert ran.row("ld.shared.u32") == [2, 64, 2 * ways, 2], stride


def test_columns_have_the_names_that_the_table_gives() -> None:
    assert (REQUESTS, LANES, UNITS, IDEAL) == (0, 1, 2, 3)


# ---------------------------------------------------------------- whole kernels
def attention(q: np.ndarray, kv: np.ndarray, visible: np.ndarray, latent: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Tree-masked attention and log-sum-exp in float64: q [nodes, heads, width], kv [keys, width], visible [nodes, nodes]."""
    nodes, keys = len(q), len(kv)
    seen = np.ones((nodes, keys), bool)
    seen[:, keys - nodes :] = visible != 0
    score = np.where(seen[:, None], np.einsum("ihd,jd->ihj", q.astype(float), kv.astype(float)) * scale, -np.inf)
    largest = score.max(axis=2, keepdims=True)
    weight = np.exp(score - largest)
    total = weight.sum(axis=2, keepdims=True)
    return weight / total @ kv[:, :latent].astype(float), (largest + np.log(total))[..., 0]


@pytest.mark.parametrize("schedule", ["forward", "random:5"])
@pytest.mark.parametrize(("source", "name"), [("00_naive.cu", "naive<64, 16>"), ("01_head_tile.cu", "head_tile<64, 16, 4, 8>")])
def test_attention_equals_float64(source: str, name: str, schedule: str) -> None:
    latent, rope, nodes, heads, prefix = 64, 16, 3, 6, 29
    random = np.random.default_rng(8)
    q = random.standard_normal((nodes, heads, latent + rope), dtype=np.float32)
    kv = random.standard_normal((prefix + nodes, latent + rope), dtype=np.float32)
    visible = np.tril(np.ones((nodes, nodes), np.uint8))
    out, lse = np.zeros((nodes, heads, latent), np.float32), np.zeros((nodes, heads), np.float32)
    scale, keys, width = 80**-0.5, prefix + nodes, latent + rope
    tile = "tile" in source
    shared = 4 * (4 * width + 8 * width + 4 * latent + 4 * 8 + 3 * 4) if tile else 4 * keys
    grid = (2, nodes, 1) if tile else (heads, nodes, 1)
    kernel = pl.load(KERNELS / "verify_attention" / source, name)
    counts = kernel.emulate(grid, 256, [q, kv, visible, out, lse, heads, nodes, prefix, scale], shared, "H200",
                            machine="numpy", schedule=schedule, outputs=(3, 4))
    expected, expected_lse = attention(q, kv, visible, latent, scale)
    assert np.abs(out - expected).max() < 1e-6 and np.abs(lse - expected_lse).max() < 1e-5
    assert not [str(fault) for fault in counts.faults]
