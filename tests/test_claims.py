"""Claims recomputed: how a verdict comes to be, and the claims of the write-ups, whose verdicts follow from what comes out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import perflab as pl
from perflab.claims import VERDICTS, Claim, Claims, Listed, Recomputed
from perflab.compile import CompileError
from perflab.errors import PerflabError
from perflab.published import published_table
from perflab.rivals import load_beside
from perflab.timing import Timing

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "kernels" / "verify_attention"
MODULE = load_beside(FOLDER / "claims.py")
THEIRS = MODULE.w
CLAIMS = MODULE.claims
BY_NAME = {claim.name: claim for claim in CLAIMS}


# ---------------------------------------------------------------- a verdict
def made(values=(), other=(), claimed=(10.0,), within=0.05, **more) -> Claim:
    return Claim(1, "ten", "somewhere", claimed, lambda: Recomputed("{}", values, other, **more), within)


@pytest.mark.parametrize(("values", "other", "verdict"), [
    ([10.4], (), "right"), ([10.6], (), "wrong"), ([9.5], (), "right"), ([-10], (), "wrong"), ([float("nan")], (), "wrong"),
    ([10], [10.1], "right"), ([10], [20], "ambiguous"), ([20], [10], "ambiguous"), ([5], [20], "wrong"),
])  # fmt: skip
def test_a_verdict_follows_from_the_readings(values, other, verdict):
    assert made(values, other).verdict == verdict


def test_every_number_must_agree_and_counts_exactly():
    assert made([10, 3], claimed=(10.0, 2.0)).verdict == "wrong"
    assert made([73], claimed=(72,), within=0).verdict == "wrong"
    assert made([72], claimed=(72,), within=0).verdict == "right"


def test_a_statement_is_compared_as_true():
    assert made([True], claimed=(True,)).verdict == "right"
    assert made([False], claimed=(True,)).verdict == "wrong"
    assert "within" not in made([True], claimed=(True,)).how


def test_a_reading_of_another_length_is_a_mistake():
    with pytest.raises(ValueError, match="zip"):
        _ = made([10, 3]).verdict


@pytest.mark.parametrize("found", [{}, {"judged": "maybe"}, {"judged": "wrong", "values": [1]}])
def test_values_or_a_judged_verdict_not_both_not_neither(found):
    with pytest.raises(ValueError, match="either values to compare or one of the verdicts"):
        Recomputed("words", **found)


def test_claims_are_listed_in_order_and_found_by_name():
    listed = Listed()

    @listed.claim("two", "page 1", 2)
    def two() -> Recomputed:
        return Recomputed("{} and {}", [2], [3])

    @listed.claim("why", "page 2")
    def why() -> Recomputed:
        return Recomputed("because", judged="right")

    claims = Claims("Sums", tuple(listed), "pages of a book")
    assert [claim.number for claim in claims.only("why", "two")] == [2, 1]
    assert claims["two"].recomputed.sentence == "2 and 3" and claims["why"].how.startswith("judged: ")
    assert [list(row) for row in claims.counts().rows] == [["right", 0, 1, 1], ["wrong", 0, 0, 0], ["ambiguous", 1, 0, 1],
                                                           ["all", 1, 1, 2]]
    assert "note: pages of a book" in str(claims)
    with pytest.raises(PerflabError, match="two"):
        _ = claims["tow"]


# ---------------------------------------------------------------- the write-ups' claims
def test_there_are_at_least_36_each_with_a_name_of_its_own():
    assert len(BY_NAME) == len(CLAIMS.claims) >= 36
    assert [claim.number for claim in CLAIMS] == list(range(1, len(BY_NAME) + 1))
    assert {claim.verdict for claim in CLAIMS} == set(VERDICTS)
    assert sum(not claim.recomputed.judged for claim in CLAIMS) >= 36


@pytest.mark.parametrize("name", BY_NAME)
def test_each_says_where_it_stands_what_comes_out_and_how(name):
    claim = BY_NAME[name]
    assert claim.where[0] in "ABCD" and claim.said and claim.verdict in VERDICTS
    assert claim.recomputed.sentence and "{" not in claim.recomputed.sentence and claim.recomputed.origins
    assert len(claim.said) < 80, "a paraphrase is short"
    if claim.recomputed.judged:
        assert any(origin.detail for origin in claim.recomputed.origins), "what is judged names its evidence"


@pytest.mark.parametrize("name", BY_NAME)
def test_a_verdict_comes_out_otherwise_when_the_numbers_are_others(name):
    claim = BY_NAME[name]
    found = claim.recomputed
    if found.judged:  # known only once it is recomputed, which is too much work for a parameter
        assert not found.values
        return
    if claim.verdict != "wrong":
        assert replace(claim, claimed=tuple(1.7 * number for number in claim.claimed)).verdict == "wrong"
    if not found.other:
        assert replace(claim, claimed=tuple(found.values)).verdict == "right"
        assert replace(claim, recompute=lambda: replace(found, values=[2 * v + 7 for v in found.values])).verdict == "wrong"


@pytest.mark.parametrize(("name", "before", "gpu", "after"), [
    ("one_block", "right", "H200", "wrong"),  # 3 blocks of 70 KB
    ("threads_an_sm", "wrong", "H200", "right"),
    ("starved", "wrong", "H200", "ambiguous"),  # 128 of 2,048 threads are 6 %: their base was an SM such as this
    ("v6_occupancy", "right", "H200", "wrong"),
])  # fmt: skip
def test_on_another_gpu_other_claims_hold(monkeypatch, name, before, gpu, after):
    claim = BY_NAME[name]
    assert claim.verdict == before
    monkeypatch.setattr(THEIRS, "RTX", gpu)
    assert replace(claim).verdict == after


def test_other_times_of_theirs_give_other_verdicts(monkeypatch):
    assert BY_NAME["division"].verdict == BY_NAME["v6_speedup"].verdict == "right"
    monkeypatch.setattr(THEIRS, "V6_SECONDS", 4e-3)
    assert replace(BY_NAME["division"]).verdict == replace(BY_NAME["v6_speedup"]).verdict == "wrong"


def test_measurements_give_the_verdicts_of_what_was_measured(monkeypatch):
    """With the two versions swapped, float4 would be no win, and the one with the most warps the fastest."""
    real = THEIRS.measured
    swapped = {"warp_per_key": "float4", "float4": "warp_per_key"}
    monkeypatch.setattr(THEIRS, "measured", lambda version, **sizes: real(swapped.get(version, version), **sizes))
    assert BY_NAME["float4_wins"].verdict == "right" and replace(BY_NAME["float4_wins"]).verdict == "wrong"
    monkeypatch.setattr(THEIRS, "ladder", lambda: [real("warp_per_key"), real("head_tile")])
    assert BY_NAME["occupancy_wins"].verdict == "wrong" and replace(BY_NAME["occupancy_wins"]).verdict == "right"


def test_counters_of_the_other_version_turn_the_claim_around(monkeypatch):
    """Read the other way round, float4 asks more often than the scalar loads do: under either reading the claim is wrong."""
    real = THEIRS.counters
    swapped = {"warp_per_key": "float4", "float4": "warp_per_key"}
    monkeypatch.setattr(THEIRS, "counters", lambda version: real(swapped[version]))
    assert BY_NAME["transactions"].verdict == "ambiguous" and replace(BY_NAME["transactions"]).verdict == "wrong"


@pytest.mark.parametrize(("swapped", "verdict"), [
    ({}, "ambiguous"),  # as measured: room for 3 blocks buys nothing, parts of the keys buy more than padded rows
    ({"plain_70k_1": "plain_70k_16"}, "right"),  # had room bought what it buys beside 16 parts
    ({"plain_ballast_16": "padded_ballast_1", "padded_ballast_1": "plain_ballast_16"}, "wrong"),  # had padding bought more
])  # fmt: skip
def test_what_made_the_head_tile_slow_follows_from_the_experiment(monkeypatch, swapped, verdict):
    real = THEIRS.starved
    monkeypatch.setattr(THEIRS, "starved", lambda cell: real(swapped.get(cell, cell)))
    assert replace(BY_NAME["root_cause"]).verdict == verdict


def test_pages_of_one_token_would_be_the_cause_if_they_cost_as_much(monkeypatch):
    """As measured: wrong. Had rows in pages taken four times as long, or the Triton kernel been fast without, ambiguous."""
    assert BY_NAME["page_size"].verdict == "wrong"
    real, together = THEIRS.measured, "register_banks_together"

    def slow(version: str, **sizes: int):
        found = real(version, **sizes)
        cold = found.timing.cold
        less = replace(cold, samples_seconds=tuple(s / 4 for s in cold.samples_seconds))
        return replace(found, timing=replace(found.timing, cold=less)) if version == together else found

    monkeypatch.setattr(THEIRS, "measured", slow)
    assert replace(BY_NAME["page_size"]).verdict == "ambiguous"
    monkeypatch.setattr(THEIRS, "THEIR_TRITON", 1e9)
    assert replace(BY_NAME["page_size"]).verdict == "right"


def test_the_triton_verify_is_divided_into_what_must_move():
    """8 heads, 9 nodes, two bytes: 16,393 rows of 576, query and output; what masks and logarithms add is under 1 %."""
    record = next(r for r in THEIRS.BENCH.store.newest("verify_attention", "H200")
                  if (r.rival, r.kind) == ("Triton verify", "timing")
                  and (r.shape["heads"], r.shape["q_len"], r.shape["prefix"]) == (8, 9, 16384))
    seconds = Timing.from_dict(record.timing).cold.median_seconds
    must = 2 * (16393 * 576 + 72 * (576 + 512))
    assert THEIRS.triton_bytes_per_second(heads=8) == pytest.approx(must / seconds, rel=0.01)
    with pytest.raises(PerflabError, match="not measured"):
        THEIRS.triton_bytes_per_second(heads=7)


# ---------------------------------------------------------------- what they are computed with
def test_their_version_6_by_hand():
    """9 parts of 16,393 keys; 64 heads, 9 nodes: 5,184 blocks; a row is 2,304 B."""
    assert THEIRS.v6_blocks() == 5184 and THEIRS.chunk_bytes() == pytest.approx(16393 * 2304 / 9)
    assert THEIRS.v6_bytes() == 64 * 9 * 16393 * 2304 == pytest.approx(21.76e9, rel=1e-3)
    assert THEIRS.v6_bytes() == pytest.approx(9 * 2.4e9, rel=0.01)


def test_the_emulator_counts_the_cache_once_a_head_and_node():
    """2 heads, 3 nodes, 64 keys, 4 parts; beside them the query of each block, and a mask byte a lane and node of each row."""
    keys, query, mask = 6 * 64 * 2304, 6 * 4 * 2304, 6 * 3 * 32
    assert THEIRS.counted("warp_per_key").global_load_bytes == keys + query + mask


def test_a_tile_is_what_the_head_tile_asks_for_but_for_its_statistics():
    asked = THEIRS.BENCH["head_tile"].launches(THEIRS.at(), "H200")[0].dynamic_shared
    assert 1000 * THEIRS.tile_kb(8, 16) == asked - 4 * 8 * (16 + 3)


def test_an_instruction_that_nobody_has_is_no_refusal_of_one_gpu():
    with pytest.raises(CompileError):
        THEIRS.compiles('"nonsense.sync;" : :')


def test_a_refusal_names_the_gpu_s_lack_and_another_takes_it():
    assert THEIRS.compiles(THEIRS.WGMMA) == 0 and THEIRS.compiles(THEIRS.WGMMA, "sm_90") > 0
    assert THEIRS.compiles(THEIRS.MMA, "sm_90", "HMMA") == THEIRS.compiles(THEIRS.MMA, kind="HMMA") == 1


def test_the_readme_shows_the_table_of_versions():
    pl.workspace(ROOT)
    rows = published_table(pl.workspace(), "verify_attention_versions").markdown().splitlines()
    table = "\n".join(line for line in rows if line.startswith("|"))
    assert table in (FOLDER / "README.md").read_text(), f"put this into the README:\n{table}"
    named = {str(row[0]).split(" ")[0] for row in published_table(pl.workspace(), "verify_attention_versions").rows}
    assert {"naive", "head_tile", "kv_split", "warp_per_key", "float4"} <= named
    versions = {version.name for version in THEIRS.BENCH.study.versions}
    assert named - {"Triton"} <= versions
