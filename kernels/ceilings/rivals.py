"""What a well-fed library reaches: cuBLAS's bfloat16 product of two random 8192 x 8192 matrices, beside the mma.sync loop."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from perflab.rivals import Prepared, Rival, rounded
from perflab.studies import INPUT_SEED, NotApplicable, Uniform, Work

N = 8192
CHECKED = slice(0, None, 64)  # rows of the product: all of them in float64 would take a CPU a minute
masks = ("",)


@lru_cache(maxsize=1)
def operands() -> tuple[np.ndarray, np.ndarray]:
    """Two matrices of random numbers, rounded to bfloat16; zeros or ones would draw less power and run faster."""
    a, b = (Uniform((N, N)).make(INPUT_SEED, f"cuBLAS {name}") for name in "ab")
    return rounded(a, "bfloat16"), rounded(b, "bfloat16")


def _only_mma_bf16(shape: Any) -> None:
    if shape.ceiling != "mma_bf16":
        raise NotApplicable('cuBLAS stands beside the tensor cores: it is measured at shapes with ceiling="mma_bf16"')


def reference(shape: Any, given: dict[str, np.ndarray], mask: str) -> dict[str, np.ndarray]:
    """The checked rows in float64; the study's own inputs are not used."""
    _only_mma_bf16(shape)
    a, b = operands()
    return {"out": a[CHECKED].astype(np.float64) @ b.astype(np.float64)}


def work(shape: Any, dtype: str) -> Work:
    """A multiply and an add for each of 8192^3; each matrix moved once in bfloat16."""
    return Work(flops=2 * N**3, bytes=3 * N * N * 2)


def cublas(shape: Any, given: dict[str, np.ndarray]) -> Prepared:
    """torch.matmul into a buffer of its own, float32 accumulation."""
    import torch

    _only_mma_bf16(shape)
    a, b = (torch.as_tensor(matrix, device="cuda").to(torch.bfloat16) for matrix in operands())
    out = torch.full_like(a, torch.nan)

    def call() -> None:
        torch.matmul(a, b, out=out)

    return Prepared(call, lambda: {"out": out[CHECKED].float().cpu().numpy()})


rivals = (Rival("cublas_8192", "", ("torch",), cublas, "bfloat16 product of random 8192 x 8192 matrices by torch.matmul"),)
cells = tuple({"ceiling": "mma_bf16", "duty": duty} for duty in ("burst", "sustained"))
