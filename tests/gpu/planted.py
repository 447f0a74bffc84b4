"""Who finds the 50 planted bugs: a test of outputs, each tool of compute-sanitizer, the emulator?

    python tests/gpu/planted.py build FILE            # here, where the compiler is: cubins, inputs, the emulator's faults
    python tests/gpu/planted.py run FILE OUT [SECONDS] # on the GPU machine: needs CuPy, compute-sanitizer and perflab's sources
    python tests/gpu/planted.py read FILE OUT RESULT  # here: data/experiments/h200_planted.json, without cubins and memory

The kernels and their bugs are those of `tests/emulator/test_planted_bugs.py`, compiled for sm_90 with line information.
Each bug and tool has a process of its own, since a bug may cost the process its GPU, and every array an allocation of its
own. Outputs and scratch begin as NaN, as in `perflab measure`, so that what is not written shows; under initcheck as they
were allocated. A launch that does not end within its limit hangs. `plain` launches again and again without a tool.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
PLAIN = "plain"
REPEATS = 20  # plain launches: a race shows in some of them
AT_ONCE = 12
HANGS_SECONDS, TOOL_HANGS_SECONDS = 8.0, 15.0  # after the launch, without and with a tool
PROCESS_SECONDS = 60.0  # start, launch and end of a process
RUN_SECONDS = 400.0
OPTIONS = {  # the first word of each must be in --help: releases differ
    "": ("--print-limit 100000", "--show-backtrace device", "--demangle no", "--launch-timeout 60"),
    "memcheck": ("--destroy-on-device-error kernel",),
    "racecheck": ("--racecheck-report all", "--racecheck-detect-level info", "--print-level info"),
    "initcheck": ("--initcheck-address-space all",),
    "synccheck": (),
}
PORTS = 49152, 16  # the first, and how many a process may try: compute-sanitizers beside each other must not meet
KEPT_CHARACTERS = 4000  # of what a tool said
DEVICE_SMS = 132


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def _unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


# ---------------------------------------------------------------- here, before
def _bugs() -> Any:
    """The module that declares the bugs; it needs pytest, which the GPU machine may not have."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "emulator")]
    import test_planted_bugs

    return test_planted_bugs


def all_cases() -> list[dict[str, Any]]:
    """Every bug, then every kernel without one: what and how to launch, still without cubin and memory."""
    bugs, made = _bugs(), []
    for bug in bugs.BUGS:
        usual = bugs.USUAL[bug.source]
        launch = bug.launch or usual
        launch = replace(launch, n=launch.n or usual.n, dynamic_shared=launch.dynamic_shared or usual.dynamic_shared)
        if bug.launch and bug.launch.sms != bugs.Launch().sms:  # a grid barrier with one block more than fit
            launch = replace(launch, grid=DEVICE_SMS + 1)
        made.append({"source": bug.source, "number": bug.number, "style": bug.style, "kind": bug.kind, "what": bug.what,
                     "launch": launch, "bug": bug})
    for source, style in bugs.CLEAN:
        launch = bugs.USUAL[source]
        launch = replace(launch, n=960) if (source, style) == ("reduction", 3) else launch
        made.append({"source": source, "number": 0, "style": style, "kind": "", "what": "without a bug", "launch": launch})
    return made


def memory_of(source: str, launch: Any) -> list[dict[str, Any]]:
    """The arguments in order: {name, role, dtype, shape, data} of an array, {name, role: 'scalar', dtype, value}."""
    bugs, made = _bugs(), list[dict[str, Any]]()
    roles = dict.fromkeys((*bugs.SCRATCH[source], *launch.scratch), "scratch") | dict.fromkeys(bugs.OUTPUTS[source], "output")
    for name, value in bugs.arrays(source, launch).items():
        if isinstance(value, np.ndarray):
            made.append({"name": name, "role": roles.get(name, "input"), "dtype": value.dtype.str, "shape": value.shape,
                         "data": _packed(value.tobytes())})
        else:
            made.append({"name": name, "role": "scalar", "dtype": "<i4" if isinstance(value, int) else "<f4", "value": value})
    return made


def three(size: int | Sequence[int]) -> list[int]:
    """A grid or block with all its sides."""
    sides = [size] if isinstance(size, int) else list(size)
    return sides + [1] * (3 - len(sides))


def emulated(bug: Any) -> list[dict[str, Any]]:
    """What the emulator reports of a bug under either order of blocks, one a cause."""
    found = {}
    for faults in _bugs().reported(bug, "numpy").values():
        for fault in faults:
            found[fault.kind, tuple(sorted(_bugs().lines_of(fault)))] = fault
    return [{"kind": kind, "lines": list(lines), "message": fault.message, "block": fault.block, "threads": fault.threads}
            for (kind, lines), fault in sorted(found.items(), key=lambda item: item[0])]


