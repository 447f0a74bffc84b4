"""Source listings: which lines are new, in text and in HTML that an untrusted notebook keeps."""

from perflab.listing import Listing

BEFORE = "int a;\nint b;\nint c;\n"
AFTER = "int a;\nint b2;\nint c;\nint d;\n"


def test_new_lines_are_those_the_version_before_lacks():
    assert Listing("k.cu", AFTER, BEFORE, "naive").new_lines() == {2, 4}
    assert Listing("k.cu", AFTER).new_lines() == set()
    assert Listing("k.cu", AFTER, AFTER, "naive").new_lines() == set()


def test_text_marks_them():
    assert str(Listing("k.cu", AFTER, BEFORE, "naive")).splitlines() == [
        "k.cu: 2 lines new since naive (+)", "   1   int a;", "   2 + int b2;", "   3   int c;", "   4 + int d;"]


def test_html_keeps_every_line_and_needs_no_style_sheet():
    text = "/* two\n   lines */\n\nfloat x = 1 < 2;\n"
    html = Listing("k.cu", text).html()
    assert "<style" not in html and "class=" not in html and "&lt;" in html
    assert html.count("display:block") == 4
