"""A study's ladder in a README: docs/ladder.png, its numbers inside it as text, and one sentence of the same numbers."""

from __future__ import annotations

import io
import re
from pathlib import Path

from perflab.errors import PerflabError
from perflab.figures import Picture
from perflab.workbench import Workbench

PICTURE = Path("docs") / "ladder.png"
README = Path("README.md")
BEGIN, END = "<!-- perflab readme -->", "<!-- /perflab readme -->"
TEXT = "Description"  # of the PNG: its numbers, so that a picture that no longer says what the records say is found out
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_ROW = re.compile(r"^  (\S.*?)\s{2,}([\d,.]+ (?:us|ms|s))$", re.MULTILINE)


def ladder(bench: Workbench, gpu: str) -> Picture:
    """The ladder at the study's first shape: the versions that are taken at every shape."""
    main = (bound.name for bound in bench.versions if bound.version.shapes is None)
    return bench.only(*main).ladder(bench.study.shapes[0], gpu)


def sentence(text: str) -> str:
    """The first and the fastest version, then rival and floor, from the text of a ladder. PerflabError for another text."""
    rows, where = _ROW.findall(text), re.match(r"(.+): the ladder \[(.+)\]", text)
    steps = [(name, time) for name, time in rows if not name.endswith("(rival)") and " floor " not in name]
    if not steps or not where:
        raise PerflabError(f"{text.splitlines()[:1]} is no ladder: its first line says so, and a row is a version and its time")
    best = min(steps, key=lambda step: _seconds(step[1]))
    levels = [f"{name.removesuffix(' (rival)')} {time}" for name, time in rows if (name, time) not in steps]
    (first, slow), times = steps[0], _seconds(steps[0][1]) / _seconds(best[1])
    return (f"{where[1]} on {where[2]}: `{first}` {slow}, `{best[0]}` {best[1]}, {times:,.0f} times as fast"
            + (f"; beside them {', '.join(levels)}." if levels else "."))


def _seconds(words: str) -> float:
    number, unit = words.replace(",", "").split()
    return float(number) * UNITS[unit]


def block(text: str) -> str:
    """What stands between the marks of the README: the picture and the sentence."""
    return f"{BEGIN}\n![Cold time of each version]({PICTURE.as_posix()})\n\n{sentence(text)}\n{END}"


def with_text(png: bytes, text: str) -> bytes:
    """The picture with a text inside. The same bytes each time."""
    from PIL import Image, PngImagePlugin

    chunks, stream = PngImagePlugin.PngInfo(), io.BytesIO()
    chunks.add_itxt(TEXT, text)
    Image.open(io.BytesIO(png)).save(stream, "PNG", pnginfo=chunks, optimize=True)
    return stream.getvalue()


def text_in(png: bytes) -> str:
    """The text inside a picture; '' without one."""
    from PIL import Image

    return str(getattr(Image.open(io.BytesIO(png)), "text", {}).get(TEXT, ""))


def write(picture: Picture, root: Path) -> tuple[Path, ...]:
    """Write root/docs/ladder.png, and the lines between the marks of root/README.md; the paths.

    PerflabError for a README without the marks: the picture is written all the same.
    """
    (root / PICTURE).parent.mkdir(exist_ok=True)
    (root / PICTURE).write_bytes(with_text(picture.png(), picture.text))
    readme = root / README
    before, begin, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise PerflabError(f"{README} has no place for the picture: put the lines {BEGIN} and {END} where it should stand")
    readme.write_text(before + block(picture.text) + after, encoding="utf-8")
    return root / PICTURE, readme
