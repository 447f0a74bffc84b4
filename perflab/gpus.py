"""What a GPU is: the limits of its compute capability, and the size and datasheet peaks of the product.

Facts stand in `facts/capabilities.csv` and `facts/gpus.csv`, each row with its source: a new GPU or capability is one
row. A blank cell is unknown, never 0. A live device overrides the table: `from_device`.
"""

from __future__ import annotations

import csv
import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from perflab import tables
from perflab.errors import unknown

FACTS = Path(__file__).parent / "facts"
FALLBACK = "H200"
MIB = 1024 * 1024

# dtype -> column of gpus.csv. float64 and float32 are the CUDA cores', the others the dense tensor cores' peaks.
PEAK_COLUMNS = {
    "float64": "fp64_tflops",
    "float32": "fp32_tflops",
    "tf32": "tf32_tflops",
    "bfloat16": "bf16_tflops",
    "float16": "fp16_tflops",
    "float8": "fp8_tflops",
}
_ARCHITECTURE = re.compile(r"(?:sm_|compute_)(\d+)(\d)[af]?|(\d+)\.(\d)")
_NAME_NOISE = re.compile(r"\b(nvidia|geforce|tesla|generation|edition)\b|[^a-z0-9]+")


@dataclass(frozen=True)
class Limits:
    """What one multiprocessor (SM) of a compute capability has, and how it hands it out.

    Counts are per SM unless named `_per_block` or `_per_thread`. `register_unit` is in registers a warp,
    `shared_unit_bytes` in bytes a block, `shared_reserved_bytes` is what the driver takes of every block;
    `carveout_bytes` are the shared-memory sizes the L1 cache can leave; `barriers_per_sm` is None before 9.0.
    """

    capability: str
    warps_per_sm: int
    threads_per_sm: int
    blocks_per_sm: int
    registers_per_sm: int
    registers_per_block: int
    registers_per_thread: int
    threads_per_block: int
    shared_per_sm_bytes: int
    shared_per_block_bytes: int
    shared_per_block_optin_bytes: int
    shared_reserved_bytes: int
    shared_unit_bytes: int
    register_unit: int
    sub_partitions: int
    carveout_bytes: tuple[int, ...]
    barriers_per_sm: int | None
    fp32_lanes_per_sm: int
    source: str = field(compare=False)


@dataclass(frozen=True)
class Gpu(tables.Shown):
    """A GPU product, or only its architecture: then everything but `limits` is None. None is unknown.

    peaks: dtype -> FLOP/s of the datasheet, dense: float64 and float32 by CUDA cores, the others by tensor cores.
    """

    name: str
    capability: str
    limits: Limits
    sm_count: int | None = None
    clock_hz: float | None = None
    memory_bytes_per_second: float | None = None
    memory_bytes: float | None = None
    l2_bytes: int | None = None
    peaks: Mapping[str, float] = field(default_factory=dict, hash=False)
    source: str = field(default="", compare=False)

    @property
    def architecture(self) -> str:
        """The name compilers use: 'sm_90'."""
        return "sm_" + self.capability.replace(".", "")

    def table(self) -> tables.Table:
        """What is known of the product, then the limits of its SMs."""
        limits, clock = self.limits, self.clock_hz
        rows: list[tuple[str, str]] = [
            ("compute capability", f"{self.capability} ({self.architecture})"),
            ("SMs", tables.cell(self.sm_count)),
            ("SM clock", "-" if clock is None else f"{clock / 1e6:,.0f} MHz"),
            ("memory", tables.bytes_(self.memory_bytes)),
            ("memory rate", tables.bytes_per_second(self.memory_bytes_per_second)),
            ("L2 cache", "-" if self.l2_bytes is None else f"{self.l2_bytes / MIB:.0f} MiB"),
            *((f"peak {dtype}", tables.flops_per_second(flops)) for dtype, flops in self.peaks.items()),
            ("warps per SM", f"{limits.warps_per_sm}"),
            ("blocks per SM", f"{limits.blocks_per_sm}"),
            ("registers per SM", f"{limits.registers_per_sm:,}"),
            ("shared memory per SM", f"{limits.shared_per_sm_bytes:,} B"),
            ("shared memory per block, opt-in", f"{limits.shared_per_block_optin_bytes:,} B"),
        ]
        return tables.Table(self.name, ("fact", "value"), rows, origin=f"published ({self.source})")


def capabilities() -> tuple[str, ...]:
    """Every known compute capability, ascending: ('7.0', …, '12.1')."""
    return tuple(_limits())


def gpu_names() -> tuple[str, ...]:
    """Every known GPU by its name in the table, in the table's order."""
    return tuple(_gpus())


