"""Is it right: error measures against the float64 reference; unwritten, NaN and out-of-tolerance outputs in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from perflab.errors import PerflabError
from perflab.studies import Study, Tolerance

if TYPE_CHECKING:
    import numpy as np

# Outputs are filled with these NaNs before a launch. No arithmetic yields their payload, so a value that still
# holds it was never written; any other NaN was computed.
POISON = {"float32": 0x7FC0BEEF, "float64": 0x7FF8BEEFBEEFBEEF, "float16": 0x7EBE}


def poison(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """An array full of the poison of its type; integers get 0xBE in every byte."""
    import numpy as np

    size = np.dtype(dtype).itemsize
    if dtype in POISON:
        return np.full(shape, POISON[dtype], f"uint{8 * size}").view(dtype)
    return np.full((*shape, size), 0xBE, np.uint8).view(dtype).reshape(shape)


@dataclass(frozen=True)
class Comparison:
    """One output against its float64 reference.

    max_abs       largest |got - want|
    max_rel       largest |got - want| / |want| where want is not 0 (large near zeros: read norm_relative first)
    norm_relative ||got - want|| / ||want||
    """

    output: str
    max_abs: float
    max_rel: float
    norm_relative: float
    measure: str
    limit: float
    passed: bool
    problem: str = ""


def compare(output: str, got: np.ndarray, want: np.ndarray, tolerance: Tolerance) -> Comparison:
    """Compare one output with its reference (same shape; `want` float64). NaN and unwritten values never pass."""
    import numpy as np

    if got.shape != want.shape:
        raise PerflabError(f"output {output} has shape {got.shape}, its reference {want.shape}")
    problem = _nan_problem(got)
    with np.errstate(invalid="ignore"):  # inf - inf: `problem` already says so
        error = np.abs(got.astype(np.float64) - want)
    nonzero = want != 0
    norm = float(np.linalg.norm(want))
    found = {
        "max_abs": float(error.max(initial=0.0)),
        "max_rel": float((error[nonzero] / np.abs(want[nonzero])).max(initial=0.0)),
        "norm_relative": float(np.linalg.norm(error)) / norm if norm else float(np.linalg.norm(error)),
    }
    if not problem and not found[tolerance.measure] <= tolerance.limit:
        where = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape))
        problem = (f"{tolerance.measure} {found[tolerance.measure]:.2e} is over {tolerance.limit:.2e} "
                   f"({tolerance.because}); largest error at {where}")
    return Comparison(output, **found, measure=tolerance.measure, limit=tolerance.limit, passed=not problem,
                      problem=problem)


def _nan_problem(got: np.ndarray) -> str:
    """'' when every value is a number, else how many are unwritten or NaN, and where the first one is."""
    import numpy as np

    if got.dtype.kind != "f":
        return ""
    bad = ~np.isfinite(got)
    if not bad.any():
        return ""
    first = tuple(int(i) for i in np.unravel_index(int(bad.argmax()), got.shape))
    name = str(got.dtype)
    bits = np.ascontiguousarray(got).view(f"uint{8 * got.dtype.itemsize}")
    unwritten = int((bits == POISON[name]).sum()) if name in POISON else 0
    computed = int(bad.sum()) - unwritten
    parts = [f"{unwritten:,} of {got.size:,} values were never written"] if unwritten else []
    parts += [f"{computed:,} of {got.size:,} are NaN or infinite"] if computed else []
    return " and ".join(parts) + f"; the first at {first}"


@dataclass(frozen=True)
class Check:
    """All outputs of one version at one shape against the reference."""

    version: str
    outputs: tuple[Comparison, ...]

    @property
    def passed(self) -> bool:
        """True when every output is within its tolerance."""
        return all(output.passed for output in self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for a record."""
        return {"passed": self.passed, "outputs": [asdict(output) for output in self.outputs]}

    @staticmethod
    def from_dict(version: str, data: Mapping[str, Any]) -> Check:
        """Back from a record."""
        return Check(version, tuple(Comparison(**output) for output in data["outputs"]))


def check_outputs(study: Study, version: str, shape: Any, got: Mapping[str, np.ndarray],
                  want: Mapping[str, np.ndarray]) -> Check:
    """Compare every output of a version with the reference, at the study's tolerances for that version."""
    declared = study.version(version)
    tolerances = study.tolerances(shape, declared.sequence(shape))
    names = [name for name in want if declared.outputs is None or name in declared.outputs]
    return Check(version, tuple(compare(name, got[name], want[name], tolerances[name]) for name in names))


def parity_line(check: Check, label: str, facts: Mapping[str, Any]) -> str:
    """The write-ups' line: PASS or FAIL, version, bundle, sizes, then the errors of each output."""
    sizes = " ".join(f"{name}={value}" for name, value in facts.items())
    first, *rest = check.outputs
    errors = f"max_abs={first.max_abs:.2e} max_rel={first.max_rel:.2e} norm_rel={first.norm_relative:.2e}"
    errors += "".join(f" max_{other.output}_err={other.max_abs:.2e}" for other in rest)
    problems = "".join(f"\n      {c.output}: {c.problem}" for c in check.outputs if c.problem)
    return f"{'PASS' if check.passed else 'FAIL'}  [{check.version}] {label}  {sizes}  {errors}{problems}"
