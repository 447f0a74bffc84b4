"""Calculated occupancy and compiled resources against what an H200's driver said (tests/gpu/occupancy.py)."""

import json
from pathlib import Path

import pytest

from perflab import occupancy

SAID = json.loads((Path(__file__).parent.parent / "data" / "experiments" / "h200_occupancy.json").read_text())


def test_blocks_per_sm_are_the_drivers_in_every_case():
    wrong = []
    for which, threads, dynamic, carveout, blocks in SAID["cases"]:
        ours = SAID["kernels"][which]["ours"]
        found = occupancy("H200", threads, registers=ours["registers"], static_shared=ours["static_shared_bytes"],
                          dynamic_shared=dynamic, barriers=ours["barriers"], carveout=None if carveout < 0 else carveout)
        if found.blocks_per_sm != blocks:
            wrong.append((SAID["kernels"][which]["kernel"], threads, dynamic, carveout, found.blocks_per_sm, blocks))
    assert len(SAID["cases"]) == 2000 and not wrong, f"{len(wrong)} of 2,000 differ, as {wrong[:5]}"


def test_the_cases_are_of_all_sorts():
    blocks = [case[-1] for case in SAID["cases"]]
    assert len(set(blocks)) > 12 and {case[3] < 0 for case in SAID["cases"]} == {True, False}
    assert len({case[0] for case in SAID["cases"]}) == len(SAID["kernels"]) >= 20


@pytest.mark.parametrize("kernel", SAID["kernels"], ids=lambda kernel: kernel["kernel"])
def test_registers_shared_and_local_memory_are_the_drivers(kernel):
    ours, driver = kernel["ours"], kernel["driver"]
    assert (ours["registers"], ours["max_threads"]) == (driver["registers"], driver["max_threads"])
    assert ours["static_shared_bytes"] == driver["static_shared_bytes"]
    assert ours["stack_bytes"] == driver["local_bytes"]
