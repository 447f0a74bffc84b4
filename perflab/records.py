"""Measurements on disk: one JSON line each, appended and never rewritten; matched to a shape and a GPU; stale or not.

Standard library only: a bare GPU machine appends to such a file too.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from perflab.errors import PerflabError, unknown

SCHEMA = 1
KINDS = ("timing", "check", "counts")
_FIELDS = {"study": str, "version": str, "dtype": str, "shape": dict, "gpu": dict, "provenance": dict}


# ---------------------------------------------------------------- one record
@dataclass(frozen=True)
class Identity:
    """What a result belongs to: hashes of the kernels' code, the launches and the input recipes; the timing method."""

    code: str
    launches: str
    inputs: str
    method: str


@dataclass(frozen=True)
class Record:
    """One result: of which version, shape and GPU, and how it came to be.

    kind       timing, check or counts; `payload` is the result, in SI units, as its own module writes it
    gpu        name, uuid and capability as the device reports them
    provenance code, launches, inputs, method, nvrtc, options, driver, clocks, power_limit_watts, packages, commit, utc
    """

    study: str
    version: str
    shape: Mapping[str, Any]
    kind: str
    payload: Mapping[str, Any]
    gpu: Mapping[str, Any]
    provenance: Mapping[str, Any]
    dtype: str = "float32"
    rival: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown("kind of record", self.kind, KINDS)

    @property
    def utc(self) -> str:
        """When it was taken: ISO 8601, UTC, so that text order is time order; '' if it does not say."""
        return str(self.provenance.get("utc", ""))

    @property
    def identity(self) -> Identity:
        """What it belongs to; a hash it does not hold is ''."""
        return Identity(**{name: str(self.provenance.get(name, "")) for name in Identity.__dataclass_fields__})

    @property
    def timing(self) -> Mapping[str, Any]:
        """The payload of a timing, for `Timing.from_dict`."""
        return self._payload_of("timing")

    @property
    def check(self) -> Mapping[str, Any]:
        """The payload of a check, for `Check.from_dict`."""
        return self._payload_of("check")

    def _payload_of(self, kind: str) -> Mapping[str, Any]:
        if kind != self.kind:
            raise PerflabError(f"this record of {self.study}/{self.version} holds {self.kind}, not {kind}")
        return self.payload

    def to_json(self) -> str:
        """The record as one line with sorted keys, without its newline. NaN and infinity, no JSON, become text."""
        line = {"schema": SCHEMA, **asdict(self)}
        line[self.kind] = _nan_to_text(line.pop("payload"))
        return json.dumps(line, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Record:
        """Back from one line. Raises PerflabError that says what is wrong with it."""
        try:
            line = json.loads(text)
        except ValueError as error:
            raise PerflabError(f"not JSON: {error}") from error
        if not isinstance(line, dict) or "schema" not in line:
            raise PerflabError("JSON, but no record: a record is an object with a schema")
        if line["schema"] != SCHEMA:
            raise PerflabError(f"a record of schema {line['schema']!r}; this perflab reads schema {SCHEMA}")
        kind = line.get("kind")
        wrong = [key for key, kept in _FIELDS.items() if not isinstance(line.get(key), kept)]
        if kind not in KINDS or wrong or not isinstance(line.get(kind), dict):
            what = ", ".join(wrong) or f"kind {kind!r}"
            raise PerflabError(f"a record of schema {SCHEMA} whose fields are missing or of another type: {what}")
        rest = {key: line[key] for key in _FIELDS}
        return Record(kind=kind, payload=_text_to_nan(line[kind]), rival=line.get("rival"), **rest)


_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _nan_to_text(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _nan_to_text(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_nan_to_text(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _text_to_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _text_to_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_text_to_nan(inner) for inner in value]
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


_CHANGED = {
    "code": "the kernel's code changed",
    "launches": "the launches changed",
    "inputs": "the inputs changed",
    "method": "the timing method changed",
}


def stale_reasons(record: Record, today: Identity) -> tuple[str, ...]:
    """Why a record no longer holds, in words; () while it does. Only a timing depends on the timing method."""
    then = record.identity
    names = [name for name in _CHANGED if name != "method" or record.kind == "timing"]
    changed = [name for name in names if getattr(then, name) != getattr(today, name)]
    return tuple(
        f"{_CHANGED[name]} ({getattr(then, name)} -> {getattr(today, name)})" if name == "method" else _CHANGED[name]
        for name in changed
    )


# ---------------------------------------------------------------- one file
class RecordFile:
    """A file of records. Writers take a lock, write a line at once and flush it to the disk before they go on.

    A line that a crash tore is moved to `<file>.torn` at the next append: nothing recorded is ever thrown away.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def torn_path(self) -> Path:
        """Where unreadable text goes."""
        return self.path.with_name(self.path.name + ".torn")

    def append(self, record: Record) -> None:
        """Add a record. Raises PerflabError when the disk refuses it, and leaves the file as it was."""
        line = (record.to_json() + "\n").encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked_for_writing() as file:
                self._mend_tail(file)
                end = os.fstat(file).st_size
                try:
                    _write_all(file, line)
                    os.fsync(file)
                    if not end:
                        _sync_folder(self.path.parent)
                except OSError:
                    os.ftruncate(file, end)
                    raise
        except OSError as error:
            raise PerflabError(f"the record cannot be written to {self.path}: {error.strerror or error}") from error

    def read(self) -> list[Record]:
        """All records, in the file's order; none if there is no file.

        A torn last line is left out with a warning. Any other line that is no record raises PerflabError with its
        number: nothing in the middle is skipped.
        """
        if not self.path.exists():
            return []
        lines, tail = self._lines()
        records = [self._record(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        if tail:
            try:
                records.append(Record.from_json(_text(tail)))
            except PerflabError as error:
                self._refuse_foreign(tail, bool(records) or not lines, len(lines) + 1, error)
                warnings.warn(f"{self.path}: the last line is torn and left out; the next append moves it to "
                              f"{self.torn_path.name}", stacklevel=2)  # fmt: skip
        return records

    def mend(self) -> bool:
        """Move a torn last line to `<file>.torn`, as the next append would; True if there was one.

        Raises PerflabError, and changes nothing, where the end of the file is something else than records.
        """
        if not self.path.exists():
            return False
        with self._locked_for_writing() as file:
            return self._mend_tail(file)

    def repair(self) -> int:
        """Move every line that is no record to `<file>.torn`; return how many. The good lines keep their order.

        Raises PerflabError for a file without a single record: that is no file of records.
        """
        if not self.path.exists():
            return 0
        with self._locked_for_writing() as file:
            lines = os.pread(file, os.fstat(file).st_size, 0).split(b"\n")
            bad = [line for line in lines if line.strip() and not _is_record(line)]
            if len(bad) == sum(bool(line.strip()) for line in lines) > 0:
                self._record(1, bad[0])
            if bad:
                self._keep_torn(b"".join(line + b"\n" for line in bad))
                self._replace(b"".join(line + b"\n" for line in lines if _is_record(line)))
        return len(bad)

    def _lines(self) -> tuple[list[bytes], bytes]:
        """The complete lines, and what follows the last newline."""
        with self.path.open("rb") as stream, _lock(stream.fileno(), exclusive=False):
            *lines, tail = stream.read().split(b"\n")
        return lines, tail

    def _record(self, number: int, line: bytes) -> Record:
        try:
            return Record.from_json(_text(line))
        except PerflabError as error:
            raise self._damaged(number, error) from error

    def _damaged(self, number: int, error: PerflabError) -> PerflabError:
        return PerflabError(
            f"{self.path}, line {number}: {error}. If this is a file of records, RecordFile(path).repair() moves such "
            f"lines to {self.torn_path.name} and keeps the rest; if it is not, name another file"
        )

    def _refuse_foreign(self, tail: bytes, after_record: bool, number: int, error: PerflabError) -> None:
        """A torn line follows records and starts like one, or is the zeros a power loss leaves. Else it is not ours."""
        text = tail.strip(b"\0 ")
        if not after_record or (text and (not text.startswith(b"{") or _is_json(text))):
            raise self._damaged(number, error)

    def _mend_tail(self, file: int) -> bool:
        """Before an append: end a complete last line, move a torn one away (True)."""
        size = os.fstat(file).st_size
        if not size:
            return False
        data = os.pread(file, size, 0)
        kept, newline, tail = data.rpartition(b"\n")
        last = kept.rpartition(b"\n")[2]
        if last.strip() and not _is_record(last):
            self._record(kept.count(b"\n") + 1, last)
        if _is_record(tail):
            _write_all(file, b"\n")
        elif tail:
            try:
                Record.from_json(_text(tail))
            except PerflabError as error:
                self._refuse_foreign(tail, bool(last.strip()) or not newline, kept.count(b"\n") + 2, error)
            self._keep_torn(tail + b"\n")
            os.ftruncate(file, len(kept) + len(newline))
            return True
        return False

    def _keep_torn(self, text: bytes) -> None:
        """On the disk before it leaves the record file: a crash in between doubles it, never loses it."""
        torn = os.open(self.torn_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            _write_all(torn, text)
            os.fsync(torn)
        finally:
            os.close(torn)

    def _replace(self, data: bytes) -> None:
        new = self.path.with_name(self.path.name + ".new")
        with new.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(new, self.path)

    @contextlib.contextmanager
    def _locked_for_writing(self) -> Iterator[int]:
        """The open file under its lock. `repair` may replace the file while we wait: then we hold the wrong one."""
        while True:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                with _lock(file, exclusive=True):
                    if self.path.exists() and os.path.samestat(os.fstat(file), os.stat(self.path)):
                        yield file
                        return
            finally:
                os.close(file)


@contextlib.contextmanager
def _lock(file: int, exclusive: bool) -> Iterator[None]:
    """An advisory lock on an open file; where the system has none (Windows), reading goes without."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def _write_all(file: int, data: bytes) -> None:
    """One write; a second only where the first was cut short, so that a full disk raises its own error."""
    while data:
        data = data[os.write(file, data) :]


def _sync_folder(folder: Path) -> None:
    """A new file's name must survive a power loss too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _text(line: bytes) -> str:
    return line.decode(errors="replace")


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _is_record(line: bytes) -> bool:
    try:
        Record.from_json(_text(line))
    except PerflabError:
        return False
    return True


# ---------------------------------------------------------------- the folder
def canonical_gpu(name: str) -> str:
    """The table's name of a GPU that a device reports ("NVIDIA H200" -> "H200"); an unlisted one keeps its own."""
    from perflab.gpus import gpu

    try:
        return gpu(name).name
    except PerflabError:
        return str(name)


def gpu_slug(name: str) -> str:
    """The folder of a GPU's records: 'h200', 'rtx-pro-6000'."""
    return re.sub(r"[^a-z0-9]+", "-", canonical_gpu(name).lower()).strip("-") or "unnamed"


def shape_sizes(shape: Any) -> dict[str, Any]:
    """A shape as a record holds it: {size name: value}, from a dataclass or a mapping."""
    return asdict(shape) if is_dataclass(shape) and not isinstance(shape, type) else dict(shape)


Key = tuple[str, str, str, str, str | None]


def _key(version: str, shape: Any, kind: str, dtype: str, rival: str | None) -> Key:
    return version, json.dumps(shape_sizes(shape), sort_keys=True), kind, dtype, rival


class RecordStore:
    """The records of a workspace: `<folder>/<gpu>/<study>.jsonl`."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._cache: dict[Path, tuple[tuple[int, int], list[Record], dict[Key, Record]]] = {}

    def file(self, study: str, gpu_name: str) -> RecordFile:
        """The file of one study on one GPU; it need not exist."""
        return RecordFile(self.folder / gpu_slug(gpu_name) / f"{study}.jsonl")

    def records(self, study: str, gpu_name: str) -> list[Record]:
        """All records of a study on a GPU, in the file's order. Read again only after the file changed."""
        return list(self._read(self.file(study, gpu_name))[0])

    def find(
        self, study: str, version: str, shape: Any, gpu_name: str, kind: str = "timing", dtype: str = "float32",
        rival: str | None = None,
    ) -> Record | None:  # fmt: skip
        """The latest such record, stale or not; None if there is none. `shape` is a dataclass or {size: value}."""
        latest = self._read(self.file(study, gpu_name))[1]
        return latest.get(_key(version, shape, kind, dtype, rival))

    def add(self, records: Iterable[Record]) -> int:
        """Append records, each to the file of its own study and GPU; return how many."""
        count = 0
        for record in records:
            self.file(record.study, record.gpu["name"]).append(record)
            count += 1
        return count

    def import_file(self, path: Path | str) -> tuple[int, int]:
        """Take the records of a file from elsewhere. Returns (added, already here): exact copies are left out."""
        if not Path(path).is_file():
            raise PerflabError(f"{path} is not there: name the records.jsonl that the run wrote")
        here: dict[Path, set[str]] = {}
        added = already = 0
        for record in RecordFile(path).read():
            file = self.file(record.study, record.gpu["name"])
            known = here.setdefault(file.path, {r.to_json() for r in self._read(file)[0]})
            line = record.to_json()
            if line in known:
                already += 1
                continue
            file.append(record)
            known.add(line)
            added += 1
        return added, already

    def _read(self, file: RecordFile) -> tuple[list[Record], dict[Key, Record]]:
        if not file.path.exists():
            return [], {}
        status = file.path.stat()
        stamp = status.st_mtime_ns, status.st_size
        if file.path not in self._cache or self._cache[file.path][0] != stamp:
            records = file.read()
            latest: dict[Key, Record] = {}
            for r in sorted(records, key=lambda record: record.utc):  # stable: at one instant the later line wins
                latest[_key(r.version, r.shape, r.kind, r.dtype, r.rival)] = r
            self._cache[file.path] = stamp, records, latest
        return self._cache[file.path][1:]
