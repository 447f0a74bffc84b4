"""Long code written once in a module and called: LLVM takes tens of milliseconds for each copy of an ex2."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from perflab.emulator.vector.values import I32, INTEGERS, mask_of, predicate_of

Body = Callable[[ir.IRBuilder, Sequence[ir.Value]], "Sequence[ir.Value] | None"]


class _Routine(ir.Function):
    """results: the types that the body gave, before predicates became masks."""

    results: Sequence[ir.Type] = ()


def routine(build: ir.IRBuilder, name: str, values: Sequence[ir.Value], body: Body) -> list[ir.Value] | None:
    """Calls the module's function of that name; the first time `body` writes it, from a builder and its arguments.

    The name must say all that the body depends on beside the values. None where the body gives None.
    """
    function = build.module.globals.get(name) or _written(build.module, name, [value.type for value in values], body)
    if function is None:
        return None
    found = build.call(function, [_packed(build, value) for value in values])
    kinds = function.results
    parts = [found] if len(kinds) == 1 else [build.extract_value(found, index) for index in range(len(kinds))]
    return [predicate_of(build, part) if kind == INTEGERS[1] else part for kind, part in zip(kinds, parts, strict=True)]


def _packed(build: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """As it is handed over: predicates as masks, since vectors of bits in calls take LLVM seconds."""
    return mask_of(build, value) if value.type == INTEGERS[1] else value


def _passed(kind: ir.Type) -> ir.Type:
    return I32 if kind == INTEGERS[1] else kind


def _written(module: ir.Module, name: str, kinds: Sequence[ir.Type], body: Body) -> _Routine | None:
    draft = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), kinds), name)  # only to learn the types of its results
    drafted = body(ir.IRBuilder(draft.append_basic_block()), draft.args)
    if drafted is None:
        return None
    types = [value.type for value in drafted]
    passed = [_passed(kind) for kind in types]
    result = passed[0] if len(passed) == 1 else ir.LiteralStructType(passed)
    function = _Routine(module, ir.FunctionType(result, [_passed(kind) for kind in kinds]), name)
    function.results = types
    function.linkage = "internal"
    for attribute in ("noinline", "nounwind"):
        function.attributes.add(attribute)
    build = ir.IRBuilder(function.append_basic_block())
    arguments = [predicate_of(build, a) if kind == INTEGERS[1] else a for kind, a in zip(kinds, function.args, strict=True)]
    results = [_packed(build, value) for value in body(build, arguments) or ()]
    whole: ir.Value = results[0]
    if len(results) > 1:
        whole = ir.Constant(result, ir.Undefined)
        for index, value in enumerate(results):
            whole = build.insert_value(whole, value, index)
    build.ret(whole)
    return function
