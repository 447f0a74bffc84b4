"""perflab: a Jupyter-driven workbench for people who write CUDA kernels.

    import perflab as pl
    attention = pl.study("verify_attention")
    gpu = pl.default_gpu()

Names are looked up on first use, so that importing perflab loads no numpy, pandas, matplotlib, cupy or cuda.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# exported name -> module that defines it. No module has an exported name: importing it would replace the function.
_EXPORTS = {
    "PerflabError": "errors",
    "default_gpu": "machine",
    "explain": "explanation",
    "gpu": "gpus",
    "gpu_names": "gpus",
    "largest_dynamic_shared": "occupancy_model",
    "lint": "linting",
    "live": "machine",
    "load": "kernel",
    "occupancy": "occupancy_model",
    "occupancy_grid": "occupancy_model",
    "study": "workbench",
    "time": "callables",
    "workspace": "workspaces",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'perflab' has no attribute {name!r}")
    value = getattr(import_module(f"perflab.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
