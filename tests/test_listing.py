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


def test_numbers_beside_lines():
    listing = Listing("k.cu", AFTER, beside={1: (90, "1.5"), 4: (5, "")}, columns=("instr.", "lanes"), marks={3: "race"},
                      origin="counted (test)")
    assert str(listing).splitlines() == [
        "k.cu", "instr.  lanes  line", "    90    1.5     1   int a;", "                  2   int b2;",
        "                  3 ! int c;", "     5            4   int d;", "! line 3: race", "origin: counted (test)"]
    assert listing.markdown().splitlines()[2:4] == ["```text", "instr.  lanes  line"]


def test_busy_and_marked_lines_are_tinted():
    html = Listing("k.cu", AFTER, beside={1: (90, ""), 4: (1, "")}, columns=("instr.", "lanes"), marks={3: "race"}).html()
    rows = html.split('<span style="display:block;')[1:]
    assert [row.startswith("background") for row in rows] == [False, True, False, True, True] and "class=" not in html
    assert "! line 3: race" in html


def test_new_lines_and_numbers_go_together():
    listing = Listing("k.cu", AFTER, BEFORE, "naive", beside={1: (1,)}, columns=("instr.",))
    assert "+ int b2;" in str(listing) and listing.new_lines() == {2, 4}
    assert str(listing).splitlines()[0] == "k.cu: 2 lines new since naive (+)"


def test_long_lines_are_cut_beside_numbers_only():
    text = "int " + "x" * 200 + ";\n"
    assert text.strip() in str(Listing("k.cu", text))
    beside = Listing("k.cu", text, beside={1: (1,)}, columns=("instr.",))
    assert max(map(len, str(beside).splitlines())) < 120 and "…" in str(beside)


def test_large_numbers_beside_a_line_are_short_and_small_ones_exact():
    shown = str(Listing("k.cu", "a;\nb;\nc;", beside={1: (99_999,), 2: (4_663_296,), 3: (7_125_701_000,)}, columns=["n"]))
    assert [row.split()[0] for row in shown.splitlines()[2:5]] == ["99,999", "4.66M", "7.13G"]


def test_lines_above_the_first_number_are_left_out_but_for_two():
    text = "\n".join(f"line {n}" for n in range(1, 8))
    shown = str(Listing("k.cu", text, beside={6: (1,)}, columns=["n"])).splitlines()
    assert [row.split()[-1] for row in shown[2:]] == ["4", "5", "6", "7"]
