"""PTX text -> words: what `ptx_parser` reads from, and its constants."""

from __future__ import annotations

import bisect
import functools
import re
import struct

from perflab.emulator.ptx import Immediate, PtxError

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |"[^"]*"
    |0[fF][0-9a-fA-F]{8}(?!\w)|0[dD][0-9a-fA-F]{16}(?!\w)|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+\.\d*(?:[eE][-+]?\d+)?|\d+U?
    |\.\w+(?:::\w+)*
    |[A-Za-z_$%](?:[\w$%.]|::)*
    |\S""",
    re.VERBOSE | re.DOTALL,
)


class Tokens:
    """The words of a PTX text, taken one after another."""

    def __init__(self, text: str) -> None:
        self.text = text
        found = [match for match in _TOKEN.finditer(text) if match.lastgroup is None]
        self.words = [match.group() for match in found]
        self.starts = [match.start() for match in found]
        self.words += [""] * 4  # the end of the text, and room to look beyond it
        self.starts += [len(text)] * 4
        self.at = 0

    def take(self) -> str:
        word = self.words[self.at]
        self.at += 1
        return word

    def accept(self, word: str) -> bool:
        """Take the next word if it is this one."""
        if self.words[self.at] != word:
            return False
        self.at += 1
        return True

    def expect(self, *words: str) -> None:
        for word in words:
            if not self.accept(word):
                raise self.error(f'"{word}"')

    def number(self) -> int:
        negative = self.accept("-")
        word = self.take()
        if not word[:1].isdigit():
            self.at -= 1
            raise self.error("a number")
        value = immediate(word).value
        return -value if negative else value

    def line(self, at: int) -> int:
        """The line of the PTX, from 1, that the word at an index stands on."""
        return bisect.bisect(self.ends_of_lines, self.starts[at] - 1) + 1

    @functools.cached_property
    def ends_of_lines(self) -> list[int]:
        return [match.start() for match in re.finditer("\n", self.text)]

    def error(self, expected: str) -> PtxError:
        found = f'"{self.words[self.at]}"' if self.words[self.at] else "the end"
        return PtxError(f"PTX line {self.line(self.at)}: expected {expected}, found {found}.")

    def skip_to(self, *ends: str) -> None:
        """Leave off before the next of `ends`."""
        while self.words[self.at] not in ends:
            if not self.words[self.at]:
                raise self.error(" or ".join(ends))
            self.at += 1

    def skip_braces(self) -> None:
        """Take { … }, braces within it included."""
        self.expect("{")
        depth = 1
        while depth:
            self.skip_to("{", "}")
            depth += 1 if self.take() == "{" else -1


def immediate(word: str) -> Immediate:
    """A constant as PTX writes it: 12, 0x1fU, 0b11, 017, 0f3F800000, 0d3FF0000000000000, 1.5 (which is an f64)."""
    head = word[:2].lower()
    if head == "0f":
        return Immediate("f32", int(word[2:], 16))
    if head == "0d":
        return Immediate("f64", int(word[2:], 16))
    if "." in word:
        return Immediate("f64", int.from_bytes(struct.pack("<d", float(word)), "little"))
    digits = word.rstrip("U")
    if head in ("0x", "0b"):
        return Immediate("int", int(digits, 0))
    return Immediate("int", int(digits, 8 if digits[0] == "0" and len(digits) > 1 else 10))
