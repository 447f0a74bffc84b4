"""perflab.records: nothing recorded is ever lost; matching and staleness."""

from __future__ import annotations

import json
import math
import multiprocessing
import resource
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perflab.errors import PerflabError
from perflab.records import Identity, Record, RecordFile, RecordStore, gpu_slug, stale_reasons

IDENTITY = Identity("c0de", "1a0c", "1497", "events-1")


def record(version: str = "naive", at: str = "2026-01-01T00:00:00.000Z", **changes: object) -> Record:
    provenance = {"code": "c0de", "launches": "1a0c", "inputs": "1497", "method": "events-1", "utc": at}
    first = Record("saxpy", version, {"n": 1000, "tree": "random"}, "timing", {"cold": {"samples": [1e-9, 0.25]}},
                   {"name": "NVIDIA H200", "uuid": "GPU-1", "capability": "9.0"}, provenance)
    return replace(first, **changes)


def test_one_line_with_sorted_keys_comes_back_the_same() -> None:
    line = record().to_json()
    assert "\n" not in line
    assert list(json.loads(line)) == sorted(json.loads(line))
    assert json.loads(line)["timing"] == {"cold": {"samples": [1e-9, 0.25]}}
    assert json.loads(line)["schema"] == 1
    assert Record.from_json(line) == record()


def test_nan_and_infinity_are_kept_in_strict_json() -> None:
    wrong = record(kind="check", payload={"outputs": [{"max_abs": math.nan, "max_rel": math.inf, "low": -math.inf}]})
    line = wrong.to_json()
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    (output,) = Record.from_json(line).check["outputs"]
    assert math.isnan(output["max_abs"]) and (output["max_rel"], output["low"]) == (math.inf, -math.inf)


def test_the_payload_of_another_kind_is_refused() -> None:
    with pytest.raises(PerflabError, match="holds timing, not check"):
        record().check  # noqa: B018


def test_append_and_read(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "new" / "saxpy.jsonl")
    assert file.read() == []
    file.append(record())
    file.append(record("tile"))
    assert [r.version for r in file.read()] == ["naive", "tile"]
    assert file.path.read_bytes().endswith(b"}\n") and not file.torn_path.exists()


@given(cut=st.integers(min_value=1))
@settings(max_examples=40, deadline=None)
def test_whatever_a_crash_leaves_of_the_last_line_nothing_is_lost(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    file = RecordFile(tmp_path_factory.mktemp("torn") / "r.jsonl")
    file.append(record())
    whole = file.path.read_bytes()
    second = (record("tile").to_json() + "\n").encode()
    rest = second[: cut % len(second)]
    file.path.write_bytes(whole + rest)
    file.append(record("third"))
    kept = [r.version for r in file.read()]
    if rest == second[:-1]:  # only the newline is missing: a whole record
        assert kept == ["naive", "tile", "third"]
    else:
        assert kept == ["naive", "third"]
        assert (file.torn_path.read_bytes() if rest else b"\n") == rest + b"\n"


def test_a_torn_last_line_is_left_out_of_reading_with_a_warning(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "r.jsonl")
    file.append(record())
    with file.path.open("a") as stream:
        stream.write('{"schema": 1, "stu')
    with pytest.warns(UserWarning, match="last line is torn.*r.jsonl.torn"):
        assert len(file.read()) == 1
    assert file.path.read_bytes().endswith(b'"stu')  # reading changes nothing


def test_the_zeros_of_a_power_loss_are_torn_text_too(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "r.jsonl")
    file.append(record())
    with file.path.open("ab") as stream:
        stream.write(bytes(300))
    file.append(record("tile"))
    assert len(file.read()) == 2
    assert file.torn_path.read_bytes() == bytes(300) + b"\n"


def test_two_tears_are_both_kept(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "r.jsonl")
    for text in ('{"a', '{"b'):
        with file.path.open("a") as stream:
            stream.write(text)
        file.append(record())
    assert file.torn_path.read_text() == '{"a\n{"b\n'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("# A readme\nwith words", "line 1: not JSON"),
        ("# A readme\nwith words\n", "line"),
        ("{\n  \"name\": 1\n}\n", "line"),
        ("a text\n\n{", "line 1: not JSON"),
        ("[1, 2]\n", "line 1: JSON, but no record"),
        ('{"schema": 2}\n', "line 1: a record of schema 2; this perflab reads schema 1"),
        ('{"schema": 2}', "line 1: a record of schema 2"),
        ('{"schema": 1, "kind": "timing"}\n', "line 1: .*missing or of another type: study"),
        ("GOOD\nnonsense\nGOOD\n", "line 2: not JSON"),
        ("GOOD\nnonsense", "line 2: not JSON"),
    ],
)
def test_a_foreign_or_damaged_file_is_named_with_its_line_and_not_touched(
    tmp_path: Path, content: str, said: str
) -> None:
    file = RecordFile(tmp_path / "r.jsonl")
    text = content.replace("GOOD", record().to_json())
    file.path.write_text(text)
    with pytest.raises(PerflabError, match=f"(?s)r.jsonl, {said}.*move that line to r.jsonl.torn"):
        file.read()
    if not content.startswith("GOOD\nnonsense\nGOOD"):  # append looks at the end only
        with pytest.raises(PerflabError, match="r.jsonl, line"):
            file.append(record())
        assert file.path.read_text() == text and not file.torn_path.exists()


