"""The picture of blocks against slots: its numbers, and a version that a GPU cannot run."""

from pathlib import Path

from perflab.gpus import gpu
from perflab.slots import slots_picture
from perflab.workbench import study
from perflab.workspaces import workspace


def test_bars_say_blocks_slots_and_waves_or_that_it_cannot_run():
    workspace(Path(__file__).parent.parent)
    bench = study("verify_attention").only("naive", "head_tile")
    lines = str(slots_picture("t", bench.versions, bench.shape(prefix=65536), [gpu("H200"), gpu("RTX PRO 6000")])).splitlines()
    assert lines[0].startswith("t: blocks against slots [batch 1") and lines[-1].endswith("(occupancy of the compiled kernels)")
    words = {line.split("  ")[1]: line.split("  ")[-1] for line in lines[1:-1]}
    assert words == {
        "naive, H200": "n/a", "head_tile, H200": "72 blocks, 396 slots on 132 SMs: 0.18 waves",
        "naive, RTX PRO 6000": "n/a", "head_tile, RTX PRO 6000": "72 blocks, 188 slots on 188 SMs: 0.38 waves",
    }
