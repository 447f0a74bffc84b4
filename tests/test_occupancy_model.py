"""Occupancy by value, in words, and its promises: every step offered is true and is the least that helps."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perflab.errors import PerflabError
from perflab.gpus import capabilities, limits_of
from perflab.occupancy_model import largest_dynamic_shared, occupancy, occupancy_grid, occupancy_of
from perflab.tables import Table


@pytest.mark.parametrize(
    ("case", "blocks", "limiters"),
    [
        ({"gpu": "H100", "block": 32, "registers": 8, "static_shared": 12 * 1024}, 17, ("shared_memory",)),
        ({"gpu": "sm_90", "block": 256, "registers": 64}, 4, ("registers",)),
        ({"gpu": "sm_120", "block": 256, "registers": 64, "dynamic_shared": 71_680}, 1, ("shared_memory",)),
        ({"gpu": "H200", "block": 256, "registers": 64, "dynamic_shared": 71_680}, 3, ("shared_memory",)),
        ({"gpu": "sm_90", "block": 576, "registers": 40}, 2, ("registers",)),
        ({"gpu": "sm_70", "block": 320, "registers": 32}, 6, ("warps", "registers")),
        ({"gpu": "sm_90", "block": 32, "registers": 0}, 32, ("blocks",)),
        ({"gpu": "sm_120", "block": 64, "registers": 32, "barriers": 2}, 12, ("barriers",)),
        ({"gpu": "sm_80", "block": 64, "registers": 32, "barriers": 16}, 32, ("warps", "registers", "blocks")),
        ({"gpu": "sm_90", "block": 64, "registers": 16, "carveout": 0}, 8, ("shared_memory",)),
        ({"gpu": "sm_90", "block": (16, 16), "registers": 64}, 4, ("registers",)),
        (
            {"gpu": "sm_90", "block": 64, "registers": 32, "dynamic_shared": 49_152, "shared_optin": False},
            4,
            ("shared_memory",),
        ),
    ],
)
def test_known_values(case: dict[str, object], blocks: int, limiters: tuple[str, ...]) -> None:
    found = occupancy(**case)  # type: ignore[arg-type]
    assert (found.blocks_per_sm, found.limiters, found.reason) == (blocks, limiters, "")


def test_warps_fraction_waves_and_tail() -> None:
    found = occupancy("H200", block=576, registers=40, grid=(10, 100))
    assert (found.demand.warps, found.warps_per_sm, found.fraction) == (18, 36, 36 / 64)
    assert found.waves == pytest.approx(1000 / 264) and found.tail_efficiency == pytest.approx(1000 / 264 / 4)
    assert occupancy("H200", grid=132 * 4).tail_efficiency == 1
    assert occupancy("H200").waves is None and occupancy("H200", registers=256, grid=1).waves is None


def test_waves_of_an_architecture_are_an_error() -> None:
    with pytest.raises(PerflabError, match=r'1,000 blocks need an SM count.*sm_90.*"H200"'):
        occupancy("sm_90", grid=1000)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ({"block": 1025}, "1,025 threads a block, sm_120 allows 1,024"),
        ({"registers": 256, "block": 32}, "256 registers a thread, sm_120 allows 255"),
        ({"registers": 65, "block": 992}, r"32 warps \(31 rounded up.*2,304 registers = 73,728, sm_120 allows 65,536"),
        ({"dynamic_shared": 106_496}, "106,496 B of shared memory a block, sm_120 allows 101,376 B"),
        ({"dynamic_shared": 60_000, "max_dynamic_shared": 50_000}, "60,000 B of dynamic.*limit was set to 50,000 B"),
        ({"dynamic_shared": 49_153, "shared_optin": False}, "49,153 B.*sm_120 allows 49,152 B without opting in"),
        ({"block": 2048, "registers": 300}, "2,048 threads.*; 300 registers"),
    ],
)
def test_what_cannot_launch_says_why(case: dict[str, object], words: str) -> None:
    found = occupancy("sm_120", **case)  # type: ignore[arg-type]
    assert found.blocks_per_sm == 0 and re.search(words, found.reason), found.reason
    assert "cannot launch" in str(found) and found.waves is None


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ({"block": 0}, "block=0: at least 1"),
        ({"block": (32, 0)}, "block=0"),
        ({"block": (1, 1, 128)}, "block z=128: 1 to 64"),
        ({"block": (1, 1, 1, 1)}, "one to three"),
        ({"block": 2.5}, "whole number"),
        ({"registers": -1}, "registers=-1: at least 0"),
        ({"static_shared": -1}, "static_shared"),
        ({"dynamic_shared": "1 KB"}, "dynamic_shared='1 KB'"),
        ({"barriers": 17}, "barriers=17: 0 to 16"),
        ({"carveout": 101}, "carveout=101: 0 to 100"),
        ({"grid": 0, "gpu": "H200"}, "grid=0"),
        ({"gpu": "sm_99"}, "sm_99"),
        ({"gpu": []}, "at least one"),
    ],
)
def test_what_no_gpu_could_mean_is_an_error(case: dict[str, object], words: str) -> None:
    with pytest.raises(PerflabError, match=words):
        occupancy(**case)  # type: ignore[arg-type]
    with pytest.raises(PerflabError):
        occupancy_grid(block=np.array([32, 0]))
    with pytest.raises(PerflabError, match="whole numbers"):
        occupancy_grid(block=np.array([32.0]))


def test_explain_shows_the_arithmetic() -> None:
    text = str(occupancy("H200", block=576, registers=40).explain())
    for words in (
        "40 registers x 32 lanes -> 1,280 a warp (unit 256) -> 12 warps per quarter of the register file",
        "0 B static + 0 B dynamic + 1,024 B reserved -> 1,024 B (unit 128) of 233,472 B",
        "to gain: at <= 32 registers a 3rd block fits: 54 of 64 warps",
        "to gain: with 512 threads 3 blocks fit: 48 of 64 warps",
    ):
        assert words in text, text
    assert "at <= 50,176 B of shared memory a 2nd block fits" in str(occupancy("sm_120", dynamic_shared=71_680).explain())
    assert "at <= 1 barrier 24 blocks fit" in str(occupancy("sm_120", 64, 32, barriers=2).explain())
    assert "no occupancy to gain" in str(occupancy("sm_90", 256, 32).explain())


def test_resources_that_limit_together_are_relaxed_together() -> None:
    text = str(occupancy("sm_90", 256, 40, dynamic_shared=36_000).explain())
    assert "at <= 32 registers and <= 32,256 B of shared memory a 7th block fits" in text


def test_remarks() -> None:
    trap = str(occupancy("sm_90", 100, 16, carveout=0))
    assert "28 of 128 lanes idle" in trap and "a carve-out of 0 % leaves 8,192 B" in trap and "1,024 B" in trap
    assert "with a carve-out of 100 %" in str(occupancy("sm_90", 100, 16, carveout=0).explain())
    assert "3.79 waves, tail efficiency 94.7 %" in str(occupancy("H200", 576, 40, grid=1000))


def test_results_a_person_reads() -> None:
    found = occupancy("H200", 256, 64)
    assert str(found).startswith("H200 (sm_90), 256 threads x 64 registers: 4 blocks per SM, 32 of 64 warps (50.0 %)")
    assert str(found) == str(occupancy("NVIDIA H200", 256, 64)) and found.origin.kind == "calculated"
    assert found._repr_mimebundle_()["text/plain"] == str(found) and "**H200" in found.markdown()


def test_a_list_of_gpus_is_one_table() -> None:
    table = occupancy(["H200", "4090", "sm_75"], block=256, registers=64, dynamic_shared=71_680)
    assert isinstance(table, Table) and [row[3] for row in table.rows] == [3, 1, 0]
    assert "sm_75 allows 65,536 B" in str(table) and "waves" not in str(table)
    assert "waves" in str(occupancy(["H200", "4090"], grid=1000))


demands = {
    "capability": st.sampled_from(capabilities()),
    "block": st.integers(1, 1100),
    "registers": st.integers(0, 260),
    "static_shared": st.sampled_from([0, 0, 128, 5000, 49_152]),
    "dynamic_shared": st.one_of(st.just(0), st.integers(0, 240_000)),
    "barriers": st.integers(0, 16),
    "carveout": st.one_of(st.none(), st.integers(0, 100)),
    "limit": st.one_of(st.none(), st.integers(0, 100_000)),
}


@settings(max_examples=150, deadline=None)
@given(**demands)
def test_every_step_is_true_and_the_least_that_helps(
    capability: str, block: int, registers: int, limit: int | None, **case: int
) -> None:
    found = occupancy(capability, block, registers, max_dynamic_shared=limit, **case)
    for words, then in found.steps:
        assert then == occupancy_of(found.gpu, then.demand) and then.warps_per_sm > found.warps_per_sm
        assert str(then.warps_per_sm) in words
        if found.limiters == ("registers",) and then.demand.threads == found.demand.threads:
            one_more = occupancy_of(found.gpu, replace(then.demand, registers=then.demand.registers + 1))
            assert one_more.blocks_per_sm <= found.blocks_per_sm
        if found.limiters == ("shared_memory",) and words.startswith("at <="):
            total = then.demand.static_shared + then.demand.dynamic_shared + 1
            assert total <= found.demand.static_shared + found.demand.dynamic_shared
            more = occupancy_of(found.gpu, replace(then.demand, dynamic_shared=then.demand.dynamic_shared + 1))
            assert more.blocks_per_sm <= found.blocks_per_sm or then.demand.dynamic_shared == 0


@settings(max_examples=200, deadline=None)
@given(
    capability=demands["capability"],
    block=st.integers(1, 1024),
    registers=st.integers(0, 64),
    static_shared=demands["static_shared"],
    blocks_per_sm=st.integers(1, 32),
)
def test_largest_dynamic_shared_is_the_edge(capability: str, blocks_per_sm: int, **case: int) -> None:
    try:
        most = largest_dynamic_shared(capability, blocks_per_sm=blocks_per_sm, **case)
    except PerflabError as error:
        assert occupancy(capability, **case).blocks_per_sm < blocks_per_sm and f"{blocks_per_sm} blocks" in str(error)
        return
    assert occupancy(capability, dynamic_shared=most, **case).blocks_per_sm >= blocks_per_sm
    assert occupancy(capability, dynamic_shared=most + 1, **case).blocks_per_sm < blocks_per_sm


def test_largest_dynamic_shared_where_nvidias_helper_is_wrong() -> None:
    assert largest_dynamic_shared("H100", 256, 64, blocks_per_sm=2) == 115_712
    with pytest.raises(PerflabError, match="5 blocks per SM on H200.*holds 4.*registers"):
        largest_dynamic_shared("H200", 256, 64, blocks_per_sm=5)


def test_grid_broadcasts_and_names_limiters() -> None:
    grid = occupancy_grid("sm_90", block=np.array([64, 256])[:, None], registers=np.array([32, 64, 128]))
    assert grid.blocks_per_sm.shape == grid.limiters.shape == grid.fraction.shape == (2, 3)
    assert grid.blocks_per_sm.tolist() == [[32, 16, 8], [8, 4, 2]]
    assert grid.warps_per_sm.tolist() == [[64, 32, 16], [64, 32, 16]] and grid.fraction[0, 1] == 0.5
    assert grid.limiters[0].tolist() == ["warps+registers+blocks", "registers", "registers"]
    mixed = occupancy_grid("sm_90", block=64, registers=16, carveout=np.array([-1, 0]))
    assert mixed.blocks_per_sm.tolist() == [32, 8]


@settings(max_examples=200, deadline=None)
@given(**{name: strategy for name, strategy in demands.items() if name != "limit"})
def test_the_grid_is_the_scalar_model(capability: str, carveout: int | None, **case: int) -> None:
    one = occupancy(capability, carveout=carveout, **case)
    grid = occupancy_grid(capability, carveout=-1 if carveout is None else carveout, **case)
    assert (one.blocks_per_sm, one.warps_per_sm) == (int(grid.blocks_per_sm), int(grid.warps_per_sm))
    assert "+".join(one.limiters) == str(grid.limiters)


def test_more_of_anything_never_holds_more() -> None:
    registers = np.arange(0, 256)
    shared = np.arange(0, 230_000, 64)
    for capability in capabilities():
        assert (np.diff(occupancy_grid(capability, registers=registers).blocks_per_sm) <= 0).all()
        assert (np.diff(occupancy_grid(capability, dynamic_shared=shared).blocks_per_sm) <= 0).all()
        assert limits_of(capability).blocks_per_sm >= occupancy_grid(capability, block=32, registers=1).blocks_per_sm
