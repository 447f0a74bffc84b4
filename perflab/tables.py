"""Tables a person reads, and the house way to write a quantity. The text is rounded and deterministic: nbval
compares it."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

NOTHING = "-"
SILENT = ("", NOTHING, "n/a", "not measured")  # cells that stand where a quantity could not
LONG = 44  # characters of a cell from which it may break in HTML
_QUANTITY = re.compile(r"[-+~<>≤≥±]*\s?\d[\d,.]*(e[-+]?\d+)?x?( ?[%A-Za-z][%A-Za-z/]*)?")


def decimal(value: float | None) -> str:
    """Three significant digits, more only before the point: 0.0812, 3.36, 66.2, 4,812. NaN and None are '-'."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    exponent = int(f"{value:.2e}".split("e")[1])
    if exponent < -4:
        return f"{value:.2e}"
    return f"{value:,.{max(0, 2 - exponent)}f}"


def seconds(value: float | None) -> str:
    """A time given in seconds: '0.812 us', '336 us', '1.21 ms', '2.50 s'. The unit is chosen after rounding."""
    return _scaled(value, ("us", 1e-6), ("ms", 1e-3), ("s", 1.0))


def bytes_(value: float | None) -> str:
    """An amount of memory: exact below 1 MB ('71,680 B'), then decimal: '33.6 MB', '4.83 GB', '1.20 TB'."""
    if value is not None and abs(value) < 1e6:
        return f"{value:,.0f} B"
    return _scaled(value, ("MB", 1e6), ("GB", 1e9), ("TB", 1e12))


def bytes_per_second(value: float | None) -> str:
    """A memory rate, always in decimal GB/s, so that rows compare: '4,812 GB/s'."""
    return _scaled(value, ("GB/s", 1e9))


def flops_per_second(value: float | None) -> str:
    """An arithmetic rate, always in TFLOP/s, so that rows compare: '44.3 TFLOP/s'."""
    return _scaled(value, ("TFLOP/s", 1e12))


def percent(fraction: float | None) -> str:
    """A fraction as a percentage with one decimal, small ones with one digit: 0.6618 -> '66.2 %', 0.0003 -> '0.03 %'."""
    if fraction is None or math.isnan(fraction):
        return NOTHING
    return f"{100 * fraction:.1f} %" if fraction == 0 or abs(fraction) >= 5e-4 else f"{100 * fraction:.1g} %"


def ratio(value: float | None) -> str:
    """A quotient, as of two times: '1.84x', '12.3x'."""
    return NOTHING if value is None or math.isnan(value) else f"{decimal(value)}x"


def _scaled(value: float | None, *units: tuple[str, float]) -> str:
    """`value` in the largest of `units` (name, size; ascending) in which it rounds to at least one, else in the first."""
    if value is None or math.isnan(value):
        return NOTHING
    fitting = [(name, size) for name, size in units if float(f"{abs(value) / size:.2e}") >= 1]
    name, size = (fitting or units[:1])[-1]
    return f"{decimal(value / size)} {name}"


def cell(value: object) -> str:
    """One table cell as text: strings as they are, whole numbers exact, other numbers by `decimal`, None as '-'."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if hasattr(value, "__index__"):
        return f"{value.__index__():,}"
    return decimal(float(value)) if hasattr(value, "__float__") else str(value)


class Shown:
    """A result that is shown as a table: a subclass says `table()`, and has its text, Markdown and HTML from it."""

    def table(self) -> Table:
        """The result as a table."""
        raise NotImplementedError

    def __str__(self) -> str:
        return str(self.table())

    def markdown(self) -> str:
        """The table for a README."""
        return self.table().markdown()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self.table()._repr_mimebundle_()


@dataclass(frozen=True)
class Table:
    """Rows under named columns, with the origin of their numbers.

    title:   what the table shows, in words that stand alone
    columns: a heading each; names a unit where the cells do not
    rows:    one sequence a row, as long as `columns`; cells are text or numbers, see `cell`
    origin:  where the numbers come from, shown below: `str(Origin)` or `origins.join(...)`
    notes:   what a reader must know besides, one line each

    A column whose cells are all quantities is aligned to the right. Raises ValueError for a row of another length.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    origin: str = ""
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f'"{self.title}": {len(row)} cells {row!r} under {len(self.columns)} columns')

    @cached_property
    def _cells(self) -> list[list[str]]:
        return [[cell(value) for value in row] for row in self.rows]

    @cached_property
    def _right(self) -> list[bool]:
        """Which columns hold quantities only; a SILENT cell says nothing either way, and a column of them is text."""
        texts = [[row[k].strip() for row in self._cells] for k in range(len(self.columns))]
        said = [[text for text in column if text not in SILENT] for column in texts]
        return [bool(column) and all(map(_QUANTITY.fullmatch, column)) for column in said]

    @property
    def _below(self) -> list[str]:
        return ([f"origin: {self.origin}"] if self.origin else []) + [f"note: {note}" for note in self.notes]

    def __str__(self) -> str:
        lines = [list(self.columns), *self._cells]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        lines.insert(1, ["-" * width for width in widths])
        formats = [f"{'>' if is_right else '<'}{width}" for is_right, width in zip(self._right, widths, strict=True)]
        text = ["  ".join(map(format, line, formats)).rstrip() for line in lines]
        return "\n".join([self.title, *text, *self._below])

    def markdown(self) -> str:
        """The table for a README: GitHub's pipes, the title in bold, origin and notes below."""
        rule = ["---:" if is_right else ":---" for is_right in self._right]
        # A pipe or a line end inside a cell would break its row.
        lines = [[text.replace("|", "\\|").replace("\n", " ") for text in line] for line in [self.columns, rule, *self._cells]]
        below = ["", *(f"*{line}*  " for line in self._below)]
        return "\n".join([f"**{self.title}**", "", *(f"| {' | '.join(line)} |" for line in lines), *below]).rstrip()

    def html(self) -> str:
        """The table as HTML with inline styles only: JupyterLab strips `<style>`, scripts and SVG of notebooks it does
        not trust, and every freshly cloned notebook is one."""
        head = self._html_row("th", self.columns, "border-bottom:1px solid #808080;font-weight:bold;")
        body = "".join(self._html_row("td", row) for row in self._cells)
        below = "".join(f'<div style="font-size:85%;opacity:0.75">{html.escape(line)}</div>' for line in self._below)
        return (
            '<div style="margin:4px 0px">'
            f'<div style="font-weight:bold;margin-bottom:4px">{html.escape(self.title)}</div>'
            f'<table style="border-collapse:collapse;margin:0px"><thead>{head}</thead><tbody>{body}</tbody></table>'
            f"{below}</div>"
        )

    def _html_row(self, tag: str, texts: Sequence[str], style: str = "") -> str:
        cells = []
        for text, is_right in zip(texts, self._right, strict=True):
            breaks = "white-space:nowrap" if len(text) < LONG else "min-width:20em"  # a long cell breaks, not into slivers
            side = "right" if is_right else "left"
            cells.append(f'<{tag} style="{style}text-align:{side};padding:2px 10px;{breaks}">{html.escape(text)}</{tag}>')
        return f"<tr>{''.join(cells)}</tr>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self.html()}
