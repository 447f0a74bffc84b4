"""The verbs of a notebook, over the shipped records and over a small workspace with a fake GPU."""

import json
import math
import shutil
from pathlib import Path

import pytest
from fake_gpu import FakeGpu
from saxpy_workspace import ENVIRONMENT, make_study

from perflab import machine
from perflab.errors import PerflabError
from perflab.gpus import from_device, gpu
from perflab.measurement import Measurement, describe, floor_seconds, ratio_interval, speed_up, unit_notes
from perflab.records import RecordFile
from perflab.studies import NotApplicable, Work
from perflab.timing import Series, Timing
from perflab.workbench import Workbench, study
from perflab.workspaces import workspace

ROOT = Path(__file__).parent.parent


@pytest.fixture
def attention():
    workspace(ROOT)
    return study("verify_attention")


@pytest.fixture
def copied(tmp_path):
    """The workspace with its records in a folder of its own, to be spoiled."""
    for part in ("kernels", "data"):
        shutil.copytree(ROOT / part, tmp_path / part)
    workspace(tmp_path)
    yield tmp_path
    workspace(ROOT)


def measured(median: float, spread: float = 0.01, version: str = "v", unit: str = "one") -> Measurement:
    samples = tuple(median * (1 + spread * k / 10) for k in range(-10, 11))
    series = Series(samples, "test")
    timing = Timing.from_dict({
        "cold": series.to_dict(), "hot": series.to_dict(), "empty_launch_seconds": 2e-6, "empty_hot_seconds": 2e-6,
        "clocks_before": {}, "clocks_after": {}, "method": "events-1",
    })
    return Measurement(version, None, gpu("H200"), timing, Work(1000, 2000), 8000, "2026-01-01", (), unit=unit)


# ---------------------------------------------------------------- reading records
def test_rates_follow_from_the_cold_median():
    found = measured(1e-6)
    assert found.useful_bytes_per_second == pytest.approx(2e9)
    assert found.asked_bytes_per_second == pytest.approx(8e9)
    assert found.flops_per_second == pytest.approx(1e9)


def test_a_difference_within_the_intervals_is_a_tie():
    assert speed_up(measured(1.00e-3), measured(0.999e-3)) == "1.00x (tie)"
    assert speed_up(measured(1.00e-3), measured(0.9e-3)) == "1.11x"
    one = measured(1e-3)
    assert speed_up(one, one) == "1.00x"


def test_two_units_of_a_gpu_tell_less_apart():
    """They run the same code up to 8.6 % apart; a difference of 3 % between two is none, on one unit it is one."""
    here, there = (measured(1.00e-3, 1e-4, unit=unit) for unit in ("one", "another"))
    less, far = measured(0.97e-3, 1e-4), measured(0.88e-3, 1e-4)
    assert (speed_up(here, less), speed_up(there, less), speed_up(there, far)) == ("1.03x", "1.03x (tie)", "1.14x")
    low, high = ratio_interval(there, less)
    assert math.log(high / low) / 2 == pytest.approx(0.09, rel=0.01)
    assert math.sqrt(low * high) == pytest.approx(1 / 0.97, rel=1e-3)
    assert unit_notes([("one", "one"), ("", "")]) == [] and "under 9 % is a tie" in unit_notes([("one", "another")])[0]


def test_timing_is_what_the_record_says(attention):
    shape = attention.shape(q_len=9, heads=64, prefix=16384)
    found = attention["naive"].timing(shape, "H200")
    record = attention.store.find("verify_attention", "naive", shape, "H200")
    assert found.seconds == record.timing["cold"]["median_seconds"] and not found.stale
    assert "naive on H200" in str(found) and "not subtracted" in str(found)


def test_no_record_says_how_to_take_one(attention):
    with pytest.raises(PerflabError, match="no measurement .*`perflab measure verify_attention`"):
        attention["naive"].timing(attention.shape(prefix=5), "H200")
    with pytest.raises(PerflabError, match="no check of"):
        attention["naive"].check(attention.shape(prefix=5), "H200")


def test_what_cannot_run_says_why_and_shows_as_not_applicable(attention):
    shape = attention.shape(prefix=65536)
    with pytest.raises(NotApplicable, match="at most 57,504 keys"):
        attention["naive"].timing(shape, "H200")
    assert attention.table(shape, "H200").rows[0][1] == "n/a"
    text = str(attention.occupancy(shape, ["H200", "RTX PRO 6000"]))
    assert "at most 57,504 keys" in text and "at most 24,736 keys" in text


