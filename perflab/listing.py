"""A kernel's source as a person reads it: numbered, highlighted, with the lines that are new since the version before."""

from __future__ import annotations

import difflib
import html
from dataclasses import dataclass


@dataclass(frozen=True)
class Listing:
    """Source text; with `before`, the lines that `before` does not have are marked with '+'."""

    file: str
    text: str
    before: str | None = None
    before_name: str = ""

    def new_lines(self) -> frozenset[int]:
        """Line numbers, from 1, that `before` does not have; empty without one. Moved and re-indented lines count as new."""
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
        new = self.new_lines()
        lines = (f"{number:4d} {'+' if number in new else ' '} {line}".rstrip()
                 for number, line in enumerate(self.text.splitlines(), 1))
        return "\n".join([self.title, *lines])

    def markdown(self) -> str:
        """A fenced block of CUDA C++."""
        return f"**{self.title}**\n\n```cuda\n{self.text}\n```"

    def html(self) -> str:
        """Highlighted with inline styles only, which JupyterLab keeps in a notebook it does not trust."""
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers.c_like import CudaLexer

        body = highlight(self.text, CudaLexer(stripnl=False), HtmlFormatter(noclasses=True, nowrap=True))
        new, rows = self.new_lines(), []
        for number, line in enumerate(body.splitlines(), 1):
            tint = "background:#E6F4EA;" if number in new else ""
            sign = "+" if number in new else " "
            gutter = f'<span style="color:#6E7781">{number:4d} {sign} </span>'
            rows.append(f'<span style="display:block;{tint}">{gutter}{line}</span>')
        return (f'<div style="font-weight:bold">{html.escape(self.title)}</div>'
                f'<pre style="line-height:1.25;font-size:12px;max-height:520px;overflow:auto">{"".join(rows)}</pre>')

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self.html()}
