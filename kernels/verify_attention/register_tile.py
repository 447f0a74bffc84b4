"""The register tile, its loop in other registers, and the ways that read cache rows in pages: by the table, or off a copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from perflab.gpus import Gpu
from perflab.kernel import Kernel, load
from perflab.register_banks import RegisterBanks
from perflab.studies import Launch, NotApplicable, Prediction, Scratch, Version, i32

from .parts import JOIN, PART_ARGUMENTS, Tiling, tiling_asked_bytes
from .problem import FLOAT, LATENT, ROPE, WIDTH, Shape

HERE = Path(__file__).parent
PAGED_ARGUMENTS = ("q", "kv", "page_table", *PART_ARGUMENTS[2:])
REGISTER_WARPS = 8
REGISTER_TILE = Tiling(
    load(HERE / "08_register_tile.cu", f"register_tile<{LATENT}, {ROPE}, {REGISTER_WARPS}>"), 0, 16,
    REGISTER_WARPS * 8 * WIDTH * FLOAT + 16 * (WIDTH + 8) * FLOAT + REGISTER_WARPS * 16 * 8 * FLOAT, REGISTER_WARPS * 8,
)


def written(totals: int, quads: int, keys: int, free: bool, page: int = 0) -> Tiling:
    """The register tile's loop as 10_register_banks.cu can write it: totals a score, quads and keys a turn, sums free.

    page: rows of a page of the cache, 0 where the cache rows lie together.
    """
    how = ", ".join(map(str, (LATENT, ROPE, REGISTER_WARPS, totals, quads, keys, str(free).lower())))
    name = f"register_banks_paged<{how}, {page}>" if page else f"register_banks<{how}>"
    buffers = PAGED_ARGUMENTS if page else PART_ARGUMENTS
    return replace(REGISTER_TILE, kernel=load(HERE / "10_register_banks.cu", name), buffers=buffers)


FFMA_OF_SCORES, FFMA_OF_SUMS = 2304, 2048  # a warp and tile: 8 rows x 16 keys x 576 or 512 columns, of 32 lanes


def loop_clocks(banks: RegisterBanks) -> tuple[float, float]:
    """(clocks that the instructions take, clocks lost to banks) of a scheduler, in a warp's two loops, a tile.

    The loop over keys is there twice: for the last tiles, where it looks at each weight, and the shorter one for all others.
    """
    scores, *sums = (loop for loop in banks.loops if loop.ffma >= 128)
    shorter = min(sums, key=lambda loop: loop.instructions / loop.ffma)
    turns = ((FFMA_OF_SCORES / scores.ffma, scores), (FFMA_OF_SUMS / shorter.ffma, shorter))
    return (sum(times * loop.instructions for times, loop in turns),
            sum(times * (loop.clocks - loop.instructions) for times, loop in turns))


FASTEST = (1, 2, 1, True)  # of the 12 ways in what_held_it
REGISTER_BANKS = written(*FASTEST)


# ---------------------------------------------------------------- cache rows in pages
PAGES = (1, 16, 64)
TOGETHER = replace(REGISTER_BANKS, buffers=("q", "rows", *PART_ARGUMENTS[2:]))
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
    """The fastest way, finding rows through the table, compiled for one size of a page."""
    return written(*FASTEST, page)


def gather(page: int) -> Kernel:
    """The kernel that puts rows together, compiled for one size of a page."""
    return load(HERE / "09_gather_pages.cu", f"gather_pages<{WIDTH}, {page}>")


def paged_launches(shape: Shape, gpu: Gpu) -> list[Launch]:
    """As without pages, with the page table."""
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
    """The copy, 16 rows a block; then the attention on it."""
    rows_in_pages(shape)
    copy = Launch(gather(shape.page), (-(-shape.keys // 16), shape.batch), WIDTH // 2,
                  ("kv", "page_table", "gathered", i32(shape.keys)))
    return [copy, *replace(TOGETHER, buffers=("q", "gathered", *TOGETHER.buffers[2:])).cut(shape, gpu)]


def gathered_scratch(shape: Shape, gpu: Gpu) -> dict[str, Scratch]:
    """gathered [batch, keys, 576], and the parts."""
    return {"gathered": Scratch((shape.batch, shape.keys, WIDTH)), **TOGETHER.scratch(shape, gpu)}


def together_launches(shape: Shape, gpu: Gpu) -> list[Launch]:
    """Those without pages, on the same cache rows lying together."""
    rows_in_pages(shape)
    return TOGETHER.cut(shape, gpu)


def paged_version(name: str, change: str, kernels: tuple[Kernel, ...], launches: Callable, scratch: Callable,
                  prediction: Prediction | None = None, asked_bytes: Callable | None = None) -> Version:
    """One way to read cache rows that lie in pages; its kernels are shown as compiled for the largest page."""
    return Version(name=name, kernels=(*kernels, JOIN), change=change, launches=launches, scratch=scratch,
                   prediction=prediction, asked_bytes=asked_bytes, sequence=lambda shape: shape.keys, shapes=IN_PAGES)


PAGED_VERSIONS = (
    paged_version(
        "register_banks_together", "what pages are compared with: the same cache rows, lying together",
        (TOGETHER.kernel,), together_launches, TOGETHER.scratch,
        asked_bytes=tiling_asked_bytes(TOGETHER, TOGETHER.rows_a_block),
    ),
    paged_version(
        "register_banks_in_order", "each row found through a table, but of ids in order: the same rows, lying together",
        (paged(PAGES[-1]).kernel,), in_order_launches, paged_scratch,
    ),
    paged_version(
        "register_banks_paged", "each row found through the page table, in pages that lie scattered",
        (paged(PAGES[-1]).kernel,), paged_launches, paged_scratch,
        Prediction(
            over="register_banks_together", at=IN_PAGES[0], ratio=(0.955, 0.978),
            because="the lookup took 16 us of register_tile, and its loop loses 135 clocks a tile more to banks here: half of "
            "them cost time",
        ),
    ),
    paged_version(
        "register_banks_gathered", "the pages copied together first, then read as those",
        (gather(PAGES[-1]), TOGETHER.kernel), gathered_launches, gathered_scratch,
        Prediction(
            over="register_banks_paged", at=IN_PAGES[0], ratio=(0.985, 1.01),
            because="the copy takes 20 us, as before register_tile, and saves about as much in one step",
        ),
    ),
)
