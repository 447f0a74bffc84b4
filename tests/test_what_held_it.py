"""The clocks behind the predictions of what_held_it, counted again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perflab.studies import load_study

STUDY = load_study(Path(__file__).parent.parent / "kernels" / "what_held_it")
MODULE = next(module for module in list(sys.modules.values()) if vars(module).get("study") is STUDY)


@pytest.mark.parametrize("name", ["t1_q2_k2", "t2_q1_k1_free"])
def test_the_clocks_that_predictions_rest_on(name: str) -> None:
    version = next(one for one in STUDY.versions if one.name == name)
    assert MODULE.loop_clocks(version.kernels[0].register_banks("H200")) == MODULE.LOOP_CLOCKS[name]
