"""The occupancy model against NVIDIA's own calculator, cuda_occupancy.h: not one difference, on cases drawn anew each run.

The header comes with the nvidia-cuda-runtime wheel and is compiled with g++ into a small program that answers for any
GPU without one. A failure names its seed: PERFLAB_ORACLE_SEED=<seed> draws the same cases again. The committed sample
of its answers is checked too and needs neither. Virtual resources, which the header knows and nobody documents, are no
part of our model: those rows of the sample have a test of their own.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from perflab.errors import PerflabError
from perflab.gpus import Limits, capabilities, limits_of
from perflab.occupancy_model import largest_dynamic_shared, occupancy, occupancy_grid
from perflab.occupancy_rules import NAMED_BARRIERS, NO_LIMIT, RESOURCES

HERE = Path(__file__).parent
CASES = 200_000  # over all capabilities
SEED = int(os.environ.get("PERFLAB_ORACLE_SEED") or int.from_bytes(os.urandom(4), "little"))
REFUSED_REGISTERS = 256  # the header lets them pass, the programming guide and perflab do not

CASE_FIELDS = (
    *("block", "registers", "static_shared", "dynamic_shared", "max_dynamic_shared", "shared_optin", "barriers"),
    "carveout",
)
ANSWER_FIELDS = ("status", "blocks_per_sm", "limiter_bits", *RESOURCES, "helper")
Cases = dict[str, np.ndarray]
Oracle = Callable[[str, Cases], Cases]


def unavailable(reason: str) -> None:
    """Skip on a laptop; in CI a missing oracle is a failure, for there nobody would notice."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


def header_folder() -> Path:
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        for found in Path(folder).glob("cu*/include/cuda_occupancy.h"):
            return found.parent
    unavailable("cuda_occupancy.h is not installed: it comes with the nvidia-cuda-runtime wheel")
    raise AssertionError


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    compiler = shutil.which("g++")
    if compiler is None:
        unavailable("g++ is not installed: NVIDIA's header cannot be compiled")
    program = tmp_path_factory.mktemp("oracle") / "occupancy_oracle"
    source = HERE / "occupancy_oracle.cpp"
    subprocess.run([str(compiler), "-O2", "-std=c++17", f"-I{header_folder()}", str(source), "-o", str(program)], check=True)

    def ask(capability: str, cases: Cases) -> Cases:
        questions = [*device_columns(capability), *(cases[field] for field in CASE_FIELDS), 0]
        table = np.stack(np.broadcast_arrays(*questions), axis=-1).astype(np.int64)
        output = subprocess.run([str(program)], input=table.tobytes(), stdout=subprocess.PIPE, check=True).stdout
        answers = np.frombuffer(output, np.int64).reshape(-1, len(ANSWER_FIELDS))
        return dict(zip(ANSWER_FIELDS, answers.T, strict=True))

    return ask


def device_columns(capability: str) -> list[int]:
    """What the header takes as input. All else of a row of capabilities.csv it knows by itself, and so it is tested."""
    sm = limits_of(capability)
    return [
        *(int(part) for part in capability.split(".")),
        *(sm.threads_per_block, sm.threads_per_sm, sm.registers_per_sm, sm.registers_per_block),
        *(sm.shared_per_sm_bytes, sm.shared_per_block_bytes, sm.shared_per_block_optin_bytes, sm.shared_reserved_bytes),
    ]


def draw(capability: str, count: int, seed: int) -> Cases:
    """Random cases, each field from its own mixture of ordinary values and of edges, one off them on either side."""
    rng = np.random.default_rng([seed, *map(int, capability.split("."))])
    sm = limits_of(capability)

    def mix(*parts: tuple[float, np.ndarray]) -> np.ndarray:
        weights = np.array([weight for weight, _ in parts])
        return np.choose(rng.choice(len(parts), count, p=weights / weights.sum()), [values for _, values in parts])

    def near(values: np.ndarray) -> np.ndarray:
        return np.maximum(values + rng.integers(-1, 2, count), 0)

    warps = 32 * rng.integers(1, 33, count)
    block = mix((5, warps), (3, rng.integers(1, 1025, count)), (2, near(warps)), (0.5, rng.integers(1025, 2049, count)))
    registers = mix(
        (6, rng.integers(16, 256, count)), (3, near(8 * rng.integers(1, 33, count))), (1, rng.integers(0, 300, count))
    )
    registers = np.where(registers == REFUSED_REGISTERS, REFUSED_REGISTERS + 1, registers)
    static = mix((6, np.zeros(count, int)), (2, rng.integers(0, 49153, count)), (1, near(np.full(count, 49152))))
    optin = sm.shared_per_block_optin_bytes
    edge = shared_edges(sm, rng, count) - static
    small, large = rng.integers(0, 16384, count), rng.integers(0, optin + 2048, count)
    dynamic = mix((3, np.zeros(count, int)), (2, small), (3, large), (3, near(edge)), (1, near(np.full(count, optin) - static)))
    every = np.maximum(optin - static, 0)
    hand_set = mix((1, near(dynamic)), (1, rng.integers(0, optin + 1, count)), (1, near(np.full(count, 49152))))
    return {
        "block": np.maximum(block, 1),
        "registers": registers,
        "static_shared": static,
        "dynamic_shared": dynamic,
        "max_dynamic_shared": mix((6, every), (1, hand_set)),
        "shared_optin": mix((9, np.ones(count, int)), (1, np.zeros(count, int))),
        "barriers": mix((7, np.ones(count, int)), (3, rng.integers(0, NAMED_BARRIERS + 1, count))),
        "carveout": mix((3, np.full(count, -1)), (1, rng.integers(0, 101, count)), (0.2, 100 * rng.integers(0, 2, count))),
    }


