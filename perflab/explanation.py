"""One screen about any .cu file: what its kernels take, what limits them, and the next cheaper step. No GPU is needed."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perflab.compile import Binary, CompileError, architectures, nvrtc_version
from perflab.gpus import Gpu, default_gpu, gpu_names
from perflab.gpus import gpu as find_gpu
from perflab.kernel import HOST_CODE_LEFT_OUT, Kernel, load, occupancy_with
from perflab.occupancy_model import Occupancy
from perflab.origins import Origin, join
from perflab.resources import Resources, resources
from perflab.sources import device_code, find_kernels, without_comments
from perflab.tables import Table, percent

ASSUMED_BLOCK = 256
WIDTH = 100
_LAUNCH = re.compile(r"\b([A-Za-z_][\w:]*\s*<[^;{}()]*?>)\s*<<<")  # an instance, where it is launched
_COLUMNS = ("GPU", "regs", "spill B", "stack B", "shared B", "bars", "blocks/SM", "occupancy", "limited by")


@dataclass(frozen=True)
class Explanation:
    """What `explain` found: a table a kernel, and notes about the file."""

    title: str
    kernels: tuple[Table, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        notes = [line for note in self.notes for line in textwrap.wrap(f"note: {note}", WIDTH, subsequent_indent="  ")]
        return "\n\n".join([self.title, *map(str, self.kernels), *(["\n".join(notes)] if notes else [])])

    def markdown(self) -> str:
        notes = [f"*note: {note}*" for note in self.notes]
        return "\n\n".join([f"### {self.title}", *(table.markdown() for table in self.kernels), *notes])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/markdown": self.markdown()}


def explain(
    path: str | Path,
    name: str | None = None,
    gpus: Any = None,
    block: Any = None,
    dynamic_shared: int = 0,
    defines: Mapping[str, Any] | None = None,
) -> Explanation:
    """What the kernels of a .cu file take and what limits them, by GPU.

    name: one kernel ("saxpy<float>"); else all, templates in the instances the file itself launches. gpus: one, a list, or
    "all", a row an architecture. block: threads, else the launch bounds, else 256. dynamic_shared: bytes a block.
    Raises CompileError with the compiler's words, PerflabError for what is unknown.
    """
    kernel = load(path, name, defines)
    chosen, notes = _gpus(gpus)
    shown, remarks = ([(kernel, name)], []) if name else _kernels(kernel, [gpu for _, gpu in chosen])
    tables = tuple(_about(one, entry, chosen, block, dynamic_shared) for one, entry in shown)
    binaries = [_first_binary(one, [gpu for _, gpu in chosen]) for one, _ in shown]
    if any(HOST_CODE_LEFT_OUT in binary.options for binary in binaries if binary):
        notes.append(f"host code was left out: {_listed(device_code(kernel.source)[1], 6)}")
    title = f"{kernel.source.file}: {len(tables)} kernel{'s' * (len(tables) != 1)}"
    return Explanation(title, tables, (*notes, *remarks))


def _gpus(asked: Any) -> tuple[list[tuple[str, Any]], list[str]]:
    """(label, gpu) in the order asked, and what a reader must know."""
    if asked != "all":
        several = [default_gpu()] if asked is None else [asked] if isinstance(asked, (str, Gpu)) else list(asked)
        return [(one if isinstance(one, str) else one.name, one) for one in several], []
    by_architecture: dict[str, list[Gpu]] = {}
    for one in sorted(map(find_gpu, gpu_names()), key=lambda g: float(g.capability)):
        by_architecture.setdefault(one.architecture, []).append(one)
    notes = [f"{key}: NVRTC does not compile for it" for key in by_architecture if key not in architectures()]
    chosen = [
        (f"{key} {first.name}" + (f" +{len(more)}" if more else ""), first)
        for key, (first, *more) in by_architecture.items() if key in architectures()
    ]
    return chosen, notes


def _kernels(kernel: Kernel, gpus: Sequence[Any]) -> tuple[list[tuple[Kernel, str]], list[str]]:
    """The kernels of the file with their names, and remarks on the templates that cannot be shown."""
    texts = kernel.source.texts
    templates = {found.name: found for text in texts for found in find_kernels(text) if found.template}
    launched = dict.fromkeys(" ".join(m.split()) for text in texts for m in _LAUNCH.findall(without_comments(text)))
    plain = _first_binary(kernel, gpus)
    shown = [(kernel, entry) for entry in plain.entries] if plain else []
    for instance in launched:
        base = instance.split("<")[0].split("::")[-1].strip()
        one = replace(kernel, name=instance)
        if base in templates and _first_binary(one, gpus):  # else out of a host template, with that one's parameters
            shown.append((one, instance))
    if not shown:
        kernel.binary(gpus[0])  # raises, in the compiler's words
    names = {name.split("<")[0].split("::")[-1].strip() for _, name in shown}
    remarks = [
        f'{found} was not looked at: name an instance, such as name="{found.example}"'
        for found in templates.values() if found.name not in names
    ]
    return shown, remarks


def _first_binary(kernel: Kernel, gpus: Sequence[Any]) -> Binary | None:
    """The binary for the first GPU for which the kernel compiles."""
    for gpu in gpus:
        try:
            return kernel.binary(gpu)
        except CompileError:
            continue
    return None


def _about(kernel: Kernel, name: str, chosen: Sequence[tuple[str, Any]], block: Any, dynamic_shared: int) -> Table:
    """One kernel: a row a GPU, then where it spills, what its code is made of, and the next step on one of the GPUs."""
    rows: list[tuple[object, ...]] = []
    found: list[tuple[str, Resources, Occupancy]] = []
    failed: list[str] = []
    for label, gpu in chosen:
        try:
            used = resources(kernel.binary(gpu), name)
        except CompileError as error:
            if len(chosen) == 1:
                raise
            failed.append(f"{label}: {' '.join(str(error).splitlines()[1:2]) or error}")
            continue
        threads = block or used.max_threads or ASSUMED_BLOCK
        held = occupancy_with(used, gpu, threads, dynamic_shared=dynamic_shared)
        found.append((label, used, held))
        limiters = held.reason or held.limited_by
        shared = used.static_shared_bytes + dynamic_shared
        rows.append((label, used.registers, used.spill_store_bytes, used.stack_bytes, shared, used.barriers,
                     held.blocks_per_sm, percent(held.fraction), limiters))
    if not found:
        raise CompileError("\n".join(failed))
    label, used, held = next((f for f in found if f[2].gpu.architecture == default_gpu().architecture), found[0])
    source = "given" if block else "launch bounds" if used.max_threads else "assumed"
    title = f"{name}, blocks of {held.demand.threads} threads ({source})"
    notes = [textwrap.fill(note, WIDTH - 6, subsequent_indent="      ") for note in (*failed, *_remarks(used, held, label))]
    origin = join(Origin("compiled", f"NVRTC {nvrtc_version()}"), Origin("calculated", "occupancy rules"))
    return Table(title, _COLUMNS, rows, origin, notes)


def _remarks(used: Resources, held: Occupancy, label: str) -> Iterator[str]:
    where = [f"{file}:{line} ({out:,} B out, {back:,} B back)" for file, line, out, back in used.spills_by_line]
    if where:
        yield f"spills on {label} at {_listed(where, 3)}"
    elif used.stack_bytes:
        yield f"stack of {used.stack_bytes:,} B without spills on {label}: a local array with an index known at run time only"
    yield f"static instructions for {used.architecture}, {used.instructions}"
    yield f"next step on {label}: {_next_step(used, held)}"


def _next_step(used: Resources, held: Occupancy) -> str:
    """What to try first: end the spills where launch bounds cause them, else the model's cheapest gain of occupancy."""
    if used.spill_store_bytes and used.min_blocks and used.min_blocks > 1:
        return (
            f"the spills come with __launch_bounds__({used.max_threads}, {used.min_blocks}), which leaves "
            f"{used.registers} registers a thread: ask for {used.min_blocks - 1} block{'s' * (used.min_blocks > 2)} per SM"
        )
    if used.spill_store_bytes:
        return "fewer live values a thread: shorter unrolled loops, smaller tiles, or smaller blocks with more registers each"
    if held.fraction == 1:
        return "every warp slot is taken; look at what the kernel moves, not at occupancy"
    return held.steps[0][0] if held.steps else "no change of one kind holds more on an SM"


def _listed(words: Sequence[str], most: int) -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
