"""The wavefronts that the emulator counts, held to what Nsight Compute counted (tests/gpu/wavefronts.py)."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from perflab.emulator.tallies import wavefronts

MEASURED = json.loads((Path(__file__).parents[2] / "data/experiments/h200_wavefronts.json").read_text())


@pytest.mark.parametrize("kind", ["load", "store"])
@pytest.mark.parametrize("width", [4, 8, 16])
def test_every_measured_pattern_takes_the_wavefronts_that_the_rule_says(kind, width):
    rows = [row for row in MEASURED["patterns"] if (row["kind"], row["bytes"]) == (kind, width)]
    at = np.array([row["at"] for row in rows])
    got, ideal = wavefronts(np.maximum(at, 0), at >= 0, width, load=kind == "load")
    assert len(rows) > 100
    assert got.tolist() == [row["wavefronts"] for row in rows]
    assert (ideal <= got).all() and (ideal >= 1).all()


def test_the_patterns_tell_the_rule_from_simpler_ones():
    wide = [row for row in MEASURED["patterns"] if row["kind"] == "load" and row["bytes"] > 4]
    at = np.array([row["at"] for row in wide])
    widths = np.array([row["bytes"] for row in wide])
    differ = Counter()
    for width in (8, 16):
        mine = at[widths == width]
        stored, _ = wavefronts(np.maximum(mine, 0), mine >= 0, width, load=False)
        loaded, _ = wavefronts(np.maximum(mine, 0), mine >= 0, width, load=True)
        differ[width] = int((stored != loaded).sum())
    assert min(differ.values()) >= 10