def lines_of_bug(bug: Any, faults: Sequence[Mapping[str, Any]]) -> list[int]:
    """The lines at which a finder must report a bug: those marked with its number; without marks, as of an output that
    nobody writes, the emulator's own."""
    marks = _bugs().marked(bug.source)
    lines = {line for role in ("", " other", " too") for line in marks.get(f"{bug.number}{role}", ())}
    return sorted(lines or {line for fault in faults if fault["kind"] == bug.kind for line in fault["lines"]})


def build(file: Path) -> None:
    """Write FILE: all cases with cubins, memory, lines and the emulator's faults."""
    import perflab as pl

    bugs, made = _bugs(), []
    for case in all_cases():
        launch, bug = case.pop("launch"), case.pop("bug", None)
        name, block = bugs.ENTRY[case["source"]]
        defines = {"BUG": case["number"], "STYLE": case["style"]}
        binary = pl.load(bugs.FOLDER / f"{case['source']}.cu", name, defines).binary("sm_90")
        case |= {"entry": name, "grid": three(launch.grid), "block": three(block), "dynamic_shared": launch.dynamic_shared,
                 "arguments": memory_of(case["source"], launch), "launch": asdict(launch), "cubin": _packed(binary.cubin)}
        case["emulator"] = emulated(bug) if bug else []
        case["lines"] = lines_of_bug(bug, case["emulator"]) if bug else []
        made.append(case)
    file.write_text(json.dumps({"nvrtc": binary.nvrtc, "sources": source_hashes(), "cases": made}))
    print(f"{len(made)} cases, {file.stat().st_size:,} B")


def source_hashes() -> dict[str, str]:
    """Of each kernel's source: what was found says nothing about another."""
    return {name: hashlib.sha256((_bugs().FOLDER / f"{name}.cu").read_bytes()).hexdigest() for name in _bugs().ENTRY}


# ---------------------------------------------------------------- a process on the GPU
def target(file: Path, notes: Path, tool: str) -> None:
    """Launch the case in FILE and note in NOTES, a line of JSON each, how far it came: what runs under the tools."""
    import cupy

    def note(state: str, **more: Any) -> None:
        with notes.open("a") as to:
            to.write(json.dumps({"state": state, **more}) + "\n")

    case = json.loads(file.read_text())
    cupy.cuda.set_allocator(None)
    cubin = notes.with_suffix(".cubin")  # CuPy keeps a module by its path
    cubin.write_bytes(_unpacked(case["cubin"]))
    function = cupy.RawModule(path=str(cubin)).get_function(case["entry"])
    if case["dynamic_shared"] > 48 * 1024:
        function.max_dynamic_shared_size_bytes = case["dynamic_shared"]
    seen = Counter[str]()
    try:
        for _ in range(REPEATS if tool == PLAIN else 1):
            memory = {one["name"]: on_gpu(one, tool == "initcheck") for one in case["arguments"]}
            cupy.cuda.Device().synchronize()
            watch = given_up_after(HANGS_SECONDS if tool == PLAIN else TOOL_HANGS_SECONDS, lambda: note("hangs"))
            function(tuple(case["grid"]), tuple(case["block"]), tuple(memory.values()), shared_mem=case["dynamic_shared"])
            cupy.cuda.Device().synchronize()
            watch.cancel()
            outputs = [one["name"] for one in case["arguments"] if one["role"] == "output"]
            if tool == PLAIN:
                seen[json.dumps({name: _packed(memory[name].get().tobytes()) for name in outputs})] += 1
    except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as error:
        note("failed", problem=str(error))
        os._exit(1)  # the context is lost: what Python tidies up at its end would only fail again
    note("ended", outputs=[[times, json.loads(text)] for text, times in seen.items()])


def on_gpu(argument: Mapping[str, Any], blank: bool) -> Any:
    """An argument as CuPy takes it. blank: what the kernel must write is not touched, else it is NaN, or all bits set."""
    import cupy

    dtype = np.dtype(argument["dtype"])
    if argument["role"] == "scalar":
        return dtype.type(argument["value"])
    if argument["role"] == "input":
        return cupy.asarray(np.frombuffer(_unpacked(argument["data"]), dtype).reshape(argument["shape"]))
    if blank:
        return cupy.empty(argument["shape"], dtype)
    size = int(np.prod(argument["shape"])) * dtype.itemsize
    return cupy.asarray(np.full(size, 0xFF, np.uint8).view(dtype).reshape(argument["shape"]))


def given_up_after(seconds: float, say: Callable[[], None]) -> threading.Timer:
    """End this process when the time is over: a kernel that hangs cannot be ended otherwise."""
    def end() -> None:
        say()
        os._exit(3)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer


