"""What can be said against a .cu file before anyone runs it: does it compile everywhere, does it spill, does it run clean."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perflab.compile import CompileError, architectures, nvrtc_version
from perflab.emulator.faults import Fault
from perflab.emulator.operations import Unsupported
from perflab.errors import PerflabError, unknown
from perflab.gpus import default_gpu
from perflab.kernel import Kernel, load
from perflab.origins import Origin, join
from perflab.resources import resources
from perflab.sources import find_kernels
from perflab.studies import philox_words
from perflab.tables import Table

SCHEDULES = ("forward", "reversed")
RUN_LINE = "// perflab: saxpy<float> grid=4 block=256 args=(float[1000], out float[1000], 2.5, 1000)"
"""How a file says on what small shape a kernel of it can be tried; see `Trial`."""

_RUN = re.compile(r"^[ \t]*//[ \t]*perflab:[ \t]*(.*)$", re.MULTILINE)
_ARRAY = re.compile(r"(?:(out|scratch)\s+)?([\w ]+?)\s*\[([\d\s,]+)\](?:\s*=\s*([-+\w.]+))?")
_TYPES = {
    "float": "float32", "double": "float64", "half": "float16", "__half": "float16", "char": "int8", "signed char": "int8",
    "unsigned char": "uint8", "short": "int16", "unsigned short": "uint16", "int": "int32", "unsigned": "uint32",
    "unsigned int": "uint32", "long long": "int64", "unsigned long long": "uint64", "bool": "uint8",
    **{name: name for name in ("float16", "float32", "float64", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)))},
    **{f"{u}int{n}_t": f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)},
}


# ---------------------------------------------------------------- a trial, as the file declares it
@dataclass(frozen=True)
class Trial:
    """One `// perflab:` line: a kernel (a name expression), grid, block, dynamic shared bytes, and arguments.

    An argument is a number, null, or an array: `TYPE[SIZES]` of numbers in (-1, 1) (integers: 0, 1, 2, …),
    `TYPE[SIZES]=VALUE` all alike, `out TYPE[SIZES]` that the kernel must fill, `scratch TYPE[SIZES]` that it may use.
    """

    name: str
    line: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    arguments: tuple[str, ...]

    def make(self) -> tuple[list[Any], list[int], list[int]]:
        """(arguments, places of outputs, places of scratch memory), made anew."""
        values: list[Any] = []
        roles: dict[str, list[int]] = {"out": [], "scratch": []}
        for place, text in enumerate(self.arguments):
            role, value = _argument(text, self.line)
            values.append(value)
            if role:
                roles[role].append(place)
        return values, roles["out"], roles["scratch"]


def trials(text: str) -> list[Trial]:
    """The `// perflab:` lines of a source. Raises PerflabError, with the line, for one that cannot be read."""
    return [_trial(match[1], text.count("\n", 0, match.start()) + 1) for match in _RUN.finditer(text)]


def _trial(words: str, line: int) -> Trial:
    match = re.fullmatch(r"(.*?)\s*((?:\b(?:grid|block|shared)\s*=\s*\S+\s+)+)args\s*=\s*\((.*)\)\s*", words)
    sizes = dict(re.findall(r"(grid|block|shared)\s*=\s*(\S+)", match[2])) if match else {}
    if match is None or not match[1] or not {"grid", "block"} <= set(sizes):
        raise PerflabError(f"line {line}: this is no trial: {words!r}. It is written as in: {RUN_LINE}")
    try:
        numbers = {key: tuple(int(n) for n in value.strip("()").split(",")) for key, value in sizes.items()}
    except ValueError:
        raise PerflabError(f"line {line}: grid, block and shared are whole numbers, as in grid=4,2") from None
    arguments = tuple(part.strip() for part in re.split(r",(?![^\[]*\])", match[3]) if part.strip())
    return Trial(match[1], line, numbers["grid"], numbers["block"], numbers.get("shared", (0,))[0], arguments)


def _argument(text: str, line: int) -> tuple[str, Any]:
    """('out', 'scratch' or '', the value) of one argument of a trial."""
    import numpy as np

    if text in ("null", "nullptr"):
        return "", None
    if text in ("true", "false"):
        return "", text == "true"
    if match := _ARRAY.fullmatch(text):
        name = " ".join(match[2].split())
        if name not in _TYPES:
            raise unknown(f"type in line {line}", name, _TYPES)
        dtype, shape = np.dtype(_TYPES[name]), tuple(int(n) for n in match[3].split(","))
        if match[4]:
            return match[1] or "", np.full(shape, float(match[4]) if dtype.kind == "f" else int(match[4]), dtype)
        return match[1] or "", _content(shape, dtype)
    try:
        return "", int(text, 0) if re.fullmatch(r"[-+]?(0x)?[\da-fA-F]+", text) else float(text.rstrip("f"))
    except ValueError:
        raise PerflabError(f"line {line}: {text!r} is neither a number nor an array such as float[1000]") from None


def _content(shape: tuple[int, ...], dtype: Any) -> Any:
    """Numbers in (-1, 1), the same everywhere; 0, 1, 2, … of an integer type."""
    import numpy as np

    count = int(np.prod(shape))
    if dtype.kind != "f":
        return np.arange(count).astype(dtype).reshape(shape)
    words = philox_words(1, "lint", count) >> np.uint64(40)
    return (words.astype(np.float64) / 2**23 - 1 + 2**-24).astype(dtype).reshape(shape)


# ---------------------------------------------------------------- what is found
@dataclass(frozen=True)
class Lint:
    """What `lint` found. errors: why it does not pass; notes: what a reader should know besides."""

    file: str
    compiled: Table
    tried: Table | None
    errors: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """True without an error."""
        return not self.errors

    def __str__(self) -> str:
        tables = [str(table) for table in (self.compiled, self.tried) if table]
        lines = [*(f"error: {words}" for words in self.errors), *(f"note: {words}" for words in self.notes)]
        return "\n\n".join([*tables, "\n".join([*lines, self._verdict()])])

    def _verdict(self) -> str:
        counted = (f"{n} {word}{'s' * (n != 1)}" for n, word in ((len(self.errors), "error"), (len(self.notes), "note")))
        return f"{'PASS' if self.passed else 'FAIL'}  {self.file}: {', '.join(counted)}"

    def markdown(self) -> str:
        """For a pull request."""
        tables = [table.markdown() for table in (self.compiled, self.tried) if table]
        return "\n\n".join([f"### {self._verdict()}", *tables, *(f"- **error**: {words}" for words in self.errors),
                            *(f"- note: {words}" for words in self.notes)])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/markdown": self.markdown()}


def lint(path: str | Path, gpus: str | Sequence[str] | None = None) -> Lint:
    """Compile a file for every architecture (or for `gpus`), list what spills, and run its trials on the CPU.

    An architecture older than the first for which it compiles is a note; a newer one that fails is an error, and so is any
    that was asked for. Spills are notes. A kernel without a trial (see `Trial`) is compiled only, and said to be.
    """
    gpus = [gpus] if isinstance(gpus, str) else gpus
    kernel = load(path)
    text = kernel.source.text
    declared = trials(text)
    found = find_kernels(text)
    names = [one.name for one in found if not one.template]
    names += [trial.name for trial in declared if trial.name not in names]
    if found and not names:
        raise PerflabError(f"{kernel.source.file} has kernel templates only, so nothing was compiled: name an instance in a "
                           f"line such as `{RUN_LINE}`")
    compiled, errors, notes = _compiled(kernel, dict.fromkeys(names), gpus)
    tried, faults = _tried(kernel, declared, gpus[0] if gpus else default_gpu().name)
    untried = [one for one in found if one.name not in {trial.name.split("<")[0].split("::")[-1] for trial in declared}]
    if untried:
        notes.append(f"not run, for no line such as `{RUN_LINE}` says on what: {', '.join(map(str, untried))}")
    if templates := [str(one) for one in untried if one.template]:
        notes.append(f"not compiled either, for no instance is named: {', '.join(templates)}")
    return Lint(kernel.source.file, compiled, tried, (*errors, *faults), tuple(notes))


def _compiled(kernel: Kernel, names: Collection[str], gpus: Sequence[str] | None) -> tuple[Table, list[str], list[str]]:
    """A row a kernel and architecture; errors; notes."""
    chosen = list(gpus) if gpus else [name for name in architectures() if not name.endswith("a")]
    rows: list[tuple] = []
    errors, notes = list[str](), list[str]()
    for name in names or (None,):
        one = Kernel(kernel.source, name if name and "<" in name else None, kernel.defines, kernel.options)
        failed: list[tuple[str, str]] = []
        for gpu in chosen:
            try:
                used = resources(one.binary(gpu), name)
            except CompileError as error:
                failed.append((gpu, str(error)))
                rows.append((name or "-", gpu, "does not compile", *["-"] * 4))
                continue
            spills = used.spill_store_bytes + used.spill_load_bytes
            rows.append((used.name, gpu, "spills" if spills else "good", used.registers, spills, used.stack_bytes,
                         used.static_shared_bytes))
            if spills:
                notes.append(f"{used.name} spills on {gpu}: {used.spill_store_bytes:,} B stored, "
                             f"{used.spill_load_bytes:,} B loaded")
            if not gpus and failed and len(failed) == chosen.index(gpu):  # all before this one
                notes.append(f"{used.name} needs {gpu} or newer: {_first_line(failed[0][1])}")
                failed.clear()
        errors += [f"{name or 'the file'} does not compile for {gpu}: {_first_line(said)}" for gpu, said in failed]
    columns = ("kernel", "for", "", "registers", "spills [B]", "stack [B]", "static shared [B]")
    origin = str(Origin("compiled", f"NVRTC {nvrtc_version()}"))
    return Table(f"{kernel.source.file}: compiled for {len(chosen)} GPUs", columns, rows, origin), errors, notes


def _first_line(said: str) -> str:
    """What the compiler says, without its heading."""
    lines = [line for line in said.splitlines() if line.strip()]
    return lines[1 if len(lines) > 1 else 0].strip()


def _tried(kernel: Kernel, declared: Sequence[Trial], gpu: str) -> tuple[Table | None, list[str]]:
    """A row a trial; what went wrong, once."""
    rows: list[tuple] = []
    problems, origins = dict[str, None](), list[Origin]()
    for trial in declared:
        one = Kernel(kernel.source, trial.name, kernel.defines, kernel.options)
        shape = f"grid {_sizes(trial.grid)}, block {_sizes(trial.block)}"
        try:
            runs = list(_runs(one, trial, gpu))
        except (Unsupported, CompileError) as error:
            problems[f"line {trial.line}: {trial.name} was not run: {error}"] = None
            rows.append((trial.name, trial.line, shape, "not run", "-"))
            continue
        origins += [origin for origin, _ in runs]
        faults = {str(fault): fault for _, several in runs for fault in several}
        problems |= dict.fromkeys(f"{trial.name}: {words}" for words, fault in faults.items() if not fault.warning)
        rows.append((trial.name, trial.line, shape, "faults" if faults else "clean", len(faults)))
    if not rows:
        return None, list(problems)
    title = f"{kernel.source.file}: run on the CPU as on {gpu}, schedules {' and '.join(SCHEDULES)}"
    return Table(title, ("kernel", "declared in line", "on", "", "faults"), rows, join(*origins)), list(problems)


def _runs(kernel: Kernel, trial: Trial, gpu: str) -> Iterator[tuple[Origin, tuple[Fault, ...]]]:
    """The faults of a trial under each schedule."""
    for schedule in SCHEDULES:
        values, outputs, scratch = trial.make()
        counts = kernel.emulate(trial.grid, trial.block, values, trial.shared, gpu, outputs=outputs, scratch=scratch,
                                schedule=schedule, counting=False)
        yield counts.origin, counts.faults


def _sizes(sizes: Sequence[int]) -> str:
    return " x ".join(f"{n:,}" for n in sizes)
