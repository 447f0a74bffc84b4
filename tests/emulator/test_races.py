"""What orders two accesses, and what does not: each rule of the detector by itself."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from perflab.emulator.faults import Fault, FaultLog
from perflab.emulator.memory import GLOBAL_BASE
from perflab.emulator.ptx import Instruction, Place
from perflab.emulator.races import Access, Detector

FLAG = GLOBAL_BASE + 4096


def instruction(line: int, *modifiers: str) -> Instruction:
    return Instruction("st", modifiers, (), None, Place("k.cu", line), f"instruction {line}")


class Bench:
    """A detector over blocks of four warps; `write` and `read` stamp accesses as a machine would."""

    def __init__(self) -> None:
        self.log = FaultLog()
        program = SimpleNamespace(instructions=(*(instruction(line) for line in range(10)), instruction(10, "cta")))
        self.detector = Detector(self.log, program, warps_per_block=4)

    def access(self, block: int, thread: int, writes: bool, site: int, atomic: bool = False, epoch: int = 0) -> Access:
        clock = self.detector.clock(block, thread // 32)
        return Access(block, thread, epoch, clock, site, writes, atomic)

    def write(self, block: int, thread: int, site: int = 1, atomic: bool = False) -> Access:
        return self.access(block, thread, True, site, atomic)

    def read(self, block: int, thread: int, site: int = 2, atomic: bool = False) -> Access:
        return self.access(block, thread, False, site, atomic)

    def reported(self, earlier: Access, later: Access, space: str = "global") -> bool:
        return self.detector.conflict(space, "byte 4 of x (64 B)", earlier, later)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_one_thread_and_two_reads_are_fine(bench: Bench) -> None:
    assert not bench.reported(bench.write(0, 3), bench.read(0, 3))
    assert not bench.reported(bench.read(0, 3), bench.read(0, 4))
    assert not bench.log


def test_two_warps_without_a_barrier(bench: Bench) -> None:
    assert bench.reported(bench.write(2, 3), bench.read(2, 40), "shared")
    (fault,) = bench.log.faults
    assert (fault.kind, fault.line, fault.other, fault.block, fault.threads) == ("race", 2, Place("k.cu", 1), 2, (3, 40))
    assert "thread 40 reads what thread 3 wrote in shared memory" in fault.message
    assert "no barrier" in fault.message


def test_write_after_read_is_a_race_and_two_writes_are_two_writers(bench: Bench) -> None:
    assert bench.reported(bench.read(0, 3), bench.write(0, 40))
    assert bench.reported(bench.write(0, 3), bench.write(0, 40, site=4))
    assert [fault.kind for fault in bench.log.faults] == ["race", "two writers"]


def test_barrier_orders_before_and_after_but_not_within(bench: Bench) -> None:
    before = bench.write(0, 3)
    bench.detector.barrier(0, range(4))
    after = bench.write(0, 3)
    assert not bench.reported(before, bench.read(0, 100))
    assert bench.reported(after, bench.read(0, 100))


def test_an_earlier_epoch_is_ordered(bench: Bench) -> None:
    assert not bench.reported(bench.access(0, 3, True, 1, epoch=0), bench.access(0, 40, False, 2, epoch=1))


def test_named_barrier_orders_its_own_warps_only(bench: Bench) -> None:
    first, other = bench.write(0, 3), bench.write(0, 70)
    bench.detector.barrier(0, [0, 1])
    assert not bench.reported(first, bench.read(0, 40))
    assert bench.reported(first, bench.read(0, 70))
    assert bench.reported(other, bench.read(0, 40))


def test_named_barriers_pass_knowledge_on(bench: Bench) -> None:
    first = bench.write(0, 3)
    bench.detector.barrier(0, [0, 1])
    bench.detector.barrier(0, [1, 2])
    assert not bench.reported(first, bench.read(0, 70))
    assert bench.reported(first, bench.read(0, 100))


def test_arrive_tells_but_does_not_wait(bench: Bench) -> None:
    produced, consumed = bench.write(0, 3), bench.read(0, 40)
    arrival = bench.detector.arrive(0, 0)
    late = bench.write(0, 3)
    bench.detector.barrier(0, [1], [arrival])
    assert not bench.reported(produced, bench.read(0, 40))
    assert bench.reported(late, bench.read(0, 40))
    assert bench.reported(consumed, bench.write(0, 3))


def test_warp_barrier_orders_the_lanes_of_its_mask(bench: Bench) -> None:
    first = bench.write(0, 3)
    assert bench.reported(first, bench.read(0, 4))
    assert "__syncwarp" in bench.log.faults[0].message
    bench.detector.warp_sync(0, 0, 0b11111)
    assert not bench.reported(first, bench.read(0, 4))
    assert bench.reported(first, bench.read(0, 5))
    bench.detector.warp_sync(0, 0)
    assert not bench.reported(first, bench.read(0, 5))
    assert bench.reported(first, bench.read(0, 40))
    assert bench.reported(bench.write(0, 3), bench.read(0, 5))


def test_lanes_of_one_instruction_write_one_place(bench: Bench) -> None:
    assert bench.reported(bench.write(0, 3), bench.write(0, 4), "shared")
    assert "by one instruction" in bench.log.faults[0].message


def hand_over(bench: Bench, write_fence: str = "gpu", read_fence: str = "gpu", reader: tuple[int, int] = (1, 0)) -> None:
    """Block 0, warp 0 releases by an atomic on FLAG; `reader` (block, warp) acquires."""
    if write_fence:
        bench.detector.fence(0, 0, write_fence)
    bench.detector.strong(0, 0, FLAG, reads=True, writes=True)
    bench.detector.strong(*reader, FLAG, reads=True, writes=True)
    if read_fence:
        bench.detector.fence(*reader, read_fence)


def test_fence_and_atomic_between_blocks_is_quiet(bench: Bench) -> None:
    data = bench.write(0, 5)
    hand_over(bench)
    assert not bench.reported(data, bench.read(1, 7))
    assert not bench.log


@pytest.mark.parametrize(("write_fence", "read_fence"), [("", "gpu"), ("gpu", ""), ("", ""), ("cta", "gpu"), ("gpu", "cta")])
def test_without_a_fence_of_the_gpu_it_is_reported(bench: Bench, write_fence: str, read_fence: str) -> None:
    data = bench.write(0, 5)
    hand_over(bench, write_fence, read_fence)
    assert bench.reported(data, bench.read(1, 7))
    assert "between blocks" in bench.log.faults[0].message
    assert bench.log.faults[0].threads == (7,)


def test_fence_of_the_block_orders_within_the_block(bench: Bench) -> None:
    data = bench.write(0, 5)
    hand_over(bench, "cta", "cta", reader=(0, 2))
    assert not bench.reported(data, bench.read(0, 70))
    assert bench.reported(data, bench.read(0, 40))


def test_a_volatile_reader_needs_no_fence_of_its_own(bench: Bench) -> None:
    data = bench.write(0, 5)
    hand_over(bench, "gpu", "")
    late = bench.write(0, 5)
    assert not bench.reported(data, bench.read(1, 7, atomic=True))
    assert bench.reported(late, bench.read(1, 7, atomic=True))


def test_what_comes_after_the_fence_is_not_released(bench: Bench) -> None:
    bench.detector.fence(0, 0, "gpu")
    data = bench.write(0, 5)
    bench.detector.strong(0, 0, FLAG, reads=False, writes=True)
    bench.detector.strong(1, 0, FLAG, reads=True, writes=False)
    bench.detector.fence(1, 0, "gpu")
    assert bench.reported(data, bench.read(1, 7))


def test_barrier_then_fence_by_one_thread_releases_the_whole_block(bench: Bench) -> None:
    data = bench.write(0, 100)
    bench.detector.barrier(0, range(4))
    hand_over(bench)
    bench.detector.barrier(1, range(4))
    assert not bench.reported(data, bench.read(1, 90))


def test_fences_by_all_then_barrier_then_atomic_by_one(bench: Bench) -> None:
    data = bench.write(0, 100)
    for warp in range(4):
        bench.detector.fence(0, warp, "gpu")
    bench.detector.barrier(0, range(4))
    bench.detector.strong(0, 0, FLAG, reads=True, writes=True)
    bench.detector.strong(1, 0, FLAG, reads=True, writes=True)
    bench.detector.barrier(1, range(4))
    reader = bench.read(1, 90)
    assert bench.reported(data, reader)
    bench.detector.fence(1, 2, "gpu")
    assert not bench.reported(data, bench.read(1, 90))
    assert bench.reported(data, bench.read(1, 40))


def test_a_chain_of_blocks_through_one_counter(bench: Bench) -> None:
    data = []
    for block in range(3):
        data.append(bench.write(block, 5))
        bench.detector.fence(block, 0, "gpu")
        bench.detector.strong(block, 0, FLAG, reads=True, writes=True)
    bench.detector.strong(3, 0, FLAG, reads=True, writes=False)
    bench.detector.fence(3, 0, "gpu")
    assert not any(bench.reported(access, bench.read(3, 7)) for access in data)


def test_a_plain_flag_store_replaces_what_was_released(bench: Bench) -> None:
    data = bench.write(0, 5)
    bench.detector.fence(0, 0, "gpu")
    bench.detector.strong(0, 0, FLAG, reads=False, writes=True)
    bench.detector.strong(1, 0, FLAG, reads=False, writes=True)  # another writer, that knows nothing of block 0
    bench.detector.strong(2, 0, FLAG, reads=True, writes=False)
    bench.detector.fence(2, 0, "gpu")
    assert bench.reported(data, bench.read(2, 7))


def test_release_and_acquire_need_no_fence(bench: Bench) -> None:
    data = bench.write(0, 5)
    bench.detector.strong(0, 0, FLAG, reads=False, writes=True, releases=True)
    bench.detector.strong(1, 0, FLAG, reads=True, writes=False, acquires=True)
    assert not bench.reported(data, bench.read(1, 7))
    late = bench.write(0, 5)
    bench.detector.strong(1, 0, FLAG, reads=True, writes=False, acquires=True)
    assert bench.reported(late, bench.read(1, 7))


def test_release_of_the_block_scope_says_nothing_to_others(bench: Bench) -> None:
    data = bench.write(0, 5)
    bench.detector.strong(0, 0, FLAG, reads=False, writes=True, releases=True, scope="cta")
    bench.detector.strong(0, 1, FLAG, reads=True, writes=False, acquires=True, scope="cta")
    bench.detector.strong(1, 0, FLAG, reads=True, writes=False, acquires=True)
    assert not bench.reported(data, bench.read(0, 40))
    assert bench.reported(data, bench.read(1, 7))


def test_shared_addresses_of_two_blocks_are_two_places(bench: Bench) -> None:
    data = bench.write(0, 5)
    bench.detector.strong(0, 0, 64, reads=False, writes=True, releases=True)
    bench.detector.strong(1, 0, 64, reads=True, writes=False, acquires=True)
    assert bench.reported(data, bench.read(1, 7))


def test_spinning_sees_a_release_that_comes_later(bench: Bench) -> None:
    bench.detector.fence(1, 0, "gpu")
    for _ in range(3):
        bench.detector.strong(1, 0, FLAG, reads=True, writes=False)
    data = bench.write(0, 5)
    bench.detector.fence(0, 0, "gpu")
    bench.detector.strong(0, 0, FLAG, reads=False, writes=True)
    bench.detector.strong(1, 0, FLAG, reads=True, writes=False)
    bench.detector.fence(1, 0, "gpu")
    assert not bench.reported(data, bench.read(1, 7))


def test_atomics_are_fine_together_unless_of_block_scope_between_blocks(bench: Bench) -> None:
    assert not bench.reported(bench.write(0, 1, atomic=True), bench.write(1, 1, atomic=True))
    assert bench.reported(bench.write(0, 1, atomic=True), bench.write(0, 2))
    assert not bench.reported(bench.write(0, 1, site=10, atomic=True), bench.write(0, 70, site=10, atomic=True))
    assert bench.reported(bench.write(0, 1, site=10, atomic=True), bench.write(1, 1, site=10, atomic=True))


def test_one_cause_is_one_report(bench: Bench) -> None:
    for thread in range(40, 60):
        bench.reported(bench.write(0, 3), bench.read(0, thread))
        bench.reported(bench.read(0, thread), bench.write(0, 3))
    (fault,) = bench.log.faults
    assert fault.times == 40


def test_a_race_in_words_names_both_places() -> None:
    one, other = Place("k.cu", 7), Place("k.cu", 9)
    words = str(Fault("race", "thread 1 writes what thread 0 read", one, 0, (1,), "st", other))
    assert words == "k.cu:7: race: thread 1 writes what thread 0 read; the other access: k.cu:9"
