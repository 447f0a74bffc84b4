"""perflab.resources against NVIDIA's own cuobjdump, over kernels and architectures."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from perflab.compile import Binary
from perflab.errors import PerflabError
from perflab.kernel import load
from perflab.resources import Parameter, disassembled, nvidia_tool, resources

KERNELS = Path(__file__).parent / "kernels"
ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
FILES = (("saxpy.cu", "saxpy<double>"), ("spill.cu", None), ("reduce.cu", None), ("program.cu", "scale<float, 96>"))


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERFLAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def compiled(file: str, architecture: str, name: str | None = None) -> Binary:
    return load(KERNELS / file, name).binary(architecture)


def res_usage(cubin: bytes, folder: Path) -> dict[str, dict[str, int]]:
    """What cuobjdump says, by entry."""
    (folder / "k.cubin").write_bytes(cubin)
    command = [nvidia_tool("cuobjdump"), "-res-usage", str(folder / "k.cubin")]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.findall(r"Function (\S+):\s+(REG:.*)", said.stdout)
    return {entry: {key: int(value) for key, value in re.findall(r"([A-Z]+):(\d+)", line)} for entry, line in found}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("file, name", FILES)
def test_cuobjdump_says_the_same(file: str, name: str | None, architecture: str, tmp_path: Path) -> None:
    binary = compiled(file, architecture, name)
    official = res_usage(binary.cubin, tmp_path)
    assert set(official) == set(binary.entries.values())
    for kernel, entry in binary.entries.items():
        found, said = resources(binary, kernel), official[entry]
        reserved = 1024 if int(architecture[3:]) >= 90 and said["SHARED"] else 0
        assert found.registers == said["REG"]
        assert found.stack_bytes == said["STACK"]
        assert found.static_shared_bytes == said["SHARED"] - reserved


def test_launch_bounds_parameters_constants_and_origin() -> None:
    found = resources(compiled("reduce.cu", "sm_90"), "reduce")
    assert (found.max_threads, found.min_blocks, found.barriers) == (256, None, 4)
    assert found.parameters == (Parameter(0, 8), Parameter(8, 8), Parameter(16, 4))
    assert found.constant_bytes == 32
    assert found.code_bytes > 0
    assert str(found.origin).startswith("compiled (NVRTC 13.0.")
    bounded = resources(compiled("spill.cu", "sm_90"))
    assert (bounded.max_threads, bounded.min_blocks) == (1024, 2)
    assert resources(compiled("saxpy.cu", "sm_90", "saxpy<float>"), "saxpy<float>").max_threads is None


def test_parameters_lie_at_multiples_of_their_alignment() -> None:
    text = """struct Odd { char a[7]; };
