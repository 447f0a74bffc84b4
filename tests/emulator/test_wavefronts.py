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


def test_the_counter_patched_into_sass_says_otherwise_for_some_16_byte_loads_and_agrees_else():
    differ = [row for row in MEASURED["patterns"] if row["by_sass"] != row["wavefronts"]]
    assert len(MEASURED["patterns"]) == 1398 and len(differ) == 48
    assert {(row["kind"], row["bytes"]) for row in differ} == {("load", 16)}
    two = next(row for row in differ if [lane for lane, at in enumerate(row["at"]) if at >= 0] == [0, 16])
    assert (two["wavefronts"], two["by_sass"]) == (2, 1) and two["at"][0] == two["at"][16]
