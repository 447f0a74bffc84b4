"""The charts: numbers in their text, marks and ticks where they belong."""

import pytest

from perflab.charts import BANDWIDTH, BLOCKS, TIME, Curve, Level, Mark, bars, curves, steps, with_room
from perflab.figures import HEIGHT_INCHES

LINES = [Curve("naive", [256, 1024], [1e-3, 4e-3], 0), Curve("tile", [256], [2e-3], 1, dashed=True)]


def test_the_text_holds_every_number_and_the_origin():
    picture = curves("Time", "H200", "measured (H200)", "prefix", TIME, LINES, [Level("floor", 1e-5)])
    assert str(picture).splitlines() == [
        "Time [H200]",
        "  naive: 256: 1.00 ms, 1,024: 4.00 ms",
        "  tile: 256: 2.00 ms",
        "  floor: 10.0 us",
        "  origin: measured (H200)",
    ]


def test_axes_name_their_unit_and_ticks_are_plain_numbers():
    axes = curves("Time", "H200", "x", "n", TIME, [Curve("a", [2**20, 2**26], [1e-6, 9e-6], 0)]).figure().axes[0]
    assert axes.get_ylabel() == "time [us]" and axes.get_xscale() == axes.get_yscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1,048,576", "67,108,864"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["1", "2", "5", "10"]


def test_a_dashed_curve_has_hollow_markers():
    axes = curves("Time", "H200", "x", "n", TIME, LINES).figure().axes[0]
    assert [line.get_linestyle() for line in axes.lines] == ["-", "--"]
    assert [line.get_markerfacecolor() for line in axes.lines][1] == "white"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("count", "height"), [(1, HEIGHT_INCHES), (16, HEIGHT_INCHES), (20, 5.2), (72, 15.3)])
def test_names_of_many_curves_stand_beside_the_axes_in_a_higher_picture(count, height):
    lines = [Curve(f"head_tiles_{k}: useful", [1, 2], [1e-6, 2e-6], k) for k in range(count)]
    origin = "measured (NVIDIA H200, 2026-11-29) + " * 8  # three lines of it
    figure = curves("Time", "H200", origin, "n", TIME, lines, [Level("floor", 1e-7)]).figure()
    assert figure.get_figheight() == pytest.approx(height, abs=0.1)
    figure.draw_without_rendering()  # warns, an error here, where the axes find no room
    axes, box = figure.axes[0].get_window_extent(), figure.axes[0].get_legend().get_window_extent()
    assert axes.height > figure.bbox.height / 2
    assert box.x0 >= axes.x1 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1


def test_the_name_of_a_level_hides_no_curve():
    line, peak = Curve("a", [1, 2], [4e12, 5e12], 0), Level("peak", 4e12)
    axes = curves("B", "H200", "x", "n", BANDWIDTH, [line], [peak]).figure().axes[0]
    assert axes.texts[0].get_text() == "peak" and axes.texts[0].zorder < axes.lines[0].zorder


def test_values_are_drawn_in_the_unit_of_the_axis():
    axes = curves("B", "H200", "x", "n", BANDWIDTH, [Curve("a", [1, 2], [4e12, 5e11], 0)]).figure().axes[0]
    assert list(axes.lines[0].get_ydata()) == [4000, 500]


def test_bars_start_at_zero_and_carry_marks():
    picture = bars("Blocks", "q_len 9", "calculated", BLOCKS, ["a", "bb"], [72, 576], ["72 of 396", "576"],
                   [Mark("slots", [396, 396])])
    assert str(picture).splitlines()[1:3] == ["  a   72 of 396", "  bb  576"]
    axes = picture.figure().axes[0]
    assert [patch.get_width() for patch in axes.patches] == [72, 576] and axes.get_xlim()[0] == 0
    assert list(axes.lines[0].get_xdata()) == [396, 396]


def test_lengths_must_agree():
    with pytest.raises(ValueError):
        str(bars("t", "d", "o", BLOCKS, ["a"], [1, 2], ["x", "y"]))


def test_steps_are_points_in_order_on_a_logarithmic_axis_with_named_levels():
    picture = steps("ladder", "GPU", "measured (x)", TIME, ["first", "second"], [4e-3, 5e-4],
                           [Level("floor", 1e-4)])
    assert "first   4.00 ms" in str(picture) and "floor   100 us" in str(picture) and "measured (x)" in str(picture)
    axes = picture.figure().axes[0]
    points, floor = axes.lines
    assert list(points.get_xdata()) == pytest.approx([4000, 500]) and list(points.get_ydata()) == [0, 1]
    assert floor.get_xdata()[0] == pytest.approx(100) and axes.get_xscale() == "log" and axes.yaxis.get_inverted()


@pytest.mark.parametrize("sizes", [
    (256, 1024, 4096, 16384, 65536, 131072, 185344), (1024, 131072, 185344), tuple(range(1, 40)),
    (10**6, 10**6 + 1, 10**6 + 2), (0.5, 0.51, 0.6, 1e7, 2e7, 1e9),
])
@pytest.mark.parametrize("name", ["a", "split_by_device: useful = asked"])
def test_labels_below_curves_keep_apart_and_hold_both_ends(sizes, name):
    figure = curves("Time", "H200", "x", "prefix", TIME, [Curve(name, sizes, [1e-6 * x for x in sizes], 0)]).figure()
    figure.draw_without_rendering()  # where they would be drawn, not where they were thought to be
    labels = figure.axes[0].get_xticklabels()
    boxes = [label.get_window_extent() for label in labels]
    middle = list(zip(boxes, boxes[1:], strict=False))[1 if len(boxes) == 2 else 0:]  # two ends alone may lie close
    assert all(left.x1 < right.x0 for left, right in middle)
    assert (labels[0].get_text(), labels[-1].get_text()) == (f"{sizes[0]:,}", f"{sizes[-1]:,.0f}")


def test_a_label_goes_only_where_there_is_no_room():
    assert with_room([256, 1024, 4096, 16384, 65536, 131072, 185344], 5.5) == [256, 1024, 4096, 16384, 65536, 185344]
    assert with_room([65536, 1024, 4096, 16384], 5.5) == [1024, 4096, 16384, 65536]
    assert with_room([], 5) == [] and with_room([7, 7], 5) == [7] and with_room([0, 1, 8, 64], 5) == [1, 8, 64]
