"""What a study declares: shapes, inputs, buffers, a reference, work and versions. Pure data; nothing here runs a kernel."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perflab.errors import PerflabError, unknown

if TYPE_CHECKING:
    import numpy as np

    from perflab.gpus import Gpu
    from perflab.kernel import Kernel

SCALAR_TYPES = {"i32": "int32", "u32": "uint32", "i64": "int64", "f32": "float32", "f64": "float64"}
INPUT_SEED = 20260101


class NotApplicable(PerflabError):
    """A version cannot do a shape on a GPU; the message holds the arithmetic. Shown as "n/a", never as a failure."""


# ---------------------------------------------------------------- launches
@dataclass(frozen=True)
class Scalar:
    """A kernel argument passed by value; `type` is a key of SCALAR_TYPES."""

    type: str
    value: float


def i32(value: int) -> Scalar:
    """A 32-bit signed kernel argument."""
    if not -(2**31) <= value < 2**31:
        raise PerflabError(f"the kernel argument {value:,} does not fit 32 bits: pass i64({value})")
    return Scalar("i32", int(value))


def i64(value: int) -> Scalar:
    """A 64-bit signed kernel argument."""
    return Scalar("i64", int(value))


def f32(value: float) -> Scalar:
    """A float32 kernel argument."""
    return Scalar("f32", float(value))


def triple(size: int | Sequence[int]) -> tuple[int, int, int]:
    """A grid or block size as (x, y, z)."""
    given = (size,) if isinstance(size, int) else tuple(int(n) for n in size)
    if not 1 <= len(given) <= 3 or any(n < 1 for n in given):
        raise PerflabError(f"a grid or block is 1 to 3 sizes of at least 1; {size} was asked")
    x, y, z = given + (1,) * (3 - len(given))
    return x, y, z


@dataclass(frozen=True)
class Launch:
    """One kernel launch: grid and block as (x, y, z), arguments by buffer name or `Scalar`, dynamic shared bytes."""

    kernel: Kernel
    grid: tuple[int, int, int] | int | Sequence[int]
    block: tuple[int, int, int] | int | Sequence[int]
    arguments: tuple[str | Scalar, ...]
    dynamic_shared: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", triple(self.grid))
        object.__setattr__(self, "block", triple(self.block))
        object.__setattr__(self, "arguments", tuple(self.arguments))

    def to_dict(self) -> dict[str, Any]:
        """The launch without its kernel, as JSON: what a remote machine needs and what the launch hash covers."""
        arguments = [a if isinstance(a, str) else asdict(a) for a in self.arguments]
        return {"grid": list(triple(self.grid)), "block": list(triple(self.block)), "dynamic_shared": self.dynamic_shared,
                "arguments": arguments}


# ---------------------------------------------------------------- buffers and inputs
@dataclass(frozen=True)
class Output:
    """A buffer the kernel must fill: poisoned before the launch, compared with the reference after it."""

    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class Scratch:
    """A buffer the kernels of one version use among themselves: poisoned, never compared."""

    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class Uniform:
    """Random float32 numbers, evenly spread in (-scale, scale), the same on every machine to the last bit.

    Raw Philox4x64-10 words (numpy keeps that stream stable) give two 24-bit integers each; k becomes
    (2k + 1 - 2^24) 2^-24 scale. Every step is exact in float32, so `scale` must be a power of two.
    """

    shape: tuple[int, ...]
    scale: float = 1.0

    def __post_init__(self) -> None:
        mantissa, _ = math.frexp(self.scale)
        if mantissa != 0.5:
            raise PerflabError(f"Uniform(scale={self.scale}): use a power of two, so that scaling is exact")

    def describe(self) -> dict[str, Any]:
        """The recipe as JSON, for the hash."""
        return {"kind": "uniform24", "shape": list(self.shape), "scale": self.scale}

    def make(self, seed: int, name: str) -> np.ndarray:
        """The float32 array of this recipe: its own Philox stream a (seed, name)."""
        import numpy as np

        count = int(np.prod(self.shape, dtype=np.int64))
        words = philox_words(seed, name, (count + 1) // 2)
        both = np.empty(2 * words.size, np.float32)
        for half, shift in ((0, np.uint64(40)), (1, np.uint64(8))):
            k = ((words >> shift) & np.uint64(0xFFFFFF)).astype(np.int32)
            np.multiply(2 * k + (1 - 2**24), np.float32(2.0**-24 * self.scale), out=both[half::2], dtype=np.float32,
                        casting="unsafe")
        return both[:count].reshape(self.shape)


@dataclass(frozen=True, eq=False)
class Given:
    """An input whose values the study computes itself, such as a mask."""

    array: np.ndarray

    def describe(self) -> dict[str, Any]:
        """The values' digest as JSON, for the hash."""
        return {"kind": "given", "shape": list(self.array.shape), "dtype": str(self.array.dtype),
                "sha256": hashlib.sha256(self.array.tobytes()).hexdigest()}

    def make(self, seed: int, name: str) -> np.ndarray:
        """The array itself."""
        return self.array


