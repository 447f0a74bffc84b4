"""The memory of an emulated GPU: one arena with gaps between buffers, and what is known of every byte of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

GLOBAL_BASE = 1 << 40  # a device address of the global arena is GLOBAL_BASE + offset; 0 and small numbers lie nowhere
SHARED_WINDOW = 1 << 32  # generic addresses of shared memory: SHARED_WINDOW + offset; plain shared addresses are offsets
LOCAL_WINDOW = 2 << 32  # the same for a thread's local memory
PARAM_WINDOW = 3 << 32  # the same for the parameter block (cvta.param)
WINDOW_BYTES = 1 << 32
ALIGN_BYTES = 512  # what cudaMalloc gives at least; sectors are counted from such bases
GAP_BYTES = 1 << 16  # between buffers, so that a stray access falls into nothing

# What is known of a byte: bits of `Arena.flags` (shared memory uses INITIALISED alone).
ALLOCATED, INITIALISED, READ, WRITTEN, READ_ONLY = 1, 2, 4, 8, 16
"""READ: loaded before this launch wrote it; WRITTEN: stored by this launch; READ_ONLY: loaded through ld.global.nc."""


@dataclass(frozen=True)
class Buffer:
    """One allocation. offset: into the arena; address: what the kernel gets."""

    name: str
    offset: int
    size_bytes: int
    constant: bool = False

    @property
    def address(self) -> int:
        """The device address of its first byte."""
        return GLOBAL_BASE + self.offset


class Arena:
    """All global and constant memory of a run: `bytes` and `flags`, uint8 [size] each, and the buffers in it.

    sizes: name -> bytes; constant: names of those in constant memory. Contents are copied in with `fill`, which marks them
    as initialised; what is not filled is allocated but uninitialised.
    """

    def __init__(self, sizes: Mapping[str, int], constant: frozenset[str] = frozenset()) -> None:
        self.buffers: dict[str, Buffer] = {}
        end = GAP_BYTES
        for name, size in sizes.items():
            self.buffers[name] = Buffer(name, end, size, name in constant)
            end = -(-(end + size + GAP_BYTES) // ALIGN_BYTES) * ALIGN_BYTES
        self.bytes = np.zeros(end, np.uint8)  # pages that nobody touches cost nothing
        self.flags = np.zeros(end, np.uint8)
        for buffer in self.buffers.values():
            self.flags[buffer.offset : buffer.offset + buffer.size_bytes] = ALLOCATED

    def fill(self, name: str, content: np.ndarray | bytes) -> None:
        """Copy content into a buffer from its start and mark it as initialised."""
        data = np.frombuffer(content, np.uint8) if isinstance(content, bytes) else np.ascontiguousarray(content).view(np.uint8)
        first = self.buffers[name].offset
        self.bytes[first : first + data.size] = data.reshape(-1)
        self.flags[first : first + data.size] |= INITIALISED

    def content(self, name: str) -> np.ndarray:
        """A view of a buffer's bytes."""
        buffer = self.buffers[name]
        return self.bytes[buffer.offset : buffer.offset + buffer.size_bytes]

    def known(self, name: str) -> np.ndarray:
        """A view of a buffer's flags."""
        buffer = self.buffers[name]
        return self.flags[buffer.offset : buffer.offset + buffer.size_bytes]

    def begin_launch(self) -> None:
        """Forget what the launch before read and wrote; what is initialised stays so."""
        self.flags &= ALLOCATED | INITIALISED

    def where(self, address: int) -> str:
        """A device address in words: 'byte 4,096 of kv (4,096 B)', 'beyond every buffer; the nearest is …'."""
        offset = address - GLOBAL_BASE
        if not self.buffers:
            return f"address {address:#x}, and the launch has no buffers"
        near = min(self.buffers.values(), key=lambda b: max(b.offset - offset, offset - b.offset - b.size_bytes + 1, 0))
        if 0 <= offset - near.offset < near.size_bytes:
            return f"byte {offset - near.offset:,} of {near.name} ({near.size_bytes:,} B)"
        if 0 <= offset < self.bytes.size:
            side = f"{near.offset - offset:,} B before" if offset < near.offset else (
                f"{offset - near.offset - near.size_bytes:,} B after the end of")
            return f"{side} {near.name} ({near.size_bytes:,} B)"
        return f"address {address:#x}, far from every buffer"
