"""Emulator against an H200: recorded hardware counters of every version beside what is counted today, differences derived.

ptxas joins four neighbouring scalar accesses of shared memory into one of 16 bytes, and makes a division of several
instructions; PTX shows neither. Which lines it joins, and which division a version has, stands here as data: with that, every
counter below is equal. A change of a kernel, of ptxas or of the emulator shows as a difference.

Two of the three shapes of every version take minutes to emulate. Their counts are in data/experiments, beside a hash of the
PTX and the launches that they are of: python tests/test_agreement.py counts them anew. Every version at the first shape, and
what is quick at the others, is emulated here and must be what is kept.
"""

import hashlib
import json
import shutil
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from perflab.counters import difference_words
from perflab.errors import PerflabError
from perflab.gpus import gpu
from perflab.hardware import launched, occupancies
from perflab.sanitizer import TOOLS
from perflab.studies import digest, inputs_hash, launches_hash
from perflab.workbench import study
from perflab.workspaces import workspace

ROOT = Path(__file__).parent.parent
GPU = "H200"
SHAPES = {
    "H64 q9 1024": {"batch": 1, "heads": 64, "q_len": 9, "prefix": 1024},
    "H8 q9 16384": {"batch": 1, "heads": 8, "q_len": 9, "prefix": 16384},
    "H64 q33 1024": {"batch": 1, "heads": 64, "q_len": 33, "prefix": 1024},
}
THREE = tuple(SHAPES)
VERSIONS = ("naive", "head_tile", "padded_rows", "kv_split", "split_by_device", "warp_per_key", "float4", "head_tiles_8",
            "register_tile", "register_banks")
COUNTED = (*VERSIONS, "head_tiles_16")
CASES = [(at, name) for at in THREE for name in COUNTED]
LIVE = [(THREE[0], name) for name in COUNTED[:9:2]] + [(THREE[1], "register_tile")]  # one of each two that are alike
KEPT = ROOT / "data" / "experiments" / "h200_agreement_counts.json"
WIDTH, LATENT = 576, 512
GLOBAL = [f"global_{kind}_{what}" for kind in ("load", "store") for what in ("sectors", "requests")]
SHARED = [f"shared_{kind}_{what}" for kind in ("load", "store") for what in ("requests", "wavefronts")]
FIELDS = (*GLOBAL, "global_store_bytes", "local_load_bytes", "local_store_bytes", *SHARED, "flops", "warp_instructions")


# ---------------------------------------------------------------- what ptxas made of PTX, as data
@dataclass(frozen=True)
class Join:
    """A line whose scalar accesses of shared memory ptxas joins, four to one of 16 bytes.

    lanes: 'one place' (all 32 lanes read one place: 2 wavefronts a joined load, 1 a scalar one), or 'apart' (8 lanes, 64 B
    apart: four joined ones take the wavefronts that one scalar took)
    """

    kind: str
    line: int
    lanes: str


JOINS = {
    "naive": (),  # by the keys of a row: `naive_loads`
    "register_tile": (),  # its PTX has loads of 16 bytes already
    "register_banks": (),
    "head_tile": (Join("load", 91, "one place"), Join("load", 70, "apart"), Join("store", 77, "apart")),
    "padded_rows": (Join("load", 87, "one place"), Join("load", 66, "apart"), Join("store", 73, "apart")),
    "kv_split": (Join("load", 91, "one place"), Join("load", 70, "apart"), Join("store", 77, "apart")),
    "split_by_device": (Join("load", 90, "one place"), Join("load", 69, "apart"), Join("store", 76, "apart")),
    "warp_per_key": (Join("load", 61, "one place"),),
    "float4": (Join("load", 64, "one place"),),
    "head_tiles_8": (Join("load", 97, "one place"),),
    "head_tiles_16": (Join("load", 97, "one place"),),
}
SPARSE = {"head_tile", "padded_rows", "kv_split", "split_by_device"}
"""Where a node of a tree sees one key of a tile, a warp of the score loop has lanes k and k + 16 at one place of 16 bytes: 2
wavefronts by the rule and by the l1tex counter, 1 by the counter patched into SASS, which is the one recorded
(tests/emulator/test_wavefronts.py). 4 warps of each block, WIDTH / 4 loads a tile."""
NOT_DERIVED = {("H64 q33 1024", "head_tile"): 1}
"""Its rows all begin in one bank: so many tiles' worth of wavefronts do not go away, 0.001 % of all. What the counter in SASS
makes of few lanes with conflicts is not known."""
DIVISIONS = {
    "naive": ("rcp.rn.f32", 256, 5),  # each thread inverts the total: MUFU.RCP, 2 FFMA, 1 FADD
    "head_tile": ("div.rn.f32", LATENT, 10),  # each output is divided: MUFU.RCP, 5 FFMA
    "padded_rows": ("div.rn.f32", LATENT, 10),
}
JOINED_PARTS = ("rcp.rn.f32", 128, 5)  # the second launch of the others inverts once a thread
"""version -> (instruction, how often a row, FLOP each in SASS); PTX counts none of them."""


