"""perflab.compile: NVRTC in a worker, the cache, the fingerprint, and errors a person can act on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest

from perflab import compile as compiling
from perflab.compile import Binary, CompileError, Source, compile_source
from perflab.errors import PerflabError
from perflab.worker import Worker

PLAIN = "__global__ void twice(float* x) { x[threadIdx.x] *= 2.f; }\n"
TEMPLATE = "template <typename T, int N = 4>\n__global__ void fill(T* x) { x[threadIdx.x] = N; }\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PERFLAB_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"


def refused(text: str, *names: str, architecture: str = "sm_90", file: str = "k.cu") -> str:
    with pytest.raises(CompileError) as caught:
        compile_source(Source(file, text), architecture, names)
    return str(caught.value)


def test_a_binary_holds_ptx_cubin_log_entries_and_where_they_come_from() -> None:
    made = compile_source(Source("k.cu", TEMPLATE + PLAIN), "sm_90", ("fill<float>",), (("UNUSED", "3"),), ("--use_fast_math",))
    assert made.ptx.count(".entry") == 2
    assert made.cubin[:4] == b"\x7fELF"
    assert made.entries == {"fill<float>": "_Z4fillIfLi4EEvPT_", "twice": "_Z5twicePf"}
    assert "Used" in made.log
    assert made.options[0] == "--gpu-architecture=sm_90"
    assert {"-DUNUSED=3", "--use_fast_math", "-lineinfo"} <= set(made.options)
    assert made.nvrtc == metadata.version("nvidia-cuda-nvrtc")
    assert str(made.origin) == f"compiled (NVRTC {made.nvrtc}, sm_90)"


def test_a_binary_survives_json() -> None:
    made = compile_source(Source("k.cu", PLAIN), "sm_80")
    assert Binary.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def test_the_readable_name_is_the_one_that_a_person_would_write() -> None:
    text = """namespace a { template <int N, bool B> __global__ void f(int* x) { *x = N + B; } }
