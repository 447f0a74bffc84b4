"""printf of a kernel, against C's rules."""

from __future__ import annotations

import struct

import pytest

from perflab.emulator.printing import formatted, text_at


def printed(template: str, arguments: bytes = b"", texts: bytes = b"") -> str:
    """The format at 0, arguments at 1024, texts from 2048 on."""
    memory = template.encode().ljust(1024, b"\0") + arguments.ljust(1024, b"\0") + texts + b"\0"
    return formatted(0, 1024, lambda address, size: memory[address : address + size])


@pytest.mark.parametrize(("template", "arguments", "expected"), [
    ("plain 100%%", b"", "plain 100%"),
    ("%d|%5d|%-5d|%05d|%+d", struct.pack("<5i", -7, 42, 42, 42, 42), "-7|   42|42   |00042|+42"),
    ("%u %x %X %#x %o", struct.pack("<5I", 4294967295, 255, 255, 255, 8), "4294967295 ff FF 0xff 10"),
    ("%lld %llu %lx", struct.pack("<qQq", -(1 << 40), (1 << 64) - 1, 16), "-1099511627776 18446744073709551615 10"),
    ("%d %f", struct.pack("<i4xd", 1, 2.5), "1 2.500000"),  # a double begins at a multiple of 8
    ("%.3f %e %g %10.2f", struct.pack("<4d", 1 / 3, 12345.678, 1e-7, 3.14159), "0.333 1.234568e+04 1e-07       3.14"),
    ("%f %f", struct.pack("<2d", float("inf"), float("nan")), "inf nan"),
    ("%c%c", struct.pack("<2i", 65, 66), "AB"),
    ("%hd %hu %hhd", struct.pack("<3i", 65535, 65537, 255), "-1 1 -1"),
    ("%*d %.*f", struct.pack("<2i2i d".replace(" ", ""), 4, 7, 2, 0, 1.0), "   7 1.00"),
    ("%p", struct.pack("<Q", 0x10000000010), "0x10000000010"),
])
def test_fields(template: str, arguments: bytes, expected: str) -> None:
    assert printed(template, arguments) == expected


def test_texts_are_read_where_the_pointer_points() -> None:
    assert printed("<%s> <%6s>", struct.pack("<2Q", 2048, 2048 + 4), b"one\0two\0") == "<one> <   two>"


def test_a_text_that_does_not_end_is_cut() -> None:
    assert len(text_at(0, lambda address, size: b"a")) == 1 << 16
