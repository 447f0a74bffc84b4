"""Ceilings without a GPU: references against step-by-step arithmetic, the machine code, the roofs of records."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from fake_gpu import FakeGpu, Kernel

from perflab.ceilings import NAMES, ceilings, ceilings_table, l2_curve, measured_roofs, of_ceiling
from perflab.check import check_outputs
from perflab.errors import PerflabError
from perflab.gpus import gpu
from perflab.measuring import Bench
from perflab.planning import identity_of, make_plan
from perflab.records import Record, RecordStore, shape_sizes
from perflab.studies import NotApplicable, inputs_hash, load_study
from perflab.timing import Series, Timing, TimingSpec

FOLDER = Path(__file__).parent.parent / "kernels" / "ceilings"
STUDY = load_study(FOLDER)
SHAPE = STUDY.shape
KIB, MIB = 1 << 10, 1 << 20
H200 = gpu("H200")
MMA = ("mma_bf16", "mma_fp16", "mma_tf32")


def data(shape):
    given = STUDY.make_inputs(shape)
    return given, STUDY.reference(shape, given)


def verdict(shape, got):
    """The problems that a check of this result would have."""
    _, want = data(shape)
    return [output.problem for output in check_outputs(STUDY, shape.ceiling, shape, {"out": got}, want).outputs]


# ---------------------------------------------------------------- what is declared
def test_each_shape_is_measured_by_the_version_that_it_names():
    for shape in STUDY.shapes:
        for version in STUDY.versions:
            if version.name == shape.ceiling:
                (first, *rest) = version.launches(shape, H200)
                assert len(rest) == (version.name == "empty_pair")
                named = {a for a in first.arguments if isinstance(a, str)}
                assert named == {*STUDY.inputs(shape), *STUDY.buffers(shape, H200)}
            else:
                with pytest.raises(NotApplicable, match=f'ceiling="{version.name}"'):
                    version.launches(shape, H200)
    assert {shape.ceiling for shape in STUDY.shapes} == {version.name for version in STUDY.versions} == set(NAMES)


def test_sizes_are_far_over_the_l2_and_l2_launches_long():
    for shape in STUDY.shapes:
        if shape.ceiling.startswith("dram"):
            assert shape.size_bytes > 4 * H200.l2_bytes
        if shape.ceiling == "l2_read":
            assert STUDY.version("l2_read").asked_bytes(shape, H200) > 10e12 * 50e-6
    assert [s.size_bytes // MIB for s in STUDY.shapes if s.ceiling == "l2_read"] == [2, 4, 8, 16, 24, 32, 40, 48, 60, 96, 128]


@pytest.mark.parametrize("wrong", [{"ceiling": "sram"}, {"size_bytes": 1000}, {"ceiling": "empty", "size_bytes": 4},
                                   {"ceiling": "l2_read", "duty": "sustained"}, {"duty": "often"}, {"size_bytes": -32768}])
def test_a_shape_that_no_kernel_does_is_refused(wrong):
    with pytest.raises(NotApplicable):
        SHAPE(**wrong)


def test_work_is_what_the_loops_do():
    assert STUDY.work(SHAPE("dram_read")).bytes == (1 << 30) + (1 << 30) // 4096 * 4
    assert STUDY.work(SHAPE("dram_triad")).bytes == 3 * 256 * MIB
    assert STUDY.work(SHAPE("dram_triad")).flops == 2 * 64 * MIB
    assert STUDY.version("dram_triad").asked_bytes(SHAPE("dram_triad"), H200) == 3 * 256 * MIB
    small = SHAPE("l2_read", 2 * MIB)
    assert STUDY.work(small).bytes < 4 * MIB and STUDY.version("l2_read").asked_bytes(small, H200) == (1 << 30) + MIB
    one_block = SHAPE("fp32_fma", KIB)
    assert STUDY.work(one_block).flops == 256 * 8 * 512 * 2
    for name, k in (("mma_bf16", 16), ("mma_tf32", 8)):
        assert STUDY.work(SHAPE(name, 4 * KIB)).flops == 8 * 256 * 8 * (2 * 16 * 8 * k)


def test_repeated_numbers_are_random_and_the_recipe_says_how_many():
    recipe = STUDY.inputs(SHAPE("dram_copy", 64 * KIB))["x"]
    short = replace(recipe, period=1000)
    array = short.make(1, "x")
    assert array.dtype == np.float32 and array.shape == (16 * 1024,)
    assert (array[1000:2000] == array[:1000]).all() and len(np.unique(array[:1000])) == 1000
    assert short.describe() != recipe.describe()
    assert inputs_hash(STUDY, SHAPE("dram_copy", 64 * KIB)) != inputs_hash(STUDY, SHAPE("dram_copy", 32 * KIB))


# ---------------------------------------------------------------- references
def test_reads_are_summed_by_warp_and_pass_after_pass():
    shape = SHAPE("dram_read", 64 * KIB)
    given, want = data(shape)
    x = given["x"].astype(np.float64).reshape(2, 8192)  # block, float
    for block, warp in ((0, 0), (0, 7), (1, 3)):
        mine = [x[block, 4 * (256 * load + thread) + k] for load in range(8) for thread in range(32 * warp, 32 * warp + 32)
                for k in range(4)]
        assert want["out"][8 * block + warp] == pytest.approx(sum(mine), abs=1e-12)
    small = SHAPE("l2_read", 256 * KIB)
    _, want = data(small)
    assert small.passes == 4096 and (want["out"].reshape(4096, -1) == want["out"][:64]).all()
    assert STUDY.buffers(small, H200)["out"].shape == want["out"].shape


def test_written_numbers():
    _, want = data(SHAPE("dram_write", 16 * KIB))
    for i in (0, 1, 2, 4095):
        bits = np.uint32(0x3F800000 | (i * 2654435761 % 2**32) >> 9)
        assert want["out"][i] == bits.view(np.float32)
    assert verdict(SHAPE("dram_write", 16 * KIB), want["out"].astype(np.float32)) == [""]


def fma_in_steps(x, steps):
    b, chain = x[:, 8], x[:, :8].copy()
    for _ in range(steps):  # float64 holds the product exactly, so that the sum is rounded (almost) once, as an FMA does
        chain = (np.float64(-(1 - 2.0**-10)) * chain + b[:, None]).astype(np.float32)
    return chain.sum(axis=1, dtype=np.float32)


def test_the_closed_form_of_the_fma_chains_and_a_missing_step():
    shape = SHAPE("fp32_fma", 64 * KIB)
    given, _ = data(shape)
    assert verdict(shape, fma_in_steps(given["x"], 512).ravel()) == [""]
    assert "norm_relative" in verdict(shape, fma_in_steps(given["x"], 511).ravel())[0]


def truncate(values, bits):
    return (values.view(np.uint32) >> np.uint32(bits) << np.uint32(bits)).view(np.float32)


@pytest.mark.parametrize("name", MMA)
def test_mma_adds_all_eight_products_256_times(name):
    shape = SHAPE(name, 32 * KIB)  # 64 tiles, one a slice
    given, _ = data(shape)
    kept = {"mma_bf16": lambda v: truncate(v, 16), "mma_tf32": lambda v: truncate(v, 13), "mma_fp16": np.float16}[name]
    a, b = (kept(given[which]).astype(np.float32) for which in "ab")

    def steps(count):
        sums = np.zeros((64, 2, 4, 16, 8), np.float32)
        for _ in range(count):
            for i in range(2):
                for j in range(4):
                    sums[:, i, j] += a[:, i] @ b[:, j]
        return sums.sum(axis=(1, 2), dtype=np.float32).ravel()

    assert verdict(shape, steps(256)) == [""]
    assert "norm_relative" in verdict(shape, steps(255))[0]


# ---------------------------------------------------------------- machine code
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_120"])
def test_the_machine_code_is_what_a_ceiling_needs(architecture):
    wanted = {"dram_read": {"LDG.128": 8}, "dram_write": {"STG.128": 4}, "dram_copy": {"LDG.128": 1, "STG.128": 1},
              "dram_triad": {"LDG.128": 8, "STG.128": 4}, "l2_read": {"LDG.128": 8}, "fp32_fma": {"FFMA": 256},
              **dict.fromkeys(MMA, {"HMMA": 32}), "empty": {}}
    for name, classes in wanted.items():
        found = STUDY.version(name).kernels[0].resources(architecture)
        assert {label: found.sass.get(label) for label in classes} == classes, name
        assert found.spill_store_bytes + found.spill_load_bytes + found.stack_bytes == 0, name
        assert found.registers <= 64, name  # four blocks of 256 an SM


def test_a_read_bypasses_l1():
    assert "ld.global.cg" in STUDY.version("l2_read").kernels[0].binary("sm_90").ptx


def test_a_plan_of_all_times_each_ceiling_alone_and_sustained_ones_for_long():
    plan = make_plan(STUDY, FOLDER, H200)
    assert len(plan.items) == len(STUDY.shapes)
    for item in plan.items:
        assert (item.spec["min_warmup_seconds"] >= 2) == (item.shape["duty"] == "sustained")
    assert TimingSpec(**plan.items[-1].spec).batch_seconds == 0.04


def copy_all(grid, block, arguments, dynamic_shared):
    x, out = arguments
    out[:] = x


def test_a_fake_gpu_checks_and_times_copies_and_launches():
    shapes = [SHAPE("dram_copy", 32 * KIB), SHAPE("empty"), SHAPE("empty_pair")]
    plan = make_plan(STUDY, FOLDER, H200, shapes=shapes, quick=True)
    device = FakeGpu({"copy_all": Kernel(f"{__name__}:copy_all")})
    found = [result for item in plan.items for result in Bench(device, STUDY).run_group([item], plan.binaries, plan.tools)]
    assert [result["kind"] for result in found] == ["check", "timing"] * 3
    assert all(result["payload"]["passed"] for result in found[::2])
    assert len(found[-1]["payload"]["parts"]) == 2


# ---------------------------------------------------------------- roofs of records
def keep(store, shape, cold, hot, sm_hz=1.9e9, code=None, utc="2026-11-30T01:00:00Z"):
    timing = Timing(*(Series((seconds,) * 6, "steady", 1, sm_hz) for seconds in (cold, hot)), 1e-6, 1e-6, {}, {})
    identity = asdict(identity_of(STUDY, STUDY.version(shape.ceiling), shape, H200))
    provenance = {**identity, "utc": utc, **({"code": code} if code else {})}
    store.add([Record("ceilings", shape.ceiling, shape_sizes(shape), "timing", timing.to_dict(),
                      {"name": "NVIDIA H200", "uuid": "GPU-0", "capability": "9.0"}, provenance)])


@pytest.fixture
def store(tmp_path):
    store = RecordStore(tmp_path)
    keep(store, SHAPE("dram_read"), cold=0.25e-3, hot=0.2e-3)
    keep(store, SHAPE("dram_copy"), cold=0.1e-3, hot=0.125e-3)
    keep(store, SHAPE("l2_read", 24 * MIB), cold=1.0, hot=0.11e-3)
    keep(store, SHAPE("l2_read", 128 * MIB), cold=1.0, hot=0.2e-3)
    keep(store, SHAPE("fp32_fma"), cold=2e-3, hot=1.1e-3, sm_hz=1.98e9)
    keep(store, SHAPE("fp32_fma", duty="sustained"), cold=2e-3, hot=1.25e-3, sm_hz=1.7e9)
    keep(store, SHAPE("mma_bf16"), cold=2e-3, hot=0.9e-3)
    keep(store, SHAPE("empty"), cold=1.5e-6, hot=1e-6, sm_hz=None)
    return store


def test_roofs_of_a_type(store):
    read, copy, l2, fma = measured_roofs(store, "H200", "float32", FOLDER)
    assert read.value == pytest.approx(((1 << 30) + (1 << 20)) / 0.25e-3)  # cold
    assert copy.value == pytest.approx((1 << 31) / 0.125e-3)  # hot
    assert l2.name == "L2 read of 24 MiB" and l2.level == "L2" and (read.level, copy.level) == ("DRAM", "DRAM")
    assert fma.value == pytest.approx(33 * MIB / 4 * 8 * 512 * 2 / 1.1e-3) and fma.level == ""
    assert all(roof.is_measured for roof in (read, copy, l2, fma))
    assert str(fma.origin) == "measured (H200, 2026-11-30, burst, SM clock 1,980 MHz)"
    assert measured_roofs(store, "H200", "bfloat16", STUDY)[-1].name == "bfloat16 mma.sync"
    assert [roof.name for roof in measured_roofs(store, "H200", "float64", STUDY)] == ["DRAM read", "DRAM copy", l2.name]
    assert measured_roofs(store, "B200", "float32", STUDY) == ()


def test_a_rate_is_divided_by_the_ceiling_of_its_duty(store):
    found = ceilings(store, "H200", STUDY)
    burst, sustained = (of_ceiling(found, "float32 FMA", duty) for duty in ("burst", "sustained"))
    assert burst.value / sustained.value == pytest.approx(1.25 / 1.1) and sustained.sm_hz == 1.7e9
    assert measured_roofs(store, "H200", "float32", STUDY, "sustained")[-1].value == sustained.value
    assert of_ceiling(found, "DRAM read", "sustained") is None


def test_a_stale_record_is_no_ceiling(store):
    keep(store, SHAPE("dram_read"), 1e-3, 1e-3, code="another", utc="2026-12-01T01:00:00Z")
    assert "DRAM read" not in {ceiling.name for ceiling in ceilings(store, "H200", STUDY)}


def test_the_table_names_clock_datasheet_and_share(store):
    text = str(ceilings_table(store, "H200", STUDY))
    lines = {tuple(line.split("  ")[0:1]): line for line in text.splitlines()}
    assert "4,299 GB/s" in lines["DRAM read",] and "4,800 GB/s" in lines["DRAM read",] and "89.6 %" in lines["DRAM read",]
    assert "989 TFLOP/s" in lines["bfloat16 mma.sync",] or "990 TFLOP/s" in lines["bfloat16 mma.sync",]
    assert "1.50 us" in lines["empty launch",] and "cold" in lines["empty launch",]
    assert [line.split()[2] for line in text.splitlines() if line.startswith("float32 FMA")] == ["burst", "sustained"]
    assert "1,700 MHz" in text and "L2 read of 24 MiB" in text and "128 MiB" not in text


def test_the_l2_curve_has_every_working_set(store):
    picture = l2_curve(store, "H200", STUDY)
    assert "24: " in str(picture) and "128: " in str(picture) and "DRAM read: 4,299 GB/s" in str(picture)
    assert picture.png().startswith(b"\x89PNG")


def test_no_records_is_an_error_that_says_what_to_do(tmp_path):
    for shown in (ceilings_table, l2_curve):
        with pytest.raises(PerflabError, match="perflab measure ceilings"):
            shown(RecordStore(tmp_path), "H200", STUDY)