def test_on_a_gpu_without_records_nothing_is_invented(attention):
    shape = attention.shape()
    ladder = attention.until("register_tile")
    words = [row[1] for row in ladder.table(shape, "RTX PRO 6000").rows]
    assert len(words) == len(ladder.versions) and set(words) == {"not measured", "n/a"}
    with pytest.raises(PerflabError, match="nothing of verify_attention is measured on RTX PRO 6000"):
        attention.roofline(shape, "RTX PRO 6000")
    with pytest.raises(PerflabError, match="nothing of verify_attention is measured"):
        attention.bandwidth("RTX PRO 6000", heads=64, q_len=9)


def test_occupancy_of_both_gpus_by_value(attention):
    rows = attention.only("naive", "head_tile").occupancy(attention.shape(), ["H200", "RTX PRO 6000"]).rows
    assert [(row[2], row[4], row[7]) for row in rows] == [
        (576, 3, "1.45"), (576, 1, "3.06"), (72, 3, "0.18"), (72, 1, "0.38"),
    ]
    one = attention["head_tile"].occupancy(attention.shape(), "RTX PRO 6000")
    assert one.blocks_per_sm == 1 and one.limiters == ("shared_memory",)


def test_one_gpu_may_be_a_bare_name_or_a_value_wherever_several_may_be_asked_for(attention):
    """A name is a sequence too: taken for a list, it was asked about letter by letter."""
    naive, shape = attention.only("naive"), attention.shape(prefix=256)
    for verb in (naive.resources, lambda gpus: naive.occupancy(shape, gpus), lambda gpus: naive.slots(shape, gpus),
                 lambda gpus: naive["naive"].occupancy([shape], gpus), machine.gpus_asked):
        assert str(verb("H200")) == str(verb(gpu("H200"))) == str(verb(["H200"])) == str(verb(None))  # the records' GPU
        assert str(verb("H200")) != str(verb("RTX PRO 6000"))
    assert machine.gpus_asked(("H200", gpu("RTX PRO 6000"))) == [gpu("H200"), gpu("RTX PRO 6000")]
    with pytest.raises(PerflabError, match='unknown GPU "H20x"'):
        naive.occupancy(shape, "H20x")


def test_parity_passes_on_all_bundles_of_all_versions_but_points_of_tunables(attention):
    rows = attention.parity("H200").rows
    whole = [bound.name for bound in attention.versions if bound.version.shapes is None]
    assert [row[0] for row in rows] == ["PASS"] * 4 * len(whole)
    assert len(whole) == 10 and list(dict.fromkeys(row[1] for row in rows)) == whole


def test_unknown_names_are_errors_with_what_is_known(attention):
    with pytest.raises(PerflabError, match='unknown study "atention"'):
        study("atention")
    with pytest.raises(PerflabError, match='Did you mean "head_tile"'):
        attention["head_tiles"]
    with pytest.raises(PerflabError, match="unknown size"):
        attention.shape(head=3)
    with pytest.raises(PerflabError, match="unknown size"):
        attention.times("H200", heds=3)
    with pytest.raises(PerflabError, match="no declared shape"):
        attention.times("H200", heads=3)
    with pytest.raises(PerflabError, match='unknown published table "x"'):
        attention.published("x")


def test_a_curve_says_what_stays_as_it_is(attention):
    whole = attention.only("naive", "register_tile")
    for picture in (whole.bandwidth("H200"), whole.curve("H200"), whole.bandwidth("H200", heads=64, q_len=9)):
        assert "[H200, batch 1, q_len 9, heads 64]" in str(picture).splitlines()[0]
    over_batch = str(whole.curve("H200", heads=8, over="batch", prefix=4096)).splitlines()[0]
    assert over_batch.endswith("[H200, q_len 9, heads 8, prefix 4,096]")
    assert str(study("saxpy").curve("H200", over="n")).splitlines()[0].endswith("[H200]")


def test_predictions_are_scored_from_records(attention):
    row, *more = attention.until("register_banks").predictions("H200").rows
    assert len(more) == 8 and {found[4] for found in more} <= {"hit", "miss", "tie"}
    times = [attention[name].timing(attention.shape(), "H200").seconds for name in ("naive", "head_tile")]
    assert row[3] == f"{times[0] / times[1]:.2f}x"
    assert row[4] == ("hit" if 0.4 <= times[0] / times[1] <= 1.0 else "miss")


