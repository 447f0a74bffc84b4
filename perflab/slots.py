"""Whether grids fill GPUs, as a picture: blocks of a launch against the blocks that a GPU holds at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

from perflab import charts
from perflab.figures import Picture
from perflab.gpus import Gpu
from perflab.measurement import describe
from perflab.origins import Origin
from perflab.studies import NotApplicable, triple
from perflab.versions import BoundVersion, occupancy_of


def slots_picture(title: str, versions: Sequence[BoundVersion], shape: Any, gpus: Sequence[Gpu]) -> Picture:
    """A bar a GPU and version: the blocks of its first launch, with marks at the GPU's SMs and at its slots."""
    rows: list[tuple[str, float, float, float, str]] = []
    for gpu, bound in product(gpus, versions):
        name, sms = f"{bound.name}, {gpu.name}", gpu.sm_count or 0
        try:
            launch = bound.launches(shape, gpu)[0]
        except NotApplicable:
            rows.append((name, 0, sms, sms, "n/a"))
            continue
        found, blocks = occupancy_of(launch, gpu), math.prod(triple(launch.grid))
        slots = found.blocks_per_sm * sms
        words = f"{blocks:,} blocks, {slots:,} slots on {sms} SMs: {found.waves:.2f} waves"
        rows.append((name, blocks, sms, slots, words))
    names, values, sms_of, slots_of, labels = zip(*rows, strict=True)
    origin = str(Origin("calculated", "occupancy of the compiled kernels"))
    marks = [charts.Mark("SMs", sms_of), charts.Mark("slots: blocks held at once", slots_of)]
    return charts.bars(f"{title}: blocks against slots", describe(shape), origin, charts.BLOCKS, names, values, labels, marks)
