"""`Kernel`: a source file, a name expression and defines; `load()` makes one, and its verbs ask the compiler.

Files are taken as people write them for nvcc: headers beside the file are found, standard headers that NVRTC lacks have
stand-ins, and where host code is in the way it is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perflab.compile import Binary, CompileError, Source, after_brackets, compile_source, include_folders, without_comments
from perflab.errors import PerflabError, did_you_mean
from perflab.gpus import gpu as find_gpu
from perflab.occupancy_model import Occupancy, occupancy
from perflab.origins import Origin
from perflab.resources import Resources, resources
from perflab.tables import Table, percent

HOST_CODE_LEFT_OUT = ("PERFLAB_HOST_CODE_LEFT_OUT", "1")
"""A define that marks a Binary made of a file's device code alone; it stands among the Binary's options."""

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)
_ONLY_A_VARIANT = re.compile(r"\b(wgmma|tcgen05|setmaxnreg)\.")  # instructions that no plain sm_90 or sm_100 has


@dataclass(frozen=True)
class Kernel:
    """One __global__ function of a source. Shapes and tunables only change `name` and `defines`.

    name: a name expression ("saxpy<float>"); None where the source has one kernel. gpu, everywhere: what `pl.gpu` takes,
    or an architecture with its suffix ("sm_90a"). Verbs raise CompileError with the compiler's words.
    """

    source: Source
    name: str | None = None
    defines: tuple[tuple[str, str], ...] = ()
    options: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The file and, where given, the name: 'saxpy.cu saxpy<float>'."""
        return f"{self.source.file} {self.name}" if self.name else self.source.file

    @property
    def source_text(self) -> str:
        return self.source.text

    def architecture(self, gpu: Any) -> str:
        """What to compile for: the GPU's architecture, in its "a" variant where the source's instructions need that."""
        if isinstance(gpu, str) and (match := re.fullmatch(r"(?:sm|compute)_(\d+[af])", gpu.strip().lower())):
            return f"sm_{match[1]}"
        plain = find_gpu(gpu).architecture
        texts = (self.source.text, *(text for _, text in self.source.headers))
        is_newer = int(plain.removeprefix("sm_")) >= 90
        return plain + "a" if is_newer and any(_ONLY_A_VARIANT.search(text) for text in texts) else plain

    def binary(self, gpu: Any) -> Binary:
        """PTX, cubin and log. What does not compile as it stands is tried once more as `device_code`."""
        names, architecture = (self.name,) if self.name else (), self.architecture(gpu)
        try:
            return compile_source(self.source, architecture, names, self.defines, self.options)
        except CompileError:
            device, left_out = device_code(self.source)
        mark = (HOST_CODE_LEFT_OUT,) if left_out else ()
        return compile_source(device, architecture, names, (*self.defines, *mark), self.options)

    def resources(self, gpu: Any) -> Any:
        """The `Resources` on one GPU; for a list of GPUs a `Table`, one row a GPU."""
        if _is_one(gpu):
            return resources(self.binary(gpu), self.name)
        found = [(one, self.resources(one)) for one in gpu]
        rows = [
            (_gpu_name(one), r.registers, r.static_shared_bytes, r.stack_bytes, r.spill_store_bytes, r.barriers)
            for one, r in found
        ]
        columns = ("GPU", "registers", "static shared, B", "stack, B", "spilled, B", "barriers")
        return Table(f"resources of {self.label}", columns, rows, _compiled(found))

    def occupancy(self, gpu: Any, block: Any, dynamic_shared: int = 0, grid: Any = None, **more: Any) -> Any:
        """The `Occupancy` with this kernel's own registers, static shared memory and barriers; a list of GPUs: a `Table`.

        block, grid: a number or (x, y, z); dynamic_shared in bytes; `more` as `pl.occupancy` takes it. Raises PerflabError
        for a block beyond the kernel's launch bounds.
        """
        if _is_one(gpu):
            return occupancy_with(self.resources(gpu), gpu, block, dynamic_shared=dynamic_shared, grid=grid, **more)
        found = [(one, self.resources(one)) for one in gpu]
        rows = []
        for one, used in found:
            held = occupancy_with(used, one, block, dynamic_shared=dynamic_shared, grid=grid, **more)
            limiters = held.reason or ", ".join(name.replace("_", " ") for name in held.limiters)
            held_of = (held.blocks_per_sm, held.warps_per_sm, percent(held.fraction), limiters)
            rows.append((_gpu_name(one), used.registers, *held_of))
        columns = ("GPU", "registers", "blocks/SM", "warps/SM", "occupancy", "limited by")
        return Table(f"occupancy of {self.label}, blocks of {block}", columns, rows, f"calculated + {_compiled(found)}")

    def entry(self, gpu: Any) -> str:
        """The mangled name under which a driver finds the kernel in the cubin."""
        return self.resources(gpu).entry

    def code(self, gpu: Any) -> str:
        """The fingerprint of the compiled code: comments, lines and folders do not change it."""
        return self.binary(gpu).code


