"""What a person did that cannot work, said in words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PerflabError(Exception):
    """Bad input or a missing part of the machine.

    The message says what was asked, what is allowed and what would work. The command line prints it
    without a traceback and exits with 2; in a notebook it is an ordinary exception.
    """


def did_you_mean(asked: str, known: Iterable[str]) -> str:
    """Return ' Did you mean "x"?' for the nearest known name, or '' when nothing is near."""
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(asked.lower(), by_lower, n=1, cutoff=0.5)
    return f' Did you mean "{by_lower[near[0]]}"?' if near else ""


def unknown(noun: str, asked: object, known: Iterable[str]) -> PerflabError:
    """The error for a name that is not one of `known`: names it, its nearest neighbour, and all that are known."""
    names = list(known)
    listed = ", ".join(names) if names else "none"
    return PerflabError(f'unknown {noun} "{asked}".{did_you_mean(str(asked), names)} Known: {listed}.')
