"""The register tile, and what reads cache rows that lie in pages: it, row by row through the table, or on a copy made first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from perflab.gpus import Gpu
from perflab.kernel import Kernel, load
from perflab.studies import Launch, NotApplicable, Prediction, Scratch, Version, i32

from .parts import JOIN, Tiling, tiling_asked_bytes
from .problem import FLOAT, LATENT, ROPE, WIDTH, Shape

HERE = Path(__file__).parent
REGISTER_WARPS = 8
REGISTER_TILE = Tiling(
    load(HERE / "08_register_tile.cu", f"register_tile<{LATENT}, {ROPE}, {REGISTER_WARPS}>"), 0, 16,
    REGISTER_WARPS * 8 * WIDTH * FLOAT + 16 * (WIDTH + 8) * FLOAT + REGISTER_WARPS * 16 * 8 * FLOAT, REGISTER_WARPS * 8,
)


def written(totals: int, quads: int, keys: int, free: bool) -> Tiling:
    """The register tile's loop as 10_register_banks.cu can write it: totals a score, quads and keys a turn, sums free."""
    how = f"{totals}, {quads}, {keys}, {str(free).lower()}"
    kernel = load(HERE / "10_register_banks.cu", f"register_banks<{LATENT}, {ROPE}, {REGISTER_WARPS}, {how}>")
    return replace(REGISTER_TILE, kernel=kernel)


REGISTER_BANKS = written(1, 2, 1, True)  # the fastest of the 12 ways in what_held_it


# ---------------------------------------------------------------- cache rows in pages
PAGES = (1, 16, 64)
PAGED_ARGUMENTS = ("q", "kv", "page_table", "visible", "part_sum", "part_stats")
TOGETHER = replace(REGISTER_TILE, buffers=("q", "rows", "visible", "part_sum", "part_stats"))
IN_PAGES = (
    *(Shape(q_len=9, heads=heads, prefix=prefix, page=page)
      for prefix, pages in ((16384, PAGES), (65536, (1, 64))) for heads in (64, 8) for page in pages),
    *(Shape(batch=2, q_len=9, heads=8, prefix=1000, page=page) for page in PAGES),  # small: two tables, a page not full
)


def rows_in_pages(shape: Shape) -> None:
    """Raises NotApplicable at a shape whose cache rows lie together."""
    if not shape.page:
        raise NotApplicable(f"cache rows must lie in pages; page=0 has none: page={PAGES[0]}, or a version without pages")


def paged(page: int) -> Tiling:
    """The register tile that finds rows through the table, compiled for one size of a page."""
    kernel = load(HERE / "08_register_tile.cu", f"register_tile_paged<{LATENT}, {ROPE}, {REGISTER_WARPS}, {page}>")
    return replace(REGISTER_TILE, kernel=kernel, buffers=PAGED_ARGUMENTS)


def gather(page: int) -> Kernel:
    """The kernel that puts rows together, compiled for one size of a page."""
    return load(HERE / "09_gather_pages.cu", f"gather_pages<{WIDTH}, {page}>")


def paged_launches(shape: Shape, gpu: Gpu) -> list[Launch]:
    """As the register tile's, with the page table."""
    rows_in_pages(shape)
    return paged(shape.page).cut(shape, gpu)


def paged_scratch(shape: Shape, gpu: Gpu) -> dict[str, Scratch]:
    """The parts of the kernel for that size of a page."""
    return paged(shape.page or PAGES[-1]).scratch(shape, gpu)


def in_order_launches(shape: Shape, gpu: Gpu) -> list[Launch]:
    """As those of rows in pages, on rows that lie together."""
    rows_in_pages(shape)
    if shape.batch > 1:
        raise NotApplicable(f"the rows of {shape.batch} requests, lying together, fill no whole pages: batch=1")
    return replace(paged(shape.page), buffers=("q", "rows", "page_order", *PAGED_ARGUMENTS[3:])).cut(shape, gpu)


def gathered_launches(shape: Shape, gpu: Gpu) -> list[Launch]:
    """The copy, 16 rows a block; then the register tile on it."""
    rows_in_pages(shape)
    copy = Launch(gather(shape.page), (-(-shape.keys // 16), shape.batch), WIDTH // 2,
                  ("kv", "page_table", "gathered", i32(shape.keys)))
    return [copy, *replace(TOGETHER, buffers=("q", "gathered", *TOGETHER.buffers[2:])).cut(shape, gpu)]


def gathered_scratch(shape: Shape, gpu: Gpu) -> dict[str, Scratch]:
    """gathered [batch, keys, 576], and the parts."""
    return {"gathered": Scratch((shape.batch, shape.keys, WIDTH)), **TOGETHER.scratch(shape, gpu)}


def together_launches(shape: Shape, gpu: Gpu) -> list[Launch]:
    """The register tile's own, on the same cache rows lying together."""
    rows_in_pages(shape)
    return TOGETHER.cut(shape, gpu)


def paged_version(name: str, change: str, kernels: tuple[Kernel, ...], launches: Callable, scratch: Callable,
                  prediction: Prediction | None = None, asked_bytes: Callable | None = None) -> Version:
    """One way to read cache rows that lie in pages; its kernels are shown as compiled for the largest page."""
    return Version(name=name, kernels=(*kernels, JOIN), change=change, launches=launches, scratch=scratch,
                   prediction=prediction, asked_bytes=asked_bytes, sequence=lambda shape: shape.keys, shapes=IN_PAGES)


PAGED_VERSIONS = (
    paged_version(
        "register_tile_together", "what pages are compared with: the same cache rows, lying together",
        (REGISTER_TILE.kernel,), together_launches, TOGETHER.scratch,
        asked_bytes=tiling_asked_bytes(TOGETHER, TOGETHER.rows_a_block),
    ),
    paged_version(
        "register_tile_in_order", "each row found through a table, but of ids in order: the same rows, lying together",
        (paged(PAGES[-1]).kernel,), in_order_launches, paged_scratch,
    ),
    paged_version(
        "register_tile_paged", "each row found through the page table, in pages that lie scattered",
        (paged(PAGES[-1]).kernel,), paged_launches, paged_scratch,
        Prediction(
            over="register_tile_together", at=IN_PAGES[0], ratio=(0.93, 1.0),
            because="a row is 2,304 contiguous bytes even on a page of its own, and is asked for half a tile ahead",
        ),
    ),
    paged_version(
        "register_tile_gathered", "the pages copied together first, then the register tile",
        (gather(PAGES[-1]), REGISTER_TILE.kernel), gathered_launches, gathered_scratch,
        Prediction(
            over="register_tile_paged", at=IN_PAGES[0], ratio=(0.9, 0.99),
            because="the copy moves 76 MB, some 20 us, and takes more than it saves in one step",
        ),
    ),
)
