"""A kernel's source as a person reads it: numbered, highlighted, with the lines that are new since the version before,
or with numbers beside each line.
"""

from __future__ import annotations

import difflib
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from perflab.tables import cell

_WIDE = 96  # characters of a source line beside numbers in text; longer ones are cut there
_TINTS = ("", "background:#FFF7E0;", "background:#FFE8B8;", "background:#FFD08A;")  # by share of the first column
_BAD = "background:#FDE2E1;"


@dataclass(frozen=True)
class Listing:
    """Source text. With `before`, the lines that `before` does not have are marked with '+'.

    beside: line -> cells under `columns`, which the text shows to the left of the line, large numbers in short; the larger the
    share of a line in the first column's sum, the darker it is in HTML. What stands above the first line with numbers is left
    out, but for two lines. marks: line -> words, shown as '!' and written out below.
    """

    file: str
    text: str
    before: str | None = None
    before_name: str = ""
    beside: Mapping[int, Sequence[object]] = field(default_factory=lambda: MappingProxyType({}))
    columns: Sequence[str] = ()
    marks: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    origin: str = ""

    def new_lines(self) -> frozenset[int]:
        """Line numbers, from 1, that `before` does not have; empty without one. Moved and re-indented lines count as new."""
        return self._new

    @cached_property
    def _new(self) -> frozenset[int]:
        if self.before is None:
            return frozenset()
        matcher = difflib.SequenceMatcher(None, self.before.splitlines(), self.text.splitlines(), autojunk=False)
        return frozenset(line + 1 for tag, _, _, first, end in matcher.get_opcodes() if tag != "equal"
                         for line in range(first, end))

    @property
    def title(self) -> str:
        """The file, and what it is compared with."""
        new = len(self.new_lines())
        return self.file if self.before is None else f"{self.file}: {new} lines new since {self.before_name} (+)"

    def __str__(self) -> str:
        lines = (f"{self._gutter(number)} {line}".rstrip() for number, line in self._shown(self._source_lines()))
        return "\n".join([self.title, *self._head(), *lines, *self._below()])

    def _source_lines(self) -> list[str]:
        """The lines, cut where numbers stand beside them."""
        lines = self.text.splitlines()
        return [line if len(line) <= _WIDE else line[: _WIDE - 1] + "…" for line in lines] if self.columns else lines

    def _shown(self, lines: list[str]) -> list[tuple[int, str]]:
        """Lines with their numbers: with numbers beside them, from just above the first that has some."""
        first = max(min([*self.beside, *self.marks], default=1) - 3, 0) if self.columns else 0
        return list(enumerate(lines, 1))[first:]

    def _gutter(self, number: int) -> str:
        """What stands before a line: its cells, its number, and its sign."""
        sign = "!" if number in self.marks else "+" if number in self._new else " "
        texts = [_short(value) for value in self.beside.get(number, ())] or [""] * len(self.columns)
        cells = [text.rjust(width) for text, width in zip(texts, self._widths, strict=True)]
        return "  ".join([*cells, f"{number:4d} {sign}"])

    @cached_property
    def _widths(self) -> list[int]:
        rows = [[_short(value) for value in row] for row in (self.columns, *self.beside.values())]
        return [max(map(len, column)) for column in zip(*rows, strict=True)]

    def _head(self) -> list[str]:
        if not self.columns:
            return []
        return ["  ".join([*(name.rjust(width) for name, width in zip(self.columns, self._widths, strict=True)), "line"])]

    def _below(self) -> list[str]:
        below = [f"! line {number}: {words}" for number, words in sorted(self.marks.items())]
        return [*below, f"origin: {self.origin}"] if self.origin else below

    def markdown(self) -> str:
        """A fenced block of CUDA C++; with numbers beside it, of text."""
        if self.columns:
            _, body = str(self).split("\n", 1)
            return f"**{self.title}**\n\n```text\n{body}\n```"
        return f"**{self.title}**\n\n```cuda\n{self.text}\n```"

    def html(self) -> str:
        """Highlighted with inline styles only, which JupyterLab keeps in a notebook it does not trust."""
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers.c_like import CudaLexer

        body = highlight("\n".join(self._source_lines()) + "\n", CudaLexer(stripnl=False),
                         HtmlFormatter(noclasses=True, nowrap=True))
        grey = '<span style="color:#6E7781">'
        rows = [f'<span style="display:block;font-weight:bold">{html.escape(head)}</span>' for head in self._head()]
        tints = self._tints()
        for number, line in self._shown(body.splitlines()):
            gutter = f"{grey}{html.escape(self._gutter(number))} </span>"
            rows.append(f'<span style="display:block;{tints.get(number, "")}">{gutter}{line}</span>')
        below = "".join(f'<div style="font-size:85%;opacity:0.75">{html.escape(line)}</div>' for line in self._below())
        return (f'<div style="font-weight:bold">{html.escape(self.title)}</div>'
                f'<pre style="line-height:1.25;font-size:12px;max-height:520px;overflow:auto">{"".join(rows)}</pre>{below}')

    def _tints(self) -> dict[int, str]:
        """Line -> background: marked, new, or by its share in the first column."""
        numbers = {line: float(row[0]) for line, row in self.beside.items() if row and isinstance(row[0], (int, float))}
        most = sum(numbers.values()) or 1.0
        tints = {line: _TINTS[sum(value / most > step for step in (0.01, 0.05, 0.15))] for line, value in numbers.items()}
        tints |= dict.fromkeys(self._new, "background:#E6F4EA;")
        return tints | dict.fromkeys(self.marks, _BAD)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self.html()}


def _short(value: object) -> str:
    """A cell: whole numbers of six digits and more as 123k, 4.56M, 7.89G."""
    if not isinstance(value, int) or value < 100_000:
        return cell(value)
    unit, letter = next((unit, letter) for unit, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")) if value >= unit)
    return f"{value / unit:.3g}{letter}"
