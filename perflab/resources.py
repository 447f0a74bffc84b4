"""`Binary` -> `Resources`: what a compiled kernel takes of an SM, and what its machine code is made of.

Registers, stack, shared memory, barriers and parameters are read out of the cubin (attribute records of `.nv.info`, whose
format NVIDIA does not document: the tests compare with its cuobjdump); spilled bytes stand in the log of ptxas only; the
machine code comes from nvdisasm, which takes a second and so is asked only when `sass` or `spills_by_line` is.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import struct
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from perflab.compile import Binary, cache_folder, include_folders, sections, write_atomically
from perflab.errors import PerflabError, unknown
from perflab.tables import Table

# Records of .nv.info, by number: with a symbol and a value for the whole cubin, or a value for one kernel.
_REGISTERS, _STACK, _MAX_THREADS, _EXACT_THREADS, _PARAMETER, _BARRIERS = 0x2F, 0x11, 0x05, 0x10, 0x17, 0x4C
_RESERVED_SHARED_BYTES = 1024  # from 9.0 on the system takes this of every block; it is part of .nv.shared
_LISTING_VERSION = 1  # of the cached disassembly

# Classes of instructions by opcode, the first that matches; a load without .64 or .128 moves 32 bits or fewer.
SASS_CLASSES: tuple[tuple[str, str], ...] = (
    ("LDG.128", r"LDG\b.*\.128"), ("LDG.64", r"LDG\b.*\.64\b"), ("LDG.32", r"LDG\b"),
    ("STG.128", r"STG\b.*\.128"), ("STG.64", r"STG\b.*\.64\b"), ("STG.32", r"STG\b"),
    ("LDGSTS", r"LDGSTS"), ("TMA", r"UBLK|UTMA"), ("LDSM", r"LDSM"), ("STSM", r"STSM"),
    ("LDS.128", r"LDS\b.*\.128"), ("LDS.64", r"LDS\b.*\.64\b"), ("LDS.32", r"LDS\b"), ("STS", r"STS\b"),
    ("LDL", r"LDL\b"), ("STL", r"STL\b"), ("ATOM/RED", r"ATOM|U?RED\b|REDG|REDUX"),
    ("HGMMA", r"[HQIB]GMMA"), ("UTCMMA", r"UTC.*MMA"), ("HMMA", r"[HQO]MMA"), ("IMMA", r"IMMA"), ("DMMA", r"DMMA"),
    ("FFMA", r"FFMA"), ("FADD", r"FADD"), ("FMUL", r"FMUL"), ("HFMA2", r"H(FMA|ADD|MUL)2"), ("DFMA", r"D(FMA|ADD|MUL)\b"),
    ("MUFU", r"MUFU"), ("SHFL", r"SHFL"), ("BAR", r"BAR\b"), ("IMAD", r"IMAD"), ("BRA", r"BRA\b"),
)  # fmt: skip
_FUNCTION = re.compile(r"^\.text\.(\S+):$")
_LINE = re.compile(r'//## File "(.*?)", line (\d+)')
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(@\S+\s+)?([A-Z][\w.]*)(.*)")


@dataclass(frozen=True)
class Parameter:
    """Where one kernel argument lies in the parameter block."""

    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True)
class Resources:
    """What one kernel of a `Binary` takes. Registers, stack and spills are a thread's, shared memory is a block's.

    spill_*_bytes: sums over the instructions of the code, as ptxas states them, not over their executions
    max_threads:   of __launch_bounds__; None without. min_blocks: its second argument; None without
    constant_bytes: __constant__ variables of the file and constants of the compiler, without the parameters
    """

    name: str
    entry: str
    architecture: str
    registers: int
    static_shared_bytes: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    barriers: int
    max_threads: int | None
    min_blocks: int | None
    parameters: tuple[Parameter, ...]
    constant_bytes: int
    code_bytes: int
    origin: str
    cubin: bytes = field(repr=False)

    @cached_property
    def sass(self) -> Mapping[str, int]:
        """The static instruction mix: class -> instructions in the code, and their 'total'. Not an execution count."""
        return _listing(self.cubin)[self.entry]["mix"]

    @cached_property
    def spills_by_line(self) -> tuple[tuple[str, int, int, int], ...]:
        """(file, line, bytes stored, bytes loaded) of the spills, most bytes first; () without any."""
        if not self.spill_store_bytes + self.spill_load_bytes:
            return ()
        return tuple((file, line, out, back) for file, line, out, back in _listing(self.cubin)[self.entry]["spills"])

    def table(self) -> Table:
        """One row a resource."""
        bounds = "-" if self.max_threads is None else f"{self.max_threads:,} threads a block"
        rows: list[tuple[str, object]] = [
            ("registers a thread", self.registers),
            ("static shared memory", f"{self.static_shared_bytes:,} B"),
            ("stack a thread", f"{self.stack_bytes:,} B"),
            ("spilled", f"{self.spill_store_bytes:,} B stored, {self.spill_load_bytes:,} B loaded"),
            ("barriers", self.barriers),
            ("launch bounds", bounds if self.min_blocks is None else f"{bounds}, {self.min_blocks} blocks per SM"),
            ("parameters", f"{len(self.parameters)}, {sum(p.size_bytes for p in self.parameters):,} B"),
            ("constants", f"{self.constant_bytes:,} B"),
            ("code", f"{self.code_bytes:,} B"),
        ]
        return Table(f"{self.name} on {self.architecture}", ("resource", "use"), rows, self.origin, list(self._where()))

    def __str__(self) -> str:
        return str(self.table())

    def markdown(self) -> str:
        return self.table().markdown()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self.table()._repr_mimebundle_()

    def _where(self, most: int = 4) -> Iterator[str]:
        for file, line, stored, loaded in self.spills_by_line[:most]:
            yield f"spills at {file}:{line}: {stored:,} B stored, {loaded:,} B loaded"
        if len(self.spills_by_line) > most:
            yield f"spills at {len(self.spills_by_line) - most} more lines"


def resources(binary: Binary, name: str | None = None) -> Resources:
    """The resources of the kernel `name` (name expression, plain name or mangled entry; the only kernel needs none).

    Raises PerflabError where the name is unknown or one of several kernels is not named.
    """
    name = _chosen(binary, name)
    entry = binary.entries.get(name, name)
    parts = sections(binary.cubin)
    code_bytes, _ = parts[f".text.{entry}"]
    whole = dict(_of_symbol(parts, entry))
    own = list(_records(parts[f".nv.info.{entry}"][1]))
    values = dict(own)
    threads = values.get(_EXACT_THREADS) or values.get(_MAX_THREADS)
    is_new = int(re.sub(r"\D", "", binary.architecture)) >= 90
    log = _log_of(binary.log, entry)
    stored, loaded = (int(n) for n in (re.findall(r"(\d+) bytes spill (?:stores|loads)", log) or (0, 0)))
    min_blocks = re.search(rf"\.entry\s+{re.escape(entry)}\b[^{{]*?\.minnctapersm\s+(\d+)", binary.ptx)
    constant = re.compile(rf"\.nv\.constant([34]|[1-9]\d*\.{re.escape(entry)})")  # bank 0 holds the parameters
    return Resources(
        name=name, entry=entry, architecture=binary.architecture, registers=whole[_REGISTERS],
        static_shared_bytes=max(0, parts.get(f".nv.shared.{entry}", (0,))[0] - _RESERVED_SHARED_BYTES * is_new),
        stack_bytes=whole.get(_STACK, 0), spill_store_bytes=stored, spill_load_bytes=loaded,
        barriers=int.from_bytes(values.get(_BARRIERS, b"\0"), "little"),
        max_threads=_product(struct.unpack_from("<3I", threads)) if threads else None,
        min_blocks=int(min_blocks[1]) if min_blocks else None, parameters=_parameters(own),
        constant_bytes=sum(size for part, (size, _) in parts.items() if constant.fullmatch(part)),
        code_bytes=code_bytes, origin=str(binary.origin), cubin=binary.cubin,
    )  # fmt: skip


def nvidia_tool(name: str) -> str:
    """The path of nvdisasm or cuobjdump: of its wheel, else on the PATH. Raises PerflabError with what to install."""
    beside = [folder.parent / "bin" / name for folder in include_folders()]
    found = next((str(path) for path in beside if path.is_file()), None) or shutil.which(name)
    if found is None:
        raise PerflabError(f'{name} is not installed: pip install "nvidia-cuda-{name}>=13.2,<14"')
    return found


def _chosen(binary: Binary, name: str | None) -> str:
    if name is None and len(binary.entries) == 1:
        return next(iter(binary.entries))
    if name is None:
        raise PerflabError(f"there are several kernels, so say which: {', '.join(binary.entries)}")
    if name not in binary.entries and name not in binary.entries.values():
        raise unknown("kernel", name, binary.entries)
    return name


def _product(numbers: tuple[int, ...]) -> int:
    x, y, z = numbers
    return x * y * z


def _records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The (number, payload) records of one .nv.info section: format, number, then 2 bytes that are value or length."""
    at, LENGTH_FOLLOWS = 0, 4
    while at + 4 <= len(data):
        form, number, value = struct.unpack_from("<BBH", data, at)
        at += 4
        if form != LENGTH_FOLLOWS:
            yield number, data[at - 2 : at]
            continue
        yield number, data[at : at + value]
        at += value


