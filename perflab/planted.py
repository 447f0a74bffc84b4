"""Bugs planted on purpose: who finds them, a test of outputs, the emulator, or a tool of compute-sanitizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perflab.origins import Origin
from perflab.tables import Table

_STATES = {"ended": "", "failed": "error", "hangs": "hangs", "timed out": "hangs", "died": "died"}


def planted_table(data: Mapping[str, Any]) -> Table:
    """A row a bug, who noticed it, last the sums; data: what tests/gpu/planted.py wrote.

    'found': at a line of the bug; 'elsewhere': at other lines only; 'no line': something found that names no line; 'error': the
    launch failed and nothing was found; 'hangs': it did not end and nothing was found.
    """
    finders = ("emulator", *data["options"])
    rows, clean = list[tuple[str, ...]](), dict.fromkeys(finders, 0)
    for case in data["cases"]:
        tools = {"emulator": {"state": "ended", "findings": case["emulator"]}, **case["tools"]}
        if case["number"]:
            where = f"{case['source']}.cu:{', '.join(map(str, case['lines']))}"
            rows.append((where, case["what"], _outputs_said(case["outputs"]),
                         *(_tool_said(case["lines"], tools.get(finder)) for finder in finders)))
        else:
            clean = {finder: clean[finder] + len(tools.get(finder, {}).get("findings", ())) for finder in finders}
    noticed = sum(row[2] not in ("right", "not run", "died") for row in rows)
    sums = (noticed, *(sum(row[3 + k] == "found" for row in rows) for k in range(len(finders))))
    notes = [f"reports on the {len(data['cases']) - len(rows)} kernels without a bug: "
             f"{', '.join(f'{finder} {count}' for finder, count in clean.items())}", *_asked(data)]
    total = ("found, or seen in outputs", f"of {len(rows)}", *map(str, sums))
    return Table(f"{len(rows)} planted bugs: who finds them", ("where", "what", "outputs", *finders), [*rows, total],
                 str(Origin("measured", f"{data['gpu']}, {data['utc'][:10]}, {data['sanitizer']}")), notes)


def _asked(data: Mapping[str, Any]) -> list[str]:
    """How the tools were run: the options that not all of them had, and after what time a launch was given up."""
    shared, given_up = set.intersection(*map(set, data["options"].values())), data["given_up_seconds"]
    own = (" ".join(word for word in words if word not in shared) for words in data["options"].values())
    return ["asked: " + ", ".join(own),
            f"hangs: not ended {given_up['plain']:g} s after the launch, under a tool {given_up['tool']:g} s"]


def _outputs_said(outputs: Mapping[str, Any] | None) -> str:
    """What a test of outputs sees: in how many of its launches they are not those of float64, or that one failed."""
    if outputs is None or outputs["state"] != "ended":
        return _STATES[outputs["state"]] if outputs else "not run"
    wrong = outputs["runs"] - outputs["right"]
    return "right" if not wrong else "wrong" if not outputs["right"] else f"wrong {wrong} of {outputs['runs']}"


def _tool_said(lines: Sequence[int], tool: Mapping[str, Any] | None) -> str:
    """How far a finder came with a bug that is at these lines."""
    if tool and tool["findings"]:
        named = {line for one in tool["findings"] for line in one["lines"]}
        return "found" if named & set(lines) else "elsewhere" if named else "no line"
    return _STATES[tool["state"]] if tool else "not run"
