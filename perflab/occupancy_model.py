"""How many blocks of a kernel an SM holds at once, what limits it, and the cheapest change that gains a block."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from perflab import occupancy_rules as rules
from perflab.errors import PerflabError
from perflab.gpus import Gpu, Limits
from perflab.gpus import gpu as find_gpu
from perflab.occupancy_rules import NAMED_BARRIERS, NO_LIMIT, RESOURCES, WARP, Demand, Scalars
from perflab.origins import Origin
from perflab.tables import Shown, Table, percent

if TYPE_CHECKING:
    import numpy as np

TITLES = dict(zip(RESOURCES, ("warps", "registers", "shared memory", "block slots", "barriers"), strict=True))


@dataclass(frozen=True)
class Occupancy(Shown):
    """Blocks and warps that one SM holds, and why.

    limits:   blocks by each resource alone (warps, registers, shared_memory, blocks, barriers); None = no limit
    limiters: the resources whose limit equals `blocks_per_sm`
    grid:     blocks of the launch, or None
    """

    gpu: Gpu
    demand: Demand
    blocks_per_sm: int
    limits: Mapping[str, int | None] = field(hash=False)
    limiters: tuple[str, ...]
    grid: int | None = None

    @property
    def limited_by(self) -> str:
        """The limiters in words: 'registers and shared memory'."""
        return " and ".join(TITLES[name] for name in self.limiters)

    @property
    def warps_per_sm(self) -> int:
        return self.blocks_per_sm * self.demand.warps

    @property
    def fraction(self) -> float:
        """Resident warps over the warps an SM can hold, 0 to 1."""
        return self.warps_per_sm / self.gpu.limits.warps_per_sm

    @property
    def waves(self) -> float | None:
        """Grid over the blocks the whole GPU holds at once; None without a grid or when nothing can launch."""
        if self.grid is None or not self.blocks_per_sm or self.gpu.sm_count is None:
            return None
        return self.grid / (self.gpu.sm_count * self.blocks_per_sm)

    @property
    def tail_efficiency(self) -> float | None:
        """Waves over whole waves: the share of the block slots that the launch fills, were all blocks equally long."""
        return None if self.waves is None else self.waves / math.ceil(self.waves)

    @property
    def reason(self) -> str:
        """Why no block can launch, in words; '' when one can."""
        return "; ".join(_refusals(self.gpu, self.demand)) if self.blocks_per_sm == 0 else ""

    @property
    def steps(self) -> tuple[tuple[str, Occupancy], ...]:
        """The cheapest change in each way that holds more, in words, and the model's answer to it."""
        return tuple(_steps(self))

    @property
    def origin(self) -> Origin:
        return Origin("calculated", f"occupancy rules of {self.gpu.architecture}")

    def explain(self) -> Table:
        """The allocation arithmetic of every resource, and below it the next cheaper step of each kind."""
        rows = [(TITLES[name], self.limits[name], self._limits(name), how) for name, _, _, how in _allocations(self)]
        gains = [f"to gain: {words}" for words, _ in self.steps] or ["no change of one kind holds more on an SM"]
        if self.fraction == 1:
            gains = ["every warp slot is taken: there is no occupancy to gain"]
        columns = ("resource", "blocks", "", "because")
        return Table(_headline(self), columns, rows, str(self.origin), [*_remarks(self), *gains])

    def table(self) -> Table:
        """One row a resource: what a block takes, what an SM has, how many blocks that is."""
        rows = [(TITLES[name], takes, has, self.limits[name], self._limits(name)) for name, takes, has, _ in _allocations(self)]
        columns = ("resource", "a block takes", "an SM has", "blocks", "")
        return Table(_headline(self), columns, rows, str(self.origin), _remarks(self))

    def _limits(self, resource: str) -> str:
        return "limits" if resource in self.limiters else ""