def test_stale_records_are_shown_as_stale(copied):
    kernel = copied / "kernels" / "verify_attention" / "00_naive.cu"
    kernel.write_text(kernel.read_text().replace("expf(scores[j] - shift)", "exp2f(scores[j] - shift)"))
    bench = study("verify_attention")
    shape = bench.shape()
    assert bench["naive"].timing(shape, "H200").stale
    for text in map(str, (bench.table(shape, "H200"), bench["naive"].timing(shape, "H200"), bench.predictions("H200"),
                          bench.times("H200", heads=64, q_len=9))):
        assert "STALE" in text and "code" in text
    assert {row[0] for row in bench.parity("H200").rows} == {"PASS", "PASS STALE"}


def test_a_comment_makes_nothing_stale(copied):
    kernel = copied / "kernels" / "verify_attention" / "00_naive.cu"
    kernel.write_text("// one more line\n" + kernel.read_text())
    assert not study("verify_attention")["naive"].timing(study("verify_attention").shape(), "H200").stale


def test_only_and_before(attention):
    assert [bound.name for bound in attention.only("head_tile").versions] == ["head_tile"]
    assert attention.before("head_tile").name == "naive" and attention.before("naive") is None
    assert attention.before("head_tiles_8").name == "float4" and attention.before("register_tile").name == "head_tiles_8"
    assert [bound.name for bound in attention.until("padded_rows").versions] == ["naive", "head_tile", "padded_rows"]
    assert [bound.name for bound in attention.until("head_tiles_8").versions][-2:] == ["float4", "head_tiles_8"]
    assert "naive / head_tile" not in str(attention.only("naive").times("H200", heads=64, q_len=9))


def test_records_are_read_once_for_a_study_and_all_parts_of_it(attention, monkeypatch):
    read, files = RecordFile.read, []
    monkeypatch.setattr(RecordFile, "read", lambda self: files.append(self.path.name) or read(self))
    for part in (attention, attention.only("naive"), attention.until("head_tile"), attention["naive"].bench):
        part.parity("H200")
    assert files == ["verify_attention.jsonl"]


@pytest.mark.filterwarnings("error:constrained_layout")
def test_pictures_say_their_numbers(attention):
    shape = attention.shape()
    for picture in (attention.bandwidth("H200", heads=64, q_len=9), attention.curve("H200", heads=64, q_len=9),
                    attention.slots(shape, ["H200"])):
        assert picture.png().startswith(b"\x89PNG") and "origin:" in str(picture)
    assert "576 blocks, 396 slots on 132 SMs: 1.45 waves" in str(attention.slots(shape, ["H200"]))


def test_over_a_size_all_others_keep_their_defaults(attention):
    """Else a curve over the prefix would join the streams and the pages of the study."""
    shapes = attention._shapes("prefix", {"heads": 64, "q_len": 9})
    assert [shape.prefix for shape in shapes] == sorted({shape.prefix for shape in shapes})
    assert {(shape.batch, shape.heads, shape.q_len, shape.page) for shape in shapes} == {(1, 64, 9, 0)}


def test_floors_of_the_write_ups_shape(attention):
    arithmetic, memory = floor_seconds(attention.study.work(attention.shape()), gpu("H200"), "float32")
    assert arithmetic == pytest.approx(307e-6, rel=0.01) and memory == pytest.approx(8.4e-6, rel=0.01)


def test_describe_leaves_out_what_is_none(attention):
    assert describe(attention.shape()) == "batch 1, q_len 9, heads 64, prefix 16,384, tree random"


def test_the_source_of_a_header(attention):
    """Beside the same header of the version before, or where that has none its file: the loop moved, it did not change."""
    tile, banks = attention["register_tile"], attention["register_banks"]
    listing = tile.source(diff=True, header="register_tile.cuh")
    assert "fmaf(w[r], v[c].x" in str(listing) and "since head_tiles_8" in listing.title and len(listing.new_lines()) > 100
    assert banks.source(diff=True, header="register_tile.cuh").new_lines() == frozenset()
    with pytest.raises(PerflabError, match=r'unknown header of 08_register_tile.cu "parts.cu".*Known: .*parts.cuh'):
        tile.source(header="parts.cu")


def test_a_published_table_needs_a_source(copied):
    (copied / "data" / "published" / "bare.csv").write_text("a,b\n1,\n")
    with pytest.raises(PerflabError, match="names no source"):
        study("saxpy").published("bare")
    table = study("saxpy").published("verify_attention_rtx_pro_6000")
    assert table.rows[4] == ["1", "9", "65536", "n/a", "93958.5", "n/a"] and "published" in table.origin


