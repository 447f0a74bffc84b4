from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab import tables
from perflab.tables import Table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (8.1e-7, "0.810 us"),
        (336.4e-6, "336 us"),
        (999.6e-6, "1.00 ms"),  # rounds up into the next unit, not to "1,000 us"
        (1.214e-3, "1.21 ms"),
        (0.1214, "121 ms"),
        (2.5, "2.50 s"),
        (0, "0 us"),
        (math.nan, "-"),
        (None, "-"),
    ],
)
def test_seconds(value, text):
    assert tables.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (71680, "71,680 B"), (999_999, "999,999 B"), (4.83e9, "4.83 GB"), (1.2e12, "1.20 TB"), (None, "-")],
)
def test_bytes_are_exact_when_small_and_decimal_when_large(value, text):
    assert tables.bytes_(value) == text


def test_rates_and_shares():
    assert tables.bytes_per_second(4.812e12) == "4,812 GB/s"
    assert tables.flops_per_second(44.32e12) == "44.3 TFLOP/s"
    assert tables.flops_per_second(8.1e10) == "0.0810 TFLOP/s"
    assert tables.percent(0.6618) == "66.2 %"
    assert tables.ratio(1.8449) == "1.84x"
    nothing = [tables.bytes_per_second, tables.flops_per_second, tables.percent, tables.ratio]
    assert [write(math.nan) for write in nothing] == ["-"] * 4
    assert [write(None) for write in nothing] == ["-"] * 4


@given(st.floats(min_value=1e-4, max_value=1e15))
def test_decimal_is_within_half_a_unit_of_the_third_digit(value):
    written = float(tables.decimal(value).replace(",", ""))
    assert abs(written - value) <= 0.5001 * 10.0 ** (math.floor(math.log10(value)) - 2) or abs(written - value) <= 0.5


@given(st.floats(min_value=1e-9, max_value=1e4))
def test_seconds_never_shows_a_thousand_of_a_unit_that_has_a_larger_one(value):
    number, unit = tables.seconds(value).split()
    assert unit == "s" or float(number.replace(",", "")) < 1000


def test_cells():
    assert tables.cell(None) == "-"
    assert tables.cell(True) == "yes"
    assert tables.cell(71680) == tables.cell(np.int64(71680)) == "71,680"
    assert tables.cell(0.5) == tables.cell(np.float32(0.5)) == "0.500"
    assert tables.cell("16") == "16"


def table():
    rows = [["naive", "336 us", 71680], ["kv|split <b>", "1.21 ms", None]]
    return Table("Times on H200", ["version", "time", "bytes"], rows, origin="measured (H200)", notes=["cold"])


def test_text_aligns_quantities_to_the_right_and_names_to_the_left():
    assert str(table()).splitlines() == [
        "Times on H200",
        "version          time   bytes",
        "------------  -------  ------",
        "naive          336 us  71,680",
        "kv|split <b>  1.21 ms       -",
        "origin: measured (H200)",
        "note: cold",
    ]


def test_words_that_begin_with_a_digit_stay_left():
    text = str(Table("t", ["file"], [["00_naive.cu"], ["10"]]))
    assert text.splitlines()[-1] == "10"


def test_a_table_without_rows_has_its_headings():
    assert str(Table("empty", ["a", "bc"], [])) == "empty\na  bc\n-  --"


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="1 cells .* under 2 columns"):
        Table("t", ["a", "b"], [["x"]])


def test_html_has_nothing_that_an_untrusted_notebook_loses():
    html = table()._repr_mimebundle_()["text/html"]
    assert not re.search(r"<(style|script|svg|iframe)|class=|id=", html)
    assert set(re.findall(r"<(\w+)", html)) == {"div", "table", "thead", "tbody", "tr", "th", "td"}
    assert "kv|split &lt;b&gt;" in html and "<b>" not in html


def test_markdown_escapes_pipes_and_keeps_the_columns():
    lines = table().markdown().splitlines()
    assert lines[0] == "**Times on H200**"
    assert lines[3] == "| :--- | ---: | ---: |"
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines[2:6]} == {4}
    assert "*origin: measured (H200)*" in table().markdown()


def test_the_bundle_says_the_same_as_the_text():
    bundle = table()._repr_mimebundle_()
    assert bundle["text/plain"] == str(table())
    assert bundle == table()._repr_mimebundle_()
