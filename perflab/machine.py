"""The GPU of this machine, and whether to measure on it or to read what was recorded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache

from perflab import gpus
from perflab.device import local_gpu
from perflab.gpus import Gpu

_live: list[bool] = []


def live(on: bool = True) -> None:
    """From here on `timing()` measures anew where the GPU asked for is in this machine; PERFLAB_LIVE=1 does the same."""
    _live[:] = [on]


def is_live() -> bool:
    """True after live(), or under PERFLAB_LIVE=1."""
    return _live[0] if _live else os.environ.get("PERFLAB_LIVE", "") == "1"


@cache
def gpu_here() -> Gpu | None:
    """The GPU of this machine, or None; asked once a process."""
    return local_gpu()


def default_gpu() -> Gpu:
    """The GPU to talk about: PERFLAB_GPU, else the GPU in this machine, else the H200 that the records are from."""
    return gpus.default_gpu(gpu_here)


def gpus_asked(asked: str | Gpu | Sequence[str | Gpu] | None) -> list[Gpu]:
    """The GPUs that a verb is asked about: one or several, by name or value; the default one for None."""
    several = [asked] if isinstance(asked, (str, Gpu)) else asked or [default_gpu()]
    return [gpus.gpu(one) for one in several]
