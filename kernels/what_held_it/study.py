"""What held the register tile at half the FP32 peak: the banks of registers? Its loop, written in 12 ways."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from perflab.studies import Prediction, Study, Version, load_study

VERIFY = load_study(Path(__file__).parent.parent / "verify_attention")  # the problem, all of it
TILE = sys.modules[VERIFY.shape.__module__.rpartition(".")[0] + ".register_tile"]

AT_16K = VERIFY.shape(q_len=9, heads=64, prefix=16384)
AT_4K = replace(AT_16K, prefix=4096)


@dataclass(frozen=True)
class Way:
    """One way to write the loop, see 10_register_banks.cu: totals a score, quads and keys a turn, sums free to move or not."""

    totals: int
    quads: int
    keys: int
    free: bool

    @property
    def name(self) -> str:
        """t1_q2_k2 of the register tile itself, t1_q2_k1_free of register_banks."""
        return f"t{self.totals}_q{self.quads}_k{self.keys}" + ("_free" if self.free else "")


# Two totals of two quads a turn need more registers than there are.
WAYS = tuple(Way(*one) for one in itertools.product((1, 2), (1, 2), (1, 2), (False, True)) if one[:2] != (2, 2))
AS_IT_WAS = Way(1, 2, 2, False)

# Before the first run: what `Kernel.register_banks` counted of the two loops as compiled by NVRTC 13.0 for sm_90, in clocks of
# a scheduler a warp and tile. Outside the loops the register tile took some 1,100 clocks a tile more, by its time of 593 us; so
# did every other way, it was assumed. Looking back, these are wrong for the ways whose sums are not free: the loop over keys is
# there twice, and the faster copy was taken instead of the one that runs. They stay, for the predictions were made of them;
# `loop_clocks` of register_tile.py has it right: 6,630 of the register tile, not 6,374.
LOOP_CLOCKS = {
    "t1_q1_k1": 6050, "t1_q1_k1_free": 5704, "t1_q1_k2": 5978, "t1_q1_k2_free": 6002,
    "t1_q2_k1": 6482, "t1_q2_k1_free": 5830, "t1_q2_k2": 6374, "t1_q2_k2_free": 5926,
    "t2_q1_k1": 6860, "t2_q1_k1_free": 5578, "t2_q1_k2": 6824, "t2_q1_k2_free": 5698,
}
OUTSIDE_CLOCKS = 1100


def said(way: Way) -> Prediction | None:
    """The ratio that the clocks give, 3 % either way; none for the register tile itself."""
    if way == AS_IT_WAS:
        return None
    before, now = (LOOP_CLOCKS[one.name] + OUTSIDE_CLOCKS for one in (AS_IT_WAS, way))
    ratio = before / now
    return Prediction(AS_IT_WAS.name, AT_16K, (round(ratio - 0.03, 3), round(ratio + 0.03, 3)),
                      f"{now:,} clocks of a scheduler a tile, not {before:,}; {OUTSIDE_CLOCKS:,} of either outside the loops")


def version(way: Way) -> Version:
    """A way as a version."""
    tiling = TILE.written(way.totals, way.quads, way.keys, way.free)
    return Version(
        name=way.name,
        kernels=(tiling.kernel, TILE.JOIN),
        change=f"totals a score: {way.totals}; a turn does {way.quads} quads of columns, {way.keys} keys; sums "
        + ("free to lie in any register" if way.free else "in the registers that they are stored from"),
        launches=tiling.launches,
        scratch=tiling.scratch,
        prediction=said(way),
        sequence=lambda shape: shape.keys,
    )


study = Study(
    name="what_held_it",
    title="What held the register tile?",
    shape=VERIFY.shape,
    shapes=(AT_16K, AT_4K),
    inputs=VERIFY.inputs,
    buffers=VERIFY.buffers,
    reference=VERIFY.reference,
    work=VERIFY.work,
    tolerances=VERIFY.tolerances,
    facts=VERIFY.facts,
    versions=tuple(map(version, sorted(WAYS, key=lambda way: way != AS_IT_WAS))),
    counted=(AT_16K,),
    uses=("verify_attention",),
)
