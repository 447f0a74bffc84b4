"""CUDA source text as people write it for nvcc: what a file includes, the kernels it defines, its device code alone."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from perflab.errors import PerflabError, did_you_mean

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)
_DIRECTIVE = r"^[ \t]*#(?:\\\r?\n|[^\n])*"


@dataclass(frozen=True)
class Source:
    """A .cu file as the compiler sees it: `file` is a label without folders; headers are (name as included, text)."""

    file: str
    text: str
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """The file's text and those of its headers."""
        return (self.text, *(text for _, text in self.headers))


def read_source(path_or_text: str | Path) -> Source:
    """A .cu file, or text (what has a line end or a brace is text), with the headers beside it and the stand-ins it needs.

    Raises PerflabError for a file that is not there, and for two headers under one name.
    """
    text = str(path_or_text)
    if "\n" in text or "{" in text:
        return Source("inline.cu", text, _headers(text, None))
    path = Path(text)
    if not path.is_file():
        beside = sorted(file.name for file in path.parent.glob("*.cu"))
        known = f" {path.parent} holds: {', '.join(beside)}." if beside else ""
        raise PerflabError(f'there is no file "{text}".{did_you_mean(path.name, beside)}{known}')
    text = _read(path)
    return Source(path.name, text, _headers(text, path.parent))


@functools.cache
def include_folders() -> tuple[Path, ...]:
    """Where the wheels keep CUDA's headers, and those of its core libraries."""
    spec = util.find_spec("nvidia")
    bases = [Path(base) / "cu13" / "include" for base in (spec.submodule_search_locations or ())] if spec else []
    return tuple(folder for base in bases for folder in (base, base / "cccl") if folder.is_dir())


def _headers(text: str, folder: Path | None) -> tuple[tuple[str, str], ...]:
    """What `text` includes, all the way down. NVRTC knows a header only by the name in its #include line."""
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


_MATHS = """
#ifndef M_PI
#define M_PI 3.14159265358979323846
#define INFINITY (__int_as_float(0x7f800000))
#define NAN (__int_as_float(0x7fffffff))
#endif
namespace std { using ::exp; using ::log; using ::sqrt; using ::pow; using ::fabs; using ::abs; using ::floor; using ::ceil;
using ::sin; using ::cos; using ::tanh; using ::fma; using ::fmax; using ::fmin; using ::round; }
"""
_FLOATS = """
#ifndef FLT_MAX
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define DBL_MAX 1.7976931348623158e+308
#endif
"""
_EMPTY = "cstdio stdio.h cstdlib stdlib.h cassert assert.h cstring string.h cstddef stddef.h"  # NVRTC knows what they declare
STAND_INS: dict[str, str] = {
    **dict.fromkeys(("cstdint", "stdint.h", "cinttypes", "inttypes.h"), "#include <cuda/std/cstdint>\n"),
    **dict.fromkeys(("cmath", "math.h"), _MATHS),
    **dict.fromkeys(("climits", "limits.h", "cfloat", "float.h"), f"#include <cuda/std/climits>\n{_FLOATS}"),
    **dict.fromkeys(_EMPTY.split(), ""),
}
"""Header name -> text, for the standard headers that files written for nvcc include and NVRTC lacks."""


# ---------------------------------------------------------------- the kernels of a text
@dataclass(frozen=True)
class KernelFound:
    """A __global__ function defined in a text; `template` holds its parameters ("typename T, int N"), "" for none."""

    name: str
    line: int
    template: str = ""

    def __str__(self) -> str:
        return f"{self.name} (line {self.line}" + (f", template <{self.template}>)" if self.template else ")")

    @property
    def example(self) -> str:
        """A name expression one could give: 'saxpy<float>'."""
        if not self.template:
            return self.name
        values = {"typename": "float", "class": "float", "bool": "true"}
        kinds = re.findall(r"(?:^|,)\s*(\w+)", self.template)
        return f"{self.name}<{', '.join(values.get(kind, '256') for kind in kinds)}>"