def occupancy(
    gpu: str | Gpu | Sequence[str | Gpu] = "sm_90",
    block: int | Sequence[int] = 256,
    registers: int = 64,
    static_shared: int = 0,
    dynamic_shared: int = 0,
    max_dynamic_shared: int | None = None,
    shared_optin: bool = True,
    barriers: int = 1,
    carveout: int | None = None,
    grid: int | Sequence[int] | None = None,
) -> Any:
    """What an SM holds of blocks of that size and use: an `Occupancy`; for a list of GPUs a `Table`, one row a GPU.

    block, grid: a number or (x, y, z). registers: a thread. Shared memory in bytes a block. The rest: see `Demand`.
    grid gives waves and tail, so it needs a product, not an architecture. What cannot launch has 0 blocks and a
    `reason`; what no GPU could mean (a negative amount, an empty block) raises PerflabError.
    """
    demand = Demand(
        rules.volume("block", block),
        rules.amount("registers", registers),
        rules.amount("static_shared", static_shared),
        rules.amount("dynamic_shared", dynamic_shared),
        None if max_dynamic_shared is None else rules.amount("max_dynamic_shared", max_dynamic_shared),
        bool(shared_optin),
        rules.amount("barriers", barriers, 0, NAMED_BARRIERS),
        None if carveout is None else rules.amount("carveout", carveout, 0, 100),
    )
    blocks = None if grid is None else rules.volume("grid", grid)
    if isinstance(gpu, (str, Gpu)):
        return occupancy_of(find_gpu(gpu), demand, blocks)
    return comparison([occupancy_of(find_gpu(one), demand, blocks) for one in gpu])


def occupancy_of(gpu: Gpu, demand: Demand, grid: int | None = None) -> Occupancy:
    """What one SM of `gpu` holds of blocks with that demand. Raises PerflabError for a grid without an SM count."""
    if grid is not None and gpu.sm_count is None:
        raise PerflabError(
            f'waves of {grid:,} blocks need an SM count, and "{gpu.name}" is an architecture: '
            'name a product such as "H200", or leave out grid'
        )
    limits = rules.block_limits(Scalars, gpu.limits, demand)
    blocks = min(limits.values())
    shown = {name: None if limit >= NO_LIMIT else int(limit) for name, limit in limits.items()}
    return Occupancy(gpu, demand, blocks, shown, tuple(n for n in RESOURCES if limits[n] == blocks), grid)


def largest_dynamic_shared(
    gpu: str | Gpu = "sm_90",
    block: int | Sequence[int] = 256,
    registers: int = 64,
    blocks_per_sm: int = 1,
    static_shared: int = 0,
) -> int:
    """The most dynamic shared memory, in bytes, with which an SM still holds that many blocks.

    Unlike cudaOccAvailableDynamicSMemPerBlock of CUDA 13.0 it counts the reserved part of every block. Raises
    PerflabError where no amount does, and says what stands in the way.
    """
    wanted = rules.amount("blocks_per_sm", blocks_per_sm, 1)
    bare = occupancy(find_gpu(gpu), block, registers, static_shared)
    if bare.blocks_per_sm < wanted:
        why = bare.reason or f"limited by {bare.limited_by}"
        raise PerflabError(
            f"{wanted} blocks per SM on {bare.gpu.name}: "
            f"even without dynamic shared memory an SM holds {bare.blocks_per_sm} ({why})"
        )
    most = _largest_shared(bare.gpu.limits, bare.demand, wanted)
    return most.dynamic_shared if most else 0


@dataclass(frozen=True)
class OccupancyGrid:
    """Occupancy over arrays: every field has the broadcast shape of the arguments.

    limiter_bits: bit k is set where RESOURCES[k] limits. limits: blocks by each resource alone, NO_LIMIT where none.
    """

    gpu: Gpu
    blocks_per_sm: np.ndarray
    warps_per_sm: np.ndarray
    limiter_bits: np.ndarray
    limits: Mapping[str, np.ndarray]

    @property
    def fraction(self) -> np.ndarray:
        """Resident warps over the warps an SM can hold, 0 to 1."""
        return self.warps_per_sm / self.gpu.limits.warps_per_sm

    @property
    def limiters(self) -> np.ndarray:
        """The limiters by name, as 'registers+shared_memory'."""
        import numpy as np

        combinations = range(2 ** len(RESOURCES))
        names = ["+".join(n for k, n in enumerate(RESOURCES) if bits >> k & 1) for bits in combinations]
        return np.array(names)[self.limiter_bits]