def gpu(name: str | Gpu) -> Gpu:
    """The GPU or the architecture of that name.

    Takes a product ("H200", "NVIDIA H200", "h200 sxm", "RTX PRO 6000"), an architecture ("sm_90", "sm_90a",
    "compute_90", "9.0") or a `Gpu`, which comes back as it is. Raises PerflabError with the nearest and all known.
    """
    if isinstance(name, Gpu):
        return name
    if (found := _by_key().get(_key(name))) is not None:
        return found
    match = _ARCHITECTURE.fullmatch(name.strip().lower())
    capability = ".".join(part for part in match.groups() if part) if match else ""
    if capability in _limits():
        return _architecture_only(capability)
    raise unknown("GPU", name, (*gpu_names(), *(_architecture_only(known).name for known in capabilities())))


def limits_of(capability: str) -> Limits:
    """The limits of a compute capability such as "9.0". Raises PerflabError for one that has no row in the table."""
    if capability not in _limits():
        raise unknown("compute capability", capability, capabilities())
    return _limits()[capability]


def default_gpu(local: Callable[[], Gpu | None] | None = None) -> Gpu:
    """The GPU to talk about when none is named: PERFLAB_GPU, else the one in this machine, else the H200.

    local: finds the GPU of this machine, or None where there is none.
    """
    asked = os.environ.get("PERFLAB_GPU", "").strip()
    if asked:
        return gpu(asked)
    return (local() if local else None) or gpu(FALLBACK)


def from_device(attributes: Mapping[str, Any]) -> Gpu:
    """The GPU that a live device reports: its numbers override the table's.

    attributes: `name` and `capability`, and any other fields of `Gpu` and `Limits`, in their units; None counts as absent.
    With an unknown name the limits come from the capability's row. Where the SM count differs from the table's (a MIG
    slice, another variant of the chip), peaks and memory rate are another product's: they are dropped. Raises PerflabError
    for an unknown capability.
    """
    facts = {key: value for key, value in attributes.items() if value is not None}
    base = _by_key().get(_key(facts["name"]))
    if base is None or base.capability != facts["capability"]:
        base = _architecture_only(facts["capability"])
    if base.sm_count is not None and facts.get("sm_count", base.sm_count) != base.sm_count:
        facts = {"peaks": {}, "memory_bytes_per_second": None} | facts
    limits = {key: facts.pop(key) for key in Limits.__dataclass_fields__.keys() & facts if key != "capability"}
    source = f"the device's own attributes over: {base.source}"
    return dataclasses.replace(base, **facts, limits=dataclasses.replace(base.limits, **limits), source=source)


def _architecture_only(capability: str) -> Gpu:
    limits = limits_of(capability)
    return Gpu("sm_" + capability.replace(".", ""), capability, limits, source=limits.source)


def _key(name: str) -> str:
    """A name without maker, brand, case and punctuation: 'NVIDIA GeForce RTX 4090' -> 'rtx4090'."""
    return _NAME_NOISE.sub("", name.lower())


def _rows(file: str) -> list[dict[str, str]]:
    with (FACTS / file).open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@cache
def _limits() -> dict[str, Limits]:
    return {row["capability"]: _limits_from(row) for row in _rows("capabilities.csv")}


def _limits_from(row: dict[str, str]) -> Limits:
    texts = {key: row.pop(key) for key in ("capability", "source", "carveout_bytes")}
    facts: dict[str, Any] = {key: int(value) if value else None for key, value in row.items()}
    facts |= texts | {"carveout_bytes": tuple(map(int, texts["carveout_bytes"].split()))}
    return Limits(**facts)


@cache
def _gpus() -> dict[str, Gpu]:
    return {row["name"]: _gpu_from(row) for row in _rows("gpus.csv")}


def _gpu_from(row: Mapping[str, str]) -> Gpu:
    def scaled(column: str, unit: float) -> float | None:
        return float(row[column]) * unit if row[column] else None

    return Gpu(
        name=row["name"],
        capability=row["capability"],
        limits=limits_of(row["capability"]),
        sm_count=int(row["sm_count"]),
        clock_hz=scaled("clock_mhz", 1e6),
        memory_bytes_per_second=scaled("memory_gb_per_second", 1e9),
        memory_bytes=scaled("memory_gb", 1e9),
        l2_bytes=int(float(row["l2_mib"]) * MIB) if row["l2_mib"] else None,
        peaks={dtype: float(row[column]) * 1e12 for dtype, column in PEAK_COLUMNS.items() if row[column]},
        source=row["source"],
    )


@cache
def _by_key() -> dict[str, Gpu]:
    """Every name and alias, as `_key` writes it."""
    names = {name: row["name"] for row in _rows("gpus.csv") for name in (row["name"], *row["aliases"].split("|")) if name}
    return {_key(name): _gpus()[product] for name, product in names.items()}
