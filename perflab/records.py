"""Measurements on disk: one JSON line each, appended and never rewritten; matched to a shape and a GPU; stale or not.

Standard library only: a bare GPU machine appends to such a file too.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Any

from perflab.errors import PerflabError

SCHEMA = 1
KINDS = ("timing", "check", "counts", "faults")
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

    kind       timing, check, counts (hardware counters) or faults (the sanitizer's); `payload` is the result, in SI units,
               as its own module writes it
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
        return self.payload_of("timing")

    @property
    def check(self) -> Mapping[str, Any]:
        """The payload of a check, for `Check.from_dict`."""
        return self.payload_of("check")

    def payload_of(self, kind: str) -> Mapping[str, Any]:
        """The payload, if it is of that kind; else PerflabError."""
        if kind != self.kind:
            raise PerflabError(f"this record of {self.study}/{self.version} holds {self.kind}, not {kind}")
        return self.payload

    def to_json(self) -> str:
        """The record as one line with sorted keys, without its newline. NaN and infinity, no JSON, become text."""
        line = {"schema": SCHEMA, **asdict(self)}
        line[self.kind] = json.loads(json.dumps(line.pop("payload")), parse_constant=str)
        return json.dumps(line, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    @staticmethod
    def from_json(text: str | bytes) -> Record:
        """Back from one line. Raises PerflabError that says what is wrong with it."""
        try:
            text = text if isinstance(text, str) else text.decode()
            line = json.loads(text)
        except ValueError as error:
            raise PerflabError(f"not JSON: {error}") from error
        if not isinstance(line, dict) or "schema" not in line:
            raise PerflabError("JSON, but no record: a record is an object with a schema")
        if line["schema"] != SCHEMA:
            raise PerflabError(f"a record of schema {line['schema']!r}; this perflab reads schema {SCHEMA}")
        kind = line.get("kind")
        wrong = [key for key, type_ in _FIELDS.items() if not isinstance(line.get(key), type_)]
        if kind not in KINDS or wrong or not isinstance(line.get(kind), dict):
            what = ", ".join(wrong) or f"kind {kind!r}"
            raise PerflabError(f"a record of schema {SCHEMA} whose fields are missing or of another type: {what}")
        rest = {key: line[key] for key in _FIELDS}
        payload = _text_to_nan(line[kind]) if any(f'"{name}"' in text for name in _NOT_FINITE) else line[kind]
        return Record(kind=kind, payload=payload, rival=line.get("rival"), **rest)


_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def _text_to_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _text_to_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_text_to_nan(inner) for inner in value]
    return float(value) if value in _NOT_FINITE else value


_CHANGED = {
    "code": "the kernel's code changed",
    "launches": "the launches changed",
    "inputs": "the inputs changed",
    "method": "the timing method changed ({} -> {})",
}


def stale_reasons(record: Record, today: Identity) -> tuple[str, ...]:
    """Why a record no longer holds, in words; () while it does. Only a timing depends on the timing method."""
    then = asdict(record.identity)
    now = asdict(today) if record.kind == "timing" else asdict(replace(today, method=then["method"]))
    return tuple(words.format(then[name], now[name]) for name, words in _CHANGED.items() if then[name] != now[name])


# ---------------------------------------------------------------- one file
class RecordFile:
    """A file of records. Writers take a lock, write a line at once and flush it to the disk before they go on.

    A line that a crash tore is moved to `<file>.torn` at the next append: nothing recorded is ever thrown away.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.torn_path = self.path.with_name(self.path.name + ".torn")

    def append(self, record: Record) -> None:
        """Add a record. Raises PerflabError, and leaves the file as it was, when the disk refuses it or the end of the
        file is something else than records."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab+", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
                self._mend(file)
                end = os.fstat(file.fileno()).st_size
                try:
                    _write(file, record.to_json().encode() + b"\n")
                except OSError:
                    file.truncate(end)
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
        with self.path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            whole, torn = self._split(file.read())
        if torn:
            warnings.warn(f"{self.path}: the last line is torn and left out; the next append moves it to "
                          f"{self.torn_path.name}", stacklevel=2)
        with _no_collection():
            return [self._record(number, line) for number, line in enumerate(whole.split(b"\n"), 1) if line.strip()]

    def _mend(self, file: FileIO) -> None:
        """Before an append: end a complete last line, move a torn one away."""
        file.seek(0)
        whole, torn = self._split(file.readall())
        if torn:
            with self.torn_path.open("ab", buffering=0) as aside:  # first: a crash in between doubles it, never loses it
                _write(aside, torn + b"\n")
            file.truncate(len(whole))
        elif whole and not whole.endswith(b"\n"):
            _write(file, b"\n")

    def _split(self, data: bytes) -> tuple[bytes, bytes]:
        """What ends in a record, and the torn line after it. PerflabError if the end is neither: not a file of ours."""
        head, newline, tail = data.rpartition(b"\n")
        before = head.rstrip()
        if before:
            self._record(before.count(b"\n") + 1, before.rpartition(b"\n")[2])
        if tail and _is_torn(tail):
            return head + newline, tail
        if tail:
            self._record(data.count(b"\n") + 1, tail)
        return data, b""

    def _record(self, number: int, line: bytes) -> Record:
        try:
            return Record.from_json(line)
        except PerflabError as error:
            raise PerflabError(f"{self.path}, line {number}: {error}. If this is a file of records, move that line to "
                               f"{self.torn_path.name}; if it is not, name another file") from error


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage is collected meanwhile: records are none, and looking through ever more of them doubles the time to parse."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _is_torn(line: bytes) -> bool:
    """Whether a crash left this: the beginning of a record, or the zeros of a power loss."""
    text = line.strip(b"\0 ")
    try:
        json.loads(text)
    except ValueError:
        return not text or text.startswith(b"{")
    return False


def _write(file: FileIO, data: bytes) -> None:
    """On the disk when it returns. One write; another only where it was cut short, so that a full disk raises its error."""
    while data:
        data = data[file.write(data) :]
    os.fsync(file.fileno())


# ---------------------------------------------------------------- the folder
def canonical_gpu(name: str) -> str:
    """The table's name of a GPU that a device reports ("NVIDIA H200" -> "H200"); an unlisted one keeps its own."""
    from perflab.gpus import gpu

    try:
        return gpu(name).name
    except PerflabError:
        return name


