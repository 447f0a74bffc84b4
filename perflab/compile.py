"""`Source` -> `Binary` (PTX, cubin, log) by NVRTC, with no GPU and no driver. The only module that calls NVRTC.

It runs in a worker, for a compile can take minutes or crash, and its results are cached by content. Sources and their
headers go to NVRTC in memory under plain names, so no folder of this machine is in a cubin.
"""

from __future__ import annotations

import base64
import ctypes
import functools
import hashlib
import json
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from perflab.caches import cache_folder, keep, read_kept
from perflab.errors import PerflabError, did_you_mean, unknown
from perflab.origins import Origin
from perflab.sources import KernelFound, Source, find_kernels, include_folders
from perflab.worker import Worker, WorkerDied, WorkerTimeout

NVRTC_SERIES = "13.0"
_WHEELS = ("cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-cuda-cccl")
INSTALL = "pip install " + " ".join(f'"{w}==13.0.*"' for w in _WHEELS)
ERRORS_SHOWN = 8
ELF_NOBITS = 8  # a section that only reserves memory
GUARD = "put host code between `#ifndef __CUDACC_RTC__` and `#endif`"
_STANDARD_OPTIONS = ("--std=c++17", "-lineinfo", "--ptxas-options=-v")
_HINTS = (
    (r"not allowed in JIT mode|<<<", f"NVRTC takes device code only: {GUARD}"),
    (r"open source file", f"only headers beside the file and CUDA's own are found; {GUARD}, #include lines too"),
)


class CompileError(PerflabError):
    """NVRTC or ptxas refused a source: each error with its file, line, source line and caret."""


@dataclass(frozen=True)
class Binary:
    """What NVRTC made of a source for one architecture.

    entries: name expression, or readable name, -> mangled entry
    options: those that change the code, include folders left out
    nvrtc:   version of the compiler, as "13.0.88"
    code:    fingerprint of machine code and constants; comments, line numbers and folders do not change it
    """

    architecture: str
    ptx: str
    cubin: bytes
    log: str
    entries: Mapping[str, str]
    options: tuple[str, ...]
    nvrtc: str
    code: str

    @property
    def origin(self) -> Origin:
        return Origin("compiled", f"NVRTC {self.nvrtc}, {self.architecture}")

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it: the cubin in base64."""
        return {**asdict(self), "cubin": base64.b64encode(self.cubin).decode(), "options": list(self.options)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Binary:
        """The inverse of `to_dict`. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(**{**plain, "cubin": base64.b64decode(plain["cubin"]), "options": tuple(plain["options"])})


def compile_source(
    source: Source,
    architecture: str,
    names: tuple[str, ...] = (),
    defines: tuple[tuple[str, str], ...] = (),
    options: tuple[str, ...] = (),
    time_limit_seconds: float = 120,
) -> Binary:
    """Compile for `architecture` ("sm_90", "sm_90a"); out of the cache where this was done before.

    names are the template instances wanted ("saxpy<float>"); other kernels of the file come along. Raises CompileError
    with the compiler's words, PerflabError where the compiler is missing or not of the 13.0 series.
    """
    request: dict[str, Any] = {"source": asdict(source), "architecture": architecture, "names": names, "defines": defines,
                               "options": options}
    path = cache_folder() / "binaries" / f"{_key(request)}.json"
    if (cached := _read(path)) is not None:
        return cached
    try:
        plain = _worker().call("compile", time_limit_seconds, **request)
    except WorkerTimeout:
        words = f"{source.file} for {architecture} was not compiled within {time_limit_seconds:g} s. A usual cause is a long"
        raise CompileError(f"{words} loop, fully unrolled: lower its `#pragma unroll`, or raise time_limit_seconds.") from None
    except WorkerDied as error:
        raise CompileError(f"the compiler crashed on {source.file} for {architecture}: {error}") from error
    keep(path, json.dumps(plain))
    return Binary.from_dict(plain)


