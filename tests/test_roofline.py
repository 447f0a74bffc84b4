"""Which roof binds, how far a point is from it, and what is said of a point that cannot be."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.errors import PerflabError
from perflab.gpus import from_device, gpu, gpu_names
from perflab.origins import Origin
from perflab.roofline import (
    BYTES,
    FLOPS,
    Point,
    Roof,
    Roofline,
    counted_points,
    datasheet_roofs,
    level_points,
    level_roofs,
)

HERE = Origin("measured", "H200, 2026-01-05")
COMPUTE, DRAM = Roof("float32", 60e12, FLOPS, HERE), Roof("DRAM", 4e12, BYTES, HERE)


def point(name: str, flops: float, bytes_: float, seconds: float, level: str = "DRAM") -> Point:
    return Point(name, flops, bytes_, seconds, level, origin=HERE)


def test_datasheet_roofs_of_the_h200() -> None:
    compute, dram, shared = datasheet_roofs("H200", "bfloat16")
    assert (compute.name, compute.value, compute.unit) == ("bfloat16", 989.5e12, FLOPS)
    assert (dram.name, dram.value, dram.unit, dram.origin.kind) == ("DRAM", 4.8e12, BYTES, "published")
    assert shared.value == 128 * 132 * 1.98e9 and shared.origin.kind == "calculated"


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_has_float32_roofs_and_no_invented_l2(name: str) -> None:
    roofs = datasheet_roofs(name, "float32")
    assert [roof.unit for roof in roofs].count(FLOPS) == 1
    assert "L2" not in [roof.level for roof in roofs]
    assert ("DRAM" in [roof.level for roof in roofs]) == (gpu(name).memory_bytes_per_second is not None)


def test_a_peak_that_no_datasheet_gives_is_calculated_for_float32_only() -> None:
    found = from_device({"name": "NVIDIA Unlisted", "capability": "12.0", "sm_count": 10, "clock_hz": 2e9})
    compute = datasheet_roofs(found, "float32")[0]
    assert compute.value == 10 * 128 * 2 * 2e9 and compute.origin.kind == "calculated"
    with pytest.raises(PerflabError, match="bfloat16 peak of the NVIDIA Unlisted is not known; known: none"):
        datasheet_roofs(found, "bfloat16")


@pytest.mark.parametrize(
    ("name", "dtype", "words"),
    [
        ("sm_90", "float32", "sm_90.*architecture.*H200"),
        ("H200", "float31", "float31.*Did you mean.*Known: float64"),
        ("T4", "bfloat16", "bfloat16 peak of the T4 is not known; known: float32, float16"),
    ],
)
def test_no_roofs(name: str, dtype: str, words: str) -> None:
    with pytest.raises(PerflabError, match=words):
        datasheet_roofs(name, dtype)


def test_which_roof_binds() -> None:
    low = point("low", 1e12, 1e12, 1.0).bound([COMPUTE, DRAM])
    assert (low.roof, low.attainable, low.fraction, low.diagnosis) == (DRAM, 4e12, 0.25, "")
    high = point("high", 30e12, 1e9, 1.0).bound([COMPUTE, DRAM])
    assert (high.roof, high.attainable, high.fraction) == (COMPUTE, 60e12, 0.5)
    copy = point("copy", 0, 2e12, 1.0).bound([COMPUTE, DRAM])
    assert (copy.roof, copy.fraction, copy.attainable) == (DRAM, 0.5, 0)
    register = point("no memory", 1e12, 0, 1.0)
    assert register.intensity == float("inf") and register.bound([COMPUTE, DRAM]).roof is COMPUTE


@given(
    flops=st.floats(1e3, 1e15),
    bytes_=st.floats(1e3, 1e13),
    seconds=st.floats(1e-6, 10),
    peak=st.floats(1e9, 1e16),
    rate=st.floats(1e9, 1e14),
)
def test_attainable_is_the_roofline_formula(flops: float, bytes_: float, seconds: float, peak: float, rate: float) -> None:
    here = point("p", flops, bytes_, seconds)
    bound = here.bound([Roof("float32", peak, FLOPS, HERE), Roof("DRAM", rate, BYTES, HERE)])
    assert bound.attainable == pytest.approx(min(peak, here.intensity * rate))
    assert bound.fraction == pytest.approx(here.rate / bound.attainable)
    assert bool(bound.diagnosis) == (bound.fraction > 1)


def test_a_measured_roof_comes_before_the_datasheet() -> None:
    published = datasheet_roofs("H200", "float32")
    measured = Roof("DRAM copy", 4.3e12, BYTES, HERE)
    here = point("p", 1e9, 1e12, 1.0)
    assert here.bound(published).roof.value == 4.8e12
    assert here.bound([*published, measured]).roof is measured


def test_a_point_belongs_to_its_level() -> None:
    l2 = Roof("L2 read", 9.8e12, BYTES, HERE)
    assert point("p", 1e9, 1e12, 1.0, level="L2").bound([COMPUTE, DRAM, l2]).roof is l2
    with pytest.raises(PerflabError, match='"p" has no memory roof of level L2 among: float32, DRAM'):
        point("p", 1e9, 1e12, 1.0, level="L2").bound([COMPUTE, DRAM])
    with pytest.raises(PerflabError, match="no compute roof"):
        point("p", 1e9, 1e12, 1.0).bound([DRAM])


def test_above_the_memory_roof_is_a_diagnosis() -> None:
    in_cache = point("fill", 1e6, 16e6, 16e6 / 5.5e12)
    words = in_cache.bound(datasheet_roofs("H200", "float32"), gpu("H200").l2_bytes).diagnosis
    assert words.startswith("fill is above the roof, at 114.6 % of DRAM: its 16.0 MB fit into the L2 cache of 62.9 MB")
    assert "more bytes are counted" in words and "clock" in words and "time is too short" in words
    large = point("large", 1e6, 16e9, 16e9 / 5.5e12).bound([COMPUTE, DRAM], gpu("H200").l2_bytes).diagnosis
    assert "L2" not in large and "clock" not in large and "more bytes" in large


def test_above_the_compute_roof_is_a_diagnosis() -> None:
    words = point("gemm", 1.4e15, 1e9, 1.0).bound(datasheet_roofs("H200", "bfloat16")).diagnosis
    assert "sparse peak" in words and "factor of two" in words and "clock" in words and "141.5 % of bfloat16" in words


@pytest.mark.parametrize("work", [(1, 1, 0), (1, 1, -1), (0, 0, 1), (-1, 1, 1), (1, 1, float("nan"))])
def test_a_point_needs_work_and_time(work: tuple[float, float, float]) -> None:
    with pytest.raises(PerflabError, match='point "p"'):
        point("p", *work)


@pytest.mark.parametrize(("value", "unit"), [(0, FLOPS), (-1, BYTES), (1, "GB/s")])
def test_a_roof_needs_a_value_and_a_unit(value: float, unit: str) -> None:
    with pytest.raises(PerflabError, match='roof "r"'):
        Roof("r", value, unit, HERE)


def ladder() -> Roofline:
    times = {"naive": 19.6e-3, "head_tile": 20.7e-3, "kv_split": 5.96e-3, "float4": 2.2e-3, "cp_async": 2.1e-3, "best": 2.0e-3}
    points = [point(name, 2.4e10, 2.4e9 if name == "naive" else 3e8, seconds) for name, seconds in times.items()]
    return Roofline("H200", "float32", points, (*datasheet_roofs("H200", "float32"), Roof("DRAM copy", 4.3e12, BYTES, HERE)))


def test_the_table_says_what_binds_and_where_it_is_from() -> None:
    text = str(ladder())
    assert text.startswith("Roofline (float32) on H200") and text == str(ladder())
    naive = next(line for line in text.splitlines() if line.startswith("naive"))
    assert naive.split() == ["naive", "19.6", "ms", "10.0", "1.22", "122", "DRAM", "2.8", "%", "DRAM", "copy", "(measured)"]
    for words in ("origin: measured (H200, 2026-01-05)", "roof DRAM 4,800 GB/s, published (datasheet of the H200)"):
        assert words in text
    assert "above the roof" in str(Roofline("H200", "float32", [point("p", 1e6, 16e6, 1e-6)]))
    assert "| naive |" in ladder().markdown()


def test_the_picture_names_every_point_once_and_no_name_covers_another() -> None:
    figure = ladder().figure()
    figure.draw_without_rendering()
    texts = [text for text in figure.axes[0].texts if text.get_text()]
    for one in ladder().points:
        assert [text.get_text() for text in texts].count(one.name) == 1
    names = [text for text in texts if not text.get_rotation()]
    boxes = [text.get_window_extent() for text in names if text.arrow_patch is None]
    assert len(boxes) == len(ladder().points) + 1  # and the compute roof
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    arrows = [text for text in figure.axes[0].texts if text.arrow_patch is not None and text.arrow_patch.get_mutation_scale()]
    assert len(arrows) >= len(ladder().points) - 1


def test_datasheet_roofs_are_dashed_and_measured_ones_solid() -> None:
    styles = {line.get_linestyle() for line in ladder().figure().axes[0].lines[:3]}
    assert styles == {"--"} and ladder().figure().axes[0].lines[3].get_linestyle() == "-"


def test_a_notebook_gets_text_and_the_same_png_each_time() -> None:
    bundle = ladder()._repr_mimebundle_()
    assert bundle["text/plain"] == str(ladder()) and bundle["image/png"][:4] == b"\x89PNG"
    assert bundle["image/png"] == ladder()._repr_mimebundle_()["image/png"]


@pytest.mark.parametrize(
    "points",
    [[], [point("copy", 0, 1e9, 1.0)], [point(f"same{k}", 1e9, 1e9, 1e-3) for k in range(12)], [point("fast", 1e9, 1e6, 1e-6)]],
)
def test_pictures_at_the_edge(points: list[Point]) -> None:
    found = Roofline("H200", "float32", points)
    assert found._repr_mimebundle_()["image/png"]
    assert all(one.name in str(found) for one in points)


def counted(kernel: str, seconds: float) -> list[Point]:
    return counted_points(kernel, 2.4e10, {"asked": 2.4e9, "sectors": 3e9, "unique": 4e7}, seconds, HERE)


def test_counted_bytes_make_three_points_of_one_time() -> None:
    points = counted("naive", 0.02)
    assert [(p.name, p.intensity) for p in points] == [
        ("naive: sectors", 8.0), ("naive: asked", 10.0), ("naive: unique", 600.0)]
    assert len({(p.rate, p.kernel) for p in points}) == 1
    text = str(Roofline("H200", "float32", points))
    assert "naive: unique" in text and text.count("20.0 ms") == 3


def test_points_of_one_kernel_are_joined_in_one_colour_and_kernels_are_not() -> None:
    axes = Roofline("H200", "float32", [*counted("naive", 0.02), *counted("best", 0.002)]).figure().axes[0]
    patches = [text.arrow_patch for text in axes.texts if text.arrow_patch is not None and not text.get_text()]
    joins = [patch for patch in patches if patch.get_linestyle() not in ("-", "solid")]
    assert len(joins) == 4
    markers = [line for line in axes.lines if line.get_marker() not in ("", "None", None)]
    assert len({line.get_color() for line in markers}) == 2 and len(markers) == 6


# ---------------------------------------------------------------- levels of memory
def test_levels_are_points_of_one_kernel_each_under_the_roof_of_its_level() -> None:
    measured = [Roof("DRAM read", 4.5e12, BYTES, HERE), Roof("L2 read of 8 MiB", 9e12, BYTES, HERE),
                Roof("float32 FMA", 64e12, FLOPS, HERE)]
    roofs = level_roofs("H200", "float32", measured)
    assert [(roof.name, roof.origin.kind) for roof in roofs] == [
        ("DRAM read", "measured"), ("L2 read of 8 MiB", "measured"), ("float32 FMA", "measured"), ("L1", "calculated")]
    points = level_points("k", 1e9, {"L1": 16e9, "L2": 9e9, "DRAM": 0}, 2e-3, HERE)
    assert [(one.name, one.level, one.kernel) for one in points] == [("k: L1", "L1", "k"), ("k: L2", "L2", "k")]
    found = Roofline("H200", "float32", points, roofs, "Levels", "n 1")
    assert [(one.roof.name, round(one.fraction, 3)) for one in found.bounds] == [("L1", 0.239), ("L2 read of 8 MiB", 0.5)]
    assert str(found).startswith("Levels at n 1 (float32) on H200") and found._repr_mimebundle_()["image/png"]


def test_without_measured_roofs_a_level_has_the_datasheets() -> None:
    assert [roof.name for roof in level_roofs("H200", "float32", ())] == ["float32", "DRAM", "L1"]


def test_long_names_of_memory_roofs_do_not_run_into_each_other() -> None:
    measured = [Roof("DRAM read", 4.5e12, BYTES, HERE), Roof("L2 read of 8 MiB", 9e12, BYTES, HERE)]
    axes = Roofline("H200", "float32", counted("k", 0.02), level_roofs("H200", "float32", measured)).figure().axes[0]
    turned = [text for text in axes.texts if text.get_rotation()]
    starts = sorted(axes.transData.transform(text.xy)[0] for text in turned)
    assert len(turned) == 3 and starts[2] - starts[1] > 5 * len("DRAM read 4,500 GB/s (measured)") - 1