def _append_many(path: str, name: str) -> None:
    for k in range(40):
        RecordFile(path).append(record(f"{name}{k}"))


def test_processes_that_write_at_once_lose_no_line(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_append_many, args=(str(path), name)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(r.version for r in RecordFile(path).read()) == sorted(f"{n}{k}" for n in "abc" for k in range(40))


def test_a_full_disk_is_an_error_and_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "r.jsonl")
    file.append(record())
    before, limits = file.path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, limits[1]))  # 100 bytes of the next line fit
    try:
        with pytest.raises(PerflabError, match="r.jsonl: File too large"):
            file.append(record("tile"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.path.read_bytes() == before


# ---------------------------------------------------------------- the store
@dataclass(frozen=True)
class Shape:
    n: int = 1000
    tree: str = "random"


def test_the_store_matches_shape_gpu_kind_and_takes_the_latest(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    new = record(at="2026-03-01T00:00:00.000Z")
    store.add([new, record(), record(kind="check", payload={"passed": True}), record("tile"), record(rival="library")])
    assert (tmp_path / "h200" / "saxpy.jsonl").is_file()
    for name in ("H200", "NVIDIA H200", "h200 sxm"):
        assert store.find("saxpy", "naive", Shape(), name) == new
    assert store.find("saxpy", "naive", {"tree": "random", "n": 1000}, "H200") == new
    assert store.find("saxpy", "naive", Shape(), "H200", "check").check == {"passed": True}  # type: ignore[union-attr]
    for asked in [
        ("saxpy", "naive", Shape(n=999), "H200"), ("saxpy", "naive", Shape(), "H100"), ("other", "naive", Shape(), "H200"),
        ("saxpy", "none", Shape(), "H200"), ("saxpy", "naive", Shape(), "H200", "counts"),
        ("saxpy", "naive", Shape(), "H200", "timing", "float16"),
    ]:
        assert store.find(*asked) is None


def test_the_store_sees_what_another_process_appended(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.add([record()])
    assert store.find("saxpy", "tile", Shape(), "H200") is None
    RecordStore(tmp_path).add([record("tile")])
    assert store.find("saxpy", "tile", Shape(), "H200") is not None


def test_importing_twice_adds_once(tmp_path: Path) -> None:
    taken = RecordFile(tmp_path / "from the box.jsonl")
    for r in (record(), record("tile"), record("tile")):
        taken.append(r)
    store = RecordStore(tmp_path / "records")
    store.add([record()])
    assert store.import_file(taken.path) == (1, 2)  # one was here, one is twice in the file
    assert store.import_file(taken.path) == (0, 3)
    with pytest.raises(PerflabError, match="is not there"):
        store.import_file(tmp_path / "absent.jsonl")


def test_folders_of_known_and_unknown_gpus() -> None:
    assert gpu_slug("NVIDIA H200") == gpu_slug("H200 SXM") == "h200"
    assert gpu_slug("NVIDIA H200 MIG 1g.18gb") == "nvidia-h200-mig-1g-18gb"
    assert gpu_slug("../../etc") == "etc"


def test_why_a_record_is_stale_in_words() -> None:
    assert stale_reasons(record(), IDENTITY) == ()
    assert stale_reasons(record(), replace(IDENTITY, code="x")) == ("the kernel's code changed",)
    both = replace(IDENTITY, launches="x", inputs="y")
    assert stale_reasons(record(), both) == ("the launches changed", "the inputs changed")
    newer = replace(IDENTITY, method="hold-1")
    assert stale_reasons(record(), newer) == ("the timing method changed (events-1 -> hold-1)",)
    assert stale_reasons(record(kind="check"), newer) == ()