def _of_symbol(parts: Mapping[str, tuple[int, bytes]], entry: str) -> Iterator[tuple[int, int]]:
    """The (number, value) records of the cubin's common .nv.info that belong to the symbol `entry`."""
    strings, symbols = parts[".strtab"][1], parts[".symtab"][1]
    for number, payload in _records(parts[".nv.info"][1]):
        if len(payload) == 8:
            symbol, value = struct.unpack("<II", payload)
            (at,) = struct.unpack_from("<I", symbols, 24 * symbol)
            if strings[at : strings.index(0, at)].decode() == entry:
                yield number, value


def _parameters(records: list[tuple[int, bytes]]) -> tuple[Parameter, ...]:
    """A parameter's record holds an index, its ordinal and offset, and the size in the upper 14 bits of the last word."""
    found = sorted(struct.unpack_from("<4xHHI", payload) for number, payload in records if number == _PARAMETER)
    return tuple(Parameter(offset, word >> 18) for _, offset, word in found)


def _log_of(log: str, entry: str) -> str:
    """The part of the ptxas log about one entry."""
    _, _, after = log.partition(f"Function properties for {entry}\n")
    return after.partition("Compiling entry function")[0]


def _listing(cubin: bytes) -> dict[str, dict]:
    """entry -> {"mix": class -> count, "spills": [[file, line, bytes out, bytes back]]}, cached by the cubin's digest."""
    path = cache_folder() / "sass" / f"{hashlib.sha256(cubin).hexdigest()}-{_LISTING_VERSION}.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        listing = disassembled(cubin)
    write_atomically(path, json.dumps(listing))
    return listing


