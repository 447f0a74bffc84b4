"""Instruction forms that ran on a GPU (tests/gpu/instructions.py), emulated: the same bits, approximations within bounds."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from perflab.emulator import ptx
from perflab.emulator.approximations import APPROXIMATIONS, ULP_BOUNDS, Bound
from perflab.emulator.arithmetic import BITS, NUMPY, SMALLEST_NORMAL, Ending, flush, is_nan, is_tiny, round_to, widen
from perflab.emulator.conversions import split
from perflab.emulator.instructions import decode
from perflab.emulator.operations import Operation, Typed
from perflab.emulator.ptx import Immediate

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT / "data" / "experiments" / "h200_instructions.npz"
Arrays = list[np.ndarray]


def _script() -> ModuleType:
    """tests/gpu/instructions.py: the forms and their operands."""
    spec = importlib.util.spec_from_file_location("gpu_instructions", ROOT / "tests" / "gpu" / "instructions.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


GPU = _script()


# ---------------------------------------------------------------- the emulator's side
@cache
def decoded() -> dict[str, Operation]:
    """Form's text -> operation, out of one made-up kernel."""
    lines, declared = [], []
    for number, form in enumerate(GPU.FORMS):
        names = [f"%x{number}_{i}" for i in range(len(form.operands))]
        declared += [f".reg .{'pred' if x.kind == 'pred' else f'b{x.bits}'} {name};"
                     for name, x in zip(names, form.operands, strict=True)]
        lines.append(form.line(names) + ";")
    head = [".version 9.0", ".target sm_90", ".address_size 64", ".visible .entry k()"]
    text = "\n".join([*head, "{", *declared, *lines, "ret;", "}"])
    function = ptx.parse(text).functions["k"]
    body = [item for item in function.body if isinstance(item, ptx.Instruction)]
    return {form.text: decode(item, function.registers) for form, item in zip(GPU.FORMS, body[:-1], strict=True)}


def as_read(bits: np.ndarray, kind: str) -> np.ndarray:
    """A register's bits as a value of a type no wider."""
    if kind == "pred":
        return bits != 0
    size = np.dtype(NUMPY[kind]).itemsize
    return bits.astype(f"u{size}").view(NUMPY[kind])


def as_written(value: np.ndarray, kind: str, bits: int) -> np.ndarray:
    """A value as the bits of a register at least as wide: signed ones extended by their sign."""
    if kind == "pred":
        return value.astype(np.uint8)
    if kind[0] == "s":
        return value.astype(np.int64).astype(f"i{bits // 8}").view(f"u{bits // 8}")
    return value.view(f"u{value.dtype.itemsize}").astype(f"u{bits // 8}")