def load(
    path_or_text: str | Path, name: str | None = None, defines: Mapping[str, Any] | None = None, options: Sequence[str] = ()
) -> Kernel:
    """A kernel out of a .cu file, or out of text (what has a line end or a brace is text).

    name: which kernel, as a name expression ("saxpy<float>"); defines: macro -> value; options: further NVRTC options.
    Raises PerflabError for a file that is not there.
    """
    pairs = tuple((key, str(value)) for key, value in (defines or {}).items())
    text = str(path_or_text)
    if "\n" in text or "{" in text:
        source = Source("inline.cu", text, _headers(text, None))
    else:
        path = Path(text)
        if not path.is_file():
            beside = sorted(file.name for file in path.parent.glob("*.cu")) if path.parent.is_dir() else []
            known = f" {path.parent} holds: {', '.join(beside)}." if beside else ""
            raise PerflabError(f'there is no file "{text}".{did_you_mean(path.name, beside)}{known}')
        text = _read(path)
        source = Source(path.name, text, _headers(text, path.parent))
    return Kernel(source, name, pairs, tuple(options))


def occupancy_with(used: Resources, gpu: Any, block: Any, **more: Any) -> Occupancy:
    """The occupancy of compiled resources. Raises PerflabError for a block beyond the launch bounds."""
    threads = 1
    for extent in block if isinstance(block, Sequence) else (block,):
        threads *= int(extent)
    if used.max_threads is not None and threads > used.max_threads:
        raise PerflabError(
            f"a block of {threads:,} threads: {used.name} is compiled for at most {used.max_threads:,} (__launch_bounds__), "
            "and such a launch fails. Take a smaller block or raise the bounds."
        )
    asked = {"registers": used.registers, "static_shared": used.static_shared_bytes, "barriers": used.barriers}
    return occupancy(_without_suffix(gpu), block, **(asked | more))


# ---------------------------------------------------------------- files as people write them


def device_code(source: Source) -> tuple[Source, tuple[str, ...]]:
    """`source` without its host code, every line in its place, and what was left out: 'main (line 12)', '<vector>'.

    Host functions, host variables, types that only these use, and whatever names `std::` go; constexpr functions become
    device functions, as with nvcc's --expt-relaxed-constexpr; headers that are not there are empty. What nvcc includes by
    itself is included, for many files use it without saying so.
    """
    texts = {"": source.text, **dict(source.headers)}
    device = _device_macros(list(texts.values()))
    left_out: list[str] = []
    for name, text in texts.items():
        texts[name] = _without(text, sorted(_host_items(without_comments(text), 0, len(text), device, False)), left_out)
    while unused := _unused_types(texts, device):
        for name, spans in unused.items():
            texts[name] = _without(texts[name], spans, left_out)
    included = dict.fromkeys(name for text in texts.values() for _, name in _INCLUDE.findall(text))
    folders = include_folders()
    missing = [name for name in included if name not in texts and not any((f / name).is_file() for f in folders)]
    prelude = "".join(f'#include "{name}"\n' for name in ("cuda_runtime.h", "cmath", "cstdint", "climits"))
    text = f'{prelude}{_LINUX_TYPES}#line 1 "{source.file}"\n{texts.pop("")}'
    absent = {name: _WITH_LIBRARIES if name.startswith(("cublas", "cudnn")) else "" for name in missing}
    device_source = Source(source.file, text, tuple((STAND_INS | absent | texts).items()))
    return device_source, (*left_out, *(f"<{name}>" for name in missing if name not in STAND_INS))


def _device_macros(texts: Sequence[str]) -> re.Pattern[str]:
    """What marks device code: CUDA's own words, and the file's macros that stand for them."""
    words = ["__device__", "__global__", "__constant__", "__shared__", "__managed__"]
    define = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?:\([^)]*\))?[^\n]*__(?:device|global)__", re.MULTILINE)
    words += [name for text in texts for name in define.findall(text)]
    return re.compile(rf"\b({'|'.join(words)})\b")