# ---------------------------------------------------------------- around it, on the GPU machine
def options_of(tool: str, known: str) -> list[str]:
    """The options of a tool that this compute-sanitizer knows, by its --help."""
    chosen = [option.split() for option in (*OPTIONS[""], *OPTIONS[tool]) if option.split()[0] in known]
    return ["--tool", tool, *(word for option in chosen for word in option)]


def job(path: str, known: str, case: Mapping[str, Any], file: Path, tool: str, port: int) -> dict[str, Any]:
    """One case under one tool: how it ended, and what the tool found, by perflab's own reader."""
    from perflab.launching import run_tool

    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        notes = Path(folder) / "notes.jsonl"
        command = [sys.executable, "-s", __file__, "target", str(file), str(notes), tool]
        if tool != PLAIN:
            ports = ["--port", str(port)] if "--port" in known else []
            command = [path, *options_of(tool, known), *ports, *command]
        ended = run_tool(command, PROCESS_SECONDS)
        last = notes.read_text().splitlines()[-1:] if notes.exists() else []
    noted = json.loads(last[0]) if last else {"state": "timed out" if ended.code is None else "died"}
    result = {"source": case["source"], "number": case["number"], "style": case["style"], "tool": tool, **noted,
              "code": ended.code, "seconds": round(ended.seconds, 1)}
    if tool == PLAIN:
        return result | ({} if noted["state"] == "ended" else {"said": ended.said[-KEPT_CHARACTERS:]})
    return result | found_in(ended.said, case)


def found_in(text: str, case: Mapping[str, Any]) -> dict[str, Any]:
    """What a tool printed as {findings, notes, said}; a finding: {kind, lines, message, times}, lines of both accesses, and of
    the calls around them."""
    from perflab.sanitizer import faults_of, findings, merged

    entries, notes = findings(text)
    each = list(faults_of(entries, {case["entry"]: (case["grid"], case["block"])}))
    notes += [one for one in each if isinstance(one, str)]
    faults = merged(one.fault for one in each if not isinstance(one, str))
    said = [line for line in text.splitlines() if line.startswith("=========") and line[9:].strip()]
    return {"findings": [{"kind": one.kind, "lines": lines_at(one, f"{case['source']}.cu"), "message": one.message,
                          "times": one.times} for one in faults],
            "notes": notes[:8], "summary": said[-3:], "said": "\n".join(said)[:KEPT_CHARACTERS]}


def lines_at(fault: Any, file: str) -> list[int]:
    """The lines of the kernel's own file that a fault names."""
    lines = set()
    for place in (fault.place, fault.other):
        while place:
            lines |= {place.line} if place.file == file else set()
            place = place.inlined_at
    return sorted(lines)


def in_order(cases: Sequence[Mapping[str, Any]], hang: set[int], tools: Sequence[str]) -> list[tuple[int, str]]:
    """(case, tool): those that end first, tool by tool; then those that hang without one, which take a limit each."""
    quick = [(index, tool) for tool in tools for index in range(len(cases)) if index not in hang]
    return quick + [(index, tool) for tool in tools for index in sorted(hang)]