def compile_task(
    source: dict[str, Any], architecture: str, names: list[str], defines: list[list[str]], options: list[str]
) -> dict[str, Any]:
    """The worker's task "compile": one Source, as plain JSON, to `Binary.to_dict()`."""
    os.chdir("/")  # NVRTC writes the working directory into the line table
    if architecture not in architectures():
        if architecture in ("sm_70", "sm_72"):
            raise PerflabError(f"{architecture}: occupancy only. NVRTC {NVRTC_SERIES} compiles for sm_75 and newer.")
        raise unknown("architecture", architecture, architectures())
    own = Source(source["file"], source["text"], tuple((name, text) for name, text in source["headers"]))
    macros = [f"-D{name}={value}" if value else f"-D{name}" for name, value in defines]
    flags = [f"--gpu-architecture={architecture}", *_STANDARD_OPTIONS, *macros, *options]
    log, ptx, cubin, lowered = _run_nvrtc(own, flags, names)
    entries = {**lowered, **_other_entries(ptx, lowered)}
    if not entries:
        raise _no_kernels(own)
    return Binary(architecture, ptx, cubin, log, entries, tuple(flags), nvrtc_version(), fingerprint(cubin)).to_dict()


@functools.cache
def architectures() -> tuple[str, ...]:
    """What this NVRTC compiles for: "sm_75" and on, with the "a" variants (wgmma, tcgen05, …) from 9.0 on."""
    _, numbers = _nvrtc().nvrtcGetSupportedArchs()
    return tuple(name for n in numbers for name in ([f"sm_{n}", f"sm_{n}a"] if n >= 90 else [f"sm_{n}"]))


@functools.cache
def nvrtc_version() -> str:
    """The installed compiler, as "13.0.88". Raises PerflabError if there is none, or another series than 13.0."""
    try:
        version = metadata.version("nvidia-cuda-nvrtc")
    except metadata.PackageNotFoundError:
        raise PerflabError(f"there is no compiler: NVRTC {NVRTC_SERIES} is needed. {INSTALL}") from None
    if not version.startswith(NVRTC_SERIES + ".") and os.environ.get("PERFLAB_ANY_NVRTC") != "1":
        words = f"NVRTC {version} is installed, perflab's numbers belong to {NVRTC_SERIES}: others give other register counts."
        raise PerflabError(f"{words} {INSTALL}   or set PERFLAB_ANY_NVRTC=1 to use it as it is.")
    return version


@functools.cache
def _worker() -> Worker:
    return Worker()  # its process ends with ours: it reads an end of file


def _nvrtc() -> Any:
    wheel = nvrtc_version()
    try:
        from cuda.bindings import nvrtc  # type: ignore[import-untyped]

        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise PerflabError(f"NVRTC cannot be loaded ({error}). {INSTALL}") from error
    if not wheel.startswith(f"{major}.{minor}."):
        raise PerflabError(f"NVRTC {major}.{minor} was loaded, the wheel is {wheel}: another CUDA came first.")
    return nvrtc


