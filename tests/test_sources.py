"""perflab.sources: files as people write them, the kernels of a text, and device code without the host's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perflab.compile import CompileError
from perflab.errors import PerflabError
from perflab.kernel import Kernel, load
from perflab.sources import Source, device_code, find_kernels, without_comments

KERNELS = Path(__file__).parent / "kernels"


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERFLAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


# ---------------------------------------------------------------- loading


def test_a_file_comes_with_the_headers_beside_it_all_the_way_down() -> None:
    kernel = load(KERNELS / "reduce.cu", "reduce", {"BLOCK": 128})
    assert kernel.source.file == "reduce.cu"
    assert [name for name, _ in kernel.source.headers] == ["warp.cuh", "lanes.cuh"]
    assert kernel.defines == (("BLOCK", "128"),)
    assert (kernel.label, kernel.source.text) == ("reduce.cu reduce", (KERNELS / "reduce.cu").read_text())
    assert kernel.resources("H200").max_threads == 128


def test_headers_in_folders_keep_the_name_they_are_included_by(tmp_path: Path) -> None:
    (tmp_path / "include" / "deep").mkdir(parents=True)
    (tmp_path / "include" / "a.cuh").write_text('#pragma once\n#include "deep/b.cuh"\n#include "../k.cuh"\n')
    (tmp_path / "include" / "deep" / "b.cuh").write_text('#pragma once\n#include "../a.cuh"\n#define TWO 2\n')
    (tmp_path / "k.cuh").write_text("#define THREE 3\n")
    (tmp_path / "k.cu").write_text('#include "include/a.cuh"\n__global__ void f(int* x) { *x = TWO + THREE; }\n')
    kernel = load(tmp_path / "k.cu")
    assert {name for name, _ in kernel.source.headers} == {"include/a.cuh", "deep/b.cuh", "../a.cuh", "../k.cuh"}
    assert kernel.resources("sm_90").parameters


def test_two_headers_under_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "top.cuh").write_text('#include "same.cuh"\n')
        (tmp_path / folder / "same.cuh").write_text(f"// {folder}\n")
    (tmp_path / "k.cu").write_text('#include "a/top.cuh"\n#include "b/top.cuh"\n__global__ void f() {}\n')
    with pytest.raises(PerflabError, match='two different headers are included as "same.cuh"'):
        load(tmp_path / "k.cu")


def test_text_is_a_kernel_too() -> None:
    kernel = load("#include <cstdint>\n__global__ void f(int32_t* x) { *x = 1; }")
    assert kernel.source.file == "inline.cu"
    assert kernel.entry("sm_90") == "_Z1fPi"


def test_a_missing_file_names_its_neighbours() -> None:
    with pytest.raises(PerflabError, match=r'no file ".*saxpi.cu"\. Did you mean "saxpy.cu"\?.*holds: program.cu, reduce.cu'):
        load(KERNELS / "saxpi.cu")
    with pytest.raises(PerflabError, match="no file"):
        load("nowhere/at_all.cu")


def test_the_standard_headers_that_nvrtc_lacks_have_stand_ins() -> None:
    names = "cstdint cmath cfloat climits cstdio cstdlib cassert cstring cstddef stdint.h math.h"
    text = "".join(f"#include <{name}>\n" for name in names.split())
    text += """__global__ void f(uint8_t* a, int64_t* b, float* c) {
    assert(a); printf("%d", int(*a)); memcpy(c, b, 4);
    *b = INT_MAX + UINT_MAX + LLONG_MAX; *c = std::exp(INFINITY) + NAN + M_PI + FLT_MAX + std::sqrt(2.f) + sizeof(intptr_t);
}
"""
    found = load(text).resources("sm_90")
    assert [p.size_bytes for p in found.parameters] == [8, 8, 8]


# ---------------------------------------------------------------- texts


def test_kernels_are_found_past_comments_strings_macros_and_attributes() -> None:
    text = """// __global__ void no1(int) {}
