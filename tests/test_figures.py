from __future__ import annotations

import io
import subprocess
import sys

import matplotlib
import pytest

from perflab import figures
from perflab.figures import Picture


def draw():
    figure, axes = figures.frame("Twice as fast", "NVIDIA H200", "measured (H200, 2026-11-29)")
    axes.plot([1, 2, 4], [3, 5, 9], figures.marker(0), color=figures.color(0), label="naive")
    axes.set_xlabel("FLOP/B")
    axes.set_ylabel("TFLOP/s")
    axes.legend()
    return figure


@pytest.fixture
def picture():
    return Picture("Twice as fast\n  naive 9.00 TFLOP/s", draw)


def test_the_same_figure_gives_the_same_bytes(picture):
    assert picture.png() == picture.png()


def test_the_reader_s_own_style_changes_nothing(picture):
    before = picture.png()
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black", "lines.linewidth": 9}):
        assert picture.png() == before
        assert matplotlib.rcParams["font.size"] == 30, "the house style leaks into the reader's own figures"


def test_png_holds_no_date_and_no_version(picture):
    png = picture.png()
    assert png.startswith(b"\x89PNG")
    for words in (b"tEXt", b"tIME", b"atplotlib"):
        assert words not in png


def test_the_bundle_is_the_text_and_the_png(picture):
    bundle = picture._repr_mimebundle_()
    assert bundle == {"text/plain": str(picture), "image/png": picture.png()}
    assert picture.markdown() == f"```text\n{picture.text}\n```"


def test_a_frame_says_title_device_and_origin(picture):
    figure = picture.figure()
    assert figure.get_suptitle() == "Twice as fast"
    assert figure.axes[0].get_title(loc="left") == "NVIDIA H200"
    assert figure.get_supxlabel() == "origin: measured (H200, 2026-11-29)"


def test_a_long_origin_wraps_inside_the_picture():
    def long():
        return figures.frame("t", "d", "measured (NVIDIA H200, 2026-11-29) + " * 8)[0]

    figure = Picture("t", long).figure()
    figure.draw_without_rendering()
    box = figure._supxlabel.get_window_extent()
    assert "\n" in figure.get_supxlabel()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0


def test_colours_and_markers_start_over():
    assert figures.color(0) == figures.color(len(figures.PALETTE))
    assert len(set(figures.PALETTE)) == len(figures.PALETTE) == len(set(figures.MARKERS))
    assert [figures.marker(k) for k in range(7)] == list(figures.MARKERS)
    assert len({(figures.color(k), figures.marker(k)) for k in range(50)}) == 49  # no two of a picture look the same


def test_drawing_never_loads_pyplot_and_importing_never_loads_matplotlib():
    code = (
        "import sys; from perflab import figures; assert 'matplotlib' not in sys.modules;"
        "figures.Picture('t', lambda: figures.frame('t')[0]).png(); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_colour_of_few_pixels_stays_itself_in_the_file():
    """Every colour of the palette as a dot or two on a page of greys: what is quantised by area alone moves such a colour."""
    from matplotlib.colors import to_rgb
    from PIL import Image

    def dots():
        figure, axes = figures.frame("Dots", "", "")
        axes.imshow([[k / 255 for k in range(256)]], cmap="gray", aspect="auto", extent=(0, 10, 0, 1))
        for k, color in enumerate(figures.PALETTE):
            axes.plot(k, 2, "s", color=color, markersize=3)
        return figure

    image = Image.open(io.BytesIO(Picture("t", dots).png())).convert("RGB")
    there = {color for _, color in image.getcolors(1 << 20)}
    assert {tuple(round(255 * part) for part in to_rgb(color)) for color in ("white", *figures.PALETTE)} <= there
    assert image.getpixel((2, 2)) == (255, 255, 255)
    assert len(there) <= figures.TINTS + len(figures.PALETTE) + 1