def emulated(form: Any) -> Arrays:
    """What the emulator gives for the operands of a form."""
    operation = decoded()[form.text]
    given = iter(GPU.operands(form))

    def read(typed: Typed) -> np.ndarray:
        if isinstance(typed.operand, Immediate):
            return np.full(GPU.LANES, typed.operand.value % (1 << 32), np.uint32)
        return as_read(next(given), typed.type)

    inputs = [read(typed) for typed in operation.inputs]
    assert operation.compute is not None
    if operation.role == "collective":
        warps = [x.reshape(-1, 32) for x in inputs]
        *results, absent = operation.compute(np.ones((GPU.LANES // 32, 32), bool), *warps)
        assert not absent.any()
        results = [x.reshape(-1) for x in results]
    else:
        results = list(operation.compute(*inputs))
    kinds = [typed.type for typed in operation.outputs]
    return [as_written(x, kind, wanted.bits) for x, kind, wanted in zip(results, kinds, form.results, strict=True)]


# ---------------------------------------------------------------- the GPU's side
def sizes(form: Any) -> list[tuple[str, int]]:
    """dtype and bytes of each result in the file."""
    names = ["u1" if x.kind == "pred" else f"u{x.bits // 8}" for x in form.results]
    return [(name, int(name[1]) * GPU.LANES) for name in names]


def load(path: Path) -> tuple[dict[str, Any], dict[str, Arrays]]:
    """What was run, and the results by form."""
    with np.load(path) as stored:
        about, blob = json.loads(str(stored["about"])), stored["results"].tobytes()
    assert about["lanes"] == GPU.LANES
    found, at = {}, 0
    for text in about["forms"]:
        arrays = []
        for name, count in sizes(form := GPU.Form(text)):
            arrays.append(np.frombuffer(blob[at : at + count], name))
            at += count
        found[form.text] = arrays
    assert at == len(blob)
    return about, found


# ---------------------------------------------------------------- the comparison
def differing(form: Any, ours: Arrays, theirs: Arrays) -> list[str]:
    """The lanes whose bits differ, in words. NaNs of f64 are all alike: PTX leaves their payload open."""
    wrong = np.zeros(GPU.LANES, bool)
    for mine, hardware, result in zip(ours, theirs, form.results, strict=True):
        differs = mine != hardware
        if result.kind == "f64":
            differs &= ~(np.isnan(mine.view(np.float64)) & np.isnan(hardware.view(np.float64)))
        wrong |= differs
    given = GPU.operands(form)
    return [f"lane {lane}: {form.name} {', '.join(f'{x[lane]:#x}' for x in given)} = "
            f"{'|'.join(f'{x[lane]:#x}' for x in theirs)}, emulated {'|'.join(f'{x[lane]:#x}' for x in ours)}"
            for lane in np.flatnonzero(wrong)]


def bound_of(name: str) -> Bound | None:
    """The bound of an approximation, None for exact instructions."""
    return ULP_BOUNDS.get(name) or ULP_BOUNDS.get(name.replace(".ftz", "").removesuffix("x2"))


def true_values(form: Any, kind: str, given: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """(float64 result, |x| that the bound's range is about) of an approximation's lanes."""
    values = [as_read(x, kind) for x in given]
    if form.name.endswith(".ftz.f64"):  # reads upper halves
        values = [(x.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64) for x in values]
    if ".ftz" in form.name:
        values = [flush(x, kind) for x in values]
    with np.errstate(all="ignore"):
        wide = [widen(x, kind) for x in values]
        return (wide[0] / wide[1] if len(wide) == 2 else APPROXIMATIONS[form.name.split(".")[0]](wide[0])), np.abs(wide[-1])


def spacing(true: np.ndarray, kind: str) -> np.ndarray:
    """One unit in the last place of the type at these values."""
    if kind in ("f32", "f64"):
        return np.spacing(np.abs(true).astype(NUMPY[kind])).astype(np.float64)
    fraction, least = {"f16": (10, -24), "bf16": (7, -133)}[kind]
    return np.ldexp(1.0, np.maximum(np.frexp(np.abs(true))[1] - 1 - fraction, least))


@dataclass(frozen=True)
class Errors:
    """The hardware's largest errors where the bound holds: in ulps, as a part of the true value, and absolute."""

    ulps: float = 0.0
    relative: float = 0.0
    absolute: float = 0.0

    def __str__(self) -> str:
        power = [f"2^{np.log2(x):.2f}" if x else "0" for x in (self.relative, self.absolute)]
        return f"{self.ulps:.2f} ulps, relative {power[0]}, absolute {power[1]}"

    def __or__(self, other: Errors) -> Errors:
        return Errors(*map(max, astuple(self), astuple(other)))


def beyond(form: Any, kind: str, bound: Bound, given: Arrays, theirs: np.ndarray) -> tuple[list[str], Errors]:
    """Lanes of the hardware outside the bound, and its largest errors."""
    true, size = true_values(form, kind, given)
    hardware, ftz = as_read(theirs, kind), Ending(kind, ftz=".ftz" in form.name)
    with np.errstate(all="ignore"):
        rounded = true if kind == "f64" else round_to(true, kind)
        rounded = flush(rounded, kind, is_tiny(true, ftz) if kind != "f64" else False) if ftz.ftz else rounded
        same = (rounded.view(BITS[kind]) == hardware.view(BITS[kind])) | (is_nan(rounded, kind) & is_nan(hardware, kind))
        slack = bound.relative + bound.ulps * float(spacing(np.ones(1), kind)[0])  # an approximation below 2^-126 is flushed
        same |= (ftz.ftz & (np.abs(true) <= (1 + slack) * SMALLEST_NORMAL[kind])) & (widen(hardware, kind) == 0)
        inside = (size >= bound.smallest) & (size <= bound.largest)
        error = np.abs(widen(hardware, kind) - true)
        ulps, relative = error / spacing(true, kind), error / np.abs(true)
        fits = (ulps <= bound.ulps) | (relative <= bound.relative) | (error <= bound.absolute)
    words = [f"lane {i}: {form.name} {', '.join(f'{x[i]:#x}' for x in given)} = {theirs[i]:#x}, true {true[i]:.9g}"
             for i in np.flatnonzero(inside & ~same & ~fits)]
    counted = inside & np.isfinite(true) & np.isfinite(error) & (np.abs(true) >= SMALLEST_NORMAL[kind])
    return words, Errors(*(float(x[counted].max(initial=0.0)) for x in (ulps, relative, error)))


def problems(form: Any, theirs: Arrays) -> tuple[list[str], Errors]:
    """What differs between the emulator and these results; for approximations also the largest errors."""
    bound = bound_of(form.name)
    if bound is None:
        return differing(form, emulated(form), theirs), Errors()
    kind, given = form.results[0].kind, GPU.operands(form)
    if not kind.endswith("x2"):
        return beyond(form, kind, bound, given, theirs[0])
    kind = kind[:-2]
    halves = zip(split(given[0], kind), split(theirs[0], kind), strict=True)
    (low, low_errors), (high, high_errors) = (beyond(form, kind, bound, [x], hardware) for x, hardware in halves)
    return low + high, low_errors | high_errors


# ---------------------------------------------------------------- tests
FAMILIES = sorted({form.name.split(".")[0] for form in GPU.FORMS})


@pytest.mark.filterwarnings("error")  # none of numpy's may leave compute
@pytest.mark.skipif(not DATA.exists(), reason=f"{DATA.name} has not been recorded: run tests/gpu/instructions.py on a GPU")
@pytest.mark.parametrize("opcode", FAMILIES)
def test_same_as_the_gpu(opcode: str) -> None:
    """All forms of an opcode, all lanes."""
    _, found = load(DATA)
    forms = [form for form in GPU.FORMS if form.name.split(".")[0] == opcode and form.text in found]
    if not forms:
        pytest.skip(f"no form of {opcode} has been recorded: run tests/gpu/instructions.py again")
    wrong, errors = {}, {}
    for form in forms:
        words, errors[form.name] = problems(form, found[form.text])
        if words:
            wrong[form.text] = f"{len(words)} lanes; {'; '.join(words[:4])}"
    print("\n".join(f"{name}: at most {error}" for name, error in errors.items() if error != Errors()))
    assert not wrong, "\n".join(f"{text}: {words}" for text, words in wrong.items())


@pytest.mark.skipif(not DATA.exists(), reason=f"{DATA.name} has not been recorded")
def test_every_form_has_a_record() -> None:
    """Forms that were added since the record are told, by skipping; a recorded form that is gone is an error."""
    recorded = set(load(DATA)[1])
    listed = [form.text for form in GPU.FORMS]
    assert recorded <= set(listed)
    missing = [text for text in listed if text not in recorded]
    if missing:
        pytest.skip(f"{len(missing)} of {len(listed)} forms have no record: {'; '.join(missing)}")


def test_every_form_is_emulated() -> None:
    """No form of the experiment is beyond the table; results have the sizes that the file has."""
    assert len(decoded()) == len({form.text for form in GPU.FORMS}) == len(GPU.FORMS)
    for form in GPU.FORMS:
        assert [(x.dtype.str[1:], x.nbytes) for x in emulated(form)] == sizes(form), form.text


def test_operands_are_the_same_everywhere() -> None:
    """Pinned: the GPU machine makes them anew."""
    form = GPU.Form("fma.rn.f32 =f32, f32, f32, f32")
    assert [hex(int(x.astype(np.uint64).sum())) for x in GPU.operands(form)] == PINNED


PINNED = ["0x27e4e3d7c62", "0x1f2e9319315", "0x2f7eb24b6eb"]


def test_the_comparison_can_fail(tmp_path: Path) -> None:
    """Stored emulated results pass; a flipped bit is told with its operands; an error beyond the bound too."""
    forms = [GPU.Form(text) for text in ("add.rn.ftz.f32 =f32, f32, f32", "setp.lt.and.s32 =pred|=pred, s32, s32, pred",
                                         "ex2.approx.f32 =f32, f32", "tanh.approx.f16x2 =f16x2, f16x2")]
    blobs = [x.tobytes() for form in forms for x in emulated(form)]
    GPU.save(tmp_path / "x.npz", {"forms": [form.text for form in forms], "lanes": GPU.LANES}, blobs)
    _, found = load(tmp_path / "x.npz")
    for form in forms:
        assert problems(form, found[form.text])[0] == []
        spoiled = [x.copy() for x in found[form.text]]
        spoiled[-1][700] ^= 64 if len(spoiled) == 1 else 1
        words, _ = problems(form, spoiled)
        assert len(words) == 1 and words[0].startswith(f"lane 700: {form.name} "), words