# ---------------------------------------------------------------- measuring, with a fake GPU behind the worker
@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A workspace with the tests' own study, and a fake H200 in the machine."""
    make_study(tmp_path)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    here = from_device(FakeGpu().describe()["attributes"])
    monkeypatch.setattr(machine, "gpu_here", lambda: here)
    monkeypatch.delenv("PERFLAB_GPU", raising=False)
    workspace(tmp_path)
    yield Workbench(workspace(), study("saxpy").study), here
    machine.live(False)
    workspace(ROOT)


def test_measure_checks_times_and_keeps(fake, capsys):
    bench, here = fake
    shape = bench.shape(n=1000)
    found = bench["plain"].measure(shape)
    assert found.seconds == pytest.approx(1e-3, rel=0.05)
    assert bench["plain"].check(shape, here).passed
    lines = (bench.workspace.records / "h200" / "saxpy.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["check", "timing"]
    assert "timed" in capsys.readouterr().out


def test_live_measures_only_where_the_gpu_is_the_one_asked_for(fake):
    bench, here = fake
    shape = bench.shape(n=1000)
    with pytest.raises(PerflabError, match="no measurement"):
        bench["plain"].timing(shape, here)
    machine.live()
    assert bench["plain"].timing(shape, here).seconds > 0
    with pytest.raises(PerflabError, match="on A100 SXM4 80GB"):
        bench["plain"].timing(shape, "A100 SXM4 80GB")


def test_a_wrong_kernel_is_not_timed(fake):
    bench, here = fake
    with pytest.raises(PerflabError, match="half was not timed"):
        bench["half"].measure(bench.shape(n=1000))
    assert not bench["half"].check(bench.shape(n=1000), here).passed


def test_without_a_gpu_measuring_says_where_to_go(attention, monkeypatch):
    monkeypatch.setattr(machine, "gpu_here", lambda: None)
    with pytest.raises(PerflabError, match="perflab measure STUDY --on ssh://"):
        attention.measure()


def test_rivals_stand_beside_our_best_and_say_what_they_compute(attention):
    rows = attention.rivals(attention.rival_shapes()[0], "H200").rows
    masks = {row[0]: row[1] for row in rows}
    assert masks["FlashMLA prefix"] == "prefix only" and masks["FlashMLA chain"] == "chain only"
    assert masks["torch eager"] == masks["register_banks (ours, float32)"] == "exact"
    assert len(rows) == 21


def test_a_rival_that_is_not_there_is_a_row_that_says_so(attention):
    rows = attention.rivals(attention.shape(heads=8, q_len=9, prefix=5), "H200").rows
    assert rows and all(row[2] == "not measured" for row in rows)


def test_measured_roofs_come_before_the_datasheet(attention):
    roofs = attention.ceilings("H200")
    assert [roof.name.split()[0] for roof in roofs] == ["DRAM", "DRAM", "L2", "float32"]
    assert all(roof.is_measured for roof in roofs)
    table = attention.table(attention.shape(), "H200")
    assert "of measured DRAM" in table.columns and "of measured FMA" in table.columns
    assert attention.ceilings("RTX PRO 6000") == ()


def test_the_ladder_shows_versions_in_order_with_the_best_exact_rival_and_the_floor(attention):
    shape = attention.shape()
    whole = attention.only("naive", "kv_split", "register_tile")
    lines = [line.strip() for line in str(whole.ladder(shape, "H200")).splitlines()]
    assert [line.split()[0] for line in lines[1:4]] == ["naive", "kv_split", "register_tile"]
    rivals = {row[0]: (row[1], row[2]) for row in attention.rivals(shape, "H200").rows}
    name, time = next((name, time) for name, (mask, time) in rivals.items() if mask == "exact")
    assert lines[4].startswith(f"{name} (rival)") and lines[4].endswith(time)
    fma = next(roof.value for roof in attention.ceilings("H200") if not roof.level)
    assert lines[5].startswith("float32 floor") and float(lines[5].split()[-2]) == pytest.approx(
        attention.study.work(shape).flops / fma * 1e6, rel=0.01)
    with pytest.raises(PerflabError, match="nothing of verify_attention is measured on RTX PRO 6000"):
        attention.ladder(shape, "RTX PRO 6000")