@cache
def opened():
    """The study, once: reading it and its records takes a second."""
    workspace(ROOT)
    return study("verify_attention")


@pytest.fixture
def attention():
    return opened()


def told(counts, file):
    """What is compared of `Counts`, as JSON: FIELDS, and by line of the version's own file what it did in shared memory."""
    lines = {line: [getattr(mine, name) for name in SHARED] for (at, line), mine in sorted(counts.by_line.items())
             if at == file and any(getattr(mine, name) for name in SHARED)}
    return {**{name: int(getattr(counts, name)) for name in FIELDS}, "lines": {str(line): each for line, each in lines.items()}}


def made_of(bench, name, shape):
    """A hash of what the counts of a version depend on: its PTX, its launches, its inputs."""
    launches = bench[name].launches(shape, GPU)
    code = [hashlib.sha256(launch.kernel.binary(gpu(GPU)).ptx.encode()).hexdigest() for launch in launches]
    return digest([code, launches_hash(launches), inputs_hash(bench.study, shape)])


def emulated(bench, name, shape):
    """Counted now."""
    return told(bench[name].count(shape, GPU), bench[name].version.kernels[0].source.file)


@cache
def kept():
    return json.loads(KEPT.read_text())


@cache
def both(at, name):
    """(emulated, measured) of a version at a shape."""
    bench = opened()
    shape = bench.shape(**SHAPES[at])
    measured = bench[name].counters(shape, GPU)
    assert not measured.stale_notes
    return kept()["counts"][at][name], measured


def rows_of(at):
    sizes = SHAPES[at]
    return sizes["batch"] * sizes["heads"] * sizes["q_len"]


def shared_of(counts, kind):
    """[requests, wavefronts] of PTX."""
    return [counts[f"shared_{kind}_{what}"] for what in ("requests", "wavefronts")]


def line_of(counts, kind, line):
    """[requests, wavefronts] of PTX at a line of the version's own file."""
    each = counts["lines"][str(line)]
    return each[:2] if kind == "load" else each[2:]


@cache
def trees(at):
    """[request, node, node]: who sees whom."""
    bench = opened()
    return bench.study.inputs(bench.shape(**SHAPES[at]))["visible"].array.astype(bool)