def _without(text: str, spans: Sequence[tuple[int, int]], left_out: list[str]) -> str:
    """`text` with `spans` blanked and told in `left_out`; an empty span gets `__device__`."""
    bare = without_comments(text)
    for start, end in spans:
        if start < end:
            head = re.search(r"([\w~:]+)\s*(\(|=|;|\[|\{|$)", bare[start:end])
            left_out.append(f"{head[1] if head else 'code'} (line {bare.count(chr(10), 0, start) + 1})")
    for start, end in reversed(spans):
        middle = _blanked(text[start:end]) if start < end else "__device__ "
        text = text[:start] + middle + text[end:]
    return text


def _unused_types(texts: Mapping[str, str], device: re.Pattern[str]) -> dict[str, list[tuple[int, int]]]:
    """By text, the types without device functions that nothing else in any text names: the host's, and harmless to lose."""
    bare = {name: without_comments(text) for name, text in texts.items()}
    directives = " ".join(line for text in texts.values() for line in re.findall(r"^[ \t]*#(?:\\\r?\n|[^\n])*", text, re.M))
    count = Counter(re.findall(r"\w+", " ".join([*bare.values(), directives])))
    found: dict[str, list[tuple[int, int]]] = {}
    for name, text in bare.items():
        for match in re.finditer(r"^(?:typedef\s+)?(?:struct|class)\s+(\w*)[^;{}()]*\{", text, re.M):
            end = _head_end(text, after_brackets(text, match.end() - 1), len(text)) + 1
            own = text[match.start() : end]
            labels = {match[1], *re.findall(r"\w+", own[own.rfind("}") :])} - {""}
            words = Counter(re.findall(r"\w+", own))
            if not device.search(own) and labels and all(count[label] == words[label] for label in labels):
                found.setdefault(name, []).append((match.start(), end))
    return found


def _blanked(text: str) -> str:
    """`text` as blanks, but for the directives that other parts of the file may rest on."""
    kept = r"^([ \t]*#[ \t]*(?:if|el|end|define|undef)(?:\\\r?\n|[^\n])*)|[^\n]"
    return re.sub(kept, lambda match: match[1] or " ", text, flags=re.M)


def _host_items(bare: str, at: int, end: int, device: re.Pattern[str], in_class: bool) -> Iterator[tuple[int, int]]:
    """Spans of the declarations between `at` and `end` that are host code; an empty span: `__device__` belongs there."""
    item = re.compile(r"(?:[\s;}]|(?:public|private|protected)\s*:(?!:))*")
    while (at := item.match(bare, at).end()) < end:  # type: ignore[union-attr]  # it matches anywhere
        stop = _head_end(bare, at, end)
        head, close = bare[at:stop], stop + 1 if bare[stop : stop + 1] != "{" else after_brackets(bare, stop)
        flat = _flat(head)
        is_type = re.match(r"\s*(typedef\s+)?(struct|class|union|enum)\b", flat) is not None
        if close > stop + 1 and re.match(r"(inline\s+)?namespace\b|extern\s*$", flat):
            yield from _host_items(bare, stop + 1, close - 1, device, in_class=False)
        elif close > stop + 1 and is_type and not _STD.search(head):
            yield from _host_items(bare, stop + 1, close - 1, device, in_class=True)
            close = _head_end(bare, close, end) + 1
        else:
            is_function = "()" in (flat if "operator" in flat else flat.split("=")[0])
            if close > stop + 1 and not is_function:
                close = _head_end(bare, close, end) + 1  # an initialiser in braces
            while is_function and (more := _BODY.match(bare, close)):
                close = after_brackets(bare, more.end() - 1)  # the braces before were a constructor's a{0}
            if not device.search(head):
                yield from _verdict(at, close, head, flat, is_function, is_type or in_class)
        at = close


def _verdict(at: int, close: int, head: str, flat: str, is_function: bool, is_plain: bool) -> Iterator[tuple[int, int]]:
    """Whether a declaration without device words is host code."""
    if _STD.search(head):
        yield at, close
    elif is_function and (match := re.search(r"\bconstexpr\b", head)):
        yield at + match.start(), at + match.start()
    elif re.match(r"\s*(using|typedef|static_assert|friend|namespace)\b", flat) or re.search(r"=\s*(default|delete)\s*$", flat):
        return
    elif is_function or not (is_plain or re.search(r"\bconstexpr\b|\bconst\b(?![^=]*\*)", flat)):
        yield at, close


