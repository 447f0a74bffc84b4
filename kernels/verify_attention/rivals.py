"""What one could run instead: torch, FlashInfer, FlashMLA, FlashAttention-3, and a plain Triton kernel of our own.

All take the same q [q_len, heads, 576] and cache rows in bfloat16 and give bfloat16 out and float32 lse. What a serving
engine does once a step stays outside the timed call: paging, page tables, splitting rope from latent, plans and schedules,
masks, compiling. None of the libraries' kernels knows trees: "chain" rows let a node see all nodes before it, "prefix" rows
do the prefix alone, and "prefix + tree" rows become exact by one launch of ours (triton_verify.merge_tree).
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from perflab.rivals import Prepared, Rival, find_library, load_beside
from perflab.studies import NotApplicable, Work

HERE = Path(__file__).parent
LATENT, ROPE = 512, 64
WIDTH = LATENT + ROPE
SCALE = 1 / math.sqrt(128 + 64)
LN_2 = math.log(2)
PAGE = 64  # what FlashMLA wants; the others take it
DEVICE, DTYPE = "cuda", "bfloat16"
masks = ("tree", "chain", "prefix")


def own() -> Any:
    """Our Triton kernels; imported late, for they need triton."""
    return load_beside(HERE / "triton_verify.py")


# ---------------------------------------------------------------- reference and work
def reference(shape: Any, given: dict[str, np.ndarray], mask: str) -> dict[str, np.ndarray]:
    """Float64, with the tree's, the chain's or no mask among the nodes; on the GPU where torch has one."""
    if mask == "prefix" and not shape.prefix:
        raise NotApplicable("no prefix: nothing is left for a kernel that sees the prefix only")
    nodes = np.ones((shape.q_len, shape.q_len), np.uint8)
    visible = {"tree": given["visible"], "chain": np.tril(nodes)[None], "prefix": 0 * nodes[None]}[mask]
    visible = np.broadcast_to(visible, given["visible"].shape)
    with contextlib.suppress(ImportError):
        import torch

        if torch.cuda.is_available():
            return _reference_by_torch(torch, shape, given, visible)
    return sys.modules[type(shape).__module__].reference(shape, {**given, "visible": visible})


def _reference_by_torch(torch: Any, shape: Any, given: dict[str, np.ndarray], visible: np.ndarray) -> dict[str, np.ndarray]:
    out, lse = [], []
    for request in range(shape.batch):
        q = torch.as_tensor(given["q"][request], device="cuda").reshape(-1, WIDTH)
        kv = torch.as_tensor(given["kv"][request], device="cuda").double()
        hidden = torch.ones(shape.q_len, shape.keys, dtype=torch.bool, device="cuda")
        hidden[:, : shape.prefix] = False
        hidden[:, shape.prefix :] = torch.as_tensor(np.ascontiguousarray(visible[request]), device="cuda") == 0
        node = torch.arange(len(q), device="cuda") // shape.heads
        for first in range(0, len(q), 512):
            scores = (q[first : first + 512].double() @ kv.T) * SCALE
            scores.masked_fill_(hidden[node[first : first + 512]], -math.inf)
            lse.append(torch.logsumexp(scores, 1).cpu().numpy())
            out.append((torch.softmax(scores, 1) @ kv[:, :LATENT]).cpu().numpy())
    rows = (shape.batch, shape.q_len, shape.heads)
    return {"out": np.concatenate(out).reshape(*rows, LATENT), "lse": np.concatenate(lse).reshape(rows)}


def work(shape: Any, dtype: str) -> Work:
    """As the study's, in the rival's type: q, cache rows and out in it, lse float32, the mask a byte a pair."""
    size = {"float32": 4}.get(dtype, 2)
    rows = shape.batch * shape.q_len * shape.heads
    once = rows * ((WIDTH + LATENT) * size + 4) + shape.batch * (shape.keys * WIDTH * size + shape.q_len**2)
    return Work(flops=2 * rows * shape.keys * (WIDTH + LATENT), bytes=once)


# ---------------------------------------------------------------- one step on the GPU
@dataclass
class Case:
    """One request's tensors, and what the merge needs. lse [q_len, heads] times `lse_unit` is natural."""

    shape: Any
    given: dict[str, np.ndarray]
    made: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        import torch

        if self.shape.batch != 1:
            raise NotApplicable(f"rivals are called with one request; this shape has {self.shape.batch}")
        self.made = {"device": DEVICE, "dtype": getattr(torch, DTYPE)}
        self.q_len, self.heads, self.prefix, self.keys = self.shape.q_len, self.shape.heads, self.shape.prefix, self.shape.keys
        self.q = torch.as_tensor(self.given["q"][0]).to(**self.made).contiguous()
        self.kv = torch.as_tensor(self.given["kv"][0]).to(**self.made).contiguous()
        self.visible = torch.as_tensor(self.given["visible"][0].astype(np.int8)).to(DEVICE).contiguous()
        self.q_latent, self.q_rope = self.q[..., :LATENT].contiguous(), self.q[..., LATENT:].contiguous()

    def integers(self, *values: int) -> Any:
        """An int32 tensor on the device."""
        import torch

        return torch.tensor(values, dtype=torch.int32, device=DEVICE)

    def empty(self) -> tuple[Any, Any]:
        """(out, lse) to write to, full of NaN: what stays unwritten fails the check."""
        import torch

        return (torch.full((self.q_len, self.heads, LATENT), math.nan, **self.made),
                torch.full((self.q_len, self.heads), math.nan, dtype=torch.float32, device=DEVICE))

    def seen_keys(self, mask: str) -> int:
        """Cache rows that a prefix or a causal kernel reads."""
        if mask == "chain":
            return self.keys
        if not self.prefix:
            raise NotApplicable("no prefix: nothing is left for a kernel that sees the prefix only")
        return self.prefix

    def pages(self) -> tuple[Any, Any]:
        """(cache [pages, 64, 576] with zeros behind the last row, page table [1, pages] in order)."""
        import torch

        count = -(-self.keys // PAGE)
        cache = torch.zeros(count * PAGE, WIDTH, **self.made)
        cache[: self.keys] = self.kv
        return cache.view(count, PAGE, WIDTH), torch.arange(count, dtype=torch.int32, device=DEVICE)[None].contiguous()


Run = Callable[[], tuple[Any, Any]]


def prepared(case: Case, run: Run, lse_unit: float = 1.0, settings: str = "") -> Prepared:
    """`run` gives (out [q_len, heads, 512], lse [q_len, heads] or None); its last result is kept for the check."""
    kept: list[Any] = []

    def call() -> None:
        kept[:] = run()

    def outputs() -> dict[str, np.ndarray]:
        out, lse = kept
        found = {"out": out.float().cpu().numpy().reshape(1, case.q_len, case.heads, LATENT)}
        if lse is not None:
            found["lse"] = (lse.float() * lse_unit).cpu().numpy().reshape(1, case.q_len, case.heads)
        return found

    return Prepared(call, outputs, settings)


def finished(case: Case, run: Run, mask: str, lse_unit: float = 1.0, settings: str = "") -> Prepared:
    """A library's prefix or chain kernel as it is; for mask "tree" the prefix kernel, then our merge."""
    if mask != "tree":
        return prepared(case, run, lse_unit, settings)
    merge, setting = own().merge_tree, own().merge_setting(case.q_len, case.heads)
    out, lse = case.empty()

    def both() -> tuple[Any, Any]:
        first, first_lse = run()
        merge(case.q, case.kv, case.visible, first, first_lse, out, lse, case.prefix, SCALE, lse_unit, setting)
        return out, lse

    def unrounded() -> dict[str, np.ndarray]:
        """The join kept in float32: over many keys, bfloat16 rounds it back to the prefix part."""
        whole = out.float()
        first, first_lse = run()
        merge(case.q, case.kv, case.visible, first, first_lse, whole, lse, case.prefix, SCALE, lse_unit, setting)
        return {"out": whole.cpu().numpy().reshape(1, case.q_len, case.heads, LATENT)}

    rows, columns, warps = setting
    merged = f"merge {rows} rows x {columns} columns, {warps} warps"
    made = prepared(case, both, 1.0, "; ".join(filter(None, (settings, merged))))
    return replace(made, unrounded=unrounded)


# ---------------------------------------------------------------- torch
def gemms(case: Case, hidden: Any) -> Run:
    """Two products and a softmax between them: nodes and heads are the rows of one matrix."""
    import torch

    q_len, heads, keys, prefix = case.q_len, case.heads, case.keys, case.prefix

    def run() -> tuple[Any, Any]:
        scores = (case.q.view(-1, WIDTH) @ case.kv.T).float().mul_(SCALE)
        scores.view(q_len, heads, keys)[:, :, prefix:] += hidden
        lse = torch.logsumexp(scores, -1)
        weights = torch.exp(scores - lse[:, None]).to(case.kv.dtype)
        return (weights @ case.kv[:, :LATENT]).view(q_len, heads, LATENT), lse.view(q_len, heads)

    return run


def bias(case: Case) -> Any:
    """[q_len, 1, q_len] float32: -inf where a node does not see a node."""
    import torch

    zeros = torch.zeros(case.q_len, 1, case.q_len, dtype=torch.float32, device=DEVICE)
    return zeros.masked_fill_(case.visible[:, None, :] == 0, -math.inf)


def torch_eager(shape: Any, given: dict[str, np.ndarray]) -> Prepared:
    """Two cuBLAS products and a softmax, operation by operation."""
    case = Case(shape, given)
    return prepared(case, gemms(case, bias(case)))


def torch_compiled(shape: Any, given: dict[str, np.ndarray]) -> Prepared:
    """The same under torch.compile, which fuses what lies between the products."""
    import torch

    case = Case(shape, given)
    everywhere = torch.zeros(case.q_len, 1, case.keys, dtype=torch.float32, device=DEVICE)
    everywhere[:, :, case.prefix :] = bias(case)
    torch._dynamo.reset()  # else the ninth shape would silently run uncompiled

    @torch.compile(dynamic=False)
    def attend(q: Any, kv: Any, hidden: Any) -> tuple[Any, Any]:
        scores = ((q @ kv.T).float() * SCALE).view(case.q_len, case.heads, case.keys) + hidden
        largest = scores.amax(-1, keepdim=True)
        weights = torch.exp(scores - largest)
        total = weights.sum(-1, keepdim=True)
        mixed = (weights / total).to(kv.dtype).view(-1, case.keys) @ kv[:, :LATENT]
        return mixed.view(case.q_len, case.heads, LATENT), (largest + torch.log(total)).view(case.q_len, case.heads)

    q = case.q.view(-1, WIDTH)
    return prepared(case, lambda: attend(q, case.kv, everywhere))


def torch_sdpa(backend: str, shape: Any, given: dict[str, np.ndarray]) -> Prepared:
    """scaled_dot_product_attention: one head whose rows are nodes and heads, so that keys are shared; no lse."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    case, chosen = Case(shape, given), getattr(SDPBackend, backend)
    rows = case.q_len * case.heads
    pitch = -(-case.keys // 8) * 8  # the efficient kernel wants rows of the mask aligned
    mask = torch.zeros(case.q_len, case.heads, pitch, **case.made)
    mask[:, :, case.prefix : case.keys] = bias(case).to(case.made["dtype"])
    mask = mask.view(1, 1, rows, pitch)[..., : case.keys]
    q, k, v = case.q.view(1, 1, rows, WIDTH), case.kv[None, None], case.kv[None, None, :, :LATENT]

    def run() -> tuple[Any, Any]:
        with sdpa_kernel(chosen):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=SCALE), None

    return prepared(case, run)


FLEX = (  # (heads share a key head, kernel options): 576 columns are padded to 1,024, so only small tiles fit
    (True, {"BLOCK_M": 64, "BLOCK_N": 16, "SPLIT_KV": 16, "num_warps": 8, "num_stages": 1}),
    (False, {"FORCE_USE_FLEX_ATTENTION": True, "BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 8, "num_stages": 1}),
    (False, {"FORCE_USE_FLEX_ATTENTION": True, "BLOCK_M": 16, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1}),
)


def torch_flex(shape: Any, given: dict[str, np.ndarray]) -> Prepared:
    """FlexAttention with the tree as mask_mod: the first of FLEX that compiles, launches and is right."""
    case = Case(shape, given)
    want = gemms(case, bias(case))()[0].float()
    problems = []
    for shared, options in FLEX:
        settings = f"{'grouped heads' if shared else 'folded heads'}, " + ", ".join(f"{k}={v}" for k, v in options.items())
        try:
            run = flex(case, shared, options)
            error = float((run()[0].float() - want).norm() / want.norm())
        except Exception as problem:  # no choice left, or too much shared memory
            problems.append(f"{settings}: {' '.join(str(problem).split())[:150]}")
            continue
        if error < 2e-2:
            return prepared(case, run, 1.0, settings)
        problems.append(f"{settings}: wrong by {error:.1e}")
    raise RuntimeError("no setting of FlexAttention works here: " + " | ".join(problems))


def flex(case: Case, shared: bool, options: dict[str, Any]) -> Run:
    """shared: `heads` query heads over one key head, else one head whose rows are nodes and heads."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    q_len, heads, prefix, visible = case.q_len, case.heads, case.prefix, case.visible != 0
    per_node = 1 if shared else heads

    def seen(batch: Any, head: Any, row: Any, key: Any) -> Any:
        node = torch.clamp(row // per_node, max=q_len - 1)
        return (key < prefix) | visible[node, torch.clamp(key - prefix, 0, q_len - 1)]

    rows = q_len * per_node
    mask = create_block_mask(seen, None, None, rows, case.keys, device=DEVICE)
    q = case.q.transpose(0, 1)[None].contiguous() if shared else case.q.view(1, 1, rows, WIDTH)
    k, v = case.kv[None, None], case.kv[None, None, :, :LATENT]
    attend = torch.compile(flex_attention, dynamic=False)
    given_options = options if DEVICE == "cuda" else {}

    def run() -> tuple[Any, Any]:
        out, lse = attend(q, k, v, block_mask=mask, scale=SCALE, enable_gqa=shared, return_lse=True,
                          kernel_options=given_options)
        if shared:
            return out[0].transpose(0, 1), lse[0].transpose(0, 1)
        return out.view(q_len, heads, LATENT), lse.view(q_len, heads)

    return run


def triton_verify(shape: Any, given: dict[str, np.ndarray]) -> Prepared:
    """Our Triton kernel in production's shape of parallelism."""
    case = Case(shape, given)
    verify, (out, lse) = own().verify, case.empty()

    def run() -> tuple[Any, Any]:
        verify(case.q, case.kv, case.visible, out, lse, case.prefix, SCALE)
        return out, lse

    return prepared(case, run)


# ---------------------------------------------------------------- FlashInfer
def flashinfer(backend: str, mask: str, shape: Any, given: dict[str, np.ndarray]) -> Prepared:
    """BatchMLAPagedAttentionWrapper, planned outside. mask "lists": a request a node, each with its own list of cache rows."""
    os.environ.setdefault("FLASHINFER_DISABLE_VERSION_CHECK", "1")
    import flashinfer as library
    import torch

    case = Case(shape, given)
    if mask == "lists":
        page, starts, indices, lengths = 1, *_lists(case)
        queries = torch.arange(case.q_len + 1, dtype=torch.int32, device=DEVICE)
        cache = case.kv.view(-1, 1, WIDTH)
    else:
        page, seen = PAGE, case.seen_keys(mask)
        count = -(-seen // PAGE)
        starts, lengths, queries = case.integers(0, count), case.integers(seen), case.integers(0, case.q_len)
        cache, table = case.pages()
        indices = table[0, :count].contiguous()
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device=DEVICE)
    wrapper = library.mla.BatchMLAPagedAttentionWrapper(workspace, backend=backend)
    wrapper.plan(queries, starts, indices, lengths, case.heads, LATENT, ROPE, page, mask == "chain", SCALE,
                 case.made["dtype"], case.made["dtype"])
    latent, rope = cache[..., :LATENT].contiguous(), cache[..., LATENT:].contiguous()
    out, lse = case.empty()

    def run() -> tuple[Any, Any]:
        wrapper.run(case.q_latent, case.q_rope, latent, rope, out=out, lse=lse, return_lse=True)
        return out, lse

    if mask == "lists":
        return prepared(case, run, LN_2)
    return finished(case, run, mask, LN_2)  # its lse is of base 2


def _lists(case: Case) -> tuple[Any, Any, Any]:
    """(starts, cache rows, lengths): node by node the prefix and the node's ancestors and itself, as pages of one row."""
    import torch

    before = torch.arange(case.prefix, dtype=torch.int32, device=DEVICE)
    lists = [torch.cat([before, case.prefix + row.nonzero().flatten().to(torch.int32)]) for row in case.visible]
    lengths = case.integers(*map(len, lists))
    starts = torch.zeros(case.q_len + 1, dtype=torch.int32, device=DEVICE)
    starts[1:] = torch.cumsum(lengths, 0)
    return starts, torch.cat(lists), lengths


# ---------------------------------------------------------------- FlashMLA
def flash_mla(mask: str, shape: Any, given: dict[str, np.ndarray]) -> Prepared:
    """Dense decode kernel of FlashMLA; its tile schedule is made once a step, outside."""
    case = Case(shape, given)
    lengths, (cache, table) = case.integers(case.seen_keys(mask)), case.pages()
    q, keys, causal = case.q[None], cache.unsqueeze(2), mask == "chain"
    attend = _flash_mla_call(q, keys, table, lengths, causal, case)

    def run() -> tuple[Any, Any]:
        out, lse = attend()
        return out[0], lse[0].transpose(0, 1)  # natural; +inf for an empty row

    return finished(case, run, mask)


def _flash_mla_call(q: Any, keys: Any, table: Any, lengths: Any, causal: bool, case: Case) -> Run:
    """Through the library file that vLLM's wheel brings, or through FlashMLA's own package."""
    import torch

    file = find_library("_flashmla_C")
    if file:
        torch.ops.load_library(str(file))
        decode = torch.ops._flashmla_C.dense_decode_fwd
        *_, schedule, splits = decode(q, keys, LATENT, lengths, table, SCALE, causal, None, None, None)
        return lambda: decode(q, keys, LATENT, lengths, table, SCALE, causal, schedule, splits, None)[:2]
    from flash_mla import flash_mla_with_kvcache, get_mla_metadata

    schedule, splits = get_mla_metadata(lengths, case.q_len * case.heads, 1)
    return lambda: flash_mla_with_kvcache(q, keys, table, lengths, LATENT, schedule, splits, softmax_scale=SCALE, causal=causal)


# ---------------------------------------------------------------- FlashAttention-3
def flash_attention_3(mask: str, shape: Any, given: dict[str, np.ndarray]) -> Prepared:
    """Rope columns as keys, latent ones as values and as the second query part (q_v). Its schedule is made outside if the
    kernel then gives the same; else inside, and the settings say so."""
    import torch

    case, causal = Case(shape, given), mask == "chain"
    seen, (cache, table) = case.seen_keys(mask), case.pages()
    keys, values = cache[..., LATENT:].unsqueeze(-2), cache[..., :LATENT].unsqueeze(-2)
    ways = (_fa3_library if find_library("_vllm_fa3_C") else _fa3_package)(case, keys, values, table, seen, causal)
    inside, out = ways(planned=False), None
    settings = "schedule made inside the call"
    want = inside()[0].clone()
    try:
        outside = ways(planned=True)
        outside()
        out = outside()[0]
        same = torch.allclose(out.float(), want.float(), rtol=2e-2, atol=1e-3)
    except (RuntimeError, TypeError):
        same = False
    if same:
        settings = "schedule made outside"
    return finished(case, outside if same else inside, mask, 1.0, settings)


def _fa3_library(case: Case, keys: Any, values: Any, table: Any, seen: int, causal: bool) -> Callable[..., Run]:
    """Through the library file that vLLM's wheel brings."""
    import torch

    torch.ops.load_library(str(find_library("_vllm_fa3_C")))
    library = torch.ops._vllm_fa3_C
    used, starts = case.integers(seen), case.integers(0, case.q_len)

    def make(planned: bool) -> Run:
        schedule = library.get_scheduler_metadata(
            1, case.q_len, seen, case.heads, 1, ROPE, LATENT, case.made["dtype"], used, starts, None, None, None, None, PAGE, 0,
            causal, -1, -1, False, 0, None, 0) if planned else None
        out, _ = case.empty()

        def run() -> tuple[Any, Any]:
            found = library.fwd(
                case.q_rope, keys, values, None, None, case.q_latent, out, starts, None, None, None, used, case.q_len, seen,
                table, None, None, None, None, None, None, None, None, SCALE, causal, -1, -1, 0.0, True, schedule, 0, None, 0,
                None, 1, 0, None)
            return found[0], found[1].transpose(0, 1)

        return run

    return make


def _fa3_package(case: Case, keys: Any, values: Any, table: Any, seen: int, causal: bool) -> Callable[..., Run]:
    """Through flash_attn_interface, as the project itself installs it."""
    from flash_attn_interface import flash_attn_with_kvcache, get_scheduler_metadata

    used, q, q_v = case.integers(seen), case.q_rope[None], case.q_latent[None]

    def make(planned: bool) -> Run:
        schedule = get_scheduler_metadata(1, case.q_len, seen, case.heads, 1, ROPE, used, case.made["dtype"], headdim_v=LATENT,
                                          page_size=PAGE, causal=causal) if planned else None

        def run() -> tuple[Any, Any]:
            out, lse, *_ = flash_attn_with_kvcache(
                q, keys, values, qv=q_v, cache_seqlens=used, page_table=table, softmax_scale=SCALE, causal=causal,
                scheduler_metadata=schedule, return_softmax_lse=True)
            return out[0], lse[0].transpose(0, 1)

        return run

    return make


# ---------------------------------------------------------------- declared
MERGED = "prefix part with its lse, then our tree part and merge in one launch"
FLASH_MLA, FA3 = ("torch", "flash_mla|_flashmla_C"), ("torch", "flash_attn_interface|_vllm_fa3_C")


def library_rivals(label: str, needs: tuple[str, ...], prepare: Callable[..., Prepared], note: str) -> list[Rival]:
    """A library's three rows: causal, prefix alone, prefix made exact."""
    return [
        Rival(f"{label} chain", "chain", needs, partial(prepare, "chain"), note),
        Rival(f"{label} prefix", "prefix", needs, partial(prepare, "prefix"), note),
        Rival(f"{label} prefix + tree", "tree", (*needs, "triton"), partial(prepare, "tree"), f"{MERGED}; {note}",
              files=("triton_verify.py",)),
    ]


def _flashinfer_rivals(backend: str) -> list[Rival]:
    needs = ("torch", "flashinfer")
    lists = Rival(f"FlashInfer {backend} lists", "tree", needs, partial(flashinfer, backend, "lists"),
                  "a request a node, each with a list of cache rows; planned outside")
    return [*library_rivals(f"FlashInfer {backend}", needs, partial(flashinfer, backend), "planned outside"), lists]


rivals = (
    Rival("torch eager", "tree", ("torch",), torch_eager, "two cuBLAS products and a softmax"),
    Rival("torch compiled", "tree", ("torch", "triton"), torch_compiled, "the same under torch.compile, compiled outside"),
    Rival("SDPA math", "tree", ("torch",), partial(torch_sdpa, "MATH"), "additive mask made outside; gives no lse"),
    Rival("SDPA efficient", "tree", ("torch",), partial(torch_sdpa, "EFFICIENT_ATTENTION"),
          "additive mask made outside; gives no lse"),
    Rival("FlexAttention", "tree", ("torch", "triton"), torch_flex, "mask_mod; block mask and compiling outside"),
    *_flashinfer_rivals("fa3"),
    *_flashinfer_rivals("fa2"),
    *library_rivals("FlashMLA", FLASH_MLA, flash_mla, "tile schedule made outside"),
    *library_rivals("FlashAttention-3", FA3, flash_attention_3, "schedule made outside where the record's settings say so"),
    Rival("Triton verify", "tree", ("torch", "triton"), triton_verify, "ours: a program a head, no KV split",
          files=("triton_verify.py",)),
)

# Decode steps of 8 and 64 heads, 9 and 33 nodes; the most telling first.
cells = tuple(
    {"heads": heads, "q_len": q_len, "prefix": prefix}
    for prefix, q_lens in ((16384, (9, 33)), (65536, (9, 33)), (4096, (9,)), (1024, (9,)))
    for q_len in q_lens
    for heads in (64, 8)
)