def occupancy_grid(
    gpu: str | Gpu = "sm_90",
    *,
    block: Any = 256,
    registers: Any = 64,
    static_shared: Any = 0,
    dynamic_shared: Any = 0,
    max_dynamic_shared: Any = None,
    shared_optin: Any = True,
    barriers: Any = 1,
    carveout: Any = None,
) -> OccupancyGrid:
    """`occupancy` over whole numbers or arrays of them that broadcast together; block in threads.

    As for `occupancy`, but a carveout of -1 stands for None. Raises PerflabError for amounts no GPU could mean.
    """
    import numpy as np

    found = find_gpu(gpu)
    demand = Demand(
        rules.amounts("block", block, 1),
        rules.amounts("registers", registers),
        rules.amounts("static_shared", static_shared),
        rules.amounts("dynamic_shared", dynamic_shared),
        None if max_dynamic_shared is None else rules.amounts("max_dynamic_shared", max_dynamic_shared),
        np.asarray(shared_optin, dtype=bool),
        rules.amounts("barriers", barriers, 0, NAMED_BARRIERS),
        None if carveout is None else rules.amounts("carveout", carveout, -1, 100),
    )
    every = np.broadcast_arrays(*rules.block_limits(np, found.limits, demand).values(), demand.threads)
    limits = dict(zip(RESOURCES, every[:-1], strict=True))
    blocks = np.minimum.reduce(list(limits.values()))
    bits = sum((limit == blocks).astype(np.uint8) << k for k, limit in enumerate(limits.values()))
    return OccupancyGrid(found, blocks, blocks * demand.warps, np.asarray(bits), limits)


def _refusals(gpu: Gpu, want: Demand) -> Iterator[str]:
    """Why no block with that demand launches: every cause, with what is asked and what is allowed."""
    sm, allow = gpu.limits, f"{gpu.name} allows"
    if want.threads > sm.threads_per_block:
        yield f"{want.threads:,} threads a block, {allow} {sm.threads_per_block:,}"
    if want.registers > sm.registers_per_thread:
        yield f"{want.registers} registers a thread, {allow} {sm.registers_per_thread}"
    elif rules.register_limit(Scalars, sm, want) == 0:
        per_warp, warps = rules.registers_per_warp(sm, want), rules.round_up(want.warps, sm.sub_partitions)
        yield (
            f"{warps} warps ({want.warps} rounded up to the {sm.sub_partitions} sub-partitions) x {per_warp:,} "
            f"registers = {warps * per_warp:,}, {allow} {sm.registers_per_block:,} a block"
        )
    if rules.shared_limit(Scalars, sm, want) == 0:
        if want.shared > sm.shared_per_block_optin_bytes:
            yield f"{want.shared:,} B of shared memory a block, {allow} {sm.shared_per_block_optin_bytes:,} B"
        elif want.shared_optin:
            asked, limit = want.dynamic_shared, want.max_dynamic_shared
            yield f"{asked:,} B of dynamic shared memory, this kernel's limit was set to {limit:,} B"
        else:
            yield f"{want.shared:,} B of shared memory a block, {allow} {sm.shared_per_block_bytes:,} B without opting in"