def philox_words(seed: int, name: str, count: int) -> np.ndarray:
    """`count` raw 64-bit Philox words of the stream (seed, name); shape [count], uint64."""
    import numpy as np

    stream = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.Philox(key=np.array([seed, stream], np.uint64)).random_raw(count)


# ---------------------------------------------------------------- the nouns
@dataclass(frozen=True)
class Work:
    """What a shape needs whatever the version: FLOPs, and bytes that must move once between DRAM and the chip."""

    flops: int
    bytes: int


@dataclass(frozen=True)
class Tolerance:
    """The largest error allowed in one output: `measure` is norm_relative or max_abs; `because` says where it is from."""

    measure: str
    limit: float
    because: str


@dataclass(frozen=True)
class Prediction:
    """Written before measuring: time of `over` divided by time of this version lies in `ratio` at shape `at`."""

    over: str
    at: Any
    ratio: tuple[float, float]
    because: str

    def verdict(self, lowest: float, highest: float) -> str:
        """'hit' if the measured ratio's interval lies inside the predicted one, 'miss' if outside, else 'tie'."""
        low, high = self.ratio
        if low <= lowest and highest <= high:
            return "hit"
        return "miss" if highest < low or lowest > high else "tie"


@dataclass(frozen=True)
class Version:
    """One step of the ladder: its kernels, the one change, how it launches, what was predicted of it.

    launches(shape, gpu) -> list of Launch; raises NotApplicable where it cannot run.
    asked_bytes(shape, gpu) -> bytes its global loads and stores ask for, by the kernel's own loops (None: not stated).
    work(shape)          -> its own Work, where versions do not all do the study's (None: they do).
    outputs: the outputs it writes and is checked by (None: all of the study's).
    scratch(shape, gpu)  -> {name: Scratch} that its launches hand on among themselves, beside the study's buffers.
    shapes: the declared shapes at which a whole measurement takes it (None: all); points of a tunable need only a few.
    sequence(shape)      -> terms that one float32 accumulator adds in sequence: what the tolerance scales with.
    """

    name: str
    kernels: tuple[Kernel, ...]
    change: str
    launches: Callable[[Any, Gpu], list[Launch]]
    prediction: Prediction | None = None
    asked_bytes: Callable[[Any, Gpu], int] | None = None
    sequence: Callable[[Any], int] = lambda shape: 1
    work: Callable[[Any], Work] | None = None
    outputs: tuple[str, ...] | None = None
    scratch: Callable[[Any, Gpu], Mapping[str, Scratch]] | None = None
    shapes: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class Study:
    """Everything that `kernels/<name>/study.py` declares.

    shape      a frozen dataclass; shapes: the declared list, most important first; bundles: named shapes for parity
    inputs     (shape) -> {name: Uniform | Given}
    buffers    (shape, gpu) -> {name: Output | Scratch}
    reference  (shape, {name: array}) -> {output name: float64 array}
    work       (shape) -> Work
    tolerances (shape, sequence) -> {output name: Tolerance}
    facts      (shape) -> {label: value} for parity lines and titles
    spec       (shape) -> {field of TimingSpec: value} where a shape is timed otherwise than usual
    uses       names of studies beside it that its study.py loads: they travel with it
    checks     () -> further shapes at which every version is checked and not timed
    counted    declared shapes whose hardware counters are kept up to date; empty: none in particular, and all are counted
    """

    name: str
    title: str
    shape: type
    shapes: tuple[Any, ...]
    inputs: Callable[[Any], Mapping[str, Uniform | Given]]
    buffers: Callable[[Any, Gpu], Mapping[str, Output | Scratch]]
    reference: Callable[[Any, Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
    work: Callable[[Any], Work]
    tolerances: Callable[[Any, int], Mapping[str, Tolerance]]
    facts: Callable[[Any], Mapping[str, Any]]
    versions: tuple[Version, ...]
    bundles: Mapping[str, Any] = field(default_factory=dict)
    spec: Callable[[Any], Mapping[str, Any]] | None = None
    dtype: str = "float32"
    seed: int = INPUT_SEED
    uses: tuple[str, ...] = ()
    checks: Callable[[], tuple[Any, ...]] = tuple
    counted: tuple[Any, ...] = ()

    @property
    def all_shapes(self) -> tuple[Any, ...]:
        """What a whole measurement covers: the bundles, then the declared shapes, each once."""
        return tuple(dict.fromkeys((*self.bundles.values(), *self.shapes)))

    def shapes_of(self, version: Version) -> tuple[Any, ...]:
        """What a whole measurement takes of one version: all shapes, or those that it names."""
        return self.all_shapes if version.shapes is None else version.shapes

    def version(self, name: str) -> Version:
        """The version of that name; an unknown one is an error that lists those there are."""
        for version in self.versions:
            if version.name == name:
                return version
        raise unknown(f"version of {self.name}", name, (v.name for v in self.versions))

    def work_of(self, version: str, shape: Any) -> Work:
        """What a version does at a shape: its own work where it states one, else the study's."""
        return (self.version(version).work or self.work)(shape)

    def buffers_of(self, version: Version, shape: Any, gpu: Gpu) -> dict[str, Output | Scratch]:
        """The buffers of one version's launches: the study's, and scratch of its own."""
        return {**self.buffers(shape, gpu), **(version.scratch(shape, gpu) if version.scratch else {})}

    def make_shape(self, **sizes: Any) -> Any:
        """A shape from keyword sizes; what is not named keeps its default. Unknown names and wrong types are errors."""
        known = {f.name: f for f in fields(self.shape)}
        for name, value in sizes.items():
            if name not in known:
                raise unknown(f"size of {self.name}", name, known)
            if isinstance(known[name].default, int) and (not isinstance(value, int) or isinstance(value, bool)):
                raise PerflabError(f"{name}={value!r}: {self.name} wants an integer there")
        return self.shape(**sizes)

    def make_inputs(self, shape: Any) -> dict[str, np.ndarray]:
        """The input arrays of a shape, the same to the last bit on every machine."""
        return {name: recipe.make(self.seed, name) for name, recipe in self.inputs(shape).items()}


# ---------------------------------------------------------------- identity
def digest(value: Any) -> str:
    """A short sha256 of a JSON value with sorted keys: 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def inputs_hash(study: Study, shape: Any) -> str:
    """What the inputs are made from: seed and recipes, not the gigabytes they give."""
    return digest([study.seed, {name: recipe.describe() for name, recipe in study.inputs(shape).items()}])


def launches_hash(launches: Sequence[Launch]) -> str:
    """How a version launches: grids, blocks, arguments, dynamic shared memory."""
    return digest([launch.to_dict() for launch in launches])


# ---------------------------------------------------------------- finding one
def load_study(folder: Path) -> Study:
    """The `study` object of folder/study.py, which imports what lies beside it as `from .name import …`.

    A missing, broken or empty file is an error that says which.
    """
    file = folder / "study.py"
    if not file.is_file():
        raise PerflabError(f"{folder.name} has no study.py: a study is a folder kernels/<name>/ with a study.py in it")
    module_name = f"perflab_study_{digest(str(folder.resolve()))}"
    spec = importlib.util.spec_from_file_location(module_name, file, submodule_search_locations=[str(folder)])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    for name in [name for name in sys.modules if name.startswith(f"{module_name}.")]:
        del sys.modules[name]  # a file beside it may have changed since
    sys.modules[module_name] = module  # dataclasses look their module up by name
    try:
        spec.loader.exec_module(module)
    except PerflabError:
        raise
    except Exception as error:
        raise PerflabError(f"{folder.name}/study.py cannot be loaded: {type(error).__name__}: {error}") from error
    found = getattr(module, "study", None)
    if not isinstance(found, Study):
        raise PerflabError(f"{folder.name}/study.py defines no `study = Study(…)`")
    return found