def find_kernels(text: str) -> list[KernelFound]:
    """The __global__ functions that `text` defines, in order; comments, strings and macros are passed over."""
    bare = without_comments(text)
    found = []
    for match in re.finditer(r"\b__global__\b", bare):
        head = bare[max(bare.rfind(c, 0, match.start()) for c in ";{}") + 1 : match.start()]
        name = _name_of_definition(bare, match.end())
        if name:
            template = re.search(r"\btemplate\s*<(.*)>", head, re.DOTALL)
            parameters = " ".join(template[1].split()) if template else ""
            found.append(KernelFound(name, bare.count("\n", 0, match.start()) + 1, parameters))
    return found


def _name_of_definition(bare: str, at: int) -> str:
    """'name' for `void __launch_bounds__(256) name(…) {`; '' for a declaration or an explicit instantiation."""
    word = re.compile(r"\s*([A-Za-z_][\w:]*|[*&<>,])\s*")
    while match := word.match(bare, at):
        at = match.end()
        if bare[at : at + 1] == "(":
            at = after_brackets(bare, at)
            if not re.match(r"__\w+__$", match[1]):
                return match[1] if re.match(r"\s*\{", bare[at:]) else ""
    return ""


def without_comments(text: str) -> str:
    """`text` with comments, literals and directives blanked; every other character keeps its place."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|' + _DIRECTIVE
    text = re.sub(r"(?<=\d)'(?=\d)", "0", text)  # digit separators (1'000) open no literal
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL | re.MULTILINE)


def after_brackets(text: str, start: int) -> int:
    """The place behind the bracket that closes the one at `start`; the end of `text` where none does."""
    depth = 0
    for match in re.compile(r"[(\[{]|[)\]}]").finditer(text, start):
        depth += 1 if match[0] in "([{" else -1
        if depth == 0:
            return match.end()
    return len(text)


# ---------------------------------------------------------------- device code alone
_Span = tuple[int, int]
_PRELUDE = """#include "cuda_runtime.h"
#include "cmath"
#include "cstdint"
#include "climits"
typedef unsigned int uint; typedef unsigned short ushort; typedef unsigned long ulong;
"""  # what nvcc includes by itself: many files use it without saying so
_LIBRARY_TYPES = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"  # cublas_v2.h and cudnn.h bring these
_BETWEEN = re.compile(r"(?:[\s;}]|(?:public|private|protected)\s*:(?!:))*")
_SCOPE = re.compile(r"(inline\s+)?namespace\b|extern\s*$")
_TYPE = re.compile(r"\s*(typedef\s+)?(struct|class|union|enum)\b")
_HARMLESS = re.compile(r"\s*(using|typedef|static_assert|friend|namespace)\b|.*=\s*(default|delete)\s*$", re.DOTALL)
_ONE_MORE_BODY = re.compile(r"\s*(?:,[^{;()]*)?\{")
_STD = re.compile(r"(?<!cuda::)\bstd\b")


def device_code(source: Source) -> tuple[Source, tuple[str, ...]]:
    """`source` without its host code, every line in its place, and what was left out: 'main (line 12)', '<vector>'.

    Host functions, host variables, types that only these use, and whatever names `std::` go; constexpr functions become
    device functions, as with nvcc's --expt-relaxed-constexpr; headers that are not there are empty.
    """
    texts = {"": source.text, **dict(source.headers)}
    device = _device_words(source)
    left_out: list[str] = []
    spans = {name: list(_host_spans(without_comments(text), 0, len(text), device)) for name, text in texts.items()}
    while spans:
        for name, of_text in spans.items():
            bare = without_comments(texts[name])
            left_out += [_label(bare, *span) for span in of_text if span[0] < span[1]]
            texts[name] = _without(texts[name], of_text)
        spans = _unused_types(texts, device)
    included = dict.fromkeys(name for text in texts.values() for _, name in _INCLUDE.findall(text))
    missing = [name for name in included if name not in texts and not any((f / name).is_file() for f in include_folders())]
    absent = {name: _LIBRARY_TYPES if name.startswith(("cublas", "cudnn")) else "" for name in missing}
    text = f'{_PRELUDE}#line 1 "{source.file}"\n{texts.pop("")}'
    alone = Source(source.file, text, tuple((STAND_INS | absent | texts).items()))
    return alone, (*left_out, *(f"<{name}>" for name in missing if name not in STAND_INS))


def _device_words(source: Source) -> re.Pattern[str]:
    """What marks device code: CUDA's own words, and the file's macros that stand for them."""
    words = ["__device__", "__global__", "__constant__", "__shared__", "__managed__"]
    define = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?:\([^)]*\))?[^\n]*__(?:device|global)__", re.MULTILINE)
    words += [name for text in source.texts for name in define.findall(text)]
    return re.compile(rf"\b({'|'.join(words)})\b")


def _host_spans(bare: str, at: int, end: int, device: re.Pattern[str], in_class: bool = False) -> Iterator[_Span]:
    """Where host code stands between `at` and `end`, in order; an empty span: `__device__` belongs there."""
    while (at := _BETWEEN.match(bare, at).end()) < end:  # type: ignore[union-attr]  # it matches anywhere
        stop = _head_end(bare, at, end)
        head, flat = bare[at:stop], _flat(bare[at:stop])
        has_body = bare[stop : stop + 1] == "{"
        close = after_brackets(bare, stop) if has_body else stop + 1
        is_type = _TYPE.match(flat) is not None
        if has_body and _SCOPE.match(flat):
            yield from _host_spans(bare, stop + 1, close - 1, device)
        elif has_body and is_type and not _STD.search(head):
            yield from _host_spans(bare, stop + 1, close - 1, device, in_class=True)
            close = _head_end(bare, close, end) + 1
        else:
            is_function = "()" in (flat if "operator" in flat else flat.split("=")[0])
            if has_body and not is_function:
                close = _head_end(bare, close, end) + 1  # an initialiser in braces
            while is_function and (more := _ONE_MORE_BODY.match(bare, close)):
                close = after_brackets(bare, more.end() - 1)  # the braces before were a constructor's a{0}
            if device.search(head):
                pass
            elif is_function and (match := re.search(r"\bconstexpr\b", head)) and not _STD.search(head):
                yield at + match.start(), at + match.start()
            elif _is_host(head, flat, is_function, is_type or in_class):
                yield at, close
        at = close


def _is_host(head: str, flat: str, is_function: bool, is_member: bool) -> bool:
    """Whether a declaration without device words is host code: constants and members are of use to both sides."""
    if _STD.search(head):
        return True
    if _HARMLESS.match(flat):
        return False
    return is_function or not (is_member or re.search(r"\bconstexpr\b|\bconst\b(?![^=]*\*)", flat))


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


def _unused_types(texts: Mapping[str, str], device: re.Pattern[str]) -> dict[str, list[_Span]]:
    """By text, the types without device functions that nothing else in any text names: the host's, and harmless to lose."""
    bare = {name: without_comments(text) for name, text in texts.items()}
    directives = [line for text in texts.values() for line in re.findall(_DIRECTIVE, text, re.MULTILINE)]
    count = Counter(re.findall(r"\w+", " ".join([*bare.values(), *directives])))
    found: dict[str, list[_Span]] = {}
    for name, text in bare.items():
        for match in re.finditer(r"^(?:typedef\s+)?(?:struct|class)\s+(\w*)[^;{}()]*\{", text, re.MULTILINE):
            end = _head_end(text, after_brackets(text, match.end() - 1), len(text)) + 1
            own = text[match.start() : end]
            labels = {match[1], *re.findall(r"\w+", own[own.rfind("}") :])} - {""}
            words = Counter(re.findall(r"\w+", own))
            if not device.search(own) and labels and all(count[label] == words[label] for label in labels):
                found.setdefault(name, []).append((match.start(), end))
    return found


def _label(bare: str, start: int, end: int) -> str:
    """What a reader calls the code there: 'main (line 12)'."""
    name = re.search(r"([\w~:]+)\s*(?:[(=;\[{]|$)", bare[start:end])
    return f"{name[1] if name else 'code'} (line {bare.count(chr(10), 0, start) + 1})"


def _without(text: str, spans: list[_Span]) -> str:
    """`text` with `spans` blanked, but for the directives other parts may rest on; an empty span gets `__device__`."""
    kept = r"^([ \t]*#[ \t]*(?:if|el|end|define|undef)(?:\\\r?\n|[^\n])*)|[^\n]"
    for start, end in reversed(spans):
        blank = re.sub(kept, lambda match: match[1] or " ", text[start:end], flags=re.MULTILINE)
        text = text[:start] + (blank if start < end else "__device__ ") + text[end:]
    return text
