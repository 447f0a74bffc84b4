"""What the notebook what_held_it counts of a tile's loops, by hand for two ways; and the predictions as they were made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perflab.studies import load_study

STUDY = load_study(Path(__file__).parent.parent / "kernels" / "what_held_it")
MODULE = next(module for module in list(sys.modules.values()) if vars(module).get("study") is STUDY)


# 9 turns of 256 FFMA over columns; 8 turns of 256, or 16 of 128, over keys. Beside them: instructions and clocks of a turn.
@pytest.mark.parametrize(("name", "instructions", "clocks"), [
    ("t1_q2_k2", 9 * 308 + 8 * 275, 9 * 398 + 8 * 381),
    ("t1_q2_k1_free", 9 * 308 + 16 * 141, 9 * 374 + 16 * 154),
])
def test_the_clocks_of_a_tile(name: str, instructions: int, clocks: int) -> None:
    """Of the loop over keys, the copy that runs: the shorter one, even where the other has fewer clocks."""
    issue, lost = MODULE.TILE.loop_clocks(STUDY.version(name).kernels[0].register_banks("H200"))
    assert (issue, issue + lost) == (instructions, clocks)


def test_predictions_stay_as_they_were_made() -> None:
    said = {version.name: version.prediction.ratio for version in STUDY.versions if version.prediction}
    assert len(said) == 11 and said["t1_q2_k1_free"] == (1.048, 1.108) and said["t2_q1_k1_free"] == (1.089, 1.149)