def disassembled(cubin: bytes) -> dict[str, dict]:
    """What `_listing` caches, by nvdisasm. Its text, not its JSON: only that marks the loads and stores of spills."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run([nvidia_tool("nvdisasm"), "-g", "-c", str(file)], capture_output=True, text=True)
    if done.returncode:
        raise PerflabError(f"nvdisasm failed: {done.stderr.strip()}")
    listing: dict[str, dict] = {}
    mix: Counter[str] = Counter()
    spills: dict[tuple[str, int], list[int]] = {}
    place = ("", 0)
    for text in done.stdout.splitlines():
        if match := _FUNCTION.match(text):
            mix, spills, place = Counter(), defaultdict(lambda: [0, 0]), ("", 0)
            listing[match[1]] = {"mix": mix, "spills": spills}
        elif match := _LINE.search(text):
            place = (re.sub("^/(cuda/+)?", "", match[1]), int(match[2]))
        elif match := _INSTRUCTION.search(text):
            predicate, opcode, rest = (match[1] or "").strip(), match[2], match[3]
            if predicate == "@!PT" or opcode == "NOP":
                continue  # padding that is never executed
            mix[_class_of(opcode, rest)] += 1
            mix["total"] += 1
            if "SpillRefill" in rest:
                spills[place][opcode.startswith("LDL")] += _width_bytes(opcode)
    return {name: {"mix": dict(one["mix"]), "spills": _most_first(one["spills"])} for name, one in listing.items()}


def _class_of(opcode: str, operands: str) -> str:
    if opcode.startswith("HFMA2") and "-RZ, RZ" in operands:
        return "other"  # 0 * 0 + constant: the compiler's way to load a constant
    return next((label for label, pattern in SASS_CLASSES if re.match(pattern, opcode)), "other")


def _width_bytes(opcode: str) -> int:
    return next((size for part, size in ((".128", 16), (".64", 8), ("16", 2), ("8", 1)) if opcode.endswith(part)), 4)


def _most_first(spills: Mapping[tuple[str, int], list[int]]) -> list[list[object]]:
    ordered = sorted(spills.items(), key=lambda item: (-sum(item[1]), item[0]))
    return [[file, line, *counts] for (file, line), counts in ordered]