def _headline(found: Occupancy) -> str:
    gpu, want = found.gpu, found.demand
    name = gpu.name if gpu.sm_count is None else f"{gpu.name} ({gpu.architecture})"
    return (
        f"{name}, {want.threads:,} threads x {want.registers} registers: "
        f"{_count(found.blocks_per_sm, 'block')} per SM, "
        f"{found.warps_per_sm} of {gpu.limits.warps_per_sm} warps ({percent(found.fraction)}), "
        f"limited by {found.limited_by}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _allocations(found: Occupancy) -> Iterator[tuple[str, str, str, str]]:
    """(resource, what a block takes, what an SM has, how one comes from the other), in the order of RESOURCES."""
    sm, want = found.gpu.limits, found.demand
    how = f"{want.threads:,} threads -> {_count(want.warps, 'warp')} of {sm.warps_per_sm}"
    yield "warps", f"{want.warps}", f"{sm.warps_per_sm}", how
    per_warp, part = rules.registers_per_warp(sm, want), sm.registers_per_sm // sm.sub_partitions
    how = f"{want.registers} registers x {WARP} lanes -> {per_warp:,} a warp (unit {sm.register_unit})"
    if per_warp:
        held = part // per_warp
        how += f" -> {held} warps per quarter of the register file ({part:,}) -> {held * sm.sub_partitions} warps"
    yield "registers", f"{per_warp * want.warps:,}", f"{sm.registers_per_sm:,}", how
    takes, has = f"{rules.shared_allocated(sm, want):,} B", f"{rules.shared_capacity(Scalars, sm, want):,} B"
    asked = f"{want.static_shared:,} B static + {want.dynamic_shared:,} B dynamic"
    how = f"{asked} + {sm.shared_reserved_bytes:,} B reserved -> {takes} (unit {sm.shared_unit_bytes}) of {has}"
    yield "shared_memory", takes, has, how
    yield "blocks", "1", f"{sm.blocks_per_sm}", f"{sm.blocks_per_sm} slots"
    pool = "-" if sm.barriers_per_sm is None else f"{sm.barriers_per_sm}"
    yield "barriers", f"{want.barriers}", pool, f"{want.barriers} a block of {pool}"


def _remarks(found: Occupancy) -> list[str]:
    """What a reader must know besides the numbers: why nothing launches, idle lanes, the carve-out trap, waves."""
    want, sm = found.demand, found.gpu.limits
    lines = [f"cannot launch: {found.reason}"] if found.reason else []
    lanes = want.warps * WARP
    if lanes > want.threads:
        lines.append(f"{lanes - want.threads} of {lanes} lanes idle: {want.threads} is no multiple of {WARP}")
    if want.carveout is not None and "shared_memory" in found.limiters:
        lines.append(
            f"a carve-out of {want.carveout} % leaves {rules.shared_capacity(Scalars, sm, want):,} B, and every block "
            f"takes {sm.shared_reserved_bytes:,} B besides what the kernel asks"
        )
    if found.waves is not None:
        lines.append(
            f"{_count(found.grid or 0, 'block')} on {found.gpu.sm_count} SMs: {found.waves:.2f} waves, "
            f"tail efficiency {percent(found.tail_efficiency)}"
        )
    return lines


def _steps(found: Occupancy) -> Iterator[tuple[str, Occupancy]]:
    """(words, what the model then says) for each way of holding more: only what the model confirms."""
    for change, demand in _changes(found):
        tried = occupancy_of(found.gpu, demand)
        if tried.warps_per_sm > found.warps_per_sm:
            is_one_more = demand.threads == found.demand.threads and tried.blocks_per_sm == found.blocks_per_sm + 1
            number = _ordinal(tried.blocks_per_sm) if is_one_more else f"{tried.blocks_per_sm}"
            verb = "block fits" if is_one_more or tried.blocks_per_sm == 1 else "blocks fit"
            yield f"{change} {number} {verb}: {tried.warps_per_sm} of {found.gpu.limits.warps_per_sm} warps", tried


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number not in (11, 12, 13) else "th"
    return f"{'an' if number in (8, 11, 18) else 'a'} {number}{ending}"


def _changes(found: Occupancy) -> Iterator[tuple[str, Demand]]:
    """Changes to try: of all that limits, together; of the limits that were set; a smaller and a larger block."""
    want, sm = found.demand, found.gpu.limits
    relaxed: Demand | None = want
    for name in found.limiters:
        relaxed = relaxed and _milder(sm, relaxed, name, found.blocks_per_sm + 1)
    if relaxed:
        yield f"at {' and '.join(_less(want, relaxed))}", relaxed
    if "shared_memory" in found.limiters and want.carveout is not None:
        yield "with a carve-out of 100 %", replace(want, carveout=100)
    if "shared_memory" in found.limiters and (want.max_dynamic_shared is not None or not want.shared_optin):
        raised = replace(want, max_dynamic_shared=None, shared_optin=True)
        yield "with the limit of dynamic shared memory raised", raised
    smaller = range((want.threads - 1) // WARP * WARP, 0, -WARP)
    for sizes in (smaller, range((want.warps + 1) * WARP, sm.threads_per_block + 1, WARP)):
        blocks = [replace(want, threads=threads) for threads in sizes]
        if blocks:
            best = max(blocks, key=lambda demand: occupancy_of(found.gpu, demand).warps_per_sm)  # the nearest of equals
            yield f"with {best.threads} threads", best


def _less(want: Demand, relaxed: Demand) -> Iterator[str]:
    """What is less in `relaxed`, in words."""
    if relaxed.registers < want.registers:
        yield f"<= {_count(relaxed.registers, 'register')}"
    if relaxed.shared < want.shared:
        yield f"<= {relaxed.shared:,} B of shared memory"
    if relaxed.barriers < want.barriers:
        yield f"<= {_count(relaxed.barriers, 'barrier')}"


def _milder(sm: Limits, want: Demand, resource: str, blocks: int) -> Demand | None:
    """`want` with just so much less of one resource that this allows `blocks`; None where no amount does."""
    if resource == "registers":
        return _largest(range(1, want.registers), lambda n: replace(want, registers=n), resource, sm, blocks)
    if resource == "barriers":
        return _largest(range(want.barriers), lambda n: replace(want, barriers=n), resource, sm, blocks)
    return _largest_shared(sm, want, blocks) if resource == "shared_memory" else None


def _largest_shared(sm: Limits, want: Demand, blocks: int) -> Demand | None:
    """`want` with the most shared memory that allows `blocks`: static as far as it goes, the rest dynamic."""

    def with_shared(total: int) -> Demand:
        static = min(want.static_shared, total)
        return replace(want, static_shared=static, dynamic_shared=total - static)

    return _largest(range(sm.shared_per_block_optin_bytes + 1), with_shared, "shared_memory", sm, blocks)


def _largest(amounts: range, demand: Callable[[int], Demand], resource: str, sm: Limits, blocks: int) -> Demand | None:
    """The demand with the largest of `amounts` at which the resource allows `blocks`: less of it never allows fewer."""

    def is_too_much(amount: int) -> bool:
        return rules.block_limits(Scalars, sm, demand(amount))[resource] < blocks

    count = bisect_left(amounts, True, key=is_too_much)
    return demand(amounts[count - 1]) if count else None


def comparison(found: Sequence[Occupancy]) -> Table:
    """One row a GPU: the same block on each, its registers as compiled there; waves and tail where there is a grid."""
    if not found:
        raise PerflabError('an empty list of GPUs: name at least one, as in gpu=["H200", "sm_120"]')
    want = found[0].demand
    rows: list[list[object]] = []
    shown = slice(-2 if found[0].grid is None else None)
    columns = ("GPU", "architecture", "registers", "blocks/SM", "warps/SM", "occupancy", "limited by", "waves", "tail")
    for one in found:
        warps, limiters = f"{one.warps_per_sm} of {one.gpu.limits.warps_per_sm}", one.reason or one.limited_by
        row = [one.gpu.name, one.gpu.architecture, one.demand.registers, one.blocks_per_sm, warps]
        rows.append([*row, percent(one.fraction), limiters, one.waves, percent(one.tail_efficiency)][shown])
    title = f"Occupancy: blocks of {want.threads:,} threads, {want.shared:,} B of shared memory a block"
    return Table(title, columns[shown], rows, str(Origin("calculated", "occupancy rules of each architecture")))