def run(file: Path, out: Path, seconds: float = RUN_SECONDS) -> None:
    """Every case without a tool, then under each tool; results go to OUT.jsonl as they come, at the end to OUT."""
    from perflab.launching import run_tool, tool_path
    from perflab.sanitizer import TOOLS

    begin, given = time.monotonic(), json.loads(file.read_text())
    path = tool_path("compute-sanitizer")
    known, version = (run_tool([path, question], 60).said for question in ("--help", "--version"))
    found, lock, cases = list[dict[str, Any]](), threading.Lock(), given["cases"]
    slots = list(range(AT_ONCE))
    with tempfile.TemporaryDirectory(prefix="planted-") as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        files = [Path(folder) / f"{index}.json" for index in range(len(cases))]
        for one, case in zip(files, cases, strict=True):
            one.write_text(json.dumps(case))

        def take(index: int, tool: str) -> None:
            if time.monotonic() - begin > seconds:
                return
            with lock:
                slot = slots.pop()
            for _ in range(2):  # once more where it did not come to launch: the tool may have missed its target
                result = job(path, known, cases[index], files[index], tool, PORTS[0] + PORTS[1] * slot)
                if result["state"] != "died":
                    break
            with lock:
                slots.append(slot)
                found.append(result)
                with out.with_suffix(".jsonl").open("a") as to:
                    to.write(json.dumps(result) + "\n")
                kinds = ", ".join(sorted({f"{one['kind']} {one['lines']}" for one in result.get("findings", ())}))
                print(f"{time.monotonic() - begin:5.0f} s {result['source']} {result['number']} {result['style']} {tool}: "
                      f"{result['state']} {result['seconds']} s {kinds}", flush=True)

        list(pool.map(lambda index: take(index, PLAIN), range(len(cases))))
        hang = {index for index, case in enumerate(cases) for one in found
                if one["state"] != "ended" and "problem" not in one and same(one, case)}
        list(pool.map(lambda pair: take(*pair), in_order(cases, hang, TOOLS)))
    options = {tool: options_of(tool, known) for tool in TOOLS}
    out.write_text(json.dumps({**about(version), "options": options, "results": found}))
    states = Counter(f"{one['tool']} {one['state']}" for one in found)
    print(f"{len(found)} of {5 * len(cases)} in {time.monotonic() - begin:.0f} s: {dict(sorted(states.items()))}")


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a result and a case, or two of either, are of the same kernel with the same bug."""
    return all(one[key] == other[key] for key in ("source", "number", "style"))


def about(said: str) -> dict[str, Any]:
    """The GPU, the driver, the tool and the date. nvidia-smi, so that this process holds no part of the GPU."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    words = subprocess.run(asked, capture_output=True, text=True).stdout.strip().splitlines()[0].split(", ")
    version = next((line.strip() for line in said.splitlines() if line.strip().startswith("Version")), said[-100:])
    return {"gpu": words[0], "driver": words[-1], "sanitizer": f"compute-sanitizer {version.removeprefix('Version').strip()}",
            "utc": datetime.now(UTC).isoformat(timespec="seconds")}


# ---------------------------------------------------------------- here, after
def outputs_of(case: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """What a test of outputs would have seen: {state, runs, right, problem}."""
    if plain["state"] != "ended":
        return {"state": plain["state"], "runs": 0, "right": 0, "problem": plain.get("problem", "")}
    bugs, right = _bugs(), 0
    launch = bugs.Launch(**{key: tuple(value) if isinstance(value, list) else value for key, value in case["launch"].items()})
    for times, outputs in plain["outputs"]:
        given = bugs.arrays(case["source"], launch)
        for name, data in outputs.items():
            given[name] = np.frombuffer(_unpacked(data), given[name].dtype).reshape(given[name].shape)
        right += times * bugs.is_right(case["source"], given)
    return {"state": "ended", "runs": sum(times for times, _ in plain["outputs"]), "right": right, "problem": ""}


def read_again(found: Mapping[str, Any], case: Mapping[str, Any]) -> dict[str, Any]:
    """{findings, notes} of a tool: what the run found, and what its reader noted as not understood and today's understands."""
    text = "\n".join("========= " + note.replace(" | ", "\n=========     ") for note in found.get("notes", ()))
    again = found_in(text, case)
    known = {(one["kind"], *one["lines"]) for one in found.get("findings", ())}
    new = [one for one in again["findings"] if (one["kind"], *one["lines"]) not in known]
    return {"findings": [*found.get("findings", ()), *new], "notes": again["notes"]}


def read(file: Path, out: Path, result: Path) -> None:
    """Put FILE and what the run wrote together as RESULT."""
    from perflab.planted import planted_table
    from perflab.sanitizer import TOOLS

    given, said = json.loads(file.read_text()), json.loads(out.read_text())
    cases = []
    for case in given["cases"]:
        mine = {one["tool"]: one for one in said["results"] if same(one, case)}
        kept = {key: case[key] for key in ("source", "number", "style", "kind", "what", "lines", "grid", "block",
                                           "dynamic_shared", "emulator")}
        tools = {tool: {"state": mine[tool]["state"], **read_again(mine[tool], case), "summary": mine[tool].get("summary", [])}
                 for tool in TOOLS if tool in mine}
        cases.append(kept | {"outputs": outputs_of(case, mine[PLAIN]) if PLAIN in mine else None, "tools": tools})
    head = {key: said[key] for key in ("gpu", "driver", "sanitizer", "utc", "options")}
    head["given_up_seconds"] = {"plain": HANGS_SECONDS, "tool": TOOL_HANGS_SECONDS}
    data = {**head, "nvrtc": given["nvrtc"], "sources": given["sources"], "cases": cases}
    result.write_text(json.dumps(data, indent=1) + "\n")
    print(planted_table(data))


def main(arguments: list[str]) -> None:
    """See the module's text."""
    match arguments:
        case ["build", file]:
            build(Path(file))
        case ["run", file, out, *seconds]:
            run(Path(file), Path(out), *map(float, seconds))
        case ["target", file, notes, tool]:
            target(Path(file), Path(notes), tool)
        case ["read", file, out, result]:
            read(Path(file), Path(out), Path(result))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
