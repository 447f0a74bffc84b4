"""Claims that a text makes, recomputed: each with its numbers, the function that computes them again, and the verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from perflab.errors import unknown
from perflab.origins import Origin, join
from perflab.tables import Shown, Table

VERDICTS = ("right", "wrong", "ambiguous")


@dataclass(frozen=True)
class Recomputed:
    """What comes out, as a sentence and as the numbers that are compared with the claim's.

    words: a template for `shown`, without any for values and other; values: in the claim's units and order, True for what
    holds; other: the same by a second fair reading, () where there is one only; judged: the verdict where nothing can be
    compared, and then words hold the reason and its evidence.
    """

    words: str
    values: Sequence[float] = ()
    other: Sequence[float] = ()
    shown: Sequence[object] = ()
    origins: Sequence[Origin] = (Origin("calculated"),)
    judged: str = ""

    def __post_init__(self) -> None:
        if self.judged not in ("", *VERDICTS) or bool(self.judged) == bool(self.values):
            raise ValueError(f'"{self.words}" has either values to compare or one of the verdicts {", ".join(VERDICTS)}')

    @property
    def sentence(self) -> str:
        """The words with their numbers."""
        return self.words.format(*(self.shown or (*self.values, *self.other)))


@dataclass(frozen=True)
class Claim:
    """One claim: in our words, where it stands, its numbers as printed, and the function that computes them again.

    within: the relative difference up to which two numbers agree; 0 for counts. A statement's number is True.
    """

    number: int
    said: str
    where: str
    claimed: tuple[float, ...]
    recompute: Callable[[], Recomputed]
    within: float = 0.05

    @property
    def name(self) -> str:
        """The name of its function, by which it is found."""
        return self.recompute.__name__

    @cached_property
    def recomputed(self) -> Recomputed:
        """What its function says."""
        return self.recompute()

    @property
    def verdict(self) -> str:
        """right: every reading agrees with the claim; wrong: none; ambiguous: it depends on the reading. Or as judged."""
        found = self.recomputed
        if found.judged:
            return found.judged
        agreed = [self._agrees(reading) for reading in (found.values, found.other) if reading]
        return "right" if all(agreed) else "ambiguous" if any(agreed) else "wrong"

    def _agrees(self, reading: Sequence[float]) -> bool:
        pairs = zip(self.claimed, reading, strict=True)
        return all(math.isclose(value, said, rel_tol=0, abs_tol=self.within * abs(said)) for said, value in pairs)

    @property
    def how(self) -> str:
        """How the verdict came to be: from numbers of which kinds, and how near the two had to be."""
        found = self.recomputed
        kinds = " + ".join(dict.fromkeys(origin.kind for origin in found.origins))
        if found.judged:
            return f"judged: {kinds}"
        if any(isinstance(said, bool) for said in self.claimed):
            return kinds
        return f"{kinds}; " + (f"within {100 * self.within:g} %" if self.within else "equal")


@dataclass(frozen=True)
class Claims(Shown):
    """The claims of one text or of several; `texts`: where they stand, a line below the table."""

    title: str
    claims: tuple[Claim, ...]
    texts: str = ""

    def __iter__(self) -> Iterator[Claim]:
        return iter(self.claims)

    def __getitem__(self, name: str) -> Claim:
        """The claim of that name; an unknown one is an error that lists those there are."""
        found = {claim.name: claim for claim in self.claims}
        if name not in found:
            raise unknown("claim", name, found)
        return found[name]

    def only(self, *names: str) -> Claims:
        """Some of them, in the order given."""
        return Claims(self.title, tuple(self[name] for name in names), self.texts)

    def counts(self) -> Table:
        """How many claims have which verdict, compared and judged."""
        found = Counter((claim.verdict, bool(claim.recomputed.judged)) for claim in self.claims)
        rows = [(word, found[word, False], found[word, True], found[word, False] + found[word, True]) for word in VERDICTS]
        total = ("all", *(sum(int(row[k]) for row in rows) for k in (1, 2, 3)))
        return Table(f"{self.title}: verdicts", ("verdict", "compared", "judged", "together"), [*rows, total])

    def table(self) -> Table:
        """A row a claim: what was said and where, what comes out, the verdict, how it came to be."""
        rows = [(f"{c.number}", f"{c.said} ({c.where})", c.recomputed.sentence, c.verdict, c.how) for c in self.claims]
        origin = join(*(origin for claim in self.claims for origin in claim.recomputed.origins if origin.detail))
        columns = ("#", "said", "recomputed", "verdict", "how")
        return Table(self.title, columns, rows, origin, [self.texts] if self.texts else [])


class Listed(list[Claim]):
    """Claims as they are declared: `@listed.claim("what is said", "where", 72)` above the function that recomputes it."""

    def claim(self, said: str, where: str, *claimed: float, within: float = 0.05) -> Callable:
        """Puts the function below on the list, numbered in order."""

        def keep(recompute: Callable[[], Recomputed]) -> Callable[[], Recomputed]:
            self.append(Claim(len(self) + 1, said, where, claimed, recompute, within))
            return recompute

        return keep
