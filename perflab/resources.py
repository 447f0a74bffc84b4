"""`Binary` -> `Resources`: what a compiled kernel takes of an SM, and what its machine code is made of.

Registers, stack, spills, shared memory and barriers are what ptxas logged (the tests compare with cuobjdump), parameters
and launch bounds stand in the PTX; the machine code comes from nvdisasm, which takes a second and so is asked only for
`sass` and `spills_by_line`.
"""

from __future__ import annotations

import hashlib
import math
import re
import shutil
import subprocess
import tempfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from perflab.caches import cache_folder, keep, read_kept
from perflab.compile import Binary, sections
from perflab.errors import PerflabError, unknown
from perflab.origins import Origin
from perflab.sources import include_folders
from perflab.tables import Shown, Table

_CLASSES_SHOWN = 8

# Classes of instructions by the start of the opcode; the rest is "other".
SASS_CLASSES: tuple[tuple[str, str], ...] = (
    ("LDGSTS", r"LDGSTS"), ("TMA", r"UBLK|UTMA"), ("LDSM", r"LDSM"), ("STSM", r"STSM"), ("STS", r"STS\b"),
    ("LDL", r"LDL\b"), ("STL", r"STL\b"), ("ATOM/RED", r"ATOM|U?RED\b|REDG|REDUX"),
    ("HGMMA", r"[HQIB]GMMA"), ("UTCMMA", r"UTC.*MMA"), ("HMMA", r"[HQO]MMA"), ("IMMA", r"IMMA"), ("DMMA", r"DMMA"),
    ("FFMA", r"FFMA"), ("FADD", r"FADD"), ("FMUL", r"FMUL"), ("HFMA2", r"H(FMA|ADD|MUL)2"), ("DFMA", r"D(FMA|ADD|MUL)\b"),
    ("MUFU", r"MUFU"), ("SHFL", r"SHFL"), ("BAR", r"BAR\b"), ("IMAD", r"IMAD"), ("BRA", r"BRA\b"),
)
_FUNCTION = re.compile(r"^\.text\.(\S+):$")
_LINE = re.compile(r'//## File "(.*?)", line (\d+)')
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(@\S+\s+)?([A-Z][\w.]*)(.*)")


@dataclass(frozen=True)
class Parameter:
    """Where one kernel argument lies in the parameter block."""

    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True)
class Resources(Shown):
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
    origin: Origin
    cubin: bytes = field(repr=False)

    @cached_property
    def sass(self) -> Mapping[str, int]:
        """The static instruction mix: class -> instructions in the code, and their 'total'. Not an execution count."""
        return disassembled(self.cubin)[self.entry]["mix"]

    @cached_property
    def spills_by_line(self) -> tuple[tuple[str, int, int, int], ...]:
        """(file, line, bytes stored, bytes loaded) of the spills, most bytes first; () without any."""
        if not self.spill_store_bytes + self.spill_load_bytes:
            return ()
        return tuple((file, line, out, back) for file, line, out, back in disassembled(self.cubin)[self.entry]["spills"])

    @property
    def instructions(self) -> str:
        """The instruction mix in words: the total and the most frequent classes, '934: 258 FFMA, 80 LDS.128'."""
        mix = [(-count, label) for label, count in self.sass.items() if label not in ("total", "other")]
        shown = ", ".join(f"{-count:,} {label}" for count, label in sorted(mix)[:_CLASSES_SHOWN])
        return f"{self.sass['total']:,}: {shown}" + (", …" if len(mix) > _CLASSES_SHOWN else "")

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
            ("instructions", self.instructions),
        ]
        title = f"{self.name} on {self.architecture}"
        return Table(title, ("resource", "use"), rows, str(self.origin), list(self._spill_notes()))

    def _spill_notes(self, most: int = 4) -> Iterator[str]:
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
    _, _, after = binary.log.partition(f"Function properties for {entry}\n")
    log, _, _ = after.partition("Compiling entry function")

    def logged(words: str) -> int:
        found = re.search(words.replace("N", r"(\d+)"), log)
        return int(found[1]) if found else 0

    _, _, after = binary.ptx.partition(f".entry {entry}(")
    declared, _, after = after.partition(")")
    directives, _, _ = after.partition("{")
    threads = re.search(r"\.(?:max|req)ntid\s+([\d, ]+)", directives)
    min_blocks = re.search(r"\.minnctapersm\s+(\d+)", directives)
    parts = sections(binary.cubin)
    constant = re.compile(rf"\.nv\.constant([34]|[1-9]\d*\.{re.escape(entry)})")  # bank 0 holds the parameters
    return Resources(
        name=name,
        entry=entry,
        architecture=binary.architecture,
        registers=logged("Used N registers"),
        static_shared_bytes=logged("N bytes smem"),
        stack_bytes=logged("N bytes stack frame"),
        spill_store_bytes=logged("N bytes spill stores"),
        spill_load_bytes=logged("N bytes spill loads"),
        barriers=logged("used N barriers"),
        max_threads=math.prod(map(int, threads[1].split(","))) if threads else None,
        min_blocks=int(min_blocks[1]) if min_blocks else None,
        parameters=tuple(_parameters(declared)),
        constant_bytes=sum(size for part, (size, _) in parts.items() if constant.fullmatch(part)),
        code_bytes=parts[f".text.{entry}"][0],
        origin=binary.origin,
        cubin=binary.cubin,
    )