def shared_edges(sm: Limits, rng: np.random.Generator, count: int) -> np.ndarray:
    """static + dynamic at which one block more fits, for any size of shared memory that an SM can have."""
    sizes = np.array([*sm.carveout_bytes, sm.shared_per_sm_bytes])
    units = sizes[rng.integers(0, len(sizes), count)] // rng.integers(1, 33, count) // sm.shared_unit_bytes
    return np.maximum(units * sm.shared_unit_bytes - sm.shared_reserved_bytes, 0)


@pytest.mark.parametrize("capability", capabilities())
def test_no_difference_from_nvidias_header(oracle: Oracle, capability: str) -> None:
    cases = draw(capability, CASES // len(capabilities()) + 1, SEED)
    theirs = oracle(capability, cases)
    if theirs["status"].all():
        pytest.skip(f"the installed header does not know {capability}: error {theirs['status'][0]}")
    ours = occupancy_grid(capability, **cases)

    def same(what: str, mine: np.ndarray, header: np.ndarray) -> None:
        wrong = np.flatnonzero(mine != header)
        case = {field: int(values[wrong[0]]) for field, values in cases.items()} if wrong.size else {}
        assert not wrong.size, (
            f"{what} of {capability}: {wrong.size} of {mine.size} differ, first {case}: perflab {mine[wrong[0]]}, "
            f"header {header[wrong[0]]}; again with PERFLAB_ORACLE_SEED={SEED}"
        )

    same("status", np.zeros_like(theirs["status"]), theirs["status"])
    same("blocks", ours.blocks_per_sm, theirs["blocks_per_sm"])
    for name in RESOURCES:
        same(f"limit of {name}", ours.limits[name], theirs[name])
    # The header never clears the flags it set before it looked at barriers, so they are right only where those do not bind.
    free = theirs["barriers"] > theirs["blocks_per_sm"]
    same("limiters", np.where(free, ours.limiter_bits, 0), np.where(free, theirs["limiter_bits"], 0))
    assert np.unique(ours.blocks_per_sm).size > 10 and free.mean() > 0.5, "the cases drawn test too little"


@pytest.mark.parametrize("capability", capabilities())
def test_one_configuration_is_the_grid_at_a_point(capability: str) -> None:
    cases = draw(capability, 150, SEED + 1)
    grid = occupancy_grid(capability, **cases)
    for k in range(150):
        case = {field: int(values[k]) for field, values in cases.items()}
        one = occupancy(capability, **case | {"carveout": None if case["carveout"] < 0 else case["carveout"]})
        limits = [NO_LIMIT if limit is None else limit for limit in one.limits.values()]
        assert [one.blocks_per_sm, *limits] == [grid.blocks_per_sm[k], *(grid.limits[name][k] for name in RESOURCES)], case
        assert "+".join(one.limiters) == grid.limiters[k], case
        assert bool(one.reason) == (one.blocks_per_sm == 0), case


def test_header_defect_flags_of_resources_that_do_not_limit(oracle: Oracle) -> None:
    case = draw("12.0", 1, 0) | {"block": 64, "registers": 32, "barriers": 2, "static_shared": 0, "dynamic_shared": 0}
    theirs = oracle("12.0", case | {"max_dynamic_shared": 0, "shared_optin": 1, "carveout": -1})
    flagged = [name for k, name in enumerate(RESOURCES) if int(theirs["limiter_bits"][0]) >> k & 1]
    assert theirs["blocks_per_sm"] == 12 and flagged == ["warps", "blocks", "barriers"]
    ours = occupancy("12.0", block=64, registers=32, barriers=2)
    assert ours.blocks_per_sm == 12 and ours.limiters == ("barriers",)
    assert (ours.limits["warps"], ours.limits["blocks"]) == (24, 24)


@pytest.mark.parametrize("capability", [c for c in capabilities() if limits_of(c).shared_reserved_bytes])
def test_header_defect_helper_promises_memory_that_is_reserved(oracle: Oracle, capability: str) -> None:
    case = {field: np.array([0]) for field in CASE_FIELDS}
    most = limits_of(capability).shared_per_block_optin_bytes
    case |= {
        "block": np.array([256]),
        "registers": np.array([32]),
        "barriers": np.array([1]),
        "shared_optin": np.array([1]),
    }
    case |= {"max_dynamic_shared": np.array([most]), "carveout": np.array([-1])}
    theirs = oracle(capability, case)
    if theirs["status"].all():
        pytest.skip(f"the installed header does not know {capability}")
    promised = int(theirs["helper"][0])
    at_promise = oracle(capability, case | {"dynamic_shared": np.array([promised])})
    assert at_promise["blocks_per_sm"] == 1, "the header was mended: use its answer as a test of ours"
    right = largest_dynamic_shared(capability, block=256, registers=32, blocks_per_sm=2)
    assert right == promised - limits_of(capability).shared_reserved_bytes
    at_right, above = (oracle(capability, case | {"dynamic_shared": np.array([right + more])}) for more in (0, 1))
    assert (at_right["blocks_per_sm"], above["blocks_per_sm"]) == (2, 1)


def test_256_registers_pass_the_header_and_not_perflab(oracle: Oracle) -> None:
    case = draw("9.0", 1, 0) | {"block": 32, "registers": REFUSED_REGISTERS, "static_shared": 0, "dynamic_shared": 0}
    case |= {"max_dynamic_shared": 0, "shared_optin": 1, "barriers": 1, "carveout": -1}
    assert oracle("9.0", case)["blocks_per_sm"] == 8
    ours = occupancy("9.0", block=32, registers=REFUSED_REGISTERS)
    assert ours.blocks_per_sm == 0 and "256 registers a thread" in ours.reason and "255" in ours.reason


def sample_rows() -> list[dict[str, str]]:
    with (HERE / "data" / "occupancy_sample.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def sample_case(row: dict[str, str]) -> dict[str, int]:
    columns = ("block", "regs", "static_smem", "dyn_smem", "max_dyn_smem", "optin", "barriers", "carveout")
    return dict(zip(CASE_FIELDS, (int(row[column]) for column in columns), strict=True))


def sample_limits(row: dict[str, str]) -> list[int]:
    columns = ("lim_warps", "lim_regs", "lim_smem", "lim_blocks", "lim_barriers")
    return [NO_LIMIT if row[column] == "inf" else int(row[column]) for column in columns]


def ours_for(row: dict[str, str]) -> tuple[int, list[int], str]:
    grid = occupancy_grid(f"sm_{row['arch']}", **sample_case(row))
    return int(grid.blocks_per_sm), [int(limit) for limit in grid.limits.values()], str(grid.limiters)


def test_committed_sample_without_virtual_resources() -> None:
    compared = 0
    for row in sample_rows():
        if row["status"] != "OK" or row["virtual"] != "0" or row["regs"] == str(REFUSED_REGISTERS):
            continue
        blocks, limits, limiters = ours_for(row)
        assert (blocks, limits) == (int(row["blocks_per_sm"]), sample_limits(row)), row
        if limits[RESOURCES.index("barriers")] > blocks:
            assert limiters == row["limiters"], row
        compared += 1
    assert compared > 4_500


def test_committed_sample_with_virtual_resources_agrees_in_all_else() -> None:
    rows = [row for row in sample_rows() if row["status"] == "OK" and row["virtual"] != "0"]
    for row in rows:
        blocks, limits, _ = ours_for(row)
        virtual = NO_LIMIT if row["lim_virtual"] == "inf" else int(row["lim_virtual"])
        assert limits == sample_limits(row), row
        assert min(blocks, virtual) == int(row["blocks_per_sm"]), row
    assert len(rows) > 150


def test_committed_sample_256_registers_are_refused() -> None:
    rows = [row for row in sample_rows() if row["status"] == "OK" and row["regs"] == str(REFUSED_REGISTERS)]
    assert rows and all(ours_for(row)[0] == 0 for row in rows)


def test_committed_sample_what_the_header_calls_invalid_is_an_error() -> None:
    rows = [row for row in sample_rows() if row["status"] == "INVALID_INPUT"]
    assert rows
    for row in rows:
        with pytest.raises(PerflabError):
            occupancy(
                f"sm_{row['arch']}",
                **sample_case(row) | {"carveout": int(row["carveout"]) if row["carveout"] != "-1" else None},
            )