/* __global__ void no2(int) {} */
#define K __global__ void no3(int) {}
const char* s = "__global__ void no4(int) {}";
__global__ void declared(float*);
template <typename T, int N = (3 > 2)>
__global__ void __launch_bounds__(N * (1 + 2), 2)
gemm(const T* __restrict__ a) { }
extern "C" __global__ void plain(int n = f(1)) { if (n) {} }
static __global__ __launch_bounds__(128) void bounded() {}
template <> __global__ void gemm<int>(const int*) {}
template __global__ void gemm<float, 3>(const float*);
"""
    found = [(k.name, k.line, k.template) for k in find_kernels(text)]
    assert found[0] == ("gemm", 7, "typename T, int N = (3 > 2)")
    assert found[1:3] == [("plain", 9, ""), ("bounded", 10, "")]
    assert not any(name.startswith("no") or name == "declared" for name, _, _ in found)


def test_blanked_comments_keep_every_line_in_its_place() -> None:
    text = 'int a = 1\'000; /* x\n y */ char c = \'"\'; // "\n#define M \\\n  (1)\nint b;\n'
    bare = without_comments(text)
    assert len(bare) == len(text)
    assert [line.strip() for line in bare.splitlines()] == ["int a = 10000;", "char c =    ;", "", "", "int b;"]


# ---------------------------------------------------------------- host code


def test_a_whole_program_compiles_without_its_host_code() -> None:
    kernel = load(KERNELS / "program.cu", "scale<float, 96>")
    binary = kernel.binary("sm_90")
    assert "-DPERFLAB_HOST_CODE_LEFT_OUT=1" in binary.options
    assert set(binary.entries) == {"scale<float, 96>", "add_pairs"}
    assert kernel.resources("sm_90").static_shared_bytes == 96 * 4
    assert "-DPERFLAB_HOST_CODE_LEFT_OUT=1" not in load(KERNELS / "saxpy.cu", "saxpy4").binary("sm_90").options


def test_every_line_keeps_its_number_and_every_kernel_its_text() -> None:
    source = load(KERNELS / "program.cu").source
    device, left_out = device_code(source)
    lines, kept = source.text.splitlines(), device.text.partition('#line 1 "program.cu"\n')[2].splitlines()
    assert len(lines) == len(kept)
    changed = {k + 1 for k, (a, b) in enumerate(zip(lines, kept, strict=True)) if a.rstrip() != b.rstrip()}
    start = next(k for k, line in enumerate(lines, 1) if line.startswith("template <typename T, int N>"))
    assert not changed & set(range(start, start + 11))
    assert any(word.startswith("main (line ") for word in left_out)
    assert {"<iostream>", "<vector>", "<algorithm>"} <= set(left_out)


def test_an_error_in_a_kernel_of_a_program_keeps_its_line() -> None:
    text = "#include <vector>\nint main() {\n  std::vector<int> v;\n}\n__global__ void f(int* x) {\n  *x = nothing;\n}\n"
    with pytest.raises(CompileError, match=r'inline.cu:6: identifier "nothing" is undefined'):
        load(text).binary("sm_90")


HOST = [
    "int helper(int a) { return a; }",
    "static inline float g(float x = 1.f, int k = 2) { if (x > 0) { return x; } return 0; }",
    "template <typename T> T add(T a, T b) { return a + b; }",
    "void declared(const float* a, int n);",
    "float *d_a, *d_b;",
    "cudaStream_t streams[4];",
    'const char* names[] = {"a", "b"};',
    "std::vector<int> v{1, 2, 3};",
    "auto lambda = [](int a) { return a + 1; };",
    "typedef std::vector<float> Floats;",
    "using namespace std;",
    "using Row = std::array<float, 3>;",
    "dim3 grid(4, 4);",
    "extern int errors;",
    '__host__ void only() { printf("}"); }',
    "struct Timer { cudaEvent_t a; Timer() : a{0} { cudaEventCreate(&a); } ~Timer() {} float ms() const { return 0; } };",
    'extern "C" void entry(int n) { f<<<1, n>>>(0); }',
    'extern "C" { void entry(int n) {} }',
    "namespace a { namespace b { void deep() {} } }",
    "int main(void) { // }\n  char c = '}'; /* } */\n  return 0; }",
    'PYBIND11_MODULE(ext, m) { m.def("f", &f); }',
    "typedef struct { ncclComm_t comm; int rank; } Config;\nstruct Uses { Config c; FILE* f; };",
]
DEVICE = [
    "const int SIZE = 16;",
    "static constexpr float SCALE = 0.5f;",
    "enum Mode { A, B = 2 };",
    "struct alignas(16) Vec { float x[4]; };",
    "typedef float4 Wide;",
    "using Half = unsigned short;",
    "namespace tools {}\nnamespace alias = tools;",
    "template <int N> struct Tile { static constexpr int size = N * 2; float data[N]; };",
    "constexpr int up(int a, int b) { return (a + b - 1) / b * b; }",
    "template <typename T> __device__ T square(T x) { return x * x; }",
    "__constant__ float table[3] = {1, 2, 3};",
    "struct Op { __host__ __device__ bool operator==(const Op& o) const { return k == o.k; } int k; };",
    "static_assert(sizeof(float) == 4, \"\");",
    "struct Forward;",
    'extern "C" { __global__ void g(int* x) { *x = 2; } }',
    "#define INLINE __device__ __forceinline__\nINLINE float half_of(float x) { return x / 2; }",
    "struct Deleted { Deleted() = default; int a; };\n__device__ int use(Deleted d) { return d.a; }",
]


@pytest.mark.parametrize("code", HOST)
def test_host_code_goes_and_the_kernel_stays(code: str) -> None:
    kernel = "__global__ void f(int* x) { *x = 1; }"
    for text in (f"{code}\n{kernel}\n", f"{kernel}\n{code}\n"):
        device, left_out = device_code(Source("k.cu", text))
        assert left_out, code
        assert kernel in device.text
        assert Kernel(Source("k.cu", text)).binary("sm_90").entries == {"f": "_Z1fPi"}


@pytest.mark.parametrize("code", DEVICE)
def test_device_code_stays(code: str) -> None:
    text = f"{code}\n__global__ void f(int* x) {{ *x = 1; }}\n"
    assert device_code(Source("k.cu", text))[1] == ()
    with_main = f"{text}int main() {{ return 0; }}\n"
    device, left_out = device_code(Source("k.cu", with_main))
    assert left_out == (f"main (line {with_main.count(chr(10))})",)
    assert code.replace("constexpr int up", "__device__ constexpr int up") in device.text
    assert Kernel(Source("k.cu", with_main)).binary("sm_90").entries["f"] == "_Z1fPi"