def gpu_slug(name: str) -> str:
    """The folder of a GPU's records: 'h200', 'rtx-pro-6000'."""
    return re.sub(r"[^a-z0-9]+", "-", canonical_gpu(name).lower()).strip("-")


def shape_sizes(shape: Any) -> dict[str, Any]:
    """A shape as a record holds it: {size name: value}, from a dataclass or a mapping."""
    return asdict(shape) if is_dataclass(shape) and not isinstance(shape, type) else dict(shape)


Key = tuple[str, str, str, str, str | None]


def _key(version: str, shape: Any, kind: str, dtype: str, rival: str | None = None) -> Key:
    return version, json.dumps(shape_sizes(shape), sort_keys=True), kind, dtype, rival


class RecordStore:
    """The records of a workspace: `<folder>/<gpu>/<study>.jsonl`."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._latest: dict[Path, tuple[tuple[int, int], dict[Key, Record]]] = {}

    def file(self, study: str, gpu_name: str) -> RecordFile:
        """The file of one study on one GPU; it need not exist."""
        return RecordFile(self.folder / gpu_slug(gpu_name) / f"{study}.jsonl")

    def find(self, study: str, version: str, shape: Any, gpu_name: str, kind: str = "timing", dtype: str = "float32",
             rival: str | None = None) -> Record | None:
        """The latest such record, stale or not; None if there is none. `shape` is a dataclass or {size: value}."""
        return self._newest(study, gpu_name).get(_key(version, shape, kind, dtype, rival))

    def newest(self, study: str, gpu_name: str) -> list[Record]:
        """The latest record of each version or rival, shape, kind and dtype of a study on a GPU."""
        return list(self._newest(study, gpu_name).values())

    def _newest(self, study: str, gpu_name: str) -> Mapping[Key, Record]:
        file = self.file(study, gpu_name)
        if not file.path.exists():
            return {}
        status = file.path.stat()
        stamp = status.st_mtime_ns, status.st_size
        if file.path not in self._latest or self._latest[file.path][0] != stamp:
            by_time = sorted(file.read(), key=lambda record: record.utc)  # stable: at one instant the later line wins
            self._latest[file.path] = stamp, {_key(r.version, r.shape, r.kind, r.dtype, r.rival): r for r in by_time}
        return self._latest[file.path][1]

    def add(self, records: Iterable[Record]) -> None:
        """Append records, each to the file of its own study and GPU."""
        for record in records:
            self.file(record.study, record.gpu["name"]).append(record)

    def import_file(self, path: Path | str) -> tuple[int, int]:
        """Take the records of a file from elsewhere. Returns (added, already here): exact copies are left out."""
        if not Path(path).is_file():
            raise PerflabError(f"{path} is not there: name the records.jsonl that the run wrote")
        given = RecordFile(path).read()
        here = {r.to_json() for file in self.folder.glob("*/*.jsonl") for r in RecordFile(file).read()}
        new = {line: r for line, r in ((r.to_json(), r) for r in given) if line not in here}
        self.add(new.values())
        return len(new), len(given) - len(new)
