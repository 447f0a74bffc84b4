"""The picture in the README: generated, and of today's records; found out where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import perflab as pl
from perflab import figures, readme
from perflab.cli import app
from perflab.errors import PerflabError
from perflab.figures import Picture

ROOT = Path(__file__).parent.parent
LIMIT_BYTES = 120_000
AGAIN = "make readme-plot"
TEXT = """Sums: the ladder [H200, size 8]
  first                        1,204 ms
  slow step                    1.30 s
  best                         301 us
  Other thing (rival)          55.6 us
  float32 floor of datasheet   9.00 us
  origin: measured (H200, 2026-11-30)"""


def drawn(text: str = TEXT) -> Picture:
    return Picture(text, lambda: figures.frame("Sums")[0])


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "README.md").write_text(f"# Sums\n\n{readme.BEGIN}\nstale words\n{readme.END}\n\nMore.\n")
    return tmp_path


@pytest.fixture(scope="module")
def today():
    pl.workspace(ROOT)
    return readme.ladder(pl.study("verify_attention"), "H200").text


def test_the_committed_picture_shows_today_s_records(today):
    png = (ROOT / readme.PICTURE).read_bytes()
    assert readme.text_in(png) == today, AGAIN
    assert len(png) <= LIMIT_BYTES


def test_the_readme_says_what_the_picture_shows(today):
    assert readme.block(today) in (ROOT / readme.README).read_text(), AGAIN


def test_the_ladder_has_no_points_of_tunables(today):
    assert "naive " in today and "register_tile" in today and "head_tiles_1 " not in today


def test_the_sentence_names_the_first_and_the_fastest_in_any_unit():
    assert readme.sentence(TEXT) == (
        "Sums on H200, size 8: `first` 1,204 ms, `best` 301 us, 4,000 times as fast; beside them Other thing 55.6 us, "
        "float32 floor of datasheet 9.00 us."
    )


def test_the_sentence_without_rival_and_floor_ends_there():
    alone = "\n".join(line for line in TEXT.splitlines() if "rival" not in line and "floor" not in line)
    assert readme.sentence(alone).endswith("times as fast.")


@pytest.mark.parametrize("text", ["", "Sums: a table\n  first  1.00 us", "Sums: the ladder [H200]\n  origin: none"])
def test_another_text_is_refused(text):
    with pytest.raises(PerflabError, match="no ladder"):
        readme.sentence(text)


def test_written_twice_it_is_the_same_and_only_between_the_marks(folder):
    readme.write(drawn(), folder)
    once = {path: (folder / path).read_bytes() for path in (readme.PICTURE, readme.README)}
    readme.write(drawn(), folder)
    assert once == {path: (folder / path).read_bytes() for path in once}
    text = once[readme.README].decode()
    assert text.startswith("# Sums\n\n") and text.endswith("\n\nMore.\n") and "stale words" not in text
    assert readme.sentence(TEXT) in text and "(docs/ladder.png)" in text


def test_a_picture_of_other_records_is_found_out(folder):
    readme.write(drawn(), folder)
    later = TEXT.replace("301 us", "299 us")
    assert readme.text_in((folder / readme.PICTURE).read_bytes()) == TEXT != later
    assert readme.block(later) not in (folder / readme.README).read_text()


def test_a_picture_without_text_says_nothing():
    assert readme.text_in(drawn().png()) == ""


def test_a_readme_without_marks_says_which(tmp_path):
    (tmp_path / "README.md").write_text("# Sums\n")
    with pytest.raises(PerflabError, match="put the lines <!-- perflab readme -->"):
        readme.write(drawn(), tmp_path)
    assert (tmp_path / "README.md").read_text() == "# Sums\n"


def test_the_command_writes_both_and_says_so(folder, monkeypatch):
    (folder / "kernels" / "sums").mkdir(parents=True)
    (folder / "kernels" / "sums" / "study.py").touch()
    monkeypatch.setattr("perflab.workbench.study", lambda name: name)
    monkeypatch.setattr(readme, "ladder", lambda bench, gpu: drawn(TEXT.replace("H200", f"{gpu} of {bench}")))
    pl.workspace(folder)
    try:
        found = CliRunner().invoke(app, ["readme", "sums", "--gpu", "L4"])
    finally:
        pl.workspace(ROOT)
    assert found.exit_code == 0, found.output
    assert "docs/ladder.png" in found.output and "README.md" in found.output
    assert "Sums on L4 of sums" in (folder / "README.md").read_text()
