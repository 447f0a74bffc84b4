"""Faults of public attention kernels, each as a test of ours: what went wrong elsewhere must not go wrong here unseen.

A letter and number a fault; a name after it is the project and issue where it was found. Those with a test of their own stand
below. Held elsewhere:

- B3 flashinfer #3130, C4 sglang #11985, page ids and page sizes: tests/test_paged_attention.py.
- D1 pytorch #160861, a last tile that is not full; F4 flashinfer #2745, head counts: the sweep's prefixes and heads, in
  tests/emulator/test_emulated_studies.py.
- D3 sglang #30407, keys wider than values: 576 and 512 columns in every test of the study.
- E3 flashinfer #636, unaligned parts of shared memory: every emulated run checks alignment; planted in
  tests/emulator/test_planted_bugs.py.
- F2 flashinfer #3263, code for another GPU: tests/test_measuring.py (`runs_on`). F3 FlashMLA #124, compiles but was never
  validated: nothing is timed before its check has passed (there, too); every record's check did, tests/test_shipped_records.py.
- G1 sglang #27382, a grid that leaves SMs idle: waves and tail are said, tests/test_occupancy_model.py.
- G3 vllm #50629, parts whose sums cost more than they save: their bytes are stated and counted,
  tests/emulator/test_emulated_studies.py (unique and asked bytes).
- I1 FlashMLA-ETAP #2, I2 ninfer-3090 #49, data read before it is there: races are looked for in every emulated run, and found
  where they are planted.
- J1 attention-gym #14, a library that fails on a shape: a row with the reason, tests/test_rivals.py.

Cannot happen here: H1 TensorRT-LLM #13006, a packed mask read with another stride: ours is not packed, a byte a pair of nodes.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perflab.check import check_outputs
from perflab.emulator import emulation
from perflab.emulator.counts import Counts
from perflab.emulator.emulation import Settings, emulate_launches
from perflab.errors import PerflabError
from perflab.gpus import gpu
from perflab.studies import Launch, NotApplicable, Version, load_study

STUDY = load_study(Path(__file__).parent.parent / "kernels" / "verify_attention")
PROBLEM = sys.modules[STUDY.shape.__module__]
MODULE = sys.modules[STUDY.shape.__module__.rpartition(".")[0]]
Shape = STUDY.shape
H200 = gpu("H200")
FAST = "vector" if importlib.util.find_spec("llvmlite") else "numpy"
LADDER = [version for version in STUDY.versions if version.shapes is None]
IN_PARTS = [version for version in LADDER if MODULE.JOIN in version.kernels]
CUT_BY_DEVICE = [version for version in IN_PARTS if isinstance(getattr(version.launches, "__self__", None), MODULE.Tiling)]
all_versions = pytest.mark.parametrize("version", LADDER, ids=lambda version: version.name)
all_in_parts = pytest.mark.parametrize("version", IN_PARTS, ids=lambda version: version.name)


def run(version: Version, shape: Any, inputs: dict[str, np.ndarray], launches: list[Launch] | None = None,
        **more: Any) -> tuple[Counts, dict[str, np.ndarray]]:
    """Counts with faults, and outputs, of a version on these inputs."""
    return emulate_launches(version.name, launches or version.launches(shape, H200), inputs,
                            STUDY.buffers_of(version, shape, H200), Settings(H200, machine=FAST, **more), version.outputs)


def assert_right(version: Version, shape: Any, inputs: dict[str, np.ndarray], counts: Counts,
                 outputs: dict[str, np.ndarray]) -> None:
    check = check_outputs(STUDY, version.name, shape, outputs, STUDY.reference(shape, inputs))
    assert check.passed, [output.problem for output in check.outputs]
    assert not [str(fault) for fault in counts.faults]


def joined(sums: Any, stats: Any) -> tuple[np.ndarray, np.ndarray]:
    """What the join makes of parts: sums [rows, parts, 512], stats [rows, parts, 2] of largest score and total."""
    sums, stats = np.ascontiguousarray(sums, np.float32), np.ascontiguousarray(stats, np.float32)
    rows, parts, _ = stats.shape
    out, lse = np.empty((rows, PROBLEM.LATENT), np.float32), np.empty(rows, np.float32)
    counts = MODULE.JOIN.emulate(rows, PROBLEM.LATENT // 4, (sums, stats, out, lse, np.int32(parts)), gpu="H200",
                                 outputs=("out", "lse"), machine=FAST)
    assert not counts.faults
    return out, lse


# ---------------------------------------------------------------- A: parts of a softmax, and rows that see nothing
@pytest.mark.parametrize("parts", [1, 2, 33])
def test_A1_parts_that_all_saw_nothing_join_to_nothing(parts: int) -> None:
    """flashinfer #4051: -inf minus -inf, and the merged row is NaN."""
    out, lse = joined(np.zeros((2, parts, 512)), np.full((2, parts, 2), (-np.inf, 0.0)))
    assert not out.any() and np.isneginf(lse).all()


