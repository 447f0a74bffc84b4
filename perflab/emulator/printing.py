"""printf as a kernel calls it: a format and a pointer to its packed arguments -> text."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

_FIELD = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d+))?(?P<length>hh|h|ll|l|j|z|t|L|q)?(?P<kind>.)", re.DOTALL)
_WIDE = ("ll", "l", "j", "z", "t", "q")  # long is 8 bytes on the device, as on its Linux host
_LONGEST_TEXT = 1 << 16

ReadBytes = Callable[[int, int], bytes]


def formatted(template: int, arguments: int, read: ReadBytes) -> str:
    """The text that printf(template, …) prints. template, arguments: addresses; read(address, size): bytes of memory.

    Arguments lie one behind the other, each at a multiple of its size: 4 or 8 bytes, floats as doubles.
    """
    place = arguments

    def argument(size: int) -> bytes:
        nonlocal place
        place += -place % size
        data = read(place, size)
        place += size
        return data

    def field(match: re.Match[str]) -> str:
        return _field(match, argument, read)

    return _FIELD.sub(field, text_at(template, read))


def text_at(address: int, read: ReadBytes) -> str:
    """A string that ends in 0."""
    found = bytearray()
    while len(found) < _LONGEST_TEXT and (letter := read(address + len(found), 1)) not in (b"\0", b""):
        found += letter
    return found.decode("utf-8", "replace")


def _field(match: re.Match[str], argument: Callable[[int], bytes], read: ReadBytes) -> str:
    kind = match["kind"]
    if kind == "%":
        return "%"
    width, precision = (_number(match[name], argument) for name in ("width", "precision"))
    spec = "%" + match["flags"] + ("" if width is None else str(width)) + ("" if precision is None else f".{precision}")
    if kind in "diuoxXc":
        size = 8 if match["length"] in _WIDE else 4
        value = int.from_bytes(argument(size), "little", signed=kind in "di")
        if kind in "diu" and match["length"] in ("h", "hh"):
            value = _narrowed(value, 2 if match["length"] == "h" else 1, kind in "di")
        return (spec + ("s" if kind == "c" else "d" if kind == "u" else kind)) % (chr(value & 255) if kind == "c" else value)
    if kind in "eEfFgGaA":
        (number,) = struct.unpack("<d", argument(8))
        return (spec.replace("#", "") + "s") % number.hex() if kind in "aA" else (spec + kind) % number
    if kind == "s":
        return (spec + "s") % text_at(int.from_bytes(argument(8), "little"), read)
    if kind == "p":
        return (spec + "s") % f"{int.from_bytes(argument(8), 'little'):#x}"
    return match[0]


def _number(text: str | None, argument: Callable[[int], bytes]) -> int | None:
    if text is None:
        return None
    return int.from_bytes(argument(4), "little", signed=True) if text == "*" else int(text)


def _narrowed(value: int, size: int, signed: bool) -> int:
    return int.from_bytes((value & (1 << 8 * size) - 1).to_bytes(size, "little"), "little", signed=signed)
