"""`Operation`: what one instruction does, decoded. The machines run these; `instructions.py` makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perflab.emulator.ptx import Address, Instruction, Operand
from perflab.errors import PerflabError


class Unsupported(PerflabError):
    """An instruction that the emulator cannot do yet: instruction, source line and reason. Never a wrong answer instead."""


@dataclass(frozen=True)
class Typed:
    """An operand and the type it is read or written as: 'pred', 'u8' … 'u64', 's8' … 's64', 'f16', 'bf16', 'f32', 'f64'.

    'f16' and 'bf16' are held as their 16 bits (numpy uint16); 'f16x2' and the like as 'u32'. A register wider than the type
    gives its low bits when read and is zero-extended when written (sign-extended for 's…').
    """

    operand: Operand
    type: str


@dataclass(frozen=True)
class Operation:
    """One instruction, decoded for the machines.

    role       'compute'      outputs = compute(*inputs), elementwise on numpy arrays of any one shape
               'load', 'store', 'atomic' (with and without a result: atom, red)
               'branch' (target: label), 'exit' (ret and exit), 'trap', 'nothing' (pragmas, prefetches, nanosleep)
               'barrier'      bar/barrier.sync|arrive|red: see `barrier`; inputs: id, thread count where given, predicate
               'warp_barrier' bar.warp.sync: inputs: member mask
               'collective'   shfl, vote, match, redux, activemask, elect: the whole warp at once, see `compute`
               'fence'        membar, fence
               'call'         a system function (vprintf, __assertfail, malloc, free): `target` is its name
    category   class for the counts: 'float32', 'float64', 'half' (f16, bf16), 'integer', 'logic', 'compare', 'move', 'convert',
               'special' (ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh, div of floats), 'load', 'store', 'atomic', 'branch',
               'barrier', 'collective', 'fence', 'other'
    compute    'compute': arrays in, tuple of arrays out, dtypes as `inputs`/`outputs` say (numpy names for u/s/f32/f64, bool of
               pred, uint16 for f16 and bf16). 'collective': (active [n, 32] bool, *inputs [n, 32]) -> tuple of outputs [n, 32],
               with an extra last array [n, 32] bool: lanes that read from an absent lane. 'atomic': (old, *values) -> new,
               elementwise. None otherwise.
    flops      FLOPs a lane: fma 2, add/sub/mul 1, packed ones twice that, all else 0; flop_kind 'fma', 'add' or 'mul',
               flop_type 'f32', 'f64', 'f16' or 'bf16'
    members    collectives: index into `inputs` of the member mask; None for activemask (all active lanes)
    memory     for loads, stores and atomics
    """

    instruction: Instruction
    role: str
    category: str
    inputs: tuple[Typed, ...] = ()
    outputs: tuple[Typed, ...] = ()
    compute: Callable[..., tuple[Any, ...]] | None = None
    flops: int = 0
    flop_kind: str = ""
    flop_type: str = ""
    target: str = ""
    members: int | None = None
    memory: Memory | None = None
    barrier: str = ""  # 'sync', 'arrive', 'red.popc', 'red.and', 'red.or'


@dataclass(frozen=True)
class Memory:
    """The memory side of a load, store or atomic.

    space      'global', 'shared', 'local', 'const', 'param', 'generic' (per lane, by the window the address lies in)
    type       type of an element in memory ('b…' is given as 'u…'); size_bytes: of an element
    elements   1, 2, 4 or 8: a lane moves elements * size_bytes, aligned to that
    read_only  ld.global.nc, ldu: data that the kernel must not write
    strong     volatile, relaxed, acquire, release: may be used to communicate; atomics always are
    acquires, releases: by the instruction itself (ld.acquire, st.release, atom.acq_rel)
    A load's outputs are its elements; a store's inputs are its elements; an atomic's inputs are its values (cas: compare, new).
    """

    space: str
    address: Address
    type: str
    size_bytes: int
    elements: int = 1
    read_only: bool = False
    strong: bool = False
    acquires: bool = False
    releases: bool = False
    scope: str = ""  # 'cta', 'cluster', 'gpu', 'sys'
