"""Where a number comes from. Every result carries an `Origin`; nothing modelled is ever shown as measured."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("measured", "counted", "compiled", "calculated", "modelled", "published")


@dataclass(frozen=True)
class Origin:
    """How a number came to be, and from what.

    kind:   measured (on a GPU), counted (emulated), compiled (by NVRTC), calculated (an exact formula),
            modelled (an estimate) or published (somebody else's figure).
    detail: the device and date, the compiler version, the formula or the source, in a few words.
    """

    kind: str
    detail: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"origin kind {self.kind!r} is none of {', '.join(KINDS)}")

    def __str__(self) -> str:
        return f"{self.kind} ({self.detail})" if self.detail else self.kind


def join(*origins: Origin) -> str:
    """The origins of a derived value in words, each once, in the order given: 'measured (H200, …) + compiled (NVRTC 13.0)'."""
    return " + ".join(dict.fromkeys(str(origin) for origin in origins))
