"""Kernel arguments as Python has them -> the parameter block, and which arrays lie where in the arena."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perflab.emulator.memory import INITIALISED, Arena
from perflab.errors import PerflabError
from perflab.sources import without_comments

_DECLARED = re.compile(r"\.param\s+(?:\.align (\d+) )?\.([a-z])(\d+)([^,\[]*)(?:\[(\d+)\])?")
_INTEGERS = (int, np.integer, np.bool_)
_NUMBERS = (*_INTEGERS, float, np.floating)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel. kind: 'integer', 'float', or 'bytes' (a struct, or a type that PTX passes as one)."""

    name: str
    offset_bytes: int
    size_bytes: int
    kind: str

    @property
    def words(self) -> str:
        """What it is, for a message."""
        what = {"integer": "integer or pointer" if self.size_bytes == 8 else "integer", "float": "float", "bytes": "struct"}
        return f"{self.size_bytes}-byte {what[self.kind]}"


def parameters_of(ptx: str, entry: str, names: Sequence[str] = ()) -> tuple[Parameter, ...]:
    """The parameters of a kernel in its PTX; `names`: as the source calls them, where that is known."""
    _, _, after = ptx.partition(f".entry {entry}(")
    declared = _DECLARED.findall(after.partition(")")[0])
    if len(set(names)) != len(declared):  # not all are known
        names = ()
    found: list[Parameter] = []
    end = 0
    for place, (align, letter, bits, _, count) in enumerate(declared):
        size = int(bits) // 8 * int(count or 1)
        offset = end + -end % int(align or int(bits) // 8)
        kind = "bytes" if count else "float" if letter == "f" else "integer"
        found.append(Parameter(names[place] if names else f"argument {place}", offset, size, kind))
        end = offset + size
    return tuple(found)


def names_in(text: str, kernel: str) -> tuple[str, ...]:
    """What a source calls the parameters of its kernel ('saxpy' for 'saxpy<float>'); () where that cannot be read."""
    bare = without_comments(text)
    base = re.escape(kernel.split("<")[0].split("::")[-1].split("(")[0].strip())
    match = re.search(rf"__global__[^;{{}}]*?\b{base}\s*\(", bare) if base else None
    if match is None:
        return ()
    depth, parts = 0, [""]
    for letter in bare[match.end() :]:
        depth += (letter in "(<[{") - (letter in ")>]}")
        if depth < 0:
            break
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    words = [re.findall(r"[A-Za-z_]\w*", part.split("=")[0].split("[")[0]) for part in parts]
    return tuple(found[-1] for found in words) if all(words) else ()


# ---------------------------------------------------------------- where arrays lie
@dataclass(frozen=True)
class Layout:
    """Which bytes of which buffer each array has. Arrays that share memory share a buffer.

    sizes: buffer -> bytes, for an `Arena`; places: name of an array -> (buffer, offset in it).
    """

    sizes: Mapping[str, int]
    places: Mapping[str, tuple[str, int]]
    arrays: Mapping[str, np.ndarray]

    @staticmethod
    def of(arrays: Mapping[str, np.ndarray]) -> Layout:
        """Lay out arrays by name. Raises PerflabError for one that is not C-contiguous or holds Python objects."""
        sizes: dict[str, int] = {}
        places: dict[str, tuple[str, int]] = {}
        last, begin, end = "", 0, -1
        for name, array in sorted(arrays.items(), key=lambda item: item[1].ctypes.data):
            _refuse(name, array)
            start, size = array.ctypes.data, array.nbytes
            if not size:
                places[name], sizes[name] = (name, 0), 0
                continue
            if start < end:  # overlaps the one before
                places[name] = (last, start - begin)
                end = max(end, start + size)
            else:
                places[name], last, begin, end = (name, 0), name, start, start + size
            sizes[last] = end - begin
        # In the order of the arguments: addresses, and with them messages, must not depend on where the host's arrays lie.
        order = dict.fromkeys(places[name][0] for name in arrays)
        return Layout({buffer: sizes[buffer] for buffer in order}, places, arrays)

    def load(self, arena: Arena, blank: frozenset[str] = frozenset()) -> None:
        """Copy the arrays in; those in `blank` count as never written until a kernel writes them."""
        for name, array in self.arrays.items():
            self.view(arena, name)[...] = array.reshape(-1).view(np.uint8)
            if name not in blank:
                self.flags(arena, name)[...] |= np.uint8(INITIALISED)

    def store(self, arena: Arena) -> None:
        """Copy back into the arrays. Raises PerflabError for a read-only array that a kernel changed."""
        for name, array in self.arrays.items():
            old, now = array.reshape(-1).view(np.uint8), self.view(arena, name)
            if array.flags.writeable:
                old[...] = now
            elif not np.array_equal(old, now):
                raise PerflabError(f"the kernel wrote into {name}, which is a read-only array: pass a copy of it")

    def view(self, arena: Arena, name: str) -> np.ndarray:
        """The bytes of an array in the arena."""
        buffer, offset = self.places[name]
        return arena.content(buffer)[offset : offset + self.arrays[name].nbytes]

    def flags(self, arena: Arena, name: str) -> np.ndarray:
        """What is known of these bytes."""
        buffer, offset = self.places[name]
        return arena.known(buffer)[offset : offset + self.arrays[name].nbytes]

    def address(self, arena: Arena, name: str) -> int:
        """The device address of an array."""
        buffer, offset = self.places[name]
        return arena.buffers[buffer].address + offset


def _refuse(name: str, array: np.ndarray) -> None:
    if array.dtype.hasobject:
        raise PerflabError(f"{name} is an array of Python objects: a kernel takes numbers or records")
    if not array.flags.c_contiguous:
        raise PerflabError(f"{name}, an array of shape {array.shape} and strides {array.strides} B, is not C-contiguous: "
                           f"pass np.ascontiguousarray({name})")


# ---------------------------------------------------------------- the parameter block
def parameter_block(parameters: Sequence[Parameter], values: Sequence[Any], entry: str) -> bytes:
    """The bytes that the kernel reads its parameters from. `values`: a device address, number or struct each, in order."""
    if len(values) != len(parameters):
        listed = "; ".join(f"{p.name}: {p.words}" for p in parameters) or "none"
        raise PerflabError(f"{entry} takes {len(parameters)} arguments, {len(values)} were given. Its parameters: {listed}")
    block = bytearray(max((p.offset_bytes + p.size_bytes for p in parameters), default=0))
    for parameter, value in zip(parameters, values, strict=True):
        block[parameter.offset_bytes : parameter.offset_bytes + parameter.size_bytes] = _bytes_of(parameter, value)
    return bytes(block)


@dataclass(frozen=True)
class Pointer:
    """A device address among the arguments."""

    address: int


def _bytes_of(parameter: Parameter, value: Any) -> bytes:
    """One argument as its parameter wants it."""
    size = parameter.size_bytes
    if isinstance(value, Pointer) or value is None:
        if parameter.kind != "integer" or size != 8:
            raise PerflabError(f"{parameter.name} is given an array, but the parameter is a {parameter.words}, no pointer")
        return (0 if value is None else value.address).to_bytes(8, "little")
    if parameter.kind == "bytes":
        return _struct(parameter, value)
    if not isinstance(value, _NUMBERS):
        words = "an array, a number or None" if size == 8 else "a number"
        raise PerflabError(f"{parameter.name} = {value!r} ({type(value).__name__}): the parameter is a {parameter.words}; "
                           f"pass {words}")
    if parameter.kind == "float":
        return np.dtype(f"f{size}").type(value).tobytes()
    if not isinstance(value, _INTEGERS):
        raise PerflabError(f"{parameter.name} = {value!r}: the parameter is a {parameter.words}, so a whole number is needed")
    whole = int(value)
    if not -(1 << 8 * size - 1) <= whole < 1 << 8 * size:
        raise PerflabError(f"{parameter.name} = {whole:,} does not fit the parameter, a {parameter.words}")
    return (whole % (1 << 8 * size)).to_bytes(size, "little")


def _struct(parameter: Parameter, value: Any) -> bytes:
    """A struct: bytes, a numpy record, or a numpy scalar of its size (half and bfloat16 travel as structs of 2 bytes)."""
    if isinstance(value, (bytes, bytearray)):
        given = bytes(value)
    elif isinstance(value, np.generic):
        given = value.tobytes()
    else:
        raise PerflabError(f"{parameter.name} = {value!r} ({type(value).__name__}): the parameter is a {parameter.words}; pass "
                           f"bytes or a numpy record of that size")
    if len(given) != parameter.size_bytes:
        raise PerflabError(f"{parameter.name} has {len(given)} B, the parameter is a {parameter.words}")
    return given