template __global__ void a::f<3, true>(int*);
extern "C" __global__ void c(int* x) { *x = 1; }
__global__ void o(int* x) { *x = 1; }
__global__ void o(float* x) { *x = 1; }
"""
    entries = compile_source(Source("k.cu", text), "sm_80").entries
    assert set(entries) == {"a::f<3, true>", "c", "_Z1oPi", "_Z1oPf"}


# ---------------------------------------------------------------- fingerprint


def test_comments_and_folders_do_not_change_the_fingerprint_and_code_does(tmp_path: Path) -> None:
    from perflab.kernel import load

    codes = []
    for folder, text in (("a", PLAIN), ("b/c", f"// a comment\n\n{PLAIN}"), ("d", PLAIN.replace("2.f", "3.f"))):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "k.cu").write_text('#include "h.cuh"\n' + text)
        (tmp_path / folder / "h.cuh").write_text("#pragma once\n")
        codes.append(load(tmp_path / folder / "k.cu").binary("sm_90").code)
    assert codes[0] == codes[1] != codes[2]


@pytest.mark.parametrize("change", [("{1, 2}", "{1, 3}"), ("__constant__", "__device__")])
def test_initialised_variables_are_code_too(change: tuple[str, str]) -> None:
    text = "__constant__ int table[2] = {1, 2};\n__global__ void f(int* x) { *x = table[threadIdx.x]; }\n"
    codes = {compile_source(Source("k.cu", t), "sm_90").code for t in (text, text.replace(*change))}
    assert len(codes) == 2


def test_an_anonymous_namespace_does_not_bring_the_process_number_in() -> None:
    """NVRTC names such kernels after the process that compiles them."""
    text = "namespace { __constant__ int c[2]; __global__ void f(int* x) { *x = c[threadIdx.x]; } }\n"
    made = []
    for _ in range(2):
        with Worker() as fresh:
            request = {"source": {"file": "k.cu", "text": text, "headers": []}, "names": ["f"], "defines": [], "options": []}
            made.append(Binary.from_dict(fresh.call("compile", 60, architecture="sm_90", **request)))
    assert made[0].entries != made[1].entries
    assert made[0].code == made[1].code


def test_no_folder_of_this_machine_is_in_a_cubin(tmp_path: Path) -> None:
    text = "#include <cuda_fp16.h>\n#include <mma.h>\n__global__ void f(__half2* x) { x[0] = __hadd2(h2exp(x[1]), x[2]); }\n"
    made = compile_source(Source("k.cu", text), "sm_90")
    paths = set(re.findall(rb"/[\w./-]{2,}", made.cubin + made.ptx.encode()))
    assert {path for path in paths if not path.startswith(b"/cuda//")} <= {b"/k.cu"}
    assert b"site-packages" not in made.cubin + made.ptx.encode()


# ---------------------------------------------------------------- cache


def test_the_second_compile_comes_out_of_the_cache(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_source(Source("k.cu", PLAIN), "sm_90")
    monkeypatch.setattr(compiling, "_worker", lambda: pytest.fail("compiled again"))
    assert compile_source(Source("k.cu", PLAIN), "sm_90") == first


SPOILS: list[Callable[[str], str]] = [lambda t: t[: len(t) // 2], lambda t: "", lambda t: "[]", lambda t: "{}"]


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_damaged_entry_is_compiled_again(own_cache: Path, spoil: Callable[[str], str]) -> None:
    first = compile_source(Source("k.cu", PLAIN), "sm_90")
    (entry,) = (own_cache / "binaries").iterdir()
    entry.write_text(spoil(entry.read_text()))
    assert compile_source(Source("k.cu", PLAIN), "sm_90") == first
    assert json.loads(entry.read_text()) == first.to_dict()


def test_whatever_decides_the_code_is_part_of_the_key(own_cache: Path) -> None:
    source = Source("k.cu", PLAIN, (("h.cuh", ""),))
    compile_source(source, "sm_90")
    compile_source(source, "sm_80")
    compile_source(source, "sm_90", ("twice",))
    compile_source(source, "sm_90", (), (("A", ""),))
    compile_source(source, "sm_90", (), (), ("-maxrregcount=16",))
    compile_source(Source("k.cu", PLAIN, (("h.cuh", "//"),)), "sm_90")
    assert len(list((own_cache / "binaries").iterdir())) == 6


# ---------------------------------------------------------------- errors


def test_an_error_shows_file_line_source_and_caret() -> None:
    said = refused("__global__ void f(float* x) {\n    x[0] = bar(1);\n}\n", file="mine.cu")
    assert "mine.cu does not compile for sm_90 (NVRTC 13.0." in said
    assert re.search(r'mine\.cu:2: identifier "bar" is undefined\n +x\[0\] = bar\(1\);\n {13}\^', said)


def test_eight_errors_are_enough() -> None:
    body = "\n".join(f"x[{k}] = unknown{k};" for k in range(20))
    said = refused(f"__global__ void f(float* x) {{\n{body}\n}}\n")
    assert said.count("is undefined") == 8
    assert said.endswith("… and 12 more")


def test_warnings_are_no_errors() -> None:
    said = refused("__global__ void f(float* x) {\n int unused;\n y = 1;\n}\n")
    assert "unused" not in said


def test_templates_alone_ask_for_an_instance() -> None:
    said = refused(TEMPLATE)
    assert "fill (line 2, template <typename T, int N = 4>)" in said
    assert 'such as "fill<float, 256>"' in said


def test_an_unknown_name_lists_what_there_is() -> None:
    said = refused(TEMPLATE + PLAIN, "twise")
    assert 'no kernel "twise" in k.cu. Did you mean "twice"?' in said
    assert "fill (line 2" in said
    assert 'a template: say which instance, such as "fill<float, 256>"' in refused(TEMPLATE, "fill")
    assert "cannot be made of fill" in refused(TEMPLATE, "fill<nothing>")


def test_an_error_in_the_text_is_not_hidden_by_the_name_that_fails_with_it() -> None:
    assert 'k.cu:1: identifier "T" is undefined' in refused("__global__ void f(T* x) {}\n", "f<float>")


def test_ptxas_errors_are_compile_errors() -> None:
    said = refused("__global__ void f(float* x) { __shared__ float s[20000]; s[threadIdx.x] = x[0]; x[1] = s[3]; }")
    assert "f: 80,000 B of static shared memory, the limit is 49,152 B" in said
    asm = '__global__ void f(int* x) { asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(0), "l"(x)); }'
    assert "ptxas: Feature 'cp.async' requires .target sm_80 or higher" in refused(asm, architecture="sm_75")


def test_host_code_is_answered_with_the_guard() -> None:
    for text in (PLAIN + "int main() { return 0; }\n", "#include <iostream>\n" + PLAIN, PLAIN + "float* buffer;\n"):
        assert "`#ifndef __CUDACC_RTC__`" in refused(text)


def test_no_kernel_at_all_is_said() -> None:
    assert "defines no __global__ function" in refused("__device__ int f() { return 1; }\n")


def test_a_compile_that_takes_too_long_is_stopped() -> None:
    body = "".join(f"x[{k}] = sinf(x[{k} + 1]) / x[{k}];\n" for k in range(4000))
    endless = f"__global__ void f(float* x) {{\n{body}}}\n"
    with pytest.raises(CompileError, match="not compiled within 0.2 s"):
        compile_source(Source("k.cu", endless), "sm_90", time_limit_seconds=0.2)
    assert compile_source(Source("k.cu", PLAIN), "sm_90").entries  # and the next one works


UNKNOWN = [("sm_70", "occupancy only"), ("sm_91", 'Did you mean "sm_90"'), ("H200", "Known: sm_75")]


@pytest.mark.parametrize("asked, words", UNKNOWN)
def test_architectures_that_nvrtc_does_not_know(asked: str, words: str) -> None:
    with pytest.raises(PerflabError, match=words):
        compile_source(Source("k.cu", PLAIN), asked)


def test_architectures_with_and_without_suffix() -> None:
    assert {"sm_75", "sm_80", "sm_90", "sm_90a", "sm_100a", "sm_120a"} <= set(compiling.architectures())
    assert "sm_80a" not in compiling.architectures()
    assert compile_source(Source("k.cu", PLAIN), "sm_90a").architecture == "sm_90a"


def test_another_nvrtc_is_refused_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling.metadata, "version", lambda _: "13.5.37")
    monkeypatch.setattr(compiling, "nvrtc_version", compiling.nvrtc_version.__wrapped__)
    with pytest.raises(PerflabError, match=r"NVRTC 13\.5\.37 is installed.*13\.0.*pip install.*PERFLAB_ANY_NVRTC=1"):
        compile_source(Source("k.cu", PLAIN), "sm_90")
    monkeypatch.setenv("PERFLAB_ANY_NVRTC", "1")
    assert compiling.nvrtc_version() == "13.5.37"


def test_a_missing_nvrtc_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: str) -> str:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(compiling.metadata, "version", none)
    monkeypatch.setattr(compiling, "nvrtc_version", compiling.nvrtc_version.__wrapped__)
    with pytest.raises(PerflabError, match='pip install "cuda-bindings'):
        compile_source(Source("k.cu", PLAIN), "sm_90")


def test_sections_refuses_what_is_no_cubin() -> None:
    with pytest.raises(ValueError, match="not a cubin"):
        compiling.sections(b"\x7fELF" + bytes(100))