def nvidia_tool(name: str) -> str:
    """The path of nvdisasm or cuobjdump: of its wheel, else on the PATH. Raises PerflabError with what to install."""
    beside = [folder.parent / "bin" / name for folder in include_folders()]
    found = next((str(path) for path in beside if path.is_file()), None) or shutil.which(name)
    if found is None:
        raise PerflabError(f'{name} is not installed: pip install "nvidia-cuda-{name}>=13.2,<14"')
    return found


def _chosen(binary: Binary, name: str | None) -> str:
    if name is None:
        if len(binary.entries) > 1:
            raise PerflabError(f"there are several kernels, so say which: {', '.join(binary.entries)}")
        (name,) = binary.entries
    elif name not in binary.entries and name not in binary.entries.values():
        raise unknown("kernel", name, binary.entries)
    return name


def _parameters(declared: str) -> Iterator[Parameter]:
    """Of PTX such as ".param .u64 a, .param .align 8 .b8 b[32]": each lies at the next multiple of its alignment."""
    end = 0
    for align, bits, count in re.findall(r"\.param\s+(?:\.align (\d+) )?\.[a-z](\d+)[^,\[]*(?:\[(\d+)\])?", declared):
        size = int(bits) // 8 * int(count or 1)
        offset = end + -end % int(align or size)
        yield Parameter(offset, size)
        end = offset + size


def disassembled(cubin: bytes) -> dict[str, dict]:
    """entry -> {"mix": class -> count, "spills": [[file, line, bytes out, bytes back]]}.

    Of nvdisasm's text, not its JSON: only that marks the loads and stores of spills.
    """
    listing: dict[str, dict] = {}
    mix: Counter[str] = Counter()
    spills: dict[tuple[str, int], list[int]] = {}
    place = ("", 0)
    for text in disassembly(cubin).splitlines():
        if match := _FUNCTION.match(text):
            mix, spills, place = Counter(), defaultdict(lambda: [0, 0]), ("", 0)
            listing[match[1]] = {"mix": mix, "spills": spills}
        elif named := source_place(text):
            place = named
        elif match := _INSTRUCTION.search(text):
            predicate, opcode, rest = (match[1] or "").strip(), match[2], match[3]
            if predicate == "@!PT" or opcode == "NOP":
                continue  # padding that is never executed
            mix[_class_of(opcode, rest)] += 1
            mix["total"] += 1
            if "SpillRefill" in rest:
                spills[place][opcode.startswith("LDL")] += _width_bytes(opcode)
    return {name: {"mix": dict(one["mix"]), "spills": _most_first(one["spills"])} for name, one in listing.items()}


def disassembly(cubin: bytes) -> str:
    """What nvdisasm says: the machine code with labels and source lines. Takes a second, so kept by the cubin's digest.

    Raises PerflabError where nvdisasm fails or is not there.
    """
    path = cache_folder() / "sass" / f"{hashlib.sha256(cubin).hexdigest()}.z"
    try:
        return zlib.decompress(read_kept(path) or b"").decode()
    except zlib.error:
        pass
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run([nvidia_tool("nvdisasm"), "-g", "-c", str(file)], capture_output=True, text=True)
    if done.returncode:
        raise PerflabError(f"nvdisasm failed: {done.stderr.strip()}")
    keep(path, zlib.compress(done.stdout.encode()))
    return done.stdout


def source_place(text: str) -> tuple[str, int] | None:
    """(file, line) that a line of the disassembly says the code after it came of; None where it says no such thing."""
    match = _LINE.search(text)
    return (re.sub("^/(cuda/+)?", "", match[1]), int(match[2])) if match else None


def _class_of(opcode: str, operands: str) -> str:
    base, _, _ = opcode.partition(".")
    if base in ("LDG", "STG", "LDS"):
        return f"{base}.{max(32, 8 * _width_bytes(opcode))}"
    if base == "HFMA2" and "-RZ, RZ" in operands:
        return "other"  # 0 * 0 + constant: the compiler's way to load a constant
    return next((label for label, pattern in SASS_CLASSES if re.match(pattern, opcode)), "other")


def _width_bytes(opcode: str) -> int:
    """What a thread moves: LDG.E.128.CONSTANT, STL.U8, LDS.64; 4 bytes where the opcode is silent."""
    width = re.search(r"\.[US]?(8|16|64|128|256)\b", opcode)
    return int(width[1]) // 8 if width else 4


def _most_first(spills: Mapping[tuple[str, int], list[int]]) -> list[list[object]]:
    ordered = sorted(spills.items(), key=lambda item: (-sum(item[1]), item[0]))
    return [[file, line, *counts] for (file, line), counts in ordered]