def naive_loads(at, counts):
    """naive: the query's 576 floats at :64, lanes that see the key; the scores at :86, all lanes, twice 256 columns.

    A joined load of one place takes 2 wavefronts in a full warp; with up to 8 lanes, and no node sees more of a tree, 1 by the
    counter patched into SASS: as in SPARSE.
    """
    prefix, nodes, rows = SHAPES[at]["prefix"], SHAPES[at]["q_len"], rows_of(at)
    keys, of_a_query, heads = prefix + nodes, WIDTH // 4, SHAPES[at]["heads"]
    assert prefix % 256 == 0  # so the tree begins with a warp
    assert max(each.sum() for tree in trees(at) for each in tree) <= 8
    warps = [len({k // 32 for k in each.nonzero()[0]}) for tree in trees(at) for each in tree]
    requests, wavefronts = shared_of(counts, "load")
    for line, scalar, joined, waves in (
        (64, *(of_a_query * (rows * one * (prefix // 32) + heads * sum(tree)) for one, tree in (
            (4, [4 * n for n in warps]), (1, warps), (2, warps)))),
        (86, *(rows * 16 * n for n in (keys, ceil(keys / 4), 2 * ceil(keys / 4)))),  # the last reads up to 12 B past the row
    ):
        assert line_of(counts, "load", line)[0] == scalar
        requests, wavefronts = requests - (scalar - joined), wavefronts - (scalar - waves)
    return [requests, wavefronts]


def joined(at, name, counts, kind):
    """[requests, wavefronts] that SASS should have, from what the emulator counted of PTX, by the joins above."""
    if name == "naive" and kind == "load":
        return naive_loads(at, counts)
    requests, wavefronts = shared_of(counts, kind)
    for join in (one for one in JOINS[name] if one.kind == kind):
        scalar, waves = line_of(counts, kind, join.line)
        assert scalar and scalar % 4 == 0
        requests -= scalar - scalar // 4
        wavefronts -= waves - (2 * scalar // 4 if join.lanes == "one place" else waves // 4)
    if kind == "load" and name in SPARSE:
        alone = sum(int((tree[:, tile:tile + 16].sum(1) == 1).sum()) for tree in trees(at) for tile in range(0, len(tree), 16))
        wavefronts -= (alone - NOT_DERIVED.get((at, name), 0)) * SHAPES[at]["heads"] // 8 * 4 * WIDTH // 4
    return [requests, wavefronts]


# ---------------------------------------------------------------- what is kept
def test_what_is_kept_is_of_todays_kernels_and_launches(attention):
    for at in THREE:
        shape = attention.shape(**SHAPES[at])
        assert kept()["made_of"][at] == {name: made_of(attention, name, shape) for name in COUNTED}, (
            "a kernel changed: python tests/test_agreement.py")


@pytest.mark.parametrize(("at", "name"), LIVE)
def test_what_is_kept_is_what_the_emulator_counts(at, name, attention):
    assert emulated(attention, name, attention.shape(**SHAPES[at])) == kept()["counts"][at][name]


# ---------------------------------------------------------------- counts
@pytest.mark.parametrize(("at", "name"), CASES)
def test_global_sectors_and_requests_are_equal(at, name):
    ours, theirs = both(at, name)
    assert {field: ours[field] for field in GLOBAL} == {field: theirs[field] for field in GLOBAL}
    assert ours["global_store_bytes"] == theirs["global_store_bytes"]
    assert ours["local_load_bytes"] + ours["local_store_bytes"] == 0 == theirs["local_load_bytes"] + theirs["local_store_bytes"]


@pytest.mark.parametrize(("at", "name"), CASES)
def test_shared_accesses_are_equal_with_what_ptxas_joins(at, name):
    ours, theirs = both(at, name)
    for kind in ("load", "store"):
        measured = [theirs[f"shared_{kind}_{what}"] for what in ("requests", "wavefronts")]
        assert joined(at, name, ours, kind) == measured, kind
        assert all(mine >= its for mine, its in zip(shared_of(ours, kind), measured, strict=True))


@pytest.mark.parametrize(("at", "name"), CASES)
def test_flops_are_equal_with_what_a_division_takes(at, name, attention):
    ours, theirs = both(at, name)
    instruction, each_row, flops = DIVISIONS.get(name, JOINED_PARTS)
    ptx = "".join(one.kernel.binary(gpu(GPU)).ptx for one in attention[name].launches(attention.shape(**SHAPES[at]), GPU))
    assert instruction in ptx
    unseen = rows_of(at) * (each_row * flops - 1)  # -1: a mul of a row's logf, which SASS predicates off
    assert ours["flops"] + unseen == theirs["flop_f32"]
    # the main term: without its divisions as near as they are few
    assert abs(ours["flops"] / theirs["flop_f32"] - 1) < (0.003 if instruction.startswith("div") else 0.001)


# ---------------------------------------------------------------- occupancy
@pytest.mark.parametrize("at", THREE)
def test_calculated_occupancy_and_waves_are_ncus(at, attention):
    shape = attention.shape(**SHAPES[at])
    for name in COUNTED:
        measured = launched(attention[name].counters(shape, GPU))
        for (launch, ours), theirs in zip(occupancies(attention[name], shape, gpu(GPU)), measured, strict=True):
            resources = launch.kernel.resources(GPU)
            assert ours.fraction == pytest.approx(theirs["theoretical_occupancy"], abs=1e-4), name
            assert round(ours.waves, 2) == pytest.approx(theirs["waves"], abs=0.011), name
            assert (resources.registers, resources.static_shared_bytes, launch.dynamic_shared) == (
                theirs["registers_per_thread"], theirs["shared_static_bytes"], theirs["shared_dynamic_bytes"]), name
            # blocks of unequal length leave SMs with fewer; ncu's average of the few that have any may pass by its rounding
            assert 0 < theirs["achieved_occupancy"] <= ours.fraction * 1.01, name


# ---------------------------------------------------------------- the verbs
def test_the_table_over_versions_has_all_three_numbers(attention):
    shape = attention.shape(**SHAPES[THREE[0]])
    few = COUNTED[::2]  # those that are emulated here anyway
    table = attention.only("padded_rows").agreement(shape, GPU)
    ours, theirs = both(THREE[0], "padded_rows")
    rows = {row[1]: row[2:] for row in table.rows}
    assert rows["global_load_sectors"] == (ours["global_load_sectors"], theirs["global_load_sectors"], "exact")
    assert rows["flop_f32"] == (ours["flops"], theirs["flop_f32"], "-0.224 %")
    assert "measured (NVIDIA H200" in str(table) and "counted (PTX" in str(table) and "STALE" not in str(table)
    assert len(attention.only(*few).agreement(shape, GPU).rows) == 8 * len(few)
    assert "DIFFERS" in str(attention["padded_rows"].agreement(shape, GPU))


def test_the_occupancy_table_has_a_row_a_launch(attention):
    table = attention.only("naive", "kv_split").achieved(attention.shape(**SHAPES[THREE[0]]), GPU)
    assert [row[:4] for row in table.rows] == [("naive", "naive", "100.0 %", "100.0 %"),
                                               ("kv_split", "kv_split", "37.5 %", "37.5 %"),
                                               ("kv_split", "join_parts", "100.0 %", "100.0 %")]


def test_every_version_was_clean_under_the_sanitizer(attention):
    for name in VERSIONS:
        found = attention[name].findings(GPU)
        assert found.passed and not found.stale and set(found.faults) == set(TOOLS), found


def test_the_emulators_faults_stand_beside_the_sanitizers(attention):
    table = attention.only("naive", "head_tile").findings(GPU)
    assert [(row[0], *row[2:]) for row in table.rows] == [("naive", 0, 0, 0, 0, 0), ("head_tile", 0, 0, 0, 0, 0)]
    assert not attention["naive"].finders(GPU).rows


def test_what_was_not_recorded_says_how_to_record_it(attention):
    with pytest.raises(PerflabError, match="no hardware counters .*perflab measure verify_attention --counters"):
        attention["naive"].counters(attention.shape(prefix=7), GPU)
    with pytest.raises(PerflabError, match="no hardware counters"):
        attention.agreement(attention.shape(prefix=7), GPU)
    with pytest.raises(PerflabError, match="was not under compute-sanitizer on H100"):
        attention["naive"].findings("H100")


def test_stale_and_missing_counters_and_findings_say_so(tmp_path):
    for part in ("kernels", "data/records"):
        shutil.copytree(ROOT / part, tmp_path / part)
    source = tmp_path / "kernels" / "verify_attention" / "02_padded_rows.cu"
    source.write_text(source.read_text().replace("sum[i] = value;", "sum[i] = value + 1.0f;"))
    records = tmp_path / "data" / "records" / "h200" / "verify_attention.jsonl"
    lines = records.read_text().splitlines(keepends=True)
    records.write_text("".join(one for one in lines if not ('"kind":"faults"' in one and '"head_tiles_1"' in one)))
    workspace(tmp_path)
    try:
        bench = study("verify_attention")
        shape = bench.shape(**SHAPES[THREE[0]])
        assert "head_tiles_1: verify_attention/head_tiles_1 was not under" in str(bench.only("head_tiles_1").findings(GPU))
        said = "STALE: verify_attention padded_rows: the kernel's code changed"
        for shown in (bench["padded_rows"].counters(shape, GPU), bench["padded_rows"].findings(GPU),
                      bench.only("padded_rows").achieved(shape, GPU)):
            assert said in str(shown)
        assert "STALE" not in str(bench["naive"].counters(shape, GPU))
    finally:
        workspace(ROOT)


def test_differences_in_words():
    assert [difference_words(*pair) for pair in ((5, 5), (110, 100), (1, 0), (0, 0))] == ["exact", "+10 %", "-", "exact"]


# ---------------------------------------------------------------- counting anew
def count_anew() -> None:
    """Write KEPT: minutes."""
    bench = opened()
    shapes = {at: bench.shape(**sizes) for at, sizes in SHAPES.items()}
    found: dict[str, Any] = {"gpu": GPU, "nvrtc": bench["naive"].version.kernels[0].binary(gpu(GPU)).nvrtc}
    found["shapes"] = SHAPES
    found["made_of"] = {at: {name: made_of(bench, name, shape) for name in COUNTED} for at, shape in shapes.items()}
    found["counts"] = {at: {name: emulated(bench, name, shape) for name in COUNTED} for at, shape in shapes.items()}
    KEPT.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{KEPT.relative_to(ROOT)}: {KEPT.stat().st_size:,} B")


if __name__ == "__main__":
    count_anew()
