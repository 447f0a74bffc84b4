"""The rules by which an SM hands out its resources to blocks, written once for plain numbers and for numpy arrays.

They are checked against NVIDIA's own calculator, `cuda_occupancy.h` of the CUDA 13.0 toolkit, in
tests/test_occupancy_oracle.py. One thing is decided otherwise: 256 registers a thread are refused, as the programming
guide says (255); the header lets them pass. Thread-block clusters are not covered, they depend on the very chip.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perflab.errors import PerflabError
from perflab.gpus import Limits

if TYPE_CHECKING:
    import numpy as np

WARP = 32
NAMED_BARRIERS = 16  # that one block can name, PTX `barrier`
NO_LIMIT = 2**31 - 1
RESOURCES = ("warps", "registers", "shared_memory", "blocks", "barriers")


@dataclass(frozen=True)
class Demand:
    """What one block asks of an SM. Bytes for shared memory; the numbers may be arrays inside `occupancy_grid`.

    max_dynamic_shared: the kernel's own limit (cudaFuncAttributeMaxDynamicSharedMemorySize); None = all there is.
    shared_optin: False = the kernel did not opt in to more than 48 KB. barriers: those it names, 1 = __syncthreads.
    carveout: percent of the SM's shared memory asked for; None = the driver's choice, taken at its best: all of it.
    """

    threads: Any
    registers: Any
    static_shared: Any = 0
    dynamic_shared: Any = 0
    max_dynamic_shared: Any = None
    shared_optin: Any = True
    barriers: Any = 1
    carveout: Any = None

    @property
    def warps(self) -> Any:
        return round_up(self.threads, WARP) // WARP

    @property
    def shared(self) -> Any:
        return self.static_shared + self.dynamic_shared


class Scalars:
    """The one array function that the rules need, for plain numbers: numpy is not imported for a single answer."""

    @staticmethod
    def where(condition: Any, yes: Any, no: Any) -> Any:
        return yes if condition else no


def round_up(value: Any, unit: int) -> Any:
    return (value + (unit - 1)) // unit * unit


def _fits(ops: Any, have: Any, each: Any) -> Any:
    """How many of size `each` fit into `have`; what takes nothing is not limited."""
    return ops.where(each > 0, have // ops.where(each > 0, each, 1), NO_LIMIT)


def registers_per_warp(sm: Limits, want: Demand) -> Any:
    return round_up(want.registers * WARP, sm.register_unit)


def register_limit(ops: Any, sm: Limits, want: Demand) -> Any:
    """Registers are handed to whole warps, from the register file of one sub-partition (a quarter of the SM)."""
    per_warp = registers_per_warp(sm, want)
    held = _fits(ops, sm.registers_per_sm // sm.sub_partitions, per_warp) * sm.sub_partitions // want.warps
    # At launch the hardware counts as if all sub-partitions held as many warps as the fullest one.
    within = per_warp * round_up(want.warps, sm.sub_partitions) <= sm.registers_per_block
    launches = within & (want.registers <= sm.registers_per_thread)
    return ops.where(launches, ops.where(want.registers > 0, held, NO_LIMIT), 0)


def shared_allocated(sm: Limits, want: Demand) -> Any:
    return round_up(want.shared + sm.shared_reserved_bytes, sm.shared_unit_bytes)


def shared_capacity(ops: Any, sm: Limits, want: Demand) -> Any:
    """Shared memory an SM has under the carve-out: the asked percentage or one block, rounded up to a size there is."""
    if want.carveout is None:
        return sm.shared_per_sm_bytes
    asked, one_block = want.carveout * sm.shared_per_sm_bytes // 100, shared_allocated(sm, want)
    needed = ops.where(asked > one_block, asked, one_block)
    size = sm.carveout_bytes[-1]
    for smaller in reversed(sm.carveout_bytes[:-1]):
        size = ops.where(needed <= smaller, smaller, size)
    return ops.where(want.carveout < 0, sm.shared_per_sm_bytes, size)


def shared_limit(ops: Any, sm: Limits, want: Demand) -> Any:
    allocated = shared_allocated(sm, want)
    per_block = ops.where(want.shared_optin, sm.shared_per_block_optin_bytes, sm.shared_per_block_bytes)
    launches = allocated <= per_block + sm.shared_reserved_bytes
    if want.max_dynamic_shared is not None:
        launches = launches & ((want.dynamic_shared <= want.max_dynamic_shared) | (want.shared_optin == 0))
    return ops.where(launches, _fits(ops, shared_capacity(ops, sm, want), allocated), 0)


def block_limits(ops: Any, sm: Limits, want: Demand) -> dict[str, Any]:
    """Blocks an SM holds by each resource alone, in the order of RESOURCES; NO_LIMIT where it does not matter."""
    return {
        "warps": ops.where(want.threads > sm.threads_per_block, 0, sm.warps_per_sm // want.warps),
        "registers": register_limit(ops, sm, want),
        "shared_memory": shared_limit(ops, sm, want),
        "blocks": sm.blocks_per_sm,
        "barriers": NO_LIMIT if sm.barriers_per_sm is None else _fits(ops, sm.barriers_per_sm, want.barriers),
    }


def amounts(what: str, values: Any, low: int = 0, high: int | None = None) -> np.ndarray:
    """`values` as an array of whole numbers from `low` to `high`; PerflabError for others."""
    import numpy as np

    array = np.asarray(values)
    if not np.issubdtype(array.dtype, np.integer):
        raise PerflabError(f"{what} are whole numbers, got {array.dtype}")
    for extreme in (array.min(), array.max()):
        amount(what, extreme, low, high)
    return array.astype(np.int64, copy=False)


def amount(what: str, value: Any, low: int = 0, high: int | None = None) -> int:
    """`value` as a whole number from `low` to `high`; PerflabError for others."""
    try:
        number = operator.index(value)
    except TypeError:
        raise PerflabError(f"{what}={value!r}: a whole number is needed") from None
    if number < low or (high is not None and number > high):
        allowed = f"at least {low}" if high is None else f"{low} to {high}"
        raise PerflabError(f"{what}={number:,}: {allowed} is allowed")
    return number


def volume(what: str, shape: Any) -> int:
    """The product of a number or of (x, y, z)."""
    sides = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if not 1 <= len(sides) <= 3:
        raise PerflabError(f"{what}={shape!r}: one to three numbers are needed, x, y and z")
    if what == "block" and len(sides) == 3:
        amount("block z", sides[2], 1, 64)
    return math.prod(amount(what, side, 1) for side in sides)