def _run_nvrtc(source: Source, flags: list[str], names: list[str]) -> tuple[str, str, bytes, dict[str, str]]:
    nvrtc = _nvrtc()
    labels, texts = [name.encode() for name, _ in source.headers], [text.encode() for _, text in source.headers]
    _, program = nvrtc.nvrtcCreateProgram(source.text.encode(), source.file.encode(), len(texts), texts, labels)
    try:
        for name in names:
            nvrtc.nvrtcAddNameExpression(program, name.encode())
        every = [flag.encode() for flag in [*flags, *(f"-I{folder}" for folder in include_folders())]]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(every), every)
        said = _fetched(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
        log = re.sub(r"ptxas info *: Compile time.*\n", "", said.rstrip(b"\0").decode(errors="replace"))  # never the same
        if int(status):
            raise _compile_error(source, flags[0].split("=")[1], names, log)
        log = _without_folders(log.encode()).decode()
        ptx = _without_folders(_fetched(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)).rstrip(b"\0").decode()
        cubin = _without_folders(_fetched(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN))
        lowered = {name: nvrtc.nvrtcGetLoweredName(program, name.encode())[1].decode() for name in names}
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return log, ptx, cubin, lowered


def _without_folders(code: bytes) -> bytes:
    """`code` whose line tables name CUDA's headers as "/cuda////…/cuda_fp16.hpp": of this machine's folder, only its length."""
    for folder in reversed(include_folders()):
        path = str(folder).encode()
        code = code.replace(path, b"/cuda".ljust(len(path), b"/"))
    return code


def _fetched(program: Any, size_of: Any, fill: Any) -> bytes:
    """NVRTC's two-step read. `bytes(n)` is a fresh object; the usual `b" " * n` is CPython's shared one when n is 1,
    and NVRTC would overwrite every such byte of the process."""
    _, size = size_of(program)
    buffer = bytes(size + 1)
    fill(program, buffer)
    return buffer[:size]


def _key(request: Mapping[str, Any]) -> str:
    """The digest of everything that decides what comes out: request, compiler and CUDA's headers."""
    nvrtc_version()  # raises where there is no compiler
    return hashlib.sha256(json.dumps([request, _wheel_versions(), _STANDARD_OPTIONS], sort_keys=True).encode()).hexdigest()


@functools.cache
def _wheel_versions() -> list[str]:
    return [metadata.version(wheel) for wheel in _WHEELS]


_read_before: dict[Path, Binary] = {}  # a study asks for the same binary thousands of times


def _read(path: Path) -> Binary | None:
    """The cached binary; None where there is none or it is damaged, for it is only compiled again."""
    if path not in _read_before:
        try:
            _read_before[path] = Binary.from_dict(json.loads(read_kept(path) or b""))
        except (ValueError, KeyError, TypeError):
            return None
    return _read_before[path]


def sections(cubin: bytes) -> dict[str, tuple[int, bytes]]:
    """Section name -> (size in bytes, data) of a cubin, in file order; a section that only reserves memory has no data.

    A cubin is a 64-bit little-endian ELF file of machine 190 (CUDA). Raises ValueError for another file.
    """
    if cubin[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", cubin, 18)[0] != 190:
        raise ValueError("not a cubin")
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names_at = struct.unpack_from("<3H", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + size * k) for k in range(count)]
    found = {}
    for name, kind, _, _, at, length in headers:
        start = headers[names_at][4] + name
        label = cubin[start : cubin.index(0, start)].decode()
        found[label] = (length, b"" if kind == ELF_NOBITS else cubin[at : at + length])
    return found


def fingerprint(cubin: bytes) -> str:
    """The sha256 over machine code, its attributes, constants and initialised variables; line tables are left out."""
    digest = hashlib.sha256()
    for name, (_, data) in sections(cubin).items():
        if re.match(r"\.text\.|\.nv\.(info|constant|global\.init)", name):
            digest.update(_without_process_id(name).encode() + b"\0" + data)
    return digest.hexdigest()


def _without_process_id(name: str) -> str:
    """A mangled name without what NVRTC makes up for anonymous namespaces and statics: it holds the process number."""
    while match := re.search(r"(\d+)_(?:GLOBAL__N_|INTERNAL)_", name):
        name = f"{name[: match.start()]}~{name[match.end(1) + int(match[1]) :]}"
    return name


def _other_entries(ptx: str, lowered: Mapping[str, str]) -> dict[str, str]:
    """The entries that no name expression asked for, by readable name; by mangled name where overloads share one."""
    entries = [entry for entry in re.findall(r"\.entry\s+([\w$]+)", ptx) if entry not in lowered.values()]
    readable = [readable_name(entry) for entry in entries]
    return {r if readable.count(r) == 1 and r not in lowered else e: e for r, e in zip(readable, entries, strict=True)}


def readable_name(entry: str) -> str:
    """A mangled entry as one would write it: 'saxpy<float>'; the entry itself where no C++ library is there to say."""
    if not entry.startswith("_Z"):
        return entry  # extern "C"; as a mangled type, "c" would be char
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except OSError:
        return entry
    demangle.restype = ctypes.c_void_p
    pointer = demangle(entry.encode(), None, None, None)  # a hundred bytes that nobody frees, once an entry
    full = ctypes.string_at(pointer).decode() if pointer else entry
    return full.replace("(anonymous namespace)::", "").removeprefix("void ").split("(")[0]


def _compile_error(source: Source, architecture: str, names: list[str], log: str) -> CompileError:
    """The log as a person wants it: errors only, the first few, and what to do about the usual ones."""
    for folder in include_folders():
        log = log.replace(f"{folder}/", "")
    blocks = [block.rstrip() for block in re.split(r"\n\s*\n", log)]
    shown = [said for block in blocks if (said := _one_error(block))]
    if not shown:  # only name expressions failed
        return _no_such_kernel(source, names, next((b for b in blocks if "__nv_name_map(" in b), log))
    more = f"\n… and {len(shown) - ERRORS_SHOWN} more" if len(shown) > ERRORS_SHOWN else ""
    hint = next((f"\nhint: {hint}" for pattern, hint in _HINTS if re.search(pattern, log)), "")
    head = f"{source.file} does not compile for {architecture} (NVRTC {nvrtc_version()}):"
    return CompileError("\n".join([head, *shown[:ERRORS_SHOWN]]) + more + hint)


def _one_error(block: str) -> str:
    """One message of NVRTC ("k.cu(3): error: …", the line, a caret) or of ptxas; '' for a warning or a closing count."""
    nvrtc = re.search(r"^(\S.*?)\((\d+)\): (?:catastrophic )?error(?: #\S+)?: (.*)", block, re.DOTALL | re.MULTILINE)
    if nvrtc and nvrtc[1] == "__nv_name_map":
        return ""
    if nvrtc:
        said = re.sub(r"A (function|namespace scope variable) without.*JIT mode", r"this is a host \1", nvrtc[3])
        return f"{nvrtc[1].lstrip('/')}:{nvrtc[2]}: {said}"
    ptxas = [line for line in block.splitlines() if re.search(r"ptxas.*\b(error|fatal)\b", line)]
    return "\n".join(_ptxas_error(line) for line in ptxas if "aborted" not in line)


def _ptxas_error(line: str) -> str:
    said = re.sub(r"^.*?\b(error|fatal)\s*:\s*", "", line.strip())
    if not (match := re.search(r"'(\S+)' uses too much shared data \(0x(\w+) bytes, 0x(\w+) max\)", said)):
        return f"ptxas: {said}"
    sizes = f"{int(match[2], 16):,} B of static shared memory, the limit is {int(match[3], 16):,} B"
    return f"{readable_name(match[1])}: {sizes}; more needs dynamic shared memory: `extern __shared__`"


def _no_such_kernel(source: Source, names: list[str], block: str) -> CompileError:
    """The error for the first name expression that NVRTC cannot find or instantiate; `block` is what it said."""
    by_name = {kernel.name: kernel for kernel in _kernels_of(source)}
    said, pragma = block.splitlines()[0], "".join(block.split())
    name = next((name for name in names if "nv_mangled_name" + "".join(name.split()) in pragma), names[0])
    plain = name.split("<")[0].split("::")[-1].strip()
    kernel = by_name.get(plain)
    if kernel is None:
        words = f'there is no kernel "{name}" in {source.file}.{did_you_mean(plain, by_name)}'
    elif kernel.template and "<" not in name:
        words = f'"{plain}" is a template: say which instance, such as "{kernel.example}".'
    else:
        words = f'"{name}" cannot be made of {kernel}: {re.sub(r"^.*? error: ", "", said)}.'
    defined = ", ".join(map(str, by_name.values())) or "no __global__ function"
    return CompileError(f"{words} {source.file} defines: {defined}")


def _no_kernels(source: Source) -> CompileError:
    found = _kernels_of(source)
    if not found:
        return CompileError(f"{source.file} defines no __global__ function, so there is nothing to run.")
    words = f"{source.file} has kernel templates only, and none is instantiated: {', '.join(map(str, found))}."
    return CompileError(f'{words} Give the instance wanted as the name, such as "{found[0].example}".')


def _kernels_of(source: Source) -> list[KernelFound]:
    return [kernel for text in source.texts for kernel in find_kernels(text)]
