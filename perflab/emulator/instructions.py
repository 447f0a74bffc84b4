"""The instruction table: opcode -> how its forms are read and what they compute. `decode` is the only entrance.

A reader takes a `Form` and uses up its modifiers; one that is left over is Unsupported, never ignored.
Source of all meanings: NVIDIA's PTX ISA 9.0. A new instruction is one entry in the table of its family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perflab.emulator.calculation import CALCULATION
from perflab.emulator.collectives import COLLECTIVES
from perflab.emulator.conversions import CONVERSION
from perflab.emulator.forms import Form
from perflab.emulator.operations import Operation
from perflab.emulator.ptx import Instruction
from perflab.emulator.selection import SELECTION
from perflab.emulator.traffic import TRAFFIC

FAMILIES: dict[str, dict[str, Callable[[Form], Operation]]] = {
    **CALCULATION, **CONVERSION, **SELECTION, **TRAFFIC, **COLLECTIVES}
TABLE = {opcode: reader for family in FAMILIES.values() for opcode, reader in family.items()}

ABSENT: dict[str, tuple[str, tuple[str, ...]]] = {
    "tensor cores": ("matrix instructions are not emulated yet", ("mma", "wmma", "ldmatrix", "stmatrix", "movmatrix")),
    "warpgroups": ("warpgroup instructions are not emulated yet", ("wgmma", "setmaxnreg")),
    "tensor memory": ("the tensor memory of sm_100 is not emulated yet", ("tcgen05",)),
    "asynchronous copies": ("asynchronous copies (cp.async, bulk, TMA) are not emulated yet", ("cp", "tensormap")),
    "mbarriers": ("mbarrier objects are not emulated yet", ("mbarrier",)),
    "clusters": ("clusters are not emulated yet", ("mapa", "getctarank", "clusterlaunchcontrol", "multimem")),
    "textures and surfaces": ("textures and surfaces are not emulated",
                              ("tex", "tld4", "txq", "istypep", "suld", "sust", "sured", "suq")),
    "indirect control": ("indirect branches are not emulated yet", ("brx",)),
    "video": ("video instructions are not emulated", (
        "vadd", "vsub", "vabsdiff", "vmin", "vmax", "vshl", "vshr", "vmad", "vset", "vadd2", "vsub2", "vavrg2", "vabsdiff2",
        "vmin2", "vmax2", "vset2", "vadd4", "vsub4", "vavrg4", "vmin4", "vmax4", "vset4")),
    "stack": ("a stack that moves is not emulated yet", ("alloca", "stacksave", "stackrestore")),
}
"""Family -> reason, opcodes: what is known to be missing."""
REASONS = {opcode: reason for reason, opcodes in ABSENT.values() for opcode in opcodes}

PARTLY = (
    ("conversion", "cvt.rs; e2m1x2, e2m3x2, e3m2x2, ue8m0x2; x4 forms", "4- and 6-bit floats, random rounding: not yet"),
    ("memory", "ld, st of .b128; .shared::cluster; st.async", "128-bit registers, clusters, asynchronous stores: not yet"),
    ("atomics", ".v2, .v4, .v8; .b128; min and max of floats", "vector and 128-bit atomics are not emulated yet"),
    ("barriers and fences", "barrier.cluster, fence.proxy (but .alias)", "clusters and asynchronous copies: not yet"),
    ("control", "call through a register", "indirect calls are not emulated yet"),
    ("moves and addresses", "isspacep.const; mov.b128", "constants share a window with global memory; 128 bits: not yet"),
)
"""Forms of known instructions that are missing: family, forms, reason."""


def decode(instruction: Instruction, registers: Mapping[str, int]) -> Operation:
    """What an instruction does. registers: name -> bits, of its function. Raises Unsupported with text, place and reason."""
    form = Form(instruction, registers)
    reader = TABLE.get(instruction.opcode)
    if reader is None:
        raise form.unsupported(REASONS.get(instruction.opcode, "the instruction is not known"))
    return reader(form)


def coverage() -> tuple[tuple[str, str, str], ...]:
    """Rows (family, instructions, 'emulated' or why not), for a table."""
    rows = [(family, ", ".join(readers), "emulated") for family, readers in FAMILIES.items()]
    rows += PARTLY
    return (*rows, *((family, ", ".join(opcodes), reason) for family, (reason, opcodes) in ABSENT.items()))