@all_versions
def test_A2_a_row_without_any_key_is_zeros_and_minus_infinity(version: Version) -> None:
    """vllm #28181: prefix and suffix both empty, and the row is NaN."""
    shape = Shape(batch=2, q_len=5, heads=3, prefix=0, tree="star")
    inputs = STUDY.make_inputs(shape)
    inputs["visible"] = inputs["visible"].copy()
    inputs["visible"][1, 3] = 0
    counts, outputs = run(version, shape, inputs)
    assert not outputs["out"][1, 3].any() and np.isneginf(outputs["lse"][1, 3]).all() and not counts.faults
    for name, values in run(version, shape, STUDY.make_inputs(shape))[1].items():  # no other row is touched
        others = np.arange(10).reshape(2, 5) != 8
        assert np.array_equal(values[others], outputs[name][others])


@all_in_parts
def test_A3_a_part_that_is_empty_for_some_rows_only(version: Version, monkeypatch: pytest.MonkeyPatch) -> None:
    """aiter #4711: a part fully masked for one row gave 0 * NaN in half of all outputs."""
    shape = Shape(q_len=33, heads=1, prefix=0, tree="star")  # rows see key 0 and themselves; the third 16 only the last row
    launches = version.launches(shape, H200)
    if version in CUT_BY_DEVICE:
        monkeypatch.setattr(MODULE.Tiling, "parts", lambda self, shape, gpu: (-(-shape.keys // self.keys_a_tile), 1))
        launches = version.launches(shape, H200)
        assert launches[1].arguments[-1].value in (3, 5)
    inputs = STUDY.make_inputs(shape)
    assert_right(version, shape, inputs, *run(version, shape, inputs, launches))


@pytest.mark.parametrize("version", CUT_BY_DEVICE, ids=lambda version: version.name)
def test_A4_parts_beyond_the_keys_change_nothing(version: Version, monkeypatch: pytest.MonkeyPatch) -> None:
    """sgl-kernel-xpu #487: parts without keys wrote -inf over the row's log-sum-exp."""
    shape = Shape(batch=2, q_len=3, heads=3, prefix=2)  # 5 keys: less than a tile
    monkeypatch.setattr(MODULE.Tiling, "parts", lambda self, shape, gpu: (4, 1))
    inputs = STUDY.make_inputs(shape)
    counts, outputs = run(version, shape, inputs)  # two writers of one place would be a fault
    assert_right(version, shape, inputs, counts, outputs)
    monkeypatch.setattr(MODULE.Tiling, "parts", lambda self, shape, gpu: (1, 1))
    for name, values in run(version, shape, inputs)[1].items():
        assert np.array_equal(values, outputs[name])


def test_A5_an_empty_part_weighs_nothing() -> None:
    """FlashMLA says +inf of an empty row: a join that takes it for a score gives it all the weight. Ours says -inf."""
    some = np.linspace(-1, 1, 512, dtype=np.float32)
    alone = joined(some[None, None], [[(3.0, 2.0)]])
    for order in ((0, 1), (1, 0)):
        both = joined(np.stack([some, np.zeros(512)])[None, order], np.array([[(3.0, 2.0), (-np.inf, 0.0)]])[:, order])
        assert all(np.array_equal(a, b) for a, b in zip(alone, both, strict=True))
    assert np.allclose(alone[0], some / 2) and np.allclose(alone[1], 3 + math.log(2), rtol=1e-6)


@all_versions
def test_A6_the_log_sum_exp_is_natural(version: Version) -> None:
    """vllm #47079: one of base 2 merged as natural, and wrong tokens. Scores of 0 over n keys: ln n, and the plain mean."""
    shape = Shape(q_len=1, heads=1, prefix=7)
    inputs = STUDY.make_inputs(shape)
    inputs["q"] = np.zeros_like(inputs["q"])
    outputs = run(version, shape, inputs)[1]
    assert abs(outputs["lse"].item() - math.log(8)) < 1e-6
    assert np.allclose(outputs["out"][0, 0, 0], inputs["kv"][0, :, : PROBLEM.LATENT].mean(axis=0), atol=1e-6)


def test_A6_parts_merge_by_their_natural_log_sum_exp() -> None:
    """Totals of 2 and 8 are 10 together: ln 10, whatever the parts subtracted."""
    out, lse = joined(np.stack([np.full(512, 2.0), np.full(512, 8.0 / math.e)])[None], [[(0.0, 2.0), (1.0, 8.0 / math.e)]])
    assert np.allclose(lse, math.log(10), rtol=1e-6) and np.allclose(out, 1.0, rtol=1e-6)


# ---------------------------------------------------------------- B: offsets
def addresses(counts: Counts) -> list[int]:
    """Where a run's accesses outside every buffer went."""
    words = [word.rstrip(",:") for fault in counts.faults for word in fault.message.split()]
    return [int(word, 16) for word in words if word.startswith("0x")]


@all_versions
def test_B1_B2_offsets_pass_two_to_the_31(version: Version, monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm #47671, sglang #9344: index times stride in 32 bits, and another request's rows are read.

    The last of 65,535 requests of 57 keys: its first key is element 2,151,552,... of the cache. No such buffer is made: the
    emulator says where the block reached, and 4 bytes an element from the buffer's start is where it must be. On a GPU, with
    the buffers: tests/gpu/test_large_offsets.py.
    """
    shape = Shape(batch=65_535, q_len=1, heads=1, prefix=56)
    if version in CUT_BY_DEVICE:
        monkeypatch.setattr(MODULE.Tiling, "parts", lambda self, shape, gpu: (1, -(-shape.keys // self.keys_a_tile)))
    first = version.launches(shape, H200)[0]
    monkeypatch.setattr(emulation, "chosen_blocks", lambda blocks, sample: (blocks - 1,))
    names = [name for name in first.arguments if isinstance(name, str)]
    memory = {name: np.ones(4, np.uint8 if name == "visible" else np.float32) for name in names}
    calls = [emulation._call_of(first, H200, memory)]
    plain = Settings(H200, machine=FAST, checking=False, sample=1)
    counts, layout, arena = emulation.run_calls("far", calls, memory, (), (), {}, plain)
    base, row = layout.address(arena, "kv"), 4 * PROBLEM.WIDTH
    begin = (shape.batch - 1) * shape.keys
    assert begin * PROBLEM.WIDTH > 2**31
    reached = addresses(counts)
    assert any(base + begin * row <= place < base + (begin + shape.keys) * row for place in reached), reached
    allowed = [(layout.address(arena, name), size) for name, size in sizes_of(shape).items() if name in names]
    assert all(any(start <= place < start + size for start, size in allowed) for place in reached), reached


def sizes_of(shape: Any) -> dict[str, int]:
    """Bytes of each buffer of the shape, in one part."""
    rows = shape.batch * shape.q_len * shape.heads
    return {"q": 4 * rows * PROBLEM.WIDTH, "kv": 4 * shape.batch * shape.keys * PROBLEM.WIDTH,
            "visible": shape.batch * shape.q_len**2, "out": 4 * rows * PROBLEM.LATENT, "lse": 4 * rows,
            "part_sum": 4 * rows * PROBLEM.LATENT, "part_stats": 8 * rows}


# ---------------------------------------------------------------- C: sizes that disagree, rows that nobody uses
@all_versions
def test_C1_C2_more_query_rows_than_the_buffers_hold_is_said(version: Version) -> None:
    """vllm #51848, sglang #15601: more query rows than the tables have, read out of bounds."""
    shape, larger = Shape(q_len=4, heads=1, prefix=3), Shape(q_len=5, heads=1, prefix=3)
    counts = run(version, shape, STUDY.make_inputs(shape), version.launches(larger, H200))[0]
    assert "out of bounds" in {fault.kind for fault in counts.faults} and not counts.passed


def test_C3_zeros_without_an_error_are_a_failure() -> None:
    """flashinfer #3219: a cache of another rank was taken, and all outputs were zeros."""
    shape = Shape(q_len=2, heads=1, prefix=1)
    want = STUDY.reference(shape, STUDY.make_inputs(shape))
    zeros = {name: np.zeros(values.shape, np.float32) for name, values in want.items()}
    assert not check_outputs(STUDY, "naive", shape, zeros, want).passed
    with pytest.raises(PerflabError, match="has shape"):
        check_outputs(STUDY, "naive", shape, {**zeros, "out": zeros["out"][0]}, want)


@all_versions
def test_C5_nan_in_rows_that_nobody_sees_reaches_no_output(version: Version) -> None:
    """flashinfer #942: NaN in unrelated cache rows leaked, as 0 * NaN in the sum of the values."""
    shape = Shape(batch=3, q_len=5, heads=3, prefix=14, tree="binary")  # keys 14..18: across tiles of 8 and of 16
    inputs = STUDY.make_inputs(shape)
    visible, kv = inputs["visible"].copy(), inputs["kv"].copy()
    visible[1, :, 3], kv[1, shape.prefix + 3] = 0, np.nan  # hidden from every row of its request
    kv[0], kv[2] = np.nan, np.inf  # rows of other requests
    counts, outputs = run(version, shape, {**inputs, "visible": visible, "kv": kv})
    want = STUDY.reference(shape, {**inputs, "visible": visible})
    assert not counts.faults
    assert np.abs(outputs["out"][1] - want["out"][1]).max() < 1e-6 and np.abs(outputs["lse"][1] - want["lse"][1]).max() < 1e-5


@all_versions
def test_C5_nan_in_one_nodes_row_spoils_the_rows_that_see_it_and_no_other(version: Version) -> None:
    shape = Shape(q_len=9, heads=3, prefix=8, tree="star")
    inputs = STUDY.make_inputs(shape)
    kv = inputs["kv"].copy()
    kv[0, shape.prefix + 4] = np.nan
    outputs = run(version, shape, {**inputs, "kv": kv})[1]
    want = STUDY.reference(shape, inputs)
    others = np.arange(9) != 4
    assert np.isnan(outputs["out"][0, 4]).all()
    assert np.abs(outputs["out"][0, others] - want["out"][0, others]).max() < 1e-6


# ---------------------------------------------------------------- D, E: how arrays lie
def test_D2_arrays_that_are_not_contiguous_are_refused() -> None:
    """flashinfer #1341: strides that nobody looked at, and wrong numbers without a word."""
    q, kv, visible = np.ones((1, 1, 1, 576), "f4"), np.ones((1, 2, 1152), "f4")[:, :, ::2], np.ones((1, 1, 1), "u1")
    out, lse = np.empty((1, 1, 1, 512), "f4"), np.empty((1, 1, 1), "f4")
    with pytest.raises(PerflabError, match=r"kv.*not C-contiguous: pass np.ascontiguousarray\(kv\)"):
        MODULE.NAIVE.emulate((1, 1, 1), 256, (q, kv, visible, out, lse, 1, 1, 1, 1.0), 16, gpu="H200")


@all_versions
@pytest.mark.parametrize("floats", [1, 2, 3])
def test_E1_E2_arrays_off_16_bytes_are_refused_or_right(version: Version, floats: int) -> None:
    """vllm #45466, TensorRT-LLM #17987: contiguous is not aligned; 16-byte loads of such rows fault.

    Arrays that begin some floats into a larger one. A kernel that loads four at a time must be told so, in words.
    """
    shape = Shape(q_len=3, heads=2, prefix=6)
    inputs = STUDY.make_inputs(shape)
    moved: dict[str, np.ndarray] = {}
    for name in ("q", "kv"):
        moved[f"around {name}"] = np.zeros(inputs[name].size + floats, np.float32)
        moved[name] = moved[f"around {name}"][floats:].reshape(inputs[name].shape)
        moved[name][...] = inputs[name]
    counts, outputs = run(version, shape, {**inputs, **moved})
    if counts.faults:
        assert {fault.kind for fault in counts.faults} == {"misaligned"}
        assert "16-byte boundar" in MODULE_TEXTS[version.name], "the kernel's header says what it asks of q and kv"
    else:
        assert_right(version, shape, inputs, counts, outputs)


MODULE_TEXTS = {version.name: " ".join(version.kernels[0].source.text.replace("//", " ").split()) for version in LADDER}


# ---------------------------------------------------------------- F, G: what a GPU allows, and how work is cut for it
@pytest.mark.parametrize("name", ["A100", "L40S", "H200", "B200", "RTX PRO 6000"])
def test_F1_no_launch_asks_for_more_shared_memory_than_its_gpu_has(name: str) -> None:
    """ktransformers #1570: 106,496 B asked of a GPU that allows 101,376: a failed launch, not a smaller tile or a word."""
    found = gpu(name)
    for version in LADDER:
        try:
            launches = version.launches(Shape(), found)
        except NotApplicable as reason:
            assert f"{found.limits.shared_per_block_optin_bytes:,} B" in str(reason)
            continue
        for launch in launches:
            asked = launch.dynamic_shared + launch.kernel.resources(found).static_shared_bytes
            assert asked <= found.limits.shared_per_block_optin_bytes


@pytest.mark.parametrize("version", CUT_BY_DEVICE, ids=lambda version: version.name)
def test_G2_G4_the_number_of_parts_follows_the_device_and_the_shape(version: Version) -> None:
    """aiter #4507, flash-attention #2901: a forgotten hint or the wrong quantity, and never more than one part."""

    few, many = Shape(q_len=9, heads=8, prefix=16384), Shape(batch=32, q_len=33, heads=64, prefix=16384)
    parts = [int(version.launches(shape, H200)[1].arguments[-1].value) for shape in (few, many)]
    assert parts[0] > parts[1] >= 1
    for sms in (13, 66, 132, 264):
        launch, _ = version.launches(few, replace(H200, sm_count=sms))
        assert math.prod(launch.grid) >= sms / 2  # where keys are many no device is left half idle


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(CUT_BY_DEVICE), st.integers(1, 5), st.integers(1, 65), st.integers(1, 128), st.integers(0, 70_000))
def test_G4_no_part_is_empty_and_all_keys_are_in_one(version: Version, batch: int, q_len: int, heads: int, prefix: int) -> None:
    shape = Shape(batch=batch, q_len=q_len, heads=heads, prefix=prefix)
    launch, join = version.launches(shape, H200)
    parts, tiles_a_part = (int(argument.value) for argument in launch.arguments[-2:])
    tiles = -(-shape.keys // version.launches.__self__.keys_a_tile)
    assert (parts - 1) * tiles_a_part < tiles <= parts * tiles_a_part
    assert join.arguments[-1].value == parts and math.prod(launch.grid) % parts == 0


@all_versions
def test_G5_a_request_alone_or_in_a_batch(version: Version, monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashMLA #212: the number of parts depends on who else is in the batch. With the same parts, the same bits."""
    alone = Shape(q_len=3, heads=3, prefix=40, tree="chain")
    together = replace(alone, batch=2)
    if version in CUT_BY_DEVICE:
        monkeypatch.setattr(MODULE.Tiling, "parts", lambda self, shape, gpu: (2, -(-shape.keys // self.keys_a_tile // 2) + 1))
    inputs = STUDY.make_inputs(together)
    both = run(version, together, inputs)[1]
    one = run(version, alone, {name: values[1:] for name, values in inputs.items()})[1]
    for name, values in one.items():
        assert np.array_equal(values[0], both[name][1]), name


# ---------------------------------------------------------------- H: trees
@pytest.mark.parametrize("tree", ["star", "binary", "random"])
def test_H2_H3_a_mask_that_is_not_read_is_seen_by_the_check(tree: str) -> None:
    """FastDeploy #3514, sglang's verify_mla: causal inside the triangle, or no mask at all; right for chains only."""
    shape = Shape(q_len=9, heads=2, prefix=2048, tree=tree)
    inputs = STUDY.make_inputs(shape)
    want = STUDY.reference(shape, inputs)
    for shortcut in (np.tril(np.ones((9, 9), np.uint8)), np.ones((9, 9), np.uint8)):
        wrong = STUDY.reference(shape, {**inputs, "visible": shortcut[None]})
        got = {name: values.astype(np.float32) for name, values in wrong.items()}
        assert not check_outputs(STUDY, "naive", shape, got, want).passed
    assert check_outputs(STUDY, "naive", shape, {name: v.astype(np.float32) for name, v in want.items()}, want).passed