_LINUX_TYPES = "typedef unsigned int uint; typedef unsigned short ushort; typedef unsigned long ulong;\n"
_WITH_LIBRARIES = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"  # cublas_v2.h and cudnn.h bring these
_BODY = re.compile(r"\s*(?:,[^{;()]*)?\{")
_STD = re.compile(r"(?<!cuda::)\bstd\b")


def _head_end(bare: str, at: int, end: int) -> int:
    """Where a declaration's head ends: its first `;` or `{` outside of round and square brackets; `end` without one."""
    depth = 0
    for match in re.compile(r"[(\[\])]|[;{]").finditer(bare, at, end):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(match[0], 0)
        if depth == 0 and match[0] in ";{":
            return match.start()
    return end


def _flat(head: str) -> str:
    """A declaration's head with empty brackets and no template lists: 'int f()' of 'template <int N = 2> int f(int a)'."""
    for pattern, empty in ((r"\((?!\))[^()]*\)", "()"), (r"<[^<>]*>", "")):
        while (shorter := re.sub(pattern, empty, head)) != head:
            head = shorter
    return re.sub(r"^\s*template\s+(?=\w)|__\w+__\(\)|alignas\(\)", "", head)


def _headers(text: str, folder: Path | None) -> tuple[tuple[str, str], ...]:
    """(name as written, text) of what `text` includes: files beside the including file, and stand-ins for what NVRTC lacks.

    NVRTC knows a header by the name in its #include line, so two files under one name raise PerflabError.
    """
    found: dict[str, str] = {}
    waiting = [(text, folder)]
    while waiting:
        body, around = waiting.pop()
        for quote, name in _INCLUDE.findall(body):
            places = [place / name for place in (around, folder) if place and quote == '"']
            path = next((place for place in places if place.is_file()), None)
            header = _read(path) if path else STAND_INS.get(name)
            if header is None or found.get(name) == header:
                continue
            if name in found:
                raise PerflabError(f'two different headers are included as "{name}": rename one of them')
            found[name] = header
            waiting.append((header, path.parent if path else None))
    return tuple(found.items())


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _is_one(gpu: Any) -> bool:
    is_one = isinstance(gpu, str) or not isinstance(gpu, Sequence)
    if not is_one and not gpu:
        raise PerflabError("an empty list of GPUs: name at least one GPU")
    return is_one


def _without_suffix(gpu: Any) -> Any:
    return re.sub(r"^((?:sm|compute)_\d+)[af]$", r"\1", gpu.strip().lower()) if isinstance(gpu, str) and "_" in gpu else gpu


def _gpu_name(gpu: Any) -> str:
    return gpu if isinstance(gpu, str) and gpu.startswith("sm_") else find_gpu(gpu).name


def _compiled(found: Sequence[tuple[Any, Resources]]) -> str:
    return str(Origin("compiled", found[0][1].origin.split("(")[1].split(",")[0]))


# 64 bits are `long long`, as in the CUDA core libraries under NVRTC: another type would be a redeclaration
_INTEGERS = "".join(
    f"typedef signed {kind} int{bits}_t; typedef unsigned {kind} uint{bits}_t;\n"
    for bits, kind in (("8", "char"), ("16", "short"), ("32", "int"), ("64", "long long"), ("ptr", "long long"))
)
_MATHS = """
#ifndef M_PI
#define M_PI 3.14159265358979323846
#define INFINITY (__int_as_float(0x7f800000))
#define NAN (__int_as_float(0x7fffffff))
#endif
namespace std { using ::exp; using ::log; using ::sqrt; using ::pow; using ::fabs; using ::abs; using ::floor; using ::ceil;
using ::sin; using ::cos; using ::tanh; using ::fma; using ::fmax; using ::fmin; using ::round; }
"""
_LIMITS = """
#ifndef INT_MAX
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define LLONG_MAX 9223372036854775807ll
#endif
#ifndef FLT_MAX
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define DBL_MAX 1.7976931348623158e+308
#endif
"""
_EMPTY = "cstdio stdio.h cstdlib stdlib.h cassert assert.h cstring string.h cstddef stddef.h"  # NVRTC knows what they declare
STAND_INS: dict[str, str] = {
    **dict.fromkeys(("cstdint", "stdint.h", "cinttypes", "inttypes.h"), _INTEGERS),
    **dict.fromkeys(("cmath", "math.h"), _MATHS),
    **dict.fromkeys(("climits", "limits.h", "cfloat", "float.h"), _LIMITS),
    **dict.fromkeys(_EMPTY.split(), ""),
}
"""Header name -> text, given to every compile, for what files written for nvcc include; a Source's own headers win."""
