"""The __device__ and __constant__ variables of a run: where they lie, what they begin with, what comes back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from perflab.compile import readable_name
from perflab.emulator.memory import Arena
from perflab.emulator.ptx import Variable
from perflab.errors import PerflabError, unknown


@dataclass(frozen=True)
class Variables:
    """The .global and .const variables of each module that is launched, and the arrays given for them.

    found: (code of the module, mangled name) -> variable; given: the same -> array.
    """

    found: Mapping[tuple[str, str], Variable]
    given: Mapping[tuple[str, str], np.ndarray]

    @staticmethod
    def of(named: Iterable[tuple[str, Variable]], constants: Mapping[str, np.ndarray]) -> Variables:
        """`named`: (code of the module, variable) that some kernel names; constants: plain or mangled name -> array.

        Raises PerflabError for a name that no kernel uses, or an array of another size.
        """
        found = {(code, variable.name): variable for code, variable in named}
        given = {}
        for name, array in constants.items():
            keys = [key for key in found if name in (key[1], _plain(key[1]))]
            if not keys:
                raise unknown("__constant__ or __device__ variable", name, sorted(_plain(key[1]) for key in found))
            for key in keys:
                if array.nbytes != found[key].size_bytes or not array.flags.c_contiguous:
                    raise PerflabError(f"{name} takes {found[key].size_bytes:,} B; the array given has {array.nbytes:,} B "
                                       f"({'' if array.flags.c_contiguous else 'not '}C-contiguous)")
                given[key] = array
        return Variables(found, given)

    def _buffer(self, key: tuple[str, str]) -> str:
        """What its buffer is called: the plain name, with the module's code where two modules have that name."""
        code, name = key
        several = sum(other == name for _, other in self.found) > 1
        return f"{_plain(name)} of {code[:8]}" if several else f"variable {_plain(name)}"

    @property
    def sizes(self) -> dict[str, int]:
        return {self._buffer(key): variable.size_bytes for key, variable in self.found.items()}

    @property
    def constant(self) -> frozenset[str]:
        return frozenset(self._buffer(key) for key, variable in self.found.items() if variable.space == "const")

    def load(self, arena: Arena) -> None:
        """What was given, else the initial value, else zeros, as a module has them when it is loaded."""
        for key, variable in self.found.items():
            content = self.given[key].tobytes() if key in self.given else (variable.initial or b"")
            arena.fill(self._buffer(key), content.ljust(variable.size_bytes, b"\0"))

    def store(self, arena: Arena) -> None:
        """Write the arrays given for __device__ variables."""
        for key, array in self.given.items():
            if self.found[key].space != "const" and array.flags.writeable:
                array.reshape(-1).view(np.uint8)[...] = arena.content(self._buffer(key))

    def addresses(self, arena: Arena, code: str) -> dict[str, int]:
        """Name -> device address of the variables of one module."""
        return {name: arena.buffers[self._buffer((of, name))].address for of, name in self.found if of == code}


def _plain(mangled: str) -> str:
    """'table' for '_ZN5space5tableE' and for 'table'."""
    return readable_name(mangled).split("::")[-1]
