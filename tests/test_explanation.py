"""perflab.explanation: one screen about a file as people write it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from perflab.compile import CompileError
from perflab.errors import PerflabError
from perflab.explanation import WIDTH, explain
from perflab.kernel import load

KERNELS = Path(__file__).parent / "kernels"


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERFLAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("PERFLAB_GPU", "H200")
        yield


def test_the_numbers_are_those_of_the_kernel_s_own_verbs() -> None:
    (table,) = explain(KERNELS / "spill.cu", gpus="RTX PRO 6000").kernels
    kernel = load(KERNELS / "spill.cu")
    used, held = kernel.resources("RTX PRO 6000"), kernel.occupancy("RTX PRO 6000", 1024)
    assert table.rows[0][:8] == (
        "RTX PRO 6000", used.registers, used.spill_store_bytes, used.stack_bytes, 0, 0, held.blocks_per_sm, "66.7 %"
    )
    assert table.rows[0][8] == held.limited_by


def test_it_says_where_the_block_size_comes_from() -> None:
    def titles(**more: object) -> list[str]:
        return [table.title for table in explain(KERNELS / "reduce.cu", **more).kernels]  # type: ignore[arg-type]

    assert titles() == ["reduce, blocks of 256 threads (launch bounds)", "look_up, blocks of 256 threads (assumed)"]
    assert titles(block=(32, 4)) == ["reduce, blocks of 128 threads (given)", "look_up, blocks of 128 threads (given)"]
    assert titles(defines={"BLOCK": 64})[0] == "reduce, blocks of 64 threads (launch bounds)"


def test_spills_come_with_their_lines_and_with_what_causes_them() -> None:
    text = " ".join(str(explain(KERNELS / "spill.cu")).replace("note: ", "").split())
    assert re.search(r"spills on H200 at spill\.cu:\d+ \([\d,]+ B out, [\d,]+ B back\)", text)
    assert "spills come with __launch_bounds__(1024, 2), which leaves 32 registers a thread: ask for 1 block per SM" in text


def test_the_next_step_is_the_occupancy_model_s() -> None:
    shown = " ".join(str(explain(KERNELS / "saxpy.cu", "saxpy4", dynamic_shared=70_000)).replace("note: ", "").split())
    held = load(KERNELS / "saxpy.cu", "saxpy4").occupancy("H200", 256, dynamic_shared=70_000)
    assert held.blocks_per_sm == 3
    assert f"next step on H200: {held.steps[0][0]}" in shown


def test_a_program_is_shown_in_the_instances_it_launches_and_without_its_host_code() -> None:
    found = explain(KERNELS / "program.cu")
    assert [table.title.split(",")[0] for table in found.kernels] == ["add_pairs", "scale<float"]
    assert any(note.startswith("host code was left out: ") for note in found.notes)
    assert explain(KERNELS / "saxpy.cu", "saxpy4").notes == ()


def test_a_template_that_nobody_launches_is_named_not_hidden() -> None:
    (note,) = explain(KERNELS / "saxpy.cu").notes
    assert note == 'saxpy (line 3, template <typename T>) was not looked at: name an instance, such as name="saxpy<float>"'
    (table,) = explain(KERNELS / "saxpy.cu", "saxpy<float>").kernels
    assert table.title.startswith("saxpy<float>, ")


def test_all_gpus_fit_one_screen() -> None:
    found = explain(KERNELS / "reduce.cu", "reduce", gpus="all")
    labels = [str(row[0]) for row in found.kernels[0].rows]
    architectures = [label.split()[0] for label in labels]
    assert architectures == sorted(set(architectures), key=lambda name: int(name[3:]))
    assert {"sm_75", "sm_80", "sm_90", "sm_120"} <= set(architectures)
    assert "sm_70: NVRTC does not compile for it" in found.notes
    lines = str(found).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= WIDTH + 5


def test_a_gpu_for_which_it_does_not_compile_costs_only_its_own_row(tmp_path: Path) -> None:
    text = '__global__ void f(int* x) { asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(0), "l"(x)); }\n'
    (tmp_path / "k.cu").write_text(text)
    (table,) = explain(tmp_path / "k.cu", gpus=["T4", "H200"]).kernels
    assert [row[0] for row in table.rows] == ["H200"]
    assert any(note.startswith("T4: ptxas: Feature 'cp.async' requires") for note in table.notes)
    with pytest.raises(CompileError, match="cp.async"):
        explain(tmp_path / "k.cu", gpus="T4")


def test_overloads_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("__global__ void f(int* x) { *x = 1; }\n__global__ void f(float* x) { *x = 1; }\n")
    assert len(explain(tmp_path / "k.cu").kernels) == 2


def test_what_cannot_work_is_said() -> None:
    with pytest.raises(PerflabError, match="no file"):
        explain(KERNELS / "nothing.cu")
    with pytest.raises(PerflabError, match="unknown GPU"):
        explain(KERNELS / "saxpy.cu", gpus="H2000000")
    with pytest.raises(PerflabError, match=r"block of 512 threads: reduce is compiled for at most 256"):
        explain(KERNELS / "reduce.cu", block=512)
    with pytest.raises(PerflabError, match='no kernel "saxpie"'):
        explain(KERNELS / "saxpy.cu", "saxpie")


def test_as_a_person_reads_it() -> None:
    found = explain(KERNELS / "reduce.cu")
    assert str(found) == str(explain(KERNELS / "reduce.cu"))
    assert str(found).startswith("reduce.cu: 2 kernels\n\nreduce, blocks of 256 threads (launch bounds)\nGPU ")
    assert "stack of 400 B without spills on H200" in str(found)
    assert found.markdown().startswith("### reduce.cu: 2 kernels\n\n**reduce, blocks of 256")
    assert found._repr_mimebundle_()["text/plain"] == str(found)