struct alignas(16) Wide { float x[5]; };
__global__ void __block_size__((32, 2, 1), (1, 1, 1)) f(char a, Odd b, Wide c, short d, double* e) { *e = a + b.a[d] + c.x[d]; }
"""
    found = resources(load(text).binary("sm_90"))
    assert found.parameters == (Parameter(0, 1), Parameter(1, 7), Parameter(16, 32), Parameter(48, 2), Parameter(56, 8))
    assert found.max_threads == 64


def test_a_function_that_is_not_inlined_does_not_mix_its_own_stack_in() -> None:
    text = """__device__ __noinline__ float sum(const float* x, int n) {
    float a[40], s = 0;
    for (int i = 0; i < 40; i++) a[i] = x[i] * n;
    for (int i = 0; i < n; i++) s += a[i * 7 % 40];
    return n > 3 ? s + sum(x + 1, n - 1) : s;
}
__global__ void f(float* x, int n) { x[n] = sum(x, n); }
"""
    found = resources(load(text).binary("sm_90"))
    assert (found.stack_bytes, found.spill_store_bytes, found.spill_load_bytes) == (0, 0, 0)


@pytest.mark.parametrize("architecture", ("sm_75", "sm_90", "sm_120"))
def test_spills_by_line_add_up_to_what_ptxas_says(architecture: str) -> None:
    found = resources(compiled("spill.cu", architecture))
    assert found.spill_store_bytes > 0
    assert sum(stored for _, _, stored, _ in found.spills_by_line) == found.spill_store_bytes
    assert sum(loaded for _, _, _, loaded in found.spills_by_line) == found.spill_load_bytes
    assert {file for file, *_ in found.spills_by_line} == {"spill.cu"}
    assert {line for _, line, *_ in found.spills_by_line} <= set(range(2, 13))


def test_a_local_array_is_a_stack_and_no_spill() -> None:
    found = resources(compiled("reduce.cu", "sm_90"), "look_up")
    assert found.stack_bytes == 400
    assert (found.spill_store_bytes, found.spill_load_bytes, found.spills_by_line) == (0, 0, ())
    assert found.sass["LDL"] > 0


def test_the_instruction_mix_tells_widths_and_classes_apart() -> None:
    one = resources(compiled("saxpy.cu", "sm_90", "saxpy<float>"), "saxpy<float>").sass
    assert (one["LDG.32"], one["STG.32"], one["FFMA"]) == (2, 1, 1)
    four = resources(compiled("saxpy.cu", "sm_90", "saxpy<float>"), "saxpy4").sass
    assert (four["LDG.128"], four["STG.128"], four["FFMA"]) == (2, 1, 4)
    assert "LDG.32" not in four
    mix = resources(compiled("reduce.cu", "sm_90"), "reduce").sass
    assert (mix["BAR"], mix["ATOM/RED"], mix["STS"], mix["LDS.32"], mix["SHFL"]) == (2, 1, 1, 1, 15)
    assert mix["total"] == sum(count for label, count in mix.items() if label != "total")


def test_the_instruction_mix_in_words_goes_from_the_most_frequent_to_the_eighth_by_name_where_equal() -> None:
    found = resources(compiled("saxpy.cu", "sm_90", "saxpy<float>"), "saxpy<float>")
    found.__dict__["sass"] = {"total": 1200, "other": 1100, "BAR": 3, **{f"C{k}": 5 for k in range(9, 0, -1)}, "A": 52}
    assert found.instructions == "1,200: 52 A, 5 C1, 5 C2, 5 C3, 5 C4, 5 C5, 5 C6, 5 C7, …"


def test_padding_is_not_counted() -> None:
    """A cubin's code is padded with NOPs to a multiple of 128 bytes."""
    binary = compiled("saxpy.cu", "sm_90", "saxpy<float>")
    found = resources(binary, "saxpy4")
    assert disassembled(binary.cubin)[found.entry]["mix"]["total"] < found.code_bytes // 16


def test_registers_alone_need_no_disassembler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perflab.resources.nvidia_tool", lambda name: pytest.fail(f"{name} was run"))
    binary = load("__global__ void f(float* x) {\n x[1] = x[0]; }").binary("sm_90")
    assert resources(binary).registers > 0


def test_the_disassembly_is_kept_and_a_damaged_one_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PERFLAB_CACHE", str(tmp_path))
    binary = load("__global__ void f(float* x) {\n x[1] = x[0] + 3; }").binary("sm_90")
    first = resources(binary).sass
    (kept,) = (tmp_path / "sass").iterdir()
    kept.write_text("{")
    assert resources(binary).sass == first
    monkeypatch.setattr("perflab.resources.nvidia_tool", lambda name: pytest.fail(f"{name} was run"))
    assert resources(binary).sass == first


def test_which_kernel_must_be_clear() -> None:
    binary = compiled("reduce.cu", "sm_90")
    assert resources(binary, binary.entries["reduce"]).registers == resources(binary, "reduce").registers
    with pytest.raises(PerflabError, match="several kernels, so say which: reduce, look_up"):
        resources(binary)
    with pytest.raises(PerflabError, match='unknown kernel "reduse". Did you mean "reduce"'):
        resources(binary, "reduse")


def test_as_a_person_reads_it() -> None:
    found = resources(compiled("spill.cu", "sm_120"))
    assert re.search(r"^spilled +748 B stored, 748 B loaded$", str(found), re.MULTILINE)
    assert re.search(r"^instructions +946: 256 FFMA, 164 LDL, 164 STL, 128 IMAD, ", str(found), re.MULTILINE)
    assert re.search(r"^note: spills at spill\.cu:\d+: ", str(found), re.MULTILINE)
    assert found.markdown().startswith("**spill on sm_120**")
    assert set(found._repr_mimebundle_()) == {"text/plain", "text/html"}
    assert str(found) == str(resources(compiled("spill.cu", "sm_120")))
