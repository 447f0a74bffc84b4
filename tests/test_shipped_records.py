"""What ships in data/records: the newest of each kind holds today, every check passed, every number has its provenance.

Counters are kept up to date where a study says so (`Study.counted`); elsewhere they may be of older code, and show as STALE.
No shipped notebook shows such a one.
"""

import contextlib
import json
from dataclasses import asdict
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from perflab.comparison import UNIT_FLOOR, units_apart
from perflab.gpus import gpu
from perflab.planning import identity_of
from perflab.records import RecordFile, RecordStore, stale_reasons
from perflab.studies import NotApplicable, load_study

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "data" / "records").glob("*/*.jsonl"))
study_of = cache(lambda name: load_study(ROOT / "kernels" / name))


@cache
def today(study, version, shape, on):
    """The identity that a fresh record has."""
    return identity_of(study_of(study), study_of(study).version(version), shape, gpu(on))


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_records_hold_today(file):
    study = study_of(file.stem)
    stale, declared = [], {version.name for version in study.versions}
    for record in RecordStore(file.parent.parent).newest(file.stem, file.parent.name):
        if record.rival or record.version not in declared:  # of a version that is no more: history
            continue
        assert record.study == study.name
        shape = study.make_shape(**record.shape)
        if record.kind == "counts" and study.counted and shape not in study.counted:
            continue
        reasons = stale_reasons(record, today(study.name, record.version, shape, record.gpu["name"]))
        stale += [f"{record.version} {dict(record.shape)} {record.kind}: {reason}" for reason in reasons]
    assert not stale, "measure again (perflab measure --stale): " + "; ".join(stale[:5])


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_records_say_how_they_came_to_be(file):
    records = RecordFile(file).read()
    latest = {(r.version, tuple(sorted(r.shape.items())), r.kind): r for r in sorted(records, key=lambda r: r.utc)}
    for record in records:
        if record.rival:  # another's code: what it is made of, not how we compiled it; a check may say that it was not there
            assert record.provenance["packages"] and record.provenance["utc"] and record.provenance["driver"]
            continue
        missing = [key for key in ("driver", "nvrtc", "options", "code", "launches", "inputs", "method", "clocks", "commit",
                                   "utc", "packages") if not record.provenance.get(key)]
        assert not missing, f"{record.version} {dict(record.shape)}: {missing}"
        assert record.gpu["uuid"] and record.gpu["capability"]
        if record.kind == "check":  # one that failed stays, as history, under the one of the code that was put right
            newest = latest[record.version, tuple(sorted(record.shape.items())), "check"]
            assert record.check["passed"] or newest.provenance["code"] != record.provenance["code"], record.check
            assert newest.check["passed"], newest.check
        elif record.kind == "timing":
            assert all(min(record.timing[kind]["samples"]) > 0 for kind in ("cold", "hot"))


def test_every_version_of_verify_attention_is_right_at_every_pair_of_values_on_the_h200():
    """A check that passed and holds today, of each version at each shape of the sweep; none is skipped without a reason."""
    study, store = study_of("verify_attention"), RecordStore(ROOT / "data" / "records")
    missing, held = [], 0
    for version, shape in product(study.versions, study.checks()):
        try:
            fresh = today(study.name, version.name, shape, "H200")
        except NotApplicable as reason:
            assert str(reason)
            continue
        record = store.find(study.name, version.name, shape, "H200", "check")
        good = record is not None and record.check["passed"] and not stale_reasons(record, fresh)
        held += good
        missing += [] if good else [f"{version.name} {shape}"]
    assert not missing, f"{len(missing)} (perflab measure verify_attention --checks --stale): " + "; ".join(missing[:3])
    assert held > 10 * len(study.checks())


def test_verify_attention_is_measured_at_every_declared_shape_on_the_h200():
    study = study_of("verify_attention")
    records = RecordFile(ROOT / "data" / "records" / "h200" / "verify_attention.jsonl").read()
    have = {(r.version, tuple(sorted(r.shape.items()))) for r in records if r.kind == "timing"}
    pairs = [(shape, version) for version in study.versions for shape in study.shapes_of(version)]
    assert {shape for shape, _ in pairs} == set(study.all_shapes)
    for shape, version in pairs:
        with contextlib.suppress(NotApplicable):
            version.launches(shape, gpu("H200"))
            assert (version.name, tuple(sorted(asdict(shape).items()))) in have, f"{version.name} {shape}"


def test_the_ladder_of_verify_attention_is_counted_at_every_shape_it_names_on_the_h200():
    study, store = study_of("verify_attention"), RecordStore(ROOT / "data" / "records")
    ladder = [version for version in study.versions if version.shapes is None]
    assert len(study.counted) >= 3 and set(study.counted) <= set(study.all_shapes) and len(ladder) >= 9
    for version, shape in product(ladder, study.counted):
        with contextlib.suppress(NotApplicable):
            fresh = today(study.name, version.name, shape, "H200")
            record = store.find(study.name, version.name, shape, "H200", "counts")
            assert record is not None, f"perflab measure {study.name} --counters: {version.name} {shape}"
            assert not stale_reasons(record, fresh), f"{version.name} {shape}"


def test_units_of_a_gpu_differ_by_no_more_than_is_allowed_for():
    """What a difference between two units must exceed to be called, against all that several of them ran alike."""
    rows = units_apart(record for file in FILES for record in RecordFile(file).read())
    assert len(rows) > 100 and rows[0].comparison.ratio < 1 + UNIT_FLOOR


@pytest.mark.parametrize("file", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda file: file.stem)
def test_no_notebook_shows_a_stale_record(file):
    outputs = [output for cell in json.loads(file.read_text())["cells"] for output in cell.get("outputs", ())]
    assert outputs and "STALE" not in json.dumps(outputs)
