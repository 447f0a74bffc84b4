"""`Fault`: a bug found while running, one a cause, with where it is and who did it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from perflab.emulator.ptx import Place

KINDS = {
    "out of bounds": "an access outside every buffer, or beyond the shared memory of the block",
    "misaligned": "an address that is not a multiple of the access size",
    "uninitialised": "a load of memory that nobody wrote, or a register read before it was written",
    "race": "two threads use one place, at least one writes, and nothing orders them",
    "two writers": "two threads write one place and nothing orders them: who wins is not defined",
    "barrier divergence": "threads of a block wait at different barriers, or some never come",
    "absent lane": "a warp collective names or reads a lane that is elsewhere",
    "read-only load": "ld.global.nc (const __restrict__, __ldg) of data that this launch writes",
    "unwritten output": "elements of an output that no thread wrote",
    "deadlock": "no thread can go on",
    "trap": "the kernel executed trap",
    "assertion": "a device assert failed",
    "active mask": "code that depends on __activemask(): its answer is not defined by the program",
}
"""Every kind of fault, and what it means. 'active mask' is a warning, all others are errors."""


@dataclass(frozen=True)
class Fault:
    """One cause. block: linear index of the first block seen; threads: linear indices in it, at most 8, in order.

    place: the leaf source line, with where it was inlined; other: the second access of a race. times: occurrences (of lanes).
    """

    kind: str
    message: str
    place: Place
    block: int
    threads: tuple[int, ...]
    instruction: str
    other: Place | None = None
    times: int = 1

    @property
    def file(self) -> str:
        """The source file."""
        return self.place.file

    @property
    def line(self) -> int:
        """The source line, from 1."""
        return self.place.line

    @property
    def warning(self) -> bool:
        """True for what may be right: the run still passes."""
        return self.kind == "active mask"

    def __str__(self) -> str:
        times = f" ({self.times:,} times)" if self.times > 1 else ""
        other = f"; the other access: {self.other}" if self.other else ""
        return f"{self.file}:{self.line}: {self.kind}: {self.message}{other}{times}"


class FaultLog:
    """Collects faults, one a cause: kind and source places, for an unrolled loop is many instructions of one line. Later
    occurrences only raise `times`.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, ...], Fault] = {}

    def add(self, fault: Fault) -> None:
        """Note a fault; the two places of a race are unordered."""
        key = (fault.kind, *sorted(_outwards(place) for place in (fault.place, fault.other) if place))
        known = self._found.get(key)
        self._found[key] = fault if known is None else replace(known, times=known.times + fault.times)

    def __bool__(self) -> bool:
        return bool(self._found)

    def __iter__(self) -> Iterator[Fault]:
        return iter(self.faults)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """All of them, by file and line."""
        return tuple(sorted(self._found.values(), key=lambda f: (f.file, f.line, f.kind, f.message)))


def _outwards(place: Place) -> str:
    """A place with where it was inlined, in words."""
    return f"{place} < {_outwards(place.inlined_at)}" if place.inlined_at else str(place)


def access_words(kind: str, role: str, size_bytes: int, where: str, lanes: int) -> str:
    """The message of a wrong access. role: 'load', 'store', 'atomic'; lanes: of one warp that did the same."""
    what = f"{role} of {size_bytes} byte{'s' if size_bytes > 1 else ''} at {where}"
    why = {"uninitialised": ", which nobody wrote before", "read-only load": (
        ", which this launch wrote" if role == "load" else ", which was loaded as read-only")}.get(kind, "")
    return f"{what}{why} ({lanes} lane{'s' if lanes > 1 else ''} of a warp)"
